//! Opening a segment: taking it over, recovering its index (`protocols.md` 6.3).
//!
//! 1. The table is opened, unless an owner of a higher epoch has been there. Its previous owner
//!    logs nothing any more, so it makes no DataFile that the table names and acknowledges nothing
//!    in another.
//! 2. All unsealed DataFiles are sealed: the previous owner acknowledges nothing at all any more,
//!    and their content is final. This begins when the former owner's logs are sealed, beside the rest
//!    of step 1, for files that these name.
//! 3. The TxnFile's batches are replayed over the index pages, without reading these.
//! 4. The tails of the DataFiles behind the TxnFile's watermarks are scanned.
//! 5. A new DataFile, made beside steps 2 to 4, gets its head and its row, unless no change comes, and
//!    the segment serves.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use base::{Fault, Kind};
use block_volume::dedup::DedupWindows;
use block_volume::ids::{FileNo, Identity, Seq, parse_name};
use block_volume::record::{
    DecodeError, FILE_HEAD, Next, RECORD, UNIT, What, next_record, read_file_head,
};
use futures_util::future::{join, join_all};
use runtime::{Class, Env, JoinHandle};
use table::{Batch, Purpose, Range, Source, Store, Table, Writer};

use super::core::{Core, PendingIndexUpdate, Start};
use super::files::DataFile;
use super::format::state::{
    FILE_PREFIX, FileState, ORIGIN_PREFIX, Role, SCRUB_KEY, SEGMENT_KEY, ScrubState, SegmentState,
    TXN_PREFIX, file_key, read_key, read_txn_key,
};
use super::format::txn::{Txn, Watermark};
use super::index::IndexMap;
use super::limits::{SCAN_BYTES, TXN_UPDATES_MAX};
use super::options::{LinkFrom, Options};
use super::shared::Shared;
use super::types::{Loc, Update, merge, replay_weight};

/// A segment that is being opened.
pub(super) struct SegmentOpening {
    pub(super) env: Env,
    pub(super) store: Rc<dyn Store>,
    pub(super) identity: Identity,
}

/// Content of a tail.
struct Tail {
    /// Its records' updates, in pieces, each with its watermark.
    pieces: Vec<(Seq, Watermark, Vec<Update>)>,
    /// Units of whole records in the file, and blocks in them.
    units: u32,
    blocks: u32,
}

/// Opens a segment and starts its tasks. A new one is linked from its clone source.
pub(crate) async fn open(
    env: &Env,
    (store, outputs): (Rc<dyn Store>, Rc<dyn Store>),
    shared: &Shared,
    (identity, bytes, epoch): (Identity, u64, u64),
    (options, clone_source): (Options, Option<LinkFrom>),
) -> Result<Rc<Core>, Fault> {
    let options = options.clamped();
    let opening = SegmentOpening { env: env.clone(), store: store.clone(), identity };
    let table_options =
        table::Options { create: options.create, owner: epoch, ..options.table.clone() };
    let ahead = SealedAhead::default();
    let begin = |key: &[u8], value: &[u8]| ahead.begin(env, &store, key, value);
    let table = Table::open_beside(env, store.clone(), shared.cache(), table_options, &begin).await;
    let table = table.map_err(|error| opening.fault(error.kind(), error))?;
    let mut state = opening.state(&table).await?;
    if let (None, Some(clone_source)) = (state, &clone_source) {
        opening.link_from(&table, clone_source).await?;
        state = opening.state(&table).await?;
    }
    let state = match state {
        None => SegmentState { identity, bytes, epoch, next_file: 1, counter: 0 },
        Some(state) if state.identity != identity => {
            let text = format!("holds {}; give each segment a directory", state.identity);
            return Err(opening.fault(Kind::Invalid, text));
        }
        Some(state) if state.epoch > epoch => {
            let text = format!("epoch {epoch} comes too late: {} has been here", state.epoch);
            return Err(opening.fault(Kind::Fenced, text));
        }
        // It may have grown, or been cut.
        Some(state) => SegmentState { epoch, bytes, ..state },
    };
    let handle = table.clone();
    let read_only = options.read_only;
    let first = opening.begin_first(&handle, &state, read_only);
    let recovered = async {
        let files = opening.files(&table).await?;
        let unsealed: Vec<_> =
            files.values().filter(|file| !file.state.get().sealed).cloned().collect();
        let replayed = async {
            let mut start = Start {
                store: store.clone(),
                outputs,
                state,
                scrub: opening.scrub(&table).await?,
                options,
                files,
                shared: shared.clone(),
                index: IndexMap::new(),
                dedup: opening.dedup(&table).await?,
                txns: (0, 0),
                txn_updates: 0,
                logged: state.counter,
                table,
            };
            opening.replay(&mut start).await?;
            Ok::<Start, Fault>(start)
        };
        // The table does not change any more: what it says is read beside the seals.
        let (sealed, start) = join(opening.seal_all(&unsealed, &ahead), replayed).await;
        sealed?;
        let mut start = start?;
        let (tails, last) = opening.tails(&mut start).await?;
        Ok((start, tails, last))
    };
    let (recovered, first) = join(recovered, first).await;
    let (start, tails, last) = match recovered {
        Err(fault) => {
            // If it cannot be removed now, the next opening does.
            if let Ok(Some((name, _))) = &first {
                let _ = opening.store.remove(name).await;
            }
            return Err(opening.explain(&handle, fault).await);
        }
        Ok(recovered) => recovered,
    };
    let first = first?; // Without room the opening fails.
    let core = Rc::new(Core::new(env, start));
    core.counter.set(last);
    core.unlogged_count.set(tails.iter().map(|tail| tail.updates.len().max(1)).sum());
    core.installed.set(tails.len() as u64);
    core.unlogged.replace(tails);
    // The epoch is durable before any other change, or with the first file.
    let collected = |batch: &mut Batch| {
        batch.set_purpose(Purpose::Recovery);
        let files = core.files.borrow();
        let collected = files.values().filter(|file| file.state.get().role == Role::Collected);
        for file in collected {
            batch.put(&file_key(file.number), &file.state.get().encode());
        }
    };
    let first = match first {
        Some(begun) => Some(core.use_first_file(begun, collected).await?),
        None => {
            core.commit(|batch| {
                core.put_state(batch);
                collected(batch);
            })
            .await?;
            None
        }
    };
    core.watch_memory(); // Replayed changes count.
    env.spawn(Class::Foreground, "segment log", core.clone().write_log(first));
    env.spawn(Class::Foreground, "segment TxnFile", core.clone().log_always());
    env.spawn(Class::Background, "segment checkpoint", core.clone().checkpoint_always());
    env.spawn(Class::Background, "segment DataFiles", core.clone().make_files_always());
    env.spawn(Class::Background, "segment collection", core.clone().collect_always());
    env.spawn(Class::Background, "segment sweep", core.clone().sweep());
    env.spawn(Class::Background, "segment scrub", core.clone().scrub_always());
    Ok(core)
}

/// Seals of DataFiles that were begun as soon as the former owner's logs were sealed, while the table was
/// still being opened: that owner acknowledges nothing in files that it makes from then on, and those
/// that it has are sealed by each opening.
#[derive(Default)]
struct SealedAhead(RefCell<BTreeMap<String, JoinHandle<Result<u64, Fault>>>>);

impl SealedAhead {
    /// Begins with the seal of the file that a row of the table names, if it is one, and unsealed.
    fn begin(&self, env: &Env, store: &Rc<dyn Store>, key: &[u8], value: &[u8]) {
        if key.first() != Some(&FILE_PREFIX) {
            return;
        }
        let Some(number) = read_key(key).and_then(FileNo::new) else { return };
        let state = FileState::decode(value).ok().filter(|state| !state.sealed);
        let Some(name) = state.map(|state| number.name(state.generation)) else { return };
        let store = store.clone();
        self.0.borrow_mut().entry(name).or_insert_with_key(|name| {
            let name = name.clone();
            env.spawn(Class::Foreground, "segment seal", async move { store.seal(&name).await })
        });
    }

    /// The length at which a file was sealed; none when the seal has not begun, or failed.
    async fn end(&self, name: &str) -> Option<u64> {
        let sealing = self.0.borrow_mut().remove(name)?;
        sealing.await.ok()?.ok()
    }
}

impl SegmentOpening {
    pub(super) fn fault(&self, kind: Kind, text: impl std::fmt::Display) -> Fault {
        Fault::new(kind, format!("{} in {}: {text}", self.identity, self.store.name()))
    }

    pub(super) fn damage(&self, what: &str, offset: u64, flaw: DecodeError) -> Fault {
        match flaw {
            DecodeError::Damaged(flaw) => {
                self.fault(Kind::Corrupt, format!("{what}, about offset {offset}: {flaw}"))
            }
            DecodeError::Version(seen) => {
                let text = format!("{what} has format version {seen}");
                self.fault(Kind::Invalid, format!("{text}; use the program that wrote it"))
            }
        }
    }

    fn cause(&self, what: &str, file: &str, fault: Fault) -> Fault {
        self.fault(fault.kind, format!("could not {what} {file}: {}", fault.message))
    }

    /// A file of the table that is gone is lost, or was collected by a later owner.
    async fn explain(&self, table: &Table, fault: Fault) -> Fault {
        if fault.kind != Kind::NotFound {
            return fault;
        }
        match table.barrier().await {
            Ok(()) => Fault::new(Kind::Corrupt, fault.message),
            Err(error) if error.kind() == Kind::Fenced => self.fault(Kind::Fenced, error),
            // The cause is not known now.
            Err(error) => self.fault(Kind::Retry, error),
        }
    }

    async fn state(&self, table: &Table) -> Result<Option<SegmentState>, Fault> {
        let state = table.get(SEGMENT_KEY).await;
        let state = state.map_err(|error| self.fault(error.kind(), error))?;
        let decode = |bytes: Vec<u8>| {
            SegmentState::decode(&bytes).map_err(|flaw| self.damage("its table", 0, flaw))
        };
        state.map(decode).transpose()
    }

    /// Progress of the previous owners' scrub.
    async fn scrub(&self, table: &Table) -> Result<ScrubState, Fault> {
        let state = table.get(SCRUB_KEY).await.map_err(|error| self.fault(error.kind(), error))?;
        let state = state.map(|bytes| ScrubState::decode(&bytes)).transpose();
        Ok(state.map_err(|flaw| self.damage("its table", 0, flaw))?.unwrap_or_default())
    }

    async fn files(&self, table: &Table) -> Result<BTreeMap<FileNo, Rc<DataFile>>, Fault> {
        let mut files = BTreeMap::new();
        let mut scan = table.scan(Range::prefix(&[FILE_PREFIX]));
        while let Some((key, value)) =
            scan.next().await.map_err(|error| self.fault(error.kind(), error))?
        {
            let flaw = DecodeError::Damaged("a DataFile's key is none");
            let number = read_key(&key).and_then(FileNo::new);
            let number = number.ok_or_else(|| self.damage("its table", 0, flaw))?;
            let state = FileState::decode(&value);
            let state = state.map_err(|flaw| self.damage("its table", 0, flaw))?;
            files.insert(number, DataFile::new(number, state));
        }
        Ok(files)
    }

    /// The stored windows of clients' changes.
    async fn dedup(&self, table: &Table) -> Result<DedupWindows, Fault> {
        let mut dedup = DedupWindows::default();
        let mut scan = table.scan(Range::prefix(&[ORIGIN_PREFIX]));
        while let Some((key, value)) =
            scan.next().await.map_err(|error| self.fault(error.kind(), error))?
        {
            if !read_key(&key).is_some_and(|attachment| dedup.load(attachment, &value)) {
                let flaw = DecodeError::Damaged("what is known of an attachment does not decode");
                return Err(self.damage("its table", 0, flaw));
            }
        }
        Ok(dedup)
    }

    /// Fences the writers of DataFiles. All at once, so that the previous owner notices soon.
    async fn seal_all(&self, open: &[Rc<DataFile>], ahead: &SealedAhead) -> Result<(), Fault> {
        let sealed = join_all(open.iter().map(|file| async {
            let len = match ahead.end(&file.name).await {
                Some(len) => len,
                None => {
                    let len = self.store.seal(&file.name).await;
                    len.map_err(|fault| self.cause("seal", &file.name, fault))?
                }
            };
            let units = u32::try_from(len / UNIT).unwrap_or(u32::MAX);
            file.end.set(units);
            file.closed.set(true);
            file.ended.set(true);
            Ok(())
        }));
        sealed.await.into_iter().collect()
    }

    /// Makes the first DataFile's name and opens it for append, beside recovery: what is in it first
    /// depends on what that finds. None where nothing is to be written.
    async fn begin_first(
        &self,
        table: &Table,
        state: &SegmentState,
        read_only: bool,
    ) -> Result<Option<(String, Box<dyn Writer>)>, Fault> {
        let number = FileNo::new(state.next_file).filter(|_| !read_only);
        let Some(number) = number else { return Ok(None) };
        let name = number.name(table.stats().generation);
        match self.store.create(&name).await {
            Ok(writer) => Ok(Some((name, writer))),
            Err(fault) => {
                // Its name may be there all the same.
                self.env.mark("segment: unmade file removed");
                let _ = self.store.remove(&name).await;
                Err(self.cause("create", &name, fault))
            }
        }
    }

    /// Replays the TxnFile: the index, and the watermarks of files.
    async fn replay(&self, start: &mut Start) -> Result<(), Fault> {
        let mut scan = start.table.scan(Range::prefix(&[TXN_PREFIX]));
        let (mut next, mut visits) = (None, 0);
        while let Some((key, value)) =
            scan.next().await.map_err(|error| self.fault(error.kind(), error))?
        {
            let damage = |what| self.damage("its TxnFile", 0, DecodeError::Damaged(what));
            let number = read_txn_key(&key).ok_or_else(|| damage("a batch's key is none"))?;
            if next.is_some_and(|next| next != number) {
                return Err(damage("a batch is missing"));
            }
            if next.is_none() {
                start.txns.0 = number;
            }
            next = number.checked_add(1);
            let txn = Txn::decode(&value).map_err(|flaw| self.damage("its TxnFile", 0, flaw))?;
            start.logged = start.logged.max(txn.seq.counter);
            start.txn_updates += replay_weight(&txn.updates);
            start.index.apply_in_steps(&self.env, &txn.updates, &mut visits).await;
            for mark in txn.marks {
                let Some(file) = start.files.get(&mark.file) else { continue };
                file.change(|state| {
                    if mark.end > state.units {
                        (state.units, state.blocks) = (mark.end, mark.blocks);
                    }
                });
            }
        }
        start.txns.1 = next.unwrap_or(0);
        Ok(())
    }

    /// Scans the tails behind the watermarks, file by file in the order of their making; returns
    /// the counter of the last change, too.
    async fn tails(&self, start: &mut Start) -> Result<(VecDeque<PendingIndexUpdate>, u64), Fault> {
        let open = start.files.values().filter(|file| !file.state.get().sealed);
        let open: Vec<_> = open.cloned().collect();
        let mut found = VecDeque::new();
        let (mut last, mut visits) = (start.logged, 0);
        for file in open {
            if file.end.get() < file.state.get().units {
                let flaw = DecodeError::Damaged("it is shorter than the TxnFile says");
                return Err(self.damage(&file.name, u64::from(file.end.get()) * UNIT, flaw));
            }
            let tail = self.scan(&file, &mut last, &mut start.dedup).await?;
            file.end.set(tail.units);
            file.blocks.set(tail.blocks);
            if file.state.get().role == Role::Collected {
                // Pages that were stored ahead of the TxnFile may name all of it.
                let (units, blocks) = (tail.units, tail.blocks);
                file.change(|state| {
                    (state.sealed, state.units, state.blocks) = (true, units, blocks);
                });
                continue;
            }
            for (seq, mark, updates) in tail.pieces {
                start.index.apply_in_steps(&self.env, &updates, &mut visits).await;
                let since = self.env.now();
                found.push_back(PendingIndexUpdate { seq, mark: Some(mark), updates, since });
            }
        }
        Ok((found, last))
    }

    /// Scans the tail of a sealed file.
    async fn scan(
        &self,
        file: &DataFile,
        last: &mut u64,
        dedup: &mut DedupWindows,
    ) -> Result<Tail, Fault> {
        let state = file.state.get();
        let (len, mut units, mut blocks) =
            (u64::from(file.end.get()) * UNIT, state.units, state.blocks);
        let source = self.store.open(&file.name).await;
        let source = source.map_err(|fault| self.cause("open", &file.name, fault))?;
        if units <= 1 {
            let head = self.read(file, &*source, 0, FILE_HEAD).await?;
            let head = read_file_head(&head).map_err(|flaw| self.damage(&file.name, 0, flaw))?;
            if (head.0, head.1) != (self.identity, file.number) {
                let flaw = DecodeError::Damaged("its head is of another file");
                return Err(self.damage(&file.name, 0, flaw));
            }
        }
        let mut pieces = Vec::new();
        let mut base = u64::from(units) * UNIT;
        while base < len {
            let want = (len - base).min(SCAN_BYTES as u64) as usize;
            let bytes = self.read(file, &*source, base, want).await?;
            let (mut at, mut updates, mut seq) = (0, Vec::new(), Seq::default());
            let need = loop {
                let offset = base + at as u64;
                let next = next_record(self.identity, file.number, units, &bytes[at..]);
                match next.map_err(|flaw| self.damage(&file.name, offset, flaw))? {
                    Next::Partial(need) => break need,
                    Next::Record(head, _) => {
                        if state.role == Role::Log {
                            if head.seq.counter <= *last {
                                let flaw = DecodeError::Damaged("a record's sequence goes back");
                                return Err(self.damage(&file.name, offset, flaw));
                            }
                            (*last, seq) = (head.seq.counter, head.seq);
                        }
                        let (lba, count) = (head.lba, head.count);
                        if let Some(mark) = head.tag.filter(|_| state.role == Role::Log) {
                            let request = dedup.complete(mark.attachment, mark.seq);
                            let blocks = u64::from(lba)..u64::from(lba) + u64::from(count);
                            dedup.note(request, blocks, mark.last);
                        }
                        let update = match head.what {
                            What::Data | What::Packed(_) => {
                                Update::Data { lba, count, at: Loc::new(file.number, units) }
                            }
                            What::Trim => Update::Clear { lba, count, to: Loc::HOLE },
                            What::Zero => Update::Clear { lba, count, to: Loc::ZERO },
                        };
                        merge(&mut updates, update);
                        blocks += u32::from(head.what.has_data());
                        units += (head.record_len() as u64 / UNIT) as u32;
                        at += head.record_len();
                        // Each piece fits into a batch of the TxnFile.
                        if updates.len() == TXN_UPDATES_MAX {
                            let mark = Watermark { file: file.number, end: units, blocks };
                            pieces.push((seq, mark, std::mem::take(&mut updates)));
                        }
                    }
                }
            };
            base += at as u64;
            if !updates.is_empty() {
                let mark = Watermark { file: file.number, end: units, blocks };
                pieces.push((seq, mark, updates));
            }
            if base + need as u64 > len {
                break; // Under way when its writer ended: never acknowledged.
            }
        }
        if pieces.is_empty() {
            // Nothing new, but the next batch marks it as sealed.
            let seq = Seq { epoch: 0, counter: *last };
            pieces.push((seq, Watermark { file: file.number, end: units, blocks }, Vec::new()));
        }
        Ok(Tail { pieces, units, blocks })
    }

    async fn read(
        &self,
        file: &DataFile,
        source: &dyn Source,
        at: u64,
        len: usize,
    ) -> Result<Vec<u8>, Fault> {
        let bytes = source.read_at(at, len).await;
        let bytes = bytes.map_err(|fault| self.cause("read", &file.name, fault))?;
        if bytes.len() != len {
            let flaw = DecodeError::Damaged("it is shorter than its length");
            return Err(self.damage(&file.name, at + bytes.len() as u64, flaw));
        }
        Ok(bytes)
    }
}

impl Core {
    /// Removes DataFiles of earlier owners that the table does not name: made, but never used.
    pub(crate) async fn sweep(self: Rc<Self>) {
        let mut after = "data-".to_owned();
        loop {
            let page = match self.store.list(&after).await {
                Ok(page) => page,
                // The next opening sweeps again.
                Err(fault) => return tracing::debug!(cause = fault.message, "no sweep"),
            };
            for name in &page.names {
                let Some((generation, number)) = parse_name(name) else { continue };
                // A later owner's files have a higher generation, and numbers from the one on that
                // was next when this one began. Linked files have the generation of another
                // directory's table, which is not comparable, and a lower number.
                let old = generation < self.generation || number.get() < self.first_file;
                let named = self.files.borrow().get(&number).is_some_and(|f| f.name == *name)
                    || self.cuts.has_discarded(name);
                if !old || named || self.is_over() {
                    continue;
                }
                self.env.mark("segment: orphan removed");
                if let Err(fault) = self.store.remove(name).await {
                    tracing::debug!(name, cause = fault.message, "orphan not removed");
                }
            }
            match page.names.into_iter().next_back() {
                Some(last) if page.more && last.as_str() < "data." => after = last,
                _ => return,
            }
        }
    }
}

const _: () = assert!(SCAN_BYTES > 2 * RECORD);
