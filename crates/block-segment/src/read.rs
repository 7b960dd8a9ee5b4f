//! Reads: the index, the last appends, DataFiles; every record is verified.

use std::borrow::Cow;

use base::{Fault, Kind};
use block_volume::ids::FileNo;
use block_volume::record::{DecodeError, READ_BYTES_MAX, RECORD_UNITS, UNIT, read_block};
use futures_util::stream::{FuturesUnordered, StreamExt};
use runtime::Duration;

use super::core::Core;
use super::files::DataFile;
use super::index::Found;
use super::limits::READS_INFLIGHT;
use super::types::Loc;

/// Longest wait of a read for bytes that a replica does not show yet.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Pause between two tries: first and longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// Blocks whose records are in order in a file, without gaps, read at once.
#[derive(Clone, Debug)]
struct Run {
    file: FileNo,
    /// Numbers of the blocks, from the start of the read, and their units.
    blocks: Vec<(usize, u32)>,
}

impl Run {
    fn first(&self) -> u32 {
        self.blocks[0].1
    }

    fn last(&self) -> u32 {
        self.blocks[self.blocks.len() - 1].1
    }

    /// True when a record at `unit` may stand right behind its last one: packed records are
    /// shorter than others.
    fn goes_on(&self, file: FileNo, unit: u32) -> bool {
        let behind = u64::from(self.last()) < u64::from(unit);
        let near = unit.saturating_sub(self.last()) <= RECORD_UNITS;
        let units = unit.saturating_sub(self.first()) + RECORD_UNITS;
        file == self.file && behind && near && u64::from(units) * UNIT <= READ_BYTES_MAX as u64
    }
}

impl Core {
    /// The location of a block.
    pub(crate) async fn locate(&self, lba: u32) -> Result<Loc, Fault> {
        loop {
            let found = self.share.index.borrow_mut().get(lba);
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
        // Blocks that a file does not show any more have moved, and are looked up again.
        while !missing.is_empty() {
            let mut runs: Vec<Run> = Vec::new();
            for n in missing.drain(..) {
                let loc = self.locate(lba + n as u32).await?;
                let Some((file, unit)) = loc.place() else { continue };
                match runs.last_mut() {
                    Some(run) if run.goes_on(file, unit) => run.blocks.push((n, unit)),
                    _ => runs.push(Run { file, blocks: vec![(n, unit)] }),
                }
            }
            let mut runs = runs.into_iter();
            let mut reading = FuturesUnordered::new();
            loop {
                while reading.len() < READS_INFLIGHT {
                    let Some(run) = runs.next() else { break };
                    reading.push(async move {
                        let read = self.read_run(&run).await;
                        (run, read)
                    });
                }
                let Some((run, read)) = reading.next().await else { break };
                for &(n, unit) in &run.blocks {
                    let (place, lba) = (Loc::new(run.file, unit), lba + n as u32);
                    let data = match &read {
                        Ok(bytes) => {
                            let at = (unit - run.first()) as usize * UNIT as usize;
                            self.verify(place, lba, bytes.get(at..).unwrap_or_default())
                        }
                        Err(fault) => Err(fault.clone()),
                    };
                    match data {
                        Ok(data) => take(n, &data),
                        Err(fault) => {
                            self.check_moved(lba, place, fault).await?;
                            missing.push(n);
                        }
                    }
                }
            }
            missing.sort_unstable();
        }
        Ok(())
    }

    /// Returns `Ok` when a block has another location by now; the fault otherwise.
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
                // The cause is not known now.
                Fault::new(Kind::Retry, fault.message)
            }
        }
    }

    fn verify<'a>(&self, place: Loc, lba: u32, record: &'a [u8]) -> Result<Cow<'a, [u8]>, Fault> {
        let (file, unit) = place.place().expect("it was read");
        let known = self.files.borrow().get(&file).cloned();
        let identity = known.as_ref().map_or(self.identity, |file| file.identity(self.identity));
        read_block(identity, file, unit, lba, record).map_err(|flaw| {
            let name = known.map(|file| file.name.clone());
            self.damage(&name.unwrap_or_default(), u64::from(unit) * UNIT, flaw)
        })
    }

    /// Makes sure that a closed file is sealed in the core, too: from then on its replicas show all
    /// its acknowledged bytes.
    pub(crate) async fn end_file(&self, file: &DataFile) -> Result<(), Fault> {
        if file.ended.get() {
            return Ok(());
        }
        let len = self.store.seal(&file.name).await;
        let len = len.map_err(|fault| self.cause("seal", &file.name, fault))?;
        if len < u64::from(file.end.get()) * UNIT {
            let flaw = DecodeError::Damaged("it is shorter than what was acknowledged of it");
            return Err(self.damage(&file.name, len, flaw));
        }
        file.ended.set(true);
        Ok(())
    }

    /// The bytes of a run of records.
    async fn read_run(&self, run: &Run) -> Result<Vec<u8>, Fault> {
        let file = self.files.borrow().get(&run.file).cloned();
        let offset = u64::from(run.first()) * UNIT;
        let Some(file) = file else {
            let flaw = DecodeError::Damaged("the index names a DataFile that is not there");
            return Err(self.damage(&format!("DataFile {:?}", run.file), offset, flaw));
        };
        // The last record may be shorter than others, and the file's last.
        let end = run.last().saturating_add(RECORD_UNITS).min(file.end.get());
        let want = (u64::from(end.saturating_sub(run.first())) * UNIT) as usize;
        let mut out = Vec::with_capacity(want);
        let (started, mut pause) = (self.env.now(), PAUSE.0);
        loop {
            // The last appends are in memory; a replica may not show them yet.
            while out.len() < want {
                let unit = run.first() + (out.len() as u64 / UNIT) as u32;
                let Some((bytes, skip)) = self.share.recent(run.file, unit) else { break };
                let rest = &bytes[skip..];
                out.extend_from_slice(&rest[..rest.len().min(want - out.len())]);
            }
            if out.len() == want {
                return Ok(out);
            }
            let source = file.source(&*self.store).await;
            let source = source.map_err(|fault| self.cause("open", &file.name, fault))?;
            // Read before the request: its answer may be older than later knowledge.
            let all_shown = file.ended.get();
            let at = offset + out.len() as u64;
            let more = source.read_at(at, want - out.len()).await;
            let mut more = more.map_err(|fault| self.cause("read", &file.name, fault))?;
            // Whole units, so that the rest may be found in memory.
            more.truncate(more.len() - more.len() % UNIT as usize);
            match out.is_empty() {
                true => out = more,
                false => out.extend_from_slice(&more),
            }
            if out.len() == want {
                return Ok(out);
            }
            if all_shown {
                return Err(self.damage(&file.name, at, DecodeError::Damaged("it is too short")));
            }
            if file.closed.get() {
                // Its writer may have died before it sealed the file, or is about to.
                self.env.mark("segment: a DataFile sealed for its reader");
                self.end_file(&file).await?;
                continue;
            }
            if self.env.now().since(started) > TIMEOUT {
                let what = "its replicas do not show yet what is acknowledged";
                return Err(self.fault(Kind::Retry, format!("{}: {what}", file.name)));
            }
            self.env.mark("segment: short read of an open DataFile");
            self.env.sleep(pause).await;
            pause = (2 * pause).min(PAUSE.1);
        }
    }
}
