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

proptest! {
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
            let want = Some(ChunkPosition { sector: sector as u32, offset: at });
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
