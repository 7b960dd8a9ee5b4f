//! Masters whose directory was lost: they do not vote again by themselves, and no second cluster
//! is formed.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::path::Path;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use base::DirId;
use runtime::Duration;
use runtime::sim::{CrashMode, Sim};
use wire::control::{
    Attributes, ClusterReply, ClusterRequest, ControlReply, ControlRequest, MemberChange, NameKey,
    NamespaceChange, Policy,
};

use master_consensus::service::Hosted;

use super::cluster::{CLUSTER, Client, Cluster};

fn create(name: &str) -> NamespaceChange {
    let place = NameKey { parent: DirId::ROOT, name: name.to_owned() };
    let attributes = Attributes::default();
    NamespaceChange::Create {
        place,
        policy: Policy::strict(3),
        attributes,
        exclusive: true,
        inherit: false,
    }
}

async fn members(client: &Client, change: MemberChange) {
    let request = ControlRequest::Cluster(ClusterRequest::Members { change });
    client.ask(request).await.expect("the members change");
}

/// A founder comes back with an empty directory: it says so, takes no part, and is removed. Its
/// number is not used again; a master with another one is added in its place.
fn lose_disk(lost: u64) {
    const FRESH: u64 = 4;
    let sim = Sim::new(lost);
    let cluster = Cluster::new(&sim, 4, 3, 2);
    let (world, masters) = (sim.clone(), cluster.clone());
    let host = sim.add_host("client");
    let env = sim.boot(host);
    let client = Client::new(&env, &cluster, Duration::from_secs(20));
    sim.run(async move {
        masters.form().await;
        let filler = client.clone();
        let filled = env.spawn(runtime::Class::Foreground, "client", async move {
            for number in 0..300 {
                filler.change(create(&format!("f{number}"))).await.expect("made");
            }
        });
        filled.await.expect("runs");
        masters.crash(lost, CrashMode::Power);
        world.wipe(masters.host(lost), Path::new("/data"));
        masters.start(lost);
        let why = loop {
            world.sleep(Duration::from_millis(20)).await;
            if let Some(why) = masters.master(lost).and_then(|master| master.failure()) {
                break why;
            }
        };
        assert!(why.contains("its disk was lost or replaced"), "{why}");
        let master = masters.master(lost).expect("runs");
        assert!(master.leads().is_empty() && !master.is_ready(), "it takes no part");
        // The process ends, and comes again as often as it likes.
        masters.crash(lost, CrashMode::Process);
        masters.start(lost);
        let (client, env) = (client.clone(), env.clone());
        let other = masters.clone();
        let again = env.spawn(runtime::Class::Foreground, "client", async move {
            members(&client, MemberChange::Remove { id: lost }).await;
            // Its process has ended; the next one waits to be added.
            other.crash(lost, CrashMode::Process);
            other.start(lost);
            let again = MemberChange::Add(other.info(lost));
            let again = ControlRequest::Cluster(ClusterRequest::Members { change: again });
            let again = client.ask(again).await.expect_err("a number is used once");
            assert!(again.message.contains("numbers are not used again"), "{again:?}");
            other.start(FRESH);
            members(&client, MemberChange::Add(other.info(FRESH))).await;
            client.change(create("last")).await.expect("made");
            let info = client.ask(ControlRequest::Cluster(ClusterRequest::Info)).await;
            let Ok(ControlReply::Cluster(ClusterReply::Info(info))) = info else {
                panic!("no facts")
            };
            assert_eq!(info.masters.len(), 3);
        });
        again.await.expect("runs");
        let whole = |id: u64| {
            let files = |master: &master::Master| {
                let spaces = master.namespaces().iter();
                spaces.map(|it| it.host().read(|state| state.files())).sum::<u64>()
            };
            masters.master(id).is_some_and(|master| master.is_ready() && files(&master) == 301)
        };
        while !whole(FRESH) {
            world.sleep(Duration::from_millis(20)).await;
        }
        let old = masters.master(lost).expect("runs");
        assert!(old.leads().is_empty() && !old.is_ready(), "it takes no part");
    })
    .expect("a task is always due");
    assert_eq!(sim.marks().get("master: invited"), Some(&4), "three at first, and the fourth");
}

#[test]
fn the_forming_master_with_a_lost_disk_forms_no_second_cluster() {
    lose_disk(1);
}

#[test]
fn a_master_with_a_lost_disk_is_replaced_by_one_with_another_number() {
    lose_disk(3);
}

/// A master that was added later has no other in its configuration: the leader reports to it that it
/// is on record. Until it is replaced it may be neither asked for masters nor invited again.
#[test]
fn a_master_that_was_added_later_and_lost_its_disk_takes_no_part() {
    let sim = Sim::new(5);
    let cluster = Cluster::new(&sim, 4, 3, 2);
    let (world, masters) = (sim.clone(), cluster.clone());
    let host = sim.add_host("client");
    let env = sim.boot(host);
    let client = Client::new(&env, &cluster, Duration::from_secs(20));
    sim.run(async move {
        masters.form().await;
        masters.start(4);
        world.sleep(Duration::from_millis(200)).await;
        let ask = async |client: &Client, change: MemberChange| {
            let (client, request) = (client.clone(), ClusterRequest::Members { change });
            let asked = async move { client.ask(ControlRequest::Cluster(request)).await };
            env.spawn(runtime::Class::Foreground, "client", asked).await.expect("runs")
        };
        ask(&client, MemberChange::Add(masters.info(4))).await.expect("added");
        masters.crash(4, CrashMode::Power);
        world.wipe(masters.host(4), Path::new("/data"));
        masters.start(4);
        while masters.master(4).is_none() {
            world.sleep(Duration::from_millis(1)).await;
        }
        let lost = masters.master(4).expect("runs");
        let info = lost.handle(ControlRequest::Cluster(ClusterRequest::Info)).await;
        assert!(
            info.is_err_and(|error| error.kind == base::Kind::Reroute && error.leader.is_none())
        );
        let again = ask(&client, MemberChange::Add(masters.info(4))).await;
        let again = again.expect_err("it may have voted");
        assert!(again.message.contains("is a member already"), "{again:?}");
        let end = world.elapsed() + Duration::from_secs(5);
        while lost.failure().is_none() {
            assert!(world.elapsed() < end, "it does not say why");
            world.sleep(Duration::from_millis(20)).await;
        }
        assert!(lost.failure().is_some_and(|why| why.contains("its disk was lost or replaced")));
        assert!(lost.leads().is_empty() && !lost.is_ready(), "it takes no part");
    })
    .expect("a task is always due");
}

/// All that were not there at first must have answered before a cluster is formed.
#[test]
fn a_cluster_is_formed_when_all_masters_are_there() {
    let sim = Sim::new(9);
    let cluster = Cluster::new(&sim, 3, 3, 1);
    let (world, masters) = (sim.clone(), cluster.clone());
    sim.run(async move {
        masters.start(1);
        masters.start(2);
        world.sleep(Duration::from_secs(3)).await;
        assert!(masters.master(1).is_some_and(|master| master.leads().is_empty()));
        masters.start(3);
        masters.ready(Duration::from_secs(10)).await;
    })
    .expect("a task is always due");
}

/// Founders have the address of a master that waits to be added as that of a founder.
#[test]
fn invitation_at_the_address_of_another_master_is_refused() {
    let sim = Sim::new(11);
    let cluster = Cluster::new(&sim, 4, 3, 1);
    cluster.stray(3, 4);
    let (world, masters) = (sim.clone(), cluster.clone());
    sim.run(async move {
        [1, 2, 4].into_iter().for_each(|id| masters.start(id));
        world.sleep(Duration::from_secs(3)).await;
        let other = masters.master(4).expect("runs");
        assert!(!other.is_ready(), "master 4 takes the part of master 3");
    })
    .expect("a task is always due");
    assert!(sim.marks().contains_key("master: an invitation for another"));
}

#[test]
fn damaged_identity_file_is_named_with_the_way_out() {
    let sim = Sim::new(12);
    let cluster = Cluster::new(&sim, 3, 3, 1);
    let (world, masters) = (sim.clone(), cluster.clone());
    sim.run(async move {
        masters.form().await;
        masters.crash(2, CrashMode::Power);
        let (host, file) = (masters.host(2), Path::new("/data/master/master"));
        // The last digit of its number.
        let at = "craton master 3\n".len() + format!("cluster {CLUSTER}\nid ").len();
        assert!(world.flip_bit(host, file, at as u64, 0));
        let why = masters.start_refused(2).await;
        assert!(why.contains("/data/master/master is damaged: remove this master"), "{why}");
    })
    .expect("a task is always due");
}

/// Master 4 cannot be reached when half of the groups have taken it in: its addition waits at the
/// next one. A removal asked for then may not overtake it.
#[test]
fn master_that_is_removed_during_its_addition_has_no_vote_at_the_end() {
    let sim = Sim::new(13);
    let cluster = Cluster::new(&sim, 4, 3, 2);
    let (world, masters) = (sim.clone(), cluster.clone());
    let env = sim.boot(sim.add_host("client"));
    let client = Client::new(&env, &cluster, Duration::from_secs(20));
    sim.run(async move {
        masters.form().await;
        masters.start(4);
        world.sleep(Duration::from_millis(200)).await;
        let (adder, change) = (client.clone(), MemberChange::Add(masters.info(4)));
        env.spawn(runtime::Class::Foreground, "addition", async move {
            let request = ControlRequest::Cluster(ClusterRequest::Members { change });
            let _ = adder.ask(request).await; // It may be refused: the master has left.
        });
        let votes = |partition: usize| {
            let voters = |id: u64| {
                let master = masters.master(id).expect("runs");
                master.namespaces()[partition].host().group().voters()
            };
            (1..=3).any(|id| voters(id).contains(&4))
        };
        while !votes(1) {
            world.sleep(Duration::from_micros(50)).await;
        }
        assert!(!votes(0), "the groups take it in one after the other");
        let others = [1, 2, 3].map(|id| masters.host(id));
        for other in others {
            world.set_blocked(other, masters.host(4), true);
            world.set_blocked(masters.host(4), other, true);
        }
        let remover = client.clone();
        let removed = env.spawn(runtime::Class::Foreground, "removal", async move {
            let change = MemberChange::Remove { id: 4 };
            let request = ControlRequest::Cluster(ClusterRequest::Members { change });
            while remover.ask(request.clone()).await.is_err() {}
        });
        world.sleep(Duration::from_secs(3)).await;
        world.heal_network();
        removed.await.expect("runs");
        world.sleep(Duration::from_secs(25)).await;
        assert!(!votes(0) && !votes(1), "master 4 was removed and has a vote");
        let master = masters.master(1).expect("runs");
        assert!(!master.cluster().host().group().voters().contains(&4));
        // A removal that was interrupted is completed by asking for it again.
        let again = async move { members(&client, MemberChange::Remove { id: 4 }).await };
        env.spawn(runtime::Class::Foreground, "again", again).await.expect("done again");
    })
    .expect("a task is always due");
}

/// Whether master `id` has a vote in a namespace partition, as one of the founders knows it.
fn has_vote(masters: &Cluster, id: u64) -> bool {
    (1..=3).filter_map(|founder| masters.master(founder)).any(|master| {
        let spaces = master.namespaces().iter();
        let cluster = master.cluster().host().group().voters().contains(&id);
        cluster || spaces.map(|it| it.host().group().voters()).any(|it| it.contains(&id))
    })
}

/// The leader of an addition is cut off from the others, which remove the master. It
/// comes back while it still tries.
#[test]
fn addition_under_a_former_leader_does_not_overtake_the_removal() {
    for seed in 20..24 {
        let sim = Sim::new(seed);
        let cluster = Cluster::new(&sim, 4, 3, 2);
        let (world, masters) = (sim.clone(), cluster.clone());
        let env = sim.boot(sim.add_host("client"));
        let client = Client::new(&env, &cluster, Duration::from_secs(20));
        sim.run(async move {
            masters.form().await;
            masters.start(4);
            world.sleep(Duration::from_millis(200)).await;
            let leads = |id: &u64| masters.master(*id).unwrap().cluster().host().leads();
            let former = (1..=3).find(leads).expect("it has a leader");
            let master = masters.master(former).expect("runs");
            let (adder, change) = (master.clone(), MemberChange::Add(masters.info(4)));
            env.spawn(runtime::Class::Foreground, "addition", async move {
                let request = ControlRequest::Cluster(ClusterRequest::Members { change });
                let _ = adder.handle(request).await; // It may be refused: the master has left.
            });
            let votes = || {
                let voters = master.namespaces()[1].host().group().voters();
                voters.contains(&4)
            };
            while !votes() {
                world.sleep(Duration::from_micros(50)).await;
            }
            // The next group cannot take it in: its addition waits there.
            for founder in [1, 2, 3].map(|id| masters.host(id)) {
                world.set_blocked(founder, masters.host(4), true);
                world.set_blocked(masters.host(4), founder, true);
            }
            world.sleep(Duration::from_secs(1)).await;
            for other in (1..=3).filter(|id| *id != former) {
                let [former, other, new] = [former, other, 4].map(|id| masters.host(id));
                for (from, to, blocked) in [(former, other, true), (other, new, false)] {
                    world.set_blocked(from, to, blocked);
                    world.set_blocked(to, from, blocked);
                }
            }
            let removed = env.spawn(runtime::Class::Foreground, "removal", async move {
                let change = MemberChange::Remove { id: 4 };
                let request = ControlRequest::Cluster(ClusterRequest::Members { change });
                while client.ask(request.clone()).await.is_err() {}
            });
            removed.await.expect("runs");
            // The former leader of the change confirms each second that it leads.
            world.sleep(Duration::from_secs(3)).await;
            assert!(world.elapsed() < Duration::from_secs(12), "its time for the addition is over");
            world.heal_network();
            // The former leader catches up.
            world.sleep(Duration::from_secs(1)).await;
            let end = world.elapsed() + Duration::from_secs(20);
            while world.elapsed() < end {
                assert!(!has_vote(&masters, 4), "seed {seed}: it has left, and has a vote");
                world.sleep(Duration::from_millis(1)).await;
            }
        })
        .expect("a task is always due");
        assert!(!sim.marks().contains_key("master: a vote is taken back"), "seed {seed}");
    }
}

/// A message of an addition arrives at a group's leader when the master has left.
#[test]
fn vote_that_a_late_addition_gives_to_a_master_that_has_left_is_taken_back() {
    let sim = Sim::new(14);
    let cluster = Cluster::new(&sim, 4, 3, 2);
    let (world, masters) = (sim.clone(), cluster.clone());
    let env = sim.boot(sim.add_host("client"));
    let client = Client::new(&env, &cluster, Duration::from_secs(20));
    sim.run(async move {
        masters.form().await;
        masters.start(4);
        world.sleep(Duration::from_millis(200)).await;
        let info = masters.info(4);
        let changed = env.spawn(runtime::Class::Foreground, "client", async move {
            members(&client, MemberChange::Add(info)).await;
            members(&client, MemberChange::Remove { id: 4 }).await;
        });
        changed.await.expect("runs");
        assert!(!has_vote(&masters, 4));
        for id in 1..=3 {
            let master = masters.master(id).expect("runs");
            for space in master.namespaces().iter().filter(|space| space.host().leads()) {
                space.host().add_voter(masters.info(4)).await.expect("added");
            }
        }
        assert!(has_vote(&masters, 4));
        let end = world.elapsed() + Duration::from_secs(5);
        while has_vote(&masters, 4) {
            assert!(world.elapsed() < end, "a master that has left keeps its vote");
            world.sleep(Duration::from_millis(20)).await;
        }
    })
    .expect("a task is always due");
}

/// The leader of a partition has begun to take a master in, and reaches no other one: the vote is in its log
/// alone, and the next leader takes it back. Asked again in between, it may not say that this is done.
#[test]
fn addition_that_is_not_committed_is_not_done() {
    for seed in 30..33 {
        let sim = Sim::new(seed);
        let cluster = Cluster::new(&sim, 4, 3, 2);
        let (world, masters) = (sim.clone(), cluster.clone());
        sim.run(async move {
            masters.form().await;
            masters.start(4);
            world.sleep(Duration::from_millis(200)).await;
            let host = |id: u64| masters.master(id).expect("runs").namespaces()[1].host().clone();
            let former = (1..=3).find(|&id| host(id).leads()).expect("it has a leader");
            let others = (1..=3).filter(|&id| id != former);
            let group = host(former).group().clone();
            group.add_learner(4).await.expect("a learner");
            let cut = |blocked| {
                for other in others.clone() {
                    world.set_blocked(masters.host(former), masters.host(other), blocked);
                    world.set_blocked(masters.host(other), masters.host(former), blocked);
                }
            };
            cut(true);
            let env = world.env(masters.host(former)).expect("up");
            env.spawn(runtime::Class::Control, "addition", async move {
                let _ = group.change_membership((1..=4).collect()).await; // No quorum takes it.
            });
            let has_vote = |id: u64| host(id).group().voters().contains(&4);
            while !has_vote(former) {
                world.sleep(Duration::from_micros(50)).await;
            }
            let again = host(former).add_voter(masters.info(4)).await;
            let again = again.expect_err("it may be taken back");
            assert_eq!(again.kind, base::Kind::Retry, "seed {seed}: {again:?}");
            let end = world.elapsed() + Duration::from_secs(20);
            let pause = async || {
                assert!(world.elapsed() < end, "seed {seed}: too late");
                world.sleep(Duration::from_millis(20)).await;
            };
            while !others.clone().any(|id| host(id).leads()) {
                pause().await;
            }
            cut(false);
            while has_vote(former) {
                pause().await;
            }
            loop {
                let leader = (1..=3).find(|&id| host(id).leads());
                let added = match leader {
                    Some(leader) => host(leader).add_voter(masters.info(4)).await.is_ok(),
                    None => false,
                };
                if added {
                    break;
                }
                pause().await;
            }
            while !(1..=3).all(has_vote) {
                pause().await;
            }
        })
        .expect("a task is always due");
    }
}

/// What a task may do before it waits for its turn, as one does on a busy executor.
#[derive(Default)]
struct Turns {
    left: Cell<usize>,
    waits: RefCell<Option<Waker>>,
    ended: Cell<bool>,
}

impl Turns {
    fn take(&self, context: &Context<'_>) -> bool {
        let left = self.left.get().checked_sub(1);
        match left {
            Some(left) => self.left.set(left),
            None => drop(self.waits.replace(Some(context.waker().clone()))),
        }
        left.is_some()
    }

    fn give_all(&self) {
        self.left.set(usize::MAX);
        if let Some(waker) = self.waits.take() {
            waker.wake();
        }
    }
}

/// A master is added, and its task waits for a turn at each of its steps; another one is removed during that.
#[test]
fn addition_and_removal_at_the_same_time_do_not_undo_each_other() {
    let sim = Sim::new(40);
    let cluster = Cluster::new(&sim, 4, 3, 2);
    let (world, masters) = (sim.clone(), cluster.clone());
    sim.run(async move {
        masters.form().await;
        masters.start(4);
        world.sleep(Duration::from_millis(200)).await;
        let host = |id: u64| masters.master(id).expect("runs").namespaces()[1].host().clone();
        let leader = (1..=3).find(|&id| host(id).leads()).expect("it has a leader");
        let other = (1..=3).find(|&id| id != leader).expect("three founders");
        let (env, host) = (world.env(masters.host(leader)).expect("up"), host(leader));
        let end = world.elapsed() + Duration::from_secs(60);
        let pause = async || {
            assert!(world.elapsed() < end, "too late");
            world.sleep(Duration::from_micros(500)).await;
        };
        for count in 1.. {
            let turns = Rc::new(Turns::default());
            turns.left.set(count);
            let (adder, given, info) = (host.clone(), turns.clone(), masters.info(4));
            let addition = env.spawn(runtime::Class::Control, "addition", async move {
                let mut addition = adder.add_voter(info);
                let added = poll_fn(|context| match given.take(context) {
                    true => addition.as_mut().poll(context),
                    false => Poll::Pending,
                });
                let added = added.await;
                given.ended.set(true);
                added
            });
            while !turns.ended.get() && turns.waits.borrow().is_none() {
                pause().await;
            }
            let is_whole = turns.ended.get();
            while host.remove_voter(other).await.is_err() {
                pause().await;
            }
            turns.give_all();
            let added = addition.await.expect("no crash");
            let voters = host.group().voters();
            assert!(!voters.contains(&other), "after {count} turns: the removal is undone");
            assert!(added.is_err() || voters.contains(&4), "after {count} turns: {added:?}");
            // As it was before.
            while host.remove_voter(4).await.is_err() {
                pause().await;
            }
            while host.add_voter(masters.info(other)).await.is_err() {
                pause().await;
            }
            if is_whole {
                break;
            }
        }
    })
    .expect("a task is always due");
}

/// Messages of two additions arrive at a group's leader when both masters have left: neither vote waits for the
/// other one's turn.
#[test]
fn votes_of_two_masters_that_have_left_are_taken_back_together() {
    let sim = Sim::new(41);
    let cluster = Cluster::new(&sim, 5, 3, 2);
    let (world, masters) = (sim.clone(), cluster.clone());
    let env = sim.boot(sim.add_host("client"));
    let client = Client::new(&env, &cluster, Duration::from_secs(20));
    sim.run(async move {
        masters.form().await;
        [4, 5].into_iter().for_each(|id| masters.start(id));
        world.sleep(Duration::from_millis(200)).await;
        let infos = [4, 5].map(|id| masters.info(id));
        let changed = env.spawn(runtime::Class::Foreground, "client", async move {
            for info in infos.clone() {
                members(&client, MemberChange::Add(info)).await;
            }
            for info in infos {
                members(&client, MemberChange::Remove { id: info.id }).await;
            }
        });
        changed.await.expect("runs");
        let host = |id: u64| masters.master(id).expect("runs").namespaces()[0].host().clone();
        let leader = (1..=3).find(|&id| host(id).leads()).expect("it has a leader");
        let host = host(leader);
        let has_vote = |id: u64| host.group().voters().contains(&id);
        let end = world.elapsed() + Duration::from_secs(10);
        while ![4, 5].into_iter().all(has_vote) {
            assert!(world.elapsed() < end, "they get no votes");
            for id in [4, 5] {
                // One may be taken back during that.
                let _ = host.add_voter(masters.info(id)).await;
            }
            world.sleep(Duration::from_millis(1)).await;
        }
        let mut gone = [None; 2];
        while gone.contains(&None) {
            assert!(world.elapsed() < end, "a master that has left keeps its vote");
            world.sleep(Duration::from_millis(5)).await;
            for (gone, id) in gone.iter_mut().zip([4, 5]) {
                if !has_vote(id) {
                    gone.get_or_insert(world.elapsed());
                }
            }
        }
        let [Some(first), Some(second)] = gone else { unreachable!("both are known") };
        let apart = first.abs_diff(second);
        assert!(apart < Duration::from_millis(300), "{apart:?} apart");
    })
    .expect("a task is always due");
}
