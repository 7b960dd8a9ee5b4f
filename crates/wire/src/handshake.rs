//! The first frames of a link: version, cluster, and proof of the cluster key (D11).
//!
//! The connecting side sends Hello; the accepting side answers with its Hello and, when keys are
//! configured, its Proof; the connecting side sends its Proof; the accepting side sends Welcome.
//! Either may send Refuse with a sentence instead. A proof is an HMAC-SHA256 over both Hellos as
//! they were sent, so over both nonces, names, version ranges and clusters: nothing of an older
//! handshake can be replayed, and every change on the way is noticed. The role is part of
//! the MAC: a proof cannot be sent back to its maker.

use std::fmt;
use std::str::FromStr;

use base::ClusterId;
use hmac::Mac;

use crate::frame::{VERSION_MAX, VERSION_MIN};
use crate::token::keyed;

/// Bytes of a proof.
pub const PROOF: usize = 32;
/// Bytes of a name at most.
pub const NAME_MAX: usize = 128;
/// Bytes of a Refuse sentence at most.
pub const REFUSE_MAX: usize = 1024;

const FIXED: usize = 54;

/// The secret that all roles of a cluster share.
#[derive(Clone, PartialEq, Eq)]
pub struct ClusterKey([u8; 32]);

impl ClusterKey {
    /// From its bytes, which must be random.
    pub const fn new(bytes: [u8; 32]) -> ClusterKey {
        ClusterKey(bytes)
    }

    /// Its bytes, for the program that writes the key file.
    pub const fn expose(&self) -> &[u8; 32] {
        &self.0
    }

    /// A key for one purpose.
    pub(crate) fn derive(&self, purpose: &[u8]) -> [u8; 32] {
        let mut mac = keyed(&self.0);
        mac.update(purpose);
        mac.finalize().into_bytes().into()
    }

    /// Its text form: 64 hexadecimal digits.
    pub fn to_hex(&self) -> String {
        use fmt::Write;
        self.0.iter().fold(String::with_capacity(64), |mut text, byte| {
            write!(text, "{byte:02x}").expect("a String takes all");
            text
        })
    }
}

/// The text is no cluster key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyError;

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "a cluster key is 64 hexadecimal digits: copy it from another machine of the cluster",
        )
    }
}

impl std::error::Error for KeyError {}

impl FromStr for ClusterKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<ClusterKey, KeyError> {
        let text = text.trim().as_bytes();
        if text.len() != 64 {
            return Err(KeyError);
        }
        let mut key = [0; 32];
        for (byte, pair) in key.iter_mut().zip(text.chunks(2)) {
            let digit = |c: u8| (c as char).to_digit(16).ok_or(KeyError);
            *byte = (digit(pair[0])? * 16 + digit(pair[1])?) as u8;
        }
        Ok(ClusterKey(key))
    }
}

impl fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterKey(..)")
    }
}

/// The body of a Hello frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hello {
    /// Oldest frame version spoken.
    pub version_min: u8,
    /// Newest frame version spoken.
    pub version_max: u8,
    /// A cluster key is configured.
    pub keyed: bool,
    /// The cluster; zero when not yet known.
    pub cluster: ClusterId,
    /// Drawn afresh for each handshake.
    pub nonce: [u8; 32],
    /// Role and ID, for operators: "chunkserver cs1".
    pub name: String,
}

/// Result of a handshake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Agreed {
    /// Version of all further frames.
    pub version: u8,
    /// The cluster, once either side knows it; zero until then.
    pub cluster: ClusterId,
    /// Proofs are due.
    pub keyed: bool,
}

/// Bytes that are no Hello.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadHello(&'static str);

impl fmt::Display for BadHello {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the peer's hello is malformed ({})", self.0)
    }
}

impl std::error::Error for BadHello {}

impl Hello {
    /// This build's Hello. A longer name is cut at [`NAME_MAX`] bytes.
    pub fn new(cluster: ClusterId, keyed: bool, nonce: [u8; 32], name: &str) -> Hello {
        let end = (0..=NAME_MAX.min(name.len())).rev().find(|&end| name.is_char_boundary(end));
        Hello {
            version_min: VERSION_MIN,
            version_max: VERSION_MAX,
            keyed,
            cluster,
            nonce,
            name: name[..end.unwrap_or(0)].to_owned(),
        }
    }

    /// Its bytes: versions, keyed, name length, reserved, cluster, nonce, name.
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.name.len() <= NAME_MAX, "names are cut when a Hello is made");
        let mut out = Vec::with_capacity(FIXED + self.name.len());
        out.extend([self.version_min, self.version_max, u8::from(self.keyed)]);
        out.push(self.name.len() as u8);
        out.extend([0; 2]);
        out.extend(self.cluster.get().to_le_bytes());
        out.extend(self.nonce);
        out.extend(self.name.as_bytes());
        out
    }

    /// Reads a Hello. Bytes behind the name are fields of a newer version: skipped.
    pub fn decode(bytes: &[u8]) -> Result<Hello, BadHello> {
        let (fixed, rest) = bytes.split_first_chunk::<FIXED>().ok_or(BadHello("too short"))?;
        let name_len = usize::from(fixed[3]);
        if name_len > NAME_MAX || name_len > rest.len() {
            return Err(BadHello("name length"));
        }
        let name = std::str::from_utf8(&rest[..name_len]).map_err(|_| BadHello("name"))?;
        if fixed[2] > 1 {
            return Err(BadHello("keyed"));
        }
        if fixed[0] > fixed[1] {
            return Err(BadHello("versions"));
        }
        Ok(Hello {
            version_min: fixed[0],
            version_max: fixed[1],
            keyed: fixed[2] == 1,
            cluster: ClusterId::new(u128::from_le_bytes(fixed[6..22].try_into().expect("16"))),
            nonce: fixed[22..FIXED].try_into().expect("32 bytes"),
            name: name.to_owned(),
        })
    }
}

/// The terms that `own` and `peer` agree on, or a sentence with cause and remedy for an operator.
pub fn agree(own: &Hello, peer: &Hello) -> Result<Agreed, String> {
    let version = own.version_max.min(peer.version_max);
    if version < own.version_min.max(peer.version_min) {
        return Err(format!(
            "'{}' speaks frame versions {} to {} and '{}' speaks {} to {}: upgrade the older of \
             the two",
            peer.name,
            peer.version_min,
            peer.version_max,
            own.name,
            own.version_min,
            own.version_max,
        ));
    }
    let zero = ClusterId::default();
    if own.cluster != zero && peer.cluster != zero && own.cluster != peer.cluster {
        return Err(format!(
            "'{}' belongs to cluster {} and '{}' to {}: correct the address, or give the one that \
             is in the wrong cluster an empty directory",
            peer.name, peer.cluster, own.name, own.cluster,
        ));
    }
    if own.keyed != peer.keyed {
        let (with, without) = if own.keyed { (own, peer) } else { (peer, own) };
        return Err(format!(
            "'{}' has a cluster key and '{}' has none: configure the same cluster key in both",
            with.name, without.name,
        ));
    }
    let cluster = if own.cluster == zero { peer.cluster } else { own.cluster };
    Ok(Agreed { version, cluster, keyed: own.keyed })
}

/// The error text when the proof of `peer` does not verify.
pub fn wrong_key(own: &str, peer: &str) -> String {
    format!(
        "'{peer}' and '{own}' have different cluster keys: copy the cluster key of the running \
         cluster to the other"
    )
}

/// The side of the handshake that a proof is from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The one that connected.
    Connecting,
    /// The one that listens.
    Accepting,
}

/// Both Hellos as they were sent.
#[derive(Clone, Copy, Debug)]
pub struct Transcript<'a> {
    /// Of the connecting side.
    pub connecting: &'a [u8],
    /// Of the accepting side.
    pub accepting: &'a [u8],
}

impl Transcript<'_> {
    fn mac(&self, key: &ClusterKey, side: Side) -> hmac::Hmac<sha2::Sha256> {
        let mut mac = keyed(&key.derive(b"craton handshake 1"));
        mac.update(match side {
            Side::Connecting => b"connecting",
            Side::Accepting => b"accepting.",
        });
        for hello in [self.connecting, self.accepting] {
            mac.update(&(hello.len() as u64).to_le_bytes());
            mac.update(hello);
        }
        mac
    }

    /// The proof of `side`.
    pub fn prove(&self, key: &ClusterKey, side: Side) -> [u8; PROOF] {
        self.mac(key, side).finalize().into_bytes().into()
    }

    /// Whether `proof` is that of `side`. Takes the same time for every wrong proof.
    pub fn verify(&self, key: &ClusterKey, side: Side, proof: &[u8]) -> bool {
        self.mac(key, side).verify_slice(proof).is_ok()
    }
}

/// Fuzz target: any bytes give a Hello whose encoding decodes to the same, or an error.
pub fn fuzz_hello(bytes: &[u8]) {
    if let Ok(hello) = Hello::decode(bytes) {
        assert_eq!(Hello::decode(&hello.encode()), Ok(hello), "decode and encode differ");
    }
}
