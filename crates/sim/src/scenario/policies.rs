//! Policies of directories are set, cleared and inherited under faults, while one of the directories
//! is moved to and fro. Each directory's own policy is a register; what a created file got, and what
//! is shown, are reads of the registers along its path, and the histories are linearizable. Then a
//! file's policy is set under a writer: chunks behind it have it, those before keep theirs, and
//! nothing that was acknowledged is lost.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use base::{DirId, Kind, MIB};
use client::{Client, Error};
use codec::block::{BlockSize, Codec};
use runtime::sim::Sim;
use runtime::{Class, Rng};
use wire::control::{ChunkPlace, Compression, NameKey, Node, Policy};

use crate::cluster::{Cluster, Shape};
use crate::nemesis::{Faults, NONE, Nemesis};
use crate::register::{self, Did, Operation, Sure};
use crate::tuning::Tuning;

const CLIENTS: u64 = 3;
const LOAD: Duration = Duration::from_secs(10);
/// Operations of one client at most: the search for an order grows with them.
const OPERATIONS: u64 = 80;
const QUIET: Duration = Duration::from_secs(60);

/// A directory with a register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Dir {
    Root,
    P,
    R,
    /// It is in one of the two before, and moves.
    Q,
}

const DIRS: [Dir; 4] = [Dir::Root, Dir::P, Dir::R, Dir::Q];

impl Dir {
    /// Policies that are set on it, and on no other: what a file got says where it is from.
    fn policies(self) -> &'static [Policy] {
        const LZ4: Option<Compression> = Some(Compression::LZ4);
        const ZSTD: Option<Compression> = Some(Compression::ZSTD);
        const ROOT: [Policy; 2] = [Policy::rep(5), Policy::rep(5).compressed(LZ4)];
        const P: [Policy; 2] = [Policy::rep(1), Policy::strict(4)];
        const R: [Policy; 1] = [Policy::rep(4).compressed(ZSTD)];
        const Q: [Policy; 3] = [Policy::rep(3), Policy::rep(3).compressed(LZ4), Policy::strict(3)];
        match self {
            Dir::Root => &ROOT,
            Dir::P => &P,
            Dir::R => &R,
            Dir::Q => &Q,
        }
    }
}

/// Of a file below directories without a policy: it has no word, and is set on none.
const FALLBACK: Policy = Policy::plain(5, 4);

/// A policy as a value of a register; 0: none.
fn value(policy: Option<Policy>) -> u64 {
    let number = |policy: Policy| {
        let Policy { copies, acks, data, compression, .. } = policy;
        u64::from_be_bytes([0, 0, 0, 0, data, Compression::to_byte(compression), copies, acks])
    };
    policy.map_or(0, number)
}

struct Load {
    sim: Sim,
    dirs: [DirId; 4],
    stop: Cell<bool>,
    histories: RefCell<[Vec<Operation>; 4]>,
    /// Numbers given to files.
    files: Cell<u64>,
    verdict: RefCell<Option<String>>,
}

impl Load {
    fn record(&self, dir: Dir, did: Did, sure: Sure, start: Duration) {
        let end = self.sim.elapsed();
        self.histories.borrow_mut()[dir as usize].push(Operation { did, sure, start, end });
    }

    /// A file below `chain`, nearest directory first, got `policy`: each directory passed over had none.
    fn inherited(&self, chain: &[Dir], policy: Policy, start: Duration) {
        for &dir in chain {
            if dir.policies().contains(&policy) {
                return self.record(dir, Did::Read(value(Some(policy))), Sure::Happened, start);
            }
            self.record(dir, Did::Read(0), Sure::Happened, start);
        }
        if policy != FALLBACK {
            let text = format!("{policy} is set on no directory of {chain:?}, and was inherited");
            self.verdict.borrow_mut().get_or_insert(text);
        }
    }
}

/// Paths of a directory with the ones on the way to the root, nearest first.
fn paths(dir: Dir) -> &'static [(&'static str, &'static [Dir])] {
    match dir {
        Dir::Root => &[("/", &[Dir::Root])],
        Dir::P => &[("/p", &[Dir::P, Dir::Root])],
        Dir::R => &[("/r", &[Dir::R, Dir::Root])],
        Dir::Q => &[("/p/q", &[Dir::Q, Dir::P, Dir::Root]), ("/r/q", &[Dir::Q, Dir::R, Dir::Root])],
    }
}

/// The run.
pub(super) async fn run(sim: Sim, shape: Shape) -> Result<(), String> {
    let faults = Faults {
        master_crashes: true,
        bad_network: true,
        partitions: true,
        master_cuts: true,
        ..NONE
    };
    let mut tuning = Tuning::draw(&sim);
    tuning.client.writer.chunk_len_max = MIB as u32;
    let cluster = Cluster::start(&sim, shape, tuning);
    cluster.settle(Duration::from_secs(30)).await.map_err(|e| format!("at the start: {e}"))?;
    let (_, client) = cluster.client(None).await.map_err(|error| error.to_string())?;
    let made = async |path: &str| {
        client.mkdir_all(path, 0o755).await.map_err(|error| format!("{path}: {error}"))
    };
    let dirs = [DirId::ROOT, made("/p").await?, made("/r").await?, made("/p/q").await?];
    let load = Rc::new(Load {
        sim: sim.clone(),
        dirs,
        stop: Cell::new(false),
        histories: RefCell::default(),
        files: Cell::new(0),
        verdict: RefCell::default(),
    });
    let nemesis = Nemesis::start(&cluster, faults);
    let mut clients = Vec::new();
    for index in 0..CLIENTS {
        let connected = loop {
            match cluster.client(None).await {
                Ok((_, client)) => break client,
                Err(_) => sim.sleep(Duration::from_millis(200)).await,
            }
        };
        let rng = Rng::new(sim.with_rng(|rng| rng.next_u64()));
        let task = operate(load.clone(), connected.clone(), rng, index == 0);
        clients.push(connected.env().spawn(Class::Foreground, "policies", task));
    }
    sim.sleep(LOAD).await;
    nemesis.stop().await;
    sim.sleep(Duration::from_secs(1)).await;
    load.stop.set(true);
    let deadline = sim.elapsed() + QUIET;
    while !clients.iter().all(|client| client.is_finished()) {
        if sim.elapsed() > deadline {
            return Err("a client does not end in a minute without faults".to_owned());
        }
        sim.sleep(Duration::from_millis(100)).await;
    }
    cluster.settle(QUIET).await?;
    // The last check: what each directory gives now, after the masters' restarts.
    for dir in DIRS {
        let (mut rng, before) = (Rng::new(1), load.files.get());
        while load.files.get() == before {
            create(&load, &client, dir, &mut rng).await;
            if sim.elapsed() > deadline + QUIET {
                return Err(format!("no file is made in {dir:?} in a cluster without faults"));
            }
        }
    }
    load.verdict.borrow_mut().take().map_or(Ok(()), Err)?;
    let histories = load.histories.take();
    for (dir, history) in DIRS.into_iter().zip(histories) {
        sim.note(history.len() as u64);
        let writes = history.iter().filter(|it| it.did.changes()).count();
        if writes == 0 {
            return Err(format!("no policy of {dir:?} was set in {LOAD:?}: the load stands still"));
        }
        register::check(history).map_err(|why| format!("policy of {dir:?}: {why}"))?;
    }
    under_a_writer(&cluster, &client, shape.servers as u8).await
}

async fn operate(load: Rc<Load>, client: Client, mut rng: Rng, moves: bool) {
    for _ in 0..OPERATIONS {
        if load.stop.get() {
            return;
        }
        let dir = *rng.pick(&DIRS);
        match rng.below(8) {
            0..3 => set(&load, &client, dir, &mut rng).await,
            3 if moves => {
                let (from, to) = if rng.one_in(2) { ("/p/q", "/r/q") } else { ("/r/q", "/p/q") };
                if client.rename(from, to, false).await.is_ok() {
                    client.env().mark("policies: a directory moves");
                }
            }
            3 => show(&load, &client, dir, &mut rng).await,
            _ => create(&load, &client, dir, &mut rng).await,
        }
        client.env().sleep(Duration::from_millis(rng.below(120))).await;
    }
}

/// Sets a directory's policy, or clears it.
async fn set(load: &Load, client: &Client, dir: Dir, rng: &mut Rng) {
    let policy = (!rng.one_in(3)).then(|| *rng.pick(dir.policies()));
    let (id, start) = (load.dirs[dir as usize], load.sim.elapsed());
    let done = client.set_dir_policy_at(id, "a directory", policy).await;
    let sure = match done.map_err(|error| error.kind()) {
        Ok(()) => Sure::Happened,
        Err(Kind::Unknown) => Sure::Perhaps,
        Err(Kind::Retry) => return, // Nothing was changed.
        Err(kind) => {
            let text = format!("the policy of {dir:?} is not set: {kind:?}");
            load.verdict.borrow_mut().get_or_insert(text);
            return;
        }
    };
    load.record(dir, Did::Write(value(policy)), sure, start);
}

/// Makes a file in a directory and notes what it got.
async fn create(load: &Load, client: &Client, dir: Dir, rng: &mut Rng) {
    let (path, chain) = *rng.pick(paths(dir));
    let number = load.files.get() + 1;
    let file = format!("{}/f{number}", path.trim_end_matches('/'));
    let start = load.sim.elapsed();
    let made = client.create_inherited(&file, FALLBACK, 0o600, true).await;
    let Ok(made) = made else { return };
    load.files.set(number);
    load.inherited(chain, made.policy(), start);
    let asked = made.policy();
    // It keeps it, whatever is set since.
    match client.stat_file(made.id()).await {
        Ok((Node::File { policy, .. }, _)) if policy != asked => {
            let text = format!("{file} was made with {asked} and has {policy}");
            load.verdict.borrow_mut().get_or_insert(text);
        }
        _ => {}
    }
    let place = NameKey { parent: load.dirs[dir as usize], name: format!("f{number}") };
    let _ = client.unlink_at(place, &file).await; // As far as masters answer.
}

/// Asks what a file in a directory would get.
async fn show(load: &Load, client: &Client, dir: Dir, rng: &mut Rng) {
    let (path, chain) = *rng.pick(paths(dir));
    let start = load.sim.elapsed();
    match client.dir_policy(path).await {
        Ok(found) => {
            let policy = found.map_or(FALLBACK, |found| found.policy);
            load.inherited(chain, policy, start);
        }
        Err(Error::NotFound { .. }) => {} // It is at its other place.
        Err(_) => {}
    }
}

/// Pieces between two changes of the policy: more than a chunk.
const PIECES: u64 = 6;
const PIECE: usize = 300 << 10;
const CHANGES: usize = 4;

/// Whether a chunk was made with a policy. One of many copies may have got fewer at first, on a cluster
/// of five servers of which its writer avoids some: as many of them acknowledge at most.
fn is_made_with(chunk: &ChunkPlace, policy: Policy) -> bool {
    let acks = match policy.copies {
        0..=3 => policy.acks..=policy.acks,
        _ => 1..=policy.acks,
    };
    let form = (chunk.copies, chunk.compression) == (policy.copies, policy.compression);
    form && acks.contains(&chunk.acks)
}

/// Sets a file's policy while it is written to.
async fn under_a_writer(cluster: &Cluster, client: &Client, servers: u8) -> Result<(), String> {
    let failed = |error: Error| format!("a writer in a cluster without faults: {error}");
    let sim = cluster.sim();
    let file = client.create("/file", Policy::rep(3), 0o600, true).await.map_err(failed)?;
    let writer = file.append_handle().await.map_err(failed)?;
    let mut policies = vec![Policy::rep(3)];
    let mut written = 0;
    let piece = |number: u64| {
        let mut bytes = vec![0; PIECE];
        // Half of it can be compressed.
        bytes.chunks_mut(128).for_each(|part| Rng::new(number).fill(&mut part[..64]));
        Rng::new(number).fill(&mut bytes[..PIECE / 4]);
        bytes
    };
    let block = BlockSize::new(codec::limits::BLOCK_LOG2_MAX);
    let large = block.map(|block| Compression { codec: Codec::Lz4, block });
    let compressions = [None, large, Some(Compression::ZSTD)];
    // Chunks that are there, or recorded as spares, when a policy is set may have the former one.
    let mut known = BTreeSet::new();
    for change in 0..CHANGES {
        for _ in 0..PIECES {
            writer.append(&piece(written)).await.map_err(failed)?;
            written += 1;
        }
        if change + 1 < CHANGES {
            let copies = sim.with_rng(|rng| rng.between(1, u64::from(servers.min(5)))) as u8;
            let strict = sim.with_rng(|rng| rng.one_in(2));
            let policy = if strict { Policy::strict(copies) } else { Policy::rep(copies) };
            let policy = policy.compressed(sim.with_rng(|rng| *rng.pick(&compressions)));
            known = file.chunks().await.map_err(failed)?.chunks.iter().map(|it| it.chunk).collect();
            file.set_policy(policy).await.map_err(failed)?;
            policies.push(policy);
        }
    }
    writer.close().await.map_err(failed)?;
    let last = *policies.last().expect("never empty");
    if file.policy_now().await.map_err(failed)? != last {
        return Err(format!("the file's policy is not {last}, which was set last"));
    }
    cluster.settle(QUIET).await?;
    let view = file.chunks().await.map_err(failed)?;
    for chunk in &view.chunks {
        let fits = |policy: &Policy| is_made_with(chunk, *policy);
        if !policies.iter().any(fits) || chunk.replicas.len() != usize::from(chunk.copies) {
            return Err(format!("{chunk:?} has none of the policies {policies:?}"));
        }
    }
    // The writer goes on in one spare that it had, then in chunks that were made since.
    let fresh = view.chunks.iter().filter(|chunk| !known.contains(&chunk.chunk)).skip(1);
    let mut count = 0;
    for chunk in fresh {
        count += 1;
        if !is_made_with(chunk, last) {
            return Err(format!("{chunk:?} was made after {last} was set"));
        }
    }
    if count == 0 {
        return Err("the load ends before a chunk with the policy that was set last".to_owned());
    }
    let reader = file.reader();
    for number in 0..written {
        let found = reader.read_at(number * PIECE as u64, PIECE).await.map_err(failed)?;
        if found != piece(number) {
            return Err(format!("piece {number} was acknowledged, and reads otherwise"));
        }
        let (start, len) = sim.with_rng(|rng| (rng.below(PIECE as u64), rng.between(1, 8000)));
        let part = reader.read_at(number * PIECE as u64 + start, len as usize).await;
        let part = part.map_err(failed)?;
        let end = (len as usize).min(PIECE - start as usize);
        if part.len() < end || part[..end] != piece(number)[start as usize..][..end] {
            return Err(format!("{len} bytes from {start} of piece {number} read otherwise"));
        }
    }
    Ok(())
}
