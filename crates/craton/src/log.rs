//! Logs of roles: JSON lines, in rotated files.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use base::MIB;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::exit::{Failure, io as io_failure};
use roles::config::Logging;

/// The file that is written to.
pub const FILE: &str = "craton.jsonl";

/// Sets the process's log up: JSON lines to a rotated file, or to standard error without a
/// directory.
pub fn start(config: &Logging) -> Result<(), Failure> {
    let filter = EnvFilter::builder().parse_lossy(&config.level);
    // A line that cannot be written is lost, and the role goes on: reports of that to standard
    // error would end it where that is on the same full disk.
    let lines = tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_env_filter(filter)
        .log_internal_errors(false);
    let set = match &config.dir {
        None => lines.with_writer(io::stderr).try_init(),
        Some(dir) => {
            std::fs::create_dir_all(dir).map_err(|error| io_failure("make", dir, &error))?;
            let file = Rotated::open(dir, config.file_mib * MIB, config.files)
                .map_err(|error| io_failure("write to", dir, &error))?;
            lines.with_writer(Shared(Mutex::new(file))).try_init()
        }
    };
    set.map_err(|error| Failure::setup(format!("cannot set the log up: {error}")))
}

/// For foreground commands: warnings to standard error, in words.
pub fn start_foreground() {
    // A command has no other tasks that a long one could hold up.
    let set = std::env::var("CRATON_LOG").ok();
    let text = set.as_deref().unwrap_or("warn,runtime::uring::slice=error");
    let filter = EnvFilter::builder().parse_lossy(text);
    let ansi = io::stderr().is_terminal();
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(ansi).without_time();
    // A second call, in tests, changes nothing.
    let _ = lines.with_writer(io::stderr).try_init();
}

/// A log file that is renamed to `.1`, `.2` and so on when it is full.
struct Rotated {
    dir: PathBuf,
    file: File,
    len: u64,
    len_max: u64,
    files: u32,
}

impl Rotated {
    fn open(dir: &Path, len_max: u64, files: u32) -> io::Result<Rotated> {
        let file = OpenOptions::new().create(true).append(true).open(dir.join(FILE))?;
        let len = file.metadata()?.len();
        Ok(Rotated { dir: dir.to_owned(), file, len, len_max, files })
    }

    fn rotate(&mut self) -> io::Result<()> {
        let name = |index: u32| match index {
            0 => self.dir.join(FILE),
            index => self.dir.join(format!("{FILE}.{index}")),
        };
        for index in (0..self.files).rev() {
            match std::fs::rename(name(index), name(index + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        *self = Rotated::open(&self.dir, self.len_max, self.files)?;
        Ok(())
    }
}

impl Write for Rotated {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // A line is one write: files end between lines.
        if self.len > 0 && self.len + bytes.len() as u64 > self.len_max {
            self.rotate()?;
        }
        self.file.write_all(bytes)?;
        self.len += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Shared(Mutex<Rotated>);

/// The file while a line is written.
struct Line<'a>(MutexGuard<'a, Rotated>);

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl<'a> MakeWriter<'a> for Shared {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        // After a panic under the lock the file is still valid.
        Line(self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_rotated_between_lines() {
        let dir = crate::output::test_dir("log");
        let mut log = Rotated::open(&dir, 100, 2).expect("it opens");
        for index in 0..50 {
            log.write_all(format!("line {index:03}\n").as_bytes()).expect("it is written");
        }
        let names: Vec<_> = std::fs::read_dir(&dir).expect("it lists").collect();
        assert_eq!(names.len(), 3, "{names:?}");
        let read = |name: &str| std::fs::read_to_string(dir.join(name)).expect("it reads");
        assert!(read(FILE).ends_with("line 049\n"));
        assert!(read("craton.jsonl.1").starts_with("line "));
        assert!(read("craton.jsonl.2").len() <= 100);
        std::fs::remove_dir_all(dir).expect("it goes");
    }
}
