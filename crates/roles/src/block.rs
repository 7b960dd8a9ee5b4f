//! The roles of the block service: managers, servers and front ends.

use std::fs::Permissions;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::rc::Rc;

use block_client::VolumeExports;
use block_manager::{FirstEpochs, Manager, ManagerConfig};
use block_nbd::server::Frontend;
use block_nbd::server::tls::{AllowList, Credentials, TlsPolicy};
use block_proto::Managers;
use block_segment::{Options, Shared};
use block_server::{CoreDevices, Host};
use client::Client;
use metrics::Exposition;
use runtime::{Duration, Env, Handle};
use table::Cache;
use transport::Endpoint;
use wire::control::Policy;

use crate::error::{Error, io};
use crate::home::Home;
use crate::pages::show;
use crate::seams::Seams;
use crate::uses::Directories;
use crate::{Build, config, probe};

/// A manager that keeps a cut for its links renews it often enough for block servers.
const _: () = assert!(
    block_manager::limits::KEEP_CUTS.as_millis() * 3 <= block_segment::limits::CUT_KEEP.as_millis()
);

/// Address of a front end that takes no connections over TCP.
const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// A running block manager.
#[derive(Clone)]
pub struct ManagerRole {
    manager: Manager,
    endpoint: Endpoint,
    client: Client,
    env: Env,
}

impl ManagerRole {
    /// Its address.
    pub fn addr(&self) -> SocketAddr {
        self.manager.addr()
    }

    /// Serves its metrics, where the configuration has an address for them.
    pub async fn show(
        &self,
        config: &config::BlockManager,
        build: Build,
        handle: Handle,
    ) -> Result<(), Error> {
        let Some(addr) = config.metrics else { return Ok(()) };
        let of = ("block-manager", config.id.clone(), build, handle);
        show(&self.env, addr, of, (&self.endpoint, &self.client), |_| ()).await
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

/// Starts a block manager.
pub async fn start_manager(env: &Env, config: &config::BlockManager) -> Result<ManagerRole, Error> {
    start_manager_with(env, config, &Seams::none(), |_| ()).await
}

/// The same with seams; `tune` changes values that no configuration has.
pub async fn start_manager_with(
    env: &Env,
    config: &config::BlockManager,
    seams: &Seams,
    tune: impl FnOnce(&mut ManagerConfig),
) -> Result<ManagerRole, Error> {
    let home = Home {
        role: "block-manager",
        id: &config.id,
        cluster: config.cluster.as_deref(),
        key_file: config.key_file.as_deref(),
        masters: &config.masters,
        seams,
    };
    let endpoint = home.endpoint(env)?;
    let client = home.connect(env, &endpoint, client::Config::default()).await?;
    let lock_ttl = Duration::from_millis(config.lock_ms);
    let locks = home.connect_for_lock(env, &endpoint, lock_ttl).await?;
    let uses = Rc::new(Directories(client.clone()));
    let mut settings = ManagerConfig {
        name: config.id.clone(),
        listen: config.listen,
        lock_ttl,
        policy: Policy::rep(config.copies),
        bytes_least: config::mib(config.volume_mib_min) as u64,
        server_dead: Duration::from_millis(config.server_dead_ms),
        unreached: block_manager::limits::UNREACHED,
        undelete: Duration::from_secs(config.volume_undelete_s),
        first: FirstEpochs::default(),
    };
    tune(&mut settings);
    let clients = (client.clone(), locks);
    let manager = Manager::start(clients, uses, endpoint.clone(), settings).await?;
    Ok(ManagerRole { manager, endpoint, client, env: env.clone() })
}

/// A running block server.
#[derive(Clone)]
pub struct ServerRole {
    host: Host,
    shared: Shared,
    endpoint: Endpoint,
    client: Client,
}

impl ServerRole {
    /// The server of its segments.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Serves its metrics, where the configuration has an address for them.
    pub async fn show(
        &self,
        env: &Env,
        config: &config::BlockServer,
        build: Build,
        handle: Handle,
    ) -> Result<(), Error> {
        let Some(addr) = config.metrics else { return Ok(()) };
        let (of, shown) = (("block-server", config.id.clone(), build, handle), self.clone());
        let own = move |text: &mut Exposition| {
            probe::block_server(text, &shown.host, shown.shared.memory());
        };
        show(env, addr, of, (&self.endpoint, &self.client), own).await
    }

    /// Closes its segments and ends.
    pub async fn stop(&self) {
        self.host.stop().await;
        self.endpoint.close();
    }
}

/// Starts a block server.
pub async fn start_server(env: &Env, config: &config::BlockServer) -> Result<ServerRole, Error> {
    start_server_with(env, config, &Seams::none(), |_| ()).await
}

/// Memory and options of a block server's segments.
#[derive(Clone, Debug)]
pub struct SegmentSettings {
    /// Bytes of table blocks that all segments keep in memory.
    pub cache_bytes: usize,
    /// Bytes of index that all segments keep in memory.
    pub index_bytes: usize,
    /// Bytes of changes that tables' files do not have yet, and of last appends.
    pub write_bytes: usize,
    /// Options of each segment.
    pub options: Options,
}

/// The same with seams; `tune` changes values that no configuration has.
pub async fn start_server_with(
    env: &Env,
    config: &config::BlockServer,
    seams: &Seams,
    tune: impl FnOnce(&mut SegmentSettings),
) -> Result<ServerRole, Error> {
    let home = Home {
        role: "block-server",
        id: &config.id,
        cluster: config.cluster.as_deref(),
        key_file: config.key_file.as_deref(),
        masters: &config.masters,
        seams,
    };
    let endpoint = home.endpoint(env)?;
    let client = home.connect(env, &endpoint, client::Config::default()).await?;
    let mut settings = SegmentSettings {
        cache_bytes: config::mib(config.cache_mib),
        index_bytes: config::mib(config.index_mib),
        write_bytes: config::mib(config.write_mib),
        options: Options { scrub_bytes_per_second: config.scrub_mib_s << 20, ..Options::default() },
    };
    tune(&mut settings);
    let cache = Cache::new(settings.cache_bytes);
    let shared = Shared::bounded(cache, settings.index_bytes, settings.write_bytes);
    let devices = Rc::new(CoreDevices::new(&client, shared.clone(), settings.options));
    let devices = (seams.devices)(env, devices);
    let managers = Managers::new(&client);
    let host = Host::start(managers, &endpoint, devices, &config.id, config.listen).await?;
    Ok(ServerRole { host, shared, endpoint, client })
}

/// A running front end.
#[derive(Clone)]
pub struct FrontendRole {
    frontend: Frontend,
    exports: Rc<VolumeExports>,
    endpoint: Endpoint,
    client: Client,
}

impl FrontendRole {
    /// Serves its metrics, where the configuration has an address for them.
    pub async fn show(
        &self,
        env: &Env,
        config: &config::Frontend,
        build: Build,
        handle: Handle,
    ) -> Result<(), Error> {
        let Some(addr) = config.metrics else { return Ok(()) };
        let (of, shown) = (("frontend", config.id.clone(), build, handle), self.clone());
        let own =
            move |text: &mut Exposition| probe::frontend(text, &shown.frontend, &shown.exports);
        show(env, addr, of, (&self.endpoint, &self.client), own).await
    }

    /// Takes no more connections, answers what was received, detaches all volumes, and ends. The next process of
    /// this ID has its volumes at once then. It takes 4 s at most where block servers or managers do not answer.
    pub async fn stop(&self) {
        self.frontend.stop().await;
        self.exports.close().await;
        self.endpoint.close();
    }
}

/// Lets the users of a group connect to a socket.
fn share(path: &Path, group: u32) -> std::io::Result<()> {
    std::os::unix::fs::chown(path, None, Some(group))?;
    std::fs::set_permissions(path, Permissions::from_mode(0o660))
}

/// The TLS policy for clients on other machines.
fn tls_policy(config: &config::Frontend, files: &config::FrontendTls) -> Result<TlsPolicy, Error> {
    let read = |path: &Path| std::fs::read(path).map_err(|error| io("read", path, &error));
    let (certificate, key) = (read(&files.certificate)?, read(&files.key)?);
    let client_ca = read(&files.client_ca)?;
    let credentials = Credentials { certificate: &certificate, key: &key, client_ca: &client_ca };
    let allow = AllowList::new(config.exports.clone());
    TlsPolicy::new(credentials, allow).map_err(|error| Error::Setup(format!("[tls] {error}")))
}

/// Starts a front end.
pub async fn start_frontend(env: &Env, config: &config::Frontend) -> Result<FrontendRole, Error> {
    start_frontend_with(env, config, &Seams::none(), |_| ()).await
}

/// The same with seams; `tune` changes values that no configuration has.
pub async fn start_frontend_with(
    env: &Env,
    config: &config::Frontend,
    seams: &Seams,
    tune: impl FnOnce(&mut block_client::Limits),
) -> Result<FrontendRole, Error> {
    let home = Home {
        role: "frontend",
        id: &config.id,
        cluster: config.cluster.as_deref(),
        key_file: config.key_file.as_deref(),
        masters: &config.masters,
        seams,
    };
    let endpoint = home.endpoint(env)?;
    let client = home.connect(env, &endpoint, client::Config::default()).await?;
    let managers = Managers::new(&client);
    let holder = format!("front end {}", config.id);
    let mut limits = block_client::Limits::default();
    tune(&mut limits);
    let exports = Rc::new(VolumeExports::new(&managers, &endpoint, &holder, limits));
    exports.set_direct_reads(config.direct_reads);
    // One without a TCP address is shown with port 0.
    exports.announce(&config.id, config.nbd.unwrap_or(NOWHERE));
    let served = (seams.exports)(env, exports.clone());
    let frontend = Frontend::new(env, served, block_nbd::server::Limits::default());
    if let Some(nbd) = config.nbd {
        let listening = match &config.tls {
            None => frontend.listen(nbd).await,
            Some(files) => frontend.listen_tls(nbd, Rc::new(tls_policy(config, files)?)).await,
        };
        listening.map_err(|error| Error::Setup(error.to_string()))?;
    }
    if let Some(path) = &config.nbd_unix {
        let group = config.nbd_group.as_deref().map(config::group_id).transpose();
        let group = group.map_err(|what| Error::Setup(format!("nbd_group: {what}")))?;
        let listening = frontend.listen_unix(path).await;
        listening.map_err(|error| Error::Setup(error.to_string()))?;
        if let Some(group) = group {
            share(path, group).map_err(|error| io("share", path, &error))?;
        }
    }
    Ok(FrontendRole { frontend, exports, endpoint, client })
}
