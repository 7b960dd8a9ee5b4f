//! Tokens: the right to access one chunk, checked without a call (D11, `protocols.md` 2.5).
//!
//! Masters issue them and chunkservers verify them with a key derived from the cluster key.
//! A token says {chunk, rights, highest epoch, expiry}. The chunk is not in its 16 bytes, since
//! each request names it; the rest is, behind a MAC over all four. The byte table is in
//! `docs/formats/wire.md`.
//!
//! 56 bits of MAC: a forger has only on-line attempts, 2^55 of them on average, against a token
//! that lives for minutes. Fencing does not rest on tokens: it is the replica's own record.

use std::fmt;

use base::{ChunkId, Epoch, Kind};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::handshake::ClusterKey;

const MAC_AT: usize = 9;

/// A right on the wire. All zeros is none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Token(pub [u8; 16]);

impl Token {
    /// No right at all.
    pub const NONE: Token = Token([0; 16]);

    /// End of its life, seconds since 1970, as it says itself.
    pub fn expiry_unix_s(&self) -> u64 {
        u64::from(u32_at(self, 1))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The bytes are the right: logs do not show them.
        f.write_str(if *self == Token::NONE { "Token(none)" } else { "Token(..)" })
    }
}

/// Rights of a token, as a set.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Rights(u8);

impl Rights {
    /// Read, and ask for the state.
    pub const READ: Rights = Rights(1);
    /// Append, and send the committed length.
    pub const APPEND: Rights = Rights(2);
    /// Fence.
    pub const FENCE: Rights = Rights(4);
    /// Seal.
    pub const SEAL: Rights = Rights(8);
    /// All that a writer needs.
    pub const WRITER: Rights = Rights(1 | 2);
    /// Everything.
    pub const ALL: Rights = Rights(1 | 2 | 4 | 8);

    /// These and those.
    pub const fn with(self, other: Rights) -> Rights {
        Rights(self.0 | other.0)
    }

    /// True when all of `other` are among these.
    pub const fn contains(self, other: Rights) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Cause for which a token gives no right to a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TokenError {
    /// The request carries none.
    Missing,
    /// It was not issued for this chunk with this cluster's key.
    Forged,
    /// Its time is over: ask the master for another.
    Expired {
        /// End of its life, seconds since 1970.
        expiry_unix_s: u32,
    },
    /// It does not allow this operation.
    Rights,
    /// It was issued for older epochs.
    Epoch,
}

impl TokenError {
    /// The caller's reaction: a new token may be had from the master in every case.
    pub fn kind(&self) -> Kind {
        Kind::Refresh
    }
}

impl fmt::Display for TokenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TokenError::Missing => "the request carries no token: get one from the master",
            TokenError::Forged => {
                "the token was not issued for this chunk by this cluster: get one from the master"
            }
            TokenError::Expired { .. } => "the token has expired: get another from the master",
            TokenError::Rights => "the token does not allow this operation",
            TokenError::Epoch => "the token is of an older epoch: open the file again",
        })
    }
}

impl std::error::Error for TokenError {}

/// Issues and verifies tokens. Derived from the cluster key: every holder of that key can.
#[derive(Clone)]
pub struct TokenKey {
    /// The MAC with its key absorbed, copied for each token.
    keyed: Hmac<Sha256>,
}

impl TokenKey {
    /// The token key of a cluster.
    pub fn derive(key: &ClusterKey) -> TokenKey {
        TokenKey { keyed: keyed(&key.derive(b"craton chunk tokens 1")) }
    }

    /// The token key of a cluster that has a key, or has none. Without one the key is known to
    /// all: its tokens keep no peer out, but they end. Deletion rests on that: a chunk and its
    /// tombstone are forgotten once no right to the chunk is alive (`protocols.md` 2.4).
    pub fn of_cluster(key: Option<&ClusterKey>) -> TokenKey {
        TokenKey::derive(key.unwrap_or(&ClusterKey::new([0; 32])))
    }

    fn mac(&self, chunk: ChunkId, fields: &[u8]) -> Hmac<Sha256> {
        let mut mac = self.keyed.clone();
        mac.update(&chunk.get().to_le_bytes());
        mac.update(fields);
        mac
    }

    /// A token for `rights` on `chunk` under epochs up to `epoch`, until `expiry_unix_s`
    /// (seconds since 1970, 2106 at most).
    pub fn issue(&self, chunk: ChunkId, rights: Rights, epoch: Epoch, expiry_unix_s: u64) -> Token {
        let expiry = u32::try_from(expiry_unix_s).unwrap_or(u32::MAX);
        let highest = u32::try_from(epoch.get()).unwrap_or(u32::MAX);
        let mut token = [0; 16];
        token[0] = rights.0;
        token[1..5].copy_from_slice(&expiry.to_le_bytes());
        token[5..MAC_AT].copy_from_slice(&highest.to_le_bytes());
        let mac = self.mac(chunk, &token[..MAC_AT]).finalize().into_bytes();
        token[MAC_AT..].copy_from_slice(&mac[..16 - MAC_AT]);
        Token(token)
    }

    /// Whether `token` allows `op` on `chunk` under `epoch` at `now_unix_s` (seconds since 1970).
    /// Reads name no epoch: [`Epoch::NONE`].
    pub fn verify(
        &self,
        token: Token,
        chunk: ChunkId,
        op: Rights,
        epoch: Epoch,
        now_unix_s: u64,
    ) -> Result<(), TokenError> {
        if token == Token::NONE {
            return Err(TokenError::Missing);
        }
        self.verify_mac(token, chunk)?;
        check_fields(token, op, epoch, now_unix_s)
    }

    fn verify_mac(&self, token: Token, chunk: ChunkId) -> Result<(), TokenError> {
        self.mac(chunk, &token.0[..MAC_AT])
            .verify_truncated_left(&token.0[MAC_AT..])
            .map_err(|_| TokenError::Forged)
    }
}

impl fmt::Debug for TokenKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenKey(..)")
    }
}

fn u32_at(token: &Token, at: usize) -> u32 {
    u32::from_le_bytes(token.0[at..at + 4].try_into().expect("4 bytes"))
}

fn check_fields(token: Token, op: Rights, epoch: Epoch, now_unix_s: u64) -> Result<(), TokenError> {
    let (expiry_unix_s, highest) = (u32_at(&token, 1), u32_at(&token, 5));
    if now_unix_s >= u64::from(expiry_unix_s) {
        return Err(TokenError::Expired { expiry_unix_s });
    }
    if !Rights(token.0[0]).contains(op) {
        return Err(TokenError::Rights);
    }
    if highest != u32::MAX && epoch.get() > u64::from(highest) {
        return Err(TokenError::Epoch);
    }
    Ok(())
}

pub(crate) fn keyed(key: &[u8; 32]) -> Hmac<Sha256> {
    Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length")
}

/// Tokens verified lately: 1024 x 24 bytes. A writer sends the same token with each append.
const CACHE_SLOTS: usize = 1024;

/// Verifies tokens and remembers verified MACs, so that the data path pays a compare.
pub struct TokenVerifier {
    key: TokenKey,
    slots: Box<[(ChunkId, Token)]>,
}

impl TokenVerifier {
    /// A verifier with an empty memory.
    pub fn new(key: TokenKey) -> TokenVerifier {
        let slots = vec![(ChunkId::new(0), Token::NONE); CACHE_SLOTS].into_boxed_slice();
        TokenVerifier { key, slots }
    }

    /// As [`TokenKey::verify`].
    pub fn verify(
        &mut self,
        token: Token,
        chunk: ChunkId,
        op: Rights,
        epoch: Epoch,
        now_unix_s: u64,
    ) -> Result<(), TokenError> {
        if token == Token::NONE {
            return Err(TokenError::Missing);
        }
        // The MAC's own bytes spread tokens over the slots.
        let tail = u64::from_le_bytes(token.0[8..].try_into().expect("8 bytes"));
        let slot = ((tail >> 32) ^ chunk.get()) as usize % CACHE_SLOTS;
        if self.slots[slot] != (chunk, token) {
            self.key.verify_mac(token, chunk)?;
            self.slots[slot] = (chunk, token);
        }
        check_fields(token, op, epoch, now_unix_s)
    }
}

impl fmt::Debug for TokenVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenVerifier(..)")
    }
}

/// Fuzz target: no bytes are a token but those that were issued.
pub fn fuzz_token(bytes: &[u8]) {
    let (mut token, chunk) = ([0; 16], ChunkId::new(7));
    let count = bytes.len().min(16);
    token[..count].copy_from_slice(&bytes[..count]);
    let key = TokenKey::derive(&ClusterKey::new([3; 32]));
    let verdict = key.verify(Token(token), chunk, Rights::READ, Epoch::NONE, 1);
    let word = |at: usize| u32::from_le_bytes(token[at..at + 4].try_into().expect("4 bytes"));
    let (expiry, epoch) = (u64::from(word(1)), Epoch::new(u64::from(word(5))));
    let issued = key.issue(chunk, Rights(token[0]), epoch, expiry);
    assert!(verdict.is_err() || issued == Token(token), "a token that was never issued");
    let mut verifier = TokenVerifier::new(key);
    for _ in 0..2 {
        // The second time from memory.
        let again = verifier.verify(Token(token), chunk, Rights::READ, Epoch::NONE, 1);
        assert_eq!(again, verdict);
    }
    let tokens = verifier.verify(issued, chunk, Rights(token[0]), Epoch::NONE, 0);
    assert!(expiry == 0 || tokens.is_ok(), "what was issued is good");
}
