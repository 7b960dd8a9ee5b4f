//! Bodies of objects, written and read beside the owner (`object-protocols.md` 5 and 9.1): several in a row in
//! each file.

use std::rc::Rc;

use base::limits::APPEND_DATA_MAX;
use base::{Fault, Kind};
use codec::{crc32c, crc32c_extend};
use futures_util::future::try_join_all;
use futures_util::stream::{FuturesOrdered, StreamExt};
use object_proto::limits::PIECE_BYTES;
use object_proto::{Error, FileName};
use runtime::Duration;
use table::{Pending, Source, Store, Writer};
use wire::data::Purpose;

use crate::limits::{APPENDS_INFLIGHT_MAX, COPY_BYTES};
use crate::piece::{Body, PieceFlaw, PieceHead, stored_len};
use crate::planted::{Bugs, Planted};

/// Meaning of a fault of a body's file.
pub(crate) fn of_store(fault: Fault, file: &FileName) -> Error {
    let cause = format!("{file}: {}", fault.message);
    match fault.kind {
        Kind::Full => Error::Full,
        Kind::NotFound => Error::NoSuchKey,
        Kind::Corrupt => Error::Damaged { what: cause },
        _ => Error::Busy { cause },
    }
}

/// The same while it is written: a file that is gone was a session's that was closed, whose gateway
/// stood still. There is no object yet that could be missing.
fn of_write(fault: Fault, file: &FileName) -> Error {
    match fault.kind {
        Kind::NotFound => Error::Busy {
            cause: format!("{file}: was removed, since its gateway was silent for too long"),
        },
        _ => of_store(fault, file),
    }
}

/// A file of bodies that is being written, by one body at a time.
pub(crate) struct Pack {
    pub(crate) name: FileName,
    writer: Box<dyn Writer>,
    /// Bytes of whole bodies.
    end: u64,
}

impl Pack {
    /// Makes the file. After an error it may be there.
    pub(crate) async fn create(
        store: &dyn Store,
        name: FileName,
        purpose: Purpose,
    ) -> Result<Pack, Error> {
        let writer = store.create(name.as_str()).await.map_err(|fault| of_write(fault, &name))?;
        writer.set_purpose(purpose);
        Ok(Pack { name, writer, end: 0 })
    }

    /// Where the next body begins.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Seals the file. After an error another process has to.
    pub(crate) async fn close(self) -> Result<(), Error> {
        let Pack { name, writer, .. } = self;
        writer.close().await.map(drop).map_err(|fault| of_write(fault, &name))
    }
}

/// A body that is being written to a file. Its appends are as long as the core takes them, wherever pieces
/// end: a piece with its head is a little longer than one. Dropped before its end, the file is not written any
/// more: from its beginning on there are whole bodies, and then what there is of this one.
pub(crate) struct BodyWriter {
    body: Body,
    pack: Pack,
    /// Bytes of the file that are not sent: pieces, the last of which may not be whole.
    out: Vec<u8>,
    /// The piece that is not whole.
    piece: Option<OpenPiece>,
    /// Bytes of the body in whole pieces.
    len: u64,
    pending: FuturesOrdered<Pending>,
    bugs: Bugs,
}

/// A piece that is being filled; its head is written when it is whole.
#[derive(Clone, Copy)]
struct OpenPiece {
    /// Its place in what is not sent.
    at: usize,
    /// Bytes of the body in it, and their checksum.
    len: usize,
    crc: u32,
}

impl BodyWriter {
    /// A body behind those that a file has.
    pub(crate) fn new(pack: Pack, body: Body, bugs: Bugs) -> BodyWriter {
        let (out, pending) = (Vec::new(), FuturesOrdered::new());
        BodyWriter { body, pack, out, piece: None, len: 0, pending, bugs }
    }

    /// Its file, when it breaks off.
    pub(crate) fn into_pack(self) -> Pack {
        self.pack
    }

    /// Where the body begins.
    pub(crate) fn place(&self) -> u64 {
        self.pack.end
    }

    /// Takes the next bytes, when few enough are under way.
    pub(crate) async fn write(&mut self, mut bytes: &[u8]) -> Result<(), Error> {
        while !bytes.is_empty() {
            let mut piece = self.piece.unwrap_or_else(|| {
                let at = self.out.len();
                self.out.resize(at + self.body.head_len(), 0);
                OpenPiece { at, len: 0, crc: 0 }
            });
            // Little at a time: it is in the processor's cache when its checksum is computed.
            let len = bytes.len().min(PIECE_BYTES - piece.len).min(COPY_BYTES);
            let (now, later) = bytes.split_at(len);
            self.out.extend_from_slice(now);
            piece.crc = crc32c_extend(piece.crc, now);
            piece.len += len;
            bytes = later;
            self.piece = Some(piece);
            if piece.len == PIECE_BYTES {
                self.end_piece();
                self.send(false).await?;
            }
        }
        Ok(())
    }

    /// The open piece, if there is one, is whole.
    fn end_piece(&mut self) {
        let Some(OpenPiece { at, len, crc }) = self.piece.take() else { return };
        let head = self.body.encode(PieceHead { offset: self.len, len: len as u32, crc });
        self.out[at..at + head.len()].copy_from_slice(&head);
        self.len += len as u64;
    }

    /// Sends what fills appends, or all. No piece is open.
    async fn send(&mut self, all: bool) -> Result<(), Error> {
        let mut sent = 0;
        while self.out.len() - sent >= APPEND_DATA_MAX || all && sent < self.out.len() {
            while self.pending.len() >= APPENDS_INFLIGHT_MAX {
                self.wait().await?;
            }
            let end = self.out.len().min(sent + APPEND_DATA_MAX);
            let (Pack { name, writer, .. }, bytes) = (&self.pack, &self.out[sent..end]);
            let pending = writer.submit(bytes).await.map_err(|fault| of_write(fault, name))?;
            self.pending.push_back(pending);
            sent = end;
        }
        self.out.drain(..sent);
        Ok(())
    }

    /// Waits for the oldest append.
    async fn wait(&mut self) -> Result<(), Error> {
        match self.pending.next().await {
            Some(Err(fault)) => Err(of_write(fault, &self.pack.name)),
            Some(Ok(_)) | None => Ok(()),
        }
    }

    /// Ends when all of the body, which has `size` bytes, is durable; the file takes another one.
    pub(crate) async fn finish(
        mut self,
        env: &runtime::Env,
        size: u64,
    ) -> Result<Option<Pack>, Error> {
        self.end_piece();
        if self.bugs.has(Planted::EarlyRow) {
            let late = env.clone();
            env.spawn(runtime::Class::Foreground, "object: late body", async move {
                late.sleep(Duration::from_millis(30)).await;
                self.send(true).await?;
                self.end().await
            });
            return Ok(None);
        }
        self.send(true).await?;
        if self.len != size {
            let cause = format!("{}: has {} of {size} bytes", self.pack.name, self.len);
            return Err(Error::Busy { cause });
        }
        self.end().await.map(Some)
    }

    async fn end(mut self) -> Result<Pack, Error> {
        while !self.pending.is_empty() {
            self.wait().await?;
        }
        self.pack.end += stored_len(&self.body.target, self.len);
        Ok(self.pack)
    }
}

/// A body that is read.
pub(crate) struct BodyReader {
    body: Body,
    file: FileName,
    source: Rc<dyn Source>,
    /// Where the first piece begins.
    base: u64,
    size: u64,
    bugs: Bugs,
}

/// Opens a file of bodies.
pub(crate) async fn open(store: &dyn Store, file: &FileName) -> Result<Rc<dyn Source>, Error> {
    store.open(file.as_str()).await.map_err(|fault| of_store(fault, file))
}

impl BodyReader {
    /// A body of `size` bytes in a file, where its first piece begins at `base`.
    pub(crate) fn new(
        source: Rc<dyn Source>,
        (file, base): (&FileName, u64),
        (body, size): (Body, u64),
        bugs: Bugs,
    ) -> BodyReader {
        BodyReader { body, file: file.clone(), source, base, size, bugs }
    }

    /// Bytes of the body: `len` of them, fewer only at its end.
    pub(crate) async fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, Error> {
        if offset >= self.size {
            return Ok(Vec::new());
        }
        let end = self.size.min(offset.saturating_add(len as u64));
        let size = PIECE_BYTES as u64;
        let pieces = (offset / size)..end.max(offset).div_ceil(size);
        let parts = pieces.map(|piece| {
            let start = piece * size;
            let from = offset.max(start) - start;
            let to = end.min(start + size) - start;
            self.read_in(piece, from as usize, to as usize)
        });
        let mut parts = try_join_all(parts).await?;
        // Whole pieces, mostly: no copy of one.
        Ok(if parts.len() == 1 { parts.swap_remove(0) } else { parts.concat() })
    }

    /// Bytes `from..to` of a piece.
    async fn read_in(&self, piece: u64, from: usize, to: usize) -> Result<Vec<u8>, Error> {
        let (place, head_len) = (self.base + self.body.place(piece), self.body.head_len());
        let offset = piece * PIECE_BYTES as u64;
        let len = (self.size - offset).min(PIECE_BYTES as u64) as usize;
        if (from, to) != (0, len) {
            let head = self.read_exact(place, head_len);
            let bytes = self.read_exact(place + (head_len + from) as u64, to - from);
            let (head, bytes) = futures_util::future::try_join(head, bytes).await?;
            self.check(&head, (offset, len))?;
            return Ok(bytes);
        }
        let mut bytes = self.read_exact(place, head_len + len).await?;
        let crc = self.check(&bytes[..head_len], (offset, len))?;
        bytes.drain(..head_len);
        if crc != crc32c(&bytes) && !self.bugs.has(Planted::WrongPlace) {
            return Err(self.damaged("the bytes of a piece differ from its checksum"));
        }
        Ok(bytes)
    }

    async fn read_exact(&self, offset: u64, len: usize) -> Result<Vec<u8>, Error> {
        // The log or file may be written still.
        let bytes = self.source.read_acknowledged(offset, len).await;
        let bytes = bytes.map_err(|fault| of_store(fault, &self.file))?;
        match bytes.len() == len {
            true => Ok(bytes),
            false => Err(self.damaged("is shorter than the object")),
        }
    }

    /// The checksum in a head, which must be the one of this piece of this body.
    fn check(&self, head: &[u8], (offset, len): (u64, usize)) -> Result<u32, Error> {
        let own = !self.bugs.has(Planted::WrongPlace);
        let read = self.body.decode(head, own).map_err(|flaw| {
            self.damaged(match flaw {
                PieceFlaw::Damaged => "holds no piece where one must be",
                PieceFlaw::Other => "holds bytes of another object",
            })
        })?;
        match (read.offset, read.len as usize) == (offset, len) || !own {
            true => Ok(read.crc),
            false => Err(self.damaged("holds another piece of the object")),
        }
    }

    fn damaged(&self, what: &str) -> Error {
        Error::Damaged { what: format!("{}, body of {}: {what}", self.file, self.body.target) }
    }
}

/// Bytes of a content that has no parts.
pub(crate) enum Whole {
    /// Here.
    Here(Vec<u8>),
    /// In a file.
    File(BodyReader),
}

impl Whole {
    /// Bytes of the content: `len` of them, fewer only at its end.
    pub(crate) async fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, Error> {
        match self {
            Whole::Here(bytes) => {
                let start = bytes.len().min(offset as usize);
                let end = bytes.len().min(start.saturating_add(len));
                Ok(bytes[start..end].to_vec())
            }
            Whole::File(reader) => reader.read(offset, len).await,
        }
    }
}
