//! PutObject, and what its headers have in common with those of other operations.

use std::collections::BTreeMap;

use http::header::{HeaderMap, HeaderName, IF_MATCH, IF_NONE_MATCH};
use object_proto::{CallId, ChecksumKind, Conditions, Etag, Metadata, ObjectFacts, Tags, UserId};
use s3s::crypto::{Checksum as _, Sha256};
use s3s::dto::{ChecksumType, ETag, ETagCondition, PutObjectInput, PutObjectOutput};
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

use super::call::invocation_of;
use super::lifecycle::show_expiry;
use super::object_acl::acl_of_new;
use super::object_lock::{check_digest, lock_of_new};
use super::receive::Sent;
use super::settings::settings_of;
use super::state::{State, made_version, owner_of, rights_of, target_of};
use super::tags::tags_of;
use super::wishes::check_features;
use crate::errors::s3_error;
use crate::quota::{check_room, check_room_now};

/// Headers of an object, apart from its user's.
pub const SYSTEM_HEADERS: [&str; 6] = [
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-type",
    "expires",
];

/// Puts an object.
pub async fn put_object(
    state: &State,
    mut request: S3Request<PutObjectInput>,
) -> S3Result<S3Response<PutObjectOutput>> {
    check_features(&request.headers)?;
    let target = target_of(&request, &request.input.key)?;
    let body = request.input.body.take();
    let sent = Sent::of(&request, body)?;
    let metadata = metadata_of(&request.headers, request.input.metadata.as_ref())?;
    let tags = tags_of(&request.headers)?;
    let conditions =
        conditions_of(request.input.if_match.as_ref(), request.input.if_none_match.as_ref());
    let owner = owner_of(&request)?;
    let acl = acl_of_new(state, &request, &owner).await?;
    let lock = lock_of_new(&request)?;
    check_digest(&request, (lock, &sent), "Put Object")?;
    let len = sent.len();
    // One byte at least, where the length is not known before.
    check_room(&request, 1, len.unwrap_or(1))?;

    let ask = (&request.headers, &request.extensions);
    let by_default = &settings_of(&request)?.encryption;
    let sealing = state.sealer.of_new(ask, by_default, &target).await?;

    let plan = sealing.plan(sent.len(), settings_of(&request)?);
    let upload = state.backend.put(target, plan).await.map_err(s3_error)?;
    let mut upload = sealing.upload(upload, 0)?;
    let kind = sent.kind().unwrap_or(ChecksumKind::Crc64Nvme);
    let found = sent.receive(kind, &mut *upload).await?;
    check_room_now(&*state.backend, &request, 1, found.len).await?;

    let mut facts = ObjectFacts {
        etag: found.etag(),
        checksums: vec![found.checksum.clone()],
        metadata,
        tags,
        owner,
        acl,
        lock,
        encryption: sealing.envelope(),
    };
    let conditions = of_call(conditions, &request, &facts)?;
    let tags = facts.tags.clone();
    facts.etag = sealing.etag(&found, &request.headers);
    let etag = ETag::Strong(facts.etag.as_str().to_owned());
    let committed = upload.commit(facts, conditions).await.map_err(s3_error)?;
    let mut output = PutObjectOutput {
        e_tag: Some(etag),
        checksum_type: Some(ChecksumType::from_static(ChecksumType::FULL_OBJECT)),
        version_id: made_version(&committed),
        expiration: show_expiry(
            state,
            &request,
            (&request.input.key, &tags, found.len),
            committed.stamp,
        )?,
        ..PutObjectOutput::default()
    };
    show_checksums!(output, [&found.checksum]);
    Ok(S3Response::with_headers(output, sealing.headers()?))
}

/// Conditions with the call that a request is an attempt at: a client that repeats a create whose answer was
/// lost does not lose to itself (`object-protocols.md` 6.4). Another user, or other content, is another call.
///
/// The user is the one that asks: where ACLs are off, the object's owner is the same for all users.
pub fn of_call<T>(
    conditions: Conditions,
    request: &S3Request<T>,
    facts: &ObjectFacts,
) -> S3Result<Conditions> {
    let caller = rights_of(request)?.id();
    Ok(of_call_by(&caller, conditions, &request.headers, facts))
}

fn of_call_by(
    caller: &UserId,
    conditions: Conditions,
    headers: &HeaderMap,
    facts: &ObjectFacts,
) -> Conditions {
    let Some(id) = invocation_of(headers) else { return conditions };
    if conditions.is_empty() {
        return conditions;
    }
    let mut hash = Sha256::new();
    let mut add = |field: &[u8]| {
        hash.update(&(field.len() as u64).to_le_bytes());
        hash.update(field);
    };
    add(id);
    add(caller.as_str().as_bytes());
    add(facts.etag.as_str().as_bytes());
    for checksum in &facts.checksums {
        add(&checksum.value);
    }
    let digest = hash.finalize();
    let (call, _) = digest.split_first_chunk().expect("a SHA-256 has 32 bytes");
    Conditions { call: Some(CallId::new(u128::from_le_bytes(*call))), ..conditions }
}

/// Headers that the object is served with.
pub fn metadata_of(headers: &HeaderMap, users: Option<&s3s::dto::Metadata>) -> S3Result<Metadata> {
    let mut all = BTreeMap::new();
    for name in SYSTEM_HEADERS {
        let values = headers.get_all(name).iter();
        let values: Vec<&str> = values.filter_map(|value| value.to_str().ok()).collect();
        let value = match name {
            "content-encoding" => without_aws_chunked(&values),
            _ => values.join(","),
        };
        if !value.is_empty() {
            all.insert(name.to_owned(), value);
        }
    }
    // s3s has decoded what is not ASCII.
    for (name, value) in users.into_iter().flatten() {
        all.insert(format!("{}{name}", Metadata::USER_PREFIX), value.clone());
    }
    Metadata::new(all).map_err(|_| {
        S3Error::with_message(
            S3ErrorCode::MetadataTooLarge,
            "Your metadata headers exceed the maximum allowed metadata size",
        )
    })
}

/// `aws-chunked` is how the body was sent, not how the content is encoded.
fn without_aws_chunked(values: &[&str]) -> String {
    let all = values.join(",");
    let kept = all.split(',').filter(|encoding| {
        !encoding.trim().is_empty() && !encoding.trim().eq_ignore_ascii_case("aws-chunked")
    });
    // With the spaces that were sent.
    kept.collect::<Vec<_>>().join(",").trim().to_owned()
}

/// Conditions on the object that is there.
pub fn conditions_of(
    if_match: Option<&ETagCondition>,
    if_none_match: Option<&ETagCondition>,
) -> Conditions {
    let tags = |condition: &ETagCondition| match condition {
        ETagCondition::Any => Tags::Any,
        ETagCondition::ETag(tag) => Tags::Of(vec![Etag::new(tag.value())]),
    };
    Conditions {
        if_match: if_match.map(tags),
        if_none_match: if_none_match.map(tags),
        ..Conditions::default()
    }
}

/// The same from headers, where s3s does not read them.
pub fn conditions_of_headers(headers: &HeaderMap) -> S3Result<Conditions> {
    let condition = |name: HeaderName| {
        let mut values = headers.get_all(&name).iter().filter(|value| !value.is_empty());
        let (first, second) = (values.next(), values.next());
        let tag = first.map(|value| ETagCondition::parse_http_header(value.as_bytes()));
        match (tag.transpose(), second) {
            (Ok(condition), None) => Ok(condition),
            _ => {
                let message = format!("{name} is not one tag.");
                Err(S3Error::with_message(S3ErrorCode::InvalidArgument, message))
            }
        }
    };
    let (if_match, if_none_match) = (condition(IF_MATCH)?, condition(IF_NONE_MATCH)?);
    Ok(conditions_of(if_match.as_ref(), if_none_match.as_ref()))
}

#[cfg(test)]
mod tests {
    use super::super::call::{INVOCATION_ID, INVOCATION_ID_MAX};
    use super::*;

    #[test]
    fn an_encoding_is_kept_as_it_was_sent_without_that_of_the_body() {
        for (sent, kept) in [
            (&["deflate, gzip"][..], "deflate, gzip"),
            (&["deflate,gzip"], "deflate,gzip"),
            (&["gzip, aws-chunked"], "gzip"),
            (&["aws-chunked, deflate, gzip"], "deflate, gzip"),
            (&["aws-chunked, AWS-chunked", ""], ""),
            (&["gzip", "aws-chunked", "br"], "gzip,br"),
        ] {
            assert_eq!(without_aws_chunked(sent), kept, "{sent:?}");
        }
    }

    #[test]
    fn a_call_is_known_by_its_id_user_and_content() {
        let facts = |etag: &str| ObjectFacts {
            etag: Etag::new(etag),
            owner: UserId::new("the bucket's"),
            ..ObjectFacts::default()
        };
        let call = |conditions: Conditions, id: &str, user: &str, etag: &str| {
            let value = id.parse().expect("a header's value");
            let headers = HeaderMap::from_iter([(HeaderName::from_static(INVOCATION_ID), value)]);
            of_call_by(&UserId::new(user), conditions, &headers, &facts(etag)).call
        };
        let create = || Conditions { if_none_match: Some(Tags::Any), ..Conditions::default() };
        let first = call(create(), "id", "me", "tag");
        assert!(first.is_some());
        assert_eq!(call(create(), "id", "me", "tag"), first);
        for (id, user, etag) in [
            ("other", "me", "tag"),
            ("id", "you", "tag"),
            ("id", "me", "other"),
            ("idm", "e", "tag"),
        ] {
            assert_ne!(call(create(), id, user, etag), first, "{id} {user} {etag}");
        }
        assert_eq!(call(Conditions::default(), "id", "me", "tag"), None);
        for id in ["", &"x".repeat(INVOCATION_ID_MAX + 1)] {
            assert_eq!(call(create(), id, "me", "tag"), None);
        }
        let me = UserId::new("me");
        assert_eq!(of_call_by(&me, create(), &HeaderMap::new(), &facts("tag")), create());
    }
}
