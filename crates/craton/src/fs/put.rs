//! `craton fs put`: local files and trees into the cluster.

use std::collections::BTreeMap;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use base::DirId;
use client::{Client, Error, child_path};
use futures_util::StreamExt;
use wire::control::{Attributes, Node, Place, Policy};

use super::content::{Source, copy_in};
use super::names::{FILE_MODE, base_name, destination};
use super::policy;
use super::progress::Progress;
use crate::args::CopyArgs;
use crate::exit::{Done, Failure, io};

/// One thing to copy. Parents come before what is in them.
struct Item {
    local: PathBuf,
    remote: String,
    attributes: Attributes,
    kind: Kind,
}

enum Kind {
    Dir,
    File { len: u64 },
    Link { target: String },
}

/// Runs it.
pub async fn run(
    client: &Client,
    src: &Path,
    dst: &str,
    args: &CopyArgs,
    redundancy: Option<u8>,
) -> Done {
    let policy = policy::choose(client, redundancy).await?;
    if src == Path::new("-") {
        return put_stdin(client, dst, policy).await;
    }
    let facts = std::fs::symlink_metadata(src).map_err(|error| io("read", src, &error))?;
    if facts.is_dir() && !args.recursive {
        return Err(Failure::usage(format!(
            "{} is a directory: copy it with all that is in it by put -r",
            src.display()
        )));
    }
    let name = local_name(src)?;
    let root = destination(client, &name, dst).await?;
    let mut skipped = Vec::new();
    let items = walk(src, root, &mut skipped)?;
    let total = items.iter().map(Item::len).sum();
    let progress = Progress::new(client.env(), total, args.quiet);
    skipped.iter().for_each(|why| progress.skip(why));
    copy(client, &items, usize::from(args.parallel), policy, &progress).await?;
    progress.finish("stored")
}

impl Item {
    fn len(&self) -> u64 {
        match self.kind {
            Kind::File { len } => len,
            Kind::Dir | Kind::Link { .. } => 0,
        }
    }
}

/// The name that a local path ends in, `..` and the like resolved.
fn local_name(path: &Path) -> Result<String, Failure> {
    let named = match path.file_name() {
        Some(_) => path.to_owned(),
        None => std::fs::canonicalize(path).map_err(|error| io("read", path, &error))?,
    };
    let name = named.file_name().and_then(|name| name.to_str()).map(str::to_owned);
    name.ok_or_else(|| {
        Failure::usage(format!("{} has no name in UTF-8: name the destination", path.display()))
    })
}

async fn put_stdin(client: &Client, dst: &str, policy: Policy) -> Done {
    if base_name(dst).is_none() {
        return Err(Failure::usage("name the file that standard input is to become"));
    }
    let mtime = client.env().unix_time().as_nanos();
    let attributes = Attributes { mode: FILE_MODE, mtime };
    write_file(client, Source::Stdin, dst, policy, attributes, &mut |_| {}).await
}

/// What is to be copied; what cannot be goes to `skipped`, a sentence each.
fn walk(src: &Path, root: String, skipped: &mut Vec<String>) -> Result<Vec<Item>, Failure> {
    let mut items: Vec<Item> = Vec::new();
    let mut todo = vec![(src.to_owned(), root)];
    while let Some((local, remote)) = todo.pop() {
        let facts = match std::fs::symlink_metadata(&local) {
            Ok(facts) => facts,
            Err(error) => {
                skipped.push(format!("{}: {error}: skipped", local.display()));
                continue;
            }
        };
        let kind = facts.file_type();
        let attributes = Attributes { mode: facts.mode() & 0o7777, mtime: mtime(&facts) };
        let kind = if kind.is_dir() {
            match children(&local, &remote, skipped) {
                Ok(children) => todo.extend(children),
                Err(error) => skipped.push(format!("{}: {error}: skipped", local.display())),
            }
            Kind::Dir
        } else if kind.is_file() {
            Kind::File { len: facts.len() }
        } else if kind.is_symlink() {
            let target = std::fs::read_link(&local).map_err(|error| io("read", &local, &error))?;
            match target.into_os_string().into_string() {
                Ok(target) => Kind::Link { target },
                Err(_) => {
                    let local = local.display();
                    skipped.push(format!("{local}: points to a path that is no UTF-8: skipped"));
                    continue;
                }
            }
        } else {
            let what = match kind {
                kind if kind.is_socket() => "a socket",
                kind if kind.is_fifo() => "a pipe",
                _ => "a device",
            };
            skipped.push(format!("{} is {what}: skipped", local.display()));
            continue;
        };
        items.push(Item { local, remote, attributes, kind });
    }
    Ok(items)
}

fn children(
    local: &Path,
    remote: &str,
    skipped: &mut Vec<String>,
) -> std::io::Result<Vec<(PathBuf, String)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(local)? {
        let entry = entry?;
        match entry.file_name().to_str() {
            Some(name) => found.push((entry.path(), child_path(remote, name))),
            None => {
                skipped.push(format!("{}: its name is no UTF-8: skipped", entry.path().display()));
            }
        }
    }
    Ok(found)
}

/// Times before 1970 count as 1970.
fn mtime(facts: &std::fs::Metadata) -> u64 {
    let seconds = u64::try_from(facts.mtime()).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(facts.mtime_nsec().max(0) as u64)
}

async fn copy(
    client: &Client,
    items: &[Item],
    parallel: usize,
    policy: Policy,
    progress: &Progress,
) -> Done {
    let dirs = make_dirs(client, items, parallel).await?;
    let rest = items.iter().filter(|item| !matches!(item.kind, Kind::Dir));
    futures_util::stream::iter(rest)
        .for_each_concurrent(parallel, |item| {
            let dirs = &dirs;
            async move {
                if progress.is_hopeless() {
                    return;
                }
                match put_one(client, item, dirs, policy, progress).await {
                    Ok(()) => progress.done(),
                    Err(failure) => progress.fail(failure),
                }
            }
        })
        .await;
    // Now that nothing changes them any more.
    let dirs = items.iter().filter(|item| matches!(item.kind, Kind::Dir));
    futures_util::stream::iter(dirs)
        .for_each_concurrent(parallel, |item| async move {
            if progress.is_hopeless() {
                return;
            }
            if let Err(error) = client.set_attributes(&item.remote, item.attributes).await {
                progress.fail(error.into());
            }
        })
        .await;
    Ok(())
}

/// Makes the directories, level by level; their identities by path.
async fn make_dirs<'a>(
    client: &Client,
    items: &'a [Item],
    parallel: usize,
) -> Result<BTreeMap<&'a str, DirId>, Failure> {
    let mut levels: BTreeMap<usize, Vec<&Item>> = BTreeMap::new();
    for item in items.iter().filter(|item| matches!(item.kind, Kind::Dir)) {
        levels.entry(item.remote.matches('/').count()).or_default().push(item);
    }
    let mut dirs = BTreeMap::new();
    for level in levels.into_values() {
        let made = level.into_iter().map(|item| async move {
            let id = match client.mkdir(&item.remote, item.attributes.mode).await {
                Err(Error::Exists { .. }) => client.resolve_dir(&item.remote).await,
                made => made,
            };
            id.map(|id| (item.remote.as_str(), id))
        });
        let mut made = futures_util::stream::iter(made).buffer_unordered(parallel);
        while let Some(made) = made.next().await {
            let (path, id) = made?;
            dirs.insert(path, id);
        }
    }
    Ok(dirs)
}

async fn put_one(
    client: &Client,
    item: &Item,
    dirs: &BTreeMap<&str, DirId>,
    policy: Policy,
    progress: &Progress,
) -> Done {
    let found = lookup(client, item, dirs).await?;
    match &item.kind {
        Kind::Dir => Ok(()),
        Kind::Link { target } => put_link(client, item, target, found).await,
        Kind::File { len } => {
            if let Some(Node::File { len: there, attributes, .. }) = &found
                && (there, attributes.mtime) == (len, item.attributes.mtime)
            {
                progress.unchanged(*len);
                return Ok(());
            }
            if let Some(Node::Dir { .. }) = found {
                return Err(Failure::failed(format!(
                    "{}: is a directory; remove it first",
                    item.remote
                )));
            }
            let source = Source::open(client.env(), &item.local).await?;
            let mut moved = |count| progress.moved(count);
            write_file(client, source, &item.remote, policy, item.attributes, &mut moved).await
        }
    }
}

/// What is there already.
async fn lookup(
    client: &Client,
    item: &Item,
    dirs: &BTreeMap<&str, DirId>,
) -> Result<Option<Node>, Failure> {
    let known = item.remote.rsplit_once('/').and_then(|(dir, name)| {
        dirs.get(dir).map(|parent| Place { parent: *parent, name: name.to_owned() })
    });
    let found = match known {
        Some(place) => client.lookup_at(place, &item.remote).await,
        None => client.lookup(&item.remote).await,
    };
    match found {
        Ok(found) => Ok(Some(found.node)),
        Err(Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

async fn put_link(client: &Client, item: &Item, target: &str, found: Option<Node>) -> Done {
    match found {
        Some(Node::Symlink { target: there, .. }) if there == target => {}
        Some(Node::Dir { .. }) => {
            return Err(Failure::failed(format!(
                "{}: is a directory; remove it first",
                item.remote
            )));
        }
        Some(_) => {
            client.unlink(&item.remote).await?;
            client.symlink(target, &item.remote, item.attributes.mode).await?;
        }
        None => client.symlink(target, &item.remote, item.attributes.mode).await?,
    }
    Ok(client.set_attributes(&item.remote, item.attributes).await?)
}

/// Writes a whole file under a name of its own, then gives it its name: who looks sees the old
/// file, or none, or the whole new one.
async fn write_file(
    client: &Client,
    source: Source,
    path: &str,
    policy: Policy,
    attributes: Attributes,
    moved: &mut dyn FnMut(u64),
) -> Done {
    let fresh = temporary(client, path)?;
    let written = async {
        let file = client.create(&fresh, policy, attributes.mode, true).await?;
        if !matches!(&source, Source::File(file, _) if file.len().await.is_ok_and(|len| len == 0)) {
            let writer = file.append_handle().await?;
            copy_in(client.env(), source, &writer, moved).await?;
            writer.close().await?;
        }
        client.set_attributes(&fresh, attributes).await?;
        client.rename(&fresh, path, true).await?;
        Ok(())
    };
    let written: Done = written.await;
    if written.is_err() {
        // As far as it can be: the next run does not need it.
        let _ = client.unlink(&fresh).await;
    }
    written
}

/// A name beside `path` that nobody else uses.
fn temporary(client: &Client, path: &str) -> Result<String, Failure> {
    let name = base_name(path).ok_or_else(|| Failure::usage("'/' is no name for a file"))?;
    let dir = path.trim_end_matches('/').strip_suffix(name).unwrap_or("/");
    Ok(format!("{dir}.craton-put-{:016x}", client.env().random_u64()))
}
