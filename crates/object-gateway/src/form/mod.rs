//! [`Forms`]: objects that browsers put by a form (`POST` on a bucket with `multipart/form-data`).
//! The fields become the headers of a PUT, and the file its content, as it comes in.
//!
//! s3s has an operation for them, which is not used: it asks for access before it knows the key,
//! with the whole file in memory, and has neither `${filename}` nor tags.

mod answer;
mod fields;
mod file;
mod headers;
mod policy;

use std::sync::Arc;

use futures_util::future::poll_fn;
use http::header::{CONTENT_TYPE, EXPECT, HOST, HeaderMap};
use http::request::Parts;
use http::{Response, Uri};
use hyper::body::Incoming;
use s3s::dto::{PutObjectInput, PutObjectOutput, StreamingBlob};
use s3s::{Body, S3Request, S3Response, S3Result};

use crate::auth::Access;
use crate::body::{BodyTimes, busy, stalled};
use crate::budget::Budget;
use crate::clock;
use crate::context::RequestContext;
use crate::dialect::{State, put_object};
use crate::errors::{internal, refused};
use crate::facts::{Client, Facts, FormSignature};
use crate::limits::{FORM_FIELDS_MAX, PUT_BUFFER};
use crate::reply::{Refusal, Target};
use crate::requests::Note;
use crate::rights::{Place, Rights};
use answer::Answer;
use fields::{Fields, Reader, boundary_of};
use file::{FormBody, FormFile, too_large};
use policy::{BOUNDS, Signature, missing};

/// The way in of forms.
pub struct Forms {
    /// What a put stands on.
    pub state: State,
    /// Access keys, and who may.
    pub access: Access,
    /// Memory for bodies.
    pub budget: Budget,
    /// Time limits of bodies.
    pub times: BodyTimes,
    /// Signatures of version 2 are taken.
    pub allow_v2: bool,
}

/// Who sent a form, and how long its file may be.
struct Signed {
    rights: Rights,
    signature: FormSignature,
    bounds: (u64, u64),
}

impl Forms {
    /// Answers a form of `len` bytes whose head was checked.
    pub async fn serve(
        &self,
        (parts, incoming): (Parts, Incoming),
        target: Target<'_>,
        len: u64,
        (context, note): (Arc<RequestContext>, Arc<Note>),
    ) -> Response<Body> {
        note.is("PostObject");
        let waits = parts.headers.contains_key(EXPECT);
        let body = FormBody::new(incoming, self.times.stall, (context, note.clone()), waits);
        let answer = self.answer((&parts, body), target, len, &note).await;
        let answer = answer.or_else(s3s::S3Error::to_http_response);
        answer.unwrap_or_else(|_| Refusal::new("InternalError", "The form was refused.").response())
    }

    async fn answer(
        &self,
        (parts, mut body): (&Parts, FormBody),
        target: Target<'_>,
        len: u64,
        note: &Note,
    ) -> S3Result<Response<Body>> {
        let bucket = bucket_of(target).map_err(refused)?;
        let kind = parts.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let boundary = boundary_of(kind.unwrap_or_default()).map_err(refused)?;
        let mut reader = Reader::new(&boundary);
        // Nothing is known of the client yet: it has the time of one pause for all fields.
        let read =
            tokio::time::timeout(self.times.stall, read_fields(&mut body, &mut reader)).await;
        let (fields, first, read) = read.unwrap_or_else(|_| Err(stalled())).map_err(refused)?;

        let signed = self.signed(&fields, &bucket).await?;
        note.asks("PostObject", signed.rights.key());
        let key = fields.get("key").filter(|key| !key.is_empty());
        let key = key.ok_or_else(|| refused(missing("key")))?;
        let headers = headers::of(&fields, &parts.headers)?;
        let client = parts.extensions.get::<Client>().copied();
        let place = self.place(&signed, (&bucket, key), &headers, client).await?;

        let left = len.saturating_sub(read) + first.len() as u64;
        let bounds = signed.bounds;
        if left > bounds.1.saturating_add(FORM_FIELDS_MAX as u64) {
            return Err(refused(too_large()));
        }
        let window = usize::try_from(left).unwrap_or(usize::MAX).min(PUT_BUFFER);
        let claim = self.budget.claim(window, self.times.claim).await;
        let claim = claim.ok_or_else(|| refused(busy()))?;
        let context = Arc::new(RequestContext::up_to(left.min(BOUNDS.1)));
        let file = FormFile::new((body, first), &boundary, bounds, context.clone(), claim);

        let scheme = client.map_or("http", Client::scheme);
        let target = (target, parts.headers.get(HOST), scheme);
        let answer = Answer::of(&fields, (&bucket, key), target);
        let mut request = put_of(key, headers, &fields, file)?;
        request.extensions.insert(context);
        request.extensions.insert(place);
        request.extensions.insert(signed.rights);
        if let Some(client) = client {
            request.extensions.insert(client);
        }
        let S3Response { output, headers, .. }: S3Response<PutObjectOutput> =
            put_object(&self.state, request).await?;
        let mut response = answer.written(&output)?;
        response.headers_mut().extend(headers);
        Ok(response)
    }

    /// Checks signature and policy, if there are any.
    async fn signed(&self, fields: &Fields, bucket: &str) -> S3Result<Signed> {
        let signature = Signature::of(fields, self.allow_v2).map_err(refused)?;
        let Some((signature, policy)) = signature else {
            let signature = FormSignature::None;
            return Ok(Signed { rights: Rights::new(None), signature, bounds: BOUNDS });
        };
        let known = self.access.keys.find(signature.key()).await?;
        signature.verify(policy, known.secret.expose()).map_err(refused)?;
        let now = clock::unix_seconds();
        let bounds = policy::check(policy, (fields, bucket), now).map_err(refused)?;
        let signature = match signature {
            Signature::V4 { .. } => FormSignature::V4,
            Signature::V2 { .. } => FormSignature::V2,
        };
        Ok(Signed { rights: Rights::new(Some(known)), signature, bounds })
    }

    /// The bucket, if the form may put that key there.
    async fn place(
        &self,
        signed: &Signed,
        (bucket, key): (&str, &str),
        headers: &HeaderMap,
        client: Option<Client>,
    ) -> S3Result<Place> {
        let expected = headers.get("x-amz-expected-bucket-owner");
        let place = self.access.places.find(bucket, expected).await?;
        let mut facts = Facts::new(headers, &Uri::default(), client);
        facts.form = Some(signed.signature);
        let at = (&*place, Some(key));
        self.access.check_in(&signed.rights, "PostObject", at, facts).await?;
        Ok(Place(place))
    }
}

/// The bucket that a form is for: its path is that of no key.
fn bucket_of(target: Target<'_>) -> Result<String, Refusal> {
    let (bucket, key) = target.names();
    match bucket.is_empty() || !key.is_empty() {
        true => Err(Refusal::new(
            "MethodNotAllowed",
            "The specified method is not allowed against this resource.",
        )),
        false => Ok(bucket),
    }
}

/// Reads up to the file: fields, its first bytes, and how many bytes were read.
async fn read_fields(
    body: &mut FormBody,
    reader: &mut Reader,
) -> Result<(Fields, bytes::Bytes, u64), Refusal> {
    let mut read = 0;
    loop {
        let data = poll_fn(|cx| body.poll_data(cx)).await.ok_or_else(fields::malformed)??;
        read += data.len() as u64;
        if let Some((fields, first)) = reader.feed(&data)? {
            return Ok((fields, first, read));
        }
    }
}

/// The PUT that does what a form asks for.
fn put_of(
    key: &str,
    headers: HeaderMap,
    fields: &Fields,
    file: FormFile,
) -> S3Result<S3Request<PutObjectInput>> {
    let condition = |name: &str| headers::condition_of(&headers, name);
    let mut input = PutObjectInput::builder();
    input.set_bucket(String::new());
    input.set_key(key.to_owned());
    input.set_body(Some(StreamingBlob::wrap(file)));
    input.set_metadata(Some(headers::users_of(fields)?));
    input.set_if_match(condition("if-match")?);
    input.set_if_none_match(condition("if-none-match")?);
    let input = input.build().map_err(|_| internal())?;
    Ok(S3Request {
        input,
        method: http::Method::PUT,
        uri: Uri::default(),
        headers,
        extensions: http::Extensions::new(),
        credentials: None,
        region: None,
        service: None,
        trailing_headers: None,
    })
}
