//! The core and S3, in turns, so that their figures can be compared.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::{LocalBoxFuture, try_join_all};
use runtime::Env;

use super::super::usage::{DeviceBytes, METRICS_AGE};
use super::super::{Error, Latencies, Processes, Row, THIS_PROCESS};
use super::report::ObjectRow;

/// Length of a turn: long against a scheduler's whims, short against a neighbour's.
const TURN: Duration = Duration::from_millis(500);
/// Roles that are the core, where roles have processes of their own.
const CORE_ROLES: [&str; 2] = ["master", "chunkserver"];
/// A role that shows that they have.
const OWN_ROLE: &str = "gateway";

/// The measured operation: number `n` from 0 on, of the worker of an index.
pub(super) type Work<'a> = Box<dyn Fn(usize, u64) -> LocalBoxFuture<'a, Result<(), Error>> + 'a>;

/// One of the two, and its measured times.
pub(super) struct Side<'a> {
    op: &'static str,
    work: Work<'a>,
    next: &'a Cell<u64>,
    latencies: Latencies,
    busy: Duration,
    cpu_us: BTreeMap<String, f64>,
}

impl<'a> Side<'a> {
    /// `next` is the number of its next operation.
    pub(super) fn new(op: &'static str, next: &'a Cell<u64>, work: Work<'a>) -> Side<'a> {
        let (latencies, busy, cpu_us) = Default::default();
        Side { op, work, next, latencies, busy, cpu_us }
    }

    /// Keeps `depth` operations under way for a time.
    async fn turn(&self, env: &Env, depth: usize, time: Duration) -> Result<Latencies, Error> {
        let end = env.now() + time;
        let all = RefCell::new(Latencies::default());
        let all = &all;
        let workers = (0..depth).map(|worker| async move {
            while env.now() < end {
                let n = self.next.get();
                self.next.set(n + 1);
                let started = env.now();
                (self.work)(worker, n).await?;
                all.borrow_mut().add(env.now() - started);
            }
            Ok::<(), Error>(())
        });
        try_join_all(workers)
            .await
            .map_err(|error| Error::Failed(format!("{}: {error}", self.op)))?;
        Ok(all.take())
    }

    async fn measured_turn(
        &mut self,
        env: &Env,
        depth: usize,
        processes: &dyn Processes,
    ) -> Result<(), Error> {
        let before = processes.cpu_us();
        let started = env.now();
        let turn = self.turn(env, depth, TURN).await?;
        self.busy += env.now() - started;
        for (role, now) in processes.cpu_us() {
            let used = now - before.get(&role).copied().unwrap_or_default();
            *self.cpu_us.entry(role).or_default() += used;
        }
        self.latencies.merge(turn);
        Ok(())
    }

    /// Its row, without what compares it.
    fn row(self, scenario: &Scenario) -> ObjectRow {
        let ops = self.latencies.count().max(1) as f64;
        let mut times = Row::default();
        self.latencies.fill(&mut times, self.busy);
        let mut cpu = self.cpu_us;
        cpu.remove(THIS_PROCESS);
        cpu.values_mut().for_each(|us| *us /= ops);
        ObjectRow {
            op: self.op,
            size: scenario.size as u64,
            concurrency: scenario.depth,
            ops_s: times.ops_per_s,
            mb_s: Some(times.ops_per_s * scenario.size as f64 / 1e6),
            mean_us: times.mean_us,
            p99_us: times.p99_us,
            cpu_us_per_op: cpu,
            ..ObjectRow::default()
        }
    }
}

/// Parameters of a measurement.
#[derive(Clone, Copy)]
pub(super) struct Scenario {
    /// Bytes of an operation, or names.
    pub(super) size: usize,
    /// Operations under way.
    pub(super) depth: usize,
    /// Time of both sides together.
    pub(super) time: Duration,
    /// It writes: device bytes are counted.
    pub(super) writes: bool,
}

/// Measures both in turns: the core's row, then the other.
pub(super) async fn measure<'a>(
    env: &Env,
    processes: &dyn Processes,
    scenario: Scenario,
    (mut core, mut own): (Side<'a>, Side<'a>),
) -> Result<[ObjectRow; 2], Error> {
    let depth = scenario.depth;
    // First turns open connections and chunks; they are not counted.
    core.turn(env, depth, TURN / 4).await?;
    own.turn(env, depth, TURN / 4).await?;
    let end = env.now() + scenario.time;
    while env.now() < end {
        core.measured_turn(env, depth, processes).await?;
        own.measured_turn(env, depth, processes).await?;
    }
    let disk_bytes = match scenario.writes && !processes.metrics().is_empty() {
        true => {
            // Alone: metrics are older than a turn, and the core's turns write more.
            env.sleep(METRICS_AGE).await;
            let before = DeviceBytes::now(processes);
            let written = own.turn(env, depth, TURN.max(scenario.time / 2)).await?;
            env.sleep(METRICS_AGE).await;
            let user_bytes = (written.count() * scenario.size as u64).max(1);
            Some(DeviceBytes::now(processes).since(before) as f64 / user_bytes as f64)
        }
        false => None,
    };
    let (mut core, mut own) = (core.row(&scenario), own.row(&scenario));
    core.core_cpu_us = core_cpu_us(&core.cpu_us_per_op);
    core.ratio = 1.0;
    own.core_cpu_us = core.core_cpu_us;
    own.ratio = own.cpu_us() / own.core_cpu_us.max(1e-3);
    own.disk_bytes_per_byte = disk_bytes;
    Ok([core, own])
}

/// CPU of the core's processes: of all when one process has all roles.
fn core_cpu_us(by_role: &BTreeMap<String, f64>) -> f64 {
    let is_core = |role: &str| !by_role.contains_key(OWN_ROLE) || CORE_ROLES.contains(&role);
    by_role.iter().filter(|(role, _)| is_core(role)).map(|(_, us)| us).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn core_is_masters_and_chunkservers_where_roles_have_processes() {
        let of = |roles: &[(&str, f64)]| {
            core_cpu_us(&roles.iter().map(|(role, us)| ((*role).to_owned(), *us)).collect())
        };
        assert_eq!(of(&[("master", 1.0), ("chunkserver", 2.0), ("gateway", 4.0)]), 3.0);
        assert_eq!(of(&[("master", 1.0)]), 1.0);
        assert_eq!(of(&[("object-server", 8.0), ("chunkserver", 2.0), ("gateway", 4.0)]), 2.0);
    }
}
