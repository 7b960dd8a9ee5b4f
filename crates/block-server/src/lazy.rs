//! [`LazySegment`]: a segment that is opened at its first request. No owner has used its directory,
//! so until then there is nothing to recover, and a volume is made without a single file (B11).
//!
//! No request is answered before the opening, which fences other owners. So a late opening is as
//! safe as an early one; its cost is the first request's time.

use std::cell::{Cell, OnceCell};
use std::ops::Range;
use std::rc::Rc;

use base::{Fault, Kind};
use block_proto::paths::segment_path;
use block_segment::Segment;
use block_volume::contract::{AllocationExtent, Answer, BlockLocations, Clear, Device, Owned};
use block_volume::dedup::RequestId;
use block_volume::figures::{SegmentCheck, SegmentScrub, SegmentUsage};
use block_volume::geometry::Extent;
use block_volume::ids::{Identity, SegmentId};
use client::Client;
use futures_util::future::{LocalBoxFuture, ready};
use runtime::sync::{Mutex, Notify};
use runtime::{Buf, Duration};
use table::ClientStore;
use wire::control::Policy;

use super::agent::ServedSegment;

/// Opens the segment: called again after a failure.
pub(super) type SegmentOpening = Box<dyn Fn() -> LocalBoxFuture<'static, Result<Segment, Fault>>>;

struct LazySegmentInner {
    client: Client,
    bytes: u64,
    /// Policies of the files that it makes; its stores read them.
    policies: FilePolicies,
    opening: SegmentOpening,
    opened: OnceCell<Segment>,
    turn: Mutex<()>,
    closed: Cell<bool>,
    changed: Notify,
}

/// Policies of a segment's files, which its stores share (B3): what is written for requests and the
/// tables are in copies, which survive as many losses as the volume's code, up to three of them; what is
/// collected has the code.
#[derive(Clone)]
pub(super) struct FilePolicies {
    pub(super) written: Rc<Cell<Policy>>,
    pub(super) collected: Rc<Cell<Policy>>,
}

impl FilePolicies {
    /// Those of a volume's policy.
    pub(super) fn of(policy: Policy) -> FilePolicies {
        let written = Rc::new(Cell::new(written_policy(policy)));
        FilePolicies { written, collected: Rc::new(Cell::new(policy)) }
    }

    fn set(&self, policy: Policy) {
        self.written.set(written_policy(policy));
        self.collected.set(policy);
    }
}

/// Copies of what is written to a volume with this policy. Wide codes have more parity since more
/// servers are at stake: three copies are as good, as the papers have them beside `ec8+3`.
pub fn written_policy(policy: Policy) -> Policy {
    let (copies, is_strict) = (policy.in_copies(), policy.acks == policy.copies);
    match (policy.is_coded() && copies.copies > 3, is_strict) {
        (false, _) => copies,
        (true, true) => Policy::strict(3),
        (true, false) => Policy::rep(3),
    }
}

/// A segment of `bytes` bytes. Clones share it.
#[derive(Clone)]
pub(super) struct LazySegment(Rc<LazySegmentInner>);

impl LazySegment {
    /// Files of the segment that `opening` opens are to be made with `policies`.
    pub(super) fn new(
        client: &Client,
        bytes: u64,
        policies: FilePolicies,
        opening: SegmentOpening,
    ) -> LazySegment {
        LazySegment(Rc::new(LazySegmentInner {
            client: client.clone(),
            bytes,
            policies,
            opening,
            opened: OnceCell::new(),
            turn: Mutex::new(()),
            closed: Cell::new(false),
            changed: Notify::new(),
        }))
    }

    /// Opens it, unless that has happened.
    pub(super) async fn open(&self) -> Result<(), Fault> {
        let inner = &*self.0;
        if inner.opened.get().is_some() {
            return Ok(());
        }
        let _turn = inner.turn.lock().await;
        if inner.opened.get().is_some() {
            return Ok(());
        }
        if inner.closed.get() {
            return Err(Fault::new(Kind::Retry, "the segment is being closed"));
        }
        let opened = (inner.opening)().await?;
        inner.opened.get_or_init(|| opened);
        inner.changed.notify_waiters();
        Ok(())
    }

    /// Sends a request to the segment: its user opens it before ([`ServedSegment::ready`]).
    fn ask<'a, T: 'a>(&'a self, ask: impl FnOnce(&'a Segment) -> Answer<'a, T>) -> Answer<'a, T> {
        match self.0.opened.get() {
            Some(segment) => ask(segment),
            None => Box::pin(ready(Err(Fault::new(Kind::Retry, "the segment is not open yet")))),
        }
    }
}

impl Device for LazySegment {
    fn bytes(&self) -> u64 {
        self.0.bytes
    }

    fn read(&self, extent: Extent) -> Answer<'_, Buf> {
        self.ask(|segment| segment.read(extent))
    }

    fn write(&self, offset: u64, data: Buf) -> Answer<'_, ()> {
        self.ask(|segment| segment.write(offset, data))
    }

    fn clear(&self, extent: Extent, how: Clear) -> Answer<'_, ()> {
        self.ask(|segment| segment.clear(extent, how))
    }

    fn pieces(&self, extent: Extent, most: usize) -> Answer<'_, Vec<AllocationExtent>> {
        self.ask(|segment| segment.pieces(extent, most))
    }
}

impl Owned for LazySegment {
    fn write_dedup(&self, request: RequestId, offset: u64, data: Buf) -> Answer<'_, ()> {
        self.ask(|segment| segment.write_dedup(request, offset, data))
    }

    fn clear_dedup(&self, request: RequestId, extent: Extent, how: Clear) -> Answer<'_, ()> {
        self.ask(|segment| segment.clear_dedup(request, extent, how))
    }

    fn last(&self, attachment: u32) -> u64 {
        self.0.opened.get().map_or(0, |segment| segment.last(attachment))
    }

    fn attachments(&self) -> Vec<u32> {
        self.0.opened.get().map(Owned::attachments).unwrap_or_default()
    }

    fn forget(&self, attachments: Range<u32>) {
        if let Some(segment) = self.0.opened.get() {
            segment.forget(attachments);
        }
    }

    fn locate(&self, extent: Extent, around: bool) -> Answer<'_, Option<BlockLocations>> {
        self.ask(|segment| segment.locate(extent, around))
    }

    fn confirm(&self) -> Answer<'_, ()> {
        self.ask(|segment| segment.confirm())
    }
}

impl ServedSegment for LazySegment {
    fn ready(&self) -> Answer<'_, ()> {
        Box::pin(self.open())
    }

    fn stopped(&self) -> LocalBoxFuture<'static, Fault> {
        let this = self.clone();
        Box::pin(async move {
            loop {
                let changed = this.0.changed.notified();
                if let Some(segment) = this.0.opened.get() {
                    return segment.until_stopped().await;
                }
                changed.await;
            }
        })
    }

    fn close(&self) -> LocalBoxFuture<'static, ()> {
        let this = self.clone();
        Box::pin(async move {
            this.0.closed.set(true);
            let _turn = this.0.turn.lock().await;
            let Some(segment) = this.0.opened.get() else { return };
            if let Err(fault) = segment.clone().close().await {
                // The next owner recovers it.
                tracing::debug!(%fault, "segment was not closed properly");
            }
        })
    }

    fn cut(&self, cut: u64, most: Duration) -> Answer<'_, ()> {
        Box::pin(async move {
            self.open().await?;
            self.ask(|segment| Box::pin(segment.cut(cut, most))).await
        })
    }

    fn release_cut(&self, cut: u64, keep: bool) -> Result<Duration, Fault> {
        match self.0.opened.get() {
            Some(segment) => segment.release(cut, keep),
            None => Err(Fault::new(Kind::NotFound, format!("there is no cut {cut:x}"))),
        }
    }

    fn link(&self, cut: u64, to: SegmentId, policy: Policy) -> Answer<'_, ()> {
        Box::pin(async move {
            let path = segment_path(to);
            let store = ClientStore::new(&self.0.client, &path, written_policy(policy)).await;
            let store = store.map_err(|error| Fault::new(error.kind(), error.to_string()))?;
            let identity = Identity { volume: to.volume.get(), segment: to.index };
            self.ask(|segment| Box::pin(segment.link(cut, Rc::new(store), identity))).await
        })
    }

    fn set_policy(&self, policy: Policy) {
        self.0.policies.set(policy);
        if let Some(segment) = self.0.opened.get() {
            segment.policy_changed();
        }
    }

    fn flatten(&self) -> Answer<'_, u64> {
        Box::pin(async move {
            // No request has come yet, and it may have been linked nevertheless.
            self.open().await?;
            self.ask(|segment| Box::pin(ready(Ok(segment.flatten())))).await
        })
    }

    fn check(&self, from: u64) -> Answer<'_, SegmentCheck> {
        Box::pin(async move {
            // No request has come yet, and it may have been linked nevertheless.
            self.open().await?;
            self.ask(|segment| Box::pin(segment.check(from))).await
        })
    }

    fn scrub(&self) -> SegmentScrub {
        let none = SegmentScrub { total_bytes: self.0.bytes, ..SegmentScrub::default() };
        self.0.opened.get().map_or(none, Segment::scrub)
    }

    fn usage(&self) -> SegmentUsage {
        self.0.opened.get().map(usage).unwrap_or_default()
    }
}

/// Space of a segment. Its number is not known here.
fn usage(segment: &Segment) -> SegmentUsage {
    let stats = segment.stats();
    SegmentUsage {
        index: 0,
        files: stats.files as u64,
        file_bytes: stats.file_bytes,
        stored_bytes: stats.stored_bytes,
        blocks: stats.blocks,
        live: stats.live.min(stats.blocks),
        append_bytes: stats.append_bytes,
        collected_bytes: stats.collected_bytes,
        collect_read_bytes: stats.collect_read_bytes,
        index_bytes: stats.index_bytes as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_has_three_copies_at_most_for_a_code() {
        let cases = [
            ("rep5", "rep5"),
            ("ec2+1", "rep2"),
            ("ec4+2", "rep3"),
            ("ec8+3", "rep3"),
            ("ec12+4-strict", "rep3-strict"),
        ];
        for (policy, copies) in cases {
            let policy: Policy = policy.parse().expect("a policy");
            assert_eq!(written_policy(policy).to_string(), copies, "{policy}");
        }
    }
}
