//! Checks of a request's head before s3s sees it: what s3s lacks or takes more lightly than S3
//! (object protocols, 12.2). Pure.

use http::header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST};
use http::header::{HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING};
use http::request::Parts;
use http::{Method, Version};

use crate::digest::is_checksum;
use crate::limits::{CLOCK_SKEW_SECONDS, HEAD_MAX, PRESIGNED_SECONDS_MAX};
use crate::query::Query;
use crate::reply::Refusal;
use crate::subresources::SUBRESOURCES;

/// Signatures of version 4.
pub const ALGORITHM: &str = "AWS4-HMAC-SHA256";
const CONTENT_SHA256: HeaderName = HeaderName::from_static("x-amz-content-sha256");
const DECODED_LENGTH: HeaderName = HeaderName::from_static("x-amz-decoded-content-length");

/// How a body is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Framing {
    /// As it is.
    Plain,
    /// In chunks (`aws-chunked`), each signed or not.
    Chunked {
        /// Each chunk has a signature.
        signed: bool,
        /// Bytes of the content.
        len: u64,
    },
    /// In chunks without signatures that s3s leaves as they are: it decodes those of a request that is
    /// signed by version 4 in its head.
    Undecoded {
        /// Bytes of the content.
        len: u64,
    },
}

/// What the head says of the body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BodyFacts {
    /// How it is written.
    pub framing: Framing,
    /// Bytes that are sent; unknown with chunks of HTTP.
    pub sent_len: Option<u64>,
    /// The request has a signature of version 4: of such a one s3s compares the body with
    /// `x-amz-content-sha256`.
    pub is_signed_by_v4: bool,
}

impl BodyFacts {
    /// Bytes of the content.
    pub fn content_len(&self) -> Option<u64> {
        match self.framing {
            Framing::Plain => self.sent_len,
            Framing::Chunked { len, .. } | Framing::Undecoded { len } => Some(len),
        }
    }
}

/// Checks a head, and completes it where a presigned URL holds what is a header else.
///
/// # Errors
///
/// The [`Refusal`] that S3 would answer.
pub fn check(head: &mut Parts, now: u64, allow_v2: bool) -> Result<BodyFacts, Refusal> {
    check_size(head)?;
    let query = Query::parse(head.uri.query().unwrap_or_default());
    if head.headers.get_all(HOST).iter().count() > 1 {
        return Err(Refusal::new("InvalidRequest", "A request has one Host header."));
    }
    check_subresource(&head.method, &query)?;
    check_form(head, &query)?;
    for (name, value) in &head.headers {
        if is_amz(name) && std::str::from_utf8(value.as_bytes()).is_err() {
            return Err(Refusal::new("InvalidArgument", format!("{name} is no UTF-8.")));
        }
    }
    let scheme = Scheme::of(&head.headers, &query)?;
    match scheme {
        Scheme::Anonymous => {}
        Scheme::V2 if !allow_v2 => {
            return Err(no_v2());
        }
        Scheme::V2 => {
            check_v2_date(&head.headers, &query, now)?;
            check_v2_query(&query)?;
        }
        Scheme::Header => check_header_signature(head)?,
        Scheme::Presigned => {
            check_presigned(&head.headers, &query)?;
            hoist(&mut head.headers, &query)?;
        }
    }
    check_metadata(&head.headers)?;
    body_facts(head, scheme)
}

/// s3s decodes metadata with encoded words (RFC 2047), and one without anything in it ends the process.
fn check_metadata(headers: &HeaderMap) -> Result<(), Refusal> {
    let is_flawed = |value: &HeaderValue| {
        let text = std::str::from_utf8(value.as_bytes()).unwrap_or_default().trim();
        let is_encoded = text.starts_with("=?") && text.ends_with("?=");
        is_encoded && text.split_whitespace().any(|word| word == "=?=")
    };
    let metadata = headers.iter().filter(|(name, _)| name.as_str().starts_with("x-amz-meta-"));
    match metadata.into_iter().find(|(_, value)| is_flawed(value)) {
        None => Ok(()),
        Some((name, _)) => {
            let message = format!("{name} has an encoded word (RFC 2047) with nothing in it.");
            Err(Refusal::new("InvalidArgument", message))
        }
    }
}

/// How a request is signed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Scheme {
    Anonymous,
    V2,
    Header,
    Presigned,
}

impl Scheme {
    fn of(headers: &HeaderMap, query: &Query) -> Result<Scheme, Refusal> {
        let mut found = Vec::new();
        for value in headers.get_all(AUTHORIZATION) {
            let is_v2 = value.as_bytes().starts_with(b"AWS ");
            found.push(if is_v2 { Scheme::V2 } else { Scheme::Header });
        }
        if query.has("X-Amz-Signature") || query.has("X-Amz-Algorithm") {
            found.push(Scheme::Presigned);
        }
        if query.has("Signature") || query.has("AWSAccessKeyId") {
            found.push(Scheme::V2);
        }
        match found.as_slice() {
            [] => Ok(Scheme::Anonymous),
            [scheme] => Ok(*scheme),
            _ => Err(two_mechanisms()),
        }
    }
}

fn two_mechanisms() -> Refusal {
    Refusal::new(
        "InvalidArgument",
        "Only one auth mechanism allowed; only the X-Amz-Algorithm query parameter, Signature query \
         string parameter or the Authorization header should be specified",
    )
}

/// Signatures of version 2 are not taken.
pub fn no_v2() -> Refusal {
    Refusal::new(
        "InvalidRequest",
        "The authorization mechanism you have provided is not supported. Please use AWS4-HMAC-SHA256.",
    )
}

fn check_size(head: &Parts) -> Result<(), Refusal> {
    let line = head.method.as_str().len() + head.uri.path().len();
    let line = line + head.uri.query().map_or(0, str::len) + " ? HTTP/1.1\r\n".len();
    let headers = head.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4);
    if line + headers.sum::<usize>() > HEAD_MAX {
        return Err(Refusal::new(
            "RequestHeaderSectionTooLarge",
            format!("The request line and its headers have {HEAD_MAX} bytes at most."),
        ));
    }
    Ok(())
}

/// Parameters that may be without a value.
const PARAMETERS: &[&str] = &[
    "continuation-token",
    "delimiter",
    "encoding-type",
    "fetch-owner",
    "key-marker",
    "list-type",
    "marker",
    "max-buckets",
    "max-keys",
    "max-parts",
    "max-uploads",
    "part-number-marker",
    "partNumber",
    "prefix",
    "start-after",
    "upload-id-marker",
    "uploadId",
    "version-id-marker",
    "versionId",
    "x-id",
];

/// A subresource that s3s does not know would be passed over: a DELETE of a bucket's new kind of
/// settings would delete the bucket, a PUT would replace an object.
fn check_subresource(method: &Method, query: &Query) -> Result<(), Refusal> {
    for (name, value) in query.iter() {
        let is_auth = name.get(..6).is_some_and(|start| start.eq_ignore_ascii_case("x-amz-"));
        let is_override = name.starts_with("response-");
        let is_known = PARAMETERS.contains(&name) || SUBRESOURCES.contains(&name);
        if value.is_empty() && !is_auth && !is_override && !is_known {
            return Err(Refusal::new("NotImplemented", format!("?{name} is not implemented.")));
        }
    }
    let (has_upload, has_part) = (query.has("uploadId"), query.has("partNumber"));
    let is_flawed = match *method {
        Method::PUT => has_upload != has_part,
        Method::DELETE => has_part && !has_upload,
        _ => false,
    };
    if is_flawed {
        return Err(Refusal::new("InvalidArgument", "A part has uploadId and partNumber."));
    }
    if (*method == Method::PUT || *method == Method::DELETE) && query.has("uploads") {
        return Err(Refusal::new(
            "MethodNotAllowed",
            "The specified method is not allowed against this resource.",
        ));
    }
    Ok(())
}

/// Headers that say what the body is. Checksums of a completion of an upload are the object's, not
/// those of the document that names its parts.
pub fn body_headers(head: &Parts) -> HeaderMap {
    let mut headers = head.headers.clone();
    let query = Query::parse(head.uri.query().unwrap_or_default());
    if head.method == Method::POST && query.has("uploadId") && !query.has("delete") {
        for name in head.headers.keys().filter(|name| is_checksum(name.as_str())) {
            headers.remove(name);
        }
    }
    headers
}

/// The request is a form of a browser's.
pub fn is_form(head: &Parts) -> bool {
    let kind = head.headers.get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    let form = b"multipart/form-data";
    let is_form = kind.get(..form.len()).is_some_and(|start| start.eq_ignore_ascii_case(form));
    head.method == Method::POST && is_form
}

/// A form is signed by its fields, and s3s would take each POST of its type for one.
fn check_form(head: &Parts, query: &Query) -> Result<(), Refusal> {
    if !is_form(head) {
        return Ok(());
    }
    if query.iter().next().is_some() {
        let message = "A POST of multipart/form-data with a query is not implemented.";
        return Err(Refusal::new("NotImplemented", message));
    }
    match head.headers.contains_key(AUTHORIZATION) {
        true => Err(two_mechanisms()),
        false => Ok(()),
    }
}

fn is_amz(name: &HeaderName) -> bool {
    name.as_str().starts_with("x-amz-")
}

/// `host` and all `x-amz-*` headers must be signed: else anyone on the way could add one.
fn check_signed(headers: &HeaderMap, signed: &str) -> Result<(), Refusal> {
    let signed: Vec<&str> = signed.split(';').collect();
    let is_missing =
        |name: &HeaderName| (is_amz(name) || name == HOST) && !signed.contains(&name.as_str());
    match headers.keys().find(|name| is_missing(name)) {
        None if signed.contains(&"host") => Ok(()),
        missing => Err(Refusal::new(
            "AccessDenied",
            format!(
                "There were headers present in the request which were not signed: {}",
                missing.map_or("host", HeaderName::as_str)
            ),
        )),
    }
}

fn check_header_signature(head: &Parts) -> Result<(), Refusal> {
    let value = head.headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let malformed = |why: &str| Refusal::new("AuthorizationHeaderMalformed", why.to_owned());
    let value = value.ok_or_else(|| malformed("The authorization header is no text."))?;
    let Some((algorithm, rest)) = value.split_once(' ') else {
        return Err(Refusal::new("InvalidArgument", "Unsupported Authorization Type"));
    };
    if algorithm != ALGORITHM {
        return Err(Refusal::new("InvalidArgument", "Unsupported Authorization Type"));
    }
    // s3s takes the same three in the same order and refuses all else.
    let mut parts = rest.split(',').map(str::trim);
    let mut part = |name: &str| {
        let value = parts.next().and_then(|part| part.strip_prefix(name)?.strip_prefix('='));
        value.ok_or_else(|| {
            malformed(&format!(
                "The authorization header requires Credential, SignedHeaders and \
                                Signature in this order, {name} is missing."
            ))
        })
    };
    let (credential, signed) = (part("Credential")?, part("SignedHeaders")?);
    part("Signature")?;
    if parts.next().is_some() {
        return Err(malformed("The authorization header has more than three components."));
    }
    check_scope(credential)
        .map_err(|why| malformed(&format!("The authorization header is malformed; {why}")))?;
    check_signed(&head.headers, signed)
}

/// Of the scope s3s checks the date. Another service than S3 would have its body read unsigned.
pub fn check_scope(credential: &str) -> Result<(), &'static str> {
    let parts: Vec<&str> = credential.split('/').collect();
    let [_, _, _, service, terminator] = parts.as_slice() else {
        return Err(
            "the Credential is mal-formed; expecting \"<YOUR-AKID>/YYYYMMDD/REGION/SERVICE/\
             aws4_request\".",
        );
    };
    match (*service, *terminator) {
        ("s3", "aws4_request") => Ok(()),
        ("s3", _) => Err("the credential scope ends with \"aws4_request\"."),
        _ => Err("incorrect service. This endpoint belongs to \"s3\"."),
    }
}

fn check_presigned(headers: &HeaderMap, query: &Query) -> Result<(), Refusal> {
    let flawed = |why: &str| Refusal::new("AuthorizationQueryParametersError", why.to_owned());
    let value = |name: &str| {
        query.unique(name).ok_or_else(|| {
            flawed(
                "Query-string authentication version 4 requires the X-Amz-Algorithm, \
                 X-Amz-Credential, X-Amz-Signature, X-Amz-Date, X-Amz-SignedHeaders, and \
                 X-Amz-Expires parameters.",
            )
        })
    };
    if value("X-Amz-Algorithm")? != ALGORITHM {
        return Err(flawed("X-Amz-Algorithm only supports \"AWS4-HMAC-SHA256\"."));
    }
    check_scope(value("X-Amz-Credential")?).map_err(flawed)?;
    value("X-Amz-Signature")?;
    value("X-Amz-Date")?;
    let expires = value("X-Amz-Expires")?;
    let seconds = Some(expires).filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    match seconds.and_then(|text| text.parse::<u64>().ok()) {
        None => return Err(flawed("X-Amz-Expires should be a number")),
        Some(0) => return Err(flawed("X-Amz-Expires must be non-negative")),
        Some(seconds) if seconds > PRESIGNED_SECONDS_MAX => {
            return Err(flawed(
                "X-Amz-Expires must be less than a week (in seconds); that is, the given \
                 X-Amz-Expires must be less than 604800 seconds",
            ));
        }
        Some(_) => {}
    }
    check_signed(headers, value("X-Amz-SignedHeaders")?)
}

/// Parameters of a presigned URL that are its signature, or that s3s reads as parameters.
const NO_HEADERS: &[&str] = &[
    "x-amz-algorithm",
    "x-amz-content-sha256",
    "x-amz-credential",
    "x-amz-date",
    "x-amz-expires",
    "x-amz-security-token",
    "x-amz-signature",
    "x-amz-signedheaders",
];

/// Clients move `x-amz-*` headers into a URL when they presign it: they are headers all the same,
/// and signed as part of the URL. s3s would pass over them.
fn hoist(headers: &mut HeaderMap, query: &Query) -> Result<(), Refusal> {
    for (name, value) in query.iter() {
        let name = name.to_ascii_lowercase();
        if !name.starts_with("x-amz-") || NO_HEADERS.contains(&name.as_str()) {
            continue;
        }
        let header = HeaderName::try_from(&name).ok().zip(HeaderValue::from_str(value).ok());
        let Some((name, value)) = header else {
            return Err(Refusal::new("InvalidArgument", format!("{name} is no header.")));
        };
        if headers.contains_key(&name) {
            let message = format!("{name} is a header and in the URL.");
            return Err(Refusal::new("InvalidArgument", message));
        }
        headers.append(name, value);
    }
    Ok(())
}

/// s3s does not compare the date of a V2 signature with the clock: it would be valid for ever.
fn check_v2_date(headers: &HeaderMap, query: &Query, now: u64) -> Result<(), Refusal> {
    if query.has("Signature") {
        return Ok(()); // Its time is checked by s3s: `Expires`.
    }
    let date = headers.get("x-amz-date").or_else(|| headers.get("date"));
    let date = date.and_then(|value| value.to_str().ok()).unwrap_or_default();
    let date = date.replace("+0000", "GMT");
    let time = s3s::dto::Timestamp::parse(s3s::dto::TimestampFormat::HttpDate, &date).ok();
    let seconds = time.and_then(|time| seconds_of(&time)).ok_or_else(|| {
        Refusal::new(
            "AccessDenied",
            "AWS authentication requires a valid Date or x-amz-date header",
        )
    })?;
    if seconds.abs_diff(now) > u64::from(CLOCK_SKEW_SECONDS) {
        return Err(Refusal::new(
            "RequestTimeTooSkewed",
            "The difference between the request time and the current time is too large.",
        ));
    }
    Ok(())
}

/// Subresources that a signature of version 2 covers.
const SIGNED_BY_V2: &[&str] = &[
    "accelerate",
    "acl",
    "analytics",
    "cors",
    "delete",
    "inventory",
    "lifecycle",
    "location",
    "logging",
    "metrics",
    "notification",
    "object-lock",
    "policy",
    "replication",
    "requestPayment",
    "restore",
    "select",
    "tagging",
    "torrent",
    "uploads",
    "versioning",
    "versions",
    "website",
];

/// A signature of version 2 covers some names of a query, and those only that s3s finds once: else who has a URL
/// for an upload could give the object an ACL or a retention with it.
fn check_v2_query(query: &Query) -> Result<(), Refusal> {
    for (name, _) in query.iter() {
        let is_subresource = SUBRESOURCES.contains(&name);
        if is_subresource && !SIGNED_BY_V2.contains(&name) {
            let message = format!("?{name} is not covered by signatures of version 2.");
            return Err(Refusal::new("InvalidRequest", message));
        }
        let means_something = is_subresource || PARAMETERS.contains(&name);
        if (means_something || name.starts_with("response-")) && query.unique(name).is_none() {
            return Err(Refusal::new("InvalidArgument", format!("{name} is there twice.")));
        }
    }
    Ok(())
}

/// Whole seconds since 1970.
pub fn seconds_of(time: &s3s::dto::Timestamp) -> Option<u64> {
    let mut text = Vec::new();
    time.format(s3s::dto::TimestampFormat::EpochSeconds, &mut text).ok()?;
    let text = std::str::from_utf8(&text).ok()?;
    text.split('.').next()?.parse().ok()
}

fn body_facts(head: &Parts, scheme: Scheme) -> Result<BodyFacts, Refusal> {
    let number = |name: &HeaderName| match head.headers.get(name) {
        None => Ok(None),
        Some(value) => {
            let digits = value.to_str().ok().filter(|text| !text.is_empty());
            let digits = digits.filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
            let number = digits.and_then(|text| text.parse::<u64>().ok());
            let flaw = || Refusal::new("InvalidArgument", format!("{name} is no length."));
            number.map(Some).ok_or_else(flaw)
        }
    };
    let decoded = number(&DECODED_LENGTH)?;
    let is_chunked = head.headers.contains_key(TRANSFER_ENCODING);
    let sent_len = match number(&CONTENT_LENGTH)? {
        Some(len) => Some(len),
        None if is_chunked && head.version == Version::HTTP_11 => None,
        None => Some(0),
    };
    let payload = head.headers.get(CONTENT_SHA256).map(HeaderValue::as_bytes);
    let framing = match payload.unwrap_or_default().strip_prefix(b"STREAMING-") {
        Some(kind) => {
            let missing = || {
                let message = "You must provide the x-amz-decoded-content-length HTTP header.";
                Refusal::new("MissingContentLength", message)
            };
            let len = decoded.ok_or_else(missing)?;
            match scheme {
                // s3s takes no chunks of a presigned request.
                Scheme::Header | Scheme::Presigned => {
                    Framing::Chunked { signed: !kind.starts_with(b"UNSIGNED-"), len }
                }
                Scheme::Anonymous | Scheme::V2 => {
                    check_unsigned_chunks(kind, &head.headers)?;
                    Framing::Undecoded { len }
                }
            }
        }
        // Some clients that sign nothing send no digest either.
        None => match (payload, scheme, decoded) {
            (None, Scheme::Anonymous, Some(len)) if has_aws_chunked(&head.headers) => {
                Framing::Undecoded { len }
            }
            _ => Framing::Plain,
        },
    };
    if framing == Framing::Plain && has_aws_chunked(&head.headers) {
        return Err(Refusal::new(
            "InvalidRequest",
            "A body in aws-chunked has x-amz-content-sha256: STREAMING-...",
        ));
    }
    if framing != Framing::Plain && is_form(head) {
        return Err(Refusal::new("InvalidRequest", "A form is not sent in aws-chunked."));
    }
    if framing == Framing::Plain && sent_len.is_none() {
        let message = "You must provide the Content-Length HTTP header.";
        return Err(Refusal::new("MissingContentLength", message));
    }
    let is_signed_by_v4 = matches!(scheme, Scheme::Header | Scheme::Presigned);
    Ok(BodyFacts { framing, sent_len, is_signed_by_v4 })
}

/// Chunks of a request that is not signed by version 4, as s3s checks those of one that is.
fn check_unsigned_chunks(kind: &[u8], headers: &HeaderMap) -> Result<(), Refusal> {
    if kind != b"UNSIGNED-PAYLOAD-TRAILER" {
        return Err(Refusal::new(
            "InvalidRequest",
            "Only chunks of a request with a signature of version 4 are signed: send \
             x-amz-content-sha256: UNSIGNED-PAYLOAD or STREAMING-UNSIGNED-PAYLOAD-TRAILER.",
        ));
    }
    if !headers.contains_key("x-amz-trailer") {
        return Err(Refusal::new("InvalidRequest", "missing header: x-amz-trailer"));
    }
    Ok(())
}

fn has_aws_chunked(headers: &HeaderMap) -> bool {
    let encodings = headers.get_all(CONTENT_ENCODING).iter();
    encodings.filter_map(|value| value.to_str().ok()).any(|value| {
        value.split(',').any(|encoding| encoding.trim().eq_ignore_ascii_case("aws-chunked"))
    })
}

#[cfg(test)]
mod tests;
