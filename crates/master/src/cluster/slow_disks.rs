//! Disks that take much longer than others, by the latencies of heartbeats (C28, `protocols-tail.md` 10.6).
//! Client lists judge a disk by calls over the network; this is the disk's own side of it, for clients that
//! have not used it yet, and for operators. State without I/O or clock.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base::{DiskId, ServerId};
use runtime::Instant;
use wire::control::{CallClass, DiskReport};

use crate::limits::{SLOW_DISK_KEPT, SLOW_DISK_PEERS, SLOW_DISK_TIMES};

/// The disks that are slow, and when there was evidence of it last.
#[derive(Default, Debug)]
pub(super) struct SlowDisks(BTreeMap<(ServerId, DiskId), Instant>);

impl SlowDisks {
    /// Judges disks of living servers. Answers which have become slow (true), and which are slow no more.
    pub(super) fn judge<'a>(
        &mut self,
        servers: impl Iterator<Item = (ServerId, &'a [DiskReport])>,
        min: Duration,
        now: Instant,
    ) -> Vec<(ServerId, DiskId, bool)> {
        let disks =
            servers.flat_map(|(server, disks)| disks.iter().map(move |disk| (server, disk)));
        let disks: Vec<_> = disks.filter(|(_, disk)| !disk.failed).collect();
        let mut slow: BTreeMap<_, _> =
            exceeding(&disks, min).into_iter().map(|disk| (disk, now)).collect();
        for &(server, disk) in &disks {
            let disk = (server, disk.disk);
            let kept = self.0.get(&disk).filter(|at| now.since(**at) < SLOW_DISK_KEPT);
            if let Some(at) = kept {
                slow.entry(disk).or_insert(*at);
            }
        }
        let new = slow.keys().filter(|disk| !self.0.contains_key(disk));
        let gone = self.0.keys().filter(|disk| !slow.contains_key(disk));
        let changes = new.map(|it| (it.0, it.1, true)).chain(gone.map(|it| (it.0, it.1, false)));
        let changes = changes.collect();
        self.0 = slow;
        changes
    }

    /// Those of a server.
    pub(super) fn of(&self, server: ServerId) -> Vec<DiskId> {
        let of = self.0.keys().filter(|(other, _)| *other == server);
        of.map(|(_, disk)| *disk).collect()
    }

    /// Servers of which every disk that serves is slow: masters name servers to clients.
    pub(super) fn servers<'a>(
        &self,
        disks: impl Fn(ServerId) -> &'a [DiskReport],
    ) -> BTreeSet<ServerId> {
        let all_slow = |server: &ServerId| {
            let mut serving = disks(*server).iter().filter(|disk| !disk.failed);
            serving.all(|disk| self.0.contains_key(&(*server, disk.disk)))
        };
        let servers: BTreeSet<_> = self.0.keys().map(|(server, _)| *server).collect();
        servers.into_iter().filter(all_slow).collect()
    }
}

/// Disks of which half of the operations of a class take [`SLOW_DISK_TIMES`] as long as at the median disk,
/// and `min` at least, with [`SLOW_DISK_PEERS`] disks to compare.
fn exceeding(disks: &[(ServerId, &DiskReport)], min: Duration) -> BTreeSet<(ServerId, DiskId)> {
    let mut classes: [Vec<(u64, ServerId, DiskId)>; CallClass::COUNT] = Default::default();
    for (server, disk) in disks {
        for times in &disk.times {
            classes[times.class.index()].push((times.p50_us, *server, disk.disk));
        }
    }
    let min_us = u64::try_from(min.as_micros()).unwrap_or(u64::MAX);
    let mut slow = BTreeSet::new();
    for times in &mut classes {
        if times.len() < SLOW_DISK_PEERS {
            continue;
        }
        let middle = (times.len() - 1) / 2;
        let (_, &mut (median, ..), _) = times.select_nth_unstable(middle);
        let bound = median.saturating_mul(SLOW_DISK_TIMES).max(min_us);
        let over = times.iter().filter(|(p50, ..)| *p50 >= bound);
        slow.extend(over.map(|&(_, server, disk)| (server, disk)));
    }
    slow
}

#[cfg(test)]
mod tests {
    use wire::control::DiskTimes;

    use super::*;
    use crate::limits::SLOW_DISK_MIN;

    fn report(disk: u32, classes: &[(CallClass, u64)]) -> DiskReport {
        let times =
            |&(class, p50_us): &(CallClass, u64)| DiskTimes { class, p50_us, p99_us: p50_us };
        DiskReport {
            disk: DiskId::new(disk.into()),
            path: "/d".to_owned(),
            capacity: 1,
            used: 0,
            chunks: 0,
            failed: false,
            reason: String::new(),
            addr: None,
            background: None,
            times: classes.iter().map(times).collect(),
        }
    }

    /// Disks of servers that are slow, when each server has disks with these latencies of small appends.
    fn judged(servers: &[&[u64]]) -> (Vec<u32>, Vec<u32>) {
        let disk = |server: usize, disk: usize| (server * 10 + disk) as u32;
        let reports: BTreeMap<_, Vec<_>> = servers
            .iter()
            .enumerate()
            .map(|(server, disks)| {
                let reports = disks.iter().enumerate().map(|(index, &p50)| {
                    let times = [(CallClass::append(4096), p50)];
                    report(disk(server, index), &times[..usize::from(p50 > 0)])
                });
                (ServerId::new(server as u32), reports.collect())
            })
            .collect();
        let mut slow = SlowDisks::default();
        let of_servers = reports.iter().map(|(id, disks)| (*id, disks.as_slice()));
        slow.judge(of_servers, SLOW_DISK_MIN, Instant::default());
        let servers = slow.servers(|server| &reports[&server]);
        let disks = slow.0.keys().map(|(_, disk)| disk.get() as u32).collect();
        (disks, servers.into_iter().map(|server| server.get()).collect())
    }

    #[test]
    fn disk_is_slow_at_eight_times_the_median_and_5_ms() {
        assert_eq!(judged(&[&[1000], &[1000], &[8000]]), (vec![20], vec![2]));
        assert_eq!(judged(&[&[1000], &[1000], &[7999]]), (vec![], vec![]));
        assert_eq!(judged(&[&[100], &[100], &[4999]]), (vec![], vec![]), "below 5 ms");
        assert_eq!(judged(&[&[100], &[100], &[5000]]), (vec![20], vec![2]));
        assert_eq!(judged(&[&[100], &[9000]]), (vec![], vec![]), "two say nothing of each other");
        assert_eq!(judged(&[&[100], &[9000], &[9000]]), (vec![], vec![]), "most are like it");
        assert_eq!(judged(&[&[100], &[100], &[9000], &[9000]]), (vec![20, 30], vec![2, 3]));
    }

    #[test]
    fn server_is_slow_when_all_its_disks_are() {
        assert_eq!(judged(&[&[100, 100], &[100, 9000], &[9000]]), (vec![11, 20], vec![2]));
        assert_eq!(judged(&[&[100, 100], &[100, 100], &[9000, 0]]), (vec![20], vec![]));
    }

    #[test]
    fn classes_are_judged_apart() {
        let (small, large) = (CallClass::append(4096), CallClass::append(1 << 20));
        let disks = [
            vec![report(0, &[(small, 500)])],
            vec![report(1, &[(small, 500)])],
            vec![report(2, &[(small, 500), (large, 40_000)])],
        ];
        let servers = disks.iter().enumerate();
        let servers = servers.map(|(id, disks)| (ServerId::new(id as u32), disks.as_slice()));
        let changes = SlowDisks::default().judge(servers, SLOW_DISK_MIN, Instant::default());
        assert!(changes.is_empty(), "large appends take long");
    }

    #[test]
    fn disk_stays_slow_for_15_s_after_the_last_evidence() {
        let at = |seconds: u64| Instant::from_nanos(seconds * 1_000_000_000);
        let mut slow = SlowDisks::default();
        let mut judge = |p50: u64, seconds: u64| {
            let times = |p50: u64| [(CallClass::read(4096), p50)];
            let reports =
                [100, 100, p50].map(|p50| vec![report(0, &times(p50)[..usize::from(p50 > 0)])]);
            let servers = reports.iter().enumerate();
            let servers = servers.map(|(id, disks)| (ServerId::new(id as u32), disks.as_slice()));
            let changes = slow.judge(servers, SLOW_DISK_MIN, at(seconds));
            changes.iter().map(|change| change.2).collect::<Vec<_>>()
        };
        assert_eq!(judge(9000, 1), [true]);
        assert_eq!(judge(0, 8), []);
        assert_eq!(judge(9000, 14), []);
        assert_eq!(judge(0, 28), []);
        assert_eq!(judge(0, 29), [false]);
        assert_eq!(judge(9000, 30), [true]);
        assert_eq!(judge(200, 44), []);
        assert_eq!(judge(200, 45), [false]);
    }
}
