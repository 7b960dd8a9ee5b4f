//! A log without room, while an operation holds checkpoints back.

use base::ChunkId;
use chunkstore::ChunkStore;
use chunkstore::flash::Config;
use runtime::sim::Sim;
use runtime::{Class, Duration};

use crate::conformance::seeds;
use crate::engine::{Engine, Flash, append_of, data_of, small};

/// A seal waits behind an append that its disk does not end, and all checkpoints begin the log with the seal. Other
/// chunks fill the log up. Behind the seal a checkpoint gives its part of the log back, and that of those before
/// with the next one.
#[test]
fn a_log_gets_room_when_what_held_it_back_has_ended() {
    let mut full = 0;
    for seed in seeds(0..20) {
        let sim = Sim::new(seed);
        let mut engine = Flash::new(&sim, small(), Config::default());
        let run = async {
            let store = engine.boot().await.unwrap();
            let env = sim.env(engine.host).expect("it is up");
            let first = ChunkId::new(1);
            store.append(append_of(first, 5, 0, &data_of(first, 0, 100, 0))).await.unwrap();
            let stall = Duration::from_secs(3);
            sim.with_disk_faults(engine.host, |faults| {
                (faults.stall_one_in, faults.stall) = (1, stall)
            });
            let (held, append) =
                (store.clone(), append_of(first, 5, 100, &data_of(first, 100, 100, 0)));
            let appended =
                env.spawn(Class::Foreground, "append", async move { held.append(append).await });
            sim.sleep(Duration::from_millis(1)).await;
            sim.with_disk_faults(engine.host, |faults| faults.stall_one_in = 0);
            let sealing = store.clone();
            let sealed =
                env.spawn(Class::Foreground, "seal", async move { sealing.seal(first, 200).await });
            let end = sim.elapsed() + Duration::from_secs(2);
            let mut next = 100;
            let create = async |next: u64| {
                let chunk = ChunkId::new(next);
                let append = append_of(chunk, 5, 0, &data_of(chunk, 0, 100, 0));
                env.timeout(Duration::from_secs(10), store.append(append)).await
            };
            let mut slow = 0;
            while sim.elapsed() < end || slow == 0 {
                let begun = sim.elapsed();
                create(next).await.expect("the log has room again").expect("it is written");
                slow += u64::from(sim.elapsed() - begun > Duration::from_secs(1));
                next += 1;
                assert!(sim.elapsed() < end + Duration::from_secs(20), "the log was never full");
            }
            appended.await.unwrap().unwrap();
            sealed.await.unwrap().unwrap();
            create(next).await.expect("the log has room").expect("it is written");
        };
        sim.run(run).unwrap();
        full += sim.marks().get("chunkstore: log without room").copied().unwrap_or(0);
        sim.close();
    }
    assert!(full >= 20, "{full}");
}
