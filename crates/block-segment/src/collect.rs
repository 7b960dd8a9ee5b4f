//! Garbage collection (B3): live blocks of DataFiles that are mostly garbage are copied, grouped by
//! expected lifetime, and the files are removed.
//!
//! A copy counts from the moment that the index takes it instead of the original, by
//! compare-and-set (`protocols.md` 6.4): a change in between wins. Data is verified and packed on
//! helper threads; between requests only the index is looked up (B13). A file is removed when the
//! index names none of its blocks and the TxnFile durably confirms it.
//!
//! A file with a record that cannot be read or does not verify stays as it is and is set aside. The
//! others are collected, and it is tried again later, for a replica may have been repaired.

use std::ops::Range;
use std::rc::Rc;

use base::{Fault, Kind};
use block_volume::ids::{FileNo, Seq};
use block_volume::record::{
    DecodeError, Head, Next, RECORD, UNIT, What, next_head, put_stored, repack,
};
use runtime::Duration;
use table::{Purpose, Redundancy};

use super::aside::pause;
use super::choice::{Candidate, Lifespan, is_pressed, pick};
use super::core::Core;
use super::files::{DataFile, Open};
use super::format::state::{FileState, Role, file_key};
use super::format::txn::Watermark;
use super::limits::{
    COLLECT_APPEND_BYTES, COLLECT_CLASSES, COLLECT_RETRY, COLLECT_ROW_BYTES, COLLECT_SLICE,
};
use super::types::{Loc, Update};

/// Time for which a step waits for requests that are under way, unless room is short.
const GIVE_WAY: Duration = Duration::from_millis(2);
/// Waits in one pause, at most: for the segment's own changes, and for those of others. At the
/// default rate collection keeps a fifth of it, and two fifths.
const GIVE_WAY_MAX: u32 = 10;
const GIVE_WAY_OTHERS: u32 = 3;

/// Outputs of collection: one for each class of lifetime.
#[derive(Default)]
struct Outputs {
    open: [Option<Output>; COLLECT_CLASSES],
    lifespan: Lifespan,
    /// Consecutive failures of appends to outputs.
    failures: u32,
    /// An append has failed since the last check.
    lost: bool,
}

struct Output {
    open: Open,
    /// Bytes of its appends at most.
    append_bytes: usize,
    /// Records that are not appended yet, and the previous locations of their blocks.
    bytes: Vec<u8>,
    moves: Vec<Update>,
}

impl Core {
    /// Candidates for collection.
    fn candidates(&self) -> Vec<Candidate> {
        let (files, index) = (self.files.borrow(), self.share.index.borrow());
        let (aside, now) = (self.aside.borrow(), self.env.now());
        let sealed = files.values().filter(|file| file.state.get().sealed);
        let sealed = sealed.filter(|file| !aside.has(file.number, now));
        let outputs = self.outputs.redundancy();
        let candidate = |file: &Rc<DataFile>| {
            let state = file.state.get();
            let live = (i64::from(state.live) + index.pending(file.number)).max(0) as u64;
            let form = self.form_of(&state);
            // Another volume has a linked file too: to give it another form takes room.
            let outputs = if state.clone_source == 0 { outputs } else { form };
            let age = self.counter.get().saturating_sub(state.born);
            let bytes = u64::from(state.units) * UNIT;
            let counts = (bytes, u64::from(state.blocks), live);
            Candidate::new((file.number, age), counts, (form, outputs))
        };
        sealed.map(candidate).collect()
    }

    /// What a DataFile takes on media.
    pub(crate) fn form_of(&self, state: &FileState) -> Redundancy {
        state.code.unwrap_or_else(|| self.store.redundancy())
    }

    /// Bytes on media of what a DataFile has.
    pub(crate) fn stored_bytes(&self, file: &DataFile) -> u64 {
        self.form_of(&file.state.get()).stored(u64::from(file.end.get()) * UNIT)
    }

    /// The task that collects, until the instance is over.
    pub(crate) async fn collect_always(self: Rc<Self>) {
        let mut outputs = Outputs::default();
        while !self.is_over() {
            let percent = u64::from(self.options.garbage_percent);
            let picked = match (self.options.collect, self.options.read_only) {
                (true, false) => self.pick_shared().or_else(|| pick(&self.candidates(), percent)),
                // Older programs made a DataFile in each opening.
                (true, true) => {
                    let candidates = self.candidates();
                    let has_none = |file: &FileNo| {
                        self.files.borrow().get(file).is_some_and(|it| it.state.get().blocks == 0)
                    };
                    let empty = candidates.iter().find(|candidate| has_none(&candidate.file));
                    empty.map(|empty| empty.file)
                }
                (false, _) => None,
            };
            let done = match picked {
                _ if self.cuts.wants_seal() => self.end_outputs(&mut outputs).await,
                Some(file) => self.collect(file, &mut outputs).await,
                None => {
                    let now = self.env.now();
                    let due = self.aside.borrow().next(now);
                    let woken = self.wake_collect.notified();
                    match due {
                        // Both wake the loop.
                        Some(due) => drop(self.env.timeout(due - now, woken).await),
                        None => woken.await,
                    }
                    continue;
                }
            };
            let before = std::mem::take(&mut outputs.failures);
            let failed_outputs = std::mem::take(&mut outputs.lost);
            let Err(fault) = done else { continue };
            match self.explain(fault).await {
                _ if self.is_over() => {}
                fault if fault.kind == Kind::Fenced => self.end(fault),
                // Collecting another file would fail too.
                fault if failed_outputs || picked.is_none() => {
                    tracing::warn!(cause = fault.message, "a collection failed; trying again");
                    outputs.failures = before + 1;
                    let until = self.env.now() + self.env.jitter(pause(before));
                    // A link of files waits for the end of the outputs.
                    while self.env.now() < until && !self.cuts.wants_seal() && !self.is_over() {
                        self.env.sleep((until - self.env.now()).min(COLLECT_RETRY.0)).await;
                    }
                }
                fault => {
                    let file = picked.expect("looked at above");
                    tracing::warn!(
                        ?file,
                        cause = fault.message,
                        "a DataFile cannot be collected now: it stays, others are collected"
                    );
                    self.env.mark("segment: DataFile set aside");
                    self.aside.borrow_mut().put(file, self.env.now(), fault.kind);
                }
            }
        }
    }

    /// True while a file is set aside, since it could not be collected.
    pub(crate) fn is_aside(&self, file: FileNo) -> bool {
        self.aside.borrow().has(file, self.env.now())
    }

    /// Copies the live blocks of a file, and removes it.
    async fn collect(&self, number: FileNo, outputs: &mut Outputs) -> Result<(), Fault> {
        let Some(file) = self.files.borrow().get(&number).cloned() else { return Ok(()) };
        let state = file.state.get();
        let live = i64::from(state.live) + self.share.index.borrow().pending(number);
        if live > 0 {
            self.copy_live(&file, outputs).await?;
            for class in 0..COLLECT_CLASSES {
                self.append_output(outputs, class).await?;
            }
        }
        if state.role == Role::Log {
            outputs.lifespan.note(self.counter.get().saturating_sub(state.born));
        }
        // The TxnFile has all updates by which the index left the file.
        self.log_all().await?;
        self.commit(|batch| {
            batch.set_purpose(Purpose::Recovery);
            batch.delete(&file_key(number));
            self.files.borrow_mut().remove(&number);
            // The sweep leaves it there until the row is durably gone.
            self.cuts.begin_delete(&file.name);
        })
        .await?;
        self.aside.borrow_mut().0.remove(&number);
        self.env.mark("segment: DataFile collected");
        self.count(|counts| counts.collected += 1);
        self.discard(&file.name).await;
        Ok(())
    }

    async fn copy_live(&self, file: &DataFile, outputs: &mut Outputs) -> Result<(), Fault> {
        let (mut unit, end) = (1, file.state.get().units);
        let identity = file.identity(self.identity);
        self.end_file(file).await?;
        let source = self.store.open(&file.name).await;
        let source = source.map_err(|fault| self.cause("open", &file.name, fault))?;
        while unit < end {
            self.over.borrow().clone().map_or(Ok(()), Err)?;
            if self.cuts.wants_seal() {
                self.end_outputs(outputs).await?;
            }
            let offset = u64::from(unit) * UNIT;
            let want = (u64::from(end - unit) * UNIT).min(COLLECT_APPEND_BYTES as u64) as usize;
            let bytes = source.read_at(offset, want).await;
            let bytes = bytes.map_err(|fault| self.cause("read", &file.name, fault))?;
            self.count(|counts| counts.collect_read_bytes += bytes.len() as u64);
            let (mut at, mut records) = (0, 0u32);
            let mut live: Vec<(Head, Range<usize>)> = Vec::new();
            loop {
                let place = unit + (at as u64 / UNIT) as u32;
                let next = next_head(identity, file.number, place, &bytes[at..]);
                let flaw = |flaw| self.damage(&file.name, u64::from(place) * UNIT, flaw);
                match next.map_err(flaw)? {
                    Next::Partial(_) => break,
                    Next::Record(head, stored) => {
                        if head.what.has_data() && self.is_live(&head).await? {
                            let start = at + UNIT as usize;
                            live.push((head, start..start + stored.len()));
                        }
                        at += head.record_len();
                        records += 1;
                        if records % COLLECT_SLICE == 0 {
                            self.env.yield_now().await;
                        }
                    }
                }
            }
            if at == 0 {
                // The file's length does not count an append that was under way when its writer ended.
                return Err(self.damage(
                    &file.name,
                    offset,
                    DecodeError::Damaged("a record is cut off"),
                ));
            }
            for (head, copy) in self.repack(live, bytes).await {
                let flaw = |flaw| self.damage(&file.name, u64::from(head.unit) * UNIT, flaw);
                let (what, stored) = copy.map_err(flaw)?;
                self.copy_block(&head, what, &stored, outputs).await?;
            }
            unit += (at as u64 / UNIT) as u32;
            self.pace(at as u64).await;
        }
        Ok(())
    }

    /// True when the index still has a block at the location where it was read.
    async fn is_live(&self, head: &Head) -> Result<bool, Fault> {
        Ok(self.locate(head.lba).await? == Loc::new(head.file, head.unit))
    }

    /// Verifies and packs blocks, whose records are in `bytes`, on a helper thread (B13).
    async fn repack(
        &self,
        blocks: Vec<(Head, Range<usize>)>,
        bytes: Vec<u8>,
    ) -> Vec<(Head, Result<(What, Vec<u8>), DecodeError>)> {
        if blocks.is_empty() {
            return Vec::new();
        }
        let compress = self.options.compress;
        let work = move || {
            let copy = |(head, at): (Head, Range<usize>)| {
                let stored = repack(&head, &bytes[at], compress);
                (head, stored)
            };
            blocks.into_iter().map(copy).collect()
        };
        self.env.blocking("segment: pack blocks", work).await
    }

    /// Copies a block if the index still has it at the location where it was read.
    async fn copy_block(
        &self,
        head: &Head,
        what: What,
        stored: &[u8],
        outputs: &mut Outputs,
    ) -> Result<(), Fault> {
        if !self.is_live(head).await? {
            return Ok(()); // It was changed since.
        }
        let from = Loc::new(head.file, head.unit);
        let class = outputs.lifespan.class(self.counter.get().saturating_sub(head.seq.counter));
        let full = |output: &Output| {
            let have = u64::from(output.open.next) * UNIT + output.bytes.len() as u64;
            have + RECORD as u64 > self.options.file_bytes
        };
        if outputs.open[class].as_ref().is_some_and(full) {
            self.append_output(outputs, class).await?;
            let done = outputs.open[class].take().expect("just seen");
            self.seal_output(done.open).await;
        }
        if outputs.open[class].is_none() {
            let open = self.make_file(Role::Collected, true).await?;
            let append_bytes = match open.file.state.get().code {
                None => COLLECT_APPEND_BYTES,
                Some(_) => COLLECT_ROW_BYTES,
            };
            let (bytes, moves) = (Vec::new(), Vec::new());
            outputs.open[class] = Some(Output { open, append_bytes, bytes, moves });
        }
        let output = outputs.open[class].as_mut().expect("made above");
        let unit = output.open.next + (output.bytes.len() as u64 / UNIT) as u32;
        let file = output.open.file.number;
        // The data's CRC goes with the data; the copy is this segment's own.
        let copy = Head { what, file, unit, identity: self.identity, tag: None, ..*head };
        put_stored(&mut output.bytes, copy, stored);
        output.moves.push(Update::Move { lba: head.lba, from, to: Loc::new(file, unit) });
        if output.bytes.len() + RECORD > output.append_bytes {
            self.append_output(outputs, class).await?;
        }
        Ok(())
    }

    /// Makes copies durable, and has the index take them.
    async fn append_output(&self, outputs: &mut Outputs, class: usize) -> Result<(), Fault> {
        let Some(output) = &mut outputs.open[class] else { return Ok(()) };
        if output.moves.is_empty() {
            return Ok(());
        }
        let file = output.open.file.clone();
        let written = match output.open.writer.submit(&output.bytes).await {
            Ok(pending) => pending.await,
            Err(fault) => Err(fault),
        };
        if let Err(fault) = written {
            let output = outputs.open[class].take().expect("just seen");
            outputs.lost = true;
            let fault = self.cause("append to", &file.name, fault);
            // Its length is not known: nothing is appended to it any more. The installed part is
            // known, so it ends there, and is collected like any other.
            self.seal_output(output.open).await;
            return Err(fault);
        }
        let blocks = output.moves.len() as u32;
        output.open.next += (output.bytes.len() as u64 / UNIT) as u32;
        let bytes = output.bytes.len() as u64;
        output.bytes.clear();
        file.end.set(output.open.next);
        file.blocks.set(file.blocks.get() + blocks);
        self.count(|counts| {
            counts.collected_blocks += u64::from(blocks);
            counts.collected_bytes += bytes;
        });
        self.install(self.known_seq(), Some(mark_of(&file)), std::mem::take(&mut output.moves));
        Ok(())
    }

    /// Ends all outputs: a link of files is under way.
    async fn end_outputs(&self, outputs: &mut Outputs) -> Result<(), Fault> {
        for class in 0..COLLECT_CLASSES {
            self.append_output(outputs, class).await?;
            if let Some(output) = outputs.open[class].take() {
                self.seal_output(output.open).await;
            }
        }
        self.cuts.sealed();
        self.changed.notify_waiters();
        Ok(())
    }

    /// Ends an output that is full. The batch that covers its end marks it as sealed.
    async fn seal_output(&self, open: Open) {
        open.file.closed.set(true);
        self.install(self.known_seq(), Some(mark_of(&open.file)), Vec::new());
        if let Err(fault) = open.writer.close().await {
            tracing::debug!(cause = fault.message, "collected output not closed");
        }
    }

    /// A change that the TxnFile covers: copies have no position in history of their own.
    fn known_seq(&self) -> Seq {
        Seq { epoch: self.epoch, counter: self.logged.get() }
    }

    /// Waits as the configured rate requires, and gives way to changes of all segments of this
    /// process (B12).
    async fn pace(&self, bytes: u64) {
        let rate = self.options.collect_bytes_per_second.max(1);
        let percent = u64::from(self.options.garbage_percent);
        // Half as much again as is wanted: space has priority over the rate.
        if is_pressed(&self.candidates(), percent + percent / 2) {
            return self.env.yield_now().await;
        }
        self.env
            .sleep(Duration::from_nanos(
                (u128::from(bytes) * 1_000_000_000 / u128::from(rate)) as u64,
            ))
            .await;
        for times in 0..GIVE_WAY_MAX {
            let (own, others) = self.share.waiting();
            if own == 0 && (others == 0 || times >= GIVE_WAY_OTHERS) {
                break;
            }
            self.env.sleep(GIVE_WAY).await;
        }
    }
}

/// The watermark of a file's end.
fn mark_of(file: &DataFile) -> Watermark {
    Watermark { file: file.number, end: file.end.get(), blocks: file.blocks.get() }
}
