//! The oracle of acknowledged appends: what a file may hold, kept outside the system.
//!
//! A file's content is a sequence of records. Each record's bytes follow from the writer's stay
//! in the file and the offset, so any byte that a read returns can be judged.
//!
//! Checked (invariants 1 to 4): every acknowledged byte is there with its content; behind them is a
//! prefix of what was in flight and nothing else; no read goes back, and none ends below what was
//! acknowledged, or shown to any reader, when it began; what a writer of an older epoch is
//! acknowledged, its successor has found; a sealed length never changes.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use base::{ChunkId, Epoch};

/// One writer's stay in a file.
#[derive(Debug)]
struct Stay {
    /// Length of the file when the writer opened it.
    start: u64,
    /// Makes its content differ from others'.
    seed: u64,
    /// End of what it has given to `append`, acknowledged or not.
    issued: u64,
    /// End of what it has been acknowledged.
    acked: u64,
}

#[derive(Debug, Default)]
struct FileState {
    /// Stays by epoch.
    stays: BTreeMap<Epoch, Stay>,
    /// Longest length that a read has seen.
    seen: u64,
    /// When its last writer sealed it.
    closed: Option<Duration>,
}

impl FileState {
    fn acked(&self) -> u64 {
        self.stays.values().map(|stay| stay.acked).max().unwrap_or(0)
    }

    /// Whose bytes these at `at` are, for messages.
    fn writer_of(&self, at: u64, bytes: &[u8]) -> String {
        let bytes = &bytes[..bytes.len().min(16)];
        let end = at + bytes.len() as u64;
        let wrote = |stay: &Stay| stay.start <= at && content(stay.seed, at, end) == bytes;
        let of = self.stays.iter().find(|(_, stay)| wrote(stay));
        let stays: Vec<String> = self
            .stays
            .iter()
            .map(|(epoch, stay)| {
                format!("{epoch}: {} to {}, {} acknowledged", stay.start, stay.issued, stay.acked)
            })
            .collect();
        let of = of.map_or("no writer".to_owned(), |(epoch, _)| format!("the writer of {epoch}"));
        format!(": of {of}; writers: {}", stays.join("; "))
    }

    /// End of the bytes that may be in the file: given by the last writer, or found by it.
    fn issued(&self) -> u64 {
        self.stays.values().next_back().map_or(0, |stay| stay.issued)
    }
}

#[derive(Default)]
struct OracleState {
    files: BTreeMap<String, FileState>,
    lengths: BTreeMap<ChunkId, u32>,
}

/// A read under way: the least that its answer must know of.
#[derive(Clone, Debug)]
pub struct Reading {
    path: String,
    /// Length that was acknowledged, or shown to a reader, when it began.
    floor: u64,
}

impl Reading {
    /// The length that was acknowledged, or shown to a reader, when it began.
    pub fn floor(&self) -> u64 {
        self.floor
    }
}

/// Judges the content of files. Clones share it.
#[derive(Clone, Default)]
pub struct Oracle(Rc<RefCell<OracleState>>);

/// The eight bytes around `offset` of a file, as the writer of `seed` writes them.
fn word_at(seed: u64, offset: u64) -> [u8; 8] {
    let word = (seed ^ (offset >> 3)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (word ^ (word >> 29)).to_le_bytes()
}

/// The bytes of a range of a file, as the writer of `seed` writes them.
fn content(seed: u64, start: u64, end: u64) -> Vec<u8> {
    let first = start & !7;
    // By words: a twentieth of all seeds' time went into single bytes.
    let mut bytes = vec![0; (end - first).next_multiple_of(8) as usize];
    for (at, word) in (first..).step_by(8).zip(bytes.as_chunks_mut::<8>().0) {
        *word = word_at(seed, at);
    }
    bytes.truncate((end - first) as usize);
    bytes.drain(..(start - first) as usize);
    bytes
}

impl Oracle {
    /// An oracle that knows no file.
    pub fn new() -> Oracle {
        Oracle::default()
    }

    /// A writer has opened `path` under `epoch` and found `len` bytes. `seed` distinguishes its
    /// content.
    pub fn opened(&self, path: &str, epoch: Epoch, len: u64, seed: u64) -> Result<(), String> {
        let files = &mut self.0.borrow_mut().files;
        let file = files.entry(path.to_owned()).or_default();
        let before = || file.stays.range(..epoch).map(|(_, stay)| stay);
        let acked = before().map(|stay| stay.acked).max().unwrap_or(0);
        if len < acked {
            return Err(format!(
                "{path}: {acked} bytes were acknowledged, a new writer found {len}"
            ));
        }
        let issued = before().next_back().map_or(0, |stay| stay.issued);
        if len > issued {
            return Err(format!("{path}: {issued} bytes were written, {len} are there"));
        }
        let next = file.stays.range(epoch..).next().map(|(_, stay)| stay.start);
        if next.is_some_and(|start| start < len) {
            return Err(format!("{path}: {len} bytes at epoch {epoch}, fewer at the next"));
        }
        if next.is_none() && len < file.seen {
            return Err(format!("{path}: a read saw {} bytes, {len} are left", file.seen));
        }
        file.closed = None;
        let twice = file.stays.insert(epoch, Stay { start: len, seed, issued: len, acked: len });
        match twice {
            Some(_) => Err(format!("{path}: epoch {epoch} was given to two writers")),
            None => Ok(()),
        }
    }

    /// The next `count` bytes that the writer of `epoch` appends.
    pub fn next(&self, path: &str, epoch: Epoch, count: usize) -> Vec<u8> {
        let files = &mut self.0.borrow_mut().files;
        let stay = files.get_mut(path).and_then(|file| file.stays.get_mut(&epoch));
        let stay = stay.expect("opened before");
        let start = stay.issued;
        stay.issued += count as u64;
        content(stay.seed, start, stay.issued)
    }

    /// All bytes up to `end` are acknowledged to the writer of `epoch`.
    pub fn acked(&self, path: &str, epoch: Epoch, end: u64) -> Result<(), String> {
        let files = &mut self.0.borrow_mut().files;
        // A removed file is judged no more.
        let Some(file) = files.get_mut(path) else { return Ok(()) };
        let later = file.stays.range(epoch.next()..).next();
        let later = later.map(|(epoch, stay)| (*epoch, stay.start));
        if let Some((next, start)) = later.filter(|(_, start)| end > *start) {
            return Err(format!(
                "{path}: {end} bytes are acknowledged under epoch {epoch}, and epoch {next} began \
                 at {start}"
            ));
        }
        let stay = file.stays.get_mut(&epoch).expect("opened before");
        if end > stay.issued {
            return Err(format!("{path}: acknowledged {end} of {} bytes", stay.issued));
        }
        stay.acked = stay.acked.max(end);
        Ok(())
    }

    /// The writer of `epoch` has sealed the file, at this time of the run.
    pub fn closed(&self, path: &str, epoch: Epoch, at: Duration) {
        let files = &mut self.0.borrow_mut().files;
        let Some(file) = files.get_mut(path) else { return };
        // A writer may learn late that its file was sealed, when another one has it.
        if file.stays.keys().next_back() == Some(&epoch) {
            file.closed = Some(at);
        }
    }

    /// When the last writer sealed the file; none while it may be open.
    pub fn closed_at(&self, path: &str) -> Option<Duration> {
        self.0.borrow().files.get(path).and_then(|file| file.closed)
    }

    /// Bytes acknowledged.
    pub fn acked_len(&self, path: &str) -> u64 {
        self.0.borrow().files.get(path).map_or(0, FileState::acked)
    }

    /// Paths with a writer so far.
    pub fn paths(&self) -> Vec<String> {
        self.0.borrow().files.keys().cloned().collect()
    }

    /// The file is gone, or may be: it is judged no more.
    pub fn removed(&self, path: &str) {
        self.0.borrow_mut().files.remove(path);
    }

    /// The stream service says that a chunk is sealed at `len`.
    pub fn sealed(&self, chunk: ChunkId, len: u32) -> Result<(), String> {
        let before = *self.0.borrow_mut().lengths.entry(chunk).or_insert(len);
        if before == len {
            return Ok(());
        }
        Err(format!("{chunk} was sealed at {before} bytes, now it has {len}"))
    }

    /// A read, or a question for the length, begins.
    pub fn begin_read(&self, path: &str) -> Reading {
        let files = &self.0.borrow().files;
        let floor = files.get(path).map_or(0, |file| file.acked().max(file.seen));
        Reading { path: path.to_owned(), floor }
    }

    /// A read of `want` bytes at `offset` returned `bytes`: fewer only at the file's end.
    pub fn read_ended(
        &self,
        reading: &Reading,
        offset: u64,
        want: usize,
        bytes: &[u8],
    ) -> Result<(), String> {
        let (path, floor) = (&reading.path, reading.floor);
        if bytes.len() > want {
            return Err(format!(
                "{path}: {} bytes at {offset}, {want} were asked for",
                bytes.len()
            ));
        }
        let end = offset + bytes.len() as u64;
        if bytes.len() < want && end < floor && self.0.borrow().files.contains_key(path) {
            return Err(format!(
                "{path}: a read of {want} bytes at {offset} ended at {end}, and {floor} were \
                 there before it began"
            ));
        }
        if bytes.is_empty() { Ok(()) } else { self.read(path, offset, bytes) }
    }

    /// A question for the length was answered with `len`.
    pub fn len_ended(&self, reading: &Reading, len: u64) -> Result<(), String> {
        let (path, floor) = (&reading.path, reading.floor);
        let files = &mut self.0.borrow_mut().files;
        let Some(file) = files.get_mut(path) else { return Ok(()) };
        let issued = file.issued();
        if len < floor {
            return Err(format!("{path}: {len} bytes long, and {floor} were there before"));
        }
        if len > issued {
            return Err(format!("{path}: {len} bytes long, {issued} were written"));
        }
        file.seen = file.seen.max(len);
        Ok(())
    }

    /// A read returned `bytes` at `offset`.
    pub fn read(&self, path: &str, offset: u64, bytes: &[u8]) -> Result<(), String> {
        let files = &mut self.0.borrow_mut().files;
        let Some(file) = files.get_mut(path) else { return Ok(()) };
        let end = offset + bytes.len() as u64;
        let issued = file.issued();
        if end > issued {
            return Err(format!("{path}: read up to {end}, {issued} bytes were written"));
        }
        // From the back: the bytes that a stay found are those of earlier ones.
        let mut above = end;
        for stay in file.stays.values().rev() {
            let from = stay.start.max(offset);
            if from >= above {
                continue;
            }
            let want = content(stay.seed, from, above);
            let have = &bytes[(from - offset) as usize..(above - offset) as usize];
            if have != want {
                let differs = |&index: &usize| have[index] != want[index];
                let index = (0..have.len()).find(differs).expect("they are not equal");
                let at = from + index as u64;
                let of = file.writer_of(at, &have[index..]);
                let (have, want) = (have[index], want[index]);
                return Err(format!("{path}: byte {at} is {have:#04x}, not {want:#04x}{of}"));
            }
            above = from;
        }
        file.seen = file.seen.max(end);
        Ok(())
    }

    /// The whole file, read when nothing is in flight, is `bytes`.
    pub fn whole(&self, path: &str, bytes: &[u8]) -> Result<(), String> {
        let acked = self.acked_len(path);
        if (bytes.len() as u64) < acked {
            return Err(format!(
                "{path}: {acked} bytes were acknowledged, {} are there",
                bytes.len()
            ));
        }
        self.read(path, 0, bytes)
    }
}
