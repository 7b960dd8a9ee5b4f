//! A master's directory: the file `master` with its owner, and the file `store` with logs and
//! checkpoints of all groups. The store is made first, and is empty then; a directory without an
//! identity has never acknowledged anything.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use base::{ClusterId, DiskId};
use chunkstore::ChunkStore;
use chunkstore::flash::{FlashStore, MountError, format};
use codec::crc32c;
use runtime::{Env, OpenOptions, WriteMode};

use crate::config::MasterConfig;
use master_consensus::open_store;

const FILE: &str = "master";
const STORE: &str = "store";
const HEADER: &str = "craton master 3";
/// Before 3 without a checksum.
const HEADER_UNCHECKED: &str = "craton master 2";
/// Before 2, each group kept its log in files of its own.
const HEADER_OLD: &str = "craton master 1";
/// Begins the last line, the CRC32C of all lines in front of it.
const CHECK: &str = "crc ";
/// The file has some hundred bytes.
const LEN_MAX: u64 = 4096;

/// Cause for which a directory cannot be used.
#[derive(Debug)]
pub enum IdentityError {
    /// The system refuses.
    Io(PathBuf, io::Error),
    /// The file cannot be read.
    Damaged(PathBuf),
    /// The directory belongs to another master, cluster, or number of partitions.
    Other {
        /// The file.
        path: PathBuf,
        /// The fact that does not fit, and both values.
        what: String,
    },
    /// The directory is of a version before the first release.
    Old(PathBuf),
    /// The store of a directory with an identity is gone.
    NoStore(PathBuf),
    /// There is a store that has held something, and no identity.
    NoIdentity(PathBuf),
    /// The store does not open.
    Store(PathBuf, MountError),
    /// The directory is empty, the cluster is not to be formed, and its ID is not known.
    Unknown(PathBuf),
}

impl fmt::Display for IdentityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IdentityError::Io(path, error) => {
                write!(f, "cannot use {}: {error}", path.display())
            }
            IdentityError::Damaged(path) => write!(
                f,
                "{} is damaged: remove this master, and add another in its place, with a number \
                 of its own and an empty directory",
                path.display()
            ),
            IdentityError::Other { path, what } => {
                write!(f, "{} belongs to another master: {what}", path.display())
            }
            IdentityError::Old(path) => write!(
                f,
                "{} is of a version before the first release, whose logs this one does not read: \
                 form the cluster again in an empty directory",
                path.display()
            ),
            IdentityError::NoStore(path) => write!(
                f,
                "{} is gone, and with it what this master has voted and acknowledged: remove \
                 this master, and add another in its place, with a number of its own and an empty \
                 directory",
                path.display()
            ),
            IdentityError::NoIdentity(path) => write!(
                f,
                "{} is a master's, but the file 'master' beside it is gone: remove this master, \
                 and add another in its place, with a number of its own and an empty directory",
                path.display()
            ),
            IdentityError::Store(path, error) => write!(f, "{}: {error}", path.display()),
            IdentityError::Unknown(dir) => write!(
                f,
                "{} is empty: give the cluster's ID to join it, or form a new one",
                dir.display()
            ),
        }
    }
}

impl std::error::Error for IdentityError {}

/// The owner of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    /// The cluster.
    pub cluster: ClusterId,
    /// The master's Raft ID.
    pub id: u64,
    /// Number of namespace partitions.
    pub namespace_partitions: u16,
    /// Number of stream partitions.
    pub stream_partitions: u16,
    /// Incarnation of the store of the master that has invited this one; zero before that.
    pub member: DiskId,
}

impl Identity {
    /// Reads the directory's identity and compares it with the configuration, or gives the
    /// directory one. Opens its store.
    pub async fn open(
        env: &Env,
        config: &MasterConfig,
    ) -> Result<(Identity, FlashStore), IdentityError> {
        let dir = &config.dir;
        let failed = |error| IdentityError::Io(dir.clone(), error);
        env.create_dir_all(dir).await.map_err(failed)?;
        let (path, store) = (dir.join(FILE), dir.join(STORE));
        let opened = open_store(env, &store).await;
        if let Some(text) = read(env, &path).await? {
            // One bit lies between the headers of 1 and 3.
            if text.starts_with(HEADER_OLD) && !text.contains(CHECK) {
                return Err(IdentityError::Old(path));
            }
            let known = text.parse::<Identity>();
            let known = known.map_err(|()| IdentityError::Damaged(path.clone()))?;
            let known = known.check(config, path)?;
            return match opened {
                Ok(opened) => Ok((known, opened)),
                Err(MountError::NotAStore) => Err(IdentityError::NoStore(store)),
                Err(error) => Err(IdentityError::Store(store, error)),
            };
        }
        let mut cluster = config.cluster;
        if cluster == ClusterId::default() {
            if !config.form {
                return Err(IdentityError::Unknown(dir.clone()));
            }
            let mut bytes = [0; 16];
            env.fill_secret(&mut bytes);
            cluster = ClusterId::new(u128::from_le_bytes(bytes) | 1);
        }
        let opened = match opened {
            Ok(opened) if opened.info().chunks > 0 => {
                return Err(IdentityError::NoIdentity(store));
            }
            // A start that was broken off.
            Ok(opened) => opened,
            Err(MountError::NotAStore) => {
                let broken = |error| IdentityError::Store(store.clone(), error);
                format(env, &store, &config.timing.store).await.map_err(broken)?;
                open_store(env, &store).await.map_err(broken)?
            }
            Err(error) => return Err(IdentityError::Store(store, error)),
        };
        let identity = Identity {
            cluster,
            id: config.id,
            namespace_partitions: config.namespace_partitions,
            stream_partitions: config.stream_partitions,
            member: DiskId::new(0),
        };
        identity.write(env, dir).await.map_err(failed)?;
        Ok((identity, opened))
    }

    fn check(self, config: &MasterConfig, path: PathBuf) -> Result<Identity, IdentityError> {
        let partitions = (self.namespace_partitions, self.stream_partitions);
        let wanted = (config.namespace_partitions, config.stream_partitions);
        let what = if self.id != config.id {
            format!("its ID is {}, the configuration says {}", self.id, config.id)
        } else if config.cluster != ClusterId::default() && self.cluster != config.cluster {
            format!("its cluster is {}, the configuration says {}", self.cluster, config.cluster)
        } else if partitions != wanted {
            format!("it has {partitions:?} partitions, the configuration says {wanted:?}")
        } else {
            return Ok(self);
        };
        Err(IdentityError::Other { path, what })
    }

    /// Replaces the file, durably.
    pub async fn write(&self, env: &Env, dir: &Path) -> io::Result<()> {
        let (fresh, path) = (dir.join("master.new"), dir.join(FILE));
        let file = env.open_file(&fresh, OpenOptions::CREATE).await?;
        let text = self.to_string();
        let buf = env.pool().copy_of(text.as_bytes()).map_err(io::Error::other)?;
        file.set_len(0).await?;
        file.write_at(0, buf, WriteMode::Cached).await?;
        file.sync().await?;
        drop(file);
        env.rename(&fresh, &path).await?;
        env.sync_dir(dir).await
    }
}

async fn read(env: &Env, path: &Path) -> Result<Option<String>, IdentityError> {
    let failed = |error| IdentityError::Io(path.to_owned(), error);
    let file = match env.open_file(path, OpenOptions::READ).await {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let len = file.len().await.map_err(failed)?;
    if len > LEN_MAX {
        return Err(IdentityError::Damaged(path.to_owned()));
    }
    let buf = env.pool().alloc(LEN_MAX as usize).map_err(|it| failed(io::Error::other(it)))?;
    let (count, buf) = file.read_at(0, buf).await;
    let bytes = buf[..count.map_err(failed)?].to_vec();
    let text = String::from_utf8(bytes).map_err(|_| IdentityError::Damaged(path.to_owned()))?;
    Ok(Some(text))
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Identity { cluster, id, namespace_partitions, stream_partitions, member } = self;
        let text = format!(
            "{HEADER}\ncluster {cluster}\nid {id}\n\
             partitions {namespace_partitions} {stream_partitions}\nmember {:032x}\n",
            member.get()
        );
        writeln!(f, "{text}{CHECK}{:08x}", crc32c(text.as_bytes()))
    }
}

impl FromStr for Identity {
    type Err = ();

    fn from_str(text: &str) -> Result<Identity, ()> {
        let rest = match text.strip_prefix(HEADER_UNCHECKED) {
            Some(rest) => rest.strip_suffix('\n').ok_or(())?,
            None => {
                let (lines, check) = text.rsplit_once(CHECK).ok_or(())?;
                if check != format!("{:08x}\n", crc32c(lines.as_bytes())) {
                    return Err(());
                }
                lines.strip_prefix(HEADER).ok_or(())?
            }
        };
        let words: Vec<&str> = rest.split_ascii_whitespace().collect();
        let ["cluster", cluster, "id", id, "partitions", namespace, stream, "member", member] =
            words[..]
        else {
            return Err(());
        };
        if member.len() != 32 {
            return Err(());
        }
        Ok(Identity {
            cluster: cluster.parse().map_err(|_| ())?,
            id: id.parse().map_err(|_| ())?,
            namespace_partitions: namespace.parse().map_err(|_| ())?,
            stream_partitions: stream.parse().map_err(|_| ())?,
            member: DiskId::new(u128::from_str_radix(member, 16).map_err(|_| ())?),
        })
    }
}

/// Fuzz target: any text is an identity or none; what is one is written as it was read.
pub fn fuzz_identity(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let (lines, _) = text.rsplit_once(CHECK).unwrap_or((text, ""));
    // With the check set right, too, so that the lines in front of it are reached.
    let checked = format!("{lines}{CHECK}{:08x}\n", crc32c(lines.as_bytes()));
    for text in [text, &checked] {
        if let Ok(identity) = text.parse::<Identity>() {
            assert_eq!(identity.to_string().parse(), Ok(identity));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Identity {
        Identity {
            cluster: ClusterId::new(0xabc),
            id: 3,
            namespace_partitions: 4,
            stream_partitions: 2,
            member: DiskId::new(0x77),
        }
    }

    #[test]
    fn text_forms_round_trip() {
        let identity = sample();
        let text = identity.to_string();
        assert_eq!(text.parse(), Ok(identity));
        for cut in 0..text.len() {
            assert_eq!(text[..cut].parse::<Identity>(), Err(()), "cut at {cut}");
        }
    }

    #[test]
    fn identity_of_version_2_has_no_checksum_and_opens() {
        let text = "craton master 2\ncluster clu_abc\nid 3\npartitions 4 2\n\
                    member 00000000000000000000000000000077\n";
        assert_eq!(text.parse(), Ok(sample()));
        let header = sample().to_string().replace(HEADER, HEADER_UNCHECKED);
        assert_eq!(header.parse::<Identity>(), Err(()), "a flipped bit in the header");
    }

    #[test]
    fn identity_with_a_flipped_bit_is_damaged() {
        let text = sample().to_string();
        let mut taken = Vec::new();
        for bit in 0..8 * text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let Ok(flipped) = String::from_utf8(bytes) else { continue };
            if let Ok(other) = flipped.parse::<Identity>() {
                taken.push((bit, other));
            }
        }
        assert!(taken.is_empty(), "{} flipped bits pass, such as {:?}", taken.len(), taken.last());
    }
}
