//! `craton cluster up`.

use runtime::{Duration, Env};

use super::cluster_file::{ClusterFile, Process};
use super::directory::{Directory, DirectoryState, config_path};
use super::plan::{self, Shape};
use super::ports::Reserved;
use super::s3_access::refuse_other as refuse_other_s3;
use super::{format_new_stores, is_alive, process, ready, refuse_embedded, stop_all};
use crate::args::{ClusterUpArgs, RoleName};
use crate::connect;
use crate::connection::Connection;
use crate::exit::{Done, Failure};
use crate::output::{counted, print_error, print_line, warn};
use crate::role::objects;
use object_index::Local;
use roles::config;

/// Runs it.
pub async fn run(env: &Env, args: &ClusterUpArgs) -> Done {
    let began = env.now();
    let deadline = began + Duration::from_secs(args.timeout);
    args.nearby.group()?;
    let (directory, state) = Directory::open_or_make(&args.dir)?;
    let fresh = state == DirectoryState::Free;
    let mut ports = Reserved::new();
    let mut book = match state {
        DirectoryState::Free => {
            args.s3.check()?;
            let book = plan::make(env, &directory, &mut ports, Shape::of(args))?;
            format_stores(env, &book).await?;
            directory.write(&book)?;
            book
        }
        DirectoryState::Cluster => {
            refuse_embedded(&directory)?;
            let book = directory.read()?;
            refuse_contradictions(&directory, &book, args)?;
            book
        }
    };
    directory.warn_keyless()?;
    let faults = args.allow_fault_injection;
    let outcome = match fresh {
        true => start_fresh(env, &directory, &mut book, faults, deadline).await,
        false => start(env, &directory, &mut book, faults, deadline).await,
    };
    if let Err(failure) = outcome {
        if fresh {
            stop_all(env, &book.processes).await?;
        }
        return Err(failure);
    }
    let s3 = administrator(env, &directory, &book, deadline).await?;
    let took = (env.now() - began).as_secs_f64();
    let masters: Vec<_> = book.endpoints.masters.iter().map(ToString::to_string).collect();
    let roles = [
        (RoleName::Master, "master"),
        (RoleName::Chunkserver, "chunkserver"),
        (RoleName::BlockServer, "block server"),
        (RoleName::ObjectManager, "object manager"),
        (RoleName::ObjectServer, "object server"),
        (RoleName::Gateway, "gateway"),
    ];
    let running = roles.map(|(role, name)| {
        (book.processes.iter().filter(|p| p.role == role && is_alive(p)).count() as u64, name)
    });
    let running = running.into_iter().filter(|&(count, _)| count > 0);
    let running: Vec<_> = running.map(|(count, name)| counted(count, name)).collect();
    print_line(&format!(
        "cluster {} is up after {took:.1} s: {}\n\
         masters: {}\n{}{s3}export CRATON_CLUSTER={0}",
        directory.path().display(),
        running.join(", "),
        masters.join(","),
        book.endpoints.nbd.as_ref().map_or(String::new(), |nbd| format!("volumes: {nbd}/NAME\n"))
    ))
}

/// Formats all stores of a new cluster.
async fn format_stores(env: &Env, book: &ClusterFile) -> Done {
    let servers = book.processes.iter().filter(|one| one.role == RoleName::Chunkserver);
    let format = async |process: &Process| {
        let config = config::read::<config::Chunkserver>(&config_path(&process.dir, process.role))?;
        format_new_stores(env, &process.dir, &config.stores).await
    };
    futures_util::future::try_join_all(servers.map(format)).await.map(drop)
}

/// A new cluster: the block service begins when all chunkservers have joined. Masters that know
/// only one would give it files with one replica.
async fn start_fresh(
    env: &Env,
    directory: &Directory,
    book: &mut ClusterFile,
    faults: bool,
    deadline: runtime::Instant,
) -> Done {
    let is_core = |role| matches!(role, RoleName::Master | RoleName::Chunkserver);
    let core = start_missing(env, directory, book, faults, is_core).await?;
    wait_listening(env, book, &core, true).await?;
    wait_writable(env, directory, book, deadline).await?;
    let block = start_missing(env, directory, book, faults, |role| !is_core(role)).await?;
    wait_listening(env, book, &block, true).await?;
    wait_block(env, directory, book, deadline).await
}

/// A cluster that was there before: all of it at once, so that a process that does not start holds
/// back no other.
async fn start(
    env: &Env,
    directory: &Directory,
    book: &mut ClusterFile,
    faults: bool,
    deadline: runtime::Instant,
) -> Done {
    let started = start_missing(env, directory, book, faults, |_| true).await?;
    wait_listening(env, book, &started, false).await?;
    wait_writable(env, directory, book, deadline).await?;
    wait_block(env, directory, book, deadline).await
}

async fn wait_listening(env: &Env, book: &ClusterFile, started: &[String], all: bool) -> Done {
    for process in book.processes.iter().filter(|process| started.contains(&process.id)) {
        match ready::wait_listening(env, process).await {
            Ok(()) => process::warnings(&process.dir).iter().for_each(print_error),
            Err(failure) if all => return Err(failure),
            // The others may do without it.
            Err(failure) => warn(&failure.to_string()),
        }
    }
    Ok(())
}

async fn wait_writable(
    env: &Env,
    directory: &Directory,
    book: &ClusterFile,
    deadline: runtime::Instant,
) -> Done {
    let of_role = |process: &&Process| process.role == RoleName::Chunkserver;
    let chunkservers: Vec<_> = book.processes.iter().filter(of_role).cloned().collect();
    ready::wait_writable(env, directory, &chunkservers, deadline).await
}

async fn wait_block(
    env: &Env,
    directory: &Directory,
    book: &ClusterFile,
    deadline: runtime::Instant,
) -> Done {
    let of_role = |role| book.processes.iter().filter(move |one| one.role == role).cloned();
    let managers: Vec<_> = of_role(RoleName::BlockManager).collect();
    if managers.iter().any(is_alive) {
        let servers: Vec<_> = of_role(RoleName::BlockServer).collect();
        ready::wait_block(env, directory, &servers, deadline).await?;
    }
    Ok(())
}

/// Makes the administrator of S3 where there is none yet; answers how S3 is reached, or what it lacks. Nothing,
/// unless there are a gateway and an object server.
pub async fn administrator(
    env: &Env,
    directory: &Directory,
    book: &ClusterFile,
    deadline: runtime::Instant,
) -> Result<String, Failure> {
    let of_role = |role| book.processes.iter().find(move |one| one.role == role && is_alive(one));
    let (gateway, server) = (of_role(RoleName::Gateway), of_role(RoleName::ObjectServer));
    let (Some(gateway), Some(_), Some(endpoint)) = (gateway, server, &book.endpoints.s3) else {
        return Ok(String::new());
    };
    if of_role(RoleName::ObjectManager).is_none() {
        return Ok("objects are not served without an object manager: 'craton cluster add \
                   object-manager'\n"
            .to_owned());
    }
    let config: config::Gateway = config::read(&config_path(&gateway.dir, gateway.role))?;
    let keys = objects::keys(&config)?.file();
    let target = connect::target(&Connection::of_dir(directory.path()))?;
    let client = connect::connect(env, &target, client::Config::default()).await?;
    let service = roles::object::service(&client, config.copies, Local::default());
    loop {
        let (asked, dir) = ((endpoint.clone(), config.region.clone()), directory.path());
        let how = (&service, client.cluster(), &*keys);
        match objects::administrator(env, dir, asked, how).await {
            Ok((access, is_new)) => return Ok(objects::text(dir, &access, is_new)),
            Err(failure) if env.now() >= deadline => return Err(failure),
            Err(_) => env.sleep(Duration::from_millis(100)).await,
        }
    }
}

/// Starts processes of some roles that do not run; returns their IDs.
async fn start_missing(
    env: &Env,
    directory: &Directory,
    book: &mut ClusterFile,
    fault_injection: bool,
    is_asked: impl Fn(RoleName) -> bool,
) -> Result<Vec<String>, Failure> {
    let mut started = Vec::new();
    for index in 0..book.processes.len() {
        let process = &book.processes[index];
        if is_alive(process) || !is_asked(process.role) {
            continue;
        }
        let id = process.id.clone();
        process::start_noted(env, directory, book, &id, fault_injection).await?;
        started.push(id);
    }
    Ok(started)
}

/// A stopped cluster starts as it was made.
fn refuse_contradictions(directory: &Directory, book: &ClusterFile, args: &ClusterUpArgs) -> Done {
    refuse_other_key(directory, args.with_key, args.no_key)?;
    let of_role = |role| book.processes.iter().filter(move |process| process.role == role);
    let count = |role| of_role(role).count() as u16;
    let mut facts = vec![
        ("--masters", args.masters, count(RoleName::Master)),
        ("--chunkservers", args.chunkservers, count(RoleName::Chunkserver)),
        ("--block-servers", args.block_servers, count(RoleName::BlockServer)),
        ("--block-managers", args.block_managers, count(RoleName::BlockManager)),
        ("--frontends", args.frontends, count(RoleName::Frontend)),
        ("--object-managers", args.object_managers, count(RoleName::ObjectManager)),
        ("--object-servers", args.object_servers, count(RoleName::ObjectServer)),
        ("--gateways", args.gateways, count(RoleName::Gateway)),
    ];
    if let Some(master) = of_role(RoleName::Master).next() {
        let config: config::Master = config::read(&config_path(&master.dir, master.role))?;
        facts.push(("--namespaces", args.namespaces, config.namespace_partitions));
        facts.push(("--streams", args.streams, config.stream_partitions));
    }
    if let Some(server) = of_role(RoleName::Chunkserver).next() {
        let config: config::Chunkserver = config::read(&config_path(&server.dir, server.role))?;
        facts.push(("--disks", args.disks, config.stores.len() as u16));
    }
    for (flag, asked, there) in facts {
        if let Some(asked) = asked.filter(|asked| *asked != there) {
            return Err(Failure::usage(format!(
                "{} has a cluster with {flag} {there}, not {asked}: leave the flag out, or use \
                 'craton cluster add'",
                directory.path().display()
            )));
        }
    }
    if let Some(gateway) = book.processes.iter().find(|one| one.role == RoleName::Gateway) {
        let config: config::Gateway = config::read(&config_path(&gateway.dir, gateway.role))?;
        refuse_other_s3(&args.s3, (&config, config.shared.unwrap_or(gateway.addr)))?;
    }
    let abroad = args.nbd_listen.is_some() || args.nbd_tls.is_some() || !args.nbd_allow.is_empty();
    if abroad || args.nearby.is_given() {
        return Err(Failure::usage(format!(
            "how front ends are reached is said when a cluster is made: leave --nbd-listen, \
             --nbd-tls, --nbd-allow, --nbd-group and --no-nbd-tcp out, and change their \
             frontend.toml in {}",
            directory.path().display()
        )));
    }
    Ok(())
}

/// An existing cluster keeps its key, or stays without one.
pub fn refuse_other_key(directory: &Directory, with_key: bool, no_key: bool) -> Done {
    let shown = directory.path().display();
    match directory.key()?.is_some() {
        false if with_key => Err(Failure::usage(format!(
            "{shown} has a cluster without a key: leave --with-key out"
        ))),
        true if no_key => {
            Err(Failure::usage(format!("{shown} has a cluster with a key: leave --no-key out")))
        }
        _ => Ok(()),
    }
}
