//! `craton volume export`: a volume into a disk image.

use std::path::Path;

use block_volume::contract::{AllocationExtent, Device, PIECES_MAX};
use block_volume::geometry::Extent;
use block_volume::limits::IO_MAX;
use futures_util::StreamExt;
use futures_util::stream::FuturesOrdered;
use runtime::{Buf, Env, File, OpenOptions, WriteMode};

use super::args::{Format, ImageArgs};
use super::fresh::{Fresh, sync_device};
use super::image::{self, Progress, runs};
use super::open::{Site, failure};
use crate::exit::{Done, Failure, io};
use crate::output::write_data;

/// Runs it.
pub async fn run(site: &Site<'_>, name: &str, path: &Path, args: &ImageArgs, force: bool) -> Done {
    let to_stdout = path == Path::new("-");
    let format = args.format.unwrap_or_else(|| Format::of_name(path));
    if to_stdout && format != Format::Raw {
        return Err(Failure::usage(format!(
            "an image in {} cannot go to standard output: name a file",
            format.name()
        )));
    }
    if to_stdout && args.json {
        return Err(Failure::usage("the image goes to standard output: leave --json out"));
    }
    site.closed(name).await?;
    if !to_stdout && !force && path.symlink_metadata().is_ok() {
        let path = path.display();
        return Err(Failure::failed(format!("{path} is there: --force replaces it")));
    }
    if format != Format::Raw {
        return converted(site, name, path, format, args).await;
    }
    let device = site.open(name).await?;
    let progress = Progress::new(site.env(), device.bytes(), args);
    let copy = RawExport { env: site.env(), name, device: &*device, progress: &progress };
    let copied = match to_stdout {
        true => copy.to(&Target::Stdout, args.parallel.into()).await,
        false => to_file(&copy, path, args.parallel.into()).await,
    };
    site.close(name, device).await;
    copied?;
    match to_stdout {
        true => Ok(()),
        false => progress.finish(&format!("{name} is exported"), name, false, args),
    }
}

async fn to_file(copy: &RawExport<'_>, path: &Path, parallel: usize) -> Done {
    let fresh = Fresh::instead_of(path)?;
    let under = fresh.as_ref().map_or(path, Fresh::under);
    let failed = |error| io("write", under, &error);
    let options = OpenOptions { write: true, create: true, ..OpenOptions::READ };
    let file = copy.env.open_file(under, options).await.map_err(failed)?;
    if fresh.is_some() {
        // Old content must not show through the holes.
        file.set_len(0).await.map_err(failed)?;
        file.set_len(copy.device.bytes()).await.map_err(failed)?;
    }
    let target = Target::File { file: file.clone(), sparse: fresh.is_some() };
    copy.to(&target, parallel).await?;
    file.sync().await.map_err(failed)?;
    fresh.map_or(Ok(()), Fresh::keep)
}

/// Target of an image.
enum Target {
    /// Standard output.
    Stdout,
    /// A file, with holes where the volume has zeroes, or a device.
    File { file: File, sparse: bool },
}

/// A volume on its way into a raw image.
struct RawExport<'a> {
    env: &'a Env,
    name: &'a str,
    device: &'a dyn Device,
    progress: &'a Progress,
}

/// A part of the image: its range, and its bytes unless they are zeroes.
type ImagePart = (Extent, Option<Buf>);

impl RawExport<'_> {
    async fn to(&self, target: &Target, parallel: usize) -> Done {
        let mut under_way = FuturesOrdered::new();
        let (mut at, len) = (0, self.device.bytes());
        while at < len {
            let rest = Extent { offset: at, len: len - at };
            let pieces = self.device.pieces(rest, PIECES_MAX).await;
            for AllocationExtent { len, zero, .. } in
                pieces.map_err(|fault| failure(self.name, &fault))?
            {
                let end = at + len;
                while at < end {
                    // Zeroes are not read: they can be long.
                    let most = if zero { u64::MAX } else { IO_MAX as u64 - at % IO_MAX as u64 };
                    let extent = Extent { offset: at, len: most.min(end - at) };
                    if under_way.len() == parallel {
                        let part = under_way.next().await.expect("some are under way");
                        self.put(target, part?).await?;
                    }
                    under_way.push_back(self.get(extent, zero));
                    at += extent.len;
                }
            }
        }
        while let Some(part) = under_way.next().await {
            self.put(target, part?).await?;
        }
        Ok(())
    }

    async fn get(&self, extent: Extent, zero: bool) -> Result<ImagePart, Failure> {
        if zero {
            return Ok((extent, None));
        }
        let read = self.device.read(extent).await;
        Ok((extent, Some(read.map_err(|fault| failure(self.name, &fault))?)))
    }

    async fn put(&self, target: &Target, (extent, data): ImagePart) -> Done {
        match (target, data) {
            (Target::Stdout, Some(data)) => {
                write_data(self.env, data).await?;
                self.progress.moved(extent.len);
            }
            (Target::Stdout, None) => {
                self.write_zeroes(extent.len).await?;
                self.progress.left_out(extent.len);
            }
            (Target::File { file, sparse }, Some(data)) => {
                for (at, len, zero) in runs(&data) {
                    if zero && *sparse {
                        self.progress.left_out(len as u64);
                        continue;
                    }
                    let (offset, part) = (extent.offset + at as u64, data.slice(at..at + len));
                    self.write(file, offset, part).await?;
                    self.progress.moved(len as u64);
                }
            }
            (Target::File { sparse: true, .. }, None) => self.progress.left_out(extent.len),
            (Target::File { file, .. }, None) => {
                let zeroes = self.env.pool().copy_of(&vec![0; IO_MAX]);
                let zeroes =
                    zeroes.map_err(|error| Failure::failed(format!("no memory: {error}")))?;
                let (mut at, end) = (extent.offset, extent.offset + extent.len);
                while at < end {
                    let now = (end - at).min(IO_MAX as u64);
                    self.write(file, at, zeroes.slice(0..now as usize)).await?;
                    at += now;
                }
                self.progress.left_out(extent.len);
            }
        }
        Ok(())
    }

    async fn write(&self, file: &File, offset: u64, data: Buf) -> Done {
        let written = file.write_at(offset, data, WriteMode::Cached).await;
        written.map_err(|error| Failure::failed(format!("cannot write the image: {error}")))
    }

    async fn write_zeroes(&self, mut len: u64) -> Done {
        while len > 0 {
            let now = len.min(IO_MAX as u64);
            write_data(self.env, vec![0; now as usize]).await?;
            len -= now;
        }
        Ok(())
    }
}

async fn converted(
    site: &Site<'_>,
    name: &str,
    path: &Path,
    format: Format,
    args: &ImageArgs,
) -> Done {
    let (fresh, target) = (Fresh::instead_of(path)?, path.to_owned());
    let Some(path) = fresh.as_ref().map_or(path, Fresh::under).to_str() else {
        return Err(Failure::usage("the image's path is no text in UTF-8"));
    };
    // A name that qemu-img takes for no protocol.
    let file = if path.starts_with('/') { path.to_owned() } else { format!("./{path}") };
    let info = site.managers.volume(name).await?;
    let progress = Progress::new(site.env(), info.spec.bytes, &ImageArgs { quiet: true, ..*args });
    let mut convert: Vec<String> =
        ["convert", "-f", "raw", "-O", format.name(), "-W", "-m"].map(str::to_owned).to_vec();
    convert.push(args.parallel.min(16).to_string());
    convert.extend(image::bar(args));
    convert.extend([image::uri(site, name)?, file]);
    image::qemu_img(site.env(), convert).await?;
    // It writes into the page cache alone.
    let keep = move || fresh.map_or_else(|| sync_device(&target), Fresh::keep);
    site.env().blocking("sync an image", keep).await?;
    progress.moved(info.spec.bytes);
    progress.finish(&format!("{name} is exported"), name, false, args)
}
