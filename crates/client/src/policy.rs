//! Policies of directories and files (decision 78).
//!
//! A directory may have a policy of its own. A file gets, when it is made, that of the nearest
//! directory on its path that has one; it keeps it when it is moved. The masters decide about the
//! directory in which the file is made, in the step that makes it; what is set above comes with the
//! answers to the look-ups of the path, which are linearizable and asked during the same call.

use base::{DirId, Kind};
use wire::control::{
    ControlReply, NameKey, NamespaceChange, NamespaceReply, NamespaceRequest, Node, Policy,
    StreamChange,
};

use crate::client::Client;
use crate::error::Error;
use crate::file::FlatLogFile;
use crate::path::{names_of, split_last};
use crate::session::{Refusal, unexpected_reply};

/// Repeats of the record of a file's policy at most, while other clients set it too.
const RECORDS_MAX: usize = 8;

/// A policy that comes from a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inherited {
    /// The policy.
    pub policy: Policy,
    /// Path of the directory that it is set on, without links.
    pub set_on: String,
}

/// Refuses what is no policy.
pub(crate) fn check_policy(path: &str, policy: Policy) -> Result<(), Error> {
    if policy.is_valid() {
        return Ok(());
    }
    let Policy { copies, acks, data, .. } = policy;
    let message = format!(
        "{acks} acknowledgements of {copies} replicas with {data} data fragments are no policy; choose 1 \
         to 5 copies (1 data fragment) and more than half of them as acknowledgements, or 2 to 12 data \
         and 1 to 4 parity fragments and more acknowledgements than data fragments"
    );
    Err(Error::invalid(path, message))
}

impl Client {
    /// As [`Client::create`], with the policy of the nearest directory that has one; `default`
    /// where none has.
    ///
    /// For each directory on the path, the policy is one that it had while this call ran; for the
    /// one with the file, the one that it has as the file is made.
    pub async fn create_inherited(
        &self,
        path: &str,
        default: Policy,
        mode: u32,
        exclusive: bool,
    ) -> Result<FlatLogFile, Error> {
        let work = async {
            let (parents, name) = split_last(path)?;
            let walked = self.walk_noting(path, parents, true).await?;
            let Node::Dir { dir, .. } = walked.found.node else {
                return Err(Error::invalid(path, "is in no directory"));
            };
            self.env().note(metrics::Step::Resolved, metrics::Fact::None);
            let place = NameKey { parent: dir, name };
            self.check_hidden(&place, path)?;
            let above = walked.inherited.map_or(default, |inherited| inherited.policy);
            self.make_file(place, path, (above, true), mode, exclusive).await
        };
        self.operation("create", work).await
    }

    /// As [`Client::create_inherited`], in a directory that was resolved before; `above` is for one
    /// without a policy of its own, and `path` for messages.
    pub async fn create_inherited_at(
        &self,
        place: NameKey,
        path: &str,
        above: Policy,
        mode: u32,
        exclusive: bool,
    ) -> Result<FlatLogFile, Error> {
        let work = self.make_file(place, path, (above, true), mode, exclusive);
        self.operation("create", work).await
    }

    /// The policy that a file gets which is made in the directory `path`; none when it has none, nor
    /// one above.
    pub async fn dir_policy(&self, path: &str) -> Result<Option<Inherited>, Error> {
        let work = async {
            let walked = self.walk_noting(path, names_of(path)?, true).await?;
            let Node::Dir { dir, .. } = walked.found.node else {
                return Err(Error::invalid(path, "is no directory"));
            };
            let own = self.own_policy(dir).await;
            let own = own.map_err(|error| error.about("look up the policy of", path))?;
            let own = own.map(|policy| Inherited { policy, set_on: walked.path });
            Ok(own.or(walked.inherited))
        };
        self.operation("look up policy", work).await
    }

    async fn own_policy(&self, dir: DirId) -> Result<Option<Policy>, Refusal> {
        match self.ask_namespace(dir, NamespaceRequest::DirPolicy { dir }).await? {
            NamespaceReply::DirPolicy { policy } => Ok(policy),
            other => Err(unexpected_reply(&ControlReply::Namespace(other))),
        }
    }

    /// Gives the directory `path` a policy of its own, for files that are made in it and below from
    /// then on; none: it inherits again. Files that are there keep theirs.
    pub async fn set_dir_policy(&self, path: &str, policy: Option<Policy>) -> Result<(), Error> {
        let work = async {
            let dir = self.resolve_dir(path).await?;
            self.set_dir_policy_at(dir, path, policy).await
        };
        self.operation("set policy", work).await
    }

    /// As [`Client::set_dir_policy`], of a directory that was resolved before; `path` is for
    /// messages.
    pub async fn set_dir_policy_at(
        &self,
        dir: DirId,
        path: &str,
        policy: Option<Policy>,
    ) -> Result<(), Error> {
        policy.map_or(Ok(()), |policy| check_policy(path, policy))?;
        let done = self.change_done(dir, NamespaceChange::SetDirPolicy { dir, policy }).await;
        done.map_err(|error| error.about("set the policy of", path))
    }
}

impl FlatLogFile {
    /// The policy of the chunks that it gets from now on, from the stream service.
    pub async fn policy_now(&self) -> Result<Policy, Error> {
        let inner = &*self.0;
        let known = inner.client.0.locator.locate(inner.file, u64::MAX, &inner.path).await;
        match known {
            Ok(view) => Ok(view.policy.unwrap_or(inner.policy)),
            // Never opened for append: its first writer takes the policy of the namespace.
            Err(Error::NotFound { .. }) => match inner.client.stat_file(inner.file).await {
                Ok((Node::File { policy, .. }, _)) => Ok(policy),
                Ok(_) => Err(Error::invalid(&inner.path, "is no file")),
                Err(Error::NotFound { .. }) => Err(Error::not_found(&inner.path)),
                Err(error) => Err(error),
            },
            Err(error) => Err(error),
        }
    }

    /// Sets the policy of the chunks that it gets from now on; those that it has keep what they were
    /// made with. A writer takes it over with its next answer of the stream service: when its chunk
    /// ends, or after half of the life of its rights, 30 s, at the latest.
    pub async fn set_policy(&self, policy: Policy) -> Result<(), Error> {
        let work = async {
            check_policy(&self.0.path, policy)?;
            self.set_stream_policy(policy).await?;
            self.record_policy(policy).await
        };
        self.0.client.operation("set policy", work).await
    }

    async fn set_stream_policy(&self, policy: Policy) -> Result<(), Error> {
        let inner = &*self.0;
        let ask = async |grant| {
            let change = StreamChange::SetPolicy { file: inner.file, policy, grant };
            inner.client.stream_change(inner.file, change).await
        };
        let answer = match ask(inner.grant).await {
            // The right to open has run out: the namespace gives another.
            Err(refusal) if refusal.kind == Kind::Refresh => {
                let (_, grant) = inner.client.stat_file(inner.file).await?;
                ask(grant).await
            }
            answer => answer,
        };
        answer.map(drop).map_err(|refusal| refusal.about("set the policy of", &inner.path))
    }

    /// Records the policy where look-ups and lists find it. Two clients that set it at the same time
    /// may record in another order than the stream service has it: the last of them sees that.
    async fn record_policy(&self, mut policy: Policy) -> Result<(), Error> {
        let inner = &*self.0;
        for _ in 0..RECORDS_MAX {
            let (place, file) = (inner.place.clone(), inner.file);
            let parent = place.parent;
            let change = NamespaceChange::SetFilePolicy { place, file, policy };
            match inner.client.change_done(parent, change).await {
                Ok(()) => {}
                // It was moved or removed at the same time: lists show the former policy.
                Err(refusal) if refusal.kind == Kind::NotFound => return Ok(()),
                Err(refusal) => return Err(refusal.about("set the policy of", &inner.path)),
            }
            let now = self.policy_now().await?;
            if now == policy {
                return Ok(());
            }
            policy = now;
        }
        Ok(())
    }
}
