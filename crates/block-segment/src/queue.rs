//! Changes of a segment that wait for their append.

use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

use base::Fault;
use block_volume::dedup::RequestId;
use block_volume::limits::BLOCK;
use block_volume::record::{RECORD, RequestTag, UNIT};
use runtime::Buf;
use runtime::sync::{OwnedSemaphorePermit, oneshot};

use super::locks::Guard;
use super::types::Loc;

/// Effect of a change on blocks from its first on.
pub(crate) enum Work {
    /// Whole blocks.
    Write(Buf),
    /// A number of blocks become holes or zeroes.
    Clear { count: u32, to: Loc },
}

/// A change that waits for its records.
pub(crate) struct Change {
    pub(crate) lba: u32,
    pub(crate) work: Work,
    /// Blocks of it that are in appends.
    pub(crate) started: u32,
    /// Its request, and whether the client's change is whole with it.
    pub(crate) request: Option<(RequestId, bool)>,
    pub(crate) done: oneshot::Sender<Result<(), Fault>>,
    /// Held until the outcome is known, even if its caller has gone.
    pub(crate) guard: Rc<Guard>,
    pub(crate) permit: OwnedSemaphorePermit,
}

/// Changes that wait.
#[derive(Default)]
pub(crate) struct Queue {
    pub(super) waiting: VecDeque<Change>,
    pub(super) bytes: usize,
}

impl Change {
    /// Bytes of records that it still needs.
    pub(super) fn need(&self) -> usize {
        match &self.work {
            Work::Write(data) => (data.len() / BLOCK as usize - self.started as usize) * RECORD,
            Work::Clear { .. } => UNIT as usize,
        }
    }

    /// The request tag of its next record.
    pub(super) fn mark(&self, is_last: bool) -> Option<RequestTag> {
        self.request.map(|(RequestId { attachment, seq }, whole)| RequestTag {
            attachment,
            seq: seq as u32,
            last: whole && is_last,
        })
    }

    /// The part of the client's change that its next `count` blocks complete.
    pub(super) fn part(&self, count: u32, is_last: bool) -> Option<(RequestId, Range<u64>, bool)> {
        let start = u64::from(self.lba) + u64::from(self.started);
        let part = |(request, whole)| (request, start..start + u64::from(count), whole && is_last);
        self.request.filter(|_| count > 0).map(part)
    }

    pub(super) fn fail(self, fault: &Fault) {
        drop(self.guard);
        drop(self.permit);
        let _ = self.done.send(Err(fault.clone())); // Fails when the caller has gone.
    }
}

impl Queue {
    pub(crate) fn push(&mut self, change: Change) {
        self.bytes += change.need();
        self.waiting.push_back(change);
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }
}
