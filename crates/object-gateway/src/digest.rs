//! Digests of bodies: what a request says of its body's bytes, and what they are.

use http::header::{HeaderMap, HeaderName};
use object_proto::{Checksum, ChecksumKind, Etag};
use s3s::crypto::{Checksum as _, Crc32, Crc32c, Crc64Nvme, Md5, Sha1, Sha256};

use crate::base64;
use crate::hex;
use crate::reply::Refusal;

const CONTENT_MD5: &str = "content-md5";
const TRAILER: &str = "x-amz-trailer";
const ALGORITHM: &str = "x-amz-sdk-checksum-algorithm";
const CHECKSUM_PREFIX: &str = "x-amz-checksum-";
/// Headers with that beginning that are no checksum.
const NO_CHECKSUMS: [&str; 3] =
    ["x-amz-checksum-mode", "x-amz-checksum-algorithm", "x-amz-checksum-type"];

/// Header of a checksum.
pub fn header_of(kind: ChecksumKind) -> HeaderName {
    HeaderName::from_static(match kind {
        ChecksumKind::Crc32 => "x-amz-checksum-crc32",
        ChecksumKind::Crc32c => "x-amz-checksum-crc32c",
        ChecksumKind::Crc64Nvme => "x-amz-checksum-crc64nvme",
        ChecksumKind::Sha1 => "x-amz-checksum-sha1",
        ChecksumKind::Sha256 => "x-amz-checksum-sha256",
    })
}

/// Name of a checksum's algorithm in S3.
pub fn name_of(kind: ChecksumKind) -> &'static str {
    match kind {
        ChecksumKind::Crc32 => "CRC32",
        ChecksumKind::Crc32c => "CRC32C",
        ChecksumKind::Crc64Nvme => "CRC64NVME",
        ChecksumKind::Sha1 => "SHA1",
        ChecksumKind::Sha256 => "SHA256",
    }
}

/// Value of a checksum as S3 shows it.
pub fn text_of(checksum: &Checksum) -> String {
    let value = base64::encode(&checksum.value);
    if checksum.parts == 0 { value } else { format!("{value}-{}", checksum.parts) }
}

/// The algorithm of that name.
///
/// # Errors
///
/// A [`Refusal`] when there is none.
pub fn kind_of_name(name: &str) -> Result<ChecksumKind, Refusal> {
    let mut kinds = ChecksumKind::ALL.into_iter();
    kinds.find(|kind| name.eq_ignore_ascii_case(name_of(*kind))).ok_or_else(|| {
        Refusal::new(
            "InvalidRequest",
            "Checksum algorithm provided is unsupported. Please try again with any of the valid \
             types: [CRC32, CRC32C, CRC64NVME, SHA1, SHA256]",
        )
    })
}

/// Two algorithms where there should be one.
pub fn kind_mismatch(wanted: ChecksumKind, sent: ChecksumKind) -> Refusal {
    let message = format!(
        "Checksum Type mismatch occurred, expected checksum Type: {}, actual checksum Type: {}",
        name_of(wanted).to_ascii_lowercase(),
        name_of(sent).to_ascii_lowercase()
    );
    Refusal::new("InvalidRequest", message)
}

/// A value that is not that of the bytes.
pub fn bad_checksum(kind: ChecksumKind) -> Refusal {
    let name = name_of(kind);
    let message = format!("The {name} you specified did not match the calculated checksum.");
    Refusal::new("BadDigest", message)
}

/// What is behind a body is not what its head announced.
pub fn malformed_trailer() -> Refusal {
    let message = "The request contained trailing data that was not well-formed or did not conform \
                   to our published schema.";
    Refusal::new("MalformedTrailerError", message)
}

/// True for a header that has the value of a checksum.
pub fn is_checksum(name: &str) -> bool {
    name.starts_with(CHECKSUM_PREFIX) && !NO_CHECKSUMS.contains(&name)
}

/// The checksum of an object of parts that a completion's headers name, with the number of parts
/// where that is said.
///
/// # Errors
///
/// A [`Refusal`] when it is none, or not the only one.
pub fn checksum_of_object(headers: &HeaderMap) -> Result<Option<Checksum>, Refusal> {
    let mut found = None;
    for (name, value) in headers {
        let name = name.as_str();
        if !is_checksum(name) {
            continue;
        }
        if found.is_some() {
            return Err(one_only());
        }
        let (kind, text) = (kind_of_header(name)?, value.to_str().unwrap_or_default());
        // A minus is no digit of base64.
        let (text, parts) = match text.split_once('-') {
            Some((text, count)) => (text, count.parse().ok().filter(|count| *count > 0)),
            None => (text, Some(0)),
        };
        let parts = parts.ok_or_else(|| invalid_value(kind))?;
        found = Some(Checksum { kind, value: value_of(kind, text)?, parts });
    }
    Ok(found)
}

/// What a request says of its body.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Expected {
    md5: Option<Vec<u8>>,
    checksum: Option<(ChecksumKind, Vec<u8>)>,
    /// The checksum comes behind the body.
    trailer: Option<ChecksumKind>,
}

impl Expected {
    /// Reads a request's headers.
    ///
    /// # Errors
    ///
    /// A [`Refusal`] when they contradict each other or name what is not known.
    pub fn of(headers: &HeaderMap) -> Result<Expected, Refusal> {
        let mut expected = Expected { md5: md5_of(headers)?, ..Expected::default() };
        for (name, value) in headers {
            let name = name.as_str();
            if !is_checksum(name) {
                continue;
            }
            let kind = kind_of_header(name)?;
            if expected.checksum.is_some() {
                return Err(one_only());
            }
            expected.checksum = Some((kind, value_of(kind, value.to_str().unwrap_or_default())?));
        }
        for value in headers.get_all(TRAILER) {
            let names = value.to_str().unwrap_or_default().to_ascii_lowercase();
            for name in names.split(',').map(str::trim).filter(|name| !name.is_empty()) {
                if expected.trailer.is_some() || expected.checksum.is_some() {
                    return Err(one_only());
                }
                if !name.starts_with(CHECKSUM_PREFIX) {
                    let message =
                        "The value specified in the x-amz-trailer header is not supported";
                    return Err(Refusal::new("InvalidRequest", message));
                }
                expected.trailer = Some(kind_of_header(name)?);
            }
        }
        expected.check_algorithm(headers)?;
        Ok(expected)
    }

    /// True when a digest of the body was sent with it.
    pub fn is_given(&self) -> bool {
        self.md5.is_some() || self.checksum.is_some() || self.trailer.is_some()
    }

    /// The algorithm that is to be computed, if the request names one.
    pub fn kind(&self) -> Option<ChecksumKind> {
        self.checksum.as_ref().map(|(kind, _)| *kind).or(self.trailer)
    }

    /// Takes what came behind the body.
    ///
    /// # Errors
    ///
    /// A [`Refusal`] when it is not what was announced.
    pub fn take_trailers(&mut self, trailers: Option<&HeaderMap>) -> Result<(), Refusal> {
        let Some(kind) = self.trailer else { return Ok(()) };
        let mut values = trailers.iter().flat_map(|trailers| trailers.get_all(header_of(kind)));
        let (Some(value), None) = (values.next(), values.next()) else {
            return Err(malformed_trailer());
        };
        let value = value_of(kind, value.to_str().unwrap_or_default())?;
        self.checksum = Some((kind, value));
        Ok(())
    }

    /// Compares with what the body has.
    ///
    /// # Errors
    ///
    /// A [`Refusal`] when they differ.
    pub fn check(&self, found: &Found) -> Result<(), Refusal> {
        if let Some(md5) = &self.md5
            && md5[..] != found.md5
        {
            let message = "The Content-MD5 you specified did not match what we received.";
            return Err(Refusal::new("BadDigest", message));
        }
        if let Some((kind, value)) = &self.checksum
            && (*kind != found.checksum.kind || *value != found.checksum.value)
        {
            return Err(bad_checksum(*kind));
        }
        Ok(())
    }

    fn check_algorithm(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let Some(value) = headers.get(ALGORITHM) else { return Ok(()) };
        let value = value.to_str().unwrap_or_default();
        if value.eq_ignore_ascii_case("MD5") && self.md5.is_some() {
            return Ok(());
        }
        match (kind_of_name(value)?, self.kind()) {
            (_, None) => Err(Refusal::new(
                "InvalidRequest",
                "x-amz-sdk-checksum-algorithm specified, but no corresponding x-amz-checksum-* or \
                 x-amz-trailer headers were found.",
            )),
            (named, Some(sent)) if named != sent => Err(Refusal::new(
                "InvalidRequest",
                format!("Value for x-amz-sdk-checksum-algorithm header is invalid: {value}."),
            )),
            _ => Ok(()),
        }
    }
}

fn md5_of(headers: &HeaderMap) -> Result<Option<Vec<u8>>, Refusal> {
    let mut values = headers.get_all(CONTENT_MD5).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let bytes = value.to_str().ok().and_then(base64::decode).filter(|bytes| bytes.len() == 16);
    match bytes {
        Some(bytes) if values.next().is_none() => Ok(Some(bytes)),
        _ => Err(Refusal::new("InvalidDigest", "The Content-MD5 you specified is not valid.")),
    }
}

fn kind_of_header(name: &str) -> Result<ChecksumKind, Refusal> {
    ChecksumKind::ALL.into_iter().find(|kind| header_of(*kind) == *name).ok_or_else(|| {
        Refusal::new("NotImplemented", format!("The checksum of {name} is not implemented."))
    })
}

fn value_of(kind: ChecksumKind, text: &str) -> Result<Vec<u8>, Refusal> {
    let bytes = base64::decode(text).filter(|bytes| bytes.len() == kind.bytes());
    bytes.ok_or_else(|| invalid_value(kind))
}

fn invalid_value(kind: ChecksumKind) -> Refusal {
    let message = format!("Value for {} header is invalid.", header_of(kind));
    Refusal::new("InvalidRequest", message)
}

fn one_only() -> Refusal {
    Refusal::new(
        "InvalidRequest",
        "Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed.",
    )
}

enum Hasher {
    Crc32(Crc32),
    Crc32c(Crc32c),
    Crc64Nvme(Crc64Nvme),
    Sha1(Sha1),
    Sha256(Sha256),
}

/// Digests of bytes that are coming in.
pub struct Digest {
    md5: Md5,
    kind: ChecksumKind,
    hasher: Hasher,
    len: u64,
}

/// Digests of all bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// MD5.
    pub md5: [u8; 16],
    /// Checksum.
    pub checksum: Checksum,
    /// Bytes.
    pub len: u64,
}

impl Found {
    /// The tag that S3 gives a content.
    pub fn etag(&self) -> Etag {
        Etag::new(hex::encode(&self.md5))
    }
}

impl Digest {
    /// With MD5 and this checksum.
    pub fn new(kind: ChecksumKind) -> Digest {
        let hasher = match kind {
            ChecksumKind::Crc32 => Hasher::Crc32(Crc32::new()),
            ChecksumKind::Crc32c => Hasher::Crc32c(Crc32c::new()),
            ChecksumKind::Crc64Nvme => Hasher::Crc64Nvme(Crc64Nvme::new()),
            ChecksumKind::Sha1 => Hasher::Sha1(Sha1::new()),
            ChecksumKind::Sha256 => Hasher::Sha256(Sha256::new()),
        };
        Digest { md5: Md5::new(), kind, hasher, len: 0 }
    }

    /// Takes the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.md5.update(bytes);
        self.len += bytes.len() as u64;
        match &mut self.hasher {
            Hasher::Crc32(hasher) => hasher.update(bytes),
            Hasher::Crc32c(hasher) => hasher.update(bytes),
            Hasher::Crc64Nvme(hasher) => hasher.update(bytes),
            Hasher::Sha1(hasher) => hasher.update(bytes),
            Hasher::Sha256(hasher) => hasher.update(bytes),
        }
    }

    /// Digests of all bytes.
    pub fn finish(self) -> Found {
        let value = match self.hasher {
            Hasher::Crc32(hasher) => hasher.finalize().to_vec(),
            Hasher::Crc32c(hasher) => hasher.finalize().to_vec(),
            Hasher::Crc64Nvme(hasher) => hasher.finalize().to_vec(),
            Hasher::Sha1(hasher) => hasher.finalize().to_vec(),
            Hasher::Sha256(hasher) => hasher.finalize().to_vec(),
        };
        let checksum = Checksum { kind: self.kind, value, parts: 0 };
        Found { md5: self.md5.finalize(), checksum, len: self.len }
    }
}

#[cfg(test)]
mod tests;
