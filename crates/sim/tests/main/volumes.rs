//! Volumes on the whole stack, in cases that need a cluster of their own.

use std::rc::Rc;
use std::time::Duration;

use base::{Fault, Kind, MIB};
use block_client::{Limits, VolumeExports};
use block_manager::entity::Counters;
use block_manager::rows::{Key, Row, Value};
use block_proto::paths::{ROOT, segment_path};
use block_proto::{BlockReply, BlockRequest, Managers, VolumeGeometry, VolumeInfo, VolumeSpec};
use block_volume::contract::Device;
use block_volume::export::Exports;
use block_volume::geometry::Extent;
use block_volume::ids::{SegmentId, VolumeId};
use block_volume::limits::BLOCK;
use block_volume::qos::VolumeLimits;
use client::Client;
use runtime::sim::{CrashMode, HostId, Sim};
use runtime::{Class, Env};
use sim::cluster::{Cluster, Shape};
use sim::scenario::stack::{Role, Stack};
use sim::tuning::Tuning;
use table::{Cache, ClientStore, Options, Table};
use wire::control::Policy;

const SECOND: Duration = Duration::from_secs(1);
const MANAGERS: usize = 2;
const SERVERS: usize = 2;
const FILE_BYTES: u64 = 256 << 10;
/// Bytes of a volume, which is one group.
const BYTES: u64 = 16 * MIB;
const SEGMENTS: u64 = 4;
const SECTOR: u64 = 64 << 10;
/// A request has an answer by then.
const DEADLINE: Duration = Duration::from_secs(60);
/// Files of a removed volume are gone by then: they go 3 s after its removal, under any leader.
const GONE_WITHIN: Duration = Duration::from_secs(30);
/// A front end that was killed has the volume again by then, wherever it starts.
const AGAIN_WITHIN: Duration = Duration::from_secs(10);

/// A user of volumes, on a host of its own.
#[derive(Clone)]
struct User {
    host: HostId,
    env: Env,
    client: Client,
    managers: Managers,
    exports: VolumeExports,
}

/// A cluster of three chunkservers.
async fn start(sim: &Sim) -> Cluster {
    let cluster = Cluster::start(sim, Shape { servers: 3, ..Shape::default() }, Tuning::default());
    cluster.settle(30 * SECOND).await.expect("no fault");
    cluster
}

/// The answer to [`User::get`] where all segments have the same byte.
fn all(byte: u8) -> Result<Vec<u8>, Fault> {
    Ok(vec![byte; SEGMENTS as usize])
}

fn crash_managers(stack: &Rc<Stack>) {
    (0..MANAGERS).for_each(|index| stack.crash(Role::Manager(index), CrashMode::Power));
    (0..MANAGERS).for_each(|index| stack.boot(Role::Manager(index)));
}

fn crash_servers(stack: &Rc<Stack>) {
    (0..SERVERS).for_each(|index| stack.crash(Role::Server(index), CrashMode::Power));
    (0..SERVERS).for_each(|index| stack.boot(Role::Server(index)));
}

impl User {
    /// A user that attaches volumes under a name.
    async fn connect(cluster: &Cluster, holder: &str) -> User {
        let (host, client) = cluster.client(None).await.expect("a master answers");
        let (env, endpoint) = (client.env().clone(), cluster.endpoint(client.env()));
        let managers = Managers::with_budget(&client, DEADLINE);
        let exports = VolumeExports::new(&managers, &endpoint, holder, Limits::default());
        User { host, env, client, managers, exports }
    }

    /// Does something on the user's host.
    async fn act<T: 'static, F: Future<Output = T> + 'static>(
        &self,
        work: impl FnOnce(User) -> F,
    ) -> T {
        let working = self.env.spawn(Class::Foreground, "user", work(self.clone()));
        working.await.expect("the user's host is up")
    }

    /// A request that is answered with a volume.
    async fn volume(&self, request: BlockRequest) -> VolumeInfo {
        match self.managers.ask(request).await {
            Ok(BlockReply::Volume(info)) => info,
            other => panic!("no volume: {other:?}"),
        }
    }

    async fn create(&self, name: &str) -> VolumeId {
        let geometry = VolumeGeometry {
            group_bytes: BYTES,
            segments_per_group: SEGMENTS as u32,
            data_sector: SECTOR,
        };
        let spec = VolumeSpec {
            name: name.to_owned(),
            bytes: BYTES,
            geometry,
            policy: Policy::rep(3),
            limits: VolumeLimits::default(),
            shared: false,
        };
        self.volume(BlockRequest::Create { nonce: self.env.random_u64(), spec }).await.volume
    }

    async fn snapshot(&self, volume: VolumeId, name: &str) -> VolumeId {
        let (nonce, name) = (self.env.random_u64(), name.to_owned());
        self.volume(BlockRequest::Snapshot { nonce, volume, name }).await.volume
    }

    async fn open(&self, name: &str) -> Rc<dyn Device> {
        let end = self.env.now() + DEADLINE;
        loop {
            match self.exports.open(name).await {
                Ok(device) => return device,
                // A front end that was killed may have sent a last sign of life, which comes late.
                Err(fault)
                    if matches!(fault.kind, Kind::Retry | Kind::Exists) && self.env.now() < end =>
                {
                    self.env.sleep(SECOND / 10).await;
                }
                Err(fault) => panic!("open {name}: {fault}"),
            }
        }
    }

    /// Fills the first block of each segment with a byte.
    async fn put(&self, device: &Rc<dyn Device>, byte: u8) -> Result<(), Fault> {
        for index in 0..SEGMENTS {
            let data = self.env.pool().copy_of(&[byte; BLOCK as usize]).expect("there is room");
            device.write(index * SECTOR, data).await?;
        }
        Ok(())
    }

    /// The bytes that the first blocks of all segments have.
    async fn get(&self, device: &Rc<dyn Device>) -> Result<Vec<u8>, Fault> {
        let mut found = Vec::new();
        for index in 0..SEGMENTS {
            let read = device.read(Extent { offset: index * SECTOR, len: BLOCK }).await?;
            let first = read[0];
            assert!(read.iter().all(|&byte| byte == first), "a block of two writes");
            found.push(first);
        }
        Ok(found)
    }

    /// Waits until no segment of a volume has files.
    async fn until_gone(&self, volume: VolumeId) {
        let end = self.env.now() + GONE_WITHIN;
        for index in 0..SEGMENTS as u32 {
            let path = segment_path(SegmentId { volume, index });
            loop {
                match self.client.lookup(&path).await {
                    Err(error) if error.kind() == Kind::NotFound => break,
                    found => assert!(self.env.now() < end, "{path} is left: {found:?}"),
                }
                self.env.sleep(SECOND / 2).await;
            }
        }
    }
}

#[test]
fn deleted_volume_leaves_nothing_where_deleted_volumes_are_not_kept() {
    let sim = Sim::new(201);
    let run = async {
        let cluster = start(&sim).await;
        let counts = (MANAGERS, SERVERS);
        let stack = Stack::start_keeping(&cluster, counts, FILE_BYTES, Duration::ZERO);
        let user = User::connect(&cluster, "user").await;
        let gone = user.act(|user| async move {
            let volume = user.create("gone").await;
            let device = user.open("gone").await;
            user.put(&device, 1).await.expect("no fault");
            let snapshot = user.snapshot(volume, "s").await;
            user.client.lookup(&segment_path(SegmentId { volume, index: 0 })).await.expect("files");
            drop(device);
            let delete = BlockRequest::Delete { volume, force: true, snapshots: true };
            assert_eq!(user.managers.ask(delete).await, Ok(BlockReply::Done));
            for name in ["gone", "gone@s"] {
                let found = user.managers.volume(name).await;
                assert_eq!(found.map_err(|error| error.kind()), Err(Kind::NotFound), "{name}");
            }
            let undelete = BlockRequest::Undelete { volume, name: None };
            let back = user.managers.ask(undelete).await;
            assert_eq!(back.map_err(|error| error.kind()), Err(Kind::NotFound));
            let next = user.create("gone").await;
            assert!(next > snapshot, "numbers are used once");
            [volume, snapshot]
        });
        let gone = gone.await;
        // The next leader removes what this one has begun with.
        crash_managers(&stack);
        let ending = user.act(move |user| async move {
            for volume in gone {
                user.until_gone(volume).await;
            }
            let list = BlockRequest::ListDeleted { after: None, limit: 100 };
            let deleted = user.managers.ask(list).await;
            let none = BlockReply::Deleted { volumes: Vec::new(), more: false };
            assert_eq!(deleted, Ok(none));
            // The volume that has the name now is another one.
            let device = user.open("gone").await;
            assert_eq!(user.get(&device).await, all(0));
        });
        ending.await;
        assert_eq!(stack.verdict(), Ok(()));
        assert_eq!(cluster.violations(), Vec::<String>::new());
    };
    sim.run(run).expect("a task is always due");
    sim.close();
}

/// A host is lost, and its front end starts under the same ID on another one.
#[test]
fn front_end_that_starts_on_another_host_has_its_volume_soon() {
    let sim = Sim::new(202);
    let run = async {
        let cluster = start(&sim).await;
        let stack = Stack::start(&cluster, (MANAGERS, SERVERS), FILE_BYTES);
        let first = User::connect(&cluster, "front end fe1").await;
        let writing = first.act(|user| async move {
            user.create("disk").await;
            let device = user.open("disk").await;
            user.put(&device, 1).await.expect("no fault");
            // It is open when the host goes down.
            user.env.spawn(Class::Foreground, "hold", async move {
                let _held = device;
                std::future::pending::<()>().await;
            });
        });
        writing.await;
        sim.crash(first.host, CrashMode::Power);
        let second = User::connect(&cluster, "front end fe1").await;
        let reading = second.act(|user| async move {
            let began = user.env.now();
            let device = user.open("disk").await;
            assert_eq!(user.get(&device).await, all(1));
            let took = user.env.now() - began;
            assert!(took < AGAIN_WITHIN, "it waits for {took:?}");
            // Nothing takes it away again.
            for byte in 2..40 {
                user.put(&device, byte).await.expect("it is the only one");
                assert_eq!(user.get(&device).await, all(byte));
                user.env.sleep(SECOND / 2).await;
            }
        });
        reading.await;
        assert_eq!(stack.verdict(), Ok(()));
    };
    sim.run(run).expect("a task is always due");
    sim.close();
}

/// A front end that is stopped, as by SIGTERM, while a client has its volume open.
#[test]
fn front_end_that_was_stopped_leaves_no_silence_to_wait_for() {
    let sim = Sim::new(205);
    let run = async {
        let cluster = start(&sim).await;
        let stack = Stack::start(&cluster, (MANAGERS, SERVERS), FILE_BYTES);
        let first = User::connect(&cluster, "front end fe1").await;
        let stopping = first.act(|user| async move {
            user.create("disk").await;
            let device = user.open("disk").await;
            user.put(&device, 1).await.expect("no fault");
            user.exports.close().await;
            assert!(user.put(&device, 2).await.is_err(), "it is detached");
            let refused = user.exports.open("disk").await.map(drop);
            assert_eq!(refused.map_err(|fault| fault.kind), Err(Kind::Unknown));
            // It is open when the process ends.
            user.env.spawn(Class::Foreground, "hold", async move {
                let _held = device;
                std::future::pending::<()>().await;
            });
        });
        stopping.await;
        sim.crash(first.host, CrashMode::Power);
        let second = User::connect(&cluster, "front end fe1").await;
        let reading = second.act(|user| async move {
            let began = user.env.now();
            let device = user.exports.open("disk").await.expect("it was detached");
            assert_eq!(user.get(&device).await, all(1));
            let took = user.env.now() - began;
            assert!(took < SECOND, "it waits for {took:?}");
            user.put(&device, 2).await.expect("no fault");
        });
        reading.await;
        assert_eq!(stack.verdict(), Ok(()));
    };
    sim.run(run).expect("a task is always due");
    sim.close();
}

/// An operator's mistake: a front end is started twice, on two hosts.
#[test]
fn second_front_end_of_an_id_takes_nothing_from_the_first() {
    let sim = Sim::new(204);
    let run = async {
        let cluster = start(&sim).await;
        let stack = Stack::start(&cluster, (MANAGERS, SERVERS), FILE_BYTES);
        let first = User::connect(&cluster, "front end fe1").await;
        let second = User::connect(&cluster, "front end fe1").await;
        let device = first.act(|user| async move {
            user.create("disk").await;
            let device = user.open("disk").await;
            user.put(&device, 1).await.expect("no fault");
            device
        });
        let device = device.await;
        let trying = second.env.spawn(Class::Foreground, "second", {
            let user = second.clone();
            async move {
                let (end, mut named) = (user.env.now() + 20 * SECOND, 0);
                while user.env.now() < end {
                    let began = user.env.now();
                    let fault = user.exports.open("disk").await.map(drop);
                    let fault = fault.expect_err("a second front end has the volume");
                    // At once, and with the way out, while a manager leads.
                    if fault.kind == Kind::Exists && fault.message.contains("front end fe1") {
                        named += u32::from(user.env.now() - began < 2 * SECOND);
                    }
                    user.env.sleep(SECOND / 2).await;
                }
                named
            }
        });
        let stack_of = stack.clone();
        let working = first.act(move |user| async move {
            for byte in 2..42 {
                // The next leader has heard of neither.
                if byte == 20 {
                    crash_managers(&stack_of);
                }
                user.put(&device, byte).await.expect("taken away by a second front end");
                assert_eq!(user.get(&device).await, all(byte));
                user.env.sleep(SECOND / 2).await;
            }
            // It is open when the host goes down.
            user.env.spawn(Class::Foreground, "hold", async move {
                let _held = device;
                std::future::pending::<()>().await;
            });
        });
        working.await;
        let named = trying.await.expect("the second host is up");
        assert!(named >= 3, "the second front end was sent the cause {named} times");
        // The first one is gone: its ID is the other one's.
        sim.crash(first.host, CrashMode::Power);
        let taking = second.act(|user| async move {
            let began = user.env.now();
            let device = user.open("disk").await;
            assert!(user.env.now() - began < AGAIN_WITHIN);
            assert_eq!(user.get(&device).await, all(41));
        });
        taking.await;
        assert_eq!(stack.verdict(), Ok(()));
    };
    sim.run(run).expect("a task is always due");
    sim.close();
}

/// Has block managers that have not begun yet find these numbers in their table.
async fn begin_with(user: &User, counters: Counters) {
    let writing = user.act(move |user| async move {
        let path = format!("{ROOT}/manager");
        let store = ClientStore::new(&user.client, &path, Policy::rep(3)).await;
        let store = Rc::new(store.expect("the core makes a directory"));
        let table = Table::open(&user.env, store, &Cache::new(1 << 20), Options::default()).await;
        let table = table.expect("an empty directory");
        let row = Row::put(Key::Counters, Value::Counters(counters));
        let value = row.value_bytes().expect("it is put");
        table.put(&row.key_bytes(), &value).await.expect("the only owner");
        table.close().await.expect("the only owner");
    });
    writing.await;
}

#[test]
fn last_volume_and_block_server_numbers_are_used_and_nothing_is_lost() {
    let sim = Sim::new(203);
    let run = async {
        let cluster = start(&sim).await;
        let user = User::connect(&cluster, "user").await;
        let (volume, server) = (u64::MAX - 3, u32::MAX - SERVERS as u32);
        begin_with(&user, Counters { volume, server }).await;
        let stack = Stack::start(&cluster, (MANAGERS, SERVERS), FILE_BYTES);
        let making = user.act(|user| async move {
            let volume = user.create("a").await;
            let device = user.open("a").await;
            user.put(&device, 1).await.expect("no fault");
            let snapshot = user.snapshot(volume, "s").await;
            user.put(&device, 2).await.expect("no fault");
            let (nonce, name) = (user.env.random_u64(), "c".to_owned());
            let clone = BlockRequest::Clone { nonce, snapshot, name };
            let clone = user.volume(clone).await.volume;
            let last = [3, 2, 1].map(|before| VolumeId::new(u64::MAX - before));
            assert_eq!([volume, snapshot, clone], last);
        });
        making.await;
        crash_managers(&stack);
        crash_servers(&stack);
        let ending = user.act(|user| async move {
            for (name, byte) in [("a", 2), ("a@s", 1), ("c", 1)] {
                let device = user.open(name).await;
                // The second time the client reads at places that it has been sent.
                for _ in 0..2 {
                    assert_eq!(user.get(&device).await, all(byte), "{name}");
                }
            }
            let device = user.open("c").await;
            user.put(&device, 3).await.expect("no fault");
            assert_eq!(user.get(&device).await, all(3));
            drop(device);
            let volume = VolumeId::new(u64::MAX - 1);
            let remove = BlockRequest::Remove { volume, force: true };
            assert_eq!(user.managers.ask(remove).await, Ok(BlockReply::Done));
            user.until_gone(volume).await;
            let device = user.open("a").await;
            assert_eq!(user.get(&device).await, all(2));
            let status = user.managers.status().await.expect("it answers").expect("one leads");
            let mut servers: Vec<_> = status.servers.iter().map(|it| it.server.get()).collect();
            servers.sort_unstable();
            assert_eq!(servers, [u32::MAX - 2, u32::MAX - 1]);
        });
        ending.await;
        assert_eq!(stack.verdict(), Ok(()));
        assert_eq!(cluster.violations(), Vec::<String>::new());
    };
    sim.run(run).expect("a task is always due");
    sim.close();
}
