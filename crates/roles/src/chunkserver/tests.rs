//! Disks that a chunkserver does not serve, in the simulator.

use std::path::Path;

use base::{ClusterId, TraceId};
use chunkstore::flash;
use runtime::OpenOptions;
use runtime::sim::Sim;
use transport::{Priority, Request, Service, Token};
use wire::control::{ChunkserverRequest, ControlRequest};

use super::*;
use crate::stores;

/// Stores in directories of a simulated machine.
#[derive(Clone)]
struct Directories;

impl Stores for Directories {
    type Store = FlashStore;

    async fn open(
        &self,
        env: &Env,
        store: &config::Store,
    ) -> Result<(FlashStore, FlashStore), Unopened> {
        let engine = stores::open_in(env, &store.path, flash::Config::default()).await?;
        Ok((engine.clone(), engine))
    }
}

/// An operator orders a server to make a new store at a path.
async fn replace(operator: &Env, key: ClusterKey, server: SocketAddr, path: &str) {
    let identity =
        Identity { cluster: ClusterId::default(), key: Some(key), name: "operator".to_owned() };
    let endpoint = Endpoint::new(operator, identity, Limits::default());
    let order = ChunkserverRequest::ReplaceDisk { path: path.to_owned() };
    let request = Request {
        service: Service::CONTROL,
        op: 0,
        priority: Priority::Foreground,
        flow: 0,
        trace: TraceId::new(1),
        token: Token::NONE,
        body: ControlRequest::Chunkserver(order).encode(),
        payload: None,
    };
    let asked = operator.spawn(Class::Foreground, "replace", async move {
        endpoint.call(server, request, Duration::from_secs(30)).await
    });
    let answer = asked.await.expect("the machine is up").expect("an answer");
    assert_eq!(answer.status, 0, "{}", String::from_utf8_lossy(&answer.body));
}

/// It was counted at the start, and again as its new store was made.
#[test]
fn damaged_disk_that_is_replaced_is_left_out_no_longer() {
    let sim = Sim::new(1);
    let (server, operator) = (sim.add_host("cs1"), sim.add_host("operator"));
    let world = sim.clone();
    sim.run(async {
        let (env, operator) = (world.boot(server), world.boot(operator));
        let (good, damaged) = (Path::new("/d0"), Path::new("/d1"));
        for dir in [good, damaged] {
            env.create_dir_all(dir).await.expect("room");
        }
        let made = format::store(&env, good, &flash::FormatOptions::tiny()).await;
        made.expect("a store");
        // What is left of a store whose beginning is gone.
        let rest = damaged.join(stores::FILE);
        env.open_file(&rest, OpenOptions::CREATE).await.expect("room");
        let (listen, master) = (world.addr(server, 7101), world.addr(server, 7001));
        let config = config::parse(&format!(
            "id = 'cs1'\nlisten = '{listen}'\nmasters = ['{master}']\nkey_file = '/key'\n\
             [[stores]]\npath = '/d0'\n\
             [[stores]]\npath = '/d1'\ncapacity_gib = 1\nunit_kib = 16\n"
        ));
        let config: config::Chunkserver = config.expect("it is complete");
        let key = ClusterKey::new([7; 32]);
        let seams = Seams { key: Some(key.clone()), ..Seams::none() };
        let how = Start::default();
        let role = start_with(&env, &config, how, &seams, Directories, |_| {}, &[]).await;
        let role = role.expect("one of its disks is good");
        assert_eq!((role.served().len(), role.left_out()), (1, 1));
        env.remove_file(&rest).await.expect("it is there");
        replace(&operator, key, listen, "/d1").await;
        for _ in 0..100 {
            if role.served().len() == 2 {
                break;
            }
            world.sleep(Duration::from_millis(100)).await;
        }
        assert_eq!((role.served().len(), role.left_out()), (2, 0));
    })
    .expect("nothing stalls");
    sim.close();
}
