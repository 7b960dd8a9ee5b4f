//! GetObject and HeadObject.

use std::ops::Range;
use std::sync::Arc;

use http::StatusCode;
use http::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_LANGUAGE,
};
use http::header::{CONTENT_RANGE, CONTENT_TYPE, ETAG, EXPIRES, LAST_MODIFIED};
use http::header::{HeaderMap, HeaderName, HeaderValue};
use object_proto::{Checksum, Metadata, ObjectData, ObjectInfo, Target};
use s3s::dto::{
    ChecksumMode, ChecksumType, ETag, GetObjectInput, GetObjectOutput, HeadObjectInput,
    HeadObjectOutput, StreamingBlob, Timestamp, TimestampFormat,
};
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

use super::conditions::{ReadConditions, Verdict, precondition_failed};
use super::download::Download;
use super::lifecycle::show_expiry;
use super::object_lock::show_lock;
use super::part_checksums::part_checksums;
use super::put::SYSTEM_HEADERS;
use super::sse::OWN;
use super::state::{
    State, bucket_of, modified, part_number_of, read_error, rights_of, shown_version, target_of,
    version_id_of,
};
use crate::context::PartOnly;
use crate::digest::text_of;
use crate::errors::{VERSION_ID, coded};

/// Type of content that none was given for, as in S3.
const DEFAULT_TYPE: &str = "binary/octet-stream";

/// Number of the object's parts.
const PARTS_COUNT: HeaderName = HeaderName::from_static("x-amz-mp-parts-count");

/// When the object expires.
const EXPIRATION: HeaderName = HeaderName::from_static("x-amz-expiration");

/// Number of the object's tags.
const TAGGING_COUNT: HeaderName = HeaderName::from_static("x-amz-tagging-count");

/// What GET and HEAD ask for.
struct Ask<'a> {
    conditions: ReadConditions<'a>,
    range: Option<&'a s3s::dto::Range>,
    part_number: Option<i32>,
    checksum_mode: Option<&'a ChecksumMode>,
    version_id: Option<&'a str>,
}

impl Ask<'_> {
    fn wants_checksum(&self) -> bool {
        self.checksum_mode.is_some_and(|mode| mode.as_str() == "ENABLED")
    }
}

/// What GET and HEAD ask for, and the headers that they want otherwise: s3s has a type of input for
/// each, with the same fields.
macro_rules! asked {
    ($input:ident) => {{
        let ask = Ask {
            conditions: ReadConditions {
                if_match: $input.if_match.as_ref(),
                if_none_match: $input.if_none_match.as_ref(),
                if_modified_since: $input.if_modified_since.as_ref(),
                if_unmodified_since: $input.if_unmodified_since.as_ref(),
            },
            range: $input.range.as_ref(),
            part_number: $input.part_number,
            checksum_mode: $input.checksum_mode.as_ref(),
            version_id: $input.version_id.as_deref(),
        };
        let overrides = Overrides {
            cache_control: $input.response_cache_control.as_deref(),
            content_disposition: $input.response_content_disposition.as_deref(),
            content_encoding: $input.response_content_encoding.as_deref(),
            content_language: $input.response_content_language.as_deref(),
            content_type: $input.response_content_type.as_deref(),
            expires: $input.response_expires.as_ref(),
        };
        (ask, overrides)
    }};
}

/// Reads an object.
pub async fn get_object(
    state: &State,
    request: S3Request<GetObjectInput>,
) -> S3Result<S3Response<GetObjectOutput>> {
    let input = &request.input;
    let (ask, overrides) = asked!(input);
    check_ask(&ask)?;
    overrides.check(&request)?;
    let target = target_of(&request, &input.key)?;
    let version = version_id_of(ask.version_id)?;
    let found = state.backend.get(target.clone(), version).await;
    let found = found.map_err(|error| read_error(&request, error))?;
    let asked = (&request.headers, &request.extensions);
    let opening = state.sealer.opening(asked, OWN, (&target, found.info))?;
    let mut answer = Answer::decide(&ask, &opening.info)?;
    add_part_checksums(state, &ask, (&target, &opening.info), &mut answer.headers).await?;
    opening.show(&mut answer.headers)?;
    answer.name_version(shown_version(bucket_of(&request)?, &opening.info))?;
    show_lock(&request, &input.key, &opening.info, &mut answer.headers)?;
    answer.show_expiry(state, &request, (&input.key, &ask, &opening.info))?;
    overrides.apply(&mut answer.headers)?;
    let content = Arc::from(state.sealer.content(&opening, found.content).await?);
    let download =
        Download::begin(content, answer.range.clone(), state.budget.clone(), state.claim_time);
    let output = GetObjectOutput {
        body: Some(StreamingBlob::new(download.await?)),
        content_length: Some(answer.len()),
        ..GetObjectOutput::default()
    };
    Ok(answer.respond(output))
}

/// Reads an object's facts.
pub async fn head_object(
    state: &State,
    request: S3Request<HeadObjectInput>,
) -> S3Result<S3Response<HeadObjectOutput>> {
    let input = &request.input;
    let (ask, overrides) = asked!(input);
    check_ask(&ask)?;
    overrides.check(&request)?;
    let target = target_of(&request, &input.key)?;
    let version = version_id_of(ask.version_id)?;
    let info = state.backend.head(target.clone(), version).await;
    let info = info.map_err(|error| read_error(&request, error))?;
    let asked = (&request.headers, &request.extensions);
    let opening = state.sealer.opening(asked, OWN, (&target, info))?;
    let mut answer = Answer::decide(&ask, &opening.info)?;
    add_part_checksums(state, &ask, (&target, &opening.info), &mut answer.headers).await?;
    opening.show(&mut answer.headers)?;
    answer.name_version(shown_version(bucket_of(&request)?, &opening.info))?;
    show_lock(&request, &input.key, &opening.info, &mut answer.headers)?;
    answer.show_expiry(state, &request, (&input.key, &ask, &opening.info))?;
    overrides.apply(&mut answer.headers)?;
    let output =
        HeadObjectOutput { content_length: Some(answer.len()), ..HeadObjectOutput::default() };
    Ok(answer.respond(output))
}

fn check_ask(ask: &Ask<'_>) -> S3Result<()> {
    if ask.part_number.is_some() && ask.range.is_some() {
        return Err(S3Error::with_message(
            S3ErrorCode::InvalidRequest,
            "Cannot specify both Range header and partNumber query parameter",
        ));
    }
    Ok(())
}

/// The head of an answer, and the part of the content.
struct Answer {
    range: Range<u64>,
    is_part: bool,
    headers: HeaderMap,
}

impl Answer {
    fn decide(ask: &Ask<'_>, info: &ObjectInfo) -> S3Result<Answer> {
        check_conditions(ask, info)?;
        let size = info.object.size;
        let part = part_of(ask, info)?;
        let is_part = part.is_some();
        let range = part.unwrap_or(0..size);
        let mut headers = facts_headers(info)?;
        if is_part && !range.is_empty() {
            let text = format!("bytes {}-{}/{size}", range.start, range.end - 1);
            headers.insert(CONTENT_RANGE, header_value(&text)?);
        }
        if let (Some(_), ObjectData::Parts(map)) = (ask.part_number, &info.object.data) {
            headers.insert(PARTS_COUNT, HeaderValue::from(map.count()));
        }
        let is_of_parts = matches!(info.object.data, ObjectData::Parts(_));
        if ask.wants_checksum() && range == (0..size) && !(is_of_parts && ask.part_number.is_some())
        {
            add_checksums(info, &info.object.facts.checksums, &mut headers)?;
        }
        let tags = info.object.facts.tags.iter().len();
        if tags > 0 {
            headers.insert(TAGGING_COUNT, HeaderValue::from(tags));
        }
        Ok(Answer { range, is_part, headers })
    }

    fn name_version(&mut self, version: Option<String>) -> S3Result<()> {
        if let Some(version) = version {
            self.headers.insert(VERSION_ID, header_value(&version)?);
        }
        Ok(())
    }

    /// Adds when the object expires: what is asked for by its version may be no current object.
    fn show_expiry<T>(
        &mut self,
        state: &State,
        request: &S3Request<T>,
        (key, ask, info): (&str, &Ask<'_>, &ObjectInfo),
    ) -> S3Result<()> {
        let of = (key, &info.object.facts.tags, info.object.size);
        let expiry = match ask.version_id {
            None => show_expiry(state, request, of, info.stamp)?,
            Some(_) => None,
        };
        if let Some(expiry) = expiry {
            self.headers.insert(EXPIRATION, header_value(&expiry)?);
        }
        Ok(())
    }

    fn len(&self) -> i64 {
        i64::try_from(self.range.end - self.range.start).unwrap_or(i64::MAX)
    }

    fn respond<T>(self, output: T) -> S3Response<T> {
        let mut response = S3Response::with_headers(output, self.headers);
        if self.is_part {
            response.extensions.insert(PartOnly);
        }
        response
    }
}

/// The part of the content that is asked for; `None` for all of it.
fn part_of(ask: &Ask<'_>, info: &ObjectInfo) -> S3Result<Option<Range<u64>>> {
    let size = info.object.size;
    if let Some(number) = ask.part_number {
        let number = part_number_of(number)?;
        let part = match &info.object.data {
            ObjectData::Parts(map) => map.range(number).map(Some),
            _ if number.get() == 1 => Some((size > 0).then_some(0..size)),
            _ => None,
        };
        return part.ok_or_else(|| {
            coded(
                "InvalidPartNumber",
                StatusCode::RANGE_NOT_SATISFIABLE,
                "The requested partnumber is not satisfiable",
            )
        });
    }
    let Some(range) = ask.range else { return Ok(None) };
    let part = range.check(size).ok().filter(|part| !part.is_empty());
    part.map(Some).ok_or_else(|| {
        let mut error = S3Error::with_message(
            S3ErrorCode::InvalidRange,
            "The requested range is not satisfiable",
        );
        if let Ok(value) = HeaderValue::from_str(&format!("bytes */{size}")) {
            error.set_headers(HeaderMap::from_iter([
                (CONTENT_RANGE, value),
                (CONTENT_TYPE, HeaderValue::from_static("application/xml")),
            ]));
        }
        error
    })
}

/// Conditions hold, or the answer says which do not.
fn check_conditions(ask: &Ask<'_>, info: &ObjectInfo) -> S3Result<()> {
    match ask.conditions.decide(info) {
        Verdict::Holds => Ok(()),
        Verdict::Failed => Err(precondition_failed()),
        Verdict::NotModified => {
            let mut error = S3Error::new(S3ErrorCode::NotModified);
            error.set_headers(facts_headers(info)?);
            Err(error)
        }
    }
}

/// Headers of every answer on an object that is there.
fn facts_headers(info: &ObjectInfo) -> S3Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    let facts = &info.object.facts;
    let etag = ETag::Strong(facts.etag.as_str().to_owned());
    headers.insert(ETAG, etag.to_http_header().map_err(S3Error::internal_error)?);
    headers.insert(LAST_MODIFIED, http_date(&modified(info.stamp))?);
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(DEFAULT_TYPE));
    for (name, value) in facts.metadata.iter() {
        if SYSTEM_HEADERS.contains(&name) {
            headers.insert(header_name(name)?, header_value(value)?);
        } else if name.starts_with(Metadata::USER_PREFIX) {
            headers.insert(header_name(name)?, header_value(&encoded_word(value))?);
        }
    }
    Ok(headers)
}

/// A user's value as S3 shows it: with RFC 2047 where it is not ASCII.
fn encoded_word(value: &str) -> String {
    let is_plain = |c: char| c.is_ascii() && !c.is_ascii_control();
    match value.chars().all(is_plain) {
        true => value.to_owned(),
        false => format!("=?UTF-8?B?{}?=", crate::base64::encode(value.as_bytes())),
    }
}

/// Checksums of an object or of a part of it, with the type that the object's have.
fn add_checksums(
    info: &ObjectInfo,
    checksums: &[Checksum],
    headers: &mut HeaderMap,
) -> S3Result<()> {
    let is_composite = info.object.facts.checksums.iter().any(|checksum| checksum.parts > 0);
    let kind = if is_composite { ChecksumType::COMPOSITE } else { ChecksumType::FULL_OBJECT };
    for checksum in checksums {
        let name = crate::digest::header_of(checksum.kind);
        headers.insert(name, header_value(&text_of(checksum))?);
        let name = HeaderName::from_static("x-amz-checksum-type");
        headers.insert(name, HeaderValue::from_static(kind));
    }
    Ok(())
}

/// Checksums of the part that is asked for by its number.
async fn add_part_checksums(
    state: &State,
    ask: &Ask<'_>,
    (target, info): (&Target, &ObjectInfo),
    headers: &mut HeaderMap,
) -> S3Result<()> {
    let (Some(number), ObjectData::Parts(map)) = (ask.part_number, &info.object.data) else {
        return Ok(());
    };
    if !ask.wants_checksum() || info.object.facts.checksums.is_empty() {
        return Ok(());
    }
    let number = part_number_of(number)?;
    let of = part_checksums(state, target, map, (number.get() - 1, 1)).await?;
    match of.get(&number) {
        Some(checksums) => add_checksums(info, checksums, headers),
        None => Ok(()),
    }
}

/// Headers that the query gives other values, with GET and HEAD.
struct Overrides<'a> {
    cache_control: Option<&'a str>,
    content_disposition: Option<&'a str>,
    content_encoding: Option<&'a str>,
    content_language: Option<&'a str>,
    content_type: Option<&'a str>,
    expires: Option<&'a Timestamp>,
}

impl Overrides<'_> {
    /// Else all who may put what is public could have it served as a page of the gateway's origin.
    fn check<T>(&self, request: &S3Request<T>) -> S3Result<()> {
        let texts = [
            self.cache_control,
            self.content_disposition,
            self.content_encoding,
            self.content_language,
            self.content_type,
        ];
        let is_asked = texts.iter().any(Option::is_some) || self.expires.is_some();
        match is_asked && rights_of(request)?.user().is_none() {
            false => Ok(()),
            true => Err(S3Error::with_message(
                S3ErrorCode::InvalidRequest,
                "Request specific response headers cannot be used for anonymous GET requests.",
            )),
        }
    }

    fn apply(&self, headers: &mut HeaderMap) -> S3Result<()> {
        let texts = [
            (CACHE_CONTROL, self.cache_control),
            (CONTENT_DISPOSITION, self.content_disposition),
            (CONTENT_ENCODING, self.content_encoding),
            (CONTENT_LANGUAGE, self.content_language),
            (CONTENT_TYPE, self.content_type),
        ];
        for (name, value) in texts {
            if let Some(value) = value {
                headers.insert(name, header_value(value)?);
            }
        }
        if let Some(time) = self.expires {
            headers.insert(EXPIRES, http_date(time)?);
        }
        Ok(())
    }
}

fn http_date(time: &Timestamp) -> S3Result<HeaderValue> {
    let mut text = Vec::new();
    time.format(TimestampFormat::HttpDate, &mut text).map_err(S3Error::internal_error)?;
    HeaderValue::from_bytes(&text).map_err(S3Error::internal_error)
}

fn header_name(name: &str) -> S3Result<HeaderName> {
    HeaderName::from_bytes(name.as_bytes()).map_err(S3Error::internal_error)
}

fn header_value(value: &str) -> S3Result<HeaderValue> {
    HeaderValue::from_str(value).map_err(|_| {
        S3Error::with_message(S3ErrorCode::InvalidArgument, "A header's value is not valid")
    })
}
