//! [`Keyring`]: the keys of a key file as a running gateway has them. It reads the file again when
//! that was changed, so that keys are made without a restart.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use crate::clock;
use crate::keyfile::{KeyFile, KeyFileError, KeyId, UnwrapError};
use crate::seal::{DataKey, Kms, KmsError, Wrapped, kek_of, open_key, seal_key};

/// Time between two looks at whether the file was changed.
const LOOK: Duration = Duration::from_secs(1);

/// What differs between two states of a file: inode, bytes, time of the last change.
type Mark = (u64, u64, i64, i64);

struct State {
    file: Arc<KeyFile>,
    mark: Option<Mark>,
    looked: Instant,
}

/// Keys of a key file, which may get more.
pub struct Keyring {
    path: Option<PathBuf>,
    state: Mutex<State>,
}

impl std::fmt::Debug for Keyring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Keyring({:?})", self.path)
    }
}

fn mark_of(path: &Path) -> Option<Mark> {
    let facts = fs::metadata(path).ok()?;
    Some((facts.ino(), facts.size(), facts.mtime(), facts.mtime_nsec()))
}

impl Keyring {
    /// Keys that stay as they are.
    pub fn of(file: KeyFile) -> Keyring {
        let state = State { file: Arc::new(file), mark: None, looked: Instant::now() };
        Keyring { path: None, state: Mutex::new(state) }
    }

    /// The keys of a file, now and whenever it is changed.
    ///
    /// # Errors
    ///
    /// [`KeyFileError`] with cause and remedy.
    pub fn load(path: &Path) -> Result<Keyring, KeyFileError> {
        // Before it is read: a change in between is seen at the next look.
        let mark = mark_of(path);
        let file = Arc::new(KeyFile::load(path)?);
        let state = State { file, mark, looked: Instant::now() };
        Ok(Keyring { path: Some(path.to_owned()), state: Mutex::new(state) })
    }

    /// The keys as they are in the file; those before where it cannot be used.
    pub fn file(&self) -> Arc<KeyFile> {
        self.look(LOOK)
    }

    fn look(&self, after: Duration) -> Arc<KeyFile> {
        let mut state = self.state.lock().expect("no panic while it is held");
        let Some(path) = &self.path else { return state.file.clone() };
        if state.looked.elapsed() < after {
            return state.file.clone();
        }
        state.looked = Instant::now();
        let mark = mark_of(path);
        if mark == state.mark {
            return state.file.clone();
        }
        match KeyFile::load(path) {
            Ok(file) => {
                let missing = state.file.ids().find(|id| file.master(id).is_none());
                match missing {
                    None => state.file = Arc::new(file),
                    Some(key) => tracing::warn!(
                        %key, path = %path.display(),
                        "the key file has lost a key: it is not used before it has that again"
                    ),
                }
            }
            Err(cause) => tracing::warn!(%cause, "the key file was changed and cannot be used"),
        }
        state.mark = mark;
        state.file.clone()
    }

    /// What `find` finds in the file, which is read again before it is given up.
    fn found<T>(&self, find: impl Fn(&KeyFile) -> Option<T>) -> Option<T> {
        find(&self.file()).or_else(|| find(&self.look(Duration::ZERO)))
    }

    /// Unwraps the secret of an access key.
    ///
    /// # Errors
    ///
    /// [`UnwrapError`] with cause and remedy.
    pub fn unwrap_secret(&self, access_key: &str, wrapped: &[u8]) -> Result<String, UnwrapError> {
        match self.file().unwrap(access_key, wrapped) {
            Err(UnwrapError::NoKey { .. }) => self.look(Duration::ZERO).unwrap(access_key, wrapped),
            done => done,
        }
    }

    /// The first of these keys that the file lacks; names of other forms are of newer programs, and
    /// are lacking.
    pub fn lacks<'a>(&self, in_use: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
        let file = self.file();
        let has = |name: &str| KeyId::parse(name).is_some_and(|id| file.master(&id).is_some());
        in_use.into_iter().find(|name| !has(name))
    }
}

#[async_trait::async_trait]
impl Kms for Keyring {
    async fn wrap(
        &self,
        name: Option<&str>,
        key: &DataKey,
        bound: &[u8],
    ) -> Result<Wrapped, KmsError> {
        let salt = clock::random_bytes().ok_or(KmsError::NoRandomness)?;
        let wrapped = self.found(|file| {
            let id = file.wrapping(name)?;
            let bytes = seal_key(&kek_of(file.master(id)?, &salt), key, bound);
            Some(Wrapped { key: id.clone(), salt, bytes })
        });
        wrapped.ok_or_else(|| KmsError::NoKey { key: name.unwrap_or_default().to_owned() })
    }

    async fn unwrap(&self, wrapped: &Wrapped, bound: &[u8]) -> Result<DataKey, KmsError> {
        let Wrapped { key, salt, bytes } = wrapped;
        let kek = self.found(|file| Some(kek_of(file.master(key)?, salt)));
        let kek = kek.ok_or_else(|| KmsError::NoKey { key: key.to_string() })?;
        open_key(&kek, bytes, bound).ok_or_else(|| KmsError::Refused { key: key.clone() })
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::keychange::{create_key, rotate_key};

    fn now<T>(answer: impl Future<Output = T>) -> T {
        answer.now_or_never().expect("a key file does not wait")
    }

    #[test]
    fn a_key_that_is_made_later_is_found_and_one_that_is_lost_stays() {
        let directory = std::env::temp_dir().join(format!("craton-keyring-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory); // Left by a run that was cut off.
        fs::create_dir(&directory).expect("a directory");
        let path = directory.join("s3-keys");
        KeyFile::create(&path, [1; 32]).expect("made");
        let kept = fs::read(&path).expect("read");
        let ring = Keyring::load(&path).expect("read");
        let key = DataKey::new([5; 32]);
        let missing = now(ring.wrap(Some("app"), &key, b"here"));
        assert_eq!(missing, Err(KmsError::NoKey { key: "app".into() }));
        create_key(&path, "app", [2; 32]).expect("made");
        let first = now(ring.wrap(Some("app"), &key, b"here")).expect("the file is read again");
        assert_eq!(first.key.to_string(), "app/1");
        rotate_key(&path, "app", [3; 32]).expect("made");
        ring.look(Duration::ZERO);
        let second = now(ring.wrap(Some("app"), &key, b"here")).expect("wrapped");
        assert_eq!(second.key.to_string(), "app/2");
        for wrapped in [&first, &second] {
            assert_eq!(now(ring.unwrap(wrapped, b"here")).expect("it opens").bytes(), key.bytes());
            let refused = now(ring.unwrap(wrapped, b"there")).err();
            assert_eq!(refused, Some(KmsError::Refused { key: wrapped.key.clone() }));
        }
        assert_eq!(ring.lacks(["k1", "app/1", "app/2"]), None);
        assert_eq!(ring.lacks(["k1", "app/3", "k9"]), Some("app/3"));
        assert_eq!(ring.lacks(["of a newer program"]), Some("of a newer program"));
        // An older copy of the file takes no key away.
        fs::write(&path, kept).expect("written");
        ring.look(Duration::ZERO);
        assert!(now(ring.unwrap(&second, b"here")).is_ok());
        let _ = fs::remove_dir_all(&directory);
    }
}
