//! Block client and block server, in the simulator, with segments in memory.

mod bytes;
mod gates;
mod limits;
mod rules;
mod stuck;
mod versions;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use base::{ClusterId, Kind};
use block_client::limits::DIRECT_TIMEOUT;
use block_client::{Attachment, DataFiles, Limits, Shape, Volume};
use block_server::BlockServer;
use block_testing::model::Manager;
use block_volume::contract::{Answer, Clear, Device};
use block_volume::geometry::{Extent, Geometry};
use block_volume::ids::{SegmentId, VolumeId};
use gates::Gates;
use runtime::sim::{CrashMode, HostId, NetFaults, Sim};
use runtime::{Buf, Class, Env, Rng};
use table::Source;
use transport::{ClusterKey, Endpoint, Handler, Identity};

pub const PORT: u16 = 7000;
pub const LEASE: Duration = Duration::from_millis(100);
pub const VOLUME: VolumeId = VolumeId::new(7);

/// Four segments in two groups, two of them at a time in turn.
pub fn shape() -> Shape {
    let geometry = Geometry::new(1 << 20, 2, 16 << 10).expect("it goes up");
    Shape { volume: VOLUME, geometry, bytes: (2 << 20) - 777 }
}

pub fn segment(index: u32) -> SegmentId {
    SegmentId { volume: VOLUME, index }
}

/// Block servers and clients.
#[derive(Clone)]
pub struct World {
    pub sim: Sim,
    pub manager: Manager,
    hosts: Rc<Vec<HostId>>,
    pub servers: Rc<RefCell<BTreeMap<usize, BlockServer>>>,
    pub gates: Gates,
}

fn identity(name: &str) -> Identity {
    Identity {
        cluster: ClusterId::new(7),
        key: Some(ClusterKey::new([1; 32])),
        name: name.to_owned(),
    }
}

impl World {
    /// A world with two servers, of which the first has all segments.
    pub async fn start(sim: &Sim) -> World {
        let clock = {
            let sim = sim.clone();
            move || sim.elapsed()
        };
        let manager = Manager::new(clock, LEASE, 512 << 10, Duration::from_micros(200));
        let hosts = Rc::new(vec![sim.add_host("bs0"), sim.add_host("bs1")]);
        let (sim, servers, gates) = (sim.clone(), Rc::default(), Gates::default());
        let world = World { sim, manager, hosts, servers, gates };
        (0..4).for_each(|index| world.manager.assign(segment(index), world.addr(0)));
        for index in 0..2 {
            world.boot(index).await;
        }
        world
    }

    pub fn addr(&self, server: usize) -> SocketAddr {
        self.sim.addr(self.hosts[server], PORT)
    }

    pub async fn boot(&self, index: usize) {
        self.boot_with(index, transport::Limits::default()).await;
    }

    /// Boots a server whose links have these bounds.
    pub async fn boot_with(&self, index: usize, limits: transport::Limits) {
        let server = self.make(index);
        self.serve(index, limits, Rc::new(server.clone())).await;
        self.servers.borrow_mut().insert(index, server);
    }

    /// Boots a server's host; its server is not reached yet.
    pub fn make(&self, index: usize) -> BlockServer {
        let env = self.sim.boot(self.hosts[index]);
        let opener = self.gates.guard(self.manager.opener(&env, self.addr(index)));
        BlockServer::new(&env, opener)
    }

    /// Serves at a host.
    pub async fn serve(&self, index: usize, limits: transport::Limits, handler: Rc<dyn Handler>) {
        let (env, addr) = (self.server_env(index), self.addr(index));
        let endpoint = Endpoint::new(&env, identity("server"), limits);
        let listen = async move { endpoint.listen(addr, handler).await.map(|_| endpoint) };
        env.spawn(Class::Control, "listen", listen).await.expect("it runs").expect("a free port");
    }

    /// Has a server stop serving a segment: its next request opens it again.
    pub async fn release(&self, index: usize, segment: SegmentId) {
        let server = self.servers.borrow()[&index].clone();
        on(&self.server_env(index), async move { server.release(segment).await }).await;
    }

    pub fn kill(&self, index: usize) {
        self.servers.borrow_mut().remove(&index);
        self.sim.crash(self.hosts[index], CrashMode::Process);
    }

    pub fn server_env(&self, index: usize) -> Env {
        self.sim.env(self.hosts[index]).expect("it runs")
    }

    pub fn client(&self, name: &str) -> (Env, Endpoint) {
        let env = self.sim.boot(self.sim.add_host(name));
        let endpoint = Endpoint::new(&env, identity(name), transport::Limits::default());
        (env, endpoint)
    }

    pub fn volume(&self, attachment: Attachment, limits: Limits) -> (Env, Volume) {
        let (env, endpoint) = self.client("client");
        let route = self.manager.route();
        let volume = Volume::new(&env, endpoint, route, shape(), attachment, limits);
        (env, volume)
    }
}

/// Runs a test in a world of its own.
pub fn world<F: Future<Output = ()>>(seed: u64, test: impl FnOnce(World) -> F) -> Sim {
    let sim = Sim::new(seed);
    let inner = sim.clone();
    sim.run(async move { test(World::start(&inner).await).await }).expect("nothing stalls");
    sim
}

/// Runs work as a task of a node.
pub async fn on<T: 'static>(env: &Env, work: impl Future<Output = T> + 'static) -> T {
    env.spawn(Class::Foreground, "test", work).await.expect("the node lives")
}

pub fn buf(env: &Env, bytes: &[u8]) -> Buf {
    env.pool().copy_of(bytes).expect("within the budget")
}

/// Random requests against a model of the volume, in order.
async fn churn(env: Env, volume: Volume, seed: u64, rounds: u32) {
    let mut rng = Rng::new(seed);
    let bytes = shape().bytes;
    let mut picture = vec![0u8; bytes as usize];
    for round in 0..rounds {
        let most = [1, 700, 9000, 70_000, 400_000][rng.below(5) as usize];
        let len = rng.between(1, most);
        let offset = rng.below(bytes - len + 1);
        let (extent, at) = (Extent { offset, len }, offset as usize..(offset + len) as usize);
        match rng.below(6) {
            0 | 1 => {
                let data: Vec<u8> = (0..len).map(|n| (n + u64::from(round)) as u8 | 1).collect();
                volume.write(offset, buf(&env, &data)).await.expect("it is written");
                picture[at].copy_from_slice(&data);
            }
            2 => {
                let how = if rng.one_in(2) { Clear::Trim } else { Clear::Zero };
                volume.clear(extent, how).await.expect("it is cleared");
                picture[at].fill(0);
            }
            3 => {
                let most = rng.between(1, 20) as usize;
                let pieces = volume.pieces(extent, most).await.expect("an answer");
                assert!(!pieces.is_empty() && pieces.len() <= most);
                let mut at = offset as usize;
                for piece in pieces {
                    let end = at + piece.len as usize;
                    assert!(!piece.hole || piece.zero);
                    assert!(!piece.zero || picture[at..end].iter().all(|&byte| byte == 0));
                    at = end;
                }
                assert!(at as u64 <= offset + len);
            }
            _ => {
                let data = volume.read(extent).await.expect("it is read");
                assert!(data[..] == picture[at], "round {round}: {extent:?}");
            }
        }
    }
}

#[test]
fn writes_are_read_across_segments() {
    world(1, |world| async move {
        let attachment = world.manager.attach(VOLUME, true);
        let (env, volume) = world.volume(attachment, Limits::default());
        on(&env, churn(env.clone(), volume.clone(), 1, 400)).await;
        let bytes = shape().bytes;
        let past = volume.read(Extent { offset: bytes - 1, len: 2 }).await.unwrap_err();
        assert_eq!(past.kind, Kind::Invalid);
        assert_eq!(
            volume.read(Extent { offset: 0, len: 0 }).await.unwrap_err().kind,
            Kind::Invalid
        );
        assert_eq!(world.servers.borrow()[&0].segments().len(), 4);
    });
}

#[test]
fn writes_are_seen_by_direct_reads() {
    let sim = world(2, |world| async move {
        let attachment = world.manager.attach(VOLUME, true);
        let (env, volume) = world.volume(attachment, Limits::default());
        volume.read_directly(world.manager.files(&env));
        on(&env, churn(env.clone(), volume.clone(), 2, 600)).await;
        let stats = world.servers.borrow()[&0].stats();
        assert!(stats.located > 100 && stats.reads > 20, "{stats:?}");
    });
    for mark in ["block: direct read", "block: read left to the server"] {
        assert!(sim.marks()[mark] > 10, "{mark}: {:?}", sim.marks());
    }
}

/// Another attachment may come and go while nothing is leased: locations that were sent before are
/// of no use then, though the session goes on and gets others.
#[test]
fn no_location_is_used_that_was_sent_before_another_attachment_came() {
    let sim = world(6, |world| async move {
        let one = world.manager.attach(VOLUME, false);
        let (env, volume) = world.volume(one, Limits::default());
        volume.read_directly(world.manager.files(&env));
        // A block of the same segment as the first, and not near it.
        let place = |block: &u64| shape().geometry.locate(block * 4096);
        let (segment, _) = place(&0);
        let far = (1..512).find(|block| {
            let (of, offset) = place(block);
            of == segment && offset >= 256 << 10
        });
        let far = far.expect("a segment has 128 blocks");
        let read = async |block: u64| {
            let (volume, extent) = (volume.clone(), Extent { offset: block * 4096, len: 4096 });
            let data = on(&env, async move { volume.read(extent).await }).await;
            data.expect("it reads")[0]
        };
        for round in 1..40u8 {
            for _ in 0..8 {
                read(0).await;
            }
            env.sleep(2 * LEASE).await;
            let visit = world.manager.attach(VOLUME, false);
            let (visitor, other) = world.volume(visit, Limits::default());
            let data = buf(&visitor, &[round; 4096]);
            on(&visitor, async move {
                other.write(0, data).await.expect("it may");
                other.close().await;
            })
            .await;
            world.manager.detach(VOLUME, visit.epoch);
            for _ in 0..4 {
                read(far).await;
            }
            assert_eq!(read(0).await, round);
        }
    });
    assert!(sim.marks().contains_key("block: direct read"), "{:?}", sim.marks());
}

/// A core that answers nothing.
struct Silent;

impl DataFiles for Silent {
    fn open<'a>(&'a self, _: SegmentId, _: &'a str) -> Answer<'a, Rc<dyn Source>> {
        Box::pin(std::future::pending())
    }
}

#[test]
fn silent_core_pauses_direct_reads() {
    let sim = world(3, |world| async move {
        let attachment = world.manager.attach(VOLUME, true);
        let (env, volume) = world.volume(attachment, Limits::default());
        volume.read_directly(Rc::new(Silent));
        on(&env, churn(env.clone(), volume.clone(), 3, 100)).await;
        env.sleep(2 * DIRECT_TIMEOUT).await;
        let located = || world.servers.borrow()[&0].stats().located;
        // Single reads try the core, and wait for nothing.
        let (before, mut longest) = (located(), Duration::ZERO);
        for _ in 0..200 {
            let began = env.now();
            volume.read(Extent { offset: 0, len: 4096 }).await.expect("the server reads it");
            longest = longest.max(env.now() - began);
            env.sleep(Duration::from_millis(100)).await;
        }
        let tries = located() - before;
        assert!(tries < 120 && longest < DIRECT_TIMEOUT / 10, "{tries} in 20 s, {longest:?}");
    });
    assert!(sim.marks()["block: direct read failed"] > 1, "{:?}", sim.marks());
}

#[test]
fn lost_repeated_and_delayed_messages_are_masked() {
    let mut reached = BTreeMap::new();
    for seed in 0..4 {
        let sim = world(seed, |world| async move {
            world.sim.with_net_faults(|faults| {
                *faults = NetFaults {
                    drop_one_in: 30,
                    duplicate_one_in: 8,
                    delay_one_in: 8,
                    reset_one_in: 200,
                    ..NetFaults::default()
                };
            });
            let attachment = world.manager.attach(VOLUME, true);
            let limits = Limits { call_timeout: Duration::from_millis(200), ..Limits::default() };
            let (env, volume) = world.volume(attachment, limits);
            on(&env, churn(env.clone(), volume, seed, 200)).await;
        });
        reached.extend(sim.marks());
    }
    for mark in
        ["block: change came again", "block: change came late", "block: request tried again"]
    {
        assert!(reached.contains_key(mark), "{mark}: {reached:#?}");
    }
}

#[test]
fn death_of_a_server_is_a_pause() {
    world(3, |world| async move {
        let attachment = world.manager.attach(VOLUME, true);
        let (env, volume) = world.volume(attachment, Limits::default());
        let load = env.spawn(Class::Foreground, "load", churn(env.clone(), volume, 3, 3000));
        for round in 0..6 {
            world.sim.sleep(Duration::from_millis(150)).await;
            let (dead, next) = (round % 2, 1 - round % 2);
            world.kill(dead);
            world.sim.sleep(Duration::from_millis(80)).await;
            for segment in world.manager.owned(world.addr(dead)) {
                world.manager.assign(segment, world.addr(next));
            }
            world.boot(dead).await;
        }
        load.await.expect("no error was seen");
    });
}

#[test]
fn a_planned_move_loses_nothing() {
    // An acknowledgement is held back in one seed of twelve.
    let held_back =
        |seed| planned_moves(seed).marks().contains_key("block: acknowledgement held back");
    assert!((0..60).any(held_back));
}

/// Segments move under load, 20 times, and nothing is lost.
fn planned_moves(seed: u64) -> Sim {
    world(seed, |world| async move {
        let attachment = world.manager.attach(VOLUME, true);
        let (env, volume) = world.volume(attachment, Limits::default());
        let load = env.spawn(Class::Foreground, "load", churn(env.clone(), volume, 4, 2000));
        for round in 0..20 {
            world.sim.sleep(Duration::from_millis(30)).await;
            let (from, to) = (round % 2, 1 - round % 2);
            for segment in world.manager.owned(world.addr(from)) {
                // The owner gets the news in time, or late.
                let late = round % 4 > 1;
                if late {
                    world.manager.assign(segment, world.addr(to));
                    world.sim.sleep(Duration::from_millis(20)).await;
                }
                world.release(from, segment).await;
                if !late {
                    world.manager.assign(segment, world.addr(to));
                }
            }
        }
        load.await.expect("no error was seen");
    })
}

#[test]
fn the_newest_exclusive_attachment_has_the_volume() {
    world(5, |world| async move {
        let old = world.manager.attach(VOLUME, true);
        let (old_env, old_volume) = world.volume(old, Limits::default());
        let page = buf(&old_env, &[1; 4096]);
        let (volume, data) = (old_volume.clone(), page.clone());
        on(&old_env, async move { volume.write(0, data).await }).await.expect("it is alone");

        let new = world.manager.attach(VOLUME, true);
        let (env, volume) = world.volume(new, Limits::default());
        let (new_volume, other) = (volume.clone(), buf(&env, &[2; 4096]));
        on(&env, async move { new_volume.write(0, other).await }).await.expect("it is alone");
        let (late, data) = (old_volume.clone(), page.clone());
        let refused = on(&old_env, async move { late.write(0, data).await }).await.unwrap_err();
        assert_eq!(refused.kind, Kind::Fenced);
        assert!(old_volume.is_over());
        // A server that has never heard of either asks the manager.
        world.manager.assign(segment(0), world.addr(1));
        let (again, endpoint) = world.client("zombie");
        let zombie =
            Volume::new(&again, endpoint, world.manager.route(), shape(), old, Limits::default());
        let refused = on(&again, async move { zombie.write(0, page).await }).await.unwrap_err();
        assert_eq!(refused.kind, Kind::Fenced);
        let read = on(&env, async move { volume.read(Extent { offset: 0, len: 1 }).await }).await;
        assert_eq!(read.expect("it is alone")[..], [2]);
    });
}

#[test]
fn shared_attachments_see_each_other() {
    world(6, |world| async move {
        let (first, second) =
            (world.manager.attach(VOLUME, false), world.manager.attach(VOLUME, false));
        let (one, volume) = world.volume(first, Limits::default());
        let (two, other) = world.volume(second, Limits::default());
        for round in 0..20u8 {
            let (volume, data) = (volume.clone(), buf(&one, &[round; 100_000]));
            on(&one, async move { volume.write(5000, data).await }).await.expect("it is shared");
            let other = other.clone();
            let read = async move { other.read(Extent { offset: 5000, len: 100_000 }).await };
            let read = on(&two, read).await.expect("it is shared");
            assert!(read.iter().all(|&byte| byte == round));
        }
        // One attachment ends: its sessions are over, the other's are not.
        let leaving = volume.clone();
        on(&one, async move { leaving.close().await }).await;
        assert_eq!(volume.read(Extent { offset: 0, len: 1 }).await.unwrap_err().kind, Kind::Fenced);
        let read = on(&two, async move { other.read(Extent { offset: 0, len: 1 }).await }).await;
        assert!(read.is_ok());
    });
}

#[test]
fn change_that_was_given_up_does_not_happen_later() {
    let sim = world(7, |world| async move {
        let attachment = world.manager.attach(VOLUME, true);
        let limits = Limits {
            call_timeout: Duration::from_millis(30),
            deadline: Duration::from_millis(80),
            ..Limits::default()
        };
        let (env, volume) = world.volume(attachment, limits);
        let write = |byte: u8| {
            let (volume, data) = (volume.clone(), buf(&env, &[byte; 4096]));
            on(&env, async move { volume.write(0, data).await })
        };
        write(1).await.expect("all is well");
        // Frames to the server stand still for longer than the client's timeout.
        world.sim.with_net_faults(|faults| {
            faults.delay_one_in = 1;
            faults.delay_max = Duration::from_millis(600);
        });
        let mut given_up = 0;
        for byte in 2..20 {
            match write(byte).await {
                Ok(()) => {}
                Err(fault) => {
                    assert_eq!(fault.kind, Kind::Unknown);
                    given_up += 1;
                }
            }
        }
        assert!(given_up > 5, "{given_up}");
        world.sim.with_net_faults(|faults| faults.delay_one_in = 0);
        write(99).await.expect("all is well again");
        world.sim.sleep(Duration::from_secs(2)).await;
        let read = volume.clone();
        let read = on(&env, async move { read.read(Extent { offset: 0, len: 1 }).await }).await;
        assert_eq!(read.expect("all is well")[..], [99]);
    });
    assert!(sim.marks().contains_key("block: request given up"));
}
