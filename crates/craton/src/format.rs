//! Formatting of stores in directories: by `craton store format`, and once for each store that
//! `craton up`, `craton cluster up` and `craton cluster add` create. Roles never format.

use std::fs::{File, TryLockError};
use std::path::Path;

use base::{DiskId, KIB};
use chunkstore::ChunkStore;
use chunkstore::flash::{self, FormatOptions, MountError};
use roles::stores::{FILE, UNFINISHED};
use runtime::Env;

use crate::exit::{Code, Done, Failure, io};

/// The same allocation unit and capacity, in the terms of the chunk store.
pub fn options(unit_kib: u32, capacity: u64) -> FormatOptions {
    let unit = (u64::from(unit_kib) * KIB) as u32;
    let rest = if unit_kib == 16 { FormatOptions::small_files() } else { Default::default() };
    FormatOptions { unit, capacity, ..rest }
}

/// What a directory has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Found {
    /// Nothing, or what a file system begins with.
    Nothing,
    /// A store whose formatting was broken off.
    Unfinished,
    /// A store.
    Store,
    /// Something else, of this name.
    Other(String),
}

/// Looks into a directory.
pub fn look(dir: &Path) -> Result<Found, Failure> {
    let mut found = Found::Nothing;
    for entry in std::fs::read_dir(dir).map_err(|error| io("list", dir, &error))? {
        let name = entry.map_err(|error| io("list", dir, &error))?.file_name();
        if name == UNFINISHED {
            return Ok(Found::Unfinished);
        }
        if name == FILE {
            found = Found::Store;
        } else if name != "lost+found" && found == Found::Nothing {
            found = Found::Other(name.to_string_lossy().into_owned());
        }
    }
    Ok(found)
}

/// Formats a store in a directory, or finishes a formatting that was broken off; its incarnation,
/// which is passed to `note` as soon as the store is whole. With `force` whatever store lies there is
/// given up.
pub async fn directory(
    env: &Env,
    dir: &Path,
    options: &FormatOptions,
    force: bool,
    note: impl FnOnce(DiskId) -> Done,
) -> Result<DiskId, Failure> {
    let (path, shown) = (dir.join(FILE), dir.display());
    match look(dir)? {
        found if force || found == Found::Nothing => {}
        Found::Unfinished => {
            refuse_in_use(&path)?;
            // Broken off behind the superblock, which comes last: the store is whole.
            if let Some(disk) = whole(env, &path).await? {
                return finish(dir, disk, note);
            }
        }
        Found::Other(name) => {
            return Err(Failure::setup(format!(
                "{shown} is not empty ('{name}' lies there): name an empty directory, or use \
                 'craton store format --force' to put a store beside what lies there"
            )));
        }
        _ => {
            return Err(Failure::setup(format!(
                "{shown} holds a store already: name an empty directory, or give the store up by \
                 'craton store format --force'"
            )));
        }
    }
    refuse_in_use(&path)?;
    begin(dir)?;
    let options = FormatOptions { force: true, ..options.clone() };
    let disk = flash::format(env, &path, &options).await.map_err(failure(dir))?;
    finish(dir, disk, note)
}

/// Why a store cannot be made or looked at.
pub fn failure(dir: &Path) -> impl Fn(MountError) -> Failure {
    let dir = dir.display().to_string();
    move |error| {
        let code = match error {
            MountError::Damaged(_) => Code::Damage,
            _ => Code::Setup,
        };
        Failure::new(code, format!("{dir}: {error}"))
    }
}

/// A store that a process has open is left alone, its directory too.
fn refuse_in_use(path: &Path) -> Done {
    let file = match File::options().read(true).write(true).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(io("open", path, &error)),
    };
    match file.try_lock() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => {
            Err(Failure::setup(MountError::Locked { path: path.to_owned() }.to_string()))
        }
        Err(TryLockError::Error(error)) => Err(io("lock", path, &error)),
    }
}

/// The incarnation of a store that is whole.
async fn whole(env: &Env, path: &Path) -> Result<Option<DiskId>, Failure> {
    match flash::open(env, path).await {
        Ok(store) => {
            let disk = store.info().disk;
            let closed = store.close().await;
            closed.map_err(|error| Failure::setup(format!("{}: {error}", path.display())))?;
            Ok(Some(disk))
        }
        Err(MountError::NotAStore) => Ok(None),
        Err(error) => Err(failure(path)(error)),
    }
}

/// From here to [`finish`] the directory says that its store is not whole, through a power cut too.
fn begin(dir: &Path) -> Done {
    let mark = || {
        File::create(dir.join(UNFINISHED))?.sync_all()?;
        File::open(dir)?.sync_all()
    };
    mark().map_err(|error| io("format", dir, &error))
}

fn finish(dir: &Path, disk: DiskId, note: impl FnOnce(DiskId) -> Done) -> Result<DiskId, Failure> {
    note(disk)?;
    unmark(dir)?;
    Ok(disk)
}

/// Takes away what says that a formatting has not ended.
pub fn unmark(dir: &Path) -> Done {
    let unmark = || match std::fs::remove_file(dir.join(UNFINISHED)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        Err(_) => Ok(()),
        Ok(()) => File::open(dir)?.sync_all(),
    };
    unmark().map_err(|error| io("format", dir, &error))
}
