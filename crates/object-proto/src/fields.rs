//! [`Field`]: values as messages hold them. Each value has one form, and a form that ends early, or has
//! another number or text than its type takes, is refused.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use codec::cursor::{Cursor, put_bytes, put_varint};
use wire::control::{Compression, Policy};

use crate::envelope::{ENVELOPE_MAX, Envelope};
use crate::ids::{BucketId, CallId, DataId, ObjectServerId, RangeId, SessionId, Stamp, UserId};
use crate::names::{BucketName, ObjectKey};
use crate::object::{ChecksumKind, Etag, FileName, Metadata};
use crate::parts::{PartMap, PartNumber, PartRun, UploadId};
use crate::ranges::RangeMap;
use crate::tags::{ObjectTags, TAGS_MAX};

/// A value of a message.
pub(crate) trait Field: Sized {
    /// Appends it.
    fn put(&self, out: &mut Vec<u8>);
    /// Takes it off the front of bytes.
    fn get(input: &mut Cursor<'_>) -> Option<Self>;
}

/// A number as a varint.
macro_rules! number {
    ($($type:ty),*) => {$(
        impl Field for $type {
            fn put(&self, out: &mut Vec<u8>) {
                put_varint(out, u64::from(*self));
            }

            fn get(input: &mut Cursor<'_>) -> Option<$type> {
                <$type>::try_from(input.varint()?).ok()
            }
        }
    )*};
}

number!(u16, u32, u64);

/// A number with an identifier's meaning, as 8 bytes.
macro_rules! id {
    ($($type:ident),*) => {$(
        impl Field for $type {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend(self.get().to_le_bytes());
            }

            fn get(input: &mut Cursor<'_>) -> Option<$type> {
                input.u64().map($type::new)
            }
        }
    )*};
}

id!(BucketId, RangeId, SessionId, Stamp);

/// A text with the rules of its type.
macro_rules! text {
    ($($type:ident: $read:expr),* $(,)?) => {$(
        impl Field for $type {
            fn put(&self, out: &mut Vec<u8>) {
                put_bytes(out, self.as_str().as_bytes());
            }

            fn get(input: &mut Cursor<'_>) -> Option<$type> {
                let read: fn(String) -> Option<$type> = $read;
                read(String::get(input)?)
            }
        }
    )*};
}

text! {
    UserId: |text| Some(UserId::new(text)),
    Etag: |text| Some(Etag::new(text)),
    FileName: |text| Some(FileName::new(text)),
    BucketName: |text| BucketName::new(&text).ok(),
    ObjectKey: |text| ObjectKey::new(text).ok(),
}

/// The fields of a struct, in order.
macro_rules! record {
    ($type:ident { $($field:ident),* $(,)? }) => {
        impl Field for $type {
            fn put(&self, out: &mut Vec<u8>) {
                $(self.$field.put(out);)*
            }

            fn get(input: &mut Cursor<'_>) -> Option<$type> {
                Some($type { $($field: Field::get(input)?),* })
            }
        }
    };
}

/// A variant's number in one byte, and its fields in order.
macro_rules! choice {
    ($type:ident {
        $($number:literal => $variant:ident $(($($item:ident),*))? $({ $($field:ident),* $(,)? })?),*
        $(,)?
    }) => {
        impl Field for $type {
            fn put(&self, out: &mut Vec<u8>) {
                match self {
                    $($type::$variant $(($($item),*))? $({ $($field),* })? => {
                        out.push($number);
                        $($($item.put(out);)*)?
                        $($($field.put(out);)*)?
                    })*
                }
            }

            fn get(input: &mut Cursor<'_>) -> Option<$type> {
                Some(match input.u8()? {
                    $($number => $type::$variant
                        $(($({ let $item = Field::get(input)?; $item }),*))?
                        $({ $($field: Field::get(input)?),* })?,)*
                    _ => return None,
                })
            }
        }
    };
}

pub(crate) use {choice, record};

impl Field for ObjectServerId {
    fn put(&self, out: &mut Vec<u8>) {
        self.get().put(out);
    }

    fn get(input: &mut Cursor<'_>) -> Option<ObjectServerId> {
        u32::get(input).map(ObjectServerId::new)
    }
}

/// As text.
impl Field for SocketAddr {
    fn put(&self, out: &mut Vec<u8>) {
        self.to_string().put(out);
    }

    fn get(input: &mut Cursor<'_>) -> Option<SocketAddr> {
        let text = String::get(input)?;
        // One form: the same address can be written in several ways.
        text.parse().ok().filter(|addr: &SocketAddr| addr.to_string() == text)
    }
}

impl Field for RangeMap {
    fn put(&self, out: &mut Vec<u8>) {
        put_list(out, self.places());
    }

    fn get(input: &mut Cursor<'_>) -> Option<RangeMap> {
        RangeMap::new(get_list(input)?)
    }
}

impl Field for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }

    fn get(input: &mut Cursor<'_>) -> Option<bool> {
        match input.u8()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
}

impl Field for DataId {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend(self.get().to_le_bytes());
    }

    fn get(input: &mut Cursor<'_>) -> Option<DataId> {
        input.u128().map(DataId::new)
    }
}

impl Field for CallId {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend(self.get().to_le_bytes());
    }

    fn get(input: &mut Cursor<'_>) -> Option<CallId> {
        input.u128().map(CallId::new)
    }
}

impl Field for String {
    fn put(&self, out: &mut Vec<u8>) {
        put_bytes(out, self.as_bytes());
    }

    fn get(input: &mut Cursor<'_>) -> Option<String> {
        String::from_utf8(input.bytes(usize::MAX)?.to_vec()).ok()
    }
}

impl Field for Vec<u8> {
    fn put(&self, out: &mut Vec<u8>) {
        put_bytes(out, self);
    }

    fn get(input: &mut Cursor<'_>) -> Option<Vec<u8>> {
        input.bytes(usize::MAX).map(<[u8]>::to_vec)
    }
}

impl Field for Envelope {
    fn put(&self, out: &mut Vec<u8>) {
        put_bytes(out, self.as_bytes());
    }

    fn get(input: &mut Cursor<'_>) -> Option<Envelope> {
        Envelope::new(input.bytes(ENVELOPE_MAX)?.to_vec())
    }
}

impl<T: Field> Field for Box<T> {
    fn put(&self, out: &mut Vec<u8>) {
        (**self).put(out);
    }

    fn get(input: &mut Cursor<'_>) -> Option<Box<T>> {
        T::get(input).map(Box::new)
    }
}

impl<T: Field> Field for Arc<T> {
    fn put(&self, out: &mut Vec<u8>) {
        (**self).put(out);
    }

    fn get(input: &mut Cursor<'_>) -> Option<Arc<T>> {
        T::get(input).map(Arc::new)
    }
}

impl<T: Field> Field for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }

    fn get(input: &mut Cursor<'_>) -> Option<Option<T>> {
        match bool::get(input)? {
            false => Some(None),
            true => T::get(input).map(Some),
        }
    }
}

impl<A: Field, B: Field> Field for (A, B) {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }

    fn get(input: &mut Cursor<'_>) -> Option<(A, B)> {
        Some((A::get(input)?, B::get(input)?))
    }
}

impl<T: Field, E: Field> Field for Result<T, E> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_ok().put(out);
        match self {
            Ok(value) => value.put(out),
            Err(error) => error.put(out),
        }
    }

    fn get(input: &mut Cursor<'_>) -> Option<Result<T, E>> {
        match bool::get(input)? {
            true => T::get(input).map(Ok),
            false => E::get(input).map(Err),
        }
    }
}

/// Appends a list: how many, and each of them.
pub(crate) fn put_list<T: Field>(out: &mut Vec<u8>, list: &[T]) {
    put_varint(out, list.len() as u64);
    list.iter().for_each(|item| item.put(out));
}

/// Takes such a list.
pub(crate) fn get_list<T: Field>(input: &mut Cursor<'_>) -> Option<Vec<T>> {
    // Each item has a byte at least: a number that lies ends at the end of the bytes.
    let count = input.varint().filter(|&count| count <= input.0.len() as u64)?;
    (0..count).map(|_| T::get(input)).collect()
}

/// Lists of these.
macro_rules! list {
    ($($type:ty),* $(,)?) => {$(
        impl Field for Vec<$type> {
            fn put(&self, out: &mut Vec<u8>) {
                crate::fields::put_list(out, self);
            }

            fn get(input: &mut Cursor<'_>) -> Option<Vec<$type>> {
                crate::fields::get_list(input)
            }
        }
    )*};
}

pub(crate) use list;

list!(Etag, (PartNumber, DataId));

impl Field for ChecksumKind {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(ChecksumKind::ALL.iter().position(|kind| kind == self).unwrap_or(0) as u8);
    }

    fn get(input: &mut Cursor<'_>) -> Option<ChecksumKind> {
        ChecksumKind::ALL.get(usize::from(input.u8()?)).copied()
    }
}

impl Field for Metadata {
    fn put(&self, out: &mut Vec<u8>) {
        put_varint(out, self.iter().count() as u64);
        for (name, value) in self.iter() {
            put_bytes(out, name.as_bytes());
            put_bytes(out, value.as_bytes());
        }
    }

    fn get(input: &mut Cursor<'_>) -> Option<Metadata> {
        let count = input.varint().filter(|&count| count <= input.0.len() as u64)?;
        let mut headers: BTreeMap<String, String> = BTreeMap::new();
        for _ in 0..count {
            let (name, value) = <(String, String)>::get(input)?;
            if headers.last_key_value().is_some_and(|(last, _)| *last >= name) {
                return None;
            }
            headers.insert(name, value);
        }
        Metadata::new(headers).ok()
    }
}

impl Field for ObjectTags {
    fn put(&self, out: &mut Vec<u8>) {
        put_varint(out, self.iter().len() as u64);
        for (name, value) in self.iter() {
            put_bytes(out, name.as_bytes());
            put_bytes(out, value.as_bytes());
        }
    }

    fn get(input: &mut Cursor<'_>) -> Option<ObjectTags> {
        let count = input.varint().filter(|&count| count <= TAGS_MAX as u64)?;
        let mut tags: BTreeMap<String, String> = BTreeMap::new();
        for _ in 0..count {
            let (name, value) = <(String, String)>::get(input)?;
            if tags.last_key_value().is_some_and(|(last, _)| *last >= name) {
                return None;
            }
            tags.insert(name, value);
        }
        ObjectTags::new(tags).ok()
    }
}

impl Field for PartNumber {
    fn put(&self, out: &mut Vec<u8>) {
        PartNumber::get(*self).put(out);
    }

    fn get(input: &mut Cursor<'_>) -> Option<PartNumber> {
        PartNumber::new(input.varint()?)
    }
}

/// Without its compression.
impl Field for Policy {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend([self.copies, self.acks, self.data]);
    }

    fn get(input: &mut Cursor<'_>) -> Option<Policy> {
        let (copies, acks, data) = (input.u8()?, input.u8()?, input.u8()?);
        Some(Policy { data, ..Policy::plain(copies, acks) }).filter(|policy| policy.is_valid())
    }
}

/// In its stored form.
impl Field for Compression {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(Compression::to_byte(Some(*self)));
    }

    fn get(input: &mut Cursor<'_>) -> Option<Compression> {
        Compression::from_byte(input.u8()?).ok()?
    }
}

record!(UploadId { stamp, nonce });
record!(PartRun { first, count, size });

impl Field for PartMap {
    fn put(&self, out: &mut Vec<u8>) {
        self.upload.put(out);
        put_list(out, self.runs());
    }

    fn get(input: &mut Cursor<'_>) -> Option<PartMap> {
        let upload = UploadId::get(input)?;
        PartMap::from_runs(upload, get_list(input)?)
    }
}
