//! `craton health` names what does not serve, and no other.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::harness::{
    Scratch, bad, content, craton, good, json, kill9, process, text, wait, within,
};

/// Time in which a fault is named: the longest silence that is none yet, and probes, on a busy machine.
const NAMED: Duration = Duration::from_secs(15);
/// Time in which it is good again: a new leader of the block managers hears of the others.
const GOOD: Duration = Duration::from_secs(30);

fn health(dir: &Path, more: &[&str]) -> Value {
    json(&[&["health", "--json", "--cluster", text(dir)], more].concat())
}

/// IDs and states of the processes that are not good.
fn not_good(health: &Value) -> Vec<(String, String)> {
    let word = |value: &Value| value.as_str().expect("text").to_owned();
    let servers = health["servers"].as_array().expect("a list").iter();
    let bad = servers.filter(|server| server["state"] != "good");
    bad.map(|server| (word(&server["id"]), word(&server["state"]))).collect()
}

fn signal(dir: &Path, id: &str, signal: &str) {
    let pid = process(dir, id)["pid"].to_string();
    assert!(Command::new("kill").args([signal, &pid]).status().expect("kill").success());
}

fn until_named(dir: &Path, id: &str) {
    let mut last = Vec::new();
    let named = within(NAMED, || {
        last = not_good(&health(dir, &[]));
        matches!(&last[..], [(bad, state)] if bad == id && state != "good")
    });
    assert!(named, "{id} does not serve, and these are not good: {last:?}");
}

fn until_good(dir: &Path) {
    let mut last = Vec::new();
    let good = within(GOOD, || {
        last = not_good(&health(dir, &[]));
        last.is_empty()
    });
    assert!(good, "everything runs, and these are not good: {last:?}");
}

#[test]
fn health_names_the_process_that_stands_still_or_is_dead() {
    let mut scratch = Scratch::new("health");
    let dir = scratch.cluster("c");
    good(
        &[
            &["cluster", "up", "--dir", text(&dir), "--masters", "3", "--chunkservers", "3"][..],
            &["--block-managers", "2", "--block-servers", "2", "--frontends", "1"],
        ]
        .concat(),
    );
    until_good(&dir);
    let all = health(&dir, &[]);
    let roles: Vec<_> = all["servers"].as_array().unwrap().iter().map(|it| &it["role"]).collect();
    assert_eq!(roles.len(), 11, "{roles:?}");
    for id in ["cs2", "bs1", "m1", "bm1", "f1"] {
        signal(&dir, id, "-STOP");
        until_named(&dir, id);
        let line = good(&["health", "--cluster", text(&dir)]);
        assert!(line.contains(&format!("\n{id} is ")), "{line}");
        signal(&dir, id, "-CONT");
        until_good(&dir);
    }
    kill9(&dir, &["cs3"]);
    until_named(&dir, "cs3");
    // Unreached at first: masters may have heard it a moment ago.
    wait("it is out, and so is its disk", NAMED, || {
        let found = health(&dir, &[]);
        let mut servers = found["servers"].as_array().expect("a list").iter();
        let cs3 = servers.find(|server| server["id"] == "cs3").expect("it is known");
        assert!(cs3["reason"].is_string() && cs3["action"].is_string(), "{cs3}");
        cs3["state"] == "out" && cs3["disks"][0]["state"] == "out"
    });
}

#[test]
fn health_shows_what_a_client_sees() {
    let mut scratch = Scratch::new("health-from");
    let dir = scratch.cluster("c");
    good(
        &[
            &["cluster", "up", "--dir", text(&dir), "--masters", "1", "--chunkservers", "3"][..],
            &["--block-managers", "1", "--block-servers", "1", "--frontends", "1"],
        ]
        .concat(),
    );
    let config = std::fs::read_to_string(dir.join("bs1/block-server.toml")).expect("a file");
    let metrics = config.lines().find_map(|line| line.strip_prefix("metrics = ")).expect("a port");
    let metrics = metrics.trim_matches('"').to_owned();
    good(&["volume", "create", "v", "--size", "1GiB", "--cluster", text(&dir)]);
    let image = scratch.path("image");
    std::fs::write(&image, content(1 << 20, 1)).expect("written");
    good(&["volume", "import", "w", text(&image), "--cluster", text(&dir)]);
    wait("the block server's calls are shown", Duration::from_secs(20), || {
        let found = health(&dir, &["--from", &metrics]);
        let servers = found["servers"].as_array().expect("a list").clone();
        let views = servers.iter().flat_map(|it| it["seen_by"].as_array().expect("a list"));
        views.clone().any(|view| view["observer"] == "bs1" && view["p99_us"].as_u64() > Some(0))
    });
    // What cannot be had is named, and the rest is shown.
    let found = health(&dir, &["--from", "127.0.0.1:1"]);
    let errors = found["errors"].as_array().expect("a list");
    assert!(errors[0].as_str().is_some_and(|it| it.starts_with("127.0.0.1:1: ")), "{errors:?}");
    let master = process(&dir, "m1")["addr"].as_str().expect("an address").to_owned();
    let output = craton(&["health", "--cluster", text(&dir), "--from", &master]);
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(shown.contains(&format!("not known: {master}: ")), "{shown}");
    bad(&["health", "--cluster", text(&dir), "--from", "nowhere"], 2, "--from");
}
