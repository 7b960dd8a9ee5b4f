//! Number of executors that the machine runs, over all its processes.
//!
//! Each executor holds a lock on one byte of a file in shared memory, the lowest that is free. The
//! kernel drops the lock when the process dies, however it dies. More executors than cores run when
//! a byte at or beyond the number of cores is locked: one `fcntl` shows it.

#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Executors that are counted at most.
const EXECUTOR_SLOTS_MAX: i64 = 1024;

/// Executors of this process: all there is to count when the file cannot be used.
static OF_PROCESS: AtomicUsize = AtomicUsize::new(0);

/// One executor's byte in the file. It is released on drop.
pub(crate) struct ExecutorCount {
    file: Option<File>,
    cores: usize,
}

impl ExecutorCount {
    pub(crate) fn join() -> ExecutorCount {
        OF_PROCESS.fetch_add(1, Ordering::Relaxed);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        ExecutorCount { file: ExecutorCount::take_slot().ok(), cores }
    }

    fn take_slot() -> io::Result<File> {
        // SAFETY: a system call without arguments.
        let user = unsafe { libc::geteuid() };
        // Locks belong to the open file, so each executor opens its own.
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(format!("/dev/shm/craton-executors-{user}"))?;
        for slot in 0..EXECUTOR_SLOTS_MAX {
            match lock(&file, libc::F_OFD_SETLK, slot, 1) {
                Ok(_) => return Ok(file),
                Err(error) if is_taken(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(file) // Uncounted; the machine is known to be crowded.
    }

    /// True when the machine runs more executors than it has cores.
    pub(crate) fn more_than_cores(&self) -> bool {
        let Some(file) = &self.file else {
            return OF_PROCESS.load(Ordering::Relaxed) > self.cores;
        };
        // Length 0 is "to the end". A lock of our own does not show, and need not: if our byte is
        // beyond the cores, so were others' when we came; check below us too.
        match lock(file, libc::F_OFD_GETLK, self.cores as i64, 0) {
            Ok(found) => found.l_type != libc::F_UNLCK as libc::c_short || self.sits_beyond(),
            Err(_) => true,
        }
    }

    /// True when every byte below the number of cores is another's.
    fn sits_beyond(&self) -> bool {
        let Some(file) = &self.file else { return false };
        (0..self.cores as i64).all(|slot| {
            lock(file, libc::F_OFD_GETLK, slot, 1)
                .is_ok_and(|found| found.l_type != libc::F_UNLCK as libc::c_short)
        })
    }
}

impl Drop for ExecutorCount {
    fn drop(&mut self) {
        OF_PROCESS.fetch_sub(1, Ordering::Relaxed);
    }
}

fn is_taken(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES))
}

fn lock(file: &File, command: libc::c_int, start: i64, len: i64) -> io::Result<libc::flock> {
    let mut range = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: len,
        l_pid: 0,
    };
    // SAFETY: `range` is what both lock commands take, and lives across the call.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut range) } {
        0 => Ok(range),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executors_above_the_cores_are_counted_while_they_run() {
        let slots: Vec<_> =
            (0..=ExecutorCount::join().cores).map(|_| ExecutorCount::join()).collect();
        assert!(slots.iter().all(ExecutorCount::more_than_cores));
        // Other executors of this user may run beside the test: only their absence is proved.
        if slots[0].file.is_none() {
            drop(slots);
            assert!(!ExecutorCount::join().more_than_cores());
        }
    }
}
