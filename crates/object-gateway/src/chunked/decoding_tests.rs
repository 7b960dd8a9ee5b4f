//! Chunks that are decoded here.

use super::*;

/// Decodes a content of 5 bytes.
fn decoded(parts: &[&[u8]]) -> Result<(Vec<u8>, HeaderMap), &'static str> {
    let (mut scanner, mut out) = (Scanner::decoding(5), VecDeque::new());
    for part in parts {
        let part = Bytes::copy_from_slice(part);
        scanner.feed(part, &mut out).map_err(|refusal| refusal.code)?;
    }
    scanner.end().map_err(|refusal| refusal.code)?;
    let trailers = scanner.trailers().map_err(|refusal| refusal.code)?;
    Ok((out.into_iter().flatten().collect(), trailers))
}

#[test]
fn content_and_trailers_come_out_wherever_the_body_is_cut() {
    let body: &[u8] = b"2\r\nhe\r\n3\r\nllo\r\n0\r\nX-T: 1 \r\nx-u:\n\r\n";
    for cut in 0..body.len() {
        let (first, second) = body.split_at(cut);
        let (content, trailers) = decoded(&[first, second]).expect("a body");
        assert_eq!(content, b"hello");
        assert_eq!(trailers["x-t"], "1");
        assert_eq!(trailers["x-u"], "");
    }
    assert_eq!(decoded(&[b"5\r\nhello\r\n0\r\n\r\n"]).map(|(_, trailers)| trailers.len()), Ok(0));
    let with = |trailers: &str| [b"5\r\nhello\r\n0\r\n", trailers.as_bytes()].concat();
    for flawed in ["x-t 1\r\n", ":1\r\n", "x t:1\r\n", "x-t:\u{1}\r\n"] {
        assert_eq!(decoded(&[&with(flawed)]).err(), Some("MalformedTrailerError"), "{flawed:?}");
    }
    let long = format!("x-t:{}", "1".repeat(TRAILERS_MAX - 4));
    assert!(decoded(&[&with(&long)]).is_ok());
    assert_eq!(decoded(&[&with(&long), b"1"]).err(), Some("MalformedTrailerError"));
}
