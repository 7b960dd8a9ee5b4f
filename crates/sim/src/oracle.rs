//! The oracle of acknowledged appends: what a file may hold, kept outside the system.
//!
//! A file's content is a sequence of records. Each record's bytes follow from the file, the
//! writer that appended it and its number, so any byte that a read returns can be judged.
//!
//! Checked (invariants 1 to 4): every acknowledged byte is there with its content; beyond them
//! stands a prefix of what was in flight and nothing else; no read goes back.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Content of one writer's stay: from the length it found on.
#[derive(Debug)]
struct Stay {
    /// Length of the file when the writer opened it.
    start: u64,
    seed: u64,
}

#[derive(Debug, Default)]
struct FileState {
    /// Writers in order.
    stays: Vec<Stay>,
    /// Bytes acknowledged to some caller.
    acked: u64,
    /// Bytes given to `append` by the present writer, acknowledged or not.
    issued: u64,
    /// Longest length that a read has seen.
    seen: u64,
}

/// Judges the content of files. Clones share it.
#[derive(Clone, Default)]
pub struct Oracle(Rc<RefCell<BTreeMap<String, FileState>>>);

/// The byte at `offset` of a file, as the writer of `seed` writes it.
fn byte_at(seed: u64, offset: u64) -> u8 {
    let word = (seed ^ (offset >> 3)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((word ^ (word >> 29)).rotate_left(((offset & 7) * 8) as u32) >> 56) as u8
}

impl Oracle {
    /// An oracle that knows no file.
    pub fn new() -> Oracle {
        Oracle::default()
    }

    /// A writer has opened `path` and found `len` bytes. `seed` distinguishes its content.
    pub fn opened(&self, path: &str, len: u64, seed: u64) -> Result<(), String> {
        let files = &mut *self.0.borrow_mut();
        let file = files.entry(path.to_owned()).or_default();
        if len < file.acked {
            return Err(format!(
                "{path}: {} bytes were acknowledged, a new writer found {len}",
                file.acked
            ));
        }
        if len > file.issued {
            return Err(format!("{path}: {} bytes were written, {len} are there", file.issued));
        }
        if len < file.seen {
            return Err(format!("{path}: a read saw {} bytes, {len} are left", file.seen));
        }
        file.acked = len;
        file.issued = len;
        file.stays.push(Stay { start: len, seed });
        Ok(())
    }

    /// The next `count` bytes that the present writer appends.
    pub fn next(&self, path: &str, count: usize) -> Vec<u8> {
        let files = &mut *self.0.borrow_mut();
        let file = files.get_mut(path).expect("opened before");
        let seed = file.stays.last().expect("opened before").seed;
        let start = file.issued;
        file.issued += count as u64;
        (start..file.issued).map(|offset| byte_at(seed, offset)).collect()
    }

    /// All bytes up to `end` are acknowledged.
    pub fn acked(&self, path: &str, end: u64) {
        let files = &mut *self.0.borrow_mut();
        let file = files.get_mut(path).expect("opened before");
        assert!(end <= file.issued, "{path}: acknowledged {end} of {} bytes", file.issued);
        file.acked = file.acked.max(end);
    }

    /// Bytes acknowledged.
    pub fn acked_len(&self, path: &str) -> u64 {
        self.0.borrow().get(path).map_or(0, |file| file.acked)
    }

    /// Paths with a writer so far.
    pub fn paths(&self) -> Vec<String> {
        self.0.borrow().keys().cloned().collect()
    }

    /// The file is gone: it is judged no more.
    pub fn removed(&self, path: &str) {
        self.0.borrow_mut().remove(path);
    }

    /// A read returned `bytes` at `offset`.
    pub fn read(&self, path: &str, offset: u64, bytes: &[u8]) -> Result<(), String> {
        let files = &mut *self.0.borrow_mut();
        let Some(file) = files.get_mut(path) else { return Ok(()) };
        let end = offset + bytes.len() as u64;
        if end > file.issued {
            return Err(format!("{path}: read up to {end}, {} bytes were written", file.issued));
        }
        for (index, &byte) in bytes.iter().enumerate() {
            let at = offset + index as u64;
            let stay = file.stays.iter().rev().find(|stay| stay.start <= at);
            let seed = stay.expect("the first stay starts at 0").seed;
            let want = byte_at(seed, at);
            if byte != want {
                return Err(format!("{path}: byte {at} is {byte:#04x}, not {want:#04x}"));
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn written() -> (Oracle, Vec<u8>) {
        let oracle = Oracle::new();
        oracle.opened("/f", 0, 7).unwrap();
        let bytes = oracle.next("/f", 100);
        oracle.acked("/f", 60);
        (oracle, bytes)
    }

    #[test]
    fn a_lost_acknowledged_byte_is_found() {
        let (oracle, bytes) = written();
        assert!(oracle.whole("/f", &bytes[..60]).is_ok());
        assert!(oracle.whole("/f", &bytes).is_ok());
        assert!(oracle.whole("/f", &bytes[..59]).is_err());
        assert!(oracle.opened("/f", 59, 8).is_err());
    }

    #[test]
    fn wrong_and_invented_bytes_are_found() {
        let (oracle, mut bytes) = written();
        bytes[10] ^= 1;
        assert!(oracle.read("/f", 0, &bytes[..20]).is_err());
        bytes[10] ^= 1;
        bytes.push(0);
        assert!(oracle.read("/f", 0, &bytes).is_err());
    }

    #[test]
    fn a_read_that_goes_back_is_found() {
        let (oracle, bytes) = written();
        oracle.read("/f", 0, &bytes[..80]).unwrap();
        assert!(oracle.opened("/f", 70, 8).is_err());
        assert!(oracle.opened("/f", 80, 8).is_ok());
    }
}
