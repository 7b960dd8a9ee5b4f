//! Every decoder: valid values come back, arbitrary bytes never panic. The corpus in `tests/corpus`
//! is replayed; each file's name starts with its fuzz target's.

use base::limits::APPEND_DATA_MAX;
use base::{ChunkId, ClusterId, DiskId, Epoch, TraceId};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use runtime::sim::Sim;
use transport::{Limits, Priority, Service, Token};
use wire::data::{
    AppendRequest, ChunkRef, CommitRequest, DataError, DataReply, DataRequest, FenceRequest,
    Purpose, ReadRequest, ReplicaStat, ReplicaState, SealRequest,
};
use wire::data_codec::{decode_answer, encode_answer, fuzz_answer, fuzz_request};
use wire::frame::{FrameError, FrameKind, HEADER, Header, fuzz_header};
use wire::handshake::{ClusterKey, Hello, Side, Transcript, fuzz_hello};
use wire::token::{FixedClocks, Issuer, IssuerTime, Rights, TokenError, TokenKey, TokenVerifier};

use crate::harness::{OP_ECHO, Raw, key, millis, request, start};

/// `CRATON_WRITE_CORPUS=1` writes the corpus again.
#[test]
fn the_corpus_is_written_on_request() {
    if std::env::var_os("CRATON_WRITE_CORPUS").is_none() {
        return;
    }
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/corpus");
    std::fs::create_dir_all(folder).expect("writable");
    let write = |name: &str, bytes: &[u8]| {
        std::fs::write(format!("{folder}/{name}"), bytes).expect("writable");
    };
    for kind in [FrameKind::Request, FrameKind::Response, FrameKind::Part, FrameKind::Ping] {
        let service = matches!(kind, FrameKind::Request | FrameKind::Response);
        let header = Header {
            service: service.then_some(Service::DATA),
            payload_len: if kind == FrameKind::Ping { 0 } else { 4096 },
            request: 7,
            token: Token([9; 16]),
            ..Header::empty(kind)
        };
        write(&format!("header-{kind:?}").to_lowercase(), &header.encode());
    }
    let hello = Hello::new(ClusterId::new(7), true, [5; 32], "chunkserver cs1");
    write("hello-keyed", &hello.encode());
    let at = ChunkRef { chunk: ChunkId::new(3), disk: DiskId::new(4) };
    let epoch = Epoch::new(5);
    for request in [
        DataRequest::Append(AppendRequest {
            at,
            epoch,
            base: 1,
            offset: 2,
            len: 3,
            committed: 4,
            create: true,
            purpose: Purpose::Metadata,
        }),
        DataRequest::Commit(CommitRequest { at, epoch, committed: 1 }),
        DataRequest::Read(ReadRequest {
            at,
            offset: 1,
            len: 2,
            uncommitted: true,
            cell_sector: None,
            blocks: false,
        }),
        DataRequest::Fence(FenceRequest { at, epoch }),
        DataRequest::Seal(SealRequest { at, len: 9 }),
        DataRequest::Stat(at),
    ] {
        let bytes = [&request.op().to_le_bytes()[..], &request.encode()].concat();
        write(&format!("request-{}", request.op()), &bytes);
    }
    let stat = ReplicaStat {
        state: ReplicaState::Fenced(epoch),
        epoch,
        len: 1,
        durable_bound: 2,
        committed: 3,
    };
    let answers = [
        ("appended", Ok(DataReply::Appended { len: 1 })),
        ("read", Ok(DataReply::Read { readable: 1, sealed: true })),
        ("stat", Ok(DataReply::Stat(stat))),
        ("gap", Err(DataError::Gap { len: 7 })),
        ("fenced", Err(DataError::Fenced { epoch })),
    ];
    for (name, answer) in answers {
        let (status, body) = encode_answer(&answer);
        write(&format!("answer-{name}"), &[&status.to_le_bytes()[..], &body].concat());
    }
}

/// The same cases in each run: a change that breaks something fails where it is made.
fn cases(cases: u32) -> ProptestConfig {
    let rng_seed = RngSeed::Fixed(1);
    ProptestConfig { cases, rng_seed, failure_persistence: None, ..ProptestConfig::default() }
}

fn any_service() -> impl Strategy<Value = Service> {
    (1..=Service::MAX).prop_map(|number| Service::new(number).expect("in range"))
}

fn any_priority() -> impl Strategy<Value = Priority> {
    prop::sample::select(Priority::ALL.to_vec())
}

prop_compose! {
    fn any_header()(
        kind in prop::sample::select(vec![
            FrameKind::Hello, FrameKind::Proof, FrameKind::Welcome, FrameKind::Refuse,
            FrameKind::Request, FrameKind::Response, FrameKind::Part, FrameKind::Cancel,
            FrameKind::Ping, FrameKind::Pong, FrameKind::Credit,
        ]),
        service in any_service(),
        priority in any_priority(),
        (sectors, split) in any::<(bool, bool)>(),
        (op, deadline_us, request, trace) in any::<(u16, u32, u64, u64)>(),
        (body_len, payload_len) in (0u32..=1 << 20, 0u32..=4 << 20),
        token in any::<[u8; 16]>(),
        body_crc in any::<u32>(),
    ) -> Header {
        let message = matches!(kind, FrameKind::Request | FrameKind::Response);
        let (body_len, payload_len) = match kind {
            FrameKind::Part if sectors => (0, payload_len % (256 << 10) + 1),
            FrameKind::Part => (body_len % (256 << 10) + 1, 0),
            _ if message => (body_len, payload_len),
            _ => (body_len, 0),
        };
        Header {
            version: 1,
            kind,
            service: message.then_some(service),
            priority,
            sectors,
            split: split && message,
            op,
            body_len,
            payload_len,
            deadline_us,
            request,
            trace: TraceId::new(trace),
            token: Token(token),
            body_crc,
        }
    }
}

prop_compose! {
    fn any_ref()(chunk in any::<u64>(), disk in any::<u128>()) -> ChunkRef {
        ChunkRef { chunk: ChunkId::new(chunk), disk: DiskId::new(disk) }
    }
}

fn any_request() -> impl Strategy<Value = DataRequest> {
    let epoch = || any::<u64>().prop_map(Epoch::new);
    let place = || (0u32..1 << 30, 1..=APPEND_DATA_MAX as u32);
    prop_oneof![
        (any_ref(), epoch(), any::<u64>(), place(), any::<(u32, bool, usize)>()).prop_map(
            |(at, epoch, base, (offset, len), (committed, create, purpose))| {
                let purpose = Purpose::ALL[purpose % Purpose::ALL.len()];
                DataRequest::Append(AppendRequest {
                    at,
                    epoch,
                    base,
                    offset,
                    len,
                    committed,
                    create,
                    purpose,
                })
            }
        ),
        (any_ref(), epoch(), any::<u32>()).prop_map(|(at, epoch, committed)| {
            DataRequest::Commit(CommitRequest { at, epoch, committed })
        }),
        (any_ref(), place(), any::<[bool; 2]>(), prop::option::of(0u16..65)).prop_map(
            |(at, (offset, len), [uncommitted, blocks], cell_sector)| {
                let blocks = blocks && cell_sector.is_none();
                DataRequest::Read(ReadRequest { at, offset, len, uncommitted, cell_sector, blocks })
            }
        ),
        (any_ref(), epoch())
            .prop_map(|(at, epoch)| { DataRequest::Fence(FenceRequest { at, epoch }) }),
        (any_ref(), 0u32..1 << 31).prop_map(|(at, len)| DataRequest::Seal(SealRequest { at, len })),
        any_ref().prop_map(DataRequest::Stat),
    ]
}

fn any_answer() -> impl Strategy<Value = Result<DataReply, DataError>> {
    let epoch = || (1..=u64::MAX).prop_map(Epoch::new);
    let state = prop_oneof![
        Just(ReplicaState::Open),
        epoch().prop_map(ReplicaState::Fenced),
        Just(ReplicaState::Sealed),
        Just(ReplicaState::Repairing),
        Just(ReplicaState::Tombstone),
        Just(ReplicaState::Deleted),
    ];
    let stat = (state, epoch(), any::<[u32; 3]>()).prop_map(
        |(state, epoch, [len, durable_bound, committed])| {
            DataReply::Stat(ReplicaStat { state, epoch, len, durable_bound, committed })
        },
    );
    let errors = vec![
        DataError::Gap { len: 8 },
        DataError::Fenced { epoch: Epoch::new(1 << 40) },
        DataError::Sealed { len: 9 },
        DataError::Conflict,
        DataError::NotFound,
        DataError::WrongDisk,
        DataError::DiskFailed,
        DataError::Full,
        DataError::Corrupt { offset: 10 },
        DataError::BadSectors { index: 11 },
        DataError::Busy,
        DataError::Denied,
        DataError::Invalid,
        DataError::Unknown,
    ];
    prop_oneof![
        any::<u32>().prop_map(|len| Ok(DataReply::Appended { len })),
        any::<(u32, bool)>()
            .prop_map(|(readable, sealed)| Ok(DataReply::Read { readable, sealed })),
        stat.prop_map(Ok),
        Just(Ok(DataReply::Done)),
        prop::sample::select(errors).prop_map(Err),
    ]
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn headers_come_back(header in any_header()) {
        prop_assert_eq!(Header::decode(&header.encode()), Ok(header));
    }

    #[test]
    fn no_changed_bit_of_a_header_goes_unseen(header in any_header(), bit in 0..HEADER * 8) {
        let mut bytes = header.encode();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let expected = if bit < 32 { FrameError::Magic } else { FrameError::HeaderCrc };
        prop_assert_eq!(Header::decode(&bytes), Err(expected));
    }

    #[test]
    fn requests_come_back(asked in any_request(), newer in prop::collection::vec(any::<u8>(), 0..9)) {
        let body = asked.encode();
        prop_assert_eq!(DataRequest::decode(asked.op(), &body), Ok(asked.clone()));
        for end in 0..body.len() {
            // Appends of older senders end without a purpose.
            let older = matches!(asked, DataRequest::Append(_)) && end + 8 == body.len();
            prop_assert_eq!(DataRequest::decode(asked.op(), &body[..end]).is_ok(), older);
        }
        // Fields of a newer sender are skipped.
        let longer = [body, newer].concat();
        prop_assert_eq!(DataRequest::decode(asked.op(), &longer), Ok(asked));
    }

    #[test]
    fn answers_come_back(answer in any_answer()) {
        let (status, body) = encode_answer(&answer);
        prop_assert_eq!(decode_answer(status, &body), Ok(answer));
    }

    #[test]
    fn hellos_come_back(
        cluster in any::<u128>(), keyed in any::<bool>(), nonce in any::<[u8; 32]>(),
        name in ".{0,200}",
    ) {
        let hello = Hello::new(ClusterId::new(cluster), keyed, nonce, &name);
        prop_assert!(name.starts_with(&hello.name));
        prop_assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        fuzz_header(&bytes);
        fuzz_hello(&bytes);
        fuzz_request(&bytes);
        fuzz_answer(&bytes);
        // The same with a code that exists.
        let known = [&[bytes.first().copied().unwrap_or(0) % 16, 0], &bytes[..]].concat();
        fuzz_request(&known);
        fuzz_answer(&known);
    }

    #[test]
    fn token_grants_its_rights_only(
        chunk in any::<u64>(), epoch in 0u64..1 << 40, bit in 0usize..128, secret in any::<[u8; 32]>(),
        issuer in any::<u64>(), other in any::<u64>(),
    ) {
        let tokens = TokenKey::derive(&ClusterKey::new(secret));
        let mut verifier = TokenVerifier::new(tokens.clone());
        let (chunk, epoch) = (ChunkId::new(chunk), Epoch::new(epoch));
        let (issuer, other) = (Issuer::new(issuer), Issuer::new(other));
        // Of the clocks on the wall and of its issuer, the other one may show anything.
        let at = |seconds| match issuer {
            Issuer::WALL => FixedClocks { issuer: [other], issuer_s: 5000, wall_s: seconds },
            _ => FixedClocks { issuer: [issuer], issuer_s: seconds, wall_s: 5000 },
        };
        let token = tokens.issue(chunk, Rights::WRITER, epoch, IssuerTime { issuer, seconds: 1000 });
        for _ in 0..2 { // The second time from the verifier's memory.
            let mut verify = |op, epoch, now| {
                let plain = tokens.verify(token, chunk, op, epoch, &at(now));
                assert_eq!(verifier.verify(token, chunk, op, epoch, &at(now)), plain);
                plain
            };
            prop_assert_eq!(verify(Rights::APPEND, epoch, 999), Ok(()));
            prop_assert_eq!(verify(Rights::READ, Epoch::NONE, 0), Ok(()));
            prop_assert_eq!(verify(Rights::FENCE, epoch, 999), Err(TokenError::Rights));
            let expired = TokenError::Expired { expiry_s: 1000 };
            prop_assert_eq!(verify(Rights::APPEND, epoch, 1000), Err(expired));
            if epoch.get() < u64::from(u32::MAX) {
                prop_assert_eq!(verify(Rights::APPEND, epoch.next(), 1), Err(TokenError::Epoch));
            }
        }
        // One whose issuer the verifier knows no more, also from memory.
        if other != issuer && issuer != Issuer::WALL {
            let clocks = FixedClocks { issuer: [other], issuer_s: 1, wall_s: 1 };
            let result = verifier.verify(token, chunk, Rights::READ, Epoch::NONE, &clocks);
            prop_assert_eq!(result, Err(TokenError::UnknownIssuer));
            let result = tokens.verify(token, chunk, Rights::READ, Epoch::NONE, &clocks);
            prop_assert_eq!(result, Err(TokenError::UnknownIssuer));
        }
        let mut forged = token;
        forged.0[bit / 8] ^= 1 << (bit % 8);
        let others = TokenKey::derive(&key(9));
        let refused = |result| {
            matches!(result, Err(TokenError::Forged | TokenError::UnknownIssuer))
        };
        for (tokens, token, chunk) in [
            (&tokens, forged, chunk),
            (&tokens, token, ChunkId::new(!chunk.get())),
            (&others, token, chunk),
        ] {
            let result = tokens.verify(token, chunk, Rights::READ, Epoch::NONE, &at(1));
            prop_assert!(refused(result));
            let mut verifier = TokenVerifier::new(tokens.clone());
            let result = verifier.verify(token, chunk, Rights::READ, Epoch::NONE, &at(1));
            prop_assert!(refused(result));
        }
    }

    #[test]
    fn proofs_belong_to_one_key_side_and_pair_of_hellos(
        a in prop::collection::vec(any::<u8>(), 0..80), b in prop::collection::vec(any::<u8>(), 0..80),
    ) {
        let transcript = Transcript { connecting: &a, accepting: &b };
        let proof = transcript.prove(&key(1), Side::Connecting);
        prop_assert!(transcript.verify(&key(1), Side::Connecting, &proof));
        prop_assert!(!transcript.verify(&key(1), Side::Accepting, &proof));
        prop_assert!(!transcript.verify(&key(2), Side::Connecting, &proof));
        prop_assert!(!transcript.verify(&key(1), Side::Connecting, &proof[..31]));
        let moved = Transcript { connecting: &[&a[..], &b[..]].concat(), accepting: &[] };
        prop_assert!(b.is_empty() || !moved.verify(&key(1), Side::Connecting, &proof));
    }
}

proptest! {
    #![proptest_config(cases(48))]

    /// An admitted peer that sends arbitrary bytes harms only itself.
    #[test]
    fn arbitrary_frames_break_their_own_link_only(
        frames in prop::collection::vec((any_header(), any::<bool>(), 0usize..6000), 1..12),
    ) {
        let sim = Sim::new(61);
        let (a, b) = (sim.add_host("a"), sim.add_host("b"));
        let world = sim.clone();
        sim.run(async {
            let server = start(&world, b, "server", Limits::default()).await;
            let env = world.boot(a);
            let mut raw = Raw::admitted(&env, server.addr).await;
            for (mut header, fits, len) in frames {
                let content = vec![7; len];
                if fits && !header.split && header.kind != FrameKind::Part {
                    (header.body_len, header.payload_len) = (len as u32, 0);
                }
                // A sender of fetches may ask for more than there is.
                if header.op == crate::harness::OP_FETCH || header.op == crate::harness::OP_SLOW {
                    header.op = OP_ECHO;
                }
                header.body_crc = header.content_crc(&content, &[]);
                raw.send_bytes(&header.encode()).await;
                raw.send_bytes(&content).await;
            }
            drop(raw);
            world.sleep(millis(50)).await;
            world.crash(a, runtime::sim::CrashMode::Process);
            let client = start(&world, a, "client", Limits::default()).await;
            let answer = client.call(server.addr, request(OP_ECHO, vec![1], None), millis(100));
            assert!(answer.await.is_ok());
        }).expect("nothing stalls");
    }
}

/// The rows of the table in `docs/formats/wire.md` that has these columns: (at, bytes, field).
fn documented() -> Vec<(usize, usize, String)> {
    let page = include_str!("../../../docs/formats/wire.md");
    let table = page.split("## Frame").nth(1).and_then(|rest| rest.split("## Handshake").next());
    let rows = table.expect("the section is there").lines().filter_map(|line| {
        let mut cells = line.split('|').skip(1).map(str::trim);
        let (at, bytes) = (cells.next()?.parse().ok()?, cells.next()?.parse().ok()?);
        Some((at, bytes, cells.next()?.to_owned()))
    });
    rows.collect()
}

#[test]
fn the_format_page_is_that_of_the_source() {
    let rows = documented();
    let mut end = 0;
    for (at, bytes, field) in &rows {
        assert_eq!(*at, end, "{field} follows without a gap");
        end = at + bytes;
    }
    assert_eq!(end, HEADER);
    let plain = Header { service: Some(Service::CONTROL), ..Header::empty(FrameKind::Request) };
    let changed = [
        ("kind", Header { kind: FrameKind::Response, ..plain }),
        ("service", Header { service: Some(Service::RAFT), ..plain }),
        ("flags", Header { priority: Priority::Background, sectors: true, split: true, ..plain }),
        ("op", Header { op: u16::MAX, ..plain }),
        ("body_len", Header { body_len: 1 << 20, ..plain }),
        ("payload_len", Header { payload_len: 4 << 20, ..plain }),
        ("deadline_us", Header { deadline_us: u32::MAX, ..plain }),
        ("request", Header { request: u64::MAX, ..plain }),
        ("trace", Header { trace: TraceId::new(u64::MAX), ..plain }),
        ("token", Header { token: Token([255; 16]), ..plain }),
        ("body_crc", Header { body_crc: u32::MAX, ..plain }),
    ];
    let constant = ["magic", "version", "reserved", "header_crc"];
    assert_eq!(rows.len(), changed.len() + constant.len());
    for (field, header) in changed {
        let (at, bytes, _) = rows.iter().find(|row| row.2 == field).expect("documented");
        let (before, after) = (plain.encode(), header.encode());
        let differs: Vec<_> = (0..HEADER - 4).filter(|&i| before[i] != after[i]).collect();
        assert!(!differs.is_empty());
        assert!(differs.iter().all(|i| (*at..at + bytes).contains(i)), "{field}: {differs:?}");
    }
}
