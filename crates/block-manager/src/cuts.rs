//! Snapshots, clones, rollbacks: requests of the leading manager to block servers
//! (`protocols.md` 6.6, 6.7).
//!
//! A snapshot has four steps. (1) All segments fix their cuts, and hold answers back. (2) If no
//! segment has changed hands, the manager's table gets the snapshot, in the making. (3) The holds
//! end; a segment whose hold had ended before says so, and the snapshot is given up. (4) The cuts
//! become directories, and the snapshot is whole.
//!
//! So a change that was answered before another began is in the snapshot if the other is: the
//! second is in its cut, so its segment was not cut yet when the first was answered, and no
//! segment answers what is behind its cut before all are cut. Decision 18 has the rest.

use std::pin::pin;
use std::rc::Rc;

use block_proto::managers::ask_peer;
use block_proto::{BlockReply, BlockServerReply, BlockServerRequest, Reply, Request};
use block_volume::ids::{SegmentId, VolumeId};
use futures_util::future::{Either, join_all, select};
use futures_util::stream::{StreamExt, TryStreamExt, iter};
use metrics::Unit;
use runtime::{Class, Instant};
use wire::control::{ControlError, Policy};

use super::cut::{Begun, CutSegment};
use super::error::Refusal;
use super::limits::{
    CUT_ATTEMPT, FLATTEN_ATTEMPT, HOLD_MAX, KEEP_CUTS, LINK_ATTEMPT, LINKS_INFLIGHT, SERVE_MAX,
    SERVE_PAUSE,
};
use super::service::{LeaderTerm, Manager};

impl Manager {
    /// Makes a snapshot of a volume.
    pub(super) async fn snapshot(
        &self,
        lead: &Rc<LeaderTerm>,
        (nonce, volume, name): (u64, VolumeId, String),
    ) -> Result<BlockReply, ControlError> {
        let begun = lead.machine.borrow_mut().begin_snapshot(nonce, volume, &name);
        let parts = match begun {
            Err(refusal) => return Err(self.durable(lead, refusal).await?.into()),
            Ok(Begun::Done(reply)) => return self.durable(lead, reply).await,
            Ok(Begun::Go(parts)) => parts,
        };
        let cut = self.env().random_u64();
        let made = self.snapshot_of(lead, (nonce, volume, &name), &parts, cut).await;
        lead.machine.borrow_mut().end_cutting(self.env().now(), volume);
        // Holds that are not needed any more end in the background.
        let (this, parts) = (self.clone(), parts);
        self.env().spawn(Class::Background, "block manager: release", async move {
            this.end_holds(&parts, cut, false).await.ok();
        });
        self.remember_refusal(lead, (nonce, volume), made).await
    }

    async fn snapshot_of(
        &self,
        lead: &Rc<LeaderTerm>,
        (nonce, volume, name): (u64, VolumeId, &str),
        parts: &[CutSegment],
        cut: u64,
    ) -> Result<BlockReply, ControlError> {
        let hold_ms = HOLD_MAX.as_millis() as u32;
        let cuts = parts.iter().map(|part| {
            let request = BlockServerRequest::Cut { segment: part.segment, cut, hold_ms };
            self.ask_part(part, request, CUT_ATTEMPT)
        });
        if let Some(refusal) = join_all(cuts).await.into_iter().find_map(Result::err) {
            self.env().mark("block manager: a cut failed");
            return Err(refusal.into());
        }
        let committed = lead.machine.borrow_mut().commit_snapshot(nonce, volume, name, parts);
        let (id, policy) = committed?;
        self.durable(lead, ()).await?;
        self.env().mark("block manager: snapshot committed");
        let linked = async {
            let hold_us = self.end_holds(parts, cut, true).await?;
            let registry = self.env().tracer().registry();
            let help = "For how long snapshots held acknowledgements back.";
            let name = "craton_block_snapshot_hold_seconds";
            registry.histogram(name, help, Unit::Nanoseconds, &[]).record(hold_us * 1000);
            self.link(lead, parts, cut, (id, policy)).await?;
            Ok::<u64, Refusal>(hold_us)
        };
        let linked = linked.await;
        let finished = {
            let machine = &mut *lead.machine.borrow_mut();
            match linked {
                Ok(hold_us) => machine.finish_snapshot(id, hold_us),
                Err(refusal) => {
                    tracing::warn!(%volume, cause = %refusal, "a snapshot is given up");
                    self.env().mark("block manager: snapshot given up");
                    machine.give_up(self.env().now(), id);
                    Err(refusal)
                }
            }
        };
        self.durable(lead, ()).await?;
        let finished = finished?;
        self.env().mark("block manager: snapshot made");
        Ok(finished)
    }

    /// Ends the holds of a cut; answers the longest, in microseconds.
    async fn end_holds(&self, parts: &[CutSegment], cut: u64, keep: bool) -> Result<u64, Refusal> {
        let releases = parts.iter().map(|part| {
            let request = BlockServerRequest::Release { segment: part.segment, cut, keep };
            self.ask_part(part, request, CUT_ATTEMPT)
        });
        let mut longest = 0;
        for answer in join_all(releases).await {
            match answer? {
                BlockServerReply::Count(held) => longest = longest.max(held),
                other => return Err(foreign(&other)),
            }
        }
        Ok(longest)
    }

    /// Makes the directories of a volume's segments from a cut of others.
    async fn link(
        &self,
        lead: &LeaderTerm,
        parts: &[CutSegment],
        cut: u64,
        (to, policy): (VolumeId, Policy),
    ) -> Result<(), Refusal> {
        let links = parts.iter().map(|part| {
            let to = SegmentId { volume: to, index: part.segment.index };
            let segment = part.segment;
            let request = BlockServerRequest::Link { segment, cut, to, policy };
            async move {
                // The next leader removes the directories when no link can come any more.
                let leads = lead.machine.borrow().leads(self.env().now());
                if lead.is_over() || !leads {
                    return Err(Refusal::LeadsNoMore);
                }
                self.ask_part(part, request, LINK_ATTEMPT).await
            }
        });
        let done = iter(links).buffer_unordered(LINKS_INFLIGHT);
        let linked = pin!(done.try_for_each(|_| std::future::ready(Ok(()))));
        // A large volume has more segments than are linked in the time that cuts are kept.
        let kept = pin!(async {
            loop {
                self.env().sleep(KEEP_CUTS).await;
                self.env().mark("block manager: cuts are kept for longer");
                // A segment that does not answer fails its link.
                self.end_holds(parts, cut, true).await.ok();
            }
        });
        match select(linked, kept).await {
            Either::Left((linked, _)) => linked,
            Either::Right((never, _)) => never,
        }
    }

    /// Makes a volume with the content of a snapshot. Segments are linked at their first use.
    pub(super) async fn clone_of(
        &self,
        lead: &Rc<LeaderTerm>,
        (nonce, snapshot, name): (u64, VolumeId, String),
    ) -> Result<BlockReply, ControlError> {
        let now = self.env().now();
        let made = lead.machine.borrow_mut().clone_of(now, nonce, snapshot, &name);
        let reply = self.durable(lead, made).await??;
        self.env().mark("block manager: clone made");
        Ok(reply)
    }

    /// Has all segments of a snapshot's clones opened, so that none needs the snapshot any more.
    pub(super) async fn part(&self, clones: &[VolumeId], lead: &LeaderTerm) -> Result<(), Refusal> {
        let deadline = self.env().now() + SERVE_MAX;
        for &clone in clones {
            let parts = loop {
                let parts = lead.machine.borrow().clone_parts(clone);
                match parts {
                    Err(Refusal::NoVolume(_)) => break Vec::new(), // Removed since.
                    Err(refusal) if self.env().now() >= deadline => return Err(refusal),
                    Err(_) => self.env().sleep(SERVE_PAUSE).await,
                    Ok(parts) => break parts,
                }
            };
            let opened = parts.iter().map(|part| {
                // A question that only an open segment answers.
                let (segment, from, to) = (part.segment, 0, block_volume::limits::BLOCK);
                let request = BlockServerRequest::HasData { segment, from, to };
                self.ask_part(part, request, LINK_ATTEMPT)
            });
            let opened = iter(opened).buffer_unordered(LINKS_INFLIGHT);
            opened.try_for_each(|_| std::future::ready(Ok(()))).await?;
        }
        Ok(())
    }

    /// Gives a snapshot's volume the content of the snapshot again.
    pub(super) async fn rollback(
        &self,
        lead: &Rc<LeaderTerm>,
        (nonce, snapshot): (u64, VolumeId),
    ) -> Result<BlockReply, ControlError> {
        let now = self.env().now();
        let begun = lead.machine.borrow_mut().begin_rollback(now, nonce, snapshot);
        let (id, policy) = match begun {
            Err(refusal) => return Err(self.durable(lead, refusal).await?.into()),
            Ok(Begun::Done(reply)) => return self.durable(lead, reply).await,
            Ok(Begun::Go(made)) => made,
        };
        let linked = async {
            self.durable(lead, ()).await?;
            let deadline = self.env().now() + SERVE_MAX;
            Ok::<(), ControlError>(
                self.link_rollback(lead, snapshot, (id, policy), deadline).await?,
            )
        };
        let linked = linked.await;
        let finished = {
            let (machine, now) = (&mut *lead.machine.borrow_mut(), self.env().now());
            machine.end_cutting(now, snapshot);
            let finished = linked.and_then(|()| Ok(machine.finish_rollback(now, id)?));
            if let Err(error) = &finished {
                machine.note_rollback_refused(id, error.kind, &error.message);
                machine.give_up(now, id);
            }
            finished
        };
        self.durable(lead, ()).await?;
        let finished = finished?;
        self.env().mark("block manager: rolled back");
        Ok(finished)
    }

    async fn link_rollback(
        &self,
        lead: &Rc<LeaderTerm>,
        snapshot: VolumeId,
        made: (VolumeId, Policy),
        deadline: Instant,
    ) -> Result<(), Refusal> {
        // A snapshot that was not used lately has no owners: its segments are opened first.
        let parts = loop {
            let parts = lead.machine.borrow().snapshot_parts(snapshot);
            match parts {
                Err(refusal) if self.env().now() >= deadline => return Err(refusal),
                Err(_) => self.env().sleep(SERVE_PAUSE).await,
                Ok(parts) => break parts,
            }
        };
        let cut = self.env().random_u64();
        let linked = async {
            // It never changes: there is nothing to hold back.
            let hold_ms = HOLD_MAX.as_millis() as u32;
            let cuts = parts.iter().map(|part| {
                let request = BlockServerRequest::Cut { segment: part.segment, cut, hold_ms };
                self.ask_part(part, request, CUT_ATTEMPT)
            });
            join_all(cuts).await.into_iter().collect::<Result<Vec<_>, _>>()?;
            self.end_holds(&parts, cut, true).await?;
            self.link(lead, &parts, cut, made).await
        };
        let linked = linked.await;
        self.end_holds(&parts, cut, false).await.ok();
        linked
    }

    /// Has a clone copy what it shares; answers how many blocks are left.
    pub(super) async fn flatten(
        &self,
        lead: &Rc<LeaderTerm>,
        volume: VolumeId,
    ) -> Result<BlockReply, ControlError> {
        let parts = lead.machine.borrow().flatten_parts(volume)?;
        let asks = parts.iter().map(|part| {
            let request = BlockServerRequest::Flatten { segment: part.segment };
            self.ask_part(part, request, FLATTEN_ATTEMPT)
        });
        let mut left = 0;
        for answer in join_all(asks).await {
            match answer? {
                BlockServerReply::Count(blocks) => left += blocks,
                other => return Err(foreign(&other).into()),
            }
        }
        if left == 0 {
            lead.machine.borrow_mut().flattened(volume);
        }
        self.durable(lead, BlockReply::Shared(left)).await
    }

    async fn ask_part(
        &self,
        part: &CutSegment,
        request: BlockServerRequest,
        attempt: runtime::Duration,
    ) -> Result<BlockServerReply, Refusal> {
        let what = format!("{}: {}", part.segment, request.name());
        let asked = Request::BlockServer(request);
        match ask_peer(self.client(), part.addr, asked, attempt).await {
            Ok(Reply::BlockServer(reply)) => Ok(reply),
            Ok(_) => Err(Refusal::Server { what: format!("{what}: no block server") }),
            Err(error) => Err(Refusal::Server { what: format!("{what}: {error}") }),
        }
    }
}

fn foreign(reply: &BlockServerReply) -> Refusal {
    Refusal::Server { what: format!("an answer that does not fit: {reply:?}") }
}
