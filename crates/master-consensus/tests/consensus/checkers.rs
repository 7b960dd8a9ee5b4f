//! Judges of a history, outside the code that they judge.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use master_consensus::{BadCommand, BadSnapshot, Rows, StateMachine};
use runtime::Duration;

/// Registers by number: a command sets one and answers with what it held.
pub struct Registers {
    values: BTreeMap<u64, u64>,
    changed: BTreeSet<u64>,
    observer: Rc<Observer>,
}

impl Registers {
    pub fn new(observer: &Rc<Observer>) -> Registers {
        Registers { values: BTreeMap::new(), changed: BTreeSet::new(), observer: observer.clone() }
    }

    pub fn get(&self, register: u64) -> u64 {
        self.values.get(&register).copied().unwrap_or(0)
    }

    pub fn values(&self) -> BTreeMap<u64, u64> {
        self.values.clone()
    }
}

pub fn set_command(register: u64, value: u64, padding: usize) -> Vec<u8> {
    let mut command = [register.to_le_bytes(), value.to_le_bytes()].concat();
    command.resize(16 + padding, 0x5a);
    command
}

fn long(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"))
}

impl StateMachine for Registers {
    fn apply(&mut self, index: u64, command: &[u8]) -> Result<Vec<u8>, BadCommand> {
        Registers::check_command(command)?;
        let (register, value) = (long(command), long(&command[8..]));
        self.observer.applied(index, register, value);
        self.changed.insert(register);
        let old = self.values.insert(register, value).unwrap_or(0);
        Ok(old.to_le_bytes().to_vec())
    }

    fn check_command(command: &[u8]) -> Result<(), BadCommand> {
        if command.len() < 16 { Err(BadCommand) } else { Ok(()) }
    }

    fn take_changes(&mut self, rows: &mut Rows) -> bool {
        while let Some(register) = self.changed.pop_first() {
            let value = self.values[&register].to_le_bytes();
            rows.put(&register.to_be_bytes(), Some(&value));
            if rows.is_full() {
                return true;
            }
        }
        false
    }

    fn blank(&self) -> Registers {
        Registers::new(&self.observer)
    }

    fn load(&mut self, key: &[u8], value: &[u8]) -> Result<(), BadSnapshot> {
        let key = key.try_into().map_err(|_| BadSnapshot)?;
        let value = value.try_into().map_err(|_| BadSnapshot)?;
        self.values.insert(u64::from_be_bytes(key), u64::from_le_bytes(value));
        Ok(())
    }
}

/// Sees every entry that any replica applies: an index is committed once, for ever.
#[derive(Default)]
pub struct Observer {
    committed: RefCell<BTreeMap<u64, (u64, u64)>>,
    leaders: RefCell<BTreeMap<u64, u64>>,
}

impl Observer {
    fn applied(&self, index: u64, register: u64, value: u64) {
        let mut committed = self.committed.borrow_mut();
        let known = *committed.entry(index).or_insert((register, value));
        assert_eq!(known, (register, value), "two commands were committed at index {index}");
    }

    /// At most one leader per term.
    pub fn leads(&self, term: u64, node: u64) {
        let known = *self.leaders.borrow_mut().entry(term).or_insert(node);
        assert_eq!(known, node, "two leaders in term {term}");
    }

    pub fn terms_led(&self) -> usize {
        self.leaders.borrow().len()
    }

    /// The registers after all that was committed.
    pub fn outcome(&self) -> BTreeMap<u64, u64> {
        self.committed.borrow().values().copied().collect()
    }

    pub fn commits(&self) -> usize {
        self.committed.borrow().len()
    }

    /// An acknowledged write must be among the committed.
    pub fn contains(&self, value: u64) -> bool {
        self.committed.borrow().values().any(|&(_, known)| known == value)
    }
}

/// Log matching: where two logs have an entry of the same index and term, all entries in front of
/// it that both keep are the same.
pub fn check_log_matching(left: &[(u64, u64, Vec<u8>)], right: &[(u64, u64, Vec<u8>)]) {
    let right: BTreeMap<u64, _> =
        right.iter().map(|(index, term, e)| (*index, (term, e))).collect();
    let mut must_match = false;
    for (index, term, entry) in left.iter().rev() {
        let Some((other_term, other)) = right.get(index) else { continue };
        must_match |= *other_term == term;
        if must_match {
            assert_eq!((other_term, other), (&term, &entry), "logs differ at index {index}");
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Sets a register to a value, and saw the old one if it was answered.
    Write {
        value: u64,
        old: Option<u64>,
    },
    Read {
        value: u64,
    },
}

/// One operation of a client on one register. `end` is none when its outcome is not known.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    pub action: Action,
    pub start: Duration,
    pub end: Option<Duration>,
}

/// Requires an order of the operations, within their times, that one register could have seen.
pub fn check_linearizable(operations: Vec<Operation>) {
    assert!(is_linearizable(&operations), "a register's history is impossible: {operations:#?}");
}

/// Wing and Gong's search, with the visited states remembered. All written values differ, so a
/// value is held once: whatever saw it is done before it is replaced, and a write that saw it is
/// what replaces it. A write of unknown outcome counts when its value was seen.
fn is_linearizable(operations: &[Operation]) -> bool {
    let saw = |operation: &Operation| match operation.action {
        Action::Read { value } => Some(value),
        Action::Write { old, .. } => old,
    };
    let seen: BTreeSet<u64> = operations.iter().filter_map(saw).collect();
    let counts = |operation: &&Operation| match operation.action {
        Action::Write { value, .. } => operation.end.is_some() || seen.contains(&value),
        Action::Read { .. } => true,
    };
    let mut operations: Vec<Operation> = operations.iter().filter(counts).copied().collect();
    operations.sort_by_key(|operation| operation.start);
    let replaced: BTreeSet<u64> = operations
        .iter()
        .filter_map(|operation| match operation.action {
            Action::Write { old, .. } => old,
            Action::Read { .. } => None,
        })
        .collect();
    let mut visited = BTreeSet::new();
    // (value of the register, operations done, how many)
    let mut stack = vec![(0u64, vec![0u64; operations.len().div_ceil(64)], 0)];
    while let Some((value, done, count)) = stack.pop() {
        if count == operations.len() {
            return true;
        }
        let is_done = |index: usize| done[index / 64] >> (index % 64) & 1 == 1;
        let open = || operations.iter().enumerate().filter(|(index, _)| !is_done(*index));
        // The operation that ended first must come before all that started later.
        let limit = open().filter_map(|(_, operation)| operation.end).min();
        let startable =
            open().take_while(|(_, operation)| limit.is_none_or(|l| operation.start <= l));
        let mut candidates: Vec<_> = startable
            .filter_map(|(index, operation)| match operation.action {
                Action::Read { value: saw } => (saw == value).then_some((index, value, false)),
                Action::Write { value: set, old: Some(old) } => {
                    (old == value).then_some((index, set, true))
                }
                Action::Write { value: set, old: None } => {
                    (!replaced.contains(&value)).then_some((index, set, true))
                }
            })
            .collect();
        let reads_left = open().any(|(_, o)| o.action == Action::Read { value });
        if let Some(&read) = candidates.iter().find(|candidate| !candidate.2) {
            candidates = vec![read];
        } else if reads_left {
            continue;
        }
        for (index, next, _) in candidates {
            let mut done = done.clone();
            done[index / 64] |= 1 << (index % 64);
            if visited.insert((next, done.clone())) {
                stack.push((next, done, count + 1));
            }
        }
    }
    false
}

#[test]
fn the_checker_sees_a_stale_read() {
    let at = |start, end| (Duration::from_secs(start), Some(Duration::from_secs(end)));
    let history = |reads: &[(u64, u64, u64)]| {
        let (start, end) = at(0, 1);
        let action = Action::Write { value: 7, old: Some(0) };
        let mut operations = vec![Operation { action, start, end }];
        operations.extend(reads.iter().map(|&(value, from, to)| {
            let (start, end) = at(from, to);
            Operation { action: Action::Read { value }, start, end }
        }));
        operations
    };
    assert!(is_linearizable(&history(&[(7, 2, 3), (7, 4, 5)])));
    assert!(is_linearizable(&history(&[(0, 0, 3), (7, 4, 5)])));
    assert!(!is_linearizable(&history(&[(0, 2, 3)])));
    assert!(!is_linearizable(&history(&[(7, 0, 1), (0, 2, 3)])));
}
