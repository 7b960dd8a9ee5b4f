//! Identifiers: a private field, a checked constructor, one text form.

use std::fmt;

/// Cause of an identifier's decoding error.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IdError {
    /// The prefix that the text form starts with, e.g. `chk_`.
    pub prefix: &'static str,
    /// The text given.
    pub text: String,
}

impl fmt::Display for IdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}' is no identifier of the form {}HEX", self.text, self.prefix)
    }
}

impl std::error::Error for IdError {}

/// Defines an identifier: a number of its own type, shown as a prefix and hexadecimal digits.
#[macro_export]
macro_rules! id {
    ($(#[$doc:meta])* $name:ident($raw:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name($raw);

        impl $name {
            /// From its number on disk or wire.
            pub const fn new(raw: $raw) -> $name {
                $name(raw)
            }

            /// Its number on disk or wire.
            pub const fn get(self) -> $raw {
                self.0
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                write!(f, concat!($prefix, "{:x}"), self.0)
            }
        }

        impl ::std::fmt::Debug for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                ::std::fmt::Display::fmt(self, f)
            }
        }

        impl ::std::str::FromStr for $name {
            type Err = $crate::IdError;

            fn from_str(text: &str) -> Result<$name, $crate::IdError> {
                text.strip_prefix($prefix)
                    .and_then(|hex| <$raw>::from_str_radix(hex, 16).ok())
                    .map($name)
                    .ok_or_else(|| $crate::IdError { prefix: $prefix, text: text.to_owned() })
            }
        }
    };
}

id!(
    /// One cluster, drawn at random when it is formed. Peers of another cluster are refused.
    ClusterId(u128), "clu_"
);
id!(
    /// One formation of a cluster: drawn at random when masters form it. A cluster that is formed
    /// again under its old identity has another. Zero for clusters formed before there was one.
    FormationId(u128), "frm_"
);
id!(
    /// A chunkserver process across restarts, given at its registration. Never reused.
    ServerId(u32), "srv_"
);
id!(
    /// One formatting of one disk (its incarnation). A disk that is wiped gets another, so that
    /// its answers are no votes for what it held before (`protocols.md` 2.2).
    DiskId(u128), "dsk_"
);
id!(
    /// A chunk: the owning stream partition in the top 16 bits, a counter below. Never reused.
    ChunkId(u64), "chk_"
);
id!(
    /// A FlatLogFile: the creating namespace partition in the top 16 bits, a counter below.
    /// Never reused.
    FileId(u64), "fil_"
);
id!(
    /// A directory: hash of parent, name and version, so that clients predict it (C4).
    DirId(u128), "dir_"
);
id!(
    /// A client session, drawn at random at its start.
    ClientId(u64), "cli_"
);
id!(
    /// Follows one operation across processes.
    TraceId(u64), "trc_"
);

/// Counters below the partition's number in a [`ChunkId`] or [`FileId`] are smaller.
pub const ID_COUNTER_END: u64 = 1 << 48;

impl ChunkId {
    /// The chunk numbered `counter` of stream partition `partition`.
    pub const fn compose(partition: u16, counter: u64) -> ChunkId {
        assert!(counter < ID_COUNTER_END);
        ChunkId((partition as u64) << 48 | counter)
    }

    /// The stream partition that owns it.
    pub const fn partition(self) -> u16 {
        (self.0 >> 48) as u16
    }

    /// Its number in that partition.
    pub const fn counter(self) -> u64 {
        self.0 % ID_COUNTER_END
    }
}

impl FileId {
    /// The file numbered `counter` of namespace partition `partition`.
    pub const fn compose(partition: u16, counter: u64) -> FileId {
        assert!(counter < ID_COUNTER_END);
        FileId((partition as u64) << 48 | counter)
    }

    /// The namespace partition that made it.
    pub const fn partition(self) -> u16 {
        (self.0 >> 48) as u16
    }

    /// Its number in that partition.
    pub const fn counter(self) -> u64 {
        self.0 % ID_COUNTER_END
    }
}

impl TraceId {
    /// Set in traces that a client asked for: each process keeps their operations longer.
    const ASKED: u64 = 1 << 63;

    /// A trace that no client has asked for yet, made of 63 bits of `raw`; never the zero one,
    /// which means none.
    pub const fn unasked(raw: u64) -> TraceId {
        let raw = raw & !TraceId::ASKED;
        TraceId(if raw == 0 { 1 } else { raw })
    }

    /// The same, asked for.
    pub const fn asked(self) -> TraceId {
        TraceId(self.0 | TraceId::ASKED)
    }

    /// A client asked for it.
    pub const fn is_asked(self) -> bool {
        self.0 & TraceId::ASKED != 0
    }
}

impl DirId {
    /// The root directory.
    pub const ROOT: DirId = DirId(1);
}

/// Ownership of a FlatLogFile by one writer; larger is newer. 0 is "never opened for append".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Epoch(u64);

impl Epoch {
    /// Before the first writer.
    pub const NONE: Epoch = Epoch(0);

    /// From its number on disk or wire.
    pub const fn new(raw: u64) -> Epoch {
        Epoch(raw)
    }

    /// Its number on disk or wire.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The last one that a writer may have: [`Epoch::LAST`] remains to fence it.
    pub const LAST_WRITER: Epoch = Epoch(u64::MAX - 1);

    /// The last one. No writer has it.
    pub const LAST: Epoch = Epoch(u64::MAX);

    /// The epoch after this one, which is no more than a writer may have.
    pub const fn next(self) -> Epoch {
        assert!(self.0 <= Epoch::LAST_WRITER.0, "no epoch follows on the last one");
        Epoch(self.0 + 1)
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_forms_round_trip() {
        let chunk = ChunkId::compose(3, 0x7f);
        assert_eq!(chunk.to_string(), "chk_300000000007f");
        assert_eq!("chk_300000000007f".parse(), Ok(chunk));
        assert_eq!(chunk.partition(), 3);
        assert!("chk_".parse::<ChunkId>().is_err());
        assert!("fil_7f".parse::<ChunkId>().is_err());
        let last = ChunkId::compose(u16::MAX, ID_COUNTER_END - 1);
        assert_eq!((last.partition(), last.counter()), (u16::MAX, ID_COUNTER_END - 1));
    }
}
