//! The checkers find what they are to find.

use std::time::Duration;

use base::{ChunkId, Epoch};
use runtime::Class;
use runtime::sim::Sim;
use sim::cluster::harm::Harms;
use sim::oracle::Oracle;
use sim::register::{Did, Operation, Sure, check};
use sim::{Scenario, run_seed};

const FIRST: Epoch = Epoch::new(1);
const SECOND: Epoch = Epoch::new(2);

fn written() -> (Oracle, Vec<u8>) {
    let oracle = Oracle::new();
    oracle.opened("/f", FIRST, 0, 7).unwrap();
    let mut bytes = oracle.next("/f", FIRST, 33);
    bytes.extend(oracle.next("/f", FIRST, 67));
    oracle.acked("/f", FIRST, 60).unwrap();
    (oracle, bytes)
}

#[test]
fn a_lost_acknowledged_byte_is_found() {
    let (oracle, bytes) = written();
    assert!(oracle.whole("/f", &bytes[..60]).is_ok());
    assert!(oracle.whole("/f", &bytes).is_ok());
    assert!(oracle.whole("/f", &bytes[..59]).is_err());
    assert!(oracle.opened("/f", SECOND, 59, 8).is_err());
}

#[test]
fn wrong_and_invented_bytes_are_found() {
    let (oracle, mut bytes) = written();
    bytes[10] ^= 1;
    assert!(oracle.read("/f", 0, &bytes[..20]).is_err());
    bytes[10] ^= 1;
    assert!(oracle.read("/f", 5, &bytes[5..90]).is_ok());
    bytes.push(0);
    assert!(oracle.read("/f", 0, &bytes).is_err());
}

#[test]
fn a_read_that_goes_back_is_found() {
    let (oracle, bytes) = written();
    oracle.read("/f", 0, &bytes[..80]).unwrap();
    assert!(oracle.opened("/f", SECOND, 70, 8).is_err());
    assert!(oracle.opened("/f", SECOND, 80, 8).is_ok());
}

#[test]
fn an_answer_below_what_was_acknowledged_is_found() {
    let (oracle, bytes) = written();
    let reading = oracle.begin_read("/f");
    assert_eq!(reading.floor(), 60);
    assert!(oracle.read_ended(&reading, 0, 100, &bytes[..59]).is_err());
    assert!(oracle.read_ended(&reading, 0, 59, &bytes[..59]).is_ok(), "all that it asked for");
    assert!(oracle.read_ended(&reading, 0, 50, &bytes[..51]).is_err(), "more than it asked for");
    assert!(oracle.read_ended(&reading, 70, 30, &[]).is_ok());
    assert!(oracle.read_ended(&reading, 0, 100, &bytes[..60]).is_ok());
    assert!(oracle.len_ended(&reading, 59).is_err());
    assert!(oracle.len_ended(&reading, 101).is_err());
}

#[test]
fn an_answer_below_what_another_reader_was_shown_is_found() {
    let (oracle, bytes) = written();
    let early = oracle.begin_read("/f");
    oracle.read_ended(&early, 0, 100, &bytes[..80]).unwrap();
    assert!(oracle.read_ended(&early, 0, 100, &bytes[..60]).is_ok(), "it began before");
    let late = oracle.begin_read("/f");
    assert!(oracle.read_ended(&late, 0, 100, &bytes[..79]).is_err());
    assert!(oracle.len_ended(&late, 79).is_err() && oracle.len_ended(&late, 80).is_ok());
    oracle.len_ended(&late, 90).unwrap();
    assert!(oracle.len_ended(&oracle.begin_read("/f"), 89).is_err());
}

#[test]
fn an_old_writer_that_is_acknowledged_is_found() {
    let (oracle, bytes) = written();
    oracle.opened("/f", SECOND, 80, 8).unwrap();
    assert!(oracle.acked("/f", FIRST, 80).is_ok(), "its answer was on the way");
    assert!(oracle.acked("/f", FIRST, 81).is_err());
    let fresh = oracle.next("/f", SECOND, 10);
    assert!(oracle.read("/f", 80, &fresh).is_ok());
    assert!(oracle.read("/f", 80, &bytes[80..90]).is_err(), "what the old one wrote there");
}

#[test]
fn a_sealed_length_that_changes_is_found() {
    let oracle = Oracle::new();
    let chunk = ChunkId::new(5);
    assert!(oracle.sealed(chunk, 10).is_ok() && oracle.sealed(chunk, 10).is_ok());
    assert!(oracle.sealed(chunk, 9).is_err());
}

fn at(start: u64, end: u64, did: Did, sure: Sure) -> Operation {
    let (start, end) = (Duration::from_secs(start), Duration::from_secs(end));
    Operation { did, sure, start, end }
}

#[test]
fn late_and_lost_writes_are_found() {
    use Did::{Read, Write};
    use Sure::{Happened, Perhaps};
    let base = |sure| {
        vec![at(0, 1, Write(7), Happened), at(2, 4, Write(8), Happened), at(2, 5, Write(9), sure)]
    };
    let then = |mut history: Vec<Operation>, reads: &[u64]| {
        for (index, value) in reads.iter().enumerate() {
            let start = 10 + 2 * index as u64;
            history.push(at(start, start + 1, Read(*value), Happened));
        }
        check(history).is_ok()
    };
    assert!(then(base(Happened), &[8]) && then(base(Happened), &[9, 9]));
    assert!(!then(base(Happened), &[9, 8]), "a value comes back");
    assert!(!then(base(Happened), &[7]), "a write is lost");
    assert!(then(base(Perhaps), &[8, 9]), "it may happen late");
    assert!(!then(base(Perhaps), &[8, 9, 8]));
}

#[test]
fn a_fault_explains_an_end_until_it_is_over_and_damage_until_it_is_replaced() {
    let host = Sim::new(1).add_host("h");
    let (harms, at) = (Harms::default(), Duration::from_secs);
    assert!(!harms.explains(host, at(1)));
    harms.begin(host);
    assert!(harms.explains(host, at(100)));
    harms.end(host, at(100));
    assert!(harms.explains(host, at(102)) && !harms.explains(host, at(104)));
    harms.damage(host);
    harms.end(host, at(100));
    assert!(harms.explains(host, at(500)) && harms.lasts(host));
    harms.replace(host);
    assert!(!harms.explains(host, at(500)) && !harms.lasts(host));
}

/// A task that does something once a pause.
async fn repeat(sim: Sim, pause: Duration) -> Result<(), String> {
    let env = sim.boot(sim.add_host("busy"));
    let asks = env.clone().spawn(Class::Foreground, "asks again", async move {
        loop {
            env.sleep(pause).await;
        }
    });
    sim.sleep(Duration::from_secs(3)).await;
    drop(asks);
    Ok(())
}

#[test]
fn a_host_that_spins_is_found() {
    let spins = Scenario {
        name: "repeat",
        about: "a task does nothing again and again",
        run: |sim| Box::pin(repeat(sim, Duration::from_micros(5))),
        marks: &[],
    };
    let failure = run_seed(&spins, 0).expect_err("it spins");
    assert!(failure.violation.starts_with("busy spins"), "{}", failure.violation);
    let run = |sim| Box::pin(repeat(sim, Duration::from_micros(50))) as _;
    let outcome = run_seed(&Scenario { run, ..spins }, 0).expect("it does not spin");
    assert_eq!(outcome.busiest.0, "busy");
    assert!((19_000..=21_000).contains(&outcome.busiest.1), "{:?}", outcome.busiest);
}
