//! The simulated world: determinism, and what each fault keeps and loses.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use runtime::sim::{CrashMode, HostId, Sim};
use runtime::{Class, Env, File, OpenOptions, Stalled, Stream, WriteMode};

const MS: Duration = Duration::from_millis(1);

async fn open(env: &Env) -> File {
    env.create_dir_all(Path::new("/d")).await.unwrap();
    let file = env.open_file(Path::new("/d/a"), OpenOptions::CREATE).await.unwrap();
    env.sync_dir(Path::new("/d")).await.unwrap();
    file
}

async fn read(env: &Env, file: &File, offset: u64, len: usize) -> Vec<u8> {
    let (count, buf) = file.read_at(offset, env.pool().alloc(len).unwrap()).await;
    buf[..count.unwrap()].to_vec()
}

/// Two hosts that write, send, sleep, crash and come back: a bit of everything.
fn busy_world(seed: u64) -> (u64, u64) {
    let sim = Sim::new(seed);
    let hosts = ["a", "b"].map(|name| sim.add_host(name));
    sim.with_net_faults(|faults| faults.reset_one_in = 200);
    sim.run(async {
        for round in 0..4 {
            let envs = hosts.map(|host| sim.boot(host));
            let addr = sim.addr(hosts[0], 1000);
            let server = envs[0].clone();
            envs[0].spawn(Class::Foreground, "server", async move {
                let listener = server.listen(addr).await.unwrap();
                while let Ok(mut stream) = listener.accept().await {
                    let env = server.clone();
                    server.spawn(Class::Foreground, "echo", async move {
                        while let (Ok(count @ 1..), buf) =
                            stream.read.read(env.pool().alloc(512).unwrap(), 0).await
                        {
                            let reply = buf.freeze().slice(0..count);
                            if stream.write.write_all(vec![reply]).await.is_err() {
                                return;
                            }
                        }
                    });
                }
            });
            let client = envs[1].clone();
            envs[1].spawn(Class::Foreground, "client", async move {
                let file = open(&client).await;
                for at in 0u64.. {
                    let Ok(mut stream) = client.connect(addr).await else { continue };
                    let bytes = client.random_u64().to_le_bytes();
                    let buf = client.pool().copy_of(&bytes).unwrap();
                    let _ = stream.write.write_all(vec![buf.clone()]).await;
                    let _ = stream.read.read(client.pool().alloc(64).unwrap(), 0).await;
                    file.write_at(at * 8, buf, WriteMode::Cached).await.unwrap();
                    if client.random_below(4) == 0 {
                        file.sync().await.unwrap();
                    }
                    client.blocking("compute", || ()).await;
                }
            });
            sim.sleep(20 * MS).await;
            let mode = if round % 2 == 0 { CrashMode::Power } else { CrashMode::Process };
            hosts.iter().for_each(|&host| sim.crash(host, mode));
        }
    })
    .unwrap();
    let result = (sim.trace_hash(), sim.events());
    sim.close();
    result
}

#[test]
fn a_seed_gives_one_trace() {
    let alone = busy_world(7);
    assert!(alone.1 > 1000, "{} events", alone.1);
    let others: Vec<_> = (0..20).map(busy_world).collect();
    assert_eq!(others[7], alone);
    let mut hashes: Vec<_> = others.iter().map(|(hash, _)| hash).collect();
    hashes.sort();
    hashes.dedup();
    assert_eq!(hashes.len(), 20);
    let threads: Vec<_> =
        (0..2).map(|_| std::thread::Builder::new().spawn(|| busy_world(7)).unwrap()).collect();
    for thread in threads {
        assert_eq!(thread.join().unwrap(), alone);
    }
}

/// One write to a disk and one message, whose bytes alone differ from world to world.
fn world_of(payload: [u8; 2]) -> u64 {
    let sim = Sim::new(1);
    let hosts = ["a", "b"].map(|name| sim.add_host(name));
    sim.run(async {
        let envs = hosts.map(|host| sim.boot(host));
        let [disk, message] = payload.map(|byte| {
            let mut bytes = [0; 4099];
            bytes[4098] = byte;
            envs[1].pool().copy_of(&bytes).unwrap()
        });
        let listener = envs[0].listen(sim.addr(hosts[0], 1000)).await.unwrap();
        let connecting = envs[1].connect(sim.addr(hosts[0], 1000));
        let (stream, accepted) = futures_util::future::join(connecting, listener.accept()).await;
        let (mut stream, mut accepted) = (stream.unwrap(), accepted.unwrap());
        stream.write.write_all(vec![message]).await.unwrap();
        let mut got = 0;
        while got < 4099 {
            let (count, _) = accepted.read.read(envs[0].pool().alloc(4099).unwrap(), 0).await;
            got += count.unwrap();
        }
        let file = open(&envs[1]).await;
        file.write_at(0, disk, WriteMode::Durable).await.unwrap();
    })
    .unwrap();
    let hash = sim.trace_hash();
    sim.close();
    hash
}

#[test]
fn trace_covers_every_byte_of_disks_and_messages() {
    let hashes = [[0, 0], [0, 1], [1, 0], [1, 1]].map(world_of);
    assert_eq!(hashes[0], world_of([0, 0]));
    let distinct: std::collections::BTreeSet<_> = hashes.into_iter().collect();
    assert_eq!(distinct.len(), 4, "{hashes:?}");
}

#[test]
fn power_loss_keeps_what_was_synced_and_tears_the_rest() {
    let (mut kept, mut lost, mut torn) = (0, 0, 0);
    for seed in 0..200 {
        let sim = Sim::new(seed);
        let host = sim.add_host("a");
        let outcome = sim.run(async {
            let env = sim.boot(host);
            let file = open(&env).await;
            let full = |byte: u8| env.pool().copy_of(&[byte; 4096]).unwrap();
            file.write_at(0, full(1), WriteMode::Cached).await.unwrap();
            file.sync().await.unwrap();
            file.write_at(4096, full(2), WriteMode::Durable).await.unwrap();
            file.write_at(8192, full(3), WriteMode::Cached).await.unwrap();
            assert_eq!(read(&env, &file, 8192, 4096).await, [3; 4096]);
            sim.crash(host, CrashMode::Power);
            assert!(file.sync().await.is_err(), "a crashed node's file works");
            let env = sim.boot(host);
            let file = open(&env).await;
            assert_eq!(read(&env, &file, 0, 4096).await, [1; 4096]);
            assert_eq!(read(&env, &file, 4096, 4096).await, [2; 4096]);
            read(&env, &file, 8192, 4096).await.iter().filter(|&&byte| byte == 3).count()
        });
        match outcome.unwrap() {
            0 => lost += 1,
            4096 => kept += 1,
            part => {
                assert_eq!(part % 512, 0);
                torn += 1;
            }
        }
        sim.close();
    }
    assert!(kept > 20 && lost > 20 && torn > 20, "{kept} {lost} {torn}");
}

#[test]
fn a_process_crash_keeps_written_pages() {
    let sim = Sim::new(1);
    let host = sim.add_host("a");
    sim.run(async {
        let env = sim.boot(host);
        let file = open(&env).await;
        let buf = env.pool().copy_of(b"cached").unwrap();
        file.write_at(0, buf, WriteMode::Cached).await.unwrap();
        sim.crash(host, CrashMode::Process);
        let env = sim.boot(host);
        let file = open(&env).await;
        assert_eq!(read(&env, &file, 0, 100).await, b"cached");
        // Power is lost before any sync.
        sim.crash(host, CrashMode::Power);
    })
    .unwrap();
}

#[test]
fn a_cut_file_still_syncs_what_is_below_the_cut() {
    for seed in 0..50 {
        let sim = Sim::new(seed);
        let host = sim.add_host("a");
        sim.run(async {
            let env = sim.boot(host);
            let file = open(&env).await;
            let buf = env.pool().copy_of(&[5; 4096]).unwrap();
            file.write_at(0, buf, WriteMode::Cached).await.unwrap();
            file.set_len(1000).await.unwrap();
            file.sync().await.unwrap();
            sim.crash(host, CrashMode::Power);
            let env = sim.boot(host);
            let file = open(&env).await;
            assert_eq!(read(&env, &file, 0, 4096).await, [5; 1000]);
        })
        .unwrap();
    }
}

#[test]
fn a_crash_ends_tasks_and_their_destructors_have_no_effects() {
    struct Spawns(Env, Rc<Cell<bool>>);
    impl Drop for Spawns {
        fn drop(&mut self) {
            assert!(self.0.is_closed());
            assert_eq!(Env::current().node(), self.0.node());
            let ran = self.1.clone();
            self.0.spawn(Class::Control, "ghost", async move { ran.set(true) });
        }
    }
    let sim = Sim::new(3);
    let host = sim.add_host("a");
    let ran = Rc::new(Cell::new(false));
    sim.run(async {
        let env = sim.boot(host);
        let spawns = Spawns(env.clone(), ran.clone());
        env.spawn(Class::Foreground, "wait", async move {
            std::future::pending::<()>().await;
            drop(spawns);
        });
        sim.sleep(MS).await;
        sim.crash(host, CrashMode::Process);
        sim.sleep(MS).await;
    })
    .unwrap();
    assert!(!ran.get());
}

async fn connected(sim: &Sim, hosts: [HostId; 2]) -> (Stream, Stream) {
    let envs = hosts.map(|host| sim.env(host).unwrap());
    let listener = envs[1].listen(sim.addr(hosts[1], 80)).await.unwrap();
    let client = envs[0].connect(listener.local_addr()).await.unwrap();
    (client, listener.accept().await.unwrap())
}

#[test]
fn a_partition_delays_one_direction_until_it_heals() {
    let sim = Sim::new(4);
    let hosts = ["a", "b"].map(|name| sim.add_host(name));
    sim.run(async {
        let [a, b] = hosts.map(|host| sim.boot(host));
        let (mut client, mut server) = connected(&sim, hosts).await;
        sim.set_blocked(hosts[0], hosts[1], true);
        client.write.write_all(vec![a.pool().copy_of(b"there").unwrap()]).await.unwrap();
        server.write.write_all(vec![b.pool().copy_of(b"back").unwrap()]).await.unwrap();
        let (count, _) = client.read.read(a.pool().alloc(64).unwrap(), 0).await;
        assert!(count.unwrap() > 0);
        let blocked = server.read.read(b.pool().alloc(64).unwrap(), 0);
        assert!(b.timeout(1000 * MS, blocked).await.is_err());
        sim.set_blocked(hosts[0], hosts[1], false);
        let (count, _) = server.read.read(b.pool().alloc(64).unwrap(), 0).await;
        assert!(count.unwrap() > 0);
        // A peer without power is silent; one that died is known.
        sim.crash(hosts[0], CrashMode::Power);
        let silent = server.read.read(b.pool().alloc(64).unwrap(), 0);
        assert!(b.timeout(1000 * MS, silent).await.is_err());
    })
    .unwrap();

    let sim = Sim::new(5);
    let hosts = ["a", "b"].map(|name| sim.add_host(name));
    sim.run(async {
        let [_, b] = hosts.map(|host| sim.boot(host));
        let (_client, mut server) = connected(&sim, hosts).await;
        sim.crash(hosts[0], CrashMode::Process);
        let (count, _) = server.read.read(b.pool().alloc(64).unwrap(), 0).await;
        assert!(count.is_err());
    })
    .unwrap();
}

#[test]
fn clocks_drift_without_jumps() {
    let sim = Sim::new(6);
    let host = sim.add_host("a");
    sim.run(async {
        let env = sim.boot(host);
        sim.sleep(Duration::from_secs(1000)).await;
        let mut last = env.now();
        for ppm in [500, -500, 100_000, 0, -100_000, 300] {
            sim.set_clock_drift(host, ppm);
            assert_eq!(env.now(), last, "the clock jumped");
            sim.sleep(Duration::from_secs(10)).await;
            let passed = (env.now() - last).as_nanos() as i128;
            let want = 10_000 * (1_000_000 + i128::from(ppm));
            assert!((passed - want).abs() < 2, "{ppm}: {passed}");
            let before = sim.elapsed();
            let due = env.now() + 100 * MS;
            env.sleep(100 * MS).await;
            assert!(env.now() >= due);
            let real = (sim.elapsed() - before).as_nanos() as i128;
            assert!((real * (1_000_000 + i128::from(ppm)) / 1_000_000 - 100_000_000).abs() < 4);
            last = env.now();
        }
    })
    .unwrap();
}

#[test]
fn a_paused_host_stands_still_and_goes_on() {
    let sim = Sim::new(7);
    let host = sim.add_host("a");
    sim.run(async {
        let env = sim.boot(host);
        let ticks = Rc::new(RefCell::new(Vec::new()));
        let (kept, clock) = (ticks.clone(), sim.clone());
        env.clone().spawn(Class::Foreground, "tick", async move {
            loop {
                env.sleep(MS).await;
                kept.borrow_mut().push(clock.elapsed());
            }
        });
        sim.sleep(10 * MS).await;
        let before = ticks.borrow().len();
        // The second pause is longer and starts during the first.
        sim.pause(host, 10 * MS);
        sim.sleep(5 * MS).await;
        sim.pause(host, 50 * MS);
        sim.sleep(49 * MS).await;
        assert_eq!(ticks.borrow().len(), before);
        sim.sleep(11 * MS).await;
        assert!(ticks.borrow().len() > before + 5);

        // Crashed while paused: the next boot is not held.
        sim.pause(host, 1000 * MS);
        sim.crash(host, CrashMode::Process);
        let env = sim.boot(host);
        let done = env.clone().spawn(Class::Foreground, "next", async move {
            env.sleep(MS).await;
        });
        sim.sleep(2 * MS).await;
        assert!(done.is_finished());
    })
    .unwrap();
    sim.close();
}

#[test]
fn world_without_timers_ends_with_an_error() {
    let sim = Sim::new(8);
    assert_eq!(sim.run(std::future::pending::<()>()), Err(Stalled));
    assert_eq!(sim.run(async { 5 }), Ok(5));
}

#[test]
fn failed_full_and_wiped_disks() {
    let sim = Sim::new(9);
    let host = sim.add_host("a");
    sim.run(async {
        let env = sim.boot(host);
        let file = open(&env).await;
        sim.with_disk_faults(host, |faults| faults.capacity = 8192);
        let buf = env.pool().copy_of(&[1; 8192]).unwrap();
        file.write_at(0, buf.clone(), WriteMode::Cached).await.unwrap();
        let full = file.write_at(8192, buf.clone(), WriteMode::Cached).await.unwrap_err();
        assert_eq!(full.raw_os_error(), Some(libc_enospc()));
        file.set_len(0).await.unwrap();
        file.write_at(0, buf.clone(), WriteMode::Cached).await.unwrap();
        // Space of a file that a rename replaces comes back.
        env.rename(Path::new("/d/a"), Path::new("/d/b")).await.unwrap();
        sim.with_disk_faults(host, |faults| faults.capacity = 16384);
        let second = env.open_file(Path::new("/d/a"), OpenOptions::CREATE).await.unwrap();
        second.write_at(0, buf.clone(), WriteMode::Cached).await.unwrap();
        env.rename(Path::new("/d/a"), Path::new("/d/b")).await.unwrap();
        let third = env.open_file(Path::new("/d/c"), OpenOptions::CREATE).await.unwrap();
        third.write_at(0, buf, WriteMode::Cached).await.unwrap();

        assert!(sim.flip_bit(host, Path::new("/d/c"), 17, 3));
        assert_eq!(read(&env, &third, 17, 1).await, [1 ^ 8]);
        sim.set_failed(host, Path::new("/d"), true);
        assert!(third.sync().await.is_err());
        sim.set_failed(host, Path::new("/d"), false);
        sim.wipe(host, Path::new("/d"));
        assert!(sim.files(host).is_empty());
    })
    .unwrap();
}

fn libc_enospc() -> i32 {
    28
}
