//! Cost of noting one operation: `cargo run --release -p metrics --example cost`.
#![expect(clippy::disallowed_methods, reason = "it measures real time")]

use std::hint::black_box;
use std::time::Instant;

use metrics::{Fact, Outcome, Registry, Step, Tracer};

/// Operations measured at a time.
const COUNT: u64 = 1_000_000;

/// CPU time of this thread so far: other load on the machine does not count.
fn cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux has it");
    text.split(' ').next().and_then(|word| word.parse().ok()).expect("a number")
}

fn main() {
    let tracer = Tracer::new(1, Registry::new());
    let peer = "127.0.0.1:4000".parse().expect("an address");
    let disk = base::DiskId::new(1 << 100);
    let run = |stages: u32, clock: bool| {
        let (began, before) = (Instant::now(), cpu_ns());
        let now = |fixed: u64| if clock { began.elapsed().as_nanos() as u64 } else { fixed };
        for number in 0..COUNT {
            let span = tracer.begin(tracer.fresh(), "append", Some(peer), now(number));
            let _entered = span.enter();
            for stage in 0..stages {
                let fact = if stage % 4 == 3 { Fact::Disk(disk) } else { Fact::Peer(peer) };
                let at = now(number);
                metrics::with_current(|span| span.note(Step::Sent, at, fact));
            }
            black_box(span.end(now(number), Outcome::Done));
        }
        (cpu_ns() - before) as f64 / COUNT as f64
    };
    for (what, stages) in [("chunkserver's append", 6), ("client's append to three", 12)] {
        for _ in 0..3 {
            let (bare, clocked) = (run(stages, false), run(stages, true));
            println!("{what}: {bare:.0} ns, {clocked:.0} ns with a look at the clock each");
        }
    }
}
