//! [`Usages`]: what the buckets of a range hold (`object-protocols.md` 11.1). Each change of a bucket
//! puts the bucket's count with it, so the counts are exact.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use codec::cursor::{Cursor, put_varint};
use object_proto::{BucketId, BucketUsage, Error, RangeBound, Target};
use table::{Batch, Purpose, Range as Rows};

use crate::decisions::{Decisions, damaged, of_table};
use crate::fields::{VERSION, begin, whole};
use crate::keys::{
    PART, UPLOAD, USAGE, VERSIONS, number_key, read_number_key, read_part_key, read_upload_key,
    read_version_key, upload_key,
};
use crate::limits::PARTS_SLICE;
use crate::row::ObjectRow;
use crate::upload_row::UploadRow;
use crate::versions::Decided;

/// The value of a bucket's row.
pub fn encode_usage(usage: BucketUsage) -> Vec<u8> {
    let mut out = vec![VERSION];
    put_usage(&mut out, usage);
    out
}

pub(crate) fn put_usage(out: &mut Vec<u8>, usage: BucketUsage) {
    let BucketUsage { objects, older, bytes, markers, uploads, upload_bytes } = usage;
    for number in [objects, bytes, markers, older, uploads, upload_bytes] {
        put_varint(out, number);
    }
}

pub(crate) fn read_usage(cursor: &mut Cursor<'_>) -> Option<BucketUsage> {
    let (objects, bytes, markers) = (cursor.varint()?, cursor.varint()?, cursor.varint()?);
    let (older, uploads, upload_bytes) = (cursor.varint()?, cursor.varint()?, cursor.varint()?);
    Some(BucketUsage { objects, older, bytes, markers, uploads, upload_bytes })
}

/// Reads such a value. The rows of the first version end behind objects and bytes, or behind markers: the
/// rest is counted when their range is opened.
pub fn decode_usage(value: &[u8]) -> Option<BucketUsage> {
    let mut cursor = begin(value)?;
    let (objects, bytes) = (cursor.varint()?, cursor.varint()?);
    let mut usage = BucketUsage { objects, bytes, ..BucketUsage::default() };
    if !cursor.is_empty() {
        usage.markers = cursor.varint()?;
    }
    if !cursor.is_empty() {
        usage.older = cursor.varint()?;
        usage.uploads = cursor.varint()?;
        usage.upload_bytes = cursor.varint()?;
    }
    whole(cursor, usage)
}

/// What buckets hold, with all that is submitted.
#[derive(Default)]
pub(crate) struct Usages {
    all: RefCell<BTreeMap<BucketId, BucketUsage>>,
    /// What has come below a bound in its bucket, and is gone from there, while the range is about to be split
    /// at it; modulo 2^64 each.
    below: RefCell<Option<(RangeBound, BucketUsage)>>,
}

/// `to` and the way from `before` to `after`, each modulo 2^64.
fn follow(to: BucketUsage, before: BucketUsage, after: BucketUsage) -> BucketUsage {
    let go = |to: u64, before: u64, after: u64| to.wrapping_add(after.wrapping_sub(before));
    BucketUsage {
        objects: go(to.objects, before.objects, after.objects),
        older: go(to.older, before.older, after.older),
        bytes: go(to.bytes, before.bytes, after.bytes),
        markers: go(to.markers, before.markers, after.markers),
        uploads: go(to.uploads, before.uploads, after.uploads),
        upload_bytes: go(to.upload_bytes, before.upload_bytes, after.upload_bytes),
    }
}

impl Usages {
    /// Of a table that was just opened.
    pub(crate) async fn open(decisions: &Rc<Decisions>) -> Result<Usages, Error> {
        let (mut all, mut is_whole) = (BTreeMap::new(), false);
        for (key, value) in decisions.all(&[USAGE]).await? {
            if key == [USAGE] {
                is_whole = true;
                continue;
            }
            let row = read_number_key(&key).map(BucketId::new).zip(decode_usage(&value));
            let (bucket, row) = row.ok_or_else(|| damaged("a bucket's usage"))?;
            all.insert(bucket, row);
        }
        if !is_whole {
            count_rest(decisions, &mut all).await?;
            let (_, basis) = decisions.submit(|batch, _| {
                for (bucket, usage) in &all {
                    put_row(batch, *bucket, *usage);
                }
                batch.set_purpose(Purpose::Recovery);
                batch.put(&[USAGE], &[VERSION]);
            })?;
            decisions.settled(basis).await?;
        }
        Ok(Usages { all: RefCell::new(all), below: RefCell::default() })
    }

    /// What a bucket holds.
    pub(crate) fn of(&self, bucket: BucketId) -> BucketUsage {
        self.known(bucket).unwrap_or_default()
    }

    /// The same; none when nothing was ever there, or the bucket is gone.
    pub(crate) fn known(&self, bucket: BucketId) -> Option<BucketUsage> {
        self.all.borrow().get(&bucket).copied()
    }

    /// Buckets in which something was put, from one on.
    pub(crate) fn buckets_from(&self, first: BucketId) -> Vec<BucketId> {
        self.all.borrow().range(first..).map(|(bucket, _)| *bucket).collect()
    }

    /// A batch with this was submitted, which concerns a key of the bucket.
    pub(crate) fn set(&self, target: &Target, usage: BucketUsage) {
        let before = self.all.borrow_mut().insert(target.bucket, usage).unwrap_or_default();
        if let Some((bound, below)) = &mut *self.below.borrow_mut()
            && bound.bucket == target.bucket
            && target.key.as_str() < bound.key.as_str()
        {
            *below = follow(*below, before, usage);
        }
    }

    /// From now on it is noted what comes and goes below a bound in its bucket.
    pub(crate) fn follow_below(&self, bound: &RangeBound) {
        self.below.replace(Some((bound.clone(), BucketUsage::default())));
    }

    /// What a bucket holds below the bound that is followed, and from there on; `counted` was there below it as
    /// this began.
    pub(crate) fn halves(&self, counted: BucketUsage) -> Option<(BucketUsage, BucketUsage)> {
        let (bound, way) = self.below.take()?;
        let low = follow(counted, BucketUsage::default(), way);
        Some((low, follow(self.of(bound.bucket), low, BucketUsage::default())))
    }

    /// The bucket is gone.
    pub(crate) fn forget(&self, bucket: BucketId) {
        self.all.borrow_mut().remove(&bucket);
    }
}

/// Puts a bucket's row into a batch.
pub(crate) fn put_row(batch: &mut Batch, bucket: BucketId, usage: BucketUsage) {
    batch.put(&number_key(USAGE, bucket.get()), &encode_usage(usage));
}

/// What a bucket holds behind a put or delete; none when it held less than what goes.
pub(crate) fn behind(mut usage: BucketUsage, decided: &Decided) -> Option<BucketUsage> {
    let replaced = &decided.replaced;
    if let Some(gone) = &replaced.gone {
        match gone.row.marker {
            true => usage.markers = usage.markers.checked_sub(1)?,
            false => {
                usage.objects = usage.objects.checked_sub(1)?;
                usage.bytes = usage.bytes.checked_sub(gone.row.info.object.size)?;
                usage.older = usage.older.checked_sub(u64::from(!gone.is_current()))?;
            }
        }
    }
    usage.older += u64::from(replaced.kept.is_some());
    usage.older = usage.older.checked_sub(u64::from(replaced.back.is_some()))?;
    if let Some(object) = &decided.new {
        usage.objects += 1;
        usage.bytes = usage.bytes.checked_add(object.size)?;
    }
    usage.markers += u64::from(decided.marker.is_some());
    match decided.ended_upload {
        Some(part_bytes) => Some(without_upload(usage, part_bytes)),
        None => Some(usage),
    }
}

/// The same without an upload and its parts.
pub(crate) fn without_upload(usage: BucketUsage, part_bytes: u64) -> BucketUsage {
    let uploads = usage.uploads.checked_sub(1);
    let upload_bytes = usage.upload_bytes.checked_sub(part_bytes);
    if uploads.is_none() || upload_bytes.is_none() {
        tracing::error!(
            ?usage,
            part_bytes,
            "a bucket's count of uploads was too low: it is set to 0"
        );
        debug_assert!(false, "{usage:?} has no upload of {part_bytes} bytes");
    }
    let (uploads, upload_bytes) = (uploads.unwrap_or(0), upload_bytes.unwrap_or(0));
    BucketUsage { uploads, upload_bytes, ..usage }
}

/// Counts what the rows of the first version do not have.
async fn count_rest(
    decisions: &Decisions,
    all: &mut BTreeMap<BucketId, BucketUsage>,
) -> Result<(), Error> {
    let (rows, mut seen) = (decisions.snapshot(), 0);
    let mut open = BTreeSet::new();
    for usage in all.values_mut() {
        (usage.older, usage.uploads, usage.upload_bytes) = (0, 0, 0);
    }
    for section in [VERSIONS, UPLOAD, PART] {
        let mut scan = rows.scan(Rows::prefix(&[section]));
        while let Some((key, value)) = scan.next().await.map_err(of_table)? {
            seen += 1;
            if seen % PARTS_SLICE == 0 {
                decisions.yield_now().await;
            }
            match section {
                VERSIONS => {
                    let row = read_version_key(&key).zip(ObjectRow::decode(&value));
                    let ((target, _), row) = row.ok_or_else(|| damaged("an older version"))?;
                    let usage = all.entry(target.bucket).or_default();
                    usage.older += u64::from(!row.marker);
                }
                UPLOAD => {
                    let row = read_upload_key(&key).zip(UploadRow::decode(&value));
                    let ((target, _), row) = row.ok_or_else(|| damaged("an upload"))?;
                    if row.end.is_none() {
                        all.entry(target.bucket).or_default().uploads += 1;
                        open.insert(key);
                    }
                }
                _ => {
                    let row = read_part_key(&key).zip(ObjectRow::decode(&value));
                    let ((target, begun, _), row) = row.ok_or_else(|| damaged("a part"))?;
                    if open.contains(&upload_key(&target, begun)) {
                        let usage = all.entry(target.bucket).or_default();
                        usage.upload_bytes += row.info.object.size;
                    }
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use object_proto::{ObjectKey, Stamp, Target};
    use runtime::sim::Sim;
    use table::{Cache, Options, Table};
    use testing::tables::MemDisk;

    use super::*;
    use crate::keys::{part_key, version_key};
    use crate::planted::Bugs;
    use crate::room::Room;
    use crate::row_tests::{end, info, upload};

    struct Ever;

    impl crate::ground::Lease for Ever {
        fn is_valid(&self) -> bool {
            true
        }
    }

    #[test]
    fn rows_read_back_and_those_of_the_first_version_too() {
        let usage = BucketUsage {
            objects: 3,
            older: 1,
            bytes: u64::MAX,
            markers: 7,
            uploads: 2,
            upload_bytes: 1 << 40,
        };
        assert_eq!(decode_usage(&encode_usage(usage)), Some(usage));
        let first = BucketUsage { objects: 3, bytes: 5, ..BucketUsage::default() };
        assert_eq!(decode_usage(&[VERSION, 3, 5]), Some(first));
        let with_markers = BucketUsage { markers: 7, ..first };
        assert_eq!(decode_usage(&[VERSION, 3, 5, 7]), Some(with_markers));
        assert_eq!(decode_usage(&[VERSION, 3, 5, 7, 1]), None);
    }

    /// Rows of a range as the first version has left them.
    fn first_rows() -> Batch {
        let target =
            |bucket| Target { bucket: BucketId::new(bucket), key: ObjectKey::new("k").unwrap() };
        let (begun, mut batch) = (Stamp::new(50), Batch::new());
        let object = |size| {
            let info = info(size, 0, true);
            ObjectRow::encode(info.stamp, &info.object, None, true).0
        };
        let marker = ObjectRow::encode_marker(begun, (1, &object_proto::UserId::new("me")), true);
        batch.put(&number_key(USAGE, 1), &[VERSION, 3, 30, 1]);
        batch.put(&version_key(&target(1), Stamp::new(5)), &object(10));
        batch.put(&version_key(&target(1), Stamp::new(4)), &object(10));
        batch.put(&version_key(&target(1), Stamp::new(6)), &marker);
        // No object was ever in this bucket, so it has no count.
        for (at, end) in [(50, None), (51, Some(end()))] {
            let row = UploadRow { upload: upload(), abort_us: 1 << 51, end };
            batch.put(&upload_key(&target(2), Stamp::new(at)), &row.encode());
        }
        for (at, number, size) in [(50, 1, 7), (50, 2, 8), (51, 1, 100), (52, 1, 100)] {
            let number = object_proto::PartNumber::new(number).unwrap();
            batch.put(&part_key(&target(2), Stamp::new(at), number), &object(size));
        }
        batch
    }

    #[test]
    fn what_the_first_rows_lack_is_counted_once() {
        let sim = Sim::new(1);
        let (disk, host) = (MemDisk::new(&sim), sim.add_host("owner"));
        let env = sim.boot(host);
        let done = sim.run(async {
            let expected = BTreeMap::from([
                (
                    1,
                    BucketUsage {
                        objects: 3,
                        older: 2,
                        bytes: 30,
                        markers: 1,
                        ..Default::default()
                    },
                ),
                (2, BucketUsage { uploads: 1, upload_bytes: 15, ..Default::default() }),
            ]);
            for opening in 0..3 {
                let options = Options { owner: opening + 1, ..Options::default() };
                let (store, cache) = (disk.store(&env), Cache::new(1 << 20));
                let table = Table::open(&env, store, &cache, options).await.unwrap();
                if opening == 0 {
                    table.write(&first_rows()).await.unwrap();
                }
                let (lease, room) = (Rc::new(Ever), Room::default());
                let decisions =
                    Decisions::new(&env, table, lease, &room, Bugs::default()).await.unwrap();
                let usages = Usages::open(&decisions).await.unwrap();
                for (bucket, usage) in &expected {
                    assert_eq!(usages.of(BucketId::new(*bucket)), *usage, "opening {opening}");
                }
                // A third time they are read, and not counted.
                let row = decisions.durable(&number_key(USAGE, 2)).await.unwrap();
                assert_eq!(row, Some(encode_usage(expected[&2])));
                decisions.close().await;
            }
        });
        done.expect("it goes on");
        sim.close();
    }
}
