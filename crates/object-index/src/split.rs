//! Splits of ranges on the owner's side (`object-protocols.md` 4.1 and 4.2): where a range is cut, the directories
//! of its halves, and the cut.
//!
//! The range serves on until the cut. Behind it nothing is answered for the range until the manager has said what
//! became of it: with the answer lost, the owner asks again, for as long as it takes, and no time ends that. Then
//! the range is the manager's to give again, or is no more.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;

use base::{Fault, Kind};
use object_proto::{CatalogReply, CatalogRequest, Error, RangeBound, RangeId, Target};
use runtime::{Duration, Env, Instant};
use table::{Child, Purpose, Range as Rows, Snapshot, Store};

use crate::answer_pages::read_map;
use crate::decisions::{Decisions, damaged, of_table};
use crate::ground::{Files, Managers};
use crate::halves::{HalvesRow, count_below};
use crate::keys::{
    CURRENT, HALVES, MAP, METADATA, NULL, PART, UPLOAD, UPLOAD_END, VERSIONS, between_bounds,
    key_prefix, read_object_key, read_version_key,
};
use crate::limits::{
    CUT_TIME, LINK_ROUNDS, LINKED_LEAST, MANAGER_HEARD, PARTS_SLICE, PAUSE, SAMPLES, SPLIT_PAUSE,
};
use crate::paths::range_dir;
use crate::planted::Planted;
use crate::range::Range;

/// Sections by object, in order: those that a bound divides.
const BY_OBJECT: [u8; 8] = [CURRENT, MAP, NULL, UPLOAD_END, PART, UPLOAD, VERSIONS, METADATA];

/// The rows that a half of a range has: of sections by object those within its bounds, of all others all.
fn shown(first: &RangeBound, end: Option<&RangeBound>) -> Vec<Rows> {
    let (mut shown, mut from) = (Vec::new(), Vec::<u8>::new());
    for section in BY_OBJECT {
        if from.as_slice() < [section].as_slice() {
            shown.push(Rows::between(&from, &[section]));
        }
        shown.push(between_bounds(section, first, end));
        from = vec![section + 1];
    }
    shown.push(Rows { lower: std::ops::Bound::Included(from), ..Rows::all() });
    shown
}

/// How far the split of a range is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Stage {
    /// It serves.
    #[default]
    Whole,
    /// Its halves are being filled; it serves on.
    Filling,
    /// It is shut out.
    Cut,
}

/// The split of a range.
#[derive(Default)]
pub(crate) struct Splitting {
    stage: Cell<Stage>,
    /// How often it has failed in turn, and when last.
    failed: Cell<Option<(u32, Instant)>>,
}

impl Splitting {
    /// The range is shut out: what becomes of it is the manager's to say.
    pub(crate) fn is_cut(&self) -> bool {
        self.stage.get() == Stage::Cut
    }

    /// Begins, unless it is under way.
    pub(crate) fn begin(&self) -> bool {
        let begins = self.stage.get() == Stage::Whole;
        if begins {
            self.stage.set(Stage::Filling);
        }
        begins
    }

    /// True when one that nothing but the range's size asks for may begin.
    pub(crate) fn may_begin(&self, env: &Env) -> bool {
        let waits = |(times, last): (u32, Instant)| {
            let pause = SPLIT_PAUSE.0.saturating_mul(1 << (times - 1).min(16));
            env.now() - last < pause.min(SPLIT_PAUSE.1)
        };
        self.stage.get() == Stage::Whole && !self.failed.get().is_some_and(waits)
    }
}

/// A split under way.
pub(crate) struct Split<'a> {
    pub(crate) env: &'a Env,
    pub(crate) files: &'a dyn Files,
    pub(crate) managers: &'a dyn Managers,
    pub(crate) range: &'a Rc<Range>,
    /// Its directory.
    pub(crate) store: &'a dyn Store,
    pub(crate) splitting: &'a Splitting,
    pub(crate) id: RangeId,
    pub(crate) epoch: u64,
}

impl Split<'_> {
    /// Splits the range at a bound, or in its middle. Ends when it is known what became of it.
    ///
    /// # Errors
    ///
    /// It was not split. The manager gives it to an owner again if it was shut out.
    pub(crate) async fn run(&self, at: Option<RangeBound>) -> Result<(), Error> {
        let done = self.prepare_and_end(at).await;
        if let Err(error) = &done {
            tracing::warn!(range = %self.id, %error, "a range is not split");
            let times = self.splitting.failed.get().map_or(0, |(times, _)| times) + 1;
            self.splitting.failed.set(Some((times, self.env.now())));
        }
        if !self.splitting.is_cut() {
            self.splitting.stage.set(Stage::Whole);
        }
        done
    }

    async fn prepare_and_end(&self, at: Option<RangeBound>) -> Result<(), Error> {
        let map = read_map(async |request| self.managers.ask(request).await).await?;
        let (first, end) = map.bounds(self.id).ok_or(Error::Reroute)?;
        let at = match at {
            Some(at) => at,
            None => {
                let rows = self.range.decisions.snapshot();
                let middle = middle(&self.range.decisions, &rows, (first, end)).await?;
                middle.ok_or_else(|| Error::Invalid {
                    message: format!("{} has too few keys: it cannot be split", self.id),
                })?
            }
        };
        let halves = match self.prepare(&at).await {
            Ok(halves) => halves,
            // Whether it is on record that it has begun is not known.
            Err(error @ (Error::Unknown { .. } | Error::Busy { .. })) => {
                self.end(false).await;
                return Err(error);
            }
            Err(error) => return Err(error),
        };
        let filled = self.fill_and_cut((first, end), &at, halves).await;
        let committed = self.end(filled.is_ok()).await;
        match (committed, filled) {
            (true, _) => Ok(()),
            (false, Err(error)) => Err(error),
            (false, Ok(())) => Err(Error::Busy { cause: "its split was given up".to_owned() }),
        }
    }

    /// The halves, which are on record; asked again, the manager still knows this owner.
    async fn prepare(&self, at: &RangeBound) -> Result<(RangeId, RangeId), Error> {
        let (range, epoch, at) = (self.id, self.epoch, at.clone());
        match self.managers.ask(CatalogRequest::PrepareSplit { range, epoch, at }).await? {
            CatalogReply::Halves { low, high } => Ok((low, high)),
            _ => Err(unexpected()),
        }
    }

    async fn fill_and_cut(
        &self,
        (first, end): (&RangeBound, Option<&RangeBound>),
        at: &RangeBound,
        (low, high): (RangeId, RangeId),
    ) -> Result<(), Error> {
        let decisions = &self.range.decisions;
        let [of_low, of_high] = [range_dir(low), range_dir(high)];
        let mut children = Vec::new();
        for (dir, shows) in [(&of_low, shown(first, Some(at))), (&of_high, shown(at, end))] {
            let store = self.files.dir(dir).await;
            let store = store.map_err(busy)?;
            children.push(Child { store, owner: self.epoch + 1, shows });
        }
        // What is submitted before this moment is counted, what is submitted behind it is followed.
        self.range.usages.follow_below(at);
        let moment = (decisions.snapshot(), decisions.submitted());
        let counted = count_below(decisions, (&moment.0, &moment.1), at).await?;
        drop(moment);
        decisions.table.flush().await.map_err(of_table)?;
        let mut fork = decisions.table.fork(children).map_err(of_table)?;
        let (dirs, mut linked) = ([of_low.as_str(), of_high.as_str()], BTreeSet::new());
        for _ in 0..LINK_ROUNDS {
            let of_table = fork.link().await.map_err(of_table)?;
            let of_bodies = self.link_bodies(dirs, self.names().await?, &mut linked).await?;
            if of_table + of_bodies < LINKED_LEAST {
                break;
            }
        }
        self.env.mark("object: the halves of a range are filled");
        // A cut whose end has no answer would hold the range: the manager is there just now.
        let heard = self.env.timeout(MANAGER_HEARD, self.prepare(at)).await;
        heard.map_err(|_| Error::Busy { cause: "the object manager is slow".to_owned() })??;
        self.range.check_lease()?;
        let usage = self.range.usages.halves(counted).expect("it is followed");
        let row = HalvesRow { low, high, at: at.clone(), usage };
        let (_, basis) = decisions.submit(|batch, _| {
            batch.set_purpose(Purpose::Recovery);
            batch.put(&[HALVES], &row.encode());
        })?;
        // Nothing was awaited since: that is the last batch.
        decisions.shut();
        self.splitting.stage.set(Stage::Cut);
        let cut = async {
            decisions.settled(basis).await?;
            // Rows say what came since: to list all names could take longer than the range may be shut out.
            // Without a row a file is of no use to the halves, and none gets one any more.
            let known = self.range.files.all();
            let known = known.into_iter().map(|(file, _)| file.as_str().to_owned()).collect();
            self.link_bodies(dirs, known, &mut linked).await?;
            fork.cut().await.map(drop).map_err(of_table)
        };
        let done = self.env.timeout(CUT_TIME, cut).await;
        let done = done.unwrap_or_else(|_| {
            Err(Error::Busy { cause: "shutting it out has taken too long".to_owned() })
        });
        decisions.end("the range was shut out for its split".to_owned());
        self.env.mark("object: a range is cut");
        done
    }

    /// All names in the range's directory.
    async fn names(&self) -> Result<Vec<String>, Error> {
        let mut names: Vec<String> = Vec::new();
        loop {
            let after = names.last().cloned().unwrap_or_default();
            let page = self.store.list(&after).await.map_err(busy)?;
            names.extend(page.names);
            if !page.more {
                return Ok(names);
            }
        }
    }

    /// Links the files of bodies among these that both directories were not given before; returns how many names
    /// were new. Nothing takes a name away from the halves, so what was linked once is not looked at again.
    async fn link_bodies(
        &self,
        dirs: [&str; 2],
        mut names: Vec<String>,
        linked: &mut BTreeSet<String>,
    ) -> Result<usize, Error> {
        names.retain(|name| is_body(name) && !linked.contains(name));
        if self.range.has_bug(Planted::HalfCommit) {
            names.clear();
        }
        for dir in dirs {
            names = self.link(names, dir).await?;
        }
        let new = dirs.len() * names.len();
        linked.extend(names);
        Ok(new)
    }

    /// Links files into a directory, but for those that are gone: collection removes some at the same time. Returns
    /// the ones that were linked.
    async fn link(&self, mut names: Vec<String>, dir: &str) -> Result<Vec<String>, Error> {
        while !names.is_empty() {
            match self.store.link(&names, dir).await {
                Ok(()) => break,
                Err(fault) if fault.kind == Kind::NotFound => {
                    let known = self.store.numbers(&names).await.map_err(busy)?;
                    if known.iter().all(Option::is_some) {
                        // It is the directory that is gone.
                        return Err(busy(fault));
                    }
                    let there = names.into_iter().zip(known).filter(|(_, known)| known.is_some());
                    names = there.map(|(name, _)| name).collect();
                    self.env.mark("object: a file to be linked is gone");
                }
                Err(fault) => return Err(busy(fault)),
            }
        }
        Ok(names)
    }

    /// Asks what becomes of the range until that is answered; true when it is no more.
    async fn end(&self, commit: bool) -> bool {
        let (range, epoch) = (self.id, self.epoch);
        let mut pause = PAUSE.0;
        loop {
            match self.managers.ask(CatalogRequest::EndSplit { range, epoch, commit }).await {
                Ok(CatalogReply::SplitEnded { committed }) => return committed,
                Ok(_) => tracing::warn!(%range, "not an answer to the end of a split"),
                Err(error) => tracing::debug!(%range, %error, "the end of a split has no answer"),
            }
            self.env.mark("object: the end of a split is asked for again");
            self.env.sleep(self.env.jitter(pause)).await;
            pause = (2 * pause).min(Duration::from_millis(200));
        }
    }
}

/// True for the name of a file of bodies, false for those of the table.
fn is_body(name: &str) -> bool {
    !["log-", "sorted-", "manifest-", "draft-"].iter().any(|own| name.starts_with(own))
}

fn busy(fault: Fault) -> Error {
    Error::Busy { cause: fault.message }
}

fn unexpected() -> Error {
    Error::Busy { cause: "the object manager answered something else".to_owned() }
}

/// Keys in order, each with the bytes of rows from it on to the next, fewer as they become many.
#[derive(Default)]
struct Samples {
    keys: Vec<(Target, u64)>,
    /// Bytes from which on a key is the next sample.
    stride: u64,
}

impl Samples {
    fn add(&mut self, target: impl FnOnce() -> Option<Target>, bytes: u64) -> Option<()> {
        match self.keys.last_mut() {
            Some((_, known)) if *known < self.stride => *known += bytes,
            _ => self.keys.push((target()?, bytes)),
        }
        if self.keys.len() >= 2 * SAMPLES {
            let pairs = self
                .keys
                .chunks(2)
                .map(|two| (two[0].0.clone(), two.iter().map(|(_, bytes)| bytes).sum::<u64>()));
            self.keys = pairs.collect();
            self.stride = self.keys.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
        }
        Some(())
    }
}

/// The key in the middle of a range's objects and versions, by the bytes of their rows; none when one key is all.
async fn middle(
    decisions: &Decisions,
    rows: &Snapshot,
    (first, end): (&RangeBound, Option<&RangeBound>),
) -> Result<Option<RangeBound>, Error> {
    let mut keys = Vec::new();
    for section in [CURRENT, VERSIONS] {
        let (mut scan, mut seen) = (rows.scan(between_bounds(section, first, end)), 0);
        let mut samples = Samples::default();
        while let Some((key, value)) = scan.next().await.map_err(of_table)? {
            seen += 1;
            if seen % PARTS_SLICE == 0 {
                decisions.yield_now().await;
            }
            let target = || match section {
                CURRENT => read_object_key(&key),
                _ => read_version_key(&key).map(|(target, _)| target),
            };
            let added = samples.add(target, (key.len() + value.len()) as u64);
            added.ok_or_else(|| damaged("a key of the range"))?;
        }
        keys.extend(samples.keys);
    }
    let place = |target: &Target| key_prefix(CURRENT, target.bucket, target.key.as_str());
    keys.sort_by_cached_key(|(target, _)| place(target));
    let Some((lowest, _)) = keys.first().cloned() else { return Ok(None) };
    let half = keys.iter().map(|(_, bytes)| bytes).sum::<u64>() / 2;
    let mut below = 0;
    for (target, bytes) in &keys {
        if below >= half && *target != lowest {
            return Ok(Some(RangeBound::of(target)));
        }
        below += bytes;
    }
    let last = keys.last().filter(|(target, _)| *target != lowest);
    Ok(last.map(|(target, _)| RangeBound::of(target)))
}

#[cfg(test)]
mod tests {
    use object_proto::{BucketId, ObjectKey};

    use super::*;

    fn bound(bucket: u64, key: &str) -> RangeBound {
        RangeBound { bucket: BucketId::new(bucket), key: key.to_owned() }
    }

    #[test]
    fn halves_show_each_row_by_object_once_and_all_others_twice() {
        let (first, at, end) = (bound(1, "a"), bound(2, "k"), bound(4, ""));
        let [low, high] = [shown(&first, Some(&at)), shown(&at, Some(&end))];
        let last = shown(&end, None);
        let shows = |half: &[Rows], key: &[u8]| {
            let within = |rows: &Rows| {
                use std::ops::RangeBounds;
                (rows.lower.clone(), rows.upper.clone()).contains(&key.to_vec())
            };
            half.iter().filter(|rows| within(rows)).count()
        };
        for section in u8::MIN..=u8::MAX {
            for (bucket, key) in [(1, "a"), (2, "j\0"), (2, "k"), (3, "z"), (4, "a")] {
                let key = ObjectKey::new(key).expect("a key");
                let target = Target { bucket: BucketId::new(bucket), key };
                let row = crate::keys::object_key(section, &target);
                let there = [&low, &high, &last].map(|half| shows(half, &row));
                let at = RangeBound::of(&target);
                let expected = match BY_OBJECT.contains(&section) {
                    true if at < bound(2, "k") => [1, 0, 0],
                    true if at < end => [0, 1, 0],
                    true => [0, 0, 1],
                    false => [1, 1, 1],
                };
                assert_eq!(there, expected, "section {section}, {target}");
            }
        }
    }

    #[test]
    fn samples_are_even_and_few() {
        let mut samples = Samples::default();
        let target = |at: usize| {
            let key = ObjectKey::new(format!("{at:08}")).expect("a key");
            Target { bucket: BucketId::new(1), key }
        };
        for at in 0..50_000 {
            samples.add(|| Some(target(at)), 100).expect("a target");
        }
        assert!(samples.keys.len() < 2 * SAMPLES, "{}", samples.keys.len());
        let sum: u64 = samples.keys.iter().map(|(_, bytes)| bytes).sum();
        assert_eq!(sum, 5_000_000);
        let most = samples.keys.iter().map(|(_, bytes)| *bytes).max().expect("some");
        assert!(most < sum / 256, "{most} of {sum}");
    }
}
