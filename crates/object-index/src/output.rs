//! [`Output`]: the file that bodies are moved to (`object-protocols.md` 10.2).

use object_proto::FileName;
use runtime::Instant;

use crate::bodies::Pack;

/// The file that a range's collection writes at present.
pub(crate) struct Output {
    /// The file.
    pub(crate) pack: Pack,
    /// When a body was written to it last.
    pub(crate) written: Instant,
}

impl Output {
    /// True of its file.
    pub(crate) fn is(&self, file: &FileName) -> bool {
        self.pack.name == *file
    }
}
