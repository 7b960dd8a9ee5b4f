//! A client's view of the disks that it uses, for operators.

use std::time::Duration;

use base::ServerId;
use wire::control::CallClass;

use crate::client::Client;
use crate::health::Target;
use crate::lists::ListedDisk;

/// A disk as this client sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SeenDisk {
    /// The disk.
    pub target: Target,
    /// Its server, when it is known.
    pub server: Option<ServerId>,
    /// Its list and for how long it is in it, when it is in one.
    pub listed: Option<(ListedDisk, Duration)>,
    /// Time until it is probed, when it is to be.
    pub next_probe: Option<Duration>,
    /// Its calls, of the classes that it had.
    pub calls: Vec<SeenCalls>,
}

/// Calls of one class at one disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SeenCalls {
    /// The class.
    pub class: CallClass,
    /// Latency that half of the last calls did not exceed, at most a quarter above the exact one.
    pub p50: Duration,
    /// Latency that 99 of 100 did not exceed.
    pub p99: Duration,
    /// Age of the oldest call under way; zero without one.
    pub oldest: Duration,
}

impl Client {
    /// Disks that this client has used lately, or has listed (C17).
    pub fn seen_disks(&self) -> Vec<SeenDisk> {
        let now = self.0.env.now();
        let (health, lists) = (&mut *self.0.health.borrow_mut(), &*self.0.lists.borrow());
        let mut targets = health.targets();
        let listed = lists.listed_with_pushed(&targets);
        targets.extend(listed.iter().map(|listed| listed.target));
        targets.sort_unstable();
        targets.dedup();
        let see = |target: Target| {
            let calls = CallClass::all().filter_map(|class| {
                let p50 = health.latency(target, class, 500, now)?;
                let p99 = health.latency(target, class, 990, now)?;
                let (_, oldest) = health.under_way(target, class, now);
                Some(SeenCalls { class, p50, p99, oldest })
            });
            let calls = calls.collect();
            let of = listed.iter().find(|listed| listed.target == target);
            SeenDisk {
                target,
                server: lists.server(target.addr),
                listed: of.map(|listed| (*listed, now.since(listed.since))),
                next_probe: lists.probe_at(target).map(|at| at.since(now)),
                calls,
            }
        };
        targets.into_iter().map(see).collect()
    }
}
