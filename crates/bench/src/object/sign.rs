//! Heads of S3 requests, signed by version 4 (`AWS4-HMAC-SHA256`, signature in the header).

use std::cell::RefCell;

use base::Civil;
use ring::{digest, hmac};
use runtime::UnixTime;

/// Payload that a signature does not cover.
pub(super) const UNSIGNED: &str = "UNSIGNED-PAYLOAD";

/// A request, as far as its signature covers it.
pub(super) struct Request<'a> {
    pub(super) method: &'a str,
    /// Path, encoded.
    pub(super) path: &'a str,
    /// Query, encoded, its parameters in order of their names.
    pub(super) query: &'a str,
    /// SHA-256 of the body in hexadecimal digits, or [`UNSIGNED`].
    pub(super) payload: &'a str,
    /// Bytes of the body.
    pub(super) len: usize,
    /// `x-amz-checksum-sha256`.
    pub(super) checksum: Option<&'a str>,
}

/// Signs requests of one access key for one host. Derives the key of a day once.
pub(super) struct Signer {
    pub(super) host: String,
    pub(super) region: String,
    pub(super) access_key: String,
    pub(super) secret_key: String,
    pub(super) of_day: RefCell<Option<(String, hmac::Key)>>,
}

impl Signer {
    /// The head of `request`, up to its empty line.
    pub(super) fn head(&self, now: UnixTime, request: &Request<'_>) -> Vec<u8> {
        let Request { method, path, query, payload, len, checksum } = request;
        let time = basic_time(now);
        let day = &time[..8];
        let (mut headers, mut names) = (format!("host:{}\n", self.host), "host".to_owned());
        if let Some(checksum) = checksum {
            headers += &format!("x-amz-checksum-sha256:{checksum}\n");
            names += ";x-amz-checksum-sha256";
        }
        headers += &format!("x-amz-content-sha256:{payload}\nx-amz-date:{time}\n");
        names += ";x-amz-content-sha256;x-amz-date";
        let canonical = format!("{method}\n{path}\n{query}\n{headers}\n{names}\n{payload}");
        let scope = format!("{day}/{}/s3/aws4_request", self.region);
        let hash = sha256(canonical.as_bytes());
        let text = format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{hash}");
        let signature = self.sign(day, text.as_bytes());
        let mark = if query.is_empty() { "" } else { "?" };
        // `headers` as they were signed, each on a line of HTTP.
        let sent = headers.replace('\n', "\r\n");
        format!(
            "{method} {path}{mark}{query} HTTP/1.1\r\n{sent}content-length: {len}\r\n\
             authorization: AWS4-HMAC-SHA256 Credential={}/{scope}, SignedHeaders={names}, \
             Signature={signature}\r\n\r\n",
            self.access_key,
        )
        .into_bytes()
    }

    fn sign(&self, day: &str, text: &[u8]) -> String {
        let mut of_day = self.of_day.borrow_mut();
        let (_, key) = match of_day.take() {
            Some(known) if known.0 == day => of_day.insert(known),
            _ => of_day.insert((day.to_owned(), self.key(day))),
        };
        hex(hmac::sign(key, text).as_ref())
    }

    fn key(&self, day: &str) -> hmac::Key {
        let first = format!("AWS4{}", self.secret_key);
        let parts = [day, &self.region, "s3", "aws4_request"];
        parts.iter().fold(hmac::Key::new(hmac::HMAC_SHA256, first.as_bytes()), |key, part| {
            hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&key, part.as_bytes()).as_ref())
        })
    }
}

/// SHA-256 in hexadecimal digits.
pub(super) fn sha256(bytes: &[u8]) -> String {
    hex(digest::digest(&digest::SHA256, bytes).as_ref())
}

/// SHA-256 of all `parts` together, in hexadecimal digits.
pub(super) fn sha256_of<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut hash = digest::Context::new(&digest::SHA256);
    parts.into_iter().for_each(|part| hash.update(part));
    hex(hash.finish().as_ref())
}

/// SHA-256 in base64.
pub(super) fn sha256_base64(bytes: &[u8]) -> String {
    base64_simd::STANDARD.encode_to_string(digest::digest(&digest::SHA256, bytes))
}

fn hex(bytes: &[u8]) -> String {
    hex_simd::encode_to_string(bytes, hex_simd::AsciiCase::Lower)
}

/// `20261128T104500Z`.
fn basic_time(now: UnixTime) -> String {
    let Civil { year, month, day, hour, minute, second } =
        Civil::of(now.as_nanos() / 1_000_000_000);
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_has_the_signature_of_the_published_example() {
        let signer = Signer {
            host: "examplebucket.s3.amazonaws.com".to_owned(),
            region: "us-east-1".to_owned(),
            access_key: "AKIAIOSFODNN7EXAMPLE".to_owned(),
            secret_key: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".to_owned(),
            of_day: RefCell::default(),
        };
        let payload = sha256(b"");
        let request = Request {
            method: "GET",
            path: "/",
            query: "max-keys=2&prefix=J",
            payload: &payload,
            len: 0,
            checksum: None,
        };
        let now = UnixTime::from_nanos(1_369_353_600_000_000_000);
        for _ in 0..2 {
            let head = String::from_utf8(signer.head(now, &request)).expect("text");
            assert!(head.starts_with("GET /?max-keys=2&prefix=J HTTP/1.1\r\n"), "{head}");
            assert!(head.contains("\r\nx-amz-date:20130524T000000Z\r\n"), "{head}");
            let signature = "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7";
            assert!(head.ends_with(&format!("Signature={signature}\r\n\r\n")), "{head}");
        }
        // The key of another day is another one.
        let next = UnixTime::from_nanos(now.as_nanos() + 86_400_000_000_000);
        let head = String::from_utf8(signer.head(next, &request)).expect("text");
        assert!(head.contains("/20130525/") && !head.contains("34b48302"), "{head}");
    }

    #[test]
    fn time_is_that_of_the_calendar() {
        for (seconds, want) in [
            (0, "19700101T000000Z"),
            (951_782_399, "20000228T235959Z"),
            (951_782_400, "20000229T000000Z"),
            (1_709_164_800, "20240229T000000Z"),
            (1_735_689_599, "20241231T235959Z"),
        ] {
            assert_eq!(basic_time(UnixTime::from_nanos(seconds * 1_000_000_000)), want);
        }
    }

    #[test]
    fn digest_in_base64_is_padded() {
        assert_eq!(sha256_base64(b""), "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=");
    }
}
