//! [`FlatLogFile`]: one append-only file (C1).

use std::cell::Cell;
use std::rc::Rc;

use base::{DirId, Epoch, FileId, Kind};
use wire::control::limits::AVOID_MAX;
use wire::control::{
    Attributes, NameKey, Policy, StreamChange, StreamReply, StreamView, WriterGrant,
};
use wire::data::Purpose;

use crate::appender::Appender;
use crate::client::Client;
use crate::error::Error;
use crate::limits::EPOCH_TRIES_MAX;
use crate::reader::Reader;
use crate::session::Refusal;
use crate::writer::is_small;

/// A file: append-only bytes under one or more names. Cheap to clone.
#[derive(Clone, Debug)]
pub struct FlatLogFile(pub(crate) Rc<FlatLogFileInner>);

#[derive(Debug)]
pub(crate) struct FlatLogFileInner {
    pub(crate) client: Client,
    /// As the caller named it, for messages.
    pub(crate) path: String,
    pub(crate) place: NameKey,
    pub(crate) file: FileId,
    pub(crate) policy: Policy,
    pub(crate) attributes: Attributes,
    pub(crate) grant: [u8; 16],
    /// Its epoch as far as this client knows.
    pub(crate) epoch: Cell<Epoch>,
}

impl Client {
    /// Asks for a change that takes a file's next epoch, and names the one that it follows. While the
    /// file has another, it asks again: so one that comes late, of a client that is gone, fences no
    /// writer that came in between. Each question is another change with an identity of its own: an
    /// answer on record is to one of them.
    async fn take_epoch(
        &self,
        file: FileId,
        mut follows: Epoch,
        change: impl Fn(Epoch) -> StreamChange,
    ) -> Result<StreamReply, Refusal> {
        let began = self.env().now();
        for _ in 0..EPOCH_TRIES_MAX {
            match self.stream_change(file, change(follows)).await? {
                StreamReply::Epoch { epoch } => follows = epoch,
                answer => return Ok(answer),
            }
            self.env().mark("client: asks again, after another epoch");
        }
        let message = format!(
            "{EPOCH_TRIES_MAX} times another opening came first: one process should write it"
        );
        let waited = self.env().now() - began;
        Err(Refusal { kind: Kind::Retry, message, waited, unknown: false })
    }

    /// Ends the writer of a file that is gone; `known` is the file's epoch as far as is known.
    pub(crate) async fn seal_stream(
        &self,
        file: FileId,
        known: Epoch,
        accept_loss: bool,
    ) -> Result<StreamReply, Refusal> {
        // Most files have one writer ever.
        let follows = known.max(Epoch::NONE.next());
        let change = |follows| StreamChange::Seal { file, follows: Some(follows), accept_loss };
        self.take_epoch(file, follows, change).await
    }
}

impl FlatLogFile {
    pub(crate) fn new(
        client: &Client,
        path: &str,
        place: NameKey,
        file: FileId,
        policy: Policy,
        attributes: Attributes,
        grant: [u8; 16],
    ) -> FlatLogFile {
        let (client, path) = (client.clone(), path.to_owned());
        FlatLogFile(Rc::new(FlatLogFileInner {
            client,
            path,
            place,
            file,
            policy,
            attributes,
            grant,
            epoch: Cell::new(Epoch::NONE),
        }))
    }

    /// Its identity, whatever its names.
    pub fn id(&self) -> FileId {
        self.0.file
    }

    /// Its replication policy, as the namespace had it when it was opened.
    pub fn policy(&self) -> Policy {
        self.0.policy
    }

    /// Its attributes when it was opened.
    pub fn attributes(&self) -> Attributes {
        self.0.attributes
    }

    /// The name it was opened by.
    pub fn path(&self) -> &str {
        &self.0.path
    }

    /// The directory of that name.
    pub fn parent(&self) -> DirId {
        self.0.place.parent
    }

    /// Opens it for append. Any other writer is fenced: its appends are not acknowledged from
    /// here on (`protocols.md` 1.1).
    pub async fn append_handle(&self) -> Result<Appender, Error> {
        self.append_handle_for(Purpose::Data).await
    }

    /// The same, to append what is of another purpose than users' bytes: a service's metadata can
    /// be written on a cluster that is full.
    pub async fn append_handle_for(&self, purpose: Purpose) -> Result<Appender, Error> {
        self.open_for(purpose, false).await
    }

    /// The same, by a caller who is about to append `len` bytes in all: so few that copies take less than
    /// the file's code are stored in copies (`protocols-tail.md` 9.8). More may be appended.
    pub async fn append_handle_for_bytes(&self, len: u64) -> Result<Appender, Error> {
        self.open_for(Purpose::Data, is_small(self.policy(), len)).await
    }

    async fn open_for(&self, purpose: Purpose, in_copies: bool) -> Result<Appender, Error> {
        let wish = (purpose, in_copies);
        let opened = self.0.client.operation("open for append", self.open_stream(wish));
        Appender::start(self, opened.await?, wish)
    }

    async fn open_stream(&self, wish: (Purpose, bool)) -> Result<WriterGrant, Error> {
        let inner = &*self.0;
        let answer = match self.ask_open(inner.grant, wish).await {
            // The right to open has run out: the namespace gives another.
            Err(refusal) if refusal.kind == Kind::Refresh => {
                let (_, grant) = inner.client.stat_file(inner.file).await?;
                self.ask_open(grant, wish).await
            }
            answer => answer,
        };
        match answer {
            Ok(StreamReply::Writer(grant)) => {
                self.note_epoch(grant.epoch);
                Ok(grant)
            }
            Ok(_) => Err(Error::invalid(&inner.path, "the stream service answered something else")),
            Err(refusal) => Err(refusal.about("open for append", &inner.path)),
        }
    }

    async fn ask_open(
        &self,
        grant: [u8; 16],
        (purpose, in_copies): (Purpose, bool),
    ) -> Result<StreamReply, Refusal> {
        let inner = &*self.0;
        let mut avoid = inner.client.0.lists.borrow().unwanted(usize::from(inner.policy.copies));
        avoid.truncate(AVOID_MAX);
        let change = |follows| StreamChange::Open {
            file: inner.file,
            policy: inner.policy,
            grant,
            spares: inner.client.config().writer.spares,
            purpose,
            follows: Some(follows),
            in_copies,
            avoid: avoid.clone(),
        };
        inner.client.take_epoch(inner.file, inner.epoch.get(), change).await
    }

    /// The file has had this epoch.
    pub(crate) fn note_epoch(&self, epoch: Epoch) {
        self.0.epoch.set(self.0.epoch.get().max(epoch));
    }

    /// Opens it for reading.
    pub fn reader(&self) -> Reader {
        Reader::new(self)
    }

    /// Its present length. Of a file that is being written: what readers may see.
    pub async fn len(&self) -> Result<u64, Error> {
        self.reader().refresh_len().await
    }

    /// True when nothing is in it.
    pub async fn is_empty(&self) -> Result<bool, Error> {
        Ok(self.len().await? == 0)
    }

    /// Ends a writer that is gone, so that all it wrote can be read; the length is final until
    /// the file is opened for append again.
    pub async fn seal(&self) -> Result<u64, Error> {
        self.0.client.operation("seal", self.end_writer(false)).await
    }

    /// As [`FlatLogFile::seal`], by an operator's word: where too few replicas of the open chunk are left
    /// for that and the others are gone for good, the file ends with the longest that is left. What was
    /// acknowledged behind it is lost; [`StreamView::loss_accepted`] says so from then on. An error names
    /// a replica that may still come back (`protocols-tail.md` 8.8 e).
    pub async fn seal_accepting_loss(&self) -> Result<u64, Error> {
        self.0.client.operation("seal", self.end_writer(true)).await
    }

    async fn end_writer(&self, accept_loss: bool) -> Result<u64, Error> {
        let inner = &*self.0;
        match inner.client.seal_stream(inner.file, inner.epoch.get(), accept_loss).await {
            Ok(StreamReply::Done { len }) => Ok(len),
            Ok(_) => Err(Error::invalid(&inner.path, "the stream service answered something else")),
            // Never opened for append: there is nothing to seal.
            Err(refusal) if refusal.kind == Kind::NotFound => self.check_named().await.map(|()| 0),
            Err(refusal) => Err(refusal.about("seal", &inner.path)),
        }
    }

    /// Has the sealed chunks that it has now given the form that its policy asks for, in the background: the
    /// view of [`FlatLogFile::chunks`] says how far that is, and for how long it goes on. Or, not wanted,
    /// leaves those as they are that have not been converted yet (`protocols-tail.md` 9.12).
    pub async fn convert(&self, wanted: bool) -> Result<(), Error> {
        let inner = &*self.0;
        let change = StreamChange::Convert { file: inner.file, wanted };
        let work = async {
            match inner.client.stream_change(inner.file, change).await {
                Ok(_) => Ok(()),
                Err(refusal) => Err(refusal.about("convert", &inner.path)),
            }
        };
        inner.client.operation("convert", work).await
    }

    /// An error when the file was removed. Its stream is made with the first writer, and goes with
    /// the last name: where the masters know none, only its name distinguishes the two.
    pub(crate) async fn check_named(&self) -> Result<(), Error> {
        let inner = &*self.0;
        inner.client.stat_file(inner.file).await.map(drop).map_err(|error| match error {
            Error::NotFound { .. } => Error::not_found(&inner.path),
            other => other,
        })
    }

    /// All its chunks in order, fresh; for operators and tools. None of a file that was never
    /// opened for append.
    pub async fn chunks(&self) -> Result<StreamView, Error> {
        self.0.client.operation("locate", self.locate_all()).await
    }

    async fn locate_all(&self) -> Result<StreamView, Error> {
        let inner = &*self.0;
        let locator = &inner.client.0.locator;
        let file = inner.file;
        let Some(mut view) = self.reader().locate(0).await? else {
            let (chunks, epoch) = (Vec::new(), base::Epoch::NONE);
            return Ok(StreamView {
                file,
                chunks,
                sealed_len: 0,
                open: false,
                epoch,
                policy: None,
                loss_accepted: false,
                converting: false,
            });
        };
        loop {
            let Some(last) = view.chunks.last() else { return Ok(view) };
            let Some(len) = last.sealed else { return Ok(view) };
            let end = last.base + u64::from(len);
            let more = locator.locate(inner.file, end, &inner.path).await?;
            let known = |id| view.chunks.iter().any(|chunk| chunk.chunk == id);
            let fresh: Vec<_> =
                more.chunks.into_iter().filter(|chunk| !known(chunk.chunk)).collect();
            if fresh.is_empty() {
                return Ok(view);
            }
            self.note_epoch(more.epoch);
            view.chunks.extend(fresh);
            (view.sealed_len, view.open, view.epoch) = (more.sealed_len, more.open, more.epoch);
        }
    }
}
