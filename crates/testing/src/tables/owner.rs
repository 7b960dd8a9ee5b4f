//! The life of one owner under load, judged by the oracle.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use runtime::{Class, Duration, Env, Rng};

use table::{Error, Snapshot, Table};

use super::data::{self, Failed};
use super::oracle::{Node, Oracle};
use super::suite::{batch, has, key, range};

/// Counts of an owner's work.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Owned {
    /// Batches acknowledged.
    pub acked: u64,
    /// Reads that were known not to be stale.
    pub fresh_reads: u64,
    /// Answers that asked the owner to slow down.
    pub busy: u64,
    /// Another owner has taken over.
    pub fenced: bool,
}

/// An error that injected faults explain. Any other is the table's.
fn is_expected(error: &Error) -> bool {
    match error {
        Error::Fenced { .. }
        | Error::Busy { .. }
        | Error::Stopped { .. }
        | Error::Unavailable { .. }
        | Error::Unknown { .. }
        | Error::Full { .. } => true,
        Error::Corrupt { .. }
        | Error::Missing { .. }
        | Error::Version { .. }
        | Error::NotFound { .. }
        | Error::Invalid { .. } => false,
    }
}

/// `None` for an error that injected faults explain.
fn tolerate<T>(result: Result<T, Error>) -> Result<Option<T>, String> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if is_expected(&error) => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

/// Writes to a table that was just opened, many batches at once, and reads it, for `steps` with up
/// to `pause` behind each, or until it is over; judges all answers. An error is a broken rule.
pub async fn own(
    env: &Env,
    table: &Table,
    oracle: &Oracle,
    rng: &mut Rng,
    (steps, pause): (u32, Duration),
) -> Result<Owned, String> {
    let owner = table.stats().generation;
    let found = table.snapshot();
    let mut owned = Owned::default();
    let Some(mark) = tolerate(found.get(Oracle::MARK).await)? else { return Ok(owned) };
    let base = Oracle::node_of(mark.as_deref())?;
    oracle.opened(owner, base)?;
    if let Some(entries) = tolerate(found.scan(table::Range::all()).take(usize::MAX).await)? {
        oracle.compare(base, &entries, false, |_| true)?;
    }
    drop(found);
    check_data(table).await?;
    let (mut tip, mut steps) = (base, steps);
    let acked = Rc::new(Cell::new(0));
    let verdict: Rc<RefCell<Option<String>>> = Rc::default();
    let mut waiting = Vec::new();
    while steps > 0 && verdict.borrow().is_none() && !owned.fenced {
        steps -= 1;
        if !pause.is_zero() {
            env.sleep(Duration::from_nanos(rng.below(pause.as_nanos() as u64))).await;
        }
        match rng.below(10) {
            0..6 => {
                for _ in 0..rng.between(1, 12) {
                    let mut batch = batch(rng, table.takes_data());
                    let node = oracle.submit(owner, tip, &mut batch);
                    let started = match table.submit(&batch) {
                        Ok(started) => started,
                        Err(Error::Busy { retry_after, .. }) => {
                            owned.busy += 1;
                            env.sleep(retry_after).await;
                            break;
                        }
                        Err(error) => {
                            tolerate(Err::<(), _>(error))?;
                            owned.fenced = true;
                            break;
                        }
                    };
                    tip = node;
                    let (oracle, verdict) = (oracle.clone(), verdict.clone());
                    let acked = acked.clone();
                    waiting.push(env.spawn(Class::Foreground, "wait for a batch", async move {
                        let answer = tolerate(started.await);
                        let judged = answer.and_then(|answer| match answer {
                            None => Ok(()),
                            Some(_) => {
                                acked.set(acked.get() + 1);
                                oracle.acked(owner, node)
                            }
                        });
                        if let Err(what) = judged {
                            verdict.borrow_mut().get_or_insert(what);
                        }
                    }));
                }
            }
            6..9 => {
                let before = oracle.last_acked();
                let snapshot = table.snapshot();
                let Some(node) = read(oracle, &snapshot, rng).await? else { continue };
                if rng.one_in(2) && tolerate(table.barrier().await)?.is_some() {
                    owned.fresh_reads += 1;
                    if !oracle.is_behind(before, node) {
                        return Err(format!("node {node} is read though {before} is acknowledged"));
                    }
                }
            }
            // Work on logs reads the present, with nothing under way that could change it.
            _ if table.takes_data() && rng.one_in(2) => {
                for wait in waiting.drain(..) {
                    let _ = wait.await; // As below.
                }
                match data::maintain(table, rng).await {
                    Ok(_) => check_data(table).await?,
                    Err(Failed::Table(error)) => drop(tolerate(Err::<(), _>(error))?),
                    Err(Failed::Rule(what)) => return Err(what),
                }
            }
            _ => env.sleep(Duration::from_micros(rng.below(3000))).await,
        }
    }
    for wait in waiting {
        let _ = wait.await; // The verdict has what it found.
    }
    owned.acked = acked.get();
    match verdict.take() {
        Some(what) => Err(what),
        None => Ok(owned),
    }
}

/// Reads the data of all keys that have some, when no change is under way.
async fn check_data(table: &Table) -> Result<(), String> {
    let entries = table.scan(table::Range::prefix(data::DATA)).take(usize::MAX).await;
    let Some(entries) = tolerate(entries)? else { return Ok(()) };
    for (key, value) in entries {
        match data::check(table, &key, &value).await {
            Ok(()) => {}
            Err(Failed::Table(error)) => drop(tolerate(Err::<(), _>(error))?),
            Err(Failed::Rule(what)) => return Err(what),
        }
    }
    Ok(())
}

/// Compares some of what a snapshot shows with the node it says it is of.
async fn read(oracle: &Oracle, snapshot: &Snapshot, rng: &mut Rng) -> Result<Option<Node>, String> {
    let Some(mark) = tolerate(snapshot.get(Oracle::MARK).await)? else { return Ok(None) };
    let node = Oracle::node_of(mark.as_deref())?;
    if rng.one_in(2) {
        let key = key(rng);
        let Some(value) = tolerate(snapshot.get(&key).await)? else { return Ok(None) };
        oracle.compare_value(node, &key, value.as_deref())?;
    } else {
        let range = range(rng);
        let entries = snapshot.scan(range.clone()).take(usize::MAX).await;
        let Some(entries) = tolerate(entries)? else { return Ok(None) };
        oracle.compare(node, &entries, range.reverse, |key| has(&range, key))?;
    }
    Ok(Some(node))
}
