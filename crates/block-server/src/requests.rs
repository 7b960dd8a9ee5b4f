//! Requests in a session: reads, changes.

use std::pin::pin;
use std::rc::Rc;

use base::Fault;
use block_proto::{BlockAnswer, BlockError, BlockIo, Located, Sequence, SessionRef};
use block_volume::contract::{AllocationExtent, Clear};
use block_volume::dedup::RequestId;
use block_volume::geometry::Extent;
use block_volume::limits::IO_MAX;
use futures_util::future::select;
use runtime::sync::{Budget, Permit};
use runtime::{Buf, Instant};
use transport::Priority;

use super::admission::UnderWay;
use super::ownership::{LeaseState, Predecessors};
use super::session::{Arrival, Session};
use super::{BlockServer, BytesUnderWay, OpenSegment, attachment, error_of};

impl OpenSegment {
    /// True when the session's client alone has the segment, and had since the session began.
    fn may_lease(&self, at: SessionRef, session: &Session) -> bool {
        let sessions = self.sessions.borrow();
        let mut others = sessions.iter().filter(|&(&attachment, _)| attachment != at.attachment);
        session.visit.is_some_and(|visit| self.location_leases.is_quiet(visit))
            && others.all(|(_, other)| other.is_over())
            && !session.is_closed()
            && !self.released.get()
    }
}

impl BlockServer {
    /// Performs a request. The future may be dropped until the request has begun
    /// ([`UnderWay::has_begun`]).
    pub(super) async fn serve<'a>(
        &'a self,
        asked: BlockIo,
        payload: Option<Buf>,
        priority: Priority,
        under_way: &UnderWay<'a>,
    ) -> Result<(BlockAnswer, Option<Buf>), BlockError> {
        let works =
            matches!(asked, BlockIo::Read { .. } | BlockIo::Write { .. } | BlockIo::Clear { .. });
        // Before the check of its session: between that and its begin there is no pause.
        if works {
            let places = self.hosted(asked.at().segment).map(|hosted| hosted.part.places.clone());
            let Some(place) = self.0.admission.enter_as(priority, places).await else {
                self.count(|stats| stats.busy += 1);
                return Err(BlockError::Busy);
            };
            under_way.hold(place);
        }
        let served = match asked {
            BlockIo::Open { at, fence, after } => {
                self.open(at, fence, after).await.map(|answer| (answer, None))
            }
            BlockIo::Close { at } => {
                if let Ok((hosted, session)) = self.session(at) {
                    under_way.begin();
                    session.close();
                    session.drained().await;
                    // The client has all answers.
                    let attachment = attachment(at)?;
                    hosted.device.forget(attachment..attachment.saturating_add(1));
                }
                Ok((BlockAnswer::Done, None))
            }
            BlockIo::Read { at, offset, len, locate } => {
                let extent = Extent { offset, len: u64::from(len) };
                let located = if locate { self.locate(at, extent, under_way).await? } else { None };
                match located {
                    Some(located) => Ok((BlockAnswer::Located(located), None)),
                    None => {
                        let data = self.read(at, extent, under_way).await;
                        data.map(|data| (BlockAnswer::Read, Some(data)))
                    }
                }
            }
            BlockIo::Pieces { at, offset, len, most } => {
                let pieces = self.pieces(at, Extent { offset, len }, most as usize).await;
                pieces.map(|pieces| (BlockAnswer::Pieces(pieces), None))
            }
            BlockIo::Write { at, sequence, offset } => {
                let data = payload.filter(|data| (1..=IO_MAX).contains(&data.len()));
                let data = data.ok_or(BlockError::Invalid)?;
                let written = self.write(at, sequence, (offset, data), under_way).await;
                written.map(|()| (BlockAnswer::Done, None))
            }
            BlockIo::Clear { at, sequence, offset, len, how } => {
                let extent = Extent { offset, len };
                let cleared = self.clear(at, sequence, (extent, how), under_way).await;
                cleared.map(|()| (BlockAnswer::Done, None))
            }
        };
        if matches!(served, Err(BlockError::Busy)) {
            self.count(|stats| stats.busy += 1);
        }
        served
    }

    /// The session that a request names, if it is open.
    fn session(&self, at: SessionRef) -> Result<(Rc<OpenSegment>, Rc<Session>), BlockError> {
        self.check_fence(at)?;
        let hosted = self.hosted(at.segment);
        let found = hosted.and_then(|hosted| {
            let session = hosted.sessions.borrow().get(&at.attachment).cloned()?;
            Some((hosted, session))
        });
        let is_it = |(_, session): &(Rc<OpenSegment>, Rc<Session>)| {
            session.number == at.session && session.grant == at.grant && !session.is_closed()
        };
        found.filter(is_it).ok_or_else(|| {
            self.0.env.mark("block: no such session");
            self.count(|stats| stats.late += 1);
            BlockError::NoSession
        })
    }

    /// Holds bytes of a request under way, of those of its segment and of those of the server;
    /// [`BlockError::Busy`] when a bound is reached: the client pauses and tries again.
    fn take<'a>(
        &'a self,
        hosted: &'a OpenSegment,
        which: impl Fn(&'a BytesUnderWay) -> &'a Budget,
        bytes: usize,
    ) -> Result<[Permit<'a>; 2], BlockError> {
        let take = |of, mark| {
            which(of).take(bytes).ok_or_else(|| {
                self.0.env.mark(mark);
                BlockError::Busy
            })
        };
        let part = take(&hosted.part.bytes, "block: segment busy")?;
        Ok([part, take(&self.0.bytes, "block: server busy")?])
    }

    /// Handles a device's fault: for the segment, and as an error for the client.
    fn fail(&self, at: SessionRef, hosted: &Rc<OpenSegment>, fault: &Fault) -> BlockError {
        let error = error_of(fault);
        match error {
            BlockError::NotOwner => {
                tracing::info!(segment = %at.segment, %fault, "segment has another owner");
                self.lose(at.segment, hosted);
            }
            BlockError::Busy => {}
            // The log has a line for the append that found no room; one for each write adds nothing.
            BlockError::Full => {
                tracing::debug!(segment = %at.segment, %fault, "segment request failed");
            }
            _ => tracing::warn!(segment = %at.segment, %fault, "segment request failed"),
        }
        error
    }

    /// Checks that a read may be answered (`protocols.md` 6.5): while the lease lasts; after that
    /// when the core confirms that no other owner has opened the segment since. Not before a
    /// previous owner's lease is over, whose reads may show something older. Returns the end of the
    /// lease, if it lasts.
    async fn check_lease(
        &self,
        at: SessionRef,
        hosted: &Rc<OpenSegment>,
        predecessors: Predecessors,
    ) -> Result<Option<Instant>, BlockError> {
        let env = &self.0.env;
        loop {
            match hosted.lease.lease_state(predecessors) {
                _ if hosted.released.get() => return Err(BlockError::NotOwner),
                LeaseState::Active(until) => return Ok(Some(until)),
                LeaseState::HoldingAcks(until) => {
                    env.mark("block: read held back");
                    self.held_until(hosted, until).await;
                }
                LeaseState::Expired(until) if env.now() < until => {
                    self.held_until(hosted, until).await;
                }
                LeaseState::Expired(_) => {
                    env.mark("block: read confirmed by the core");
                    let confirmed = hosted.device.confirm().await;
                    confirmed.map_err(|fault| self.fail(at, hosted, &fault))?;
                    self.count(|stats| stats.confirmed += 1);
                    return Ok(None);
                }
                LeaseState::Revoked => {
                    env.mark("block: segment is gone");
                    return Err(BlockError::NotOwner);
                }
            }
        }
    }

    /// Waits for the end of previous owners' leases: `until`, or earlier when they have said that they
    /// have released the segment.
    async fn held_until(&self, hosted: &OpenSegment, until: Instant) {
        select(hosted.lease.changed(), pin!(self.0.env.sleep_until(until))).await;
    }

    /// Waits until a change may be acknowledged. Fencing protects it, with or without a lease: it
    /// is durable, so a later owner has it. The wait ends when no previous owner answers reads any
    /// more.
    async fn hold(
        &self,
        hosted: &OpenSegment,
        predecessors: Predecessors,
    ) -> Result<(), BlockError> {
        loop {
            let env = &self.0.env;
            match hosted.lease.lease_state(predecessors) {
                LeaseState::Active(_) => return Ok(()),
                LeaseState::HoldingAcks(until) => {
                    env.mark("block: acknowledgement held back");
                    self.held_until(hosted, until).await;
                }
                LeaseState::Expired(until) if env.now() < until => {
                    self.held_until(hosted, until).await;
                }
                LeaseState::Expired(_) if !hosted.released.get() => {
                    env.mark("block: change acknowledged without a lease");
                    return Ok(());
                }
                LeaseState::Expired(_) | LeaseState::Revoked => return Err(BlockError::NotOwner),
            }
        }
    }

    async fn read(
        &self,
        at: SessionRef,
        extent: Extent,
        under_way: &UnderWay<'_>,
    ) -> Result<Buf, BlockError> {
        let (hosted, session) = self.session(at)?;
        let len = usize::try_from(extent.len).unwrap_or(usize::MAX);
        if len > IO_MAX {
            return Err(BlockError::Invalid);
        }
        let _held = self.take(&hosted, |bytes| &bytes.reads, len)?;
        let data = hosted.device.read(extent).await;
        let data = data.map_err(|fault| self.fail(at, &hosted, &fault))?;
        under_way.give_back();
        self.check_lease(at, &hosted, session.predecessors).await?;
        self.count(|stats| {
            stats.reads += 1;
            stats.read_bytes += extent.len;
        });
        Ok(data)
    }

    /// Locations of a range, for direct reads. The lease is checked as for bytes: the locations are
    /// those of the blocks' present content. A client that alone has the segment may keep the
    /// locations for a while, and those around them.
    async fn locate(
        &self,
        at: SessionRef,
        extent: Extent,
        under_way: &UnderWay<'_>,
    ) -> Result<Option<Located>, BlockError> {
        let (hosted, session) = self.session(at)?;
        let alone = hosted.may_lease(at, &session);
        let located = hosted.device.locate(extent, alone).await;
        let Some(places) = located.map_err(|fault| self.fail(at, &hosted, &fault))? else {
            return Ok(None);
        };
        under_way.give_back();
        let lease = self.check_lease(at, &hosted, session.predecessors).await?;
        // No other attachment was admitted since the locations were looked up.
        let alone = alone && hosted.may_lease(at, &session);
        let location_lease_ms = match lease.filter(|_| alone) {
            Some(lease) => hosted.location_leases.renew(&self.0.env, at.attachment, lease),
            None => 0,
        };
        self.count(|stats| {
            stats.located += 1;
            stats.leased += u64::from(location_lease_ms > 0);
        });
        Ok(Some(Located { first: places.first, location_lease_ms, spans: places.spans }))
    }

    async fn pieces(
        &self,
        at: SessionRef,
        extent: Extent,
        most: usize,
    ) -> Result<Vec<AllocationExtent>, BlockError> {
        let (hosted, session) = self.session(at)?;
        let pieces = hosted.device.pieces(extent, most).await;
        let pieces = pieces.map_err(|fault| self.fail(at, &hosted, &fault))?;
        self.check_lease(at, &hosted, session.predecessors).await?;
        Ok(pieces.into_iter().take(most).collect())
    }

    async fn write(
        &self,
        at: SessionRef,
        sequence: Sequence,
        (offset, data): (u64, Buf),
        under_way: &UnderWay<'_>,
    ) -> Result<(), BlockError> {
        let (hosted, session) = self.session(at)?;
        let bytes = data.len();
        let request = RequestId { attachment: attachment(at)?, seq: sequence.seq };
        let change = (hosted.device.write_dedup(request, offset, data), bytes);
        if self.change(at, (&hosted, &session), sequence, change, under_way).await? {
            self.count(|stats| {
                stats.writes += 1;
                stats.written_bytes += bytes as u64;
            });
        }
        Ok(())
    }

    async fn clear(
        &self,
        at: SessionRef,
        sequence: Sequence,
        (extent, how): (Extent, Clear),
        under_way: &UnderWay<'_>,
    ) -> Result<(), BlockError> {
        let (hosted, session) = self.session(at)?;
        let request = RequestId { attachment: attachment(at)?, seq: sequence.seq };
        let change = (hosted.device.clear_dedup(request, extent, how), 0);
        if self.change(at, (&hosted, &session), sequence, change, under_way).await? {
            self.count(|stats| stats.clears += 1);
        }
        Ok(())
    }

    /// Performs a change with `bytes` bytes that was not done before; true when it was done now. Only
    /// then are bytes held: a repeat gives its own back and waits for the first one's outcome.
    /// Between the check of the session and the first poll of `change` there is no pause: a change
    /// that has not begun when its session is closed never begins.
    async fn change(
        &self,
        at: SessionRef,
        (hosted, session): (&Rc<OpenSegment>, &Rc<Session>),
        sequence: Sequence,
        (change, bytes): (impl Future<Output = Result<(), Fault>>, usize),
        under_way: &UnderWay<'_>,
    ) -> Result<bool, BlockError> {
        let begun = match session.arrive(sequence) {
            Ok(Arrival::First(begun)) => begun,
            Ok(Arrival::Repeat(first)) => {
                drop(change);
                under_way.give_back();
                self.0.env.mark("block: change came again");
                self.count(|stats| stats.repeats += 1);
                return first.outcome().await.map(|()| false);
            }
            Err(error) => {
                self.0.env.mark("block: change came late");
                self.count(|stats| stats.late += 1);
                return Err(error);
            }
        };
        let _held = match self.take(hosted, |bytes| &bytes.writes, bytes) {
            Ok(held) => held,
            // It has not happened, and is the first again when it comes again.
            Err(busy) => return begun.end(Err(busy)).map(|()| false),
        };
        under_way.begin();
        let outcome = match change.await {
            Ok(()) => {
                under_way.give_back();
                self.hold(hosted, session.predecessors).await
            }
            Err(fault) => Err(self.fail(at, hosted, &fault)),
        };
        begun.end(outcome).map(|()| true)
    }
}
