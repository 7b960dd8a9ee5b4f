//! [`AccessLog`]: a line of JSON for each request that ended, one object each.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use base::Civil;
use http::Uri;
use serde::{Serialize, Serializer};

use crate::query::Query;

/// Parameters of a URL that give its holder a right, as presigned ones do, or a key of encryption: their
/// values are not written.
const SECRET_PARAMETERS: [&str; 5] = [
    "x-amz-signature",
    "x-amz-security-token",
    "signature",
    "x-amz-server-side-encryption-customer-key",
    "x-amz-copy-source-server-side-encryption-customer-key",
];

/// Takes lines of an access log, each with its line feed, from any thread. It must not block.
pub type Sink = dyn Fn(String) + Send + Sync;

/// Where lines of requests go.
#[derive(Clone)]
pub struct AccessLog(Arc<Sink>);

impl AccessLog {
    /// Lines go there.
    pub fn new(sink: Arc<Sink>) -> AccessLog {
        AccessLog(sink)
    }

    /// Where they go.
    pub fn sink(&self) -> Arc<Sink> {
        self.0.clone()
    }

    pub(crate) fn write(&self, entry: &Entry<'_>) {
        (self.0)(entry.line());
    }
}

impl fmt::Debug for AccessLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AccessLog")
    }
}

/// A request that ended, as a line shows it; what is not known is left out.
#[derive(Serialize)]
pub(crate) struct Entry<'a> {
    /// When its head had come, microseconds since 1970.
    #[serde(rename = "time", serialize_with = "as_time")]
    pub(crate) at_us: u64,
    pub(crate) request_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) remote: Option<IpAddr>,
    pub(crate) tls: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) user: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) access_key: Option<&'a str>,
    pub(crate) operation: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(crate) bucket: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(crate) key: &'a str,
    pub(crate) method: &'a str,
    #[serde(serialize_with = "as_shown")]
    pub(crate) uri: &'a Uri,
    /// None where the client was gone before there was an answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) status: Option<u16>,
    /// S3's code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<&'a str>,
    pub(crate) received_bytes: u64,
    pub(crate) sent_bytes: u64,
    /// The answer ended before its last byte.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) cut: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) first_byte_us: Option<u64>,
    pub(crate) total_us: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) user_agent: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) referer: Option<&'a str>,
}

impl Entry<'_> {
    fn line(&self) -> String {
        let mut text = serde_json::to_string(self).expect("it has texts and numbers only");
        text.push('\n');
        text
    }
}

fn as_time<S: Serializer>(at_us: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&time_of(*at_us))
}

fn as_shown<S: Serializer>(uri: &&Uri, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&shown_uri(uri))
}

/// A time as in RFC 3339, UTC.
fn time_of(at_us: u64) -> String {
    let Civil { year, month, day, hour, minute, second } = Civil::of(at_us / 1_000_000);
    let us = at_us % 1_000_000;
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{us:06}Z")
}

/// Whether the value of a parameter is not to be written; its name may have escapes.
fn is_secret(name: &str) -> bool {
    let named = Query::parse(name);
    let (name, _) = named.iter().next().unwrap_or_default();
    SECRET_PARAMETERS.iter().any(|one| name.eq_ignore_ascii_case(one))
}

/// Path and parameters as they were sent, without what would let a reader of the log do the same.
fn shown_uri(uri: &Uri) -> String {
    let Some(query) = uri.query() else { return uri.path().to_owned() };
    let shown: Vec<String> = query
        .split('&')
        .map(|pair| match pair.split_once('=') {
            Some((name, _)) if is_secret(name) => format!("{name}=-"),
            _ => pair.to_owned(),
        })
        .collect();
    format!("{}?{}", uri.path(), shown.join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(uri: &Uri) -> Entry<'_> {
        Entry {
            at_us: 1_795_878_532_000_042,
            request_id: "00AB",
            remote: Some(IpAddr::from([127, 0, 0, 1])),
            tls: false,
            user: Some("ann"),
            access_key: Some("CRKEY"),
            operation: "GetObject",
            bucket: "b",
            key: "a \"quoted\"\nkey",
            method: "GET",
            uri,
            status: Some(404),
            error: Some("NoSuchKey"),
            received_bytes: 0,
            sent_bytes: 300,
            cut: false,
            first_byte_us: Some(900),
            total_us: 1000,
            host: Some("b.localhost"),
            user_agent: None,
            referer: None,
        }
    }

    #[test]
    fn a_request_is_one_line_of_json() {
        let uri = Uri::from_static("/b/a%20%22quoted%22%0Akey?versionId=null");
        let line = entry(&uri).line();
        assert_eq!(line.matches('\n').count(), 1);
        let read: serde_json::Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(read["time"], "2026-11-28T15:08:52.000042Z");
        assert_eq!(read["key"], "a \"quoted\"\nkey");
        assert_eq!(read["status"], 404);
        assert_eq!(read["uri"], "/b/a%20%22quoted%22%0Akey?versionId=null");
        assert!(read.get("user_agent").is_none() && read.get("cut").is_none());
    }

    #[test]
    fn what_gives_a_right_is_not_written() {
        let uri = Uri::from_static(
            "/b/k?X-Amz-Credential=c&X-Amz-Signature=ab%20&x-amz-security-token=t&partNumber=1",
        );
        let shown = "/b/k?X-Amz-Credential=c&X-Amz-Signature=-&x-amz-security-token=-&partNumber=1";
        assert_eq!(shown_uri(&uri), shown);
        let old = Uri::from_static("/b/k?AWSAccessKeyId=c&Signature=ab&Expires=9");
        assert_eq!(shown_uri(&old), "/b/k?AWSAccessKeyId=c&Signature=-&Expires=9");
        let keys = Uri::from_static(
            "/b/k?X-Amz-Server-Side-Encryption-Customer-Key=a&x-amz-copy-source-server-side-encryption-customer-key=b\
             &X-Amz-Signatur%65=c&x-amz-server-side-encryption-customer-key-MD5=d",
        );
        let shown = "/b/k?X-Amz-Server-Side-Encryption-Customer-Key=-\
                     &x-amz-copy-source-server-side-encryption-customer-key=-&X-Amz-Signatur%65=-\
                     &x-amz-server-side-encryption-customer-key-MD5=d";
        assert_eq!(shown_uri(&keys), shown);
    }
}
