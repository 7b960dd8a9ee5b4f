//! Fsck and dump of an offline store.

use base::{ChunkId, Epoch};
use chunkstore::flash::{Problem, SyncMode, dump, dump_chunk, fsck};
use chunkstore::{Append, ChunkStore};
use codec::block::Codec;
use runtime::sim::{CrashMode, Sim};
use wire::row::Fragment;

use crate::engine::{Engine, Flash, append_of, data_of, row_append_of, store_path};

/// The append of a chunk's bytes: of chunks 3 and 4 a row, of copies and of a code.
fn append(chunk: ChunkId, offset: u32, len: u32) -> Append {
    let data = data_of(chunk, offset, len, 0);
    match chunk.get() {
        3 => row_append_of((chunk, 5, offset), &data, Fragment::COPY, Codec::Lz4),
        4 => {
            let fragment = Fragment { k: 4, p: 2, number: 4 };
            row_append_of((chunk, 5, offset), &data, fragment, Codec::Plain)
        }
        _ => append_of(chunk, 5, offset, &data),
    }
}

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
                offset = store.append(append(chunk, offset, len)).await.unwrap().len;
            }
            if [1, 2, 3].contains(&number) {
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
        assert_eq!((clean.chunks, clean.sealed, clean.tombstones), (5, 3, 1));
        assert_eq!(clean.bytes, 5 * (10 + 4096 + 20_000 + 7 + 50_000));
        let dumped = dump(&env, &path).await.unwrap();
        assert_eq!(dumped.chunks.len(), 5);
        assert_eq!(dumped.tombstones, [(ChunkId::new(9), Epoch::new(3))]);
        // Sector 4 is amid the cell of the third append.
        for (number, sector) in [(1, 4), (3, 2), (3, 4), (3, 9), (4, 5), (5, 9)] {
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
            let problems = &report.problems;
            assert!(found && problems.len() == 1, "{number} {sector}: {problems:?}");
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
