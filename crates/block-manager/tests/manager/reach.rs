//! Servers whose heartbeats come and that others do not reach (`protocols-tail.md` 10.7).

use base::GIB;
use block_manager::{Machine, ManagerState};
use block_proto::{BlockReply, BlockRequest, BlockServerId, SegmentPlace};
use runtime::Instant;

use super::snapshots::next_leader;
use super::{Server, at, machine, spec};

/// A manager and its servers, millisecond by millisecond.
struct World {
    machine: Machine,
    servers: Vec<Server>,
    ms: u64,
    due: Instant,
    /// The next round of pings.
    round: u64,
    /// Servers that stand still, and that hear nothing.
    still: Vec<usize>,
    grey: Vec<usize>,
    /// The manager hears nothing but the answers to its pings.
    deaf: bool,
    /// Between the heartbeats of two servers.
    apart: u64,
}

impl World {
    fn new(count: usize, gib: u64) -> World {
        let mut world = World::idle(count);
        world.make_volume(gib);
        world
    }

    /// Without a volume.
    fn idle(count: usize) -> World {
        let mut machine = machine(ManagerState::default(), 1, at(0));
        let mut servers: Vec<Server> =
            (1..=count).map(|n| Server::join(&mut machine, at(0), &format!("bs{n}"))).collect();
        servers.iter_mut().for_each(|server| drop(server.heartbeat(&mut machine, at(0))));
        let (still, grey) = (Vec::new(), Vec::new());
        World { machine, servers, ms: 0, due: at(0), round: 0, still, grey, deaf: false, apart: 7 }
    }

    fn make_volume(&mut self, gib: u64) {
        let create = BlockRequest::Create { nonce: 1, spec: spec("a", gib * GIB) };
        self.machine.handle(at(self.ms), create).expect("it is made");
    }

    /// Lets time pass. Pings are answered at once, heartbeats sent each 150 ms.
    fn run(&mut self, ms: u64) {
        for _ in 0..ms {
            self.ms += 1;
            let now = at(self.ms);
            if now >= self.due {
                self.due = self.machine.tick(now);
            }
            if self.ms >= self.round || self.machine.take_ping_soon() {
                let due = self.machine.ping_round(now);
                self.round = self.ms + self.machine.ping_pause().as_millis() as u64;
                for (server, _) in due {
                    let index = self.index(server);
                    if !self.grey.contains(&index) && !self.still.contains(&index) {
                        self.machine.answered(now, server, now);
                    }
                }
            }
            for (index, server) in self.servers.iter_mut().enumerate() {
                if self.ms % 150 == self.apart * index as u64
                    && !self.still.contains(&index)
                    && !self.deaf
                {
                    server.heartbeat(&mut self.machine, now);
                }
            }
        }
    }

    fn index(&self, id: BlockServerId) -> usize {
        self.servers.iter().position(|server| server.id == id).expect("one of them")
    }

    fn owned(&self) -> Vec<usize> {
        self.servers.iter().map(|server| self.machine.state().owned_count(server.id)).collect()
    }

    fn unreached(&mut self) -> Vec<usize> {
        let Ok(BlockReply::Status(status)) = self.machine.handle(at(self.ms), BlockRequest::Status)
        else {
            panic!("no status")
        };
        let lost = status.servers.iter().filter(|server| server.unreached);
        lost.map(|server| self.index(server.server)).collect()
    }

    fn serving(&mut self) -> bool {
        let volume = self.machine.state().list(None).next().expect("there is one");
        let ask = BlockRequest::Map { volume, from: 0, limit: 100 };
        let Ok(BlockReply::Map { segments, .. }) = self.machine.handle(at(self.ms), ask) else {
            panic!("no map")
        };
        segments.iter().all(|place: &SegmentPlace| place.serving)
    }
}

#[test]
fn a_server_that_hears_nothing_loses_its_segments_and_its_lease() {
    let mut world = World::new(3, 12);
    world.run(1000);
    assert_eq!(world.owned(), [4, 4, 4]);
    for grey in [0, 2, 1] {
        world.grey = vec![grey];
        let began = world.ms;
        while world.owned()[grey] > 0 {
            world.run(1);
            assert!(world.ms - began <= 550, "its segments stay for {} ms", world.ms - began);
        }
        assert_eq!(world.unreached(), [grey]);
        // It says itself that it has released them: no other waits for its lease.
        let moved = world.ms;
        while !world.serving() {
            world.run(1);
            // Two heartbeats of the grey one, then two of the others: none is asked for one here.
            assert!(world.ms - moved <= 620, "not served {} ms after they moved", world.ms - moved);
        }
        let grant = world.servers[grey].heartbeat(&mut world.machine, at(world.ms));
        assert_eq!(grant.lease_ms, 0, "a server that hears nothing has its lease renewed");
        world.run(5000);
        assert_eq!((world.owned()[grey], world.unreached()), (0, vec![grey]));
        world.grey.clear();
        world.run(1900);
        assert_eq!(world.unreached(), [grey], "it is trusted again at once");
        world.run(400);
        assert_eq!(world.unreached(), []);
        let grant = world.servers[grey].heartbeat(&mut world.machine, at(world.ms));
        assert!(grant.lease_ms > 0);
    }
}

/// Before, all are pinged rarely: that says nothing against one of them.
#[test]
fn a_server_that_gets_its_first_segment_at_any_time_is_reached() {
    for ms in 0..450 {
        let mut world = World::idle(12);
        world.run(2000 + ms);
        world.make_volume(1);
        let (made, owned) = (world.ms, world.owned());
        world.run(1000);
        assert_eq!((world.unreached(), world.owned()), (vec![], owned.clone()), "at {made} ms");
        let owner = owned.iter().position(|&count| count == 1).expect("one has it");
        world.grey = vec![owner];
        world.run(550);
        assert_eq!(world.unreached(), [owner], "at {made} ms");
    }
}

#[test]
fn a_manager_that_reaches_fewer_than_half_takes_no_server_out() {
    for grey in [vec![0, 1, 2], vec![0, 1]] {
        let mut world = World::new(3, 12);
        world.run(1000);
        world.grey = grey;
        world.run(5000);
        assert_eq!(world.owned(), [4, 4, 4]);
        assert_eq!(world.unreached(), []);
    }
    // Of one server nothing can be taken.
    let mut world = World::new(1, 4);
    world.grey = vec![0];
    world.run(5000);
    assert_eq!(world.owned(), [4]);
}

#[test]
fn only_some_servers_are_taken_out_at_a_time() {
    for (count, grey, most) in [(6, 3, 2), (4, 2, 1), (2, 1, 1), (20, 9, 3)] {
        let mut world = World::new(count, 4 * count as u64);
        world.run(1000);
        world.grey = (0..grey).collect();
        world.run(5000);
        assert_eq!(world.unreached().len(), most, "{grey} of {count}");
        assert_eq!(world.owned().iter().filter(|&&owned| owned == 0).count(), most);
    }
}

/// Its heartbeats decide: 450 ms, not 300.
#[test]
fn a_server_that_stands_still_is_no_case_for_pings() {
    let mut world = World::new(3, 12);
    world.run(1000);
    for _ in 0..20 {
        world.still = vec![1];
        world.run(280);
        assert_eq!(world.unreached(), []);
        world.still.clear();
        world.run(450);
    }
    assert_eq!(world.owned(), [4, 4, 4]);
}

impl World {
    /// A client doubts a server that owns segments; true when it has lost them by that.
    fn doubt(&mut self, index: usize, answers: bool) -> bool {
        let now = at(self.ms);
        let owned = self.machine.state().owned(self.servers[index].id).next();
        let segment = owned.expect("it owns some");
        let epoch = self.machine.state().segment(segment).expect("there is one").epoch;
        if let Some(doubted) = self.machine.doubted(now, segment, epoch) {
            match answers {
                true => self.machine.answered(now, self.servers[index].id, now),
                false => self.machine.give_up_server(now, &doubted),
            }
        }
        self.owned()[index] == 0
    }
}

#[test]
fn a_doubted_server_that_answers_nothing_loses_its_segments_at_once() {
    let mut world = World::new(4, 16);
    world.run(1050);
    assert!(!world.doubt(1, true), "it answers");
    world.still = vec![1];
    world.run(60);
    assert!(world.doubt(1, false));
    assert_eq!(world.unreached(), [1]);
    // One of four at a time.
    world.still = vec![1, 2];
    world.run(60);
    assert!(!world.doubt(2, false));
    assert_eq!(world.unreached(), [1]);
    // It renews no lease, and is trusted again when it has answered for a while.
    world.still.clear();
    world.run(1000);
    assert_eq!((world.owned()[1], world.unreached()), (0, vec![1]));
    world.run(3000);
    assert_eq!(world.unreached(), []);
}

#[test]
fn a_server_that_stood_still_is_trusted_again_when_it_has_answered_for_a_while() {
    let mut world = World::new(3, 12);
    world.run(1050);
    world.still = vec![1];
    world.run(60);
    assert!(world.doubt(1, false));
    world.run(5000);
    world.still.clear();
    world.run(1900);
    assert_eq!((world.owned()[1], world.unreached()), (0, vec![1]));
    world.run(400);
    assert_eq!(world.unreached(), []);
}

#[test]
fn a_doubt_of_what_is_known_asks_no_server() {
    let mut world = World::new(3, 12);
    world.run(1050);
    let id = world.servers[1].id;
    let segment = world.machine.state().owned(id).next().expect("it owns some");
    let epoch = world.machine.state().segment(segment).expect("there is one").epoch;
    let doubted =
        |world: &mut World, ms, epoch| world.machine.doubted(at(ms), segment, epoch).is_some();
    let ms = world.ms;
    assert!(doubted(&mut world, ms, epoch));
    assert!(!doubted(&mut world, ms, epoch + 1), "the segment has another owner");
    world.machine.answered(at(ms), id, at(ms));
    assert!(!doubted(&mut world, ms + 5, epoch), "it has answered just now");
    assert!(doubted(&mut world, ms + 50, epoch));
}

/// A manager that reaches fewer than half is cut off itself.
#[test]
fn a_doubt_moves_nothing_at_a_manager_that_reaches_few() {
    let mut world = World::new(3, 12);
    world.run(1050);
    world.grey = vec![0, 2];
    world.run(400);
    world.grey = vec![0, 1, 2];
    world.run(60);
    assert!(!world.doubt(1, false));
    assert_eq!(world.owned(), [4, 4, 4]);
}

/// The links of a new leader to all servers may be dead, until its transport gives them up; and a
/// manager that stood still has read no answers.
#[test]
fn silence_that_may_be_the_managers_says_nothing() {
    let mut world = World::new(3, 12);
    world.run(1000);
    world.machine = next_leader(&world.machine);
    (world.ms, world.due, world.round) = (0, at(0), 0);
    world.grey = vec![1];
    world.run(700);
    world.grey.clear();
    world.run(3000);
    assert_eq!((world.owned(), world.unreached()), (vec![4, 4, 4], vec![]));
    for _ in 0..10 {
        // Heartbeats were read at once when it went on, answers a little later.
        world.ms += 5000;
        (world.due, world.round) = (at(world.ms), world.ms);
        for _ in 0..3 {
            let now = at(world.ms);
            world
                .servers
                .iter_mut()
                .for_each(|server| drop(server.heartbeat(&mut world.machine, now)));
            world.ms += 1;
        }
        world.run(700);
        assert_eq!((world.owned(), world.unreached()), (vec![4, 4, 4], vec![]));
    }
}

/// No segment moves because a manager hears nothing: it yields. A server that dies loses its segments as
/// soon as before, whether others were heard at that moment or not.
#[test]
fn a_manager_that_hears_nothing_moves_no_segment_before_it_yields() {
    for apart in [3, 20, 60, 140] {
        for begin in [1000, 1050, 1100] {
            let mut world = World::new(2, 8);
            world.apart = apart;
            world.run(begin);
            world.deaf = true;
            let cut_off = |world: &World| world.machine.is_cut_off(at(world.ms));
            let mut waited = 0;
            while !cut_off(&world) && waited < 1000 {
                world.run(1);
                waited += 1;
                assert_eq!(world.owned(), [4, 4], "after {waited} ms, {apart} ms apart");
            }
            // The last heartbeat came up to a renewal before.
            assert!((350..=700).contains(&waited), "{waited} ms");
        }
        let mut world = World::new(2, 8);
        world.apart = apart;
        world.run(1000);
        world.still = vec![0];
        world.run(650);
        assert_eq!(world.owned(), [0, 8], "{apart} ms apart");
        // All of them at once: as before, there is none that could take them.
        world.still = vec![0, 1];
        world.run(2000);
        assert!(!world.machine.is_cut_off(at(world.ms)));
    }
}
