//! The whole client against a cluster in memory.

use std::future::Future;
use std::rc::Rc;

use base::Kind;
use client::{Client, Config, Error, FlatLogFile};
use futures_util::future::join;
use runtime::sim::Sim;
use runtime::{Class, Duration, Env, Rng};
use wire::control::{Attributes, Compression, Node, Policy, ReplicaFault};

use crate::fake::{Fake, Health};

/// A sealed file of `len` bytes, and these.
pub async fn sealed(client: &Client, len: usize) -> (FlatLogFile, Vec<u8>) {
    let file = client.create("/file", Policy::strict(3), 0o644, true).await.unwrap();
    let data = bytes(7, len);
    let appender = file.append_handle().await.unwrap();
    appender.append(&data).await.unwrap();
    appender.finish().await.unwrap();
    (file, data)
}

/// Runs `work` as a client of `fake` in a world of its own.
pub fn run<T: 'static, F>(
    seed: u64,
    fake: &Fake,
    config: Config,
    work: impl FnOnce(Client) -> F,
) -> T
where
    F: Future<Output = T>,
{
    let sim = Sim::new(seed);
    let host = sim.add_host("client");
    let env = sim.boot(host);
    let peers = fake.peers(&env);
    let masters = fake.masters();
    let root = async move {
        let client = Client::connect_over(&env, peers, masters, config).await.unwrap();
        work(client).await
    };
    sim.run(root).expect("no deadlock")
}

pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut data = vec![0; len];
    Rng::new(seed).fill(&mut data);
    data
}

async fn create(client: &Client, path: &str) -> FlatLogFile {
    client.create(path, Policy::strict(3), 0o644, true).await.unwrap()
}

/// Of a tree that is removed with its writers no append is answered any more.
#[test]
fn writers_of_a_removed_tree_go_on_or_end() {
    let fake = Fake::new(3, 4);
    run(7, &fake.clone(), Config::default(), |client| async move {
        for ends in [false, true] {
            client.mkdir("/tree", 0o755).await.unwrap();
            create(&client, "/tree/unused").await;
            let file = create(&client, "/tree/file").await;
            let writer = file.append_handle().await.unwrap();
            writer.append(b"before").await.unwrap();
            let removed = match ends {
                true => client.end_tree_while("/tree", || true).await,
                false => client.remove_tree_while("/tree", || true).await,
            };
            assert_eq!(removed.unwrap(), 3);
            let after = writer.append(b"after").await.map_err(|error| error.kind());
            assert_eq!(after, if ends { Err(Kind::Fenced) } else { Ok(6) });
        }
    });
}

#[test]
fn appended_bytes_are_read_back() {
    let fake = Fake::new(3, 4);
    let config = Config { window_bytes: 3 << 20, ..Config::default() };
    run(1, &fake.clone(), config, |client| async move {
        client.mkdir_all("/a/b", 0o755).await.unwrap();
        let file = create(&client, "/a/b/file").await;
        assert_eq!(file.len().await.unwrap(), 0);
        assert_eq!(file.reader().read_at(0, 10).await.unwrap(), b"");
        let appender = file.append_handle().await.unwrap();
        let mut expected = Vec::new();
        for len in [1usize, 4048, 4049, 0, 100_000, 1_036_288, 3_000_001] {
            let data = bytes(len as u64, len);
            assert_eq!(appender.append(&data).await.unwrap(), expected.len() as u64);
            expected.extend_from_slice(&data);
            assert_eq!(appender.acked_len(), expected.len() as u64);
        }
        let records: Vec<_> = (0..20).map(|seed| bytes(seed, 100)).collect();
        let slices: Vec<&[u8]> = records.iter().map(|record| &record[..]).collect();
        let sent = client.totals().sent_bytes;
        appender.append_many(&slices).await.unwrap();
        assert_eq!(client.totals().sent_bytes - sent, 3 * 4096, "packed into one sector");
        expected.extend(records.concat());

        let reader = file.reader();
        client.env().sleep(Duration::from_millis(50)).await; // Idle: it reports the length.
        assert_eq!(reader.refresh_len().await.unwrap(), expected.len() as u64);
        assert_eq!(reader.read_at(0, expected.len() + 5).await.unwrap(), expected);
        assert_eq!(appender.close().await.unwrap(), expected.len() as u64);
        assert_eq!(file.len().await.unwrap(), expected.len() as u64);
        for (offset, len) in [(0, 1), (1, 4048), (5000, 100_000), (4_000_000, 500_000)] {
            let read = reader.read_at(offset as u64, len).await.unwrap();
            assert!(read == expected[offset..(offset + len).min(expected.len())]);
        }
        assert!(reader.read_at(1 << 40, 100).await.unwrap().is_empty());
        let Node::File { len, .. } = client.lookup("/a/b/file").await.unwrap().node else {
            panic!("a file")
        };
        assert_eq!(len, expected.len() as u64, "noted for listings");

        let again = client.open("/a/b/file").await.unwrap().append_handle().await.unwrap();
        let attributes = Attributes { mode: 0o600, mtime: 77 };
        again.close_as(attributes).await.unwrap();
        let found = client.open("/a/b/file").await.unwrap();
        assert_eq!(found.attributes(), attributes);
        let again = found.append_handle().await.unwrap();
        assert_eq!(again.append(b"more").await.unwrap(), expected.len() as u64);
        again.finish().await.unwrap();
        let error = file.append_handle().await.unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid);
        assert_eq!(reader.read_at(expected.len() as u64, 10).await.unwrap(), b"more");
    });
}

#[test]
fn names_are_created_renamed_and_removed() {
    let fake = Fake::new(1, 3);
    run(2, &fake.clone(), Config::default(), |client| async move {
        client.mkdir_all("/usr/share/doc", 0o755).await.unwrap();
        create(&client, "/usr/share/doc/readme").await;
        let error = client.create("/usr/share/doc/readme", Policy::strict(3), 0, true).await;
        assert_eq!(error.unwrap_err().kind(), Kind::Exists);
        client.symlink("../usr/share/doc", "/usr/docs", 0o777).await.unwrap();
        client.symlink("docs/../doc", "/usr/share/odd", 0o777).await.unwrap();
        client.symlink("/usr/loop", "/usr/loop", 0o777).await.unwrap();
        for path in ["/usr/docs/readme", "/usr/./share//doc/../doc/readme", "//usr/docs/readme/"] {
            client.open(path).await.unwrap();
        }
        assert_eq!(client.resolve("/usr/share/odd").await.unwrap_err().kind(), Kind::NotFound);
        assert!(matches!(client.lookup("/usr/docs").await.unwrap().node, Node::Symlink { .. }));
        assert!(client.resolve("/usr/loop").await.unwrap_err().to_string().contains("ring"));
        assert!(client.open("/usr/share/doc/readme/x").await.is_err());
        for path in ["relative", "/a/..", "/"] {
            assert_eq!(client.mkdir(path, 0).await.unwrap_err().kind(), Kind::Invalid, "{path}");
        }

        // A directory that was moved keeps its identity; one made in its place gets another.
        client.rename("/usr/share/doc", "/usr/share/old", false).await.unwrap();
        assert_eq!(client.open("/usr/docs/readme").await.unwrap_err().kind(), Kind::NotFound);
        client.open("/usr/share/old/readme").await.unwrap();
        client.mkdir("/usr/share/doc", 0o755).await.unwrap();
        assert!(client.list_all("/usr/docs").await.unwrap().is_empty());
        client.mkdir_all("/usr/share/doc/x/y/z", 0o755).await.unwrap();
        client.link("/usr/share/old/readme", "/usr/share/doc/x/y/z/again").await.unwrap();
        client.open("/usr/share/doc/x/y/z/again").await.unwrap();
        assert!(client.rmdir("/usr/share/doc").await.is_err());

        // Names of a directory that was resolved once, wherever it has gone.
        create(&client, "/usr/share/old/draft").await;
        let place = async |path: &str| client.place_of(path).await.unwrap();
        let (draft, readme) =
            (place("/usr/share/old/draft").await, place("/usr/share/old/readme").await);
        let taken = client.rename_at(draft.clone(), readme, false, "readme").await;
        assert_eq!(taken.unwrap_err().kind(), Kind::Exists);
        let fresh = place("/usr/share/old/fresh").await;
        client.rename_at(draft.clone(), fresh.clone(), false, "fresh").await.unwrap();
        client.rename("/usr/share/old", "/usr/share/older", false).await.unwrap();
        client.open("/usr/share/older/fresh").await.unwrap();
        client.unlink_at(fresh, "fresh").await.unwrap();
        assert_eq!(client.unlink_at(draft, "draft").await.unwrap_err().kind(), Kind::NotFound);
        client.rename("/usr/share/older", "/usr/share/old", false).await.unwrap();

        client.mkdir("/many", 0o755).await.unwrap();
        for index in 0..1100 {
            create(&client, &format!("/many/{index:04}")).await;
        }
        let all = client.list_all("/many").await.unwrap();
        assert_eq!((all.len(), all[1099].name.as_str()), (1100, "1099"));
        let page = client.list("/many", Some("0500"), 10).await.unwrap();
        assert_eq!((page.entries[0].name.as_str(), page.more), ("0501", true));
        let lost = || false;
        assert_eq!(client.remove_tree_while("/many", lost).await.unwrap(), 0, "not any more");
        assert_eq!(client.remove_tree_while("/many", || true).await.unwrap(), 1101);
        assert_eq!(client.remove_tree("/usr/docs").await.unwrap(), 1, "the link, not its target");
        assert!(client.remove_tree("/").await.is_err());
        client.unlink("/usr/share/old/readme").await.unwrap();
        assert_eq!(
            client.unlink("/usr/share/old/readme").await.unwrap_err().kind(),
            Kind::NotFound
        );
    });
}

/// Appends until `rounds` are acknowledged, `depth` at a time; answers the longest time between
/// two acknowledgements.
async fn load(env: &Env, file: &FlatLogFile, rounds: usize, depth: usize) -> (Vec<u8>, Duration) {
    let appender = file.append_handle().await.unwrap();
    let (mut expected, mut longest, mut last) = (Vec::new(), Duration::ZERO, env.now());
    let mut flying = std::collections::VecDeque::new();
    for round in 0..rounds {
        let data = bytes(round as u64, 1 + round * 37 % 9000);
        flying.push_back(appender.submit(&data).await.unwrap());
        expected.extend_from_slice(&data);
        while flying.len() >= depth {
            flying.pop_front().unwrap().await.unwrap();
            longest = longest.max(env.now() - last);
            last = env.now();
        }
    }
    assert_eq!(appender.close().await.unwrap(), expected.len() as u64);
    (expected, longest)
}

#[test]
fn a_lost_chunkserver_stalls_a_writer_that_needs_it_for_milliseconds_and_others_not() {
    for (health, copies, acks) in
        [(Health::Dead, 3, 3), (Health::Silent, 3, 3), (Health::Dead, 3, 2), (Health::Silent, 3, 2)]
    {
        for servers in [3, 5] {
            let fake = Fake::new(1, servers);
            run(3, &fake.clone(), Config::default(), |client| async move {
                let policy = Policy::plain(copies, acks);
                let file = client.create("/file", policy, 0, true).await.unwrap();
                let victim = fake.clone();
                let env = client.env().clone();
                env.spawn(Class::Background, "killer", {
                    let env = env.clone();
                    async move {
                        env.sleep(Duration::from_millis(20)).await;
                        victim.with(|state| state.health[1] = health);
                    }
                });
                let (expected, stall) = load(&env, &file, 2000, 8).await;
                println!("{health:?}, {acks} of {copies} on {servers}: longest stall {stall:?}");
                let most = Duration::from_millis(match (acks < copies, servers) {
                    (true, _) => 5,
                    // Without it a chunk would have fewer copies: only for one that is gone.
                    (false, 3) => 700,
                    (false, _) => 50,
                });
                assert!(stall < most, "{health:?} {copies}/{acks}: {stall:?}");
                let read = file.reader().read_at(0, expected.len() + 1).await.unwrap();
                assert!(read == expected);
                let totals = client.totals();
                let left = totals.chunks_failed + totals.chunks_blocked > 0;
                assert!(left || acks < copies, "the chunk was left");
            });
        }
    }
}

#[test]
fn a_lost_leader_fails_no_operation() {
    let fake = Fake::new(3, 4);
    run(4, &fake.clone(), Config::default(), |client| async move {
        let env = client.env().clone();
        let switch = fake.clone();
        env.spawn(Class::Background, "killer", {
            let env = env.clone();
            async move {
                for round in 0..5 {
                    env.sleep(Duration::from_millis(700)).await;
                    let old = round % 3;
                    switch.with(|state| {
                        state.masters_alive[old] = false;
                        state.leader = None;
                    });
                    env.sleep(Duration::from_millis(1000)).await;
                    switch.with(|state| state.leader = Some((old + 1) % 3));
                    env.sleep(Duration::from_millis(300)).await;
                    switch.with(|state| state.masters_alive[old] = true);
                }
            }
        });
        client.mkdir("/d", 0o755).await.unwrap();
        let mut made = 0;
        while env.now().as_nanos() < (1 << 41) && made < 400 {
            let path = format!("/d/{made}");
            let file = create(&client, &path).await;
            let appender = file.append_handle().await.unwrap();
            appender.append(path.as_bytes()).await.unwrap();
            appender.close().await.unwrap();
            assert_eq!(file.reader().read_at(0, 100).await.unwrap(), path.as_bytes());
            made += 1;
            env.sleep(Duration::from_millis(15)).await;
        }
        assert_eq!(client.list_all("/d").await.unwrap().len(), made);
        assert!(client.totals().control_retries > 5);
    });
}

#[test]
fn a_second_writer_fences_the_first() {
    let fake = Fake::new(1, 3);
    run(5, &fake.clone(), Config::default(), |client| async move {
        let file = create(&client, "/file").await;
        let first = file.append_handle().await.unwrap();
        first.append(b"first").await.unwrap();
        let second = file.append_handle().await.unwrap();
        assert_eq!(second.append(b"second").await.unwrap(), 5);
        let error = first.append(b"late").await.unwrap_err();
        assert_eq!(error, Error::Fenced { path: "/file".to_owned() });
        assert!(error.to_string().contains("another writer opened this file"));
        assert_eq!(first.sync().await.unwrap_err().kind(), Kind::Fenced);
        assert_eq!(first.close().await.unwrap_err().kind(), Kind::Fenced);
        second.close().await.unwrap();
        assert_eq!(file.reader().read_at(0, 99).await.unwrap(), b"firstsecond");

        // A writer that died: its file is sealed for it.
        let dead = file.append_handle().await.unwrap();
        dead.append(b"tail").await.unwrap();
        drop(dead);
        assert_eq!(file.seal().await.unwrap(), 15);
    });
}

/// A client asks once where it knows the file's epoch, and once more where it does not.
#[test]
fn opening_and_seal_ask_again_after_another_epoch_alone() {
    let fake = Fake::new(1, 3);
    run(5, &fake.clone(), Config::default(), |client| async move {
        let file = create(&client, "/file").await;
        let asked = |before: &mut u64| {
            let all = fake.0.borrow().changes;
            all - std::mem::replace(before, all)
        };
        let mut before = fake.0.borrow().changes;
        let first = file.append_handle().await.unwrap();
        first.append(b"first").await.unwrap();
        assert_eq!(asked(&mut before), 1, "a new file");
        assert_eq!(file.seal().await, Ok(5));
        assert_eq!(asked(&mut before), 1, "its epoch is known");
        let other = client.open("/file").await.unwrap();
        let second = other.append_handle().await.unwrap();
        assert_eq!(asked(&mut before), 2, "its epoch is not known");
        let third = other.append_handle().await.unwrap();
        assert_eq!(asked(&mut before), 1, "the epoch of its own writer");
        assert!(third.epoch() > second.epoch());
        third.append(b"third").await.unwrap();
        assert_eq!(client.open("/file").await.unwrap().seal().await, Ok(10));
        assert_eq!(asked(&mut before), 2, "a file that was opened more than once");

        let once = create(&client, "/once").await.append_handle().await.unwrap();
        once.append(b"once").await.unwrap();
        asked(&mut before);
        assert_eq!(client.open("/once").await.unwrap().seal().await, Ok(4));
        assert_eq!(asked(&mut before), 1, "a file that was opened once, as most are");
    });
}

/// Who seals a file may have found its name before another client removed it.
#[test]
fn seal_of_a_removed_file_is_refused_and_that_of_one_never_written_is_empty() {
    let fake = Fake::new(1, 3);
    run(5, &fake.clone(), Config::default(), |client| async move {
        let file = create(&client, "/file").await;
        assert_eq!(file.seal().await, Ok(0));
        let writer = file.append_handle().await.unwrap();
        writer.append(b"acknowledged").await.unwrap();
        assert_eq!(writer.close().await, Ok(12));
        client.unlink("/file").await.unwrap();
        assert_eq!(file.seal().await, Ok(12), "its chunks are there for a while");
        fake.with(|state| state.streams.clear());
        assert_eq!(file.seal().await.unwrap_err().kind(), Kind::NotFound);
    });
}

/// A writer notes the length of its file by the name, which may lead to another one by then.
#[test]
fn closing_a_file_changes_nothing_of_the_file_that_took_its_name() {
    let fake = Fake::new(3, 4);
    run(5, &fake.clone(), Config::default(), |client| async move {
        let older = create(&client, "/name").await.append_handle().await.unwrap();
        older.append(b"of the older file").await.unwrap();
        client.rename("/name", "/aside", false).await.unwrap();
        let newer = create(&client, "/name").await.append_handle().await.unwrap();
        newer.append(b"new").await.unwrap();
        let attributes = Attributes { mode: 0o600, mtime: 7 };
        newer.close_as(attributes).await.unwrap();
        assert_eq!(older.close().await.unwrap(), 17);
        let Node::File { len, attributes: noted, .. } = client.lookup("/name").await.unwrap().node
        else {
            panic!("it is a file");
        };
        assert_eq!((len, noted), (3, attributes));
    });
}

#[test]
fn a_full_cluster_says_so() {
    let fake = Fake::new(1, 3);
    run(6, &fake.clone(), Config::default(), |client| async move {
        let file = create(&client, "/file").await;
        let appender = file.append_handle().await.unwrap();
        appender.append(b"fits").await.unwrap();
        fake.with(|state| state.full = true);
        let error = appender.append(b"does not").await.unwrap_err();
        assert_eq!(error.kind(), Kind::Full, "{error}");
        assert_eq!(file.append_handle().await.unwrap_err().kind(), Kind::Full);
        assert_eq!(file.reader().read_at(0, 4).await.unwrap(), b"fits");
        fake.with(|state| state.full = false);
        let appender = file.append_handle().await.unwrap();
        assert_eq!(appender.append(b" again").await.unwrap(), 4);
    });
}

#[test]
fn damaged_replicas_are_passed_over_and_reported() {
    let fake = Fake::new(1, 3);
    run(7, &fake.clone(), Config::default(), |client| async move {
        let file = create(&client, "/file").await;
        let (expected, _) = load(client.env(), &file, 50, 4).await;
        let intact = fake.with(|state| state.replicas.clone());
        fake.with(|state| {
            for ((_, server), replica) in &mut state.replicas {
                if *server != 2 {
                    replica.sectors[3].1[100] ^= 4;
                }
            }
        });
        for _ in 0..10 {
            let read = file.reader().read_at(0, expected.len()).await.unwrap();
            assert!(read == expected);
        }
        client.env().sleep(Duration::from_millis(10)).await;
        fake.with(|state| {
            assert!(state.reports.iter().any(|report| report.2 == ReplicaFault::Corrupt));
            for replica in state.replicas.values_mut() {
                replica.sectors[3].1[100] = !replica.sectors[3].1[100];
            }
        });
        let error = file.reader().read_at(0, expected.len()).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Corrupt, "{error}");
        // Another chunk's sectors are no answer, however intact.
        fake.with(|state| {
            state.replicas = intact;
            for replica in state.replicas.values_mut() {
                let (first, second) = (replica.sectors[1].1.clone(), replica.sectors[2].1.clone());
                replica.sectors[1].1 = second;
                replica.sectors[2].1 = first;
            }
        });
        let error = file.reader().read_at(0, 10_000).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Corrupt, "{error}");
    });
}

/// A busy replica may have all bytes: it is asked for them again after a pause, not for fewer.
#[test]
fn read_of_damaged_replicas_waits_for_one_that_is_busy() {
    let fake = Fake::new(1, 3);
    run(8, &fake.clone(), Config::default(), |client| async move {
        let file = create(&client, "/file").await;
        let (expected, _) = load(client.env(), &file, 50, 4).await;
        fake.with(|state| {
            for ((_, server), replica) in &mut state.replicas {
                if *server != 2 {
                    replica.sectors[3].1[100] ^= 4;
                }
            }
            state.busy[2] = true;
        });
        let (len, reader) = (expected.len().min(60_000), file.reader());
        let end = async {
            client.env().sleep(Duration::from_millis(100)).await;
            fake.with(|state| state.busy[2] = false);
        };
        let (read, ()) = join(reader.read_at(0, len), end).await;
        assert!(read.unwrap() == expected[..len]);
        let lens = fake.with(|state| std::mem::take(&mut state.busy_lens));
        assert!(lens.iter().all(|&asked| asked as usize == len), "{len}: {lens:?}");
        assert!((3..=12).contains(&lens.len()), "{} reads in 100 ms", lens.len());
    });
}

#[test]
fn read_ends_between_replicas_with_different_damage_although_the_third_stays_busy() {
    let fake = Fake::new(1, 3);
    run(9, &fake.clone(), Config::default(), |client| async move {
        let file = create(&client, "/file").await;
        let (expected, _) = load(client.env(), &file, 50, 4).await;
        fake.with(|state| {
            for ((_, server), replica) in &mut state.replicas {
                if *server != 2 {
                    replica.sectors[3 + 4 * server].1[100] ^= 4;
                }
            }
            state.busy[2] = true;
        });
        let (len, began) = (expected.len().min(60_000), client.env().now());
        let read = file.reader().read_at(0, len).await;
        assert!(read.unwrap() == expected[..len]);
        let waited = client.env().now() - began;
        assert!(waited < Duration::from_secs(10), "{waited:?}");
    });
}

#[test]
fn lookups_are_cached_and_batched() {
    let fake = Fake::new(1, 3);
    run(8, &fake.clone(), Config::default(), |client| async move {
        let mut files = Vec::new();
        for index in 0..100 {
            let file = create(&client, &format!("/{index}")).await;
            let appender = file.append_handle().await.unwrap();
            appender.append(b"content").await.unwrap();
            appender.close().await.unwrap();
            files.push(file);
        }
        let before = fake.with(|state| state.locates);
        let read = |file: &FlatLogFile| {
            let reader = file.reader();
            async move { assert_eq!(reader.read_at(0, 7).await.unwrap(), b"content") }
        };
        futures_util::future::join_all(files.iter().map(read)).await;
        let asked = fake.with(|state| state.locates) - before;
        assert!(asked <= 6, "{asked} look-ups for 100 files at once");
        futures_util::future::join_all(files.iter().map(read)).await;
        assert_eq!(fake.with(|state| state.locates) - before, asked, "all in the cache");
        assert!(client.totals().cache_hits >= 100);
    });
}

/// Everything at once: lost messages, servers and leaders that come and go, a reader of the
/// tail beside the writer.
fn storm(seed: u64, policy: Policy) {
    let servers = if policy.is_coded() { u64::from(policy.copies) + 2 } else { 5 };
    let fake = Fake::new(3, servers as usize);
    let mut config = Config { window_bytes: 1 << 20, ..Config::default() };
    config.writer.chunk_len_max = 1 << 20;
    run(seed, &fake.clone(), config, |client| async move {
        let env = client.env().clone();
        let stop = Rc::new(std::cell::Cell::new(false));
        fake.with(|state| {
            state.lose_one_in = 40;
            state.latency_us = 2000;
        });
        let faults = env.spawn(Class::Background, "faults", {
            let (env, fake, stop) = (env.clone(), fake.clone(), stop.clone());
            async move {
                while !stop.get() {
                    env.sleep(Duration::from_millis(env.random_below(600))).await;
                    let (server, leader) = (env.random_below(servers), env.random_below(4));
                    let health = [Health::Dead, Health::Silent][env.random_below(2) as usize];
                    fake.with(|state| {
                        // One server at a time: what 3/2 and 3/3 survive without a gap.
                        state.health.fill(Health::Good);
                        state.health[server as usize] = health;
                        state.leader = (leader < 3).then_some(leader as usize);
                    });
                }
                fake.with(|state| {
                    state.health.fill(Health::Good);
                    state.leader = Some(0);
                    state.lose_one_in = 0;
                });
            }
        });
        let file = client.create("/file", policy, 0, true).await.unwrap();
        let tail = env.spawn(Class::Foreground, "tail", {
            let (env, file, stop) = (env.clone(), file.clone(), stop.clone());
            async move {
                let reader = file.reader();
                let mut seen = Vec::new();
                while !stop.get() {
                    match reader.read_at(seen.len() as u64, 100_000).await {
                        Ok(more) => seen.extend(more),
                        Err(error) => assert_eq!(error.kind(), Kind::Retry, "{error}"),
                    }
                    env.sleep(Duration::from_millis(5)).await;
                }
                seen
            }
        });
        let (expected, stall) = load(&env, &file, 600, 16).await;
        // Of eighty seeds the middle one has 4 s, whether appends wait for late servers or not.
        assert!(stall < Duration::from_secs(16), "{stall:?}");
        stop.set(true);
        faults.await.unwrap();
        let seen = tail.await.unwrap();
        assert!(expected.starts_with(&seen), "the tail showed what is not in the file");
        let read = file.reader().read_at(0, expected.len() + 1).await.unwrap();
        assert!(read == expected, "seed {seed}: {} of {} bytes", read.len(), expected.len());
    });
}

#[test]
fn faults_lose_no_acknowledged_append() {
    for seed in 0..40 {
        storm(seed, Policy::strict(3));
        storm(1000 + seed, Policy::plain(3, 2));
    }
}

#[test]
fn faults_lose_no_acknowledged_row_of_a_code() {
    for seed in 0..10 {
        storm(2000 + seed, Policy::ec(2, 1));
        storm(3000 + seed, Policy::ec(4, 2).compressed(Some(Compression::LZ4)));
        storm(4000 + seed, Policy::ec_strict(4, 2));
    }
}
