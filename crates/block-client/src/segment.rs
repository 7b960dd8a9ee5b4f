//! One segment, as a volume's client sees it: its owner, the session there, requests and retries.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use base::{Fault, Kind};
use block_proto::{
    BlockAnswer, BlockError, BlockIo, Located, SERVICE, Sequence, SessionRef, decode_answer,
};
use block_volume::contract::Clear;
use block_volume::geometry::Extent;
use block_volume::ids::SegmentId;
use block_volume::limits::BLOCK;
use block_volume::location::{LocationRun, location_group};
use futures_util::future::{Either, select};
use runtime::sync::Mutex;
use runtime::{Buf, Instant};
use transport::{CallError, Priority, Request, Token};

use super::direct::{DirectReader, part_of};
use super::location_cache::{Watch, Watching};
use super::owner::OwnerWatch;
use super::ranges::Ranges;
use super::session::{Changes, Session, Ticket};
use super::shared::{Attachment, SegmentOwner, Shared};

/// A request to a segment.
#[derive(Clone, Debug)]
pub(super) enum Ask {
    Read,
    Write(Buf),
    Clear(Clear),
    Pieces(usize),
}

impl Ask {
    fn changes(&self) -> bool {
        matches!(self, Ask::Write(_) | Ask::Clear(_))
    }
}

/// A successful answer with its payload.
pub(super) type Answered = (BlockAnswer, Option<Buf>);

/// Outcome of a try.
enum AttemptEnd {
    /// With a successful answer, in the session with this number.
    Answered(Answered, u64),
    /// A retry may help: at once, or after a pause.
    Again { pause: bool, why: Fault },
    /// A retry does not help.
    Failed(Fault),
}

/// The segment's owner, and the session there.
#[derive(Default)]
struct Link {
    /// An owner that did not answer as it should: the route is asked before it is used again.
    doubt: Option<SegmentOwner>,
    next: u64,
    /// The next session is begun no earlier.
    not_before: Instant,
    failures: u32,
    /// Sessions that could not be begun since the start, and why the last one could not.
    failed: u64,
    failure: Option<Fault>,
    /// Epoch of the owner who admitted the last session; 0 before there was one.
    admitted: u64,
}

/// Why a call has no answer.
enum CallEnd {
    /// The segment is another's by now.
    Moved,
    Failed(CallError),
}

/// End of the lease on the locations of a session.
#[derive(Clone, Copy, Default)]
struct LocationLease {
    session: u64,
    until: Instant,
}

pub(super) struct Segment {
    shared: Rc<Shared>,
    id: SegmentId,
    ranges: Ranges,
    /// One session is begun at a time.
    turn: Mutex<()>,
    link: RefCell<Link>,
    owner: Rc<OwnerWatch>,
    changes: Rc<Changes>,
    direct: Rc<DirectReader>,
    watch: Watch,
    lease: Cell<LocationLease>,
}

impl Segment {
    pub(super) fn new(shared: &Rc<Shared>, index: u32) -> Rc<Segment> {
        let id = SegmentId { volume: shared.volume, index };
        Rc::new(Segment {
            owner: OwnerWatch::new(shared, id),
            shared: shared.clone(),
            id,
            ranges: Ranges::default(),
            turn: Mutex::new(()),
            link: RefCell::new(Link { next: 1, ..Link::default() }),
            changes: Changes::new(),
            direct: DirectReader::new(shared, id),
            watch: Watch::default(),
            lease: Cell::default(),
        })
    }

    /// Performs a request, with retries. An error is final. After `Unknown` a change may have
    /// happened or not; after another error it has not. It does not happen later.
    pub(super) async fn perform(
        &self,
        extent: Extent,
        ask: Ask,
        priority: Priority,
    ) -> Result<Answered, Fault> {
        let blocks = extent.offset / BLOCK..(extent.offset + extent.len).div_ceil(BLOCK);
        let _claim = self.ranges.claim(blocks.clone(), ask.changes()).await;
        let env = &self.shared.env;
        let give_up = env.now() + self.shared.limits.deadline;
        let mut ticket = None;
        let mut tries = 0u32;
        let mut locate = matches!(ask, Ask::Read) && self.direct.is_wanted();
        if locate && let Some(data) = self.read_known(extent, &blocks).await {
            return Ok((BlockAnswer::Read, Some(data)));
        }
        // From now on reads do not use the locations of the changed blocks.
        let _changing = ask.changes().then(|| {
            self.shared.locations.forget(self.id.index, blocks.clone());
            self.watch.change(blocks.clone())
        });
        loop {
            let question = locate.then(|| self.watch.ask(location_group(&blocks)));
            let sent = env.now();
            let attempt = self.attempt(extent, &ask, locate, priority, &mut ticket).await;
            let (wait, why) = match attempt {
                AttemptEnd::Answered((BlockAnswer::Located(located), _), session) if locate => {
                    locate = false;
                    let question = question.expect("places were asked for");
                    self.learn(&question, &located, (session, sent));
                    let Some(spans) = part_of(&located, blocks.clone()) else {
                        // The locations are of other blocks than were requested.
                        self.direct.note_failure();
                        continue;
                    };
                    match self.direct.read(extent, &spans).await {
                        Some(data) => return Ok((BlockAnswer::Read, Some(data))),
                        None => self.shared.locations.forget(self.id.index, blocks.clone()),
                    }
                    continue;
                }
                AttemptEnd::Answered(answered, _) => {
                    settle(&mut ticket);
                    return Ok(answered);
                }
                // A server of an older version has no locations.
                AttemptEnd::Failed(fault) if locate && fault.kind == Kind::Invalid => {
                    self.direct.note_failure();
                    locate = false;
                    continue;
                }
                AttemptEnd::Failed(fault) => {
                    settle(&mut ticket);
                    return Err(fault);
                }
                AttemptEnd::Again { pause, why } => (pause, why),
            };
            tries += 1;
            if env.now() >= give_up {
                env.mark("block: request given up");
                tracing::error!(segment = %self.id, tries, "volume request given up: {why}");
                let kind = if ask.changes() { Kind::Unknown } else { why.kind };
                return Err(Fault::new(kind, why.message));
            }
            env.mark("block: request tried again");
            if wait {
                env.sleep(env.jitter(self.shared.limits.pause(tries))).await;
            }
        }
    }

    /// Reads at known locations, without the block server (decision 24).
    async fn read_known(&self, extent: Extent, blocks: &Range<u64>) -> Option<Buf> {
        let spans = self.known(blocks)?;
        let data = self.direct.read(extent, &spans).await;
        match &data {
            Some(_) => {
                self.shared.env.mark("block: read by a place that was known");
                self.shared.count(|reads| reads.known += 1);
            }
            // The file was collected, or is not open yet.
            None => self.shared.locations.forget(self.id.index, blocks.clone()),
        }
        data
    }

    /// Locations of blocks, while the location lease lasts.
    fn known(&self, blocks: &Range<u64>) -> Option<Vec<LocationRun>> {
        let (session, lease) = (self.usable()?, self.lease.get());
        let over = self.shared.over.get() || self.shared.env.now() >= lease.until;
        if over || session.number != lease.session {
            return None;
        }
        self.shared.locations.find(self.id.index, session.number, blocks.clone())
    }

    /// Keeps locations that were requested at `sent`.
    fn learn(&self, question: &Watching<'_>, located: &Located, (session, sent): (u64, Instant)) {
        let (blocks, changed) = question.answered();
        let usable = self.usable().is_some_and(|now| now.number == session);
        // No server begins before the requested blocks.
        if located.location_lease_ms == 0 || !usable || !blocks.contains(&located.first) {
            return;
        }
        let mut until = sent + Duration::from_millis(u64::from(located.location_lease_ms));
        if self.lease.get().session == session {
            until = until.max(self.lease.get().until);
        }
        self.lease.set(LocationLease { session, until });
        let (which, spans) = ((self.id.index, session), (located.first, &located.spans[..]));
        self.shared.locations.keep(which, spans, blocks, &changed);
    }

    async fn attempt(
        &self,
        extent: Extent,
        ask: &Ask,
        locate: bool,
        priority: Priority,
        ticket: &mut Option<Ticket>,
    ) -> AttemptEnd {
        let session = match self.session().await {
            Ok(session) => session,
            Err(ended) => return ended,
        };
        let sequence = if ask.changes() {
            if ticket.is_none() {
                *ticket = Some(self.changes.number().await);
            }
            // It keeps its number: when it has happened before, it does not happen again.
            ticket.as_ref().expect("just drawn").sequence()
        } else {
            Sequence { seq: 1, floor: 1 }
        };
        let at = self.at(session.number, session.grant);
        let Extent { offset, len } = extent;
        let (request, payload) = match ask {
            Ask::Read => (BlockIo::Read { at, offset, len: len as u32, locate }, None),
            Ask::Write(data) => (BlockIo::Write { at, sequence, offset }, Some(data.clone())),
            Ask::Clear(how) => (BlockIo::Clear { at, sequence, offset, len, how: *how }, None),
            Ask::Pieces(most) => (BlockIo::Pieces { at, offset, len, most: *most as u32 }, None),
        };
        let timeout = self.shared.limits.call_timeout;
        match self.call(session.place, request, payload, (priority, timeout)).await {
            Ok(Ok(answered)) => AttemptEnd::Answered(answered, session.number),
            Ok(Err(error)) => self.refused(error, &session),
            Err(CallEnd::Moved) => {
                self.doubt(session.place);
                again(false, "the segment has moved to another block server")
            }
            Err(CallEnd::Failed(error)) => {
                if error != CallError::Busy {
                    self.doubt(session.place);
                }
                again(true, &error.to_string())
            }
        }
    }

    fn refused(&self, error: BlockError, session: &Session) -> AttemptEnd {
        match error {
            BlockError::NoSession => {
                session.lose();
                again(false, "the block server does not know the session")
            }
            BlockError::NotOwner => {
                session.lose();
                self.doubt(session.place);
                again(true, "the segment moves to another block server")
            }
            BlockError::Unknown => {
                again(true, "the block server cannot say whether the change happened")
            }
            BlockError::Busy | BlockError::Superseded { .. } => {
                again(true, "the block server is busy")
            }
            BlockError::Fenced { .. } => AttemptEnd::Failed(self.shared.end()),
            BlockError::Full => failed(Kind::Full, "the cluster has no room for the write"),
            BlockError::Corrupt => failed(Kind::Corrupt, "stored bytes do not verify"),
            BlockError::Invalid => {
                failed(Kind::Invalid, "the block server refuses the request: see its log")
            }
        }
    }

    /// Ends the session at the server, if there is one. While a change is under way it stays: the server would
    /// forget the change's number, and a copy would happen once more. The next attachment's fence ends it.
    pub(super) async fn close(&self) {
        let is_quiet = |session: &Rc<Session>| !session.is_lost() && !self.changes.are_open();
        let session = self.changes.session().filter(is_quiet);
        self.changes.go_on(None, 0);
        let Some(session) = session else { return };
        let at = self.at(session.number, session.grant);
        let timeout = self.shared.limits.call_timeout;
        // If it is lost, the next attachment's fence does the same.
        let how = (Priority::Foreground, timeout);
        let _ = self.call(session.place, BlockIo::Close { at }, None, how).await;
    }

    fn at(&self, session: u64, grant: u64) -> SessionRef {
        SessionRef { segment: self.id, attachment: self.shared.attachment.epoch, session, grant }
    }

    fn doubt(&self, place: SegmentOwner) {
        self.link.borrow_mut().doubt = Some(place);
    }

    /// The present session, if it is valid.
    fn usable(&self) -> Option<Rc<Session>> {
        if self.link.borrow().doubt.is_some() {
            return None;
        }
        self.changes.session().filter(|session| !session.is_lost())
    }

    /// A session at the segment's present owner.
    async fn session(&self) -> Result<Rc<Session>, AttemptEnd> {
        self.shared.check().map_err(AttemptEnd::Failed)?;
        if let Some(session) = self.usable() {
            return Ok(session);
        }
        let failed = self.link.borrow().failed;
        let _turn = self.turn.lock().await;
        self.shared.check().map_err(AttemptEnd::Failed)?;
        if let Some(session) = self.usable() {
            return Ok(session);
        }
        {
            // The failure of a begin answers all requests that waited while it ran.
            let link = self.link.borrow();
            if link.failed != failed
                && let Some(why) = &link.failure
            {
                return Err(AttemptEnd::Again { pause: true, why: why.clone() });
            }
        }
        let env = &self.shared.env;
        let not_before = self.link.borrow().not_before;
        if not_before > env.now() {
            env.sleep_until(not_before).await;
        }
        let begun = self.begin().await;
        let link = &mut *self.link.borrow_mut();
        link.failures = if begun.is_ok() { 0 } else { link.failures + 1 };
        if let Err(AttemptEnd::Again { pause: true, why }) = &begun {
            link.failed += 1;
            link.failure = Some(why.clone());
        }
        link.not_before = env.now() + env.jitter(self.shared.limits.pause(link.failures));
        begun
    }

    async fn begin(&self) -> Result<Rc<Session>, AttemptEnd> {
        let env = &self.shared.env;
        let doubt = self.link.borrow_mut().doubt.take();
        let place = self.shared.route.place(self.id, doubt).await;
        let place = place.map_err(|fault| match fault.kind {
            Kind::Fenced => AttemptEnd::Failed(self.shared.end()),
            Kind::NotFound | Kind::Invalid => AttemptEnd::Failed(fault),
            _ => AttemptEnd::Again { pause: true, why: fault },
        });
        let place = place.inspect_err(|_| self.link.borrow_mut().doubt = doubt)?;
        let kept = self.changes.session();
        if let Some(session) = kept.filter(|kept| !kept.is_lost() && kept.place == place) {
            return Ok(session); // The server or the network was slow.
        }
        if let Some(kept) = self.changes.session().filter(|kept| kept.place != place) {
            self.owner.lose(kept.place); // Requests that wait for it come along.
        }
        let number = {
            let link = &mut *self.link.borrow_mut();
            link.next += 1;
            link.next - 1
        };
        let Attachment { epoch: own, fence } = self.shared.attachment;
        let after = self.link.borrow().admitted;
        let open = BlockIo::Open { at: self.at(number, 0), fence, after };
        let timeout = self.shared.limits.open_timeout;
        match self.call(place, open, None, (Priority::Foreground, timeout)).await {
            Ok(Ok((BlockAnswer::Opened { grant, last, epoch, .. }, _))) => {
                env.mark("block: session begun");
                self.direct.begin_session();
                self.link.borrow_mut().admitted = epoch;
                let session = Session::new(number, grant, place);
                self.changes.go_on(Some(session.clone()), last);
                Ok(session)
            }
            Ok(Err(BlockError::Superseded { session })) => {
                let link = &mut *self.link.borrow_mut();
                link.next = link.next.max(session.saturating_add(1));
                Err(again(false, "a later session was begun"))
            }
            Ok(Err(BlockError::Fenced { .. })) => Err(AttemptEnd::Failed(self.shared.end())),
            Ok(Err(BlockError::Busy)) => Err(again(true, "the block server is busy")),
            // Servers before decision 73 accept it only from attachments that are alone.
            Ok(Err(BlockError::Invalid)) if after > 0 && fence != own => {
                self.link.borrow_mut().admitted = 0;
                Err(again(false, "the block server is of an earlier version"))
            }
            Ok(Err(error)) => {
                self.doubt(place);
                Err(again(true, &format!("the segment is not served at {}: {error}", place.addr)))
            }
            Ok(Ok(_)) => Err(failed(Kind::Invalid, "the block server gives another answer")),
            Err(CallEnd::Moved) => {
                self.doubt(place);
                Err(again(false, "the segment has moved to another block server"))
            }
            Err(CallEnd::Failed(error)) => {
                self.doubt(place);
                Err(again(true, &error.to_string()))
            }
        }
    }

    /// Calls an owner, for as long as it has the segment: one that hears nothing, or stands still, never
    /// says that it lost it.
    async fn call(
        &self,
        place: SegmentOwner,
        request: BlockIo,
        payload: Option<Buf>,
        how: (Priority, Duration),
    ) -> Result<Result<Answered, BlockError>, CallEnd> {
        let _waits = self.owner.wait(place);
        let call = pin!(self.send(place, request, payload, how));
        match select(call, pin!(self.owner.lost(place))).await {
            Either::Left((answer, _)) => {
                self.owner.note_answer();
                answer.map_err(CallEnd::Failed)
            }
            Either::Right(_) => {
                self.shared.env.mark("block: request leaves an owner that has lost the segment");
                Err(CallEnd::Moved)
            }
        }
    }

    async fn send(
        &self,
        place: SegmentOwner,
        request: BlockIo,
        payload: Option<Buf>,
        (priority, timeout): (Priority, Duration),
    ) -> Result<Result<Answered, BlockError>, CallError> {
        let request = Request {
            service: SERVICE,
            op: request.op(),
            priority,
            trace: self.shared.env.trace(),
            flow: 0, // Requests that depend on order wait for an answer.
            token: Token::NONE,
            body: request.encode(),
            payload,
        };
        let response = self.shared.endpoint.call(place.addr, request, timeout).await?;
        match decode_answer(response.status, &response.body) {
            Ok(answer) => Ok(answer.map(|answer| (answer, response.payload))),
            Err(error) => {
                tracing::warn!(segment = %self.id, %error, "answer not of its form");
                Ok(Err(BlockError::Invalid))
            }
        }
    }
}

fn settle(ticket: &mut Option<Ticket>) {
    if let Some(ticket) = ticket.take() {
        ticket.settle();
    }
}

fn again(pause: bool, why: &str) -> AttemptEnd {
    AttemptEnd::Again { pause, why: Fault::new(Kind::Retry, why) }
}

fn failed(kind: Kind, why: &str) -> AttemptEnd {
    AttemptEnd::Failed(Fault::new(kind, why))
}
