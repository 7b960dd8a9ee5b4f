//! What the leader of a namespace partition does beside requests, and while it waits: other partitions and
//! streams that do not answer hold up no others, and cost no commands.

use std::cell::Cell;
use std::rc::Rc;

use base::{ClientId, DirId, DiskId, FileId, Kind};
use master_consensus::service::{Host, Router};
use master_consensus::{
    Checkpoints, Group, GroupConfig, GroupStore, LocalFuture, MemoryDevice, NetError, PeerSend,
    peers::Peers,
};
use master_namespace::grant::GrantKey;
use master_namespace::limits::DELETES_INFLIGHT_MAX;
use master_namespace::{
    Action, Command, IntentId, Namespace, NamespaceService, NamespaceTiming, StreamEnd,
    encode_command,
};
use runtime::sim::Sim;
use runtime::{Class, Duration, Env};
use testing::chunks::ModelDisk;
use transport::{Endpoint, Limits};
use wire::control::{
    ControlError, Group as GroupName, NameKey, NamespaceChange, NamespaceReply, NamespaceRequest,
    OpId, dir_id, namespace_partition,
};

use super::cluster::{CLUSTER, identity};
use super::scenarios::{ATTRIBUTES, create, root};

const PARTITIONS: u16 = 3;

/// Has streams deleted, but for those of the first files.
struct Ends {
    fails_to: u64,
}

impl StreamEnd for Ends {
    fn delete(&self, _op: OpId, file: FileId) -> LocalFuture<'_, Result<(), ControlError>> {
        let fails = file.counter() <= self.fails_to;
        let failure = ControlError::new(Kind::Retry, "the stream partition has no leader");
        Box::pin(async move { if fails { Err(failure) } else { Ok(()) } })
    }
}

/// Peers of a member that has none.
struct Alone;

impl PeerSend for Alone {
    fn send(
        &self,
        _to: u64,
        _group: u32,
        _rpc: Vec<u8>,
    ) -> LocalFuture<'_, Result<Vec<u8>, NetError>> {
        Box::pin(async { Err(NetError::Unreachable) })
    }
}

/// A master that leads some partitions, each a group of one member. The others have no leader.
struct Bed {
    env: Env,
    peers: Rc<Peers>,
    router: Rc<Router>,
    seq: Cell<u64>,
}

impl Bed {
    fn new(env: &Env) -> Bed {
        let endpoint = Endpoint::new(env, identity("master"), Limits::default());
        let peers = Peers::new(env, endpoint, &[]);
        let router = Router::new(env, peers.clone(), Duration::from_millis(500));
        Bed { env: env.clone(), peers, router, seq: Cell::new(0) }
    }

    async fn lead(&self, partition: u16, partitions: u16, fails_to: u64) -> NamespaceService {
        let (env, name) = (&self.env, GroupName::Namespace(partition));
        let store = ModelDisk::new(DiskId::new(1 + u128::from(partition))).open(None);
        let checkpoints = Checkpoints::open(GroupStore::new(env, store, name.number()));
        let checkpoints = checkpoints.await.expect("empty");
        let (config, device) = (GroupConfig::new(name.number(), 1), MemoryDevice::new(8 << 20));
        let state = Namespace::new(partition, partitions);
        let group = Group::open(env, config, device, checkpoints, Rc::new(Alone), state);
        let group = group.await.expect("empty");
        group.bootstrap(&[1].into()).await.expect("new");
        while !group.leadership().leading {
            env.sleep(Duration::from_millis(10)).await;
        }
        let host = Host::new(env, name, group, self.peers.clone());
        self.router.add(Rc::new(host.clone()));
        let (ends, grants) = (Rc::new(Ends { fails_to }), GrantKey::derive(None, CLUSTER));
        let (router, timing) = (self.router.clone(), NamespaceTiming::default());
        NamespaceService::start(env, host, router, ends, grants, timing)
    }

    fn change(&self, change: NamespaceChange) -> NamespaceRequest {
        let seq = self.seq.get() + 1;
        self.seq.set(seq);
        let op = OpId { client: ClientId::new(1), seq, acked_below: seq };
        NamespaceRequest::Change { op, change }
    }

    async fn do_change(&self, at: &NamespaceService, change: NamespaceChange) -> NamespaceReply {
        at.serve(self.change(change)).await.expect("done")
    }
}

fn run<F: Future<Output = ()> + 'static>(seed: u64, work: impl FnOnce(Bed) -> F) {
    let sim = Sim::new(seed);
    let env = sim.boot(sim.add_host("master"));
    let task = env.spawn(Class::Foreground, "test", work(Bed::new(&env)));
    sim.run(task).expect("a task is always due").expect("no crash");
}

/// Commits a command as the leader of another partition has it committed.
async fn commit(at: &NamespaceService, command: Command) {
    at.host().propose(|clock| encode_command(clock, &command)).await.expect("committed");
}

/// Another partition's intent takes what it needs here.
async fn prepare(at: &NamespaceService, intent: IntentId, action: Action) {
    let actions = vec![action];
    commit(at, Command::Prepare { intent, floor: 0, stage: 0, actions }).await;
}

/// An intent of another partition, which has not begun it, or has forgotten it.
fn intent_of(partition: u16) -> IntentId {
    IntentId { partition, index: 1_000_000 }
}

#[test]
fn streams_that_are_not_deleted_hold_up_no_others() {
    run(1, |bed| async move {
        let stuck = DELETES_INFLIGHT_MAX as u64;
        let service = bed.lead(0, 1, stuck).await;
        let places: Vec<_> = (0..stuck + 6).map(|number| root(&format!("f{number}"))).collect();
        for place in &places {
            bed.do_change(&service, create(place.clone(), 1)).await;
        }
        for place in places {
            bed.do_change(&service, NamespaceChange::Unlink { place }).await;
        }
        bed.env.sleep(Duration::from_secs(5)).await;
        let left = service.host().read(|state| state.orphans(None, usize::MAX));
        let left: Vec<_> = left.into_iter().map(FileId::counter).collect();
        assert_eq!(left, (1..=stuck).collect::<Vec<_>>());
    });
}

#[test]
fn intents_of_a_partition_without_a_leader_hold_up_no_others() {
    run(2, |bed| async move {
        let own = namespace_partition(DirId::ROOT, PARTITIONS);
        let others: Vec<_> = (0..PARTITIONS).filter(|&partition| partition != own).collect();
        let [silent, other] = others[..] else { panic!("three partitions") };
        let service = bed.lead(own, PARTITIONS, 0).await;
        let _other = bed.lead(other, PARTITIONS, 0).await;
        for (partition, name) in [(silent, "a"), (other, "b")] {
            bed.do_change(&service, create(root(name), 1)).await;
            prepare(&service, intent_of(partition), Action::Hold { place: root(name) }).await;
        }
        bed.env.sleep(Duration::from_secs(5)).await;
        let guests = service.host().read(Namespace::guests);
        assert_eq!(guests, [intent_of(silent)]);
    });
}

/// A name whose directory, made there, belongs to a partition.
fn place_of_dir_in(partition: u16, parent: DirId) -> (NameKey, DirId) {
    let named = |number: u32| {
        let name = format!("dir{number}");
        let dir = dir_id(parent, &name, 0);
        (NameKey { parent, name }, dir)
    };
    let belongs = |(_, dir): &(NameKey, DirId)| namespace_partition(*dir, PARTITIONS) == partition;
    (0..).map(named).find(belongs).expect("a third of them belongs there")
}

/// The partition of an intent that has the turn to rename directories has no leader: a rename waits. Returns the
/// commands that are committed during that, in all partitions.
async fn commands_of_a_rename_that_waits(bed: &Bed, from_first: bool) -> u64 {
    let own = namespace_partition(DirId::ROOT, PARTITIONS);
    assert_ne!(own, 0, "partition 0 gives the turns");
    let (first, second) = (bed.lead(0, PARTITIONS, 0).await, bed.lead(own, PARTITIONS, 0).await);
    let mkdir = |place: &NameKey| {
        let (place, attributes) = (place.clone(), ATTRIBUTES);
        NamespaceChange::Mkdir { place, attributes }
    };
    let (parent_place, parent) = place_of_dir_in(0, DirId::ROOT);
    bed.do_change(&second, mkdir(&parent_place)).await;
    let (service, parent) = if from_first { (&first, parent) } else { (&second, DirId::ROOT) };
    let (from, _) = place_of_dir_in(own, parent);
    bed.do_change(service, mkdir(&from)).await;
    // What was made is known to all partitions by then.
    bed.env.sleep(Duration::from_millis(100)).await;
    let holder = intent_of(PARTITIONS - own);
    prepare(&first, holder, Action::RenameTurn).await;
    let committed = || {
        let last = |at: &NamespaceService| at.host().group().applied_index().unwrap_or(0);
        last(&first) + last(&second)
    };
    let before = committed();
    let to = NameKey { parent, name: "moved".to_owned() };
    let rename = NamespaceChange::Rename { from, to, replace: false };
    let refused = service.serve(bed.change(rename.clone())).await;
    assert_eq!(refused.expect_err("the turn is another's").kind, Kind::Retry);
    let commands = committed() - before;
    // It goes on when the turn is free.
    let (waiting, request) = (service.clone(), bed.change(rename));
    let waiting = bed.env.spawn(Class::Foreground, "rename", async move {
        let moved = waiting.serve(request).await;
        moved.expect("it is its turn");
    });
    bed.env.sleep(Duration::from_millis(300)).await;
    commit(&first, Command::Resolve { intent: holder, floor: 0, commit: false }).await;
    let waited = bed.env.timeout(Duration::from_millis(200), waiting).await;
    waited.expect("soon").expect("no crash");
    commands
}

#[test]
fn rename_that_waits_for_its_turn_asks_the_state_first() {
    run(3, |bed| async move {
        let commands = commands_of_a_rename_that_waits(&bed, true).await;
        assert!(commands <= 4, "{commands} commands");
    });
}

#[test]
fn rename_that_waits_for_a_turn_of_another_partition_asks_less_and_less_often() {
    run(4, |bed| async move {
        let commands = commands_of_a_rename_that_waits(&bed, false).await;
        assert!(commands <= 150, "{commands} commands");
    });
}
