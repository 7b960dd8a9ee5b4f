//! The namespace service's messages (C4).

use base::{DirId, FileId};

use super::OpId;
use super::policy::Policy;

/// Attributes of a file or directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Attributes {
    /// Permission bits as POSIX has them; kept for the user, not enforced.
    pub mode: u32,
    /// Modification time, nanoseconds since 1970.
    pub mtime: u64,
}

/// The target of a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Node {
    /// A FlatLogFile.
    File {
        /// Its identity.
        file: FileId,
        /// Its replication policy.
        policy: Policy,
        /// Its attributes.
        attributes: Attributes,
        /// Names it has.
        links: u32,
        /// Length when it was last closed; the stream service has the true one.
        len: u64,
    },
    /// A directory.
    Dir {
        /// Its identity, predictable from parent, name and version.
        dir: DirId,
        /// Its attributes.
        attributes: Attributes,
    },
    /// A symbolic link.
    Symlink {
        /// Its target path, uninterpreted.
        target: String,
        /// Its attributes.
        attributes: Attributes,
    },
}

/// A name in a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamedNode {
    /// The name.
    pub name: String,
    /// Its target.
    pub node: Node,
}

/// A place for a name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct NameKey {
    /// The directory.
    pub parent: DirId,
    /// The name in it: 1 to 255 bytes, no '/', not '.' or '..'.
    pub name: String,
}

/// A request to a namespace partition. The partition of an operation is [`namespace_partition`] of
/// the directory named (of the source for renames).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NamespaceRequest {
    /// Asks for the target of a name.
    Lookup {
        /// The name.
        place: NameKey,
    },
    /// Names of a directory in byte order.
    List {
        /// The directory.
        dir: DirId,
        /// Names above this one.
        after: Option<String>,
        /// Names at most, 1 to 1000.
        limit: u32,
    },
    /// Asks for the attributes of a file, by identity.
    StatFile {
        /// The file.
        file: FileId,
    },
    /// Asks for a directory's own policy. Sent to the directory's own partition.
    DirPolicy {
        /// The directory.
        dir: DirId,
    },
    /// A change.
    Change {
        /// Identifies it across retries.
        op: OpId,
        /// The change.
        change: NamespaceChange,
    },
}

/// A mutation of the namespace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NamespaceChange {
    /// Makes a directory.
    Mkdir {
        /// Its name.
        place: NameKey,
        /// Its attributes.
        attributes: Attributes,
    },
    /// Makes an empty file. With `exclusive`, fails when the name exists; otherwise answers the
    /// file that is there.
    Create {
        /// Its name.
        place: NameKey,
        /// Its replication policy.
        policy: Policy,
        /// Its attributes.
        attributes: Attributes,
        /// Fail when the name exists.
        exclusive: bool,
        /// When the directory has a policy of its own as the file is made, the file gets that one, not
        /// `policy`.
        inherit: bool,
    },
    /// Makes a symbolic link.
    Symlink {
        /// Its name.
        place: NameKey,
        /// Its target path, 1 to 4095 bytes.
        target: String,
        /// Its attributes.
        attributes: Attributes,
    },
    /// Gives a file further names, all of them or none per partition.
    Link {
        /// File and new name of each.
        links: Vec<(FileId, NameKey)>,
    },
    /// Removes a name of a file or symbolic link. The file goes with its last name.
    Unlink {
        /// The name.
        place: NameKey,
    },
    /// Removes an empty directory.
    Rmdir {
        /// Its name.
        place: NameKey,
    },
    /// Moves a name, atomically replacing a file (or an empty directory by a directory).
    Rename {
        /// The name now.
        from: NameKey,
        /// The name then.
        to: NameKey,
        /// False: fail when `to` exists.
        replace: bool,
    },
    /// Sets attributes of a name's target; for a file its closed length too.
    SetAttributes {
        /// The name.
        place: NameKey,
        /// New attributes.
        attributes: Attributes,
        /// Closed length of the file.
        len: Option<u64>,
        /// The file that the name must lead to: it may name another one since a writer opened it.
        file: Option<FileId>,
    },
    /// Gives a directory a policy of its own, for files that are made in it from then on, or takes
    /// it away. Sent to the directory's own partition.
    SetDirPolicy {
        /// The directory.
        dir: DirId,
        /// Its policy; none: that of the nearest directory above that has one.
        policy: Option<Policy>,
    },
    /// Records a file's policy for look-ups and lists. The stream service has the true one, see
    /// [`super::StreamChange::SetPolicy`].
    SetFilePolicy {
        /// A name of the file.
        place: NameKey,
        /// The file that the name must lead to.
        file: FileId,
        /// Its policy.
        policy: Policy,
    },
}

/// A successful answer of a namespace partition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NamespaceReply {
    /// The name's target now (look-up, stat, create, mkdir, symlink, set attributes).
    Node {
        /// The target.
        node: Node,
        /// For a file: the right to open its stream, see [`super::StreamChange::Open`].
        grant: [u8; 16],
        /// The own policy of the directory with the name, in answers to look-ups: a client that walks
        /// a path learns what files below inherit.
        dir_policy: Option<Policy>,
    },
    /// One page of names.
    List {
        /// Names in byte order.
        entries: Vec<NamedNode>,
        /// True when more follow the last one.
        more: bool,
    },
    /// Done (unlink, rmdir, rename, link, set policy).
    Done,
    /// A directory's own policy.
    DirPolicy {
        /// None: it has none.
        policy: Option<Policy>,
    },
}

/// The partition that holds a directory's names.
pub fn namespace_partition(dir: DirId, partitions: u16) -> u16 {
    let folded = (dir.get() >> 64) as u64 ^ dir.get() as u64;
    ((u64::from(spread(folded)) * u64::from(partitions)) >> 32) as u16
}

/// The stream partition that holds a file's chunks.
pub fn stream_partition(file: FileId, partitions: u16) -> u16 {
    ((u64::from(spread(file.get())) * u64::from(partitions)) >> 32) as u16
}

fn spread(word: u64) -> u32 {
    let mixed = (word ^ (word >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    (mixed >> 32) as u32
}

/// Identity of a directory (C4, `protocols.md` 4.2): a client predicts it from the parent's,
/// assuming version 0. The version counts the directories that had this name in this parent.
pub fn dir_id(parent: DirId, name: &str, version: u32) -> DirId {
    let mut hash = Fnv128::new();
    hash.write(&parent.get().to_le_bytes());
    hash.write(&version.to_le_bytes());
    hash.write(name.as_bytes());
    DirId::new(hash.finish())
}

/// 128-bit FNV-1a with a final mix. IDs of 10^9 directories collide with odds below 10^-20; the
/// namespace checks for it when it makes one.
struct Fnv128(u128);

impl Fnv128 {
    fn new() -> Fnv128 {
        Fnv128(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d)
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u128::from(byte)).wrapping_mul(0x0100_0000_0000_0000_0000_013b);
        }
    }

    fn finish(self) -> u128 {
        let (low, high) = (self.0 as u64, (self.0 >> 64) as u64);
        let mix = |word: u64| {
            let word = (word ^ (word >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            word ^ (word >> 29)
        };
        u128::from(mix(high ^ low.rotate_left(17))) << 64 | u128::from(mix(low))
    }
}
