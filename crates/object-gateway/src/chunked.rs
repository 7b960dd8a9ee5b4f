//! [`Scanner`]: the framing of `aws-chunked` bodies, checked before s3s decodes them. Pure.
//!
//! s3s holds a whole chunk in memory whatever its size, and takes a body that ends between chunks
//! for complete. Chunks without signatures are therefore written again as small ones; signed chunks
//! pass as they are, up to a size that the caller claims memory for.

use std::collections::VecDeque;

use bytes::{Buf, Bytes};

use crate::limits::{CHUNK_LINE_MAX, SIGNED_CHUNK_MAX};
use crate::reply::Refusal;

/// Reader of a body's framing.
#[derive(Debug)]
pub struct Scanner {
    signed: bool,
    /// Bytes of the content that no chunk has announced yet.
    left: u64,
    /// Bytes of the largest chunk.
    largest: u64,
    state: State,
}

#[derive(Debug)]
enum State {
    /// In a chunk's first line, of which this was read.
    Line(Vec<u8>),
    /// In a chunk's data, of which so much is to come.
    Data(u64),
    /// Behind a chunk's data, before this.
    DataEnd(&'static [u8]),
    /// Behind the last chunk.
    Trailers,
}

impl Scanner {
    /// For a content of `len` bytes.
    pub fn new(signed: bool, len: u64) -> Scanner {
        Scanner { signed, left: len, largest: 0, state: State::Line(Vec::new()) }
    }

    /// Bytes of a chunk that s3s holds at most, of those seen.
    pub fn held(&self) -> usize {
        if self.signed { self.largest as usize } else { 0 } // `SIGNED_CHUNK_MAX` bounds it.
    }

    /// Takes what was received, and puts out what s3s is to read.
    ///
    /// # Errors
    ///
    /// A [`Refusal`] when the framing is wrong.
    pub fn feed(&mut self, mut input: Bytes, out: &mut VecDeque<Bytes>) -> Result<(), Refusal> {
        if self.signed {
            out.push_back(input.clone());
        }
        while !input.is_empty() {
            match &mut self.state {
                State::Line(line) => {
                    let len = input.iter().position(|&byte| byte == b'\n').map(|at| at + 1);
                    let part = input.split_to(len.unwrap_or(input.len()));
                    if line.len() + part.len() > CHUNK_LINE_MAX {
                        return Err(malformed());
                    }
                    line.extend_from_slice(&part);
                    if len.is_some() {
                        let size = size_of(line).ok_or_else(malformed)?;
                        self.begin(size, out)?;
                    }
                }
                State::Data(left) => {
                    let len = usize::try_from(*left).unwrap_or(usize::MAX).min(input.len());
                    let part = input.split_to(len);
                    *left -= part.len() as u64;
                    if *left == 0 {
                        self.state = State::DataEnd(b"\r\n");
                    }
                    if !self.signed {
                        out.push_back(Bytes::from(format!("{:x}\r\n", part.len())));
                        out.push_back(part);
                        out.push_back(Bytes::from_static(b"\r\n"));
                    }
                }
                State::DataEnd(wanted) => {
                    if input.get_u8() != wanted[0] {
                        return Err(malformed());
                    }
                    *wanted = &wanted[1..];
                    if wanted.is_empty() {
                        self.state = State::Line(Vec::new());
                    }
                }
                State::Trailers => {
                    let rest = input.split_to(input.len());
                    if !self.signed {
                        out.push_back(rest);
                    }
                }
            }
        }
        Ok(())
    }

    /// The body has ended.
    ///
    /// # Errors
    ///
    /// A [`Refusal`] when its last chunk did not come.
    pub fn end(&self) -> Result<(), Refusal> {
        match self.state {
            State::Trailers => Ok(()),
            _ => Err(incomplete("The body ended before its last chunk.")),
        }
    }

    fn begin(&mut self, size: u64, out: &mut VecDeque<Bytes>) -> Result<(), Refusal> {
        if size > self.left {
            return Err(incomplete(
                "The chunks have more bytes than x-amz-decoded-content-length.",
            ));
        }
        if size == 0 {
            if self.left > 0 {
                let message = "The chunks have fewer bytes than x-amz-decoded-content-length.";
                return Err(incomplete(message));
            }
            if !self.signed {
                out.push_back(Bytes::from_static(b"0\r\n"));
            }
            self.state = State::Trailers;
            return Ok(());
        }
        if self.signed && size > SIGNED_CHUNK_MAX as u64 {
            let message = format!("A signed chunk has {SIGNED_CHUNK_MAX} bytes at most here.");
            return Err(Refusal::new("InvalidRequest", message));
        }
        self.left -= size;
        self.largest = self.largest.max(size);
        self.state = State::Data(size);
        Ok(())
    }
}

/// Size in a chunk's first line.
fn size_of(line: &[u8]) -> Option<u64> {
    let line = line.strip_suffix(b"\r\n")?;
    let digits = line.split(|&byte| byte == b';').next()?;
    let is_hex = !digits.is_empty() && digits.iter().all(u8::is_ascii_hexdigit);
    let digits = std::str::from_utf8(digits).ok().filter(|_| is_hex)?;
    u64::from_str_radix(digits, 16).ok()
}

fn malformed() -> Refusal {
    Refusal::new("InvalidRequest", "The body is not in aws-chunked as its headers say.")
}

fn incomplete(message: &'static str) -> Refusal {
    Refusal::new("IncompleteBody", message)
}

/// Fuzz target: any body, cut anywhere, passes or is refused, in the same way; what is put out for
/// unsigned chunks scans to the same content.
pub fn fuzz_chunked(bytes: &[u8]) {
    let Some((&[cut, len, signed], body)) = bytes.split_first_chunk() else { return };
    let scan = |parts: &[&[u8]]| {
        let mut scanner = Scanner::new(signed % 2 == 0, u64::from(len));
        let mut out = VecDeque::new();
        for part in parts {
            scanner.feed(Bytes::copy_from_slice(part), &mut out)?;
        }
        scanner.end()?;
        Ok::<_, Refusal>(out.into_iter().flatten().collect::<Vec<u8>>())
    };
    let (first, second) = body.split_at(usize::from(cut).min(body.len()));
    let (whole, parts) = (scan(&[body]), scan(&[first, second]));
    assert_eq!(whole.is_ok(), parts.is_ok());
    if let Ok(written) = parts {
        assert!(scan(&[&written]).is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
}
