//! Messages between masters about membership.

use base::DiskId;

use crate::bytes::{DecodeError, Reader, Writer};

/// An invitation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Invitation {
    /// Incarnation of the inviting master's store.
    pub inviter: DiskId,
    /// The cluster exists: its leader adds the invited master.
    pub joins: bool,
}

/// A master's report of itself, and of the one that asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemberStatus {
    /// Its number among the masters.
    pub id: u64,
    /// The disk identity that invited it; zero when no master has.
    pub member: DiskId,
    /// It leads the cluster group, and a quorum has just confirmed it.
    pub leads: bool,
    /// The one that asks is on record as a master, or has a vote in the cluster group.
    pub voter: bool,
}

impl Invitation {
    /// As bytes.
    pub fn encode(self) -> Vec<u8> {
        let mut to = Writer::new();
        to.u128(self.inviter.get()).bool(self.joins);
        to.finish()
    }

    /// From bytes.
    pub fn decode(bytes: &[u8]) -> Result<Invitation, DecodeError> {
        let mut from = Reader::new(bytes);
        let invitation = Invitation { inviter: DiskId::new(from.u128()?), joins: from.bool()? };
        from.end()?;
        Ok(invitation)
    }
}

impl MemberStatus {
    /// As bytes.
    pub fn encode(self) -> Vec<u8> {
        let mut to = Writer::new();
        to.u64(self.id).u128(self.member.get()).bool(self.leads).bool(self.voter);
        to.finish()
    }

    /// From bytes.
    pub fn decode(bytes: &[u8]) -> Result<MemberStatus, DecodeError> {
        let mut from = Reader::new(bytes);
        let (id, member) = (from.u64()?, DiskId::new(from.u128()?));
        let status = MemberStatus { id, member, leads: from.bool()?, voter: from.bool()? };
        from.end()?;
        Ok(status)
    }
}
