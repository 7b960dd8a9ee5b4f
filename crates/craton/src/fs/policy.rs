//! Policies: those of new files, and `craton fs policy` (decision 78).

use std::collections::BTreeSet;

use clap::{Subcommand, ValueEnum};
use client::{Client, Error, FlatLogFile, Inherited};
use serde::Serialize;
use wire::control::{ClusterStatus, Compression, Node, Policy};

use crate::exit::{Done, Failure};
use crate::output::{print_json, print_line};
use crate::sizes::parse_size;

/// Copies of a file, unless another policy is asked for.
const COPIES_DEFAULT: usize = 3;

/// `craton fs policy`.
#[derive(Subcommand, Debug)]
pub enum PolicyCommand {
    /// Show the policy of a file, or the one that files made in a directory get, and where it comes
    /// from
    Show {
        /// Its path.
        path: String,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Set the policy of files that are made in a directory and below from now on, or of what a file
    /// gets from now on; what is stored stays as it is
    Set {
        /// The directory or file.
        path: String,
        /// rep1 to rep5: copies, of which more than half are waited for; rep3-strict and the like: all
        policy: Policy,
        /// Compress what is appended, before it leaves its client; what one append of a program gets
        /// compressed together has 256 KiB at most
        #[arg(long, value_enum, default_value = "none")]
        compression: CompressionArg,
        /// What is compressed together, and read together: a power of two from 4KiB to 64KiB. Large
        /// blocks save more; small reads take less of small ones
        #[arg(long, value_name = "BYTES", value_parser = parse_block, default_value = "16KiB")]
        block: usize,
    },
    /// Let a directory or file have the policy of the directory above again
    Clear {
        /// The directory or file.
        path: String,
    },
}

/// How what is appended is compressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum CompressionArg {
    /// Not at all
    None,
    /// LZ4: little CPU
    Lz4,
    /// Zstandard: saves more, for several times the CPU
    Zstd,
}

impl CompressionArg {
    fn with(self, block_bytes: usize) -> Option<Compression> {
        let name = match self {
            CompressionArg::None => return None,
            CompressionArg::Lz4 => "lz4",
            CompressionArg::Zstd => "zstd",
        };
        Some(Compression::named(name, block_bytes).expect("both are offered"))
    }
}

fn parse_block(text: &str) -> Result<usize, String> {
    let bytes = parse_size(text)?;
    let offered = Compression::named("lz4", bytes).is_some();
    offered.then_some(bytes).ok_or_else(|| "a power of two from 4KiB to 64KiB".to_owned())
}

/// Policy for a new file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wish {
    /// This one.
    Asked(Policy),
    /// That of the nearest directory that has one; this one where none has.
    Inherited(Policy),
}

impl Wish {
    /// Makes a file with it.
    pub async fn create(
        self,
        client: &Client,
        path: &str,
        mode: u32,
        exclusive: bool,
    ) -> Result<FlatLogFile, Error> {
        match self {
            Wish::Asked(policy) => client.create(path, policy, mode, exclusive).await,
            Wish::Inherited(default) => {
                client.create_inherited(path, default, mode, exclusive).await
            }
        }
    }
}

/// The policy asked for, else that of the file's directory.
pub async fn wish(client: &Client, asked: Option<Policy>) -> Result<Wish, Failure> {
    Ok(match asked {
        Some(policy) => Wish::Asked(policy),
        None => Wish::Inherited(default(client).await?),
    })
}

/// The policy asked for, else the default one.
pub async fn choose(client: &Client, asked: Option<Policy>) -> Result<Policy, Failure> {
    match asked {
        Some(policy) => Ok(policy),
        None => default(client).await,
    }
}

/// `rep3`, or as many copies as the cluster has failure domains; a server that is down counts: it
/// is expected back.
pub async fn default(client: &Client) -> Result<Policy, Failure> {
    let pictures = client.status().await?;
    let servers = pictures.iter().flat_map(|(_, picture)| &picture.servers);
    let domains: BTreeSet<&str> = servers.map(|server| server.domain.as_str()).collect();
    Ok(Policy::rep(domains.len().clamp(1, COPIES_DEFAULT) as u8))
}

/// Disks that can take copies, by the master that knows most; a server that is down counts.
fn disks(picture: &ClusterStatus) -> usize {
    let disks = picture.servers.iter().flat_map(|server| &server.disks);
    disks.filter(|disk| !disk.failed).count()
}

/// Refuses a policy that no chunk could ever have: each copy takes a disk of its own.
pub async fn check_places(client: &Client, policy: Policy) -> Done {
    let pictures = client.status().await?;
    let known = pictures.iter().map(|(_, picture)| disks(picture)).max().unwrap_or(0);
    if known >= usize::from(policy.copies) {
        return Ok(());
    }
    let largest = Policy::rep(known.clamp(1, 5) as u8);
    let policy = policy.uncompressed();
    Err(Failure::failed(format!(
        "{policy} needs {} disks, one for each copy, and the cluster has {known}: choose {largest}, \
         or add chunkservers or disks first",
        policy.copies
    )))
}

/// Runs a command.
pub async fn run(client: &Client, command: PolicyCommand) -> Done {
    match command {
        PolicyCommand::Show { path, json } => show(client, &path, json).await,
        PolicyCommand::Set { path, policy, compression, block } => {
            let policy = policy.compressed(compression.with(block));
            // A path that is not there is the first thing to say.
            let target = Target::of(client, &path).await?;
            check_places(client, policy).await?;
            target.set(client, &path, Some(policy)).await
        }
        PolicyCommand::Clear { path } => {
            Target::of(client, &path).await?.set(client, &path, None).await
        }
    }
}

/// What a path names.
enum Target {
    Dir,
    File(FlatLogFile),
}

impl Target {
    async fn of(client: &Client, path: &str) -> Result<Target, Failure> {
        let found = client.resolve(path).await?;
        Ok(match found.node {
            Node::Dir { .. } => Target::Dir,
            _ => Target::File(client.file_of(path, found)?),
        })
    }

    async fn set(self, client: &Client, path: &str, policy: Option<Policy>) -> Done {
        match self {
            Target::Dir => Ok(client.set_dir_policy(path, policy).await?),
            Target::File(file) => {
                let policy = match policy {
                    Some(policy) => policy,
                    None => match client.dir_policy(&parent(path)).await? {
                        Some(inherited) => inherited.policy,
                        None => default(client).await?,
                    },
                };
                Ok(file.set_policy(policy).await?)
            }
        }
    }
}

/// The directory of a path; a name without one is in the root.
fn parent(path: &str) -> String {
    match path.trim_end_matches('/').rsplit_once('/') {
        Some((above, _)) if !above.is_empty() => above.to_owned(),
        _ => "/".to_owned(),
    }
}

#[derive(Serialize)]
struct Shown<'a> {
    path: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    policy: String,
    copies: Option<u8>,
    acks: u8,
    /// `lz4` or `zstd`.
    compression: Option<&'static str>,
    /// Bytes that are compressed together.
    block_bytes: Option<usize>,
    /// `file`: recorded with it; `directory`: set on one; `default`: set on none.
    from: &'static str,
    /// The directory that it is set on.
    set_on: Option<String>,
}

async fn show(client: &Client, path: &str, json: bool) -> Done {
    let (kind, policy, from, set_on) = match Target::of(client, path).await? {
        Target::File(file) => ("file", file.policy_now().await?, "file", None),
        Target::Dir => match client.dir_policy(path).await? {
            Some(Inherited { policy, set_on }) => ("directory", policy, "directory", Some(set_on)),
            None => ("directory", default(client).await?, "default", None),
        },
    };
    if json {
        let Policy { copies, acks, compression, .. } = policy;
        let copies = (!policy.is_coded()).then_some(copies);
        return print_json(&Shown {
            path,
            kind,
            policy: policy.uncompressed().to_string(),
            copies,
            acks,
            compression: compression.map(|it| it.codec.name()),
            block_bytes: compression.map(|it| it.block.bytes()),
            from,
            set_on,
        });
    }
    let origin = match (from, &set_on) {
        (_, Some(dir)) => format!("set on {dir}"),
        ("file", None) => "recorded with the file".to_owned(),
        _ => "the default of this cluster".to_owned(),
    };
    print_line(&format!("{policy}: {origin}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_powers_of_two() {
        let sizes = ["4KiB", "16K", "65536"].map(parse_block);
        assert_eq!(sizes, [4 << 10, 16 << 10, 64 << 10].map(Ok));
        for text in ["0", "2KiB", "5KiB", "128KiB", "16Q"] {
            assert!(parse_block(text).is_err(), "{text}");
        }
    }

    #[test]
    fn parents_of_paths() {
        let given = ["/a/b", "/a/b/", "/a", "/", "//a"];
        assert_eq!(given.map(parent), ["/a", "/a", "/", "/", "/"]);
    }
}
