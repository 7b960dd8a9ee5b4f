//! What roles of services have in common: the cluster that they belong to.

use std::net::SocketAddr;
use std::path::Path;

use client::Client;
use runtime::{Duration, Env};
use transport::{Endpoint, Identity, Limits};

use crate::config;
use crate::error::Error;
use crate::seams::Seams;

/// Between two attempts to reach a master at the start.
const CONNECT_PAUSE: Duration = Duration::from_millis(100);

/// Cluster of any role of a service.
pub(crate) struct Home<'a> {
    pub(crate) role: &'static str,
    pub(crate) id: &'a str,
    pub(crate) cluster: Option<&'a str>,
    pub(crate) key_file: Option<&'a Path>,
    pub(crate) masters: &'a [SocketAddr],
    pub(crate) seams: &'a Seams,
}

impl Home<'_> {
    pub(crate) fn endpoint(&self, env: &Env) -> Result<Endpoint, Error> {
        let identity = Identity {
            cluster: config::cluster_id(self.cluster).map_err(Error::Setup)?,
            key: self.seams.key(self.key_file)?,
            name: format!("{} {}", self.role, self.id),
        };
        Ok(Endpoint::new(env, identity, Limits::default()))
    }

    /// A client of the core, as soon as a master answers.
    pub(crate) async fn connect(
        &self,
        env: &Env,
        endpoint: &Endpoint,
        config: client::Config,
    ) -> Result<Client, Error> {
        loop {
            let (masters, config) = (self.masters.to_vec(), config.clone());
            let peers = (self.seams.peers)(env, endpoint.clone());
            match Client::connect_over(env, peers, masters, config).await {
                Err(client::Error::Unavailable { cause, .. }) => {
                    tracing::warn!(cause, "no master answers yet");
                    env.sleep(CONNECT_PAUSE).await;
                }
                connected => return Ok(connected?),
            }
        }
    }

    /// A client for a lock of the masters' whose lease is `lock_ttl`: its requests end well before the
    /// lease does.
    pub(crate) async fn connect_for_lock(
        &self,
        env: &Env,
        endpoint: &Endpoint,
        lock_ttl: Duration,
    ) -> Result<Client, Error> {
        let short = client::Config {
            control_attempt: lock_ttl / 4,
            control_budget: lock_ttl * 3 / 4,
            ..client::Config::default()
        };
        self.connect(env, endpoint, short).await
    }
}
