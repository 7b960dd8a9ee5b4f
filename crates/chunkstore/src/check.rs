//! Checks of an append that need no state. The model has checks of its own.

use base::limits::{APPEND_SECTORS_MAX, CHUNK_LEN_MAX, SECTOR};
use wire::row::{Layout, rows, verify_append};
use wire::sector::{AppendAt, FLAG_FIRST, FLAG_LAST, parse_footer};

use crate::contract::{Append, StoreError};

/// Length of an append's data, in bytes, after the checks that need no state: every engine makes
/// them before it takes an append.
///
/// # Errors
///
/// [`StoreError::Invalid`] for an append that no store takes, [`StoreError::BadSectors`] with the
/// index of the first sector that is not what its client formatted.
pub fn check_append(append: &Append) -> Result<u32, StoreError> {
    if append.create && append.offset != 0 {
        return Err(StoreError::Invalid("a chunk is made by an append at offset 0"));
    }
    if append.sectors.len() > APPEND_SECTORS_MAX * SECTOR {
        return Err(StoreError::Invalid("an append has at most 256 sectors"));
    }
    let at = AppendAt {
        chunk: append.chunk,
        epoch: append.epoch,
        base: append.base,
        offset: append.offset,
    };
    let len = verify_append(at, &append.sectors)
        .map_err(|(index, _)| StoreError::BadSectors { index: index as u32 })?;
    if u64::from(append.offset) + u64::from(len) > CHUNK_LEN_MAX {
        return Err(StoreError::Invalid("a chunk has at most 2 GiB"));
    }
    if !append.repair && Layout::of(&append.sectors) != Layout::Plain {
        // Rows count one by one, so that a repeat of several could meet a part of them.
        if rows(&append.sectors).count() > 1 {
            return Err(StoreError::Invalid("an append of rows is one row"));
        }
    } else if !append.repair {
        // Recovery keeps whole appends, so they must be marked.
        let last = append.sectors.len() / SECTOR - 1;
        let flags = |index: usize| {
            let sector = &append.sectors[index * SECTOR..(index + 1) * SECTOR];
            parse_footer(sector).map_or(0, |footer| footer.flags)
        };
        if flags(0) & FLAG_FIRST == 0 {
            return Err(StoreError::BadSectors { index: 0 });
        }
        if flags(last) & FLAG_LAST == 0 {
            return Err(StoreError::BadSectors { index: last as u32 });
        }
    }
    Ok(len)
}
