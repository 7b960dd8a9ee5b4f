//! What owners and gateways hear from the object manager: which range has a bucket's keys
//! ([`RangeMap`]), and what a bucket is ([`BucketConfig`]).

use std::fmt;
use std::sync::Arc;

use crate::ids::{BucketId, RangeId, Stamp};
use crate::lifecycle::Lifecycle;
use crate::locks::LockRule;
use crate::object::Target;
use crate::storage::StorageRule;
use crate::versions::Versioning;

/// Where the keys of a range begin: with a bucket's first key, or within a bucket.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct RangeBound {
    /// The bucket.
    pub bucket: BucketId,
    /// The lowest key that may be behind it; empty for all of the bucket.
    pub key: String,
}

impl RangeBound {
    /// All keys of a bucket are behind it.
    pub fn of_bucket(bucket: BucketId) -> RangeBound {
        RangeBound { bucket, key: String::new() }
    }

    /// A key is the first one behind it.
    pub fn of(target: &Target) -> RangeBound {
        RangeBound { bucket: target.bucket, key: target.key.as_str().to_owned() }
    }

    /// Behind it, or at it, are keys that begin with a prefix.
    pub fn is_within(&self, bucket: BucketId, prefix: &str) -> bool {
        self.bucket == bucket && self.key.starts_with(prefix)
    }
}

impl fmt::Display for RangeBound {
    /// The bucket's ID, and the key if there is one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.bucket.get())?;
        if self.key.is_empty() { Ok(()) } else { write!(f, "/{}", self.key) }
    }
}

/// A range and where its keys begin: it has those up to the next range's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RangePlace {
    /// The range.
    pub range: RangeId,
    /// Its first key.
    pub first: RangeBound,
}

/// All ranges, in order of their keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RangeMap(Vec<RangePlace>);

impl RangeMap {
    /// From its ranges. `None` unless each key has one: the first range begins with the lowest ID,
    /// each other one above the one before, and no range is there twice.
    pub fn new(places: Vec<RangePlace>) -> Option<RangeMap> {
        let begins = places.first()?.first == RangeBound::of_bucket(BucketId::new(0));
        let ascends = places.windows(2).all(|two| two[0].first < two[1].first);
        let mut ids: Vec<RangeId> = places.iter().map(|place| place.range).collect();
        ids.sort_unstable();
        let once = ids.windows(2).all(|two| two[0] != two[1]);
        (begins && ascends && once).then_some(RangeMap(places))
    }

    /// `count` ranges of equal shares of all buckets, with IDs from 1.
    pub fn even(count: u32) -> RangeMap {
        let share = (u64::MAX / u64::from(count.max(1))).saturating_add(1);
        let place = |at: u32| RangePlace {
            range: RangeId::new(u64::from(at) + 1),
            first: RangeBound::of_bucket(BucketId::new(u64::from(at) * share)),
        };
        RangeMap((0..count.max(1)).map(place).collect())
    }

    /// The range that has a key.
    pub fn of(&self, target: &Target) -> RangeId {
        self.behind(&RangeBound::of(target)).0
    }

    /// The range that has what comes first at a bound or behind it, and where that range ends: none for the
    /// last one.
    pub fn behind(&self, bound: &RangeBound) -> (RangeId, Option<&RangeBound>) {
        let next = self.0.partition_point(|place| place.first <= *bound);
        (self.0[next - 1].range, self.0.get(next).map(|place| &place.first))
    }

    /// The ranges that may have keys of a bucket, in order.
    pub fn of_bucket(&self, bucket: BucketId) -> impl Iterator<Item = RangeId> {
        let first = self.0.partition_point(|place| place.first <= RangeBound::of_bucket(bucket));
        let within = self.0[first..].iter().take_while(move |place| place.first.bucket == bucket);
        self.0[first - 1..first].iter().chain(within).map(|place| place.range)
    }

    /// The bounds of a range: its first key, and the first behind it, if there is one. None when there is no such
    /// range.
    pub fn bounds(&self, range: RangeId) -> Option<(&RangeBound, Option<&RangeBound>)> {
        let at = self.0.iter().position(|place| place.range == range)?;
        Some((&self.0[at].first, self.0.get(at + 1).map(|place| &place.first)))
    }

    /// The map with two ranges in the place of one; the upper one begins at a bound. None unless the bound is
    /// within that range.
    pub fn split(
        &self,
        range: RangeId,
        at: &RangeBound,
        (low, high): (RangeId, RangeId),
    ) -> Option<RangeMap> {
        let (first, end) = self.bounds(range)?;
        if at <= first || end.is_some_and(|end| at >= end) {
            return None;
        }
        let mut places = self.0.clone();
        let place = places.iter().position(|place| place.range == range)?;
        places[place].range = low;
        places.insert(place + 1, RangePlace { range: high, first: at.clone() });
        RangeMap::new(places)
    }

    /// The ranges, in order of their keys.
    pub fn places(&self) -> &[RangePlace] {
        &self.0
    }
}

/// Some of the ranges of a map that has no room in one message, in order of their keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RangeMapPage {
    /// The term of the manager that answers.
    pub term: u64,
    /// Ranges of the whole map. Each change adds some, so pages of one term and one count are of one map.
    pub count: u32,
    /// Ranges of this page.
    pub places: Vec<RangePlace>,
}

/// What a bucket is, since a change of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BucketConfig {
    /// The commit of the change: of two the later one counts.
    pub changed: Stamp,
    /// What it is since then.
    pub state: BucketState,
}

/// What a range keeps of a bucket's objects.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BucketRules {
    /// What becomes of objects that are replaced.
    pub versioning: Versioning,
    /// How versions are locked, where object lock is enabled.
    pub lock: Option<LockRule>,
    /// What becomes of them with time; none without rules.
    pub lifecycle: Option<Arc<Lifecycle>>,
    /// How what collection moves is stored.
    pub storage: StorageRule,
}

/// What a range does with a bucket's keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BucketState {
    /// It changes and shows them.
    Open(BucketRules),
    /// It changes none, and shows them: the bucket is being removed, or is not, in a while.
    Closing(BucketRules),
    /// There is no such bucket, and never will be again.
    Gone,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::ObjectKey;

    fn of(map: &RangeMap, bucket: u64, key: &str) -> u64 {
        let key = ObjectKey::new(key).expect("a key");
        map.of(&Target { bucket: BucketId::new(bucket), key }).get()
    }

    #[test]
    fn each_key_has_one_range() {
        for count in [1, 2, 3, 4, 7, 256] {
            let map = RangeMap::even(count);
            assert_eq!(map.places().len(), count as usize);
            assert_eq!(RangeMap::new(map.places().to_vec()), Some(map.clone()));
            assert_eq!(of(&map, 0, "a"), 1);
            assert_eq!(of(&map, u64::MAX, "a"), count.into());
            for (at, place) in map.places().iter().enumerate() {
                let end = map.places().get(at + 1).map(|next| &next.first);
                assert_eq!(map.behind(&place.first), (place.range, end));
            }
        }
        let map = RangeMap::even(4);
        assert_eq!(of(&map, u64::MAX / 2, "\u{10ffff}"), 2);
        assert_eq!(of(&map, u64::MAX / 2 + 1, "\0"), 3);
    }

    fn place(range: u64, bucket: u64, key: &str) -> RangePlace {
        let first = RangeBound { bucket: BucketId::new(bucket), key: key.to_owned() };
        RangePlace { range: RangeId::new(range), first }
    }

    #[test]
    fn a_bucket_may_have_several_ranges() {
        let places = vec![place(1, 0, ""), place(7, 5, "b"), place(3, 5, "b/c"), place(4, 6, "")];
        let map = RangeMap::new(places).expect("a map");
        for (key, range) in [("a", 1), ("ay", 1), ("b", 7), ("b/", 7), ("b/c", 3), ("c", 3)] {
            assert_eq!(of(&map, 5, key), range, "{key}");
        }
        assert_eq!((of(&map, 4, "z"), of(&map, 6, "\0")), (1, 4));
        let ranges = |bucket| -> Vec<u64> {
            map.of_bucket(BucketId::new(bucket)).map(RangeId::get).collect()
        };
        assert_eq!((ranges(4), ranges(5)), (vec![1], vec![1, 7, 3]));
        assert_eq!((ranges(6), ranges(7)), (vec![4], vec![4]));
    }

    #[test]
    fn a_split_is_within_a_range() {
        let map = RangeMap::even(2);
        let halves = (RangeId::new(3), RangeId::new(4));
        let at = place(0, 9, "k").first;
        let split = map.split(RangeId::new(1), &at, halves).expect("it is within");
        let ranges: Vec<u64> = split.places().iter().map(|place| place.range.get()).collect();
        assert_eq!(ranges, [3, 4, 2]);
        assert_eq!((of(&split, 9, "j"), of(&split, 9, "k")), (3, 4));
        assert_eq!(split.bounds(halves.1), Some((&at, Some(&map.places()[1].first))));
        let edges = [place(0, 0, "").first, map.places()[1].first.clone()];
        for at in edges.iter().chain([&place(0, u64::MAX, "k").first]) {
            assert_eq!(map.split(RangeId::new(1), at, halves), None, "{at}");
        }
        assert_eq!(split.split(RangeId::new(1), &at, halves), None);
    }

    #[test]
    fn maps_with_gaps_or_doubles_are_refused() {
        let good = vec![place(1, 0, ""), place(9, 5, ""), place(3, 5, "a"), place(2, 6, "")];
        assert!(RangeMap::new(good).is_some());
        for places in [
            vec![],
            vec![place(1, 1, "")],
            vec![place(1, 0, "a")],
            vec![place(1, 0, ""), place(2, 0, "")],
            vec![place(1, 0, ""), place(2, 9, ""), place(3, 8, "")],
            vec![place(1, 0, ""), place(2, 9, "b"), place(3, 9, "a")],
            vec![place(1, 0, ""), place(2, 9, ""), place(1, 10, "")],
        ] {
            assert_eq!(RangeMap::new(places), None);
        }
    }
}
