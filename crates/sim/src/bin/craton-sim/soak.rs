//! `craton-sim soak`: fresh seeds of all scenarios, with a record of what was run.
//!
//! The record has a line for each range of seeds: commit, scenario, range, `good` or `FAILED` with
//! the violation's first line, separated by tabs. Seeds are never run twice: a scenario goes on
//! behind its last seed in the record. A run that is killed repeats one batch at most.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::time::SystemTime;

use crate::failure::{Done, Failure, io};
use sim::Scenario;

use crate::args::{Seeds, SoakArgs, parse_seeds};
use crate::{find, print_line, quietly, threads};

/// The record of a scenario.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Past {
    /// Behind the last seed of any commit; 0 without a seed.
    next: u64,
    /// Seeds of the commit that runs now.
    count: u64,
}

/// Runs until stopped, or until each scenario has had its seeds.
pub fn run(args: &SoakArgs) -> Done {
    let scenarios: Vec<&'static Scenario> = match args.scenarios.is_empty() {
        true => sim::SCENARIOS.iter().collect(),
        false => args.scenarios.iter().map(|name| find(name)).collect::<Result<_, _>>()?,
    };
    let text = match std::fs::read_to_string(&args.record) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(io("read", &args.record, &error)),
    };
    let mut past = read_record(&text, &args.commit)
        .map_err(|what| Failure::setup(format!("{}: {what}", args.record.display())))?;
    let mut record = open(&args.record, &text)?;
    let first = first_seed();
    let threads = args.threads.map_or_else(threads, usize::from);
    let mut failed = 0;
    loop {
        // The one with the fewest seeds: the order of the table decides between equals.
        let of = |scenario: &Scenario| past.get(scenario.name).copied().unwrap_or_default();
        let next = scenarios.iter().min_by_key(|scenario| of(scenario).count);
        let scenario = next.expect("there are scenarios");
        let mut at = of(scenario);
        if args.until.is_some_and(|until| at.count >= until) {
            break;
        }
        if at.next == 0 {
            at.next = first;
        }
        let most = args.until.map_or(args.batch, |until| args.batch.min(until - at.count));
        let (line, ran, bad) = batch(scenario, at.next..at.next + most, threads, &args.commit);
        print_line(line.trim_end())?;
        record.write_all(line.as_bytes()).map_err(|error| io("write to", &args.record, &error))?;
        failed += u64::from(bad);
        let after = Past { next: at.next + ran, count: at.count + ran };
        past.insert(scenario.name.to_owned(), after);
    }
    match failed {
        0 => Ok(()),
        count => {
            let record = args.record.display();
            Err(Failure::failed(format!("{count} seeds failed: {record} has their lines")))
        }
    }
}

/// Runs seeds until one fails. Answers the lines of the record, the count of seeds that ran, and
/// whether the last of them failed.
fn batch(
    scenario: &Scenario,
    seeds: std::ops::Range<u64>,
    threads: usize,
    commit: &str,
) -> (String, u64, bool) {
    let line = |from: u64, to: u64, what: &str| {
        format!("{commit}\t{}\t{from}..{to}\t{what}\n", scenario.name)
    };
    match quietly(|| sim::run_seeds(scenario, seeds.clone(), threads, |_, _| ())) {
        Ok(count) => (line(seeds.start, seeds.end, "good"), count, false),
        Err(failure) => {
            let seed = failure.seed;
            let mut lines = String::new();
            if seed > seeds.start {
                lines += &line(seeds.start, seed, "good");
            }
            let what = failure.violation.lines().next().unwrap_or_default().replace('\t', " ");
            lines += &line(seed, seed + 1, &format!("FAILED {what}"));
            (lines, seed + 1 - seeds.start, true)
        }
    }
}

/// Opens the record for lines at its end. A line that a kill has cut off is not continued.
fn open(path: &Path, text: &str) -> Result<File, Failure> {
    if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
        std::fs::create_dir_all(dir).map_err(|error| io("make", dir, &error))?;
    }
    let opened = OpenOptions::new().create(true).append(true).open(path);
    let mut file = opened.map_err(|error| io("write to", path, &error))?;
    if !text.is_empty() && !text.ends_with('\n') {
        file.write_all(b"\n").map_err(|error| io("write to", path, &error))?;
    }
    Ok(file)
}

/// The seeds that each scenario has had. A last line without an end does not count.
fn read_record(text: &str, commit: &str) -> Result<BTreeMap<String, Past>, String> {
    let mut past: BTreeMap<String, Past> = BTreeMap::new();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    for (index, line) in whole.lines().enumerate() {
        let mut words = line.split('\t');
        let (by, name, seeds) = (words.next(), words.next(), words.next());
        let Some(Seeds { start, end }) = seeds.and_then(|text| parse_seeds(text).ok()) else {
            // The rest of a line that a kill has cut off.
            if words.next().is_none() {
                continue;
            }
            return Err(format!("line {} names no seeds: remove it", index + 1));
        };
        let of = past.entry(name.unwrap_or_default().to_owned()).or_default();
        of.next = of.next.max(end);
        if by == Some(commit) {
            of.count += end - start;
        }
    }
    Ok(past)
}

/// First seed of a scenario that has had none yet: fixed seeds are small numbers, these are not.
#[expect(clippy::disallowed_methods, reason = "what is fresh depends on the hour")]
fn first_seed() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    since.as_secs()
}
