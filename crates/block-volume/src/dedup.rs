//! Windows of the changes of clients that have happened on a segment: a change that is sent again,
//! to any owner, is answered and not repeated (`protocols.md` 6.2, 6.3).
//!
//! A client numbers the changes of its attachment on a segment, and those without an answer are
//! within [`SESSION_CHANGES_MAX`] of each other. So a window of that size for each attachment is
//! enough. It is stored with the changes, and recovered with them. After a takeover has cut a
//! change off, it lists the blocks that are done: only the rest may be done later.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::limits::SESSION_CHANGES_MAX;
use codec::cursor::{Cursor, put_varint};

/// Numbers of a window.
const WINDOW: u64 = SESSION_CHANGES_MAX as u64;
/// Bytes of a window's bits.
const BITS: usize = SESSION_CHANGES_MAX / 8;

/// ID of a change on its segment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct RequestId {
    /// The attachment's epoch; 0 is none.
    pub attachment: u32,
    /// Counts the attachment's changes on the segment, from 1.
    pub seq: u64,
}

/// The part of a change that has happened. Blocks are counted in 4 KiB.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Progress {
    /// Nothing.
    None,
    /// These blocks are done.
    Part(Vec<Range<u64>>),
    /// All of it.
    Done,
    /// It is older than all that may be sent again.
    Forgotten,
}

/// Changes of one attachment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Window {
    /// The highest number of which something has happened.
    last: u64,
    /// Bit n: all of change `last` - n has happened.
    bits: [u8; BITS],
    /// Blocks of changes of which a part has happened.
    parts: BTreeMap<u64, Vec<Range<u64>>>,
}

impl Window {
    fn has(&self, distance: u64) -> bool {
        self.bits[(distance / 8) as usize] >> (distance % 8) & 1 == 1
    }

    /// Makes `seq` the highest number.
    fn reach(&mut self, seq: u64) {
        let Some(ahead) = seq.checked_sub(self.last).filter(|ahead| *ahead > 0) else { return };
        let before = std::mem::replace(&mut self.bits, [0; BITS]);
        let old = |n: u64| before[(n / 8) as usize] >> (n % 8) & 1;
        for n in ahead..WINDOW {
            self.bits[(n / 8) as usize] |= old(n - ahead) << (n % 8);
        }
        self.last = seq;
        self.parts = self.parts.split_off(&(seq + 1).saturating_sub(WINDOW));
    }

    fn distance(&self, seq: u64) -> Option<u64> {
        self.last.checked_sub(seq).filter(|distance| *distance < WINDOW)
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(16 + BITS);
        put_varint(&mut out, self.last);
        out.extend_from_slice(&self.bits);
        for (seq, blocks) in &self.parts {
            put_varint(&mut out, self.last - seq);
            put_varint(&mut out, blocks.len() as u64);
            for range in blocks {
                put_varint(&mut out, range.start);
                put_varint(&mut out, range.end - range.start);
            }
        }
        out
    }

    fn decode(bytes: &[u8]) -> Option<Window> {
        let mut input = Cursor(bytes);
        let last = input.varint()?;
        let (bits, rest) = input.0.split_first_chunk::<BITS>()?;
        input.0 = rest;
        let mut window = Window { last, bits: *bits, parts: BTreeMap::new() };
        // There is no number 0.
        if last == 0 || (last..WINDOW).any(|distance| window.has(distance)) {
            return None;
        }
        let mut before = WINDOW;
        while !input.is_empty() {
            let (distance, count) = (input.varint()?, input.varint()?);
            if distance >= before || distance >= last || count == 0 || window.has(distance) {
                return None;
            }
            before = distance;
            let mut blocks = Vec::new();
            for _ in 0..count {
                let (start, len) = (input.varint()?, input.varint()?);
                let end = start.checked_add(len).filter(|_| len > 0)?;
                blocks.push(start..end);
            }
            window.parts.insert(last - distance, blocks);
        }
        Some(window)
    }
}

/// The windows of all attachments that have changed a segment. 8 KiB for 64 of them.
#[derive(Clone, Debug, Default)]
pub struct DedupWindows {
    windows: BTreeMap<u32, Window>,
    /// Attachments whose windows were changed, or dropped, since they were stored.
    changed: BTreeSet<u32>,
}

impl DedupWindows {
    /// Notes that `blocks` of a change are durable, and with `whole` that no others of it come.
    pub fn note(&mut self, request: RequestId, blocks: Range<u64>, whole: bool) {
        let window = self.windows.entry(request.attachment).or_default();
        window.reach(request.seq);
        let Some(distance) = window.distance(request.seq) else { return };
        self.changed.insert(request.attachment);
        if whole {
            window.bits[(distance / 8) as usize] |= 1 << (distance % 8);
            window.parts.remove(&request.seq);
        } else if !window.has(distance) {
            let parts = window.parts.entry(request.seq).or_default();
            match parts.last_mut() {
                Some(last) if last.end == blocks.start => last.end = blocks.end,
                _ => parts.push(blocks),
            }
        }
    }

    /// The part of a change that has happened.
    pub fn progress(&self, request: RequestId) -> Progress {
        let Some(window) = self.windows.get(&request.attachment) else { return Progress::None };
        if request.seq > window.last {
            return Progress::None;
        }
        match window.distance(request.seq) {
            None => Progress::Forgotten,
            Some(distance) if window.has(distance) => Progress::Done,
            Some(_) => match window.parts.get(&request.seq) {
                Some(blocks) => Progress::Part(blocks.clone()),
                None => Progress::None,
            },
        }
    }

    /// The number that ends in these 32 bits, next to the attachment's last one: changes under way
    /// are far nearer to it than 2^31. Numbers begin with 1: where the next one would be lower, as without
    /// a window behind 2^31 changes, it is the lowest of those above.
    pub fn complete(&self, attachment: u32, low: u32) -> RequestId {
        let last = self.last(attachment);
        let ahead = low.wrapping_sub(last as u32);
        let seq = match last.saturating_add_signed(i64::from(ahead as i32)) {
            0 if ahead == 0 => 1 << 32,
            0 => last + u64::from(ahead),
            seq => seq,
        };
        RequestId { attachment, seq }
    }

    /// The highest number of an attachment's changes of which something has happened; 0 for none.
    pub fn last(&self, attachment: u32) -> u64 {
        self.windows.get(&attachment).map_or(0, |window| window.last)
    }

    /// Attachments that are remembered.
    pub fn attachments(&self) -> Vec<u32> {
        self.windows.keys().copied().collect()
    }

    /// Drops the windows of these attachments: they are over.
    pub fn forget(&mut self, attachments: Range<u32>) {
        let over: Vec<u32> = self.windows.range(attachments).map(|(&key, _)| key).collect();
        for attachment in over {
            self.windows.remove(&attachment);
            self.changed.insert(attachment);
        }
    }

    /// Changes since the last call: the windows' bytes, nothing for those that are to be dropped.
    pub fn take_changed(&mut self) -> Vec<(u32, Option<Vec<u8>>)> {
        let changed = std::mem::take(&mut self.changed);
        let stored = |attachment| (attachment, self.windows.get(&attachment).map(Window::encode));
        changed.into_iter().map(stored).collect()
    }

    /// Takes in a stored window; false when its bytes are none.
    pub fn load(&mut self, attachment: u32, bytes: &[u8]) -> bool {
        let window = Window::decode(bytes);
        window.map(|window| self.windows.insert(attachment, window)).is_some()
    }
}

/// A range of blocks without those that are done.
pub fn without(blocks: Range<u64>, done: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut left = vec![blocks];
    for done in done {
        left = left
            .into_iter()
            .flat_map(|range| {
                let before = range.start..range.end.min(done.start);
                let behind = range.start.max(done.end)..range.end;
                [before, behind]
            })
            .filter(|range| range.start < range.end)
            .collect();
    }
    left
}

/// Fuzz target: a stored window.
pub fn fuzz_window(bytes: &[u8]) {
    if let Some(window) = Window::decode(bytes) {
        assert_eq!(window.encode(), bytes);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn request(seq: u64) -> RequestId {
        RequestId { attachment: 7, seq }
    }

    /// The same without a bound, and slower.
    #[derive(Default)]
    struct Plain {
        last: u64,
        done: BTreeSet<u64>,
        parts: BTreeMap<u64, BTreeSet<u64>>,
    }

    proptest! {
        #[test]
        fn windows_agree_with_a_plain_list(
            steps in prop::collection::vec((0u64..600, 0u64..6, 1u64..4, any::<bool>()), 1..60),
        ) {
            let (mut windows, mut plain) = (DedupWindows::default(), Plain::default());
            let mut base = 1u64;
            for (at, start, len, whole) in steps {
                // Numbers wander upwards, as a client's do.
                let seq = base + at;
                base = base.max(seq.saturating_sub(300)).max(1);
                windows.note(request(seq), start..start + len, whole);
                plain.last = plain.last.max(seq);
                if seq + WINDOW > plain.last {
                    if whole {
                        plain.done.insert(seq);
                    } else {
                        plain.parts.entry(seq).or_default().extend(start..start + len);
                    }
                }
                let (_, bytes) = windows.take_changed().pop().unwrap_or((7, None));
                if let Some(bytes) = bytes {
                    let mut again = DedupWindows::default();
                    prop_assert!(again.load(7, &bytes));
                    prop_assert_eq!(&again.windows, &windows.windows);
                }
            }
            for seq in plain.last.saturating_sub(2 * WINDOW)..plain.last + 3 {
                if seq == 0 {
                    continue;
                }
                let known = windows.progress(request(seq));
                let low = windows.complete(7, seq as u32);
                prop_assert_eq!(low, request(seq));
                if seq + WINDOW <= plain.last {
                    prop_assert_eq!(known, Progress::Forgotten);
                } else if plain.done.contains(&seq) {
                    prop_assert_eq!(known, Progress::Done);
                } else if let Some(blocks) = plain.parts.get(&seq) {
                    let Progress::Part(parts) = known else { panic!("{known:?}") };
                    let parts: BTreeSet<u64> = parts.into_iter().flatten().collect();
                    prop_assert_eq!(&parts, blocks);
                } else {
                    prop_assert_eq!(known, Progress::None);
                }
            }
        }

        #[test]
        fn arbitrary_bytes_break_nothing(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            fuzz_window(&bytes);
        }
    }

    #[test]
    fn truncated_numbers_are_completed_to_the_nearest() {
        let mut windows = DedupWindows::default();
        let far = (1 << 33) - 5;
        windows.note(request(far), 0..1, true);
        for seq in far - 200..far + 200 {
            assert_eq!(windows.complete(7, seq as u32), request(seq));
        }
        windows.note(request(far + 9), 4..5, false);
        assert_eq!(windows.progress(request(far)), Progress::Done);
        assert_eq!(
            windows.progress(request(far + 9)),
            Progress::Part(std::iter::once(4..5).collect())
        );
        windows.forget(0..7);
        assert_eq!((windows.attachments(), windows.last(7)), (vec![7], far + 9));
        windows.take_changed();
        windows.forget(7..8);
        assert_eq!((windows.take_changed(), windows.last(7)), (vec![(7, None)], 0));
        assert_eq!(without(0..10, &[2..3, 5..12]), [0..2, 3..5]);
        assert_eq!(without(4..5, std::slice::from_ref(&(4..5))), []);
    }
}
