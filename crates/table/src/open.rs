//! Opening a table: finding what it consists of, and taking it over.

use std::collections::BTreeSet;
use std::rc::Rc;

use futures_util::future::join;
use runtime::{Class, Env};

use crate::cache::Cache;
use crate::engine::Engine;
use crate::error::Error;
use crate::file::TableFiles;
use crate::format::frame::Form;
use crate::layout::Layout;
use crate::manifest::{self, Manifest};
use crate::memtable::Memtable;
use crate::options::Options;
use crate::pending_deletes::PendingDeletes;
use crate::recover::{self, Recovered};
use crate::store::Store;
use crate::types::{Name, Seq};

/// Opens the table and starts its tasks.
pub(crate) async fn open(
    env: &Env,
    store: Rc<dyn Store>,
    cache: &Cache,
    options: Options,
    logged: &dyn Fn(&[u8], &[u8]),
) -> Result<Rc<Engine>, Error> {
    let options = options.clamped();
    let (cache, table) = (cache.clone(), cache.register());
    let table_files = Rc::new(TableFiles {
        store,
        cache,
        table,
        pending_deletes: Rc::new(PendingDeletes::default()),
    });
    let (manifest, recovered) = loop {
        let Found { number, mut layout, recovered } = find(&table_files, &options).await?;
        if options.data_log_bytes != 0 {
            layout.form = Form::WithData;
        }
        recovered.memtable.each(logged);
        let roll = options.manifest_bytes;
        if let Some(manifest) = Manifest::take_over(env, &table_files, number, layout, roll).await?
        {
            break (manifest, recovered);
        }
        env.mark("table: opening began again");
    };
    let Recovered { memtable, last, kept: _ } = recovered;
    let engine = Rc::new(Engine::new(env, table_files, options, manifest, memtable, last));
    engine.note_memory();
    engine.table_files.cache.writes().watch(&engine);
    // The new log is of this generation: the sweep leaves it.
    let (swept, made) = join(engine.sweep(), engine.make_log()).await;
    swept.and(made)?;
    let log = engine.next_log.borrow_mut().take().expect("just made");
    engine.log_len.set(log.len);
    engine.log_file.set(Some(log.file));
    env.spawn(Class::Foreground, "table log", engine.clone().write_log(log));
    env.spawn(Class::Background, "table flush", engine.clone().flush_always());
    env.spawn(Class::Background, "table remove", engine.clone().remove_always());
    if engine.options.auto_compact {
        env.spawn(Class::Background, "table merge", engine.clone().merge_always());
    }
    Ok(engine)
}

/// A table without an owner.
struct Found {
    /// Its live manifest; 0 when it has none yet.
    number: u32,
    layout: Layout,
    recovered: Recovered,
}

/// Seals and reads the live manifest and the logs that it names.
async fn find(table_files: &TableFiles, options: &Options) -> Result<Found, Error> {
    let Options { create, owner, bugs, .. } = *options;
    let table = || table_files.store.name().to_owned();
    loop {
        let Some(number) = manifest::highest(&*table_files.store).await? else {
            let files = names(table_files).await?;
            let file = files.iter().find(|name| matches!(name, Name::Log(_) | Name::Sorted(_)));
            if let Some(file) = file {
                // Files come after the first manifest, and the highest is never removed.
                if manifest::highest(&*table_files.store).await?.is_some() {
                    continue;
                }
                let file = format!("{}/manifest-* (there is a {file})", table());
                return Err(Error::Missing { file });
            }
            if !create {
                return Err(Error::NotFound { table: table() });
            }
            let (memtable, last, kept) = (Memtable::new(Vec::new()), Seq::ZERO, Vec::new());
            let recovered = Recovered { memtable, last, kept };
            let layout = Layout { owner, ..Layout::default() };
            return Ok(Found { number: 0, layout, recovered });
        };
        // Checked before anything is sealed: an opener that comes too late changes nothing.
        let late = |known: u64| owner != 0 && owner < known;
        if owner != 0 && manifest::owner(table_files, number).await.is_some_and(late) {
            return Err(Error::Fenced { table: table() });
        }
        let Some(mut layout) = manifest::read(table_files, number).await? else { continue };
        if late(layout.owner) {
            return Err(Error::Fenced { table: table() });
        }
        layout.owner = layout.owner.max(owner);
        if let Some(recovered) = recover::logs(table_files, &layout, bugs).await? {
            // Logs without a change are not needed any more, but for their data.
            let used = recovered.memtable.logs();
            layout.logs.retain(|file, _| used.iter().any(|log| log.file == *file));
            layout.kept.extend(recovered.kept.iter().map(|log| (log.file, *log)));
            layout.generation = 0;
            return Ok(Found { number, layout, recovered });
        }
        // A log is gone: the table has gone on without us, or has lost it.
        let present: BTreeSet<Name> = names(table_files).await?.into_iter().collect();
        let mut logs = layout.logs.keys().map(|&log| Name::Log(log));
        let lost = logs.find(|log| !present.contains(log));
        if manifest::highest(&*table_files.store).await? == Some(number)
            && let Some(log) = lost
        {
            return Err(Error::Missing { file: table_files.path(log) });
        }
    }
}

/// All names of ours in the directory.
pub(crate) async fn names(table_files: &TableFiles) -> Result<Vec<Name>, Error> {
    let store = &table_files.store;
    let mut found = Vec::new();
    let mut after = String::new();
    loop {
        let page = store.list(&after).await;
        let page = page.map_err(|fault| Error::of_store(fault, "list", store.name()))?;
        found.extend(page.names.iter().filter_map(|name| Name::parse(name)));
        match page.names.into_iter().next_back() {
            Some(last) if page.more => after = last,
            _ => return Ok(found),
        }
    }
}
