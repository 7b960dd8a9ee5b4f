//! Cuts between clients and servers that servers do not have among each other: a writer without
//! one of its replicas, a client that reaches masters only, requests that arrive and answers that
//! do not. A mark counts a cut only when it held traffic back.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use runtime::sim::{HostId, Sim};

use crate::cluster::Cluster;

/// Length of a cut in milliseconds, least and most. One time in eight it is [`LONG_MS`].
const CUT_MS: (u64, u64) = (50, 2_000);
/// A cut that outlasts every timeout of a client's calls, in milliseconds.
const LONG_MS: u64 = 12_000;
/// Pause between two cuts in milliseconds, least and most.
const PAUSE_MS: (u64, u64) = (50, 1_000);

/// One-way paths that are closed together.
pub(crate) struct Cut {
    marks: Vec<&'static str>,
    paths: Vec<(HostId, HostId)>,
}

/// Direction in which a cut is closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// Neither requests nor answers arrive.
    Both,
    /// Requests do not arrive.
    There,
    /// Answers do not arrive.
    Back,
}

impl Cut {
    /// Between those who ask and those who answer.
    pub(crate) fn new(
        mark: &'static str,
        way: Way,
        asking: &[HostId],
        answering: &[HostId],
    ) -> Cut {
        let mut paths = Vec::new();
        for &from in asking {
            for &to in answering.iter().filter(|&&to| to != from) {
                paths.extend((way != Way::Back).then_some((from, to)));
                paths.extend((way != Way::There).then_some((to, from)));
            }
        }
        Cut { marks: vec![mark], paths }
    }

    /// Closes its paths, or opens them.
    pub(crate) fn set(&self, sim: &Sim, closed: bool) {
        self.paths.iter().for_each(|&(from, to)| sim.set_blocked(from, to, closed));
    }

    /// With a mark for its direction too.
    pub(crate) fn directed(mut self, way: Way) -> Cut {
        self.marks.extend(match way {
            Way::Both => None,
            Way::There => Some("cut: requests are lost"),
            Way::Back => Some("cut: answers are lost"),
        });
        self
    }
}

/// Cuts hosts off in one way after the other until asked to stop.
pub(crate) async fn keep_cutting(
    sim: Sim,
    is_over: impl Fn() -> bool,
    draw: impl Fn() -> Option<Cut>,
) {
    while !is_over() {
        let pause = sim.with_rng(|rng| rng.between(PAUSE_MS.0, PAUSE_MS.1));
        sim.sleep(Duration::from_millis(pause)).await;
        let Some(cut) = draw() else { continue };
        cut.set(&sim, true);
        let length = sim.with_rng(|rng| match rng.one_in(8) {
            true => LONG_MS,
            false => rng.between(CUT_MS.0, CUT_MS.1),
        });
        let end = sim.elapsed() + Duration::from_millis(length);
        while sim.elapsed() < end && !is_over() {
            sim.sleep(Duration::from_millis(20)).await;
        }
        if cut.paths.iter().any(|&(from, to)| sim.held(from, to) > 0) {
            cut.marks.iter().for_each(|mark| sim.mark(mark));
        }
        cut.set(&sim, false);
    }
}

/// Cuts between clients and servers of the core; `masters_only` where clients ask no others.
pub(super) async fn cut_clients(cluster: Cluster, masters_only: bool, stop: Rc<Cell<bool>>) {
    let sim = cluster.sim().clone();
    keep_cutting(sim, move || stop.get(), || draw_cut(&cluster, masters_only)).await;
}

fn draw_cut(cluster: &Cluster, masters_only: bool) -> Option<Cut> {
    let sim = cluster.sim();
    let running = |host: &HostId| sim.env(*host).is_some();
    let clients: Vec<_> = cluster.client_hosts().into_iter().filter(running).collect();
    let pick = |hosts: &[HostId]| sim.with_rng(|rng| hosts[rng.below(hosts.len() as u64) as usize]);
    if clients.is_empty() {
        return None;
    }
    let (client, server) = (&[pick(&clients)], &[pick(cluster.servers())]);
    let (all_servers, all_masters) = (cluster.servers(), cluster.masters());
    let first = if masters_only { 4 } else { 0 };
    Some(match sim.with_rng(|rng| rng.between(first, 7)) {
        0 => Cut::new("cut: a client from a chunkserver", Way::Both, client, server),
        1 => Cut::new("cut: requests to a chunkserver are lost", Way::There, client, server),
        2 => Cut::new("cut: answers of a chunkserver are lost", Way::Back, client, server),
        3 => Cut::new("cut: a client reaches masters only", Way::Both, client, all_servers),
        4 => Cut::new("cut: a client reaches no master", Way::Both, client, all_masters),
        5 => Cut::new("cut: answers of masters are lost", Way::Back, client, all_masters),
        6 if !masters_only => {
            let mark = "cut: clients from a chunkserver that peers reach";
            Cut::new(mark, Way::Both, &clients, server)
        }
        _ => {
            let master = &[all_masters[cluster.leading_master()?]];
            let mark = "cut: clients from a leading master that peers reach";
            Cut::new(mark, Way::Both, &clients, master)
        }
    })
}
