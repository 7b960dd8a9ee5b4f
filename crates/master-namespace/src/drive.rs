//! Background work of a namespace partition's leader: it drives intents to their end, has the
//! streams of orphans deleted, and asks for the outcome of intents that hold something here.

use std::collections::{BTreeMap, BTreeSet};

use base::{ClientId, DirId, FileId, Kind};
use futures_util::future::{join, join_all};
use runtime::Class;
use wire::control::{ControlError, Group as GroupName, OpId, namespace_partition};

use super::question::{IntentOutcome, Question, decode_intent_outcome, decode_parent};
use super::service::{NamespaceService, decode};
use super::{Answer, Command, Entry, Intent, IntentId, Outcome, Refusal, encode_command};
use crate::limits::{DELETES_INFLIGHT_MAX, DEPTH_MAX};
use master_consensus::service::LeaderCall;

/// The decision on an intent, its participants, and the client's answer.
struct Decision {
    commit: bool,
    participants: BTreeSet<u16>,
    outcome: Outcome,
}

impl NamespaceService {
    /// Drives an own intent and waits for what its mutation comes to.
    pub(super) async fn finish(
        &self,
        intent: IntentId,
        op: &OpId,
    ) -> Result<Outcome, ControlError> {
        let inner = &*self.0;
        let deadline = inner.env.now() + inner.timing.intent_timeout;
        self.drive_soon(intent);
        loop {
            let decided = inner.decided.notified();
            match inner.host.read(|state| state.answer(op)) {
                Some(Ok(Answer::Pending(_))) => {}
                Some(outcome) => return Ok(outcome),
                None => return Ok(Err(Refusal::Locked)),
            }
            if !inner.host.leads() || inner.env.now() >= deadline {
                let message = "the change across partitions goes on: retry to learn its outcome";
                return Err(ControlError::new(Kind::Unknown, message));
            }
            let _ = inner.env.timeout(inner.timing.lock_pause * 4, decided).await;
        }
    }

    /// Waits until the participants have done their part of a change that is decided. Readers do not wait
    /// for a file's attributes as they do for names: answered before that, they could miss the change. A
    /// later one could be done first, and be replaced by it.
    /// The intent is looked for where it is not known, as of a repeat.
    pub(super) async fn await_delivery(
        &self,
        op: &OpId,
        pending: Option<IntentId>,
    ) -> Result<(), ControlError> {
        let inner = &*self.0;
        let deadline = inner.env.now() + inner.timing.intent_timeout;
        let undelivered = || inner.host.read(|state| state.undelivered(op));
        let Some(intent) = pending.or_else(undelivered) else { return Ok(()) };
        loop {
            let news = inner.decided.notified();
            if inner.host.read(|state| state.intent(intent).is_none()) {
                return Ok(());
            }
            if !inner.host.leads() || inner.env.now() >= deadline {
                let message = "the change across partitions is being made known: retry";
                return Err(ControlError::new(Kind::Unknown, message));
            }
            self.drive_soon(intent);
            let _ = inner.env.timeout(inner.timing.lock_pause * 4, news).await;
        }
    }

    /// Starts a task for an intent, unless there is one.
    fn drive_soon(&self, intent: IntentId) {
        if !self.0.driven.borrow_mut().insert(intent) {
            return;
        }
        let this = self.clone();
        self.0.env.spawn(Class::Foreground, "namespace intent", async move {
            if let Err(error) = this.drive(intent).await {
                // The sweep tries again, here or at the next leader.
                tracing::debug!(?intent, %error, "intent interrupted");
            }
            this.0.driven.borrow_mut().remove(&intent);
        });
    }

    async fn drive(&self, intent: IntentId) -> Result<(), ControlError> {
        let host = &self.0.host;
        let Some(record) = host.read(|state| state.intent(intent).cloned()) else {
            return Ok(());
        };
        if record.outcome.is_none() {
            let Decision { commit, participants, outcome } = self.vote(intent, &record).await?;
            let participants = participants.into_iter().collect();
            let decide = Command::Decide { intent, commit, participants, outcome };
            let _ = self.commit(&decide).await?; // The first decision counts.
            self.0.decided.notify_waiters();
        }
        let outcome =
            host.read(|state| state.intent(intent).and_then(|intent| intent.outcome.clone()));
        let Some((commit, mut participants)) = outcome else { return Ok(()) };
        let floor = host.read(|state| state.intent_floor());
        // The turn to rename directories goes on to the next one last: see [`super::cross`].
        participants.sort_unstable_by(|a, b| b.cmp(a));
        for partition in participants {
            let _ = self.send(partition, &Command::Resolve { intent, floor, commit }).await?;
        }
        let _ = self.commit(&Command::Forget { intent }).await?;
        self.0.decided.notify_waiters();
        self.0.work.notify_one(); // There may be an orphan now.
        Ok(())
    }

    /// Has all participants prepare.
    async fn vote(&self, intent: IntentId, record: &Intent) -> Result<Decision, ControlError> {
        let (own, host) = (self.0.partition, &self.0.host);
        let (floor, mut replaced) =
            host.read(|state| (state.intent_floor(), state.own_replaced(intent)));
        let mut participants = BTreeSet::new();
        let no = |participants, outcome| Ok(Decision { commit: false, participants, outcome });
        for (partition, actions) in &record.plan {
            if *partition == own {
                continue; // Prepared with the intent itself.
            }
            participants.insert(*partition);
            let actions = actions.clone();
            let prepare = Command::Prepare { intent, floor, stage: 0, actions };
            match self.send(*partition, &prepare).await? {
                Ok(Answer::Prepared(found)) => replaced = found.or(replaced),
                Ok(_) => return no(participants, Err(Refusal::BadCommand)),
                Err(refusal) => return no(participants, Err(retry_if_over(refusal))),
            }
        }
        if let Some((dir, parent)) = record.moved_dir()
            && let Err(refusal) = self.check_ancestry(dir, parent).await?
        {
            return no(participants, Err(refusal));
        }
        if let Some(replaced) = replaced {
            if matches!(replaced, Entry::File(_)) && record.moved_entry() == Some(&replaced) {
                return no(participants, Ok(Answer::Done)); // Two names of one file.
            }
            if let Some((home, action)) = host.read(|state| state.displace(&replaced)) {
                if home != own {
                    participants.insert(home);
                }
                let prepare = Command::Prepare { intent, floor, stage: 1, actions: vec![action] };
                match self.send(home, &prepare).await? {
                    Ok(_) => {}
                    Err(refusal) => return no(participants, Err(retry_if_over(refusal))),
                }
            }
        }
        Ok(Decision { commit: true, participants, outcome: Ok(record.answer.clone()) })
    }

    /// Walks from a directory's new parent to the root, while no directory moves.
    async fn check_ancestry(
        &self,
        dir: DirId,
        parent: DirId,
    ) -> Result<Result<(), Refusal>, ControlError> {
        let mut at = parent;
        for _ in 0..DEPTH_MAX {
            if at == dir {
                return Ok(Err(Refusal::Cycle));
            }
            if at == DirId::ROOT {
                return Ok(Ok(()));
            }
            let home = namespace_partition(at, self.0.partitions);
            let bytes = self.ask(home, &Question::Parent(at)).await?;
            match decode_parent(&bytes) {
                Ok(Some(above)) => at = above,
                Ok(None) | Err(_) => return Ok(Err(Refusal::NoDir)),
            }
        }
        Ok(Err(Refusal::TooDeep))
    }

    /// Commits a command here.
    async fn commit(&self, command: &Command) -> Result<Outcome, ControlError> {
        decode(&self.0.host.propose(|clock| encode_command(clock, command)).await?)
    }

    /// Commits a command in any partition. It may be committed twice.
    async fn send(&self, partition: u16, command: &Command) -> Result<Outcome, ControlError> {
        let (group, timeout) = (GroupName::Namespace(partition), self.0.timing.intent_timeout);
        let command = encode_command(0, command);
        decode(&self.0.router.run(group, LeaderCall::Propose, command, timeout).await?)
    }

    /// Completes what is left over, while this master leads.
    pub(super) fn start_sweeping(&self) {
        let this = self.clone();
        let client = ClientId::new(self.0.env.random_u64());
        let mut sweeper = Sweeper { client, seq: 0, after: None };
        self.0.env.spawn(Class::Background, "namespace sweep", async move {
            loop {
                let _ = this.0.env.timeout(this.0.timing.sweep, this.0.work.notified()).await;
                if this.0.host.leads() {
                    this.sweep(&mut sweeper).await;
                }
            }
        });
    }

    async fn sweep(&self, sweeper: &mut Sweeper) {
        let (intents, guests) = self.0.host.read(|state| (state.intents(), state.guests()));
        intents.into_iter().for_each(|intent| self.drive_soon(intent));
        // The next sweep repeats what failed.
        let _ = join(self.settle_guests(guests), self.delete_orphans(sweeper)).await;
    }

    /// Settles other partitions' intents: those of one whose leader does not answer hold up no others.
    async fn settle_guests(&self, guests: Vec<IntentId>) {
        let mut by_partition = BTreeMap::<u16, Vec<IntentId>>::new();
        for intent in guests {
            by_partition.entry(intent.partition).or_default().push(intent);
        }
        let settle = |intents: Vec<IntentId>| async move {
            for intent in intents {
                if self.settle_guest(intent).await.is_err() {
                    break;
                }
            }
        };
        join_all(by_partition.into_values().map(settle)).await;
    }

    /// Another partition's intent holds something here: lets go when it is over. That is rare: its
    /// leader sends the decision to all participants. The turn to rename directories is given on by that
    /// leader alone, who knows when all others have done their part.
    async fn settle_guest(&self, intent: IntentId) -> Result<(), ControlError> {
        if intent.partition >= self.0.partitions {
            return Ok(());
        }
        let bytes = self.ask(intent.partition, &Question::IntentOutcome(intent)).await?;
        let commit = match decode_intent_outcome(&bytes) {
            Ok(IntentOutcome::Over) => false,
            Ok(IntentOutcome::Committed) => true,
            Ok(IntentOutcome::Open) | Err(_) => return Ok(()),
        };
        if commit && self.0.host.read(|state| state.has_turn(intent)) {
            return Ok(());
        }
        self.0.env.mark("namespace: a participant asks for an intent's fate");
        self.commit(&Command::Resolve { intent, floor: 0, commit }).await.map(|_| ())
    }

    async fn delete_orphans(&self, sweeper: &mut Sweeper) -> Result<(), ControlError> {
        loop {
            let after = sweeper.after.take();
            let orphans = self.0.host.read(|state| state.orphans(after, DELETES_INFLIGHT_MAX));
            if orphans.is_empty() {
                match after {
                    Some(_) => continue, // From the first one on again.
                    None => return Ok(()),
                }
            }
            sweeper.after = orphans.last().copied();
            let ops = sweeper.ops();
            let calls = orphans.iter().zip(ops).map(|(&file, op)| async move {
                self.0.streams.delete(op, file).await.map(|()| file)
            });
            let results = join_all(calls.collect::<Vec<_>>()).await;
            let failed = results.iter().find_map(|result| result.as_ref().err().cloned());
            let files: Vec<_> = results.into_iter().flatten().collect();
            if !files.is_empty() {
                let _ = self.commit(&Command::Deleted { files }).await?;
            }
            match failed {
                Some(error) => return Err(error),
                None => continue,
            }
        }
    }
}

/// The session in which this process deletes streams: one for its life, so that it takes one place
/// in the reply tables of stream partitions, and no answer is kept beyond its round. A deletion
/// that a later round repeats has another identity, and may be executed again.
struct Sweeper {
    client: ClientId,
    /// Requests so far.
    seq: u64,
    /// The next round begins behind this orphan: some that fail each time hold up no others.
    after: Option<FileId>,
}

impl Sweeper {
    /// Identities for a round. Every request of the rounds before has ended.
    fn ops(&mut self) -> impl Iterator<Item = OpId> + use<> {
        let (client, first) = (self.client, self.seq + 1);
        self.seq += DELETES_INFLIGHT_MAX as u64;
        (first..=self.seq).map(move |seq| OpId { client, seq, acked_below: first })
    }
}

const _: () =
    assert!((DELETES_INFLIGHT_MAX as u64) < master_consensus::limits::SESSION_REPLIES_MAX);

/// A participant has the end of an intent that is open here: its leader was replaced and the
/// replacement aborted. The decision is there, or the change is tried again.
fn retry_if_over(refusal: Refusal) -> Refusal {
    if refusal == Refusal::NoIntent { Refusal::Locked } else { refusal }
}
