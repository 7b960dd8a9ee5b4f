//! Reads beside the block server (decision 23): the server says where blocks are, the client reads
//! their records from the core. A record is never changed and is verified by what it says of
//! itself, so what is read is what the blocks had when the server answered.
//!
//! It is the quick way, never the only one. Whatever is not as it should be (a file that was
//! collected meanwhile, a replica that does not show enough yet, a record that does not verify, a
//! core that takes long) is left to the block server.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use base::{Fault, Kind};
use futures_util::stream::{FuturesUnordered, StreamExt};
use runtime::{Buf, Class, Instant};
use table::Source;
use wire::block::{RecordPlace, Span};
use wire::control::SegmentId;

use super::Shared;
use crate::contract::Answer;
use crate::device::limits::{RECORD, RECORD_UNITS, UNIT};
use crate::device::{FileNo, Identity, blocks, part, read_block};
use crate::geometry::Extent;
use crate::limits::{DIRECT_FILES_MAX, DIRECT_PAUSE, DIRECT_TIMEOUT};

/// Where a client finds DataFiles.
pub trait DataFiles {
    /// Opens a file of a segment's directory for reading.
    fn open<'a>(&'a self, segment: SegmentId, name: &'a str) -> Answer<'a, Rc<dyn Source>>;
}

/// A DataFile, as the client knows it.
enum File {
    /// Being opened.
    Opening,
    Open(Rc<dyn Source>),
}

/// The DataFiles of one segment.
pub(super) struct Direct {
    shared: Rc<Shared>,
    segment: SegmentId,
    files: RefCell<BTreeMap<(u32, u32), File>>,
    /// After trouble with the core all goes through the block server for a while.
    not_before: Cell<Instant>,
}

impl Direct {
    pub(super) fn new(shared: &Rc<Shared>, segment: SegmentId) -> Rc<Direct> {
        let (shared, files, not_before) = (shared.clone(), RefCell::default(), Cell::default());
        Rc::new(Direct { shared, segment, files, not_before })
    }

    /// True when the block server may answer with places.
    pub(super) fn is_wanted(&self) -> bool {
        self.shared.files.get().is_some() && self.shared.env.now() >= self.not_before.get()
    }

    /// The bytes of a range whose blocks are at `spans`; nothing when the block server is to be
    /// asked for them.
    pub(super) async fn read(self: &Rc<Direct>, extent: Extent, spans: &[Span]) -> Option<Buf> {
        let env = &self.shared.env;
        let read = self.read_spans(extent, spans);
        let why = match env.timeout(DIRECT_TIMEOUT, read).await {
            Ok(Ok(data)) => {
                env.mark("block: read beside the server");
                return Some(data);
            }
            Ok(Err(fault)) => fault,
            Err(_) => Fault::new(Kind::Retry, "the core takes long"),
        };
        env.mark("block: read left to the server");
        match why.kind {
            // To be expected: a file that is opened just now, or was collected.
            Kind::NotFound | Kind::Refresh => {}
            _ => {
                tracing::debug!(segment = %self.segment, %why, "not read beside the block server");
                self.not_before.set(env.now() + DIRECT_PAUSE);
            }
        }
        None
    }

    async fn read_spans(self: &Rc<Direct>, extent: Extent, spans: &[Span]) -> Result<Buf, Fault> {
        let (covers, _) = blocks(extent);
        let count: u64 = spans.iter().map(|span| u64::from(span.blocks)).sum();
        if count != covers.end - covers.start {
            return Err(Fault::new(Kind::Invalid, "places of other blocks than were asked for"));
        }
        let mut out = self.shared.alloc(extent.len as usize).await;
        let (mut lba, mut reading) = (covers.start, FuturesUnordered::new());
        for &span in spans {
            let first = lba;
            lba += u64::from(span.blocks);
            let Some(place) = span.at else {
                (first..lba).for_each(|lba| out[part(extent, lba).0].fill(0));
                continue;
            };
            let source = self.source(place)?;
            reading.push(async move {
                let offset = u64::from(place.unit) * UNIT;
                let read = source.read_at(offset, span.blocks as usize * RECORD).await;
                (first, span.blocks, place, read)
            });
        }
        while let Some((first, count, place, read)) = reading.next().await {
            let bytes = read.inspect_err(|fault| {
                if fault.kind == Kind::NotFound {
                    self.files.borrow_mut().remove(&place.file);
                }
            })?;
            for n in 0..count {
                let lba = first + u64::from(n);
                let record = bytes.get(n as usize * RECORD..).unwrap_or_default();
                let data = self.verified(place, n, lba, record)?;
                let (to, from) = part(extent, lba);
                let len = to.len();
                out[to].copy_from_slice(&data[from..from + len]);
            }
        }
        Ok(out.freeze())
    }

    /// The data of the record `n` records behind a place.
    fn verified<'a>(
        &self,
        place: RecordPlace,
        n: u32,
        lba: u64,
        record: &'a [u8],
    ) -> Result<std::borrow::Cow<'a, [u8]>, Fault> {
        let volume = match place.origin {
            0 => self.segment.volume.get(),
            origin => origin,
        };
        let identity = Identity { volume, segment: self.segment.index };
        let file = FileNo::new(place.file.1).expect("the decoder refuses 0");
        let unit = place.unit.wrapping_add(n * RECORD_UNITS);
        let data = read_block(identity, file, unit, lba as u32, record);
        // Also when replicas do not show all of it yet.
        data.map_err(|flaw| Fault::new(Kind::Refresh, format!("{flaw:?}")))
    }

    /// The file of a place. One that is not open is opened, for those who come later.
    fn source(self: &Rc<Direct>, place: RecordPlace) -> Result<Rc<dyn Source>, Fault> {
        let files = &mut *self.files.borrow_mut();
        match files.get(&place.file) {
            Some(File::Open(source)) => return Ok(source.clone()),
            Some(File::Opening) => {}
            None => {
                if files.len() >= DIRECT_FILES_MAX {
                    files.retain(|_, file| matches!(file, File::Opening));
                }
                files.insert(place.file, File::Opening);
                let opening = self.clone().open(place.file);
                self.shared.env.spawn(Class::Foreground, "block: open a DataFile", opening);
            }
        }
        Err(Fault::new(Kind::NotFound, "it is not open yet"))
    }

    async fn open(self: Rc<Direct>, file: (u32, u32)) {
        let found = self.shared.files.get().expect("places are asked for with it only");
        let name = FileNo::new(file.1).expect("the decoder refuses 0").name(file.0);
        let opened = found.open(self.segment, &name).await;
        let files = &mut *self.files.borrow_mut();
        match opened {
            Ok(source) => {
                files.insert(file, File::Open(source));
            }
            Err(fault) => {
                files.remove(&file);
                if fault.kind != Kind::NotFound {
                    self.not_before.set(self.shared.env.now() + DIRECT_PAUSE);
                }
            }
        }
    }
}
