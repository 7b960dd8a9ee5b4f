//! [`DataFile`]: a file of records, and the last appends ([`Recent`]).

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use base::Fault;
use block_volume::ids::{FileNo, Identity};
use block_volume::record::UNIT;
use runtime::sync::Mutex;
use table::{Source, Store, Writer};

use super::format::state::FileState;

/// A DataFile that the table names.
pub(crate) struct DataFile {
    pub(crate) number: FileNo,
    pub(crate) name: String,
    /// Its row in the table, or its next one.
    pub(crate) state: Cell<FileState>,
    /// Units that are acknowledged, and blocks in them.
    pub(crate) end: Cell<u32>,
    pub(crate) blocks: Cell<u32>,
    /// Nothing will be appended any more.
    pub(crate) closed: Cell<bool>,
    /// It is known to be sealed in the core.
    pub(crate) ended: Cell<bool>,
    source: RefCell<Option<Rc<dyn Source>>>,
    opening: Mutex<()>,
}

impl DataFile {
    pub(crate) fn new(number: FileNo, state: FileState) -> Rc<DataFile> {
        Rc::new(DataFile {
            number,
            name: number.name(state.generation),
            state: Cell::new(state),
            end: Cell::new(state.units),
            blocks: Cell::new(state.blocks),
            closed: Cell::new(state.sealed),
            ended: Cell::new(false),
            source: RefCell::default(),
            opening: Mutex::new(()),
        })
    }

    /// Identity in its records, in a segment of `own` identity: of another volume when it was
    /// linked from there (B11).
    pub(crate) fn identity(&self, own: Identity) -> Identity {
        match self.state.get().clone_source {
            0 => own,
            volume => Identity { volume, ..own },
        }
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut FileState)) {
        let mut state = self.state.get();
        change(&mut state);
        self.state.set(state);
    }

    /// The file, opened for reading, once.
    pub(crate) async fn source(&self, store: &dyn Store) -> Result<Rc<dyn Source>, Fault> {
        if let Some(source) = &*self.source.borrow() {
            return Ok(source.clone());
        }
        let _opening = self.opening.lock().await;
        if let Some(source) = &*self.source.borrow() {
            return Ok(source.clone());
        }
        let source = store.open(&self.name).await?;
        *self.source.borrow_mut() = Some(source.clone());
        Ok(source)
    }
}

/// The DataFile that takes records.
pub(crate) struct Open {
    pub(crate) file: Rc<DataFile>,
    pub(crate) writer: Box<dyn Writer>,
    /// Units behind all that was submitted.
    pub(crate) next: u32,
}

/// The last appends, up to a number of bytes.
#[derive(Default)]
pub(crate) struct Recent {
    appends: BTreeMap<(FileNo, u32), Rc<Vec<u8>>>,
    /// Oldest first, each with its number among those of all segments.
    order: VecDeque<(u64, (FileNo, u32))>,
    bytes: usize,
}

impl Recent {
    /// Notes an append at a unit of a file.
    pub(crate) fn insert(&mut self, file: FileNo, unit: u32, bytes: Rc<Vec<u8>>, stamp: u64) {
        self.bytes += bytes.len();
        self.appends.insert((file, unit), bytes);
        self.order.push_back((stamp, (file, unit)));
    }

    /// Bytes of them.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The oldest one's number among those of all segments.
    pub(crate) fn oldest(&self) -> Option<u64> {
        self.order.front().map(|(stamp, _)| *stamp)
    }

    /// Forgets the oldest one.
    pub(crate) fn forget_oldest(&mut self) {
        let (_, oldest) = self.order.pop_front().expect("there is one");
        self.bytes -= self.appends.remove(&oldest).expect("both have it").len();
    }

    /// The append that has a unit of a file, and the bytes in front of that unit.
    pub(crate) fn get(&self, file: FileNo, unit: u32) -> Option<(Rc<Vec<u8>>, usize)> {
        let (&(other, start), bytes) = self.appends.range(..=(file, unit)).next_back()?;
        let skip = (unit - start.min(unit)) as usize * UNIT as usize;
        (other == file && skip < bytes.len()).then(|| (bytes.clone(), skip))
    }
}
