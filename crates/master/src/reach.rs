//! Reach: a leader whom others hear and do not reach is *grey* (what is sent to it is lost, its own
//! connections stay). It leads for ever, since its heartbeats come, and serves none
//! (`protocols-tail.md` 10.12). Masters ping each other; the answers say whom their sender hears and
//! does not reach, so that a grey master learns it over its own connections, and hands over.
//!
//! What clients say plays no part: a client that does not reach a leader has another master relay.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use runtime::{Duration, Instant};

use crate::limits::{
    DOUBTED, HAND_OVER_PAUSE, HAND_OVERS_MAX, HAND_OVERS_SPAN, HEARD_MIN, PAUSED, PING, PING_GAP,
};

/// The ways between a master and the others.
#[derive(Debug)]
pub(crate) struct Reach {
    /// A master that answers no ping for so long is not reached.
    unreached: Duration,
    ways: BTreeMap<u64, Way>,
    /// The latest round of pings.
    round: Option<Instant>,
    /// When it has handed over, the latest last.
    handed: VecDeque<Instant>,
}

/// To another master, and from it.
#[derive(Debug)]
struct Way {
    /// When the latest ping was sent that it has answered, or since when it is pinged.
    answered: Instant,
    /// The latest ping of its own, and since when they come without a gap.
    heard: Instant,
    heard_since: Instant,
    /// Its latest answer says that it does not reach this master.
    doubts: Option<Instant>,
}

impl Way {
    fn is_reached(&self, now: Instant, unreached: Duration) -> bool {
        now - self.answered < unreached
    }

    /// Its pings came while it answered none.
    fn is_heard(&self, now: Instant) -> bool {
        let since = self.heard_since.max(self.answered);
        now - self.heard < PING_GAP && self.heard > since && self.heard - since >= HEARD_MIN
    }
}

impl Reach {
    /// It knows of no other yet.
    pub(crate) fn new(unreached: Duration) -> Reach {
        let (ways, handed) = (BTreeMap::new(), VecDeque::new());
        Reach { unreached, ways, round: None, handed }
    }

    /// A round of pings to `others` begins.
    pub(crate) fn begin_round(&mut self, now: Instant, others: &BTreeSet<u64>) {
        let paused = self.round.is_some_and(|round| now - round > PING + PAUSED);
        self.round = Some(now);
        self.ways.retain(|other, _| others.contains(other));
        for &other in others {
            let fresh = Way { answered: now, heard: now, heard_since: now, doubts: None };
            let way = self.ways.entry(other).or_insert(fresh);
            if paused {
                // Answers may wait to be read.
                way.answered = now;
            }
        }
    }

    /// A ping of another master has come.
    pub(crate) fn note_ping(&mut self, now: Instant, from: u64) {
        if let Some(way) = self.ways.get_mut(&from) {
            if now - way.heard > PING_GAP {
                way.heard_since = now;
            }
            way.heard = now;
        }
    }

    /// Another master has answered the ping that was sent at `sent`; `doubts`: it does not reach this
    /// one.
    pub(crate) fn note_answer(&mut self, now: Instant, from: u64, sent: Instant, doubts: bool) {
        if let Some(way) = self.ways.get_mut(&from) {
            way.answered = way.answered.max(sent);
            way.doubts = doubts.then_some(now);
        }
    }

    /// Masters that this one hears and does not reach. None while it reaches no other: then it is cut
    /// off itself.
    pub(crate) fn unreached(&self, now: Instant) -> BTreeSet<u64> {
        let ways = || self.ways.iter();
        let reached = |way: &Way| way.is_reached(now, self.unreached);
        if !ways().any(|(_, way)| reached(way)) {
            return BTreeSet::new();
        }
        let unreached = ways().filter(|(_, way)| !reached(way) && way.is_heard(now));
        unreached.map(|(&other, _)| other).collect()
    }

    /// Masters to whom this one should hand over what it leads: those it reaches, and of these the
    /// ones that reach it, if there are any. None while fewer than half of the others hear it without
    /// reaching it, or when it has handed over lately.
    pub(crate) fn successors(&self, now: Instant) -> Option<BTreeSet<u64>> {
        let doubts = |way: &Way| way.doubts.is_some_and(|at| now - at < DOUBTED);
        let doubting = self.ways.values().filter(|way| doubts(way)).count();
        if doubting == 0 || doubting * 2 < self.ways.len() || !self.may_hand_over(now) {
            return None;
        }
        let reached = self.ways.iter().filter(|(_, way)| way.is_reached(now, self.unreached));
        let (doubting, best): (Vec<_>, Vec<_>) = reached.partition(|(_, way)| doubts(way));
        let chosen = if best.is_empty() { doubting } else { best };
        Some(chosen.into_iter().map(|(&other, _)| other).collect())
    }

    /// It hands over.
    pub(crate) fn note_hand_over(&mut self, now: Instant) {
        self.handed.push_back(now);
        while self.handed.len() > HAND_OVERS_MAX {
            self.handed.pop_front();
        }
    }

    fn may_hand_over(&self, now: Instant) -> bool {
        let lately = |span| self.handed.iter().filter(|&&at| now - at < span).count();
        lately(HAND_OVER_PAUSE) == 0 && lately(HAND_OVERS_SPAN) < HAND_OVERS_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::UNREACHED;

    /// Three masters whose pings are lost where a test says so.
    struct World {
        now: Instant,
        masters: Vec<Reach>,
        /// Ways, as (from, to), on which pings are lost; answers come back where a ping has come.
        lost: BTreeSet<(usize, usize)>,
        /// Masters that stand still.
        still: BTreeSet<usize>,
    }

    impl World {
        fn new() -> World {
            World {
                now: Instant::default() + Duration::from_secs(1000),
                masters: (0..3).map(|_| Reach::new(UNREACHED)).collect(),
                lost: BTreeSet::new(),
                still: BTreeSet::new(),
            }
        }

        fn others(own: usize) -> BTreeSet<u64> {
            (0..3).filter(|&other| other != own as u64).collect()
        }

        fn run(&mut self, rounds: u32) {
            for _ in 0..rounds {
                self.now = self.now + PING;
                for own in 0..3 {
                    if self.still.contains(&own) {
                        continue;
                    }
                    self.masters[own].begin_round(self.now, &World::others(own));
                    for other in (0..3).filter(|&other| other != own) {
                        if self.lost.contains(&(own, other)) || self.still.contains(&other) {
                            continue;
                        }
                        self.masters[other].note_ping(self.now, own as u64);
                        let doubts = self.masters[other].unreached(self.now);
                        let (sent, doubts) = (self.now, doubts.contains(&(own as u64)));
                        self.masters[own].note_answer(self.now, other as u64, sent, doubts);
                    }
                }
            }
        }

        fn make_grey(&mut self, master: usize) {
            self.lost.extend((0..3).filter(|&other| other != master).map(|one| (one, master)));
        }

        fn successors(&self, own: usize) -> Option<Vec<u64>> {
            let successors = self.masters[own].successors(self.now);
            successors.map(|successors| successors.into_iter().collect())
        }
    }

    #[test]
    fn grey_master_hands_over_within_a_quarter_of_a_second() {
        let mut world = World::new();
        world.run(20);
        assert_eq!(world.successors(0), None);
        world.make_grey(0);
        world.run(5);
        assert_eq!(world.successors(0), Some(vec![1, 2]));
        assert_eq!((world.successors(1), world.successors(2)), (None, None));
    }

    #[test]
    fn master_that_one_of_two_does_not_reach_hands_over_to_the_other() {
        let mut world = World::new();
        world.run(20);
        world.lost.insert((1, 0));
        world.run(5);
        assert_eq!(world.successors(0), Some(vec![2]));
    }

    #[test]
    fn master_that_reaches_none_doubts_none() {
        let mut world = World::new();
        world.run(20);
        world.lost.extend([(1, 0), (1, 2)]);
        world.run(20);
        assert_eq!(world.masters[1].unreached(world.now), BTreeSet::new());
        assert_eq!((world.successors(0), world.successors(2)), (None, None));
    }

    #[test]
    fn master_that_stands_still_is_not_doubted_and_doubts_none_when_it_goes_on() {
        let mut world = World::new();
        world.run(20);
        for length in [3, 5, 50] {
            world.still.insert(0);
            for _ in 0..length {
                world.run(1);
                assert_eq!((world.successors(1), world.successors(2)), (None, None));
                assert_eq!(world.masters[1].unreached(world.now), BTreeSet::new());
            }
            world.still.clear();
            for _ in 0..10 {
                world.run(1);
                for master in 0..3 {
                    assert_eq!(world.masters[master].unreached(world.now), BTreeSet::new());
                    assert_eq!(world.successors(master), None);
                }
            }
        }
    }

    #[test]
    fn hand_overs_are_few() {
        let mut world = World::new();
        world.run(20);
        world.make_grey(0);
        let mut handed = Vec::new();
        let second = Duration::from_secs(1).as_millis() / PING.as_millis();
        for _ in 0..300 * second as u32 {
            world.run(1);
            if world.successors(0).is_some() {
                handed.push(world.now);
                let now = world.now;
                world.masters[0].note_hand_over(now);
            }
        }
        assert_eq!(handed.len(), HAND_OVERS_MAX);
        assert!(handed.windows(2).all(|pair| pair[1] - pair[0] >= HAND_OVER_PAUSE));
    }
}
