//! Fragments of coded chunks that are made from others.

use runtime::Duration;
use wire::control::ReplicaPlace;

use super::*;

const CODE: Fragment = Fragment { k: 4, p: 2, number: 0 };
const ROWS: u32 = 6;
/// Bytes of a row, whose cells have four sectors.
const ROW: u32 = 60_000;
const LEN: u32 = ROWS * ROW;

fn row(number: u32) -> Vec<u8> {
    (0..ROW).map(|at| (at.wrapping_mul(31) >> 3) as u8 ^ number as u8).collect()
}

impl Bed {
    async fn append_cell(&self, server: usize, number: u8, at: u32, data: &[u8]) {
        let at = AppendAt { chunk: CHUNK, epoch: EPOCH, base: BASE, offset: at };
        let sectors = cell_of(at, data, Fragment { number, ..CODE }, Codec::Plain);
        let sectors = self.env.pool().copy_of(&sectors).unwrap();
        let request = DataRequest::Append(AppendRequest {
            at: self.at(server),
            epoch: EPOCH,
            base: BASE,
            offset: at.offset,
            len: data.len() as u32,
            committed: 0,
            create: at.offset == 0,
            purpose: Purpose::Data,
        });
        self.data(server, request, Some(sectors)).await.unwrap();
    }

    /// Server i has fragment i, for each of the first six.
    async fn fragments(&self) {
        for server in 0..6u8 {
            for number in 0..ROWS {
                let (at, data) = (number * ROW, row(number));
                self.append_cell(server.into(), server, at, &data).await;
            }
            self.seal(server.into(), LEN).await;
        }
    }

    /// An order to server `to` to make a fragment from servers that have those of their numbers.
    fn rebuild(&self, to: usize, number: u8, from: &[u8]) -> ChunkserverRequest {
        let order = self.copy_from(&from.iter().map(|&at| at.into()).collect::<Vec<_>>(), LEN);
        let with = |(place, &fragment): (ReplicaPlace, &u8)| ReplicaPlace { fragment, ..place };
        let sources = order.sources.iter().copied().zip(from).map(with).collect();
        let fragment = Some(Fragment { number, ..CODE });
        self.to_copy(to, CopyOrder { sources, fragment, ..order })
    }

    async fn sectors(&self, server: usize) -> Vec<u8> {
        let mut all = Vec::new();
        for number in 0..ROWS {
            let request = ReadRequest {
                at: self.at(server),
                offset: number * ROW,
                len: ROW,
                uncommitted: true,
                cell_sector: None,
                blocks: false,
            };
            all.extend(self.data(server, DataRequest::Read(request), None).await.unwrap().1);
        }
        all
    }

    async fn expect_rebuilt(&self, to: usize, number: u8, from: &[u8]) {
        let reply = self.control(to, self.rebuild(to, number, from)).await.unwrap();
        let ChunkserverReply::Replicated { stat, .. } = reply else { panic!("{reply:?}") };
        assert_eq!((stat.state, stat.len), (ReplicaState::Sealed, LEN));
        let (made, first) = (self.sectors(to).await, self.sectors(number.into()).await);
        assert!(made == first, "another fragment {number} than its writer's, from {from:?}");
    }
}

#[test]
fn any_four_of_six_fragments_give_the_others_bit_for_bit() {
    for number in 0..6u8 {
        check(7, async |bed| {
            bed.fragments().await;
            let others: Vec<_> = (0..6).filter(|other| *other != number).collect();
            let from: Vec<_> =
                others.iter().copied().skip(usize::from(number) % 2).take(4).collect();
            bed.expect_rebuilt(6, number, &from).await;
        });
    }
}

#[test]
fn a_fragment_is_copied_where_it_is_and_decoded_where_that_is_damaged() {
    check(7, async |bed| {
        bed.fragments().await;
        bed.stores[2].spoil(2 * ROW + 100);
        let reply = bed.control(6, bed.rebuild(6, 2, &[2, 0, 1, 3, 4])).await.unwrap();
        let ChunkserverReply::Replicated { stat, .. } = reply else { panic!("{reply:?}") };
        assert_eq!((stat.state, stat.len), (ReplicaState::Sealed, LEN));
        bed.stores[2].mend();
        assert!(bed.sectors(6).await == bed.sectors(2).await);
    });
}

/// Of a row of five at hand no four are whole: each lacks another sector.
#[test]
fn a_row_that_is_damaged_everywhere_is_made_from_its_sectors() {
    check(7, async |bed| {
        bed.fragments().await;
        for server in 0..4 {
            bed.stores[server].spoil(ROW + server as u32 * 4048);
        }
        bed.control(6, bed.rebuild(6, 5, &[0, 1, 2, 3, 4])).await.unwrap();
        assert!(bed.sectors(6).await == bed.sectors(5).await);
    });
}

/// Cells whose sectors verify, of a row that was never acknowledged: three of four are of one row.
#[test]
fn cells_of_different_rows_are_never_mixed() {
    check(7, async |bed| {
        for server in 0..6u8 {
            for number in 0..ROWS {
                let mut data = row(number);
                data[5] ^= u8::from(server == 0 && number == 3);
                bed.append_cell(server.into(), server, number * ROW, &data).await;
            }
            bed.seal(server.into(), LEN).await;
        }
        bed.expect_rebuilt(6, 5, &[0, 1, 2, 3, 4]).await;
    });
    check(7, async |bed| {
        for server in 0..4u8 {
            for number in 0..ROWS {
                let mut data = row(number);
                data[5] ^= u8::from(server == 0 && number == 3);
                bed.append_cell(server.into(), server, number * ROW, &data).await;
            }
            bed.seal(server.into(), LEN).await;
        }
        let error = bed.control(6, bed.rebuild(6, 5, &[0, 1, 2, 3])).await.unwrap_err();
        assert_eq!(error.kind, base::Kind::Reroute, "{error}");
    });
}

#[test]
fn too_few_fragments_are_named_and_the_copy_goes_on_when_there_are_enough() {
    check(7, async |bed| {
        bed.fragments().await;
        bed.stores[1].spoil(4 * ROW);
        let error = bed.control(6, bed.rebuild(6, 5, &[0, 1, 2, 3])).await.unwrap_err();
        assert_eq!(error.kind, base::Kind::Reroute, "{error}");
        assert!(error.message.contains("fewer than 4 of 6 fragments"), "{error}");
        bed.env.sleep(Duration::from_secs(1)).await;
        let reply = bed.control(6, bed.rebuild(6, 5, &[0, 4, 2, 3])).await.unwrap();
        let ChunkserverReply::Replicated { bytes, .. } = reply else { panic!("{reply:?}") };
        assert_eq!(bytes, 2 * 4 * 4096, "only the rows that it lacked");
        assert!(bed.sectors(6).await == bed.sectors(5).await);
    });
}

/// Masters count one of each fragment: what is here of another is not the one that is ordered.
#[test]
fn an_order_for_another_fragment_than_the_one_here_is_refused() {
    check(7, async |bed| {
        bed.fragments().await;
        bed.expect_rebuilt(6, 5, &[0, 1, 2, 3]).await;
        let error = bed.control(6, bed.rebuild(6, 4, &[0, 1, 2, 3])).await.unwrap_err();
        assert_eq!(error.kind, base::Kind::Exists, "{error}");
        let copy = bed.replicate(6, &[0], LEN);
        assert_eq!(bed.control(6, copy).await.unwrap_err().kind, base::Kind::Exists);
        bed.expect_rebuilt(6, 5, &[0, 1, 2, 3]).await;
    });
}
