//! Encoding of commands, answers and snapshots: each type with its fields in order, enums with
//! explicit tags that are never reused.

use base::{ChunkId, DiskId, Epoch, FileId, ServerId};
use wire::control::{OpId, Policy};

use crate::placement::ReplicaLocation;
use master_consensus::bytes::{DecodeError, Reader, Writer};

/// A value that has a form in bytes.
pub trait Encode: Sized {
    /// Appends its form.
    fn put(&self, to: &mut Writer);
    /// Takes its form.
    fn take(from: &mut Reader<'_>) -> Result<Self, DecodeError>;
}

/// The form of `value` behind a version byte.
pub fn encode<T: Encode>(version: u8, value: &T) -> Vec<u8> {
    let mut to = Writer::new();
    to.u8(version);
    value.put(&mut to);
    to.finish()
}

/// The value of a form with this version, and nothing behind it.
pub fn decode<T: Encode>(version: u8, bytes: &[u8]) -> Result<T, DecodeError> {
    let mut from = Reader::new(bytes);
    if from.u8()? != version {
        return Err(DecodeError);
    }
    let value = T::take(&mut from)?;
    from.end()?;
    Ok(value)
}

macro_rules! encode_as {
    ($($type:ty: $method:ident, $to:expr, $from:expr;)*) => {$(
        impl Encode for $type {
            fn put(&self, to: &mut Writer) {
                let get: fn($type) -> _ = $to;
                to.$method(get(*self));
            }

            fn take(from: &mut Reader<'_>) -> Result<$type, DecodeError> {
                from.$method().map($from)
            }
        }
    )*};
}

encode_as! {
    bool: bool, |value| value, |raw| raw;
    u8: u8, |value| value, |raw| raw;
    u16: u16, |value| value, |raw| raw;
    u32: u32, |value| value, |raw| raw;
    u64: u64, |value| value, |raw| raw;
    ChunkId: u64, |id| id.get(), ChunkId::new;
    FileId: u64, |id| id.get(), FileId::new;
    Epoch: u64, |epoch| epoch.get(), Epoch::new;
    ServerId: u32, |id| id.get(), ServerId::new;
    DiskId: u128, |id| id.get(), DiskId::new;
}

impl Encode for OpId {
    fn put(&self, to: &mut Writer) {
        to.op(self);
    }

    fn take(from: &mut Reader<'_>) -> Result<OpId, DecodeError> {
        from.op()
    }
}

impl Encode for Policy {
    fn put(&self, to: &mut Writer) {
        to.policy(*self);
    }

    fn take(from: &mut Reader<'_>) -> Result<Policy, DecodeError> {
        from.policy()
    }
}

impl Encode for ReplicaLocation {
    fn put(&self, to: &mut Writer) {
        self.server.put(to);
        self.disk.put(to);
    }

    fn take(from: &mut Reader<'_>) -> Result<ReplicaLocation, DecodeError> {
        Ok(ReplicaLocation { server: ServerId::take(from)?, disk: DiskId::take(from)? })
    }
}

impl<T: Encode> Encode for Vec<T> {
    fn put(&self, to: &mut Writer) {
        to.count(self.len());
        self.iter().for_each(|item| item.put(to));
    }

    fn take(from: &mut Reader<'_>) -> Result<Vec<T>, DecodeError> {
        from.list(T::take)
    }
}

impl<T: Encode> Encode for Option<T> {
    fn put(&self, to: &mut Writer) {
        to.bool(self.is_some());
        if let Some(value) = self {
            value.put(to);
        }
    }

    fn take(from: &mut Reader<'_>) -> Result<Option<T>, DecodeError> {
        Ok(if from.bool()? { Some(T::take(from)?) } else { None })
    }
}

impl<A: Encode, B: Encode> Encode for (A, B) {
    fn put(&self, to: &mut Writer) {
        self.0.put(to);
        self.1.put(to);
    }

    fn take(from: &mut Reader<'_>) -> Result<(A, B), DecodeError> {
        Ok((A::take(from)?, B::take(from)?))
    }
}

impl<A: Encode, B: Encode, C: Encode> Encode for (A, B, C) {
    fn put(&self, to: &mut Writer) {
        self.0.put(to);
        self.1.put(to);
        self.2.put(to);
    }

    fn take(from: &mut Reader<'_>) -> Result<(A, B, C), DecodeError> {
        Ok((A::take(from)?, B::take(from)?, C::take(from)?))
    }
}

/// Encodes a struct field by field.
macro_rules! encode_struct {
    ($type:ident { $($field:ident),* $(,)? }) => {
        impl $crate::encoding::Encode for $type {
            fn put(&self, to: &mut ::master_consensus::bytes::Writer) {
                $( self.$field.put(to); )*
            }

            fn take(
                from: &mut ::master_consensus::bytes::Reader<'_>,
            ) -> Result<$type, ::master_consensus::bytes::DecodeError> {
                $( let $field = $crate::encoding::Encode::take(from)?; )*
                Ok($type { $($field),* })
            }
        }
    };
}

/// Encodes an enum: a tag, then the variant's fields.
macro_rules! encode_enum {
    ($type:ident { $($tag:literal => $variant:ident { $($field:ident),* $(,)? }),* $(,)? }) => {
        impl $crate::encoding::Encode for $type {
            fn put(&self, to: &mut ::master_consensus::bytes::Writer) {
                match self {
                    $( $type::$variant { $($field),* } => {
                        to.u8($tag);
                        $( $field.put(to); )*
                    } )*
                }
            }

            fn take(
                from: &mut ::master_consensus::bytes::Reader<'_>,
            ) -> Result<$type, ::master_consensus::bytes::DecodeError> {
                Ok(match from.u8()? {
                    $( $tag => {
                        $( let $field = $crate::encoding::Encode::take(from)?; )*
                        $type::$variant { $($field),* }
                    } )*
                    _ => return Err(::master_consensus::bytes::DecodeError),
                })
            }
        }
    };
}

pub(crate) use {encode_enum, encode_struct};
