//! Load on one owner of a segment, checked by the oracle.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use base::{Fault, Kind};
use block_volume::contract::{Clear, Device};
use block_volume::geometry::Extent;
use block_volume::limits::BLOCK;
use runtime::limits::BUF_MAX;
use runtime::{Class, Duration, Env, Rng};

use super::oracle::{Change, Oracle};

/// Shape of the load.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Requests that are begun.
    pub steps: u32,
    /// Requests under way at once, at most.
    pub depth: usize,
    /// Pause between two, at most.
    pub pause: Duration,
    /// Blocks of a request, at most.
    pub blocks: u64,
}

/// Outcomes of a load.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Loaded {
    /// Changes answered with success.
    pub done: u64,
    /// Reads answered with success.
    pub reads: u64,
    /// Changes that were refused, or whose outcome is not known.
    pub refused: u64,
    /// Outcomes that are not known.
    pub unknown: u64,
    /// Another owner has taken over.
    pub fenced: bool,
}

fn is_expected(fault: &Fault) -> bool {
    matches!(fault.kind, Kind::Fenced | Kind::Retry | Kind::Unknown | Kind::Full)
}

/// A range somewhere in a segment; half of them whole blocks.
fn range(rng: &mut Rng, bytes: u64, blocks: u64) -> Extent {
    let unit = if rng.one_in(2) { BLOCK } else { 1 };
    let most = (blocks * BLOCK).min(bytes) / unit;
    let len = match rng.below(3) {
        0 => 1,
        _ => 1 + rng.below(most),
    } * unit;
    let offset = rng.below((bytes - len) / unit + 1) * unit;
    Extent { offset, len }
}

/// Some change; what it writes is written nowhere else.
fn change(rng: &mut Rng, extent: Extent) -> Change {
    match rng.below(10) {
        0 => Change::Clear(Clear::Trim, extent.len),
        1 => Change::Clear(Clear::Zero, extent.len),
        _ => {
            let tag = (rng.next_u64() | 1).to_le_bytes();
            let bytes = (extent.offset..extent.offset + extent.len).map(|at| tag[at as usize % 8]);
            Change::Write(bytes.collect())
        }
    }
}

/// Reads all of a device that has just been opened.
pub async fn whole(device: &dyn Device) -> Result<Vec<u8>, Fault> {
    let mut all = Vec::new();
    while (all.len() as u64) < device.bytes() {
        let offset = all.len() as u64;
        let len = (device.bytes() - offset).min(BUF_MAX as u64);
        all.extend_from_slice(&device.read(Extent { offset, len }).await?);
    }
    Ok(all)
}

/// Loads a device, many requests at once, and checks all its answers. An error is a broken rule.
pub async fn load(
    env: &Env,
    device: Rc<dyn Device>,
    oracle: &Oracle,
    rng: &mut Rng,
    plan: Plan,
) -> Result<Loaded, String> {
    let loaded = Rc::new(Cell::new(Loaded::default()));
    let verdict: Rc<RefCell<Option<String>>> = Rc::default();
    let mut waiting = Vec::new();
    for _ in 0..plan.steps {
        if verdict.borrow().is_some() || loaded.get().fenced {
            break;
        }
        if !plan.pause.is_zero() {
            env.sleep(Duration::from_nanos(rng.below(plan.pause.as_nanos() as u64))).await;
        }
        waiting.retain(|task: &runtime::JoinHandle<()>| !task.is_finished());
        while waiting.len() >= plan.depth {
            let _ = waiting.remove(0).await; // The verdict has its findings.
        }
        let extent = range(rng, device.bytes(), plan.blocks);
        let request = match rng.below(3) {
            0 => None,
            _ => Some(change(rng, extent)),
        };
        let abandon = rng.one_in(20).then(|| Duration::from_micros(rng.below(1000)));
        let (device, oracle, at) = (device.clone(), oracle.clone(), env.clone());
        let (verdict, loaded) = (verdict.clone(), loaded.clone());
        waiting.push(env.spawn(Class::Foreground, "request", async move {
            let judged = match request {
                Some(change) => one_change(&at, &*device, &oracle, extent, change, abandon).await,
                None => one_read(&*device, &oracle, extent).await,
            };
            match judged {
                Ok(count) => {
                    let mut sum = loaded.get();
                    count(&mut sum);
                    loaded.set(sum);
                }
                Err(what) => drop(verdict.borrow_mut().get_or_insert(what)),
            }
        }));
    }
    for wait in waiting {
        let _ = wait.await; // The verdict has its findings.
    }
    match verdict.take() {
        Some(what) => Err(what),
        None => Ok(loaded.get()),
    }
}

type Count = Box<dyn Fn(&mut Loaded)>;

async fn one_change(
    env: &Env,
    device: &dyn Device,
    oracle: &Oracle,
    extent: Extent,
    change: Change,
    abandon: Option<Duration>,
) -> Result<Count, String> {
    let Extent { offset, .. } = extent;
    let Ok(data) = (match &change {
        Change::Write(data) => env.pool().copy_of(data),
        Change::Clear(..) => env.pool().copy_of(&[]),
    }) else {
        return Ok(Box::new(|_| ()));
    };
    let ticket = oracle.begin(offset, &change);
    let answer = match change {
        Change::Write(_) => device.write(offset, data),
        Change::Clear(how, _) => device.clear(extent, how),
    };
    // Some requests are dropped before their answer.
    let outcome = match abandon {
        Some(timeout) => match env.timeout(timeout, answer).await {
            Ok(outcome) => outcome,
            Err(_) => {
                oracle.end(&ticket, Err(false));
                return Ok(Box::new(|loaded| loaded.unknown += 1));
            }
        },
        None => answer.await,
    };
    match outcome {
        Ok(()) => {
            oracle.end(&ticket, Ok(()));
            Ok(Box::new(|loaded| loaded.done += 1))
        }
        Err(fault) if !is_expected(&fault) => Err(format!("a change of {extent:?}: {fault}")),
        Err(fault) => {
            let nothing = matches!(fault.kind, Kind::Retry | Kind::Full);
            oracle.end(&ticket, Err(nothing));
            let fenced = fault.kind == Kind::Fenced;
            Ok(Box::new(move |loaded| {
                loaded.refused += u64::from(nothing);
                loaded.unknown += u64::from(!nothing);
                loaded.fenced |= fenced;
            }))
        }
    }
}

async fn one_read(device: &dyn Device, oracle: &Oracle, extent: Extent) -> Result<Count, String> {
    let look = oracle.look(extent.offset, extent.len);
    match device.read(extent).await {
        Ok(bytes) => {
            oracle.saw(&look, &bytes).map_err(|what| format!("a read of {extent:?}: {what}"))?;
            Ok(Box::new(|loaded| loaded.reads += 1))
        }
        Err(fault) if is_expected(&fault) => Ok(Box::new(|_| ())),
        Err(fault) => Err(format!("a read of {extent:?}: {fault}")),
    }
}
