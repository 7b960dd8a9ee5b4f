//! [`Facts`]: what a request says of itself, for conditions of policies.

use std::borrow::Cow;
use std::net::IpAddr;

use http::Uri;
use http::header::{HeaderMap, HeaderName};
use object_policy::{Context, Values};
use object_proto::ObjectTags;
use s3s::S3Request;
use s3s::dto::{Timestamp, TimestampFormat};

use crate::query::Query;
use crate::{clock, head};

/// How an object is retained that is put: its mode.
pub const LOCK_MODE: HeaderName = HeaderName::from_static("x-amz-object-lock-mode");
/// And until when.
pub const LOCK_UNTIL: HeaderName = HeaderName::from_static("x-amz-object-lock-retain-until-date");
/// Whether an object is held.
pub const LOCK_HOLD: HeaderName = HeaderName::from_static("x-amz-object-lock-legal-hold");

/// Tags of an object that is put.
pub const TAGGING: &str = "x-amz-tagging";

/// A client; an extension of requests.
#[derive(Clone, Copy, Debug)]
pub struct Client {
    /// Its address.
    pub ip: IpAddr,
    /// It is connected over TLS.
    pub is_secure: bool,
}

impl Client {
    /// Beginning of the URLs of the gateway that it knows.
    pub fn scheme(self) -> &'static str {
        if self.is_secure { "https" } else { "http" }
    }
}

/// How a form is signed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FormSignature {
    /// Not at all.
    None,
    /// By version 4.
    V4,
    /// By version 2.
    V2,
}

/// A request's own words.
pub struct Facts<'a> {
    headers: &'a HeaderMap,
    query: Query,
    client: Option<Client>,
    /// The version that it names.
    version: Option<String>,
    /// Whether it makes an object, if it is one of those that bring one's content.
    creates: Option<bool>,
    /// Tags that it gives, where these are not in a header.
    new_tags: Option<ObjectTags>,
    /// Tags of the object that is there, if a policy asks for them.
    pub tags: Option<ObjectTags>,
    /// Of a form: how it is signed.
    pub form: Option<FormSignature>,
}

impl<'a> Facts<'a> {
    /// Of a request.
    pub fn new(headers: &'a HeaderMap, uri: &Uri, client: Option<Client>) -> Facts<'a> {
        let query = Query::parse(uri.query().unwrap_or_default());
        let version = query.unique("versionId").map(str::to_owned);
        let (creates, new_tags, tags, form) = (None, None, None, None);
        Facts { headers, query, client, version, creates, new_tags, tags, form }
    }

    /// Of a request that s3s has read.
    pub fn of<T>(request: &'a S3Request<T>) -> Facts<'a> {
        let client = request.extensions.get::<Client>().copied();
        Facts::new(&request.headers, &request.uri, client)
    }

    /// Of this operation of s3s.
    pub fn of_operation(mut self, operation: &str) -> Facts<'a> {
        self.creates = match operation {
            "PutObject" | "PostObject" | "CopyObject" | "CompleteMultipartUpload" => Some(true),
            "CreateMultipartUpload" | "UploadPart" | "UploadPartCopy" => Some(false),
            _ => None,
        };
        if operation == "CopyObject" && !gives_tags(self.headers) {
            self.new_tags = Some(ObjectTags::default()); // The copy has those of its source.
        }
        self
    }

    /// Of an object that the request names elsewhere than in its URL.
    pub fn of_version(mut self, version: Option<&str>) -> Facts<'a> {
        self.version = version.map(str::to_owned);
        self
    }

    /// Of a request that gives these tags.
    pub fn giving(mut self, tags: &ObjectTags) -> Facts<'a> {
        self.new_tags = Some(tags.clone());
        self
    }

    /// The request names a version.
    pub fn has_version(&self) -> bool {
        self.query.has("versionId")
    }

    /// The value of a parameter that is there once.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.query.unique(name)
    }

    /// The request's headers.
    pub fn headers(&self) -> &'a HeaderMap {
        self.headers
    }

    fn header(&self, name: &str) -> Values<'_> {
        let value = self.headers.get(name).and_then(|value| value.to_str().ok());
        value.map_or(Values::Missing, Values::one)
    }

    fn in_query(&self, name: &str) -> Values<'_> {
        self.query.unique(name).map_or(Values::Missing, Values::one)
    }

    /// Names and values of the tags that the request gives.
    fn new_tags(&self) -> Vec<(String, String)> {
        let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        if let Some(tags) = &self.new_tags {
            return tags.iter().map(owned).collect();
        }
        let tags = self.headers.get(TAGGING).and_then(|value| value.to_str().ok());
        Query::parse(tags.unwrap_or_default()).iter().map(owned).collect()
    }

    fn new_tag(&self, name: &str) -> Values<'_> {
        let mut tags = self.new_tags().into_iter().filter(|(other, _)| other == name);
        match (tags.next(), tags.next()) {
            (Some((_, value)), None) => Self::owned(value),
            _ => Values::Missing,
        }
    }

    /// A condition of HTTP: an empty header is none.
    fn condition(&self, name: &str) -> Values<'_> {
        match self.header(name) {
            Values::One(value) if value.is_empty() => Values::Missing,
            value => value,
        }
    }

    fn auth_type(&self) -> Values<'_> {
        match self.form {
            Some(FormSignature::V4 | FormSignature::V2) => Values::one("POST"),
            _ => self.signature("REST-HEADER", "REST-QUERY-STRING"),
        }
    }

    fn signature_version(&self) -> Values<'_> {
        match self.form {
            Some(FormSignature::V4) => Values::one("AWS4-HMAC-SHA256"),
            Some(FormSignature::V2) => Values::one("AWS"),
            _ => self.signature("AWS4-HMAC-SHA256", "AWS4-HMAC-SHA256"),
        }
    }

    fn signature(&self, in_header: &'static str, in_query: &'static str) -> Values<'_> {
        if self.query.has("X-Amz-Signature") || self.query.has("Signature") {
            Values::one(in_query)
        } else if self.headers.contains_key("authorization") {
            Values::one(in_header)
        } else {
            Values::Missing
        }
    }

    /// Milliseconds since the signing of a presigned URL.
    fn signature_age(&self) -> Values<'_> {
        let signed = self.query.unique("X-Amz-Date").and_then(seconds_of);
        let age = signed.map(|signed| clock::unix_seconds().saturating_sub(signed) * 1000);
        age.map_or(Values::Missing, |age| Values::One(Cow::Owned(age.to_string())))
    }

    /// Days, begun ones too, until what the request gives is not retained any more.
    fn remaining_days(&self) -> Values<'_> {
        let until = self.headers.get(LOCK_UNTIL).and_then(|value| value.to_str().ok());
        let until = until.and_then(|text| Timestamp::parse(TimestampFormat::DateTime, text).ok());
        let seconds = until.and_then(|until| head::seconds_of(&until));
        let left = seconds.map(|until| until.saturating_sub(clock::unix_seconds()));
        left.map_or(Values::Missing, |left| Self::owned(left.div_ceil(24 * 3600)))
    }

    fn owned(text: impl ToString) -> Values<'static> {
        Values::One(Cow::Owned(text.to_string()))
    }
}

impl Context for Facts<'_> {
    fn values(&self, key: &str) -> Values<'_> {
        if let Some(name) = key.strip_prefix("s3:existingobjecttag/") {
            let tags = self.tags.as_ref();
            let value = tags.and_then(|tags| tags.iter().find(|(tag, _)| *tag == name));
            return value.map_or(Values::Missing, |(_, value)| Values::one(value));
        }
        if let Some(name) = key.strip_prefix("s3:requestobjecttag/") {
            return self.new_tag(name);
        }
        match key {
            "aws:sourceip" => self.client.map_or(Values::Missing, |client| Self::owned(client.ip)),
            "aws:securetransport" => Values::one(match self.client {
                Some(Client { is_secure: true, .. }) => "true",
                _ => "false",
            }),
            "aws:useragent" => self.header("user-agent"),
            "aws:referer" => self.header("referer"),
            "aws:epochtime" | "aws:currenttime" => Self::owned(clock::unix_seconds()),
            "s3:prefix" => self.in_query("prefix"),
            "s3:delimiter" => self.in_query("delimiter"),
            "s3:max-keys" => self.in_query("max-keys"),
            "s3:versionid" => self.version.as_deref().map_or(Values::Missing, Values::one),
            "s3:objectcreationoperation" => self.creates.map_or(Values::Missing, Self::owned),
            "s3:authtype" => self.auth_type(),
            "s3:signatureversion" => self.signature_version(),
            "s3:signatureage" => self.signature_age(),
            "s3:if-match" => self.condition("if-match"),
            "s3:if-none-match" => self.condition("if-none-match"),
            "s3:object-lock-remaining-retention-days" => self.remaining_days(),
            "s3:requestobjecttagkeys" => {
                let names = self.new_tags().into_iter().map(|(name, _)| Cow::Owned(name));
                Values::Several(names.collect())
            }
            _ => match key.strip_prefix("s3:") {
                Some(name) if name.starts_with("x-amz-") => self.header(name),
                Some(name) if name.starts_with("object-lock-") => {
                    self.header(&format!("x-amz-{name}"))
                }
                _ => Values::Missing,
            },
        }
    }
}

/// A copy has the tags that its request gives, and not those of its source.
pub fn gives_tags(headers: &HeaderMap) -> bool {
    headers.get("x-amz-tagging-directive").is_some_and(|directive| directive == "REPLACE")
}

/// Seconds since 1970 of a time as signatures have it (`20261128T063557Z`).
fn seconds_of(text: &str) -> Option<u64> {
    let part = |from: usize, to: usize| text.get(from..to);
    if text.len() != 16 || part(8, 9) != Some("T") {
        return None;
    }
    let (year, month, day) = (part(0, 4)?, part(4, 6)?, part(6, 8)?);
    let (hour, minute, rest) = (part(9, 11)?, part(11, 13)?, part(13, 16)?);
    let text = format!("{year}-{month}-{day}T{hour}:{minute}:{rest}");
    let time = Timestamp::parse(TimestampFormat::DateTime, &text).ok()?;
    head::seconds_of(&time)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(headers: &[(&'static str, &str)], uri: &str, key: &str) -> Vec<String> {
        let headers: HeaderMap = headers
            .iter()
            .map(|(name, value)| {
                (http::HeaderName::from_static(name), value.parse().expect("a value"))
            })
            .collect();
        let client = Client { ip: IpAddr::from([127, 0, 0, 1]), is_secure: false };
        let client = Some(client);
        let facts = Facts::new(&headers, &uri.parse().expect("a URI"), client);
        facts.values(key).as_slice().iter().map(|value| value.to_string()).collect()
    }

    #[test]
    fn conditions_find_what_a_request_says() {
        let tags = ("x-amz-tagging", "a=1&b=%20");
        type Case<'a> = (&'a [(&'static str, &'a str)], &'a str, &'a str, &'a [&'a str]);
        let cases: [Case<'_>; 16] = [
            (&[], "/b", "aws:sourceip", &["127.0.0.1"]),
            (&[], "/b", "aws:securetransport", &["false"]),
            (&[("user-agent", "x")], "/b", "aws:useragent", &["x"]),
            (&[("referer", "http://a/")], "/b", "aws:referer", &["http://a/"]),
            (&[], "/b", "aws:referer", &[]),
            (&[], "/b?prefix=a%2F&delimiter=/", "s3:prefix", &["a/"]),
            (&[], "/b?prefix=a&prefix=b", "s3:prefix", &[]),
            (&[], "/b?max-keys=3", "s3:max-keys", &["3"]),
            (&[("x-amz-acl", "private")], "/b/k", "s3:x-amz-acl", &["private"]),
            (&[("x-amz-object-lock-mode", "G")], "/b/k", "s3:object-lock-mode", &["G"]),
            (&[("authorization", "AWS4")], "/b", "s3:authtype", &["REST-HEADER"]),
            (&[], "/b?X-Amz-Signature=0", "s3:authtype", &["REST-QUERY-STRING"]),
            (&[tags], "/b/k", "s3:requestobjecttag/b", &[" "]),
            (&[tags], "/b/k", "s3:requestobjecttag/c", &[]),
            (&[tags], "/b/k", "s3:requestobjecttagkeys", &["a", "b"]),
            (&[], "/b/k", "s3:existingobjecttag/a", &[]),
        ];
        for (headers, uri, key, wanted) in cases {
            assert_eq!(values(headers, uri, key), wanted, "{uri} {key}");
        }
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "19700101T000000Z"),
            (951_782_399, "20000228T235959Z"),
            (951_782_400, "20000229T000000Z"),
            (1_796_083_199, "20261130T235959Z"),
            (4_107_542_400, "21000301T000000Z"),
        ] {
            assert_eq!(seconds_of(text), Some(seconds), "{text}");
        }
        for text in ["", "20261128", "20261328T000000Z", "2026ä128T0000Z", "20261128 000000Z"] {
            assert_eq!(seconds_of(text), None, "{text}");
        }
    }
}
