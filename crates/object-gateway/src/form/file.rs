//! [`FormFile`]: the content of a form's file, up to the boundary that ends it. It is handed on as
//! it comes: a form takes no more memory than a PUT.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::Stream;
use http_body::Body;
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep};

use super::fields::{Ending, line_end, malformed};
use crate::body::{BodyFailed, cut, drain, stalled};
use crate::budget::Claim;
use crate::context::RequestContext;
use crate::limits::FORM_FIELDS_MAX;
use crate::reply::Refusal;
use crate::requests::Note;

/// A form's bytes, and the time without one.
pub struct FormBody {
    /// There until this is dropped.
    incoming: Option<Incoming>,
    stall_time: std::time::Duration,
    stall: Pin<Box<Sleep>>,
    context: Arc<RequestContext>,
    note: Arc<Note>,
    waits: bool,
}

impl FormBody {
    /// Of a request whose client may wait for leave to send it.
    pub fn new(
        incoming: Incoming,
        stall_time: std::time::Duration,
        (context, note): (Arc<RequestContext>, Arc<Note>),
        waits: bool,
    ) -> FormBody {
        let stall = Box::pin(tokio::time::sleep(stall_time));
        FormBody { incoming: Some(incoming), stall_time, stall, context, note, waits }
    }

    /// The next bytes.
    pub fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Refusal>>> {
        let Some(incoming) = &mut self.incoming else { return Poll::Ready(None) };
        if !incoming.is_end_stream() {
            self.context.ask();
        }
        loop {
            match Pin::new(&mut *incoming).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    let Ok(data) = frame.into_data() else { continue };
                    self.note.receive(data.len());
                    self.stall.as_mut().reset(Instant::now() + self.stall_time);
                    return Poll::Ready(Some(Ok(data)));
                }
                Poll::Ready(Some(Err(_))) => return Poll::Ready(Some(Err(cut()))),
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => {
                    ready!(self.stall.as_mut().poll(cx));
                    return Poll::Ready(Some(Err(stalled())));
                }
            }
        }
    }
}

impl Drop for FormBody {
    fn drop(&mut self) {
        if let Some(incoming) = self.incoming.take()
            && (self.context.is_asked() || !self.waits)
        {
            drain(incoming);
        }
    }
}

/// What of a form is read.
#[derive(Debug)]
enum Phase {
    Content,
    /// The rest of the boundary's line, as far as it has come.
    Line(Vec<u8>),
    /// Fields behind the file, of so many bytes: they mean nothing.
    Behind(usize),
}

/// Finds the end of a file. Pure.
#[derive(Debug)]
pub struct Splitter {
    delimiter: Vec<u8>,
    /// Bytes that may begin the delimiter.
    held: Vec<u8>,
    phase: Phase,
}

impl Splitter {
    /// Of a form with that boundary.
    pub fn new(boundary: &str) -> Splitter {
        let delimiter = format!("\r\n--{boundary}").into_bytes();
        Splitter { delimiter, held: Vec::new(), phase: Phase::Content }
    }

    /// Takes the next bytes of the form; gives those of the file.
    ///
    /// # Errors
    ///
    /// A [`Refusal`] when the file does not end as one does.
    pub fn feed(&mut self, data: Bytes) -> Result<Bytes, Refusal> {
        match &mut self.phase {
            Phase::Content => self.content(data),
            Phase::Line(line) => {
                line.extend_from_slice(&data);
                self.check_line().map(|()| Bytes::new())
            }
            Phase::Behind(len) => {
                *len += data.len();
                self.check_behind().map(|()| Bytes::new())
            }
        }
    }

    fn content(&mut self, mut data: Bytes) -> Result<Bytes, Refusal> {
        if !self.held.is_empty() {
            self.held.extend_from_slice(&data);
            data = Bytes::from(std::mem::take(&mut self.held));
        }
        let mut from = 0;
        while let Some(at) = data[from..].iter().position(|byte| *byte == b'\r') {
            let at = from + at;
            let rest = &data[at..];
            if rest.starts_with(&self.delimiter) {
                self.phase = Phase::Line(rest[self.delimiter.len()..].to_vec());
                self.check_line()?;
                return Ok(data.slice(..at));
            }
            if self.delimiter.starts_with(rest) {
                self.held = rest.to_vec();
                return Ok(data.slice(..at));
            }
            from = at + 1;
        }
        Ok(data)
    }

    fn check_line(&mut self) -> Result<(), Refusal> {
        let Phase::Line(line) = &self.phase else { return Ok(()) };
        let len = line.len();
        match line_end(line)? {
            Some(Ending::Line(_) | Ending::Form) => self.phase = Phase::Behind(len),
            None => {}
        }
        if len > FORM_FIELDS_MAX { Err(malformed()) } else { Ok(()) }
    }

    fn check_behind(&self) -> Result<(), Refusal> {
        match self.phase {
            Phase::Behind(len) if len > FORM_FIELDS_MAX => Err(malformed()),
            _ => Ok(()),
        }
    }

    /// The form has no more bytes.
    ///
    /// # Errors
    ///
    /// A [`Refusal`] when the file's end is missing.
    pub fn end(&self) -> Result<(), Refusal> {
        if matches!(self.phase, Phase::Behind(_)) { Ok(()) } else { Err(malformed()) }
    }
}

/// The content of a form's file.
pub struct FormFile {
    body: FormBody,
    /// Came with the fields.
    first: Option<Bytes>,
    splitter: Splitter,
    len: u64,
    bounds: (u64, u64),
    /// Of the upload: why the content failed.
    context: Arc<RequestContext>,
    is_over: bool,
    _claim: Claim,
}

impl FormFile {
    /// A file of `bounds` bytes at least and at most, the first of which came with the fields.
    pub fn new(
        (body, first): (FormBody, Bytes),
        boundary: &str,
        bounds: (u64, u64),
        context: Arc<RequestContext>,
        claim: Claim,
    ) -> FormFile {
        let splitter = Splitter::new(boundary);
        let first = Some(first);
        FormFile { body, first, splitter, len: 0, bounds, context, is_over: false, _claim: claim }
    }

    fn poll_content(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Refusal>>> {
        loop {
            let next = match self.first.take() {
                Some(first) => Some(Ok(first)),
                None => ready!(self.body.poll_data(cx)),
            };
            let Some(data) = next else {
                self.is_over = true;
                let end = self.splitter.end().and_then(|()| self.check_min());
                return Poll::Ready(end.err().map(Err));
            };
            let content = self.splitter.feed(data?)?;
            self.len += content.len() as u64;
            if self.len > self.bounds.1 {
                return Poll::Ready(Some(Err(too_large())));
            }
            if !content.is_empty() {
                return Poll::Ready(Some(Ok(content)));
            }
        }
    }

    fn check_min(&self) -> Result<(), Refusal> {
        match self.len < self.bounds.0 {
            true => Err(Refusal::new(
                "EntityTooSmall",
                "Your proposed upload is smaller than the minimum allowed size",
            )),
            false => Ok(()),
        }
    }
}

/// S3's refusal of a file above the bound of its policy, or of all.
pub fn too_large() -> Refusal {
    Refusal::new("EntityTooLarge", "Your proposed upload exceeds the maximum allowed size")
}

impl Stream for FormFile {
    type Item = Result<Bytes, BodyFailed>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        let content = ready!(self.poll_content(cx));
        Poll::Ready(content.map(|content| {
            content.map_err(|refusal| {
                self.is_over = true;
                self.context.fail(refusal);
                BodyFailed
            })
        }))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The file in a form that comes in frames of these sizes.
    fn split(form: &[u8], mut frames: impl FnMut() -> usize) -> Result<Vec<u8>, &'static str> {
        let (mut splitter, mut file, mut left) = (Splitter::new("b"), Vec::new(), form);
        while !left.is_empty() {
            let (data, rest) = left.split_at(frames().clamp(1, left.len()));
            left = rest;
            let data = splitter.feed(Bytes::copy_from_slice(data));
            file.extend_from_slice(&data.map_err(|refusal| refusal.code)?);
        }
        splitter.end().map(|()| file).map_err(|refusal| refusal.code)
    }

    #[test]
    fn a_file_ends_at_its_boundary() {
        for (form, file) in [
            ("\r\n--b--", Ok("")),
            ("x\r\n--b--\r\n", Ok("x")),
            ("\r\r\n\r\n--\r\n--a\r\n--b \r\nfields", Ok("\r\r\n\r\n--\r\n--a")),
            ("x\r\n--b", Err("MalformedPOSTRequest")),
            ("x\r\n--b-", Err("MalformedPOSTRequest")),
            ("x\r\n--bc--", Err("MalformedPOSTRequest")),
            ("x", Err("MalformedPOSTRequest")),
            ("x\r\n--", Err("MalformedPOSTRequest")),
        ] {
            for len in 1..8 {
                let found = split(form.as_bytes(), || len);
                assert_eq!(found, file.map(|file: &str| file.as_bytes().to_vec()), "{form:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn any_file_comes_out_however_it_is_cut(
            file in proptest::collection::vec(
                prop_oneof![Just(b'\r'), Just(b'\n'), Just(b'-'), Just(b'a')], 0..100),
            frames in proptest::collection::vec(1..9usize, 1..40),
        ) {
            let mut sizes = frames.iter().cycle();
            let form = [&file[..], b"\r\n--b--\r\n"].concat();
            prop_assert_eq!(split(&form, || *sizes.next().expect("a cycle")), Ok(file));
        }
    }
}
