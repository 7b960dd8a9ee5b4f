//! The length at which a lost writer's chunk is sealed (`protocols.md` 2.2, 2.3).

use std::ops::RangeInclusive;

use base::Epoch;
use wire::data::{ReplicaStat, ReplicaState};

/// Fenced answers that recovery of a chunk with `n` replicas, `m` of which acknowledge, needs:
/// F = n - m + 1.
pub fn votes_needed(n: usize, m: usize) -> usize {
    assert!(1 <= m && m <= n, "{m} of {n}");
    n - m + 1
}

/// Lengths at which a chunk may be sealed. An acknowledged byte is on at least
/// `m - (n - votes)` of the fenced replicas, so no acknowledged length is above the vote of that
/// rank, counted from the longest: it is the least. The most is the longest vote, which covers an
/// acknowledged byte even where one of those replicas has lost it and does not know. `None` without
/// enough votes.
pub fn sealed_lens(n: usize, m: usize, lens: &[u32]) -> Option<RangeInclusive<u32>> {
    if lens.len() < votes_needed(n, m) || lens.len() > n {
        return None;
    }
    let rank = m - (n - lens.len());
    let mut lens = lens.to_vec();
    lens.sort_unstable_by(|a, b| b.cmp(a));
    Some(lens[rank - 1]..=lens[0])
}

/// Meaning of a fenced replica's answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Vote {
    /// It has a vote, with this length.
    Len(u32),
    /// It is damaged: it reads less than it once had durable, or holds something else.
    Damaged,
    /// It is being filled by repair, or was deleted.
    None,
}

/// Judges a fenced replica's answer for a chunk written under `epoch`.
pub fn judge(stat: &ReplicaStat, epoch: Epoch) -> Vote {
    if stat.len < stat.durable_bound && !planted(Planted::DamagedVotes) {
        return Vote::Damaged;
    }
    match stat.state {
        ReplicaState::Tombstone => Vote::Len(0),
        ReplicaState::Repairing | ReplicaState::Deleted => Vote::None,
        // An open replica is not fenced: its answer is none.
        ReplicaState::Open => Vote::None,
        _ if stat.epoch != epoch => Vote::Damaged,
        ReplicaState::Fenced(_) | ReplicaState::Sealed => Vote::Len(stat.len),
    }
}

pub(crate) use super::planted::{Planted, planted};

#[cfg(test)]
mod tests {
    use super::*;

    /// A deleted replica has no vote, one that was fenced before its creation has.
    #[test]
    fn tombstone_of_a_fence_votes_and_that_of_a_deletion_does_not() {
        let stat = |state| ReplicaStat {
            state,
            epoch: Epoch::NONE,
            len: 0,
            durable_bound: 0,
            committed: 0,
        };
        let vote = |state| judge(&stat(state), Epoch::new(3));
        assert_eq!(vote(ReplicaState::Tombstone), Vote::Len(0));
        assert_eq!(vote(ReplicaState::Deleted), Vote::None);
    }

    #[test]
    fn the_length_covers_what_may_be_acknowledged() {
        type Case = (usize, usize, &'static [u32], Option<RangeInclusive<u32>>);
        let cases: [Case; 9] = [
            (3, 3, &[], None),
            (3, 3, &[7], Some(7..=7)),
            (3, 3, &[7, 9, 8], Some(7..=9)),
            (3, 2, &[7], None),
            (3, 2, &[7, 9], Some(9..=9)),
            (3, 2, &[7, 9, 8], Some(8..=9)),
            (5, 3, &[1, 2, 3], Some(3..=3)),
            (5, 3, &[5, 4, 3, 2, 1], Some(3..=5)),
            (1, 1, &[4], Some(4..=4)),
        ];
        for (n, m, lens, expected) in cases {
            assert_eq!(sealed_lens(n, m, lens), expected, "{n}/{m} {lens:?}");
        }
    }

    /// All ways to have bytes on replicas, of which any set may answer.
    #[test]
    fn no_acknowledged_byte_is_cut_by_any_set_of_votes() {
        for (n, m) in [(1, 1), (2, 2), (3, 2), (3, 3), (4, 3), (5, 3), (5, 4)] {
            for code in 0..4u32.pow(n as u32) {
                let lens: Vec<u32> = (0..n).map(|i| code / 4u32.pow(i as u32) % 4).collect();
                let mut sorted = lens.clone();
                sorted.sort_unstable_by(|a, b| b.cmp(a));
                let acknowledged = sorted[m - 1];
                for set in 0..1usize << n {
                    let votes: Vec<u32> =
                        (0..n).filter(|i| set >> i & 1 == 1).map(|i| lens[i]).collect();
                    match sealed_lens(n, m, &votes) {
                        Some(range) => {
                            assert!(*range.start() >= acknowledged, "{n}/{m} {lens:?} {votes:?}");
                            assert!(votes.contains(range.end()) && !range.is_empty());
                        }
                        None => assert!(votes.len() < n - m + 1),
                    }
                }
            }
        }
    }

    /// One disk loses the end of its replica silently; all replicas answer.
    #[test]
    fn end_that_one_disk_lost_silently_is_not_cut() {
        let (mut cases, mut cut, mut by_rank) = (0, 0, 0);
        for (n, m) in [(2, 2), (3, 2), (3, 3), (4, 3), (5, 3), (5, 4)] {
            for code in 0..4u32.pow(n as u32) {
                let lens: Vec<u32> = (0..n).map(|i| code / 4u32.pow(i as u32) % 4).collect();
                let mut sorted = lens.clone();
                sorted.sort_unstable_by(|a, b| b.cmp(a));
                let acknowledged = sorted[m - 1];
                for lossy in 0..n {
                    for left in 0..lens[lossy] {
                        let mut votes = lens.clone();
                        votes[lossy] = left;
                        let range = sealed_lens(n, m, &votes).expect("all votes");
                        cases += 1;
                        cut += u32::from(*range.end() < acknowledged);
                        by_rank += u32::from(*range.start() < acknowledged);
                    }
                }
            }
        }
        assert_eq!((cases, cut, by_rank), (17_520, 0, 6_704));
    }
}
