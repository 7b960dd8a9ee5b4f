//! Changes that span partitions (`protocols.md` 4.2): durable intents.
//!
//! The partition of the (source) name coordinates. It records an [`Intent`] with a plan: the part
//! of each partition. Its leader asks the participants to prepare, which locks names and
//! directories. Then it commits a decision in its own partition: the change happens there. Then it
//! sends the decision to the participants and forgets the intent. A new leader starts over: every
//! step may be repeated. Readers wait for names that another partition's intent holds.
//!
//! A participant remembers resolved intents above the coordinator's floor (its lowest live
//! intent) and refuses older ones, so that a late duplicate neither locks nor acts again.

use std::collections::{BTreeMap, BTreeSet};

use base::{DirId, FileId};
use wire::control::{
    Attributes, NameKey, NamespaceChange, Node, OpId, Policy, namespace_partition,
};

use super::state::{Dir, Entry};
use super::{Answer, Namespace, Outcome, Refusal};
use crate::limits::{FILE_LINKS_MAX, INTENTS_MAX};

/// An intent: the coordinating partition, and the log index of the command that recorded it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct IntentId {
    /// The coordinating partition.
    pub partition: u16,
    /// Log index there; grows with time.
    pub index: u64,
}

/// Action of one partition for an intent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// A name appears.
    Put {
        /// The name.
        place: NameKey,
        /// Its target.
        entry: Entry,
        /// It may replace another.
        replace: bool,
    },
    /// A name goes.
    Take {
        /// The name.
        place: NameKey,
        /// Its target when the intent was recorded.
        entry: Entry,
    },
    /// A name stays as it is until the intent is over.
    Hold {
        /// The name.
        place: NameKey,
    },
    /// A directory comes into being.
    NewDir {
        /// The directory.
        dir: DirId,
        /// Its parent.
        parent: DirId,
    },
    /// An empty directory goes.
    EndDir {
        /// The directory.
        dir: DirId,
    },
    /// A directory lies elsewhere.
    Reparent {
        /// The directory.
        dir: DirId,
        /// Its parent.
        parent: DirId,
    },
    /// Files get further names: counted before the names appear.
    Count {
        /// Each with the number of names.
        files: Vec<(FileId, u32)>,
    },
    /// A file loses a name: counted after the name has gone.
    Uncount {
        /// The file.
        file: FileId,
    },
    /// A file gets attributes.
    SetInode {
        /// The file.
        file: FileId,
        /// Its attributes.
        attributes: Attributes,
        /// Its closed length.
        len: Option<u64>,
    },
    /// Directory renames are one at a time: this is the turn, which partition 0 gives.
    RenameTurn,
    /// A file's policy is recorded.
    SetInodePolicy {
        /// The file.
        file: FileId,
        /// Its policy.
        policy: Policy,
    },
}

/// Actions by partition.
pub type Plan = Vec<(u16, Vec<Action>)>;

/// A change across partitions that is under way, in the partition that coordinates it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Intent {
    /// The client's mutation.
    pub op: OpId,
    /// Actions of each partition.
    pub plan: Plan,
    /// The client's answer when it commits.
    pub answer: Answer,
    /// The decision, and the partitions that have yet to get it.
    pub outcome: Option<(bool, Vec<u16>)>,
}

impl Intent {
    /// The directory that this intent moves, with its new parent.
    pub fn moved_dir(&self) -> Option<(DirId, DirId)> {
        let mut actions = self.plan.iter().flat_map(|(_, actions)| actions);
        actions.find_map(|action| match action {
            Action::Reparent { dir, parent } => Some((*dir, *parent)),
            _ => None,
        })
    }

    /// The entry that this intent puts somewhere else by a rename.
    pub fn moved_entry(&self) -> Option<&Entry> {
        let mut actions = self.plan.iter().flat_map(|(_, actions)| actions);
        actions.find_map(|action| match action {
            Action::Take { entry, .. } => Some(entry),
            _ => None,
        })
    }
}

/// Locks of a partition for an intent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Prepared {
    pub(super) actions: Vec<Action>,
    /// The entry that an [`Action::Put`] among them replaces.
    pub(super) replaced: Option<Entry>,
}

/// Intents and locks of one partition.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Cross {
    /// Intents that this partition coordinates, by log index.
    pub(super) intents: BTreeMap<u64, Intent>,
    /// Locks that intents, own and others', hold here, by intent and stage.
    pub(super) prepared: BTreeMap<(IntentId, u8), Prepared>,
    /// Locked names.
    pub(super) names: BTreeMap<DirId, BTreeMap<Box<str>, IntentId>>,
    /// Directories that come or go.
    pub(super) dirs: BTreeMap<DirId, IntentId>,
    /// The intent whose turn it is to rename a directory; partition 0 only.
    pub(super) turn: Option<IntentId>,
    /// By coordinating partition: its lowest live intent, as last received.
    pub(super) floors: BTreeMap<u16, u64>,
    /// Resolved intents of other partitions at or above their floors.
    pub(super) resolved: BTreeSet<IntentId>,
}

impl Cross {
    fn name_holder(&self, dir: DirId, name: &str) -> Option<IntentId> {
        self.names.get(&dir)?.get(name).copied()
    }

    fn lock_name(&mut self, intent: IntentId, place: &NameKey) -> Result<(), Refusal> {
        if self.name_holder(place.parent, &place.name).is_some() {
            return Err(Refusal::Locked);
        }
        self.names.entry(place.parent).or_default().insert(place.name.as_str().into(), intent);
        Ok(())
    }

    fn unlock_name(&mut self, intent: IntentId, place: &NameKey) {
        let Some(names) = self.names.get_mut(&place.parent) else { return };
        if names.get(&*place.name) == Some(&intent) {
            names.remove(&*place.name);
        }
        if names.is_empty() {
            self.names.remove(&place.parent);
        }
    }

    fn is_over(&self, intent: IntentId) -> bool {
        let floor = self.floors.get(&intent.partition).copied().unwrap_or(0);
        intent.index < floor || self.resolved.contains(&intent)
    }

    fn hear_floor(&mut self, partition: u16, floor: u64) {
        let known = self.floors.entry(partition).or_insert(0);
        if floor <= *known {
            return;
        }
        let old = std::mem::replace(known, floor);
        let gone = IntentId { partition, index: old }..IntentId { partition, index: floor };
        let gone: Vec<_> = self.resolved.range(gone).copied().collect();
        gone.iter().for_each(|intent| {
            self.resolved.remove(intent);
        });
    }
}

impl Namespace {
    /// Fails while another partition's intent may be changing what is read.
    pub(super) fn check_readable(&self, dir: DirId, name: Option<&str>) -> Result<(), Refusal> {
        if self.cross.dirs.contains_key(&dir) {
            return Err(Refusal::Locked);
        }
        let holder = name.and_then(|name| self.cross.name_holder(dir, name));
        match holder {
            Some(intent) if intent.partition != self.partition => Err(Refusal::Locked),
            _ => Ok(()),
        }
    }

    /// As [`Namespace::check_readable`] for all names above `after`, to `last` or the end.
    pub(super) fn check_range_readable(
        &self,
        dir: DirId,
        after: Option<&str>,
        last: Option<&str>,
    ) -> Result<(), Refusal> {
        let Some(names) = self.cross.names.get(&dir) else { return Ok(()) };
        let held = names.iter().any(|(name, intent)| {
            intent.partition != self.partition
                && after.is_none_or(|after| **name > *after)
                && last.is_none_or(|last| **name <= *last)
        });
        if held { Err(Refusal::Locked) } else { Ok(()) }
    }

    /// Fails while an intent holds the name or its directory.
    pub(super) fn check_writable(&self, place: &NameKey) -> Result<(), Refusal> {
        let dir_held = self.cross.dirs.contains_key(&place.parent);
        if dir_held || self.cross.name_holder(place.parent, &place.name).is_some() {
            return Err(Refusal::Locked);
        }
        Ok(())
    }

    /// Fails unless the directory is there, empty, and free of intents. A name in it that the intent
    /// `by` takes is there until `by` is over: that directory is not empty.
    pub(super) fn check_removable(&self, dir: DirId, by: Option<IntentId>) -> Result<(), Refusal> {
        let names = self.cross.names.get(&dir);
        if names.is_some_and(|names| names.values().any(|&holder| Some(holder) == by)) {
            return Err(Refusal::NotEmpty);
        }
        if self.cross.dirs.contains_key(&dir) || self.cross.names.contains_key(&dir) {
            return Err(Refusal::Locked);
        }
        if self.dir(dir)?.entries.is_empty() { Ok(()) } else { Err(Refusal::NotEmpty) }
    }

    fn entry_home(&self, entry: &Entry) -> u16 {
        match entry {
            Entry::File(file) => file.partition(),
            Entry::Dir { dir, .. } => namespace_partition(*dir, self.partitions),
            Entry::Symlink { .. } => self.partition,
        }
    }

    /// The plan of a change and its answer; none when this partition can do it alone.
    /// The change itself is valid as far as its text goes.
    pub(super) fn plan(&self, change: &NamespaceChange) -> Result<Option<(Plan, Answer)>, Refusal> {
        if self.partitions == 1 {
            return Ok(None);
        }
        let mut plan = BTreeMap::<u16, Vec<Action>>::new();
        let mut add = |partition, action| plan.entry(partition).or_default().push(action);
        let mut answer = Answer::Done;
        match change {
            NamespaceChange::Mkdir { place, attributes } => {
                let (dir, _) = self.new_dir_id(place)?;
                let home = namespace_partition(dir, self.partitions);
                let attributes = *attributes;
                let entry = Entry::Dir { dir, attributes };
                add(self.partition, Action::Put { place: place.clone(), entry, replace: false });
                add(home, Action::NewDir { dir, parent: place.parent });
                answer = Answer::Node(Node::Dir { dir, attributes });
            }
            NamespaceChange::Link { links } => {
                let mut counts = BTreeMap::<FileId, u32>::new();
                for (file, place) in links {
                    let (place, entry) = (place.clone(), Entry::File(*file));
                    add(self.partition, Action::Put { place, entry, replace: false });
                    *counts.entry(*file).or_default() += 1;
                }
                let mut homes = BTreeMap::<u16, Vec<(FileId, u32)>>::new();
                for (file, count) in counts {
                    if file.partition() >= self.partitions {
                        return Err(Refusal::NoFile);
                    }
                    homes.entry(file.partition()).or_default().push((file, count));
                }
                homes.into_iter().for_each(|(home, files)| add(home, Action::Count { files }));
            }
            NamespaceChange::Unlink { place } => {
                let entry = self.entry(place)?.clone();
                let home = self.entry_home(&entry);
                if let Entry::File(file) = entry {
                    add(home, Action::Uncount { file });
                }
                add(self.partition, Action::Take { place: place.clone(), entry });
            }
            NamespaceChange::Rmdir { place } => {
                let entry = self.entry(place)?.clone();
                let home = self.entry_home(&entry);
                if let Entry::Dir { dir, .. } = entry {
                    add(home, Action::EndDir { dir });
                }
                add(self.partition, Action::Take { place: place.clone(), entry });
            }
            // Nothing moves, whatever it is: both parts of a plan would want the same name.
            NamespaceChange::Rename { from, to, .. } if from == to => return Ok(None),
            NamespaceChange::Rename { from, to, replace } => {
                let entry = self.entry(from)?.clone();
                let target = namespace_partition(to.parent, self.partitions);
                if let Entry::Dir { dir, .. } = entry {
                    add(0, Action::RenameTurn);
                    add(self.entry_home(&entry), Action::Reparent { dir, parent: to.parent });
                } else if target == self.partition
                    && !matches!(self.entry(to), Ok(e) if self.entry_home(e) != self.partition)
                {
                    return Ok(None);
                }
                let put =
                    Action::Put { place: to.clone(), entry: entry.clone(), replace: *replace };
                add(target, put);
                add(self.partition, Action::Take { place: from.clone(), entry });
            }
            NamespaceChange::SetAttributes { place, attributes, len, .. } => {
                let Entry::File(file) = *self.entry(place)? else { return Ok(None) };
                let (attributes, len) = (*attributes, *len);
                add(self.partition, Action::Hold { place: place.clone() });
                add(file.partition(), Action::SetInode { file, attributes, len });
                answer = Answer::Remote(file);
            }
            NamespaceChange::SetFilePolicy { place, file, policy } => {
                add(self.partition, Action::Hold { place: place.clone() });
                let (file, policy) = (*file, *policy);
                add(file.partition(), Action::SetInodePolicy { file, policy });
            }
            NamespaceChange::SetDirPolicy { .. } => return Ok(None),
            NamespaceChange::Create { .. } | NamespaceChange::Symlink { .. } => return Ok(None),
        }
        // A rename that got here moves a directory, or touches a file of another partition.
        let alone = plan.keys().all(|&partition| partition == self.partition);
        if alone && !matches!(change, NamespaceChange::Rename { .. }) {
            return Ok(None);
        }
        Ok(Some((plan.into_iter().collect(), answer)))
    }

    /// Records an intent and prepares this partition's part.
    pub(super) fn begin(&mut self, index: u64, op: &OpId, plan: Plan, answer: Answer) -> Outcome {
        if self.cross.intents.len() >= INTENTS_MAX {
            return Err(Refusal::Busy);
        }
        let intent = IntentId { partition: self.partition, index };
        if let Some((_, own)) = plan.iter().find(|(partition, _)| *partition == self.partition) {
            self.prepare(intent, 0, own)?;
        }
        let record = Intent { op: *op, plan, answer, outcome: None };
        self.cross.intents.insert(index, record);
        Ok(Answer::Pending(intent))
    }

    /// Locks what `actions` need, all or nothing. A repeat gets the same answer.
    pub(super) fn prepare(&mut self, intent: IntentId, stage: u8, actions: &[Action]) -> Outcome {
        if let Some(prepared) = self.cross.prepared.get(&(intent, stage)) {
            return Ok(Answer::Prepared(prepared.replaced.clone()));
        }
        if self.cross.is_over(intent) {
            return Err(Refusal::NoIntent);
        }
        let mut replaced = None;
        for (done, action) in actions.iter().enumerate() {
            match self.prepare_one(intent, action) {
                Ok(found) => replaced = found.or(replaced),
                Err(refusal) => {
                    actions[..done].iter().rev().for_each(|action| self.undo(intent, action));
                    return Err(refusal);
                }
            }
        }
        let prepared = Prepared { actions: actions.to_vec(), replaced: replaced.clone() };
        self.cross.prepared.insert((intent, stage), prepared);
        Ok(Answer::Prepared(replaced))
    }

    fn prepare_one(&mut self, intent: IntentId, action: &Action) -> Result<Option<Entry>, Refusal> {
        match action {
            Action::Put { place, entry, replace } => {
                self.dir(place.parent)?;
                self.check_writable(place)?;
                let replaced = self.check_target(place, entry, *replace)?;
                self.cross.lock_name(intent, place)?;
                return Ok(replaced);
            }
            Action::Take { place, entry } => {
                self.check_writable(place)?;
                if self.entry(place)? != entry {
                    return Err(Refusal::Locked);
                }
                self.cross.lock_name(intent, place)?;
            }
            Action::Hold { place } => {
                self.check_writable(place)?;
                self.entry(place)?;
                self.cross.lock_name(intent, place)?;
            }
            Action::NewDir { dir, parent } => {
                if self.cross.dirs.contains_key(dir) {
                    return Err(Refusal::Locked);
                }
                if !self.is_home(*dir) || self.dirs.contains_key(dir) {
                    return Err(Refusal::Full); // Two names hashed alike, once in ages.
                }
                self.check_room()?;
                self.dirs.insert(*dir, Dir::new(*parent));
                self.cross.dirs.insert(*dir, intent);
            }
            Action::EndDir { dir } => {
                self.check_removable(*dir, Some(intent))?;
                self.cross.dirs.insert(*dir, intent);
            }
            Action::Reparent { dir, .. } => {
                self.dir(*dir)?;
            }
            Action::Count { files } => {
                for (file, count) in files {
                    let inode = self.inodes.get(file).ok_or(Refusal::NoFile)?;
                    if inode.links.saturating_add(*count) > FILE_LINKS_MAX {
                        return Err(Refusal::Full);
                    }
                }
                for (file, count) in files {
                    // A file that is named twice was checked for each count alone.
                    if let Some(inode) = self.inodes.get_mut(file) {
                        inode.links = inode.links.saturating_add(*count);
                    }
                }
            }
            Action::Uncount { .. } => {}
            Action::SetInode { file, .. } => {
                self.inodes.get(file).ok_or(Refusal::NoFile)?;
            }
            Action::SetInodePolicy { file, policy } => {
                self.inodes.get(file).ok_or(Refusal::NoFile)?;
                if !policy.is_valid() {
                    return Err(Refusal::BadPolicy);
                }
            }
            Action::RenameTurn => {
                if self.cross.turn.is_some_and(|holder| holder != intent) {
                    return Err(Refusal::Locked);
                }
                self.cross.turn = Some(intent);
            }
        }
        Ok(None)
    }

    /// Fails unless `entry` can be put at `place`; what it replaces.
    pub(super) fn check_target(
        &self,
        place: &NameKey,
        entry: &Entry,
        replace: bool,
    ) -> Result<Option<Entry>, Refusal> {
        let is_dir = |entry: &Entry| matches!(entry, Entry::Dir { .. });
        match self.entry(place) {
            Err(Refusal::NoName) => self.check_free(place).map(|()| None),
            Err(refusal) => Err(refusal),
            Ok(_) if !replace => Err(Refusal::Exists),
            Ok(target) => match (is_dir(entry), is_dir(target)) {
                (true, false) => Err(Refusal::NotDir),
                (false, true) => Err(Refusal::IsDir),
                _ => Ok(Some(target.clone())),
            },
        }
    }

    /// Takes back what `prepare_one` did.
    fn undo(&mut self, intent: IntentId, action: &Action) {
        match action {
            Action::Put { place, .. } | Action::Take { place, .. } | Action::Hold { place } => {
                self.cross.unlock_name(intent, place);
            }
            Action::NewDir { dir, .. } => {
                self.cross.dirs.remove(dir);
                self.remove_dir(*dir);
            }
            Action::EndDir { dir } => {
                self.cross.dirs.remove(dir);
            }
            Action::Count { files } => {
                files.iter().for_each(|&(file, count)| self.uncount(file, count));
            }
            Action::RenameTurn => self.cross.turn = None,
            Action::Reparent { .. }
            | Action::Uncount { .. }
            | Action::SetInode { .. }
            | Action::SetInodePolicy { .. } => {}
        }
    }

    /// Does what was prepared.
    fn perform(&mut self, intent: IntentId, action: &Action) {
        match action {
            Action::Put { place, entry, .. } => {
                self.cross.unlock_name(intent, place);
                let Some(dir) = self.dirs.get_mut(&place.parent) else { return };
                let version = dir.version(&place.name);
                if let Entry::Dir { dir: id, .. } = entry
                    && *id == wire::control::dir_id(place.parent, &place.name, version)
                {
                    dir.use_version(&place.name, version);
                }
                self.insert(place, entry.clone());
            }
            Action::Take { place, .. } => {
                self.cross.unlock_name(intent, place);
                self.remove(place);
            }
            Action::Hold { place } => self.cross.unlock_name(intent, place),
            Action::NewDir { dir, .. } => {
                self.cross.dirs.remove(dir);
            }
            Action::EndDir { dir } => {
                self.cross.dirs.remove(dir);
                self.remove_dir(*dir);
            }
            Action::Reparent { dir, parent } => {
                if let Some(dir) = self.dirs.get_mut(dir) {
                    dir.parent = *parent;
                }
            }
            Action::Count { .. } => {}
            Action::Uncount { file } => self.uncount(*file, 1),
            Action::SetInode { file, attributes, len } => {
                if let Some(inode) = self.inodes.get_mut(file) {
                    inode.attributes = *attributes;
                    inode.len = len.unwrap_or(inode.len);
                }
            }
            Action::SetInodePolicy { file, policy } => {
                if let Some(inode) = self.inodes.get_mut(file) {
                    inode.policy = *policy;
                }
            }
            // The turn of an own intent ends when all others have done their part, or the next
            // one could meet a directory's old parent.
            Action::RenameTurn if intent.partition == self.partition => {}
            Action::RenameTurn => self.cross.turn = None,
        }
    }

    fn finish(&mut self, intent: IntentId, commit: bool) {
        let stages = (intent, u8::MIN)..=(intent, u8::MAX);
        let stages: Vec<_> = self.cross.prepared.range(stages).map(|(&key, _)| key).collect();
        for key in stages {
            let Some(prepared) = self.cross.prepared.remove(&key) else { continue };
            for action in &prepared.actions {
                if commit {
                    self.perform(intent, action);
                } else {
                    self.undo(intent, action);
                }
            }
        }
    }

    /// The decision on an own intent; the first one counts.
    pub(super) fn decide(
        &mut self,
        intent: IntentId,
        commit: bool,
        participants: &[u16],
        outcome: &Outcome,
    ) -> Outcome {
        let known = self.cross.intents.get_mut(&intent.index);
        let known = known.filter(|_| intent.partition == self.partition);
        let Some(known) = known else { return Err(Refusal::NoIntent) };
        if known.outcome.is_some() {
            return Ok(Answer::Done);
        }
        known.outcome = Some((commit, participants.to_vec()));
        let op = known.op;
        match outcome {
            Err(refusal) if refusal.is_transient() => self.replies.forget(&op),
            outcome => self.replies.keep(&op, &super::encode_outcome(outcome)),
        }
        self.finish(intent, commit);
        Ok(Answer::Done)
    }

    /// The decision on another partition's intent, whose lowest live intent is `floor`.
    pub(super) fn resolve(&mut self, intent: IntentId, floor: u64, commit: bool) -> Outcome {
        if intent.partition == self.partition {
            return Err(Refusal::NoIntent);
        }
        if !self.cross.is_over(intent) {
            self.finish(intent, commit);
            self.cross.resolved.insert(intent);
        }
        self.cross.hear_floor(intent.partition, floor.min(intent.index));
        Ok(Answer::Done)
    }

    /// Another partition's intent asks to prepare.
    pub(super) fn prepare_for(
        &mut self,
        intent: IntentId,
        floor: u64,
        stage: u8,
        actions: &[Action],
    ) -> Outcome {
        if intent.partition == self.partition {
            let live = self.cross.intents.get(&intent.index);
            if live.is_none_or(|intent| intent.outcome.is_some()) {
                return Err(Refusal::NoIntent);
            }
        } else {
            self.cross.hear_floor(intent.partition, floor.min(intent.index));
        }
        self.prepare(intent, stage, actions)
    }

    /// All participants have the decision on an own intent.
    pub(super) fn forget(&mut self, intent: IntentId) -> Outcome {
        let decided = |intent: &Intent| intent.outcome.is_some();
        if intent.partition == self.partition
            && self.cross.intents.get(&intent.index).is_some_and(decided)
        {
            self.cross.intents.remove(&intent.index);
            if self.cross.turn == Some(intent) {
                self.cross.turn = None;
            }
        }
        Ok(Answer::Done)
    }

    /// Intents that this partition coordinates.
    pub fn intents(&self) -> Vec<IntentId> {
        let partition = self.partition;
        self.cross.intents.keys().map(|&index| IntentId { partition, index }).collect()
    }

    /// An intent that this partition coordinates.
    pub fn intent(&self, intent: IntentId) -> Option<&Intent> {
        let own = intent.partition == self.partition;
        self.cross.intents.get(&intent.index).filter(|_| own)
    }

    /// The own intent of a mutation that is decided, while participants may not have the decision yet.
    pub(super) fn undelivered(&self, op: &OpId) -> Option<IntentId> {
        let is_of = |intent: &Intent| {
            intent.outcome.is_some() && (intent.op.client, intent.op.seq) == (op.client, op.seq)
        };
        let (&index, _) = self.cross.intents.iter().find(|(_, intent)| is_of(intent))?;
        Some(IntentId { partition: self.partition, index })
    }

    /// This partition's lowest live intent; those below are over.
    pub fn intent_floor(&self) -> u64 {
        let lowest = self.cross.intents.keys().next().copied();
        lowest.unwrap_or(self.applied + 1)
    }

    /// The entry that this partition's own part of an intent replaces.
    pub fn own_replaced(&self, intent: IntentId) -> Option<Entry> {
        self.cross.prepared.get(&(intent, 0))?.replaced.clone()
    }

    /// Other partitions' intents that hold something here.
    pub fn guests(&self) -> Vec<IntentId> {
        let holders = self.cross.prepared.keys().map(|(intent, _)| *intent);
        let mut guests: Vec<_> =
            holders.filter(|intent| intent.partition != self.partition).collect();
        guests.dedup();
        guests
    }

    /// Whether it is an intent's turn to rename a directory; asked of the partition that gives the turns.
    pub fn has_turn(&self, intent: IntentId) -> bool {
        self.cross.turn == Some(intent)
    }

    /// The partition that has to drop what a rename replaces, and how.
    pub fn displace(&self, replaced: &Entry) -> Option<(u16, Action)> {
        let home = self.entry_home(replaced);
        match replaced {
            Entry::File(file) => Some((home, Action::Uncount { file: *file })),
            Entry::Dir { dir, .. } => Some((home, Action::EndDir { dir: *dir })),
            Entry::Symlink { .. } => None,
        }
    }
}
