//! Grants: the namespace's proof that a file is there, shown to its stream partition by the client
//! that opens it (`docs/decisions` 2).
//!
//! The byte table is in `docs/formats/wire.md`.
//!
//! A grant outlives the file by its life at most; the stream partition remembers deleted files
//! for longer, so a delayed open brings none back. Where wall clocks of masters are further apart than
//! [`CLOCKS_APART`], grants look too old, or of the future: the partition of the file is asked then.

use std::fmt;

use base::{ClusterId, FileId};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use wire::handshake::ClusterKey;

use crate::limits::{CLOCKS_APART, GRANT_LIFE};

const MAC_AT: usize = 4;
const PURPOSE: &[u8] = b"craton file grants 1";

/// Cause for which a grant is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GrantError {
    /// It was not issued for this file by this cluster.
    Forged,
    /// Its time is over by this clock, or it is of the future: ask whether the file is there.
    Time,
}

impl fmt::Display for GrantError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            GrantError::Forged => "the grant is not for this file: look the file up again",
            GrantError::Time => "the grant is not of this time: look the file up again",
        })
    }
}

impl std::error::Error for GrantError {}

/// Issues and verifies grants.
#[derive(Clone)]
pub struct GrantKey(Hmac<Sha256>);

impl GrantKey {
    /// The grant key of a cluster. Without a cluster key it proves nothing to an enemy, but
    /// expiry and the file it names still hold.
    pub fn derive(key: Option<&ClusterKey>, cluster: ClusterId) -> GrantKey {
        let mut secret = [0; 32];
        match key {
            Some(key) => secret = *key.expose(),
            None => secret[..16].copy_from_slice(&cluster.get().to_le_bytes()),
        }
        let mut derive = keyed(&secret);
        derive.update(PURPOSE);
        GrantKey(keyed(&derive.finalize().into_bytes()))
    }

    fn mac(&self, file: FileId, expiry: &[u8]) -> Hmac<Sha256> {
        let mut mac = self.0.clone();
        mac.update(&file.get().to_le_bytes());
        mac.update(expiry);
        mac
    }

    /// A grant for `file` until `expiry_unix_s`.
    pub fn issue(&self, file: FileId, expiry_unix_s: u64) -> [u8; 16] {
        let expiry = u32::try_from(expiry_unix_s).unwrap_or(u32::MAX).to_le_bytes();
        let mut grant = [0; 16];
        grant[..MAC_AT].copy_from_slice(&expiry);
        let mac = self.mac(file, &expiry).finalize().into_bytes();
        grant[MAC_AT..].copy_from_slice(&mac[..16 - MAC_AT]);
        grant
    }

    /// Whether `grant` is one for `file` at `now_unix_s`.
    pub fn verify(
        &self,
        grant: &[u8; 16],
        file: FileId,
        now_unix_s: u64,
    ) -> Result<(), GrantError> {
        let (expiry, mac) = grant.split_at(MAC_AT);
        let good = self.mac(file, expiry).verify_truncated_left(mac);
        good.map_err(|_| GrantError::Forged)?;
        let expiry = u32::from_le_bytes(expiry.try_into().expect("4 bytes"));
        let ends = u64::from(expiry);
        let last = now_unix_s + (GRANT_LIFE + CLOCKS_APART).as_secs();
        if (now_unix_s + 1..=last).contains(&ends) { Ok(()) } else { Err(GrantError::Time) }
    }
}

impl fmt::Debug for GrantKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GrantKey(..)")
    }
}

fn keyed(secret: &[u8]) -> Hmac<Sha256> {
    Hmac::<Sha256>::new_from_slice(secret).expect("HMAC takes keys of any length")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grant_is_that_of_the_page() {
        let page = include_str!("../../../docs/formats/wire.md");
        let section = page.split("\n## ").find(|section| section.starts_with("Grant\n"));
        let rows = section.expect("the section is there").lines().filter_map(|line| {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let (at, bytes): (usize, usize) = (cells.get(1)?.parse().ok()?, cells[2].parse().ok()?);
            Some((cells[3], at, bytes))
        });
        let rows: Vec<_> = rows.collect();
        assert_eq!(rows, [("expiry", 0, MAC_AT), ("mac", MAC_AT, 16 - MAC_AT)]);
        let key = GrantKey::derive(None, ClusterId::new(1));
        let expiry = 0x0102_0304;
        let grant = key.issue(FileId::new(5), expiry);
        assert_eq!(grant[..MAC_AT], (expiry as u32).to_le_bytes());
        let named =
            section.is_some_and(|text| text.contains(&String::from_utf8_lossy(PURPOSE)[..]));
        assert!(named, "the page names the purpose");
    }

    #[test]
    fn a_grant_is_for_one_file_and_for_a_time() {
        let key = GrantKey::derive(Some(&ClusterKey::new([7; 32])), ClusterId::new(1));
        let other = GrantKey::derive(Some(&ClusterKey::new([8; 32])), ClusterId::new(1));
        let (file, grant) = (FileId::new(5), key.issue(FileId::new(5), 1000));
        assert_eq!(key.verify(&grant, file, 999), Ok(()));
        assert_eq!(key.verify(&grant, file, 1000), Err(GrantError::Time));
        let first = 1000 - (GRANT_LIFE + CLOCKS_APART).as_secs();
        assert_eq!(key.verify(&grant, file, first), Ok(()));
        assert_eq!(key.verify(&grant, file, first - 1), Err(GrantError::Time));
        assert_eq!(key.verify(&grant, FileId::new(6), 999), Err(GrantError::Forged));
        assert_eq!(other.verify(&grant, file, 999), Err(GrantError::Forged));
        let mut longer = grant;
        longer[3] = 0xff;
        assert_eq!(key.verify(&longer, file, 999), Err(GrantError::Forged));
    }
}
