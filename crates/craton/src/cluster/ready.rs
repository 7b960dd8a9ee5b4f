//! Waits until processes are ready.

use block_proto::{BlockReply, BlockRequest, Managers};
use client::Client;
use runtime::{Duration, Env, Instant};

use super::cluster_file::Process;
use super::directory::Directory;
use super::process::{has_said_to_serve, is_alive, last_words, role_word};
use crate::args::RoleName;
use crate::connect;
use crate::connection::Connection;
use crate::exit::{Code, Done, Failure};
use crate::fs::policy;

/// Interval of the checks.
const PAUSE: Duration = Duration::from_millis(50);
/// Wait for one process to listen.
const LISTEN_WAIT: Duration = Duration::from_secs(30);

/// Waits until a process accepts connections. Fails with its last words when it ends.
pub async fn wait_listening(env: &Env, process: &Process) -> Done {
    let deadline = env.now() + LISTEN_WAIT;
    loop {
        let dead = died(process);
        // A process that was killed a moment ago may still accept at the address.
        let serves = has_said_to_serve(&process.dir) || dead.is_some();
        if serves && dead.is_none() && process.addr.port() == 0 {
            return Ok(()); // It serves on a Unix socket alone.
        }
        if serves && matches!(env.timeout(PAUSE * 10, env.connect(process.addr)).await, Ok(Ok(_))) {
            // The answer may come from another program that has the port.
            return match dead {
                Some(failure) => Err(failure),
                None => Ok(()),
            };
        }
        if let Some(failure) = dead {
            return Err(failure);
        }
        if env.now() >= deadline {
            return Err(Failure::new(
                Code::Unavailable,
                format!(
                    "{} does not listen on {} after {LISTEN_WAIT:?}: see {}",
                    process.id,
                    process.addr,
                    process.dir.join("log").display()
                ),
            ));
        }
        env.sleep(PAUSE).await;
    }
}

/// The failure of a process that has ended.
fn died(process: &Process) -> Option<Failure> {
    (!is_alive(process)).then(|| {
        let (role, words) = (role_word(process.role), last_words(&process.dir));
        Failure::setup(format!("{role} {} did not start: {words}", process.id))
    })
}

/// Waits until the cluster knows its chunkservers and a write succeeds.
pub async fn wait_writable(
    env: &Env,
    directory: &Directory,
    chunkservers: &[Process],
    deadline: Instant,
) -> Done {
    let target = connect::target(&Connection::of_dir(directory.path()))?;
    // Short timeouts: a request may go to a master that knows no leader yet.
    let config =
        client::Config { control_budget: Duration::from_secs(3), ..client::Config::default() };
    let mut connected = None;
    loop {
        // One client for all tries: masters have room for so many links only.
        let tried = match &connected {
            Some(client) => try_write(client, chunkservers).await,
            None => match connect::connect(env, &target, config.clone()).await {
                Ok(client) => try_write(connected.insert(client), chunkservers).await,
                Err(failure) => Err(failure),
            },
        };
        let Err(Failure { message: cause, .. }) = tried else { return Ok(()) };
        if env.now() >= deadline {
            return Err(Failure::new(
                Code::Unavailable,
                format!(
                    "the cluster takes no writes yet ({cause}): its processes go on; look at \
                     'craton status' and at the logs in {}",
                    directory.path().display()
                ),
            ));
        }
        env.sleep(PAUSE).await;
    }
}

async fn try_write(client: &Client, chunkservers: &[Process]) -> Done {
    let pictures = client.status().await?;
    for server in chunkservers.iter().filter(|process| is_alive(process)) {
        let known = pictures.iter().flat_map(|(_, picture)| &picture.servers);
        let mut of_server = known.filter(|known| known.name == server.id);
        if !of_server.any(|known| known.alive && known.addr == server.addr) {
            return Err(Failure::failed(format!("{} has not joined yet", server.id)));
        }
    }
    if !chunkservers.iter().any(is_alive) {
        return Err(Failure::failed("no chunkserver runs"));
    }
    let policy = policy::default(client).await?;
    let path = format!("/.craton-trial-{:016x}", client.env().random_u64());
    let written = async {
        let file = client.create(&path, policy, 0o600, true).await?;
        let writer = file.append_handle().await?;
        writer.append(b"trial").await?;
        writer.close().await
    };
    let written = written.await;
    // It may have been made although the answer was lost.
    let removed = client.unlink(&path).await;
    written?;
    Ok(removed?)
}

/// Waits until the block managers know their block servers.
pub async fn wait_block(
    env: &Env,
    directory: &Directory,
    servers: &[Process],
    deadline: Instant,
) -> Done {
    let target = connect::target(&Connection::of_dir(directory.path()))?;
    let client = connect::connect(env, &target, client::Config::default()).await?;
    let managers = Managers::with_budget(&client, Duration::from_secs(1));
    loop {
        let cause = match managers.ask(BlockRequest::Status).await {
            Ok(BlockReply::Status(status)) => {
                let joined = |process: &&Process| {
                    let mut known = status.servers.iter();
                    known.any(|known| known.name == process.id && known.alive)
                };
                match servers.iter().filter(|one| is_alive(one)).find(|one| !joined(one)) {
                    None => return Ok(()),
                    Some(missing) => format!("{} has not joined yet", missing.id),
                }
            }
            Ok(_) => "the block manager's answer does not fit the question".to_owned(),
            Err(error) => error.to_string(),
        };
        if env.now() >= deadline {
            return Err(Failure::new(
                Code::Unavailable,
                format!(
                    "volumes are not served yet ({cause}): the processes go on; look at the \
                     logs in {}",
                    directory.path().display()
                ),
            ));
        }
        env.sleep(PAUSE).await;
    }
}

/// Waits until a process that was added is part of the cluster.
pub async fn wait_joined(env: &Env, client: &Client, process: &Process) -> Done {
    let deadline = env.now() + LISTEN_WAIT;
    loop {
        if let Some(failure) = died(process) {
            return Err(failure);
        }
        let joined = match process.role {
            RoleName::Chunkserver => client.status().await.is_ok_and(|pictures| {
                let mut known = pictures.iter().flat_map(|(_, picture)| &picture.servers);
                known.any(|known| known.name == process.id && known.alive)
            }),
            // It has printed that it serves.
            RoleName::BlockManager
            | RoleName::BlockServer
            | RoleName::Frontend
            | RoleName::ObjectManager
            | RoleName::ObjectServer
            | RoleName::Gateway => true,
            RoleName::Master => client
                .cluster_info()
                .await
                .is_ok_and(|info| info.masters.iter().any(|known| known.name == process.id)),
        };
        if joined {
            return Ok(());
        }
        if env.now() >= deadline {
            return Err(Failure::new(
                Code::Unavailable,
                format!("{} has not joined after {LISTEN_WAIT:?}: see its log", process.id),
            ));
        }
        env.sleep(PAUSE).await;
    }
}
