//! Views of a table, opened without taking it over: its owner goes on and is not notified.
//!
//! The live manifest and its logs are read as they are shown at present, none is sealed. A view is
//! the table as it was at some moment: edits, and changes in logs, are read as a prefix of theirs,
//! and changes have numbers without gaps. When the manifest was replaced during the opening, or a
//! file that it names was removed, the opening begins again. A view of a table that was closed is
//! complete; of others it may lack what was made durable lately, and, when all servers of a file have
//! restarted since, all that is in it beyond a manifest's first edit: until its owner goes on, or it is
//! sealed (`docs/decisions/0030`).
//!
//! Nothing is pinned: files of a table that has an owner may go while the view is read. Then a read
//! fails with `Missing` or `Fenced`, and its caller opens a new view.

use std::rc::Rc;

use runtime::Env;

use crate::cache::Cache;
use crate::engine::Engine;
use crate::error::Error;
use crate::file::TableFiles;
use crate::layout::Layout;
use crate::limits::{VIEW_ATTEMPTS_MAX, VIEW_PAUSE};
use crate::manifest;
use crate::options::Options;
use crate::pending_deletes::PendingDeletes;
use crate::recover::{self, Recovered};
use crate::snapshot::{Pin, Snapshot};
use crate::store::Store;

/// The table as it is shown at present.
pub(crate) async fn open_view(
    env: &Env,
    store: Rc<dyn Store>,
    cache: &Cache,
) -> Result<Snapshot, Error> {
    let (cache, table) = (cache.clone(), cache.register());
    let table_files = Rc::new(TableFiles {
        store,
        cache,
        table,
        pending_deletes: Rc::new(PendingDeletes::default()),
    });
    let mut looks = 0;
    let (number, layout, recovered) = loop {
        match try_open_view(&table_files).await {
            Ok(seen) => break seen,
            Err(error @ (Error::NotFound { .. } | Error::Version { .. })) => return Err(error),
            Err(error) if looks >= VIEW_ATTEMPTS_MAX => return Err(error),
            Err(_) => {
                looks += 1;
                env.mark("table: look again");
                env.sleep(VIEW_PAUSE).await;
            }
        }
    };
    let Recovered { memtable, last, kept: _ } = recovered;
    let of = (number, &layout, None);
    let engine = Rc::new(Engine::of(env, table_files, Options::default(), of, (memtable, last)));
    Ok(Snapshot { pin: Pin::new(&engine) })
}

async fn try_open_view(table_files: &TableFiles) -> Result<(u32, Layout, Recovered), Error> {
    let table = || table_files.store.name().to_owned();
    let Some(number) = manifest::highest(&*table_files.store).await? else {
        return Err(Error::NotFound { table: table() });
    };
    let layout = manifest::peek(table_files, number).await?;
    let recovered = recover::peek(table_files, &layout).await?;
    if manifest::highest(&*table_files.store).await? != Some(number) {
        let (what, cause) = (format!("look at {}", table()), "its owner has gone on".to_owned());
        return Err(Error::Unavailable { what, cause });
    }
    Ok((number, layout, recovered))
}
