//! Recovery of a lost writer's chunks: fence, vote, copy, seal (`protocols.md` 2.1 to 2.3).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::rc::Rc;

use base::{ChunkId, Epoch, FileId, Kind};
use futures_util::future::{FutureExt, LocalBoxFuture, join, join_all};
use futures_util::stream::{FuturesUnordered, StreamExt};
use runtime::sync::Notify;
use runtime::{Class, Duration, Instant};
use wire::control::{ControlError, CopyOrder};
use wire::data::{DataError, Purpose, ReplicaStat, ReplicaState};
use wire::token::Rights;

use super::chunk::Chunk;
use super::command::{Action, Outcome, Refusal};
use super::limits::{COPY_TARGETS_MAX, COPY_TRIES_MAX};
use super::planted::{Planted, planted};
use super::ports::{CallError, Log};
use super::service::{Service, refusal};
use super::votes::{Vote, judge};
use crate::placement::{ClusterView, ReplicaLocation, ServerView, Wanted, choose};

/// A recovery under way.
pub(crate) struct Flight {
    result: RefCell<Option<Result<Vec<ChunkId>, ControlError>>>,
    done: Notify,
}

/// A fenced replica's answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    place: ReplicaLocation,
    pub stat: ReplicaStat,
    pub vote: Vote,
}

/// Replicas with their votes.
type Votes = Vec<(ReplicaLocation, u32)>;
/// See [`Service::settle_length`].
type Settled = (u32, u32, Votes, Vec<ReplicaLocation>);
/// Answers of replicas that are being fenced; none of one that cannot be.
type Due<'a> = FuturesUnordered<LocalBoxFuture<'a, Option<Answer>>>;

/// Pauses between two tries to reach a replica: first and longest.
pub(super) const RETRY: (Duration, Duration) =
    (Duration::from_millis(20), Duration::from_millis(200));

impl<L: Log> Service<L> {
    /// Fences and seals all that older writers have open in `file`, under `epoch`, which is
    /// committed. Returns the spares that are fenced. Goes on when its caller is dropped.
    pub(super) async fn recover(
        self: &Rc<Self>,
        file: FileId,
        epoch: Epoch,
    ) -> Result<Vec<ChunkId>, ControlError> {
        let running = self.flights.borrow().get(&(file, epoch)).cloned();
        let flight = running.unwrap_or_else(|| self.launch(file, epoch));
        loop {
            let done = flight.done.notified();
            if let Some(result) = &*flight.result.borrow() {
                return result.clone();
            }
            done.await;
        }
    }

    fn launch(self: &Rc<Self>, file: FileId, epoch: Epoch) -> Rc<Flight> {
        let flight = Rc::new(Flight { result: RefCell::new(None), done: Notify::new() });
        self.flights.borrow_mut().insert((file, epoch), flight.clone());
        let (service, landing) = (self.clone(), flight.clone());
        self.env.spawn(Class::Foreground, "stream recovery", async move {
            let result = service.recover_once(file, epoch).await;
            if let Err(error) = &result {
                tracing::debug!(%file, %epoch, %error, "recovery of a stream did not finish");
            }
            let is_own = |now: &Rc<Flight>| Rc::ptr_eq(now, &landing);
            if service.flights.borrow().get(&(file, epoch)).is_some_and(is_own) {
                service.flights.borrow_mut().remove(&(file, epoch));
            }
            *landing.result.borrow_mut() = Some(result);
            landing.done.notify_waiters();
        });
        flight
    }

    async fn recover_once(
        self: &Rc<Self>,
        file: FileId,
        epoch: Epoch,
    ) -> Result<Vec<ChunkId>, ControlError> {
        let found = self.stream(file, |stream| {
            let spares: Vec<_> = stream.spares.clone();
            (stream.epoch, stream.writing, stream.tail().cloned(), spares)
        });
        let Some((now, writing, tail, spares)) = found else {
            return Err(refusal(Refusal::NotFound));
        };
        if now != epoch {
            return Err(refusal(Refusal::Fenced { epoch: now }));
        }
        if writing {
            return Ok(Vec::new()); // Another request with the same operation has finished it.
        }
        let deadline = self.env.now() + self.config.recover_timeout;
        let tail_sealed = async {
            match &tail {
                Some(tail) => self.seal_lost_tail(file, epoch, tail, deadline).await,
                None => Ok(()),
            }
        };
        let fence = |spare| self.fence_spare(spare, epoch, deadline);
        let (tail_sealed, _) = join(tail_sealed, join_all(spares.iter().map(fence))).await;
        tail_sealed?;
        self.env.mark("stream recovered");
        Ok(spares.iter().map(|spare| spare.id).collect())
    }

    /// The replicas of a chunk that take part in acknowledgements.
    pub(super) fn voters(&self, chunk: &Chunk) -> Vec<ReplicaLocation> {
        self.log.with_state(|state| {
            let voters = chunk.slots().filter(|slot| !slot.target);
            voters.map(|slot| state.place(slot.place)).collect()
        })
    }

    /// Fences replicas until enough have a vote, then waits a little for the others. Returns the answers,
    /// and those that are still due.
    async fn fence_quorum<'a>(
        &'a self,
        chunk: &'a Chunk,
        epoch: Epoch,
        deadline: Instant,
    ) -> Result<(Vec<Answer>, Due<'a>), ControlError> {
        let voters = self.voters(chunk);
        let needed = chunk.quorum().votes_needed();
        let needed = if planted(Planted::OneVote) { 1 } else { needed };
        let call = |&place| self.fence_one(place, chunk, epoch, deadline).boxed_local();
        let mut calls: Due<'_> = voters.iter().map(call).collect();
        let mut answers = Vec::new();
        let votes = |answers: &Vec<Answer>| {
            answers.iter().filter(|answer| matches!(answer.vote, Vote::Len(_))).count()
        };
        while votes(&answers) < needed {
            match calls.next().await {
                Some(answer) => answers.extend(answer),
                None => {
                    let text = format!(
                        "{} of {needed} replicas needed to recover {} answered: start their \
                         chunkservers, then retry",
                        votes(&answers),
                        chunk.id
                    );
                    return Err(ControlError::new(Kind::Retry, text));
                }
            }
        }
        let rest = async {
            while let Some(answer) = calls.next().await {
                answers.extend(answer);
            }
        };
        if self.env.timeout(self.config.vote_timeout, rest).await.is_err() {
            self.env.mark("recovery without all votes");
        }
        Ok((answers, calls))
    }

    /// Fences a spare of an older writer. It needs no votes: nothing in it is acknowledged before
    /// this group has committed that the file goes on in it, which it refuses since the epoch was
    /// taken. So disks that are gone for ever do not hold up the file (`docs/decisions/0034`).
    async fn fence_spare(&self, spare: &Chunk, epoch: Epoch, deadline: Instant) {
        let deadline = deadline.min(self.env.now() + self.config.call_timeout);
        if self.fence_quorum(spare, epoch, deadline).await.is_err() {
            self.env.mark("spare given up without its votes");
        }
    }

    /// Fences one replica. `None` when it cannot be reached in time, or is not there any more.
    pub(super) async fn fence_one(
        &self,
        place: ReplicaLocation,
        chunk: &Chunk,
        epoch: Epoch,
        deadline: Instant,
    ) -> Option<Answer> {
        let mut pause = RETRY.0;
        loop {
            let token = self.chunk_token(chunk.id, Rights::ALL, epoch);
            let to = self.address(place);
            let call = if planted(Planted::NoFence) {
                self.calls.stat(to, chunk.id, token)
            } else {
                self.calls.fence(to, chunk.id, epoch, token)
            };
            let answer = self.env.timeout(self.config.call_timeout, call).await;
            match answer.unwrap_or(Err(CallError::Unreachable)) {
                Ok(stat) => {
                    let vote = match judge(&stat, chunk.epoch) {
                        Vote::None if planted(Planted::NoFence) => Vote::Len(stat.len),
                        vote => vote,
                    };
                    if vote == Vote::Damaged {
                        self.env.mark("damaged replica does not vote");
                        tracing::warn!(chunk = %chunk.id, ?place, ?stat, "a damaged replica");
                    }
                    return Some(Answer { place, stat, vote });
                }
                Err(CallError::Data(DataError::NotFound)) if planted(Planted::NoFence) => {
                    let stat = ReplicaStat {
                        state: ReplicaState::Tombstone,
                        epoch: Epoch::NONE,
                        len: 0,
                        durable_bound: 0,
                        committed: 0,
                    };
                    return Some(Answer { place, stat, vote: Vote::Len(0) });
                }
                Err(error) if !error.is_passing() => {
                    tracing::debug!(chunk = %chunk.id, ?place, %error, "a replica is gone");
                    return None;
                }
                Err(error) => {
                    tracing::trace!(chunk = %chunk.id, ?place, %error, "a replica is not fenced yet");
                }
            }
            if self.env.now() + pause >= deadline {
                return None;
            }
            self.env.sleep(self.env.jitter(pause)).await;
            pause = (pause * 2).min(RETRY.1);
        }
    }

    /// Seals a lost writer's chunk at a length that covers every acknowledged byte.
    async fn seal_lost_tail(
        self: &Rc<Self>,
        file: FileId,
        epoch: Epoch,
        tail: &Chunk,
        deadline: Instant,
    ) -> Result<(), ControlError> {
        let (mut answers, mut due) = self.fence_quorum(tail, epoch, deadline).await?;
        let (least, len, votes, holders) = loop {
            let error = match self.settle_length(epoch, tail, &answers, deadline).await {
                Ok(settled) => break settled,
                Err(error) if matches!(error.kind, Kind::Retry | Kind::Corrupt) => error,
                Err(error) => return Err(error),
            };
            // What is missing may be on a replica whose answer is due. That of one that is gone never
            // comes: the next attempt may find other places.
            let left = (deadline - self.env.now()).min(self.config.call_timeout);
            let Ok(Some(answer)) = self.env.timeout(left, due.next()).await else {
                return Err(error);
            };
            self.env.mark("recovery waits for a late vote");
            answers.extend(answer);
        };
        let (chunk, delete_at_ms) = (tail.id, self.rights_end_ms());
        let action = if len > least {
            self.env.mark("sealed above the statistic");
            Action::SealLongerTail { file, epoch, chunk, len, votes, holders, delete_at_ms }
        } else {
            Action::SealTail { file, epoch, chunk, len, votes, holders, delete_at_ms }
        };
        match self.decide(action).await? {
            Outcome::Refused { why } => Err(refusal(why)),
            _ => {
                tracing::info!(%file, chunk = %tail.id, len, %epoch, "sealed a lost writer's chunk");
                self.seal_soon(tail.id);
                Ok(())
            }
        }
    }

    /// The length of a lost writer's chunk by the answers of its replicas: the least and the one at which
    /// it is to be sealed, the votes, and the replicas that hold it by then.
    async fn settle_length(
        self: &Rc<Self>,
        epoch: Epoch,
        tail: &Chunk,
        answers: &[Answer],
        deadline: Instant,
    ) -> Result<Settled, ControlError> {
        let votes: Votes = answers
            .iter()
            .filter_map(|answer| match answer.vote {
                Vote::Len(len) => Some((answer.place, len)),
                _ => None,
            })
            .collect();
        tracing::trace!(chunk = %tail.id, ?answers, voters = tail.voters(), "fenced replicas");
        let lens: Vec<_> = votes.iter().map(|vote| vote.1).collect();
        let n = tail.voters();
        let range = match tail.quorum().sealed_lens(&lens) {
            _ if planted(Planted::ShortestVote) => {
                let least = lens.iter().copied().min().expect("a vote");
                least..=least
            }
            Some(range) if planted(Planted::StatisticIsLength) => *range.start()..=*range.start(),
            None if planted(Planted::OneVote) => lens[0]..=lens[0],
            range => range.expect("enough votes"),
        };
        let (least, longest) = range.into_inner();
        let acknowledged = answers.iter().map(|answer| answer.stat.committed).max().unwrap_or(0);
        if acknowledged > longest && !planted(Planted::ShortestVote) && !planted(Planted::OneVote) {
            // More replicas than the redundancy allows have lost bytes. Better no answer than a
            // length below what was acknowledged: a missing replica may still come back.
            let text = format!(
                "{} has {longest} bytes on {} of {n} replicas, and {acknowledged} were \
                 acknowledged: bring the missing chunkservers back",
                tail.id,
                votes.len()
            );
            return Err(ControlError::new(Kind::Corrupt, text));
        }
        let bounds = least.max(acknowledged.min(longest))..=longest;
        let (len, holders) = self.hold(epoch, tail, &votes, bounds, deadline).await?;
        Ok((least, len, votes, holders))
    }

    /// The longest vote within `bounds` that enough replicas hold, by copies if need be, and the
    /// holders. Bytes above the lower bound may have been in flight: when they cannot be copied,
    /// they are given up.
    async fn hold(
        self: &Rc<Self>,
        epoch: Epoch,
        tail: &Chunk,
        votes: &[(ReplicaLocation, u32)],
        bounds: RangeInclusive<u32>,
        deadline: Instant,
    ) -> Result<(u32, Vec<ReplicaLocation>), ControlError> {
        let mut lens: Vec<u32> = votes.iter().map(|vote| vote.1).collect();
        lens.retain(|len| bounds.contains(len));
        lens.sort_unstable_by(|a, b| b.cmp(a));
        lens.dedup();
        let last = *lens.last().expect("the longest vote at least");
        let mut result = Err(ControlError::new(Kind::Retry, "no vote within the bounds"));
        for len in lens {
            let mut holders: Vec<_> =
                votes.iter().filter(|vote| vote.1 >= len).map(|vote| vote.0).collect();
            let (held, _) = self.holders(tail, &holders);
            if len == 0 || held >= usize::from(tail.acks) {
                return Ok((len, holders));
            }
            if planted(Planted::SealBelowK) && tail.is_coded() {
                return Ok((len, holders));
            }
            self.env.mark("recovery copies before the seal");
            let until = (len > last).then_some(deadline);
            match self.copy_to_quorum(epoch, tail, len, votes, &mut holders, until).await {
                Ok(()) => return Ok((len, holders)),
                Err(error) => {
                    if len > last {
                        self.env.mark("bytes above the statistic given up");
                        tracing::info!(chunk = %tail.id, len, %error, "a longer vote is given up");
                    }
                    result = Err(error);
                }
            }
        }
        result
    }

    /// Copies the first `len` bytes of a fenced chunk until MinCopy replicas hold them, of a coded one
    /// with different fragments: to fenced replicas that are shorter, then to new ones. When the
    /// cluster has no places, to as many as a new chunk would get. With a time limit, failures that may
    /// pass are met by other attempts until then.
    async fn copy_to_quorum(
        self: &Rc<Self>,
        epoch: Epoch,
        tail: &Chunk,
        len: u32,
        votes: &[(ReplicaLocation, u32)],
        holders: &mut Vec<ReplicaLocation>,
        until: Option<Instant>,
    ) -> Result<(), ControlError> {
        let (sources, m) = (holders.clone(), usize::from(tail.acks));
        let mut pause = RETRY.0;
        // Places that took no copy in this round, and whether another attempt may succeed.
        let mut failed: BTreeMap<ReplicaLocation, bool> = BTreeMap::new();
        loop {
            let shorter: Vec<_> = votes.iter().map(|vote| vote.0).collect();
            let mut places = shorter;
            let mut is_placed = false;
            loop {
                places.retain(|place| !holders.contains(place) && !failed.contains_key(place));
                let copy = |&place: &ReplicaLocation| self.copy_fenced(place, tail, len, &sources);
                let done = join_all(places.iter().map(copy)).await;
                for (&place, done) in places.iter().zip(done) {
                    match done {
                        Ok(()) => holders.push(place),
                        Err(may_pass) => drop(failed.insert(place, may_pass)),
                    }
                }
                let (held, _) = self.holders(tail, holders);
                if held >= m {
                    return Ok(());
                }
                if is_placed && places.is_empty() {
                    break; // The cluster has no further place.
                }
                places = self.new_targets(epoch, tail, len, holders, &failed).await?;
                is_placed = true;
            }
            let view = self.cluster.view();
            let floor = usize::from(self.config.copies_floor);
            let may_pass = failed.values().any(|&may_pass| may_pass);
            // A copy that may succeed yet is a place, too.
            let disks = match may_pass || self.has_other_place(&view, tail, holders) {
                true => view.disks() as usize,
                false => tail.data(),
            };
            let floor = tail.quorum().holders_floor(floor, disks);
            let (held, _) = self.holders(tail, holders);
            if held >= floor {
                self.confirm_holders(tail, len, holders).await?;
                self.env.mark("recovery seals with fewer holders");
                return Ok(());
            }
            let now = self.env.now();
            let again = may_pass && until.is_some_and(|until| now + pause < until);
            if !again {
                let text = format!(
                    "{held} of {floor} replicas of {} needed before it is sealed: start more \
                     chunkservers, then retry",
                    tail.id
                );
                return Err(ControlError::new(Kind::Retry, text));
            }
            failed.retain(|_, may_pass| !*may_pass);
            self.env.sleep(self.env.jitter(pause)).await;
            pause = (pause * 2).min(RETRY.1);
        }
    }

    /// Asks the holders of a coded chunk again before it is sealed with fewer than MinCopy: one may have been
    /// lost since it voted, which may be why a copy failed, and without it the others may give nothing back.
    /// A copy of copies has shown that its source is there.
    async fn confirm_holders(
        &self,
        tail: &Chunk,
        len: u32,
        holders: &[ReplicaLocation],
    ) -> Result<(), ControlError> {
        if !tail.is_coded() || planted(Planted::StaleHolders) {
            return Ok(());
        }
        let token = self.chunk_token(tail.id, Rights::ALL, Epoch::new(u64::MAX));
        let ask = |&place: &ReplicaLocation| {
            let call = self.calls.stat(self.address(place), tail.id, token);
            self.env.timeout(self.config.call_timeout, call)
        };
        let holds = |stat: ReplicaStat| stat.len >= len.max(stat.durable_bound);
        for (place, answer) in holders.iter().zip(join_all(holders.iter().map(ask)).await) {
            if !matches!(answer, Ok(Ok(stat)) if holds(stat)) {
                self.env.mark("holder lost before the seal");
                tracing::debug!(chunk = %tail.id, ?place, ?answer, "a holder is lost");
                let text = format!("a replica of {} is lost that voted: retry", tail.id);
                return Err(ControlError::new(Kind::Retry, text));
            }
        }
        Ok(())
    }

    /// False for a coded chunk for which the cluster has no other place, as far from `holders` as
    /// replicas are to be, among what is to stay: a target of another fragment may have the place of the
    /// one that lacks, until the chunk is sealed. A silent server is waited for, but not for a place beside
    /// a replica that it has and that would be back with it.
    fn has_other_place(
        &self,
        view: &ClusterView,
        tail: &Chunk,
        holders: &[ReplicaLocation],
    ) -> bool {
        if !tail.is_coded() {
            return true;
        }
        let on_record: Vec<_> = self.log.with_state(|state| {
            let chunk = state.chunk(tail.id).map(|(_, _, chunk)| chunk);
            chunk
                .into_iter()
                .flat_map(|it| it.slots())
                .map(|slot| state.place(slot.place))
                .collect()
        });
        let takes = |server: &&ServerView| {
            let back = || on_record.iter().any(|place| place.server == server.server);
            !server.draining
                && server.fragments
                && (server.serves() || !back())
                && view.is_apart(server.server, holders, tail.acks)
        };
        view.servers().iter().filter(takes).any(|server| {
            server.disks.iter().filter(|disk| !disk.failed).any(|disk| {
                let place = ReplicaLocation { server: server.server, disk: disk.disk };
                !on_record.contains(&place)
            })
        })
    }

    /// Records new replicas of a tail in recovery; none when the cluster has no places. Those of
    /// an attempt before are used again, but for the places that took no copy in this one.
    async fn new_targets(
        &self,
        epoch: Epoch,
        tail: &Chunk,
        len: u32,
        holders: &[ReplicaLocation],
        failed: &BTreeMap<ReplicaLocation, bool>,
    ) -> Result<Vec<ReplicaLocation>, ControlError> {
        let (slots, dead) = self.log.with_state(|state| {
            let slots = state.chunk(tail.id).map_or_else(Vec::new, |(_, _, chunk)| {
                chunk.slots().map(|slot| (state.place(slot.place), slot)).collect::<Vec<_>>()
            });
            let places = state.places().map(|(_, place)| place);
            let dead: Vec<_> =
                places.filter(|&place| state.dead(tail.id, place).is_some()).collect();
            (slots, dead)
        });
        let usable =
            |place: &ReplicaLocation| !holders.contains(place) && !failed.contains_key(place);
        let targets = slots.iter().filter(|slot| slot.1.target).map(|slot| slot.0);
        let mut targets: Vec<_> = targets.filter(usable).collect();
        let have: Vec<_> = holders.iter().chain(&targets).copied().collect();
        let (distinct, missing) = self.holders(tail, &have);
        let room = tail.slots_max().saturating_sub(slots.len()).min(COPY_TARGETS_MAX);
        let room = room.min(usize::from(tail.acks).saturating_sub(distinct));
        let view = self.cluster.view();
        let on_record = slots.iter().map(|slot| slot.0);
        let never: Vec<_> = on_record.chain(dead).chain(self.barred(&view, tail)).collect();
        let copies = (have.len() + room) as u8;
        let need = tail.replica_len(len);
        let (avoid, purpose) = (&[][..], Purpose::Data);
        let wanted = Wanted { copies, have: &have, never: &never, avoid, floor: 0, need, purpose };
        let chosen = choose(&view, &wanted, &mut |bound| self.env.random_below(bound));
        let chosen = chosen.unwrap_or_default();
        if !chosen.is_empty() {
            let action = Action::add(tail, epoch, &chosen, &missing);
            if let Outcome::Refused { why } = self.decide(action).await? {
                return Err(refusal(why));
            }
            targets.extend(chosen);
        }
        Ok(targets)
    }

    /// Copies to one place. The error says whether another attempt may succeed.
    async fn copy_fenced(
        &self,
        place: ReplicaLocation,
        tail: &Chunk,
        len: u32,
        sources: &[ReplicaLocation],
    ) -> Result<(), bool> {
        let order = CopyOrder {
            chunk: tail.id,
            epoch: tail.epoch,
            base: tail.base,
            len,
            sources: self.addresses(tail.id, sources),
            token: self.chunk_token(tail.id, Rights::READ, Epoch::NONE).0,
            seal: false,
            fragment: self.fragment_at(tail, place).map_err(|_| false)?,
            urgent: true,
        };
        let mut pause = RETRY.0;
        for attempt in 1.. {
            let call = self.calls.replicate(self.address(place), order.clone());
            let error = match self.env.timeout(self.config.copy_timeout, call).await {
                Ok(Ok((stat, _))) if stat.len >= len => return Ok(()),
                Ok(Ok((stat, _))) => {
                    tracing::debug!(chunk = %tail.id, ?place, ?stat, "a copy before the seal is short");
                    return Err(false);
                }
                Ok(Err(error)) => error,
                Err(_) => CallError::Unreachable,
            };
            tracing::debug!(chunk = %tail.id, ?place, %error, "a copy before the seal failed");
            // Busy: with other copies, or with this one by order of the leader before.
            if error.kind() != Kind::Retry || attempt == COPY_TRIES_MAX {
                return Err(error.is_passing() && error.kind() != Kind::Full);
            }
            self.env.sleep(self.env.jitter(pause)).await;
            pause = (pause * 2).min(RETRY.1);
        }
        unreachable!("the last attempt has returned")
    }
}
