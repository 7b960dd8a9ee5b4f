//! What a half of a range that was split inherits and has no use for: files of the other half's bodies, and files
//! that neither has. Their names go from its directory; the files go with their last name.

use base::Fault;
use object_proto::{CatalogReply, CatalogRequest, Error, FileName, RangeBound};
use table::{Purpose, Range as Rows};

use crate::collect::Collector;
use crate::decisions::{damaged, of_table};
use crate::keys::{FILE, read_session, read_text_key, text_key, trash_key};
use crate::limits::COLLECT_ROWS;
use crate::row::FileRow;

/// Key of the row that says that foreign rows of files may be there.
pub(crate) const INHERITED: [u8; 1] = [FILE];

impl Collector {
    /// Removes what is foreign, once.
    pub(crate) async fn drop_foreign(&self) -> Result<(), Error> {
        if !self.inherits.get() {
            return Ok(());
        }
        let map = match self.managers.ask(CatalogRequest::Map).await? {
            CatalogReply::Map(map) => map,
            _ => return Err(damaged("the map of ranges")),
        };
        let (first, end) = map.bounds(self.id).ok_or(Error::Reroute)?;
        self.drop_foreign_files((first, end)).await?;
        self.drop_unnamed().await?;
        let (_, basis) = self.range.decisions.submit(|batch, _| {
            batch.set_purpose(Purpose::Recovery);
            batch.delete(&INHERITED);
        })?;
        self.range.decisions.settled(basis).await?;
        self.inherits.set(false);
        self.range.env.mark("object: what is another half's is removed");
        Ok(())
    }

    async fn drop_foreign_files(
        &self,
        (first, end): (&RangeBound, Option<&RangeBound>),
    ) -> Result<(), Error> {
        let (decisions, mut from) = (&self.range.decisions, vec![FILE, 0]);
        loop {
            let rows = Rows::between(&from, &[FILE + 1]);
            let rows = decisions.snapshot().scan(rows).take(COLLECT_ROWS).await;
            let rows = rows.map_err(of_table)?;
            let Some((last, _)) = rows.last() else { return Ok(()) };
            from = [last.as_slice(), &[0]].concat();
            for (key, value) in &rows {
                let row = read_text_key(key).map(FileName::new).zip(FileRow::decode(value));
                let (file, row) = row.ok_or_else(|| damaged("a file's row"))?;
                let at = RangeBound::of(&row.target);
                if at >= *first && end.is_none_or(|end| at < *end) {
                    continue;
                }
                self.remove(&file).await?;
                decisions.submit(|batch, _| {
                    batch.set_purpose(Purpose::Recovery);
                    batch.delete(&text_key(FILE, file.as_str()));
                    if let Some(since) = row.trash_us {
                        batch.delete(&trash_key(since, &file));
                    }
                })?;
            }
        }
    }

    /// Removes files without a row whose sessions are closed: they were linked while the former range swept them.
    async fn drop_unnamed(&self) -> Result<(), Error> {
        let busy = |fault: Fault| Error::Busy { cause: fault.message };
        let mut after = "body-".to_owned();
        loop {
            let page = self.store.list(&after).await.map_err(busy)?;
            for name in &page.names {
                let Some(session) = read_session(name) else { continue };
                let file = FileName::new(name.as_str());
                if self.range.file_row(&file).await?.is_some() {
                    continue;
                }
                match self.managers.ask(CatalogRequest::IsOpen(session)).await? {
                    CatalogReply::Open(false) => self.remove(&file).await?,
                    _ => {}
                }
            }
            match page.names.last() {
                Some(last) if page.more && last.starts_with("body-") => after.clone_from(last),
                _ => return Ok(()),
            }
        }
    }
}
