//! The simulated world: hosts, time, faults, the trace.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::rc::{Rc, Weak};
use std::time::Duration;

use metrics::Registry;

use super::disk::HostDisk;
use super::net::Net;
use super::node::SimNode;
use crate::buf::BufPool;
use crate::env::{Env, EnvInner, Host, Sleep};
use crate::executor::{Core, Driver, Stalled};
use crate::note::tracer_of;
use crate::rng::Rng;
use crate::time::UnixTime;

/// Nanoseconds of a second.
const SECOND_NANOS: u64 = 1_000_000_000;
/// Virtual time at which a world starts, so that subtractions near the start stay positive.
const START_NANOS: u64 = 1_000_000_000;
/// Wall-clock time at the start of every world: 2026-01-01.
const START_UNIX_NANOS: u64 = 1_767_225_600_000_000_000;
/// Polls at one instant: tasks that wake each other for ever are a failure, and no run without an end.
const POLLS_AT_ONCE_MAX: u64 = 5_000_000;
/// Buffers of one simulated node: small, so that exhaustion happens.
const POOL_BYTES: usize = 256 << 20;

/// A machine of the simulated world. Its disk content survives crashes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HostId(pub(crate) usize);

/// Way in which a host goes down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CrashMode {
    /// The process dies, the machine stays: peers see resets, written pages survive.
    Process,
    /// Power is cut: peers see silence, unsynced writes are kept, torn or lost at random.
    Power,
}

/// Faults of the network, in effect until changed. Odds are "one in n", 0 is never.
#[derive(Clone, Debug)]
pub struct NetFaults {
    /// One-way latency of a segment, least and most.
    pub latency: (Duration, Duration),
    /// Frames lost.
    pub drop_one_in: u64,
    /// Frames sent twice.
    pub duplicate_one_in: u64,
    /// Frames held back, so that later ones overtake them.
    pub delay_one_in: u64,
    /// Wait of a held frame, at most.
    pub delay_max: Duration,
    /// Segments after which a connection is reset.
    pub reset_one_in: u64,
}

impl Default for NetFaults {
    fn default() -> NetFaults {
        NetFaults {
            latency: (Duration::from_micros(10), Duration::from_micros(100)),
            drop_one_in: 0,
            duplicate_one_in: 0,
            delay_one_in: 0,
            delay_max: Duration::from_millis(50),
            reset_one_in: 0,
        }
    }
}

/// Faults of one host's disks, in effect until changed.
#[derive(Clone, Debug)]
pub struct DiskFaults {
    /// Latency of an operation, least and most.
    pub latency: (Duration, Duration),
    /// Operations that take `stall` longer. One in n, 0 is never.
    pub stall_one_in: u64,
    /// Length of such a stall.
    pub stall: Duration,
    /// Durable writes that report success and store nothing.
    pub lost_one_in: u64,
    /// Durable writes that land 4 KiB to 64 KiB away.
    pub misdirected_one_in: u64,
    /// Writes and reservations that fail; any part of a write may have been stored.
    pub write_fails_one_in: u64,
    /// Syncs that fail: what they were to make durable may be, and no later sync repeats it.
    pub sync_fails_one_in: u64,
    /// Reads that fail.
    pub read_fails_one_in: u64,
    /// Operations on names that fail: opening, making, renaming, removing, and making such
    /// changes durable. A change that fails was not made.
    pub names_fail_one_in: u64,
    /// Error of those that fail.
    pub error: DiskError,
    /// Bytes all files of the host may take.
    pub capacity: u64,
    /// Only files below this path have these faults: one disk of several. Latency and capacity
    /// are the host's.
    pub within: Option<PathBuf>,
}

/// The error of an operation that a disk's faults fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DiskError {
    /// EIO: the medium.
    #[default]
    Io,
    /// ENOSPC: no room, although there was some.
    Space,
    /// ENOMEM: the kernel has no memory for it.
    Memory,
}

impl DiskError {
    pub(crate) fn to_io(self) -> io::Error {
        io::Error::from_raw_os_error(match self {
            DiskError::Io => libc::EIO,
            DiskError::Space => libc::ENOSPC,
            DiskError::Memory => libc::ENOMEM,
        })
    }
}

impl Default for DiskFaults {
    fn default() -> DiskFaults {
        DiskFaults {
            latency: (Duration::from_micros(20), Duration::from_micros(150)),
            stall_one_in: 0,
            stall: Duration::from_millis(20),
            lost_one_in: 0,
            misdirected_one_in: 0,
            write_fails_one_in: 0,
            sync_fails_one_in: 0,
            read_fails_one_in: 0,
            names_fail_one_in: 0,
            error: DiskError::default(),
            capacity: u64::MAX,
            within: None,
        }
    }
}

pub(crate) struct SimHost {
    pub(crate) name: String,
    pub(crate) disk: Rc<HostDisk>,
    /// A virtual time and what the host's clock showed then. Renewed when the drift changes, so
    /// that the clock neither jumps nor runs backwards.
    pub(crate) clock_base: Cell<(u64, u64)>,
    /// Nanoseconds by which its wall clock is ahead (or behind).
    pub(crate) wall_skew: Cell<i64>,
    /// Parts per million by which its clock runs fast (or slow).
    pub(crate) clock_drift_ppm: Cell<i64>,
    /// The node that runs on it, if one does.
    pub(crate) running: RefCell<Option<Env>>,
    pub(crate) paused_until: Cell<u64>,
    /// Polls of its tasks.
    polls: Cell<Second>,
}

impl SimHost {
    /// The host's monotonic clock at virtual time `global`.
    pub(crate) fn local_time(&self, global: u64) -> u64 {
        let (base, shown) = self.clock_base.get();
        let rate = i128::from(1_000_000 + self.clock_drift_ppm.get());
        shown + (i128::from(global.saturating_sub(base)) * rate / 1_000_000) as u64
    }

    /// The first virtual time, from the last change of the drift on, at which the host's clock
    /// shows `local`.
    pub(crate) fn global_time(&self, local: u64) -> u64 {
        let (base, shown) = self.clock_base.get();
        let rate = i128::from(1_000_000 + self.clock_drift_ppm.get());
        let passed = i128::from(local.saturating_sub(shown)) * 1_000_000 / rate;
        let mut global = u64::try_from(i128::from(base) + passed).unwrap_or(u64::MAX);
        while global < u64::MAX && self.local_time(global) < local {
            global += 1;
        }
        global
    }
}

pub(crate) struct World {
    pub(crate) core: Rc<Core>,
    now: Cell<u64>,
    pub(crate) rng: RefCell<Rng>,
    pub(crate) hosts: RefCell<Vec<Rc<SimHost>>>,
    /// Host of each boot, by node number; 0 is the harness.
    boots: RefCell<Vec<HostId>>,
    /// The nodes: what an ended one leaves is found by them.
    nodes: RefCell<Vec<Weak<EnvInner>>>,
    pub(crate) net: Net,
    hash: Cell<u64>,
    events: Cell<u64>,
    /// How often, and when last.
    marks: RefCell<BTreeMap<&'static str, (u64, Duration)>>,
    /// The last instant at which a task was polled, and the polls at it.
    polls: Cell<(u64, u64)>,
}

/// Events of the second under way, which began with one, and of the busiest second.
#[derive(Clone, Copy, Default)]
struct Second {
    end: u64,
    events: u64,
    most: u64,
}

impl Second {
    fn with_event(self, now: u64) -> Second {
        let is_over = now >= self.end;
        let end = if is_over { now + SECOND_NANOS } else { self.end };
        let events = if is_over { 1 } else { self.events + 1 };
        Second { end, events, most: self.most.max(events) }
    }
}

/// Seed and fault control of one simulated world. Clones share it.
#[derive(Clone)]
pub struct Sim(pub(crate) Rc<World>);

/// Mixes a word in: it changes all that is mixed in behind it, wherever it differs.
fn mix(hash: u64, word: u64) -> u64 {
    let product = u128::from(hash ^ word) * 0x9e37_79b9_7f4a_7c15;
    (product as u64) ^ (product >> 64) as u64 ^ hash.rotate_left(23)
}

impl World {
    pub(crate) fn note(&self, a: u64, b: u64) {
        let mixed = (self.hash.get() ^ a).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) ^ b;
        self.hash.set(mixed.wrapping_mul(0xff51_afd7_ed55_8ccd));
        self.events.set(self.events.get() + 1);
    }

    /// Notes bytes that a disk or the network has carried: where, and every one of them.
    pub(crate) fn note_bytes(&self, at: u64, bytes: &[u8]) {
        self.note(at, bytes.len() as u64);
        // Eight independent chains: one alone takes a tenth of a seed's time.
        let mut chains = [0; 8].map(|_: u8| self.hash.get());
        let (blocks, rest) = bytes.as_chunks::<64>();
        for block in blocks {
            let (words, _) = block.as_chunks::<8>();
            for (chain, word) in chains.iter_mut().zip(words) {
                *chain = mix(*chain, u64::from_le_bytes(*word));
            }
        }
        let (words, rest) = rest.as_chunks::<8>();
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        let behind = words.iter().chain([&last]).map(|word| u64::from_le_bytes(*word));
        self.hash.set(chains.into_iter().chain(behind).fold(self.hash.get(), mix));
    }

    pub(crate) fn host(&self, id: HostId) -> Rc<SimHost> {
        self.hosts.borrow()[id.0].clone()
    }

    pub(crate) fn host_of_boot(&self, node: u32) -> HostId {
        self.boots.borrow()[node as usize]
    }

    pub(crate) fn mark(&self, name: &'static str) {
        let now = Duration::from_nanos(self.now.get() - START_NANOS);
        let marks = &mut *self.marks.borrow_mut();
        let (count, last) = marks.entry(name).or_default();
        (*count, *last) = (*count + 1, now);
    }

    pub(crate) fn between(&self, range: (Duration, Duration)) -> Duration {
        let (low, high) = (range.0.as_nanos() as u64, range.1.as_nanos() as u64);
        Duration::from_nanos(self.rng.borrow_mut().between(low, high.max(low)))
    }

    pub(crate) fn one_in(&self, n: u64) -> bool {
        self.rng.borrow_mut().one_in(n)
    }

    /// Waits in virtual time, whatever any node's clock says.
    pub(crate) fn sleep(&self, duration: Duration) -> Sleep {
        self.sleep_until(self.core.now() + duration.as_nanos() as u64)
    }

    pub(crate) fn sleep_until(&self, at: u64) -> Sleep {
        Sleep::new(self.core.clone(), at)
    }
}

/// The executor's view of the world. It holds the world weakly: the world owns the executor.
struct SimDriver(Weak<World>);

impl SimDriver {
    fn world(&self) -> Rc<World> {
        self.0.upgrade().expect("the world outlives its executor's run")
    }
}

impl Driver for SimDriver {
    fn now(&self) -> u64 {
        self.world().now.get()
    }

    fn turn(&self) {}

    fn park(&self, until: Option<u64>) -> bool {
        let Some(until) = until else { return false };
        let world = self.world();
        world.now.set(until.max(world.now.get()));
        true
    }

    fn pick(&self, ready: usize) -> usize {
        self.world().rng.borrow_mut().below(ready as u64) as usize
    }

    fn before_poll(&self, node: u32, slot: u32) -> bool {
        let world = self.world();
        if node != 0 {
            let host = world.host(world.host_of_boot(node));
            if host.paused_until.get() > world.now.get() {
                return false;
            }
            host.polls.set(host.polls.get().with_event(world.now.get()));
        }
        let now = world.now.get();
        let polls = match world.polls.get() {
            (at, polls) if at == now => polls + 1,
            _ => 1,
        };
        assert!(polls <= POLLS_AT_ONCE_MAX, "tasks wake each other, and no time passes");
        world.polls.set((now, polls));
        world.note(u64::from(node) << 32 | u64::from(slot), now);
        true
    }

    fn overrun(&self, _name: &'static str, _took: Duration) {}

    fn measures_slices(&self) -> bool {
        false // Virtual time stands still during a poll.
    }
}

impl Sim {
    /// A world whose every choice follows from `seed`.
    pub fn new(seed: u64) -> Sim {
        let core = Core::new(Box::new(|| {}));
        let world = Rc::new(World {
            core: core.clone(),
            now: Cell::new(START_NANOS),
            rng: RefCell::new(Rng::new(seed)),
            hosts: RefCell::default(),
            boots: RefCell::new(vec![HostId(usize::MAX)]),
            nodes: RefCell::default(),
            net: Net::default(),
            hash: Cell::new(seed),
            events: Cell::new(0),
            marks: RefCell::default(),
            polls: Cell::new((0, 0)),
        });
        core.set_driver(Rc::new(SimDriver(Rc::downgrade(&world))));
        Sim(world)
    }

    /// Runs the harness's `root` to its end, and every node's tasks beside it.
    pub fn run<T>(&self, root: impl Future<Output = T>) -> Result<T, Stalled> {
        self.0.core.run(None, root)
    }

    /// Virtual time since the start.
    pub fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.0.now.get() - START_NANOS)
    }

    /// Lets virtual time pass; for the harness.
    pub fn sleep(&self, duration: Duration) -> Sleep {
        self.0.sleep(duration)
    }

    /// Starts a task of the harness, which no crash ends.
    pub fn spawn<T: 'static>(
        &self,
        name: &'static str,
        future: impl Future<Output = T> + 'static,
    ) -> crate::JoinHandle<T> {
        self.0.core.spawn(None, crate::Class::Foreground, name, future)
    }

    /// Draws from the world's random stream; for the harness.
    pub fn with_rng<T>(&self, draw: impl FnOnce(&mut Rng) -> T) -> T {
        draw(&mut self.0.rng.borrow_mut())
    }

    /// Adds a machine with an empty disk and a clock of its own.
    pub fn add_host(&self, name: &str) -> HostId {
        let clock_offset = self.0.rng.borrow_mut().below(1 << 40);
        let mut hosts = self.0.hosts.borrow_mut();
        hosts.push(Rc::new(SimHost {
            name: name.to_owned(),
            disk: Rc::new(HostDisk::default()),
            clock_base: Cell::new((0, clock_offset)),
            clock_drift_ppm: Cell::new(0),
            wall_skew: Cell::new(0),
            running: RefCell::new(None),
            paused_until: Cell::new(0),
            polls: Cell::default(),
        }));
        HostId(hosts.len() - 1)
    }

    /// The address of `port` on a host.
    pub fn addr(&self, host: HostId, port: u16) -> SocketAddr {
        SocketAddr::new(ip_of(host), port)
    }

    /// Starts a node on a host that runs none.
    pub fn boot(&self, host: HostId) -> Env {
        let machine = self.0.host(host);
        assert!(machine.running.borrow().is_none(), "{} runs already", machine.name);
        let node = {
            let boots = &mut *self.0.boots.borrow_mut();
            boots.push(host);
            u32::try_from(boots.len() - 1).expect("fewer than 2^32 boots")
        };
        let rng = self.0.rng.borrow_mut().fork();
        let env = Env(Rc::new(EnvInner {
            core: self.0.core.clone(),
            node,
            name: machine.name.clone(),
            host: Host::Sim(SimNode::new(self.0.clone(), host, node)),
            pool: BufPool::new(POOL_BYTES),
            tracer: tracer_of(&rng, Registry::new()),
            rng: RefCell::new(rng),
            closed: Cell::new(false),
        }));
        *machine.running.borrow_mut() = Some(env.clone());
        self.0.nodes.borrow_mut().push(Rc::downgrade(&env.0));
        self.0.note(u64::from(node), 0xb007);
        env
    }

    /// The node that runs on `host`.
    pub fn env(&self, host: HostId) -> Option<Env> {
        self.0.host(host).running.borrow().clone()
    }

    /// Takes a host down. Nothing of its node runs or has effects from here on.
    pub fn crash(&self, host: HostId, mode: CrashMode) {
        let machine = self.0.host(host);
        let Some(env) = machine.running.borrow_mut().take() else { return };
        self.0.note(u64::from(env.node()), 0xdead);
        env.0.closed.set(true);
        machine.paused_until.set(0);
        self.0.net.crash(&self.0, host, env.node(), mode);
        self.0.core.kill_node(env.node());
        machine.disk.crash(&self.0, mode);
    }

    /// Stops a host's tasks, as SIGSTOP does; its clocks go on.
    pub fn pause(&self, host: HostId, duration: Duration) {
        let machine = self.0.host(host);
        let Some(env) = self.env(host) else { return };
        let until = self.0.now.get() + duration.as_nanos() as u64;
        machine.paused_until.set(until);
        let world = self.0.clone();
        let wake = async move {
            world.sleep_until(until).await;
            world.core.release_held(env.node());
        };
        self.spawn("resume", wake);
    }

    /// Makes a host's clock run fast (positive) or slow, in parts per million.
    pub fn set_clock_drift(&self, host: HostId, ppm: i64) {
        assert!(ppm.abs() <= 100_000, "drift of {ppm} ppm");
        let machine = self.0.host(host);
        let now = self.0.now.get();
        machine.clock_base.set((now, machine.local_time(now)));
        machine.clock_drift_ppm.set(ppm);
    }

    /// Sets a host's wall clock ahead of the world's (positive) or behind it, in milliseconds.
    /// Its monotonic clock goes on as before.
    pub fn set_wall_skew(&self, host: HostId, millis: i64) {
        self.0.host(host).wall_skew.set(millis.saturating_mul(1_000_000));
    }

    /// Changes the network's faults.
    pub fn with_net_faults(&self, change: impl FnOnce(&mut NetFaults)) {
        change(&mut self.0.net.faults.borrow_mut());
    }

    /// Changes a host's disk faults.
    pub fn with_disk_faults(&self, host: HostId, change: impl FnOnce(&mut DiskFaults)) {
        change(&mut self.0.host(host).disk.faults.borrow_mut());
    }

    /// Blocks or opens the one-way path between two hosts.
    pub fn set_blocked(&self, from: HostId, to: HostId, blocked: bool) {
        self.0.net.set_blocked(from, to, blocked);
    }

    /// Makes a host grey, or ends that: it gets nothing of what others send to it or begin, while its
    /// own connections stay. So it says that it lives, and serves none.
    pub fn set_grey(&self, host: HostId, grey: bool) {
        self.0.net.set_grey(host, grey);
    }

    /// As [`Sim::set_grey`], for what one other host sends to it or begins: others reach it.
    pub fn set_grey_to(&self, from: HostId, to: HostId, grey: bool) {
        self.0.net.set_grey_to(from, to, grey);
    }

    /// Segments and connection attempts that a blocked one-way path has held back since it was
    /// blocked: proof that a cut met traffic. 0 for an open path.
    pub fn held(&self, from: HostId, to: HostId) -> u64 {
        self.0.net.held(from, to)
    }

    /// Opens all paths and ends all network faults.
    pub fn heal_network(&self) {
        *self.0.net.faults.borrow_mut() = NetFaults::default();
        self.0.net.unblock_all();
    }

    /// Flips one bit of a file at rest, as bit rot does. False when the byte is not stored.
    pub fn flip_bit(&self, host: HostId, path: &Path, offset: u64, bit: u8) -> bool {
        self.0.note(offset, 0xf11b);
        self.0.host(host).disk.flip_bit(path, offset, bit)
    }

    /// Makes the 4 KiB of a file around `offset` unreadable, as a medium error does, until they are
    /// written again.
    pub fn make_unreadable(&self, host: HostId, path: &Path, offset: u64) {
        self.0.note(offset, 0xbad5);
        self.0.host(host).disk.make_unreadable(path, offset);
    }

    /// Makes every operation on files below `prefix` fail with EIO, or work again.
    pub fn set_failed(&self, host: HostId, prefix: &Path, failed: bool) {
        self.0.host(host).disk.set_failed(prefix, failed);
    }

    /// Removes every file below `prefix`: a disk that is replaced by an empty one.
    pub fn wipe(&self, host: HostId, prefix: &Path) {
        self.0.note(0, 0x31ae);
        self.0.host(host).disk.wipe(prefix);
    }

    /// The files of a host, with their lengths.
    pub fn files(&self, host: HostId) -> Vec<(PathBuf, u64)> {
        self.0.host(host).disk.files()
    }

    /// Identifies the run: equal for equal seeds of one build.
    pub fn trace_hash(&self) -> u64 {
        self.0.hash.get()
    }

    /// Ends the world: every host crashes and all tasks are dropped. Worlds hold cycles, so one
    /// that is not closed is never freed.
    pub fn close(&self) {
        let hosts = self.0.hosts.borrow().len();
        (0..hosts).for_each(|host| self.crash(HostId(host), CrashMode::Process));
        self.0.core.clear();
        self.0.hosts.borrow_mut().clear();
    }

    /// Names of the nodes of which something is left, though the world is closed: objects that hold
    /// each other are never freed.
    pub fn left(&self) -> Vec<String> {
        let nodes = self.0.nodes.borrow();
        nodes.iter().filter_map(Weak::upgrade).map(|node| node.name.clone()).collect()
    }

    /// Adds a fact to the trace hash; for the harness.
    pub fn note(&self, fact: u64) {
        self.0.note(fact, 0x4a2e);
    }

    /// Counts that the harness has reached something rare; see [`Env::mark`].
    pub fn mark(&self, name: &'static str) {
        self.0.mark(name);
    }

    /// Events so far: polls, deliveries, disk operations.
    pub fn events(&self) -> u64 {
        self.0.events.get()
    }

    /// The host whose tasks were polled most often in one second of virtual time, and how often: far above a
    /// load's, something spins.
    pub fn busiest(&self) -> (String, u64) {
        let hosts = self.0.hosts.borrow();
        let busiest = hosts.iter().max_by_key(|host| host.polls.get().most);
        busiest.map(|host| (host.name.clone(), host.polls.get().most)).unwrap_or_default()
    }

    /// Counts of each rare path (see [`Env::mark`]).
    pub fn marks(&self) -> BTreeMap<&'static str, u64> {
        self.0.marks.borrow().iter().map(|(name, (count, _))| (*name, *count)).collect()
    }

    /// When a rare path was last reached, as [`Sim::elapsed`] counts.
    pub fn last_mark(&self, name: &str) -> Option<Duration> {
        self.0.marks.borrow().get(name).map(|(_, last)| *last)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.core.clear();
    }
}

pub(crate) fn ip_of(host: HostId) -> IpAddr {
    let number = host.0 + 1;
    IpAddr::V4(Ipv4Addr::new(10, (number >> 16) as u8, (number >> 8) as u8, number as u8))
}

pub(crate) fn host_of_ip(ip: IpAddr) -> Option<HostId> {
    let IpAddr::V4(v4) = ip else { return None };
    let [ten, a, b, c] = v4.octets();
    let number = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
    (ten == 10 && number > 0).then(|| HostId(number - 1))
}

pub(crate) fn unix_time(global: u64, skew: i64) -> UnixTime {
    let right = START_UNIX_NANOS + global - START_NANOS;
    UnixTime::from_nanos(right.saturating_add_signed(skew))
}
