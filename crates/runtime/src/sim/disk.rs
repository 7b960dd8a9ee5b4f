//! Simulated files: what a crash keeps, tears and loses; bit rot; failed, slow and full disks.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use super::content::{Content, PAGE};
use super::names::Names;
use super::node::check;
use super::world::{CrashMode, DiskFaults, World};
use crate::buf::{Buf, BufMut};
use crate::env::Env;
use crate::io::{Entry, OpenOptions, WriteMode};

/// Bytes that a device writes without tearing (`protocols.md` 3.2: not 4 KiB).
const TEAR: usize = 512;

#[derive(Default)]
struct FileState {
    /// Content that reads see.
    view: Content,
    /// Content that survives a power cut.
    durable: Content,
    /// Written, returned, not synced; in order.
    unsynced: Vec<(u64, Buf)>,
    /// Written, not returned.
    inflight: BTreeMap<u64, (u64, Buf)>,
    next_write: u64,
    locked_by: Option<u32>,
}

#[derive(Default)]
struct FileNode {
    state: RefCell<FileState>,
}

/// The files of one host.
#[derive(Default)]
pub(crate) struct HostDisk {
    names: RefCell<Names<FileNode>>,
    failed: RefCell<BTreeSet<PathBuf>>,
    /// Pages that cannot be read until they are written again.
    unreadable: RefCell<BTreeSet<(PathBuf, u64)>>,
    pub(crate) faults: RefCell<DiskFaults>,
    used: Cell<u64>,
}

fn eio() -> io::Error {
    io::Error::from_raw_os_error(libc::EIO)
}

fn enospc() -> io::Error {
    io::Error::from_raw_os_error(libc::ENOSPC)
}

impl HostDisk {
    pub(crate) fn check_failed(&self, path: &Path) -> io::Result<()> {
        let failed = self.failed.borrow().iter().any(|prefix| path.starts_with(prefix));
        if failed { Err(eio()) } else { Ok(()) }
    }

    pub(crate) fn set_failed(&self, prefix: &Path, failed: bool) {
        if failed {
            self.failed.borrow_mut().insert(prefix.to_owned());
        } else {
            self.failed.borrow_mut().remove(prefix);
        }
    }

    pub(crate) fn make_unreadable(&self, path: &Path, offset: u64) {
        self.unreadable.borrow_mut().insert((path.to_owned(), offset / PAGE as u64));
    }

    fn check_readable(&self, path: &Path, offset: u64, len: usize) -> io::Result<()> {
        let unreadable = self.unreadable.borrow();
        if unreadable.is_empty() || len == 0 {
            return Ok(());
        }
        let pages = offset / PAGE as u64..(offset + len as u64).div_ceil(PAGE as u64);
        let pages = (path.to_owned(), pages.start)..(path.to_owned(), pages.end);
        if unreadable.range(pages).next().is_some() { Err(eio()) } else { Ok(()) }
    }

    /// A page that is written whole goes to a sound place of the medium.
    fn remap(&self, path: &Path, offset: u64, len: usize) {
        let unreadable = &mut *self.unreadable.borrow_mut();
        if unreadable.is_empty() {
            return;
        }
        let (first, end) = (offset.div_ceil(PAGE as u64), (offset + len as u64) / PAGE as u64);
        unreadable.retain(|(file, page)| file != path || !(first..end).contains(page));
    }

    pub(crate) fn wipe(&self, prefix: &Path) {
        self.unreadable.borrow_mut().retain(|(path, _)| !path.starts_with(prefix));
        self.names.borrow_mut().wipe(prefix);
        self.count_used();
    }

    pub(crate) fn files(&self) -> Vec<(PathBuf, u64)> {
        let names = self.names.borrow();
        names.files().map(|(path, node)| (path.clone(), node.state.borrow().view.len)).collect()
    }

    fn count_used(&self) {
        self.used.set(self.files().iter().map(|(_, len)| len).sum());
    }

    pub(crate) fn flip_bit(&self, path: &Path, offset: u64, bit: u8) -> bool {
        let Some(node) = self.names.borrow().get(path) else { return false };
        let state = &mut *node.state.borrow_mut();
        let mut byte = [0];
        if state.view.read(offset, &mut byte) == 0 {
            return false;
        }
        byte[0] ^= 1 << (bit & 7);
        state.view.write(offset, &byte);
        state.durable.write(offset, &byte);
        true
    }

    /// Makes a directory and its parents; the lowest of them that was there.
    pub(crate) fn create_dir_all(&self, path: &Path) -> io::Result<PathBuf> {
        self.check_failed(path)?;
        Ok(self.names.borrow_mut().make_dirs(path))
    }

    pub(crate) fn read_dir(&self, path: &Path) -> io::Result<Vec<Entry>> {
        self.check_failed(path)?;
        let names = self.names.borrow();
        if !names.has_dir(path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let name = |child: &Path| {
            let name = child.file_name().expect("a child has a name");
            name.to_string_lossy().into_owned()
        };
        let below = names.dirs().filter(|dir| dir.parent() == Some(path));
        let mut entries: Vec<Entry> =
            below.map(|dir| Entry { name: name(dir), is_dir: true, len: 0 }).collect();
        let below = names.files().filter(|(file, _)| file.parent() == Some(path));
        entries.extend(below.map(|(file, node)| Entry {
            name: name(file),
            is_dir: false,
            len: node.state.borrow().view.len,
        }));
        entries.sort();
        Ok(entries)
    }

    pub(crate) fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.check_failed(from)?;
        let renamed = self.names.borrow_mut().rename(from, to);
        renamed.map_err(|()| io::ErrorKind::NotFound)?;
        self.count_used();
        Ok(())
    }

    pub(crate) fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.check_failed(path)?;
        self.names.borrow_mut().remove(path).ok_or(io::ErrorKind::NotFound)?;
        self.count_used();
        Ok(())
    }

    pub(crate) fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.check_failed(path)?;
        let names = &mut *self.names.borrow_mut();
        if !names.has_dir(path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        names.sync_dir(path);
        Ok(())
    }

    /// Decides what becomes of writes and of names that were not durable.
    pub(crate) fn crash(&self, world: &World, mode: CrashMode) {
        let nodes = self.names.borrow().nodes();
        for node in nodes {
            node.state.borrow_mut().crash(world, mode);
        }
        if mode == CrashMode::Power && self.names.borrow_mut().power_cut(|| world.one_in(2)) {
            world.mark("disk: a name is as before");
        }
        self.count_used();
    }

    /// The faults of operations on a file.
    fn faults_of(&self, path: &Path) -> DiskFaults {
        let faults = self.faults.borrow();
        match &faults.within {
            Some(prefix) if !path.starts_with(prefix) => DiskFaults {
                latency: faults.latency,
                capacity: faults.capacity,
                ..DiskFaults::default()
            },
            _ => faults.clone(),
        }
    }

    /// Fails an operation on a name with the error of the disk's faults, one time in so many.
    pub(super) fn fail_names(&self, world: &World, path: &Path) -> io::Result<()> {
        let faults = self.faults_of(path);
        if !world.one_in(faults.names_fail_one_in) {
            return Ok(());
        }
        world.mark("disk: an operation on a name fails");
        Err(faults.error.to_io())
    }

    fn grow(&self, state: &FileState, end: u64) -> io::Result<()> {
        let more = end.saturating_sub(state.view.len);
        if self.used.get() + more > self.faults.borrow().capacity {
            return Err(enospc());
        }
        self.used.set(self.used.get() + more);
        Ok(())
    }
}

impl FileState {
    fn crash(&mut self, world: &World, mode: CrashMode) {
        self.locked_by = None;
        if mode == CrashMode::Process {
            // The page cache survives; writes in flight land or not.
            for (offset, buf) in std::mem::take(&mut self.inflight).into_values() {
                if world.one_in(2) {
                    self.view.write(offset, &buf);
                    self.unsynced.push((offset, buf));
                }
            }
            return;
        }
        let inflight = std::mem::take(&mut self.inflight).into_values();
        for (offset, buf) in std::mem::take(&mut self.unsynced).into_iter().chain(inflight) {
            let fate = world.rng.borrow_mut().below(3);
            match fate {
                0 => {}
                1 => self.durable.write(offset, &buf),
                _ => {
                    world.mark("disk: torn write");
                    for (index, part) in buf.chunks(TEAR).enumerate() {
                        if world.one_in(2) {
                            self.durable.write(offset + (index * TEAR) as u64, part);
                        }
                    }
                }
            }
        }
        self.view = self.durable.clone();
    }

    /// Applies a write that has reached the medium.
    fn land(&mut self, offset: u64, buf: &Buf, mode: WriteMode) {
        self.view.write(offset, buf);
        if mode == WriteMode::Cached {
            self.unsynced.push((offset, buf.clone()));
            return;
        }
        // A durable write takes older cached writes of the same range with it.
        let end = offset + buf.len() as u64;
        let overlaps = |at: u64, len: usize| at < end && offset < at + len as u64;
        let (below, rest) = std::mem::take(&mut self.unsynced)
            .into_iter()
            .partition::<Vec<_>, _>(|(at, kept)| overlaps(*at, kept.len()));
        self.unsynced = rest;
        for (at, kept) in below {
            self.durable.write(at, &kept);
        }
        self.durable.adopt(&self.view, offset, buf.len());
    }
}

/// An open simulated file.
#[derive(Clone)]
pub struct SimFile {
    env: Env,
    world: Rc<World>,
    disk: Rc<HostDisk>,
    path: PathBuf,
    file: Rc<FileNode>,
    direct: bool,
    writable: bool,
}

impl SimFile {
    pub(crate) fn open(
        env: &Env,
        world: Rc<World>,
        disk: Rc<HostDisk>,
        path: &Path,
        options: OpenOptions,
    ) -> io::Result<SimFile> {
        disk.check_failed(path)?;
        disk.fail_names(&world, path)?;
        let found = disk.names.borrow().get(path);
        let file = match found {
            Some(_) if options.create_new => return Err(io::ErrorKind::AlreadyExists.into()),
            Some(file) => file,
            None if options.create || options.create_new => {
                let parent = path.parent().unwrap_or(Path::new("/"));
                if !disk.names.borrow().has_dir(parent) {
                    return Err(io::ErrorKind::NotFound.into());
                }
                let file = Rc::new(FileNode::default());
                disk.names.borrow_mut().create(path, file.clone());
                file
            }
            None => return Err(io::ErrorKind::NotFound.into()),
        };
        Ok(SimFile {
            env: env.clone(),
            world,
            disk,
            path: path.to_owned(),
            file,
            direct: options.direct,
            writable: options.write,
        })
    }

    async fn delay(&self) {
        let faults = self.disk.faults_of(&self.path);
        let stalls = self.world.one_in(faults.stall_one_in);
        let stall = if stalls { faults.stall } else { Duration::ZERO };
        let length = self.world.between(faults.latency) + stall;
        self.world.sleep(length).await;
    }

    /// Fails with the error of the disk's faults, one time in `one_in`.
    fn fail_one_in(&self, one_in: u64, mark: &'static str) -> io::Result<()> {
        if !self.world.one_in(one_in) {
            return Ok(());
        }
        self.world.mark(mark);
        Err(self.disk.faults_of(&self.path).error.to_io())
    }

    fn check(&self) -> io::Result<()> {
        check(&self.env)?;
        self.disk.check_failed(&self.path)
    }

    fn assert_aligned(&self, offset: u64, len: usize, address: usize) {
        if self.direct {
            let aligned = [offset as usize, len, address].map(|value| value % PAGE == 0);
            assert_eq!(aligned, [true; 3], "direct I/O at {offset}, {len} bytes: not aligned");
        }
    }

    /// See [`crate::File::read_at`].
    pub async fn read_at(&self, offset: u64, mut buf: BufMut) -> (io::Result<usize>, BufMut) {
        self.assert_aligned(offset, buf.len(), buf.as_ptr() as usize);
        if let Err(error) = self.check() {
            return (Err(error), buf);
        }
        self.delay().await;
        if let Err(error) = self.check() {
            return (Err(error), buf);
        }
        let faults = self.disk.faults_of(&self.path);
        if let Err(error) = self.fail_one_in(faults.read_fails_one_in, "disk: a read fails") {
            return (Err(error), buf);
        }
        if let Err(error) = self.disk.check_readable(&self.path, offset, buf.len()) {
            self.world.mark("disk: unreadable sector");
            return (Err(error), buf);
        }
        let count = self.file.state.borrow().view.read(offset, &mut buf);
        // Its bytes were noted when they were written; what damaged them since came of the seed.
        self.world.note(offset, count as u64);
        (Ok(count), buf)
    }

    /// See [`crate::File::write_at`].
    pub async fn write_at(&self, offset: u64, buf: Buf, mode: WriteMode) -> io::Result<()> {
        self.assert_aligned(offset, buf.len(), buf.as_ptr() as usize);
        assert!(self.writable, "{} is open for reading only", self.path.display());
        self.check()?;
        let id = {
            let state = &mut *self.file.state.borrow_mut();
            self.disk.grow(state, offset + buf.len() as u64)?;
            state.view.len = state.view.len.max(offset + buf.len() as u64);
            state.next_write += 1;
            let id = state.next_write;
            state.inflight.insert(id, (offset, buf.clone()));
            id
        };
        self.world.note_bytes(offset, &buf);
        // The write goes on when the caller's future is dropped, as it would in the kernel.
        let this = self.clone();
        let write = async move {
            this.delay().await;
            this.complete(id, offset, &buf, mode)
        };
        let task = self.env.spawn(crate::Class::Foreground, "sim disk write", write);
        task.await.unwrap_or_else(|_| Err(io::Error::other("the node has crashed")))
    }

    fn complete(&self, id: u64, offset: u64, buf: &Buf, mode: WriteMode) -> io::Result<()> {
        self.check()?;
        let faults = self.disk.faults_of(&self.path);
        let state = &mut *self.file.state.borrow_mut();
        if state.inflight.remove(&id).is_none() {
            return Err(io::Error::other("the node has crashed"));
        }
        if let Err(error) = self.fail_one_in(faults.write_fails_one_in, "disk: a write fails") {
            // Any part of it may have been written.
            for (index, part) in (0..buf.len()).step_by(TEAR).enumerate() {
                if self.world.one_in(2) {
                    let part = buf.slice(part..(part + TEAR).min(buf.len()));
                    state.land(offset + (index * TEAR) as u64, &part, WriteMode::Cached);
                }
            }
            return Err(error);
        }
        if mode == WriteMode::Durable && self.world.one_in(faults.lost_one_in) {
            self.world.mark("disk: lost write");
            return Ok(());
        }
        let mut landed = offset;
        if mode == WriteMode::Durable && self.world.one_in(faults.misdirected_one_in) {
            self.world.mark("disk: misdirected write");
            let shift = self.world.rng.borrow_mut().between(1, 16) * PAGE as u64;
            landed = if landed > shift { landed - shift } else { landed + shift };
        }
        state.land(landed, buf, mode);
        self.disk.remap(&self.path, landed, buf.len());
        Ok(())
    }

    /// See [`crate::File::write_vectored_at`].
    pub async fn write_vectored_at(
        &self,
        offset: u64,
        bufs: Vec<Buf>,
        mode: WriteMode,
    ) -> io::Result<()> {
        let total = bufs.iter().map(|buf| buf.len()).sum();
        let mut joined = self.env.pool().alloc(total).map_err(io::Error::other)?;
        let mut at = 0;
        for buf in bufs {
            joined[at..at + buf.len()].copy_from_slice(&buf);
            at += buf.len();
        }
        self.write_at(offset, joined.freeze(), mode).await
    }

    /// See [`crate::File::sync`].
    pub async fn sync(&self) -> io::Result<()> {
        self.check()?;
        let count = self.file.state.borrow().unsynced.len();
        self.delay().await;
        self.check()?;
        let failed = {
            let faults = self.disk.faults_of(&self.path);
            self.fail_one_in(faults.sync_fails_one_in, "disk: a sync fails")
        };
        let state = &mut *self.file.state.borrow_mut();
        if failed.is_err() {
            // The kernel forgets that these pages are to be written: reads see them until the
            // power is cut, and no later sync makes them durable.
            for (offset, buf) in std::mem::take(&mut state.unsynced) {
                if self.world.one_in(2) {
                    state.durable.write(offset, &buf);
                }
            }
            return failed;
        }
        // Durable writes may have taken some entries along: what is left in front is older.
        let count = count.min(state.unsynced.len());
        for (offset, buf) in state.unsynced.drain(..count).collect::<Vec<_>>() {
            state.durable.write(offset, &buf);
        }
        state.durable.len = state.view.len;
        self.world.note(count as u64, 0x5c);
        Ok(())
    }

    /// See [`crate::File::allocate`].
    pub async fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.check()?;
        self.delay().await;
        self.check()?;
        let faults = self.disk.faults_of(&self.path);
        self.fail_one_in(faults.write_fails_one_in, "disk: a write fails")?;
        let state = &mut *self.file.state.borrow_mut();
        self.disk.grow(state, offset + len)?;
        // The length is durable with the next sync, or with a durable write behind it.
        state.view.len = state.view.len.max(offset + len);
        Ok(())
    }

    /// See [`crate::File::len`].
    pub fn len(&self) -> io::Result<u64> {
        self.check()?;
        Ok(self.file.state.borrow().view.len)
    }

    /// True when the file holds no byte.
    pub fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// See [`crate::File::set_len`].
    pub fn set_len(&self, len: u64) -> io::Result<()> {
        self.check()?;
        let state = &mut *self.file.state.borrow_mut();
        self.disk.grow(state, len)?;
        self.disk.used.set(self.disk.used.get() - state.view.len.saturating_sub(len));
        state.view.set_len(len);
        state.durable.set_len(len);
        // Bytes written below the cut are still to be synced.
        state.unsynced.retain_mut(|(offset, buf)| {
            let kept = len.saturating_sub(*offset).min(buf.len() as u64);
            *buf = buf.slice(0..kept as usize);
            kept > 0
        });
        Ok(())
    }

    /// See [`crate::File::try_lock`]. The lock goes with the node.
    pub fn try_lock(&self) -> io::Result<()> {
        self.check()?;
        let state = &mut *self.file.state.borrow_mut();
        match state.locked_by {
            Some(node) if node != self.env.node() => Err(io::ErrorKind::WouldBlock.into()),
            _ => {
                state.locked_by = Some(self.env.node());
                Ok(())
            }
        }
    }
}

impl fmt::Debug for SimFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimFile({})", self.path.display())
    }
}
