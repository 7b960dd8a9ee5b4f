//! [`RequestContext`]: what the front, a request's body and its operation know of each other, past
//! s3s, which passes it on as an extension.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use http::header::HeaderMap;

use crate::reply::Refusal;

/// A request under way.
#[derive(Debug)]
pub struct RequestContext {
    content_len: Option<u64>,
    is_bound: bool,
    is_signed_by_v4: bool,
    failure: Mutex<Option<Refusal>>,
    trailers: Mutex<Option<HeaderMap>>,
    is_content: AtomicBool,
    is_asked: AtomicBool,
}

impl RequestContext {
    /// Whose body has a content of that length, if it is known; with a signature of version 4 or not.
    pub fn new(content_len: Option<u64>, is_signed_by_v4: bool) -> RequestContext {
        RequestContext {
            content_len,
            is_bound: false,
            is_signed_by_v4,
            failure: Mutex::new(None),
            trailers: Mutex::new(None),
            is_content: AtomicBool::new(false),
            is_asked: AtomicBool::new(false),
        }
    }

    /// Of a form, whose body has a content of that length at most, and whose head has no signature.
    pub fn up_to(content_len: u64) -> RequestContext {
        RequestContext { is_bound: true, ..RequestContext::new(Some(content_len), false) }
    }

    /// The content may be shorter than its length says.
    pub fn is_bound(&self) -> bool {
        self.is_bound
    }

    /// Bytes of the content, without the framing of chunks. s3s knows them only where the client
    /// sent a `Content-Length`.
    pub fn content_len(&self) -> Option<u64> {
        self.content_len
    }

    /// The head has a signature of version 4: s3s compares the body with `x-amz-content-sha256`.
    pub fn is_signed_by_v4(&self) -> bool {
        self.is_signed_by_v4
    }

    /// The body is the content of an object, not a document that s3s reads as a whole. Called
    /// before the body is read.
    pub fn begin_content(&self) {
        self.is_content.store(true, Ordering::Relaxed);
    }

    /// See [`RequestContext::begin_content`].
    pub fn is_content(&self) -> bool {
        self.is_content.load(Ordering::Relaxed)
    }

    /// A body that has bytes is read: a client that waits for leave to send it gets it.
    pub fn ask(&self) {
        self.is_asked.store(true, Ordering::Relaxed);
    }

    /// See [`RequestContext::ask`].
    pub fn is_asked(&self) -> bool {
        self.is_asked.load(Ordering::Relaxed)
    }

    /// Notes what is behind a content whose chunks s3s does not decode.
    pub fn end_with(&self, trailers: HeaderMap) {
        *self.trailers.lock().expect("no panic while it is held") = Some(trailers);
    }

    /// See [`RequestContext::end_with`].
    pub fn take_trailers(&self) -> Option<HeaderMap> {
        self.trailers.lock().expect("no panic while it is held").take()
    }

    /// Notes why the body failed; the first cause counts. s3s makes an internal error of it.
    pub fn fail(&self, refusal: Refusal) {
        let mut failure = self.failure.lock().expect("no panic while it is held");
        failure.get_or_insert(refusal);
    }

    /// Why the body failed.
    pub fn failure(&self) -> Option<Refusal> {
        self.failure.lock().expect("no panic while it is held").clone()
    }
}

/// An answer has a part of an object only: an extension of responses, as s3s takes no status of an
/// operation for HEAD.
#[derive(Clone, Copy, Debug)]
pub struct PartOnly;

/// Extension of a response: the tag in its XML stands there without quotes, as in GetObjectAttributes alone.
#[derive(Clone, Copy, Debug)]
pub struct BareTag;
