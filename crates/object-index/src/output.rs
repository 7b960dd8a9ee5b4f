//! [`Outputs`]: the files that bodies are moved to (`object-protocols.md` 10.2), one for each way in which buckets
//! have their bodies stored.

use object_proto::{FileName, StorageRule};
use runtime::Instant;

use crate::bodies::Pack;

/// A file that a range's collection writes at present.
pub(crate) struct Output {
    /// The file.
    pub(crate) pack: Pack,
    /// How it is stored.
    pub(crate) storage: StorageRule,
    /// When a body was written to it last.
    pub(crate) written: Instant,
}

/// Files that a range's collection writes at present.
#[derive(Default)]
pub(crate) struct Outputs {
    all: Vec<Output>,
    /// The one that a body is being copied to. It has no row before the first body has its place there.
    copied_to: Option<FileName>,
}

impl Outputs {
    /// True of a file that is one of them.
    pub(crate) fn has(&self, file: &FileName) -> bool {
        self.copied_to.as_ref() == Some(file)
            || self.all.iter().any(|output| output.pack.name == *file)
    }

    /// A body is copied to that file from now on, which is about to be made.
    pub(crate) fn make(&mut self, file: FileName) {
        self.copied_to = Some(file);
    }

    /// The copy of a body is over. What it was copied to and is not given back nothing will name.
    pub(crate) fn end_copy(&mut self) {
        self.copied_to = None;
    }

    /// The file that is stored so, to be written.
    pub(crate) fn take(&mut self, storage: StorageRule) -> Option<Pack> {
        let at = self.all.iter().position(|output| output.storage == storage)?;
        let pack = self.all.swap_remove(at).pack;
        self.copied_to = Some(pack.name.clone());
        Some(pack)
    }

    /// Takes a file back that was written.
    pub(crate) fn give_back(&mut self, output: Output) {
        self.all.push(output);
    }

    /// Those that are to take no further body.
    pub(crate) fn take_due(&mut self, is_due: impl Fn(&Output) -> bool) -> Vec<Output> {
        let (due, left) = std::mem::take(&mut self.all).into_iter().partition(is_due);
        self.all = left;
        due
    }
}
