//! Several owners compete for a segment, slow, paused, crashing, with answers lost and late.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use block_testing::device::{Loaded, load, whole};
use block_volume::contract::Device;
use block_volume::geometry::Extent;
use runtime::sim::CrashMode;
use runtime::{Class, Duration, Rng};

use crate::device::support::{BYTES, World, device, on, open, plan, small};

const OWNERS: u64 = 3;

fn fight(seed: u64, lose_one_in: u64, leaky_seal: bool) -> (Loaded, BTreeMap<&'static str, u64>) {
    let world = World::new(seed);
    let total = Rc::new(RefCell::new(Loaded::default()));
    let verdict: Rc<RefCell<Option<String>>> = Rc::default();
    let epochs = Rc::new(Cell::new(0));
    let (ended, sum, sim) = (verdict.clone(), total.clone(), world.sim.clone());
    let marks = world.run(async {
        world.disk.with_faults(|faults| {
            faults.lose_one_in = lose_one_in;
            faults.leaky_seal = leaky_seal;
            faults.refuse_one_in = 3 * lose_one_in;
        });
        let mut hosts: Vec<_> = (0..OWNERS).map(|_| None).collect();
        for turn in 0..40u64 {
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
                let (oracle, disk, at) = (world.oracle.clone(), world.disk.clone(), env.clone());
                let (verdict, total, epochs) = (verdict.clone(), total.clone(), epochs.clone());
                let mut rng = Rng::new(seed ^ turn << 20);
                env.spawn(Class::Foreground, "owner", async move {
                    loop {
                        // As a manager does: no two owners have one epoch.
                        let epoch = epochs.get() + 1;
                        epochs.set(epoch);
                        let lived = match open(&at, &disk, epoch, small()).await {
                            Ok(segment) => {
                                let oracle = oracle.owned_by(epoch);
                                load(&at, device(&segment), &oracle, &mut rng, plan(40)).await
                            }
                            Err(fault) => match fault.kind {
                                base::Kind::Corrupt | base::Kind::Invalid => {
                                    Err(format!("not opened: {fault}"))
                                }
                                _ => Ok(Loaded::default()),
                            },
                        };
                        match lived {
                            Ok(loaded) => {
                                let total = &mut *total.borrow_mut();
                                total.done += loaded.done;
                                total.unknown += loaded.unknown;
                                total.refused += loaded.refused;
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
        // Quiet: late messages arrive, and one owner finds all of it.
        hosts.into_iter().flatten().for_each(|host| sim.crash(host, CrashMode::Process));
        world.disk.with_faults(|faults| (faults.lose_one_in, faults.refuse_one_in) = (0, 0));
        sim.sleep(Duration::from_secs(2)).await;
        if verdict.borrow().is_none() {
            let (_, env) = world.boot();
            let (oracle, disk, at) = (world.oracle.clone(), world.disk.clone(), env.clone());
            let last = on(&env, async move {
                let text = |fault: base::Fault| fault.to_string();
                let segment = open(&at, &disk, u64::MAX, small()).await.map_err(text)?;
                let oracle = oracle.owned_by(u64::MAX);
                oracle.settle(&whole(&segment).await.map_err(text)?)?;
                load(&at, device(&segment), &oracle, &mut Rng::new(seed), plan(20)).await?;
                segment.checkpoint().await.map_err(text)?;
                at.sleep(Duration::from_secs(1)).await;
                // Liveness: no DataFile is left that the table does not name.
                let names = disk.names().into_iter().filter(|name| name.starts_with("data-"));
                let (names, stats) = (names.count(), segment.stats());
                if names > stats.files + 1 {
                    return Err(format!("{names} DataFiles, {stats:?}"));
                }
                segment.read(Extent { offset: BYTES - 1, len: 1 }).await.map_err(text)?;
                segment.close().await.map_err(text)
            });
            *verdict.borrow_mut() = last.await.expect("no crash").err();
        }
        sim.marks()
    });
    if let Some(what) = ended.take() {
        panic!("seed {seed}: {what}");
    }
    (*sum.borrow(), marks)
}

#[test]
fn owners_never_lose_or_mix_what_was_answered() {
    let mut total = Loaded::default();
    let mut marks: BTreeMap<&'static str, u64> = BTreeMap::new();
    for seed in 0..16 {
        let (loaded, seen) = fight(seed, if seed % 2 == 0 { 0 } else { 30 }, false);
        total.done += loaded.done;
        total.unknown += loaded.unknown;
        seen.into_iter().for_each(|(mark, count)| *marks.entry(mark).or_default() += count);
    }
    println!("{total:?} {marks:?}");
    assert!(total.done > 2000 && total.unknown > 50, "{total:?}");
    for mark in [
        "segment: next DataFile",
        "segment: checkpoint",
        "segment: orphan removed",
        "segment: DataFile collected",
    ] {
        assert!(marks.contains_key(mark), "{mark} was not reached: {marks:?}");
    }
}

/// A store whose seal lets the old writer go on is found out.
#[test]
#[should_panic(expected = "seed")]
fn the_canary_fails() {
    (0..8).for_each(|seed| drop(fight(seed, 0, true)));
}

/// An earlier owner of the segment that comes late does not disturb the present one.
#[test]
fn late_owner_is_refused_before_it_fences_another() {
    let world = World::new(9);
    world.run(async {
        let (_, env) = world.boot();
        let (disk, at) = (world.disk.clone(), env.clone());
        let done = on(&env, async move {
            let segment = open(&at, &disk, 5, small()).await.expect("it is new");
            let data = at.pool().copy_of(&[1; 4096]).expect("within the budget");
            for epoch in [4, 1] {
                let late = open(&at, &disk, epoch, small()).await;
                assert_eq!(late.unwrap_err().kind, base::Kind::Fenced);
                segment.write(0, data.clone()).await.expect("it is still the owner");
            }
            // Without room an opening fails with that reason, and goes on when there is some.
            segment.close().await.expect("all is well");
            disk.with_faults(|faults| faults.full = true);
            let full = open(&at, &disk, 6, small()).await.unwrap_err();
            assert_eq!(full.kind, base::Kind::Full, "{full}");
            disk.with_faults(|faults| (faults.full, faults.full_for_new) = (false, true));
            // A cluster that has no room for new chunks still gives names: none of them may stay.
            let before = disk.names().len();
            for _ in 0..20 {
                let full = open(&at, &disk, 6, small()).await.unwrap_err();
                assert_eq!(full.kind, base::Kind::Full, "{full}");
            }
            at.sleep(Duration::from_millis(100)).await;
            assert!(disk.names().len() <= before + 2, "{:?}", disk.names());
            disk.with_faults(|faults| faults.full_for_new = false);
            let segment = open(&at, &disk, 6, small()).await.expect("there is room again");
            assert_eq!(segment.read(Extent { offset: 0, len: 1 }).await.unwrap()[..], [1]);
        });
        done.await.expect("no crash");
    });
}
