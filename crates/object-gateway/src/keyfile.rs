//! The key file: keys that wrap what must not be readable in the cluster: the secrets of access keys
//! and the keys of objects (object protocols, 11.4).
//!
//! It is text, one key a line. Keys of the service wrap secrets, and keys of objects for SSE-S3: a
//! `1`, the name, 32 random bytes in hex. Named keys wrap keys of objects for SSE-KMS: a `2`, the
//! name, the version, the bytes.
//!
//! ```text
//! 1 k1 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
//! 2 payroll 1 2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae
//! ```
//!
//! Empty lines and lines that begin with `#` are passed over. The last key of the service wraps, and
//! the last version of a named key; all unwrap. The file must be accessible to its owner only.
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
use ring::hmac;

use crate::hex;
use crate::limits::KEY_FILE_MAX;

/// First word of the line of a key of the service.
const OF_SERVICE: &str = "1";
/// First word of the line of a named key.
const NAMED: &str = "2";
/// Version of a wrapped secret.
const WRAPPED_VERSION: u8 = 1;
/// Bytes of a key's name at most: its length is a byte, and it is shown in a line.
const NAME_MAX: usize = 32;
/// Bytes of a named key's name at most: it is in a header.
pub const KEY_NAME_MAX: usize = 64;
/// Name of the key that a new file has.
const FIRST_NAME: &str = "k1";
/// Name of the service's key for SSE-KMS, as AWS's default key has it.
pub const DEFAULT_KEY: &str = "aws/s3";

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
    /// There is no key of the service in it.
    Empty,
    /// It is too long for a key file, or no text.
    NoText,
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Flaw::Line { number, cause } => write!(f, "line {number}: {cause}"),
            Flaw::Empty => f.write_str("it has no key of the service"),
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

/// A key of the file, in one version.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct KeyId {
    name: String,
    version: u32,
}

impl KeyId {
    /// A key of the service for version 0, else of a named key; `None` when none has that name.
    pub fn new(name: &str, version: u32) -> Option<KeyId> {
        let is_name = if version == 0 { is_service_name(name) } else { is_key_name(name) };
        is_name.then(|| KeyId { name: name.to_owned(), version })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its version, from 1; 0 for a key of the service.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Its name as S3's clients see it.
    pub fn shown(&self) -> &str {
        if self.version == 0 { DEFAULT_KEY } else { &self.name }
    }

    /// From the text that `Display` writes.
    pub fn parse(text: &str) -> Option<KeyId> {
        match text.split_once('/') {
            None => KeyId::new(text, 0),
            Some((name, version)) => {
                let number = version.parse().ok().filter(|number| *number > 0)?;
                KeyId::new(name, number).filter(|key| key.to_string() == text)
            }
        }
    }
}

/// `k1`, or `payroll/3`.
impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if self.version == 0 { Ok(()) } else { write!(f, "/{}", self.version) }
    }
}

/// True for a name that a key of the service may have.
fn is_service_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=NAME_MAX).contains(&name.len()) && name.bytes().all(fits)
}

/// True for a name that a named key may have.
pub fn is_key_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=KEY_NAME_MAX).contains(&name.len()) && name.bytes().all(fits)
}

struct Key {
    id: KeyId,
    cipher: LessSafeKey,
    /// Keys that wrap one object's key each are derived with it.
    master: hmac::Key,
}

/// Keys of a key file.
pub struct KeyFile {
    keys: Vec<Key>,
}

impl fmt::Debug for KeyFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Vec<String> = self.ids().map(KeyId::to_string).collect();
        write!(f, "KeyFile({keys:?})")
    }
}

impl KeyFile {
    /// Makes a new file with one key of these random bytes, durably.
    ///
    /// # Errors
    ///
    /// [`KeyFileError::Io`], also where there is a file: it is never replaced.
    pub fn create(path: &Path, random: [u8; 32]) -> Result<KeyFile, KeyFileError> {
        let text = format!("{OF_SERVICE} {FIRST_NAME} {}\n", hex::encode(&random));
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
        let text = KeyFile::read(path)?;
        KeyFile::parse(&text).map_err(|flaw| KeyFileError::Flawed { path: path.to_owned(), flaw })
    }

    /// The text of a file that only its owner may use.
    ///
    /// # Errors
    ///
    /// [`KeyFileError`] with cause and remedy.
    pub(crate) fn read(path: &Path) -> Result<String, KeyFileError> {
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
        String::from_utf8(bytes).map_err(|_| flawed(Flaw::NoText))
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
            let of_name = keys.iter().rfind(|other| other.id.name == key.id.name);
            match (of_name.map(|other| other.id.version), key.id.version) {
                (Some(0), _) | (Some(_), 0) => {
                    return Err(flaw("there is a key of this name above it"));
                }
                (Some(above), own) if own <= above => {
                    return Err(flaw("a later version of this key is above it"));
                }
                _ => keys.push(key),
            }
        }
        match keys.iter().any(|key| key.id.version == 0) {
            true => Ok(KeyFile { keys }),
            false => Err(Flaw::Empty),
        }
    }

    /// All keys with their versions, as the file has them.
    pub fn ids(&self) -> impl Iterator<Item = &KeyId> {
        self.keys.iter().map(|key| &key.id)
    }

    /// The key of the service that wraps.
    fn of_service(&self) -> &Key {
        let key = self.keys.iter().rfind(|key| key.id.version == 0);
        key.expect("a file has one: `parse` checked it")
    }

    /// What wraps by the key of that name, in its newest version; by the service's for none, and for
    /// [`DEFAULT_KEY`].
    pub fn wrapping(&self, name: Option<&str>) -> Option<&KeyId> {
        match name.filter(|name| *name != DEFAULT_KEY) {
            None => Some(&self.of_service().id),
            Some(name) => {
                let of_name = |key: &&Key| key.id.version > 0 && key.id.name == name;
                self.keys.iter().rfind(of_name).map(|key| &key.id)
            }
        }
    }

    /// What keys that wrap are derived with; `None` when the file lacks that key.
    pub fn master(&self, id: &KeyId) -> Option<&hmac::Key> {
        self.keys.iter().find(|key| key.id == *id).map(|key| &key.master)
    }

    /// Wraps the secret of an access key. The nonce is random: one that was used for another secret
    /// would reveal both.
    pub fn wrap(&self, access_key_id: &str, secret: &str, nonce: [u8; NONCE_LEN]) -> Vec<u8> {
        let key = self.of_service();
        let mut sealed = secret.as_bytes().to_vec();
        key.cipher
            .seal_in_place_append_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(access_key_id.as_bytes()),
                &mut sealed,
            )
            .expect("AES-GCM seals up to 64 GiB");
        let mut wrapped = vec![WRAPPED_VERSION, key.id.name.len() as u8];
        wrapped.extend_from_slice(key.id.name.as_bytes());
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
        let key = self.keys.iter().find(|key| key.id.version == 0 && key.id.name == name);
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
    let words: Vec<&str> = line.split(' ').collect();
    let (name, version, bytes) = match words[..] {
        [OF_SERVICE, name, bytes] => (name, 0, bytes),
        [NAMED, name, version, bytes] => {
            let number = version.parse::<u32>().ok().filter(|number| *number > 0);
            let number = number.filter(|number| number.to_string() == version);
            (name, number.ok_or("a key's version is a number from 1")?, bytes)
        }
        [OF_SERVICE | NAMED, ..] | [] | [_] => {
            return Err("a key's line is: 1 NAME and 64 digits, or 2 NAME VERSION and 64 digits");
        }
        _ => return Err("it begins with neither 1 nor 2: a newer gateway may have written it"),
    };
    let id = KeyId::new(name, version).ok_or(match version {
        0 => "the name of a key of the service has 1 to 32 small letters, digits and hyphens",
        _ => "a key's name has 1 to 64 letters, digits, '.', '_' and '-'",
    })?;
    let bytes = hex::decode(bytes).filter(|bytes| bytes.len() == 32);
    let bytes = bytes.ok_or("a key has 64 digits, 0 to 9 and a to f")?;
    let key = UnboundKey::new(&AES_256_GCM, &bytes).expect("AES-256 has keys of 32 bytes");
    let master = hmac::Key::new(hmac::HMAC_SHA256, &bytes);
    Ok(Key { id, cipher: LessSafeKey::new(key), master })
}

/// Fuzz target: any text is a key file or has a flaw, any bytes unwrap or do not.
pub fn fuzz_key_file(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(file) = KeyFile::parse(text)
    {
        let wrapped = file.wrap("id", "secret", [7; NONCE_LEN]);
        assert_eq!(file.unwrap("id", &wrapped).as_deref(), Ok("secret"));
        assert!(file.unwrap("id", bytes).is_err());
        for id in file.ids() {
            assert_eq!(KeyId::parse(&id.to_string()).as_ref(), Some(id));
            assert!(file.master(id).is_some());
        }
    }
}

#[cfg(test)]
mod tests;
