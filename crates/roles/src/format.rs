//! Formatting of a store in a directory, for commands. Roles never format.

use std::path::Path;

use base::DiskId;
use chunkstore::ChunkStore;
use chunkstore::flash::{self, FormatOptions, MountError};
use runtime::{Env, OpenOptions};

use crate::error::{Error, io};
use crate::stores::{FILE, UNFINISHED};

/// Content of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Found {
    /// Nothing, or the entries of a new file system.
    Nothing,
    /// A store whose formatting was broken off.
    Unfinished,
    /// A store.
    Store,
    /// Something else, of this name.
    Other(String),
}

impl Found {
    /// Content by the names in a directory.
    pub fn of<'a>(names: impl IntoIterator<Item = &'a str>) -> Found {
        let mut found = Found::Nothing;
        for name in names {
            match name {
                UNFINISHED => return Found::Unfinished,
                FILE => found = Found::Store,
                "lost+found" => {}
                name if found == Found::Nothing => found = Found::Other(name.to_owned()),
                _ => {}
            }
        }
        found
    }
}

/// Inspects a directory.
pub async fn look(env: &Env, dir: &Path) -> Result<Found, Error> {
    let entries = env.read_dir(dir).await.map_err(|error| io("list", dir, &error))?;
    Ok(Found::of(entries.iter().map(|entry| entry.name.as_str())))
}

/// Formats a store in a directory, or finishes a formatting that was broken off; its incarnation,
/// which `note` is given as soon as the store is whole. An error of `note` ends it. With `force` a
/// store that lies there is given up.
pub async fn directory<E: From<Error>>(
    env: &Env,
    dir: &Path,
    options: &FormatOptions,
    force: bool,
    note: impl FnOnce(DiskId) -> Result<(), E>,
) -> Result<DiskId, E> {
    let (path, shown) = (dir.join(FILE), dir.display());
    match look(env, dir).await? {
        found if force || found == Found::Nothing => {}
        Found::Unfinished => {
            refuse_in_use(env, &path).await?;
            // The formatting was interrupted behind the superblock, which comes last: the store is whole.
            if let Some(disk) = whole(env, &path).await? {
                return finish(env, dir, disk, note).await;
            }
        }
        Found::Other(name) => {
            return Err(E::from(Error::Setup(format!(
                "{shown} is not empty ('{name}' lies there): name an empty directory, or use \
                 'craton store format --force' to put a store beside what lies there"
            ))));
        }
        _ => {
            return Err(E::from(Error::Setup(format!(
                "{shown} holds a store already: name an empty directory, or give the store up by \
                 'craton store format --force'"
            ))));
        }
    }
    refuse_in_use(env, &path).await?;
    begin(env, dir).await.map_err(|error| io("format", dir, &error))?;
    let options = FormatOptions { force: true, ..options.clone() };
    let disk = flash::format(env, &path, &options).await.map_err(failure(dir))?;
    finish(env, dir, disk, note).await
}

/// Error of a store that cannot be made or inspected.
pub fn failure(dir: &Path) -> impl Fn(MountError) -> Error {
    let dir = dir.display().to_string();
    move |error| {
        let text = format!("{dir}: {error}");
        match error {
            MountError::Damaged(_) => Error::Damaged(text),
            _ => Error::Setup(text),
        }
    }
}

/// A store that a process has open is left alone, its directory too.
async fn refuse_in_use(env: &Env, path: &Path) -> Result<(), Error> {
    let options = OpenOptions { write: true, ..OpenOptions::READ };
    let file = match env.open_file(path, options).await {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(io("open", path, &error)),
    };
    match file.try_lock() {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
            Err(Error::Setup(MountError::Locked { path: path.to_owned() }.to_string()))
        }
        Err(error) => Err(io("lock", path, &error)),
    }
}

/// The incarnation of a store that is whole.
async fn whole(env: &Env, path: &Path) -> Result<Option<DiskId>, Error> {
    match flash::open(env, path).await {
        Ok(store) => {
            let disk = store.info().disk;
            let closed = store.close().await;
            closed.map_err(|error| Error::Setup(format!("{}: {error}", path.display())))?;
            Ok(Some(disk))
        }
        Err(MountError::NotAStore) => Ok(None),
        Err(error) => Err(failure(path)(error)),
    }
}

/// Marks the store as unfinished until [`finish`], through a power cut too.
async fn begin(env: &Env, dir: &Path) -> std::io::Result<()> {
    env.open_file(&dir.join(UNFINISHED), OpenOptions::CREATE).await?.sync().await?;
    env.sync_dir(dir).await
}

async fn finish<E: From<Error>>(
    env: &Env,
    dir: &Path,
    disk: DiskId,
    note: impl FnOnce(DiskId) -> Result<(), E>,
) -> Result<DiskId, E> {
    note(disk)?;
    unmark(env, dir).await?;
    Ok(disk)
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
