//! [`Download`]: an object's content on its way out, in pieces, with one piece read ahead where
//! there is memory for it.

use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use object_proto::{Content, Error};
use s3s::stream::{ByteStream, RemainingLength};
use s3s::{S3Result, StdError};

use super::state::slow_down;
use crate::budget::{Budget, Claim};
use crate::errors::{internal, s3_error};
use crate::limits::{GET_PIECE, STALL_TIME};

/// Bytes in memory that are counted until they were sent.
struct Piece {
    bytes: Vec<u8>,
    _claim: Claim,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Why the rest of a content does not come: the connection is cut then, never filled.
#[derive(Debug)]
enum CutOff {
    Memory,
    Read(Error),
    /// The backend gave fewer bytes than the object has, or more.
    Length,
}

impl std::fmt::Display for CutOff {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CutOff::Memory => f.write_str("no memory for the next piece"),
            CutOff::Read(error) => error.fmt(f),
            CutOff::Length => f.write_str("a piece has another length than the object"),
        }
    }
}

impl std::error::Error for CutOff {}

type Reading = Pin<Box<dyn Future<Output = Result<Bytes, CutOff>> + Send>>;

/// A content on its way out.
pub struct Download {
    content: Arc<dyn Content>,
    budget: Budget,
    /// What no read was begun for yet.
    left: Range<u64>,
    /// Bytes that were not put out yet.
    remaining: u64,
    /// A piece that was read before it was asked for.
    first: Option<Result<Bytes, CutOff>>,
    /// The read under way. Only this owner reaches into the mutex: it makes the future `Sync`,
    /// which s3s asks for.
    reading: Mutex<Option<Reading>>,
}

impl Download {
    /// Begins with the first piece: as long as that is missing, an error can be answered.
    pub async fn begin(
        content: Arc<dyn Content>,
        range: Range<u64>,
        budget: Budget,
        claim_time: Duration,
    ) -> S3Result<Download> {
        let mut download = Download {
            content,
            budget,
            remaining: range.end - range.start,
            left: range,
            first: None,
            reading: Mutex::new(None),
        };
        if download.remaining > 0 {
            let piece = download.next_piece();
            let len = (piece.end - piece.start) as usize;
            let claim = download.budget.claim(len, claim_time).await.ok_or_else(slow_down)?;
            let read = read(download.content.clone(), piece, claim).await;
            download.first = Some(Ok(read.map_err(|cause| match cause {
                CutOff::Read(error) => s3_error(error),
                CutOff::Memory | CutOff::Length => internal(),
            })?));
        }
        Ok(download)
    }

    /// Takes the next piece from what is left.
    fn next_piece(&mut self) -> Range<u64> {
        let end = self.left.end.min(self.left.start.saturating_add(GET_PIECE as u64));
        let piece = self.left.start..end;
        self.left.start = end;
        piece
    }

    /// Begins to read the next piece if there is memory for it now.
    fn read_ahead(&mut self, cx: &mut Context<'_>) {
        if self.left.is_empty() {
            return;
        }
        let len = (self.left.end - self.left.start).min(GET_PIECE as u64) as usize;
        if let Some(claim) = self.budget.try_claim(len) {
            let piece = self.next_piece();
            let reading: Reading = Box::pin(read(self.content.clone(), piece, claim));
            *self.slot() = Some(reading);
            // A future begins when it is polled; the next poll comes when this piece was sent.
            if let Poll::Ready(piece) = self.poll_piece(cx) {
                self.first = Some(piece);
            }
        }
    }

    /// Begins to read the next piece once there is memory for it.
    fn read_next(&mut self) {
        let piece = self.next_piece();
        let (content, budget) = (self.content.clone(), self.budget.clone());
        *self.slot() = Some(Box::pin(async move {
            let len = (piece.end - piece.start) as usize;
            let claim = budget.claim(len, STALL_TIME).await.ok_or(CutOff::Memory)?;
            read(content, piece, claim).await
        }));
    }

    fn slot(&mut self) -> &mut Option<Reading> {
        self.reading.get_mut().expect("no panic while it is held")
    }

    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Result<Bytes, CutOff>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(first);
        }
        if self.slot().is_none() {
            self.read_next();
        }
        let Some(reading) = self.slot() else { return Poll::Ready(Err(CutOff::Length)) };
        let piece = ready!(reading.as_mut().poll(cx));
        *self.slot() = None;
        Poll::Ready(piece)
    }
}

/// Reads one piece, all of it.
async fn read(content: Arc<dyn Content>, piece: Range<u64>, claim: Claim) -> Result<Bytes, CutOff> {
    let len = (piece.end - piece.start) as usize;
    let bytes = content.read(piece.start, len).await.map_err(CutOff::Read)?;
    match bytes.len() == len {
        true => Ok(Bytes::from_owner(Piece { bytes, _claim: claim })),
        false => Err(CutOff::Length),
    }
}

impl Stream for Download {
    type Item = Result<Bytes, StdError>;

    fn poll_next(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, StdError>>> {
        if self.remaining == 0 {
            return Poll::Ready(None);
        }
        let piece = ready!(self.poll_piece(cx));
        Poll::Ready(Some(match piece {
            Ok(bytes) => {
                self.remaining -= bytes.len() as u64;
                self.read_ahead(cx);
                Ok(bytes)
            }
            Err(cause) => {
                tracing::debug!(%cause, "a download is cut off");
                self.remaining = 0;
                Err(Box::new(cause))
            }
        }))
    }
}

impl ByteStream for Download {
    fn remaining_length(&self) -> RemainingLength {
        RemainingLength::new_exact(usize::try_from(self.remaining).unwrap_or(usize::MAX))
    }
}
