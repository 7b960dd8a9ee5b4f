//! Virtual disks on the whole stack: hosts with an NBD client, a front end and the block client;
//! block managers, block servers, chunkservers, masters. Both hosts have one volume open together,
//! and take the other from each other; the previous holder lets go, dies, or does not know that it
//! is over. Everything crashes, pauses, drifts and is cut off; segments move; messages come late
//! and twice; garbage is collected; snapshots are taken, and cloned. At the end, under requests,
//! all lose power at once.
//!
//! Each block is linearizable over all of that: everything answered is there. An answer is a
//! promise of durability, so all that a flush has completed is included; a write that was not
//! answered is there, whole, or not. A snapshot, or a clone of it, has of each block what a read
//! would have seen while it was made.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use block_client::Limits;
use block_nbd::protocol::{Command, request_flags};
use block_proto::{BlockReply, BlockRequest, Managers, VolumeGeometry, VolumeInfo, VolumeSpec};
use block_volume::geometry::Geometry;
use block_volume::ids::VolumeId;
use block_volume::qos::VolumeLimits;
use client::Client;
use roles::block::start_frontend_with;
use runtime::sim::{CrashMode, HostId, Sim};
use runtime::{Class, Env, Rng};

use super::cuts::Keeper;
use super::nbd::Connection;
use super::record::{By, Record, content, extent};
use super::stack::{Role, Stack};
use super::{NONE, ownership_views, policy};
use crate::cluster::{Cluster, Shape, parse};
use crate::nemesis::{Cut, Faults, Nemesis, Way, keep_cutting};
use crate::register::Did;
use crate::tuning::Tuning;

const MANAGERS: usize = 2;
const SERVERS: usize = 3;
const HOSTS: usize = 2;
/// NBD connections of a host to a volume; each has one request at a time.
const WORKERS: usize = 2;
const PORT: u16 = 10_809;
/// Bytes of a volume's first group: two segments in turn, a sector each.
pub(super) const BYTES: u64 = 1 << 20;
/// Bytes of a volume, of two groups, while it is not cut.
pub(super) const BYTES_MAX: u64 = 2 * BYTES;
const SECTOR: u64 = 64 << 10;
/// Bytes of a DataFile: 15 blocks, so that many end and are collected.
const FILE_BYTES: u64 = 64 << 10;
/// Blocks in use: few, so that requests meet; two at the border of two segments, one in the second
/// group.
const BLOCKS: [u64; 6] = [3, 4, 15, 16, 40, 259];
const LOAD: Duration = Duration::from_secs(10);
/// The same where hosts are cut off: a cut may last 12 s.
const CUTS_LOAD: Duration = Duration::from_secs(24);
/// Pause between two requests of a worker, at most: few requests make a seed cheap.
const THINK: Duration = Duration::from_millis(80);
/// Interval of comparing the servers' beliefs.
const LOOK: Duration = Duration::from_millis(5);
/// Without faults everything goes on within so long.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Blocks that are answered for in a run, at least: the load does not stand still.
const ANSWERED_MIN: usize = 50;
/// A host that sleeps for so long has lost what others can take from it.
const SLEEP: Duration = Duration::from_millis(6500);

/// The volume that both hosts have open.
const SHARED: usize = 0;
/// The one that one host has for itself.
const OWN: usize = 1;
const NAMES: [&str; 2] = ["shared", "own"];

/// Faults of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Harm {
    /// All faults that there are.
    Everything,
    /// Hosts are cut off from each other, by pair and direction.
    Cuts,
}

/// Use of the exclusive volume by a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stance {
    /// It opens and uses it; of two, the later one has the larger number.
    Holds(u64),
    /// It goes on with its open volume, and does not know that it is over.
    Lingers,
    /// It closes its open volume.
    Leaves,
}

struct World {
    sim: Sim,
    stack: Rc<Stack>,
    hosts: Vec<HostId>,
    volumes: [VolumeId; 2],
    record: Rc<Record>,
    stances: RefCell<[Stance; HOSTS]>,
    /// No more faults.
    calm: Cell<bool>,
    /// No more requests.
    stop: Cell<bool>,
}

pub(super) async fn run(sim: Sim, harm: Harm) -> Result<(), String> {
    let shape = Shape { servers: 4, ..Shape::default() }.partitioned(&sim);
    let cluster = Cluster::start(&sim, shape, Tuning::default());
    cluster.settle(Duration::from_secs(30)).await.map_err(|e| format!("at the start: {e}"))?;
    let stack = Stack::start(&cluster, (MANAGERS, SERVERS), FILE_BYTES);
    let (host, client) = cluster.client(None).await.map_err(|error| error.to_string())?;
    let making = client.env().spawn(Class::Foreground, "make", make(client.clone()));
    let made = making.await.map_err(|_| "the maker of volumes has crashed")??;
    let volumes = [SHARED, OWN].map(|index| made[index].volume);
    sim.crash(host, CrashMode::Process);
    let world = Rc::new(World {
        sim: sim.clone(),
        stack,
        hosts: (1..=HOSTS).map(|number| sim.add_host(&format!("host{number}"))).collect(),
        volumes,
        record: Record::new(&sim),
        stances: RefCell::new([Stance::Holds(1), Stance::Leaves]),
        calm: Cell::new(false),
        stop: Cell::new(false),
    });
    (0..HOSTS).for_each(|host| world.boot(host));
    let watch = sim.spawn("watch", world.clone().watch());
    world.until_answered().await?;
    let (_, client) = cluster.client(None).await.map_err(|error| error.to_string())?;
    let (record, endpoint) = (&world.record, cluster.endpoint(client.env()));
    let over = world.clone();
    let is_over = move || over.is_over();
    let (keeper, snapshots) = Keeper::start(&client, &endpoint, record, &BLOCKS, &made, is_over);
    let core = if harm == Harm::Cuts { NONE } else { faults(&sim) };
    let nemesis = Nemesis::start(&cluster, core);
    let injector = match harm {
        Harm::Everything => sim.spawn("faults", world.clone().inject_faults()),
        Harm::Cuts => sim.spawn("cuts", world.clone().cut_always()),
    };
    let handover = sim.spawn("handover", world.clone().hand_over_always());
    let load = if harm == Harm::Cuts { CUTS_LOAD } else { LOAD };
    let end = sim.elapsed() + load;
    world.pause(10, 20).await;
    sim.with_net_faults(|net| {
        (net.duplicate_one_in, net.delay_one_in) = (15, 25);
        net.delay_max = Duration::from_millis(300);
    });
    while sim.elapsed() < end && !world.stack.is_broken() {
        sim.sleep(Duration::from_millis(50)).await;
    }
    world.calm.set(true);
    let _ = (injector.await, handover.await); // They end with the load.
    nemesis.stop().await;
    world.quiet();
    let taken = snapshots.await.map_err(|_| "the keeper of snapshots has crashed")??;
    sim.note(taken);
    world.until_answered().await?;
    // What processes have in memory is good for every host and block, too: restarts heal it.
    world.look_everywhere(world.turn()).await?;
    world.cut_power().await;
    watch.abort();
    world.look_everywhere(world.turn() + 1).await?;
    world.stack.verdict()?;
    keeper.check_all().await?;
    cluster.settle(Duration::from_secs(60)).await?;
    if let Some(violation) = cluster.violations().first() {
        return Err(violation.clone());
    }
    world.record.judge(|volume| volume == volumes[SHARED])?;
    let answered: usize = volumes.iter().map(|&volume| world.record.answered(volume, 0)).sum();
    match answered < ANSWERED_MIN {
        true => Err(format!("only {answered} blocks in {load:?}: the load stands still")),
        false => Ok(()),
    }
}

/// Faults of the core, beside a bad network: different in each run, so that in some of them the
/// block service is busy enough to be hit by its own faults.
fn faults(sim: &Sim) -> Faults {
    let coin = || sim.with_rng(|rng| rng.one_in(3));
    Faults {
        bad_network: true,
        server_crashes: coin(),
        master_crashes: coin(),
        partitions: coin(),
        slowness: coin(),
        blackouts: coin(),
        ..NONE
    }
}

/// Promises and bounds of a volume, or none: workers ask for 100 requests a second when nothing
/// holds them back, of 4 to 8 KiB.
pub(super) fn limits(env: &Env) -> VolumeLimits {
    let draw = |low: u64, high: u64| low + env.random_below(high - low);
    let bounds = env.random_below(3);
    if bounds == 0 {
        return VolumeLimits::default();
    }
    let (iops_burst, bytes_burst) = (draw(30, 200), draw(150_000, 1_000_000));
    VolumeLimits {
        iops_base: env.random_below(iops_burst),
        iops_burst,
        bytes_base: if bounds == 1 { 0 } else { env.random_below(bytes_burst) },
        bytes_burst: if bounds == 1 { 0 } else { bytes_burst },
    }
}

/// Makes the volumes.
async fn make(client: Client) -> Result<Vec<VolumeInfo>, String> {
    let managers = Managers::with_budget(&client, TIMEOUT);
    let mut made = Vec::new();
    for (index, name) in NAMES.iter().enumerate() {
        let geometry =
            VolumeGeometry { group_bytes: BYTES, segments_per_group: 2, data_sector: SECTOR };
        let spec = VolumeSpec {
            name: (*name).to_owned(),
            bytes: BYTES_MAX,
            geometry,
            policy: policy::drawn_volume(),
            limits: limits(client.env()),
            shared: index == SHARED,
        };
        let create = BlockRequest::Create { nonce: client.env().random_u64(), spec };
        match managers.ask(create).await {
            Ok(BlockReply::Volume(info)) => made.push(info),
            other => return Err(format!("{name} was not made: {other:?}")),
        }
    }
    Ok(made)
}

impl World {
    fn draw(&self, bound: u64) -> u64 {
        self.sim.with_rng(|rng| rng.below(bound))
    }

    async fn pause(&self, low_ms: u64, high_ms: u64) {
        let length = self.sim.with_rng(|rng| rng.between(low_ms, high_ms));
        self.sim.sleep(Duration::from_millis(length)).await;
    }

    fn mode(&self) -> CrashMode {
        if self.draw(2) == 0 { CrashMode::Power } else { CrashMode::Process }
    }

    fn is_over(&self) -> bool {
        self.calm.get() || self.stack.is_broken()
    }

    fn stance(&self, host: usize, volume: usize) -> Stance {
        if volume == SHARED { Stance::Holds(0) } else { self.stances.borrow()[host] }
    }

    /// The number of the client that has, or had last, the exclusive volume.
    fn turn(&self) -> u64 {
        let number = |stance: &Stance| match stance {
            Stance::Holds(number) => *number,
            Stance::Lingers | Stance::Leaves => 0,
        };
        self.stances.borrow().iter().map(number).max().unwrap_or_default()
    }

    fn addr(&self, host: usize) -> SocketAddr {
        self.sim.addr(self.hosts[host], PORT)
    }

    /// Starts a host: its front end, and its clients.
    fn boot(self: &Rc<Self>, host: usize) {
        let (env, this) = (self.sim.boot(self.hosts[host]), self.clone());
        env.clone().spawn(Class::Control, "boot host", async move {
            let cluster = this.stack.cluster();
            let text = cluster.config_text(env.name(), &cluster.masters_text());
            let config = parse(&format!("{text}nbd = '127.0.0.1:{PORT}'\n"));
            // Now and then one that gives up.
            let deadline = if this.draw(4) == 0 { 400 } else { 60_000 };
            let tune = |limits: &mut Limits| {
                limits.call_timeout = Duration::from_millis(400);
                limits.open_timeout = Duration::from_millis(1500);
                limits.deadline = Duration::from_millis(deadline);
            };
            let started = start_frontend_with(&env, &config, &cluster.seams(), tune).await;
            if let Err(error) = started {
                return this.stack.violation(format!("a front end did not start: {error}"));
            }
            for volume in [SHARED, OWN] {
                for _ in 0..WORKERS {
                    let rng = Rng::new(env.random_u64());
                    let work = this.clone().work(env.clone(), (host, volume), rng);
                    env.spawn(Class::Foreground, "lane", work);
                }
            }
        });
    }

    /// A client that is about to open a volume.
    fn by(&self, volume: usize, epoch: u64) -> By {
        let geometry = Geometry::new(BYTES, 2, SECTOR).expect("it goes up");
        By { volume: self.volumes[volume], geometry, epoch, opened: self.record.now() }
    }

    /// Has a volume open again and again.
    async fn work(self: Rc<Self>, env: Env, (host, volume): (usize, usize), mut rng: Rng) {
        while !self.stop.get() {
            env.sleep(Duration::from_millis(1 + rng.below(40))).await;
            let Stance::Holds(number) = self.stance(host, volume) else { continue };
            let by = self.by(volume, number);
            let open = Connection::open(&env, self.addr(host), NAMES[volume], rng.one_in(2)).await;
            let Ok(mut connection) = open else { continue };
            let goes_on = || match self.stance(host, volume) {
                Stance::Holds(now) => now == number,
                Stance::Lingers => true,
                Stance::Leaves => false,
            };
            // After an error it is opened again: it may be another's by now.
            while goes_on() && self.act(&mut connection, by, &mut rng).await.is_ok() {
                env.sleep(Duration::from_micros(rng.below(THINK.as_micros() as u64))).await;
            }
        }
    }

    /// Does one request.
    async fn act(&self, to: &mut Connection, by: By, rng: &mut Rng) -> Result<(), String> {
        let block = *rng.pick(&BLOCKS);
        let count = if BLOCKS.contains(&(block + 1)) && rng.one_in(3) { 2 } else { 1 };
        let blocks = block..block + count;
        let fua = if rng.one_in(3) { request_flags::FUA } else { 0 };
        match rng.below(12) {
            0 => {
                let hole = if rng.one_in(2) { request_flags::NO_HOLE } else { 0 };
                self.clear(to, by, blocks, (Command::WriteZeroes, fua | hole)).await
            }
            1 => self.clear(to, by, blocks, (Command::Trim, fua)).await,
            2 => {
                let nothing = extent(&(0..0));
                to.request(Command::Flush, 0, nothing, &[]).await.map(drop)
            }
            3..7 => self.read(to, by, blocks).await,
            _ => {
                let value = self.record.value();
                let pending = self.record.begin(by, &blocks, Did::Write(value));
                let data = content(value, &blocks);
                to.request(Command::Write, fua, extent(&blocks), &data).await?;
                pending.done();
                Ok(())
            }
        }
    }

    async fn clear(
        &self,
        to: &mut Connection,
        by: By,
        blocks: Range<u64>,
        (command, flags): (Command, u16),
    ) -> Result<(), String> {
        let pending = self.record.begin(by, &blocks, Did::Write(0));
        to.request(command, flags, extent(&blocks), &[]).await?;
        pending.done();
        Ok(())
    }

    async fn read(&self, to: &mut Connection, by: By, blocks: Range<u64>) -> Result<(), String> {
        let pending = self.record.begin(by, &blocks, Did::Read(0));
        let data = to.request(Command::Read, 0, extent(&blocks), &[]).await?;
        if let Err(what) = pending.saw(&data) {
            self.stack.violation(what);
        }
        Ok(())
    }

    /// Compares the beliefs of servers, and notes which has which segment.
    async fn watch(self: Rc<Self>) {
        let mut owners = std::collections::BTreeMap::new();
        loop {
            self.sim.sleep(LOOK).await;
            let ownership_views = self.stack.ownership_views();
            for &(server, (id, epoch, _)) in &ownership_views {
                let before = owners.entry(id).or_insert((epoch, server));
                let moved = epoch > before.0 && server != before.1;
                *before = (epoch, server).max(*before);
                if moved && let Some(env) = self.sim.env(self.stack.servers()[server]) {
                    env.mark("disks: a segment has moved");
                }
            }
            if let Err(what) = ownership_views::compare(ownership_views) {
                self.stack.violation(what);
            }
        }
    }

    /// Injects faults into block managers and block servers, one at a time, and all clocks.
    async fn inject_faults(self: Rc<Self>) {
        while !self.is_over() {
            self.pause(100, 900).await;
            let role = self.stack.any();
            let host = self.stack.host(role);
            match (self.draw(7), role) {
                (0 | 1, _) => {
                    self.stack.crash(role, self.mode());
                    self.pause(1, 800).await;
                    self.stack.boot(role);
                }
                (2, _) => {
                    let length = Duration::from_millis(20 + self.draw(1200));
                    self.sim.pause(host, length);
                    self.sim.sleep(length).await;
                }
                (3, _) => {
                    let all = self.hosts.iter().chain(self.stack.servers());
                    let all: Vec<_> = all.chain(self.stack.managers()).copied().collect();
                    for host in all {
                        self.sim.set_clock_drift(host, self.draw(20_000) as i64 - 10_000);
                    }
                }
                (4, Role::Server(index)) => {
                    self.stack.leave(index).await;
                    self.pause(1, 800).await;
                    self.stack.boot(role);
                }
                // It reaches chunkservers still: its lease runs out, its appends go on.
                _ => {
                    self.cut_off(host, true);
                    self.pause(100, 2500).await;
                    self.cut_off(host, false);
                }
            }
        }
    }

    /// Cuts hosts off from each other, two pairs or groups at a time.
    async fn cut_always(self: Rc<Self>) {
        let cut = || keep_cutting(self.sim.clone(), || self.is_over(), || Some(self.draw_cut()));
        futures_util::future::join(cut(), cut()).await;
    }

    /// A cut of a block server, a front end's host or a block manager. Block servers do not ask
    /// each other.
    fn draw_cut(&self) -> Cut {
        let pick = |hosts: &[HostId]| {
            self.sim.with_rng(|rng| hosts[rng.below(hosts.len() as u64) as usize])
        };
        let core = self.stack.cluster();
        let (server, host) = (&[pick(self.stack.servers())], &[pick(&self.hosts)]);
        let managers = self.stack.managers();
        // One chunkserver, or all of them.
        let one = [pick(core.servers())];
        let chunkservers = if self.draw(2) == 0 { &one[..] } else { core.servers() };
        let way = self.sim.with_rng(|rng| *rng.pick(&[Way::Both, Way::There, Way::Back]));
        let (mark, asking, answering): (_, &[HostId], &[HostId]) = match self.draw(9) {
            0 => ("cut: a block server from masters", server, core.masters()),
            1 => ("cut: a block server from chunkservers", server, chunkservers),
            2 => ("cut: a block server from managers", server, managers),
            3 => ("cut: a block server from a front end", host, server),
            4 => ("cut: a block server from all front ends", &self.hosts, server),
            5 => ("cut: a front end from masters", host, core.masters()),
            6 => ("cut: a front end from managers", host, managers),
            7 => ("cut: a front end from chunkservers", host, chunkservers),
            _ => {
                let all: Vec<_> = self.stack.servers().iter().chain(&self.hosts).copied().collect();
                let mark = "cut: a block manager that masters reach";
                return Cut::new(mark, way, &all, &[pick(managers)]).directed(way);
            }
        };
        Cut::new(mark, way, asking, answering).directed(way)
    }

    /// Parts a host from the managers, or no longer.
    fn cut_off(&self, host: HostId, blocked: bool) {
        for &manager in self.stack.managers().iter().filter(|&&manager| manager != host) {
            self.sim.set_blocked(manager, host, blocked);
            self.sim.set_blocked(host, manager, blocked);
        }
    }

    /// Has one host after the other take the volume that only one can have.
    async fn hand_over_always(self: Rc<Self>) {
        let (mut holder, mut number) = (0, 1);
        while !self.is_over() {
            self.pause(300, 1500).await;
            let (old, new) = (holder, 1 - holder);
            let how = self.draw(4);
            let lingers = how >= 2;
            self.stances.borrow_mut()[old] = if lingers { Stance::Lingers } else { Stance::Leaves };
            match how {
                0 => {}
                1 => {
                    self.sim.crash(self.hosts[old], self.mode());
                    self.pause(1, 1000).await;
                    self.boot(old);
                }
                2 => self.cut_off(self.hosts[old], true),
                _ => self.sim.pause(self.hosts[old], SLEEP),
            }
            let wakes = self.sim.elapsed() + SLEEP;
            number += 1;
            self.stances.borrow_mut()[new] = Stance::Holds(number);
            while self.record.answered(self.volumes[OWN], number) == 0 && !self.is_over() {
                self.pause(10, 50).await;
            }
            if lingers {
                self.pause(0, 800).await;
                self.cut_off(self.hosts[old], false);
                self.sim.sleep(wakes.saturating_sub(self.sim.elapsed())).await;
                self.pause(0, 2000).await;
                self.stances.borrow_mut()[old] = Stance::Leaves;
            }
            holder = new;
        }
    }

    /// Ends all faults.
    fn quiet(&self) {
        self.sim.heal_network();
        let core = self.stack.cluster();
        let block = self.stack.managers().iter().chain(self.stack.servers());
        let all = block.chain(core.masters()).chain(core.servers()).chain(&self.hosts);
        for &host in all {
            self.sim.set_clock_drift(host, 0);
            self.sim.with_disk_faults(host, |faults| *faults = Default::default());
        }
    }

    /// Waits until more requests to each volume are answered.
    async fn until_answered(&self) -> Result<(), String> {
        let answered = || self.volumes.map(|volume| self.record.answered(volume, 0));
        let (before, end) = (answered(), self.sim.elapsed() + TIMEOUT);
        while answered().iter().zip(before).any(|(now, before)| *now < before + 4) {
            self.stack.verdict()?;
            if self.sim.elapsed() > end {
                let now = answered();
                return Err(format!(
                    "no answers in {TIMEOUT:?} without faults: {before:?}, {now:?}"
                ));
            }
            self.sim.sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// All lose power at once, in the midst of requests, and come back.
    async fn cut_power(self: &Rc<Self>) {
        let end = self.sim.elapsed() + Duration::from_secs(1);
        while self.record.changing() == 0 && self.sim.elapsed() < end {
            self.sim.sleep(Duration::from_micros(50)).await;
        }
        self.sim.sleep(Duration::from_micros(self.draw(500))).await;
        if self.record.changing() > 0
            && let Some(env) = self.sim.env(self.hosts[0])
        {
            env.mark("disks: power is cut amid changes");
        }
        self.stop.set(true);
        let core = self.stack.cluster();
        (0..core.masters().len()).for_each(|index| core.crash_master(index, CrashMode::Power));
        (0..core.servers().len()).for_each(|index| core.crash_server(index, CrashMode::Power));
        (0..MANAGERS).for_each(|index| self.stack.crash(Role::Manager(index), CrashMode::Power));
        (0..SERVERS).for_each(|index| self.stack.crash(Role::Server(index), CrashMode::Power));
        self.hosts.iter().for_each(|&host| self.sim.crash(host, CrashMode::Power));
        self.pause(1, 1000).await;
        core.boot_all();
        self.stack.boot_all();
        (0..HOSTS).for_each(|host| self.boot(host));
    }

    /// All blocks are read, written, and read again, on every host, while nothing fails: by the client
    /// of this number where the volume is exclusive.
    async fn look_everywhere(self: &Rc<Self>, number: u64) -> Result<(), String> {
        let holder = self.stances.borrow().iter().position(|one| matches!(one, Stance::Holds(_)));
        let holder = holder.expect("some host has it");
        for (host, volume) in [(0, SHARED), (1, SHARED), (holder, OWN)] {
            let env = self.sim.env(self.hosts[host]).ok_or("a host has crashed by itself")?;
            let (this, by) = (self.clone(), self.by(volume, number));
            let look = env.clone().spawn(Class::Foreground, "look", async move {
                let end = this.sim.elapsed() + TIMEOUT;
                let mut last = String::new();
                while this.sim.elapsed() < end {
                    match this.look(&env, (host, volume), by).await {
                        Ok(()) => return Ok(()),
                        Err(error) => last = error,
                    }
                    env.sleep(Duration::from_millis(50)).await;
                }
                Err(last)
            });
            let looked = look.await.map_err(|_| "a host has crashed by itself")?;
            looked
                .map_err(|why| format!("{}: not to be had without faults: {why}", NAMES[volume]))?;
        }
        Ok(())
    }

    async fn look(&self, env: &Env, (host, volume): (usize, usize), by: By) -> Result<(), String> {
        let mut to = Connection::open(env, self.addr(host), NAMES[volume], true).await?;
        for block in BLOCKS {
            let blocks = block..block + 1;
            self.read(&mut to, by, blocks.clone()).await?;
            let value = self.record.value();
            let pending = self.record.begin(by, &blocks, Did::Write(value));
            let data = content(value, &blocks);
            to.request(Command::Write, request_flags::FUA, extent(&blocks), &data).await?;
            pending.done();
            self.read(&mut to, by, blocks).await?;
        }
        Ok(())
    }
}
