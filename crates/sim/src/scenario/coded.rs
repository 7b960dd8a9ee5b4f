//! Erasure codes: appends and reads of coded chunks under the faults that copies meet
//! (`protocols-tail.md` 9).

use std::time::Duration;

use runtime::sim::Sim;
use wire::control::{Compression, Policy, Verify};

use super::append::{self, Plan};
use super::entry::{self, Run, Scenario};
use crate::cluster::Shape;
use crate::nemesis::{Faults, NONE};

const LZ4: Option<Compression> = Some(Compression::LZ4);

/// Codes that six servers have places for, and copies beside them: a file is opened again with the policy
/// that it was made with.
const SMALL: &[Policy] = &[
    Policy::ec(2, 1),
    Policy::ec(4, 2),
    Policy::ec_strict(4, 2),
    Policy::ec(3, 2).compressed(LZ4),
    Policy::ec(2, 2).compressed(Some(Compression::ZSTD)),
    Policy::rep(3),
];
/// Codes and compressions of which every row is read back before it is sent.
const VERIFIED: &[Policy] = &[
    Policy::ec(2, 1).verified(Verify::All),
    Policy::ec(4, 2).compressed(LZ4).verified(Verify::All),
    Policy::ec(2, 2).compressed(Some(Compression::ZSTD)).verified(Verify::All),
    Policy::rep(3).compressed(LZ4).verified(Verify::All),
];
/// Codes that survive the loss of a cell when all else that they do not wait for is lost. Not compressed: a
/// file may go on in copies, and of these a row has one cell.
const SPARE: &[Policy] = &[Policy::ec(2, 2), Policy::ec(3, 2), Policy::ec(4, 2), Policy::ec(4, 3)];
/// What files are converted to.
const CONVERSIONS: &[Policy] = &[
    Policy::ec(2, 1),
    Policy::ec(4, 2),
    Policy::ec(3, 2).compressed(LZ4),
    Policy::rep(3),
    Policy::rep(2).compressed(Some(Compression::ZSTD)),
];
/// The papers' code for what is cold, and the widest row of parity.
const WIDE: &[Policy] = &[Policy::ec(8, 3), Policy::ec(8, 3).compressed(LZ4), Policy::ec(7, 4)];

fn run(sim: Sim, faults: Faults) -> Run {
    run_with(sim, faults, Plan::default())
}

fn run_with(sim: Sim, faults: Faults, plan: Plan) -> Run {
    let wide = sim.with_rng(|rng| rng.one_in(6));
    let (servers, policies) = if wide { (13, WIDE) } else { (8, SMALL) };
    let shape = Shape { servers, ..Shape::default() };
    let (load, deadline) = (Duration::from_secs(8), Duration::from_secs(240));
    let client_crashes = faults != NONE;
    let plan = Plan { shape, faults, policies, load, deadline, client_crashes, ..plan };
    Box::pin(append::run(sim, plan))
}

pub(super) const APPEND: Scenario = Scenario {
    name: "ec-append",
    about: "files with erasure codes and with copies, while chunkservers crash and writers lose power",
    run: |sim| run(sim, Faults { server_crashes: true, ..NONE }),
    marks: &[
        "writer: replica failed",
        "stream recovered",
        "recovery without all votes",
        "short replica completed",
        "chunk repaired",
        "reader: decoded from other fragments",
        "audit: a coded chunk is whole",
    ],
};

pub(super) const SMALL_APPENDS: Scenario = Scenario {
    name: "ec-small",
    about: "files with codes whose appends are small for a while, and then not, while servers crash",
    run: |sim| {
        let faults = Faults { server_crashes: true, ..NONE };
        run_with(sim, faults, Plan { small: true, ..Plan::default() })
    },
    marks: &[
        "writer: chunks wanted in copies",
        "audit: a file goes on in copies",
        "audit: a file is back in its code",
        "stream recovered",
        "chunk repaired",
    ],
};

pub(super) const CONVERT: Scenario = Scenario {
    name: "ec-convert",
    about: "files are converted between codes, copies and compressions, in a storm and while some go",
    run: |sim| {
        let remove = sim.with_rng(|rng| !rng.one_in(3));
        run_with(sim, entry::STORM, Plan { converts: CONVERSIONS, remove, ..Plan::default() })
    },
    marks: &[
        "conversions: a file is to be converted",
        "conversions: a file is to stay as it is",
        "conversion begun",
        "conversion of another leader given up",
        "chunk deleted while it was converted",
        "chunk laid out in another form",
        "chunk converted",
        "conversion of an old chunk begun",
        "chunk repaired",
        "audit: a coded chunk is whole",
    ],
};

/// A host whose vector instructions err fails no check of its own: rows are wrong with right checksums.
pub(super) const ERRS: Scenario = Scenario {
    name: "ec-errs",
    about: "clients' vector instructions get one row in 20 wrong, and all rows are read back",
    run: |sim| {
        let faults = Faults { server_crashes: true, ..NONE };
        let shape = Shape { servers: 8, ..Shape::default() };
        let load = Duration::from_secs(8);
        let plan = Plan { shape, faults, load, policies: VERIFIED, ..Plan::default() };
        let plan = Plan { client_crashes: true, errs_one_in: 20, ..plan };
        Box::pin(append::run(sim, plan))
    },
    marks: &[
        "writer: a kernel that errs is out",
        "reader: decoded from other fragments",
        "chunk repaired",
        "audit: a coded chunk is whole",
    ],
};

/// Without that, of codes that survive a wrong cell in each row beside what they acknowledge without.
pub(super) const ROWS: Scenario = Scenario {
    name: "ec-rows",
    about: "clients' vector instructions get one row in 20 wrong, and masters have rows checked",
    run: |sim| {
        let faults = Faults { server_crashes: true, ..NONE };
        let shape = Shape { servers: 8, ..Shape::default() };
        let load = Duration::from_secs(8);
        let plan = Plan { shape, faults, load, policies: SPARE, ..Plan::default() };
        let plan = Plan { client_crashes: true, errs_one_in: 20, errs_end: true, ..plan };
        Box::pin(append::run(sim, plan))
    },
    marks: &[
        "rows checked with all their cells",
        "row that was coded wrong",
        "chunk laid out again",
        "reader: decoded from other fragments",
        "audit: a coded chunk is whole",
    ],
};

pub(super) const STORM: Scenario = Scenario {
    name: "ec-storm",
    about: "the same while processes crash, the network is bad and clients are cut off",
    run: |sim| run(sim, entry::STORM),
    marks: &[
        "recovery copies before the seal",
        "readers: far beyond the end",
        "readers: a file that was sealed just now",
        "chunk repaired",
        "reader: decoded from other fragments",
        "audit: a coded chunk is whole",
    ],
};

pub(super) const ROT: Scenario = Scenario {
    name: "ec-rot",
    about: "a disk with fragments rots, has unreadable sectors, loses writes and misplaces them",
    run: |sim| run(sim, Faults { rotten_disk: true, ..NONE }),
    marks: &[
        "disk: lost write",
        "bad replica found",
        "chunk repaired",
        "reader: decoded from other fragments",
        "audit: a coded chunk is whole",
    ],
};
