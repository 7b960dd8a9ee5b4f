//! What a form's fields are as headers of a PUT.

use http::header::{EXPIRES, HeaderMap, HeaderName, HeaderValue, REFERER, USER_AGENT};
use object_proto::Metadata;
use s3s::dto::{ETagCondition, Tagging, Timestamp, TimestampFormat};
use s3s::xml::{Deserialize, Deserializer};
use s3s::{S3Error, S3ErrorCode, S3Result};

use super::fields::Fields;
use crate::dialect::SYSTEM_HEADERS;
use crate::query::encode;

/// Fields that are headers, beside those of the object and all `x-amz-*`.
const HEADERS: [&str; 3] = ["content-md5", "if-match", "if-none-match"];
/// Fields `x-amz-*` that concern the form, or a body of another kind.
const NO_HEADERS: [&str; 6] = [
    "x-amz-algorithm",
    "x-amz-content-sha256",
    "x-amz-credential",
    "x-amz-date",
    "x-amz-signature",
    "x-amz-trailer",
];
/// Headers of the request itself, which policies ask for.
const OF_REQUEST: [HeaderName; 2] = [REFERER, USER_AGENT];

fn invalid(message: String) -> S3Error {
    S3Error::with_message(S3ErrorCode::InvalidArgument, message)
}

/// Headers of the PUT. Those of the request are not signed and mean nothing of the object.
pub fn of(fields: &Fields, request: &HeaderMap) -> S3Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    for name in OF_REQUEST {
        if let Some(value) = request.get(&name) {
            headers.insert(name, value.clone());
        }
    }
    for (field, value) in fields.iter() {
        let value = value.trim();
        let name = match field {
            "acl" => "x-amz-acl",
            "tagging" => "x-amz-tagging",
            field if SYSTEM_HEADERS.contains(&field) || HEADERS.contains(&field) => field,
            field if is_header(field) => field,
            _ => continue,
        };
        if value.is_empty() {
            continue; // A browser sends inputs that are left empty too.
        }
        let tags = if field == "tagging" { Some(tags_of(value)?) } else { None };
        let value = tags.as_deref().unwrap_or(value);
        if tags.as_ref().is_some_and(String::is_empty) {
            continue;
        }
        let header = HeaderName::try_from(name).ok().zip(HeaderValue::from_str(value).ok());
        let Some((name, value)) = header.filter(|(_, value)| value.to_str().is_ok()) else {
            return Err(invalid(format!("The value of the field '{field}' is not ASCII.")));
        };
        if headers.insert(&name, value).is_some() {
            return Err(invalid(format!("The form has more than one field for {name}.")));
        }
    }
    if let Some(time) = headers.get(EXPIRES).and_then(|time| time.to_str().ok()) {
        let time = Timestamp::parse(TimestampFormat::HttpDate, time);
        time.map_err(|_| invalid("Expires is no date of HTTP.".to_owned()))?;
    }
    Ok(headers)
}

fn is_header(field: &str) -> bool {
    field.starts_with("x-amz-")
        && !field.starts_with(Metadata::USER_PREFIX)
        && !NO_HEADERS.contains(&field)
}

/// The user's metadata, by names without their beginning.
pub fn users_of(fields: &Fields) -> S3Result<s3s::dto::Metadata> {
    let mut all = s3s::dto::Metadata::new();
    for (field, value) in fields.iter() {
        let Some(name) = field.strip_prefix(Metadata::USER_PREFIX) else { continue };
        let is_name = !name.is_empty() && HeaderName::try_from(name).is_ok();
        if !is_name || value.chars().any(char::is_control) {
            return Err(invalid(format!("The field '{field}' cannot be a header.")));
        }
        all.insert(name.to_owned(), value.trim().to_owned());
    }
    Ok(all)
}

/// A condition on the object that is there.
pub fn condition_of(headers: &HeaderMap, name: &str) -> S3Result<Option<ETagCondition>> {
    let parse = |value: &HeaderValue| ETagCondition::parse_http_header(value.as_bytes());
    let condition = headers.get(name).map(parse).transpose();
    condition.map_err(|_| invalid(format!("{name} is not one tag.")))
}

/// Tags of a document, as the header has them.
fn tags_of(xml: &str) -> S3Result<String> {
    let malformed = || S3Error::new(S3ErrorCode::MalformedXML);
    // s3s passes over CDATA and definitions of entities.
    if xml.match_indices("<!").any(|(at, _)| !xml[at..].starts_with("<!--")) {
        return Err(malformed());
    }
    let mut xml = Deserializer::new(xml.as_bytes());
    let tagging = Tagging::deserialize(&mut xml).map_err(|_| malformed())?;
    xml.expect_eof().map_err(|_| malformed())?;
    let mut pairs = Vec::new();
    for tag in tagging.tag_set {
        let (key, value) = tag.key.zip(tag.value).ok_or_else(malformed)?;
        pairs.push(format!("{}={}", encode(&key), encode(&value)));
    }
    Ok(pairs.join("&"))
}
