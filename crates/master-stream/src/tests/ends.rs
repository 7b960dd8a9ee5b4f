//! Counters at the ends of their ranges: what cannot be numbered any more is refused, and what
//! was made before stays.

use base::{ChunkId, ClientId, DiskId, Epoch, FileId, ServerId};
use wire::control::{OpId, Policy};

use crate::placement::ReplicaLocation;
use crate::*;
use master_consensus::RowCopy;

const FILE: FileId = FileId::new(7);
/// Chunk numbers have 48 bits.
const CHUNKS_END: u64 = 1 << 48;

struct Bed {
    state: StreamMachine,
    seq: u64,
}

impl Bed {
    fn new() -> Bed {
        Bed { state: StreamMachine::new(3), seq: 0 }
    }

    /// Runs a command; the state holds its invariants, and comes back from its rows.
    fn run(&mut self, action: Action) -> Outcome {
        let outcome = self.state.run(Command { clock_ms: 0, action });
        assert_eq!(self.state.check(), Ok(()));
        let mut rows = RowCopy::default();
        rows.follow(&mut self.state.clone());
        assert_eq!(rows.load(&self.state), Ok(self.state.clone()));
        outcome
    }

    fn op(&mut self) -> OpId {
        self.seq += 1;
        OpId { client: ClientId::new(1), seq: self.seq, acked_below: 0 }
    }

    fn open(&mut self, chunks: usize) -> Outcome {
        let (op, policy) = (self.op(), Policy::strict(3));
        self.run(Action::Open { op, file: FILE, policy, fresh: fresh(chunks) })
    }

    fn seal(&mut self) -> Outcome {
        let op = self.op();
        self.run(Action::Seal { op, file: FILE })
    }

    /// Recovery ends: the tail had 10 bytes.
    fn recover(&mut self, chunks: usize) -> Outcome {
        let stream = self.state.stream(FILE).unwrap();
        let (epoch, fenced) = (stream.epoch, stream.spares.iter().map(|it| it.id).collect());
        if let Some(tail) = stream.tail() {
            let (chunk, holders) = (tail.id, places());
            let votes = holders.iter().map(|&place| (place, 10)).collect();
            let (file, len, delete_at_ms) = (FILE, 10, 0);
            self.run(Action::SealTail { file, epoch, chunk, len, votes, holders, delete_at_ms });
        }
        let (op, fresh) = (Some(self.op()), fresh(chunks));
        self.run(Action::Finish { op, file: FILE, epoch, fenced, fresh, delete_at_ms: 0 })
    }

    fn advance(&mut self, chunks: usize) -> Outcome {
        let op = self.op();
        let stream = self.state.stream(FILE).unwrap();
        let (epoch, sealed) = (stream.epoch, stream.tail().unwrap().id);
        let (next, drop) = (stream.spares[0].id, Vec::new());
        let (file, len, fresh, delete_at_ms) = (FILE, 10, fresh(chunks), 0);
        self.run(Action::Advance { op, file, epoch, sealed, len, next, drop, fresh, delete_at_ms })
    }

    fn extend(&mut self, chunks: usize) -> Outcome {
        let (op, epoch) = (self.op(), self.state.stream(FILE).unwrap().epoch);
        let (file, drop, fresh, delete_at_ms) = (FILE, Vec::new(), fresh(chunks), 0);
        self.run(Action::Extend { op, file, epoch, drop, fresh, delete_at_ms })
    }
}

fn places() -> Vec<ReplicaLocation> {
    (1..=3)
        .map(|n| ReplicaLocation { server: ServerId::new(n), disk: DiskId::new(n.into()) })
        .collect()
}

fn fresh(chunks: usize) -> Vec<Vec<ReplicaLocation>> {
    vec![places(); chunks]
}

const FULL: Outcome = Outcome::Refused { why: Refusal::Full };

fn writer(epoch: u64) -> Outcome {
    Outcome::Writer { file: FILE, epoch: Epoch::new(epoch) }
}

#[test]
fn last_chunk_numbers_are_used_and_then_writers_are_refused() {
    let mut bed = Bed::new();
    bed.state.next_chunk = CHUNKS_END - 3;
    assert_eq!(bed.open(2), writer(1));
    // One number is left: of two spares that are asked for, one is made.
    assert_eq!(bed.advance(2), writer(1));
    assert!(bed.state.may_have_made(ChunkId::compose(3, CHUNKS_END - 1)));
    assert_eq!(bed.extend(1), FULL);
    assert_eq!(bed.advance(0), writer(1), "the last chunk is written");
    assert_eq!(bed.extend(0), writer(1), "rights are renewed");
    assert_eq!(bed.seal(), Outcome::Recover { epoch: Epoch::new(2) });
    assert_eq!(bed.recover(1), FULL, "nothing to write to");
    assert_eq!(bed.recover(0), Outcome::Done { len: 30 });
    assert_eq!(bed.open(1), FULL);
    let stream = bed.state.stream(FILE).unwrap();
    let lens: Vec<_> = stream.chunks.iter().map(|chunk| chunk.sealed()).collect();
    assert_eq!(lens, [Some(10); 3]);
}

#[test]
fn first_open_without_a_chunk_number_leaves_nothing() {
    let mut bed = Bed::new();
    bed.state.next_chunk = CHUNKS_END;
    assert_eq!(bed.open(1), FULL);
    assert_eq!(bed.state.stream(FILE), None);
}

#[test]
fn last_epoch_seals_what_the_last_writer_left() {
    let mut bed = Bed::new();
    bed.open(1);
    // The writer before the last one.
    bed.state.streams.get_mut(&FILE).unwrap().epoch = Epoch::new(u64::MAX - 2);
    assert_eq!(bed.open(0), Outcome::Recover { epoch: Epoch::new(u64::MAX - 1) });
    assert_eq!(bed.recover(2), writer(u64::MAX - 1));
    assert_eq!(bed.open(1), FULL, "no writer can be fenced out any more");
    assert_eq!(bed.advance(1), writer(u64::MAX - 1), "the last writer goes on");
    let last = Outcome::Recover { epoch: Epoch::new(u64::MAX) };
    assert_eq!((bed.seal(), bed.seal()), (last.clone(), last), "recoveries share it");
    assert_eq!(bed.recover(0), Outcome::Done { len: 30 });
    assert_eq!(bed.seal(), Outcome::Done { len: 30 });
    assert_eq!(bed.open(1), FULL);
}
