//! `craton volume import`: a disk image into a volume.

use std::io::Read;
use std::path::Path;

use base::{Fault, Kind};
use block_proto::managers::Error;
use block_volume::contract::{Clear, Device};
use block_volume::geometry::Extent;
use block_volume::limits::IO_MAX;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use runtime::{BufMut, Env, File, OpenOptions};
use wire::control::Policy;

use super::args::{CreateArgs, Format, ImageArgs, LimitArgs};
use super::change;
use super::image::{self, BLOCK, Progress, runs};
use super::open::{Site, failure};
use crate::exit::{Code, Done, Failure, io};
use crate::output::bytes;

/// Bytes of an image's head that identify its format.
const HEAD: usize = 512;
/// Default sizes of a new volume: as `craton volume create`.
const SECTOR_SIZE: usize = 128 << 10;
const SEGMENTS: u32 = 4;
/// Bytes of the smallest volume, unless the block manager is configured otherwise.
const LEAST: u64 = 1 << 30;
const GROUP_SIZE: usize = 128 << 30;

/// Source of an image's bytes.
enum Source {
    /// Standard input; with the bytes that were read to identify its format.
    Stdin(Vec<u8>),
    /// A file or a block device.
    File { file: File, holes: std::fs::File, len: u64 },
}

/// Runs it. `made` has length and copies of a volume that is missing.
pub async fn run(
    site: &Site<'_>,
    name: &str,
    path: &Path,
    args: &ImageArgs,
    made: (Option<usize>, Option<Policy>),
) -> Done {
    let (source, head) = open(site.env(), path).await?;
    let seen = Format::of_head(&head);
    match args.format.unwrap_or(seen) {
        Format::Raw => raw(site, name, source, args, made).await,
        other if matches!(source, Source::Stdin(_)) => Err(Failure::usage(format!(
            "an image in {} cannot come from standard input: qemu-img has to find its way in it; \
             name its file",
            other.name()
        ))),
        other => converted(site, name, path, other, args, made).await,
    }
}

async fn open(env: &Env, path: &Path) -> Result<(Source, Vec<u8>), Failure> {
    if path == Path::new("-") {
        let head = read_stdin(env, HEAD).await?;
        return Ok((Source::Stdin(head.clone()), head));
    }
    let failed = |error| io("read", path, &error);
    let holes = std::fs::File::open(path).map_err(failed)?;
    if holes.metadata().map_err(failed)?.is_dir() {
        let path = path.display();
        return Err(Failure::usage(format!("{path} is a directory, not a disk image")));
    }
    let file = env.open_file(path, OpenOptions::READ).await.map_err(failed)?;
    let len = file.len().await.map_err(failed)?;
    let buf = alloc(env, HEAD)?;
    let (count, buf) = file.read_at(0, buf).await;
    let head = buf[..count.map_err(failed)?].to_vec();
    Ok((Source::File { file, holes, len }, head))
}

async fn read_stdin(env: &Env, len: usize) -> Result<Vec<u8>, Failure> {
    let read = env.blocking("read standard input", move || {
        let mut bytes = Vec::with_capacity(len);
        let mut input = std::io::stdin().lock().take(len as u64);
        input.read_to_end(&mut bytes).map(|_| bytes)
    });
    let failed = |error| Failure::failed(format!("cannot read standard input: {error}"));
    read.await.map_err(failed)
}

fn alloc(env: &Env, len: usize) -> Result<BufMut, Failure> {
    let failed = |error| Failure::failed(format!("no memory for a request: {error}"));
    env.pool().alloc(len).map_err(failed)
}

/// A volume of this length with the sizes that volumes have unless others are chosen.
pub fn new_volume(size: u64, policy: Option<Policy>) -> CreateArgs {
    CreateArgs {
        size: size as usize,
        policy,
        sector_size: SECTOR_SIZE,
        segments: SEGMENTS,
        group_size: GROUP_SIZE,
        shared: false,
        limits: LimitArgs::default(),
    }
}

/// Finds the volume, or makes it for `len` bytes; true when it was made.
async fn prepare(
    site: &Site<'_>,
    name: &str,
    len: Option<u64>,
    (size, policy): (Option<usize>, Option<Policy>),
) -> Result<bool, Failure> {
    let known = match site.managers.volume(name).await {
        Ok(info) => Some(info.spec.bytes),
        Err(Error::Refused { kind: Kind::NotFound, .. }) => None,
        Err(error) => return Err(error.into()),
    };
    if let Some(known) = known {
        if size.is_some_and(|size| size as u64 != known) {
            return Err(Failure::usage(format!(
                "{name} is there, with {known} bytes: leave --size out, or resize it first"
            )));
        }
        check_fits(name, len, known)?;
        site.closed(name).await?;
        return Ok(false);
    }
    let Some(wanted) = size.map(|size| size as u64).or(len) else {
        return Err(Failure::usage(format!(
            "there is no volume {name}, and the length of standard input is not known: give --size"
        )));
    };
    check_fits(name, len, wanted)?;
    let create = |size: u64| new_volume(size, policy);
    let whole = wanted.next_multiple_of(BLOCK as u64);
    match change::make(site.managers, name, &create(whole)).await {
        // A small image gets the smallest volume, unless a length was asked for.
        Err(_) if size.is_none() && whole < LEAST => {
            change::make(site.managers, name, &create(LEAST)).await?;
        }
        made => drop(made?),
    }
    Ok(true)
}

fn check_fits(name: &str, image: Option<u64>, volume: u64) -> Done {
    match image.filter(|image| *image > volume) {
        None => Ok(()),
        Some(image) => Err(Failure::failed(format!(
            "the image has {image} bytes ({}), {name} only {volume} ({}): 'craton volume resize' \
             makes it larger",
            bytes(image),
            bytes(volume)
        ))),
    }
}

async fn raw(
    site: &Site<'_>,
    name: &str,
    source: Source,
    args: &ImageArgs,
    made: (Option<usize>, Option<Policy>),
) -> Done {
    let len = match &source {
        Source::Stdin(_) => None,
        Source::File { len, .. } => Some(*len),
    };
    let fresh = prepare(site, name, len, made).await?;
    let device = site.open(name).await?;
    let progress = Progress::new(site.env(), len.unwrap_or(0), args);
    let copy = RawImport { env: site.env(), name, device: &*device, fresh, progress: &progress };
    let copied = match source {
        Source::Stdin(head) => copy.stdin(head, args.parallel.into()).await,
        Source::File { file, holes, len } => {
            copy.file(&file, &holes, len, args.parallel.into()).await
        }
    };
    site.close(name, device).await;
    copied?;
    progress.finish(&format!("{name} is imported"), name, fresh, args)
}

/// A raw image on its way into a volume.
struct RawImport<'a> {
    env: &'a Env,
    name: &'a str,
    device: &'a dyn Device,
    /// The volume was made for it: unwritten blocks read as zeroes.
    fresh: bool,
    progress: &'a Progress,
}

impl RawImport<'_> {
    fn failed(&self, fault: &Fault) -> Failure {
        let why = failure(self.name, fault);
        let text = format!("{why}; the volume has a part of the image: repeat the command");
        Failure::new(why.code, text)
    }

    /// Writes bytes to the volume; zeroes by a trim, or not at all.
    async fn put(&self, offset: u64, data: BufMut, len: usize) -> Done {
        let data = data.freeze().slice(0..len);
        for (at, len, zero) in runs(&data) {
            let offset = offset + at as u64;
            if zero {
                self.zero(offset, len as u64).await?;
                continue;
            }
            let written = self.device.write(offset, data.slice(at..at + len)).await;
            written.map_err(|fault| self.failed(&fault))?;
            self.progress.moved(len as u64);
        }
        Ok(())
    }

    async fn zero(&self, offset: u64, len: u64) -> Done {
        if !self.fresh {
            let cleared = self.device.clear(Extent { offset, len }, Clear::Trim).await;
            cleared.map_err(|fault| self.failed(&fault))?;
        }
        self.progress.left_out(len);
        Ok(())
    }

    async fn file(&self, file: &File, holes: &std::fs::File, len: u64, parallel: usize) -> Done {
        let mut under_way = FuturesUnordered::new();
        let mut at = 0;
        while at < len {
            let data = next_data(holes, at, len);
            if data.offset > at {
                self.zero(at, data.offset - at).await?;
            }
            at = data.offset;
            let end = data.offset + data.len;
            while at < end {
                if under_way.len() == parallel {
                    under_way.next().await.expect("some are under way")?;
                }
                let piece = (IO_MAX as u64 - at % IO_MAX as u64).min(end - at);
                under_way.push(self.piece(file, at, piece as usize));
                at += piece;
            }
        }
        while let Some(done) = under_way.next().await {
            done?;
        }
        Ok(())
    }

    async fn piece(&self, file: &File, offset: u64, len: usize) -> Done {
        let (count, buf) = file.read_at(offset, alloc(self.env, len)?).await;
        match count {
            Ok(count) if count == len => self.put(offset, buf, len).await,
            Ok(_) => Err(Failure::failed("the image became shorter while it was read")),
            Err(error) => Err(Failure::failed(format!("cannot read the image: {error}"))),
        }
    }

    async fn stdin(&self, head: Vec<u8>, parallel: usize) -> Done {
        let mut under_way = FuturesUnordered::new();
        let (mut at, mut start) = (0, head);
        loop {
            let mut piece = std::mem::take(&mut start);
            let more = read_stdin(self.env, IO_MAX - piece.len()).await?;
            piece.extend_from_slice(&more);
            let len = piece.len();
            if at + len as u64 > self.device.bytes() {
                return Err(Failure::failed(format!(
                    "standard input has more than the {} bytes of {}: the volume has the front of \
                     it; give a larger one",
                    self.device.bytes(),
                    self.name
                )));
            }
            if len > 0 {
                let mut buf = alloc(self.env, len)?;
                buf[..len].copy_from_slice(&piece);
                if under_way.len() == parallel {
                    under_way.next().await.expect("some are under way")?;
                }
                under_way.push(self.put(at, buf, len));
                at += len as u64;
            }
            if len < IO_MAX {
                break;
            }
        }
        while let Some(done) = under_way.next().await {
            done?;
        }
        Ok(())
    }
}

/// The next part of a file that is no hole, at or behind `at`; an empty one at its end when
/// nothing is left.
fn next_data(file: &std::fs::File, at: u64, len: u64) -> Extent {
    use rustix::fs::{SeekFrom, seek};
    let start = match seek(file, SeekFrom::Data(at)) {
        Ok(start) => start.clamp(at, len),
        Err(rustix::io::Errno::NXIO) => len,
        Err(_) => at, // A file system, or a device, that knows no holes.
    };
    let end = match seek(file, SeekFrom::Hole(start)) {
        Ok(end) if end > start => end.min(len),
        _ => len,
    };
    Extent { offset: start, len: end - start }
}

async fn converted(
    site: &Site<'_>,
    name: &str,
    path: &Path,
    format: Format,
    args: &ImageArgs,
    made: (Option<usize>, Option<Policy>),
) -> Done {
    let Some(path) = path.to_str() else {
        return Err(Failure::usage("the image's path is no text in UTF-8"));
    };
    // A name that qemu-img takes for no protocol.
    let file = if path.starts_with('/') { path.to_owned() } else { format!("./{path}") };
    let to_list = |args: &[&str]| args.iter().map(|&arg| arg.to_owned()).collect::<Vec<_>>();
    let about = to_list(&["info", "--output=json", "-f", format.name(), &file]);
    let about = image::qemu_img(site.env(), about).await?;
    let about: serde_json::Value = serde_json::from_str(&about).unwrap_or_default();
    let Some(len) = about["virtual-size"].as_u64() else {
        return Err(Failure::new(
            Code::Failed,
            format!("qemu-img cannot tell the length of {path}"),
        ));
    };
    let uri = image::uri(site, name)?;
    let fresh = prepare(site, name, Some(len), made).await?;
    let progress = Progress::new(site.env(), len, &ImageArgs { quiet: true, ..*args });
    let mut convert = to_list(&["convert", "-n", "-f", format.name(), "-O", "raw", "-W"]);
    convert.extend(to_list(&["-m", &args.parallel.min(16).to_string()]));
    convert.extend(fresh.then(|| "--target-is-zero".to_owned()));
    convert.extend(image::bar(args));
    let data = image::data_bytes(site.env(), &file, format).await;
    convert.extend([file, uri]);
    image::qemu_img(site.env(), convert).await?;
    let data = data.unwrap_or(len).min(len);
    progress.moved(data);
    progress.left_out(len - data);
    progress.finish(&format!("{name} is imported"), name, fresh, args)
}
