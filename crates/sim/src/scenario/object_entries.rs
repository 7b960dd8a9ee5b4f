//! The scenarios of objects: loads, and faults of each.

use std::time::Duration;

use object_testing::Fate;

use super::entry::{STORM, Scenario};
use super::object_clients::Kind;
use super::objects::{Plan, run};
use crate::nemesis::{Faults, NONE};

pub(super) const OBJECTS: Scenario = Scenario {
    name: "objects",
    about: "buckets and objects while owners, gateways, chunkservers and masters crash and are cut off",
    run: |sim| {
        let (kind, load) = (Kind::All, Duration::from_secs(10));
        let plan = Plan { faults: STORM, fate: LOSSY, kind, load, splits: false };
        Box::pin(run(sim, plan))
    },
    marks: &[
        "object: manager leads",
        "object: owner rules",
        "object: waits for the lease before",
        "object: a request came again",
        "object: the trash is emptied",
        "object: a silent session is closed",
        "table: log kept for its data",
        "object: a log is counted",
        "object: a log is collected",
        "objects: a manager crashes",
        "objects: a manager stands still",
        "cut: an object server from managers",
        "cut: heartbeats of object servers are lost",
        "cut: answers to object servers are lost",
        "cut: a manager from object servers",
        "objects: an owner crashes",
        "objects: an operator moves a range",
        "objects: a gateway crashes",
        "objects: a gateway asks over the network",
        "object: parts are dropped",
    ],
};

pub(super) const RACES: Scenario = Scenario {
    name: "object-races",
    about: "creates, swaps and retries of few keys; answers are lost, and owners change",
    run: |sim| {
        let faults = Faults { server_crashes: true, ..NONE };
        let (kind, load) = (Kind::Races, Duration::from_secs(14));
        let plan = Plan { faults, fate: WORSE, kind, load, splits: false };
        Box::pin(run(sim, plan))
    },
    marks: &[
        "object: owner rules",
        "object: a request came again",
        "object: answered by a former owner",
        "objects: an owner crashes",
        "objects: an owner stands still",
        "objects: an operator moves a range",
        "objects: a gateway is held up",
    ],
};

pub(super) const VERSIONS: Scenario = Scenario {
    name: "object-versions",
    about: "a bucket with versions, enabled and suspended, and locks, while owners and gateways change and clocks are set",
    run: |sim| {
        let faults = Faults { server_crashes: true, master_crashes: true, ..NONE };
        let (kind, load) = (Kind::Versions, Duration::from_secs(14));
        let plan = Plan { faults, fate: LOSSY, kind, load, splits: false };
        Box::pin(run(sim, plan))
    },
    marks: &[
        "object: owner rules",
        "object: answered by a former owner",
        "object: moved out of a log",
        "object: a log is dropped",
        "object: parts are dropped",
        "object: a locked version stays",
        "object: a version that was locked is removed",
        "object: no lock ends, as clocks are apart",
        "objects: a manager's clock is set",
        "objects: an owner's clock is set",
        "objects: an owner crashes",
        "objects: a gateway crashes",
    ],
};

pub(super) const KEYS_AND_SETTINGS: Scenario = Scenario {
    name: "object-keys",
    about: "access keys and settings of buckets are changed, while managers change and gateways are cut off",
    run: |sim| {
        let faults = Faults { server_crashes: true, master_crashes: true, ..NONE };
        let (kind, load) = (Kind::Keys, Duration::from_secs(14));
        let plan = Plan { faults, fate: LOSSY, kind, load, splits: false };
        Box::pin(run(sim, plan))
    },
    marks: &[
        "object: manager leads",
        "object: what is kept is used, as managers are silent",
        "object: a change waits for gateways",
        "objects: a manager crashes",
        "objects: a manager stands still",
        "objects: a gateway crashes",
        "objects: a gateway is cut off from managers",
        "objects: a gateway asks over the network",
    ],
};

pub(super) const DAYS: Scenario = Scenario {
    name: "object-days",
    about: "lifecycle of short days against overwrites, tags, locks and completions, while owners and gateways change and clocks are set",
    run: |sim| {
        let faults = Faults { server_crashes: true, master_crashes: true, ..NONE };
        let (kind, load) = (Kind::Days, Duration::from_secs(20));
        let plan = Plan { faults, fate: LOSSY, kind, load, splits: false };
        Box::pin(run(sim, plan))
    },
    marks: &[
        "object: an object expires",
        "object: an object has changed before it expired",
        "object: an older version is removed by its age",
        "object: a delete marker is removed by its age",
        "object: an upload is aborted by a rule",
        "object: a locked version outlives its days",
        "object: a version that was locked is removed",
        "object: a pass of lifecycle over a bucket ends",
        "object: a pass of lifecycle goes on",
        "objects: a manager's clock is set",
        "objects: an owner's clock is set",
        "objects: an owner crashes",
        "objects: a gateway crashes",
    ],
};

pub(super) const COLLECT: Scenario = Scenario {
    name: "object-collect",
    about: "files of bodies that are collected all the time, by counts that are wrong at times, while reads are slow and owners die",
    run: |sim| {
        let faults = Faults { server_crashes: true, master_crashes: true, ..NONE };
        let (kind, load) = (Kind::Collect, Duration::from_secs(14));
        let plan = Plan { faults, fate: LOSSY, kind, load, splits: false };
        Box::pin(run(sim, plan))
    },
    marks: &[
        "object: owner rules",
        "object: moved out of a file",
        "object: a file of bodies is collected",
        "object: a count of what lives was wrong",
        "object: the trash is emptied",
        "object: parts are dropped",
        "objects: an owner crashes",
        "objects: an owner stands still",
        "objects: a gateway crashes",
    ],
};

pub(super) const GATEWAYS_DIE: Scenario = Scenario {
    name: "object-gateways",
    about: "gateways die in bodies, sleep past their session, and come back; in the end all lose power at once",
    run: |sim| {
        let faults = Faults { server_crashes: true, ..NONE };
        let (kind, load) = (Kind::Gateways, Duration::from_secs(90));
        let plan = Plan { faults, fate: LOSSY, kind, load, splits: false };
        Box::pin(run(sim, plan))
    },
    marks: &[
        "object: owner rules",
        "object: a silent session is closed",
        "object: a file of a closed session is sealed",
        "object: the directory of a session is removed",
        "object: a file is announced again",
        "object: the trash is emptied",
        "objects: a gateway sleeps past its session",
        "objects: a gateway crashes",
        "objects: all lose power at once",
        "objects: an owner crashes",
    ],
};

pub(super) const RANGES_SPLIT: Scenario = Scenario {
    name: "object-ranges",
    about: "ranges are split again and again, also within a bucket, while owners and managers crash and stand still in each step",
    run: |sim| {
        let faults = Faults { server_crashes: true, master_crashes: true, ..NONE };
        let (kind, load) = (Kind::All, Duration::from_secs(14));
        let plan = Plan { faults, fate: RETRIED, kind, load, splits: true };
        Box::pin(run(sim, plan))
    },
    marks: &[
        "objects: an operator splits a range",
        "object: a range is to be split for its load",
        "objects: an operator moves a range",
        "objects: the owner of a range that is split stands still",
        "objects: the owner of a range that is split crashes",
        "objects: the owner of a range that is split is cut off",
        "objects: a manager stands still",
        "objects: a manager crashes",
        "object: the halves of a range are filled",
        "object: a range is cut",
        "object: a range is split",
        "object: the end of a split is asked for again",
        "object: a split is withdrawn",
        "object: the directory of a range is removed",
        "object: what is another half's is removed",
        "object: answered by a former owner",
        "table: forked",
    ],
};

/// Between gateways and owners: many changes are sent to an owner and answered by the next one.
const RETRIED: Fate =
    Fate { lose: 12, late_one_in: 40, late: Duration::from_secs(3), double: 10, stray: 10 };
/// The same, quieter, and with answers that are very late.
const LOSSY: Fate =
    Fate { lose: 60, late_one_in: 40, late: Duration::from_secs(3), double: 30, stray: 30 };
const WORSE: Fate =
    Fate { lose: 25, late_one_in: 20, late: Duration::from_secs(14), double: 10, stray: 10 };
