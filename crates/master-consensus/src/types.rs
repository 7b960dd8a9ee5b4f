//! The types that the Raft library is instantiated with. Nothing outside `consensus` sees them.

use std::fmt;
use std::rc::Rc;

use openraft::EmptyNode;
use openraft::impls::leader_id_std;
use openraft::type_config::alias;
use serde::de::{Deserialize, Deserializer, Visitor};
use serde::ser::{Serialize, Serializer};

use super::checkpoint::SnapshotData;
use super::rt::RaftRuntime;

openraft::declare_raft_types!(
    /// Raft with one leader per term, over opaque commands.
    pub Types:
        D = Command,
        R = Vec<u8>,
        NodeId = u64,
        Node = EmptyNode,
        Term = u64,
        LeaderId = leader_id_std::LeaderId<u64, u64>,
        AsyncRuntime = RaftRuntime,
);

/// A log entry.
pub type Entry = alias::EntryOf<Types>;
/// Term and index of an entry.
pub type LogId = alias::LogIdOf<Types>;
/// Term, candidate, and whether a quorum granted it.
pub type Vote = alias::VoteOf<Types>;
/// Position up to which a snapshot reaches.
pub type SnapshotMeta = alias::SnapshotMetaOf<Types>;
/// A membership and the entry that set it.
pub type StoredMembership = alias::StoredMembershipOf<Types>;
/// A snapshot with what it covers.
pub type Snapshot = alias::SnapshotOf<Types, SnapshotData>;

/// A command for the state machine. Clones share the bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct Command(pub Rc<[u8]>);

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Command({} bytes)", self.0.len())
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl Serialize for Command {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Command {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Command, D::Error> {
        struct Bytes;
        impl Visitor<'_> for Bytes {
            type Value = Command;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Command, E> {
                Ok(Command(bytes.into()))
            }
        }
        deserializer.deserialize_bytes(Bytes)
    }
}
