//! The namespace service.

use base::{DirId, FileId, Kind};
use wire::control::{
    ControlError, NameKey, NamedNode, NamespaceChange, NamespaceReply, NamespaceRequest, Node,
    dir_id,
};

use super::FakeState;

fn found(node: Node) -> NamespaceReply {
    NamespaceReply::Node { node, grant: [3; 16], dir_policy: None }
}

fn not_found() -> ControlError {
    ControlError::new(Kind::NotFound, "no such name")
}

impl FakeState {
    pub fn serve_names(
        &mut self,
        request: NamespaceRequest,
    ) -> Result<NamespaceReply, ControlError> {
        match request {
            NamespaceRequest::Lookup { place } => {
                let node = self.names.get(&place).cloned().ok_or_else(not_found)?;
                let dir_policy = self.dir_policies.get(&place.parent).copied();
                Ok(NamespaceReply::Node { node, grant: [3; 16], dir_policy })
            }
            NamespaceRequest::DirPolicy { dir } => {
                let policy = self.dir_policies.get(&dir).copied();
                Ok(NamespaceReply::DirPolicy { policy })
            }
            NamespaceRequest::List { dir, after, limit } => {
                let from = NameKey { parent: dir, name: after.clone().unwrap_or_default() };
                let inside = self.names.range(from..).filter(|(place, _)| {
                    place.parent == dir && after.as_ref().is_none_or(|after| place.name > *after)
                });
                let named = |(place, node): (&NameKey, &Node)| NamedNode {
                    name: place.name.clone(),
                    node: node.clone(),
                };
                let mut entries: Vec<_> = inside.take(limit as usize + 1).map(named).collect();
                let more = entries.len() > limit as usize;
                entries.truncate(limit as usize);
                Ok(NamespaceReply::List { entries, more })
            }
            NamespaceRequest::StatFile { file } => {
                let is = |node: &&Node| matches!(node, Node::File { file: id, .. } if *id == file);
                let node = self.names.values().find(is).cloned().ok_or_else(not_found)?;
                Ok(found(node))
            }
            NamespaceRequest::Change { change, .. } => self.change_names(change),
        }
    }

    fn dir_exists(&self, dir: DirId) -> bool {
        let is = |node: &Node| matches!(node, Node::Dir { dir: id, .. } if *id == dir);
        dir == DirId::ROOT || self.names.values().any(is)
    }

    fn is_empty(&self, dir: DirId) -> bool {
        !self.names.keys().any(|place| place.parent == dir)
    }

    fn free(&self, place: &NameKey) -> Result<(), ControlError> {
        if !self.dir_exists(place.parent) {
            return Err(not_found());
        }
        if self.names.contains_key(place) {
            return Err(ControlError::new(Kind::Exists, "exists"));
        }
        Ok(())
    }

    fn insert(&mut self, place: NameKey, node: Node) -> NamespaceReply {
        self.names.insert(place, node.clone());
        found(node)
    }

    fn change_names(&mut self, change: NamespaceChange) -> Result<NamespaceReply, ControlError> {
        match change {
            NamespaceChange::Mkdir { place, attributes } => {
                self.free(&place)?;
                let version = self.versions.entry(place.clone()).or_default();
                let dir = dir_id(place.parent, &place.name, *version);
                *version += 1;
                Ok(self.insert(place, Node::Dir { dir, attributes }))
            }
            NamespaceChange::Create { place, policy, attributes, exclusive, inherit } => {
                if let Some(node) = self.names.get(&place).filter(|_| !exclusive) {
                    return Ok(found(node.clone()));
                }
                self.free(&place)?;
                let own = self.dir_policies.get(&place.parent).filter(|_| inherit);
                let policy = own.copied().unwrap_or(policy);
                let file = FileId::new(self.next_file);
                self.next_file += 1;
                let node = Node::File { file, policy, attributes, links: 1, len: 0 };
                Ok(self.insert(place, node))
            }
            NamespaceChange::Symlink { place, target, attributes } => {
                self.free(&place)?;
                Ok(self.insert(place, Node::Symlink { target, attributes }))
            }
            NamespaceChange::Link { links } => {
                for (file, place) in links {
                    self.free(&place)?;
                    let is =
                        |node: &&Node| matches!(node, Node::File { file: id, .. } if *id == file);
                    let node = self.names.values().find(is).cloned().ok_or_else(not_found)?;
                    self.names.insert(place, node);
                }
                Ok(NamespaceReply::Done)
            }
            NamespaceChange::Unlink { place } => {
                match self.names.get(&place) {
                    Some(Node::Dir { .. }) => {
                        return Err(ControlError::new(Kind::Invalid, "is a directory"));
                    }
                    Some(_) => {}
                    None => return Err(not_found()),
                }
                self.names.remove(&place);
                Ok(NamespaceReply::Done)
            }
            NamespaceChange::Rmdir { place } => {
                let Some(Node::Dir { dir, .. }) = self.names.get(&place) else {
                    return Err(not_found());
                };
                if !self.is_empty(*dir) {
                    return Err(ControlError::new(Kind::Invalid, "not empty"));
                }
                self.names.remove(&place);
                Ok(NamespaceReply::Done)
            }
            NamespaceChange::Rename { from, to, replace } => {
                if !replace {
                    self.free(&to)?;
                }
                let node = self.names.remove(&from).ok_or_else(not_found)?;
                self.names.insert(to, node);
                Ok(NamespaceReply::Done)
            }
            NamespaceChange::SetAttributes {
                place,
                attributes: new,
                len: length,
                file: wanted,
            } => {
                let node = self.names.get_mut(&place).ok_or_else(not_found)?;
                let there = match node {
                    Node::File { file, .. } => Some(*file),
                    Node::Dir { .. } | Node::Symlink { .. } => None,
                };
                if wanted.is_some() && there != wanted {
                    return Err(not_found());
                }
                match node {
                    Node::File { attributes, len, .. } => {
                        *attributes = new;
                        *len = length.unwrap_or(*len);
                    }
                    Node::Dir { attributes, .. } | Node::Symlink { attributes, .. } => {
                        *attributes = new;
                    }
                }
                Ok(NamespaceReply::Node { node: node.clone(), grant: [0; 16], dir_policy: None })
            }
            NamespaceChange::SetDirPolicy { dir, policy } => {
                if !self.dir_exists(dir) {
                    return Err(not_found());
                }
                match policy {
                    Some(policy) => self.dir_policies.insert(dir, policy),
                    None => self.dir_policies.remove(&dir),
                };
                Ok(NamespaceReply::Done)
            }
            NamespaceChange::SetFilePolicy { place, file: wanted, policy: new } => {
                match self.names.get_mut(&place) {
                    Some(Node::File { file, policy, .. }) if *file == wanted => *policy = new,
                    _ => return Err(not_found()),
                }
                Ok(NamespaceReply::Done)
            }
        }
    }
}
