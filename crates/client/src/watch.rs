//! Watch over the disks that a client uses: judges them while there are calls, and probes those that
//! are listed (C17, `protocols-tail.md` 10.5).

use std::rc::{Rc, Weak};

use base::{ChunkId, FileId};
use runtime::{Class, Duration, Env, Instant};
use wire::control::{
    CallClass, CallKind, ChunkserverReply, ChunkserverRequest, ControlReply, ControlRequest,
    ReplicaFault, ReplicaPlace, SizeClass,
};

use crate::client::{Client, ClientInner};
use crate::health::{Health, Target};
use crate::limits::{
    BLOCKED_MIN, BLOCKED_TIMES, LIST_IDLE, LIST_INTERVAL, LIST_PROBE_AGAIN, LIST_PROBE_PAUSE,
    LIST_PROBE_TIMEOUT, SUSPECT_AGE,
};
use crate::lists::{Changes, Lists, Probed};
use crate::peers::PeerError;
use crate::writer::BlockedAfter;

impl ClientInner {
    /// Starts the watch, unless it runs.
    pub(crate) fn watch(self: &Rc<Self>) {
        if !self.watching.replace(true) {
            self.health.borrow_mut().watched(self.env.now());
            let watch = run(self.env.clone(), Rc::downgrade(self));
            self.env.spawn(Class::Foreground, "client: watch over disks", watch);
        }
    }

    /// Judges disks, and starts the probes that are due. False when there is nothing to do.
    fn watch_once(self: &Rc<Self>) -> bool {
        let now = self.env.now();
        let (health, lists) = (&mut *self.health.borrow_mut(), &mut *self.lists.borrow_mut());
        if !health.tick(now) {
            self.env.mark("lists: this process stood still");
        }
        let before = lists.changes();
        lists.judge(health, now, |bound| self.env.random_below(bound));
        let doubts = lists.doubts_itself(now);
        if doubts {
            self.env.mark("lists: too many at once");
        }
        let most = self.config.writer.replica_timeout;
        self.set_blocked_after(match doubts {
            // It is this process or its network: no chunk is to end for that.
            true => [most; _],
            false => blocked_after(health, most, now),
        });
        for target in lists.take_due(now) {
            let peer = self.peer_of(target, &health.targets(), lists);
            self.env.spawn(Class::Foreground, "client: probe", probe(self.clone(), target, peer));
        }
        self.note_changes(before, lists);
        let goes_on = !lists.is_empty() || !health.is_idle(LIST_IDLE, now);
        if !goes_on {
            self.watching.set(false);
            health.unwatched();
        }
        goes_on
    }

    /// Sets how long writers wait for copies. Those that have set their timers by twice as long a wait, or
    /// more, set them again.
    fn set_blocked_after(&self, after: BlockedAfter) {
        self.blocked_after.set(after);
        let mut armed = self.blocked_armed.get();
        let mut shorter = false;
        for (armed, after) in armed.iter_mut().zip(after) {
            *armed = after.max(*armed);
            shorter |= after * 2 <= *armed;
        }
        if shorter {
            self.env.mark("client: appends wait less for copies");
            self.writer_news.notify_waiters();
            armed = after;
        }
        self.blocked_armed.set(armed);
    }

    /// A disk at another address that is not listed.
    fn peer_of(&self, target: Target, known: &[Target], lists: &Lists) -> Option<Target> {
        let good = |it: &&Target| it.addr != target.addr && !lists.is_asked_last(**it);
        let good: Vec<_> = known.iter().filter(good).collect();
        let count = good.len() as u64;
        (count > 0).then(|| *good[self.env.random_below(count) as usize])
    }

    fn note_changes(&self, before: Changes, lists: &Lists) {
        let (after, listed) = (lists.changes(), lists.listed());
        let count = listed.len() as i64;
        self.list_metrics.now.add(count - self.listed_now.replace(count));
        if after == before {
            return;
        }
        self.list_metrics.listed.add(after.listed - before.listed);
        self.list_metrics.returned.add(after.returned - before.returned);
        for _ in before.listed..after.listed {
            self.env.mark("lists: a disk is listed");
        }
        for _ in before.returned..after.returned {
            self.env.mark("lists: a disk is good again");
        }
        for listed in listed {
            tracing::info!(
                addr = %listed.target.addr,
                disk = %listed.target.disk,
                state = ?listed.state,
                reason = ?listed.reason,
                "a disk is asked last"
            );
        }
    }

    /// Probes a disk. A link that broke while nothing used it refuses the first call: the second counts.
    async fn probe(&self, target: Target) -> Probed {
        let begun = self.env.now();
        match self.ask_probe(target).await {
            Probed::Unanswered if self.env.now() - begun < SUSPECT_AGE => {
                self.env.sleep(LIST_PROBE_AGAIN).await;
                self.ask_probe(target).await
            }
            probed => probed,
        }
    }

    async fn ask_probe(&self, target: Target) -> Probed {
        let begun = self.env.now();
        let request = ChunkserverRequest::Probe { disk: target.disk };
        let request = ControlRequest::Chunkserver(request);
        let answer = self.peers.control(target.addr.into(), request, LIST_PROBE_TIMEOUT).await;
        let took = self.env.now() - begun;
        match answer {
            Ok(ControlReply::Chunkserver(ChunkserverReply::Probed { took_us })) => {
                Probed::Served(took.max(Duration::from_micros(took_us)))
            }
            // An earlier version, which knows no probes: it answers.
            Ok(_) => Probed::Served(took),
            Err(PeerError::Refused(error)) => match error.kind {
                base::Kind::Invalid => Probed::Served(took),
                base::Kind::Retry => Probed::Late,
                _ => Probed::Failed,
            },
            Err(PeerError::Busy) => Probed::Late,
            Err(PeerError::Foreign(_)) => Probed::Failed,
            Err(PeerError::Unreachable(_) | PeerError::Silent(_)) => {
                match self.health.borrow().age(begun, self.env.now()) < took {
                    true => Probed::Unknown,
                    false => Probed::Unanswered,
                }
            }
        }
    }
}

/// How long an append waits for copies (`protocols-tail.md` 10.3): while nothing is known, as long as for
/// servers that are gone.
fn blocked_after(health: &mut Health, most: Duration, now: Instant) -> BlockedAfter {
    SizeClass::ALL.map(|size| {
        let usual = health.healthy(CallClass { kind: CallKind::Append, size }, 999, now);
        usual.map_or(most, |usual| (usual * BLOCKED_TIMES).max(BLOCKED_MIN))
    })
}

impl Client {
    /// A replica leaves an append without an answer for longer than others. When its server does not answer
    /// a probe either, masters hear that it is not reached.
    pub(crate) fn doubt(&self, file: FileId, chunk: ChunkId, place: ReplicaPlace) {
        let client = self.clone();
        self.0.env.spawn(Class::Background, "client: probe", async move {
            if client.0.probe(Target::of(&place)).await == Probed::Unanswered {
                client.report(file, chunk, place.server, ReplicaFault::Unreachable);
            }
        });
    }
}

async fn run(env: Env, client: Weak<ClientInner>) {
    loop {
        env.sleep(LIST_INTERVAL).await;
        let Some(client) = client.upgrade() else { return };
        if !client.watch_once() {
            return;
        }
    }
}

/// Probes a disk, and for comparison one that is not listed.
async fn probe(client: Rc<ClientInner>, target: Target, peer: Option<Target>) {
    let beside = async {
        match peer {
            Some(peer) => match client.probe(peer).await {
                Probed::Served(took) => Some(took),
                _ => None,
            },
            None => None,
        }
    };
    let (probed, beside) = futures_util::future::join(client.probe(target), beside).await;
    client.env.mark("lists: a disk is probed");
    let now = client.env.now();
    let next = now + client.env.jitter(LIST_PROBE_PAUSE);
    let (health, lists) = (&mut *client.health.borrow_mut(), &mut *client.lists.borrow_mut());
    let before = lists.changes();
    lists.probed(target, (probed, beside), health, (now, next));
    client.note_changes(before, lists);
}
