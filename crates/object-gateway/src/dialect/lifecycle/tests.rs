//! Documents of rules: what S3 takes, refuses and shows.

use std::collections::BTreeMap;

use object_proto::{
    CurrentExpiry, FilterForm, Lifecycle, LifecycleFilter, LifecycleRule, NoncurrentExpiry,
};
use proptest::prelude::*;
use s3s::dto::BucketLifecycleConfiguration;
use s3s::xml::{Deserialize, Deserializer, Serialize, Serializer};
use s3s::{S3Error, S3ErrorCode, S3Result};

use super::{lifecycle_of, shown_rules};

/// Reads a document as the operation does.
fn read(text: &[u8]) -> S3Result<Lifecycle> {
    let malformed = |_| S3Error::new(S3ErrorCode::MalformedXML);
    let mut xml = Deserializer::new(text);
    let document = BucketLifecycleConfiguration::deserialize(&mut xml).map_err(malformed)?;
    xml.expect_eof().map_err(malformed)?;
    let mut count = 0;
    lifecycle_of(document, || {
        count += 1;
        Ok(format!("new-{count}"))
    })
}

fn document(rules: &str) -> String {
    format!("<LifecycleConfiguration>{rules}</LifecycleConfiguration>")
}

/// A rule with an action, and what else is said.
fn rule(said: &str) -> String {
    document(&format!("<Rule><Status>Enabled</Status>{said}</Rule>"))
}

fn code(text: &str) -> String {
    read(text.as_bytes())
        .map_or_else(|refused| refused.code().as_str().to_owned(), |_| String::new())
}

const DAYS: &str = "<Expiration><Days>1</Days></Expiration>";
const ABORT: &str = "<AbortIncompleteMultipartUpload><DaysAfterInitiation>1</DaysAfterInitiation></AbortIncompleteMultipartUpload>";
const NEWER: &str = "<NoncurrentVersionExpiration><NoncurrentDays>3</NoncurrentDays>\
                     <NewerNoncurrentVersions>100</NewerNoncurrentVersions></NoncurrentVersionExpiration>";
const LONE: &str =
    "<Expiration><ExpiredObjectDeleteMarker>true</ExpiredObjectDeleteMarker></Expiration>";
const TAG: &str = "<Tag><Key>a</Key><Value>1</Value></Tag>";

fn filter(said: &str) -> String {
    format!("<Filter>{said}</Filter>")
}

#[test]
fn what_s3_refuses_is_refused_with_its_code() {
    let expiration = |said: &str| rule(&format!("<Prefix/><Expiration>{said}</Expiration>"));
    let noncurrent = |said: &str| {
        rule(&format!("<Prefix/><NoncurrentVersionExpiration>{said}</NoncurrentVersionExpiration>"))
    };
    let of_filter = |said: &str, action: &str| rule(&(filter(said) + action));
    let and = |said: &str| format!("<And>{said}</And>");
    let more = |bytes: &str| format!("<ObjectSizeGreaterThan>{bytes}</ObjectSizeGreaterThan>");
    let less = |bytes: &str| format!("<ObjectSizeLessThan>{bytes}</ObjectSizeLessThan>");
    let of_id =
        |id: &str| format!("<Rule><ID>{id}</ID><Status>Enabled</Status><Prefix/>{DAYS}</Rule>");
    let of_status =
        |status: &str| document(&format!("<Rule><Status>{status}</Status><Prefix/>{DAYS}</Rule>"));
    let long = "p".repeat(1025);
    for (text, refused) in [
        (document(""), "MalformedXML"),
        (document(&of_id("").repeat(1001)), "MalformedXML"),
        (document(&of_id("").repeat(1000)), ""),
        (document(&of_id(&"i".repeat(255))), ""),
        (document(&of_id(&"i".repeat(256))), "InvalidArgument"),
        (document(&(of_id("a") + &of_id("b"))), ""),
        (document(&(of_id("a") + &of_id("a"))), "InvalidArgument"),
        (of_status("Disabled"), ""),
        (of_status("enabled"), "MalformedXML"),
        (rule(DAYS), "MalformedXML"),
        (rule("<Prefix/>"), "InvalidRequest"),
        (rule(&format!("<Prefix/>{}{DAYS}", filter(""))), "MalformedXML"),
        (expiration("<Days>0</Days>"), "InvalidArgument"),
        (expiration("<Days>-1</Days>"), "InvalidArgument"),
        (expiration("<Days>2147483648</Days>"), "MalformedXML"),
        (expiration(""), "MalformedXML"),
        (expiration("<Days>1</Days><Date>2030-01-01T00:00:00Z</Date>"), "MalformedXML"),
        (expiration("<Date>2030-01-01T00:00:00Z</Date>"), ""),
        (expiration("<Date>2015-01-01T00:00:00.000Z</Date>"), ""),
        (expiration("<Date>2030-01-01T00:00:01Z</Date>"), "InvalidArgument"),
        (expiration("<Date>2030-01-01T00:00:00+01:00</Date>"), "InvalidArgument"),
        (expiration("<Date>20300101</Date>"), "MalformedXML"),
        (
            expiration("<Days>1</Days><ExpiredObjectDeleteMarker>true</ExpiredObjectDeleteMarker>"),
            "MalformedXML",
        ),
        (expiration("<Days>1</Days><Days>1</Days>"), "MalformedXML"),
        (expiration("<Days>1</Days><Other/>"), "MalformedXML"),
        (noncurrent("<NoncurrentDays>3</NoncurrentDays>"), ""),
        (noncurrent("<NoncurrentDays>0</NoncurrentDays>"), "InvalidArgument"),
        (noncurrent("<NewerNoncurrentVersions>1</NewerNoncurrentVersions>"), "MalformedXML"),
        (
            noncurrent(
                "<NoncurrentDays>3</NoncurrentDays><NewerNoncurrentVersions>100</NewerNoncurrentVersions>",
            ),
            "InvalidRequest",
        ),
        (of_filter("", NEWER), ""),
        (of_filter(&and(""), DAYS), "MalformedXML"),
        (of_filter(&and("<Prefix>a</Prefix>"), DAYS), "MalformedXML"),
        (of_filter(&and(TAG), DAYS), ""),
        (
            noncurrent(
                "<NoncurrentDays>3</NoncurrentDays><NewerNoncurrentVersions>101</NewerNoncurrentVersions>",
            ),
            "InvalidArgument",
        ),
        (
            noncurrent(
                "<NoncurrentDays>3</NoncurrentDays><NewerNoncurrentVersions>0</NewerNoncurrentVersions>",
            ),
            "InvalidArgument",
        ),
        (rule(&format!("<Prefix/>{ABORT}")), ""),
        (rule("<Prefix/><AbortIncompleteMultipartUpload/>"), "MalformedXML"),
        (
            rule(
                "<Prefix/><AbortIncompleteMultipartUpload><DaysAfterInitiation>0</DaysAfterInitiation></AbortIncompleteMultipartUpload>",
            ),
            "InvalidArgument",
        ),
        (of_filter(TAG, DAYS), ""),
        (of_filter(TAG, ABORT), "InvalidRequest"),
        (of_filter(&less("9"), ABORT), "InvalidRequest"),
        (of_filter(TAG, LONE), "InvalidRequest"),
        (of_filter(&less("9"), LONE), ""),
        (of_filter("", LONE), ""),
        (of_filter(&format!("<Prefix/>{TAG}"), DAYS), ""),
        (of_filter(&format!("<Prefix>a</Prefix>{TAG}"), DAYS), "MalformedXML"),
        (of_filter(&(TAG.to_owned() + &less("9")), DAYS), "MalformedXML"),
        (of_filter(&(and(&more("1")) + TAG), DAYS), "MalformedXML"),
        (of_filter(&and(&format!("<Prefix>a</Prefix>{TAG}")), DAYS), ""),
        (of_filter(&and(&TAG.repeat(2)), DAYS), "InvalidRequest"),
        (of_filter(&and(&(more("9") + &less("10"))), DAYS), ""),
        (of_filter(&and(&(more("9") + &less("9"))), DAYS), "InvalidRequest"),
        (of_filter(&more("-1"), DAYS), "InvalidArgument"),
        (of_filter(&less("0"), DAYS), "InvalidArgument"),
        (of_filter("<Tag><Key></Key><Value>1</Value></Tag>", DAYS), "InvalidTag"),
        (of_filter("<Tag><Key>a</Key></Tag>", DAYS), "MalformedXML"),
        (of_filter(&format!("<Prefix>{long}</Prefix>"), DAYS), "InvalidRequest"),
        (
            rule(&format!(
                "<Prefix/>{DAYS}<Transition><Days>0</Days><StorageClass>GLACIER</StorageClass></Transition>"
            )),
            "NotImplemented",
        ),
        (
            rule(
                "<Prefix/><NoncurrentVersionTransition><NoncurrentDays>1</NoncurrentDays><StorageClass>GLACIER</StorageClass></NoncurrentVersionTransition>",
            ),
            "NotImplemented",
        ),
        (
            document(&format!(
                "{}<Rule><Status>Enabled</Status>{}{DAYS}</Rule>",
                of_id("a"),
                filter("")
            )),
            "InvalidRequest",
        ),
        ("<LifecycleConfiguration>".to_owned(), "MalformedXML"),
        ("<Other/>".to_owned(), "MalformedXML"),
    ] {
        let shown: String = text.chars().take(300).collect();
        assert_eq!(code(&text), refused, "{shown}");
    }
}

#[test]
fn rules_without_an_id_get_one_that_no_other_has() {
    let of = |id: &str| format!("<Rule>{id}<Status>Enabled</Status><Prefix/>{DAYS}</Rule>");
    let text = document(&(of("<ID>new-2</ID>") + &of("") + &of("<ID/>")));
    let rules = read(text.as_bytes()).expect("rules").rules;
    let ids: Vec<&str> = rules.iter().map(|rule| rule.id.as_str()).collect();
    assert_eq!(ids, ["new-2", "new-1", "new-3"]);
}

fn filters() -> impl Strategy<Value = LifecycleFilter> {
    let tags = prop::collection::btree_map("[a-zä]{1,3}", "[<&a-z]{0,3}", 0..4);
    let prefix = prop::option::of("[a-z/<&é]{0,5}");
    let forms = prop::sample::select(vec![FilterForm::Rule, FilterForm::Plain, FilterForm::And]);
    (forms, prefix, tags, prop::option::of(0u64..50), prop::option::of(51u64..1 << 60), 0u8..4)
        .prop_map(|(form, prefix, tags, larger, smaller, one)| {
            let of = |tags, larger, smaller| LifecycleFilter {
                form,
                prefix: None,
                tags,
                larger,
                smaller,
            };
            let none = BTreeMap::new;
            match form {
                FilterForm::Rule => LifecycleFilter {
                    prefix: Some(prefix.unwrap_or_default()),
                    ..of(none(), None, None)
                },
                FilterForm::Plain => match one {
                    0 => LifecycleFilter { prefix, ..of(none(), None, None) },
                    1 => of(tags.into_iter().take(1).collect(), None, None),
                    2 => of(none(), larger, None),
                    _ => of(none(), None, smaller),
                },
                FilterForm::And => LifecycleFilter { prefix, ..of(tags, larger, smaller) },
            }
        })
}

fn rules(form_is_rule: bool) -> impl Strategy<Value = LifecycleRule> {
    let current = prop::option::of(prop_oneof![
        (1u32..1 << 31).prop_map(CurrentExpiry::Days),
        (0u64..100_000).prop_map(|day| CurrentExpiry::Date(day * 86_400_000_000)),
        Just(CurrentExpiry::LoneMarkers),
    ]);
    let noncurrent = prop::option::of(
        (1u32..1 << 31, 0u32..=100).prop_map(|(days, newer)| NoncurrentExpiry { days, newer }),
    );
    let abort_days = prop::option::of(1u32..1 << 31);
    (any::<bool>(), filters(), current, noncurrent, abort_days)
        .prop_map(|(enabled, filter, current, noncurrent, abort_days)| {
            let (id, filter) = (String::new(), filter);
            LifecycleRule { id, enabled, filter, current, noncurrent, abort_days }
        })
        .prop_filter("S3 takes it", move |rule| {
            let has_sizes = rule.filter.larger.is_some() || rule.filter.smaller.is_some();
            let has_tags = !rule.filter.tags.is_empty();
            let acts =
                rule.current.is_some() || rule.noncurrent.is_some() || rule.abort_days.is_some();
            let is_lone = rule.current == Some(CurrentExpiry::LoneMarkers);
            acts && (rule.filter.form == FilterForm::Rule) == form_is_rule
                && !(rule.abort_days.is_some() && (has_sizes || has_tags))
                && !(is_lone && has_tags)
                && (rule.filter.form != FilterForm::And || has_tags || has_sizes)
                && !(form_is_rule && rule.noncurrent.is_some_and(|it| it.newer > 0))
        })
}

fn lifecycles() -> impl Strategy<Value = Lifecycle> {
    any::<bool>().prop_flat_map(|form_is_rule| {
        prop::collection::vec(rules(form_is_rule), 1..4).prop_map(|mut rules| {
            for (at, rule) in rules.iter_mut().enumerate() {
                rule.id = format!("r<{at}>");
            }
            Lifecycle { rules }
        })
    })
}

proptest! {
    #[test]
    fn what_is_shown_is_read_back(lifecycle in lifecycles()) {
        let mut text = Vec::new();
        let document = BucketLifecycleConfiguration { rules: shown_rules(&lifecycle) };
        document.serialize(&mut Serializer::new(&mut text)).expect("it is written");
        prop_assert_eq!(read(&text).ok(), Some(lifecycle), "{}", String::from_utf8_lossy(&text));
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
        let _ = read(&bytes);
    }

    #[test]
    fn any_change_of_a_document_is_read_or_refused(
        lifecycle in lifecycles(), at: prop::sample::Index, byte: u8, cut: bool,
    ) {
        let mut text = Vec::new();
        let document = BucketLifecycleConfiguration { rules: shown_rules(&lifecycle) };
        document.serialize(&mut Serializer::new(&mut text)).expect("it is written");
        let at = at.index(text.len());
        if cut { text.truncate(at) } else { text[at] = byte }
        if let Ok(lifecycle) = read(&text) {
            prop_assert!(lifecycle.encoded_len() > 0);
        }
    }
}
