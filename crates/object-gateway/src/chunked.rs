//! [`Scanner`]: the framing of `aws-chunked` bodies, checked before s3s decodes them. Pure.
//!
//! s3s holds a whole chunk in memory whatever its size, and takes a body that ends between chunks
//! for complete. Chunks without signatures are therefore written again as small ones; signed chunks
//! pass as they are, up to a size that the caller claims memory for. s3s decodes no chunks of a
//! request without a signature: of these the content alone is put out.

use std::collections::VecDeque;

use bytes::{Buf, Bytes};
use http::header::{HeaderMap, HeaderName, HeaderValue};

use crate::digest::malformed_trailer;
use crate::limits::{CHUNK_LINE_MAX, SIGNED_CHUNK_MAX, TRAILERS_MAX};
use crate::reply::Refusal;

/// Bytes of a signed chunk that are put out at once. What a client sends in small packets is
/// gathered: each packet would keep the buffer of the connection that it came in, 8 KiB at least.
const GATHERED: usize = 64 << 10;
/// Bytes of one read from which on it is put out as it is.
const UNCOPIED_MIN: usize = 24 << 10;

/// What is put out of a body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Output {
    /// All of it: its chunks are signed.
    All,
    /// Smaller chunks, and what is behind them.
    Chunks,
    /// The content.
    Content,
}

/// Reader of a body's framing.
#[derive(Debug)]
pub struct Scanner {
    output: Output,
    /// Bytes of the content that no chunk has announced yet.
    left: u64,
    /// Bytes of the largest chunk.
    largest: u64,
    state: State,
    /// Of a signed chunk, until there is enough of it.
    gathered: Vec<u8>,
    /// What is behind the last chunk, where the content is put out.
    trailers: Vec<u8>,
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
    /// For a content of `len` bytes, in chunks that s3s decodes.
    pub fn new(signed: bool, len: u64) -> Scanner {
        Scanner::with(if signed { Output::All } else { Output::Chunks }, len)
    }

    /// For a content of `len` bytes, in chunks without signatures that are decoded here.
    pub fn decoding(len: u64) -> Scanner {
        Scanner::with(Output::Content, len)
    }

    fn with(output: Output, len: u64) -> Scanner {
        Scanner {
            output,
            left: len,
            largest: 0,
            state: State::Line(Vec::new()),
            gathered: Vec::new(),
            trailers: Vec::new(),
        }
    }

    /// Bytes of a chunk that s3s holds at most, of those seen.
    pub fn held(&self) -> usize {
        match self.output {
            Output::All => self.largest as usize, // `SIGNED_CHUNK_MAX` bounds it.
            Output::Chunks | Output::Content => 0,
        }
    }

    /// Takes what was received, and puts out what s3s is to read.
    ///
    /// # Errors
    ///
    /// A [`Refusal`] when the framing is wrong.
    pub fn feed(&mut self, mut input: Bytes, out: &mut VecDeque<Bytes>) -> Result<(), Refusal> {
        let received = input.clone();
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
                    match self.output {
                        Output::All => {}
                        Output::Chunks => {
                            out.push_back(Bytes::from(format!("{:x}\r\n", part.len())));
                            out.push_back(part);
                            out.push_back(Bytes::from_static(b"\r\n"));
                        }
                        Output::Content => out.push_back(part),
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
                    match self.output {
                        Output::All => {}
                        Output::Chunks => out.push_back(rest),
                        Output::Content if self.trailers.len() + rest.len() > TRAILERS_MAX => {
                            return Err(malformed_trailer());
                        }
                        Output::Content => self.trailers.extend_from_slice(&rest),
                    }
                }
            }
        }
        if self.output == Output::All {
            self.gather(received, out);
        }
        Ok(())
    }

    /// Puts out what was received, within a chunk in pieces of [`GATHERED`] bytes: s3s waits for all
    /// of the chunk anyway.
    fn gather(&mut self, mut received: Bytes, out: &mut VecDeque<Bytes>) {
        // A buffer that is mostly full wastes little: only what comes in small packets is copied.
        if self.gathered.is_empty() && received.len() >= UNCOPIED_MIN {
            out.push_back(received);
            return;
        }
        let to_come = match self.state {
            State::Data(left) => usize::try_from(left).unwrap_or(usize::MAX),
            _ => 0,
        };
        while !received.is_empty() {
            if self.gathered.is_empty() {
                let all = received.len().saturating_add(to_come);
                self.gathered.reserve_exact(all.min(GATHERED));
            }
            let room = GATHERED - self.gathered.len();
            let part = received.split_to(room.min(received.len()));
            self.gathered.extend_from_slice(&part);
            if self.gathered.len() == GATHERED || (received.is_empty() && to_come == 0) {
                out.push_back(Bytes::from(std::mem::take(&mut self.gathered)));
            }
        }
    }

    /// Headers behind the last chunk, where the content is put out.
    ///
    /// # Errors
    ///
    /// A [`Refusal`] when they are no headers.
    pub fn trailers(&self) -> Result<HeaderMap, Refusal> {
        let mut headers = HeaderMap::new();
        let lines = self.trailers.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii_end);
        for line in lines.filter(|line| !line.is_empty()) {
            let colon = line.iter().position(|&byte| byte == b':');
            let (name, value) = line.split_at(colon.ok_or_else(malformed_trailer)?);
            let name = HeaderName::from_bytes(name).map_err(|_| malformed_trailer())?;
            let value = HeaderValue::from_bytes(value[1..].trim_ascii());
            headers.append(name, value.map_err(|_| malformed_trailer())?);
        }
        Ok(headers)
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
            if self.output == Output::Chunks {
                out.push_back(Bytes::from_static(b"0\r\n"));
            }
            self.state = State::Trailers;
            return Ok(());
        }
        if self.output == Output::All && size > SIGNED_CHUNK_MAX as u64 {
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
/// unsigned chunks scans to the same content, and decoded ones have the length that was said.
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
    let (mut scanner, mut content) = (Scanner::decoding(u64::from(len)), VecDeque::new());
    let mut feed = |part: &[u8]| scanner.feed(Bytes::copy_from_slice(part), &mut content);
    let is_fed = feed(first).and_then(|()| feed(second)).is_ok();
    if is_fed && scanner.end().is_ok() {
        assert_eq!(content.iter().map(Bytes::len).sum::<usize>(), usize::from(len));
        let _ = scanner.trailers(); // Whatever it says, it ends.
    }
}

#[cfg(test)]
mod decoding_tests;
#[cfg(test)]
mod tests;
