//! Observability for an operator: traces across processes, and metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::harness::{
    Scratch, bad, configure, content, craton, good, json, leader, metrics, process, text,
};

fn put_traced(dir: &Path, file: &Path, to: &str) -> (String, String) {
    let output = craton(&["fs", "put", text(file), to, "--trace", "--cluster", text(dir)]);
    let shown = String::from_utf8(output.stderr).expect("text");
    assert!(output.status.success(), "{shown}");
    let trace = shown.lines().last().and_then(|line| line.strip_prefix("trace "));
    (trace.unwrap_or_else(|| panic!("no trace in {shown}")).to_owned(), shown)
}

fn operations(report: &Value) -> Vec<&Value> {
    report["operations"].as_array().expect("operations").iter().collect()
}

fn stages(operation: &Value) -> Vec<&str> {
    let stages = operation["stages"].as_array().expect("stages");
    stages.iter().filter_map(|stage| stage["stage"].as_str()).collect()
}

/// Names of `wanted` are there in this order.
fn in_order(operation: &Value, wanted: &[&str]) {
    let stages = stages(operation);
    let mut rest = stages.iter();
    for want in wanted {
        assert!(rest.any(|stage| stage == want), "no '{want}' in order in {operation}");
    }
    let times: Vec<f64> = operation["stages"]
        .as_array()
        .expect("stages")
        .iter()
        .filter_map(|stage| stage["after_us"].as_f64())
        .collect();
    assert!(times.is_sorted(), "stages out of order: {operation}");
}

#[test]
fn a_trace_shows_every_process_and_slow_operations_explain_themselves() {
    let mut scratch = Scratch::new("watch");
    let dir = scratch.cluster("cluster");
    let file = scratch.path("file");
    std::fs::write(&file, content(300_000, 1)).expect("a file");
    good(&["cluster", "up", "--dir", text(&dir), "--masters", "3", "--chunkservers", "3"]);
    let cluster = text(&dir).to_owned();

    let (trace, shown) = put_traced(&dir, &file, "/file");
    for stage in ["resolved", "formatted", "queued", "sent", "answer received", "acknowledged"] {
        assert!(shown.contains(stage), "the client does not show '{stage}': {shown}");
    }
    let report = json(&["trace", &trace, "--json", "--cluster", &cluster]);
    for id in ["cs1", "cs2", "cs3"] {
        let process = format!("chunkserver {id}");
        let of_it = |one: &&&Value| one["process"] == process && one["operation"] == "append";
        let all = operations(&report);
        let append = all.iter().find(of_it).unwrap_or_else(|| panic!("{id} has no append"));
        let path = ["admitted", "verified", "device submit", "device done", "answered", "sent"];
        in_order(append, &path);
        let done = stages(append).iter().position(|stage| *stage == "device done");
        let about = append["stages"][done.expect("found")]["about"].as_str().expect("text");
        assert!(about.contains(id) && about.contains("store"), "which disk: {about}");
    }
    let all = operations(&report);
    // One whose client has given it up, and asked another master, is answered and not sent.
    let is_sent = |one: &&&Value| one["operation"] == "create" && stages(one).contains(&"sent");
    let create = all.iter().find(is_sent).expect("a master's");
    in_order(create, &["proposed", "committed", "applied", "answered", "sent"]);
    let words = good(&["trace", &trace, "--cluster", &cluster]);
    assert!(words.contains("device done") && words.contains("not compared"), "{words}");

    bad(&["trace", "trc_77", "--cluster", &cluster], 1, "--trace");
    bad(&["trace", "77", "--cluster", &cluster], 2, "trc_");

    // Two masters stand still, shorter than an election takes: what the leader has proposed
    // waits for them. A tenth of the pause is slow here, since a command may start late on a busy
    // machine, and may ask the two first.
    for id in ["m1", "m2", "m3"] {
        configure(&dir.join(id).join("master.toml"), "slow_ms", "40");
        good(&["cluster", "restart", "--dir", &cluster, "master", id]);
    }
    let tries = (0..20).find_map(|turn| {
        let leader = leader(&dir, "ns0");
        let others = ["m1", "m2", "m3"].into_iter().filter(|id| **id != leader);
        let pids: Vec<String> = others.map(|id| process(&dir, id)["pid"].to_string()).collect();
        let signal = |name: &str| {
            assert!(Command::new("kill").arg(name).args(&pids).status().expect("kill").success());
        };
        let path = format!("/slow{turn}");
        let made = std::thread::scope(|scope| {
            signal("-STOP");
            let made = scope.spawn(|| craton(&["fs", "mkdir", &path, "--cluster", &cluster]));
            std::thread::sleep(Duration::from_millis(420));
            signal("-CONT");
            made.join().expect("it ends")
        });
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let slow = json(&["trace", "slow", "--limit", "50", "--json", "--cluster", &cluster]);
        let waits = ["committed", "read confirmed"];
        let explained = operations(&slow).into_iter().find(|one| {
            let waited = one["longest"]["stage"].as_str().is_some_and(|it| waits.contains(&it));
            one["process"].as_str().is_some_and(|it| it.starts_with("master ")) && waited
        });
        explained.cloned()
    });
    let explained = tries.expect("a slow operation of a leader");
    assert!(explained["took_us"].as_f64() >= Some(40_000.0), "{explained}");
    let leader = explained["process"].as_str().and_then(|it| it.strip_prefix("master "));
    let leader = leader.expect("a master");
    let trace = explained["trace"].as_str().expect("text");
    assert!(good(&["trace", "slow", "--cluster", &cluster]).contains(trace));
    let log = std::fs::read_to_string(dir.join(leader).join("log/craton.jsonl")).expect("a log");
    let line = log.lines().find(|line| line.contains("slow operation")).expect("a line about it");
    let line: Value = serde_json::from_str(line).expect("lines are JSON");
    assert!(line["trace"].as_str().is_some_and(|trace| trace.starts_with("trc_")), "{line}");

    expose(&dir, &cluster, &file);
}

/// The same cluster's metrics, after work of each kind.
fn expose(dir: &Path, cluster: &str, file: &Path) {
    assert!(craton(&["fs", "cat", "/file", "--cluster", cluster]).status.success());
    good(&["fs", "put", text(file), "/other", "--cluster", cluster]);
    let common = [
        "craton_info",
        "craton_operation_seconds",
        "craton_operation_failures_total",
        "craton_frames_received_total",
        "craton_network_sent_bytes_total",
        "craton_links",
        "craton_links_queued_bytes",
        "craton_calls_open",
        "craton_requests_open",
        "craton_connects_refused_total",
        "craton_task_overruns_total",
        "craton_buffers_used_bytes",
        "craton_buffers_budget_bytes",
        "craton_executor_sleeps_total",
    ];
    let chunkserver = [
        "craton_appends_total",
        "craton_append_bytes_total",
        "craton_reads_total",
        "craton_busy_total",
        "craton_disk_capacity_bytes",
        "craton_disk_used_bytes",
        "craton_disk_failed",
        "craton_disk_append_write_seconds",
        "craton_disk_read_seconds",
        "craton_disk_write_amplification_ratio",
        "craton_disk_corrupt_sectors_total",
        "craton_scrubbed_bytes_total",
        "craton_scrub_passes_total",
        "craton_damaged_total",
        "craton_replications_total",
    ];
    let master = [
        "craton_group_term",
        "craton_group_leading",
        "craton_group_elections_total",
        "craton_group_commit_seconds",
        "craton_led_chunks",
        "craton_led_chunks_under_replicated",
        "craton_repair_pending",
        "craton_repair_done_total",
        "craton_balance_moved_total",
    ];
    let leader = leader(dir, "ns0");
    for (id, own) in [("cs1", &chunkserver[..]), (&*leader, &master[..])] {
        let page = metrics(dir, id);
        let (_, body) = page.split_once("\r\n\r\n").expect("a body");
        let families = parse(body).unwrap_or_else(|why| panic!("{id}: {why}"));
        for name in common.iter().chain(own) {
            assert!(families.contains_key(*name), "{id} does not tell {name}");
        }
    }
    let page = metrics(dir, "cs1");
    let (_, body) = page.split_once("\r\n\r\n").expect("a body");
    let families = parse(body).expect("checked above");
    let value = |name: &str, want: &str| {
        let family = &families[name];
        family.samples.iter().filter(|(labels, _)| labels.contains(want)).map(|(_, v)| v).sum()
    };
    let appends: f64 = value("craton_appends_total", "");
    assert!(appends >= 1.0);
    let timed: f64 = value("craton_operation_seconds", "_count{operation=\"append\"}");
    assert!(timed >= appends, "{timed} of {appends} appends have a duration");
    let ratio: f64 = value("craton_disk_write_amplification_ratio", "");
    assert!(ratio >= 1.0, "{ratio}");
}

/// A family as it was read: its kind, and samples by name suffix and labels.
struct Family {
    kind: String,
    samples: Vec<(String, f64)>,
}

/// Reads Prometheus's text format (0.0.4) strictly: HELP, then TYPE, then all samples of the
/// family; no name or series twice; histograms with rising buckets, `+Inf`, sum and count.
fn parse(text: &str) -> Result<BTreeMap<String, Family>, String> {
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    let (mut help, mut now) = (None, None::<String>);
    if !text.ends_with('\n') {
        return Err("the last line has no end".to_owned());
    }
    for line in text.lines() {
        let bad = |why: &str| Err(format!("{why}: {line}"));
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let Some((name, words)) = rest.split_once(' ') else { return bad("no text") };
            if words.is_empty() {
                return bad("no help");
            }
            help = Some(name.to_owned());
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let Some((name, kind)) = rest.split_once(' ') else { return bad("no type") };
            if help.take().as_deref() != Some(name) {
                return bad("a type without help before it");
            }
            let known = ["counter", "gauge", "histogram"].contains(&kind);
            if !known || (kind == "counter") != name.ends_with("_total") {
                return bad("a type that does not fit");
            }
            let family = Family { kind: kind.to_owned(), samples: Vec::new() };
            if families.insert(name.to_owned(), family).is_some() {
                return bad("a family twice");
            }
            now = Some(name.to_owned());
        } else if !line.is_empty() && !line.starts_with('#') {
            let Some((series, value)) = line.rsplit_once(' ') else { return bad("no value") };
            let Ok(value) = value.parse::<f64>() else { return bad("no number") };
            let Some(name) = &now else { return bad("a sample before any family") };
            let family = families.get_mut(name).expect("inserted");
            let Some(rest) = series.strip_prefix(name.as_str()) else {
                return bad("a sample of another family");
            };
            if let Err(why) = check_series(rest, &family.kind) {
                return bad(&why);
            }
            if !seen.insert(series.to_owned()) {
                return bad("a series twice");
            }
            if family.kind != "gauge" && (value.is_nan() || value < 0.0) {
                return bad("a count below zero");
            }
            family.samples.push((rest.to_owned(), value));
        } else {
            return bad("neither sample nor HELP nor TYPE");
        }
    }
    for (name, family) in families.iter().filter(|(_, family)| family.kind == "histogram") {
        check_histogram(family).map_err(|why| format!("{name}: {why}"))?;
    }
    Ok(families)
}

/// Checks the text behind a family's name: a histogram's suffix, and labels.
fn check_series(rest: &str, kind: &str) -> Result<(), String> {
    let (suffix, labels) = rest.split_at(rest.find('{').unwrap_or(rest.len()));
    let good = match kind {
        "histogram" => ["_bucket", "_sum", "_count"].contains(&suffix),
        _ => suffix.is_empty(),
    };
    if !good {
        return Err("a suffix that does not fit".to_owned());
    }
    let Some(mut rest) = labels.strip_prefix('{') else { return Ok(()) };
    loop {
        let (name, after) = rest.split_once("=\"").ok_or("no label")?;
        let of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if name.is_empty() || !name.chars().all(of_name) {
            return Err(format!("'{name}' is no label name"));
        }
        // The quote that ends the value is the first that is not escaped.
        let mut escaped = false;
        let end = after.find(|c| {
            let ends = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        });
        rest = &after[end.ok_or("a value without an end")? + 1..];
        match rest {
            "}" => return Ok(()),
            _ => rest = rest.strip_prefix(',').ok_or("no comma between labels")?,
        }
    }
}

fn check_histogram(family: &Family) -> Result<(), String> {
    let mut buckets: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    let mut counts = BTreeMap::new();
    let mut sums = BTreeSet::new();
    for (series, value) in &family.samples {
        let labels = series.trim_start_matches(|c: char| c != '{').trim_matches(['{', '}']);
        if series.starts_with("_bucket") {
            let at = labels.rfind("le=\"").ok_or("a bucket without le")?;
            let bound = labels[at + 4..].trim_end_matches('"');
            let bound = bound.parse::<f64>().map_err(|_| format!("'{bound}' is no bound"))?;
            let others = labels[..at].trim_end_matches(',').to_owned();
            buckets.entry(others).or_default().push((bound, *value));
        } else if series.starts_with("_count") {
            counts.insert(labels.to_owned(), *value);
        } else {
            sums.insert(labels.to_owned());
        }
    }
    for (labels, buckets) in &buckets {
        let rising = buckets.windows(2).all(|two| two[0].0 < two[1].0 && two[0].1 <= two[1].1);
        let last = buckets.last().ok_or("no bucket")?;
        if !rising || last.0 != f64::INFINITY || counts.get(labels) != Some(&last.1) {
            return Err(format!("buckets of {{{labels}}} do not add up"));
        }
        if !sums.contains(labels) {
            return Err(format!("{{{labels}}} has no sum"));
        }
    }
    if buckets.len() == counts.len() { Ok(()) } else { Err("a count without buckets".to_owned()) }
}

#[test]
fn the_reader_of_metrics_is_strict() {
    let good = "# HELP a_total A.\n# TYPE a_total counter\na_total{x=\"\\\"},\"} 1\n";
    assert_eq!(parse(good).map(|families| families.len()), Ok(1));
    for bad in [
        "a_total 1\n",
        "# TYPE a_total counter\na_total 1\n",
        "# HELP a A.\n# TYPE a counter\na 1\n",
        "# HELP a_total A.\n# TYPE a_total counter\nb 1\n",
        "# HELP a_total A.\n# TYPE a_total counter\na_total 1\na_total 1\n",
        "# HELP a_total A.\n# TYPE a_total counter\na_total x\n",
        "# HELP a_total A.\n# TYPE a_total counter\na_total{x=\"1} 1\n",
        "# HELP a_total A.\n# TYPE a_total counter\na_total 1",
        "# HELP h H.\n# TYPE h histogram\nh_bucket{le=\"1\"} 2\nh_bucket{le=\"+Inf\"} 1\n\
         h_sum 1\nh_count 1\n",
        "# HELP h H.\n# TYPE h histogram\nh_bucket{le=\"1\"} 1\nh_sum 1\nh_count 1\n",
    ] {
        assert!(parse(bad).is_err(), "{bad}");
    }
}
