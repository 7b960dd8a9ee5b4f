//! Choice of the runs to be merged. Pure.
//!
//! # Why tiers
//!
//! Writes of a table go over the network to three disks. Reads come from one, in blocks, 60 to 100
//! us each, mostly round trip, several at once, and mostly not at all because of cache and filters.
//! So writing again is expensive, and sorted runs are cheap: runs are merged when a few of similar
//! size are adjacent (size tiers), not as soon as they overlap (levels). An entry is written about
//! once for each factor of four between a memtable and the table: 5 times at 8 MiB and 8 GiB, where
//! levels of factor ten write it 15 to 30 times. The price is a filter look-up for each of about a
//! dozen runs, a hundredth of a wasted block each, and room: up to once the table's size until the
//! oldest run is merged too.

use std::ops::Range;

use crate::limits::{RUNS_MERGE_MAX, RUNS_MERGE_MIN};

/// A run is of similar size when it is at most this many percent of those before it together.
const SIMILAR_PERCENT: u64 = 150;
/// All is merged when the newer runs together are as large as this many percent of the oldest.
const WASTE_PERCENT: u64 = 100;

/// The runs to merge, of runs of these sizes, newest first; none when no merge is needed.
pub(crate) fn pick(sizes: &[u64]) -> Option<Range<usize>> {
    let count = sizes.len();
    if count < RUNS_MERGE_MIN {
        return None;
    }
    let newer: u64 = sizes[..count - 1].iter().sum();
    if count <= RUNS_MERGE_MAX && newer * 100 >= sizes[count - 1] * WASTE_PERCENT {
        return Some(0..count);
    }
    // The newest stretch of runs none of which is much larger than those before it together.
    for start in 0..count {
        let mut together = sizes[start];
        let mut end = start + 1;
        while end < count
            && end - start < RUNS_MERGE_MAX
            && sizes[end] * 100 <= together.max(1) * SIMILAR_PERCENT
        {
            together += sizes[end];
            end += 1;
        }
        if end - start >= RUNS_MERGE_MIN {
            return Some(start..end);
        }
    }
    // No such stretch; but the number of runs has its bound.
    let most = 2 * RUNS_MERGE_MIN;
    (count > most).then(|| 0..(count - most + 2).min(RUNS_MERGE_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merge_picks_runs_of_similar_size() {
        assert_eq!(pick(&[1, 1, 1]), None);
        assert_eq!(pick(&[1, 1, 1, 100]), None);
        assert_eq!(pick(&[1, 1, 1, 1, 100]), Some(0..4));
        assert_eq!(pick(&[8, 1, 1, 1, 1, 1000]), Some(0..5));
        assert_eq!(pick(&[50, 20, 20, 20, 100]), Some(0..5));
        assert_eq!(pick(&[0, 0, 0, 0]), Some(0..4));
    }

    /// Flushes of size 1 for ever: runs stay few, and an entry is written again few times.
    #[test]
    fn runs_stay_few_and_writes_too() {
        let mut sizes: Vec<u64> = Vec::new();
        let (mut written, mut most) = (0, 0);
        for _ in 0..4096 {
            sizes.insert(0, 1);
            written += 1;
            while let Some(range) = pick(&sizes) {
                let merged: u64 = sizes.drain(range.clone()).sum();
                sizes.insert(range.start, merged);
                written += merged;
            }
            most = most.max(sizes.len());
        }
        assert_eq!(sizes.iter().sum::<u64>(), 4096);
        assert!(most <= 10, "{most} runs");
        assert!(written <= 4096 * 9, "each entry written {} times", written / 4096);
    }
}
