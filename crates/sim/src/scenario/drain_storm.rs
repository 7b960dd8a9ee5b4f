//! Appends and reads while an operator empties servers ([`drains`](super::drains)), processes crash and
//! disks are full. Beside them writers are idle for the whole run, and others are gone
//! ([`idlers`](super::idlers)).

use std::time::Duration;

use wire::control::{Compression, Policy};

use super::append::{self, Plan};
use super::entry::Scenario;
use crate::cluster::Shape;
use crate::nemesis::{Faults, NONE};

/// What files are converted to: five servers stay, and have places for these.
const CONVERSIONS: &[Policy] =
    &[Policy::ec(2, 1), Policy::rep(3), Policy::rep(3).compressed(Some(Compression::LZ4))];

pub(super) const SCENARIO: Scenario = Scenario {
    name: "drain-storm",
    about: "an operator drains and decommissions servers while processes crash and disks are full",
    run: |sim| {
        let faults = Faults { server_crashes: true, master_crashes: true, bad_disks: true, ..NONE };
        let shape = Shape { servers: 7, ..Shape::default() }.partitioned(&sim);
        let (load, deadline) = (Duration::from_secs(30), Duration::from_secs(240));
        let plan =
            Plan { shape, faults, load, deadline, drains: true, idlers: true, ..Plan::default() };
        let plan = Plan { converts: CONVERSIONS, ..plan };
        Box::pin(append::run(sim, plan))
    },
    marks: &[
        "drains: a drain is refused",
        "drains: a drain is cancelled",
        "drains: a drain has ended",
        "drains: a server is decommissioned",
        "drains: a server was away under maintenance",
        "drains: what holds data is not decommissioned",
        "drains: no other losses are accepted",
        "replica dropped from a draining server",
        "chunk converted",
        "repair has more workers",
        "idlers: a writer lives",
        "idlers: a writer is gone",
        "readers: far beyond the end",
        "readers: a file that was sealed just now",
    ],
};
