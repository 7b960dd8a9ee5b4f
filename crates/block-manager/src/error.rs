//! Refusals of the block manager.

use std::fmt;
use std::net::SocketAddr;

use base::Kind;
use base::limits::NAME_MAX;
use block_volume::geometry::GeometryError;
use block_volume::ids::VolumeId;
use block_volume::limits::{BLOCK, VOLUME_BYTES};
use runtime::Duration;
use wire::control::ControlError;

use super::limits::SECOND_SILENT;

/// A refusal. The text names the thing and the way out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// No volume has this name.
    NoName(String),
    /// No volume has this identity.
    NoVolume(VolumeId),
    /// A volume has this name already.
    Exists(String),
    /// The length is not possible.
    Bytes {
        /// Bytes asked for.
        bytes: u64,
        /// Bytes of the smallest volume.
        least: u64,
    },
    /// The sizes make no geometry.
    Geometry(GeometryError),
    /// More segments than a volume may have.
    Segments {
        /// Segments that it would have.
        count: u64,
        /// Segments that it may have.
        max: u64,
    },
    /// A base above its burst.
    Limits,
    /// A policy with compression: collection packs a volume's blocks without being asked.
    Compression,
    /// No volume, or no snapshot, can have this name.
    Name {
        /// The name.
        name: String,
    },
    /// It is a snapshot, which never changes.
    Snapshot {
        /// Its name.
        name: String,
    },
    /// It is no snapshot.
    NoSnapshot {
        /// Its name.
        name: String,
    },
    /// It is being made, or another is being made of it.
    Making {
        /// Its name.
        name: String,
    },
    /// It has snapshots.
    HasSnapshots {
        /// Its name.
        name: String,
        /// Some of theirs.
        snapshots: Vec<String>,
    },
    /// Volumes were cloned from it.
    HasClones {
        /// Its name.
        name: String,
        /// Names of some clones.
        clones: Vec<String>,
    },
    /// It may share files with a snapshot, whose content would come back when it grows again.
    Shares {
        /// Its name.
        name: String,
    },
    /// It is not deleted.
    NotDeleted {
        /// Its name.
        name: String,
    },
    /// It is a snapshot, which comes back with its volume.
    DeletedSnapshot {
        /// Its name.
        name: String,
        /// Its volume.
        volume: VolumeId,
    },
    /// It was brought back, or deleted once more, while it was being removed.
    BroughtBack {
        /// Its name.
        name: String,
    },
    /// A client has the volume open.
    AttachedClient {
        /// The volume's name.
        name: String,
        /// The client.
        holder: String,
    },
    /// Another process of the same client has the volume open, or had it a moment ago.
    SecondProcess {
        /// The volume's name.
        name: String,
        /// The client.
        holder: String,
        /// Epoch of the attachment.
        epoch: u64,
        /// Time since the other process was heard, when it is known to live: it has renewed since this request was
        /// refused first.
        heard: Option<Duration>,
    },
    /// The same request has opened the volume before, and that attachment is over.
    AttachmentOver {
        /// The volume's name.
        name: String,
    },
    /// Data would be cut off.
    HasData {
        /// The volume's name.
        name: String,
        /// Bytes asked for.
        bytes: u64,
    },
    /// Segments that were cut off are still being removed.
    Removing {
        /// The volume's name.
        name: String,
    },
    /// The limit for such things is reached.
    Full {
        /// The things.
        what: &'static str,
        /// Their number, at most.
        max: usize,
    },
    /// All numbers of such things are used, and none is used twice.
    NoNumbers {
        /// The things.
        what: &'static str,
    },
    /// A client has opened it since it was checked.
    Opened {
        /// The volume.
        volume: VolumeId,
    },
    /// A block server that takes part does not answer.
    Server {
        /// The request.
        what: String,
    },
    /// This manager has lost its lead.
    LeadsNoMore,
    /// A block server runs elsewhere.
    Second {
        /// Its name.
        name: String,
        /// Address of the known one.
        first: SocketAddr,
        /// Address of the other.
        addr: SocketAddr,
    },
    /// The same request was refused: it comes again, perhaps late.
    RefusedBefore {
        /// Kind of the refusal.
        kind: Kind,
        /// Its text; of a refusal by another leader, that there was one.
        text: String,
    },
    /// A later process is this block server.
    Former {
        /// Its name.
        name: String,
    },
}

impl Refusal {
    /// The kind of error for the receiver.
    pub fn kind(&self) -> Kind {
        match self {
            Refusal::NoName(_) | Refusal::NoVolume(_) => Kind::NotFound,
            Refusal::Exists(_) | Refusal::HasData { .. } | Refusal::Second { .. } => Kind::Exists,
            Refusal::SecondProcess { heard: Some(_), .. } => Kind::Exists,
            Refusal::Former { .. } => Kind::Fenced,
            Refusal::Full { .. } | Refusal::NoNumbers { .. } => Kind::Full,
            Refusal::Removing { .. }
            | Refusal::Server { .. }
            | Refusal::LeadsNoMore
            | Refusal::Opened { .. }
            | Refusal::SecondProcess { heard: None, .. }
            | Refusal::Making { .. } => Kind::Retry,
            Refusal::Bytes { .. }
            | Refusal::Geometry(_)
            | Refusal::Segments { .. }
            | Refusal::Limits
            | Refusal::Compression
            | Refusal::NotDeleted { .. }
            | Refusal::DeletedSnapshot { .. }
            | Refusal::BroughtBack { .. }
            | Refusal::Name { .. }
            | Refusal::Snapshot { .. }
            | Refusal::NoSnapshot { .. }
            | Refusal::HasSnapshots { .. }
            | Refusal::HasClones { .. }
            | Refusal::Shares { .. }
            | Refusal::AttachmentOver { .. }
            | Refusal::AttachedClient { .. } => Kind::Invalid,
            Refusal::RefusedBefore { kind, .. } => *kind,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::NoName(name) => {
                write!(f, "{name}: no such volume; 'craton volume ls' lists them")
            }
            Refusal::NoVolume(volume) => write!(f, "{volume}: no such volume"),
            Refusal::Exists(name) => {
                write!(f, "{name}: exists already; remove it first, or choose another name")
            }
            Refusal::Bytes { bytes, least } => write!(
                f,
                "a volume of {bytes} bytes; choose a multiple of {BLOCK} from {least} to {}",
                VOLUME_BYTES.1
            ),
            Refusal::Geometry(error) => error.fmt(f),
            Refusal::Segments { count, max } => write!(
                f,
                "a volume of {count} segments, of at most {max}; choose larger segment groups"
            ),
            Refusal::Name { name } => write!(
                f,
                "'{}' is no name: 1 to {NAME_MAX} bytes, VOLUME@ included, and neither '/' nor \
                 '@', which stands before a snapshot's name",
                name.escape_debug()
            ),
            Refusal::Snapshot { name } => {
                write!(
                    f,
                    "{name} is a snapshot, which never changes; clone it and change the clone"
                )
            }
            Refusal::NoSnapshot { name } => {
                write!(f, "{name} is no snapshot; 'craton volume snapshot ls' lists them")
            }
            Refusal::Making { name } => {
                write!(f, "{name}: a snapshot or clone is being made; try again in a few seconds")
            }
            Refusal::HasSnapshots { name, snapshots } => write!(
                f,
                "{name} has snapshots ({}); remove them first, or all with --snapshots",
                snapshots.join(", ")
            ),
            Refusal::HasClones { name, clones } => write!(
                f,
                "{name} has clones ({}); flatten or remove them first, or give --force: they \
                 keep their data",
                clones.join(", ")
            ),
            Refusal::Shares { name } => write!(
                f,
                "{name} is a clone that shares files with its snapshot; 'craton volume flatten \
                 {name}' parts them, then it can be made smaller"
            ),
            Refusal::RefusedBefore { text, .. } => f.write_str(text),
            Refusal::NotDeleted { name } => {
                write!(f, "{name} is not deleted: 'craton volume ls' shows it")
            }
            Refusal::DeletedSnapshot { name, volume } => write!(
                f,
                "{name} is a snapshot, which comes back with its volume: 'craton volume undelete \
                 {volume}'"
            ),
            Refusal::BroughtBack { name } => write!(
                f,
                "{name} was brought back while it was being removed, and stays; to remove it, \
                 give 'craton volume rm' again"
            ),
            Refusal::Limits => {
                f.write_str("a base above its burst; lower the base or raise the burst")
            }
            Refusal::Compression => f.write_str(
                "a volume's blocks are packed as they are collected, whatever its policy; choose a \
                     policy without compression",
            ),
            Refusal::AttachedClient { name, holder } => {
                write!(f, "{name}: {holder} has it open; close it there first")
            }
            Refusal::SecondProcess { name, holder, epoch, heard: Some(heard) } => write!(
                f,
                "{name}: another process that runs as {holder} has it open (epoch {epoch}) and was \
                 heard {heard:.1?} ago: this one is refused. Stop one of the two, or give one an ID \
                 of its own; one that has ended is forgotten after {SECOND_SILENT:?}"
            ),
            Refusal::SecondProcess { name, holder, epoch, heard: None } => write!(
                f,
                "{name}: another process that runs as {holder} has it open (epoch {epoch}), or had \
                 until now; try again once that one has ended and was silent for {SECOND_SILENT:?}"
            ),
            Refusal::AttachmentOver { name } => {
                write!(f, "{name}: the attachment that was asked for is over; open it again")
            }
            Refusal::HasData { name, bytes } => write!(
                f,
                "{name}: there is data past {bytes} bytes; move it first, or cut it off with \
                 --force"
            ),
            Refusal::Removing { name } => write!(
                f,
                "{name}: what was cut off is still being removed; try again in a few seconds"
            ),
            Refusal::Full { what, max } => {
                write!(f, "there are {max} {what}, and no more can be; remove some first")
            }
            Refusal::NoNumbers { what } => write!(
                f,
                "all numbers of {what} are used, and none is used twice: no more can be made; copy \
                 what is needed to a new cluster"
            ),
            Refusal::Opened { volume } => {
                write!(f, "{volume} was opened at the same time; nothing was changed: try again")
            }
            Refusal::Server { what } => write!(
                f,
                "{what}: the block server does not answer; nothing was changed: try again"
            ),
            Refusal::LeadsNoMore => {
                f.write_str("this block manager leads no more; nothing was changed: try again")
            }
            Refusal::Second { name, first, addr } => write!(
                f,
                "a block server '{name}' runs at {first}: this one, at {addr}, is refused. Give it \
                 a name of its own, or stop the other"
            ),
            Refusal::Former { name } => write!(
                f,
                "another process was started as block server '{name}' later: this one has nothing \
                 to serve any more. Stop it, or start it again when the other is gone"
            ),
        }
    }
}

impl std::error::Error for Refusal {}

impl From<Refusal> for ControlError {
    fn from(refusal: Refusal) -> ControlError {
        ControlError::new(refusal.kind(), refusal.to_string())
    }
}
