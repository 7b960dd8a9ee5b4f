//! Blocks over NBD: workers that know of each of their blocks which content was acknowledged.
//!
//! A worker has a connection, one request at a time, and blocks of its own, so no order between
//! workers is needed. A write whose outcome is unknown retires its block: it may still be under
//! way, so the block is not used again, and at the end has the old content or the new.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::failure::Failure;
use block_nbd::protocol::{
    ClientHello, Command, Greeting, OptionReply, OptionRequest, Request, Select, SimpleReply,
    decode_reply, request_flags,
};
use runtime::Rng;

use super::cluster::Cluster;

const BLOCK: u64 = 4096;
/// Workers of a volume.
const WORKERS: u64 = 3;
/// Blocks that a worker uses at a time.
const WORKING: usize = 64;
/// Blocks of a volume, 1 GiB.
const VOLUME_BLOCKS: u64 = (1 << 30) / BLOCK;
/// An answer takes no longer than the time limit of a front end's block client, and a stop.
const ANSWER_WITHIN: Duration = Duration::from_secs(150);
/// Between two attempts to connect.
const RETRY: Duration = Duration::from_millis(200);
/// Pause between two requests of a worker.
const THINK: Duration = Duration::from_millis(3);

/// Fills `bytes` with a content of its own for each `of`.
pub fn fill(bytes: &mut [u8], of: [u64; 3]) {
    let mixed = of.iter().fold(0x9e37_79b9_7f4a_7c15_u64, |sum, part| {
        (sum ^ part).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(29)
    });
    Rng::new(mixed).fill(bytes);
}

/// State of a block.
#[derive(Clone, Copy)]
struct Known {
    block: u64,
    /// The version acknowledged last; 0 is zeroes.
    acked: u64,
    /// A later version whose outcome is unknown.
    maybe: Option<u64>,
}

#[derive(Default)]
struct Shared {
    violation: Mutex<Option<String>>,
    writes: AtomicU64,
    reads: AtomicU64,
    unknown: AtomicU64,
    longest_ms: AtomicU64,
}

impl Shared {
    fn violation(&self) -> Option<String> {
        self.violation.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_violation(&self, text: String) {
        let mut violation = self.violation.lock().unwrap_or_else(PoisonError::into_inner);
        violation.get_or_insert(text);
    }
}

/// Running workers.
pub struct Load {
    shared: Arc<Shared>,
    volumes: Vec<Volume>,
    workers: Vec<JoinHandle<Worker>>,
}

/// A volume, always used through the same front end.
#[derive(Clone)]
struct Volume {
    name: String,
    number: u64,
    frontend: SocketAddr,
}

impl Load {
    /// Makes a volume for each front end, and starts its workers.
    pub fn start(cluster: &Cluster, mut rng: Rng, stop: &Arc<AtomicBool>) -> Result<Load, Failure> {
        let shared = Arc::new(Shared::default());
        let (mut volumes, mut workers) = (Vec::new(), Vec::new());
        for (index, frontend) in cluster.frontends()?.into_iter().enumerate() {
            let number = index as u64 + 1;
            let volume = Volume { name: format!("chaos-{number}"), number, frontend };
            cluster.craton(&["volume", "create", &volume.name, "--size", "1G"])?;
            for worker in 0..WORKERS {
                let mut worker = Worker {
                    volume: volume.clone(),
                    working: Vec::new(),
                    retired: Vec::new(),
                    next: worker,
                    version: 0,
                    shared: shared.clone(),
                };
                let (rng, stop) = (rng.fork(), stop.clone());
                workers.push(std::thread::spawn(move || {
                    worker.work(rng, &stop);
                    worker
                }));
            }
            volumes.push(volume);
        }
        Ok(Load { shared, volumes, workers })
    }

    /// The first violation.
    pub fn violation(&self) -> Option<String> {
        self.shared.violation()
    }

    /// Waits for the workers, which have been asked to stop.
    pub fn end(self) -> Result<Ended, String> {
        let mut workers = Vec::new();
        for worker in self.workers {
            workers.push(worker.join().map_err(|_| "a lane has panicked".to_owned())?);
        }
        let Load { shared, volumes, .. } = Load { workers: Vec::new(), ..self };
        shared.violation().map_or(Ok(Ended { shared, volumes, workers }), Err)
    }
}

/// A worker: one connection, and blocks of its own.
struct Worker {
    volume: Volume,
    working: Vec<Known>,
    retired: Vec<Known>,
    /// The next block of its own: every [`WORKERS`]th of the volume, spread over its segments.
    next: u64,
    version: u64,
    shared: Arc<Shared>,
}

impl Worker {
    fn work(&mut self, mut rng: Rng, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) && self.shared.violation().is_none() {
            let Ok(mut connection) = Connection::open(&self.volume) else {
                std::thread::sleep(RETRY);
                continue;
            };
            while !stop.load(Ordering::Relaxed) && self.act(&mut connection, &mut rng).is_ok() {
                std::thread::sleep(THINK);
            }
        }
    }

    /// Does one request; an error ends the connection.
    fn act(&mut self, to: &mut Connection, rng: &mut Rng) -> Result<(), String> {
        if self.working.len() < WORKING {
            // A step that is no multiple of a segment's parts, so that all of them are used.
            let block = self.next * 4099 % VOLUME_BLOCKS;
            self.next += WORKERS;
            self.working.push(Known { block, acked: 0, maybe: None });
        }
        let index = rng.below(self.working.len() as u64) as usize;
        let began = Instant::now();
        let done = if rng.below(5) < 3 { self.write(to, index) } else { self.read(to, index) };
        let took = began.elapsed().as_millis() as u64;
        self.shared.longest_ms.fetch_max(took, Ordering::Relaxed);
        done
    }

    fn write(&mut self, to: &mut Connection, index: usize) -> Result<(), String> {
        self.version += 1;
        let known = &mut self.working[index];
        let content = content(&self.volume, known.block, self.version);
        let flags = if self.version.is_multiple_of(4) { request_flags::FUA } else { 0 };
        match to.request(Command::Write, flags, known.block * BLOCK, &content) {
            Ok(_) => {
                known.acked = self.version;
                self.shared.writes.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            Err(error) => {
                known.maybe = Some(self.version);
                let retired = self.working.swap_remove(index);
                self.retired.push(retired);
                self.shared.unknown.fetch_add(1, Ordering::Relaxed);
                Err(error)
            }
        }
    }

    fn read(&mut self, to: &mut Connection, index: usize) -> Result<(), String> {
        let known = self.working[index];
        let got = to.request(Command::Read, 0, known.block * BLOCK, &[])?;
        self.shared.reads.fetch_add(1, Ordering::Relaxed);
        if let Err(violation) = compare(&self.volume, known, &got) {
            self.shared.set_violation(violation);
        }
        Ok(())
    }
}

fn content(volume: &Volume, block: u64, version: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK as usize];
    if version > 0 {
        fill(&mut bytes, [volume.number, block, version]);
    }
    bytes
}

/// Compares what was read with what may be there.
fn compare(volume: &Volume, known: Known, got: &[u8]) -> Result<(), String> {
    let Known { block, acked, maybe } = known;
    let may = [Some(acked), maybe];
    if may.into_iter().flatten().any(|version| content(volume, block, version) == got) {
        return Ok(());
    }
    let older = (0..acked).rev().find(|version| content(volume, block, *version) == got);
    let what = match older {
        Some(0) => "zeroes".to_owned(),
        Some(older) => format!("version {older}"),
        None => "no content of its own".to_owned(),
    };
    Err(format!(
        "{}: block {block} has {what}; version {acked} was acknowledged, {maybe:?} not answered",
        volume.name
    ))
}

/// The load when it has ended.
pub struct Ended {
    shared: Arc<Shared>,
    volumes: Vec<Volume>,
    workers: Vec<Worker>,
}

impl Ended {
    /// The volumes' names.
    pub fn volumes(&self) -> Vec<String> {
        self.volumes.iter().map(|volume| volume.name.clone()).collect()
    }

    /// Compares every block that was ever written.
    pub fn verify(&self, _cluster: &Cluster) -> Result<(), String> {
        for worker in &self.workers {
            let mut connection = Connection::open(&worker.volume)?;
            for known in worker.working.iter().chain(&worker.retired) {
                let got = connection.request(Command::Read, 0, known.block * BLOCK, &[])?;
                compare(&worker.volume, *known, &got)?;
            }
        }
        Ok(())
    }

    /// One line of figures.
    pub fn summary(&self) -> String {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        format!(
            "blocks: {} writes acknowledged, {} of unknown outcome, {} reads compared, the longest \
             answer after {} ms",
            of(&self.shared.writes),
            of(&self.shared.unknown),
            of(&self.shared.reads),
            of(&self.shared.longest_ms)
        )
    }
}

/// A connection that has a volume open.
struct Connection {
    stream: TcpStream,
    got: Vec<u8>,
    cookie: u64,
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl Connection {
    fn open(volume: &Volume) -> Result<Connection, String> {
        let stream = TcpStream::connect(volume.frontend).map_err(text)?;
        stream.set_nodelay(true).map_err(text)?;
        stream.set_read_timeout(Some(ANSWER_WITHIN)).map_err(text)?;
        stream.set_write_timeout(Some(ANSWER_WITHIN)).map_err(text)?;
        let mut this = Connection { stream, got: Vec::new(), cookie: 0 };
        let greeting = this.take(Greeting::LEN)?;
        Greeting::decode(greeting[..].try_into().expect("so many")).map_err(text)?;
        this.send(&ClientHello { fixed: true, no_zeroes: true }.encode())?;
        let mut go = Vec::new();
        let select = Select { name: volume.name.clone(), wants: Vec::new() };
        OptionRequest::Go(select).encode(&mut go);
        this.send(&go)?;
        loop {
            let Some((_, reply, len)) = decode_reply(&this.got).map_err(text)? else {
                this.receive()?;
                continue;
            };
            this.got.drain(..len);
            match reply {
                OptionReply::Ack => return Ok(this),
                OptionReply::Refused { message, .. } => return Err(message),
                _ => {}
            }
        }
    }

    /// Does a request of one block; the bytes of a read.
    fn request(
        &mut self,
        command: Command,
        flags: u16,
        offset: u64,
        data: &[u8],
    ) -> Result<Vec<u8>, String> {
        self.cookie += 1;
        let (cookie, len) = (self.cookie, BLOCK as u32);
        let mut out = Request { command, flags, cookie, offset, len }.encode().to_vec();
        out.extend_from_slice(data);
        self.send(&out)?;
        let head = self.take(SimpleReply::LEN)?;
        let head = SimpleReply::decode(head[..].try_into().expect("so many")).map_err(text)?;
        match head.error {
            Some(errno) => Err(format!("{errno:?}")),
            None if head.cookie != cookie => Err("another request is answered".to_owned()),
            None if command == Command::Read => self.take(BLOCK as usize),
            None => Ok(Vec::new()),
        }
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.stream.write_all(bytes).map_err(text)
    }

    fn receive(&mut self) -> Result<(), String> {
        let mut part = [0; 16 << 10];
        match self.stream.read(&mut part).map_err(text)? {
            0 => Err("the front end has closed the connection".to_owned()),
            count => {
                self.got.extend_from_slice(&part[..count]);
                Ok(())
            }
        }
    }

    fn take(&mut self, len: usize) -> Result<Vec<u8>, String> {
        while self.got.len() < len {
            self.receive()?;
        }
        Ok(self.got.drain(..len).collect())
    }
}
