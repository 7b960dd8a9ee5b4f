//! Reads of coded chunks (C16, C18; `protocols-tail.md` 9.9).
//!
//! A long read asks as many fragments as give a row, those with the bytes themselves first, for whole
//! cells. A short one asks the fragments that hold it, for the blocks of the range. The first sector of
//! any cell says which these are: one answer of another fragment more where rows are irregular. A range
//! of many short rows is read as a long one.
//!
//! When fragments do not serve, or take long, cells of others are decoded. Decoded bytes are never
//! served without the checksums of their blocks.

use std::cell::Cell;
use std::pin::pin;

use futures_util::future::{Either, join_all, select};
use futures_util::stream::{FuturesUnordered, StreamExt};
use wire::control::{CallClass, ChunkPlace, ReplicaFault, ReplicaPlace};
use wire::data::{ChunkRef, ReadRequest};

use crate::ask::{Asking, Pace, UnderWay, likeliest, order};
use crate::cells::{Cells, Gathered, Joined, RowSeen, SharePart};
use crate::counters::add;
use crate::extent::Extent;
use crate::limits::READ_SHARES_MAX;
use crate::reader::{Answer, ChunkEnd, ReadPart, Reader, Round, Sent};

/// Answers of data fragments that a short read takes at most: of any one, which may say the row; of
/// those that hold the bytes then.
const SHARE_TRIES: usize = 3;

/// What a read of whole cells has come to.
struct Whole<'a> {
    chunk: &'a ChunkPlace,
    range: (u32, u32),
    gathered: Gathered,
    /// Length that a replica shows as committed, or this reader has shown.
    shown: u32,
    /// Replicas that were asked for what they show, and the length that they do.
    shows: Vec<(ReplicaPlace, u32)>,
    /// Lagging replicas were asked for what they do not show themselves.
    pressed: bool,
    best: Option<Extent>,
    ended: bool,
    damaged: usize,
    /// Cells with good sectors gave no row.
    bad: bool,
    any_busy: bool,
}

/// What an answer means for the whole read.
enum Step {
    /// It goes on, without this replica or with it.
    On(Option<ReplicaFault>),
    Done(Round),
}

impl Reader {
    /// Bytes of a coded chunk, as [`Reader::piece`] asks for them.
    pub(crate) async fn ask_coded(
        &self,
        chunk: &ChunkPlace,
        range: (u32, u32),
        sure: bool,
    ) -> Round {
        let (client, (offset, len)) = (self.client(), range);
        client.0.backups.borrow_mut().earn(u64::from(len));
        if len > READ_SHARES_MAX {
            return self.ask_cells(chunk, range, sure, 0).await;
        }
        let asked = Cell::new(0);
        let mut shares = pin!(self.ask_shares(chunk, range, &asked));
        let mut pace = Pace::of(client, CallClass::read(len as usize));
        pace.start(client.env().now());
        // What is decoded costs a cell of each of k fragments.
        let cost = u64::from(len) * u64::from(chunk.data);
        let good = |extent: &Extent| self.suffices(chunk, offset, len, extent);
        loop {
            let left = pace.next().map_or(Default::default(), |at| at.since(client.env().now()));
            match client.env().timeout(left, shares.as_mut()).await {
                Ok(Some(extent)) if good(&extent) => {
                    return Round::ReadPart(ReadPart::Bytes(extent));
                }
                Ok(_) => return self.ask_cells(chunk, range, sure, asked.get()).await,
                Err(_) => {}
            }
            let Some(asking) = pace.act(client, cost) else { continue };
            let whole = pin!(self.ask_cells(chunk, range, sure, asked.get()));
            return match select(shares, whole).await {
                Either::Left((Some(extent), _)) if good(&extent) => {
                    Round::ReadPart(ReadPart::Bytes(extent))
                }
                Either::Left((_, whole)) => whole.await,
                Either::Right((round, _)) => {
                    if asking == Asking::Backup && matches!(round, Round::ReadPart(_)) {
                        add(&client.0.counters.backup_reads_won, 1);
                        client.0.backup_metrics.won.inc();
                        client.env().mark("reader: backup read won");
                    }
                    round
                }
            };
        }
    }

    /// A range from the data fragments that hold it, without decoding; less of it at the end of a row.
    /// `None` when one of them does not serve. `asked` has a bit for each that is asked.
    async fn ask_shares(
        &self,
        chunk: &ChunkPlace,
        (offset, len): (u32, u32),
        asked: &Cell<u32>,
    ) -> Option<Extent> {
        for _ in 0..SHARE_TRIES {
            let seen = self.row_seen(chunk.chunk).and_then(|row| row.regular(chunk, offset));
            let parts = match seen {
                Some(row) => row.parts(chunk, (offset, len))?,
                // Any data fragment says which row it is.
                None => {
                    let mut replicas = order(self.client(), chunk).into_iter();
                    let any = replicas.find(|replica| replica.fragment < chunk.data)?;
                    vec![SharePart { fragment: any.fragment, offset, len }]
                }
            };
            let replicas: Option<Vec<_>> =
                parts.iter().map(|part| self.good_replica(chunk, part.fragment)).collect();
            let replicas = replicas?;
            let bits = replicas.iter().map(|replica| 1 << replica.fragment);
            asked.set(asked.get() | bits.fold(0, |all, bit: u32| all | bit));
            let calls = replicas.iter().zip(&parts);
            let calls = calls.map(|(replica, part)| self.ask_share(chunk, replica, *part));
            let answers = join_all(calls).await;
            let mut bytes = Vec::new();
            for (answer, part) in answers.into_iter().zip(&parts) {
                let (row, extent) = match answer {
                    None if bytes.is_empty() => return None,
                    None => break,
                    Some(answer) => answer,
                };
                self.note_row(chunk.chunk, row);
                let Some(extent) = extent else { break };
                extent.copy_to(&mut bytes);
                if extent.len() < part.len as usize {
                    break;
                }
            }
            if !bytes.is_empty() {
                return Some(Extent::of_rows(bytes, 0, len));
            }
            self.client().env().mark("reader: another fragment has the bytes");
        }
        None
    }

    /// The replica with a fragment, if there is one that is not to be asked last.
    fn good_replica(&self, chunk: &ChunkPlace, fragment: u8) -> Option<ReplicaPlace> {
        let replica = chunk.replicas.iter().find(|replica| replica.fragment == fragment)?;
        (!self.client().is_asked_last(chunk.chunk, replica)).then_some(*replica)
    }

    /// A part of a range from one data fragment: the row that it belongs to, and its bytes if the
    /// fragment has them.
    async fn ask_share(
        &self,
        chunk: &ChunkPlace,
        replica: &ReplicaPlace,
        part: SharePart,
    ) -> Option<(RowSeen, Option<Extent>)> {
        let client = self.client();
        let SharePart { offset, len, .. } = part;
        let at = ChunkRef { chunk: chunk.chunk, disk: replica.disk };
        let uncommitted = chunk.sealed.is_some() || self.is_acknowledged(chunk, offset + len);
        let read = ReadRequest { at, offset, len, uncommitted, cell_sector: None, blocks: true };
        let sent = self.ask_for_sectors(chunk, replica, read, len).await;
        let answer = sent.and_then(|sent| {
            let rows = &mut *client.0.rows.borrow_mut();
            let (fragment, range) = (replica.fragment, (offset, len));
            let share = Extent::verify_share(chunk, fragment, range, &sent.sectors, rows);
            share.map_err(|_| self.damaged()).map(|share| (share, sent.readable))
        });
        match answer {
            Ok(((row, extent), readable)) => {
                let shown = |mut extent: Extent| {
                    extent.truncate(readable.saturating_sub(offset) as usize);
                    (extent.len() > 0).then_some(extent)
                };
                Some((RowSeen::of(&row), extent.and_then(shown)))
            }
            Err(Answer::Bad(fault)) => {
                self.blame(chunk, replica, fault);
                None
            }
            Err(Answer::Stale(fault)) => {
                self.note_stale(chunk, replica, fault);
                None
            }
            Err(Answer::End { .. }) => {
                self.note_short(chunk, replica);
                None
            }
            Err(_) => None,
        }
    }

    /// A replica is not where the view has it: others are asked first, and the next read asks for the
    /// view again.
    fn note_stale(&self, chunk: &ChunkPlace, replica: &ReplicaPlace, fault: ReplicaFault) {
        self.client().note_fault(chunk.chunk, replica, fault);
        self.client().0.locator.forget(self.file().id(), chunk.base);
    }

    /// A replica shows less than there is. In a sealed chunk repair fills it: others are asked first.
    fn note_short(&self, chunk: &ChunkPlace, replica: &ReplicaPlace) {
        if chunk.sealed.is_some() {
            self.client().note_fault(chunk.chunk, replica, ReplicaFault::Missing);
        }
    }

    /// A range from whole cells: of the data fragments where that is possible, and decoded where it is
    /// not. Those with a bit in `slow` are asked last.
    async fn ask_cells(
        &self,
        chunk: &ChunkPlace,
        range: (u32, u32),
        sure: bool,
        slow: u32,
    ) -> Round {
        let (client, k) = (self.client(), usize::from(chunk.data));
        let class = CallClass::read((range.1 as usize).div_ceil(k));
        let mut waiting = order(client, chunk);
        waiting.sort_by_key(|replica| {
            let is_slow = slow >> replica.fragment & 1 == 1;
            let last = is_slow || client.is_asked_last(chunk.chunk, replica);
            (last, replica.fragment >= chunk.data)
        });
        let mut whole = Whole::new(self, chunk, range);
        let mut pace = Pace::of(client, class);
        let mut asked = FuturesUnordered::new();
        let mut under_way = UnderWay::default();
        let mut first = true;
        loop {
            // As many as are missing, and one more where those that are there do not give the bytes.
            let missing = k.saturating_sub(whole.gathered.count()).max(1);
            while asked.len() < missing && !waiting.is_empty() {
                add(&client.0.counters.read_failovers, u64::from(!first));
                let replica = waiting.remove(0);
                pace.start(client.env().now());
                under_way.begin(&replica, Asking::Next, client.env().now());
                asked.push(self.ask_cell(chunk, replica, range, whole.pressed));
            }
            first = false;
            if asked.is_empty() {
                waiting = whole.press();
                if waiting.is_empty() {
                    break;
                }
                client.env().mark("reader: asks for what a fragment does not show");
                continue;
            }
            let next = match pace.next().filter(|_| !waiting.is_empty()) {
                Some(at) => {
                    let left = at.since(client.env().now());
                    client.env().timeout(left, asked.next()).await.ok()
                }
                None => Some(asked.next().await),
            };
            let Some(next) = next else {
                let Some(asking) = pace.act(client, u64::from(range.1)) else { continue };
                let replica = waiting.remove(likeliest(client, chunk.chunk, &waiting, class));
                pace.start(client.env().now());
                under_way.begin(&replica, asking, client.env().now());
                asked.push(self.ask_cell(chunk, replica, range, whole.pressed));
                continue;
            };
            let (replica, answer) = next.expect("one is asked");
            let asking = under_way.end(&replica);
            match self.take(&mut whole, &replica, answer, sure) {
                Step::On(Some(fault)) => self.blame(chunk, &replica, fault),
                Step::On(None) => {}
                Step::Done(round) => {
                    if asking == Asking::Backup && matches!(round, Round::ReadPart(_)) {
                        add(&client.0.counters.backup_reads_won, 1);
                        client.0.backup_metrics.won.inc();
                        client.env().mark("reader: backup read won");
                    }
                    under_way.suspect_failed(client, pace.delays.failed);
                    return round;
                }
            }
        }
        whole.end()
    }

    async fn ask_cell(
        &self,
        chunk: &ChunkPlace,
        replica: ReplicaPlace,
        (offset, len): (u32, u32),
        pressed: bool,
    ) -> (ReplicaPlace, Result<Sent, Answer>) {
        let at = ChunkRef { chunk: chunk.chunk, disk: replica.disk };
        let acknowledged = self.is_acknowledged(chunk, offset + len);
        let uncommitted = chunk.sealed.is_some() || pressed || acknowledged;
        let read = ReadRequest { at, offset, len, uncommitted, cell_sector: None, blocks: false };
        let share = len.div_ceil(chunk.data.into());
        let answer = self.ask_for_sectors(chunk, &replica, read, share).await;
        (replica, answer)
    }

    /// Takes an answer of one replica in.
    fn take(
        &self,
        whole: &mut Whole<'_>,
        replica: &ReplicaPlace,
        answer: Result<Sent, Answer>,
        sure: bool,
    ) -> Step {
        let chunk = whole.chunk;
        let sent = match answer {
            Ok(sent) => sent,
            Err(Answer::End { sealed: true }) => {
                // A replica's seal is the stream's; but it must not be below what the stream service
                // says.
                if chunk.sealed.is_none_or(|len| len <= whole.range.0) {
                    return Step::Done(Round::ReadPart(ReadPart::End(ChunkEnd::Sealed)));
                }
                return Step::On(Some(ReplicaFault::Missing));
            }
            Err(Answer::End { sealed: false }) => {
                self.note_short(chunk, replica);
                whole.ended = true;
                whole.shows.push((*replica, 0));
                return Step::On(None);
            }
            Err(Answer::Denied) if !sure => {
                return Step::Done(Round::None {
                    any_damaged: false,
                    all_damaged: false,
                    any_busy: false,
                });
            }
            Err(Answer::Stale(fault)) if !sure => {
                self.note_stale(chunk, replica, fault);
                return Step::On(None);
            }
            Err(Answer::Stale(fault)) => return Step::On(Some(fault)),
            Err(Answer::Bad(fault)) => {
                whole.damaged += usize::from(fault == ReplicaFault::Corrupt);
                return Step::On(Some(fault));
            }
            Err(_) => {
                whole.any_busy = true;
                return Step::On(None);
            }
        };
        let Ok(cells) = Cells::verify(chunk, replica.fragment, whole.range, sent.sectors) else {
            self.damaged();
            whole.damaged += 1;
            return Step::On(Some(ReplicaFault::Corrupt));
        };
        whole.gathered.add(cells);
        if !whole.pressed {
            whole.shown = whole.shown.max(sent.readable);
            whole.shows.push((*replica, sent.readable));
        }
        self.join(whole)
    }

    /// Decodes what has come, as far as there are enough cells.
    fn join(&self, whole: &mut Whole<'_>) -> Step {
        let (client, chunk, (offset, len)) = (self.client(), whole.chunk, whole.range);
        let joined = whole.gathered.extent(whole.range, &mut client.0.rows.borrow_mut());
        let (mut extent, odd) = match joined {
            Joined::Bytes(extent, odd) => {
                whole
                    .gathered
                    .row(offset)
                    .into_iter()
                    .for_each(|it| self.note_row(chunk.chunk, it));
                (extent, odd)
            }
            Joined::Few => return Step::On(None),
            Joined::Bad => {
                client.env().mark("reader: cells that give no row");
                whole.bad = true;
                return Step::On(None);
            }
        };
        if let Some(odd) = odd {
            client.env().mark("reader: a cell that is not its row's");
            let replica = chunk.replicas.iter().find(|replica| replica.fragment == odd);
            replica.iter().for_each(|it| self.blame(chunk, it, ReplicaFault::Corrupt));
        }
        if whole.gathered.has_parity() {
            client.env().mark("reader: decoded from other fragments");
        }
        extent.truncate(whole.shown.saturating_sub(offset) as usize);
        if extent.len() == 0 {
            whole.ended = true;
            return Step::On(None);
        }
        if self.suffices(chunk, offset, len, &extent) {
            return Step::Done(Round::ReadPart(ReadPart::Bytes(extent)));
        }
        if whole.best.as_ref().is_none_or(|best| best.len() < extent.len()) {
            whole.best = Some(extent);
        }
        Step::On(None)
    }
}

impl<'a> Whole<'a> {
    fn new(reader: &Reader, chunk: &'a ChunkPlace, range: (u32, u32)) -> Whole<'a> {
        let shown = chunk.sealed.unwrap_or_else(|| reader.shown_of(chunk));
        Whole {
            chunk,
            range,
            gathered: Gathered::new(chunk),
            shown,
            shows: Vec::new(),
            pressed: false,
            best: None,
            ended: false,
            damaged: 0,
            bad: false,
            any_busy: false,
        }
    }

    /// Replicas of an open chunk to be asked for what others show and they do not: a row that one shows
    /// is the same in all.
    fn press(&mut self) -> Vec<ReplicaPlace> {
        let is_short = self.chunk.sealed.is_none() && self.shown > self.range.0;
        if std::mem::replace(&mut self.pressed, true) || !is_short {
            return Vec::new();
        }
        let lags = |(replica, shows): (ReplicaPlace, u32)| (shows < self.shown).then_some(replica);
        std::mem::take(&mut self.shows).into_iter().filter_map(lags).collect()
    }

    /// All have answered, and none of what came suffices.
    fn end(self) -> Round {
        let spare = usize::from(self.chunk.copies - self.chunk.data);
        // Of those that did not answer another cell may be what lacks.
        let all_answered = self.gathered.count() + self.damaged >= usize::from(self.chunk.copies);
        let all_damaged = self.damaged > spare || self.bad && all_answered;
        match self.best {
            Some(best) => Round::ReadPart(ReadPart::Bytes(best)),
            None if self.ended && !all_damaged => Round::ReadPart(ReadPart::End(ChunkEnd::Open)),
            None => Round::None {
                any_damaged: self.damaged > 0 || self.bad,
                all_damaged,
                any_busy: self.any_busy,
            },
        }
    }
}
