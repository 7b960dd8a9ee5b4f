//! Messages between masters, over the transport: Raft, and commands and questions for a group that
//! another master leads.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::time::Duration;

use base::{DiskId, Kind, TraceId};
use futures_util::future::join_all;
use runtime::sync::oneshot;
use runtime::{Class, Env};
use transport::{CallError, Endpoint, Priority, Request, Response, Service, Token};
use wire::control::{ControlError, MasterInfo};
use wire::frame::{BODY_MAX, STATUS_ERROR};

use crate::bytes::{DecodeError, Reader, Writer};
use crate::messages::{Invitation, MemberStatus};
use crate::{Groups, LocalFuture, NetError, PeerSend};

/// Operations of [`Service::RAFT`].
pub const OP_RAFT: u16 = 1;
/// Propose a command; the body behind the group's number. Commands sent so may be repeated.
pub const OP_PROPOSE: u16 = 2;
/// Ask the leader; the body behind the group's number.
pub const OP_ASK: u16 = 3;
/// Change the members of a group; the body behind the group's number.
pub const OP_MEMBERS: u16 = 4;

/// Raft messages without entries, of several groups.
pub const OP_HEARTBEATS: u16 = 5;

/// Invite a master whose directory is empty; the body is an invitation, behind the number of the
/// master that is meant (0: not said, as by versions that put no number there).
pub const OP_INVITE: u16 = 6;
/// Asks for a master's state; the body is the number of the one that asks, behind group 0.
pub const OP_MEMBER_STATUS: u16 = 7;

/// Asks for the process: the answer is the master's number and the one drawn at its start.
pub const OP_PROCESS: u16 = 8;

/// Report to a master whose directory is empty that it is on record as a member; the body is its
/// number, behind group 0.
pub const OP_LOST: u16 = 9;

/// Asks a master whether it answers; the body is the number of the one that asks, behind group 0. The
/// answer is its own number, and those of the masters that it does not reach, though it hears them.
pub const OP_PING: u16 = 10;

/// The receiver has no such group, or cannot read the message.
pub const STATUS_NO_GROUP: u16 = 2;

/// A Raft call's answer takes at most this long; its caller gives up far earlier.
const RAFT_TIMEOUT: Duration = Duration::from_secs(10);
/// Wait of the answer to the heartbeats of several groups for the slowest of them.
const HEARTBEATS_WAIT: Duration = Duration::from_millis(20);
/// Time limit of a master's answer to an invitation, with its disk.
const INVITE_WAIT: Duration = Duration::from_secs(1);
/// Raft messages above this size let smaller ones pass.
const SMALL: usize = 64 << 10;

/// The other masters.
pub struct Peers {
    env: Env,
    endpoint: Endpoint,
    addrs: RefCell<BTreeMap<u64, SocketAddr>>,
    /// Heartbeats that leave with the next message, by master.
    heartbeats: RefCell<BTreeMap<u64, Vec<GroupHeartbeat>>>,
    /// Masters that did not answer last: logged once, not with each message.
    silent: RefCell<BTreeSet<u64>>,
    /// Masters that took no part in a group when they answered last: they may have lost their disk.
    strangers: RefCell<BTreeSet<u64>>,
    /// Masters at whose address another one answers: logged once.
    misplaced: RefCell<BTreeSet<(u64, u64)>>,
    weak: Weak<Peers>,
}

type RaftAnswer = Result<Vec<u8>, NetError>;

/// A heartbeat on its way, and the waiter for its answer.
struct GroupHeartbeat {
    group: u32,
    rpc: Vec<u8>,
    answer: oneshot::Sender<RaftAnswer>,
}

impl Peers {
    /// The masters of the configuration; further ones are learned.
    pub fn new(env: &Env, endpoint: Endpoint, masters: &[MasterInfo]) -> Rc<Peers> {
        let addrs = masters.iter().map(|master| (master.id, master.addr)).collect();
        Rc::new_cyclic(|weak| Peers {
            env: env.clone(),
            endpoint,
            addrs: RefCell::new(addrs),
            heartbeats: RefCell::default(),
            silent: RefCell::default(),
            strangers: RefCell::default(),
            misplaced: RefCell::default(),
            weak: weak.clone(),
        })
    }

    /// A master joins, or has another address.
    pub fn learn(&self, master: &MasterInfo) {
        self.addrs.borrow_mut().insert(master.id, master.addr);
    }

    /// Address of a master.
    pub fn addr(&self, master: u64) -> Option<SocketAddr> {
        self.addrs.borrow().get(&master).copied()
    }

    /// Asks the master at `to`; `body` is for group number `group`.
    pub async fn ask(
        &self,
        to: SocketAddr,
        op: u16,
        group: u32,
        body: &[u8],
        timeout: Duration,
    ) -> Result<Vec<u8>, ControlError> {
        let request = request(op, Priority::Foreground, encode_message(group, body));
        let answer = self.call(to, request, timeout).await;
        answer.unwrap_or_else(|error| Err(ControlError::new(error.kind(), error.to_string())))
    }

    /// Sends a request of this task's trace to the master at `to`: its answer, or why none came.
    pub async fn call(
        &self,
        to: SocketAddr,
        mut request: Request,
        timeout: Duration,
    ) -> Result<Result<Vec<u8>, ControlError>, CallError> {
        request.trace = self.env.trace();
        let response = self.endpoint.call(to, request, timeout).await?;
        Ok(match response.status {
            0 => Ok(response.body),
            STATUS_ERROR => Err(ControlError::decode(&response.body).unwrap_or_else(|error| {
                ControlError::new(Kind::Invalid, format!("an answer of {to}: {error}"))
            })),
            status => {
                Err(ControlError::new(Kind::Retry, format!("{to} answers with status {status}")))
            }
        })
    }

    /// Invites a master that is being added.
    pub async fn invite(&self, master: &MasterInfo) -> Result<(), ControlError> {
        // Any number but zero: a master that joins is invited by the cluster.
        let invitation = Invitation { inviter: DiskId::new(1), joins: true }.encode();
        let (addr, meant) = (master.addr, named(master.id));
        let answer = self.ask(addr, OP_INVITE, meant, &invitation, INVITE_WAIT).await;
        match answer.as_deref() {
            Ok([1]) => Ok(()),
            Ok(_) => Err(ControlError::new(
                Kind::Invalid,
                format!(
                    "master {} belongs to another cluster: give it an empty directory",
                    master.name
                ),
            )),
            Err(error) => Err(ControlError::new(
                Kind::Retry,
                format!("master {} does not answer at {}: {error}", master.name, master.addr),
            )),
        }
    }

    /// State of the master at `addr`, and its record of `id`.
    pub async fn member_status(&self, addr: SocketAddr, id: u64) -> Option<MemberStatus> {
        let answer = self.ask(addr, OP_MEMBER_STATUS, 0, &id.to_le_bytes(), INVITE_WAIT).await;
        MemberStatus::decode(&answer.ok()?).ok()
    }

    /// Masters that took no part in a group when they answered last.
    pub fn strangers(&self) -> Vec<u64> {
        self.strangers.borrow().iter().copied().collect()
    }

    /// Logs that another master answers at the address that `master` has on record.
    pub fn note_misplaced(&self, master: &MasterInfo, found: u64) {
        if self.misplaced.borrow_mut().insert((master.id, found)) {
            let MasterInfo { id, addr, .. } = master;
            tracing::warn!(
                master = id,
                %addr,
                found,
                "another master answers at this master's address: correct its address, or remove it"
            );
        }
    }

    /// Reports to a master whose directory is empty that it is on record as a member.
    pub async fn report_lost(&self, master: &MasterInfo) {
        let id = master.id.to_le_bytes();
        // A lost report is sent again.
        let _ = self.ask(master.addr, OP_LOST, 0, &id, INVITE_WAIT).await;
    }

    /// The process that answers at `addr`: its master's number, and the number drawn at its start.
    pub async fn process(&self, addr: SocketAddr) -> Option<(u64, u64)> {
        let answer = self.ask(addr, OP_PROCESS, 0, &[], INVITE_WAIT).await.ok()?;
        let (id, boot) = answer.split_first_chunk::<8>()?;
        Some((u64::from_le_bytes(*id), u64::from_le_bytes(boot.try_into().ok()?)))
    }

    /// Pings a master: those that it hears and does not reach. None when it gives no answer in time.
    pub async fn ping(&self, own: u64, to: u64, timeout: Duration) -> Option<BTreeSet<u64>> {
        let body = encode_message(0, &own.to_le_bytes());
        let ping = request(OP_PING, Priority::Control, body);
        let answer = self.endpoint.call(self.addr(to)?, ping, timeout).await.ok()?;
        if answer.status != 0 {
            return Some(BTreeSet::new()); // It is of a version that does not look.
        }
        let mut ids = answer.body.chunks_exact(8);
        let mut ids = ids.by_ref().map(|id| u64::from_le_bytes(id.try_into().expect("of 8 bytes")));
        // Another master may be at its address.
        (ids.next() == Some(to)).then(|| ids.collect())
    }

    async fn send_with_others(&self, to: u64, group: u32, rpc: Vec<u8>) -> RaftAnswer {
        let (sender, receiver) = oneshot::channel();
        let first = {
            let mut heartbeats = self.heartbeats.borrow_mut();
            let waiting = heartbeats.entry(to).or_default();
            waiting.push(GroupHeartbeat { group, rpc, answer: sender });
            waiting.len() == 1
        };
        if first && let Some(this) = self.weak.upgrade() {
            self.env.spawn(Class::Control, "send heartbeats", async move {
                // Those of the other groups are about to come.
                this.env.yield_now().await;
                this.env.yield_now().await;
                this.flush_beats(to).await;
            });
        }
        receiver.await.unwrap_or(Err(NetError::Lost))
    }

    async fn flush_beats(&self, to: u64) {
        let mut heartbeats = self.heartbeats.borrow_mut().remove(&to).unwrap_or_default();
        if heartbeats.len() == 1 {
            let GroupHeartbeat { group, rpc, answer } = heartbeats.remove(0);
            // Fails when the caller has gone; so below.
            let _ = answer.send(self.send_raft(to, group, rpc).await);
            return;
        }
        self.env.mark("peers: heartbeats go together");
        let body = encode_heartbeats(
            heartbeats.iter().map(|heartbeat| (heartbeat.group, &heartbeat.rpc[..])),
        );
        let answers = self.call_raft(to, request(OP_HEARTBEATS, Priority::Control, body)).await;
        let answers = answers.map(|body| decode_answers(&body).unwrap_or_default());
        let mut answers = match answers {
            Ok(answers) => {
                answers.into_iter().map(|answer| answer.ok_or(NetError::NoGroup)).collect()
            }
            Err(error) => vec![Err(error); heartbeats.len()],
        };
        answers.resize(heartbeats.len(), Err(NetError::NoGroup));
        for (heartbeat, answer) in heartbeats.into_iter().zip(answers) {
            let _ = heartbeat.answer.send(answer);
        }
    }

    async fn call_raft(&self, to: u64, request: Request) -> RaftAnswer {
        let addr = self.addr(to).ok_or(NetError::Unreachable)?;
        let answer = self.endpoint.call(addr, request, RAFT_TIMEOUT).await;
        self.note_silence(to, addr, answer.as_ref().err());
        match answer {
            Ok(Response { status: 0, body, .. }) => {
                self.strangers.borrow_mut().remove(&to);
                Ok(body)
            }
            Ok(_) => {
                self.strangers.borrow_mut().insert(to);
                Err(NetError::NoGroup)
            }
            Err(CallError::Timeout | CallError::Closed) => Err(NetError::Lost),
            Err(CallError::Unreachable(_) | CallError::Busy | CallError::Refused(_)) => {
                Err(NetError::Unreachable)
            }
        }
    }

    /// Logs when a master falls silent, and when it answers again.
    fn note_silence(&self, master: u64, addr: SocketAddr, error: Option<&CallError>) {
        let mut silent = self.silent.borrow_mut();
        match error {
            // It is there, and overloaded.
            Some(CallError::Busy) => {}
            Some(error) => {
                if silent.insert(master) {
                    tracing::warn!(master, %addr, %error, "a master does not answer");
                }
            }
            None => {
                if silent.remove(&master) {
                    tracing::info!(master, %addr, "a master answers again");
                }
            }
        }
    }

    async fn send_raft(&self, to: u64, group: u32, rpc: Vec<u8>) -> Result<Vec<u8>, NetError> {
        let small = rpc.len() <= SMALL;
        let priority = if small { Priority::Control } else { Priority::Foreground };
        let request = if rpc.len() < BODY_MAX - 4 {
            request(OP_RAFT, priority, encode_message(group, &rpc))
        } else {
            let payload = self.env.pool().copy_of(&rpc).map_err(|_| NetError::Unreachable)?;
            let head = request(OP_RAFT, priority, encode_message(group, &[]));
            Request { payload: Some(payload), ..head }
        };
        self.call_raft(to, request).await
    }
}

impl PeerSend for Peers {
    fn send(
        &self,
        to: u64,
        group: u32,
        rpc: Vec<u8>,
    ) -> LocalFuture<'_, Result<Vec<u8>, NetError>> {
        Box::pin(self.send_raft(to, group, rpc))
    }

    fn send_heartbeat(
        &self,
        to: u64,
        group: u32,
        rpc: Vec<u8>,
    ) -> LocalFuture<'_, Result<Vec<u8>, NetError>> {
        Box::pin(self.send_with_others(to, group, rpc))
    }
}

fn request(op: u16, priority: Priority, body: Vec<u8>) -> Request {
    let (service, trace, token) = (Service::RAFT, TraceId::default(), Token::NONE);
    Request { service, op, priority, flow: 0, trace, token, body, payload: None }
}

/// Form in which an invitation names its master.
pub fn named(id: u64) -> u32 {
    u32::try_from(id).unwrap_or(0)
}

fn encode_message(group: u32, body: &[u8]) -> Vec<u8> {
    let mut to = Writer::new();
    to.u32(group).raw(body);
    to.finish()
}

fn encode_heartbeats<'a>(heartbeats: impl ExactSizeIterator<Item = (u32, &'a [u8])>) -> Vec<u8> {
    let mut to = Writer::new();
    to.count(heartbeats.len());
    for (group, rpc) in heartbeats {
        to.u32(group).bytes(rpc);
    }
    to.finish()
}

/// The groups and messages of [`OP_HEARTBEATS`]; none when the body is damaged.
pub fn decode_heartbeats(body: &[u8]) -> Vec<(u32, Vec<u8>)> {
    let mut from = Reader::new(body);
    let heartbeats = from.list(|from| Ok((from.u32()?, from.bytes()?.to_vec())));
    heartbeats.ok().filter(|_| from.end().is_ok()).unwrap_or_default()
}

/// Has each group answer its heartbeat. One that takes long is left out: it must not delay the
/// others' leaders.
pub async fn answer_heartbeats(
    env: &Env,
    groups: &Groups,
    heartbeats: Vec<(u32, Vec<u8>)>,
) -> Vec<u8> {
    let answers = heartbeats.into_iter().map(|(group, rpc)| async move {
        let answer = groups.deliver(group, rpc);
        env.timeout(HEARTBEATS_WAIT, answer).await.ok().and_then(Result::ok)
    });
    let answers = join_all(answers.collect::<Vec<_>>()).await;
    encode_answers(answers.iter().map(Option::as_deref))
}

fn encode_answers<'a>(answers: impl ExactSizeIterator<Item = Option<&'a [u8]>>) -> Vec<u8> {
    let mut to = Writer::new();
    to.count(answers.len());
    for answer in answers {
        to.bool(answer.is_some()).bytes(answer.unwrap_or_default());
    }
    to.finish()
}

fn decode_answers(body: &[u8]) -> Result<Vec<Option<Vec<u8>>>, DecodeError> {
    let mut from = Reader::new(body);
    let answers = from.list(|from| {
        let (there, bytes) = (from.bool()?, from.bytes()?);
        Ok(there.then(|| bytes.to_vec()))
    })?;
    from.end()?;
    Ok(answers)
}

/// Group number and content of a message between masters.
pub fn decode_message(request: &Request) -> Result<(u32, Vec<u8>), DecodeError> {
    let mut from = Reader::new(&request.body);
    let group = from.u32()?;
    let content = match &request.payload {
        Some(payload) => payload.to_vec(),
        None => from.rest().to_vec(),
    };
    Ok((group, content))
}

/// Fuzz target: any body is a message between masters, or an error; so is what is in it:
/// heartbeats and their answers, invitations, a master's state.
pub fn fuzz_peer_message(bytes: &[u8]) {
    let request = request(OP_ASK, Priority::Foreground, bytes.to_vec());
    if let Ok((group, content)) = decode_message(&request) {
        assert_eq!(encode_message(group, &content), bytes);
    }
    let heartbeats = decode_heartbeats(bytes);
    if !heartbeats.is_empty() {
        assert_eq!(
            encode_heartbeats(heartbeats.iter().map(|(group, rpc)| (*group, &rpc[..]))),
            bytes
        );
    }
    if let Ok(answers) = decode_answers(bytes) {
        let again = encode_answers(answers.iter().map(Option::as_deref));
        assert_eq!(decode_answers(&again), Ok(answers));
    }
    if let Ok(invitation) = Invitation::decode(bytes) {
        assert_eq!(invitation.encode(), bytes);
    }
    if let Ok(status) = MemberStatus::decode(bytes) {
        assert_eq!(status.encode(), bytes);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig {
            rng_seed: proptest::test_runner::RngSeed::Fixed(1),
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn messages_round_trip(
            heartbeats in prop::collection::vec((any::<u32>(), any::<Vec<u8>>()), 0..8),
            answers in prop::collection::vec(any::<Option<Vec<u8>>>(), 0..8),
            (id, disk, one, other) in any::<(u64, u128, bool, bool)>(),
        ) {
            let bytes = encode_heartbeats(heartbeats.iter().map(|(group, rpc)| (*group, &rpc[..])));
            prop_assert_eq!(decode_heartbeats(&bytes), heartbeats);
            let bytes = encode_answers(answers.iter().map(Option::as_deref));
            prop_assert_eq!(decode_answers(&bytes), Ok(answers));
            let invitation = Invitation { inviter: DiskId::new(disk), joins: one };
            prop_assert_eq!(Invitation::decode(&invitation.encode()), Ok(invitation));
            let status = MemberStatus { id, member: DiskId::new(disk), leads: one, voter: other };
            prop_assert_eq!(MemberStatus::decode(&status.encode()), Ok(status));
        }

        #[test]
        fn garbage_is_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            fuzz_peer_message(&bytes);
        }
    }
}
