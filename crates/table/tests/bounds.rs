//! Bounds: of memory, of queues, of what may be written.

use base::Kind;
use futures_util::future::join_all;
use runtime::Duration;
use table::limits::{BATCH_BYTES_MAX, KEY_MAX, QUEUE_BATCHES_MAX, VALUE_MAX};
use table::{Batch, Cache, Error, Options, Pressure, Range, Table};

use crate::support::{World, small};

#[test]
fn a_full_queue_refuses_and_loses_nothing() {
    let world = World::new(1);
    world.run(async {
        let (_, env) = world.boot();
        let table = world.open(&env, Options::default()).await.unwrap();
        let mut started = Vec::new();
        let refused = loop {
            let number = started.len() as u32;
            match table.submit(Batch::new().put(&number.to_be_bytes(), b"x")) {
                Ok(outcome) => started.push(outcome),
                Err(error) => break error,
            }
        };
        let cause = Pressure::Queue;
        assert!(matches!(refused, Error::Busy { cause: c, .. } if c == cause), "{refused}");
        assert_eq!(started.len(), QUEUE_BATCHES_MAX);
        for (number, outcome) in join_all(started).await.into_iter().enumerate() {
            assert_eq!(outcome.unwrap().get(), number as u64 + 1, "in the order of submission");
        }
        assert_eq!(table.stats().refused, 1);
        table.put(b"y", b"").await.unwrap();
    });
}

#[test]
fn slow_flushes_hold_writes_up_and_memory_stays_small() {
    let world = World::new(2);
    world.run(async {
        let (_, env) = world.boot();
        let options = Options { memtable_bytes: 64 << 10, ..small() };
        let table = world.open(&env, options).await.unwrap();
        world.disk.with_faults(|faults| {
            faults.latency = (Duration::from_millis(5), Duration::from_millis(20));
        });
        let (mut written, mut held_up, mut most) = (0u32, 0, 0);
        while written < 6000 {
            let mut batch = Batch::new();
            for n in 0..20 {
                batch.put(&(written + n).to_be_bytes(), &[7; 200]);
            }
            match table.submit(&batch) {
                Ok(outcome) => {
                    written += 20;
                    drop(outcome); // Its acknowledgement is not waited for.
                }
                Err(Error::Busy { cause: Pressure::Flush, retry_after, .. }) => {
                    held_up += 1;
                    env.sleep(retry_after).await;
                }
                Err(error) => panic!("{error}"),
            }
            env.sleep(Duration::from_millis(5)).await;
            most = most.max(table.stats().memory);
        }
        assert!(held_up > 0, "never held up");
        assert!(most < 3 * (128 << 10), "{most} bytes of memory");
        while table.barrier().await.is_err() {
            env.sleep(Duration::from_millis(20)).await;
        }
        table.flush().await.unwrap();
        let entries = table.scan(Range::all()).take(usize::MAX).await.unwrap();
        assert_eq!(entries.len(), 6000);
    });
}

#[test]
fn concurrent_writers_share_appends() {
    let world = World::new(3);
    world.run(async {
        let (_, env) = world.boot();
        let table = world.open(&env, Options::default()).await.unwrap();
        for round in 0..20u32 {
            let writers = (0..32u32).map(|writer| {
                let table = table.clone();
                async move { table.put(&(round << 8 | writer).to_be_bytes(), b"v").await }
            });
            join_all(writers).await.into_iter().for_each(|done| {
                done.unwrap();
            });
        }
        let stats = table.stats();
        assert_eq!(stats.batches, 640);
        assert!(stats.groups <= 60, "{} appends for 640 batches of 32 writers", stats.groups);
    });
}

/// Batches an append, with callers who write again a little after each answer.
fn batches_an_append(callers: u32) -> f64 {
    let world = World::new(6);
    world.run(async {
        let (_, env) = world.boot();
        let table = world.open(&env, Options::default()).await.unwrap();
        let work = (0..callers).map(|caller| {
            let (table, env) = (table.clone(), env.clone());
            async move {
                for round in 0..200u32 {
                    table.put(&(round << 8 | caller).to_be_bytes(), b"v").await.unwrap();
                    env.sleep(env.jitter(Duration::from_micros(100))).await;
                }
            }
        });
        join_all(work).await;
        let stats = table.stats();
        stats.batches as f64 / stats.groups as f64
    })
}

#[test]
fn callers_who_were_just_answered_share_the_next_append() {
    let eight = batches_an_append(8);
    assert!(eight > 6.0, "{eight} batches of eight callers an append");
    // So few are answered soon instead.
    assert_eq!(batches_an_append(1), 1.0);
}

#[test]
fn the_cache_keeps_its_limit_and_serves_all_tables() {
    let world = World::new(4);
    world.run(async {
        let (_, env) = world.boot();
        let cache = Cache::new(20 << 10);
        let table = Table::open(&env, world.disk.store(&env), &cache, small()).await.unwrap();
        for n in 0..2000u32 {
            table.put(&n.to_be_bytes(), &n.to_le_bytes().repeat(10)).await.unwrap();
        }
        table.flush().await.unwrap();
        for n in (0..2000u32).rev() {
            let value = table.get(&n.to_be_bytes()).await.unwrap();
            assert_eq!(value, Some(n.to_le_bytes().repeat(10)));
            assert!(cache.bytes() <= 20 << 10);
        }
        let (hits, misses) = cache.hits_and_misses();
        assert!(hits > 2000 && misses > 50, "{hits} hits, {misses} misses");
    });
}

#[test]
fn a_full_store_stops_writes_and_keeps_what_was_acknowledged() {
    let world = World::new(5);
    world.run(async {
        let (_, env) = world.boot();
        let table = world.open(&env, small()).await.unwrap();
        table.put(b"a", b"1").await.unwrap();
        world.disk.with_faults(|faults| faults.full = true);
        let failed = table.put(b"b", b"2").await.unwrap_err();
        assert!(matches!(failed, Error::Unknown { .. }), "{failed}");
        let later = table.put(b"c", b"3").await.unwrap_err();
        assert!(matches!(later, Error::Stopped { .. }), "{later}");
        assert!(later.to_string().contains("the cluster is full"), "{later}");
        assert_eq!(table.get(b"a").await.unwrap().as_deref(), Some(&b"1"[..]));
        world.disk.with_faults(|faults| faults.full = false);
        let table = world.open(&env, small()).await.unwrap();
        assert_eq!(table.get(b"a").await.unwrap().as_deref(), Some(&b"1"[..]));
        table.put(b"c", b"3").await.unwrap();
    });
}

/// A cluster that has no room for new chunks still gives names: none of them may stay.
#[test]
fn names_of_files_that_a_full_store_refuses_are_removed() {
    let world = World::new(8);
    world.run(async {
        let (_, env) = world.boot();
        let table = world.open(&env, small()).await.unwrap();
        table.put(b"a", b"1").await.unwrap();
        world.disk.with_faults(|faults| faults.full_for_new = true);
        let before = world.disk.names().len();
        // The next log, the next sorted file: tried again and again.
        let flush = env.timeout(Duration::from_secs(30), table.flush()).await;
        assert!(flush.is_err(), "there is no room: {flush:?}");
        assert!(world.disk.names().len() <= before + 2, "{:?}", world.disk.names());
        drop(table);
        for _ in 0..20 {
            let full = world.open(&env, small()).await.expect_err("there is no room");
            assert_eq!(full.kind(), Kind::Full, "{full}");
        }
        env.sleep(Duration::from_millis(10)).await;
        assert!(world.disk.names().len() <= before + 2, "{:?}", world.disk.names());
        world.disk.with_faults(|faults| faults.full_for_new = false);
        let table = world.open(&env, small()).await.unwrap();
        assert_eq!(table.get(b"a").await.unwrap().as_deref(), Some(&b"1"[..]));
    });
}

#[test]
fn what_is_too_large_is_refused() {
    let world = World::new(6);
    world.run(async {
        let (_, env) = world.boot();
        let missing = Options { create: false, ..small() };
        let error = world.open(&env, missing).await.unwrap_err();
        assert!(matches!(error, Error::NotFound { .. }), "{error}");
        let table = world.open(&env, small()).await.unwrap();
        table.put(&[1; KEY_MAX], &vec![2; VALUE_MAX]).await.unwrap();
        let mut large = Batch::new();
        for n in 0..=(BATCH_BYTES_MAX / VALUE_MAX) as u8 {
            large.put(&[n], &vec![0; VALUE_MAX]);
        }
        let key_bounds = format!("a key has 1 to {KEY_MAX} bytes");
        for (bad, says) in [
            (Batch::new().put(b"", b"v"), key_bounds.as_str()),
            (Batch::new().put(&[1; KEY_MAX + 1], b"v"), &key_bounds),
            (Batch::new().put(b"k", &vec![0; VALUE_MAX + 1]), "a value has"),
            (&mut large, "split it"),
        ] {
            let error = table.write(bad).await.unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
        }
        assert_eq!(table.get(b"").await.unwrap(), None);
        assert_eq!(table.get(&[1; KEY_MAX + 1]).await.unwrap(), None);
        table.flush().await.unwrap();
        let got = table.get(&[1; KEY_MAX]).await.unwrap().unwrap();
        assert_eq!(got, vec![2; VALUE_MAX]);
    });
}

/// Keys that differ in their last byte alone, so that blocks and indexes hold all of each.
#[test]
fn longest_keys_are_read_from_memory_from_files_and_after_an_opening() {
    let world = World::new(9);
    world.run(async {
        let (_, env) = world.boot();
        let key = |n: u8| [&[0; KEY_MAX - 1][..], &[n]].concat();
        let check = async |table: &Table| {
            let entries = table.scan(Range::all()).take(usize::MAX).await.unwrap();
            assert!(
                entries.iter().map(|entry| &entry.0).eq(&(0..200).map(key).collect::<Vec<_>>())
            );
            for n in 0..200 {
                assert_eq!(table.get(&key(n)).await.unwrap(), Some(vec![n; 9]));
                assert_eq!(table.get(&key(n)[1..]).await.unwrap(), None);
            }
        };
        let options = Options { memtable_bytes: 4 << 20, ..small() };
        let table = world.open(&env, options.clone()).await.unwrap();
        for n in 0..200 {
            table.put(&key(n), &[n; 9]).await.unwrap();
        }
        check(&table).await;
        let table = world.open(&env, options).await.unwrap();
        check(&table).await;
        table.flush().await.unwrap();
        table.compact().await.unwrap();
        check(&table).await;
        assert!(table.stats().files > 0);
    });
}

/// Writing one key again and again takes no memory, and no long log either.
#[test]
fn one_key_written_often_stays_small() {
    let world = World::new(7);
    world.run(async {
        let (_, env) = world.boot();
        let table = world.open(&env, small()).await.unwrap();
        for n in 0..4000u32 {
            table.put(b"counter", &n.to_le_bytes().repeat(8)).await.unwrap();
            assert!(table.stats().memory < 16 << 10);
        }
        let logs = world.disk.names().into_iter().filter(|name| name.starts_with("log-"));
        let bytes: usize = logs.map(|log| world.disk.content(&log).unwrap().len()).sum();
        assert!(bytes < 100 << 10, "{bytes} bytes of logs");
    });
}
