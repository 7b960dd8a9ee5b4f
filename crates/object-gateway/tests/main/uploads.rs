//! Listings of parts and of uploads, and what is known of an object's parts.

use crate::client::{Ask, Bed, Reply};
use crate::multipart::{PART, begin, begin_ask, complete_ask, send_part};

fn parts(bed: &Bed, id: &str) -> Ask {
    bed.object("GET", "k").query("uploadId", id)
}

fn uploads(bed: &Bed) -> Ask {
    bed.ask("GET", "/bucket").query("uploads", "")
}

/// Uploads and common prefixes of a page: keys, prefixes.
fn names(reply: &Reply) -> (Vec<String>, Vec<String>) {
    let prefixes = reply.fields("CommonPrefixes");
    let plain = |text: &String| text.replace("<Prefix>", "").replace("</Prefix>", "");
    (reply.fields("Key"), prefixes.iter().map(plain).collect())
}

#[test]
fn parts_are_listed_page_by_page() {
    let bed = Bed::with_bucket();
    let id = begin(&bed, "k");
    assert_eq!(parts(&bed, &id).send().fields("Part").len(), 0);
    for number in [7, 1, 3] {
        send_part(&bed, &id, number, b"hello");
    }
    let all = parts(&bed, &id).send();
    assert_eq!(all.status, 200, "{}", all.text());
    assert_eq!(all.fields("PartNumber"), ["1", "3", "7"]);
    for (name, value) in [
        ("Bucket", "bucket"),
        ("Key", "k"),
        ("UploadId", &*id),
        ("MaxParts", "1000"),
        ("PartNumberMarker", "0"),
        ("NextPartNumberMarker", "7"),
        ("IsTruncated", "false"),
        ("StorageClass", "STANDARD"),
        ("ETag", "\"5d41402abc4b2a76b9719d911017c592\""),
        ("Size", "5"),
        ("LastModified", "2023-11-14T22:13:20.000Z"),
        ("ChecksumCRC64NVME", "M3eFcAZSQlc="),
        ("ID", "id-admin"),
    ] {
        assert_eq!(all.field(name), value, "{name}: {}", all.text());
    }
    let page = parts(&bed, &id).query("max-parts", "2").send();
    assert_eq!(page.fields("PartNumber"), ["1", "3"]);
    assert_eq!(
        (page.field("IsTruncated"), page.field("NextPartNumberMarker")),
        ("true".into(), "3".into())
    );
    let page = parts(&bed, &id).query("part-number-marker", "3").send();
    assert_eq!(page.fields("PartNumber"), ["7"]);
    let none = parts(&bed, &id).query("part-number-marker", "99999").send();
    assert_eq!((none.status, none.fields("Part").len()), (200, 0));
    let none = parts(&bed, &id).query("max-parts", "0").send();
    assert_eq!((none.fields("Part").len(), none.field("IsTruncated")), (0, "false".into()));
    for (name, value) in [("max-parts", "-1"), ("max-parts", "x"), ("part-number-marker", "-1")] {
        let reply = parts(&bed, &id).query(name, value).send();
        assert_eq!(reply.error(), (400, "InvalidArgument".into()), "{name}={value}");
    }
}

#[test]
fn a_completion_reads_all_pages_of_parts() {
    let bed = Bed::with_bucket();
    let id = begin(&bed, "k");
    let tags: Vec<String> =
        (1..=3).map(|number| send_part(&bed, &id, number, &[7; PART])).collect();
    bed.model.page_max(Some(1));
    let named = [(1, &*tags[0]), (2, &*tags[1]), (3, &*tags[2])];
    let reply = complete_ask(&bed, &id, &named).send();
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(bed.object("HEAD", "k").send().header("content-length"), Some("15728640"));
}

#[test]
fn planned_checksums_are_listed() {
    let bed = Bed::with_bucket();
    let id =
        begin_ask(&bed, "k").header("x-amz-checksum-algorithm", "SHA1").send().field("UploadId");
    for reply in [parts(&bed, &id).send(), uploads(&bed).send()] {
        assert_eq!(reply.field("ChecksumAlgorithm"), "SHA1", "{}", reply.text());
        assert_eq!(reply.field("ChecksumType"), "COMPOSITE");
    }
}

#[test]
fn uploads_are_listed_by_key_and_age() {
    let bed = Bed::with_bucket();
    let begun = ["b/2", "a b", "b/1", "c", "c", "a b"].map(|key| begin(&bed, key));
    let all = uploads(&bed).send();
    assert_eq!(all.status, 200, "{}", all.text());
    assert_eq!(all.fields("Key"), ["a b", "a b", "b/1", "b/2", "c", "c"]);
    let sorted = [1, 5, 2, 0, 3, 4].map(|at| begun[at].clone());
    assert_eq!(all.fields("UploadId"), sorted);
    for (name, value) in [
        ("Bucket", "bucket"),
        ("Prefix", ""),
        ("KeyMarker", ""),
        ("UploadIdMarker", ""),
        ("MaxUploads", "1000"),
        ("IsTruncated", "false"),
        ("StorageClass", "STANDARD"),
        ("Initiated", "2023-11-14T22:13:20.000Z"),
        ("ID", "id-admin"),
    ] {
        assert_eq!(all.field(name), value, "{name}: {}", all.text());
    }
    assert_eq!(all.fields("NextKeyMarker").len(), 0);
    let some = uploads(&bed).query("prefix", "b/").send();
    assert_eq!(some.fields("Key"), ["b/1", "b/2"]);
    let shared = uploads(&bed).query("delimiter", "/").query("encoding-type", "url").send();
    let keys = ["a%20b", "a%20b", "c", "c"].map(str::to_owned);
    assert_eq!(names(&shared), (keys.to_vec(), vec!["b/".to_owned()]));
    // An upload that is over is not listed.
    bed.object("DELETE", "c").query("uploadId", &begun[3]).send();
    assert_eq!(uploads(&bed).query("prefix", "c").send().fields("UploadId"), [begun[4].clone()]);
}

#[test]
fn uploads_are_listed_page_by_page() {
    let bed = Bed::with_bucket();
    for key in ["a", "b/1", "b/2", "c", "c", "c", "d"] {
        begin(&bed, key);
    }
    for (delimiter, count) in [("", 7), ("/", 6)] {
        for size in 1..4 {
            let (mut found, mut key, mut upload) = (Vec::new(), String::new(), String::new());
            for _ in 0..10 {
                let page = uploads(&bed)
                    .query("delimiter", delimiter)
                    .query("max-uploads", &size.to_string())
                    .query("key-marker", &key)
                    .query("upload-id-marker", &upload)
                    .send();
                assert_eq!(page.status, 200, "{}", page.text());
                let (keys, prefixes) = names(&page);
                assert!(keys.len() + prefixes.len() <= size);
                found.extend(page.fields("UploadId"));
                found.extend(prefixes);
                (key, upload) = (page.field("NextKeyMarker"), page.field("NextUploadIdMarker"));
                if page.field("IsTruncated") == "false" {
                    break;
                }
            }
            assert_eq!(found.len(), count, "{delimiter} {size}: {found:?}");
            found.sort();
            found.dedup();
            assert_eq!(found.len(), count);
        }
    }
    let behind = uploads(&bed).query("key-marker", "c").send();
    assert_eq!(behind.fields("Key"), ["d"]);
    // Without a key, the upload says nothing.
    assert_eq!(uploads(&bed).query("upload-id-marker", "x").send().fields("Key").len(), 7);
    let flawed = uploads(&bed).query("key-marker", "c").query("upload-id-marker", "x").send();
    assert_eq!(flawed.error(), (400, "InvalidArgument".into()));
    for (name, value) in [("max-uploads", "-1"), ("encoding-type", "x")] {
        let reply = uploads(&bed).query(name, value).send();
        assert_eq!(reply.error(), (400, "InvalidArgument".into()), "{name}={value}");
    }
}

#[test]
fn attributes_of_an_object_are_shown_if_asked_for() {
    let bed = Bed::with_bucket();
    bed.put("plain", b"hello");
    let id = begin(&bed, "k");
    let tags = [(2, PART), (4, 5)].map(|(number, len)| send_part(&bed, &id, number, &vec![7; len]));
    complete_ask(&bed, &id, &[(2, &tags[0]), (4, &tags[1])]).send();
    let ask = |key: &str, names: &str| {
        let ask = bed.object("GET", key).query("attributes", "");
        ask.header("x-amz-object-attributes", names)
    };
    let all = ask("k", "ETag,Checksum, ObjectParts,StorageClass,ObjectSize").send();
    assert_eq!(all.status, 200, "{}", all.text());
    for (name, value) in [
        ("ObjectSize", "5242885"),
        ("StorageClass", "STANDARD"),
        ("ChecksumType", "FULL_OBJECT"),
        ("PartsCount", "2"),
        ("IsTruncated", "false"),
    ] {
        assert_eq!(all.field(name), value, "{name}: {}", all.text());
    }
    // The object's own, and one of each part: what a put of the part's bytes has.
    let sums = all.fields("ChecksumCRC64NVME");
    let of_part = |len: usize| {
        let put = bed.put("part", &vec![7; len]);
        put.header("x-amz-checksum-crc64nvme").expect("a checksum").to_owned()
    };
    assert_eq!(sums[1..], [of_part(PART), of_part(5)], "{}", all.text());
    for (number, sum) in [("2", &sums[1]), ("4", &sums[2])] {
        for method in ["GET", "HEAD"] {
            let part = bed.object(method, "k").query("partNumber", number);
            assert_eq!(part.clone().send().header("x-amz-checksum-crc64nvme"), None);
            let part = part.header("x-amz-checksum-mode", "ENABLED").send();
            assert_eq!(part.header("x-amz-checksum-crc64nvme"), Some(sum.as_str()), "{method}");
            assert_eq!(part.header("x-amz-checksum-type"), Some("FULL_OBJECT"));
        }
    }
    let tag = bed.object("HEAD", "k").send().header("etag").expect("a tag").to_owned();
    assert_eq!(all.field("ETag"), tag.trim_matches('"'), "as in S3, without quotes");
    assert_eq!(all.fields("PartNumber"), ["2", "4"]);
    assert_eq!(all.fields("Size"), ["5242880", "5"]);
    let page = ask("k", "ObjectParts").header("x-amz-max-parts", "1").send();
    assert_eq!(
        (page.fields("PartNumber"), page.field("IsTruncated")),
        (vec!["2".into()], "true".into())
    );
    let page = ask("k", "ObjectParts").header("x-amz-part-number-marker", "2").send();
    assert_eq!(page.fields("PartNumber"), ["4"]);
    let plain = ask("plain", "Checksum,ObjectParts").send();
    assert_eq!(plain.field("ChecksumCRC64NVME"), "M3eFcAZSQlc=");
    assert_eq!((plain.fields("ETag").len(), plain.fields("ObjectParts").len()), (0, 0));
    assert_eq!(ask("k", "Other").send().error(), (400, "InvalidArgument".into()));
    assert_eq!(ask("none", "ETag").send().error(), (404, "NoSuchKey".into()));
}
