//! Files of erasure codes (C18), against a cluster in memory.

use std::rc::Rc;

use base::limits::SECTOR;
use base::{ChunkId, DiskId, Epoch, Kind, ServerId};
use client::writer::{ChaseBudget, Writer, WriterConfig};
use client::{Client, Config, Error, FlatLogFile};
use futures_util::future::join_all;
use runtime::{Duration, Instant, Rng};
use wire::control::{ChunkPlace, Compression, Policy, ReplicaFault, ReplicaPlace, WriterGrant};
use wire::row::Layout;
use wire::sector::{format_sector, parse_footer};

use crate::cluster::{bytes, run};
use crate::fake::{Fake, Health};

const EC21: Policy = Policy::ec(2, 1);
const EC42: Policy = Policy::ec(4, 2);

/// A finished file of `policy` with appends of these lengths, and its bytes.
async fn written(client: &Client, policy: Policy, lens: &[usize]) -> (FlatLogFile, Vec<u8>) {
    let file = client.create("/file", policy, 0o644, true).await.unwrap();
    let writer = file.append_handle().await.unwrap();
    let mut data = Vec::new();
    for (at, &len) in lens.iter().enumerate() {
        // Half of it can be compressed.
        let mut piece = bytes(at as u64, len);
        piece[len / 2..].fill(at as u8);
        writer.append(&piece).await.unwrap();
        data.extend_from_slice(&piece);
    }
    assert_eq!(writer.finish().await.unwrap(), data.len() as u64);
    (file, data)
}

async fn check(file: &FlatLogFile, data: &[u8], rng: &mut Rng) {
    let reader = file.reader();
    let read = reader.read_at(0, data.len() + 1).await.unwrap();
    assert!(read == data);
    for _ in 0..40 {
        let len_max = [1, 5_000, 300_000][rng.below(3) as usize];
        let at = rng.below(data.len() as u64) as usize;
        let len = (rng.below(len_max) as usize + 1).min(data.len() - at);
        let read = reader.read_at(at as u64, len).await.unwrap();
        assert!(read == data[at..at + len], "{len} bytes at {at}");
    }
}

fn kill(fake: &Fake, servers: &[usize], health: Health) {
    fake.with(|state| {
        state.health.fill(Health::Good);
        servers.iter().for_each(|&server| state.health[server] = health);
    });
}

/// Each replica of a coded chunk has its own fragment, and no other chunk has rows of a code. Fragments
/// that are not there: late ones, which are not repaired here.
fn check_fragments(fake: &Fake, chunks: &[ChunkPlace]) -> usize {
    let mut missing_most = 0;
    for chunk in chunks {
        let mut missing = 0;
        for replica in &chunk.replicas {
            let server = replica.server.get() as usize;
            let layout = fake.with(|state| {
                let replica = state.replicas.get(&(chunk.chunk, server));
                replica.map(|replica| Layout::of(&replica.sectors[0].1))
            });
            match (chunk.fragment(replica), layout) {
                (_, None) => missing += 1,
                (Some(fragment), Some(layout)) => assert_eq!(layout, Layout::Rows(fragment)),
                (None, Some(Layout::Plain)) => {}
                (None, Some(Layout::Rows(fragment))) => assert_eq!(fragment.k, 1),
            }
        }
        assert!(missing <= chunk.replicas.len() - usize::from(chunk.acks));
        missing_most = missing_most.max(missing);
    }
    missing_most
}

#[test]
fn bytes_are_read_with_as_many_servers_gone_as_there_is_parity() {
    let lens = [5, 4_048, 70_000, 1_036_288, 100, 2_500_000, 300_000];
    for (seed, policy, compression) in [
        (1, EC21, None),
        (2, EC42, None),
        (2, Policy::ec_strict(4, 2), None),
        (3, EC42, Some(Compression::LZ4)),
        (4, Policy::ec(12, 4), Some(Compression::ZSTD)),
        (5, Policy::ec_strict(2, 4), None),
    ] {
        let fake = Fake::new(1, usize::from(policy.copies));
        let mut config = Config::default();
        config.writer.chunk_len_max = 2 << 20;
        run(seed, &fake.clone(), config, |client| async move {
            let mut rng = Rng::new(seed);
            let policy = policy.compressed(compression);
            let (file, data) = written(&client, policy, &lens).await;
            let chunks = file.chunks().await.unwrap().chunks;
            assert!(chunks.len() > 1 && chunks.iter().all(ChunkPlace::is_coded));
            let missing = check_fragments(&fake, &chunks);
            check(&file, &data, &mut rng).await;
            for round in 0..6 {
                let servers = u64::from(policy.copies);
                let mut gone: Vec<usize> = (0..policy.copies.into()).collect();
                gone.rotate_left(rng.below(servers) as usize);
                gone.truncate(usize::from(policy.parity()) - missing);
                let health = if round % 2 == 0 { Health::Dead } else { Health::Silent };
                kill(&fake, &gone, health);
                let file = client.open("/file").await.unwrap();
                check(&file, &data, &mut rng).await;
            }
        });
    }
}

#[test]
fn one_server_too_many_gone_is_no_answer_and_no_wrong_bytes() {
    let fake = Fake::new(1, 6);
    let config = Config { read_budget: Duration::from_millis(800), ..Config::default() };
    run(6, &fake.clone(), config, |client| async move {
        let (file, data) = written(&client, EC42, &[200_000]).await;
        kill(&fake, &[0, 1, 2], Health::Dead);
        let failed = file.reader().read_at(0, 200_000).await.unwrap_err();
        assert!(matches!(failed, Error::Unavailable { .. }), "{failed}");
        kill(&fake, &[0, 1], Health::Dead);
        assert!(file.reader().read_at(0, 200_000).await.unwrap() == data);
    });
}

/// Chunks of a file by their form: true for a code.
fn forms(chunks: &[ChunkPlace]) -> Vec<bool> {
    let forms = chunks.chunk_by(|one, next| one.is_coded() == next.is_coded());
    forms.map(|some| some[0].is_coded()).collect()
}

#[test]
fn small_appends_go_on_in_copies_and_large_ones_in_the_code() {
    const SWITCH: usize = 64;
    for (seed, compression) in [(1, None), (2, Some(Compression::LZ4))] {
        let fake = Fake::new(1, 7);
        let mut config = Config::default();
        config.writer.switch_bytes = (SWITCH * SECTOR) as u32;
        let mut rng = Rng::new(seed);
        run(seed, &fake.clone(), config, |client| async move {
            let small = |count| std::iter::repeat_n(100, count);
            let large = |count| std::iter::repeat_n(500_000, count);
            let lens: Vec<_> = small(200).chain(large(9)).chain(small(200)).collect();
            let (file, data) = written(&client, EC42.compressed(compression), &lens).await;
            let chunks = file.chunks().await.unwrap().chunks;
            assert_eq!(forms(&chunks), [true, false, true, false]);
            check_fragments(&fake, &chunks);
            check(&file, &data, &mut rng).await;
            // Each takes three sectors more in the code: about as many of them as that is too much.
            let first = u64::from(chunks[0].sealed.expect("sealed"));
            assert_eq!(first, 100 * (SWITCH as u64).div_ceil(3));
        });
    }
}

/// A caller who says that little comes gets copies at once, and the code when that was not so.
#[test]
fn few_bytes_begin_in_copies() {
    let fake = Fake::new(1, 7);
    run(8, &fake.clone(), Config::default(), |client| async move {
        for (len, in_code) in [(1, false), (8_096, false), (8_097, true), (1 << 40, true)] {
            let path = format!("/{len}");
            let file = client.create(&path, EC42, 0o644, true).await.unwrap();
            let writer = file.append_handle_for_bytes(len).await.unwrap();
            writer.append(&[1; 5000]).await.unwrap();
            writer.close().await.unwrap();
            assert_eq!(forms(&file.chunks().await.unwrap().chunks), [in_code], "{len}");
        }
        let file = client.create("/more", EC42, 0o644, true).await.unwrap();
        let writer = file.append_handle_for_bytes(10).await.unwrap();
        for _ in 0..20 {
            writer.append(&[2; 1 << 20]).await.unwrap();
        }
        writer.close().await.unwrap();
        assert_eq!(forms(&file.chunks().await.unwrap().chunks), [false, true]);
    });
}

/// Where there are no places for the code, none is asked for all the time.
#[test]
fn code_without_places_is_asked_for_now_and_then() {
    let fake = Fake::new(1, 4);
    let changes = run(9, &fake.clone(), Config::default(), |client| async move {
        let file = client.create("/file", EC42, 0o644, true).await.unwrap();
        let writer = file.append_handle().await.unwrap();
        for _ in 0..600 {
            writer.append(&[1; 100_000]).await.unwrap();
            client.env().sleep(Duration::from_millis(100)).await;
        }
        writer.close().await.unwrap();
        assert_eq!(forms(&file.chunks().await.unwrap().chunks), [false]);
        fake.with(|state| state.changes)
    });
    assert!(changes < 20, "{changes} changes in a minute");
}

/// All but one fragment acknowledge: a writer goes on without a server, and its chunk ends soon.
#[test]
fn a_server_that_goes_holds_no_append_up() {
    let fake = Fake::new(1, 8);
    run(7, &fake.clone(), Config::default(), |client| async move {
        let file = client.create("/file", EC42, 0o644, true).await.unwrap();
        let writer = file.append_handle().await.unwrap();
        let piece = bytes(3, 100_000);
        writer.append(&piece).await.unwrap();
        let chunk = file.chunks().await.unwrap().chunks[0].clone();
        let gone = chunk.replicas[1].server.get() as usize;
        kill(&fake, &[gone], Health::Silent);
        let start = client.env().now();
        for _ in 0..10 {
            writer.append(&piece).await.unwrap();
        }
        let took = client.env().now() - start;
        assert!(took < Duration::from_millis(100), "{took:?}");
        for _ in 0..40 {
            client.env().sleep(Duration::from_millis(100)).await;
            writer.append(&piece).await.unwrap();
        }
        writer.close().await.unwrap();
        let chunks = file.chunks().await.unwrap().chunks;
        assert!(chunks.len() > 1);
        let last = chunks.last().unwrap();
        assert!(last.is_coded() && last.replicas.iter().all(|it| it.server.get() as usize != gone));
        let read = file.reader().read_at(0, 51 * piece.len() + 1).await.unwrap();
        assert!(read.len() == 51 * piece.len() && read.chunks(piece.len()).all(|it| it == piece));
    });
}

/// A range of many short rows comes as whole cells, of k fragments together.
#[test]
fn many_short_rows_are_read_together() {
    let fake = Fake::new(1, 6);
    run(17, &fake.clone(), Config::default(), |client| async move {
        let (file, data) = written(&client, EC42, &[5_000; 60]).await;
        let reader = file.reader();
        let reads = || fake.with(|state| state.reads.iter().sum::<u64>());
        assert!(reader.read_at(0, 100).await.unwrap() == data[..100]);
        for at in [0, 100_000, 77] {
            let before = reads();
            assert!(reader.read_at(at, 200_000).await.unwrap() == data[at as usize..][..200_000]);
            assert_eq!(reads() - before, 4);
        }
        // Three shares of two rows.
        let before = reads();
        assert!(reader.read_at(3_000, 3_000).await.unwrap() == data[3_000..6_000]);
        assert_eq!(reads() - before, 3);
    });
}

/// A place that a coded chunk cannot be written at ends the writer, by name.
#[test]
fn a_place_that_lacks_a_fragment_is_refused() {
    let place = |policy: Policy, fragments: &[u8]| {
        let replica = |(at, &fragment): (usize, &u8)| ReplicaPlace {
            server: ServerId::new(at as u32),
            disk: DiskId::new(at as u128),
            addr: ([10, 0, 0, at as u8], 1).into(),
            fragment,
        };
        ChunkPlace {
            chunk: ChunkId::new(1),
            epoch: Epoch::new(1),
            base: 0,
            sealed: None,
            replicas: fragments.iter().enumerate().map(replica).collect(),
            acks: policy.acks,
            token: [0; 16],
            copies: policy.copies,
            data: policy.data,
            compression: None,
        }
    };
    let opens = |place: ChunkPlace| {
        let grant = WriterGrant {
            epoch: place.epoch,
            len: 0,
            current: Some(place),
            spares: vec![],
            rights_ms: None,
        };
        let chase = Rc::new(ChaseBudget::new(1 << 20));
        let opened = Writer::new(WriterConfig::default(), chase, grant, Instant::from_nanos(1));
        opened.map(drop).map_err(|error| format!("{error:?}"))
    };
    let all = |policy: Policy| (0..policy.copies).collect::<Vec<_>>();
    for policy in [EC21, EC42, Policy::ec_strict(4, 2), Policy::ec(12, 4), Policy::ec(2, 4)] {
        assert_eq!(opens(place(policy, &all(policy))), Ok(()), "{policy}");
        let bad = |policy: Policy, fragments: &[u8]| {
            let refused = opens(place(policy, fragments)).unwrap_err();
            assert!(refused.contains("chk_"), "{refused}");
        };
        let mut twice = all(policy);
        twice[0] = 1;
        bad(policy, &twice);
        bad(policy, &all(policy)[1..]);
        twice[0] = policy.copies;
        bad(policy, &twice);
        twice[0] = 255;
        bad(policy, &twice);
        bad(Policy { acks: policy.data, ..policy }, &all(policy));
        bad(Policy { copies: policy.copies + 1, ..policy }, &all(policy));
    }
    assert_eq!(opens(place(Policy::rep(3), &[0, 0, 0])), Ok(()));
    assert!(opens(place(Policy::rep(3), &[0, 1, 2])).is_err());
    assert!(opens(place(Policy::plain(6, 4), &[0; 6])).is_err());
}

/// Short reads ask the fragment that holds the bytes, once it is known how long rows are.
#[test]
fn short_reads_ask_one_fragment() {
    let fake = Fake::new(1, 6);
    run(8, &fake.clone(), Config::default(), |client| async move {
        let (file, data) = written(&client, EC42, &[400_000; 20]).await;
        let reader = file.reader();
        let mut rng = Rng::new(1);
        let reads = || fake.with(|state| state.reads.iter().sum::<u64>());
        let received = || client.totals().received_bytes;
        let (mut requests, mut bytes_received) = (0, 0);
        for number in 0..200 {
            // Within a share of 100,000 bytes.
            let at = rng.below(20 * 4) * 100_000 + rng.below(95_000);
            let before = (reads(), received());
            let read = reader.read_at(at, 4096).await.unwrap();
            assert!(read == data[at as usize..][..4096]);
            let asked = reads() - before.0;
            assert!(asked <= if number == 0 { 2 } else { 1 }, "read {number} asked {asked}");
            requests += asked;
            bytes_received += received() - before.1;
        }
        println!("200 reads of 4096 bytes: {requests} requests, {bytes_received} bytes");
        // The first sector of a cell and those of one or two blocks of 16 KiB.
        assert!(bytes_received <= 200 * 11 * 4096);
        // Over the end of a share: two fragments.
        let before = reads();
        assert!(reader.read_at(98_000, 4096).await.unwrap() == data[98_000..][..4096]);
        assert!(reads() - before <= 3);
    });
}

#[test]
fn short_reads_of_irregular_rows_ask_two_fragments_at_most() {
    let fake = Fake::new(1, 3);
    run(9, &fake.clone(), Config::default(), |client| async move {
        let lens: Vec<usize> = (0..60).map(|at| 30_000 + at * at % 17 * 7_000).collect();
        let (file, data) = written(&client, EC21, &lens).await;
        let reader = file.reader();
        let mut rng = Rng::new(1);
        let reads = || fake.with(|state| state.reads.iter().sum::<u64>());
        let before = reads();
        for _ in 0..200 {
            let at = rng.below(data.len() as u64);
            assert!(reader.read_at(at, 1).await.unwrap() == data[at as usize..][..1]);
        }
        let asked = reads() - before;
        println!("200 reads of 1 byte: {asked} requests");
        assert!(asked <= 400, "{asked}");
    });
}

/// A policy that changes under appends in flight: what was laid out for one kind of chunk is laid out
/// again for the other.
#[test]
fn a_busy_writer_takes_a_code_over_and_leaves_it() {
    let fake = Fake::new(1, 5);
    let mut config = Config::default();
    config.writer.chunk_len_max = 1 << 20;
    run(10, &fake.clone(), config, |client| async move {
        let copies = Policy::rep(3);
        let lz4 = Some(Compression::LZ4);
        let file = client.create("/f", copies, 0o644, true).await.unwrap();
        let writer = file.append_handle().await.unwrap();
        let piece: Vec<u8> = (0..250_000u32).map(|at| (at >> 9) as u8).collect();
        let mut appended = 0;
        let policies = [
            EC21,
            copies,
            EC21.compressed(lz4),
            Policy::ec(3, 2),
            copies.compressed(lz4),
            EC21,
            copies,
        ];
        for policy in policies {
            file.set_policy(policy).await.unwrap();
            for _ in 0..4 {
                let done = join_all((0..8).map(async |_| writer.append(&piece).await)).await;
                assert!(done.iter().all(Result::is_ok), "{done:?}");
                appended += 8 * piece.len();
            }
        }
        writer.close().await.unwrap();
        let chunks = file.chunks().await.unwrap().chunks;
        let mut shapes: Vec<_> = chunks.iter().map(|chunk| (chunk.copies, chunk.data)).collect();
        shapes.dedup();
        assert_eq!(shapes, [(3, 1), (3, 2), (3, 1), (3, 2), (5, 3), (3, 1), (3, 2), (3, 1)]);
        check_fragments(&fake, &chunks);
        let read = file.reader().read_at(0, appended + 1).await.unwrap();
        assert!(read.chunks(piece.len()).all(|part| part == piece) && read.len() == appended);
    });
}

/// Where not every fragment has a place, a chunk is in copies; codes come back with the places.
#[test]
fn chunks_are_in_copies_while_places_are_short() {
    let fake = Fake::new(1, 6);
    let mut config = Config::default();
    config.writer.chunk_len_max = 1 << 20;
    run(11, &fake.clone(), config, |client| async move {
        fake.with(|state| state.no_place.insert(4));
        let file = client.create("/f", EC42, 0o644, true).await.unwrap();
        let writer = file.append_handle().await.unwrap();
        let piece = bytes(1, 300_000);
        for number in 0..40 {
            if number == 16 {
                fake.with(|state| state.no_place.clear());
            }
            writer.append(&piece).await.unwrap();
        }
        writer.close().await.unwrap();
        let chunks = file.chunks().await.unwrap().chunks;
        let mut shapes: Vec<_> =
            chunks.iter().map(|it| (it.replicas.len(), it.acks, it.data)).collect();
        assert!(
            chunks.iter().rev().skip(1).all(|it| it.sealed.unwrap() > 600_000),
            "ends when full"
        );
        shapes.dedup();
        assert_eq!(shapes, [(3, 2, 1), (6, 5, 4)]);
        let read = file.reader().read_at(0, 40 * piece.len()).await.unwrap();
        assert!(read.chunks(piece.len()).all(|part| part == piece));
    });
}

/// Flips a bit of a replica's sector; with a good checksum if `lies`.
fn damage(fake: &Fake, chunk: ChunkId, server: usize, sector: usize, lies: bool) {
    fake.with(|state| {
        let replica = state.replicas.get_mut(&(chunk, server)).unwrap();
        let sector = &mut replica.sectors[sector].1;
        sector[1000] ^= 1;
        if lies {
            let footer = parse_footer(sector).unwrap();
            format_sector(sector, &footer);
        }
    });
}

#[test]
fn damaged_cells_are_decoded_from_others_and_reported() {
    let fake = Fake::new(1, 6);
    let config = Config { read_budget: Duration::from_secs(2), ..Config::default() };
    run(12, &fake.clone(), config, |client| async move {
        let (file, data) = written(&client, EC42, &[400_000, 400_000]).await;
        let chunk = file.chunks().await.unwrap().chunks[0].clone();
        let server = |at: usize| chunk.replicas[at].server.get() as usize;
        let mut rng = Rng::new(3);
        damage(&fake, chunk.chunk, server(1), 3, false);
        check(&file, &data, &mut rng).await;
        let reported = |at: usize| {
            let bad = (chunk.chunk, chunk.replicas[at].server, ReplicaFault::Corrupt);
            fake.with(|state| state.reports.contains(&bad))
        };
        assert!(reported(1) && !reported(0));
        // Others of another row, and one more of the same.
        damage(&fake, chunk.chunk, server(2), 5, false);
        damage(&fake, chunk.chunk, server(0), 30, false);
        damage(&fake, chunk.chunk, server(4), 31, false);
        check(&file, &data, &mut rng).await;
        // More than parity replaces.
        damage(&fake, chunk.chunk, server(5), 4, false);
        let failed = file.reader().read_at(0, 800_000).await.unwrap_err();
        assert_eq!(failed.kind(), Kind::Corrupt, "{failed}");
        let second = file.reader().read_at(400_000, 400_000).await.unwrap();
        assert!(second == data[400_000..]);
    });
}

/// A cell whose sectors have good checksums and that is not what was laid out.
#[test]
fn a_cell_that_lies_is_found_by_the_checksums_of_blocks() {
    let fake = Fake::new(1, 6);
    run(13, &fake.clone(), Config::default(), |client| async move {
        let (file, data) = written(&client, EC42, &[400_000]).await;
        let chunk = file.chunks().await.unwrap().chunks[0].clone();
        let server = |at: usize| chunk.replicas[at].server.get() as usize;
        damage(&fake, chunk.chunk, server(2), 7, true);
        let mut rng = Rng::new(5);
        check(&file, &data, &mut rng).await;
        let bad = (chunk.chunk, chunk.replicas[2].server, ReplicaFault::Corrupt);
        assert!(fake.with(|state| state.reports.contains(&bad)));
        damage(&fake, chunk.chunk, server(2), 7, true);
        // One of parity, while one of data is away.
        damage(&fake, chunk.chunk, server(4), 7, true);
        kill(&fake, &[server(0)], Health::Dead);
        let file = client.open("/file").await.unwrap();
        assert!(file.reader().read_at(0, 400_000).await.unwrap() == data);
    });
}

/// As many cells that lie as there is parity are no loss, whichever they are, of a long row or a short one.
#[test]
fn as_many_cells_that_lie_as_there_is_parity_are_no_loss() {
    for (lens, sector) in [(&[400_000][..], 7), (&[20_000; 20], 6)] {
        for (first, second) in [(0, 1), (1, 3), (2, 5), (0, 4)] {
            let fake = Fake::new(1, 6);
            run(15, &fake.clone(), Config::default(), |client| async move {
                let (file, data) = written(&client, EC42, lens).await;
                let chunk = file.chunks().await.unwrap().chunks[0].clone();
                for at in [first, second] {
                    let server = chunk.replicas[at].server.get() as usize;
                    damage(&fake, chunk.chunk, server, sector, true);
                }
                let read = file.reader().read_at(0, 400_000).await;
                assert!(read.unwrap() == data, "{first} {second}");
                client.env().sleep(Duration::from_secs(1)).await;
                // A master has all rows of the chunk checked for any report.
                let is_bad =
                    |of: &(ChunkId, _, _)| (of.0, of.2) == (chunk.chunk, ReplicaFault::Corrupt);
                assert!(fake.with(|state| state.reports.iter().any(is_bad)), "{first} {second}");
            });
        }
    }
}

/// Cells that give no row are no loss while others may: these are waited for.
#[test]
fn a_cell_that_lies_is_no_loss_while_others_are_away() {
    let fake = Fake::new(1, 6);
    run(14, &fake.clone(), Config::default(), |client| async move {
        let (file, data) = written(&client, EC42, &[400_000]).await;
        let chunk = file.chunks().await.unwrap().chunks[0].clone();
        let server = |at: usize| chunk.replicas[at].server.get() as usize;
        damage(&fake, chunk.chunk, server(2), 7, true);
        kill(&fake, &[server(4), server(5)], Health::Dead);
        let work = async {
            client.env().sleep(Duration::from_millis(700)).await;
            kill(&fake, &[server(5)], Health::Dead);
        };
        let reader = file.reader();
        let (read, ()) = futures_util::future::join(reader.read_at(0, 400_000), work).await;
        assert!(read.unwrap() == data);
        // With all that there are it is one.
        for at in [0, 1] {
            damage(&fake, chunk.chunk, server(at), 7, true);
        }
        kill(&fake, &[], Health::Good);
        let failed = client.open("/file").await.unwrap().reader().read_at(0, 400_000).await;
        assert_eq!(failed.unwrap_err().kind(), Kind::Corrupt);
    });
}

/// A fragment that takes long is not waited for, whether the budget has a token for a backup read or
/// not.
#[test]
fn a_slow_fragment_is_passed_over() {
    for burst in [64, 0] {
        let fake = Fake::new(1, 6);
        let mut config = Config::default();
        config.backup.burst = burst;
        run(18, &fake.clone(), config, |client| async move {
            let (file, data) = written(&client, EC42, &[400_000; 3]).await;
            let chunk = file.chunks().await.unwrap().chunks[0].clone();
            let slow = chunk.replicas[1].server.get() as usize;
            fake.with(|state| state.slow_us[slow] = 400_000);
            let mut longest = Duration::ZERO;
            for (at, len) in [(0, 1_200_000), (120_000, 4096), (1, 400_000), (530_000, 100_000)] {
                let reader = client.open("/file").await.unwrap().reader();
                let start = client.env().now();
                assert!(reader.read_at(at, len).await.unwrap() == data[at as usize..][..len]);
                longest = longest.max(client.env().now() - start);
            }
            println!("burst {burst}: {longest:?}");
            let most = if burst > 0 { 20 } else { 120 };
            assert!(longest < Duration::from_millis(most), "{longest:?}");
            assert_eq!(client.totals().backup_reads > 0, burst > 0);
        });
    }
}

/// Where a fragment is gone from its place, others are asked, and then the stream service.
#[test]
fn a_fragment_that_is_gone_is_not_asked_again_for_each_read() {
    let fake = Fake::new(1, 6);
    run(19, &fake.clone(), Config::default(), |client| async move {
        let (file, data) = written(&client, EC42, &[400_000; 3]).await;
        let chunk = file.chunks().await.unwrap().chunks[0].clone();
        let gone = chunk.replicas[0].server.get() as usize;
        fake.with(|state| state.replicas.remove(&(chunk.chunk, gone)));
        let reader = file.reader();
        assert!(reader.read_at(0, data.len()).await.unwrap() == data);
        let asked = |fake: &Fake| fake.with(|state| (state.reads[gone], state.locates));
        let before = asked(&fake);
        for at in 0..20 {
            let at = at * 60_000;
            assert!(reader.read_at(at, 5_000).await.unwrap() == data[at as usize..][..5_000]);
        }
        let after = asked(&fake);
        assert!(after.0 == before.0 && after.1 <= before.1 + 1, "{before:?} {after:?}");
    });
}

/// Busy servers are asked again.
#[test]
fn fragments_of_busy_servers_are_waited_for() {
    let fake = Fake::new(1, 6);
    run(20, &fake.clone(), Config::default(), |client| async move {
        let (file, data) = written(&client, EC42, &[400_000]).await;
        fake.with(|state| state.busy.fill(true));
        let work = async {
            client.env().sleep(Duration::from_millis(700)).await;
            fake.with(|state| state.busy.fill(false));
        };
        let reader = file.reader();
        let (read, ()) = futures_util::future::join(reader.read_at(7, 300_000), work).await;
        assert!(read.unwrap() == data[7..300_007]);
    });
}

/// A reader beside the writer sees all that was acknowledged, also what a fragment does not have yet.
#[test]
fn the_tail_is_read_without_a_fragment_that_lags() {
    let fake = Fake::new(1, 6);
    let mut config = Config::default();
    // No replica is left, and the chunk does not end.
    config.writer.chase_for = Duration::from_secs(60);
    config.writer.replica_timeout = Duration::from_secs(60);
    config.writer.stuck_timeout = Duration::from_secs(60);
    run(14, &fake.clone(), config, |client| async move {
        let file = client.create("/file", EC42, 0o644, true).await.unwrap();
        let writer = file.append_handle().await.unwrap();
        let piece = bytes(4, 50_000);
        writer.append(&piece).await.unwrap();
        let chunk = file.chunks().await.unwrap().chunks[0].clone();
        let late = chunk.replicas[1].server.get() as usize;
        for (number, health) in [Health::Silent, Health::Dead].into_iter().enumerate() {
            kill(&fake, &[late], health);
            for _ in 0..5 {
                writer.append(&piece).await.unwrap();
            }
            let len = (1 + 5 * (number + 1)) * piece.len();
            let reader = client.open("/file").await.unwrap().reader();
            let read = reader.read_at(0, len + 1).await.unwrap();
            assert!(read.len() == len && read.chunks(piece.len()).all(|part| part == piece));
            assert_eq!(reader.refresh_len().await.unwrap(), len as u64);
            let part = reader.read_at(len as u64 - 40_000, 30_000).await.unwrap();
            assert!(part == piece[10_000..40_000]);
        }
    });
}

/// What one fragment shows is read from others, which hold it and were not notified.
#[test]
fn what_one_fragment_shows_all_give() {
    let fake = Fake::new(1, 3);
    let mut config = Config::default();
    config.writer.commit_idle = Duration::from_secs(60);
    run(15, &fake.clone(), config, |client| async move {
        let file = client.create("/file", EC21, 0o644, true).await.unwrap();
        let writer = file.append_handle().await.unwrap();
        let piece = bytes(4, 50_000);
        writer.append(&piece).await.unwrap();
        writer.append(&piece).await.unwrap();
        let chunk = file.chunks().await.unwrap().chunks[0].clone();
        for at in [2, 0] {
            let server = chunk.replicas[at].server.get() as usize;
            fake.with(|state| {
                state.replicas.values_mut().for_each(|replica| replica.committed = 0);
                state.replicas.get_mut(&(chunk.chunk, server)).unwrap().committed = 50_000;
            });
            // All hold the second one, and none shows it.
            let reader = client.open("/file").await.unwrap().reader();
            assert!(reader.read_shown(0, 100_000).await.unwrap() == piece);
            assert!(reader.read_shown(0, 400_000).await.unwrap() == piece);
            // Nor more when the one is gone that showed it.
            kill(&fake, &[server], Health::Dead);
            assert!(reader.read_shown(0, 400_000).await.unwrap() == piece);
            kill(&fake, &[], Health::Good);
        }
    });
}

/// The longest row of a code with more parity than data is wider than the smallest window.
#[test]
fn a_row_that_is_wider_than_the_window_is_admitted() {
    let fake = Fake::new(1, 6);
    let config = Config { window_bytes: 0, ..Config::default() }.clamped();
    run(16, &fake.clone(), config, |client| async move {
        let (file, data) = written(&client, Policy::ec(2, 4), &[1_036_288; 3]).await;
        assert!(file.reader().read_at(0, data.len()).await.unwrap() == data);
    });
}
