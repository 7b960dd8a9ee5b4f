//! [`Reader`]: verified reads of any range, from any replica that serves.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use base::limits::{CHUNK_LEN_MAX, SECTOR_DATA_MAX};
use base::{ChunkId, Kind};
use futures_util::stream::{FuturesOrdered, FuturesUnordered, StreamExt};
use metrics::{Fact, Step};
use runtime::{Buf, Duration, Instant};
use wire::control::{CallClass, ChunkPlace, ReplicaFault, ReplicaPlace, StreamView};
use wire::data::{ChunkRef, DataError, DataReply, DataRequest, ReadRequest};

use crate::ask::{Asking, Pace, TimedCall, UnderWay, likeliest, order};
use crate::cache::holds;
use crate::cells::RowSeen;
use crate::client::Client;
use crate::collect::collect_row;
use crate::counters::add;
use crate::error::Error;
use crate::extent::Extent;
use crate::file::FlatLogFile;
use crate::health::{CallEnd, Target};
use crate::limits::{READ_DEPTH, READ_MAX, READ_PIECE, ROWS_SEEN_MAX};
use crate::peers::PeerError;
use crate::planted::{Planted, planted};
use crate::tail::{Bound, Tail};

/// Pause after all replicas have failed to serve, at first and at most.
const PAUSE_MIN: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_millis(200);
/// A replica that stayed busy for a quarter of a second is not waited for again for this long, while
/// others have some of the bytes.
const BUSY_RETRY: Duration = Duration::from_secs(5);

/// Reads a file. Bytes that it has once shown it never takes back, also of a file that is being
/// written.
///
/// An answer that is shorter than asked for names the file's end: all that was acknowledged to
/// the writer when the read began is in it (`protocols.md` 1.6). When the writer is gone and the
/// file was not sealed, that cannot be known: the answer is [`Error::OpenEnd`].
#[derive(Debug)]
pub struct Reader {
    file: FlatLogFile,
    /// Bytes that are known to be readable.
    seen: Cell<u64>,
    /// Bytes that the caller knows to be acknowledged, whether replicas show them or not.
    acknowledged: Cell<u64>,
    /// A chunk that was open when bytes of the file up to an offset were known to be acknowledged. Those from
    /// its base on are in it.
    confirmed: Cell<Option<(ChunkId, u64)>>,
    /// The open chunk of which bytes were shown last, and the offset in the file behind them.
    shown: Cell<Option<(ChunkId, u64)>>,
    /// When a busy replica was last given up.
    busy: Cell<Option<Instant>>,
    /// Rows of the coded chunks that were read last.
    rows_seen: RefCell<VecDeque<(ChunkId, RowSeen)>>,
}

/// Bytes of one chunk, or where it ends.
#[derive(Debug)]
pub(crate) enum ReadPart {
    Bytes(Extent),
    /// No replica shows the byte.
    End(ChunkEnd),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ChunkEnd {
    /// It is sealed below the offset: the stream has gone on behind it.
    Sealed,
    /// It is open and shows no more yet.
    Open,
}

/// Facts that must be known of a file's end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ending {
    /// Proof that nothing behind it was acknowledged when the read began.
    Proven,
    /// Replicas show no more at present.
    Shown,
}

/// State at the end of the bytes that could be read.
enum FileEnd {
    /// Nothing: the file ends there.
    Sealed,
    /// A chunk that takes appends.
    Open(Rc<ChunkPlace>),
}

/// Answer of one replica.
pub(crate) enum Answer {
    Bytes(Extent),
    End {
        sealed: bool,
    },
    /// It has other data, or none: the view may be stale.
    Stale(ReplicaFault),
    /// It refuses the right that came with the view, as others will.
    Denied,
    Bad(ReplicaFault),
    /// It can not say now.
    Later,
}

impl Reader {
    pub(crate) fn new(file: &FlatLogFile) -> Reader {
        Reader {
            file: file.clone(),
            seen: Cell::new(0),
            acknowledged: Cell::new(0),
            confirmed: Cell::new(None),
            shown: Cell::new(None),
            busy: Cell::new(None),
            rows_seen: RefCell::default(),
        }
    }

    /// The file.
    pub fn file(&self) -> &FlatLogFile {
        &self.file
    }

    pub(crate) fn client(&self) -> &Client {
        &self.file.0.client
    }

    /// Whether all bytes of an open chunk below an offset in it are acknowledged, as the caller knows. Then
    /// each replica that holds them has the bytes that were acknowledged: a chunk has one writer, which writes
    /// an offset with the same bytes only, and what is given up at a seal was not acknowledged. A view from
    /// before the caller knew says nothing: the chunk may have ended since, and the bytes be in another one.
    pub(crate) fn is_acknowledged(&self, chunk: &ChunkPlace, end: u32) -> bool {
        chunk.base + u64::from(end) <= self.confirmed_of(chunk)
    }

    /// End in the file of the bytes that are acknowledged in an open chunk, as far as that is known.
    fn confirmed_of(&self, chunk: &ChunkPlace) -> u64 {
        let confirmed = self.confirmed.get().filter(|(of, _)| *of == chunk.chunk);
        confirmed.map_or(0, |(_, end)| end)
    }

    /// Length of the first part of a range, if only a part of it is known to be acknowledged.
    fn acknowledged_part(&self, chunk: &ChunkPlace, offset: u32, len: u32) -> Option<u32> {
        let known = self.confirmed_of(chunk).saturating_sub(chunk.base + u64::from(offset));
        let is_part = chunk.sealed.is_none() && known > 0 && known < u64::from(len);
        is_part.then_some(known as u32)
    }

    /// Whether a byte is acknowledged, and the stream service has not said since that it is in this open chunk.
    fn is_unconfirmed(&self, chunk: &ChunkPlace, at: u64) -> bool {
        let known = self.confirmed_of(chunk)..self.acknowledged.get();
        chunk.sealed.is_none() && known.contains(&at)
    }

    /// The stream service was asked when bytes up to `acknowledged` were known to be so.
    fn confirm(&self, view: &StreamView, acknowledged: u64) {
        if let Some(open) = view.chunks.iter().find(|chunk| chunk.sealed.is_none()) {
            let end = acknowledged.max(self.confirmed_of(open));
            self.confirmed.set(Some((open.chunk, end)));
        }
    }

    /// Bytes that must be there.
    fn known(&self) -> u64 {
        self.seen.get().max(self.acknowledged.get())
    }

    /// Length of an open chunk that was shown before, and so was committed in this chunk, whatever its
    /// replicas show now. The length of the file does not say so: a chunk that is taken for open may
    /// have been ended below it, and others have come behind.
    pub(crate) fn shown_of(&self, chunk: &ChunkPlace) -> u32 {
        let shown = self.shown.get().filter(|(of, _)| *of == chunk.chunk);
        let len = shown.map_or(0, |(_, end)| end.saturating_sub(chunk.base));
        u32::try_from(len).unwrap_or(u32::MAX)
    }

    /// A row that was seen in a chunk.
    pub(crate) fn row_seen(&self, chunk: ChunkId) -> Option<RowSeen> {
        self.rows_seen.borrow().iter().find(|(of, _)| *of == chunk).map(|(_, row)| *row)
    }

    pub(crate) fn note_row(&self, chunk: ChunkId, row: RowSeen) {
        let seen = &mut *self.rows_seen.borrow_mut();
        seen.retain(|(of, _)| *of != chunk);
        seen.truncate(ROWS_SEEN_MAX - 1);
        seen.push_front((chunk, row));
    }

    /// Up to `len` bytes from `offset` on: fewer only at the file's end.
    pub async fn read_at(&self, offset: u64, len: usize) -> Result<Vec<u8>, Error> {
        self.client().operation("read", self.read_range(offset, len, Ending::Proven)).await
    }

    /// As [`Reader::read_at`], without a wait for the writer's report: of a file that is being
    /// written the answer may lack what was acknowledged last. For callers who know from elsewhere
    /// what must be there, and read again.
    pub async fn read_shown(&self, offset: u64, len: usize) -> Result<Vec<u8>, Error> {
        self.client().operation("read", self.read_range(offset, len, Ending::Shown)).await
    }

    /// `len` bytes that were acknowledged, and all before them, as the caller knows: from a row, for example,
    /// that was committed after the append. Replicas serve them whether or not the writer has reported them,
    /// also when all servers have restarted and the writer is gone. Fewer only when the file is sealed
    /// below them: they were lost.
    pub async fn read_acknowledged(&self, offset: u64, len: usize) -> Result<Vec<u8>, Error> {
        let end = offset.saturating_add(len as u64);
        self.acknowledged.set(self.acknowledged.get().max(end));
        self.client().operation("read", self.read_range(offset, len, Ending::Shown)).await
    }

    async fn read_range(&self, offset: u64, len: usize, ending: Ending) -> Result<Vec<u8>, Error> {
        let path = self.file.path();
        if len > READ_MAX {
            let message = format!("{len} bytes asked for at once; read {READ_MAX} at most");
            return Err(Error::invalid(path, message));
        }
        let Some(end) = offset.checked_add(len as u64) else {
            return Err(Error::invalid(path, format!("offset {offset} is beyond any file")));
        };
        let mut out = Vec::with_capacity(len.min(4 * READ_PIECE as usize));
        let mut budget = Budget::start(self.client());
        let mut bound = Bound::default();
        while offset + (out.len() as u64) < end {
            let at = offset + out.len() as u64;
            let Some(chunk) = self.chunk_at(at).await? else { break };
            self.client().env().note(Step::Located, Fact::Chunk(chunk.chunk));
            let before = out.len();
            let ended = self.read_chunk(&chunk, at, end, &mut out).await?;
            if out.len() > before {
                budget = Budget::start(self.client());
                let end = offset + out.len() as u64;
                self.seen.set(self.seen.get().max(end));
                if chunk.sealed.is_none() {
                    self.note_shown(&chunk, end);
                }
            }
            if let Some(ended) = ended {
                let at = offset + out.len() as u64;
                let Some(tail) = self.gone_on(&chunk, at, ended, &mut budget).await? else {
                    continue;
                };
                if self.is_end(tail, at, ending, &mut bound, &mut budget).await? {
                    break;
                }
            }
        }
        add(&self.client().0.counters.read_bytes, out.len() as u64);
        Ok(out)
    }

    /// The present length of what can be read; asks the stream service and the tail's replicas.
    pub async fn refresh_len(&self) -> Result<u64, Error> {
        self.client().operation("length", self.ask_len()).await
    }

    async fn ask_len(&self) -> Result<u64, Error> {
        let mut budget = Budget::start(self.client());
        let mut bound = Bound::default();
        loop {
            let Some(view) = self.locate(u64::MAX >> 1).await? else { return Ok(0) };
            let open = view.chunks.iter().find(|chunk| chunk.sealed.is_none());
            let (len, proven) = match open {
                None => (view.sealed_len, true),
                Some(chunk) => {
                    let tail = Tail::ask(self.client(), chunk).await;
                    let len = chunk.base + u64::from(tail.shown);
                    (len, bound.is_met(chunk, &tail, len))
                }
            };
            if proven && len >= self.seen.get() {
                self.seen.set(len);
                open.iter().for_each(|chunk| self.note_shown(chunk, len));
                return Ok(len);
            }
            budget.pause_at_end(self, len).await?;
        }
    }

    /// Bytes of an open chunk up to an offset of the file were shown.
    fn note_shown(&self, chunk: &ChunkPlace, end: u64) {
        let before = self.shown.get().filter(|(of, _)| *of == chunk.chunk);
        let end = before.map_or(end, |(_, before)| before.max(end));
        self.shown.set(Some((chunk.chunk, end)));
    }

    /// The stream from an offset on; nothing when the file was never opened for append.
    pub(crate) async fn locate(&self, offset: u64) -> Result<Option<StreamView>, Error> {
        let (locator, acknowledged) = (&self.client().0.locator, self.acknowledged.get());
        match locator.locate(self.file.id(), offset, self.file.path()).await {
            Ok(view) => {
                self.file.note_epoch(view.epoch);
                self.confirm(&view, acknowledged);
                Ok(Some(view))
            }
            Err(error) if error.kind() == Kind::NotFound => {
                self.file.check_named().await?;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// The chunk that holds a byte, or the open one at the end.
    async fn chunk_at(&self, at: u64) -> Result<Option<Rc<ChunkPlace>>, Error> {
        let locator = &self.client().0.locator;
        if let Some(chunk) = locator.cached(self.file.id(), at) {
            return Ok(Some(chunk));
        }
        Ok(self.locate(at).await?.as_ref().and_then(|view| chunk_in(view, at)))
    }

    /// Reads from one chunk until its end or `end`; answers how it ended before `end`, if it
    /// did.
    async fn read_chunk(
        &self,
        chunk: &Rc<ChunkPlace>,
        at: u64,
        end: u64,
        out: &mut Vec<u8>,
    ) -> Result<Option<ChunkEnd>, Error> {
        debug_assert!(holds(chunk, at));
        // Both fit: a chunk has at most `CHUNK_LEN_MAX` bytes, and the first lies within it.
        let limit = chunk.sealed.map_or(CHUNK_LEN_MAX, u64::from);
        let stop = (end - chunk.base).min(limit) as u32;
        let mut next = (at - chunk.base) as u32;
        let mut done = next;
        let mut pieces = FuturesOrdered::new();
        // An open tail is asked for piece by piece: what lies behind is not there yet.
        let depth = if chunk.sealed.is_some() { READ_DEPTH } else { 2 };
        loop {
            while next < stop && pieces.len() < depth {
                let len = (stop - next).min(READ_PIECE);
                let offset = next;
                pieces.push_back(async move { (len, self.piece(chunk, offset, len).await) });
                next += len;
            }
            let Some((len, piece)) = pieces.next().await else { return Ok(None) };
            match piece? {
                ReadPart::Bytes(extent) => {
                    extent.copy_to(out);
                    done += extent.len() as u32;
                    if extent.len() < len as usize {
                        // Many short appends: the answer had its limit. Go on from there.
                        pieces = FuturesOrdered::new();
                        next = done;
                    }
                }
                ReadPart::End(ended) => return Ok(Some(ended)),
            }
        }
    }

    /// The offset at which the file goes on behind an ended chunk: `None` to read on there.
    async fn gone_on(
        &self,
        chunk: &ChunkPlace,
        at: u64,
        ended: ChunkEnd,
        budget: &mut Budget,
    ) -> Result<Option<FileEnd>, Error> {
        let was_unconfirmed = self.is_unconfirmed(chunk, at);
        self.client().0.locator.forget(self.file.id(), chunk.base);
        let Some(view) = self.locate(at).await? else { return Ok(Some(FileEnd::Sealed)) };
        let fresh = chunk_in(&view, at);
        if fresh.as_ref().is_some_and(|fresh| fresh.chunk != chunk.chunk) {
            return Ok(None);
        }
        let confirmed = |fresh: &Rc<ChunkPlace>| was_unconfirmed && !self.is_unconfirmed(fresh, at);
        if fresh.as_ref().is_some_and(confirmed) {
            // From now on replicas are asked for what they hold.
            self.client().env().mark("reader: acknowledged bytes are where the view had them");
            return Ok(None);
        }
        // The service says that the byte is there, or may come: the replicas are about to learn
        // it.
        let lags =
            fresh.as_ref().is_some_and(|fresh| fresh.sealed.is_some() || ended == ChunkEnd::Sealed);
        if (lags || at < self.known()) && !planted(Planted::ShortIsEnd) {
            budget.pause(self, at, "replicas show less than there is").await?;
            return Ok(None);
        }
        Ok(Some(fresh.map_or(FileEnd::Sealed, FileEnd::Open)))
    }

    /// Decides whether the file has ended at `at`. False: read on.
    async fn is_end(
        &self,
        end: FileEnd,
        at: u64,
        ending: Ending,
        bound: &mut Bound,
        budget: &mut Budget,
    ) -> Result<bool, Error> {
        let (FileEnd::Open(chunk), Ending::Proven) = (end, ending) else { return Ok(true) };
        if planted(Planted::ShortIsEnd) {
            return Ok(true);
        }
        let env = self.client().env();
        if !bound.is_of(&chunk) || !bound.is_below(at) {
            bound.note(&chunk, &Tail::ask(self.client(), &chunk).await);
        }
        if bound.is_of(&chunk) && bound.is_below(at) {
            env.mark("reader: end of an open tail");
            return Ok(true);
        }
        env.mark("reader: waits for the writer's word");
        budget.pause_at_end(self, at).await?;
        Ok(false)
    }

    /// A piece of a chunk from the first replica that serves it. Less than `len` bytes where no
    /// replica has all of them undamaged.
    async fn piece(&self, chunk: &ChunkPlace, offset: u32, len: u32) -> Result<ReadPart, Error> {
        let mut fresh: Option<Rc<ChunkPlace>> = None;
        let mut budget = Budget::start(self.client());
        let mut want = len;
        loop {
            let view = fresh.as_deref().unwrap_or(chunk);
            let round = match view.is_coded() {
                true => self.ask_coded(view, (offset, want), fresh.is_some()).await,
                false => self.ask_replicas(view, offset, want, fresh.is_some()).await,
            };
            let is_unshown = matches!(round, Round::ReadPart(ReadPart::End(ChunkEnd::Open)));
            if is_unshown && let Some(known) = self.acknowledged_part(view, offset, want) {
                // Replicas are asked for the part that is known to be acknowledged.
                want = known;
                continue;
            }
            let (any_damaged, all_damaged, any_busy) = match round {
                Round::ReadPart(piece) => return Ok(piece),
                Round::None { any_damaged, all_damaged, any_busy } => {
                    (any_damaged, all_damaged, any_busy)
                }
            };
            // A busy replica may have all of it: it is asked again after pauses first.
            let patient = any_busy && self.waits_for_busy(&budget);
            if any_damaged && !patient && fresh.is_some() && want > 1 {
                // The replicas that answer are damaged within the range, and perhaps at different
                // places: less of it at a time, one sector in the end.
                self.client().env().mark("reader: less at a time");
                want = if want as usize > SECTOR_DATA_MAX { want / 2 } else { 1 };
                continue;
            }
            if any_damaged && !patient && fresh.is_some() && !view.is_coded() {
                // Of a row, which counts whole, the sectors of its cell one by one.
                let extent = collect_row(self.client(), view, offset, len).await;
                if let Some(extent) = extent {
                    return Ok(ReadPart::Bytes(extent));
                }
            }
            if all_damaged && fresh.is_some() {
                let path = self.file.path().to_owned();
                return Err(Error::Corrupt { path, offset: chunk.base + u64::from(offset) });
            }
            let at = chunk.base + u64::from(offset);
            if fresh.is_some() {
                budget.pause(self, at, "no replica serves it").await?;
            }
            self.client().0.locator.forget(self.file.id(), chunk.base);
            let Some(view) = self.locate(at).await? else {
                return Ok(ReadPart::End(ChunkEnd::Open));
            };
            fresh = chunk_in(&view, at);
            if fresh.as_ref().is_none_or(|fresh| fresh.chunk != chunk.chunk) {
                return Ok(ReadPart::End(ChunkEnd::Sealed));
            }
        }
    }

    /// Whether to ask a busy replica again before less is asked for at a time. Not when it has stayed
    /// busy until pauses were the longest, and for [`BUSY_RETRY`] after that.
    fn waits_for_busy(&self, budget: &Budget) -> bool {
        let now = self.client().env().now();
        if self.busy.get().is_some_and(|at| now.since(at) < BUSY_RETRY) {
            return false;
        }
        let waits = budget.pause < PAUSE_MAX;
        if !waits {
            self.busy.set(Some(now));
        }
        waits
    }

    /// Asks replicas, the likely ones first: the next one when one has not served, and another one
    /// beside it when one takes long (C16). The first answer that suffices is taken; calls that
    /// are under way then are cancelled.
    async fn ask_replicas(&self, chunk: &ChunkPlace, offset: u32, len: u32, sure: bool) -> Round {
        let client = self.client();
        let class = CallClass::read(len as usize);
        let mut waiting = order(client, chunk);
        let count = waiting.len();
        client.0.backups.borrow_mut().earn(u64::from(len));
        let mut pace = Pace::of(client, class);
        let mut asked = FuturesUnordered::new();
        let mut under_way = UnderWay::default();
        let (mut ended, mut damaged, mut any_busy) = (None, 0, false);
        let mut best: Option<Extent> = None;
        loop {
            if asked.is_empty() {
                if waiting.is_empty() {
                    break;
                }
                add(&client.0.counters.read_failovers, u64::from(waiting.len() < count));
                let replica = waiting.remove(0);
                pace.start(client.env().now());
                under_way.begin(&replica, Asking::Next, client.env().now());
                asked.push(self.ask_replica(chunk, replica, offset, len));
            }
            let next = match pace.next().filter(|_| !waiting.is_empty()) {
                Some(at) => {
                    let left = at.since(client.env().now());
                    client.env().timeout(left, asked.next()).await.ok()
                }
                None => Some(asked.next().await),
            };
            let Some(next) = next else {
                let Some(asking) = pace.act(client, u64::from(len)) else { continue };
                let replica = waiting.remove(likeliest(client, chunk.chunk, &waiting, class));
                pace.start(client.env().now());
                under_way.begin(&replica, asking, client.env().now());
                asked.push(self.ask_replica(chunk, replica, offset, len));
                continue;
            };
            let (replica, answer) = next.expect("one is asked");
            let asking = under_way.end(&replica);
            let fault = match answer {
                Answer::Bytes(extent) if self.suffices(chunk, offset, len, &extent) => {
                    if asking == Asking::Backup {
                        add(&client.0.counters.backup_reads_won, 1);
                        client.0.backup_metrics.won.inc();
                        client.env().mark("reader: backup read won");
                    }
                    under_way.suspect_failed(client, pace.delays.failed);
                    return Round::ReadPart(ReadPart::Bytes(extent));
                }
                Answer::Bytes(extent) => {
                    client.env().mark("reader: a replica shows less than was shown");
                    if best.as_ref().is_none_or(|best| best.len() < extent.len()) {
                        best = Some(extent);
                    }
                    None
                }
                Answer::End { sealed: true } => {
                    // A replica's seal is the stream's; but it must not be below what the
                    // stream service says.
                    if chunk.sealed.is_none_or(|len| len <= offset) {
                        return Round::ReadPart(ReadPart::End(ChunkEnd::Sealed));
                    }
                    Some(ReplicaFault::Missing)
                }
                Answer::End { sealed: false } if planted(Planted::ShortIsEnd) => {
                    return Round::ReadPart(ReadPart::End(ChunkEnd::Open));
                }
                Answer::End { sealed: false } => {
                    // One may lag: without masters the others still show what it does not. When two show
                    // nothing, the stream service is asked which chunk has it.
                    let is_good = |it: &ReplicaPlace| !client.is_asked_last(chunk.chunk, it);
                    let asks_another = ended.is_none() && waiting.first().is_some_and(is_good);
                    let at = chunk.base + u64::from(offset);
                    if self.is_unconfirmed(chunk, at) && !asks_another {
                        return Round::ReadPart(ReadPart::End(ChunkEnd::Open));
                    }
                    ended = Some(ChunkEnd::Open);
                    None
                }
                Answer::Denied if !sure => break,
                Answer::Denied => None,
                Answer::Stale(fault) => sure.then_some(fault),
                Answer::Bad(fault) => {
                    damaged += usize::from(fault == ReplicaFault::Corrupt);
                    Some(fault)
                }
                Answer::Later => {
                    any_busy = true;
                    None
                }
            };
            if let Some(fault) = fault {
                self.blame(chunk, &replica, fault);
            }
        }
        match (best, ended) {
            // No replica shows what was shown: the longest answer, behind which the read goes on.
            (Some(best), _) => Round::ReadPart(ReadPart::Bytes(best)),
            (None, Some(ended)) => Round::ReadPart(ReadPart::End(ended)),
            (None, None) => Round::None {
                any_damaged: damaged > 0,
                all_damaged: damaged > 0 && damaged == count,
                any_busy,
            },
        }
    }

    /// Whether the first bytes of a range answer it. Of an open chunk a replica may show less than
    /// another one: what is below a length that this reader knows is a miss.
    pub(crate) fn suffices(
        &self,
        chunk: &ChunkPlace,
        offset: u32,
        len: u32,
        extent: &Extent,
    ) -> bool {
        let start = chunk.base + u64::from(offset);
        let known = self.seen.get().max(self.confirmed_of(chunk)).min(start + u64::from(len));
        chunk.sealed.is_some() || start + extent.len() as u64 >= known
    }

    async fn ask_replica(
        &self,
        chunk: &ChunkPlace,
        replica: ReplicaPlace,
        offset: u32,
        len: u32,
    ) -> (ReplicaPlace, Answer) {
        let answer = self.ask_for_extent(chunk, &replica, offset, len).await;
        (replica, answer)
    }

    async fn ask_for_extent(
        &self,
        chunk: &ChunkPlace,
        replica: &ReplicaPlace,
        offset: u32,
        len: u32,
    ) -> Answer {
        let client = self.client();
        let at = ChunkRef { chunk: chunk.chunk, disk: replica.disk };
        // The committed seal bounds what may be read; a replica may not have it yet.
        let uncommitted = chunk.sealed.is_some() || self.is_acknowledged(chunk, offset + len);
        // Asked for only where rows may be: other chunkservers know no such flag.
        let blocks = chunk.compression.or(client.config().compression).is_some();
        let read = ReadRequest { at, offset, len, uncommitted, cell_sector: None, blocks };
        let sent = match self.ask_for_sectors(chunk, replica, read, len).await {
            Ok(sent) => sent,
            Err(answer) => return answer,
        };
        let rows = &mut *client.0.rows.borrow_mut();
        match Extent::verify(chunk, offset, len, sent.sectors, rows) {
            Ok(mut extent) => {
                // The last sector may go past what is committed or sealed.
                extent.truncate(sent.readable.saturating_sub(offset) as usize);
                if extent.len() == 0 {
                    return Answer::End { sealed: sent.sealed };
                }
                Answer::Bytes(extent)
            }
            Err(_) => self.damaged(),
        }
    }

    /// The answer of a replica whose sectors do not verify.
    pub(crate) fn damaged(&self) -> Answer {
        self.client().env().mark("reader: damaged sectors");
        Answer::Bad(ReplicaFault::Corrupt)
    }

    /// Asks a replica for some of the `len` bytes of a read; what it says when it sends none is the error.
    pub(crate) async fn ask_for_sectors(
        &self,
        chunk: &ChunkPlace,
        replica: &ReplicaPlace,
        read: ReadRequest,
        len: u32,
    ) -> Result<Sent, Answer> {
        let client = self.client();
        let (offset, request) = (read.offset, DataRequest::Read(read));
        let attempt = client.config().read_attempt;
        let timed = TimedCall::begin(client, Target::of(replica), CallClass::read(len as usize));
        let answer = client.0.peers.data(replica.addr, request, chunk.token, None, attempt).await;
        timed.end(match &answer {
            Ok((_, Some(sectors))) if !sectors.is_empty() => CallEnd::Timed,
            Err(PeerError::Silent(_)) => CallEnd::Timed,
            _ => CallEnd::Untimed,
        });
        let error = match answer {
            Ok((DataReply::Read { readable, sealed }, sectors)) => {
                let Some(sectors) = sectors.filter(|sectors| !sectors.is_empty()) else {
                    return Err(Answer::End { sealed: sealed && readable <= offset });
                };
                add(&client.0.counters.received_bytes, sectors.len() as u64);
                let readable = chunk.sealed.map_or(readable, |len| readable.min(len));
                return Ok(Sent { readable, sealed, sectors });
            }
            Ok(_) => return Err(Answer::Bad(ReplicaFault::Corrupt)),
            Err(error) => error,
        };
        Err(match error {
            PeerError::Unreachable(_) | PeerError::Silent(_) | PeerError::Foreign(_) => {
                Answer::Bad(ReplicaFault::Unreachable)
            }
            PeerError::Busy => Answer::Later,
            PeerError::Refused(error) => match error {
                // A chunk is made with its first bytes (C9): an open one may have none yet.
                DataError::NotFound if chunk.sealed.is_none() => Answer::End { sealed: false },
                DataError::NotFound | DataError::WrongDisk => Answer::Stale(ReplicaFault::Missing),
                DataError::DiskFailed => Answer::Bad(ReplicaFault::DiskFailed),
                DataError::Denied => Answer::Denied,
                DataError::Corrupt { .. } => Answer::Bad(ReplicaFault::Corrupt),
                _ => Answer::Later,
            },
        })
    }

    /// A replica failed a read: others are asked first, and masters are notified.
    pub(crate) fn blame(&self, chunk: &ChunkPlace, replica: &ReplicaPlace, fault: ReplicaFault) {
        let client = self.client();
        client.note_fault(chunk.chunk, replica, fault);
        client.report(self.file.id(), chunk.chunk, replica.server, fault);
    }
}

/// Sectors that a replica has sent.
pub(crate) struct Sent {
    /// Length of the chunk that it shows, of what is sealed.
    pub(crate) readable: u32,
    pub(crate) sealed: bool,
    pub(crate) sectors: Buf,
}

/// What came of asking replicas once.
pub(crate) enum Round {
    ReadPart(ReadPart),
    /// No replica served.
    None {
        /// One of them has damaged sectors.
        any_damaged: bool,
        /// Every one of them has.
        all_damaged: bool,
        /// One of them cannot answer now.
        any_busy: bool,
    },
}

/// The chunk of a view that holds a byte, or would.
fn chunk_in(view: &StreamView, at: u64) -> Option<Rc<ChunkPlace>> {
    view.chunks.iter().rev().find(|chunk| holds(chunk, at)).map(|chunk| Rc::new(chunk.clone()))
}

/// Time for one step of a read to make progress.
struct Budget {
    start: Instant,
    pause: Duration,
}

impl Budget {
    fn start(client: &Client) -> Budget {
        Budget { start: client.env().now(), pause: PAUSE_MIN }
    }

    async fn pause(&mut self, reader: &Reader, at: u64, cause: &str) -> Result<(), Error> {
        let client = reader.client();
        let waited = client.env().now() - self.start;
        if waited >= client.config().read_budget {
            let what = format!("read {} at offset {at}", reader.file.path());
            return Err(Error::Unavailable {
                what,
                cause: Error::traced(cause.to_owned()),
                waited,
            });
        }
        self.sleep(client).await;
        Ok(())
    }

    /// Waits for a report of a file's end, which may be `at`.
    async fn pause_at_end(&mut self, reader: &Reader, at: u64) -> Result<(), Error> {
        let client = reader.client();
        let waited = client.env().now() - self.start;
        if waited >= client.config().end_timeout {
            client.env().mark("reader: the end is not known");
            let path = reader.file.path().to_owned();
            return Err(Error::OpenEnd { path, offset: at, waited });
        }
        self.sleep(client).await;
        Ok(())
    }

    async fn sleep(&mut self, client: &Client) {
        client.env().sleep(client.env().jitter(self.pause)).await;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }
}
