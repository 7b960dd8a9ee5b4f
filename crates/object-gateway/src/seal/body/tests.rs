use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::FutureExt;
use object_proto::{DataId, Envelope, NewObject, PartMap, PartNumber, Stamp, UploadId, sealed_len};
use proptest::prelude::*;

use super::*;

/// What is stored, as an upload and as a content.
#[derive(Clone, Default)]
struct Stored {
    bytes: Arc<Mutex<Vec<u8>>>,
    /// Bytes that were read.
    read: Arc<AtomicU64>,
}

impl Upload for Stored {
    fn write(&mut self, mut bytes: Vec<u8>) -> Answer<'_, ()> {
        self.bytes.lock().expect("held by one").append(&mut bytes);
        Box::pin(std::future::ready(Ok(())))
    }

    fn commit(self: Box<Self>, _: ObjectFacts, _: Conditions) -> Answer<'static, Committed> {
        Box::pin(std::future::ready(Ok(Committed::default())))
    }
}

impl Content for Stored {
    fn read(&self, offset: u64, len: usize) -> Answer<'_, Vec<u8>> {
        let bytes = self.bytes.lock().expect("held by one");
        let start = bytes.len().min(offset as usize);
        let found = bytes[start..bytes.len().min(start + len)].to_vec();
        self.read.fetch_add(found.len() as u64, Ordering::Relaxed);
        Box::pin(std::future::ready(Ok(found)))
    }
}

fn key() -> DataKey {
    DataKey::new([7; 32])
}

fn now<T>(answer: impl Future<Output = T>) -> T {
    answer.now_or_never().expect("nothing waits in memory")
}

/// Content that is different everywhere.
fn content(len: usize) -> Vec<u8> {
    (0..len as u32).map(|at| (at ^ (at >> 7) ^ (at >> 15)) as u8).collect()
}

/// The body of a content that comes in pieces of these lengths, again and again.
fn sealed(content: &[u8], pieces: &[usize], part: u16) -> Vec<u8> {
    let stored = Stored::default();
    let head = [part as u8 ^ 0x55; BODY_HEAD];
    let mut upload = Box::new(SealedUpload::new(Box::new(stored.clone()), &key(), head, part));
    let (mut left, mut pieces) = (content, pieces.iter().cycle());
    while !left.is_empty() {
        let (piece, rest) = left.split_at(left.len().min(*pieces.next().expect("a cycle")));
        now(upload.write(piece.to_vec())).expect("memory");
        left = rest;
    }
    now(upload.commit(ObjectFacts::default(), Conditions::default())).expect("memory");
    let bytes = stored.bytes.lock().expect("held by one").clone();
    assert_eq!(bytes.len() as u64, sealed_len(content.len() as u64));
    bytes
}

fn info(size: u64, data: ObjectData) -> ObjectInfo {
    let encryption = Envelope::new(vec![1]);
    let facts = ObjectFacts { encryption, ..ObjectFacts::default() };
    let object = NewObject { data_id: DataId::new(1), size, facts, data };
    ObjectInfo { stamp: Stamp::new(1), has_id: false, object }
}

fn opened(stored: &Stored, info: ObjectInfo) -> OpenedContent {
    OpenedContent::new(Box::new(stored.clone()), key(), info).expect("an object")
}

fn of_bytes(bytes: Vec<u8>) -> Stored {
    Stored { bytes: Arc::new(Mutex::new(bytes)), read: Arc::default() }
}

/// An object of parts with these contents.
fn in_parts(parts: &[Vec<u8>]) -> (Stored, ObjectInfo) {
    let bodies: Vec<Vec<u8>> =
        (1..).zip(parts).map(|(number, part)| sealed(part, &[1 << 20], number)).collect();
    let number = |at: usize| PartNumber::new(at as u64 + 1).expect("a number");
    let upload = UploadId { stamp: Stamp::new(1), nonce: 2 };
    let sizes = bodies.iter().enumerate().map(|(at, body)| (number(at), body.len() as u64));
    let map = PartMap::of(upload, sizes);
    let info = info(map.size(), ObjectData::Parts(map));
    (of_bytes(bodies.concat()), info)
}

#[test]
fn a_range_reads_its_frames_only() {
    let content = content(20 * FRAME_BYTES);
    let stored = of_bytes(sealed(&content, &[1 << 20], 0));
    let size = sealed_len(content.len() as u64);
    let object = opened(&stored, info(size, ObjectData::Inline(Vec::new())));
    let at = 7 * FRAME_BYTES as u64 + 5;
    assert_eq!(now(object.read(at, 10)).expect("it opens"), &content[at as usize..][..10]);
    let frame = SEALED_FRAME as u64;
    assert_eq!(stored.read.load(Ordering::Relaxed), BODY_HEAD as u64 + frame);
    now(object.read(at, 10)).expect("it opens");
    assert_eq!(stored.read.load(Ordering::Relaxed), BODY_HEAD as u64 + 2 * frame);
}

#[test]
fn bodies_and_parts_that_are_not_as_they_were_sealed_are_damaged() {
    let content = content(3 * FRAME_BYTES + 9);
    let body = sealed(&content, &[1 << 20], 0);
    let size = body.len() as u64;
    let read = |bytes: Vec<u8>| {
        let object = opened(&of_bytes(bytes), info(size, ObjectData::Inline(Vec::new())));
        now(object.read(0, content.len()))
    };
    assert_eq!(read(body.clone()).as_deref(), Ok(&content[..]));
    for at in [0, BODY_HEAD - 1, BODY_HEAD, BODY_HEAD + SEALED_FRAME, body.len() - 1] {
        let mut flipped = body.clone();
        flipped[at] ^= 16;
        assert!(matches!(read(flipped), Err(Error::Damaged { .. })), "{at}");
    }
    assert!(matches!(read(body[..body.len() - 1].to_vec()), Err(Error::Damaged { .. })));
    // A shorter body, whose row says so.
    let short = BODY_HEAD + 2 * SEALED_FRAME;
    let shorter = info(short as u64, ObjectData::Inline(Vec::new()));
    let object = opened(&of_bytes(body[..short].to_vec()), shorter);
    assert!(matches!(now(object.read(0, 2 * FRAME_BYTES)), Err(Error::Damaged { .. })));
    // Parts that were exchanged.
    let parts = [content.clone(), content[1..].iter().chain(&[1]).copied().collect()];
    let (stored, object) = in_parts(&parts);
    let exchange = |bytes: &mut Vec<u8>| {
        let half = bytes.len() / 2;
        bytes.rotate_left(half);
    };
    let of_two = opened(&stored, object.clone());
    assert!(now(of_two.read(0, 1 << 20)).is_ok());
    exchange(&mut stored.bytes.lock().expect("held by one"));
    assert!(matches!(now(opened(&stored, object).read(0, 9)), Err(Error::Damaged { .. })));
    let none = info(20, ObjectData::Inline(Vec::new()));
    let none = OpenedContent::new(Box::new(of_bytes(vec![0; 20])), key(), none);
    assert!(matches!(none.err(), Some(Error::Damaged { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn any_range_of_any_content_is_that_of_the_plain_text(
        len in prop_oneof![
            0usize..200,
            (0usize..5, 0usize..3).prop_map(|(frames, off)| {
                (frames * FRAME_BYTES + off).saturating_sub(1)
            }),
            0usize..5 * FRAME_BYTES,
        ],
        pieces in prop::collection::vec(1usize..3 * FRAME_BYTES, 1..5),
        ranges in prop::collection::vec((any::<prop::sample::Index>(), 0usize..2 * FRAME_BYTES), 1..6),
    ) {
        let content = content(len);
        let stored = of_bytes(sealed(&content, &pieces, 0));
        let size = sealed_len(len as u64);
        let object = opened(&stored, info(size, ObjectData::Inline(Vec::new())));
        let whole = now(object.read(0, len));
        prop_assert_eq!(whole.as_deref(), Ok(&content[..]));
        for (start, count) in ranges {
            let start = start.index(len + 1);
            let wanted = &content[start..len.min(start + count)];
            let found = now(object.read(start as u64, count));
            prop_assert_eq!(found.as_deref(), Ok(wanted));
        }
    }

    #[test]
    fn any_range_of_an_object_of_parts_is_that_of_the_plain_text(
        lens in prop::collection::vec(prop_oneof![0usize..9, 0usize..3 * FRAME_BYTES], 1..5),
        ranges in prop::collection::vec((any::<prop::sample::Index>(), 0usize..4 * FRAME_BYTES), 1..6),
    ) {
        let parts: Vec<Vec<u8>> = lens.iter().map(|&len| content(len)).collect();
        let whole = parts.concat();
        let (stored, info) = in_parts(&parts);
        let object = opened(&stored, info);
        for (start, count) in ranges {
            let start = start.index(whole.len() + 1);
            let wanted = &whole[start..whole.len().min(start + count)];
            let found = now(object.read(start as u64, count));
            prop_assert_eq!(found.as_deref(), Ok(wanted));
        }
    }
}
