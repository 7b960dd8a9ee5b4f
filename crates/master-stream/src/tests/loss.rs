//! Seals by an operator's word, where recovery waits for replicas that are gone
//! (`protocols-tail.md` 8.8 e).

use std::rc::Rc;

use base::{ClientId, FileId, Kind};
use futures_util::future::join;
use runtime::Duration;
use runtime::sim::Sim;
use wire::control::{ControlError, OpId, Policy, StreamChange, StreamReply, StreamRequest};

use super::service::config;
use super::writer::{Client, Cluster, Writer};
use crate::StreamConfig;
use crate::planted::{Planted, plant};

const FILE: FileId = FileId::new(1);
/// Of a silent server until it counts as gone.
const GRACE: Duration = Duration::from_secs(4);

/// A cluster whose servers are as many as a chunk has replicas.
fn cluster(sim: &Sim, policy: Policy) -> Rc<Cluster> {
    let config = || StreamConfig { dead_grace: GRACE, ..config(sim) };
    let cluster = Cluster::with_config(sim, policy, u32::from(policy.copies), config);
    cluster.model.in_place.set(true);
    cluster.services.iter().for_each(|service| service.start_background());
    cluster
}

async fn seal(cluster: &Rc<Cluster>, accept_loss: bool) -> Result<u64, ControlError> {
    let change = StreamChange::Seal { file: FILE, follows: None, accept_loss };
    match Client::new(cluster).change(change).await? {
        StreamReply::Done { len } => Ok(len),
        other => panic!("{other:?}"),
    }
}

/// One question, not repeated.
async fn seal_once(cluster: &Rc<Cluster>, accept_loss: bool) -> Result<u64, ControlError> {
    let op = OpId { client: ClientId::new(1000), seq: 1, acked_below: 1 };
    let change = StreamChange::Seal { file: FILE, follows: None, accept_loss };
    match Client::new(cluster).ask(StreamRequest::Change { op, change }).await? {
        StreamReply::Done { len } => Ok(len),
        other => panic!("{other:?}"),
    }
}

/// Whether an operator's word has sealed the file.
async fn given_up(cluster: &Rc<Cluster>) -> bool {
    let view = cluster.locate(FILE, 0).await.expect("it is there");
    assert!(!view.open, "{view:?}");
    view.loss_accepted
}

#[test]
fn what_is_left_is_sealed_once_the_others_are_gone() {
    for seed in 0..8 {
        let sim = Sim::new(seed);
        let cluster = cluster(&sim, Policy::plain(3, 2));
        Cluster::run(&sim, &cluster, async |cluster| {
            let mut writer = Writer::open(Client::new(&cluster), FILE).await.unwrap();
            writer.append(&[1; 30]).await.unwrap();
            writer.advance(Vec::new()).await.unwrap();
            let servers: Vec<_> = writer.current.replicas.iter().map(|it| it.server).collect();
            writer.append(&[2; 20]).await.unwrap();
            cluster.sim.sleep(Duration::from_millis(20)).await;
            cluster.model.crash(servers[1]);
            cluster.model.crash(servers[2]);
            // One of three has everything, and cannot know that.
            assert_eq!(seal_once(&cluster, false).await.unwrap_err().kind, Kind::Retry);
            let early = seal_once(&cluster, true).await.unwrap_err();
            assert!(early.message.contains("gone for good"), "{early}");
            cluster.sim.sleep(GRACE * 2).await;
            assert_eq!(seal(&cluster, true).await, Ok(50));
            assert!(given_up(&cluster).await);
            // It is a file like any other from then on, also when the others come back after all.
            cluster.model.restart(servers[1]);
            cluster.model.restart(servers[2]);
            cluster.sim.sleep(GRACE * 5).await;
            let mut writer = Writer::open(Client::new(&cluster), FILE).await.unwrap();
            writer.append(&[3; 10]).await.unwrap();
            assert_eq!(writer.close(false).await, Ok(60));
            assert!(given_up(&cluster).await, "it is on record");
        });
    }
}

/// The replica that is left never got what was acknowledged by the others.
#[test]
fn file_ends_where_the_only_replica_ends() {
    let sim = Sim::new(3);
    let cluster = cluster(&sim, Policy::plain(3, 2));
    Cluster::run(&sim, &cluster, async |cluster| {
        let mut writer = Writer::open(Client::new(&cluster), FILE).await.unwrap();
        let servers: Vec<_> = writer.current.replicas.iter().map(|it| it.server).collect();
        writer.append(&[1; 30]).await.unwrap();
        cluster.sim.sleep(Duration::from_millis(20)).await;
        cluster.model.cut.borrow_mut().insert(servers[0]);
        writer.append(&[2; 20]).await.unwrap();
        cluster.model.crash(servers[1]);
        cluster.model.crash(servers[2]);
        cluster.model.cut.borrow_mut().clear();
        cluster.sim.sleep(GRACE * 3).await;
        assert_eq!(seal(&cluster, true).await, Ok(30));
        assert!(given_up(&cluster).await);
    });
}

/// Fewer fragments than a code has data give nothing back: the chunk leaves the file.
#[test]
fn coded_chunk_without_enough_fragments_is_given_up() {
    for lost in [1, 2] {
        let sim = Sim::new(4);
        let cluster = cluster(&sim, Policy::ec(2, 1));
        Cluster::run(&sim, &cluster, async move |cluster| {
            let mut writer = Writer::open(Client::new(&cluster), FILE).await.unwrap();
            let servers: Vec<_> = writer.current.replicas.iter().map(|it| it.server).collect();
            writer.append(&[1; 30]).await.unwrap();
            writer.advance(Vec::new()).await.unwrap();
            writer.append(&[2; 20]).await.unwrap();
            cluster.sim.sleep(Duration::from_millis(20)).await;
            servers[..lost].iter().for_each(|&server| cluster.model.crash(server));
            cluster.sim.sleep(GRACE * 3).await;
            let len = seal(&cluster, true).await.unwrap();
            assert_eq!(
                (len, given_up(&cluster).await),
                if lost == 1 { (50, false) } else { (30, true) }
            );
        });
    }
}

/// Where recovery needs no word, none is taken.
#[test]
fn nothing_is_given_up_where_enough_vote() {
    let sim = Sim::new(5);
    let cluster = cluster(&sim, Policy::plain(3, 2));
    Cluster::run(&sim, &cluster, async |cluster| {
        let mut writer = Writer::open(Client::new(&cluster), FILE).await.unwrap();
        writer.append(&[1; 30]).await.unwrap();
        cluster.model.crash(writer.current.replicas[0].server);
        cluster.sim.sleep(GRACE * 3).await;
        assert_eq!(seal(&cluster, true).await, Ok(30));
        assert!(!given_up(&cluster).await);
    });
}

/// A recovery under way, which waits for the votes that are given up, holds up nothing.
#[test]
fn recovery_under_way_is_not_waited_for() {
    let sim = Sim::new(7);
    let cluster = cluster(&sim, Policy::plain(3, 2));
    Cluster::run(&sim, &cluster, async |cluster| {
        let mut writer = Writer::open(Client::new(&cluster), FILE).await.unwrap();
        writer.append(&[1; 30]).await.unwrap();
        cluster.sim.sleep(Duration::from_millis(20)).await;
        writer.current.replicas[1..].iter().for_each(|it| cluster.model.crash(it.server));
        cluster.sim.sleep(GRACE * 2).await;
        let word = async {
            cluster.sim.sleep(Duration::from_millis(100)).await;
            seal_once(&cluster, true).await
        };
        let (_, sealed) = join(seal_once(&cluster, false), word).await;
        assert_eq!(sealed, Ok(30));
        assert!(given_up(&cluster).await);
    });
}

/// The bug that the refusal of the first test is there to find.
#[test]
fn silent_server_is_not_given_up() {
    for bug in [None, Some(Planted::SilentIsGone)] {
        let sim = Sim::new(6);
        let cluster = cluster(&sim, Policy::plain(3, 2));
        plant(bug);
        Cluster::run(&sim, &cluster, async move |cluster| {
            let mut writer = Writer::open(Client::new(&cluster), FILE).await.unwrap();
            writer.append(&[1; 30]).await.unwrap();
            for place in &writer.current.replicas[..2] {
                cluster.model.crash(place.server);
            }
            assert_eq!(seal_once(&cluster, true).await.is_ok(), bug.is_some());
        });
        plant(None);
    }
}

/// Chunks are counted by the losses that they still survive.
#[test]
fn status_counts_chunks_by_what_they_survive() {
    for (policy, by_losses) in [
        (Policy::rep(3), [[0, 0, 1, 0], [0, 1, 0, 0], [1, 0, 0, 0], [0; 4]]),
        (Policy::ec(2, 2), [[0, 0, 1, 0], [0, 1, 0, 0], [1, 0, 0, 0], [0; 4]]),
        (Policy::rep(5), [[0, 0, 0, 1], [0, 0, 0, 1], [0, 0, 1, 0], [0, 1, 0, 0]]),
    ] {
        let sim = Sim::new(8);
        let cluster = cluster(&sim, policy);
        Cluster::run(&sim, &cluster, async move |cluster| {
            let mut writer = Writer::open(Client::new(&cluster), FILE).await.unwrap();
            let servers: Vec<_> = writer.current.replicas.iter().map(|it| it.server).collect();
            writer.append(&[1; 30]).await.unwrap();
            assert_eq!(writer.close(false).await, Ok(30));
            for (at, expected) in by_losses.into_iter().enumerate() {
                if at > 0 {
                    cluster.model.crash(servers[at - 1]);
                }
                cluster.sim.sleep(Duration::from_secs(3)).await;
                let status = cluster.services[0].status();
                assert_eq!((status.survive, status.chunks), (expected, 1), "{policy:?} {at}");
            }
        });
    }
}
