//! Rows with what is beside them: the map of an object's parts, and what listings show of an object.

use object_proto::{Error, ObjectData, ObjectInfo, Target};
use table::Snapshot;

use crate::decisions::{damaged, of_table};
use crate::keys::MAP;
use crate::map::decode_map;
use crate::row::ObjectRow;
use crate::versions::beside;

/// Bytes of a run of parts in a message, at most: two numbers and a length.
const RUN_BYTES: usize = 16;

/// Reads the map of an object's parts where that has a row of its own.
pub(crate) async fn whole_map(
    rows: &Snapshot,
    target: &Target,
    row: &mut ObjectRow,
) -> Result<(), Error> {
    let key = beside(MAP, target, row);
    if row.map_apart
        && let ObjectData::Parts(map) = &mut row.info.object.data
    {
        let apart = rows.get(&key).await.map_err(of_table)?;
        let apart = apart.and_then(|value| decode_map(&value, map.upload));
        let size = row.info.object.size;
        let apart = apart.filter(|(of, all)| *of == row.info.stamp && all.size() == size);
        let (_, all) = apart.ok_or_else(|| damaged(&format!("the parts of {target}")))?;
        *map = all;
    }
    Ok(())
}

/// What a listing shows of an object: all but its data. Encrypted parts keep their map, without which the
/// bytes of their content are not known.
pub(crate) async fn listed(
    rows: &Snapshot,
    target: &Target,
    mut row: ObjectRow,
) -> Result<ObjectInfo, Error> {
    let is_encrypted = row.info.object.facts.encryption.is_some();
    match row.info.object.data {
        ObjectData::Parts(_) if is_encrypted => whole_map(rows, target, &mut row).await?,
        _ => row.info.object.data = ObjectData::Inline(Vec::new()),
    }
    Ok(row.info)
}

/// Bytes of a page that the map of an entry takes, at most.
pub(crate) fn map_bytes(info: &ObjectInfo) -> usize {
    match &info.object.data {
        ObjectData::Parts(map) => map.runs().len() * RUN_BYTES,
        _ => 0,
    }
}
