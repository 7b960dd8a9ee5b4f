//! Moving bytes between files of the cluster and local files.

use std::io::Read;
use std::path::Path;

use client::{Appender, Client, Error, FlatLogFile, Found};
use futures_util::StreamExt;
use futures_util::stream::FuturesOrdered;
use runtime::{Env, File, OpenOptions};
use wire::control::Policy;

use super::names::FILE_MODE;
use super::policy;
use crate::exit::{Done, Failure, io};
use crate::output::{print_line, write_data};

/// Bytes read and appended at once.
pub const PIECE: usize = 1 << 20;
/// Reads of one file under way at once.
const READ_AHEAD: usize = 4;

/// `fs cat`.
pub async fn cat(client: &Client, path: &str, offset: u64, length: Option<u64>) -> Done {
    let file = client.open(path).await?;
    let end = length.map_or(u64::MAX, |length| offset.saturating_add(length));
    let mut put = async |_: u64, bytes: Vec<u8>| write_data(client.env(), bytes).await;
    let ended = read_pieces(&file, offset, end, &mut put).await?;
    if offset > 0 && ended == offset && length != Some(0) {
        let len = file.len().await?;
        if offset > len {
            return Err(Failure::failed(format!(
                "{path}: has {len} bytes, --offset {offset} is past its end"
            )));
        }
    }
    Ok(())
}

/// True when a file is known to have `len` bytes. The namespace has the length of the last clean
/// close: a writer that was killed may have appended more.
pub async fn has_len(client: &Client, path: &str, found: &Found, len: u64) -> bool {
    let Ok(file) = client.file_of(path, found.clone()) else { return false };
    file.len().await.is_ok_and(|now| now == len)
}

/// Passes the bytes of a file from `offset` to `end`, or to its end, to `take`, in order, with
/// their offsets. Several reads are under way at once. Returns the end.
pub async fn read_pieces(
    file: &FlatLogFile,
    offset: u64,
    end: u64,
    take: &mut impl AsyncFnMut(u64, Vec<u8>) -> Done,
) -> Result<u64, Failure> {
    let reader = file.reader();
    let piece = |at: u64| end.saturating_sub(at).min(PIECE as u64);
    let (mut next, mut done) = (offset, offset);
    // The first read alone: a small file needs no other.
    let mut ahead = 1;
    let mut reads = FuturesOrdered::new();
    loop {
        while reads.len() < ahead && piece(next) > 0 {
            reads.push_back(reader.read_at(next, piece(next) as usize));
            next += piece(next);
        }
        let Some(bytes) = reads.next().await.transpose()? else { return Ok(done) };
        let wanted = piece(done);
        let len = bytes.len() as u64;
        take(done, bytes).await?;
        done += len;
        if len < wanted {
            return Ok(done);
        }
        ahead = READ_AHEAD;
    }
}

/// `fs append`.
pub async fn append(client: &Client, src: &Path, path: &str, redundancy: Option<Policy>) -> Done {
    let source = Source::open(client.env(), src).await?;
    let file = match client.open(path).await {
        Err(Error::NotFound { .. }) => {
            let wish = policy::wish(client, redundancy).await?;
            wish.create(client, path, FILE_MODE, false).await?
        }
        opened => opened?,
    };
    let writer = file.append_handle().await?;
    let first = source.next(client.env(), 0).await?;
    copy_in(client.env(), &source, first, &writer, &mut |_| {}).await?;
    writer.close().await?;
    Ok(())
}

/// `fs seal`.
pub async fn seal(client: &Client, path: &str, accept_loss: bool) -> Done {
    let file = client.open(path).await?;
    if !accept_loss {
        let len = file.seal().await?;
        return print_line(&format!("{path}: {len} bytes"));
    }
    let len = file.seal_accepting_loss().await?;
    let outcome = match file.chunks().await?.loss_accepted {
        true => "acknowledged bytes may be missing: replicas were given up",
        false => "nothing was lost: enough replicas were there",
    };
    print_line(&format!("{path}: {len} bytes; {outcome}"))
}

/// Source of bytes.
pub enum Source {
    /// Standard input.
    Stdin,
    /// A file, with its name.
    File(File, String),
}

impl Source {
    /// Opens a local file; `-` is standard input.
    pub async fn open(env: &Env, path: &Path) -> Result<Source, Failure> {
        if path == Path::new("-") {
            return Ok(Source::Stdin);
        }
        let opened = env.open_file(path, OpenOptions::READ).await;
        let file = opened.map_err(|error| io("read", path, &error))?;
        Ok(Source::File(file, path.display().to_string()))
    }

    /// The next bytes at `offset`; none at the end.
    pub async fn next(&self, env: &Env, offset: u64) -> Result<Vec<u8>, Failure> {
        match self {
            Source::Stdin => {
                let read = env.blocking("read standard input", || {
                    let mut bytes = Vec::with_capacity(PIECE);
                    let mut input = std::io::stdin().lock().take(PIECE as u64);
                    input.read_to_end(&mut bytes).map(|_| bytes)
                });
                let failed =
                    |error| Failure::failed(format!("cannot read standard input: {error}"));
                read.await.map_err(failed)
            }
            Source::File(file, name) => {
                let buf = env
                    .pool()
                    .alloc(PIECE)
                    .map_err(|error| Failure::failed(format!("cannot read {name}: {error}")))?;
                let (read, buf) = file.read_at(offset, buf).await;
                let failed = |error| Failure::failed(format!("cannot read {name}: {error}"));
                let len = read.map_err(failed)?;
                Ok(buf[..len].to_vec())
            }
        }
    }
}

/// Appends all of a source, of which `first` was read; `progress` is called with the number of
/// bytes after each append.
pub async fn copy_in(
    env: &Env,
    source: &Source,
    first: Vec<u8>,
    writer: &Appender,
    progress: &mut dyn FnMut(u64),
) -> Result<u64, Failure> {
    let (mut offset, mut bytes) = (0, first);
    loop {
        if bytes.is_empty() {
            writer.sync().await?;
            return Ok(offset);
        }
        offset += bytes.len() as u64;
        // Starts the append; the window limits appends under way.
        writer.submit(&bytes).await?;
        progress(bytes.len() as u64);
        bytes = source.next(env, offset).await?;
    }
}
