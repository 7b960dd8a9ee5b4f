//! What a page of a listing reads of the range's table. What it shows is in `tests/index`.

use object_proto::{
    BucketId, Envelope, ListPage, ListRequest, Listed, ListedVersion, ObjectData, ObjectKey,
    PartMap, PartNumber, Stamp, Target, UploadId, VersionsRequest, sealed_len,
};
use runtime::sim::Sim;
use table::{Batch, Cache, Options, Table};
use testing::tables::MemDisk;

use crate::keys::{CURRENT, MAP, object_key};
use crate::map::map_apart;
use crate::row::ObjectRow;
use crate::row_tests::info;
use crate::versions::beside;
use crate::{list, list_versions};

const BUCKET: BucketId = BucketId::new(7);

/// A table in one run with `count` keys under each prefix, and one of another object behind it.
async fn filled(sim: &Sim, disk: &MemDisk, prefixes: u32, count: u32) -> Table {
    let host = sim.add_host("owner");
    let env = sim.boot(host);
    let options = Options { block_bytes: 2 << 10, ..Options::default() };
    // The cache holds no block: each is read from the store.
    let table = Table::open(&env, disk.store(&env), &Cache::new(1), options).await.unwrap();
    let info = info(0, 0, true);
    let (row, _) = ObjectRow::encode(info.stamp, &info.object, None, false);
    let put = |batch: &mut Batch, key: String| {
        let target = Target { bucket: BUCKET, key: ObjectKey::new(key).unwrap() };
        batch.put(&object_key(CURRENT, &target), &row);
    };
    for prefix in 0..prefixes {
        let mut batch = Batch::new();
        (0..count).for_each(|number| put(&mut batch, format!("dir-{prefix:03}/{number:05}")));
        put(&mut batch, format!("dir-{prefix:03}0"));
        table.write(&batch).await.unwrap();
    }
    table.flush().await.unwrap();
    table.compact().await.unwrap();
    table
}

/// A page, and the steps of the store that it takes: one for each read.
async fn page(disk: &MemDisk, table: &Table, after: &str) -> (ListPage, u64) {
    let ask = ListRequest {
        bucket: BUCKET,
        prefix: String::new(),
        delimiter: "/".to_owned(),
        after: after.to_owned(),
        limit: 1000,
    };
    let before = disk.points();
    let page = list::page(table.snapshot(), &ask).await.unwrap();
    (page, disk.points() - before)
}

/// What pages of `prefixes` show.
fn names(prefixes: u32) -> Vec<String> {
    let of = |prefix| [format!("dir-{prefix:03}/"), format!("dir-{prefix:03}0")];
    (0..prefixes).flat_map(of).collect()
}

fn run(prefixes: u32, count: u32, check: impl AsyncFn(&MemDisk, &Table)) {
    let sim = Sim::new(1);
    let disk = MemDisk::new(&sim);
    let done = sim.run(async {
        let table = filled(&sim, &disk, prefixes, count).await;
        page(&disk, &table, "").await; // Opens the file.
        check(&disk, &table).await;
    });
    done.expect("it goes on");
    sim.close();
}

#[test]
fn page_of_large_prefixes_reads_two_blocks_for_each() {
    run(8, 2000, async |disk, table| {
        for (after, skipped) in [("", 0), ("dir-003/", 7), ("dir-003/01000", 7)] {
            let (page, reads) = page(disk, table, after).await;
            let shown: Vec<&str> = page.entries.iter().map(|entry| entry.name()).collect();
            assert_eq!(shown, names(8)[skipped..]);
            // An index block and a data block for each prefix, and some at the beginning.
            assert!(reads <= 2 * 8 + 4, "{reads} reads");
        }
    });
}

/// A new scan for each of the 250 prefixes would read a block or two for each.
#[test]
fn page_of_small_prefixes_reads_each_block_once_and_ahead() {
    run(250, 3, async |disk, table| {
        let (page, reads) = page(disk, table, "").await;
        let shown: Vec<&str> = page.entries.iter().map(|entry| entry.name()).collect();
        assert_eq!(shown, names(250));
        assert!(reads <= 30, "{reads} reads");
    });
}

#[test]
fn an_encrypted_object_of_parts_is_listed_with_the_bytes_of_its_content() {
    let id = UploadId { stamp: Stamp::new(5), nonce: 6 };
    let sim = Sim::new(1);
    let disk = MemDisk::new(&sim);
    let done = sim.run(async {
        let host = sim.add_host("owner");
        let env = sim.boot(host);
        let store = disk.store(&env);
        let table = Table::open(&env, store, &Cache::new(1), Options::default()).await.unwrap();
        // Parts of one size, whose map is in the object's row; and parts of sizes of their own.
        for (parts, step, is_apart) in [(6, 0, false), (40, 1, true)] {
            let content = |at: u16| (5 << 20) + step * u64::from(at);
            let all = (1..=parts).map(|at| (PartNumber::new(at.into()).unwrap(), content(at)));
            let sealed = all.clone().map(|(number, len)| (number, sealed_len(len)));
            let map = PartMap::of(id, sealed);
            let mut info = info(0, 0, true);
            let object = &mut info.object;
            object.size = map.size();
            object.facts.encryption = Envelope::new(vec![6; 90]);
            object.data = ObjectData::Parts(map.clone());
            let (row, _) = ObjectRow::encode(info.stamp, object, None, false);
            assert_eq!(ObjectRow::decode(&row).expect("a row").map_apart, is_apart);
            let target = Target { bucket: BUCKET, key: ObjectKey::new("k").unwrap() };
            let mut batch = Batch::new();
            batch.put(&object_key(CURRENT, &target), &row);
            if let Some(apart) = map_apart(info.stamp, &map) {
                let row = ObjectRow::decode(&row).expect("a row");
                batch.put(&beside(MAP, &target, &row), &apart);
            }
            table.write(&batch).await.unwrap();
            let size = all.map(|(_, len)| len).sum::<u64>();
            let (page, _) = page(&disk, &table, "").await;
            let [Listed::Object { info, .. }] = page.entries.as_slice() else { panic!("{page:?}") };
            assert_eq!(info.object.content_size(), Some(size));
            let ask = VersionsRequest {
                bucket: BUCKET,
                prefix: String::new(),
                delimiter: String::new(),
                after: String::new(),
                after_version: None,
                limit: 1000,
            };
            let page = list_versions::page(table.snapshot(), &ask).await.unwrap();
            let [ListedVersion::Version { info, .. }] = page.entries.as_slice() else {
                panic!("{page:?}")
            };
            assert_eq!(info.object.content_size(), Some(size));
        }
    });
    done.expect("it goes on");
    sim.close();
}
