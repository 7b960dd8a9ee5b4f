//! Pages of a bucket's keys (`object-protocols.md` 9.2). A page is one snapshot of the range.

use std::ops::Bound;

use object_proto::limits::LIST_MAX;
use object_proto::{Error, ListPage, ListRequest, Listed};
use table::{Range, Scan, Snapshot};

use crate::decisions::{damaged, of_table};
use crate::keys::{CURRENT, above, key_prefix, read_object_key};
use crate::row::ObjectRow;

/// The common prefix that a key is shown as, if it is.
fn common_prefix<'a>(key: &'a str, ask: &ListRequest) -> Option<&'a str> {
    if ask.delimiter.is_empty() {
        return None;
    }
    let rest = key.get(ask.prefix.len()..)?;
    let at = rest.find(&ask.delimiter)?;
    Some(&key[..ask.prefix.len() + at + ask.delimiter.len()])
}

/// The first row behind all that begins with `prefix`.
fn behind(ask: &ListRequest, prefix: &str) -> Bound<Vec<u8>> {
    Range::prefix(&key_prefix(CURRENT, ask.bucket, prefix)).upper
}

/// Where a page begins: behind what `after` names, or would be shown as.
fn start(ask: &ListRequest) -> Bound<Vec<u8>> {
    let first = key_prefix(CURRENT, ask.bucket, &ask.prefix);
    if ask.after.as_bytes() < ask.prefix.as_bytes() {
        return Bound::Included(first);
    }
    if !ask.after.starts_with(&ask.prefix) {
        // Above all that begins with the prefix.
        return behind(ask, &ask.prefix);
    }
    match common_prefix(&ask.after, ask) {
        Some(prefix) => as_lower(behind(ask, prefix)),
        None => Bound::Included(above(CURRENT, ask.bucket, &ask.after)),
    }
}

/// The upper bound of one scan as the lower bound of the next.
fn as_lower(bound: Bound<Vec<u8>>) -> Bound<Vec<u8>> {
    match bound {
        Bound::Excluded(key) => Bound::Included(key),
        other => other,
    }
}

/// A page of keys.
pub(crate) async fn page(rows: Snapshot, ask: &ListRequest) -> Result<ListPage, Error> {
    let limit = ask.limit.min(LIST_MAX) as usize;
    let mut page = ListPage::default();
    if limit == 0 {
        return Ok(page);
    }
    let upper = behind(ask, &ask.prefix);
    let scan_from =
        |lower| -> Scan { rows.scan(Range { lower, upper: upper.clone(), reverse: false }) };
    let mut scan = scan_from(as_lower(start(ask)));
    while let Some((key, value)) = scan.next().await.map_err(of_table)? {
        let target = read_object_key(&key).ok_or_else(|| damaged("a key of the range"))?;
        if page.entries.len() == limit {
            page.next = page.entries.last().map(|last| last.name().to_owned());
            break;
        }
        if let Some(prefix) = common_prefix(target.key.as_str(), ask) {
            scan = scan_from(as_lower(behind(ask, prefix)));
            page.entries.push(Listed::Prefix(prefix.to_owned()));
            continue;
        }
        let row = ObjectRow::decode(&value);
        let mut info = row.ok_or_else(|| damaged(&format!("the row of {target}")))?.info;
        info.object.data = object_proto::ObjectData::Inline(Vec::new());
        page.entries.push(Listed::Object { key: target.key, info: Box::new(info) });
    }
    Ok(page)
}
