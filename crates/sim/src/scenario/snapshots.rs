//! Snapshots of a volume of several segments, on the whole stack: chunkservers, masters, block
//! managers and block servers, of which the last two crash in every phase, under writers that do
//! not pause. Of each snapshot: all that was answered before it was asked for is in it, all that
//! began after it was there is not. It is a consistent cut: if a write is in it, so is every write,
//! to any segment, that was answered before that one began (`protocols.md` 6.6). Clones, writes to
//! them, and the volume have all that was answered; at the end nothing is left of what was removed.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use base::Kind;
use block_client::{Limits, VolumeExports};
use block_proto::{BlockReply, BlockRequest, Managers, VolumeGeometry, VolumeInfo, VolumeSpec};
use block_volume::contract::Device;
use block_volume::export::Exports;
use block_volume::geometry::Extent;
use block_volume::ids::VolumeId;
use block_volume::limits::BLOCK;
use block_volume::qos::VolumeLimits;
use client::Client;
use runtime::sim::{CrashMode, Sim};
use runtime::{Class, Env, Rng};

use super::policy;
use super::stack::Stack;
use super::stored::check_all;
use crate::cluster::{Cluster, Shape};
use crate::tuning::Tuning;

const MANAGERS: usize = 2;
const SERVERS: usize = 3;
/// Bytes of a DataFile.
const FILE_BYTES: u64 = 128 << 10;
/// Bytes of a volume: four segments of 512 KiB.
const BYTES: u64 = 2 << 20;
const SECTOR: u64 = 64 << 10;
/// Blocks in use, over all segments; each has one writer, whose values count up.
const BLOCKS: u64 = 48;
const WORKERS: u64 = 6;
const LOAD: Duration = Duration::from_secs(5);
/// The same where the process that makes a snapshot, or opens a clone, is killed repeatedly.
const LOAD_MAX: Duration = Duration::from_secs(20);
/// Pause between two writes of a worker, at most: a write costs a hundred events with all that
/// follows from it, so few writes make a seed cheap.
const THINK: Duration = Duration::from_millis(40);
/// Snapshots of a run, at least.
const SNAPSHOTS_MIN: usize = 2;
const NAME: &str = "v";
/// Forced removals of one snapshot, and clonings of it at the same time, at most each.
const REMOVALS: usize = 2;
const CLONERS: usize = 2;
const CLONES_MAX: usize = 3;

/// A write that was begun.
#[derive(Clone, Copy, Debug)]
struct Written {
    begun: Duration,
    /// Time of the successful answer.
    answered: Option<Duration>,
}

/// A snapshot that was made.
struct Made {
    name: String,
    asked: Duration,
    there: Duration,
}

struct World {
    stack: Rc<Stack>,
    stop: Cell<bool>,
    /// A snapshot or a clone is under way.
    asking: Cell<bool>,
    /// Writes of each block, in their order.
    written: RefCell<Vec<Vec<Written>>>,
    made: RefCell<Vec<Made>>,
}

/// Offset of a block: eight sectors on, so that neighbours are of different segments.
fn offset(block: u64) -> u64 {
    block * SECTOR % BYTES + block * SECTOR / BYTES * BLOCK
}

pub(super) async fn run(sim: Sim) -> Result<(), String> {
    let shape = Shape { servers: 3, ..Shape::default() }.partitioned(&sim);
    let cluster = Cluster::start(&sim, shape, Tuning::default());
    cluster.settle(Duration::from_secs(30)).await.map_err(|e| format!("at the start: {e}"))?;
    let world = Rc::new(World {
        stack: Stack::start(&cluster, (MANAGERS, SERVERS), FILE_BYTES),
        stop: Cell::new(false),
        asking: Cell::new(false),
        written: RefCell::new(vec![Vec::new(); BLOCKS as usize]),
        made: RefCell::default(),
    });
    let (_, client) = cluster.client(None).await.map_err(|error| error.to_string())?;
    let user = Rc::new(User::new(&world, &client));
    let volume = user.on(user.clone().create()).await??;
    let device = user.on(user.clone().open(NAME.to_owned())).await??;
    let workers: Vec<_> = (0..WORKERS)
        .map(|worker| {
            let rng = Rng::new(sim.with_rng(|rng| rng.next_u64()));
            let work = user.clone().write_always(device.clone(), worker, rng);
            client.env().spawn(Class::Foreground, "lane", work)
        })
        .collect();
    let snapshots = user.clone().snapshot_always(volume.clone());
    let snapshots = client.env().spawn(Class::Foreground, "snapshots", snapshots);
    let injector = sim.spawn("faults", world.clone().inject_faults());
    let (end, at_most) = (sim.elapsed() + LOAD, sim.elapsed() + LOAD_MAX);
    let goes_on = || {
        let few = world.made.borrow().len() < SNAPSHOTS_MIN;
        sim.elapsed() < if few { at_most } else { end }
    };
    while goes_on() && !world.stack.is_broken() {
        sim.sleep(Duration::from_millis(100)).await;
    }
    world.stop.set(true);
    let _ = injector.await; // It ends with the load.
    sim.heal_network();
    world.stack.boot_all();
    let deadline = sim.elapsed() + Duration::from_secs(150);
    while !workers.iter().all(|worker| worker.is_finished()) || !snapshots.is_finished() {
        if sim.elapsed() > deadline {
            return Err("a writer or a snapshot does not end without faults".to_owned());
        }
        sim.sleep(Duration::from_millis(100)).await;
    }
    world.stack.verdict()?;
    drop(device);
    let made = std::mem::take(&mut *world.made.borrow_mut());
    if made.len() < SNAPSHOTS_MIN {
        return Err(format!("only {} snapshots in {LOAD_MAX:?}", made.len()));
    }
    sim.note(made.len() as u64);
    user.on(user.clone().judge(made, volume)).await??;
    user.on(user.clone().until_gone()).await??;
    cluster.settle(Duration::from_secs(60)).await
}

impl World {
    /// Kills and pauses managers and block servers, one at a time, while a snapshot or a clone is
    /// being made, in whatever phase it is.
    async fn inject_faults(self: Rc<Self>) {
        let (stack, sim) = (&self.stack, self.stack.cluster().sim().clone());
        let draw = |bound: usize| sim.with_rng(|rng| rng.below(bound as u64)) as usize;
        while !self.stop.get() && !stack.is_broken() {
            let pause = sim.with_rng(|rng| rng.between(50, 400));
            sim.sleep(Duration::from_millis(pause)).await;
            while !self.asking.get() && !self.stop.get() {
                sim.sleep(Duration::from_millis(5)).await;
            }
            let phase = sim.with_rng(|rng| rng.below(100));
            sim.sleep(Duration::from_millis(phase)).await;
            let role = stack.any();
            if draw(4) == 0 {
                let length = sim.with_rng(|rng| rng.between(20, 900));
                sim.pause(stack.host(role), Duration::from_millis(length));
                continue;
            }
            stack.crash(role, if draw(2) == 0 { CrashMode::Power } else { CrashMode::Process });
            let away = sim.with_rng(|rng| rng.between(1, 600));
            sim.sleep(Duration::from_millis(away)).await;
            stack.boot(role);
        }
    }
}

/// A user of the volume: a host that does not crash.
struct User {
    world: Rc<World>,
    env: Env,
    client: Client,
    managers: Managers,
    exports: VolumeExports,
}

impl User {
    fn new(world: &Rc<World>, client: &Client) -> User {
        let managers = Managers::with_budget(client, Duration::from_secs(120));
        let env = client.env().clone();
        let endpoint = world.stack.cluster().endpoint(&env);
        let limits = Limits { deadline: Duration::from_secs(60), ..Limits::default() };
        let exports = VolumeExports::new(&managers, &endpoint, "user", limits);
        User { world: world.clone(), env, client: client.clone(), managers, exports }
    }

    /// Does something on the user's host.
    async fn on<T: 'static>(&self, work: impl Future<Output = T> + 'static) -> Result<T, String> {
        let done = self.env.spawn(Class::Foreground, "user", work).await;
        done.map_err(|_| "the user's host has crashed".to_owned())
    }

    fn now(&self) -> Duration {
        self.world.stack.cluster().sim().elapsed()
    }

    async fn ask(&self, request: BlockRequest) -> Result<BlockReply, String> {
        let name = request.name();
        self.managers.ask(request).await.map_err(|error| format!("{name}: {error}"))
    }

    async fn volume(&self, request: BlockRequest) -> Result<VolumeInfo, String> {
        match self.ask(request).await? {
            BlockReply::Volume(info) => Ok(info),
            other => Err(format!("no volume: {other:?}")),
        }
    }

    async fn create(self: Rc<Self>) -> Result<VolumeInfo, String> {
        let geometry =
            VolumeGeometry { group_bytes: BYTES, segments_per_group: 4, data_sector: SECTOR };
        let spec = VolumeSpec {
            name: NAME.to_owned(),
            bytes: BYTES,
            geometry,
            policy: policy::drawn_volume(),
            limits: VolumeLimits::default(),
            shared: false,
        };
        self.volume(BlockRequest::Create { nonce: self.env.random_u64(), spec }).await
    }

    async fn open(self: Rc<Self>, name: String) -> Result<Rc<dyn Device>, String> {
        // A device that has just been closed may still be attached.
        for _ in 0..100 {
            match self.exports.open(&name).await {
                Ok(device) => return Ok(device),
                Err(fault) if matches!(fault.kind, Kind::Retry | Kind::Invalid) => {
                    self.env.sleep(Duration::from_millis(100)).await;
                }
                Err(fault) => return Err(format!("open {name}: {fault}")),
            }
        }
        Err(format!("{name} cannot be opened"))
    }

    async fn write(&self, device: &dyn Device, block: u64, value: u64) -> Result<(), base::Fault> {
        let data = value.to_le_bytes().repeat(BLOCK as usize / 8);
        let data = self.env.pool().copy_of(&data);
        let data = data.map_err(|error| base::Fault::new(Kind::Retry, error.to_string()))?;
        device.write(offset(block), data).await
    }

    async fn write_always(self: Rc<Self>, device: Rc<dyn Device>, worker: u64, mut rng: Rng) {
        while !self.world.stop.get() && !self.world.stack.is_broken() {
            let block = worker + WORKERS * rng.below(BLOCKS / WORKERS);
            let (value, at) = {
                let of_block = &mut self.world.written.borrow_mut()[block as usize];
                let value = of_block.len() as u64 + 1;
                of_block.push(Written { begun: self.now(), answered: None });
                (value, of_block.len() - 1)
            };
            match self.write(&*device, block, value).await {
                Ok(()) => {
                    let now = Some(self.now());
                    self.world.written.borrow_mut()[block as usize][at].answered = now;
                }
                Err(fault) if fault.kind == Kind::Fenced => {
                    return self
                        .world
                        .stack
                        .violation(format!("the volume was taken away: {fault}"));
                }
                Err(_) => {} // Its outcome is not known.
            }
            self.env.sleep(Duration::from_micros(rng.below(THINK.as_micros() as u64))).await;
        }
    }

    async fn snapshot_always(self: Rc<Self>, volume: VolumeInfo) {
        let mut number = 0;
        while !self.world.stop.get() && !self.world.stack.is_broken() {
            number += 1;
            let pause = Duration::from_millis(200 + self.env.random_below(600));
            self.env.sleep(pause).await;
            let (nonce, asked) = (self.env.random_u64(), self.now());
            let name = format!("s{number}");
            let request = BlockRequest::Snapshot { nonce, volume: volume.volume, name };
            self.world.asking.set(true);
            let made = self.volume(request).await;
            match made {
                Ok(info) => {
                    let (name, there) = (info.spec.name.clone(), self.now());
                    let made = Made { name, asked, there };
                    let done = match number % 3 {
                        1 => self.clone().clone_early(&info, &made).await,
                        2 => self.clone().remove_amid_clones(&info, &made).await,
                        _ => Ok(()),
                    };
                    if let Err(what) = done {
                        return self.world.stack.violation(what);
                    }
                    if number % 3 != 2 {
                        self.world.made.borrow_mut().push(made);
                    }
                }
                Err(what) => return self.world.stack.violation(what),
            }
            self.world.asking.set(false);
        }
    }

    /// Clones a snapshot that has just been made, and has the clone linked by its first use, all
    /// amid the faults. It has a consistent cut of its own.
    async fn clone_early(self: Rc<Self>, snapshot: &VolumeInfo, made: &Made) -> Result<(), String> {
        let (nonce, name) = (self.env.random_u64(), made.name.replace('@', "-"));
        let request = BlockRequest::Clone { nonce, snapshot: snapshot.volume, name: name.clone() };
        let clone = self.volume(request).await?;
        let made = Made { name, ..*made };
        // Deleted before its first use or after it, it has all of it when it is back.
        if self.env.random_below(2) == 0 {
            self.look(&made).await?;
        }
        let volume = clone.volume;
        self.ask(BlockRequest::Delete { volume, force: true, snapshots: false }).await?;
        self.ask(BlockRequest::Undelete { volume, name: None }).await?;
        self.look(&made).await?;
        self.env.mark("snapshots: a deleted clone came back");
        self.ask(BlockRequest::Remove { volume: clone.volume, force: true }).await.map(drop)
    }

    /// Removes a snapshot by force, by requests that come more than once, while others clone it, all
    /// amid the faults. Every clone that was answered has the snapshot's content, though no client used
    /// it before the snapshot went.
    async fn remove_amid_clones(
        self: Rc<Self>,
        snapshot: &VolumeInfo,
        made: &Made,
    ) -> Result<(), String> {
        let clones: Rc<RefCell<Vec<VolumeInfo>>> = Rc::default();
        // One at least is there before.
        let first = self.clone().clone_once(snapshot.volume, format!("{NAME}-0")).await?;
        clones.borrow_mut().push(first.ok_or("the snapshot is gone before its removal")?);
        let mut tasks = Vec::new();
        for _ in 0..REMOVALS {
            let (this, volume) = (self.clone(), snapshot.volume);
            tasks.push(self.env.spawn(Class::Foreground, "remove", async move {
                this.env.sleep(Duration::from_millis(this.env.random_below(300))).await;
                this.ask(BlockRequest::Remove { volume, force: true }).await.map(drop)
            }));
        }
        for worker in 1..=CLONERS {
            let (this, clones, volume) = (self.clone(), clones.clone(), snapshot.volume);
            tasks.push(self.env.spawn(Class::Foreground, "clone", async move {
                for number in 0..CLONES_MAX {
                    this.env.sleep(Duration::from_millis(this.env.random_below(60))).await;
                    let name = format!("{NAME}-{worker}-{number}");
                    let Some(clone) = this.clone().clone_once(volume, name).await? else { break };
                    clones.borrow_mut().push(clone);
                }
                Ok(())
            }));
        }
        for task in tasks {
            task.await.map_err(|_| "the user's host has crashed".to_owned())??;
        }
        let clones = clones.take();
        self.env.mark("snapshots: removed amid clones");
        for clone in clones {
            self.look(&Made { name: clone.spec.name, ..*made }).await?;
            self.ask(BlockRequest::Remove { volume: clone.volume, force: true }).await?;
        }
        Ok(())
    }

    /// A clone of a snapshot; nothing when the snapshot is gone.
    async fn clone_once(
        self: Rc<Self>,
        snapshot: VolumeId,
        name: String,
    ) -> Result<Option<VolumeInfo>, String> {
        let request = BlockRequest::Clone { nonce: self.env.random_u64(), snapshot, name };
        match self.managers.ask(request).await {
            Ok(BlockReply::Volume(info)) => Ok(Some(info)),
            Ok(other) => Err(format!("no volume: {other:?}")),
            Err(error) if error.kind() == Kind::NotFound => Ok(None),
            Err(error) => Err(format!("clone: {error}")),
        }
    }

    /// The values of all blocks of a volume or snapshot; each block is whole.
    async fn values(&self, device: &dyn Device) -> Result<Vec<u64>, String> {
        let mut values = Vec::new();
        for block in 0..BLOCKS {
            let extent = Extent { offset: offset(block), len: BLOCK };
            let data = device.read(extent).await.map_err(|fault| fault.to_string())?;
            if data.chunks(8).any(|word| word != &data[..8]) {
                return Err(format!("block {block} is half of a write"));
            }
            values.push(u64::from_le_bytes(data[..8].try_into().expect("8 bytes")));
        }
        Ok(values)
    }

    /// Content of a volume or snapshot: a consistent cut of all that was written.
    async fn look(self: &Rc<Self>, made: &Made) -> Result<(Rc<dyn Device>, Vec<u64>), String> {
        let device = self.clone().open(made.name.clone()).await?;
        let values = self.values(&*device).await;
        let checked = values
            .and_then(|values| check(&self.world.written.borrow(), made, &values).map(|()| values));
        checked.map(|values| (device, values)).map_err(|what| format!("{}: {what}", made.name))
    }

    /// Checks the volume and all snapshots, clones one, rolls back to one, and removes everything.
    async fn judge(self: Rc<Self>, made: Vec<Made>, volume: VolumeInfo) -> Result<(), String> {
        // No client writes any more: the volume is what a snapshot would be now.
        let (asked, there) = (self.now(), self.now());
        self.look(&Made { name: NAME.to_owned(), asked, there }).await?;
        let mut last = Vec::new();
        for snapshot in &made {
            let (device, values) = self.look(snapshot).await?;
            if self.write(&*device, 0, 1).await.is_ok() {
                return Err(format!("{} was written to", snapshot.name));
            }
            last = values;
        }
        let name = &made.last().expect("there are some").name;
        let snapshot = self.volume(BlockRequest::Find { name: name.clone() }).await?;
        let nonce = self.env.random_u64();
        let clone = BlockRequest::Clone { nonce, snapshot: snapshot.volume, name: "c".to_owned() };
        let clone = self.volume(clone).await?;
        // Another of which nothing is used before its snapshot goes.
        let late = BlockRequest::Clone {
            nonce: nonce ^ 2,
            snapshot: snapshot.volume,
            name: "late".to_owned(),
        };
        let late = self.volume(late).await?;
        let device = self.clone().open("c".to_owned()).await?;
        if self.values(&*device).await? != last {
            return Err(format!("the clone of {name} has other content"));
        }
        let of_clone = |fault: base::Fault| format!("the clone: {fault}");
        self.write(&*device, 3, u64::MAX).await.map_err(of_clone)?;
        let source = self.clone().open(name.clone()).await?;
        if self.values(&*source).await? != last {
            return Err(format!("a write to the clone changed {name}"));
        }
        drop(source);
        let remove = |volume, force| BlockRequest::Remove { volume, force };
        if self.ask(remove(snapshot.volume, false)).await.is_ok() {
            return Err("a snapshot with a clone was removed unasked".to_owned());
        }
        if self.ask(remove(volume.volume, true)).await.is_ok() {
            return Err("a volume with snapshots was removed".to_owned());
        }
        while self.ask(BlockRequest::Flatten { volume: clone.volume }).await?
            != BlockReply::Shared(0)
        {
            self.env.sleep(Duration::from_millis(100)).await;
        }
        let rollback = BlockRequest::Rollback { nonce: nonce ^ 1, snapshot: snapshot.volume };
        let volume = self.volume(rollback).await?;
        let rolled = self.clone().open(NAME.to_owned()).await?;
        if self.values(&*rolled).await? != last {
            return Err(format!("a rollback to {name} brought other content"));
        }
        drop(rolled);
        // The clone that is to be used late is left alone.
        check_all(&self.managers, &self.exports, &["late"]).await?;
        for snapshot in &made {
            let name = snapshot.name.clone();
            let info = self.volume(BlockRequest::Find { name }).await?;
            self.ask(remove(info.volume, true)).await?;
        }
        self.ask(remove(volume.volume, true)).await?;
        let unused = self.clone().open("late".to_owned()).await?;
        if self.values(&*unused).await? != last {
            return Err("a clone that was used late lost its content".to_owned());
        }
        drop(unused);
        check_all(&self.managers, &self.exports, &[]).await?;
        self.ask(remove(late.volume, true)).await?;
        // The flattened clone needs none of them.
        last[3] = u64::MAX;
        if self.values(&*device).await? != last {
            return Err("the clone changed when its snapshot went".to_owned());
        }
        self.ask(remove(clone.volume, true)).await.map(drop)
    }

    /// Ends when the files of all that was removed or given up are gone.
    async fn until_gone(self: Rc<Self>) -> Result<(), String> {
        let root = block_proto::paths::ROOT;
        let deadline = self.now() + Duration::from_secs(90);
        loop {
            let listed = self.client.list(root, None, 100).await;
            let names: Vec<String> = listed
                .map_err(|error| error.to_string())?
                .entries
                .into_iter()
                .map(|entry| entry.name)
                .collect();
            if names == ["manager"] {
                return Ok(());
            }
            if self.now() > deadline {
                return Err(format!("files of removed volumes are left: {names:?}"));
            }
            self.env.sleep(Duration::from_millis(500)).await;
        }
    }
}

/// Whether what a snapshot shows can be a consistent cut.
fn check(written: &[Vec<Written>], snapshot: &Made, values: &[u64]) -> Result<(), String> {
    let mut latest = (Duration::ZERO, 0, 0);
    for (block, (writes, &value)) in written.iter().zip(values).enumerate() {
        let Some(index) = value.checked_sub(1) else { continue };
        let Some(write) = writes.get(index as usize) else {
            return Err(format!("block {block} has {value}, which was never written"));
        };
        if write.begun > snapshot.there {
            return Err(format!("block {block} has {write:?}, begun after it was there"));
        }
        latest = latest.max((write.begun, block, value));
    }
    for (block, (writes, &value)) in written.iter().zip(values).enumerate() {
        for (later, write) in writes.iter().enumerate().skip(value as usize) {
            let later = later + 1;
            let Some(answered) = write.answered else { continue };
            if answered < snapshot.asked {
                return Err(format!("block {block} has {value}, not {later}, answered before"));
            }
            if answered < latest.0 {
                let (begun, other, has) = latest;
                return Err(format!(
                    "block {block} has {value} and lacks {later}, which was answered before \
                     {has} of block {other} began at {begun:?}: it is no consistent cut"
                ));
            }
        }
    }
    Ok(())
}
