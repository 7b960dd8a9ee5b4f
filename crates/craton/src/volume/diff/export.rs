//! `craton volume export-diff`.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::rc::Rc;

use block_proto::paths::AT;
use block_segment::Has;
use block_volume::contract::Device;
use block_volume::diff::{Head, Item, Writer};
use futures_util::StreamExt;
use futures_util::stream::FuturesOrdered;
use runtime::Env;
use serde_json::json;

use super::{DiffPart, Search, differing, snapshot};
use crate::exit::{Done, Failure, io};
use crate::output::{bytes, print_error, print_json};
use crate::volume::args::DiffArgs;
use crate::volume::fresh::{Fresh, sync_device};
use crate::volume::open::{Site, failure};

/// Runs it: `base` is the name of an older snapshot, without the volume's.
pub async fn export(
    site: &Site<'_>,
    name: &str,
    base: Option<&str>,
    path: &Path,
    (args, force): (&DiffArgs, bool),
) -> Done {
    let to_stdout = path == Path::new("-");
    if to_stdout && args.json {
        return Err(Failure::usage("the difference goes to standard output: leave --json out"));
    }
    let (newer, volume) = snapshot(site, name).await?;
    let older = match base {
        Some(base) => Some(snapshot(site, &format!("{volume}{AT}{base}")).await?.0),
        None => None,
    };
    if older.as_ref().is_some_and(|older| older.volume >= newer.volume) {
        return Err(Failure::usage(format!(
            "{volume}{AT}{} is not older than {name}; 'craton volume snapshot ls {volume}' lists \
             them, the oldest first",
            base.unwrap_or_default()
        )));
    }
    if !to_stdout && !force && path.symlink_metadata().is_ok() {
        let path = path.display();
        return Err(Failure::failed(format!("{path} is there: --force replaces it")));
    }
    let fresh = if to_stdout { None } else { Fresh::instead_of(path)? };
    let under = fresh.as_ref().map_or(path, Fresh::under);
    let out: Box<dyn Write + Send> = match to_stdout {
        true => Box::new(std::io::stdout()),
        false => Box::new(File::create(under).map_err(|error| io("write", under, &error))?),
    };
    let snapshot = name.rsplit(AT).next().unwrap_or_default().to_owned();
    let (id, base) = (site.env().random_u64(), base.map(str::to_owned));
    let head = Head { id, bytes: newer.spec.bytes, base, snapshot };
    let copied = async {
        let now = site.look(name).await?;
        let before = match &older {
            Some(older) => Some(site.look(&older.spec.name).await?),
            None => None,
        };
        let mut stream = Stream::new(site.env(), &head, out).await?;
        let search = Search::new(site.managers.client(), &newer, older.as_ref())?;
        let devices = (now, before);
        stream.all(&search, &devices, args.parallel.into()).await?;
        let done = stream.end().await?;
        site.close(name, devices.0).await;
        if let (Some(older), Some(device)) = (&older, devices.1) {
            site.close(&older.spec.name, device).await;
        }
        Ok::<_, Failure>(done)
    };
    let (records, data) = copied.await?;
    match fresh {
        Some(fresh) => fresh.keep()?,
        None if to_stdout => {}
        None => sync_device(path)?,
    }
    if args.json {
        return print_json(&json!({
            "snapshot": name,
            "since": older.map(|older| older.spec.name),
            "records": records,
            "data_bytes": data,
        }));
    }
    if !args.quiet {
        let since = head.base.map(|base| format!(" since {base}")).unwrap_or_default();
        print_error(format_args!(
            "{name} is exported{since}: {} of data, {records} records",
            bytes(data)
        ));
    }
    Ok(())
}

/// Snapshots that are open: the newer, the older.
type Devices = (Rc<dyn Device>, Option<Rc<dyn Device>>);

/// Bytes on their way out, and their sink.
struct Stream {
    env: Env,
    out: Option<BufWriter<Box<dyn Write + Send>>>,
    writer: Writer,
    records: u64,
}

/// A part of the stream.
type Found = (DiffPart, Vec<(u64, Vec<u8>)>);

impl Stream {
    async fn new(env: &Env, head: &Head, out: Box<dyn Write + Send>) -> Result<Stream, Failure> {
        let (env, out) = (env.clone(), Some(BufWriter::new(out)));
        let mut stream = Stream { env, out, writer: Writer::new(head), records: 0 };
        stream.write(head.encode()).await?;
        Ok(stream)
    }

    async fn write(&mut self, bytes: Vec<u8>) -> Done {
        let mut out = self.out.take().expect("it comes back");
        let written = self.env.blocking("write a difference", move || {
            let done = out.write_all(&bytes);
            (out, done)
        });
        let (out, done) = written.await;
        self.out = Some(out);
        done.map_err(|error| Failure::failed(format!("cannot write the difference: {error}")))
    }

    async fn put(&mut self, (part, found): Found) -> Done {
        let extent = part.extent;
        let (offset, len) = (extent.offset, extent.len);
        match part.now {
            Has::Hole => return self.record(Item::Hole { offset, len }, &[]).await,
            Has::Zero => return self.record(Item::Zero { offset, len }, &[]).await,
            Has::Data => {}
        }
        for (offset, data) in found {
            self.record(Item::Data { offset, len: data.len() as u64 }, &data).await?;
        }
        Ok(())
    }

    async fn record(&mut self, item: Item, data: &[u8]) -> Done {
        self.records += 1;
        let mut bytes = self.writer.record(item, data).to_vec();
        bytes.extend_from_slice(data);
        self.write(bytes).await
    }

    async fn all(&mut self, search: &Search<'_>, devices: &Devices, parallel: usize) -> Done {
        let name = &search.newer.spec.name;
        let get = |part: DiffPart| async move {
            let found = match part.now {
                Has::Data => differing(&*devices.0, devices.1.as_deref(), part).await,
                Has::Hole | Has::Zero => Ok(Vec::new()),
            };
            found.map(|found| (part, found)).map_err(|fault| failure(name, &fault))
        };
        let mut under_way = FuturesOrdered::new();
        for index in 0..search.segments() {
            let (mut views, mut page) = (search.views(index).await?, 0);
            while let Some((parts, next)) = search.parts(index, &mut views, page).await? {
                page = next;
                for part in parts {
                    if under_way.len() == parallel {
                        let found = under_way.next().await.expect("some are under way");
                        self.put(found?).await?;
                    }
                    under_way.push_back(get(part));
                }
            }
        }
        while let Some(found) = under_way.next().await {
            self.put(found?).await?;
        }
        Ok(())
    }

    /// Ends the stream; returns its records and bytes of data.
    async fn end(mut self) -> Result<(u64, u64), Failure> {
        let last = self.writer.end().to_vec();
        self.write(last).await?;
        let mut out = self.out.take().expect("it comes back");
        let flushed = self.env.blocking("write a difference", move || out.flush());
        let flushed = flushed.await;
        flushed
            .map_err(|error| Failure::failed(format!("cannot write the difference: {error}")))?;
        Ok((self.records, self.writer.data()))
    }
}
