//! The protocol: encoded values decode, partial input waits, malformed input is refused.

use std::fs;
use std::path::{Path, PathBuf};

use block_nbd::fuzz;
use block_nbd::protocol::limits::{NBD_DATA_MAX, NBD_NAME_MAX};
use block_nbd::protocol::{
    BASE_ALLOCATION, Chunk, ClientHello, Command, Errno, Greeting, MetaQuery, OptionCode,
    OptionFlaw, OptionHead, OptionReply, OptionRequest, ProtocolError, ReplyCode, Request, Select,
    ServerInfo, SimpleReply, StatusExtent, allocation_flags, decode_chunk, decode_reply,
    encode_export_name_reply, export_flags, request_flags,
};
use proptest::prelude::*;
use runtime::Rng;

type Target = fn(&[u8]);

fn options() -> Vec<OptionRequest> {
    let select = Select { name: "vol/1".into(), wants: vec![0, ServerInfo::WANT_BLOCK_SIZE] };
    let queries = vec![BASE_ALLOCATION.to_owned(), "qemu:".to_owned()];
    let query = MetaQuery { name: String::new(), queries };
    vec![
        OptionRequest::ExportName("vol".into()),
        OptionRequest::Abort,
        OptionRequest::List,
        OptionRequest::StartTls,
        OptionRequest::Info(select.clone()),
        OptionRequest::Go(select),
        OptionRequest::StructuredReply,
        OptionRequest::ListMetaContext(query.clone()),
        OptionRequest::SetMetaContext(query),
    ]
}

fn replies() -> Vec<OptionReply> {
    let mut all = vec![
        OptionReply::Ack,
        OptionReply::Server("vol".into()),
        OptionReply::Info(ServerInfo::Export { size: 1 << 40, flags: export_flags::HAS_FLAGS }),
        OptionReply::Info(ServerInfo::Name("vol".into())),
        OptionReply::Info(ServerInfo::Description("a volume".into())),
        OptionReply::Info(ServerInfo::BlockSize { least: 1, preferred: 4096, most: 32 << 20 }),
        OptionReply::MetaContext { id: 7, name: BASE_ALLOCATION.into() },
    ];
    for code in [
        ReplyCode::Unsupported,
        ReplyCode::Policy,
        ReplyCode::Invalid,
        ReplyCode::Platform,
        ReplyCode::TlsRequired,
        ReplyCode::Unknown,
        ReplyCode::Shutdown,
        ReplyCode::BlockSizeRequired,
        ReplyCode::TooBig,
    ] {
        all.push(OptionReply::Refused { code, message: format!("{code:?}") });
    }
    all
}

fn chunks() -> Vec<Chunk> {
    let extent = |len, flags| StatusExtent { len, flags };
    let hole = allocation_flags::HOLE | allocation_flags::ZERO;
    let error = |offset| Chunk::Error { errno: Errno::Io, message: "disk".into(), offset };
    vec![
        Chunk::None,
        Chunk::Data { offset: 4096, bytes: vec![5; 300] },
        Chunk::Hole { offset: 8192, len: 4096 },
        Chunk::Status { context: 7, extents: vec![extent(4096, 0), extent(1 << 20, hole)] },
        error(None),
        error(Some(12_288)),
    ]
}

fn encode_option(option: &OptionRequest) -> Vec<u8> {
    let mut out = Vec::new();
    option.encode(&mut out);
    out
}

#[test]
fn the_wire_has_the_specifications_bytes() {
    let greeting = Greeting { fixed: true, no_zeroes: true }.encode();
    assert_eq!(&greeting, b"NBDMAGICIHAVEOPT\0\x03");
    assert_eq!(ClientHello { fixed: true, no_zeroes: false }.encode(), [0, 0, 0, 1]);
    assert_eq!(
        encode_option(&OptionRequest::Go(Select { name: "a".into(), wants: vec![3] })),
        b"IHAVEOPT\0\0\0\x07\0\0\0\x09\0\0\0\x01a\0\x01\0\x03"
    );
    let mut reply = Vec::new();
    OptionReply::Ack.encode(OptionCode::Go, &mut reply);
    assert_eq!(reply, b"\0\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x07\0\0\0\x01\0\0\0\0");
    let write = Request {
        command: Command::Write,
        flags: request_flags::FUA,
        cookie: 0x0102_0304_0506_0708,
        offset: 4096,
        len: 512,
    };
    assert_eq!(
        &write.encode(),
        b"\x25\x60\x95\x13\0\x01\0\x01\x01\x02\x03\x04\x05\x06\x07\x08\0\0\0\0\0\0\x10\0\0\0\x02\0"
    );
    let failed = SimpleReply { cookie: 9, error: Some(Errno::NoSpace) };
    assert_eq!(&failed.encode(), b"\x67\x44\x66\x98\0\0\0\x1c\0\0\0\0\0\0\0\x09");
    let mut hole = Vec::new();
    Chunk::Hole { offset: 1, len: 2 }.encode(3, true, &mut hole);
    assert_eq!(
        hole,
        b"\x66\x8e\x33\xef\0\x01\0\x02\0\0\0\0\0\0\0\x03\0\0\0\x0c\0\0\0\0\0\0\0\x01\0\0\0\x02"
    );
    let mut oldest = Vec::new();
    encode_export_name_reply(1 << 30, 3, false, &mut oldest);
    assert_eq!((oldest.len(), oldest[7], oldest[9]), (134, 0, 3));
}

#[test]
fn options_and_replies_decode_to_what_was_encoded() {
    for option in options() {
        let bytes = encode_option(&option);
        let (head, data) = bytes.split_first_chunk().unwrap();
        let head = OptionHead::decode(head).unwrap();
        assert_eq!(head.len as usize, data.len());
        assert_eq!(OptionRequest::decode(head.code, data), Ok(option));
    }
    for reply in replies() {
        let mut bytes = Vec::new();
        reply.encode(OptionCode::Info, &mut bytes);
        for cut in 0..bytes.len() {
            assert_eq!(decode_reply(&bytes[..cut]), Ok(None), "{reply:?} cut at {cut}");
        }
        let len = bytes.len();
        bytes.push(9); // The bytes behind it are not read.
        assert_eq!(decode_reply(&bytes), Ok(Some((OptionCode::Info, reply, len))));
    }
    for chunk in chunks() {
        let mut bytes = Vec::new();
        chunk.encode(77, true, &mut bytes);
        for cut in 0..bytes.len() {
            assert_eq!(decode_chunk(&bytes[..cut]), Ok(None), "{chunk:?} cut at {cut}");
        }
        let len = bytes.len();
        assert_eq!(decode_chunk(&bytes), Ok(Some((77, true, chunk, len))));
    }
}

#[test]
fn malformed_input_is_refused_with_its_cause() {
    let name = "n".repeat(NBD_NAME_MAX + 1);
    let long = encode_option(&OptionRequest::ExportName(name));
    let decode = |bytes: &[u8]| OptionRequest::decode(OptionCode::ExportName, bytes);
    assert_eq!(decode(&long[OptionHead::LEN..]), Err(OptionFlaw::Invalid));
    assert_eq!(decode(&[0xff, 0xfe]), Err(OptionFlaw::Invalid), "no UTF-8");
    let unknown = OptionRequest::decode(OptionCode::Other(99), b"");
    assert_eq!(unknown, Err(OptionFlaw::Unsupported));
    assert_eq!(unknown.unwrap_err().reply(), ReplyCode::Unsupported);
    let mut huge = encode_option(&OptionRequest::List);
    huge[12..16].fill(0xff);
    let huge = OptionHead::decode(huge.first_chunk().unwrap());
    assert!(matches!(huge, Err(ProtocolError::TooLong { .. })));
    let magic = OptionHead::decode(&[0; 16]).unwrap_err();
    assert!(magic.to_string().contains("does not speak NBD"));
    assert!(ClientHello::decode([0, 0, 0, 4]).is_err(), "a flag that was not offered");

    let request = |command, flags, len| {
        let request = Request { command, flags, cookie: 5, offset: 0, len };
        Request::decode(&request.encode())
    };
    let flaw = |command, flags, len| request(command, flags, len).unwrap().unwrap_err();
    let too_long = flaw(Command::Write, 0, NBD_DATA_MAX + 1);
    assert_eq!((too_long.errno, too_long.skip), (Errno::Overflow, NBD_DATA_MAX + 1));
    assert_eq!(flaw(Command::Read, 0, NBD_DATA_MAX + 1).skip, 0);
    assert!(matches!(request(Command::Write, 0, u32::MAX), Err(ProtocolError::TooLong { .. })));
    assert_eq!(flaw(Command::Write, request_flags::DF, 8).skip, 8);
    assert_eq!(flaw(Command::Read, 1 << 9, 8).errno, Errno::Invalid);
    // Zeroes and trims may be as long as the length field allows.
    assert!(request(Command::Trim, 0, u32::MAX).unwrap().is_ok());
    let mut unknown = request(Command::Read, 0, 8).unwrap().unwrap().encode();
    unknown[7] = 200;
    let unknown = Request::decode(&unknown).unwrap().unwrap_err();
    assert_eq!((unknown.cookie, unknown.errno), (5, Errno::Invalid));
    assert_eq!(Errno::new(4711), Errno::Invalid);
}

/// Entries of the corpus: name, target, bytes.
fn seeds() -> Vec<(String, Target, Vec<u8>)> {
    let mut all: Vec<(String, Target, Vec<u8>)> = vec![
        (
            "greeting".into(),
            fuzz::fuzz_greeting,
            Greeting { fixed: true, no_zeroes: true }.encode().to_vec(),
        ),
        (
            "hello".into(),
            fuzz::fuzz_hello,
            ClientHello { fixed: true, no_zeroes: true }.encode().to_vec(),
        ),
        (
            "simple_reply".into(),
            fuzz::fuzz_simple_reply,
            SimpleReply { cookie: 4, error: Some(Errno::Io) }.encode().to_vec(),
        ),
    ];
    for (index, option) in options().iter().enumerate() {
        all.push((format!("option-{index}"), fuzz::fuzz_option, encode_option(option)));
    }
    for (index, reply) in replies().iter().enumerate() {
        let mut bytes = Vec::new();
        reply.encode(OptionCode::Go, &mut bytes);
        all.push((format!("reply-{index}"), fuzz::fuzz_reply, bytes));
    }
    for (index, chunk) in chunks().iter().enumerate() {
        let mut bytes = Vec::new();
        chunk.encode(77, true, &mut bytes);
        all.push((format!("chunk-{index}"), fuzz::fuzz_chunk, bytes));
    }
    for command in [Command::Read, Command::Write, Command::WriteZeroes, Command::BlockStatus] {
        let request = Request { command, flags: 1, cookie: 3, offset: 8192, len: 4096 };
        let name = format!("request-{command:?}").to_lowercase();
        all.push((name, fuzz::fuzz_request, request.encode().to_vec()));
    }
    all
}

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus")
}

fn replay_changed(kept: &[u8], target: Target) {
    let mut rng = Rng::new(11);
    for _ in 0..1500 {
        let mut changed = kept.to_vec();
        for _ in 0..rng.between(1, 4) {
            let at = rng.below(changed.len() as u64) as usize;
            changed[at] = if rng.one_in(2) { changed[at] ^ 1 << rng.below(8) } else { 255 };
        }
        if rng.one_in(4) {
            changed.truncate(rng.below(changed.len() as u64) as usize);
        }
        target(&changed);
    }
}

/// The corpus: the tests write nothing; `BLOCK_WRITE_CORPUS=1` writes it again.
#[test]
fn the_corpus_is_what_this_version_writes_and_survives_changes() {
    let write = std::env::var_os("BLOCK_WRITE_CORPUS").is_some();
    for (name, target, bytes) in seeds() {
        let path = corpus().join(&name);
        if write {
            fs::create_dir_all(corpus()).unwrap();
            fs::write(&path, &bytes).unwrap();
        }
        let kept = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(kept == bytes, "{name} is encoded in another way");
        target(&kept);
        replay_changed(&kept, target);
    }
}

#[test]
#[should_panic(expected = "canary")]
fn the_canary_fails() {
    let (_, _, bytes) = seeds().into_iter().find(|seed| seed.0 == "request-read").unwrap();
    replay_changed(&bytes, |bytes| {
        if let Some(Ok(Ok(request))) = bytes.first_chunk().map(Request::decode) {
            assert!(request.offset == 8192, "canary");
        }
    });
}

proptest! {
    #[test]
    fn arbitrary_bytes_break_no_decoder(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        seeds().iter().for_each(|(_, target, _)| target(&bytes));
    }

    #[test]
    fn arbitrary_data_breaks_no_decoder(
        code in 0u32..12, data in prop::collection::vec(any::<u8>(), 0..80),
    ) {
        if let Ok(option) = OptionRequest::decode(OptionCode::new(code), &data)
            && option != OptionRequest::Abort
        {
            prop_assert_eq!(&encode_option(&option)[OptionHead::LEN..], &data[..]);
        }
    }

    #[test]
    fn requests_decode_to_what_was_encoded(
        command in 0usize..8, fua in any::<bool>(), cookie: u64, offset: u64,
        len in 0..NBD_DATA_MAX,
    ) {
        let all = [
            Command::Read, Command::Write, Command::Disconnect, Command::Flush, Command::Trim,
            Command::Cache, Command::WriteZeroes, Command::BlockStatus,
        ];
        let flags = u16::from(fua);
        let request = Request { command: all[command], flags, cookie, offset, len };
        prop_assert_eq!(Request::decode(&request.encode()), Ok(Ok(request)));
    }
}
