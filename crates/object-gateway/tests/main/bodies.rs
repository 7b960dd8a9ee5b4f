//! Bodies: chunks, trailers, lengths, time, memory.

use std::io::Write;
use std::net::Shutdown;
use std::sync::atomic::Ordering;
use std::time::Duration;

use object_gateway::{GatewayConfig, Times};
use object_proto::{PublicAccess, Setting};

use crate::client::{Ask, BUCKET, Bed, Reply, UNSIGNED, read_reply};
use crate::multipart::{begin, complete_ask, part_ask};
use crate::signer::sha256;

const STREAM: &str = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD";
const STREAM_TRAILER: &str = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER";
const STREAM_UNSIGNED: &str = "STREAMING-UNSIGNED-PAYLOAD-TRAILER";
const HELLO_CRC32: &str = "NhCmhg==";

fn streamed(bed: &Bed, payload: &str, len: usize) -> Ask {
    bed.object("PUT", "k")
        .payload(payload)
        .header("content-encoding", "gzip,aws-chunked")
        .header("x-amz-decoded-content-length", &len.to_string())
}

/// Signed chunks of a content, and the last signature.
fn signed_chunks(ask: &Ask, chunks: &[&[u8]]) -> (Vec<u8>, String) {
    let mut body = Vec::new();
    let mut signature = ask.seed();
    for chunk in chunks.iter().chain(&[&b""[..]]) {
        signature = ask.signer.chunk(&signature, chunk);
        body.extend_from_slice(
            format!("{:x};chunk-signature={signature}\r\n", chunk.len()).as_bytes(),
        );
        body.extend_from_slice(chunk);
        if !chunk.is_empty() {
            body.extend_from_slice(b"\r\n");
        }
    }
    (body, signature)
}

fn content(bed: &Bed) -> Option<Vec<u8>> {
    bed.model.object("k").map(|(_, content)| content)
}

#[test]
fn signed_chunks_are_put_together() {
    let bed = Bed::with_bucket();
    let big = vec![5; 3 << 20];
    let ask = streamed(&bed, STREAM, big.len() + 5);
    let ask = ask.header("content-length", &(big.len() + 5 + 3 * 90 + 2).to_string());
    // The length of the chunks' lines differs with their sizes: it is signed, so it is counted
    // first.
    let (body, _) = signed_chunks(&ask, &[b"hello", &big]);
    let ask = streamed(&bed, STREAM, big.len() + 5)
        .header("content-length", &(body.len() + 2).to_string());
    let (mut body, _) = signed_chunks(&ask, &[b"hello", &big]);
    body.extend_from_slice(b"\r\n");
    let reply = ask.body(&body).send();
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(content(&bed), Some([&b"hello"[..], &big].concat()));
    let (info, _) = bed.model.object("k").expect("there");
    assert_eq!(info.object.facts.metadata.get("content-encoding"), Some("gzip"));
}

/// Puts `hello` in signed chunks, changed by a test.
fn put_signed(bed: &Bed, change: impl FnOnce(String) -> String) -> Reply {
    let ask = streamed(bed, STREAM, 5);
    let (body, _) = signed_chunks(&ask, &[b"hello"]);
    let body = change(String::from_utf8(body).expect("text") + "\r\n");
    ask.body(body.as_bytes()).send()
}

#[test]
fn flawed_signed_chunks_store_nothing() {
    let bed = Bed::with_bucket();
    let cases: [(&str, Reply, &str); 7] = [
        (
            "other data",
            put_signed(&bed, |body| body.replace("hello", "jello")),
            "SignatureDoesNotMatch",
        ),
        (
            "other signature",
            put_signed(&bed, |body| {
                let at = body.find("signature=").expect("a signature") + "signature=".len();
                let other = if &body[at..=at] == "0" { "1" } else { "0" };
                format!("{}{other}{}", &body[..at], &body[at + 1..])
            }),
            "SignatureDoesNotMatch",
        ),
        (
            "a digit too many",
            put_signed(&bed, |body| body.replacen("signature=", "signature=0", 1)),
            "InvalidRequest",
        ),
        ("no signature", put_signed(&bed, |_| "5\r\nhello\r\n0\r\n\r\n".into()), "InvalidRequest"),
        (
            "last chunk missing",
            put_signed(&bed, |body| {
                body.split("\r\n0;").next().unwrap_or_default().to_owned() + "\r\n"
            }),
            "IncompleteBody",
        ),
        (
            "last signature wrong",
            put_signed(&bed, |body| {
                let at = body.rfind('=').expect("a signature") + 1;
                format!("{}{}\r\n\r\n", &body[..at], "0".repeat(64))
            }),
            "SignatureDoesNotMatch",
        ),
        ("not in chunks", put_signed(&bed, |_| "hello".into()), "IncompleteBody"),
    ];
    for (name, reply, code) in cases {
        assert_eq!(reply.error().1, code, "{name}: {}", reply.text());
    }
    assert_eq!(bed.model.objects(), 0);
    assert_eq!(put_signed(&bed, |body| body).status, 200);
}

#[test]
fn a_signed_trailer_is_checked() {
    let bed = Bed::with_bucket();
    let put = |trailer: &str, is_signed: bool| {
        let ask = streamed(&bed, STREAM_TRAILER, 5).header("x-amz-trailer", "x-amz-checksum-crc32");
        let (mut body, last) = signed_chunks(&ask, &[b"hello"]);
        let mut signature = ask.signer.trailer(&last, &format!("{trailer}\n"));
        if !is_signed {
            signature = "0".repeat(64);
        }
        let text = format!("{trailer}\r\nx-amz-trailer-signature:{signature}\r\n\r\n");
        body.extend_from_slice(text.as_bytes());
        ask.body(&body).send()
    };
    let good = format!("x-amz-checksum-crc32:{HELLO_CRC32}");
    assert_eq!(put(&good, false).error(), (403, "SignatureDoesNotMatch".into()));
    assert_eq!(put("x-amz-checksum-crc32:AAAAAA==", true).error(), (400, "BadDigest".into()));
    assert_eq!(
        put("x-amz-checksum-sha1:AAAAAA==", true).error(),
        (400, "MalformedTrailerError".into())
    );
    assert_eq!(bed.model.objects(), 0);
    let reply = put(&good, true);
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(reply.header("x-amz-checksum-crc32"), Some(HELLO_CRC32));
}

/// Puts `hello` in unsigned chunks with a checksum behind them.
fn put_unsigned(bed: &Bed, body: &str) -> Reply {
    let ask = streamed(bed, STREAM_UNSIGNED, 5).header("x-amz-trailer", "x-amz-checksum-crc32");
    ask.header("x-amz-sdk-checksum-algorithm", "CRC32").body(body.as_bytes()).send()
}

#[test]
fn unsigned_chunks_with_a_trailer_are_checked() {
    let bed = Bed::with_bucket();
    let trailer = format!("x-amz-checksum-crc32:{HELLO_CRC32}\r\n\r\n");
    for (name, body, code) in [
        (
            "wrong sum",
            "5\r\nhello\r\n0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n".into(),
            "BadDigest",
        ),
        ("no sum", "5\r\nhello\r\n0\r\n\r\n".into(), "MalformedTrailerError"),
        (
            "two sums",
            format!("5\r\nhello\r\n0\r\nx-amz-checksum-crc32:{HELLO_CRC32}\r\n{trailer}"),
            "MalformedTrailerError",
        ),
        ("no end", "5\r\nhello\r\n".into(), "IncompleteBody"),
        ("cut", "5\r\nhel".into(), "IncompleteBody"),
        ("too short", format!("4\r\nhell\r\n0\r\n{trailer}"), "IncompleteBody"),
        ("too long", format!("6\r\nhello!\r\n0\r\n{trailer}"), "IncompleteBody"),
        ("no hex", format!("x\r\nhello\r\n0\r\n{trailer}"), "InvalidRequest"),
        ("empty", String::new(), "IncompleteBody"),
    ] {
        let reply = put_unsigned(&bed, &body);
        assert_eq!(reply.error(), (400, code.into()), "{name}: {}", reply.text());
    }
    assert_eq!(bed.model.objects(), 0);
    let reply = put_unsigned(&bed, &format!("2\r\nhe\r\n3\r\nllo\r\n0\r\n{trailer}"));
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(content(&bed).as_deref(), Some(&b"hello"[..]));
}

/// A bucket into which all may put.
fn public_bed() -> Bed {
    let bed = Bed::with_bucket();
    let policy = r#"{"Statement":[{"Effect":"Allow","Principal":"*","Action":"s3:PutObject",
        "Resource":"arn:aws:s3:::bucket/*"}]}"#;
    bed.model.set(BUCKET, Setting::PublicAccess(PublicAccess::all(false)));
    bed.model.set(BUCKET, Setting::Policy(Some(policy.to_owned())));
    bed
}

/// The headers of `hello` in unsigned chunks with a checksum behind them, as SDKs write them.
fn chunked_hello(ask: Ask) -> Ask {
    ask.header("content-encoding", "gzip,aws-chunked")
        .header("x-amz-decoded-content-length", "5")
        .header("x-amz-trailer", "x-amz-checksum-crc32")
        .header("x-amz-sdk-checksum-algorithm", "CRC32")
}

#[test]
fn unsigned_chunks_of_a_caller_without_a_signature_are_decoded() {
    let bed = public_bed();
    let body = format!("2\r\nhe\r\n3\r\nllo\r\n0\r\nx-amz-checksum-crc32:{HELLO_CRC32}\r\n\r\n");
    let put = |ask: Ask, body: &str| {
        let reply = chunked_hello(ask).body(body.as_bytes()).send_plain();
        assert_eq!(reply.status, 200, "{}", reply.text());
        assert_eq!(reply.header("x-amz-checksum-crc32"), Some(HELLO_CRC32));
        let (info, content) = bed.model.object("k").expect("an object");
        assert_eq!(content, b"hello");
        assert_eq!(info.object.facts.metadata.get("content-encoding"), Some("gzip"));
        assert_eq!(bed.object("DELETE", "k").send().status, 204);
    };
    let named = || bed.object("PUT", "k").header("x-amz-content-sha256", STREAM_UNSIGNED);
    put(named(), &body);
    // Older SDKs of Python say nothing of it there.
    put(bed.object("PUT", "k"), &body);
    let http_chunk = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
    put(named().header("transfer-encoding", "chunked"), &http_chunk);
    // As large as the object, and in many packets.
    let big = vec![3; (3 << 20) + 1];
    let chunk = [format!("{:x}\r\n", big.len()).as_bytes(), &big, b"\r\n0\r\n\r\n"].concat();
    let ask = bed.object("PUT", "k").header("content-encoding", "aws-chunked");
    let ask = ask.header("x-amz-decoded-content-length", &big.len().to_string());
    assert_eq!(ask.body(&chunk).send_plain().status, 200);
    assert!(content(&bed) == Some(big), "the bytes differ");
}

#[test]
fn flawed_chunks_of_a_caller_without_a_signature_store_nothing() {
    let bed = public_bed();
    let put = |headers: &[(&str, &str)], body: &str| {
        let ask = bed.object("PUT", "k").header("x-amz-content-sha256", STREAM_UNSIGNED);
        let ask =
            headers.iter().fold(chunked_hello(ask), |ask, (name, value)| ask.header(name, value));
        ask.body(body.as_bytes()).send_plain()
    };
    let trailer = format!("x-amz-checksum-crc32:{HELLO_CRC32}\r\n\r\n");
    let long = format!("x-t:{}\r\n{trailer}", "1".repeat(20_000));
    for (name, body, code) in [
        (
            "wrong sum",
            "5\r\nhello\r\n0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n".into(),
            "BadDigest",
        ),
        ("no sum", "5\r\nhello\r\n0\r\n\r\n".into(), "MalformedTrailerError"),
        ("two sums", format!("5\r\nhello\r\n0\r\n{trailer}{trailer}"), "MalformedTrailerError"),
        ("no header", "5\r\nhello\r\n0\r\nsum\r\n\r\n".into(), "MalformedTrailerError"),
        ("long trailers", format!("5\r\nhello\r\n0\r\n{long}"), "MalformedTrailerError"),
        (
            "long line",
            format!("5;{}\r\nhello\r\n0\r\n{trailer}", "x".repeat(300)),
            "InvalidRequest",
        ),
        ("no end", "5\r\nhello\r\n".into(), "IncompleteBody"),
        ("cut", "5\r\nhel".into(), "IncompleteBody"),
        ("too short", format!("4\r\nhell\r\n0\r\n{trailer}"), "IncompleteBody"),
        ("too long", format!("6\r\nhello!\r\n0\r\n{trailer}"), "IncompleteBody"),
        ("no hex", format!("x\r\nhello\r\n0\r\n{trailer}"), "InvalidRequest"),
        ("not in chunks", "hello".into(), "IncompleteBody"),
        ("empty", String::new(), "IncompleteBody"),
    ] {
        let reply = put(&[], &body);
        assert_eq!(reply.error(), (400, code.into()), "{name}: {}", reply.text());
    }
    let good = format!("5\r\nhello\r\n0\r\n{trailer}");
    let md5 = ("content-md5", "XUFAKrxLKna5cZ2REBfFkg==");
    assert_eq!(put(&[("content-md5", "JfnnlDI7RTiF9RgfG2JNCw==")], &good).error().1, "BadDigest");
    assert_eq!(bed.model.objects(), 0);
    assert_eq!(put(&[md5], &good).status, 200);
    // Its signed chunks would be verified by no key.
    let signed = bed.object("PUT", "k2").header("x-amz-content-sha256", STREAM);
    let reply = chunked_hello(signed).body(good.as_bytes()).send_plain();
    assert_eq!(reply.error(), (400, "InvalidRequest".into()));
    bed.model.set(BUCKET, Setting::Policy(None));
    assert_eq!(put(&[], &good).error(), (403, "AccessDenied".into()));
    assert_eq!(bed.model.objects(), 1);
}

#[test]
fn a_part_in_unsigned_chunks_needs_no_signature_either() {
    let bed = public_bed();
    let id = begin(&bed, "k");
    let put = |sum: &str| {
        let ask = part_ask(&bed, &id, 1, b"").header("x-amz-content-sha256", STREAM_UNSIGNED);
        let body = format!("5\r\nhello\r\n0\r\nx-amz-checksum-crc32:{sum}\r\n\r\n");
        chunked_hello(ask).body(body.as_bytes()).send_plain()
    };
    assert_eq!(put("AAAAAA==").error(), (400, "BadDigest".into()));
    let reply = put(HELLO_CRC32);
    assert_eq!(reply.status, 200, "{}", reply.text());
    let tag = reply.header("etag").expect("a tag").to_owned();
    assert_eq!(complete_ask(&bed, &id, &[(1, &tag)]).send().status, 200);
    assert_eq!(content(&bed).as_deref(), Some(&b"hello"[..]));
}

#[test]
fn a_body_without_a_signature_is_compared_with_its_sha_256() {
    let bed = public_bed();
    let put = |body: &[u8], named: &[u8]| {
        let ask = bed.object("PUT", "k").header("x-amz-content-sha256", &sha256(named));
        ask.body(body).send_plain()
    };
    let mismatch = (400, "XAmzContentSHA256Mismatch".to_owned());
    let big = vec![5; (3 << 20) + 1];
    for (body, named) in [(&b"jello"[..], &b"hello"[..]), (b"", b"hello"), (b"hello", b"")] {
        let reply = put(body, named);
        assert_eq!(reply.error(), mismatch, "{}", reply.text());
    }
    assert_eq!(put(&big, &big[1..]).error(), mismatch);
    assert_eq!(bed.model.objects(), 0);
    for body in [&b""[..], b"hello", &big] {
        let reply = put(body, body);
        assert_eq!(reply.status, 200, "{}", reply.text());
        assert!(content(&bed).as_deref() == Some(body), "the bytes differ");
    }
    let id = begin(&bed, "k");
    let part = |named: &[u8]| {
        let ask = part_ask(&bed, &id, 1, b"hello");
        ask.header("x-amz-content-sha256", &sha256(named)).send_plain()
    };
    assert_eq!(part(b"jello").error(), mismatch);
    assert_eq!(part(b"hello").status, 200);
    // What says that nothing is said is compared with nothing.
    let unsigned = bed.object("PUT", "k").header("x-amz-content-sha256", UNSIGNED);
    assert_eq!(unsigned.body(b"hello").send_plain().status, 200);
}

#[test]
fn a_document_is_not_sent_in_chunks() {
    let bed = Bed::with_bucket();
    let rule = "<ServerSideEncryptionConfiguration><Rule><ApplyServerSideEncryptionByDefault>\
                <SSEAlgorithm>AES256</SSEAlgorithm></ApplyServerSideEncryptionByDefault></Rule>\
                </ServerSideEncryptionConfiguration>";
    // s3s checks no digest of it, so one that is behind it would not be either.
    let body = format!("{:x}\r\n{rule}\r\n0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n", rule.len());
    let ask = bed.ask("PUT", "/bucket").query("encryption", "").payload(STREAM_UNSIGNED);
    let ask = ask.header("x-amz-decoded-content-length", &rule.len().to_string());
    let ask = ask.header("x-amz-trailer", "x-amz-checksum-crc32");
    assert_eq!(ask.body(body.as_bytes()).send().error(), (400, "InvalidRequest".into()));
}

/// A request that puts a content in one signed chunk, and bytes of its body.
fn in_one_chunk(bed: &Bed, content: &[u8]) -> (Vec<u8>, usize) {
    let ask = streamed(bed, STREAM, content.len());
    let (mut body, _) = signed_chunks(&ask, &[content]);
    body.extend_from_slice(b"\r\n");
    (ask.body(&body).bytes(), body.len())
}

#[test]
fn a_signed_chunk_that_is_larger_than_the_memory_is_taken() {
    let times = Times { claim: Duration::from_millis(300), ..Times::default() };
    let bed = Bed::with(GatewayConfig { memory_bytes: 1 << 20, times, ..GatewayConfig::default() });
    assert_eq!(bed.ask("PUT", "/bucket").send().status, 200);
    let big = vec![4; 3 << 19];
    let mut stream = bed.connect();
    stream.write_all(&in_one_chunk(&bed, &big).0).expect("sent");
    let reply = read_reply(&mut stream, false).expect("an answer");
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert!(content(&bed) == Some(big), "the bytes differ");
}

#[test]
fn uploads_in_signed_chunks_do_not_wait_for_each_other() {
    let times = Times { claim: Duration::from_secs(2), ..Times::default() };
    let config = GatewayConfig { memory_bytes: 2 << 20, times, ..GatewayConfig::default() };
    let bed = Bed::with(config);
    assert_eq!(bed.ask("PUT", "/bucket").send().status, 200);
    // With its buffer, each of the two needs nearly all of the memory.
    let big = vec![7; 1 << 20];
    let (bytes, len) = in_one_chunk(&bed, &big);
    let (head, body) = bytes.split_at(bytes.len() - len);
    let mut streams = [bed.connect(), bed.connect()];
    for stream in &mut streams {
        stream.write_all(head).expect("sent");
    }
    while bed.model.uploads_begun.load(Ordering::Relaxed) < 2 {
        std::thread::yield_now();
    }
    // Its one thread is beyond both heads then.
    assert_eq!(bed.ask("GET", "/").send().status, 200);
    let (start, rest) = body.split_at(1_000);
    let claimed = bed.gateway.memory_counter();
    for stream in &mut streams {
        stream.write_all(start).expect("sent");
        while claimed().0 == 0 {
            std::thread::yield_now();
        }
    }
    for stream in &mut streams {
        stream.write_all(rest).expect("sent");
        let reply = read_reply(stream, false).expect("an answer");
        assert_eq!(reply.status, 200, "{}", reply.text());
    }
    assert!(content(&bed) == Some(big), "the bytes differ");
}

#[test]
fn one_unsigned_chunk_may_be_as_large_as_the_object() {
    // Its memory is a fifth of the object.
    let bed = Bed::with(GatewayConfig { memory_bytes: 2 << 20, ..GatewayConfig::default() });
    assert_eq!(bed.ask("PUT", "/bucket").send().status, 200);
    let big = vec![9; 10 << 20];
    let mut body = format!("{:x}\r\n", big.len()).into_bytes();
    body.extend_from_slice(&big);
    body.extend_from_slice(b"\r\n0\r\n\r\n");
    let reply =
        streamed(&bed, STREAM_UNSIGNED, big.len()).header("x-amz-trailer", "").body(&body).send();
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(content(&bed), Some(big));
}

#[test]
fn chunks_that_the_head_does_not_announce_are_refused() {
    let bed = Bed::with_bucket();
    let plain =
        bed.object("PUT", "k").header("content-encoding", "aws-chunked").body(b"5\r\nhello");
    assert_eq!(plain.send().error(), (400, "InvalidRequest".into()));
    let no_len = bed.object("PUT", "k").payload(STREAM).body(b"x").send();
    assert_eq!(no_len.error(), (411, "MissingContentLength".into()));
    let no_number =
        bed.object("PUT", "k").payload(STREAM).header("x-amz-decoded-content-length", "5x");
    assert_eq!(no_number.body(b"x").send().error(), (400, "InvalidArgument".into()));
    let ecdsa = streamed(&bed, "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD", 5).body(b"x").send();
    assert_eq!(ecdsa.error(), (501, "NotImplemented".into()));
    assert_eq!(bed.model.objects(), 0);
}

#[test]
fn a_body_that_is_not_the_signed_one_stores_nothing() {
    let bed = Bed::with_bucket();
    let put = |payload: &str| bed.object("PUT", "k").payload(payload).body(b"hello").send();
    let other = sha256(b"jello");
    assert_eq!(put(&other).error(), (400, "XAmzContentSHA256Mismatch".into()));
    assert_eq!(bed.model.objects(), 0);
    assert_eq!(put(UNSIGNED).status, 200);
    let presigned = bed.object("PUT", "k2").header("x-amz-content-sha256", &other).presigned("60");
    let reply = presigned.body(b"hello").send_plain();
    assert_eq!(reply.error(), (400, "XAmzContentSHA256Mismatch".into()));
    assert_eq!(bed.model.objects(), 1);
}

#[test]
fn a_truncated_body_stores_nothing() {
    let bed = Bed::with_bucket();
    for payload in [UNSIGNED, &sha256(b"hello")] {
        let ask =
            bed.object("PUT", "k").payload(payload).header("content-length", "5").body(b"hell");
        let mut stream = bed.connect();
        stream.write_all(&ask.bytes()).expect("sent");
        stream.shutdown(Shutdown::Write).expect("closed");
        let reply = read_reply(&mut stream, false);
        assert!(reply.is_none_or(|reply| reply.error() == (400, "IncompleteBody".into())));
    }
    assert_eq!(bed.model.objects(), 0);
}

#[test]
fn a_body_needs_its_length() {
    let bed = Bed::with_bucket();
    let ask = bed.object("PUT", "k").payload(UNSIGNED).unsigned("transfer-encoding", "chunked");
    let reply = ask.body(b"5\r\nhello\r\n0\r\n\r\n").send();
    assert_eq!(reply.error(), (411, "MissingContentLength".into()));
    let len = ((5u64 << 30) + 1).to_string();
    let large = bed.object("PUT", "k").payload(UNSIGNED).header("content-length", &len).send();
    assert_eq!(large.error(), (400, "EntityTooLarge".into()));
    assert_eq!(bed.model.objects(), 0);
    // Chunks of HTTP around aws-chunked: the content's length is known.
    let ask = streamed(&bed, STREAM_UNSIGNED, 5).unsigned("transfer-encoding", "chunked");
    let ask = ask.header("x-amz-trailer", "x-amz-checksum-crc32");
    let inner = format!("5\r\nhello\r\n0\r\nx-amz-checksum-crc32:{HELLO_CRC32}\r\n\r\n");
    let body = format!("{:x}\r\n{inner}\r\n0\r\n\r\n", inner.len());
    let reply = ask.body(body.as_bytes()).send();
    assert_eq!(reply.status, 200, "{}", reply.text());
}

#[test]
fn a_client_that_waits_is_asked_to_go_on_only_if_it_may() {
    let bed = Bed::with_bucket();
    let ask = bed.object("PUT", "k").header("expect", "100-continue").header("content-length", "5");
    let head = |ask: &Ask| ask.clone().payload(&sha256(b"hello")).bytes();
    let mut stream = bed.connect();
    stream.write_all(&head(&ask)).expect("sent");
    let mut line = [0; 25];
    std::io::Read::read_exact(&mut stream, &mut line).expect("an answer");
    assert_eq!(&line, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(b"hello").expect("sent");
    assert_eq!(read_reply(&mut stream, false).map(|reply| reply.status), Some(200));
    let mut stream = bed.connect();
    stream.write_all(&head(&ask.by(("AKADMIN", "wrong")))).expect("sent");
    let mut start = [0; 12];
    std::io::Read::read_exact(&mut stream, &mut start).expect("an answer");
    assert_eq!(&start, b"HTTP/1.1 403");
}

#[test]
fn a_client_that_sends_before_it_reads_gets_the_refusal() {
    let bed = Bed::with_bucket();
    let content = vec![1; 7 << 20];
    let put = || bed.object("PUT", "k").body(&content);
    let mut stream = bed.connect();
    for (bytes, status) in [
        (put().by(("AKADMIN", "wrong")).bytes(), 403),
        (put().unsigned("x-amz-meta-a", "b").bytes(), 403),
        (put().header("x-amz-write-offset-bytes", "5").bytes(), 501),
        (put().bytes(), 200),
    ] {
        stream.write_all(&bytes).expect("sent");
        assert_eq!(read_reply(&mut stream, false).map(|reply| reply.status), Some(status));
    }
}

#[test]
fn a_body_that_stalls_is_refused_in_time() {
    let times = Times { stall: Duration::from_millis(200), ..Times::default() };
    let bed = Bed::with(GatewayConfig { times, ..GatewayConfig::default() });
    assert_eq!(bed.ask("PUT", "/bucket").send().status, 200);
    let ask = bed.object("PUT", "k").payload(UNSIGNED).header("content-length", "5").body(b"he");
    assert_eq!(ask.send().error(), (400, "RequestTimeout".into()));
    assert_eq!(bed.model.objects(), 0);
}

#[test]
fn a_client_that_takes_nothing_is_cut_off_in_time() {
    let times = Times { stall: Duration::from_millis(300), ..Times::default() };
    let bed = Bed::with(GatewayConfig { times, ..GatewayConfig::default() });
    assert_eq!(bed.ask("PUT", "/bucket").send().status, 200);
    let content = vec![1; 64 << 20];
    assert_eq!(bed.put("k", &content).status, 200);
    let mut stream = bed.connect();
    stream.write_all(&bed.object("GET", "k").bytes()).expect("sent");
    let open = &bed.model.contents_open;
    while open.load(Ordering::Relaxed) == 0 {
        std::thread::yield_now();
    }
    while open.load(Ordering::Relaxed) > 0 {
        std::thread::yield_now();
    }
    let reply = read_reply(&mut stream, false).expect("a head");
    assert_eq!((reply.status, reply.whole), (200, false));
}

#[test]
fn requests_beyond_the_memory_wait_and_are_then_turned_away() {
    let times = Times { claim: Duration::from_millis(300), ..Times::default() };
    let config = GatewayConfig { memory_bytes: 1 << 20, times, ..GatewayConfig::default() };
    let bed = Bed::with(config);
    assert_eq!(bed.ask("PUT", "/bucket").send().status, 200);
    // Holds all the memory until its body has come.
    let len = (1 << 20).to_string();
    let slow = bed.object("PUT", "slow").payload(UNSIGNED).header("content-length", &len);
    let mut stream = bed.connect();
    stream.write_all(&slow.body(&[0]).bytes()).expect("sent");
    while bed.model.uploads_begun.load(Ordering::Relaxed) == 0 {
        std::thread::yield_now();
    }
    let turned_away = loop {
        // The slow one's claim comes an instant after its start.
        let reply = bed.put("k", b"hello");
        if reply.status != 200 {
            break reply;
        }
    };
    assert_eq!(turned_away.error(), (503, "SlowDown".into()));
    stream.write_all(&vec![0; (1 << 20) - 1]).expect("sent");
    assert_eq!(read_reply(&mut stream, false).map(|reply| reply.status), Some(200));
    assert_eq!(bed.put("k", b"hello").status, 200);
}

#[test]
fn a_body_without_a_right_to_it_holds_no_memory() {
    let times = Times { claim: Duration::from_millis(300), ..Times::default() };
    let config = GatewayConfig { memory_bytes: 4 << 20, times, ..GatewayConfig::default() };
    let bed = Bed::with(config);
    assert_eq!(bed.ask("PUT", "/bucket").send().status, 200);
    let len = (4 << 20).to_string();
    for (method, key, query) in [
        ("POST", "", "delete"),
        ("PUT", "k", "retention"),
        ("PUT", "k", "legal-hold"),
        ("PUT", "k", "tagging"),
    ] {
        let ask = bed.object(method, key).query(query, "").header("content-length", &len);
        let mut stalled = bed.connect();
        stalled.write_all(&ask.body(b"<").plain_bytes()).expect("sent");
        let refused = read_reply(&mut stalled, false).expect("an answer");
        assert_eq!(refused.error(), (403, "AccessDenied".into()), "{query}");
        assert_eq!(bed.put("k", b"hello").status, 200, "{query}");
    }
}
