//! Fuzz targets of what this module reads from its log and from other masters.

use super::device::LogImage;
use super::limits::LOG_BLOCK;
use super::net::{Reply, Request, decode_request, encode_request};
use super::record::{RecordKind, Stamp, encode, pad, replay};

/// Segments of the fuzzed logs.
const SEGMENT: u64 = 16 * LOG_BLOCK as u64;

/// Replay of bytes as they are, and of records with valid checksums made of them: their
/// payloads reach the decoders behind.
pub fn fuzz_log(bytes: &[u8]) {
    const BLOCK: u64 = LOG_BLOCK as u64;
    let whole = |bytes: Vec<u8>| {
        let segments = bytes.chunks(SEGMENT as usize).map(<[u8]>::to_vec).collect();
        LogImage { first: 0, segment_len: SEGMENT, segments }
    };
    let _ = replay(&whole(bytes.to_vec()), BLOCK);
    let mut log = Vec::new();
    let mut rest = bytes;
    let mut stamp = Stamp { seq: 1, durable: 0, generation: 1 };
    encode(&mut log, RecordKind::Open, stamp, &[]);
    let kinds = [
        RecordKind::Open,
        RecordKind::Entry,
        RecordKind::Truncate,
        RecordKind::Vote,
        RecordKind::Purge,
        RecordKind::Mark,
    ];
    while let [kind, len, tail @ ..] = rest {
        let kind = kinds[usize::from(*kind) % kinds.len()];
        let payload = &tail[..tail.len().min(usize::from(*len))];
        rest = &tail[payload.len()..];
        stamp.seq += 1;
        stamp.generation += u32::from(kind == RecordKind::Open);
        let room = SEGMENT as usize - log.len() % SEGMENT as usize;
        if room < super::record::record_len(payload.len()) + LOG_BLOCK {
            break;
        }
        encode(&mut log, kind, stamp, payload);
        if len % 7 == 0 {
            pad(&mut log, LOG_BLOCK);
        }
    }
    if let Ok(replayed) = replay(&whole(log), BLOCK) {
        assert!(replayed.committed <= replayed.last(), "what is committed is there");
    }
}

/// Messages between members of a group. A message that decodes encodes to one that decodes.
pub fn fuzz_message(bytes: &[u8]) {
    if let Some((request, _)) = decode_request(bytes) {
        let again = encode_request(&request, 7);
        assert!(decode_request(&again).is_some_and(|(_, receiver)| receiver == Some(7)));
        // As versions read it that know of no receiver.
        assert!(postcard::from_bytes::<Request>(&again).is_ok());
    }
    if let Ok(reply) = postcard::from_bytes::<Reply>(bytes) {
        let again = postcard::to_allocvec(&reply).expect("a vector grows as needed");
        assert!(postcard::from_bytes::<Reply>(&again).is_ok());
    }
}
