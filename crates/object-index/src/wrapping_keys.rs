//! Which keys of gateways' key files have wrapped something (`object-protocols.md` 11.4): a gateway whose
//! file lacks one of them does not start.

use object_proto::Error;

use crate::catalog::Catalog;
use crate::decisions::damaged;
use crate::keys::{WRAPPING_KEY, read_text_key, text_key};
use crate::row::encode_stamp;

/// Bytes of a key's name at most: that of the key, and its version.
const NAME_MAX: usize = 128;

impl Catalog {
    /// Keeps that a key wraps something. It is durable behind the answer. Keys are never forgotten: rows
    /// may have what they wrapped for ever.
    pub(crate) async fn use_key(&self, name: &str) -> Result<(), Error> {
        if name.is_empty() || name.len() > NAME_MAX {
            let message = format!("a key's name has 1 to {NAME_MAX} bytes");
            return Err(Error::Invalid { message });
        }
        let key = text_key(WRAPPING_KEY, name);
        if self.decisions.durable(&key).await?.is_none() {
            self.check_lease()?;
            let (_, basis) = self.decisions.submit(|batch, stamp| {
                batch.put(&key, &encode_stamp(stamp));
            })?;
            self.decisions.settled(basis).await?;
        }
        Ok(())
    }

    /// All of them, in order of names.
    pub(crate) async fn keys_in_use(&self) -> Result<Vec<String>, Error> {
        let rows = self.decisions.all(&[WRAPPING_KEY]).await?;
        let names = rows.iter().map(|(key, _)| read_text_key(key).map(str::to_owned));
        names.collect::<Option<Vec<String>>>().ok_or_else(|| damaged("the row of a key in use"))
    }
}
