//! The directory of a local cluster.
//!
//! `cluster.json` names the processes. Each process has a directory of its own with its
//! configuration, its data and its log. `cluster.key` is there when the cluster has a key. `nbd`
//! has the front ends' Unix sockets. Other files of the directory are not touched.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use base::ClusterId;
use wire::handshake::ClusterKey;

use super::cluster_file::{ClusterFile, replace};
use crate::args::RoleName;
use crate::exit::{Failure, io};
use crate::file_lock::{FileLock, lock};
use roles::config::{self, Config};

const BOOK: &str = "cluster.json";
const KEY: &str = "cluster.key";
/// Name of the file with the keys that wrap secrets of S3.
const S3_KEYS: &str = "s3-keys";
const SOCKETS: &str = "nbd";
const LOCK: &str = ".craton.lock";
/// Marks a cluster that is being made: files beside it are its own.
const UNFINISHED: &str = ".craton.unfinished";

/// A cluster's directory.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    /// Held by commands that change it.
    lock: Option<FileLock>,
}

/// State of a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DirectoryState {
    /// Missing, empty, or left unfinished: a cluster can be made in it.
    Free,
    /// It has a cluster.
    Cluster,
}

impl Directory {
    /// A directory that has a cluster.
    pub fn existing(path: &Path) -> Result<Directory, Failure> {
        let there = match state(path)? {
            DirectoryState::Cluster => std::fs::canonicalize(path),
            DirectoryState::Free => {
                return Err(Failure::setup(format!(
                    "{} has no cluster: make one with 'craton cluster up --dir {0}', or name \
                     another directory",
                    path.display()
                )));
            }
        };
        let path = there.map_err(|error| io("open", path, &error))?;
        Ok(Directory { path, lock: None })
    }

    /// The same for a command that changes it.
    pub fn existing_locked(path: &Path) -> Result<Directory, Failure> {
        let mut directory = Directory::existing(path)?;
        directory.claim()?;
        Ok(directory)
    }

    /// A directory for a cluster, made when it is missing, locked.
    pub fn open_or_make(path: &Path) -> Result<(Directory, DirectoryState), Failure> {
        state(path)?;
        std::fs::create_dir_all(path).map_err(|error| io("make", path, &error))?;
        let path = std::fs::canonicalize(path).map_err(|error| io("open", path, &error))?;
        let mut directory = Directory { path, lock: None };
        directory.claim()?;
        // Another command may have been faster.
        let state = state(&directory.path)?;
        if state == DirectoryState::Free {
            replace(&directory.path.join(UNFINISHED), b"", 0o600)?;
        }
        Ok((directory, state))
    }

    fn claim(&mut self) -> Result<(), Failure> {
        let path = self.path.join(LOCK);
        self.lock = Some(lock(&path, "another craton command works on this cluster: wait for it")?);
        Ok(())
    }

    /// Its absolute path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its processes.
    pub fn read(&self) -> Result<ClusterFile, Failure> {
        ClusterFile::read(&self.path.join(BOOK))
    }

    /// Replaces the list of its processes.
    pub fn write(&self, book: &ClusterFile) -> Result<(), Failure> {
        book.write(&self.path.join(BOOK))?;
        match std::fs::remove_file(self.path.join(UNFINISHED)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(io("finish", &self.path, &error))
            }
            _ => Ok(()),
        }
    }

    /// The cluster's key, when it has one.
    pub fn key(&self) -> Result<Option<ClusterKey>, Failure> {
        let path = self.path.join(KEY);
        Ok(path.exists().then(|| config::read_key(&path)).transpose()?)
    }

    /// Path of the file with the keys that wrap secrets of S3.
    pub fn s3_keys(&self) -> PathBuf {
        self.path.join(S3_KEYS)
    }

    /// Path of the key.
    pub fn key_path(&self) -> PathBuf {
        self.path.join(KEY)
    }

    /// Gives a new cluster its key, or none.
    pub fn write_key(&self, key: Option<&ClusterKey>) -> Result<(), Failure> {
        let path = self.path.join(KEY);
        match key {
            Some(key) => replace(&path, format!("{}\n", key.to_hex()).as_bytes(), 0o600),
            // A first start that was broken off may have left one.
            None => match std::fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    Err(io("remove", &path, &error))
                }
                _ => Ok(()),
            },
        }
    }

    /// Warns of a cluster without a key, at each start, in the log of this process.
    pub fn warn_keyless(&self) -> Result<(), Failure> {
        if self.key()?.is_none() {
            let dir = self.path.display();
            tracing::warn!(
                "{dir} has no key: every user of this machine can read, change and remove its data"
            );
        }
        Ok(())
    }

    /// The directory of the front ends' sockets: its group may enter, and no other user.
    pub fn make_sockets(&self, group: Option<u32>) -> Result<(), Failure> {
        let dir = self.sockets();
        let made = || {
            std::fs::create_dir_all(&dir)?;
            chown(&dir, None, group)?;
            std::fs::set_permissions(&dir, Permissions::from_mode(0o750))?;
            if group.is_some() {
                // It passes through here, and reads nothing.
                chown(&self.path, None, group)?;
                std::fs::set_permissions(&self.path, Permissions::from_mode(0o710))?;
            }
            Ok(())
        };
        made().map_err(|error: std::io::Error| io("make", &dir, &error))
    }

    /// See [`Directory::make_sockets`].
    pub fn sockets(&self) -> PathBuf {
        self.path.join(SOCKETS)
    }

    /// The cluster's identity, from a master's configuration.
    pub fn cluster(&self) -> Result<ClusterId, Failure> {
        let book = self.read()?;
        let Some(master) = book.processes.iter().find(|one| one.role == RoleName::Master) else {
            return Ok(ClusterId::default());
        };
        let path = config_path(&master.dir, RoleName::Master);
        if !path.exists() {
            return Ok(ClusterId::default());
        }
        let config: config::Master = config::read(&path)?;
        config::cluster_id(Some(&config.cluster)).map_err(Failure::setup)
    }

    /// Writes a role's configuration into its directory.
    pub fn write_config<T: Config + serde::Serialize>(
        &self,
        dir: &Path,
        role: RoleName,
        config: &T,
    ) -> Result<(), Failure> {
        config
            .check()
            .map_err(|what| Failure::usage(format!("cannot configure {role:?}: {what}")))?;
        let text = toml::to_string(config)
            .map_err(|error| Failure::failed(format!("cannot write TOML: {error}")))?;
        std::fs::create_dir_all(dir).map_err(|error| io("make", dir, &error))?;
        replace(&config_path(dir, role), text.as_bytes(), 0o600)
    }
}

/// A role's configuration in its directory.
pub fn config_path(dir: &Path, role: RoleName) -> PathBuf {
    dir.join(match role {
        RoleName::Master => "master.toml",
        RoleName::Chunkserver => "chunkserver.toml",
        RoleName::BlockManager => "block-manager.toml",
        RoleName::BlockServer => "block-server.toml",
        RoleName::Frontend => "frontend.toml",
        RoleName::ObjectManager => "object-manager.toml",
        RoleName::ObjectServer => "object-server.toml",
        RoleName::Gateway => "gateway.toml",
    })
}

fn state(path: &Path) -> Result<DirectoryState, Failure> {
    let entries = match std::fs::read_dir(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Ok(DirectoryState::Free);
        }
        entries => entries.map_err(|error| io("open", path, &error))?,
    };
    if path.join(BOOK).exists() {
        return Ok(DirectoryState::Cluster);
    }
    if path.join(UNFINISHED).exists() {
        return Ok(DirectoryState::Free);
    }
    for entry in entries {
        let name = entry.map_err(|error| io("list", path, &error))?.file_name();
        if name != LOCK {
            return Err(Failure::setup(format!(
                "{} is not empty and has no cluster ('{}' lies there): name an empty or a new \
                 directory",
                path.display(),
                name.to_string_lossy()
            )));
        }
    }
    Ok(DirectoryState::Free)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_files_are_left_alone() {
        let dir = crate::output::test_dir("foreign");
        std::fs::write(dir.join("photo.jpg"), "x").expect("it is written");
        let error = Directory::open_or_make(&dir).expect_err("it is not empty");
        assert!(error.message.contains("photo.jpg"), "{error}");
        assert_eq!(std::fs::read_dir(&dir).expect("it lists").count(), 1);
        std::fs::remove_dir_all(dir).expect("it goes");
    }

    #[test]
    fn an_unfinished_directory_is_free() {
        let dir = crate::output::test_dir("unfinished");
        let (directory, state) = Directory::open_or_make(&dir).expect("it is empty");
        assert_eq!(state, DirectoryState::Free);
        std::fs::create_dir(dir.join("m1")).expect("it is made");
        assert!(Directory::open_or_make(&dir).is_err_and(|error| error.message.contains("locked")));
        drop(directory);
        let (directory, state) = Directory::open_or_make(&dir).expect("it can be finished");
        assert_eq!(state, DirectoryState::Free);
        directory.write(&ClusterFile::default()).expect("it is written");
        drop(directory);
        assert_eq!(Directory::open_or_make(&dir).expect("it opens").1, DirectoryState::Cluster);
        std::fs::remove_dir_all(dir).expect("it goes");
    }

    #[test]
    fn a_missing_directory_has_no_cluster() {
        let dir = crate::output::test_dir("missing");
        let error = Directory::existing(&dir.join("no")).expect_err("it is missing");
        assert!(error.message.contains("has no cluster"), "{error}");
        assert!(!dir.join("no").exists());
        std::fs::remove_dir_all(dir).expect("it goes");
    }
}
