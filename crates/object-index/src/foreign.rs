//! What a half of a range that was split inherits and has no use for: the other half's bodies in files that both have.
//! Their rows go, and what the rows of files count; a file of which nothing lives then goes by way of the trash.

use object_proto::{Error, RangeBound};
use table::{Purpose, Range as Rows};

use crate::answer_pages::read_map;
use crate::body_files::Places;
use crate::collect::Collector;
use crate::collect_files::Placed;
use crate::decisions::of_table;
use crate::keys::{BODY, INHERITED};
use crate::limits::COLLECT_ROWS;

impl Collector {
    /// Removes what is foreign, once. Before that nothing in files is collected.
    pub(crate) async fn drop_foreign(&self) -> Result<(), Error> {
        if !self.inherits.get() {
            return Ok(());
        }
        let map = read_map(async |request| self.managers.ask(request).await).await?;
        let (first, end) = map.bounds(self.id).ok_or(Error::Reroute)?;
        self.drop_foreign_bodies((first, end)).await?;
        let (_, basis) = self.range.decisions.submit(|batch, _| {
            batch.set_purpose(Purpose::Recovery);
            batch.delete(&INHERITED);
        })?;
        self.range.decisions.settled(basis).await?;
        self.inherits.set(false);
        self.range.env.mark("object: what is another half's is removed");
        Ok(())
    }

    async fn drop_foreign_bodies(
        &self,
        (first, end): (&RangeBound, Option<&RangeBound>),
    ) -> Result<(), Error> {
        let (range, mut from) = (&self.range, vec![BODY]);
        loop {
            let rows = Rows::between(&from, &[BODY + 1]);
            let rows = range.decisions.snapshot().scan(rows).take(COLLECT_ROWS).await;
            let rows = rows.map_err(of_table)?;
            let Some((last, _)) = rows.last() else { return Ok(()) };
            from = [last.as_slice(), &[0]].concat();
            let mut foreign = Vec::new();
            for (key, value) in &rows {
                let placed = Placed::read(key, value)?;
                let at = RangeBound::of(&placed.row.target);
                if at < *first || end.is_some_and(|end| at >= *end) {
                    foreign.push(placed);
                }
            }
            if foreign.is_empty() {
                continue;
            }
            let mut files = None;
            let (_, basis) = range.decisions.submit(|batch, _| {
                batch.set_purpose(Purpose::Recovery);
                let mut places = Places::default();
                for placed in &foreign {
                    places.take(batch, &placed.row.target, &placed.object());
                }
                files = Some(range.files.put(batch, &places));
            })?;
            files.into_iter().for_each(|rows| range.files.know(rows));
            range.decisions.settled(basis).await?;
        }
    }
}
