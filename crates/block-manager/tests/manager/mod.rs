//! The block manager without I/O: its rows, its requests, and the leases.

mod boots;
mod deleted;
mod ends;
mod leases;
mod reach;
mod requests;
mod rows;
mod settings;
mod snapshots;
mod stored;

use base::GIB;
use block_manager::{Config, Machine, ManagerState};
use block_proto::{
    BlockGrant, BlockHeartbeat, BlockReply, BlockRequest, Seen, VolumeGeometry, VolumeInfo,
    VolumeSpec,
};
use block_volume::qos::VolumeLimits;
use runtime::{Duration, Instant};
use wire::control::Policy;

pub fn at(ms: u64) -> Instant {
    Instant::from_nanos(ms * 1_000_000)
}

pub fn spec(name: &str, bytes: u64) -> VolumeSpec {
    VolumeSpec {
        name: name.to_owned(),
        bytes,
        geometry: VolumeGeometry {
            group_bytes: 4 * GIB,
            segments_per_group: 4,
            data_sector: 128 << 10,
        },
        policy: Policy::strict(3),
        limits: VolumeLimits::default(),
        shared: false,
    }
}

/// A machine with a leader's lease for a long time.
pub fn machine(state: ManagerState, term: u64, now: Instant) -> Machine {
    let mut machine = Machine::new(Config::new("bm1", term), state, now);
    machine.lead_until(now + Duration::from_secs(3600));
    machine
}

/// One block server, as a test drives it.
#[derive(Clone)]
pub struct Server {
    pub id: block_proto::BlockServerId,
    pub boot: u64,
    pub seq: u64,
    pub seen: Seen,
    pub leaving: bool,
    pub asks_admission: bool,
}

impl Server {
    pub fn join(machine: &mut Machine, now: Instant, name: &str) -> Server {
        let addr = "127.0.0.1:7000".parse().expect("an address");
        let request = BlockRequest::Register { name: name.to_owned(), addr };
        let Ok(BlockReply::Registered { server: id, boot }) = machine.handle(now, request) else {
            panic!("not registered");
        };
        Server { id, boot, seq: 0, seen: Seen::default(), leaving: false, asks_admission: true }
    }

    pub fn heartbeat(&mut self, machine: &mut Machine, now: Instant) -> BlockGrant {
        self.seq += 1;
        let heartbeat = BlockHeartbeat {
            server: self.id,
            addr: "127.0.0.1:7000".parse().expect("an address"),
            boot: self.boot,
            seq: self.seq,
            seen: self.seen,
            unopened: Vec::new(),
            unopened_count: 0,
            loads: Vec::new(),
            leaving: self.leaving,
            asks_admission: self.asks_admission,
        };
        let Ok(BlockReply::Grant(grant)) = machine.handle(now, BlockRequest::Heartbeat(heartbeat))
        else {
            panic!("no grant");
        };
        self.seen = grant.seen;
        grant
    }
}

pub fn volume(reply: Result<BlockReply, block_manager::Refusal>) -> VolumeInfo {
    match reply {
        Ok(BlockReply::Volume(info)) => info,
        other => panic!("no volume: {other:?}"),
    }
}
