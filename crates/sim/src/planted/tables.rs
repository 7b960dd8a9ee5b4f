//! The files of tables and segments as scenarios without a block server open them, perhaps with a
//! bug.

use std::rc::Rc;

use futures_util::future::FutureExt;
use table::{Answer, ClientStore, Names, Redundancy, Source, Store, Writer};

use super::{Planted, acts, planted};

/// Bytes of a file that are read at a time.
const STEP: usize = 1 << 20;

/// The directory, with the bug that is planted on this thread.
pub(crate) fn files_of(store: ClientStore) -> Rc<dyn Store> {
    match planted() {
        None => Rc::new(store),
        Some(_) => Rc::new(BuggyFiles { store }),
    }
}

struct BuggyFiles {
    store: ClientStore,
}

impl BuggyFiles {
    /// The length of a file whose writer may go on.
    async fn open_len(&self, name: &str) -> Result<u64, base::Fault> {
        let file = self.store.open(name).await?;
        let mut len = 0;
        loop {
            let read = file.read_at(len, STEP).await?.len();
            len += read as u64;
            if read < STEP {
                return Ok(len);
            }
        }
    }
}

impl Store for BuggyFiles {
    fn redundancy(&self) -> Redundancy {
        self.store.redundancy()
    }

    fn name(&self) -> &str {
        self.store.name()
    }

    fn create<'a>(&'a self, name: &'a str) -> Answer<'a, Box<dyn Writer>> {
        self.store.create(name)
    }

    fn seal<'a>(&'a self, name: &'a str) -> Answer<'a, u64> {
        match acts(Planted::LeakySeal) {
            true => self.open_len(name).boxed_local(),
            false => self.store.seal(name),
        }
    }

    fn open<'a>(&'a self, name: &'a str) -> Answer<'a, Rc<dyn Source>> {
        self.store.open(name)
    }

    fn list<'a>(&'a self, after: &'a str) -> Answer<'a, Names> {
        self.store.list(after)
    }

    fn publish<'a>(&'a self, from: &'a str, to: &'a str) -> Answer<'a, ()> {
        self.store.publish(from, to)
    }

    fn remove<'a>(&'a self, name: &'a str) -> Answer<'a, ()> {
        self.store.remove(name)
    }

    fn numbers<'a>(&'a self, names: &'a [String]) -> Answer<'a, Vec<Option<u64>>> {
        self.store.numbers(names)
    }

    fn link<'a>(&'a self, names: &'a [String], to: &'a str) -> Answer<'a, ()> {
        self.store.link(names, to)
    }
}
