//! The test run: stages with time budgets, one line over all of them at the end.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long a run may be.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// Before each commit and in CI: under 45 minutes on 2 cores from a clean clone.
    Commit,
    /// Soak, many seeds.
    Long,
}

#[derive(Default, Clone, Copy)]
struct Counts {
    passed: u64,
    failed: u64,
    skipped: u64,
}

struct Stage {
    name: &'static str,
    budget: Duration,
    steps: Vec<Step>,
}

enum Step {
    /// A command that passes or fails as one check.
    Check(&'static str, Vec<String>),
    /// A command whose output has closing lines of a test runner, counted one by one.
    Tests(Vec<String>),
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

fn minutes(count: u64) -> Duration {
    Duration::from_secs(count * 60)
}

fn stages(length: Length) -> Vec<Stage> {
    let cargo = |line: &str| words(&format!("cargo {line}"));
    let sim = |fresh_s: &str| {
        words(&format!(
            "env CRATON_SIM_FRESH_S={fresh_s} cargo test --package sim --locked -- --show-output"
        ))
    };
    let mut stages = vec![
        Stage {
            name: "build and clippy",
            budget: minutes(15),
            steps: vec![
                Step::Check("formatting", cargo("fmt --all --check")),
                Step::Check("tests build", cargo("test --workspace --locked --no-run")),
                Step::Check(
                    "clippy",
                    cargo("clippy --workspace --all-targets --locked -- -D warnings"),
                ),
                Step::Check("tidy", cargo("xtask tidy")),
            ],
        },
        Stage {
            name: "unit and property",
            budget: minutes(5),
            steps: vec![Step::Tests(cargo(
                "test --workspace --exclude craton --exclude sim --locked --no-fail-fast",
            ))],
        },
        Stage { name: "simulation", budget: minutes(8), steps: vec![Step::Tests(sim("60"))] },
        Stage {
            name: "processes",
            budget: minutes(8),
            steps: vec![Step::Tests(cargo(
                "test --package craton --locked --no-fail-fast -- --show-output",
            ))],
        },
    ];
    if length == Length::Long {
        stages.push(Stage {
            name: "long load",
            budget: minutes(20),
            steps: vec![Step::Tests(words(
                "env CRATON_LOAD_S=600 cargo test --package craton --locked --test main kills",
            ))],
        });
        stages.push(Stage {
            name: "long simulation",
            budget: minutes(120),
            steps: vec![Step::Tests(sim("7200"))],
        });
    }
    stages
}

/// Runs all stages, also after a failure, and prints the sum.
pub fn run(length: Length) -> bool {
    let mut total = Counts::default();
    let mut report = Vec::new();
    for stage in stages(length) {
        println!("\n== {} (budget {} min)", stage.name, stage.budget.as_secs() / 60);
        let started = now();
        let mut counts = Counts::default();
        for step in &stage.steps {
            run_step(step, &mut counts);
        }
        let took = started.elapsed();
        let over = if took > stage.budget { "  OVER BUDGET" } else { "" };
        report.push(format!(
            "{:<18} {:>5} s of {:>4} s  {} passed, {} failed, {} skipped{over}",
            stage.name,
            took.as_secs(),
            stage.budget.as_secs(),
            counts.passed,
            counts.failed,
            counts.skipped,
        ));
        total.passed += counts.passed;
        total.failed += counts.failed;
        total.skipped += counts.skipped;
    }
    println!("\n== stages");
    report.iter().for_each(|line| println!("{line}"));
    println!("{} passed, {} failed, {} skipped", total.passed, total.failed, total.skipped);
    total.failed == 0 && total.passed > 0
}

#[expect(clippy::disallowed_methods, reason = "the test run is no part of the system under test")]
fn now() -> Instant {
    Instant::now()
}

fn run_step(step: &Step, counts: &mut Counts) {
    let (name, command) = match step {
        Step::Check(name, command) => (Some(*name), command),
        Step::Tests(command) => (None, command),
    };
    println!("-- {}", command.join(" "));
    let child = Command::new(&command[0])
        .args(&command[1..])
        .env("CARGO_TERM_COLOR", "never")
        .stdout(Stdio::piped())
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => {
            println!("cannot start {}: {error}", command[0]);
            counts.failed += 1;
            return;
        }
    };
    let (mut found, mut moved) = (Counts::default(), 0);
    let output = BufReader::new(child.stdout.take().expect("piped"));
    for line in output.lines().map_while(Result::ok) {
        let mut out = std::io::stdout().lock();
        let _ = writeln!(out, "{line}");
        if let Some(closing) = line.strip_prefix("test result: ") {
            found.passed += count_before(closing, " passed");
            found.failed += count_before(closing, " failed");
            found.skipped += count_before(closing, " ignored");
        } else if let Some(skipped) = line.strip_prefix("skipped: ") {
            // A test that lacks a tool or a right prints this and passes; it is moved over.
            println!("   (counted as skipped: {skipped})");
            found.skipped += 1;
            moved += 1;
        }
    }
    found.passed = found.passed.saturating_sub(moved);
    let good = child.wait().is_ok_and(|status| status.success());
    match name {
        Some(name) if good => {
            counts.passed += 1;
            println!("   {name}: ok");
        }
        Some(name) => {
            counts.failed += 1;
            println!("   {name}: FAILED");
        }
        None => {
            if !good && found.failed == 0 {
                found.failed += 1; // Did not build, or died before its closing line.
            }
            if good && found.passed + found.failed + found.skipped == 0 {
                println!("   the runner counted no test: FAILED");
                found.failed += 1;
            }
            counts.passed += found.passed;
            counts.failed += found.failed;
            counts.skipped += found.skipped;
        }
    }
}

fn count_before(line: &str, word: &str) -> u64 {
    let Some(end) = line.find(word) else { return 0 };
    let digits = line[..end].rsplit(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
    digits.parse().unwrap_or(0)
}
