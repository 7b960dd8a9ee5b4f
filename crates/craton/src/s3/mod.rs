//! `craton user`, `craton bucket`, `craton kms` and `craton range`: who may use S3, and what an operator does
//! with buckets, with keys and with the object servers that own them.

mod access_key;
pub mod args;
pub mod bucket;
mod check;
pub mod kms;
mod policy;
mod quota;
pub mod range;
pub mod user;
mod versions;

use std::path::PathBuf;

use client::Client;
use object_gateway::KeyFile;
use object_index::{Local, Service};
use object_proto::Error;
use runtime::Duration;

use crate::cluster::Directory;
use crate::connect::{self, with_client};
use crate::connection::Connection;
use crate::exit::{Code, Failure};
use crate::role::objects::{self, Access};

/// Copies of what a command writes: it writes no body.
const COPIES: u8 = 1;

/// Runs `work` with the object service of a cluster.
fn with_service<T>(
    connection: &Connection,
    work: impl AsyncFnOnce(&Service) -> Result<T, Failure>,
) -> Result<T, Failure> {
    with_core(connection, async |_, service| work(service).await)
}

/// The same, with the client of the core that it stands on.
fn with_core<T>(
    connection: &Connection,
    work: impl AsyncFnOnce(&Client, &Service) -> Result<T, Failure>,
) -> Result<T, Failure> {
    with_client(connection, async |client| {
        let service = roles::object::service(&client, COPIES, Local::default());
        work(&client, &service).await
    })
}

/// A failure of a request about `what`.
fn failed(what: &str, error: Error) -> Failure {
    match error {
        Error::Busy { .. } | Error::Reroute => Failure::new(
            Code::Unavailable,
            format!("{what}: {error}; 'craton status' shows whether an object manager leads"),
        ),
        error => Failure::failed(format!("{what}: {error}")),
    }
}

/// The keys that wrap secrets: of the file that is named, or of the cluster's directory.
fn wrapping_keys(connection: &Connection, file: Option<&PathBuf>) -> Result<KeyFile, Failure> {
    let path = wrapping_path(connection, file)?;
    KeyFile::load(&path).map_err(|error| Failure::setup(error.to_string()))
}

/// Path of that file.
fn wrapping_path(connection: &Connection, file: Option<&PathBuf>) -> Result<PathBuf, Failure> {
    Ok(match (file, connect::target(connection)?.dir) {
        (Some(path), _) => path.clone(),
        (None, Some(dir)) => Directory::existing(&dir)?.s3_keys(),
        (None, None) => {
            return Err(Failure::usage(
                "which file has the keys that wrap secrets? --s3-keys names it: 's3-keys' in the \
                 directory of a cluster, 's3_keys' in a gateway's configuration",
            ));
        }
    })
}

/// Keeps in the catalog that the key of this file wraps something: gateways without it do not start.
async fn note_key(service: &Service, keys: &KeyFile) -> Result<(), Failure> {
    let key = objects::service_key(keys);
    service.use_key(key).await.map_err(|error| failed("the key that wraps secrets", error))
}

/// How S3 is reached: the file of the cluster's directory.
pub fn reached(connection: &Connection) -> Result<Access, Failure> {
    let Some(dir) = connect::target(connection)?.dir else {
        return Err(Failure::usage(
            "addresses of masters do not say where gateways are: give --cluster with the directory \
             of a cluster",
        ));
    };
    let access = objects::read(&dir.join(objects::ACCESS))?;
    access.ok_or_else(|| {
        Failure::failed(format!("{} has no object service yet: 'craton up'", dir.display()))
    })
}

/// Wait for a cluster's directory, when 'craton up' was started just before.
const DIRECTORY_WAIT: Duration = Duration::from_secs(3);
/// Wait for its first start to write how S3 is reached; it takes about 1 s.
const ACCESS_WAIT: Duration = Duration::from_secs(20);
/// Wait for the administrator and its key to be made, behind that.
const ADMIN_WAIT: Duration = Duration::from_secs(5);
/// Interval of the looks.
const LOOK: Duration = Duration::from_millis(50);

/// As [`reached`], of a cluster that may be starting: `craton up --dir DIR &` and what needs it are typed or
/// pasted at once.
pub fn reached_soon(connection: &Connection) -> Result<Access, Failure> {
    let runtime = connect::runtime()?;
    let env = runtime.env();
    runtime.block_on(async {
        let begun = env.now();
        loop {
            let failure = match reached(connection) {
                Err(failure) if failure.code != Code::Usage => failure,
                done => return done,
            };
            let is_made = connect::target(connection).is_ok();
            let wait = if is_made { ACCESS_WAIT } else { DIRECTORY_WAIT };
            if env.now() >= begun + wait {
                return Err(failure);
            }
            env.sleep(LOOK).await;
        }
    })
}

/// A time as JSON has it, of microseconds since 1970.
fn json_time(us: u64) -> String {
    crate::output::time(us.saturating_mul(1000)).replace(' ', "T") + "Z"
}
