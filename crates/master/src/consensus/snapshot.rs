//! Where a group's snapshot lives: one at a time, replaced as a whole.

use std::future::ready;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use runtime::{Env, File, OpenOptions, WriteMode};

use super::error::{DeviceError, LogError};
use super::files::{buffer_of, io_error, read_to_end};
use super::net::LocalFuture;

/// Keeps one snapshot.
pub trait SnapshotStore: 'static {
    /// Replaces the snapshot. Durable on return; until then the old one stays.
    fn save<'a>(&'a mut self, parts: [&'a [u8]; 2]) -> LocalFuture<'a, Result<(), DeviceError>>;

    /// The snapshot that was saved last, if one was: the parts one behind the other.
    fn load(&mut self) -> LocalFuture<'_, Result<Option<Vec<u8>>, LogError>>;
}

/// Magic, CRC32C of the rest, length.
const HEADER: usize = 16;
const MAGIC: [u8; 4] = *b"CRsn";
/// Bytes of one write.
const WRITE_LEN: usize = 1 << 20;

/// A snapshot in a file, which is replaced by renaming.
pub struct FileSnapshots {
    env: Env,
    dir: PathBuf,
}

impl FileSnapshots {
    /// In the directory `dir`, which is made when absent.
    pub async fn open(env: &Env, dir: &Path) -> Result<FileSnapshots, DeviceError> {
        env.create_dir_all(dir).await.map_err(io_error("make", dir))?;
        Ok(FileSnapshots { env: env.clone(), dir: dir.to_owned() })
    }

    async fn write(&self, file: &File, parts: [&[u8]; 3], path: &Path) -> Result<(), DeviceError> {
        let mut at = 0;
        for part in parts.into_iter().flat_map(|part| part.chunks(WRITE_LEN)) {
            let buf = buffer_of(&self.env, part).await?;
            let written = file.write_at(at, buf, WriteMode::Cached).await;
            written.map_err(io_error("write", path))?;
            at += part.len() as u64;
        }
        file.set_len(at).await.map_err(io_error("cut", path))?;
        file.sync().await.map_err(io_error("sync", path))
    }
}

impl FileSnapshots {
    async fn replace(&mut self, parts: [&[u8]; 2]) -> Result<(), DeviceError> {
        let (fresh, kept) = (self.dir.join("snapshot.new"), self.dir.join("snapshot"));
        let len = (parts[0].len() + parts[1].len()) as u64;
        let mut crc = super::record::Crc32c::new();
        crc.update(&len.to_le_bytes());
        parts.iter().for_each(|part| crc.update(part));
        let mut header = MAGIC.to_vec();
        header.extend_from_slice(&crc.finish().to_le_bytes());
        header.extend_from_slice(&len.to_le_bytes());
        let opened = self.env.open_file(&fresh, OpenOptions::CREATE).await;
        let file = opened.map_err(io_error("create", &fresh))?;
        self.write(&file, [&header, parts[0], parts[1]], &fresh).await?;
        drop(file);
        self.env.rename(&fresh, &kept).await.map_err(io_error("rename", &fresh))?;
        self.env.sync_dir(&self.dir).await.map_err(io_error("sync", &self.dir))
    }

    async fn read(&mut self) -> Result<Option<Vec<u8>>, LogError> {
        let path = self.dir.join("snapshot");
        let file = match self.env.open_file(&path, OpenOptions::READ).await {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io_error("open", &path)(error).into()),
        };
        // The name may be there before it is durable, after a crash of the process alone.
        self.env.sync_dir(&self.dir).await.map_err(io_error("sync", &self.dir))?;
        let mut bytes = read_to_end(&self.env, &file, &path).await?;
        if bytes.len() < HEADER || bytes[..4] != MAGIC {
            return Err(LogError::SnapshotLost);
        }
        let stored = u32::from_le_bytes(bytes[4..8].try_into().expect("4 bytes"));
        let len = u64::from_le_bytes(bytes[8..HEADER].try_into().expect("8 bytes"));
        let mut crc = super::record::Crc32c::new();
        crc.update(&bytes[8..]);
        if len != (bytes.len() - HEADER) as u64 || crc.finish() != stored {
            return Err(LogError::SnapshotLost);
        }
        bytes.drain(..HEADER);
        Ok(Some(bytes))
    }
}

impl SnapshotStore for FileSnapshots {
    fn save<'a>(&'a mut self, parts: [&'a [u8]; 2]) -> LocalFuture<'a, Result<(), DeviceError>> {
        Box::pin(self.replace(parts))
    }

    fn load(&mut self) -> LocalFuture<'_, Result<Option<Vec<u8>>, LogError>> {
        Box::pin(self.read())
    }
}

/// A snapshot in memory, which clones share. For tests.
#[derive(Clone, Debug, Default)]
pub struct MemorySnapshots(Rc<std::cell::RefCell<Option<Vec<u8>>>>);

impl SnapshotStore for MemorySnapshots {
    fn save<'a>(&'a mut self, parts: [&'a [u8]; 2]) -> LocalFuture<'a, Result<(), DeviceError>> {
        *self.0.borrow_mut() = Some(parts.concat());
        Box::pin(ready(Ok(())))
    }

    fn load(&mut self) -> LocalFuture<'_, Result<Option<Vec<u8>>, LogError>> {
        Box::pin(ready(Ok(self.0.borrow().clone())))
    }
}
