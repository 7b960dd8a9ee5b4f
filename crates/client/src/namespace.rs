//! Names: resolution of paths in parallel (C4), and every operation on them.

use std::collections::VecDeque;

use base::{DirId, FileId};
use futures_util::future::join_all;
use wire::control::{
    Attributes, ControlReply, ControlRequest, Group, NameKey, NamedNode, NamespaceChange,
    NamespaceReply, NamespaceRequest, Node, Policy, dir_id, namespace_partition,
};

use crate::client::Client;
use crate::error::Error;
use crate::file::FlatLogFile;
use crate::limits::{LIST_MAX, RESOLVE_PARALLEL_MAX, SYMLINKS_MAX, TARGET_MAX};
use crate::path::{join, names_of, relative_names, split_last};
use crate::policy::{Inherited, check_policy};
use crate::session::{Question, Refusal, unexpected_reply};

/// The target of a path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// Its place; absent for the root directory.
    pub place: Option<NameKey>,
    /// The target.
    pub node: Node,
    /// For a file: the right to open its stream.
    pub grant: [u8; 16],
}

/// One page of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Page {
    /// Names in byte order.
    pub entries: Vec<NamedNode>,
    /// True when more follow the last one.
    pub more: bool,
}

fn root() -> Found {
    let attributes = Attributes { mode: 0o755, mtime: 0 };
    Found { place: None, node: Node::Dir { dir: DirId::ROOT, attributes }, grant: [0; 16] }
}

/// A walk along a path.
struct Walk<'a> {
    path: &'a str,
    names: VecDeque<String>,
    /// The directory in which the first of `names` is looked up.
    parent: DirId,
    /// Names from the root to `parent`, without links: what ".." goes back along.
    behind: Vec<String>,
    links: u32,
    follow_last: bool,
    /// The policy of the last directory so far that has one of its own.
    inherited: Option<Inherited>,
}

/// End of a walk.
pub(crate) struct Walked {
    pub(crate) found: Found,
    /// Its path without links.
    pub(crate) path: String,
    /// The policy of the nearest directory above that has one.
    pub(crate) inherited: Option<Inherited>,
}

enum Step {
    On,
    End(Found),
}

impl Client {
    /// The target of `path`; a symbolic link at its end is not followed.
    pub async fn lookup(&self, path: &str) -> Result<Found, Error> {
        let names = names_of(path)?;
        self.operation("look up", self.walk(path, names, false)).await
    }

    /// The target of `path`, with all symbolic links followed.
    pub async fn resolve(&self, path: &str) -> Result<Found, Error> {
        let names = names_of(path)?;
        self.operation("look up", self.walk(path, names, true)).await
    }

    async fn walk(
        &self,
        path: &str,
        names: VecDeque<String>,
        follow_last: bool,
    ) -> Result<Found, Error> {
        Ok(self.walk_noting(path, names, follow_last).await?.found)
    }

    /// The target of a path, and the policy that it inherits.
    pub(crate) async fn walk_noting(
        &self,
        path: &str,
        names: VecDeque<String>,
        follow_last: bool,
    ) -> Result<Walked, Error> {
        let (parent, behind, inherited) = (DirId::ROOT, Vec::new(), None);
        let mut walk = Walk { path, names, parent, behind, links: 0, follow_last, inherited };
        let found = self.walk_to_end(&mut walk).await?;
        let last = found.place.as_ref().map(|place| place.name.clone());
        walk.behind.extend(last);
        let path = format!("/{}", walk.behind.join("/"));
        Ok(Walked { found, path, inherited: walk.inherited })
    }

    async fn walk_to_end(&self, walk: &mut Walk<'_>) -> Result<Found, Error> {
        loop {
            while walk.names.front().is_some_and(|name| name == "..") {
                walk.names.pop_front();
                walk.behind.pop();
                walk.restart();
            }
            if walk.names.is_empty() && walk.behind.is_empty() {
                return Ok(root());
            }
            if walk.names.is_empty() {
                // Ended in "..": resolve the directory itself.
                walk.restart();
            }
            if let Step::End(found) = self.walk_on(walk).await? {
                return Ok(found);
            }
        }
    }

    /// Looks up the next names at once, in the directories they are in if no directory was
    /// moved or made again; goes on from where the guess was wrong.
    async fn walk_on(&self, walk: &mut Walk<'_>) -> Result<Step, Error> {
        let count = walk.names.iter().take(RESOLVE_PARALLEL_MAX);
        let count = count.take_while(|name| *name != "..").count();
        let mut parents = vec![walk.parent];
        for name in walk.names.iter().take(count) {
            parents.push(dir_id(*parents.last().expect("never empty"), name, 0));
        }
        let asked = walk
            .names
            .iter()
            .take(count)
            .zip(&parents)
            .map(|(name, &parent)| self.lookup_place(NameKey { parent, name: name.clone() }));
        let answers = join_all(asked).await;
        for (index, answer) in answers.into_iter().enumerate() {
            let (node, grant, dir_policy) =
                answer.map_err(|error| error.about("look up", walk.path))?;
            if let Some(policy) = dir_policy {
                let set_on = format!("/{}", walk.behind.join("/"));
                walk.inherited = Some(Inherited { policy, set_on });
            }
            let name = walk.names.pop_front().expect("as many as answers");
            let last = walk.names.is_empty();
            let place = NameKey { parent: parents[index], name };
            self.check_hidden(&place, walk.path)?;
            match node {
                Node::Dir { dir, .. } if !last => {
                    walk.behind.push(place.name);
                    walk.parent = dir;
                    if dir != parents[index + 1] {
                        return Ok(Step::On);
                    }
                }
                Node::Symlink { target, .. } if !last || walk.follow_last => {
                    walk.follow(&target)?;
                    return Ok(Step::On);
                }
                Node::File { .. } | Node::Symlink { .. } if !last => {
                    let message = format!("'{}' in this path is no directory", place.name);
                    return Err(Error::invalid(walk.path, message));
                }
                node => return Ok(Step::End(Found { place: Some(place), node, grant })),
            }
        }
        Ok(Step::On)
    }

    async fn walk_to_dir(&self, path: &str, names: VecDeque<String>) -> Result<DirId, Error> {
        match self.walk(path, names, true).await?.node {
            Node::Dir { dir, .. } => Ok(dir),
            Node::File { .. } | Node::Symlink { .. } => {
                Err(Error::invalid(path, "is no directory"))
            }
        }
    }

    /// The directory that `path` names.
    pub async fn resolve_dir(&self, path: &str) -> Result<DirId, Error> {
        let names = names_of(path)?;
        self.operation("look up", self.walk_to_dir(path, names)).await
    }

    /// The place of a name that may not exist yet.
    pub async fn place_of(&self, path: &str) -> Result<NameKey, Error> {
        let (parents, name) = split_last(path)?;
        let parent = self.operation("look up", self.walk_to_dir(path, parents)).await?;
        self.env().note(metrics::Step::Resolved, metrics::Fact::None);
        let place = NameKey { parent, name };
        self.check_hidden(&place, path)?;
        Ok(place)
    }

    fn is_hidden(&self, parent: DirId, name: &str) -> bool {
        parent == DirId::ROOT && self.0.config.hidden == Some(name)
    }

    /// Refuses a path that goes through what this client does not show, or ends there.
    pub(crate) fn check_hidden(&self, place: &NameKey, path: &str) -> Result<(), Error> {
        match self.is_hidden(place.parent, &place.name) {
            true => Err(Error::invalid(path, format!("/{} is kept from this client", place.name))),
            false => Ok(()),
        }
    }

    /// Makes a directory; its parent must be there.
    pub async fn mkdir(&self, path: &str, mode: u32) -> Result<DirId, Error> {
        let work = async {
            let place = self.place_of(path).await?;
            self.mkdir_at(place, mode).await.map_err(|error| error.about("make directory", path))
        };
        self.operation("mkdir", work).await
    }

    /// Makes a directory and those above it that are missing; fine when it is there.
    pub async fn mkdir_all(&self, path: &str, mode: u32) -> Result<DirId, Error> {
        let work = async {
            let names = names_of(path)?;
            match self.walk_to_dir(path, names.clone()).await {
                Err(Error::NotFound { .. }) => {}
                other => return other,
            }
            let mut dir = DirId::ROOT;
            let mut done = VecDeque::new();
            for name in names {
                done.push_back(name.clone());
                match self.walk_to_dir(path, done.clone()).await {
                    Ok(found) => dir = found,
                    Err(Error::NotFound { .. }) => {
                        match self.mkdir_at(NameKey { parent: dir, name }, mode).await {
                            Ok(made) => dir = made,
                            // Another client was faster.
                            Err(error) if error.kind == base::Kind::Exists => {
                                dir = self.walk_to_dir(path, done.clone()).await?;
                            }
                            Err(error) => return Err(error.about("make directory", path)),
                        }
                    }
                    Err(error) => return Err(error),
                }
            }
            Ok(dir)
        };
        self.operation("mkdir", work).await
    }

    /// Makes an empty file. With `exclusive` the name must be free, else a file that is there
    /// is opened as it is.
    pub async fn create(
        &self,
        path: &str,
        policy: Policy,
        mode: u32,
        exclusive: bool,
    ) -> Result<FlatLogFile, Error> {
        let work = async {
            let place = self.place_of(path).await?;
            self.create_at(place, path, policy, mode, exclusive).await
        };
        self.operation("create", work).await
    }

    /// As [`Client::create`], in a directory that was resolved before; `path` is for messages.
    pub async fn create_at(
        &self,
        place: NameKey,
        path: &str,
        policy: Policy,
        mode: u32,
        exclusive: bool,
    ) -> Result<FlatLogFile, Error> {
        let work = self.make_file(place, path, (policy, false), mode, exclusive);
        self.operation("create", work).await
    }

    /// Makes a file. With `inherit`, the directory's own policy goes before the one given.
    pub(crate) async fn make_file(
        &self,
        place: NameKey,
        path: &str,
        (policy, inherit): (Policy, bool),
        mode: u32,
        exclusive: bool,
    ) -> Result<FlatLogFile, Error> {
        check_policy(path, policy)?;
        let attributes = Attributes { mode, mtime: self.0.env.unix_time().as_nanos() };
        let (parent, at) = (place.parent, place.clone());
        let change = NamespaceChange::Create { place: at, policy, attributes, exclusive, inherit };
        let made = self.change_node(parent, change).await;
        let (node, grant) = made.map_err(|error| error.about("create", path))?;
        self.file_of(path, Found { place: Some(place), node, grant })
    }

    /// Opens the file that `path` names; nothing is locked by it.
    pub async fn open(&self, path: &str) -> Result<FlatLogFile, Error> {
        let work = async {
            let found = self.resolve(path).await?;
            self.env().note(metrics::Step::Resolved, metrics::Fact::None);
            self.file_of(path, found)
        };
        self.operation("open", work).await
    }

    /// The file that was found.
    pub fn file_of(&self, path: &str, found: Found) -> Result<FlatLogFile, Error> {
        match (found.node, found.place) {
            (Node::File { file, policy, attributes, .. }, Some(place)) => {
                Ok(FlatLogFile::new(self, path, place, file, policy, attributes, found.grant))
            }
            (Node::Dir { .. }, _) => Err(Error::invalid(path, "is a directory; name a file in it")),
            _ => Err(Error::invalid(path, "is no file")),
        }
    }

    /// Makes a symbolic link to `target`, which need not exist.
    pub async fn symlink(&self, target: &str, path: &str, mode: u32) -> Result<(), Error> {
        let work = async {
            if target.is_empty() || target.len() > TARGET_MAX {
                let message = format!("a link's target has 1 to {TARGET_MAX} bytes");
                return Err(Error::invalid(path, message));
            }
            let place = self.place_of(path).await?;
            let attributes = Attributes { mode, mtime: self.0.env.unix_time().as_nanos() };
            let parent = place.parent;
            let change = NamespaceChange::Symlink { place, target: target.to_owned(), attributes };
            let made = self.change_node(parent, change).await;
            made.map(drop).map_err(|error| error.about("link", path))
        };
        self.operation("symlink", work).await
    }

    /// Gives the file at `existing` another name.
    pub async fn link(&self, existing: &str, path: &str) -> Result<(), Error> {
        let work = async {
            let file = self.open(existing).await?;
            let place = self.place_of(path).await?;
            let links = vec![(file.id(), place)];
            self.link_many(links).await.map_err(|error| rename_error(error, path))
        };
        self.operation("link", work).await
    }

    /// Gives files further names: all or none of those in directories of one partition.
    pub async fn link_many(&self, links: Vec<(FileId, NameKey)>) -> Result<(), Error> {
        let work = async {
            let (partitions, _) = self.0.session.partitions();
            let mut groups: std::collections::BTreeMap<u16, Vec<_>> = Default::default();
            for link in links {
                let partition = namespace_partition(link.1.parent, partitions);
                groups.entry(partition).or_default().push(link);
            }
            for (_, links) in groups {
                let place = links[0].1.clone();
                let made = self.change_done(place.parent, NamespaceChange::Link { links }).await;
                made.map_err(|error| error.about("link", &place.name))?;
            }
            Ok(())
        };
        self.operation("link", work).await
    }

    /// Takes a file's or symbolic link's name away.
    pub async fn unlink(&self, path: &str) -> Result<(), Error> {
        let work = async {
            let place = self.place_of(path).await?;
            let parent = place.parent;
            let done = self.change_done(parent, NamespaceChange::Unlink { place }).await;
            done.map_err(|error| error.about("remove", path))
        };
        self.operation("unlink", work).await
    }

    /// Removes an empty directory.
    pub async fn rmdir(&self, path: &str) -> Result<(), Error> {
        let work = async {
            let place = self.place_of(path).await?;
            let parent = place.parent;
            let done = self.change_done(parent, NamespaceChange::Rmdir { place }).await;
            done.map_err(|error| error.about("remove directory", path))
        };
        self.operation("rmdir", work).await
    }

    /// Moves a name, atomically. With `replace`, the target of `to` is removed.
    pub async fn rename(&self, from: &str, to: &str, replace: bool) -> Result<(), Error> {
        let work = async {
            let (source, target) =
                futures_util::future::try_join(self.place_of(from), self.place_of(to)).await?;
            let parent = source.parent;
            let change = NamespaceChange::Rename { from: source, to: target, replace };
            let done = self.change_done(parent, change).await;
            done.map_err(|error| {
                let path = if error.kind == base::Kind::Exists { to } else { from };
                error.about("rename", path)
            })
        };
        self.operation("rename", work).await
    }

    /// As [`Client::rename`], in directories that were resolved before; `path` is for messages.
    pub async fn rename_at(
        &self,
        from: NameKey,
        to: NameKey,
        replace: bool,
        path: &str,
    ) -> Result<(), Error> {
        let parent = from.parent;
        let done = self.change_done(parent, NamespaceChange::Rename { from, to, replace }).await;
        done.map_err(|error| error.about("rename", path))
    }

    /// As [`Client::unlink`], in a directory that was resolved before; `path` is for messages.
    pub async fn unlink_at(&self, place: NameKey, path: &str) -> Result<(), Error> {
        let parent = place.parent;
        let done = self.change_done(parent, NamespaceChange::Unlink { place }).await;
        done.map_err(|error| error.about("remove", path))
    }

    /// Sets the attributes of what `path` names (a link at its end is not followed).
    pub async fn set_attributes(&self, path: &str, attributes: Attributes) -> Result<(), Error> {
        let work = async {
            let place = self.place_of(path).await?;
            let parent = place.parent;
            let change =
                NamespaceChange::SetAttributes { place, attributes, len: None, file: None };
            let done = self.attributes_changed(parent, change).await;
            done.map_err(|error| error.about("set attributes of", path))
        };
        self.operation("set attributes", work).await
    }

    /// Sets the attributes and the closed length of a file, where `place` still names it.
    pub(crate) async fn set_closed(
        &self,
        place: NameKey,
        file: FileId,
        len: u64,
        attributes: Attributes,
    ) -> Result<(), Refusal> {
        let parent = place.parent;
        let (len, file) = (Some(len), Some(file));
        let change = NamespaceChange::SetAttributes { place, attributes, len, file };
        self.attributes_changed(parent, change).await
    }

    async fn attributes_changed(
        &self,
        parent: DirId,
        change: NamespaceChange,
    ) -> Result<(), Refusal> {
        match self.change(parent, change).await? {
            NamespaceReply::Node { .. } | NamespaceReply::Done => Ok(()),
            NamespaceReply::List { .. } | NamespaceReply::DirPolicy { .. } => Err(unexpected()),
        }
    }

    /// A page of a directory: names above `after`, up to 1000.
    pub async fn list(&self, path: &str, after: Option<&str>, limit: u32) -> Result<Page, Error> {
        let work = async {
            let dir = self.resolve_dir(path).await?;
            self.list_dir(dir, path, after, limit).await
        };
        self.operation("list", work).await
    }

    /// As [`Client::list`] of a directory that was resolved before.
    pub async fn list_dir(
        &self,
        dir: DirId,
        path: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Page, Error> {
        let work = async {
            let (mut after, limit) = (after.map(str::to_owned), limit.clamp(1, LIST_MAX));
            loop {
                let request = NamespaceRequest::List { dir, after, limit };
                let (mut entries, more) = match self.ask_namespace(dir, request).await {
                    Ok(NamespaceReply::List { entries, more }) => (entries, more),
                    Ok(_) => return Err(unexpected().about("list", path)),
                    Err(error) => return Err(error.about("list", path)),
                };
                after = entries.last().map(|entry| entry.name.clone());
                entries.retain(|entry| !self.is_hidden(dir, &entry.name));
                if !entries.is_empty() || !more || after.is_none() {
                    return Ok(Page { entries, more });
                }
            }
        };
        self.operation("list", work).await
    }

    /// All names of a directory.
    pub async fn list_all(&self, path: &str) -> Result<Vec<NamedNode>, Error> {
        let work = async {
            let dir = self.resolve_dir(path).await?;
            let mut entries: Vec<NamedNode> = Vec::new();
            loop {
                let after = entries.last().map(|entry| entry.name.clone());
                let page = self.list_dir(dir, path, after.as_deref(), LIST_MAX).await?;
                let more = page.more && !page.entries.is_empty();
                entries.extend(page.entries);
                if !more {
                    return Ok(entries);
                }
            }
        };
        self.operation("list", work).await
    }

    /// A file's attributes, by identity.
    pub async fn stat_file(&self, file: FileId) -> Result<(Node, [u8; 16]), Error> {
        let work = async {
            let question = Question {
                group: Group::Namespace(file.partition()),
                request: ControlRequest::Namespace(NamespaceRequest::StatFile { file }),
                attempt: self.0.config.control_attempt,
            };
            let reply = self.0.session.ask(question, false).await.and_then(namespace_reply);
            let node = reply.and_then(node_of);
            node.map_err(|error| error.about("look up", &file.to_string()))
        };
        self.operation("look up", work).await
    }

    /// The target of a name in a directory that was resolved before.
    pub async fn lookup_at(&self, place: NameKey, path: &str) -> Result<Found, Error> {
        let work = async {
            let found = self.lookup_place(place.clone()).await;
            let (node, grant, _) = found.map_err(|error| error.about("look up", path))?;
            Ok(Found { place: Some(place), node, grant })
        };
        self.operation("look up", work).await
    }

    async fn lookup_place(
        &self,
        place: NameKey,
    ) -> Result<(Node, [u8; 16], Option<Policy>), Refusal> {
        let parent = place.parent;
        match self.ask_namespace(parent, NamespaceRequest::Lookup { place }).await? {
            NamespaceReply::Node { node, grant, dir_policy } => Ok((node, grant, dir_policy)),
            _ => Err(unexpected()),
        }
    }

    async fn mkdir_at(&self, place: NameKey, mode: u32) -> Result<DirId, Refusal> {
        let attributes = Attributes { mode, mtime: self.0.env.unix_time().as_nanos() };
        let parent = place.parent;
        match self.change_node(parent, NamespaceChange::Mkdir { place, attributes }).await? {
            (Node::Dir { dir, .. }, _) => Ok(dir),
            _ => Err(unexpected()),
        }
    }

    fn namespace_group(&self, dir: DirId) -> Group {
        let (partitions, _) = self.0.session.partitions();
        Group::Namespace(namespace_partition(dir, partitions))
    }

    pub(crate) async fn ask_namespace(
        &self,
        dir: DirId,
        request: NamespaceRequest,
    ) -> Result<NamespaceReply, Refusal> {
        let question = Question {
            group: self.namespace_group(dir),
            request: ControlRequest::Namespace(request),
            attempt: self.0.config.control_attempt,
        };
        self.0.session.ask(question, false).await.and_then(namespace_reply)
    }

    pub(crate) async fn change(
        &self,
        dir: DirId,
        change: NamespaceChange,
    ) -> Result<NamespaceReply, Refusal> {
        let build = |op| ControlRequest::Namespace(NamespaceRequest::Change { op, change });
        let attempt = self.0.config.control_attempt;
        let reply = self.0.session.change(self.namespace_group(dir), attempt, build).await;
        reply.and_then(namespace_reply)
    }

    async fn change_node(
        &self,
        dir: DirId,
        change: NamespaceChange,
    ) -> Result<(Node, [u8; 16]), Refusal> {
        self.change(dir, change).await.and_then(node_of)
    }

    pub(crate) async fn change_done(
        &self,
        dir: DirId,
        change: NamespaceChange,
    ) -> Result<(), Refusal> {
        match self.change(dir, change).await? {
            NamespaceReply::Done | NamespaceReply::Node { .. } => Ok(()),
            NamespaceReply::List { .. } | NamespaceReply::DirPolicy { .. } => Err(unexpected()),
        }
    }
}

impl Walk<'_> {
    /// Goes back to the root with all names still to be walked.
    fn restart(&mut self) {
        for name in self.behind.drain(..).rev() {
            self.names.push_front(name);
        }
        self.parent = DirId::ROOT;
        self.inherited = None;
    }

    /// Puts a link's target in the place of its name.
    fn follow(&mut self, target: &str) -> Result<(), Error> {
        self.links += 1;
        if self.links > SYMLINKS_MAX {
            let message = format!("more than {SYMLINKS_MAX} symbolic links; do they form a ring?");
            return Err(Error::invalid(self.path, message));
        }
        if target.starts_with('/') {
            self.behind.clear();
            self.parent = DirId::ROOT;
            self.inherited = None;
        }
        for name in relative_names(target).into_iter().rev() {
            self.names.push_front(name);
        }
        Ok(())
    }
}

fn namespace_reply(reply: ControlReply) -> Result<NamespaceReply, Refusal> {
    match reply {
        ControlReply::Namespace(reply) => Ok(reply),
        other => Err(unexpected_reply(&other)),
    }
}

fn node_of(reply: NamespaceReply) -> Result<(Node, [u8; 16]), Refusal> {
    match reply {
        NamespaceReply::Node { node, grant, .. } => Ok((node, grant)),
        _ => Err(unexpected()),
    }
}

fn unexpected() -> Refusal {
    Refusal {
        kind: base::Kind::Invalid,
        message: "a master's answer does not fit the question".to_owned(),
        waited: runtime::Duration::ZERO,
        unknown: false,
    }
}

fn rename_error(error: Error, path: &str) -> Error {
    match error {
        Error::Exists { .. } => Error::Exists { path: path.to_owned() },
        Error::Invalid { message, .. } => Error::invalid(path, message),
        other => other,
    }
}

/// `path` and a name below it.
pub fn child_path(path: &str, name: &str) -> String {
    join(path, name)
}
