//! What owners and gateways hear from the object manager: which range has a bucket's keys
//! ([`RangeMap`]), and what a bucket is ([`BucketConfig`]).

use std::sync::Arc;

use crate::ids::{BucketId, RangeId, Stamp};
use crate::lifecycle::Lifecycle;
use crate::locks::LockRule;
use crate::versions::Versioning;

/// A range and the buckets whose keys it has: from its first one to the next range's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RangePlace {
    /// The range.
    pub range: RangeId,
    /// The lowest ID of a bucket that it has.
    pub first: BucketId,
}

/// All ranges, in order of their buckets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RangeMap(Vec<RangePlace>);

impl RangeMap {
    /// From its ranges. `None` unless each bucket has one: the first range begins with the lowest ID,
    /// each other one above the one before, and no range is there twice.
    pub fn new(places: Vec<RangePlace>) -> Option<RangeMap> {
        let begins = places.first()?.first == BucketId::new(0);
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
            first: BucketId::new(u64::from(at) * share),
        };
        RangeMap((0..count.max(1)).map(place).collect())
    }

    /// The range that has a bucket's keys.
    pub fn of(&self, bucket: BucketId) -> RangeId {
        let behind = self.0.partition_point(|place| place.first <= bucket);
        self.0[behind - 1].range
    }

    /// The ranges, in order of their buckets.
    pub fn places(&self) -> &[RangePlace] {
        &self.0
    }
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

    #[test]
    fn each_bucket_has_one_range() {
        for count in [1, 2, 3, 4, 7, 256] {
            let map = RangeMap::even(count);
            assert_eq!(map.places().len(), count as usize);
            assert_eq!(RangeMap::new(map.places().to_vec()), Some(map.clone()));
            assert_eq!(map.of(BucketId::new(0)), RangeId::new(1));
            assert_eq!(map.of(BucketId::new(u64::MAX)), RangeId::new(count.into()));
            for place in map.places() {
                assert_eq!(map.of(place.first), place.range);
            }
        }
        let map = RangeMap::even(4);
        assert_eq!(map.of(BucketId::new(u64::MAX / 2)), RangeId::new(2));
        assert_eq!(map.of(BucketId::new(u64::MAX / 2 + 1)), RangeId::new(3));
    }

    #[test]
    fn maps_with_gaps_or_doubles_are_refused() {
        let place =
            |range, first| RangePlace { range: RangeId::new(range), first: BucketId::new(first) };
        assert!(RangeMap::new(vec![place(1, 0), place(9, 5), place(2, 6)]).is_some());
        for places in [
            vec![],
            vec![place(1, 1)],
            vec![place(1, 0), place(2, 0)],
            vec![place(1, 0), place(2, 9), place(3, 8)],
            vec![place(1, 0), place(2, 9), place(1, 10)],
        ] {
            assert_eq!(RangeMap::new(places), None);
        }
    }
}
