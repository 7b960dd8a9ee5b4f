//! Changes across partitions, step by step: what is answered is what the next reader finds, and directories
//! do not move into each other.

use std::collections::BTreeSet;
use std::rc::Rc;

use base::{DirId, FileId};
use master_consensus::service::Hosted;
use master_namespace::{Action, Intent, Namespace};
use runtime::sim::{CrashMode, Sim};
use runtime::{Class, Duration};
use wire::control::{
    Attributes, NameKey, NamespaceChange, NamespaceReply, NamespaceRequest, Node,
    namespace_partition,
};

use super::cluster::{Client, Cluster};
use super::scenarios::{ATTRIBUTES, create, dirs_apart, mkdir, root, with_client};

const PARTITIONS: u16 = 3;

fn at(parent: DirId, name: &str) -> NameKey {
    NameKey { parent, name: name.to_owned() }
}

fn partition_of(dir: DirId) -> usize {
    usize::from(namespace_partition(dir, PARTITIONS))
}

/// A file whose name was moved to a directory of another partition: the file, and its name.
async fn file_apart(client: &Client) -> (FileId, NameKey) {
    let [here, there] = dirs_apart(client, PARTITIONS).await;
    let (from, to) = (at(here, "f"), at(there, "f"));
    client.change(create(from.clone(), 0)).await.expect("made");
    let rename = NamespaceChange::Rename { from, to: to.clone(), replace: false };
    client.change(rename).await.expect("moved");
    match client.lookup(&to).await {
        Ok(Some((Node::File { file, .. }, _))) => (file, to),
        other => panic!("not a file: {other:?}"),
    }
}

/// Sets the time and the closed length of a file.
fn set(place: &NameKey, value: u64) -> NamespaceChange {
    let attributes = Attributes { mtime: value, ..ATTRIBUTES };
    let (place, len) = (place.clone(), Some(value));
    NamespaceChange::SetAttributes { place, attributes, len, file: None }
}

/// The two of an answer about a file.
fn values(reply: NamespaceReply) -> (u64, u64) {
    match reply {
        NamespaceReply::Node { node: Node::File { attributes, len, .. }, .. } => {
            (attributes.mtime, len)
        }
        other => panic!("not a file: {other:?}"),
    }
}

/// True when a partition has decided on an own intent such as `is_it`, and has not forgotten it.
fn has_decided(state: &Namespace, is_it: impl Fn(&Intent) -> bool) -> bool {
    let mut intents = state.intents().into_iter().filter_map(|id| state.intent(id));
    intents.any(|it| matches!(it.outcome, Some((true, _))) && is_it(it))
}

fn sets_attributes(intent: &Intent) -> bool {
    let mut actions = intent.plan.iter().flat_map(|(_, actions)| actions);
    actions.any(|action| matches!(action, Action::SetInode { .. }))
}

#[test]
fn attributes_of_a_file_of_another_partition_are_read_as_soon_as_they_are_answered() {
    let sim = Sim::new(15);
    let cluster = Cluster::new(&sim, 3, 3, PARTITIONS);
    with_client(&sim, &cluster, |client| async move {
        let (file, place) = file_apart(&client).await;
        for value in 1..=40 {
            let answered = client.change(set(&place, value)).await.expect("set");
            assert_eq!(values(answered), (value, value), "in the answer");
            let read = client.namespace(NamespaceRequest::StatFile { file }).await;
            assert_eq!(values(read.expect("read")), (value, value), "behind the answer");
        }
    });
}

/// The leader that has decided a change of attributes dies before the file's partition knows. The change is
/// answered by the next leader, and then another one is made.
#[test]
fn attributes_that_a_former_leader_decided_on_do_not_replace_later_ones() {
    for seed in 0..30 {
        let sim = Sim::new(seed);
        let cluster = Cluster::new(&sim, 3, 3, PARTITIONS);
        let (world, masters) = (sim.clone(), cluster.clone());
        with_client(&sim, &cluster, |client| async move {
            let (file, place) = file_apart(&client).await;
            let coordinator = partition_of(place.parent);
            let leads = |id: &u64| {
                let master = masters.master(*id);
                master.is_some_and(|it| it.namespaces()[coordinator].host().leads())
            };
            let leader = masters.ids().into_iter().find(leads).expect("one leads");
            let host = masters.master(leader).expect("up").namespaces()[coordinator].host().clone();
            let (first, change) = (client.clone(), set(&place, 1));
            let env = client.env().clone();
            let first =
                env.spawn(Class::Foreground, "first", async move { first.change(change).await });
            while !host.read(|state| has_decided(state, sets_attributes)) {
                world.sleep(Duration::from_micros(5)).await;
            }
            masters.crash(leader, CrashMode::Process);
            first.await.expect("no crash").expect("it is decided");
            client.change(set(&place, 2)).await.expect("set");
            // Leaders complete by then what others have left.
            world.sleep(Duration::from_secs(2)).await;
            let read = client.namespace(NamespaceRequest::StatFile { file }).await;
            assert_eq!(values(read.expect("read")), (2, 2), "seed {seed}");
        });
    }
}

/// Has master `id` lead a namespace partition.
async fn lead(world: &Sim, masters: &Rc<Cluster>, partition: usize, id: u64) {
    let host = |id: u64| masters.master(id).expect("up").namespaces()[partition].host().clone();
    let end = world.elapsed() + Duration::from_secs(20);
    while !host(id).leads() {
        assert!(world.elapsed() < end, "master {id} does not lead partition {partition}");
        if let Some(leader) = masters.ids().into_iter().find(|&other| host(other).leads()) {
            let (host, successors) = (host(leader), BTreeSet::from([id]));
            let env = world.env(masters.host(leader)).expect("up");
            let hand_over = async move { host.lead_no_more(&successors).await };
            env.spawn(Class::Control, "hand over", hand_over).await.expect("no crash");
        }
        world.sleep(Duration::from_millis(20)).await;
    }
}

/// A new directory in the root that belongs to a partition.
async fn dir_in(client: &Client, partition: usize, name: &str) -> (NameKey, DirId) {
    for number in 0.. {
        let place = root(&format!("{name}{number}"));
        let dir = mkdir(client, place.clone()).await;
        if partition_of(dir) == partition {
            return (place, dir);
        }
    }
    unreachable!("one of them belongs there");
}

/// Each partition has a leader of its own. The first move is decided, and its leader does not reach the moved
/// directory's home for a while. The leader of the partition that gives the turns reaches both: it may not
/// give the turn to a second move, whose leader would find the old parent at that home.
#[test]
fn directories_do_not_move_into_each_other_under_leaders_that_do_not_reach_each_other() {
    for seed in 0..8 {
        let sim = Sim::new(seed);
        let cluster = Cluster::new(&sim, 3, 3, PARTITIONS);
        let (world, masters) = (sim.clone(), cluster.clone());
        with_client(&sim, &cluster, |client| async move {
            let first = partition_of(DirId::ROOT);
            assert_ne!(first, 0, "partition 0 gives the turns, and coordinates the second move");
            let home = usize::from(PARTITIONS) - first;
            let (one_place, one) = dir_in(&client, home, "one").await;
            let (_, second) = dir_in(&client, 0, "second").await;
            let other_place = at(second, "other");
            let other = mkdir(&client, other_place.clone()).await;
            for (partition, id) in [(first, 1), (0, 2), (home, 3)] {
                lead(&world, &masters, partition, id).await;
            }
            let host = |id: u64, partition: usize| {
                masters.master(id).expect("up").namespaces()[partition].host().clone()
            };
            let env = client.env().clone();
            let start_move = |from: NameKey, parent: DirId| {
                let to = at(parent, &from.name);
                let change = NamespaceChange::Rename { from, to, replace: false };
                let client = client.clone();
                env.spawn(Class::Foreground, "move", async move { client.change(change).await })
            };
            let moved = start_move(one_place.clone(), other);
            let coordinator = host(1, first);
            let moves = |intent: &Intent| intent.moved_dir() == Some((one, other));
            while !coordinator.read(|state| has_decided(state, moves)) {
                world.sleep(Duration::from_micros(5)).await;
            }
            let cut = |blocked| {
                for (from, to) in [(1, 3), (3, 1)] {
                    world.set_blocked(masters.host(from), masters.host(to), blocked);
                }
            };
            cut(true);
            let back = start_move(other_place, one);
            // Participants ask for the outcome each half second.
            world.sleep(Duration::from_millis(1500)).await;
            let parent = host(3, home).read(|state| state.parent(one));
            assert_eq!(parent, Ok(DirId::ROOT), "seed {seed}: the home does not know yet");
            cut(false);
            let back = back.await.expect("no crash");
            assert!(back.is_err(), "seed {seed}: each is in the other one");
            moved.await.expect("no crash").expect("it is decided");
            let found = client.lookup(&at(other, &one_place.name)).await;
            assert!(matches!(found, Ok(Some(_))), "seed {seed}: {found:?}");
        });
    }
}
