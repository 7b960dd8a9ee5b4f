//! `craton chunkserver`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use chunkserver::{Board, Chunkserver};
use chunkstore::flash::{Counters, FlashStore};
use chunkstore::{ChunkStore, StoreInfo};
use metrics::Exposition;
use runtime::sync::{oneshot, watch};
use runtime::{Class, Duration, Env, Handle};
use transport::{Endpoint, Identity, Limits};
use wire::handshake::ClusterKey;
use wire::token::TokenKey;

use super::http::{self, Pages};
use super::signals::Stop;
use super::{begin, check_ports, ended, executor, key, probe, stores};
use crate::args::RoleArgs;
use crate::config;
use crate::exit::{Done, Failure};
use crate::output::print_line;

/// What `craton cluster` repeats of a role's output starts with this.
pub const WARNING: &str = "craton: warning: ";

/// Runs a chunkserver until it is asked to end.
pub fn run(args: &RoleArgs) -> Done {
    let config: config::Chunkserver = config::read(&args.config)?;
    if args.check {
        return print_line(&format!("{} is good", args.config.display()));
    }
    begin("chunkserver", &config.id, &config.log)?;
    ended(serve(&config, args.allow_fault_injection))
}

fn serve(config: &config::Chunkserver, fault_injection: bool) -> Done {
    let stop = Stop::install()?;
    let runtime = executor(&config.id, config.memory_mib, &config.log)?;
    let lanes = lane_count(config);
    // Before the first task: an executor's thread must not wait for another's start.
    let beside = runtime.beside(&config.id, lanes - 1).map_err(|error| {
        Failure::setup(format!("cannot start {lanes} executors ({error}): lower 'cores'"))
    })?;
    let mut executors = vec![runtime.handle()];
    executors.extend(beside.handles().iter().cloned());
    runtime.block_on(async {
        let role = start(runtime.env(), config, fault_injection, beside.handles()).await?;
        show(runtime.env(), config, &role, executors).await?;
        print_line(&format!("chunkserver {} serves on {}", config.id, role.server.addr()))?;
        stop.asked().await;
        role.stop().await;
        Ok(())
    })
}

/// Executors that the server runs on: never more than it has disks, or the machine cores.
fn lane_count(config: &config::Chunkserver) -> usize {
    let most = std::thread::available_parallelism().map_or(1, usize::from);
    let lanes = (config.cores as usize).min(config.stores.len()).min(most).max(1);
    if lanes < config.cores as usize {
        let (asked, disks) = (config.cores, config.stores.len());
        tracing::warn!(asked, lanes, disks, cores = most, "fewer executors than asked for");
    }
    lanes
}

/// Where lane `index` listens: each on the next port.
fn lane_addr(config: &config::Chunkserver, index: usize) -> SocketAddr {
    let mut listen = config.listen;
    if listen.port() != 0 {
        listen.set_port(listen.port().saturating_add(index as u16));
    }
    listen
}

/// A running chunkserver with what is needed to look at it.
pub struct Role {
    /// The first lane, which speaks for the server.
    pub server: Chunkserver<FlashStore>,
    /// Its links.
    pub endpoint: Endpoint,
    /// The stores of all lanes.
    pub disks: Disks,
    /// Stores that could not be opened.
    pub left_out: usize,
    lanes: Vec<OtherLane>,
}

impl Role {
    /// Checkpoints and closes every store.
    pub async fn stop(&self) {
        for lane in &self.lanes {
            lane.stop.send_replace(true);
        }
        self.server.stop().await;
        for lane in &self.lanes {
            let mut stopped = lane.stopped.clone();
            let _ = stopped.wait_for(|stopped| *stopped).await; // Ended, or its thread has.
        }
    }
}

/// A lane on another executor.
struct OtherLane {
    stop: watch::Sender<bool>,
    stopped: watch::Receiver<bool>,
}

/// One lane, on its own executor.
struct Lane {
    server: Chunkserver<FlashStore>,
    endpoint: Endpoint,
}

/// What the lanes of a server start from.
#[derive(Clone)]
struct Setup {
    config: config::Chunkserver,
    key: Option<ClusterKey>,
    fault_injection: bool,
    lanes: usize,
    board: Board,
    disks: Disks,
}

/// Opens the stores and starts serving, on this executor and `others`. A store that cannot be
/// opened is left out, unless none can.
pub async fn start(
    env: &Env,
    config: &config::Chunkserver,
    fault_injection: bool,
    others: &[Handle],
) -> Result<Role, Failure> {
    let setup = Setup {
        config: config.clone(),
        key: key(config.key_file.as_deref())?,
        fault_injection,
        lanes: others.len() + 1,
        board: Board::default(),
        disks: Disks::default(),
    };
    let lanes = (0..setup.lanes).map(|index| lane_addr(config, index));
    check_ports(env, lanes.chain(config.metrics)).await?;
    let (mut failed, mut lanes) = (Vec::new(), Vec::new());
    for (index, handle) in others.iter().enumerate() {
        let (lane, up) = start_beside(handle, setup.clone(), index + 1);
        failed.extend(up.await.map_err(|_| Failure::failed("an executor ended"))??);
        lanes.push(lane);
    }
    let (first, left_out) = setup.start_lane(env, 0).await?;
    failed.extend(left_out);
    let (all, out) = (config.stores.len(), failed.len());
    if all == out {
        let causes: Vec<&str> = failed.iter().map(|failure| failure.message.as_str()).collect();
        return Err(Failure::setup(causes.join("; ")));
    }
    for failure in &failed {
        eprintln!("{WARNING}{}: a disk is left out: {failure}", config.id);
    }
    first.server.speak();
    let Lane { server, endpoint } = first;
    Ok(Role { server, endpoint, disks: setup.disks, left_out: out, lanes })
}

type Up = oneshot::Receiver<Result<Vec<Failure>, Failure>>;

/// Runs lane `index` on another executor until it is stopped.
fn start_beside(handle: &Handle, setup: Setup, index: usize) -> (OtherLane, Up) {
    let (stop, mut asked) = watch::channel(false);
    let (ended, stopped) = watch::channel(false);
    let (told, up) = oneshot::channel();
    let _running = handle.spawn(async move |env| {
        match setup.start_lane(&env, index).await {
            Ok((lane, left_out)) => {
                let _ = told.send(Ok(left_out)); // The one who started it may have given up.
                let _ = asked.wait_for(|asked| *asked).await;
                lane.server.stop().await;
            }
            Err(failure) => {
                let _ = told.send(Err(failure));
            }
        }
        ended.send_replace(true);
    });
    (OtherLane { stop, stopped }, up)
}

impl Setup {
    /// Starts a lane with its share of the stores; those that do not open come back.
    async fn start_lane(&self, env: &Env, index: usize) -> Result<(Lane, Vec<Failure>), Failure> {
        let config = &self.config;
        crate::trace::prepare(env.tracer(), &config.log);
        let (mut opened, mut failed, mut left_out) = (Vec::new(), Vec::new(), Vec::new());
        for store in config.stores.iter().skip(index).step_by(self.lanes) {
            match stores::open(env, store).await {
                Ok(disk) => opened.push((store.path.display().to_string(), disk)),
                Err(failure) => {
                    tracing::error!(cause = %failure, "a disk is left out");
                    left_out.push((store.path.display().to_string(), failure.to_string()));
                    failed.push(failure);
                }
            }
        }
        let cluster = config::cluster_id(config.cluster.as_deref()).map_err(Failure::setup)?;
        let name = format!("chunkserver {}", config.id);
        let identity = Identity { cluster, key: self.key.clone(), name };
        let endpoint = Endpoint::new(env, identity, Limits::default());
        let listen = lane_addr(config, index);
        let mut settings = chunkserver::Config::new(&config.id, listen, config.masters.clone());
        settings.domain = config.domain.clone().unwrap_or_else(|| config.id.clone());
        settings.heartbeat = Duration::from_millis(config.heartbeat_ms);
        settings.token_key = self.key.as_ref().map(TokenKey::derive);
        settings.scrub_rate = config::mib(config.scrub_mib_per_second) as u64;
        settings.fault_injection = self.fault_injection;
        settings.lanes = self.lanes as u32;
        settings.left_out = left_out;
        self.disks.follow(env, opened.clone());
        let server =
            Chunkserver::lane(env, endpoint.clone(), settings, opened, &self.board).await?;
        Ok((Lane { server, endpoint }, failed))
    }
}

/// The stores of a server as they were a second ago at most, from all executors.
#[derive(Clone, Default)]
pub struct Disks(Arc<Mutex<BTreeMap<String, DiskSample>>>);

/// One store at a moment.
#[derive(Clone, Debug)]
pub struct DiskSample {
    /// Space and state.
    pub info: StoreInfo,
    /// What it has done.
    pub counters: Counters,
}

impl Disks {
    /// All of them, by path.
    pub fn samples(&self) -> BTreeMap<String, DiskSample> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn follow(&self, env: &Env, stores: Vec<(String, FlashStore)>) {
        let (disks, env) = (self.clone(), env.clone());
        env.clone().spawn(Class::Background, "disk samples", async move {
            loop {
                for (path, store) in &stores {
                    let sample = DiskSample { info: store.info(), counters: store.counters() };
                    let samples = &mut *disks.0.lock().unwrap_or_else(PoisonError::into_inner);
                    samples.insert(path.clone(), sample);
                }
                env.sleep(Duration::from_secs(1)).await;
            }
        });
    }
}

/// Serves the chunkserver's metrics, where its configuration has an address for them.
pub async fn show(
    env: &Env,
    config: &config::Chunkserver,
    role: &Role,
    executors: Vec<Handle>,
) -> Done {
    if let Some(addr) = config.metrics {
        http::serve(env, addr, pages(env, role, &config.id, executors)).await?;
    }
    Ok(())
}

/// What the chunkserver shows over HTTP.
fn pages(env: &Env, role: &Role, id: &str, executors: Vec<Handle>) -> Pages {
    let env = env.clone();
    let (server, endpoint) = (role.server.clone(), role.endpoint.clone());
    let (disks, left_out) = (role.disks.clone(), role.left_out);
    let id = id.to_owned();
    Rc::new(move |path| {
        probe::page(path, || {
            let mut text = Exposition::new();
            let stats: Vec<_> = executors.iter().map(Handle::stats).collect();
            probe::process(&mut text, "chunkserver", &id, &stats);
            probe::operations(&mut text, &env);
            probe::links(&mut text, &endpoint.stats());
            probe::chunkserver(&mut text, &server);
            probe::disks(&mut text, &disks.samples(), left_out);
            text.finish()
        })
    })
}
