//! Rows that a leader stores: each batch is one that a table takes, and all of them together are
//! its state.

use std::collections::VecDeque;
use std::rc::Rc;

use base::GIB;
use block_manager::limits::{SNAPSHOT_REST, VOLUME_SEGMENTS_MAX};
use block_manager::rows::{Row, next_batch};
use block_manager::{Begun, Machine, ManagerState, Refusal};
use block_proto::BlockRequest;
use block_volume::ids::VolumeId;
use runtime::sim::Sim;
use table::{Cache, Options, Range, Table};
use testing::tables::MemDisk;

use super::{Server, at, machine, spec, volume};

/// The table of a leader, in memory.
struct Stored {
    sim: Sim,
    table: Rc<Table>,
    queue: VecDeque<Vec<Row>>,
}

impl Stored {
    fn new() -> Stored {
        let sim = Sim::new(1);
        let disk = MemDisk::new(&sim);
        let host = sim.add_host("manager");
        let env = sim.boot(host);
        let opened = async move {
            let (store, cache) = (disk.store(&env), Cache::new(1 << 20));
            Table::open(&env, store, &cache, Options::default()).await.expect("it opens")
        };
        let table = Rc::new(sim.run(opened).expect("it goes on"));
        Stored { sim, table, queue: VecDeque::new() }
    }

    /// Stores what the machine has changed, as its process does; answers the batches' sizes.
    fn store(&mut self, machine: &mut Machine) -> Vec<usize> {
        self.queue.extend(machine.take_changes());
        let mut sizes = Vec::new();
        loop {
            let (taken, batch) = next_batch(&mut self.queue);
            if taken == 0 {
                return sizes;
            }
            sizes.push(batch.len());
            let table = self.table.clone();
            let written = self.sim.run(async move { table.write(&batch).await });
            written.expect("it goes on").expect("the leader does not step down");
        }
    }

    /// The state that the next leader reads.
    fn read(&self) -> ManagerState {
        let table = self.table.clone();
        let entries = async move { table.scan(Range::all()).take(usize::MAX).await };
        let entries = self.sim.run(entries).expect("it goes on").expect("it is read");
        let mut state = ManagerState::default();
        for (key, value) in entries {
            state.apply(Row::decode(&key, &value).expect("a row"));
        }
        state
    }
}

/// Bytes of a volume with as many segments as one may have.
const LARGE: u64 = VOLUME_SEGMENTS_MAX * GIB;

/// Makes volumes; each is stored when it is made.
fn large(machine: &mut Machine, stored: &mut Stored, count: u64) -> Vec<VolumeId> {
    let made = |nonce: u64| {
        let spec = spec(&format!("v{nonce}"), LARGE);
        let made = volume(machine.handle(at(0), BlockRequest::Create { nonce, spec })).volume;
        stored.store(machine);
        made
    };
    (1..=count).map(made).collect()
}

/// Time passes in which only this server sends heartbeats.
fn pass(machine: &mut Machine, server: &mut Server, ms: std::ops::Range<u64>) {
    for ms in ms.step_by(50) {
        server.heartbeat(machine, at(ms));
        machine.tick(at(ms));
    }
}

/// Has a server take all that it was given.
fn settle(machine: &mut Machine, server: &mut Server, ms: u64) {
    while server.heartbeat(machine, at(ms)).more {}
    server.heartbeat(machine, at(ms));
}

#[test]
fn a_dead_servers_81_920_segments_are_stored_in_batches_that_fit() {
    let mut stored = Stored::new();
    let mut machine = machine(ManagerState::default(), 1, at(0));
    let mut first = Server::join(&mut machine, at(0), "bs1");
    first.heartbeat(&mut machine, at(0));
    large(&mut machine, &mut stored, 5);
    assert_eq!(machine.state().owned_count(first.id), 81_920);
    let mut second = Server::join(&mut machine, at(0), "bs2");
    pass(&mut machine, &mut second, 50..700);
    assert_eq!(machine.state().owned_count(second.id), 81_920, "the first is silent");
    let sizes = stored.store(&mut machine);
    assert!(sizes.iter().all(|&size| size <= 8192), "{sizes:?}");
    // It comes back as another process, leaves, and the third has all.
    second.boot += 1;
    second.seen = block_proto::Seen::default();
    second.heartbeat(&mut machine, at(700));
    stored.store(&mut machine);
    let mut third = Server::join(&mut machine, at(700), "bs3");
    third.heartbeat(&mut machine, at(700));
    second.leaving = true;
    second.heartbeat(&mut machine, at(701));
    assert_eq!(machine.state().owned_count(third.id), 81_920);
    stored.store(&mut machine);
    assert!(stored.read().rows() == machine.state().rows(), "the next leader reads something else");
}

#[test]
fn snapshots_that_rest_at_once_are_stored_in_batches_that_fit() {
    let mut stored = Stored::new();
    let mut machine = machine(ManagerState::default(), 1, at(0));
    let mut server = Server::join(&mut machine, at(0), "bs1");
    server.heartbeat(&mut machine, at(0));
    for (nonce, id) in (100..).zip(large(&mut machine, &mut stored, 5)) {
        settle(&mut machine, &mut server, 1);
        let Ok(Begun::Go(parts)) = machine.begin_snapshot(nonce, id, "s") else {
            panic!("it begins")
        };
        let (made, _) = machine.commit_snapshot(nonce, id, "s", &parts).expect("nothing moved");
        machine.end_cutting(at(1), id);
        let made = volume(machine.finish_snapshot(made, 1)).spec.name;
        let request = BlockRequest::Attach { name: made, nonce, holder: "f1".into() };
        machine.handle(at(1), request).expect("it is opened");
        stored.store(&mut machine);
    }
    assert_eq!(machine.state().segment_count(), 10 * VOLUME_SEGMENTS_MAX as usize);
    // A successor finds them all unused.
    let later = at(100_000);
    let mut next = super::machine(stored.read(), 2, later);
    next.tick(later + SNAPSHOT_REST * 2);
    assert_eq!(next.state().segment_count(), 5 * VOLUME_SEGMENTS_MAX as usize);
    stored.store(&mut next);
    assert!(stored.read().rows() == next.state().rows(), "the next leader reads something else");
}

#[test]
fn rollback_of_more_snapshots_than_a_batch_takes_is_refused() {
    let mut machine = machine(ManagerState::default(), 1, at(0));
    let mut server = Server::join(&mut machine, at(0), "bs1");
    server.heartbeat(&mut machine, at(0));
    let request = BlockRequest::Create { nonce: 1, spec: spec("a", GIB) };
    let id = volume(machine.handle(at(0), request)).volume;
    settle(&mut machine, &mut server, 1);
    let mut first = None;
    for nonce in 2..8002 {
        let name = format!("{nonce:0>250}");
        let Ok(Begun::Go(parts)) = machine.begin_snapshot(nonce, id, &name) else {
            panic!("it begins")
        };
        let (made, _) = machine.commit_snapshot(nonce, id, &name, &parts).expect("nothing moved");
        machine.end_cutting(at(1), id);
        machine.finish_snapshot(made, 1).expect("it is made");
        first.get_or_insert(made);
    }
    let refused = machine.begin_rollback(at(2), 9000, first.expect("there are some"));
    assert!(matches!(refused, Err(Refusal::Full { .. })), "{refused:?}");
}
