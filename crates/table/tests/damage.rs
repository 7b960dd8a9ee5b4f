//! Damaged, missing and foreign files: typed errors that name the file, and no wrong answer.

use base::Kind;
use runtime::sim::CrashMode;
use runtime::{Env, Rng};
use table::{Error, Options, Range, Table};

use crate::support::{World, small};

fn options() -> Options {
    Options { auto_compact: false, ..small() }
}

fn key(n: u64) -> Vec<u8> {
    format!("key/{n:06}").into_bytes()
}

fn value(n: u64) -> Vec<u8> {
    format!("value {n} ").repeat(1 + n as usize % 9).into_bytes()
}

/// A table with two runs and changes in a log, whose owner is gone.
async fn fill(world: &World) {
    let (host, env) = world.boot();
    let table = world.open(&env, options()).await.unwrap();
    for n in 0..300 {
        table.put(&key(n), &value(n)).await.unwrap();
        if n == 200 {
            table.flush().await.unwrap();
        }
    }
    world.sim.crash(host, CrashMode::Process);
}

fn name_of(world: &World, kind: &str) -> String {
    let names = world.disk.names();
    let mut found = names.iter().filter(|name| name.starts_with(kind));
    found.next_back().unwrap_or_else(|| panic!("no {kind} in {names:?}")).clone()
}

async fn check_whole(table: &Table) {
    let entries = table.scan(Range::all()).take(usize::MAX).await.unwrap();
    assert!(entries.into_iter().eq((0..300).map(|n| (key(n), value(n)))));
}

/// Opens, or finds the error of opening or of reading all.
async fn use_all(world: &World, env: &Env) -> Result<(), Error> {
    let table = world.open(env, options()).await?;
    let entries = table.scan(Range::all()).take(usize::MAX).await?;
    assert!(entries.into_iter().eq((0..300).map(|n| (key(n), value(n)))), "wrong content");
    for n in 0..300 {
        assert_eq!(table.get(&key(n)).await?, Some(value(n)), "wrong value");
    }
    Ok(())
}

#[test]
fn missing_files_are_named_and_the_rest_is_kept() {
    for kind in ["sorted-", "log-", "manifest-"] {
        let world = World::new(3);
        world.run(async {
            fill(&world).await;
            let name = name_of(&world, kind);
            let content = world.disk.content(&name).unwrap();
            world.disk.set_content(&name, None);
            let (host, env) = world.boot();
            let error = world.open(&env, options()).await.unwrap_err();
            let named = if kind == "manifest-" { "mem/manifest-*" } else { &name };
            assert!(matches!(error, Error::Missing { .. }), "{error}");
            assert!(error.to_string().contains(named), "{error}");
            assert_eq!(error.kind(), Kind::Corrupt);
            world.disk.set_content(&name, Some(content));
            let table = world.open(&env, options()).await.unwrap();
            check_whole(&table).await;
            world.sim.crash(host, CrashMode::Process);
        });
    }
}

#[test]
fn other_versions_are_refused() {
    for (kind, at) in [("log-", 8), ("manifest-", 8), ("sorted-", usize::MAX)] {
        let world = World::new(4);
        world.run(async {
            fill(&world).await;
            let name = name_of(&world, kind);
            let mut content = world.disk.content(&name).unwrap();
            let at = if at == usize::MAX { content.len() - 56 } else { at };
            content[at] = 9;
            world.disk.set_content(&name, Some(content));
            let (_, env) = world.boot();
            match use_all(&world, &env).await {
                Err(Error::Version { file, seen: 9 }) => assert!(file.ends_with(&name)),
                other => panic!("{kind}: {other:?}"),
            }
        });
    }
}

/// Every change of a byte is an error that names the file, or makes no difference.
#[test]
fn no_damaged_byte_gives_a_wrong_answer() {
    let (mut refused, mut harmless) = (0, 0);
    for seed in 0..150 {
        let world = World::new(5);
        let damaged = world.run(async {
            fill(&world).await;
            let mut rng = Rng::new(seed);
            let kind = *rng.pick(&["sorted-", "log-", "manifest-"]);
            let name = name_of(&world, kind);
            let mut content = world.disk.content(&name).unwrap();
            let at = rng.below(content.len() as u64) as usize;
            content[at] ^= 1 << rng.below(8);
            world.disk.set_content(&name, Some(content));
            let (_, env) = world.boot();
            match use_all(&world, &env).await {
                Ok(()) => None,
                Err(error) => {
                    let text = error.to_string();
                    assert!(text.contains(&name), "seed {seed}: {name}: {text}");
                    let fits = matches!(error, Error::Corrupt { .. } | Error::Version { .. });
                    Some(fits)
                }
            }
        });
        match damaged {
            None => harmless += 1,
            Some(fits) => {
                assert!(fits, "seed {seed}");
                refused += 1;
            }
        }
    }
    // Only bytes that nothing reads again are without effect: the head of a sorted file.
    assert!(refused > 130, "{refused} refused, {harmless} without effect");
}

#[test]
fn a_manifest_cut_within_its_first_edit_is_damaged() {
    let world = World::new(6);
    world.run(async {
        fill(&world).await;
        let name = name_of(&world, "manifest-");
        let whole = world.disk.content(&name).unwrap();
        for len in [0, 20, 32, 50] {
            world.disk.set_content(&name, Some(whole[..len].to_vec()));
            let (_, env) = world.boot();
            let error = world.open(&env, options()).await.unwrap_err();
            assert!(matches!(error, Error::Corrupt { .. }), "{error}");
        }
        // An edit that was under way when its writer died is not there.
        let mut torn = whole.clone();
        torn.extend_from_slice(&[1, 2, 3]);
        world.disk.set_content(&name, Some(torn));
        let (_, env) = world.boot();
        check_whole(&world.open(&env, options()).await.unwrap()).await;
    });
}
