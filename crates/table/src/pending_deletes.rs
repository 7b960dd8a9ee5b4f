//! [`PendingDeletes`]: names of files that nothing refers to any more.

use std::cell::RefCell;
use std::collections::VecDeque;

use runtime::sync::Notify;

use crate::types::Name;

/// Files to be removed. It is fed only after the manifest that no longer names them is durable,
/// and holds at most the files that were in the table.
#[derive(Debug, Default)]
pub(crate) struct PendingDeletes {
    names: RefCell<VecDeque<Name>>,
    pub(crate) added: Notify,
}

impl PendingDeletes {
    pub(crate) fn add(&self, name: Name) {
        self.names.borrow_mut().push_back(name);
        self.added.notify_one();
    }

    pub(crate) fn take(&self) -> Option<Name> {
        self.names.borrow_mut().pop_front()
    }

    pub(crate) fn len(&self) -> usize {
        self.names.borrow().len()
    }
}
