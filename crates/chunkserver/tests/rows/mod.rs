//! Whole rows of coded chunks, checked with all their cells.

use codec::row::{CELL_HEAD, RowEncoder, Scheme};
use codec::{block::BlockSize, crc32c};
use wire::control::{Conversion, Policy, RowCheck, RowFindings};
use wire::row::{CellPart, place_cell, stamp_cell};

use super::*;

const CODE: Fragment = Fragment { k: 4, p: 2, number: 0 };
const MADE: ChunkId = ChunkId::new(0x77);

fn row(number: u32, len: u32) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(31) >> 3) as u8 ^ number as u8).collect()
}

/// The cells of a row.
fn cells(row: &[u8]) -> Vec<Vec<u8>> {
    let scheme = Scheme::new(4, 2, BlockSize::PAPERS).expect("within limits");
    let mut cells = vec![vec![0; scheme.cell_max(row.len())]; scheme.n()];
    let mut views: Vec<&mut [u8]> = cells.iter_mut().map(Vec::as_mut_slice).collect();
    let len = RowEncoder::new(scheme, Codec::Plain).encode(row, &mut views).cell_len();
    cells.iter_mut().for_each(|cell| cell.truncate(len));
    cells
}

/// The same, of an encoder that got a byte of one wrong, and then the check of all.
fn miscoded(row: &[u8], victim: usize) -> Vec<Vec<u8>> {
    let mut cells = cells(row);
    let at = cells[victim].len() - 1;
    cells[victim][at] ^= 1;
    let crc = |cell: &Vec<u8>| crc32c(&[&cell[..CELL_HEAD - 4], &cell[CELL_HEAD..]].concat());
    let crcs: Vec<u8> = cells.iter().flat_map(|cell| crc(cell).to_le_bytes()).collect();
    let check = crc32c(&crcs).to_le_bytes();
    cells.iter_mut().for_each(|cell| cell[CELL_HEAD - 4..CELL_HEAD].copy_from_slice(&check));
    cells
}

impl Bed {
    /// Server i has fragment i of rows whose cells are `of(number)`.
    async fn rows(&self, count: u32, len: u32, of: impl Fn(u32) -> Vec<Vec<u8>>) {
        for number in 0..count {
            let at = AppendAt { chunk: CHUNK, epoch: EPOCH, base: BASE, offset: number * len };
            for (server, cell) in of(number).iter().enumerate() {
                let mut sectors = self.env.pool().alloc(sectors_for(cell.len()) * 4096).unwrap();
                place_cell(cell, &mut sectors);
                let part = CellPart { fragment: server as u8, codec: Codec::Plain, index: 0 };
                stamp_cell(at, part, cell.len(), &mut sectors);
                let append = DataRequest::Append(AppendRequest {
                    at: self.at(server),
                    epoch: EPOCH,
                    base: BASE,
                    offset: at.offset,
                    len,
                    committed: 0,
                    create: number == 0,
                    purpose: Purpose::Data,
                });
                self.data(server, append, Some(sectors.freeze())).await.unwrap();
            }
        }
        for server in 0..6 {
            self.seal(server, count * len).await;
        }
    }

    /// The cell of so many bytes that a server has of the row at a place.
    async fn cell(&self, server: usize, (offset, len): (u32, u32), cell_len: usize) -> Vec<u8> {
        let read = ReadRequest {
            at: self.at(server),
            offset,
            len,
            uncommitted: true,
            cell_sector: None,
            blocks: false,
        };
        let sectors = self.data(server, DataRequest::Read(read), None).await.unwrap().1;
        let mut cell = vec![0; cell_len];
        wire::row::cell_to(&sectors, &mut cell);
        cell
    }

    /// What server `to` finds, with the fragments of `from`, in one row of `one_in`.
    async fn check_rows(&self, to: usize, len: u32, from: &[u8], one_in: u32) -> RowFindings {
        let servers: Vec<usize> = from.iter().map(|&at| at.into()).collect();
        let order = self.copy_from(&servers, len);
        let with = |(place, &fragment): (ReplicaPlace, &u8)| ReplicaPlace { fragment, ..place };
        let order = RowCheck {
            chunk: CHUNK,
            epoch: EPOCH,
            base: BASE,
            len,
            sources: order.sources.iter().copied().zip(from).map(with).collect(),
            token: order.token,
            code: Fragment { number: to as u8, ..CODE },
            one_in,
        };
        let disk = self.servers[to].1;
        let answer = self.control(to, ChunkserverRequest::CheckRows { disk, order }).await.unwrap();
        let ChunkserverReply::RowsChecked(found) = answer else { panic!("{answer:?}") };
        found
    }
}

const ALL: [u8; 6] = [0, 1, 2, 3, 4, 5];

#[test]
fn rows_are_sound_or_name_the_fragment_that_is_not_theirs() {
    for victim in [None, Some(0), Some(3), Some(5)] {
        check(6, async |bed| {
            let len = 60_000;
            bed.rows(6, len, |number| {
                let mut cells = cells(&row(number, len));
                if let Some(victim) = victim.filter(|_| number == 3) {
                    cells[victim] = self::cells(&row(9, len)).swap_remove(victim);
                }
                cells
            })
            .await;
            let wrong = victim.map_or(0, |victim| 1 << victim);
            let found = bed.check_rows(1, 6 * len, &ALL, 1).await;
            assert_eq!(found, RowFindings { checked: 6, wrong, miscoded: 0 });
            // Of a row without all its cells nothing is said but what those at hand say.
            let found = bed.check_rows(2, 6 * len, &ALL[1..], 1).await;
            let seen = if victim == Some(0) { 0 } else { wrong };
            assert_eq!(found, RowFindings { checked: 0, wrong: seen, miscoded: 0 });
            assert_eq!(bed.check_rows(2, 6 * len, &ALL[3..], 1).await, RowFindings::default());
        });
    }
}

/// A row whose writer coded it wrong, in whichever of its cells, is found, and its bytes are whole in
/// another chunk.
#[test]
fn rows_that_were_coded_wrong_are_found_and_laid_out_again() {
    for victim in 0..6 {
        check(13, async |bed| {
            let (count, len) = (5, 60_000);
            // Not the same cell in each row: no four fragments have all of them.
            let victim_of = |number: u32| (victim + number as usize) % 6;
            bed.rows(count, len, |number| match number % 2 {
                1 => miscoded(&row(number, len), victim_of(number)),
                _ => cells(&row(number, len)),
            })
            .await;
            let found = bed.check_rows(4, count * len, &ALL, 1).await;
            assert_eq!(found, RowFindings { checked: 5, wrong: 0, miscoded: 2 });

            // A fragment that is lost can be made, with what the code says of each row.
            let order = bed.copy_from(&[0, 1, 2, 3, 4, 5], count * len);
            let numbered = order.sources.iter().zip(0u8..);
            let others = numbered.filter(|(_, number)| usize::from(*number) != victim);
            let others =
                others.map(|(place, fragment)| ReplicaPlace { fragment, ..*place }).collect();
            let lost = Fragment { number: victim as u8, ..CODE };
            let lost = CopyOrder { sources: others, fragment: Some(lost), ..order };
            bed.control(7, bed.to_copy(7, lost)).await.unwrap();
            for number in 0..count {
                let wanted = cells(&row(number, len)).swap_remove(victim);
                let cell = bed.cell(7, (number * len, len), wanted.len()).await;
                assert!(cell[CELL_HEAD..] == wanted[CELL_HEAD..], "row {number} of {victim}");
            }

            let data: Vec<u8> = (0..count).flat_map(|number| row(number, len)).collect();
            let order = bed.copy_from(&[0, 1, 2, 3, 4, 5], count * len);
            let numbered = order.sources.iter().zip(0u8..);
            let sources: Vec<_> =
                numbered.map(|(place, fragment)| ReplicaPlace { fragment, ..*place }).collect();
            for first in 0..6 {
                let mut sources = sources.clone();
                sources.rotate_left(first);
                let order = Conversion {
                    chunk: CHUNK,
                    epoch: EPOCH,
                    base: BASE,
                    len: count * len,
                    sources,
                    read_token: order.token,
                    code: Some(CODE),
                    made: MADE,
                    policy: Policy::strict(2),
                    places: Vec::new(),
                    write_token: order.token,
                };
                let disk = bed.servers[first].1;
                let order = ChunkserverRequest::Convert { disk, order };
                let digests = vec![crc32c(&data)];
                let answer = bed.control(first, order).await;
                assert_eq!(answer, Ok(ChunkserverReply::Converted { digests }), "{first}");
            }
        });
    }
}

/// A server whose CPU errs in what it decodes makes no wrong fragment, and takes no row for wrong.
#[test]
fn a_server_that_errs_makes_the_fragment_that_was_lost() {
    for victim in [0, 3, 4, 5] {
        check(7, async |bed| {
            let (count, len) = (3, 60_000);
            bed.rows(count, len, |number| cells(&row(number, len))).await;
            codec::planted::plant_decoding(true);
            let found = bed.check_rows(1, count * len, &ALL, 1).await;
            let order = bed.copy_from(&[0, 1, 2, 3, 4, 5], count * len);
            let numbered = order.sources.iter().zip(0u8..);
            let others = numbered.filter(|(_, number)| usize::from(*number) != victim);
            let others =
                others.map(|(place, fragment)| ReplicaPlace { fragment, ..*place }).collect();
            let lost = Fragment { number: victim as u8, ..CODE };
            let lost = CopyOrder { sources: others, fragment: Some(lost), ..order };
            let made = bed.control(6, bed.to_copy(6, lost)).await;
            codec::planted::plant_decoding(false);
            assert_eq!(found, RowFindings { checked: count, wrong: 0, miscoded: 0 });
            made.unwrap();
            for number in 0..count {
                let wanted = cells(&row(number, len)).swap_remove(victim);
                let cell = bed.cell(6, (number * len, len), wanted.len()).await;
                assert!(cell == wanted, "row {number} of {victim}");
            }
        });
    }
}

#[test]
fn one_row_in_so_many_is_checked() {
    check(6, async |bed| {
        let (count, len) = (1_200, 5_000);
        bed.rows(count, len, |number| cells(&row(number, len))).await;
        let mut checked = 0;
        for at in 0..20 {
            let found = bed.check_rows(at % 6, count * len, &ALL, 8).await;
            assert_eq!((found.wrong, found.miscoded), (0, 0));
            checked += found.checked;
        }
        assert!((1_500..5_000).contains(&checked), "{checked} of 24,000, one in 8");
    });
}
