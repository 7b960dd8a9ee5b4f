//! Quotas: what has no room is refused before it is stored, and what makes room is not.

use std::io::{Read, Write};

use object_proto::{Quota, Setting};

use crate::client::{Bed, Reply, read_reply};
use crate::copies::copy_ask;
use crate::forms::form;
use crate::multipart::{begin, begin_ask, complete_ask, send_part};

fn bound(bed: &Bed, objects: Option<u64>, bytes: Option<u64>) {
    bed.model.set("bucket", Setting::Quota(Quota { objects, bytes }));
}

fn put(bed: &Bed, key: &str, len: usize) -> Reply {
    bed.object("PUT", key).body(&vec![b'x'; len]).send()
}

fn refused(reply: &Reply, left: &str) {
    assert_eq!(reply.error(), (403, "QuotaExceeded".to_owned()), "{}", reply.text());
    assert!(reply.text().contains(&format!("leaves room for {left}<")), "{}", reply.text());
}

#[test]
fn what_would_be_above_a_quota_is_refused_and_not_stored() {
    let bed = Bed::with_bucket();
    assert_eq!(put(&bed, "a", 100).status, 200);
    bound(&bed, Some(3), Some(1000));
    refused(&put(&bed, "b", 901), "2 objects and 900 bytes");
    assert_eq!(bed.object("HEAD", "b").send().status, 404);
    assert_eq!(put(&bed, "b", 900).status, 200);
    refused(&put(&bed, "c", 1), "1 objects and 0 bytes");
    // An empty one needs no bytes.
    assert_eq!(put(&bed, "c", 0).status, 200);
    refused(&put(&bed, "d", 0), "0 objects and 0 bytes");

    bound(&bed, Some(3), None);
    refused(&copy_ask(&bed, "/bucket/a", "d").send(), "0 objects");
    refused(&begin_ask(&bed, "d").send(), "0 objects");
    refused(&form("d").file("f", b"hello").send(&bed), "0 objects");
    // Deletions make room, and reads need none.
    assert_eq!(bed.object("GET", "a").send().status, 200);
    assert_eq!(bed.object("DELETE", "c").send().status, 204);
    assert_eq!(copy_ask(&bed, "/bucket/a", "d").send().status, 200);
}

/// Each of them fits while it is being sent.
#[test]
fn of_two_that_are_sent_together_the_one_that_does_not_fit_any_more_is_refused() {
    let bed = Bed::with_bucket();
    bound(&bed, None, Some(1000));
    let id = begin(&bed, "k");
    let part = bed.object("PUT", "k").query("uploadId", &id).query("partNumber", "1");
    for (key, ask) in [("a", bed.object("PUT", "a")), ("k", part)] {
        let bytes = ask.header("expect", "100-continue").body(&[b'x'; 600]).bytes();
        let (head, body) = bytes.split_at(bytes.len() - 600);
        let mut stream = bed.connect();
        stream.write_all(head).expect("sent");
        // The gateway has let it in when it asks for the body.
        let mut line = [0; 25];
        stream.read_exact(&mut line).expect("an answer");
        assert_eq!(put(&bed, "other", 600).status, 200);
        stream.write_all(body).expect("sent");
        refused(&read_reply(&mut stream, false).expect("an answer"), "400 bytes");
        assert_eq!(bed.object("HEAD", key).send().status, 404);
        assert_eq!(bed.object("DELETE", "other").send().status, 204);
    }
}

#[test]
fn a_form_is_refused_by_what_its_file_has() {
    let bed = Bed::with_bucket();
    bound(&bed, None, Some(6));
    assert_eq!(form("five").file("f", b"hello").send(&bed).status, 204);
    refused(&form("two").file("f", b"hi").send(&bed), "1 bytes");
    assert_eq!(bed.object("HEAD", "two").send().status, 404);
    assert_eq!(form("one").file("f", b"!").send(&bed).status, 204);
}

#[test]
fn parts_are_held_to_the_quota_and_their_completion_is_not() {
    let bed = Bed::with_bucket();
    let id = begin(&bed, "k");
    bound(&bed, Some(1), Some(6));
    let part = |number, body: &[u8]| {
        let ask = bed.object("PUT", "k").query("uploadId", &id);
        ask.query("partNumber", number).body(body).send()
    };
    refused(&part("1", b"sevens!"), "1 objects and 6 bytes");
    let etag = send_part(&bed, &id, 1, b"hello");
    bound(&bed, Some(0), Some(0));
    refused(&part("2", b"x"), "0 objects and 0 bytes");
    let done = complete_ask(&bed, &id, &[(1, &etag)]).send();
    assert_eq!(done.status, 200, "{}", done.text());
}
