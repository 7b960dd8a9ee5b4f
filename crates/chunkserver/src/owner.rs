//! Ownership of the disks. A disk of another cluster, or of an earlier formation of this one, is
//! left alone: these masters would treat all that is on it as garbage.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use base::{ClusterId, DiskId, FormationId};
use chunkstore::{ChunkStore, StoreOwner};
use runtime::{Class, Instant};
use wire::control::{ClusterReply, ClusterRequest, DiskReport};

use crate::limits::IDENTIFY_PAUSE;
use crate::server::{Chunkserver, Disk};

/// The cluster that the server has joined.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Home {
    pub(crate) cluster: ClusterId,
    /// None from masters of a version before formations: nothing is judged then.
    pub(crate) formation: Option<FormationId>,
}

/// Reason for which a disk is not reported yet.
const UNJUDGED: &str = "the store's cluster is checked before the disk is served";

/// Knowledge of a disk's owner.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum DiskOwner {
    /// The server has not joined yet. The disk is served and not yet reported.
    Unjudged,
    /// It was added after the server had joined, and is served once it is judged.
    Added,
    /// The disk is of the cluster that the server has joined.
    Own(Home),
    /// No master has confirmed that it knows the disk, as of the last question.
    Waits(Home, String, Instant),
    /// The disk is not of the cluster that the server has joined.
    Foreign(Home, String),
}

impl DiskOwner {
    /// Reason for which the disk is not served.
    pub(crate) fn reason(&self) -> Option<&str> {
        match self {
            DiskOwner::Unjudged | DiskOwner::Own(_) => None,
            DiskOwner::Added => Some(UNJUDGED),
            DiskOwner::Waits(_, why, _) | DiskOwner::Foreign(_, why) => Some(why),
        }
    }

    /// True when the disk was judged for `home`.
    pub(crate) fn is_of(&self, home: Home) -> bool {
        match self {
            DiskOwner::Unjudged | DiskOwner::Added => false,
            DiskOwner::Own(of) | DiskOwner::Foreign(of, _) | DiskOwner::Waits(of, ..) => {
                *of == home
            }
        }
    }

    /// True when there is nothing to ask or to do now.
    fn holds(&self, home: Home, now: Instant) -> bool {
        let again = |asked: Instant| now.since(asked) >= IDENTIFY_PAUSE;
        self.is_of(home) && !matches!(self, DiskOwner::Waits(_, _, asked) if again(*asked))
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Verdict {
    Own,
    /// It becomes the cluster's.
    Join(FormationId),
    /// It becomes the cluster's if its masters know it.
    Ask(FormationId),
    Foreign(String),
}

/// `holds`: there is something on the disk.
fn judge(owner: StoreOwner, holds: bool, home: Home) -> Verdict {
    let remedy = "or format it if nothing on it is needed";
    match (owner, home.formation) {
        (StoreOwner::Of { cluster, .. }, _) if cluster != home.cluster => {
            Verdict::Foreign(format!(
                "the store belongs to cluster {cluster}, this server to {}: put the disk into a \
                 server of its cluster, {remedy}",
                home.cluster
            ))
        }
        (StoreOwner::Of { cluster, formation }, Some(now)) if formation != now => {
            Verdict::Foreign(format!(
                "the store belongs to formation {formation} of cluster {cluster}, its masters to \
                 {now}: they were formed again. Give the masters their former data back, or put the \
                 disk into a server of its cluster, {remedy}"
            ))
        }
        (StoreOwner::Of { .. }, _) | (_, None) => Verdict::Own,
        (StoreOwner::Unmarked, Some(now)) if holds => Verdict::Ask(now),
        (StoreOwner::Unmarked | StoreOwner::Fresh, Some(now)) => Verdict::Join(now),
    }
}

fn unknown_to(home: Home) -> String {
    format!(
        "the store does not say whose it is, and no master of {} knows it: put the disk into a \
         server of the cluster that used it last, or format it if nothing on it is needed",
        home.cluster
    )
}

impl<S: ChunkStore> Chunkserver<S> {
    /// Judges the disks of this shard that are not judged yet for the cluster that was joined;
    /// asks `masters` about those that do not say whose they are. Each disk that must be written, or
    /// asked about, has a task of its own: one that hangs holds back no other.
    pub(crate) fn judge_disks(&self, home: Home, masters: &[SocketAddr]) {
        for disk in self.disks() {
            let holds = disk.owner.borrow().holds(home, self.0.env.now());
            if holds || self.0.judging.borrow().contains(&disk.id) {
                continue;
            }
            let occupied = !disk.store.list(None, 1).is_empty();
            match judge(disk.store.info().owner, occupied, home) {
                Verdict::Own => self.set_owner(&disk, DiskOwner::Own(home)),
                Verdict::Foreign(why) => self.set_owner(&disk, DiskOwner::Foreign(home, why)),
                Verdict::Join(formation) => self.start_joining_disk(disk, home, formation, None),
                Verdict::Ask(formation) => {
                    self.start_joining_disk(disk, home, formation, Some(masters.to_vec()));
                }
            }
        }
        self.note_judged(home);
    }

    /// Makes the disk the cluster's in a task; if `masters` are given, only when they know it.
    fn start_joining_disk(
        &self,
        disk: Rc<Disk<S>>,
        home: Home,
        formation: FormationId,
        masters: Option<Vec<SocketAddr>>,
    ) {
        self.0.judging.borrow_mut().insert(disk.id);
        let this = self.clone();
        self.0.env.spawn(Class::Control, "judge a disk", async move {
            let known = match &masters {
                Some(masters) => this.masters_know(disk.id, masters).await,
                None => true,
            };
            let owner = match known {
                true => this.join(&disk, home, formation).await,
                false => DiskOwner::Waits(home, unknown_to(home), this.0.env.now()),
            };
            this.0.judging.borrow_mut().remove(&disk.id);
            this.set_owner(&disk, owner);
            this.note_judged(home);
        });
    }

    fn set_owner(&self, disk: &Disk<S>, owner: DiskOwner) {
        let before = disk.owner.replace(owner.clone());
        if let Some(why) = owner.reason()
            && before.reason() != Some(why)
        {
            self.0.env.mark("chunkserver: a disk of another cluster");
            tracing::error!(path = %disk.path, disk = %disk.id, "a disk is not served: {why}");
        }
        if before == DiskOwner::Added {
            self.heartbeat_soon();
        }
    }

    /// Notes when this shard's disks have all been judged for `home`.
    fn note_judged(&self, home: Home) {
        if self.0.judged.get() != Some(home)
            && self.disks().iter().all(|disk| disk.owner.borrow().is_of(home))
        {
            self.0.judged.set(Some(home));
        }
        self.0.directory.post(self.addr(), self.report());
    }

    async fn join(&self, disk: &Disk<S>, home: Home, formation: FormationId) -> DiskOwner {
        match disk.store.adopt(home.cluster, formation).await {
            Ok(()) => DiskOwner::Own(home),
            Err(error) => {
                let why = format!("the store cannot note its cluster: {error}: replace the disk");
                DiskOwner::Waits(home, why, self.0.env.now())
            }
        }
    }

    async fn masters_know(&self, disk: DiskId, masters: &[SocketAddr]) -> bool {
        let asked = masters.iter().map(|&master| {
            let this = self.clone();
            self.0.env.spawn(Class::Control, "identify a disk", async move {
                this.ask(master, ClusterRequest::Identify { disks: vec![disk] }).await
            })
        });
        let mut found = false;
        for answer in asked.collect::<Vec<_>>() {
            // Unanswered questions are asked again later.
            if let Ok(Ok(ClusterReply::Identified { known })) = answer.await {
                found |= known.contains(&disk);
            }
        }
        found
    }

    /// Report of a disk that is not served: as one that could not be opened. Masters must not take
    /// it for one that has failed in their cluster.
    pub(crate) fn left_alone(&self, disk: &Disk<S>) -> Option<DiskReport> {
        let owner = disk.owner.borrow();
        let home = self.0.directory.home().map(|(home, _)| home);
        // Heartbeats do not wait for a disk that hangs: it is missing in them.
        let unjudged = home.is_some_and(|home| !owner.is_of(home)).then_some(UNJUDGED);
        let reason = owner.reason().or(unjudged)?;
        Some(self.not_served(&disk.path, reason))
    }
}

const _: () = assert!(IDENTIFY_PAUSE.as_millis() >= Duration::from_secs(1).as_millis());

#[cfg(test)]
#[path = "owner_tests.rs"]
mod tests;
