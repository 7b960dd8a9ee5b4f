//! The command line of `craton volume`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use wire::control::Policy;

use crate::sizes::parse_size;

/// `craton volume`.
#[derive(Subcommand, Debug)]
pub enum VolumeCommand {
    /// Make a volume; ends when its export can be opened
    Create {
        /// Its name.
        name: String,
        /// What it is like.
        #[command(flatten)]
        volume: CreateArgs,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// List the volumes
    Ls {
        /// List deleted volumes: 'volume undelete' brings them back
        #[arg(long)]
        deleted: bool,
        /// Print one JSON array.
        #[arg(long)]
        json: bool,
    },
    /// Compare a volume's map with what is stored: every block is read and verified, DataFiles that
    /// are missing or that nothing names are reported; fails when something is wrong
    Check {
        /// Its name.
        name: String,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Show a volume, its segments and the servers that have them
    Info {
        /// Its name.
        name: String,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Change what a volume may do; takes effect within two seconds, also where it is open
    Set {
        /// Its name.
        name: String,
        /// The limits that change.
        #[command(flatten)]
        limits: LimitArgs,
        /// May be open with several holders at once (see 'volume create --help')
        #[arg(long, value_name = "BOOL")]
        shared: Option<bool>,
        /// How it is stored from now on, as 'volume create' takes it. What is stored already follows as it
        /// is collected: soon, where it takes much more room than the new policy's form
        #[arg(long, value_name = "POLICY")]
        policy: Option<Policy>,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Change a volume's length
    Resize {
        /// Its name.
        name: String,
        /// Its new length
        #[arg(long, value_parser = parse_size)]
        size: usize,
        /// Cut data off when it gets shorter
        #[arg(long)]
        force: bool,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Copy a disk image into a volume, which is made when it is missing
    ///
    /// Blocks of zeroes take no room. Raw images are copied here; qcow2, vmdk, vdi and vhdx by
    /// qemu-img. What the volume has behind the image's end stays.
    Import {
        /// The volume's name.
        name: String,
        /// The image, or a block device; '-' is standard input (raw).
        file: PathBuf,
        /// How.
        #[command(flatten)]
        copy: ImageArgs,
        /// Length of the volume, when it is made [default: the image's]
        #[arg(long, value_parser = parse_size)]
        size: Option<usize>,
        /// Its policy, when it is made, as 'volume create' takes it [default: up to rep3, as the cluster
        /// has servers]
        #[arg(long, value_name = "POLICY")]
        policy: Option<Policy>,
    },
    /// Copy a volume into a disk image
    ///
    /// Holes of the volume become holes of the file.
    Export {
        /// The volume's name.
        name: String,
        /// The image; '-' is standard output (raw).
        file: PathBuf,
        /// How.
        #[command(flatten)]
        copy: ImageArgs,
        /// Replace a file that is there
        #[arg(short, long)]
        force: bool,
    },
    /// Write to a file what a snapshot has that an older one has not
    ///
    /// Found by the snapshots' indexes: only what has changed is read. Without an older one the
    /// file has all. 'import-diff' brings a volume forward by it.
    ExportDiff {
        /// The snapshot.
        #[arg(value_name = "VOLUME@SNAPSHOT")]
        snapshot: String,
        /// The file; '-' is standard output.
        file: PathBuf,
        /// Name of an older snapshot of the volume [default: none, all is written]
        #[arg(long, visible_alias = "from-snap", value_name = "SNAPSHOT")]
        since: Option<String>,
        /// Replace a file that is there
        #[arg(short, long)]
        force: bool,
        /// How.
        #[command(flatten)]
        copy: DiffArgs,
    },
    /// Bring a volume from the snapshot that a difference stands on to the one it leads to
    ///
    /// The volume has the former, nothing was written to it since, and it gets the latter. A file
    /// that has all makes a new volume.
    ImportDiff {
        /// The volume's name.
        name: String,
        /// The file, which is verified before anything is changed; '-' is standard input, which
        /// is verified as it comes.
        file: PathBuf,
        /// Its policy, when it is made, as 'volume create' takes it [default: up to rep3, as the cluster
        /// has servers]
        #[arg(long, value_name = "POLICY")]
        policy: Option<Policy>,
        /// How.
        #[command(flatten)]
        copy: DiffArgs,
    },
    /// Make a block device of a volume on this host; prints the device
    ///
    /// By nbd-client where the kernel has NBD devices, otherwise by nbdfuse and a loop device.
    /// Needs root. The device is dead when the front end dies.
    Attach {
        /// The volume's name.
        name: String,
        /// How.
        #[command(flatten)]
        how: AttachArgs,
    },
    /// Undo what attach has done
    Detach {
        /// The volume's name, or the device.
        what: String,
        /// Where attach keeps its notes.
        #[arg(long, value_name = "DIR", default_value = RUN_DIR, env = "CRATON_RUN_DIR")]
        run_dir: PathBuf,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Make, list and remove snapshots of a volume, and go back to one
    #[command(subcommand)]
    Snapshot(SnapshotCommand),
    /// Make a volume with the content of a snapshot
    ///
    /// Both share their files; what one writes the other never sees.
    Clone {
        /// The snapshot.
        #[arg(value_name = "VOLUME@SNAPSHOT")]
        snapshot: String,
        /// Name of the new volume.
        name: String,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Copy what a clone shares with others; ends when it shares nothing
    Flatten {
        /// The clone's name.
        name: String,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Bring a deleted volume back, with its snapshots
    ///
    /// Its data is there for as long as 'volume ls --deleted' says.
    Undelete {
        /// The name that it had, or its ID.
        #[arg(value_name = "NAME|ID")]
        what: String,
        /// Its name from now on [default: the one that it had]
        #[arg(long = "as", value_name = "NAME")]
        name: Option<String>,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Remove volumes; their data is kept for a while, in which 'volume undelete' brings them back
    Rm {
        /// Their names; with --now also names and IDs of deleted volumes.
        #[arg(required = true)]
        names: Vec<String>,
        /// Also those that are open, and missing ones are no error
        #[arg(short, long)]
        force: bool,
        /// Also those that have snapshots, with these
        #[arg(long)]
        snapshots: bool,
        /// Keep nothing: the data goes at once, also of volumes that were deleted before
        #[arg(long)]
        now: bool,
        /// Print one JSON array of what was removed.
        #[arg(long)]
        json: bool,
    },
}

/// `craton volume snapshot`.
#[derive(Subcommand, Debug)]
pub enum SnapshotCommand {
    /// Make a snapshot; writes wait for some milliseconds
    ///
    /// It has all that was answered before, over the whole volume. It can be opened, read only, as
    /// VOLUME@NAME.
    Create {
        /// The volume's name.
        volume: String,
        /// The snapshot's name.
        name: String,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// List the snapshots of a volume, the oldest first
    Ls {
        /// The volume's name.
        volume: String,
        /// Print one JSON array.
        #[arg(long)]
        json: bool,
    },
    /// Remove snapshots
    Rm {
        /// The volume's name.
        volume: String,
        /// The snapshots' names.
        #[arg(required = true)]
        names: Vec<String>,
        /// Also those that are open or have clones, which keep their data
        #[arg(short, long)]
        force: bool,
        /// Print one JSON array of what was removed.
        #[arg(long)]
        json: bool,
    },
    /// Give a volume the content of a snapshot again; what came later is lost
    ///
    /// No client may have the volume open. Its snapshots stay.
    Rollback {
        /// The volume's name.
        volume: String,
        /// The snapshot's name.
        name: String,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
}

/// Where notes of what is attached lie, until the host restarts. Not below `/run/craton`, which
/// belongs to the user of the front end's unit: what notes say is done as root.
const RUN_DIR: &str = "/run/craton-attach";

/// How a volume is attached.
#[derive(Args, Debug)]
pub struct AttachArgs {
    /// Only print the commands that would be run
    #[arg(long)]
    pub print: bool,
    /// Where notes of what is attached are kept
    #[arg(long, value_name = "DIR", default_value = RUN_DIR, env = "CRATON_RUN_DIR")]
    pub run_dir: PathBuf,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// How images are copied.
#[derive(Args, Debug)]
pub struct ImageArgs {
    /// The image's format: raw, qcow2, vmdk, vdi or vhdx [default: what an image to import begins
    /// with, what the name of one to export ends with]
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<Format>,
    /// Requests under way at once
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub parallel: u16,
    /// Show no progress
    #[arg(short, long)]
    pub quiet: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// How differences of snapshots are copied.
#[derive(Args, Debug)]
pub struct DiffArgs {
    /// Requests under way at once
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub parallel: u16,
    /// Print nothing when it is done
    #[arg(short, long)]
    pub quiet: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// A format of disk images.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// Byte by byte.
    Raw,
    /// QEMU's.
    Qcow2,
    /// VMware's.
    Vmdk,
    /// VirtualBox's.
    Vdi,
    /// Hyper-V's.
    Vhdx,
}

/// What a new volume is like.
#[derive(Args, Debug)]
pub struct CreateArgs {
    /// Its length, such as 100GiB; space is taken as it is written
    #[arg(long, value_parser = parse_size)]
    pub size: usize,
    /// rep1 to rep5: copies, of which more than half are waited for; rep3-strict and the like: all.
    /// ec4+2 and the like: an erasure code [default: up to rep3, as the cluster has servers]
    ///
    /// With a code what is written goes to as many copies as survive the losses that the code
    /// survives, three at most: rep3 for ec4+2 and ec8+3. Garbage collection rewrites it in the code
    /// later, packed with LZ4 where that saves an eighth, so that most of the volume takes 1.5 bytes
    /// for each, or less, and not 3. It goes on until less than a fifth of the volume's room could be
    /// gained.
    #[arg(long, value_name = "POLICY")]
    pub policy: Option<Policy>,
    /// Bytes of a data sector: what one segment has before the next one's turn
    #[arg(long, value_parser = parse_size, default_value = "128KiB")]
    pub sector_size: usize,
    /// Segments of a group, each of which another server may have
    #[arg(long, default_value_t = 4)]
    pub segments: u32,
    /// Bytes of a segment group
    #[arg(long, value_parser = parse_size, default_value = "128GiB")]
    pub group_size: usize,
    /// May be open with several holders at once
    ///
    /// A front end is one holder, with all its NBD clients, which see each other's writes; so is a
    /// program with libcraton, or a command such as 'volume import'. Without this flag, others are
    /// refused while one has the volume open, with its name.
    #[arg(long)]
    pub shared: bool,
    /// What it may do.
    #[command(flatten)]
    pub limits: LimitArgs,
}

/// What a volume may do, a second (B12).
#[derive(Args, Debug, Default)]
pub struct LimitArgs {
    /// Requests a second that are promised: they go first when servers are busy; 0: none
    #[arg(long)]
    pub iops_base: Option<u64>,
    /// Requests a second at most; 0: no bound
    #[arg(long)]
    pub iops_burst: Option<u64>,
    /// MB (10^6 bytes) a second that are promised; 0: none
    #[arg(long)]
    pub mbps_base: Option<u64>,
    /// MB (10^6 bytes) a second at most; 0: no bound
    #[arg(long)]
    pub mbps_burst: Option<u64>,
}
