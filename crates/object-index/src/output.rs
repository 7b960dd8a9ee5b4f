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
pub(crate) struct Outputs(Vec<Output>);

impl Outputs {
    /// True of a file that is one of them.
    pub(crate) fn has(&self, file: &FileName) -> bool {
        self.0.iter().any(|output| output.pack.name == *file)
    }

    /// The file that is stored so, to be written.
    pub(crate) fn take(&mut self, storage: StorageRule) -> Option<Pack> {
        let at = self.0.iter().position(|output| output.storage == storage)?;
        Some(self.0.swap_remove(at).pack)
    }

    /// Takes a file back that was written.
    pub(crate) fn give_back(&mut self, output: Output) {
        self.0.push(output);
    }

    /// Those that are to take no further body.
    pub(crate) fn take_due(&mut self, is_due: impl Fn(&Output) -> bool) -> Vec<Output> {
        let (due, left) = std::mem::take(&mut self.0).into_iter().partition(is_due);
        self.0 = left;
        due
    }
}
