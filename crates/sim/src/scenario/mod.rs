//! The scenarios, in one table.

mod append;
mod bad_client;
mod bad_disks;
mod block_managers;
mod blocked;
mod chase;
mod chase_losses;
mod chase_machine;
mod chase_tail;
mod coded;
mod conversions;
mod cut_off;
mod cuts;
mod deleted;
mod disks;
mod drain_storm;
mod drains;
mod echo;
mod entry;
mod files;
mod flapping;
mod full;
mod grey;
mod grey_master;
mod grey_server;
mod hedge;
mod hung_disk;
mod idle;
mod idlers;
mod late_open;
mod locks;
mod many_bad;
mod names;
mod nbd;
mod object_clients;
mod object_entries;
mod objects;
mod operator;
mod ownership_views;
mod policies;
pub(crate) mod policy;
mod readers;
mod record;
mod refused;
mod repair;
mod segments;
mod slow;
mod slow_disk;
mod snapshots;
pub mod stack;
mod stored;
mod table;
mod table_forks;
mod takeover;
mod volume_idle;
mod volume_policy;
mod volumes;

use chunkstore::flash::SyncMode;
use runtime::Duration;

use crate::cluster::Shape;
use crate::nemesis::{Faults, NONE};
use append::Plan;
use entry::{PARTITIONED, STORM, TWO_DISKS};
pub use entry::{Run, Scenario};

/// All scenarios.
pub const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "echo",
        about: "the runtime alone: two nodes, a connection, a file, a power cut",
        run: |sim| Box::pin(echo::run(sim)),
        marks: &["disk: torn write"],
    },
    Scenario {
        name: "append",
        about: "appends and reads on a healthy cluster",
        run: |sim| Box::pin(append::run(sim, Plan::default())),
        marks: &[
            "stream recovered",
            "writer: next chunk",
            "reader: end of an open tail",
            "reader: waits for the writer's word",
            "readers: border of chunks",
            "readers: far beyond the end",
            "readers: a file that was sealed just now",
            "short replica completed",
        ],
    },
    Scenario {
        name: "append-writers",
        about: "writers' hosts lose power; their tails are fenced, sealed and gone on with",
        run: |sim| Box::pin(append::run(sim, Plan { client_crashes: true, ..Plan::default() })),
        marks: &["stream recovered", "transport: silent peer"],
    },
    Scenario {
        name: "append-servers",
        about: "chunkservers crash, lose power and are stopped, one at a time",
        run: |sim| {
            let faults = Faults { server_crashes: true, ..NONE };
            Box::pin(append::run(sim, Plan { faults, client_crashes: true, ..Plan::default() }))
        },
        marks: &[
            "writer: replica failed",
            "stream recovered",
            "recovery without all votes",
            "chunkstore: fenced replica extended",
            "place fenced before its first byte",
            "nemesis: a chunkserver is stopped",
            "nemesis: a chunkserver crashes while it recovers",
            "chunk repaired",
            "chunk moved for balance",
        ],
    },
    Scenario {
        name: "append-policies",
        about: "as many copies and acknowledgements as there are, while chunkservers crash",
        run: |sim| {
            let faults = Faults { server_crashes: true, ..NONE };
            let shape = Shape { servers: 6, ..Shape::default() };
            let policies = append::ALL_COPIES;
            let plan = Plan { shape, faults, policies, client_crashes: true, ..Plan::default() };
            Box::pin(append::run(sim, plan))
        },
        marks: &[
            "writer: replica failed",
            "recovery without all votes",
            "short replica completed",
            "chunk repaired",
        ],
    },
    chase::SCENARIO,
    hung_disk::SCENARIO,
    slow_disk::SCENARIO,
    Scenario {
        name: "append-masters",
        about: "masters crash, lose power and are stopped, a minority at a time",
        run: |sim| {
            let faults = Faults { master_crashes: true, ..NONE };
            Box::pin(append::run(sim, Plan { faults, client_crashes: true, ..Plan::default() }))
        },
        marks: &[
            "stream recovered",
            "transport: silent peer",
            "nemesis: a master is stopped",
            "nemesis: a master crashes while it recovers",
        ],
    },
    Scenario {
        name: "append-network",
        about: "frames lost, late, doubled and overtaken, resets, one-way partitions",
        run: |sim| {
            let faults = Faults { bad_network: true, partitions: true, ..NONE };
            Box::pin(append::run(sim, Plan { faults, client_crashes: true, ..Plan::default() }))
        },
        marks: &[
            "net: connection reset",
            "transport: frame dropped",
            "chunkstore: repeat of a stored append",
            "recovery copies before the seal",
        ],
    },
    Scenario {
        name: "append-clocks",
        about: "clocks drift and are set, hosts pause, tokens expire early and late",
        run: |sim| {
            let faults = Faults { bad_clocks: true, master_crashes: true, ..NONE };
            Box::pin(append::run(sim, Plan { faults, client_crashes: true, ..Plan::default() }))
        },
        marks: &["writer: blocked", "transport: silent peer", "short replica completed"],
    },
    Scenario {
        name: "append-idle",
        about: "living writers idle for longer than their rights last, while chunkservers restart",
        run: |sim| {
            let faults = Faults { server_crashes: true, ..NONE };
            let (load, think) = (Duration::from_secs(100), Duration::from_secs(45));
            Box::pin(append::run(
                sim,
                Plan { faults, load, think, abandon: false, ..Plan::default() },
            ))
        },
        marks: &[
            "readers: length",
            "readers: far beyond the end",
            "reader: end of an open tail",
            "reader: waits for the writer's word",
            "writer: right renewed",
        ],
    },
    bad_disks::WIPE,
    bad_disks::ROT,
    bad_disks::FULL,
    drain_storm::SCENARIO,
    coded::APPEND,
    coded::SMALL_APPENDS,
    coded::CONVERT,
    coded::STORM,
    coded::ROT,
    coded::ERRS,
    coded::ROWS,
    Scenario {
        name: "append-blackout",
        about: "the whole cluster loses power at once and comes back",
        run: |sim| {
            let faults = Faults { blackouts: true, ..NONE };
            Box::pin(append::run(sim, Plan { faults, client_crashes: true, ..Plan::default() }))
        },
        marks: &[
            "disk: torn write",
            "chunk repaired",
            "writer: replica failed",
            "chunkserver: a right of a master that is not known yet",
        ],
    },
    Scenario {
        name: "append-cuts",
        about: "clients are cut from chunkservers and masters that reach each other, by direction",
        run: |sim| {
            let faults = Faults { client_cuts: true, ..NONE };
            let load = Duration::from_secs(24);
            Box::pin(append::run(
                sim,
                Plan { faults, load, client_crashes: true, ..Plan::default() },
            ))
        },
        marks: &[
            "cut: a client from a chunkserver",
            "cut: requests to a chunkserver are lost",
            "cut: answers of a chunkserver are lost",
            "cut: a client reaches masters only",
            "cut: a client reaches no master",
            "cut: answers of masters are lost",
            "cut: clients from a chunkserver that peers reach",
            "cut: clients from a leading master that peers reach",
            "writer: replica failed",
        ],
    },
    Scenario {
        name: "append-errors",
        about: "writes, syncs, reads and names of a disk fail, once or for a while; two disks a server",
        run: |sim| {
            let faults = Faults { io_errors: true, ..NONE };
            let sync = sim.with_rng(|rng| *rng.pick(&[SyncMode::PerWrite, SyncMode::Group]));
            let shape = Shape { sync, ..TWO_DISKS() };
            let plan = Plan { shape, faults, ..Plan::default() };
            Box::pin(append::run(sim, Plan { client_crashes: true, ..plan }))
        },
        marks: &[
            "disk: a write fails",
            "disk: a sync fails",
            "disk: a read fails",
            "disk: an operation on a name fails",
            "cluster: servers of more than one lane",
            "nemesis: a store has failed",
            "nemesis: a server starts on disks without room",
        ],
    },
    Scenario {
        name: "append-master-disks",
        about: "a master's disk answers with errors or is full; its process starts again",
        run: |sim| {
            let faults = Faults { master_disks: true, ..NONE };
            Box::pin(append::run(sim, Plan { faults, client_crashes: true, ..Plan::default() }))
        },
        marks: &[
            "disk: a write fails",
            "disk: an operation on a name fails",
            "chunkstore: a refused write is tried again",
        ],
    },
    Scenario {
        name: "append-members",
        about: "a master comes back without its disk and takes no part; masters are replaced",
        run: |sim| {
            let faults = Faults { lost_masters: true, ..NONE };
            Box::pin(append::run(sim, Plan { faults, client_crashes: true, ..Plan::default() }))
        },
        marks: &[
            "nemesis: a master without its disk takes no part",
            "nemesis: a master is replaced",
            "nemesis: a healthy master is replaced",
            "raft: snapshot received",
        ],
    },
    Scenario {
        name: "append-growth",
        about: "the masters grow from three to five and shrink again, while they crash",
        run: |sim| {
            let shape = Shape { spare_masters: 2, ..Shape::default() };
            let faults = Faults { changing_masters: true, server_crashes: true, ..NONE };
            let plan = Plan { shape, faults, load: Duration::from_secs(24), ..Plan::default() };
            Box::pin(append::run(sim, Plan { client_crashes: true, ..plan }))
        },
        marks: &[
            "nemesis: five masters",
            "nemesis: a master crashes while another is added",
            "nemesis: a master crashes while another is removed",
            "nemesis: two of five masters lose power",
            "nemesis: an added master leads",
            "nemesis: a founding master is removed",
            "nemesis: three masters again",
            "raft: snapshot received",
        ],
    },
    Scenario {
        name: "append-master-rot",
        about: "a master's disk rots and loses writes; an operator replaces it",
        run: |sim| {
            let faults = Faults { rotten_masters: true, ..NONE };
            Box::pin(append::run(sim, Plan { faults, client_crashes: true, ..Plan::default() }))
        },
        marks: &[
            "disk: lost write",
            "nemesis: a rotten master serves",
            "nemesis: a rotten master is replaced",
        ],
    },
    Scenario {
        name: "append-absent",
        about: "a disk is not there at one start of its server, and back later or at the next",
        run: |sim| {
            let faults = Faults { absent_disks: true, ..NONE };
            let load = Duration::from_secs(40);
            let think = Duration::from_millis(500);
            let plan = Plan { shape: TWO_DISKS(), faults, load, think, ..Plan::default() };
            Box::pin(append::run(sim, plan))
        },
        marks: &[
            "nemesis: a disk is back at a start",
            "nemesis: a disk is back while its server runs",
            "chunk repaired",
        ],
    },
    Scenario {
        name: "append-latent",
        about: "sectors of a server cannot be read while another server is down",
        run: |sim| {
            let faults = Faults { latent_errors: true, ..NONE };
            let load = Duration::from_secs(40);
            let think = Duration::from_millis(500);
            Box::pin(append::run(sim, Plan { faults, load, think, ..Plan::default() }))
        },
        marks: &[
            "nemesis: latent errors beside a dead server",
            "chunkstore: unreadable sectors",
            "chunk repaired",
        ],
    },
    Scenario {
        name: "append-storm",
        about: "crashes, partitions, a bad network, slow disks, pauses, drift, all at once",
        run: |sim| {
            let plan = Plan { faults: STORM, client_crashes: true, ..Plan::default() };
            Box::pin(append::run(sim, plan))
        },
        marks: &[
            "net: connection reset",
            "readers: far beyond the end",
            "readers: a file that was sealed just now",
            "chunkstore: first rows",
            "writer: replica failed",
            "recovery without all votes",
            "short replica completed",
            "cut: a client from a chunkserver",
            "cut: answers of a chunkserver are lost",
            "cut: a client reaches masters only",
            "cut: a client reaches no master",
            "cut: clients from a leading master that peers reach",
            "numbers: a chunkserver above 2^31",
            "numbers: a file above 2^32",
            "numbers: a chunk above 2^32",
            "numbers: a writer's epoch above 2^32",
            "numbers: a writer's epoch above 2^63",
        ],
    },
    Scenario {
        name: "append-partitions",
        about: "a storm over four namespace and four stream partitions",
        run: |sim| {
            let plan = Plan {
                shape: PARTITIONED(),
                faults: STORM,
                client_crashes: true,
                // Eight groups cost: 200 seeds are to end within five minutes.
                load: Duration::from_secs(9),
                ..Plan::default()
            };
            Box::pin(append::run(sim, plan))
        },
        marks: &[
            "net: connection reset",
            "recovery without all votes",
            "recovery copies before the seal",
        ],
    },
    chase_losses::SECOND,
    chase_losses::ROT_TAIL,
    blocked::SCENARIO,
    blocked::FEW,
    chase_tail::SCENARIO,
    chase_machine::SCENARIO,
    Scenario {
        name: "chase-three",
        about: "of three servers one never saw a chunk's creation, another one dies with the writer",
        run: |sim| Box::pin(repair::run(sim, repair::Loss::Three)),
        marks: &[
            "recovery copies before the seal",
            "repair: leader dies while a tombstone is filled",
        ],
    },
    Scenario {
        name: "repair-latent",
        about: "unreadable sectors on two replicas of each chunk while the third's server is dead",
        run: |sim| Box::pin(repair::run(sim, repair::Loss::Latent)),
        marks: &[
            "copy goes on from another source",
            "copy collects a cell from several sources",
            "chunk repaired",
            "bad replica found",
        ],
    },
    Scenario {
        name: "repair-quiet",
        about: "a writer vanishes and no reader asks for its file: the tail is sealed",
        run: |sim| Box::pin(repair::run(sim, repair::Loss::Quiet)),
        marks: &["abandoned chunk sealed"],
    },
    Scenario {
        name: "repair-short",
        about: "chunks opened while servers are down get all copies, writers idle or not",
        run: |sim| Box::pin(repair::run(sim, repair::Loss::Short)),
        marks: &["chunk repaired"],
    },
    Scenario {
        name: "takeover",
        about: "writers take files from each other and go on; chunkservers crash",
        run: |sim| {
            let faults =
                Faults { server_crashes: true, bad_network: true, client_cuts: true, ..NONE };
            Box::pin(takeover::run(sim, faults))
        },
        marks: &[
            "cut: a client from a chunkserver",
            "cut: requests to a chunkserver are lost",
            "cut: answers of a chunkserver are lost",
            "cut: a client reaches no master",
            "cut: clients from a chunkserver that peers reach",
            "readers: far beyond the end",
            "readers: a file that was sealed just now",
            "stream recovered",
            "recovery without all votes",
            "recovery copies before the seal",
            "chunkstore: fenced replica extended",
            "numbers: a chunk above 2^32",
            "numbers: a writer's epoch above 2^32",
            "numbers: a writer's epoch above 2^63",
        ],
    },
    Scenario {
        name: "late-open",
        about: "openings and seals come late, of clients that are gone, beside a writer that lives",
        run: |sim| Box::pin(late_open::run(sim)),
        marks: &[
            "late-open: a request of a client that is gone",
            "late-open: a leader dies",
            "late-open: both were opened",
        ],
    },
    idle::IDLE,
    Scenario {
        name: "hedge",
        about: "reads while one of five disks takes fifty times as long",
        run: |sim| Box::pin(hedge::run(sim)),
        marks: &[
            "reader: backup read",
            "reader: backup read won",
            "reader: no token for a backup read",
            "chunkserver: read of a caller that has gone",
        ],
    },
    Scenario {
        name: "flapping",
        about: "one of five servers is slow or does not answer for a while, or now and then",
        run: |sim| Box::pin(flapping::run(sim)),
        marks: &[
            "lists: a disk is listed",
            "lists: a disk is good again",
            "lists: this process stood still",
            "flapping: taken back",
            "flapping: slow for a while",
            "flapping: few reads",
            "flapping: slow now and then",
            "flapping: a server was grey",
            "flapping: a server stood still",
            "flapping: a client stood still",
        ],
    },
    Scenario {
        name: "names",
        about: "creates, links, renames and removals across four partitions, linearizable",
        run: |sim| {
            let faults = Faults {
                master_crashes: true,
                bad_network: true,
                partitions: true,
                master_cuts: true,
                ..NONE
            };
            Box::pin(names::run(sim, PARTITIONED(), faults))
        },
        marks: &[
            "net: connection reset",
            "namespace: a change waits for an intent",
            "names: a directory is removed",
            "names: a directory with a name stays",
            "cut: a client reaches no master",
            "cut: answers of masters are lost",
            "cut: clients from a leading master that peers reach",
        ],
    },
    Scenario {
        name: "policies",
        about: "policies of directories and files are set, inherited and moved, linearizable",
        run: |sim| Box::pin(policies::run(sim, PARTITIONED())),
        marks: &[
            "net: connection reset",
            "policies: a directory moves",
            "chunkstore: blocks of a row read alone",
        ],
    },
    Scenario {
        name: "locks",
        about: "leases and fencing tokens under crashes of masters, drift and a bad network",
        run: |sim| {
            let faults = Faults {
                master_crashes: true,
                bad_network: true,
                bad_clocks: true,
                master_cuts: true,
                ..NONE
            };
            Box::pin(locks::run(sim, Shape { servers: 3, ..Shape::default() }, faults))
        },
        marks: &[
            "net: connection reset",
            "transport: silent peer",
            "cut: a client reaches no master",
            "cut: answers of masters are lost",
            "cut: clients from a leading master that peers reach",
            "numbers: a fencing token above 2^32",
        ],
    },
    Scenario {
        name: "block-managers",
        about: "block managers and servers crash, are cut off and drift; who owns a segment",
        run: |sim| Box::pin(block_managers::run(sim)),
        marks: &[
            "block manager: leads",
            "block server: segment open",
            "block: a new owner waits for a lease",
            "block-managers: a manager is stopped",
            "block-managers: a block server is stopped",
            "block-managers: links to the next leader are dead",
            "block-managers: nothing reaches the leading manager",
            "block-managers: two users do not reach the leading manager",
            "block manager: one that is cut off leads no more",
            "net: connection reset",
            "numbers: a fencing token above 2^32",
            "numbers: a segment's epoch above 2^32",
        ],
    },
    Scenario {
        name: "table",
        about: "tables taken over by rivals while chunkservers crash and masters fail over",
        run: |sim| {
            let faults = Faults { server_crashes: true, master_crashes: true, ..NONE };
            Box::pin(table::run(sim, table::Plan { faults, ..table::Plan::default() }))
        },
        marks: &["table: memtable flushed", "table: runs merged", "table: orphan collected"],
    },
    Scenario {
        name: "table-forks",
        about: "tables forked and taken over while chunkservers crash and masters fail over",
        run: |sim| Box::pin(table_forks::run(sim)),
        marks: &["table: forked", "table-forks: given up"],
    },
    Scenario {
        name: "segments",
        about: "segments of volumes taken over by rivals while chunkservers and masters crash",
        run: |sim| {
            let faults = Faults { server_crashes: true, master_crashes: true, ..NONE };
            Box::pin(segments::run(sim, segments::Plan { faults, ..segments::Plan::default() }))
        },
        marks: &[
            "segment: next DataFile",
            "segment: checkpoint",
            "segment: orphan removed",
            "segment: DataFile collected",
            "segment: output in a code",
            "segment: short read of an open DataFile",
        ],
    },
    Scenario {
        name: "snapshots",
        about: "snapshots, clones and a rollback while block managers and servers crash",
        run: |sim| Box::pin(snapshots::run(sim)),
        marks: &[
            "segment: cut",
            "segment: cut linked",
            "block manager: a cut failed",
            "block manager: snapshot committed",
            "block manager: snapshot given up",
            "block manager: snapshot made",
            "block manager: clone made",
            "block manager: rolled back",
            "segment: linked by its first opening",
            "segment: DataFile collected",
            "block: direct read of written blocks",
            "snapshots: a deleted clone came back",
            "stored: a snapshot is whole",
            "stored: a volume is whole",
            "cluster: several partitions",
            "namespace: a change waits for an intent",
            "numbers: a segment's epoch above 2^32",
            "numbers: an attachment above 2^31",
        ],
    },
    Scenario {
        name: "disks",
        about: "volumes over NBD on the whole stack, where everything fails, until the power is cut",
        run: |sim| Box::pin(disks::run(sim, disks::Harm::Everything)),
        marks: &[
            "segment: DataFile collected",
            "segment: output in a code",
            "disks: a segment has moved",
            "block server: left",
            "block: change came again",
            "segment: a change has happened before",
            "block: direct read of written blocks",
            "block: attachment lost",
            "disks: power is cut amid changes",
            "cuts: a snapshot amid faults",
            "operator: limits are set",
            "operator: a volume grows",
            "operator: a volume is cut",
            "operator: a deleted volume came back",
            "stored: a snapshot is whole",
            "stored: a volume is whole",
            "block: request waits for its volume's bound",
        ],
    },
    Scenario {
        name: "deleted",
        about: "deleted volumes come back, and go in their time, while managers' calendars are set",
        run: |sim| Box::pin(deleted::run(sim)),
        marks: &[
            "deleted: a manager's calendar is set",
            "deleted: a volume came back",
            "deleted: refusals change nothing",
            "deleted: what is cut off is gone",
            "deleted: what is cut off is read until its files are gone",
            "deleted: a volume came back on a cluster with little room",
            "deleted: the time of a volume was over",
            "stored: a snapshot is whole",
            "stored: a volume is whole",
            "block manager: deleted volume goes early",
        ],
    },
    Scenario {
        name: "full",
        about: "volumes fill the cluster; what makes room again is done, while servers crash",
        run: |sim| Box::pin(full::run(sim)),
        marks: &[
            "full: media have less room than stores",
            "full: one segment stood still alone",
            "slow: a request stands at a gate",
            "full: a write is refused",
            "full: blocks are trimmed",
            "full: volumes are removed",
            "segment: a write is refused on a full cluster",
        ],
    },
    Scenario {
        name: "grey-block",
        about: "block servers that hear nothing, while their heartbeats come, under requests",
        run: |sim| Box::pin(grey::run(sim)),
        marks: &[
            "grey-block: segments leave a grey server",
            "block: request leaves an owner that has lost the segment",
        ],
    },
    Scenario {
        name: "volume-policy",
        about: "a volume's policy is set under writes, while owners and managers die",
        run: |sim| Box::pin(volume_policy::run(sim)),
        marks: volume_policy::MARKS,
    },
    volume_idle::SCENARIO,
    grey_server::SCENARIO,
    object_entries::OBJECTS,
    object_entries::RACES,
    object_entries::VERSIONS,
    object_entries::KEYS_AND_SETTINGS,
    object_entries::DAYS,
    object_entries::COLLECT,
    object_entries::GATEWAYS_DIE,
    object_entries::RANGES_SPLIT,
    bad_client::SCENARIO,
    many_bad::SCENARIO,
    grey_master::SCENARIO,
    Scenario {
        name: "disks-cuts",
        about: "volumes over NBD on the whole stack, whose hosts are cut off from each other",
        run: |sim| Box::pin(disks::run(sim, disks::Harm::Cuts)),
        marks: &[
            "cut: a block server from masters",
            "cut: a block server from chunkservers",
            "cut: a block server from managers",
            "cut: a block server from a front end",
            "cut: a front end from masters",
            "cut: a front end from managers",
            "cut: a front end from chunkservers",
            "block: direct read of written blocks",
            "cut: requests are lost",
            "cut: answers are lost",
            "cut: a block manager that masters reach",
            "cut: a block server from all front ends",
            "disks: a segment has moved",
            "block: change came again",
            "block: attachment lost",
            "disks: power is cut amid changes",
            "cuts: a snapshot amid faults",
            "operator: limits are set",
            "operator: a volume grows",
            "operator: a volume is cut",
            "operator: an open volume is not cut",
            "operator: a deleted volume came back",
            "stored: a snapshot is whole",
            "stored: a volume is whole",
        ],
    },
    Scenario {
        name: "volumes",
        about: "volumes' clients while segments move between block servers that crash",
        run: |sim| Box::pin(volumes::run(sim)),
        marks: &[
            "block: change came again",
            "volumes: answers are lost while a segment moves",
            "volumes: a burst of large reads",
            "block: change came late",
            "block: no such session",
            "block: attachment fenced",
            "block: attachment is over",
            "block: acknowledgement held back",
            "block: segment is gone",
            "block: request given up",
            "block: read confirmed by the core",
            "block: change acknowledged without a lease",
            "block: direct read",
            "block: read left to the server",
            "block: read by a place that was known",
            "block: waits for a location lease",
        ],
    },
];

/// The scenario of a name.
pub fn find(name: &str) -> Option<&'static Scenario> {
    SCENARIOS.iter().find(|scenario| scenario.name == name)
}
