//! Simulated files: what a crash keeps, tears and loses; bit rot; failed, slow and full disks.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use super::node::check;
use super::world::{CrashMode, DiskFaults, World};
use crate::buf::{Buf, BufMut};
use crate::env::Env;
use crate::io::{Entry, OpenOptions, WriteMode};

const PAGE: usize = 4096;
/// What a device writes without tearing (`protocols.md` 3.2: not 4 KiB).
const TEAR: usize = 512;

static ZEROS: [u8; PAGE] = [0; PAGE];

/// Content in pages; absent pages are zeros.
#[derive(Clone, Default)]
struct Content {
    pages: BTreeMap<u64, Rc<[u8; PAGE]>>,
    len: u64,
}

impl Content {
    fn write(&mut self, offset: u64, bytes: &[u8]) {
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let (page, within) = (at / PAGE as u64, (at % PAGE as u64) as usize);
            let count = (PAGE - within).min(bytes.len() - done);
            let part = &bytes[done..done + count];
            if part == &ZEROS[..count] && (count == PAGE || !self.pages.contains_key(&page)) {
                self.pages.remove(&page);
            } else if count == PAGE {
                self.pages.insert(page, Rc::new(part.try_into().expect("a whole page")));
            } else {
                let kept = self.pages.entry(page).or_insert_with(|| Rc::new([0; PAGE]));
                Rc::make_mut(kept)[within..within + count].copy_from_slice(part);
            }
            done += count;
        }
        self.len = self.len.max(offset + bytes.len() as u64);
    }

    /// Makes a range equal to `other`'s. Whole pages are shared, not copied.
    fn adopt(&mut self, other: &Content, offset: u64, len: usize) {
        let end = offset + len as u64;
        let mut at = offset;
        while at < end {
            let (page, within) = (at / PAGE as u64, (at % PAGE as u64) as usize);
            let count = ((PAGE - within) as u64).min(end - at) as usize;
            if count == PAGE {
                match other.pages.get(&page) {
                    Some(kept) => self.pages.insert(page, kept.clone()),
                    None => self.pages.remove(&page),
                };
            } else {
                let mut part = [0; PAGE];
                other.read(at, &mut part[..count]);
                self.write(at, &part[..count]);
            }
            at += count as u64;
        }
        self.len = self.len.max(end);
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> usize {
        let end = self.len.min(offset.saturating_add(bytes.len() as u64));
        let count = end.saturating_sub(offset) as usize;
        let mut done = 0;
        while done < count {
            let at = offset + done as u64;
            let (page, within) = (at / PAGE as u64, (at % PAGE as u64) as usize);
            let part = (PAGE - within).min(count - done);
            match self.pages.get(&page) {
                Some(kept) => {
                    bytes[done..done + part].copy_from_slice(&kept[within..within + part])
                }
                None => bytes[done..done + part].fill(0),
            }
            done += part;
        }
        count
    }

    fn set_len(&mut self, len: u64) {
        if len < self.len {
            let first_gone = len.div_ceil(PAGE as u64);
            self.pages.split_off(&first_gone);
            let within = (len % PAGE as u64) as usize;
            if let Some(last) = self.pages.get_mut(&(len / PAGE as u64)) {
                Rc::make_mut(last)[within..].fill(0);
            }
        }
        self.len = len;
    }
}

#[derive(Default)]
struct FileState {
    /// What reads see.
    view: Content,
    /// What survives a power cut.
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
    files: RefCell<BTreeMap<PathBuf, Rc<FileNode>>>,
    dirs: RefCell<BTreeSet<PathBuf>>,
    failed: RefCell<BTreeSet<PathBuf>>,
    /// Pages that cannot be read until they are written anew.
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
        let mut files = self.files.borrow_mut();
        files.retain(|path, node| {
            let kept = !path.starts_with(prefix);
            if !kept {
                let len = node.state.borrow().view.len;
                self.used.set(self.used.get().saturating_sub(len));
            }
            kept
        });
    }

    pub(crate) fn files(&self) -> Vec<(PathBuf, u64)> {
        let files = self.files.borrow();
        files.iter().map(|(path, node)| (path.clone(), node.state.borrow().view.len)).collect()
    }

    pub(crate) fn flip_bit(&self, path: &Path, offset: u64, bit: u8) -> bool {
        let Some(node) = self.files.borrow().get(path).cloned() else { return false };
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

    pub(crate) fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.check_failed(path)?;
        let mut dirs = self.dirs.borrow_mut();
        dirs.extend(path.ancestors().map(Path::to_owned));
        Ok(())
    }

    pub(crate) fn read_dir(&self, path: &Path) -> io::Result<Vec<Entry>> {
        self.check_failed(path)?;
        if !self.dirs.borrow().contains(path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let name = |child: &Path| {
            let name = child.file_name().expect("a child has a name");
            name.to_string_lossy().into_owned()
        };
        let dirs = self.dirs.borrow();
        let below = dirs.iter().filter(|dir| dir.parent() == Some(path));
        let mut entries: Vec<Entry> =
            below.map(|dir| Entry { name: name(dir), is_dir: true, len: 0 }).collect();
        let files = self.files.borrow();
        let below = files.iter().filter(|(file, _)| file.parent() == Some(path));
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
        let mut files = self.files.borrow_mut();
        let node = files.remove(from).ok_or(io::ErrorKind::NotFound)?;
        if let Some(replaced) = files.insert(to.to_owned(), node) {
            let len = replaced.state.borrow().view.len;
            self.used.set(self.used.get().saturating_sub(len));
        }
        Ok(())
    }

    pub(crate) fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.check_failed(path)?;
        let node = self.files.borrow_mut().remove(path).ok_or(io::ErrorKind::NotFound)?;
        let len = node.state.borrow().view.len;
        self.used.set(self.used.get().saturating_sub(len));
        Ok(())
    }

    /// Decides what becomes of writes that were not durable.
    pub(crate) fn crash(&self, world: &World, mode: CrashMode) {
        for node in self.files.borrow().values() {
            node.state.borrow_mut().crash(world, mode);
        }
        self.used.set(self.files().iter().map(|(_, len)| len).sum());
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
        let found = disk.files.borrow().get(path).cloned();
        let file = match found {
            Some(_) if options.create_new => return Err(io::ErrorKind::AlreadyExists.into()),
            Some(file) => file,
            None if options.create || options.create_new => {
                let parent = path.parent().unwrap_or(Path::new("/"));
                if !disk.dirs.borrow().contains(parent) {
                    return Err(io::ErrorKind::NotFound.into());
                }
                let file = Rc::new(FileNode::default());
                disk.files.borrow_mut().insert(path.to_owned(), file.clone());
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
        let (base, stall) = {
            let faults = self.disk.faults.borrow();
            let stalls = self.world.one_in(faults.stall_one_in);
            (faults.latency, if stalls { faults.stall } else { Duration::ZERO })
        };
        let length = self.world.between(base) + stall;
        self.world.sleep(length).await;
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
        if let Err(error) = self.disk.check_readable(&self.path, offset, buf.len()) {
            self.world.mark("disk: unreadable sector");
            return (Err(error), buf);
        }
        let count = self.file.state.borrow().view.read(offset, &mut buf);
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
        self.world.note(offset, buf.len() as u64);
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
        let faults = self.disk.faults.borrow().clone();
        let state = &mut *self.file.state.borrow_mut();
        if state.inflight.remove(&id).is_none() {
            return Err(io::Error::other("the node has crashed"));
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
        let state = &mut *self.file.state.borrow_mut();
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
        let state = &mut *self.file.state.borrow_mut();
        self.disk.grow(state, offset + len)?;
        state.view.len = state.view.len.max(offset + len);
        state.durable.len = state.view.len;
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
        // What was written below the cut is still to be synced.
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
