//! [`Oracle`]: checks the answers of one segment's owners, block by block, from outside.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use block_volume::contract::Clear;
use block_volume::limits::BLOCK;

/// Effect of a request on a range.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// Writes these bytes at its start.
    Write(Vec<u8>),
    /// Clears it.
    Clear(Clear, u64),
}

impl Change {
    /// Bytes that it changes.
    pub fn len(&self) -> u64 {
        match self {
            Change::Write(data) => data.len() as u64,
            Change::Clear(_, len) => *len,
        }
    }

    /// True when it changes none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A block's content. `None` for bytes is all zeroes.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Content {
    bytes: Option<Rc<Vec<u8>>>,
}

/// State of a change of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    /// Under way.
    Open,
    /// Answered with success.
    Done,
    /// Nothing was changed.
    Refused,
    /// The outcome is not known.
    Unknown,
}

/// A change of one block.
#[derive(Clone, Debug)]
struct Op {
    request: u64,
    owner: u64,
    fate: Fate,
    /// Bytes of the block that it sets; zeroes if there are none.
    range: Range<usize>,
    data: Option<Rc<Vec<u8>>>,
}

/// The history of one block. Changes of a block take effect in the order of their requests.
#[derive(Debug)]
struct Block {
    ops: Vec<Op>,
    /// Its possible contents at the last read: content, and the number of changes in it.
    states: Vec<(usize, Content)>,
    /// Number of reads so far.
    seen: u64,
}

/// A change, until its outcome is reported.
#[derive(Debug)]
pub struct Ticket {
    request: u64,
    blocks: Range<u64>,
}

/// A read under way, with the changes that it has to show of each of its blocks.
#[derive(Debug)]
pub struct Look {
    offset: u64,
    len: u64,
    blocks: Vec<Before>,
}

/// State of a block when a read began.
#[derive(Debug)]
struct Before {
    /// Changes that the read has to show.
    must: usize,
    states: Vec<(usize, Content)>,
    seen: u64,
}

#[derive(Debug)]
struct Facts {
    blocks: Vec<Block>,
    requests: u64,
    /// Epoch of the newest owner.
    newest: u64,
}

/// The blocks of a segment, as all requests and answers allow them, reported by one of its owners.
/// Clones share them.
///
/// It finds: acknowledged changes that are gone, changes that come back, parts of blocks, other
/// blocks' content, reads that are older than they may be, outcomes that change after they were
/// seen, acknowledgements of an owner that has a successor.
#[derive(Clone, Debug)]
pub struct Oracle {
    facts: Rc<RefCell<Facts>>,
    /// Epoch of the owner that reports.
    owner: u64,
}

impl Content {
    fn zero() -> Content {
        Content { bytes: None }
    }

    fn of(bytes: &[u8]) -> Content {
        let zero = bytes.iter().all(|byte| *byte == 0);
        Content { bytes: (!zero).then(|| Rc::new(bytes.to_vec())) }
    }

    fn with(&self, op: &Op) -> Content {
        let whole = op.range.len() as u64 == BLOCK;
        match &op.data {
            Some(data) if whole => Content::of(data),
            None if whole => Content::zero(),
            data => {
                let zero = || vec![0; BLOCK as usize];
                let mut bytes = self.bytes.as_deref().cloned().unwrap_or_else(zero);
                match data {
                    Some(data) => bytes[op.range.clone()].copy_from_slice(data),
                    None => bytes[op.range.clone()].fill(0),
                }
                Content::of(&bytes)
            }
        }
    }
}

impl Block {
    /// All possible contents since a moment, with the number of changes in each.
    fn reach(&self, before: &Before) -> Vec<(usize, Content)> {
        let mut found: Vec<(usize, Content)> = Vec::new();
        let mut open = before.states.clone();
        while let Some((at, content)) = open.pop() {
            if found.iter().any(|other| (other.0, &other.1) == (at, &content)) {
                continue;
            }
            found.push((at, content.clone()));
            let Some(op) = self.ops.get(at) else { continue };
            if op.fate != Fate::Refused {
                open.push((at + 1, content.with(op)));
            }
            if matches!(op.fate, Fate::Refused | Fate::Unknown) {
                open.push((at + 1, content));
            }
        }
        found.retain(|(at, _)| *at >= before.must);
        found
    }
}

impl Oracle {
    /// The oracle of an empty segment of `bytes` bytes.
    pub fn new(bytes: u64) -> Oracle {
        let block = || Block { ops: Vec::new(), states: vec![(0, Content::zero())], seen: 0 };
        let blocks = (0..bytes.div_ceil(BLOCK)).map(|_| block()).collect();
        let facts = Facts { blocks, requests: 0, newest: 0 };
        Oracle { facts: Rc::new(RefCell::new(facts)), owner: 0 }
    }

    /// The same, for the owner whose opening has just returned. Unanswered changes of previous
    /// owners may have taken effect; changes that they begin from now on may not; their reads may
    /// be stale.
    pub fn owned_by(&self, epoch: u64) -> Oracle {
        let facts = &mut *self.facts.borrow_mut();
        facts.newest = facts.newest.max(epoch);
        let newest = facts.newest;
        let ops = facts.blocks.iter_mut().flat_map(|block| &mut block.ops);
        for op in ops.filter(|op| op.fate == Fate::Open && op.owner < newest) {
            op.fate = Fate::Unknown;
        }
        Oracle { facts: self.facts.clone(), owner: epoch }
    }

    /// Notes a request right before its first poll.
    pub fn begin(&self, offset: u64, change: &Change) -> Ticket {
        let facts = &mut *self.facts.borrow_mut();
        facts.requests += 1;
        let (request, end) = (facts.requests, offset + change.len());
        let blocks = offset / BLOCK..end.div_ceil(BLOCK);
        for lba in blocks.clone() {
            let (from, to) = ((lba * BLOCK).max(offset), ((lba + 1) * BLOCK).min(end));
            let range = (from - lba * BLOCK) as usize..(to - lba * BLOCK) as usize;
            let data = match change {
                Change::Write(data) => {
                    let part = &data[(from - offset) as usize..(to - offset) as usize];
                    Some(Rc::new(part.to_vec()))
                }
                Change::Clear(..) => None,
            };
            let owner = self.owner;
            let fate = if owner < facts.newest { Fate::Unknown } else { Fate::Open };
            facts.blocks[lba as usize].ops.push(Op { request, owner, fate, range, data });
        }
        Ticket { request, blocks }
    }

    /// Notes the outcome of a request: success, nothing changed, or not known.
    pub fn end(&self, ticket: &Ticket, outcome: Result<(), bool>) {
        let facts = &mut *self.facts.borrow_mut();
        for lba in ticket.blocks.clone() {
            let block = &mut facts.blocks[lba as usize];
            let mut ops = block.ops.iter_mut().rev();
            let op = ops.find(|op| op.request == ticket.request).expect("it was begun");
            op.fate = match outcome {
                Ok(()) => Fate::Done,
                Err(true) => Fate::Refused,
                Err(false) => Fate::Unknown,
            };
        }
    }

    /// Notes that a read is about to begin.
    pub fn look(&self, offset: u64, len: u64) -> Look {
        let facts = self.facts.borrow();
        let blocks = (offset / BLOCK..(offset + len).div_ceil(BLOCK)).map(|lba| {
            let Block { ops, states, seen } = &facts.blocks[lba as usize];
            let done = ops.iter().rposition(|op| op.fate == Fate::Done);
            Before { must: done.map_or(0, |last| last + 1), states: states.clone(), seen: *seen }
        });
        Look { offset, len, blocks: blocks.collect() }
    }

    /// Checks the content that a read has shown.
    pub fn saw(&self, look: &Look, bytes: &[u8]) -> Result<(), String> {
        let facts = &mut *self.facts.borrow_mut();
        if bytes.len() as u64 != look.len {
            return Err(format!("{} bytes instead of {}", bytes.len(), look.len));
        }
        if self.owner < facts.newest {
            return Ok(()); // It may be stale.
        }
        let (end, first) = (look.offset + look.len, look.offset / BLOCK);
        for (n, before) in look.blocks.iter().enumerate() {
            let lba = first + n as u64;
            let (from, to) = ((lba * BLOCK).max(look.offset), ((lba + 1) * BLOCK).min(end));
            let part = &bytes[(from - look.offset) as usize..(to - look.offset) as usize];
            let range = (from - lba * BLOCK) as usize..(to - lba * BLOCK) as usize;
            let block = &mut facts.blocks[lba as usize];
            let mut states = block.reach(before);
            states.retain(|(_, content)| match &content.bytes {
                Some(bytes) => bytes[range.clone()] == *part,
                None => part.iter().all(|byte| *byte == 0),
            });
            if states.is_empty() {
                let tail = &block.ops[block.ops.len().saturating_sub(6)..];
                let text = |op: &Op| {
                    let first = op.data.as_ref().map(|data| tag(data));
                    format!("{} {:?} {:?} {first:?}", op.request, op.fate, op.range)
                };
                let last: Vec<_> = tail.iter().map(text).collect();
                return Err(format!(
                    "block {lba} shows {:?} in {range:?}; its last requests: {last:?}",
                    tag(part)
                ));
            }
            // Of two reads under way at once, the one that ends first may show the later content.
            if block.seen == before.seen {
                (block.states, block.seen) = (states, before.seen + 1);
            }
        }
        Ok(())
    }

    /// Notes a successor's first read, of everything: from here on the outcome of earlier changes
    /// is settled.
    pub fn settle(&self, bytes: &[u8]) -> Result<(), String> {
        let look = self.look(0, bytes.len() as u64);
        self.saw(&look, bytes)?;
        let facts = &mut *self.facts.borrow_mut();
        for (lba, block) in facts.blocks.iter_mut().enumerate() {
            if block.ops.iter().any(|op| op.fate == Fate::Open) {
                return Err(format!("block {lba} is settled while a request is under way"));
            }
            let (_, content) = block.states.pop().expect("judged just now");
            block.states = vec![(0, content)];
            block.ops.clear();
        }
        Ok(())
    }

    /// Bytes of the segment.
    pub fn bytes(&self) -> u64 {
        self.facts.borrow().blocks.len() as u64 * BLOCK
    }
}

/// The first bytes of a block's content.
fn tag(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(byte: u8) -> Vec<u8> {
        vec![byte; BLOCK as usize]
    }

    fn write(byte: u8) -> Change {
        Change::Write(block(byte))
    }

    #[test]
    fn oracle_accepts_allowed_histories_and_refuses_others() {
        let oracle = Oracle::new(2 * BLOCK);
        let sees = |look: &Look, byte| oracle.saw(look, &block(byte));
        let first = oracle.begin(0, &write(1));
        let look = oracle.look(0, BLOCK);
        assert!(sees(&look, 0).is_ok() && sees(&look, 2).is_err());
        oracle.end(&first, Ok(()));
        let late = oracle.look(0, BLOCK);
        assert!(sees(&late, 0).is_err() && sees(&late, 1).is_ok());
        assert!(sees(&look, 0).is_ok()); // It began before.
        assert!(sees(&oracle.look(0, BLOCK), 0).is_err());
        let second = oracle.begin(0, &write(2));
        let (slow, look) = (oracle.look(0, BLOCK), oracle.look(0, BLOCK));
        assert!(sees(&look, 2).is_ok());
        assert!(sees(&oracle.look(0, BLOCK), 1).is_err()); // It has been seen since.
        assert!(sees(&slow, 1).is_ok()); // It was under way with the one that saw it.
        oracle.end(&second, Ok(()));
        let third = oracle.begin(0, &write(1));
        oracle.end(&third, Ok(()));
        let refused = oracle.begin(0, &write(3));
        oracle.end(&refused, Err(true));
        oracle.begin(0, &Change::Clear(Clear::Trim, 10));
        let oracle = oracle.owned_by(1);
        assert!(sees(&late, 3).is_ok()); // Its owner has a successor.
        assert!(oracle.saw(&late, &block(3)).is_err());
        let mut cut = block(1);
        cut[..10].fill(0);
        let whole = |first: &[u8]| [first, &block(0)].concat();
        assert!(oracle.settle(&whole(&cut)).is_ok());
        // Settled: the old one does not come back.
        assert!(oracle.settle(&whole(&block(1))).is_err());
        assert!(oracle.saw(&oracle.look(5, 10), &[[0; 5], [1; 5]].concat()).is_ok());
    }
}
