//! What s3s lets pass in the documents of requests, and what S3 takes for malformed: text where there are only
//! elements, so that `<Filter>logs/</Filter>` would be a filter for everything, and numbers with something behind
//! them, so that `1,000` days would be one.
//!
//! Elements are counted here too: s3s makes a struct of up to 500 bytes of each entry of a list before an operation
//! checks the list's length, and an entry may have 7 bytes in the document.

use std::borrow::Cow;

use object_proto::RULES_MAX;
use quick_xml::Reader;
use quick_xml::events::Event;

use crate::limits::{
    COMPLETION_ELEMENTS_MAX, DELETE_MAX, ELEMENTS_MAX, LIFECYCLE_ELEMENTS_MAX, PARTS_MAX,
};
use crate::reply::Refusal;

/// A document with a list that S3 bounds.
struct List {
    root: &'static [u8],
    entry: &'static [u8],
    entries_max: usize,
    elements_max: usize,
}

/// Of other documents [`ELEMENTS_MAX`] is the bound.
const LISTS: &[List] = &[
    List {
        root: b"CompleteMultipartUpload",
        entry: b"Part",
        entries_max: PARTS_MAX,
        elements_max: COMPLETION_ELEMENTS_MAX,
    },
    List { root: b"Delete", entry: b"Object", entries_max: DELETE_MAX, elements_max: ELEMENTS_MAX },
    List {
        root: b"LifecycleConfiguration",
        entry: b"Rule",
        entries_max: RULES_MAX,
        elements_max: LIFECYCLE_ELEMENTS_MAX,
    },
];

/// Elements of a document, as far as it was read.
#[derive(Default)]
struct Count {
    list: Option<&'static List>,
    elements: usize,
    entries: usize,
}

impl Count {
    /// One more, within so many others.
    fn add(&mut self, depth: usize, name: &[u8]) -> Result<(), Refusal> {
        if self.elements == 0 {
            self.list = LISTS.iter().find(|list| list.root == name);
        }
        self.elements += 1;
        let elements_max = self.list.map_or(ELEMENTS_MAX, |list| list.elements_max);
        let mut is_full = self.elements > elements_max;
        if let Some(list) = self.list
            && depth == 1
            && list.entry == name
        {
            self.entries += 1;
            is_full |= self.entries > list.entries_max;
        }
        match is_full {
            false => Ok(()),
            true => Err(malformed("The document has more elements than one of its kind may have.")),
        }
    }
}

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

/// Refuses a document in which something would be passed over, or that has too many elements. What is no XML, as
/// policies, is left to its reader.
pub(crate) fn check(document: &[u8]) -> Result<(), Refusal> {
    let document = document.strip_prefix(b"\xef\xbb\xbf").unwrap_or(document);
    let begins = document.iter().find(|byte| !byte.is_ascii_whitespace());
    // s3s reads on behind a text, so elements are counted all the same.
    let is_xml = begins == Some(&b'<');
    // s3s has the same reader: where this one ends with an error, it ends too.
    let mut reader = Reader::from_reader(document);
    let mut open: Vec<Vec<u8>> = Vec::new();
    let mut count = Count::default();
    loop {
        let event = reader.read_event();
        let within = open.last().map(Vec::as_slice);
        match event {
            Ok(Event::Start(tag)) => {
                let name = tag.local_name();
                count.add(open.len(), name.as_ref())?;
                if is_xml {
                    check_child(within, name.as_ref())?;
                }
                open.push(name.as_ref().to_vec());
            }
            Ok(Event::Empty(tag)) => {
                let name = tag.local_name();
                count.add(open.len(), name.as_ref())?;
                if is_xml {
                    check_child(within, name.as_ref())?;
                }
            }
            Ok(Event::End(_)) => drop(open.pop()),
            // A character by its number or name.
            Ok(Event::GeneralRef(_)) if is_xml => check_text(within, b"&")?,
            Ok(Event::Text(text)) if is_xml => check_text(within, &text)?,
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

fn malformed(message: impl Into<Cow<'static, str>>) -> Refusal {
    Refusal::new("MalformedXML", message)
}

#[cfg(test)]
mod tests;
