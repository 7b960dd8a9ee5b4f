//! Damaged and missing DataFiles: typed errors that name the file, and never wrong content.

use base::{Fault, Kind};
use block_volume::contract::Device;
use block_volume::geometry::Extent;
use runtime::sim::CrashMode;
use runtime::{Env, Rng};

use crate::device::support::{World, on, open, small};

/// Blocks that are written: several DataFiles of 62.
const BLOCKS: u64 = 200;

fn content(lba: u64) -> Vec<u8> {
    (lba + 1).to_le_bytes().repeat(512)
}

/// A segment whose owner is gone, with a tail that the TxnFile does not cover.
async fn fill(world: &World) {
    let (host, env) = world.boot();
    let (disk, at) = (world.disk.clone(), env.clone());
    let work = async move {
        let segment = open(&at, &disk, 1, small()).await.unwrap();
        for lba in 0..BLOCKS {
            let data = at.pool().copy_of(&content(lba)).unwrap();
            segment.write(lba * 4096, data).await.unwrap();
        }
    };
    on(&env, work).await.unwrap();
    world.sim.crash(host, CrashMode::Process);
}

/// Opens, and reads block after block; returns the first error.
async fn use_all(world: &World, env: &Env) -> Result<(), Fault> {
    let (disk, at) = (world.disk.clone(), env.clone());
    let work = async move {
        let segment = open(&at, &disk, 2, small()).await?;
        let mut met = Ok(());
        for lba in 0..BLOCKS {
            match segment.read(Extent { offset: lba * 4096, len: 4096 }).await {
                Ok(read) => assert!(read[..] == content(lba), "block {lba} is {:?}", &read[..8]),
                Err(fault) => met = met.and(Err(fault)),
            }
        }
        met
    };
    on(env, work).await.expect("no crash")
}

fn data_files(world: &World) -> Vec<String> {
    world.disk.names().into_iter().filter(|name| name.starts_with("data-")).collect()
}

#[test]
fn missing_files_are_named_and_come_back() {
    let count = {
        let world = World::new(3);
        world.run(async {
            fill(&world).await;
            data_files(&world).len()
        })
    };
    assert!(count >= 4, "{count}");
    for index in 0..count {
        let world = World::new(3);
        world.run(async {
            fill(&world).await;
            let name = data_files(&world)[index].clone();
            let kept = world.disk.content(&name).unwrap();
            world.disk.set_content(&name, None);
            let (host, env) = world.boot();
            let met = use_all(&world, &env).await;
            world.sim.crash(host, CrashMode::Process);
            // The spare one has no records, but the table names it.
            let fault = met.unwrap_err();
            assert_eq!(fault.kind, Kind::Corrupt, "{fault}");
            assert!(fault.message.contains(&name), "{fault}");
            world.disk.set_content(&name, Some(kept));
            let (_, env) = world.boot();
            use_all(&world, &env).await.unwrap();
        });
    }
}

#[test]
fn changed_and_truncated_bytes_are_found_or_harmless() {
    let mut found = 0;
    for seed in 0..60 {
        let world = World::new(5);
        world.run(async {
            fill(&world).await;
            let mut rng = Rng::new(seed);
            let mut names = data_files(&world);
            if seed % 3 == 0 {
                // Behind the TxnFile's watermark only the core knows a file's length.
                names.truncate(names.len() - 2);
            }
            let name = rng.pick(&names).clone();
            let mut bytes = world.disk.content(&name).unwrap();
            let at = rng.below(bytes.len() as u64) as usize;
            match seed % 3 {
                0 => bytes.truncate(at),
                _ => bytes[at] ^= 1 << rng.below(8),
            }
            world.disk.set_content(&name, Some(bytes));
            let (_, env) = world.boot();
            match use_all(&world, &env).await {
                // A head's byte that is not read any more.
                Ok(()) => assert!(at < 64, "{name} at {at}"),
                Err(fault) => {
                    assert!(matches!(fault.kind, Kind::Corrupt | Kind::Invalid), "{fault}");
                    assert!(fault.message.contains(&name), "{fault}");
                    found += 1;
                }
            }
        });
    }
    assert!(found > 50, "{found}");
}
