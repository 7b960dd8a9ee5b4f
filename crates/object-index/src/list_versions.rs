//! Pages of a bucket's versions (`object-protocols.md` 9.2): current objects and older versions, merged. A
//! page is one snapshot of the range.

use object_proto::limits::LIST_MAX;
use object_proto::{
    Error, ListedVersion, ObjectKey, Stamp, Target, VersionId, VersionsPage, VersionsRequest,
};
use table::{Range, Scan, Snapshot};

use crate::decisions::{damaged, of_table};
use crate::keys::{
    CURRENT, NULL, VERSIONS, object_key, read_object_key, read_version_key, version_key,
};
use crate::limits::PAGE_BYTES;
use crate::list::Keys;
use crate::row::{ObjectRow, decode_stamp};
use crate::whole::{listed, map_bytes};

/// Rows of one section, of which the next is known.
struct Rows {
    scan: Scan,
    next: Option<(ObjectKey, Vec<u8>)>,
    section: u8,
}

impl Rows {
    async fn begin(rows: &Snapshot, keys: &Keys<'_>, start: &[u8]) -> Result<Rows, Error> {
        let scan = rows.scan(Range::between(start, &keys.end()));
        let mut rows = Rows { scan, next: None, section: keys.section };
        rows.step().await?;
        Ok(rows)
    }

    async fn step(&mut self) -> Result<(), Error> {
        self.next = match self.scan.next().await.map_err(of_table)? {
            None => None,
            Some((key, value)) => {
                let target = match self.section {
                    CURRENT => read_object_key(&key),
                    _ => read_version_key(&key).map(|(target, _)| target),
                };
                let target = target.ok_or_else(|| damaged("a key of the range"))?;
                Some((target.key, value))
            }
        };
        Ok(())
    }

    /// Goes on behind all keys that begin with `prefix`.
    async fn skip(&mut self, keys: &Keys<'_>, prefix: &str) -> Result<(), Error> {
        if self.next.as_ref().is_some_and(|(key, _)| key.as_str().starts_with(prefix)) {
            self.scan.seek(&keys.behind(prefix)).await.map_err(of_table)?;
            self.step().await?;
        }
        Ok(())
    }
}

/// Where the versions of a key begin that are older than one of them.
async fn older_than(
    rows: &Snapshot,
    target: &Target,
    version: VersionId,
) -> Result<Option<Vec<u8>>, Error> {
    let stamp = match version {
        VersionId::Of { stamp, .. } => Some(stamp),
        VersionId::Null => {
            let current = rows.get(&object_key(CURRENT, target)).await.map_err(of_table)?;
            let current = current.and_then(|value| ObjectRow::decode(&value));
            if current.is_some_and(|row| row.info.version() == version) {
                Some(Stamp::new(u64::MAX))
            } else {
                let null = rows.get(&object_key(NULL, target)).await.map_err(of_table)?;
                null.and_then(|value| decode_stamp(&value))
            }
        }
    };
    Ok(stamp.map(|stamp| {
        let mut start = version_key(target, stamp);
        start.push(0);
        start
    }))
}

/// A page of versions.
pub(crate) async fn page(rows: Snapshot, ask: &VersionsRequest) -> Result<VersionsPage, Error> {
    let limit = ask.limit.min(LIST_MAX) as usize;
    let mut page = VersionsPage::default();
    if limit == 0 {
        return Ok(page);
    }
    let VersionsRequest { bucket, prefix, delimiter, after, .. } = ask;
    let of = |section| Keys { section, bucket: *bucket, prefix, delimiter, after };
    let keys = [of(CURRENT), of(VERSIONS)];
    let mut older = keys[1].start();
    // The key of which something was shown.
    let mut shown = None;
    if let Some(version) = ask.after_version
        && let Ok(key) = ObjectKey::new(after.as_str())
        && keys[1].shows(after)
    {
        let target = Target { bucket: *bucket, key: key.clone() };
        // One without an ID that went since is not known: its key is shown again.
        older = older_than(&rows, &target, version)
            .await?
            .unwrap_or_else(|| object_key(VERSIONS, &target));
        shown = Some(key);
    }
    let mut current = Rows::begin(&rows, &keys[0], &keys[0].start()).await?;
    let mut older = Rows::begin(&rows, &keys[1], &older).await?;
    let mut bytes = 0;
    loop {
        let is_current = match (&current.next, &older.next) {
            (None, None) => break,
            (Some((key, _)), Some((other, _))) => key.as_str() <= other.as_str(),
            (next, _) => next.is_some(),
        };
        if page.entries.len() == limit || bytes > PAGE_BYTES {
            page.more = true;
            break;
        }
        let from = if is_current { &mut current } else { &mut older };
        let (key, value) = from.next.clone().expect("looked at above");
        if let Some(prefix) = keys[0].common_prefix(key.as_str()) {
            current.skip(&keys[0], prefix).await?;
            older.skip(&keys[1], prefix).await?;
            bytes += prefix.len();
            page.entries.push(ListedVersion::Prefix(prefix.to_owned()));
            continue;
        }
        bytes += key.as_str().len() + value.len();
        let row = ObjectRow::decode(&value);
        let row = row.ok_or_else(|| damaged(&format!("a version of {key}")))?;
        let latest = shown.as_ref() != Some(&key);
        shown = Some(key.clone());
        page.entries.push(match row.marker {
            true => ListedVersion::Marker {
                key,
                version: row.info.version(),
                stamp: row.info.stamp,
                owner: row.info.object.facts.owner,
                latest,
            },
            false => {
                let target = Target { bucket: *bucket, key };
                let info = Box::new(listed(&rows, &target, row).await?);
                bytes += map_bytes(&info);
                ListedVersion::Version { key: target.key, info, latest }
            }
        });
        from.step().await?;
    }
    Ok(page)
}
