//! [`Oracle`]: judges, from outside of one table, what its owners read and which answers they get.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use table::Batch;

use super::data::{comparable, same};

/// Content of a table.
pub type State = BTreeMap<Vec<u8>, Vec<u8>>;

/// A state that a table may have: one batch behind another one. 0 is the empty table.
pub type Node = u64;

/// A key and its new value, none for a deletion.
type Op = (Vec<u8>, Option<Vec<u8>>);

struct Change {
    parent: Node,
    owner: u32,
    ops: Vec<Op>,
}

struct Facts {
    /// Change `n` leads to node `n + 1`.
    changes: Vec<Change>,
    /// The furthest node that is acknowledged, or was found by an opening.
    acked: Node,
    /// The newest owner that has reported what it found.
    owner: u32,
    /// The state asked for last.
    cached: (Node, State),
}

/// All batches that were ever submitted, as a tree: each knows the one that its owner had
/// submitted before. Every batch writes its own node under [`Oracle::MARK`], so a table always
/// shows which state it claims to have. Clones share it.
///
/// It finds: acknowledged changes that are gone, parts of batches, batches in another order,
/// acknowledgements of an owner that has a successor, reads that are older than they may be,
/// scans that are no consistent cut.
#[derive(Clone)]
pub struct Oracle(Rc<RefCell<Facts>>);

impl Oracle {
    /// The key under which a table holds its node; below all others.
    pub const MARK: &'static [u8] = b"\0mark";

    /// The oracle of an empty table.
    pub fn new() -> Oracle {
        let facts = Facts { changes: Vec::new(), acked: 0, owner: 0, cached: (0, State::new()) };
        Oracle(Rc::new(RefCell::new(facts)))
    }

    /// The oracle of a table that shows some of this one's keys, and the mark: each batch with what it
    /// changes there, under the same node.
    pub fn forked(&self, shows: impl Fn(&[u8]) -> bool) -> Oracle {
        let facts = self.0.borrow();
        let changes = facts.changes.iter().map(|change| {
            let is_shown = |op: &&Op| op.0 == Oracle::MARK || shows(&op.0);
            let ops = change.ops.iter().filter(is_shown).cloned().collect();
            Change { parent: change.parent, owner: change.owner, ops }
        });
        let (acked, owner, cached) = (facts.acked, facts.owner, (0, State::new()));
        let forked = Facts { changes: changes.collect(), acked, owner, cached };
        Oracle(Rc::new(RefCell::new(forked)))
    }

    /// Notes a batch that an owner is about to submit behind `parent`: adds its mark to it.
    pub fn submit(&self, owner: u32, parent: Node, batch: &mut Batch) -> Node {
        let facts = &mut *self.0.borrow_mut();
        let node = facts.changes.len() as Node + 1;
        batch.put(Oracle::MARK, &node.to_le_bytes());
        let owned = |value: &[u8]| value.to_vec();
        let ops = batch.changes().map(|(key, value)| (key.to_vec(), value.map(owned))).collect();
        facts.changes.push(Change { parent, owner, ops });
        node
    }

    /// Notes that a batch was acknowledged to an owner. All that a newer one has found must have
    /// it: the acknowledgement may come late, the batch may not.
    pub fn acked(&self, owner: u32, node: Node) -> Result<(), String> {
        let facts = &mut *self.0.borrow_mut();
        if facts.is_behind(node, facts.acked) {
            return Ok(());
        }
        if !facts.is_behind(facts.acked, node) {
            return Err(format!("node {node} is acknowledged beside node {}", facts.acked));
        }
        if owner < facts.owner {
            let now = facts.owner;
            return Err(format!("owner {owner} was given node {node}, which {now} did not find"));
        }
        facts.acked = node;
        Ok(())
    }

    /// Notes what an opening has found: the node of the table as it was when it returned.
    pub fn opened(&self, owner: u32, node: Node) -> Result<(), String> {
        let facts = &mut *self.0.borrow_mut();
        let acked = facts.acked;
        if facts.is_behind(acked, node) {
            facts.acked = node; // What it has found is there to stay.
            facts.owner = facts.owner.max(owner);
            return Ok(());
        }
        // A newer owner may have gone on before this one had time to read, or have found what this one has
        // submitted and got no answer for.
        let newer = facts.next_owner(node, acked).max(facts.owner);
        if facts.is_behind(node, acked) && newer > owner {
            return Ok(());
        }
        Err(format!(
            "owner {owner} found node {node}, but {acked} is acknowledged, owner {newer} has found it"
        ))
    }

    /// The newest node that is acknowledged.
    pub fn last_acked(&self) -> Node {
        self.0.borrow().acked
    }

    /// True when `node` is `before` or comes behind it.
    pub fn is_behind(&self, before: Node, node: Node) -> bool {
        self.0.borrow().is_behind(before, node)
    }

    /// The node in a value of [`Oracle::MARK`].
    pub fn node_of(value: Option<&[u8]>) -> Result<Node, String> {
        match value {
            None => Ok(0),
            Some(bytes) => {
                let bytes = bytes.try_into().map_err(|_| format!("{bytes:?} is no mark"))?;
                Ok(Node::from_le_bytes(bytes))
            }
        }
    }

    /// The content of a table at a node.
    pub fn with_state<T>(&self, node: Node, look: impl FnOnce(&State) -> T) -> T {
        let facts = &mut *self.0.borrow_mut();
        let mut path = Vec::new();
        let mut at = node;
        while at != 0 && at != facts.cached.0 {
            path.push(at);
            at = facts.changes[at as usize - 1].parent;
        }
        if at != facts.cached.0 {
            facts.cached = (0, State::new());
        }
        let (mut at, mut state) = std::mem::take(&mut facts.cached);
        for &step in path.iter().rev() {
            for (key, value) in &facts.changes[step as usize - 1].ops {
                match value {
                    Some(value) => state.insert(key.clone(), value.clone()),
                    None => state.remove(key),
                };
            }
            at = step;
        }
        facts.cached = (at, state);
        look(&facts.cached.1)
    }

    /// Compares entries in order with those of a node that `within` lets through.
    pub fn compare(
        &self,
        node: Node,
        entries: &[(Vec<u8>, Vec<u8>)],
        reverse: bool,
        within: impl Fn(&[u8]) -> bool,
    ) -> Result<(), String> {
        self.with_state(node, |state| {
            let mut want: Vec<_> = state.iter().filter(|(key, _)| within(key)).collect();
            if reverse {
                want.reverse();
            }
            let have = entries.iter().map(|(key, value)| (key, value));
            let differs = want
                .iter()
                .copied()
                .zip(have)
                .position(|(want, have)| !same((have.0, have.1), (want.0, want.1)));
            match differs {
                None if want.len() == entries.len() => Ok(()),
                None => Err(format!(
                    "at node {node} there are {} entries instead of {}",
                    entries.len(),
                    want.len()
                )),
                Some(index) => Err(format!(
                    "at node {node} entry {index} is {:?} instead of {:?}",
                    entries[index], want[index]
                )),
            }
        })
    }

    /// Compares one value.
    pub fn compare_value(
        &self,
        node: Node,
        key: &[u8],
        value: Option<&[u8]>,
    ) -> Result<(), String> {
        self.with_state(node, |state| {
            let want = state.get(key).map(Vec::as_slice);
            let of = |value| comparable(key, value);
            if want.map(of) == value.map(of) {
                return Ok(());
            }
            Err(format!("at node {node} {key:?} has {value:?} instead of {want:?}"))
        })
    }
}

impl Default for Oracle {
    fn default() -> Oracle {
        Oracle::new()
    }
}

impl std::fmt::Debug for Oracle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Oracle(acked {})", self.last_acked())
    }
}

impl Facts {
    fn is_behind(&self, before: Node, mut node: Node) -> bool {
        // Parents have lower numbers.
        while node > before {
            node = self.changes[node as usize - 1].parent;
        }
        node == before
    }

    /// The owner of the first change behind `before` on the way to `node`.
    fn next_owner(&self, before: Node, node: Node) -> u32 {
        let mut at = node;
        while self.changes[at as usize - 1].parent > before {
            at = self.changes[at as usize - 1].parent;
        }
        self.changes[at as usize - 1].owner
    }
}
