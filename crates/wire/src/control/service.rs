//! Messages of services that are not the core's: a tag, and bytes that the service's crate understands.

use prost::encoding::{
    DecodeContext, WireType, decode_key, decode_varint, encode_key, encode_varint, skip_field,
};

use super::WireError;

/// The service of a message: the member's tag in the envelopes of requests and replies. The
/// constant is in the service's crate (`docs/formats/services.md`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ServiceTag(u32);

impl ServiceTag {
    /// The lowest tag: those below are the core's.
    pub const MIN: u32 = 6;
    /// The highest tag.
    pub const MAX: u32 = 127;

    /// The messages of a tag, [`ServiceTag::MIN`] to [`ServiceTag::MAX`].
    pub const fn new(tag: u32) -> Option<ServiceTag> {
        match tag {
            ServiceTag::MIN..=ServiceTag::MAX => Some(ServiceTag(tag)),
            _ => None,
        }
    }

    /// Its number.
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// A request or reply of a service that is not the core's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServiceMessage {
    /// Its service.
    pub tag: ServiceTag,
    /// Its content, as that service encodes it.
    pub body: Vec<u8>,
}

impl ServiceMessage {
    /// The envelope with this message in it: protobuf's form of a member with this tag.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.body.len() + 8);
        encode_key(self.tag.0, WireType::LengthDelimited, &mut out);
        encode_varint(self.body.len() as u64, &mut out);
        out.extend_from_slice(&self.body);
        out
    }

    /// The service's message in an envelope; nothing when it is one of the core's. As protobuf has
    /// it, the last member counts, and one that comes in parts is put together.
    pub(super) fn find(mut envelope: &[u8]) -> Result<Option<ServiceMessage>, WireError> {
        let mut found: Option<ServiceMessage> = None;
        while !envelope.is_empty() {
            let (number, kind) = decode_key(&mut envelope).map_err(|_| WireError::Malformed)?;
            let tag = ServiceTag::new(number).filter(|_| kind == WireType::LengthDelimited);
            let Some(tag) = tag else {
                found = found.filter(|_| number >= ServiceTag::MIN);
                skip_field(kind, number, &mut envelope, DecodeContext::default())
                    .map_err(|_| WireError::Malformed)?;
                continue;
            };
            let len = decode_varint(&mut envelope).map_err(|_| WireError::Malformed)?;
            let part = usize::try_from(len).ok().and_then(|len| envelope.split_at_checked(len));
            let (part, rest) = part.ok_or(WireError::Malformed)?;
            envelope = rest;
            match &mut found {
                Some(found) if found.tag == tag => found.body.extend_from_slice(part),
                _ => found = Some(ServiceMessage { tag, body: part.to_vec() }),
            }
        }
        Ok(found)
    }
}
