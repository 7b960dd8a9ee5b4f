//! `craton status`: the state of the cluster, from all masters.

mod objects;

use std::collections::BTreeMap;
use std::time::Duration;

use base::ServerId;
use block_proto::{BlockPeer, BlockRole, BlockServerStatus, BlockStatus, Managers};
use client::Client;
use serde::Serialize;
use wire::control::{ClusterStatus, DiskReport, Group, ServerStatus, StoppedCollection};

use self::objects::Objects;
use crate::args::StatusArgs;
use crate::connect::with_client_as;
use crate::exit::{Done, Failure};
use crate::output::{bytes, counted, natural, print_json, print_line, print_table, table};

/// Timeout of the masters' answers: several elections.
const TIMEOUT: Duration = Duration::from_secs(5);

/// State of the cluster.
#[derive(Serialize, Clone, Debug)]
pub struct Picture {
    /// The cluster's identity.
    pub cluster: String,
    /// Masters, by number.
    pub masters: Vec<Master>,
    /// Chunkservers, by name.
    pub chunkservers: Vec<Chunkserver>,
    /// The block service: `up`, `down` when no block manager leads, `none` in a cluster that never
    /// had one, `unknown` when the masters do not say.
    pub block_service: &'static str,
    /// Block managers, by name, as the leading one has heard of them; none when none leads.
    pub block_managers: Vec<BlockManager>,
    /// Block servers, by name.
    pub block_servers: Vec<BlockServer>,
    /// Front ends, by name.
    pub frontends: Vec<Frontend>,
    /// The object service.
    #[serde(flatten)]
    pub objects: Objects,
    /// Chunks of all stream partitions that have a leader.
    pub chunks: Chunks,
    /// Repair.
    pub repair: Repair,
    /// Disks whose collection has stopped: they hold more replicas that no file refers to than
    /// are deleted unasked.
    pub stopped: Vec<Stopped>,
    /// An operator has chunks stay where they are.
    pub balance_paused: bool,
    /// Names.
    pub names: Names,
    /// Bytes.
    pub bytes: Bytes,
}

/// A master.
#[derive(Serialize, Clone, Debug)]
pub struct Master {
    /// Its ID.
    pub id: String,
    /// Its address.
    pub addr: String,
    /// `up` or `down`.
    pub state: &'static str,
    /// Groups that it leads.
    pub leads: Vec<String>,
}

/// A chunkserver.
#[derive(Serialize, Clone, Debug)]
pub struct Chunkserver {
    /// Its ID.
    pub id: String,
    /// Its address.
    pub addr: String,
    /// `up`, `draining` while it is emptied, `unreached` while its heartbeats come and masters do not
    /// reach it, or `down`.
    pub state: &'static str,
    /// Its failure domain.
    pub domain: String,
    /// Bytes that its healthy disks can take.
    pub capacity_bytes: u64,
    /// Bytes in use on them.
    pub used_bytes: u64,
    /// Its disks.
    pub disks: Vec<Disk>,
    /// What it holds yet, while it drains.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub draining: Option<Draining>,
    /// Seconds for which its maintenance lasts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub maintenance_s: Option<u64>,
}

/// What a chunkserver that drains holds yet, as of the last looks of stream partitions.
#[derive(Serialize, Clone, Copy, Debug, Default)]
pub struct Draining {
    /// Replicas.
    pub replicas: u64,
    /// Of them, of chunks that are written.
    pub open: u64,
    /// Bytes of the others.
    pub bytes: u64,
    /// All stream partitions have counted: else there may be more.
    pub counted: bool,
}

/// A block manager.
#[derive(Serialize, Clone, Debug)]
pub struct BlockManager {
    /// Its ID.
    pub id: String,
    /// Its address.
    pub addr: String,
    /// `up` or `down`.
    pub state: &'static str,
    /// True for the one that leads.
    pub leader: bool,
}

/// A block server.
#[derive(Serialize, Clone, Debug)]
pub struct BlockServer {
    /// Its ID.
    pub id: String,
    /// Its address.
    pub addr: String,
    /// `up`, `leaving` while it hands its segments over, `unreached` while its heartbeats come and
    /// others do not reach it, or `down`.
    pub state: &'static str,
    /// Segments that it owns.
    pub segments: u32,
    /// Requests a second over them.
    pub iops: u64,
    /// Bytes a second over them.
    pub bytes_per_second: u64,
}

/// A front end.
#[derive(Serialize, Clone, Debug)]
pub struct Frontend {
    /// Its ID.
    pub id: String,
    /// Address of its NBD connections.
    pub addr: String,
    /// `up` or `down`.
    pub state: &'static str,
}

/// A disk.
#[derive(Serialize, Clone, Debug)]
pub struct Disk {
    /// Its incarnation.
    pub id: String,
    /// Its directory or device.
    pub path: String,
    /// `up` or `failed`.
    pub state: &'static str,
    /// Cause of its failure.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Bytes it can take.
    pub capacity_bytes: u64,
    /// Bytes in use.
    pub used_bytes: u64,
    /// Replicas on it.
    pub chunks: u64,
    /// Its copies and scrub.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub background: Option<Background>,
}

/// Background work of a disk.
#[derive(Serialize, Clone, Copy, Debug)]
pub struct Background {
    /// Part of the disk's time that it has beside foreground work, in thousandths.
    pub share_per_mille: u32,
    /// Operations that wait for their turn.
    pub waiting: u32,
}

/// Counts of chunks.
#[derive(Serialize, Clone, Copy, Debug, Default)]
pub struct Chunks {
    /// All.
    pub total: u64,
    /// With fewer valid replicas than they should have.
    pub under_replicated: u64,
    /// With too few to be read.
    pub lost: u64,
    /// Of those that can be read, how many survive so many more losses of a replica: none, one, two,
    /// three or more.
    pub survive: [u64; 4],
    /// Of which nothing of this is known yet: a new leader has not looked at them, or has not heard their
    /// servers, or they are new. Chunks of which all replicas are damaged count here until a copy has failed.
    pub not_looked_at: u64,
}

/// Repair since the leaders took over.
#[derive(Serialize, Clone, Copy, Debug, Default)]
pub struct Repair {
    /// Chunks waiting.
    pub pending: u64,
    /// Chunks repaired.
    pub done: u64,
    /// Bytes copied.
    pub bytes: u64,
}

/// A disk whose collection has stopped, for one stream partition.
#[derive(Serialize, Clone, Debug)]
pub struct Stopped {
    /// The chunkserver's ID.
    pub chunkserver: String,
    /// The disk's incarnation.
    pub disk: String,
    /// The stream partition.
    pub partition: String,
    /// Replicas on it that no file refers to.
    pub unknown: u64,
    /// Replicas on it.
    pub reported: u64,
    /// Command that allows their deletion.
    pub command: String,
}

/// Counts of names.
#[derive(Serialize, Clone, Copy, Debug, Default)]
pub struct Names {
    /// Files.
    pub files: u64,
    /// Directories.
    pub directories: u64,
}

/// Bytes, before and after replication.
#[derive(Serialize, Clone, Copy, Debug, Default)]
pub struct Bytes {
    /// In the files.
    pub logical: u64,
    /// On the disks, unreferenced replicas included.
    pub physical: u64,
    /// Of replicas on the disks that no file refers to any more, and that wait for deletion.
    pub unreferenced: u64,
}

impl Chunks {
    /// Figures of one master: `total` is of now, the others are of its last scan. They are compared before
    /// those of other masters are added.
    fn counted(total: u64, under_replicated: u64, lost: u64, survive: [u64; 4]) -> Chunks {
        let looked_at = survive.iter().sum::<u64>() + lost;
        let not_looked_at = total.saturating_sub(looked_at);
        Chunks { total, under_replicated, lost, survive, not_looked_at }
    }

    fn add(&mut self, other: &Chunks) {
        self.total += other.total;
        self.under_replicated += other.under_replicated;
        self.lost += other.lost;
        self.survive.iter_mut().zip(other.survive).for_each(|(sum, one)| *sum += one);
        self.not_looked_at += other.not_looked_at;
    }
}

/// Runs the command.
pub fn run(args: &StatusArgs) -> Done {
    // The status is shown with its faults, without a wait for their end.
    let config = client::Config { control_budget: TIMEOUT, ..client::Config::default() };
    let picture = with_client_as(&args.connection, config, async |client| gather(&client).await)?;
    if args.json { print_json(&picture) } else { print(&picture) }
}

/// Asks all masters and combines their answers.
pub async fn gather(client: &Client) -> Result<Picture, Failure> {
    let info = client.cluster_info().await?;
    let answers = client.status().await?;
    let answers: BTreeMap<u64, ClusterStatus> =
        answers.into_iter().map(|(_, status)| (status.master, status)).collect();
    let mut masters: Vec<_> = info.masters.iter().collect();
    masters.sort_by_key(|master| master.id);
    let master = |master: &&wire::control::MasterInfo| {
        let answer = answers.get(&master.id);
        Master {
            id: master.name.clone(),
            addr: master.addr.to_string(),
            state: if answer.is_some() { "up" } else { "down" },
            leads: answer.map_or_else(Vec::new, |answer| {
                answer.leads.iter().map(Group::to_string).collect()
            }),
        }
    };
    let partitions = usize::from(info.stream_partitions);
    let show = |server| chunkserver(server, &answers, partitions);
    let mut picture = Picture {
        cluster: info.cluster.to_string(),
        masters: masters.iter().map(master).collect(),
        chunkservers: servers(&answers).into_iter().map(show).collect(),
        block_service: "unknown",
        block_managers: Vec::new(),
        block_servers: Vec::new(),
        frontends: Vec::new(),
        objects: Objects::gather(client).await,
        chunks: Chunks::default(),
        repair: Repair::default(),
        stopped: stopped(&answers),
        balance_paused: answers.values().any(|answer| answer.balance_paused),
        names: Names::default(),
        bytes: Bytes::default(),
    };
    for answer in answers.values() {
        let of_leader =
            Chunks::counted(answer.chunks, answer.under_replicated, answer.lost, answer.survive);
        picture.chunks.add(&of_leader);
        picture.repair.pending += answer.repair.pending;
        picture.repair.done += answer.repair.done;
        picture.repair.bytes += answer.repair.bytes;
        picture.names.files += answer.files;
        picture.names.directories += answer.dirs;
        picture.bytes.logical += answer.logical_bytes;
        picture.bytes.unreferenced += answer.unreferenced_bytes;
    }
    let managers = Managers::new(client);
    if let Some(block) = managers.status().await? {
        picture.block_service = "up";
        picture.block_servers = block_servers(&block);
        let peers = |role| block.peers.iter().filter(move |peer| peer.role == role);
        picture.block_managers =
            peers(BlockRole::Manager).map(|peer| block_manager(peer, &block.manager)).collect();
        picture.frontends = peers(BlockRole::Frontend).map(frontend).collect();
    } else {
        picture.block_service = match managers.have_been().await {
            Some(true) => "down",
            Some(false) => "none",
            None => "unknown",
        };
    }
    picture.bytes.physical = picture.chunkservers.iter().map(|server| server.used_bytes).sum();
    Ok(picture)
}

fn stopped(answers: &BTreeMap<u64, ClusterStatus>) -> Vec<Stopped> {
    let servers = servers(answers);
    let name = |server| servers.iter().find(|it| it.server == server).map(|it| it.name.clone());
    let stopped = answers.values().flat_map(|answer| &answer.stopped);
    let show = |one: &StoppedCollection| Stopped {
        chunkserver: name(one.server).unwrap_or_else(|| one.server.to_string()),
        disk: one.disk.to_string(),
        partition: Group::Stream(one.partition).to_string(),
        unknown: one.unknown,
        reported: one.reported,
        command: format!("craton masters condemn {}", one.disk),
    };
    stopped.map(show).collect()
}

/// The chunkservers as the leader of the cluster group sees them, else as any master does.
fn servers(answers: &BTreeMap<u64, ClusterStatus>) -> Vec<ServerStatus> {
    let leader = answers.values().find(|answer| answer.leads.contains(&Group::Cluster));
    let answer = leader.or_else(|| answers.values().max_by_key(|answer| answer.servers.len()));
    let mut servers = answer.map_or_else(Vec::new, |answer| answer.servers.clone());
    servers.sort_by(|left, right| natural(&left.name).cmp(&natural(&right.name)));
    servers
}

/// Asks all masters for the chunkservers.
pub async fn chunkservers(client: &Client) -> Result<Vec<ServerStatus>, Failure> {
    let answers = client.status().await?;
    Ok(servers(&answers.into_iter().map(|(_, status)| (status.master, status)).collect()))
}

fn up_or_down(alive: bool) -> &'static str {
    if alive { "up" } else { "down" }
}

fn block_servers(block: &BlockStatus) -> Vec<BlockServer> {
    let server = |server: &BlockServerStatus| BlockServer {
        id: server.name.clone(),
        addr: server.addr.to_string(),
        state: match server.alive {
            true if server.leaving => "leaving",
            true if server.unreached => "unreached",
            alive => up_or_down(alive),
        },
        segments: server.segments,
        iops: server.iops,
        bytes_per_second: server.bytes,
    };
    let mut servers: Vec<_> = block.servers.iter().map(server).collect();
    servers.sort_by(|left, right| natural(&left.id).cmp(&natural(&right.id)));
    servers
}

fn block_manager(peer: &BlockPeer, leader: &str) -> BlockManager {
    BlockManager {
        id: peer.name.clone(),
        addr: peer.addr.to_string(),
        state: up_or_down(peer.alive),
        leader: peer.name == leader,
    }
}

fn frontend(peer: &BlockPeer) -> Frontend {
    // One that takes no connections over TCP has no port.
    let addr = match peer.addr.port() {
        0 => "unix socket".to_owned(),
        _ => peer.addr.to_string(),
    };
    Frontend { id: peer.name.clone(), addr, state: up_or_down(peer.alive) }
}

fn chunkserver(
    server: ServerStatus,
    answers: &BTreeMap<u64, ClusterStatus>,
    partitions: usize,
) -> Chunkserver {
    let good = |disk: &&DiskReport| !disk.failed;
    let held = answers.values().flat_map(|answer| &answer.draining);
    let held = held.filter(|held| held.server == server.server);
    let counted = held.clone().map(|held| held.partitions.len()).sum::<usize>() == partitions;
    let draining = held.fold(Draining::default(), |sum, held| Draining {
        replicas: sum.replicas + held.replicas,
        open: sum.open + held.open,
        bytes: sum.bytes + held.bytes,
        counted,
    });
    Chunkserver {
        capacity_bytes: server.disks.iter().filter(good).map(|disk| disk.capacity).sum(),
        used_bytes: server.disks.iter().filter(good).map(|disk| disk.used).sum(),
        id: server.name,
        addr: server.addr.to_string(),
        state: match server.unreached_ms {
            Some(_) if server.alive => "unreached",
            _ if server.alive && server.draining => "draining",
            _ => up_or_down(server.alive),
        },
        domain: server.domain,
        disks: server.disks.into_iter().map(disk).collect(),
        draining: server.draining.then_some(draining),
        maintenance_s: server.maintenance_ms.map(|ms| ms / 1000),
    }
}

fn disk(disk: DiskReport) -> Disk {
    Disk {
        id: disk.disk.to_string(),
        path: disk.path,
        state: if disk.failed { "failed" } else { "up" },
        reason: disk.reason,
        capacity_bytes: disk.capacity,
        used_bytes: disk.used,
        chunks: disk.chunks,
        background: disk
            .background
            .map(|work| Background { share_per_mille: work.share, waiting: work.waiting }),
    }
}

/// Names of the chunkservers, by what stands in chunk information.
pub async fn server_names(client: &Client) -> Result<BTreeMap<ServerId, String>, Failure> {
    let answers = client.status().await?;
    let servers = answers.into_iter().flat_map(|(_, answer)| answer.servers);
    Ok(servers.map(|server| (server.server, server.name)).collect())
}

fn print(picture: &Picture) -> Done {
    print_line(&format!("cluster {}\n", picture.cluster))?;
    let mut out = table(&["master", "state", "address", "leads"]);
    for master in &picture.masters {
        let leads = master.leads.join(",");
        out.add_row([&master.id, master.state, &master.addr, &leads]);
    }
    print_table(out, &[])?;
    print_line("")?;
    let title =
        ["chunkserver", "state", "address", "domain", "capacity", "used", "chunks", "disks"];
    let mut out = table(&title);
    for server in &picture.chunkservers {
        let failed = server.disks.iter().filter(|disk| disk.state == "failed").count();
        let disks = match failed {
            0 => server.disks.len().to_string(),
            failed => format!("{}, {failed} failed", server.disks.len()),
        };
        let chunks: u64 = server.disks.iter().map(|disk| disk.chunks).sum();
        out.add_row([
            server.id.clone(),
            server.state.to_owned(),
            server.addr.clone(),
            server.domain.clone(),
            bytes(server.capacity_bytes),
            bytes(server.used_bytes),
            chunks.to_string(),
            disks,
        ]);
    }
    print_table(out, &[4, 5, 6])?;
    for server in &picture.chunkservers {
        for disk in server.disks.iter().filter(|disk| disk.state == "failed") {
            print_line(&format!("{}: {} has failed: {}", server.id, disk.path, disk.reason))?;
        }
    }
    print_background(picture)?;
    print_orders(picture)?;
    for one in &picture.stopped {
        print_line(&format!(
            "{}: collection of {} has stopped at {}: {} of {} replicas belong to no file. Is it a \
             disk of another cluster, or have the masters lost data? If not: {}",
            one.chunkserver, one.partition, one.disk, one.unknown, one.reported, one.command
        ))?;
    }
    print_block(picture)?;
    picture.objects.print()?;
    let Picture { chunks, repair, names, bytes: volume, .. } = picture;
    print_line(&format!(
        "\nchunks  {} in all, {} under-replicated, {} lost{}\nrepair  {} pending, {} done, {}\n\
         names   {} files, {} directories\nbytes   {} logical, {} physical, of it {} unreferenced",
        chunks.total,
        chunks.under_replicated,
        chunks.lost,
        redundancy(chunks),
        repair.pending,
        repair.done,
        bytes(repair.bytes),
        names.files,
        names.directories,
        bytes(volume.logical),
        bytes(volume.physical),
        bytes(volume.unreferenced),
    ))
}

/// Chunks by how many losses of a replica they still survive; nothing of those of which there are none. Of how
/// many it is not known is on a line of its own: zeros alone would look healthy.
fn redundancy(chunks: &Chunks) -> String {
    let words = ["no loss", "one", "two", "three or more"];
    let some = words.iter().zip(chunks.survive).filter(|&(_, count)| count > 0);
    let parts: Vec<_> = some.map(|(word, count)| format!("{count} survive {word}")).collect();
    let known = (!parts.is_empty()).then(|| parts.join(", "));
    let unknown = (chunks.not_looked_at > 0)
        .then(|| format!("redundancy: {} chunks are not looked at yet", chunks.not_looked_at));
    known.into_iter().chain(unknown).map(|line| format!("\n        {line}")).collect()
}

/// Disks whose background work waits for its turn.
fn print_background(picture: &Picture) -> Done {
    for server in &picture.chunkservers {
        for disk in &server.disks {
            let Some(work) = disk.background.filter(|work| work.waiting > 0) else { continue };
            print_line(&format!(
                "{}: {} copies or reads of scrub wait at {}: they have {:.1} % of its time beside other \
                 work",
                server.id,
                work.waiting,
                disk.path,
                f64::from(work.share_per_mille) / 10.0
            ))?;
        }
    }
    Ok(())
}

/// What operators have ordered.
fn print_orders(picture: &Picture) -> Done {
    for Chunkserver { id, draining, maintenance_s, .. } in &picture.chunkservers {
        match draining {
            Some(Draining { counted: false, .. }) => {
                print_line(&format!("{id} drains: not all partitions have counted what it holds"))?;
            }
            Some(Draining { replicas: 0, .. }) => {
                print_line(&format!("{id} is drained: 'craton decommission {id}' lets it leave"))?;
            }
            Some(Draining { replicas, open, bytes: held, .. }) => print_line(&format!(
                "{id} drains: {} with {} left, {open} of them being written",
                counted(*replicas, "replica"),
                bytes(*held)
            ))?,
            None => {}
        }
        if let Some(seconds) = maintenance_s {
            print_line(&format!(
                "{id} is under maintenance for {seconds} s: what it holds is not repaired while it is \
                 silent"
            ))?;
        }
    }
    match picture.balance_paused {
        true => print_line("chunks are not moved for balance until 'craton rebalance'"),
        false => Ok(()),
    }
}

/// The block service, when there is one.
fn print_block(picture: &Picture) -> Done {
    let Picture { block_managers, block_servers, frontends, .. } = picture;
    match picture.block_service {
        "up" => print_line("")?,
        "down" => {
            return print_line(
                "\nblock service  down: no block manager leads; volumes wait for one",
            );
        }
        _ => return Ok(()),
    }
    let mut out = table(&["block service", "state", "address", "segments", "does"]);
    let none = || "-".to_owned();
    for one in block_managers {
        let does = if one.leader { "block manager, leads" } else { "block manager" };
        let (id, state, addr) = (one.id.clone(), one.state.to_owned(), one.addr.clone());
        out.add_row([id, state, addr, none(), does.to_owned()]);
    }
    for one in block_servers {
        let (id, state, addr) = (one.id.clone(), one.state.to_owned(), one.addr.clone());
        let does = format!("block server, {} requests/s", one.iops);
        out.add_row([id, state, addr, one.segments.to_string(), does]);
    }
    for one in frontends {
        let (id, state, addr) = (one.id.clone(), one.state.to_owned(), one.addr.clone());
        out.add_row([id, state, addr, none(), "front end".to_owned()]);
    }
    print_table(out, &[3])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redundancy_is_shown_by_what_it_survives() {
        let text = |survive| redundancy(&Chunks { survive, ..Chunks::default() });
        assert_eq!(text([0; 4]), "");
        assert_eq!(text([2, 0, 31, 0]), "\n        2 survive no loss, 31 survive two");
    }

    /// A leader that has just taken over counts all chunks and has looked at none, beside another one that has.
    #[test]
    fn chunks_that_a_leader_has_not_looked_at_are_not_shown_as_healthy() {
        let mut chunks = Chunks::counted(7, 0, 0, [0; 4]);
        assert_eq!(chunks.not_looked_at, 7);
        assert_eq!(redundancy(&chunks), "\n        redundancy: 7 chunks are not looked at yet");
        // Some cannot be read; of the last scan of those that are left, one has been removed since.
        chunks.add(&Chunks::counted(34, 4, 3, [2, 0, 30, 0]));
        assert_eq!((chunks.total, chunks.lost, chunks.not_looked_at), (41, 3, 7));
        assert_eq!(
            redundancy(&chunks),
            "\n        2 survive no loss, 30 survive two\n        redundancy: 7 chunks are not looked \
             at yet"
        );
        let json =
            |chunks| serde_json::to_value(chunks).expect("plain numbers")["not_looked_at"].take();
        assert_eq!(json(chunks), 7);
        assert_eq!(json(Chunks::counted(2, 0, 0, [0, 0, 2, 0])), 0);
    }
}
