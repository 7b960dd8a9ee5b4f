//! The scenarios, in one table.

mod append;
mod echo;
mod table;

use std::future::Future;
use std::pin::Pin;

use runtime::Duration;
use runtime::sim::Sim;

use crate::nemesis::Faults;
use append::Plan;

/// A run of a scenario: ends with the violation it found, or well.
pub type Run = Pin<Box<dyn Future<Output = Result<(), String>>>>;

/// A named workload with faults and checkers.
#[derive(Clone, Copy)]
pub struct Scenario {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it exercises, one line.
    pub about: &'static str,
    /// Builds the run in a world.
    pub run: fn(Sim) -> Run,
    /// Marks that 50 seeds must reach together: proof that rare paths ran.
    pub marks: &'static [&'static str],
    /// A defect that some of its seeds show and that is not mended yet: tests leave the scenario
    /// out, and say so. Empty for all others.
    pub defect: &'static str,
}

/// All scenarios.
pub const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "echo",
        about: "the runtime alone: two nodes, a connection, a file, a power cut",
        run: |sim| Box::pin(echo::run(sim)),
        marks: &["disk: torn write"],
        defect: "",
    },
    Scenario {
        name: "append",
        about: "appends and reads on a healthy cluster",
        run: |sim| Box::pin(append::run(sim, Plan::default())),
        marks: &[],
        defect: "",
    },
    Scenario {
        name: "append-writers",
        about: "writers' hosts lose power; their tails are fenced, sealed and gone on with",
        run: |sim| Box::pin(append::run(sim, Plan { client_crashes: true, ..Plan::default() })),
        marks: &[],
        defect: "",
    },
    Scenario {
        name: "append-servers",
        about: "chunkservers crash and lose power, one at a time",
        run: |sim| {
            let faults = Faults { server_crashes: true, ..Faults::default() };
            Box::pin(append::run(sim, Plan { faults, client_crashes: true, ..Plan::default() }))
        },
        marks: &["disk: torn write"],
        defect: "",
    },
    Scenario {
        name: "append-masters",
        about: "masters crash and lose power, a minority at a time",
        run: |sim| {
            let faults = Faults { master_crashes: true, ..Faults::default() };
            Box::pin(append::run(sim, Plan { faults, client_crashes: true, ..Plan::default() }))
        },
        marks: &[],
        defect: "",
    },
    Scenario {
        name: "append-network",
        about: "frames lost, late, doubled and overtaken, resets, one-way partitions",
        run: |sim| {
            let faults = Faults { bad_network: true, partitions: true, ..Faults::default() };
            Box::pin(append::run(sim, Plan { faults, client_crashes: true, ..Plan::default() }))
        },
        marks: &["net: connection reset"],
        defect: "",
    },
    Scenario {
        name: "append-wipe",
        about: "a chunkserver comes back with an empty disk; repair makes its replicas again",
        run: |sim| {
            let faults = Faults { wiped_disks: true, ..Faults::default() };
            let load = Duration::from_secs(60);
            Box::pin(append::run(
                sim,
                Plan { faults, load, abandon: false, policies: &[(3, 3)], ..Plan::default() },
            ))
        },
        marks: &[],
        defect: "seed 0: a few sealed chunks keep two of three replicas, and repair does not see them",
    },
    Scenario {
        name: "append-blackout",
        about: "the whole cluster loses power at once and comes back",
        run: |sim| {
            let faults = Faults { blackouts: true, ..Faults::default() };
            Box::pin(append::run(sim, Plan { faults, client_crashes: true, ..Plan::default() }))
        },
        marks: &["disk: torn write"],
        defect: "",
    },
    Scenario {
        name: "append-storm",
        about: "all of it at once: crashes, partitions, a bad network, slow disks, pauses, drift",
        run: |sim| {
            let faults = Faults {
                server_crashes: true,
                master_crashes: true,
                bad_network: true,
                partitions: true,
                slowness: true,
                ..Faults::default()
            };
            Box::pin(append::run(sim, Plan { faults, client_crashes: true, ..Plan::default() }))
        },
        marks: &["disk: torn write", "net: connection reset"],
        defect: "",
    },
    Scenario {
        name: "table",
        about: "tables taken over by rivals while chunkservers crash and masters fail over",
        run: |sim| {
            let faults = Faults { server_crashes: true, master_crashes: true, ..Faults::default() };
            Box::pin(table::run(sim, table::Plan { faults, ..table::Plan::default() }))
        },
        marks: &["table: memtable flushed", "table: runs merged", "table: orphan collected"],
        defect: "",
    },
];

/// The scenario of a name.
pub fn find(name: &str) -> Option<&'static Scenario> {
    SCENARIOS.iter().find(|scenario| scenario.name == name)
}
