//! Serves the requests to a namespace partition on the master that leads it.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use base::{DirId, FileId, Kind};
use runtime::Env;
use runtime::sync::Notify;
use wire::control::{
    ControlError, Group as GroupName, NameKey, NamedNode, NamespaceChange, NamespaceReply,
    NamespaceRequest, Node, OpId, Policy, namespace_partition,
};

use super::question::{Question, decode_nodes};
use super::{
    Answer, Command, Found, IntentId, Namespace, Outcome, Refusal, decode_outcome, encode_command,
};
use crate::grant::GrantKey;
use crate::limits::{GRANT_LIFE, LOCK_PAUSE_GROWTH};
use master_consensus::LocalFuture;
use master_consensus::service::{Host, Hostable, LeaderCall, Router};

/// Times of a namespace partition's leader.
#[derive(Clone, Copy, Debug)]
pub struct NamespaceTiming {
    /// Wait of a request for a name that a change across partitions holds.
    pub lock_timeout: Duration,
    /// Pause between two checks of such a name.
    pub lock_pause: Duration,
    /// Wait of a request for a change across partitions, and of one step of it for another
    /// partition's leader.
    pub intent_timeout: Duration,
    /// Pause between two checks for work that a former leader left.
    pub sweep: Duration,
}

impl Default for NamespaceTiming {
    fn default() -> NamespaceTiming {
        NamespaceTiming {
            lock_timeout: Duration::from_millis(1000),
            lock_pause: Duration::from_millis(5),
            intent_timeout: Duration::from_secs(2),
            sweep: Duration::from_millis(500),
        }
    }
}

/// Removes streams: the stream service, seen from the namespace.
pub trait StreamEnd {
    /// Has the stream partition of `file` commit that the file is gone. May be repeated with
    /// another `op`.
    fn delete(&self, op: OpId, file: FileId) -> LocalFuture<'_, Result<(), ControlError>>;
}

/// One namespace partition on this master. Clones share it.
#[derive(Clone)]
pub struct NamespaceService(pub(super) Rc<NamespaceServiceInner>);

pub(super) struct NamespaceServiceInner {
    pub(super) env: Env,
    pub(super) partition: u16,
    pub(super) partitions: u16,
    pub(super) host: Host<Namespace>,
    pub(super) router: Rc<Router>,
    pub(super) streams: Rc<dyn StreamEnd>,
    pub(super) timing: NamespaceTiming,
    grants: GrantKey,
    /// Intents that a task here works at.
    pub(super) driven: RefCell<BTreeSet<IntentId>>,
    /// An intent was decided, or is over.
    pub(super) decided: Notify,
    /// There is something to clean up.
    pub(super) work: Notify,
}

impl Hostable for Namespace {
    fn clock_ms(&self) -> u64 {
        Namespace::clock_ms(self)
    }

    fn ask(&self, question: &[u8]) -> Vec<u8> {
        super::question::answer(self, question)
    }
}

impl NamespaceService {
    /// Serves `host`'s partition of `partitions`, and starts its housekeeping.
    pub fn start(
        env: &Env,
        host: Host<Namespace>,
        router: Rc<Router>,
        streams: Rc<dyn StreamEnd>,
        grants: GrantKey,
        timing: NamespaceTiming,
    ) -> NamespaceService {
        let (partition, partitions) = host.read(|state| (state.partition, state.partitions));
        let service = NamespaceService(Rc::new(NamespaceServiceInner {
            env: env.clone(),
            partition,
            partitions,
            host,
            router,
            streams,
            timing,
            grants,
            driven: RefCell::default(),
            decided: Notify::new(),
            work: Notify::new(),
        }));
        service.start_sweeping();
        service
    }

    /// The partition's group.
    pub fn host(&self) -> &Host<Namespace> {
        &self.0.host
    }

    /// Serves one request.
    pub async fn serve(&self, request: NamespaceRequest) -> Result<NamespaceReply, ControlError> {
        match request {
            NamespaceRequest::Lookup { place } => {
                let (dir_policy, node) = self.lookup_in(&place).await?;
                self.node_reply(node, dir_policy)
            }
            NamespaceRequest::List { dir, after, limit } => {
                let page = self.look(|state| state.list(dir, after.as_deref(), limit)).await?;
                self.list_reply(dir, page).await
            }
            NamespaceRequest::StatFile { file } => {
                let node = self.look(|state| state.stat(file)).await?;
                self.node_reply(node, None)
            }
            NamespaceRequest::DirPolicy { dir } => {
                let policy = self.look(|state| state.dir_policy(dir)).await?;
                Ok(NamespaceReply::DirPolicy { policy })
            }
            NamespaceRequest::Change { op, change } => self.change(op, change).await,
        }
    }

    /// A linearizable read that waits for changes across partitions.
    async fn look<T>(
        &self,
        look: impl Fn(&Namespace) -> Result<T, Refusal>,
    ) -> Result<T, ControlError> {
        let inner = &*self.0;
        let deadline = inner.env.now() + inner.timing.lock_timeout;
        loop {
            inner.host.read_barrier().await?;
            match inner.host.read(&look) {
                Err(Refusal::Locked) if inner.env.now() < deadline => {
                    inner.env.mark("namespace: a read waits for an intent");
                    inner.env.sleep(inner.env.jitter(inner.timing.lock_pause)).await;
                }
                result => return result.map_err(ControlError::from),
            }
        }
    }

    /// The target of `place`. A file of another partition may be gone when that partition is asked:
    /// its last name was removed, or a rename has put another target there. In the second case the
    /// name was there all the time, so another read decides.
    async fn lookup(&self, place: &NameKey) -> Result<Node, ControlError> {
        Ok(self.lookup_in(place).await?.1)
    }

    /// The same, with the own policy of the directory, as of one moment.
    async fn lookup_in(&self, place: &NameKey) -> Result<(Option<Policy>, Node), ControlError> {
        let deadline = self.0.env.now() + self.0.timing.lock_timeout;
        let mut gone = None;
        loop {
            let both =
                |state: &Namespace| Ok((state.dir_policy(place.parent)?, state.lookup(place)?));
            let (dir_policy, found) = self.look(both).await?;
            let file = match found {
                Found::Node(node) => return Ok((dir_policy, node)),
                // Counts go down after names: this name can only be a left-over.
                Found::Remote(file) if gone == Some(file) => return Err(Refusal::NoName.into()),
                Found::Remote(file) => file,
            };
            if let Some(node) = self.stat_one(file).await? {
                return Ok((dir_policy, node));
            }
            self.0.env.mark("namespace: a file is gone before its attributes are read");
            if self.0.env.now() >= deadline {
                let message = "the name changes faster than its file's attributes are read: retry";
                return Err(ControlError::new(Kind::Retry, message));
            }
            gone = Some(file);
        }
    }

    async fn change(
        &self,
        op: OpId,
        change: NamespaceChange,
    ) -> Result<NamespaceReply, ControlError> {
        let inner = &*self.0;
        if op.seq == 0 || op.acked_below > op.seq {
            let message = "a mutation's sequence counts from 1 and is not acknowledged before it";
            return Err(ControlError::new(Kind::Invalid, message));
        }
        self.check_place(&change)?;
        let command = Command::Change { op, change };
        let deadline = inner.env.now() + inner.timing.lock_timeout;
        let longest = inner.timing.lock_pause * LOCK_PAUSE_GROWTH;
        let mut pause = inner.timing.lock_pause;
        loop {
            let bytes = inner.host.propose(|clock| encode_command(clock, &command)).await?;
            let mut outcome = decode(&bytes)?;
            let mut pending = None;
            if let Ok(Answer::Pending(intent)) = outcome {
                pending = Some(intent);
                outcome = self.finish(intent, &op).await?;
            }
            // The answer to a repeat too: the leader that decided may be gone.
            if self.changes_file_elsewhere(&command, &outcome) {
                self.await_delivery(&op, pending).await?;
            }
            match outcome {
                Err(Refusal::Locked) if inner.env.now() < deadline => {
                    inner.env.mark("namespace: a change waits for an intent");
                    inner.env.sleep(inner.env.jitter(pause)).await;
                    // Another partition refuses, which takes commands of both.
                    if pending.is_some() {
                        pause = (pause * 2).min(longest);
                    }
                    while self.is_held(&command) && inner.env.now() < deadline {
                        inner.env.sleep(inner.env.jitter(inner.timing.lock_pause)).await;
                    }
                }
                outcome => return self.change_reply(&command, outcome).await,
            }
        }
    }

    /// True while the state here shows that a change would be refused as locked: that takes no command.
    fn is_held(&self, command: &Command) -> bool {
        let Command::Change { op, change } = command else { return false };
        self.0.host.leads() && self.0.host.read(|state| state.is_held(op, change))
    }

    /// True when what was changed is known to a file's own partition, which is not this one.
    fn changes_file_elsewhere(&self, command: &Command, outcome: &Outcome) -> bool {
        use NamespaceChange as Change;
        let Command::Change { change, .. } = command else { return false };
        match (change, outcome) {
            (Change::SetAttributes { .. }, Ok(Answer::Remote(_))) => true,
            (Change::SetFilePolicy { file, .. }, Ok(_)) => file.partition() != self.0.partition,
            _ => false,
        }
    }

    /// Fails fast for a client that has the wrong number of partitions.
    fn check_place(&self, change: &NamespaceChange) -> Result<(), ControlError> {
        let here = |place: &NameKey| {
            namespace_partition(place.parent, self.0.partitions) == self.0.partition
        };
        let good = match change {
            NamespaceChange::Link { links } => links.iter().all(|(_, place)| here(place)),
            NamespaceChange::Rename { from, .. } => here(from),
            NamespaceChange::Mkdir { place, .. }
            | NamespaceChange::Create { place, .. }
            | NamespaceChange::Symlink { place, .. }
            | NamespaceChange::Unlink { place }
            | NamespaceChange::Rmdir { place }
            | NamespaceChange::SetAttributes { place, .. }
            | NamespaceChange::SetFilePolicy { place, .. } => here(place),
            NamespaceChange::SetDirPolicy { dir, .. } => {
                namespace_partition(*dir, self.0.partitions) == self.0.partition
            }
        };
        if good { Ok(()) } else { Err(Refusal::Elsewhere.into()) }
    }

    async fn change_reply(
        &self,
        command: &Command,
        outcome: Outcome,
    ) -> Result<NamespaceReply, ControlError> {
        if self.0.host.read(|state| !state.orphans(None, 1).is_empty()) {
            self.0.work.notify_one();
        }
        match outcome {
            Ok(Answer::Done) => Ok(NamespaceReply::Done),
            Ok(Answer::Node(node)) => self.node_reply(node, None),
            Ok(Answer::Remote(file)) => {
                let node = match (self.stat_one(file).await?, command) {
                    (Some(node), _) => node,
                    // The entry gave way to another that can be opened.
                    (
                        None,
                        Command::Change { change: NamespaceChange::Create { place, .. }, .. },
                    ) => self.lookup(place).await?,
                    (None, _) => return Err(Refusal::NoName.into()),
                };
                self.node_reply(node, None)
            }
            Ok(Answer::Pending(_) | Answer::Prepared(_)) => Err(Refusal::BadCommand.into()),
            Err(refusal) => Err(refusal.into()),
        }
    }

    /// A node with a grant when it is a file that has a name. The answer to a retry may describe
    /// a file that is gone: no grant then.
    fn node_reply(
        &self,
        node: Node,
        dir_policy: Option<Policy>,
    ) -> Result<NamespaceReply, ControlError> {
        let grant = match &node {
            Node::File { file, .. } => {
                let gone = file.partition() == self.0.partition
                    && !self.0.host.read(|state| state.has_file(*file));
                if gone { [0; 16] } else { self.grant(*file) }
            }
            Node::Dir { .. } | Node::Symlink { .. } => [0; 16],
        };
        Ok(NamespaceReply::Node { node, grant, dir_policy })
    }

    fn grant(&self, file: FileId) -> [u8; 16] {
        let now = self.0.env.unix_time().as_nanos() / 1_000_000_000;
        self.0.grants.issue(file, now + GRANT_LIFE.as_secs())
    }

    async fn stat_one(&self, file: FileId) -> Result<Option<Node>, ControlError> {
        Ok(self.stat_remote(file.partition(), vec![file]).await?.pop().flatten())
    }

    /// Attributes of files of another partition; none for those that are gone.
    async fn stat_remote(
        &self,
        home: u16,
        files: Vec<FileId>,
    ) -> Result<Vec<Option<Node>>, ControlError> {
        if home >= self.0.partitions {
            return Err(Refusal::NoFile.into());
        }
        let count = files.len();
        let bytes = self.ask(home, &Question::Nodes(files)).await?;
        let nodes = decode_nodes(&bytes).ok().filter(|nodes| nodes.len() == count);
        nodes.ok_or_else(|| Refusal::BadCommand.into())
    }

    /// Whether a file is there, asked of the partition that it is of.
    pub async fn has_file(
        router: &Router,
        file: FileId,
        timeout: Duration,
    ) -> Result<bool, ControlError> {
        let group = GroupName::Namespace(file.partition());
        let question = Question::Nodes(vec![file]).encode();
        let bytes = router.run(group, LeaderCall::Ask, question, timeout).await?;
        match decode_nodes(&bytes).as_deref() {
            Ok([node]) => Ok(node.is_some()),
            _ => Err(Refusal::BadCommand.into()),
        }
    }

    pub(super) async fn ask(
        &self,
        partition: u16,
        question: &Question,
    ) -> Result<Vec<u8>, ControlError> {
        let (group, timeout) = (GroupName::Namespace(partition), self.0.timing.intent_timeout);
        self.0.router.run(group, LeaderCall::Ask, question.encode(), timeout).await
    }

    async fn list_reply(
        &self,
        dir: DirId,
        (page, more): super::Page,
    ) -> Result<NamespaceReply, ControlError> {
        let remote: BTreeSet<FileId> = page.iter().filter_map(remote_file).collect();
        let homes: BTreeSet<u16> = remote.iter().map(|file| file.partition()).collect();
        let mut known = std::collections::BTreeMap::new();
        for home in homes {
            let files: Vec<_> =
                remote.iter().copied().filter(|file| file.partition() == home).collect();
            let nodes = self.stat_remote(home, files.clone()).await?;
            known.extend(files.into_iter().zip(nodes));
        }
        let mut entries = Vec::with_capacity(page.len());
        for (name, found) in page {
            let node = match found {
                Found::Node(node) => Some(node),
                Found::Remote(file) => match known.get(&file).cloned().flatten() {
                    Some(node) => Some(node),
                    // Gone since the page was read: the name too, or it has another target now.
                    None => {
                        let place = NameKey { parent: dir, name: name.clone() };
                        match self.lookup(&place).await {
                            Err(error) if error.kind == Kind::NotFound => None,
                            found => Some(found?),
                        }
                    }
                },
            };
            entries.extend(node.map(|node| NamedNode { name, node }));
        }
        Ok(NamespaceReply::List { entries, more })
    }
}

fn remote_file((_, found): &(String, Found)) -> Option<FileId> {
    match found {
        Found::Remote(file) => Some(*file),
        Found::Node(_) => None,
    }
}

pub(super) fn decode(bytes: &[u8]) -> Result<Outcome, ControlError> {
    let error = |_| ControlError::new(Kind::Unknown, "the outcome was lost: retry");
    decode_outcome(bytes).map_err(error)
}
