//! Batches of the TxnFile: updates of the index, and watermarks of the DataFiles.

use block_volume::ids::{FileNo, Seq};
use block_volume::record::DecodeError;
use codec::cursor::{Cursor, put_varint};

use crate::types::{Loc, Update};

/// Watermark of a DataFile that takes records: the TxnFile covers it up to here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Watermark {
    pub(crate) file: FileNo,
    /// Unit behind the last record that is covered.
    pub(crate) end: u32,
    /// Blocks with data below it.
    pub(crate) blocks: u32,
}

/// One batch: [`crate::limits::TXN_UPDATES_MAX`] updates and
/// [`crate::limits::TXN_MARKS_MAX`] marks at most.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Txn {
    /// The last change that this batch and those before it cover.
    pub(crate) seq: Seq,
    pub(crate) marks: Vec<Watermark>,
    pub(crate) updates: Vec<Update>,
}

const DATA: u64 = 1;
const TRIM: u64 = 2;
const ZERO: u64 = 3;
const MOVE: u64 = 4;

fn put_loc(out: &mut Vec<u8>, loc: Loc) {
    let (file, unit) = loc.place().expect("data has a place");
    put_varint(out, u64::from(file.get()));
    put_varint(out, u64::from(unit));
}

fn read_loc(input: &mut Cursor<'_>) -> Option<Loc> {
    Some(Loc::new(FileNo::new(input.varint32()?)?, input.varint32()?))
}

impl Txn {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_varint(&mut out, self.seq.epoch);
        put_varint(&mut out, self.seq.counter);
        put_varint(&mut out, self.marks.len() as u64);
        for mark in &self.marks {
            put_varint(&mut out, u64::from(mark.file.get()));
            put_varint(&mut out, u64::from(mark.end));
            put_varint(&mut out, u64::from(mark.blocks));
        }
        for update in &self.updates {
            match *update {
                Update::Data { lba, count, at } => {
                    put_varint(&mut out, u64::from(count) << 3 | DATA);
                    put_varint(&mut out, u64::from(lba));
                    put_loc(&mut out, at);
                }
                Update::Clear { lba, count, to } => {
                    let kind = if to == Loc::ZERO { ZERO } else { TRIM };
                    put_varint(&mut out, u64::from(count) << 3 | kind);
                    put_varint(&mut out, u64::from(lba));
                }
                Update::Move { lba, from, to } => {
                    put_varint(&mut out, 1 << 3 | MOVE);
                    put_varint(&mut out, u64::from(lba));
                    put_loc(&mut out, from);
                    put_loc(&mut out, to);
                }
            }
        }
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Txn, DecodeError> {
        let mut input = Cursor(bytes);
        let txn = Txn::read(&mut input).filter(|_| input.is_empty());
        txn.ok_or(DecodeError::Damaged("a TxnFile batch does not decode"))
    }

    fn read(input: &mut Cursor<'_>) -> Option<Txn> {
        let seq = Seq { epoch: input.varint()?, counter: input.varint()? };
        let count = input.varint()?;
        let mut marks = Vec::new();
        for _ in 0..count {
            let file = FileNo::new(input.varint32()?)?;
            marks.push(Watermark { file, end: input.varint32()?, blocks: input.varint32()? });
        }
        let mut updates = Vec::new();
        // Older programs wrote more than a batch may have now; a value of the table bounds them.
        while !input.is_empty() {
            let code = input.varint()?;
            let (count, lba) = (u32::try_from(code >> 3).ok()?, input.varint32()?);
            if count == 0 || u64::from(lba) + u64::from(count) > 1 << 32 {
                return None;
            }
            updates.push(match code & 7 {
                DATA => Update::Data { lba, count, at: read_loc(input)? },
                TRIM => Update::Clear { lba, count, to: Loc::HOLE },
                ZERO => Update::Clear { lba, count, to: Loc::ZERO },
                MOVE if count == 1 => {
                    Update::Move { lba, from: read_loc(input)?, to: read_loc(input)? }
                }
                _ => return None,
            });
        }
        Some(Txn { seq, marks, updates })
    }
}
