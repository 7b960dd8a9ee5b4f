//! `craton store`: inspects a chunk store that no process has open.

use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use base::GIB;
use chunkstore::flash::{FormatOptions, dump, dump_chunk, format, fsck};
use roles::stores::medium;
use serde::Serialize;

use crate::args::StoreCommand;
use crate::exit::{Code, Done, Failure, io};
use crate::format::failure;
use crate::output::{print_json, print_line, print_table, table, warn};

/// Runs a command.
pub fn run(command: StoreCommand) -> Done {
    crate::log::start_foreground();
    match command {
        StoreCommand::Fsck { dir, json } => run_fsck(&dir, json),
        StoreCommand::Format { path, unit_kib, capacity_gib, force } => {
            let shape = Shape { unit_kib, capacity: capacity_gib.map(|gib| gib * GIB), force };
            let kind = std::fs::metadata(&path).map_err(|error| io("open", &path, &error))?;
            match kind.is_dir() {
                true => format_directory(&path, shape),
                false => format_device(&path, kind.file_type().is_block_device(), shape),
            }
        }
        StoreCommand::Dump { dir, chunk: None } => run_dump(&dir),
        StoreCommand::Dump { dir, chunk: Some(chunk) } => run_dump_chunk(&dir, chunk),
    }
}

/// Options of `craton store format`.
struct Shape {
    unit_kib: u32,
    /// Bytes that the store takes at most.
    capacity: Option<u64>,
    force: bool,
}

/// Bytes that a store in a directory takes at most, unless more are there or others are asked for:
/// as in a configuration without a value.
const CAPACITY_DEFAULT: u64 = 1024 * GIB;

fn format_directory(dir: &Path, shape: Shape) -> Done {
    let capacity = match shape.capacity {
        Some(capacity) => capacity,
        None => {
            let facts =
                rustix::fs::statvfs(dir).map_err(|error| io("measure", dir, &error.into()))?;
            facts.f_blocks.saturating_mul(facts.f_frsize).max(CAPACITY_DEFAULT)
        }
    };
    let options = crate::format::options(shape.unit_kib, capacity);
    let runtime = crate::connect::runtime()?;
    let work =
        crate::format::directory(runtime.env(), dir, &options, shape.force, |_| Done::Ok(()));
    done(dir, &runtime.block_on(work)?)
}

fn done(path: &Path, disk: &base::DiskId) -> Done {
    print_line(&format!("{} is {disk}: name it in a [[stores]] section", path.display()))
}

fn format_device(device: &Path, is_block: bool, shape: Shape) -> Done {
    let Shape { unit_kib, capacity, force } = shape;
    let say = |why: &str| Failure::setup(format!("{} {why}", device.display()));
    if !is_block {
        return Err(say("is no directory and no block device: name one of them"));
    }
    let (there, is_empty) = roles::format::measure_device(device)?;
    if !force && !is_empty {
        return Err(say("is not empty: --force gives up what lies on it"));
    }
    let options = crate::format::options(unit_kib, capacity.unwrap_or(there));
    let options = FormatOptions { raw: true, force, ..options };
    let runtime = crate::connect::runtime()?;
    let disk =
        runtime.block_on(format(runtime.env(), device, &options)).map_err(failure(device))?;
    done(device, &disk)
}

/// The store's path, from its directory, file or device.
fn store_at(dir: &std::path::Path) -> Result<std::path::PathBuf, Failure> {
    let path = medium(dir)?;
    if !path.exists() {
        return Err(Failure::setup(format!(
            "{} has no chunk store: name the directory that a [[stores]] section names, or the \
             store's file",
            dir.display()
        )));
    }
    Ok(path)
}

fn run_fsck(dir: &std::path::Path, json: bool) -> Done {
    #[derive(Serialize)]
    struct Report {
        disk: String,
        chunks: u64,
        sealed: u64,
        tombstones: u64,
        sectors: u64,
        bytes: u64,
        unit_bytes: u32,
        units_used: u32,
        units_ready: u32,
        problems: Vec<Problem>,
    }
    #[derive(Serialize)]
    struct Problem {
        loses_data: bool,
        text: String,
    }
    let path = store_at(dir)?;
    let runtime = crate::connect::runtime()?;
    let found = runtime.block_on(fsck(runtime.env(), &path)).map_err(failure(dir))?;
    let problem = |problem: &chunkstore::flash::Problem| Problem {
        loses_data: problem.loses_data(),
        text: problem.to_string(),
    };
    let report = Report {
        disk: found.superblock.disk.to_string(),
        chunks: found.chunks,
        sealed: found.sealed,
        tombstones: found.tombstones,
        sectors: found.sectors,
        bytes: found.bytes,
        unit_bytes: found.superblock.unit,
        units_used: found.units.0,
        units_ready: found.units.1,
        problems: found.problems.iter().map(problem).collect(),
    };
    if json {
        print_json(&report)?;
    } else {
        print_line(&format!(
            "disk      {}\nchunks    {}, {} of them sealed, {} tombstones\n\
             sectors   {} verified, {} bytes of data\nunits     {} of {} bytes used, {} ready",
            report.disk,
            report.chunks,
            report.sealed,
            report.tombstones,
            report.sectors,
            report.bytes,
            report.units_used,
            report.unit_bytes,
            report.units_ready
        ))?;
        for problem in &report.problems {
            print_line(&format!("problem   {}", problem.text))?;
        }
    }
    let lost = report.problems.iter().filter(|problem| problem.loses_data).count();
    match (lost, report.problems.len()) {
        (0, 0) if json => Ok(()),
        (0, 0) => print_line("the store is good"),
        (0, count) => {
            warn(&format!("{count} problems that the next mount makes good"));
            Ok(())
        }
        (lost, _) => Err(Failure::new(
            Code::Damage,
            format!(
                "{lost} problems lose data here: it is repaired from other replicas when the \
                     chunkserver runs"
            ),
        )),
    }
}

fn run_dump(dir: &std::path::Path) -> Done {
    let path = store_at(dir)?;
    let runtime = crate::connect::runtime()?;
    let found = runtime.block_on(dump(runtime.env(), &path)).map_err(failure(dir))?;
    print_line(&format!(
        "superblock {:?}\ncheckpoints {:?}\nlog blocks {}..{}\nmounts {}",
        found.superblock, found.checkpoints, found.log.0, found.log.1, found.mounts
    ))?;
    let mut out =
        table(&["chunk", "state", "epoch", "bytes", "durable", "committed", "extents", "runs"]);
    for chunk in &found.chunks {
        out.add_row([
            chunk.id.chunk.to_string(),
            format!("{:?}", chunk.stat.state),
            chunk.stat.epoch.to_string(),
            chunk.stat.len.to_string(),
            chunk.stat.durable_bound.to_string(),
            chunk.stat.committed.to_string(),
            chunk.extents.len().to_string(),
            chunk.runs.len().to_string(),
        ]);
    }
    print_table(out, &[2, 3, 4, 5, 6, 7])?;
    for (chunk, fence) in &found.tombstones {
        print_line(&format!("tombstone {chunk} fenced below epoch {fence}"))?;
    }
    Ok(())
}

fn run_dump_chunk(dir: &std::path::Path, chunk: base::ChunkId) -> Done {
    let path = store_at(dir)?;
    let runtime = crate::connect::runtime()?;
    let found = runtime.block_on(dump_chunk(runtime.env(), &path, chunk)).map_err(failure(dir))?;
    let Some((facts, sectors)) = found else {
        return Err(Failure::failed(format!(
            "{chunk} is not in this store: 'craton store dump {}' lists what is",
            dir.display()
        )));
    };
    print_line(&format!("{:?}\n{:?}\nextents {:?}", facts.id, facts.stat, facts.extents))?;
    let mut out =
        table(&["sector", "byte", "offset", "bytes", "epoch", "kind", "chained", "state"]);
    for sector in &sectors {
        let dash = || "-".to_owned();
        let footer = sector.footer.as_ref();
        out.add_row([
            sector.sector.to_string(),
            sector.at.to_string(),
            footer.map_or_else(dash, |footer| footer.offset.to_string()),
            footer.map_or_else(dash, |footer| footer.len.to_string()),
            footer.map_or_else(dash, |footer| footer.epoch.to_string()),
            footer.map_or_else(dash, |footer| format!("{:?}", footer.kind)),
            sector.chained.to_string(),
            if footer.is_some() { "verified" } else { "empty or damaged" }.to_owned(),
        ]);
    }
    print_table(out, &[0, 1, 2, 3, 4])
}
