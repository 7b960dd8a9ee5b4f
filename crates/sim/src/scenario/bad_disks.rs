//! Appends and reads while disks are replaced, rot, or are full.

use std::time::Duration;

use base::MIB;

use super::append::{self, Plan};
use super::entry::Scenario;
use crate::cluster::Shape;
use crate::nemesis::{Faults, NONE};

pub(super) const WIPE: Scenario = Scenario {
    name: "append-wipe",
    about: "a disk is replaced: it stays empty, until it is formatted, or is formatted before",
    run: |sim| {
        let faults = Faults { wiped_disks: true, ..NONE };
        let (load, think) = (Duration::from_secs(40), Duration::from_millis(500));
        Box::pin(append::run(sim, Plan { faults, load, think, idlers: true, ..Plan::default() }))
    },
    marks: &[
        "nemesis: an empty disk is a failed one",
        "nemesis: the data of an empty disk is elsewhere",
        "nemesis: a disk is formatted while its server runs",
        "nemesis: an empty disk is replaced by an order",
        "nemesis: a disk is formatted before its server starts",
        "chunk repaired",
        "abandoned chunk sealed",
        "chunk moved for balance",
        "idlers: a writer lives",
        "idlers: a writer is gone",
    ],
};

pub(super) const ROT: Scenario = Scenario {
    name: "append-rot",
    about: "one disk rots, has unreadable sectors, loses writes and misplaces them; all is found out",
    run: |sim| {
        let faults = Faults { rotten_disk: true, ..NONE };
        Box::pin(append::run(sim, Plan { faults, ..Plan::default() }))
    },
    marks: &[
        "disk: lost write",
        "disk: misdirected write",
        "chunkstore: unreadable sectors",
        "bad replica found",
        "chunk repaired",
    ],
};

pub(super) const FULL: Scenario = Scenario {
    name: "append-disks",
    about: "disks are full, have no room to grow, or are slow; files are removed",
    run: |sim| {
        let faults = Faults { bad_disks: true, ..NONE };
        let shape = Shape { disk_bytes: 24 * MIB, ..Shape::default() };
        let (remove, deadline) = (true, Duration::from_secs(240));
        Box::pin(append::run(sim, Plan { shape, faults, remove, deadline, ..Plan::default() }))
    },
    marks: &["dead replicas deleted", "chunkstore: the medium is full", "chunk repaired"],
};
