//! Block servers that die, stand still, or become grey: they get nothing of what others send to them or
//! begin, while their own connections stay, so that their heartbeats come. A front end's requests are
//! answered again within a bound; the server has segments again after it has come back; each block is
//! linearizable. In one seed of three the volume is shared, and two front ends have it open.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use block_client::Limits;
use block_proto::{BlockReply, BlockRequest, Managers, VolumeGeometry, VolumeSpec};
use block_volume::geometry::Geometry;
use block_volume::ids::VolumeId;
use block_volume::limits::BLOCK;
use block_volume::qos::VolumeLimits;
use client::Client;
use roles::block::start_frontend_with;
use runtime::sim::{CrashMode, HostId, Sim};
use runtime::{Class, Env, Rng};

use super::nbd::Connection;
use super::record::{By, Record};
use super::stack::{Role, Stack};
use super::{ownership_views, policy};
use crate::cluster::{Cluster, Shape, parse};
use crate::tuning::Tuning;

const MANAGERS: usize = 2;
const SERVERS: usize = 3;
const NAME: &str = "disk";
const PORT: u16 = 10_809;
/// NBD connections of all front ends; each has one request at a time.
const WORKERS: usize = 4;
/// Four segments, a sector each in turn.
const BYTES: u64 = 1 << 20;
const SEGMENTS: u32 = 4;
const SECTOR: u64 = 64 << 10;
const FILE_BYTES: u64 = 64 << 10;
/// Blocks in use: of each segment some.
const BLOCKS: [u64; 8] = [0, 1, 16, 17, 32, 33, 48, 49];
/// Faults of a run.
const FAULTS: usize = 3;
const THINK: Duration = Duration::from_millis(30);
/// The longest request of an attachment that is alone: the sum is in docs/simulation.md.
const STALL_MAX: Duration = Duration::from_millis(200);
/// The same of a shared volume: a successor waits for the lease of the last owner.
const STALL_SHARED: Duration = Duration::from_millis(700);
/// The same at a segment that moves twice within [`TWICE`], which waits for leases.
const STALL_TWICE: Duration = Duration::from_millis(1100);
/// A lease, and the location lease behind it.
const TWICE: Duration = Duration::from_millis(1000);
/// From the end of a fault until the server has segments again: two seconds of answers, then balance,
/// which does not move a segment twice in half a minute.
const AGAIN_MAX: Duration = Duration::from_secs(45);

/// What a server suffers from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    Grey,
    Still,
    Dead,
}

struct World {
    sim: Sim,
    stack: Rc<Stack>,
    /// Hosts of the front ends: two of a shared volume.
    hosts: Vec<HostId>,
    volume: VolumeId,
    record: Rc<Record>,
    stop: Cell<bool>,
    /// How long requests take is judged from now on.
    judges: Cell<bool>,
    /// Requests that wait: when they began, and their blocks.
    waiting: RefCell<BTreeSet<(Duration, u64)>>,
    /// The longest request, and when it began.
    longest: Cell<(Duration, Duration)>,
    owners: RefCell<Vec<BTreeSet<u32>>>,
    /// Changes of each segment's owner: its last two epochs, and when they were seen first.
    moves: RefCell<BTreeMap<u32, [(u64, Duration); 2]>>,
}

pub(super) async fn run(sim: Sim) -> Result<(), String> {
    let shape = Shape { servers: 4, ..Shape::default() };
    let cluster = Cluster::start(&sim, shape, Tuning::default());
    cluster.settle(Duration::from_secs(30)).await.map_err(|e| format!("at the start: {e}"))?;
    let stack = Stack::start(&cluster, (MANAGERS, SERVERS), FILE_BYTES);
    let (host, client) = cluster.client(None).await.map_err(|error| error.to_string())?;
    let shared = sim.with_rng(|rng| rng.one_in(3));
    let making = client.env().spawn(Class::Foreground, "make", make(client.clone(), shared));
    let volume = making.await.map_err(|_| "the maker of volumes has crashed")??;
    sim.crash(host, CrashMode::Process);
    let world = Rc::new(World {
        sim: sim.clone(),
        stack,
        hosts: (0..1 + u32::from(shared))
            .map(|host| sim.add_host(&format!("host{host}")))
            .collect(),
        volume,
        record: Record::new(&sim),
        stop: Cell::new(false),
        judges: Cell::new(false),
        waiting: RefCell::default(),
        longest: Cell::default(),
        owners: RefCell::new(vec![BTreeSet::new(); SERVERS]),
        moves: RefCell::default(),
    });
    for &host in &world.hosts {
        world.boot(host);
    }
    let watch = sim.spawn("watch", world.clone().watch());
    world.until_answered(Duration::from_secs(60)).await?;
    world.pause(2000, 4000).await;
    world.longest.set(Default::default());
    world.judges.set(true);
    for _ in 0..FAULTS {
        world.strike().await?;
    }
    world.stop.set(true);
    watch.abort();
    world.stack.verdict()?;
    let (longest, at) = world.longest.get();
    sim.note(longest.as_micros() as u64);
    tracing::info!(?longest, ?at, shared, "grey-block: the longest request");
    world.record.judge(|_| true)
}

async fn make(client: Client, shared: bool) -> Result<VolumeId, String> {
    let managers = Managers::with_budget(&client, Duration::from_secs(60));
    let geometry =
        VolumeGeometry { group_bytes: BYTES, segments_per_group: SEGMENTS, data_sector: SECTOR };
    let spec = VolumeSpec {
        name: NAME.to_owned(),
        bytes: BYTES,
        geometry,
        policy: policy::drawn_volume(),
        limits: VolumeLimits::default(),
        shared,
    };
    let nonce = client.env().random_u64();
    match managers.ask(BlockRequest::Create { nonce, spec }).await {
        Ok(BlockReply::Volume(info)) => Ok(info.volume),
        other => Err(format!("no volume was made: {other:?}")),
    }
}

impl World {
    async fn pause(&self, low_ms: u64, high_ms: u64) {
        let length = self.sim.with_rng(|rng| rng.between(low_ms, high_ms));
        self.sim.sleep(Duration::from_millis(length)).await;
    }

    fn is_shared(&self) -> bool {
        self.hosts.len() > 1
    }

    /// Starts a front end, with its own limits, and its clients.
    fn boot(self: &Rc<Self>, host: HostId) {
        let (env, this) = (self.sim.boot(host), self.clone());
        env.clone().spawn(Class::Control, "boot host", async move {
            let cluster = this.stack.cluster();
            let text = cluster.config_text(env.name(), &cluster.masters_text());
            let config = parse(&format!("{text}nbd = '127.0.0.1:{PORT}'\n"));
            let tune = |_: &mut Limits| {};
            let started = start_frontend_with(&env, &config, &cluster.seams(), tune).await;
            if let Err(error) = started {
                return this.stack.violation(format!("a front end did not start: {error}"));
            }
            let addr = this.sim.addr(host, PORT);
            for _ in 0..WORKERS / this.hosts.len() {
                let rng = Rng::new(env.random_u64());
                env.spawn(Class::Foreground, "lane", this.clone().work(env.clone(), addr, rng));
            }
        });
    }

    async fn work(self: Rc<Self>, env: Env, addr: SocketAddr, mut rng: Rng) {
        while !self.stop.get() {
            env.sleep(Duration::from_millis(1 + rng.below(40))).await;
            let open = Connection::open(&env, addr, NAME, true).await;
            let Ok(mut connection) = open else { continue };
            while !self.stop.get() {
                let (began, block) = (self.sim.elapsed(), *rng.pick(&BLOCKS));
                self.waiting.borrow_mut().insert((began, block));
                if let Err(error) = self.act(&mut connection, block, &mut rng).await {
                    self.stack.violation(format!("a request fails: {error}"));
                    return;
                }
                self.waiting.borrow_mut().remove(&(began, block));
                self.note_request(began, block);
                env.sleep(Duration::from_micros(rng.below(THINK.as_micros() as u64))).await;
            }
        }
    }

    /// Judges how long a request took, or has waited.
    fn note_request(&self, began: Duration, block: u64) {
        let took = self.sim.elapsed() - began;
        if took > self.longest.get().0 {
            self.longest.set((took, began));
        }
        let segment = (block * BLOCK / SECTOR % u64::from(SEGMENTS)) as u32;
        let moves = self.moves.borrow();
        let twice = moves.get(&segment).is_some_and(|[(_, before), (_, last)]| {
            *last - *before < TWICE && *last + TWICE > began
        });
        let most = match (twice, self.is_shared()) {
            (true, _) => STALL_TWICE,
            (false, true) => STALL_SHARED,
            (false, false) => STALL_MAX,
        };
        if self.judges.get() && took > most {
            self.stack.violation(format!("a request takes {took:?} from {began:?} on"));
        }
    }

    async fn act(&self, to: &mut Connection, block: u64, rng: &mut Rng) -> Result<(), String> {
        let geometry = Geometry::new(BYTES, SEGMENTS, SECTOR).expect("it goes up");
        let by = By { volume: self.volume, geometry, epoch: 1, opened: Duration::ZERO };
        self.record.act((&self.stack, by), to, block, rng.one_in(3)).await
    }

    /// Compares the beliefs of servers, and notes which has which segment.
    async fn watch(self: Rc<Self>) {
        loop {
            self.sim.sleep(Duration::from_millis(5)).await;
            let longest = self.waiting.borrow().first().copied();
            if let Some((began, block)) = longest {
                self.note_request(began, block);
            }
            let views = self.stack.ownership_views();
            let mut owners = vec![BTreeSet::new(); SERVERS];
            for &(server, (id, epoch, _)) in &views {
                owners[server].insert(id.index);
                let moves = &mut *self.moves.borrow_mut();
                let known = moves.entry(id.index).or_default();
                if epoch > known[1].0 {
                    let now = self.sim.elapsed();
                    // An owner that was dead already was never seen to have it.
                    let before = if epoch > known[1].0 + 1 { (epoch - 1, now) } else { known[1] };
                    *known = [before, (epoch, now)];
                }
            }
            self.owners.replace(owners);
            if let Err(what) = ownership_views::compare(views) {
                self.stack.violation(what);
            }
        }
    }

    fn owned(&self, server: usize) -> usize {
        self.owners.borrow()[server].len()
    }

    /// A server that has segments has a fault for a while.
    async fn strike(&self) -> Result<(), String> {
        let busy: Vec<usize> = (0..SERVERS).filter(|&server| self.owned(server) > 0).collect();
        let server = self.sim.with_rng(|rng| *rng.pick(&busy));
        let host = self.stack.servers()[server];
        let length = self.sim.with_rng(|rng| match rng.below(3) {
            0 => rng.between(500, 2000),
            _ => rng.between(2000, 12_000),
        });
        let fault = self.sim.with_rng(|rng| *rng.pick(&[Fault::Grey, Fault::Still, Fault::Dead]));
        tracing::info!(server, ?fault, length, "grey-block: fault");
        let time = Duration::from_millis(length);
        match fault {
            Fault::Grey => {
                self.sim.set_grey(host, true);
                self.sim.sleep(time).await;
                if self.owned(server) == 0 {
                    self.sim.mark("grey-block: segments leave a grey server");
                } else if length > 2000 {
                    return Err(format!(
                        "server {server} keeps segments for {length} ms, and serves no client"
                    ));
                }
                self.sim.set_grey(host, false);
            }
            Fault::Still => {
                self.sim.pause(host, time);
                // It learns what it has lost when it goes on.
                self.sim.sleep(time + Duration::from_secs(1)).await;
            }
            Fault::Dead => {
                self.stack.crash(Role::Server(server), CrashMode::Process);
                self.sim.sleep(time).await;
                self.stack.boot(Role::Server(server));
            }
        }
        let end = self.sim.elapsed() + AGAIN_MAX;
        while self.owned(server) == 0 {
            if self.sim.elapsed() > end {
                return Err(format!("server {server} has come back, and gets no segment"));
            }
            self.stack.verdict()?;
            self.sim.sleep(Duration::from_millis(20)).await;
        }
        self.pause(1000, 3000).await;
        self.stack.verdict()
    }

    async fn until_answered(&self, most: Duration) -> Result<(), String> {
        let end = self.sim.elapsed() + most;
        while self.record.answered(self.volume, 0) < 50 {
            self.stack.verdict()?;
            if self.sim.elapsed() > end {
                return Err(format!("no answers in {most:?} without faults"));
            }
            self.sim.sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }
}
