//! Files through the ring.

use std::io::ErrorKind;
use std::time::Duration;

use runtime::{Env, File, OpenOptions, WriteMode};

use crate::support::{TempDir, runtime};

const PAGE: usize = 4096;

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

async fn read(env: &Env, file: &File, offset: u64, len: usize) -> Vec<u8> {
    let (count, buf) = file.read_at(offset, env.pool().alloc(len).unwrap()).await;
    buf[..count.unwrap()].to_vec()
}

#[test]
fn what_is_written_is_read() {
    let dir = TempDir::new();
    let runtime = runtime();
    let env = runtime.env().clone();
    runtime.block_on(async {
        let file = env.open_file(&dir.join("a"), OpenOptions::CREATE).await.unwrap();
        let data = pattern(10_000, 1);
        let buf = env.pool().copy_of(&data).unwrap();
        file.write_at(5, buf.clone(), WriteMode::Cached).await.unwrap();
        file.sync().await.unwrap();
        assert_eq!(file.len().await.unwrap(), 10_005);
        assert_eq!(read(&env, &file, 5, 20_000).await, data);
        assert_eq!(read(&env, &file, 10_005, 10).await, []);

        // Pieces, empty ones and more than fit one batch among them.
        let pieces: Vec<_> = (0..1500).map(|at| buf.slice(at..at + at % 7)).collect();
        let joined: Vec<u8> = pieces.iter().flat_map(|piece| piece.to_vec()).collect();
        file.write_vectored_at(100_000, pieces, WriteMode::Durable).await.unwrap();
        assert_eq!(read(&env, &file, 100_000, joined.len()).await, joined);
        file.write_at(0, buf.slice(0..0), WriteMode::Durable).await.unwrap();
        file.write_vectored_at(0, Vec::new(), WriteMode::Durable).await.unwrap();

        file.set_len(100).await.unwrap();
        assert_eq!(file.len().await.unwrap(), 100);
        file.allocate(0, 1 << 20).await.unwrap();
        assert_eq!(file.len().await.unwrap(), 1 << 20);
        assert_eq!(read(&env, &file, 4096, 16).await, [0; 16]);
        let taken = file.allocated().unwrap();
        file.set_len(2 << 20).await.unwrap();
        assert!(taken >= 1 << 20 && file.allocated().unwrap() == taken, "a hole takes no room");
    });
}

#[test]
fn direct_writes_are_durable_and_vectored() {
    let dir = TempDir::new();
    let runtime = runtime();
    let env = runtime.env().clone();
    runtime.block_on(async {
        let options = OpenOptions::CREATE.direct();
        let file = env.open_file(&dir.join("a"), options).await.unwrap();
        file.allocate(0, 1 << 20).await.unwrap();
        let bufs: Vec<_> =
            (0..8).map(|seed| env.pool().copy_of(&pattern(PAGE, seed)).unwrap()).collect();
        file.write_vectored_at(8192, bufs.clone(), WriteMode::Durable).await.unwrap();
        let back = read(&env, &file, 8192, 8 * PAGE).await;
        for (part, buf) in back.chunks(PAGE).zip(&bufs) {
            assert_eq!(part, &**buf);
        }
        // A read across the end is short.
        file.set_len(10_000).await.unwrap();
        assert_eq!(read(&env, &file, 8192, 8 * PAGE).await.len(), 10_000 - 8192);
    });
}

#[test]
fn many_writes_at_once() {
    let dir = TempDir::new();
    let runtime = runtime();
    let env = runtime.env().clone();
    runtime.block_on(async {
        let file = env.open_file(&dir.join("a"), OpenOptions::CREATE).await.unwrap();
        // More than the submission queue holds.
        let tasks: Vec<_> = (0..1000u64)
            .map(|at| {
                let (file, pool) = (file.clone(), env.pool().clone());
                env.spawn(runtime::Class::Foreground, "write", async move {
                    let buf = pool.copy_of(&at.to_le_bytes()).unwrap();
                    file.write_at(at * 8, buf, WriteMode::Cached).await.unwrap();
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        let back = read(&env, &file, 0, 8000).await;
        for (at, word) in back.chunks(8).enumerate() {
            assert_eq!(word, (at as u64).to_le_bytes());
        }
    });
}

#[test]
fn a_dropped_write_goes_on_and_a_dropped_read_is_harmless() {
    let dir = TempDir::new();
    let path = dir.join("a");
    let data = pattern(1 << 20, 3);
    let runtime = runtime();
    let env = runtime.env().clone();
    runtime.block_on(async {
        let file = env.open_file(&path, OpenOptions::CREATE).await.unwrap();
        let buf = env.pool().copy_of(&data).unwrap();
        let mut write = Box::pin(file.write_at(0, buf, WriteMode::Durable));
        assert!(futures_util::poll!(&mut write).is_pending());
        drop(write);
        for _ in 0..100 {
            let mut read = Box::pin(file.read_at(0, env.pool().alloc(1 << 20).unwrap()));
            assert!(futures_util::poll!(&mut read).is_pending());
        }
    });
    // All is in flight while the runtime stops.
    drop(runtime);
    assert!(std::fs::read(&path).unwrap() == data);
    assert_eq!(env.pool().used(), 0);
    assert!(env.is_closed());
}

#[test]
fn a_stopped_runtime_answers_with_an_error() {
    let dir = TempDir::new();
    let first = runtime();
    let env = first.env().clone();
    let file = first.block_on(env.open_file(&dir.join("a"), OpenOptions::CREATE)).unwrap();
    drop(first);
    let buf = env.pool().copy_of(b"late").unwrap();
    let second = runtime();
    assert!(second.block_on(file.write_at(0, buf, WriteMode::Durable)).is_err());
    drop(file);
}

#[test]
fn names_and_locks() {
    let dir = TempDir::new();
    let runtime = runtime();
    let env = runtime.env().clone();
    runtime.block_on(async {
        let below = dir.path().join("x/y");
        env.create_dir_all(&below).await.unwrap();
        env.create_dir_all(&below).await.unwrap();
        let missing = env.open_file(&below.join("a"), OpenOptions::READ).await;
        assert_eq!(missing.unwrap_err().kind(), ErrorKind::NotFound);
        let file = env.open_file(&below.join("a"), OpenOptions::CREATE).await.unwrap();
        let new = OpenOptions { create_new: true, ..OpenOptions::CREATE };
        let exists = env.open_file(&below.join("a"), new).await;
        assert_eq!(exists.unwrap_err().kind(), ErrorKind::AlreadyExists);

        file.try_lock().unwrap();
        let again = env.open_file(&below.join("a"), OpenOptions::CREATE).await.unwrap();
        assert_eq!(again.try_lock().unwrap_err().kind(), ErrorKind::WouldBlock);
        let clone = file.clone();
        drop(file);
        assert_eq!(again.try_lock().unwrap_err().kind(), ErrorKind::WouldBlock);
        drop(clone);
        again.try_lock().unwrap();

        env.rename(&below.join("a"), &below.join("b")).await.unwrap();
        env.sync_dir(&below).await.unwrap();
        let names = env.read_dir(&below).await.unwrap();
        assert_eq!(names.iter().map(|entry| &*entry.name).collect::<Vec<_>>(), ["b"]);
        assert!(env.read_dir(dir.path()).await.unwrap()[0].is_dir);
        env.remove_file(&below.join("b")).await.unwrap();
        assert!(env.read_dir(&below).await.unwrap().is_empty());
        let gone = env.remove_file(&below.join("b")).await;
        assert_eq!(gone.unwrap_err().kind(), ErrorKind::NotFound);
        env.sleep(Duration::from_millis(1)).await;
    });
}
