//! The object service: managers, of which one leads, object servers, and what a gateway's HTTP stands on.
//! The HTTP is the process's to start: it runs on threads of its own.

use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;

use base::ClusterId;
use client::Client;
use metrics::Exposition;
use object_index::limits::{HERE, READY_KEPT};
use object_index::{
    ClientFiles, Files, Local, ObjectManager, ObjectPeer, ObjectServer, RemoteOwners, Service,
    ServiceOptions,
};
use object_proto::{LifecycleDay, Peer, PeerRole};
use runtime::{Class, Duration, Env, Handle};
use tenancy::Contest;
use transport::Endpoint;
use wire::control::Policy;

use crate::error::Error;
use crate::home::Home;
use crate::pages::show;
use crate::seams::Seams;
use crate::{Build, config, probe};

/// A running object manager.
#[derive(Clone)]
pub struct ManagerRole {
    manager: ObjectManager,
    endpoint: Endpoint,
    client: Client,
    addr: SocketAddr,
}

impl ManagerRole {
    /// The manager, which leads while it has the lock.
    pub fn manager(&self) -> &ObjectManager {
        &self.manager
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Serves its metrics, where the configuration has an address for them.
    pub async fn show(
        &self,
        config: &config::ObjectManager,
        build: Build,
        handle: Handle,
    ) -> Result<(), Error> {
        let Some(addr) = config.metrics else { return Ok(()) };
        let of = ("object-manager", config.id.clone(), build, handle);
        let shown = self.manager.clone();
        let own = move |text: &mut Exposition| probe::object_manager(text, &shown);
        show(self.client.env(), addr, of, (&self.endpoint, &self.client), own).await
    }

    /// Gives the lock up and ends.
    pub async fn stop(&self) {
        self.manager.stop().await;
        self.endpoint.close();
    }
}

/// A running object server.
#[derive(Clone)]
pub struct ServerRole {
    server: ObjectServer,
    owners: Rc<RemoteOwners>,
    endpoint: Endpoint,
    client: Client,
    addr: SocketAddr,
}

impl ServerRole {
    /// Owner of ranges.
    pub fn server(&self) -> &ObjectServer {
        &self.server
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Serves its metrics, where the configuration has an address for them.
    pub async fn show(
        &self,
        config: &config::ObjectServer,
        build: Build,
        handle: Handle,
    ) -> Result<(), Error> {
        let Some(addr) = config.metrics else { return Ok(()) };
        let of = ("object-server", config.id.clone(), build, handle);
        let shown = self.server.clone();
        let own = move |text: &mut Exposition| probe::object_server(text, &shown);
        show(self.client.env(), addr, of, (&self.endpoint, &self.client), own).await
    }

    /// Gives its ranges up and ends.
    pub async fn stop(&self) {
        self.server.stop().await;
        self.owners.set_local(Local::default());
        self.endpoint.close();
    }
}

fn home<'a>(
    role: &'static str,
    id: &'a str,
    (cluster, key_file): (Option<&'a str>, Option<&'a Path>),
    masters: &'a [SocketAddr],
    seams: &'a Seams,
) -> Home<'a> {
    Home { role, id, cluster, key_file, masters, seams }
}

/// Starts an object manager.
pub async fn start_manager(
    env: &Env,
    config: &config::ObjectManager,
) -> Result<ManagerRole, Error> {
    start_manager_with(env, config, &Seams::none(), |_| ()).await
}

/// The same with seams; `tune` changes values that no configuration has.
pub async fn start_manager_with(
    env: &Env,
    config: &config::ObjectManager,
    seams: &Seams,
    tune: impl FnOnce(&mut object_index::Config),
) -> Result<ManagerRole, Error> {
    crate::check_ports(env, [config.listen]).await?;
    let of = (config.cluster.as_deref(), config.key_file.as_deref());
    let home = home("object-manager", &config.id, of, &config.masters, seams);
    let endpoint = home.endpoint(env)?;
    let client = home.connect(env, &endpoint, client::Config::default()).await?;
    let lock_ttl = Duration::from_millis(config.lock_ms);
    let locks = home.connect_for_lock(env, &endpoint, lock_ttl).await?;
    let mut settings = object_index::Config { lock_ttl, ..object_index::Config::default() };
    tune(&mut settings);
    let own = (config.id.as_str(), config.listen);
    let contest = Contest::new(locks, object_index::LOCK, own, settings.lock_ttl);
    let policy = Policy::rep(config.copies);
    let files: Rc<dyn Files> = Rc::new(ClientFiles { client: client.clone(), policy });
    let manager = ObjectManager::start(&client, contest, own, files, settings);
    let local = Local { manager: Some(manager.clone()), server: None };
    let peer = ObjectPeer::new(env, local, format!("object manager {}", config.id));
    let addr = endpoint.listen(config.listen, Rc::new(peer)).await?;
    Ok(ManagerRole { manager, endpoint, client, addr })
}

/// Starts an object server. `manager` is one in the same process.
pub async fn start_server(
    env: &Env,
    config: &config::ObjectServer,
    manager: Option<&ObjectManager>,
) -> Result<ServerRole, Error> {
    start_server_with(env, config, manager, &Seams::none(), |_| ()).await
}

/// The same with seams; `tune` changes values that no configuration has.
pub async fn start_server_with(
    env: &Env,
    config: &config::ObjectServer,
    manager: Option<&ObjectManager>,
    seams: &Seams,
    tune: impl FnOnce(&mut object_index::Config),
) -> Result<ServerRole, Error> {
    crate::check_ports(env, [config.listen]).await?;
    let of = (config.cluster.as_deref(), config.key_file.as_deref());
    let home = home("object-server", &config.id, of, &config.masters, seams);
    let endpoint = home.endpoint(env)?;
    let client = home.connect(env, &endpoint, client::Config::default()).await?;
    let beside_manager = manager.is_some();
    let lifecycle_day = LifecycleDay::from_us(config.lifecycle_day_ms * 1000);
    let mut settings =
        object_index::Config { beside_manager, lifecycle_day, ..object_index::Config::default() };
    tune(&mut settings);
    let policy = Policy::rep(config.copies);
    let files: Rc<dyn Files> = Rc::new(ClientFiles { client: client.clone(), policy });
    let owners = RemoteOwners::new(&client);
    let own = (config.id.as_str(), config.listen);
    let server = ObjectServer::start(env, own, owners.clone(), files, settings);
    if let Some(manager) = manager {
        owners.set_local(Local { manager: Some(manager.clone()), server: None });
        manager.set_local(&server);
    }
    let local = Local { manager: None, server: Some(server.clone()) };
    let peer = ObjectPeer::new(env, local, format!("object server {}", config.id));
    let addr = endpoint.listen(config.listen, Rc::new(peer)).await?;
    Ok(ServerRole { server, owners, endpoint, client, addr })
}

/// A running gateway, without its HTTP.
#[derive(Clone)]
pub struct GatewayRole {
    service: Service,
    endpoint: Endpoint,
    client: Client,
}

impl GatewayRole {
    /// Buckets and objects.
    pub fn service(&self) -> &Service {
        &self.service
    }

    /// The cluster.
    pub fn cluster(&self) -> ClusterId {
        self.client.cluster()
    }

    /// Serves its metrics, where the configuration has an address for them: its HTTP's are in the registry of
    /// the process, and in what `own` adds.
    pub async fn show(
        &self,
        config: &config::Gateway,
        build: Build,
        handle: Handle,
        own: impl Fn(&mut Exposition) + 'static,
    ) -> Result<(), Error> {
        let Some(addr) = config.metrics else { return Ok(()) };
        let of = ("gateway", config.id.clone(), build, handle);
        show(self.client.env(), addr, of, (&self.endpoint, &self.client), own).await
    }

    /// Reports to the object manager that this gateway serves at an address, with so many connections as
    /// `connections` counts; says to `ready` whether it has reached one lately.
    pub fn announce(
        &self,
        (name, addr): (&str, SocketAddr),
        connections: impl Fn() -> u32 + 'static,
        ready: impl Fn(bool) + 'static,
    ) {
        let (service, name) = (self.service.clone(), name.to_owned());
        let env = service.env().clone();
        env.clone().spawn(Class::Background, "gateway: here", async move {
            let mut reached = None;
            loop {
                let (name, connections) = (name.clone(), connections());
                let peer = Peer { role: PeerRole::Gateway, name, addr, connections };
                let answered = service.announce(peer).await.is_ok();
                if answered {
                    reached = Some(env.now());
                }
                // A manager that is replaced is no reason to take all gateways out.
                ready(reached.is_some_and(|reached| env.now() - reached < READY_KEPT));
                let pause = if answered { HERE.0 } else { HERE.1 };
                env.sleep(env.jitter(pause)).await;
            }
        });
    }

    /// Ends it.
    pub fn stop(&self) {
        self.endpoint.close();
    }
}

/// Buckets and objects, for a client of the cluster; bodies have so many copies.
pub fn service(client: &Client, copies: u8, local: Local) -> Service {
    service_with(client, copies, local, ServiceOptions::default())
}

fn service_with(client: &Client, copies: u8, local: Local, options: ServiceOptions) -> Service {
    let owners = RemoteOwners::new(client);
    owners.set_local(local);
    let files = Rc::new(ClientFiles { client: client.clone(), policy: Policy::rep(copies) });
    Service::new(client.env(), owners, files, options)
}

/// Starts a gateway's service. `local` are a manager and a server in the same process, which need no
/// messages.
pub async fn start_gateway(
    env: &Env,
    config: &config::Gateway,
    local: Local,
) -> Result<GatewayRole, Error> {
    let seams = Seams::none();
    let of = (config.cluster.as_deref(), config.key_file.as_deref());
    let home = home("gateway", &config.id, of, &config.masters, &seams);
    let endpoint = home.endpoint(env)?;
    let client = home.connect(env, &endpoint, client::Config::default()).await?;
    let options = ServiceOptions { keeps: true, ..ServiceOptions::default() };
    let service = service_with(&client, config.copies, local, options);
    Ok(GatewayRole { service, endpoint, client })
}
