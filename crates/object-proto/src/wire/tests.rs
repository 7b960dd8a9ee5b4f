//! Messages read back, any bytes are refused or read, and each message has one form.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::fs;
use std::path::Path;

use proptest::prelude::*;
use wire::control::Policy;

use super::page_tests::numbers;
use super::samples::*;
use super::*;
use crate::ids::{RangeId, UserId};

#[test]
fn settings_have_one_form() {
    assert_eq!(BucketSettings::default().encode(), [0]);
    assert_eq!(all_settings().chosen(), settings());
    let policy = Setting::Policy(Some("p".into()));
    let tags = Setting::Tags([("a".to_owned(), "1".to_owned())].into());
    let list = |list: &[Setting]| {
        let mut out = Vec::new();
        put_list(&mut out, list);
        BucketSettings::decode(&out)
    };
    assert!(list(&[policy.clone(), tags.clone()]).is_some());
    assert_eq!(list(&[tags, policy.clone()]), None, "another order");
    assert_eq!(list(&[policy.clone(), policy]), None, "twice");
    assert_eq!(list(&[Setting::Policy(None)]), None, "as in a new bucket");
    assert_eq!(list(&[Setting::Lifecycle(None)]), None, "as in a new bucket");
    assert_eq!(list(&[Setting::Storage(StorageRule::default())]), None, "as in a new bucket");
    let no_code = StorageRule { durability: Some(Policy::plain(6, 1)), compression: None };
    assert_eq!(list(&[Setting::Storage(no_code)]), None, "no policy");
    for part in parts_of_settings() {
        assert_eq!(list(&[part]), None, "a change alone, which rows do not have");
    }
}

/// What a change of a part makes of settings, spelled out.
fn with_part(before: &BucketSettings, part: Setting) -> BucketSettings {
    let BucketSettings { encryption, storage, quota, public_access, .. } = before.clone();
    let all = before.clone();
    match part {
        Setting::DefaultEncryption(default) => {
            BucketSettings { encryption: BucketEncryption { default, ..encryption }, ..all }
        }
        Setting::CustomerKeysBlocked(blocks_customer_keys) => {
            let encryption = BucketEncryption { blocks_customer_keys, ..encryption };
            BucketSettings { encryption, ..all }
        }
        Setting::Durability(durability) => {
            BucketSettings { storage: StorageRule { durability, ..storage }, ..all }
        }
        Setting::Compression(compression) => {
            BucketSettings { storage: StorageRule { compression, ..storage }, ..all }
        }
        Setting::QuotaObjects(objects) => {
            BucketSettings { quota: Quota { objects, ..quota }, ..all }
        }
        Setting::QuotaBytes(bytes) => BucketSettings { quota: Quota { bytes, ..quota }, ..all },
        Setting::PublicPoliciesBlocked(blocked) => {
            let public_access =
                PublicAccess { block_policy: blocked, restrict: blocked, ..public_access };
            BucketSettings { public_access, ..all }
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn part_of_a_setting_is_changed_alone() {
    let open = BucketSettings { public_access: PublicAccess::all(false), ..all_settings() };
    for part in parts_of_settings() {
        for before in [BucketSettings::default(), all_settings(), open.clone()] {
            let mut settings = before.clone();
            settings.set(part.clone());
            assert_eq!(settings, with_part(&before, part.clone()), "{part:?}");
        }
    }
}

/// As of two operators who have read the same settings before.
#[test]
fn changes_of_different_parts_of_a_setting_both_survive() {
    let variant = |setting: &Setting| encode(setting)[0];
    for one in parts_of_settings() {
        for other in parts_of_settings() {
            if variant(&one) == variant(&other) {
                continue;
            }
            let behind = with_part(&with_part(&all_settings(), one.clone()), other.clone());
            for changes in [[&one, &other], [&other, &one]] {
                let mut settings = all_settings();
                changes.into_iter().for_each(|change| settings.set(change.clone()));
                assert_eq!(settings, behind, "{changes:?}");
            }
        }
    }
}

#[test]
fn bound_of_a_users_quota_is_changed_alone() {
    let user = || UserId::new("u");
    let before = Quota { objects: Some(1), bytes: Some(2) };
    for bound in [None, Some(0), Some(9)] {
        let objects = UserChange::SetQuotaObjects { user: user(), objects: bound };
        assert_eq!(objects.quota(before), Some(Quota { objects: bound, ..before }));
        let bytes = UserChange::SetQuotaBytes { user: user(), bytes: bound };
        assert_eq!(bytes.quota(before), Some(Quota { bytes: bound, ..before }));
        assert!([objects, bytes].iter().all(|change| *change.user() == user()));
    }
    let all = UserChange::SetQuota { user: user(), quota: Quota::default() };
    assert_eq!(all.quota(before), Some(Quota::default()));
    assert_eq!(UserChange::SetPolicy { user: user(), policy: None }.quota(before), None);
}

/// Reads back, and neither a part of it nor more than it is one.
fn check<T: Field + PartialEq + Debug>(value: &T) {
    let bytes = encode(value);
    assert_eq!(decode::<T>(&bytes).as_ref(), Some(value));
    for end in 0..bytes.len() {
        assert_eq!(decode::<T>(&bytes[..end]), None, "{end} bytes of {value:?}");
    }
    assert_eq!(decode::<T>(&[&bytes[..], &[0]].concat()), None, "with more: {value:?}");
}

#[test]
fn messages_read_back() {
    all_requests().iter().for_each(check);
    all_answers().iter().for_each(check);
    let place = RangePlace { range: RangeId::new(3), first: bound() };
    assert_eq!(place.encoded_len(), encode(&place).len());
}

/// A message that is new has to have a sample: else neither the tests above nor the corpus have it.
#[test]
fn each_variant_has_a_sample() {
    let mut samples: BTreeMap<&str, BTreeSet<u8>> = BTreeMap::new();
    let mut note = |name, bytes: Vec<u8>| samples.entry(name).or_default().insert(bytes[0]);
    for request in &all_requests() {
        match request {
            Request::Range(_, request) => note("RangeRequest", encode(request)),
            Request::Catalog(request) => note("CatalogRequest", encode(request)),
            Request::Server(request) => note("ServerRequest", encode(request)),
        };
        match request {
            Request::Range(_, RangeRequest::Change { change, .. }) => {
                note("Change", encode(change));
            }
            Request::Catalog(CatalogRequest::ChangeUser { change, .. }) => {
                note("UserChange", encode(change));
            }
            Request::Catalog(CatalogRequest::SetBucket { setting, .. }) => {
                note("Setting", encode(setting));
            }
            _ => {}
        }
    }
    for answer in &all_answers() {
        match answer {
            Ok(Reply::Range(reply)) => note("RangeReply", encode(reply)),
            Ok(Reply::Catalog(reply)) => note("CatalogReply", encode(reply)),
            Ok(Reply::Server) => continue,
            Err(error) => note("Error", encode(error)),
        };
    }
    assert_eq!(samples.len(), 9);
    for (name, found) in samples {
        assert_eq!(found, numbers(name), "{name}");
    }
}

#[test]
fn texts_that_are_no_names_are_refused() {
    let bytes = Request::Catalog(CatalogRequest::Key("abc".into())).encode();
    let as_bucket = [&[1, 5], &bytes[2..]].concat();
    assert!(Request::decode(&as_bucket).is_some());
    let upper = as_bucket.iter().map(|byte| if *byte == b'b' { b'B' } else { *byte });
    assert_eq!(Request::decode(&upper.collect::<Vec<_>>()), None);
    assert_eq!(Request::decode(&[1, 8, 1, 0xff]), None, "it is no UTF-8");
}

/// The corpus of the fuzz target: the tests write nothing; `OBJECT_WRITE_CORPUS=1` writes it again. It has a third
/// of the first messages, and all that came later.
#[test]
fn the_corpus_is_what_this_version_writes() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let asked = |request: Request| [vec![0], request.encode()];
    let answered = |answer: Result<Reply, Error>| [vec![1], encode_answer(&answer)];
    let first = requests().into_iter().step_by(3).map(asked);
    let first = first.chain(answers().into_iter().step_by(3).map(answered));
    let later = later_requests().into_iter().map(asked);
    let later = later.chain(later_answers().into_iter().map(answered));
    for (index, bytes) in first.chain(later).enumerate() {
        let (path, bytes) = (dir.join(format!("message-{index:02}")), bytes.concat());
        crate::fuzz::fuzz_object_message(&bytes);
        if std::env::var_os("OBJECT_WRITE_CORPUS").is_some() {
            fs::create_dir_all(&dir).expect("a directory");
            fs::write(&path, &bytes).expect("it is written");
        }
        assert_eq!(fs::read(&path).expect("it is there"), bytes, "{index} was written differently");
    }
}

/// The bytes of messages do not change without a word: processes of two versions talk to each other.
#[test]
fn the_bytes_are_these() {
    let hex = |bytes: Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let look = RangeRequest::Look { target: target(), version: None };
    let look = Request::Range(RangeId::new(3), look);
    assert_eq!(hex(look.encode()), "0003000000000000000107000000000000000561002fc3a400");
    let (by, conditions) = (UserId::new("me"), Conditions::default());
    let delete = Change::Delete { target: target(), nonce: 300, by, conditions };
    let delete = RangeRequest::Change { head: head(), change: delete };
    let delete = Request::Range(RangeId::new(3), delete);
    let bytes = "00030000000000000000ffffffffffffffff01ffffffff0f00ac02808080808020808080808040ffffffffffffffffff01\
                 0107000000000000000561002fc3a4ac02026d65000000";
    assert_eq!(hex(delete.encode()), bytes);
    let answer = encode_answer(&Err(Error::NoSuchPart { number: 300 }));
    assert_eq!(hex(answer), "0006ac02");
}

proptest! {
    #[test]
    fn any_bytes_are_refused_or_have_one_form(bytes: Vec<u8>, like in 0usize..1000, at in 0usize..400, byte: u8) {
        crate::fuzz::fuzz_object_message(&bytes);
        // Near to what is one.
        let requests = all_requests();
        let mut near = requests[like % requests.len()].encode();
        let place = at % near.len();
        near[place] = byte;
        crate::fuzz::fuzz_object_message(&[&[0][..], &near].concat());
        let answers = all_answers();
        let mut near = encode_answer(&answers[like % answers.len()]);
        let place = at % near.len();
        near[place] = byte;
        crate::fuzz::fuzz_object_message(&[&[1][..], &near].concat());
    }
}
