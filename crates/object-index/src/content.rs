//! [`BodyContent`]: the content of an object that was found.

use std::fmt;

use object_proto::Error;

use crate::bodies::Whole;
use crate::limits::READ_MAX;
use crate::parts::PartsReader;

/// Where content comes from.
pub(crate) enum Bytes {
    Whole(Whole),
    Parts(PartsReader),
}

/// Content of an object.
pub struct BodyContent {
    pub(crate) source: Bytes,
}

impl BodyContent {
    /// Bytes of it: `len` of them, 8 MiB at most, fewer only at its end.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchKey`] when the object was deleted or replaced long ago, and its bytes are gone.
    pub async fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, Error> {
        let len = len.min(READ_MAX);
        match &self.source {
            Bytes::Whole(bytes) => bytes.read(offset, len).await,
            Bytes::Parts(parts) => parts.read(offset, len).await,
        }
    }
}

impl fmt::Debug for BodyContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BodyContent")
    }
}
