//! `craton block-manager`, `craton block-server` and `craton frontend`.

use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;

use block::device::{Options, Shared};
use block::frontend::Frontend;
use block::frontend::tls::{AllowList, Credentials, Gate};
use block::manager::{CoreDevices, Host, Manager, ManagerConfig, Managers, VolumeExports};
use client::Client;
use metrics::Exposition;
use runtime::{Duration, Env, Handle};
use table::Cache;
use transport::{Endpoint, Identity, Limits};
use wire::control::Policy;

use super::http::{self, Pages};
use super::signals::Stop;
use super::{begin, ended, executor, key, probe};
use crate::args::RoleArgs;
use crate::config;
use crate::exit::{Done, Failure, io};
use crate::output::print_line;

/// Between two attempts to reach a master at the start.
const CONNECT_PAUSE: Duration = Duration::from_millis(100);
/// What `craton frontend` tells of an address, as clients take it.
pub const NBD_SCHEME: &str = "nbd://";
/// The same of one that takes TLS.
const NBDS_SCHEME: &str = "nbds://";

/// What all three roles have to know of their cluster.
struct Home<'a> {
    role: &'static str,
    id: &'a str,
    cluster: Option<&'a str>,
    key_file: Option<&'a Path>,
    masters: &'a [SocketAddr],
}

impl Home<'_> {
    fn endpoint(&self, env: &Env) -> Result<Endpoint, Failure> {
        let identity = Identity {
            cluster: config::cluster_id(self.cluster).map_err(Failure::setup)?,
            key: key(self.key_file)?,
            name: format!("{} {}", self.role, self.id),
        };
        Ok(Endpoint::new(env, identity, Limits::default()))
    }

    /// A client of the core, as soon as a master answers.
    async fn connect(
        &self,
        env: &Env,
        endpoint: &Endpoint,
        config: client::Config,
    ) -> Result<Client, Failure> {
        loop {
            let masters = self.masters.to_vec();
            match Client::connect(env, endpoint.clone(), masters, config.clone()).await {
                Err(client::Error::Unavailable { cause, .. }) => {
                    tracing::warn!(cause, "no master answers yet");
                    env.sleep(CONNECT_PAUSE).await;
                }
                connected => return Ok(connected?),
            }
        }
    }
}

/// Runs a block manager until it is asked to end.
pub fn run_manager(args: &RoleArgs) -> Done {
    let config: config::BlockManager = config::read(&args.config)?;
    if args.check {
        return print_line(&format!("{} is good", args.config.display()));
    }
    begin("block-manager", &config.id, &config.log)?;
    ended(serve_manager(&config))
}

fn serve_manager(config: &config::BlockManager) -> Done {
    let stop = Stop::install()?;
    let runtime = executor(&config.id, config.memory_mib, &config.log)?;
    let (env, handle) = (runtime.env(), runtime.handle());
    runtime.block_on(async {
        let Some(role) = until(&stop, start_manager(env, config)).await else { return Ok(()) };
        let role = role?;
        role.show(config, handle).await?;
        print_line(&format!("block-manager {} serves on {}", config.id, role.manager.addr()))?;
        stop.asked().await;
        role.stop().await;
        Ok(())
    })
}

/// What comes first: the answer, or the request to end.
async fn until<T>(stop: &Stop, work: impl Future<Output = T>) -> Option<T> {
    use futures_util::future::{Either, select};
    let (stop, work) = (std::pin::pin!(stop.asked()), std::pin::pin!(work));
    match select(stop, work).await {
        Either::Left(_) => None,
        Either::Right((done, _)) => Some(done),
    }
}

/// A running block manager.
pub struct ManagerRole {
    manager: Manager,
    endpoint: Endpoint,
    env: Env,
}

impl ManagerRole {
    /// Serves its metrics, where the configuration has an address for them.
    pub async fn show(&self, config: &config::BlockManager, handle: Handle) -> Done {
        let Some(addr) = config.metrics else { return Ok(()) };
        let of = ("block-manager", config.id.clone(), handle);
        show(&self.env, addr, of, self.endpoint.clone(), |_| ()).await
    }

    /// True while it leads.
    pub fn leads(&self) -> bool {
        self.manager.leads()
    }

    /// Gives the lead up and ends.
    pub async fn stop(&self) {
        self.manager.stop().await;
        self.endpoint.close();
    }
}

/// Serves the metrics of a process: its role, ID and executor, and what is its `own`.
async fn show(
    env: &Env,
    addr: SocketAddr,
    (role, id, handle): (&'static str, String, Handle),
    endpoint: Endpoint,
    own: impl Fn(&mut Exposition) + 'static,
) -> Done {
    let shown = env.clone();
    let pages: Pages = Rc::new(move |path| {
        probe::page(path, || {
            let mut text = Exposition::new();
            probe::process(&mut text, role, &id, &[handle.stats()]);
            probe::operations(&mut text, &shown);
            probe::links(&mut text, &endpoint.stats());
            own(&mut text);
            text.finish()
        })
    });
    http::serve(env, addr, pages).await.map(drop)
}

/// Starts a block manager.
pub async fn start_manager(
    env: &Env,
    config: &config::BlockManager,
) -> Result<ManagerRole, Failure> {
    let home = Home {
        role: "block-manager",
        id: &config.id,
        cluster: config.cluster.as_deref(),
        key_file: config.key_file.as_deref(),
        masters: &config.masters,
    };
    let endpoint = home.endpoint(env)?;
    let client = home.connect(env, &endpoint, client::Config::default()).await?;
    let lock_ttl = Duration::from_millis(config.lock_ms);
    // Its questions about the lock end well before the lock's lease does.
    let short = client::Config {
        control_attempt: lock_ttl / 4,
        control_budget: lock_ttl * 3 / 4,
        ..client::Config::default()
    };
    let locks = home.connect(env, &endpoint, short).await?;
    let settings = ManagerConfig {
        name: config.id.clone(),
        listen: config.listen,
        lock_ttl,
        policy: Policy::rep(config.copies),
        bytes_least: config::mib(config.volume_mib_min) as u64,
        server_dead: Duration::from_millis(config.server_dead_ms),
    };
    let manager = Manager::start(client, locks, endpoint.clone(), settings).await?;
    Ok(ManagerRole { manager, endpoint, env: env.clone() })
}

/// Runs a block server until it is asked to end.
pub fn run_server(args: &RoleArgs) -> Done {
    let config: config::BlockServer = config::read(&args.config)?;
    if args.check {
        return print_line(&format!("{} is good", args.config.display()));
    }
    begin("block-server", &config.id, &config.log)?;
    ended(serve_server(&config))
}

fn serve_server(config: &config::BlockServer) -> Done {
    let stop = Stop::install()?;
    let runtime = executor(&config.id, config.memory_mib, &config.log)?;
    let (env, handle) = (runtime.env(), runtime.handle());
    runtime.block_on(async {
        let Some(role) = until(&stop, start_server(env, config)).await else { return Ok(()) };
        let role = role?;
        role.show(env, config, handle).await?;
        print_line(&format!("block-server {} serves on {}", config.id, config.listen))?;
        stop.asked().await;
        role.stop().await;
        Ok(())
    })
}

/// A running block server.
#[derive(Clone)]
pub struct ServerRole {
    host: Host,
    endpoint: Endpoint,
}

impl ServerRole {
    /// Serves its metrics, where the configuration has an address for them.
    pub async fn show(&self, env: &Env, config: &config::BlockServer, handle: Handle) -> Done {
        let Some(addr) = config.metrics else { return Ok(()) };
        let (of, shown) = (("block-server", config.id.clone(), handle), self.clone());
        let own = move |text: &mut Exposition| probe::block_server(text, &shown.host);
        show(env, addr, of, self.endpoint.clone(), own).await
    }

    /// Closes its segments and ends.
    pub async fn stop(&self) {
        self.host.stop().await;
        self.endpoint.close();
    }
}

/// Starts a block server.
pub async fn start_server(env: &Env, config: &config::BlockServer) -> Result<ServerRole, Failure> {
    let home = Home {
        role: "block-server",
        id: &config.id,
        cluster: config.cluster.as_deref(),
        key_file: config.key_file.as_deref(),
        masters: &config.masters,
    };
    let endpoint = home.endpoint(env)?;
    let client = home.connect(env, &endpoint, client::Config::default()).await?;
    let options =
        Options { scrub_bytes_per_second: config.scrub_mib_s << 20, ..Options::default() };
    let cache = Cache::new(config::mib(config.cache_mib));
    let shared = Shared::new(cache, config::mib(config.index_mib));
    let devices = Rc::new(CoreDevices::new(&client, shared, options));
    let managers = Managers::new(&client);
    let host = Host::start(managers, &endpoint, devices, &config.id, config.listen).await?;
    Ok(ServerRole { host, endpoint })
}

/// Runs a front end until it is asked to end.
pub fn run_frontend(args: &RoleArgs) -> Done {
    let config: config::Frontend = config::read(&args.config)?;
    if args.check {
        return print_line(&format!("{} is good", args.config.display()));
    }
    begin("frontend", &config.id, &config.log)?;
    ended(serve_frontend(&config))
}

fn serve_frontend(config: &config::Frontend) -> Done {
    let stop = Stop::install()?;
    let runtime = executor(&config.id, config.memory_mib, &config.log)?;
    let (env, handle) = (runtime.env(), runtime.handle());
    runtime.block_on(async {
        let Some(role) = until(&stop, start_frontend(env, config)).await else { return Ok(()) };
        let role = role?;
        role.show(env, config, handle).await?;
        let scheme = if config.tls.is_some() { NBDS_SCHEME } else { NBD_SCHEME };
        print_line(&format!("frontend {} serves on {scheme}{}", config.id, config.nbd))?;
        stop.asked().await;
        role.stop();
        Ok(())
    })
}

/// A running front end.
#[derive(Clone)]
pub struct FrontendRole {
    frontend: Frontend,
    exports: Rc<VolumeExports>,
    endpoint: Endpoint,
}

impl FrontendRole {
    /// Serves its metrics, where the configuration has an address for them.
    pub async fn show(&self, env: &Env, config: &config::Frontend, handle: Handle) -> Done {
        let Some(addr) = config.metrics else { return Ok(()) };
        let (of, shown) = (("frontend", config.id.clone(), handle), self.clone());
        let own =
            move |text: &mut Exposition| probe::frontend(text, &shown.frontend, &shown.exports);
        show(env, addr, of, self.endpoint.clone(), own).await
    }

    /// Takes no more connections, and ends.
    pub fn stop(&self) {
        self.frontend.close();
        self.endpoint.close();
    }
}

/// What lets other machines in.
fn gate(config: &config::Frontend, files: &config::FrontendTls) -> Result<Gate, Failure> {
    let read = |path: &Path| std::fs::read(path).map_err(|error| io("read", path, &error));
    let (certificate, key) = (read(&files.certificate)?, read(&files.key)?);
    let client_ca = read(&files.client_ca)?;
    let credentials = Credentials { certificate: &certificate, key: &key, client_ca: &client_ca };
    let allow = AllowList::new(config.exports.clone());
    Gate::new(credentials, allow).map_err(|error| Failure::setup(format!("[tls] {error}")))
}

/// Starts a front end.
pub async fn start_frontend(env: &Env, config: &config::Frontend) -> Result<FrontendRole, Failure> {
    let home = Home {
        role: "frontend",
        id: &config.id,
        cluster: config.cluster.as_deref(),
        key_file: config.key_file.as_deref(),
        masters: &config.masters,
    };
    let endpoint = home.endpoint(env)?;
    let client = home.connect(env, &endpoint, client::Config::default()).await?;
    let managers = Managers::new(&client);
    let holder = format!("front end {}", config.id);
    let limits = block::volume::Limits::default();
    let exports = Rc::new(VolumeExports::new(&managers, &endpoint, &holder, limits));
    exports.set_direct_reads(config.direct_reads);
    exports.announce(&config.id, config.nbd);
    let frontend = Frontend::new(env, exports.clone(), block::frontend::Limits::default());
    let listening = match &config.tls {
        None => frontend.listen(config.nbd).await,
        Some(files) => frontend.listen_tls(config.nbd, Rc::new(gate(config, files)?)).await,
    };
    listening.map_err(|error| Failure::setup(error.to_string()))?;
    if let Some(path) = &config.nbd_unix {
        let listening = frontend.listen_unix(path).await;
        listening.map_err(|error| Failure::setup(error.to_string()))?;
    }
    Ok(FrontendRole { frontend, exports, endpoint })
}
