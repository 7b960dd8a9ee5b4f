//! `craton up`: all roles in one process.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::pin::pin;

use base::ClusterId;
use futures_util::future::{Either, select};
use roles::{block, chunkserver, master, stores};
use runtime::{Duration, Env, Handle};

use super::objects::{self, Objects};
use super::process::until;
use super::signals::Stop;
use super::{BUILD, ended, executor, prepare_tracer, warn_unopened};
use crate::args::{Nearby, RoleName, UpArgs};
use crate::cluster::{
    ClusterFile, Directory, DirectoryState, EMBEDDED_LOCK, Process, Reserved, S3Access,
    check_new_store, config_path, format_new_stores, refuse_other_key, refuse_other_s3,
};
use crate::exit::{Code, Done, Failure, io};
use crate::file_lock::{FileLock, lock};
use crate::output::{self, warn};
use roles::config::{self, Logging, Peer, Store};

/// MiB of buffers of the one process.
const MEMORY_MIB: u64 = 512;
/// Between the heartbeats of the one master, ms. The Raft library's clock ticks five times in it
/// for each group.
const HEARTBEAT_MS: u64 = 1000;
/// Wait for the roles to find each other.
const JOIN_WAIT: Duration = Duration::from_secs(30);
/// Wait for the services to end when the master has failed.
const FAILED_END_WAIT: Duration = Duration::from_secs(10);

/// Runs all roles until the process is asked to end.
pub fn run(args: UpArgs) -> Done {
    let dir = match &args.dir {
        Some(dir) => dir.clone(),
        None => default_dir()?,
    };
    let runtime = executor("craton", MEMORY_MIB, &Logging::default())?;
    let env = runtime.env();
    runtime.block_on(async {
        if Directory::existing(&dir).is_err() {
            check_first_start(env, &dir, &args).await?;
        }
        let (directory, state) = Directory::open_or_make(&dir)?;
        let marker = directory.path().join(EMBEDDED_LOCK);
        if state == DirectoryState::Cluster && !marker.exists() {
            return Err(Failure::setup(format!(
                "{} belongs to 'craton cluster up': start it with that, or name another directory",
                directory.path().display()
            )));
        }
        let held = claim(env, &marker).await?;
        let plan = match state {
            DirectoryState::Free => make(env, &directory, &args).await?,
            DirectoryState::Cluster => load(env, &directory, &args).await?,
        };
        let directory_path = directory.path().to_owned();
        let log = Logging { dir: Some(directory_path.join("log")), ..Logging::default() };
        let _log = super::begin("up", "up", &log)?;
        directory.warn_keyless()?;
        if directory.key()?.is_none() {
            // The log is a file here.
            warn(&format!("{} has no key: see the log", directory_path.display()));
        }
        // Commands may look at the directory from here on.
        drop(directory);
        let done = ended(serve(env, &runtime.handle(), &directory_path, &plan).await);
        drop(held);
        done
    })
}

fn default_dir() -> Result<PathBuf, Failure> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let data = set("XDG_DATA_HOME").map(PathBuf::from);
    let data = data.or_else(|| set("HOME").map(|home| Path::new(&home).join(".local/share")));
    data.map(|data| data.join("craton"))
        .ok_or_else(|| Failure::usage("HOME is not set: name a directory with --dir"))
}

async fn claim(env: &Env, path: &Path) -> Result<FileLock, Failure> {
    let mut tries = 0;
    loop {
        match lock(path, "'craton up' runs on this directory already: stop it, or name another") {
            // Another process may just be checking whether it is held.
            Err(_) if tries < 5 => tries += 1,
            locked => return locked,
        }
        env.sleep(Duration::from_millis(20)).await;
    }
}

/// When a store is missing and the block service takes longer than this, the others are shown to
/// serve without it. Longer than the lock of a block manager that was killed.
const DEGRADED_WAIT: Duration = Duration::from_secs(5);

/// The roles' configurations.
struct Plan {
    book: ClusterFile,
    master: config::Master,
    chunkservers: Vec<config::Chunkserver>,
    block: Block,
    objects: Option<(config::ObjectManager, config::ObjectServer, config::Gateway)>,
    /// Those of new roles: no other command gets them before they listen.
    ports: Reserved,
}

/// The configurations of the block service's roles.
#[derive(Default)]
struct Block {
    manager: Option<config::BlockManager>,
    server: Option<config::BlockServer>,
    frontend: Option<config::Frontend>,
}

impl Block {
    /// Reads the configurations that the cluster file names.
    fn read(book: &ClusterFile) -> Result<Block, Failure> {
        let mut block = Block::default();
        for process in &book.processes {
            let path = config_path(&process.dir, process.role);
            match process.role {
                RoleName::BlockManager => block.manager = Some(config::read(&path)?),
                RoleName::BlockServer => block.server = Some(config::read(&path)?),
                RoleName::Frontend => block.frontend = Some(config::read(&path)?),
                RoleName::Master
                | RoleName::Chunkserver
                | RoleName::ObjectManager
                | RoleName::ObjectServer
                | RoleName::Gateway => {}
            }
        }
        Ok(block)
    }
}

fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(|error| io("use", path, &error))
}

/// Finds causes that would stop the first start, before anything is written.
async fn check_first_start(env: &Env, dir: &Path, args: &UpArgs) -> Done {
    args.nearby.group()?;
    args.stores.iter().try_for_each(|store| check_store(dir, store))?;
    args.s3.check()?;
    if let Some(addr) = args.listen {
        if addr.ip().is_unspecified() {
            return Err(Failure::usage(format!(
                "--listen {addr} is no address that others can be given: name one of this \
                 machine's, or listen on 127.0.0.1"
            )));
        }
        if args.no_key && !addr.ip().is_loopback() {
            return Err(Failure::usage(format!(
                "--listen {addr} can be reached from other machines, and --no-key lets all of them \
                 in: leave --no-key out, or listen on 127.0.0.1"
            )));
        }
        env.listen(addr).await.map_err(|error| {
            Failure::setup(format!(
                "cannot listen on {addr} ({error}): end the process that uses the address, or \
                 name another with --listen"
            ))
        })?;
    }
    Ok(())
}

/// Checks a store that joins: it exists, and can be used for a cluster in `dir`.
fn check_store(dir: &Path, store: &Path) -> Done {
    check_there(store)?;
    check_new_store(dir, store)
}

/// A store that is not there is not made: its disk may not be mounted.
fn check_there(store: &Path) -> Done {
    if matches!(store.try_exists(), Ok(false)) {
        return Err(Failure::setup(format!(
            "{} is missing: mount its disk, or make a directory for a new store, which this start \
             formats",
            store.display()
        )));
    }
    Ok(stores::medium(store).map(drop)?)
}

/// The first start.
async fn make(env: &Env, directory: &Directory, args: &UpArgs) -> Result<Plan, Failure> {
    let mut stores = Vec::new();
    for store in &args.stores {
        let store = absolute(store)?;
        check_there(&store)?;
        stores.push(store);
    }
    if stores.is_empty() {
        let store = directory.path().join("cs1/store");
        std::fs::create_dir_all(&store).map_err(|error| io("make", &store, &error))?;
        stores.push(store);
    }
    directory.write_key((!args.no_key).then(|| super::random_key(env)).as_ref())?;
    let mut ports = args.listen.map_or_else(Reserved::new, |addr| Reserved::at(addr.ip()));
    let addr = match args.listen.filter(|addr| addr.port() != 0) {
        Some(addr) => addr,
        None => ports.take(env)?,
    };
    let mut raw = [0; 16];
    env.fill_secret(&mut raw);
    let cluster = ClusterId::new(u128::from_le_bytes(raw) | 1);
    let own = Peer { raft_id: 1, id: "m1".to_owned(), addr };
    let mut book = ClusterFile::default();
    let dir = directory.path().join(&own.id);
    let mut master = crate::cluster::plan_master(env, directory, &mut ports, &own, cluster)?;
    master.peers = vec![own];
    // One voter elects itself: no follower waits for its heartbeats, which only cost wake-ups.
    master.heartbeat_ms = HEARTBEAT_MS;
    master.election_ms = 6 * HEARTBEAT_MS;
    directory.write_config(&dir, RoleName::Master, &master)?;
    book.processes.push(Process { role: RoleName::Master, id: "m1".to_owned(), pid: 0, addr, dir });
    book.refresh_endpoints();
    let (chunkservers, block) = (Vec::new(), Block::default());
    let mut plan = Plan { book, master, chunkservers, block, objects: None, ports };
    for store in stores {
        add_store(env, directory, &mut plan, store)?;
    }
    format_stores(env, directory, &plan.chunkservers).await?;
    finish(env, directory, plan, (&args.nearby, &args.s3))
}

/// Formats the stores of new chunkservers: before they are on the list, and never again.
async fn format_stores(env: &Env, directory: &Directory, new: &[config::Chunkserver]) -> Done {
    for server in new {
        format_new_stores(env, &directory.path().join(&server.id), &server.stores).await?;
    }
    Ok(())
}

/// Each store gets a chunkserver of its own, so that copies are on different stores.
fn add_store(env: &Env, directory: &Directory, plan: &mut Plan, store: PathBuf) -> Done {
    let id = format!("cs{}", plan.chunkservers.len() + 1);
    let dir = directory.path().join(&id);
    let (addr, metrics) = (plan.ports.take(env)?, plan.ports.take_local(env)?);
    let config = config::Chunkserver {
        id: id.clone(),
        cluster: None,
        listen: addr,
        masters: plan.book.endpoints.masters.clone(),
        domain: None,
        key_file: directory.key()?.map(|_| directory.key_path()),
        metrics: Some(metrics),
        heartbeat_ms: 250,
        scrub_mib_per_second: 8,
        memory_mib: MEMORY_MIB,
        cores: 1,
        log: Logging::default(),
        stores: vec![Store::small_files(store)],
    };
    directory.write_config(&dir, RoleName::Chunkserver, &config)?;
    plan.chunkservers.push(config);
    plan.book.processes.push(Process { role: RoleName::Chunkserver, id, pid: 0, addr, dir });
    Ok(())
}

/// A further start.
async fn load(env: &Env, directory: &Directory, args: &UpArgs) -> Result<Plan, Failure> {
    let book = directory.read()?;
    let mut master: Option<config::Master> = None;
    let mut chunkservers = Vec::new();
    for process in &book.processes {
        let path = config_path(&process.dir, process.role);
        match process.role {
            RoleName::Master => master = Some(config::read(&path)?),
            RoleName::Chunkserver => chunkservers.push(config::read(&path)?),
            RoleName::BlockManager
            | RoleName::BlockServer
            | RoleName::Frontend
            | RoleName::ObjectManager
            | RoleName::ObjectServer
            | RoleName::Gateway => {}
        }
    }
    let master = master.ok_or_else(|| {
        let path = directory.path().display();
        Failure::setup(format!("{path}/cluster.json names no master: restore it"))
    })?;
    let ports = Reserved::at(master.listen.ip());
    let (block, objects) = (Block::default(), None);
    let mut plan = Plan { book, master, chunkservers, block, objects, ports };
    if let Some(addr) = args.listen.filter(|addr| *addr != plan.master.listen) {
        return Err(Failure::usage(format!(
            "{} listens on {}, not on {addr}: leave --listen out",
            directory.path().display(),
            plan.master.listen
        )));
    }
    refuse_other_key(directory, false, args.no_key)?;
    if args.nearby.is_given() {
        return Err(Failure::usage(format!(
            "how volumes are reached is said at the first start: leave --nbd-group and \
             --no-nbd-tcp out, and change frontend.toml in {}",
            directory.path().display()
        )));
    }
    let known = plan.chunkservers.len();
    add_new_stores(env, directory, args, &mut plan)?;
    format_stores(env, directory, &plan.chunkservers[known..]).await?;
    check_s3(&plan.book, &args.s3)?;
    let nearby = crate::cluster::nearby_of(&plan.book)?;
    finish(env, directory, plan, (&nearby, &args.s3))
}

/// When stores are named, all existing ones must be; new ones join.
fn add_new_stores(env: &Env, directory: &Directory, args: &UpArgs, plan: &mut Plan) -> Done {
    if args.stores.is_empty() {
        return Ok(());
    }
    let asked: Vec<PathBuf> =
        args.stores.iter().map(|store| absolute(store)).collect::<Result<_, _>>()?;
    let known: Vec<PathBuf> = plan
        .chunkservers
        .iter()
        .flat_map(|server| server.stores.iter().map(|store| store.path.clone()))
        .collect();
    if let Some(left_out) = known.iter().find(|path| !asked.contains(path)) {
        return Err(Failure::usage(format!(
            "{} has a store {} that --store does not name: name all of them, or none",
            directory.path().display(),
            left_out.display()
        )));
    }
    let new: Vec<PathBuf> = asked.into_iter().filter(|path| !known.contains(path)).collect();
    new.iter().try_for_each(|store| check_store(directory.path(), store))?;
    for store in new {
        add_store(env, directory, plan, store)?;
    }
    Ok(())
}

/// Refuses flags that S3 cannot be served by, or is not.
fn check_s3(book: &ClusterFile, asked: &S3Access) -> Done {
    match book.processes.iter().find(|process| process.role == RoleName::Gateway) {
        None => asked.check(),
        Some(gateway) => {
            let config = config::read(&config_path(&gateway.dir, gateway.role))?;
            refuse_other_s3(asked, (&config, gateway.addr))
        }
    }
}

/// All roles are this process. Those of the services join directories that were made before there
/// were some.
fn finish(
    env: &Env,
    directory: &Directory,
    mut plan: Plan,
    (nearby, s3): (&Nearby, &S3Access),
) -> Result<Plan, Failure> {
    crate::cluster::plan_block_roles(env, directory, &mut plan.ports, &mut plan.book, nearby)?;
    crate::cluster::plan_objects(env, directory, &mut plan.ports, &mut plan.book, s3)?;
    plan.block = Block::read(&plan.book)?;
    let path = |role| {
        let process = plan.book.processes.iter().find(|one| one.role == role);
        process.map(|one| config_path(&one.dir, role))
    };
    let roles = [RoleName::ObjectManager, RoleName::ObjectServer, RoleName::Gateway].map(path);
    if let [Some(manager), Some(server), Some(gateway)] = roles {
        let (manager, server) = (config::read(&manager)?, config::read(&server)?);
        plan.objects = Some((manager, server, config::read(&gateway)?));
    }
    for process in &mut plan.book.processes {
        process.pid = std::process::id();
    }
    directory.write(&plan.book)?;
    Ok(plan)
}

async fn serve(env: &Env, handle: &Handle, dir: &Path, plan: &Plan) -> Done {
    let stop = Stop::install()?;
    let master = master::start(env, &plan.master).await?;
    master::show(env, &plan.master, &master, BUILD, handle.clone()).await?;
    let mut servers = Vec::new();
    for config in &plan.chunkservers {
        let how = chunkserver::Start { without_disks: true, ..Default::default() };
        prepare_tracer(env.tracer(), &config.log);
        match chunkserver::start(env, config, how, &[]).await {
            Ok(role) => {
                warn_unopened(&config.id, &role);
                chunkserver::show(env, config, &role, BUILD, vec![handle.clone()]).await?;
                servers.push(role);
            }
            // The other stores may do without it.
            Err(error) if plan.chunkservers.len() > 1 => warn(&error.to_string()),
            Err(error) => return Err(error.into()),
        }
    }
    let stores = servers.iter().filter(|role| role.left_out() == 0).count();
    if stores == 0 {
        return Err(Failure::setup("no store can be opened, see the warnings"));
    }
    let joined = async {
        master.master.ready().await;
        while master.live_servers().await < servers.len() {
            env.sleep(Duration::from_millis(20)).await;
        }
    };
    if env.timeout(JOIN_WAIT, joined).await.is_err() {
        return Err(Failure::setup(format!(
            "the roles did not find each other in {JOIN_WAIT:?}: see {}",
            dir.join("log").display()
        )));
    }
    let services = RefCell::new(Services::default());
    let mut starting = Box::pin(start_services(env, handle, (dir, plan), &services));
    let missing = plan.chunkservers.len() - stores;
    let limit = if missing == 0 { JOIN_WAIT } else { DEGRADED_WAIT };
    let mut failing = pin!(master::failure(env, &master.master));
    let started = {
        let started = pin!(env.timeout(limit, &mut starting));
        match select(failing.as_mut(), started).await {
            Either::Left((cause, _)) => Err(cause),
            Either::Right((started, _)) => Ok(started),
        }
    };
    let failed = match started {
        Err(cause) => Some(cause),
        Ok(Ok(started)) => {
            started?;
            announce(dir, plan, stores, services.borrow().objects.as_ref());
            until(&stop, failing).await
        }
        Ok(Err(_)) if missing == 0 => {
            return Err(Failure::setup(format!(
                "the services did not start in {limit:?}: see {}",
                dir.join("log").display()
            )));
        }
        Ok(Err(_)) => {
            warn(
                "volumes and objects are not served yet: these services wait for the \
                 stores that are missing, since their files want two copies; files can be read",
            );
            announce(dir, plan, stores, None);
            let served = pin!(services_later(&stop, starting));
            match select(failing, served).await {
                Either::Left((cause, _)) => Some(cause),
                Either::Right((served, _)) => {
                    served?;
                    None
                }
            }
        }
    };
    let services = services.take().stop(env);
    match failed {
        // They ask the master as they end: what it does not answer is left to the next start.
        Some(_) => {
            let _ = env.timeout(FAILED_END_WAIT, services).await;
        }
        None => services.await,
    }
    for server in &servers {
        server.stop().await;
    }
    master.master.shutdown().await;
    master.endpoint.close();
    output::announce("stopped");
    failed.map_or(Ok(()), |cause| Err(Failure::new(Code::Damage, cause)))
}

/// The running roles of the services.
#[derive(Default)]
struct Services {
    objects: Option<Objects>,
    manager: Option<block::ManagerRole>,
    server: Option<block::ServerRole>,
    frontend: Option<block::FrontendRole>,
}

impl Services {
    async fn stop(self, env: &Env) {
        if let Some(objects) = self.objects {
            objects.stop(env).await;
        }
        // Before the roles that it detaches its volumes from.
        if let Some(frontend) = &self.frontend {
            frontend.stop().await;
        }
        if let Some(server) = &self.server {
            server.stop().await;
        }
        if let Some(manager) = &self.manager {
            manager.stop().await;
        }
    }
}

/// Waits until the services have started, and then until the process is asked to end.
async fn services_later(stop: &Stop, starting: impl Future<Output = Done> + Unpin) -> Done {
    let asked = pin!(stop.asked());
    match select(asked, starting).await {
        Either::Left(_) => Ok(()),
        Either::Right((started, asked)) => {
            started?;
            output::announce("volumes and objects are served");
            asked.await;
            Ok(())
        }
    }
}

/// Ends when the services serve: at once, unless a previous process was killed and its locks last,
/// or stores are missing. Started roles are in `roles`.
async fn start_services(
    env: &Env,
    handle: &Handle,
    (dir, plan): (&Path, &Plan),
    roles: &RefCell<Services>,
) -> Done {
    let configs = &plan.block;
    if let Some(config) = &configs.manager {
        let manager = block::start_manager(env, config).await?;
        roles.borrow_mut().manager = Some(manager.clone());
        while !manager.leads() {
            env.sleep(Duration::from_millis(10)).await;
        }
        manager.show(config, BUILD, handle.clone()).await?;
    }
    if let Some(config) = &configs.server {
        let server = block::start_server(env, config).await?;
        roles.borrow_mut().server = Some(server.clone());
        server.show(env, config, BUILD, handle.clone()).await?;
    }
    if let Some(config) = &configs.frontend {
        let frontend = block::start_frontend(env, config).await?;
        roles.borrow_mut().frontend = Some(frontend.clone());
        frontend.show(env, config, BUILD, handle.clone()).await?;
    }
    if let Some(configs) = &plan.objects {
        let objects = objects::start(env, handle, dir, configs).await?;
        roles.borrow_mut().objects = Some(objects);
    }
    Ok(())
}

fn announce(dir: &Path, plan: &Plan, stores: usize, objects: Option<&Objects>) {
    use std::os::unix::fs::MetadataExt;
    let copies = match stores {
        1 if plan.chunkservers.len() > 1 => {
            "new files wait for the stores that are missing, since they get two copies".to_owned()
        }
        1 => "new files get one copy: name more --store on other disks for more".to_owned(),
        stores => format!("new files get up to {} copies", stores.min(3)),
    };
    let device = |server: &config::Chunkserver| {
        let path = &server.stores.first()?.path;
        std::fs::metadata(path).ok().map(|facts| facts.dev())
    };
    let mut devices: Vec<_> = plan.chunkservers.iter().filter_map(device).collect();
    devices.sort_unstable();
    devices.dedup();
    if devices.len() < plan.chunkservers.len().min(3) && plan.chunkservers.len() > 1 {
        warn("stores share a disk: its failure takes several copies");
    }
    let plural = if stores == 1 { "" } else { "s" };
    output::announce(&format!(
        "craton is up on {} with {stores} store{plural}; {copies}\nmasters: {}\n{}{}\
         export CRATON_CLUSTER={0}",
        dir.display(),
        plan.master.listen,
        plan.book
            .endpoints
            .nbd
            .as_ref()
            .map_or(String::new(), |nbd| format!("volumes: {nbd}/NAME\n")),
        objects.map_or(String::new(), |it| objects::text(dir, &it.access, it.is_new))
    ));
}
