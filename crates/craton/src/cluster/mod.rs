//! `craton cluster`: real processes on one machine, each with its own directory, address and
//! failure domain.

mod add;
mod cluster_file;
mod directory;
mod plan;
mod ports;
mod process;
mod ready;
mod s3_access;
mod stores;
mod up;

use std::path::Path;

use serde::Serialize;

#[cfg(test)]
pub use cluster_file::fuzz_book;
pub use cluster_file::{ClusterFile, Endpoints, Process, replace as replace_file, uri_plain};
pub use directory::{Directory, DirectoryState, config_path};
pub use plan::{
    block_roles as plan_block_roles, master as plan_master, nearby_of, objects as plan_objects,
};
pub use ports::Reserved;
pub use process::{is_alive, role_word};
pub use s3_access::{
    S3Access, read_tls, read_tls_files, refuse_other as refuse_other_s3, tls_files,
};
pub use stores::{check_new as check_new_store, format_new as format_new_stores, were_formatted};
pub use up::refuse_other_key;

use crate::args::{ClusterCommand, RoleName};
use crate::exit::{Done, Failure};
use crate::file_lock::lock;
use crate::output::{print_error, print_json, print_line, print_table, table};

/// The file by which `craton up` holds the directories of its roles.
pub const EMBEDDED_LOCK: &str = ".craton.up.lock";

/// True when `dir`, a role's directory, is held by a running `craton up`.
pub fn is_embedded(dir: &Path) -> bool {
    let Some(path) = dir.parent().map(|dir| dir.join(EMBEDDED_LOCK)) else { return false };
    path.exists() && lock(&path, "").is_err()
}

/// Runs a command.
pub fn run(command: ClusterCommand) -> Done {
    crate::log::start_foreground();
    let runtime = crate::connect::runtime()?;
    let env = runtime.env();
    runtime.block_on(async {
        match command {
            ClusterCommand::Up(args) => up::run(env, &args).await,
            ClusterCommand::Status { dir, json } => status(&dir, json),
            ClusterCommand::Down { dir } => down(env, &dir).await,
            ClusterCommand::Restart { dir, role, id } => restart(env, &dir, role, &id).await,
            ClusterCommand::Add { role, dir, json } => add::run(env, &dir, role, json).await,
        }
    })
}

/// Refuses directories whose processes are all one `craton up`.
fn refuse_embedded(directory: &Directory) -> Done {
    if directory.path().join(EMBEDDED_LOCK).exists() {
        return Err(Failure::setup(format!(
            "{} belongs to 'craton up': start it with 'craton up --dir {0}', and stop it with \
             Ctrl-C",
            directory.path().display()
        )));
    }
    Ok(())
}

fn status(dir: &Path, json: bool) -> Done {
    #[derive(Serialize)]
    struct Row<'a> {
        #[serde(flatten)]
        process: &'a Process,
        state: &'static str,
    }
    #[derive(Serialize)]
    struct All<'a> {
        processes: Vec<Row<'a>>,
        endpoints: &'a Endpoints,
    }
    let book = Directory::existing(dir)?.read()?;
    let row = |process| {
        let state = if is_alive(process) { "running" } else { "stopped" };
        Row { process, state }
    };
    let rows: Vec<Row> = book.processes.iter().map(row).collect();
    if json {
        return print_json(&All { processes: rows, endpoints: &book.endpoints });
    }
    let mut out = table(&["id", "role", "state", "pid", "address", "directory"]);
    for Row { process, state } in rows {
        out.add_row([
            process.id.clone(),
            process::role_word(process.role).to_owned(),
            state.to_owned(),
            process.pid.to_string(),
            process.addr.to_string(),
            process.dir.display().to_string(),
        ]);
    }
    print_table(out, &[3])
}

async fn down(env: &runtime::Env, dir: &Path) -> Done {
    let directory = Directory::existing_locked(dir)?;
    refuse_embedded(&directory)?;
    let book = directory.read()?;
    let count = stop_all(env, &book.processes).await?;
    print_line(&format!("stopped {count} of {} processes", book.processes.len()))
}

/// The name of a master that a cluster's directory has made.
pub fn master_name(number: u64) -> String {
    format!("m{number}")
}

/// True when the list of processes has a master of this name.
pub fn has_master(directory: &Directory, id: &str) -> Result<bool, Failure> {
    let book = directory.read()?;
    Ok(book.processes.iter().any(|one| one.id == id && one.role == RoleName::Master))
}

/// Ends the process of a master that is no member any more, and removes it from the list. Its
/// number is not used again. True when the cluster runs in this directory, which is locked, and
/// had it.
pub async fn drop_master(
    env: &runtime::Env,
    directory: &Directory,
    (number, id): (u64, &str),
) -> Result<bool, Failure> {
    let mut book = directory.read()?;
    let is_it = |one: &Process| one.id == id && one.role == RoleName::Master;
    let Some(process) = book.processes.iter().find(|one| is_it(one)) else { return Ok(false) };
    process::stop(env, process).await?;
    book.processes.retain(|one| !is_it(one));
    book.last_master_removed = book.last_master_removed.max(number);
    book.refresh_endpoints();
    directory.write(&book)?;
    Ok(true)
}

/// Ends processes: each role before those that it needs. Chunkservers report nothing more to the
/// masters. The failure names all that have not ended.
async fn stop_all(env: &runtime::Env, processes: &[Process]) -> Result<usize, Failure> {
    let (mut count, mut failures) = (0, Vec::new());
    let order = [
        RoleName::Gateway,
        RoleName::ObjectServer,
        RoleName::ObjectManager,
        RoleName::Frontend,
        RoleName::BlockServer,
        RoleName::BlockManager,
        RoleName::Chunkserver,
        RoleName::Master,
    ];
    for role in order {
        let of_role = processes.iter().filter(|process| process.role == role);
        let stops = of_role.map(|process| process::stop(env, process));
        for stopped in futures_util::future::join_all(stops).await {
            match stopped {
                Ok(lived) => count += usize::from(lived),
                Err(failure) => failures.push(failure.message),
            }
        }
    }
    match failures.is_empty() {
        true => Ok(count),
        false => Err(Failure::failed(failures.join("; "))),
    }
}

/// Ends a process as a power cut does.
pub fn kill(dir: &Path, role: RoleName, id: &str) -> Done {
    let mut book = Directory::existing(dir)?.read()?;
    process::kill(find(&mut book, role, id)?)
}

fn find<'a>(
    book: &'a mut ClusterFile,
    role: RoleName,
    id: &str,
) -> Result<&'a mut Process, Failure> {
    let is_it = |one: &Process| one.id == id && one.role == role;
    match book.processes.iter().position(is_it) {
        Some(index) => Ok(&mut book.processes[index]),
        None => {
            let known: Vec<_> = book.processes.iter().map(|one| one.id.as_str()).collect();
            Err(Failure::usage(format!(
                "the cluster has no {} '{id}': it has {}",
                process::role_word(role),
                known.join(", ")
            )))
        }
    }
}

async fn restart(env: &runtime::Env, dir: &Path, role: RoleName, id: &str) -> Done {
    let process = start_again(env, dir, role, id).await?;
    print_line(&format!("{id} runs again as process {}", process.pid))
}

/// Stops a process, if it lives, and starts it; returns when it listens.
pub async fn start_again(
    env: &runtime::Env,
    dir: &Path,
    role: RoleName,
    id: &str,
) -> Result<Process, Failure> {
    let directory = Directory::existing_locked(dir)?;
    refuse_embedded(&directory)?;
    let mut book = directory.read()?;
    let process = find(&mut book, role, id)?;
    let fault_injection = process::has_fault_injection(process);
    process::stop(env, process).await?;
    let process = process::start_noted(env, &directory, &mut book, id, fault_injection).await?;
    ready::wait_listening(env, &process).await?;
    process::warnings(&process.dir).iter().for_each(print_error);
    Ok(process)
}
