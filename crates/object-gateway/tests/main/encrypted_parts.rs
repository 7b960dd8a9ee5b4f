//! Encryption of objects that are made of parts.

use object_proto::FRAME_BYTES;

use crate::client::{Ask, Bed, UNSIGNED};
use crate::encryption::{A, B, KINDS, KMS_KEY, Kind, SSE, content, open_bed, with_key};
use crate::multipart::{PART, begin_ask, document};

fn begin(bed: &Bed, kind: Kind) -> String {
    let begun = kind.of_new(begin_ask(bed, "k")).header("x-amz-meta-a", "b").send();
    assert_eq!(begun.status, 200, "{kind:?}: {}", begun.text());
    kind.check(&begun);
    begun.field("UploadId")
}

fn part_ask(bed: &Bed, id: &str, number: u32) -> Ask {
    bed.object("PUT", "k").query("uploadId", id).query("partNumber", &number.to_string())
}

#[test]
fn an_object_of_each_kind_is_made_of_parts_and_copied_parts() {
    let bed = open_bed();
    let source = content(PART + 300);
    for from in KINDS {
        assert_eq!(from.of_new(bed.object("PUT", "from")).body(&source).send().status, 200);
        for kind in KINDS {
            let id = begin(&bed, kind);
            let first = content(PART + 17);
            let sent = kind.of_read(part_ask(&bed, &id, 3)).body(&first).payload(UNSIGNED).send();
            assert_eq!(sent.status, 200, "{kind:?}: {}", sent.text());
            kind.check(&sent);
            let range = "bytes=100-5242979";
            let copied = part_ask(&bed, &id, 7)
                .header("x-amz-copy-source", "bucket/from")
                .header("x-amz-copy-source-range", range);
            let copied = match from {
                Kind::Customer => with_key(copied, "x-amz-copy-source-", A),
                _ => copied,
            };
            let copied = kind.of_read(copied).send();
            assert_eq!(copied.status, 200, "{from:?} to {kind:?}: {}", copied.text());
            kind.check(&copied);
            let last = content(FRAME_BYTES);
            let end = kind.of_read(part_ask(&bed, &id, 9)).body(&last).payload(UNSIGNED).send();
            let listed = bed.object("GET", "k").query("uploadId", &id).send();
            let sizes = [first.len(), PART, last.len()].map(|len| len.to_string());
            assert_eq!(listed.fields("Size"), sizes, "{kind:?}");
            let tags = [
                sent.header("etag").expect("a tag").to_owned(),
                copied.field("ETag"),
                end.header("etag").expect("a tag").to_owned(),
            ];
            let named = [(3, &*tags[0]), (7, &*tags[1]), (9, &*tags[2])];
            let complete = bed.object("POST", "k").query("uploadId", &id);
            let size = (first.len() + PART + last.len()).to_string();
            let complete = complete.header("x-amz-mp-object-size", &size);
            // A completion needs no key of a client.
            let made = complete.body(document(&named).as_bytes()).send();
            assert_eq!(made.status, 200, "{kind:?}: {}", made.text());
            if kind != Kind::Customer {
                kind.check(&made);
            }
            let whole = [&first[..], &source[100..PART + 100], &last[..]].concat();
            let get = || kind.of_read(bed.object("GET", "k"));
            let got = get().header("x-amz-checksum-mode", "ENABLED").send();
            assert!(got.body == whole, "{from:?} to {kind:?}");
            kind.check(&got);
            assert_eq!(got.header("etag"), Some(made.field("ETag").as_str()));
            assert_eq!(got.header("x-amz-meta-a"), Some("b"));
            // The checksum is that of the plain text: a put of it has the same.
            let sum = got.header("x-amz-checksum-crc64nvme").expect("a checksum").to_owned();
            let once = bed.put("once", &whole);
            assert_eq!(once.header("x-amz-checksum-crc64nvme"), Some(sum.as_str()), "{kind:?}");
            let part = get().query("partNumber", "2").send();
            assert_eq!(part.status, 416, "{kind:?}: there is no part of that number");
            let part = get().query("partNumber", "7").send();
            assert!(part.body == source[100..PART + 100], "{kind:?}");
            assert_eq!(part.header("x-amz-mp-parts-count"), Some("3"));
            // A range over all parts, and one that ends in the second.
            for (from, to) in [(PART - 5, whole.len() - 7), (PART + 16, PART + 20)] {
                let range = format!("bytes={from}-{}", to - 1);
                let got = get().header("range", &range).send();
                assert!(got.body == whole[from..to], "{kind:?} {range}");
            }
            let (info, stored) = bed.model.object("k").expect("an object");
            assert_eq!(info.object.size, stored.len() as u64);
            assert_eq!(stored == whole, kind == Kind::Plain);
            let facts = kind.of_read(bed.object("GET", "k").query("attributes", ""));
            let facts = facts.header("x-amz-object-attributes", "ObjectSize,ObjectParts").send();
            assert_eq!(facts.field("ObjectSize"), whole.len().to_string());
            assert_eq!(facts.fields("Size"), sizes);
        }
    }
}

#[test]
fn parts_come_with_the_key_that_the_upload_was_begun_with() {
    let bed = open_bed();
    let id = begin(&bed, Kind::Customer);
    let ask = || part_ask(&bed, &id, 1).body(b"part");
    let invalid = (400, "InvalidRequest".to_owned());
    assert_eq!(ask().send().error(), invalid, "without a key");
    assert_eq!(with_key(ask(), "x-amz-", B).send().error(), invalid, "another key");
    let wrong = with_key(ask(), "x-amz-", (A.0, B.1)).send();
    assert_eq!(wrong.error(), (400, "InvalidArgument".into()));
    assert_eq!(with_key(ask(), "x-amz-", A).send().status, 200);
    for kind in [Kind::Plain, Kind::S3, Kind::Kms] {
        let id = begin(&bed, kind);
        let ask = || part_ask(&bed, &id, 1).body(b"part");
        assert_eq!(with_key(ask(), "x-amz-", A).send().error(), invalid, "{kind:?}");
        // What else a part asks for says nothing: the upload was asked.
        let sent = ask().header(SSE, "aws:kms").header(KMS_KEY, "none").send();
        assert_eq!(sent.status, 200, "{kind:?}: {}", sent.text());
        kind.check(&sent);
    }
}

#[test]
fn parts_that_are_exchanged_or_changed_are_refused() {
    let bed = open_bed();
    let parts = [content(PART), content(PART + 1)[1..].to_vec()];
    for kind in [Kind::S3, Kind::Kms, Kind::Customer] {
        let id = begin(&bed, kind);
        let tags = [0, 1].map(|at| {
            let ask = kind.of_read(part_ask(&bed, &id, at as u32 + 1)).payload(UNSIGNED);
            ask.body(&parts[at]).send().header("etag").expect("a tag").to_owned()
        });
        let complete = bed.object("POST", "k").query("uploadId", &id);
        let named = document(&[(1, &tags[0]), (2, &tags[1])]);
        assert_eq!(complete.body(named.as_bytes()).send().status, 200);
        let get = || kind.of_read(bed.object("GET", "k")).header("range", "bytes=0-9").send();
        assert_eq!(get().status, 206);
        bed.model.change("k", |_, stored| {
            let half = stored.len() / 2;
            stored.rotate_left(half);
        });
        assert_eq!(get().error(), (500, "InternalError".into()), "{kind:?}");
    }
}
