//! Several owners fight for a table, slow, paused, crashing, with answers lost and late.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use runtime::sim::CrashMode;
use runtime::{Class, Duration, Rng};
use table::{Batch, Cache, Options, Table};
use testing::tables::{Oracle, Owned, own};

use crate::support::{World, on, small, small_with_data};

const OWNERS: u64 = 3;

fn fight(
    seed: u64,
    options: &Options,
    lose_one_in: u64,
    leaky_seal: bool,
) -> (Owned, BTreeMap<&'static str, u64>) {
    let world = World::new(seed);
    let oracle = Oracle::new();
    let total = Rc::new(RefCell::new(Owned::default()));
    let verdict: Rc<RefCell<Option<String>>> = Rc::default();
    let (ended, sum) = (verdict.clone(), total.clone());
    let sim = world.sim.clone();
    let marks = world.run(async {
        world.disk.with_faults(|faults| {
            faults.lose_one_in = lose_one_in;
            faults.leaky_seal = leaky_seal;
            faults.refuse_one_in = 3 * lose_one_in;
        });
        let mut hosts: Vec<_> = (0..OWNERS).map(|_| None).collect();
        for turn in 0..60u64 {
            let index = sim.with_rng(|rng| rng.below(OWNERS)) as usize;
            // Now and then an owner sleeps with calls under way, or dies.
            if let Some(host) = hosts[index] {
                match sim.with_rng(|rng| rng.below(3)) {
                    0 => {
                        let nap = sim.with_rng(|rng| rng.between(1, 400));
                        sim.pause(host, Duration::from_millis(nap));
                    }
                    1 => {
                        sim.crash(host, CrashMode::Process);
                        hosts[index] = None;
                    }
                    _ => {}
                }
            } else {
                let (host, env) = world.boot();
                hosts[index] = Some(host);
                let (oracle, disk, at) = (oracle.clone(), world.disk.clone(), env.clone());
                let (verdict, total) = (verdict.clone(), total.clone());
                let mut rng = Rng::new(seed ^ turn << 20);
                let options = options.clone();
                env.spawn(Class::Foreground, "owner", async move {
                    let cache = Cache::new(16 << 10);
                    loop {
                        let store = disk.store(&at);
                        let opened = Table::open(&at, store, &cache, options.clone()).await;
                        let lived = match opened {
                            Ok(table) => {
                                own(&at, &table, &oracle, &mut rng, (40, Duration::ZERO)).await
                            }
                            Err(error) => match error.kind() {
                                base::Kind::Corrupt | base::Kind::Invalid => {
                                    Err(format!("not opened: {error}"))
                                }
                                _ => Ok(Owned::default()),
                            },
                        };
                        match lived {
                            Ok(owned) => {
                                let total = &mut *total.borrow_mut();
                                total.acked += owned.acked;
                                total.fresh_reads += owned.fresh_reads;
                                total.busy += owned.busy;
                            }
                            Err(what) => {
                                verdict.borrow_mut().get_or_insert(what);
                                return;
                            }
                        }
                        at.sleep(Duration::from_micros(rng.below(20_000))).await;
                    }
                });
            }
            let pause = sim.with_rng(|rng| rng.between(1, 60));
            sim.sleep(Duration::from_millis(pause)).await;
            if verdict.borrow().is_some() {
                break;
            }
        }
        // Quiet: what is late comes, and one owner finds all of it.
        hosts.into_iter().flatten().for_each(|host| sim.crash(host, CrashMode::Process));
        world.disk.with_faults(|faults| (faults.lose_one_in, faults.refuse_one_in) = (0, 0));
        sim.sleep(Duration::from_secs(2)).await;
        if verdict.borrow().is_none() {
            let (_, env) = world.boot();
            let table = world.open(&env, options.clone()).await;
            let table = table.expect("nothing is wrong any more");
            let last = own(&env, &table, &oracle, &mut Rng::new(seed), (10, Duration::ZERO)).await;
            if let Err(what) = last {
                *verdict.borrow_mut() = Some(what);
            }
            table.flush().await.expect("nothing is wrong");
            table.compact().await.expect("nothing is wrong");
            sim.sleep(Duration::from_secs(1)).await;
            let stats = table.stats();
            // Liveness: nothing is left but what the table consists of: a manifest, a log or
            // two, its files. The next opening sweeps drafts of its own number, which others that
            // raced with this one may have left.
            let mut names = world.disk.names();
            names.retain(|name| !name.starts_with(&format!("draft-{:08x}-", stats.generation)));
            if names.len() > stats.files + 3 + stats.frozen + table.data_logs().len() {
                let mut verdict = verdict.borrow_mut();
                verdict.get_or_insert(format!("{stats:?} has left {names:?}"));
            }
        }
        sim.marks()
    });
    if let Some(what) = ended.take() {
        panic!("seed {seed}: {what}");
    }
    (*sum.borrow(), marks)
}

/// Fights of many seeds, which must reach `more` marks beside those of all tables.
fn fights(options: &Options, more: &[&str]) {
    let mut total = Owned::default();
    let mut marks: BTreeMap<&'static str, u64> = BTreeMap::new();
    for seed in 0..16 {
        let lose_one_in = if seed % 2 == 0 { 0 } else { 30 };
        let (owned, seen) = fight(seed, options, lose_one_in, false);
        total.acked += owned.acked;
        total.fresh_reads += owned.fresh_reads;
        seen.into_iter().for_each(|(mark, count)| *marks.entry(mark).or_default() += count);
    }
    println!("{total:?} {marks:?}");
    assert!(total.acked > 2000 && total.fresh_reads > 100, "{total:?}");
    let all = [
        "table: another engine published",
        "table: opening began again",
        "table: orphan collected",
        "table: memtable flushed",
        "table: runs merged",
        "table: manifest rolled over",
    ];
    for mark in all.iter().chain(more) {
        assert!(marks.contains_key(mark), "{mark} was not reached: {marks:?}");
    }
}

#[test]
fn owners_never_lose_or_mix_what_was_acknowledged() {
    fights(&small(), &[]);
}

#[test]
fn owners_never_lose_or_mix_data() {
    let more = [
        "table: log goes on behind a memtable",
        "table: log kept for its data",
        "table: log released",
    ];
    fights(&small_with_data(), &more);
}

/// A store whose seal lets the old writer go on is found out.
#[test]
#[should_panic(expected = "seed")]
fn the_canary_fails() {
    (0..8).for_each(|seed| drop(fight(seed, &small(), 0, true)));
}

/// An owner with a lower number than one before it is refused, and the other goes on.
#[test]
fn opening_with_an_older_number_changes_nothing() {
    let world = World::new(3);
    world.run(async {
        let (_, env) = world.boot();
        let at = env.clone();
        let disk = world.disk.clone();
        let done = on(&env, async move {
            let open = async |owner| {
                let options = Options { owner, ..small() };
                Table::open(&at, disk.store(&at), &Cache::new(16 << 10), options).await
            };
            let table = open(7).await.expect("it is new");
            for round in 0..200u32 {
                let mut batch = Batch::new();
                batch.put(&round.to_be_bytes(), &[7; 60]);
                table.write(&batch).await.expect("no other owner is there");
                // Its manifest was rolled over by then, more than once.
                if round % 50 == 0 {
                    assert!(matches!(open(6).await, Err(table::Error::Fenced { .. })));
                }
            }
            // The same owner again, one after it, and one that has no number.
            for owner in [7, 9, 0] {
                let next = open(owner).await.expect("it is in time");
                assert!(matches!(table.barrier().await, Err(table::Error::Fenced { .. })));
                next.barrier().await.expect("it is the owner");
            }
            assert!(matches!(open(8).await, Err(table::Error::Fenced { .. })));
        });
        done.await.expect("no crash");
    });
}
