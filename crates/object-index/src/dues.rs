//! What is to be done about uploads from a time on (`object-protocols.md` 8.3): those that no client ends
//! are aborted, and parts that are of no use any more go.

use object_proto::{Error, ObjectData, Stamp, Target};
use table::{Purpose, Range as Rows};

use crate::body_files::Places;
use crate::collect::Collector;
use crate::decisions::{damaged, of_table};
use crate::keys::{
    CURRENT, DUE, due_key, object_key, parts_prefix, read_due_key, read_part_key, upload_end_key,
    upload_key, version_key,
};
use crate::limits::{COLLECT_ROWS, LIFECYCLE_LOOK, TRASH_AGE_FULL};
use crate::row::ObjectRow;
use crate::upload_row::{Due, UploadRow};
use crate::uploads::part_row;
use crate::usage::{put_row, without_upload};
use crate::whole::whole_map;

/// What is due about an upload, and the key of its row.
struct Entry<'a> {
    key: &'a [u8],
    /// From when on it is due, microseconds since 1970.
    from: u64,
    target: Target,
    begun: Stamp,
}

impl Collector {
    /// Does what was to be done long enough ago. What fails is left for the next pass.
    pub(crate) async fn tend_uploads(&self) -> Result<(), Error> {
        let tend_row =
            async |key: &[u8], value: &[u8]| match read_due_key(key).zip(Due::decode(value)) {
                Some(((from, target, begun), due)) => {
                    self.tend(Entry { key, from, target, begun }, due).await
                }
                None => Err(damaged("a row of what is due")),
            };
        self.each_old(DUE, tend_row).await
    }

    async fn tend(&self, entry: Entry<'_>, due: Due) -> Result<(), Error> {
        // What clients still count on goes by the time by which locks end.
        let is_counted_on = matches!(due, Due::Abort | Due::Forget);
        if is_counted_on && entry.from >= self.aged(self.range.expired_us(), TRASH_AGE_FULL) {
            return Ok(());
        }
        match due {
            Due::Abort => self.end_upload(&entry, true).await,
            Due::Forget => self.end_upload(&entry, false).await,
            Due::Parts(of) => self.drop_parts(&entry, of, |_| false).await,
            Due::OtherParts(map) => {
                // It is due since the upload was completed.
                let of = Some(Stamp::new(entry.from));
                self.drop_parts(&entry, of, |number| map.has(number)).await
            }
        }
    }

    /// Removes the row of an upload that is under way, or of one that is not, wherever that is.
    async fn end_upload(&self, entry: &Entry<'_>, is_open: bool) -> Result<(), Error> {
        let (range, Entry { key, target, begun, .. }) = (&self.range, entry);
        let held = range.decisions.lock(&object_key(CURRENT, target)).await;
        let upload = upload_key(target, *begun);
        let row = match range.decisions.read(&upload).await?.value {
            Some(value) => {
                let row = UploadRow::decode(&value);
                Some(row.ok_or_else(|| damaged(&format!("an upload of {target}")))?)
            }
            None => None,
        };
        let ends = row.as_ref().is_some_and(|row| row.end.is_none() == is_open);
        if let Some(row) = row.filter(|_| ends && is_open)
            && let Some(later_us) = self.later_by_rule(target, *begun).await?
        {
            // A rule of the bucket gives it more time.
            let basis = range.decisions.submit(|batch, _| {
                batch.set_purpose(Purpose::Recovery);
                batch.delete(key);
                batch.put(&due_key(later_us, target, *begun), &Due::Abort.encode());
                batch.put(&upload, &UploadRow { abort_us: later_us, ..row }.encode());
            });
            drop(held);
            return range.decisions.settled(basis?.1).await;
        }
        let part_bytes = match ends && is_open {
            true => Some(range.part_bytes(target, *begun).await?),
            false => None,
        };
        // Looked at last: the bucket may be gone since, and its count with it.
        let usage = range.usages.known(target.bucket).zip(part_bytes);
        let usage = usage.map(|(usage, part_bytes)| without_upload(usage, part_bytes));
        let (_, basis) = range.decisions.submit(|batch, stamp| {
            batch.set_purpose(Purpose::Recovery);
            batch.delete(key);
            if ends {
                batch.delete(&upload);
            }
            if !is_open {
                batch.delete(&upload_end_key(target, *begun));
            }
            if ends && is_open {
                batch.put(&due_key(stamp.get(), target, *begun), &Due::Parts(None).encode());
            }
            if let Some(usage) = usage {
                put_row(batch, target.bucket, usage);
            }
        })?;
        if let Some(usage) = usage {
            range.usages.set(target, usage);
        }
        drop(held);
        range.decisions.settled(basis).await?;
        if ends && is_open {
            tracing::info!(%target, "a multipart upload was under way for too long: it is aborted");
            range.env.mark("object: an upload is aborted by its age");
        }
        Ok(())
    }

    /// When to look again at an upload whose default time is over: one for which there is a rule is aborted by that,
    /// and by the time of rules.
    async fn later_by_rule(&self, target: &Target, begun: Stamp) -> Result<Option<u64>, Error> {
        let range = &self.range;
        range.buckets.load(target.bucket).await?;
        let Some(rules) = range.lifecycle(target.bucket) else { return Ok(None) };
        let found = rules.abort_due(target.key.as_str(), begun, range.day);
        let Some((due_us, _)) = found.filter(|(due_us, _)| *due_us > range.expired_us()) else {
            return Ok(None);
        };
        let again_us = range.decisions.now_us().saturating_add(LIFECYCLE_LOOK.as_micros() as u64);
        Ok(Some(due_us.max(again_us)))
    }

    /// Removes the parts of an upload that is over, but for those that an object keeps;
    /// `of` is the commit of that object, if there was one.
    async fn drop_parts(
        &self,
        entry: &Entry<'_>,
        of: Option<Stamp>,
        keeps: impl Fn(u16) -> bool,
    ) -> Result<(), Error> {
        let (range, Entry { key, target, begun, .. }) = (&self.range, entry);
        let prefix = parts_prefix(target, *begun);
        let mut from = prefix.clone();
        let (is_open, map) = self.stands((target, *begun), of).await?;
        loop {
            let mut rest = Rows::prefix(&prefix);
            rest.lower = std::ops::Bound::Included(from.clone());
            let rows = range.decisions.snapshot().scan(rest).take(COLLECT_ROWS).await;
            let rows = rows.map_err(of_table)?;
            let (mut dead, more) = (Vec::new(), rows.len() == COLLECT_ROWS);
            for (key, value) in &rows {
                let number = read_part_key(key).map(|(_, _, number)| number.get());
                let number = number.ok_or_else(|| damaged(&format!("a part of {target}")))?;
                if keeps(number) {
                    continue;
                }
                let named = map.as_ref().is_some_and(|map| map.has(number));
                if is_open || named {
                    tracing::error!(%target, number, "a part in the trash is of use: it stays");
                    continue;
                }
                let part = part_row(value, target)?.object;
                dead.push((key, part));
            }
            let mut files = None;
            let (_, basis) = range.decisions.submit(|batch, _| {
                batch.set_purpose(Purpose::Recovery);
                let mut places = Places::default();
                for (key, part) in &dead {
                    batch.delete(key);
                    places.take(batch, target, part);
                }
                if !more {
                    batch.delete(key);
                }
                files = Some(range.files.put(batch, &places));
            })?;
            files.into_iter().for_each(|rows| range.files.know(rows));
            range.decisions.settled(basis).await?;
            match rows.last() {
                Some((last, _)) if more => from = [last.as_slice(), &[0]].concat(),
                _ => break,
            }
        }
        range.env.mark("object: parts are dropped");
        Ok(())
    }

    /// Whether an upload is under way, and the parts of it that the object of that commit has, or the
    /// current one.
    async fn stands(
        &self,
        (target, begun): (&Target, Stamp),
        of: Option<Stamp>,
    ) -> Result<(bool, Option<object_proto::PartMap>), Error> {
        let range = &self.range;
        let _held = range.decisions.lock(&object_key(CURRENT, target)).await;
        range.decisions.settled_to_go_on(range.decisions.last()).await?;
        let upload = range.decisions.durable(&upload_key(target, begun)).await?;
        let is_open = match upload {
            Some(value) => {
                let row = UploadRow::decode(&value);
                row.ok_or_else(|| damaged(&format!("an upload of {target}")))?.end.is_none()
            }
            None => false,
        };
        let rows = range.decisions.snapshot();
        let current = object_key(CURRENT, target);
        for key in [current].into_iter().chain(of.map(|stamp| version_key(target, stamp))) {
            let Some(value) = rows.get(&key).await.map_err(of_table)? else { continue };
            let row = ObjectRow::decode(&value);
            let mut row = row.ok_or_else(|| damaged(&format!("a version of {target}")))?;
            let is_of = |data: &ObjectData| match data {
                ObjectData::Parts(map) => map.upload.stamp == begun,
                _ => false,
            };
            if is_of(&row.info.object.data) {
                whole_map(&rows, target, &mut row).await?;
                if let ObjectData::Parts(map) = row.info.object.data {
                    return Ok((is_open, Some(map)));
                }
            }
        }
        Ok((is_open, None))
    }
}
