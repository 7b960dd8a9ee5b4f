//! Answers: S3's errors as XML, and what every answer carries.

use std::borrow::Cow;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, SERVER};
use http::{Response, StatusCode};
use s3s::Body;

use crate::query::decode_path;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-amz-request-id");
const XML: HeaderValue = HeaderValue::from_static("application/xml");
const END: &[u8] = b"</Error>";

/// What a request is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Target<'a> {
    /// The path of its URL.
    pub path: &'a str,
    /// The bucket that its host names.
    pub host_bucket: Option<&'a str>,
    /// It names a source too: what is missing may be that one.
    pub has_source: bool,
}

impl Target<'_> {
    /// The bucket's name; empty for none.
    pub fn bucket(self) -> String {
        self.names().0
    }

    /// The bucket, and the key behind it; empty where there is none.
    pub fn names(self) -> (String, String) {
        let path = self.path.strip_prefix('/').unwrap_or(self.path);
        match self.host_bucket {
            Some(bucket) => (bucket.to_owned(), decode_path(path)),
            None => {
                let (bucket, key) = path.split_once('/').unwrap_or((path, ""));
                (decode_path(bucket), decode_path(key))
            }
        }
    }
}

/// A refusal of a request in S3's words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// S3's code.
    pub code: &'static str,
    /// HTTP's status.
    pub status: StatusCode,
    /// Cause, and remedy where there is one.
    pub message: Cow<'static, str>,
}

impl Refusal {
    /// With the status that goes with the code in S3.
    pub fn new(code: &'static str, message: impl Into<Cow<'static, str>>) -> Refusal {
        let status = match code {
            "AccessDenied"
            | "AccessForbidden"
            | "SignatureDoesNotMatch"
            | "RequestTimeTooSkewed" => StatusCode::FORBIDDEN,
            "MethodNotAllowed" => StatusCode::METHOD_NOT_ALLOWED,
            "MissingContentLength" => StatusCode::LENGTH_REQUIRED,
            "InternalError" => StatusCode::INTERNAL_SERVER_ERROR,
            "NotImplemented" => StatusCode::NOT_IMPLEMENTED,
            "SlowDown" => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::BAD_REQUEST,
        };
        Refusal { code, status, message: message.into() }
    }

    /// As an answer.
    pub fn response(&self) -> Response<Body> {
        let text = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>{}</Code><Message>{}</Message>\
             </Error>",
            self.code,
            escape(&self.message)
        );
        let mut response = Response::new(Body::from(text));
        *response.status_mut() = self.status;
        response.headers_mut().insert(CONTENT_TYPE, XML);
        response
    }
}

/// S3's code of an error; an extension of answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ErrorCode(pub String);

/// Short text of a page that is not S3's, as for health.
pub fn page(status: StatusCode, text: &'static str) -> Response<Body> {
    let mut response = Response::new(Body::from(Bytes::from_static(text.as_bytes())));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    response
}

/// Completes an answer: request ID in a header and in an error's XML, what is missing there by its name,
/// characters in XML that a parser would change or refuse. `target` is asked about an error only.
pub fn complete<'a>(
    response: Response<Body>,
    request_id: &str,
    target: impl FnOnce() -> Target<'a>,
) -> Response<Body> {
    let (mut head, mut body) = response.into_parts();
    if let Ok(value) = HeaderValue::from_str(request_id) {
        head.headers.insert(REQUEST_ID, value);
    }
    head.headers.insert(SERVER, HeaderValue::from_static("Craton"));
    if head.status == StatusCode::NOT_MODIFIED {
        head.headers.remove(CONTENT_TYPE);
        body = Body::empty();
    } else if is_xml(&head.headers)
        // Of an object that is XML nothing is changed: HEAD has its length, and no body.
        && let Some(bytes) = body.bytes().filter(|bytes| !bytes.is_empty())
    {
        let bytes = match head.status.is_success() {
            true => bytes,
            false => {
                let (code, bytes) = with_facts(bytes, request_id, target());
                head.extensions.insert(ErrorCode(code));
                bytes
            }
        };
        head.headers.remove(CONTENT_LENGTH); // Hyper sets the one of the body that it gets.
        body = Body::from(with_references(bytes));
    }
    Response::from_parts(head, body)
}

fn is_xml(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|kind| kind == XML)
}

/// An error's code, and its XML with message, the name of what is missing, path and request ID.
fn with_facts(xml: Bytes, request_id: &str, target: Target<'_>) -> (String, Bytes) {
    let Some(start) = xml.strip_suffix(END) else { return (String::new(), xml) };
    let mut text = String::from_utf8_lossy(start).into_owned();
    let code = text.split("<Code>").nth(1).and_then(|rest| rest.split("</Code>").next());
    let code = code.unwrap_or_default().to_owned();
    if !text.contains("<Message>") {
        let message = format!("<Message>{}</Message>", message_of(&code));
        text.push_str(&message);
    }
    match code.as_str() {
        _ if target.has_source => {}
        "NoSuchKey" => text.push_str(&format!("<Key>{}</Key>", escape(&target.names().1))),
        "NoSuchBucket" => {
            let bucket = escape(&target.names().0);
            text.push_str(&format!("<BucketName>{bucket}</BucketName>"));
        }
        _ => {}
    }
    if !text.contains("<RequestId>") {
        let path = escape(target.path);
        text.push_str(&format!("<Resource>{path}</Resource><RequestId>{request_id}</RequestId>"));
    }
    text.push_str("</Error>");
    (code, Bytes::from(text))
}

/// Messages of codes that s3s leaves without.
fn message_of(code: &str) -> &'static str {
    match code {
        "AccessDenied" => "Access Denied",
        "IncompleteBody" => "The body has another length than Content-Length says.",
        "InvalidBucketName" => "The specified bucket is not valid.",
        "InvalidRange" => "The requested range is not satisfiable",
        "InvalidURI" => "Couldn't parse the specified URI.",
        "KeyTooLongError" => "Your key is too long",
        "MalformedXML" => {
            "The XML you provided was not well-formed or did not validate against our published \
             schema"
        }
        "MaxMessageLengthExceeded" => "Your request was too big.",
        "MethodNotAllowed" => "The specified method is not allowed against this resource.",
        "MissingContentLength" => "You must provide the Content-Length HTTP header.",
        "MissingRequestBodyError" => "Request body is empty.",
        "NotImplemented" => "A header you provided implies functionality that is not implemented",
        "SignatureDoesNotMatch" => {
            "The request signature we calculated does not match the signature you provided. Check \
             your key and signing method."
        }
        _ => "The request was refused.",
    }
}

/// XML with control characters as references: a parser reads a carriage return as a line feed else,
/// and refuses the others or shows them (S3 writes them so, too).
fn with_references(xml: Bytes) -> Bytes {
    let is_control = |byte: &u8| *byte < b' ' && *byte != b'\t' && *byte != b'\n';
    if !xml.iter().any(is_control) {
        return xml;
    }
    let mut bytes = Vec::with_capacity(xml.len() + 64);
    for byte in &xml {
        match is_control(byte) {
            true => bytes.extend_from_slice(format!("&#x{byte:X};").as_bytes()),
            false => bytes.push(*byte),
        }
    }
    Bytes::from(bytes)
}

/// XML whose first tag has no quotes: s3s writes all tags as headers have them.
pub fn with_bare_tag(body: Body) -> Body {
    let Some(bytes) = body.bytes() else { return body };
    let text = String::from_utf8_lossy(&bytes);
    let Some((before, rest)) = text.split_once("<ETag>") else { return body };
    let Some((tag, behind)) = rest.split_once("</ETag>") else { return body };
    let tag = tag.replace("&quot;", "").replace('"', "");
    Body::from(format!("{before}<ETag>{tag}</ETag>{behind}"))
}

/// Text for an element's content.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at<'a>(path: &'a str, host_bucket: Option<&'a str>) -> impl Fn() -> Target<'a> {
        move || Target { path, host_bucket, has_source: false }
    }

    fn text(response: Response<Body>) -> String {
        let bytes = response.into_body().bytes().expect("bytes in memory");
        String::from_utf8(bytes.to_vec()).expect("text")
    }

    #[test]
    fn an_error_has_message_path_and_request_id() {
        let refusal = Refusal::new("AccessDenied", "no & never");
        let response = complete(refusal.response(), "00AB", at("/b/<k>", None));
        assert_eq!(response.status(), StatusCode::FORBIDDEN);
        assert_eq!(response.headers()["x-amz-request-id"], "00AB");
        assert_eq!(
            text(response),
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>AccessDenied</Code>\
             <Message>no &amp; never</Message><Resource>/b/&lt;k&gt;</Resource>\
             <RequestId>00AB</RequestId></Error>"
        );
    }

    #[test]
    fn an_error_without_message_gets_one() {
        let error = s3s::S3Error::new(s3s::S3ErrorCode::AccessDenied);
        let response = error.to_http_response().expect("an answer");
        assert!(
            text(complete(response, "1", at("/", None)))
                .contains("<Message>Access Denied</Message>")
        );
    }

    #[test]
    fn what_is_missing_is_named() {
        let missing = |code, (path, host_bucket)| {
            let response = Refusal::new(code, "no").response();
            let text = text(complete(response, "1", at(path, host_bucket)));
            let facts = text.split("</Message>").nth(1).expect("facts");
            facts.split("<Resource>").next().expect("some").to_owned()
        };
        let key = ("/b/a%26%3Cb+c/d%2Fe%0D", None);
        assert_eq!(missing("NoSuchKey", key), "<Key>a&amp;&lt;b+c/d/e&#xD;</Key>");
        assert_eq!(missing("NoSuchBucket", key), "<BucketName>b</BucketName>");
        let hosted = ("/a/b", Some("h"));
        assert_eq!(missing("NoSuchKey", hosted), "<Key>a/b</Key>");
        assert_eq!(missing("NoSuchBucket", hosted), "<BucketName>h</BucketName>");
        assert_eq!(missing("NoSuchBucket", ("/b", None)), "<BucketName>b</BucketName>");
        assert_eq!(missing("AccessDenied", key), "");
        let copy = || Target { path: "/b/k", host_bucket: None, has_source: true };
        let text = text(complete(Refusal::new("NoSuchKey", "no").response(), "1", copy));
        assert!(!text.contains("<Key>"), "the source may be missing");
    }

    #[test]
    fn control_characters_become_references() {
        let mut response = Response::new(Body::from("<K>a\rb\u{1}\t\n</K>".to_owned()));
        response.headers_mut().insert(CONTENT_TYPE, XML);
        assert_eq!(text(complete(response, "1", at("/", None))), "<K>a&#xD;b&#x1;\t\n</K>");
    }

    #[test]
    fn an_object_that_is_xml_stays_as_it_is() {
        // Objects are streams, not bytes in memory; a page of another kind is passed over as well.
        let mut response = Response::new(Body::from("a\rb".to_owned()));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
        assert_eq!(text(complete(response, "1", at("/", None))), "a\rb");
    }

    #[test]
    fn not_modified_has_no_body() {
        let mut response = Response::new(Body::from("<Error/>".to_owned()));
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        assert_eq!(text(complete(response, "1", at("/", None))), "");
    }
}
