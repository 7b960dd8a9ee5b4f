//! State of a segment's cut.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use runtime::sync::Mutex;
use runtime::{Duration, Env, Instant};
use table::Snapshot;

use super::files::DataFile;
use super::format::state::FileState;
use super::limits::CUT_KEEP;

/// A segment's cut, and the work that waits for it.
#[derive(Default)]
pub(crate) struct Cuts {
    /// The cut that holds answers back, and its begin.
    pub(super) hold: Cell<Option<(u64, Instant)>>,
    pub(super) fixed: RefCell<Option<Rc<Cut>>>,
    /// Files that collection has emptied while a cut may name them.
    pub(super) pending_deletes: RefCell<Vec<String>>,
    /// The file whose row collection deletes, until that is durable and [`Cuts::pending_deletes`]
    /// has its name, or it is removed.
    pub(super) deleting: RefCell<Option<String>>,
    /// A link waits for the end of the DataFile that takes changes, or of those that
    /// collection writes.
    pub(super) roll: Cell<bool>,
    pub(super) seal: Cell<bool>,
    /// Files of another volume are collected, with any content.
    pub(super) flatten: Cell<bool>,
    pub(super) linking: Mutex<()>,
}

/// A fixed cut: all that was answered before a moment.
pub(super) struct Cut {
    pub(super) id: u64,
    pub(super) rows: Snapshot,
    pub(super) next_file: u32,
    pub(super) counter: u64,
    /// Files with blocks, and their rows for the other directory's table.
    pub(super) files: Vec<(Rc<DataFile>, FileState)>,
    /// Duration of the hold, once it is released.
    pub(super) held: Cell<Option<Duration>>,
    /// Until then it is kept for links, and as long as it is linked.
    pub(super) keep_until: Cell<Instant>,
    pub(super) linking: Cell<usize>,
}

/// A link of a cut that is under way: the cut stays as long, and for a while after.
pub(super) struct Linking<'a>(&'a Cut, &'a Env);

impl<'a> Linking<'a> {
    pub(super) fn begin(cut: &'a Cut, env: &'a Env) -> Linking<'a> {
        cut.linking.set(cut.linking.get() + 1);
        Linking(cut, env)
    }
}

impl Drop for Linking<'_> {
    fn drop(&mut self) {
        let Linking(cut, env) = *self;
        cut.linking.set(cut.linking.get() - 1);
        cut.keep_until.set(env.now() + CUT_KEEP);
    }
}

impl Cuts {
    /// True while nothing may enter the index from the log.
    pub(crate) fn holds(&self) -> bool {
        self.hold.get().is_some()
    }

    /// True when the DataFile that takes changes is to end.
    pub(crate) fn wants_roll(&self) -> bool {
        self.roll.get() && !self.holds()
    }

    /// The DataFile has ended.
    pub(crate) fn rolled(&self) {
        self.roll.set(false);
    }

    /// True when collection is to end the files that it writes.
    pub(crate) fn wants_seal(&self) -> bool {
        self.seal.get()
    }

    /// The outputs have ended.
    pub(crate) fn sealed(&self) {
        self.seal.set(false);
    }

    /// Notes the file whose row is being deleted.
    pub(crate) fn begin_delete(&self, name: &str) {
        self.deleting.replace(Some(name.to_owned()));
    }

    /// True for a file that is kept only because a cut names it, or may name it.
    pub(crate) fn has_discarded(&self, name: &str) -> bool {
        self.deleting.borrow().as_deref() == Some(name)
            || self.pending_deletes.borrow().iter().any(|pending| pending == name)
    }

    pub(super) fn pins(&self) -> bool {
        self.holds() || self.fixed.borrow().is_some()
    }
}
