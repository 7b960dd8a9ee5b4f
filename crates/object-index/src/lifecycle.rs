//! [`Keeper`]: the pass of each day over a range's index, for the rules of buckets (`object-protocols.md` 11.1).
//!
//! It reads pages of rows of buckets that have rules, at a rate that the ranges of a server share, and hands keys
//! that seem due to the range, which decides. How far it is, is a row: a new owner goes on behind that.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use object_proto::{BucketId, Error, Lifecycle, LifecycleState, Stamp, Target, Versioning};
use runtime::{Duration, Instant};
use table::{Range as Rows, Snapshot};

use crate::decisions::{Basis, damaged, of_table, unix_us};
use crate::expire::aging;
use crate::keys::{
    CURRENT, UPLOAD, VERSIONS, above, bucket_prefix, object_key, read_object_key, read_upload_key,
    read_version_key,
};
use crate::limits::{
    COLLECT_ROWS, LIFECYCLE_LOOK, LIFECYCLE_LOOK_LEAST, LIFECYCLE_NOTE, LIFECYCLE_SLICE,
};
use crate::pace::Pace;
use crate::pass_rows::{BucketPassRow, PassRow, put_pass};
use crate::planted::Planted;
use crate::range::Range;
use crate::row::ObjectRow;
use crate::upload_row::UploadRow;
use crate::versions::Version;

/// Sections that a pass reads of a bucket, in order.
const SECTIONS: [u8; 3] = [CURRENT, VERSIONS, UPLOAD];

/// Makes the passes over a range.
pub(crate) struct Keeper {
    pub(crate) range: Rc<Range>,
    pub(crate) pace: Pace,
}

/// A pass that is under way.
struct Pass {
    row: PassRow,
    /// When it was noted last how far it is.
    noted: Instant,
    /// What was submitted last.
    basis: Basis,
}

/// Older versions of one key, as far as they were read.
struct Versions {
    target: Target,
    /// When the last one was put that was read, or the current object; none before the newest marker.
    since: Option<Stamp>,
    /// Older versions that are no delete markers.
    newer: u32,
    /// What was due is done.
    done: bool,
}

impl Keeper {
    /// Makes passes. For ever.
    pub(crate) async fn run(&self) {
        let (env, day) = (&self.range.env, Duration::from_micros(self.range.day.us()));
        let pause = (day / 4).clamp(LIFECYCLE_LOOK_LEAST, LIFECYCLE_LOOK);
        loop {
            env.sleep(env.jitter(pause)).await;
            if let Err(error) = self.pass().await {
                tracing::debug!(%error, "a pass of lifecycle was not finished");
            }
        }
    }

    /// The pass of this day, if it was not made yet; the one that was under way first.
    async fn pass(&self) -> Result<(), Error> {
        let range = &self.range;
        range.check_lease()?;
        let (now_us, day_us) = (range.expired_us(), range.day.us());
        let (mut row, today) = (range.passes.range(), now_us / day_us);
        let goes_on = row.day_us == day_us && row.at.is_some() && row.day <= today;
        if !goes_on {
            if today == 0 || row.day_us == day_us && row.day == today {
                return Ok(());
            }
            row = PassRow { day_us, day: today, at: Some(Vec::new()) };
        } else if row.at.as_ref().is_some_and(|at| !at.is_empty()) {
            range.env.mark("object: a pass of lifecycle goes on");
        }
        let (noted, basis) = (range.env.now(), Basis::default());
        let mut pass = Pass { row, noted, basis };
        self.read(&mut pass).await?;
        range.decisions.settled(pass.basis).await?;
        range.passes.note(&range.decisions, PassRow { at: None, ..pass.row })
    }

    /// Reads what is left.
    async fn read(&self, pass: &mut Pass) -> Result<(), Error> {
        let range = &self.range;
        let at = pass.row.at.clone().unwrap_or_default();
        let first = bucket_of(&at);
        let from = first.unwrap_or(BucketId::new(0));
        let mut buckets = BTreeSet::from_iter(range.usages.buckets_from(from));
        buckets.extend(range.buckets.with_rules_from(from));
        for bucket in buckets {
            range.check_lease()?;
            // A change may have come to nothing that the catalog has.
            if range.buckets.ask_again(bucket).await.is_err() {
                range.buckets.load(bucket).await?;
            }
            let Some(rules) = range.lifecycle(bucket) else { continue };
            let (objects, versions, uploads) = rules.acts_on();
            let versions = versions && range.buckets.versioning(bucket) != Versioning::Off;
            let resumes = first == Some(bucket);
            for (section, acts) in SECTIONS.into_iter().zip([objects, versions, uploads]) {
                let is_past = |at: u8| place(section) < place(at);
                if !acts || resumes && at.first().is_some_and(|at| is_past(*at)) {
                    continue;
                }
                let mut from = bucket_prefix(section, bucket);
                if resumes && at.first() == Some(&section) {
                    from = [at.as_slice(), &[0]].concat();
                }
                self.read_section(pass, (section, bucket), from, &rules).await?;
            }
            range.decisions.settled(pass.basis).await?;
            self.end_bucket(pass, bucket)?;
        }
        Ok(())
    }

    /// The pass over a bucket has ended.
    fn end_bucket(&self, pass: &Pass, bucket: BucketId) -> Result<(), Error> {
        let range = &self.range;
        if range.lifecycle(bucket).is_none() {
            return Ok(());
        }
        let before = range.passes.bucket(bucket).unwrap_or_default();
        let (ended_us, day_us) = (range.decisions.now_us(), pass.row.day * pass.row.day_us);
        let row = BucketPassRow { ended_us, day_us, ..before };
        range.decisions.submit(|batch, _| put_pass(batch, bucket, row))?;
        range.passes.set(bucket, row);
        range.env.mark("object: a pass of lifecycle over a bucket ends");
        Ok(())
    }

    /// Takes note, now and then, that all up to a row is done with.
    async fn note(&self, pass: &mut Pass, at: &[u8]) -> Result<(), Error> {
        let range = &self.range;
        pass.row.at = Some(at.to_vec());
        if range.env.now() - pass.noted < LIFECYCLE_NOTE {
            return Ok(());
        }
        range.check_lease()?;
        range.decisions.settled(pass.basis).await?;
        range.passes.note(&range.decisions, pass.row.clone())?;
        pass.noted = range.env.now();
        Ok(())
    }

    /// Reads the rows of a section of a bucket from a key on.
    async fn read_section(
        &self,
        pass: &mut Pass,
        (section, bucket): (u8, BucketId),
        mut from: Vec<u8>,
        rules: &Arc<Lifecycle>,
    ) -> Result<(), Error> {
        let range = &self.range;
        let mut group = None;
        loop {
            let mut rest = Rows::prefix(&bucket_prefix(section, bucket));
            rest.lower = std::ops::Bound::Included(from.clone());
            let rows = range.decisions.snapshot();
            let page = rows.scan(rest).take(COLLECT_ROWS).await.map_err(of_table)?;
            let Some((last, _)) = page.last() else { break };
            from = [last.as_slice(), &[0]].concat();
            let (is_whole, mut bytes) = (page.len() < COLLECT_ROWS, 0);
            for (at, (key, value)) in page.iter().enumerate() {
                bytes += key.len() + value.len();
                if (at + 1) % LIFECYCLE_SLICE == 0 {
                    self.pace.take(&range.env, std::mem::take(&mut bytes)).await;
                }
                match section {
                    CURRENT => self.see_current(pass, (&rows, rules), (key, value)).await?,
                    VERSIONS => {
                        let next = (key.as_slice(), value.as_slice());
                        self.see_version(pass, (&rows, rules), next, &mut group).await?;
                    }
                    _ => self.see_upload(pass, rules, (key, value)).await?,
                }
            }
            // In the middle of a key's versions it would not be known what was read of them.
            match &group {
                None => self.note(pass, last).await?,
                Some(Versions { target, .. }) => {
                    let before = object_key(VERSIONS, target);
                    if page.first().is_some_and(|(first, _)| *first < before) {
                        self.note(pass, &before).await?;
                    }
                }
            }
            drop(rows);
            range.decisions.settled(pass.basis).await?;
            self.range.check_lease()?;
            self.pace.take(&range.env, bytes).await;
            if is_whole || range.lifecycle(bucket).is_none() {
                break;
            }
        }
        self.note(pass, &above(section, bucket, "\u{10ffff}")).await
    }

    async fn see_current(
        &self,
        pass: &mut Pass,
        (rows, rules): (&Snapshot, &Arc<Lifecycle>),
        (key, value): (&[u8], &[u8]),
    ) -> Result<(), Error> {
        let range = &self.range;
        let target = read_object_key(key).ok_or_else(|| damaged("the key of an object"))?;
        let row = ObjectRow::decode(value);
        let row = row.ok_or_else(|| damaged(&format!("the row of {target}")))?;
        let tags = range.durable_tags(rows, &target, (&row, rules)).await;
        // Written again since, or damaged, which a reader finds.
        let Ok(tags) = tags else { return Ok(()) };
        let info = &row.info;
        let found = rules.expiry(aging(&target, &info.object, &tags), info.stamp, range.day);
        if found.is_some_and(|(due_us, _)| due_us <= range.expired_us())
            && let Some(basis) = range.expire_current(&target, (rules, &tags)).await?
        {
            pass.basis = basis;
        }
        Ok(())
    }

    async fn see_version(
        &self,
        pass: &mut Pass,
        (rows, rules): (&Snapshot, &Arc<Lifecycle>),
        (key, value): (&[u8], &[u8]),
        group: &mut Option<Versions>,
    ) -> Result<(), Error> {
        let (range, day) = (&self.range, self.range.day);
        let (target, stamp) =
            read_version_key(key).ok_or_else(|| damaged("the key of an older version"))?;
        let version = Version::read(&target, key.to_vec(), value.to_vec(), Basis::default())?;
        let versions = match group {
            Some(versions) if versions.target == target => versions,
            group => {
                let current = object_key(CURRENT, &target);
                let current = rows.get(&current).await.map_err(of_table)?;
                let current = current.map(|value| ObjectRow::decode(&value));
                let since = match current {
                    None => None,
                    Some(row) => {
                        let row = row.ok_or_else(|| damaged(&format!("the row of {target}")))?;
                        Some(row.info.stamp)
                    }
                };
                let target = target.clone();
                group.insert(Versions { target, since, newer: 0, done: false })
            }
        };
        let (since, newer) = (versions.since.replace(stamp), versions.newer);
        if versions.done {
            return Ok(());
        }
        let due_us = match since {
            // Perhaps it hides no version: that is seen under the key's lock.
            None => {
                let mut others = rows.scan(Rows::prefix(&object_key(VERSIONS, &target)));
                let is_lone = others.take(2).await.map_err(of_table)?.len() == 1;
                let due_us = rules.marker_due_us(target.key.as_str(), stamp, day);
                due_us.filter(|_| is_lone)
            }
            Some(since) => {
                versions.newer += u32::from(!version.row.marker);
                let tags = range.durable_tags(rows, &target, (&version.row, rules)).await?;
                let object = aging(&target, &version.row.info.object, &tags);
                let from = match range.has_bug(Planted::NoncurrentByOwnAge) {
                    true => stamp,
                    false => since,
                };
                rules.noncurrent_due_us(object, (from, newer), day)
            }
        };
        if due_us.is_some_and(|due_us| due_us <= range.expired_us()) {
            versions.done = true;
            range.expire_versions(&target, rules).await?;
            pass.basis = pass.basis.max(range.decisions.last());
        }
        Ok(())
    }

    async fn see_upload(
        &self,
        pass: &mut Pass,
        rules: &Lifecycle,
        (key, value): (&[u8], &[u8]),
    ) -> Result<(), Error> {
        let range = &self.range;
        let row = read_upload_key(key).zip(UploadRow::decode(value));
        let ((target, begun), row) = row.ok_or_else(|| damaged("the row of an upload"))?;
        if row.end.is_some() {
            return Ok(());
        }
        let found = rules.abort_due(target.key.as_str(), begun, range.day);
        if found.is_some_and(|(due_us, _)| due_us <= range.expired_us())
            && let Some(basis) = range.expire_upload((&target, begun)).await?
        {
            pass.basis = basis;
        }
        Ok(())
    }
}

/// The bucket of a row that a pass has come to.
fn bucket_of(at: &[u8]) -> Option<BucketId> {
    Some(BucketId::new(u64::from_be_bytes(at.get(1..9)?.try_into().ok()?)))
}

/// Place of a section in a pass.
fn place(section: u8) -> usize {
    SECTIONS.iter().position(|other| *other == section).unwrap_or(0)
}

impl Range {
    /// How far lifecycle is with a bucket.
    pub(crate) fn lifecycle_state(&self, bucket: BucketId) -> LifecycleState {
        let known = self.passes.bucket(bucket);
        let BucketPassRow { ended_us, day_us, removed } = known.unwrap_or_default();
        let mut state = LifecycleState { last_pass_us: ended_us, removed, behind_us: 0 };
        // Of a bucket in which nothing ever was, nothing is due.
        if self.lifecycle(bucket).is_some() && self.usages.known(bucket).is_some() {
            let day = self.day;
            // The first pass is due with the first day that begins behind the rules.
            let due_us = match ended_us {
                0 => day.due_us(self.buckets.changed(bucket).get(), 0),
                _ => day_us.saturating_add(day.us()),
            };
            state.behind_us = unix_us(&self.env).saturating_sub(due_us);
        }
        state
    }
}
