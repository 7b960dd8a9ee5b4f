//! [`Manifest`]: the log of a table's parts, and the fence between its owners.
//!
//! # Finding the live manifest, and why no two owners are live
//!
//! Manifests are files `manifest-N`. The live one has the highest number: there is no pointer to it
//! that could be stale. A manifest is written whole under another name (a draft) and gets its own
//! by [`Store::publish`], which fails when the name is taken. So at most one file ever becomes
//! `manifest-N+1` while `manifest-N` is the highest, and it is complete when it appears. The
//! highest is never removed.
//!
//! An instance takes a table over from `manifest-N` in this order:
//! 1. seal `manifest-N`: its owner's edits fail from here on, its content is final;
//! 2. read it; seal every log that it names, and read those;
//! 3. write a draft: the content of `manifest-N`, with itself as owner;
//! 4. publish it as `manifest-N+1`; when that name is taken, begin again;
//! 5. look for a manifest above `N+1`; when there is one, begin again.
//!
//! An owner that rolls its manifest over does 3 to 5 too. When a step says "begin again", the owner
//! is fenced.
//!
//! *Nothing is acknowledged by two owners.* A write is acknowledged when it is durable in a log
//! which a durable edit of the owner's manifest names. Let A be the owner in `manifest-N`, B the
//! one that publishes `manifest-N+1`. After 1, A adds no log to `manifest-N`; after 2, no log named
//! there takes an append. So everything that A acknowledges before is in what B read. After 2 A
//! acknowledges nothing, unless A goes on in a manifest of its own: that would be `manifest-N+1`,
//! and then B's 4 fails and B begins again behind A.
//!
//! *A late publish does no harm.* Let A's publication of `N+1` be executed (a request delayed in
//! the network, a process that slept) after B's manifests have passed `N+1` and it was removed. The
//! name is free, so it succeeds; but a higher manifest is there, and A, in 5, finds it before it
//! uses its own. Had A's been the first `N+1` ever, there would be none above it, because numbers
//! above `N+1` come only after a first `N+1`. If A has died, the file is below the highest and the
//! next sweep removes it.
//!
//! *Content of a roll is complete.* The owner's edits and its rolls are done one after the
//! other, under one lock, and an edit of which the outcome is not known ends the instance. So a
//! draft of A has all of A's durable edits, also when B has sealed `manifest-N` by then.
//!
//! *Files are removed safely.* File numbers carry the generation of their maker, the number of the
//! manifest with which it began: no two instances make one name. An instance removes what a durable
//! edit of its own has dropped: a later owner has read that edit. Its sweep removes files that its
//! manifest does not name, of generations below its own only. A file that a later owner refers to
//! is either made by it or later ones (a higher generation), or named in the manifest that it took
//! over, and then by every manifest before it back to the sweeper's.

use std::rc::Rc;

use base::{Fault, Kind};
use runtime::Env;

use crate::error::Error;
use crate::file::TableFiles;
use crate::format::DecodeError;
use crate::format::edit::{Change, put_change, read_changes};
use crate::format::frame::{
    Content, FILE_HEAD, Form, Head, Next, Record, next_record, put_record, read_head,
};
use crate::layout::Layout;
use crate::limits::{EDIT_BYTES_MAX, FILES_MAX, FILES_READ_MAX};
use crate::store::{Store, Writer};
use crate::types::{FileNo, Name};

/// The manifest of the instance that owns the table.
pub(crate) struct Manifest {
    env: Env,
    table_files: Rc<TableFiles>,
    number: u32,
    writer: Box<dyn Writer>,
    /// Number of the next edit.
    next: u64,
    /// Bytes it began with, and has.
    base: u64,
    len: u64,
    /// Bytes of edits at which it is rolled over, at least.
    roll_bytes: u64,
    layout: Layout,
}

/// The highest manifest, if there is one.
pub(crate) async fn highest(store: &dyn Store) -> Result<Option<u32>, Error> {
    let mut found = None;
    let mut after = "manifest-".to_owned();
    loop {
        let page = store.list(&after).await;
        let page = page.map_err(|fault| Error::of_store(fault, "list", store.name()))?;
        for name in &page.names {
            match Name::parse(name) {
                Some(Name::Manifest(number)) => found = Some(number),
                _ if name.as_str() > "manifest." => return Ok(found),
                _ => {}
            }
        }
        match page.names.into_iter().next_back() {
            Some(last) if page.more => after = last,
            _ => return Ok(found),
        }
    }
}

/// The owner that a manifest names, as far as that can be seen without sealing anything.
pub(crate) async fn owner(table_files: &TableFiles, number: u32) -> Option<u64> {
    let source = table_files.store.open(&Name::Manifest(number).to_string()).await.ok()?;
    let head = source.read_at(0, FILE_HEAD).await.ok()?;
    let head = read_head(Content::Manifest, &head).ok()?;
    (head.file == FileNo::manifest(number)).then_some(head.owner)
}

/// Seals a manifest and reads it. Nothing when it is gone: a higher one is live.
pub(crate) async fn read(table_files: &TableFiles, number: u32) -> Result<Option<Layout>, Error> {
    let name = Name::Manifest(number);
    let path = table_files.path(name);
    let text = name.to_string();
    let len = match table_files.store.seal(&text).await {
        Err(fault) if fault.kind == Kind::NotFound => return Ok(None),
        len => len.map_err(|fault| Error::of_store(fault, "seal", &path))?,
    };
    let source = match table_files.store.open(&text).await {
        Err(fault) if fault.kind == Kind::NotFound => return Ok(None),
        source => source.map_err(|fault| Error::of_store(fault, "open", &path))?,
    };
    let bytes = match source.read_at(0, len as usize).await {
        Err(fault) if fault.kind == Kind::NotFound => return Ok(None),
        bytes => bytes.map_err(|fault| Error::of_store(fault, "read", &path))?,
    };
    if bytes.len() as u64 != len {
        let what = "it is shorter than its length";
        return Err(Error::Corrupt { file: path, offset: bytes.len() as u64, what });
    }
    layout_of(number, &bytes, path).map(Some)
}

/// Content of a manifest at present, without sealing it: its owner may be about to change it. What is
/// shown may be less than its first edit, which was acknowledged before it got its name: all servers
/// have restarted, and do not know what was acknowledged.
pub(crate) async fn peek(table_files: &TableFiles, number: u32) -> Result<Layout, Error> {
    let name = Name::Manifest(number);
    let mut bytes = crate::recover::read_shown(table_files, name).await?;
    let path = table_files.path(name);
    if lacks_of_first_edit(number, &bytes).is_some() {
        let cause = |fault| Error::of_store(fault, "read", &path);
        let source = table_files.store.open(&name.to_string()).await.map_err(cause)?;
        while let Some(lacks) = lacks_of_first_edit(number, &bytes) {
            let more = source.read_acknowledged(bytes.len() as u64, lacks).await.map_err(cause)?;
            bytes.extend_from_slice(&more);
            if more.len() < lacks {
                break; // Lost.
            }
        }
    }
    layout_of(number, &bytes, path)
}

/// Bytes that follow these before the first edit of a manifest ends, as far as they say; none when they
/// have all of it, or are damaged.
fn lacks_of_first_edit(number: u32, bytes: &[u8]) -> Option<usize> {
    let Some(edits) = bytes.get(FILE_HEAD..) else { return Some(FILE_HEAD - bytes.len()) };
    match next_record(Form::Plain, FileNo::manifest(number), edits, EDIT_BYTES_MAX) {
        Ok(Next::Partial(need)) => Some(need - edits.len()),
        Ok(Next::Record(_)) | Err(_) => None,
    }
}

fn layout_of(number: u32, bytes: &[u8], path: String) -> Result<Layout, Error> {
    decode(number, bytes).map_err(|(flaw, offset)| match flaw {
        DecodeError::Version(seen) => Error::Version { file: path, seen },
        DecodeError::Damaged(what) => Error::Corrupt { file: path, offset, what },
    })
}

/// The layout that a manifest's bytes encode; else what does not fit, and where.
pub(crate) fn decode(number: u32, bytes: &[u8]) -> Result<Layout, (DecodeError, u64)> {
    let file = FileNo::manifest(number);
    let head = read_head(Content::Manifest, bytes).map_err(|flaw| (flaw, 0))?;
    // A manifest is drafted before it is known to get its number; a draft has it all the same.
    if head.file != file {
        return Err((DecodeError::Damaged("its head has another number than its name"), 0));
    }
    let mut layout = Layout { owner: head.owner, form: head.form, ..Layout::default() };
    let mut at = FILE_HEAD;
    let mut expected = 0;
    loop {
        let damaged = |what| (DecodeError::Damaged(what), at as u64);
        let record = match next_record(Form::Plain, file, &bytes[at..], EDIT_BYTES_MAX) {
            Ok(Next::Record(record)) => record,
            // The first edit was durable before the file had its name.
            Ok(Next::Partial(_)) if expected == 0 => {
                return Err(damaged("it ends within its first edit"));
            }
            Ok(Next::Partial(_)) => return Ok(layout),
            Err(flaw) => return Err((flaw, at as u64)),
        };
        if record.seq != expected {
            return Err(damaged("an edit is missing or there twice"));
        }
        for change in read_changes(record.body, record.count).map_err(|flaw| (flaw, at as u64))? {
            if change.is_of_bounds() && !head.is_bounded {
                return Err(damaged("a reference has bounds in a table without"));
            }
            layout.apply(change).map_err(damaged)?;
        }
        if layout.generation == 0 {
            return Err(damaged("its first edit names no owner"));
        }
        expected += 1;
        at += record.len(Form::Plain) as usize;
    }
}

/// The bytes of an edit of a manifest.
pub(crate) fn encode_edit(number: u32, edit: u64, changes: &[Change], out: &mut Vec<u8>) {
    let mut body = Vec::new();
    changes.iter().for_each(|change| put_change(&mut body, change));
    let record = Record { seq: edit, count: changes.len() as u32, body: &body, data: 0 };
    put_record(out, Form::Plain, FileNo::manifest(number), &record);
}

impl Manifest {
    /// Makes the instance that comes behind `manifest-before` (0: none) the owner of `layout`.
    /// Nothing when another was faster.
    pub(crate) async fn take_over(
        env: &Env,
        table_files: &Rc<TableFiles>,
        before: u32,
        mut layout: Layout,
        roll_bytes: u64,
    ) -> Result<Option<Manifest>, Error> {
        let number = before.checked_add(1).ok_or_else(|| Error::Invalid {
            table: table_files.store.name().to_owned(),
            message: "has had 2^32 owners; copy it into another directory".to_owned(),
        })?;
        layout.generation = number;
        publish(env, table_files, number, layout, roll_bytes).await
    }

    /// The parts of the table.
    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Its number.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Makes changes durable, all or none. After an error the outcome is not known: the caller
    /// must not go on.
    pub(crate) async fn commit(&mut self, changes: Vec<Change>) -> Result<(), Error> {
        let mut layout = self.layout.clone();
        let mut bytes = Vec::new();
        encode_edit(self.number, self.next, &changes, &mut bytes);
        for change in changes {
            let applied = layout.apply(change);
            applied.unwrap_or_else(|what| panic!("an edit breaks the layout: {what}"));
        }
        // A table that had more before there was this bound goes on with as many as were allowed.
        let was_larger = self.layout.files().count() > FILES_MAX;
        let most = if was_larger { FILES_READ_MAX } else { FILES_MAX };
        if layout.files().count() > most {
            let message = format!("has more than {most} sorted files; open it with larger ones");
            return Err(Error::Invalid {
                table: self.table_files.store.name().to_owned(),
                message,
            });
        }
        let path = || self.table_files.path(Name::Manifest(self.number));
        // Only a manifest that is not the highest is ever removed: another instance has gone on.
        let cause = |fault: Fault| match fault.kind {
            Kind::NotFound => Error::Fenced { table: self.table_files.store.name().to_owned() },
            _ => Error::of_store(fault, "write", &path()),
        };
        let pending = self.writer.submit(&bytes).await.map_err(cause)?;
        pending.await.map_err(cause)?;
        self.layout = layout;
        self.next += 1;
        self.len += bytes.len() as u64;
        if self.len - self.base > self.roll_bytes.max(4 * self.base) {
            self.roll().await?;
        }
        Ok(())
    }

    /// Goes on in a new manifest, with the edits so far as one.
    pub(crate) async fn roll(&mut self) -> Result<(), Error> {
        let fenced = || Error::Fenced { table: self.table_files.store.name().to_owned() };
        let number = self.number.checked_add(1).ok_or_else(fenced)?;
        let layout = self.layout.clone();
        match publish(&self.env, &self.table_files, number, layout, self.roll_bytes).await? {
            Some(manifest) => {
                self.env.mark("table: manifest rolled over");
                let old = std::mem::replace(self, manifest);
                old.table_files.pending_deletes.add(Name::Manifest(old.number));
                Ok(())
            }
            None => Err(fenced()),
        }
    }

    /// Seals it: for an instance that ends.
    pub(crate) async fn close(self) {
        let path = self.table_files.path(Name::Manifest(self.number));
        if let Err(fault) = self.writer.close().await {
            tracing::debug!(path, cause = fault.message, "manifest not closed");
        }
    }
}

/// The end of step 3 and step 4 of the module's text: the draft's length; none when another
/// instance has gone on.
async fn publish_draft(
    env: &Env,
    table_files: &TableFiles,
    (draft, writer): (Name, &dyn Writer),
    (number, layout): (u32, &Layout),
) -> Result<Option<u64>, Error> {
    let failed = |fault| Error::of_store(fault, "write", &table_files.path(draft));
    let Layout { form, owner, .. } = *layout;
    let (is_bounded, file) = (layout.is_bounded(), FileNo::manifest(number));
    let mut bytes = Head { form, is_bounded, file, owner }.encode(Content::Manifest).to_vec();
    encode_edit(number, 0, &layout.snapshot(), &mut bytes);
    match writer.submit(&bytes).await.map_err(failed)?.await {
        // A sweep of an instance that has gone on.
        Err(fault) if matches!(fault.kind, Kind::NotFound | Kind::Fenced) => return Ok(None),
        done => done.map_err(failed)?,
    };
    let (from, to) = (draft.to_string(), Name::Manifest(number).to_string());
    match table_files.store.publish(&from, &to).await {
        Ok(()) => Ok(Some(bytes.len() as u64)),
        Err(fault) if matches!(fault.kind, Kind::Exists | Kind::NotFound) => {
            env.mark("table: another engine published");
            table_files.pending_deletes.add(draft);
            Ok(None)
        }
        Err(fault) => Err(Error::of_store(fault, "publish", &table_files.path(draft))),
    }
}

/// Steps 3 to 5 of the module's text, for a manifest of this number: of an instance, or the first of a
/// child of a fork ([`crate::fork`]). Nothing when another instance has gone on.
pub(crate) async fn publish(
    env: &Env,
    table_files: &Rc<TableFiles>,
    number: u32,
    layout: Layout,
    roll_bytes: u64,
) -> Result<Option<Manifest>, Error> {
    let store = &*table_files.store;
    let (draft, writer) = loop {
        // Racing openers have one number; a random part makes their drafts differ.
        let name = Name::Draft(FileNo::new(number, env.random_u64() as u32));
        match store.create(&name.to_string()).await {
            Ok(writer) => break (name, writer),
            Err(fault) if fault.kind == Kind::Exists => {}
            Err(fault) => {
                table_files.discard(env, name);
                return Err(Error::of_store(fault, "create", &table_files.path(name)));
            }
        }
    };
    let published = publish_draft(env, table_files, (draft, &*writer), (number, &layout)).await;
    let len = match published {
        Ok(Some(len)) => len,
        Ok(None) => return Ok(None),
        Err(error) => {
            // A publication that is still under way finds no draft, or has made the manifest.
            table_files.discard(env, draft);
            return Err(error);
        }
    };
    if highest(store).await?.is_none_or(|highest| highest > number) {
        env.mark("table: published too late");
        table_files.pending_deletes.add(Name::Manifest(number));
        return Ok(None);
    }
    Ok(Some(Manifest {
        env: env.clone(),
        table_files: table_files.clone(),
        number,
        writer,
        next: 1,
        base: len,
        len,
        roll_bytes,
        layout,
    }))
}
