//! Floors: the machine's own times for the bare operations.

use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::future::join_all;
use runtime::{Buf, Cores, Env, File, OpenOptions, RuntimeConfig, Stream, WriteMode};

use super::{Error, FloorParts, Latencies, Report, Row};

/// Bytes of each scratch file; written in a ring, so that all of it is zero-written space.
const SCRATCH_BYTES: u64 = 32 << 20;
/// Bytes of the file that read floors are measured on.
const READ_SCRATCH_BYTES: u64 = 256 << 20;
/// Bytes of one zero-writing step.
const STEP: usize = 1 << 20;

/// Options of `bench floor`.
#[derive(Clone, Debug)]
pub struct FloorOptions {
    /// User bytes of the append whose floor it is.
    pub size: usize,
    /// Concurrent writes.
    pub replicas: usize,
    /// Time to spend.
    pub duration: Duration,
    /// Directory of the files that are written, and removed; made when it is absent.
    pub scratch: PathBuf,
}

/// Scratch files and an echo server on another core.
pub(crate) struct Floor {
    env: Env,
    files: Vec<(PathBuf, File)>,
    payload: Buf,
    next: u64,
    stream: Stream,
    _echo: Cores,
    disk: Latencies,
    single: Latencies,
    rtt: Latencies,
}

/// Bytes on media of an append of `size` user bytes.
pub(crate) fn padded(size: usize) -> usize {
    wire::sector::sectors_for(size) * base::limits::SECTOR
}

impl Floor {
    pub(crate) async fn prepare(
        env: &Env,
        scratch: &Path,
        size: usize,
        replicas: usize,
    ) -> Result<Floor, Error> {
        let say = |error: std::io::Error| Error::Failed(format!("{}: {error}", scratch.display()));
        env.create_dir_all(scratch).await.map_err(say)?;
        let mut files = Vec::new();
        for index in 0..replicas.max(1) {
            let path = scratch.join(format!("floor-{}-{index}", std::process::id()));
            let options = OpenOptions::CREATE.direct();
            let file = env.open_file(&path, options).await.map_err(say)?;
            let zeros = env.pool().alloc_zeroed(STEP).map_err(Error::failed)?.freeze();
            for at in (0..SCRATCH_BYTES).step_by(STEP) {
                file.write_at(at, zeros.clone(), WriteMode::Cached).await.map_err(say)?;
            }
            file.sync().await.map_err(say)?;
            files.push((path, file));
        }
        let payload = env.pool().alloc_zeroed(padded(size)).map_err(Error::failed)?;
        let echo = Cores::start(&RuntimeConfig::named("floor echo"), 1).map_err(say)?;
        let (listening, addr) = std::sync::mpsc::sync_channel(1);
        let _serving = echo.handles()[0].spawn(move |env| async move {
            let Ok(listener) = env.listen(([127, 0, 0, 1], 0).into()).await else { return };
            let _ = listening.send(listener.local_addr());
            while let Ok(mut stream) = listener.accept().await {
                while let Some(back) = receive(&env, &mut stream).await {
                    if stream.write.write_all(vec![back]).await.is_err() {
                        break;
                    }
                }
            }
        });
        let addr = addr.recv().map_err(|_| Error::failed("the echo server did not start"))?;
        let stream = env.connect(addr).await.map_err(say)?;
        Ok(Floor {
            env: env.clone(),
            files,
            payload: payload.freeze(),
            next: 0,
            stream,
            _echo: echo,
            disk: Latencies::default(),
            single: Latencies::default(),
            rtt: Latencies::default(),
        })
    }

    /// Measures for about `duration`.
    pub(crate) async fn slice(&mut self, duration: Duration) -> Result<(), Error> {
        let end = self.env.now() + duration;
        while self.env.now() < end {
            let at = self.next;
            self.next = (self.next + self.payload.len() as u64)
                % (SCRATCH_BYTES - self.payload.len() as u64);
            self.next -= self.next % base::limits::SECTOR as u64;
            let started = self.env.now();
            let writes = self
                .files
                .iter()
                .map(|(_, file)| file.write_at(at, self.payload.clone(), WriteMode::Durable));
            for done in join_all(writes).await {
                done.map_err(Error::failed)?;
            }
            self.disk.add(self.env.now() - started);
            let started = self.env.now();
            let alone = self.files[0].1.write_at(at, self.payload.clone(), WriteMode::Durable);
            alone.await.map_err(Error::failed)?;
            self.single.add(self.env.now() - started);
            let started = self.env.now();
            let ping = self.env.pool().copy_of(&[7; 64]).map_err(Error::failed)?;
            self.stream.write.write_all(vec![ping]).await.map_err(Error::failed)?;
            receive(&self.env, &mut self.stream)
                .await
                .ok_or_else(|| Error::failed("the echo server went away"))?;
            self.rtt.add(self.env.now() - started);
        }
        Ok(())
    }

    pub(crate) fn parts(&self) -> FloorParts {
        FloorParts {
            disk_us: self.disk.mean_us(),
            disk_single_us: self.single.mean_us(),
            rtt_us: self.rtt.mean_us(),
        }
    }

    /// Removes the scratch files.
    pub(crate) async fn finish(self) {
        for (path, file) in self.files {
            drop(file);
            let _ = self.env.remove_file(&path).await;
        }
    }
}

/// The device's own reads: direct, of one size, `depth` at a time.
pub(crate) struct ReadFloor {
    env: Env,
    path: PathBuf,
    file: File,
    len: usize,
    depth: usize,
    next: u64,
    reads: Latencies,
    busy: Duration,
}

impl ReadFloor {
    /// Fills a scratch file with bytes that no device can leave out.
    pub(crate) async fn prepare(
        env: &Env,
        scratch: &Path,
        size: usize,
        depth: usize,
    ) -> Result<ReadFloor, Error> {
        let say = |error: std::io::Error| Error::Failed(format!("{}: {error}", scratch.display()));
        env.create_dir_all(scratch).await.map_err(say)?;
        let path = scratch.join(format!("read-floor-{}", std::process::id()));
        let file = env.open_file(&path, OpenOptions::CREATE.direct()).await.map_err(say)?;
        for at in (0..READ_SCRATCH_BYTES).step_by(STEP) {
            let mut bytes = env.pool().alloc(STEP).map_err(Error::failed)?;
            let mut word = env.random_u64() | 1;
            for chunk in bytes.chunks_exact_mut(8) {
                word = word.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17) ^ at;
                chunk.copy_from_slice(&word.to_le_bytes());
            }
            file.write_at(at, bytes.freeze(), WriteMode::Cached).await.map_err(say)?;
        }
        file.sync().await.map_err(say)?;
        let (reads, busy) = (Latencies::default(), Duration::ZERO);
        Ok(ReadFloor {
            env: env.clone(),
            path,
            file,
            len: padded(size),
            depth,
            next: 0,
            reads,
            busy,
        })
    }

    /// Measures for about `duration`: in order, or at random offsets.
    pub(crate) async fn slice(&mut self, duration: Duration, random: bool) -> Result<(), Error> {
        let started = self.env.now();
        let end = started + duration;
        let (next, reads) = (Cell::new(self.next), RefCell::new(Latencies::default()));
        let room = READ_SCRATCH_BYTES - self.len as u64;
        let this = &*self;
        let workers = (0..this.depth).map(|_| async {
            while this.env.now() < end {
                let at = if random {
                    this.env.random_below(room / base::limits::SECTOR as u64)
                        * base::limits::SECTOR as u64
                } else {
                    let at = next.get();
                    next.set((at + this.len as u64) % room / 4096 * 4096);
                    at
                };
                let started = this.env.now();
                let buf = this.env.pool().alloc(this.len).map_err(Error::failed)?;
                let (done, _) = this.file.read_at(at, buf).await;
                done.map_err(Error::failed)?;
                reads.borrow_mut().add(this.env.now() - started);
            }
            Ok::<(), Error>(())
        });
        futures_util::future::try_join_all(workers).await?;
        self.busy += self.env.now() - started;
        self.next = next.get();
        self.reads.merge(reads.take());
        Ok(())
    }

    /// Mean latency of a read, us.
    pub(crate) fn mean_us(&self) -> f64 {
        self.reads.mean_us()
    }

    /// Bytes a second of the device.
    pub(crate) fn rate(&self) -> f64 {
        self.reads.count() as f64 * self.len as f64 / self.busy.as_secs_f64().max(1e-9)
    }

    /// Removes the scratch file.
    pub(crate) async fn finish(self) {
        let ReadFloor { env, path, file, .. } = self;
        drop(file);
        let _ = env.remove_file(&path).await;
    }
}

async fn receive(env: &Env, stream: &mut Stream) -> Option<Buf> {
    let mut buf = env.pool().alloc(64).ok()?;
    let mut filled = 0;
    while filled < 64 {
        let (count, back) = stream.read.read(buf, filled).await;
        buf = back;
        filled += count.ok().filter(|&count| count > 0)?;
    }
    Some(buf.freeze())
}

/// Measures the floor of an append: durable writes, and round trips to another core. An error when the
/// files cannot be written.
pub async fn floor(env: &Env, options: FloorOptions) -> Result<Report, Error> {
    let mut floor = Floor::prepare(env, &options.scratch, options.size, options.replicas).await?;
    let started = env.now();
    let measured = floor.slice(options.duration).await;
    let (elapsed, parts) = (env.now() - started, floor.parts());
    let disk = floor.disk.clone();
    floor.finish().await;
    measured?;
    let mut row = Row {
        size: Some(options.size as u64),
        depth: 1,
        replicas: Some(options.replicas),
        floor_us: Some(parts.disk_us + parts.rtt_us),
        floor: Some(parts),
        ..Row::default()
    };
    disk.fill(&mut row, elapsed);
    Ok(Report::new("floor", vec![row]))
}
