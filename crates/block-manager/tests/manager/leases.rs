//! The manager's leases ([`testing::leases`]).

use base::GIB;
use block_manager::{Config, Machine, ManagerState};
use block_proto::{BlockHeartbeat, BlockReply, BlockRequest, BlockServerId};
use block_server::ownership::{SegmentSetup, grant_of};
use block_volume::ids::SegmentId;
use runtime::{Instant, Rng};
use tenancy::lease::Grant;
use testing::leases::{Heartbeat, LEASE, SERVERS, Service, Term, check, check_mistakes};

use super::spec;

/// What a manager has stored: its servers and a volume, once one has led.
#[derive(Default)]
struct Stored {
    state: ManagerState,
    servers: Vec<BlockServerId>,
}

impl Service for Stored {
    type Unit = SegmentId;
    type Setup = SegmentSetup;
    type Leader = Machine;

    fn lead(&mut self, term: Term) -> Machine {
        let config = Config { lease: LEASE, ..Config::new("bm", term.number) };
        let mut machine = Machine::new(config, self.state.clone(), term.now);
        machine.lead_until(term.until);
        if self.servers.is_empty() {
            for server in 0..SERVERS {
                let addr = "127.0.0.1:7000".parse().expect("an address");
                let request = BlockRequest::Register { name: format!("bs{server}"), addr };
                let reply = machine.handle(term.now, request);
                let Ok(BlockReply::Registered { server, .. }) = reply else { panic!("{reply:?}") };
                self.servers.push(server);
            }
            let request = BlockRequest::Create { nonce: 1, spec: spec("a", 2 * GIB) };
            machine.handle(term.now, request).expect("it is made");
        }
        machine
    }

    fn store(&mut self, machine: &mut Machine) {
        machine.take_rows().into_iter().for_each(|row| self.state.apply(row));
    }

    fn tick(&self, machine: &mut Machine, now: Instant, _: &mut Rng) {
        machine.tick(now);
    }

    fn heartbeat(
        &self,
        machine: &mut Machine,
        now: Instant,
        sent: &Heartbeat,
    ) -> Option<Grant<SegmentId, SegmentSetup>> {
        let heartbeat = BlockHeartbeat {
            server: self.servers[usize::from(sent.server)],
            addr: "127.0.0.1:7000".parse().expect("an address"),
            boot: sent.boot,
            seq: sent.seq,
            seen: sent.seen,
            unopened: Vec::new(),
            unopened_count: 0,
            loads: Vec::new(),
            leaving: false,
            asks_admission: true,
        };
        match machine.handle(now, BlockRequest::Heartbeat(heartbeat)) {
            Ok(BlockReply::Grant(grant)) => Some(grant_of(grant)),
            _ => None,
        }
    }

    fn units(&self) -> Vec<SegmentId> {
        self.state.segments().map(|(id, _)| id).collect()
    }
}

#[test]
fn one_owner_acknowledges_at_a_time() {
    check(Stored::default);
}

#[test]
fn planted_mistakes_are_found() {
    check_mistakes(Stored::default);
}
