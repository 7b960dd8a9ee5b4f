//! Acts and observations of clients of volumes: each block is linearizable, and an attachment that
//! is over has no effect.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use block_nbd::protocol::Command;
use block_volume::geometry::{Extent, Geometry};
use block_volume::ids::VolumeId;
use block_volume::limits::BLOCK;
use runtime::sim::Sim;

use super::nbd::Connection;
use super::stack::Stack;
use crate::register::{self, Did, Operation, Sure};

/// The client of an operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct By {
    pub(super) volume: VolumeId,
    pub(super) geometry: Geometry,
    /// Of two exclusive holders, the later one has the larger epoch.
    pub(super) epoch: u64,
    /// When it began to open the volume.
    pub(super) opened: Duration,
}

/// A request that succeeded, for the judgement of attachments.
struct Acted {
    volume: VolumeId,
    segment: u32,
    epoch: u64,
    /// It changed something.
    change: bool,
    start: Duration,
    end: Duration,
}

/// All that clients did.
pub(super) struct Record {
    sim: Sim,
    histories: RefCell<BTreeMap<(VolumeId, u64), Vec<Operation>>>,
    acted: RefCell<Vec<Acted>>,
    values: Cell<u64>,
    /// Changes that have begun and not ended.
    changing: Cell<usize>,
    /// Lengths of volumes that no request changes now, and since when.
    lengths: RefCell<BTreeMap<VolumeId, (u64, Duration)>>,
    violation: RefCell<Option<String>>,
}

/// Blocks under a byte range.
pub(super) fn extent(blocks: &Range<u64>) -> Extent {
    Extent { offset: blocks.start * BLOCK, len: (blocks.end - blocks.start) * BLOCK }
}

/// The bytes of blocks that a write gives a value.
pub(super) fn content(value: u64, blocks: &Range<u64>) -> Vec<u8> {
    value.to_le_bytes().repeat(extent(blocks).len as usize / 8)
}

/// The value that a block has; an error if it is half of a write.
fn value_of((volume, block): (VolumeId, u64), content: &[u8]) -> Result<u64, String> {
    if content.chunks(8).any(|word| word != &content[..8]) {
        return Err(format!("{volume}, block {block}: half of a write"));
    }
    Ok(u64::from_le_bytes(content[..8].try_into().expect("8 bytes")))
}

impl Record {
    pub(super) fn new(sim: &Sim) -> Rc<Record> {
        Rc::new(Record {
            sim: sim.clone(),
            histories: RefCell::default(),
            acted: RefCell::default(),
            values: Cell::new(0),
            changing: Cell::new(0),
            lengths: RefCell::default(),
            violation: RefCell::default(),
        })
    }

    /// A value that no other write has.
    pub(super) fn value(&self) -> u64 {
        self.values.set(self.values.get() + 1);
        self.values.get()
    }

    /// A write or a read of whole blocks begins. It may happen from now on.
    pub(super) fn begin(self: &Rc<Self>, by: By, blocks: &Range<u64>, did: Did) -> Pending {
        let (record, blocks, start) = (self.clone(), blocks.clone(), self.sim.elapsed());
        self.changing.set(self.changing.get() + usize::from(did.changes()));
        Pending { record, by, blocks, did, start, ended: Cell::new(false) }
    }

    /// Reads or writes a block over NBD. What a read must not have shown is a violation; an error is
    /// one of the request.
    pub(super) async fn act(
        self: &Rc<Self>,
        (stack, by): (&Stack, By),
        to: &mut Connection,
        block: u64,
        reads: bool,
    ) -> Result<(), String> {
        let blocks = block..block + 1;
        if reads {
            let pending = self.begin(by, &blocks, Did::Read(0));
            let data = to.request(Command::Read, 0, extent(&blocks), &[]).await?;
            if let Err(what) = pending.saw(&data) {
                stack.violation(what);
            }
            return Ok(());
        }
        let value = self.value();
        let pending = self.begin(by, &blocks, Did::Write(value));
        to.request(Command::Write, 0, extent(&blocks), &content(value, &blocks)).await?;
        pending.done();
        Ok(())
    }

    /// Since the simulation began.
    pub(super) fn now(&self) -> Duration {
        self.sim.elapsed()
    }

    /// Content of a block in a snapshot that was asked for and there at some times: as a read
    /// between them. An error if it is half of a write.
    pub(super) fn cut(
        &self,
        (volume, block): (VolumeId, u64),
        (start, end): (Duration, Duration),
        data: &[u8],
    ) -> Result<(), String> {
        let did = Did::Read(value_of((volume, block), data)?);
        self.note(volume, block, Operation { did, sure: Sure::Happened, start, end });
        Ok(())
    }

    /// A volume has this length from now on; its length is not known while a request changes it.
    pub(super) fn set_length(&self, volume: VolumeId, bytes: Option<u64>) {
        let mut lengths = self.lengths.borrow_mut();
        match bytes {
            Some(bytes) => lengths.insert(volume, (bytes, self.now())),
            None => lengths.remove(&volume),
        };
    }

    /// A block was cut off by a request that was asked for at `start`, and is in use again: it was
    /// gone for each client at some time between.
    pub(super) fn cleared(&self, (volume, block): (VolumeId, u64), start: Duration) {
        let (did, sure, end) = (Did::Write(0), Sure::Happened, self.now());
        self.note(volume, block, Operation { did, sure, start, end });
    }

    /// A request on a block was answered: the volume had it at some time since its client, of now,
    /// has opened it. One that was there before may go on for longer, when no manager reaches it.
    fn had(&self, By { volume, opened, .. }: By, block: u64) {
        if let Some(&(bytes, since)) = self.lengths.borrow().get(&volume)
            && opened > since
            && block * BLOCK >= bytes
        {
            let text = format!("{volume} has {bytes} bytes since {since:?}, block {block} answers");
            self.violation.borrow_mut().get_or_insert(text);
        }
    }

    /// Changes that are under way.
    pub(super) fn changing(&self) -> usize {
        self.changing.get()
    }

    fn note(&self, volume: VolumeId, block: u64, operation: Operation) {
        self.histories.borrow_mut().entry((volume, block)).or_default().push(operation);
    }

    /// Requests of a volume that succeeded, block by block, since epoch `since`.
    pub(super) fn answered(&self, volume: VolumeId, since: u64) -> usize {
        let acted = self.acted.borrow();
        acted.iter().filter(|acted| acted.volume == volume && acted.epoch >= since).count()
    }

    /// An error unless all of it is allowed. Of volumes that are `shared`, several attachments act.
    pub(super) fn judge(&self, shared: impl Fn(VolumeId) -> bool) -> Result<(), String> {
        if let Some(violation) = self.violation.take() {
            return Err(violation);
        }
        let acted = self.acted.borrow();
        self.sim.note(acted.len() as u64);
        for newer in acted.iter().filter(|acted| !shared(acted.volume)) {
            // A previous owner may answer reads while its lease lasts, to any client.
            let is_late = |old: &&Acted| {
                old.change
                    && (old.volume, old.segment) == (newer.volume, newer.segment)
                    && old.epoch < newer.epoch
                    && old.start > newer.end
            };
            if let Some(old) = acted.iter().find(is_late) {
                return Err(format!(
                    "attachment {} of {} acts after {} has",
                    old.epoch, old.volume, newer.epoch
                ));
            }
        }
        for ((volume, block), history) in self.histories.borrow().iter() {
            register::check(history.clone())
                .map_err(|what| format!("{volume}, block {block}: {what}"))?;
        }
        Ok(())
    }
}

/// An operation whose end no task may get to see: then a change has perhaps happened.
pub(super) struct Pending {
    record: Rc<Record>,
    by: By,
    blocks: Range<u64>,
    did: Did,
    start: Duration,
    ended: Cell<bool>,
}

impl Pending {
    /// An operation that has happened for certain to one of its blocks.
    fn happened(&self, block: u64, did: Did) {
        self.ended.set(true);
        let (start, end, record) = (self.start, self.record.sim.elapsed(), &self.record);
        let By { volume, geometry, epoch, .. } = self.by;
        record.had(self.by, block);
        record.note(volume, block, Operation { did, sure: Sure::Happened, start, end });
        let segment = geometry.locate(block * BLOCK).0.get();
        let change = did.changes();
        record.acted.borrow_mut().push(Acted { volume, segment, epoch, change, start, end });
    }

    /// The change succeeded.
    pub(super) fn done(&self) {
        self.blocks.clone().for_each(|block| self.happened(block, self.did));
    }

    /// The read was answered with this; an error if a block is half of a write.
    pub(super) fn saw(&self, data: &[u8]) -> Result<(), String> {
        for (block, content) in self.blocks.clone().zip(data.chunks(BLOCK as usize)) {
            let value = value_of((self.by.volume, block), content)?;
            self.happened(block, Did::Read(value));
        }
        Ok(())
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if !self.did.changes() {
            return;
        }
        self.record.changing.set(self.record.changing.get() - 1);
        if self.ended.get() {
            return;
        }
        let (start, did, sure) = (self.start, self.did, Sure::Perhaps);
        for block in self.blocks.clone() {
            self.record.note(self.by.volume, block, Operation { did, sure, start, end: start });
        }
    }
}
