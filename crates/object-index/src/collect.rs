//! Removal of what is of no use any more: files in the trash (`object-protocols.md` 10.3 and 10.4), and
//! what silent sessions left (5.5).

use std::rc::Rc;

use base::Kind;
use object_proto::{Error, FileName, ObjectData, SessionId};
use runtime::Duration;
use table::{Range as Rows, Store};

use crate::catalog::Catalog;
use crate::decisions::{damaged, of_table, unix_us};
use crate::keys::{
    CURRENT, FILE, TRASH, number_key, object_key, read_trash_key, session_files, text_key,
    trash_key,
};
use crate::limits::COLLECT_ROWS;
use crate::range::Range;
use crate::row::{FileRow, ObjectRow};

/// What a pass needs.
pub(crate) struct Collector {
    pub(crate) range: Rc<Range>,
    pub(crate) catalog: Rc<Catalog>,
    pub(crate) store: Rc<dyn Store>,
    /// Files stay in the trash for this long.
    pub(crate) trash_age: Duration,
}

impl Collector {
    /// One pass. What fails is left for the next one and holds up nothing else; returns the first error.
    pub(crate) async fn pass(&self) -> Result<(), Error> {
        self.range.check_sweep()?;
        let mut result = Ok(());
        for session in self.range.sessions.silent() {
            tracing::info!(%session, "object gateway is silent: its session is closed");
            self.range.env.mark("object: a silent session is closed");
            result = result.and(self.catalog.close_session(session).await);
        }
        for session in self.range.sessions.closed() {
            result = result.and(self.sweep(session).await);
        }
        result.and(self.empty_trash().await)
    }

    /// Removes the files of a closed session that were not committed, and its answers.
    async fn sweep(&self, session: SessionId) -> Result<(), Error> {
        let prefix = session_files(session);
        let mut after = prefix.clone();
        loop {
            let page = self.store.list(&after).await.map_err(of_fault)?;
            for name in page.names.iter().take_while(|name| name.starts_with(&prefix)) {
                let file = FileName::new(name.as_str());
                if self.range.file_row(&file).await?.is_none() {
                    self.remove(&file).await?;
                    self.range.env.mark("object: an orphan is removed");
                }
            }
            match page.names.last() {
                Some(last) if page.more && last.starts_with(&prefix) => after.clone_from(last),
                _ => break,
            }
        }
        self.range.forget_session(session).await?;
        self.catalog.forget_session(session).await
    }

    async fn remove(&self, file: &FileName) -> Result<(), Error> {
        match self.store.remove(file.as_str()).await {
            Err(fault) if fault.kind != Kind::NotFound => Err(of_fault(fault)),
            _ => Ok(()),
        }
    }

    /// Removes the files that were in the trash for long enough.
    async fn empty_trash(&self) -> Result<(), Error> {
        let (range, age) = (&self.range, self.trash_age.as_micros() as u64);
        let until = number_key(TRASH, unix_us(&range.env).saturating_sub(age));
        let (mut from, mut result) = (vec![TRASH], Ok(()));
        loop {
            let old = Rows::between(&from, &until);
            let rows = range.decisions.snapshot().scan(old).take(COLLECT_ROWS).await;
            let rows = rows.map_err(of_table)?;
            let Some((last, _)) = rows.last() else { return result };
            from = [last.as_slice(), &[0]].concat();
            for (key, _) in &rows {
                let dropped = match read_trash_key(key) {
                    Some((since, file)) => self.drop_file(&file, since).await,
                    None => Err(damaged("a row of the trash")),
                };
                result = result.and(dropped);
            }
        }
    }

    /// Removes a file that has been in the trash since a time, if no object names it.
    async fn drop_file(&self, file: &FileName, since: u64) -> Result<(), Error> {
        let range = &self.range;
        let row = range.file_row(file).await?;
        let named = match &row {
            Some(row) => self.is_named(file, row).await?,
            None => false,
        };
        if named {
            tracing::error!(%file, "a file in the trash is an object's: it stays, check the bucket");
        } else {
            self.remove(file).await?;
        }
        let (_, basis) = range.decisions.submit(|batch, _| {
            batch.delete(&trash_key(since, file));
            match row.filter(|_| named) {
                Some(row) => {
                    let row = FileRow { trash_us: None, ..row };
                    batch.put(&text_key(FILE, file.as_str()), &row.encode());
                }
                None => {
                    batch.delete(&text_key(FILE, file.as_str()));
                }
            }
        })?;
        range.decisions.settled(basis).await?;
        range.env.mark("object: the trash is emptied");
        Ok(())
    }

    /// True when the current object of a file's key has its data there.
    async fn is_named(&self, file: &FileName, row: &FileRow) -> Result<bool, Error> {
        let current = self.range.decisions.read(&object_key(CURRENT, &row.target)).await?;
        let Some(value) = current.value else { return Ok(false) };
        let current = ObjectRow::decode(&value);
        let current = current.ok_or_else(|| damaged(&format!("the row of {}", row.target)))?;
        Ok(matches!(&current.info.object.data, ObjectData::File(name) if name == file))
    }
}

fn of_fault(fault: base::Fault) -> Error {
    Error::Busy { cause: fault.message }
}
