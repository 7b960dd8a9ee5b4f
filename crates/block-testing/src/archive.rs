//! DataFiles of segments in memory, for direct reads in tests and in the simulator. A file has what
//! its blocks had when a client asked for their locations.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use base::{Fault, Kind};
use block_client::DataFiles;
use block_volume::contract::Answer;
use block_volume::ids::{FileNo, Identity, SegmentId};
use block_volume::location::{LocationRun, RecordLocation, push_location};
use block_volume::record::{RECORD, UNIT, plain_record};
use runtime::Env;
use table::Source;

/// Files kept: the oldest go, as collection takes files away.
const FILES: usize = 64;
/// Bytes of a file at which the next is begun.
const FILE_BYTES: usize = 64 * RECORD;

/// Files by their numbers. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Archive(Rc<RefCell<Files>>);

#[derive(Default)]
struct Files {
    last: u32,
    /// The file of each segment that takes records.
    open: BTreeMap<SegmentId, u32>,
    files: BTreeMap<u32, File>,
}

#[derive(Clone)]
struct File {
    segment: SegmentId,
    bytes: Rc<RefCell<Vec<u8>>>,
}

impl Files {
    /// The file that takes a segment's records.
    fn open(&mut self, segment: SegmentId) -> (FileNo, File) {
        let open = self.open.get(&segment).copied();
        let file = open.and_then(|number| self.files.get(&number).cloned());
        let (number, file) = match (open, file) {
            (Some(number), Some(file)) if file.bytes.borrow().len() < FILE_BYTES => (number, file),
            _ => {
                self.last += 1;
                let bytes = Rc::new(RefCell::new(vec![0; UNIT as usize]));
                (self.last, File { segment, bytes })
            }
        };
        self.open.insert(segment, number);
        self.files.insert(number, file.clone());
        while self.files.len() > FILES {
            self.files.pop_first();
        }
        (FileNo::new(number).expect("counts from 1"), file)
    }
}

impl Archive {
    /// Writes blocks to a file, and returns their locations; zeroes are in no file.
    pub(crate) fn keep<'a>(
        &self,
        segment: SegmentId,
        blocks: impl Iterator<Item = (u32, Option<&'a [u8]>)>,
    ) -> Vec<LocationRun> {
        let (number, file) = self.0.borrow_mut().open(segment);
        let identity = Identity { volume: segment.volume.get(), segment: segment.index };
        let (bytes, mut spans) = (&mut *file.bytes.borrow_mut(), Vec::new());
        for (lba, data) in blocks {
            let place = data.map(|data| {
                let unit = (bytes.len() as u64 / UNIT) as u32;
                bytes.extend(plain_record(identity, number, unit, lba, data));
                RecordLocation { file: (0, number.get()), clone_source: 0, unit }
            });
            push_location(&mut spans, place);
        }
        spans
    }

    /// Opens the files for a client of `env`. Answers take up to `pause`; some files are gone, or
    /// do not show all that they have.
    pub(crate) fn open(&self, env: &Env, pause: Duration) -> Rc<dyn DataFiles> {
        Rc::new(Shelf { archive: self.clone(), env: env.clone(), pause })
    }
}

struct Shelf {
    archive: Archive,
    env: Env,
    pause: Duration,
}

impl Shelf {
    async fn pause(&self) {
        let nanos = self.env.random_below(self.pause.as_nanos().max(1) as u64);
        self.env.sleep(Duration::from_nanos(nanos)).await;
    }
}

impl DataFiles for Shelf {
    fn open<'a>(&'a self, segment: SegmentId, name: &'a str) -> Answer<'a, Rc<dyn Source>> {
        Box::pin(async move {
            self.pause().await;
            let files = self.archive.0.borrow();
            let is_it = |(number, file): &(&u32, &File)| {
                let named = FileNo::new(**number).is_some_and(|one| one.name(0) == name);
                named && file.segment == segment
            };
            let found = files.files.iter().find(is_it);
            let (_, file) = found.ok_or_else(|| Fault::new(Kind::NotFound, name))?;
            let (bytes, env, pause) = (file.bytes.clone(), self.env.clone(), self.pause);
            Ok(Rc::new(OpenedFile { bytes, env, pause }) as Rc<dyn Source>)
        })
    }
}

struct OpenedFile {
    bytes: Rc<RefCell<Vec<u8>>>,
    env: Env,
    pause: Duration,
}

impl Source for OpenedFile {
    fn read_at(&self, offset: u64, len: usize) -> Answer<'_, Vec<u8>> {
        Box::pin(async move {
            let nanos = self.env.random_below(4 * self.pause.as_nanos().max(1) as u64);
            self.env.sleep(Duration::from_nanos(nanos)).await;
            let bytes = self.bytes.borrow();
            let from = (offset as usize).min(bytes.len());
            let to = (from + len).min(bytes.len());
            match self.env.random_below(16) {
                0 => Err(Fault::new(Kind::NotFound, "it was collected")),
                1 => Ok(bytes[from..(from + to) / 2].to_vec()),
                _ => Ok(bytes[from..to].to_vec()),
            }
        })
    }

    fn read_acknowledged(&self, offset: u64, len: usize) -> Answer<'_, Vec<u8>> {
        self.read_at(offset, len)
    }
}
