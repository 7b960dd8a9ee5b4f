//! Admission of a master: see [`crate::admission`].

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use base::Kind;
use chunkstore::ChunkStore;
use futures_util::future::join_all;
use runtime::Class;
use transport::{Request, Response};
use wire::control::{ControlError, ControlRequest, Group as GroupName, MemberChange};

use super::{Master, MasterConfig, StartError};
use master_consensus::MembershipError;
use master_consensus::messages::{Invitation, MemberStatus};
use master_consensus::peers::{
    OP_HEARTBEATS, OP_INVITE, OP_LOST, OP_MEMBER_STATUS, OP_PING, OP_PROCESS, STATUS_NO_GROUP,
    answer_heartbeats, decode_heartbeats, decode_message, named,
};
use master_consensus::service::{Hosted, LeaderCall};

/// Pause between two attempts to become a member.
const ADMISSION_PAUSE: Duration = Duration::from_millis(100);
/// Pause between two looks for votes of masters that have left.
const VOTE_WATCH_PAUSE: Duration = Duration::from_millis(500);

impl Master {
    /// Keeps time for the groups that are led here: their heartbeats to one master go together.
    pub(super) fn start_beating(&self, pause: Duration) {
        let this = self.clone();
        self.0.env.spawn(Class::Control, "heartbeats", async move {
            let mut next = this.0.env.now() + pause;
            loop {
                this.0.env.sleep_until(next).await;
                for host in this.0.router.hosts() {
                    host.heartbeat().await;
                }
                // A late round is no reason for two in a row.
                next = (next + pause).max(this.0.env.now() + pause / 2);
            }
        });
    }

    /// An error when another process runs as this master: with a copy of its directory, at the
    /// address that the cluster has on record for it. Two of them would vote twice.
    pub(super) async fn check_alone(&self) -> Result<(), String> {
        let own = self.0.cluster.master();
        let recorded = self.0.cluster.masters().into_iter().find(|master| master.id == own);
        let Some(recorded) = recorded.filter(|recorded| recorded.addr != self.0.addr) else {
            return Ok(());
        };
        match self.0.peers.process(recorded.addr).await {
            // The recorded address may lead here, by a way that this process does not know.
            Some((id, boot)) if id == own && boot != self.0.boot => Err(format!(
                "master {own} ('{}') runs at {} already: this process, at {}, is refused. Stop \
                 one of the two; a further master needs a number and an empty directory of its own",
                recorded.name, recorded.addr, self.0.addr
            )),
            _ => Ok(()),
        }
    }

    /// Whether a request is about admission, and not for a group.
    pub(super) fn is_for_admission(&self, op: u16) -> bool {
        let own = [OP_HEARTBEATS, OP_MEMBER_STATUS, OP_INVITE, OP_PROCESS, OP_LOST, OP_PING];
        own.contains(&op) || !self.0.admission.is_member()
    }

    /// Refuses what is asked of the cluster while this master is no member: it knows of no master but
    /// those in its configuration, and its callers would take them for all.
    pub(super) fn check_member(&self, request: &ControlRequest) -> Result<(), ControlError> {
        let admission = &self.0.admission;
        if admission.is_member() || matches!(request, ControlRequest::Trace(_)) {
            return Ok(());
        }
        let why = admission.refusal();
        let why = why.unwrap_or_else(|| "this master is no member yet: ask another".to_owned());
        Err(ControlError::new(Kind::Reroute, why))
    }

    /// Serves heartbeats, invitations and questions for this master's state; and refuses all else
    /// while this master is no member. None: it is for a group.
    pub(super) async fn serve_admission(&self, op: u16, incoming: &Request) -> Option<Response> {
        let refused = || Some(Response { status: STATUS_NO_GROUP, ..Response::default() });
        let member = self.0.admission.is_member();
        if op == OP_HEARTBEATS && member {
            let heartbeats = decode_heartbeats(&incoming.body);
            let answer = answer_heartbeats(&self.0.env, &self.0.groups, heartbeats).await;
            return Some(Response::ok(answer));
        }
        let Ok((meant, body)) = decode_message(incoming) else { return refused() };
        match op {
            OP_MEMBER_STATUS => Some(Response::ok(self.member_status(&body).await.encode())),
            OP_PROCESS => {
                let id = self.0.cluster.master().to_le_bytes();
                Some(Response::ok([id, self.0.boot.to_le_bytes()].concat()))
            }
            OP_PING => Some(Response::ok(self.answer_ping(&body))),
            OP_INVITE => {
                let Ok(invitation) = Invitation::decode(&body) else { return refused() };
                if meant != 0 && meant != named(self.0.cluster.master()) {
                    self.0.env.mark("master: an invitation for another");
                    return refused();
                }
                match self.0.admission.accept(invitation).await {
                    Ok(accepted) => Some(Response::ok(vec![u8::from(accepted)])),
                    Err(error) => {
                        tracing::warn!(%error, "an invitation cannot be kept");
                        refused()
                    }
                }
            }
            OP_LOST => {
                let id = self.0.cluster.master().to_le_bytes();
                if !member && body == id && self.0.admission.refusal().is_none() {
                    let why = self.0.admission.lost_disk();
                    tracing::error!("{why}");
                    self.0.admission.refuse(why);
                }
                Some(Response::ok(Vec::new()))
            }
            // Nothing that an empty directory says may count.
            _ if !member => refused(),
            _ => None,
        }
    }

    /// Sees to it that this master becomes a member, or says why it cannot.
    pub(super) fn start_admission(&self, config: MasterConfig) {
        let this = self.clone();
        self.0.env.spawn(Class::Background, "master admission", async move {
            loop {
                match this.seek_admission(&config).await {
                    _ if this.0.admission.refusal().is_some() => return,
                    Ok(true) => return,
                    Ok(false) => this.0.env.sleep(this.0.env.jitter(ADMISSION_PAUSE)).await,
                    Err(why) => {
                        tracing::error!("{why}");
                        return this.0.admission.refuse(why);
                    }
                }
            }
        });
    }

    /// Checks masters that take no part in groups: one on record with an empty directory has lost
    /// its disk. The leader of the cluster group reports it: a master that was added later knows no
    /// other to ask. When another master answers at the address, the operator is warned.
    pub(super) async fn report_lost_disks(&self) {
        let cluster = &self.0.cluster;
        for id in self.0.peers.strangers() {
            let listed = cluster.masters().into_iter().find(|master| master.id == id);
            let Some(listed) = listed else { continue };
            let status = self.0.peers.member_status(listed.addr, cluster.master()).await;
            if let Some(found) = status.filter(|found| found.id != id) {
                self.0.peers.note_misplaced(&listed, found.id);
            }
            let empty = status.is_some_and(|it| it.id == id && it.member.get() == 0);
            let empty = empty && cluster.host().leads();
            // A master on record now had been invited before it came there.
            if empty && cluster.host().read_barrier().await.is_ok() && cluster.lists(id) {
                self.0.env.mark("master: a lost disk is reported");
                self.0.peers.report_lost(&listed).await;
            }
        }
    }

    /// Takes back votes of masters that have left, while this master leads the cluster group. An
    /// addition that was sent before the removal may arrive at a group's leader after it.
    pub(super) fn start_vote_watch(&self) {
        let this = self.clone();
        self.0.env.spawn(Class::Background, "votes of masters that left", async move {
            loop {
                this.0.env.sleep(VOTE_WATCH_PAUSE).await;
                if this.0.cluster.host().leads() {
                    this.take_back_votes().await;
                }
            }
        });
    }

    /// A group without a leader holds up no other one.
    async fn take_back_votes(&self) {
        let take_back = |host: Rc<dyn Hosted>| async move {
            let gone = host.voters().into_iter().filter(|&id| self.0.cluster.has_left(id));
            for id in gone {
                self.0.env.mark("master: a vote is taken back");
                let name = host.name();
                tracing::warn!(master = id, group = %name, "a master that has left has a vote");
                let body = MemberChange::Remove { id }.encode();
                // The next round tries again.
                let _ = self.0.router.run(name, LeaderCall::Members, body, VOTE_WATCH_PAUSE).await;
            }
        };
        join_all(self.0.router.hosts().into_iter().map(take_back)).await;
    }

    /// True when this master is a member, and has formed the cluster if that is its part.
    async fn seek_admission(&self, config: &MasterConfig) -> Result<bool, String> {
        let admission = &self.0.admission;
        let others = || config.masters.iter().filter(|other| other.id != config.id);
        if !admission.is_member() {
            let own = self.0.store.info().disk;
            let asked = others().map(|other| self.0.peers.member_status(other.addr, config.id));
            let statuses = join_all(asked.collect::<Vec<_>>()).await;
            let mut known = statuses.iter().flatten();
            // A leader that a quorum confirms knows who has a vote.
            if known.any(|it| it.leads && it.voter) && !admission.is_member() {
                return Err(admission.lost_disk());
            }
            let empty = |it: &Option<MemberStatus>| {
                it.is_some_and(|it| it.member == own || it.member.get() == 0)
            };
            if !self.forms(config) || !statuses.iter().all(empty) {
                return Ok(admission.is_member());
            }
            let invitation = Invitation { inviter: own, joins: false };
            for other in others() {
                let (peers, body) = (&self.0.peers, invitation.encode());
                let wait = config.timing.call_timeout;
                let answer = peers.ask(other.addr, OP_INVITE, named(other.id), &body, wait).await;
                if answer.as_deref() != Ok(&[1]) {
                    return Ok(false);
                }
            }
            let accepted = admission.accept(invitation).await;
            if !accepted.map_err(|error| error.to_string())? {
                return Ok(true); // Another master has invited it.
            }
        }
        if self.forms(config) {
            self.bootstrap(config).await.map_err(|error| error.to_string())?;
        }
        Ok(true)
    }

    /// The master with the lowest number forms the cluster.
    fn forms(&self, config: &MasterConfig) -> bool {
        config.form && config.masters.first().is_some_and(|first| first.id == config.id)
    }

    /// State of this master, and its record of the one that asks.
    pub(super) async fn member_status(&self, body: &[u8]) -> MemberStatus {
        let asker = body.try_into().map_or(0, u64::from_le_bytes);
        let cluster = self.0.router.host(GroupName::Cluster.number());
        let (mut leads, mut voter) = (false, false);
        if let Some(cluster) = cluster.filter(|cluster| cluster.leadership().leading) {
            leads = cluster.ask_here(Vec::new()).await.is_ok();
            // A master on record may have a vote in another group.
            voter = cluster.voters().contains(&asker) || self.0.cluster.lists(asker);
        }
        let (id, member) = (self.0.cluster.master(), self.0.admission.member());
        MemberStatus { id, member, leads, voter }
    }

    /// Forms all groups, on the master with the lowest ID. A repeat after a crash goes on.
    async fn bootstrap(&self, config: &MasterConfig) -> Result<(), StartError> {
        let members: BTreeSet<u64> = config.masters.iter().map(|master| master.id).collect();
        for host in self.0.router.hosts() {
            match host.form(members.clone()).await {
                Ok(()) | Err(MembershipError::Exists) => {}
                Err(error) => return Err(StartError::Form(host.name(), error)),
            }
        }
        Ok(())
    }
}
