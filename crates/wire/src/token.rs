//! Tokens: the right to access one chunk, checked without a call (D11, `protocols.md` 2.5).
//!
//! Masters issue them and chunkservers verify them with a key derived from the cluster key.
//! A token says {chunk, rights, highest epoch, expiry}. The chunk is not in its 16 bytes, since
//! each request names it; the rest is, behind a MAC over all four. The byte table is in
//! `docs/formats/wire.md`.
//!
//! A token ends by the clock of the process that issued it, which chunkservers know from the answers
//! to their heartbeats: wall clocks may be as wrong as they like (decision 113). Tokens that masters
//! issue while chunkservers of an earlier version live end by wall clocks.
//!
//! 56 bits of MAC: a forger has only on-line attempts, 2^55 of them on average, against a token
//! that lives for minutes. Fencing does not rest on tokens: it is the replica's own record.

use std::fmt;

use base::{ChunkId, Epoch, Kind};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::handshake::ClusterKey;

const MAC_AT: usize = 9;
/// In the byte of rights: the token ends by the clock of its issuer.
const BY_ISSUER: u8 = 0x80;
/// Bits of the issuer's number in that byte, which say whose clock to look for first.
const HINT: u8 = 0x70;
const HINT_SHIFT: u32 = 4;

/// A process that issues tokens, drawn at each of its starts. Its clock begins then, and goes on
/// whatever is done to the clock on the wall.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Issuer(u64);

impl Issuer {
    /// All hosts, by their wall clocks: seconds since 1970.
    pub const WALL: Issuer = Issuer(0);

    /// The issuer with this number; zero is [`Issuer::WALL`].
    pub const fn new(number: u64) -> Issuer {
        Issuer(number)
    }

    /// Its number.
    pub const fn get(self) -> u64 {
        self.0
    }

    fn hint(self) -> u8 {
        match self {
            Issuer::WALL => 0,
            Issuer(number) => BY_ISSUER | (number as u8) << HINT_SHIFT & HINT,
        }
    }

    /// True when a token whose first byte is `rights` may be of this issuer.
    fn may_be_of(self, rights: u8) -> bool {
        rights & (BY_ISSUER | HINT) == self.hint()
    }
}

/// A moment by the clock of an issuer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IssuerTime {
    /// Whose clock.
    pub issuer: Issuer,
    /// Seconds since the issuer's start; of [`Issuer::WALL`] since 1970.
    pub seconds: u64,
}

impl IssuerTime {
    /// A moment by wall clocks, seconds since 1970.
    pub const fn wall(seconds: u64) -> IssuerTime {
        IssuerTime { issuer: Issuer::WALL, seconds }
    }
}

/// What a verifier knows of issuers' clocks.
pub trait IssuerClocks {
    /// Those that are known, but for [`Issuer::WALL`].
    fn issuers(&self) -> &[Issuer];

    /// Seconds that the clock of an issuer shows now, or a little more, never less; `None` when it is
    /// not known.
    fn now_s(&self, issuer: Issuer) -> Option<u64>;
}

/// A right on the wire. All zeros is none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Token(pub [u8; 16]);

impl Token {
    /// No right at all.
    pub const NONE: Token = Token([0; 16]);

    /// End of its life as it says itself, seconds by the clock of its issuer.
    pub fn expiry_s(&self) -> u64 {
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
        /// End of its life, seconds by the clock of its issuer.
        expiry_s: u32,
    },
    /// It ends by the clock of a process that the verifier has not heard of, or it is forged.
    UnknownIssuer,
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
            TokenError::UnknownIssuer => {
                "the token is of a master that this chunkserver has not heard of, or is forged"
            }
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

    fn mac(&self, issuer: Issuer, chunk: ChunkId, fields: &[u8]) -> Hmac<Sha256> {
        let mut mac = self.keyed.clone();
        mac.update(&chunk.get().to_le_bytes());
        mac.update(fields);
        if issuer != Issuer::WALL {
            mac.update(&issuer.get().to_le_bytes());
        }
        mac
    }

    /// A token for `rights` on `chunk` under epochs up to `epoch`, until `expiry` (2^32 seconds at
    /// most).
    pub fn issue(&self, chunk: ChunkId, rights: Rights, epoch: Epoch, expiry: IssuerTime) -> Token {
        let expiry_s = u32::try_from(expiry.seconds).unwrap_or(u32::MAX);
        let highest = u32::try_from(epoch.get()).unwrap_or(u32::MAX);
        let mut token = [0; 16];
        token[0] = rights.0 | expiry.issuer.hint();
        token[1..5].copy_from_slice(&expiry_s.to_le_bytes());
        token[5..MAC_AT].copy_from_slice(&highest.to_le_bytes());
        let mac = self.mac(expiry.issuer, chunk, &token[..MAC_AT]).finalize().into_bytes();
        token[MAC_AT..].copy_from_slice(&mac[..16 - MAC_AT]);
        Token(token)
    }

    /// Whether `token` allows `op` on `chunk` under `epoch` now, by the clock of its issuer. Reads name
    /// no epoch: [`Epoch::NONE`].
    pub fn verify(
        &self,
        token: Token,
        chunk: ChunkId,
        op: Rights,
        epoch: Epoch,
        clocks: &impl IssuerClocks,
    ) -> Result<(), TokenError> {
        if token == Token::NONE {
            return Err(TokenError::Missing);
        }
        let issuer = self.issuer_of(token, chunk, clocks)?;
        check_fields(token, op, epoch, (issuer, clocks))
    }

    /// Who has issued the token, of those that are known.
    fn issuer_of(
        &self,
        token: Token,
        chunk: ChunkId,
        clocks: &impl IssuerClocks,
    ) -> Result<Issuer, TokenError> {
        let fields = &token.0[..MAC_AT];
        let is_of = |issuer: Issuer| {
            let mac = self.mac(issuer, chunk, fields);
            mac.verify_truncated_left(&token.0[MAC_AT..]).is_ok()
        };
        if Issuer::WALL.may_be_of(token.0[0]) {
            return is_of(Issuer::WALL).then_some(Issuer::WALL).ok_or(TokenError::Forged);
        }
        let mut known = clocks.issuers().iter().copied();
        known.find(|&one| one.may_be_of(token.0[0]) && is_of(one)).ok_or(TokenError::UnknownIssuer)
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

fn check_fields(
    token: Token,
    op: Rights,
    epoch: Epoch,
    (issuer, clocks): (Issuer, &impl IssuerClocks),
) -> Result<(), TokenError> {
    let (expiry_s, highest) = (u32_at(&token, 1), u32_at(&token, 5));
    let now_s = clocks.now_s(issuer).ok_or(TokenError::UnknownIssuer)?;
    if now_s >= u64::from(expiry_s) {
        return Err(TokenError::Expired { expiry_s });
    }
    if !Rights(token.0[0] & !(BY_ISSUER | HINT)).contains(op) {
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

/// Tokens verified lately: 1024 x 32 bytes. A writer sends the same token with each append.
const CACHE_SLOTS: usize = 1024;

/// Verifies tokens and remembers verified MACs, so that the data path pays a compare.
pub struct TokenVerifier {
    key: TokenKey,
    slots: Box<[(ChunkId, Token, Issuer)]>,
}

impl TokenVerifier {
    /// A verifier with an empty memory.
    pub fn new(key: TokenKey) -> TokenVerifier {
        let slots = vec![(ChunkId::new(0), Token::NONE, Issuer::WALL); CACHE_SLOTS];
        let slots = slots.into_boxed_slice();
        TokenVerifier { key, slots }
    }

    /// As [`TokenKey::verify`].
    pub fn verify(
        &mut self,
        token: Token,
        chunk: ChunkId,
        op: Rights,
        epoch: Epoch,
        clocks: &impl IssuerClocks,
    ) -> Result<(), TokenError> {
        if token == Token::NONE {
            return Err(TokenError::Missing);
        }
        // The MAC's own bytes spread tokens over the slots.
        let tail = u64::from_le_bytes(token.0[8..].try_into().expect("8 bytes"));
        let slot = ((tail >> 32) ^ chunk.get()) as usize % CACHE_SLOTS;
        let (known, last, mut issuer) = self.slots[slot];
        if (known, last) != (chunk, token) {
            issuer = self.key.issuer_of(token, chunk, clocks)?;
            self.slots[slot] = (chunk, token, issuer);
        }
        check_fields(token, op, epoch, (issuer, clocks))
    }
}

impl fmt::Debug for TokenVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenVerifier(..)")
    }
}

/// One issuer beside wall clocks, for tests: its clock, and that on the wall, in seconds.
#[derive(Clone, Copy, Debug)]
pub struct FixedClocks {
    /// The issuer.
    pub issuer: [Issuer; 1],
    /// What its clock shows.
    pub issuer_s: u64,
    /// What wall clocks show.
    pub wall_s: u64,
}

impl IssuerClocks for FixedClocks {
    fn issuers(&self) -> &[Issuer] {
        &self.issuer
    }

    fn now_s(&self, issuer: Issuer) -> Option<u64> {
        match issuer {
            Issuer::WALL => Some(self.wall_s),
            _ => (issuer == self.issuer[0]).then_some(self.issuer_s),
        }
    }
}

/// Fuzz target: no bytes are a token but those that were issued.
pub fn fuzz_token(bytes: &[u8]) {
    let (mut token, chunk) = ([0; 16], ChunkId::new(7));
    let count = bytes.len().min(16);
    token[..count].copy_from_slice(&bytes[..count]);
    let key = TokenKey::derive(&ClusterKey::new([3; 32]));
    let clocks = FixedClocks { issuer: [FUZZED_ISSUER], issuer_s: 1, wall_s: 1 };
    let verdict = key.verify(Token(token), chunk, Rights::READ, Epoch::NONE, &clocks);
    let word = |at: usize| u32::from_le_bytes(token[at..at + 4].try_into().expect("4 bytes"));
    let (seconds, epoch) = (u64::from(word(1)), Epoch::new(u64::from(word(5))));
    let issuer = if token[0] & BY_ISSUER == 0 { Issuer::WALL } else { FUZZED_ISSUER };
    let rights = Rights(token[0] & !(BY_ISSUER | HINT));
    let issued = key.issue(chunk, rights, epoch, IssuerTime { issuer, seconds });
    assert!(verdict.is_err() || issued == Token(token), "a token that was never issued");
    let mut verifier = TokenVerifier::new(key);
    for _ in 0..2 {
        // The second time from memory.
        let again = verifier.verify(Token(token), chunk, Rights::READ, Epoch::NONE, &clocks);
        assert_eq!(again, verdict);
    }
    let before = FixedClocks { issuer_s: 0, wall_s: 0, ..clocks };
    let good = verifier.verify(issued, chunk, rights, Epoch::NONE, &before);
    assert!(seconds == 0 || good.is_ok(), "what was issued is good");
}

/// The issuer of the fuzz target's tokens.
pub const FUZZED_ISSUER: Issuer = Issuer::new(0x5a5a_1234_5678_9abc);
