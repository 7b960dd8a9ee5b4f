//! A volume's policy is set while a front end writes to it, and owners of its segments and managers
//! die: files that block servers make from then on have it, those before keep theirs, and each block
//! is linearizable.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use base::FileId;
use block_client::Limits;
use block_proto::paths::segment_path;
use block_proto::{BlockReply, BlockRequest, Managers, VolumeGeometry, VolumeSpec};
use block_volume::geometry::Geometry;
use block_volume::ids::{SegmentId, VolumeId};
use block_volume::qos::VolumeLimits;
use client::Client;
use roles::block::start_frontend_with;
use runtime::sim::{CrashMode, Sim};
use runtime::{Class, Env, Rng};
use wire::control::{Node, Policy};

use super::nbd::Connection;
use super::record::{By, Record};
use super::stack::{Role, Stack};
use crate::cluster::{Cluster, Shape, parse};
use crate::tuning::Tuning;

pub(super) const MARKS: &[&str] = &[
    "volume-policy: a process dies behind a set",
    "volume-policy: all go on",
    "volume-policy: collected into a code",
];

const NAME: &str = "disk";
const PORT: u16 = 10_809;
const LANES: usize = 4;
const BYTES: u64 = 1 << 20;
const SEGMENTS: u32 = 2;
const SECTOR: u64 = 64 << 10;
/// Small: a DataFile ends within a second.
const FILE_BYTES: u64 = 64 << 10;
const BLOCKS: [u64; 4] = [0, 1, 16, 17];
const SERVERS: usize = 3;
const POLICIES: [Policy; 6] = [
    Policy::rep(3),
    Policy::strict(3),
    Policy::rep(2),
    Policy::strict(4),
    Policy::ec(2, 1),
    Policy::ec(3, 1),
];
const ROUNDS: usize = 4;
/// From the answer to a set until owners make files with it: news of the manager, or, where an owner
/// or the manager died, the time until there is another.
const LEARN: Duration = Duration::from_secs(3);
/// Until a file that began before has been given its name, and others have come.
const MORE: Duration = Duration::from_secs(4);

struct World {
    sim: Sim,
    stack: Rc<Stack>,
    volume: VolumeId,
    record: Rc<Record>,
    stop: Cell<bool>,
}

pub(super) async fn run(sim: Sim) -> Result<(), String> {
    let cluster = Cluster::start(&sim, Shape::default(), Tuning::default());
    cluster.settle(Duration::from_secs(30)).await.map_err(|e| format!("at the start: {e}"))?;
    let stack = Stack::start(&cluster, (2, SERVERS), FILE_BYTES);
    let (_, client) = cluster.client(None).await.map_err(|error| error.to_string())?;
    let managers = Managers::with_budget(&client, Duration::from_secs(60));
    let policy = sim.with_rng(|rng| *rng.pick(&POLICIES));
    let geometry =
        VolumeGeometry { group_bytes: BYTES, segments_per_group: SEGMENTS, data_sector: SECTOR };
    let (name, limits) = (NAME.to_owned(), VolumeLimits::default());
    let spec = VolumeSpec { name, bytes: BYTES, geometry, policy, limits, shared: false };
    let volume = ask(&client, &managers, BlockRequest::Create { nonce: 7, spec }).await?;
    let record = Record::new(&sim);
    let stop = Cell::new(false);
    let world = Rc::new(World { sim: sim.clone(), stack, volume, record, stop });
    world.boot();
    sim.sleep(Duration::from_secs(5)).await;
    let mut known = world.files(&client).await?;
    world.judge(&known, &BTreeMap::new(), policy)?;
    let mut last = policy;
    for _ in 0..ROUNDS {
        let others: Vec<_> = POLICIES.into_iter().filter(|policy| *policy != last).collect();
        last = sim.with_rng(|rng| *rng.pick(&others));
        let set = BlockRequest::Set { volume, limits, shared: false, policy: Some(last) };
        ask(&client, &managers, set).await?;
        world.strike();
        sim.sleep(LEARN).await;
        let before = world.files(&client).await?;
        sim.sleep(MORE).await;
        let after = world.files(&client).await?;
        world.judge(&after, &before, last)?;
        if let Some((file, _)) =
            after.iter().find(|(id, it)| known.get(id).is_some_and(|k| k != *it))
        {
            return Err(format!("{file} has another policy than it was made with"));
        }
        known.extend(after);
        world.stack.boot_all();
        world.stack.verdict()?;
    }
    world.stop.set(true);
    sim.sleep(Duration::from_secs(2)).await;
    world.stack.verdict()?;
    world.record.judge(|_| true)
}

/// Asks the managers, from the client's host; the volume of the answer.
async fn ask(
    client: &Client,
    managers: &Managers,
    request: BlockRequest,
) -> Result<VolumeId, String> {
    let managers = managers.clone();
    let asking = client.env().spawn(Class::Foreground, "ask", async move {
        match managers.ask(request).await {
            Ok(BlockReply::Volume(info)) => Ok(info.volume),
            other => Err(format!("no volume: {other:?}")),
        }
    });
    asking.await.map_err(|_| "the operator has crashed")?
}

impl World {
    /// Starts the front end and its clients.
    fn boot(self: &Rc<Self>) {
        let host = self.sim.add_host("host");
        let (env, this) = (self.sim.boot(host), self.clone());
        env.clone().spawn(Class::Control, "boot host", async move {
            let cluster = this.stack.cluster();
            let text = cluster.config_text(env.name(), &cluster.masters_text());
            let config = parse(&format!("{text}nbd = '127.0.0.1:{PORT}'\n"));
            let tune = |_: &mut Limits| {};
            if let Err(error) = start_frontend_with(&env, &config, &cluster.seams(), tune).await {
                return this.stack.violation(format!("a front end did not start: {error}"));
            }
            for _ in 0..LANES {
                let (addr, rng) = (this.sim.addr(host, PORT), Rng::new(env.random_u64()));
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
                let block = *rng.pick(&BLOCKS);
                if let Err(error) = self.act(&mut connection, block, &mut rng).await {
                    return self.stack.violation(format!("a request fails: {error}"));
                }
                env.sleep(Duration::from_millis(rng.below(60))).await;
            }
        }
    }

    async fn act(&self, to: &mut Connection, block: u64, rng: &mut Rng) -> Result<(), String> {
        let geometry = Geometry::new(BYTES, SEGMENTS, SECTOR).expect("it goes up");
        let by = By { volume: self.volume, geometry, epoch: 1, opened: Duration::ZERO };
        self.record.act((&self.stack, by), to, block, rng.one_in(4)).await
    }

    /// In half of the rounds an owner, a manager, or a block server without segments dies.
    fn strike(&self) {
        let role = match self.sim.with_rng(|rng| rng.below(6)) {
            0 | 1 => Role::Server(self.sim.with_rng(|rng| rng.below(SERVERS as u64)) as usize),
            2 => Role::Manager(self.sim.with_rng(|rng| rng.below(2)) as usize),
            _ => return self.sim.mark("volume-policy: all go on"),
        };
        self.sim.mark("volume-policy: a process dies behind a set");
        self.stack.crash(role, CrashMode::Process);
    }

    /// Files of the volume's segments, each with its policy.
    async fn files(&self, client: &Client) -> Result<BTreeMap<FileId, Policy>, String> {
        let (client, volume) = (client.clone(), self.volume);
        let listing = client.env().clone().spawn(Class::Foreground, "list", async move {
            let mut files = BTreeMap::new();
            for index in 0..SEGMENTS {
                let path = segment_path(SegmentId { volume, index });
                for entry in client.list_all(&path).await.map_err(|error| error.to_string())? {
                    if let Node::File { file, policy, .. } = entry.node {
                        files.insert(file, policy);
                    }
                }
            }
            Ok(files)
        });
        listing.await.map_err(|_| "the operator has crashed")?
    }

    /// An error unless there are files that were not there `before`, all made with `policy`: of a code
    /// those that collection has made, the others in its copies.
    fn judge(
        &self,
        files: &BTreeMap<FileId, Policy>,
        before: &BTreeMap<FileId, Policy>,
        policy: Policy,
    ) -> Result<(), String> {
        self.stack.verdict()?;
        let fresh: Vec<_> = files.iter().filter(|(file, _)| !before.contains_key(file)).collect();
        let coded = fresh.iter().filter(|(_, made)| made.is_coded()).count();
        if coded > 0 {
            self.sim.mark("volume-policy: collected into a code");
        }
        match fresh.iter().find(|(_, made)| ![policy, policy.in_copies()].contains(made)) {
            Some((file, made)) => Err(format!("{file} is made with {made}, and {policy} is set")),
            None if fresh.len() == coded => Err(format!("no file is made in {MORE:?}")),
            None => Ok(()),
        }
    }
}
