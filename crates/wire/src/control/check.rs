//! Checks of fields that messages of all services share: none knows a protobuf type.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use base::limits::NAME_MAX;

use super::WireError;
use super::limits::LABEL_MAX;

/// A list of `max` elements at most.
pub fn bounded<T>(list: Vec<T>, max: usize, field: &'static str) -> Result<Vec<T>, WireError> {
    if list.len() > max {
        return Err(WireError::TooMany { field, count: list.len(), max });
    }
    Ok(list)
}

/// A list of `max` elements at most, each checked and converted.
pub fn each<P, T>(
    list: Vec<P>,
    max: usize,
    field: &'static str,
    convert: impl FnMut(P) -> Result<T, WireError>,
) -> Result<Vec<T>, WireError> {
    bounded(list, max, field)?.into_iter().map(convert).collect()
}

/// A number within its range.
pub fn range(
    value: impl Into<u64>,
    range: std::ops::RangeInclusive<u64>,
    field: &'static str,
) -> Result<u64, WireError> {
    let value = value.into();
    if !range.contains(&value) {
        return Err(WireError::OutOfRange { field, value });
    }
    Ok(value)
}

/// A number of 32 bits within its range.
pub fn range_u32(
    value: u32,
    bounds: std::ops::RangeInclusive<u32>,
    field: &'static str,
) -> Result<u32, WireError> {
    range(value, u64::from(*bounds.start())..=u64::from(*bounds.end()), field).map(|_| value)
}

/// A number of 8 bits within its range.
pub fn range_u8(
    value: u32,
    bounds: std::ops::RangeInclusive<u8>,
    field: &'static str,
) -> Result<u8, WireError> {
    range_u32(value, u32::from(*bounds.start())..=u32::from(*bounds.end()), field)
        .map(|value| value as u8)
}

/// A number of 16 bits.
pub fn u16_from(value: u32, field: &'static str) -> Result<u16, WireError> {
    u16::try_from(value).map_err(|_| WireError::OutOfRange { field, value: u64::from(value) })
}

/// A name in a directory.
pub fn name(text: String, field: &'static str) -> Result<String, WireError> {
    let bad = text.is_empty()
        || text.len() > NAME_MAX
        || text == "."
        || text == ".."
        || text.contains('/');
    if bad { Err(WireError::BadName { field }) } else { Ok(text) }
}

/// Text of a bounded length.
pub fn text(
    text: String,
    len: std::ops::RangeInclusive<usize>,
    field: &'static str,
) -> Result<String, WireError> {
    if !len.contains(&text.len()) {
        return Err(WireError::BadLength { field, len: text.len() });
    }
    Ok(text)
}

/// The part of a text for operators that there is room for.
pub fn cut(text: &str, max: usize) -> &str {
    &text[..text.floor_char_boundary(max)]
}

/// The name of a server, domain or lock.
pub fn label(label: String, field: &'static str) -> Result<String, WireError> {
    text(label, 1..=LABEL_MAX, field)
}

/// An identifier of 128 bits: 16 bytes, little-endian.
pub fn u128_bytes(value: u128) -> Vec<u8> {
    value.to_le_bytes().to_vec()
}

/// An identifier of 128 bits from its 16 bytes.
pub fn u128_from(bytes: &[u8], field: &'static str) -> Result<u128, WireError> {
    secret(bytes, field).map(u128::from_le_bytes)
}

/// A token or grant.
pub fn secret(bytes: &[u8], field: &'static str) -> Result<[u8; 16], WireError> {
    bytes.try_into().map_err(|_| WireError::BadLength { field, len: bytes.len() })
}

/// An address: 6, 18 or 22 bytes (`craton.proto`).
pub fn addr_bytes(addr: SocketAddr) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(22);
    match addr.ip() {
        IpAddr::V4(ip) => bytes.extend(ip.octets()),
        IpAddr::V6(ip) => bytes.extend(ip.octets()),
    }
    bytes.extend(addr.port().to_le_bytes());
    if let SocketAddr::V6(addr) = addr
        && addr.scope_id() != 0
    {
        bytes.extend(addr.scope_id().to_le_bytes());
    }
    bytes
}

/// An address from its bytes.
pub fn addr_from(bytes: &[u8], field: &'static str) -> Result<SocketAddr, WireError> {
    let bad = WireError::BadLength { field, len: bytes.len() };
    let v6 = |ip: &[u8; 16], port: &[u8; 2], scope| {
        SocketAddrV6::new((*ip).into(), u16::from_le_bytes(*port), 0, scope).into()
    };
    match bytes.len() {
        6 => {
            let (ip, port) = bytes.split_first_chunk::<4>().ok_or(bad.clone())?;
            let port = port.first_chunk().ok_or(bad)?;
            Ok(SocketAddr::from((*ip, u16::from_le_bytes(*port))))
        }
        18 | 22 => {
            let (ip, rest) = bytes.split_first_chunk::<16>().ok_or(bad.clone())?;
            let (port, rest) = rest.split_first_chunk::<2>().ok_or(bad)?;
            let scope = rest.first_chunk().map_or(0, |scope| u32::from_le_bytes(*scope));
            Ok(v6(ip, port, scope))
        }
        _ => Err(bad),
    }
}
