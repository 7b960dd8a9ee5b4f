//! ListObjects and ListObjectsV2.

use object_proto::{BucketId, ListPage, ListRequest, Listed, ObjectInfo};
use s3s::dto::{
    ChecksumAlgorithm, CommonPrefix, ETag, EncodingType, ListObjectsInput, ListObjectsOutput,
    ListObjectsV2Input, ListObjectsV2Output, Object, ObjectStorageClass,
};
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

use super::state::{Lister, State, bucket_of, checksum_type, count_of, modified, shown_size};
use crate::base64;
use crate::digest::name_of;
use crate::errors::s3_error;
use crate::query;

/// Lists objects, with a marker.
pub async fn list_objects(
    state: &State,
    request: S3Request<ListObjectsInput>,
) -> S3Result<S3Response<ListObjectsOutput>> {
    let bucket = bucket_of(&request)?.clone();
    let lister = Lister::of(&request)?;
    let input = request.input;
    let text = Text::of(input.encoding_type.as_ref())?;
    let delimiter = input.delimiter.filter(|delimiter| !delimiter.is_empty());
    let ask = Ask {
        bucket: bucket.id,
        prefix: input.prefix.clone().unwrap_or_default(),
        delimiter: delimiter.clone().unwrap_or_default(),
        after: input.marker.clone().unwrap_or_default(),
        keys_max: count_of(input.max_keys, "max-keys")?,
    };
    // A client goes on behind the last key of a page: one without keys would end its listing.
    let page = ask.page(state, 1).await?;
    let last = page.entries.last().map(Listed::name);
    // S3 names the next marker with a delimiter only; clients take the last key else.
    let next_marker = page.next.as_deref();
    let next_marker = next_marker.filter(|next| delimiter.is_some() || last != Some(*next));
    let next_marker = next_marker.map(|next| text.of_name(next));
    let is_truncated = page.next.is_some();
    let shown = Shown::of(page, text, Some(&lister));
    Ok(S3Response::new(ListObjectsOutput {
        name: Some(bucket.name.as_str().to_owned()),
        prefix: Some(text.of_name(&ask.prefix)),
        marker: Some(text.of_name(&ask.after)),
        max_keys: Some(ask.keys_max.cast_signed()),
        is_truncated: Some(is_truncated),
        contents: Some(shown.objects),
        common_prefixes: Some(shown.prefixes),
        delimiter: delimiter.map(|delimiter| text.of_name(&delimiter)),
        next_marker,
        encoding_type: input.encoding_type,
        ..ListObjectsOutput::default()
    }))
}

/// Lists objects, with a token.
pub async fn list_objects_v2(
    state: &State,
    request: S3Request<ListObjectsV2Input>,
) -> S3Result<S3Response<ListObjectsV2Output>> {
    let bucket = bucket_of(&request)?.clone();
    let lister = Lister::of(&request)?;
    let input = request.input;
    let text = Text::of(input.encoding_type.as_ref())?;
    let delimiter = input.delimiter.filter(|delimiter| !delimiter.is_empty());
    let after = match &input.continuation_token {
        Some(token) => after_of(token)?,
        None => input.start_after.clone().unwrap_or_default(),
    };
    let ask = Ask {
        bucket: bucket.id,
        prefix: input.prefix.clone().unwrap_or_default(),
        delimiter: delimiter.clone().unwrap_or_default(),
        after,
        keys_max: count_of(input.max_keys, "max-keys")?,
    };
    let page = ask.page(state, 0).await?;
    let next_token = page.next.as_deref().map(token_of);
    let key_count = i32::try_from(page.entries.len()).unwrap_or(i32::MAX);
    let with_owner = input.fetch_owner == Some(true);
    let shown = Shown::of(page, text, with_owner.then_some(&lister));
    Ok(S3Response::new(ListObjectsV2Output {
        name: Some(bucket.name.as_str().to_owned()),
        prefix: Some(text.of_name(&ask.prefix)),
        max_keys: Some(ask.keys_max.cast_signed()),
        key_count: Some(key_count),
        continuation_token: input.continuation_token,
        is_truncated: Some(next_token.is_some()),
        next_continuation_token: next_token,
        contents: Some(shown.objects),
        common_prefixes: Some(shown.prefixes),
        delimiter: delimiter.map(|delimiter| text.of_name(&delimiter)),
        encoding_type: input.encoding_type,
        start_after: input.start_after.map(|after| text.of_name(&after)),
        ..ListObjectsV2Output::default()
    }))
}

/// What both versions ask the backend for.
struct Ask {
    bucket: BucketId,
    prefix: String,
    delimiter: String,
    after: String,
    keys_max: u32,
}

impl Ask {
    /// A page, of `entries_min` entries at least where so many are left: a backend may answer a
    /// short one.
    async fn page(&self, state: &State, entries_min: usize) -> S3Result<ListPage> {
        if self.keys_max == 0 {
            return Ok(ListPage::default());
        }
        let mut after = self.after.clone();
        loop {
            let ask = ListRequest {
                bucket: self.bucket,
                prefix: self.prefix.clone(),
                delimiter: self.delimiter.clone(),
                after,
                limit: self.keys_max,
            };
            let page = state.backend.list(ask).await.map_err(s3_error)?;
            match &page.next {
                Some(next) if page.entries.len() < entries_min => after = next.clone(),
                _ => return Ok(page),
            }
        }
    }
}

/// Token of a page's end. It hides the key's characters from XML, and clients must not look into
/// it.
fn token_of(next: &str) -> String {
    base64::encode(next.as_bytes())
}

fn after_of(token: &str) -> S3Result<String> {
    let bytes = base64::decode(token).filter(|bytes| !bytes.is_empty());
    bytes.and_then(|bytes| String::from_utf8(bytes).ok()).ok_or_else(|| {
        let message = "The continuation token provided is incorrect";
        S3Error::with_message(S3ErrorCode::InvalidArgument, message)
    })
}

/// How names are written.
#[derive(Clone, Copy)]
pub enum Text {
    /// As they are.
    Plain,
    /// Percent-encoded.
    Url,
}

impl Text {
    /// As a request wants them.
    pub fn of(encoding: Option<&EncodingType>) -> S3Result<Text> {
        match encoding.map(EncodingType::as_str) {
            None | Some("") => Ok(Text::Plain),
            Some(EncodingType::URL) => Ok(Text::Url),
            Some(_) => Err(S3Error::with_message(
                S3ErrorCode::InvalidArgument,
                "Invalid Encoding Method specified in Request",
            )),
        }
    }

    /// A name.
    pub fn of_name(self, name: &str) -> String {
        match self {
            Text::Plain => name.to_owned(),
            Text::Url => query::encode(name),
        }
    }
}

/// A page as S3 shows it.
#[derive(Default)]
struct Shown {
    objects: Vec<Object>,
    prefixes: Vec<CommonPrefix>,
}

impl Shown {
    /// With owners, where they are asked for.
    fn of(page: ListPage, text: Text, lister: Option<&Lister>) -> Shown {
        let mut shown = Shown::default();
        for entry in page.entries {
            match entry {
                Listed::Object { key, info } => {
                    shown.objects.push(object(text.of_name(key.as_str()), &info, lister));
                }
                Listed::Prefix(prefix) => {
                    let prefix = Some(text.of_name(&prefix));
                    shown.prefixes.push(CommonPrefix { prefix });
                }
            }
        }
        shown
    }
}

fn object(key: String, info: &ObjectInfo, lister: Option<&Lister>) -> Object {
    let facts = &info.object.facts;
    let algorithms = facts.checksums.iter();
    let algorithms: Vec<_> =
        algorithms.map(|checksum| ChecksumAlgorithm::from_static(name_of(checksum.kind))).collect();
    let kind = facts.checksums.first().map(|checksum| checksum_type(checksum.parts > 0));
    let owner = lister.map(|lister| lister.owner(&facts.owner));
    Object {
        key: Some(key),
        last_modified: Some(modified(info.stamp)),
        e_tag: Some(ETag::Strong(facts.etag.as_str().to_owned())),
        size: Some(shown_size(&info.object)),
        storage_class: Some(ObjectStorageClass::from_static(ObjectStorageClass::STANDARD)),
        checksum_algorithm: (!algorithms.is_empty()).then_some(algorithms),
        checksum_type: kind,
        owner,
        ..Object::default()
    }
}
