//! `craton chunkserver`.

use std::rc::Rc;

use chunkserver::Chunkserver;
use chunkstore::flash::FlashStore;
use metrics::Exposition;
use runtime::{Duration, Env, Handle};
use transport::{Endpoint, Identity, Limits};
use wire::token::TokenKey;

use super::http::{self, Pages};
use super::signals::Stop;
use super::{begin, ended, executor, key, probe, stores};
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
    let runtime = executor(&config.id, config.memory_mib)?;
    let handle = runtime.handle();
    runtime.block_on(async {
        let role = start(runtime.env(), config, fault_injection).await?;
        if let Some(addr) = config.metrics {
            http::serve(runtime.env(), addr, pages(&role, &config.id, handle)).await?;
        }
        print_line(&format!("chunkserver {} serves on {}", config.id, role.server.addr()))?;
        stop.asked().await;
        role.server.stop().await;
        Ok(())
    })
}

/// A running chunkserver with what is needed to look at it.
pub struct Role {
    /// The server.
    pub server: Chunkserver<FlashStore>,
    /// Its links.
    pub endpoint: Endpoint,
    /// Its stores, by path.
    pub stores: Rc<Vec<(String, FlashStore)>>,
    /// Stores that could not be opened.
    pub left_out: usize,
}

/// Opens the stores and starts serving. A store that cannot be opened is left out, unless none
/// can.
pub async fn start(
    env: &Env,
    config: &config::Chunkserver,
    fault_injection: bool,
) -> Result<Role, Failure> {
    let key = key(config.key_file.as_deref())?;
    let mut opened = Vec::new();
    let mut failed = Vec::new();
    for store in &config.stores {
        match stores::open(env, store).await {
            Ok(disk) => opened.push((store.path.display().to_string(), disk)),
            Err(failure) => {
                tracing::error!(cause = %failure, "a disk is left out");
                failed.push(failure);
            }
        }
    }
    if let (true, Some(failure)) = (opened.is_empty(), failed.first()) {
        return Err(failure.clone());
    }
    for failure in &failed {
        eprintln!("{WARNING}{}: a disk is left out: {failure}", config.id);
    }
    let cluster = config::cluster_id(config.cluster.as_deref()).map_err(Failure::setup)?;
    let name = format!("chunkserver {}", config.id);
    let identity = Identity { cluster, key: key.clone(), name };
    let endpoint = Endpoint::new(env, identity, Limits::default());
    let mut settings = chunkserver::Config::new(&config.id, config.listen, config.masters.clone());
    settings.domain = config.domain.clone().unwrap_or_else(|| config.id.clone());
    settings.heartbeat = Duration::from_millis(config.heartbeat_ms);
    settings.token_key = key.as_ref().map(TokenKey::derive);
    settings.scrub_rate = config::mib(config.scrub_mib_per_second) as u64;
    settings.fault_injection = fault_injection;
    let stores = Rc::new(opened.clone());
    let server = Chunkserver::start(env, endpoint.clone(), settings, opened).await?;
    Ok(Role { server, endpoint, stores, left_out: failed.len() })
}

/// What the chunkserver shows over HTTP.
fn pages(role: &Role, id: &str, handle: Handle) -> Pages {
    let (server, endpoint) = (role.server.clone(), role.endpoint.clone());
    let (stores, left_out) = (role.stores.clone(), role.left_out);
    let id = id.to_owned();
    Rc::new(move |path| {
        probe::page(path, || {
            let mut text = Exposition::new();
            probe::process(&mut text, "chunkserver", &id, &handle.stats());
            probe::links(&mut text, &endpoint.stats());
            probe::chunkserver(&mut text, &server);
            probe::stores(&mut text, &stores, left_out);
            text.finish()
        })
    })
}
