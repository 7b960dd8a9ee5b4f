//! Each byte has one location; split requests gather to the original.

use std::collections::BTreeMap;

use block_volume::dedup::{DedupWindows, Progress, RequestId};
use block_volume::geometry::{Extent, Geometry, SegmentIndex};
use proptest::prelude::*;

fn geometries() -> impl Strategy<Value = Geometry> {
    (1u32..9, 0u32..4, 16u64..24).prop_map(|(segments, sector, rounds)| {
        let sector = 4096 << sector;
        Geometry::new(sector * u64::from(segments) * rounds, segments, sector).unwrap()
    })
}

proptest! {
    #[test]
    fn offsets_map_one_to_one(geometry in geometries(), offset in 0u64..1 << 46) {
        let (segment, at) = geometry.locate(offset);
        prop_assert_eq!(geometry.offset_of(segment, at), offset);
        prop_assert!(at < geometry.segment_bytes());
        prop_assert!(u64::from(segment.get()) < geometry.segments(offset + 1));
        prop_assert!(geometry.segment_len(segment, offset + 1) > at);
        prop_assert!(geometry.segment_len(segment, offset) <= at);
    }

    #[test]
    fn segments_have_all_of_a_volume(geometry in geometries(), len in 0u64..9 << 20) {
        let segments = 0..geometry.segments(len) as u32;
        let lens = segments.map(|index| geometry.segment_len(SegmentIndex::new(index), len));
        prop_assert_eq!(lens.sum::<u64>(), len);
    }

    #[test]
    fn split_requests_gather_to_the_original(
        geometry in geometries(),
        offset in 0u64..3 << 20,
        len in 0u64..60_000,
    ) {
        let request = Extent { offset, len };
        let bytes: Vec<u8> = (0..len).map(|n| (n * 31 % 251) as u8).collect();
        let mut back = vec![0xff; len as usize];
        let mut segments: BTreeMap<(u32, u64), u8> = BTreeMap::new();
        let mut ends: BTreeMap<u32, u64> = BTreeMap::new();
        for part in geometry.split(request) {
            let piece = part.gather(&bytes);
            prop_assert_eq!(piece.len() as u64, part.extent.len);
            for (index, &byte) in piece.iter().enumerate() {
                let at = part.extent.offset + index as u64;
                prop_assert_eq!(segments.insert((part.segment.get(), at), byte), None);
            }
            // One request for each segment and group: no two of them could have been joined.
            prop_assert_eq!(ends.insert(part.segment.get(), part.extent.offset), None);
            part.scatter(&piece, &mut back);
        }
        prop_assert_eq!(&back, &bytes);
        for (index, byte) in bytes.iter().enumerate() {
            let (segment, at) = geometry.locate(offset + index as u64);
            prop_assert_eq!(segments.get(&(segment.get(), at)), Some(byte));
        }
    }
}

#[test]
fn requests_are_whole_blocks_within_the_volume() {
    let good = |offset, len| Geometry::is_aligned(Extent { offset, len }, 1 << 20);
    assert!(good(0, 1 << 20) && good(4096, 4096) && good(1 << 20, 0));
    assert!(
        !good(1, 4096) && !good(0, 4095) && !good(1 << 20, 4096) && !good(u64::MAX - 4095, 8192)
    );
}

/// There is no change 0: a window that had it would not be read again, nor would its segment.
#[test]
fn number_without_a_window_near_it_is_no_number_below_1() {
    let half = 1u64 << 31;
    let lows = [0, 1, half - 1, half, half + 1, 2 * half - 1];
    for (last, low) in [0, 1, 3, half - 1].into_iter().flat_map(|last| lows.map(|low| (last, low)))
    {
        let mut windows = DedupWindows::default();
        if last > 0 {
            windows.note(RequestId { attachment: 7, seq: last }, 0..1, true);
        }
        let request = windows.complete(7, low as u32);
        assert!(request.seq > 0 && request.seq % (1 << 32) == low, "{last} {low}: {request:?}");
        windows.note(request, 1..2, true);
        for (attachment, bytes) in windows.take_changed() {
            let mut again = DedupWindows::default();
            let bytes = bytes.expect("it was noted");
            assert!(again.load(attachment, &bytes), "{last} {low}: it is not read again");
            if request.seq >= last {
                assert_eq!(again.progress(request), Progress::Done, "{last} {low}");
            }
        }
    }
}
