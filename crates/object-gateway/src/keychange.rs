//! Changes of a key file: keys are added, and none is ever removed or changed. Other processes see
//! the file before or behind a change, never a part of it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::hex;
use crate::keyfile::{DEFAULT_KEY, KeyFile, KeyFileError, KeyId, is_key_name};
use crate::limits::KEY_FILE_MAX;

/// Why a key is not made.
#[derive(Debug)]
pub enum KeyChangeError {
    /// The file cannot be used.
    File(KeyFileError),
    /// The file is not changed.
    Refused(String),
}

impl std::fmt::Display for KeyChangeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            KeyChangeError::File(error) => error.fmt(f),
            KeyChangeError::Refused(cause) => f.write_str(cause),
        }
    }
}

impl std::error::Error for KeyChangeError {}

impl From<KeyFileError> for KeyChangeError {
    fn from(error: KeyFileError) -> KeyChangeError {
        KeyChangeError::File(error)
    }
}

fn refused(cause: String) -> KeyChangeError {
    KeyChangeError::Refused(cause)
}

/// Makes a named key of these random bytes: its first version.
///
/// # Errors
///
/// [`KeyChangeError`] with cause and remedy.
pub fn create_key(path: &Path, name: &str, random: [u8; 32]) -> Result<KeyId, KeyChangeError> {
    change(path, random, |file| {
        if !is_key_name(name) {
            return Err(refused(
                "a key's name has 1 to 64 letters, digits, '.', '_' and '-'".into(),
            ));
        }
        if file.ids().any(|id| id.name() == name) {
            return Err(refused(format!(
                "there is a key {name}: 'craton kms rotate {name}' makes its next version"
            )));
        }
        Ok(KeyId::new(name, 1).expect("its name was checked"))
    })
}

/// Makes the next version of a key of these random bytes: it wraps from now on, those before it
/// unwrap what they have wrapped. [`DEFAULT_KEY`] and the service's keys are one: their next one has
/// a name of its own.
///
/// # Errors
///
/// [`KeyChangeError`] with cause and remedy.
pub fn rotate_key(path: &Path, name: &str, random: [u8; 32]) -> Result<KeyId, KeyChangeError> {
    change(path, random, |file| {
        let of_name = |id: &&KeyId| id.name() == name || (name == DEFAULT_KEY && id.version() == 0);
        let last = file.ids().filter(of_name).max_by_key(|id| id.version());
        let last = last.ok_or_else(|| {
            refused(format!("there is no key {name}: 'craton kms create {name}' makes it"))
        })?;
        if last.version() > 0 {
            let next = last.version().checked_add(1).and_then(|next| KeyId::new(name, next));
            return next.ok_or_else(|| refused(format!("key {name} has too many versions")));
        }
        let names = (1u32..).filter_map(|number| KeyId::new(&format!("k{number}"), 0));
        let mut unused = names.filter(|next| file.ids().all(|id| id.name() != next.name()));
        Ok(unused.next().expect("a file has fewer keys than there are numbers"))
    })
}

/// Adds the key that `decide` names.
fn change(
    path: &Path,
    random: [u8; 32],
    decide: impl FnOnce(&KeyFile) -> Result<KeyId, KeyChangeError>,
) -> Result<KeyId, KeyChangeError> {
    let failed = |path: &Path, operation| {
        let path = path.to_owned();
        move |error: io::Error| KeyFileError::Io { path, operation, error }
    };
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    let directory = File::open(parent).map_err(failed(parent, "open the folder of"))?;
    // One change at a time: each adds to what the one before has written.
    directory.lock().map_err(failed(parent, "lock the folder of"))?;
    let mut text = KeyFile::read(path)?;
    let flawed = |flaw| KeyFileError::Flawed { path: path.to_owned(), flaw };
    let file = KeyFile::parse(&text).map_err(flawed)?;
    let id = decide(&file)?;
    if !text.ends_with('\n') {
        text.push('\n');
    }
    let bytes = hex::encode(&random);
    text += &match id.version() {
        0 => format!("1 {} {bytes}\n", id.name()),
        version => format!("2 {} {version} {bytes}\n", id.name()),
    };
    if text.len() as u64 > KEY_FILE_MAX {
        return Err(refused(format!("a key file has {KEY_FILE_MAX} bytes at most")));
    }
    let file = KeyFile::parse(&text).map_err(flawed)?;
    assert!(file.ids().any(|known| *known == id), "the line that was added is a key's");
    let new = with_suffix(path, ".new");
    // A change that was broken off left it; the lock says that none is under way.
    let _ = fs::remove_file(&new);
    let mut options = OpenOptions::new();
    let options = options.write(true).create_new(true).mode(0o600);
    let mut out = options.open(&new).map_err(failed(&new, "create"))?;
    out.write_all(text.as_bytes()).map_err(failed(&new, "write"))?;
    out.sync_all().map_err(failed(&new, "sync"))?;
    fs::rename(&new, path).map_err(failed(path, "replace"))?;
    directory.sync_all().map_err(failed(parent, "sync the folder of"))?;
    Ok(id)
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn keys_are_added_and_none_is_lost() {
        let directory =
            std::env::temp_dir().join(format!("craton-keychange-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory); // Left by a run that was cut off.
        fs::create_dir(&directory).expect("a directory");
        let path = directory.join("s3-keys");
        let first = KeyFile::create(&path, [1; 32]).expect("made");
        let secret = first.wrap("id", "secret", [3; 12]);
        fs::write(directory.join("s3-keys.new"), "left by a change").expect("written");
        let made = create_key(&path, "Team.key_1", [2; 32]).expect("made");
        assert_eq!(made.to_string(), "Team.key_1/1");
        assert_eq!(rotate_key(&path, "Team.key_1", [3; 32]).expect("made").version(), 2);
        assert_eq!(rotate_key(&path, "k1", [4; 32]).expect("made").to_string(), "k2");
        assert_eq!(rotate_key(&path, DEFAULT_KEY, [5; 32]).expect("made").to_string(), "k3");
        let file = KeyFile::load(&path).expect("read");
        let all: Vec<String> = file.ids().map(KeyId::to_string).collect();
        assert_eq!(all, ["k1", "Team.key_1/1", "Team.key_1/2", "k2", "k3"]);
        assert_eq!(file.wrapping(None).map(KeyId::to_string).as_deref(), Some("k3"));
        assert_eq!(file.wrapping(Some(DEFAULT_KEY)), file.wrapping(None));
        assert_eq!(file.wrapping(Some("Team.key_1")).map(KeyId::version), Some(2));
        // A key of the service is none that clients name.
        assert_eq!(file.wrapping(Some("k1")), None);
        assert_eq!(file.unwrap("id", &secret).as_deref(), Ok("secret"));
        assert_eq!(fs::metadata(&path).expect("there").mode() & 0o777, 0o600);
        for (refused, cause) in [
            (create_key(&path, "Team.key_1", [9; 32]), "rotate Team.key_1"),
            (create_key(&path, "k2", [9; 32]), "there is a key"),
            (create_key(&path, "a/b", [9; 32]), "letters"),
            (rotate_key(&path, "none", [9; 32]), "create none"),
            (create_key(&directory.join("none"), "a", [9; 32]), "restore it"),
        ] {
            let refused = refused.expect_err(cause).to_string();
            assert!(refused.contains(cause), "{refused}");
        }
        assert_eq!(KeyFile::load(&path).expect("read").ids().count(), 5);
        let _ = fs::remove_dir_all(&directory);
    }
}
