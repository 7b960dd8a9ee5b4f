//! Documents of requests: how many elements they may have.

use crate::client::{Bed, Reply};
use crate::multipart::{begin, complete_ask, document};
use crate::objects::delete_many;

fn is_malformed(reply: &Reply) -> bool {
    reply.error() == (400, "MalformedXML".into())
}

#[test]
fn a_completion_names_10_000_parts_at_most() {
    let bed = Bed::with_bucket();
    let id = begin(&bed, "k");
    let complete = |parts: usize| complete_ask(&bed, &id, &vec![(1, "tag"); parts]).send();
    // The parts are read, and then refused for another reason.
    assert_eq!(complete(10_000).error(), (400, "InvalidPartOrder".into()));
    let reply = complete(10_001);
    assert!(is_malformed(&reply), "{}", reply.text());
}

#[test]
fn elements_that_mean_nothing_are_counted_too() {
    let bed = Bed::with_bucket();
    let others = |count: usize| "<Other/>".repeat(count);
    let delete = |count: usize| {
        let others = others(count);
        delete_many(&bed, &format!("<Delete><Object><Key>k</Key></Object>{others}</Delete>"))
    };
    assert_eq!(delete(9_997).status, 200);
    let reply = delete(9_998);
    assert!(is_malformed(&reply), "{}", reply.text());
    let id = begin(&bed, "k");
    let parts = document(&[(1, "tag")]);
    let complete = |count: usize| {
        let body = parts.replace("</Part>", &format!("</Part>{}", others(count)));
        bed.object("POST", "k").query("uploadId", &id).body(body.as_bytes()).send()
    };
    assert_eq!(complete(99_997).error(), (400, "InvalidPart".into()));
    let reply = complete(99_998);
    assert!(is_malformed(&reply), "{}", reply.text());
}

#[test]
fn small_documents_have_no_more_elements_than_large_ones() {
    let bed = Bed::with_bucket();
    assert_eq!(bed.put("k", b"x").status, 200);
    let tag = |number: usize| format!("<Tag><Key>{number}</Key><Value/></Tag>");
    let set = |count: usize| {
        let tags: String = (0..count).map(tag).collect();
        let body = format!("<Tagging><TagSet>{tags}</TagSet></Tagging>");
        bed.object("PUT", "k").query("tagging", "").body(body.as_bytes()).send()
    };
    assert_eq!(set(10).status, 200);
    assert_eq!(set(3_332).error(), (400, "BadRequest".into()));
    let reply = set(3_333);
    assert!(is_malformed(&reply), "{}", reply.text());
}
