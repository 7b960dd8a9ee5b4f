//! Contents of blocks that clients have been shown: a bug that brings back an older content acts
//! where a reader can see it.

use std::collections::{BTreeMap, BTreeSet};

use block_volume::ids::SegmentId;
use block_volume::limits::BLOCK;
use codec::crc32c;

use super::{ACTIVE, Change, Planted};

/// Of one block.
#[derive(Default)]
struct Sight {
    /// Changes by the content that they give the block.
    content: BTreeMap<u32, Change>,
    /// Changes whose content was shown.
    shown: BTreeSet<Change>,
    /// Changes whose content was shown before another change came.
    replaced: BTreeSet<Change>,
    /// Content that the last owner has shown, or has written, last.
    newest: Option<u32>,
}

/// Of all blocks.
#[derive(Default)]
pub(super) struct Sights {
    blocks: BTreeMap<(SegmentId, u64), Sight>,
    come: BTreeSet<(SegmentId, Change)>,
}

/// The whole blocks of `data` at `offset`: their numbers and contents.
fn contents(offset: u64, data: &[u8]) -> impl Iterator<Item = (u64, u32)> {
    let first = offset / BLOCK;
    let whole = offset.is_multiple_of(BLOCK).then(|| data.chunks_exact(BLOCK as usize));
    let blocks = whole.into_iter().flatten().zip(first..);
    blocks.map(|(block, number)| (number, crc32c(block)))
}

/// Nothing is noted under bugs that do not ask.
fn with<T: Default>(look: impl FnOnce(&mut Sights) -> T) -> T {
    ACTIVE.with_borrow_mut(|active| match active {
        Some(active) if matches!(active.bug, Planted::EndlessLease | Planted::ForgetChanges) => {
            look(&mut active.sights)
        }
        _ => T::default(),
    })
}

/// A change of bytes begins on a segment's device. True when it began before, a client was shown
/// its content, and another change has begun since: a client that saw that sees it come back when it is
/// done again.
pub(super) fn change_begins(id: SegmentId, change: Change, offset: u64, data: &[u8]) -> bool {
    with(|sights| {
        let first = sights.come.insert((id, change));
        contents(offset, data).fold(false, |comes_back, (block, content)| {
            let sight = sights.blocks.entry((id, block)).or_default();
            if first {
                sight.replaced.append(&mut sight.shown);
                sight.content.insert(content, change);
            }
            comes_back || sight.replaced.contains(&change)
        })
    })
}

/// Clients are shown bytes of a segment.
pub(super) fn show(id: SegmentId, offset: u64, data: &[u8]) {
    with(|sights| {
        for (block, content) in contents(offset, data) {
            let sight = sights.blocks.entry((id, block)).or_default();
            if let Some(&change) = sight.content.get(&content) {
                sight.shown.insert(change);
            }
        }
    });
}

/// The last owner of a segment has shown or written bytes.
pub(super) fn note_newest(id: SegmentId, offset: u64, data: &[u8]) {
    with(|sights| {
        for (block, content) in contents(offset, data) {
            sights.blocks.entry((id, block)).or_default().newest = Some(content);
        }
    });
}

/// Contents of blocks as the last owner has shown or written them.
pub(super) fn newest(id: SegmentId, offset: u64, len: u64) -> BTreeMap<u64, u32> {
    with(|sights| {
        let blocks =
            sights.blocks.range((id, offset / BLOCK)..(id, (offset + len).div_ceil(BLOCK)));
        blocks.filter_map(|(&(_, block), sight)| Some((block, sight.newest?))).collect()
    })
}

/// Whether bytes differ from what was `newest`.
pub(super) fn is_old(newest: &BTreeMap<u64, u32>, offset: u64, data: &[u8]) -> bool {
    let other = |(block, content)| newest.get(&block).is_some_and(|newest| *newest != content);
    contents(offset, data).any(other)
}
