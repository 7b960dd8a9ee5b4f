//! Whole trees of names.

use base::{DirId, Epoch, Kind};
use futures_util::future::LocalBoxFuture;
use futures_util::stream::{StreamExt, iter};
use wire::control::{NameKey, NamespaceChange, Node};

use crate::client::Client;
use crate::error::Error;
use crate::limits::{LIST_MAX, REMOVE_PARALLEL};
use crate::namespace::child_path;

/// What becomes of the writers of files that are removed.
#[derive(Clone, Copy)]
enum Writers {
    /// They go on while their rights last.
    GoOn,
    /// They end before the name goes.
    End,
}

impl Client {
    /// Removes what `path` names, a directory with all that is in it. Names that others remove at
    /// the same time are no failure. Answers how many names were removed.
    pub async fn remove_tree(&self, path: &str) -> Result<u64, Error> {
        self.remove_tree_while(path, || true).await
    }

    /// As [`Client::remove_tree`], of the directory that is there while `holds` is true, however
    /// late its parts are removed; nothing when it is not. One that is made again at the path later
    /// is another, and keeps what is in it.
    pub async fn remove_tree_while(
        &self,
        path: &str,
        holds: impl FnOnce() -> bool,
    ) -> Result<u64, Error> {
        self.remove_found(path, holds, Writers::GoOn).await
    }

    /// As [`Client::remove_tree_while`]. Each file is sealed before its name goes: an append by a
    /// writer of it is not answered any more once this has returned. Without that a writer goes on
    /// for as long as its rights last.
    pub async fn end_tree_while(
        &self,
        path: &str,
        holds: impl FnOnce() -> bool,
    ) -> Result<u64, Error> {
        self.remove_found(path, holds, Writers::End).await
    }

    async fn remove_found(
        &self,
        path: &str,
        holds: impl FnOnce() -> bool,
        writers: Writers,
    ) -> Result<u64, Error> {
        let found = self.lookup(path).await?;
        if !holds() {
            return Ok(0);
        }
        match (found.node, found.place) {
            (_, None) => {
                Err(Error::invalid(path, "the root directory stays; remove what is in it"))
            }
            (Node::Dir { dir, .. }, Some(place)) => {
                self.remove_dir(dir, place, path, writers).await
            }
            (node, Some(place)) => self.remove_file(&node, place, path, writers).await,
        }
    }

    fn remove_dir<'a>(
        &'a self,
        dir: DirId,
        place: NameKey,
        path: &'a str,
        writers: Writers,
    ) -> LocalBoxFuture<'a, Result<u64, Error>> {
        Box::pin(async move {
            let mut removed = 0;
            loop {
                // The first page again and again: what was on it is gone.
                let page = match self.list_dir(dir, path, None, LIST_MAX).await {
                    Err(Error::NotFound { .. }) => return Ok(removed),
                    page => page?,
                };
                if page.entries.is_empty() {
                    break;
                }
                let removals = page.entries.into_iter().map(|entry| async move {
                    let path = child_path(path, &entry.name);
                    let place = NameKey { parent: dir, name: entry.name };
                    match entry.node {
                        Node::Dir { dir, .. } => self.remove_dir(dir, place, &path, writers).await,
                        node => self.remove_file(&node, place, &path, writers).await,
                    }
                });
                let mut removals = iter(removals).buffer_unordered(REMOVE_PARALLEL);
                while let Some(count) = removals.next().await {
                    removed += count?;
                }
            }
            let parent = place.parent;
            match self.change_done(parent, NamespaceChange::Rmdir { place }).await {
                Ok(()) => Ok(removed + 1),
                Err(error) if error.kind == Kind::NotFound => Ok(removed),
                Err(error) => Err(error.about("remove directory", path)),
            }
        })
    }

    async fn remove_file(
        &self,
        node: &Node,
        place: NameKey,
        path: &str,
        writers: Writers,
    ) -> Result<u64, Error> {
        if let (Writers::End, &Node::File { file, .. }) = (writers, node) {
            match self.seal_stream(file, Epoch::NONE, false).await {
                Ok(_) => {}
                // It never had a writer; or bytes of it are lost, which shows when its replicas are
                // fenced.
                Err(refusal) if matches!(refusal.kind, Kind::NotFound | Kind::Corrupt) => {}
                Err(refusal) => return Err(refusal.about("seal", path)),
            }
        }
        self.remove_name(place, path).await
    }

    async fn remove_name(&self, place: NameKey, path: &str) -> Result<u64, Error> {
        let parent = place.parent;
        match self.change_done(parent, NamespaceChange::Unlink { place }).await {
            Ok(()) => Ok(1),
            Err(error) if error.kind == Kind::NotFound => Ok(0),
            Err(error) => Err(error.about("remove", path)),
        }
    }
}
