//! A writer without appends: it tells its replicas what is acknowledged, and leaves a chunk whose
//! replica does not answer.

use base::{ChunkId, DiskId, Epoch, ServerId};
use client::writer::{Action, Event, OpError, SendError, StreamOp, Writer, WriterConfig};
use runtime::{Duration, Instant};
use wire::control::{ChunkPlace, ReplicaPlace, WriterGrant};

const EPOCH: Epoch = Epoch::new(7);

fn chunk(id: u64, servers: [u32; 3]) -> ChunkPlace {
    let replica = |server: u32| ReplicaPlace {
        server: ServerId::new(server),
        disk: DiskId::new(u128::from(server)),
        addr: ([10, 0, 0, server as u8], 1).into(),
    };
    ChunkPlace {
        chunk: ChunkId::new(id),
        epoch: EPOCH,
        base: 0,
        sealed: None,
        replicas: servers.map(replica).to_vec(),
        acks: 3,
        token: [1; 16],
    }
}

/// Appends once, then idles for a minute; replica `mute` leaves commit messages without an
/// answer. Returns the commit messages sent, and when the writer left the chunk at which length.
fn idle(mute: Option<u8>) -> (u32, Option<(Duration, u32)>) {
    let start = Instant::from_nanos(1_000_000_000);
    let (current, spare) = (chunk(1, [1, 2, 3]), chunk(2, [4, 5, 6]));
    let grant = WriterGrant { epoch: EPOCH, len: 0, current: Some(current), spares: vec![spare] };
    let mut writer = Writer::new(WriterConfig::default(), grant, start).unwrap();
    let (mut now, mut told, mut left) = (start, 0, None);
    let mut events = vec![Event::Append { len: 100 }];
    while now < start + Duration::from_secs(60) && left.is_none() {
        let event = events.pop().unwrap_or_else(|| {
            now = now.max(writer.deadline().expect("an idle writer tells again"));
            Event::Tick
        });
        let mut actions = Vec::new();
        writer.handle(now, event, &mut actions);
        for action in actions {
            match action {
                Action::Send { id, .. } => events.push(Event::Sent { id, result: Ok(100) }),
                Action::Tell { replica, request, .. } => {
                    told += 1;
                    let silent = mute == Some(replica);
                    let result = if silent { Err(SendError::Unreachable) } else { Ok(()) };
                    let (chunk, committed) = (request.at.chunk, request.committed);
                    assert_eq!((chunk, committed), (ChunkId::new(1), 100));
                    events.push(Event::Told { chunk, replica, committed, result });
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
    (told, left)
}

#[test]
fn replicas_of_an_idle_writer_are_told_again() {
    let (told, left) = idle(None);
    assert_eq!(left, None);
    assert!((30..60).contains(&told), "{told} commit messages in a minute");
}

#[test]
fn an_idle_writer_leaves_a_replica_that_does_not_answer() {
    let (_, left) = idle(Some(1));
    let (after, len) = left.expect("the writer stays with a lost replica");
    assert_eq!(len, 100);
    assert!((10..20).contains(&after.as_secs()), "after {after:?}");
}
