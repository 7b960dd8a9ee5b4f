//! The engines under test, each on a simulated host.

use std::path::{Path, PathBuf};

use base::{ChunkId, DiskId, Epoch};
use chunkstore::flash::{self, Config, FlashStore, FormatOptions, Planted, SyncMode};
use chunkstore::{Append, ChunkStore};
use codec::block::Codec;
use runtime::sim::{CrashMode, HostId, Sim};
use runtime::{Buf, BufPool};
use testing::chunks::{ModelDisk, ModelStore};
use testing::rows::cell_of;
use wire::data::Purpose;
use wire::row::Fragment;
use wire::sector::{AppendAt, format_append, sectors_for};

/// A store that can be rebooted.
pub trait Engine {
    type Store: ChunkStore;

    /// Starts the node and opens its store.
    async fn boot(&mut self) -> Result<Self::Store, String>;

    /// Takes the node down.
    fn crash(&mut self, mode: CrashMode);
}

/// A small store, so that its log wraps and its file grows within a test.
pub fn small() -> FormatOptions {
    FormatOptions {
        unit: 16 << 10,
        capacity: 64 << 20,
        log_bytes: 256 << 10,
        tombstones: 1000,
        open_map_bytes: 64 << 10,
        grow_step: 256 << 10,
        raw: false,
        force: false,
    }
}

pub struct Flash {
    pub sim: Sim,
    pub host: HostId,
    pub options: FormatOptions,
    pub config: Config,
    pub disk: Option<DiskId>,
}

pub fn store_path() -> PathBuf {
    PathBuf::from("/disk0/store")
}

impl Flash {
    pub fn new(sim: &Sim, options: FormatOptions, config: Config) -> Flash {
        let host = sim.add_host("flash");
        Flash { sim: sim.clone(), host, options, config, disk: None }
    }

    pub fn planted(sim: &Sim, planted: Option<Planted>, sync: SyncMode) -> Flash {
        Flash::new(sim, small(), Config { planted, sync, ..Config::default() })
    }

    pub async fn try_boot(&mut self) -> Result<FlashStore, flash::MountError> {
        let env = self.sim.boot(self.host);
        let path = store_path();
        if self.disk.is_none() {
            env.create_dir_all(Path::new("/disk0")).await.unwrap();
            self.disk = Some(flash::format(&env, &path, &self.options).await?);
        }
        flash::open_with(&env, &path, self.config.clone()).await
    }
}

impl Engine for Flash {
    type Store = FlashStore;

    async fn boot(&mut self) -> Result<FlashStore, String> {
        self.try_boot().await.map_err(|error| error.to_string())
    }

    fn crash(&mut self, mode: CrashMode) {
        self.sim.crash(self.host, mode);
    }
}

pub struct Model {
    sim: Sim,
    host: HostId,
    disk: ModelDisk,
}

impl Model {
    pub fn new(sim: &Sim) -> Model {
        let host = sim.add_host("model");
        Model { sim: sim.clone(), host, disk: ModelDisk::new(DiskId::new(1)) }
    }
}

impl Engine for Model {
    type Store = ModelStore;

    async fn boot(&mut self) -> Result<ModelStore, String> {
        let env = self.sim.boot(self.host);
        Ok(self.disk.open(Some(env)))
    }

    fn crash(&mut self, mode: CrashMode) {
        self.sim.with_rng(|rng| self.disk.reboot(rng));
        self.sim.crash(self.host, mode);
    }
}

/// A formatted append of `data`.
pub fn append_of(chunk: ChunkId, epoch: u64, offset: u32, data: &[u8]) -> Append {
    let epoch = Epoch::new(epoch);
    let at = AppendAt { chunk, epoch, base: chunk.get().wrapping_mul(1000), offset };
    let mut sectors = vec![0; sectors_for(data.len()) * 4096];
    format_append(at, data, &mut sectors);
    let create = offset == 0;
    Append {
        chunk,
        epoch,
        base: at.base,
        offset,
        sectors: buf_of(&sectors),
        create,
        repair: false,
        purpose: Purpose::Data,
    }
}

/// An append of one row with these logical bytes: the cell of a fragment.
pub fn row_append_of(
    (chunk, epoch, offset): (ChunkId, u64, u32),
    row: &[u8],
    fragment: Fragment,
    codec: Codec,
) -> Append {
    let mut append = append_of(chunk, epoch, offset, b"-");
    let at = AppendAt { chunk, epoch: append.epoch, base: append.base, offset };
    append.sectors = buf_of(&cell_of(at, row, fragment, codec));
    append
}

pub fn buf_of(bytes: &[u8]) -> Buf {
    BufPool::new(8 << 20).copy_of(bytes).unwrap()
}

/// Bytes that differ by chunk, offset and salt.
pub fn data_of(chunk: ChunkId, offset: u32, len: u32, salt: u64) -> Vec<u8> {
    let mut rng = runtime::Rng::new(chunk.get() ^ u64::from(offset) << 20 ^ salt << 50);
    let mut data = vec![0; len as usize];
    rng.fill(&mut data);
    data
}
