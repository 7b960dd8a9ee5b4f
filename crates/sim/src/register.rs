//! Linearizability of registers (invariant 7): the blocks of a volume, judged from outside.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Operation on a register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Did {
    /// It was given this value.
    Write(u64),
    /// This value was seen.
    Read(u64),
}

impl Did {
    /// True of a write.
    pub fn changes(self) -> bool {
        matches!(self, Did::Write(_))
    }
}

/// Certainty of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sure {
    /// It happened between its start and its end.
    Happened,
    /// It may have happened, at any time since its start.
    Perhaps,
}

/// One operation.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// The operation.
    pub did: Did,
    /// Its certainty.
    pub sure: Sure,
    /// When it began.
    pub start: Duration,
    /// When it ended.
    pub end: Duration,
}

/// States of the search at most: a history that needs more has too many operations at a time.
const STATES_MAX: usize = 1 << 18;

/// Operations that are printed before and behind the one that cannot be explained.
const NEAR: usize = 16;

/// State of the search for an order.
#[derive(Clone)]
struct Node {
    value: u64,
    /// One bit for each operation that has happened.
    done: Vec<u64>,
    /// Sure operations that have happened.
    count: usize,
    /// No operation below has not happened.
    first: usize,
}

impl Node {
    fn has(&self, index: usize) -> bool {
        self.done[index / 64] >> (index % 64) & 1 == 1
    }

    fn happen(&mut self, index: usize, operation: &Operation) {
        self.done[index / 64] |= 1 << (index % 64);
        self.count += usize::from(operation.is_sure());
        if let Did::Write(value) = operation.did {
            self.value = value;
        }
    }
}

impl Operation {
    fn is_sure(&self) -> bool {
        self.sure == Sure::Happened
    }
}

/// A history in the order of starts, and what is known of its values.
struct Search {
    history: Vec<Operation>,
    read: BTreeSet<u64>,
    written: BTreeMap<u64, usize>,
}

impl Search {
    fn new(mut history: Vec<Operation>) -> Search {
        let seen = |operation: &Operation| match operation.did {
            Did::Read(value) => Some(value),
            Did::Write(_) => None,
        };
        let read: BTreeSet<u64> = history.iter().filter_map(seen).collect();
        // Writes that need not have happened and were never seen explain nothing.
        history.retain(|operation| match operation.did {
            Did::Write(value) => operation.is_sure() || read.contains(&value),
            Did::Read(_) => true,
        });
        history.sort_by_key(|operation| operation.start);
        // It begins with 0.
        let mut written = BTreeMap::from([(0, 1)]);
        for operation in &history {
            if let Did::Write(value) = operation.did {
                *written.entry(value).or_default() += 1;
            }
        }
        Search { history, read, written }
    }

    fn open<'a>(&'a self, node: &'a Node) -> impl Iterator<Item = (usize, &'a Operation)> {
        let all = self.history.iter().enumerate().skip(node.first);
        all.filter(|(index, _)| !node.has(*index))
    }

    /// The next operation began before any that must still happen has ended; `but` one.
    fn limit(&self, node: &Node, but: Option<usize>) -> Duration {
        let ends = self.open(node).filter(|(index, it)| it.is_sure() && Some(*index) != but);
        ends.map(|(_, it)| it.end).min().unwrap_or(Duration::MAX)
    }

    /// Reads of the present value happen as soon as they may: they exclude no other order.
    fn settle(&self, node: &mut Node) {
        loop {
            let limit = self.limit(node, None);
            let mut open = self.open(node).take_while(|(_, it)| it.start <= limit);
            let next = open.find(|(_, it)| it.did == Did::Read(node.value));
            let Some(index) = next.map(|(index, _)| index) else { break };
            drop(open);
            node.happen(index, &self.history[index]);
        }
        let left = (node.first..self.history.len()).find(|&index| !node.has(index));
        node.first = left.unwrap_or(self.history.len());
    }

    /// A write that no read has seen, and that could not be taken for another.
    fn is_unseen(&self, operation: &Operation, value: u64) -> bool {
        operation.is_sure() && !self.read.contains(&value) && self.written[&value] == 1
    }

    /// Whether a write can come next in an order worth looking at: one whose value was seen
    /// comes right before a read that sees it.
    fn is_next(&self, node: &Node, index: usize, operation: &Operation, value: u64) -> bool {
        if self.is_unseen(operation, value) || operation.is_sure() && self.written[&value] > 1 {
            return true;
        }
        let limit = self.limit(node, Some(index));
        let mut reads = self.open(node).take_while(|(_, it)| it.start <= limit);
        reads.any(|(_, it)| it.did == Did::Read(value))
    }

    /// Nodes that may follow. Unseen writes that may happen do so right before another write.
    fn follow(&self, node: &Node) -> Vec<Node> {
        let limit = self.limit(node, None);
        let enabled = self.open(node).take_while(|(_, it)| it.start <= limit);
        let writes = enabled.filter_map(|(index, it)| match it.did {
            Did::Write(value) => Some((index, it, value)),
            Did::Read(_) => None,
        });
        let mut writes: Vec<_> = writes.collect();
        // The last one is tried first: what is sure before what is not, in order of time.
        writes.sort_by_key(|(index, it, _)| (it.is_sure(), std::cmp::Reverse((it.end, *index))));
        let mut found = Vec::new();
        for &(index, operation, value) in &writes {
            if !self.is_next(node, index, operation, value) {
                continue;
            }
            let mut after = node.clone();
            for &(other, it, its) in &writes {
                if other != index && self.is_unseen(it, its) {
                    after.happen(other, it);
                }
            }
            after.happen(index, operation);
            self.settle(&mut after);
            found.push(after);
        }
        found
    }
}

/// An error unless there is an order of all operations, within their times, that a register with 0
/// at first could have had: Wing and Gong's search, with a memory of visited states.
pub fn check(history: Vec<Operation>) -> Result<(), String> {
    let search = Search::new(history);
    let known = search.history.iter().filter(|operation| operation.is_sure()).count();
    let done = vec![0; search.history.len().div_ceil(64)];
    let mut start = Node { value: 0, done, count: 0, first: 0 };
    search.settle(&mut start);
    let (mut seen, mut deepest, mut stack) = (BTreeSet::new(), start.clone(), vec![start]);
    let mut undecided = false;
    while let Some(node) = stack.pop() {
        if node.count == known {
            return Ok(());
        }
        if seen.len() > STATES_MAX {
            undecided = true;
            break;
        }
        if node.count > deepest.count {
            deepest = node.clone();
        }
        for after in search.follow(&node) {
            if seen.insert((after.value, after.done.clone())) {
                stack.push(after);
            }
        }
    }
    let from = deepest.first.saturating_sub(NEAR);
    let near = search.history.iter().enumerate().skip(from).take(2 * NEAR);
    let near = near.map(|(index, operation)| {
        let mark = if deepest.has(index) { "done" } else { "left" };
        format!("{mark} {operation:?}")
    });
    let near: Vec<String> = near.collect();
    let verdict = if undecided { "too much at a time to decide" } else { "not linearizable" };
    Err(format!(
        "{verdict}: no order explains more than {} of {} operations; then it has {}; around \
         there:\n{}",
        deepest.count,
        known,
        deepest.value,
        near.join("\n")
    ))
}
