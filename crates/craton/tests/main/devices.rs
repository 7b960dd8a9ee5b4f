//! `craton volume detach` beside devices of other programs: in a mount namespace in which the kernel's
//! NBD devices are made up, with a made-up `nbd-client`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::json;

use crate::harness::{Scratch, binary, skip, text};

/// A host with one NBD device.
struct Host {
    scratch: Scratch,
}

impl Host {
    /// Nothing where this machine lets no mount namespace be made.
    fn new(name: &str) -> Option<Host> {
        let made = Command::new("unshare").args(["-m", "true"]).stderr(Stdio::null()).status();
        let root = Command::new("id").arg("-u").output().expect("id").stdout;
        if root != b"0\n" || !made.is_ok_and(|status| status.success()) {
            return None;
        }
        let host = Host { scratch: Scratch::new(name) };
        let mode = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("its mode is set");
        };
        for dir in ["sys/nbd0", "bin", "run"] {
            fs::create_dir_all(host.path(dir)).expect("a directory");
        }
        mode(&host.path("run"), 0o700);
        let (tool, calls) = (host.path("bin/nbd-client"), host.path("calls"));
        fs::write(&tool, format!("#!/bin/sh\necho \"$@\" >>'{}'\n", text(&calls))).expect("a tool");
        mode(&tool, 0o755);
        fs::write(host.path("nbd0"), "").expect("what stands for the device");
        Some(host)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path(name)
    }

    /// The process that has connected the device.
    fn connect(&self, pid: u32) {
        fs::write(self.path("sys/nbd0/pid"), format!("{pid}\n")).expect("it is written");
    }

    /// The note of an attachment; of an older version, without a process.
    fn note(&self, pid: Option<u32>) {
        let mut note = json!({
            "volume": "v", "uri": "nbd://127.0.0.1:1/v", "how": "nbd",
            "device": self.path("nbd0"), "dir": null,
        });
        if let Some(pid) = pid {
            note["pid"] = pid.into();
        }
        let path = self.path("run/v.json");
        fs::write(&path, note.to_string()).expect("it is written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("its mode is set");
    }

    fn detach(&self) -> Output {
        let script = "mount --bind \"$0\" /sys/block && exec \"$@\"";
        let path = std::env::var("PATH").unwrap_or_default();
        Command::new("unshare")
            .args(["-m", "sh", "-ec", script, text(&self.path("sys")), text(&binary())])
            .args(["volume", "detach", "v", "--run-dir", text(&self.path("run"))])
            .env("PATH", format!("{}:{path}", text(&self.path("bin"))))
            .stdin(Stdio::null())
            .output()
            .expect("unshare runs")
    }

    /// Detaches, which has to fail, and to leave the device connected.
    fn is_refused(&self, want: &str) {
        let output = self.detach();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!self.path("calls").exists(), "it is disconnected: {error}");
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains(want), "'{error}' does not say '{want}'");
    }

    /// Detaches, which has to disconnect the device.
    fn is_done(&self) {
        let output = self.detach();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let calls = fs::read_to_string(self.path("calls")).expect("it was called");
        assert_eq!(calls, format!("-d {}\n", text(&self.path("nbd0"))));
    }
}

const NO_NAMESPACES: &str = "it needs root and mount namespaces";

#[test]
fn a_device_that_another_program_has_connected_is_not_disconnected() {
    let Some(host) = Host::new("nbd-owner") else { return skip(NO_NAMESPACES) };
    host.connect(4242);
    host.note(None);
    host.is_refused("does not say");
    // Since the volume was attached, the device went, and another program has taken it.
    host.note(Some(17));
    host.is_refused("v is not attached here");
    host.note(Some(4242));
    host.is_done();
}

#[test]
fn a_device_that_a_mapping_uses_is_not_disconnected() {
    let Some(host) = Host::new("nbd-holders") else { return skip(NO_NAMESPACES) };
    host.connect(4242);
    host.note(Some(4242));
    let holder = host.path("sys/nbd0/nbd0p2/holders/dm-3");
    fs::create_dir_all(&holder).expect("a directory");
    host.is_refused("is in use by dm-3");
    fs::remove_dir(&holder).expect("it goes");
    host.is_done();
}
