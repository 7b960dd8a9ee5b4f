//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use wire::control::Policy;

use crate::bench::args::BenchCommand;
use crate::cluster::S3Access;
use crate::connection::Connection;
use crate::exit::{EXIT_CODES, Failure};
use crate::fs::convert::ConvertArgs;
use crate::fs::policy::PolicyCommand;
use crate::masters::args::MastersCommand;
use crate::s3::args::{BucketCommand, KmsCommand, RangeCommand, UserCommand};
use crate::upkeep::args::{
    DecommissionArgs, DiskCommand, DrainArgs, MaintenanceArgs, RebalanceArgs, ScrubCommand,
    parse_time,
};
use crate::volume::VolumeCommand;

const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (commit ", env!("CRATON_COMMIT"), ")");

/// Stores bytes on many machines and never loses what it acknowledged.
#[derive(Parser, Debug)]
#[command(name = "craton", version = VERSION, after_help = EXIT_CODES, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run all roles in this process, in the foreground, until Ctrl-C
    Up(UpArgs),
    /// Run a cluster of separate processes on this machine
    Cluster {
        /// What to do with it.
        #[command(subcommand)]
        command: ClusterCommand,
    },
    /// Run a master, configured by a file (docs/operations/master.toml)
    Master(RoleArgs),
    /// Run a chunkserver, configured by a file (docs/operations/chunkserver.toml)
    Chunkserver(RoleArgs),
    /// Run a block manager, configured by a file (docs/operations/block-manager.toml)
    BlockManager(RoleArgs),
    /// Run a block server, configured by a file (docs/operations/block-server.toml)
    BlockServer(RoleArgs),
    /// Run an NBD front end, configured by a file (docs/operations/frontend.toml)
    Frontend(RoleArgs),
    /// Run an object manager, configured by a file (docs/operations/object-manager.toml)
    ObjectManager(RoleArgs),
    /// Run an object server, configured by a file (docs/operations/object-server.toml)
    ObjectServer(RoleArgs),
    /// Run a gateway of S3, configured by a file (docs/operations/gateway.toml)
    Gateway(RoleArgs),
    /// Work with volumes: virtual disks, served over NBD
    Volume {
        /// Which cluster.
        #[command(flatten)]
        connection: Connection,
        /// What to do.
        #[command(subcommand)]
        command: VolumeCommand,
    },
    /// Show or change which masters the cluster has
    Masters {
        /// Which cluster.
        #[command(flatten)]
        connection: Connection,
        /// What to do.
        #[command(subcommand)]
        command: MastersCommand,
    },
    /// Work with files and directories of a cluster
    Fs {
        /// Which cluster.
        #[command(flatten)]
        connection: Connection,
        /// Also in /.craton, where volumes and other services keep their files: a change there
        /// destroys them
        #[arg(long, global = true)]
        services: bool,
        /// What to do.
        #[command(subcommand)]
        command: FsCommand,
    },
    /// Work with users of S3 and their access keys
    User {
        /// Which cluster.
        #[command(flatten)]
        connection: Connection,
        /// What to do.
        #[command(subcommand)]
        command: UserCommand,
    },
    /// Work with buckets of S3
    Bucket {
        /// Which cluster.
        #[command(flatten)]
        connection: Connection,
        /// What to do.
        #[command(subcommand)]
        command: BucketCommand,
    },
    /// Work with ranges of the keys of all buckets, which object servers own
    Range {
        /// Which cluster.
        #[command(flatten)]
        connection: Connection,
        /// What to do.
        #[command(subcommand)]
        command: RangeCommand,
    },
    /// Work with keys that encrypt objects of S3
    Kms {
        /// Which cluster.
        #[command(flatten)]
        connection: Connection,
        /// What to do.
        #[command(subcommand)]
        command: KmsCommand,
    },
    /// Show masters, chunkservers, disks, chunks and repair
    Status(StatusArgs),
    /// Show which processes and disks are slow, not reached or out, and who says so
    Health(HealthArgs),
    /// Show how many bytes travel, and are stored, for each byte that programs write (C29)
    ///
    /// From the counters of all processes of a local cluster, or of those that --from names: stage by
    /// stage, since the processes started, or with --for in a time from now on. What a service had
    /// written before it was started again counts as written to files, unless --for is given; chunks
    /// count as they end.
    Amplification(AmplificationArgs),
    /// Have all that a chunkserver holds made elsewhere
    Drain {
        /// Which cluster.
        #[command(flatten)]
        connection: Connection,
        /// How.
        #[command(flatten)]
        args: DrainArgs,
    },
    /// Let a drained chunkserver leave for ever
    Decommission {
        /// Which cluster.
        #[command(flatten)]
        connection: Connection,
        /// How.
        #[command(flatten)]
        args: DecommissionArgs,
    },
    /// Do not repair what a chunkserver holds while it is away for a time
    Maintenance {
        /// Which cluster.
        #[command(flatten)]
        connection: Connection,
        /// How.
        #[command(flatten)]
        args: MaintenanceArgs,
    },
    /// Replace a chunkserver's disk
    Disk {
        /// Which cluster.
        #[command(flatten)]
        connection: Connection,
        /// What to do.
        #[command(subcommand)]
        command: DiskCommand,
    },
    /// Give what files hold already the form that their policies ask for
    Convert(ConvertArgs),
    /// Show how far stored bytes are verified, or begin with it
    Scrub {
        /// Which cluster.
        #[command(flatten)]
        connection: Connection,
        /// What to do.
        #[command(subcommand)]
        command: ScrubCommand,
    },
    /// Show or change whether chunks are moved until the disks are even
    Rebalance {
        /// Which cluster.
        #[command(flatten)]
        connection: Connection,
        /// How.
        #[command(flatten)]
        args: RebalanceArgs,
    },
    /// Show what operations did in which process, and what took them the time
    Trace(TraceArgs),
    /// Make a chunk store, or look into one that no process has open
    Store {
        /// What to do.
        #[command(subcommand)]
        command: StoreCommand,
    },
    /// Measure a cluster and what its disks and network could do at best
    Bench {
        /// Which cluster.
        #[command(flatten)]
        connection: Connection,
        /// What to measure.
        #[command(subcommand)]
        command: BenchCommand,
    },
    /// The simulator is a binary of its own
    #[command(hide = true, disable_help_flag = true)]
    Sim {
        /// What was asked of it.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        rest: Vec<String>,
    },
    /// Print a completion script for a shell
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

/// How programs of this machine reach the volumes of a new cluster.
#[derive(Args, Clone, Debug, Default)]
pub struct Nearby {
    /// The group, by name or number, whose users may connect to the front ends' Unix sockets
    /// [default: none, only the user who makes the cluster]
    #[arg(long, value_name = "GROUP")]
    pub nbd_group: Option<String>,
    /// Take NBD connections through the Unix sockets only, not over TCP on loopback, where every
    /// user of this machine can connect
    #[arg(long)]
    pub no_nbd_tcp: bool,
}

impl Nearby {
    /// True when any of it is asked for.
    pub fn is_given(&self) -> bool {
        self.nbd_group.is_some() || self.no_nbd_tcp
    }

    /// The number of the group.
    pub fn group(&self) -> Result<Option<u32>, Failure> {
        let group = self.nbd_group.as_deref().map(roles::config::group_id).transpose();
        group.map_err(Failure::usage)
    }
}

/// `craton up`.
#[derive(Args, Debug)]
pub struct UpArgs {
    /// Directory for metadata, and for data unless --store is given
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Directory or raw block device that holds data; give several on different disks for up to
    /// three copies
    #[arg(long = "store", value_name = "DIR")]
    pub stores: Vec<PathBuf>,
    /// Address for clients; a free port of 127.0.0.1 at the first start. With one that other
    /// machines reach they need the key: cluster.key in the directory
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<SocketAddr>,
    /// Make it without a key: every user of this machine can read, change and remove its data
    #[arg(long)]
    pub no_key: bool,
    /// How clients reach S3.
    #[command(flatten)]
    pub s3: S3Access,
    /// How this machine's programs reach volumes.
    #[command(flatten)]
    pub nearby: Nearby,
}

/// `craton cluster`.
#[derive(Subcommand, Debug)]
pub enum ClusterCommand {
    /// Make a cluster, or start a stopped one with its data; ends when a write would succeed
    Up(Box<ClusterUpArgs>),
    /// Show the processes
    Status {
        /// The cluster's directory.
        #[arg(long, env = "CRATON_CLUSTER")]
        dir: PathBuf,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Stop all processes; data and configuration stay
    Down {
        /// The cluster's directory.
        #[arg(long, env = "CRATON_CLUSTER")]
        dir: PathBuf,
    },
    /// Stop one process, where it runs, and start it again
    Restart {
        /// The cluster's directory.
        #[arg(long, env = "CRATON_CLUSTER")]
        dir: PathBuf,
        /// Its role.
        role: RoleName,
        /// Its ID, e.g. cs1.
        id: String,
    },
    /// Add a process of any role to a running cluster
    Add {
        /// The role.
        role: RoleName,
        /// The cluster's directory.
        #[arg(long, env = "CRATON_CLUSTER")]
        dir: PathBuf,
        /// Print one JSON object: the new process.
        #[arg(long)]
        json: bool,
    },
}

/// Roles that run as processes of their own.
#[derive(
    ValueEnum,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Debug,
    serde::Serialize,
    serde::Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum RoleName {
    /// A master.
    Master,
    /// A chunkserver.
    Chunkserver,
    /// A block manager.
    BlockManager,
    /// A block server.
    BlockServer,
    /// A front end.
    Frontend,
    /// An object manager.
    ObjectManager,
    /// An object server.
    ObjectServer,
    /// A gateway.
    Gateway,
}

/// `craton cluster up`.
#[derive(Args, Debug)]
pub struct ClusterUpArgs {
    /// The cluster's directory; made when it is missing
    #[arg(long)]
    pub dir: PathBuf,
    /// Masters: 1, 3 or 5 [default: 3]
    #[arg(long, value_parser = parse_masters)]
    pub masters: Option<u16>,
    /// Chunkservers, 1 to 100 [default: 6]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=100))]
    pub chunkservers: Option<u16>,
    /// Stores of each chunkserver, 1 to 16 [default: 1]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=16))]
    pub disks: Option<u16>,
    /// Partitions of the namespace service, 1 to 64 [default: 1]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub namespaces: Option<u16>,
    /// Partitions of the stream service, 1 to 64 [default: 1]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub streams: Option<u16>,
    /// Block servers, 0 to 16 [default: 2]
    #[arg(long, value_parser = clap::value_parser!(u16).range(0..=16))]
    pub block_servers: Option<u16>,
    /// Block managers, 0 to 5 [default: 1]
    #[arg(long, value_parser = clap::value_parser!(u16).range(0..=5))]
    pub block_managers: Option<u16>,
    /// NBD front ends, 0 to 16 [default: 1]
    #[arg(long, value_parser = clap::value_parser!(u16).range(0..=16))]
    pub frontends: Option<u16>,
    /// Object managers, 0 to 5 [default: 1, or 0 without object servers]
    #[arg(long, value_parser = clap::value_parser!(u16).range(0..=5))]
    pub object_managers: Option<u16>,
    /// Object servers, which share the objects, 0 to 16 [default: 2]
    #[arg(long, value_parser = clap::value_parser!(u16).range(0..=16))]
    pub object_servers: Option<u16>,
    /// Gateways of S3, 0 to 16 [default: 1, or 0 without object servers]
    #[arg(long, value_parser = clap::value_parser!(u16).range(0..=16))]
    pub gateways: Option<u16>,
    /// How clients reach S3, at the address that the gateways share.
    #[command(flatten)]
    pub s3: S3Access,
    /// Address where the front ends take NBD connections [default: 127.0.0.1]; with any other,
    /// --nbd-tls is needed
    #[arg(long, value_name = "IP", conflicts_with = "no_nbd_tcp")]
    pub nbd_listen: Option<std::net::IpAddr>,
    /// NBD through TLS with client certificates: a directory with server-cert.pem, server-key.pem
    /// and ca-cert.pem, whose authority signs the clients' certificates
    #[arg(long, value_name = "DIR", requires = "nbd_allow", conflicts_with = "no_nbd_tcp")]
    pub nbd_tls: Option<PathBuf>,
    /// Which certificates may open a volume, by the names in them; '*' stands for all volumes or
    /// all certificates. May be given several times
    #[arg(long, value_name = "VOLUME=NAME,...", value_parser = parse_allow, requires = "nbd_tls")]
    pub nbd_allow: Vec<(String, Vec<String>)>,
    /// Give the cluster a key, as is done unless --no-key is given: users without access to its
    /// directory needs --key-file
    #[arg(long)]
    pub with_key: bool,
    /// Make it without a key: every user of this machine can read, change and remove its data
    #[arg(long, conflicts_with = "with_key")]
    pub no_key: bool,
    /// How this machine's programs reach volumes.
    #[command(flatten)]
    pub nearby: Nearby,
    /// For tests only: obey requests that make disks fail
    #[arg(long)]
    pub allow_fault_injection: bool,
    /// Seconds to wait until a write would succeed
    #[arg(long, default_value_t = 60)]
    pub timeout: u64,
}

fn parse_allow(text: &str) -> Result<(String, Vec<String>), String> {
    let wrong = || format!("'{text}' is no VOLUME=NAME,...: such as data=alice,bob");
    let (volume, names) = text.split_once('=').ok_or_else(wrong)?;
    let names: Vec<String> = names.split(',').map(str::to_owned).collect();
    match volume.is_empty() || names.iter().any(String::is_empty) {
        true => Err(wrong()),
        false => Ok((volume.to_owned(), names)),
    }
}

fn parse_masters(text: &str) -> Result<u16, String> {
    match text.parse() {
        Ok(count @ (1 | 3 | 5)) => Ok(count),
        _ => Err("a cluster has 1, 3 or 5 masters".to_owned()),
    }
}

/// `craton master`, `craton chunkserver` and the other roles.
#[derive(Args, Debug)]
pub struct RoleArgs {
    /// The configuration, a TOML file
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Check the configuration and end
    #[arg(long)]
    pub check: bool,
    /// For tests only: obey requests that make disks fail
    #[arg(long)]
    pub allow_fault_injection: bool,
}

/// `craton trace`.
#[derive(Args, Debug)]
pub struct TraceArgs {
    /// Which cluster.
    #[command(flatten)]
    pub connection: Connection,
    /// A trace, as --trace, log lines and messages name it (trc_...), the ID of an S3 request
    /// (x-amz-request-id), or 'slow': the slowest operations of the last minutes
    #[arg(value_parser = parse_traced, value_name = "TRACE|slow")]
    pub what: Traced,
    /// Slow operations at most
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub limit: u32,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// What `craton trace` shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Traced {
    /// Slow operations.
    Slow,
    /// The operations of one trace.
    One(base::TraceId),
}

fn parse_traced(text: &str) -> Result<Traced, String> {
    if text == "slow" {
        return Ok(Traced::Slow);
    }
    // A request of S3 is its own trace: gateways answer with its 16 digits.
    let is_request = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_request && let Ok(raw) = u64::from_str_radix(text, 16) {
        return Ok(Traced::One(base::TraceId::new(raw)));
    }
    let trace = text.parse().map_err(|error: base::IdError| error.to_string())?;
    Ok(Traced::One(trace))
}

/// `craton fs`. Paths in the cluster start with '/'.
#[derive(Subcommand, Debug)]
pub enum FsCommand {
    /// Make directories
    Mkdir {
        /// Their paths.
        #[arg(required = true)]
        paths: Vec<String>,
        /// Make missing directories above too; fine when they exist
        #[arg(short, long)]
        parents: bool,
    },
    /// List a directory
    Ls {
        /// Its path.
        #[arg(default_value = "/")]
        path: String,
        /// Show type, mode, links, length and time
        #[arg(short, long)]
        long: bool,
        /// Print one JSON array.
        #[arg(long)]
        json: bool,
    },
    /// Copy into the cluster
    Put {
        /// A local file or directory; '-' is standard input.
        src: PathBuf,
        /// A path in the cluster; below it when it is a directory.
        dst: String,
        /// How.
        #[command(flatten)]
        copy: CopyArgs,
        /// rep1 to rep5: copies of each file, of which more than half are waited for; rep3-strict and
        /// the like: all [default: that of the directory, see 'fs policy', else up to rep3]
        #[arg(long, value_name = "POLICY")]
        redundancy: Option<Policy>,
    },
    /// Copy out of the cluster
    Get {
        /// A path in the cluster.
        src: String,
        /// A local path, below it when it is a directory; '-' is standard output.
        dst: PathBuf,
        /// How.
        #[command(flatten)]
        copy: CopyArgs,
    },
    /// Print a file
    Cat {
        /// Its path.
        path: String,
        /// First byte
        #[arg(long, default_value_t = 0)]
        offset: u64,
        /// Bytes at most
        #[arg(long)]
        length: Option<u64>,
    },
    /// Append a local file to a file, which is made when it is missing
    Append {
        /// A local file; '-' is standard input.
        src: PathBuf,
        /// A path in the cluster.
        path: String,
        /// Its policy, when the file is made, see 'fs put' [default: that of the directory]
        #[arg(long, value_name = "POLICY")]
        redundancy: Option<Policy>,
    },
    /// End the writer of a file that is gone, and fix the file's length
    Seal {
        /// Its path. A writer that lives after all is refused from then on.
        path: String,
        /// Where too few replicas of its open chunk are left to know its end, and the others are gone
        /// for good: end it with the longest that is left, and lose what was acknowledged behind it.
        /// Refused while a chunkserver that may have more could still come back.
        #[arg(long)]
        accept_loss: bool,
    },
    /// Show what a path is: attributes, chunks, replicas
    Stat {
        /// The path; a symbolic link is not followed.
        path: String,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Remove files and symbolic links
    Rm {
        /// Their paths.
        #[arg(required = true)]
        paths: Vec<String>,
        /// Remove directories with all that is in them
        #[arg(short, long)]
        recursive: bool,
        /// Missing paths are no error
        #[arg(short, long)]
        force: bool,
    },
    /// Rename, or move into a directory
    Mv {
        /// The path now.
        src: String,
        /// The path then.
        dst: String,
        /// Fail when it exists
        #[arg(short, long)]
        no_replace: bool,
    },
    /// Give a file another name
    Ln {
        /// The file, or with -s any text.
        target: String,
        /// The new name.
        path: String,
        /// Make a symbolic link
        #[arg(short, long)]
        symbolic: bool,
    },
    /// Show or set how many copies the files of a directory get
    #[command(subcommand)]
    Policy(PolicyCommand),
    /// Show space: capacity, use, what the files take
    Df {
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
}

/// How trees are copied.
#[derive(Args, Debug)]
pub struct CopyArgs {
    /// Copy directories with all that is in them
    #[arg(short, long)]
    pub recursive: bool,
    /// Files under way at once
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub parallel: u16,
    /// Show no progress
    #[arg(short, long)]
    pub quiet: bool,
}

/// KiB of an allocation unit.
fn parse_unit(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(unit @ 16..=16_384) if u32::is_power_of_two(unit) => Ok(unit),
        _ => Err("a power of two from 16 to 16384".to_owned()),
    }
}

/// `craton status`.
#[derive(Args, Debug)]
pub struct StatusArgs {
    /// Which cluster.
    #[command(flatten)]
    pub connection: Connection,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// `craton health`.
#[derive(Args, Debug)]
pub struct HealthArgs {
    /// Which cluster.
    #[command(flatten)]
    pub connection: Connection,
    /// Ask this process, too, which disks it finds slow: the metrics address of a front end, block
    /// server or block manager. May be repeated
    #[arg(long, value_name = "ADDRESS")]
    pub from: Vec<SocketAddr>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// `craton amplification`.
#[derive(Args, Debug)]
pub struct AmplificationArgs {
    /// Which cluster.
    #[command(flatten)]
    pub connection: Connection,
    /// The metrics address of a process, too: all of a cluster that is not on this machine, its
    /// masters, chunkservers, block servers, object managers, object servers and gateways
    #[arg(long, value_name = "ADDRESS")]
    pub from: Vec<SocketAddr>,
    /// Count for so long from now on, such as 30s or 10m, instead of since the start
    #[arg(long = "for", value_name = "TIME", value_parser = parse_time)]
    pub span: Option<Duration>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// `craton store`.
#[derive(Subcommand, Debug)]
pub enum StoreCommand {
    /// Verify every sector and all metadata
    Fsck {
        /// The store's directory, file or device.
        dir: PathBuf,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Make a store in an empty directory or of a raw block device, for a chunkserver's
    /// configuration to name; finishes a formatting that was broken off
    Format {
        /// The directory, e.g. /data/disk1, or the device, e.g. /dev/nvme1n1
        path: PathBuf,
        /// Allocation unit, KiB: 16 for many small files
        #[arg(long, default_value_t = 1024, value_parser = parse_unit)]
        unit_kib: u32,
        /// GiB that the store takes at most [default: of a device all; of a directory what its file
        /// system has, at least 1024]
        #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
        capacity_gib: Option<u64>,
        /// Also when a store lies there, or anything on a device: that is lost
        #[arg(long)]
        force: bool,
    },
    /// Print what is in it
    Dump {
        /// The store's directory, file or device.
        dir: PathBuf,
        /// Print sectors of one chunk, e.g. chk_7f
        #[arg(long)]
        chunk: Option<base::ChunkId>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_definitions_are_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn values_are_checked() {
        let list = ("data".to_owned(), vec!["alice".to_owned(), "a b".to_owned()]);
        assert_eq!(parse_allow("data=alice,a b"), Ok(list));
        assert!(["data", "=a", "data=", "data=a,,b"].iter().all(|text| parse_allow(text).is_err()));
        assert_eq!(parse_masters("3"), Ok(3));
        assert!(["0", "2", "4", "x"].iter().all(|text| parse_masters(text).is_err()));
    }
}
