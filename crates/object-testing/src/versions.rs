//! Linearizability of keys with versions: is there one order of all operations of a key, within their times,
//! that a list of versions could have gone through (`object-protocols.md` 7.1), without one that was removed or
//! unlocked before its time (7.2)?

use std::time::Duration;

use object_proto::{LockChange, ObjectLock, Retention, RetentionMode, Versioning};
use runtime::Rng;
use testing::linear::{self, Times};

/// A version: the number of the put or delete that made it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Version {
    /// Its number.
    pub number: u64,
    /// A delete made it.
    pub marker: bool,
    /// It has no ID.
    pub null: bool,
    /// Number of its tags.
    pub tags: u64,
    /// What keeps it from being removed.
    pub lock: ObjectLock,
}

/// What an operation is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum At {
    /// The newest version.
    Newest,
    /// The version without an ID.
    Null,
    /// The version of this number, by its ID.
    Number(u64),
}

/// Whether the put of this number is sent in parts.
pub fn is_in_parts(number: u64) -> bool {
    Rng::new(number ^ 0x9a47).one_in(8)
}

/// Number of the tags that an object is put with; 0 for none.
pub fn tags_of_put(number: u64) -> u64 {
    if number.is_multiple_of(3) && !is_in_parts(number) { number } else { 0 }
}

/// What a key has.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
struct State {
    versioning: Versioning,
    /// Object lock is enabled.
    locks: bool,
    /// Newest first.
    versions: Vec<Version>,
}

/// Operation of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Did {
    /// Said what becomes of objects that are replaced.
    Set(Versioning),
    /// Enabled object lock.
    EnableLock,
    /// Put an object, or only if there is none; so locked.
    Put(u64, bool, ObjectLock),
    /// Deleted, without an ID.
    Delete(u64),
    /// Removed the version of this number, by its ID, with or without the bypass of governance.
    Remove(u64, bool),
    /// Removed the version without an ID, likewise.
    RemoveNull(bool),
    /// Looked at the key.
    Look,
    /// Looked at the version of this number, by its ID.
    LookAt(u64),
    /// Looked at the version without an ID.
    LookAtNull,
    /// Gave an object other tags.
    Tag(At, u64),
    /// Changed the lock of an object, with or without the bypass of governance.
    Lock(At, LockChange, bool),
    /// Listed the versions.
    List,
}

/// What was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// No object, or no such version.
    Nothing,
    /// A delete marker.
    Marker,
    /// This object, with these tags, so locked.
    Object(u64, u64, ObjectLock),
}

/// An entry of a list: an object, or a marker; without an ID.
pub type Entry = (Option<u64>, bool);

/// End of an operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ended {
    /// The change was made: a version without an ID, one with, or what a bucket without versions makes.
    Made(Option<bool>),
    /// The condition did not hold.
    Refused,
    /// It is locked.
    Locked,
    /// The bucket takes no such thing.
    Invalid,
    /// What was found.
    Saw(Found),
    /// What was listed.
    Listed(Vec<Entry>),
    /// The client does not know whether it happened: if so, then between start and end.
    Unknown,
}

/// One operation of one client.
#[derive(Clone, PartialEq, Eq, Debug)]
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

impl State {
    fn found(&self, is_it: impl Fn(&Version) -> bool) -> Found {
        match self.versions.iter().find(|version| is_it(version)) {
            None => Found::Nothing,
            Some(version) if version.marker => Found::Marker,
            Some(version) => Found::Object(version.number, version.tags, version.lock),
        }
    }

    /// Makes a version; whether it has an ID, in a bucket with versions.
    fn make(&mut self, number: u64, marker: bool, lock: ObjectLock) -> Ended {
        let null = self.versioning != Versioning::Enabled;
        if null {
            self.versions.retain(|version| !version.null);
        }
        if !marker || self.versioning != Versioning::Off {
            let tags = if marker { 0 } else { tags_of_put(number) };
            self.versions.insert(0, Version { number, marker, null, tags, lock });
        }
        Ended::Made((self.versioning != Versioning::Off).then_some(null))
    }

    fn at(&mut self, at: At) -> Option<&mut Version> {
        let mut versions = self.versions.iter_mut();
        match at {
            At::Newest => versions.next().filter(|version| !version.marker),
            At::Null => versions.find(|version| version.null),
            At::Number(number) => {
                versions.find(|version| !version.null && version.number == number)
            }
        }
    }

    /// Removes a version, by its ID.
    fn remove(&mut self, at: At, bypass: bool, over_us: u64) -> Ended {
        match self.at(at).copied() {
            Some(version) if keeps(version.lock, bypass, over_us) => Ended::Locked,
            found => {
                self.versions.retain(|version| Some(*version) != found);
                Ended::Made(None)
            }
        }
    }

    /// The answer that an operation should have had, if retentions until `over_us` were over. One that had
    /// `answer` may have met several reasons for it.
    fn execute(&mut self, did: Did, answer: &Ended, over_us: u64) -> Ended {
        let versioned = self.versioning != Versioning::Off;
        match did {
            Did::Set(versioning) if self.locks && versioning != Versioning::Enabled => {
                Ended::Invalid
            }
            Did::EnableLock if self.versioning != Versioning::Enabled => Ended::Invalid,
            Did::EnableLock => {
                self.locks = true;
                Ended::Made(None)
            }
            Did::Set(versioning) => {
                self.versioning = versioning;
                Ended::Made(None)
            }
            Did::Put(number, if_none, lock) => {
                let found = self.found(|_| true);
                let fails = if_none && matches!(found, Found::Object(..));
                let is_invalid = !self.locks && !lock.is_none();
                match (fails, is_invalid) {
                    // An upload is refused before its condition counts.
                    (true, true) if *answer == Ended::Invalid => Ended::Invalid,
                    (true, _) => Ended::Refused,
                    (false, true) => Ended::Invalid,
                    (false, false) => self.make(number, false, lock),
                }
            }
            Did::Delete(number) => self.make(number, true, ObjectLock::default()),
            Did::Remove(number, bypass) => self.remove(At::Number(number), bypass, over_us),
            Did::RemoveNull(bypass) => self.remove(At::Null, bypass, over_us),
            Did::Look => Ended::Saw(self.found(|_| true)),
            Did::LookAt(number) => {
                Ended::Saw(self.found(|version| !version.null && version.number == number))
            }
            Did::LookAtNull => Ended::Saw(self.found(|version| version.null)),
            Did::Tag(at, tags) => match self.at(at) {
                None => Ended::Saw(Found::Nothing),
                Some(version) if version.marker => Ended::Saw(Found::Marker),
                Some(version) => {
                    version.tags = tags;
                    Ended::Made(versioned.then_some(version.null))
                }
            },
            Did::Lock(..) if !self.locks => Ended::Invalid,
            Did::Lock(at, change, bypass) => match self.at(at) {
                None => Ended::Saw(Found::Nothing),
                Some(version) if version.marker => Ended::Saw(Found::Marker),
                Some(version) => match change {
                    LockChange::Retention(next)
                        if !may_become(version.lock, next, bypass, over_us) =>
                    {
                        Ended::Locked
                    }
                    LockChange::Retention(next) => {
                        version.lock.retention = next;
                        Ended::Made(Some(version.null))
                    }
                    LockChange::Hold(hold) => {
                        version.lock.hold = Some(hold);
                        Ended::Made(Some(version.null))
                    }
                },
            },
            Did::List => {
                let entry =
                    |version: &Version| ((!version.marker).then_some(version.number), version.null);
                Ended::Listed(self.versions.iter().map(entry).collect())
            }
        }
    }
}

/// True when a lock keeps its version from being removed.
fn keeps(lock: ObjectLock, bypass: bool, over_us: u64) -> bool {
    let retains = |retention: Retention| {
        retention.until_us > over_us && !(bypass && retention.mode == RetentionMode::Governance)
    };
    lock.hold == Some(true) || lock.retention.is_some_and(retains)
}

/// True when a retention may become another one.
fn may_become(lock: ObjectLock, next: Option<Retention>, bypass: bool, over_us: u64) -> bool {
    let Some(stands) = lock.retention.filter(|stands| stands.until_us > over_us) else {
        return true;
    };
    let is_as_strong =
        |next: Retention| next.mode == stands.mode && next.until_us >= stands.until_us;
    next.is_some_and(is_as_strong) || bypass && stands.mode == RetentionMode::Governance
}

/// An error unless the history of a key, of a bucket that begins without versions, is linearizable, and no
/// lock ended early. The first operation's clock began at `began_us`.
pub fn check(history: Vec<Operation>, began_us: u64) -> Result<(), String> {
    let times = |operation: &Operation| {
        let (start, end) = (operation.start, operation.end);
        Times { start, end, happened: operation.ended != Ended::Unknown }
    };
    linear::check(history, State::default(), times, |state, operation| {
        let mut after = state.clone();
        // A lock may end late, never early.
        let over_us = match operation.ended {
            Ended::Locked => 0,
            _ => began_us.saturating_add(operation.end.as_micros().try_into().unwrap_or(u64::MAX)),
        };
        let answer = after.execute(operation.did, &operation.ended, over_us);
        (operation.ended == Ended::Unknown || operation.ended == answer).then_some(after)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(number: u64, if_none: bool) -> Did {
        Did::Put(number, if_none, ObjectLock::default())
    }

    fn object(number: u64, tags: u64) -> Found {
        Found::Object(number, tags, ObjectLock::default())
    }

    /// Operations that take a second each, and begin every other second.
    fn in_order(all: Vec<(Did, Ended)>) -> Result<(), String> {
        let at = |(index, (did, ended))| {
            let start = Duration::from_secs(2 * index as u64);
            Operation { did, ended, start, end: start + Duration::from_secs(1) }
        };
        check(all.into_iter().enumerate().map(at).collect(), 0)
    }

    #[test]
    fn a_marker_hides_and_its_removal_shows_again() {
        let history = |last| {
            in_order(vec![
                (put(1, false), Ended::Made(None)),
                (Did::Set(Versioning::Enabled), Ended::Made(None)),
                (put(2, false), Ended::Made(Some(false))),
                (put(3, true), Ended::Refused),
                (Did::Delete(4), Ended::Made(Some(false))),
                (Did::Look, Ended::Saw(Found::Marker)),
                (Did::LookAt(2), Ended::Saw(object(2, 0))),
                (Did::Tag(At::Number(2), 7), Ended::Made(Some(false))),
                (Did::LookAt(2), Ended::Saw(object(2, 7))),
                (Did::Tag(At::Newest, 8), Ended::Saw(Found::Nothing)),
                (Did::List, Ended::Listed(vec![(None, false), (Some(2), false), (Some(1), true)])),
                (Did::Remove(4, false), Ended::Made(None)),
                (Did::Look, Ended::Saw(last)),
            ])
        };
        assert_eq!(history(object(2, 7)), Ok(()));
        assert!(history(object(2, 0)).is_err());
        assert!(history(Found::Nothing).is_err());
        assert!(history(object(1, 0)).is_err());
    }

    #[test]
    fn of_versions_without_an_id_there_is_one() {
        let history = |rest: Vec<Entry>| {
            in_order(vec![
                (Did::Set(Versioning::Enabled), Ended::Made(None)),
                (put(1, false), Ended::Made(Some(false))),
                (Did::Set(Versioning::Suspended), Ended::Made(None)),
                (put(2, false), Ended::Made(Some(true))),
                (put(3, false), Ended::Made(Some(true))),
                (Did::List, Ended::Listed(vec![(Some(3), true), (Some(1), false)])),
                (Did::Delete(4), Ended::Made(Some(true))),
                (Did::LookAtNull, Ended::Saw(Found::Marker)),
                (Did::RemoveNull(false), Ended::Made(None)),
                (Did::List, Ended::Listed(rest)),
            ])
        };
        assert_eq!(history(vec![(Some(1), false)]), Ok(()));
        assert!(history(vec![(Some(3), true), (Some(1), false)]).is_err());
    }

    #[test]
    fn a_lock_ends_late_and_never_early() {
        let until = |mode, second: u64| Retention { mode, until_us: second * 1_000_000 };
        let retained = |retention| ObjectLock { retention: Some(retention), hold: None };
        let first = |retention| {
            vec![
                (Did::EnableLock, Ended::Invalid),
                (Did::Put(9, false, retained(retention)), Ended::Invalid),
                (Did::Set(Versioning::Enabled), Ended::Made(None)),
                (Did::EnableLock, Ended::Made(None)),
                (Did::Set(Versioning::Suspended), Ended::Invalid),
                (Did::Put(1, false, retained(retention)), Ended::Made(Some(false))),
            ]
        };
        // The last of these ends in second 13.
        let then =
            |retention, did, ended| in_order([first(retention), vec![(did, ended)]].concat());
        let [governed, kept] =
            [RetentionMode::Governance, RetentionMode::Compliance].map(|mode| until(mode, 14));
        let removed = |bypass| Did::Remove(1, bypass);
        for (retention, did, made, locked) in [
            (governed, removed(false), false, true),
            (governed, removed(true), true, false),
            (kept, removed(true), false, true),
            (until(RetentionMode::Compliance, 13), removed(false), true, true),
        ] {
            let outcomes =
                [Ended::Made(None), Ended::Locked].map(|ended| then(retention, did, ended).is_ok());
            assert_eq!(outcomes, [made, locked], "{retention:?} {did:?}");
        }
        let change = |to, bypass| Did::Lock(At::Newest, LockChange::Retention(to), bypass);
        for (retention, did, made) in [
            (governed, change(Some(until(RetentionMode::Governance, 15)), false), true),
            (governed, change(Some(kept), false), false),
            (governed, change(Some(kept), true), true),
            (kept, change(Some(governed), true), false),
            (kept, change(None, true), false),
            (until(RetentionMode::Compliance, 13), change(None, false), true),
        ] {
            let outcome = then(retention, did, Ended::Made(Some(false)));
            assert_eq!(outcome.is_ok(), made, "{retention:?} {did:?}");
        }
        let hold = |hold| Did::Lock(At::Number(1), LockChange::Hold(hold), false);
        let held = |last| {
            let rest = vec![
                (hold(true), Ended::Made(Some(false))),
                (removed(true), Ended::Locked),
                (hold(false), Ended::Made(Some(false))),
                (removed(true), last),
            ];
            in_order([first(governed), rest].concat())
        };
        assert_eq!(held(Ended::Made(None)), Ok(()));
        assert!(held(Ended::Refused).is_err());
    }
}
