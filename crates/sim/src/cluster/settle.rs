//! The end of a run: all faults end, and the cluster becomes whole by itself. The harness starts what is
//! down, and does what operators do by hand; it restarts nothing that is up.

use std::collections::BTreeMap;
use std::time::Duration;

use chunkstore::ChunkStore;
use roles::chunkserver::Role;
use runtime::sim::CrashMode;
use wire::control::{ClusterStatus, Group, ServerStatus};

use super::{Cluster, Shape};
use crate::planted::Store;

/// Masters count under-replicated chunks in scans, 500 ms apart and a quarter more at most.
const SCANNED: Duration = Duration::from_millis(700);
/// Time in which every process and disk is back once the cluster is whole without faults: a dozen
/// attempts of a server to open a disk, and ten elections.
const BACK_WITHIN: Duration = Duration::from_secs(15);
/// Pause between two checks of it.
const BACK_PAUSE: Duration = Duration::from_millis(200);

impl Cluster {
    /// Ends all faults and waits until the cluster is whole again (the liveness phase), and every
    /// process and disk is back.
    pub async fn settle(&self, deadline: Duration) -> Result<(), String> {
        self.0.sim.heal_network();
        for &host in self.0.servers.iter().chain(&self.0.masters) {
            self.0.sim.set_clock_drift(host, 0);
            self.0.sim.set_wall_skew(host, 0);
            self.0.sim.with_disk_faults(host, |faults| *faults = Default::default());
        }
        self.0.absent.iter().for_each(|absent| absent.clear());
        // An operator's work: a store that has failed stays so until its server starts again.
        for index in self.with_failed_stores() {
            self.crash_server(index, CrashMode::Process);
        }
        self.tend_masters();
        self.boot_all();
        self.until_whole(deadline).await?;
        self.until_back().await
    }

    /// Waits until every master has applied what the leaders of its groups had applied, and every
    /// server serves all its disks, also as the masters show it.
    async fn until_back(&self) -> Result<(), String> {
        let (host, client) = self.client(None).await.map_err(|error| error.to_string())?;
        let end = self.0.sim.elapsed() + BACK_WITHIN;
        let mut led = BTreeMap::new();
        loop {
            self.tend_masters();
            self.note_led(&mut led);
            let mut missing = self.missing_disks().or_else(|| self.missing_master(&led));
            if missing.is_none() {
                // Each of them: heartbeats go to every master, and the next leader has its own view.
                missing = match client.status().await {
                    Err(error) => Some(error.to_string()),
                    Ok(statuses) => statuses
                        .iter()
                        .find_map(|(_, status)| self.missing_shown(status.servers.iter())),
                };
            }
            let Some(missing) = missing else {
                self.0.sim.crash(host, CrashMode::Process);
                return self.violations().first().map_or(Ok(()), |first| Err(first.clone()));
            };
            if self.0.sim.elapsed() > end {
                let after = "after the cluster was whole";
                return Err(format!("not back {BACK_WITHIN:?} {after}: {missing}"));
            }
            self.0.sim.sleep(BACK_PAUSE).await;
        }
    }

    /// Takes note of what leaders have applied, of groups that were not led before.
    fn note_led(&self, led: &mut BTreeMap<Group, u64>) {
        for master in self.0.running_masters.borrow().iter().flatten() {
            let leads = master.leads();
            for (group, applied) in master.applied() {
                if leads.contains(&group) {
                    led.entry(group).or_insert(applied.unwrap_or(0));
                }
            }
        }
    }

    /// A master that has not applied what leaders had, unless its disk is damaged and it says so.
    fn missing_master(&self, led: &BTreeMap<Group, u64>) -> Option<String> {
        let Shape { namespace_partitions, stream_partitions, .. } = self.0.shape;
        let groups = 1 + usize::from(namespace_partitions) + usize::from(stream_partitions);
        if led.len() < groups {
            return Some(format!("leaders of {} of {groups} groups", led.len()));
        }
        let running = self.0.running_masters.borrow();
        let lacks = |index: usize| {
            if self.0.harms.lasts(self.0.masters[index]) && !self.master_errors(index).is_empty() {
                return None;
            }
            let Some(master) = &running[index] else { return Some("is not up".to_owned()) };
            let applied = master.applied().into_iter();
            let behind = |(group, at): &(Group, Option<u64>)| at.unwrap_or(0) < led[group];
            applied.into_iter().find(behind).map(|(group, at)| {
                format!("has applied {at:?} of {group}, whose leader had {}", led[&group])
            })
        };
        let members = self.member_masters(true).into_iter();
        members.into_iter().find_map(|at| Some(format!("master {} {}", at + 1, lacks(at)?)))
    }

    /// A server that does not serve all its disks.
    fn missing_disks(&self) -> Option<String> {
        let running = self.0.running.borrow();
        let lacks = |(index, role): (usize, &Option<Role<Store>>)| {
            if self.has_left(index) {
                return None;
            }
            let server = index + 1;
            let Some(role) = role else { return Some(format!("chunkserver {server} is not up")) };
            let served = role.served();
            let failed = served.iter().filter(|(_, store)| store.info().failed).count();
            let (served, disks) = (served.len() - failed, self.0.shape.disks);
            (served < disks).then(|| {
                let left_out = role.left_out();
                format!(
                    "chunkserver {server} serves {served} of {disks} disks: {left_out} are left out, \
                     {failed} have failed"
                )
            })
        };
        running.iter().enumerate().find_map(lacks)
    }

    /// A server that a master does not show with all its disks.
    fn missing_shown<'a>(
        &self,
        servers: impl Iterator<Item = &'a ServerStatus> + Clone,
    ) -> Option<String> {
        let is_whole = |name: &str| {
            servers.clone().any(|it| {
                let works = it.disks.iter().filter(|disk| !disk.failed).count();
                it.name == name && it.alive && works == self.0.shape.disks
            })
        };
        let stay = (0..self.0.servers.len()).filter(|index| !self.has_left(*index));
        let mut names = stay.map(|index| format!("cs{}", index + 1));
        let name = names.find(|name| !is_whole(name))?;
        let shown: Vec<_> = servers.filter(|it| it.name == name).collect();
        Some(format!("a master shows {name} as {shown:?}"))
    }

    /// Waits until every chunk has its copies and nothing waits for repair, by figures that were
    /// counted after that, of all chunks: the figures of a new leader are zero at first.
    pub async fn until_whole(&self, deadline: Duration) -> Result<(), String> {
        let (host, client) = self.client(None).await.map_err(|error| error.to_string())?;
        let started = self.0.sim.elapsed();
        let mut last = String::from("no status");
        let mut whole_since = None;
        loop {
            if self.0.sim.elapsed() - started > deadline {
                return Err(format!("not whole after {deadline:?} without faults: {last}"));
            }
            self.0.sim.sleep(Duration::from_millis(500)).await;
            self.tend_masters();
            let statuses = match client.status().await {
                Ok(statuses) => statuses,
                Err(error) => {
                    last = error.to_string();
                    whole_since = None;
                    continue;
                }
            };
            let streams = statuses.iter().flat_map(|(_, status)| &status.leads);
            let streams = streams.filter(|g| matches!(g, Group::Stream(_))).count();
            let sum = |count: fn(&ClusterStatus) -> u64| {
                statuses.iter().map(|(_, status)| count(status)).sum::<u64>()
            };
            let lost = sum(|status| status.lost);
            let (bad, pending) =
                (sum(|status| status.under_replicated), sum(|status| status.repair.pending));
            let (chunks, looked_at) =
                (sum(|status| status.chunks), sum(|status| status.survive.iter().sum::<u64>()));
            last = format!(
                "{chunks} chunks, {looked_at} of them looked at, {bad} under-replicated, {lost} lost, {pending} repairs pending, {streams} stream leaders"
            );
            if streams == usize::from(self.0.shape.stream_partitions) && bad + lost + pending == 0 {
                // The figures are those of the last scan: others have run since.
                let (since, then) = *whole_since.get_or_insert((self.0.sim.elapsed(), chunks));
                // Writers at work may have made others since that scan, and removed some.
                let all_looked_at = looked_at >= chunks.min(then);
                if all_looked_at && self.0.sim.elapsed() - since >= SCANNED {
                    self.0.sim.crash(host, CrashMode::Process);
                    return self.violations().first().map_or(Ok(()), |first| Err(first.clone()));
                }
            } else {
                whole_since = None;
            }
        }
    }
}
