//! Blocked appends (B15, `protocols-tail.md` 10.3): the oldest append waits for replicas that are late,
//! and too few others have it. The chunk ends at what is acknowledged, and the append goes into the
//! next one, on other servers: the backup of a write. How long it waits first follows from what
//! appends to healthy disks take.

use runtime::Instant;
use wire::control::{ChunkPlace, ReplicaFault, SizeClass};

use super::chunk::{Replica, Slot};
use super::core::Writer;
use super::event::Action;
use super::wait::BlockedAfter;
use crate::limits::{BLOCKED_LOOK, BLOCKED_MIN, OWN_PAUSE};
use crate::planted::{Planted, planted};

impl Writer {
    /// Takes over how long an append waits for copies before the chunk ends.
    pub fn set_blocked_after(&mut self, after: BlockedAfter) {
        self.copy_wait.after = after;
    }

    /// The oldest append that is not acknowledged, while it is copies that it waits for, and the replicas
    /// that are late with it.
    fn waits_for(&self) -> Option<(&Slot, impl Iterator<Item = (usize, &Replica)>)> {
        let current = self.current.as_ref()?;
        if self.acked >= self.placed {
            return None;
        }
        let oldest = &self.slots[(self.acked - self.first) as usize];
        if oldest.end() <= current.agreed() {
            return None;
        }
        let end = oldest.end();
        let replicas = current.replicas.iter().enumerate();
        Some((oldest, replicas.filter(move |(_, it)| !it.left && it.durable < end)))
    }

    /// When the chunk is to end for the oldest append: when no answer has brought it forward for
    /// long, while one of the chunk's servers was heard, or when there is no connection to any that is
    /// late.
    pub(super) fn blocked_at(&self) -> Option<Instant> {
        if planted(Planted::BlockedWaits) {
            return None;
        }
        let (oldest, mut late) = self.waits_for()?;
        let placed_at = oldest.placed_at;
        let awake_since = self.copy_wait.awake_since;
        let refused = late.try_fold(placed_at.max(awake_since), |at, (_, it)| {
            Some(at.max(it.unreachable_since?))
        });
        let refused = refused.map(|at| at + BLOCKED_MIN);
        let current = self.current.as_ref().expect("it waits there");
        let heard = current.followed().any(|it| it.heard_at > placed_at);
        let since = placed_at.max(self.progress_at).max(awake_since);
        // A replica gets its cell of a row, and all of what is copies.
        let parts = if current.place.is_coded() { current.replicas.len() } else { 1 };
        let size = SizeClass::of(oldest.bytes() as usize / parts);
        let most = self.config.replica_timeout;
        let after = self.copy_wait.after[size as usize].min(most);
        let after = (after * (1 << self.copy_wait.ends.min(16))).min(most);
        let slow = heard.then_some(since + after);
        let due = slow.into_iter().chain(refused).min()?;
        let look = self.copy_wait.last_look.filter(|(seq, _)| *seq == self.acked);
        Some(look.map_or(due, |(_, until)| due.max(until)))
    }

    /// Ends the chunk whose oldest append has waited for too long.
    pub(super) fn check_blocked(&mut self, now: Instant, out: &mut Vec<Action>) {
        let Some(due) = self.blocked_at().filter(|due| *due <= now) else { return };
        if !planted(Planted::OwnPauseEnds) {
            if now.since(due) >= OWN_PAUSE {
                (self.copy_wait.awake_since, self.copy_wait.last_look) = (now, None);
                return;
            }
            let look = self.copy_wait.last_look.replace((self.acked, now + BLOCKED_LOOK));
            if look.is_none_or(|(seq, _)| seq != self.acked) {
                return;
            }
        }
        self.copy_wait.last_look = None;
        let (oldest, late) = self.waits_for().expect("it waits");
        let (placed_at, late) =
            (oldest.placed_at, late.map(|(index, _)| index).collect::<Vec<_>>());
        let chunk = self.current.as_ref().expect("it waits there").id();
        for &index in &late {
            self.note_fault(chunk, index, "others wait for it");
            let replica = &self.chunk(chunk).expect("it is current").replicas[index];
            // One that is late for a moment is welcome again soon.
            let unwanted = match replica.unreachable_since {
                Some(_) => self.config.avoid_for,
                None => self.config.extend_pause,
            };
            self.avoid_server_for(replica.place.server, now, unwanted);
        }
        let Some(at) = self.spare_as_good(now) else {
            let again = now + self.config.extend_pause / 50;
            self.copy_wait.last_look = Some((self.acked, again));
            self.copy_wait.wants_spares = true;
            return;
        };
        if !self.chase.take_blocked(now) {
            // It waits as long as for servers that are gone.
            (self.copy_wait.ends, self.copy_wait.awake_since) = (u32::MAX, now);
            return;
        }
        self.copy_wait.ends = self.copy_wait.ends.saturating_add(1);
        self.spares.drain(..at);
        for index in late {
            let replica = &self.chunk(chunk).expect("it is current").replicas[index];
            let place = replica.place;
            if replica.unreachable_since.is_some() {
                let fault = ReplicaFault::Unreachable;
                out.push(Action::Report { chunk, server: place.server, fault });
            } else if replica.heard_at <= placed_at {
                out.push(Action::Doubt { chunk, place });
            }
        }
        out.push(Action::Blocked { chunk, waited: now.since(placed_at) });
        self.note_whole_failed(now);
        // The next one is opened at once: that each end doubles the wait is pause enough.
        self.open_after = now;
        self.end_current(now, out);
    }

    /// The first spare that survives as much as the current chunk, and of which enough servers are not
    /// avoided. A slow server is no reason to acknowledge fewer copies.
    fn spare_as_good(&self, now: Instant) -> Option<usize> {
        let losses = |place: &ChunkPlace| place.replicas.len().saturating_sub(place.data.into());
        let least = losses(&self.current.as_ref()?.place);
        let good = |place: &ChunkPlace| {
            let followed = place.replicas.iter().filter(|it| !self.avoids(it.server, now)).count();
            let enough = losses(place) >= least || planted(Planted::FewerWhenLate);
            enough && followed >= usize::from(place.acks)
        };
        let fits = |place: &ChunkPlace| good(place) && !self.tokens_stale;
        self.spares.iter().position(fits)
    }

    /// True when an append is blocked, and spares are needed that are as good as the current chunk.
    pub(super) fn wants_spares_elsewhere(&self, now: Instant) -> bool {
        let due = self.copy_wait.wants_spares && now >= self.copy_wait.ask_after;
        due && self.waits_for().is_some()
    }

    /// They are asked for.
    pub(super) fn note_asked_elsewhere(&mut self, now: Instant) {
        self.copy_wait.wants_spares = false;
        self.copy_wait.ask_after = now + self.config.extend_pause / 50;
    }

    /// The stream service has said which spares there are.
    pub(super) fn note_elsewhere(&mut self, now: Instant) {
        self.copy_wait.last_look = Some((self.acked, now));
    }
}
