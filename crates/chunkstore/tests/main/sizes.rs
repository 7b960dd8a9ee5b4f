//! Costs of small files and many chunks.

use base::{ChunkId, Epoch};
use chunkstore::ChunkStore;
use chunkstore::flash::{Config, FormatOptions};
use chunkstore::limits::UNIT_SMALL;
use runtime::sim::{CrashMode, Sim};
use wire::data::ReplicaState;

use crate::engine::{Engine, Flash, append_of, data_of};

/// The goal: 10,000 files of 10 KB take below three times their bytes per replica. They come
/// back after a power cut, and the mount reads no file's data.
#[test]
fn ten_thousand_small_files() {
    const FILES: u64 = 10_000;
    const BYTES: u64 = 10_000;
    let sim = Sim::new(1);
    let options = FormatOptions {
        unit: UNIT_SMALL,
        capacity: 1 << 30,
        grow_step: 16 << 20,
        log_bytes: 1 << 20,
        ..FormatOptions::small_files()
    };
    let mut engine = Flash::new(&sim, options, Config::default());
    let run = async {
        let store = engine.boot().await.unwrap();
        let put = |number: u64| {
            let store = store.clone();
            async move {
                let chunk = ChunkId::new(number);
                let append = append_of(chunk, 5, 0, &data_of(chunk, 0, BYTES as u32, 0));
                store.append(append).await.unwrap();
                store.seal(chunk, BYTES as u32).await.unwrap();
            }
        };
        let numbers: Vec<u64> = (0..FILES).collect();
        for batch in numbers.chunks(64) {
            futures_util::future::join_all(batch.iter().map(|&number| put(number))).await;
        }
        let info = store.info();
        assert_eq!((info.chunks, info.used), (FILES, FILES * u64::from(UNIT_SMALL)));
        assert!(info.used < 2 * FILES * BYTES, "{} bytes", info.used);
        let counters = store.counters();
        let written = counters.bytes_out;
        assert!(written < 6 * FILES * BYTES, "{written} bytes written");
        assert!(counters.checkpoints > 0, "the log came round");
        // All of what the host stores, metadata and what is made ready ahead included.
        let host: u64 = sim.files(engine.host).iter().map(|(_, len)| len).sum();
        assert!(host < 3 * FILES * BYTES, "the store's file has {host} bytes");
        engine.crash(CrashMode::Power);
        drop(store);
        let started = sim.elapsed();
        let store = engine.boot().await.unwrap();
        let took = sim.elapsed() - started;
        assert!(took.as_millis() < 100, "mounted in {took:?}");
        assert_eq!(store.info().chunks, FILES);
        let stat = store.stat(ChunkId::new(77)).unwrap();
        assert_eq!((stat.state, stat.len), (ReplicaState::Sealed, BYTES as u32));
        let read = store.read(ChunkId::new(77), 0, BYTES as u32).await.unwrap();
        assert_eq!(read.sectors.len(), 3 * 4096);
        store.fence(ChunkId::new(77), Epoch::new(9)).await.unwrap();
    };
    sim.run(run).unwrap();
}
