//! `stores.json`, beside a chunkserver's configuration: the stores that were formatted for it.
//!
//! A listed store is never formatted again: one that is not there is a disk that is not mounted.

use std::path::{Path, PathBuf};

use base::DiskId;
use futures_util::future::try_join_all;
use runtime::Env;
use serde::{Deserialize, Serialize};

use super::cluster_file::replace;
use crate::exit::{Done, Failure, io};
use crate::format::{self, Found};
use roles::config::Store;

const FILE: &str = "stores.json";
/// Bytes of the file at most: as many stores as a server can have, with long paths.
const FILE_MAX: u64 = 1 << 20;

/// The file's content.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug, Default)]
#[serde(deny_unknown_fields)]
struct Formatted {
    stores: Vec<One>,
}

/// A store.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
struct One {
    path: PathBuf,
    /// The incarnation that the formatting gave it.
    disk: String,
}

impl Formatted {
    fn read(dir: &Path) -> Result<Formatted, Failure> {
        let path = dir.join(FILE);
        let len = match std::fs::metadata(&path) {
            Ok(facts) => facts.len(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Formatted::default());
            }
            Err(error) => return Err(io("read", &path, &error)),
        };
        let damaged = |what: &str| {
            let path = path.display();
            Failure::setup(format!("{path} is damaged ({what}): restore it from a copy"))
        };
        if len > FILE_MAX {
            return Err(damaged("it is too long"));
        }
        let text = std::fs::read(&path).map_err(|error| io("read", &path, &error))?;
        serde_json::from_slice(&text).map_err(|error| damaged(&error.to_string()))
    }

    fn has(&self, store: &Path) -> bool {
        self.stores.iter().any(|one| one.path == store)
    }

    fn add(dir: &Path, store: &Path, disk: DiskId) -> Done {
        let mut all = Formatted::read(dir)?;
        all.stores.push(One { path: store.to_owned(), disk: disk.to_string() });
        let text = serde_json::to_vec_pretty(&all)
            .map_err(|error| Failure::failed(format!("cannot write JSON: {error}")))?;
        replace(&dir.join(FILE), &text, 0o600)
    }
}

/// True when stores were formatted for the chunkserver whose configuration is in `dir`.
pub fn were_formatted(dir: &Path) -> bool {
    Formatted::read(dir).is_ok_and(|formatted| !formatted.stores.is_empty())
}

/// Formats the stores of a new chunkserver, whose configuration is in `dir`, each once: a store
/// that an interrupted run has formatted stays as it is. Raw devices have their stores.
pub async fn format_new(env: &Env, dir: &Path, stores: &[Store]) -> Done {
    let done = Formatted::read(dir)?;
    let format = |store: &Store| {
        let (store, is_done) = (store.clone(), done.has(&store.path));
        async move {
            if is_done {
                return Ok(roles::stores::unmark(env, &store.path).await?);
            }
            if !store.path.is_dir() {
                return Ok(());
            }
            let options = format::options(store.unit_kib, store.capacity());
            let note = |disk| Formatted::add(dir, &store.path, disk);
            format::directory(env, &store.path, &options, false, note).await.map(drop)
        }
    };
    try_join_all(stores.iter().map(format)).await.map(drop)
}

/// Refuses a store that cannot join a cluster in `root`: one of another cluster, whose chunks would
/// be deleted as unknown. One that an interrupted run of this cluster has formatted can.
pub fn check_new(root: &Path, store: &Path) -> Done {
    if !store.is_dir() || matches!(format::look(store)?, Found::Nothing | Found::Unfinished) {
        return Ok(());
    }
    let path = std::path::absolute(store).map_err(|error| io("use", store, &error))?;
    for entry in std::fs::read_dir(root).into_iter().flatten().flatten() {
        if entry.path().is_dir() && Formatted::read(&entry.path())?.has(&path) {
            return Ok(());
        }
    }
    Err(Failure::setup(match format::look(store)? {
        Found::Other(name) => format!(
            "{} is not empty ('{name}' lies there): name an empty directory",
            store.display()
        ),
        _ => format!(
            "{} holds a store already: start the cluster that it belongs to, or name an empty \
             directory",
            store.display()
        ),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shape_is_as_documented() {
        let text = r#"{"stores":[{"path":"/data/a","disk":"dsk_1"}]}"#;
        let read: Formatted = serde_json::from_str(text).expect("it is good");
        assert!(read.has(Path::new("/data/a")) && !read.has(Path::new("/data/b")));
        assert_eq!(serde_json::to_string(&read).expect("it is JSON"), text);
    }

    #[test]
    fn a_damaged_list_is_refused() {
        let dir = crate::output::test_dir("formatted");
        assert_eq!(Formatted::read(&dir), Ok(Formatted::default()));
        std::fs::write(dir.join(FILE), "{\"stores\":[").expect("it is written");
        assert!(Formatted::read(&dir).is_err_and(|error| error.message.contains("is damaged")));
        assert!(!were_formatted(&dir));
        std::fs::remove_dir_all(dir).expect("it goes");
    }
}
