//! [`Sent`]: a content that a request sends, on its way to the backend.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt;
use object_proto::limits::PUT_MAX;
use object_proto::{ChecksumKind, Upload};
use s3s::dto::StreamingBlob;
use s3s::{S3Error, S3ErrorCode, S3Request, S3Result, StdError, TrailingHeaders};

use super::state::context_of;
use crate::context::RequestContext;
use crate::digest::{Digest, Expected, Found};
use crate::errors::{refused, s3_error};
use crate::limits::PUT_BUFFER;
use crate::payload::{Payload, sha256_mismatch};
use crate::reply::Refusal;

/// A content that a request sends: an object's or a part's.
pub struct Sent {
    /// Bytes, at most where they are not counted before.
    len_max: u64,
    expected: Expected,
    /// What s3s does not compare.
    payload: Option<Payload>,
    body: Option<StreamingBlob>,
    trailers: Option<TrailingHeaders>,
    context: Arc<RequestContext>,
}

impl Sent {
    /// The content of a request, whose body was taken from its input. Nothing of it is read yet.
    pub fn of<T>(request: &S3Request<T>, body: Option<StreamingBlob>) -> S3Result<Sent> {
        let context = context_of(request)?.clone();
        let len = context.content_len();
        let len = len.ok_or_else(|| S3Error::new(S3ErrorCode::MissingContentLength))?;
        if len > PUT_MAX {
            return Err(S3Error::with_message(
                S3ErrorCode::EntityTooLarge,
                "Your proposed upload exceeds the maximum allowed size",
            ));
        }
        let expected = Expected::of(&request.headers).map_err(refused)?;
        let is_compared = context.is_signed_by_v4();
        let payload = Payload::of(&request.headers, len).filter(|_| !is_compared);
        Ok(Sent {
            len_max: len,
            expected,
            payload,
            body,
            trailers: request.trailing_headers.clone(),
            context,
        })
    }

    /// Bytes, if they are known.
    pub fn len(&self) -> Option<u64> {
        (!self.context.is_bound()).then_some(self.len_max)
    }

    /// The algorithm of the checksum that is sent with it.
    pub fn kind(&self) -> Option<ChecksumKind> {
        self.expected.kind()
    }

    /// A digest of it is sent with it.
    pub fn has_digest(&self) -> bool {
        self.expected.is_given()
    }

    /// Sends the content to the upload, in pieces, digests it, and compares with what the request
    /// says of it.
    pub async fn receive(mut self, kind: ChecksumKind, upload: &mut dyn Upload) -> S3Result<Found> {
        self.context.begin_content();
        let found = self.transfer(Digest::new(kind), upload).await?;
        let trailers = match &self.trailers {
            Some(trailers) => trailers.take(),
            None => self.context.take_trailers(),
        };
        self.expected.take_trailers(trailers.as_ref()).map_err(refused)?;
        self.expected.check(&found).map_err(refused)?;
        Ok(found)
    }

    async fn transfer(&mut self, mut digest: Digest, upload: &mut dyn Upload) -> S3Result<Found> {
        let len = self.len_max;
        let incomplete = || {
            S3Error::with_message(
                S3ErrorCode::IncompleteBody,
                "The request body does not have the length that its headers say",
            )
        };
        let capacity = usize::try_from(len).unwrap_or(PUT_BUFFER).min(PUT_BUFFER);
        let mut buffer = Vec::with_capacity(capacity);
        let mut received = 0u64;
        while let Some(body) = &mut self.body
            && let Some(data) = body.next().await
        {
            let mut data: Bytes = data.map_err(|error| body_error(&error, &self.context))?;
            received += data.len() as u64;
            if received > len {
                return Err(incomplete());
            }
            digest.update(&data);
            if let Some(payload) = &mut self.payload {
                payload.receive(&data).map_err(refused)?;
            }
            while !data.is_empty() {
                let part = data.split_to(data.len().min(PUT_BUFFER - buffer.len()));
                buffer.extend_from_slice(&part);
                if buffer.len() == PUT_BUFFER {
                    let left = len - received + data.len() as u64;
                    let capacity = usize::try_from(left).unwrap_or(PUT_BUFFER).min(PUT_BUFFER);
                    let full = std::mem::replace(&mut buffer, Vec::with_capacity(capacity));
                    upload.write(full).await.map_err(s3_error)?;
                }
            }
        }
        if self.len().is_some_and(|len| received != len) {
            return Err(incomplete());
        }
        if let Some(payload) = &mut self.payload {
            payload.receive(&[]).map_err(refused)?; // Of an empty body nothing else was compared.
        }
        if !buffer.is_empty() {
            upload.write(buffer).await.map_err(s3_error)?;
        }
        Ok(digest.finish())
    }
}

/// Why a body ended: what its guard noted, or what s3s found. s3s shows its causes as text only.
fn body_error(error: &StdError, context: &RequestContext) -> S3Error {
    if let Some(refusal) = context.failure() {
        return refused(refusal);
    }
    let text = error.to_string();
    let refusal = match text.rsplit(": ").next().unwrap_or_default() {
        "Sha256Mismatch" => sha256_mismatch(),
        "SignatureMismatch" => Refusal::new(
            "SignatureDoesNotMatch",
            "The signature of a chunk does not match the one that was calculated.",
        ),
        "Incomplete" | "LengthMismatch" => {
            Refusal::new("IncompleteBody", "The body does not have the length that its headers say")
        }
        _ => Refusal::new("InvalidRequest", "The body is not written as its headers say."),
    };
    refused(refusal)
}
