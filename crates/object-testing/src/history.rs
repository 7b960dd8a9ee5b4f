//! Linearizability of keys (invariant 7): is there one order of all operations of a key, within their
//! times, that an object with conditions could have gone through?

use std::time::Duration;

use testing::linear::{self, Times};

/// What a key has: the number of the object that was put, none at first.
pub type Value = Option<u64>;

/// Condition of a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// Always.
    Always,
    /// No object is there.
    Absent,
    /// This one is there.
    Is(u64),
}

/// Operation of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Did {
    /// Put an object; each call has a number of its own, which its attempts share.
    Put(u64, When),
    /// Removed what is there.
    Delete(When),
    /// Looked.
    Look,
}

/// End of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// The change was made, or there was nothing to remove.
    Done,
    /// The condition did not hold.
    Refused,
    /// No object is there, which the condition wants.
    NotFound,
    /// What was seen.
    Saw(Value),
    /// The client does not know whether it happened: if so, then between start and end.
    Unknown,
}

/// One operation of one client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operation {
    /// The operation.
    pub did: Did,
    /// Its end.
    pub ended: Ended,
    /// When it began.
    pub start: Duration,
    /// When it ended; of one without an end, the latest time at which it may happen.
    pub end: Duration,
}

/// What the key has after `did`, and the answer that it should have had.
fn execute(value: Value, did: Did) -> (Value, Ended) {
    let (next, when) = match did {
        Did::Look => return (value, Ended::Saw(value)),
        Did::Put(number, when) => (Some(number), when),
        Did::Delete(when) => (None, when),
    };
    if let (Did::Put(number, _), true) = (did, value == next) {
        // By an earlier attempt: no other call has put this number.
        return (Some(number), Ended::Done);
    }
    match (when, value) {
        (When::Always, _) | (When::Absent, None) => (next, Ended::Done),
        (When::Absent, Some(_)) => (value, Ended::Refused),
        (When::Is(_), None) => (value, Ended::NotFound),
        (When::Is(wanted), Some(there)) if wanted == there => (next, Ended::Done),
        (When::Is(_), Some(_)) => (value, Ended::Refused),
    }
}

/// What the key has behind an operation that happens now.
fn next(value: Value, operation: &Operation) -> Option<Value> {
    let (after, answer) = execute(value, operation.did);
    (operation.ended == Ended::Unknown || operation.ended == answer).then_some(after)
}

/// An error unless the history of a key, which has nothing at first, is linearizable.
pub fn check(history: Vec<Operation>) -> Result<(), String> {
    let times = |operation: &Operation| {
        let (start, end) = (operation.start, operation.end);
        Times { start, end, happened: operation.ended != Ended::Unknown }
    };
    linear::check(history, None, times, |value, operation| next(*value, operation))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(start: u64, end: u64, did: Did, ended: Ended) -> Operation {
        let (start, end) = (Duration::from_secs(start), Duration::from_secs(end));
        Operation { did, ended, start, end }
    }

    #[test]
    fn of_two_creates_one_wins() {
        let create = |number| Did::Put(number, When::Absent);
        let history = |second| {
            vec![
                at(0, 9, create(1), Ended::Done),
                at(1, 8, create(2), second),
                at(10, 11, Did::Look, Ended::Saw(Some(1))),
            ]
        };
        assert_eq!(check(history(Ended::Refused)), Ok(()));
        assert!(check(history(Ended::Done)).is_err());
    }

    #[test]
    fn a_refusal_needs_a_cause_in_its_time() {
        let history = |ended| {
            vec![
                at(0, 1, Did::Put(1, When::Always), Ended::Done),
                at(2, 3, Did::Delete(When::Always), Ended::Done),
                at(4, 5, Did::Put(2, When::Absent), ended),
            ]
        };
        assert_eq!(check(history(Ended::Done)), Ok(()));
        assert!(check(history(Ended::Refused)).is_err());
        assert!(check(history(Ended::NotFound)).is_err());
    }

    #[test]
    fn an_unknown_change_happens_in_its_time_or_never() {
        let history = |end| {
            vec![
                at(0, end, Did::Put(1, When::Always), Ended::Unknown),
                at(2, 3, Did::Look, Ended::Saw(None)),
                at(4, 5, Did::Look, Ended::Saw(Some(1))),
            ]
        };
        assert_eq!(check(history(9)), Ok(()));
        assert_eq!(check(history(3)), Ok(()));
        assert!(check(history(1)).is_err());
        let never = vec![
            at(0, 1, Did::Put(1, When::Always), Ended::Unknown),
            at(2, 3, Did::Look, Ended::Saw(None)),
        ];
        assert_eq!(check(never), Ok(()));
    }

    #[test]
    fn an_attempt_does_not_lose_to_an_earlier_one_of_its_call() {
        let create = Did::Put(1, When::Absent);
        let history = |between: Option<Did>, ended| {
            let mut all = vec![at(0, 1, create, Ended::Unknown), at(6, 7, create, ended)];
            all.push(at(2, 3, Did::Look, Ended::Saw(Some(1))));
            all.extend(between.map(|did| at(4, 5, did, Ended::Done)));
            all
        };
        assert_eq!(check(history(None, Ended::Done)), Ok(()));
        assert!(check(history(None, Ended::Refused)).is_err());
        let other = Did::Put(2, When::Is(1));
        assert_eq!(check(history(Some(other), Ended::Refused)), Ok(()));
        assert!(check(history(Some(other), Ended::Done)).is_err());
    }

    #[test]
    fn swaps_form_a_chain() {
        let swap = |from, to| Did::Put(to, When::Is(from));
        let history = |second| {
            vec![
                at(0, 1, Did::Put(1, When::Always), Ended::Done),
                at(2, 9, swap(1, 2), Ended::Done),
                at(2, 9, swap(1, 3), second),
            ]
        };
        assert_eq!(check(history(Ended::Refused)), Ok(()));
        assert!(check(history(Ended::Done)).is_err());
        assert!(check(history(Ended::NotFound)).is_err());
    }
}
