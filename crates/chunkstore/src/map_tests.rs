use proptest::prelude::*;

use super::*;

/// Data bytes of the sectors of an append of `len` bytes.
fn lens(len: u32) -> impl Iterator<Item = u16> {
    (0..len.div_ceil(FULL)).map(move |index| (len - index * FULL).min(FULL) as u16)
}

fn check(appends: &[u32], runs: usize) {
    let mut map = RunMap::default();
    appends.iter().for_each(|&len| map.push(lens(len)));
    assert_eq!(map.runs().len(), runs, "{appends:?} gives {:?}", map.runs());
}

#[test]
fn equal_appends_are_one_run() {
    check(&[4096; 100], 1);
    check(&[4048, 8096, 4048 * 200], 1);
    check(&[10_000], 1);
    check(&[4096, 4096, 100, 4096], 3);
}

/// Rows of logical lengths and sectors, in a map with one run for equal ones.
fn rows(rows: &[(u32, u32)]) -> RunMap {
    let mut map = RunMap::default();
    rows.iter().for_each(|&(len, sectors)| map.push_row(len, sectors));
    map
}

#[test]
fn equal_rows_are_one_run() {
    assert_eq!(rows(&[(4096, 2); 100]).runs().len(), 1);
    // The same bytes in fewer sectors, and in as many again.
    assert_eq!(rows(&[(4096, 2), (4096, 1), (4096, 2)]).runs().len(), 3);
}

#[test]
fn a_run_takes_no_more_rows_than_its_count_has_room_for() {
    let mut map = RunMap::from_runs(vec![Run::rows(ChunkEnd::default(), 1, 1, COUNT_MAX)]);
    map.push_row(1, 1);
    assert_eq!(map.runs().iter().map(Run::count).collect::<Vec<_>>(), [COUNT_MAX, 1]);
    assert_eq!(map.runs()[0].span(), 1);
}

#[test]
fn plain_pieces_and_rows_are_no_map() {
    let row = Run::rows(ChunkEnd { len: 10, sectors: 1 }, 5, 1, 1);
    let piece = Run::plain(ChunkEnd::default(), 10, 1);
    assert!(!is_sound(&[piece, row], 15));
    assert!(!RunMap::default().extend(&[piece, row]));
    assert!(!RunMap::from_runs(vec![piece]).extend(&[row]));
}

proptest! {
    #[test]
    fn every_row_is_found_whole(
        pieces in prop::collection::vec((1u32..20_000, 1u32..5), 1..40),
        cut in any::<prop::sample::Index>(),
    ) {
        let map = rows(&pieces);
        let (mut offset, mut sector) = (0, 0);
        for &(len, sectors) in &pieces {
            let want = Some(ChunkPosition { sector, offset, sectors });
            prop_assert_eq!(locate(map.runs(), offset), want);
            prop_assert_eq!(locate(map.runs(), offset + len - 1), want);
            prop_assert!(map.is_end(offset));
            prop_assert_eq!(map.is_end(offset + len / 2), len == 1);
            (offset, sector) = (offset + len, sector + sectors);
        }
        prop_assert_eq!((map.len(), map.sectors()), (offset, sector));
        prop_assert!(map.is_end(offset) && is_sound(map.runs(), offset));
        let kept = cut.index(pieces.len() + 1);
        let truncated = map.truncated(pieces[..kept].iter().map(|piece| piece.0).sum());
        let want = rows(&pieces[..kept]);
        prop_assert_eq!(&truncated, want.runs());
        let mut bytes = Vec::new();
        truncated.iter().for_each(|run| run.encode(&mut bytes));
        let back: Vec<Run> = bytes.chunks(RUN_BYTES).map(|b| Run::decode(b).unwrap()).collect();
        prop_assert_eq!(back, truncated);
    }

    #[test]
    fn every_offset_is_found(appends in prop::collection::vec(1u32..20_000, 1..40), cut in any::<u32>()) {
        let mut map = RunMap::default();
        let mut places = Vec::new(); // (offset, sector) of every sector
        for &len in &appends {
            for sector_len in lens(len) {
                let at = places.last().map_or(0, |&(at, len): &(u32, u16)| at + u32::from(len));
                places.push((at, sector_len));
            }
            map.push(lens(len));
        }
        prop_assert_eq!(map.sectors() as usize, places.len());
        prop_assert!(is_sound(map.runs(), map.len()));
        for (sector, &(at, len)) in places.iter().enumerate() {
            let want = Some(ChunkPosition { sector: sector as u32, offset: at, sectors: 1 });
            prop_assert_eq!(locate(map.runs(), at), want);
            prop_assert_eq!(locate(map.runs(), at + u32::from(len) - 1), want);
        }
        prop_assert_eq!(locate(map.runs(), map.len()), None);
        let cut = 1 + cut % map.len();
        let runs = map.truncated(cut);
        prop_assert!(is_sound(&runs, cut));
        prop_assert_eq!(locate(&runs, cut - 1), locate(map.runs(), cut - 1));
        let mut bytes = Vec::new();
        runs.iter().for_each(|run| run.encode(&mut bytes));
        let back: Vec<Run> = bytes.chunks(RUN_BYTES).map(|b| Run::decode(b).unwrap()).collect();
        prop_assert_eq!(back, runs);
    }
}
