//! Snapshots of volumes that other clients write to, under faults, in turn with an operator's
//! changes. A snapshot, or a clone of it, has of a block what a read would have seen between the
//! asking for the snapshot and its answer (`protocols.md` 6.6).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use base::Kind;
use block_client::{Limits, VolumeExports};
use block_proto::{BlockReply, BlockRequest, Managers, VolumeInfo, VolumeSpec};
use block_volume::contract::Device;
use block_volume::export::Exports;
use block_volume::ids::VolumeId;
use block_volume::limits::BLOCK;
use client::Client;
use runtime::{Class, Env, JoinHandle};
use transport::Endpoint;

use super::record::{Record, extent};
use super::stored::check_all;

/// Between the end of a snapshot's use and the next, at most.
const PAUSE_MS: u64 = 1500;
/// Time limit of a request, faults and all.
pub(super) const TIMEOUT: Duration = Duration::from_secs(90);
/// Pause between two attempts to open a volume that is not there yet.
pub(super) const AGAIN: Duration = Duration::from_millis(100);

/// Takes snapshots, on a host that does not crash.
pub(super) struct Keeper {
    pub(super) env: Env,
    pub(super) managers: Managers,
    exports: VolumeExports,
    pub(super) record: Rc<Record>,
    /// Blocks in use.
    pub(super) blocks: Vec<u64>,
    /// The volumes, as answered requests have made them.
    pub(super) known: RefCell<BTreeMap<VolumeId, VolumeSpec>>,
    /// Volumes that are shorter than they were made, and when that was asked for.
    pub(super) cut: RefCell<BTreeMap<VolumeId, Duration>>,
}

impl Keeper {
    /// Begins to take snapshots of `volumes` and to change these, until `is_over` is true; the task
    /// ends with the number of snapshots, or with the violation. The last one stays, with its clone.
    pub(super) fn start(
        client: &Client,
        endpoint: &Endpoint,
        record: &Rc<Record>,
        blocks: &[u64],
        volumes: &[VolumeInfo],
        is_over: impl Fn() -> bool + 'static,
    ) -> (Rc<Keeper>, JoinHandle<Result<u64, String>>) {
        let (env, managers) = (client.env().clone(), Managers::with_budget(client, TIMEOUT));
        let limits = Limits { deadline: TIMEOUT, ..Limits::default() };
        let exports = VolumeExports::new(&managers, endpoint, env.name(), limits);
        let (record, blocks) = (record.clone(), blocks.to_vec());
        let known = volumes.iter().map(|info| (info.volume, info.spec.clone())).collect();
        let keeper = Rc::new(Keeper {
            env: env.clone(),
            managers,
            exports,
            record,
            blocks,
            known: RefCell::new(known),
            cut: RefCell::default(),
        });
        let volumes: Vec<VolumeId> = volumes.iter().map(|info| info.volume).collect();
        let this = keeper.clone();
        let task = env.spawn(Class::Foreground, "keeper of snapshots", async move {
            let (mut taken, mut last) = (0, Vec::new());
            while !is_over() {
                let pause = Duration::from_millis(this.env.random_below(PAUSE_MS));
                this.env.sleep(pause).await;
                let volume = volumes[this.env.random_below(volumes.len() as u64) as usize];
                for volume in std::mem::replace(&mut last, this.take(volume, taken).await?) {
                    this.ask(BlockRequest::Remove { volume, force: true }).await?;
                }
                taken += 1;
                this.change(volume).await?;
            }
            this.grow_again().await?;
            Ok(taken)
        });
        (keeper, task)
    }

    /// Checks all that is stored of volumes, snapshots and clones.
    pub(super) async fn check_all(self: Rc<Self>) -> Result<(), String> {
        let env = self.env.clone();
        let check = async move { check_all(&self.managers, &self.exports, &[]).await };
        let checked = env.spawn(Class::Foreground, "check", check).await;
        checked.map_err(|_| "the keeper of snapshots has crashed".to_owned())?
    }

    async fn ask(&self, request: BlockRequest) -> Result<BlockReply, String> {
        let name = request.name();
        self.managers.ask(request).await.map_err(|error| format!("{name}: {error}"))
    }

    async fn made(&self, request: BlockRequest) -> Result<VolumeInfo, String> {
        match self.ask(request).await? {
            BlockReply::Volume(info) => Ok(info),
            other => Err(format!("no volume: {other:?}")),
        }
    }

    /// Takes a snapshot, and compares it or a clone with the record. Answers what is to be removed.
    async fn take(&self, volume: VolumeId, number: u64) -> Result<Vec<VolumeId>, String> {
        let asked = self.record.now();
        let (nonce, name) = (self.env.random_u64(), format!("s{number}"));
        let snapshot = self.made(BlockRequest::Snapshot { nonce, volume, name }).await?;
        let there = self.record.now();
        self.env.mark("cuts: a snapshot amid faults");
        let mut gone = vec![snapshot.volume];
        let mut name = snapshot.spec.name.clone();
        if self.env.random_below(2) == 0 {
            name = format!("clone{number}");
            let nonce = self.env.random_u64();
            let clone =
                BlockRequest::Clone { nonce, snapshot: snapshot.volume, name: name.clone() };
            gone.insert(0, self.made(clone).await?.volume);
        }
        let device = self.open(&name).await?;
        let bytes = self.known.borrow()[&volume].bytes;
        if device.bytes() != bytes {
            return Err(format!("{name} has {} bytes, of {bytes}", device.bytes()));
        }
        for &block in self.blocks.iter().filter(|&&block| block * BLOCK < bytes) {
            let data = device.read(extent(&(block..block + 1))).await;
            let data = data.map_err(|fault| format!("read {name}: {fault}"))?;
            self.record.cut((volume, block), (asked, there), &data)?;
        }
        Ok(gone)
    }

    async fn open(&self, name: &str) -> Result<Rc<dyn Device>, String> {
        let end = self.record.now() + TIMEOUT;
        loop {
            match self.exports.open(name).await {
                Ok(device) => return Ok(device),
                Err(fault) if fault.kind == Kind::Retry && self.record.now() < end => {
                    self.env.sleep(AGAIN).await;
                }
                Err(fault) => return Err(format!("open {name}: {fault}")),
            }
        }
    }
}
