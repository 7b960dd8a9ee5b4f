//! Disks that two servers report, and reports of damaged replicas.

use std::time::Duration;

use base::{ChunkId, DiskId, ServerId};
use runtime::Instant;
use wire::control::{AbnormalServer, DiskReport, Heartbeat, Registration};

use super::{Liveness, LivenessConfig};
use crate::cluster::{ClusterMachine, Command, Reported, encode_command};
use crate::limits::{DAMAGED_MAX, REPORT_PING};
use master_consensus::StateMachine;

const DISK: DiskId = DiskId::new(9);
const DEAD_AFTER: Duration = Duration::from_secs(3);

/// Servers 1 and 2, and the heartbeats that masters have of them.
struct Bed {
    liveness: Liveness,
    registered: ClusterMachine,
    now: Instant,
    seq: u64,
    boot: u64,
}

impl Bed {
    fn new() -> Bed {
        let mut registered = ClusterMachine::new();
        for (index, name) in ["cs1", "cs2"].into_iter().enumerate() {
            let addr = ([127, 0, 0, 1], index as u16 + 1).into();
            let registration = Registration { name: name.into(), addr, domain: name.into() };
            let command = encode_command(0, &Command::Register(registration));
            registered.apply(index as u64, &command).expect("it decodes");
        }
        let liveness = Liveness::new(LivenessConfig::new(DEAD_AFTER, 1));
        Bed { liveness, registered, now: Instant::default(), seq: 0, boot: 1 }
    }

    fn heartbeat(&mut self, server: u32, disk: DiskId) {
        self.heartbeat_with(server, disk, Vec::new());
    }

    fn heartbeat_with(&mut self, server: u32, disk: DiskId, damaged: Vec<(DiskId, ChunkId)>) {
        self.now = self.now + Duration::from_millis(100);
        self.seq += 1;
        let (addr, path) = (([127, 0, 0, 1], server as u16).into(), "/d".to_owned());
        let (failed, reason) = (false, String::new());
        let report = DiskReport {
            disk,
            path,
            capacity: 1,
            used: 0,
            chunks: 0,
            failed,
            reason,
            addr: None,
            background: None,
            times: Vec::new(),
        };
        let heartbeat = Heartbeat {
            server: ServerId::new(server),
            addr,
            boot: self.boot,
            seq: self.seq,
            disks: vec![report],
            damaged,
            quiet: Vec::new(),
            load: 0,
            layout: 2,
            by_issuer: true,
        };
        self.liveness.hear(heartbeat, self.now, &self.registered);
    }

    /// Servers that have the disk, and what is said of the others'.
    fn owners(&self) -> (Vec<u32>, Vec<String>) {
        let status = self.liveness.status(&self.registered, self.now, 0);
        let all = status.iter().flat_map(|it| it.disks.iter().map(|disk| (it.server, disk)));
        let (own, others): (Vec<_>, Vec<_>) = all.partition(|(_, disk)| disk.disk == DISK);
        let own = own.into_iter().map(|(server, _)| server.get()).collect();
        (own, others.into_iter().map(|(_, disk)| disk.reason.clone()).collect())
    }
}

#[test]
fn copy_of_a_live_servers_store_is_refused() {
    for (first, second) in [(1, 2), (2, 1)] {
        let mut bed = Bed::new();
        bed.heartbeat(first, DISK);
        // Long enough for every server's heartbeat.
        for _ in 0..40 {
            bed.heartbeat(first, DISK);
        }
        for _ in 0..3 {
            bed.heartbeat(second, DISK);
            bed.heartbeat(first, DISK);
            let (own, reasons) = bed.owners();
            assert_eq!(own, [first]);
            assert!(reasons[0].contains(&format!("'cs{first}' serves the same disk")));
        }
        // The first one is gone: the disk was moved.
        bed.now = bed.now + DEAD_AFTER;
        bed.heartbeat(second, DISK);
        assert!(bed.owners().0.contains(&second));
    }
}

#[test]
fn copy_that_reports_first_after_a_masters_start_gives_way() {
    let mut bed = Bed::new();
    bed.heartbeat(2, DISK);
    assert_eq!(bed.owners().0, [2]);
    bed.heartbeat(1, DISK);
    bed.heartbeat(2, DISK);
    assert_eq!(bed.owners().0, [1]);
}

/// A master keeps the reports for partitions that others lead: it may lead them next.
#[test]
fn reports_for_other_partitions_leave_room_for_those_that_are_led() {
    let mut bed = Bed::new();
    let chunk = |partition: u16, number: usize| ChunkId::compose(partition, number as u64);
    for first in (0..DAMAGED_MAX).step_by(256) {
        let all = first..first + 256;
        bed.heartbeat_with(1, DISK, all.map(|number| (DISK, chunk(1, number))).collect());
    }
    bed.heartbeat_with(1, DISK, vec![(DISK, chunk(0, 1))]);
    assert_eq!(bed.liveness.take_damaged(0, 10), [(chunk(0, 1), ServerId::new(1), DISK)]);
}

/// A ping of a reported server that fails with all others says that this master is cut off.
#[test]
fn report_and_failed_ping_count_only_where_others_are_reached() {
    let mut bed = Bed::new();
    bed.heartbeat(1, DISK);
    bed.heartbeat(2, DiskId::new(8));
    let (first, second) = (ServerId::new(1), ServerId::new(2));
    let known = bed.liveness.abnormal(None).version;
    let pinged = |bed: &mut Bed, answers: bool| {
        let from = Some([10, 0, 0, 9].into());
        assert!(bed.liveness.report_unreached(first, from, bed.now).ping);
        let sent = bed.now;
        bed.now = bed.now + REPORT_PING;
        if answers {
            bed.liveness.answered(second, sent);
        }
        bed.liveness.report_pinged(first, false, sent, bed.now)
    };
    bed.now = bed.now + DEAD_AFTER / 2;
    assert!(!pinged(&mut bed, false));
    assert_eq!(bed.liveness.abnormal(Some(known)).version, known);
    bed.now = bed.now + REPORT_PING;
    assert!(pinged(&mut bed, true));
    let unreached = AbnormalServer { server: first, unreached: true, slow: false, draining: false };
    assert_eq!(bed.liveness.abnormal(Some(known)).servers, [unreached]);
    let view = bed.liveness.view(&bed.registered, bed.now, 0);
    assert!(view.server(first).is_some_and(|server| server.alive && !server.reached));
    // What clients say of a server without heartbeats, or of none, is nothing.
    let stranger = bed.liveness.report_unreached(ServerId::new(9), None, bed.now);
    assert_eq!(stranger, Reported::default());
}

/// What clients have said of a process, and a ping of it, say nothing of the one that was started since.
#[test]
fn evidence_ends_with_the_process_that_it_is_about() {
    let mut bed = Bed::new();
    let (first, second) = (ServerId::new(1), ServerId::new(2));
    let from = Some([10, 0, 0, 9].into());
    let is_reached = |bed: &Bed| {
        let view = bed.liveness.view(&bed.registered, bed.now, 0);
        view.server(first).is_some_and(|server| server.alive && server.reached)
    };
    let beat = |bed: &mut Bed| {
        bed.heartbeat(1, DISK);
        bed.heartbeat(2, DiskId::new(8));
    };
    beat(&mut bed);
    let fail = |bed: &mut Bed, sent: Instant| {
        bed.liveness.answered(second, sent);
        bed.liveness.report_pinged(first, false, sent, bed.now)
    };
    let sent = bed.now;
    assert!(bed.liveness.report_unreached(first, from, sent).ping);
    bed.now = bed.now + REPORT_PING;
    assert!(fail(&mut bed, sent) && !is_reached(&bed));
    beat(&mut bed);
    assert!(!is_reached(&bed), "the same process");
    bed.boot += 1;
    beat(&mut bed);
    assert!(is_reached(&bed), "it was started since");

    // A ping that was sent before ends after the start, with another report in between.
    bed.now = bed.now + DEAD_AFTER / 2;
    let sent = bed.now;
    assert!(bed.liveness.report_unreached(first, from, sent).ping);
    bed.boot += 1;
    beat(&mut bed);
    let again = bed.liveness.report_unreached(first, from, bed.now).ping;
    assert!(!fail(&mut bed, sent) && is_reached(&bed) && again);
}

/// Reports of one partition alone are taken, from its first chunk to its last.
#[test]
fn reports_are_taken_by_partition() {
    let mut bed = Bed::new();
    let last = base::ID_COUNTER_END - 1;
    let of = |partition: u16| [0, 7, last].map(|counter| ChunkId::compose(partition, counter));
    let all: Vec<_> = (0..3).flat_map(of).map(|chunk| (DISK, chunk)).collect();
    bed.heartbeat_with(1, DISK, all);
    let taken = |partition: u16, limit: usize| -> Vec<ChunkId> {
        bed.liveness.take_damaged(partition, limit).into_iter().map(|(chunk, ..)| chunk).collect()
    };
    assert_eq!(taken(1, 2), of(1)[..2]);
    assert_eq!(taken(1, 9), of(1)[2..]);
    assert_eq!(taken(1, 9), []);
    assert_eq!((taken(0, 9), taken(2, 9)), (of(0).to_vec(), of(2).to_vec()));
}
