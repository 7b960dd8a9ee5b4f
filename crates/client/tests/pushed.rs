//! Servers that masters do not reach (C28): a client asks them last and does not place chunks there,
//! for as long as masters say so.

use base::ServerId;
use base::limits::SECTOR_DATA_MAX;
use client::{Client, Config, FlatLogFile, ListReason, ListState};
use runtime::Duration;
use wire::control::{Policy, ReplicaFault};

use crate::cluster::{bytes, run, sealed};
use crate::fake::{Fake, Health};

const LEN: usize = 200_000;
const SECOND: Duration = Duration::from_secs(1);

/// A hundred reads; answers how many each server has taken up.
async fn reads(client: &Client, fake: &Fake, file: &FlatLogFile, data: &[u8]) -> Vec<u64> {
    let before = fake.with(|state| state.reads.clone());
    for _ in 0..100 {
        let at = client.env().random_below((LEN - SECTOR_DATA_MAX) as u64) as usize;
        let read = file.reader().read_at(at as u64, SECTOR_DATA_MAX).await.unwrap();
        assert!(read == data[at..at + SECTOR_DATA_MAX], "at {at}");
    }
    let after = fake.with(|state| state.reads.clone());
    after.iter().zip(before).map(|(after, before)| after - before).collect()
}

fn push(fake: &Fake, servers: &[u32]) {
    fake.with(|state| {
        let changes = state.abnormal.as_ref().map_or(0, |(changes, _)| *changes);
        let servers = servers.iter().map(|server| ServerId::new(*server)).collect();
        state.abnormal = Some((changes + 1, servers));
    });
}

#[test]
fn pushed_server_is_out_until_masters_reach_it() {
    let fake = Fake::new(1, 3);
    run(60, &fake.clone(), Config::default(), |client| async move {
        let (file, data) = sealed(&client, LEN).await;
        assert!(reads(&client, &fake, &file, &data).await[1] > 10);
        push(&fake, &[1]);
        client.env().sleep(2 * SECOND).await;
        let listed = client.listed_disks();
        assert_eq!(listed.len(), 1, "{listed:?}");
        assert_eq!(listed[0].server, Some(ServerId::new(1)));
        assert_eq!(
            (listed[0].state, listed[0].reason),
            (ListState::Out, ListReason::MastersUnreached)
        );
        // It serves, and no read of it says otherwise: that changes nothing.
        for _ in 0..5 {
            assert_eq!(reads(&client, &fake, &file, &data).await[1], 0);
            client.env().sleep(SECOND).await;
        }
        push(&fake, &[]);
        client.env().sleep(2 * SECOND).await;
        assert_eq!(client.listed_disks(), []);
        assert!(reads(&client, &fake, &file, &data).await[1] > 10);
    });
}

#[test]
fn pushed_list_ends_when_no_master_renews_it() {
    let fake = Fake::new(1, 3);
    run(61, &fake.clone(), Config::default(), |client| async move {
        let (file, data) = sealed(&client, LEN).await;
        // It knows where the chunks are.
        assert!(reads(&client, &fake, &file, &data).await[1] > 10);
        push(&fake, &[1]);
        client.env().sleep(2 * SECOND).await;
        assert_eq!(client.listed_disks().len(), 1);
        fake.with(|state| state.masters_alive[0] = false);
        client.env().sleep(2 * SECOND).await;
        assert_eq!(client.listed_disks().len(), 1, "an election takes as long");
        client.env().sleep(7 * SECOND).await;
        assert_eq!(client.listed_disks(), []);
        assert!(reads(&client, &fake, &file, &data).await[1] > 10);
        fake.with(|state| state.masters_alive[0] = true);
        client.env().sleep(3 * SECOND).await;
        assert_eq!(client.listed_disks().len(), 1);
    });
}

/// A third of the servers is listed at most, whatever masters say.
#[test]
fn pushed_servers_are_within_the_cap() {
    let fake = Fake::new(1, 3);
    run(62, &fake.clone(), Config::default(), |client| async move {
        let (file, data) = sealed(&client, LEN).await;
        push(&fake, &[0, 1, 2, 77]);
        client.env().sleep(2 * SECOND).await;
        assert_eq!(
            reads(&client, &fake, &file, &data).await.iter().filter(|it| **it > 0).count(),
            2
        );
        assert_eq!(client.listed_disks().len(), 1);
    });
}

#[test]
fn client_asks_each_second_or_two_and_masters_of_earlier_versions_seldom() {
    for (knows, least, most) in [(true, 25, 40), (false, 2, 4)] {
        let fake = Fake::new(1, 3);
        run(63, &fake.clone(), Config::default(), |client| async move {
            if !knows {
                fake.with(|state| state.abnormal = None);
            }
            client.env().sleep(60 * SECOND).await;
            let polls = fake.with(|state| state.polls);
            assert!((least..=most).contains(&polls), "{polls} questions in a minute");
        });
    }
}

/// Few reports in a second, each of a server that something of this client did not reach.
#[test]
fn servers_that_are_not_reached_are_reported_once_a_second() {
    let fake = Fake::new(1, 4);
    let config = Config { slow_min: Duration::from_secs(3600), ..Config::default() };
    run(64, &fake.clone(), config, |client| async move {
        let (file, data) = sealed(&client, LEN).await;
        let mut files = Vec::new();
        for number in 0..20 {
            let path = format!("/{number}");
            let file = client.create(&path, Policy::strict(3), 0o644, true).await.unwrap();
            let appender = file.append_handle().await.unwrap();
            appender.append(&bytes(1, 100)).await.unwrap();
            files.push((file, appender));
        }
        assert_eq!(fake.with(|state| state.reports.len()), 0);
        fake.with(|state| state.health[1] = Health::Dead);
        let begun = client.env().now();
        for (_, appender) in &files {
            appender.append(&bytes(2, 100)).await.unwrap();
        }
        reads(&client, &fake, &file, &data).await;
        let seconds = (client.env().now() - begun).as_secs() as usize + 1;
        let reports = fake.with(|state| state.reports.clone());
        let unreached: Vec<_> =
            reports.iter().filter(|(.., fault)| *fault == ReplicaFault::Unreachable).collect();
        assert!(unreached.iter().all(|(_, server, _)| *server == ServerId::new(1)), "{reports:?}");
        assert!((1..=seconds).contains(&unreached.len()), "{} in {seconds} s", unreached.len());
    });
}
