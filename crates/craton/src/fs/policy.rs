//! Policies: those of new files, and `craton fs policy` (decision 78).

use std::collections::BTreeSet;

use clap::{Subcommand, ValueEnum};
use client::{Client, Error, FlatLogFile, Inherited};
use serde::Serialize;
use wire::control::limits::{LATER_MAX_S, LATER_MIN_S};
use wire::control::{ClusterStatus, Compression, Later, Node, Policy, Verify};

use crate::exit::{Done, Failure};
use crate::output::{print_json, print_line};
use crate::sizes::{parse_seconds, parse_size};

/// Bytes that are compressed together, unless asked for otherwise.
const BLOCK_DEFAULT: usize = 16 << 10;

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
    /// gets from now on; what is stored stays as it is until 'craton convert' changes it
    Set {
        /// The directory or file.
        path: String,
        /// rep1 to rep5: copies, of which more than half are waited for. ec4+2 and the like: an erasure
        /// code of 4 data and 2 parity fragments, of which all but one, and one more than the data, are
        /// waited for. With -strict behind it: all
        policy: Policy,
        /// What the fragments of a code must be on, each on another: failure domains, unless less is
        /// asked for here
        #[arg(long, value_enum, default_value = "domain")]
        spread: SpreadArg,
        /// Compress what is appended, before it leaves its client; what one append of a program gets
        /// compressed together has 256 KiB at most, with an erasure code 1 MB
        #[arg(long, value_enum, default_value = "none")]
        compression: CompressionArg,
        #[arg(long, value_name = "BYTES", value_parser = parse_block)]
        #[arg(help = BLOCK_HELP, long_help = BLOCK_HELP)]
        block: Option<usize>,
        /// What chunks become, in the background, so long after they were written, such as 7d=ec8+3; compressed
        /// as --compression says
        #[arg(long, value_name = "TIME=POLICY", value_parser = parse_later)]
        convert_after: Option<Later>,
        /// Which appends are read back from what was compressed and coded before they leave their client:
        /// none, one in 256, or all. A CPU that errs is found so, before anything relies on it. Counts
        /// for writers that open files from then on
        #[arg(long, value_enum, default_value = "sampled")]
        verify: VerifyArg,
    },
    /// Let a directory or file have the policy of the directory above again
    Clear {
        /// The directory or file.
        path: String,
    },
}

const BLOCK_HELP: &str = "With --compression: what is compressed together, and read together: a power \
    of two from 4KiB to 64KiB. Large blocks save more; small reads take less of small ones [default: 16KiB]";

/// Which appends are read back before they leave their client.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum VerifyArg {
    /// None
    Off,
    /// One in 256
    Sampled,
    /// All
    All,
}

impl VerifyArg {
    fn verify(self) -> Verify {
        match self {
            VerifyArg::Off => Verify::Off,
            VerifyArg::Sampled => Verify::Sampled,
            VerifyArg::All => Verify::All,
        }
    }
}

/// What each fragment of a code is on another of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum SpreadArg {
    /// Failure domains
    Domain,
    /// Chunkservers, which may share a failure domain
    Server,
    /// Disks, which may share a chunkserver
    Disk,
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
    /// The compression of that name, in blocks of so many bytes.
    pub fn with(self, block_bytes: Option<usize>) -> Result<Option<Compression>, Failure> {
        let name = match self {
            CompressionArg::None if block_bytes.is_some() => {
                let text =
                    "--block is what is compressed together: say --compression lz4 or zstd too";
                return Err(Failure::usage(text));
            }
            CompressionArg::None => return Ok(None),
            CompressionArg::Lz4 => "lz4",
            CompressionArg::Zstd => "zstd",
        };
        let block_bytes = block_bytes.unwrap_or(BLOCK_DEFAULT);
        Ok(Some(Compression::named(name, block_bytes).expect("both are offered")))
    }
}

fn parse_block(text: &str) -> Result<usize, String> {
    let bytes = parse_size(text)?;
    let offered = Compression::named("lz4", bytes).is_some();
    offered.then_some(bytes).ok_or_else(|| "a power of two from 4KiB to 64KiB".to_owned())
}

/// `TIME=POLICY`.
fn parse_later(text: &str) -> Result<Later, String> {
    let (time, policy) =
        text.split_once('=').ok_or("a time and a policy, such as 7d=ec8+3".to_owned())?;
    let units = [("s", 1), ("m", 60), ("h", 3600), ("d", 24 * 3600)];
    let seconds = parse_seconds(time, &units, "7d, 12h or 90m")?;
    let after_s = u32::try_from(seconds).ok().filter(|it| (LATER_MIN_S..=LATER_MAX_S).contains(it));
    let after_s = after_s.ok_or_else(|| format!("'{time}' is not from 1s to 3660d"))?;
    Ok(Later::new(after_s, policy.parse()?))
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

/// Places of a cluster that can take replicas, counted at each level; what is down counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
struct Places {
    disks: usize,
    servers: usize,
    domains: usize,
}

impl Places {
    /// By one master.
    fn of(picture: &ClusterStatus) -> Places {
        let servers = &picture.servers;
        let disks = servers.iter().flat_map(|server| &server.disks);
        let domains: BTreeSet<&str> = servers.iter().map(|server| server.domain.as_str()).collect();
        Places {
            disks: disks.filter(|disk| !disk.failed).count(),
            servers: servers.len(),
            domains: domains.len(),
        }
    }
}

/// Refuses a policy that no chunk could ever have: each copy takes a disk of its own, and each fragment
/// of a code what `spread` says.
pub async fn check_places(client: &Client, policy: Policy, spread: SpreadArg) -> Done {
    let pictures = client.status().await?;
    let known = pictures.iter().map(|(_, picture)| Places::of(picture)).max().unwrap_or_default();
    check(policy, spread, known)
}

fn check(policy: Policy, spread: SpreadArg, places: Places) -> Done {
    let wanted = usize::from(policy.copies);
    let Places { disks: known, servers, domains } = places;
    if policy.is_coded() {
        let policy = policy.scheme();
        let (there, unit, less) = match spread {
            SpreadArg::Domain if servers >= wanted => {
                (domains, "failure domains", " --spread server,")
            }
            SpreadArg::Domain if known >= wanted => (domains, "failure domains", " --spread disk,"),
            SpreadArg::Domain => (domains, "failure domains", ""),
            SpreadArg::Server if known >= wanted => (servers, "chunkservers", " --spread disk,"),
            SpreadArg::Server => (servers, "chunkservers", ""),
            SpreadArg::Disk => (known, "disks", ""),
        };
        if there >= wanted {
            return Ok(());
        }
        return Err(Failure::failed(format!(
            "{policy} needs {wanted} {unit}, one for each fragment, and the cluster has {there}: choose\
             {less} a smaller code or copies, or add some first"
        )));
    }
    if known >= wanted {
        return Ok(());
    }
    let largest = Policy::rep(known.clamp(1, 5) as u8);
    let policy = policy.scheme();
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
        PolicyCommand::Set { path, policy, spread, compression, block, convert_after, verify } => {
            let compression = compression.with(block)?;
            let policy = policy.compressed(compression);
            let form =
                |later: Later| Later::new(later.after_s, later.policy().compressed(compression));
            let later = convert_after.map(form);
            if later.is_some_and(|later| later.policy() == policy) {
                let text = format!(
                    "chunks of {policy} would become what they are: --convert-after another"
                );
                return Err(Failure::usage(text));
            }
            let verify = verify.verify();
            let is_laid_out = policy.is_coded() || compression.is_some();
            if verify != Verify::default() && !is_laid_out {
                let text = "--verify is for appends that are coded or compressed: sectors of copies have the \
                            bytes as they are, and their checksum; choose a code, or --compression";
                return Err(Failure::usage(text.to_owned()));
            }
            let policy = policy.and_later(later).verified(verify);
            // A path that is not there is the first thing to say.
            let target = Target::of(client, &path).await?;
            check_places(client, policy, spread).await?;
            if let Some(later) = later {
                check_places(client, later.policy(), spread).await?;
            }
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
    /// Null where an erasure code takes their place.
    copies: Option<u8>,
    acks: u8,
    /// `lz4` or `zstd`.
    compression: Option<&'static str>,
    /// Bytes that are compressed together.
    block_bytes: Option<usize>,
    /// What chunks become, and how long behind their seal, as `7d=ec8+3`; null where they stay as they
    /// are.
    convert_after: Option<String>,
    /// Which appends writers read back before they send them: `off`, `sampled`, `all`.
    verify: &'static str,
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
            policy: policy.scheme().to_string(),
            copies,
            acks,
            compression: compression.map(|it| it.codec.name()),
            block_bytes: compression.map(|it| it.block.bytes()),
            convert_after: policy.later.map(|later| later.to_string()),
            verify: policy.verify.name(),
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
    fn later_forms_are_a_time_and_a_policy() {
        let week = parse_later("7d=ec8+3").expect("a time and a policy");
        assert_eq!((week.after_s, week.policy()), (7 * 24 * 3600, Policy::ec(8, 3)));
        assert_eq!(week.to_string(), "7d=ec8+3");
        assert_eq!(parse_later("90m=rep2").map(|it| it.after_s), Ok(5400));
        for text in ["7d", "ec8+3", "7=ec8+3", "0s=rep2", "9999d=rep2", "7d=ec1+1", "7d=", "=rep2"]
        {
            assert!(parse_later(text).is_err(), "{text}");
        }
    }

    #[test]
    fn codes_need_a_place_for_each_fragment() {
        let policy = Policy::ec(4, 2);
        let places = |disks, servers, domains| Places { disks, servers, domains };
        let says = |spread, places| match check(policy, spread, places) {
            Ok(()) => "fits".to_owned(),
            Err(failure) => failure.message,
        };
        assert_eq!(says(SpreadArg::Domain, places(6, 6, 6)), "fits");
        assert_eq!(says(SpreadArg::Server, places(6, 6, 2)), "fits");
        assert_eq!(says(SpreadArg::Disk, places(6, 3, 2)), "fits");
        for (spread, places, want) in [
            (
                SpreadArg::Domain,
                places(12, 6, 3),
                "6 failure domains, one for each fragment, and the",
            ),
            (SpreadArg::Domain, places(12, 6, 3), "has 3: choose --spread server, a smaller code"),
            (SpreadArg::Domain, places(12, 3, 3), "has 3: choose --spread disk, a smaller code"),
            (SpreadArg::Server, places(12, 3, 3), "6 chunkservers"),
            (SpreadArg::Disk, places(5, 5, 5), "has 5: choose a smaller code"),
        ] {
            assert!(says(spread, places).contains(want), "{}", says(spread, places));
        }
    }

    #[test]
    fn parents_of_paths() {
        let given = ["/a/b", "/a/b/", "/a", "/", "//a"];
        assert_eq!(given.map(parent), ["/a", "/a", "/", "/", "/"]);
    }
}
