//! Faults of the medium: what is damaged is noticed, what is not stays.

use std::collections::BTreeMap;
use std::path::Path;

use base::limits::reserve_bytes;
use base::{ChunkId, Epoch};
use chunkstore::flash::{Config, FlashStore, FormatOptions, MountError, Planted, SyncMode};
use chunkstore::{Append, ChunkStore, StoreError};
use runtime::sim::{CrashMode, Sim};
use runtime::{Duration, OpenOptions, Rng};
use wire::data::{Purpose, ReplicaState};
use wire::sector::{client_crc, parse_footer};

use crate::conformance::seeds;
use crate::engine::{Engine, Flash, append_of, data_of, small, store_path};
use crate::suite::contents;

pub(crate) const EPOCH: u64 = 5;

/// Acknowledged state: sectors of each chunk as (offset, client CRC), its length, sealed.
#[derive(Clone, Default)]
pub(crate) struct Acked(pub(crate) BTreeMap<ChunkId, Content>);

pub(crate) type Content = (Vec<(u32, u32)>, u32, bool);

impl Acked {
    pub(crate) fn note(&mut self, append: &Append) {
        let (sectors, len, _) = self.0.entry(append.chunk).or_default();
        for sector in append.sectors.chunks(4096) {
            let footer = parse_footer(sector).unwrap();
            sectors.push((footer.offset, client_crc(sector)));
            *len = footer.offset + u32::from(footer.len);
        }
    }

    fn len(&self, chunk: ChunkId) -> u32 {
        self.0.get(&chunk).map_or(0, |chunk| chunk.1)
    }
}

/// Appends, seals and deletes at random, one after the other.
pub(crate) async fn fill(store: &FlashStore, rng: &mut Rng, acked: &mut Acked, steps: u32) {
    for _ in 0..steps {
        let chunk = ChunkId::new(1 + rng.below(8));
        let sealed = acked.0.get(&chunk).is_some_and(|chunk| chunk.2);
        match rng.below(20) {
            0 if acked.len(chunk) > 0 && !sealed => {
                let done = store.seal(chunk, acked.len(chunk)).await.is_ok();
                acked.0.get_mut(&chunk).unwrap().2 = done;
            }
            1 if sealed => {
                let gone = store.delete(chunk).await.is_ok() && store.forget(chunk).await.is_ok();
                assert!(gone || store.info().failed, "deleting works");
                acked.0.remove(&chunk);
            }
            2 => drop(store.checkpoint().await),
            _ if !sealed => {
                let len = rng.between(1, 40_000) as u32;
                let offset = acked.len(chunk);
                let append = append_of(chunk, EPOCH, offset, &data_of(chunk, offset, len, 0));
                if store.append(append.clone()).await.is_ok() {
                    acked.note(&append);
                }
            }
            _ => {}
        }
    }
}

/// Every chunk is what was acknowledged, or is known to be damaged; returns how many are.
pub(crate) async fn check_chunks(store: &FlashStore, acked: &Acked) -> Result<u32, String> {
    let mut damaged = 0;
    for (&chunk, (sectors, len, _)) in &acked.0 {
        let stat = match store.stat(chunk) {
            Ok(stat) => stat,
            Err(error) => return Err(format!("{chunk} of {len} bytes: {error}")),
        };
        if stat.len < stat.durable_bound {
            damaged += 1;
            continue;
        }
        if stat.len != *len {
            return Err(format!("{chunk} is {stat:?}, {len} bytes were acknowledged"));
        }
        match contents(store, chunk).await {
            Ok(found) if found == *sectors => {}
            Ok(_) => return Err(format!("{chunk} reads other bytes than were written")),
            Err(StoreError::Corrupt { .. }) => {
                let stat = store.stat(chunk).unwrap();
                if stat.len >= stat.durable_bound {
                    return Err(format!("{chunk} was read with damage and does not tell"));
                }
                damaged += 1;
            }
            Err(error) => return Err(format!("{chunk}: {error}")),
        }
    }
    Ok(damaged)
}

/// Fault of a sector at rest.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Decay {
    /// One bit flips.
    Flip,
    /// The medium cannot give it.
    Unreadable,
}

/// One bit flips or one sector becomes unreadable, anywhere.
pub fn check_bit_rot(seed: u64, planted: Option<Planted>, decay: Decay) -> Result<(), String> {
    let sim = Sim::new(seed);
    let mut rng = Rng::new(seed);
    let mut engine = Flash::planted(&sim, planted, SyncMode::PerWrite);
    let run = async {
        let store = engine.boot().await.unwrap();
        let mut acked = Acked::default();
        fill(&store, &mut rng, &mut acked, 60).await;
        let reboots = rng.one_in(2);
        if reboots {
            sim.sleep(Duration::from_secs(1)).await;
            engine.crash(CrashMode::Power);
        }
        // Half of the flips go where metadata is.
        let len = sim.files(engine.host)[0].1;
        let below = if rng.one_in(2) { len } else { len / 4 };
        match decay {
            Decay::Flip => {
                sim.flip_bit(engine.host, &store_path(), rng.below(below), rng.below(8) as u8);
            }
            Decay::Unreadable => {
                sim.make_unreadable(engine.host, &store_path(), rng.below(below));
            }
        }
        let store = match reboots {
            true => engine.try_boot().await.map_err(|error| format!("one flip: {error}"))?,
            false => store,
        };
        match check_chunks(&store, &acked).await? {
            0 | 1 => Ok(()),
            damaged => Err(format!("one flip damages {damaged} chunks")),
        }
    };
    sim.run(run).unwrap().map_err(|why: String| format!("seed {seed}: {why}"))
}

/// Writes are lost or go astray while the store works; then the power is cut.
pub fn check_bad_writes(seed: u64, planted: Option<Planted>, astray: bool) -> Result<u32, String> {
    let sim = Sim::new(seed);
    let mut rng = Rng::new(seed);
    let mut engine = Flash::planted(&sim, planted, SyncMode::PerWrite);
    let run = async {
        let store = engine.boot().await.unwrap();
        let mut acked = Acked::default();
        fill(&store, &mut rng, &mut acked, 30).await;
        let one_in = rng.between(5, 40);
        sim.with_disk_faults(engine.host, |faults| match astray {
            true => faults.misdirected_one_in = one_in,
            false => faults.lost_one_in = one_in,
        });
        fill(&store, &mut rng, &mut acked, 30).await;
        sim.with_disk_faults(engine.host, |faults| {
            faults.misdirected_one_in = 0;
            faults.lost_one_in = 0;
        });
        let damaged = check_chunks(&store, &acked).await?;
        // From here on what was acknowledged is on record.
        sim.sleep(Duration::from_secs(1)).await;
        drop(store);
        engine.crash(CrashMode::Power);
        match engine.try_boot().await {
            Ok(store) => Ok(damaged + check_chunks(&store, &acked).await?),
            Err(MountError::Damaged(_)) => {
                sim.crash(engine.host, CrashMode::Power);
                engine.config.salvage = true;
                match engine.try_boot().await {
                    Ok(store) => {
                        let refused = store.delete(ChunkId::new(1)).await;
                        assert_eq!(refused, Err(StoreError::Failed), "salvaged is read-only");
                    }
                    Err(MountError::Damaged(_)) => {}
                    Err(error) => return Err(format!("salvage: {error}")),
                }
                Ok(1000)
            }
            Err(error) => Err(error.to_string()),
        }
    };
    sim.run(run).unwrap().map_err(|why| format!("seed {seed}: {why}"))
}

/// A log write of several blocks is torn, and the next mount is cut off too: the blocks behind its
/// first one in the log are of no mount that counts.
pub fn check_stale_log(seed: u64, planted: Option<Planted>) -> Result<(), String> {
    let sim = Sim::new(seed);
    let mut engine = Flash::planted(&sim, planted, SyncMode::PerWrite);
    let run = async {
        let store = engine.boot().await?;
        let fences = (0..600).map(|chunk| {
            let store = store.clone();
            sim.spawn("fence", async move {
                drop(store.fence(ChunkId::new(chunk), Epoch::new(3)).await);
            })
        });
        let tasks: Vec<_> = fences.collect();
        let micros = sim.with_rng(|rng| rng.below(600));
        sim.sleep(Duration::from_micros(micros)).await;
        engine.crash(CrashMode::Power);
        tasks.iter().for_each(|task| task.abort());
        drop((store, tasks));
        let first = engine.boot().await?.list(None, 1000).len();
        engine.crash(CrashMode::Power);
        let second = engine.boot().await?.list(None, 1000).len();
        match first == second {
            true => Ok(()),
            false => Err(format!("{first} tombstones, and after a reboot {second}")),
        }
    };
    sim.run(run).unwrap().map_err(|why: String| format!("seed {seed}: {why}"))
}

#[test]
fn stale_log_blocks_do_not_count() {
    for seed in seeds(0..100) {
        check_stale_log(seed, None).unwrap();
    }
}

#[test]
fn bit_rot_is_noticed() {
    for seed in seeds(0..150) {
        check_bit_rot(seed, None, Decay::Flip).unwrap();
    }
}

#[test]
fn unreadable_sectors_are_noticed() {
    for seed in seeds(0..150) {
        check_bit_rot(seed, None, Decay::Unreadable).unwrap();
    }
}

#[test]
fn lost_writes_are_noticed() {
    let mut damaged = 0;
    for seed in seeds(0..100) {
        damaged += check_bad_writes(seed, None, false).unwrap();
    }
    assert!(damaged > 0, "the faults had an effect");
}

#[test]
fn misdirected_writes_are_noticed() {
    let mut damaged = 0;
    for seed in seeds(0..100) {
        damaged += check_bad_writes(seed, None, true).unwrap();
    }
    assert!(damaged > 0, "the faults had an effect");
}

#[test]
fn a_full_medium_takes_deletions() {
    for seed in seeds(0..20) {
        let sim = Sim::new(seed);
        let mut engine = Flash::planted(&sim, None, SyncMode::PerWrite);
        let run = async {
            let store = engine.boot().await.unwrap();
            let len = sim.files(engine.host)[0].1;
            sim.with_disk_faults(engine.host, |faults| faults.capacity = len + (1 << 20));
            let mut acked = Acked::default();
            let mut next = 1;
            let mut refused = 0;
            while refused < 3 {
                let chunk = ChunkId::new(next);
                let append = append_of(chunk, EPOCH, 0, &data_of(chunk, 0, 30_000, 0));
                match store.append(append.clone()).await {
                    Ok(_) => acked.note(&append),
                    Err(StoreError::Full) => refused += 1,
                    Err(error) => panic!("seed {seed}: {error}"),
                }
                next += 1;
            }
            assert!(!store.info().failed, "a full medium is no failed one");
            // Everything else goes on, through several turns of the log.
            for round in 0..200 {
                let chunk = ChunkId::new(1 + round % (next - 4));
                if acked.0.remove(&chunk).is_some() {
                    let len = store.stat(chunk).unwrap().len;
                    store.fence(chunk, Epoch::new(9)).await.unwrap();
                    store.seal(chunk, len).await.unwrap();
                }
                store.delete(chunk).await.unwrap();
                store.forget(chunk).await.unwrap();
                let append = append_of(chunk, EPOCH, 0, &data_of(chunk, 0, 30_000, 1));
                store.append(append.clone()).await.unwrap();
                acked.note(&append);
            }
            engine.crash(CrashMode::Power);
            let store = engine.boot().await.unwrap();
            assert_eq!(check_chunks(&store, &acked).await, Ok(0), "seed {seed}");
        };
        sim.run(run).unwrap();
    }
}

#[test]
fn an_io_error_makes_the_store_read_only() {
    for seed in seeds(0..20) {
        let sim = Sim::new(seed);
        let mut engine = Flash::planted(&sim, None, SyncMode::PerWrite);
        let mut rng = Rng::new(seed);
        let run = async {
            let store = engine.boot().await.unwrap();
            let mut acked = Acked::default();
            fill(&store, &mut rng, &mut acked, 40).await;
            sim.set_failed(engine.host, &store_path(), true);
            let chunk = ChunkId::new(100);
            let append = append_of(chunk, EPOCH, 0, b"into the void");
            assert_eq!(store.append(append.clone()).await, Err(StoreError::Failed));
            sim.set_failed(engine.host, &store_path(), false);
            assert!(store.info().failed);
            assert_eq!(store.append(append).await, Err(StoreError::Failed), "failed is final");
            assert_eq!(store.fence(chunk, Epoch::new(7)).await, Err(StoreError::Failed));
            assert_eq!(check_chunks(&store, &acked).await, Ok(0), "reads go on");
            drop(store);
            engine.crash(CrashMode::Process);
            let store = engine.boot().await.unwrap();
            assert_eq!(check_chunks(&store, &acked).await, Ok(0), "seed {seed}");
        };
        sim.run(run).unwrap();
    }
}

#[test]
fn a_replica_repaired_onto_its_old_units_shows_no_old_sectors() {
    for seed in seeds(0..30) {
        let sim = Sim::new(seed);
        let mut engine = Flash::planted(&sim, None, SyncMode::PerWrite);
        let run = async {
            let store = engine.boot().await.unwrap();
            let chunk = ChunkId::new(1);
            let data = data_of(chunk, 0, 200_000, 0);
            for part in 0..10u32 {
                let at = part * 20_000;
                let bytes = &data[at as usize..at as usize + 20_000];
                store.append(append_of(chunk, EPOCH, at, bytes)).await.unwrap();
            }
            store.delete(chunk).await.unwrap();
            store.forget(chunk).await.unwrap();
            // The same sectors again, but only the first part; the rest is still on the units.
            let append = append_of(chunk, EPOCH, 0, &data[..20_000]);
            store.append(Append { repair: true, ..append }).await.unwrap();
            engine.crash(CrashMode::Power);
            let store = engine.boot().await.unwrap();
            let stat = store.stat(chunk).unwrap();
            assert_eq!((stat.state, stat.len), (ReplicaState::Repairing, 20_000), "seed {seed}");
        };
        sim.run(run).unwrap();
    }
}

#[test]
fn append_uses_ready_units_only() {
    let sim = Sim::new(1);
    let mut engine = Flash::new(&sim, small(), Config::default());
    let run = async {
        let store = engine.boot().await.unwrap();
        let chunk = ChunkId::new(1);
        let mut offset = 0;
        for _ in 0..400 {
            let data = data_of(chunk, offset, 50_000, 0);
            offset = store.append(append_of(chunk, EPOCH, offset, &data)).await.unwrap().len;
        }
        let counters = store.counters();
        assert_eq!(counters.unready_writes, 0);
        assert_eq!(counters.append_writes, 400, "one device write per append");
    };
    sim.run(run).unwrap();
}

/// Eight appends of 1 MiB are accepted, then the store is closed.
fn close_with_queued_appends() {
    let sim = Sim::new(2);
    let mut engine = Flash::new(&sim, small(), Config::default());
    let run = async {
        let store = engine.boot().await.unwrap();
        let chunk = ChunkId::new(1);
        let len = 256 * 4048;
        let appends = (0..8).map(|index| {
            let at = index * len;
            store.append(append_of(chunk, EPOCH, at, &data_of(chunk, at, len, 0)))
        });
        let mut appends = futures_util::future::join_all(appends);
        assert!(futures_util::poll!(&mut appends).is_pending());
        assert_eq!(store.close().await, Ok(()));
        for append in appends.await {
            append.unwrap();
        }
    };
    sim.run(run).unwrap();
}

#[test]
fn close_of_a_store_with_appends_that_need_more_units_ends() {
    // Tasks that wake each other for ever let no simulated time pass.
    let (ended, end) = std::sync::mpsc::sync_channel(1);
    let work = move || {
        close_with_queued_appends();
        ended.send(()).unwrap();
    };
    std::thread::Builder::new().spawn(work).unwrap();
    end.recv_timeout(Duration::from_secs(20)).expect("the store closes");
}

#[test]
fn a_raw_device_needs_no_growing() {
    let sim = Sim::new(5);
    let options = FormatOptions { raw: true, ..small() };
    let mut engine = Flash::new(&sim, options, Config::default());
    let run = async {
        let env = sim.boot(engine.host);
        env.create_dir_all(Path::new("/disk0")).await.unwrap();
        let device = env.open_file(&store_path(), OpenOptions::CREATE).await.unwrap();
        device.set_len(16 << 20).await.unwrap();
        drop(device);
        sim.crash(engine.host, CrashMode::Power);
        // A device does not grow.
        sim.with_disk_faults(engine.host, |faults| faults.capacity = 16 << 20);
        let store = engine.boot().await.unwrap();
        let (mut acked, mut next) = (Acked::default(), 1);
        loop {
            let chunk = ChunkId::new(next);
            let append = append_of(chunk, EPOCH, 0, &data_of(chunk, 0, 60_000, 0));
            match store.append(append.clone()).await {
                Ok(_) => acked.note(&append),
                Err(error) => break assert_eq!(error, StoreError::Full),
            }
            next += 1;
        }
        assert!(store.info().capacity > 10 << 20, "{:?}", store.info());
        assert_eq!(store.counters().ready_waits, 0);
        engine.crash(CrashMode::Power);
        let store = engine.boot().await.unwrap();
        assert_eq!(check_chunks(&store, &acked).await, Ok(0));
    };
    sim.run(run).unwrap();
}

/// Appends to chunks of their own until one is refused; answers how many were not.
async fn until_full(
    store: &FlashStore,
    next: &mut u64,
    purpose: Purpose,
    acked: &mut Acked,
) -> u64 {
    for count in 0.. {
        let chunk = ChunkId::new(*next);
        let data = data_of(chunk, 0, 60_000, 0);
        let append = Append { purpose, ..append_of(chunk, EPOCH, 0, &data) };
        match store.append(append.clone()).await {
            Ok(_) => acked.note(&append),
            Err(error) => {
                assert_eq!(error, StoreError::Full);
                return count;
            }
        }
        *next += 1;
    }
    unreachable!("it is full in the end")
}

#[test]
fn a_full_store_has_a_reserve_for_metadata() {
    for medium in [u64::MAX, 48 << 20] {
        let sim = Sim::new(5);
        let options = FormatOptions { capacity: 64 << 20, unit: 64 << 10, ..small() };
        let mut engine = Flash::new(&sim, options.clone(), Config::default());
        let run = async {
            sim.with_disk_faults(engine.host, |faults| faults.capacity = medium);
            let store = engine.boot().await.unwrap();
            let (mut acked, mut next) = (Acked::default(), 1);
            let data = until_full(&store, &mut next, Purpose::Data, &mut acked).await;
            let capacity = store.info().capacity;
            assert!(capacity <= medium && data * (64 << 10) > capacity / 2, "{:?}", store.info());
            // A chunk that is open goes on in the units it has.
            let reserve = reserve_bytes(capacity) / (64 << 10);
            assert!(reserve > 4, "{capacity} bytes have a reserve of {reserve} units");
            let collected = until_full(&store, &mut next, Purpose::Collection, &mut acked).await;
            assert_eq!(collected, reserve - reserve / 2, "of {reserve}");
            assert_eq!(until_full(&store, &mut next, Purpose::Data, &mut acked).await, 0);
            engine.crash(CrashMode::Power);
            let store = engine.boot().await.unwrap();
            assert_eq!(until_full(&store, &mut next, Purpose::Data, &mut acked).await, 0);
            let metadata = until_full(&store, &mut next, Purpose::Metadata, &mut acked).await;
            assert_eq!(metadata, reserve / 2 - reserve / 4, "of {reserve}");
            let recovery = until_full(&store, &mut next, Purpose::Recovery, &mut acked).await;
            assert_eq!(recovery, reserve / 4, "of {reserve}");
            assert_eq!(check_chunks(&store, &acked).await, Ok(0));
            // Chunks to be deleted fill the reserve up first.
            for chunk in 1..=reserve + 2 {
                store.delete(ChunkId::new(chunk)).await.unwrap();
            }
            assert!(store.info().capacity <= medium, "{:?}", store.info());
            assert_eq!(until_full(&store, &mut next, Purpose::Data, &mut acked).await, 2);
            // It need not grow, but it sees that it could.
            for chunk in reserve + 3..reserve + 40 {
                store.delete(ChunkId::new(chunk)).await.unwrap();
            }
            sim.sleep(Duration::from_secs(3)).await;
            assert!(store.info().capacity <= medium, "{:?}", store.info());
            sim.with_disk_faults(engine.host, |faults| faults.capacity = u64::MAX);
            sim.sleep(Duration::from_secs(3)).await;
            assert_eq!(store.info().capacity, options.capacity);
        };
        sim.run(run).unwrap();
    }
}

/// A probe writes to the log, and changes nothing.
#[test]
fn probes_change_nothing() {
    let sim = Sim::new(7);
    sim.run(async {
        let mut flash = Flash::planted(&sim, None, SyncMode::default());
        let store = flash.boot().await.unwrap();
        let (mut rng, mut acked) = (Rng::new(7), Acked::default());
        fill(&store, &mut rng, &mut acked, 50).await;
        let (before, used) = (store.list(None, 1000), store.info().used);
        // More than the log has blocks: it wraps, and checkpoints go on.
        for _ in 0..200 {
            while store.probe().await == Err(StoreError::Busy) {
                store.checkpoint().await.unwrap();
            }
        }
        let same = |store: &FlashStore| {
            let listed = store.list(None, 1000);
            listed.iter().map(|it| it.chunk).eq(before.iter().map(|it| it.chunk))
        };
        assert!(same(&store) && store.info().used == used);
        flash.crash(CrashMode::Power);
        let store = flash.boot().await.unwrap();
        assert!(same(&store));
        store.probe().await.unwrap();
        store.close().await.unwrap();
        assert!(store.probe().await.is_err());
    })
    .unwrap();
    sim.close();
}
