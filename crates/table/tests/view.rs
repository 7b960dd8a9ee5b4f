//! Views of tables that another instance owns, or none.

use std::collections::BTreeMap;
use std::rc::Rc;

use runtime::sim::CrashMode;
use runtime::{Duration, Env};
use table::{Batch, Cache, Error, Options, Range, Snapshot, Table};

use crate::support::{World, small};

async fn open_view(world: &World, env: &Env) -> Result<Snapshot, Error> {
    Table::open_view(env, world.disk.store(env), &Cache::new(16 << 10)).await
}

/// All names in the directory; a page may be short.
async fn names(world: &World, env: &Env) -> Vec<String> {
    let (store, mut found) = (world.disk.store(env), Vec::<String>::new());
    loop {
        let after = found.last().cloned().unwrap_or_default();
        let page = store.list(&after).await.expect("it lists");
        found.extend(page.names);
        if !page.more {
            return found;
        }
    }
}

async fn all(seen: &Snapshot) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, Error> {
    Ok(seen.scan(Range::all()).take(usize::MAX).await?.into_iter().collect())
}

#[test]
fn view_of_a_closed_table_is_complete_and_writes_nothing() {
    let world = World::new(1);
    world.run(async {
        let (_, env) = world.boot();
        let refused = open_view(&world, &env).await.expect_err("there is none");
        assert!(matches!(refused, Error::NotFound { .. }), "{refused}");
        let table = world.open(&env, small()).await.expect("it is made");
        let mut model = BTreeMap::new();
        for n in 0..600u32 {
            let (key, value) = ((n * 7 % 400).to_be_bytes().to_vec(), vec![n as u8; 64]);
            table.put(&key, &value).await.expect("it is stored");
            model.insert(key, value);
        }
        table.delete(&0u32.to_be_bytes()).await.expect("it is stored");
        model.remove(0u32.to_be_bytes().as_slice());
        let before = table.stats();
        assert!(before.flushes > 0 && before.memory > 0, "runs and a log: {before:?}");
        table.close().await.expect("it is closed");
        let left = names(&world, &env).await;
        for _ in 0..2 {
            let seen = open_view(&world, &env).await.expect("it is there");
            assert_eq!(all(&seen).await.expect("it reads"), model);
            assert_eq!(seen.get(&0u32.to_be_bytes()).await, Ok(None));
        }
        assert_eq!(names(&world, &env).await, left);
    });
}

#[test]
fn view_of_an_owned_table_shows_a_prefix_and_the_owner_goes_on() {
    for (seed, data_log_bytes) in [(0, 0), (1, 0), (2, 0), (3, 0), (4, 24 << 10), (5, 64 << 10)] {
        let world = World::new(seed);
        let mut seen_late = false;
        world.run(async {
            let (_, env) = world.boot();
            // Manifests roll, logs end, runs are merged while views are opened.
            let options = Options { memtable_bytes: 4 << 10, data_log_bytes, ..small() };
            let table = world.open(&env, options).await.expect("it is made");
            let (_, other) = world.boot();
            for n in 1..400u64 {
                table.put(b"count", &n.to_le_bytes()).await.expect("no other owner is there");
                let mut batch = Batch::new();
                match data_log_bytes {
                    0 => batch.put(&n.to_be_bytes(), &[7; 200]),
                    _ => batch.put_with_data(&n.to_be_bytes(), &[7; 200], 9, Rc::new(vec![8; 900])),
                };
                table.write(&batch).await.expect("no other owner is there");
                if n % 20 != 0 {
                    continue;
                }
                let seen = open_view(&world, &other).await.expect("it is there");
                let value = match seen.get(b"count").await {
                    Ok(value) => value,
                    // Its owner has merged files that the view still names.
                    Err(Error::Missing { .. } | Error::Fenced { .. }) => continue,
                    Err(error) => panic!("{error}"),
                };
                let count =
                    value.map_or(0, |value| u64::from_le_bytes(value.try_into().expect("8 bytes")));
                // Of what it did last, its owner's files may not show all.
                assert!(count <= n, "{n}: {count}");
                // It is one moment: what came before the last change is there, nothing behind it.
                match all(&seen).await {
                    Ok(rows) => {
                        let rows = rows.len() as u64 - u64::from(count > 0);
                        assert!(rows == count || rows + 1 == count, "{rows} rows at {count}");
                        seen_late |= count + 20 > n;
                    }
                    Err(error) => {
                        assert!(matches!(error, Error::Missing { .. } | Error::Fenced { .. }));
                    }
                }
                env.sleep(Duration::from_millis(1)).await;
            }
        });
        assert!(seen_late, "it saw what is there");
    }
}

/// All servers have restarted, and so do not know what was acknowledged of files that are not sealed. A
/// manifest has its first edit all the same: it got its name behind that.
#[test]
fn view_of_a_table_whose_servers_have_restarted_finds_no_damage() {
    for (seed, count, owned) in [(0, 0, false), (1, 3, false), (2, 300, false), (3, 300, true)] {
        let world = World::new(seed);
        world.run(async {
            let (_, env) = world.boot();
            let table = world.open(&env, small()).await.expect("it is made");
            for n in 0..count {
                table.put(&u64::to_be_bytes(n), &[7; 64]).await.expect("no other owner is there");
            }
            let (host, other) = world.boot();
            if !owned {
                // Another one has taken the table over, and is gone.
                drop(world.open(&other, small()).await.expect("it is taken over"));
                world.sim.crash(host, CrashMode::Power);
            }
            world.disk.forget_ends();
            let (_, third) = world.boot();
            match open_view(&world, &third).await {
                Ok(seen) => {
                    let rows = all(&seen).await.expect("nothing is removed").len() as u64;
                    assert!(rows <= count, "{seed}: {rows} rows");
                }
                // Files that the first edit names have been removed since.
                Err(Error::Missing { .. }) if owned => {}
                Err(error) => panic!("{seed}: {error}"),
            }
            if owned {
                table.put(b"more", b"").await.expect("no other owner is there");
            }
            let table = world.open(&third, small()).await.expect("it is taken over");
            let rows = table.snapshot().scan(Range::all()).take(usize::MAX).await;
            let rows = rows.expect("it reads").len() as u64;
            assert_eq!(rows, count + u64::from(owned), "{seed}");
        });
    }
}
