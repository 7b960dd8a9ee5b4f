//! `craton fs get`: files and trees out of the cluster.

use std::fs::File;
use std::hash::{BuildHasher, Hasher};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use client::{Client, Found, child_path};
use futures_util::StreamExt;
use wire::control::{Attributes, NameKey, Node};

use super::beneath::{Beneath, set_mode};
use super::content::{cat, has_len, read_pieces};
use super::names::base_name;
use super::progress::Progress;
use crate::args::CopyArgs;
use crate::exit::{Done, Failure, io};

/// One thing to copy. Parents come before what is in them.
struct Item {
    remote: String,
    /// Its local path, for messages.
    local: PathBuf,
    /// The same, below the directory that is written to.
    rel: PathBuf,
    found: Found,
}

/// Runs it.
pub async fn run(client: &Client, src: &str, dst: &Path, args: &CopyArgs) -> Done {
    if dst == Path::new("-") {
        return cat(client, src, 0, None).await;
    }
    // A copy takes its name by a rename, which would replace a device by a file.
    if std::fs::metadata(dst).is_ok_and(|facts| !facts.is_dir() && !facts.is_file()) {
        return Err(Failure::setup(format!(
            "{} is a device, pipe or socket: name a file or a directory, or '-' for standard output",
            dst.display()
        )));
    }
    let found = client.lookup(src).await?;
    let found = match found.node {
        // As cp does: a link that is named is followed unless a tree is copied.
        Node::Symlink { .. } if !args.recursive => client.resolve(src).await?,
        _ => found,
    };
    if matches!(found.node, Node::Dir { .. }) && !args.recursive {
        return Err(Failure::usage(format!(
            "{src} is a directory: copy it with all that is in it by get -r"
        )));
    }
    let is_tree = matches!(found.node, Node::Dir { .. });
    let mark = dst.join(UNFINISHED);
    let continued = is_tree && std::fs::read_link(&mark).is_ok_and(|of| of == Path::new(src));
    let local = match (dst.is_dir() && !continued, base_name(src)) {
        (true, Some(name)) => dst.join(name),
        _ => dst.to_owned(),
    };
    let marked = is_tree && local == dst && (continued || !dst.exists());
    // A directory that is named is used, through any links; below it none is followed.
    let (at, rel) = match is_tree && local == dst && dst.is_dir() {
        true => (dst, PathBuf::new()),
        false => (local.parent().unwrap_or(Path::new("")), name_of(&local)?),
    };
    let to = Beneath::open(at).map_err(|error| io("write", &local, &error))?;
    let items =
        walk(client, Item { remote: src.to_owned(), local: local.clone(), rel, found }).await?;
    let total = items.iter().map(Item::len).sum();
    let progress = Progress::new(client.env(), total, args.quiet);
    copy(client, &to, items, usize::from(args.parallel), (src, marked), &progress).await;
    progress.finish("fetched")
}

/// The last part of a local path.
fn name_of(local: &Path) -> Result<PathBuf, Failure> {
    let name = local.file_name().map(PathBuf::from);
    name.ok_or_else(|| Failure::usage(format!("{} is no file's name", local.display())))
}

/// In a directory that is becoming a copy: a link to its source. The repeated command continues
/// there, although the directory exists by then.
pub const UNFINISHED: &str = ".craton-get-unfinished";

/// Leaves the mark in the directory that becomes the copy.
fn begin(to: &Beneath, root: &Path, src: &str) -> std::io::Result<()> {
    to.make_dir(root)?;
    match to.make_link(src, &root.join(UNFINISHED)) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

impl Item {
    fn len(&self) -> u64 {
        match self.found.node {
            Node::File { len, .. } => len,
            Node::Dir { .. } | Node::Symlink { .. } => 0,
        }
    }

    fn attributes(&self) -> Attributes {
        match self.found.node {
            Node::File { attributes, .. }
            | Node::Dir { attributes, .. }
            | Node::Symlink { attributes, .. } => attributes,
        }
    }
}

async fn walk(client: &Client, root: Item) -> Result<Vec<Item>, Failure> {
    let mut items = vec![root];
    let mut next = 0;
    while next < items.len() {
        let item = &items[next];
        next += 1;
        let Node::Dir { dir, .. } = item.found.node else { continue };
        let (remote, local, rel) = (item.remote.clone(), item.local.clone(), item.rel.clone());
        let mut after: Option<String> = None;
        loop {
            let page = client.list_dir(dir, &remote, after.as_deref(), 1000).await?;
            after = page.entries.last().map(|entry| entry.name.clone());
            for entry in page.entries.into_iter().filter(|one| one.name != super::put::UNFINISHED) {
                let is_plain = !["", ".", ".."].contains(&entry.name.as_str());
                if !is_plain || entry.name.contains(['/', '\0']) {
                    let name = entry.name.escape_debug();
                    return Err(Failure::failed(format!(
                        "{remote} has a name '{name}' that no file has"
                    )));
                }
                let remote = child_path(&remote, &entry.name);
                let (local, rel) = (local.join(&entry.name), rel.join(&entry.name));
                let place = Some(NameKey { parent: dir, name: entry.name });
                // Grants are for writers.
                let found = Found { place, node: entry.node, grant: [0; 16] };
                items.push(Item { remote, local, rel, found });
            }
            if !page.more || after.is_none() {
                break;
            }
        }
    }
    Ok(items)
}

async fn copy(
    client: &Client,
    to: &Beneath,
    items: Vec<Item>,
    parallel: usize,
    (src, marked): (&str, bool),
    progress: &Progress,
) {
    let Some(root) = items.first() else { return };
    let mark = marked.then(|| (root.rel.join(UNFINISHED), root.local.join(UNFINISHED)));
    if marked && let Err(error) = begin(to, &root.rel, src) {
        progress.fail(io("make", &root.local, &error));
        return;
    }
    let (dirs, rest): (Vec<_>, Vec<_>) =
        items.into_iter().partition(|item| matches!(item.found.node, Node::Dir { .. }));
    for item in &dirs {
        let made = to.make_dir(&item.rel);
        let made =
            made.and_then(|there| if there { clear_left(to, &item.rel, PART) } else { Ok(()) });
        if let Err(error) = made {
            progress.fail(io("make", &item.local, &error));
            return;
        }
    }
    if let (true, [item]) = (dirs.is_empty(), &rest[..]) {
        // Parts of an earlier run of this very copy; other parts are not touched.
        let dir = item.rel.parent().unwrap_or(Path::new(""));
        let _ = clear_left(to, dir, &part_of(&item.local));
    }
    futures_util::stream::iter(rest)
        .for_each_concurrent(parallel, |item| async move {
            if progress.is_hopeless() {
                return;
            }
            match get_one(client, to, &item, progress).await {
                Ok(()) => progress.done(),
                Err(failure) => progress.fail(failure),
            }
        })
        .await;
    let set = |item: &Item| {
        if let Err(error) = to.set_dir(&item.rel, item.attributes()) {
            progress.fail(io("set the mode of", &item.local, &error));
        }
    };
    let (root, below) = dirs.split_at(dirs.len().min(1));
    // From the inside out, now that nothing changes them any more.
    below.iter().rev().for_each(set);
    // Nearly last: a run that is killed before this is continued by the next one.
    if let Some((mark, local)) = mark.filter(|_| !progress.has_failures())
        && let Err(error) = to.remove(&mark)
    {
        progress.fail(io("remove", &local, &error));
    }
    root.iter().for_each(set);
}

async fn get_one(client: &Client, to: &Beneath, item: &Item, progress: &Progress) -> Done {
    let named = |run: u64| item.rel.with_file_name(temporary(&item.local, run));
    let mut fresh = named(client.env().random_u64());
    let failed = |error: std::io::Error| io("write", &item.local, &error);
    // Open, and so locked, until it has its name.
    let mut part = None;
    let made = match &item.found.node {
        Node::Dir { .. } => return Ok(()),
        Node::Symlink { target, .. } => {
            if to.link(&item.rel).is_some_and(|there| there == target.as_bytes()) {
                return to.set_time(&item.rel, item.attributes()).map_err(failed);
            }
            // No lock holds a link: it has the number of this process in its name.
            fresh = item.rel.with_file_name(named_by(&item.local, &std::process::id().to_string()));
            let _ = to.remove(&fresh); // Of a process that had this number before.
            to.make_link(target.as_str(), &fresh).map_err(failed)
        }
        Node::File { len, .. } => {
            let wanted = (*len, i128::from(item.attributes().mtime));
            if to.file_facts(&item.rel) == Some(wanted)
                && has_len(client, &item.remote, &item.found, *len).await
            {
                progress.unchanged(*len);
                return Ok(());
            }
            let out = loop {
                let out = make_part(to, &fresh).map_err(failed)?;
                match out {
                    Some(out) => break out,
                    None => fresh = named(client.env().random_u64()),
                }
            };
            get_file(client, item, part.insert(out), progress).await
        }
    };
    let placed = made.and_then(|()| {
        if let Some(part) = &part
            && !to.is_at(&fresh, part).map_err(failed)?
        {
            return Err(Failure::failed(format!(
                "{}: another process has removed or replaced what was fetched",
                item.local.display()
            )));
        }
        to.set_time(&fresh, item.attributes()).map_err(failed)?;
        to.rename(&fresh, &item.rel).map_err(failed)
    });
    let is_own = || part.as_ref().is_none_or(|part| to.is_at(&fresh, part).unwrap_or(false));
    if placed.is_err() && is_own() {
        let _ = to.remove(&fresh); // The next run does not need it.
    }
    placed
}

/// Makes the file that is becoming a copy, locked: another run leaves it where it is. Nothing, when a run
/// that cleans up has removed it before the lock was taken.
fn make_part(to: &Beneath, fresh: &Path) -> std::io::Result<Option<File>> {
    let out = to.make_file(fresh)?;
    // Some file systems have no locks: there no run removes what another has left.
    let _ = out.lock();
    Ok(to.is_at(fresh, &out)?.then_some(out))
}

async fn get_file(client: &Client, item: &Item, out: &File, progress: &Progress) -> Done {
    let failed = |error: std::io::Error| io("write", &item.local, &error);
    let file = client.file_of(&item.remote, item.found.clone())?;
    let mut take = async |offset: u64, bytes: Vec<u8>| {
        out.write_all_at(&bytes, offset).map_err(failed)?;
        progress.moved(bytes.len() as u64);
        Ok(())
    };
    read_pieces(&file, 0, u64::MAX, &mut take).await?;
    set_mode(out, item.attributes()).map_err(failed)
}

/// End of the names of files that are becoming copies.
const PART: &str = ".craton-part";

/// The same, for the copy at `local` alone: many files of one directory may have the same
/// beginning, so the whole name is hashed.
fn part_of(local: &Path) -> String {
    let mut hasher = base::FixedState.build_hasher();
    hasher.write(local.as_os_str().as_encoded_bytes());
    format!("-{:016x}{PART}", hasher.finish())
}

/// Hexadecimal digits of the number that a copy of one file draws.
const RUN_DIGITS: usize = 16;

fn temporary(local: &Path, run: u64) -> String {
    named_by(local, &format!("{run:0RUN_DIGITS$x}"))
}

fn named_by(local: &Path, writer: &str) -> String {
    let name = local.file_name().unwrap_or_default().to_string_lossy();
    // Names have 255 bytes at most.
    let name: String = name.chars().take(40).collect();
    format!(".{name}.{writer}{}", part_of(local))
}

/// Removes the remains of earlier runs in a directory: parts whose names end so, and that no run has
/// locked, and links of processes that are gone.
fn clear_left(to: &Beneath, dir: &Path, ending: &str) -> std::io::Result<()> {
    for name in to.names(dir)? {
        let writer =
            Some(name.as_str()).filter(|one| one.starts_with('.') && one.ends_with(ending));
        let writer = writer.and_then(|name| name.strip_suffix(PART)?.rsplit('.').next());
        if writer.and_then(|writer| writer.split_once('-')).is_some_and(|(run, _)| may_be_left(run))
        {
            to.remove_left(&dir.join(&name))?;
        }
    }
    Ok(())
}

/// True when the writer of a part, by its name, may have ended.
fn may_be_left(run: &str) -> bool {
    if run.len() == RUN_DIGITS {
        return run.bytes().all(|byte| byte.is_ascii_hexdigit());
    }
    // Links are named by their process, as parts were by versions without locks.
    let pid = run.parse::<u32>();
    pid.is_ok_and(|pid| !Path::new("/proc").join(pid.to_string()).exists())
}

#[cfg(test)]
mod tests;
