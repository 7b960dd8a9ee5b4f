//! Names of requests, as traces and metrics show them.

use crate::message::{CatalogRequest, Change, RangeRequest, Request};

impl Request {
    /// What it asks for; none for a sign of life or a question about one, which come all the time.
    pub fn operation(&self) -> Option<&'static str> {
        match self {
            Request::Range(_, request) => request.operation(),
            Request::Catalog(request) if request.is_sign() => None,
            Request::Catalog(_) => Some("object catalog"),
            Request::Server(_) => None,
        }
    }
}

impl RangeRequest {
    /// See [`Request::operation`].
    pub fn operation(&self) -> Option<&'static str> {
        Some(match self {
            RangeRequest::Change { change, .. } => change.operation(),
            RangeRequest::Look { .. } => "object look",
            RangeRequest::Read { .. } => "object read",
            RangeRequest::List(_) => "object list",
            RangeRequest::Versions(_) => "object versions",
            RangeRequest::Upload { .. }
            | RangeRequest::Parts(_)
            | RangeRequest::PartBodies(_)
            | RangeRequest::Uploads(_) => "object uploads",
            _ => return None,
        })
    }
}

impl Change {
    /// What it does to a key.
    fn operation(&self) -> &'static str {
        match self {
            Change::Put { .. } => "object put",
            Change::Delete { .. } | Change::DeleteVersion { .. } => "object delete",
            Change::SetTags { .. } | Change::SetAcl { .. } | Change::SetLock { .. } => "object set",
            Change::BeginUpload { .. } => "object begin upload",
            Change::PutPart { .. } => "object put part",
            Change::CompleteUpload { .. } => "object complete upload",
            Change::AbortUpload { .. } => "object abort upload",
        }
    }
}

impl CatalogRequest {
    /// It says that its sender lives, or asks for what changed: it comes all the time.
    pub fn is_sign(&self) -> bool {
        matches!(
            self,
            CatalogRequest::Beat(_)
                | CatalogRequest::ServerBeat(_)
                | CatalogRequest::Here(_)
                | CatalogRequest::Watch { .. }
        )
    }
}
