//! Policy of a new file.

use std::collections::BTreeSet;

use client::Client;
use wire::control::Policy;

use crate::exit::Failure;

/// Copies of a file, unless another policy is asked for.
const COPIES_DEFAULT: usize = 3;

/// The policy asked for, else the default one.
pub async fn choose(client: &Client, asked: Option<Policy>) -> Result<Policy, Failure> {
    match asked {
        Some(policy) => Ok(policy),
        None => default(client).await,
    }
}

/// `rep3`, or as many copies as the cluster has failure domains; a server that is down counts: it
/// is expected back.
pub async fn default(client: &Client) -> Result<Policy, Failure> {
    let pictures = client.status().await?;
    let servers = pictures.iter().flat_map(|(_, picture)| &picture.servers);
    let domains: BTreeSet<&str> = servers.map(|server| server.domain.as_str()).collect();
    Ok(Policy::rep(domains.len().clamp(1, COPIES_DEFAULT) as u8))
}
