//! Requests of a peer that wait until its answers have left: bounded in number and bytes.

use std::collections::VecDeque;

use runtime::Instant;
use wire::frame::HEADER;

use crate::receive::Inbound;

/// A request that is not handled yet.
pub(crate) struct DeferredRequest {
    pub(crate) message: Inbound,
    /// When its caller stops waiting.
    pub(crate) deadline: Instant,
}

impl DeferredRequest {
    pub(crate) fn bytes(&self) -> usize {
        HEADER + self.message.header.following()
    }
}

/// In the order of their arrival.
#[derive(Default)]
pub(crate) struct DeferredRequests {
    requests: VecDeque<DeferredRequest>,
    bytes: usize,
}

impl DeferredRequests {
    pub(crate) fn len(&self) -> usize {
        self.requests.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds one. False, and it is dropped, when all would then have more than `bytes_max` bytes.
    pub(crate) fn push(&mut self, request: DeferredRequest, bytes_max: usize) -> bool {
        let bytes = self.bytes + request.bytes();
        if bytes > bytes_max {
            return false;
        }
        self.bytes = bytes;
        self.requests.push_back(request);
        true
    }

    pub(crate) fn pop(&mut self) -> Option<DeferredRequest> {
        let request = self.requests.pop_front()?;
        self.bytes -= request.bytes();
        Some(request)
    }

    /// Drops a request that its caller has cancelled.
    pub(crate) fn cancel(&mut self, request: u64) {
        self.requests.retain(|deferred| deferred.message.header.request != request);
        self.bytes = self.requests.iter().map(DeferredRequest::bytes).sum();
    }
}
