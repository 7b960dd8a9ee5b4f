//! Mutations that one partition does alone.

use std::collections::BTreeSet;

use base::{FileId, ID_COUNTER_END};
use wire::control::{Attributes, NameKey, NamespaceChange, Node, OpId, Policy};

use super::state::{Dir, Entry, Found, Inode, is_name};
use super::{Action, Answer, Namespace, Outcome, Refusal};
use crate::limits::{FILE_LINKS_MAX, LINKS_MAX, TARGET_MAX};

impl Namespace {
    /// A client's mutation, seen for the first time.
    pub(super) fn change(&mut self, index: u64, op: &OpId, change: &NamespaceChange) -> Outcome {
        self.check(change)?;
        if let Some((plan, answer)) = self.plan(change)? {
            return self.begin(index, op, plan, answer);
        }
        match change {
            NamespaceChange::Mkdir { place, attributes } => self.mkdir(place, *attributes),
            NamespaceChange::Create { place, policy, attributes, exclusive, inherit } => {
                let own = self.dir(place.parent)?.policy.filter(|_| *inherit);
                self.create(place, own.unwrap_or(*policy), *attributes, *exclusive)
            }
            NamespaceChange::Symlink { place, target, attributes } => {
                self.check_free(place)?;
                let (target, attributes) = (target.as_str().into(), *attributes);
                let entry = Entry::Symlink { target, attributes };
                let found = self.found(&entry);
                self.insert(place, entry);
                Ok(answer(found))
            }
            NamespaceChange::Link { links } => self.link(links),
            NamespaceChange::Unlink { place } => {
                if let Some(Entry::File(file)) = self.remove(place) {
                    self.uncount(file, 1);
                }
                Ok(Answer::Done)
            }
            NamespaceChange::Rmdir { place } => self.rmdir(place),
            NamespaceChange::Rename { from, to, replace } => self.rename(from, to, *replace),
            NamespaceChange::SetAttributes { place, attributes, len, .. } => {
                self.set_attributes(place, *attributes, *len)
            }
            NamespaceChange::SetDirPolicy { dir, policy } => {
                self.dir_mut(*dir)?.policy = *policy;
                Ok(Answer::Done)
            }
            NamespaceChange::SetFilePolicy { file, policy, .. } => {
                self.inodes.get_mut(file).ok_or(Refusal::NoFile)?.policy = *policy;
                Ok(Answer::Done)
            }
        }
    }

    /// True when a mutation that is not answered would be refused now, since an intent holds what it needs in
    /// this partition.
    pub(super) fn is_held(&self, op: &OpId, change: &NamespaceChange) -> bool {
        if self.replies.is_answered(op) {
            return false;
        }
        if let Err(refusal) = self.check(change) {
            return refusal == Refusal::Locked;
        }
        let Ok(Some((plan, _))) = self.plan(change) else { return false };
        let own = plan.iter().find(|(partition, _)| *partition == self.partition);
        let first = own.and_then(|(_, actions)| actions.first());
        self.cross.turn.is_some() && first == Some(&Action::RenameTurn)
    }

    /// Checks that need not know how many partitions take part: the text, the locks, and the kinds
    /// of names.
    fn check(&self, change: &NamespaceChange) -> Result<(), Refusal> {
        match change {
            NamespaceChange::Mkdir { place, .. } => {
                self.check_writable(place)?;
                self.check_free(place)
            }
            NamespaceChange::Create { place, policy, .. } => {
                if !policy.is_valid() {
                    return Err(Refusal::BadPolicy);
                }
                self.check_writable(place)
            }
            NamespaceChange::Symlink { place, target, .. } => {
                if target.is_empty() || target.len() > TARGET_MAX || target.contains('\0') {
                    return Err(Refusal::BadTarget);
                }
                self.check_writable(place)
            }
            NamespaceChange::Link { links } => {
                if links.is_empty() || links.len() > LINKS_MAX {
                    return Err(Refusal::BadBatch);
                }
                let places: BTreeSet<_> = links.iter().map(|(_, place)| place).collect();
                if places.len() < links.len() {
                    return Err(Refusal::Exists);
                }
                places.into_iter().try_for_each(|place| {
                    self.check_writable(place)?;
                    self.check_free(place)
                })
            }
            NamespaceChange::Unlink { place } => {
                self.check_writable(place)?;
                match self.entry(place)? {
                    Entry::Dir { .. } => Err(Refusal::IsDir),
                    _ => Ok(()),
                }
            }
            NamespaceChange::Rmdir { place } => {
                self.check_writable(place)?;
                match self.entry(place)? {
                    Entry::Dir { .. } => Ok(()),
                    _ => Err(Refusal::NotDir),
                }
            }
            NamespaceChange::Rename { from, to, .. } => {
                if !is_name(&to.name) {
                    return Err(Refusal::BadName);
                }
                self.check_writable(from)?;
                self.entry(from)?;
                if self.is_home(to.parent) { self.check_writable(to) } else { Ok(()) }
            }
            NamespaceChange::SetAttributes { place, file, .. } => {
                self.check_writable(place)?;
                let there = match self.entry(place)? {
                    Entry::File(file) => Some(*file),
                    Entry::Dir { .. } | Entry::Symlink { .. } => None,
                };
                if file.is_none() || *file == there { Ok(()) } else { Err(Refusal::NoFile) }
            }
            NamespaceChange::SetDirPolicy { dir, policy } => {
                if policy.is_some_and(|policy| !policy.is_valid()) {
                    return Err(Refusal::BadPolicy);
                }
                // One that comes or goes by an intent is not there, or may not stay.
                self.check_readable(*dir, None)?;
                self.dir(*dir).map(drop)
            }
            NamespaceChange::SetFilePolicy { place, file, policy } => {
                if !policy.is_valid() {
                    return Err(Refusal::BadPolicy);
                }
                self.check_writable(place)?;
                match self.entry(place)? {
                    Entry::File(there) if there == file => Ok(()),
                    _ => Err(Refusal::NoFile),
                }
            }
        }
    }

    fn mkdir(&mut self, place: &NameKey, attributes: Attributes) -> Outcome {
        let (dir, version) = self.new_dir_id(place)?;
        if self.dirs.contains_key(&dir) {
            return Err(Refusal::Full); // Two names hashed alike, once in ages.
        }
        self.dir_mut(place.parent)?.use_version(&place.name, version);
        self.dirs.insert(dir, Dir::new(place.parent));
        self.insert(place, Entry::Dir { dir, attributes });
        Ok(Answer::Node(Node::Dir { dir, attributes }))
    }

    fn create(
        &mut self,
        place: &NameKey,
        policy: Policy,
        attributes: Attributes,
        exclusive: bool,
    ) -> Outcome {
        match self.entry(place) {
            Ok(entry @ Entry::File(_)) if !exclusive => return Ok(answer(self.found(entry))),
            Ok(_) => return Err(Refusal::Exists),
            Err(Refusal::NoName) => self.check_free(place)?,
            Err(refusal) => return Err(refusal),
        }
        if self.next_file >= ID_COUNTER_END {
            return Err(Refusal::Full);
        }
        let file = FileId::compose(self.partition, self.next_file);
        self.next_file += 1;
        let inode = Inode { policy, attributes, links: 1, len: 0 };
        self.inodes.insert(file, inode);
        self.insert(place, Entry::File(file));
        Ok(Answer::Node(inode.node(file)))
    }

    /// Files and places of this partition; the places are free and distinct.
    fn link(&mut self, links: &[(FileId, NameKey)]) -> Outcome {
        for (file, _) in links {
            let inode = self.inodes.get(file).ok_or(Refusal::NoFile)?;
            if inode.links > FILE_LINKS_MAX - LINKS_MAX as u32 {
                return Err(Refusal::Full);
            }
        }
        for (file, place) in links {
            self.inodes.get_mut(file).expect("checked above").links += 1;
            self.insert(place, Entry::File(*file));
        }
        Ok(Answer::Done)
    }

    fn rmdir(&mut self, place: &NameKey) -> Outcome {
        let Entry::Dir { dir, .. } = *self.entry(place)? else { return Err(Refusal::NotDir) };
        self.check_removable(dir, None)?;
        self.remove(place);
        self.remove_dir(dir);
        Ok(Answer::Done)
    }

    fn rename(&mut self, from: &NameKey, to: &NameKey, replace: bool) -> Outcome {
        let entry = self.entry(from)?.clone();
        let replaced = self.check_target(to, &entry, replace)?;
        if replaced.as_ref().is_some_and(|replaced| *replaced == entry && is_same(from, to, &entry))
        {
            return Ok(Answer::Done);
        }
        if let Entry::Dir { dir, .. } = entry {
            self.check_no_cycle(dir, to.parent)?;
        }
        match replaced {
            Some(Entry::Dir { dir, .. }) => {
                self.check_removable(dir, None)?;
                self.remove_dir(dir);
            }
            Some(Entry::File(file)) => self.uncount(file, 1),
            Some(Entry::Symlink { .. }) | None => {}
        }
        self.remove(from);
        if let Entry::Dir { dir, .. } = entry {
            self.dir_mut(dir)?.parent = to.parent;
        }
        self.insert(to, entry);
        Ok(Answer::Done)
    }

    fn set_attributes(
        &mut self,
        place: &NameKey,
        attributes: Attributes,
        len: Option<u64>,
    ) -> Outcome {
        let file = match self.entry_mut(place)? {
            Entry::File(file) => Some(*file),
            Entry::Dir { attributes: old, .. } | Entry::Symlink { attributes: old, .. } => {
                *old = attributes;
                None
            }
        };
        if let Some(inode) = file.and_then(|file| self.inodes.get_mut(&file)) {
            inode.attributes = attributes;
            inode.len = len.unwrap_or(inode.len);
        }
        Ok(answer(self.found(self.entry(place)?)))
    }
}

/// Two names of one thing: a rename of one to the other does nothing, as POSIX has it.
fn is_same(from: &NameKey, to: &NameKey, entry: &Entry) -> bool {
    from == to || matches!(entry, Entry::File(_))
}

fn answer(found: Found) -> Answer {
    match found {
        Found::Node(node) => Answer::Node(node),
        Found::Remote(file) => Answer::Remote(file),
    }
}
