//! Stores and the clusters that they belong to: masters that were formed again, stores of versions
//! that noted no cluster, two processes of one name.

use std::time::Duration;

use base::DiskId;
use base::limits::SECTOR;
use chunkserver::Chunkserver;
use chunkstore::flash::layout::{SUPER_AT, Super};
use chunkstore::{ChunkStore, StoreOwner};
use client::Client;
use runtime::sim::{CrashMode, Sim};
use runtime::{Class, OpenOptions, WriteMode};
use sim::cluster::{Cluster, MASTER_DIR, Shape};
use sim::tuning::Tuning;
use testing::chunks::ModelDisk;
use wire::control::{DiskReport, Policy};

const FILES: usize = 24;
const SECOND: Duration = Duration::from_secs(1);

fn small_cluster(sim: &Sim) -> Cluster {
    let shape = Shape { masters: 1, servers: 3, ..Shape::default() };
    let mut tuning = Tuning::default();
    let stream = &mut tuning.master.stream;
    stream.list_interval = SECOND;
    stream.garbage_interval = SECOND;
    stream.token_life = 10 * SECOND;
    Cluster::start(sim, shape, tuning)
}

/// Makes files of one chunk each; the number of those that were stored.
async fn store_files(client: &Client, dir: &str, deadline: Duration) -> usize {
    let mut stored = 0;
    for number in 0..FILES {
        let path = format!("/{dir}{number}");
        let work = async {
            let file = client.create(&path, Policy::strict(3), 0o644, true).await?;
            let appender = file.append_handle().await?;
            appender.append(path.as_bytes()).await?;
            appender.close().await
        };
        match client.env().timeout(deadline, work).await {
            Ok(Ok(_)) => stored += 1,
            _ => return stored,
        }
    }
    stored
}

/// Runs `work` on a client's host.
async fn with_client<T: 'static, F: Future<Output = T> + 'static>(
    cluster: &Cluster,
    work: impl FnOnce(Client) -> F,
) -> T {
    let client = loop {
        match cluster.client(None).await {
            Ok((_, client)) => break client,
            Err(_) => cluster.sim().sleep(SECOND).await,
        }
    };
    let env = client.env().clone();
    env.spawn(Class::Foreground, "client", work(client)).await.expect("no crash")
}

/// Replicas on each server's disk, and whose it is.
fn held(cluster: &Cluster) -> Vec<(u64, StoreOwner)> {
    let infos = (0..cluster.servers().len()).flat_map(|index| cluster.stores(index));
    infos.map(|(_, store)| (store.info().chunks, store.info().owner)).collect()
}

/// The disks in the order of their servers' names; masters list servers as they have joined.
async fn disks(cluster: &Cluster) -> Vec<DiskReport> {
    let statuses = with_client(cluster, |client| async move { client.status().await }).await;
    let statuses = statuses.expect("a master answers");
    let mut servers: Vec<_> = statuses.into_iter().flat_map(|(_, status)| status.servers).collect();
    servers.sort_by(|a, b| a.name.cmp(&b.name));
    servers.into_iter().flat_map(|server| server.disks).collect()
}

/// Gives the store of a server that is down the superblocks of `b19d38d`.
async fn unmark(cluster: &Cluster, index: usize) {
    cluster.crash_server(index, CrashMode::Power);
    let host = cluster.servers()[index];
    let env = cluster.sim().boot(host);
    let edit = env.clone().spawn(Class::Foreground, "unmark", async move {
        let file = env.open_file(&Cluster::disk_path(0), OpenOptions::CREATE).await.unwrap();
        for at in SUPER_AT {
            let (_, block) = file.read_at(at, env.pool().alloc(SECTOR).unwrap()).await;
            let sb = Super { owner: StoreOwner::Unmarked, ..Super::decode(&block).unwrap() };
            let mut block = env.pool().alloc_zeroed(SECTOR).unwrap();
            sb.encode(&mut block);
            file.write_at(at, block.freeze(), WriteMode::Cached).await.unwrap();
        }
        file.sync().await.unwrap();
    });
    edit.await.expect("no crash");
    cluster.sim().crash(host, CrashMode::Process);
}

#[test]
fn stores_join_one_formation_and_are_left_alone_by_the_next() {
    let sim = Sim::new(42);
    let run = async {
        let cluster = small_cluster(&sim);
        cluster.settle(30 * SECOND).await.unwrap();
        let stored = with_client(&cluster, |client| async move {
            store_files(&client, "first", 30 * SECOND).await
        });
        assert_eq!(stored.await, FILES);
        cluster.settle(60 * SECOND).await.unwrap();
        let before = held(&cluster);
        let owner = before[0].1;
        assert!(matches!(owner, StoreOwner::Of { .. }), "{owner:?}");
        assert!(before.iter().all(|&(chunks, of)| chunks >= FILES as u64 && of == owner));
        // A store of the version before: its masters know it.
        unmark(&cluster, 0).await;
        cluster.boot_all();
        cluster.settle(60 * SECOND).await.unwrap();
        assert_eq!(held(&cluster)[0].1, owner);
        // The masters lose everything and are formed again, under the same identity. One store is
        // of the version before again.
        unmark(&cluster, 1).await;
        cluster.crash_master(0, CrashMode::Power);
        sim.wipe(cluster.masters()[0], std::path::Path::new(MASTER_DIR));
        cluster.boot_all();
        sim.sleep(20 * SECOND).await;
        let stored = with_client(&cluster, |client| async move {
            store_files(&client, "second", 10 * SECOND).await
        });
        assert_eq!(stored.await, 0, "appends to disks of another formation");
        sim.sleep(200 * SECOND).await;
        let after = held(&cluster);
        let wanted = [owner, StoreOwner::Unmarked, owner];
        for (index, (&(chunks, of), &(had, _))) in after.iter().zip(&before).enumerate() {
            assert_eq!((chunks, of), (had, wanted[index]), "server {index}");
        }
        for (index, disk) in disks(&cluster).await.into_iter().enumerate() {
            assert!(disk.failed, "{disk:?}");
            let words = if index == 1 { "no master of" } else { "formation" };
            assert!(disk.reason.contains(words), "{}", disk.reason);
        }
        assert_eq!(cluster.violations(), Vec::<String>::new());
    };
    sim.run(run).expect("a task is always due");
}

/// Address of `cs1` at the masters, and its liveness.
async fn first_server(cluster: &Cluster) -> (std::net::SocketAddr, bool) {
    let statuses = with_client(cluster, |client| async move { client.status().await }).await;
    let mut servers =
        statuses.expect("a master answers").into_iter().flat_map(|(_, it)| it.servers);
    let server = servers.find(|server| server.name == "cs1").expect("registered");
    (server.addr, server.alive)
}

#[test]
fn second_process_under_a_live_servers_name_waits_until_it_is_dead() {
    let sim = Sim::new(43);
    let run = async {
        let cluster = small_cluster(&sim);
        cluster.settle(30 * SECOND).await.unwrap();
        let (first, alive) = first_server(&cluster).await;
        assert!(alive);
        let host = sim.add_host("second");
        let (env, addr) = (sim.boot(host), sim.addr(host, 7101));
        let config = chunkserver::Config::new("cs1", addr, cluster.master_addrs());
        let (endpoint, node) = (cluster.endpoint(&env), env.clone());
        let starting = env.spawn(Class::Foreground, "second", async move {
            let store = ModelDisk::new(DiskId::new(77)).open(Some(node.clone()));
            let disks = vec![("/copy".to_owned(), store)];
            Chunkserver::start(&node, endpoint, config, disks).await.expect("a free port")
        });
        let _second = starting.await.expect("no crash");
        for _ in 0..20 {
            sim.sleep(SECOND).await;
            assert_eq!(first_server(&cluster).await, (first, true));
        }
        assert!(sim.marks().contains_key("chunkserver: refused as a second process"));
        cluster.crash_server(0, CrashMode::Power);
        sim.sleep(10 * SECOND).await;
        assert_eq!(first_server(&cluster).await, (addr, true));
    };
    sim.run(run).expect("a task is always due");
}

/// Two processes of one number would vote twice.
#[test]
fn second_process_with_a_copy_of_a_masters_directory_is_refused() {
    let sim = Sim::new(48);
    let run = async {
        let cluster = Cluster::start(&sim, Shape::default(), Tuning::default());
        cluster.settle(30 * SECOND).await.unwrap();
        let stored = with_client(&cluster, |client| async move {
            store_files(&client, "before", 30 * SECOND).await
        });
        assert_eq!(stored.await, FILES);
        let twin = sim.add_host("twin");
        cluster.copy_master(0, twin).await.unwrap();
        cluster.settle(60 * SECOND).await.unwrap();
        let (first, second) = (sim.addr(cluster.masters()[0], 7001), sim.addr(twin, 7001));
        for _ in 0..3 {
            let started = cluster.start_twin(0, twin).await.map(drop);
            let refusal = started.expect_err("a second master 1 has started");
            let words = [format!("runs at {first} already"), format!("at {second}, is refused")];
            assert!(words.iter().all(|words| refusal.contains(words)), "{refusal}");
            assert!(cluster.master_serves(0), "the first one goes on");
            sim.crash(twin, CrashMode::Process);
        }
        let stored = with_client(&cluster, |client| async move {
            store_files(&client, "after", 30 * SECOND).await
        });
        assert_eq!(stored.await, FILES);
        cluster.settle(60 * SECOND).await.unwrap();
        assert_eq!(cluster.violations(), Vec::<String>::new());
    };
    sim.run(run).expect("a task is always due");
}
