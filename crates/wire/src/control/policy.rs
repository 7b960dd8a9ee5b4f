//! Policies: what becomes of the bytes of a file (C1, C18, C19).

use std::fmt;
use std::str::FromStr;

use codec::block::{BlockSize, Codec};

use super::limits::{LATER_MAX_S, LATER_MIN_S};

/// Replication policy of a file: each chunk on `copies` replicas, an append acknowledged when
/// `acks` of them have it durable (MaxCopy and MinCopy).
///
/// A replica is a copy, or where `data` is above 1 a fragment of the chunk's erasure code (C18): any
/// `data` of the fragments give the bytes back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Policy {
    /// Replicas: MaxCopy, 1 to 5 copies, or n = k + p fragments, 3 to 16.
    pub copies: u8,
    /// MinCopy; of fragments k + 1 at least.
    pub acks: u8,
    /// Data fragments k, 2 to 12; 1 where replicas are copies.
    pub data: u8,
    /// Compression of what is appended; none: sectors hold the bytes as they are (layout 1).
    pub compression: Option<Compression>,
    /// The form that chunks get once they are old; none: they keep theirs.
    pub later: Option<Later>,
    /// Which appends their writer reads back from what it has laid out, before it sends them.
    pub verify: Verify,
}

/// Which appends a writer reads back from what it has compressed and coded, before it sends them (C24,
/// `protocols-tail.md` 9.10): a CPU that errs now and then is found before others rely on its work. Of
/// chunks whose sectors hold the bytes as they are there is nothing to read back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Verify {
    /// One in [`VERIFY_SAMPLE`](super::limits::VERIFY_SAMPLE).
    #[default]
    Sampled,
    /// None.
    Off,
    /// All.
    All,
}

impl Verify {
    /// All of them; the first is the default.
    pub const ALL: [Verify; 3] = [Verify::Sampled, Verify::Off, Verify::All];

    /// The word that commands take.
    pub const fn name(self) -> &'static str {
        match self {
            Verify::Sampled => "sampled",
            Verify::Off => "off",
            Verify::All => "all",
        }
    }

    /// The one with this number in messages and stored forms: 0 is the default.
    pub fn from_number(number: u8) -> Option<Verify> {
        Verify::ALL.get(usize::from(number)).copied()
    }

    /// Its number.
    pub const fn number(self) -> u8 {
        match self {
            Verify::Sampled => 0,
            Verify::Off => 1,
            Verify::All => 2,
        }
    }
}

/// A form that chunks get some time after they were sealed (C18): what is written in copies, and read
/// while it is new, is kept in a code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Later {
    /// Seconds behind the seal, of the time in which the file's partition has a leader:
    /// [`LATER_MIN_S`](super::limits::LATER_MIN_S) to [`LATER_MAX_S`](super::limits::LATER_MAX_S).
    pub after_s: u32,
    copies: u8,
    acks: u8,
    data: u8,
    compression: Option<Compression>,
}

impl Later {
    /// So many seconds behind the seal the form of chunks of this policy.
    pub const fn new(after_s: u32, form: Policy) -> Later {
        let Policy { copies, acks, data, compression, .. } = form;
        Later { after_s, copies, acks, data, compression }
    }

    /// The policy whose form chunks get.
    pub const fn policy(self) -> Policy {
        let Later { copies, acks, data, compression, .. } = self;
        Policy { data, compression, ..Policy::plain(copies, acks) }
    }
}

impl fmt::Display for Later {
    /// As the command takes it, in seconds where no larger unit fits: `7d=ec8+3`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(24 * 3600, "d"), (3600, "h"), (60, "m"), (1, "s")];
        let fits = |(seconds, _): &(u32, &str)| self.after_s.is_multiple_of(*seconds);
        let (seconds, unit) = units.into_iter().find(fits).unwrap_or((1, "s"));
        write!(f, "{}{unit}={}", self.after_s / seconds, self.policy())
    }
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
        Policy::plain(copies, copies / 2 + 1)
    }

    /// `repN-strict`: N copies, all of which acknowledge.
    pub const fn strict(copies: u8) -> Policy {
        Policy::plain(copies, copies)
    }

    /// `copies`, acknowledged by `acks`, as they are.
    pub const fn plain(copies: u8, acks: u8) -> Policy {
        let verify = Verify::Sampled;
        Policy { copies, acks, data: 1, compression: None, later: None, verify }
    }

    /// `ecK+M`: `data` and `parity` fragments, of which all but one acknowledge, but always one more than
    /// are needed to read.
    pub const fn ec(data: u8, parity: u8) -> Policy {
        let copies = data.saturating_add(parity);
        let acks = if parity > 1 { copies - 1 } else { copies };
        Policy { data, ..Policy::plain(copies, acks) }
    }

    /// `ecK+M-strict`: all fragments acknowledge.
    pub const fn ec_strict(data: u8, parity: u8) -> Policy {
        let copies = data.saturating_add(parity);
        Policy { acks: copies, ..Policy::ec(data, parity) }
    }

    /// The same, compressed so.
    pub const fn compressed(self, compression: Option<Compression>) -> Policy {
        Policy { compression, ..self }
    }

    /// The same, with this form for chunks that are old.
    pub const fn and_later(self, later: Option<Later>) -> Policy {
        Policy { later, ..self }
    }

    /// The same, with appends verified so.
    pub const fn verified(self, verify: Verify) -> Policy {
        Policy { verify, ..self }
    }

    /// What its chunks have of it: not what old ones get, nor what writers verify.
    pub const fn form(self) -> Policy {
        self.and_later(None).verified(Verify::Sampled)
    }

    /// The same number of copies and acknowledgements, as they are.
    pub const fn uncompressed(self) -> Policy {
        self.compressed(None)
    }

    /// The copies or the code alone, as a word says them.
    pub const fn scheme(self) -> Policy {
        self.form().uncompressed()
    }

    /// True when replicas are fragments of a code.
    pub const fn is_coded(self) -> bool {
        self.data > 1
    }

    /// Parity fragments; 0 where replicas are copies.
    pub const fn parity(self) -> u8 {
        if self.is_coded() { self.copies.saturating_sub(self.data) } else { 0 }
    }

    /// Replicas that may be lost, at most, with all bytes left.
    pub const fn losses(self) -> u8 {
        self.copies - self.data
    }

    /// True when `1 <= acks <= copies <= 5` and `2 * acks > copies`, or there is such a code and
    /// `data + 1 <= acks <= copies`; a compression compresses; and so is the form of old chunks.
    pub const fn is_valid(self) -> bool {
        if let Some(later) = self.later
            && !(later.after_s >= LATER_MIN_S
                && later.after_s <= LATER_MAX_S
                && later.policy().is_valid())
        {
            return false;
        }
        use codec::limits::{DATA_MAX, PARITY_MAX};
        let fits = if self.data > 1 {
            self.data as usize <= DATA_MAX
                && self.copies > self.data
                && (self.copies - self.data) as usize <= PARITY_MAX
                && self.acks > self.data
        } else {
            let most = self.copies <= 5 && 2 * (self.acks as u16) > self.copies as u16;
            self.data == 1 && self.acks >= 1 && most
        };
        fits && self.acks <= self.copies
            && !matches!(self.compression, Some(Compression { codec: Codec::Plain, .. }))
    }

    /// Fenced replicas whose answers recovery needs: F = n - m + k (`protocols.md` 2.2,
    /// `protocols-tail.md` 9.7).
    pub const fn recovery_votes(self) -> u8 {
        self.copies - self.acks + self.data
    }

    /// The policy of a chunk for which there are `places`: acknowledged by as many at most, and in place of a
    /// code whose fragments do not all have one, copies that survive as many losses
    /// (`protocols-tail.md` 9.8).
    pub fn for_places(self, places: usize) -> Policy {
        if self.is_coded() && places < usize::from(self.copies) {
            return self.in_copies().for_places(places);
        }
        let places = u8::try_from(places).unwrap_or(u8::MAX);
        Policy { acks: self.acks.min(places), ..self }
    }

    /// Copies that survive as many losses as the code, when they are acknowledged and once all are
    /// there; the same policy when it has none.
    pub const fn in_copies(self) -> Policy {
        let Policy { acks, data, compression, later, verify, .. } = self;
        if !self.is_coded() {
            return self;
        }
        let usual = Policy::rep(self.losses() + 1);
        // What is acknowledged by so many fragments survives one loss less than by so many copies.
        let alike = acks - data + 1;
        let acks = if alike > usual.acks { alike } else { usual.acks };
        Policy { acks, ..usual }.compressed(compression).and_later(later).verified(verify)
    }
}

impl fmt::Display for Policy {
    /// The word that commands take, with the acknowledgements where no word says them, and the
    /// compression behind it: `rep3 lz4`, `ec4+2`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Policy { copies, acks, data, compression, later, verify } = *self;
        let parity = self.parity();
        let (usual, strict) = if self.is_coded() {
            write!(f, "ec{data}+{parity}")?;
            (Policy::ec(data, parity), Policy::ec_strict(data, parity))
        } else {
            write!(f, "rep{copies}")?;
            (Policy::rep(copies), Policy::strict(copies))
        };
        let scheme = self.scheme();
        if scheme != usual {
            match scheme == strict {
                true => write!(f, "-strict")?,
                false => write!(f, " ({acks} acknowledge)")?,
            }
        }
        compression.map_or(Ok(()), |compression| write!(f, " {compression}"))?;
        later.map_or(Ok(()), |later| write!(f, ", after {later}"))?;
        match verify {
            Verify::Sampled => Ok(()),
            other => write!(f, ", verify {}", other.name()),
        }
    }
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(text: &str) -> Result<Policy, String> {
        let (word, is_strict) = match text.strip_suffix("-strict") {
            Some(word) => (word, true),
            None => (text, false),
        };
        let policy = match (copies(word), fragments(word)) {
            (Some(copies), _) if is_strict => Some(Policy::strict(copies)),
            (Some(copies), _) => Some(Policy::rep(copies)),
            (_, Some((data, parity))) if is_strict => Some(Policy::ec_strict(data, parity)),
            (_, Some((data, parity))) => Some(Policy::ec(data, parity)),
            (None, None) => None,
        };
        policy.filter(|policy| policy.is_valid()).ok_or_else(|| {
            "a policy is rep1 to rep5, or ecK+M with 2 to 12 data and 1 to 4 parity fragments, \
             as ec4+2; with -strict behind it all replicas acknowledge"
                .to_owned()
        })
    }
}

/// The number in `repN`. It has one digit, so that each policy has one word.
fn copies(word: &str) -> Option<u8> {
    let &[digit] = word.strip_prefix("rep")?.as_bytes() else { return None };
    (b'1'..=b'5').contains(&digit).then(|| digit - b'0')
}

/// The numbers in `ecK+M`, in the one form that they have.
fn fragments(word: &str) -> Option<(u8, u8)> {
    let (data, parity) = word.strip_prefix("ec")?.split_once('+')?;
    let (data, parity) = (data.parse().ok()?, parity.parse().ok()?);
    let coded = data >= 2 && parity >= 1 && format!("ec{data}+{parity}") == word;
    coded.then_some((data, parity))
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
        for word in ["ec1+1", "ec2+0", "ec13+2", "ec4+5", "ec04+2", "ec4+2+1", "ec+2", "ec256+1"] {
            assert!(acks(word).is_err(), "{word}");
        }
        for (data, parity) in (2..=12).flat_map(|data| (1..=4).map(move |parity| (data, parity))) {
            let n = data + parity;
            for copies_acks in data + 1..=n {
                let policy = Policy { acks: copies_acks, ..Policy::ec(data, parity) };
                assert!(policy.is_valid() && policy.in_copies().is_valid(), "{policy}");
                let named = [Policy::ec(data, parity), Policy::ec_strict(data, parity)];
                assert_eq!(policy.to_string().parse() == Ok(policy), named.contains(&policy));
                let in_copies = policy.in_copies();
                assert!(in_copies.acks > copies_acks - data, "{policy}: survives less in copies");
                assert_eq!(in_copies.losses(), policy.losses());
                // Losses that are survived at success, and answers that recovery needs then.
                assert_eq!(policy.recovery_votes(), n - (copies_acks - data));
            }
        }
        assert_eq!(["ec2+1", "ec4+2", "ec8+3", "ec4+2-strict"].map(acks), [3, 5, 10, 6].map(Ok));
        assert_eq!(Policy::ec(4, 2).for_places(6), Policy::ec(4, 2));
        assert_eq!(Policy::ec(4, 2).for_places(5), Policy::rep(3));
        assert_eq!(Policy::ec(4, 2).for_places(1), Policy::plain(3, 1));
        assert_eq!(Policy::ec_strict(2, 1).for_places(2), Policy::strict(2));
        for word in ["rep0", "rep6", "rep03", "rep+3", "3", "rep", "rep3-", "rep3-strict-strict"] {
            assert!(acks(word).is_err(), "{word}");
        }
    }

    #[test]
    fn forms_of_old_chunks_are_valid_by_themselves_and_shown_as_they_are_said() {
        let later = |after_s, form| Policy::rep(3).and_later(Some(Later::new(after_s, form)));
        let week = later(7 * 24 * 3600, Policy::ec(8, 3));
        assert!(week.is_valid());
        assert_eq!(week.to_string(), "rep3, after 7d=ec8+3");
        assert_eq!(later(90 * 60, Policy::ec(4, 2)).to_string(), "rep3, after 90m=ec4+2");
        assert_eq!(week.later.map(Later::policy), Some(Policy::ec(8, 3)));
        assert!(!later(LATER_MIN_S - 1, Policy::ec(4, 2)).is_valid());
        assert!(!later(LATER_MAX_S + 1, Policy::ec(4, 2)).is_valid());
        assert!(!later(3600, Policy::ec(13, 1)).is_valid());
        // A form is of one time: that of an old chunk's own later form is none.
        assert_eq!(Later::new(3600, week).policy(), Policy::rep(3));
        let coded = Policy::ec(4, 2).and_later(week.later);
        assert_eq!(coded.in_copies().later, week.later);
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
