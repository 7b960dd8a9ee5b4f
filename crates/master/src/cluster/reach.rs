//! Reach of chunkservers, as one master sees it: a server serves when its heartbeats come *and* it
//! answers pings (`protocols-tail.md` 10.7). One whose inbound packets are lost, while its own
//! connections stay, sends heartbeats for ever and serves no client. It gets no new chunks, and counts
//! as silent in all but one thing: a writer that reaches it goes on.
//!
//! A master that reaches fewer than half of the others judges none: it is cut off itself. Nor does it
//! judge a single server, which it could not tell from that. State without I/O or clock: times are
//! passed in, and do not go back.

use std::collections::BTreeMap;
use std::time::Duration;

use base::ServerId;
use runtime::Instant;

use crate::limits::{SERVER_PING, SERVER_PING_PAUSED, SERVER_REACHED_AGAIN, SERVER_UNREACHED};

/// What the pings to one server say.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServerReach {
    /// When the latest ping was sent that it has answered, or since when it is pinged.
    answered: Instant,
    /// Its latest heartbeat, and since when they come without a gap. A process that stands still
    /// sends none and answers nothing: heartbeats decide about it.
    heartbeat: Instant,
    heartbeats_since: Instant,
    /// Since when it is not reached.
    unreached: Option<Instant>,
    /// Since when one that was not reached answers again.
    back: Option<Instant>,
}

impl ServerReach {
    /// Of a server that is pinged from now on.
    pub(super) fn new(now: Instant) -> ServerReach {
        let (unreached, back) = (None, None);
        ServerReach { answered: now, heartbeat: now, heartbeats_since: now, unreached, back }
    }

    /// A heartbeat has come. `gap`: one that comes later than this after another does not continue it.
    pub(super) fn note_heartbeat(&mut self, now: Instant, gap: Duration) {
        if now - self.heartbeat > gap {
            self.heartbeats_since = now;
        }
        self.heartbeat = now;
    }

    /// It has answered a ping that was sent at `sent`.
    pub(super) fn note_answer(&mut self, sent: Instant) {
        self.answered = self.answered.max(sent);
    }

    /// Its silence so far says nothing: this master stood still, or was cut off.
    fn excuse(&mut self, now: Instant) {
        self.answered = now;
    }

    /// Since when it is not reached; `None` while it is.
    pub(super) fn unreached(&self) -> Option<Instant> {
        self.unreached
    }

    /// True unless it went on sending heartbeats and answered none of the latest pings.
    fn answers(&self, now: Instant) -> bool {
        let silent = self.heartbeat - self.answered.max(self.heartbeats_since);
        now - self.answered < SERVER_UNREACHED || silent < SERVER_UNREACHED / 2
    }

    /// True when it has answered a ping that was sent at `since` or later.
    fn answered_since(&self, since: Instant) -> bool {
        self.answered >= since
    }

    /// Judges one that `answers` or not. True when it changes.
    fn judge(&mut self, now: Instant, answers: bool) -> bool {
        match (self.unreached, answers) {
            (None, true) => return false,
            (None, false) => (self.unreached, self.back) = (Some(now), None),
            (Some(_), false) => {
                self.back = None;
                return false;
            }
            (Some(_), true) => {
                if now - *self.back.get_or_insert(now) < SERVER_REACHED_AGAIN {
                    return false;
                }
                self.unreached = None;
            }
        }
        true
    }
}

/// Rounds of pings to all servers that send heartbeats.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rounds {
    last: Option<Instant>,
    /// This master is cut off itself.
    cut_off: bool,
}

impl Rounds {
    /// True while this master reaches fewer than half of the servers.
    pub(super) fn is_cut_off(&self) -> bool {
        self.cut_off
    }

    /// A round begins: judges servers by their answers so far. Returns those that have changed, and
    /// whether each is unreached now.
    pub(super) fn begin(
        &mut self,
        servers: &mut BTreeMap<ServerId, ServerReach>,
        now: Instant,
    ) -> Vec<(ServerId, bool)> {
        let last = self.last.replace(now);
        if last.is_some_and(|last| now - last > SERVER_PING + SERVER_PING_PAUSED) {
            // This master stood still: answers may wait to be read.
            servers.values_mut().for_each(|server| server.excuse(now));
        }
        let (all, reached) =
            (servers.len(), servers.values().filter(|server| server.answers(now)).count());
        let was_cut_off = std::mem::replace(&mut self.cut_off, reached * 2 < all.saturating_sub(1));
        if self.cut_off || all < 2 {
            return Vec::new();
        }
        if was_cut_off {
            // What they have not answered so far was lost; some connections come back later.
            servers.values_mut().for_each(|server| server.excuse(now));
        }
        let changed = servers.iter_mut().filter_map(|(id, server)| {
            let answers = server.answers(now);
            server.judge(now, answers).then_some((*id, server.unreached.is_some()))
        });
        changed.collect()
    }
}

/// True when at least half of the others than `server` have answered a ping since `since`: a master that
/// is cut off itself reaches fewer, and proves nothing.
pub(super) fn reaches_half(
    servers: &BTreeMap<ServerId, ServerReach>,
    server: ServerId,
    since: Instant,
) -> bool {
    let others = servers.iter().filter(|(id, _)| **id != server);
    let (mut all, mut reached) = (0, 0);
    for (_, other) in others {
        all += 1;
        reached += usize::from(other.answered_since(since));
    }
    all > 0 && reached * 2 >= all
}

#[cfg(test)]
mod tests {
    use super::*;

    const GAP: Duration = Duration::from_millis(750);

    struct World {
        now: Instant,
        servers: BTreeMap<ServerId, ServerReach>,
        rounds: Rounds,
    }

    impl World {
        fn new(servers: u32) -> World {
            let now = Instant::default() + Duration::from_secs(1000);
            let id = |at| (ServerId::new(at), ServerReach::new(now));
            World { now, servers: (0..servers).map(id).collect(), rounds: Rounds::default() }
        }

        /// Rounds in which those of `beat` send heartbeats and those of `answer` answer.
        fn run(&mut self, time: Duration, beat: &[u32], answer: &[u32]) {
            for _ in 0..time.as_millis() / SERVER_PING.as_millis() {
                self.now = self.now + SERVER_PING;
                let now = self.now;
                beat.iter().for_each(|at| self.server(*at).note_heartbeat(now, GAP));
                self.rounds.begin(&mut self.servers, now);
                answer.iter().for_each(|at| self.server(*at).note_answer(now));
            }
        }

        fn server(&mut self, at: u32) -> &mut ServerReach {
            self.servers.get_mut(&ServerId::new(at)).expect("a server")
        }

        fn unreached(&self) -> Vec<u32> {
            let lost = self.servers.iter().filter(|(_, server)| server.unreached.is_some());
            lost.map(|(id, _)| id.get()).collect()
        }
    }

    const SECOND: Duration = Duration::from_secs(1);
    const ALL: [u32; 4] = [0, 1, 2, 3];

    #[test]
    fn grey_server_is_unreached_after_four_pings_and_back_after_two_seconds() {
        let mut world = World::new(4);
        world.run(5 * SECOND, &ALL, &ALL);
        assert!(world.unreached().is_empty());
        world.run(SERVER_UNREACHED - SERVER_PING, &ALL, &[0, 1, 2]);
        assert!(world.unreached().is_empty());
        world.run(2 * SERVER_PING, &ALL, &[0, 1, 2]);
        assert_eq!(world.unreached(), [3]);
        world.run(SERVER_REACHED_AGAIN - SERVER_PING, &ALL, &ALL);
        assert_eq!(world.unreached(), [3]);
        world.run(3 * SERVER_PING, &ALL, &ALL);
        assert!(world.unreached().is_empty());
    }

    #[test]
    fn one_that_answers_now_and_then_stays_unreached_no_longer_than_it_does_not() {
        let mut world = World::new(4);
        world.run(5 * SECOND, &ALL, &[0, 1, 2]);
        for _ in 0..3 {
            world.run(SECOND, &ALL, &ALL);
            world.run(2 * SECOND, &ALL, &[0, 1, 2]);
            assert_eq!(world.unreached(), [3]);
        }
    }

    #[test]
    fn server_that_stands_still_is_judged_by_its_heartbeats() {
        let mut world = World::new(4);
        world.run(5 * SECOND, &ALL, &ALL);
        world.run(2 * SECOND, &[0, 1, 2], &[0, 1, 2]);
        // Its heartbeat is there before its answers.
        world.run(SERVER_PING, &ALL, &[0, 1, 2]);
        assert!(world.unreached().is_empty());
        world.run(5 * SECOND, &ALL, &ALL);
        assert!(world.unreached().is_empty());
    }

    #[test]
    fn master_that_is_cut_off_judges_none() {
        let mut world = World::new(4);
        world.run(5 * SECOND, &ALL, &ALL);
        world.run(20 * SECOND, &ALL, &[]);
        assert!(world.unreached().is_empty());
        world.run(5 * SECOND, &ALL, &[0]);
        assert!(world.unreached().is_empty());
        // What it has missed before is held against none.
        world.run(SERVER_UNREACHED - SERVER_PING, &ALL, &[0, 1]);
        assert!(world.unreached().is_empty());
        world.run(5 * SECOND, &ALL, &[0, 1]);
        assert_eq!(world.unreached(), [2, 3]);
    }

    #[test]
    fn one_of_two_servers_may_be_unreached() {
        let mut world = World::new(2);
        world.run(5 * SECOND, &[0, 1], &[0]);
        assert_eq!(world.unreached(), [1]);
    }

    #[test]
    fn single_server_is_not_judged() {
        let mut world = World::new(1);
        world.run(5 * SECOND, &[0], &[]);
        assert!(world.unreached().is_empty());
    }

    #[test]
    fn master_that_stood_still_holds_no_silence_against_servers() {
        let mut world = World::new(4);
        world.run(5 * SECOND, &ALL, &ALL);
        world.now = world.now + 10 * SECOND;
        // Heartbeats that waited are read first.
        world.run(SERVER_PING, &ALL, &[]);
        world.run(SERVER_PING, &ALL, &ALL);
        assert!(world.unreached().is_empty());
    }
}
