//! The messages as bytes: encoded messages decode, anything else is an error.

use std::fs;
use std::path::{Path, PathBuf};

use block_proto::{
    BlockAnswer, BlockError, BlockIo, BlockRequest, Located, Request, Sequence, SessionRef,
    decode_answer, encode_answer, fuzz_answer, fuzz_request,
};
use block_volume::contract::{AllocationExtent, Clear};
use block_volume::ids::{SegmentId, VolumeId};
use block_volume::location::{LocationRun, RecordLocation};
use proptest::prelude::*;
use runtime::Rng;

prop_compose! {
    fn any_session()(
        volume: u64, index: u32, attachment: u64, session: u64, grant: u64,
    ) -> SessionRef {
        let segment = SegmentId { volume: VolumeId::new(volume), index };
        SessionRef { segment, attachment, session, grant }
    }
}

prop_compose! {
    fn any_sequence()(floor in 1..u64::MAX, ahead in 0u64..300) -> Sequence {
        Sequence { seq: floor.saturating_add(ahead), floor }
    }
}

fn any_io() -> impl Strategy<Value = BlockIo> {
    let range = || (0..u64::MAX / 2, 1..u64::MAX / 2);
    let how = || prop_oneof![Just(Clear::Trim), Just(Clear::Zero)];
    prop_oneof![
        (any_session(), any::<[u64; 2]>()).prop_map(|(at, [fence, after])| {
            let fence = fence.min(at.attachment);
            BlockIo::Open { at: SessionRef { grant: 0, ..at }, fence, after }
        }),
        any_session().prop_map(|at| BlockIo::Close { at }),
        (any_session(), any::<u32>(), 1u32..4 << 20, any::<bool>()).prop_map(
            |(at, offset, len, locate)| BlockIo::Read { at, offset: offset.into(), len, locate }
        ),
        (any_session(), any_sequence(), any::<u64>())
            .prop_map(|(at, sequence, offset)| BlockIo::Write { at, sequence, offset }),
        (any_session(), any_sequence(), range(), how()).prop_map(
            |(at, sequence, (offset, len), how)| BlockIo::Clear { at, sequence, offset, len, how }
        ),
        (any_session(), range(), 1u32..=4096)
            .prop_map(|(at, (offset, len), most)| BlockIo::Pieces { at, offset, len, most }),
    ]
}

fn any_answer() -> impl Strategy<Value = Result<BlockAnswer, BlockError>> {
    let piece = (1..u64::MAX, any::<bool>(), any::<bool>())
        .prop_map(|(len, hole, zero)| AllocationExtent { len, hole, zero });
    let place = (any::<u32>(), 1..u32::MAX, any::<u64>(), any::<u32>());
    let place = place.prop_map(|(maker, number, clone_source, unit)| RecordLocation {
        file: (maker, number),
        clone_source,
        unit,
    });
    let span =
        (1..u32::MAX, prop::option::of(place)).prop_map(|(blocks, at)| LocationRun { blocks, at });
    let good = prop_oneof![
        any::<[u64; 4]>().prop_map(|[grant, bytes, last, epoch]| BlockAnswer::Opened {
            grant,
            bytes,
            last,
            epoch
        }),
        Just(BlockAnswer::Read),
        prop::collection::vec(piece, 0..40).prop_map(BlockAnswer::Pieces),
        (any::<(u64, u32)>(), prop::collection::vec(span, 0..40)).prop_map(
            |((first, location_lease_ms), spans)| BlockAnswer::Located(Located {
                first,
                location_lease_ms,
                spans
            })
        ),
        Just(BlockAnswer::Done),
    ];
    let bad = prop_oneof![
        prop::sample::select(vec![
            BlockError::NotOwner,
            BlockError::NoSession,
            BlockError::Busy,
            BlockError::Unknown,
            BlockError::Full,
            BlockError::Corrupt,
            BlockError::Invalid,
        ]),
        any::<u64>().prop_map(|session| BlockError::Superseded { session }),
        any::<u64>().prop_map(|fence| BlockError::Fenced { fence }),
    ];
    prop_oneof![good.prop_map(Ok), bad.prop_map(Err)]
}

proptest! {
    #[test]
    fn requests_decode_to_what_was_encoded(
        io in any_io(),
        newer in prop::collection::vec(any::<u8>(), 0..9),
    ) {
        let body = [io.encode(), newer].concat();
        prop_assert_eq!(BlockIo::decode(io.op(), &body), Ok(io));
        for cut in 0..io.encode().len() {
            prop_assert!(BlockIo::decode(io.op(), &body[..cut]).is_err());
        }
    }

    #[test]
    fn answers_decode_to_what_was_encoded(
        answer in any_answer(),
        newer in prop::collection::vec(any::<u8>(), 0..9),
    ) {
        let (status, body) = encode_answer(&answer);
        prop_assert!(status == 0 || status >> 8 == 3);
        prop_assert_eq!(decode_answer(status, &[body, newer].concat()), Ok(answer));
    }

    #[test]
    fn arbitrary_bytes_break_nothing(
        code in 0u16..0x310, bytes in prop::collection::vec(any::<u8>(), 0..120),
    ) {
        let bytes = [&code.to_le_bytes()[..], &bytes].concat();
        fuzz_request(&bytes);
        fuzz_answer(&bytes);
        fuzz_request(&[&(code % 8).to_le_bytes()[..], &bytes[2..]].concat());
        fuzz_answer(&[&[0, 0], &bytes[2..]].concat());
    }
}

#[test]
fn values_that_no_sender_produces_are_refused() {
    let segment = SegmentId { volume: VolumeId::new(1), index: 2 };
    let at = SessionRef { segment, attachment: 3, session: 4, grant: 5 };
    let opening = SessionRef { grant: 0, ..at };
    let sequence = Sequence { seq: 7, floor: 7 };
    let (offset, how) = (8, Clear::Trim);
    for io in [
        BlockIo::Open { at: opening, fence: 4, after: 0 },
        BlockIo::Open { at, fence: 3, after: 0 },
        BlockIo::Read { at, offset, len: 0, locate: true },
        BlockIo::Read { at, offset, len: (4 << 20) + 1, locate: false },
        BlockIo::Read { at, offset: u64::MAX, len: 1, locate: false },
        BlockIo::Write { at, sequence: Sequence { seq: 6, floor: 7 }, offset },
        BlockIo::Write { at, sequence: Sequence { seq: 6, floor: 0 }, offset },
        BlockIo::Clear { at, sequence, offset, len: 0, how },
        BlockIo::Clear { at, sequence, offset, len: u64::MAX, how },
        BlockIo::Pieces { at, offset, len: 1, most: 0 },
        BlockIo::Pieces { at, offset, len: 1, most: 4097 },
    ] {
        assert!(BlockIo::decode(io.op(), &io.encode()).is_err(), "{io:?}");
    }
    assert!(BlockIo::decode(0, &[0; 90]).is_err() && BlockIo::decode(7, &[0; 90]).is_err());
    assert!(decode_answer(0x0300, &[]).is_err() && decode_answer(13, &[]).is_err());
    // A span of no blocks, and a location in no file.
    let at = Some(RecordLocation { file: (1, 0), clone_source: 0, unit: 7 });
    for span in [LocationRun { blocks: 0, at: None }, LocationRun { blocks: 1, at }] {
        let located = Located { first: 0, location_lease_ms: 0, spans: vec![span] };
        let (status, body) = encode_answer(&Ok(BlockAnswer::Located(located)));
        assert!(decode_answer(status, &body).is_err(), "{span:?}");
    }
}

type Target = fn(&[u8]);

fn seeds() -> Vec<(String, Target, Vec<u8>)> {
    let segment = SegmentId { volume: VolumeId::new(77), index: 3 };
    let at = SessionRef { segment, attachment: 5, session: 2, grant: 99 };
    let sequence = Sequence { seq: 12, floor: 9 };
    let (offset, len, how) = (8192, 4096, Clear::Zero);
    let mut all: Vec<(String, Target, Vec<u8>)> = Vec::new();
    for io in [
        BlockIo::Open { at: SessionRef { grant: 0, ..at }, fence: 5, after: 3 },
        BlockIo::Close { at },
        BlockIo::Read { at, offset, len: 4096, locate: true },
        BlockIo::Write { at, sequence, offset },
        BlockIo::Clear { at, sequence, offset, len, how },
        BlockIo::Pieces { at, offset, len, most: 16 },
    ] {
        let bytes = [&io.op().to_le_bytes()[..], &io.encode()].concat();
        all.push((format!("block_request-{}", io.op()), fuzz_request, bytes));
    }
    let piece = |len, hole| AllocationExtent { len, hole, zero: hole };
    let at = Some(RecordLocation { file: (2, 9), clone_source: 5, unit: 66 });
    let spans = vec![LocationRun { blocks: 3, at: None }, LocationRun { blocks: 2, at }];
    let located = Located { first: 32, location_lease_ms: 300, spans };
    for (name, answer) in [
        ("located", Ok(BlockAnswer::Located(located))),
        ("opened", Ok(BlockAnswer::Opened { grant: 1, bytes: 2, last: 3, epoch: 4 })),
        ("pieces", Ok(BlockAnswer::Pieces(vec![piece(4096, true), piece(8192, false)]))),
        ("done", Ok(BlockAnswer::Done)),
        ("fenced", Err(BlockError::Fenced { fence: 8 })),
        ("not-owner", Err(BlockError::NotOwner)),
    ] {
        let (status, body) = encode_answer(&answer);
        let bytes = [&status.to_le_bytes()[..], &body].concat();
        all.push((format!("block_answer-{name}"), fuzz_answer, bytes));
    }
    all
}

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus")
}

/// `BLOCK_WRITE_CORPUS=1` writes it again.
#[test]
fn the_corpus_is_what_this_version_writes_and_survives_changes() {
    let write = std::env::var_os("BLOCK_WRITE_CORPUS").is_some();
    let mut rng = Rng::new(3);
    for (name, target, bytes) in seeds() {
        let path = corpus().join(&name);
        if write {
            fs::write(&path, &bytes).expect("writable");
        }
        let kept = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(kept == bytes, "{name} is encoded in another way");
        for _ in 0..500 {
            let mut changed = kept.clone();
            let at = rng.below(changed.len() as u64) as usize;
            changed[at] ^= 1 << rng.below(8);
            changed.truncate(rng.between(1, kept.len() as u64) as usize);
            target(&changed);
        }
        target(&kept);
    }
}

/// One that is refused and comes late must not remove what was brought back, or deleted again. Managers of older
/// versions read the request, and pass over its number.
#[test]
fn removals_have_a_number() {
    let volume = VolumeId::new(7);
    let remove = BlockRequest::Remove { volume, force: true };
    for request in [remove, BlockRequest::RemoveDeleted { volume }] {
        assert_eq!(request.happens_once(), Some(volume), "{request:?}");
        let without = Request::Block(request.clone()).encode();
        let numbered = Request::Once(5, request.clone()).encode();
        assert_eq!(Request::decode(&numbered), Ok(Request::Once(5, request)));
        assert!(numbered.len() > without.len());
    }
}
