//! Every decoder of bytes from a disk or the network, as a function over bytes (`docs/fuzzing.md`),
//! with a mutator that needs no instrumentation.

use std::hash::BuildHasher;
use std::panic::catch_unwind;
use std::path::Path;
use std::rc::Rc;
use std::time::Instant;

use base::{ClusterId, FixedState};
use runtime::sim::Sim;
use runtime::{Class, Duration, Env, Rng, Stream};
use transport::{Endpoint, Identity, Incoming, Limits, Response};
use wire::frame::{FrameKind, HEADER, Header, Priority, Service};
use wire::handshake::{ClusterKey, Hello, Side, Transcript};

/// A decoder.
#[derive(Clone, Copy)]
pub struct Target {
    /// Its name: also that of its binary in `fuzz/`.
    pub name: &'static str,
    /// Takes any bytes: no panic, no memory beyond a multiple of theirs.
    pub run: fn(&[u8]),
    /// Place of its corpus, from the root of the tree: a folder, or a folder with the start of the
    /// files' names.
    pub corpus: &'static str,
}

/// A target by its name, function and corpus.
pub const fn target(name: &'static str, run: fn(&[u8]), corpus: &'static str) -> Target {
    Target { name, run, corpus }
}

/// All of them but those of the binary's own files, which are in its tests.
pub const TARGETS: &[Target] = &[
    target("frame_header", wire::frame::fuzz_header, "crates/transport/tests/corpus/header"),
    target("hello", wire::handshake::fuzz_hello, "crates/transport/tests/corpus/hello"),
    target("data_request", wire::data_codec::fuzz_request, "crates/transport/tests/corpus/request"),
    target("data_answer", wire::data_codec::fuzz_answer, "crates/transport/tests/corpus/answer"),
    target("sector", wire::row::fuzz_sector, "crates/sim/corpus/sector"),
    target("token", wire::token::fuzz_token, "crates/sim/corpus/token"),
    target("control", wire::control::fuzz_control, "crates/wire/corpus/control/"),
    target("stream", fuzz_stream, "crates/sim/corpus/stream-"),
    target(
        "superblock",
        chunkstore::fuzz::fuzz_superblock,
        "crates/chunkstore/tests/corpus/superblock",
    ),
    target(
        "log_block",
        chunkstore::fuzz::fuzz_log_block,
        "crates/chunkstore/tests/corpus/log_block",
    ),
    target("records", chunkstore::fuzz::fuzz_records, "crates/chunkstore/tests/corpus/records"),
    target(
        "checkpoint",
        chunkstore::fuzz::fuzz_checkpoint,
        "crates/chunkstore/tests/corpus/checkpoint",
    ),
    target("index", chunkstore::fuzz::fuzz_index, "crates/chunkstore/tests/corpus/index"),
    target("raft_log", master_consensus::fuzz_log, "crates/sim/corpus/raft_log"),
    target("raft_message", master_consensus::fuzz_message, "crates/sim/corpus/raft_message"),
    target(
        "peer_message",
        master_consensus::peers::fuzz_peer_message,
        "crates/sim/corpus/peer_message",
    ),
    target("identity", master::identity::fuzz_identity, "crates/sim/corpus/identity"),
    target(
        "namespace_command",
        master_namespace::fuzz_command,
        "crates/sim/corpus/namespace_command",
    ),
    target("namespace_row", master_namespace::fuzz_row, "crates/sim/corpus/namespace_row"),
    target(
        "namespace_question",
        master_namespace::fuzz_question,
        "crates/sim/corpus/namespace_question",
    ),
    target("cluster_command", master::cluster::fuzz_command, "crates/sim/corpus/cluster_command"),
    target(
        "cluster_snapshot",
        master::cluster::fuzz_snapshot,
        "crates/sim/corpus/cluster_snapshot",
    ),
    target("stream_command", master_stream::fuzz_command, "crates/sim/corpus/stream_command"),
    target("stream_rows", master_stream::fuzz_rows, "crates/sim/corpus/stream_rows"),
    target(
        "nbd_greeting",
        block_nbd::fuzz::fuzz_greeting,
        "crates/block-nbd/tests/corpus/greeting",
    ),
    target("nbd_hello", block_nbd::fuzz::fuzz_hello, "crates/block-nbd/tests/corpus/hello"),
    target("nbd_option", block_nbd::fuzz::fuzz_option, "crates/block-nbd/tests/corpus/option"),
    target("nbd_reply", block_nbd::fuzz::fuzz_reply, "crates/block-nbd/tests/corpus/reply"),
    target("nbd_request", block_nbd::fuzz::fuzz_request, "crates/block-nbd/tests/corpus/request"),
    target(
        "nbd_simple_reply",
        block_nbd::fuzz::fuzz_simple_reply,
        "crates/block-nbd/tests/corpus/simple_reply",
    ),
    target(
        "nbd_common_names",
        block_nbd::fuzz::fuzz_common_names,
        "crates/block-nbd/tests/corpus/common_names/",
    ),
    target("nbd_chunk", block_nbd::fuzz::fuzz_chunk, "crates/block-nbd/tests/corpus/chunk"),
    target("table_manifest", table::fuzz::fuzz_manifest, "crates/table/tests/corpus/"),
    target("table_changes", table::fuzz::fuzz_changes, "crates/table/tests/corpus/"),
    target(
        "object_key",
        object_index::fuzz::fuzz_object_key,
        "crates/object-index/tests/corpus/key-",
    ),
    target(
        "object_row",
        object_index::fuzz::fuzz_object_row,
        "crates/object-index/tests/corpus/row-",
    ),
    target(
        "object_piece",
        object_index::fuzz::fuzz_object_piece,
        "crates/object-index/tests/corpus/piece",
    ),
    target(
        "object_message",
        object_proto::fuzz::fuzz_object_message,
        "crates/object-proto/tests/corpus/message-",
    ),
    target(
        "device_file",
        block_segment::fuzz::fuzz_data_file,
        "crates/block-segment/tests/corpus/device_file",
    ),
    target(
        "device_record_head",
        block_segment::fuzz::fuzz_record_head,
        "crates/block-segment/tests/corpus/device_record_head",
    ),
    target(
        "device_page",
        block_segment::fuzz::fuzz_page,
        "crates/block-segment/tests/corpus/device_page",
    ),
    target(
        "device_txn",
        block_segment::fuzz::fuzz_txn,
        "crates/block-segment/tests/corpus/device_txn",
    ),
    target(
        "device_state",
        block_segment::fuzz::fuzz_state,
        "crates/block-segment/tests/corpus/device_state",
    ),
    target(
        "device_origins",
        block_segment::fuzz::fuzz_origins,
        "crates/block-segment/tests/corpus/device_origins",
    ),
    target(
        "device_name",
        block_segment::fuzz::fuzz_name,
        "crates/block-segment/tests/corpus/device_name",
    ),
    target("volume_diff", block_volume::diff::fuzz_diff, "crates/block-volume/tests/corpus/diff"),
    target(
        "manager_row",
        block_manager::fuzz::fuzz_manager_row,
        "crates/block-manager/tests/corpus/manager_row/",
    ),
    target(
        "block_request",
        block_proto::fuzz_request,
        "crates/block-proto/tests/corpus/block_request",
    ),
    target(
        "block_answer",
        block_proto::fuzz_answer,
        "crates/block-proto/tests/corpus/block_answer",
    ),
    target("stored_block", codec::fuzz::fuzz_block, "crates/codec/tests/corpus/block-"),
    target("cell_head", codec::fuzz::fuzz_cell_head, "crates/codec/tests/corpus/cell-"),
    target("row_cells", codec::fuzz::fuzz_row, "crates/codec/tests/corpus/row-"),
    target("erasure_sets", codec::fuzz::fuzz_erasure, "crates/codec/tests/corpus/erasure-"),
    target("block_control", block_proto::fuzz_control, "crates/block-proto/tests/corpus/control/"),
];

/// The corpus of a target: the files whose paths start with `corpus` below `root`.
fn seeds(root: &Path, corpus: &str) -> std::io::Result<Vec<Vec<u8>>> {
    let (folder, start) = corpus.rsplit_once('/').unwrap_or(("", corpus));
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(root.join(folder))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with(start) && path.is_file() {
            paths.push(path);
        }
    }
    paths.sort();
    paths.into_iter().map(std::fs::read).collect()
}

/// Runs `targets` over their corpora and over changed copies of them. `CRATON_FUZZ_S` gives each so
/// many seconds (`cargo xtask fuzz`), `CRATON_FUZZ_TARGET` picks one, `CRATON_FUZZ_SEED` changes the
/// copies; without them it is a replay, the same each time. Panics at the first failure, whose input
/// is left behind as a file. False when none of them is the one that was picked.
#[expect(clippy::disallowed_methods, reason = "a budget of real time")]
pub fn run(targets: &[Target]) -> bool {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let budget = number("CRATON_FUZZ_S").map(std::time::Duration::from_secs);
    let only = std::env::var("CRATON_FUZZ_TARGET").ok();
    let mut rng = Rng::new(number("CRATON_FUZZ_SEED").unwrap_or(1));
    let mut found = false;
    for target in targets.iter().filter(|one| only.as_deref().is_none_or(|name| name == one.name)) {
        found = true;
        let seeds = seeds(&root, target.corpus).expect("the corpus is committed");
        assert!(!seeds.is_empty(), "{} has no corpus in {}", target.name, target.corpus);
        seeds.iter().for_each(|seed| target.check(&root, seed));
        target.check(&root, &[]);
        let (started, mut count) = (Instant::now(), 0);
        // A world of its own takes longer than a decoder.
        let replay = if target.name == "stream" { 20 } else { 300 };
        while budget.map_or(count < replay, |budget| started.elapsed() < budget) {
            target.check(&root, &mutate(&mut rng, &seeds));
            count += 1;
        }
        println!("{:<20} {:>3} seeds, {count} changed copies", target.name, seeds.len());
    }
    found
}

impl Target {
    fn check(&self, root: &Path, input: &[u8]) {
        if catch_unwind(|| (self.run)(input)).is_ok() {
            return;
        }
        let folder = root.join("target/fuzz-failures");
        let hash = FixedState.hash_one(input);
        let path = folder.join(format!("{}-{hash:016x}", self.name));
        let kept = std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(&path, input));
        let kept = kept.map_or_else(|error| error.to_string(), |()| path.display().to_string());
        let (name, corpus) = (self.name, self.corpus);
        panic!("{name} fails on {} bytes: {kept}; add them to {corpus}", input.len());
    }
}

/// Bytes of a mutated input at most.
const INPUT_MAX: usize = 64 << 10;

/// A changed copy of one of `seeds`, or of several.
pub fn mutate(rng: &mut Rng, seeds: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = if seeds.is_empty() { Vec::new() } else { rng.pick(seeds).clone() };
    for _ in 0..rng.between(1, 5) {
        let len = bytes.len() as u64;
        let at = rng.below(len + 1) as usize;
        match rng.below(9) {
            0 | 1 if at < bytes.len() => bytes[at] ^= 1 << rng.below(8),
            2 if at < bytes.len() => bytes[at] = *rng.pick(&[0, 1, 0x7f, 0x80, 0xfe, 0xff]),
            3 => {
                // A number at some width, near a power of two or a bound.
                let number =
                    (1u64 << rng.below(64)).wrapping_add(rng.between(0, 2)).wrapping_sub(1);
                let width = *rng.pick(&[2, 4, 8]);
                for (byte, new) in bytes[at..].iter_mut().zip(&number.to_le_bytes()[..width]) {
                    *byte = *new;
                }
            }
            4 => {
                let fresh: Vec<u8> =
                    (0..rng.between(1, 16)).map(|_| rng.next_u64() as u8).collect();
                drop(bytes.splice(at..at, fresh));
            }
            5 => {
                let end = at + rng.below(len - at as u64 + 1) as usize;
                drop(bytes.drain(at..end));
            }
            6 => {
                let end = at + rng.below((len - at as u64 + 1).min(64)) as usize;
                let again = bytes[at..end].to_vec();
                drop(bytes.splice(at..at, again));
            }
            7 if !seeds.is_empty() => {
                let other = rng.pick(seeds);
                bytes.truncate(at);
                bytes.extend_from_slice(&other[rng.below(other.len() as u64 + 1) as usize..]);
            }
            _ => bytes.truncate(at),
        }
    }
    bytes.truncate(INPUT_MAX);
    bytes
}

/// A listening endpoint gets what `bytes` make: frames with valid checksums and odd fields, bytes
/// that are no frames, in pieces of odd sizes, before and after a handshake. It must not panic, and
/// must serve the next peer.
pub fn fuzz_stream(bytes: &[u8]) {
    let sim = Sim::new(1);
    let (server, peer) = (sim.add_host("server"), sim.add_host("peer"));
    let addr = sim.addr(server, 7000);
    let identity = |name: &str| Identity {
        cluster: ClusterId::new(7),
        key: Some(key()),
        name: name.to_owned(),
    };
    let bytes = bytes.to_vec();
    let world = sim.clone();
    let served = sim.run(async move {
        let env = world.boot(server);
        let listening = Endpoint::new(&env, identity("server"), Limits::default());
        let handler = Rc::new(|incoming: Incoming| {
            let body = incoming.request.body;
            incoming.reply.send(Response { status: 0, body, payload: incoming.request.payload });
        });
        let task = env.spawn(Class::Foreground, "listen", async move {
            listening.listen(addr, handler).await.map(|_| listening)
        });
        let Ok(Ok(_listening)) = task.await else { return false };
        let env = world.boot(peer);
        let own = env.clone();
        let task = env.spawn(Class::Foreground, "peer", async move {
            if let Ok(mut stream) = own.connect(addr).await {
                if bytes.first().is_some_and(|first| first & 1 == 0) {
                    admit(&own, &mut stream).await;
                }
                for piece in pieces(&bytes) {
                    let Ok(buf) = own.pool().copy_of(&piece) else { break };
                    if stream.write.write_all(vec![buf]).await.is_err() {
                        break;
                    }
                    own.sleep(Duration::from_micros(20)).await;
                }
                own.sleep(Duration::from_millis(5)).await;
            }
            let calling = Endpoint::new(&own, identity("peer"), Limits::default());
            let request = transport::Request {
                service: Service::CONTROL,
                op: 1,
                priority: Priority::Foreground,
                flow: 0,
                trace: own.trace(),
                token: transport::Token::NONE,
                body: vec![7],
                payload: None,
            };
            let answer = calling.call(addr, request, Duration::from_secs(5)).await;
            answer.is_ok_and(|answer| answer.body == [7])
        });
        task.await.unwrap_or(false)
    });
    assert_eq!(served.ok(), Some(true), "the endpoint serves the next peer");
}

fn key() -> ClusterKey {
    ClusterKey::new([3; 32])
}

/// Offset of the checksum of a frame's header.
const CRC_AT: usize = HEADER - 4;

/// The peer's side of a handshake, as far as the other goes along.
async fn admit(env: &Env, stream: &mut Stream) {
    let frame = |kind: FrameKind, body: &[u8]| {
        let mut header = Header { body_len: body.len() as u32, ..Header::empty(kind) };
        header.body_crc = header.content_crc(body, &[]);
        [&header.encode()[..], body].concat()
    };
    let own = Hello::new(ClusterId::new(7), true, [5; 32], "odd").encode();
    let Ok(buf) = env.pool().copy_of(&frame(FrameKind::Hello, &own)) else { return };
    let _ = stream.write.write_all(vec![buf]).await; // A broken link answers nothing below.
    let mut got = Vec::new();
    let mut frames: Vec<Vec<u8>> = Vec::new();
    while frames.len() < 2 {
        let Ok(buf) = env.pool().alloc(4096) else { return };
        let (Ok(count @ 1..), buf) = stream.read.read(buf, 0).await else { return };
        got.extend_from_slice(&buf[..count]);
        while let Ok(header) = Header::decode(&got) {
            let end = HEADER + header.following();
            if got.len() < end {
                break;
            }
            frames.push(got.drain(..end).skip(HEADER).collect());
        }
    }
    let transcript = Transcript { connecting: &own, accepting: &frames[0] };
    let proof = frame(FrameKind::Proof, &transcript.prove(&key(), Side::Connecting));
    let Ok(buf) = env.pool().copy_of(&proof) else { return };
    let _ = stream.write.write_all(vec![buf]).await;
}

/// The bytes to be sent: each order of 8 bytes makes a frame or raw bytes; then all of it is cut
/// into pieces. The first byte decides how large, and whether there is a handshake before.
fn pieces(bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    let Some((&first, mut rest)) = bytes.split_first() else { return Vec::new() };
    const KINDS: [FrameKind; 11] = [
        FrameKind::Hello,
        FrameKind::Proof,
        FrameKind::Welcome,
        FrameKind::Refuse,
        FrameKind::Request,
        FrameKind::Response,
        FrameKind::Part,
        FrameKind::Cancel,
        FrameKind::Ping,
        FrameKind::Pong,
        FrameKind::Credit,
    ];
    while let Some((order, tail)) = rest.split_first_chunk::<8>() {
        let [kind, flags, op, request, body, payload, deadline, content] = *order;
        let content = &tail[..tail.len().min(usize::from(content))];
        rest = &tail[content.len()..];
        if flags & 0x80 != 0 {
            out.extend_from_slice(content);
            continue;
        }
        let kind = KINDS[usize::from(kind) % KINDS.len()];
        let message = matches!(kind, FrameKind::Request | FrameKind::Response);
        let service = Service::new(1 + (flags & 3)).expect("a number in range");
        // Lengths that fit what follows, and some that do not.
        let whole = content.len().min(usize::from(body));
        let (body_len, payload_len) = match kind {
            FrameKind::Part if payload & 1 == 1 => (0, usize::from(payload) << 8),
            FrameKind::Part => (whole.max(1), 0),
            _ if message && payload & 1 == 1 => (whole, usize::from(payload) << 10),
            _ if message && payload & 2 == 2 => (usize::from(body) << 10, 0),
            _ => (whole, 0),
        };
        let mut header = Header {
            service: message.then_some(service),
            priority: Priority::ALL[usize::from(flags >> 2) % Priority::ALL.len()],
            split: message && flags & 0x10 != 0,
            sectors: flags & 0x20 != 0,
            op: u16::from(op),
            request: u64::from(request % 4),
            deadline_us: u32::from(deadline) * 1000,
            body_len: body_len as u32,
            payload_len: payload_len as u32,
            ..Header::empty(kind)
        };
        let cut = body_len.min(content.len());
        header.body_crc = header.content_crc(&content[..cut], &content[cut..]);
        let mut bytes = header.encode();
        if flags & 0x40 != 0 {
            // A field that no encoder writes, under a checksum that holds.
            bytes[usize::from(op) % CRC_AT] ^= body | 1;
            let crc = codec::crc32c(&bytes[..CRC_AT]);
            bytes[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        }
        out.extend_from_slice(&bytes);
        out.extend_from_slice(content);
    }
    let size = 1 + usize::from(first >> 1);
    out.chunks(size.max(out.len() / 200)).map(<[u8]>::to_vec).collect()
}
