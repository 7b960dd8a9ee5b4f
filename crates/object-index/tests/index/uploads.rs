//! Multipart uploads: one owner and one gateway, without faults.

use std::collections::BTreeMap;
use std::rc::Rc;

use object_index::{Service, range_dir};
use object_proto::{
    BodyPlan, BucketId, ChecksumKind, ChecksumPlan, Completion, Conditions, DataId, Envelope,
    Error, Etag, ListedUpload, Metadata, NewUpload, ObjectData, ObjectFacts, ObjectKey, PartNumber,
    PartsRequest, RangeId, Tags, Target, UploadId, UploadsRequest, UserId,
};
use runtime::{Duration, Env};
use table::{Batch, Cache, Options, Range, Table};

use super::basics::{put, read, run};
use super::support::{Unit, World, bucket, me, name};

fn number(number: u64) -> PartNumber {
    PartNumber::new(number).unwrap()
}

pub fn new_upload(nonce: u64) -> NewUpload {
    let headers = BTreeMap::from([
        ("content-type".to_owned(), "text/plain".to_owned()),
        ("x-amz-meta-long".to_owned(), "v".repeat(1000)),
    ]);
    NewUpload {
        nonce,
        checksum: Some(ChecksumPlan { kind: ChecksumKind::Crc32, composite: true }),
        metadata: Metadata::new(headers).unwrap(),
        owner: UserId::new("me"),
        encryption: Envelope::new(b"as an upload was begun".to_vec()),
        ..NewUpload::default()
    }
}

pub async fn send(
    service: &Service,
    target: &Target,
    (upload, at): (UploadId, u64),
    bytes: &[u8],
) -> Result<(), Error> {
    let mut part =
        service.put_part(target.clone(), (upload, number(at)), BodyPlan::default()).await?;
    part.write(bytes).await?;
    let facts = ObjectFacts { etag: Etag::new(format!("p{at}")), ..ObjectFacts::default() };
    part.commit(facts, Conditions::default()).await.map(drop)
}

fn ask(target: &Target, upload: UploadId, after: u16, limit: u32) -> PartsRequest {
    PartsRequest { target: target.clone(), upload, after, limit }
}

pub async fn ids(
    service: &Service,
    target: &Target,
    upload: UploadId,
) -> Vec<(PartNumber, DataId)> {
    let page = service.parts(ask(target, upload, 0, 1000)).await.unwrap();
    assert!(!page.more);
    page.parts.iter().map(|part| (part.number, part.data_id)).collect()
}

pub async fn complete(
    service: &Service,
    target: &Target,
    upload: UploadId,
    parts: Vec<(PartNumber, DataId)>,
    conditions: Conditions,
) -> Result<(), Error> {
    let etag = Etag::new("tag-3");
    let completion = Completion { upload, parts, etag, checksums: Vec::new() };
    service.complete_upload(target.clone(), completion, conditions).await.map(drop)
}

fn at(bucket: BucketId, key: &str) -> Target {
    Target { bucket, key: ObjectKey::new(key).unwrap() }
}

fn bytes(len: usize, salt: usize) -> Vec<u8> {
    (0..len).map(|at| (at * salt + at / 251) as u8).collect()
}

/// Files of bodies once trash is over.
async fn bodies(world: &World, env: &Env) -> usize {
    env.sleep(Duration::from_secs(9)).await;
    world.bodies().len()
}

#[test]
fn parts_become_an_object_that_reads_back_also_after_a_takeover() {
    run(|world, service, env| async move {
        let target = at(bucket(&service, "abc").await.id, "a/b");
        let upload = service.begin_upload(target.clone(), new_upload(9)).await.unwrap();
        // Sparse numbers, out of order, inline and in files of several pieces; one is sent twice.
        let parts =
            [(2, bytes(3 << 20, 7)), (5, bytes(100, 5)), (7, Vec::new()), (40, bytes(70_000, 3))];
        for at in [3, 1, 0, 2] {
            let (number, content) = &parts[at];
            send(&service, &target, (upload, *number), content).await.unwrap();
        }
        send(&service, &target, (upload, 5), &bytes(90_000, 11)).await.unwrap();
        send(&service, &target, (upload, 5), &parts[1].1).await.unwrap();
        send(&service, &target, (upload, 9), &bytes(80_000, 13)).await.unwrap();
        assert_eq!(
            service.look(&target, None).await,
            Err(Error::NoSuchKey),
            "nothing is there before"
        );
        let page = service.parts(ask(&target, upload, 2, 2)).await.unwrap();
        let shown: Vec<_> = page.parts.iter().map(|part| (part.number.get(), part.size)).collect();
        assert_eq!((shown, page.more), (vec![(5, 100), (7, 0)], true));
        let info = service.upload(target.clone(), upload).await.unwrap();
        assert_eq!((info.id, info.end), (upload, None));
        assert_eq!(info.upload, new_upload(9));

        let mut named = ids(&service, &target, upload).await;
        named.retain(|(number, _)| number.get() != 9);
        complete(&service, &target, upload, named.clone(), Conditions::default()).await.unwrap();
        let whole: Vec<u8> = parts.iter().flat_map(|(_, content)| content.clone()).collect();
        for takeover in [false, true] {
            if takeover {
                let old = world.owners.borrow().last().unwrap().clone();
                world.crash(&old);
                world.take_over().await.unwrap();
            }
            let info = service.look(&target, None).await.unwrap();
            assert_eq!(info.object.size, whole.len() as u64);
            assert_eq!(info.object.facts.etag.as_str(), "tag-3");
            assert_eq!(info.object.facts.metadata, new_upload(9).metadata);
            let ObjectData::Parts(map) = &info.object.data else { panic!("{info:?}") };
            assert_eq!((map.count(), map.range(number(5))), (4, Some(3 << 20..(3 << 20) + 100)));
            assert_eq!(read(&service, &target).await, whole);
            let content = service.content(&target, &info).await.unwrap();
            let from = (3 << 20) - 10;
            let across = content.read(from, 200).await.unwrap();
            assert_eq!(across, whole[from as usize..from as usize + 200]);
            // How it ended is remembered, and nothing else happens to it.
            let end = service.upload(target.clone(), upload).await.unwrap().end.unwrap();
            assert_eq!((end.stamp, end.etag), (info.stamp, info.object.facts.etag));
            let again = complete(&service, &target, upload, named.clone(), Conditions::default());
            assert_eq!(again.await, Err(Error::NoSuchUpload));
            let late = send(&service, &target, (upload, 5), b"late").await;
            assert_eq!(late, Err(Error::NoSuchUpload));
            assert_eq!(
                service.abort_upload(target.clone(), upload).await,
                Err(Error::NoSuchUpload)
            );
            assert_eq!(service.parts(ask(&target, upload, 0, 9)).await, Err(Error::NoSuchUpload));
        }
        // Of the part that was sent twice and of the one that was not named nothing stays.
        assert_eq!(bodies(&world, &env).await, 1);
        env.sleep(Duration::from_secs(10)).await;
        assert_eq!(service.upload(target.clone(), upload).await, Err(Error::NoSuchUpload));
        assert_eq!(read(&service, &target).await, whole, "its parts stay");
        // Replaced, and then removed, it leaves nothing; its reader had its time.
        put(&service, &target, &bytes(9, 1), ObjectFacts::default()).await;
        assert_eq!(bodies(&world, &env).await, 0);
        let gone = service.part_bodies(ask(&target, upload, 0, 9)).await.unwrap();
        assert!(gone.is_empty(), "{gone:?}");
    });
}

#[test]
fn what_is_not_as_it_is_named_changes_nothing() {
    run(|world, service, env| async move {
        let target = at(bucket(&service, "abc").await.id, "k");
        let upload = service.begin_upload(target.clone(), new_upload(1)).await.unwrap();
        for at in [1, 2] {
            send(&service, &target, (upload, at), &bytes(600, 3)).await.unwrap();
        }
        let named = ids(&service, &target, upload).await;
        let complete =
            async |parts, conditions| complete(&service, &target, upload, parts, conditions).await;
        let none = Conditions::default;
        let other = |at: usize, part| {
            let mut parts = named.clone();
            parts[at] = part;
            parts
        };
        let missing = other(1, (number(3), named[1].1));
        assert_eq!(complete(missing, none()).await, Err(Error::NoSuchPart { number: 3 }));
        let before = other(0, (number(1), DataId::new(7)));
        assert_eq!(complete(before, none()).await, Err(Error::NoSuchPart { number: 1 }));
        for parts in [vec![], vec![named[1], named[0]], vec![named[0], named[0]]] {
            assert!(matches!(complete(parts, none()).await, Err(Error::Invalid { .. })));
        }
        let there = Conditions { if_match: Some(Tags::Any), ..none() };
        assert_eq!(complete(named.clone(), there).await, Err(Error::NoSuchKey));
        put(&service, &target, b"there", ObjectFacts::default()).await;
        let absent = Conditions { if_none_match: Some(Tags::Any), ..none() };
        assert_eq!(complete(named.clone(), absent).await, Err(Error::Precondition));
        assert_eq!(read(&service, &target).await, b"there");
        // An ID that was guessed, and one of another key.
        let guessed = UploadId { nonce: 2, ..upload };
        let sent = send(&service, &target, (guessed, 1), b"x").await;
        assert_eq!(sent, Err(Error::NoSuchUpload));
        let elsewhere = at(target.bucket, "other");
        assert_eq!(service.upload(elsewhere.clone(), upload).await, Err(Error::NoSuchUpload));
        let nowhere = at(BucketId::new(5), "k");
        let refused = service.begin_upload(nowhere, new_upload(1)).await;
        assert_eq!(refused, Err(Error::NoSuchBucket));
        assert_eq!(service.parts(ask(&target, upload, 0, 9)).await.unwrap().parts.len(), 2);

        complete(named, none()).await.unwrap();
        assert_eq!(bodies(&world, &env).await, 1);
        assert_eq!(service.delete(target.clone(), me(), none()).await.map(drop), Ok(()));
        assert_eq!(bodies(&world, &env).await, 0);
    });
}

#[test]
fn uploads_that_are_aborted_or_left_leave_nothing() {
    run(|world, service, env| async move {
        let bucket = bucket(&service, "abc").await;
        let [left, aborted] = ["left", "aborted"].map(|key| at(bucket.id, key));
        for target in [&left, &aborted] {
            let upload = service.begin_upload(target.clone(), new_upload(1)).await.unwrap();
            // More than one batch removes.
            for at in 1..=300 {
                send(&service, target, (upload, at), &bytes(513, 3)).await.unwrap();
            }
            if target == &aborted {
                service.abort_upload(target.clone(), upload).await.unwrap();
                let again = service.abort_upload(target.clone(), upload).await;
                assert_eq!(again, Err(Error::NoSuchUpload));
            }
        }
        assert!(bodies(&world, &env).await > 0);
        assert_eq!(service.uploads(in_bucket(bucket.id)).await.unwrap().entries.len(), 1);
        env.sleep(Duration::from_secs(30)).await;
        assert_eq!(world.bodies().len(), 0);
        assert!(service.uploads(in_bucket(bucket.id)).await.unwrap().entries.is_empty());
    });
}

#[test]
fn a_bucket_is_removed_with_its_uploads() {
    run(|world, service, env| async move {
        let made = bucket(&service, "abc").await;
        let target = at(made.id, "k");
        let upload = service.begin_upload(target.clone(), new_upload(1)).await.unwrap();
        send(&service, &target, (upload, 1), &bytes(600, 3)).await.unwrap();
        service.remove_bucket(name("abc")).await.unwrap();
        let late = send(&service, &target, (upload, 2), b"late").await;
        assert_eq!(late, Err(Error::NoSuchBucket));
        assert_eq!(bodies(&world, &env).await, 0);
    });
}

fn in_bucket(bucket: BucketId) -> UploadsRequest {
    UploadsRequest {
        bucket,
        prefix: String::new(),
        delimiter: String::new(),
        after: String::new(),
        after_upload: None,
        limit: 1000,
    }
}

#[test]
fn uploads_are_listed_by_key_and_time() {
    run(|_, service, _| async move {
        let bucket = bucket(&service, "abc").await.id;
        let service = Rc::new(service);
        let mut begun = Vec::new();
        for key in ["b", "a/1", "a/2", "a", "b", "b\0"] {
            let upload = service.begin_upload(at(bucket, key), new_upload(3)).await.unwrap();
            begun.push((key, upload));
        }
        let done = service.begin_upload(at(bucket, "c"), new_upload(4)).await.unwrap();
        send(&service, &at(bucket, "c"), (done, 1), b"1").await.unwrap();
        let named = ids(&service, &at(bucket, "c"), done).await;
        complete(&service, &at(bucket, "c"), done, named, Conditions::default()).await.unwrap();
        let list = async |ask: UploadsRequest| {
            let page = service.uploads(ask).await.unwrap();
            let show = |entry: &ListedUpload| match entry {
                ListedUpload::Prefix(prefix) => (prefix.clone(), None),
                ListedUpload::Upload { key, info } => (key.as_str().to_owned(), Some(info.id)),
            };
            (page.entries.iter().map(show).collect::<Vec<_>>(), page.more)
        };
        let of = |index: usize| (begun[index].0.to_owned(), Some(begun[index].1));
        let all = [3, 1, 2, 0, 4, 5].map(of).to_vec();
        assert_eq!(list(in_bucket(bucket)).await, (all.clone(), false));
        // Page by page, each goes on behind the last upload of the one before.
        for limit in 1..4 {
            let (mut ask, mut seen) = (UploadsRequest { limit, ..in_bucket(bucket) }, Vec::new());
            loop {
                let (page, more) = list(ask.clone()).await;
                assert!(page.len() <= limit as usize);
                let (after, after_upload) = page.last().unwrap().clone();
                seen.extend(page);
                ask = UploadsRequest { after, after_upload, ..ask };
                if !more {
                    break;
                }
            }
            assert_eq!(seen, all, "{limit} a page");
        }
        let slash = UploadsRequest { delimiter: "/".to_owned(), ..in_bucket(bucket) };
        let short = vec![of(3), ("a/".to_owned(), None), of(0), of(4), of(5)];
        assert_eq!(list(slash.clone()).await, (short.clone(), false));
        let behind = UploadsRequest { after: "a/".to_owned(), ..slash.clone() };
        assert_eq!(list(behind).await, (short[2..].to_vec(), false));
        let prefix = UploadsRequest { prefix: "a/".to_owned(), ..slash };
        assert_eq!(list(prefix).await, ([1, 2].map(of).to_vec(), false));
        // Without the ID of an upload all of that key are passed over.
        let behind = UploadsRequest { after: "b".to_owned(), ..in_bucket(bucket) };
        assert_eq!(list(behind).await, (vec![of(5)], false));
    });
}

/// Crashes the owner and opens its range's table in its place. Another owner may take over behind that.
async fn table_of(world: &World, env: &Env) -> Table {
    let old = world.owners.borrow().last().unwrap().clone();
    world.crash(&old);
    let store = world.disk.beside(&range_dir(RangeId::new(1))).store(env);
    let (data_log_least, data_log_bytes) = world.log_bytes.get();
    let owner = world.epoch(Unit::All);
    let options = Options { owner, data_log_bytes, data_log_least, ..Options::default() };
    Table::open(env, store, &Cache::new(1 << 20), options).await.unwrap()
}

async fn rows(table: &Table, section: u8) -> Vec<(Vec<u8>, Vec<u8>)> {
    table.scan(Range::prefix(&[section])).take(usize::MAX).await.unwrap()
}

/// Begins an upload of a key, and completes it.
async fn upload_whole(service: &Service, target: &Target) -> UploadId {
    let upload = service.begin_upload(target.clone(), new_upload(7)).await.unwrap();
    send(service, target, (upload, 1), b"part").await.unwrap();
    let named = ids(service, target, upload).await;
    complete(service, target, upload, named, Conditions::default()).await.unwrap();
    upload
}

#[test]
fn uploads_that_were_completed_are_not_among_those_that_a_listing_reads() {
    run(|world, service, env| async move {
        let bucket = bucket(&service, "abc").await.id;
        for number in 0..40 {
            upload_whole(&service, &at(bucket, &format!("whole-{number}"))).await;
        }
        let left = service.begin_upload(at(bucket, "left"), new_upload(1)).await.unwrap();
        let listed = service.uploads(in_bucket(bucket)).await.unwrap().entries;
        let [ListedUpload::Upload { info, .. }] = &listed[..] else { panic!("{listed:?}") };
        assert_eq!(info.id, left);
        let table = table_of(&world, &env).await;
        assert_eq!(rows(&table, b'u').await.len(), 1, "rows that a listing reads");
        table.close().await.unwrap();
    });
}

#[test]
fn uploads_that_were_completed_in_the_former_form_are_remembered_for_their_time_and_not_listed() {
    run(|world, service, env| async move {
        let bucket = bucket(&service, "abc").await.id;
        let target = at(bucket, "k");
        let upload = upload_whole(&service, &target).await;
        let table = table_of(&world, &env).await;
        let ends = rows(&table, b'o').await;
        if !ends.is_empty() {
            let mut batch = Batch::new();
            for (key, value) in &ends {
                batch.put(&[b"u", &key[1..]].concat(), value);
                batch.delete(key);
            }
            table.write(&batch).await.unwrap();
        }
        assert_eq!(rows(&table, b'u').await.len(), 1);
        table.close().await.unwrap();
        world.take_over().await.unwrap();
        let info = service.upload(target.clone(), upload).await.unwrap();
        assert!(info.end.is_some(), "{info:?}");
        assert_eq!(service.uploads(in_bucket(bucket)).await.unwrap().entries, []);
        let late = send(&service, &target, (upload, 1), b"late").await;
        assert_eq!(late, Err(Error::NoSuchUpload));
        env.sleep(Duration::from_secs(30)).await;
        assert_eq!(service.upload(target.clone(), upload).await, Err(Error::NoSuchUpload));
        assert_eq!(read(&service, &target).await, b"part");
        let table = table_of(&world, &env).await;
        assert_eq!(rows(&table, b'u').await.len(), 0);
        table.close().await.unwrap();
    });
}

#[test]
fn how_uploads_were_completed_is_forgotten_with_their_bucket_or_behind_their_time() {
    run(|world, service, env| async move {
        for is_removed in [true, false] {
            let bucket = bucket(&service, "abc").await.id;
            let target = at(bucket, "k");
            upload_whole(&service, &target).await;
            service.delete(target.clone(), me(), Conditions::default()).await.unwrap();
            let mut wait = Duration::from_secs(30);
            if is_removed {
                service.remove_bucket(name("abc")).await.unwrap();
                wait = Duration::from_secs(2);
            }
            env.sleep(wait).await;
            let table = table_of(&world, &env).await;
            assert_eq!(rows(&table, b'o').await.len(), 0, "removed: {is_removed}");
            table.close().await.unwrap();
            world.take_over().await.unwrap();
        }
    });
}
