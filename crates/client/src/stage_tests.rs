use base::{ChunkId, Epoch};
use wire::row::{Fragment, cell_to, verify_cell};
use wire::sector::format_append;

use super::*;
use crate::writer::Fragments;

const EC: Laid = Laid::Coded(Fragments { k: 4, p: 2 });

fn at(chunk: u64, offset: u32) -> AppendAt {
    AppendAt { chunk: ChunkId::new(chunk), epoch: Epoch::new(2), base: 77, offset }
}

fn layout(laid: Laid, compression: Option<Compression>) -> Layout {
    let code = match laid {
        Laid::Coded(code) => Some(code),
        _ => None,
    };
    Layout { code, compression }
}

/// The sectors of a row at one place and then at another have the same cell.
#[test]
fn a_row_keeps_its_bytes_wherever_it_is_placed() {
    let (pool, mut rows) = (BufPool::new(8 << 20), Rows::default());
    let data: Vec<u8> = (0..200_000u32).map(|i| (i % 7) as u8).collect();
    for (laid, codec) in [Laid::Row, EC].into_iter().flat_map(|l| Codec::ALL.map(|c| (l, c))) {
        let parts = [&data[..100], &data[100..]];
        let compression = Some(Compression::of(codec));
        let layout = layout(laid, compression);
        let mut staged = Staged::lay_out(&pool, &mut rows, (layout, Verify::All), &parts).unwrap();
        let replicas = if laid == EC { 6 } else { 1 };
        let mut cells = Vec::new();
        for offset in [0, 1 << 30] {
            let place = at(3, offset);
            staged.place(&pool, &mut rows, (place, laid, None, Verify::All)).unwrap();
            let mut bytes = 0;
            for number in 0..replicas {
                let sectors = staged.sectors(number).unwrap();
                bytes += sectors.len();
                let row = verify_cell(place, &sectors).unwrap();
                let fragment = match laid {
                    EC => Fragment { k: 4, p: 2, number },
                    _ => Fragment::COPY,
                };
                assert_eq!((row.len, row.codec, row.fragment), (200_000, codec, fragment));
                if laid == Laid::Row {
                    assert!(rows.decode(&row, &sectors).unwrap() == data);
                } else {
                    assert!(rows.decode(&row, &sectors).is_err());
                }
                let mut cell = vec![0; row.cell_len as usize];
                cell_to(&sectors, &mut cell);
                cells.push(cell);
            }
            assert_eq!(bytes, staged.bytes() as usize);
        }
        let (before, after) = cells.split_at(replicas.into());
        assert!(before == after);
        assert!(staged.sectors(replicas).is_none());
    }
}

/// Whatever an append was laid out as, in a chunk of another kind it has the same bytes.
#[test]
fn an_append_is_laid_out_again_from_its_sectors() {
    let (pool, mut rows) = (BufPool::new(16 << 20), Rows::default());
    let small = Laid::Coded(Fragments { k: 2, p: 1 });
    for len in [1, 5, 4_048, 100_000] {
        let data: Vec<u8> = (0..len).map(|at: u32| (at.wrapping_mul(at) >> 5) as u8).collect();
        for compression in [None, Some(Compression::LZ4)] {
            let mut staged = Staged::lay_out(
                &pool,
                &mut rows,
                (layout(Laid::Row, Some(Compression::ZSTD)), Verify::Sampled),
                &[&data],
            )
            .unwrap();
            let mut held = Vec::new();
            for (chunk, laid) in
                [Laid::Row, EC, Laid::Plain, EC, small, Laid::Plain, small].into_iter().enumerate()
            {
                let place = at(chunk as u64, 9);
                held.extend(staged.sectors(0)); // A sending under way.
                staged.place(&pool, &mut rows, (place, laid, compression, Verify::All)).unwrap();
                assert_eq!(staged.laid(), laid);
                match laid {
                    Laid::Plain => {
                        let mut expected = vec![0; sectors_for(data.len()) * SECTOR];
                        format_append(place, &data, &mut expected);
                        assert_eq!(&*staged.sectors(0).unwrap(), &expected[..]);
                    }
                    Laid::Row => {
                        let sectors = staged.sectors(0).unwrap();
                        let row = verify_cell(place, &sectors).unwrap();
                        assert!(rows.decode(&row, &sectors).unwrap() == data);
                    }
                    Laid::Coded(code) => {
                        // The last k of the fragments.
                        let numbers = code.p..code.k + code.p;
                        let sectors: Vec<_> = numbers
                            .map(|number| (number, staged.sectors(number).unwrap()))
                            .collect();
                        let cells: Vec<CellSectors<'_>> =
                            sectors.iter().map(|(number, it)| (*number, &it[..])).collect();
                        let row = verify_cell(place, cells[0].1).unwrap();
                        let read = rows.decode_cells((row.len, row.cell_len), &cells).unwrap();
                        assert!(read == data, "{len} bytes in {chunk}");
                    }
                }
            }
        }
    }
}

#[test]
fn sectors_are_those_of_the_format() {
    let (pool, mut rows) = (BufPool::new(8 << 20), Rows::default());
    let data: Vec<u8> = (0..20_000u32).map(|i| (i * 7) as u8).collect();
    for len in [1, 4047, 4048, 4049, 8096, 20_000] {
        for cut in [0, 1, len / 2, len] {
            let parts = [&data[..cut], &data[cut..len]];
            let mut staged =
                Staged::lay_out(&pool, &mut rows, (Layout::default(), Verify::Off), &parts)
                    .unwrap();
            assert!(staged.sectors(0).is_none());
            for chunk in [3, 4] {
                let place = at(chunk, 5);
                let held = staged.sectors(0);
                staged.place(&pool, &mut rows, (place, Laid::Plain, None, Verify::Off)).unwrap();
                let mut expected = vec![0; sectors_for(len) * SECTOR];
                format_append(place, &data[..len], &mut expected);
                assert_eq!(&*staged.sectors(0).unwrap(), &expected[..]);
                drop(held); // A sending under way keeps the old bytes.
            }
        }
    }
}

/// A kernel that gets some rows wrong is found by what is read back, and out of use from then on.
#[test]
fn a_kernel_that_errs_is_taken_out() {
    if codec::ec::Kernel::fastest().is_portable() {
        return; // It is the one to fall back on.
    }
    let pool = BufPool::new(16 << 20);
    let data: Vec<u8> = (0..50_000u32).map(|at| (at.wrapping_mul(at) >> 5) as u8).collect();
    let compression = Some(Compression::LZ4);
    // Rows, of which the fifth and each fifth behind it are wrong; by then the first sample was read.
    for (verify, wrong) in [(Verify::All, 1), (Verify::Sampled, 1), (Verify::Off, 0)] {
        for laid in [EC, Laid::Coded(Fragments { k: 2, p: 1 }), Laid::Row] {
            let k = if let Laid::Coded(code) = laid { code.k } else { 1 };
            let n = if let Laid::Coded(code) = laid { code.k + code.p } else { 1 };
            let (mut rows, mut bad) = (Rows::default(), 0);
            codec::planted::plant(if verify == Verify::Sampled { 256 } else { 5 });
            for number in 0..600 {
                let layout = (layout(laid, compression), verify);
                let mut staged = Staged::lay_out(&pool, &mut rows, layout, &[&data]).unwrap();
                if number % 5 != 4 && number % 256 != 255 {
                    continue;
                }
                staged.place(&pool, &mut rows, (at(3, 0), laid, None, verify)).unwrap();
                let cell = |fragment: u8| (fragment, staged.sectors(fragment).unwrap());
                let cells: Vec<_> = (0..n).map(cell).collect();
                // Each cell is used once: any of them may be the wrong one.
                for from in 0..n {
                    let used = (0..k).map(|at| &cells[usize::from((from + at) % n)]);
                    let used: Vec<CellSectors<'_>> =
                        used.map(|(fragment, sectors)| (*fragment, &sectors[..])).collect();
                    let lens = (staged.len as u32, staged.stored as u32);
                    bad += u32::from(rows.decode_cells(lens, &used).ok() != Some(&data[..]));
                }
            }
            codec::planted::plant(0);
            let what = (verify, laid, rows.verified());
            assert_eq!(rows.verified().1, wrong, "{what:?}");
            assert_eq!(bad == 0, verify != Verify::Off, "{what:?}: {bad}");
        }
    }
}

/// A row that was laid out wrong, and not read back, is laid out in another form from those of its cells
/// that have its bytes; the only cell of copies has none, and is an error.
#[test]
fn a_row_that_is_wrong_is_laid_out_again_from_other_cells() {
    if codec::ec::Kernel::fastest().is_portable() {
        return;
    }
    let pool = BufPool::new(16 << 20);
    let data: Vec<u8> = (0..50_000u32).map(|at| (at.wrapping_mul(at) >> 5) as u8).collect();
    let compression = Some(Compression::LZ4);
    for (laid, to) in [(EC, Laid::Plain), (EC, Laid::Row), (Laid::Row, Laid::Plain)] {
        let (mut rows, mut wrong) = (Rows::default(), 0);
        for number in 0..12 {
            codec::planted::plant(1);
            // Which of the cells is the wrong one follows from the rows so far.
            for _ in 0..number {
                let layout = (layout(EC, compression), Verify::Off);
                Staged::lay_out(&pool, &mut rows, layout, &[&data]).unwrap();
            }
            let layout = (layout(laid, compression), Verify::Off);
            let mut staged = Staged::lay_out(&pool, &mut rows, layout, &[&data]).unwrap();
            codec::planted::plant(0);
            let place = (at(3, 0), to, compression, Verify::Off);
            match staged.place(&pool, &mut rows, place) {
                Ok(()) => assert!(!staged.sectors(0).unwrap().is_empty()),
                Err(error) => {
                    assert_eq!(error, LayError::Wrong);
                    wrong += 1;
                    continue;
                }
            }
            if to == Laid::Plain {
                let mut expected = vec![0; sectors_for(data.len()) * SECTOR];
                format_append(at(3, 0), &data, &mut expected);
                assert_eq!(&*staged.sectors(0).unwrap(), &expected[..]);
            }
        }
        assert_eq!(wrong, if laid == EC { 0 } else { 12 }, "{laid:?} to {to:?}");
    }
}
