//! Writers that keep what was acknowledged to them: the oracle of the failure tests.
//!
//! Each writer appends records to a file of its own. A record's bytes follow from its writer and
//! its number, so a file's content is checked to the byte without keeping it.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use base::MIB;
use client::{BlockingAppender, BlockingClient, Config, Connection, Error};
use wire::control::Policy;
use wire::handshake::ClusterKey;

/// Bytes of a record.
pub const RECORD: usize = 4096;

/// Shape of a load.
#[derive(Clone, Copy)]
pub struct Shape {
    pub writers: usize,
    /// Records that a writer submits before it waits for all of them.
    pub depth: usize,
    pub copies: u8,
    /// Threads that make small files, one after the other.
    pub makers: usize,
}

/// Writers at work.
pub struct Load {
    stop: Arc<AtomicBool>,
    writers: Vec<JoinHandle<Writer>>,
    /// The writers end with it.
    _client: Arc<BlockingClient>,
}

/// A writer's state at its end.
pub struct Writer {
    pub path: String,
    number: usize,
    /// Records acknowledged.
    pub acked: u64,
    /// Records submitted: those above `acked` may be there or not, as a prefix.
    pub submitted: u64,
    /// When each wait for an acknowledgement began, and how long it took.
    pub waits: Vec<(Instant, Duration)>,
    pub error: Option<String>,
}

/// The masters' addresses of a cluster's directory.
pub fn masters(dir: &Path) -> Vec<SocketAddr> {
    let book = crate::harness::book(dir);
    let masters = book["endpoints"]["masters"].as_array().expect("masters").clone();
    masters.iter().map(|addr| addr.as_str().expect("text").parse().expect("an address")).collect()
}

/// The key of a cluster's directory, when it has one.
pub fn key(dir: &Path) -> Option<ClusterKey> {
    let text = std::fs::read_to_string(dir.join("cluster.key")).ok()?;
    Some(text.parse().expect("a key"))
}

/// A client of a cluster. Its chunks are short, so that its writers need the masters often.
pub fn connect(dir: &Path) -> BlockingClient {
    let mut config = Config::default();
    config.writer.chunk_len_max = MIB as u32;
    connect_with(dir, config)
}

pub fn connect_with(dir: &Path, config: Config) -> BlockingClient {
    let connection = Connection { config, key: key(dir), ..Connection::to(masters(dir)) };
    BlockingClient::start(connection).expect("the cluster answers")
}

/// Record `seq` of a writer.
fn record(writer: usize, seq: u64) -> Vec<u8> {
    let mut bytes = crate::harness::content(RECORD, (writer as u64) << 40 | seq);
    bytes[..8].copy_from_slice(&seq.to_le_bytes());
    bytes
}

impl Load {
    /// Starts writing to new files below `/load`.
    pub fn start(dir: &Path, shape: Shape) -> Load {
        Load::start_with(Arc::new(connect(dir)), shape)
    }

    pub fn start_with(client: Arc<BlockingClient>, shape: Shape) -> Load {
        client.mkdir_all("/load", 0o755).expect("a directory");
        let stop = Arc::new(AtomicBool::new(false));
        let policy = Policy::strict(shape.copies);
        let writers = (0..shape.writers).map(|number| {
            let path = format!("/load/w{number}");
            let file = client.create(&path, policy, 0o644, true).expect("a file");
            let appender = file.append_handle().expect("a writer");
            let stop = stop.clone();
            std::thread::spawn(move || write(path, number, appender, shape.depth, &stop))
        });
        let mut threads: Vec<_> = writers.collect();
        for number in 0..shape.makers {
            let (client, stop) = (client.clone(), stop.clone());
            threads.push(std::thread::spawn(move || make(&client, number, policy, &stop)));
        }
        Load { stop, writers: threads, _client: client }
    }

    /// Waits until each writer was refused something and has ended. The next answer after a cut
    /// need not be a refusal: a file may be closed, and its length not noted yet.
    pub fn end(self) -> Vec<Writer> {
        let ended = || self.writers.iter().all(JoinHandle::is_finished);
        crate::harness::wait("all writers end", Duration::from_secs(30), ended);
        self.stop()
    }

    /// Ends the writers, after the record each is at.
    pub fn stop(self) -> Vec<Writer> {
        self.stop.store(true, Ordering::Relaxed);
        self.writers.into_iter().map(|writer| writer.join().expect("no panic")).collect()
    }
}

fn write(
    path: String,
    number: usize,
    appender: BlockingAppender,
    depth: usize,
    stop: &AtomicBool,
) -> Writer {
    let mut writer = Writer::new(path, number);
    while !stop.load(Ordering::Relaxed) {
        let began = Instant::now();
        let done = (0..depth).try_for_each(|_| {
            writer.submitted += 1;
            appender.submit(&record(number, writer.submitted - 1)).map(drop)
        });
        match done.and_then(|()| appender.sync()) {
            Ok(()) => writer.acked = writer.submitted,
            Err(error) => {
                writer.error = Some(error.to_string());
                return writer;
            }
        }
        writer.waits.push((began, began.elapsed()));
    }
    if let Err(error) = appender.close() {
        writer.error = Some(format!("close: {error}"));
    }
    writer
}

/// Makes files of one record each. They count as one writer: record `seq` is file `seq`.
fn make(client: &BlockingClient, number: usize, policy: Policy, stop: &AtomicBool) -> Writer {
    let path = format!("/load/m{number}");
    let mut writer = Writer::new(path, number);
    let mut dir = client.mkdir(&writer.path, 0o755);
    while !stop.load(Ordering::Relaxed) && dir.is_ok() {
        let began = Instant::now();
        dir = make_one(client, &writer, policy);
        writer.submitted += 1;
        writer.acked += u64::from(dir.is_ok());
        writer.waits.push((began, began.elapsed()));
    }
    writer.error = dir.err().map(|error| error.to_string());
    writer
}

fn make_one(client: &BlockingClient, writer: &Writer, policy: Policy) -> Result<(), Error> {
    let path = format!("{}/{}", writer.path, writer.submitted);
    let appender = client.create(&path, policy, 0o644, true)?.append_handle()?;
    appender.append(&record(writer.number, writer.submitted))?;
    appender.close().map(drop)
}

impl Writer {
    fn new(path: String, number: usize) -> Writer {
        Writer { path, number, acked: 0, submitted: 0, waits: Vec::new(), error: None }
    }

    /// Nothing failed, and all is there.
    pub fn verify_all(&self, client: &BlockingClient) {
        assert_eq!(self.error, None, "{}", self.path);
        match self.path.starts_with("/load/m") {
            true => self.verify_made(client),
            false => assert_eq!(self.verify(client), self.acked * RECORD as u64),
        }
    }

    /// Compares the files of a maker with its acknowledgements.
    pub fn verify_made(&self, client: &BlockingClient) {
        for seq in 0..self.acked {
            let file = client.open(&format!("{}/{seq}", self.path)).expect("it is there");
            assert_eq!(file.len().expect("a length"), RECORD as u64);
            assert!(file.read_at(0, RECORD).expect("it reads") == record(self.number, seq));
        }
    }

    /// Compares the file with the writer's acknowledgements: all acknowledged records, then a
    /// prefix of those in flight, nothing else. Returns the file's length.
    pub fn verify(&self, client: &BlockingClient) -> u64 {
        let file = client.open(&self.path).expect("it is there");
        let len = file.len().expect("a length");
        let (least, most) = (self.acked * RECORD as u64, self.submitted * RECORD as u64);
        let path = &self.path;
        assert!((least..=most).contains(&len), "{path} has {len} bytes, not {least} to {most}");
        let step = 64 * RECORD as u64;
        for offset in (0..len).step_by(step as usize) {
            let want: Vec<u8> = (offset / RECORD as u64..(offset + step) / RECORD as u64)
                .flat_map(|seq| record(self.number, seq))
                .take((len - offset).min(step) as usize)
                .collect();
            let got = file.read_at(offset, want.len()).expect("it reads");
            assert!(got == want, "{path} is not what was written, between {offset} and {step} on");
        }
        len
    }
}
