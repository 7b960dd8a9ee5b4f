//! [`Config`]: how objects are owned. [`ClientFiles`]: their directories.

use std::rc::Rc;

use base::{Fault, Kind};
use client::Client;
use futures_util::future::LocalBoxFuture;
use object_proto::{LifecycleDay, StorageRule};
use runtime::Duration;
use table::{ClientStore, Options, Store};
use wire::control::Policy;

use crate::ground::Files;
use crate::limits::{
    COLLECT_INTERVAL, LIFECYCLE_BYTES_PER_S, LOCK_TTL, LOG_BYTES, LOG_LEAST, ORPHANS_INTERVAL,
    PACK_BYTES, RANGE_BYTES, RANGE_HOT, RANGE_REQUESTS, RANGES, RECOUNT, TRASH_AGE, UPLOAD_AGE,
    UPLOAD_END_AGE,
};
use crate::planted::Bugs;

/// Directories of the core through a client.
#[derive(Clone, Debug)]
pub struct ClientFiles {
    /// The client.
    pub client: Client,
    /// Of new files, where no bucket says another one.
    pub policy: Policy,
}

impl Files for ClientFiles {
    fn dir<'a>(&'a self, path: &'a str) -> LocalBoxFuture<'a, Result<Rc<dyn Store>, Fault>> {
        self.dir_for(path, StorageRule::default())
    }

    fn dir_for<'a>(
        &'a self,
        path: &'a str,
        storage: StorageRule,
    ) -> LocalBoxFuture<'a, Result<Rc<dyn Store>, Fault>> {
        Box::pin(async move {
            let policy = storage.policy(self.policy);
            let store = ClientStore::new(&self.client, path, policy).await.map_err(of_client)?;
            Ok(Rc::new(store) as Rc<dyn Store>)
        })
    }

    fn dirs<'a>(&'a self, path: &'a str) -> LocalBoxFuture<'a, Result<Vec<String>, Fault>> {
        Box::pin(dirs_of(&self.client, path))
    }

    fn remove_dir<'a>(&'a self, path: &'a str) -> LocalBoxFuture<'a, Result<(), Fault>> {
        Box::pin(remove_dir_of(&self.client, path))
    }
}

fn of_client(error: client::Error) -> Fault {
    Fault::new(error.kind(), error.to_string())
}

/// [`Files::dirs`] of a cluster.
pub async fn dirs_of(client: &Client, path: &str) -> Result<Vec<String>, Fault> {
    match client.list_all(path).await {
        Ok(entries) => Ok(entries.into_iter().map(|entry| entry.name).collect()),
        Err(error) if error.kind() == Kind::NotFound => Ok(Vec::new()),
        Err(error) => Err(of_client(error)),
    }
}

/// [`Files::remove_dir`] of a cluster.
pub async fn remove_dir_of(client: &Client, path: &str) -> Result<(), Fault> {
    for name in dirs_of(client, path).await? {
        match client.unlink(&format!("{path}/{name}")).await {
            Err(error) if error.kind() != Kind::NotFound => return Err(of_client(error)),
            _ => {}
        }
    }
    match client.rmdir(path).await {
        Err(error) if error.kind() != Kind::NotFound => Err(of_client(error)),
        _ => Ok(()),
    }
}

/// Configuration of an owner.
#[derive(Clone, Debug)]
pub struct Config {
    /// Options of its tables.
    pub table: Options,
    /// Bytes at which a log with small objects ends: at most, and while there is little data
    /// ([`Options::data_log_least`]).
    pub log_bytes: u64,
    /// See [`Config::log_bytes`].
    pub log_least: u64,
    /// Bytes of the cache of its tables' blocks.
    pub cache_bytes: usize,
    /// Lease of its lock.
    pub lock_ttl: Duration,
    /// Files stay in the trash for this long.
    pub trash_age: Duration,
    /// What lives in a file is counted again once in this time.
    pub recount: Duration,
    /// Bytes at which a file ends that collection writes.
    pub pack_bytes: u64,
    /// Between two looks for files in a range's directory that no row has.
    pub orphans_interval: Duration,
    /// An upload that is under way for so long is aborted, within [`Config::trash_age`].
    pub upload_age: Duration,
    /// It is remembered for so long how an upload was completed, and for [`Config::trash_age`] more.
    pub upload_end_age: Duration,
    /// Between two passes of collection.
    pub collect_interval: Duration,
    /// Length of a day of lifecycle.
    pub lifecycle_day: LifecycleDay,
    /// Bytes a second that the ranges of a server read for it.
    pub lifecycle_bytes_per_s: u64,
    /// Ranges of a new cluster.
    pub new_ranges: u32,
    /// A range is split when its sorted files have more bytes.
    pub range_bytes: u64,
    /// A range is split when it has had more requests a second for a time, where that helps.
    pub range_requests: u64,
    /// See [`Config::range_requests`].
    pub range_hot: Duration,
    /// The only manager is in the same process: it gets heartbeats less often.
    pub beside_manager: bool,
    /// For tests.
    pub bugs: Bugs,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            table: Options::default(),
            log_bytes: LOG_BYTES,
            log_least: LOG_LEAST,
            cache_bytes: 16 << 20,
            lock_ttl: LOCK_TTL,
            trash_age: TRASH_AGE,
            recount: RECOUNT,
            pack_bytes: PACK_BYTES,
            orphans_interval: ORPHANS_INTERVAL,
            upload_age: UPLOAD_AGE,
            upload_end_age: UPLOAD_END_AGE,
            collect_interval: COLLECT_INTERVAL,
            lifecycle_day: LifecycleDay::default(),
            lifecycle_bytes_per_s: LIFECYCLE_BYTES_PER_S,
            new_ranges: RANGES,
            range_bytes: RANGE_BYTES,
            range_requests: RANGE_REQUESTS,
            range_hot: RANGE_HOT,
            beside_manager: false,
            bugs: Bugs::default(),
        }
    }
}
