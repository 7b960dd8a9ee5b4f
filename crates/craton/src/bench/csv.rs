//! `craton bench --csv`: a run's figures as rows with the columns of `docs/figures/figures.csv`.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;

use base::Civil;
use runtime::Env;
use serde::Serialize;
use serde_json::Value;

use super::args::OutputArgs;
use crate::exit::{Done, Failure, io};
use crate::output::print_json;

/// The columns.
const HEADER: &str = "figure,value,unit,commit,machine,seed,date,command";
/// Fields that say what was measured, in the order in which a figure's name has them.
const NAMES: [&str; 5] = ["kind", "op", "policy", "size", "depth"];
/// Fields that are no figures.
const LEFT_OUT: [&str; 3] = ["replicas", "ops", "concurrency"];

/// Where the figures of a run go.
pub struct Sink {
    json: bool,
    rows: Option<Rows>,
}

/// The file with a row for each figure, and what its rows have alike.
struct Rows {
    path: PathBuf,
    file: File,
    /// What the rows call the machine.
    machine: String,
    /// The command that was given, without what says where its figures go.
    command: String,
    date: Civil,
}

impl Sink {
    /// Opens the file, which is made when it is not there: before minutes of measuring.
    pub fn open(output: &OutputArgs, env: &Env) -> Result<Sink, Failure> {
        let rows = output.csv.as_ref().map(|path| -> Result<Rows, Failure> {
            let file = OpenOptions::new().append(true).create(true).open(path);
            let file = file.map_err(|error| io("open", path, &error))?;
            let (path, machine, command) = (path.clone(), output.machine.clone(), command());
            let date = Civil::of(env.unix_time().as_nanos() / 1_000_000_000);
            Ok(Rows { path, file, machine, command, date })
        });
        Ok(Sink { json: output.json, rows: rows.transpose()? })
    }

    /// Shows a report, as JSON or with `print` as a table, then appends its figures to the file: when that fails, they
    /// have been shown.
    pub fn put<T: Serialize>(&self, report: &T, print: impl FnOnce(&T) -> Done) -> Done {
        match self.json {
            true => print_json(report)?,
            false => print(report)?,
        }
        let Some(rows) = &self.rows else { return Ok(()) };
        let report = serde_json::to_value(report);
        let report = report.map_err(|error| Failure::failed(error.to_string()))?;
        rows.append(&report).map_err(|error| io("write", &rows.path, &error))
    }
}

/// The command that was given, without what says where its figures go.
fn command() -> String {
    let mut given = vec!["craton".to_owned()];
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--csv" | "--machine" => _ = args.next(),
            "--json" => {}
            text if text.starts_with("--csv=") || text.starts_with("--machine=") => {}
            _ => given.push(arg),
        }
    }
    given.join(" ")
}

impl Rows {
    fn append(&self, report: &Value) -> std::io::Result<()> {
        let mut file = &self.file;
        if file.metadata()?.len() == 0 {
            writeln!(file, "{HEADER}")?;
        }
        let Civil { year, month, day, .. } = self.date;
        let (machine, command) = (field(&self.machine), field(&self.command));
        let common = format!("-,{year}-{month:02}-{day:02},{command}");
        file.write_all(rows(report, &machine, &common).as_bytes())
    }
}

/// A row for each figure of a report: `NAME-METRIC`, where the name has the benchmark, what was done, the size and
/// the depth.
fn rows(report: &Value, machine: &str, common: &str) -> String {
    let bench = report["bench"].as_str().unwrap_or_default();
    let commit = env!("CRATON_COMMIT");
    let mut text = String::new();
    for row in report["results"].as_array().into_iter().flatten() {
        let name = name(bench, row);
        for (metric, value) in row.as_object().into_iter().flatten() {
            let metric = metric.as_str();
            let Some(value) = value.as_f64().filter(|_| is_figure(metric)) else { continue };
            let (metric, unit) = (metric.replace('_', "-"), unit(metric));
            let digits = if value.abs() < 100.0 { 2 } else { 0 };
            text +=
                &format!("{name}-{metric},{value:.digits$},{unit},{commit},{machine},{common}\n");
        }
    }
    text
}

/// The name of a row's figures.
fn name(bench: &str, row: &Value) -> String {
    let mut name = format!("bench-{bench}");
    for of in NAMES {
        let value =
            if of == "depth" { row.get(of).or(row.get("concurrency")) } else { row.get(of) };
        match value {
            Some(Value::String(text)) => name += &format!("-{}", text.replace([' ', '_'], "-")),
            Some(Value::Number(number)) if of == "depth" => name += &format!("-d{number}"),
            Some(Value::Number(number)) => name += &format!("-{number}"),
            _ => {}
        }
    }
    name
}

fn is_figure(metric: &str) -> bool {
    !NAMES.contains(&metric) && !LEFT_OUT.contains(&metric)
}

fn unit(metric: &str) -> &'static str {
    match metric {
        "ops_per_s" | "ops_s" => "1/s",
        "mib_per_s" => "MiB/s",
        "mb_s" => "MB/s",
        "longest_ms" => "ms",
        "cpu_us_per_op_servers" | "cpu_us_per_op_client" => "us",
        _ if metric.ends_with("_us") => "us",
        _ => "ratio",
    }
}

/// A field that holds no separator of the file.
fn field(text: &str) -> String {
    text.replace(['"', ',', '\n', '\r'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn figures_of_a_report_are_rows_with_names_and_units() {
        let report = json!({"bench": "append", "results": [
            {"size": 4096, "depth": 32, "policy": "rep3", "replicas": 3, "ops": 10, "ops_per_s": 1234.5,
             "mean_us": 25.931, "ratio": 1.4, "cpu_us_per_op": {"chunkserver": 3.0}, "tail": "p99"},
            {"op": "list_prefixes", "size": 1000, "concurrency": 8, "ops_s": 9.0},
        ]});
        let text = rows(&report, &field("vm, small"), "-,1970-01-02,craton bench append");
        let commit = env!("CRATON_COMMIT");
        let tail = format!("{commit},vm  small,-,1970-01-02,craton bench append");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        for line in [
            format!("bench-append-rep3-4096-d32-mean-us,25.93,us,{tail}"),
            format!("bench-append-rep3-4096-d32-ops-per-s,1234,1/s,{tail}"),
            format!("bench-append-rep3-4096-d32-ratio,1.40,ratio,{tail}"),
            format!("bench-append-list-prefixes-1000-d8-ops-s,9.00,1/s,{tail}"),
        ] {
            assert!(lines.contains(&line.as_str()), "{line} in {text}");
        }
        assert!(lines.iter().all(|line| line.split(',').count() == HEADER.split(',').count()));
    }

    #[test]
    fn columns_are_those_of_the_figures() {
        let page = include_str!("../../../../docs/figures/figures.csv");
        assert_eq!(page.lines().next(), Some(HEADER));
    }
}
