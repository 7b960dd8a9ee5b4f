//! Linearizability of keys with versions: is there one order of all operations of a key, within their times,
//! that a list of versions could have gone through (`object-protocols.md` 7.1)?

use std::time::Duration;

use object_proto::Versioning;
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
    /// Newest first.
    versions: Vec<Version>,
}

/// Operation of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Did {
    /// Said what becomes of objects that are replaced.
    Set(Versioning),
    /// Put an object, or only if there is none.
    Put(u64, bool),
    /// Deleted, without an ID.
    Delete(u64),
    /// Removed the version of this number, by its ID.
    Remove(u64),
    /// Removed the version without an ID.
    RemoveNull,
    /// Looked at the key.
    Look,
    /// Looked at the version of this number, by its ID.
    LookAt(u64),
    /// Looked at the version without an ID.
    LookAtNull,
    /// Gave an object other tags.
    Tag(At, u64),
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
    /// This object, with these tags.
    Object(u64, u64),
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
            Some(version) => Found::Object(version.number, version.tags),
        }
    }

    /// Makes a version; whether it has an ID, in a bucket with versions.
    fn make(&mut self, number: u64, marker: bool) -> Ended {
        let null = self.versioning != Versioning::Enabled;
        if null {
            self.versions.retain(|version| !version.null);
        }
        if !marker || self.versioning != Versioning::Off {
            let tags = if marker { 0 } else { tags_of_put(number) };
            self.versions.insert(0, Version { number, marker, null, tags });
        }
        Ended::Made((self.versioning != Versioning::Off).then_some(null))
    }

    /// The answer that an operation should have had.
    fn execute(&mut self, did: Did) -> Ended {
        match did {
            Did::Set(versioning) => {
                self.versioning = versioning;
                Ended::Made(None)
            }
            Did::Put(number, if_none) => {
                let found = self.found(|_| true);
                match if_none && matches!(found, Found::Object(..)) {
                    true => Ended::Refused,
                    false => self.make(number, false),
                }
            }
            Did::Delete(number) => self.make(number, true),
            Did::Remove(number) => {
                self.versions.retain(|version| version.null || version.number != number);
                Ended::Made(None)
            }
            Did::RemoveNull => {
                self.versions.retain(|version| !version.null);
                Ended::Made(None)
            }
            Did::Look => Ended::Saw(self.found(|_| true)),
            Did::LookAt(number) => {
                Ended::Saw(self.found(|version| !version.null && version.number == number))
            }
            Did::LookAtNull => Ended::Saw(self.found(|version| version.null)),
            Did::Tag(at, tags) => {
                let versioned = self.versioning != Versioning::Off;
                let mut versions = self.versions.iter_mut();
                let found = match at {
                    At::Newest => versions.next().filter(|version| !version.marker),
                    At::Null => versions.find(|version| version.null),
                    At::Number(number) => {
                        versions.find(|version| !version.null && version.number == number)
                    }
                };
                match found {
                    None => Ended::Saw(Found::Nothing),
                    Some(version) if version.marker => Ended::Saw(Found::Marker),
                    Some(version) => {
                        version.tags = tags;
                        Ended::Made(versioned.then_some(version.null))
                    }
                }
            }
            Did::List => {
                let entry =
                    |version: &Version| ((!version.marker).then_some(version.number), version.null);
                Ended::Listed(self.versions.iter().map(entry).collect())
            }
        }
    }
}

/// An error unless the history of a key, of a bucket that begins without versions, is linearizable.
pub fn check(history: Vec<Operation>) -> Result<(), String> {
    let times = |operation: &Operation| {
        let (start, end) = (operation.start, operation.end);
        Times { start, end, happened: operation.ended != Ended::Unknown }
    };
    linear::check(history, State::default(), times, |state, operation| {
        let mut after = state.clone();
        let answer = after.execute(operation.did);
        (operation.ended == Ended::Unknown || operation.ended == answer).then_some(after)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_order(all: Vec<(Did, Ended)>) -> Result<(), String> {
        let at = |(index, (did, ended))| {
            let start = Duration::from_secs(2 * index as u64);
            Operation { did, ended, start, end: start + Duration::from_secs(1) }
        };
        check(all.into_iter().enumerate().map(at).collect())
    }

    #[test]
    fn a_marker_hides_and_its_removal_shows_again() {
        let history = |last| {
            in_order(vec![
                (Did::Put(1, false), Ended::Made(None)),
                (Did::Set(Versioning::Enabled), Ended::Made(None)),
                (Did::Put(2, false), Ended::Made(Some(false))),
                (Did::Put(3, true), Ended::Refused),
                (Did::Delete(4), Ended::Made(Some(false))),
                (Did::Look, Ended::Saw(Found::Marker)),
                (Did::LookAt(2), Ended::Saw(Found::Object(2, 0))),
                (Did::Tag(At::Number(2), 7), Ended::Made(Some(false))),
                (Did::LookAt(2), Ended::Saw(Found::Object(2, 7))),
                (Did::Tag(At::Newest, 8), Ended::Saw(Found::Nothing)),
                (Did::List, Ended::Listed(vec![(None, false), (Some(2), false), (Some(1), true)])),
                (Did::Remove(4), Ended::Made(None)),
                (Did::Look, Ended::Saw(last)),
            ])
        };
        assert_eq!(history(Found::Object(2, 7)), Ok(()));
        assert!(history(Found::Object(2, 0)).is_err());
        assert!(history(Found::Nothing).is_err());
        assert!(history(Found::Object(1, 0)).is_err());
    }

    #[test]
    fn of_versions_without_an_id_there_is_one() {
        let history = |rest: Vec<Entry>| {
            in_order(vec![
                (Did::Set(Versioning::Enabled), Ended::Made(None)),
                (Did::Put(1, false), Ended::Made(Some(false))),
                (Did::Set(Versioning::Suspended), Ended::Made(None)),
                (Did::Put(2, false), Ended::Made(Some(true))),
                (Did::Put(3, false), Ended::Made(Some(true))),
                (Did::List, Ended::Listed(vec![(Some(3), true), (Some(1), false)])),
                (Did::Delete(4), Ended::Made(Some(true))),
                (Did::LookAtNull, Ended::Saw(Found::Marker)),
                (Did::RemoveNull, Ended::Made(None)),
                (Did::List, Ended::Listed(rest)),
            ])
        };
        assert_eq!(history(vec![(Some(1), false)]), Ok(()));
        assert!(history(vec![(Some(3), true), (Some(1), false)]).is_err());
    }
}
