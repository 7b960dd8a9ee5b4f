//! openraft's own suite for log and state machine stores, on ours.

use base::DiskId;
use openraft::StorageError;
use openraft::testing::log::{StoreBuilder, Suite};
use runtime::sim::Sim;
use runtime::{Class, Env};
use testing::chunks::ModelDisk;

use super::log::RaftLog;
use super::machine::{State, Worker};
use super::types::Types;
use super::{BadCommand, BadSnapshot, Checkpoints, GroupStore, MemoryDevice, Rows, StateMachine};

/// Counts commands.
struct Counter(u64);

impl StateMachine for Counter {
    fn apply(&mut self, _index: u64, _command: &[u8]) -> Result<Vec<u8>, BadCommand> {
        self.0 += 1;
        Ok(Vec::new())
    }

    fn check_command(_command: &[u8]) -> Result<(), BadCommand> {
        Ok(())
    }

    fn take_changes(&mut self, rows: &mut Rows) -> bool {
        rows.put(b"count", Some(&self.0.to_le_bytes()));
        false
    }

    fn blank(&self) -> Counter {
        Counter(0)
    }

    fn load(&mut self, _: &[u8], value: &[u8]) -> Result<(), BadSnapshot> {
        self.0 = u64::from_le_bytes(value.try_into().map_err(|_| BadSnapshot)?);
        Ok(())
    }
}

struct Stores;

impl StoreBuilder<Types, RaftLog, Worker> for Stores {
    async fn build(&self) -> Result<((), RaftLog, Worker), StorageError<Types>> {
        let log = RaftLog::open(&Env::current(), MemoryDevice::new(64 << 10)).await;
        let store = ModelDisk::new(DiskId::new(1)).open(None);
        let checkpoints = Checkpoints::open(GroupStore::new(&Env::current(), store, 1)).await;
        let worker = Worker::open(State::new(Counter(0)), checkpoints.expect("empty"), None).await;
        Ok(((), log.expect("an empty log"), worker.expect("no snapshot")))
    }
}

#[test]
fn the_stores_satisfy_the_librarys_suite() {
    let sim = Sim::new(1);
    let env = sim.boot(sim.add_host("master"));
    let suite = env.spawn(Class::Foreground, "suite", Suite::test_all(Stores));
    sim.run(suite).expect("timers are set").expect("no crash").expect("all tests pass");
}
