//! When a member stands for election: when it has heard nothing of a leader for `election_timeout`, one
//! voter after the other, in the order of their numbers. The library draws its times, so that two
//! may stand at the same moment, split the votes, and stand again after another silence.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Weak;

use runtime::{Class, Duration, Env, Instant};

use crate::leadership::Leadership;
use crate::limits::ELECTION_TURN;
use crate::net::LocalFuture;

/// The latest sign of a leader at a member.
#[derive(Debug)]
pub(crate) struct Sign(Cell<Instant>);

impl Sign {
    pub(crate) fn at(now: Instant) -> Sign {
        Sign(Cell::new(now))
    }

    /// A leader's message was taken, or a vote given.
    pub(crate) fn note(&self, now: Instant) {
        self.0.set(now);
    }
}

/// A member that may stand for election.
pub(crate) trait Candidate {
    /// Its number.
    fn node(&self) -> u64;
    /// True once it is being stopped.
    fn is_closing(&self) -> bool;
    /// The leader, as far as it knows.
    fn leadership(&self) -> Leadership;
    /// Members with a vote.
    fn voters(&self) -> BTreeSet<u64>;
    /// The latest sign of a leader.
    fn sign(&self) -> &Sign;
    /// Asks the voters whether they would elect it, and stands for election if so.
    fn stand(&self) -> LocalFuture<'_, ()>;
}

/// Silence after which `node` stands for election when `silence` is what all wait. It is not to wait for
/// the `leader` that is silent.
pub(crate) fn due_after(
    silence: Duration,
    node: u64,
    voters: &BTreeSet<u64>,
    leader: Option<u64>,
) -> Duration {
    if voters.len() == 1 {
        return Duration::ZERO; // There is none to wait for.
    }
    let before = voters.iter().filter(|&&voter| voter < node && Some(voter) != leader).count();
    silence + ELECTION_TURN * before as u32
}

/// Lets a member stand for election when it is time, until it has stopped.
pub(crate) fn watch(env: &Env, silence: Duration, member: Weak<dyn Candidate>) {
    let clock = env.clone();
    env.spawn(Class::Control, "raft elections", async move {
        let mut look = clock.now();
        loop {
            clock.sleep_until(look).await;
            let Some(member) = member.upgrade() else { return };
            if member.is_closing() {
                return;
            }
            let (now, leadership, voters) = (clock.now(), member.leadership(), member.voters());
            if leadership.leading || !voters.contains(&member.node()) {
                member.sign().note(now);
                look = now + silence / 2;
                continue;
            }
            let due = due_after(silence, member.node(), &voters, leadership.leader);
            look = member.sign().0.get() + due;
            if look <= now {
                member.stand().await;
                // Others have their turns before that, and two that stand together part.
                look = now + silence / 2 + clock.jitter(silence / 2);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn voters_stand_one_after_the_other_and_do_not_wait_for_the_silent_leader() {
        let silence = Duration::from_millis(300);
        let voters = BTreeSet::from([2, 4, 9]);
        let due = |node, leader| due_after(silence, node, &voters, leader) - silence;
        assert_eq!(due(2, None), Duration::ZERO);
        assert_eq!((due(4, None), due(9, None)), (ELECTION_TURN, 2 * ELECTION_TURN));
        assert_eq!((due(4, Some(2)), due(9, Some(2))), (Duration::ZERO, ELECTION_TURN));
        assert_eq!((due(2, Some(9)), due(4, Some(9))), (Duration::ZERO, ELECTION_TURN));
        assert_eq!(due_after(silence, 4, &BTreeSet::from([4]), Some(4)), Duration::ZERO);
    }
}
