//! The length at which a lost writer's chunk is sealed (`protocols.md` 2.2, 2.3).

use std::ops::RangeInclusive;

use base::Epoch;
use wire::data::{ReplicaStat, ReplicaState};

/// What votes and seals of a chunk are counted by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Quorum {
    /// Replicas that take part in acknowledgements.
    pub n: usize,
    /// Of them, those that acknowledge: MinCopy.
    pub m: usize,
    /// Replicas that give the bytes back together: fragments of a code, or 1 copy.
    pub k: usize,
}

impl Quorum {
    /// Fenced answers that recovery needs: F = n - m + k (`protocols-tail.md` 9.7).
    pub fn votes_needed(self) -> usize {
        let Quorum { n, m, k } = self;
        assert!(1 <= k && k <= m && m <= n, "{self:?}");
        if planted(Planted::VotesAsCopies) { n - m + 1 } else { n - m + k }
    }

    /// Lengths at which a chunk may be sealed. An acknowledged byte is on at least
    /// `m - (n - votes)` of the fenced replicas, so no acknowledged length is above the vote of that
    /// rank, counted from the longest: it is the least. The most is the longest that `k` replicas have,
    /// which covers an acknowledged byte even where one of the others has lost it and does not know.
    /// `None` without enough votes.
    pub fn sealed_lens(self, lens: &[u32]) -> Option<RangeInclusive<u32>> {
        let Quorum { n, m, k } = self;
        if lens.len() < self.votes_needed() || lens.len() > n {
            return None;
        }
        let rank = m - (n - lens.len());
        let mut lens = lens.to_vec();
        lens.sort_unstable_by(|a, b| b.cmp(a));
        let k = if planted(Planted::SealBelowK) { 1 } else { k.min(lens.len()) };
        Some(lens[rank.max(k) - 1]..=lens[k - 1])
    }

    /// The longest length that the replicas which are left give back, however few they are: 0 when they
    /// give back nothing. What an operator takes who gives up the others.
    pub fn longest_left(self, lens: &[u32]) -> u32 {
        let mut lens = lens.to_vec();
        lens.sort_unstable_by(|a, b| b.cmp(a));
        lens.get(self.k - 1).copied().unwrap_or(0)
    }

    /// Replicas that are to hold a chunk before it is sealed where the cluster has no place for `m`:
    /// `floor` copies of the cluster's `disks`, and as many more than one as a code needs.
    pub fn holders_floor(self, floor: usize, disks: usize) -> usize {
        let Quorum { m, k, .. } = self;
        let most = (k - 1 + floor).min(disks).min(m);
        if k > 1 && !planted(Planted::SealBelowK) { most.max(k) } else { most }
    }

    /// True when a chunk may be sealed at `len` with so many holders: they give its bytes back.
    pub fn is_held(self, len: u32, holders: usize) -> bool {
        let k = if planted(Planted::SealBelowK) { 1 } else { self.k };
        len == 0 || holders >= k
    }
}

/// Lengths at which a chunk of `n` copies may be sealed, of which `m` acknowledge
/// ([`Quorum::sealed_lens`]).
pub fn sealed_lens(n: usize, m: usize, lens: &[u32]) -> Option<RangeInclusive<u32>> {
    Quorum { n, m, k: 1 }.sealed_lens(lens)
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

    /// Copies, and codes with each number of acknowledgements that recovery is to survive.
    const QUORUMS: [(usize, usize, usize); 12] = [
        (1, 1, 1),
        (2, 2, 1),
        (3, 2, 1),
        (3, 3, 1),
        (4, 3, 1),
        (5, 3, 1),
        (5, 4, 1),
        (3, 3, 2),
        (4, 3, 2),
        (4, 4, 2),
        (6, 5, 4),
        (6, 6, 4),
    ];

    /// All lengths of a chunk's replicas, of 4 each, with what is acknowledged then.
    fn each_state(quorum: Quorum, mut check: impl FnMut(&[u32], u32)) {
        let Quorum { n, m, .. } = quorum;
        for code in 0..4u32.pow(n as u32) {
            let lens: Vec<u32> = (0..n).map(|i| code / 4u32.pow(i as u32) % 4).collect();
            let mut sorted = lens.clone();
            sorted.sort_unstable_by(|a, b| b.cmp(a));
            check(&lens, sorted[m - 1]);
        }
    }

    /// All ways to have bytes on replicas, of which any set may answer. What may be sealed is on
    /// enough of them to be decoded.
    #[test]
    fn no_acknowledged_byte_is_cut_by_any_set_of_votes() {
        for (n, m, k) in QUORUMS {
            let quorum = Quorum { n, m, k };
            each_state(quorum, |lens, acknowledged| {
                for set in 0..1usize << n {
                    let votes: Vec<u32> =
                        (0..n).filter(|i| set >> i & 1 == 1).map(|i| lens[i]).collect();
                    match quorum.sealed_lens(&votes) {
                        Some(range) => {
                            assert!(
                                *range.start() >= acknowledged,
                                "{quorum:?} {lens:?} {votes:?}"
                            );
                            assert!(votes.contains(range.end()) && !range.is_empty());
                            let held = votes.iter().filter(|&len| len >= range.end()).count();
                            assert!(held >= k, "{quorum:?} {votes:?}: not to be decoded");
                        }
                        None => assert!(votes.len() < n - m + k),
                    }
                }
            });
        }
    }

    /// Any losses that a code is to survive at success leave enough votes; and the bugs in the count
    /// cut, or seal what cannot be decoded.
    #[test]
    fn codes_survive_the_losses_of_their_acknowledgements() {
        for (n, m, k) in QUORUMS.into_iter().filter(|quorum| quorum.2 > 1) {
            let quorum = Quorum { n, m, k };
            assert_eq!(n - (m - k), quorum.votes_needed());
            for bug in [Planted::VotesAsCopies, Planted::SealBelowK] {
                let mut found = false;
                super::super::planted::plant(Some(bug));
                each_state(quorum, |lens, acknowledged| {
                    let votes = &lens[..quorum.votes_needed()];
                    let range = quorum.sealed_lens(votes).expect("enough for the bug");
                    let held = lens.iter().filter(|&len| len >= range.end()).count();
                    found |= match bug {
                        Planted::VotesAsCopies => *range.end() < acknowledged,
                        _ => held < k,
                    };
                });
                super::super::planted::plant(None);
                // With all fragments in each acknowledgement every vote covers it.
                assert_eq!(found, bug == Planted::SealBelowK || m < n, "{bug:?} {quorum:?}");
            }
        }
    }

    #[test]
    fn holders_before_a_seal_are_never_fewer_than_decode() {
        let floor = |n, m, k, disks| Quorum { n, m, k }.holders_floor(2, disks);
        assert_eq!([1, 2, 3, 9].map(|disks| floor(3, 3, 1, disks)), [1, 2, 2, 2]);
        assert_eq!(floor(1, 1, 1, 9), 1);
        assert_eq!([4, 5, 9].map(|disks| floor(6, 5, 4, disks)), [4, 5, 5]);
        assert_eq!([2, 3, 9].map(|disks| floor(4, 4, 2, disks)), [2, 3, 3]);
        assert_eq!(floor(6, 6, 4, 3), 4, "fewer than four do not give the bytes back");
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
