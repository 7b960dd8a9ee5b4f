//! Policies: what becomes of the bytes of a file (C1, C18, C19).

use std::fmt;
use std::str::FromStr;

use codec::block::{BlockSize, Codec};

/// Replication policy of a file: each chunk on `copies` replicas, an append acknowledged when
/// `acks` of them have it durable (MaxCopy and MinCopy; `2 * acks > copies`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Policy {
    /// MaxCopy, 1 to 5.
    pub copies: u8,
    /// MinCopy.
    pub acks: u8,
    /// Compression of what is appended; none: sectors hold the bytes as they are (layout 1).
    pub compression: Option<Compression>,
}

/// Compression of appends by clients, in blocks (C19).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Compression {
    /// LZ4 or Zstandard.
    pub codec: Codec,
    /// Bytes that are compressed together, and read together.
    pub block: BlockSize,
}

impl Compression {
    /// LZ4 in blocks of 16 KiB.
    pub const LZ4: Compression = Compression::of(Codec::Lz4);
    /// Zstandard in blocks of 16 KiB.
    pub const ZSTD: Compression = Compression::of(Codec::Zstd);

    /// With blocks of 16 KiB, the papers' size.
    pub const fn of(codec: Codec) -> Compression {
        Compression { codec, block: BlockSize::PAPERS }
    }

    /// The codec with this name and blocks of so many bytes; none when it compresses nothing, or one
    /// of the two is not offered.
    pub fn named(codec: &str, block_bytes: usize) -> Option<Compression> {
        let compresses = |codec: &Codec| *codec != Codec::Plain;
        let codec = Codec::ALL.into_iter().filter(compresses).find(|it| it.name() == codec)?;
        let log2 = block_bytes.checked_ilog2().filter(|_| block_bytes.is_power_of_two())?;
        Some(Compression { codec, block: BlockSize::new(log2 as u8)? })
    }

    /// The stored form of `compression`: one byte, zero for none.
    pub fn to_byte(compression: Option<Compression>) -> u8 {
        let byte = |it: Compression| it.codec as u8 | (it.block.log2() - BLOCK_LOG2_BASE) << 4;
        compression.map_or(0, byte)
    }

    /// From the stored form. The error is for a byte that no writer produces.
    pub fn from_byte(byte: u8) -> Result<Option<Compression>, UnknownCompression> {
        if byte == 0 {
            return Ok(None);
        }
        let block =
            BlockSize::new((byte >> 4) + BLOCK_LOG2_BASE).ok_or(UnknownCompression(byte))?;
        match Codec::from_number(byte & 15) {
            None | Some(Codec::Plain) => Err(UnknownCompression(byte)),
            Some(codec) => Ok(Some(Compression { codec, block })),
        }
    }
}

/// What the logarithm of a block's size is stored above: blocks of 4 KiB are 1.
const BLOCK_LOG2_BASE: u8 = codec::limits::BLOCK_LOG2_MIN - 1;

/// A byte that is no compression.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnknownCompression(pub u8);

impl fmt::Display for Compression {
    /// `lz4`, and the block where it is another than 16 KiB: `lz4/64KiB`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.codec.name())?;
        if self.block == BlockSize::PAPERS {
            return Ok(());
        }
        write!(f, "/{}KiB", self.block.bytes() >> 10)
    }
}

impl Policy {
    /// `repN`: N copies, of which more than half acknowledge; the writer chases the others (C14).
    pub const fn rep(copies: u8) -> Policy {
        Policy { copies, acks: copies / 2 + 1, compression: None }
    }

    /// `repN-strict`: N copies, all of which acknowledge.
    pub const fn strict(copies: u8) -> Policy {
        Policy { copies, acks: copies, compression: None }
    }

    /// `copies`, acknowledged by `acks`, as they are.
    pub const fn plain(copies: u8, acks: u8) -> Policy {
        Policy { copies, acks, compression: None }
    }

    /// The same, compressed so.
    pub const fn compressed(self, compression: Option<Compression>) -> Policy {
        Policy { compression, ..self }
    }

    /// The same number of copies and acknowledgements, as they are.
    pub const fn uncompressed(self) -> Policy {
        self.compressed(None)
    }

    /// True when `1 <= acks <= copies <= 5` and `2 * acks > copies`, and a compression compresses.
    pub const fn is_valid(self) -> bool {
        self.acks >= 1
            && self.acks <= self.copies
            && self.copies <= 5
            && 2 * self.acks > self.copies
            && !matches!(self.compression, Some(Compression { codec: Codec::Plain, .. }))
    }

    /// Fenced replicas whose answers recovery needs: F = n - m + 1 (`protocols.md`).
    pub const fn recovery_votes(self) -> u8 {
        self.copies - self.acks + 1
    }
}

impl fmt::Display for Policy {
    /// The word that commands take, with the acknowledgements where no word says them, and the
    /// compression behind it: `rep3 lz4`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Policy { copies, acks, compression } = *self;
        if self.uncompressed() == Policy::rep(copies) {
            write!(f, "rep{copies}")?;
        } else if self.uncompressed() == Policy::strict(copies) {
            write!(f, "rep{copies}-strict")?;
        } else {
            write!(f, "rep{copies} ({acks} acknowledge)")?;
        }
        compression.map_or(Ok(()), |compression| write!(f, " {compression}"))
    }
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(text: &str) -> Result<Policy, String> {
        let policy = match text.strip_suffix("-strict") {
            Some(word) => copies(word).map(Policy::strict),
            None => copies(text).map(Policy::rep),
        };
        policy.ok_or_else(|| "a policy is rep1 to rep5, or rep3-strict and the like".to_owned())
    }
}

/// The number in `repN`. It has one digit, so that each policy has one word.
fn copies(word: &str) -> Option<u8> {
    let &[digit] = word.strip_prefix("rep")?.as_bytes() else { return None };
    (b'1'..=b'5').contains(&digit).then(|| digit - b'0')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_have_one_word_each() {
        for copies in 1..=5 {
            for acks in copies / 2 + 1..=copies {
                let policy = Policy::plain(copies, acks);
                assert!(policy.is_valid(), "{policy}");
                let named = policy == Policy::rep(copies) || policy == Policy::strict(copies);
                assert_eq!(policy.to_string().parse() == Ok(policy), named, "{policy}");
            }
        }
        let acks = |text: &str| text.parse::<Policy>().map(|policy| policy.acks);
        assert_eq!(["rep1", "rep2", "rep3", "rep4", "rep5"].map(acks), [1, 2, 2, 3, 3].map(Ok));
        assert_eq!(["rep2-strict", "rep3-strict", "rep5-strict"].map(acks), [2, 3, 5].map(Ok));
        for word in ["rep0", "rep6", "rep03", "rep+3", "3", "rep", "rep3-", "rep3-strict-strict"] {
            assert!(acks(word).is_err(), "{word}");
        }
    }

    #[test]
    fn compressions_have_one_byte_each() {
        let mut seen = std::collections::BTreeSet::new();
        for byte in 0..=u8::MAX {
            let Ok(compression) = Compression::from_byte(byte) else { continue };
            assert_eq!(Compression::to_byte(compression), byte);
            let policy = Policy::rep(3).compressed(compression);
            assert!(policy.is_valid() && seen.insert(policy.to_string()));
        }
        let shown = ["rep3", "rep3 lz4", "rep3 lz4/64KiB", "rep3 zstd", "rep3 zstd/4KiB"];
        assert!(shown.iter().all(|text| seen.contains(*text)), "{seen:?}");
        assert_eq!(seen.len(), 1 + 2 * 5);
    }
}
