//! Direct reads (decision 23): the block server sends the locations of blocks, and the client reads
//! the records from the core. A record never changes and is verified against its own identity. So
//! the client reads what the blocks had when the server answered.
//!
//! The block server stays the fallback. It reads when a file was collected, a replica does not show
//! enough yet, a record does not verify, or the core takes long.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use base::{Fault, Kind};
use block_proto::Located;
use block_volume::geometry::Extent;
use block_volume::ids::{FileNo, Identity, SegmentId};
use block_volume::location::{LocationRun, RecordLocation, blocks, part};
use block_volume::record::{FILE_BYTES, READ_BYTES_MAX, RECORD, RECORD_UNITS, UNIT, read_block};
use futures_util::future::join_all;
use runtime::{Buf, Class};
use table::Source;

use super::shared::Shared;
use crate::limits::{DIRECT_FILES_MAX, DIRECT_RUNS_MAX, DIRECT_TIMEOUT};

/// A DataFile, as the client knows it.
enum KnownFile {
    /// Being opened.
    Opening,
    Open(Rc<dyn Source>),
}

/// Records of one file that stand close together.
struct Run {
    file: (u32, u32),
    clone_source: u64,
    /// Numbers of the blocks, and the units of their records.
    blocks: Vec<(u64, u32)>,
}

impl Run {
    fn offset(&self) -> u64 {
        u64::from(self.blocks[0].1) * UNIT
    }

    fn len(&self) -> usize {
        let (first, last) = (self.blocks[0].1, self.blocks[self.blocks.len() - 1].1);
        (last - first) as usize * UNIT as usize + RECORD
    }

    /// True when a record may stand right behind the last one: packed ones are shorter than others.
    fn goes_on(&self, place: RecordLocation, unit: u32) -> bool {
        let last = self.blocks[self.blocks.len() - 1].1;
        (self.file, self.clone_source) == (place.file, place.clone_source)
            && last < unit
            && unit - last <= RECORD_UNITS
            && self.len() + RECORD <= READ_BYTES_MAX
    }
}

/// The DataFiles of one segment.
pub(super) struct DirectReader {
    shared: Rc<Shared>,
    segment: SegmentId,
    files: RefCell<BTreeMap<(u32, u32), KnownFile>>,
    /// Counts the sessions: what was opened in one is not used in the next.
    session: Cell<u64>,
}

impl DirectReader {
    pub(super) fn new(shared: &Rc<Shared>, segment: SegmentId) -> Rc<DirectReader> {
        let (shared, files, session) = (shared.clone(), RefCell::default(), Cell::default());
        Rc::new(DirectReader { shared, segment, files, session })
    }

    /// True when the block server may answer with locations.
    pub(super) fn is_wanted(&self) -> bool {
        self.shared.files.get().is_some() && self.shared.direct_backoff.allows(&self.shared.env)
    }

    /// Begins another session. The segment may have been discarded and made again since the last
    /// one, with files of the same names.
    pub(super) fn begin_session(&self) {
        self.session.set(self.session.get() + 1);
        self.files.borrow_mut().clear();
    }

    /// After a failure direct reads pause: the core, or a block server without locations, is left alone.
    pub(super) fn note_failure(&self) {
        self.shared.env.mark("block: direct read failed");
        self.shared.direct_backoff.note_failure(&self.shared.env);
    }

    /// The bytes of a range whose blocks are at `spans`; nothing when the block server is to read
    /// them.
    pub(super) async fn read(
        self: &Rc<DirectReader>,
        extent: Extent,
        spans: &[LocationRun],
    ) -> Option<Buf> {
        let (env, backoff) = (&self.shared.env, &self.shared.direct_backoff);
        if !backoff.allows(env) {
            return None;
        }
        let trying = backoff.begin();
        let read = env.timeout(DIRECT_TIMEOUT, self.read_spans(extent, spans)).await;
        drop(trying);
        let why = match read {
            Ok(Ok(data)) => {
                backoff.note_success();
                env.mark("block: direct read");
                if spans.iter().any(|span| span.at.is_some()) {
                    env.mark("block: direct read of written blocks");
                }
                self.shared.count(|reads| reads.direct += 1);
                return Some(data);
            }
            Ok(Err(fault)) => fault,
            Err(_) => Fault::new(Kind::Retry, "the core takes long"),
        };
        env.mark("block: read left to the server");
        self.shared.count(|reads| reads.left += 1);
        match why.kind {
            // Expected: a file that is being opened or was collected; an end that is not shown yet;
            // a range in many pieces.
            Kind::NotFound | Kind::Refresh => {}
            kind => {
                if kind == Kind::Corrupt {
                    let (segment, why) = (self.segment, &why.message);
                    tracing::warn!(%segment, why, "direct read: a record failed verification; the block server reads it");
                }
                self.note_failure();
            }
        }
        None
    }

    async fn read_spans(
        self: &Rc<DirectReader>,
        extent: Extent,
        spans: &[LocationRun],
    ) -> Result<Buf, Fault> {
        let runs = runs(extent, spans)?;
        if runs.len() > DIRECT_RUNS_MAX {
            return Err(Fault::new(Kind::Refresh, "the range is in too many pieces"));
        }
        // Opens all missing files, for later reads.
        let sources: Vec<_> = runs.iter().map(|run| self.source(run.file)).collect();
        let sources = sources.into_iter().collect::<Option<Vec<_>>>();
        let sources = sources.ok_or_else(|| Fault::new(Kind::NotFound, "it is not open yet"))?;
        let read = |(run, source): (&Run, Rc<dyn Source>)| {
            let (offset, len, file) = (run.offset(), run.len(), run.file);
            async move {
                let read = source.read_at(offset, len).await;
                read.inspect_err(|fault| {
                    if fault.kind == Kind::NotFound {
                        self.files.borrow_mut().remove(&file);
                    }
                })
            }
        };
        let all = join_all(runs.iter().zip(sources).map(read)).await;
        // Memory is taken last: a read that waits for memory holds none.
        let mut out = self.shared.alloc(extent.len as usize).await?;
        if runs.iter().map(|run| run.blocks.len()).sum::<usize>() < count(spans) as usize {
            out.fill(0);
        }
        for (run, bytes) in runs.iter().zip(all) {
            let bytes = bytes?;
            for &(lba, unit) in &run.blocks {
                let at = (unit - run.blocks[0].1) as usize * UNIT as usize;
                let record = bytes.get(at..).unwrap_or_default();
                let data = self.verified(run, unit, lba, record)?;
                let (to, from) = part(extent, lba);
                let len = to.len();
                out[to].copy_from_slice(&data[from..from + len]);
            }
        }
        Ok(out.freeze())
    }

    /// The data of a record.
    fn verified<'a>(
        &self,
        run: &Run,
        unit: u32,
        lba: u64,
        record: &'a [u8],
    ) -> Result<Cow<'a, [u8]>, Fault> {
        let volume = match run.clone_source {
            0 => self.segment.volume.get(),
            clone_source => clone_source,
        };
        let identity = Identity { volume, segment: self.segment.index };
        let file = FileNo::new(run.file.1).expect("the decoder refuses 0");
        read_block(identity, file, unit, lba as u32, record).map_err(|error| match record.len() {
            0..RECORD => Fault::new(Kind::Refresh, "a replica does not show it yet"),
            _ => Fault::new(Kind::Corrupt, format!("block {lba} in {:?}: {error:?}", run.file)),
        })
    }

    /// A file, if it is open. A closed one is opened, for later reads.
    fn source(self: &Rc<DirectReader>, file: (u32, u32)) -> Option<Rc<dyn Source>> {
        let files = &mut *self.files.borrow_mut();
        match files.get(&file) {
            Some(KnownFile::Open(source)) => return Some(source.clone()),
            Some(KnownFile::Opening) => {}
            None => {
                if files.len() >= DIRECT_FILES_MAX {
                    // The oldest is the likeliest to have been collected.
                    files.pop_first();
                }
                files.insert(file, KnownFile::Opening);
                let opening = self.clone().open(file, self.session.get());
                self.shared.env.spawn(Class::Foreground, "block: open a DataFile", opening);
            }
        }
        None
    }

    async fn open(self: Rc<DirectReader>, file: (u32, u32), session: u64) {
        let env = &self.shared.env;
        let found = self.shared.files.get().expect("places are asked for with it only");
        let name = FileNo::new(file.1).expect("the decoder refuses 0").name(file.0);
        let opened = env.timeout(DIRECT_TIMEOUT, found.open(self.segment, &name)).await;
        if session != self.session.get() {
            return;
        }
        let files = &mut *self.files.borrow_mut();
        match opened {
            Ok(Ok(source)) => {
                if let Some(known) = files.get_mut(&file) {
                    *known = KnownFile::Open(source);
                }
            }
            Ok(Err(fault)) if fault.kind == Kind::NotFound => {
                files.remove(&file);
            }
            Ok(Err(_)) | Err(_) => {
                files.remove(&file);
                self.note_failure();
            }
        }
    }
}

/// The locations of some blocks; nothing unless the answer has all of them.
pub(super) fn part_of(located: &Located, blocks: Range<u64>) -> Option<Vec<LocationRun>> {
    let (mut first, mut part) = (located.first, Vec::new());
    for span in &located.spans {
        let end = first.checked_add(u64::from(span.blocks))?;
        let (from, to) = (first.max(blocks.start), end.min(blocks.end));
        if from < to {
            let behind = u32::try_from(from - first).ok()?;
            let at = match span.at {
                None => None,
                Some(place) => {
                    let unit = place.unit.checked_add(behind.checked_mul(RECORD_UNITS)?)?;
                    Some(RecordLocation { unit, ..place })
                }
            };
            part.push(LocationRun { blocks: (to - from) as u32, at });
        }
        first = end;
    }
    (located.first <= blocks.start && blocks.end <= first).then_some(part)
}

fn count(spans: &[LocationRun]) -> u64 {
    spans.iter().map(|span| u64::from(span.blocks)).sum()
}

/// The records at a server's locations, joined where they stand close together.
fn runs(extent: Extent, spans: &[LocationRun]) -> Result<Vec<Run>, Fault> {
    let (covers, _) = blocks(extent);
    if count(spans) != covers.end - covers.start {
        return Err(Fault::new(Kind::Invalid, "places of other blocks than were asked for"));
    }
    let (mut lba, mut runs): (u64, Vec<Run>) = (covers.start, Vec::new());
    for span in spans {
        let Some(place) = span.at else {
            lba += u64::from(span.blocks);
            continue;
        };
        let end = u64::from(place.unit) + u64::from(span.blocks) * u64::from(RECORD_UNITS);
        if end * UNIT > FILE_BYTES.1 {
            return Err(Fault::new(Kind::Invalid, "places behind the end of any DataFile"));
        }
        for n in 0..span.blocks {
            let unit = place.unit + n * RECORD_UNITS;
            match runs.last_mut() {
                Some(run) if run.goes_on(place, unit) => run.blocks.push((lba, unit)),
                _ => {
                    let (file, clone_source) = (place.file, place.clone_source);
                    runs.push(Run { file, clone_source, blocks: vec![(lba, unit)] });
                }
            }
            lba += 1;
        }
    }
    Ok(runs)
}
