//! `craton master`, `craton chunkserver`, `craton block-manager`, `craton block-server` and
//! `craton frontend`: one role in a process.

use std::path::Path;

use futures_util::future::{Either, select};
use roles::{block, chunkserver, master};

use super::signals::Stop;
use super::{COMMIT, NBD_SCHEME, NBDS_SCHEME, begin, ended, executor};
use crate::args::RoleArgs;
use crate::config::{self, Config, Logging};
use crate::exit::{Code, Done, Failure};
use crate::output::{announce, print_line};

/// Reads a configuration; `None` when it was only to be checked.
fn configured<T: Config>(args: &RoleArgs) -> Result<Option<T>, Failure> {
    let config: T = config::read(&args.config)?;
    if args.check {
        print_line(&format!("{} is good", args.config.display()))?;
        return Ok(None);
    }
    Ok(Some(config))
}

/// Serves a role between the first and the last line of its log.
fn logged(role: &str, (id, log): (&str, &Logging), serve: impl FnOnce() -> Done) -> Done {
    begin(role, id, log)?;
    ended(serve())
}

/// What comes first: the answer, or `None` for the request to end.
async fn until<T>(stop: &Stop, work: impl Future<Output = T>) -> Option<T> {
    let (stop, work) = (std::pin::pin!(stop.asked()), std::pin::pin!(work));
    match select(stop, work).await {
        Either::Left(_) => None,
        Either::Right((done, _)) => Some(done),
    }
}

/// Runs a master until it is asked to end.
pub fn run_master(args: &RoleArgs) -> Done {
    let Some(config) = configured::<config::Master>(args)? else { return Ok(()) };
    logged("master", (&config.id, &config.log), || serve_master(&config))
}

fn serve_master(config: &config::Master) -> Done {
    let stop = Stop::install()?;
    let runtime = executor(&config.id, config.memory_mib, &config.log)?;
    let handle = runtime.handle();
    let env = runtime.env();
    runtime.block_on(async {
        let role = master::start(env, config).await?;
        master::show(env, config, &role, COMMIT, handle).await?;
        announce(&format!("master {} serves on {}", config.id, role.master.addr()));
        let ended = until(&stop, master::failure(env, &role.master)).await;
        role.master.shutdown().await;
        role.endpoint.close();
        match ended {
            None => Ok(()),
            Some(cause) => Err(Failure::new(Code::Damage, cause)),
        }
    })
}

/// Runs a chunkserver until it is asked to end.
pub fn run_chunkserver(args: &RoleArgs) -> Done {
    let Some(config) = configured::<config::Chunkserver>(args)? else { return Ok(()) };
    let dir = args.config.parent().unwrap_or(Path::new("."));
    let how = chunkserver::Start {
        fault_injection: args.allow_fault_injection,
        without_disks: crate::cluster::were_formatted(dir),
        ..chunkserver::Start::default()
    };
    let serve = || serve_chunkserver(&config, how);
    logged("chunkserver", (&config.id, &config.log), serve)
}

fn serve_chunkserver(config: &config::Chunkserver, how: chunkserver::Start) -> Done {
    let stop = Stop::install()?;
    let runtime = executor(&config.id, config.memory_mib, &config.log)?;
    let shards = chunkserver::shard_count(config);
    // Before the first task: an executor's thread must not wait for another's start.
    let beside = runtime.beside(&config.id, shards - 1).map_err(|error| {
        Failure::setup(format!("cannot start {shards} executors ({error}): lower 'cores'"))
    })?;
    let mut executors = vec![runtime.handle()];
    executors.extend(beside.handles().iter().cloned());
    runtime.block_on(async {
        let env = runtime.env();
        let role = chunkserver::start(env, config, how, beside.handles()).await?;
        chunkserver::show(env, config, &role, COMMIT, executors).await?;
        announce(&format!("chunkserver {} serves on {}", config.id, role.server.addr()));
        stop.asked().await;
        role.stop().await;
        Ok(())
    })
}

/// Runs a block manager until it is asked to end.
pub fn run_block_manager(args: &RoleArgs) -> Done {
    let Some(config) = configured::<config::BlockManager>(args)? else { return Ok(()) };
    logged("block-manager", (&config.id, &config.log), || serve_block_manager(&config))
}

fn serve_block_manager(config: &config::BlockManager) -> Done {
    let stop = Stop::install()?;
    let runtime = executor(&config.id, config.memory_mib, &config.log)?;
    let (env, handle) = (runtime.env(), runtime.handle());
    runtime.block_on(async {
        let started = until(&stop, block::start_manager(env, config)).await;
        let Some(role) = started else { return Ok(()) };
        let role = role?;
        role.show(config, COMMIT, handle).await?;
        announce(&format!("block-manager {} serves on {}", config.id, role.addr()));
        stop.asked().await;
        role.stop().await;
        Ok(())
    })
}

/// Runs a block server until it is asked to end.
pub fn run_block_server(args: &RoleArgs) -> Done {
    let Some(config) = configured::<config::BlockServer>(args)? else { return Ok(()) };
    logged("block-server", (&config.id, &config.log), || serve_block_server(&config))
}

fn serve_block_server(config: &config::BlockServer) -> Done {
    let stop = Stop::install()?;
    let runtime = executor(&config.id, config.memory_mib, &config.log)?;
    let (env, handle) = (runtime.env(), runtime.handle());
    runtime.block_on(async {
        let started = until(&stop, block::start_server(env, config)).await;
        let Some(role) = started else { return Ok(()) };
        let role = role?;
        role.show(env, config, COMMIT, handle).await?;
        announce(&format!("block-server {} serves on {}", config.id, config.listen));
        stop.asked().await;
        role.stop().await;
        Ok(())
    })
}

/// Runs a front end until it is asked to end.
pub fn run_frontend(args: &RoleArgs) -> Done {
    let Some(config) = configured::<config::Frontend>(args)? else { return Ok(()) };
    logged("frontend", (&config.id, &config.log), || serve_frontend(&config))
}

fn serve_frontend(config: &config::Frontend) -> Done {
    let stop = Stop::install()?;
    let runtime = executor(&config.id, config.memory_mib, &config.log)?;
    let (env, handle) = (runtime.env(), runtime.handle());
    runtime.block_on(async {
        let started = until(&stop, block::start_frontend(env, config)).await;
        let Some(role) = started else { return Ok(()) };
        let role = role?;
        role.show(env, config, COMMIT, handle).await?;
        let scheme = if config.tls.is_some() { NBDS_SCHEME } else { NBD_SCHEME };
        let at = match (config.nbd, &config.nbd_unix) {
            (Some(addr), _) => format!("{scheme}{addr}"),
            (None, socket) => socket.iter().map(|path| path.display().to_string()).collect(),
        };
        announce(&format!("frontend {} serves on {at}", config.id));
        stop.asked().await;
        role.stop();
        Ok(())
    })
}
