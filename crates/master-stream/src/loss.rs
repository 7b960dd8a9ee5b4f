//! Sealing a lost writer's chunk without the replicas that recovery needs, by an operator's word
//! (`protocols-tail.md` 8.8 e). Recovery itself waits for ever for a vote that never comes: what was
//! acknowledged may be on that replica alone.

use std::rc::Rc;

use base::{Epoch, FileId, Kind};
use futures_util::future::join_all;
use wire::control::ControlError;

use super::chunk::Chunk;
use super::command::{Action, Outcome, Refusal};
use super::planted::{Planted, planted};
use super::ports::Log;
use super::service::{Service, refusal};
use super::votes::Vote;
use crate::placement::{PlaceState, ReplicaLocation};

impl<L: Log> Service<L> {
    /// Seals the tail of a stream in recovery, under `epoch`, at the longest length that is left, when
    /// too few of its replicas vote and all others are gone for good. Does nothing where enough vote:
    /// that is for recovery. An error names the replica that may still come back.
    pub(super) async fn seal_with_loss(
        self: &Rc<Self>,
        file: FileId,
        epoch: Epoch,
    ) -> Result<(), ControlError> {
        let found = self.stream(file, |it| (it.epoch, it.writing, it.tail().cloned()));
        let Some((now, writing, tail)) = found else { return Err(refusal(Refusal::NotFound)) };
        if now != epoch {
            return Err(refusal(Refusal::Fenced { epoch: now }));
        }
        let Some(tail) = tail.filter(|_| !writing) else { return Ok(()) };
        let deadline = self.env.now() + self.config.call_timeout;
        let voters = self.voters(&tail);
        let fence = |&place| self.fence_one(place, &tail, epoch, deadline);
        let answers = join_all(voters.iter().map(fence)).await;
        let (mut votes, mut lost, mut silent) = (Vec::new(), Vec::new(), Vec::new());
        for (&place, answer) in voters.iter().zip(&answers) {
            match answer.map(|answer| answer.vote) {
                Some(Vote::Len(len)) => votes.push((place, len)),
                Some(Vote::Damaged | Vote::None) => lost.push(place),
                None => silent.push(place),
            }
        }
        let lens: Vec<_> = votes.iter().map(|vote| vote.1).collect();
        let acknowledged = answers.iter().flatten().map(|answer| answer.stat.committed).max();
        let permits =
            |range: std::ops::RangeInclusive<u32>| acknowledged.unwrap_or(0) <= *range.end();
        let quorum = tail.quorum();
        if quorum.sealed_lens(&lens).is_some_and(permits) {
            return Ok(());
        }
        silent.iter().try_for_each(|&place| self.check_gone(&tail, place))?;
        lost.extend(silent);
        let len = quorum.longest_left(&lens);
        let holders = votes.iter().filter(|vote| len > 0 && vote.1 >= len).map(|vote| vote.0);
        let (holders, delete_at_ms) = (holders.collect(), self.rights_end_ms());
        self.env.mark("sealed with loss by an operator's word");
        tracing::warn!(
            %file, chunk = %tail.id, len, ?acknowledged, ?votes, ?lost,
            "an operator gives up replicas: what they alone have is lost"
        );
        let chunk = tail.id;
        let action =
            Action::SealWithLoss { file, epoch, chunk, len, votes, lost, holders, delete_at_ms };
        match self.decide(action).await? {
            Outcome::Refused { why } => Err(refusal(why)),
            _ => {
                // A recovery under way waits for votes of what is given up.
                self.flights.borrow_mut().remove(&(file, epoch));
                self.seal_soon(chunk);
                Ok(())
            }
        }
    }

    /// An error for a replica that does not answer and may come back: its server, or its disk there,
    /// has not been away for as long as repair hopes for it.
    fn check_gone(&self, tail: &Chunk, place: ReplicaLocation) -> Result<(), ControlError> {
        if planted(Planted::SilentIsGone) {
            return Ok(());
        }
        let index = self.log.with_state(|state| state.place_number(place));
        let away = index.map_or(runtime::Duration::ZERO, |index| self.absent_for(index));
        let (state, grace) = (self.cluster.view().state(place), self.config.dead_grace);
        let why = match state {
            PlaceState::Failed => return Ok(()),
            PlaceState::Good(_) => "is up and does not answer for it".to_owned(),
            _ if away >= grace => return Ok(()),
            _ => format!("has been away for {} s", away.as_secs()),
        };
        let text = format!(
            "loss is accepted only of what is gone for good, and {} with a replica of {} {why}: start \
             it, or ask again when it has been away for {} s",
            place.server,
            tail.id,
            grace.as_secs()
        );
        Err(ControlError::new(Kind::Retry, text))
    }
}
