//! The test run: stages with time budgets, one line over all of them at the end.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::shipped;

/// How long a run may be.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// Before each commit and in CI: under 45 minutes on 2 cores from a clean clone.
    Commit,
    /// Also soak, many seeds, and loom.
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
    /// The test binaries of these packages (of all others, when they are left out), as the first
    /// stage has built them. When asked for a part of the workspace, Cargo would build what they
    /// share again with that part's features.
    Built { only: &'static [&'static str], but: &'static [&'static str], run: Vec<String> },
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

/// The process tests start the binary that is shipped, not the one with the tests' features.
fn with_shipped() -> Vec<String> {
    let root = std::env::current_dir().unwrap_or_default();
    vec!["env".to_owned(), format!("CRATON_BINARY={}", root.join(shipped::BINARY).display())]
}

/// What is built to be tested. Examples are checked by clippy; there are no tests in documents.
const TESTS: &str = "--workspace --locked --lib --bins --tests --no-run";

fn minutes(count: u64) -> Duration {
    Duration::from_secs(count * 60)
}

fn stages(length: Length) -> Vec<Stage> {
    let cargo = |line: &str| words(&format!("cargo {line}"));
    // Seconds of fresh seeds, and seeds for each planted bug in its rare form.
    let sim = |fresh_s: u32, rare: u32| Step::Built {
        only: &["sim"],
        but: &[],
        run: words(&format!("env CRATON_SIM_FRESH_S={fresh_s} CRATON_SIM_RARE_SEEDS={rare}")),
    };
    let mut stages = vec![
        Stage {
            name: "build and clippy",
            budget: minutes(15),
            steps: vec![
                Step::Check("formatting", cargo("fmt --all --check")),
                Step::Check("tests build", cargo(&format!("test {TESTS}"))),
                Step::Check(
                    "clippy",
                    cargo("clippy --workspace --all-targets --locked -- -D warnings"),
                ),
                Step::Check("tidy", cargo("xtask tidy")),
                Step::Check("shipped binary", cargo("xtask shipped")),
            ],
        },
        Stage {
            name: "unit and property",
            budget: minutes(5),
            steps: vec![Step::Built { only: &[], but: &["craton", "sim"], run: Vec::new() }],
        },
        Stage { name: "simulation", budget: minutes(8), steps: vec![sim(60, 0)] },
        Stage {
            name: "processes",
            budget: minutes(8),
            // They wait for processes more than they compute: three at a time fill two cores.
            steps: vec![Step::Built {
                only: &["craton"],
                but: &[],
                run: with_shipped().into_iter().chain(words("RUST_TEST_THREADS=3")).collect(),
            }],
        },
        Stage {
            name: "clients",
            budget: minutes(4),
            steps: vec![Step::Tests(
                with_shipped().into_iter().chain(words("tests/clients/run.sh")).collect(),
            )],
        },
    ];
    if length == Length::Long {
        stages.push(Stage {
            name: "loom",
            budget: minutes(5),
            steps: vec![Step::Tests(words(
                "env RUSTFLAGS=--cfg=craton_loom cargo test --package runtime --locked --release \
                 --lib --target-dir target/loom loom",
            ))],
        });
        stages.push(Stage {
            name: "long load",
            budget: minutes(20),
            steps: vec![Step::Tests(words(
                "env CRATON_LOAD_S=600 cargo test --package craton --locked --test main -- \
                 kills condemn --include-ignored",
            ))],
        });
        stages.push(Stage {
            name: "clients, long",
            budget: minutes(10),
            steps: vec![Step::Tests(
                with_shipped().into_iter().chain(words("tests/clients/run.sh --long")).collect(),
            )],
        });
        stages.push(Stage {
            name: "rolling upgrade",
            budget: minutes(20),
            steps: vec![Step::Check("rolling upgrade", words("scripts/rolling-upgrade.sh"))],
        });
        stages.push(Stage {
            name: "fixed seeds with openraft's own checks",
            budget: minutes(30),
            steps: vec![Step::Tests(words(
                "cargo test --config profile.dev.package.validit.debug-assertions=true \
                 --package sim --locked --target-dir target/raft --test main fixed",
            ))],
        });
        stages.push(Stage {
            name: "chase-model of three appends",
            budget: minutes(20),
            steps: vec![Step::Built {
                only: &["client"],
                but: &[],
                run: words("env CRATON_CHASE_MODEL_APPENDS=3"),
            }],
        });
        stages.push(Stage {
            name: "long simulation",
            budget: minutes(120),
            steps: vec![sim(5400, 100)],
        });
    }
    stages
}

/// Runs all stages, also after a failure, and prints the sum.
pub fn run(length: Length) -> bool {
    let mut total = Counts::default();
    let mut report = Vec::new();
    let mut late = Vec::new();
    for stage in stages(length) {
        println!("\n== {} (budget {} min)", stage.name, stage.budget.as_secs() / 60);
        let started = now();
        let mut counts = Counts::default();
        for step in &stage.steps {
            run_step(step, &mut counts);
        }
        let took = started.elapsed();
        let over = if took > stage.budget { "  OVER BUDGET" } else { "" };
        if took > stage.budget {
            late.push(stage.name);
        }
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
    let over = match late.as_slice() {
        [] => String::new(),
        late => format!(" (OVER BUDGET: {})", late.join(", ")),
    };
    println!("{} passed, {} failed, {} skipped{over}", total.passed, total.failed, total.skipped);
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
        Step::Built { only, but, run } => {
            let built = match built() {
                Ok(built) => built,
                Err(error) => {
                    println!("no test binaries: {error}");
                    counts.failed += 1;
                    return;
                }
            };
            let wanted = |package: &str| {
                !but.contains(&package) && (only.is_empty() || only.contains(&package))
            };
            for test in built.iter().filter(|test| wanted(&test.package)) {
                let mut command = run.clone();
                command.extend([test.executable.clone(), "--show-output".to_owned()]);
                run_command(None, &command, Some(&test.dir), counts);
            }
            return;
        }
    };
    run_command(name, command, None, counts);
}

/// A test binary.
struct Built {
    package: String,
    /// Where its package lies: tests run there.
    dir: String,
    executable: String,
}

/// What `cargo test --no-run` has built, in its order.
fn built() -> Result<Vec<Built>, String> {
    let output = Command::new("cargo")
        .arg("test")
        .args(TESTS.split_whitespace())
        .arg("--message-format=json")
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err("the tests do not build".to_owned());
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let mut built = Vec::new();
    for line in text.lines() {
        let Ok(message) = serde_json::from_str::<serde_json::Value>(line) else { continue };
        let (Some(executable), Some(true), Some(manifest)) = (
            message["executable"].as_str(),
            message["profile"]["test"].as_bool(),
            message["manifest_path"].as_str(),
        ) else {
            continue;
        };
        let dir = manifest.strip_suffix("/Cargo.toml").unwrap_or(manifest);
        let package = dir.rsplit('/').next().unwrap_or(dir).to_owned();
        built.push(Built { package, dir: dir.to_owned(), executable: executable.to_owned() });
    }
    if built.is_empty() {
        return Err("cargo names none".to_owned());
    }
    built.sort_by(|a, b| (&a.package, &a.executable).cmp(&(&b.package, &b.executable)));
    Ok(built)
}

/// Runs a command; `name` is that of a check, without it tests are counted.
fn run_command(name: Option<&str>, command: &[String], dir: Option<&str>, counts: &mut Counts) {
    println!("-- {}", command.join(" "));
    let child = Command::new(&command[0])
        .args(&command[1..])
        .current_dir(dir.unwrap_or("."))
        .envs(dir.map(|dir| ("CARGO_MANIFEST_DIR", dir)))
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
    // Output of a binary that succeeds is in its log; that of one that fails, on screen too.
    let mut log = Log::create(command, dir.is_some());
    for line in output.lines().map_while(Result::ok) {
        log.line(&line);
        if let Some(closing) = line.strip_prefix("test result: ") {
            log.always(&line);
            found.passed += count_before(closing, " passed");
            found.failed += count_before(closing, " failed");
            found.skipped += count_before(closing, " ignored");
        } else if let Some(skipped) = line.strip_prefix("skipped: ") {
            // A test that lacks a right prints this and passes; it is moved over.
            log.always(&format!("   (counted as skipped: {skipped})"));
            found.skipped += 1;
            moved += 1;
        }
    }
    found.passed = found.passed.saturating_sub(moved);
    let good = child.wait().is_ok_and(|status| status.success());
    if !good {
        log.show();
    }
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
            let counted = found.passed + found.failed + found.skipped;
            if good && counted == 0 && dir.is_none() {
                println!("   the runner counted no test: FAILED");
                found.failed += 1;
            }
            counts.passed += found.passed;
            counts.failed += found.failed;
            counts.skipped += found.skipped;
        }
    }
}

/// Output of a command: shown as it comes, or kept in `target/test-logs` and shown on a failure.
struct Log {
    kept: Option<(std::path::PathBuf, Option<std::fs::File>, Vec<String>)>,
}

impl Log {
    fn create(command: &[String], keep: bool) -> Self {
        let kept = keep.then(|| {
            let binary = command.iter().find(|word| word.contains('/')).map_or("", String::as_str);
            let name = binary.rsplit('/').next().unwrap_or_default();
            let path = std::path::Path::new("target/test-logs").join(format!("{name}.log"));
            let file = std::fs::create_dir_all("target/test-logs")
                .and_then(|()| std::fs::File::create(&path));
            (path, file.ok(), Vec::new())
        });
        Self { kept }
    }

    fn line(&mut self, line: &str) {
        match &mut self.kept {
            Some((_, file, lines)) => {
                if let Some(file) = file {
                    let _ = writeln!(file, "{line}");
                }
                lines.push(line.to_owned());
            }
            None => println!("{line}"),
        }
    }

    /// A line that is for the screen in any case.
    fn always(&self, line: &str) {
        if self.kept.is_some() {
            println!("{line}");
        }
    }

    /// The names of what failed and what they printed: from the list of failures on where the
    /// binary got that far, all of it where it died earlier.
    fn show(&self) {
        let Some((path, _, lines)) = &self.kept else { return };
        let bad = |line: &&String| line.starts_with("test ") && line.ends_with("FAILED");
        lines.iter().filter(bad).for_each(|line| println!("{line}"));
        let from = lines.iter().rposition(|line| line == "failures:").map_or(0, |last| {
            // The runner prints the heading twice: before the outputs and before the names.
            lines[..last].iter().rposition(|line| line == "failures:").unwrap_or(last)
        });
        lines[from..].iter().for_each(|line| println!("{line}"));
        println!("   the whole output is in {}", path.display());
    }
}

fn count_before(line: &str, word: &str) -> u64 {
    let Some(end) = line.find(word) else { return 0 };
    let digits = line[..end].rsplit(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
    digits.parse().unwrap_or(0)
}
