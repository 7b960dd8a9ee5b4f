//! [`Front`]: what stands before s3s: pages for health, checks of heads, guards of bodies, and the
//! completion of answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use base::TraceId;
use futures_util::future::join;
use http::header::{CONNECTION, EXPECT, HOST, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use object_proto::{Backend, Traced};
use s3s::Body;
use s3s::service::S3Service;

use crate::body::{BodyTimes, GuardedBody, drain};
use crate::budget::Budget;
use crate::clock;
use crate::conn::{Watch, WatchedBody};
use crate::context::{BareTag, PartOnly, RequestContext};
use crate::cors::{self, Asked};
use crate::form::Forms;
use crate::head;
use crate::hosts::Domains;
use crate::reply::{Refusal, Target, complete, page, with_bare_tag};
use crate::requests::{Following, Note, Requests};

/// Path of the page that answers as long as the process does.
const LIVE: &str = "/_craton/live";
/// Path of the page that answers 200 while requests can be served.
const READY: &str = "/_craton/ready";

/// Requests' way in.
pub struct Front {
    /// S3's dialect.
    pub service: S3Service,
    /// Forms of browsers, past it.
    pub forms: Forms,
    /// Rules of buckets for scripts of other sites.
    pub backend: Arc<dyn Backend>,
    /// Hosts that name a bucket.
    pub domains: Domains,
    /// Memory for bodies.
    pub budget: Budget,
    /// Time limits of bodies.
    pub times: BodyTimes,
    /// Signatures of version 2 are taken.
    pub allow_v2: bool,
    /// Requests can be served.
    pub ready: Arc<AtomicBool>,
    /// How they end.
    pub requests: Arc<Requests>,
    /// ID of the next request, which is its trace's too.
    pub next_id: AtomicU64,
}

impl Front {
    /// Answers a request.
    pub async fn serve(
        &self,
        request: Request<Incoming>,
        watch: Arc<Watch>,
    ) -> Response<WatchedBody> {
        watch.begin_request();
        let trace = self.next_trace();
        let id = format!("{:016X}", trace.get());
        let (uri, host) = (request.uri().clone(), request.headers().get(HOST).cloned());
        let has_source = request.headers().contains_key("x-amz-copy-source");
        let target = || {
            let host = host.as_ref().and_then(|host| host.to_str().ok());
            let host_bucket = host.and_then(|host| self.domains.bucket_of(host));
            Target { path: uri.path(), host_bucket, has_source }
        };
        let mut following = Following::new(&self.requests, &id, &request);
        let note = following.note().clone();
        let response = match self.page(&request) {
            Some(page) => {
                note.is("Health");
                page
            }
            None => Traced::new(trace, self.answer(request, &id, target(), note)).await,
        };
        let response = complete(response, &id, target);
        following.answer(&response, target());
        response.map(|body| WatchedBody::new(body, watch, following))
    }

    /// A trace that no request had before.
    fn next_trace(&self) -> TraceId {
        loop {
            let raw = self.next_id.fetch_add(1, Ordering::Relaxed);
            // 63 bits of it count, and none of them set would be the trace behind it.
            if raw << 1 != 0 {
                return TraceId::unasked(raw);
            }
        }
    }

    /// Answers what is no page.
    async fn answer(
        &self,
        request: Request<Incoming>,
        id: &str,
        target: Target<'_>,
        note: Arc<Note>,
    ) -> Response<Body> {
        if *request.method() == Method::OPTIONS {
            note.is("Preflight");
            return self.preflight(request, &target.bucket()).await;
        }
        let Some(asked) = Asked::of(request.method(), request.headers()) else {
            return self.serve_s3(request, id, target, note).await;
        };
        let bucket = target.bucket();
        let added = cors::added(&*self.backend, &bucket, &asked);
        let (added, mut response) = join(added, self.serve_s3(request, id, target, note)).await;
        response.headers_mut().extend(added);
        response
    }

    /// A page that is not S3's. A bucket's name cannot begin with an underscore.
    fn page(&self, request: &Request<Incoming>) -> Option<Response<Body>> {
        let path = request.uri().path();
        if path != LIVE && path != READY {
            return None;
        }
        let host = request.headers().get(HOST).and_then(|host| host.to_str().ok());
        if host.is_some_and(|host| self.domains.bucket_of(host).is_some()) {
            return None; // A key of that bucket.
        }
        Some(match *request.method() {
            Method::GET | Method::HEAD if path == LIVE => page(StatusCode::OK, "live\n"),
            Method::GET | Method::HEAD if self.ready.load(Ordering::Relaxed) => {
                page(StatusCode::OK, "ready\n")
            }
            Method::GET | Method::HEAD => page(StatusCode::SERVICE_UNAVAILABLE, "not ready\n"),
            _ => page(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are answered\n"),
        })
    }

    /// Answers a browser that asks before a script's request. Nothing of it is signed.
    async fn preflight(&self, request: Request<Incoming>, bucket: &str) -> Response<Body> {
        let (head, incoming) = request.into_parts();
        let waits = head.headers.contains_key(EXPECT);
        if !waits {
            drain(incoming);
        }
        let answer = cors::preflight(&*self.backend, bucket, &head.method, &head.headers).await;
        ends_if(waits, answer)
    }

    async fn serve_s3(
        &self,
        request: Request<Incoming>,
        id: &str,
        target: Target<'_>,
        note: Arc<Note>,
    ) -> Response<Body> {
        let (mut parts, incoming) = request.into_parts();
        let waits = parts.headers.contains_key(EXPECT);
        let facts = match head::check(&mut parts, clock::unix_seconds(), self.allow_v2) {
            Ok(facts) => facts,
            Err(refusal) => {
                if !waits {
                    drain(incoming);
                }
                return ends_if(waits, refusal.response());
            }
        };
        let context = RequestContext::new(facts.content_len(), facts.is_signed_by_v4);
        let context = Arc::new(context);
        parts.extensions.insert(note.clone());
        if head::is_form(&parts) {
            let (len, asked) = (facts.sent_len.unwrap_or_default(), context.clone());
            let response = self.forms.serve((parts, incoming), target, len, (asked, note)).await;
            return ends_if(waits && !context.is_asked(), response);
        }
        let body = GuardedBody::new(
            incoming,
            facts,
            head::body_headers(&parts),
            (context.clone(), note),
            self.budget.clone(),
            self.times,
        );
        parts.extensions.insert(context.clone());
        let request = Request::from_parts(parts, Body::http_body_unsync(body));
        let response = match self.service.call(request).await {
            Ok(mut response) => {
                if response.extensions().get::<PartOnly>().is_some() {
                    *response.status_mut() = StatusCode::PARTIAL_CONTENT;
                }
                match response.extensions().get::<BareTag>() {
                    Some(_) => response.map(with_bare_tag),
                    None => response,
                }
            }
            Err(error) => {
                let error: s3s::StdError = error.into();
                tracing::warn!(request_id = %id, %error, "an answer could not be written");
                Refusal::new("InternalError", "We encountered an internal error.").response()
            }
        };
        let response = match context.failure() {
            // s3s makes an internal error of a body that failed.
            Some(refusal) if !response.status().is_success() => refusal.response(),
            _ => response,
        };
        ends_if(waits && !context.is_asked(), response)
    }
}

/// The last answer of a connection, and it says so, where a client waits for leave to send a body that is
/// not asked for, or is empty. hyper closes such a connection, since the body may come all the same; and
/// some clients take what follows on it for the answer to the leave that they did not get.
fn ends_if(ends: bool, mut response: Response<Body>) -> Response<Body> {
    if ends {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}
