//! `craton up`.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::harness::{Scratch, bad, command, good, make_tree, picture, text, wait};

struct Up(Child);

impl Up {
    fn start(args: &[&str]) -> (Up, String) {
        let mut child = command(&[&["up"][..], args].concat())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let up = Up(child);
        let mut said = String::new();
        for line in lines.by_ref() {
            let line = line.expect("text");
            let last = line.starts_with("export CRATON_CLUSTER=");
            said += &line;
            said.push('\n');
            if last {
                break;
            }
        }
        // Kept open: the process says more when it stops.
        std::thread::spawn(move || lines.for_each(drop));
        (up, said)
    }

    fn interrupt(mut self) {
        let pid = self.0.id().to_string();
        assert!(Command::new("kill").args(["-INT", &pid]).status().expect("kill").success());
        let mut status = None;
        wait("a clean stop", Duration::from_secs(20), || {
            status = self.0.try_wait().expect("it can be waited for");
            status.is_some()
        });
        assert!(status.is_some_and(|status| status.success()), "{status:?}");
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn copies(cluster: &Path, path: &str) -> u64 {
    let stat = good(&["fs", "stat", "--json", path, "--cluster", text(cluster)]);
    let stat: serde_json::Value = serde_json::from_str(&stat).expect("JSON");
    stat["chunks"][0]["replicas"].as_array().map_or(0, Vec::len) as u64
}

#[test]
fn one_process_keeps_data_over_a_restart() {
    let scratch = Scratch::new("up");
    let dir = scratch.path("data");
    let src = scratch.path("src");
    make_tree(&src);
    let (up, said) = Up::start(&["--dir", text(&dir)]);
    assert!(said.contains("one copy"), "{said}");
    good(&["fs", "put", "-r", text(&src), "/tree", "--cluster", text(&dir)]);
    assert_eq!(copies(&dir, "/tree/of-100000"), 1);
    bad(&["up", "--dir", text(&dir)], 4, "runs on this directory already");
    bad(&["cluster", "down", "--dir", text(&dir)], 4, "craton up");
    up.interrupt();
    let (up, _) = Up::start(&["--dir", text(&dir)]);
    let back = scratch.path("back");
    good(&["fs", "get", "-r", "/tree", text(&back), "--cluster", text(&dir)]);
    assert_eq!(picture(&src), picture(&back));
    up.interrupt();
}

#[test]
fn several_stores_give_several_copies() {
    let scratch = Scratch::new("stores");
    let dir = scratch.path("data");
    let stores = ["a", "b", "c"].map(|name| scratch.path(name));
    for store in &stores {
        std::fs::create_dir(store).expect("a directory");
    }
    let stores: Vec<&str> = stores.iter().flat_map(|path| ["--store", text(path)]).collect();
    let file = scratch.path("file");
    std::fs::write(&file, "three times").expect("a file");
    let (up, said) = Up::start(&[&["--dir", text(&dir)][..], &stores].concat());
    assert!(said.contains("3 copies"), "{said}");
    good(&["fs", "put", text(&file), "/file", "--cluster", text(&dir)]);
    assert_eq!(copies(&dir, "/file"), 3);
    up.interrupt();
    bad(&["up", "--dir", text(&dir), "--store", text(&scratch.path("a"))], 2, "name all of them");
    let missing = scratch.path("missing");
    bad(&["up", "--dir", text(&scratch.path("new")), "--store", text(&missing)], 4, "missing");
}
