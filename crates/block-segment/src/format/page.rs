//! Index pages in the table: runs of blocks.

use block_volume::ids::FileNo;
use block_volume::record::{DecodeError, RECORD_UNITS};
use codec::cursor::{Cursor, put_varint};

use crate::limits::PAGE_BLOCKS;
use crate::types::Loc;

/// Locations of a page's blocks.
pub(crate) type Locs = [Loc; PAGE_BLOCKS as usize];

/// Length of a run of blocks, and units from one record to the next.
fn run_len(locs: &[Loc]) -> (usize, u32) {
    let follows = |step: u32| {
        let next = |(n, loc): (usize, &Loc)| *loc == step_from(locs[0], n as u32, step);
        locs.iter().enumerate().take_while(|&pair| next(pair)).count()
    };
    let records = follows(RECORD_UNITS);
    if records > 1 || locs[0].place().is_none() {
        return (records, RECORD_UNITS);
    }
    match follows(1) {
        1 => (1, RECORD_UNITS),
        ordinals => (ordinals, 1),
    }
}

fn step_from(first: Loc, count: u32, step: u32) -> Loc {
    match first.place() {
        Some((file, unit)) => Loc::new(file, unit.wrapping_add(count.wrapping_mul(step))),
        None => first,
    }
}

/// A page in its stored form; nothing when all of it is a hole.
pub(crate) fn encode_page(locs: &Locs) -> Vec<u8> {
    let mut out = Vec::new();
    let (mut at, mut written) = (0, 0);
    while at < locs.len() {
        if locs[at] == Loc::HOLE {
            at += 1;
            continue;
        }
        let (len, step) = run_len(&locs[at..]);
        put_varint(&mut out, (at - written) as u64);
        put_varint(&mut out, (len as u64) << 1 | u64::from(step == 1));
        match locs[at].place() {
            Some((file, unit)) => {
                put_varint(&mut out, u64::from(file.get()));
                put_varint(&mut out, u64::from(unit));
            }
            None => put_varint(&mut out, 0),
        }
        at += len;
        written = at;
    }
    out
}

/// The locations in a page.
pub(crate) fn decode_page(bytes: &[u8]) -> Result<Box<Locs>, DecodeError> {
    let damaged = DecodeError::Damaged("an index page does not decode");
    let mut locs = Box::new([Loc::HOLE; PAGE_BLOCKS as usize]);
    let (mut input, mut at) = (Cursor(bytes), 0u64);
    while !input.is_empty() {
        let run = (|| {
            let (skip, len) = (input.varint()?, input.varint()?);
            let (count, step) = (len >> 1, if len & 1 == 1 { 1 } else { RECORD_UNITS });
            let first = match input.varint32()? {
                0 => Loc::ZERO,
                file => Loc::new(FileNo::new(file)?, input.varint32()?),
            };
            let start = at.checked_add(skip)?;
            let end = start.checked_add(count)?;
            let fits = count > 0 && end <= u64::from(PAGE_BLOCKS);
            fits.then_some((start as usize..end as usize, first, step))
        })();
        let (blocks, first, step) = run.ok_or(damaged)?;
        at = blocks.end as u64;
        for (n, loc) in locs[blocks].iter_mut().enumerate() {
            *loc = step_from(first, n as u32, step);
        }
    }
    // One form only: the longest runs.
    if encode_page(&locs) == bytes { Ok(locs) } else { Err(damaged) }
}
