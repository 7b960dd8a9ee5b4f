//! The key file: keys that wrap what must not be readable in the cluster, above all the secrets of
//! access keys (object protocols, 11.4).
//!
//! It is text, one key a line: version of the line's format, name, 32 random bytes in hex.
//!
//! ```text
//! 1 k1 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
//! ```
//!
//! Empty lines and lines that begin with `#` are passed over. The last key wraps, all unwrap. The
//! file must be accessible to its owner only.
//!
//! A wrapped secret is: a byte 1, the key's name with its length in a byte, a nonce of 12 bytes,
//! the secret encrypted with AES-256-GCM, its tag of 16 bytes. The access key's ID is authenticated
//! with it: a secret that is moved to another ID is refused.

use std::fmt;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

use crate::hex;
use crate::limits::KEY_FILE_MAX;

/// Version of a line.
const LINE_VERSION: &str = "1";
/// Version of a wrapped secret.
const WRAPPED_VERSION: u8 = 1;
/// Bytes of a key's name at most: its length is a byte, and it is shown in a line.
const NAME_MAX: usize = 32;
/// Name of the key that a new file has.
const FIRST_NAME: &str = "k1";

/// Why a key file cannot be used. The text has object, cause and remedy.
#[derive(Debug)]
pub enum KeyFileError {
    /// The file cannot be read or written.
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        operation: &'static str,
        /// Cause.
        error: io::Error,
    },
    /// Others than the owner may read or write it.
    Open {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// It is no key file.
    Flawed {
        /// The file.
        path: PathBuf,
        /// The flaw.
        flaw: Flaw,
    },
}

impl fmt::Display for KeyFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyFileError::Io { path, operation, error } => {
                write!(f, "cannot {operation} key file {}: {error}", path.display())?;
                match error.kind() {
                    io::ErrorKind::NotFound => f.write_str(
                        ": restore it from a backup; without it, no login and no encrypted object \
                         can be used",
                    ),
                    io::ErrorKind::AlreadyExists => f.write_str(": it is never replaced"),
                    _ => Ok(()),
                }
            }
            KeyFileError::Open { path, mode } => write!(
                f,
                "key file {} has mode {mode:o}, so that others may use it: chmod 600 it, and \
                 change the keys if they may have been read",
                path.display()
            ),
            KeyFileError::Flawed { path, flaw } => write!(
                f,
                "key file {} is damaged: {flaw}; restore it from a backup",
                path.display()
            ),
        }
    }
}

impl std::error::Error for KeyFileError {}

/// A flaw in a key file's text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Flaw {
    /// A line is not a key's.
    Line {
        /// Its number, from 1.
        number: usize,
        /// What is wrong with it.
        cause: &'static str,
    },
    /// There is no key in it.
    Empty,
    /// It is too long for a key file, or no text.
    NoText,
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Flaw::Line { number, cause } => write!(f, "line {number}: {cause}"),
            Flaw::Empty => f.write_str("it has no key"),
            Flaw::NoText => write!(f, "it is no text of {KEY_FILE_MAX} bytes at most"),
        }
    }
}

/// Why a wrapped secret cannot be unwrapped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum UnwrapError {
    /// It is no wrapped secret.
    Malformed,
    /// Its key is not in the file.
    NoKey {
        /// The key's name.
        name: String,
    },
    /// It was wrapped by another key of this name, or for another access key, or was changed.
    Refused,
}

impl fmt::Display for UnwrapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UnwrapError::Malformed => f.write_str("the wrapped secret is damaged"),
            UnwrapError::NoKey { name } => {
                write!(f, "the key file has no key {name}: use the file that wrapped the secret")
            }
            UnwrapError::Refused => f.write_str(
                "the key file does not open the wrapped secret: use the file that wrapped it",
            ),
        }
    }
}

impl std::error::Error for UnwrapError {}

struct Key {
    name: String,
    cipher: LessSafeKey,
}

/// Keys of a key file.
pub struct KeyFile {
    keys: Vec<Key>,
}

impl fmt::Debug for KeyFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.names().collect();
        write!(f, "KeyFile({names:?})")
    }
}

impl KeyFile {
    /// Makes a new file with one key of these random bytes, durably.
    ///
    /// # Errors
    ///
    /// [`KeyFileError::Io`], also where there is a file: it is never replaced.
    pub fn create(path: &Path, random: [u8; 32]) -> Result<KeyFile, KeyFileError> {
        let text = format!("{LINE_VERSION} {FIRST_NAME} {}\n", hex::encode(&random));
        let failed =
            |operation| move |error| KeyFileError::Io { path: path.to_owned(), operation, error };
        let mut options = fs::OpenOptions::new();
        let mut file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map_err(failed("create"))?;
        file.write_all(text.as_bytes()).map_err(failed("write"))?;
        file.sync_all().map_err(failed("sync"))?;
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let directory = fs::File::open(directory.unwrap_or(Path::new(".")));
        directory.and_then(|directory| directory.sync_all()).map_err(failed("sync"))?;
        KeyFile::parse(&text).map_err(|flaw| KeyFileError::Flawed { path: path.to_owned(), flaw })
    }

    /// Reads a file.
    ///
    /// # Errors
    ///
    /// [`KeyFileError`] with cause and remedy.
    pub fn load(path: &Path) -> Result<KeyFile, KeyFileError> {
        let failed = |error| KeyFileError::Io { path: path.to_owned(), operation: "read", error };
        let flawed = |flaw| KeyFileError::Flawed { path: path.to_owned(), flaw };
        let file = fs::File::open(path).map_err(failed)?;
        let mode = file.metadata().map_err(failed)?.mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(KeyFileError::Open { path: path.to_owned(), mode });
        }
        let mut bytes = Vec::new();
        file.take(KEY_FILE_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > KEY_FILE_MAX {
            return Err(flawed(Flaw::NoText));
        }
        let text = String::from_utf8(bytes).map_err(|_| flawed(Flaw::NoText))?;
        KeyFile::parse(&text).map_err(flawed)
    }

    /// Reads a file's text.
    ///
    /// # Errors
    ///
    /// The first [`Flaw`].
    pub fn parse(text: &str) -> Result<KeyFile, Flaw> {
        let mut keys: Vec<Key> = Vec::new();
        for (index, line) in text.lines().enumerate() {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let flaw = |cause| Flaw::Line { number: index + 1, cause };
            let key = parse_line(line).map_err(flaw)?;
            if keys.iter().any(|other| other.name == key.name) {
                return Err(flaw("there is a key of this name above it"));
            }
            keys.push(key);
        }
        if keys.is_empty() { Err(Flaw::Empty) } else { Ok(KeyFile { keys }) }
    }

    /// Names of the keys, oldest first.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.keys.iter().map(|key| key.name.as_str())
    }

    /// Wraps the secret of an access key. The nonce is random: one that was used for another secret
    /// would reveal both.
    pub fn wrap(&self, access_key_id: &str, secret: &str, nonce: [u8; NONCE_LEN]) -> Vec<u8> {
        let key = &self.keys[self.keys.len() - 1]; // A file has a key: `parse` checked it.
        let mut sealed = secret.as_bytes().to_vec();
        key.cipher
            .seal_in_place_append_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(access_key_id.as_bytes()),
                &mut sealed,
            )
            .expect("AES-GCM seals up to 64 GiB");
        let mut wrapped = vec![WRAPPED_VERSION, key.name.len() as u8];
        wrapped.extend_from_slice(key.name.as_bytes());
        wrapped.extend_from_slice(&nonce);
        wrapped.append(&mut sealed);
        wrapped
    }

    /// Unwraps the secret of an access key.
    ///
    /// # Errors
    ///
    /// [`UnwrapError`] with cause and remedy.
    pub fn unwrap(&self, access_key_id: &str, wrapped: &[u8]) -> Result<String, UnwrapError> {
        let (name, nonce, sealed) = split(wrapped).ok_or(UnwrapError::Malformed)?;
        let key = self.keys.iter().find(|key| key.name == name);
        let key = key.ok_or_else(|| UnwrapError::NoKey { name: name.to_owned() })?;
        let mut sealed = sealed.to_vec();
        let secret = key.cipher.open_in_place(
            Nonce::assume_unique_for_key(nonce),
            Aad::from(access_key_id.as_bytes()),
            &mut sealed,
        );
        let secret = secret.map_err(|_| UnwrapError::Refused)?;
        String::from_utf8(secret.to_vec()).map_err(|_| UnwrapError::Malformed)
    }
}

/// Key's name, nonce and the rest of a wrapped secret.
fn split(wrapped: &[u8]) -> Option<(&str, [u8; NONCE_LEN], &[u8])> {
    let (&[version, name_len], rest) = wrapped.split_first_chunk()?;
    if version != WRAPPED_VERSION {
        return None;
    }
    let (name, rest) = rest.split_at_checked(usize::from(name_len))?;
    let (nonce, sealed) = rest.split_first_chunk()?;
    Some((std::str::from_utf8(name).ok()?, *nonce, sealed))
}

fn parse_line(line: &str) -> Result<Key, &'static str> {
    let mut words = line.split(' ');
    let (Some(version), Some(name), Some(bytes), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err("a key's line is: 1 NAME and 64 digits");
    };
    if version != LINE_VERSION {
        return Err("its version is not 1: a newer gateway may have written it");
    }
    let is_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if !(1..=NAME_MAX).contains(&name.len()) || !name.bytes().all(is_name) {
        return Err("a key's name has 1 to 32 small letters, digits and hyphens");
    }
    let bytes = hex::decode(bytes).filter(|bytes| bytes.len() == 32);
    let bytes = bytes.ok_or("a key has 64 digits, 0 to 9 and a to f")?;
    let key = UnboundKey::new(&AES_256_GCM, &bytes).expect("AES-256 has keys of 32 bytes");
    Ok(Key { name: name.to_owned(), cipher: LessSafeKey::new(key) })
}

/// Fuzz target: any text is a key file or has a flaw, any bytes unwrap or do not.
pub fn fuzz_key_file(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(file) = KeyFile::parse(text)
    {
        let wrapped = file.wrap("id", "secret", [7; NONCE_LEN]);
        assert_eq!(file.unwrap("id", &wrapped).as_deref(), Ok("secret"));
        assert!(file.unwrap("id", bytes).is_err());
    }
}

#[cfg(test)]
mod tests;
