//! One of five servers is slow for a while, or now and then, or does not answer; a client stands
//! still. Clients list the server's disk soon, read without it, and take it back; they list no other,
//! and change their lists a few times a minute at most (C17, `protocols-tail.md` 10.5). Soon is after a
//! second, or when they have asked the server for a few reads, if that is later: in half of the cases
//! clients have so few reads that it is.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use client::{BackupConfig, Client, FlatLogFile, ListState};
use runtime::Class;
use runtime::sim::{HostId, Sim};
use wire::control::StreamView;

use super::hedge::{FILE_LEN, FILES, HEALTHY, SERVED, content, write};
use crate::cluster::{Cluster, Shape};
use crate::tuning::Tuning;

const CLIENTS: usize = 2;
/// Reads that each client begins at a time, and how often.
const TOGETHER: u64 = 4;
const ROUND: Duration = Duration::from_millis(20);
const READ_MAX: u64 = 20_000;
/// Latency of the disk that is slow, in those of healthy ones.
const SLOW: u32 = 100;
/// Pause between two reads of a client that has few. Health compares the calls of about a second, from
/// four on; of these reads a server has two a second.
const FEW_ROUND: Duration = Duration::from_millis(160);
/// Time in which every client that reads lists a server that is slow or does not answer ...
const LISTED: Duration = Duration::from_secs(1);
/// ... unless the server has had fewer than two reads by then, which it is listed for. One that is to
/// have so many has had fewer than two in two of a million cases.
const ASKED: u32 = 16;
/// Time from the second read to the listing, for its probe.
const PROBED: Duration = Duration::from_millis(250);
/// A disk that is good again is taken back in this time: the longest stay, and probes.
const BACK: Duration = Duration::from_secs(70);
/// Listings of a server by one client in a minute at most.
const LISTINGS: u64 = 6;
const MINUTE: Duration = Duration::from_secs(60);
const SECOND: Duration = Duration::from_secs(1);

#[derive(Default)]
struct Load {
    /// Reads begun from then on are judged by [`SERVED`].
    judged_from: Cell<Option<Duration>>,
    wrong: RefCell<Option<String>>,
    reads: Cell<u64>,
    /// Clients have few reads, of these files.
    few: RefCell<Option<Rc<[u64]>>>,
    over: Cell<bool>,
}

/// The server that has the faults.
#[derive(Clone)]
struct Bad {
    host: HostId,
    /// Files with a replica there.
    files: Rc<[u64]>,
    /// Replicas of each.
    copies: u32,
}

struct World {
    sim: Sim,
    cluster: Cluster,
    clients: Vec<(HostId, Client)>,
    load: Rc<Load>,
    bad: RefCell<Bad>,
}

pub(super) async fn run(sim: Sim) -> Result<(), String> {
    let mut tuning = Tuning::draw(&sim);
    // What is judged here are the product's own bounds.
    tuning.client = client::Config { backup: BackupConfig::default(), ..client::Config::default() };
    let cluster = Cluster::start(&sim, Shape::default(), tuning);
    cluster.settle(Duration::from_secs(30)).await.map_err(|e| format!("at the start: {e}"))?;
    write(&cluster).await?;
    cluster.until_whole(MINUTE).await?;
    for &host in cluster.servers() {
        sim.with_disk_faults(host, |disk| disk.latency = HEALTHY);
    }
    let load = Rc::new(Load::default());
    let (mut clients, mut tasks) = (Vec::new(), Vec::new());
    for _ in 0..CLIENTS {
        let (host, client) = cluster.client(None).await.map_err(|error| error.to_string())?;
        let task = keep_reading(sim.clone(), client.clone(), load.clone());
        tasks.push(client.env().spawn(Class::Foreground, "reader", task));
        clients.push((host, client));
    }
    let none = Bad { host: clients[0].0, files: Rc::default(), copies: 0 };
    let world = World { sim: sim.clone(), cluster, clients, load, bad: RefCell::new(none) };
    sim.sleep(5 * SECOND).await;
    world.nothing_is_listed("before any fault")?;
    let first = sim.with_rng(|rng| rng.below(4));
    let second = (first + 1 + sim.with_rng(|rng| rng.below(3))) % 4;
    for phase in [first, second] {
        world.choose_bad().await?;
        match phase {
            0 => world.slow_for_a_while().await?,
            1 => world.now_and_then().await?,
            2 => world.does_not_answer().await?,
            _ => world.client_stands_still().await?,
        }
    }
    world.load.over.set(true);
    for task in tasks {
        task.await.map_err(|_| "a reader's host went down".to_owned())??;
    }
    sim.note(world.load.reads.get());
    world.load.wrong.take().map_or(Ok(()), Err)
}

impl World {
    fn set_latency(&self, factor: u32) {
        let latency = (HEALTHY.0 * factor, HEALTHY.1 * factor);
        self.sim.with_disk_faults(self.bad_host(), |disk| disk.latency = latency);
    }

    fn bad_host(&self) -> HostId {
        self.bad.borrow().host
    }

    /// Another server than the last one, whose replicas masters may have put elsewhere; of those with
    /// replicas of files that are read.
    async fn choose_bad(&self) -> Result<(), String> {
        let mut files = vec![Vec::new(); self.cluster.servers().len()];
        let mut copies = 0;
        for (_, client) in &self.clients {
            files.iter_mut().for_each(Vec::clear);
            for number in 0..FILES {
                // Whom a client asks, it takes from the same answer.
                let view = view(client, number).await?;
                let most = view
                    .chunks
                    .into_iter()
                    .filter(|chunk| chunk.sealed.is_none_or(|len| 2 * u64::from(len) > FILE_LEN));
                for chunk in most {
                    copies = chunk.replicas.len() as u32;
                    for replica in chunk.replicas {
                        let host = self.host_of(replica.addr);
                        let at = self.cluster.servers().iter().position(|it| *it == host);
                        files[at.expect("a chunkserver")].push(number);
                    }
                }
            }
        }
        let servers = self.cluster.servers().iter().copied().zip(files);
        let last = self.bad_host();
        let good: Vec<_> =
            servers.filter(|(host, files)| *host != last && !files.is_empty()).collect();
        let (host, files) = self.sim.with_rng(|rng| rng.pick(&good).clone());
        *self.bad.borrow_mut() = Bad { host, files: files.into(), copies };
        Ok(())
    }

    /// From now on until [`World::many_reads`] clients have few reads, of files of the bad server, in
    /// half of the cases. Answers the time in which every client lists the server, when it serves none.
    async fn maybe_few_reads(&self) -> Duration {
        let Bad { files, copies, .. } = self.bad.borrow().clone();
        // A client begins with any of a file's replicas.
        let asked = if self.sim.with_rng(|rng| rng.below(2)) == 0 {
            self.load.few.replace(Some(files));
            self.sim.mark("flapping: few reads");
            // Those of before count no more.
            self.sim.sleep(2 * SECOND).await;
            ASKED * copies * FEW_ROUND
        } else {
            let rounds = u64::from(ASKED * copies) * FILES / (TOGETHER * files.len() as u64);
            rounds as u32 * ROUND
        };
        LISTED.max(asked + PROBED)
    }

    fn many_reads(&self) {
        self.load.few.replace(None);
    }

    /// The host of a chunkserver.
    fn host_of(&self, addr: SocketAddr) -> HostId {
        let is_it = |host: &&HostId| self.sim.addr(**host, addr.port()).ip() == addr.ip();
        *self.cluster.servers().iter().find(is_it).expect("a chunkserver")
    }

    /// Servers that a client lists, by their hosts.
    fn listed(&self, client: &Client) -> Vec<(HostId, ListState)> {
        let listed = client.listed_disks();
        listed.iter().map(|listed| (self.host_of(listed.target.addr), listed.state)).collect()
    }

    fn nothing_is_listed(&self, when: &str) -> Result<(), String> {
        match self.clients.iter().find_map(|(_, client)| self.listed(client).first().copied()) {
            None => Ok(()),
            Some(listed) => Err(format!("{when} a client lists {listed:?}")),
        }
    }

    /// Every client lists the bad server, and no other.
    fn bad_is_listed(&self, when: &str) -> Result<(), String> {
        for (_, client) in &self.clients {
            let listed = self.listed(client);
            let bad = self.bad_host();
            if listed.iter().map(|(host, _)| *host).ne([bad]) {
                return Err(format!("{when} a client lists {listed:?}, not {bad:?}"));
            }
        }
        Ok(())
    }

    async fn until_taken_back(&self) -> Result<(), String> {
        let end = self.sim.elapsed() + BACK;
        while self.nothing_is_listed("").is_err() {
            if self.sim.elapsed() > end {
                return self.nothing_is_listed(&format!("{BACK:?} after the last fault"));
            }
            self.sim.sleep(SECOND / 10).await;
        }
        self.sim.mark("flapping: taken back");
        // For two seconds it is not slow again.
        self.sim.sleep(3 * SECOND).await;
        Ok(())
    }

    /// Judges reads, for as long as `time`.
    async fn judged_for(&self, time: Duration) {
        self.load.judged_from.set(Some(self.sim.elapsed()));
        self.sim.sleep(time).await;
        self.load.judged_from.set(None);
    }

    async fn slow_for_a_while(&self) -> Result<(), String> {
        let listed = self.maybe_few_reads().await;
        self.set_latency(SLOW);
        self.sim.sleep(listed).await;
        self.bad_is_listed("while a disk is slow")?;
        self.judged_for(10 * SECOND).await;
        self.bad_is_listed("while a disk is still slow")?;
        self.set_latency(1);
        self.many_reads();
        self.sim.mark("flapping: slow for a while");
        self.until_taken_back().await
    }

    async fn now_and_then(&self) -> Result<(), String> {
        let listings = || self.sim.marks().get("lists: a disk is listed").copied().unwrap_or(0);
        let (begun, end) = (listings(), self.sim.elapsed() + MINUTE);
        while self.sim.elapsed() < end {
            self.set_latency(SLOW);
            self.sim.sleep(SECOND / 2).await;
            self.set_latency(1);
            self.sim.sleep(3 * SECOND / 2).await;
        }
        let listed = listings() - begun;
        let most = LISTINGS * CLIENTS as u64;
        if listed == 0 || listed > most {
            return Err(format!("{listed} listings in a minute, {most} may be"));
        }
        self.sim.mark("flapping: slow now and then");
        self.until_taken_back().await
    }

    async fn does_not_answer(&self) -> Result<(), String> {
        let listed = self.maybe_few_reads().await;
        let more = Duration::from_millis(self.sim.with_rng(|rng| rng.between(1_000, 11_000)));
        let length = listed + more;
        let grey = self.sim.with_rng(|rng| rng.below(2)) == 0;
        match grey {
            true => self.sim.set_grey(self.bad_host(), true),
            false => self.sim.pause(self.bad_host(), length),
        }
        self.sim.sleep(listed).await;
        self.bad_is_listed("while a server does not answer")?;
        self.judged_for(more).await;
        self.bad_is_listed("while a server still does not answer")?;
        self.sim.set_grey(self.bad_host(), false);
        self.many_reads();
        self.sim.mark(match grey {
            true => "flapping: a server was grey",
            false => "flapping: a server stood still",
        });
        self.until_taken_back().await
    }

    async fn client_stands_still(&self) -> Result<(), String> {
        let (host, _) = self.clients[0];
        for _ in 0..5 {
            let length = Duration::from_millis(self.sim.with_rng(|rng| rng.between(50, 3_000)));
            self.sim.pause(host, length);
            self.sim.sleep(length + SECOND / 2).await;
            self.nothing_is_listed("after it stood still itself")?;
        }
        self.sim.mark("flapping: a client stood still");
        Ok(())
    }
}

async fn keep_reading(sim: Sim, client: Client, load: Rc<Load>) -> Result<(), String> {
    let mut files = Vec::new();
    for number in 0..FILES {
        let file = client.open(&format!("/{number}")).await.map_err(|error| error.to_string())?;
        files.push((file, Rc::new(content(number))));
    }
    while !load.over.get() {
        let few = load.few.borrow().clone();
        let (together, round) = if few.is_some() { (1, FEW_ROUND) } else { (TOGETHER, ROUND) };
        for _ in 0..together {
            let (number, offset, len) = sim.with_rng(|rng| {
                let len = rng.between(1, READ_MAX);
                let number = match &few {
                    None => rng.below(FILES),
                    Some(files) => *rng.pick(files),
                };
                (number, rng.below(FILE_LEN - len), len)
            });
            let (file, content) = files[number as usize].clone();
            let read = read_once(sim.clone(), file, content, (offset, len), load.clone());
            client.env().spawn(Class::Foreground, "read", read);
        }
        client.env().sleep(round).await;
    }
    Ok(())
}

/// Where a file's chunks are, as the masters answer the client.
async fn view(client: &Client, number: u64) -> Result<StreamView, String> {
    let (of, env) = (client.clone(), client.env().clone());
    let asked = async move { of.open(&format!("/{number}")).await?.chunks().await };
    let view = env.spawn(Class::Foreground, "view", asked).await;
    let view = view.map_err(|_| "a reader's host went down".to_owned())?;
    view.map_err(|error: client::Error| error.to_string())
}

async fn read_once(
    sim: Sim,
    file: FlatLogFile,
    content: Rc<Vec<u8>>,
    (offset, len): (u64, u64),
    load: Rc<Load>,
) {
    let (began, judged) = (sim.elapsed(), load.judged_from.get());
    let read = file.reader().read_at(offset, len as usize).await;
    let (took, range) = (sim.elapsed() - began, offset as usize..(offset + len) as usize);
    load.reads.set(load.reads.get() + 1);
    let wrong = match read {
        Ok(bytes) if bytes != content[range] => {
            format!("{} bytes from {offset} are not those of the file", bytes.len())
        }
        Ok(_) if judged.is_some() && took > SERVED => {
            format!("a read took {took:?} while its client had listed the disk")
        }
        Ok(_) => return,
        Err(error) => format!("a read failed: {error}"),
    };
    load.wrong.borrow_mut().get_or_insert(wrong);
}
