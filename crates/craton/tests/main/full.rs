//! Clusters that are full.

use std::path::Path;
use std::time::{Duration, Instant};

use base::MIB;
use client::{BlockingClient, Config, Error};
use wire::control::Policy;

use crate::harness::{Scratch, content, good, skip, status, text, wait};
use crate::load;
use crate::stores::{self, Mounted};

const SERVERS: [&str; 3] = ["cs1", "cs2", "cs3"];
/// A writer hears that the cluster is full, and does not wait for its stall budget.
const TOLD_WITHIN: Duration = Duration::from_secs(10);

/// A cluster of three chunkservers whose stores `replace` has changed before they were used.
fn cluster_with<T>(dir: &Path, replace: impl Fn(&Path) -> T) -> Vec<T> {
    good(&["cluster", "up", "--dir", text(dir), "--masters", "1", "--chunkservers", "3"]);
    good(&["cluster", "down", "--dir", text(dir)]);
    let stores = SERVERS.map(|id| dir.join(id).join("store"));
    let replaced = stores.iter().map(|store| replace(store)).collect();
    good(&["cluster", "up", "--dir", text(dir)]);
    replaced
}

/// Writes files of 4 MiB until there is no room; answers how many are whole, and what was said.
fn fill(client: &BlockingClient) -> (u64, Error) {
    for number in 0.. {
        let began = Instant::now();
        if let Err(error) = put(client, number) {
            let took = began.elapsed();
            assert!(took < TOLD_WITHIN, "a full cluster is told after {took:?}: {error}");
            return (number, error);
        }
    }
    unreachable!("it is full in the end")
}

fn put(client: &BlockingClient, number: u64) -> Result<(), Error> {
    let file = client.create(&path(number), Policy::rep(3), 0o644, false)?;
    let appender = file.append_handle()?;
    for part in content(4 * MIB as usize, number).chunks(MIB as usize) {
        appender.append(part)?;
    }
    appender.close().map(drop)
}

fn path(number: u64) -> String {
    format!("/file-{number}")
}

fn check(client: &BlockingClient, number: u64) {
    let file = client.open(&path(number)).expect("it is there");
    let got = file.read_at(0, 4 * MIB as usize).expect("a full cluster is read");
    assert!(got == content(4 * MIB as usize, number), "file {number} has other bytes");
}

/// Fills the cluster, and checks what holds then. `make_room` ends it.
fn full(dir: &Path, make_room: impl FnOnce(&BlockingClient)) {
    let client = load::connect_with(dir, Config::default());
    let (whole, error) = fill(&client);
    assert!(matches!(error, Error::Full { .. }), "{error}");
    let said = error.to_string();
    assert!(said.contains(&path(whole)) && said.contains("remove files or add"), "{said}");
    assert!(whole >= 2, "{whole} files only");
    (0..whole).for_each(|number| check(&client, number));
    assert_eq!(status(dir)["chunks"]["lost"], 0);
    client.unlink(&path(whole)).expect("deleting works on a full cluster");
    client.unlink(&path(0)).expect("deleting works on a full cluster");

    make_room(&client);
    let began = Instant::now();
    wait("writes go on", Duration::from_secs(180), || put(&client, 1000).is_ok());
    println!("full after {whole} files of 4 MiB; writes went on {:?} later", began.elapsed());
    check(&client, 1000);
    (2..whole).for_each(|number| check(&client, number));
}

#[test]
fn small_stores_fill_up_and_go_on_when_files_are_removed() {
    let mut scratch = Scratch::new("full");
    let dir = scratch.cluster("cluster");
    cluster_with(&dir, |store| stores::format(store, 32 * MIB));
    full(&dir, |client| client.unlink(&path(1)).expect("it goes"));
}

#[test]
fn a_medium_without_room_is_no_failed_one() {
    let mut scratch = Scratch::new("room");
    let dir = scratch.cluster("cluster");
    let mounts: Result<Vec<Mounted>, String> = cluster_with(&dir, |store| {
        let mounted = Mounted::over(store, 128)?;
        good(&["store", "format", "--unit-kib", "16", text(store)]);
        Ok::<_, String>(mounted)
    })
    .into_iter()
    .collect();
    match mounts {
        Err(why) => skip(&format!("a medium without room: {why}")),
        Ok(mounts) => {
            full(&dir, |_| mounts.iter().for_each(|mounted| mounted.resize(256)));
            good(&["cluster", "down", "--dir", text(&dir)]);
        }
    }
}
