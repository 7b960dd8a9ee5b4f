//! Fsck and dump of an offline store.

use base::{ChunkId, Epoch};
use chunkstore::ChunkStore;
use chunkstore::flash::{Problem, SyncMode, dump, dump_chunk, fsck};
use runtime::sim::{CrashMode, Sim};

use crate::engine::{Engine, Flash, append_of, data_of, store_path};

#[test]
fn fsck_finds_each_flipped_bit_in_data() {
    let sim = Sim::new(3);
    let mut engine = Flash::planted(&sim, None, SyncMode::PerWrite);
    let run = async {
        let store = engine.boot().await.unwrap();
        for number in 1..=5 {
            let chunk = ChunkId::new(number);
            let mut offset = 0;
            for len in [10, 4096, 20_000, 7, 50_000] {
                let data = data_of(chunk, offset, len, 0);
                offset = store.append(append_of(chunk, 5, offset, &data)).await.unwrap().len;
            }
            if number < 3 {
                store.seal(chunk, offset).await.unwrap();
            }
        }
        store.fence(ChunkId::new(9), Epoch::new(3)).await.unwrap();
        store.close().await.unwrap();
        drop(store);
        engine.crash(CrashMode::Power);
        let env = sim.boot(engine.host);
        let path = store_path();
        let clean = fsck(&env, &path).await.unwrap();
        assert_eq!(clean.problems, []);
        assert_eq!((clean.chunks, clean.sealed, clean.tombstones), (5, 2, 1));
        assert_eq!(clean.bytes, 5 * (10 + 4096 + 20_000 + 7 + 50_000));
        let dumped = dump(&env, &path).await.unwrap();
        assert_eq!(dumped.chunks.len(), 5);
        assert_eq!(dumped.tombstones, [(ChunkId::new(9), Epoch::new(3))]);
        for (number, sector) in [(1, 4), (4, 9)] {
            let chunk = ChunkId::new(number);
            let (_, sectors) = dump_chunk(&env, &path, chunk).await.unwrap().unwrap();
            let at = sectors[sector as usize].at;
            sim.flip_bit(engine.host, &path, at + 100, 1);
            let report = fsck(&env, &path).await.unwrap();
            let found = report.problems.iter().any(|problem| match problem {
                Problem::Sector { chunk: c, at: a, .. } => (*c, *a) == (chunk, at),
                Problem::Short { chunk: c, .. } => *c == chunk,
                _ => false,
            });
            assert!(found && report.problems.len() == 1, "{:?}", report.problems);
            assert!(report.problems[0].loses_data());
            sim.flip_bit(engine.host, &path, at + 100, 1);
        }
        sim.flip_bit(engine.host, &path, 7, 1);
        let report = fsck(&env, &path).await.unwrap();
        assert_eq!(report.problems, [Problem::Superblock { copy: 0 }]);
        assert!(!report.problems[0].loses_data());
    };
    sim.run(run).unwrap();
}
