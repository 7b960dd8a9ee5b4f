//! Reads whose callers have gone, on a chunk store with a slow disk: the disk is not asked for them.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use base::{DiskId, TraceId};
use chunkserver::{Chunkserver, Config};
use chunkstore::flash::{self, FlashStore, FormatOptions};
use chunkstore::limits::READS_AT_DEVICE_MAX;
use chunkstore::{Append, ChunkStore};
use runtime::sim::{HostId, Sim};
use runtime::{Class, Env, JoinHandle};
use transport::{CallError, Endpoint, Limits, Priority, Request, Response, Service};
use wire::data::{ChunkRef, DataRequest, Purpose, ReadRequest};
use wire::sector::{AppendAt, format_append, sectors_for};
use wire::token::{IssuerTime, Rights, TokenKey};

use crate::{BASE, CHUNK, EPOCH, PORT, identity};

/// Reads that are begun together: several times as many as the disk is asked for at once.
const READS: u32 = 200;
/// Time of one read of the disk.
const DISK: Duration = Duration::from_millis(20);
/// Bytes of the chunk.
const LEN: u32 = 800_000;

/// A server of one sealed chunk, and a caller.
struct Bed {
    sim: Sim,
    server_host: HostId,
    caller_host: HostId,
    server_env: Env,
    env: Env,
    endpoint: Endpoint,
    addr: SocketAddr,
    disk: DiskId,
    server: Chunkserver<FlashStore>,
}

impl Bed {
    async fn start(sim: &Sim) -> Bed {
        let (server_host, caller_host) = (sim.add_host("cs0"), sim.add_host("caller"));
        let server_env = sim.boot(server_host);
        server_env.create_dir_all(Path::new("/disk0")).await.unwrap();
        let path = Path::new("/disk0/store");
        let disk = flash::format(&server_env, path, &FormatOptions::tiny()).await.unwrap();
        let store = flash::open(&server_env, path).await.unwrap();
        let data = vec![7; LEN as usize];
        let mut sectors = server_env.pool().alloc(sectors_for(data.len()) * 4096).unwrap();
        let at = AppendAt { chunk: CHUNK, epoch: EPOCH, base: BASE, offset: 0 };
        format_append(at, &data, &mut sectors);
        let append = Append {
            chunk: CHUNK,
            epoch: EPOCH,
            base: BASE,
            offset: 0,
            sectors: sectors.freeze(),
            create: true,
            repair: false,
            purpose: Purpose::Data,
        };
        store.append(append).await.unwrap();
        store.seal(CHUNK, LEN).await.unwrap();
        let endpoint = Endpoint::new(&server_env, identity("chunkserver"), Limits::default());
        let addr = sim.addr(server_host, PORT);
        let mut config = Config::new("cs0", addr, Vec::new());
        config.scrub_rate = 0;
        let disks = vec![("/disk0".to_owned(), store)];
        let server = Chunkserver::start(&server_env, endpoint, config, disks).await.unwrap();
        let env = sim.boot(caller_host);
        let endpoint = Endpoint::new(&env, identity("caller"), Limits::default());
        let sim = sim.clone();
        Bed { sim, server_host, caller_host, server_env, env, endpoint, addr, disk, server }
    }

    fn read(&self, index: u32, timeout: Duration) -> JoinHandle<Result<Response, CallError>> {
        let at = ChunkRef { chunk: CHUNK, disk: self.disk };
        let request = DataRequest::Read(ReadRequest {
            at,
            offset: index * 4000,
            len: 1,
            uncommitted: true,
            cell_sector: None,
            blocks: false,
        });
        let expiry = self.env.unix_time().as_nanos() / 1_000_000_000 + 60;
        let request = Request {
            service: Service::DATA,
            op: request.op(),
            priority: Priority::Foreground,
            flow: 0,
            trace: TraceId::new(1),
            token: TokenKey::of_cluster(None).issue(
                CHUNK,
                Rights::ALL,
                EPOCH,
                IssuerTime::wall(expiry),
            ),
            body: request.encode(),
            payload: None,
        };
        let (endpoint, addr) = (self.endpoint.clone(), self.addr);
        self.env.spawn(Class::Foreground, "read", async move {
            endpoint.call(addr, request, timeout).await
        })
    }

    /// Reads that the disk was asked for.
    fn disk_reads(&self) -> u64 {
        let text = self.server_env.tracer().registry().expose();
        let counts = text.lines().filter(|line| line.starts_with("craton_disk_read_seconds_count"));
        counts.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>() as u64
    }
}

fn check(seed: u64, test: impl AsyncFnOnce(&Bed)) {
    let sim = Sim::new(seed);
    sim.run(async {
        let bed = Bed::start(&sim).await;
        assert!(bed.read(0, Duration::from_secs(1)).await.unwrap().unwrap().payload.is_some());
        assert_eq!(bed.disk_reads(), 1);
        sim.with_disk_faults(bed.server_host, |faults| faults.latency = (DISK, DISK));
        test(&bed).await;
    })
    .unwrap();
    sim.close();
}

#[test]
fn reads_of_callers_that_have_gone_leave_the_disk_alone() {
    check(1, async |bed| {
        let gone: Vec<_> =
            (0..READS).map(|index| bed.read(index, Duration::from_secs(5))).collect();
        bed.sim.sleep(DISK / 8).await;
        let last = bed.read(0, Duration::from_secs(5));
        bed.sim.sleep(DISK / 8).await;
        gone.iter().for_each(JoinHandle::abort);
        bed.sim.sleep(3 * DISK).await;
        assert!(last.is_finished(), "a read waits behind those of callers that have gone");
        let most = READS_AT_DEVICE_MAX as u64 + 2;
        assert!(bed.disk_reads() <= most, "{} reads of the disk", bed.disk_reads());
        let stats = bed.server.stats();
        assert_eq!(stats.reads_cancelled_before, u64::from(READS) - most + 2);
        assert_eq!(stats.reads_cancelled_after, READS_AT_DEVICE_MAX as u64);
        assert_eq!((stats.reads, stats.busy), (2, 0));
    });
}

#[test]
fn reads_past_their_deadlines_leave_the_disk_alone() {
    check(2, async |bed| {
        let reads: Vec<_> = (0..READS).map(|index| bed.read(index, 3 * DISK / 2)).collect();
        bed.sim.sleep(DISK / 4).await;
        // Nothing of the callers arrives any more: only the deadlines say that they have gone.
        bed.sim.set_blocked(bed.caller_host, bed.server_host, true);
        bed.sim.sleep(10 * DISK).await;
        drop(reads);
        let most = 2 * READS_AT_DEVICE_MAX as u64 + 1;
        assert!(bed.disk_reads() <= most, "{} reads of the disk", bed.disk_reads());
        let stats = bed.server.stats();
        assert_eq!(stats.reads_cancelled_before, u64::from(READS) - most + 1);
    });
}
