//! Policies of directories and files (decision 78), against a cluster in memory.

use base::{ChunkId, Kind};
use client::{Client, Config, Inherited};
use codec::block::{BlockSize, Codec};
use futures_util::future::join_all;
use runtime::Duration;
use wire::control::{ChunkPlace, Compression, Node, Policy};
use wire::sector::{SectorKind, parse_footer};

use crate::cluster::{bytes, run};
use crate::fake::Fake;

const DEFAULT: Policy = Policy::rep(3);

async fn set(client: &Client, path: &str, policy: Option<Policy>) {
    client.set_dir_policy(path, policy).await.unwrap();
}

/// The policy of a file that is made at `path`, and goes.
async fn made(client: &Client, path: &str) -> Policy {
    let file = client.create_inherited(path, DEFAULT, 0o644, true).await.unwrap();
    client.unlink(path).await.unwrap();
    file.policy()
}

#[test]
fn a_file_inherits_from_the_nearest_directory_with_a_policy() {
    let fake = Fake::new(1, 5);
    run(1, &fake.clone(), Config::default(), |client| async move {
        client.mkdir_all("/a/b/c", 0o755).await.unwrap();
        client.mkdir_all("/other/place", 0o755).await.unwrap();
        assert_eq!(made(&client, "/a/b/c/f").await, DEFAULT);
        assert_eq!(client.dir_policy("/a/b").await.unwrap(), None);

        set(&client, "/", Some(Policy::rep(1))).await;
        set(&client, "/a", Some(Policy::rep(5))).await;
        assert_eq!(made(&client, "/f").await, Policy::rep(1));
        assert_eq!(made(&client, "/other/place/f").await, Policy::rep(1));
        assert_eq!(made(&client, "/a/f").await, Policy::rep(5));
        assert_eq!(made(&client, "/a/b/c/f").await, Policy::rep(5));
        let shown = client.dir_policy("/a/b/../b/c").await.unwrap();
        assert_eq!(shown, Some(Inherited { policy: Policy::rep(5), set_on: "/a".to_owned() }));
        let root = client.dir_policy("/").await.unwrap().unwrap();
        assert_eq!((root.policy, root.set_on.as_str()), (Policy::rep(1), "/"));

        // The way there counts as it is without links, and the nearest directory first.
        set(&client, "/a/b/c", Some(Policy::strict(3))).await;
        client.symlink("/a/b", "/other/link", 0o777).await.unwrap();
        client.symlink("../a/b/c", "/other/low", 0o777).await.unwrap();
        assert_eq!(made(&client, "/other/link/f").await, Policy::rep(5));
        assert_eq!(made(&client, "/other/link/c/f").await, Policy::strict(3));
        assert_eq!(made(&client, "/other/low/f").await, Policy::strict(3));
        assert_eq!(made(&client, "/a/b/c/../../../other/f").await, Policy::rep(1));
        assert_eq!(client.dir_policy("/other/low").await.unwrap().unwrap().set_on, "/a/b/c");

        // It moves with its directory; what is inherited comes from the new place.
        client.rename("/a/b", "/other/place/b", false).await.unwrap();
        assert_eq!(made(&client, "/other/place/b/f").await, Policy::rep(1));
        assert_eq!(made(&client, "/other/place/b/c/f").await, Policy::strict(3));
        set(&client, "/other/place/b/c", None).await;
        assert_eq!(made(&client, "/other/place/b/c/f").await, Policy::rep(1));
        set(&client, "/", None).await;
        assert_eq!(made(&client, "/other/place/b/c/f").await, DEFAULT);

        // Asked for by name, and where it is there already: nothing is inherited.
        let asked = client.create("/a/f", Policy::rep(2), 0o644, true).await.unwrap();
        assert_eq!(asked.policy(), Policy::rep(2));
        let there = client.create_inherited("/a/f", DEFAULT, 0o644, false).await.unwrap();
        assert_eq!(there.policy(), Policy::rep(2));
        for bad in [Policy::plain(6, 4), Policy { acks: 4, ..Policy::ec(4, 2) }, Policy::ec(13, 1)]
        {
            let refused = client.set_dir_policy("/a", Some(bad)).await.unwrap_err();
            assert!(refused.to_string().contains("no policy"), "{refused}");
        }
        for path in ["/none", "/none/f"] {
            let missing = client.set_dir_policy(path, None).await.unwrap_err();
            assert_eq!(missing.kind(), Kind::NotFound, "{path}");
        }
        assert_eq!(client.dir_policy("/a/f").await.unwrap_err().kind(), Kind::Invalid);
    });
}

#[test]
fn a_hidden_directory_gets_no_policy() {
    let fake = Fake::new(1, 3);
    let config = Config { hidden: Some("kept"), ..Config::default() };
    run(2, &fake.clone(), config, |client| async move {
        let refused = client.set_dir_policy("/kept/x", Some(Policy::rep(1))).await;
        assert_eq!(refused.unwrap_err().kind(), Kind::NotFound);
        let refused = client.create_inherited("/kept", DEFAULT, 0o644, true).await.unwrap_err();
        assert!(refused.to_string().contains("kept from this client"), "{refused}");
    });
}

#[test]
fn chunks_behind_a_set_policy_have_it_and_those_before_keep_theirs() {
    let mut config = Config::default();
    config.writer.chunk_len_max = 1 << 20;
    // All five servers are wanted for five copies, also one that was late before.
    config.writer.avoid_for = Duration::ZERO;
    let fake = Fake::new(3, 5);
    run(3, &fake.clone(), config, |client| async move {
        client.mkdir("/d", 0o755).await.unwrap();
        let file = client.create_inherited("/d/f", DEFAULT, 0o644, true).await.unwrap();
        assert_eq!(file.policy_now().await.unwrap(), DEFAULT);
        let writer = file.append_handle().await.unwrap();
        let piece = bytes(7, 300 << 10);
        let mut appended = 0;
        let write = async |pieces: usize| {
            for _ in 0..pieces {
                writer.append(&piece).await.unwrap();
            }
            pieces * piece.len()
        };
        appended += write(4).await;
        file.set_policy(Policy::rep(1)).await.unwrap();
        assert_eq!(file.policy_now().await.unwrap(), Policy::rep(1));
        let Node::File { policy, .. } = client.lookup("/d/f").await.unwrap().node else {
            panic!("a file")
        };
        assert_eq!(policy, Policy::rep(1), "recorded for lists");
        appended += write(20).await;
        file.set_policy(Policy::strict(5)).await.unwrap();
        appended += write(20).await;
        writer.close().await.unwrap();

        let shape = |chunk: &ChunkPlace| (chunk.copies, chunk.acks, chunk.replicas.len());
        let mut shapes: Vec<_> = file.chunks().await.unwrap().chunks.iter().map(shape).collect();
        shapes.dedup();
        assert_eq!(shapes, [(3, 2, 3), (1, 1, 1), (5, 5, 5)]);
        let read = file.reader().read_at(0, appended + 1).await.unwrap();
        assert!(read.chunks(piece.len()).all(|part| part == piece) && read.len() == appended);
    });
}

/// Whether a chunk has rows, or plain sectors: all its sectors have the same.
fn has_rows(fake: &Fake, chunk: ChunkId) -> bool {
    fake.with(|state| {
        let replicas = state.replicas.iter().filter(|((of, _), _)| *of == chunk);
        let sectors = replicas.flat_map(|(_, replica)| &replica.sectors);
        let is_row =
            |sector: &[u8]| matches!(parse_footer(sector).unwrap().kind, SectorKind::Row(_));
        let mut rows: Vec<_> = sectors.map(|(_, sector)| is_row(sector)).collect();
        rows.dedup();
        assert_eq!(rows.len(), 1, "{chunk}");
        rows[0]
    })
}

/// A busy writer takes a compression over at the ends of chunks; no chunk holds rows and plain sectors.
#[test]
fn a_writer_compresses_as_its_files_policy_says() {
    let fake = Fake::new(1, 5);
    let mut config = Config::default();
    config.writer.chunk_len_max = 1 << 20;
    run(5, &fake.clone(), config, |client| async move {
        let file = client.create("/f", DEFAULT, 0o644, true).await.unwrap();
        let writer = file.append_handle().await.unwrap();
        let piece: Vec<u8> = (0..300u32 << 10).map(|at| (at >> 9) as u8).collect();
        let lz4 = Some(Compression::LZ4);
        let zstd = Some(Compression { codec: Codec::Zstd, block: BlockSize::new(16).unwrap() });
        let mut appended = 0;
        for compression in [None, lz4, zstd, None] {
            let policy = DEFAULT.compressed(compression);
            file.set_policy(policy).await.unwrap();
            assert_eq!(file.policy_now().await.unwrap(), policy);
            for _ in 0..4 {
                let done = join_all((0..8).map(async |_| writer.append(&piece).await)).await;
                assert!(done.iter().all(Result::is_ok), "{done:?}");
                appended += 8 * piece.len();
            }
        }
        writer.close().await.unwrap();

        let chunks = file.chunks().await.unwrap().chunks;
        let mut shapes: Vec<_> = chunks.iter().map(|chunk| chunk.compression).collect();
        shapes.dedup();
        assert_eq!(shapes, [None, lz4, zstd, None]);
        // What was laid out before the answer goes into the chunk that follows as it is.
        let mut have_rows: Vec<_> = chunks.iter().map(|it| has_rows(&fake, it.chunk)).collect();
        have_rows.dedup();
        assert_eq!(have_rows, [false, true, false]);
        let read = file.reader().read_at(0, appended + 1).await.unwrap();
        assert!(read.chunks(piece.len()).all(|part| part == piece) && read.len() == appended);
    });
}

#[test]
fn a_policy_that_is_set_before_the_first_writer_is_the_one_it_gets() {
    let fake = Fake::new(1, 5);
    run(4, &fake.clone(), Config::default(), |client| async move {
        let early = client.create("/f", DEFAULT, 0o644, true).await.unwrap();
        client.open("/f").await.unwrap().set_policy(Policy::rep(1)).await.unwrap();
        // What it knows of the policy is from before.
        let writer = early.append_handle().await.unwrap();
        writer.append(b"first").await.unwrap();
        writer.close().await.unwrap();
        assert_eq!(early.chunks().await.unwrap().chunks[0].copies, 1);
    });
}
