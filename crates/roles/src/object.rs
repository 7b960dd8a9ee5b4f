//! The object service: object servers, of which one owns the objects, and what a gateway's HTTP stands on.
//! The HTTP is the process's to start: it runs on threads of its own.

use std::net::SocketAddr;
use std::rc::Rc;

use base::ClusterId;
use client::Client;
use object_index::{
    ClientFiles, Files, Owner, OwnerService, RemoteOwners, Service, ServiceOptions,
};
use runtime::{Duration, Env};
use tenancy::Contest;
use transport::Endpoint;
use wire::control::Policy;

use crate::config;
use crate::error::Error;
use crate::home::Home;
use crate::seams::Seams;

/// A running object server.
#[derive(Clone)]
pub struct ServerRole {
    owner: Owner,
    endpoint: Endpoint,
    addr: SocketAddr,
}

impl ServerRole {
    /// Owner of the objects, while this process has the lock.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Gives the objects up and ends.
    pub async fn stop(&self) {
        self.owner.stop().await;
        self.endpoint.close();
    }
}

/// Starts an object server.
pub async fn start_server(env: &Env, config: &config::ObjectServer) -> Result<ServerRole, Error> {
    start_server_with(env, config, &Seams::none(), |_| ()).await
}

/// The same with seams; `tune` changes values that no configuration has.
pub async fn start_server_with(
    env: &Env,
    config: &config::ObjectServer,
    seams: &Seams,
    tune: impl FnOnce(&mut object_index::Config),
) -> Result<ServerRole, Error> {
    crate::check_ports(env, [config.listen]).await?;
    let home = Home {
        role: "object-server",
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
    let mut settings = object_index::Config { lock_ttl, ..object_index::Config::default() };
    tune(&mut settings);
    let contest =
        Contest::new(locks, object_index::LOCK, (&config.id, config.listen), settings.lock_ttl);
    let files: Rc<dyn Files> = Rc::new(ClientFiles { client, policy: Policy::rep(config.copies) });
    let owner = Owner::start(env, contest, files, settings);
    let service = Rc::new(OwnerService::new(env, &owner, &config.id));
    let addr = endpoint.listen(config.listen, service).await?;
    Ok(ServerRole { owner, endpoint, addr })
}

/// A running gateway, without its HTTP.
#[derive(Clone)]
pub struct GatewayRole {
    service: Service,
    endpoint: Endpoint,
    cluster: ClusterId,
}

impl GatewayRole {
    /// Buckets and objects.
    pub fn service(&self) -> &Service {
        &self.service
    }

    /// The cluster.
    pub fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// Ends it.
    pub fn stop(&self) {
        self.endpoint.close();
    }
}

/// Buckets and objects, for a client of the cluster; bodies have so many copies.
pub fn service(client: &Client, copies: u8, local: Option<Owner>) -> Service {
    let owners = RemoteOwners::new(client, local);
    let files = Rc::new(ClientFiles { client: client.clone(), policy: Policy::rep(copies) });
    Service::new(client.env(), owners, files, ServiceOptions::default())
}

/// Starts a gateway's service. `local` is an owner in the same process, which needs no messages.
pub async fn start_gateway(
    env: &Env,
    config: &config::Gateway,
    local: Option<Owner>,
) -> Result<GatewayRole, Error> {
    let seams = Seams::none();
    let home = Home {
        role: "gateway",
        id: &config.id,
        cluster: config.cluster.as_deref(),
        key_file: config.key_file.as_deref(),
        masters: &config.masters,
        seams: &seams,
    };
    let endpoint = home.endpoint(env)?;
    let client = home.connect(env, &endpoint, client::Config::default()).await?;
    let (service, cluster) = (service(&client, config.copies, local), client.cluster());
    Ok(GatewayRole { service, endpoint, cluster })
}
