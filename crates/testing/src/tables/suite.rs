//! The conformance suite: random operations on a table against a map.

use std::fmt::Write;
use std::ops::Bound;

use runtime::Rng;
use table::limits::KEY_MAX;
use table::{Batch, Error, Range, Scan, Snapshot, Table};

use super::data;
use super::oracle::{Node, Oracle, State};

/// Keys: few, so that they meet; of all lengths, with bytes at both ends of the order.
pub(super) fn key(rng: &mut Rng) -> Vec<u8> {
    if rng.one_in(40) {
        let mut long = vec![b'l'; KEY_MAX - rng.below(3) as usize];
        *long.last_mut().expect("not empty") = rng.below(3) as u8;
        return long;
    }
    match rng.below(10) {
        0 => vec![u8::MAX; 1 + rng.below(4) as usize],
        1 => vec![1 + rng.below(3) as u8; 1 + rng.below(40) as usize],
        2..5 => format!("a/{:03}", rng.below(40)).into_bytes(),
        _ => format!("row/{:05}", rng.below(150)).into_bytes(),
    }
}

fn value(rng: &mut Rng) -> Vec<u8> {
    let len = *rng.clone().pick(&[0, 1, 30, 30, 100, 400]) + rng.below(20) as usize;
    let start = rng.next_u64();
    (0..len as u64).map(|at| (start.wrapping_add(at / 8)) as u8).collect()
}

pub(super) fn range(rng: &mut Rng) -> Range {
    let bound = |rng: &mut Rng| match rng.below(4) {
        0 => Bound::Unbounded,
        1 => Bound::Excluded(key(rng)),
        _ => Bound::Included(key(rng)),
    };
    let range = match rng.below(4) {
        0 => Range::all(),
        1 => {
            let mut prefix = key(rng);
            prefix.truncate(1 + rng.below(5) as usize);
            Range::prefix(&prefix)
        }
        _ => Range { lower: bound(rng), upper: bound(rng), reverse: false },
    };
    if rng.one_in(2) { range.reversed() } else { range }
}

/// True when a range has a key, as the model understands it.
pub(super) fn has(range: &Range, key: &[u8]) -> bool {
    let above = match &range.lower {
        Bound::Unbounded => true,
        Bound::Included(low) => key >= low.as_slice(),
        Bound::Excluded(low) => key > low.as_slice(),
    };
    let below = match &range.upper {
        Bound::Unbounded => true,
        Bound::Included(high) => key <= high.as_slice(),
        Bound::Excluded(high) => key < high.as_slice(),
    };
    above && below
}

/// A random batch, with data where the table takes it.
pub(super) fn batch(rng: &mut Rng, takes_data: bool) -> Batch {
    let mut batch = Batch::new();
    let count = if rng.one_in(5) { rng.between(2, 30) } else { 1 };
    for _ in 0..count {
        if takes_data && rng.one_in(3) {
            let key = data::key(rng);
            match rng.one_in(5) {
                true => drop(batch.delete(&key)),
                false => data::put(&mut batch, &key, rng),
            }
        } else if rng.one_in(4) {
            batch.delete(&key(rng));
        } else {
            let (key, value) = (key(rng), value(rng));
            batch.put(&key, &value);
        }
    }
    batch
}

/// A key to seek in a scan of `all` that is at `next`.
fn sought(all: &[(Vec<u8>, Vec<u8>)], next: usize, rng: &mut Rng) -> Vec<u8> {
    if all.is_empty() || rng.one_in(4) {
        return key(rng);
    }
    // A little ahead in most cases, so that the scan does not end at once.
    let last = all.len() as u64 - 1;
    let index = match rng.below(4) {
        0 => rng.below(last + 1),
        _ => (next as u64 + rng.below(12)).min(last),
    };
    let mut to = all[index as usize].0.clone();
    match rng.below(4) {
        0 => to.push(0),
        1 => {
            to.pop();
        }
        _ => {}
    }
    to
}

struct Subject {
    table: Table,
    oracle: Oracle,
    node: Node,
    snapshots: Vec<(Node, Snapshot)>,
}

/// Runs `steps` random operations drawn from `rng` on the table that `open` opens (again and
/// again: each opening takes it over), and compares all it shows with a map. The table must be
/// empty at first. Ends with what differs.
pub async fn conformance(
    open: impl AsyncFn() -> Result<Table, Error>,
    rng: &mut Rng,
    steps: u32,
) -> Result<(), String> {
    let text = |error: Error| error.to_string();
    let table = open().await.map_err(text)?;
    let oracle = Oracle::new();
    let mut subject = Subject { table, oracle, node: 0, snapshots: Vec::new() };
    subject.check_all().await?;
    for step in 0..steps {
        let done = subject.step(&open, rng).await;
        done.map_err(|what| format!("step {step}: {what}"))?;
    }
    subject.check_all().await?;
    subject.table.flush().await.map_err(text)?;
    subject.check_all().await?;
    subject.table.compact().await.map_err(text)?;
    subject.check_all().await?;
    let stats = subject.table.stats();
    if stats.runs > 1 && subject.snapshots.is_empty() {
        return Err(format!("{} runs after a full compaction", stats.runs));
    }
    Ok(())
}

impl Subject {
    async fn step(
        &mut self,
        open: &impl AsyncFn() -> Result<Table, Error>,
        rng: &mut Rng,
    ) -> Result<(), String> {
        let text = |error: Error| error.to_string();
        match rng.below(100) {
            0..50 => self.write(rng).await,
            50..70 => {
                let key = key(rng);
                let value = self.table.get(&key).await.map_err(text)?;
                self.oracle.compare_value(self.node, &key, value.as_deref())
            }
            70..82 => {
                let range = range(rng);
                let scan = self.table.scan(range.clone());
                match rng.one_in(2) {
                    true => self.check_scan(self.node, range, scan, rng).await,
                    false => self.check_seeks(self.node, range, scan, rng).await,
                }
            }
            82..87 => {
                self.snapshots.push((self.node, self.table.snapshot()));
                if self.snapshots.len() > 3 {
                    let oldest = rng.below(4) as usize;
                    self.snapshots.remove(oldest);
                }
                Ok(())
            }
            87..93 => {
                let Some((node, snapshot)) = self.snapshots.last().cloned() else { return Ok(()) };
                let range = range(rng);
                self.check_scan(node, range.clone(), snapshot.scan(range.clone()), rng).await?;
                self.check_seeks(node, range.clone(), snapshot.scan(range), rng).await?;
                let key = key(rng);
                let value = snapshot.get(&key).await.map_err(text)?;
                self.oracle.compare_value(node, &key, value.as_deref())
            }
            93 => match data::maintain(&self.table, rng).await? {
                Some(entry) => self.write_batch(data::moved(entry)).await,
                None => Ok(()),
            },
            94..96 => self.table.flush().await.map_err(text),
            96 => self.table.compact().await.map_err(text),
            97 => once_flushed(&self.table, async |table| table.barrier().await).await,
            98 => {
                self.snapshots.clear(); // They are the old owner's, whose files go.
                let old = std::mem::replace(&mut self.table, open().await.map_err(text)?);
                let late = old.put(b"row/late", b"").await;
                // An owner whose memory is full refuses before it asks the log.
                if !matches!(late, Err(Error::Fenced { .. } | Error::Busy { .. })) {
                    return Err(format!("the previous owner got {late:?}"));
                }
                self.check_all().await
            }
            _ => {
                self.snapshots.clear();
                once_flushed(&self.table, async |table| table.clone().close().await).await?;
                self.table = open().await.map_err(text)?;
                self.check_all().await
            }
        }
    }

    async fn write(&mut self, rng: &mut Rng) -> Result<(), String> {
        let batch = batch(rng, self.table.takes_data());
        self.write_batch(batch).await
    }

    async fn write_batch(&mut self, mut batch: Batch) -> Result<(), String> {
        let node = self.oracle.submit(self.table.stats().generation, self.node, &mut batch);
        once_flushed(&self.table, async |table| table.write(&batch).await).await?;
        self.node = node;
        Ok(())
    }

    async fn check_scan(
        &self,
        node: Node,
        range: Range,
        mut scan: Scan,
        rng: &mut Rng,
    ) -> Result<(), String> {
        let limit = if rng.one_in(3) { rng.below(20) as usize } else { usize::MAX };
        let entries = scan.take(limit).await.map_err(|error| error.to_string())?;
        let shown: State = entries.iter().cloned().collect();
        let whole = entries.len() < limit;
        let compared = self.oracle.compare(node, &entries, range.reverse, |key| {
            has(&range, key) && (whole || shown.contains_key(key))
        });
        compared.map_err(|what| format!("{range:?}: {what}"))?;
        if whole {
            return Ok(());
        }
        // A part: none was left out before its end.
        self.oracle.with_state(node, |state| {
            let all = state.keys().filter(|key| has(&range, key));
            let wanted: Vec<_> = match range.reverse {
                false => all.take(limit).collect(),
                true => all.rev().take(limit).collect(),
            };
            if wanted.iter().all(|key| shown.contains_key(*key)) {
                return Ok(());
            }
            Err(format!("{range:?}: the first {limit} entries are not these"))
        })
    }

    async fn check_seeks(
        &self,
        node: Node,
        range: Range,
        scan: Scan,
        rng: &mut Rng,
    ) -> Result<(), String> {
        let all = self.oracle.with_state(node, |state| within(state, &range));
        let checked = check_seeks(all, range, scan, rng).await;
        checked.map_err(|what| format!("at node {node} {what}"))
    }

    async fn check_all(&self) -> Result<(), String> {
        for range in [Range::all(), Range::all().reversed()] {
            let reverse = range.reverse;
            let entries = self.table.scan(range).take(usize::MAX).await;
            let entries = entries.map_err(|error| error.to_string())?;
            self.oracle.compare(self.node, &entries, reverse, |_| true)?;
            for (key, value) in &entries {
                let got = self.table.get(key).await.map_err(|error| error.to_string())?;
                if got.as_ref() != Some(value) {
                    return Err(format!("{key:?} is scanned as {value:?} and got as {got:?}"));
                }
                if key.starts_with(data::DATA) {
                    data::check(&self.table, key, value).await?;
                }
            }
        }
        Ok(())
    }
}

/// Makes a call that appends to the log; again after a flush while memory is full.
pub(super) async fn once_flushed<T>(
    table: &Table,
    call: impl AsyncFn(&Table) -> Result<T, Error>,
) -> Result<T, String> {
    loop {
        match call(table).await {
            Err(Error::Busy { .. }) => table.flush().await.map_err(|error| error.to_string())?,
            done => return done.map_err(|error| error.to_string()),
        }
    }
}

/// The entries of a range in its order.
pub(super) fn within(state: &State, range: &Range) -> Vec<(Vec<u8>, Vec<u8>)> {
    let within = state.iter().filter(|(key, _)| has(range, key));
    let mut all: Vec<_> = within.map(|(key, value)| (key.clone(), value.clone())).collect();
    if range.reverse {
        all.reverse();
    }
    all
}

/// A scan, of which `all` must come, that now and then seeks a key: one that is there, one beside it,
/// any, or one that it has passed.
pub(super) async fn check_seeks(
    all: Vec<(Vec<u8>, Vec<u8>)>,
    range: Range,
    mut scan: Scan,
    rng: &mut Rng,
) -> Result<(), String> {
    let mut next = 0;
    let mut done = String::new();
    for _ in 0..rng.between(2, 30) {
        if rng.one_in(2) {
            let to = sought(&all, next, rng);
            scan.seek(&to).await.map_err(|error| error.to_string())?;
            let before = |key: &[u8]| match range.reverse {
                true => key > to.as_slice(),
                false => key < to.as_slice(),
            };
            next = next.max(all.partition_point(|(key, _)| before(key)));
            write!(done, " seek {to:?};").expect("a text");
        }
        let limit = rng.below(6) as usize;
        let entries = scan.take(limit).await.map_err(|error| error.to_string())?;
        let wanted = &all[next..all.len().min(next + limit)];
        write!(done, " take {limit};").expect("a text");
        let mut pairs = entries.iter().zip(wanted);
        let alike = pairs.all(|(have, want)| data::same((&have.0, &have.1), (&want.0, &want.1)));
        if entries.len() != wanted.len() || !alike {
            let what = format!("{entries:?} instead of {wanted:?}");
            return Err(format!("{range:?}:{done} shows {what}"));
        }
        next += entries.len();
    }
    Ok(())
}
