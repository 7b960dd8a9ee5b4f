//! From `--cluster` to a connected client.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

use base::ClusterId;
use client::Client;
use runtime::{Runtime, RuntimeConfig};
use transport::{Endpoint, Identity, Limits};
use wire::handshake::ClusterKey;

use crate::cluster::Directory;
use crate::connection::Connection;
use crate::exit::{Code, Failure};
use roles::config;

/// A cluster to talk to.
#[derive(Clone, Debug)]
pub struct Target {
    /// Its masters, as far as they are known before the first request.
    pub masters: Vec<SocketAddr>,
    /// Its key.
    pub key: Option<ClusterKey>,
    /// Its identity; zero when it is to be learned.
    pub cluster: ClusterId,
    /// Its directory, when it runs on this machine.
    pub dir: Option<PathBuf>,
}

/// The cluster that the command line or the environment names.
pub fn target(connection: &Connection) -> Result<Target, Failure> {
    let Some(text) = connection.cluster.as_deref().filter(|text| !text.is_empty()) else {
        return Err(Failure::usage(
            "no cluster is named: give --cluster with its directory or its masters' addresses, or \
             set CRATON_CLUSTER",
        ));
    };
    let mut target = match addresses(text) {
        Some(masters) => Target { masters, key: None, cluster: ClusterId::default(), dir: None },
        None => of_dir(Path::new(text))?,
    };
    if let Some(path) = &connection.key_file {
        target.key = Some(config::read_key(path)?);
    }
    Ok(target)
}

/// Addresses separated by commas, when the text is that and not a directory.
fn addresses(text: &str) -> Option<Vec<SocketAddr>> {
    if text.contains('/') || Path::new(text).is_dir() {
        return None;
    }
    let mut found = Vec::new();
    for part in text.split(',') {
        found.extend(part.trim().to_socket_addrs().ok()?);
    }
    Some(found)
}

fn of_dir(path: &Path) -> Result<Target, Failure> {
    let directory = Directory::existing(path)?;
    let book = directory.read()?;
    Ok(Target {
        masters: book.endpoints.masters,
        key: directory.key()?,
        cluster: directory.cluster()?,
        dir: Some(directory.path().to_owned()),
    })
}

/// An executor for this command.
pub fn runtime() -> Result<Runtime, Failure> {
    let config = RuntimeConfig { huge_pages: false, ..RuntimeConfig::named("craton") };
    Runtime::new(config).map_err(|error| {
        Failure::setup(format!(
            "io_uring cannot be used here ({error}): Craton needs Linux 6.1 or later with \
             kernel.io_uring_disabled = 0"
        ))
    })
}

/// Identity of this process in the cluster.
pub fn endpoint(env: &runtime::Env, target: &Target) -> Endpoint {
    let identity = Identity {
        cluster: target.cluster,
        key: target.key.clone(),
        name: format!("client {}", std::process::id()),
    };
    Endpoint::new(env, identity, Limits::default())
}

/// Connects to a cluster.
pub async fn connect(
    env: &runtime::Env,
    target: &Target,
    config: client::Config,
) -> Result<Client, Failure> {
    let connected = Client::connect(env, endpoint(env, target), target.masters.clone(), config);
    connected.await.map_err(|error| match error {
        client::Error::Unavailable { what, cause, waited } => {
            let check = match &target.dir {
                Some(dir) => format!(
                    "'craton cluster status --dir {}' says which processes run",
                    dir.display()
                ),
                None => "check the addresses, and that the masters run".to_owned(),
            };
            let message = format!("{what}: no answer within {waited:.1?} ({cause}); {check}");
            Failure::new(Code::Unavailable, message)
        }
        other => {
            let mut failure = Failure::from(other);
            // With a directory the key is read from there.
            if target.dir.is_none() && failure.message.contains("cluster key") {
                failure.message += "; --key-file names the file that has it, such as cluster.key \
                                    in the directory of a cluster";
            }
            failure
        }
    })
}

/// Runs `work` with a client of the cluster.
pub fn with_client<T>(
    connection: &Connection,
    work: impl AsyncFnOnce(Client) -> Result<T, Failure>,
) -> Result<T, Failure> {
    with_client_as(connection, client::Config::default(), work)
}

/// As [`with_client`], with a configured client.
pub fn with_client_as<T>(
    connection: &Connection,
    config: client::Config,
    work: impl AsyncFnOnce(Client) -> Result<T, Failure>,
) -> Result<T, Failure> {
    crate::log::start_foreground();
    let target = target(connection)?;
    let runtime = runtime()?;
    let env = runtime.env();
    crate::role::switch_tracer(env.tracer());
    runtime.block_on(async {
        if !connection.trace {
            return work(connect(env, &target, config).await?).await;
        }
        let trace = env.tracer().fresh().asked();
        let traced = env.tracer().root(trace).follow(async {
            let client = connect(env, &target, config).await?;
            work(client).await
        });
        let done = traced.await;
        crate::trace::print_own(env, trace);
        done
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_distinguished_from_directories() {
        let parse = |text: &str| text.parse().expect("an address");
        assert_eq!(addresses("127.0.0.1:1"), Some(vec![parse("127.0.0.1:1")]));
        let two = Some(vec![parse("127.0.0.1:1"), parse("[::1]:2")]);
        assert_eq!(addresses("127.0.0.1:1, [::1]:2"), two);
        assert_eq!(addresses("/tmp"), None);
        assert_eq!(addresses("cluster"), None);
    }
}
