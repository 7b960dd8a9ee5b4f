//! [`Appender`]: drives the writer's protocol.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use base::limits::APPEND_DATA_MAX;
use base::{ChunkId, Epoch};
use futures_util::future::{Either, select};
use metrics::{Fact, Outcome, Span, Step};
use runtime::sync::{Mutex, Notify, Semaphore, oneshot};
use runtime::{Class, Duration, Env, Instant};
use wire::control::{Attributes, CallClass, StreamChange, StreamReply, Verify, WriterGrant};
use wire::data::{AppendRequest, CommitRequest, DataRequest, Purpose};
use wire::row::{CODED_ROW_MAX, COPY_ROW_MAX};

use crate::answers::{describe, op_result, send_error, sent_result};
use crate::ask::TimedCall;
use crate::counters::{add, ended_len};
use crate::error::Error;
use crate::file::FlatLogFile;
use crate::health::{CallEnd, Target};
use crate::limits::APPENDS_SHARE;
use crate::peers::PeerError;
use crate::queue::{Pending, Queue};
use crate::rows::{LayError, Rows, rows_of};
use crate::session::Refusal;
use crate::stage::{Staged, check_left};
use crate::writer::{
    Action, Event, Fragments, Laid, Layout, SendId, StreamOp, Writer, WriterConfig, bytes_max,
};

/// Pause while the buffer pool is empty.
const MEMORY_PAUSE: Duration = Duration::from_millis(1);

/// The one writer of a file. Appends are acknowledged in the order of their submission.
///
/// Dropping it abandons unacknowledged appends and leaves the file open for readers of its
/// tail; [`Appender::close`] ends it properly.
pub struct Appender(Rc<Shared>);

struct Shared {
    file: FlatLogFile,
    env: Env,
    core: RefCell<Writer>,
    /// Which appends are read back before they are sent.
    verify: Verify,
    /// Room for appends and for bytes of sectors.
    count: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
    /// Appends of several parts stay together.
    turn: Mutex<()>,
    queue: RefCell<Queue>,
    /// Actions that wait for memory, and all behind them.
    held: RefCell<VecDeque<Action>>,
    /// Signals for the calls to a replica of a chunk, that it was left.
    calls: RefCell<BTreeMap<(ChunkId, u8), Rc<Notify>>>,
    /// Due time of the timer, and the signal that it has changed.
    armed: Cell<Option<Instant>>,
    rearm: Notify,
    /// Version of the lists that the protocol knows.
    lists_seen: Cell<u64>,
    /// Cause of the end.
    over: RefCell<Option<Over>>,
    closed: RefCell<Vec<oneshot::Sender<Result<u64, Error>>>>,
    abandoned: Cell<bool>,
}

#[derive(Clone)]
enum Over {
    Closed(u64),
    Failed(Error),
}

/// An append under way. Ends, with its offset in the file, when it is durable on as many
/// replicas as the file's policy asks; dropping it does not cancel the append.
#[derive(Debug)]
pub struct Append {
    offset: u64,
    done: Option<oneshot::Receiver<Result<(), Error>>>,
}

impl Append {
    /// Offset of its first byte, if it succeeds.
    pub fn offset(&self) -> u64 {
        self.offset
    }
}

impl Future for Append {
    type Output = Result<u64, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let offset = self.offset;
        let Some(done) = &mut self.done else { return Poll::Ready(Ok(offset)) };
        let answer = std::task::ready!(Pin::new(done).poll(cx));
        self.done = None;
        Poll::Ready(match answer {
            Ok(result) => result.map(|()| offset),
            Err(_) => Err(Error::invalid("append", "the writer was dropped")),
        })
    }
}

impl Appender {
    pub(crate) fn start(
        file: &FlatLogFile,
        grant: WriterGrant,
        (purpose, in_copies): (Purpose, bool),
    ) -> Result<Appender, Error> {
        let client = &file.0.client;
        let (env, config) = (client.env().clone(), client.config());
        note_servers(client, &grant);
        let (end, life) = (grant.len, rights_life(&grant));
        // Chunks of a code always say how many fragments they have.
        let policy = file.policy();
        let copies = policy.in_copies().copies;
        let code = Fragments { k: policy.data, p: policy.parity() };
        let code = policy.is_coded().then_some(code);
        let writer = WriterConfig { copies, code, in_copies, ..config.writer.clone() };
        let mut core = Writer::new(writer, client.0.chase.clone(), grant, env.now())
            .map_err(|error| describe(file.path(), error, &config.writer.stall_budget))?;
        core.set_purpose(purpose);
        // A writer that has not begun may have to leave its chunk.
        let armed = core.deadline();
        let shared = Rc::new(Shared {
            file: file.clone(),
            env: env.clone(),
            core: RefCell::new(core),
            verify: policy.verify,
            count: Arc::new(Semaphore::new(config.appends_inflight_max as usize)),
            bytes: Arc::new(Semaphore::new(config.window_bytes as usize)),
            turn: Mutex::new(()),
            queue: RefCell::new(Queue::new(end)),
            held: RefCell::default(),
            calls: RefCell::default(),
            armed: Cell::new(armed),
            rearm: Notify::new(),
            lists_seen: Cell::new(0),
            over: RefCell::default(),
            closed: RefCell::default(),
            abandoned: Cell::new(false),
        });
        shared.note_rights(life);
        env.spawn(Class::Foreground, "writer", shared.clone().keep_time());
        Ok(Appender(shared))
    }

    /// Sets the purpose of appends that are submitted from now on.
    pub fn set_purpose(&self, purpose: Purpose) {
        self.0.core.borrow_mut().set_purpose(purpose);
    }

    /// The file that it writes.
    pub fn file(&self) -> &FlatLogFile {
        &self.0.file
    }

    /// The epoch it writes under.
    pub fn epoch(&self) -> Epoch {
        self.0.core.borrow().epoch()
    }

    /// Length of the file of which all is acknowledged.
    pub fn acked_len(&self) -> u64 {
        self.0.core.borrow().acked_len()
    }

    /// Length the file has when all that was submitted is acknowledged.
    pub fn submitted_len(&self) -> u64 {
        self.0.queue.borrow().end
    }

    /// Appends `data` and waits until it is durable; answers its offset in the file.
    pub async fn append(&self, data: &[u8]) -> Result<u64, Error> {
        self.submit(data).await?.await
    }

    /// Appends records, in order and without gaps, as one append: packed into shared sectors, on
    /// disk and acknowledged together (up to 1 MB, compressed copies 256 KiB; longer ones are several).
    pub async fn append_many(&self, records: &[&[u8]]) -> Result<u64, Error> {
        self.submit_many(records).await?.await
    }

    /// Starts an append, as soon as the window has room. Those submitted first come first.
    pub async fn submit(&self, data: &[u8]) -> Result<Append, Error> {
        self.submit_many(&[data]).await
    }

    /// As [`Appender::submit`], of several records as with [`Appender::append_many`]. When one of several
    /// appends fails, those before it may be there: the error is not [`Error::Unavailable`] then.
    pub async fn submit_many(&self, records: &[&[u8]]) -> Result<Append, Error> {
        let shared = &self.0;
        let _turn = shared.turn.lock().await;
        shared.check_open()?;
        let offset = shared.queue.borrow().end;
        let partly = |error: Error| error.behind(shared.queue.borrow().end - offset);
        let mut parts = Vec::new();
        let mut filled = 0;
        // One for all of them, though it may change while they wait for room.
        let layout = shared.layout();
        let append_max = match layout.laid() {
            Laid::Plain => APPEND_DATA_MAX,
            Laid::Row => COPY_ROW_MAX,
            Laid::Coded(_) => CODED_ROW_MAX,
        };
        for mut record in records.iter().copied() {
            while filled + record.len() > append_max {
                // A record that fits into one append is not cut.
                let room = append_max - filled;
                let cut = if filled > 0 && record.len() <= append_max { 0 } else { room };
                parts.push(&record[..cut]);
                shared.push(&parts, layout).await.map_err(partly)?;
                parts.clear();
                filled = 0;
                record = &record[cut..];
            }
            filled += record.len();
            parts.push(record);
        }
        if filled > 0 {
            shared.push(&parts, layout).await.map_err(partly)?;
        } else if shared.queue.borrow().end == offset {
            return Ok(Append { offset, done: None });
        }
        Ok(Append { offset, done: shared.wait_for_all() })
    }

    /// Waits until all that was submitted is durable.
    pub async fn sync(&self) -> Result<(), Error> {
        self.0.check_open()?;
        match self.0.wait_for_all() {
            None => Ok(()),
            done => Append { offset: 0, done }.await.map(drop),
        }
    }

    /// Ends the writer when all is durable: the file is sealed at its length, which is
    /// answered, and can be opened for append again.
    pub async fn close(self) -> Result<u64, Error> {
        self.0.clone().close(false, None).await
    }

    /// As [`Appender::close`], and gives the file these attributes in the same step: for copies
    /// that keep their times.
    pub async fn close_as(self, attributes: Attributes) -> Result<u64, Error> {
        self.0.clone().close(false, Some(attributes)).await
    }

    /// As [`Appender::close`]; the file takes no appends ever again.
    pub async fn finish(self) -> Result<u64, Error> {
        self.0.clone().close(true, None).await
    }
}

impl Drop for Appender {
    fn drop(&mut self) {
        let open = self.0.over.borrow().is_none();
        if open && self.0.closed.borrow().is_empty() {
            self.0.abandoned.set(true);
            self.0.count.close();
            self.0.rearm.notify_one();
        }
    }
}

impl fmt::Debug for Appender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Appender({} at epoch {})", self.0.file.path(), self.epoch())
    }
}

impl Shared {
    fn check_open(&self) -> Result<(), Error> {
        match &*self.over.borrow() {
            None => Ok(()),
            Some(Over::Failed(error)) => Err(error.clone()),
            Some(Over::Closed(_)) => {
                Err(Error::invalid(self.file.path(), "this writer is closed; open the file again"))
            }
        }
    }

    /// How appends are laid out.
    fn layout(&self) -> Layout {
        let layout = self.core.borrow().layout();
        let compression = layout.compression.or(self.file.0.client.config().compression);
        Layout { compression, ..layout }
    }

    /// Submits one append of the protocol, laid out so.
    async fn push(self: &Rc<Self>, parts: &[&[u8]], layout: Layout) -> Result<(), Error> {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        if len == 0 {
            return Ok(());
        }
        // The longest row of some codes takes more than a small window has: it goes alone.
        let size = bytes_max(layout.laid(), rows_of(layout).0.block(), len) as u32;
        let size = size.min(self.file.0.client.config().window_bytes);
        let span = self.env.begin(self.env.trace(), "append", None);
        let count = self.count.clone().acquire_owned().await;
        let bytes = self.bytes.clone().acquire_many_owned(size).await;
        span.note(Step::Admitted, self.env.now().as_nanos(), Fact::Bytes(len as u64));
        self.check_open()?;
        let (Ok(count), Ok(bytes)) = (count, bytes) else {
            return Err(Error::invalid(self.file.path(), "the writer was dropped"));
        };
        let staged = self.stage(parts, layout, size as usize).await?;
        self.check_open()?;
        let (bytes_of_sectors, laid) = (staged.bytes(), staged.laid());
        {
            let len = len as u32;
            let (staged, room) = (Some(staged), Some([count, bytes]));
            let purpose = self.core.borrow().purpose();
            self.queue.borrow_mut().push(Pending { staged, len, purpose, span, room });
        }
        self.process(Event::Append { len: len as u32, bytes: bytes_of_sectors, laid });
        Ok(())
    }

    /// Lays an append out that takes so many `bytes`, as soon as there is memory.
    async fn stage(&self, parts: &[&[u8]], layout: Layout, bytes: usize) -> Result<Staged, Error> {
        let start = self.env.now();
        loop {
            let error = match self.lay_out(parts, layout, bytes) {
                Ok(staged) => return Ok(staged),
                Err(error) => error,
            };
            let waited = self.env.now() - start;
            if waited >= self.file.0.client.config().writer.stall_budget {
                let what = format!("append to {}", self.file.path());
                let cause = Error::traced(error.to_string());
                return Err(Error::Unavailable { what, cause, waited });
            }
            self.env.sleep(MEMORY_PAUSE).await;
        }
    }

    fn lay_out(&self, parts: &[&[u8]], layout: Layout, bytes: usize) -> Result<Staged, LayError> {
        // A lone append leaves memory to connections alone: what fills the pool may wait for it.
        if !self.queue.borrow().is_acknowledged() {
            check_left(self.env.pool(), bytes, APPENDS_SHARE)?;
        }
        let rows = &mut *self.file.0.client.0.rows.borrow_mut();
        let staged = Staged::lay_out(self.env.pool(), rows, (layout, self.verify), parts);
        self.count_verified(rows);
        staged
    }

    /// Counts what was read back before it is sent.
    fn count_verified(&self, rows: &Rows) {
        let client = &self.file.0.client.0;
        let (checked, wrong) = rows.verified();
        let more = checked - client.counters.rows_verified.replace(checked);
        if more == 0 {
            return;
        }
        let more_wrong = wrong - client.counters.rows_wrong.replace(wrong);
        client.append_metrics.verify(more, more_wrong);
        if more_wrong > 0 {
            self.env.mark("writer: a kernel that errs is out");
        }
    }

    /// Something that ends when all that was submitted is acknowledged; nothing when it is.
    fn wait_for_all(&self) -> Option<oneshot::Receiver<Result<(), Error>>> {
        if let Some(Over::Failed(error)) = &*self.over.borrow() {
            let (sender, receiver) = oneshot::channel();
            let _ = sender.send(Err(error.clone())); // The receiver is here.
            return Some(receiver);
        }
        self.queue.borrow_mut().wait_for_all()
    }

    async fn close(
        self: Rc<Self>,
        finish: bool,
        attributes: Option<Attributes>,
    ) -> Result<u64, Error> {
        let client = self.file.0.client.clone();
        client.operation("close", self.end_writer(finish, attributes)).await
    }

    async fn end_writer(
        self: Rc<Self>,
        finish: bool,
        attributes: Option<Attributes>,
    ) -> Result<u64, Error> {
        let _turn = self.turn.lock().await;
        let (sender, closed) = oneshot::channel();
        self.check_open()?;
        self.closed.borrow_mut().push(sender);
        self.process(Event::Close { finish });
        let len = match closed.await {
            Ok(result) => result?,
            Err(_) => return Err(Error::invalid(self.file.path(), "the client is going down")),
        };
        match attributes {
            Some(attributes) => {
                let noted = self.note_len(len, attributes).await;
                noted.map_err(|error| error.about("set attributes of", self.file.path()))?;
            }
            None => self.record_len(len).await,
        }
        Ok(len)
    }

    /// Records the length in the namespace, for listings. The stream service has the true one, so a
    /// failure here does not fail the file.
    async fn record_len(&self, len: u64) {
        if !self.file.0.client.config().record_len {
            return;
        }
        let mtime = self.env.unix_time().as_nanos();
        let attributes = Attributes { mtime, ..self.file.attributes() };
        if let Err(error) = self.note_len(len, attributes).await {
            let path = self.file.path();
            tracing::debug!(path, cause = error.message, "length not noted in the namespace");
        }
    }

    async fn note_len(&self, len: u64, attributes: Attributes) -> Result<(), Refusal> {
        let file = &self.file.0;
        file.client.set_closed(file.place.clone(), file.file, len, attributes).await
    }

    /// Gives the protocol an event and does what it asks for.
    fn process(self: &Rc<Self>, event: Event) {
        let mut actions = Vec::new();
        let version = self.file.0.client.0.lists.borrow().version();
        if self.lists_seen.replace(version) != version {
            let copies = usize::from(self.file.policy().copies);
            let lists = self.file.0.client.0.lists.borrow();
            self.core.borrow_mut().set_listed(lists.unwanted(copies));
            self.core.borrow_mut().set_pushed(lists.pushed_servers());
        }
        self.core.borrow_mut().set_blocked_after(self.file.0.client.0.blocked_after.get());
        self.core.borrow_mut().handle(self.env.now(), event, &mut actions);
        for action in actions {
            self.act(action);
        }
        let due = self.core.borrow().deadline();
        if due.is_some_and(|due| self.armed.get().is_none_or(|armed| due < armed)) {
            self.armed.set(due);
            self.rearm.notify_one();
        }
    }

    fn act(self: &Rc<Self>, action: Action) {
        match action {
            Action::Place { .. } | Action::Send { .. } => {
                if !self.held.borrow().is_empty() {
                    self.hold(action, false);
                    return;
                }
                match self.place_or_send(&action) {
                    Ok(()) => {}
                    Err(LayError::Memory(_)) => self.hold(action, true),
                    Err(error @ LayError::Wrong) => self.give_up(&error),
                }
            }
            Action::NotifyCommitted { replica, to, token, request } => {
                self.notify_committed(replica, to, token, request)
            }
            Action::Op(op) => self.start_op(op),
            Action::Acked { below, .. } => self.acknowledge(below),
            Action::Trimmed { seq, keep } => self.queue.borrow_mut().trim(seq, keep),
            Action::Released { from, below } => self.queue.borrow_mut().release(from..below),
            Action::Left { chunk, replica } => self.cancel_calls(chunk, replica),
            Action::Report { chunk, server, fault } => {
                let file = &self.file.0;
                add(&file.client.0.counters.chunks_failed, 1);
                tracing::debug!(path = file.path, %chunk, %server, ?fault, "replica failed");
                self.env.mark("writer: replica failed");
                file.client.report(file.file, chunk, server, fault);
            }
            Action::Doubt { chunk, place } => {
                self.file.0.client.doubt(self.file.0.file, chunk, place);
            }
            Action::Blocked { chunk, waited } => {
                let path = self.file.path();
                tracing::debug!(path, %chunk, ?waited, "too few replicas answered in time");
                add(&self.file.0.client.0.counters.chunks_blocked, 1);
                self.file.0.client.0.append_metrics.end_blocked();
                self.env.mark("writer: blocked");
            }
            Action::Closed { len } => self.end(Over::Closed(len)),
            Action::Failed(error) => {
                let budget = self.file.0.client.config().writer.stall_budget;
                self.end(Over::Failed(describe(self.file.path(), error, &budget)));
            }
        }
    }

    /// Ends without the protocol: what it wants can not be done. Appends that were sent may be written.
    fn give_up(&self, error: &LayError) {
        let what = format!("append to {}", self.file.path());
        let cause = Error::traced(error.to_string());
        self.abandoned.set(true);
        self.end(Over::Failed(Error::Unknown { what, cause, waited: Duration::ZERO }));
    }

    fn place_or_send(self: &Rc<Self>, action: &Action) -> Result<(), LayError> {
        let queue = &mut *self.queue.borrow_mut();
        match action {
            Action::Place { seq, at, laid, compression } => {
                let Some(append) = queue.get(*seq) else { return Ok(()) };
                let Some(staged) = &mut append.staged else { return Ok(()) };
                let client = &self.file.0.client;
                let rows = &mut *client.0.rows.borrow_mut();
                let compression = compression.or(client.config().compression);
                let again = staged.laid() != *laid;
                if again {
                    self.env.mark("writer: laid out again");
                }
                let place = (*at, *laid, compression, self.verify);
                let placed = staged.place(self.env.pool(), rows, place);
                if again {
                    self.count_verified(rows);
                }
                let now = self.env.now().as_nanos();
                append.span.note(Step::Formatted, now, Fact::Chunk(at.chunk));
                placed
            }
            Action::Send { id, to, token, fragment, request } => {
                // Nothing when it was released, or its replica was left, while this waited.
                if let Some(append) = queue.get(id.seq)
                    && let Some(staged) = &append.staged
                    && let Some(sectors) = staged.sectors(*fragment)
                {
                    self.send(*id, *to, *token, (*request, sectors), &append.span);
                }
                Ok(())
            }
            _ => unreachable!("only these wait for memory"),
        }
    }

    /// Keeps an action until there is memory. Later actions wait too: the order of placements and
    /// sendings is the protocol's.
    fn hold(self: &Rc<Self>, action: Action, first: bool) {
        self.held.borrow_mut().push_back(action);
        if !first {
            return;
        }
        self.env.mark("writer: no memory");
        let shared = self.clone();
        self.env.spawn(Class::Foreground, "writer memory", async move {
            loop {
                let Some(action) = shared.held.borrow().front().cloned() else { return };
                if shared.over.borrow().is_some() || shared.abandoned.get() {
                    shared.held.borrow_mut().clear();
                    return;
                }
                match shared.place_or_send(&action) {
                    Ok(()) => drop(shared.held.borrow_mut().pop_front()),
                    Err(LayError::Memory(_)) => shared.env.sleep(MEMORY_PAUSE).await,
                    Err(error @ LayError::Wrong) => shared.give_up(&error),
                }
            }
        });
    }

    fn send(
        self: &Rc<Self>,
        id: SendId,
        to: SocketAddr,
        token: [u8; 16],
        (request, sectors): (AppendRequest, runtime::Buf),
        span: &Span,
    ) {
        let client = &self.file.0.client.0;
        add(&client.counters.sent_bytes, sectors.len() as u64);
        add(&client.counters.resends, u64::from(id.attempt > 0));
        let timeout = client.config.writer.call_timeout;
        let target = Target { addr: to, disk: request.at.disk };
        let timed = TimedCall::begin(&self.file.0.client, target, CallClass::append(sectors.len()));
        let request = DataRequest::Append(request);
        let call = {
            let _entered = span.enter();
            client.peers.data(to, request, token, Some(sectors), timeout)
        };
        let (shared, span) = (self.clone(), span.clone());
        let until = self.until_left(id);
        self.env.spawn(Class::Foreground, "append", async move {
            let left = std::pin::pin!(until.notified());
            let call = std::pin::pin!(span.follow(call));
            let Either::Left((answer, _)) = select(call, left).await else { return };
            timed.end(match &answer {
                Ok(_) | Err(PeerError::Silent(_)) => CallEnd::Timed,
                Err(_) => CallEnd::Untimed,
            });
            if let Err(error) = &answer {
                shared.file.0.client.note_append_error(target, error);
            }
            let result = sent_result(answer);
            shared.process_unless_abandoned(Event::Sent { id, result });
        });
    }

    fn notify_committed(
        self: &Rc<Self>,
        replica: u8,
        to: SocketAddr,
        token: [u8; 16],
        at: CommitRequest,
    ) {
        let client = &self.file.0.client.0;
        let timeout = client.config.writer.replica_timeout;
        let call = client.peers.data(to, DataRequest::Commit(at), token, None, timeout);
        let (chunk, committed) = (at.at.chunk, at.committed);
        let shared = self.clone();
        self.env.spawn(Class::Foreground, "commit", async move {
            let result = match call.await {
                Ok(_) => Ok(()),
                Err(error) => Err(send_error(error)),
            };
            shared.process_unless_abandoned(Event::CommittedNotified {
                chunk,
                replica,
                committed,
                result,
            });
        });
    }

    fn start_op(self: &Rc<Self>, op: StreamOp) {
        let (file, epoch) = (self.file.0.file, self.core.borrow().epoch());
        let name = match &op {
            StreamOp::Advance { .. } => "advance",
            StreamOp::Extend { .. } => "extend",
            StreamOp::Close { .. } => "close",
        };
        let change = match op {
            StreamOp::Advance { sealed, len, next, avoid, spares, left, in_copies } => {
                self.env.mark("writer: next chunk");
                StreamChange::Advance {
                    file,
                    epoch,
                    sealed,
                    len,
                    next,
                    avoid,
                    spares,
                    left,
                    in_copies,
                }
            }
            StreamOp::Extend { avoid, spares, purpose, in_copies } => {
                if spares == 0 {
                    self.env.mark("writer: right renewed");
                }
                if in_copies {
                    self.env.mark("writer: chunks wanted in copies");
                }
                StreamChange::Extend { file, epoch, avoid, spares, purpose, in_copies }
            }
            StreamOp::Close { sealed, finish, left } => {
                StreamChange::Close { file, epoch, sealed, finish, left }
            }
        };
        let ended = ended_len(&change);
        let root = self.env.tracer().root(self.env.trace());
        let shared = self.clone();
        self.env.spawn(Class::Foreground, "writer stream", async move {
            let done = shared.file.0.client.stream_change(file, change);
            let done = shared.env.operation(name, |refusal: &Refusal| refusal.kind, done);
            let answer = root.follow(done).await;
            if answer.is_ok() {
                shared.file.0.client.0.append_metrics.end_chunk(ended);
            }
            if let Ok(StreamReply::Writer(grant)) = &answer {
                note_servers(&shared.file.0.client, grant);
                shared.note_rights(rights_life(grant));
            }
            shared.process_unless_abandoned(Event::Op(op_result(answer)));
        });
    }

    fn note_rights(&self, life: Option<Duration>) {
        if let Some(life) = life {
            self.core.borrow_mut().note_rights(self.env.now(), life);
        }
    }

    fn process_unless_abandoned(self: &Rc<Self>, event: Event) {
        if !self.abandoned.get() && !self.env.is_closed() {
            self.process(event);
        }
    }

    fn acknowledge(&self, below: u64) {
        let counters = &self.file.0.client.0.counters;
        let metrics = &self.file.0.client.0.append_metrics;
        let now = self.env.now().as_nanos();
        self.queue.borrow_mut().acknowledge(below, |append| {
            metrics.acknowledge(append.purpose, append.len);
            append.span.note(Step::Acknowledged, now, Fact::None);
            self.env.end(&append.span, Outcome::Done);
            add(&counters.appends, 1);
            add(&counters.append_bytes, u64::from(append.len));
        });
    }

    /// Gives up what is on its way to a replica that was left: its buffers are free.
    fn cancel_calls(&self, chunk: ChunkId, replica: u8) {
        self.env.mark("writer: replica left");
        if let Some(calls) = self.calls.borrow_mut().remove(&(chunk, replica)) {
            calls.notify_waiters();
        }
    }

    /// Something that ends when this replica is left. Only a chunk with fewer acknowledgements than
    /// replicas goes on without one.
    fn until_left(&self, id: SendId) -> Rc<Notify> {
        let calls = &mut *self.calls.borrow_mut();
        let key = (id.chunk, id.replica);
        if let Some(call) = calls.get(&key) {
            return call.clone();
        }
        let core = self.core.borrow();
        calls.retain(|(chunk, _), _| core.is_owed_or_written(*chunk));
        calls.entry(key).or_default().clone()
    }

    fn end(&self, over: Over) {
        *self.over.borrow_mut() = Some(over.clone());
        let failure = match &over {
            Over::Closed(_) => None,
            Over::Failed(error) => Some(error),
        };
        self.queue.borrow_mut().end(failure, |append| {
            // Those that were acknowledged have ended already.
            if let Some(error) = failure {
                self.env.end(&append.span, Outcome::Failed(error.kind()));
            }
        });
        self.count.close();
        self.bytes.close();
        for closed in self.closed.borrow_mut().drain(..) {
            let _ = closed.send(match &over {
                Over::Closed(len) => Ok(*len),
                Over::Failed(error) => Err(error.clone()),
            });
        }
        self.rearm.notify_one();
    }

    /// Ticks at the protocol's deadlines.
    async fn keep_time(self: Rc<Self>) {
        while self.over.borrow().is_none() && !self.abandoned.get() {
            let changed = self.rearm.notified();
            let changed = std::pin::pin!(changed);
            let signal = std::pin::pin!(self.file.0.client.0.writer_news.notified());
            let changed = select(changed, signal);
            let news = match self.armed.get() {
                Some(due) => match select(changed, self.env.sleep_until(due)).await {
                    Either::Left((changed, _)) => matches!(changed, Either::Right(_)),
                    Either::Right(_) => false,
                },
                None => matches!(changed.await, Either::Right(_)),
            };
            let due = self.armed.get();
            let is_due = due.is_some_and(|due| due <= self.env.now());
            if is_due {
                self.armed.set(None);
            }
            // An idle writer, too, may have to leave its chunk when masters push another list. One whose
            // append waits for copies may have to do so earlier.
            if is_due || news {
                self.process_unless_abandoned(Event::Tick);
            }
        }
    }
}

fn note_servers(client: &crate::Client, grant: &WriterGrant) {
    let places = grant.current.iter().chain(&grant.spares);
    places.for_each(|place| client.note_servers(&place.replicas));
}

/// Life of rights granted now. `None` when the master does not say it: their refusal shows their end.
fn rights_life(grant: &WriterGrant) -> Option<Duration> {
    grant.rights_ms.map(Duration::from_millis)
}
