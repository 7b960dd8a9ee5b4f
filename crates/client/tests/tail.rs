//! The end of a file that is open for append: reported by its living writer or by a seal, never by
//! the bytes that a replica happens to show.

use base::Kind;
use client::{Client, Config, Error, FlatLogFile};
use runtime::Duration;
use wire::control::Policy;

use crate::cluster::{bytes, run};
use crate::fake::{Fake, Health};

const POLICIES: [Policy; 2] = [Policy::strict(3), Policy::plain(3, 2)];

async fn create(client: &Client, policy: Policy) -> FlatLogFile {
    client.create("/file", policy, 0o644, true).await.unwrap()
}

/// All replicas have restarted: they have forgotten what their writers reported.
fn restart_replicas(fake: &Fake) {
    fake.with(|state| state.replicas.values_mut().for_each(|replica| replica.committed = 0));
}

#[test]
fn read_of_a_tail_has_all_that_was_acknowledged() {
    for policy in POLICIES {
        let fake = Fake::new(1, 3);
        run(30, &fake.clone(), Config::default(), |client| async move {
            let file = create(&client, policy).await;
            let appender = file.append_handle().await.unwrap();
            let reader = file.reader();
            let mut expected = Vec::new();
            for round in 0..100 {
                let data = bytes(round, 1 + round as usize * 97);
                appender.append(&data).await.unwrap();
                expected.extend(data);
                let from = expected.len().saturating_sub(5000);
                let read = reader.read_at(from as u64, 1 << 20).await.unwrap();
                assert!(read == expected[from..], "round {round}: {} bytes", read.len());
                assert_eq!(file.len().await.unwrap(), expected.len() as u64, "round {round}");
            }
        });
    }
}

#[test]
fn end_of_a_lost_writers_file_is_unknown_until_it_is_sealed() {
    for policy in POLICIES {
        let fake = Fake::new(1, 3);
        run(31, &fake.clone(), Config::default(), |client| async move {
            let file = create(&client, policy).await;
            let appender = file.append_handle().await.unwrap();
            let data = bytes(1, 10_000);
            appender.append(&data).await.unwrap();
            client.env().sleep(Duration::from_millis(50)).await;
            drop(appender);
            restart_replicas(&fake);
            let reader = file.reader();
            for asked in [reader.read_at(0, 100).await.map(drop), file.len().await.map(drop)] {
                let error = asked.expect_err("an end that was never reported");
                assert!(matches!(error, Error::OpenEnd { offset: 0, .. }), "{error}");
                assert_eq!(error.kind(), Kind::Retry);
                assert!(error.to_string().contains("craton fs seal /file"), "{error}");
            }
            assert_eq!(reader.read_shown(0, 100).await.unwrap(), b"", "asked for no more");
            assert_eq!(file.seal().await.unwrap(), 10_000);
            assert!(reader.read_at(0, 1 << 20).await.unwrap() == data);
            assert_eq!(file.len().await.unwrap(), 10_000);
        });
    }
}

/// The gateway that wrote objects is gone, all servers have restarted, and rows name what it had appended.
#[test]
fn what_is_known_to_be_acknowledged_is_read_from_replicas_that_restarted() {
    for policy in [POLICIES[0], POLICIES[1], Policy::ec(2, 1)] {
        let fake = Fake::new(1, 3);
        run(38, &fake.clone(), Config::default(), |client| async move {
            let file = create(&client, policy).await;
            let appender = file.append_handle().await.unwrap();
            let data = bytes(1, 300_000);
            for part in data.chunks(100_000) {
                appender.append(part).await.unwrap();
            }
            client.env().sleep(Duration::from_millis(50)).await;
            drop(appender);
            restart_replicas(&fake);
            let asked = client.env().now();
            for (from, len) in [(0, 300_000), (150_000, 4096), (299_999, 1), (90_000, 20_000)] {
                let read = file.reader().read_acknowledged(from as u64, len).await.unwrap();
                assert!(read == data[from..from + len], "{policy:?}: {len} bytes from {from}");
            }
            // One reader that knows a part: the rest is unknown to it as before.
            let reader = file.reader();
            assert!(reader.read_acknowledged(0, 1000).await.unwrap() == data[..1000]);
            let waited = client.env().now() - asked;
            assert!(waited < Duration::from_millis(100), "{policy:?}: it waited {waited:?}");
            let error = reader.read_at(200_000, 100).await.expect_err("an unknown end");
            assert!(matches!(error, Error::OpenEnd { .. }), "{policy:?}: {error}");
            // What was acknowledged is not there: no end that is shown, and no endless wait.
            let error = reader.read_acknowledged(299_000, 2000).await.expect_err("a loss");
            assert_eq!(error.kind(), Kind::Retry, "{policy:?}: {error}");
            assert_eq!(file.seal().await.unwrap(), 300_000);
            let read = file.reader().read_acknowledged(299_000, 2000).await.unwrap();
            assert!(read == data[299_000..], "{policy:?}: the seal says how much there is");
        });
    }
}

/// Appends are on two of three replicas: a read of the third goes on to another.
#[test]
fn what_is_known_to_be_acknowledged_is_read_beside_a_replica_without_it() {
    for lacking in 0..3 {
        let fake = Fake::new(1, 3);
        run(39, &fake.clone(), Config::default(), |client| async move {
            let file = create(&client, Policy::plain(3, 2)).await;
            let appender = file.append_handle().await.unwrap();
            let data = bytes(2, 50_000);
            for part in data.chunks(10_000) {
                appender.append(part).await.unwrap();
            }
            client.env().sleep(Duration::from_millis(50)).await;
            drop(appender);
            restart_replicas(&fake);
            fake.with(|state| {
                let replica = state.replicas.values_mut().nth(lacking).unwrap();
                replica.sectors.retain(|(start, _)| *start < 40_000);
                replica.len = 40_000;
            });
            for _ in 0..10 {
                let read = file.reader().read_acknowledged(30_000, 20_000).await.unwrap();
                assert!(read == data[30_000..], "replica {lacking} lacks it");
            }
        });
    }
}

/// What is known ends within the range.
#[test]
fn read_beyond_what_is_known_to_be_acknowledged_has_that_part() {
    for policy in [POLICIES[0], POLICIES[1], Policy::ec(2, 1)] {
        let fake = Fake::new(1, 3);
        run(42, &fake.clone(), Config::default(), |client| async move {
            let (env, file) = (client.env().clone(), create(&client, policy).await);
            let appender = file.append_handle().await.unwrap();
            let data = bytes(1, 300_000);
            for part in data.chunks(100_000) {
                appender.append(part).await.unwrap();
            }
            env.sleep(Duration::from_millis(50)).await;
            drop(appender);
            restart_replicas(&fake);
            let (reader, asked) = (file.reader(), env.now());
            assert!(reader.read_acknowledged(0, 1000).await.unwrap() == data[..1000]);
            let shown = reader.read_shown(0, 5000).await.unwrap();
            assert!(shown == data[..1000], "{policy:?}: {} bytes", shown.len());
            let waited = env.now() - asked;
            assert!(waited < Duration::from_millis(100), "{policy:?}: it waited {waited:?}");
            let error = reader.read_at(0, 5000).await.expect_err("an unknown end");
            assert!(matches!(error, Error::OpenEnd { offset: 1000, .. }), "{policy:?}: {error}");
        });
    }
}

/// A replica that was left shows nothing, the others show all, and no master answers.
#[test]
fn what_other_replicas_show_is_read_beside_one_that_lags_without_masters() {
    for lagging in 0..3 {
        let fake = Fake::new(1, 3);
        run(43, &fake.clone(), Config::default(), |client| async move {
            let (env, file) = (client.env().clone(), create(&client, POLICIES[1]).await);
            let appender = file.append_handle().await.unwrap();
            let data = bytes(2, 50_000);
            appender.append(&data).await.unwrap();
            env.sleep(Duration::from_millis(50)).await;
            drop(appender);
            assert!(file.reader().read_shown(0, 100).await.unwrap() == data[..100]);
            fake.with(|state| {
                state.replicas.values_mut().nth(lagging).unwrap().committed = 0;
                state.masters_alive = vec![false];
            });
            let asked = env.now();
            for _ in 0..20 {
                let read = file.reader().read_acknowledged(10_000, 20_000).await.unwrap();
                assert!(read == data[10_000..30_000]);
            }
            let waited = env.now() - asked;
            assert!(waited < Duration::from_millis(100), "it waited {waited:?}");
        });
    }
}

/// A reader's view is older than the second writer. One replica has missed the end of the first one's chunk:
/// it holds bytes that were given up, where the file has those of the second writer.
#[test]
fn what_a_second_writer_appended_is_not_read_from_the_chunk_of_the_first() {
    for policy in [POLICIES[0], POLICIES[1], Policy::ec(2, 1)] {
        let fake = Fake::new(1, 4);
        run(41, &fake.clone(), Config::default(), |client| async move {
            let (env, config) = (client.env().clone(), Config::default());
            let others = Client::connect_over(&env, fake.peers(&env), fake.masters(), config);
            let others = others.await.unwrap();
            let (first, given_up) = (bytes(1, 10_000), bytes(2, 6_000));
            let second = bytes(3, 6_000);
            let file = create(&client, policy).await;
            let writer = others.open("/file").await.unwrap().append_handle().await.unwrap();
            writer.append(&first).await.unwrap();
            env.sleep(Duration::from_millis(50)).await;
            let reader = file.reader();
            assert!(reader.read_at(0, first.len()).await.unwrap() == first, "the view is cached");

            // The last append of the first writer reaches one replica.
            let servers = fake.with(|state| state.streams[&file.id()].chunks[0].servers.clone());
            let health = |server: usize, health| fake.with(|state| state.health[server] = health);
            servers[1..].iter().for_each(|&server| health(server, Health::Silent));
            let append = writer.submit(&given_up).await.unwrap();
            env.sleep(Duration::from_millis(2)).await;
            drop((append, writer));
            let held: Vec<_> = fake.with(|state| {
                let chunk = state.streams[&file.id()].chunks[0].id;
                servers.iter().map(|&server| state.replicas[&(chunk, server)].len).collect()
            });
            assert_eq!(held, vec![16_000, 10_000, 10_000]);

            // It is away while the second writer opens the file.
            servers[1..].iter().for_each(|&server| health(server, Health::Good));
            health(servers[0], Health::Silent);
            fake.with(|state| state.no_place.insert(servers[0]));
            let writer = others.open("/file").await.unwrap().append_handle().await.unwrap();
            assert_eq!(writer.append(&second).await.unwrap(), 10_000);
            env.sleep(Duration::from_millis(50)).await;

            // It is back, and the others are late.
            health(servers[0], Health::Good);
            let late = (0..4).filter(|server| *server != servers[0]);
            fake.with(|state| late.for_each(|server| state.slow_us[server] = 400_000));
            let read = reader.read_acknowledged(10_000, 1_000).await.unwrap();
            assert!(read == second[..1_000], "{policy:?}: bytes that were given up");
            fake.with(|state| state.slow_us.fill(0));
            let read = file.reader().read_acknowledged(0, 16_000).await.unwrap();
            assert!(read == [first, second].concat(), "{policy:?}");
        });
    }
}

/// Seed 1795443506 of `takeover`: the reader believed that the file was once as long as what it had
/// been asked for.
#[test]
fn read_beyond_the_end_says_nothing_of_the_length() {
    for policy in POLICIES {
        let fake = Fake::new(1, 3);
        run(37, &fake.clone(), Config::default(), |client| async move {
            let file = create(&client, policy).await;
            let appender = file.append_handle().await.unwrap();
            let data = bytes(1, 10_000);
            appender.append(&data).await.unwrap();
            let reader = file.reader();
            assert_eq!(reader.read_at(20_000, 100).await.unwrap(), b"", "an open tail");
            assert_eq!(reader.refresh_len().await.unwrap(), 10_000);
            assert!(reader.read_at(0, 1 << 20).await.unwrap() == data);
            assert_eq!(reader.read_shown(30_000, 100).await.unwrap(), b"");
            appender.close().await.unwrap();
            let asked = client.env().now();
            assert_eq!(reader.refresh_len().await.unwrap(), 10_000);
            assert_eq!(reader.read_at(20_000, 100).await.unwrap(), b"", "a sealed tail");
            let waited = client.env().now() - asked;
            assert!(waited < Duration::from_millis(100), "answers took {waited:?}");
        });
    }
}

#[test]
fn idle_writer_sends_the_committed_length_to_replicas_that_restarted() {
    for policy in POLICIES {
        let fake = Fake::new(1, 3);
        run(32, &fake.clone(), Config::default(), |client| async move {
            let file = create(&client, policy).await;
            let appender = file.append_handle().await.unwrap();
            let data = bytes(1, 10_000);
            appender.append(&data).await.unwrap();
            client.env().sleep(Duration::from_secs(60)).await;
            for _ in 0..3 {
                restart_replicas(&fake);
                let (env, reader) = (client.env().clone(), file.reader());
                let asked = env.now();
                assert!(reader.read_at(0, 1 << 20).await.unwrap() == data);
                let waited = env.now() - asked;
                assert!(waited < Duration::from_secs(6), "the writer reports after {waited:?}");
                restart_replicas(&fake);
                assert_eq!(file.len().await.unwrap(), 10_000);
            }
            assert_eq!(appender.append(b"more").await.unwrap(), 10_000);
        });
    }
}

#[test]
fn read_beside_a_replica_that_restarted_is_not_delayed() {
    let fake = Fake::new(1, 3);
    run(33, &fake.clone(), Config::default(), |client| async move {
        let file = create(&client, Policy::strict(3)).await;
        let appender = file.append_handle().await.unwrap();
        let data = bytes(1, 10_000);
        appender.append(&data).await.unwrap();
        client.env().sleep(Duration::from_millis(50)).await;
        fake.with(|state| state.replicas.values_mut().next().unwrap().committed = 0);
        let asked = client.env().now();
        for _ in 0..20 {
            assert!(file.reader().read_at(0, 1 << 20).await.unwrap() == data);
        }
        let waited = client.env().now() - asked;
        assert!(waited < Duration::from_millis(100), "20 reads took {waited:?}");
        drop(appender);
    });
}

#[test]
fn idle_writer_whose_right_has_run_out_gets_another() {
    let fake = Fake::new(1, 3);
    run(34, &fake.clone(), Config::default(), |client| async move {
        let file = create(&client, Policy::strict(3)).await;
        let appender = file.append_handle().await.unwrap();
        let data = bytes(1, 10_000);
        appender.append(&data).await.unwrap();
        client.env().sleep(Duration::from_secs(10)).await;
        fake.with(|state| state.token = [8; 16]);
        client.env().sleep(Duration::from_secs(10)).await;
        restart_replicas(&fake);
        assert!(file.reader().read_at(0, 1 << 20).await.unwrap() == data);
        appender.append(b"more").await.unwrap();
        assert_eq!(file.len().await.unwrap(), 10_004);
        assert_eq!(client.totals().chunks_failed, 0);
        let chunks = file.chunks().await.unwrap().chunks.len();
        assert_eq!(chunks, 1, "it keeps its chunk");
    });
}

#[test]
fn right_of_an_idle_writer_is_renewed_before_it_runs_out() {
    let fake = Fake::new(1, 3);
    run(35, &fake.clone(), Config::default(), |client| async move {
        let env = client.env().clone();
        fake.with(|state| state.rights_s = 40);
        let file = create(&client, Policy::strict(3)).await;
        let appender = file.append_handle().await.unwrap();
        appender.append(b"first").await.unwrap();
        let before = fake.with(|state| state.changes);
        env.sleep(Duration::from_secs(200)).await;
        let asked = fake.with(|state| state.changes) - before;
        assert!((5..15).contains(&asked), "{asked} renewals in five lives of a right");
        restart_replicas(&fake);
        assert_eq!(file.reader().read_at(0, 10).await.unwrap(), b"first");
        appender.append(b"second").await.unwrap();
        fake.with(|state| assert_eq!(state.denied, 0));
    });
}
