//! What operators have ordered of chunkservers (`protocols-tail.md` 10.15): part of the replicated
//! state. An order says what is to be, not what is: whether a server has been emptied, stream
//! partitions say.

use std::collections::BTreeMap;

use base::ServerId;
use master_consensus::bytes::{DecodeError, Reader, Writer};

use super::outcome::{Answer, Outcome, Refusal};

/// What is ordered of a chunkserver.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Standing {
    /// The number of the order by which it drains.
    pub drains: Option<u64>,
    /// Its maintenance lasts until then, seconds since 1970.
    pub maintained_until_s: u64,
    /// It has left for ever.
    pub decommissioned: bool,
}

/// An order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// It is emptied.
    Drain(ServerId),
    /// It is as any other again.
    CancelDrain(ServerId),
    /// It is under maintenance until then, seconds since 1970; 0 ends it.
    Maintain(ServerId, u64),
    /// It leaves. The number of the order by which it drains is that of when it was looked at: a drain
    /// that was cancelled since then, and begun again, is another one.
    Decommission(ServerId, u64),
    /// Chunks stay where they are, or are moved for balance again.
    PauseBalance(bool),
}

/// Orders that are in force.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Orders {
    /// Number of the last order.
    pub count: u64,
    /// Chunks stay where they are.
    pub balance_paused: bool,
    /// By server, where anything is ordered of it.
    standings: BTreeMap<ServerId, Standing>,
}

impl Orders {
    /// What is ordered of a server.
    pub fn of(&self, server: ServerId) -> Standing {
        self.standings.get(&server).copied().unwrap_or_default()
    }

    /// Servers that drain.
    pub fn draining(&self) -> impl Iterator<Item = ServerId> {
        let drains = self.standings.iter().filter(|(_, standing)| standing.drains.is_some());
        drains.map(|(&server, _)| server)
    }

    /// Servers that have been decommissioned.
    pub fn left(&self) -> impl Iterator<Item = ServerId> {
        let left = self.standings.iter().filter(|(_, standing)| standing.decommissioned);
        left.map(|(&server, _)| server)
    }

    /// True when there was never an order: snapshots are as before there were any.
    pub(super) fn is_new(&self) -> bool {
        *self == Orders::default()
    }

    pub(super) fn put(&self, to: &mut Writer) {
        to.u64(self.count).bool(self.balance_paused).count(self.standings.len());
        for (server, standing) in &self.standings {
            to.u32(server.get()).u64(standing.drains.unwrap_or(0));
            to.u64(standing.maintained_until_s).bool(standing.decommissioned);
        }
    }

    pub(super) fn take(from: &mut Reader<'_>) -> Result<Orders, DecodeError> {
        let (count, balance_paused) = (from.u64()?, from.bool()?);
        let standings = from.list(|from| {
            let server = ServerId::new(from.u32()?);
            let drains = Some(from.u64()?).filter(|&number| number > 0);
            let (maintained_until_s, decommissioned) = (from.u64()?, from.bool()?);
            Ok((server, Standing { drains, maintained_until_s, decommissioned }))
        })?;
        let standings = standings.into_iter().collect();
        Ok(Orders { count, balance_paused, standings })
    }
}

impl Order {
    pub(super) fn put(&self, to: &mut Writer) {
        match *self {
            Order::Drain(server) => to.u8(1).u32(server.get()),
            Order::CancelDrain(server) => to.u8(2).u32(server.get()),
            Order::Maintain(server, until_s) => to.u8(3).u32(server.get()).u64(until_s),
            Order::Decommission(server, drains) => to.u8(4).u32(server.get()).u64(drains),
            Order::PauseBalance(paused) => to.u8(5).bool(paused),
        };
    }

    pub(super) fn take(from: &mut Reader<'_>) -> Result<Order, DecodeError> {
        let server = |from: &mut Reader<'_>| from.u32().map(ServerId::new);
        Ok(match from.u8()? {
            1 => Order::Drain(server(from)?),
            2 => Order::CancelDrain(server(from)?),
            3 => Order::Maintain(server(from)?, from.u64()?),
            4 => Order::Decommission(server(from)?, from.u64()?),
            5 => Order::PauseBalance(from.bool()?),
            _ => return Err(DecodeError),
        })
    }
}

impl Orders {
    /// Takes an order; `known` says whether there is a server. One that changes nothing is done, and
    /// counts none.
    pub(super) fn take_order(
        &mut self,
        order: Order,
        known: impl FnOnce(ServerId) -> bool,
    ) -> Outcome {
        let server = match order {
            Order::Drain(server)
            | Order::CancelDrain(server)
            | Order::Maintain(server, _)
            | Order::Decommission(server, _) => server,
            Order::PauseBalance(paused) => {
                self.count += u64::from(self.balance_paused != paused);
                self.balance_paused = paused;
                return Ok(Answer::Done);
            }
        };
        if !known(server) {
            return Err(Refusal::NoServer);
        }
        let number = self.count + 1;
        let before = self.of(server);
        let mut now = before;
        match order {
            Order::Decommission(..) if before.decommissioned => return Ok(Answer::Done),
            _ if before.decommissioned => return Err(Refusal::Decommissioned),
            Order::Drain(_) => now.drains = before.drains.or(Some(number)),
            Order::CancelDrain(_) => now.drains = None,
            Order::Maintain(_, until_s) => now.maintained_until_s = until_s,
            Order::Decommission(_, drains) if before.drains == Some(drains) => {
                now = Standing { decommissioned: true, ..Standing::default() };
            }
            Order::Decommission(..) => return Err(Refusal::NotDraining),
            Order::PauseBalance(_) => unreachable!("it is of no server"),
        }
        if now != before {
            self.count = number;
            self.standings.insert(server, now);
        }
        Ok(Answer::Done)
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use master_consensus::StateMachine;
    use wire::control::Registration;

    use super::*;
    use crate::cluster::{ClusterMachine, Command, decode_outcome, encode_command};

    fn run(state: &mut ClusterMachine, command: &Command) -> Outcome {
        decode_outcome(&state.apply(0, &encode_command(0, command)).unwrap()).unwrap()
    }

    fn register(state: &mut ClusterMachine, name: &str) -> Outcome {
        let addr = SocketAddr::from(([127, 0, 0, 1], 7));
        let registration = Registration { name: name.into(), addr, domain: "d".into() };
        run(state, &Command::Register(registration))
    }

    #[test]
    fn server_is_decommissioned_by_the_drain_that_was_looked_at_alone() {
        let (state, one) = (&mut ClusterMachine::new(), ServerId::new(1));
        register(state, "cs1").unwrap();
        let mut give = |order| run(state, &Command::Order(order));
        assert_eq!(give(Order::Drain(ServerId::new(2))), Err(Refusal::NoServer));
        assert_eq!(give(Order::Decommission(one, 0)), Err(Refusal::NotDraining));
        assert_eq!(give(Order::Drain(one)), Ok(Answer::Done));
        assert_eq!(give(Order::Drain(one)), Ok(Answer::Done), "a repeat");
        assert_eq!(give(Order::CancelDrain(one)), Ok(Answer::Done));
        assert_eq!(give(Order::Drain(one)), Ok(Answer::Done));
        assert_eq!(give(Order::Decommission(one, 1)), Err(Refusal::NotDraining));
        assert_eq!(give(Order::Maintain(one, 77)), Ok(Answer::Done));
        assert_eq!(state.standing(one).drains, Some(3));
        let mut state = ClusterMachine::decode(&state.encode()).expect("a snapshot");
        assert_eq!(state.standing(one).maintained_until_s, 77);
        let mut give = |order| run(&mut state, &Command::Order(order));
        assert_eq!(give(Order::Decommission(one, 3)), Ok(Answer::Done));
        assert_eq!(give(Order::Decommission(one, 3)), Ok(Answer::Done), "a repeat");
        assert_eq!(give(Order::CancelDrain(one)), Err(Refusal::Decommissioned));
        assert_eq!(give(Order::PauseBalance(true)), Ok(Answer::Done));
        assert_eq!(register(&mut state, "cs1"), Err(Refusal::Decommissioned));
        assert_eq!(register(&mut state, "cs2"), Ok(Answer::Registered(ServerId::new(2))));
        assert_eq!(ClusterMachine::decode(&state.encode()).as_ref(), Ok(&state));
    }
}
