//! A writer without appends: it sends its replicas the committed length, and leaves a chunk whose
//! replica does not answer.

use std::rc::Rc;

use base::{ChunkId, DiskId, Epoch, ServerId};
use client::writer::{
    Action, ChaseBudget, Event, OpError, SendError, StreamOp, Writer, WriterConfig,
};
use runtime::{Duration, Instant};
use wire::control::{ChunkPlace, ReplicaPlace, WriterGrant};

const EPOCH: Epoch = Epoch::new(7);

pub fn chunk(id: u64, servers: [u32; 3]) -> ChunkPlace {
    let replica = |server: u32| ReplicaPlace {
        server: ServerId::new(server),
        disk: DiskId::new(u128::from(server)),
        addr: ([10, 0, 0, server as u8], 1).into(),
        fragment: 0,
    };
    ChunkPlace {
        chunk: ChunkId::new(id),
        epoch: EPOCH,
        base: 0,
        sealed: None,
        replicas: servers.map(replica).to_vec(),
        acks: 3,
        token: [1; 16],
        copies: 0,
        data: 1,
        compression: None,
    }
}

pub fn chase() -> Rc<ChaseBudget> {
    Rc::new(ChaseBudget::new(1 << 30))
}

/// Appends once, then idles for a minute; replica `mute` leaves commit messages without an
/// answer. Returns the commit messages sent, and when the writer left the chunk at which length.
fn idle(mute: Option<u8>) -> (u32, Option<(Duration, u32)>) {
    let start = Instant::from_nanos(1_000_000_000);
    let (current, spare) = (chunk(1, [1, 2, 3]), chunk(2, [4, 5, 6]));
    let grant = WriterGrant {
        epoch: EPOCH,
        len: 0,
        current: Some(current),
        spares: vec![spare],
        rights_ms: None,
    };
    let mut writer = Writer::new(WriterConfig::default(), chase(), grant, start).unwrap();
    let (mut now, mut sent, mut left) = (start, 0, None);
    let mut events = vec![Event::plain_append(100)];
    while now < start + Duration::from_secs(60) && left.is_none() {
        let event = events.pop().unwrap_or_else(|| {
            now = now.max(writer.deadline().expect("an idle writer sends again"));
            Event::Tick
        });
        let mut actions = Vec::new();
        writer.handle(now, event, &mut actions);
        for action in actions {
            match action {
                Action::Send { id, .. } => events.push(Event::Sent { id, result: Ok(100) }),
                Action::NotifyCommitted { replica, request, .. } => {
                    sent += 1;
                    let silent = mute == Some(replica);
                    let result = if silent { Err(SendError::Unreachable) } else { Ok(()) };
                    let (chunk, committed) = (request.at.chunk, request.committed);
                    assert_eq!((chunk, committed), (ChunkId::new(1), 100));
                    events.push(Event::CommittedNotified { chunk, replica, committed, result });
                }
                Action::Op(StreamOp::Advance { sealed, len, next, .. }) => {
                    assert_eq!((sealed, next), (ChunkId::new(1), ChunkId::new(2)));
                    left = Some((now.since(start), len));
                }
                Action::Op(_) => {
                    events.push(Event::Op(Err(OpError::Failed("not now".to_owned()))));
                }
                Action::Failed(error) => panic!("{error:?}"),
                _ => {}
            }
        }
    }
    (sent, left)
}

#[test]
fn idle_writer_repeats_the_committed_length() {
    let (sent, left) = idle(None);
    assert_eq!(left, None);
    assert!((30..60).contains(&sent), "{sent} commit messages in a minute");
}

#[test]
fn an_idle_writer_leaves_a_replica_that_does_not_answer() {
    let (_, left) = idle(Some(1));
    let (after, len) = left.expect("the writer stays with a lost replica");
    assert_eq!(len, 100);
    assert!((10..20).contains(&after.as_secs()), "after {after:?}");
}

/// A chunk on the first `count` of these servers.
fn partial(id: u64, servers: [u32; 3], count: usize) -> ChunkPlace {
    let mut place = chunk(id, servers);
    place.replicas.truncate(count);
    place.acks = count as u8;
    place
}

#[test]
fn an_idle_writer_leaves_a_chunk_that_is_short_of_copies_once_there_is_a_whole_one() {
    // One that has appended nothing, too.
    [100, 0].into_iter().for_each(leaves_a_short_chunk);
}

fn leaves_a_short_chunk(appended: u32) {
    let start = Instant::from_nanos(1_000_000_000);
    let (current, spare) = (partial(1, [1, 2, 3], 2), partial(2, [2, 1, 3], 2));
    let grant = WriterGrant {
        epoch: EPOCH,
        len: 0,
        current: Some(current),
        spares: vec![spare],
        rights_ms: None,
    };
    let config = WriterConfig { copies: 3, ..WriterConfig::default() };
    let mut writer = Writer::new(config, chase(), grant, start).unwrap();
    let (mut now, mut asked, mut left) = (start, Vec::new(), None);
    let mut events: Vec<_> =
        (appended > 0).then_some(Event::plain_append(appended)).into_iter().collect();
    // The third server is there after a while.
    let back = start + Duration::from_secs(42);
    while now < start + Duration::from_secs(90) && left.is_none() {
        let event = events.pop().unwrap_or_else(|| {
            now = now.max(writer.deadline().expect("a writer that is short asks again"));
            Event::Tick
        });
        let mut actions = Vec::new();
        writer.handle(now, event, &mut actions);
        for action in actions {
            match action {
                Action::Send { id, .. } => events.push(Event::Sent { id, result: Ok(appended) }),
                Action::NotifyCommitted { replica, request, .. } => {
                    let (chunk, committed) = (request.at.chunk, request.committed);
                    events.push(Event::CommittedNotified {
                        chunk,
                        replica,
                        committed,
                        result: Ok(()),
                    });
                }
                Action::Op(StreamOp::Extend { avoid, spares, .. }) => {
                    asked.push(now.since(start));
                    let whole = avoid.is_empty() && now >= back;
                    let spare = match whole {
                        true => vec![partial(2, [2, 1, 3], 2), chunk(3, [2, 3, 1])],
                        false => vec![partial(2, [2, 1, 3], 2)],
                    };
                    assert!(spares > 0);
                    let grant = WriterGrant {
                        epoch: EPOCH,
                        len: 0,
                        current: None,
                        spares: spare,
                        rights_ms: None,
                    };
                    events.push(Event::Op(Ok(client::writer::OpDone::Writer(grant))));
                }
                Action::Op(StreamOp::Advance { sealed, len, next, .. }) => {
                    assert_eq!((sealed, len, next), (ChunkId::new(1), appended, ChunkId::new(3)));
                    left = Some(now.since(back));
                }
                Action::Failed(error) => panic!("{error:?}"),
                _ => {}
            }
        }
    }
    let after = left.expect("the writer stays in a chunk with two copies");
    assert!(after.as_secs() <= 10, "after {after:?}");
    assert!(asked.len() < 60, "{} questions", asked.len());
}
