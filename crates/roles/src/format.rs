//! Formatting of stores: by commands, and by a chunkserver whose operator orders that a disk be
//! replaced. Nothing else formats.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use base::{DiskId, KIB};
use chunkstore::ChunkStore;
use chunkstore::flash::{self, FormatOptions, MountError};
use runtime::{Env, OpenOptions};

use crate::error::{Error, io};
use crate::stores::{FILE, UNFINISHED, unmark};

#[cfg(test)]
mod tests;

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

    /// The error for a directory where this is in the way.
    fn refused(self, dir: &Path) -> Error {
        let shown = dir.display();
        Error::Setup(match self {
            Found::Other(name) => format!(
                "{shown} is not empty ('{name}' lies there): name an empty directory, or use \
                 'craton store format --force' to put a store beside what lies there"
            ),
            _ => format!(
                "{shown} holds a store already: name an empty directory, or give the store up by \
                 'craton store format --force'"
            ),
        })
    }
}

/// The allocation unit and capacity of a configuration, in the terms of the chunk store.
pub fn options(unit_kib: u32, capacity: u64) -> FormatOptions {
    let unit = (u64::from(unit_kib) * KIB) as u32;
    let rest = if unit_kib == 16 { FormatOptions::small_files() } else { Default::default() };
    FormatOptions { unit, capacity, ..rest }
}

/// Bytes at a device's beginning that identify file systems and partition tables.
const LOOK: usize = 1 << 20;

/// A block device's bytes, and whether nothing is at its beginning. Blocks its thread.
pub fn measure_device(device: &Path) -> Result<(u64, bool), Error> {
    // The kernel refuses a second one, and one that is mounted.
    let mut alone = File::options();
    let kind = std::fs::metadata(device).map_err(|error| io("open", device, &error))?;
    if !kind.file_type().is_block_device() {
        let text = format!("{} is no directory and no block device", device.display());
        return Err(Error::Setup(text));
    }
    alone.read(true).write(true).custom_flags(rustix::fs::OFlags::EXCL.bits().cast_signed());
    let mut file = alone.open(device).map_err(|error| io("use", device, &error))?;
    let mut start = Vec::new();
    let read = (&mut file).take(LOOK as u64).read_to_end(&mut start);
    read.map_err(|error| io("read", device, &error))?;
    let len = file.seek(SeekFrom::End(0)).map_err(|error| io("measure", device, &error))?;
    Ok((len, start.iter().all(|&byte| byte == 0)))
}

/// True for a directory, false for what else is there.
async fn is_directory(env: &Env, path: &Path) -> Result<bool, Error> {
    match env.read_dir(path).await {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => Ok(false),
        Err(error) => Err(io("use", path, &error)),
    }
}

/// An error unless a path is an empty directory, or a block device with nothing at its beginning.
pub async fn check_empty(env: &Env, path: &Path) -> Result<(), Error> {
    if is_directory(env, path).await? {
        return match look(env, path).await? {
            Found::Nothing | Found::Unfinished => Ok(()),
            found => Err(found.refused(path)),
        };
    }
    let owned = path.to_owned();
    match env.blocking("look at a device", move || measure_device(&owned)).await? {
        (_, true) => Ok(()),
        (_, false) => Err(Error::Setup(format!(
            "{0} is not empty: 'craton store format --force {0}' gives up what lies on it",
            path.display()
        ))),
    }
}

/// Formats a store where [`check_empty`] finds nothing; its incarnation.
pub async fn store(env: &Env, path: &Path, options: &FormatOptions) -> Result<DiskId, Error> {
    if is_directory(env, path).await? {
        return directory(env, path, options, false, |_| Ok(())).await;
    }
    let owned = path.to_owned();
    let (len, _) = env.blocking("measure a device", move || measure_device(&owned)).await?;
    let capacity = options.capacity.min(len);
    let options = FormatOptions { raw: true, force: false, capacity, ..options.clone() };
    flash::format(env, path, &options).await.map_err(failure(path))
}

/// Inspects a directory.
pub async fn look(env: &Env, dir: &Path) -> Result<Found, Error> {
    let entries = env.read_dir(dir).await.map_err(|error| io("list", dir, &error))?;
    Ok(Found::of(entries.iter().map(|entry| entry.name.as_str())))
}

/// Formats a store in a directory, or finishes a formatting that was broken off; its incarnation,
/// which `note` is given as soon as the store is whole. An error of `note` ends it. With `force` a
/// store that lies there is given up; when that is interrupted, it has to be ordered again.
pub async fn directory<E: From<Error>>(
    env: &Env,
    dir: &Path,
    options: &FormatOptions,
    force: bool,
    note: impl FnOnce(DiskId) -> Result<(), E>,
) -> Result<DiskId, E> {
    let path = dir.join(FILE);
    match look(env, dir).await? {
        found if force || found == Found::Nothing => {}
        Found::Unfinished => {
            refuse_in_use(env, &path).await?;
            // The formatting was interrupted behind the superblock, which comes last: the store is whole.
            if let Some(disk) = whole(env, &path).await? {
                return finish(env, dir, disk, note).await;
            }
        }
        found => return Err(E::from(found.refused(dir))),
    }
    let is_there = refuse_in_use(env, &path).await?;
    if force && is_there {
        // A mark beside the store that is given up would name it as the one that was made.
        unmark(env, dir).await?;
    } else {
        begin(env, dir).await.map_err(|error| io("format", dir, &error))?;
    }
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

/// A store that a process has open is left alone, its directory too. False when there is none.
async fn refuse_in_use(env: &Env, path: &Path) -> Result<bool, Error> {
    let options = OpenOptions { write: true, ..OpenOptions::READ };
    let file = match env.open_file(path, options).await {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(io("open", path, &error)),
    };
    match file.try_lock() {
        Ok(()) => Ok(true),
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
