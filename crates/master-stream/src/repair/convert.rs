//! Conversion of sealed chunks to the form that their files' policies ask for (C18, C26;
//! `protocols-tail.md` 9.12): one at a time, while nothing is in danger.
//!
//! The chunk that takes another's place is on record before a byte of it is written, and is written by one
//! order. Two servers lay the bytes of two replicas out; what each replica of the new chunk has on its
//! medium is compared with both. Any doubt, and that chunk is given up: another one is made. So what a
//! leader finds that it did not begin, or did not end, is given up first.

use std::rc::Rc;

use base::{ChunkId, FileId, Kind};
use futures_util::future::{join, join_all};
use runtime::{Duration, Instant};
use wire::control::{ControlError, Conversion, Later, Policy, ReplicaPlace};
use wire::data::Purpose;
use wire::row::Fragment;
use wire::token::Rights;

use super::Retry;
use super::judged::{Judged, is_complete};
use super::seal::is_whole;
use crate::limits::{CONVERSION_RETRY, SCAN_SLICE};
use crate::placement::{ClusterView, ReplicaLocation};
use crate::planted::{Planted, planted};
use crate::service::Demand;
use crate::{Action, CallError, Chunk, Log, Outcome, Service, Slot, StreamMachine};

/// Pause between two steps of a search.
const SLICE_PAUSE: Duration = Duration::from_millis(2);

/// A conversion that is to be.
struct Wanted {
    of: ChunkId,
    policy: Policy,
    /// In the form that the chunk has: some of its rows were coded wrong.
    again: bool,
}

/// Why a conversion did not end.
struct Doubt(String);

impl Doubt {
    fn differs(what: &str) -> Doubt {
        Doubt(format!("{what} differs"))
    }
}

impl From<CallError> for Doubt {
    fn from(error: CallError) -> Doubt {
        Doubt(error.to_string())
    }
}

/// How far a search for a chunk to convert has come.
#[derive(Default)]
struct Cursor {
    /// When the first of the file's chunks has become old.
    due_s: u64,
    file: Option<FileId>,
    /// Chunks of the file that were looked at.
    chunks: usize,
}

/// What one step of a search has found.
enum Look {
    Found(Wanted),
    /// There are more chunks to look at.
    On,
    End,
}

/// A step of a search.
struct Search<'a, L: Log> {
    service: &'a Service<L>,
    state: &'a StreamMachine,
    without: &'a [Policy],
    view: Rc<ClusterView>,
    now: Instant,
}

impl<'a, L: Log> Search<'a, L> {
    fn new(
        service: &'a Service<L>,
        state: &'a StreamMachine,
        without: &'a [Policy],
    ) -> Search<'a, L> {
        let (view, now) = (service.cluster.view(), service.env.now());
        Search { service, state, without, view, now }
    }

    fn may_get(&self, policy: Policy) -> bool {
        let no_rows = policy.compression.is_some() && !self.view.takes_rows();
        !no_rows && !self.without.contains(&policy)
    }

    /// True of a settled chunk that is not to wait, whose replicas are all whole.
    fn is_fit(&self, chunk: &Chunk) -> bool {
        let repairs = &self.service.repairs;
        let retry_at = repairs.doubts.borrow().get(&chunk.id).and_then(|it| it.at);
        let settled = chunk.sealed().is_some() && chunk.is_sealed_everywhere();
        if !settled || retry_at.is_some_and(|at| at > self.now) {
            return false;
        }
        let replicas = self.service.judge_chunk(&self.view, self.state, chunk);
        // More copies than there are places for: another policy may be the way out.
        let no_more = || {
            let lacks = repairs.setbacks.borrow().contains_key(&chunk.id);
            lacks && !chunk.is_coded() && replicas.len() < usize::from(chunk.copies)
        };
        let complete = is_complete(chunk, &replicas) || no_more();
        complete && replicas.iter().all(Judged::is_source)
    }

    /// Goes on with the chunks of a file, and with so many files and chunks in all.
    fn go_on<'c>(
        &self,
        policy: Policy,
        chunks: impl Iterator<Item = &'c Chunk>,
        (file, at): (FileId, &mut Cursor),
        left: &mut usize,
    ) -> Look {
        if at.file != Some(file) {
            (at.file, at.chunks) = (Some(file), 0);
            // A file counts, too: there may be no places for any of very many.
            let Some(rest) = left.checked_sub(1) else { return Look::On };
            *left = rest;
        }
        if !self.may_get(policy) {
            return Look::End;
        }
        for chunk in chunks.skip(at.chunks) {
            if *left == 0 {
                return Look::On;
            }
            *left -= 1;
            at.chunks += 1;
            if self.is_fit(chunk) {
                return Look::Found(Wanted { of: chunk.id, policy, again: false });
            }
        }
        Look::End
    }
}

impl<L: Log> Service<L> {
    pub(super) async fn convert_chunks(self: Rc<Self>) {
        loop {
            self.env.sleep(self.env.jitter(self.config.scan_interval)).await;
            // Policies for which there are no places in this round.
            let mut without = Vec::new();
            while self.may_convert() {
                match self.convert_next(&mut without).await {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(error) => {
                        tracing::debug!(%error, "a conversion did not end");
                        break;
                    }
                }
            }
        }
    }

    /// Repair, which goes first, has nothing that it can do now. What was begun is given up in any case.
    fn may_convert(&self) -> bool {
        let begun = || self.log.with_state(|state| state.conversions().next().is_some());
        self.leads() && (self.repair_rests() || begun())
    }

    fn repair_rests(&self) -> bool {
        self.repairs.queue.borrow().is_empty() && self.repairs.busy.borrow().is_empty()
    }

    /// Converts one chunk. True when another one may follow at once.
    async fn convert_next(&self, without: &mut Vec<Policy>) -> Result<bool, ControlError> {
        let left: Vec<_> = self.log.with_state(|state| {
            state.conversions().map(|(of, shadow)| (of, shadow.clone())).collect()
        });
        for (of, shadow) in left {
            self.env.mark("conversion of another leader given up");
            self.abort_conversion(of, &shadow).await?;
        }
        if !self.repair_rests() {
            return Ok(false);
        }
        let Some(Wanted { of, policy, again }) = self.next_conversion(without).await else {
            return Ok(false);
        };
        let demand = Demand { policy, purpose: Purpose::Data };
        let places = match self.fresh(demand, 1, &[]) {
            Ok(mut places) => places.pop().filter(|it| it.len() == usize::from(policy.copies)),
            Err(_) => None,
        };
        let Some(places) = places else {
            self.env.mark("no places for a conversion");
            without.push(policy);
            return Ok(true);
        };
        let begin = match again {
            true => Action::LayOutAgain { chunk: of, places },
            false => Action::BeginConversion { chunk: of, policy, places },
        };
        match self.decide(begin).await? {
            Outcome::Refused { .. } => {
                self.note_doubt(of);
                return Ok(true);
            }
            _ => self.env.mark("conversion begun"),
        }
        let shadow = self.log.with_state(|state| state.conversion(of).cloned());
        let Some(shadow) = shadow else { return Ok(true) };
        self.finish_conversion(of, &shadow).await
    }

    /// A chunk to convert, and the policy that it gets, none of those `without` places: all of it is at
    /// healthy places, or as much as repair finds places for. What was coded wrong goes first, which survives
    /// less than it should, then what an operator waits for, then what is old.
    async fn next_conversion(&self, without: &[Policy]) -> Option<Wanted> {
        let again = self.log.with_state(|state| {
            let known = |chunk: &ChunkId| state.chunk(*chunk).is_some();
            self.repairs.doubts.borrow_mut().retain(|chunk, _| known(chunk));
            self.repairs.miscoded.borrow_mut().retain(known);
            let search = Search::new(self, state, without);
            let miscoded = self.repairs.miscoded.borrow();
            miscoded.iter().find_map(|&of| {
                let (_, _, chunk) = state.chunk(of)?;
                let policy = Some(chunk.policy()).filter(|it| search.may_get(*it))?;
                search.is_fit(chunk).then_some(Wanted { of, policy, again: true })
            })
        });
        if again.is_some() {
            return again;
        }
        let mut at = Cursor::default();
        if let Some(wanted) = self.in_slices(|| self.look_for_asked(without, &mut at)).await {
            return Some(wanted);
        }
        let mut at = Cursor::default();
        let aged = self.in_slices(|| self.look_for_aged(without, &mut at)).await;
        aged.inspect(|_| self.env.mark("conversion of an old chunk begun"))
    }

    /// Looks at a slice of the chunks at a time: none of very many may be whole now.
    async fn in_slices(&self, mut look: impl FnMut() -> Look) -> Option<Wanted> {
        loop {
            match look() {
                Look::Found(wanted) => return Some(wanted),
                Look::End => return None,
                Look::On => {
                    self.env.mark("conversion looked for in slices");
                    self.env.sleep(SLICE_PAUSE).await;
                }
            }
        }
    }

    /// Looks for a chunk that an operator's word converts.
    fn look_for_asked(&self, without: &[Policy], at: &mut Cursor) -> Look {
        self.log.with_state(|state| {
            let search = Search::new(self, state, without);
            let mut left = SCAN_SLICE;
            for file in state.to_convert_from(at.file) {
                let Some(stream) = state.stream(file) else { continue };
                let others = stream.chunks.iter().filter(|chunk| stream.has_form_to_get(chunk));
                let look = search.go_on(stream.policy.form(), others, (file, at), &mut left);
                if !matches!(look, Look::End) {
                    return look;
                }
            }
            Look::End
        })
    }

    /// Looks for one that is old enough for the form of old chunks.
    fn look_for_aged(&self, without: &[Policy], at: &mut Cursor) -> Look {
        let clock_s = match planted(Planted::YoungIsOld) {
            true => u64::MAX,
            false => self.clock_ms() / 1000,
        };
        self.log.with_state(|state| {
            let search = Search::new(self, state, without);
            let mut left = SCAN_SLICE;
            for (due_s, file) in state.aged_from((at.due_s, at.file), clock_s) {
                let Some(stream) = state.stream(file) else { continue };
                let Some(policy) = stream.policy.later.map(Later::policy) else { continue };
                at.due_s = due_s;
                let old = stream.aging().take_while(|(due_s, _)| *due_s <= clock_s);
                let old = old.map(|(_, chunk)| chunk);
                let look = search.go_on(policy, old, (file, at), &mut left);
                if !matches!(look, Look::End) {
                    return look;
                }
            }
            Look::End
        })
    }

    /// Has the chunk made that was begun, and puts it in the place of the other; or gives it up.
    async fn finish_conversion(&self, of: ChunkId, shadow: &Chunk) -> Result<bool, ControlError> {
        let settled = match self.make_shadow(of, shadow).await {
            Ok(settled) => settled,
            Err(Doubt(why)) => {
                if self.judged(of).is_none() {
                    self.env.mark("chunk deleted while it was converted");
                }
                tracing::warn!(chunk = %of, made = %shadow.id, why, "a conversion is given up");
                self.abort_conversion(of, shadow).await?;
                return Ok(true);
            }
        };
        let (chunk, delete_at_ms) = (of, self.rights_end_ms());
        let action = Action::EndConversion { chunk, shadow: shadow.id, settled, delete_at_ms };
        match self.decide(action).await? {
            Outcome::Refused { .. } => self.env.mark("converted chunk was deleted"),
            _ => {
                self.env.mark("chunk converted");
                self.repairs.converted.set(self.repairs.converted.get() + 1);
                let policy = shadow.policy();
                tracing::info!(%chunk, made = %shadow.id, %policy, "converted a chunk");
                self.repairs.doubts.borrow_mut().remove(&of);
                if self.repairs.miscoded.borrow_mut().remove(&of) {
                    self.env.mark("chunk laid out again");
                }
            }
        }
        Ok(true)
    }

    async fn abort_conversion(&self, of: ChunkId, shadow: &Chunk) -> Result<(), ControlError> {
        self.note_doubt(of);
        let (shadow, delete_at_ms) = (shadow.id, self.rights_end_ms());
        self.decide(Action::AbortConversion { shadow, delete_at_ms }).await.map(drop)
    }

    /// The chunk is tried again after a pause, which grows.
    fn note_doubt(&self, of: ChunkId) {
        let setbacks = &mut *self.repairs.doubts.borrow_mut();
        let (first, longest) = CONVERSION_RETRY;
        let pause = setbacks.get(&of).map_or(first, |it| (it.pause * 2).min(longest));
        let at = Some(self.env.now() + self.env.jitter(pause));
        setbacks.insert(of, Retry { at, pause });
    }

    /// Has a chunk written, sealed, read back and compared. Returns its replicas.
    async fn make_shadow(
        &self,
        of: ChunkId,
        shadow: &Chunk,
    ) -> Result<Vec<ReplicaLocation>, Doubt> {
        let len = shadow.sealed().expect("conversions are of sealed chunks");
        let (places, slots) = self.log.with_state(|state| {
            let slots: Vec<_> = shadow.slots().collect();
            let places: Vec<_> = slots.iter().map(|slot| state.place(slot.place)).collect();
            (places, slots)
        });
        self.keep_pace(u64::from(len)).await;
        let (chunk, sources) = self.sources_of(of)?;
        let addresses: Vec<_> = places.iter().map(|&place| self.address(place)).collect();
        let first = self.order_conversion(&chunk, shadow, &sources, addresses.clone());
        // C26: the bytes of another replica, or of other fragments, laid out by another server.
        let mut others = sources.clone();
        others.rotate_left(chunk.data() % sources.len());
        let again = self.order_conversion(&chunk, shadow, &others, Vec::new());
        let digests = if planted(Planted::ConvertOneCopy) || planted(Planted::ConvertDropsEarly) {
            first.await?
        } else {
            let (first, again) = join(first, again).await;
            let first = first?;
            if first != again? {
                self.env.mark("two replicas are laid out otherwise");
                return Err(Doubt::differs("what two replicas of the chunk hold"));
            }
            first
        };
        if planted(Planted::ConvertDropsEarly) {
            return Ok(places);
        }
        let check = |(slot, address): (Slot, &ReplicaPlace)| {
            let digest = digests.get(usize::from(slot.fragment)).copied();
            self.settle_replica(shadow.id, *address, len, digest)
        };
        let settled = join_all(slots.into_iter().zip(&addresses).map(check)).await;
        settled.into_iter().collect::<Result<(), Doubt>>()?;
        Ok(places)
    }

    /// A chunk, and its replicas in an order drawn at random.
    fn sources_of(&self, of: ChunkId) -> Result<(Chunk, Vec<ReplicaLocation>), Doubt> {
        let Some((chunk, replicas)) = self.judged(of) else {
            return Err(Doubt("the chunk was deleted".to_owned()));
        };
        let sources = replicas.iter().filter(|it| it.is_source()).map(|it| it.place);
        let mut sources: Vec<_> = sources.collect();
        if sources.is_empty() || !self.gives_back(&chunk, &sources) {
            return Err(Doubt("too few replicas of the chunk are whole".to_owned()));
        }
        let first = self.env.random_below(sources.len() as u64) as usize;
        sources.rotate_left(first);
        Ok((chunk, sources))
    }

    /// Has the first of some replicas, or of a coded chunk the server with it, laid out in the form of
    /// another chunk, and written to `places`, if there are some.
    async fn order_conversion(
        &self,
        chunk: &Chunk,
        shadow: &Chunk,
        sources: &[ReplicaLocation],
        places: Vec<ReplicaPlace>,
    ) -> Result<Vec<u32>, Doubt> {
        let to = self.address(sources[0]);
        // Of copies one alone: the other order reads another one.
        let read = if chunk.is_coded() { sources } else { &sources[..1] };
        let slot = chunk.slots().next();
        let order = Conversion {
            chunk: chunk.id,
            epoch: chunk.epoch,
            base: chunk.base,
            len: chunk.sealed().expect("sealed"),
            sources: self.addresses(chunk.id, read),
            read_token: self.chunk_token(chunk.id, Rights::READ, base::Epoch::NONE).0,
            code: slot.and_then(|slot| chunk.fragment(slot)).map(|it| Fragment { number: 0, ..it }),
            made: shadow.id,
            policy: shadow.policy(),
            places,
            write_token: self.chunk_token(shadow.id, Rights::WRITER, shadow.epoch).0,
        };
        let call = self.calls.convert(to, order);
        let answer = self.env.timeout(self.config.copy_timeout, call).await;
        let answer = answer.unwrap_or(Err(CallError::Unreachable));
        if answer.as_ref().is_err_and(|error| error.kind() == Kind::Corrupt) {
            self.note_report(chunk.id, sources[0]);
        }
        Ok(answer?)
    }

    /// Seals a replica of the chunk that is made, and compares what it has on its medium.
    async fn settle_replica(
        &self,
        made: ChunkId,
        to: ReplicaPlace,
        len: u32,
        digest: Option<u32>,
    ) -> Result<(), Doubt> {
        let token = self.chunk_token(made, Rights::ALL, base::Epoch::new(u64::MAX));
        let seal = self.calls.seal(to, made, len, token);
        let sealed = self.env.timeout(self.config.call_timeout, seal).await;
        if !is_whole(&sealed.unwrap_or(Err(CallError::Unreachable))?, len) {
            return Err(Doubt::differs("the length of a replica"));
        }
        let read = self.calls.digest(to, made, len);
        let read = self.env.timeout(self.config.copy_timeout, read).await;
        if Some(read.unwrap_or(Err(CallError::Unreachable))?) != digest {
            self.env.mark("what was converted reads otherwise");
            return Err(Doubt::differs("what a replica has on its medium"));
        }
        Ok(())
    }
}
