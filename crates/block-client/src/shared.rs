//! State that the segments of a volume share, and times that its opener chooses.

use std::cell::{Cell, OnceCell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use base::{Fault, Kind};
use block_proto::answers::AnswerTimes;
use block_proto::limits::BLOCK_CALL_TIMEOUT;
use block_volume::buffer::alloc;
use block_volume::contract::Answer;
use block_volume::ids::{SegmentId, VolumeId};
use runtime::{BufMut, Env};
use transport::Endpoint;

use super::files::{DataFiles, DirectReadBackoff};
use super::location_cache::LocationCache;
use crate::limits::{BLOCK_OPEN_TIMEOUT, BLOCK_PAUSE, BLOCK_REQUEST_DEADLINE};

/// The owner of a segment, as its client reaches it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentOwner {
    /// The block server.
    pub addr: SocketAddr,
    /// The ownership's epoch.
    pub epoch: u64,
}

/// The segment map.
pub trait Route {
    /// The owner of a segment. `doubt` is an owner that did not answer as it should: then the
    /// manager has looked at it, and the answer is newer than that failure, though it may be the
    /// same. It is no earlier owner than one that was answered before. `Fenced`: the attachment is over. `NotFound`: the volume is no more. After other
    /// errors: ask again.
    fn place(&self, segment: SegmentId, doubt: Option<SegmentOwner>) -> Answer<'_, SegmentOwner>;
}

/// Attachment that the block manager has given to the client (`protocols.md` 6.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attachment {
    /// Its epoch.
    pub epoch: u64,
    /// Attachments of lower epochs are over: its own epoch when it is exclusive. Not above it.
    pub fence: u64,
}

/// Timeouts of a client. The simulator and tests change them.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// A request is sent again when it has no answer after this long.
    pub call_timeout: Duration,
    /// The same for the begin of a session, for which a server may have to open the segment.
    pub open_timeout: Duration,
    /// A request fails when it has not been done after this long.
    pub deadline: Duration,
    /// First and longest pause between two tries.
    pub pause: (Duration, Duration),
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            call_timeout: BLOCK_CALL_TIMEOUT,
            open_timeout: BLOCK_OPEN_TIMEOUT,
            deadline: BLOCK_REQUEST_DEADLINE,
            pause: BLOCK_PAUSE,
        }
    }
}

impl Limits {
    /// Pause before try `tries`, from 1; none before the first.
    pub(super) fn pause(&self, tries: u32) -> Duration {
        let (first, longest) = self.pause;
        match tries.checked_sub(1) {
            Some(doublings) => (first * (1 << doublings.min(16))).min(longest),
            None => Duration::ZERO,
        }
    }
}

/// State that the segments of a volume share.
pub(super) struct Shared {
    pub(super) env: Env,
    pub(super) endpoint: Endpoint,
    pub(super) route: Rc<dyn Route>,
    pub(super) limits: Limits,
    pub(super) volume: VolumeId,
    pub(super) attachment: Attachment,
    /// The attachment is over.
    pub(super) over: Cell<bool>,
    /// Opens DataFiles for direct reads.
    pub(super) files: OnceCell<Rc<dyn DataFiles>>,
    pub(super) direct_backoff: DirectReadBackoff,
    pub(super) locations: LocationCache,
    pub(super) reads: Cell<Reads>,
    /// Of pings to owners of its segments.
    pub(super) answer_times: RefCell<AnswerTimes>,
}

/// Reads of an attachment, by their way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reads {
    /// From the chunkservers, at locations that block servers have sent (decision 23).
    pub direct: u64,
    /// Direct reads without a request to a block server (decision 24).
    pub known: u64,
    /// Left to the block servers after a direct read failed.
    pub left: u64,
}

impl Reads {
    /// These and others.
    pub fn and(self, other: Reads) -> Reads {
        Reads {
            direct: self.direct + other.direct,
            known: self.known + other.known,
            left: self.left + other.left,
        }
    }
}

impl Shared {
    pub(super) async fn alloc(&self, len: usize) -> Result<BufMut, Fault> {
        alloc(&self.env, len).await
    }

    pub(super) fn count(&self, change: impl FnOnce(&mut Reads)) {
        let mut reads = self.reads.get();
        change(&mut reads);
        self.reads.set(reads);
    }

    pub(super) fn over() -> Fault {
        Fault::new(
            Kind::Fenced,
            "the volume was opened by another client, or removed: open it again",
        )
    }

    pub(super) fn check(&self) -> Result<(), Fault> {
        if self.over.get() { Err(Shared::over()) } else { Ok(()) }
    }

    pub(super) fn end(&self) -> Fault {
        if !self.over.replace(true) {
            self.env.mark("block: attachment lost");
            tracing::warn!(volume = %self.volume, "volume is open elsewhere: no more requests here");
        }
        Shared::over()
    }
}
