//! Logs of roles, and of gateways' requests: JSON lines, in rotated files.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use base::MIB;
use metrics::{Registry, SharedCounter};
use object_gateway::AccessLog;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::exit::{Failure, io as io_failure};
use roles::config::Logging;

/// The file that is written to.
pub const FILE: &str = "craton.jsonl";
/// Lines that wait to be written; those that find no room are lost.
const QUEUE: usize = 4096;
/// The end of a role waits for its last lines no longer than this.
const END_WAIT: Duration = Duration::from_secs(1);
/// The file of a gateway's requests.
pub const ACCESS_FILE: &str = "access.jsonl";
/// Lines of requests that wait to be written; those that find no room are lost, and counted: a slow disk
/// holds up no request.
const ACCESS_QUEUE: usize = 4096;
/// Bytes of lines that are written at once.
const ACCESS_WRITE: usize = 256 << 10;

/// A role's log. A thread writes its lines, so that a disk which is slow, or hangs, holds up no task.
/// Dropped, it waits until what was logged is written, but not for long.
#[must_use]
pub struct Log(Option<Lines>);

impl Drop for Log {
    fn drop(&mut self) {
        if let Some(lines) = &self.0 {
            lines.wait(END_WAIT);
        }
    }
}

/// Sets the process's log up: JSON lines to a rotated file, or to standard error without a
/// directory.
pub fn start(config: &Logging) -> Result<Log, Failure> {
    let filter = EnvFilter::builder().parse_lossy(&config.level);
    // A line that cannot be written is lost, and the role goes on: reports of that to standard
    // error would end it where that is on the same full disk.
    let lines = tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_env_filter(filter)
        .log_internal_errors(false);
    let (set, log) = match &config.dir {
        None => (lines.with_writer(io::stderr).try_init(), Log(None)),
        Some(dir) => {
            std::fs::create_dir_all(dir).map_err(|error| io_failure("make", dir, &error))?;
            let file = Rotated::open(dir, FILE, config.file_mib * MIB, config.files)
                .map_err(|error| io_failure("write to", dir, &error))?;
            let queue = Lines::start(file)
                .map_err(|error| Failure::setup(format!("cannot start the log ({error})")))?;
            (lines.with_writer(queue.clone()).try_init(), Log(Some(queue)))
        }
    };
    set.map_err(|error| Failure::setup(format!("cannot set the log up: {error}")))?;
    Ok(log)
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

    /// Begins the next file. It is opened before any older one moves: where none can be made, on a full
    /// disk, all stay.
    fn rotate(&mut self) -> io::Result<()> {
        let fresh = self.dir.join(format!("{}.new", self.name));
        let file = OpenOptions::new().create(true).append(true).open(&fresh)?;
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
        std::fs::rename(&fresh, name(0))?;
        (self.len, self.file) = (file.metadata()?.len(), file);
        Ok(())
    }
}

impl Write for Rotated {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // A write is of whole lines: files end between lines.
        if self.len > 0
            && self.len + bytes.len() as u64 > self.len_max
            && let Err(error) = self.rotate()
        {
            let (dir, name) = (self.dir.display(), self.name);
            tracing::warn!(%dir, name, %error, "a log file cannot be rotated: it gets longer");
            // The next attempt is after as much again: each may move older files on.
            self.len = 0;
        }
        self.file.write_all(bytes)?;
        self.len += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Lines on their way to the thread that writes them. Clones are of one log.
#[derive(Clone)]
struct Lines {
    queue: SyncSender<Message>,
    lost: Arc<AtomicU64>,
}

enum Message {
    Line(Vec<u8>),
    /// All lines before it are written.
    Written(SyncSender<()>),
}

impl Lines {
    fn start(file: impl Write + Send + 'static) -> io::Result<Lines> {
        let (queue, messages) = sync_channel(QUEUE);
        let lines = Lines { queue, lost: Arc::default() };
        let lost = lines.lost.clone();
        let thread = std::thread::Builder::new().name("log".to_owned());
        thread.spawn(move || write_lines(file, &messages, &lost))?;
        Ok(lines)
    }

    /// Waits until what was sent is written.
    fn wait(&self, most: Duration) {
        let (written, wait) = sync_channel(1);
        // Without room the disk takes no lines: the last ones are lost.
        if self.queue.try_send(Message::Written(written)).is_ok() {
            let _ = wait.recv_timeout(most);
        }
    }
}

/// Writes lines for as long as the process lives. Those that cannot be written, or found no room, are
/// counted: a line says so when others can be written again.
fn write_lines(mut file: impl Write, messages: &Receiver<Message>, lost: &AtomicU64) {
    while let Ok(message) = messages.recv() {
        match message {
            Message::Line(line) if file.write_all(&line).is_err() => {
                lost.fetch_add(1, Ordering::Relaxed);
            }
            Message::Line(_) => match lost.swap(0, Ordering::Relaxed) {
                0 => {}
                lines => tracing::warn!(lines, "lines of this log are lost: its disk took none"),
            },
            Message::Written(written) => drop(written.send(())), // The role may have ended.
        }
    }
}

impl Write for Lines {
    /// Takes a whole line: the subscriber writes one at a time.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.queue.try_send(Message::Line(bytes.to_vec())).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Lines;

    fn make_writer(&'a self) -> Lines {
        self.clone()
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
mod tests;
