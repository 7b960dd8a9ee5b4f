//! The role of a chunkserver.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::DiskId;
use chunkserver::{Chunkserver, NewStores, ShardDirectory};
use chunkstore::flash::{Counters, FlashStore};
use chunkstore::{ChunkStore, StoreInfo};
use futures_util::future::LocalBoxFuture;
use metrics::Exposition;
use runtime::sync::{Notify, oneshot, watch};
use runtime::{Class, Duration, Env, Handle};
use transport::{Endpoint, Identity, Limits};
use wire::handshake::ClusterKey;
use wire::token::TokenKey;

use crate::error::Error;
use crate::http::{self, Pages};
use crate::seams::{Plain, Seams, Stores};
use crate::stores::{Unopened, UnopenedState};
use crate::{Build, check_ports, config, format, probe};

#[cfg(test)]
mod tests;

/// Address of shard `index`: each has the next port.
fn shard_addr(config: &config::Chunkserver, index: usize) -> SocketAddr {
    let mut listen = config.listen;
    if listen.port() != 0 {
        listen.set_port(listen.port().saturating_add(index as u16));
    }
    listen
}

/// A running chunkserver, with access to its parts.
pub struct Role<S = FlashStore> {
    /// The first shard, which speaks for the server.
    pub server: Chunkserver<S>,
    /// Its links.
    pub endpoint: Endpoint,
    /// The stores of the shards on this executor.
    pub stores: Vec<S>,
    /// Stores of all shards that did not open at the start, for the operator. Those that were
    /// absent or in use are served once they open.
    pub unopened: Vec<Unopened>,
    /// The stores of all shards.
    pub disks: Disks,
    shards: Vec<OtherShard>,
    /// Shards beside the first on this executor.
    here: Vec<Chunkserver<S>>,
}

/// Options of a chunkserver's start, beside its configuration.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Start {
    /// Obeys requests that make disks fail. Tests only.
    pub fault_injection: bool,
    /// Serves even when all its disks are absent: they were there once, and are served when they
    /// are back. Otherwise the configuration is assumed to be wrong.
    pub without_disks: bool,
    /// Shards that share the first one's executor, each with an address of its own: the simulator
    /// has one executor only.
    pub shards_here: usize,
}

/// Between two attempts to open a disk that did not open at the start. Of a disk that is not there
/// one is an attempt to open a file.
const ABSENT_PAUSE: Duration = Duration::from_secs(1);

impl<S: ChunkStore> Role<S> {
    /// Stores that are not served, as they could not be opened yet.
    pub fn left_out(&self) -> usize {
        self.disks.left_out()
    }

    /// The stores that are served now by shards on this executor, by disk.
    pub fn served(&self) -> Vec<(DiskId, S)>
    where
        S: Clone,
    {
        let shards = [&self.server].into_iter().chain(&self.here);
        shards.flat_map(Chunkserver::stores).collect()
    }

    /// Checkpoints and closes every store.
    pub async fn stop(&self) {
        for shard in &self.shards {
            shard.stop.send_replace(true);
        }
        for shard in [&self.server].into_iter().chain(&self.here) {
            shard.stop().await;
        }
        for shard in &self.shards {
            let mut stopped = shard.stopped.clone();
            let _ = stopped.wait_for(|stopped| *stopped).await; // Ended, or its thread has.
        }
    }
}

/// A shard on another executor.
struct OtherShard {
    stop: watch::Sender<bool>,
    stopped: watch::Receiver<bool>,
}

/// One shard, on its own executor.
struct Shard<S> {
    server: Chunkserver<S>,
    stores: Vec<S>,
    endpoint: Endpoint,
}

/// Environment of the shards of a server.
#[derive(Clone)]
struct Setup<S, T> {
    config: config::Chunkserver,
    stores: S,
    tune: T,
    key: Option<ClusterKey>,
    how: Start,
    shards: usize,
    directory: ShardDirectory,
    disks: Disks,
}

/// Opens the stores and starts serving, on this executor and `others`. A store that cannot be
/// opened is left out, unless none can; one that is absent is served once it is there.
pub async fn start(
    env: &Env,
    config: &config::Chunkserver,
    how: Start,
    others: &[Handle],
) -> Result<Role, Error> {
    start_with(env, config, how, &Seams::none(), Plain, |_| {}, others).await
}

/// The same with seams; `tune` changes values that no configuration has.
pub async fn start_with<S: Stores>(
    env: &Env,
    config: &config::Chunkserver,
    how: Start,
    seams: &Seams,
    stores: S,
    tune: impl Fn(&mut chunkserver::Config) + Clone + Send + 'static,
    others: &[Handle],
) -> Result<Role<S::Store>, Error> {
    let setup = Setup {
        config: config.clone(),
        stores,
        tune,
        key: seams.key(config.key_file.as_deref())?,
        how,
        shards: others.len() + 1 + how.shards_here,
        directory: ShardDirectory::default(),
        disks: Disks::default(),
    };
    let shards = (0..setup.shards).map(|index| shard_addr(config, index));
    check_ports(env, shards.chain(config.metrics)).await?;
    let (mut failed, mut shards) = (Vec::new(), Vec::new());
    for (index, handle) in others.iter().enumerate() {
        let (shard, up) = start_beside(handle, setup.clone(), index + 1);
        failed.extend(up.await.map_err(|_| Error::Executor)??);
        shards.push(shard);
    }
    let mut here = Vec::new();
    let mut stores = Vec::new();
    for index in others.len() + 1..setup.shards {
        let (shard, left_out) = setup.start_shard(env, index).await?;
        failed.extend(left_out);
        stores.extend(shard.stores);
        here.push(shard.server);
    }
    let (first, left_out) = setup.start_shard(env, 0).await?;
    failed.extend(left_out);
    stores.extend(first.stores);
    let may_wait =
        how.without_disks && failed.iter().any(|unopened| unopened.state == UnopenedState::Absent);
    if failed.len() == config.stores.len() && !may_wait {
        let causes: Vec<String> = failed.iter().map(|left| left.error.to_string()).collect();
        return Err(Error::Setup(causes.join("; ")));
    }
    first.server.speak();
    let Shard { server, endpoint, .. } = first;
    Ok(Role { server, endpoint, stores, unopened: failed, disks: setup.disks, shards, here })
}

type Up = oneshot::Receiver<Result<Vec<Unopened>, Error>>;

/// Runs shard `index` on another executor until it is stopped.
fn start_beside<S: Stores>(
    handle: &Handle,
    setup: Setup<S, impl Fn(&mut chunkserver::Config) + Clone + Send + 'static>,
    index: usize,
) -> (OtherShard, Up) {
    let (stop, mut asked) = watch::channel(false);
    let (ended, stopped) = watch::channel(false);
    let (started, up) = oneshot::channel();
    let _running = handle.spawn(async move |env| {
        match setup.start_shard(&env, index).await {
            Ok((shard, left_out)) => {
                let _ = started.send(Ok(left_out)); // The starter may have given up.
                let _ = asked.wait_for(|asked| *asked).await;
                shard.server.stop().await;
            }
            Err(error) => {
                let _ = started.send(Err(error));
            }
        }
        ended.send_replace(true);
    });
    (OtherShard { stop, stopped }, up)
}

impl<S: Stores, T: Fn(&mut chunkserver::Config) + Clone + 'static> Setup<S, T> {
    /// Starts a shard with its share of the stores; returns those that do not open.
    async fn start_shard(
        &self,
        env: &Env,
        index: usize,
    ) -> Result<(Shard<S::Store>, Vec<Unopened>), Error> {
        let config = &self.config;
        let (mut engines, mut opened) = (Vec::new(), Vec::new());
        let (mut failed, mut left_out, mut waiting) = (Vec::new(), Vec::new(), Vec::new());
        for store in config.stores.iter().skip(index).step_by(self.shards) {
            match self.stores.open(env, store).await {
                Ok((engine, disk)) => {
                    engines.push((store.path.display().to_string(), engine));
                    opened.push((store.path.display().to_string(), disk));
                }
                Err(unopened) => {
                    tracing::error!(cause = %unopened.error, "a disk is left out");
                    let reason = unopened.error.to_string();
                    left_out.push((store.path.display().to_string(), reason));
                    if unopened.state != UnopenedState::Unusable {
                        waiting.push(store.clone());
                    }
                    failed.push(unopened);
                }
            }
        }
        let cluster = config::cluster_id(config.cluster.as_deref()).map_err(Error::Setup)?;
        let name = format!("chunkserver {}", config.id);
        let identity = Identity { cluster, key: self.key.clone(), name };
        let endpoint = Endpoint::new(env, identity, Limits::default());
        let listen = shard_addr(config, index);
        let mut settings = chunkserver::Config::new(&config.id, listen, config.masters.clone());
        settings.domain = config.domain.clone().unwrap_or_else(|| config.id.clone());
        settings.heartbeat = Duration::from_millis(config.heartbeat_ms);
        settings.token_key = self.key.as_ref().map(TokenKey::derive);
        settings.scrub_rate = config::mib(config.scrub_mib_per_second) as u64;
        settings.fault_injection = self.how.fault_injection;
        settings.shards = self.shards as u32;
        let unserved: Vec<_> = left_out.iter().map(|(path, _)| path.clone()).collect();
        settings.left_out = left_out;
        (self.tune)(&mut settings);
        self.disks.follow(env, engines);
        let stores = opened.iter().map(|(_, store)| store.clone()).collect();
        let server =
            Chunkserver::shard(env, endpoint.clone(), settings, opened, &self.directory).await?;
        self.disks.leave_out(unserved);
        let waiting = Rc::new(Waiting { stores: RefCell::new(waiting), more: Notify::new() });
        let waits = self.clone().wait_for(env.clone(), server.clone(), waiting.clone());
        env.spawn(Class::Background, "absent disks", waits);
        server.replace_by(Rc::new(Maker { setup: self.clone(), env: env.clone(), waiting }));
        Ok((Shard { server, stores, endpoint }, failed))
    }

    /// Serves disks that did not open at the start, or are replaced, each once it opens.
    async fn wait_for(self, env: Env, server: Chunkserver<S::Store>, waiting: Rc<Waiting>) {
        while !server.has_stopped() {
            let more = waiting.more.notified();
            if waiting.stores.borrow().is_empty() {
                more.await;
                continue;
            }
            env.sleep(env.jitter(ABSENT_PAUSE)).await;
            let now = waiting.stores.borrow().clone();
            for store in now {
                let path = store.path.display().to_string();
                match self.stores.open(&env, &store).await {
                    Ok((engine, disk)) => {
                        waiting.remove(&store);
                        tracing::info!(path, "a disk that was absent is served");
                        if let Err(disk) = server.add_disk(path.clone(), disk) {
                            let _ = disk.close().await; // The server has stopped.
                            return;
                        }
                        self.disks.take_back(&path);
                        self.disks.follow(&env, vec![(path, engine)]);
                    }
                    Err(Unopened { error, state: UnopenedState::Unusable }) => {
                        waiting.remove(&store);
                        tracing::error!(cause = %error, "a disk stays left out");
                        server.leave_out(&path, error.to_string());
                    }
                    Err(Unopened { error, .. }) => server.leave_out(&path, error.to_string()),
                }
            }
        }
    }
}

/// Stores of a shard that are served once they open.
struct Waiting {
    stores: RefCell<Vec<config::Store>>,
    more: Notify,
}

impl Waiting {
    fn remove(&self, store: &config::Store) {
        self.stores.borrow_mut().retain(|it| it.path != store.path);
    }
}

/// Makes stores in place of disks that an operator replaces.
struct Maker<S, T> {
    setup: Setup<S, T>,
    env: Env,
    waiting: Rc<Waiting>,
}

impl<S: Stores, T> Maker<S, T> {
    fn configured(&self, path: &str) -> Result<config::Store, String> {
        let stores = &self.setup.config.stores;
        let found = stores.iter().find(|store| store.path.display().to_string() == path);
        found.cloned().ok_or_else(|| format!("no store is configured at {path}"))
    }
}

impl<S: Stores, T: 'static> NewStores for Maker<S, T> {
    fn check(&self, path: &str) -> LocalBoxFuture<'static, Result<(), String>> {
        let (env, found) = (self.env.clone(), self.configured(path));
        Box::pin(async move {
            let found = format::check_empty(&env, &found?.path).await;
            found.map_err(|error| error.to_string())
        })
    }

    fn make(&self, path: &str) -> LocalBoxFuture<'static, Result<DiskId, String>> {
        let (env, found) = (self.env.clone(), self.configured(path));
        let (waiting, disks) = (self.waiting.clone(), self.setup.disks.clone());
        Box::pin(async move {
            let store = found?;
            if !waiting.stores.borrow().iter().any(|it| it.path == store.path) {
                disks.leave_out([store.path.display().to_string()]);
                waiting.stores.borrow_mut().push(store.clone());
                waiting.more.notify_waiters();
            }
            let options = format::options(store.unit_kib, store.capacity());
            let made = format::store(&env, &store.path, &options).await;
            made.map_err(|error| error.to_string())
        })
    }
}

/// The stores of a server as they were a second ago at most, from all executors.
#[derive(Clone, Default)]
pub struct Disks(Arc<Mutex<Samples>>);

#[derive(Default)]
struct Samples {
    by_path: BTreeMap<String, DiskSample>,
    /// Numbers of those that are followed, by path: a later one takes the place of one before.
    followed: BTreeMap<String, u64>,
    /// Paths of those that are not served.
    left_out: BTreeSet<String>,
}

/// One store at a moment.
#[derive(Clone, Debug)]
pub struct DiskSample {
    /// Space and state.
    pub info: StoreInfo,
    /// Its counters.
    pub counters: Counters,
}

impl Disks {
    /// All of them, by path.
    pub fn samples(&self) -> BTreeMap<String, DiskSample> {
        self.lock().by_path.clone()
    }

    /// Stores that are not served.
    fn left_out(&self) -> usize {
        self.lock().left_out.len()
    }

    fn leave_out(&self, paths: impl IntoIterator<Item = String>) {
        self.lock().left_out.extend(paths);
    }

    fn take_back(&self, path: &str) {
        self.lock().left_out.remove(path);
    }

    /// After a panic of its holder the data is still valid.
    fn lock(&self) -> MutexGuard<'_, Samples> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn follow(&self, env: &Env, stores: Vec<(String, FlashStore)>) {
        let (disks, env) = (self.clone(), env.clone());
        let number = |(path, store): (String, FlashStore)| {
            let mut samples = disks.lock();
            let number = samples.followed.entry(path.clone()).or_default();
            *number += 1;
            (path, *number, store)
        };
        let mut stores: Vec<_> = stores.into_iter().map(number).collect();
        env.clone().spawn(Class::Background, "disk samples", async move {
            while !stores.is_empty() {
                stores.retain(|(path, number, store)| {
                    let sample = DiskSample { info: store.info(), counters: store.counters() };
                    let mut samples = disks.lock();
                    let is_latest = samples.followed.get(path) == Some(number);
                    if is_latest {
                        samples.by_path.insert(path.clone(), sample);
                    }
                    is_latest
                });
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
    build: Build,
    executors: Vec<Handle>,
) -> Result<(), Error> {
    if let Some(addr) = config.metrics {
        http::serve(env, addr, pages(env, role, (&config.id, build), executors)).await?;
    }
    Ok(())
}

/// The chunkserver's HTTP pages.
fn pages(env: &Env, role: &Role, (id, build): (&str, Build), executors: Vec<Handle>) -> Pages {
    let env = env.clone();
    let (server, endpoint) = (role.server.clone(), role.endpoint.clone());
    let disks = role.disks.clone();
    let id = id.to_owned();
    Rc::new(move |path| {
        probe::page(path, || {
            let mut text = Exposition::new();
            let stats: Vec<_> = executors.iter().map(Handle::stats).collect();
            probe::process(&mut text, ("chunkserver", &id, build), &stats);
            probe::operations(&mut text, &env);
            probe::links(&mut text, &endpoint.stats());
            probe::chunkserver(&mut text, &server);
            probe::disks(&mut text, &disks.samples(), disks.left_out());
            text.finish()
        })
    })
}
