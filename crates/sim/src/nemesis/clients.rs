//! Cuts between clients and servers that servers do not have among each other: a writer without
//! one of its replicas, a client that reaches masters only, requests that arrive and answers that
//! do not. A mark counts a cut only when it held traffic back.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use runtime::sim::HostId;

use crate::cluster::Cluster;

/// Length of a cut in milliseconds, least and most. One time in eight it is [`LONG_MS`].
const CUT_MS: (u64, u64) = (50, 2_000);
/// A cut that outlasts every timeout of a client's calls, in milliseconds.
const LONG_MS: u64 = 12_000;
/// Pause between two cuts in milliseconds, least and most.
const PAUSE_MS: (u64, u64) = (50, 1_000);

/// One-way paths that are closed together.
struct Cut {
    mark: &'static str,
    paths: Vec<(HostId, HostId)>,
}

/// Cuts clients off in one way after the other until it is to stop.
pub(super) async fn cut_clients(cluster: Cluster, stop: Rc<Cell<bool>>) {
    let sim = cluster.sim().clone();
    while !stop.get() {
        let pause = sim.with_rng(|rng| rng.between(PAUSE_MS.0, PAUSE_MS.1));
        sim.sleep(Duration::from_millis(pause)).await;
        let Some(cut) = draw_cut(&cluster) else { continue };
        cut.paths.iter().for_each(|&(from, to)| sim.set_blocked(from, to, true));
        let length = sim.with_rng(|rng| match rng.one_in(8) {
            true => LONG_MS,
            false => rng.between(CUT_MS.0, CUT_MS.1),
        });
        let end = sim.elapsed() + Duration::from_millis(length);
        while sim.elapsed() < end && !stop.get() {
            sim.sleep(Duration::from_millis(20)).await;
        }
        if cut.paths.iter().any(|&(from, to)| sim.held(from, to) > 0) {
            sim.mark(cut.mark);
        }
        cut.paths.iter().for_each(|&(from, to)| sim.set_blocked(from, to, false));
    }
}

fn draw_cut(cluster: &Cluster) -> Option<Cut> {
    let sim = cluster.sim();
    let running = |host: &HostId| sim.env(*host).is_some();
    let clients: Vec<_> = cluster.client_hosts().into_iter().filter(running).collect();
    let pick = |hosts: &[HostId]| sim.with_rng(|rng| hosts[rng.below(hosts.len() as u64) as usize]);
    if clients.is_empty() {
        return None;
    }
    let (client, server) = (pick(&clients), pick(cluster.servers()));
    let (all_servers, all_masters) = (cluster.servers(), cluster.masters());
    let out = |to: &[HostId]| to.iter().map(|&to| (client, to)).collect::<Vec<_>>();
    let back = |from: &[HostId]| from.iter().map(|&from| (from, client)).collect::<Vec<_>>();
    let both = |of: &[HostId]| [out(of), back(of)].concat();
    let (mark, paths) = match sim.with_rng(|rng| rng.below(8)) {
        0 => ("cut: a client from a chunkserver", both(&[server])),
        1 => ("cut: requests to a chunkserver are lost", out(&[server])),
        2 => ("cut: answers of a chunkserver are lost", back(&[server])),
        3 => ("cut: a client reaches masters only", both(all_servers)),
        4 => ("cut: a client reaches no master", both(all_masters)),
        5 => ("cut: answers of masters are lost", back(all_masters)),
        6 => ("cut: clients from a chunkserver that peers reach", apart(&clients, server)),
        _ => {
            let master = all_masters[cluster.leading_master()?];
            ("cut: clients from a leading master that peers reach", apart(&clients, master))
        }
    };
    Some(Cut { mark, paths })
}

/// Both paths between each client and a server.
fn apart(clients: &[HostId], server: HostId) -> Vec<(HostId, HostId)> {
    clients.iter().flat_map(|&client| [(client, server), (server, client)]).collect()
}
