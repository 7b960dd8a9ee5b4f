//! What s3s lets pass in the documents of requests, and what S3 takes for malformed: text where there are only
//! elements, so that `<Filter>logs/</Filter>` would be a filter for everything, and numbers with something behind
//! them, so that `1,000` days would be one.

use quick_xml::Reader;
use quick_xml::events::Event;

use crate::reply::Refusal;

/// Elements that have elements alone.
const CONTAINERS: &[&[u8]] = &[
    b"AbortIncompleteMultipartUpload",
    b"AccessControlList",
    b"AccessControlPolicy",
    b"And",
    b"ApplyServerSideEncryptionByDefault",
    b"CORSConfiguration",
    b"CORSRule",
    b"CompleteMultipartUpload",
    b"CreateBucketConfiguration",
    b"DefaultRetention",
    b"Delete",
    b"Expiration",
    b"Filter",
    b"Grant",
    b"Grantee",
    b"LegalHold",
    b"LifecycleConfiguration",
    b"NoncurrentVersionExpiration",
    b"Object",
    b"ObjectLockConfiguration",
    b"Owner",
    b"OwnershipControls",
    b"Part",
    b"PublicAccessBlockConfiguration",
    b"RequestPaymentConfiguration",
    b"Retention",
    b"Rule",
    b"ServerSideEncryptionConfiguration",
    b"Tag",
    b"TagSet",
    b"Tagging",
    b"VersioningConfiguration",
];

/// Elements that have these alone: another word would be passed over, and with it what it was to do.
const CHILDREN: &[(&[u8], &[&[u8]])] = &[
    (b"CORSConfiguration", &[b"CORSRule"]),
    (b"LifecycleConfiguration", &[b"Rule"]),
    (b"ObjectLockConfiguration", &[b"ObjectLockEnabled", b"Rule"]),
    (
        b"PublicAccessBlockConfiguration",
        &[b"BlockPublicAcls", b"BlockPublicPolicy", b"IgnorePublicAcls", b"RestrictPublicBuckets"],
    ),
    (b"TagSet", &[b"Tag"]),
    (b"Tagging", &[b"TagSet"]),
];

/// Elements that have a number.
const NUMBERS: &[&[u8]] = &[
    b"Days",
    b"DaysAfterInitiation",
    b"MaxAgeSeconds",
    b"NewerNoncurrentVersions",
    b"NoncurrentDays",
    b"ObjectSizeGreaterThan",
    b"ObjectSizeLessThan",
    b"PartNumber",
    b"Years",
];

/// Refuses a document in which something would be passed over. What is no XML, as policies, is left to its reader.
pub(crate) fn check(document: &[u8]) -> Result<(), Refusal> {
    let document = document.strip_prefix(b"\xef\xbb\xbf").unwrap_or(document);
    let begins = document.iter().find(|byte| !byte.is_ascii_whitespace());
    if begins != Some(&b'<') {
        return Ok(());
    }
    let mut reader = Reader::from_reader(document);
    let mut open: Vec<Vec<u8>> = Vec::new();
    loop {
        match reader.read_event() {
            Ok(Event::Start(tag)) => {
                check_child(open.last().map(Vec::as_slice), tag.local_name().as_ref())?;
                open.push(tag.local_name().as_ref().to_vec());
            }
            Ok(Event::Empty(tag)) => {
                check_child(open.last().map(Vec::as_slice), tag.local_name().as_ref())?;
            }
            Ok(Event::End(_)) => drop(open.pop()),
            // A character by its number or name.
            Ok(Event::GeneralRef(_)) => check_text(open.last().map(Vec::as_slice), b"&")?,
            Ok(Event::Text(text)) => check_text(open.last().map(Vec::as_slice), &text)?,
            Ok(Event::Eof) | Err(_) => return Ok(()),
            Ok(_) => {}
        }
    }
}

fn check_child(within: Option<&[u8]>, child: &[u8]) -> Result<(), Refusal> {
    let known = CHILDREN.iter().find(|(name, _)| Some(*name) == within);
    if known.is_none_or(|(_, children)| children.contains(&child)) {
        return Ok(());
    }
    let (within, child) = (within.unwrap_or_default(), String::from_utf8_lossy(child));
    Err(malformed(format!("{} has no {child}.", String::from_utf8_lossy(within))))
}

fn check_text(within: Option<&[u8]>, text: &[u8]) -> Result<(), Refusal> {
    let is_number = |text: &[u8]| {
        let digits = text.strip_prefix(b"-").unwrap_or(text);
        !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
    };
    let is_empty = text.iter().all(u8::is_ascii_whitespace);
    let name = || String::from_utf8_lossy(within.unwrap_or(b"the document")).into_owned();
    match within {
        Some(within) if NUMBERS.contains(&within) && !is_number(text) => {
            Err(malformed(format!("{} is no number.", name())))
        }
        Some(within) if !CONTAINERS.contains(&within) => Ok(()),
        _ if is_empty => Ok(()),
        _ => Err(malformed(format!("There is text beside the elements of {}.", name()))),
    }
}

fn malformed(message: String) -> Refusal {
    Refusal::new("MalformedXML", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_good(document: &str) -> bool {
        check(document.as_bytes()).is_ok()
    }

    fn rule(content: &str) -> String {
        format!(
            "<?xml version=\"1.0\"?>\n<LifecycleConfiguration>\n <Rule>{content}</Rule>\n</LifecycleConfiguration>\n"
        )
    }

    #[test]
    fn nothing_is_passed_over() {
        assert!(is_good(&rule("<Filter/><Expiration><Days>1</Days></Expiration>")));
        assert!(is_good(&rule("<ID>a b</ID> <Filter> <Prefix>logs/</Prefix> </Filter>")));
        assert!(is_good(&rule(
            "<Filter><And><Tag><Key>1x</Key><Value> v </Value></Tag></And></Filter>"
        )));
        assert!(is_good("<a:Rule xmlns:a='x'><!-- 1 --><a:Days>30</a:Days></a:Rule>"));
        for filter in
            ["<Filter>logs/</Filter>", "<Filter><And>logs/</And></Filter>", "x", "<ID>a</ID>x"]
        {
            assert!(!is_good(&rule(filter)), "{filter}");
        }
        assert!(!is_good("<Delete/>x"));
        assert!(!is_good("\u{feff}<Filter>logs/</Filter>") && !is_good("<Days>1&#44;000</Days>"));
        assert!(!is_good("<Filter>&amp;</Filter>") && is_good("<Key>a&amp;b&#228;</Key>"));
        for (name, child, other) in [
            ("PublicAccessBlockConfiguration", "BlockPublicAcls", "BlockPublicACLs"),
            ("ObjectLockConfiguration", "Rule", "Rules"),
            ("Tagging", "TagSet", "Tags"),
            ("LifecycleConfiguration", "Rule", "Foo"),
        ] {
            assert!(is_good(&format!("<{name} xmlns='x'><{child}></{child}></{name}>")), "{child}");
            assert!(
                !is_good(&format!("<{name} xmlns='x'><{other}></{other}></{name}>")),
                "{other}"
            );
            assert!(!is_good(&format!("<{name}><{other}/></{name}>")), "{other}");
        }
        for days in
            ["1,000", "1e3", "1_000", "3O", "365.9", "10 days", "0x1", " 1", "30\n", "", "-", "+1"]
        {
            let document = rule(&format!("<Expiration><Days>{days}</Days></Expiration>"));
            assert_eq!(is_good(&document), days.is_empty(), "{days}");
        }
        assert!(
            is_good(&rule("<Expiration><Days>-1</Days></Expiration>")),
            "refused by its meaning"
        );
        assert!(is_good("no XML") && is_good("{\"Version\": 1}"));
    }
}
