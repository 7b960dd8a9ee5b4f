//! Openings and seals that come late: they name the epoch that they follow.

use std::pin::pin;

use base::{ClientId, Epoch, FileId, Kind};
use futures_util::future::{Either, join_all, select};
use runtime::Duration;
use runtime::sim::Sim;
use wire::control::{OpId, Policy, StreamChange, StreamReply};
use wire::token::Token;

use super::writer::{Client, Cluster, Writer};
use crate::*;

const FILE: FileId = FileId::new(1);

fn epoch(epoch: u64) -> Result<StreamReply, wire::control::ControlError> {
    Ok(StreamReply::Epoch { epoch: Epoch::new(epoch) })
}

#[test]
fn opening_that_follows_an_older_epoch_fences_no_writer() {
    let sim = Sim::new(71);
    let cluster = Cluster::new(&sim, Policy::strict(3), 6);
    Cluster::run(&sim, &cluster, async |cluster| {
        let (one, other) = (Client::new(&cluster), Client::new(&cluster));
        let mut first = Writer::open(one, FILE).await.unwrap();
        first.append(&[1; 30]).await.unwrap();
        assert_eq!(other.ask(other.opening(1, FILE, 0)).await, epoch(1));
        first.append(&[2; 30]).await.unwrap();
        // A client that lives names it.
        let StreamReply::Writer(grant) = other.ask(other.opening(2, FILE, 1)).await.unwrap() else {
            panic!("no grant")
        };
        assert_eq!((grant.epoch, grant.len), (Epoch::new(2), 60));
        assert_eq!(first.append(&[3; 10]).await.unwrap_err().kind, Kind::Fenced);
        let third = other.ask(other.opening(3, FILE, 7)).await;
        assert_eq!(third, epoch(2), "nor one that the file never had");
    });
}

#[test]
fn seal_that_follows_an_older_epoch_ends_no_writer() {
    let sim = Sim::new(72);
    let cluster = Cluster::new(&sim, Policy::strict(3), 6);
    Cluster::run(&sim, &cluster, async |cluster| {
        let seal = async |follows| {
            let follows = Some(Epoch::new(follows));
            Client::new(&cluster)
                .change(StreamChange::Seal { file: FILE, follows, accept_loss: false })
                .await
        };
        assert_eq!(seal(1).await.unwrap_err().kind, Kind::NotFound);
        let first = Writer::open(Client::new(&cluster), FILE).await.unwrap();
        drop(first);
        let mut second = Writer::open(Client::new(&cluster), FILE).await.unwrap();
        second.append(&[1; 30]).await.unwrap();
        assert_eq!(seal(1).await, epoch(2));
        second.append(&[1; 30]).await.unwrap();
        assert_eq!(seal(2).await, Ok(StreamReply::Done { len: 60 }));
        assert_eq!(seal(1).await, Ok(StreamReply::Done { len: 60 }), "nothing is open");
    });
}

/// The same answer from each leader, also when another client has the file by then.
#[test]
fn repeat_of_an_answered_opening_has_its_answer() {
    let sim = Sim::new(73);
    let cluster = Cluster::new(&sim, Policy::strict(3), 6);
    Cluster::run(&sim, &cluster, async |cluster| {
        let (one, other) = (Client::new(&cluster), Client::new(&cluster));
        // Each master issues tokens of its own.
        let ask = async || match one.ask(one.opening(1, FILE, 0)).await.unwrap() {
            StreamReply::Writer(mut grant) => {
                let places = grant.current.iter_mut().chain(&mut grant.spares);
                places.for_each(|place| place.token = Token::NONE.0);
                grant
            }
            other => panic!("{other:?}"),
        };
        let granted = ask().await;
        cluster.world.elect(2);
        assert_eq!(ask().await, granted);
        other.ask(other.opening(1, FILE, 1)).await.unwrap();
        let repeated = one.ask(one.opening(1, FILE, 0)).await;
        assert_eq!(repeated.unwrap_err().kind, Kind::Fenced, "it was answered before");
    });
}

/// The first leader has given the opening its epoch, and changed before it could answer.
#[test]
fn opening_that_has_taken_its_epoch_goes_on_at_the_next_leader() {
    let sim = Sim::new(74);
    let cluster = Cluster::new(&sim, Policy::strict(3), 3);
    Cluster::run(&sim, &cluster, async |cluster| {
        let mut first = Writer::open(Client::new(&cluster), FILE).await.unwrap();
        first.append(&[1; 30]).await.unwrap();
        let (one, other) = (Client::new(&cluster), Client::new(&cluster));
        let taken = pin!(async {
            let state = &cluster.world.state;
            while state.borrow().stream(FILE).unwrap().epoch != Epoch::new(2) {
                cluster.sim.sleep(Duration::from_micros(1)).await;
            }
        });
        let mut asked = Box::pin(one.ask(one.opening(1, FILE, 1)));
        let is_taken = matches!(select(&mut asked, taken).await, Either::Right(_));
        assert!(is_taken, "the file is recovered first");
        drop(asked);
        cluster.world.elect(2);
        assert_eq!(other.ask(other.opening(1, FILE, 1)).await, epoch(2), "another has not");
        let StreamReply::Writer(grant) = one.ask(one.opening(1, FILE, 1)).await.unwrap() else {
            panic!("no grant")
        };
        assert_eq!((grant.epoch, grant.len), (Epoch::new(2), 30));
    });
}

#[test]
fn openings_at_the_same_time_all_end() {
    for seed in 0..8 {
        let sim = Sim::new(seed);
        let cluster = Cluster::new(&sim, Policy::strict(3), 6);
        Cluster::run(&sim, &cluster, async |cluster| {
            let clients = (0..6).map(|_| Client::new(&cluster));
            let opened = join_all(clients.map(|client| Writer::open(client, FILE))).await;
            let mut last = None;
            for writer in opened {
                match writer {
                    Ok(writer) => last = last.max(Some(writer.grant.epoch)),
                    // Another opening came during its recovery.
                    Err(error) => assert_eq!(error.kind, Kind::Fenced, "{error}"),
                }
            }
            let stream = cluster.world.state.borrow().stream(FILE).unwrap().clone();
            assert_eq!((Some(stream.epoch), stream.writing), (last, true));
        });
    }
}

/// Commands that older masters do not know.
#[test]
fn commands_that_follow_have_the_bytes_of_their_version() {
    let op = OpId { client: ClientId::new(1), seq: 2, acked_below: 1 };
    let (file, follows, policy) = (FileId::new(3), Epoch::new(4), Policy::strict(3));
    let open = Action::OpenAfter { op, file, policy, fresh: Vec::new(), follows };
    for (action, golden) in
        [(open, OPEN_AFTER), (Action::SealAfter { op, file, follows }, SEAL_AFTER)]
    {
        let command = Command { clock_ms: 5, action };
        let hex: String = command.encode().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, golden);
        assert_eq!(Command::decode(&command.encode()), Ok(command));
    }
}

const OPEN_AFTER: &str = "01050000000000000012010000000000000002000000000000000100000000000000\
    03000000000000000303000000000400000000000000";
const SEAL_AFTER: &str = "01050000000000000013010000000000000002000000000000000100000000000000\
    03000000000000000400000000000000";
