//! Blocked appends (B15): the chunk ends when replicas that an append needs are late by several times
//! what healthy ones take, and the append goes into the next one.

use std::rc::Rc;

use base::{ChunkId, ServerId};
use client::Config;
use client::writer::{ChaseBudget, Event, SendError, StreamOp, Writer, WriterConfig};
use futures_util::future::join;
use runtime::Duration;
use wire::control::{ChunkPlace, Policy};

use crate::chase::{Rig, chunk};
use crate::cluster::run;
use crate::fake::{Fake, Health};

const B: Duration = Duration::from_millis(40);
/// Time for answers that came while the writer stood still.
const LOOK: Duration = Duration::from_millis(2);
const MS: Duration = Duration::from_millis(1);

/// A writer of two of three, two of which do not answer in its first chunk.
fn rig() -> Rig {
    let mut rig = Rig::new(WriterConfig::default(), 1 << 30);
    rig.writer.set_blocked_after([B; _]);
    rig.silent = (0..3).map(|replica| (ChunkId::new(1), replica)).collect();
    rig
}

/// The same with other spares, as many as there are.
fn rig_with(spare: Vec<ChunkPlace>) -> Rig {
    let mut rig = rig();
    rig.spare = spare;
    begin_again(&mut rig, &Rc::new(ChaseBudget::new(1 << 30)));
    rig
}

/// Its writer is one of those that share a budget, and knows the spares.
fn begin_again(rig: &mut Rig, budget: &Rc<ChaseBudget>) {
    let spares = rig.spare.len() as u8;
    let config = WriterConfig { copies: 3, spares, ..WriterConfig::default() };
    rig.writer = Writer::new(config, budget.clone(), rig.grant(), rig.start).expect("it fits");
    rig.writer.set_blocked_after([B; _]);
}

/// A chunk with fewer copies.
fn short_chunk() -> ChunkPlace {
    let mut short = chunk(2, [4, 5, 6]);
    short.replicas.truncate(2);
    short
}

/// One append, which the first replica of chunk `id` has a moment later.
fn half_an_append(rig: &mut Rig, id: u64) {
    rig.append(1);
    rig.pass(MS);
    answer_first(rig, id);
}

fn answer_first(rig: &mut Rig, id: u64) {
    let first =
        |it: &&(client::writer::SendId, u32)| it.0.chunk == ChunkId::new(id) && it.0.replica == 0;
    let (id, end) = *rig.waiting.iter().rfind(first).expect("it was sent");
    rig.give(Event::Sent { id, result: Ok(end) });
}

#[test]
fn append_goes_into_the_next_chunk_when_too_few_have_it_in_time() {
    let mut rig = rig();
    half_an_append(&mut rig, 1);
    rig.pass(B + LOOK - MS * 2);
    assert_eq!((rig.acked, rig.advances().len()), (0, 0));
    rig.pass(MS * 2);
    assert_eq!((rig.acked, rig.advances().as_slice()), (1, [B + LOOK].as_slice()));
    assert!(rig.left.is_empty() && rig.reported.is_empty(), "they may have it yet");
    assert_eq!(rig.doubted, [2, 3].map(ServerId::new), "and are looked at");
}

#[test]
fn replica_that_no_append_needs_is_not_waited_for() {
    let mut rig = rig();
    rig.silent = vec![(ChunkId::new(1), 2)];
    rig.append(1);
    rig.pass(MS * 400);
    assert_eq!((rig.acked, rig.advances().len()), (1, 0));
}

#[test]
fn append_waits_on_where_the_next_chunk_would_survive_less() {
    let mut rig = rig_with(vec![short_chunk()]);
    half_an_append(&mut rig, 1);
    rig.pass(B + LOOK);
    let avoided = |op: &StreamOp| match op {
        StreamOp::Extend { avoid, .. } => avoid.clone(),
        op => panic!("{op:?}"),
    };
    let late = [2, 3].map(ServerId::new);
    assert!(rig.ops.iter().any(|(_, op)| avoided(op) == late), "others are asked for");
    rig.pass(MS * 90);
    assert!(rig.advances().is_empty());
    // Another server has come.
    rig.spare.push(chunk(3, [4, 5, 6]));
    rig.pass(MS * 20);
    assert_eq!((rig.advances().len(), rig.acked), (1, 1));
    assert_eq!(rig.sent.last().expect("it was sent").chunk, ChunkId::new(3));
}

#[test]
fn append_that_has_nowhere_else_to_go_waits_as_for_servers_that_are_gone() {
    let mut rig = rig_with(vec![short_chunk()]);
    half_an_append(&mut rig, 1);
    rig.pass(MS * 490);
    assert!(rig.advances().is_empty());
    let asked = rig.ops.len();
    assert!((15..=25).contains(&asked), "{asked} questions");
    rig.pass(MS * 20);
    assert_eq!((rig.advances().len(), rig.acked), (1, 1));
}

#[test]
fn append_that_was_late_leaves_no_question_to_the_next_one() {
    let mut rig = rig_with(vec![short_chunk()]);
    half_an_append(&mut rig, 1);
    rig.pass(B + LOOK);
    let asked = rig.ops.len();
    for (id, end) in std::mem::take(&mut rig.waiting) {
        rig.give(Event::Sent { id, result: Ok(end) });
    }
    rig.pass(MS * 50);
    rig.append(1);
    assert_eq!((rig.acked, rig.ops.len()), (1, asked), "the next one has only been sent");
}

#[test]
fn each_end_without_an_acknowledgement_doubles_the_wait() {
    // No server has replicas of two of them.
    let apart = |id: u32| chunk(u64::from(id), [0, 1, 2].map(|at| id * 3 + at));
    let mut rig = rig_with((2..6).map(apart).collect());
    rig.silent = (1..6).flat_map(|id| (0..3).map(move |at| (ChunkId::new(id), at))).collect();
    rig.append(1);
    let mut ends = Vec::new();
    for id in 1..5 {
        let (begun, before) = (rig.now, rig.advances().len());
        rig.pass(MS);
        answer_first(&mut rig, id);
        while rig.advances().len() == before {
            rig.pass(MS);
        }
        ends.push(rig.now.since(begun));
        assert!(rig.acked == 0);
    }
    assert_eq!(ends, [B, B * 2, B * 4, B * 8].map(|wait| wait + LOOK));
}

#[test]
fn while_no_server_is_heard_it_waits_for_longer() {
    let mut rig = rig();
    rig.append(1);
    rig.pass(MS * 499);
    assert!(rig.advances().is_empty(), "it may be this process or its network");
    rig.pass(MS * 2);
    assert_eq!((rig.advances().len(), rig.acked), (1, 1));
}

#[test]
fn refused_connections_are_not_waited_for() {
    let mut rig = rig();
    rig.append(1);
    rig.pass(MS);
    for (id, end) in std::mem::take(&mut rig.waiting) {
        let result = if id.replica == 0 { Ok(end) } else { Err(SendError::Unreachable) };
        rig.give(Event::Sent { id, result });
    }
    rig.pass(MS * 9 + LOOK);
    assert!(rig.advances().is_empty(), "a connection may be made again");
    rig.pass(MS);
    assert_eq!((rig.advances().len(), rig.acked), (1, 1));
    assert_eq!(rig.reported, [2, 3].map(ServerId::new));
}

#[test]
fn time_in_which_the_writer_stood_still_does_not_count() {
    let mut rig = rig();
    half_an_append(&mut rig, 1);
    rig.now = rig.start + B + MS * 30;
    rig.give(Event::Tick);
    assert!(rig.advances().is_empty());
    rig.pass(B + LOOK - MS);
    assert!(rig.advances().is_empty());
    rig.pass(MS);
    assert_eq!((rig.advances().len(), rig.acked), (1, 1));
}

#[test]
fn answers_that_came_while_the_writer_stood_still_are_taken_first() {
    let mut rig = rig();
    half_an_append(&mut rig, 1);
    // The timer is late by less than what shows that.
    rig.now = rig.start + B + MS * 10;
    rig.give(Event::Tick);
    rig.pass(MS);
    for (id, end) in std::mem::take(&mut rig.waiting) {
        rig.give(Event::Sent { id, result: Ok(end) });
    }
    rig.pass(MS * 100);
    assert_eq!((rig.advances().len(), rig.acked), (0, 1));
}

#[test]
fn replicas_that_go_on_are_not_late_however_much_waits() {
    let mut rig = rig();
    rig.append(50);
    let waiting = std::mem::take(&mut rig.waiting);
    for seq in 0..50 {
        rig.pass(B * 3 / 4);
        for &(id, end) in waiting.iter().filter(|(id, _)| id.seq == seq) {
            rig.give(Event::Sent { id, result: Ok(end) });
        }
    }
    assert_eq!((rig.acked, rig.advances().len()), (50, 0));
}

#[test]
fn writers_of_a_process_end_few_chunks_so() {
    let budget = Rc::new(ChaseBudget::new(1 << 30));
    let mut early = 0;
    for _ in 0..15 {
        let mut rig = rig();
        begin_again(&mut rig, &budget);
        half_an_append(&mut rig, 1);
        rig.pass(B * 2);
        early += rig.advances().len();
        rig.pass(MS * 500);
        assert_eq!((rig.advances().len(), rig.acked), (1, 1), "the others wait for longer");
    }
    assert_eq!(early, 10);
}

/// Nothing was known of disks when the append was placed. Then the client hears of healthy ones.
#[test]
fn append_that_was_to_wait_for_long_waits_no_longer_than_is_known_since() {
    let fake = Fake::new(1, 6);
    run(46, &fake.clone(), Config::default(), |client| async move {
        let env = client.env().clone();
        let open = async |path: &str, elsewhere: [usize; 3]| {
            fake.with(|state| state.no_place = elsewhere.into());
            let file = client.create(path, Policy::strict(3), 0o644, true).await.unwrap();
            file.append_handle().await.unwrap()
        };
        let late = open("/late", [3, 4, 5]).await;
        let other = open("/other", [0, 1, 2]).await;
        fake.with(|state| state.health[0] = Health::Silent);
        let waits = async {
            let began = env.now();
            late.append(b"late").await.unwrap();
            env.now() - began
        };
        let learns = async {
            for _ in 0..300 {
                other.append(b"other").await.unwrap();
            }
        };
        let (waited, ()) = join(waits, learns).await;
        assert!(waited < MS * 120, "it waited {waited:?}");
    });
}
