//! Whether this master's directory may vote.
//!
//! A member that has lost its disk has forgotten its votes and acknowledgements; if it took part
//! under its old number, acknowledged changes could be lost. So an empty directory takes part in
//! nothing before it is invited, and remembers the inviter: the master that forms the cluster, once
//! all its masters have answered that they are as empty; or a leader that adds a master. The
//! invitation comes before the master is on record. So one that is on record and has an empty
//! directory has lost its disk, whatever it has a vote in: it may not be invited again.

use std::cell::RefCell;
use std::io;
use std::path::PathBuf;

use base::DiskId;
use runtime::Env;
use runtime::sync::Mutex;

use crate::identity::Identity;
use master_consensus::messages::Invitation;

/// This master's own membership state.
pub struct Admission {
    env: Env,
    dir: PathBuf,
    identity: RefCell<Identity>,
    refusal: RefCell<Option<String>>,
    writing: Mutex<()>,
}

impl Admission {
    /// Of the directory `dir` with this identity.
    pub fn new(env: &Env, dir: PathBuf, identity: Identity) -> Admission {
        Admission {
            env: env.clone(),
            dir,
            identity: RefCell::new(identity),
            refusal: RefCell::default(),
            writing: Mutex::new(()),
        }
    }

    /// The disk identity that invited this master; zero when none has.
    pub fn member(&self) -> DiskId {
        self.identity.borrow().member
    }

    /// True when this master takes part in its groups.
    pub fn is_member(&self) -> bool {
        self.member().get() != 0
    }

    /// Takes an invitation, durably; false when this master is a member by another.
    pub async fn accept(&self, invitation: Invitation) -> io::Result<bool> {
        let _turn = self.writing.lock().await;
        if self.is_member() {
            return Ok(invitation.joins || self.member() == invitation.inviter);
        }
        if invitation.inviter.get() == 0 {
            return Ok(false);
        }
        let invited = Identity { member: invitation.inviter, ..self.identity.borrow().clone() };
        invited.write(&self.env, &self.dir).await?;
        *self.identity.borrow_mut() = invited;
        self.env.mark("master: invited");
        Ok(true)
    }

    /// This master can never take part with this directory.
    pub fn refuse(&self, why: String) {
        *self.refusal.borrow_mut() = Some(why);
    }

    /// Cause for which this master can never take part with this directory.
    pub fn refusal(&self) -> Option<String> {
        self.refusal.borrow().clone()
    }

    /// The remedy for a voter whose directory is empty, for the operator.
    pub fn lost_disk(&self) -> String {
        format!(
            "this master is a member of the cluster, and its directory {} is empty: its disk was \
             lost or replaced. Remove it with 'craton masters remove', then add another in its place, \
             with a number of its own ('raft_id')",
            self.dir.display()
        )
    }
}
