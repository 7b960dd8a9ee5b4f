//! `craton bench object`: S3 through a gateway, beside the core's own appends and reads.
//!
//! The load speaks HTTP/1.1 over a kept connection for each operation under way, with signatures of
//! version 4. Payloads are signed by their SHA-256, as SDKs do over HTTP, or not. Their hashes are
//! computed once for each content. Every body that is read is compared with what was written.

mod http;
mod options;
mod report;
mod s3;
mod sides;
mod sign;

pub use options::{ObjectOp, ObjectOptions};
pub use report::{ObjectReport, ObjectRow};

use std::cell::Cell;

use base::limits::APPEND_DATA_MAX;
use client::{Appender, Client, FlatLogFile, Reader};
use futures_util::future::try_join_all;
use wire::control::Policy;

use super::{Error, Processes};
use s3::{KEYS_OF_CALL, S3};
use sides::{Scenario, Side, Work, measure};

/// Bytes that are read at random from the core, and from objects, for each size.
const READ_BYTES: usize = 64 << 20;
/// Objects that are read, of each size, at most: of 4 KiB five times what an owner keeps in memory.
const OBJECTS_READ_MAX: usize = 10_000;
/// Appends of the file that lists are compared with.
const LIST_CORE_APPENDS: u64 = 2000;
/// Requests under way while objects are made and removed.
const PREPARE_DEPTH: usize = 16;
/// Prefixes of the listed keys at most.
const PREFIXES: u64 = 1000;
/// Size of the core's reads that lists are compared with.
const LIST_CORE_SIZE: usize = 4096;

/// Measures objects of a bucket, and files of the core, of its own; both are removed. An error when an
/// operation fails, or something is read otherwise than it was written.
pub async fn object(
    client: &Client,
    processes: &dyn Processes,
    options: &ObjectOptions,
) -> Result<ObjectReport, Error> {
    let workers = options.depths.iter().copied().max().unwrap_or(1).max(PREPARE_DEPTH);
    let s3 = S3::make(client.env(), options, workers).await?;
    let mut bench = Bench { client, processes, options, s3: &s3, made: Vec::new() };
    let has = |op: ObjectOp| options.ops.contains(&op);
    let mut results = Vec::new();
    for &size in &options.sizes {
        if has(ObjectOp::Put) {
            results.extend(bench.puts(size).await?);
        }
        if has(ObjectOp::Get) {
            results.extend(bench.gets(size).await?);
        }
    }
    if has(ObjectOp::List) {
        results.extend(bench.lists().await?);
    }
    bench.delete_all().await?;
    s3.remove().await?;
    Ok(ObjectReport { bench: "object", results })
}

struct Bench<'a> {
    client: &'a Client,
    processes: &'a dyn Processes,
    options: &'a ObjectOptions,
    s3: &'a S3<'a>,
    /// Keys of the bucket.
    made: Vec<String>,
}

/// A file of the core, whose content is appends of one size.
struct CoreFile {
    path: String,
    file: FlatLogFile,
    appender: Appender,
    data: Vec<u8>,
}

impl CoreFile {
    async fn make(client: &Client, policy: Policy, size: usize) -> Result<CoreFile, Error> {
        let path = format!("/.bench-object-{:016x}", client.env().random_u64());
        let file = client.create(&path, policy, 0o644, true).await.map_err(Error::failed)?;
        let appender = file.append_handle().await.map_err(Error::failed)?;
        let data = (0..size).map(|i| (i * 31 % 251) as u8).collect();
        Ok(CoreFile { path, file, appender, data })
    }

    /// Appends once: in as few appends as the core has room for.
    async fn append(&self) -> Result<(), Error> {
        let mut pieces = Vec::new();
        for piece in self.data.chunks(APPEND_DATA_MAX) {
            pieces.push(self.appender.submit(piece).await.map_err(Error::failed)?);
        }
        try_join_all(pieces).await.map(drop).map_err(Error::failed)
    }

    async fn remove(self, client: &Client) -> Result<(), Error> {
        self.appender.close().await.map_err(Error::failed)?;
        client.unlink(&self.path).await.map_err(Error::failed)
    }
}

async fn core_read(reader: &Reader, offset: u64, size: usize) -> Result<(), Error> {
    let bytes = reader.read_at(offset, size).await.map_err(Error::failed)?;
    if bytes.len() == size { Ok(()) } else { Err(Error::failed("a short read")) }
}

fn put_key(size: usize, n: u64) -> String {
    format!("put-{size}/{n:08}")
}

fn get_key(size: usize, n: u64) -> String {
    format!("get-{size}/{n:08}")
}

impl Bench<'_> {
    fn scenario(&self, size: usize, depth: usize, writes: bool) -> Scenario {
        Scenario { size, depth, time: self.options.duration, writes }
    }

    async fn puts(&mut self, size: usize) -> Result<Vec<ObjectRow>, Error> {
        let (client, s3) = (self.client, self.s3);
        let file = CoreFile::make(client, self.options.policy, size).await?;
        let (appended, put) = (Cell::new(0), Cell::new(0));
        let mut rows = Vec::new();
        for &depth in &self.options.depths {
            let core: Work<'_> = Box::new(|_, _| Box::pin(file.append()));
            let own: Work<'_> = Box::new(move |worker, n| {
                Box::pin(async move { s3.put(worker, &put_key(size, n), size, n).await })
            });
            let sides = (Side::new("core_append", &appended, core), Side::new("put", &put, own));
            let scenario = self.scenario(size, depth, true);
            rows.extend(measure(client.env(), self.processes, scenario, sides).await?);
        }
        self.made.extend((0..put.get()).map(|n| put_key(size, n)));
        file.remove(client).await?;
        Ok(rows)
    }

    async fn gets(&mut self, size: usize) -> Result<Vec<ObjectRow>, Error> {
        let (client, s3) = (self.client, self.s3);
        let count = (READ_BYTES / size.max(1)).clamp(1, OBJECTS_READ_MAX) as u64;
        let file = CoreFile::make(client, self.options.policy, size).await?;
        // As many at a time as objects: at 32 of 4 MiB memory would be the measure.
        self.prepare(count, |_, _| file.append()).await?;
        let put = |worker, n| async move { s3.put(worker, &get_key(size, n), size, n).await };
        self.prepare(count, put).await?;
        self.made.extend((0..count).map(|n| get_key(size, n)));
        let (read, got) = (Cell::new(0), Cell::new(0));
        let reader = file.file.reader();
        let reader = &reader;
        let env = client.env();
        let is_random = size < APPEND_DATA_MAX;
        // Large ones in order, as the rate is compared.
        let choose = move |n: u64| if is_random { env.random_below(count) } else { n % count };
        let mut rows = Vec::new();
        for &depth in &self.options.depths {
            let core: Work<'_> =
                Box::new(move |_, n| Box::pin(core_read(reader, choose(n) * size as u64, size)));
            let own: Work<'_> = Box::new(move |worker, n| {
                let n = choose(n);
                Box::pin(async move { s3.get(worker, &get_key(size, n), size, n).await })
            });
            let sides = (Side::new("core_read", &read, core), Side::new("get", &got, own));
            let scenario = self.scenario(size, depth, false);
            rows.extend(measure(client.env(), self.processes, scenario, sides).await?);
        }
        file.remove(client).await?;
        Ok(rows)
    }

    async fn lists(&mut self) -> Result<Vec<ObjectRow>, Error> {
        let (client, s3, keys) = (self.client, self.s3, self.options.keys);
        let prefixes = keys.min(PREFIXES);
        let key = move |n: u64| format!("list/{:04}/{n:08}", n % prefixes);
        self.prepare(keys, |worker, n| async move { s3.put(worker, &key(n), 0, 0).await }).await?;
        self.made.extend((0..keys).map(key));
        let file = CoreFile::make(client, self.options.policy, LIST_CORE_SIZE).await?;
        let count = LIST_CORE_APPENDS;
        self.prepare(count, |_, _| file.append()).await?;
        let reader = file.file.reader();
        let (reader, env) = (&reader, client.env());
        let page = format!("list-type=2&max-keys={KEYS_OF_CALL}&prefix=list%2F");
        let asked = [
            ("list", page.clone(), ("<Key>", keys.min(KEYS_OF_CALL as u64) as usize)),
            (
                "list_prefixes",
                format!("delimiter=%2F&{page}"),
                ("<CommonPrefixes>", prefixes as usize),
            ),
        ];
        let mut rows = Vec::new();
        for (op, query, wanted) in &asked {
            let (read, listed) = (Cell::new(0), Cell::new(0));
            for &depth in &self.options.depths {
                let core: Work<'_> = Box::new(move |_, _| {
                    let offset = env.random_below(count) * LIST_CORE_SIZE as u64;
                    Box::pin(core_read(reader, offset, LIST_CORE_SIZE))
                });
                let own: Work<'_> =
                    Box::new(move |worker, _| Box::pin(s3.list(worker, query, *wanted)));
                let sides = (Side::new("core_read", &read, core), Side::new(op, &listed, own));
                let scenario = self.scenario(LIST_CORE_SIZE, depth, false);
                let [core, mut own] =
                    measure(client.env(), self.processes, scenario, sides).await?;
                (own.size, own.mb_s) = (wanted.1 as u64, None);
                rows.extend([core, own]);
            }
        }
        file.remove(client).await?;
        Ok(rows)
    }

    /// Runs operations `0..count`, some at a time.
    async fn prepare<F>(&self, count: u64, work: impl Fn(usize, u64) -> F) -> Result<(), Error>
    where
        F: Future<Output = Result<(), Error>>,
    {
        let (next, work) = (Cell::new(0), &work);
        let next = &next;
        let workers = (0..PREPARE_DEPTH).map(|worker| async move {
            while next.get() < count {
                let n = next.get();
                next.set(n + 1);
                work(worker, n).await?;
            }
            Ok::<(), Error>(())
        });
        try_join_all(workers).await.map(drop)
    }

    async fn delete_all(&mut self) -> Result<(), Error> {
        let made = std::mem::take(&mut self.made);
        let calls: Vec<&[String]> = made.chunks(KEYS_OF_CALL).collect();
        let calls = &calls;
        let delete = |worker, n: u64| self.s3.delete(worker, calls[n as usize]);
        self.prepare(calls.len() as u64, delete).await
    }
}
