//! The tables of a namespace partition, and what can be asked of them.

use std::ops::Bound;

use base::limits::NAME_MAX;
use base::{DirId, FileId};
use wire::control::{Attributes, NameKey, Node, Policy, dir_id, namespace_partition};

use super::{Namespace, Refusal};
use crate::limits::{
    DEPTH_MAX, ENTRY_BYTES, LIST_BYTES_MAX, LIST_MAX, NAMES_MAX, VERSIONS_PER_DIR_MAX,
};
use master_consensus::tracked::Tracked;

/// The target of a name, in its directory's partition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Entry {
    /// A file; what it is, the partition knows that made it.
    File(FileId),
    /// A directory; what is in it, its own partition knows.
    Dir {
        /// Its identity.
        dir: DirId,
        /// Its attributes.
        attributes: Attributes,
    },
    /// A symbolic link.
    Symlink {
        /// Its target path.
        target: Box<str>,
        /// Its attributes.
        attributes: Attributes,
    },
}

/// A directory, in its own partition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Dir {
    /// Its parent; the root is its own.
    pub(super) parent: DirId,
    pub(super) entries: Tracked<Box<str>, Entry>,
    /// For each name that ever was a new directory here: the version of the next one.
    pub(super) versions: Tracked<Box<str>, u32>,
    /// The version of the next new directory of any other name.
    pub(super) versions_floor: u32,
    /// Its own policy for files that are made in it, and below where no other goes before. It stays
    /// with the directory when that is moved.
    pub(super) policy: Option<Policy>,
}

/// A file, in the partition that made it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Inode {
    /// Its replication policy.
    pub policy: Policy,
    /// Its attributes.
    pub attributes: Attributes,
    /// Names it has, in all partitions, and those on their way.
    pub links: u32,
    /// Length when it was last closed.
    pub len: u64,
}

impl Inode {
    /// As clients see it.
    pub fn node(&self, file: FileId) -> Node {
        let Inode { policy, attributes, links, len } = *self;
        Node::File { file, policy, attributes, links, len }
    }
}

impl Dir {
    pub(super) fn new(parent: DirId) -> Dir {
        let (entries, versions) = (Tracked::default(), Tracked::default());
        Dir { parent, entries, versions, versions_floor: 0, policy: None }
    }

    /// The version that a new directory `name` here gets.
    pub(super) fn version(&self, name: &str) -> u32 {
        self.versions.get(name).copied().unwrap_or(0).max(self.versions_floor)
    }

    /// A directory of this name and version has come into being.
    pub(super) fn use_version(&mut self, name: &str, version: u32) {
        if self.versions.len() >= VERSIONS_PER_DIR_MAX && !self.versions.contains_key(name) {
            let highest = self.versions.values().copied().max().unwrap_or(0);
            self.versions_floor = self.versions_floor.max(highest);
            self.versions.clear();
        }
        let next = version.saturating_add(1);
        let counter = self.versions.get_or_insert_with(name.into(), || 0);
        *counter = next.max(*counter);
    }
}

/// The target of a name, as far as one partition knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Found {
    /// All of it.
    Node(Node),
    /// A file whose attributes another partition knows.
    Remote(FileId),
}

/// One page of names, and whether more follow.
pub type Page = (Vec<(String, Found)>, bool);

/// True for 1 to 255 bytes without '/' and zero bytes that are not `.` or `..`.
pub fn is_name(name: &str) -> bool {
    let len = 1..=NAME_MAX;
    len.contains(&name.len()) && name != "." && name != ".." && !name.contains(['/', '\0'])
}

impl Namespace {
    /// The target of `place`.
    pub fn lookup(&self, place: &NameKey) -> Result<Found, Refusal> {
        self.check_readable(place.parent, Some(&place.name))?;
        Ok(self.found(self.entry(place)?))
    }

    /// Names of `dir` above `after`, in byte order, as many as fit one answer.
    pub fn list(&self, dir: DirId, after: Option<&str>, limit: u32) -> Result<Page, Refusal> {
        self.check_readable(dir, None)?;
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut entries = self.dir(dir)?.entries.range::<str, _>((from, Bound::Unbounded));
        let limit = limit.clamp(1, LIST_MAX) as usize;
        let (mut page, mut bytes, mut more) = (Vec::new(), 0, false);
        for (name, entry) in entries.by_ref() {
            let target = if let Entry::Symlink { target, .. } = entry { target.len() } else { 0 };
            bytes += name.len() + target + ENTRY_BYTES;
            more = page.len() == limit || bytes > LIST_BYTES_MAX;
            if more {
                break;
            }
            page.push((name.to_string(), self.found(entry)));
        }
        let last = if more { page.last().map(|(name, _)| name.as_str()) } else { None };
        self.check_range_readable(dir, after, last)?;
        Ok((page, more))
    }

    /// Attributes of a file of this partition.
    pub fn stat(&self, file: FileId) -> Result<Node, Refusal> {
        if file.partition() != self.partition {
            return Err(Refusal::Elsewhere);
        }
        self.inodes.get(&file).map(|inode| inode.node(file)).ok_or(Refusal::NoFile)
    }

    /// True when this partition made the file and it has a name.
    pub fn has_file(&self, file: FileId) -> bool {
        self.inodes.contains_key(&file)
    }

    /// The own policy of a directory of this partition.
    pub fn dir_policy(&self, dir: DirId) -> Result<Option<Policy>, Refusal> {
        self.check_readable(dir, None)?;
        Ok(self.dir(dir)?.policy)
    }

    /// The parent of a directory of this partition.
    pub fn parent(&self, dir: DirId) -> Result<DirId, Refusal> {
        Ok(self.dir(dir)?.parent)
    }

    /// Files in this partition.
    pub fn files(&self) -> u64 {
        self.inodes.len() as u64
    }

    /// Directories in this partition.
    pub fn dirs(&self) -> u64 {
        self.dirs.len() as u64
    }

    /// Up to `limit` files above `after` that have lost their last name and whose stream
    /// partition has not confirmed it yet.
    pub fn orphans(&self, after: Option<FileId>, limit: usize) -> Vec<FileId> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.orphans.range((from, Bound::Unbounded)).take(limit).map(|(&file, ())| file).collect()
    }

    /// All files of this partition, for checkers.
    pub fn inodes(&self) -> impl Iterator<Item = (FileId, Inode)> + '_ {
        self.inodes.iter().map(|(&file, &inode)| (file, inode))
    }

    /// All directories of this partition with where they lie, for checkers.
    pub fn dir_ids(&self) -> impl Iterator<Item = (DirId, DirId)> + '_ {
        self.dirs.iter().map(|(&id, dir)| (id, dir.parent))
    }

    /// All names of a directory, for checkers.
    pub fn entries(&self, dir: DirId) -> impl Iterator<Item = (&str, &Entry)> + '_ {
        let names = self.dirs.get(&dir).into_iter().flat_map(|dir| dir.entries.iter());
        names.map(|(name, entry)| (&**name, entry))
    }

    /// True when no change across partitions has left anything behind, for checkers.
    pub fn is_quiet(&self) -> bool {
        let cross = &self.cross;
        cross.intents.is_empty()
            && cross.prepared.is_empty()
            && cross.names.is_empty()
            && cross.dirs.is_empty()
            && cross.turn.is_none()
    }

    /// Milliseconds of the group's clock at the last command.
    pub fn clock_ms(&self) -> u64 {
        self.clock_ms
    }

    pub(super) fn is_home(&self, dir: DirId) -> bool {
        namespace_partition(dir, self.partitions) == self.partition
    }

    pub(super) fn dir(&self, dir: DirId) -> Result<&Dir, Refusal> {
        self.dirs.get(&dir).ok_or_else(|| self.no_dir(dir))
    }

    pub(super) fn dir_mut(&mut self, dir: DirId) -> Result<&mut Dir, Refusal> {
        let missing = self.no_dir(dir);
        self.dirs.get_mut(&dir).ok_or(missing)
    }

    fn no_dir(&self, dir: DirId) -> Refusal {
        if self.is_home(dir) { Refusal::NoDir } else { Refusal::Elsewhere }
    }

    pub(super) fn entry(&self, place: &NameKey) -> Result<&Entry, Refusal> {
        self.dir(place.parent)?.entries.get(&*place.name).ok_or(Refusal::NoName)
    }

    pub(super) fn entry_mut(&mut self, place: &NameKey) -> Result<&mut Entry, Refusal> {
        self.dir_mut(place.parent)?.entries.get_mut(&*place.name).ok_or(Refusal::NoName)
    }

    pub(super) fn found(&self, entry: &Entry) -> Found {
        Found::Node(match entry {
            Entry::File(file) => match self.inodes.get(file) {
                Some(inode) => inode.node(*file),
                None => return Found::Remote(*file),
            },
            Entry::Dir { dir, attributes } => Node::Dir { dir: *dir, attributes: *attributes },
            Entry::Symlink { target, attributes } => {
                Node::Symlink { target: target.to_string(), attributes: *attributes }
            }
        })
    }

    /// Fails unless a new name can be put at `place`.
    pub(super) fn check_free(&self, place: &NameKey) -> Result<(), Refusal> {
        if !is_name(&place.name) {
            return Err(Refusal::BadName);
        }
        if self.dir(place.parent)?.entries.contains_key(&*place.name) {
            return Err(Refusal::Exists);
        }
        self.check_room()
    }

    pub(super) fn check_room(&self) -> Result<(), Refusal> {
        if self.names >= NAMES_MAX { Err(Refusal::Full) } else { Ok(()) }
    }

    pub(super) fn insert(&mut self, place: &NameKey, entry: Entry) {
        let dir = self.dirs.get_mut(&place.parent).expect("checked by the caller");
        if dir.entries.insert(place.name.as_str().into(), entry).is_none() {
            self.names += 1;
        }
    }

    pub(super) fn remove(&mut self, place: &NameKey) -> Option<Entry> {
        let removed = self.dirs.get_mut(&place.parent)?.entries.remove(&*place.name);
        self.names -= u64::from(removed.is_some());
        removed
    }

    /// Removes a directory, which is empty.
    pub(super) fn remove_dir(&mut self, dir: DirId) {
        if let Some(removed) = self.dirs.remove(&dir) {
            self.gone.note(dir, removed);
        }
    }

    /// The identity of a new directory at `place`, and its version.
    pub(super) fn new_dir_id(&self, place: &NameKey) -> Result<(DirId, u32), Refusal> {
        let version = self.dir(place.parent)?.version(&place.name);
        if version == u32::MAX {
            return Err(Refusal::Full);
        }
        Ok((dir_id(place.parent, &place.name, version), version))
    }

    /// Takes one name of a file of this partition away. Without names it is an orphan.
    pub(super) fn uncount(&mut self, file: FileId, names: u32) {
        let Some(inode) = self.inodes.get_mut(&file) else { return };
        inode.links = inode.links.saturating_sub(names);
        if inode.links == 0 {
            self.inodes.remove(&file);
            self.orphans.insert(file, ());
        }
    }

    /// Fails when `dir` is `inner` or above it. Only for a namespace of one partition.
    pub(super) fn check_no_cycle(&self, dir: DirId, inner: DirId) -> Result<(), Refusal> {
        let mut at = inner;
        for _ in 0..DEPTH_MAX {
            if at == dir {
                return Err(Refusal::Cycle);
            }
            if at == DirId::ROOT {
                return Ok(());
            }
            at = self.dir(at)?.parent;
        }
        Err(Refusal::TooDeep)
    }
}
