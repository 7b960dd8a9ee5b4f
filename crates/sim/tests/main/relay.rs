//! What a master keeps for a leader that may come.

use std::time::Duration;

use base::{ClientId, Epoch, FileId, Kind};
use runtime::Class;
use runtime::sim::{CrashMode, Sim};
use sim::cluster::{Cluster, Shape};
use sim::tuning::Tuning;
use transport::{Endpoint, Priority, Request, Service, Token};
use wire::control::{
    ControlError, ControlRequest, Group, OP_RELAY, OpId, Policy, StreamChange, StreamRequest,
};
use wire::data::Purpose;

const SECOND: Duration = Duration::from_secs(1);

fn relay(change: StreamChange) -> Request {
    let op = OpId { client: ClientId::new(1), seq: 1, acked_below: 1 };
    let request = ControlRequest::Stream(StreamRequest::Change { op, change });
    Request {
        service: Service::CONTROL,
        op: OP_RELAY,
        priority: Priority::Foreground,
        flow: 0,
        trace: Default::default(),
        token: Token::NONE,
        body: request.encode(),
        payload: None,
    }
}

/// An opening that waits for a leader fences a writer that opened the file after its client had gone.
#[test]
fn opening_is_not_kept_for_a_leader_that_may_come() {
    let sim = Sim::new(91);
    let run = async {
        let cluster = Cluster::start(&sim, Shape::default(), Tuning::default());
        cluster.settle(30 * SECOND).await.unwrap();
        // One that led would find out first that it leads no more.
        let leads = |index: usize| {
            cluster.leads(index).iter().any(|group| matches!(group, Group::Stream(_)))
        };
        let kept = (0..3).find(|index| !leads(*index)).expect("one leads the group of streams");
        let others = (0..3).filter(|index| *index != kept);
        others.for_each(|index| cluster.crash_master(index, CrashMode::Process));
        sim.sleep(2 * SECOND).await;
        let (_, client) = cluster.client(None).await.expect("one master is left");
        let (env, file) = (client.env().clone(), FileId::new(1));
        let (endpoint, to) = (cluster.endpoint(&env), cluster.master_addrs()[kept]);
        let open = StreamChange::Open {
            file,
            policy: Policy::plain(3, 2),
            grant: [0; 16],
            spares: 0,
            purpose: Purpose::Data,
            follows: Some(Epoch::NONE),
            in_copies: false,
            avoid: Vec::new(),
        };
        let asked = env.clone().spawn(Class::Foreground, "ask", async move {
            let ask = async |endpoint: &Endpoint, change: StreamChange| {
                let begun = env.now();
                let answer = endpoint.call(to, relay(change), 4 * SECOND).await.expect("an answer");
                (ControlError::decode(&answer.body).expect("none leads").kind, env.now() - begun)
            };
            let opened = ask(&endpoint, open).await;
            let sealed = ask(&endpoint, StreamChange::seal(file)).await;
            let deleted = ask(&endpoint, StreamChange::Delete { file }).await;
            (opened, sealed, deleted)
        });
        let (opened, sealed, deleted) = asked.await.expect("it runs");
        // The master that is left takes the former leader for the leader until another one is elected: the
        // first of them waits for its next attempt to connect to it.
        for (kind, took) in [opened, sealed] {
            let again = matches!(kind, Kind::Retry | Kind::Reroute);
            assert!(again && took < 2 * SECOND, "{kind:?} after {took:?}");
        }
        assert!(deleted.1 > 3 * SECOND, "others wait: {deleted:?}");
    };
    sim.run(run).expect("a task is always due");
}
