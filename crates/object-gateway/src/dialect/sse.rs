//! Headers of server-side encryption: what requests ask for, and what answers show.

use std::collections::BTreeMap;

use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::{Extensions, StatusCode};
use ring::hmac;
use s3s::crypto::{Checksum as _, Md5};
use s3s::dto::ServerSideEncryption;
use s3s::{S3Error, S3ErrorCode, S3Result};

use crate::base64;
use crate::errors::{coded, internal};
use crate::facts::Client;
use crate::keyfile::{DEFAULT_KEY, is_key_name};
use crate::seal::{Contents, Envelope, KmsFacts};

/// Beginning of the headers for an object that is written or read.
pub const OWN: &str = "x-amz-";
/// Beginning of the headers for the source of a copy.
pub const SOURCE: &str = "x-amz-copy-source-";

const METHOD: HeaderName = HeaderName::from_static("x-amz-server-side-encryption");
const KEY_ID: HeaderName = HeaderName::from_static("x-amz-server-side-encryption-aws-kms-key-id");
const CONTEXT: HeaderName = HeaderName::from_static("x-amz-server-side-encryption-context");
const BUCKET_KEY: HeaderName =
    HeaderName::from_static("x-amz-server-side-encryption-bucket-key-enabled");
const ALGORITHM: HeaderName =
    HeaderName::from_static("x-amz-server-side-encryption-customer-algorithm");
const KEY_MD5: HeaderName =
    HeaderName::from_static("x-amz-server-side-encryption-customer-key-md5");
/// The one algorithm of SSE-S3 and SSE-C.
const AES256: &str = "AES256";
/// Bytes of a context, as its header has it, at most.
const CONTEXT_MAX: usize = crate::seal::CONTEXT_MAX;

/// S3's refusal of an argument.
pub fn invalid(message: impl Into<std::borrow::Cow<'static, str>>) -> S3Error {
    S3Error::with_message(S3ErrorCode::InvalidArgument, message)
}

/// S3's refusal of a request that does not fit what is there.
pub fn unfit(message: &'static str) -> S3Error {
    S3Error::with_message(S3ErrorCode::InvalidRequest, message)
}

/// A header's value; a header twice is none of S3's.
fn value<'a>(headers: &'a HeaderMap, name: &str) -> S3Result<Option<&'a str>> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => match value.to_str() {
            Ok(text) => Ok(Some(text.trim())),
            Err(_) => Err(invalid(format!("{name} is not ASCII"))),
        },
        (Some(_), Some(_)) => Err(invalid(format!("{name} is there more than once"))),
    }
}

/// The key of a client.
#[derive(Clone)]
pub struct CustomerKey {
    /// What the keys that wrap are derived with.
    pub master: hmac::Key,
    /// Its MD5 in base64, as answers show it.
    pub md5: String,
}

/// True when a request has a header of SSE-C.
pub fn names_customer_key(headers: &HeaderMap, start: &str) -> bool {
    let prefix = format!("{start}server-side-encryption-customer-");
    headers.keys().any(|name| name.as_str().starts_with(&prefix))
}

impl CustomerKey {
    /// The key in a request's headers. One that writes must name its MD5, too.
    pub fn of(headers: &HeaderMap, start: &str, writes: bool) -> S3Result<Option<CustomerKey>> {
        if !names_customer_key(headers, start) {
            return Ok(None);
        }
        let header =
            |name| value(headers, &format!("{start}server-side-encryption-customer-{name}"));
        let (algorithm, key, md5) = (header("algorithm")?, header("key")?, header("key-md5")?);
        let lacks = |what| {
            invalid(format!(
                "Requests specifying Server Side Encryption with Customer provided keys must provide \
                 {what}."
            ))
        };
        let algorithm = algorithm.ok_or_else(|| lacks("a valid encryption algorithm"))?;
        if algorithm != AES256 {
            return Err(coded(
                "InvalidEncryptionAlgorithmError",
                StatusCode::BAD_REQUEST,
                "The encryption request you specified is not valid. Supported value: AES256.",
            ));
        }
        let key = key.ok_or_else(|| lacks("an appropriate secret key"))?;
        if md5.is_none() && writes {
            return Err(lacks("the client calculated MD5 of the secret key"));
        }
        let bytes = base64::decode(key).filter(|bytes| bytes.len() == 32);
        let bytes = bytes
            .ok_or_else(|| invalid("The secret key was invalid for the specified algorithm."))?;
        let mut digest = Md5::new();
        digest.update(&bytes);
        let own = base64::encode(&digest.finalize());
        if md5.is_some_and(|md5| md5 != own) {
            return Err(invalid(
                "The calculated MD5 hash of the key did not match the hash that was provided.",
            ));
        }
        Ok(Some(CustomerKey { master: hmac::Key::new(hmac::HMAC_SHA256, &bytes), md5: own }))
    }
}

/// A client's key comes over a way that others cannot listen on: TLS, or on this machine.
pub fn check_way(extensions: &Extensions) -> S3Result<()> {
    let client = extensions.get::<Client>();
    match client.is_some_and(|client| client.is_secure || client.ip.is_loopback()) {
        true => Ok(()),
        false => Err(unfit(
            "Requests specifying Server Side Encryption with Customer provided keys must be made over \
             a secure connection.",
        )),
    }
}

/// What a request asks for that writes an object.
pub enum Asked {
    /// Nothing: the bucket's default counts.
    Nothing,
    /// SSE-S3.
    S3,
    /// SSE-KMS, with the key of that name.
    Kms(Option<String>, KmsFacts),
    /// SSE-C.
    Customer(CustomerKey),
}

impl Asked {
    /// Reads a request's headers.
    pub fn of(headers: &HeaderMap) -> S3Result<Asked> {
        let method = value(headers, METHOD.as_str())?;
        if let Some(key) = CustomerKey::of(headers, OWN, true)? {
            return match method {
                None => Ok(Asked::Customer(key)),
                Some(_) => Err(invalid(
                    "Server Side Encryption with Customer provided key is incompatible with the \
                     encryption method specified",
                )),
            };
        }
        let (key, context) = (value(headers, KEY_ID.as_str())?, value(headers, CONTEXT.as_str())?);
        let bucket_key = bucket_key_of(headers)?;
        match method {
            Some(ServerSideEncryption::AWS_KMS) => {
                let key = key.map(key_name).transpose()?.flatten();
                let context = context.map(context_of).transpose()?.unwrap_or_default();
                Ok(Asked::Kms(key, KmsFacts { context, bucket_key }))
            }
            Some(ServerSideEncryption::AES256) | None if key.is_some() || context.is_some() => {
                Err(invalid(
                    "Server Side Encryption with AWS KMS managed key requires HTTP header \
                     x-amz-server-side-encryption : aws:kms",
                ))
            }
            None => Ok(Asked::Nothing),
            Some(ServerSideEncryption::AES256) => Ok(Asked::S3),
            Some(ServerSideEncryption::AWS_KMS_DSSE) => Err(no_layers()),
            Some(_) => Err(invalid("The encryption method specified is not supported")),
        }
    }
}

/// Encryption in two layers is not there.
pub fn no_layers() -> S3Error {
    let message = "Encryption in two layers (aws:kms:dsse) is not implemented";
    S3Error::with_message(S3ErrorCode::NotImplemented, message)
}

fn bucket_key_of(headers: &HeaderMap) -> S3Result<bool> {
    match value(headers, BUCKET_KEY.as_str())? {
        None => Ok(false),
        Some(text) if text.eq_ignore_ascii_case("true") => Ok(true),
        Some(text) if text.eq_ignore_ascii_case("false") => Ok(false),
        Some(_) => Err(invalid(format!("{BUCKET_KEY} is true or false"))),
    }
}

/// The name of a key as clients have it: its name alone, or as in AWS's ARNs. `None` for the default
/// one.
pub fn key_name(text: &str) -> S3Result<Option<String>> {
    let name = match text.strip_prefix("arn:").and_then(|arn| arn.split(':').nth(4)) {
        Some(resource) => resource.strip_prefix("key/").unwrap_or(resource),
        None => text,
    };
    let name = name.strip_prefix("alias/").unwrap_or(name);
    if name == DEFAULT_KEY {
        return Ok(None);
    }
    match is_key_name(name) {
        true => Ok(Some(name.to_owned())),
        false => Err(no_kms_key(text)),
    }
}

/// S3's error for a key that there is not.
pub fn no_kms_key(name: &str) -> S3Error {
    let shown: String = name.chars().take(80).collect();
    coded(
        "KMS.NotFoundException",
        StatusCode::BAD_REQUEST,
        format!("Invalid keyId '{shown}': the gateway's key file has no such key"),
    )
}

/// A context is a JSON object of strings, in base64: a client that sends another one has mistaken something.
fn context_of(text: &str) -> S3Result<String> {
    let flawed = || {
        invalid(
            "The header x-amz-server-side-encryption-context is a JSON object of strings, in base64",
        )
    };
    if text.len() > CONTEXT_MAX {
        return Err(invalid(format!(
            "The header x-amz-server-side-encryption-context has {CONTEXT_MAX} bytes at most"
        )));
    }
    let bytes = base64::decode(text).ok_or_else(flawed)?;
    let fields = serde_json::from_slice::<BTreeMap<String, String>>(&bytes);
    fields.map(|_| text.to_owned()).map_err(|_| flawed())
}

/// Reads name no encryption but SSE-C: S3 chooses the rest by the object.
pub fn check_read(headers: &HeaderMap) -> S3Result<()> {
    for name in [METHOD, KEY_ID, CONTEXT, BUCKET_KEY] {
        if headers.contains_key(&name) {
            return Err(invalid(format!("{name} header is not supported for this operation.")));
        }
    }
    Ok(())
}

/// Headers of an answer on an object with that envelope; `md5` is of the client's key, where the
/// request had one.
pub fn show(headers: &mut HeaderMap, envelope: &Envelope, md5: Option<&str>) -> S3Result<()> {
    let text = |text: &str| HeaderValue::from_str(text).map_err(|_| internal());
    match &envelope.contents {
        Contents::S3(_) => {
            headers.insert(METHOD, HeaderValue::from_static(AES256));
        }
        Contents::Kms(key, facts) => {
            headers.insert(METHOD, HeaderValue::from_static(ServerSideEncryption::AWS_KMS));
            headers.insert(KEY_ID, text(key.shown())?);
            if facts.bucket_key {
                headers.insert(BUCKET_KEY, HeaderValue::from_static("true"));
            }
        }
        Contents::Customer(_) => {
            headers.insert(ALGORITHM, HeaderValue::from_static(AES256));
            if let Some(md5) = md5 {
                headers.insert(KEY_MD5, text(md5)?);
            }
        }
    }
    Ok(())
}

/// The context, which S3 shows where an object is made.
pub fn show_context(headers: &mut HeaderMap, envelope: &Envelope) {
    if let Contents::Kms(_, facts) = &envelope.contents
        && !facts.context.is_empty()
        && let Ok(value) = HeaderValue::from_str(&facts.context)
    {
        headers.insert(CONTEXT, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(of: &[(&'static str, &str)]) -> HeaderMap {
        let header = |(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), value.parse().expect("a value"))
        };
        of.iter().map(header).collect()
    }

    #[test]
    fn keys_are_named_as_in_aws_or_alone() {
        for (text, name) in [
            ("payroll", Some("payroll")),
            ("arn:aws:kms:us-east-1:123456789012:key/payroll", Some("payroll")),
            ("alias/payroll", Some("payroll")),
            ("arn:aws:kms:us-east-1:123456789012:alias/aws/s3", None),
            ("aws/s3", None),
            ("alias/aws/s3", None),
        ] {
            assert_eq!(key_name(text).expect(text).as_deref(), name, "{text}");
        }
        for text in ["", "a/b", "arn:aws:kms:us-east-1:1:key/", "a b", "ä"] {
            let error = key_name(text).expect_err(text);
            assert_eq!(error.code().as_str(), "KMS.NotFoundException");
        }
    }

    #[test]
    fn a_clients_key_needs_a_way_that_others_cannot_listen_on() {
        for (client, is_secure, may) in [
            (Some("127.0.0.1"), false, true),
            (Some("::1"), false, true),
            (Some("192.0.2.1"), false, false),
            (Some("192.0.2.1"), true, true),
            (None, false, false),
        ] {
            let mut extensions = Extensions::new();
            if let Some(client) = client {
                let ip = client.parse().expect("an address");
                extensions.insert(Client { ip, is_secure });
            }
            assert_eq!(check_way(&extensions).is_ok(), may, "{client:?}");
        }
    }

    #[test]
    fn headers_that_contradict_each_other_are_refused() {
        let md5 = "DWygnHRtgiJ77HCm+1rvHw==";
        let key = "pO3upElrwuEXSoFwCfnZPdSsmt/xWeFa0N9KgDijwVs=";
        let name = "x-amz-server-side-encryption-customer-algorithm";
        let (key_name, md5_name) = (
            "x-amz-server-side-encryption-customer-key",
            "x-amz-server-side-encryption-customer-key-md5",
        );
        let code = |of: &[(&'static str, &str)]| {
            Asked::of(&headers(of)).err().map(|error| error.code().as_str().to_owned())
        };
        let all = [(name, "AES256"), (key_name, key), (md5_name, md5)];
        assert_eq!(code(&all), None);
        let argument = Some("InvalidArgument".to_owned());
        assert_eq!(code(&all[..1]), argument);
        assert_eq!(code(&all[..2]), argument);
        assert_eq!(code(&all[1..]), argument);
        assert_eq!(code(&[all[0], all[2]]), argument);
        assert_eq!(code(&[all[0], all[1], (md5_name, "AAAAAAAAAAAAAAAAAAAAAA==")]), argument);
        assert_eq!(code(&[all[0], (key_name, "c2hvcnQ="), all[2]]), argument);
        let other = [(name, "AES192"), all[1], all[2]];
        assert_eq!(code(&other).as_deref(), Some("InvalidEncryptionAlgorithmError"));
        let sse = "x-amz-server-side-encryption";
        assert_eq!(code(&[all[0], all[1], all[2], (sse, "AES256")]), argument);
        let kms = "x-amz-server-side-encryption-aws-kms-key-id";
        assert_eq!(code(&[(sse, "aws:kms"), (kms, "a")]), None);
        assert_eq!(code(&[(sse, "AES256"), (kms, "a")]), argument);
        assert_eq!(code(&[(kms, "a")]), argument);
        assert_eq!(code(&[(sse, "DES")]), argument);
        assert_eq!(code(&[(sse, "aws:kms:dsse")]).as_deref(), Some("NotImplemented"));
        let context = "x-amz-server-side-encryption-context";
        assert_eq!(code(&[(sse, "aws:kms"), (context, "eyJhIjoiYiJ9")]), None);
        // {a}, {"a":1}, {"a":{}}, {"a":"b"}}, {"a":"b"}{}, bytes that are no UTF-8, and "{}".
        let json = ["e2F9", "eyJhIjoxfQ==", "eyJhIjp7fX0=", "eyJhIjoiYiJ9fQ==", "eyJhIjoiYiJ9e30="];
        for flawed in json.iter().chain(&["eyJhIjoi/yJ9", "Int9Ig==", "x", "YQ=="]) {
            assert_eq!(code(&[(sse, "aws:kms"), (context, flawed)]), argument, "{flawed}");
        }
        let long = "e30=".repeat(300);
        assert_eq!(code(&[(sse, "aws:kms"), (context, &long)]), argument, "it is too long");
        // A read may leave the MD5 out.
        let read = CustomerKey::of(&headers(&all[..2]), OWN, false).expect("a key");
        assert_eq!(read.expect("a key").md5, md5);
    }
}
