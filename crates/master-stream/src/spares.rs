//! Places for a writer's chunks: the one that it writes, and its spares.

use base::{ChunkId, FileId, ServerId};
use wire::control::{ControlError, Policy};

use crate::limits::SPARES_MAX;
use crate::placement::{ClusterView, NoPlace, PlaceState, ReplicaLocation, Wanted, choose};
use crate::service::{Demand, Spares, Wish};
use crate::{Chunk, Log, Service, Slot};

impl<L: Log> Service<L> {
    /// Replicas for `count` new chunks: the first must have places, the others may be left out.
    pub(crate) fn fresh(
        &self,
        demand: Demand,
        count: usize,
        avoid: &[ServerId],
    ) -> Result<Vec<Vec<ReplicaLocation>>, ControlError> {
        let view = self.cluster.view();
        let first = self.place(&view, demand, avoid);
        let first = first.map_err(|why| self.no_place(why))?;
        let mut used: Vec<_> = first.iter().map(|place| place.server).collect();
        let mut chunks = vec![first];
        self.more_chunks(&view, demand, count, avoid, &mut used, &mut chunks);
        Ok(chunks)
    }

    /// Adds places for chunks up to `count`, on other servers than those `used` where there are
    /// enough: a spare is for the time when one of them fails. Coded ones as long as there are places
    /// for all fragments, wherever.
    fn more_chunks(
        &self,
        view: &ClusterView,
        demand: Demand,
        count: usize,
        avoid: &[ServerId],
        used: &mut Vec<ServerId>,
        chunks: &mut Vec<Vec<ReplicaLocation>>,
    ) {
        while chunks.len() < count {
            let apart: Vec<_> = avoid.iter().chain(&*used).copied().collect();
            let copies = usize::from(demand.policy.in_copies().copies);
            let whole = |places: &Vec<ReplicaLocation>| places.len() == copies;
            let coded = self.place_fragments(view, demand, &apart);
            let coded = coded.or_else(|| self.place_fragments(view, demand, avoid));
            let elsewhere =
                coded.or_else(|| self.place_copies(view, demand, &apart).ok().filter(whole));
            let places = elsewhere.or_else(|| self.place_copies(view, demand, avoid).ok());
            let Some(places) = places else { return };
            used.extend(places.iter().map(|place| place.server));
            chunks.push(places);
        }
    }

    /// Places for a new chunk: of a code for all fragments, in their order, or else for copies that
    /// survive as many losses (`protocols-tail.md` 9.8).
    fn place(
        &self,
        view: &ClusterView,
        demand: Demand,
        avoid: &[ServerId],
    ) -> Result<Vec<ReplicaLocation>, NoPlace> {
        match self.place_fragments(view, demand, avoid) {
            Some(places) => Ok(places),
            None => self.place_copies(view, demand, avoid),
        }
    }

    /// Places for all fragments of a new chunk; none without a code, or where one lacks, or a
    /// chunkserver does not take fragments.
    fn place_fragments(
        &self,
        view: &ClusterView,
        demand: Demand,
        avoid: &[ServerId],
    ) -> Option<Vec<ReplicaLocation>> {
        let Demand { policy, purpose } = demand;
        if !policy.is_coded() || !view.takes_fragments() {
            return None;
        }
        let (copies, floor) = (policy.copies, 0);
        let wanted = Wanted { copies, have: &[], never: &[], avoid, floor, need: 0, purpose };
        let places = choose(view, &wanted, &mut |bound| self.env.random_below(bound)).ok()?;
        let whole = places.len() == usize::from(copies);
        if !whole {
            self.env.mark("no places for all fragments");
        }
        Some(places).filter(|_| whole)
    }

    fn place_copies(
        &self,
        view: &ClusterView,
        demand: Demand,
        avoid: &[ServerId],
    ) -> Result<Vec<ReplicaLocation>, NoPlace> {
        let floor = self.config.copies_floor;
        let (copies, purpose) = (demand.policy.in_copies().copies, demand.purpose);
        let wanted = Wanted { copies, have: &[], never: &[], avoid, floor, need: 0, purpose };
        choose(view, &wanted, &mut |bound| self.env.random_below(bound))
    }

    /// Spares that are no use to a writer that avoids some servers, and new ones in their place:
    /// `wanted` in all behind `next`.
    pub(crate) fn spares(
        &self,
        file: FileId,
        next: Option<ChunkId>,
        avoid: &[ServerId],
        wish: Wish,
    ) -> Spares {
        let Wish { spares: wanted, purpose, .. } = wish;
        let view = self.cluster.view();
        let is_bad = |place: ReplicaLocation| {
            let good = matches!(view.state(place), PlaceState::Good(_));
            avoid.contains(&place.server) || !good || view.drains(place.server)
        };
        // Made while servers were missing, or did not take fragments: of no use once there are places
        // for all fragments, or else for all copies.
        let maybe_short = self.stream(file, |stream| {
            let policy = wish.policy(stream.policy);
            let copies = usize::from(policy.copies);
            stream.spares.iter().any(|spare| spare.len_slots() < copies).then_some(policy)
        });
        let best = maybe_short.flatten().and_then(|policy| {
            let places = self.place(&view, Demand { policy, purpose }, avoid).ok()?;
            let whole = usize::from(policy.for_places(places.len()).copies) == places.len();
            whole.then_some(places.len())
        });
        let is_short = |spare: &Chunk| best.is_some_and(|places| spare.len_slots() < places);
        // Made before the policy was set, or in the other form: of no use once there are places for
        // others.
        let is_old = |policy: Policy, spare: &Chunk| {
            spare.policy() != policy.form().for_places(spare.len_slots())
        };
        let takes_fragments = view.takes_fragments();
        let old = self.stream(file, |stream| {
            let policy = wish.policy(stream.policy);
            stream.spares.iter().any(|spare| is_old(policy, spare)).then_some(policy)
        });
        let renewable = old
            .flatten()
            .is_some_and(|policy| self.place(&view, Demand { policy, purpose }, avoid).is_ok());
        let found = self.log.with_state(|state| {
            let stream = state.stream(file)?;
            let at = |slot: Slot| state.place(slot.place);
            let behind = next.map_or(0, |next| next.get() + 1);
            let spares = stream.spares.iter().filter(|spare| spare.id.get() >= behind);
            let (bad, good): (Vec<_>, Vec<_>) = spares.partition(|spare| {
                let old = renewable && is_old(wish.policy(stream.policy), spare);
                let refused = spare.is_coded() && !takes_fragments;
                is_short(spare) || old || refused || spare.slots().any(|slot| is_bad(at(slot)))
            });
            let near = stream.chunks.last().into_iter().chain(good.iter().copied());
            let used: Vec<_> =
                near.flat_map(|chunk| chunk.slots().map(at)).map(|place| place.server).collect();
            let bad: Vec<_> = bad.iter().map(|spare| spare.id).collect();
            Some((wish.policy(stream.policy), bad, good.len(), used))
        });
        let Some((policy, drop, good, mut used)) = found else { return Default::default() };
        let missing = usize::from(wanted).min(SPARES_MAX).saturating_sub(good);
        let mut fresh = Vec::new();
        let demand = Demand { policy, purpose };
        self.more_chunks(&view, demand, missing, avoid, &mut used, &mut fresh);
        let none = good == 0 && fresh.is_empty() && missing > 0;
        let full = none && self.place(&view, demand, avoid) == Err(NoPlace::Full);
        Spares { drop, fresh, full }
    }
}
