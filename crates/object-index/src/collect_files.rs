//! Files of bodies of which little lives: what does is moved, and they go by way of the trash
//! (`object-protocols.md` 10).

use std::collections::BTreeMap;

use object_proto::limits::PIECE_BYTES;
use object_proto::{
    BucketId, DataId, Error, FileName, NewObject, ObjectData, ObjectFacts, StorageRule, Target,
};
use table::{Purpose, Range as Rows, Snapshot};

use crate::bodies::{self, BodyReader, BodyWriter, Pack};
use crate::body_files::Places;
use crate::collect::{Collector, Moved, of_fault};
use crate::decisions::{damaged, of_table};
use crate::file_rows::{BodyRow, FileOf, FileRow, FileState};
use crate::keys::{
    CURRENT, FILE, PART, VERSIONS, Writer, bodies_prefix, kept_name, object_key, part_key,
    read_body_key, text_key, version_key, writer_of,
};
use crate::limits::{COLLECT_ROWS, MOVED_BYTES, TRASH_AGE_FULL};
use crate::output::Output;
use crate::piece::{Body, HEAD_MAX, stored_len};
use crate::planted::Planted;
use crate::row::{ObjectRow, moved_row};

/// A body, and where it is.
pub(crate) struct Placed {
    file: FileName,
    offset: u64,
    pub(crate) row: BodyRow,
}

impl Placed {
    /// Reads its row.
    pub(crate) fn read(key: &[u8], value: &[u8]) -> Result<Placed, Error> {
        let row = read_body_key(key).zip(BodyRow::decode(value));
        let ((file, offset), row) = row.ok_or_else(|| damaged("the row of a body"))?;
        Ok(Placed { file, offset, row })
    }

    /// Bytes of its pieces.
    fn len(&self) -> u64 {
        stored_len(&self.row.target, self.row.size)
    }

    /// Where a row may be that names it.
    fn keys(&self) -> Vec<Vec<u8>> {
        let target = &self.row.target;
        match self.row.of {
            FileOf::Part(begun, number) => vec![part_key(target, begun, number)],
            FileOf::Object(stamp) => {
                vec![object_key(CURRENT, target), version_key(target, stamp)]
            }
        }
    }

    /// True when the row of an object or part names it.
    fn is_named_by(&self, value: &[u8]) -> bool {
        named(value, &self.file) == Some((self.offset, self.row.data_id))
    }

    /// True when a row names it. All are looked at together: one may move between them.
    async fn is_live(&self, rows: &Snapshot) -> Result<bool, Error> {
        for key in self.keys() {
            let value = rows.get(&key).await.map_err(of_table)?;
            if value.is_some_and(|value| self.is_named_by(&value)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The object or part, as far as its place concerns it.
    pub(crate) fn object(&self) -> NewObject {
        let data = ObjectData::File { file: self.file.clone(), offset: self.offset };
        let (data_id, size) = (self.row.data_id, self.row.size);
        NewObject { data_id, size, facts: ObjectFacts::default(), data }
    }
}

/// The place in a file that the row of an object or part names.
fn named(value: &[u8], file: &FileName) -> Option<(u64, DataId)> {
    let object = ObjectRow::decode(value)?.info.object;
    match object.data {
        ObjectData::File { file: name, offset } if name == *file => Some((offset, object.data_id)),
        _ => None,
    }
}

impl Collector {
    /// One pass over files of bodies.
    pub(crate) async fn tend_files(&self) -> Result<(), Error> {
        if self.inherits.get() {
            return Ok(());
        }
        let mut result = self.end_outputs().await;
        let until = self.trashed_before(TRASH_AGE_FULL);
        for (file, row) in self.range.files.all() {
            let is_dead = row.live == 0;
            let done = match row.state {
                FileState::Held if is_dead && self.range.has_bug(Planted::DropUnpinned) => {
                    self.remove(&file).await
                }
                FileState::Sealed(len, _) if is_dead => self.trash(&file, len).await,
                FileState::Trash(_, since) if since < until => self.drop_file(&file).await,
                _ => Ok(()),
            };
            result = result.and(done);
        }
        result = result.and(self.collect_files().await);
        result.and(self.remove_orphans().await)
    }

    /// Seals files that are written when they are due, and those that owners before have left.
    async fn end_outputs(&self) -> Result<(), Error> {
        let (now, options) = (self.range.env.now(), &self.options);
        let due = self.outputs.borrow_mut().take_due(|output| {
            output.pack.end() >= options.pack_bytes || now - output.written > options.pack_idle
        });
        for output in due {
            let _ = output.pack.close().await; // It is sealed again below.
        }
        let mut result = Ok(());
        for (file, row) in self.range.files.all() {
            let is_written = self.outputs.borrow().has(&file);
            let is_own = matches!(writer_of(file.as_str()), Some(Writer::Owner(..)));
            if is_own && !is_written && row.state == FileState::Held {
                // One that cannot be sealed holds up no other.
                result = result.and(self.seal(&file).await);
            }
        }
        result
    }

    /// Puts a file in the trash of which nothing lives by its count, once it is seen that this is so.
    async fn trash(&self, file: &FileName, len: u64) -> Result<(), Error> {
        let range = &self.range;
        // One step with the look at the count: no batch behind it gives a place in the file.
        let is_dead = |row: FileRow| row.live == 0 && matches!(row.state, FileState::Sealed(..));
        if !range.files.row(file).is_some_and(is_dead) {
            return Ok(());
        }
        let since = match range.has_bug(Planted::NoTrash) {
            true => 0,
            false => range.decisions.now_us(),
        };
        self.set_state(file, FileState::Trash(len, since))?;
        self.verify(file).await.map(drop)
    }

    /// Removes a file that was in the trash for long enough.
    async fn drop_file(&self, file: &FileName) -> Result<(), Error> {
        let range = &self.range;
        range.check_lease()?;
        if !self.verify(file).await? {
            return Ok(());
        }
        self.remove(file).await?;
        // Of bodies that no object had there may be some when the count was wrong.
        let all = Rows::prefix(&bodies_prefix(file));
        let left = range.decisions.snapshot().scan(all).take(COLLECT_ROWS).await;
        let left = left.map_err(of_table)?;
        let (_, basis) = range.decisions.submit(|batch, _| {
            batch.set_purpose(Purpose::Recovery);
            for (key, _) in &left {
                batch.delete(key);
            }
            if left.len() < COLLECT_ROWS {
                batch.delete(&text_key(FILE, file.as_str()));
            }
        })?;
        if left.len() < COLLECT_ROWS {
            range.files.forget(file);
        }
        range.decisions.settled(basis).await?;
        range.env.mark("object: the trash is emptied");
        Ok(())
    }

    /// True when nothing lives in a file of the trash. Else its count was wrong: it is set right, and the file
    /// is in the trash no more.
    async fn verify(&self, file: &FileName) -> Result<bool, Error> {
        let range = &self.range;
        if range.has_bug(Planted::DropCounted) {
            return Ok(true);
        }
        let died = range.files.died(file);
        range.decisions.settled(range.decisions.last()).await?;
        let live = self.living(file).await?;
        if live == 0 {
            return Ok(true);
        }
        let Some(FileRow { state: FileState::Trash(len, _), .. }) = range.files.row(file) else {
            return Ok(false);
        };
        tracing::error!(%file, live, "bodies in a file live, and its count said that none does: it stays");
        range.env.mark("object: a count of what lives was wrong");
        // Of what has died since it was looked at, some may count twice: then it is looked at again.
        let live = live.saturating_sub(range.files.died(file) - died);
        let state = FileState::Sealed(len, range.decisions.now_us());
        let basis = self.set_row(file, FileRow { live, state })?;
        range.decisions.settled(basis).await?;
        Ok(false)
    }

    /// Bytes of bodies in a file that objects or parts name: those that have rows, and those whose heads are
    /// in it.
    pub(crate) async fn living(&self, file: &FileName) -> Result<u64, Error> {
        let (rows, mut live) = (self.range.decisions.snapshot(), BTreeMap::new());
        let mut scan = rows.scan(Rows::prefix(&bodies_prefix(file)));
        while let Some((key, value)) = scan.next().await.map_err(of_table)? {
            let placed = Placed::read(&key, &value)?;
            if placed.is_live(&rows).await? {
                live.insert(placed.offset, placed.len());
            }
            self.range.env.yield_now().await;
        }
        let mut last: Option<(Target, BTreeMap<u64, u64>)> = None;
        for (target, offset) in self.heads(file).await? {
            if last.as_ref().is_none_or(|(known, _)| *known != target) {
                let places = self.named_of(&rows, &target, file).await?;
                last = Some((target, places));
            }
            let len = last.as_ref().and_then(|(_, places)| places.get(&offset));
            if let Some(len) = len
                && live.insert(offset, *len).is_none()
            {
                tracing::error!(%file, offset, "a body has no row of its place");
            }
        }
        Ok(live.values().sum())
    }

    /// Where bodies begin in a file, by the heads of their pieces, and whose they are.
    async fn heads(&self, file: &FileName) -> Result<Vec<(Target, u64)>, Error> {
        let source = match self.store.open(file.as_str()).await {
            Ok(source) => source,
            Err(fault) if fault.kind == base::Kind::NotFound => return Ok(Vec::new()),
            Err(fault) => return Err(of_fault(fault)),
        };
        let (mut heads, mut at) = (Vec::new(), 0);
        loop {
            let bytes = source.read_at(at, HEAD_MAX).await.map_err(of_fault)?;
            // Behind it is what a body left that broke off, or nothing.
            let Some((body, head)) = Body::read(&bytes) else { return Ok(heads) };
            self.pace.take_moved(&self.range.env, HEAD_MAX).await;
            let len = (body.head_len() + head.len as usize) as u64;
            if head.offset == 0 {
                heads.push((body.target, at));
            }
            at += len;
        }
    }

    /// The places in a file that rows of an object's versions and parts name, with the bytes of their pieces.
    async fn named_of(
        &self,
        rows: &Snapshot,
        target: &Target,
        file: &FileName,
    ) -> Result<BTreeMap<u64, u64>, Error> {
        let mut places = BTreeMap::new();
        for section in [CURRENT, VERSIONS, PART] {
            let mut scan = rows.scan(Rows::prefix(&object_key(section, target)));
            while let Some((_, value)) = scan.next().await.map_err(of_table)? {
                let row = ObjectRow::decode(&value);
                let object = row.ok_or_else(|| damaged(&format!("a row of {target}")))?.info.object;
                if let ObjectData::File { file: name, offset } = &object.data
                    && name == file
                {
                    places.insert(*offset, stored_len(target, object.size));
                }
            }
        }
        Ok(places)
    }

    /// Moves what lives in the files that give most room back for what is copied, the older the rather.
    async fn collect_files(&self) -> Result<(), Error> {
        let range = &self.range;
        let is_tight = range.decisions.room.is_tight(&range.env);
        let now = range.decisions.now_us();
        let mut files = Vec::new();
        for (file, row) in range.files.all() {
            let FileState::Sealed(len, since) = row.state else { continue };
            let dead = len.saturating_sub(row.live);
            let is_due = dead * if is_tight { 4 } else { 2 } >= len && row.live > 0;
            if is_due && !self.damaged_files.borrow().contains(&file) {
                let age = u128::from(now.saturating_sub(since) / 1_000_000 + 1);
                let score = u128::from(dead) * age / u128::from(len + row.live).max(1);
                files.push((score, file));
            }
        }
        files.sort_by(|a, b| b.cmp(a));
        let mut result = Ok(());
        for (_, file) in files {
            range.check_lease()?;
            result = result.and(self.collect_file(&file).await);
        }
        result
    }

    /// Moves what lives in a file.
    async fn collect_file(&self, file: &FileName) -> Result<(), Error> {
        let (range, mut moved) = (&self.range, Moved::default());
        let (prefix, mut from) = (bodies_prefix(file), bodies_prefix(file));
        loop {
            let mut rest = Rows::prefix(&prefix);
            rest.lower = std::ops::Bound::Included(from.clone());
            let rows = range.decisions.snapshot().scan(rest).take(COLLECT_ROWS).await;
            let rows = rows.map_err(of_table)?;
            for (key, value) in &rows {
                if !moved.is_held_up {
                    self.move_body(&Placed::read(key, value)?, &mut moved).await?;
                }
            }
            match rows.last() {
                Some((last, _)) if rows.len() == COLLECT_ROWS && !moved.is_held_up => {
                    from = [last.as_slice(), &[0]].concat();
                }
                _ => break,
            }
        }
        range.decisions.settled(moved.basis).await?;
        let is_damaged = self.damaged_files.borrow().contains(file);
        if !moved.is_held_up && !is_damaged {
            self.set_right(file).await?;
            range.env.mark("object: a file of bodies is collected");
        }
        Ok(())
    }

    /// Counts what lives in a file of which all was moved, if its count says that something does.
    async fn set_right(&self, file: &FileName) -> Result<(), Error> {
        let range = &self.range;
        let died = range.files.died(file);
        range.decisions.settled(range.decisions.last()).await?;
        if range.files.row(file).is_none_or(|row| row.live == 0) {
            return Ok(());
        }
        let live = self.living(file).await?;
        let Some(row) = range.files.row(file) else { return Ok(()) };
        let live = live.saturating_sub(range.files.died(file) - died);
        if live < row.live && !range.has_bug(Planted::LostCount) {
            tracing::error!(%file, live, was = row.live, "less lives in a file than its count says");
            range.env.mark("object: a count of what lives was wrong");
            self.set_row(file, FileRow { live, ..row }).map(drop)?;
        }
        Ok(())
    }

    /// The file that is written and stored so, or a new one.
    async fn take_output(&self, storage: StorageRule) -> Result<Pack, Error> {
        if let Some(pack) = self.outputs.borrow_mut().take(storage) {
            return Ok(pack);
        }
        let number = self.outputs_made.get() + 1;
        self.outputs_made.set(number);
        let name = kept_name((self.id, self.range.epoch), number);
        self.outputs.borrow_mut().make(name.clone());
        let store = self.files.dir_for(self.store.name(), storage).await.map_err(of_fault)?;
        Pack::create(&*store, name, Purpose::Collection).await
    }

    /// How what is moved of a bucket is stored.
    async fn storage(&self, bucket: BucketId) -> Result<StorageRule, Error> {
        self.range.buckets.load(bucket).await?;
        Ok(self.range.buckets.rules(bucket).storage)
    }

    /// Copies a body that an object or part has, and gives it its new place if it is there still.
    async fn move_body(&self, placed: &Placed, moved: &mut Moved) -> Result<(), Error> {
        let range = &self.range;
        // Looked at without the key's lock first.
        if !placed.is_live(&range.decisions.snapshot()).await? {
            return Ok(());
        }
        if range.decisions.room.lacks(Purpose::Collection) {
            moved.is_held_up = true;
            return Ok(());
        }
        let storage = self.storage(placed.row.target.bucket).await?;
        let copied = self.copy(placed, storage).await;
        let pack = match copied {
            Ok(Some(pack)) => pack,
            failed => {
                self.outputs.borrow_mut().end_copy();
                return failed.map(drop);
            }
        };
        let (name, end) = (pack.name.clone(), pack.end());
        let (is_full, written) = (end >= self.options.pack_bytes, range.env.now());
        {
            let outputs = &mut *self.outputs.borrow_mut();
            outputs.give_back(Output { pack, storage, written });
            outputs.end_copy();
        }
        let to = Placed { file: name, offset: end - placed.len(), row: placed.row.clone() };
        self.replace(placed, &to, moved).await?;
        if is_full {
            self.end_outputs().await?;
        }
        moved.bytes += placed.len() as usize;
        if moved.bytes >= MOVED_BYTES {
            moved.bytes = 0;
            range.decisions.settled(moved.basis).await?;
        }
        Ok(())
    }

    /// Writes a body behind what was moved before; none when it is damaged.
    async fn copy(&self, placed: &Placed, storage: StorageRule) -> Result<Option<Pack>, Error> {
        let (range, Placed { file, offset, row }) = (&self.range, placed);
        let body = Body { data_id: row.data_id, target: row.target.clone() };
        let source = bodies::open(&*self.store, file).await?;
        let reader =
            BodyReader::new(source, (file, *offset), (body.clone(), row.size), range.bugs());
        let mut writer = None;
        let mut at = 0;
        while at < row.size {
            let bytes = match reader.read(at, PIECE_BYTES).await {
                Ok(bytes) => bytes,
                Err(Error::Damaged { what }) => {
                    let target = &row.target;
                    tracing::error!(%file, %target, what, "an object is damaged: its file stays");
                    self.damaged_files.borrow_mut().insert(file.clone());
                    return Ok(None);
                }
                Err(error) => return Err(error),
            };
            self.pace.take_moved(&range.env, bytes.len()).await;
            at += bytes.len() as u64;
            let writer = match &mut writer {
                Some(writer) => writer,
                none => {
                    let pack = self.take_output(storage).await?;
                    none.insert(BodyWriter::new(pack, body.clone(), range.bugs()))
                }
            };
            writer.write(&bytes).await?;
        }
        match writer {
            Some(writer) => writer.finish(&range.env, row.size).await,
            None => Ok(None),
        }
    }

    /// Gives a body its new place, if an object or part has it at the old one still.
    async fn replace(&self, old: &Placed, new: &Placed, moved: &mut Moved) -> Result<(), Error> {
        let (range, target) = (&self.range, &old.row.target);
        let held = range.decisions.lock(&object_key(CURRENT, target)).await;
        let mut found = None;
        for key in old.keys() {
            let seen = range.decisions.read(&key).await?;
            if let Some(value) = seen.value {
                let is_it = old.is_named_by(&value) || range.has_bug(Planted::BlindMove);
                let row = moved_row(&value, (&new.file, new.offset));
                found = found.or(row.filter(|_| is_it).map(|row| (key, row)));
            }
        }
        let Some((key, row)) = found else {
            range.env.mark("object: replaced while it was moved");
            return Ok(());
        };
        let mut files = None;
        let (_, basis) = range.decisions.submit(|batch, _| {
            batch.set_purpose(Purpose::Collection);
            batch.put(&key, &row);
            let mut places = Places::default();
            places.take(batch, target, &old.object());
            places.give(batch, (target, old.row.of), &new.object());
            files = Some(range.files.put(batch, &places));
        })?;
        files.into_iter().for_each(|rows| range.files.know(rows));
        drop(held);
        range.env.mark("object: moved out of a file");
        moved.basis = basis;
        Ok(())
    }
}
