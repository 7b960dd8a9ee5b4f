use proptest::prelude::*;

use super::*;

fn scan(signed: bool, len: u64, parts: &[&[u8]]) -> Result<String, &'static str> {
    let mut scanner = Scanner::new(signed, len);
    let mut out = VecDeque::new();
    for part in parts {
        let part = Bytes::copy_from_slice(part);
        scanner.feed(part, &mut out).map_err(|refusal| refusal.code)?;
    }
    scanner.end().map_err(|refusal| refusal.code)?;
    let bytes: Vec<u8> = out.into_iter().flatten().collect();
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[test]
fn unsigned_chunks_are_cut_at_what_was_received() {
    let parts: [&[u8]; 3] = [b"A\r\n01234", b"56789\r\n1\r\n!\r", b"\n0\r\nx-t: 1\r\n\r\n"];
    let written = "5\r\n01234\r\n5\r\n56789\r\n1\r\n!\r\n0\r\nx-t: 1\r\n\r\n";
    assert_eq!(scan(false, 11, &parts).as_deref(), Ok(written));
}

#[test]
fn signed_chunks_pass_as_they_are() {
    let body: &[u8] = b"2;chunk-signature=ab\r\nhi\r\n0;chunk-signature=cd\r\n\r\n";
    let text = String::from_utf8_lossy(body).into_owned();
    assert_eq!(scan(true, 2, &[body]), Ok(text));
}

#[test]
fn wrong_framing_is_refused() {
    let cases: &[(u64, &[u8], &str)] = &[
        (2, b"2\r\nhi\r\n", "IncompleteBody"),
        (2, b"2\r\nhi", "IncompleteBody"),
        (2, b"", "IncompleteBody"),
        (2, b"2\r", "IncompleteBody"),
        (3, b"2\r\nhi\r\n0\r\n\r\n", "IncompleteBody"),
        (1, b"2\r\nhi\r\n0\r\n\r\n", "IncompleteBody"),
        (2, b"2\nhi\r\n0\r\n\r\n", "InvalidRequest"),
        (2, b"g\r\nhi\r\n0\r\n\r\n", "InvalidRequest"),
        (2, b"+2\r\nhi\r\n0\r\n\r\n", "InvalidRequest"),
        (2, b"\r\nhi\r\n0\r\n\r\n", "InvalidRequest"),
        (2, b"2\r\nhi0\r\n\r\n", "InvalidRequest"),
        (2, &[b'0'; CHUNK_LINE_MAX + 1], "InvalidRequest"),
        (2, b"fffffffffffffffff\r\n", "InvalidRequest"),
    ];
    for (len, body, code) in cases {
        let text = String::from_utf8_lossy(body);
        assert_eq!(scan(false, *len, &[body]), Err(*code), "{text}");
    }
}

#[test]
fn a_signed_chunk_is_bounded_and_an_unsigned_one_is_not() {
    let line = format!("{:x}\r\n", SIGNED_CHUNK_MAX + 1);
    let mut out = VecDeque::new();
    let mut scanner = Scanner::new(true, u64::MAX);
    let refused = scanner.feed(Bytes::from(line.clone()), &mut out);
    assert_eq!(refused.map_err(|refusal| refusal.code), Err("InvalidRequest"));
    let mut scanner = Scanner::new(false, u64::MAX);
    assert_eq!(scanner.feed(Bytes::from(line), &mut out), Ok(()));
    assert_eq!(scanner.held(), 0);
}

#[test]
fn a_signed_chunk_that_comes_in_small_packets_is_put_out_in_few_pieces() {
    let body = [&b"186a0;chunk-signature=ab\r\n"[..], &[7; 100_000], b"\r\n"].concat();
    let mut scanner = Scanner::new(true, 100_000);
    let mut out = VecDeque::new();
    for packet in body.chunks(10) {
        scanner.feed(Bytes::copy_from_slice(packet), &mut out).expect("good framing");
    }
    assert!(out.len() <= 10, "{} pieces of 10 bytes each keep 8 KiB", out.len());
    assert_eq!(out.into_iter().flatten().collect::<Vec<u8>>(), body);
}

proptest! {
    #[test]
    fn any_body_is_decided(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
        fuzz_chunked(&bytes);
    }

    #[test]
    fn a_body_of_chunks_passes_wherever_it_is_cut(
        chunks in proptest::collection::vec("[a-z]{1,20}", 0..6),
        cuts in proptest::collection::vec(any::<proptest::sample::Index>(), 0..4),
    ) {
        let content = chunks.concat();
        let framed = |text: &String| format!("{:x}\r\n{text}\r\n", text.len());
        let body = chunks.iter().map(framed).collect::<String>() + "0\r\n\r\n";
        let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(body.len())).collect();
        at.extend([0, body.len()]);
        at.sort_unstable();
        let parts: Vec<&[u8]> =
            at.windows(2).map(|pair| &body.as_bytes()[pair[0]..pair[1]]).collect();
        prop_assert!(scan(false, content.len() as u64, &parts).is_ok());
        prop_assert!(scan(false, content.len() as u64 + 1, &parts).is_err());
    }
}
