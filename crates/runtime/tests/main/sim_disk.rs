//! The simulated disk: names that no sync has made durable, and operations that fail.

use std::path::Path;
use std::time::Duration;

use runtime::sim::{CrashMode, DiskError, Sim};
use runtime::{Env, File, OpenOptions, WriteMode};

const DIR: &str = "/d";

async fn write(env: &Env, name: &str, byte: u8) -> File {
    let file = env.open_file(&Path::new(DIR).join(name), OpenOptions::CREATE).await.unwrap();
    let buf = env.pool().copy_of(&[byte; 4096]).unwrap();
    file.write_at(0, buf, WriteMode::Durable).await.unwrap();
    file
}

async fn first_byte(env: &Env, name: &str) -> Option<u8> {
    let file = env.open_file(&Path::new(DIR).join(name), OpenOptions::READ).await.ok()?;
    let (count, buf) = file.read_at(0, env.pool().alloc(1).unwrap()).await;
    assert_eq!(count.unwrap(), 1);
    Some(buf[0])
}

/// Names found under `old` and `new` after `change` and a crash, over many seeds.
fn after_crash(
    mode: CrashMode,
    change: impl AsyncFn(&Env),
) -> std::collections::BTreeSet<(Option<u8>, Option<u8>)> {
    let one = |seed| {
        let sim = Sim::new(seed);
        let host = sim.add_host("a");
        let found = sim.run(async {
            let env = sim.boot(host);
            env.create_dir_all(Path::new(DIR)).await.unwrap();
            write(&env, "old", 1).await;
            env.sync_dir(Path::new(DIR)).await.unwrap();
            change(&env).await;
            sim.crash(host, mode);
            let env = sim.boot(host);
            (first_byte(&env, "old").await, first_byte(&env, "new").await)
        });
        sim.close();
        found.unwrap()
    };
    (0..40).map(one).collect()
}

#[test]
fn names_without_a_sync_of_their_directory_are_volatile() {
    let path = |name: &str| Path::new(DIR).join(name);
    let create = async |env: &Env| drop(write(env, "new", 2).await);
    let created = after_crash(CrashMode::Power, create);
    assert_eq!(created, [(Some(1), None), (Some(1), Some(2))].into());
    assert_eq!(after_crash(CrashMode::Process, create), [(Some(1), Some(2))].into());

    let rename = async |env: &Env| env.rename(&path("old"), &path("new")).await.unwrap();
    let renamed = after_crash(CrashMode::Power, rename);
    assert_eq!(renamed, [(None, Some(1)), (Some(1), None)].into(), "a rename is atomic");

    let remove = async |env: &Env| env.remove_file(&path("old")).await.unwrap();
    assert_eq!(after_crash(CrashMode::Power, remove), [(None, None), (Some(1), None)].into());

    let synced = async |env: &Env| {
        env.rename(&path("old"), &path("new")).await.unwrap();
        env.sync_dir(Path::new(DIR)).await.unwrap();
    };
    assert_eq!(after_crash(CrashMode::Power, synced), [(None, Some(1))].into());
}

#[test]
fn made_directories_are_durable() {
    for seed in 0..20 {
        let sim = Sim::new(seed);
        let host = sim.add_host("a");
        sim.run(async {
            let env = sim.boot(host);
            let dir = Path::new("/x/y/z");
            env.create_dir_all(dir).await.unwrap();
            sim.crash(host, CrashMode::Power);
            let env = sim.boot(host);
            assert_eq!(env.read_dir(dir).await.unwrap(), []);
        })
        .unwrap();
        sim.close();
    }
}

#[test]
fn a_failed_sync_leaves_what_it_was_for_in_doubt() {
    let (mut kept, mut lost) = (0, 0);
    for seed in 0..60 {
        let sim = Sim::new(seed);
        let host = sim.add_host("a");
        let byte = sim.run(async {
            let env = sim.boot(host);
            env.create_dir_all(Path::new(DIR)).await.unwrap();
            let file = write(&env, "old", 1).await;
            env.sync_dir(Path::new(DIR)).await.unwrap();
            let buf = env.pool().copy_of(&[2; 4096]).unwrap();
            file.write_at(0, buf, WriteMode::Cached).await.unwrap();
            sim.with_disk_faults(host, |faults| faults.sync_fails_one_in = 1);
            assert!(file.sync().await.is_err());
            sim.with_disk_faults(host, |faults| faults.sync_fails_one_in = 0);
            file.sync().await.unwrap();
            assert_eq!(first_byte(&env, "old").await, Some(2), "the page cache has it");
            sim.crash(host, CrashMode::Power);
            first_byte(&sim.boot(host), "old").await
        });
        match byte.unwrap() {
            Some(2) => kept += 1,
            _ => lost += 1,
        }
        sim.close();
    }
    assert!(kept > 10 && lost > 10, "kept {kept}, lost {lost}");
}

#[test]
fn failing_operations_fail_below_their_path_only() {
    let sim = Sim::new(3);
    let host = sim.add_host("a");
    sim.run(async {
        let env = sim.boot(host);
        env.create_dir_all(Path::new("/d/bad")).await.unwrap();
        let good = write(&env, "good", 1).await;
        let bad = write(&env, "bad/file", 1).await;
        sim.with_disk_faults(host, |faults| {
            (faults.write_fails_one_in, faults.read_fails_one_in) = (1, 1);
            faults.error = DiskError::Memory;
            faults.within = Some("/d/bad".into());
        });
        let buf = env.pool().copy_of(&[7; 4096]).unwrap();
        good.write_at(0, buf.clone(), WriteMode::Durable).await.unwrap();
        let refused = bad.write_at(0, buf, WriteMode::Durable).await.unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::OutOfMemory);
        assert!(bad.read_at(0, env.pool().alloc(10).unwrap()).await.0.is_err());
        assert!(bad.allocate(0, 1 << 20).await.is_err());
        sim.with_disk_faults(host, |faults| *faults = Default::default());
        // A part of what failed may have been written, in units that a device does not tear.
        let (count, buf) = bad.read_at(0, env.pool().alloc(4096).unwrap()).await;
        assert_eq!(count.unwrap(), 4096);
        assert!(buf.chunks(512).all(|part| part == [1; 512] || part == [7; 512]));
        sim.sleep(Duration::from_millis(1)).await;
    })
    .unwrap();
}

#[test]
fn failing_changes_of_names_are_not_made() {
    let sim = Sim::new(4);
    let host = sim.add_host("a");
    sim.run(async {
        let env = sim.boot(host);
        env.create_dir_all(Path::new("/d/bad")).await.unwrap();
        let _file = write(&env, "bad/file", 1).await;
        env.sync_dir(Path::new("/d/bad")).await.unwrap();
        let fail = |one_in| {
            sim.with_disk_faults(host, |faults| {
                faults.names_fail_one_in = one_in;
                faults.within = Some("/d/bad".into());
            });
        };
        let path = |name: &str| Path::new(DIR).join(name);
        let (old, new) = (path("bad/file"), path("bad/new"));
        fail(1);
        assert!(env.open_file(&old, OpenOptions::READ).await.is_err());
        assert!(env.open_file(&new, OpenOptions::CREATE).await.is_err());
        assert!(env.rename(&old, &new).await.is_err());
        assert!(env.remove_file(&old).await.is_err());
        assert!(env.create_dir_all(&path("bad/dir")).await.is_err());
        let _good = write(&env, "good", 1).await;
        fail(0);
        assert_eq!(first_byte(&env, "bad/file").await, Some(1));
        assert_eq!(first_byte(&env, "bad/new").await, None);
        // A renaming that was not made durable may be undone.
        env.rename(&old, &new).await.unwrap();
        fail(1);
        assert!(env.sync_dir(Path::new("/d/bad")).await.is_err());
        fail(0);
        env.sync_dir(Path::new("/d/bad")).await.unwrap();
        sim.crash(host, CrashMode::Power);
        assert_eq!(first_byte(&sim.boot(host), "bad/new").await, Some(1));
    })
    .unwrap();
}
