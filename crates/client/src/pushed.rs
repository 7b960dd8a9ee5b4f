//! Abnormal servers as masters push them (C28, `protocols-tail.md` 10.6): a background task of each
//! client asks once a second who is unreached or slow, and who drains. The answer is for the order in which servers are asked,
//! and for placement: it is no evidence, and ends by itself when masters do not renew it.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};

use base::{Kind, ServerId};
use runtime::{Class, Duration, Env, Instant};
use wire::control::limits::ABNORMAL_MAX;
use wire::control::{
    AbnormalServer, AbnormalServers, AbnormalVersion, ClusterReply, ClusterRequest, ControlReply,
    ControlRequest, Group,
};

use crate::client::ClientInner;
use crate::limits::{
    PUSHED_ATTEMPT, PUSHED_IDLE, PUSHED_LIFE, PUSHED_POLL, PUSHED_POLL_IDLE, PUSHED_UNKNOWN,
};
use crate::lists::ListReason;
use crate::session::{Question, unexpected_reply};

/// What masters have pushed.
#[derive(Debug, Default)]
pub(crate) struct Pushed {
    version: Option<AbnormalVersion>,
    /// Servers that masters do not reach, and since when this client knows.
    unreached: BTreeMap<ServerId, Instant>,
    /// Servers whose disks are much slower than those of others, as masters see it.
    slow: BTreeMap<ServerId, Instant>,
    /// Servers that operators have emptied: they serve, and writers end their chunks there.
    draining: BTreeSet<ServerId>,
    /// When masters answered last.
    heard: Instant,
}

impl Pushed {
    /// Version of the list, to ask for what has changed since.
    pub(crate) fn version(&self) -> Option<AbnormalVersion> {
        self.version
    }

    /// Servers that masters do not reach, and those with slow disks, since when this client knows.
    pub(crate) fn abnormal(&self) -> BTreeMap<ServerId, (ListReason, Instant)> {
        let with =
            |reason| move |(&server, &since): (&ServerId, &Instant)| (server, (reason, since));
        let slow = self.slow.iter().map(with(ListReason::MastersSlow));
        slow.chain(self.unreached.iter().map(with(ListReason::MastersUnreached))).collect()
    }

    /// Servers that are being emptied.
    pub(crate) fn draining(&self) -> &BTreeSet<ServerId> {
        &self.draining
    }

    /// Masters have answered. True when the list is another one now.
    pub(crate) fn take(&mut self, answer: &AbnormalServers, now: Instant) -> bool {
        let before = (self.named(), self.draining.clone());
        let boot = self.version.map(|version| version.boot);
        self.heard = now;
        if answer.many || !answer.full && boot != Some(answer.version.boot) {
            // Changes of a list that is not here: all of it is asked for next.
            self.unreached.clear();
            self.slow.clear();
        }
        if answer.full || boot != Some(answer.version.boot) {
            self.draining.clear();
        }
        self.version = (answer.full || boot == Some(answer.version.boot)).then_some(answer.version);
        if self.version.is_some() && !answer.many {
            for (servers, of) in [
                (&mut self.unreached, (|it| it.unreached) as fn(&AbnormalServer) -> bool),
                (&mut self.slow, |it| it.slow),
            ] {
                if answer.full {
                    servers
                        .retain(|server, _| answer.servers.iter().any(|it| it.server == *server));
                }
                for one in &answer.servers {
                    match of(one) {
                        true => drop(servers.entry(one.server).or_insert(now)),
                        false => drop(servers.remove(&one.server)),
                    }
                }
            }
            if self.unreached.len().max(self.slow.len()) > ABNORMAL_MAX {
                // No master names so many.
                (self.version, self.unreached, self.slow) = Default::default();
            }
        }
        // An operator's doing, and named however many are unreached.
        for one in answer.servers.iter().filter(|_| self.version.is_some()) {
            match one.draining {
                true => self.draining.insert(one.server),
                false => self.draining.remove(&one.server),
            };
        }
        if self.draining.len() > ABNORMAL_MAX {
            (self.version, self.draining) = (None, BTreeSet::new());
        }
        before.0 != self.named() || before.1 != self.draining
    }

    /// Servers that are unreached, and those that are slow.
    fn named(&self) -> (Vec<ServerId>, Vec<ServerId>) {
        (self.unreached.keys().copied().collect(), self.slow.keys().copied().collect())
    }

    /// Masters have not answered. True when the list ends with that.
    pub(crate) fn miss(&mut self, now: Instant) -> bool {
        let named =
            !self.unreached.is_empty() || !self.slow.is_empty() || !self.draining.is_empty();
        let over = now.since(self.heard) >= PUSHED_LIFE && named;
        if over {
            *self = Pushed::default();
        }
        over
    }
}

impl ClientInner {
    /// Polls masters for as long as the client is there.
    pub(crate) fn poll_masters(self: &Rc<Self>) {
        let polling = poll(self.env.clone(), Rc::downgrade(self));
        self.env.spawn(Class::Background, "client: poll for abnormal servers", polling);
    }
}

async fn poll(env: Env, client: Weak<ClientInner>) {
    let mut pushed = Pushed::default();
    loop {
        let Some(held) = client.upgrade() else { return };
        let pause = poll_once(&held, &mut pushed).await;
        drop(held);
        env.sleep(spread(&env, pause)).await;
    }
}

/// A fifth less to a fifth more: clients that have started together do not ask together.
fn spread(env: &Env, pause: Duration) -> Duration {
    let fifth = u64::try_from(pause.as_nanos() / 5).unwrap_or(u64::MAX);
    pause * 4 / 5 + Duration::from_nanos(env.random_below(2 * fifth.max(1)))
}

/// Asks once. Answers when to ask again.
async fn poll_once(client: &Rc<ClientInner>, pushed: &mut Pushed) -> Duration {
    let env = &client.env;
    let request = ClusterRequest::Abnormal { known: pushed.version() };
    let question = Question {
        group: Group::Cluster,
        request: ControlRequest::Cluster(request),
        attempt: client.config.control_attempt,
    };
    let answer = env.timeout(PUSHED_ATTEMPT, client.session.ask(question, false)).await;
    let answer = match answer {
        Ok(Ok(ControlReply::Cluster(ClusterReply::Abnormal(answer)))) => Ok(answer),
        Ok(Ok(other)) => Err(unexpected_reply(&other).kind),
        Ok(Err(refusal)) => Err(refusal.kind),
        Err(_) => Err(Kind::Retry),
    };
    let now = env.now();
    let usual = match client.health.borrow().is_idle(PUSHED_IDLE, now) {
        true => PUSHED_POLL_IDLE,
        false => PUSHED_POLL,
    };
    let (changed, pause) = match &answer {
        Ok(answer) => (pushed.take(answer, now), usual),
        // A master of an earlier version, which has no list.
        Err(Kind::Invalid) => (pushed.miss(now), PUSHED_UNKNOWN),
        Err(_) => (pushed.miss(now), usual),
    };
    if changed {
        env.mark("pushed: masters' list has changed");
        if !pushed.slow.is_empty() {
            env.mark("pushed: slow disks");
        }
        let names = |servers: &mut dyn Iterator<Item = &ServerId>| -> Vec<String> {
            servers.map(ServerId::to_string).collect()
        };
        let servers = names(&mut pushed.unreached.keys());
        let (slow, draining) = (names(&mut pushed.slow.keys()), names(&mut pushed.draining.iter()));
        tracing::info!(
            ?servers,
            ?slow,
            ?draining,
            "servers that masters do not reach, slow ones, or emptied ones"
        );
        let mut lists = client.lists.borrow_mut();
        lists.set_draining(pushed.draining().clone());
        lists.set_pushed(pushed.abnormal());
        drop(lists);
        client.writer_news.notify_waiters();
    }
    pause
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn answer(
        (boot, changes): (u64, u64),
        (full, many): (bool, bool),
        servers: &[(u32, bool)],
    ) -> AbnormalServers {
        let one = |&(server, unreached): &(u32, bool)| AbnormalServer {
            server: ServerId::new(server),
            unreached,
            slow: false,
            draining: false,
        };
        let version = AbnormalVersion { boot, changes };
        AbnormalServers { version, full, many, servers: servers.iter().map(one).collect() }
    }

    fn has(pushed: &Pushed) -> Vec<u32> {
        pushed.unreached.keys().map(|server| server.get()).collect()
    }

    #[test]
    fn list_follows_the_masters_answers() {
        let (mut pushed, start) = (Pushed::default(), Instant::from_nanos(1_000_000_000_000));
        assert!(pushed.take(&answer((7, 3), (true, false), &[(2, true), (5, true)]), start));
        assert_eq!(has(&pushed), [2, 5]);
        assert!(!pushed.take(&answer((7, 3), (false, false), &[]), start + SECOND));
        assert!(pushed.take(&answer((7, 5), (false, false), &[(2, false), (6, true)]), start));
        assert_eq!(has(&pushed), [5, 6]);
        // Another leader has all of them; one that stays is known for as long.
        assert!(pushed.take(&answer((8, 1), (true, false), &[(5, true)]), start + SECOND));
        assert_eq!(pushed.unreached.iter().collect::<Vec<_>>(), [(&ServerId::new(5), &start)]);
        assert!(pushed.take(&answer((8, 2), (true, true), &[]), start + SECOND));
        assert!(has(&pushed).is_empty() && pushed.version().is_some());
    }

    #[test]
    fn changes_of_a_list_that_is_not_known_are_none() {
        let now = Instant::from_nanos(1_000_000_000_000);
        let mut pushed = Pushed::default();
        pushed.take(&answer((7, 3), (true, false), &[(2, true)]), now);
        assert!(pushed.take(&answer((8, 9), (false, false), &[(3, true)]), now));
        assert!(has(&pushed).is_empty() && pushed.version().is_none());
    }

    #[test]
    fn draining_servers_are_kept_beside_unreached_ones() {
        let (mut pushed, now) = (Pushed::default(), Instant::from_nanos(1_000_000_000_000));
        let with = |changes, full, many, servers: &[(u32, bool)]| {
            let mut answer = answer((7, changes), (full, many), &[]);
            answer.servers.extend(servers.iter().map(|&(server, draining)| AbnormalServer {
                server: ServerId::new(server),
                unreached: false,
                slow: false,
                draining,
            }));
            answer
        };
        let drains = |pushed: &Pushed| -> Vec<u32> {
            pushed.draining().iter().map(|server| server.get()).collect()
        };
        assert!(pushed.take(&with(1, true, false, &[(2, true), (3, true)]), now));
        assert_eq!((has(&pushed), drains(&pushed)), (vec![], vec![2, 3]));
        assert!(pushed.take(&with(2, false, false, &[(2, false)]), now));
        // Many are unreached, and those that drain are named.
        assert!(!pushed.take(&with(3, true, true, &[(3, true)]), now));
        assert!(pushed.take(&with(4, false, true, &[(5, true)]), now));
        assert_eq!(drains(&pushed), [3, 5]);
        assert!(pushed.miss(now + PUSHED_LIFE) && drains(&pushed).is_empty());
    }

    #[test]
    fn slow_servers_come_and_go_and_unreached_ones_count_more() {
        let (mut pushed, now) = (Pushed::default(), Instant::from_nanos(1_000_000_000_000));
        let answer = |changes, full, many, servers: &[(u32, bool, bool)]| {
            let mut answer = answer((7, changes), (full, many), &[]);
            answer.servers.extend(servers.iter().map(|&(server, unreached, slow)| {
                AbnormalServer { server: ServerId::new(server), unreached, slow, draining: false }
            }));
            answer
        };
        let has = |pushed: &Pushed| -> Vec<_> {
            let abnormal = pushed.abnormal().into_iter();
            abnormal.map(|(server, (reason, _))| (server.get(), reason)).collect()
        };
        let (unreached, slow) = (ListReason::MastersUnreached, ListReason::MastersSlow);
        assert!(pushed.take(&answer(1, true, false, &[(2, true, true), (3, false, true)]), now));
        assert_eq!(has(&pushed), [(2, unreached), (3, slow)]);
        assert!(pushed.take(&answer(2, false, false, &[(2, false, true)]), now));
        assert_eq!(has(&pushed), [(2, slow), (3, slow)]);
        assert!(pushed.take(&answer(3, false, false, &[(3, false, false)]), now));
        assert_eq!(has(&pushed), [(2, slow)]);
        assert!(pushed.take(&answer(4, true, true, &[]), now) && has(&pushed).is_empty());
        assert!(pushed.take(&answer(5, true, false, &[(2, false, true)]), now));
        assert!(pushed.miss(now + PUSHED_LIFE) && has(&pushed).is_empty());
    }

    #[test]
    fn changes_without_end_are_not_taken() {
        let now = Instant::from_nanos(1_000_000_000_000);
        let mut pushed = Pushed::default();
        pushed.take(&answer((7, 0), (true, false), &[]), now);
        for change in 0..1000 {
            pushed.take(&answer((7, change), (false, false), &[(change as u32, true)]), now);
            assert!(has(&pushed).len() <= ABNORMAL_MAX);
        }
    }

    #[test]
    fn list_that_is_not_renewed_ends() {
        let (mut pushed, start) = (Pushed::default(), Instant::from_nanos(1_000_000_000_000));
        pushed.take(&answer((7, 3), (true, false), &[(2, true)]), start);
        pushed.take(&answer((7, 3), (false, false), &[]), start + SECOND);
        assert!(!pushed.miss(start + PUSHED_LIFE) && has(&pushed) == [2]);
        assert!(pushed.miss(start + PUSHED_LIFE + SECOND));
        assert!(has(&pushed).is_empty() && pushed.version().is_none());
        assert!(!pushed.miss(start + 2 * PUSHED_LIFE));
    }
}
