//! Reads whose callers go away.

use std::cell::Cell;
use std::time::Duration;

use base::ChunkId;
use chunkstore::flash::Config;
use chunkstore::limits::READ_PARTS_MAX;
use chunkstore::{ChunkStore, StoreError};
use runtime::Class;
use runtime::sim::Sim;

use crate::engine::{Engine, Flash, append_of, data_of, small};

const CHUNK: ChunkId = ChunkId::new(1);
/// Bytes of one append: a unit of the small store.
const STEP: u32 = 16_000;

/// A store on whose medium a chunk of `count` appends is scattered among those of another.
async fn scattered(engine: &mut Flash, count: u32) -> chunkstore::flash::FlashStore {
    let store = engine.boot().await.unwrap();
    for index in 0..count {
        for chunk in [CHUNK, ChunkId::new(2)] {
            let offset = index * STEP;
            let append = append_of(chunk, 5, offset, &data_of(chunk, offset, STEP, 0));
            store.append(append).await.unwrap();
        }
    }
    store
}

#[test]
fn read_of_a_scattered_replica_stops_between_operations_when_its_caller_goes() {
    let sim = Sim::new(1);
    let mut engine = Flash::new(&sim, small(), Config::default());
    let run = async {
        let store = scattered(&mut engine, 60).await;
        let asked = Cell::new(0);
        let read = async |lasts: usize| {
            asked.set(0);
            let is_wanted = || {
                asked.set(asked.get() + 1);
                asked.get() <= lasts
            };
            store.read_while(CHUNK, 0, 60 * STEP, is_wanted).await.map(|read| read.sectors.len())
        };
        assert_eq!(read(usize::MAX).await, Ok(60 * 4 * 4096));
        let all = asked.get();
        assert!(all > 2 * READ_PARTS_MAX, "{all} questions: it is scattered");
        assert_eq!(read(0).await, Err(StoreError::Unwanted { device_asked: false }));
        assert_eq!(asked.get(), 1);
        // The first answer is before the place, the second before the first operation.
        let lasts = 2;
        assert_eq!(read(lasts).await, Err(StoreError::Unwanted { device_asked: true }));
        assert!(asked.get() <= lasts + READ_PARTS_MAX, "asked {} of {all} times", asked.get());
    };
    sim.run(run).unwrap();
    sim.close();
}

#[test]
fn reads_beyond_those_at_the_device_wait_and_leave_when_their_callers_go() {
    let sim = Sim::new(2);
    let config = Config { reads_at_device_max: 2, ..Config::default() };
    let mut engine = Flash::new(&sim, small(), config);
    let run = async {
        let store = scattered(&mut engine, 10).await;
        let disk = Duration::from_millis(10);
        sim.with_disk_faults(engine.host, |faults| faults.latency = (disk, disk));
        let env = sim.boot(sim.add_host("caller"));
        let started = sim.elapsed();
        let wanted = std::rc::Rc::new(Cell::new(true));
        let reads: Vec<_> = (0..10)
            .map(|index| {
                let (store, wanted) = (store.clone(), wanted.clone());
                env.spawn(Class::Foreground, "read", async move {
                    store.read_while(CHUNK, index * STEP, 1, || wanted.get()).await.map(drop)
                })
            })
            .collect();
        sim.sleep(disk / 2).await;
        wanted.set(false);
        let mut unwanted = 0;
        for read in reads {
            match read.await.expect("ran") {
                Ok(()) => {}
                Err(StoreError::Unwanted { device_asked: false }) => unwanted += 1,
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(unwanted, 8);
        assert!(sim.elapsed() - started < 2 * disk, "none but the first two took device time");
        wanted.set(true);
        assert!(store.read_while(CHUNK, 0, 1, || wanted.get()).await.is_ok());
    };
    sim.run(run).unwrap();
    sim.close();
}
