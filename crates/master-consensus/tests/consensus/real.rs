//! Groups on the kernel's files: three members and two groups in one process.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use chunkstore::flash;
use master_consensus::{
    Checkpoints, EngineDevice, Group, GroupConfig, GroupStore, Groups, LocalFuture, NetError,
    PeerSend, ReadError, open_store, store_options,
};
use runtime::{Class, Duration, Env, Runtime, RuntimeConfig};

use super::checkers::{Observer, Registers, set_command};

const SEGMENT: u64 = 8 << 20;
const MEMBERS: [u64; 3] = [1, 2, 3];
const GROUPS: [u32; 2] = [1, 2];

/// Delivers at once.
struct Loopback(Rc<BTreeMap<u64, Groups>>);

impl PeerSend for Loopback {
    fn send(
        &self,
        to: u64,
        group: u32,
        rpc: Vec<u8>,
    ) -> LocalFuture<'_, Result<Vec<u8>, NetError>> {
        Box::pin(async move { self.0[&to].deliver(group, rpc).await })
    }
}

struct Process(BTreeMap<(u32, u64), Group<Registers>>);

async fn open(env: &Env, dir: &Path) -> Process {
    let members: BTreeMap<u64, Groups> = MEMBERS.map(|node| (node, Groups::new())).into();
    let members = Rc::new(members);
    let mut stores = BTreeMap::new();
    for node in MEMBERS {
        let dir = dir.join(format!("member-{node}"));
        env.create_dir_all(&dir).await.expect("makes it");
        let path = dir.join("store");
        if !path.exists() {
            flash::format(env, &path, &store_options()).await.expect("formats");
        }
        stores.insert(node, open_store(env, &path).await.expect("opens"));
    }
    let mut groups = BTreeMap::new();
    for group in GROUPS {
        let observer: Rc<Observer> = Rc::default();
        for node in MEMBERS {
            let group_store = GroupStore::new(env, stores[&node].clone(), group);
            let checkpoints = Checkpoints::open(group_store.clone()).await.expect("opens");
            let device = EngineDevice::new(group_store, SEGMENT);
            let peers = Rc::new(Loopback(members.clone()));
            let (config, machine) = (GroupConfig::new(group, node), Registers::new(&observer));
            let opened = Group::open(env, config, device, checkpoints, peers, machine).await;
            let opened = opened.expect("opens");
            members[&node].insert(group, Rc::new(opened.clone()));
            groups.insert((group, node), opened);
        }
    }
    Process(groups)
}

impl Process {
    async fn leader(&self, env: &Env, group: u32) -> &Group<Registers> {
        loop {
            let members = MEMBERS.iter().map(|&node| &self.0[&(group, node)]);
            if let Some(leader) = members.into_iter().find(|member| member.leadership().leading) {
                return leader;
            }
            env.sleep(Duration::from_millis(10)).await;
        }
    }

    /// The same, once a quorum has confirmed it: a machine that stands still for the time of an
    /// election makes another one.
    async fn confirmed_leader(&self, env: &Env, group: u32) -> &Group<Registers> {
        loop {
            let leader = self.leader(env, group).await;
            match leader.read_index().await {
                Ok(_) => return leader,
                Err(ReadError::NotLeader { .. } | ReadError::NoQuorum) => {
                    env.sleep(Duration::from_millis(10)).await;
                }
                Err(error) => panic!("a quorum answers: {error:?}"),
            }
        }
    }
}

async fn fill(env: Env, dir: PathBuf, round: u64) {
    let process = open(&env, &dir).await;
    for group in GROUPS {
        if round == 0 {
            let formed = process.0[&(group, 1)].bootstrap(&BTreeSet::from(MEMBERS)).await;
            formed.expect("a new group");
        }
        let leader = process.confirmed_leader(&env, group).await;
        let expected = if round == 0 { 0 } else { round * 10_000 + u64::from(group) };
        assert_eq!(leader.read(|machine| machine.get(99)), expected, "group {group}");
        let started = env.now();
        let proposals = (0..512).map(|n| {
            let (leader, value) = (leader.clone(), round * 1000 + n);
            let command = set_command(n % 8, value, 200);
            env.spawn(Class::Foreground, "propose", async move { leader.propose(command).await })
        });
        for proposal in proposals.collect::<Vec<_>>() {
            proposal.await.expect("runs").expect("committed");
        }
        let together = env.now().since(started);
        let started = env.now();
        for n in 0..32 {
            let command = set_command(n % 8, round * 1000 + 600 + n, 200);
            leader.propose(command).await.expect("committed");
        }
        let alone = env.now().since(started) / 32;
        println!("group {group}: 512 proposals together {together:?}, one alone {alone:?}");
        let last = set_command(99, (round + 1) * 10_000 + u64::from(group), 0);
        leader.propose(last).await.expect("committed");
    }
    // No shutdown: as after a kill.
}

#[test]
fn groups_survive_a_restart_on_real_files() {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("master-groups");
    if dir.exists() {
        std::fs::remove_dir_all(&dir).expect("removable");
    }
    for round in 0..3 {
        let runtime = Runtime::new(RuntimeConfig::named("master")).expect("io_uring works");
        let (env, dir) = (runtime.env().clone(), dir.clone());
        let work = env.clone().spawn(Class::Foreground, "test", fill(env, dir, round));
        runtime.block_on(work).expect("not aborted");
    }
    std::fs::remove_dir_all(&dir).expect("removable");
}
