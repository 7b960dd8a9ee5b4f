//! Listings of both versions.

use std::collections::BTreeSet;

use proptest::prelude::*;

use crate::client::{Ask, Bed, Reply};

fn with_keys(keys: &[&str]) -> Bed {
    let bed = Bed::with_bucket();
    for key in keys {
        assert_eq!(bed.put(key, b"hello").status, 200, "{key}");
    }
    bed
}

fn v2(bed: &Bed) -> Ask {
    bed.ask("GET", "/bucket").query("list-type", "2")
}

fn prefixes(reply: &Reply) -> Vec<String> {
    reply
        .fields("CommonPrefixes")
        .iter()
        .map(|text| text.replace("<Prefix>", "").replace("</Prefix>", ""))
        .collect()
}

#[test]
fn a_listing_shows_what_s3_shows() {
    let bed = with_keys(&["a", "b/1", "b/2"]);
    let reply = v2(&bed).query("delimiter", "/").query("fetch-owner", "true").send();
    assert_eq!((reply.fields("Key"), prefixes(&reply)), (vec!["a".into()], vec!["b/".into()]));
    for (name, value) in [
        ("Name", "bucket"),
        ("Prefix", ""),
        ("Delimiter", "/"),
        ("MaxKeys", "1000"),
        ("KeyCount", "2"),
        ("IsTruncated", "false"),
        ("LastModified", "2023-11-14T22:13:20.000Z"),
        ("ETag", "\"5d41402abc4b2a76b9719d911017c592\""),
        ("Size", "5"),
        ("StorageClass", "STANDARD"),
        ("ChecksumAlgorithm", "CRC64NVME"),
        ("ID", "id-admin"),
    ] {
        assert_eq!(reply.field(name), value, "{name}: {}", reply.text());
    }
    assert_eq!(v2(&bed).send().fields("Owner").len(), 0);
    let first = bed.ask("GET", "/bucket").send();
    assert_eq!(first.fields("Owner").len(), 3);
    assert_eq!(first.fields("NextMarker").len(), 0);
}

#[test]
fn pages_of_the_first_version_go_on_behind_a_marker() {
    let bed = with_keys(&["a", "b/1", "b/2", "c"]);
    let page = |marker: &str| {
        bed.ask("GET", "/bucket")
            .query("delimiter", "/")
            .query("max-keys", "1")
            .query("marker", marker)
            .send()
    };
    let first = page("");
    assert_eq!((first.fields("Key"), first.field("NextMarker")), (vec!["a".into()], "a".into()));
    let second = page("a");
    assert_eq!((prefixes(&second), second.field("NextMarker")), (vec!["b/".into()], "b/".into()));
    let third = page("b/");
    assert_eq!(
        (third.fields("Key"), third.field("IsTruncated")),
        (vec!["c".into()], "false".into())
    );
    let plain = bed.ask("GET", "/bucket").query("max-keys", "2").send();
    assert_eq!((plain.field("IsTruncated"), plain.fields("NextMarker").len()), ("true".into(), 0));
}

#[test]
fn names_are_encoded_when_asked_for() {
    let bed = with_keys(&["a b/é+%", "c\u{1}"]);
    let ask = |delimiter: &str| {
        v2(&bed)
            .query("encoding-type", "url")
            .query("delimiter", delimiter)
            .query("start-after", " ")
    };
    let reply = ask("/").send();
    assert_eq!(
        (prefixes(&reply), reply.fields("Key")),
        (vec!["a%20b/".into()], vec!["c%01".into()])
    );
    assert_eq!(
        (reply.field("StartAfter"), reply.field("EncodingType")),
        ("%20".into(), "url".into())
    );
    let reply = ask("é").query("prefix", "a b").send();
    assert_eq!(prefixes(&reply), ["a%20b/%C3%A9"]);
    assert_eq!((reply.field("Delimiter"), reply.field("KeyCount")), ("%C3%A9".into(), "1".into()));
    let plain = v2(&bed).send();
    assert!(plain.text().contains("<Key>c&#x1;</Key>"), "{}", plain.text());
}

#[test]
fn arguments_that_are_none_are_refused() {
    let bed = with_keys(&["a", "b"]);
    for (name, value) in [
        ("max-keys", "-1"),
        ("max-keys", "x"),
        ("max-keys", "2147483648"),
        ("encoding-type", "rot13"),
        ("continuation-token", "?"),
        ("continuation-token", "/w=="),
        ("continuation-token", ""),
    ] {
        let reply = v2(&bed).query(name, value).send();
        assert_eq!(reply.error(), (400, "InvalidArgument".into()), "{name}={value}");
    }
    let none = v2(&bed).query("max-keys", "0").send();
    assert_eq!((none.field("KeyCount"), none.field("IsTruncated")), ("0".into(), "false".into()));
    let most = v2(&bed).query("max-keys", "5000").send();
    assert_eq!((most.field("MaxKeys"), most.fields("Key").len()), ("1000".into(), 2));
}

#[test]
fn short_pages_of_the_backend_end_no_listing() {
    let bed = with_keys(&["a", "b", "c"]);
    bed.model.page_max(Some(1));
    let first = bed.ask("GET", "/bucket").send();
    assert_eq!(
        (first.fields("Key"), first.field("IsTruncated")),
        (vec!["a".into()], "true".into())
    );
    assert_eq!(all_keys(&bed, "", "", 1000).0, ["a", "b", "c"]);
}

/// All keys and common prefixes, by tokens.
fn all_keys(bed: &Bed, prefix: &str, delimiter: &str, max: u32) -> (Vec<String>, Vec<String>) {
    let (mut keys, mut shared) = (Vec::new(), Vec::new());
    let mut token: Option<String> = None;
    loop {
        let mut ask = v2(bed)
            .query("prefix", prefix)
            .query("delimiter", delimiter)
            .query("max-keys", &max.to_string());
        if let Some(token) = &token {
            ask = ask.query("continuation-token", token);
        }
        let reply = ask.send();
        assert_eq!(reply.status, 200, "{}", reply.text());
        let (page_keys, page_shared) = (reply.fields("Key"), prefixes(&reply));
        let count = page_keys.len() + page_shared.len();
        assert!(count <= max as usize);
        assert_eq!(reply.field("KeyCount"), count.to_string());
        keys.extend(page_keys);
        shared.extend(page_shared);
        token = reply.fields("NextContinuationToken").into_iter().next();
        assert_eq!(reply.field("IsTruncated") == "true", token.is_some());
        if token.is_none() {
            return (keys, shared);
        }
    }
}

/// The same, from the set of keys.
fn naive(all: &BTreeSet<String>, prefix: &str, delimiter: &str) -> (Vec<String>, Vec<String>) {
    let (mut keys, mut shared) = (Vec::new(), BTreeSet::new());
    for key in all.iter().filter(|key| key.starts_with(prefix)) {
        match key[prefix.len()..].find(delimiter).filter(|_| !delimiter.is_empty()) {
            Some(at) => _ = shared.insert(key[..prefix.len() + at + delimiter.len()].to_owned()),
            None => keys.push(key.clone()),
        }
    }
    (keys, shared.into_iter().collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn pages_show_each_key_once(
        keys in proptest::collection::btree_set("[ab/é ]{1,5}", 1..12),
        prefix in "[ab/]{0,2}",
        delimiter in "(|/|b|a/|é)",
        max in 1u32..4,
    ) {
        let bed = with_keys(&keys.iter().map(String::as_str).collect::<Vec<_>>());
        let shown = all_keys(&bed, &prefix, &delimiter, max);
        prop_assert_eq!(shown, naive(&keys, &prefix, &delimiter));
    }
}
