//! Backup reads (C16): a replica that takes long is not waited for, within a budget, and what
//! another one answers is no less than what was shown.

use base::limits::SECTOR_DATA_MAX;
use client::limits::{BACKUP_DELAY_MAX, READ_FAILED_MAX};
use client::{Client, Config, FlatLogFile, ListReason, ListState};
use runtime::Duration;
use wire::control::Policy;

use crate::cluster::{bytes, run, sealed};
use crate::fake::{Fake, Health};

const LEN: usize = 400_000;
/// Longest answer of a healthy replica in this cluster: two ways of 55 us, with a margin.
const HEALTHY: Duration = Duration::from_micros(500);

/// A slow disk stays a first choice.
fn without_lists() -> Config {
    Config { slow_min: Duration::from_secs(3600), ..Config::default() }
}

/// Times of `count` reads, one after the other.
async fn reads(client: &Client, file: &FlatLogFile, data: &[u8], count: u64) -> Vec<Duration> {
    let (reader, env) = (file.reader(), client.env());
    let mut took = Vec::new();
    for _ in 0..count {
        let at = env.random_below((LEN - SECTOR_DATA_MAX) as u64) as usize;
        let before = env.now();
        let read = reader.read_at(at as u64, SECTOR_DATA_MAX).await.unwrap();
        took.push(env.now() - before);
        assert!(read == data[at..at + SECTOR_DATA_MAX], "at {at}");
    }
    took.sort();
    took
}

#[test]
fn reads_do_not_wait_for_a_slow_replica_and_it_reads_nothing_for_them() {
    let fake = Fake::new(1, 3);
    run(50, &fake.clone(), without_lists(), |client| async move {
        let (file, data) = sealed(&client, LEN).await;
        fake.with(|state| state.slow_us[1] = 50_000);
        let took = reads(&client, &file, &data, 150).await;
        let longest = *took.last().unwrap();
        // The p98 of all reads grows up to the longest delay: a third of them is slow.
        assert!(longest < BACKUP_DELAY_MAX + HEALTHY, "the longest read took {longest:?}");
        let totals = client.totals();
        // A third of the reads goes there first.
        assert!((25..=64 + 8).contains(&totals.backup_reads), "{totals:?}");
        assert_eq!(totals.backup_reads_won, totals.backup_reads);
        assert_eq!((totals.backup_reads_refused, totals.read_failovers), (0, 0));
        assert_eq!(fake.with(|state| state.reads[1]), 0, "cancelled reads are not made");
        // 150 reads, and no more than a backup read had to be.
        assert_eq!(fake.with(|state| state.reads.iter().sum::<u64>()), 150);
    });
}

#[test]
fn backup_reads_are_within_their_budget() {
    let fake = Fake::new(1, 3);
    let mut config = without_lists();
    config.backup.burst = 3;
    run(51, &fake.clone(), config, |client| async move {
        let (file, data) = sealed(&client, LEN).await;
        fake.with(|state| state.slow_us[1] = 50_000);
        let took = reads(&client, &file, &data, 600).await;
        let totals = client.totals();
        assert!(totals.backup_reads <= 3 + 600 / 20, "{totals:?}");
        assert!(totals.backup_reads >= 25 && totals.backup_reads_refused > 50, "{totals:?}");
        assert!(*took.last().unwrap() < Duration::from_millis(51), "{took:?}");
    });
}

#[test]
fn replica_that_never_answers_counts_as_failed_without_a_token_and_is_asked_last() {
    let fake = Fake::new(1, 3);
    let mut config = Config::default();
    config.backup.burst = 0;
    run(52, &fake.clone(), config, |client| async move {
        let (file, data) = sealed(&client, LEN).await;
        fake.with(|state| state.health[1] = Health::Silent);
        let took = reads(&client, &file, &data, 100).await;
        let longest = *took.last().unwrap();
        assert!(longest < READ_FAILED_MAX + HEALTHY, "the longest read took {longest:?}");
        let waited = took.iter().filter(|took| **took > HEALTHY).count();
        assert_eq!(waited, 1, "then it is asked last");
        let totals = client.totals();
        assert_eq!((totals.backup_reads, totals.backup_reads_refused), (0, 1));
        assert_eq!(totals.read_failovers, 1);
    });
}

#[test]
fn slow_replica_is_listed_and_asked_last_until_it_is_good() {
    let fake = Fake::new(1, 3);
    run(54, &fake.clone(), Config::default(), |client| async move {
        let (file, data) = sealed(&client, LEN).await;
        reads(&client, &file, &data, 300).await;
        fake.with(|state| state.slow_us[1] = 50_000);
        reads(&client, &file, &data, 600).await;
        client.env().sleep(Duration::from_millis(200)).await;
        let listed = client.listed_disks();
        assert_eq!(listed.len(), 1, "{listed:?}");
        assert_eq!((listed[0].state, listed[0].reason), (ListState::Slow, ListReason::Latency));
        let backups = client.totals().backup_reads;
        let took = reads(&client, &file, &data, 300).await;
        assert!(*took.last().unwrap() < HEALTHY, "{took:?}");
        assert_eq!(client.totals().backup_reads, backups);
        fake.with(|state| state.slow_us[1] = 0);
        client.env().sleep(Duration::from_secs(8)).await;
        assert_eq!(client.listed_disks(), []);
        let before = fake.with(|state| state.reads[1]);
        reads(&client, &file, &data, 100).await;
        assert!(fake.with(|state| state.reads[1]) > before + 20);
    });
}

#[test]
fn healthy_replicas_get_no_backup_reads() {
    let fake = Fake::new(1, 3);
    run(53, &fake.clone(), Config::default(), |client| async move {
        let (file, data) = sealed(&client, LEN).await;
        let took = reads(&client, &file, &data, 300).await;
        assert!(*took.last().unwrap() < HEALTHY, "{took:?}");
        assert_eq!(client.totals().backup_reads, 0);
        assert_eq!(fake.with(|state| state.reads.iter().sum::<u64>()), 300);
    });
}

/// Replicas that have restarted show less than they did; the one that shows most is slow.
#[test]
fn read_of_an_open_tail_does_not_go_back_when_backups_show_less() {
    for seed in 0..40 {
        let fake = Fake::new(1, 3);
        run(100 + seed, &fake.clone(), Config::default(), |client| async move {
            let file = client.create("/file", Policy::strict(3), 0o644, true).await.unwrap();
            let appender = file.append_handle().await.unwrap();
            let data = bytes(seed, 60_000);
            for part in data.chunks(6_000) {
                appender.append(part).await.unwrap();
            }
            client.env().sleep(Duration::from_millis(50)).await;
            let reader = file.reader();
            assert!(reader.read_shown(0, LEN).await.unwrap() == data);
            let most = (seed % 3) as usize;
            fake.with(|state| {
                state.slow_us[most] = [6_000, 30_000, 200_000][seed as usize / 3 % 3];
                for ((_, server), replica) in &mut state.replicas {
                    if *server != most {
                        replica.committed = [0, 100, 30_000][(seed as usize + *server) % 3];
                    }
                }
            });
            for (at, len) in [(0, LEN), (0, 60_000), (10, 40_000), (59_999, 1), (30_000, LEN)] {
                let read = reader.read_shown(at as u64, len).await.unwrap();
                let end = data.len().min(at + len);
                assert!(read == data[at..end], "seed {seed}: {} bytes from {at}", read.len());
            }
        });
    }
}
