//! Questions to masters, block managers, clients and every process about a cluster's health.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use base::DiskId;
use block_proto::{BlockRole, BlockStatus, Managers};
use client::Client;
use roles::seen::Seen;
use wire::control::{ClusterStatus, DiskReport, DiskTimes, Group, ServerStatus};

use super::probes::{self, Probed};
use super::view::{Disk, Health, SIGNS, Server, State, View, action};
use crate::args::RoleName;
use crate::cluster::Directory;
use crate::exit::Failure;
use crate::output::natural;

/// Timeout of what the block managers answer: another one leads by then.
const BLOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// What is known so far.
#[derive(Default)]
pub(super) struct Found {
    servers: BTreeMap<(RoleName, String), Server>,
    errors: Vec<String>,
}

impl Found {
    /// Processes of a cluster on this machine: those that no observer knows are among them.
    pub(super) fn add_book(&mut self, directory: &Directory) -> Result<(), Failure> {
        for process in directory.read()?.processes {
            self.server(process.role, &process.id, process.addr);
        }
        Ok(())
    }

    fn server(&mut self, role: RoleName, id: &str, addr: SocketAddr) -> &mut Server {
        self.servers.entry((role, id.to_owned())).or_insert_with(|| Server {
            id: id.to_owned(),
            role,
            addr,
            state: State::Good,
            reason: None,
            since_s: None,
            action: None,
            next_probe_s: None,
            disks: Vec::new(),
            seen_by: Vec::new(),
        })
    }

    /// Asks masters, block managers, processes with a client, and every process itself.
    pub(super) async fn ask(
        &mut self,
        client: &Client,
        from: &[SocketAddr],
    ) -> Result<(), Failure> {
        let info = client.cluster_info().await?;
        for master in &info.masters {
            self.server(RoleName::Master, &master.name, master.addr);
        }
        match client.status().await {
            Ok(answers) => {
                let names: BTreeMap<_, _> =
                    info.masters.iter().map(|master| (master.id, master.name.as_str())).collect();
                let mut answers: Vec<_> = answers.into_iter().map(|(_, answer)| answer).collect();
                // The view of the leader counts; those of others are shown beside it.
                answers.sort_by_key(|answer| !answer.leads.contains(&Group::Cluster));
                for (at, answer) in answers.iter().enumerate() {
                    let name = names.get(&answer.master).copied().unwrap_or("a master");
                    self.add_master_view(name, answer, at == 0);
                }
            }
            Err(error) => self.errors.push(format!("masters: {error}")),
        }
        let managers = Managers::with_budget(client, BLOCK_TIMEOUT);
        match managers.status().await {
            Ok(Some(block)) => self.add_manager_view(&block),
            Ok(None) => {
                if managers.have_been().await == Some(true) {
                    self.errors.push("block service: no block manager leads".to_owned());
                }
            }
            Err(error) => self.errors.push(format!("block service: {error}")),
        }
        self.probe(client).await;
        for &addr in from {
            match probes::seen(client.env(), addr).await {
                Ok(seen) => self.add_client_view(&seen),
                Err(why) => self.errors.push(format!("{addr}: {why}")),
            }
        }
        Ok(())
    }

    fn add_master_view(&mut self, observer: &str, answer: &ClusterStatus, leads: bool) {
        for status in &answer.servers {
            self.add_server_view(observer, status, leads);
        }
    }

    fn add_server_view(&mut self, observer: &str, status: &ServerStatus, leads: bool) {
        let (state, reason, since) = judge_server(status);
        let server = self.server(RoleName::Chunkserver, &status.name, status.addr);
        let link = status.addr.to_string();
        server.seen_by.push(View::of(observer, link, state, SIGNS));
        if !leads {
            return;
        }
        server.blame(state, reason, since);
        if state == State::Unreached {
            server.next_probe_s = Some(0); // Four times a second.
        }
        server.disks = status.disks.iter().map(|it| disk(it, &status.slow_disks)).collect();
        server.add_device_times(status);
    }

    fn add_manager_view(&mut self, block: &BlockStatus) {
        for one in &block.servers {
            let server = self.server(RoleName::BlockServer, &one.name, one.addr);
            let (state, reason) = match (one.alive, one.unreached) {
                (true, false) => (State::Good, None),
                (true, true) => (State::Unreached, Some("it answers no ping")),
                (false, _) => (State::Out, Some("its heartbeats do not come")),
            };
            let link = one.addr.to_string();
            server.seen_by.push(View::of(&block.manager, link, state, SIGNS));
            server.blame(state, reason.map(str::to_owned), None);
        }
        for peer in &block.peers {
            let role = match peer.role {
                BlockRole::Manager => RoleName::BlockManager,
                BlockRole::Frontend => RoleName::Frontend,
            };
            let server = self.server(role, &peer.name, peer.addr);
            let state = if peer.alive { State::Good } else { State::Out };
            let view = View::of(&block.manager, peer.addr.to_string(), state, "reports");
            server.seen_by.push(view);
            let reason = (!peer.alive).then(|| "it does not report any more".to_owned());
            server.blame(state, reason, None);
        }
    }

    fn add_client_view(&mut self, seen: &Seen) {
        for disk in &seen.disks {
            let state = match disk.state.as_str() {
                "good" => State::Good,
                "slow" => State::Slow,
                "unreached" => State::Unreached,
                _ => State::Out,
            };
            // Executors of a chunkserver have addresses of their own; the disk says whose it is.
            let is_it = |server: &&mut Server| {
                let has = server.disks.iter().any(|known| known.id == disk.disk);
                has || server.addr == disk.addr && server.role == RoleName::Chunkserver
            };
            let Some(server) = self.servers.values_mut().find(is_it) else { continue };
            let link = format!("{} {}", disk.addr, disk.disk);
            for calls in &disk.calls {
                server.seen_by.push(View {
                    p50_us: Some(calls.p50_us),
                    p99_us: Some(calls.p99_us),
                    oldest_us: Some(calls.oldest_us),
                    ..View::of(&seen.observer, link.clone(), state, &calls.class)
                });
            }
            if disk.calls.is_empty() {
                server.seen_by.push(View::of(&seen.observer, link, state, "probes"));
            }
            let says = |reason: &String| format!("{} says: {reason}", seen.observer);
            let reason = disk.reason.as_ref().map(says);
            if let Some(known) = server.disks.iter_mut().find(|known| known.id == disk.disk) {
                known.blame(state, reason.clone());
            }
            if state > State::Good {
                server.next_probe_s = server.next_probe_s.or(disk.next_probe_s);
            }
            server.blame(state, reason, disk.since_s);
        }
    }

    /// Asks each process itself.
    async fn probe(&mut self, client: &Client) {
        let asked = self.servers.values().flat_map(|server| {
            let disks = server.disks.iter().filter_map(|disk| disk.id.parse::<DiskId>().ok());
            let mut asked: Vec<_> = match server.role {
                RoleName::Chunkserver => disks.map(Some).collect(),
                _ => Vec::new(),
            };
            if asked.is_empty() {
                asked.push(None);
            }
            let of = (server.role, server.id.clone(), server.addr);
            asked.into_iter().map(move |disk| (of.clone(), disk))
        });
        let asked: Vec<_> = asked.collect();
        let probes =
            asked.iter().map(|((role, _, addr), disk)| probes::probe(client, *role, *addr, *disk));
        let probed = futures_util::future::join_all(probes).await;
        let usual = usual(asked.iter().zip(&probed));
        for (((role, id, addr), disk), probed) in asked.into_iter().zip(probed) {
            let Some(server) = self.servers.get_mut(&(role, id)) else { continue };
            server.add_probe((addr, disk), &probed, usual);
        }
    }

    pub(super) fn finish(self) -> Health {
        let mut servers: Vec<_> = self.servers.into_values().collect();
        servers.iter_mut().for_each(|server| server.action = action(server));
        servers.sort_by(|left, right| {
            (left.role, natural(&left.id)).cmp(&(right.role, natural(&right.id)))
        });
        Health { servers, errors: self.errors }
    }
}

/// Median time of the disks that were probed, of three at least.
fn usual<'a>(
    all: impl Iterator<Item = (&'a ((RoleName, String, SocketAddr), Option<DiskId>), &'a Probed)>,
) -> Option<Duration> {
    let times = all.filter_map(|((_, disk), probed)| match probed {
        Probed::Served(time) if disk.is_some() => Some(*time),
        _ => None,
    });
    let mut times: Vec<_> = times.collect();
    times.sort_unstable();
    (times.len() >= 3).then(|| times[times.len() / 2])
}

/// A chunkserver by a master's status: state, cause, and seconds.
fn judge_server(status: &ServerStatus) -> (State, Option<String>, Option<u64>) {
    let (state, reason, since_ms) = match status.unreached_ms {
        _ if !status.alive && status.maintenance_ms.is_some() => {
            (State::Out, "its heartbeats do not come, and it is under maintenance", status.heard_ms)
        }
        _ if !status.alive => (State::Out, "its heartbeats do not come", status.heard_ms),
        None if status.draining => (State::Draining, "an operator has it emptied", None),
        None if !status.slow_disks.is_empty() => (
            State::Slow,
            "its disks take much longer than those of others, by their own times",
            None,
        ),
        None => return (State::Good, None, None),
        lasts => (State::Unreached, "its heartbeats come, and it is not reached", lasts),
    };
    (state, Some(reason.to_owned()), since_ms.map(|ms| ms / 1000))
}

fn disk(report: &DiskReport, slow: &[DiskId]) -> Disk {
    let id = match report.disk {
        id if id == DiskId::default() => String::new(),
        id => id.to_string(),
    };
    let (state, reason) = match report.failed {
        true => (State::Out, Some(report.reason.clone())),
        false if slow.contains(&report.disk) => {
            let p50 = |times: &DiskTimes| format!("{}: {} ms", times.class, times.p50_us / 1000);
            let times: Vec<_> = report.times.iter().map(p50).collect();
            (
                State::Slow,
                Some(format!("half of its operations take longer ({})", times.join("; "))),
            )
        }
        false => (State::Good, None),
    };
    Disk { id, path: report.path.clone(), state, reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_masters_have_pushed_shows_in_the_view_of_a_client() {
        let addr = SocketAddr::from(([127, 0, 0, 1], 7101));
        let mut found = Found::default();
        found.server(RoleName::Chunkserver, "cs1", addr);
        let page = r#"{"observer": "fe1", "disks": [{"addr": "127.0.0.1:7101", "disk": "dsk_1",
            "state": "unreached", "reason": "masters: unreached", "since_s": 3, "calls": []}]}"#;
        found.add_client_view(&serde_json::from_str(page).expect("a page"));
        let health = found.finish();
        let server = &health.servers[0];
        assert_eq!((server.state, server.since_s), (State::Unreached, Some(3)));
        assert_eq!(server.reason.as_deref(), Some("fe1 says: masters: unreached"));
        assert_eq!(server.seen_by[0].state, State::Unreached);
    }

    fn status(alive: bool, slow: bool) -> ServerStatus {
        let disk = DiskId::new(7);
        let class = wire::control::CallClass::append(4096);
        ServerStatus {
            server: base::ServerId::new(1),
            name: "cs1".to_owned(),
            addr: SocketAddr::from(([127, 0, 0, 1], 7101)),
            domain: "cs1".to_owned(),
            alive,
            unreached_ms: None,
            heard_ms: Some(0),
            disks: vec![DiskReport {
                disk,
                path: "/d".to_owned(),
                capacity: 1,
                used: 0,
                chunks: 0,
                failed: false,
                reason: String::new(),
                addr: None,
                background: None,
                times: vec![DiskTimes { class, p50_us: 12_000, p99_us: 30_000 }],
            }],
            draining: false,
            maintenance_ms: None,
            slow_disks: if slow { vec![disk] } else { Vec::new() },
        }
    }

    fn master_view(servers: Vec<ServerStatus>) -> Health {
        let mut found = Found::default();
        for server in servers {
            found.add_server_view("m1", &server, true);
        }
        found.finish()
    }

    #[test]
    fn disk_that_is_slow_by_its_own_times_is_shown_with_them() {
        let health = master_view(vec![status(true, true)]);
        let server = &health.servers[0];
        assert_eq!((server.state, server.action), (State::Slow, Some("clients ask it last")));
        let why = server.disks[0].reason.as_deref().expect("a reason");
        assert!(why.contains("append, up to 16 KiB: 12 ms"), "{why}");
        let own = server.seen_by.iter().find(|view| view.observer == "cs1").expect("its own");
        assert_eq!((own.p50_us, own.p99_us, own.state), (Some(12_000), Some(30_000), State::Slow));
    }

    #[test]
    fn times_of_a_dead_chunkserver_are_none() {
        let health = master_view(vec![status(false, false)]);
        let server = &health.servers[0];
        assert_eq!(server.state, State::Out);
        assert!(server.seen_by.iter().all(|view| view.observer == "m1"));
    }
}
