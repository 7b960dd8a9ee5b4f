//! Masters under faults, by seed. `CRATON_SEED=n` runs one seed, `CRATON_SEEDS=a..b` a range.

use base::DirId;
use runtime::sim::{CrashMode, Sim};
use runtime::{Class, Duration};
use wire::control::{Attributes, NamespaceChange, NamespaceReply, Node, Place, Policy};

use super::cluster::{Client, Cluster};

const ATTRIBUTES: Attributes = Attributes { mode: 0o644, mtime: 5 };

fn root(name: &str) -> Place {
    Place { parent: DirId::ROOT, name: name.to_owned() }
}

fn create(place: Place) -> NamespaceChange {
    let (policy, attributes) = (Policy::rep(3), ATTRIBUTES);
    NamespaceChange::Create { place, policy, attributes, exclusive: true }
}

#[test]
fn one_master_serves_and_comes_back() {
    let sim = Sim::new(1);
    let cluster = Cluster::new(&sim, 1, 1, 1);
    let host = sim.add_host("client");
    let env = sim.boot(host);
    let client = Client::new(&env, &cluster, Duration::from_secs(10));
    let work = {
        let (cluster, sim) = (cluster.clone(), sim.clone());
        async move {
            let made = client
                .change(NamespaceChange::Mkdir { place: root("d"), attributes: ATTRIBUTES })
                .await
                .unwrap();
            let NamespaceReply::Node { node: Node::Dir { dir, .. }, .. } = made else { panic!() };
            let place = Place { parent: dir, name: "f".to_owned() };
            client.change(create(place.clone())).await.unwrap();
            let (node, grant) = client.lookup(&place).await.unwrap().unwrap();
            assert_ne!(grant, [0; 16]);
            cluster.crash(1, CrashMode::Power);
            sim.sleep(Duration::from_millis(100)).await;
            cluster.start(1);
            assert_eq!(client.lookup(&place).await.unwrap().unwrap().0, node);
            client.change(NamespaceChange::Unlink { place: place.clone() }).await.unwrap();
            assert_eq!(client.lookup(&place).await.unwrap(), None);
        }
    };
    sim.run(async {
        cluster.form().await;
        env.spawn(Class::Foreground, "client", work).await.unwrap();
    })
    .unwrap();
}
