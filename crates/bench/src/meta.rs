//! `craton bench meta`: creates, look-ups, lists and removals of the namespace.

use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;

use client::Client;
use runtime::Class;
use wire::control::Policy;

use super::usage::Usage;
use super::{Error, Latencies, Processes, Report, Row};

/// Options of `bench meta`.
#[derive(Clone, Debug)]
pub struct MetaOptions {
    /// Files made in all.
    pub files: u64,
    /// Directories they are spread over.
    pub dirs: u64,
    /// Operations in flight.
    pub depth: usize,
}

/// Measures the namespace in a directory of its own, which is removed. An error when an operation
/// fails.
pub async fn meta(
    client: &Client,
    processes: &dyn Processes,
    options: MetaOptions,
) -> Result<Report, Error> {
    let root = format!("/.bench-meta-{:016x}", client.env().random_u64());
    client.mkdir(&root, 0o755).await.map_err(Error::failed)?;
    let path = |number: u64| format!("{root}/d{:06}/f{number:09}", number % options.dirs);
    let mut results = Vec::new();
    let run =
        |kind: &'static str, count: u64| Run { client, processes, kind, count, options: &options };
    results.push(
        run("mkdir", options.dirs)
            .go(|client, number| {
                let path = format!("{root}/d{number:06}");
                async move { client.mkdir(&path, 0o755).await.map(drop) }
            })
            .await?,
    );
    results.push(
        run("create", options.files)
            .go(|client, number| {
                let path = path(number);
                async move { client.create(&path, Policy::strict(3), 0o644, true).await.map(drop) }
            })
            .await?,
    );
    results.push(
        run("lookup", options.files)
            .go(|client, number| {
                let path = path(number);
                async move { client.lookup(&path).await.map(drop) }
            })
            .await?,
    );
    results.push(
        run("unlink", options.files)
            .go(|client, number| {
                let path = path(number);
                async move { client.unlink(&path).await }
            })
            .await?,
    );
    client.remove_tree(&root).await.map_err(Error::failed)?;
    Ok(Report::new("meta", results))
}

struct Run<'a> {
    client: &'a Client,
    processes: &'a dyn Processes,
    kind: &'static str,
    count: u64,
    options: &'a MetaOptions,
}

impl Run<'_> {
    /// Runs operations `0..count`, `depth` in flight.
    async fn go<F>(self, make: impl Fn(Client, u64) -> F) -> Result<Row, Error>
    where
        F: Future<Output = Result<(), client::Error>> + 'static,
    {
        let env = self.client.env().clone();
        let all = Rc::new(RefCell::new(Latencies::default()));
        let failed = Rc::new(RefCell::new(None));
        let room = std::sync::Arc::new(runtime::sync::Semaphore::new(self.options.depth));
        let before = Usage::now(self.processes);
        let started = env.now();
        for number in 0..self.count {
            let permit = room.clone().acquire_owned().await;
            if failed.borrow().is_some() {
                break;
            }
            let work = make(self.client.clone(), number);
            let (env, all, failed) = (env.clone(), all.clone(), failed.clone());
            env.clone().spawn(Class::Foreground, "bench meta", async move {
                let started = env.now();
                if let Err(error) = work.await {
                    failed.borrow_mut().get_or_insert(Error::failed(error));
                }
                all.borrow_mut().add(env.now() - started);
                drop(permit);
            });
        }
        let rest = self.options.depth as u32;
        drop(room.acquire_many(rest).await);
        if let Some(error) = failed.take() {
            return Err(error);
        }
        let elapsed = env.now() - started;
        let after = Usage::now(self.processes);
        let latencies = all.take();
        let mut row =
            Row { kind: Some(self.kind.to_owned()), depth: self.options.depth, ..Row::default() };
        let count = latencies.count();
        row.average_cpu(&[(count, after.cpu_per_op(&before, count))]);
        latencies.fill(&mut row, elapsed);
        Ok(row)
    }
}
