//! `craton fs put`: local files and trees into the cluster.

use std::collections::BTreeMap;
use std::fs::{FileType, Metadata};
use std::hash::BuildHasher;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use base::DirId;
use client::{Client, Error, FlatLogFile, Found, child_path};
use futures_util::StreamExt;
use wire::control::limits::TARGET_MAX;
use wire::control::{Attributes, NameKey, Node, Policy};

use super::content::{PIECE, Source, copy_in, has_len};
use super::names::{DIR_MODE, FILE_MODE, base_name, destination};
use super::policy::{self, Wish};
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
    redundancy: Option<Policy>,
) -> Done {
    let policy = policy::wish(client, redundancy).await?;
    if src == Path::new("-") {
        return put_stdin(client, dst, policy).await;
    }
    // As cp does: a link that is named is followed unless a tree is copied.
    let facts = facts_of(src, !args.recursive).map_err(|error| io("read", src, &error))?;
    if let Some(what) = special(facts.file_type()) {
        return Err(Failure::usage(format!(
            "{} is {what}: name a file, or '-' for standard input",
            src.display()
        )));
    }
    if facts.is_dir() && !args.recursive {
        return Err(Failure::usage(format!(
            "{} is a directory: copy it with all that is in it by put -r",
            src.display()
        )));
    }
    let source = source_text(src);
    let continued = facts.is_dir() && marker_of(client, dst).await?.is_some_and(|it| it == source);
    let root = match continued {
        true => dst.to_owned(),
        false => destination(client, &local_name(src)?, dst).await?,
    };
    let mark = (facts.is_dir() && root == dst).then_some(source);
    let mut left = LeftOut::default();
    let items = walk(src, root, !args.recursive, &mut left)?;
    let total = items.iter().map(Item::len).sum();
    let progress = Progress::new(client.env(), total, args.quiet);
    left.special.iter().for_each(|why| progress.warn(why));
    left.unreadable.iter().for_each(|why| progress.skip(why));
    if let Some(source) = &mark {
        begin(client, dst, source).await?;
    }
    let parallel = usize::from(args.parallel);
    copy(client, &items, parallel, policy, &progress).await?;
    set_times(client, &items, parallel, &progress).await;
    // Last: a run that is killed before this is continued by the next one.
    if mark.is_some() && !progress.has_failures() {
        client.unlink(&child_path(dst, UNFINISHED)).await?;
    }
    progress.finish("stored")
}

/// In a directory that is becoming a copy: a link to its source. The repeated command continues
/// there, although the directory exists by then.
pub const UNFINISHED: &str = ".craton-put-unfinished";

/// Source of the unfinished copy in a directory.
async fn marker_of(client: &Client, dst: &str) -> Result<Option<String>, Failure> {
    match client.lookup(&child_path(dst, UNFINISHED)).await {
        Ok(found) => match found.node {
            Node::Symlink { target, .. } => Ok(Some(target)),
            _ => Ok(None),
        },
        // Also where `dst` itself is missing, or no directory.
        Err(Error::NotFound { .. } | Error::Invalid { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Content of a marker of a copy of `src`.
fn source_text(src: &Path) -> String {
    let whole = std::fs::canonicalize(src).unwrap_or_else(|_| src.to_owned());
    let mut text = whole.to_string_lossy().into_owned();
    while text.len() > TARGET_MAX {
        text.pop();
    }
    text
}

async fn begin(client: &Client, dst: &str, source: &str) -> Done {
    match client.mkdir(dst, DIR_MODE).await {
        Ok(_) | Err(Error::Exists { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    match client.symlink(source, &child_path(dst, UNFINISHED), 0o777).await {
        Ok(()) | Err(Error::Exists { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
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

async fn put_stdin(client: &Client, dst: &str, policy: Wish) -> Done {
    if base_name(dst).is_none() {
        return Err(Failure::usage("name the file that standard input is to become"));
    }
    let mtime = client.env().unix_time().as_nanos();
    let attributes = Attributes { mode: FILE_MODE, mtime };
    let replace = match client.lookup(dst).await {
        Ok(found) if matches!(found.node, Node::Dir { .. }) => {
            return Err(Failure::usage(format!("{dst} is a directory: name a file in it")));
        }
        Ok(_) => true,
        Err(Error::NotFound { .. }) => false,
        Err(error) => return Err(error.into()),
    };
    let hooks = Hooks { moved: &mut |_| {}, check: &|| Ok(()) };
    write_file(client, Source::Stdin, dst, replace, policy, attributes, hooks).await
}

/// Paths that are not copied, a sentence each.
#[derive(Default)]
struct LeftOut {
    /// Sockets, pipes and devices: Craton's file system has none.
    special: Vec<String>,
    /// Paths that should be copied and cannot be read or named.
    unreadable: Vec<String>,
}

/// Facts of a path, or of what it leads to.
fn facts_of(path: &Path, follow: bool) -> std::io::Result<Metadata> {
    if follow { std::fs::metadata(path) } else { std::fs::symlink_metadata(path) }
}

/// The kind of a file that cannot be stored.
fn special(kind: FileType) -> Option<&'static str> {
    match kind {
        kind if kind.is_dir() || kind.is_file() || kind.is_symlink() => None,
        kind if kind.is_socket() => Some("a socket"),
        kind if kind.is_fifo() => Some("a pipe"),
        _ => Some("a device"),
    }
}

/// Lists the items to copy. With `follow`, `src` stands for what it leads to.
fn walk(src: &Path, root: String, follow: bool, left: &mut LeftOut) -> Result<Vec<Item>, Failure> {
    let mut items: Vec<Item> = Vec::new();
    let mut todo = vec![(src.to_owned(), root)];
    while let Some((local, remote)) = todo.pop() {
        let facts = match facts_of(&local, follow && local == src) {
            Ok(facts) => facts,
            Err(error) => {
                left.unreadable.push(format!("{}: {error}: skipped", local.display()));
                continue;
            }
        };
        let kind = facts.file_type();
        let attributes = Attributes { mode: facts.mode() & 0o7777, mtime: mtime(&facts) };
        let kind = if kind.is_dir() {
            match children(&local, &remote, left) {
                Ok(children) => todo.extend(children),
                Err(error) => {
                    left.unreadable.push(format!("{}: {error}: skipped", local.display()))
                }
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
                    left.unreadable
                        .push(format!("{local}: points to a path that is no UTF-8: skipped"));
                    continue;
                }
            }
        } else {
            let what = special(kind).unwrap_or("a device");
            left.special.push(format!("{} is {what}: skipped", local.display()));
            continue;
        };
        items.push(Item { local, remote, attributes, kind });
    }
    Ok(items)
}

fn children(
    local: &Path,
    remote: &str,
    left: &mut LeftOut,
) -> std::io::Result<Vec<(PathBuf, String)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(local)? {
        let entry = entry?;
        match entry.file_name().to_str() {
            Some(super::get::UNFINISHED) => {}
            Some(name) => found.push((entry.path(), child_path(remote, name))),
            None => {
                left.unreadable
                    .push(format!("{}: its name is no UTF-8: skipped", entry.path().display()));
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
    policy: Wish,
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
    Ok(())
}

/// Modes and times of directories, now that nothing changes them any more.
async fn set_times(client: &Client, items: &[Item], parallel: usize, progress: &Progress) {
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
}

/// A directory that files are copied into.
#[derive(Clone, Copy)]
struct Made {
    id: DirId,
    /// Made by this run: so was its content.
    new: bool,
}

/// Makes the directories, level by level; what they are, by path.
async fn make_dirs<'a>(
    client: &Client,
    items: &'a [Item],
    parallel: usize,
) -> Result<BTreeMap<&'a str, Made>, Failure> {
    let mut levels: BTreeMap<usize, Vec<&Item>> = BTreeMap::new();
    for item in items.iter().filter(|item| matches!(item.kind, Kind::Dir)) {
        levels.entry(item.remote.matches('/').count()).or_default().push(item);
    }
    let mut dirs = BTreeMap::new();
    for level in levels.into_values() {
        let made = level.into_iter().map(|item| async move {
            let made = match client.mkdir(&item.remote, item.attributes.mode).await {
                Err(Error::Exists { .. }) => {
                    let id = client.resolve_dir(&item.remote).await?;
                    Made { id, new: false }
                }
                made => Made { id: made?, new: true },
            };
            Ok::<_, Error>((item.remote.as_str(), made))
        });
        let mut made = futures_util::stream::iter(made).buffer_unordered(parallel);
        while let Some(made) = made.next().await {
            let (path, made) = made?;
            dirs.insert(path, made);
        }
    }
    Ok(dirs)
}

async fn put_one(
    client: &Client,
    item: &Item,
    dirs: &BTreeMap<&str, Made>,
    policy: Wish,
    progress: &Progress,
) -> Done {
    let found = lookup(client, item, dirs).await?;
    match &item.kind {
        Kind::Dir => Ok(()),
        Kind::Link { target } => put_link(client, item, target, found).await,
        Kind::File { len } => {
            if let Some(known) = &found
                && let Node::File { len: there, attributes, .. } = &known.node
                && (there, attributes.mtime) == (len, item.attributes.mtime)
                && has_len(client, &item.remote, known, *len).await
            {
                progress.unchanged(*len);
                return Ok(());
            }
            if let Some(Found { node: Node::Dir { .. }, .. }) = found {
                return Err(Failure::failed(format!(
                    "{}: is a directory; remove it first",
                    item.remote
                )));
            }
            let source = Source::open(client.env(), &item.local).await?;
            let mut moved = |count| progress.moved(count);
            let (replace, to) = (found.is_some(), &item.remote);
            let check = || is_unchanged(&item.local, *len, item.attributes.mtime);
            let hooks = Hooks { moved: &mut moved, check: &check };
            write_file(client, source, to, replace, policy, item.attributes, hooks).await
        }
    }
}

/// Callbacks of the writing of a file.
struct Hooks<'a> {
    /// Called with the number of bytes that went out.
    moved: &'a mut dyn FnMut(u64),
    /// Checks the written bytes, before they count.
    check: &'a dyn Fn() -> Done,
}

/// A file that changed while it was read gives a copy of no single state.
fn is_unchanged(local: &Path, len: u64, time: u64) -> Done {
    let facts = std::fs::metadata(local).map_err(|error| io("read", local, &error))?;
    // Files of /proc have no length, before and after, and the time of the access.
    if (len, facts.len()) == (0, 0) || (facts.len(), mtime(&facts)) == (len, time) {
        return Ok(());
    }
    Err(Failure::failed(format!(
        "{} was changed while it was read: nothing was stored; put it again when no process writes \
         to it",
        local.display()
    )))
}

/// Finds the present entry of a path.
async fn lookup(
    client: &Client,
    item: &Item,
    dirs: &BTreeMap<&str, Made>,
) -> Result<Option<Found>, Failure> {
    let found = match item.remote.rsplit_once('/').and_then(|(dir, name)| {
        let made = dirs.get(dir)?;
        Some((*made, NameKey { parent: made.id, name: name.to_owned() }))
    }) {
        Some((Made { new: true, .. }, _)) => return Ok(None),
        Some((_, place)) => client.lookup_at(place, &item.remote).await,
        None => client.lookup(&item.remote).await,
    };
    match found {
        Ok(found) => Ok(Some(found)),
        Err(Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

async fn put_link(client: &Client, item: &Item, target: &str, found: Option<Found>) -> Done {
    match found.map(|found| found.node) {
        Some(Node::Symlink { target: there, .. }) if there == target => {}
        Some(Node::Dir { .. }) => {
            return Err(Failure::failed(format!(
                "{}: is a directory; remove it first",
                item.remote
            )));
        }
        Some(_) => return replace_by_link(client, item, target).await,
        None => client.symlink(target, &item.remote, item.attributes.mode).await?,
    }
    Ok(client.set_attributes(&item.remote, item.attributes).await?)
}

/// Puts a link in the place of what is there, which stays unless the link takes its name.
async fn replace_by_link(client: &Client, item: &Item, target: &str) -> Done {
    let fresh = temporary(&item.remote, client.env().random_u64())?;
    let put = async {
        client.symlink(target, &fresh, item.attributes.mode).await?;
        client.set_attributes(&fresh, item.attributes).await?;
        client.rename(&fresh, &item.remote, true).await
    };
    let put = put.await;
    if put.is_err() {
        let _ = client.unlink(&fresh).await; // If possible: no other run has this name.
    }
    Ok(put?)
}

/// Writes a whole file. A file of its name is replaced only when all is written. A new file grows
/// under its name, and gets its time last, which marks it as complete.
async fn write_file(
    client: &Client,
    source: Source,
    path: &str,
    replace: bool,
    policy: Wish,
    attributes: Attributes,
    hooks: Hooks<'_>,
) -> Done {
    let fresh = match replace {
        true => temporary(path, client.env().random_u64())?,
        false => path.to_owned(),
    };
    let file = policy.create(client, &fresh, attributes.mode, true).await?;
    let written = async {
        // An empty file needs no stream. A file of length 0 may still have content (/proc), so the
        // first read decides.
        let first = source.next(client.env(), 0).await?;
        if first.is_empty() {
            (hooks.check)()?;
            if !names(client, &fresh, &file).await? {
                return Err(Failure::failed(format!("{path} was replaced by another command")));
            }
            client.set_attributes(&fresh, attributes).await?;
        } else {
            let writer = match first.len() < PIECE {
                true => file.append_handle_for_bytes(first.len() as u64).await?,
                false => file.append_handle().await?,
            };
            copy_in(client.env(), &source, first, &writer, hooks.moved).await?;
            (hooks.check)()?;
            writer.close_as(attributes).await?;
        }
        if replace {
            client.rename(&fresh, path, true).await?;
        }
        Ok(())
    };
    let written: Done = written.await;
    if written.is_err() {
        // If possible: the next run does without. Another command may have replaced the file; its
        // file stays, unless it takes the name between these two requests.
        if names(client, &fresh, &file).await.unwrap_or(false) {
            let _ = client.unlink(&fresh).await;
        }
    }
    written
}

/// True when the path still names the file.
async fn names(client: &Client, path: &str, file: &FlatLogFile) -> Result<bool, Failure> {
    let found = client.lookup(path).await?;
    Ok(matches!(found.node, Node::File { file: id, .. } if id == file.id()))
}

/// A name beside `path` for its replacement, of this run alone. A killed run leaves it: it is listed
/// beside the file, and `fs rm` removes it. No run removes another's, which may be under way.
fn temporary(path: &str, run: u64) -> Result<String, Failure> {
    let name = base_name(path).ok_or_else(|| Failure::usage("'/' is no name for a file"))?;
    let dir = path.trim_end_matches('/').strip_suffix(name).unwrap_or("/");
    Ok(format!("{dir}.craton-put-{:016x}-{run:016x}", base::FixedState.hash_one(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_empty_at_the_walk_and_is_not_at_the_end_has_changed() {
        let dir = crate::output::test_dir("put-changed");
        let path = dir.join("file");
        std::fs::write(&path, "").expect("a file");
        let time = mtime(&std::fs::metadata(&path).expect("it is there"));
        is_unchanged(&path, 0, time).expect("it is as it was");
        // As files of /proc: no length, another time.
        is_unchanged(&path, 0, time + 1).expect("it has no length still");
        std::fs::write(&path, "more").expect("it is written");
        let error = is_unchanged(&path, 0, time).expect_err("it has a length now");
        assert!(error.message.contains("was changed while it was read"), "{error}");
        std::fs::remove_dir_all(dir).expect("it goes");
    }
}
