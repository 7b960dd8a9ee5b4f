//! Signatures of version 4, written from AWS's description, to sign what tests send.

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

const ALGORITHM: &str = "AWS4-HMAC-SHA256";
const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// Credentials, time and scope.
#[derive(Clone, Debug)]
pub struct Signer {
    pub key: String,
    pub secret: String,
    /// `YYYYMMDDTHHMMSSZ`.
    pub time: String,
    pub region: String,
}

/// What is signed.
pub struct ToSign<'a> {
    pub method: &'a str,
    /// Encoded.
    pub path: &'a str,
    /// Encoded names and values.
    pub query: &'a [(String, String)],
    /// Small names and values of the headers that are signed.
    pub headers: &'a [(String, String)],
    pub payload: &'a str,
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hmac(key: &[u8], text: &str) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("any length");
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

/// Percent-encodes; slashes only if asked.
pub fn encode(text: &str, slashes: bool) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        let is_plain = byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
        match is_plain || (byte == b'/' && !slashes) {
            true => encoded.push(byte as char),
            false => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

impl Signer {
    fn day(&self) -> &str {
        &self.time[..8]
    }

    pub fn scope(&self) -> String {
        format!("{}/{}/s3/aws4_request", self.day(), self.region)
    }

    pub fn sign(&self, text: &str) -> String {
        let key = hmac(format!("AWS4{}", self.secret).as_bytes(), self.day());
        let key = hmac(&hmac(&hmac(&key, &self.region), "s3"), "aws4_request");
        hex(&hmac(&key, text))
    }

    pub fn signature(&self, request: &ToSign) -> String {
        // By names: one that another begins with comes first.
        let query: Vec<String> =
            sorted(request.query).iter().map(|(name, value)| format!("{name}={value}")).collect();
        let line = |(name, value): &(String, String)| {
            let words: Vec<&str> = value.split_whitespace().collect();
            format!("{name}:{}\n", words.join(" "))
        };
        let headers: String = sorted(request.headers).iter().map(line).collect();
        let canonical = format!(
            "{}\n{}\n{}\n{headers}\n{}\n{}",
            request.method,
            request.path,
            query.join("&"),
            names(request.headers),
            request.payload
        );
        let text = format!(
            "{ALGORITHM}\n{}\n{}\n{}",
            self.time,
            self.scope(),
            sha256(canonical.as_bytes())
        );
        self.sign(&text)
    }

    /// The header for a request.
    pub fn authorization(&self, request: &ToSign) -> String {
        format!(
            "{ALGORITHM} Credential={}/{}, SignedHeaders={}, Signature={}",
            self.key,
            self.scope(),
            names(request.headers),
            self.signature(request)
        )
    }

    /// The signature of a chunk behind another signature.
    pub fn chunk(&self, previous: &str, data: &[u8]) -> String {
        self.sign(&format!(
            "{ALGORITHM}-PAYLOAD\n{}\n{}\n{previous}\n{EMPTY}\n{}",
            self.time,
            self.scope(),
            sha256(data)
        ))
    }

    /// The signature of trailers behind the last chunk's.
    pub fn trailer(&self, previous: &str, trailers: &str) -> String {
        self.sign(&format!(
            "{ALGORITHM}-TRAILER\n{}\n{}\n{previous}\n{}",
            self.time,
            self.scope(),
            sha256(trailers.as_bytes())
        ))
    }
}

fn sorted(headers: &[(String, String)]) -> Vec<(String, String)> {
    let mut sorted = headers.to_vec();
    sorted.sort();
    sorted
}

pub fn names(headers: &[(String, String)]) -> String {
    let names: Vec<String> = sorted(headers).into_iter().map(|(name, _)| name).collect();
    names.join(";")
}

fn example() -> Signer {
    Signer {
        key: "AKIAIOSFODNN7EXAMPLE".to_owned(),
        secret: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".to_owned(),
        time: "20130524T000000Z".to_owned(),
        region: "us-east-1".to_owned(),
    }
}

fn owned(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn the_published_header_signature_comes_out() {
    let headers = owned(&[
        ("host", "examplebucket.s3.amazonaws.com"),
        ("range", "bytes=0-9"),
        ("x-amz-content-sha256", EMPTY),
        ("x-amz-date", "20130524T000000Z"),
    ]);
    let request =
        ToSign { method: "GET", path: "/test.txt", query: &[], headers: &headers, payload: EMPTY };
    assert_eq!(
        example().signature(&request),
        "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
    );
}

#[test]
fn the_published_presigned_signature_comes_out() {
    let headers = owned(&[("host", "examplebucket.s3.amazonaws.com")]);
    let query = owned(&[
        ("X-Amz-Algorithm", ALGORITHM),
        ("X-Amz-Credential", "AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request"),
        ("X-Amz-Date", "20130524T000000Z"),
        ("X-Amz-Expires", "86400"),
        ("X-Amz-SignedHeaders", "host"),
    ]);
    let payload = "UNSIGNED-PAYLOAD";
    let request =
        ToSign { method: "GET", path: "/test.txt", query: &query, headers: &headers, payload };
    assert_eq!(
        example().signature(&request),
        "aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"
    );
}

#[test]
fn the_published_chunk_signatures_come_out() {
    let seed = "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9";
    let first = example().chunk(seed, &[b'a'; 65536]);
    assert_eq!(first, "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648");
    let second = example().chunk(&first, &[b'a'; 1024]);
    assert_eq!(second, "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497");
    let last = example().chunk(&second, b"");
    assert_eq!(last, "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9");
}
