//! Stores under processes: made, damaged and filled from outside.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use base::limits::SECTOR;
use base::{ChunkId, Epoch};
use chunkstore::flash::{self, FlashStore, FormatOptions};
use chunkstore::{Append, ChunkStore};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use runtime::{Env, Runtime, RuntimeConfig};
use wire::data::Purpose;
use wire::sector::{AppendAt, format_append};

use crate::harness::need;

/// Runs work on an executor of its own.
pub fn on_executor<T>(work: impl AsyncFnOnce(&Env) -> T) -> T {
    let config = RuntimeConfig { huge_pages: false, ..RuntimeConfig::named("test") };
    let runtime = Runtime::new(config).expect("io_uring");
    runtime.block_on(work(runtime.env()))
}

/// The file of a store.
pub fn file_of(store: &Path) -> PathBuf {
    store.join("store.craton")
}

/// Makes a store of `capacity` bytes in place of what is there.
pub fn format(store: &Path, capacity: u64) {
    let options = FormatOptions { capacity, force: true, ..FormatOptions::tiny() };
    on_executor(async |env| flash::format(env, &file_of(store), &options).await).expect("a store");
}

/// Turns one bit in each occurrence of `content` in a store's file.
pub fn flip_bit(store: &Path, content: &[u8]) -> bool {
    flip_where(store, |sector| sector.starts_with(content).then_some(content.len() / 2))
}

/// Turns one bit in each sector that repeats a word, as a block does that is full of it: blocks of
/// volumes begin anywhere in sectors.
pub fn flip_bit_of_word(store: &Path, word: [u8; 8]) -> bool {
    // Neither where a record's head stands nor in a sector's footer: one of these is within a block
    // that has most of a sector.
    const PLACES: [usize; 3] = [512, 1536, 2560];
    let again = word.repeat(3);
    flip_where(store, |sector| {
        let full = |at: &usize| {
            let seen = &sector[*at..*at + 2 * word.len()];
            (0..word.len()).any(|turn| again[turn..].starts_with(seen))
        };
        PLACES.into_iter().find(full)
    })
}

/// Turns one bit in each sector in which `place` finds one.
fn flip_where(store: &Path, place: impl Fn(&[u8]) -> Option<usize>) -> bool {
    const STEP: usize = 4 << 20;
    let file = File::options().read(true).write(true).open(file_of(store)).expect("a store");
    let mut bytes = vec![0; STEP];
    let (mut at, mut flipped) = (0, false);
    loop {
        let count = file.read_at(&mut bytes, at).expect("it reads");
        if count == 0 {
            file.sync_all().expect("it syncs");
            return flipped;
        }
        // Data begins at a sector.
        for (n, sector) in bytes[..count].chunks_exact(SECTOR).enumerate() {
            let Some(found) = place(sector) else { continue };
            let to = at + (n * SECTOR + found) as u64;
            file.write_all_at(&[sector[found] ^ 0x10], to).expect("it writes");
            flipped = true;
        }
        at += count as u64;
    }
}

/// Damages one store after the other until a reader meets it; returns that store. Bytes on a disk
/// may belong to no replica any more: an append that took too long leaves such. Two stores at most:
/// a third copy is valid.
pub fn damage_one<T>(
    stores: &[T],
    flip: impl Fn(&T) -> bool,
    mut is_met: impl FnMut(&T) -> bool,
) -> &T {
    let mut damaged = stores.iter().filter(|store| flip(store)).take(2);
    damaged.find(|store| is_met(store)).expect("a reader meets the damage")
}

/// A file system in memory, unmounted with the test.
pub struct Mounted(PathBuf);

impl Mounted {
    /// Mounts one of `mib` MiB over `dir`; the error has the cause.
    pub fn over(dir: &Path, mib: u64) -> Result<Mounted, String> {
        need(&["mount", "umount"]);
        mount(&["-t", "tmpfs", "-o", &format!("size={mib}m"), "craton-test"], dir)?;
        Ok(Mounted(dir.to_owned()))
    }

    pub fn resize(&self, mib: u64) {
        mount(&["-o", &format!("remount,size={mib}m")], &self.0).expect("it has another size");
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status(); // The test is over.
    }
}

fn mount(args: &[&str], dir: &Path) -> Result<(), String> {
    let output = Command::new("mount").args(args).arg(dir).output();
    let output = output.map_err(|error| format!("mount cannot be run ({error})"))?;
    let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if output.status.success() { Ok(()) } else { Err(format!("cannot mount: {why}")) }
}

/// Adds sealed chunks of one sector to a store that no process has open, and leaves it as a
/// power cut does.
pub fn fill(store: &Path, count: u64) {
    // Beside those that a stream partition has given out.
    const FIRST: u64 = 1 << 40;
    fill_with(store, (FIRST..FIRST + count).map(|number| ChunkId::compose(0, number)));
}

/// The same with these chunks, none of which the store has.
pub fn fill_with(store: &Path, chunks: impl IntoIterator<Item = ChunkId>) {
    const TOGETHER: usize = 256;
    on_executor(async |env| {
        let store = flash::open(env, &file_of(store)).await.expect("a store");
        let mut under_way = FuturesUnordered::new();
        for chunk in chunks {
            under_way.push(add_chunk(env, &store, chunk));
            if under_way.len() == TOGETHER {
                under_way.next().await;
            }
        }
        while under_way.next().await.is_some() {}
    });
}

async fn add_chunk(env: &Env, store: &FlashStore, chunk: ChunkId) {
    let (epoch, base, offset) = (Epoch::new(1), 0, 0);
    let mut sectors = env.pool().alloc_zeroed(SECTOR).expect("memory");
    format_append(AppendAt { chunk, epoch, base, offset }, b"small", &mut sectors);
    let sectors = sectors.freeze();
    let append = Append {
        chunk,
        epoch,
        base,
        offset,
        sectors,
        create: true,
        repair: false,
        purpose: Purpose::Data,
    };
    let len = store.append(append).await.expect("it is stored").len;
    store.seal(chunk, len).await.expect("it is sealed");
}
