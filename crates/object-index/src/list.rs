//! Pages of a bucket's keys (`object-protocols.md` 9.2). A page is one snapshot of the range.

use std::ops::Bound;

use object_proto::limits::LIST_MAX;
use object_proto::{Error, ListPage, ListRequest, Listed};
use table::{Range, Snapshot};

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

/// The first key of a row behind all that begin with `prefix`.
fn behind(ask: &ListRequest, prefix: &str) -> Vec<u8> {
    match Range::prefix(&key_prefix(CURRENT, ask.bucket, prefix)).upper {
        Bound::Excluded(key) => key,
        _ => unreachable!("sections are below FF"),
    }
}

/// Where a page begins: behind what `after` names, or would be shown as.
fn start(ask: &ListRequest) -> Vec<u8> {
    if ask.after.as_bytes() < ask.prefix.as_bytes() {
        return key_prefix(CURRENT, ask.bucket, &ask.prefix);
    }
    if !ask.after.starts_with(&ask.prefix) {
        // Above all that begins with the prefix.
        return behind(ask, &ask.prefix);
    }
    match common_prefix(&ask.after, ask) {
        Some(prefix) => behind(ask, prefix),
        None => above(CURRENT, ask.bucket, &ask.after),
    }
}

/// A page of keys.
pub(crate) async fn page(rows: Snapshot, ask: &ListRequest) -> Result<ListPage, Error> {
    let limit = ask.limit.min(LIST_MAX) as usize;
    let mut page = ListPage::default();
    if limit == 0 {
        return Ok(page);
    }
    let mut scan = rows.scan(Range::between(&start(ask), &behind(ask, &ask.prefix)));
    while let Some((key, value)) = scan.next().await.map_err(of_table)? {
        let target = read_object_key(&key).ok_or_else(|| damaged("a key of the range"))?;
        if page.entries.len() == limit {
            page.next = page.entries.last().map(|last| last.name().to_owned());
            break;
        }
        if let Some(prefix) = common_prefix(target.key.as_str(), ask) {
            scan.seek(&behind(ask, prefix)).await.map_err(of_table)?;
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
