use block_volume::ids::{FileId, VolumeId};
use block_volume::space::Use;

use super::{EarlyRemovals, Gain, Turn, add_clones};
use crate::limits::UNKNOWN_CHECKS_MAX;

fn uses_of(uses: &[(u64, u64, u64)]) -> Vec<Use> {
    let of = |&(volume, file, bytes): &(u64, u64, u64)| Use {
        volume: VolumeId::new(volume),
        file: FileId::new(file),
        bytes,
    };
    uses.iter().map(of).collect()
}

fn gain(uses: &[(u64, u64, u64)], own: &[u64], deleted: &[u64]) -> Gain {
    gain_of(&uses_of(uses), own, deleted)
}

fn gain_of(uses: &[Use], own: &[u64], deleted: &[u64]) -> Gain {
    let is_own = |volume: VolumeId| own.contains(&volume.get());
    Gain::of(uses, is_own, |volume| deleted.contains(&volume.get()))
}

#[test]
fn volume_whose_files_a_living_one_has_gives_nothing_back_and_stays() {
    let shared = [(1, 10, 5), (2, 10, 5), (3, 11, 7)];
    let nothing = gain(&shared, &[1], &[1, 3]);
    assert_eq!(nothing, Gain { alone: 0, among_deleted: 0 });
    assert_eq!(EarlyRemovals::default().turn(Some(nothing)), Turn::Stays);
    // A volume that was never written has nothing either.
    assert_eq!(EarlyRemovals::default().turn(Some(gain(&[], &[1], &[1]))), Turn::Stays);
}

/// The last of them gives the bytes back, so that the first must be able to go.
#[test]
fn volume_whose_files_only_deleted_ones_have_goes() {
    let shared = [(1, 10, 5), (2, 10, 5), (2, 11, 3)];
    let first = gain(&shared, &[1], &[1, 2]);
    assert_eq!(first, Gain { alone: 0, among_deleted: 5 });
    assert_eq!(EarlyRemovals::default().turn(Some(first)), Turn::Goes(0));
    let last = gain(&shared[1..], &[2], &[2]);
    assert_eq!(EarlyRemovals::default().turn(Some(last)), Turn::Goes(8));
}

#[test]
fn volume_of_unknown_room_lets_no_other_go_for_a_few_checks_and_is_passed_over_then() {
    let known = Some(Gain { alone: 5, among_deleted: 5 });
    let mut early = EarlyRemovals::default();
    for _ in 0..UNKNOWN_CHECKS_MAX {
        early.begin_check();
        assert_eq!(early.turn(None), Turn::Waits);
    }
    for _ in 0..3 {
        early.begin_check();
        assert_eq!(early.turn(None), Turn::Stays);
        assert_eq!(early.turn(None), Turn::Stays, "another one of them");
        assert_eq!(early.turn(known), Turn::Goes(5));
    }
    // Once all are known, the next one is waited for again.
    early.begin_check();
    assert_eq!(early.turn(known), Turn::Goes(5));
    early.begin_check();
    assert_eq!(early.turn(None), Turn::Waits);
}

/// Volume 1 and its snapshot 2 are deleted; 3 is a clone that was not used yet, and 5 one of its snapshot 4.
#[test]
fn clone_that_was_not_used_yet_keeps_the_files_of_its_snapshot() {
    let mut uses = uses_of(&[(1, 10, 5), (2, 10, 5), (1, 11, 3), (4, 10, 5)]);
    let [one, two, three, four, five] = [1, 2, 3, 4, 5].map(VolumeId::new);
    add_clones(&mut uses, &[(three, two), (five, four)]);
    let named = |volume| uses.iter().filter(|one| one.volume == volume).count();
    assert_eq!([one, two, three, four, five].map(named), [2, 1, 1, 1, 1]);
    assert_eq!(gain_of(&uses, &[1, 2], &[1, 2]), Gain { alone: 3, among_deleted: 3 });
    assert_eq!(gain_of(&uses, &[1, 2], &[1, 2, 3, 4, 5]), Gain { alone: 3, among_deleted: 8 });
}
