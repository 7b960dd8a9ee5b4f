//! Processes of a local cluster: start, recognise, stop.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use runtime::{Duration, Env};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::cluster_file::{ClusterFile, Process};
use super::directory::{Directory, config_path};
use crate::args::RoleName;
use crate::exit::{Failure, io};
use crate::output::{WARNING, warn};

/// Time from SIGTERM to SIGKILL for a process that does not end.
const STOP_WAIT: Duration = Duration::from_secs(15);
/// Time from SIGKILL to the end of a process, longer than the kernel takes to free its memory.
const KILL_WAIT: Duration = Duration::from_secs(15);
/// See [`crate::args::RoleArgs`].
const FAULT_INJECTION: &str = "--allow-fault-injection";
/// Interval of checks of a process whose program is being loaded.
const EXEC_PAUSE: Duration = Duration::from_millis(1);
/// Interval of checks of a process that should end.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

/// The role's name on the command line.
pub fn role_word(role: RoleName) -> &'static str {
    match role {
        RoleName::Master => "master",
        RoleName::Chunkserver => "chunkserver",
        RoleName::BlockManager => "block-manager",
        RoleName::BlockServer => "block-server",
        RoleName::Frontend => "frontend",
        RoleName::ObjectManager => "object-manager",
        RoleName::ObjectServer => "object-server",
        RoleName::Gateway => "gateway",
    }
}

/// Starts a role in the background; returns its process ID once [`is_alive`] recognises the process,
/// or it has ended. Its output goes to `output.txt` in its log directory.
pub async fn start(
    env: &Env,
    role: RoleName,
    dir: &Path,
    fault_injection: bool,
) -> Result<u32, Failure> {
    let program = std::env::current_exe()
        .map_err(|error| Failure::setup(format!("cannot find this program's file: {error}")))?;
    let output = output_path(dir);
    let log_dir = dir.join("log");
    std::fs::create_dir_all(&log_dir).map_err(|error| io("make", &log_dir, &error))?;
    let file = File::create(&output).map_err(|error| io("write", &output, &error))?;
    let both = file.try_clone().map_err(|error| io("write", &output, &error))?;
    let mut command = Command::new(program);
    command.arg(role_word(role)).arg("--config").arg(config_path(dir, role));
    if fault_injection {
        command.arg(FAULT_INJECTION);
    }
    command.stdin(Stdio::null()).stdout(file).stderr(both).current_dir("/");
    // A group of its own: Ctrl-C in this terminal is not meant for it.
    command.process_group(0).env_remove("CRATON_CLUSTER");
    let failure = |error: std::io::Error| {
        Failure::setup(format!("cannot start a {} process: {error}", role_word(role)))
    };
    let mut child = command.spawn().map_err(failure)?;
    // The kernel returns to the parent before the new program has its arguments. Without them the
    // process would not be recognised, and be reported as one that has ended.
    let arguments = PathBuf::from(format!("/proc/{}/cmdline", child.id()));
    while std::fs::read(&arguments).is_ok_and(|line| line.is_empty())
        && child.try_wait().map_err(failure)?.is_none()
    {
        env.sleep(EXEC_PAUSE).await;
    }
    Ok(child.id())
}

/// Starts a process of the list, and notes it there. One that cannot be noted is killed: no later command
/// would find it.
pub async fn start_noted(
    env: &Env,
    directory: &Directory,
    book: &mut ClusterFile,
    id: &str,
    fault_injection: bool,
) -> Result<Process, Failure> {
    let process = book.processes.iter_mut().find(|one| one.id == id).expect("it is on the list");
    process.pid = start(env, process.role, &process.dir, fault_injection).await?;
    let started = process.clone();
    if let Err(failure) = directory.write(book) {
        let _ = kill(&started); // The first failure is returned.
        return Err(failure);
    }
    Ok(started)
}

fn output_path(dir: &Path) -> PathBuf {
    dir.join("log/output.txt")
}

/// The last line that a process has printed: most often the cause of its end.
pub fn last_words(dir: &Path) -> String {
    let text = std::fs::read_to_string(output_path(dir)).unwrap_or_default();
    let line = text.lines().rev().find(|line| !line.trim().is_empty());
    line.map_or_else(
        || format!("it left no message; see {}", dir.join("log").display()),
        |line| line.trim().trim_start_matches("craton: ").to_owned(),
    )
}

/// True once a process has printed since its start that it serves.
pub fn has_said_to_serve(dir: &Path) -> bool {
    std::fs::read_to_string(output_path(dir)).is_ok_and(|text| text.contains(" serves on "))
}

/// Warnings of a process since its start.
pub fn warnings(dir: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(output_path(dir)).unwrap_or_default();
    text.lines().filter(|line| line.starts_with(WARNING)).map(str::to_owned).collect()
}

/// True when a living process was started for tests with injected faults.
pub fn has_fault_injection(process: &Process) -> bool {
    let line = std::fs::read(format!("/proc/{}/cmdline", process.pid)).unwrap_or_default();
    is_alive(process) && line.split(|&byte| byte == 0).any(|arg| arg == FAULT_INJECTION.as_bytes())
}

/// True when the process of the list lives: its process ID may belong to another by now.
pub fn is_alive(process: &Process) -> bool {
    handle(process).is_some()
}

/// A handle to the process, when it lives and is the one of the list.
fn handle(process: &Process) -> Option<OwnedFd> {
    let pid = i32::try_from(process.pid).ok().and_then(Pid::from_raw)?;
    let handle = pidfd_open(pid, PidfdFlags::empty()).ok()?;
    // The handle is taken first, so that the checks below are of its process.
    is_ours(process).then_some(handle)
}

fn is_ours(process: &Process) -> bool {
    let proc = PathBuf::from(format!("/proc/{}", process.pid));
    // The third field, behind the name in parentheses: Z is a process that has ended.
    let stat = std::fs::read_to_string(proc.join("stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").map(|(_, rest)| rest.as_bytes().first().copied());
    if !matches!(state, Some(Some(state)) if state != b'Z' && state != b'X') {
        return false;
    }
    let Ok(line) = std::fs::read(proc.join("cmdline")) else { return false };
    let args: Vec<&[u8]> = line.split(|&byte| byte == 0).collect();
    let config = config_path(&process.dir, process.role);
    let role = args.get(1).is_some_and(|arg| *arg == role_word(process.role).as_bytes());
    let embedded = args.get(1).is_some_and(|arg| *arg == b"up");
    // 'craton up' with the default directory does not have it on the command line: the process
    // holds the lock of that directory instead.
    (role && args.contains(&config.as_os_str().as_bytes()))
        || (embedded && super::is_embedded(&process.dir))
}

/// Ends a process: SIGTERM, then SIGKILL after a timeout. True when it lived. Fails when it does not end
/// then: the kernel waits for a disk, or for a server of files.
pub async fn stop(env: &Env, process: &Process) -> Result<bool, Failure> {
    let Some(handle) = handle(process) else { return Ok(false) };
    send(&handle, process, Signal::TERM)?;
    let deadline = env.now() + STOP_WAIT;
    while is_alive(process) {
        if env.now() >= deadline {
            warn(&format!("{} did not end in {STOP_WAIT:?}: it is killed", process.id));
            send(&handle, process, Signal::KILL)?;
            let ended = async {
                while is_alive(process) {
                    env.sleep(LOOK_PAUSE).await;
                }
            };
            return match env.timeout(KILL_WAIT, ended).await {
                Ok(()) => Ok(true),
                Err(_) => Err(Failure::failed(format!(
                    "{} (process {1}) does not end {KILL_WAIT:?} after it was killed: the kernel waits \
                     for something, perhaps a disk; see /proc/{1}/stack",
                    process.id, process.pid
                ))),
            };
        }
        env.sleep(LOOK_PAUSE).await;
    }
    Ok(true)
}

/// Ends a process by SIGKILL; it may be gone already.
pub fn kill(process: &Process) -> Result<(), Failure> {
    handle(process).map_or(Ok(()), |handle| send(&handle, process, Signal::KILL))
}

fn send(handle: &OwnedFd, process: &Process, signal: Signal) -> Result<(), Failure> {
    match pidfd_send_signal(handle, signal) {
        // It has ended since.
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(error) => Err(Failure::failed(format!(
            "cannot stop {} (process {}): {error}",
            process.id, process.pid
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::test_dir;

    /// The program is this test's own, which knows no role and ends at once.
    #[test]
    fn started_process_is_recognised_until_it_ends() {
        let dir = test_dir("recognised");
        let runtime = crate::connect::runtime().expect("a runtime");
        let env = runtime.env();
        for round in 0..100 {
            let role = RoleName::Chunkserver;
            let started = runtime.block_on(start(env, role, &dir, false)).expect("it starts");
            let addr = "127.0.0.1:1".parse().expect("an address");
            let process = Process { role, id: "cs1".into(), pid: started, addr, dir: dir.clone() };
            if is_alive(&process) {
                continue;
            }
            // Then it is about to end, and has no program soon: it is not one that has just begun.
            let program = PathBuf::from(format!("/proc/{started}/exe"));
            let deadline = env.now() + Duration::from_secs(5);
            while program.read_link().is_ok() {
                let line = std::fs::read(format!("/proc/{started}/cmdline")).unwrap_or_default();
                let line = String::from_utf8_lossy(&line).into_owned();
                assert!(
                    !is_alive(&process),
                    "round {round}: it was not recognised at first: {line}"
                );
                assert!(env.now() < deadline, "round {round}: it has not ended: {line}");
                std::thread::yield_now();
            }
        }
        std::fs::remove_dir_all(dir).expect("it is removed");
    }
}
