//! Messages to be sent on one link: bounded, by priority, large messages in parts (N5).
//!
//! A state machine without I/O. Small messages of a class keep their order, and so do its large
//! (split) ones; small ones overtake large ones, unless they are of the same flow: then they
//! queue with the large ones. Of each class at most one message is under way in parts, so the
//! receiver holds at most three half-received messages.

use std::collections::VecDeque;
use std::rc::Rc;

use metrics::Span;
use runtime::{Buf, Instant};
use wire::frame::{FrameKind, HEADER, Header, Priority, Service};

use crate::limits::Limits;
use crate::link::{CallState, Serving};

/// Pieces of higher classes after which a lower one gets a turn, as tasks do (C11).
const CLASS_SHARE: u32 = 16;

/// A message to be sent.
#[derive(Clone)]
pub(crate) struct Outgoing {
    /// Lengths are set from the content.
    pub(crate) header: Header,
    pub(crate) body: Vec<u8>,
    pub(crate) payload: Option<Buf>,
    /// Of a request: marked when it leaves.
    pub(crate) call: Option<Rc<CallState>>,
    /// Of a response: the request counts as being handled until this has left.
    pub(crate) serving: Option<Rc<Serving>>,
    /// Of a request: when its caller stops waiting.
    pub(crate) deadline: Option<Instant>,
    /// The operation that it belongs to.
    pub(crate) span: Option<Span>,
    /// Messages of one flow keep their order; 0 is none.
    pub(crate) flow: u64,
}

impl Outgoing {
    pub(crate) fn new(header: Header, body: Vec<u8>, payload: Option<Buf>) -> Outgoing {
        let payload = payload.filter(|payload| !payload.is_empty());
        let mut header = header;
        header.body_len = u32::try_from(body.len()).expect("bounded by BODY_MAX");
        let payload_len = payload.as_ref().map_or(0, |payload| payload.len());
        header.payload_len = u32::try_from(payload_len).expect("bounded by PAYLOAD_MAX");
        Outgoing {
            header,
            body,
            payload,
            call: None,
            serving: None,
            deadline: None,
            span: None,
            flow: 0,
        }
    }

    /// A message without content.
    pub(crate) fn signal(kind: FrameKind, version: u8, request: u64) -> Outgoing {
        Outgoing::new(Header { version, request, ..Header::empty(kind) }, Vec::new(), None)
    }

    fn content_len(&self) -> usize {
        self.header.body_len as usize + self.header.payload_len as usize
    }

    fn cost(&self) -> usize {
        HEADER + self.content_len()
    }

    fn is_cancelled(&self) -> bool {
        is_cancelled(&self.call, &self.serving)
    }
}

/// True when no caller waits for this request or response any more.
fn is_cancelled(call: &Option<Rc<CallState>>, serving: &Option<Rc<Serving>>) -> bool {
    call.as_ref().is_some_and(|call| call.cancelled.get())
        || serving.as_ref().is_some_and(|serving| serving.cancelled.get())
}

/// Body bytes of a frame: all of a message's, or some.
pub(crate) enum Body {
    Whole(Vec<u8>),
    Part(Rc<Vec<u8>>, std::ops::Range<usize>),
}

impl std::ops::Deref for Body {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Body::Whole(bytes) => bytes,
            Body::Part(bytes, range) => &bytes[range.clone()],
        }
    }
}

/// One frame to be sent. `body_crc` and the deadline of its header are set by the writer.
pub(crate) struct FramePart {
    pub(crate) header: Header,
    /// The service of its message: parts do not say.
    pub(crate) service: Option<Service>,
    pub(crate) body: Body,
    pub(crate) payload: Option<Buf>,
    pub(crate) deadline: Option<Instant>,
    /// The operation whose message is on its way whole with this piece.
    pub(crate) span: Option<Span>,
}

impl FramePart {
    pub(crate) fn len(&self) -> usize {
        HEADER + self.header.following()
    }
}

/// A split message under way.
struct Progress {
    header: Header,
    body: Rc<Vec<u8>>,
    payload: Option<Buf>,
    /// Content bytes sent, body first.
    sent: usize,
    call: Option<Rc<CallState>>,
    /// Held until the last part has left.
    serving: Option<Rc<Serving>>,
    span: Option<Span>,
    flow: u64,
}

#[derive(Default)]
struct Class {
    small: VecDeque<Outgoing>,
    /// Those that are split, and small ones that come behind one of their flow.
    large: VecDeque<Outgoing>,
    progress: Option<Progress>,
    /// Bytes of small messages sent since the last part of a large one.
    small_streak: usize,
}

impl Class {
    fn large_waits(&self) -> bool {
        self.progress.is_some() || !self.large.is_empty()
    }

    /// A message of this flow is among the large ones: the few that `queue_bytes_max` lets in.
    fn large_has(&self, flow: u64) -> bool {
        flow != 0
            && (self.progress.as_ref().is_some_and(|progress| progress.flow == flow)
                || self.large.iter().any(|out| out.flow == flow))
    }
}

#[derive(Default)]
pub(crate) struct SendQueue {
    classes: [Class; 3],
    /// Bytes of what waits, of messages under way the whole.
    bytes: usize,
    frames: usize,
    /// Pieces of higher classes sent while a lower one waited.
    streak: u32,
    /// Parts sent that the peer has not yet taken in.
    parts_inflight: u32,
}

impl SendQueue {
    /// Whether a call of this size may enter. Urgent classes have room when others have none.
    pub(crate) fn admits(&self, limits: &Limits, out: &Outgoing) -> bool {
        let (count, bytes) = (limits.queue_frames_max, limits.queue_bytes_max);
        let (count, bytes) = match out.header.priority {
            Priority::Control => (count, bytes),
            Priority::Foreground => (count / 8 * 7, bytes / 8 * 7),
            Priority::Background => (count / 2, bytes / 2),
        };
        self.frames < count && self.bytes + out.cost() <= bytes
    }

    pub(crate) fn frames(&self) -> usize {
        self.frames
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn push(&mut self, limits: &Limits, out: Outgoing) {
        self.bytes += out.cost();
        self.frames += 1;
        let class = &mut self.classes[out.header.priority as usize];
        if out.content_len() > limits.part_bytes || class.large_has(out.flow) {
            class.large.push_back(out);
        } else {
            class.small.push_back(out);
        }
    }

    /// Takes out a message that no caller waits for any more, unless a part of it has left: its
    /// payload and its share of the bounds are free at once, and not when it comes to the head.
    pub(crate) fn take_cancelled(&mut self, priority: Priority, request: u64) -> Option<Outgoing> {
        let class = &mut self.classes[priority as usize];
        let is_it = |out: &Outgoing| out.header.request == request && out.is_cancelled();
        let found = [&mut class.small, &mut class.large].into_iter().find_map(|queue| {
            let at = queue.iter().position(is_it)?;
            queue.remove(at)
        })?;
        self.bytes -= found.cost();
        self.frames -= 1;
        Some(found)
    }

    /// Parts wait until the peer has taken in those that were sent.
    pub(crate) fn waits_for_credit(&self, limits: &Limits) -> bool {
        self.parts_inflight >= limits.parts_inflight_max
            && self.classes.iter().any(Class::large_waits)
    }

    /// The peer has taken in `parts` more.
    pub(crate) fn credit(&mut self, parts: u16) {
        self.parts_inflight = self.parts_inflight.saturating_sub(u32::from(parts));
    }

    fn may_pop(&self, class: usize, limits: &Limits) -> bool {
        let class = &self.classes[class];
        let parts = self.parts_inflight < limits.parts_inflight_max;
        !class.small.is_empty() || (class.large_waits() && parts)
    }

    /// The next frame to send. Frames without a waiting caller are skipped.
    pub(crate) fn pop(&mut self, limits: &Limits) -> Option<FramePart> {
        loop {
            let highest = (0..self.classes.len()).find(|&i| self.may_pop(i, limits))?;
            let lower = (highest + 1..self.classes.len()).find(|&i| self.may_pop(i, limits));
            let class = match lower {
                Some(lower) if self.streak >= CLASS_SHARE => {
                    self.streak = 0;
                    lower
                }
                Some(_) => {
                    self.streak += 1;
                    highest
                }
                None => highest,
            };
            if let Some(piece) = self.pop_class(class, limits) {
                return Some(piece);
            }
        }
    }

    /// The next frame of a class, or `None` when the message there was cancelled.
    fn pop_class(&mut self, index: usize, limits: &Limits) -> Option<FramePart> {
        let class = &mut self.classes[index];
        let parts = self.parts_inflight < limits.parts_inflight_max;
        let large_waits = class.large_waits() && parts;
        let small_first = !large_waits || class.small_streak < limits.part_bytes;
        if small_first && let Some(out) = class.small.pop_front() {
            return self.send_whole(index, out);
        }
        class.small_streak = 0;
        if class.progress.is_some() {
            return self.continue_split(index, limits);
        }
        let out = class.large.pop_front()?;
        if out.content_len() > limits.part_bytes {
            self.start_split(index, out)
        } else {
            self.send_whole(index, out)
        }
    }

    /// `None` when no caller waits for it any more.
    fn send_whole(&mut self, index: usize, out: Outgoing) -> Option<FramePart> {
        self.bytes -= out.cost();
        self.frames -= 1;
        if out.is_cancelled() {
            return None;
        }
        self.classes[index].small_streak += out.cost();
        if let Some(call) = &out.call {
            call.sent.set(true);
        }
        let Outgoing { header, body, payload, deadline, span, .. } = out;
        let service = header.service;
        Some(FramePart { header, service, body: Body::Whole(body), payload, deadline, span })
    }

    /// `None` when no caller waits for it any more.
    fn start_split(&mut self, index: usize, out: Outgoing) -> Option<FramePart> {
        if out.is_cancelled() {
            self.bytes -= out.cost();
            self.frames -= 1;
            return None;
        }
        if let Some(call) = &out.call {
            call.sent.set(true);
        }
        let class = &mut self.classes[index];
        let header = Header { split: true, ..out.header };
        class.progress = Some(Progress {
            header,
            body: Rc::new(out.body),
            payload: out.payload,
            sent: 0,
            call: out.call,
            serving: out.serving,
            span: out.span,
            flow: out.flow,
        });
        let body = Body::Whole(Vec::new());
        let (service, deadline) = (header.service, out.deadline);
        Some(FramePart { header, service, body, payload: None, deadline, span: None })
    }

    fn continue_split(&mut self, index: usize, limits: &Limits) -> Option<FramePart> {
        let class = &mut self.classes[index];
        let progress = class.progress.as_mut()?;
        let body_len = progress.body.len();
        let total = body_len + progress.header.payload_len as usize;
        if is_cancelled(&progress.call, &progress.serving) {
            // The receiver forgets what it has of the message.
            let Header { version, priority, request, .. } = progress.header;
            let cancel = Header { version, priority, request, ..Header::empty(FrameKind::Cancel) };
            class.progress = None;
            self.bytes -= HEADER + total;
            self.frames -= 1;
            let body = Body::Whole(Vec::new());
            return Some(FramePart {
                header: cancel,
                service: None,
                body,
                payload: None,
                deadline: None,
                span: None,
            });
        }
        let from = progress.sent;
        let mut header = Header {
            version: progress.header.version,
            priority: progress.header.priority,
            sectors: progress.header.sectors,
            request: progress.header.request,
            ..Header::empty(FrameKind::Part)
        };
        let (body, payload) = if from < body_len {
            let to = body_len.min(from + limits.part_bytes);
            header.body_len = (to - from) as u32;
            header.sectors = false;
            (Body::Part(progress.body.clone(), from..to), None)
        } else {
            let to = total.min(from + limits.part_bytes);
            header.payload_len = (to - from) as u32;
            let payload = progress.payload.as_ref().expect("content beyond the body");
            (Body::Whole(Vec::new()), Some(payload.slice(from - body_len..to - body_len)))
        };
        progress.sent += header.following();
        let service = progress.header.service;
        self.parts_inflight += 1;
        let mut span = None;
        if progress.sent == total {
            span = progress.span.take();
            class.progress = None;
            self.bytes -= HEADER + total;
            self.frames -= 1;
        }
        Some(FramePart { header, service, body, payload, deadline: None, span })
    }
}
