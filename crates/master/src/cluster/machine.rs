//! The replicated state of the cluster group.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use base::{ClusterId, FormationId, ServerId};
use wire::control::{LockChange, MasterInfo, OpId, Registration};

use super::outcome::{Answer, Outcome, Refusal, decode_outcome, encode_outcome};
use super::snapshot::decode_command;
use super::standing::{Order, Orders, Standing};
use crate::first::FirstNumbers;
use crate::limits::{
    LEASE_MS, LOCK_NAME_MAX, LOCK_OWNER_MAX, LOCKS_MAX, MASTERS_MAX, SERVER_NAME_MAX, SERVERS_MAX,
};
use master_consensus::replies::{ReplyTable, Seen};
use master_consensus::{BadCommand, BadSnapshot, Rows, StateMachine};

/// Facts of a cluster's formation, kept for ever.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Formed {
    /// Its identity.
    pub cluster: ClusterId,
    /// Number of namespace partitions.
    pub namespace_partitions: u16,
    /// Number of stream partitions.
    pub stream_partitions: u16,
    /// Formation of the cluster: stores of another are not of this cluster. Zero for clusters that
    /// were formed before there was one.
    pub formation: FormationId,
}

impl Formed {
    /// The same cluster, whichever of its founders drew the formation.
    fn is_as(&self, other: &Formed) -> bool {
        Formed { formation: other.formation, ..*self } == *other
    }
}

/// A registered chunkserver.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Server {
    /// Its name.
    pub name: String,
    /// Its address, as of its last registration.
    pub addr: SocketAddr,
    /// Its failure domain.
    pub domain: String,
}

/// A lock that was taken and not given up. It is held until its lease has run out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lock {
    /// The process that took it.
    pub owner: String,
    /// Its fencing token.
    pub fencing: u64,
    /// The group's clock when the lease runs out. The clock starts late on a new leader and never
    /// runs fast, so an old lease is honoured for its term at least.
    pub expires_ms: u64,
}

/// Command of a log entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// The cluster comes into being. A repeat with the same facts does nothing.
    Form {
        /// Its facts.
        formed: Formed,
        /// Its first masters.
        masters: Vec<MasterInfo>,
    },
    /// A chunkserver joins or comes back.
    Register(Registration),
    /// A lock changes.
    Lock {
        /// Identifies it across retries.
        op: OpId,
        /// The change.
        change: LockChange,
    },
    /// A master joins, or has another address.
    AddMaster(MasterInfo),
    /// A master leaves.
    RemoveMaster(u64),
    /// An operator's order.
    Order(Order),
}

/// The state of the cluster group.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ClusterMachine {
    pub(super) clock_ms: u64,
    pub(super) formed: Option<Formed>,
    pub(super) masters: BTreeMap<u64, MasterInfo>,
    /// Numbers of masters that have left: never given to another.
    pub(super) left: BTreeSet<u64>,
    pub(super) servers: BTreeMap<ServerId, Server>,
    pub(super) by_name: BTreeMap<String, ServerId>,
    pub(super) locks: BTreeMap<String, Lock>,
    /// The last fencing token: tokens of all locks grow together.
    pub(super) fencing: u64,
    pub(super) replies: ReplyTable,
    pub(super) orders: Orders,
    /// The number before the first chunkserver's. Snapshots do not have it: only a cluster that had no
    /// chunkserver yet goes by it, and each member has it from its start.
    server_floor: u32,
}

impl ClusterMachine {
    /// A cluster that is not formed yet.
    pub fn new() -> ClusterMachine {
        ClusterMachine::default()
    }

    /// The same with other fencing tokens and numbers of chunkservers than a new cluster has.
    pub fn starting_at(self, first: FirstNumbers) -> ClusterMachine {
        ClusterMachine { fencing: first.fencing, server_floor: first.server.get(), ..self }
    }

    /// Facts of the cluster's formation.
    pub fn formed(&self) -> Option<Formed> {
        self.formed
    }

    /// The masters, by ID.
    pub fn masters(&self) -> impl Iterator<Item = &MasterInfo> {
        self.masters.values()
    }

    /// Whether a master with this ID has left.
    pub fn has_left(&self, master: u64) -> bool {
        self.left.contains(&master)
    }

    /// Registered chunkservers.
    pub fn servers(&self) -> impl Iterator<Item = (ServerId, &Server)> {
        self.servers.iter().map(|(&id, server)| (id, server))
    }

    /// What operators have ordered.
    pub fn orders(&self) -> &Orders {
        &self.orders
    }

    /// Chunkservers that belong to the cluster: those that were not decommissioned.
    pub fn members(&self) -> impl Iterator<Item = (ServerId, &Server)> {
        self.servers().filter(|(id, _)| !self.standing(*id).decommissioned)
    }

    /// What is ordered of a server.
    pub fn standing(&self, server: ServerId) -> Standing {
        self.orders.of(server)
    }

    /// A registered chunkserver.
    pub fn server(&self, server: ServerId) -> Option<&Server> {
        self.servers.get(&server)
    }

    /// A registered chunkserver, by its name.
    pub fn server_named(&self, name: &str) -> Option<(ServerId, &Server)> {
        let id = *self.by_name.get(name)?;
        Some((id, self.servers.get(&id)?))
    }

    /// A lock whose lease has not run out at `clock_ms`.
    pub fn holder(&self, name: &str, clock_ms: u64) -> Option<&Lock> {
        let now = clock_ms.max(self.clock_ms);
        self.locks.get(name).filter(|lock| now < lock.expires_ms)
    }

    /// Milliseconds of the group's clock at the last command.
    pub fn clock_ms(&self) -> u64 {
        self.clock_ms
    }

    fn execute(&mut self, command: Command) -> Outcome {
        match command {
            Command::Form { formed, masters } => self.form(formed, masters),
            Command::Register(registration) => self.register(registration),
            Command::Lock { op, change } => match self.replies.look(&op, self.clock_ms) {
                Seen::New => {
                    let outcome = self.lock(change);
                    if !matches!(outcome, Err(refusal) if refusal.is_transient()) {
                        self.replies.keep(&op, &encode_outcome(&outcome));
                    }
                    outcome
                }
                Seen::Answered(bytes) => decode_outcome(&bytes).unwrap_or(Err(Refusal::BadCommand)),
                Seen::Late => Err(Refusal::Late),
                Seen::Busy => Err(Refusal::Busy),
            },
            Command::AddMaster(master) => self.add_master(master),
            Command::RemoveMaster(id) => {
                if self.masters.len() < 2 || self.masters.remove(&id).is_none() {
                    return Err(Refusal::NoMaster);
                }
                self.left.insert(id);
                Ok(Answer::Done)
            }
            Command::Order(order) => {
                let servers = &self.servers;
                self.orders.take_order(order, |server| servers.contains_key(&server))
            }
        }
    }

    fn form(&mut self, formed: Formed, masters: Vec<MasterInfo>) -> Outcome {
        match self.formed {
            Some(known) if known.is_as(&formed) => return Ok(Answer::Done),
            Some(_) => return Err(Refusal::Formed),
            None => {}
        }
        self.formed = Some(formed);
        let masters = masters.into_iter().take(MASTERS_MAX);
        self.masters = masters.map(|master| (master.id, master)).collect();
        Ok(Answer::Done)
    }

    fn register(&mut self, registration: Registration) -> Outcome {
        let Registration { name, addr, domain } = registration;
        if !is_text(&name, SERVER_NAME_MAX) || !is_text(&domain, SERVER_NAME_MAX) {
            return Err(Refusal::BadName);
        }
        let id = match self.by_name.get(&name) {
            Some(&id) if self.orders.of(id).decommissioned => return Err(Refusal::Decommissioned),
            Some(&id) => id,
            None if self.servers.len() >= SERVERS_MAX => return Err(Refusal::Full),
            None => {
                let last = self.servers.keys().next_back().map_or(self.server_floor, |it| it.get());
                ServerId::new(last.checked_add(1).ok_or(Refusal::Full)?)
            }
        };
        self.by_name.insert(name.clone(), id);
        self.servers.insert(id, Server { name, addr, domain });
        Ok(Answer::Registered(id))
    }

    fn add_master(&mut self, master: MasterInfo) -> Outcome {
        if !is_text(&master.name, SERVER_NAME_MAX) || master.id == 0 {
            return Err(Refusal::BadName);
        }
        if self.left.contains(&master.id) {
            return Err(Refusal::MasterLeft);
        }
        let clash = |other: &MasterInfo| {
            other.id != master.id && (other.name == master.name || other.addr == master.addr)
        };
        let same_id = self.masters.get(&master.id);
        if self.masters.values().any(clash) || same_id.is_some_and(|it| it.name != master.name) {
            return Err(Refusal::MasterExists);
        }
        if same_id.is_none() && self.masters.len() >= MASTERS_MAX {
            return Err(Refusal::Full);
        }
        self.masters.insert(master.id, master);
        Ok(Answer::Done)
    }

    fn lock(&mut self, change: LockChange) -> Outcome {
        let now = self.clock_ms;
        match change {
            LockChange::Acquire { name, owner, ttl_ms } => {
                if !is_text(&name, LOCK_NAME_MAX) || !is_text(&owner, LOCK_OWNER_MAX) {
                    return Err(Refusal::BadName);
                }
                let expires_ms = lease(now, ttl_ms)?;
                if self.holder(&name, now).is_some() {
                    return Err(Refusal::Held);
                }
                if self.locks.len() >= LOCKS_MAX && !self.locks.contains_key(&name) {
                    self.locks.retain(|_, lock| now < lock.expires_ms);
                }
                if self.locks.len() >= LOCKS_MAX || self.fencing == u64::MAX {
                    return Err(Refusal::Full);
                }
                self.fencing += 1;
                let fencing = self.fencing;
                self.locks.insert(name, Lock { owner, fencing, expires_ms });
                Ok(Answer::Lock(fencing))
            }
            LockChange::Renew { name, fencing, ttl_ms } => {
                let expires_ms = lease(now, ttl_ms)?;
                let lock = self.held(&name, fencing)?;
                lock.expires_ms = lock.expires_ms.max(expires_ms);
                Ok(Answer::Lock(fencing))
            }
            LockChange::Release { name, fencing } => {
                self.held(&name, fencing)?;
                self.locks.remove(&name);
                Ok(Answer::Done)
            }
        }
    }

    fn held(&mut self, name: &str, fencing: u64) -> Result<&mut Lock, Refusal> {
        let now = self.clock_ms;
        let lock = self.locks.get_mut(name);
        let lock = lock.filter(|lock| lock.fencing == fencing && now < lock.expires_ms);
        lock.ok_or(Refusal::Fenced)
    }
}

fn is_text(text: &str, max: usize) -> bool {
    (1..=max).contains(&text.len())
}

fn lease(now: u64, ttl_ms: u64) -> Result<u64, Refusal> {
    if ttl_ms < LEASE_MS.0 || ttl_ms > LEASE_MS.1 {
        return Err(Refusal::BadLease);
    }
    Ok(now.saturating_add(ttl_ms))
}

impl StateMachine for ClusterMachine {
    fn apply(&mut self, _index: u64, command: &[u8]) -> Result<Vec<u8>, BadCommand> {
        let (clock_ms, command) = decode_command(command).map_err(|_| BadCommand)?;
        self.clock_ms = self.clock_ms.max(clock_ms);
        Ok(encode_outcome(&self.execute(command)))
    }

    fn check_command(command: &[u8]) -> Result<(), BadCommand> {
        decode_command(command).map(drop).map_err(|_| BadCommand)
    }

    /// One row: servers, masters and locks are few.
    fn take_changes(&mut self, rows: &mut Rows) -> bool {
        rows.put(&[1], Some(&self.encode()));
        false
    }

    fn blank(&self) -> ClusterMachine {
        ClusterMachine { server_floor: self.server_floor, ..ClusterMachine::new() }
    }

    fn load(&mut self, key: &[u8], value: &[u8]) -> Result<(), BadSnapshot> {
        if key != [1] {
            return Err(BadSnapshot);
        }
        let state = ClusterMachine::decode(value).map_err(|_| BadSnapshot)?;
        *self = ClusterMachine { server_floor: self.server_floor, ..state };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::ClientId;

    fn act(state: &mut ClusterMachine, clock_ms: u64, seq: u64, change: LockChange) -> Outcome {
        let op = OpId { client: ClientId::new(1), seq, acked_below: 0 };
        let command = super::super::encode_command(clock_ms, &Command::Lock { op, change });
        decode_outcome(&state.apply(0, &command).unwrap()).unwrap()
    }

    fn acquire(owner: &str) -> LockChange {
        LockChange::Acquire { name: "l".into(), owner: owner.into(), ttl_ms: 1000 }
    }

    #[test]
    fn a_lease_is_exclusive_and_its_token_grows() {
        let state = &mut ClusterMachine::new();
        let renew = |fencing| LockChange::Renew { name: "l".into(), fencing, ttl_ms: 1000 };
        assert_eq!(act(state, 10, 1, acquire("a")), Ok(Answer::Lock(1)));
        assert_eq!(act(state, 500, 2, acquire("b")), Err(Refusal::Held));
        assert_eq!(act(state, 900, 3, renew(1)), Ok(Answer::Lock(1)));
        // A new leader's clock is behind: the lease lasts.
        assert_eq!(act(state, 100, 4, acquire("b")), Err(Refusal::Held));
        assert_eq!(act(state, 1899, 5, acquire("b")), Err(Refusal::Held));
        assert_eq!(act(state, 1900, 6, renew(1)), Err(Refusal::Fenced));
        assert_eq!(act(state, 1900, 7, acquire("b")), Ok(Answer::Lock(2)));
        assert_eq!(act(state, 1901, 1, acquire("a")), Ok(Answer::Lock(1)), "a retry");
        let release = |fencing| LockChange::Release { name: "l".into(), fencing };
        assert_eq!(act(state, 1901, 8, release(1)), Err(Refusal::Fenced));
        assert_eq!(act(state, 1901, 9, release(2)), Ok(Answer::Done));
        assert_eq!(act(state, 1902, 10, acquire("a")), Ok(Answer::Lock(3)));
        assert_eq!(ClusterMachine::decode(&state.encode()).as_ref(), Ok(&*state));
    }

    #[test]
    fn numbers_of_masters_that_have_left_are_kept_and_given_to_none() {
        let master = |id: u64| {
            let (name, port) = (format!("m{id}"), u16::try_from(id).expect("small"));
            MasterInfo { id, name, addr: SocketAddr::from(([127, 0, 0, 1], port)) }
        };
        let mut state = ClusterMachine::new();
        assert_eq!(state.execute(Command::AddMaster(master(1))), Ok(Answer::Done));
        assert_eq!(state.execute(Command::AddMaster(master(9))), Ok(Answer::Done));
        assert_eq!(state.execute(Command::RemoveMaster(9)), Ok(Answer::Done));
        assert_eq!(state.execute(Command::AddMaster(master(9))), Err(Refusal::MasterLeft));
        assert_eq!(state.execute(Command::AddMaster(master(5))), Ok(Answer::Done));
        let mut state = ClusterMachine::decode(&state.encode()).expect("a snapshot");
        assert_eq!(state.execute(Command::AddMaster(master(9))), Err(Refusal::MasterLeft));
    }

    #[test]
    fn a_name_is_a_server() {
        let state = &mut ClusterMachine::new();
        let mut register = |name: &str, port: u16| {
            let addr = SocketAddr::from(([127, 0, 0, 1], port));
            let registration = Registration { name: name.into(), addr, domain: "d".into() };
            let command = super::super::encode_command(0, &Command::Register(registration));
            decode_outcome(&state.apply(0, &command).unwrap()).unwrap()
        };
        assert_eq!(register("cs1", 1), Ok(Answer::Registered(ServerId::new(1))));
        assert_eq!(register("cs2", 2), Ok(Answer::Registered(ServerId::new(2))));
        assert_eq!(register("cs1", 3), Ok(Answer::Registered(ServerId::new(1))));
        assert_eq!(register("", 3), Err(Refusal::BadName));
        assert_eq!(state.server(ServerId::new(1)).map(|it| it.addr.port()), Some(3));
        assert_eq!(ClusterMachine::decode(&state.encode()).as_ref(), Ok(&*state));
    }
}
