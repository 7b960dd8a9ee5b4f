//! Commands and state of the cluster group as bytes, and the fuzz targets.

use base::{ClusterId, FormationId, ServerId};
use wire::control::{LockChange, MasterInfo, Registration};

use super::machine::{ClusterMachine, Command, Formed, Lock, Server};
use super::outcome::{decode_outcome, encode_outcome};
use super::standing::{Order, Orders};
use master_consensus::StateMachine;
use master_consensus::bytes::{
    DecodeError, Reader, Writer, begin_snapshot, end_snapshot, open_snapshot, seal_snapshot,
};
use master_consensus::replies::ReplyTable;

const MAGIC: [u8; 4] = *b"CRcl";
const SNAPSHOT_VERSION: u8 = 4;
/// Before there were orders of operators, and while there is none.
const SNAPSHOT_VERSION_3: u8 = 3;
/// Before numbers of masters that have left were kept.
const SNAPSHOT_VERSION_2: u8 = 2;
/// Before clusters had formations.
const SNAPSHOT_VERSION_1: u8 = 1;
const COMMAND_VERSION: u8 = 1;

/// The formation comes behind it where there is one.
fn put_formed(to: &mut Writer, formed: &Formed) {
    to.u128(formed.cluster.get());
    to.u16(formed.namespace_partitions).u16(formed.stream_partitions);
}

fn take_formed(from: &mut Reader<'_>) -> Result<Formed, DecodeError> {
    Ok(Formed {
        cluster: ClusterId::new(from.u128()?),
        namespace_partitions: from.u16()?,
        stream_partitions: from.u16()?,
        formation: FormationId::default(),
    })
}

fn take_new_formed(from: &mut Reader<'_>) -> Result<Formed, DecodeError> {
    let formed = take_formed(from)?;
    Ok(Formed { formation: FormationId::new(from.u128()?), ..formed })
}

fn put_master(to: &mut Writer, master: &MasterInfo) {
    to.u64(master.id).str(&master.name).addr(master.addr);
}

fn take_master(from: &mut Reader<'_>) -> Result<MasterInfo, DecodeError> {
    Ok(MasterInfo { id: from.u64()?, name: from.str()?.to_owned(), addr: from.addr()? })
}

/// A command at `clock_ms` of the group's clock, as bytes for the log.
pub fn encode_command(clock_ms: u64, command: &Command) -> Vec<u8> {
    let mut writer = Writer::new();
    let to = writer.u8(COMMAND_VERSION).u64(clock_ms);
    match command {
        Command::Form { formed, masters } => {
            if formed.formation == FormationId::default() {
                put_formed(to.u8(1), formed);
            } else {
                put_formed(to.u8(6), formed);
                to.u128(formed.formation.get());
            }
            to.count(masters.len());
            masters.iter().for_each(|master| put_master(to, master));
        }
        Command::Register(Registration { name, addr, domain }) => {
            to.u8(2).str(name).addr(*addr).str(domain);
        }
        Command::Lock { op, change } => {
            to.u8(3).op(op);
            match change {
                LockChange::Acquire { name, owner, ttl_ms } => {
                    to.u8(1).str(name).str(owner).u64(*ttl_ms)
                }
                LockChange::Renew { name, fencing, ttl_ms } => {
                    to.u8(2).str(name).u64(*fencing).u64(*ttl_ms)
                }
                LockChange::Release { name, fencing } => to.u8(3).str(name).u64(*fencing),
            };
        }
        Command::AddMaster(master) => put_master(to.u8(4), master),
        Command::RemoveMaster(id) => {
            to.u8(5).u64(*id);
        }
        Command::Order(order) => order.put(to.u8(7)),
    }
    writer.finish()
}

/// Clock and command of bytes from the log.
pub fn decode_command(bytes: &[u8]) -> Result<(u64, Command), DecodeError> {
    let mut reader = Reader::new(bytes);
    let from = &mut reader;
    if from.u8()? != COMMAND_VERSION {
        return Err(DecodeError);
    }
    let clock_ms = from.u64()?;
    let command = match from.u8()? {
        1 => Command::Form { formed: take_formed(from)?, masters: from.list(take_master)? },
        2 => Command::Register(Registration {
            name: from.str()?.to_owned(),
            addr: from.addr()?,
            domain: from.str()?.to_owned(),
        }),
        3 => {
            let op = from.op()?;
            let tag = from.u8()?;
            let name = from.str()?.to_owned();
            let change = match tag {
                1 => {
                    let owner = from.str()?.to_owned();
                    LockChange::Acquire { name, owner, ttl_ms: from.u64()? }
                }
                2 => LockChange::Renew { name, fencing: from.u64()?, ttl_ms: from.u64()? },
                3 => LockChange::Release { name, fencing: from.u64()? },
                _ => return Err(DecodeError),
            };
            Command::Lock { op, change }
        }
        4 => Command::AddMaster(take_master(from)?),
        5 => Command::RemoveMaster(from.u64()?),
        7 => Command::Order(Order::take(from)?),
        6 => Command::Form { formed: take_new_formed(from)?, masters: from.list(take_master)? },
        _ => return Err(DecodeError),
    };
    reader.end()?;
    Ok((clock_ms, command))
}

impl ClusterMachine {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut writer = begin_snapshot(4096);
        let to = writer.u64(self.clock_ms).bool(self.formed.is_some());
        if let Some(formed) = &self.formed {
            put_formed(to, formed);
            to.u128(formed.formation.get());
        }
        to.count(self.masters.len());
        self.masters.values().for_each(|master| put_master(to, master));
        to.count(self.left.len());
        for &id in &self.left {
            to.u64(id);
        }
        to.count(self.servers.len());
        for (id, server) in &self.servers {
            to.u32(id.get()).str(&server.name).addr(server.addr).str(&server.domain);
        }
        to.count(self.locks.len());
        for (name, lock) in &self.locks {
            to.str(name).str(&lock.owner).u64(lock.fencing).u64(lock.expires_ms);
        }
        self.replies.encode(to.u64(self.fencing));
        if self.orders.is_new() {
            return end_snapshot(MAGIC, SNAPSHOT_VERSION_3, writer);
        }
        self.orders.put(&mut writer);
        end_snapshot(MAGIC, SNAPSHOT_VERSION, writer)
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<ClusterMachine, DecodeError> {
        let (version, body) = open_snapshot(MAGIC, bytes)?;
        let take_formed = match version {
            SNAPSHOT_VERSION | SNAPSHOT_VERSION_3 | SNAPSHOT_VERSION_2 => take_new_formed,
            SNAPSHOT_VERSION_1 => take_formed,
            _ => return Err(DecodeError),
        };
        let mut reader = Reader::new(body);
        let from = &mut reader;
        let mut state = ClusterMachine::new();
        state.clock_ms = from.u64()?;
        state.formed = if from.bool()? { Some(take_formed(from)?) } else { None };
        let masters = from.list(take_master)?;
        state.masters = masters.into_iter().map(|master| (master.id, master)).collect();
        if version >= SNAPSHOT_VERSION_3 {
            state.left = from.list(Reader::u64)?.into_iter().collect();
        }
        let servers = from.list(|from| {
            let id = ServerId::new(from.u32()?);
            let (name, addr) = (from.str()?.to_owned(), from.addr()?);
            Ok((id, Server { name, addr, domain: from.str()?.to_owned() }))
        })?;
        for (id, server) in servers {
            state.by_name.insert(server.name.clone(), id);
            state.servers.insert(id, server);
        }
        let locks = from.list(|from| {
            let (name, owner) = (from.str()?.to_owned(), from.str()?.to_owned());
            Ok((name, Lock { owner, fencing: from.u64()?, expires_ms: from.u64()? }))
        })?;
        state.locks = locks.into_iter().collect();
        state.fencing = from.u64()?;
        state.replies = ReplyTable::decode(from)?;
        if version >= SNAPSHOT_VERSION {
            state.orders = Orders::take(from)?;
        }
        reader.end()?;
        Ok(state)
    }
}

/// Fuzz target: any bytes are a command or an error, and apply without a panic.
pub fn fuzz_command(bytes: &[u8]) {
    if let Ok(outcome) = decode_outcome(bytes) {
        assert_eq!(encode_outcome(&outcome), bytes);
    }
    let mut state = ClusterMachine::new();
    for index in 1..3 {
        let before = state.clone();
        match state.apply(index, bytes) {
            Ok(answer) => assert!(decode_outcome(&answer).is_ok()),
            Err(_) => assert_eq!(state, before, "a command that does not decode"),
        }
    }
    assert_eq!(ClusterMachine::decode(&state.encode()), Ok(state));
}

/// Fuzz target: any bytes are a snapshot or an error, also behind a valid checksum.
pub fn fuzz_snapshot(bytes: &[u8]) {
    let _ = ClusterMachine::decode(bytes);
    for version in [SNAPSHOT_VERSION, SNAPSHOT_VERSION_3] {
        let _ = ClusterMachine::decode(&seal_snapshot(MAGIC, version, bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshot_of_version_2_opens() {
        let mut state = ClusterMachine::new();
        state.fencing = 7;
        let bytes = state.encode();
        let (version, body) = open_snapshot(MAGIC, &bytes).expect("a snapshot");
        assert_eq!(version, SNAPSHOT_VERSION_3, "there was no order");
        // Clock, no facts, no masters; then the number of masters that have left.
        let at = 8 + 1 + 4;
        let body = [&body[..at], &body[at + 4..]].concat();
        let old = seal_snapshot(MAGIC, SNAPSHOT_VERSION_2, &body);
        assert_eq!(ClusterMachine::decode(&old), Ok(state));
        assert!(ClusterMachine::decode(&seal_snapshot(MAGIC, SNAPSHOT_VERSION_3, &body)).is_err());
    }
}
