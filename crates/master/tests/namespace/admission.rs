//! Masters whose directory was lost: they do not vote again by themselves, and no second cluster
//! is formed.

use std::path::Path;

use base::DirId;
use runtime::Duration;
use runtime::sim::{CrashMode, Sim};
use wire::control::{
    Attributes, ClusterReply, ClusterRequest, ControlReply, ControlRequest, MemberChange,
    NamespaceChange, Place, Policy,
};

use super::cluster::{Client, Cluster};

fn create(name: &str) -> NamespaceChange {
    let place = Place { parent: DirId::ROOT, name: name.to_owned() };
    let attributes = Attributes::default();
    NamespaceChange::Create { place, policy: Policy::rep(3), attributes, exclusive: true }
}

async fn members(client: &Client, change: MemberChange) {
    let request = ControlRequest::Cluster(ClusterRequest::Members { change });
    client.ask(request).await.expect("the members change");
}

/// A founder comes back with an empty directory: it says so, takes no part, and is removed and
/// added as any other.
fn lose_disk(lost: u64) {
    let sim = Sim::new(lost);
    let cluster = Cluster::new(&sim, 3, 3, 2);
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
            members(&client, MemberChange::Add(other.info(lost))).await;
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
        while !whole(lost) {
            world.sleep(Duration::from_millis(20)).await;
        }
    })
    .expect("a task is always due");
    assert_eq!(sim.marks().get("master: invited"), Some(&4), "three at first, and the lost one");
}

#[test]
fn the_forming_master_with_a_lost_disk_forms_no_second_cluster() {
    lose_disk(1);
}

#[test]
fn a_master_with_a_lost_disk_rejoins_when_it_is_added() {
    lose_disk(3);
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
