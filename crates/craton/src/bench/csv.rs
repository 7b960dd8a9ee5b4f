//! `craton bench --csv`: a run's figures as rows with the columns of `docs/figures/figures.csv`.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;

use base::Civil;
use serde::Serialize;
use serde_json::Value;

use super::args::OutputArgs;
use crate::connect;
use crate::exit::{Done, Failure};
use crate::output::print_json;

/// The columns.
const HEADER: &str = "figure,value,unit,commit,machine,seed,date,command";
/// Fields that say what was measured, in the order in which a figure's name has them.
const NAMES: [&str; 5] = ["kind", "op", "policy", "size", "depth"];
/// Fields that are no figures.
const LEFT_OUT: [&str; 3] = ["replicas", "ops", "concurrency"];

/// Prints a report as JSON, if that is asked for, and appends its figures to a file. True when it was printed.
pub fn put_out<T: Serialize>(report: &T, output: &OutputArgs) -> Result<bool, Failure> {
    if let Some(path) = &output.csv {
        let now = connect::runtime()?.env().unix_time();
        let date = Civil::of(now.as_nanos() / 1_000_000_000);
        let sink = Sink { path, machine: &output.machine, command: command(), date };
        append(report, &sink)?;
    }
    if output.json {
        print_json(report)?;
    }
    Ok(output.json)
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

/// Where a run's figures go.
struct Sink<'a> {
    /// The file: made with a header when it is not there.
    path: &'a Path,
    /// What the rows call the machine.
    machine: &'a str,
    /// The command that was given, without the option for this file.
    command: String,
    /// The day.
    date: Civil,
}

/// Appends a report's figures: `NAME-METRIC`, where the name has the benchmark, what was done, the size
/// and the depth.
fn append<T: Serialize>(report: &T, sink: &Sink<'_>) -> Done {
    let report =
        serde_json::to_value(report).map_err(|error| Failure::failed(error.to_string()))?;
    let text = rows(&report, sink);
    write(sink.path, &text).map_err(|error| {
        let path = sink.path.display();
        Failure::setup(format!("cannot append to {path}: {error}; name another file with --csv"))
    })
}

fn write(path: &Path, rows: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().append(true).create(true).open(path)?;
    if file.metadata()?.len() == 0 {
        writeln!(file, "{HEADER}")?;
    }
    file.write_all(rows.as_bytes())
}

fn rows(report: &Value, sink: &Sink<'_>) -> String {
    let bench = report["bench"].as_str().unwrap_or_default();
    let (commit, machine, command) =
        (env!("CRATON_COMMIT"), field(sink.machine), field(&sink.command));
    let Civil { year, month, day, .. } = sink.date;
    let mut text = String::new();
    for row in report["results"].as_array().into_iter().flatten() {
        let name = name(bench, row);
        for (metric, value) in row.as_object().into_iter().flatten() {
            let metric = metric.as_str();
            let Some(value) = value.as_f64().filter(|_| is_figure(metric)) else { continue };
            let (metric, unit) = (metric.replace('_', "-"), unit(metric));
            let digits = if value.abs() < 100.0 { 2 } else { 0 };
            text += &format!(
                "{name}-{metric},{value:.digits$},{unit},{commit},{machine},-,\
                 {year}-{month:02}-{day:02},{command}\n"
            );
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
        let command = "craton bench append --size 1,2".to_owned();
        let date = Civil::of(86_400);
        let sink = Sink { path: Path::new("-"), machine: "vm, small", command, date };
        let text = rows(&report, &sink);
        let commit = env!("CRATON_COMMIT");
        let tail = format!("{commit},vm  small,-,1970-01-02,craton bench append --size 1 2");
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
}
