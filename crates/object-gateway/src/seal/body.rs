//! [`SealedUpload`] and [`OpenedContent`]: bodies that are encrypted on their way to the backend,
//! and decrypted on their way back. What is above them sees contents, what is below encrypted
//! bodies.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use object_proto::{
    Answer, BODY_HEAD, Committed, Conditions, Content, Error, FRAME_BYTES, ObjectData, ObjectFacts,
    ObjectInfo, SEALED_FRAME, TAG_BYTES, Upload, content_len,
};

use super::frames::{BodyKey, DataKey};

/// An upload whose content is encrypted.
pub struct SealedUpload {
    inner: Box<dyn Upload>,
    key: BodyKey,
    /// The head, until it was sent.
    head: Vec<u8>,
    /// Content that is not sealed yet: a frame at most, which may be the last one.
    rest: Vec<u8>,
    /// Index of that frame.
    index: u64,
}

impl SealedUpload {
    /// Of a body with the random identity `head`: a part, or a whole object for 0.
    pub fn new(
        inner: Box<dyn Upload>,
        key: &DataKey,
        head: [u8; BODY_HEAD],
        part: u16,
    ) -> SealedUpload {
        let key = key.body(&head, part);
        SealedUpload { inner, key, head: head.to_vec(), rest: Vec::new(), index: 0 }
    }

    /// Seals all whole frames of the content but the last one, and what was left of them before.
    fn sealed(&mut self, mut bytes: &[u8]) -> Vec<u8> {
        let frames = (self.rest.len() + bytes.len()) / FRAME_BYTES + 1;
        let mut out = Vec::with_capacity(self.head.len() + frames * SEALED_FRAME);
        out.append(&mut self.head);
        while self.rest.len() + bytes.len() > FRAME_BYTES {
            let (now, later) = bytes.split_at(FRAME_BYTES - self.rest.len());
            bytes = later;
            if self.rest.is_empty() {
                self.key.seal(&mut out, now, (self.index, false));
            } else {
                self.rest.extend_from_slice(now);
                self.key.seal(&mut out, &self.rest, (self.index, false));
                self.rest.clear();
            }
            self.index += 1;
        }
        self.rest.extend_from_slice(bytes);
        out
    }
}

impl Upload for SealedUpload {
    fn write(&mut self, bytes: Vec<u8>) -> Answer<'_, ()> {
        if self.rest.len() + bytes.len() <= FRAME_BYTES {
            self.rest.extend_from_slice(&bytes);
            return Box::pin(std::future::ready(Ok(())));
        }
        let sealed = self.sealed(&bytes);
        self.inner.write(sealed)
    }

    fn commit(
        mut self: Box<Self>,
        facts: ObjectFacts,
        conditions: Conditions,
    ) -> Answer<'static, Committed> {
        Box::pin(async move {
            let mut last = std::mem::take(&mut self.head);
            self.key.seal(&mut last, &self.rest, (self.index, true));
            self.inner.write(last).await?;
            self.inner.commit(facts, conditions).await
        })
    }
}

/// A body within what is stored of an object.
#[derive(Clone, Debug)]
struct Body {
    part: u16,
    /// Bytes of the object's content.
    content: Range<u64>,
    /// Where it begins in what is stored, and ends.
    stored: Range<u64>,
}

/// The content of an encrypted object.
pub struct OpenedContent {
    inner: Box<dyn Content>,
    key: DataKey,
    /// As it is stored.
    stored: ObjectInfo,
    len: u64,
    /// The key of the body that was read last.
    body_key: Mutex<Option<(u16, Arc<BodyKey>)>>,
}

fn damaged(what: &str) -> Error {
    Error::Damaged { what: format!("an encrypted object: {what}") }
}

impl OpenedContent {
    /// Of an object that is stored so.
    ///
    /// # Errors
    ///
    /// [`Error::Damaged`] when no content is stored so.
    pub fn new(
        inner: Box<dyn Content>,
        key: DataKey,
        stored: ObjectInfo,
    ) -> Result<OpenedContent, Error> {
        let len = stored.object.content_size().ok_or_else(|| damaged("its length"))?;
        Ok(OpenedContent { inner, key, stored, len, body_key: Mutex::default() })
    }

    /// Bodies that have bytes of a range of the content.
    fn bodies(&self, range: Range<u64>) -> Result<Vec<Body>, Error> {
        let ObjectData::Parts(map) = &self.stored.object.data else {
            let stored = 0..self.stored.object.size;
            return Ok(vec![Body { part: 0, content: 0..self.len, stored }]);
        };
        let contents = object_proto::content_map(map).ok_or_else(|| damaged("its parts"))?;
        let bodies = contents.within(range).into_iter().map(|(number, content)| {
            let stored = map.range(number).ok_or_else(|| damaged("its parts"))?;
            Ok(Body { part: number.get(), content, stored })
        });
        bodies.collect()
    }

    fn known(&self, part: u16) -> Option<Arc<BodyKey>> {
        let known = self.body_key.lock().expect("no panic while it is held");
        known.as_ref().filter(|(known, _)| *known == part).map(|(_, key)| key.clone())
    }

    fn learn(&self, part: u16, head: &[u8]) -> Result<Arc<BodyKey>, Error> {
        let head = head.try_into().map_err(|_| damaged("the head of a body"))?;
        let key = Arc::new(self.key.body(head, part));
        *self.body_key.lock().expect("no panic while it is held") = Some((part, key.clone()));
        Ok(key)
    }

    async fn exactly(&self, range: Range<u64>) -> Result<Vec<u8>, Error> {
        let len = (range.end - range.start) as usize;
        let bytes = self.inner.read(range.start, len).await?;
        match bytes.len() == len {
            true => Ok(bytes),
            false => Err(damaged("it is shorter than its row says")),
        }
    }

    /// Content of one body: the frames that have it are read, and no others.
    async fn read_body(&self, body: &Body, range: Range<u64>) -> Result<Vec<u8>, Error> {
        let within = range.start.max(body.content.start)..range.end.min(body.content.end);
        let within = within.start - body.content.start..within.end - body.content.start;
        let first = within.start / FRAME_BYTES as u64;
        let after = within.end.div_ceil(FRAME_BYTES as u64).max(first + 1);
        let start_of = |frame: u64| BODY_HEAD as u64 + frame * SEALED_FRAME as u64;
        let len = body.stored.end - body.stored.start;
        let (mut start, end) = (start_of(first), start_of(after).min(len));
        let mut key = self.known(body.part);
        if key.is_none() {
            if first == 0 {
                start = 0; // With the head, in one read.
            } else {
                let head = body.stored.start..body.stored.start + BODY_HEAD as u64;
                key = Some(self.learn(body.part, &self.exactly(head).await?)?);
            }
        }
        let mut bytes = self.exactly(body.stored.start + start..body.stored.start + end).await?;
        let key = match key {
            Some(key) => key,
            None => {
                let key = self.learn(body.part, &bytes[..BODY_HEAD])?;
                bytes.drain(..BODY_HEAD);
                key
            }
        };
        key.open(&mut bytes, first, end == len).map_err(|_| {
            let what = &self.stored.object.data_id;
            damaged(&format!("frames of body {what}, part {} do not open", body.part))
        })?;
        let skipped = (within.start - first * FRAME_BYTES as u64) as usize;
        bytes.truncate(skipped + (within.end - within.start) as usize);
        bytes.drain(..skipped);
        Ok(bytes)
    }
}

impl Content for OpenedContent {
    fn read(&self, offset: u64, len: usize) -> Answer<'_, Vec<u8>> {
        Box::pin(async move {
            let range = offset.min(self.len)..offset.saturating_add(len as u64).min(self.len);
            let mut content = Vec::new();
            if range.is_empty() {
                return Ok(content);
            }
            for body in self.bodies(range.clone())? {
                let mut bytes = self.read_body(&body, range.clone()).await?;
                match content.is_empty() {
                    true => content = bytes,
                    false => content.append(&mut bytes),
                }
            }
            Ok(content)
        })
    }
}

const _: () = assert!(content_len((BODY_HEAD + TAG_BYTES) as u64).is_some());

#[cfg(test)]
mod tests;
