//! A Raft log in segment files of the master's directory.
//!
//! A segment is a file `segment-NNNNNNNNNNNNNNNN` (its number, in hexadecimal) of fixed length,
//! filled with zeros before it gets its name, so that an append meets no unwritten extent
//! (`protocols.md` 3.5). The next segment is made while the current one fills.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use runtime::{Buf, Class, Duration, Env, File, JoinHandle, OpenOptions, WriteMode};

use super::device::{LogDevice, LogImage};
use super::error::DeviceError;
use super::limits::LOG_BLOCK;

/// Attempts of an operation to get buffers before it fails, 1 ms apart.
const BUFFER_WAITS_MAX: u32 = 5_000;
/// Pause between two attempts to get a buffer.
const BUFFER_WAIT: Duration = Duration::from_millis(1);
/// Bytes of one read or zeroing write.
const PIECE: usize = 1 << 20;

const PREFIX: &str = "segment-";

/// Adds operation and file to an error.
pub(super) fn io_error(
    operation: &'static str,
    path: &Path,
) -> impl FnOnce(io::Error) -> DeviceError + use<> {
    let path = path.to_owned();
    move |error| DeviceError::Io { operation, path, kind: error.kind() }
}

/// A buffer with a copy of `bytes`; waits while the pool is exhausted.
pub(super) async fn buffer_of(env: &Env, bytes: &[u8]) -> Result<Buf, DeviceError> {
    for _ in 0..BUFFER_WAITS_MAX {
        if let Ok(buf) = env.pool().copy_of(bytes) {
            return Ok(buf);
        }
        env.sleep(BUFFER_WAIT).await;
    }
    Err(DeviceError::NoBuffers)
}

/// The whole content of a file.
pub(super) async fn read_to_end(
    env: &Env,
    file: &File,
    path: &Path,
) -> Result<Vec<u8>, DeviceError> {
    let len = file.len().await.map_err(io_error("measure", path))?;
    let mut bytes = Vec::with_capacity(len as usize);
    while (bytes.len() as u64) < len {
        let want = (len - bytes.len() as u64).min(PIECE as u64) as usize;
        let buf = buffer_of(env, &vec![0; want]).await?;
        let buf = buf.try_into_mut().expect("made above, not shared");
        let (count, buf) = file.read_at(bytes.len() as u64, buf).await;
        let count = count.map_err(io_error("read", path))?;
        if count == 0 {
            break;
        }
        bytes.extend_from_slice(&buf[..count]);
    }
    Ok(bytes)
}

/// A [`LogDevice`] over [`File`].
pub struct FileDevice {
    env: Env,
    dir: PathBuf,
    segment_len: u64,
    /// Open segments by number.
    segments: BTreeMap<u64, File>,
    /// The segment behind the last, on its way.
    next: Option<JoinHandle<Result<File, DeviceError>>>,
}

impl FileDevice {
    /// The log in the directory `dir`, which is made when absent. `segment_len` must be what
    /// the log was made with.
    pub async fn open(env: &Env, dir: &Path, segment_len: u64) -> Result<FileDevice, DeviceError> {
        assert!(segment_len.is_multiple_of(LOG_BLOCK as u64) && segment_len > 0);
        env.create_dir_all(dir).await.map_err(io_error("make", dir))?;
        let mut segments = BTreeMap::new();
        for entry in env.read_dir(dir).await.map_err(io_error("list", dir))? {
            let number = entry.name.strip_prefix(PREFIX);
            let Some(number) = number.and_then(|hex| u64::from_str_radix(hex, 16).ok()) else {
                continue;
            };
            let path = segment_path(dir, number);
            if entry.len != segment_len {
                return Err(DeviceError::Segment { path });
            }
            let options = OpenOptions { create: false, ..OpenOptions::CREATE }.direct();
            let file = env.open_file(&path, options).await.map_err(io_error("open", &path))?;
            segments.insert(number, file);
        }
        let mut previous = None;
        for &number in segments.keys() {
            if previous.is_some_and(|previous| number != previous + 1) {
                return Err(DeviceError::Segment { path: segment_path(dir, number - 1) });
            }
            previous = Some(number);
        }
        let (env, dir) = (env.clone(), dir.to_owned());
        Ok(FileDevice { env, dir, segment_len, segments, next: None })
    }

    /// The segment numbered `number`, which is the last or the one behind it.
    async fn segment(&mut self, number: u64) -> Result<File, DeviceError> {
        if let Some(file) = self.segments.get(&number) {
            return Ok(file.clone());
        }
        let file = match self.next.take() {
            Some(making) => match making.await {
                Ok(file) => file?,
                // The node is closed: nothing reaches the disk any more.
                Err(_) => std::future::pending().await,
            },
            None => {
                make_segment(self.env.clone(), self.dir.clone(), number, self.segment_len).await?
            }
        };
        self.segments.insert(number, file.clone());
        Ok(file)
    }

    /// Starts to make the segment behind the last one when that is half full.
    fn prepare(&mut self, end: u64) {
        let last = end / self.segment_len;
        let half_full = end % self.segment_len >= self.segment_len / 2;
        if half_full && self.next.is_none() && !self.segments.contains_key(&(last + 1)) {
            let (env, dir) = (self.env.clone(), self.dir.clone());
            let making = make_segment(env, dir, last + 1, self.segment_len);
            self.next = Some(self.env.spawn(Class::Background, "raft log segment", making));
        }
    }
}

fn segment_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{PREFIX}{number:016x}"))
}

/// Makes a segment of zeros, durable before it has its name.
async fn make_segment(
    env: Env,
    dir: PathBuf,
    number: u64,
    segment_len: u64,
) -> Result<File, DeviceError> {
    let fresh = dir.join("new-segment");
    let path = segment_path(&dir, number);
    let opened = env.open_file(&fresh, OpenOptions::CREATE.direct()).await;
    let file = opened.map_err(io_error("create", &fresh))?;
    file.set_len(0).await.map_err(io_error("cut", &fresh))?;
    file.allocate(0, segment_len).await.map_err(io_error("reserve", &fresh))?;
    let mut at = 0;
    while at < segment_len {
        let len = (segment_len - at).min(PIECE as u64);
        let zeros = buffer_of(&env, &vec![0; len as usize]).await?;
        let written = file.write_at(at, zeros, WriteMode::Cached).await;
        written.map_err(io_error("zero", &fresh))?;
        at += len;
    }
    file.sync().await.map_err(io_error("sync", &fresh))?;
    env.rename(&fresh, &path).await.map_err(io_error("rename", &fresh))?;
    env.sync_dir(&dir).await.map_err(io_error("sync", &dir))?;
    Ok(file)
}

impl LogDevice for FileDevice {
    fn segment_len(&self) -> u64 {
        self.segment_len
    }

    fn block_len(&self) -> usize {
        LOG_BLOCK
    }

    async fn read_all(&mut self) -> Result<LogImage, DeviceError> {
        self.env.sync_dir(&self.dir).await.map_err(io_error("sync", &self.dir))?;
        let first = self.segments.keys().next().map_or(0, |number| number * self.segment_len);
        let mut segments = Vec::new();
        for (&number, file) in &self.segments {
            let path = segment_path(&self.dir, number);
            file.sync().await.map_err(io_error("sync", &path))?;
            let bytes = read_to_end(&self.env, file, &path).await?;
            if bytes.len() as u64 != self.segment_len {
                return Err(DeviceError::Segment { path });
            }
            segments.push(bytes);
        }
        Ok(LogImage { first, segment_len: self.segment_len, segments })
    }

    async fn append(&mut self, at: u64, batch: &[u8]) -> Result<(), DeviceError> {
        let number = at / self.segment_len;
        let file = self.segment(number).await?;
        let buf = buffer_of(&self.env, batch).await?;
        let path = segment_path(&self.dir, number);
        let written = file.write_at(at % self.segment_len, buf, WriteMode::Durable).await;
        written.map_err(io_error("write", &path))?;
        self.prepare(at + batch.len() as u64 - 1);
        Ok(())
    }

    async fn drop_prefix(&mut self, below: u64) -> Result<(), DeviceError> {
        let keep = below / self.segment_len;
        while let Some((&number, _)) = self.segments.first_key_value()
            && number < keep
        {
            self.segments.remove(&number);
            let path = segment_path(&self.dir, number);
            self.env.remove_file(&path).await.map_err(io_error("remove", &path))?;
            // One by one, so that a crash leaves no gap.
            self.env.sync_dir(&self.dir).await.map_err(io_error("sync", &self.dir))?;
        }
        Ok(())
    }
}
