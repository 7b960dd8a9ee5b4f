//! Whole rows of coded chunks, read with all their cells and coded again (C26, `protocols-tail.md` 9.10).
//!
//! Scrub verifies the sectors of each replica alone. That they belong together only all of them show:
//! masters, which know where they are, order it.

use std::ops::Range;

use base::{DiskId, Kind};
use chunkstore::{ChunkStore, StoreError};
use codec::row::{RowDecoder, RowJudgement};
use wire::control::{ChunkserverReply, ControlError, CopyOrder, RowCheck, RowFindings};
use wire::data::ChunkRef;
use wire::row::{Fragment, Row, row_at};

use crate::control::{Slot, refused};
use crate::copy::CopySource;
use crate::limits::{READ_LEN_MAX, ROW_CHECKS_MAX};
use crate::rebuild::{cell_of, first_cells, reading};
use crate::scrub::ReadThrough;
use crate::server::{Chunkserver, Disk};
use crate::share::Urgency;

impl<S: ChunkStore> Chunkserver<S> {
    /// Checks one row in so many of a chunk: all that begin in the parts that it draws.
    pub(crate) async fn check_rows(
        &self,
        disk: DiskId,
        order: &RowCheck,
    ) -> Result<ChunkserverReply, ControlError> {
        let at = ChunkRef { chunk: order.chunk, disk };
        let own = self.disk(at).map_err(refused)?;
        let Some(_slot) = Slot::take(&self.0.checking, order.chunk, ROW_CHECKS_MAX) else {
            let text =
                format!("{ROW_CHECKS_MAX} checks of rows, or one of this chunk, are under way");
            return Err(ControlError::new(Kind::Retry, text));
        };
        let mut found = RowFindings::default();
        let mut judge = Judge { code: reading(order.code), decoder: None };
        let copy = CopySource::new(disk, copy_order(order));
        for window in (0..order.len).step_by(READ_LEN_MAX as usize) {
            if self.0.env.random_below(order.one_in.into()) == 0 {
                let end = order.len.min(window.saturating_add(READ_LEN_MAX));
                let rows = (&*own, at, window..end);
                self.check_window(rows, &copy, &mut judge, &mut found).await?;
            }
        }
        self.count(|stats| {
            stats.checked_rows += u64::from(found.checked);
            stats.wrong_cells += u64::from(found.wrong.count_ones());
            stats.miscoded_rows += u64::from(found.miscoded);
        });
        Ok(ChunkserverReply::RowsChecked(found))
    }

    /// Checks the rows that begin in a range: short ones with the same probability as long ones.
    async fn check_window(
        &self,
        (own, at, range): (&Disk<S>, ChunkRef, Range<u32>),
        copy: &CopySource,
        judge: &mut Judge,
        found: &mut RowFindings,
    ) -> Result<(), ControlError> {
        let mut next = range.start;
        while next < range.end {
            let Some(row) = self.row_around(own, at, next).await? else { break };
            if row.offset >= range.start {
                self.check_row(copy, &row, judge, found).await?;
            }
            next = row.offset.saturating_add(row.len).max(next.saturating_add(1));
        }
        Ok(())
    }

    /// The row that holds a byte, by the server's own cell; nothing when that does not say, which is for
    /// scrub to find.
    async fn row_around(
        &self,
        own: &Disk<S>,
        at: ChunkRef,
        offset: u32,
    ) -> Result<Option<Row>, ControlError> {
        let reads = ReadThrough { env: &self.0.env, disk: own, urgency: Urgency::Scrub };
        match reads.read(at.chunk, offset, 1).await {
            Ok(read) => Ok(row_at(&read.sectors).ok()),
            Err(StoreError::Corrupt { .. }) => Ok(None),
            Err(error) => Err(self.refuse(at, error)),
        }
    }

    async fn check_row(
        &self,
        copy: &CopySource,
        row: &Row,
        judge: &mut Judge,
        found: &mut RowFindings,
    ) -> Result<(), ControlError> {
        let mut sources = copy.order.sources.iter().collect();
        let code = judge.code;
        let (k, n) = (usize::from(code.k), usize::from(code.k + code.p));
        let cells = self.gather(copy, code, &mut sources, (row.offset, 1), n).await;
        let cells = first_cells(&cells);
        if cells.len() < k {
            return Ok(());
        }
        let all = cells.len() == n;
        let mut decoder = judge.decoder.take().unwrap_or_default();
        let judged = self.0.env.blocking("check a row", move || {
            let cells: Vec<_> = cells.iter().map(cell_of).collect();
            let judged = decoder.judge(&cells, k, &mut Vec::new());
            (decoder, judged)
        });
        let (decoder, judged) = judged.await;
        judge.decoder = Some(decoder);
        let (chunk, offset) = (copy.order.chunk, row.offset);
        match judged {
            RowJudgement::Sound => {}
            RowJudgement::Wrong(wrong) => {
                self.0.env.mark("row with a cell that is not its own");
                tracing::warn!(%chunk, offset, wrong, "a row has cells that are not its own");
                found.wrong |= wrong;
            }
            RowJudgement::Miscoded => {
                self.0.env.mark("row that was coded wrong");
                tracing::warn!(%chunk, offset, "a row was coded wrong");
                found.miscoded += 1;
            }
            RowJudgement::Unreadable(error) => {
                tracing::warn!(%chunk, offset, %error, "a row's cells do not give its bytes");
                return Ok(());
            }
        }
        found.checked += u32::from(all);
        Ok(())
    }
}

/// What judges rows of a code.
struct Judge {
    code: Fragment,
    /// There with the first row: of most chunks none is drawn.
    decoder: Option<Box<RowDecoder>>,
}

/// The reads of a check are those of a copy that is not urgent.
fn copy_order(order: &RowCheck) -> CopyOrder {
    CopyOrder {
        chunk: order.chunk,
        epoch: order.epoch,
        base: order.base,
        len: order.len,
        sources: order.sources.clone(),
        token: order.token,
        seal: true,
        fragment: None,
        urgent: false,
    }
}
