//! Reads: the index, the last appends, DataFiles; every record is verified.

use base::{Fault, Kind};
use futures_util::stream::{FuturesUnordered, StreamExt};
use runtime::Duration;

use super::core::Core;
use super::format::Flaw;
use super::format::record::read_block;
use super::index::Found;
use super::limits::{READ_BYTES_MAX, READS_INFLIGHT, RECORD, UNIT};
use super::types::{FileNo, Loc};

/// How long a read waits for bytes that a replica does not show yet.
const PATIENCE: Duration = Duration::from_secs(10);
/// Pause between two tries: first and longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// Blocks that stand one behind the other in a file.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// Number of the first, from the start of the read.
    first: usize,
    count: usize,
    file: FileNo,
    unit: u32,
}

impl Core {
    /// Where a block is.
    pub(crate) async fn locate(&self, lba: u32) -> Result<Loc, Fault> {
        loop {
            let found = self.index.borrow_mut().get(lba);
            match found {
                Found::Loc(loc) => return Ok(loc),
                Found::Ask(page) => self.meet(page).await?,
            }
        }
    }

    /// Reads whole blocks from `lba` on; `take` gets each, by its number, with its bytes.
    /// Blocks that are holes or zeroes are not among them.
    pub(crate) async fn read_blocks(
        &self,
        lba: u32,
        count: usize,
        take: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<(), Fault> {
        let mut missing: Vec<usize> = (0..count).collect();
        // What a file does not show any more has moved, and is looked for again.
        while !missing.is_empty() {
            let mut runs: Vec<Run> = Vec::new();
            for first in missing.drain(..) {
                let loc = self.locate(lba + first as u32).await?;
                let Some((file, unit)) = loc.place() else { continue };
                match runs.last_mut() {
                    Some(run)
                        if run.first + run.count == first
                            && Loc::new(run.file, run.unit).plus(run.count as u32) == loc
                            && (run.count + 1) * RECORD <= READ_BYTES_MAX =>
                    {
                        run.count += 1;
                    }
                    _ => runs.push(Run { first, count: 1, file, unit }),
                }
            }
            let mut runs = runs.into_iter();
            let mut reading = FuturesUnordered::new();
            loop {
                while reading.len() < READS_INFLIGHT {
                    let Some(run) = runs.next() else { break };
                    reading.push(async move { (run, self.read_run(run).await) });
                }
                let Some((run, read)) = reading.next().await else { break };
                for n in 0..run.count {
                    let place = Loc::new(run.file, run.unit).plus(n as u32);
                    let data = match &read {
                        Ok(bytes) => {
                            let record = &bytes[n * RECORD..(n + 1) * RECORD];
                            self.verify(place, lba + (run.first + n) as u32, record)
                        }
                        Err(fault) => Err(fault.clone()),
                    };
                    match data {
                        Ok(data) => take(run.first + n, data),
                        Err(fault) => {
                            self.check_moved(lba + (run.first + n) as u32, place, fault).await?;
                            missing.push(run.first + n);
                        }
                    }
                }
            }
            missing.sort_unstable();
        }
        Ok(())
    }

    /// Fine when a block is elsewhere by now; the fault otherwise.
    async fn check_moved(&self, lba: u32, was: Loc, fault: Fault) -> Result<(), Fault> {
        if self.locate(lba).await? == was {
            return Err(self.explain(fault).await);
        }
        self.env.mark("segment: a block moved away from its reader");
        Ok(())
    }

    /// A file that is gone may have been collected by another owner.
    pub(crate) async fn explain(&self, fault: Fault) -> Fault {
        if fault.kind != Kind::NotFound {
            return fault;
        }
        match self.table.barrier().await {
            Ok(()) => Fault::new(Kind::Corrupt, fault.message),
            Err(error) => {
                let fault = self.of_table(error);
                if fault.kind == Kind::Fenced {
                    self.end(fault.clone());
                    return fault;
                }
                // Which of the two it is cannot be told now.
                Fault::new(Kind::Retry, fault.message)
            }
        }
    }

    fn verify<'a>(&self, place: Loc, lba: u32, record: &'a [u8]) -> Result<&'a [u8], Fault> {
        let (file, unit) = place.place().expect("it was read");
        read_block(self.identity, file, unit, lba, record).map_err(|flaw| {
            let name = self.files.borrow().get(&file).map(|file| file.name.clone());
            self.damage(&name.unwrap_or_default(), u64::from(unit) * UNIT, flaw)
        })
    }

    /// The bytes of a run of records.
    async fn read_run(&self, run: Run) -> Result<Vec<u8>, Fault> {
        let want = run.count * RECORD;
        let mut out = Vec::with_capacity(want);
        let file = self.files.borrow().get(&run.file).cloned();
        let offset = u64::from(run.unit) * UNIT;
        let Some(file) = file else {
            let flaw = Flaw::Damaged("the index names a DataFile that is not there");
            return Err(self.damage(&format!("DataFile {:?}", run.file), offset, flaw));
        };
        let (started, mut pause) = (self.env.now(), PAUSE.0);
        loop {
            // The last appends are in memory; a replica may not show them yet.
            while out.len() < want {
                let unit = run.unit + (out.len() as u64 / UNIT) as u32;
                let Some((bytes, skip)) = self.recent.borrow().get(run.file, unit) else { break };
                let rest = &bytes[skip..];
                out.extend_from_slice(&rest[..rest.len().min(want - out.len())]);
            }
            if out.len() == want {
                return Ok(out);
            }
            let source = file.source(&*self.store).await;
            let source = source.map_err(|fault| self.trouble("open", &file.name, fault))?;
            let at = offset + out.len() as u64;
            let more = source.read_at(at, want - out.len()).await;
            let more = more.map_err(|fault| self.trouble("read", &file.name, fault))?;
            // Whole units, so that the rest may be found in memory.
            let whole = more.len() - more.len() % UNIT as usize;
            out.extend_from_slice(&more[..whole]);
            if out.len() == want {
                return Ok(out);
            }
            if file.state.get().sealed {
                return Err(self.damage(&file.name, at, Flaw::Damaged("it is too short")));
            }
            if self.env.now().since(started) > PATIENCE {
                let what = "its replicas do not show yet what is acknowledged";
                return Err(self.fault(Kind::Retry, format!("{}: {what}", file.name)));
            }
            self.env.mark("segment: short read of an open DataFile");
            self.env.sleep(pause).await;
            pause = (2 * pause).min(PAUSE.1);
        }
    }
}
