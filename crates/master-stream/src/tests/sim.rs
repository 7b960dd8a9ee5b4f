//! Random writers under faults of servers, disks, masters and network; then a quiet phase after
//! which everything acknowledged is there, whole, and nothing else.
//!
//! `CRATON_SEED=n` runs one seed, `CRATON_SEEDS=a..b` a range.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use base::{ChunkId, FileId, ServerId};
use runtime::sim::Sim;
use runtime::{Class, Duration};
use wire::control::{Compression, Policy, ReplicaFault, StreamChange, StreamRequest};
use wire::data::ReplicaState;

use super::writer::{Client, Cluster, Writer};
use crate::placement::ReplicaLocation;
use crate::planted::{Planted, plant, planted};

const FILES: u64 = 4;

struct Outcome {
    hash: u64,
    acknowledged: usize,
    marks: BTreeMap<&'static str, u64>,
    violation: Option<String>,
}

/// Faults for a while, at random.
async fn disturb(cluster: Rc<Cluster>) {
    let draw = |bound: u64| cluster.sim.with_rng(|rng| rng.below(bound));
    let servers: Vec<ServerId> = cluster.model.servers.borrow().keys().copied().collect();
    let spare = servers.len() as u64 - u64::from(cluster.policy.copies);
    // The loss that redundancy allows (invariant 1): one disk, once.
    let mut disks_to_lose = u64::from(cluster.policy.acks > 1);
    let rounds = 5 + draw(25);
    // What a damaged replica says matters only where there is one.
    let damages = planted(Planted::DamagedVotes);
    for _ in 0..rounds {
        cluster.sim.sleep(Duration::from_millis(draw(400))).await;
        let server = servers[draw(servers.len() as u64) as usize];
        match draw(10) {
            0..3 => {
                let down = cluster.model.servers.borrow().values().filter(|s| !s.up).count();
                if (down as u64) < spare.max(1) {
                    cluster.model.crash(server);
                }
            }
            3..6 => servers.iter().for_each(|&server| {
                if draw(2) == 0 {
                    cluster.model.restart(server);
                }
            }),
            6 => cluster.world.elect(1 + draw(2)),
            7 => cluster.model.loss_one_in.set(*pick(&cluster, &[0, 0, 5, 20])),
            8 if !cluster.targets().is_empty() && draw(2) == 0 => {
                cluster.model.errs_one_in.set(*pick(&cluster, &[0, 2, 5]));
            }
            8 => cluster.world.fault_one_in.set(*pick(&cluster, &[0, 0, 10, 30])),
            _ if disks_to_lose > 0 && (damages || draw(4) == 0) => {
                disks_to_lose -= 1;
                if !damages && draw(2) == 0 {
                    cluster.model.wipe(server);
                } else {
                    for (place, chunk) in cluster.model.damage(server) {
                        let leader = cluster.world.leader.get() as usize;
                        cluster.services[leader - 1].report_damaged(place, chunk);
                    }
                }
            }
            _ => {}
        }
    }
    servers.iter().for_each(|&server| cluster.model.restart(server));
    cluster.model.loss_one_in.set(0);
    cluster.world.fault_one_in.set(0);
    cluster.model.errs_one_in.set(0);
}

fn pick<'a, T>(cluster: &Cluster, choices: &'a [T]) -> &'a T {
    cluster.sim.with_rng(|rng| rng.pick(choices))
}

/// Writers come and go, readers seal and report.
async fn load(cluster: Rc<Cluster>, number: u64) {
    let draw = |bound: u64| cluster.sim.with_rng(|rng| rng.below(bound));
    while !cluster.stop.get() {
        // A file that is deleted is followed by another in its slot.
        let slot = draw(FILES);
        let file = {
            let mut files = (0..).map(|round| FileId::new(1 + slot + 16 * round));
            files.find(|&file| !cluster.world.was_deleted(file)).expect("endless")
        };
        match draw(12) {
            0 => {
                let _ = Client::new(&cluster).change(StreamChange::seal(file)).await;
            }
            1 => {
                let view = cluster.locate(file, draw(200)).await;
                let chunks = view.map_or_else(Vec::new, |view| view.chunks);
                if let Some(chunk) = chunks.first() {
                    let (chunk, server) = (chunk.chunk, chunk.replicas[0].server);
                    let fault = ReplicaFault::Unreachable;
                    let report = StreamRequest::ReportBad { file, chunk, server, fault };
                    let _ = Client::new(&cluster).ask(report).await;
                }
            }
            2 if draw(4) == 0 => {
                let _ = Client::new(&cluster).change(StreamChange::Delete { file }).await;
            }
            4 | 5 if !cluster.targets().is_empty() => {
                let (policy, grant) = (*pick(&cluster, cluster.targets()), [0; 16]);
                let client = Client::new(&cluster);
                let _ = client.change(StreamChange::SetPolicy { file, policy, grant }).await;
                let wanted = draw(8) > 0;
                let _ = client.change(StreamChange::Convert { file, wanted }).await;
            }
            3 if draw(4) == 0 => {
                // Opens a file of its own, and goes away before the answer.
                let file = FileId::new(1 + FILES + number);
                Writer::life(cluster.clone(), file, 16 * number as u8).await;
                let client = Client::new(&cluster);
                let timeout = Duration::from_micros(draw(3000));
                let env = cluster.model.env.borrow().clone();
                let _ = env.timeout(timeout, client.open(file)).await;
            }
            _ => Writer::life(cluster.clone(), file, 16 * number as u8).await,
        }
    }
}

/// Every file ends, is whole on all its copies, has what was acknowledged, and no garbage stays.
async fn check_quiet(cluster: Rc<Cluster>) -> Result<(), String> {
    let files: Vec<_> = cluster.world.state.borrow().streams().map(|(file, _)| file).collect();
    for file in files {
        let sealed = Client::new(&cluster).change(StreamChange::seal(file)).await;
        if let Err(error) = sealed
            && error.kind != base::Kind::NotFound
        {
            return Err(format!("liveness: {file} is not sealed in the quiet phase: {error}"));
        }
        if !cluster.targets().is_empty() {
            let convert = StreamChange::Convert { file, wanted: true };
            let done = Client::new(&cluster).change(convert).await;
            done.map_err(|error| format!("liveness: {file} cannot be converted: {error}"))?;
        }
    }
    let mut why = String::new();
    for _ in 0..120 {
        match whole(&cluster) {
            Ok(()) => return Ok(()),
            Err(error) => why = error,
        }
        cluster.sim.sleep(Duration::from_millis(500)).await;
    }
    Err(format!("liveness: {why}"))
}

/// Conditions at the end of the quiet phase.
fn whole(cluster: &Rc<Cluster>) -> Result<(), String> {
    let mut coded = 0;
    let (state, servers) = (cluster.world.state.borrow(), cluster.model.servers.borrow());
    let replica = |place: ReplicaLocation, chunk: ChunkId| {
        servers[&place.server].replicas.get(&(place.disk, chunk))
    };
    for (file, stream) in state.streams() {
        if stream.needs_recovery() {
            return Err(format!("{file} is in recovery"));
        }
        for chunk in &stream.chunks {
            let len = chunk.sealed().ok_or(format!("{} is open", chunk.id))?;
            let acknowledged = cluster.world.acknowledged(chunk.id);
            // What stands in for a code has as many copies as survive the same losses.
            let policy = stream.policy;
            let form = [policy.copies, policy.in_copies().copies][usize::from(!chunk.is_coded())];
            let form = if cluster.targets().is_empty() { form } else { chunk.copies };
            if !cluster.targets().is_empty() && chunk.is_to_convert(policy) {
                return Err(format!("{file}: {chunk:?} has not the form of {policy}"));
            }
            if !chunk.is_sealed_everywhere()
                || chunk.copies != form
                || chunk.len_slots() != usize::from(form)
                || !chunk.missing(chunk.slots()).is_empty()
            {
                return Err(format!("{file}: {chunk:?} is not sealed on all copies"));
            }
            coded += usize::from(chunk.is_coded());
            for slot in chunk.slots() {
                let place = state.place(slot.place);
                let found = replica(place, chunk.id).ok_or(format!("{place:?} has none"))?;
                if found.state != ReplicaState::Sealed || found.bytes.len() != len as usize {
                    return Err(format!("{} at {place:?} is {found:?}, not {len}", chunk.id));
                }
                if found.fragment != chunk.fragment(slot) {
                    return Err(format!("{} at {place:?} is {:?}", chunk.id, found.fragment));
                }
                if found.base != chunk.base {
                    return Err(format!("{} at {place:?} has base {}", chunk.id, found.base));
                }
                if found.bytes.get(..acknowledged.len()) != Some(&acknowledged[..]) {
                    return Err(format!("1: acknowledged bytes of {} differ", chunk.id));
                }
            }
        }
    }
    for server in servers.values() {
        for &(disk, chunk) in server.replicas.keys() {
            let place = ReplicaLocation { server: server.id, disk };
            if !state.refers_to(chunk, place) {
                return Err(format!("5: {chunk} at {place:?} is left, and no chunk refers to it"));
            }
        }
    }
    if let Some((of, made)) = state.conversions().next() {
        return Err(format!("5: {of} is still converted to {made:?}"));
    }
    if state.dead_count() > 0 {
        return Err(format!("5: {} dead records are left", state.dead_count()));
    }
    let leader = cluster.world.leader.get() as usize;
    let status = cluster.services[leader - 1].status();
    if (status.under_replicated, status.lost, status.repair.pending) != (0, 0, 0) {
        return Err(format!("{status:?}"));
    }
    if coded > 0 {
        cluster.model.env.borrow().mark("coded chunks whole");
    }
    Ok(())
}

fn run(seed: u64, policy: Policy) -> Outcome {
    run_with(seed, policy, &[])
}

/// A run in which files are converted to each of some policies now and then.
fn run_with(seed: u64, policy: Policy, targets: &[Policy]) -> Outcome {
    let sim = Sim::new(seed);
    let copies = targets.iter().map(|target| target.copies).max().unwrap_or(0).max(policy.copies);
    let servers = sim.with_rng(|rng| rng.between(u64::from(copies) + 1, 8)) as u32;
    let cluster = Cluster::new(&sim, policy, servers);
    cluster.targets.set(targets.to_vec()).expect("once");
    cluster.services.iter().for_each(|service| service.start_background());
    let env = cluster.model.env.borrow().clone();
    let test = env.spawn(Class::Foreground, "test", {
        let cluster = cluster.clone();
        async move {
            let env = cluster.model.env.borrow().clone();
            let loads: Vec<_> = (0..4)
                .map(|number| env.spawn(Class::Foreground, "load", load(cluster.clone(), number)))
                .collect();
            disturb(cluster.clone()).await;
            cluster.stop.set(true);
            for load in loads {
                let _ = load.await;
            }
            check_quiet(cluster).await
        }
    });
    let quiet = sim.run(test).expect("no stall").expect("no crash");
    let violation = cluster.world.violation.borrow().clone().or(quiet.err());
    if std::env::var("CRATON_SEED").is_ok() {
        println!(
            "seed {seed}: {:?}, {} events, {} commands",
            sim.elapsed(),
            sim.events(),
            cluster.world.commands.get()
        );
    }
    Outcome {
        hash: sim.trace_hash(),
        acknowledged: cluster.world.acknowledged_bytes(),
        marks: sim.marks(),
        violation,
    }
}

const POLICIES: [Policy; 4] =
    [Policy::strict(3), Policy::plain(3, 2), Policy::plain(5, 3), Policy::strict(1)];

fn policy_of(seed: u64) -> Policy {
    POLICIES[(seed % 16 / 5) as usize]
}

/// Seeds of a run of all tests.
const SEEDS: u64 = 64;

/// Marks that they must reach together.
const RARE: &[&str] = &[
    "stream recovered",
    "recovery copies before the seal",
    "recovery without all votes",
    "damaged replica does not vote",
    "recovery ended by the leader",
    "short replica completed",
    "bad replica found",
    "chunk repaired",
    "dead replicas deleted",
];

const CODES: [Policy; 5] = [
    Policy::ec(2, 1),
    Policy::ec(4, 2),
    Policy::ec_strict(4, 2),
    Policy::ec(2, 2),
    Policy::ec(3, 2),
];

fn code_of(seed: u64) -> Policy {
    CODES[(seed % 5) as usize]
}

/// What runs of coded files must reach beside that.
const CODED: &[&str] = &["coded chunks whole", "no places for all fragments"];

fn seeds(default: Range<u64>) -> Range<u64> {
    let number = |text: &str| text.parse().expect("a number");
    if let Ok(seed) = std::env::var("CRATON_SEED") {
        return number(&seed)..number(&seed) + 1;
    }
    match std::env::var("CRATON_SEEDS") {
        Ok(range) => {
            let (from, to) = range.split_once("..").expect("a range a..b");
            number(from)..number(to)
        }
        Err(_) => default,
    }
}

#[test]
fn acknowledged_bytes_survive_and_garbage_does_not() {
    run_all(0..SEEDS, |seed| run(seed, policy_of(seed)), RARE);
}

/// The same of coded files: each fragment is there once in the end, and decodes.
#[test]
fn acknowledged_bytes_of_coded_files_survive_and_garbage_does_not() {
    run_all(2000..2000 + SEEDS, |seed| run(seed, code_of(seed)), &[RARE, CODED].concat());
}

const TARGETS: [Policy; 5] = [
    Policy::rep(2),
    Policy::rep(3),
    Policy::ec(2, 1),
    Policy::ec(2, 2),
    Policy::rep(2).compressed(Some(Compression::LZ4)),
];

/// What runs with conversions must reach beside that.
const CONVERTED: &[&str] = &[
    "conversion begun",
    "no places for a conversion",
    "conversion of another leader given up",
    "converted chunk was deleted",
    "what was converted reads otherwise",
    "chunk converted",
];

/// The same while files are converted to other policies: each chunk has that of its file in the end,
/// nothing is left of conversions that were given up, and servers may write other bytes than they say.
#[test]
fn acknowledged_bytes_survive_conversions() {
    let run = |seed| run_with(seed, Policy::strict(2 + seed as u8 % 2), &TARGETS);
    run_all(5000..5024, run, CONVERTED);
}

fn run_all(all: Range<u64>, run: impl Fn(u64) -> Outcome, rare: &[&str]) {
    let (mut marks, mut acknowledged) = (BTreeMap::new(), 0);
    let range = seeds(all.clone());
    let whole = range == all;
    // A change of the code shifts what a seed draws: further ones are run until all marks are reached.
    let most = if whole { range.start + 4 * SEEDS } else { range.end };
    let missed =
        |marks: &BTreeMap<_, u64>| rare.iter().copied().find(|rare| !marks.contains_key(rare));
    for seed in range.start..most {
        if seed >= range.end && missed(&marks).is_none() {
            break;
        }
        let outcome = run(seed);
        if let Some(violation) = outcome.violation {
            panic!("seed {seed}: {violation}");
        }
        acknowledged += outcome.acknowledged;
        for (mark, times) in outcome.marks {
            *marks.entry(mark).or_insert(0) += times;
        }
    }
    println!("{acknowledged} bytes acknowledged, {marks:#?}");
    if whole {
        assert_eq!(missed(&marks), None, "no run reached it");
    }
}

#[test]
fn equal_seeds_give_equal_runs() {
    let first = run(3, policy_of(3)).hash;
    assert_ne!(first, run(4, policy_of(4)).hash);
    assert_eq!(first, run(3, policy_of(3)).hash, "a run depends on those before it");
}

#[test]
fn planted_bugs_in_conversions_are_found() {
    for bug in [Planted::ConvertDropsEarly, Planted::ShadowForgotten] {
        plant(Some(bug));
        let found = (5000..5100).find_map(|seed| {
            run_with(seed, Policy::strict(2), &TARGETS).violation.map(|v| (seed, v))
        });
        plant(None);
        println!("{bug:?}: {found:?}");
        assert!(found.is_some(), "{bug:?} was not found");
    }
}

/// Bugs in recovery, each found by the checkers within some seeds.
#[test]
fn planted_bugs_in_recovery_are_found() {
    for (bug, policy, first) in [
        (Planted::ShortestVote, Policy::plain(5, 3), 1000),
        (Planted::OneVote, Policy::plain(3, 2), 1000),
        (Planted::NoFence, Policy::plain(3, 2), 1000),
        (Planted::DamagedVotes, Policy::strict(2), 1020),
        (Planted::VotesAsCopies, Policy::ec(4, 2), 3000),
        (Planted::SealBelowK, Policy::ec(4, 2), 3000),
        (Planted::SameFragmentTwice, Policy::ec(2, 1), 3000),
    ] {
        plant(Some(bug));
        let found =
            (first..first + 100).find_map(|seed| run(seed, policy).violation.map(|v| (seed, v)));
        plant(None);
        println!("{bug:?}: {found:?}");
        assert!(found.is_some(), "{bug:?} was not found");
    }
}
