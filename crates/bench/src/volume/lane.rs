//! Lanes: the same operation in several ways, in turns, so that their figures can be compared.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::{LocalBoxFuture, try_join_all};
use runtime::Env;

use super::super::usage::Usage;
use super::super::{Error, Latencies, Processes, Row};

/// Length of a turn: long against a scheduler's whims, short against a neighbour's.
const TURN: Duration = Duration::from_millis(300);

/// The measured operation: number `n` from 0 on.
pub(super) type Work<'a> = Box<dyn Fn(u64) -> LocalBoxFuture<'a, Result<(), Error>> + 'a>;

/// One way of doing an operation, and its measured times.
pub(super) struct Lane<'a> {
    kind: &'static str,
    work: Work<'a>,
    next: Cell<u64>,
    latencies: Latencies,
    busy: Duration,
    cpu: Vec<(u64, BTreeMap<String, f64>)>,
    disk_bytes: u64,
}

impl<'a> Lane<'a> {
    pub(super) fn new(kind: &'static str, work: Work<'a>) -> Lane<'a> {
        let (next, latencies, busy) = Default::default();
        Lane { kind, work, next, latencies, busy, cpu: Vec::new(), disk_bytes: 0 }
    }

    /// Keeps `depth` operations under way for a turn, or until `most` are begun in all.
    async fn turn(&self, env: &Env, depth: usize, most: u64) -> Result<Latencies, Error> {
        let end = env.now() + TURN;
        let all = RefCell::new(Latencies::default());
        let workers = (0..depth).map(|_| async {
            while env.now() < end && self.next.get() < most {
                let n = self.next.get();
                self.next.set(n + 1);
                let started = env.now();
                (self.work)(n).await?;
                all.borrow_mut().add(env.now() - started);
            }
            Ok::<(), Error>(())
        });
        try_join_all(workers)
            .await
            .map_err(|error| Error::Failed(format!("{}: {error}", self.kind)))?;
        Ok(all.take())
    }
}

/// Parameters of a measurement of lanes.
#[derive(Clone, Copy)]
pub(super) struct Scenario {
    /// Bytes of an operation.
    pub(super) size: usize,
    /// Operations under way.
    pub(super) depth: usize,
    /// Operations of each lane at most: written data stays on disks.
    pub(super) most: u64,
    /// Time of all lanes together.
    pub(super) time: Duration,
}

/// Measures lanes in turns; the first is the core's own, the reference of the others.
pub(super) async fn measure(
    env: &Env,
    processes: &dyn Processes,
    scenario: Scenario,
    mut lanes: Vec<Lane<'_>>,
) -> Result<Vec<Row>, Error> {
    let Scenario { size, depth, most, time } = scenario;
    let end = env.now() + time;
    while env.now() < end && lanes.iter().any(|lane| lane.next.get() < most) {
        for lane in lanes.iter_mut().filter(|lane| lane.next.get() < most) {
            let written = processes.written_bytes();
            let before = Usage::now(processes);
            let started = env.now();
            let turn = lane.turn(env, depth, most).await?;
            lane.busy += env.now() - started;
            let after = Usage::now(processes);
            lane.cpu.push((turn.count(), after.cpu_per_op(&before, turn.count())));
            lane.disk_bytes += processes.written_bytes().saturating_sub(written);
            lane.latencies.merge(turn);
        }
    }
    let mut rows: Vec<Row> = Vec::new();
    for lane in lanes {
        let user_bytes = (lane.latencies.count() * size as u64) as f64;
        let mut row = Row {
            kind: Some(lane.kind.to_owned()),
            size: Some(size as u64),
            depth,
            mib_per_s: Some(user_bytes / lane.busy.as_secs_f64().max(1e-9) / f64::from(1 << 20)),
            ..Row::default()
        };
        if !lane.kind.ends_with("read") {
            // With the zeroes of growing stores: they fall in any lane's turn.
            row.disk_bytes_per_byte = Some(lane.disk_bytes as f64 / user_bytes.max(1.0));
        }
        row.average_cpu(&lane.cpu);
        lane.latencies.fill(&mut row, lane.busy);
        let core_us = rows.first().map_or(row.mean_us, |core| core.mean_us);
        row.ratio_core = Some(row.mean_us / core_us.max(1e-9));
        rows.push(row);
    }
    Ok(rows)
}
