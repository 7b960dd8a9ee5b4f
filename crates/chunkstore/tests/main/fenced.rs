//! The tombstone of a fence, filled by a copy: fence and vote stay through power cuts at any moment.

use std::cell::Cell;
use std::rc::Rc;

use base::{ChunkId, Epoch};
use chunkstore::flash::{FlashStore, SyncMode};
use chunkstore::{Append, ChunkStore, StoreError};
use runtime::sim::{CrashMode, Sim};
use runtime::{Duration, Rng};
use wire::data::ReplicaState;
use wire::sector::{client_crc, parse_footer};

use crate::conformance::seeds;
use crate::engine::{Engine, Flash, append_of, data_of};
use crate::suite::contents;

const CHUNK: ChunkId = ChunkId::new(7);
const EPOCH: u64 = 5;
const FENCE: Epoch = Epoch::new(6);

/// Pieces of a copy, in order.
fn pieces(rng: &mut Rng) -> Vec<Append> {
    let mut offset = 0;
    (0..rng.between(1, 6))
        .map(|_| {
            let len = rng.between(1, 60_000) as u32;
            let append = append_of(CHUNK, EPOCH, offset, &data_of(CHUNK, offset, len, 0));
            offset += len;
            Append { repair: true, ..append }
        })
        .collect()
}

fn end(append: &Append) -> u32 {
    let last = parse_footer(&append.sectors[append.sectors.len() - 4096..]).unwrap();
    last.offset + u32::from(last.len)
}

/// The writer is shut out, and the replica has what was acknowledged, of the pieces alone.
async fn check(store: &FlashStore, pieces: &[Append], acked: u32) {
    let late = append_of(CHUNK, EPOCH, 0, &data_of(CHUNK, 0, 50, 9));
    let refused = store.append(late).await;
    assert!(matches!(refused, Err(StoreError::Fenced { epoch }) if epoch >= FENCE), "{refused:?}");
    let stat = store.stat(CHUNK).unwrap();
    assert!(stat.len >= acked && stat.len >= stat.durable_bound, "{stat:?}, {acked} acknowledged");
    match stat.state {
        ReplicaState::Tombstone => assert_eq!(stat.len, 0),
        ReplicaState::Fenced(fence) => {
            assert!(fence >= FENCE);
            let all = pieces.iter().flat_map(|piece| piece.sectors.chunks(4096));
            let all: Vec<_> =
                all.map(|it| (parse_footer(it).unwrap().offset, client_crc(it))).collect();
            let found = contents(store, CHUNK).await.unwrap();
            assert_eq!(found, all[..found.len()]);
        }
        other => panic!("{other:?}"),
    }
}

fn run(seed: u64) -> ReplicaState {
    let sim = Sim::new(seed);
    let mut rng = Rng::new(seed);
    let mut engine = Flash::planted(&sim, None, SyncMode::PerWrite);
    let left = sim.run(async {
        let store = engine.boot().await.unwrap();
        let stat = store.fence(CHUNK, FENCE).await.unwrap();
        assert_eq!(stat.state, ReplicaState::Tombstone);
        let pieces = pieces(&mut rng);
        let acked = Rc::new(Cell::new(0));
        let copy = sim.spawn("copy", {
            let (store, pieces, acked) = (store.clone(), pieces.clone(), acked.clone());
            async move {
                for piece in pieces {
                    let Ok(done) = store.append(piece).await else { return };
                    acked.set(done.len);
                }
            }
        });
        // A second recovery fences it again, a checkpoint is taken.
        let pause = |rng: &mut Rng| Duration::from_micros(rng.below(700));
        let other = sim.spawn("other", {
            let (sim, store, again) = (sim.clone(), store.clone(), rng.one_in(2));
            let (before, between) = (pause(&mut rng), pause(&mut rng));
            async move {
                sim.sleep(before).await;
                if again {
                    let _ = store.fence(CHUNK, FENCE.next()).await;
                }
                sim.sleep(between).await;
                let _ = store.checkpoint().await;
            }
        });
        drop(store);
        sim.sleep(pause(&mut rng)).await;
        engine.crash(CrashMode::Power);
        copy.abort();
        other.abort();
        let store = engine.boot().await.unwrap();
        check(&store, &pieces, acked.get()).await;
        let left = store.stat(CHUNK).unwrap().state;
        // The copy goes on where it stopped: sectors that are there are passed over.
        let have = store.stat(CHUNK).unwrap().len;
        for piece in &pieces {
            let sectors = &piece.sectors;
            let new = |it: &[u8]| parse_footer(it).unwrap().offset >= have;
            let Some(first) = sectors.chunks(4096).position(new) else { continue };
            let sectors = sectors.slice(first * 4096..sectors.len());
            let offset = parse_footer(&sectors[..4096]).unwrap().offset;
            let rest = Append { sectors, offset, create: offset == 0, ..piece.clone() };
            store.append(rest).await.unwrap();
        }
        let len = end(pieces.last().unwrap());
        check(&store, &pieces, len).await;
        let sealed = store.seal(CHUNK, len).await.unwrap();
        assert_eq!((sealed.state, sealed.len), (ReplicaState::Sealed, len));
        left
    });
    sim.close();
    left.unwrap()
}

#[test]
fn power_cut_while_a_fences_tombstone_is_filled_leaves_fence_and_vote() {
    let left: Vec<_> = seeds(0..300).map(run).collect();
    assert!(left.contains(&ReplicaState::Tombstone), "before the record that gives units");
    assert!(left.iter().any(|state| matches!(state, ReplicaState::Fenced(_))), "behind it");
}

/// A copy that was under way when its chunk was deleted comes late: nothing is made, until the
/// deletion is forgotten.
#[test]
fn copy_that_comes_after_the_deletion_makes_nothing() {
    let sim = Sim::new(1);
    let mut engine = Flash::planted(&sim, None, SyncMode::PerWrite);
    sim.run(async {
        let store = engine.boot().await.unwrap();
        let piece = pieces(&mut Rng::new(1)).remove(0);
        store.fence(CHUNK, FENCE).await.unwrap();
        store.delete(CHUNK).await.unwrap();
        for reopened in [false, true] {
            if reopened {
                engine.crash(CrashMode::Power);
            }
            let store = if reopened { engine.boot().await.unwrap() } else { store.clone() };
            assert_eq!(store.stat(CHUNK).unwrap().state, ReplicaState::Deleted);
            assert_eq!(
                store.fence(CHUNK, FENCE.next()).await.unwrap().state,
                ReplicaState::Deleted
            );
            let late = store.append(piece.clone()).await;
            assert_eq!(late.unwrap_err(), StoreError::Fenced { epoch: Epoch::new(u64::MAX) });
        }
    })
    .unwrap();
    sim.close();
}

/// More tombstones than a checkpoint encodes at a time, and above them one of a fence. A checkpoint
/// is taken while a copy takes that one's place. The copy waits for room, and is perhaps given up.
async fn check_copy_without_room(engine: &mut Flash, seed: u64) {
    let (sim, host, fenced) = (engine.sim.clone(), engine.host, ChunkId::new(5_000));
    let store = engine.boot().await.unwrap();
    let env = sim.env(host).unwrap();
    let chunks = (1..=600).map(ChunkId::new).chain([fenced]);
    let fences = chunks.map(|chunk| store.fence(chunk, FENCE));
    for done in futures_util::future::join_all(fences).await {
        done.unwrap();
    }
    let above = ChunkId::new(10_000);
    store.append(append_of(above, EPOCH, 0, &data_of(above, 0, 100, 0))).await.unwrap();
    // Both areas have a checkpoint with all of them, so that the log does not.
    for _ in 0..2 {
        store.checkpoint().await.unwrap();
    }
    sim.sleep(Duration::from_secs(1)).await;
    let len = sim.files(host)[0].1;
    sim.with_disk_faults(host, |faults| {
        faults.capacity = len;
        (faults.stall_one_in, faults.stall) = (1, Duration::from_secs(5));
    });
    // It takes all units that are ready, and waits for more: the medium has none.
    let large = ChunkId::new(9_000);
    let append = append_of(large, EPOCH, 0, &data_of(large, 0, 256 * 4048, 0));
    let mut filling = Box::pin(store.append(append));
    assert!(futures_util::poll!(&mut filling).is_pending());
    sim.sleep(Duration::from_micros(1)).await;
    sim.with_disk_faults(host, |faults| faults.stall_one_in = 0);

    let taken = store.clone();
    let checkpoint = sim.spawn("checkpoint", async move { taken.checkpoint().await });
    // A checkpoint has one turn of 17 while others are ready.
    for _ in 0..sim.with_rng(|rng| rng.below(100)) {
        env.yield_now().await;
    }
    let copy = append_of(fenced, EPOCH, 0, &data_of(fenced, 0, 5_000, 0));
    let mut copy = Box::pin(store.append(Append { repair: true, ..copy }));
    assert!(futures_util::poll!(&mut copy).is_pending());
    checkpoint.await.unwrap().unwrap();
    assert!(futures_util::poll!(&mut copy).is_pending(), "seed {seed}: it waits for room");
    if seed.is_multiple_of(2) {
        assert_eq!(copy.as_mut().await.map(drop), Err(StoreError::Full), "seed {seed}");
        assert_eq!(store.stat(fenced).unwrap().state, ReplicaState::Tombstone, "seed {seed}");
    }
    drop((copy, filling));
    drop(store);
    engine.crash(CrashMode::Power);
    sim.with_disk_faults(host, |faults| *faults = Default::default());
    let store = engine.boot().await.unwrap();
    let state = store.stat(fenced).map(|stat| stat.state);
    assert_eq!(state, Ok(ReplicaState::Tombstone), "seed {seed}: the fence is lost");
    let late = append_of(fenced, EPOCH, 0, &data_of(fenced, 0, 50, 9));
    assert_eq!(store.append(late).await, Err(StoreError::Fenced { epoch: FENCE }), "seed {seed}");
}

#[test]
fn fence_outlasts_a_copy_that_waits_for_room_during_a_checkpoint() {
    for seed in seeds(0..60) {
        let sim = Sim::new(seed);
        let mut engine = Flash::planted(&sim, None, SyncMode::PerWrite);
        sim.run(check_copy_without_room(&mut engine, seed)).unwrap();
        sim.close();
    }
}
