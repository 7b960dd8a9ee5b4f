//! `craton fs get`: files and trees out of the cluster.

use std::fs::{File, Permissions};
use std::hash::{BuildHasher, Hasher};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use client::{Client, Found, child_path};
use futures_util::StreamExt;
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
use wire::control::{Attributes, Node, Place};

use super::content::{cat, read_pieces};
use super::names::base_name;
use super::progress::Progress;
use crate::args::CopyArgs;
use crate::exit::{Done, Failure, io};

/// One thing to copy. Parents come before what is in them.
struct Item {
    remote: String,
    local: PathBuf,
    found: Found,
}

/// Runs it.
pub async fn run(client: &Client, src: &str, dst: &Path, args: &CopyArgs) -> Done {
    if dst == Path::new("-") {
        return cat(client, src, 0, None).await;
    }
    // A copy takes its name by a rename, which would put a file in the place of a device.
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
    let mark = (is_tree && local == dst && (continued || !dst.exists())).then_some(mark);
    let items = walk(client, Item { remote: src.to_owned(), local, found }).await?;
    let total = items.iter().map(Item::len).sum();
    let progress = Progress::new(client.env(), total, args.quiet);
    copy(client, items, usize::from(args.parallel), src, mark, &progress).await;
    progress.finish("fetched")
}

/// In a directory that is becoming a copy: a link to what it is a copy of. The command repeated
/// goes on there, although the directory exists by then.
pub const UNFINISHED: &str = ".craton-get-unfinished";

/// Leaves the mark in the directory that becomes the copy.
fn begin(root: &Path, mark: &Path, src: &str) -> std::io::Result<()> {
    match std::fs::create_dir(root) {
        Err(_) if root.is_dir() => make_usable(root)?,
        made => made?,
    }
    match std::os::unix::fs::symlink(src, mark) {
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
        let (remote, local) = (item.remote.clone(), item.local.clone());
        let mut after: Option<String> = None;
        loop {
            let page = client.list_dir(dir, &remote, after.as_deref(), 1000).await?;
            after = page.entries.last().map(|entry| entry.name.clone());
            for entry in page.entries.into_iter().filter(|one| one.name != super::put::UNFINISHED) {
                let remote = child_path(&remote, &entry.name);
                let local = local.join(&entry.name);
                let place = Some(Place { parent: dir, name: entry.name });
                // Grants are for those who append.
                let found = Found { place, node: entry.node, grant: [0; 16] };
                items.push(Item { remote, local, found });
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
    items: Vec<Item>,
    parallel: usize,
    src: &str,
    mark: Option<PathBuf>,
    progress: &Progress,
) {
    if let (Some(mark), Some(root)) = (&mark, items.first())
        && let Err(error) = begin(&root.local, mark, src)
    {
        progress.fail(io("write", mark, &error));
        return;
    }
    let (dirs, rest): (Vec<_>, Vec<_>) =
        items.into_iter().partition(|item| matches!(item.found.node, Node::Dir { .. }));
    for item in &dirs {
        let made = match std::fs::create_dir(&item.local) {
            Err(_) if item.local.is_dir() => {
                make_usable(&item.local).and_then(|()| clear_left(&item.local, PART))
            }
            made => made,
        };
        if let Err(error) = made {
            progress.fail(io("make", &item.local, &error));
            return;
        }
    }
    if let (true, [item]) = (dirs.is_empty(), &rest[..]) {
        // What an earlier run of this very copy has left; elsewhere it is not ours to look.
        let dir = item.local.parent().filter(|dir| !dir.as_os_str().is_empty());
        let _ = clear_left(dir.unwrap_or(Path::new(".")), &part_of(&item.local));
    }
    futures_util::stream::iter(rest)
        .for_each_concurrent(parallel, |item| async move {
            if progress.is_hopeless() {
                return;
            }
            match get_one(client, &item, progress).await {
                Ok(()) => progress.done(),
                Err(failure) => progress.fail(failure),
            }
        })
        .await;
    if let Some(mark) = mark.filter(|_| !progress.has_failures())
        && let Err(error) = std::fs::remove_file(&mark)
    {
        progress.fail(io("remove", &mark, &error));
    }
    // From the inside out, now that nothing changes them any more.
    for item in dirs.iter().rev() {
        if let Err(error) = set_attributes(&item.local, item.attributes(), false) {
            progress.fail(io("set the mode of", &item.local, &error));
        }
    }
}

/// An earlier run may have made it read-only.
fn make_usable(dir: &Path) -> std::io::Result<()> {
    let mode = std::fs::metadata(dir)?.mode();
    if mode & 0o700 == 0o700 {
        return Ok(());
    }
    std::fs::set_permissions(dir, Permissions::from_mode(mode & 0o7777 | 0o700))
}

async fn get_one(client: &Client, item: &Item, progress: &Progress) -> Done {
    let fresh = temporary(&item.local);
    let failed = |error: std::io::Error| io("write", &item.local, &error);
    match &item.found.node {
        Node::Dir { .. } => return Ok(()),
        Node::Symlink { target, .. } => {
            if std::fs::read_link(&item.local).is_ok_and(|there| there == Path::new(target)) {
                return set_attributes(&item.local, item.attributes(), true).map_err(failed);
            }
            std::os::unix::fs::symlink(target, &fresh).map_err(failed)?;
            set_attributes(&fresh, item.attributes(), true).map_err(failed)?;
        }
        Node::File { len, .. } => {
            if is_there(&item.local, *len, item.attributes()) {
                progress.unchanged(*len);
                return Ok(());
            }
            let copied = get_file(client, item, &fresh, progress).await;
            if let Err(failure) = copied {
                let _ = std::fs::remove_file(&fresh); // The next run does not need it.
                return Err(failure);
            }
        }
    }
    std::fs::rename(&fresh, &item.local).map_err(|error| {
        let _ = std::fs::remove_file(&fresh);
        failed(error)
    })
}

/// True when an earlier run has brought the file.
fn is_there(local: &Path, len: u64, attributes: Attributes) -> bool {
    std::fs::symlink_metadata(local).is_ok_and(|facts| {
        let mtime = facts.mtime() as i128 * 1_000_000_000 + i128::from(facts.mtime_nsec());
        facts.is_file() && facts.len() == len && mtime == i128::from(attributes.mtime)
    })
}

async fn get_file(client: &Client, item: &Item, fresh: &Path, progress: &Progress) -> Done {
    let failed = |error: std::io::Error| io("write", &item.local, &error);
    let out = File::create(fresh).map_err(failed)?;
    let file = client.file_of(&item.remote, item.found.clone())?;
    let mut take = |offset: u64, bytes: &[u8]| {
        out.write_all_at(bytes, offset).map_err(failed)?;
        progress.moved(bytes.len() as u64);
        Ok(())
    };
    read_pieces(&file, 0, u64::MAX, &mut take).await?;
    drop(out);
    set_attributes(fresh, item.attributes(), false).map_err(failed)
}

/// How the names of files end that are becoming copies.
const PART: &str = ".craton-part";

/// The same, for the copy at `local` alone: of many files of one directory some may start alike,
/// the whole name tells them apart.
fn part_of(local: &Path) -> String {
    let mut hasher = base::FixedState.build_hasher();
    hasher.write(local.as_os_str().as_encoded_bytes());
    format!("-{:016x}{PART}", hasher.finish())
}

fn temporary(local: &Path) -> PathBuf {
    let name = local.file_name().unwrap_or_default().to_string_lossy();
    // Names have 255 bytes at most.
    let name: String = name.chars().take(40).collect();
    local.with_file_name(format!(".{name}.{}{}", std::process::id(), part_of(local)))
}

/// Removes what runs that are over have left in `dir`: parts whose names end so.
fn clear_left(dir: &Path, ending: &str) -> std::io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let writer = name.to_str().filter(|name| name.starts_with('.') && name.ends_with(ending));
        let writer = writer.and_then(|name| name.strip_suffix(PART)?.rsplit('.').next());
        let pid = writer.and_then(|writer| writer.split_once('-')?.0.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

fn set_attributes(path: &Path, attributes: Attributes, link: bool) -> std::io::Result<()> {
    if !link {
        std::fs::set_permissions(path, Permissions::from_mode(attributes.mode & 0o7777))?;
    }
    let time = Timespec {
        tv_sec: (attributes.mtime / 1_000_000_000) as i64,
        tv_nsec: (attributes.mtime % 1_000_000_000) as _,
    };
    let times = Timestamps { last_access: time, last_modification: time };
    Ok(utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}
