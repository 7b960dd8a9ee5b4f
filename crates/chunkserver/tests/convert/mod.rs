//! Chunks in another form: what is written, what two servers answer for it, and what it reads as.

use codec::crc32c;
use wire::control::{Compression, Conversion, Policy};

use super::*;

const MADE: ChunkId = ChunkId::new(0x77);
const AGAIN: ChunkId = ChunkId::new(0x78);
/// Lengths of the appends that the chunk was written with: full ones, odd ones, small ones.
const APPENDS: [u32; 10] = [250_000, 250_000, 1, 4048, 4049, 100, 250_000, 250_000, 131_072, 777];

fn data() -> Vec<u8> {
    let len: u32 = APPENDS.iter().sum();
    // Half of it can be compressed.
    (0..len)
        .map(|at| if at / 1000 % 2 == 0 { 7 } else { (at.wrapping_mul(77) >> 5) as u8 })
        .collect()
}

fn forms() -> [Policy; 7] {
    [
        Policy::strict(2),
        Policy::rep(3).compressed(Some(Compression::LZ4)),
        Policy::rep(2).compressed(Some(Compression::ZSTD)),
        Policy::ec(2, 1),
        Policy::ec(4, 2),
        Policy::ec(4, 2).compressed(Some(Compression::LZ4)),
        Policy::ec(2, 2).compressed(Some(Compression::ZSTD)),
    ]
}

/// A chunk, and the servers with its replicas, in the order of fragments.
struct Made {
    chunk: ChunkId,
    policy: Policy,
    servers: Vec<usize>,
}

impl Bed {
    /// The first servers have sealed copies of the chunk.
    async fn copies(&self, count: usize, data: &[u8]) -> Made {
        for server in 0..count {
            let mut offset = 0;
            for len in APPENDS {
                let part = &data[offset as usize..][..len as usize];
                offset = self.append(server, offset, part, 0).await.unwrap();
            }
            self.seal(server, offset).await;
        }
        Made { chunk: CHUNK, policy: Policy::strict(2), servers: (0..count).collect() }
    }

    fn token_for(&self, chunk: ChunkId) -> [u8; 16] {
        let expiry = self.env.unix_time().as_nanos() / 1_000_000_000 + 60;
        self.key.issue(chunk, Rights::ALL, EPOCH, IssuerTime::wall(expiry)).0
    }

    fn place(&self, server: usize, fragment: u8) -> ReplicaPlace {
        let (addr, disk, _) = self.servers[server];
        ReplicaPlace { server: ServerId::new(server as u32 + 1), disk, addr, fragment }
    }

    fn conversion(&self, of: &Made, to: &Made, len: u32) -> Conversion {
        let places = |made: &Made| {
            let numbers = made.servers.iter().zip(0u8..);
            let number = |number| if made.policy.is_coded() { number } else { 0 };
            numbers.map(|(&server, at)| self.place(server, number(at))).collect::<Vec<_>>()
        };
        let Policy { data, copies, .. } = of.policy;
        let code =
            of.policy.is_coded().then_some(Fragment { k: data, p: copies - data, number: 0 });
        Conversion {
            chunk: of.chunk,
            epoch: EPOCH,
            base: BASE,
            len,
            sources: places(of),
            read_token: self.token_for(of.chunk),
            code,
            made: to.chunk,
            policy: to.policy,
            places: places(to),
            write_token: self.token_for(to.chunk),
        }
    }

    /// Has server `to` carry a conversion out.
    async fn convert(&self, to: usize, order: Conversion) -> Result<Vec<u32>, ControlError> {
        let order = ChunkserverRequest::Convert { disk: self.servers[to].1, order };
        match self.control(to, order).await? {
            ChunkserverReply::Converted { digests } => Ok(digests),
            other => panic!("{other:?}"),
        }
    }

    async fn seal_made(&self, made: &Made, len: u32) {
        for &server in &made.servers {
            let at = ChunkRef { chunk: made.chunk, disk: self.servers[server].1 };
            let token = Token(self.token_for(made.chunk));
            let seal = DataRequest::Seal(SealRequest { at, len });
            self.data_with(server, seal, None, token).await.unwrap();
        }
    }

    async fn digest(&self, server: usize, chunk: ChunkId, len: u32) -> Result<u32, ControlError> {
        let disk = self.servers[server].1;
        match self.control(server, ChunkserverRequest::Digest { disk, chunk, len }).await? {
            ChunkserverReply::Digest { crc } => Ok(crc),
            other => panic!("{other:?}"),
        }
    }
}

/// From copies to each form and from there to each other one: servers agree about what is written, each
/// replica reads as they say, and the bytes are the same in the end.
#[test]
fn bytes_are_the_same_in_each_form() {
    for (at, form) in forms().into_iter().enumerate() {
        check_layouts(14, async |bed| {
            let data = data();
            let len = data.len() as u32;
            let of = bed.copies(2, &data).await;
            let servers = (2..2 + usize::from(form.copies)).collect();
            let made = Made { chunk: MADE, policy: form, servers };
            let order = bed.conversion(&of, &made, len);
            let first = Conversion { sources: vec![order.sources[0]], ..order.clone() };
            let again = Conversion { sources: vec![order.sources[1]], places: Vec::new(), ..order };
            let digests = bed.convert(0, first).await.unwrap();
            assert_eq!(bed.convert(1, again).await.unwrap(), digests, "{form}");
            let replicas = if form.is_coded() { usize::from(form.copies) } else { 1 };
            assert_eq!(digests.len(), replicas);
            bed.seal_made(&made, len).await;
            for (number, &server) in made.servers.iter().enumerate() {
                let wanted = digests[number % digests.len()];
                assert_eq!(bed.digest(server, MADE, len).await, Ok(wanted), "{form} {number}");
            }

            let next = forms()[(at + 3) % forms().len()];
            let servers = (8..8 + usize::from(next.copies)).collect();
            let further = Made { chunk: AGAIN, policy: next, servers };
            let order = bed.conversion(&made, &further, len);
            let done = bed.convert(3, order).await;
            done.unwrap_or_else(|error| panic!("{form}, then {next}: {error}"));
            bed.seal_made(&further, len).await;
            let plain = Made { chunk: CHUNK, policy: Policy::strict(2), servers: Vec::new() };
            let all = bed.convert(9, bed.conversion(&further, &plain, len)).await.unwrap();
            assert_eq!(all, [crc32c(&data)], "{form}, then {next}");
        });
    }
}

/// Both replicas of a chunk are on disks of one server, as where there is one server.
#[test]
fn one_server_lays_a_chunk_out_twice_at_a_time() {
    check(5, async |bed| {
        let data = data();
        let len = data.len() as u32;
        let of = bed.copies(1, &data).await;
        let made = Made { chunk: MADE, policy: Policy::ec(2, 1), servers: vec![2, 3, 4] };
        let order = bed.conversion(&of, &made, len);
        let check = Conversion { places: Vec::new(), ..order.clone() };
        let disk = bed.servers[0].1;
        let send = |order| bed.send_control(0, ChunkserverRequest::Convert { disk, order });
        let (first, laid_out, again) = (send(order.clone()), send(check), send(order));
        let both = [first.await.expect("it ends"), again.await.expect("it ends")];
        let written: Vec<_> = both.iter().flatten().collect();
        assert_eq!(written.len(), 1, "one order writes one chunk: {both:?}");
        assert_eq!(laid_out.await.expect("it ends").as_ref(), Ok(written[0]));
    });
}

/// What one append of the largest size cannot hold is several rows, each as large as it may be: a chunk of
/// small appends takes less room.
#[test]
fn small_appends_become_full_rows() {
    check(9, async |bed| {
        let data = data();
        let len = data.len() as u32;
        let of = bed.copies(1, &data).await;
        let made = Made { chunk: MADE, policy: Policy::ec(4, 2), servers: (1..7).collect() };
        bed.convert(0, bed.conversion(&of, &made, len)).await.unwrap();
        bed.seal_made(&made, len).await;
        let read = ReadRequest {
            at: ChunkRef { chunk: MADE, disk: bed.servers[1].1 },
            offset: 0,
            len: 1,
            uncommitted: false,
            cell_sector: None,
            blocks: false,
        };
        let token = Token(bed.token_for(MADE));
        let first = bed.data_with(1, DataRequest::Read(read), None, token).await.unwrap().1;
        let row = wire::row::row_at(&first).unwrap();
        assert_eq!(row.len as usize, wire::row::CODED_ROW_MAX);
    });
}

#[test]
fn copies_with_other_bytes_are_laid_out_otherwise() {
    check(5, async |bed| {
        let mut data = data();
        let len = data.len() as u32;
        bed.copies(1, &data).await;
        data[300_000] ^= 1;
        let mut offset = 0;
        for part in APPENDS {
            let bytes = &data[offset as usize..][..part as usize];
            offset = bed.append(1, offset, bytes, 0).await.unwrap();
        }
        bed.seal(1, len).await;
        let of = Made { chunk: CHUNK, policy: Policy::strict(2), servers: vec![0, 1] };
        let made = Made { chunk: MADE, policy: Policy::ec(2, 1), servers: Vec::new() };
        let order = bed.conversion(&of, &made, len);
        let from = |at: usize| Conversion { sources: vec![order.sources[at]], ..order.clone() };
        let digests = bed.convert(0, from(0)).await.unwrap();
        assert_ne!(bed.convert(1, from(1)).await.unwrap(), digests);
    });
}

#[test]
fn doubts_are_errors() {
    check(5, async |bed| {
        let data = data();
        let len = data.len() as u32;
        let of = bed.copies(2, &data).await;
        let made = Made { chunk: MADE, policy: Policy::ec(2, 1), servers: vec![2, 3, 4] };
        let order = bed.conversion(&of, &made, len);
        let with = |change: &dyn Fn(&mut Conversion)| {
            let mut order = order.clone();
            change(&mut order);
            order
        };
        let kind = async |order| bed.convert(0, order).await.unwrap_err().kind;
        use base::Kind;
        assert_eq!(kind(with(&|it| it.places.truncate(2))).await, Kind::Invalid);
        assert_eq!(kind(with(&|it| it.sources.clear())).await, Kind::Invalid);
        assert_eq!(kind(with(&|it| it.policy.copies = 4)).await, Kind::Invalid);
        assert_eq!(kind(with(&|it| it.len += 1)).await, Kind::Reroute, "no source has it");
        assert_eq!(bed.digest(2, MADE, len).await.unwrap_err().kind, Kind::Corrupt, "it is open");

        // What was begun and given up is not gone on with.
        assert!(bed.convert(0, order.clone()).await.is_err());
        assert!(bed.digest(4, AGAIN, len).await.is_err());

        // A source that is damaged, and another one.
        let again = Made { chunk: AGAIN, policy: Policy::ec(2, 1), servers: vec![2, 3, 4] };
        let order = bed.conversion(&of, &again, len);
        bed.stores[0].spoil(300_000);
        let alone = Conversion { sources: vec![order.sources[0]], ..order.clone() };
        let alone = Conversion { places: Vec::new(), ..alone };
        assert_eq!(kind(alone).await, Kind::Reroute);
        assert!(bed.convert(0, order).await.is_ok());
    });
}
