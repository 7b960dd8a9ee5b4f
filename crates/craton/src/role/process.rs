//! `craton master`, `craton chunkserver`, `craton block-manager`, `craton block-server`,
//! `craton frontend`, `craton object-manager`, `craton object-server` and `craton gateway`: one role in a
//! process.

use std::path::Path;

use futures_util::future::{Either, LocalBoxFuture, select};
use object_index::Local;
use roles::{block, chunkserver, master, object};
use runtime::{Env, Handle};

use super::objects::{check_keys, http_metrics, keys, serve_http, stop_http};
use super::signals::Stop;
use super::{
    BUILD, NBD_SCHEME, NBDS_SCHEME, begin, ended, executor, prepare_tracer, warn_unopened,
};
use crate::args::{RoleArgs, RoleName};
use crate::cluster::{role_word, were_formatted};
use crate::exit::{Code, Done, Failure};
use crate::output::{announce, print_line};
use roles::config::{self, Config};

/// Runs a role until it is asked to end.
pub fn run(role: RoleName, args: &RoleArgs) -> Done {
    match role {
        RoleName::Master => run_role(role, args, start_master),
        RoleName::Chunkserver => {
            run_role(role, args, async |site: &Site<'_, _>| start_chunkserver(site, args).await)
        }
        RoleName::BlockManager => run_role(role, args, start_block_manager),
        RoleName::BlockServer => run_role(role, args, start_block_server),
        RoleName::Frontend => run_role(role, args, start_frontend),
        RoleName::ObjectManager => run_role(role, args, start_object_manager),
        RoleName::ObjectServer => run_role(role, args, start_object_server),
        RoleName::Gateway => run_role(role, args, start_gateway),
    }
}

/// Environment of a starting role.
struct Site<'a, C> {
    env: &'a Env,
    config: &'a C,
    /// Executors of the process, that of `env` first.
    executors: Vec<Handle>,
    stop: &'a Stop,
}

/// A role that serves.
struct Serving {
    /// Its addresses, as it prints them.
    at: String,
    /// Completes when it cannot go on, with the cause; never, unless it is a master.
    failed: LocalBoxFuture<'static, String>,
    /// Ends it.
    end: LocalBoxFuture<'static, ()>,
}

impl Serving {
    /// One that serves until `end` is called for.
    fn new(at: String, end: impl Future<Output = ()> + 'static) -> Serving {
        Serving { at, failed: Box::pin(std::future::pending()), end: Box::pin(end) }
    }
}

/// Runs the role that `start` starts until it is asked to end, or has failed. It ends at once when
/// `start` answers `None`, since it was asked to end before it served.
fn run_role<C: Config>(
    role: RoleName,
    args: &RoleArgs,
    start: impl AsyncFnOnce(&Site<'_, C>) -> Result<Option<Serving>, Failure>,
) -> Done {
    let config: C = config::read(&args.config)?;
    if args.check {
        return print_line(&format!("{} is good", args.config.display()));
    }
    let process = config.process();
    let _log = begin(role_word(role), process.id, process.log)?;
    ended(serve(role, &config, start))
}

fn serve<C: Config>(
    role: RoleName,
    config: &C,
    start: impl AsyncFnOnce(&Site<'_, C>) -> Result<Option<Serving>, Failure>,
) -> Done {
    let (stop, process) = (Stop::install()?, config.process());
    let runtime = executor(process.id, process.memory_mib, process.log)?;
    // Before the first task: an executor's thread must not wait for another's start.
    let lanes = config.executors();
    let beside = runtime.beside(process.id, lanes - 1).map_err(|error| {
        Failure::setup(format!("cannot start {lanes} executors ({error}): lower 'cores'"))
    })?;
    let mut executors = vec![runtime.handle()];
    for handle in beside.handles() {
        let log = process.log.clone();
        let _prepared = handle.spawn(move |env| {
            prepare_tracer(env.tracer(), &log);
            std::future::ready(())
        });
        executors.push(handle.clone());
    }
    runtime.block_on(async {
        let site = Site { env: runtime.env(), config, executors, stop: &stop };
        let Some(serving) = start(&site).await? else { return Ok(()) };
        announce(&format!("{} {} serves on {}", role_word(role), process.id, serving.at));
        let failed = until(&stop, serving.failed).await;
        serving.end.await;
        failed.map_or(Ok(()), |cause| Err(Failure::new(Code::Damage, cause)))
    })
}

/// Returns the result, or `None` when the request to end comes first.
pub(super) async fn until<T>(stop: &Stop, work: impl Future<Output = T>) -> Option<T> {
    let (stop, work) = (std::pin::pin!(stop.asked()), std::pin::pin!(work));
    match select(stop, work).await {
        Either::Left(_) => None,
        Either::Right((done, _)) => Some(done),
    }
}

impl<C> Site<'_, C> {
    /// This process's first executor.
    fn handle(&self) -> Handle {
        self.executors[0].clone()
    }

    /// A role that starts, unless the process is asked to end before that.
    async fn unless_asked<R>(
        &self,
        starting: impl Future<Output = Result<R, roles::Error>>,
    ) -> Result<Option<R>, Failure> {
        Ok(until(self.stop, starting).await.transpose()?)
    }
}

async fn start_master(site: &Site<'_, config::Master>) -> Result<Option<Serving>, Failure> {
    let role = master::start(site.env, site.config).await?;
    master::show(site.env, site.config, &role, BUILD, site.handle()).await?;
    let (env, watched) = (site.env.clone(), role.master.clone());
    Ok(Some(Serving {
        at: role.master.addr().to_string(),
        failed: Box::pin(async move { master::failure(&env, &watched).await }),
        end: Box::pin(async move {
            role.master.shutdown().await;
            role.endpoint.close();
        }),
    }))
}

async fn start_chunkserver(
    site: &Site<'_, config::Chunkserver>,
    args: &RoleArgs,
) -> Result<Option<Serving>, Failure> {
    let dir = args.config.parent().unwrap_or(Path::new("."));
    let how = chunkserver::Start {
        fault_injection: args.allow_fault_injection,
        without_disks: were_formatted(dir),
        ..chunkserver::Start::default()
    };
    let (env, config) = (site.env, site.config);
    let role = chunkserver::start(env, config, how, &site.executors[1..]).await?;
    warn_unopened(&config.id, &role);
    chunkserver::show(env, config, &role, BUILD, site.executors.clone()).await?;
    let at = role.server.addr().to_string();
    Ok(Some(Serving::new(at, async move { role.stop().await })))
}

async fn start_block_manager(
    site: &Site<'_, config::BlockManager>,
) -> Result<Option<Serving>, Failure> {
    let starting = block::start_manager(site.env, site.config);
    let Some(role) = site.unless_asked(starting).await? else { return Ok(None) };
    role.show(site.config, BUILD, site.handle()).await?;
    let at = role.addr().to_string();
    Ok(Some(Serving::new(at, async move { role.stop().await })))
}

async fn start_block_server(
    site: &Site<'_, config::BlockServer>,
) -> Result<Option<Serving>, Failure> {
    let starting = block::start_server(site.env, site.config);
    let Some(role) = site.unless_asked(starting).await? else { return Ok(None) };
    role.show(site.env, site.config, BUILD, site.handle()).await?;
    let at = site.config.listen.to_string();
    Ok(Some(Serving::new(at, async move { role.stop().await })))
}

async fn start_frontend(site: &Site<'_, config::Frontend>) -> Result<Option<Serving>, Failure> {
    let (env, config) = (site.env, site.config);
    let starting = block::start_frontend(env, config);
    let Some(role) = site.unless_asked(starting).await? else { return Ok(None) };
    role.show(env, config, BUILD, site.handle()).await?;
    let scheme = if config.tls.is_some() { NBDS_SCHEME } else { NBD_SCHEME };
    let at = match (config.nbd, &config.nbd_unix) {
        (Some(addr), _) => format!("{scheme}{addr}"),
        (None, socket) => socket.iter().map(|path| path.display().to_string()).collect(),
    };
    Ok(Some(Serving::new(at, async move { role.stop().await })))
}

async fn start_object_manager(
    site: &Site<'_, config::ObjectManager>,
) -> Result<Option<Serving>, Failure> {
    let starting = object::start_manager(site.env, site.config);
    let Some(role) = site.unless_asked(starting).await? else { return Ok(None) };
    role.show(site.config, BUILD, site.handle()).await?;
    let at = role.addr().to_string();
    Ok(Some(Serving::new(at, async move { role.stop().await })))
}

async fn start_object_server(
    site: &Site<'_, config::ObjectServer>,
) -> Result<Option<Serving>, Failure> {
    let starting = object::start_server(site.env, site.config, None);
    let Some(role) = site.unless_asked(starting).await? else { return Ok(None) };
    role.show(site.config, BUILD, site.handle()).await?;
    let at = role.addr().to_string();
    Ok(Some(Serving::new(at, async move { role.stop().await })))
}

async fn start_gateway(site: &Site<'_, config::Gateway>) -> Result<Option<Serving>, Failure> {
    let (env, config) = (site.env.clone(), site.config);
    let keys = keys(config)?;
    let starting = object::start_gateway(&env, config, Local::default());
    let Some(role) = site.unless_asked(starting).await? else { return Ok(None) };
    let checked = check_keys(&env, (&keys, &config.s3_keys), role.service());
    let Some(checked) = until(site.stop, checked).await else { return Ok(None) };
    checked?;
    let gateway = serve_http(&env, config, keys, role.service())?;
    role.show(config, BUILD, site.handle(), http_metrics(&gateway)).await?;
    let at = [Some(config.listen), config.shared].into_iter().flatten();
    let at = at.map(|addr| config.endpoint(addr)).collect::<Vec<_>>().join(" and ");
    let (own, ready) = ((config.id.as_str(), config.listen), gateway.ready());
    role.announce(own, gateway.connection_counter(), move |is_ready| ready.set(is_ready));
    Ok(Some(Serving::new(at, async move {
        stop_http(&env, gateway).await;
        role.stop();
    })))
}
