//! Opening the stores of a chunkserver.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use base::KIB;
use chunkstore::flash::{self, FlashStore, FormatOptions, MountError, SyncMode};
use runtime::Env;

use crate::config::{Durability, Store};
use crate::exit::Failure;

/// The file that a store in a directory is.
pub const FILE: &str = "store.craton";

/// The file or device of a store that is named by its directory, file or device.
pub fn medium(path: &Path) -> Result<PathBuf, Failure> {
    let kind = std::fs::metadata(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Failure::setup(format!(
            "{} is missing: mount the disk, or make the directory if it is to be a new disk",
            path.display()
        )),
        _ => crate::exit::io("open", path, &error),
    })?;
    if kind.is_dir() {
        return Ok(path.join(FILE));
    }
    if kind.is_file() || kind.file_type().is_block_device() {
        return Ok(path.to_owned());
    }
    Err(Failure::setup(format!("{} is no directory, file or block device", path.display())))
}

/// Opens a store; an empty directory gets a new one.
pub async fn open(env: &Env, store: &Store) -> Result<FlashStore, Failure> {
    let path = medium(&store.path)?;
    if !path.exists() {
        format(env, store, &path).await?;
    }
    let sync = match store.durability {
        Durability::PerWrite => SyncMode::PerWrite,
        Durability::Group => SyncMode::Group,
    };
    let config = flash::Config { sync, ..flash::Config::default() };
    match flash::open_with(env, &path, config.clone()).await {
        // Its formatting was broken off: there is no superblock until all else is in place.
        Err(MountError::NotAStore) if was_unfinished(&store.path) => {
            format(env, store, &path).await?;
            flash::open_with(env, &path, config).await
        }
        opened => opened,
    }
    .map_err(|error| explain(&store.path, &error))
}

fn explain(path: &Path, error: &MountError) -> Failure {
    Failure::setup(format!("store {}: {error}", path.display()))
}

/// There while a store is being formatted.
fn marker(dir: &Path) -> PathBuf {
    dir.join(".craton.formatting")
}

fn was_unfinished(dir: &Path) -> bool {
    marker(dir).exists()
}

async fn format(env: &Env, store: &Store, path: &Path) -> Result<(), Failure> {
    let foreign = std::fs::read_dir(&store.path)
        .map_err(|error| crate::exit::io("list", &store.path, &error))?
        .filter_map(Result::ok)
        .map(|entry| entry.file_name())
        .find(|name| {
            name != FILE
                && Some(name.as_os_str()) != marker(&store.path).file_name()
                && name != "lost+found"
        });
    if let Some(name) = foreign {
        return Err(Failure::setup(format!(
            "{} has no store and is not empty ('{}' lies there): name an empty directory",
            store.path.display(),
            name.to_string_lossy()
        )));
    }
    let failed = |error: std::io::Error| crate::exit::io("format", &store.path, &error);
    std::fs::write(marker(&store.path), b"").map_err(failed)?;
    let options = FormatOptions {
        unit: (u64::from(store.unit_kib) * KIB) as u32,
        capacity: store.capacity(),
        force: true,
        ..if store.unit_kib == 16 { FormatOptions::small_files() } else { Default::default() }
    };
    let disk =
        flash::format(env, path, &options).await.map_err(|error| explain(&store.path, &error))?;
    std::fs::remove_file(marker(&store.path)).map_err(failed)?;
    tracing::info!(%disk, path = %store.path.display(), "formatted a new disk");
    Ok(())
}
