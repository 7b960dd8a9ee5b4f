//! One log in memory behind several masters, of which one leads, and the outside view of what was
//! acknowledged: every command is followed by all checks.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use base::{ChunkId, FileId};
use runtime::Duration;
use runtime::sim::Sim;
use wire::row::Fragment;

use crate::placement::ReplicaLocation;
use crate::*;
use master_consensus::{ProposeError, ReadError, RowCopy, StateMachine};

/// State, leader, and the oracle of acknowledged bytes.
pub struct World {
    sim: Sim,
    pub state: RefCell<StreamMachine>,
    /// Rows of its checkpoints.
    rows: RefCell<RowCopy>,
    pub leader: Cell<u64>,
    term: Cell<u64>,
    pub fault_one_in: Cell<u64>,
    /// Bytes of each chunk that its writer has acknowledged to its caller.
    acknowledged: RefCell<BTreeMap<ChunkId, (FileId, Vec<u8>)>>,
    sealed: RefCell<BTreeMap<ChunkId, u32>>,
    deleted: RefCell<Vec<FileId>>,
    pub violation: RefCell<Option<String>>,
    pub commands: Cell<u64>,
}

impl World {
    pub fn new(sim: &Sim) -> Rc<World> {
        Rc::new(World {
            sim: sim.clone(),
            state: RefCell::new(StreamMachine::new(0)),
            rows: RefCell::default(),
            leader: Cell::new(1),
            term: Cell::new(1),
            fault_one_in: Cell::new(0),
            acknowledged: RefCell::default(),
            sealed: RefCell::default(),
            deleted: RefCell::default(),
            violation: RefCell::default(),
            commands: Cell::new(0),
        })
    }

    pub fn elect(&self, node: u64) {
        self.leader.set(node);
        self.term.set(self.term.get() + 1);
    }

    pub fn violate(&self, text: String) {
        self.violation.borrow_mut().get_or_insert(text);
    }

    /// A writer acknowledges bytes to its caller.
    pub fn acknowledge(&self, file: FileId, chunk: ChunkId, offset: u32, bytes: &[u8]) {
        let mut all = self.acknowledged.borrow_mut();
        let known = &mut all.entry(chunk).or_insert((file, Vec::new())).1;
        known.truncate(offset as usize);
        assert_eq!(known.len(), offset as usize, "writers acknowledge in order");
        known.extend(bytes);
        let len = known.len() as u32;
        if let Some(&sealed) = self.sealed.borrow().get(&chunk)
            && sealed < len
        {
            self.violate(format!("2: {chunk} is sealed at {sealed}, and {len} is acknowledged"));
        }
    }

    /// Bytes that must be in a file.
    pub fn acknowledged(&self, chunk: ChunkId) -> Vec<u8> {
        self.acknowledged.borrow().get(&chunk).map_or_else(Vec::new, |known| known.1.clone())
    }

    pub fn acknowledged_bytes(&self) -> usize {
        self.acknowledged.borrow().values().map(|known| known.1.len()).sum()
    }

    /// What is acknowledged of a chunk is in the one that takes its place from now on.
    fn note_converted(&self, chunk: ChunkId, shadow: ChunkId) {
        if self.state.borrow().chunk(shadow).is_none() {
            return;
        }
        let (all, sealed) = (&mut *self.acknowledged.borrow_mut(), &mut *self.sealed.borrow_mut());
        if let Some(known) = all.remove(&chunk) {
            all.insert(shadow, known);
        }
        if let Some(len) = sealed.remove(&chunk) {
            sealed.insert(shadow, len);
        }
    }

    fn check(&self) {
        let state = self.state.borrow();
        if let Err(violation) = state.check() {
            self.violate(format!("{violation:?}"));
        }
        let mut sealed = self.sealed.borrow_mut();
        for (_, stream) in state.streams() {
            for chunk in &stream.chunks {
                let Some(len) = chunk.sealed() else { continue };
                let first = *sealed.entry(chunk.id).or_insert(len);
                if first != len {
                    self.violate(format!("2: {} sealed at {first}, then {len}", chunk.id));
                }
            }
        }
        for (chunk, (file, bytes)) in &*self.acknowledged.borrow() {
            let acknowledged = bytes.len() as u32;
            // An operator gave up what is acknowledged.
            let given_up = state.stream(*file).is_some_and(|stream| stream.loss_accepted);
            if self.deleted.borrow().contains(file) || given_up {
                continue;
            }
            match state.chunk(*chunk) {
                Some((_, _, found)) if found.sealed().is_none_or(|len| len >= acknowledged) => {}
                found => self.violate(format!(
                    "1: {acknowledged} bytes of {chunk} are acknowledged, and it is {:?}",
                    found.map(|found| found.2.clone())
                )),
            }
        }
    }

    /// Seals go out at the committed length only.
    pub fn check_seal(&self, chunk: ChunkId, len: u32) {
        let state = self.state.borrow();
        let sealed = state.chunk(chunk).map(|found| found.2.sealed());
        if sealed.is_some_and(|sealed| sealed != Some(len)) {
            self.violate(format!("2: a seal of {chunk} at {len}, committed is {sealed:?}"));
        }
    }

    /// The fragment that a replica of a chunk is on record with.
    pub fn fragment(&self, chunk: ChunkId, place: ReplicaLocation) -> Option<Fragment> {
        let state = self.state.borrow();
        let found = state.on_record(chunk)?;
        let slot = found.slots().find(|slot| state.place(slot.place) == place)?;
        found.fragment(slot)
    }

    /// Copies go to places on record only, each of the fragment that is on record there.
    pub fn check_copy(&self, chunk: ChunkId, place: ReplicaLocation, fragment: Option<Fragment>) {
        let known = self.fragment(chunk, place);
        if fragment != known && self.state.borrow().refers_to(chunk, place) {
            self.violate(format!("{chunk} at {place:?} is {known:?}, and made as {fragment:?}"));
        }
        let state = self.state.borrow();
        let known = state.refers_to(chunk, place) || state.dead(chunk, place).is_some();
        if !known && state.on_record(chunk).is_some() {
            self.violate(format!("5: a copy of {chunk} goes to {place:?}, not on record"));
        }
    }

    /// Deletion never removes what a file refers to.
    pub fn check_delete(&self, chunk: ChunkId, place: ReplicaLocation) {
        if self.state.borrow().refers_to(chunk, place) {
            self.violate(format!("5: {chunk} at {place:?} is deleted, and referred to"));
        }
    }

    pub fn was_deleted(&self, file: FileId) -> bool {
        self.deleted.borrow().contains(&file)
    }

    pub fn note_deleted(&self, file: FileId) {
        self.deleted.borrow_mut().push(file);
    }
}

/// A master's handle of the log.
#[derive(Clone)]
pub struct MemoryLog {
    pub node: u64,
    pub world: Rc<World>,
}

impl MemoryLog {
    async fn pause(&self) {
        let pause = self.world.sim.with_rng(|rng| rng.between(20, 800));
        self.world.sim.sleep(Duration::from_micros(pause)).await;
    }

    fn leads(&self) -> bool {
        self.world.leader.get() == self.node
    }

    fn fails(&self) -> bool {
        let odds = self.world.fault_one_in.get();
        self.world.sim.with_rng(|rng| rng.one_in(odds))
    }
}

impl Log for MemoryLog {
    async fn propose(&self, command: Vec<u8>) -> Result<Vec<u8>, ProposeError> {
        self.pause().await;
        if !self.leads() {
            return Err(ProposeError::NotLeader { hint: None });
        }
        if self.fails() {
            return Err(ProposeError::Unknown);
        }
        let world = &self.world;
        let answer = world.state.borrow_mut().apply(world.commands.get(), &command);
        let answer = answer.expect("it decodes");
        world.commands.set(world.commands.get() + 1);
        match Command::decode(&command).expect("it was encoded here").action {
            Action::Delete { file, .. } => world.note_deleted(file),
            Action::EndConversion { chunk, shadow, .. } => world.note_converted(chunk, shadow),
            _ => {}
        }
        if std::env::var("CRATON_TRACE").is_ok() {
            let text = format!("{:?}", Command::decode(&command).unwrap().action);
            println!("{:?} {} -> {:?}", world.sim.elapsed(), text, Outcome::decode(&answer));
        }
        world.check();
        if world.sim.with_rng(|rng| rng.one_in(50)) {
            let state = &mut *world.state.borrow_mut();
            world.rows.borrow_mut().follow(state);
            *state = world.rows.borrow().load(state).expect("our own rows");
        }
        self.pause().await;
        if self.fails() { Err(ProposeError::Unknown) } else { Ok(answer) }
    }

    async fn read_index(&self) -> Result<(), ReadError> {
        self.pause().await;
        if self.leads() { Ok(()) } else { Err(ReadError::NotLeader { hint: None }) }
    }

    fn leading(&self) -> Option<u64> {
        self.leads().then(|| self.world.term.get())
    }

    fn with_state<T>(&self, look: impl FnOnce(&StreamMachine) -> T) -> T {
        look(&self.world.state.borrow())
    }
}
