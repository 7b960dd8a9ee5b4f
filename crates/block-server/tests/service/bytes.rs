//! Bytes of requests under way: bounded for a server and for each of its segments.

use std::time::Duration;

use block_client::Limits;
use block_proto::{BlockAnswer, BlockError, BlockIo, Sequence, SessionRef};
use block_server::limits::{SERVER_READ_BYTES_MAX, SERVER_WRITE_BYTES_MAX};
use block_volume::contract::Device;
use block_volume::limits::IO_MAX;
use block_volume::qos::VolumeLimits;
use runtime::{Class, JoinHandle};

use super::limits::NONE;
use super::rules::{Answered, Raw};
use super::{VOLUME, World, buf, segment, world};

/// Requests of the largest size that together have all bytes of a server.
const WRITES_ALL: u64 = (SERVER_WRITE_BYTES_MAX / IO_MAX) as u64;
const READS_ALL: u64 = (SERVER_READ_BYTES_MAX / IO_MAX) as u64;
/// Requests that are sent at a time: 4 MiB, within the queue of a link.
const BATCH: usize = 8;
/// Longer than a batch is under way.
const PAUSE: Duration = Duration::from_millis(50);

/// A client with sessions at two segments, of which the first stands still.
struct Stuck {
    raw: Raw,
    world: World,
    at: SessionRef,
    other: SessionRef,
}

type Answer = JoinHandle<Answered>;

impl Stuck {
    async fn begin(world: World) -> Stuck {
        let raw = Raw::new(&world);
        let attachment = world.manager.attach(VOLUME, false).epoch;
        let open = async |index| {
            let segment = segment(index);
            let at = SessionRef { segment, attachment, session: 1, grant: 0 };
            raw.open_after(at, 1, 0).await.expect("it is admitted")
        };
        let (at, other) = (open(0).await, open(1).await);
        world.gates.device(segment(0)).shut();
        Stuck { raw, world, at, other }
    }

    /// Sends requests, some at a time.
    async fn send_all(&self, requests: impl Iterator<Item = BlockIo>) -> Vec<Answer> {
        let (requests, mut sent) = (requests.collect::<Vec<_>>(), Vec::new());
        for batch in requests.chunks(BATCH) {
            sent.extend(batch.iter().map(|&request| self.send(request)));
            self.raw.env.sleep(PAUSE).await;
        }
        sent
    }

    fn send(&self, request: BlockIo) -> Answer {
        let writes = matches!(request, BlockIo::Write { .. });
        self.raw.send(request, writes.then_some(&[1; IO_MAX]))
    }

    /// Writes and reads the other segment: the answers.
    async fn use_other(&self) -> [Result<BlockAnswer, BlockError>; 2] {
        let written = self.send(write(self.other, 1)).await.expect("it ends");
        let read = self.send(read(self.other)).await.expect("it ends");
        [written.map(|(answer, _)| answer), read.map(|(answer, _)| answer)]
    }
}

fn write(at: SessionRef, seq: u64) -> BlockIo {
    BlockIo::Write { at, sequence: Sequence { seq, floor: 1 }, offset: 0 }
}

fn read(at: SessionRef) -> BlockIo {
    BlockIo::Read { at, offset: 0, len: IO_MAX as u32, locate: false }
}

const SERVED: [Result<BlockAnswer, BlockError>; 2] = [Ok(BlockAnswer::Done), Ok(BlockAnswer::Read)];

/// How many requests were done, and how many were refused as busy.
async fn done_and_busy(answers: Vec<Answer>) -> (u64, u64) {
    let mut counts = (0, 0);
    for answer in answers {
        match answer.await.expect("it ends") {
            Ok(_) => counts.0 += 1,
            Err(BlockError::Busy) => counts.1 += 1,
            Err(error) => panic!("{error}"),
        }
    }
    counts
}

/// Clients repeat requests that have no answer.
#[test]
fn repeats_of_writes_that_stand_still_take_no_bytes() {
    world(40, async |world: World| {
        let stuck = Stuck::begin(world).await;
        let (writes, times) = (WRITES_ALL / 4, 5);
        let numbers = (0..times).flat_map(|_| 1..=writes);
        let sent = stuck.send_all(numbers.map(|seq| write(stuck.at, seq))).await;
        assert_eq!(stuck.use_other().await, SERVED);
        stuck.world.gates.device(segment(0)).open();
        assert_eq!(done_and_busy(sent).await, (times * writes, 0));
        let stats = stuck.world.servers.borrow()[&0].stats();
        assert_eq!((stats.writes, stats.repeats), (writes + 1, (times - 1) * writes));
    });
}

#[test]
fn writes_that_stand_still_leave_half_of_the_bytes_to_other_segments() {
    world(41, async |world: World| {
        let stuck = Stuck::begin(world).await;
        let sent = stuck.send_all((1..=WRITES_ALL).map(|seq| write(stuck.at, seq))).await;
        assert_eq!(stuck.use_other().await, SERVED);
        stuck.world.gates.device(segment(0)).open();
        assert_eq!(done_and_busy(sent).await, (WRITES_ALL / 2, WRITES_ALL / 2));
        // What was refused is done when it comes again, and the rest is not done again.
        let again = stuck.send_all((1..=WRITES_ALL).map(|seq| write(stuck.at, seq))).await;
        assert_eq!(done_and_busy(again).await, (WRITES_ALL, 0));
        let stats = stuck.world.servers.borrow()[&0].stats();
        assert_eq!((stats.writes, stats.repeats), (WRITES_ALL + 1, WRITES_ALL / 2));
    });
}

#[test]
fn reads_that_stand_still_leave_half_of_the_bytes_to_other_segments() {
    world(42, async |world: World| {
        let stuck = Stuck::begin(world).await;
        let sent = stuck.send_all((0..READS_ALL).map(|_| read(stuck.at))).await;
        assert_eq!(stuck.use_other().await, SERVED);
        stuck.world.gates.device(segment(0)).open();
        assert_eq!(done_and_busy(sent).await, (READS_ALL / 2, READS_ALL / 2));
    });
}

/// A segment may be lost, and opened here again, before its requests have ended.
#[test]
fn successor_of_a_segment_that_stands_still_takes_no_second_half() {
    world(44, async |world: World| {
        let stuck = Stuck::begin(world).await;
        let gates = stuck.world.gates.clone();
        let former = stuck.send_all((1..=WRITES_ALL / 2).map(|seq| write(stuck.at, seq))).await;
        let former_gate = gates.device(segment(0));
        // It ends with the former requests.
        drop(stuck.world.servers.borrow()[&0].release(segment(0)));
        let at = SessionRef { session: 2, grant: 0, ..stuck.at };
        let at = stuck.raw.open_after(at, 1, 0).await.expect("it is admitted");
        gates.device(segment(0)).shut();
        let later = stuck.send_all((1..=WRITES_ALL / 2).map(|seq| write(at, seq))).await;
        assert_eq!(stuck.use_other().await, SERVED);
        gates.device(segment(0)).open();
        assert_eq!(done_and_busy(later).await, (0, WRITES_ALL / 2));
        former_gate.open();
        for ended in former {
            drop(ended.await.expect("it ends"));
        }
        let again = stuck.send_all((1..=WRITES_ALL / 2).map(|seq| write(at, seq))).await;
        assert_eq!(done_and_busy(again).await, (WRITES_ALL / 2, 0));
    });
}

/// A client that is refused pauses and tries again: its write is late, and done.
#[test]
fn write_beyond_the_bytes_of_its_segment_is_done_when_there_are_some() {
    let sim = world(43, async |world: World| {
        let stuck = Stuck::begin(world).await;
        let sent = stuck.send_all((1..=WRITES_ALL / 2).map(|seq| write(stuck.at, seq))).await;
        let attachment = stuck.world.manager.attach(VOLUME, false);
        let (env, volume) = stuck.world.volume(attachment, Limits::default());
        // Promised, so that it does not wait for a place.
        volume.set_limits(VolumeLimits { iops_base: 1000, ..NONE }, 1);
        let busy = || stuck.world.servers.borrow()[&0].stats().busy;
        let data = buf(&env, &[2; 4096]);
        let late = env.spawn(Class::Foreground, "late", async move { volume.write(0, data).await });
        stuck.raw.env.sleep(Duration::from_secs(1)).await;
        assert!((10..50).contains(&busy()), "{} tries in a second", busy());
        stuck.world.gates.device(segment(0)).open();
        late.await.expect("the client lives").expect("there are bytes again");
        assert_eq!(done_and_busy(sent).await, (WRITES_ALL / 2, 0));
    });
    assert!(sim.marks().contains_key("block: segment busy"), "{:?}", sim.marks());
}
