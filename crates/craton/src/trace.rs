//! `craton trace`: the stages of operations, across processes.
//!
//! Clocks of different processes are not compared. Each stage is shown by the time since its
//! operation began in the same process; trace and peer connect the operations.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::SocketAddr;

use base::TraceId;
use client::Client;
use futures_util::future::{join, join_all};
use object_index::Local;
use object_proto::{PeerRole, PeerState};
use runtime::{Duration, Env};
use serde::Serialize;
use wire::control::{
    ControlReply, ControlRequest, Group, TraceFact, TraceReply, TraceRequest, TracedOperation,
    TracedOutcome, TracedStage,
};

use crate::args::{TraceArgs, Traced};
use crate::connect::with_client;
use crate::exit::{Code, Done, Failure};
use crate::output::{print_error, print_json, print_line, print_table, table, warn};

/// Time for an object manager or server to answer.
const ASK_TIME: Duration = Duration::from_secs(2);

/// Names of peers and disks, for output.
#[derive(Default, Debug)]
struct Names {
    peers: BTreeMap<SocketAddr, String>,
    disks: BTreeMap<base::DiskId, String>,
}

/// One operation, with the process that reports it.
struct Row<'a> {
    reply: &'a TraceReply,
    operation: &'a TracedOperation,
}

/// Wait of a stage: since the stage before it.
#[derive(Clone, Copy)]
struct Wait<'a> {
    stage: &'a TracedStage,
    wait_ns: u64,
}

/// Runs the command.
pub fn run(args: &TraceArgs) -> Done {
    with_client(&args.connection, async |client| {
        let names = names(&client).await?;
        match args.what {
            Traced::One(trace) => {
                let replies = collect(&client, &TraceRequest::Find { trace }).await?;
                let rows = rows(&replies);
                if rows.is_empty() {
                    return Err(Failure::failed(format!(
                        "no process knows {trace}: each keeps its last operations only. Repeat \
                         the operation with --trace, which has it kept longer, or see 'craton \
                         trace slow'"
                    )));
                }
                if args.json {
                    print_rows(&rows, &names)
                } else {
                    print_trace(trace, &rows, &names)
                }
            }
            Traced::Slow => {
                let request = TraceRequest::Slow { limit: args.limit };
                let replies = collect(&client, &request).await?;
                let mut rows = rows(&replies);
                rows.sort_by_key(|row| std::cmp::Reverse(row.operation.took_ns));
                rows.truncate(args.limit as usize);
                if args.json {
                    print_rows(&rows, &names)
                } else {
                    print_slow(&rows, &replies, &names)
                }
            }
        }
    })
}

/// Prints this process's own stages for `--trace`.
pub fn print_own(env: &Env, trace: TraceId) {
    let request = TraceRequest::Find { trace };
    let own =
        TraceReply::answer(&request, "this process", env.tracer().ring(), env.now().as_nanos());
    let rows = rows(std::slice::from_ref(&own));
    print_error(describe(trace, &rows, &Names::default()).trim_end());
    print_error(format_args!("trace {trace}"));
}

async fn names(client: &Client) -> Result<Names, Failure> {
    let mut names = Names::default();
    for master in client.cluster_info().await?.masters {
        names.peers.insert(master.addr, master.name);
    }
    names.peers.extend(object_peers(client).await);
    for (_, status) in client.status().await? {
        for server in status.servers {
            for disk in server.disks {
                names.disks.insert(disk.disk, format!("{} {}", server.name, disk.path));
            }
            names.peers.insert(server.addr, server.name);
        }
    }
    Ok(names)
}

/// Object managers and servers that are up, by name; none where there is no object service.
async fn object_peers(client: &Client) -> Vec<(SocketAddr, String)> {
    let service = roles::object::service(client, 1, Local::default());
    let Ok(status) = service.status().await else { return Vec::new() };
    let managers = status
        .peers
        .into_iter()
        .filter(|one| one.peer.role == PeerRole::Manager && one.state == PeerState::Up);
    let servers = status.servers.into_iter().filter(|one| one.state == PeerState::Up);
    managers
        .map(|one| (one.peer.addr, one.peer.name))
        .chain(servers.map(|one| (one.addr, one.name)))
        .collect()
}

/// Answers of all processes that are asked, or why there is none.
async fn ask_all(
    client: &Client,
    request: &TraceRequest,
) -> Result<Vec<(SocketAddr, Result<TraceReply, String>)>, Failure> {
    let calls = object_peers(client).await.into_iter().map(async |(addr, name)| {
        let asked = ControlRequest::Trace(request.clone());
        let answer = match client.ask_peer(addr, asked, ASK_TIME).await {
            Ok(ControlReply::Trace(reply)) => Ok(reply),
            Ok(_) => Err(format!("{name}: not an answer to a question about traces")),
            Err(error) => Err(format!("{name}: {error}")),
        };
        (addr, answer)
    });
    let (core, objects) = join(client.traces(request), join_all(calls)).await;
    Ok(core?.into_iter().chain(objects).collect())
}

async fn collect(client: &Client, request: &TraceRequest) -> Result<Vec<TraceReply>, Failure> {
    let mut replies: Vec<TraceReply> = Vec::new();
    for (addr, answer) in ask_all(client, request).await? {
        match answer {
            // Roles of one process ('craton up') report the same operations.
            Ok(reply) if replies.iter().any(|known| same(known, &reply)) => {}
            Ok(reply) => replies.push(reply),
            Err(why) => warn(&format!("{addr} is left out: {why}")),
        }
    }
    if replies.is_empty() {
        let text = "no process has answered what was asked about traces, see the warnings";
        return Err(Failure::new(Code::Unavailable, text));
    }
    Ok(replies)
}

fn same(one: &TraceReply, other: &TraceReply) -> bool {
    !one.operations.is_empty() && one.operations == other.operations
}

fn rows(replies: &[TraceReply]) -> Vec<Row<'_>> {
    let of = |reply| move |operation| Row { reply, operation };
    replies.iter().flat_map(|reply| reply.operations.iter().map(of(reply))).collect()
}

fn millis(nanos: u64) -> f64 {
    nanos as f64 / 1e6
}

impl Names {
    fn peer(&self, addr: SocketAddr) -> String {
        match self.peers.get(&addr) {
            Some(name) => format!("{name} ({addr})"),
            None => addr.to_string(),
        }
    }

    fn fact(&self, fact: Option<TraceFact>) -> String {
        match fact {
            None => String::new(),
            Some(TraceFact::Peer(addr)) => self.peer(addr),
            Some(TraceFact::Disk(disk)) => match self.disks.get(&disk) {
                Some(place) => format!("disk {place}"),
                None => disk.to_string(),
            },
            Some(TraceFact::Chunk(chunk)) => chunk.to_string(),
            Some(TraceFact::Bytes(bytes)) => format!("{bytes} bytes"),
            Some(TraceFact::Group(group)) => {
                Group::from_number(group).map_or_else(|| group.to_string(), |it| it.to_string())
            }
        }
    }
}

fn outcome(outcome: TracedOutcome) -> String {
    match outcome {
        TracedOutcome::Open => "not ended".to_owned(),
        TracedOutcome::Done => "done".to_owned(),
        TracedOutcome::Failed(kind) => format!("failed: {kind:?}").to_lowercase(),
    }
}

/// The stage that was waited for longest before the operation ended.
fn longest(operation: &TracedOperation) -> Option<Wait<'_>> {
    let mut before = 0;
    let mut found: Option<Wait<'_>> = None;
    let open = operation.outcome == TracedOutcome::Open;
    let within = |stage: &&TracedStage| open || stage.after_ns <= operation.took_ns;
    for stage in operation.stages.iter().filter(within) {
        let wait_ns = stage.after_ns.saturating_sub(before);
        before = stage.after_ns;
        if found.is_none_or(|longest| wait_ns > longest.wait_ns) {
            found = Some(Wait { stage, wait_ns });
        }
    }
    found
}

fn print_trace(trace: TraceId, rows: &[Row<'_>], names: &Names) -> Done {
    print_line(describe(trace, rows, names).trim_end())
}

fn describe(trace: TraceId, rows: &[Row<'_>], names: &Names) -> String {
    let mut text = format!(
        "{trace}: milliseconds since the operation began in the same process; clocks of \
         different processes are not compared\n"
    );
    let mut process = "";
    for Row { reply, operation } in rows {
        if reply.process != process {
            process = &reply.process;
            let _ = writeln!(text, "{process}");
        }
        let from =
            operation.peer.map_or_else(String::new, |peer| format!(" for {}", names.peer(peer)));
        let took = match operation.outcome {
            TracedOutcome::Open => String::new(),
            _ => format!(" in {:.3} ms", millis(operation.took_ns)),
        };
        let _ = writeln!(text, "  {}{from}: {}{took}", operation.name, outcome(operation.outcome));
        for stage in &operation.stages {
            let line = format!(
                "    {:>10.3}  {:<16} {}",
                millis(stage.after_ns),
                stage.step,
                names.fact(stage.fact)
            );
            let _ = writeln!(text, "{}", line.trim_end());
        }
        if operation.stages_left_out > 0 {
            let _ = writeln!(text, "                {} more stages", operation.stages_left_out);
        }
        if let Some(Wait { stage, wait_ns }) = longest(operation) {
            let wait = millis(wait_ns);
            let line =
                format!("longest: {wait:.3} ms until '{}' {}", stage.step, names.fact(stage.fact));
            let _ = writeln!(text, "                {}", line.trim_end());
        }
    }
    text
}

fn print_slow(rows: &[Row<'_>], replies: &[TraceReply], names: &Names) -> Done {
    if rows.is_empty() {
        let slow = replies.iter().map(|reply| reply.slow_ns).min().unwrap_or_default();
        return print_line(&format!(
            "no slow operations: none took {:.0} ms or longer in the last minutes",
            millis(slow)
        ));
    }
    let mut out = table(&[
        "took ms",
        "operation",
        "process",
        "ended s ago",
        "longest ms",
        "stage",
        "about",
        "trace",
    ]);
    for Row { reply, operation } in rows {
        let wait = longest(operation);
        let ended = operation.began_ns.saturating_add(operation.took_ns);
        out.add_row(vec![
            format!("{:.1}", millis(operation.took_ns)),
            operation.name.clone(),
            reply.process.clone(),
            format!("{:.0}", reply.now_ns.saturating_sub(ended) as f64 / 1e9),
            wait.map_or_else(String::new, |wait| format!("{:.1}", millis(wait.wait_ns))),
            wait.map_or_else(String::new, |wait| wait.stage.step.clone()),
            wait.map_or_else(String::new, |wait| names.fact(wait.stage.fact)),
            operation.trace.to_string(),
        ]);
    }
    print_table(out, &[0, 3, 4])
}

#[derive(Serialize)]
struct JsonOperations {
    operations: Vec<JsonOperation>,
}

/// Times in microseconds, of the process's own clock.
#[derive(Serialize)]
struct JsonOperation {
    trace: String,
    process: String,
    operation: String,
    peer: Option<String>,
    outcome: String,
    ended_us_ago: f64,
    took_us: f64,
    longest: Option<JsonStage>,
    stages: Vec<JsonStage>,
    stages_left_out: u32,
}

#[derive(Serialize)]
struct JsonStage {
    stage: String,
    /// Since the operation began in this process.
    after_us: f64,
    /// Since the stage before.
    waited_us: f64,
    about: String,
}

fn print_rows(rows: &[Row<'_>], names: &Names) -> Done {
    let micros = |nanos: u64| nanos as f64 / 1e3;
    let stage = |wait: Wait<'_>| JsonStage {
        stage: wait.stage.step.clone(),
        after_us: micros(wait.stage.after_ns),
        waited_us: micros(wait.wait_ns),
        about: names.fact(wait.stage.fact),
    };
    let row = |row: &Row<'_>| {
        let operation = row.operation;
        let ended = operation.began_ns.saturating_add(operation.took_ns);
        let mut before = 0;
        let waits = operation.stages.iter().map(|stage| {
            let wait_ns = stage.after_ns.saturating_sub(before);
            before = stage.after_ns;
            Wait { stage, wait_ns }
        });
        JsonOperation {
            trace: operation.trace.to_string(),
            process: row.reply.process.clone(),
            operation: operation.name.clone(),
            peer: operation.peer.map(|peer| names.peer(peer)),
            outcome: outcome(operation.outcome),
            ended_us_ago: micros(row.reply.now_ns.saturating_sub(ended)),
            took_us: micros(operation.took_ns),
            longest: longest(operation).map(stage),
            stages: waits.map(stage).collect(),
            stages_left_out: operation.stages_left_out,
        }
    };
    print_json(&JsonOperations { operations: rows.iter().map(row).collect() })
}
