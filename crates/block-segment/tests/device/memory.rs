//! The memory of many segments in one process.

use std::rc::Rc;

use base::Fault;
use block_segment::{Options, Segment, Shared};
use block_volume::contract::Device;
use block_volume::geometry::Extent;
use block_volume::ids::Identity;
use runtime::{Duration, Env, Rng};
use table::Cache;

use crate::device::support::{BYTES, World, on};

const SEGMENTS: u32 = 48;
/// Bytes of changes and last appends of all segments together.
const BUDGET: usize = 512 << 10;

/// As in a block server: one segment may hold an eighth of the budget.
fn options() -> Options {
    Options {
        file_bytes: 256 << 10,
        recent_bytes: BUDGET / 8,
        txn_updates: 8,
        txn_wait: Duration::from_millis(3),
        checkpoint_updates: 24,
        table: table::Options {
            memtable_bytes: BUDGET / 8,
            file_bytes: 64 << 10,
            ..table::Options::default()
        },
        ..Options::default()
    }
}

async fn open_all(env: &Env, world: &World, shared: &Shared) -> Result<Vec<Segment>, Fault> {
    let mut segments = Vec::new();
    for segment in 0..SEGMENTS {
        let store = world.disk.beside(&format!("s{segment}")).store(env);
        let what = (Identity { volume: 7, segment }, BYTES, 1);
        segments.push(Segment::open(env, store, shared, what, options()).await?);
    }
    Ok(segments)
}

/// Writes to all segments in turn; returns the peak memory of changes and appends.
fn most_in_memory(shared: Shared, rounds: u64) -> usize {
    let world = Rc::new(World::new(11));
    let (_, env) = world.boot();
    let (at, disks) = (env.clone(), world.clone());
    let work = async move {
        let segments = open_all(&at, &disks, &shared).await.expect("they are new");
        let (mut rng, mut most) = (Rng::new(1), 0);
        let blocks = BYTES / 4096;
        let mut written = vec![vec![0u8; blocks as usize]; SEGMENTS as usize];
        for round in 1..rounds {
            let writes = segments.iter().zip(&mut written).map(|(segment, written)| {
                let (block, value) = (rng.below(blocks), (round % 250) as u8 + 1);
                written[block as usize] = value;
                let data = at.pool().copy_of(&[value; 4096]).expect("within the budget");
                segment.write(block * 4096, data)
            });
            for done in futures_util::future::join_all(writes).await {
                done.expect("it goes on");
            }
            let memory = shared.memory();
            most = most.max(memory.changes + memory.recent);
        }
        for (segment, written) in segments.iter().zip(&written) {
            for (block, value) in written.iter().enumerate() {
                let extent = Extent { offset: block as u64 * 4096, len: 4096 };
                let data = segment.read(extent).await.expect("it is there");
                assert!(data.iter().all(|byte| byte == value), "block {block}");
            }
        }
        drop(segments);
        at.sleep(Duration::from_secs(1)).await;
        assert_eq!(shared.memory().recent, 0);
        most
    };
    world.run(async { on(&env, work).await.expect("no crash") })
}

#[test]
fn changes_of_many_segments_stay_within_one_budget() {
    let cache = || Cache::new(64 << 10);
    let alone = most_in_memory(Shared::new(cache(), 1 << 20), 120);
    assert!(alone > 3 * BUDGET, "{alone}: this load needs no bound");
    let most = most_in_memory(Shared::bounded(cache(), 1 << 20, BUDGET), 120);
    assert!(most <= BUDGET, "{most} bytes of {BUDGET}");
}
