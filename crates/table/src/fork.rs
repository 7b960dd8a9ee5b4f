//! [`Fork`]: a table becomes several, which share its files.
//!
//! Each child gets names of the parent's files in a directory of its own, and a first manifest whose
//! references show the child's keys alone (see [`crate::bounds`]). Nothing is copied.
//!
//! # Order
//!
//! 1. *Links*, while the table serves on, in rounds: what was flushed or merged since the last round is
//!    new in the next one. Only sealed files are linked.
//! 2. *Cut*: no new batch is taken, those under way end, edits of the manifest end. Then the instance is
//!    over, all logs and the manifest are sealed, and what is new since the last round is linked.
//! 3. The first manifest of each child is drafted and published. It names what the parent's manifest
//!    names, so logs too: each child replays what it shows of them.
//!
//! *A child has all that the parent has acknowledged.* An instance acknowledges what is durable in a log
//! that its manifest names. After 2 none of these logs takes an append, and the manifest names no further
//! one; so what the children refer to is all there will be. That holds until another instance has opened
//! the parent: a fork that finds a higher manifest behind its seals fails. One that is overtaken later
//! still succeeds, and its caller must not use the children: the object service gives the parent a new
//! epoch before it opens it again, and takes children of the old one no more.
//!
//! *A fork that fails at any step loses nothing.* The parent was sealed and no more: its next opening
//! finds a table whose owner has ended. The children's directories are trash.
//!
//! # Why no child gives a name that another file has, or will have
//!
//! Let the parent's manifest be N in the cut. The instance that cuts, and all before it, have generations
//! up to N: whatever links of theirs bring, however late, has a generation of N at most. A child's first
//! manifest is N+1, and no instance is of this generation: its first owner begins with N+2, and so makes
//! names of generations from N+2 on. A late link finds its name taken only by the same file.
//!
//! Links bring no manifest and no draft. A link that was delayed until a child has removed that name
//! brings it back; nothing refers to it, and the child's next opening sweeps it, as it sweeps all names
//! of older generations that its manifest does not name. What its manifest names was linked before the
//! manifest appeared, and is never swept ([`crate::manifest`]). A directory in which an earlier instance
//! of the same parent began a fork can be used again: its names are the same files, and a manifest that
//! it published late has a lower number than this one.
//!
//! Removing a name in one directory leaves the others: a file goes with its last name
//! ([`crate::Store::remove`]). So any of the tables may merge, release or be removed first.

use std::collections::BTreeSet;
use std::fmt;
use std::rc::Rc;

use base::Kind;
use futures_util::future::{try_join, try_join_all};

use crate::bounds::Bounds;
use crate::engine::{Engine, Over};
use crate::error::Error;
use crate::file::TableFiles;
use crate::layout::Layout;
use crate::limits::{BOUNDS_RANGES_MAX, FORK_ATTEMPTS_MAX};
use crate::manifest;
use crate::pending_deletes::PendingDeletes;
use crate::planted::Planted;
use crate::range::Range;
use crate::store::Store;
use crate::table::Table;
use crate::types::{FileNo, Name, Seq};

/// A table in the making: its directory, and what it gets of its parent.
pub struct Child {
    /// Its directory, in which there is nothing but what forks of this parent have linked.
    pub store: Rc<dyn Store>,
    /// Number of its owner: an opening with a lower one is refused ([`crate::Options::owner`]).
    pub owner: u64,
    /// Keys that it shows; their direction has no meaning. Children may show the same keys.
    pub shows: Vec<Range>,
}

/// A child, and the names that it has.
struct Linked {
    store: Rc<dyn Store>,
    owner: u64,
    shows: Bounds,
    names: BTreeSet<Name>,
}

/// A table that is about to become several (`object-protocols.md` 4). Dropping it before the cut changes
/// nothing but the children's directories, which the caller removes.
pub struct Fork {
    table: Table,
    children: Vec<Linked>,
}

/// Ends the instance when a cut is given up in the middle.
struct EndOnDrop<'a>(&'a Engine);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.end(Over::Forked);
    }
}

impl Table {
    /// Begins to make several tables of this one, which share its files ([`Fork::link`], [`Fork::cut`]).
    /// The table serves on until the cut. Keys that no child shows are in none.
    pub fn fork(&self, children: Vec<Child>) -> Result<Fork, Error> {
        let invalid = |message: &str| Error::Invalid {
            table: self.engine().name().to_owned(),
            message: message.to_owned(),
        };
        let linked = children.into_iter().map(|Child { store, owner, shows }| {
            let shows = Bounds::of(&shows);
            match shows.ranges().len() {
                0 => Err(invalid("a child that shows no keys needs no fork")),
                1..=BOUNDS_RANGES_MAX => Ok(Linked { store, owner, shows, names: BTreeSet::new() }),
                _ => Err(invalid("a child shows more ranges of keys than a manifest has")),
            }
        });
        let children = linked.collect::<Result<_, _>>()?;
        Ok(Fork { table: self.clone(), children })
    }
}

impl Fork {
    /// A round of links, while the table serves on; answers how many names were new, in all directories
    /// together. To be repeated until these are few: the cut links the rest while writes wait. What is in
    /// no sorted file and in the present log cannot be linked before the cut; [`Table::flush`] or
    /// [`Table::end_log`] before it leave less for the children to replay.
    ///
    /// An error leaves the table as it is; the round may be repeated. [`Error::Missing`] means that a
    /// child's directory is gone, or that a file of the table is.
    pub async fn link(&mut self) -> Result<usize, Error> {
        let engine = self.table.engine().clone();
        let mut attempts = 1;
        loop {
            match self.try_link(&engine).await {
                // A log whose changes were flushed, or that was released.
                Err(Error::Missing { .. }) if attempts < FORK_ATTEMPTS_MAX => {
                    attempts += 1;
                    engine.env.mark("table: links began again");
                }
                Err(error) => return Err(engine.explain(error).await),
                Ok(count) => return Ok(count),
            }
        }
    }

    async fn try_link(&mut self, engine: &Engine) -> Result<usize, Error> {
        // Files stay while their runs are held; logs may go.
        let (layout, _runs, open) = {
            let manifest = engine.manifest.lock().await;
            if let Some(error) = engine.over_error() {
                return Err(error);
            }
            let open = manifest.as_ref().expect("taken only when it is over");
            (open.layout().clone(), engine.runs.borrow().clone(), engine.open_logs())
        };
        let closed = layout.logs.keys().filter(|log| !open.contains(log));
        seal_logs(&engine.table_files, closed).await?;
        self.link_rest(engine, &layout, &open).await.map(|(count, _)| count)
    }

    /// Links what children need of a layout and do not have, but for some logs. Answers how many names
    /// were new, and the children's layouts.
    async fn link_rest(
        &mut self,
        engine: &Engine,
        layout: &Layout,
        but: &BTreeSet<FileNo>,
    ) -> Result<(usize, Vec<Layout>), Error> {
        let rounds = self.children.iter_mut().map(|child| async {
            let mut clipped = layout.clipped(&child.shows).map_err(|what| Error::Invalid {
                table: engine.name().to_owned(),
                message: format!("{what}; compact it before it is forked"),
            })?;
            clipped.logs.retain(|log, _| !but.contains(log));
            let mut needed = clipped.names();
            if !engine.options.bugs.has(Planted::ForgetKept) {
                needed.extend(clipped.kept_names());
            }
            let new: BTreeSet<Name> = needed.difference(&child.names).copied().collect();
            let names: Vec<String> = new.iter().map(Name::to_string).collect();
            if !names.is_empty() {
                let linked = engine.table_files.store.link(&names, child.store.name()).await;
                let path = || format!("{} files of {}", names.len(), engine.name());
                linked.map_err(|fault| Error::of_store(fault, "link", &path()))?;
            }
            child.names.extend(&new);
            Ok((new.len(), clipped))
        });
        let (counts, layouts): (Vec<_>, Vec<_>) = try_join_all(rounds).await?.into_iter().unzip();
        Ok((counts.into_iter().sum(), layouts))
    }

    /// Cuts: ends the instance and makes the children, each with all that was acknowledged of the keys that
    /// it shows. Answers the last change. Writes that were not answered by then get their answers, and no
    /// later one is taken; reads go on and show this state.
    ///
    /// After an error, or when the caller stops waiting, the instance has ended and the children must not
    /// be opened: the next owner opens the parent, which has everything. So it does when the caller
    /// decides against the children for another cause.
    pub async fn cut(mut self) -> Result<Seq, Error> {
        let engine = self.table.engine().clone();
        let layouts = if engine.options.bugs.has(Planted::UnsealedParent) {
            self.link_and_go_on(&engine).await?
        } else {
            let _ends = EndOnDrop(&engine);
            match self.seal_and_link(&engine).await {
                // Another instance may have flushed and removed a log since.
                Err(error) => return Err(engine.explain(error).await),
                Ok(layouts) => layouts,
            }
        };
        let number = engine.manifest_number.get().checked_add(1).ok_or_else(|| Error::Invalid {
            table: engine.name().to_owned(),
            message: "has had 2^32 owners; copy it into another directory".to_owned(),
        })?;
        let low = engine.options.bugs.has(Planted::LowNumber);
        let number = if low { 1 } else { number };
        let made = self.children.iter().zip(layouts).map(|(child, layout)| {
            let layout = Layout { owner: child.owner, generation: number, ..layout };
            make(&engine, child.store.clone(), number, layout)
        });
        try_join_all(made).await?;
        engine.env.mark("table: forked");
        Ok(engine.visible.get())
    }

    /// Step 2 of the module's text.
    async fn seal_and_link(&mut self, engine: &Engine) -> Result<Vec<Layout>, Error> {
        engine.hold_writes().await?;
        let (manifest, spare) = {
            let mut manifest = engine.manifest.lock().await;
            // Since the lock is held, no edit is under way whose outcome is not known.
            if let Some(error) = engine.over_error() {
                return Err(error);
            }
            engine.end(Over::Forked);
            (manifest.take().expect("taken only when it is over"), engine.next_log.take())
        };
        engine.commit_is_over().await;
        // Nothing was ever in the log that is made ahead.
        let but: BTreeSet<FileNo> = spare.iter().map(|log| log.file).collect();
        let layout = manifest.layout().clone();
        let (number, name) = (manifest.number(), Name::Manifest(manifest.number()));
        manifest.close().await;
        let files = &engine.table_files;
        let sealed = async { seal(files, name).await.map(drop) };
        try_join(sealed, seal_logs(files, layout.logs.keys())).await?;
        if manifest::highest(&*files.store).await? != Some(number) {
            return Err(Error::Fenced { table: engine.name().to_owned() });
        }
        self.link_rest(engine, &layout, &but).await.map(|(_, layouts)| layouts)
    }

    /// The same with a bug: for tests of the tests.
    async fn link_and_go_on(&mut self, engine: &Engine) -> Result<Vec<Layout>, Error> {
        engine.end_log.set(true);
        engine.flush_now().await?;
        let (layout, open) = {
            let manifest = engine.manifest.lock().await;
            let open = manifest.as_ref().map(|open| open.layout().clone()).unwrap_or_default();
            (open, engine.open_logs())
        };
        let closed = layout.logs.keys().filter(|log| !open.contains(log));
        seal_logs(&engine.table_files, closed).await?;
        Ok(self.link_rest(engine, &layout, &open).await?.1)
    }
}

impl fmt::Debug for Fork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let children = self.children.iter().map(|child| child.store.name());
        f.debug_list().entries(children).finish()
    }
}

/// Seals a file; one that is gone is another's.
async fn seal(table_files: &TableFiles, name: Name) -> Result<u64, Error> {
    let sealed = table_files.store.seal(&name.to_string()).await;
    sealed.map_err(|fault| match (fault.kind, name) {
        (Kind::NotFound, Name::Manifest(_)) => {
            Error::Fenced { table: table_files.store.name().to_owned() }
        }
        _ => Error::of_store(fault, "seal", &table_files.path(name)),
    })
}

async fn seal_logs<'a>(
    table_files: &TableFiles,
    logs: impl Iterator<Item = &'a FileNo>,
) -> Result<(), Error> {
    try_join_all(logs.map(|&log| seal(table_files, Name::Log(log)))).await.map(drop)
}

/// Makes the first manifest of a child. Its directory has all that it names.
async fn make(
    engine: &Engine,
    store: Rc<dyn Store>,
    number: u32,
    layout: Layout,
) -> Result<(), Error> {
    let cache = engine.table_files.cache.clone();
    let (table, pending_deletes) = (cache.register(), Rc::new(PendingDeletes::default()));
    let table_files = Rc::new(TableFiles { store, cache, table, pending_deletes });
    let roll = engine.options.manifest_bytes;
    match manifest::publish(&engine.env, &table_files, number, layout, roll).await? {
        Some(manifest) => {
            // Its opening seals it, too.
            engine.env.spawn(runtime::Class::Background, "close manifest", manifest.close());
            Ok(())
        }
        None => Err(Error::Invalid {
            table: table_files.store.name().to_owned(),
            message: "holds a table; fork into an empty directory".to_owned(),
        }),
    }
}
