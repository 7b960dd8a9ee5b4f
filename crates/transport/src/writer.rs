//! The sending task of a link: many frames in one vectored write.

use std::rc::Rc;
use std::time::Duration;

use metrics::{Fact, Step};
use runtime::{Buf, BufPool, OutOfMemory, WriteHalf};
use wire::frame::HEADER;

use crate::link::Link;
use crate::queue::FramePart;

/// Payloads up to this size are copied behind their headers; a piece of their own in the
/// vector would cost about as much.
const INLINE_MAX: usize = 512;
/// Pause before the next attempt when the buffer budget and the reserve are spent.
const MEMORY_PAUSE: Duration = Duration::from_millis(1);

/// Sends what is queued until the link breaks.
pub(crate) async fn run(link: Rc<Link>, mut write: WriteHalf) {
    loop {
        let mut pieces = take_batch(&link);
        if pieces.is_empty() {
            link.writable.notified().await;
            continue;
        }
        let bufs = loop {
            let encoded = encode(link.env.pool(), &mut pieces)
                .or_else(|_| encode(&link.reserve, &mut pieces));
            match encoded {
                Ok(bufs) => break bufs,
                Err(OutOfMemory { .. }) => {
                    link.env.mark("transport: no memory to send");
                    link.env.sleep(MEMORY_PAUSE).await;
                }
            }
        };
        drop(pieces);
        link.writing.set(true);
        let written = write.write_all(bufs).await;
        link.writing.set(false);
        if let Err(error) = written {
            link.fail(&format!("cannot send: {error}"));
            return;
        }
    }
}

fn take_batch(link: &Link) -> Vec<FramePart> {
    let mut pieces = Vec::new();
    let mut bytes = 0;
    let mut now = None;
    while bytes < link.limits.batch_bytes && pieces.len() < link.limits.batch_frames {
        let Some(mut piece) = link.next_piece() else { break };
        if let Some(deadline) = piece.deadline {
            let left = deadline.since(*now.get_or_insert_with(|| link.env.now()));
            // Zero says expired: what is late goes out with the least time left.
            let micros = u32::try_from(left.as_micros()).unwrap_or(u32::MAX);
            piece.header.deadline_us = micros.max(1);
        }
        if let Some(span) = &piece.span {
            let now = *now.get_or_insert_with(|| link.env.now());
            // Of an answer the peer is known: it asked.
            let fact = if link.connected { Fact::Peer(link.peer.addr) } else { Fact::None };
            span.note(Step::Sent, now.as_nanos(), fact);
        }
        bytes += piece.len();
        link.counters.sent(piece.service, piece.len());
        pieces.push(piece);
    }
    pieces
}

/// Headers, bodies and small payloads in one new buffer; larger payloads as they are.
fn encode(pool: &BufPool, pieces: &mut [FramePart]) -> Result<Vec<Buf>, OutOfMemory> {
    let inline = |piece: &FramePart| {
        piece.payload.as_ref().filter(|payload| payload.len() <= INLINE_MAX).map_or(0, |p| p.len())
    };
    let len = pieces.iter().map(|piece| HEADER + piece.body.len() + inline(piece)).sum();
    let mut staging = pool.alloc(len)?;
    // Place of a payload of its own between two stretches of the staging buffer.
    let mut cuts: Vec<(usize, Buf)> = Vec::new();
    let mut at = 0;
    for piece in pieces {
        let payload = piece.payload.as_deref().unwrap_or(&[]);
        piece.header.body_crc = piece.header.content_crc(&piece.body, payload);
        let mut put = |bytes: &[u8]| {
            staging[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        put(&piece.header.encode());
        put(&piece.body);
        if payload.len() <= INLINE_MAX {
            put(payload);
        } else if let Some(payload) = &piece.payload {
            cuts.push((at, payload.clone()));
        }
    }
    assert_eq!(at, len, "the staging buffer has the size of what goes into it");
    let staging = staging.freeze();
    let mut bufs = Vec::with_capacity(2 * cuts.len() + 1);
    let mut from = 0;
    for (cut, payload) in cuts {
        bufs.push(staging.slice(from..cut));
        bufs.push(payload);
        from = cut;
    }
    if from < len {
        bufs.push(staging.slice(from..len));
    }
    Ok(bufs)
}

/// Sends one frame outside of any queue: for the handshake.
pub(crate) async fn send_now(
    (pool, reserve): (&BufPool, Option<&BufPool>),
    write: &mut WriteHalf,
    mut piece: FramePart,
) -> std::io::Result<()> {
    let pieces = std::slice::from_mut(&mut piece);
    let bufs = encode(pool, pieces)
        .or_else(|refused| reserve.map_or(Err(refused), |reserve| encode(reserve, pieces)))
        .map_err(|error| std::io::Error::other(error.to_string()))?;
    write.write_all(bufs).await
}
