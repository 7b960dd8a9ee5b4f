//! The conformance suite: random operations with reboots, each answer compared with the model's.
//! After a crash there may be more than was acknowledged: a prefix of what was in flight.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use base::{ChunkId, DiskId, Epoch};
use chunkstore::{Append, Appended, ChunkStore, Read, StoreError};
use codec::block::Codec;
use runtime::sim::{CrashMode, Sim};
use runtime::{Duration, Rng};
use testing::chunks::{ModelDisk, ModelStore};
use wire::data::{ReplicaStat, ReplicaState};
use wire::pieces::CellPieces;
use wire::row::{Fragment, Layout, logical_end};
use wire::sector::{AppendAt, Footer, client_crc, parse_footer, verify_sector};

use crate::engine::{Engine, append_of, buf_of, data_of, row_append_of};

/// One operation on a store.
#[derive(Clone, Debug)]
pub enum Op {
    Append(Append),
    Read { chunk: ChunkId, offset: u32, len: u32 },
    Fence { chunk: ChunkId, epoch: u64 },
    Seal { chunk: ChunkId, len: u32 },
    Delete { chunk: ChunkId },
    Forget { chunk: ChunkId },
    Checkpoint,
}

impl Op {
    fn chunk(&self) -> Option<ChunkId> {
        match self {
            Op::Append(append) => Some(append.chunk),
            Op::Read { chunk, .. }
            | Op::Fence { chunk, .. }
            | Op::Seal { chunk, .. }
            | Op::Delete { chunk }
            | Op::Forget { chunk } => Some(*chunk),
            Op::Checkpoint => None,
        }
    }
}

/// An answer in a form that compares across engines.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    Appended,
    Read { sectors: Vec<(u32, u32)>, len: u32, sealed: bool },
    Stat(ReplicaStat),
    Done,
    Error(StoreError),
}

pub async fn perform<S: ChunkStore>(store: &S, op: Op) -> Answer {
    let result = match op {
        Op::Append(append) => {
            let end = append.offset;
            store.append(append).await.map(|Appended { len }| {
                assert!(len >= end, "acknowledged {len}, below the append's offset {end}");
                Answer::Appended
            })
        }
        Op::Read { chunk, offset, len } => read(store, (chunk, offset, len)).await.map(|read| {
            let sector = |sector: &[u8]| {
                (parse_footer(sector).expect("reads are verified").offset, client_crc(sector))
            };
            let sectors = read.sectors.chunks(4096).map(sector).collect();
            Answer::Read { sectors, len: read.len, sealed: read.sealed }
        }),
        Op::Fence { chunk, epoch } => store.fence(chunk, Epoch::new(epoch)).await.map(Answer::Stat),
        Op::Seal { chunk, len } => store.seal(chunk, len).await.map(Answer::Stat),
        Op::Delete { chunk } => store.delete(chunk).await.map(|()| Answer::Done),
        Op::Forget { chunk } => store.forget(chunk).await.map(|()| Answer::Done),
        Op::Checkpoint => store.checkpoint().await.map(|()| Answer::Done),
    };
    result.unwrap_or_else(Answer::Error)
}

/// Reads a range, and then the blocks with it: what comes of rows is enough of what came before.
async fn read<S: ChunkStore>(
    store: &S,
    (chunk, offset, len): (ChunkId, u32, u32),
) -> Result<Read, StoreError> {
    let all = store.read(chunk, offset, len).await?;
    let Ok(blocks) = store.read_blocks(chunk, offset, len, || true).await else { return Ok(all) };
    if blocks.len != all.len || blocks.sectors[..] == all.sectors[..] {
        return Ok(all); // Another operation came between.
    }
    let mut sectors = blocks.sectors.chunks(4096);
    assert!(sectors.all(|sector| all.sectors.chunks(4096).any(|other| other == sector)));
    let first = parse_footer(&all.sectors[..4096]).expect("reads are verified");
    let Footer { epoch, base, .. } = first;
    let at = AppendAt { chunk, epoch, base, offset };
    let pieces = CellPieces::verify(at, &blocks.sectors).expect("of one cell");
    let start = (offset - pieces.row.offset) as usize;
    let end = (offset.saturating_add(len).min(all.len) - pieces.row.offset) as usize;
    let needed = pieces.needed(start..end).expect("it was known which");
    assert_eq!(blocks.sectors.len() / 4096, 1 + needed.len());
    Ok(all)
}

/// All sectors of a replica, read in steps: (offset, client CRC).
pub async fn contents<S: ChunkStore>(
    store: &S,
    chunk: ChunkId,
) -> Result<Vec<(u32, u32)>, StoreError> {
    let mut sectors = Vec::new();
    let mut offset = 0;
    loop {
        let read = store.read(chunk, offset, 1 << 20).await?;
        for sector in read.sectors.chunks(4096) {
            let footer = parse_footer(sector).expect("reads are verified");
            let good = verify_sector(sector).is_ok();
            sectors.push((footer.offset, if good { client_crc(sector) } else { 0 }));
        }
        offset = logical_end(&read.sectors).unwrap_or(offset);
        if read.sectors.is_empty() || offset >= read.len {
            return Ok(sectors);
        }
    }
}

/// Options of a run of the suite.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub chunks: u64,
    pub steps: u32,
    /// One step in this many is a crash amid operations.
    pub crash_one_in: u64,
    /// Largest append, bytes.
    pub append_max: u64,
    /// The lowest chunk.
    pub first: u64,
    /// Number added to all epochs.
    pub epochs: u64,
    /// Two chunks of three have rows: of copies, or one fragment of a code.
    pub rows: bool,
}

pub const PLAN: Plan = Plan {
    chunks: 6,
    steps: 60,
    crash_one_in: 5,
    append_max: 100_000,
    first: 1,
    epochs: 0,
    rows: false,
};

/// The same with rows.
pub const ROWS: Plan = Plan { rows: true, ..PLAN };

/// The same with chunks and epochs at the ends of their types. The last epoch is no writer's.
pub const FAR: Plan = Plan { first: u64::MAX - 5, epochs: u64::MAX - 10, ..PLAN };

/// One run: the engine against the model. An error says what differed.
pub struct Run<E: Engine> {
    sim: Sim,
    engine: E,
    store: Option<E::Store>,
    model: ModelStore,
    model_disk: ModelDisk,
    rng: Rng,
    plan: Plan,
    salt: u64,
    /// Appends that crashes left possibly written.
    ghosts: BTreeMap<ChunkId, Vec<Append>>,
}

const EPOCH: u64 = 5;

/// What an append has beside its place.
struct Drawn {
    data: Vec<u8>,
    epoch: u64,
    repair: bool,
    create: bool,
}

impl<E: Engine> Run<E>
where
    E::Store: 'static,
{
    pub fn new(sim: &Sim, engine: E, seed: u64, plan: Plan) -> Run<E> {
        let model_disk = ModelDisk::new(DiskId::new(0));
        let model = model_disk.open(None);
        let rng = Rng::new(seed ^ 0x5eed);
        let ghosts = BTreeMap::new();
        Run { sim: sim.clone(), engine, store: None, model, model_disk, rng, plan, salt: 0, ghosts }
    }

    fn chunk(&mut self) -> ChunkId {
        ChunkId::new(self.plan.first + self.rng.below(self.plan.chunks))
    }

    fn len_of(&self, chunk: ChunkId) -> u32 {
        self.model.stat(chunk).map_or(0, |stat| stat.len)
    }

    fn append_len(&mut self) -> u32 {
        let max = self.plan.append_max;
        let len = match self.rng.below(5) {
            0 => self.rng.between(1, 100),
            1 => 4096,
            2 => 4048 * self.rng.between(1, 5),
            3 => self.rng.between(1, 10_000),
            _ => self.rng.between(1, max),
        };
        len.min(max) as u32
    }

    /// The fragment whose cells a chunk's replica has, if any.
    fn fragment(&self, chunk: ChunkId) -> Option<Fragment> {
        let number = (chunk.get() % 6) as u8;
        match number % 3 {
            _ if !self.plan.rows => None,
            0 => None,
            1 => Some(Fragment::COPY),
            _ => Some(Fragment { k: 4, p: 2, number }),
        }
    }

    fn append(&mut self, chunk: ChunkId, offset: u32) -> Append {
        let mut fragment = self.fragment(chunk);
        if self.plan.rows && self.rng.one_in(40) {
            let other = self.chunk();
            fragment = self.fragment(other);
        }
        let drawn = self.draw(chunk, offset);
        let mut append = self.append_of((chunk, drawn.epoch, offset), drawn.data, fragment);
        append.repair = drawn.repair;
        append.create &= drawn.create;
        append
    }

    fn draw(&mut self, chunk: ChunkId, offset: u32) -> Drawn {
        self.salt += u64::from(!self.rng.one_in(8)); // Sometimes the same bytes again.
        let len = self.append_len();
        let epoch = if self.rng.one_in(12) { self.rng.between(4, 8) } else { EPOCH };
        let (repair, create) = (self.rng.one_in(15), !self.rng.one_in(20));
        Drawn { data: data_of(chunk, offset, len, self.salt), epoch, repair, create }
    }

    fn append_of(
        &mut self,
        (chunk, epoch, offset): (ChunkId, u64, u32),
        mut data: Vec<u8>,
        fragment: Option<Fragment>,
    ) -> Append {
        let epoch = self.plan.epochs + epoch;
        let Some(fragment) = fragment else { return append_of(chunk, epoch, offset, &data) };
        if self.rng.one_in(2) {
            data.iter_mut().for_each(|byte| *byte &= 1); // It can be compressed.
        }
        let codec = Codec::ALL[self.rng.below(3) as usize];
        row_append_of((chunk, epoch, offset), &data, fragment, codec)
    }

    fn op(&mut self) -> Op {
        let chunk = self.chunk();
        let len = self.len_of(chunk);
        match self.rng.below(32) {
            0..=13 => {
                let append = self.append(chunk, len);
                // A replica under repair takes repair's appends, and a fenced one too.
                let state = self.model.stat(chunk).map(|stat| stat.state);
                let repairing = match state {
                    Ok(ReplicaState::Repairing) => true,
                    Ok(ReplicaState::Fenced(_) | ReplicaState::Tombstone) => self.rng.one_in(2),
                    _ => false,
                };
                let append = Append { repair: append.repair || repairing, ..append };
                Op::Append(self.perhaps_longer(append))
            }
            14 => {
                let offset = self.rng.below(u64::from(len) + 10_000) as u32;
                Op::Append(self.append(chunk, offset))
            }
            15..=20 => {
                let offset = self.rng.below(u64::from(len) + 5000) as u32;
                let want = self.rng.between(1, 200_000) as u32;
                Op::Read { chunk, offset, len: want }
            }
            21..=22 => Op::Fence { chunk, epoch: self.plan.epochs + self.rng.between(0, 9) },
            23..=26 => {
                let len = match self.rng.below(4) {
                    0 => self.rng.below(u64::from(len) + 100) as u32,
                    _ => len,
                };
                Op::Seal { chunk, len }
            }
            27..=28 => Op::Delete { chunk },
            29..=30 => Op::Forget { chunk },
            _ => Op::Checkpoint,
        }
    }

    /// What repair sends may be several rows.
    fn perhaps_longer(&mut self, mut append: Append) -> Append {
        let is_row = Layout::of(&append.sectors) != Layout::Plain;
        if is_row && self.rng.one_in(if append.repair { 2 } else { 20 }) {
            let end = logical_end(&append.sectors).expect("it has sectors");
            let (chunk, epoch) = (append.chunk, append.epoch.get() - self.plan.epochs);
            let (data, fragment) = (self.draw(chunk, end).data, self.fragment(chunk));
            let next = self.append_of((chunk, epoch, end), data, fragment);
            let both = [&append.sectors[..], &next.sectors[..]].concat();
            append.sectors = buf_of(&both);
        }
        append
    }

    fn store(&self) -> E::Store {
        self.store.clone().expect("booted")
    }

    pub async fn run(&mut self) -> Result<(), String> {
        self.store = Some(self.engine.boot().await?);
        for step in 0..self.plan.steps {
            let result = match self.rng.below(20) {
                _ if self.rng.one_in(self.plan.crash_one_in) => self.crash_step().await,
                0 => self.reopen_step().await,
                1..=4 => self.burst_step().await,
                _ => self.single_step().await,
            };
            result.map_err(|why| format!("step {step}: {why}"))?;
        }
        self.crash_step().await.map_err(|why| format!("at the end: {why}"))
    }

    async fn single_step(&mut self) -> Result<(), String> {
        let op = self.op();
        // A repeat of something stored, now and then.
        let again = self.rng.one_in(5);
        for _ in 0..1 + u32::from(again) {
            let want = perform(&self.model, op.clone()).await;
            let got = perform(&self.store(), op.clone()).await;
            if want != got {
                return Err(format!("{} gives {got:?}, the model {want:?}", brief(&op)));
            }
        }
        Ok(())
    }

    /// Several appends of one chunk in flight together, and a repeat of one of them.
    async fn burst_step(&mut self) -> Result<(), String> {
        let chunk = self.chunk();
        let ops = self.burst(chunk);
        let mut wants = Vec::new();
        for op in &ops {
            wants.push(perform(&self.model, op.clone()).await);
        }
        let store = self.store();
        let all = ops.iter().map(|op| perform(&store, op.clone()));
        let gots = futures_util::future::join_all(all).await;
        if wants != gots {
            let ops: Vec<_> = ops.iter().map(brief).collect();
            return Err(format!("{ops:?} give {gots:?}, the model {wants:?}"));
        }
        Ok(())
    }

    fn burst(&mut self, chunk: ChunkId) -> Vec<Op> {
        let mut offset = self.len_of(chunk);
        let mut ops = Vec::new();
        for _ in 0..self.rng.between(1, 8) {
            let drawn = self.draw(chunk, offset);
            let fragment = self.fragment(chunk);
            let append = self.append_of((chunk, EPOCH, offset), drawn.data, fragment);
            offset = logical_end(&append.sectors).expect("it has sectors");
            if self.rng.one_in(6) {
                ops.push(Op::Append(append.clone()));
            }
            ops.push(Op::Append(append));
        }
        ops
    }

    async fn reopen_step(&mut self) -> Result<(), String> {
        let store = self.store.take().expect("booted");
        store.close().await.map_err(|error| format!("close: {error}"))?;
        drop(store);
        self.engine.crash(CrashMode::Power);
        self.store = Some(self.engine.boot().await?);
        self.check_all().await
    }

    /// Operations in flight, then a crash, then everything is compared.
    async fn crash_step(&mut self) -> Result<(), String> {
        let mut ops = Vec::new();
        let mut touched = Vec::new();
        for _ in 0..self.rng.below(4) {
            let chunk = self.chunk();
            if touched.contains(&chunk) {
                continue;
            }
            touched.push(chunk);
            let len = self.len_of(chunk);
            if !self.rng.one_in(4) {
                ops.extend(self.burst(chunk));
            }
            match self.rng.below(8) {
                0 => {
                    let epoch = self.plan.epochs + self.rng.between(6, 9);
                    ops.push(Op::Fence { chunk, epoch });
                }
                1 => ops.push(Op::Seal { chunk, len }),
                2 => ops.push(Op::Delete { chunk }),
                3 => ops.push(Op::Forget { chunk }),
                4 => ops.push(Op::Checkpoint),
                _ => {}
            }
        }
        let answers: Rc<RefCell<Vec<Option<Answer>>>> =
            Rc::new(RefCell::new(vec![None; ops.len()]));
        let store = self.store.take().expect("booted");
        let tasks: Vec<_> = ops
            .iter()
            .cloned()
            .enumerate()
            .map(|(index, op)| {
                let (store, answers) = (store.clone(), answers.clone());
                self.sim.spawn("operation", async move {
                    let answer = perform(&store, op).await;
                    answers.borrow_mut()[index] = Some(answer);
                })
            })
            .collect();
        drop(store);
        let micros = if self.rng.one_in(4) { 10_000 } else { self.rng.below(500) };
        self.sim.sleep(Duration::from_micros(micros)).await;
        let mode = if self.rng.one_in(4) { CrashMode::Process } else { CrashMode::Power };
        self.engine.crash(mode);
        let answers = answers.borrow().clone();
        tasks.iter().for_each(|task| task.abort());
        drop(tasks);
        self.store = Some(self.engine.boot().await?);
        self.reconcile(&ops, &answers).await?;
        self.check_all().await
    }

    /// Brings the model to what the crash left, if the contract allows it.
    async fn reconcile(&mut self, ops: &[Op], answers: &[Option<Answer>]) -> Result<(), String> {
        let store = self.store();
        for (op, answer) in ops.iter().zip(answers) {
            if let Op::Append(append) = op {
                if *answer == Some(Answer::Appended) {
                    // In the order of offsets, which is that of the burst.
                    let _ = perform(&self.model, op.clone()).await;
                }
                self.ghosts.entry(append.chunk).or_default().push(append.clone());
            }
        }
        let mut chunks: Vec<ChunkId> = ops.iter().filter_map(Op::chunk).collect();
        chunks.dedup();
        for chunk in chunks {
            let admin = ops.iter().zip(answers).find(|(op, _)| {
                op.chunk() == Some(chunk) && !matches!(op, Op::Append(_) | Op::Read { .. })
            });
            let found = store.stat(chunk);
            let acked = admin
                .is_some_and(|(_, answer)| matches!(answer, Some(Answer::Done | Answer::Stat(_))));
            let fence = self.fence_of(chunk).await;
            let took_effect = admin.is_some_and(|(op, _)| match (op, &found) {
                (Op::Delete { .. }, Ok(_)) => fence == Some(Epoch::new(u64::MAX)),
                (Op::Forget { .. }, Err(StoreError::NotFound)) => true,
                (Op::Seal { len, .. }, Ok(stat)) => {
                    stat.state == ReplicaState::Sealed && stat.len == *len
                }
                (Op::Fence { epoch, .. }, Ok(_)) => {
                    fence.is_some_and(|fence| fence.get() >= *epoch)
                }
                _ => false,
            });
            if let Some((op @ Op::Forget { .. }, _)) = admin
                && matches!(&found, Ok(stat) if !stat.state.is_tombstone())
            {
                // The tombstone went before the replica was made.
                perform(&self.model, op.clone()).await;
            }
            self.create(chunk, &found);
            if acked || took_effect {
                let (op, _) = admin.expect("tested above");
                if !matches!(op, Op::Delete { .. } | Op::Forget { .. }) {
                    self.extend(chunk, found.as_ref().map_or(0, |stat| stat.len)).await?;
                }
                perform(&self.model, op.clone()).await;
                if matches!(op, Op::Delete { .. }) {
                    self.ghosts.remove(&chunk);
                }
            }
            if let Ok(stat) = found {
                self.extend(chunk, stat.len).await?;
                // An empty replica may have been made and nothing of it be durable.
                if self.model.stat(chunk) == Err(StoreError::NotFound) && stat.len == 0 {
                    return Err(format!("{chunk} is {stat:?}, and was never made"));
                }
            }
        }
        Ok(())
    }

    /// The fence of a chunk, from the refusal of an append that no state takes.
    async fn fence_of(&self, chunk: ChunkId) -> Option<Epoch> {
        let probe = Append { create: false, ..append_of(chunk, 0, 0, b"probe") };
        match self.store().append(probe).await {
            Err(StoreError::Fenced { epoch }) => Some(epoch),
            _ => None,
        }
    }

    /// Lets the model have a replica whose creation was in flight.
    fn create(&mut self, chunk: ChunkId, found: &Result<ReplicaStat, StoreError>) {
        let absent = match self.model.stat(chunk) {
            Ok(stat) => stat.state.is_tombstone(),
            Err(_) => true,
        };
        let Ok(found) = found else { return };
        if !absent || found.state.is_tombstone() {
            return;
        }
        let made_by = self.ghosts.get(&chunk).and_then(|ghosts| {
            let mut ghosts = ghosts.iter();
            ghosts.find(|ghost| ghost.offset == 0 && ghost.epoch == found.epoch)
        });
        if let Some(ghost) = made_by {
            self.model_disk.make_empty_by(ghost);
        }
    }

    /// Lets the model have appends that were in flight until it is `len` long.
    async fn extend(&mut self, chunk: ChunkId, len: u32) -> Result<(), String> {
        if self.len_of(chunk) >= len {
            return Ok(());
        }
        let content = match contents(&self.store(), chunk).await {
            Ok(content) => content,
            Err(error) => return Err(format!("{chunk} cannot be read after a crash: {error}")),
        };
        let candidates = self.ghosts.get(&chunk).cloned().unwrap_or_default();
        while self.len_of(chunk) < len {
            let at = self.len_of(chunk);
            let fits = candidates.iter().find(|append| {
                append.offset == at
                    && append.sectors.chunks(4096).all(|sector| {
                        let offset = parse_footer(sector).expect("formatted").offset;
                        content.contains(&(offset, client_crc(sector)))
                    })
            });
            let Some(append) = fits else {
                return Err(format!(
                    "{chunk} has bytes from {at} to {len} that were never written"
                ));
            };
            let answer = perform(&self.model, Op::Append(append.clone())).await;
            if answer != Answer::Appended {
                return Err(format!(
                    "{chunk} has an append at {at} that the model gives {answer:?}"
                ));
            }
        }
        Ok(())
    }

    /// Compares everything.
    async fn check_all(&mut self) -> Result<(), String> {
        let store = self.store();
        let facts = |infos: Vec<chunkstore::ChunkInfo>| {
            infos.into_iter().map(|info| (info.chunk, info.stat)).collect::<Vec<_>>()
        };
        let (got, want) = (facts(store.list(None, 1000)), facts(self.model.list(None, 1000)));
        if got != want {
            return Err(format!("the store has {got:?}, the model {want:?}"));
        }
        let halves = facts(store.list(got.get(1).map(|info| info.0), 2));
        if got.len() > 1 && halves[..] != got[2..got.len().min(4)] {
            return Err(format!("a part of the list is {halves:?} of {got:?}"));
        }
        for (chunk, stat) in got {
            if stat.state.is_tombstone() {
                continue;
            }
            let (got, want) = (contents(&store, chunk).await, contents(&self.model, chunk).await);
            if got != want {
                return Err(format!("{chunk} {stat:?} holds {got:?}, the model {want:?}"));
            }
        }
        Ok(())
    }
}

fn brief(op: &Op) -> String {
    match op {
        Op::Append(append) => format!(
            "append({} at {} to {:?}, {:?}, epoch {}, create {}, repair {})",
            append.chunk,
            append.offset,
            logical_end(&append.sectors),
            Layout::of(&append.sectors),
            append.epoch,
            append.create,
            append.repair
        ),
        other => format!("{other:?}"),
    }
}
