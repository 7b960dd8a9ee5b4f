//! Logs of roles, and of gateways' requests: JSON lines, in rotated files.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

use base::MIB;
use metrics::{Registry, SharedCounter};
use object_gateway::AccessLog;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::exit::{Failure, io as io_failure};
use roles::config::Logging;

/// The file that is written to.
pub const FILE: &str = "craton.jsonl";
/// The file of a gateway's requests.
pub const ACCESS_FILE: &str = "access.jsonl";
/// Lines of requests that wait to be written; those that find no room are lost, and counted: a slow disk
/// holds up no request.
const ACCESS_QUEUE: usize = 4096;
/// Bytes of lines that are written at once.
const ACCESS_WRITE: usize = 256 << 10;

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
            let file = Rotated::open(dir, FILE, config.file_mib * MIB, config.files)
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
    name: &'static str,
    file: File,
    len: u64,
    len_max: u64,
    files: u32,
}

impl Rotated {
    fn open(dir: &Path, name: &'static str, len_max: u64, files: u32) -> io::Result<Rotated> {
        let file = OpenOptions::new().create(true).append(true).open(dir.join(name))?;
        let len = file.metadata()?.len();
        Ok(Rotated { dir: dir.to_owned(), name, file, len, len_max, files })
    }

    fn rotate(&mut self) -> io::Result<()> {
        let name = |index: u32| match index {
            0 => self.dir.join(self.name),
            index => self.dir.join(format!("{}.{index}", self.name)),
        };
        for index in (0..self.files).rev() {
            match std::fs::rename(name(index), name(index + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        *self = Rotated::open(&self.dir, self.name, self.len_max, self.files)?;
        Ok(())
    }
}

impl Write for Rotated {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // A write is of whole lines: files end between lines.
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

/// The log of a gateway's requests: a thread writes its lines.
struct AccessWriter {
    lines: Option<SyncSender<String>>,
    thread: Option<JoinHandle<()>>,
    lost: SharedCounter,
}

impl AccessWriter {
    fn write(&self, line: String) {
        let sent = self.lines.as_ref().is_some_and(|lines| lines.try_send(line).is_ok());
        if !sent {
            self.lost.inc();
        }
    }
}

impl Drop for AccessWriter {
    /// Waits until what was sent is written.
    fn drop(&mut self) {
        self.lines = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // A thread that panicked has said so.
        }
    }
}

/// Opens the log of a gateway's requests, in files as its own log's.
pub fn start_access(
    dir: &Path,
    config: &Logging,
    registry: &Registry,
) -> Result<AccessLog, Failure> {
    std::fs::create_dir_all(dir).map_err(|error| io_failure("make", dir, &error))?;
    let file = Rotated::open(dir, ACCESS_FILE, config.file_mib * MIB, config.files)
        .map_err(|error| io_failure("write to", dir, &error))?;
    let help = "Lines of the access log that were not written: the disk is slow, full or broken.";
    let lost = registry.shared_counter("craton_s3_access_log_lost_total", help, &[]);
    let (lines, queue) = sync_channel(ACCESS_QUEUE);
    let counted = lost.clone();
    let thread = std::thread::Builder::new()
        .name("access log".to_owned())
        .spawn(move || write_access(file, &queue, &counted))
        .map_err(|error| Failure::setup(format!("cannot start the access log ({error})")))?;
    let writer = AccessWriter { lines: Some(lines), thread: Some(thread), lost };
    Ok(AccessLog::new(Arc::new(move |line| writer.write(line))))
}

/// Writes lines until no more can come.
fn write_access(mut file: Rotated, queue: &Receiver<String>, lost: &SharedCounter) {
    let mut fails = false;
    while let Ok(line) = queue.recv() {
        let (mut text, mut count) = (line, 1);
        while text.len() < ACCESS_WRITE
            && let Ok(line) = queue.try_recv()
        {
            text += &line;
            count += 1;
        }
        let written = file.write_all(text.as_bytes());
        if written.is_err() {
            lost.add(count);
        }
        // One line for all that is lost until it works again.
        if let (Err(error), false) = (&written, fails) {
            let dir = file.dir.display();
            tracing::warn!(%dir, %error, "the access log cannot be written: make room on its disk");
        }
        fails = written.is_err();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_rotated_between_lines() {
        let dir = crate::output::test_dir("log");
        let mut log = Rotated::open(&dir, FILE, 100, 2).expect("it opens");
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

    #[test]
    fn what_was_sent_to_the_access_log_is_written_before_it_ends() {
        let dir = crate::output::test_dir("access");
        let registry = Registry::new();
        let log = start_access(&dir, &Logging::default(), &registry).expect("it opens");
        let sent: Vec<String> = (0..1000).map(|index| format!("line {index}\n")).collect();
        let sink = log.sink();
        sent.iter().for_each(|line| sink(line.clone()));
        drop((log, sink));
        let written = std::fs::read_to_string(dir.join(ACCESS_FILE)).expect("it reads");
        assert_eq!(written, sent.concat());
        assert!(registry.expose().contains("craton_s3_access_log_lost_total 0"));
        std::fs::remove_dir_all(dir).expect("it goes");
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted() {
        let dir = crate::output::test_dir("access-full");
        let full = OpenOptions::new().write(true).open("/dev/full").expect("it opens");
        let mut file = Rotated::open(&dir, ACCESS_FILE, 1 << 20, 1).expect("it opens");
        file.file = full;
        let lost = Registry::new().shared_counter("lost_total", "Lost.", &[]);
        let (lines, queue) = sync_channel(3);
        (0..3).for_each(|_| lines.send("line\n".to_owned()).expect("room"));
        drop(lines);
        write_access(file, &queue, &lost);
        assert_eq!(lost.get(), 3);
        std::fs::remove_dir_all(dir).expect("it goes");
    }
}
