//! Opening the stores of a chunkserver.
//!
//! Invariant: a role never formats but by an operator's order (`docs/decisions/0089`). It cannot
//! distinguish a path without a store from a disk that is not mounted; a store made there would take the
//! disk's part on another disk.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use chunkstore::flash::{self, FlashStore, MountError, SyncMode};
use runtime::Env;

use crate::config::{Durability, Store};
use crate::error::{Error, io};

/// The file of a store in a directory.
pub const FILE: &str = "store.craton";
/// In a directory whose store is being formatted, until all of it is durable.
pub const UNFINISHED: &str = ".craton.formatting";

/// Reason why a store is not served.
#[derive(Clone, Debug)]
pub struct Unopened {
    /// The cause and the remedy.
    pub error: Error,
    /// Whether it may open later.
    pub state: UnopenedState,
}

/// Prospects of a store that did not open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UnopenedState {
    /// Nothing is at its path, as before its disk is mounted: it may be there later.
    Absent,
    /// Another process has it, or the disk answers with errors or has no room: each may pass.
    Busy,
    /// It is damaged, or of a newer program: it opens only after an operator's work.
    Unusable,
}

impl Unopened {
    fn absent(text: String) -> Unopened {
        Unopened { error: Error::Setup(text), state: UnopenedState::Absent }
    }

    fn busy(error: Error) -> Unopened {
        Unopened { error, state: UnopenedState::Busy }
    }

    fn missing(path: &Path) -> Unopened {
        Unopened::absent(format!(
            "{0} is missing: mount the disk, or, for a new one, make the directory and run \
             'craton store format {0}'",
            path.display()
        ))
    }
}

impl From<Error> for Unopened {
    fn from(error: Error) -> Unopened {
        Unopened { error, state: UnopenedState::Unusable }
    }
}

/// The file or device of a store, from its directory, file or device.
pub fn medium(path: &Path) -> Result<PathBuf, Error> {
    find(path).map_err(|unopened| unopened.error)
}

fn find(path: &Path) -> Result<PathBuf, Unopened> {
    let kind = match std::fs::metadata(path) {
        Ok(kind) => kind,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(Unopened::missing(path));
        }
        Err(error) => return Err(Unopened::busy(crate::error::io("open", path, &error))),
    };
    if kind.is_dir() {
        return Ok(path.join(FILE));
    }
    if kind.is_file() || kind.file_type().is_block_device() {
        return Ok(path.to_owned());
    }
    let text = format!("{} is no directory, file or block device", path.display());
    Err(Error::Setup(text).into())
}

/// Opens a store that was formatted before. Without a store nothing is written.
pub async fn open(env: &Env, store: &Store) -> Result<FlashStore, Unopened> {
    let path = find(&store.path)?;
    let sync = match store.durability {
        Durability::PerWrite => SyncMode::PerWrite,
        Durability::Group => SyncMode::Group,
    };
    let config = flash::Config { sync, waits_for_room: true, ..flash::Config::default() };
    if path != store.path {
        return open_in(env, &store.path, config).await;
    }
    let opened = flash::open_with(env, &path, config).await;
    opened.map_err(|error| explain(&store.path, &error))
}

/// Removes the mark of an unfinished formatting.
pub async fn unmark(env: &Env, dir: &Path) -> Result<(), Error> {
    let unmarked = match env.remove_file(&dir.join(UNFINISHED)).await {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => Err(error),
        Ok(()) => env.sync_dir(dir).await,
    };
    unmarked.map_err(|error| io("format", dir, &error))
}

/// Opens the store in a directory, as [`open`] does.
pub async fn open_in(env: &Env, dir: &Path, config: flash::Config) -> Result<FlashStore, Unopened> {
    match flash::open_with(env, &dir.join(FILE), config).await {
        Ok(opened) => {
            // Its formatting was broken off behind the superblock at most. With the mark a later order
            // to format would take the store, and what it has by then, for a new one.
            if let Err(error) = unmark(env, dir).await {
                tracing::warn!(%error, "the mark of an unfinished formatting stays");
            }
            Ok(opened)
        }
        Err(MountError::NotAStore) => Err(look(env, dir).await),
        Err(error) => Err(explain(dir, &error)),
    }
}

fn explain(path: &Path, error: &MountError) -> Unopened {
    let state = match error {
        MountError::Locked { .. }
        | MountError::Io { .. }
        | MountError::Memory
        | MountError::Full => UnopenedState::Busy,
        MountError::Exists { .. }
        | MountError::NotAStore
        | MountError::Version { .. }
        | MountError::Damaged(_)
        | MountError::Option(_) => UnopenedState::Unusable,
    };
    Unopened { error: Error::Setup(format!("store {}: {error}", path.display())), state }
}

/// The error for a directory in which no store can be opened.
async fn look(env: &Env, dir: &Path) -> Unopened {
    let entries = match env.read_dir(dir).await {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Unopened::missing(dir);
        }
        Err(error) => return Unopened::busy(crate::error::io("list", dir, &error)),
    };
    let has = |name: &str| entries.iter().any(|entry| entry.name == name);
    let shown = dir.display();
    if has(UNFINISHED) {
        return Unopened::absent(format!(
            "the formatting of {shown} was broken off: finish it by 'craton store format {shown}'"
        ));
    }
    if has(FILE) {
        return explain(dir, &MountError::NotAStore);
    }
    match entries.iter().find(|entry| entry.name != "lost+found") {
        None => Unopened::absent(format!(
            "{shown} is empty: mount the disk, or, for a new one, run 'craton store format {shown}'"
        )),
        Some(entry) => Unopened::absent(format!(
            "{shown} has no store ('{}' lies there): mount the disk, or correct the path",
            entry.name
        )),
    }
}
