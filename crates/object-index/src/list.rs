//! Pages of a bucket's keys and uploads (`object-protocols.md` 9.2). A page is one snapshot of the range.

use std::ops::Bound;

use object_proto::limits::LIST_MAX;
use object_proto::{
    BucketId, Error, ListPage, ListRequest, Listed, ListedUpload, ObjectKey, Target, UploadsPage,
    UploadsRequest,
};
use table::{Range, Snapshot};

use crate::decisions::{damaged, of_table};
use crate::keys::{
    CURRENT, UPLOAD, above, key_prefix, read_object_key, read_upload_key, upload_key,
};
use crate::limits::PAGE_BYTES;
use crate::row::ObjectRow;
use crate::upload_row::UploadRow;
use crate::whole::{listed, map_bytes};

/// Which keys of a section of a bucket are asked for.
pub(crate) struct Keys<'a> {
    pub(crate) section: u8,
    pub(crate) bucket: BucketId,
    pub(crate) prefix: &'a str,
    pub(crate) delimiter: &'a str,
    pub(crate) after: &'a str,
}

impl Keys<'_> {
    /// The common prefix that a key is shown as, if it is.
    pub(crate) fn common_prefix<'a>(&self, key: &'a str) -> Option<&'a str> {
        if self.delimiter.is_empty() {
            return None;
        }
        let rest = key.get(self.prefix.len()..)?;
        let at = rest.find(self.delimiter)?;
        Some(&key[..self.prefix.len() + at + self.delimiter.len()])
    }

    /// The first key of a row behind all that begin with `prefix`.
    pub(crate) fn behind(&self, prefix: &str) -> Vec<u8> {
        match Range::prefix(&key_prefix(self.section, self.bucket, prefix)).upper {
            Bound::Excluded(key) => key,
            _ => unreachable!("sections are below FF"),
        }
    }

    /// Where a page begins: behind what `after` names, or would be shown as.
    pub(crate) fn start(&self) -> Vec<u8> {
        if self.after.as_bytes() < self.prefix.as_bytes() {
            return key_prefix(self.section, self.bucket, self.prefix);
        }
        if !self.after.starts_with(self.prefix) {
            // Above all that begins with the prefix.
            return self.behind(self.prefix);
        }
        match self.common_prefix(self.after) {
            Some(prefix) => self.behind(prefix),
            None => above(self.section, self.bucket, self.after),
        }
    }

    /// True when a key of that name is shown as itself.
    pub(crate) fn shows(&self, key: &str) -> bool {
        key.starts_with(self.prefix) && self.common_prefix(key).is_none()
    }

    pub(crate) fn end(&self) -> Vec<u8> {
        self.behind(self.prefix)
    }
}

/// A page of keys.
pub(crate) async fn page(rows: Snapshot, ask: &ListRequest) -> Result<ListPage, Error> {
    let limit = ask.limit.min(LIST_MAX) as usize;
    let mut page = ListPage::default();
    if limit == 0 {
        return Ok(page);
    }
    let ListRequest { bucket, prefix, delimiter, after, .. } = ask;
    let keys = Keys { section: CURRENT, bucket: *bucket, prefix, delimiter, after };
    let mut scan = rows.scan(Range::between(&keys.start(), &keys.end()));
    let mut bytes = 0;
    while let Some((key, value)) = scan.next().await.map_err(of_table)? {
        let target = read_object_key(&key).ok_or_else(|| damaged("a key of the range"))?;
        if page.entries.len() == limit || bytes > PAGE_BYTES {
            page.next = page.entries.last().map(|last| last.name().to_owned());
            break;
        }
        if let Some(prefix) = keys.common_prefix(target.key.as_str()) {
            scan.seek(&keys.behind(prefix)).await.map_err(of_table)?;
            bytes += prefix.len();
            page.entries.push(Listed::Prefix(prefix.to_owned()));
            continue;
        }
        bytes += key.len() + value.len();
        let row = ObjectRow::decode(&value);
        let row = row.ok_or_else(|| damaged(&format!("the row of {target}")))?;
        let info = listed(&rows, &target, row).await?;
        bytes += map_bytes(&info);
        page.entries.push(Listed::Object { key: target.key, info: Box::new(info) });
    }
    Ok(page)
}

/// A page of uploads that are under way.
pub(crate) async fn uploads(rows: Snapshot, ask: &UploadsRequest) -> Result<UploadsPage, Error> {
    let limit = ask.limit.min(LIST_MAX) as usize;
    let mut page = UploadsPage::default();
    if limit == 0 {
        return Ok(page);
    }
    let UploadsRequest { bucket, prefix, delimiter, after, .. } = ask;
    let keys = Keys { section: UPLOAD, bucket: *bucket, prefix, delimiter, after };
    let mut start = keys.start();
    if let Some(upload) = ask.after_upload
        && let Ok(key) = ObjectKey::new(after.as_str())
        && keys.shows(after)
    {
        // Behind that upload of the key, before all others.
        start = upload_key(&Target { bucket: *bucket, key }, upload.stamp);
        start.push(0);
    }
    let mut scan = rows.scan(Range::between(&start, &keys.end()));
    let mut bytes = 0;
    while let Some((key, value)) = scan.next().await.map_err(of_table)? {
        let row = read_upload_key(&key).zip(UploadRow::decode(&value));
        let ((target, begun), row) = row.ok_or_else(|| damaged("an upload"))?;
        // Rows of uploads that were completed had their place here too.
        if row.end.is_some() {
            continue;
        }
        if page.entries.len() == limit || bytes > PAGE_BYTES {
            page.more = true;
            break;
        }
        if let Some(prefix) = keys.common_prefix(target.key.as_str()) {
            scan.seek(&keys.behind(prefix)).await.map_err(of_table)?;
            bytes += prefix.len();
            page.entries.push(ListedUpload::Prefix(prefix.to_owned()));
            continue;
        }
        bytes += key.len() + value.len();
        let info = Box::new(row.info(begun));
        page.entries.push(ListedUpload::Upload { key: target.key, info });
    }
    Ok(page)
}
