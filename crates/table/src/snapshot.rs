//! [`Snapshot`]: a table as it was at one moment.

use std::fmt;
use std::rc::Rc;

use crate::cursor::Run;
use crate::engine::Engine;
use crate::error::Error;
use crate::memtable::Memtable;
use crate::range::Range;
use crate::scan::Scan;
use crate::types::Seq;

/// Places of entries, newest first.
#[derive(Clone)]
pub(crate) struct View {
    pub(crate) memtables: Vec<Rc<Memtable>>,
    pub(crate) runs: Rc<Vec<Rc<Run>>>,
}

/// Holds the versions that a sequence sees.
pub(crate) struct Pin {
    engine: Rc<Engine>,
    seq: Seq,
}

impl Pin {
    pub(crate) fn new(engine: &Rc<Engine>) -> Pin {
        let seq = engine.visible.get();
        *engine.snapshots.borrow_mut().entry(seq).or_default() += 1;
        Pin { engine: engine.clone(), seq }
    }

    pub(crate) fn seq(&self) -> Seq {
        self.seq
    }

    pub(crate) fn view(&self) -> View {
        self.engine.view()
    }

    /// See [`Engine::explain`].
    pub(crate) async fn explain(&self, error: Error) -> Error {
        self.engine.explain(error).await
    }
}

impl Clone for Pin {
    fn clone(&self) -> Pin {
        *self.engine.snapshots.borrow_mut().entry(self.seq).or_default() += 1;
        Pin { engine: self.engine.clone(), seq: self.seq }
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let snapshots = &mut *self.engine.snapshots.borrow_mut();
        let count = snapshots.get_mut(&self.seq).expect("counted while it lives");
        *count -= 1;
        if *count == 0 {
            snapshots.remove(&self.seq);
        }
    }
}

/// A table as it was at one moment, whatever is written later. It lives in this process; the
/// versions that it sees keep their room while it lives.
#[derive(Clone)]
pub struct Snapshot {
    pub(crate) pin: Pin,
}

impl Snapshot {
    /// The last change that it sees.
    pub fn seq(&self) -> Seq {
        self.pin.seq
    }

    /// The value of a key then.
    pub async fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.pin.engine.get(key, self.pin.seq).await
    }

    /// The entries of a range then.
    pub fn scan(&self, range: Range) -> Scan {
        Scan::new(self.pin.clone(), range)
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Snapshot({} at {})", self.pin.engine.name(), self.pin.seq)
    }
}
