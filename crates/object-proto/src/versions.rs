//! Versions of objects (`object-protocols.md` 7.1): their IDs, and what a change makes of
//! them.

use std::fmt;

use crate::ids::Stamp;

/// What a bucket does with the object that a put or delete replaces.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Versioning {
    /// It is gone. Of buckets that never had versions.
    #[default]
    Off,
    /// It stays as an older version.
    Enabled,
    /// It stays if it has an ID; of versions without one there is the last.
    Suspended,
}

/// Name of a version in its key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum VersionId {
    /// The one without an ID: put while the bucket's versioning was off or suspended.
    Null,
    /// One of a bucket with versions.
    Of {
        /// The commit that made it.
        stamp: Stamp,
        /// The lower half of its data ID, or of a random number.
        nonce: u64,
    },
}

impl VersionId {
    /// From its text in S3's calls.
    pub fn parse(text: &str) -> Option<VersionId> {
        if text == "null" {
            return Some(VersionId::Null);
        }
        let is_hex = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let (stamp, nonce) = text.split_at_checked(16).filter(|_| is_hex && text.len() == 32)?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        Some(VersionId::Of { stamp: Stamp::new(number(stamp)?), nonce: number(nonce)? })
    }
}

impl fmt::Display for VersionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VersionId::Null => f.write_str("null"),
            VersionId::Of { stamp, nonce } => write!(f, "{:016x}{nonce:016x}", stamp.get()),
        }
    }
}

/// What a change has made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Committed {
    /// When it was committed; zero when there was nothing to do.
    pub stamp: Stamp,
    /// The version that it has made, or removed; none in a bucket without versions.
    pub version: Option<VersionId>,
    /// That version is a delete marker.
    pub marker: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_ids_are_read_back_and_nothing_else_is() {
        let ids = [(0, 0), (u64::MAX, 1), (1 << 50, u64::MAX)];
        let ids = ids.map(|(stamp, nonce)| VersionId::Of { stamp: Stamp::new(stamp), nonce });
        for id in ids.into_iter().chain([VersionId::Null]) {
            assert_eq!(VersionId::parse(&id.to_string()), Some(id));
        }
        let long = "0".repeat(33);
        let odd = ["", "NULL", "0", &long[..31], &long, "+000000000000000+000000000000000"];
        for text in odd
            .into_iter()
            .chain([&*format!("{}A", &long[..31]), "ä0000000000000000000000000000000"])
        {
            assert_eq!(VersionId::parse(text), None, "{text}");
        }
    }
}
