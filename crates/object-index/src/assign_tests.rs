//! Servers join, share ranges, fall silent, end and come back, as the manager sees it.

use std::net::SocketAddr;

use object_proto::{
    BucketId, Error, ObjectServerId, PeerState, RangeBound, RangeId, RangeLoad, Seen, ServerBeat,
    ServerGrant, Unserved,
};
use runtime::{Duration, Instant};
use tenancy::limits::{RENEW, SERVER_GONE};

use crate::assign::{Assignments, Record};
use crate::keys::{SERVER, number_key};
use crate::limits::{BALANCE, LEASE, SERVER_DEAD, SERVERS_MAX};
use crate::server_row::RangeRow;

const TERM: u64 = 7;
const RANGES: u64 = 4;

/// A server's side: what it has been granted.
#[derive(Clone)]
struct Server {
    id: ObjectServerId,
    boot: u64,
    addr: SocketAddr,
    seq: u64,
    seen: Seen,
    leaving: bool,
    unserved: Vec<Unserved>,
    loads: Vec<RangeLoad>,
    owned: std::collections::BTreeMap<RangeId, (u64, u32)>,
}

struct World {
    now: Instant,
    assignments: Assignments,
}

fn addr(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

impl World {
    fn new() -> World {
        let row = |id| RangeRow {
            first: RangeBound::of_bucket(BucketId::new(id)),
            epoch: 0,
            owner: None,
        };
        let ranges = (1..=RANGES).map(|id| (RangeId::new(id), row(id - 1))).collect();
        World::of(TERM, Record { ranges, ..Record::default() })
    }

    fn of(term: u64, record: Record) -> World {
        let now = Instant::default() + Duration::from_secs(100);
        World { now, assignments: Assignments::new(term, record, now) }
    }

    fn join(&mut self, name: &str, port: u16) -> Server {
        let joined = self.assignments.register(self.now, name, addr(port));
        let (id, boot) = joined.expect("it may join");
        Server {
            id,
            boot,
            addr: addr(port),
            seq: 0,
            seen: Seen::default(),
            leaving: false,
            unserved: Vec::new(),
            loads: Vec::new(),
            owned: Default::default(),
        }
    }

    fn beat(&mut self, server: &mut Server) -> Result<ServerGrant, Error> {
        server.seq += 1;
        let beat = ServerBeat {
            server: server.id,
            boot: server.boot,
            seq: server.seq,
            addr: server.addr,
            seen: server.seen,
            leaving: server.leaving,
            unserved: server.unserved.clone(),
            loads: server.loads.clone(),
        };
        let grant = self.assignments.beat(self.now, beat, true)?;
        if grant.reset {
            server.owned.clear();
        }
        for change in &grant.changes {
            match change.epoch {
                Some(epoch) => server.owned.insert(change.range, epoch),
                None => server.owned.remove(&change.range),
            };
        }
        server.seen = grant.seen;
        Ok(grant)
    }

    /// Time passes; these servers go on.
    fn pass(&mut self, time: Duration, servers: &mut [&mut Server]) {
        let end = self.now + time;
        while self.now < end {
            self.now = self.now + RENEW / 2;
            for server in servers.iter_mut() {
                self.beat(server).expect("it goes on");
                self.assignments.answered(server.id, self.now);
            }
            self.assignments.ping_round(self.now);
            self.assignments.tick(self.now);
        }
    }
}

/// A manager that hears nothing of servers that answer it is cut off; one whose servers are dead is not, nor one that
/// stood still.
#[test]
fn a_manager_that_hears_nothing_of_servers_that_answer_is_cut_off() {
    for (answers, stood_still, is_cut_off) in
        [(true, false, true), (false, false, false), (true, true, false)]
    {
        let mut world = World::new();
        let (mut one, mut two) = (world.join("one", 1), world.join("two", 2));
        world.pass(Duration::from_secs(3), &mut [&mut one, &mut two]);
        assert!(!world.assignments.is_cut_off(world.now));
        let begun = world.now;
        if stood_still {
            world.now = world.now + Duration::from_secs(2);
            world.assignments.ping_round(world.now);
        }
        let mut seen = None;
        for _ in 0..if stood_still { 4 } else { 30 } {
            world.now = world.now + Duration::from_millis(100);
            let due = world.assignments.ping_round(world.now);
            for (server, _) in due.into_iter().filter(|_| answers) {
                world.assignments.answered(server, world.now);
            }
            world.assignments.tick(world.now);
            if world.assignments.is_cut_off(world.now) {
                seen.get_or_insert(world.now - begun);
            }
        }
        assert_eq!(seen.is_some(), is_cut_off, "{answers} {stood_still}");
        assert!(seen.is_none_or(|after| after <= Duration::from_millis(600)), "{seen:?}");
    }
}

#[test]
fn servers_share_the_ranges() {
    let mut world = World::new();
    let mut one = world.join("os1", 1);
    world.pass(RENEW * 3, &mut [&mut one]);
    assert_eq!(one.owned.len(), RANGES as usize);
    assert!(one.owned.values().all(|(epoch, _)| *epoch == TERM), "above all tokens before");
    // Until then it was pinged rarely: the next round must not be late.
    assert!(world.assignments.take_ping_soon() && !world.assignments.take_ping_soon());
    let mut two = world.join("os2", 2);
    world.pass(BALANCE * 4, &mut [&mut one, &mut two]);
    assert_eq!((one.owned.len(), two.owned.len()), (2, 2));
    assert!(two.owned.values().all(|(epoch, _)| *epoch == TERM + 1));
    // A range that is busy stays; what is beside it goes.
    let busy = *one.owned.keys().next().expect("two");
    one.loads = vec![RangeLoad { range: busy, requests: 1000, bytes: 0 }];
    world.pass(BALANCE * 4, &mut [&mut one, &mut two]);
    assert_eq!(one.owned.keys().copied().collect::<Vec<_>>(), [busy]);
    let status = world.assignments.status(world.now, addr(9));
    let ranges: Vec<_> = status.servers.iter().map(|server| server.ranges).collect();
    assert_eq!(ranges, [1, 3]);
    assert!(status.servers.iter().all(|server| server.state == PeerState::Up));
    assert!(status.ranges.iter().all(|range| range.served));
}

#[test]
fn a_silent_servers_ranges_go_to_others_which_wait_for_its_lease() {
    let mut world = World::new();
    let mut one = world.join("os1", 1);
    let mut two = world.join("os2", 2);
    world.pass(BALANCE * 4, &mut [&mut one, &mut two]);
    let before = two.owned.len();
    let granted = world.now;
    world.pass(SERVER_DEAD + RENEW, &mut [&mut two]);
    assert_eq!(two.owned.len(), RANGES as usize, "{before} before");
    // The lease of the silent one is over by the time that its ranges are answered for.
    for (range, (epoch, hold_ms)) in &two.owned {
        if one.owned.contains_key(range) {
            assert!(*epoch > one.owned[range].0);
            let hold = Duration::from_millis((*hold_ms).into());
            assert!(world.now + hold >= granted + LEASE, "{range}: {hold:?}");
        }
    }
    let status = world.assignments.status(world.now, addr(9));
    assert_eq!(status.servers[0].state, PeerState::Down);
    // It comes back and owns nothing until there is balance.
    let grant = world.beat(&mut one).expect("it may come back");
    assert!(grant.changes.iter().all(|change| change.epoch.is_none()));
}

#[test]
fn a_later_process_gets_what_the_former_one_had_under_new_epochs() {
    let mut world = World::new();
    let mut former = world.join("os1", 1);
    world.pass(RENEW * 3, &mut [&mut former]);
    // A second one elsewhere is refused while the first lives.
    assert_eq!(world.assignments.register(world.now, "os1", addr(2)), Err(Error::NameTaken));
    let mut later = world.join("os1", 1);
    assert_eq!(later.id, former.id);
    world.pass(RENEW * 3, &mut [&mut later]);
    assert_eq!(later.owned.len(), RANGES as usize);
    assert!(later.owned.values().all(|(epoch, _)| *epoch == TERM + 1));
    assert_eq!(world.beat(&mut former), Err(Error::Replaced));
}

#[test]
fn a_table_that_has_ended_gets_another_epoch_once() {
    let mut world = World::new();
    let mut one = world.join("os1", 1);
    world.pass(RENEW * 3, &mut [&mut one]);
    let range = RangeId::new(2);
    let cause = "an append failed".to_owned();
    one.unserved = vec![Unserved { range, epoch: TERM, cause, ended: true }];
    for _ in 0..3 {
        world.beat(&mut one).expect("it goes on");
    }
    assert_eq!(one.owned[&range].0, TERM + 1);
    let epochs = one.owned.values().filter(|(epoch, _)| *epoch == TERM).count();
    assert_eq!(epochs, RANGES as usize - 1);
    let status = world.assignments.status(world.now, addr(9));
    let unserved: Vec<_> = status.ranges.iter().filter(|range| !range.served).collect();
    assert_eq!(unserved.len(), 1);
    assert_eq!((unserved[0].range, unserved[0].cause.as_str()), (range, "an append failed"));
}

#[test]
fn a_server_that_leaves_gives_all_to_others_or_to_none() {
    let mut world = World::new();
    let mut one = world.join("os1", 1);
    let mut two = world.join("os2", 2);
    world.pass(BALANCE * 4, &mut [&mut one, &mut two]);
    one.leaving = true;
    world.pass(RENEW * 2, &mut [&mut one, &mut two]);
    assert_eq!((one.owned.len(), two.owned.len()), (0, RANGES as usize));
    two.leaving = true;
    world.pass(RENEW * 2, &mut [&mut one, &mut two]);
    assert!(two.owned.is_empty());
    let status = world.assignments.status(world.now, addr(9));
    assert!(status.ranges.iter().all(|range| range.cause.contains("start one")), "{status:?}");
}

#[test]
fn a_range_goes_where_an_operator_says_and_stays_there() {
    let mut world = World::new();
    let mut one = world.join("os1", 1);
    let mut two = world.join("os2", 2);
    world.pass(BALANCE * 4, &mut [&mut one, &mut two]);
    let (range, (epoch, _)) = one.owned.pop_first().expect("it has some");
    for _ in 0..2 {
        world.assignments.move_range(world.now, range, two.id).expect("it is up");
    }
    world.pass(RENEW * 3, &mut [&mut one, &mut two]);
    // Once more changes nothing; nor does balance, though one server has more now.
    assert_eq!(two.owned.get(&range).map(|(epoch, _)| *epoch), Some(epoch + 1));
    world.pass(BALANCE * 4, &mut [&mut one, &mut two]);
    assert!(two.owned.contains_key(&range));

    let mut refused = |range: u64, server: u32| {
        let (range, server) = (RangeId::new(range), ObjectServerId::new(server));
        let error = world.assignments.move_range(world.now, range, server);
        error.expect_err("it cannot be").to_string()
    };
    assert!(refused(99, 1).contains("craton range ls"));
    assert!(refused(1, 99).contains("there is no object server"));
    two.leaving = true;
    world.pass(RENEW * 2, &mut [&mut one, &mut two]);
    let error = world.assignments.move_range(world.now, range, two.id);
    assert!(error.expect_err("it leaves").to_string().contains("name one that is up"));
}

#[test]
fn the_next_manager_goes_on_with_what_is_on_record() {
    let mut world = World::new();
    let mut one = world.join("os1", 1);
    world.pass(RENEW * 3, &mut [&mut one]);
    let mut record = Record::default();
    for (key, value) in world.assignments.take_rows() {
        let id = crate::keys::read_number_key(&key).expect("a number");
        let value = value.expect("no server is forgotten");
        match key[0] {
            crate::keys::RANGE => {
                let row = RangeRow::decode(&value).expect("a row");
                record.ranges.insert(RangeId::new(id), row);
            }
            _ => {
                let row = crate::server_row::ServerRow::decode(&value).expect("a row");
                record.servers.insert(ObjectServerId::new(id as u32), row);
            }
        }
    }
    let mut next = World::of(TERM + 5, record);
    let grant = next.beat(&mut one).expect("it is known");
    assert!(grant.reset && grant.known);
    assert_eq!(one.owned.len(), RANGES as usize);
    // Nothing has moved: a server that goes on keeps its epochs.
    assert!(one.owned.values().all(|(epoch, _)| *epoch == TERM));
    // Leases that the manager before granted are honoured.
    assert!(one.owned.values().all(|(_, hold_ms)| u128::from(*hold_ms) >= LEASE.as_millis()));
    let unknown = Server { id: ObjectServerId::new(9), ..one.clone() };
    assert!(!next.beat(&mut { unknown }).expect("an answer").known);
}

/// Machines come and go with their names. One that stood still for a day and comes back under the same manager is
/// another server then: what it had is others', and it has to hear that before it gets a lease.
#[test]
fn a_new_name_takes_the_place_of_one_that_was_gone_for_a_day() {
    let mut world = World::new();
    let mut gone = world.join("gone", 1);
    world.pass(RENEW * 3, &mut [&mut gone]);
    assert_eq!(gone.owned.len(), RANGES as usize);
    let left = world.now;
    let mut owner = world.join("owner", 2);
    world.pass(SERVER_DEAD * 4, &mut [&mut owner]);
    assert_eq!(owner.owned.len(), RANGES as usize);
    for n in 2..SERVERS_MAX {
        world.join(&format!("os{n}"), 3);
    }
    for silent in [Duration::from_secs(3), SERVER_GONE - Duration::from_nanos(1)] {
        world.now = left + silent;
        let refused = world.assignments.register(world.now, "new", addr(4));
        assert!(matches!(refused, Err(Error::Invalid { .. })), "{silent:?}: {refused:?}");
    }
    world.now = left + SERVER_GONE;
    world.assignments.take_rows();
    let new = world.join("new", 4);
    assert_eq!(new.id.get() as usize, SERVERS_MAX + 1);
    let rows = world.assignments.take_rows();
    assert_eq!(rows[0], (number_key(SERVER, gone.id.get().into()), None));
    assert!(!world.beat(&mut gone).expect("an answer").known);
    // By now others are gone for as long.
    world.now = world.now + SERVER_GONE / 2;
    let again = world.join("gone", 1);
    assert!(again.id > new.id && again.boot > gone.boot);
    let mut back = Server { id: again.id, ..gone.clone() };
    // The first answer is lost.
    for _ in 0..2 {
        (back.seen, back.owned) = (gone.seen, gone.owned.clone());
        let grant = world.beat(&mut back).expect("it goes on");
        assert!(grant.known && grant.reset && back.owned.is_empty(), "{grant:?}");
    }
    assert!(!world.beat(&mut back).expect("it goes on").reset);
    // It keeps its number: one of the name's present processes is later.
    let mut later = world.join("gone", 1);
    world.beat(&mut later).expect("it begins");
    assert_eq!(world.beat(&mut back), Err(Error::Replaced));
}
