//! Measurements of `craton bench volume`, and reasons for those that are left out.

use serde_json::Value;

use crate::harness::{Scratch, bad, good, json, process, text};
use crate::volumes::up;

fn row<'a>(report: &'a Value, kind: &str, size: u64, depth: u64) -> &'a Value {
    let rows = report["results"].as_array().expect("rows");
    let is = |row: &&Value| {
        row["kind"] == kind
            && (row["depth"] == depth || depth == 0)
            && (row["size"] == size || size == 0)
    };
    rows.iter().find(is).unwrap_or_else(|| panic!("no row {kind} {size} {depth}: {report}"))
}

fn positive(row: &Value, what: &str) {
    assert!(row[what].as_f64().is_some_and(|value| value > 0.0), "{what} in {row}");
}

#[test]
fn volume_is_measured_beside_the_core() {
    let mut scratch = Scratch::new("volume-bench");
    let dir = scratch.cluster("cluster");
    up(&dir);
    let cluster = text(&dir).to_owned();
    let tiny = ["--seconds", "1", "--fill-mib", "2", "--creates", "3", "--json"];
    let report = json(&[&["bench", "volume", "--cluster", &cluster][..], &tiny].concat());
    assert_eq!(report["bench"], "volume");
    let row = |kind: &str, size: u64, depth: u64| row(&report, kind, size, depth);
    let times = ["mean_us", "p50_us", "p99_us", "p999_us", "p9999_us", "ops_per_s"];
    for depth in [1, 32] {
        for kind in ["core append", "volume random write", "nbd random write"] {
            let row = row(kind, 4096, depth);
            times.iter().for_each(|what| positive(row, what));
            positive(row, "ratio_core");
            // Three copies at least; stores that grow write zeroes ahead, too.
            let device = row["disk_bytes_per_byte"].as_f64().expect("a number");
            assert!(device >= 3.0, "{row}");
        }
        for kind in ["core random read", "volume random read", "nbd random read"] {
            times.iter().for_each(|what| positive(row(kind, 4096, depth), what));
        }
    }
    for kind in ["core append", "volume write", "nbd write", "core read", "volume read", "nbd read"]
    {
        let row = row(kind, 128 << 10, 8);
        positive(row, "mib_per_s");
        let cpu = row["cpu_us_per_op"].as_object().expect("by role");
        for role in ["bench", "block-manager", "block-server", "chunkserver", "frontend", "master"]
        {
            assert!(cpu.contains_key(role), "{role} in {row}");
        }
        let sum: f64 = cpu.values().map(|us| us.as_f64().expect("a number")).sum();
        let [servers, client] = ["cpu_us_per_op_servers", "cpu_us_per_op_client"]
            .map(|what| row[what].as_f64().expect("a number"));
        assert!((servers + client - sum).abs() < 1e-6, "{row}");
    }
    // Of fewer requests it may be less than the clock shows.
    positive(row("volume random read", 4096, 32), "cpu_us_per_op_client");
    assert_eq!(row("core append", 4096, 1)["ratio_core"], 1.0);
    for kind in ["create volume", "clone volume", "clone volume, read all segments"] {
        assert_eq!(row(kind, 0, 16)["ops"], 3);
    }
    let left_out = report["left_out"].as_array().expect("parts").iter();
    let left_out: Vec<_> = left_out.map(|one| one["part"].as_str().expect("a name")).collect();
    assert_eq!(left_out, ["collection", "recovery", "takeover"]);
    nothing_stays(&cluster);
}

fn nothing_stays(cluster: &str) {
    assert_eq!(json(&["volume", "ls", "--json", "--cluster", cluster]), serde_json::json!([]));
    assert_eq!(good(&["fs", "ls", "/", "--cluster", cluster]).matches(".bench").count(), 0);
}

#[test]
fn all_parts_of_a_volume_are_measured() {
    let mut scratch = Scratch::new("volume-bench-all");
    let dir = scratch.cluster("cluster");
    up(&dir);
    let cluster = text(&dir).to_owned();
    let before = ["bs1", "bs2"].map(|id| process(&dir, id)["pid"].clone());
    let tiny = ["--fill-mib", "4", "--takeover-mib", "8", "--seconds", "1", "--creates", "3"];
    let bench = ["bench", "volume", "--cluster", &cluster, "--json"];
    let report = json(&[&bench[..], &tiny, &["--only", "all"]].concat());
    assert!(report.get("left_out").is_none(), "{report}");
    let row = |kind: &str| row(&report, kind, 0, 0);
    // Without collection nothing is copied; with it all live data fits in the quota.
    assert_eq!(row("without collection")["write_amplification"], 1.0);
    let with = row("with collection");
    assert!(with["write_amplification"].as_f64().is_some_and(|value| value > 1.0), "{with}");
    assert!(with["live_share"].as_f64().is_some_and(|value| value > 0.5), "{with}");
    // 7,168 writes have no p99.99.
    assert_eq!((&with["ops"], &with["tail"]), (&7168.into(), &"p99".into()));
    positive(with, "ratio_tail");
    positive(row("recovery, 4 KiB writes"), "mean_us");
    positive(row("recovery, 128 KiB writes"), "mean_us");
    for kind in ["volume write", "volume read", "nbd write", "nbd read", "a sleep of 5 ms"] {
        positive(row(&format!("takeover: {kind}")), "longest_ms");
    }
    // No lease is shorter, and writes wait for its end.
    let longest = row("takeover: volume write")["longest_ms"].as_f64().expect("a number");
    assert!(longest > 50.0, "{longest} ms for a takeover");
    let after = ["bs1", "bs2"].map(|id| process(&dir, id)["pid"].clone());
    let same = before.iter().zip(&after).filter(|(before, after)| before == after).count();
    assert_eq!(same, 1, "one of {before:?} was killed, and started again: {after:?}");
    nothing_stays(&cluster);

    // Other users' volumes are not disturbed for a figure.
    good(&["volume", "create", "mine", "--size", "1GiB", "--cluster", &cluster]);
    let only = ["bench", "volume", "--only", "takeover", "--cluster", &cluster];
    bad(&only, 1, "the cluster has a volume mine");
}

#[test]
fn objects_are_measured_beside_the_core() {
    let mut scratch = Scratch::new("object-bench");
    let dir = scratch.cluster("cluster");
    let roles = ["--masters", "1", "--chunkservers", "3", "--block-servers", "0"];
    let objects = ["--object-managers", "1", "--object-servers", "1", "--gateways", "1"];
    good(&[&["cluster", "up", "--dir", text(&dir)][..], &roles, &objects].concat());
    let cluster = text(&dir).to_owned();
    let bench = ["bench", "object", "--cluster", &cluster, "--seconds", "1", "--json"];
    // 1 MiB more than one append of the core, and than one of the buffers in between.
    let tiny = ["--size", "4096,2097152", "--concurrency", "1,8", "--keys", "1200"];
    let report = json(&[&bench[..], &tiny].concat());
    assert_eq!(report["bench"], "object");
    let rows = report["results"].as_array().expect("rows");
    let one = |op: &str, size: u64, concurrency: u64| {
        let is = |row: &&Value| {
            (&row["op"], &row["size"], &row["concurrency"])
                == (&op.into(), &size.into(), &concurrency.into())
        };
        rows.iter().find(is).unwrap_or_else(|| panic!("no row {op} {size}: {report}"))
    };
    let mut fields: Vec<&String> = rows[0].as_object().expect("a row").keys().collect();
    fields.sort_unstable();
    let mut wanted = vec!["op", "size", "concurrency", "ops_s", "mb_s", "mean_us", "p99_us"];
    wanted.extend(["cpu_us_per_op", "core_cpu_us", "ratio", "disk_bytes_per_byte"]);
    wanted.sort_unstable();
    assert_eq!(fields, wanted);
    let numbers = ["ops_s", "mean_us", "p99_us", "core_cpu_us", "ratio"];
    for concurrency in [1, 8] {
        for size in [4096, 2 << 20] {
            for op in ["core_append", "put", "core_read", "get"] {
                let row = one(op, size, concurrency);
                numbers.iter().chain(&["mb_s"]).for_each(|what| positive(row, what));
                let cpu = row["cpu_us_per_op"].as_object().expect("by role");
                let all = ["chunkserver", "gateway", "master", "object-manager", "object-server"];
                assert!(all.iter().all(|role| cpu.contains_key(*role)), "{row}");
                assert!(!cpu.contains_key("bench"), "the load is not among them: {row}");
                assert_eq!(row["disk_bytes_per_byte"].is_null(), op != "put", "{row}");
            }
            // Three copies, and what the core's own side wrote is not among them.
            let device = one("put", size, concurrency)["disk_bytes_per_byte"].as_f64();
            assert!(device.is_some_and(|bytes| (2.9..40.0).contains(&bytes)), "{device:?}");
            assert_eq!(one("core_append", size, concurrency)["ratio"], 1.0);
        }
        for op in ["list", "list_prefixes"] {
            let row = one(op, 1000, concurrency);
            numbers.iter().for_each(|what| positive(row, what));
        }
    }
    // Nothing of it stays.
    assert_eq!(json(&["bucket", "ls", "--json", "--cluster", &cluster]), serde_json::json!([]));
    let left = good(&["fs", "ls", "/", "--cluster", &cluster]);
    assert_eq!(left.matches(".bench").count(), 0, "{left}");
    // The table of people, payloads that are not signed, and one operation alone.
    let only = ["--only", "put", "--size", "4096", "--concurrency", "1", "--unsigned"];
    let shown = good(&[&bench[..6], &only].concat());
    assert!(shown.contains("core_append") && shown.contains("put"), "{shown}");
    assert!(!shown.contains("core_read"), "{shown}");
}
