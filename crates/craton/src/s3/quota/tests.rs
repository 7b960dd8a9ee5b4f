//! Changes of quotas.

use object_proto::{BucketSettings, User};

use super::*;

/// Of a change: bytes, objects, and whether the quota is cleared; then the quota behind it, where the one before
/// is 5 objects and 6 bytes.
type Case = ((Option<u64>, Option<u64>, bool), (Option<u64>, Option<u64>));

const CASES: [Case; 5] = [
    ((None, None, false), (Some(5), Some(6))),
    ((Some(9), None, false), (Some(5), Some(9))),
    ((None, Some(0), false), (Some(0), Some(6))),
    ((Some(9), Some(0), false), (Some(0), Some(9))),
    ((None, None, true), (None, None)),
];

const BEFORE: Quota = Quota { objects: Some(5), bytes: Some(6) };

fn change(bytes: Option<u64>, objects: Option<u64>, clear: bool) -> QuotaChange {
    QuotaChange { bytes, objects, clear }
}

/// The quota of a bucket that had another one, behind changes in their order.
fn of_bucket(before: Quota, changes: &[QuotaChange]) -> Quota {
    let mut settings = BucketSettings { quota: before, ..BucketSettings::default() };
    changes.iter().filter_map(|change| change.of_bucket()).for_each(|it| settings.set(it));
    settings.quota
}

/// The same of a user.
fn of_user(before: Quota, changes: &[QuotaChange]) -> Quota {
    let user = User { id: UserId::new("u"), quota: before, ..User::default() };
    changes.iter().filter_map(|change| change.of_user(user.id.clone())).fold(
        user.quota,
        |before, change| {
            assert_eq!(change.user(), &user.id);
            change.quota(before).expect("it changes the quota")
        },
    )
}

#[test]
fn what_is_not_named_stays() {
    for ((bytes, objects, clear), (objects_behind, bytes_behind)) in CASES {
        let changes = [change(bytes, objects, clear)];
        let behind = Quota { objects: objects_behind, bytes: bytes_behind };
        assert_eq!(of_bucket(BEFORE, &changes), behind, "{changes:?}");
        assert_eq!(of_user(BEFORE, &changes), behind, "{changes:?}");
    }
    assert_eq!(change(None, None, false).of_bucket(), None);
    assert_eq!(change(None, None, false).of_user(UserId::new("u")), None);
}

/// Both were made from the same state, and neither knows of the other.
#[test]
fn changes_of_different_bounds_both_survive() {
    let changes = [change(Some(9), None, false), change(None, Some(7), false)];
    let behind = Quota { objects: Some(7), bytes: Some(9) };
    for changes in [changes, [changes[1], changes[0]]] {
        for before in [Quota::default(), BEFORE] {
            assert_eq!(of_bucket(before, &changes), behind, "{changes:?}");
            assert_eq!(of_user(before, &changes), behind, "{changes:?}");
        }
    }
}
