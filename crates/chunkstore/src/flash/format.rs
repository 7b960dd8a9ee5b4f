//! Formatting. The superblocks come last, and those of a store that was there go first: at every
//! moment the medium has the old store whole, no store, or the new one.

use std::io;
use std::path::Path;

use base::limits::SECTOR;
use base::{DiskId, GIB};
use runtime::{Buf, Env, File, OpenOptions, WriteMode};

use super::layout::{BLOCK, FLAG_RAW, LOG_AT, SUPER_AT, Super};
use super::record::Record;
use super::recover::Medium;
use super::{FormatOptions, MountError, checkpoint, lock, prepare};
use crate::contract::StoreOwner;
use crate::limits::{LOG_BYTES_MIN, UNIT_MAX, UNIT_MIN, ZERO_WRITE_BYTES};

/// Formats a store at `path`; the new disk's incarnation.
pub async fn format(env: &Env, path: &Path, options: &FormatOptions) -> Result<DiskId, MountError> {
    let io = |error: io::Error| MountError::io(&error);
    let open = OpenOptions { create: !options.raw, ..OpenOptions::CREATE }.direct();
    let file = env.open_file(path, open).await.map_err(io)?;
    lock(env, &file, path).await?;
    let medium = Medium { env, file: &file };
    if !options.force && !matches!(medium.read_super().await, Err(MountError::NotAStore)) {
        return Err(MountError::Exists { path: path.to_owned() });
    }
    let old_len = file.len().await.map_err(io)?;
    let device_len = if options.raw { old_len } else { u64::MAX };
    let mut secret = [0; 16];
    env.fill_secret(&mut secret);
    let sb = plan(options, DiskId::new(u128::from_le_bytes(secret)), env, device_len)?;
    // No superblock until all else is in place.
    let mut zeros = env.pool().alloc_zeroed(ZERO_WRITE_BYTES).map_err(|_| MountError::Memory)?;
    zeros.fill(0);
    let zeros = zeros.freeze();
    let ready = if sb.is_raw() { sb.units } else { sb.units.min(first_units(&sb)) };
    let (data, end) = (sb.unit_at(0), sb.unit_at(ready));
    let mut ranges = Vec::new();
    for copy in 0..2 {
        ranges.push((sb.log_at(copy), sb.log_bytes()));
        ranges.push((sb.area_at(copy), BLOCK));
    }
    // A store that was here ends before its log and checkpoints do: a power cut must not leave its
    // superblock beside a part of them, which would mount as a store that has lost records.
    if sb.is_raw() {
        write_zeros(&file, &zeros, (0, LOG_AT)).await.map_err(io)?;
    } else {
        file.set_len(0).await.map_err(io)?;
    }
    if old_len > 0 {
        file.sync().await.map_err(io)?;
    }
    if !sb.is_raw() {
        for area in 0..2 {
            let len = sb.area_blocks(ready) * BLOCK;
            prepare::allocate(&file, sb.area_at(area), len).await.map_err(io)?;
        }
        prepare::allocate(&file, data, end - data).await.map_err(io)?;
        ranges.insert(0, (0, LOG_AT));
        ranges.push((data, end - data));
    }
    for range in ranges {
        write_zeros(&file, &zeros, range).await.map_err(io)?;
    }
    let store = sb.disk.get() as u64;
    let mut packer = checkpoint::Packer::new(store, 0, 0);
    packer.push(&Record::Ready { units: ready });
    packer.finish_block();
    let header = checkpoint::Header { number: 0, mount: 0, log_seq: 0, blocks: 1 };
    let block = |fill: &dyn Fn(&mut [u8])| {
        let mut block = env.pool().alloc_zeroed(SECTOR).map_err(|_| MountError::Memory)?;
        fill(&mut block);
        Ok(block.freeze())
    };
    let records = block(&|out| out.copy_from_slice(&packer.blocks))?;
    let head = block(&|out| header.encode(store, out))?;
    file.write_at(sb.area_at(0) + BLOCK, records, WriteMode::Cached).await.map_err(io)?;
    file.write_at(sb.area_at(0), head, WriteMode::Cached).await.map_err(io)?;
    file.sync().await.map_err(io)?;
    for at in SUPER_AT {
        let superblock = block(&|out| sb.encode(out))?;
        file.write_at(at, superblock, WriteMode::Durable).await.map_err(io)?;
    }
    file.sync().await.map_err(io)?;
    if let (false, Some(parent)) = (options.raw, path.parent()) {
        env.sync_dir(parent).await.map_err(io)?;
    }
    Ok(sb.disk)
}

/// Writes zeros over a range, given by its start and length. The caller syncs.
async fn write_zeros(file: &File, zeros: &Buf, (start, len): (u64, u64)) -> io::Result<()> {
    let mut done = 0;
    while done < len {
        let part = (len - done).min(zeros.len() as u64);
        file.write_at(start + done, zeros.slice(0..part as usize), WriteMode::Cached).await?;
        done += part;
    }
    Ok(())
}

/// Units made ready by formatting.
fn first_units(sb: &Super) -> u32 {
    (sb.grow_step / u64::from(sb.unit)) as u32
}

fn plan(
    options: &FormatOptions,
    disk: DiskId,
    env: &Env,
    device_len: u64,
) -> Result<Super, MountError> {
    if !options.unit.is_power_of_two() || !(UNIT_MIN..=UNIT_MAX).contains(&options.unit) {
        return Err(MountError::Option("the unit must be a power of two, 16 KiB to 16 MiB"));
    }
    if options.log_bytes < LOG_BYTES_MIN || options.log_bytes > 16 * GIB {
        return Err(MountError::Option("a copy of the log has 256 KiB to 16 GiB"));
    }
    let unit = u64::from(options.unit);
    let units_of = |bytes: u64| (bytes / unit).min(u64::from(u32::MAX / 2 - 1)) as u32;
    let mut sb = Super {
        disk,
        created: env.unix_time().as_nanos(),
        unit: options.unit,
        flags: if options.raw { FLAG_RAW } else { 0 },
        units: units_of(options.capacity),
        log_blocks: (options.log_bytes / BLOCK) as u32,
        tombstones: options.tombstones,
        open_map_bytes: options.open_map_bytes,
        grow_step: options.grow_step.next_multiple_of(unit).max(unit),
        owner: StoreOwner::Fresh,
        rows: false,
    };
    if options.raw {
        // Fewer units need smaller checkpoint areas: two rounds are close enough.
        for _ in 0..2 {
            sb.units = sb.units.min(units_of(device_len.saturating_sub(sb.data_at())));
        }
        while sb.units > 0 && sb.unit_at(sb.units) > device_len {
            sb.units -= 1;
        }
    }
    if sb.units == 0 {
        return Err(MountError::Full);
    }
    Ok(sb)
}
