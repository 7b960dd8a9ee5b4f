//! The role of a master.

use std::rc::Rc;

use base::MIB;
use master::{FirstNumbers, Master, MasterConfig, MasterTiming};
use metrics::Exposition;
use runtime::{Duration, Env, Handle};
use transport::{Endpoint, Identity, Limits};
use wire::control::{ClusterReply, ClusterRequest, ControlReply, ControlRequest, MasterInfo};

use crate::error::Error;
use crate::http::{self, Pages};
use crate::seams::Seams;
use crate::{Build, check_ports, config, probe};

/// Interval of the check whether the master's store or one of its groups has failed.
const HEALTH_PAUSE: Duration = Duration::from_secs(1);

/// Completes when this master's store, or its member of a group, has failed.
pub async fn failure(env: &Env, master: &Master) -> String {
    loop {
        if let Some(cause) = master.failure() {
            return cause;
        }
        env.sleep(HEALTH_PAUSE).await;
    }
}

/// A running master, with access to its parts.
pub struct Role {
    /// The master.
    pub master: Master,
    /// Its links.
    pub endpoint: Endpoint,
}

impl Role {
    /// Number of chunkservers that this master hears from; 0 while it does not know.
    pub async fn live_servers(&self) -> usize {
        let request = ControlRequest::Cluster(ClusterRequest::Status);
        match self.master.handle(request).await {
            Ok(ControlReply::Cluster(ClusterReply::Status(status))) => {
                status.servers.iter().filter(|server| server.alive).count()
            }
            _ => 0,
        }
    }
}

/// Opens the groups and starts serving.
pub async fn start(env: &Env, config: &config::Master) -> Result<Role, Error> {
    start_with(env, config, &Seams::none(), |_| ()).await
}

/// The same with seams; `tune` changes values that no configuration has.
pub async fn start_with(
    env: &Env,
    config: &config::Master,
    seams: &Seams,
    tune: impl FnOnce(&mut MasterConfig),
) -> Result<Role, Error> {
    let key = seams.key(config.key_file.as_deref())?;
    check_ports(env, [config.listen].into_iter().chain(config.metrics)).await?;
    let cluster = config::cluster_id(Some(&config.cluster)).map_err(Error::Setup)?;
    let name = format!("master {}", config.id);
    let identity = Identity { cluster, key: key.clone(), name };
    let endpoint = Endpoint::new(env, identity, Limits::default());
    let peer = |peer: &config::Peer| MasterInfo {
        id: peer.raft_id,
        name: peer.id.clone(),
        addr: peer.addr,
    };
    let mut timing = MasterTiming {
        election_timeout: Duration::from_millis(config.election_ms),
        heartbeat: Duration::from_millis(config.heartbeat_ms),
        dead_after: Duration::from_millis(config.server_dead_ms),
        ..MasterTiming::default()
    };
    timing.stream.balance_bytes_per_s = config.balance_mib_s * MIB;
    let mut settings = MasterConfig {
        id: config.raft_id,
        name: config.id.clone(),
        addr: config.listen,
        dir: config.data_dir.clone(),
        cluster,
        key,
        masters: config.peers.iter().map(peer).collect(),
        form: !config.peers.is_empty(),
        namespace_partitions: config.namespace_partitions,
        stream_partitions: config.stream_partitions,
        first: FirstNumbers::default(),
        timing,
    };
    tune(&mut settings);
    let started = Master::start(env, settings, endpoint.clone()).await;
    let master = started.map_err(|error| Error::Setup(error.to_string()))?;
    Ok(Role { master, endpoint })
}

/// Serves the master's metrics, where its configuration has an address for them.
pub async fn show(
    env: &Env,
    config: &config::Master,
    role: &Role,
    build: Build,
    handle: Handle,
) -> Result<(), Error> {
    if let Some(addr) = config.metrics {
        http::serve(env, addr, pages(env, role, (&config.id, build), handle)).await?;
    }
    Ok(())
}

/// The master's HTTP pages.
fn pages(env: &Env, role: &Role, (id, build): (&str, Build), handle: Handle) -> Pages {
    let env = env.clone();
    let (master, endpoint) = (role.master.clone(), role.endpoint.clone());
    let id = id.to_owned();
    Rc::new(move |path| {
        probe::page(path, || {
            let mut text = Exposition::new();
            probe::process(&mut text, ("master", &id, build), &[handle.stats()]);
            probe::operations(&mut text, &env);
            probe::links(&mut text, &endpoint.stats());
            probe::master(&mut text, &master);
            text.finish()
        })
    })
}
