//! Unknown replicas that are condemned without permission.

use base::{ChunkId, DiskId, ServerId};

use super::{Comparison, Unknown};
use crate::placement::ReplicaLocation;

const PLACE: ReplicaLocation = ReplicaLocation { server: ServerId::new(1), disk: DiskId::new(7) };

/// Replicas that a comparison condemns, and how many disks wait then.
fn judge(unknown: &Unknown, reported: u64, count: u64) -> (usize, usize) {
    let mut comparison = Comparison::new(PLACE);
    for index in 0..reported {
        comparison.add(ChunkId::new(index), true, index < count);
    }
    (0..100).for_each(|index| comparison.add(ChunkId::new(1_000_000 + index), false, false));
    (unknown.judge(comparison).len(), unknown.stopped(3).len())
}

#[test]
fn few_unknown_replicas_are_condemned_and_many_are_not() {
    let unknown = Unknown::default();
    for (reported, count, condemned) in [
        (16, 16, true),
        (17, 17, false),
        (1_600, 16, true),
        (1_600, 17, false),
        (10_000, 100, true),
        (10_000, 101, false),
    ] {
        let expected = if condemned { (count as usize, 0) } else { (0, 1) };
        assert_eq!(judge(&unknown, reported, count), expected, "{count} of {reported}");
    }
}

#[test]
fn permission_covers_one_comparison_of_a_disk_that_waits() {
    let unknown = Unknown::default();
    unknown.permit(PLACE.disk);
    assert_eq!(judge(&unknown, 50, 40), (0, 1), "a word given before the question");
    unknown.permit(PLACE.disk);
    assert_eq!(judge(&unknown, 50, 40), (40, 0));
    assert_eq!(judge(&unknown, 50, 40), (0, 1), "a second time");
    unknown.reset();
    assert_eq!(unknown.stopped(3), []);
}
