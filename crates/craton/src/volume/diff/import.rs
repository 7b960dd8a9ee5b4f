//! `craton volume import-diff`.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use base::Kind;
use block_proto::managers::Error;
use block_proto::paths::AT;
use block_proto::{BlockRequest, VolumeInfo};
use block_segment::Has;
use block_volume::contract::{Clear, Device};
use block_volume::diff::{DecodeError, HEAD, HEAD_MAX, Head, Item, RECORD, Reader};
use block_volume::geometry::Extent;
use block_volume::limits::IO_MAX;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use runtime::Env;
use serde_json::json;
use wire::control::Policy;

use super::{Search, differing, snapshot};
use crate::exit::{Code, Done, Failure, io};
use crate::output::{bytes, print_error, print_json};
use crate::volume::args::DiffArgs;
use crate::volume::change::{self, change, check_name};
use crate::volume::import::new_volume;
use crate::volume::open::{Site, failure};

/// Runs it: brings a volume forward by a stream, or makes it of one that has all.
pub async fn import(
    site: &Site<'_>,
    name: &str,
    path: &Path,
    policy: Option<Policy>,
    args: &DiffArgs,
) -> Done {
    check_name(name)?;
    let shown = path.display().to_string();
    if path != Path::new("-") {
        // A file is verified as a whole before anything is changed.
        let mut input = Input::open(site.env(), path)?;
        let whole = async {
            let (_, mut reader) = input.head().await?;
            while let Some(record) = input.next(&mut reader).await? {
                drop(record);
            }
            input.behind().await
        };
        whole.await.map_err(|cause| cause.failure(&shown))?;
    }
    let mut input = Input::open(site.env(), path)?;
    let (head, mut reader) = input.head().await.map_err(|cause| cause.failure(&shown))?;
    let target = format!("{name}{AT}{}", head.snapshot);
    let (info, made) = match &head.base {
        Some(base) => (known(site, name, base, &head).await?, false),
        None => (new_of(site, name, &head, policy).await?, true),
    };
    let work = async {
        let device = site.open(name).await?;
        let applied = async {
            if let Some(base) = &head.base {
                refuse_changed(site, &info, &format!("{name}{AT}{base}")).await?;
            }
            let copy = DiffImport { name, env: site.env(), device: &*device, fresh: made };
            copy.all(&mut input, &mut reader, args.parallel.into()).await
        };
        let applied = applied.await;
        site.close(name, device).await;
        applied.map_err(|(cause, begun)| {
            let failure = cause.failure(&shown);
            match (&head.base, begun) {
                (Some(base), true) => Failure::new(
                    failure.code,
                    format!(
                        "{failure}; {name} has a part of it: 'craton volume snapshot rollback \
                         {name} {base}' takes that back"
                    ),
                ),
                _ => failure,
            }
        })?;
        let nonce = site.env().random_u64();
        let (volume, snapshot) = (info.volume, head.snapshot.clone());
        let request = BlockRequest::Snapshot { nonce, volume, name: snapshot };
        change(site.managers, request).await
    };
    let done = work.await;
    if done.is_err() && made {
        let remove = BlockRequest::Remove { volume: info.volume, force: true };
        if site.managers.ask(remove).await.is_err() {
            print_error(format_args!("{name} was made for it and is left; remove it"));
        }
    }
    let done = done?;
    if args.json {
        return print_json(&json!({
            "volume": name,
            "snapshot": done.spec.name,
            "since": head.base,
            "made": made,
            "data_bytes": reader.data(),
        }));
    }
    if !args.quiet {
        print_error(format_args!("{target} is there: {} of data", bytes(reader.data())));
    }
    Ok(())
}

/// The volume that a difference is for.
async fn known(
    site: &Site<'_>,
    name: &str,
    base: &str,
    head: &Head,
) -> Result<VolumeInfo, Failure> {
    let info = site.closed(name).await?;
    match site.managers.volume(&format!("{name}{AT}{base}")).await {
        Ok(_) => {}
        Err(Error::Refused { kind: Kind::NotFound, .. }) => {
            return Err(Failure::failed(format!(
                "{name} has no snapshot {base}, on which this difference stands: import the one \
                 that leads to {base} first"
            )));
        }
        Err(error) => return Err(error.into()),
    }
    if info.spec.bytes != head.bytes {
        return Err(Failure::failed(format!(
            "{name} has {} bytes, and the difference is of a volume of {}: 'craton volume resize \
             {name} --size {}' first",
            info.spec.bytes, head.bytes, head.bytes
        )));
    }
    let target = format!("{name}{AT}{}", head.snapshot);
    match site.managers.volume(&target).await {
        Err(Error::Refused { kind: Kind::NotFound, .. }) => Ok(info),
        Ok(_) => Err(Failure::failed(format!("{target} is there already"))),
        Err(error) => Err(error.into()),
    }
}

/// The volume for a stream with all data.
async fn new_of(
    site: &Site<'_>,
    name: &str,
    head: &Head,
    policy: Option<Policy>,
) -> Result<VolumeInfo, Failure> {
    match site.managers.volume(name).await {
        Err(Error::Refused { kind: Kind::NotFound, .. }) => {}
        Ok(_) => {
            return Err(Failure::failed(format!(
                "{name} is there, and this stream stands on no snapshot: it makes a new volume; \
                 give another name"
            )));
        }
        Err(error) => return Err(error.into()),
    }
    change::make(site.managers, name, &new_volume(head.bytes, policy)).await
}

/// Refuses when the volume was written to since its snapshot `base`: later data would be mixed with
/// the difference. A temporary snapshot shows it.
async fn refuse_changed(
    site: &Site<'_>,
    info: &VolumeInfo,
    base: &str,
) -> Result<(), (ImportError, bool)> {
    let before = |failure: Failure| (ImportError::Failed(failure), false);
    let nonce = site.env().random_u64();
    let name = format!(".import-{nonce:016x}");
    let request = BlockRequest::Snapshot { nonce, volume: info.volume, name };
    let now = change(site.managers, request).await.map_err(before)?;
    let changed = is_changed(site, &now, base).await;
    let remove = BlockRequest::Remove { volume: now.volume, force: true };
    let removed = site.managers.ask(remove).await;
    let changed = changed.map_err(before)?;
    removed.map_err(|error| before(error.into()))?;
    match changed {
        false => Ok(()),
        true => Err(before(Failure::failed(format!(
            "{} was written to since {base}: the difference would be mixed with that; 'craton \
             volume snapshot rollback' takes it back",
            info.spec.name
        )))),
    }
}

async fn is_changed(site: &Site<'_>, now: &VolumeInfo, base: &str) -> Result<bool, Failure> {
    let (older, _) = snapshot(site, base).await?;
    let search = Search::new(site.managers.client(), now, Some(&older))?;
    let mut moved = Vec::new();
    for index in 0..search.segments() {
        let (mut views, mut page) = (search.views(index).await?, 0);
        while let Some((parts, next)) = search.parts(index, &mut views, page).await? {
            page = next;
            if parts.iter().any(|part| !part.perhaps || part.now != Has::Data) {
                return Ok(true);
            }
            moved.extend(parts);
        }
    }
    if moved.is_empty() {
        return Ok(false);
    }
    let devices = (site.look(&now.spec.name).await?, site.look(base).await?);
    let mut changed = false;
    for part in moved {
        let found = differing(&*devices.0, Some(&*devices.1), part).await;
        if !found.map_err(|fault| failure(&now.spec.name, &fault))?.is_empty() {
            changed = true;
            break;
        }
    }
    site.close(&now.spec.name, devices.0).await;
    site.close(base, devices.1).await;
    Ok(changed)
}

/// Reason why a stream is not imported.
enum ImportError {
    DecodeError(DecodeError),
    Failed(Failure),
}

impl From<DecodeError> for ImportError {
    fn from(error: DecodeError) -> ImportError {
        ImportError::DecodeError(error)
    }
}

impl ImportError {
    fn failure(self, path: &str) -> Failure {
        match self {
            ImportError::DecodeError(error @ DecodeError::Damaged(_)) => {
                Failure::new(Code::Damage, format!("{path}: {error}"))
            }
            ImportError::DecodeError(error) => Failure::failed(format!("{path}: {error}")),
            ImportError::Failed(failure) => failure,
        }
    }
}

/// A stream on its way in.
struct Input {
    env: Env,
    from: Option<BufReader<Box<dyn Read + Send>>>,
}

impl Input {
    fn open(env: &Env, path: &Path) -> Result<Input, Failure> {
        let from: Box<dyn Read + Send> = match path == Path::new("-") {
            true => Box::new(std::io::stdin()),
            false => Box::new(File::open(path).map_err(|error| io("read", path, &error))?),
        };
        Ok(Input { env: env.clone(), from: Some(BufReader::with_capacity(1 << 20, from)) })
    }

    /// Up to `len` bytes: fewer at the end.
    async fn read(&mut self, len: usize) -> Result<Vec<u8>, ImportError> {
        let mut from = self.from.take().expect("it comes back");
        let read = self.env.blocking("read a difference", move || {
            let mut bytes = Vec::with_capacity(len);
            let done = from.by_ref().take(len as u64).read_to_end(&mut bytes);
            (from, done.map(|_| bytes))
        });
        let (from, bytes) = read.await;
        self.from = Some(from);
        let failed = |error| Failure::failed(format!("cannot read the difference: {error}"));
        bytes.map_err(|error| ImportError::Failed(failed(error)))
    }

    async fn head(&mut self) -> Result<(Head, Reader), ImportError> {
        let mut bytes = self.read(HEAD).await?;
        loop {
            if let Some((head, len)) = Head::decode(&bytes)? {
                assert_eq!(len, bytes.len(), "no more was read than it needs");
                let reader = Reader::new(&head);
                return Ok((head, reader));
            }
            if bytes.len() < HEAD {
                return Err(DecodeError::Truncated.into());
            }
            let len = |at: usize| usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
            let want = (HEAD + len(32) + len(34)).min(HEAD_MAX) - bytes.len();
            let more = self.read(want).await?;
            if want == 0 || more.len() < want {
                return Err(DecodeError::Truncated.into());
            }
            bytes.extend(more);
        }
    }

    /// The next record with its verified data; nothing behind the last.
    async fn next(&mut self, reader: &mut Reader) -> Result<Option<(Item, Vec<u8>)>, ImportError> {
        let record = self.read(RECORD).await?;
        let record: [u8; RECORD] = record.try_into().map_err(|_| DecodeError::Truncated)?;
        let item = reader.record(&record)?;
        let data = match item {
            Item::End { .. } => return Ok(None),
            Item::Hole { .. } | Item::Zero { .. } => Vec::new(),
            Item::Data { len, .. } => {
                let data = self.read(len as usize).await?;
                if data.len() as u64 != len {
                    return Err(DecodeError::Truncated.into());
                }
                reader.check(&data)?;
                data
            }
        };
        Ok(Some((item, data)))
    }

    /// Refuses bytes behind the last record.
    async fn behind(&mut self) -> Result<(), ImportError> {
        match self.read(1).await?.is_empty() {
            true => Ok(()),
            false => Err(DecodeError::Damaged("there is something behind its last record").into()),
        }
    }
}

/// A stream on its way into a volume.
struct DiffImport<'a> {
    name: &'a str,
    env: &'a Env,
    device: &'a dyn Device,
    /// The volume was made for it: holes are there.
    fresh: bool,
}

impl DiffImport<'_> {
    /// Writes all of it to the volume. The error includes whether something was written before.
    async fn all(
        &self,
        input: &mut Input,
        reader: &mut Reader,
        parallel: usize,
    ) -> Result<(), (ImportError, bool)> {
        let (mut under_way, mut begun) = (FuturesUnordered::new(), false);
        while let Some((item, data)) = input.next(reader).await.map_err(|cause| (cause, begun))? {
            begun = true;
            if under_way.len() == parallel {
                let done: Done = under_way.next().await.expect("some are under way");
                done.map_err(|failure| (ImportError::Failed(failure), begun))?;
            }
            under_way.push(self.put(item, data));
        }
        input.behind().await.map_err(|cause| (cause, begun))?;
        while let Some(done) = under_way.next().await {
            done.map_err(|failure| (ImportError::Failed(failure), begun))?;
        }
        Ok(())
    }

    async fn put(&self, item: Item, data: Vec<u8>) -> Done {
        let done = match item {
            Item::Data { offset, .. } => {
                let mut done = Ok(());
                // Another version of this program may write larger parts than a request can have.
                for (n, part) in data.chunks(IO_MAX).enumerate() {
                    let part = self.env.pool().copy_of(part);
                    let part =
                        part.map_err(|error| Failure::failed(format!("no memory: {error}")))?;
                    let offset = offset + (n * IO_MAX) as u64;
                    done = done.and(self.device.write(offset, part).await);
                }
                done
            }
            Item::Hole { .. } if self.fresh => Ok(()),
            Item::Hole { offset, len } => {
                self.device.clear(Extent { offset, len }, Clear::Trim).await
            }
            Item::Zero { offset, len } => {
                self.device.clear(Extent { offset, len }, Clear::Zero).await
            }
            Item::End { .. } => Ok(()),
        };
        done.map_err(|fault| failure(self.name, &fault))
    }
}
