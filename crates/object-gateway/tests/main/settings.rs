//! Settings of a bucket: its policy, blocks of what is public, whose its objects are, its tags.

use crate::client::{Bed, Reply};

/// Puts a setting of the bucket.
pub fn put(bed: &Bed, name: &str, document: &str) -> Reply {
    bed.ask("PUT", "/bucket").query(name, "").body(document.as_bytes()).send()
}

/// Asks for one.
pub fn get(bed: &Bed, name: &str) -> Reply {
    bed.ask("GET", "/bucket").query(name, "").send()
}

/// Takes one away.
pub fn delete(bed: &Bed, name: &str) -> Reply {
    bed.ask("DELETE", "/bucket").query(name, "").send()
}

/// Says whose the bucket's objects are.
pub fn put_ownership(bed: &Bed, ownership: &str) -> Reply {
    let rule = format!("<Rule><ObjectOwnership>{ownership}</ObjectOwnership></Rule>");
    put(bed, "ownershipControls", &format!("<OwnershipControls>{rule}</OwnershipControls>"))
}

fn put_blocks(bed: &Bed, blocks: &[(&str, bool)]) -> Reply {
    let blocks: String = blocks.iter().map(|(name, on)| format!("<{name}>{on}</{name}>")).collect();
    let document =
        format!("<PublicAccessBlockConfiguration>{blocks}</PublicAccessBlockConfiguration>");
    put(bed, "publicAccessBlock", &document)
}

fn policy(principal: &str, bucket: &str) -> String {
    format!(
        "{{ \"Statement\":\n [{{\"Effect\":\"Allow\",\"Principal\":{principal},\
         \"Action\":\"s3:GetObject\",\"Resource\":\"arn:aws:s3:::{bucket}/*\"}}]}}\n"
    )
}

const PUBLIC: &str = "\"*\"";
const OF_ONE: &str = "{\"CanonicalUser\":\"id-other\"}";

#[test]
fn a_policy_is_answered_byte_for_byte_until_it_is_removed() {
    let bed = Bed::with_bucket();
    let text = policy(OF_ONE, "bucket");
    let ask = bed.ask("PUT", "/bucket").query("policy", "").body(text.as_bytes());
    let set = ask.header("x-amz-confirm-remove-self-bucket-access", "true").send();
    assert_eq!((set.status, set.body.len()), (204, 0), "{}", set.text());
    let found = get(&bed, "policy");
    assert_eq!((found.status, found.text()), (200, text));
    assert_eq!(found.header("content-type"), Some("application/json"));
    assert_eq!(get(&bed, "policyStatus").field("IsPublic"), "false");
    assert_eq!(delete(&bed, "policy").status, 204);
    for name in ["policy", "policyStatus"] {
        assert_eq!(get(&bed, name).error(), (404, "NoSuchBucketPolicy".into()), "{name}");
    }
}

#[test]
fn a_flawed_policy_is_refused_with_its_flaw() {
    let bed = Bed::with_bucket();
    for (text, flaw) in [
        (String::new(), "first byte"),
        ("{".to_owned(), "Json"),
        (policy(OF_ONE, "other"), "invalid resource"),
        (policy("{\"Service\":\"x\"}", "bucket"), "principal"),
        (policy(OF_ONE, "bucket").replace("GetObject", "GetAll"), "invalid action"),
        (format!("{{\"Id\":\"{}\"}}", "x".repeat(20 << 10)), "document size"),
    ] {
        let reply = put(&bed, "policy", &text);
        assert_eq!(reply.error(), (400, "MalformedPolicy".into()), "{text}");
        assert!(reply.field("Message").contains(flaw), "{}", reply.text());
    }
    assert_eq!(get(&bed, "policy").error(), (404, "NoSuchBucketPolicy".into()));
}

#[test]
fn a_public_policy_needs_a_bucket_that_does_not_block_it() {
    let bed = Bed::with_bucket();
    let refused = put(&bed, "policy", &policy(PUBLIC, "bucket"));
    assert_eq!(refused.error(), (403, "AccessDenied".into()));
    assert!(refused.field("Message").contains("BlockPublicPolicy"), "{}", refused.text());
    assert_eq!(put(&bed, "policy", &policy(OF_ONE, "bucket")).status, 204);
    assert_eq!(delete(&bed, "publicAccessBlock").status, 204);
    assert_eq!(put(&bed, "policy", &policy(PUBLIC, "bucket")).status, 204);
    assert_eq!(get(&bed, "policyStatus").field("IsPublic"), "true");
}

#[test]
fn blocks_of_public_access_are_those_that_were_put() {
    let bed = Bed::with_bucket();
    let names =
        ["BlockPublicAcls", "BlockPublicPolicy", "IgnorePublicAcls", "RestrictPublicBuckets"];
    for on in names {
        assert_eq!(put_blocks(&bed, &[(on, true)]).status, 200);
        let found = get(&bed, "publicAccessBlock");
        for name in names {
            assert_eq!(found.field(name), (name == on).to_string(), "{name} with {on}");
        }
    }
    let absent = || {
        let reply = get(&bed, "publicAccessBlock");
        assert_eq!(reply.error(), (404, "NoSuchPublicAccessBlockConfiguration".into()));
    };
    assert_eq!(delete(&bed, "publicAccessBlock").status, 204);
    absent();
    assert_eq!(put_blocks(&bed, &[("BlockPublicAcls", true)]).status, 200);
    assert_eq!(put_blocks(&bed, &[("BlockPublicAcls", false)]).status, 200);
    absent();
    assert_eq!(put(&bed, "publicAccessBlock", "<x/>").error(), (400, "MalformedXML".into()));
}

#[test]
fn an_ownership_is_put_and_read() {
    let bed = Bed::with_bucket();
    for ownership in ["ObjectWriter", "BucketOwnerPreferred", "BucketOwnerEnforced"] {
        assert_eq!(put_ownership(&bed, ownership).status, 200);
        assert_eq!(get(&bed, "ownershipControls").field("ObjectOwnership"), ownership);
    }
    assert_eq!(put_ownership(&bed, "NoOwner").error(), (400, "MalformedXML".into()));
    let rule = "<Rule><ObjectOwnership>ObjectWriter</ObjectOwnership></Rule>";
    for rules in [String::new(), rule.repeat(2)] {
        let document = format!("<OwnershipControls>{rules}</OwnershipControls>");
        let reply = put(&bed, "ownershipControls", &document);
        assert_eq!(reply.error(), (400, "MalformedXML".into()));
    }
    let found = || get(&bed, "ownershipControls").field("ObjectOwnership");
    assert_eq!(found(), "BucketOwnerEnforced");
    assert_eq!(delete(&bed, "ownershipControls").status, 204);
    let none = get(&bed, "ownershipControls").error();
    assert_eq!(none, (404, "OwnershipControlsNotFoundError".into()));
    assert_eq!(delete(&bed, "ownershipControls").status, 204);
}

fn put_tags(bed: &Bed, tags: &[(&str, &str)]) -> Reply {
    let tags: String = tags
        .iter()
        .map(|(name, value)| format!("<Tag><Key>{name}</Key><Value>{value}</Value></Tag>"))
        .collect();
    put(bed, "tagging", &format!("<Tagging><TagSet>{tags}</TagSet></Tagging>"))
}

#[test]
fn a_bucket_has_the_tags_that_were_put_last() {
    let bed = Bed::with_bucket();
    assert_eq!(put_tags(&bed, &[("old", "1")]).status, 200);
    assert_eq!(put_tags(&bed, &[("b", ""), ("a", "&lt;ä&gt;")]).status, 200);
    let found = get(&bed, "tagging");
    assert_eq!(found.fields("Key"), ["a", "b"]);
    assert_eq!(found.fields("Value"), ["<ä>", ""]);
    assert_eq!(delete(&bed, "tagging").status, 204);
    assert_eq!(get(&bed, "tagging").error(), (404, "NoSuchTagSet".into()));
    put_tags(&bed, &[("a", "1")]);
    assert_eq!(put_tags(&bed, &[]).status, 200);
    assert_eq!(get(&bed, "tagging").error(), (404, "NoSuchTagSet".into()));
}

#[test]
fn flawed_tags_of_a_bucket_are_refused() {
    let bed = Bed::with_bucket();
    let (long, longest) = ("ä".repeat(128), "v".repeat(256));
    let (longer, longer_value) = ("n".repeat(129), "v".repeat(257));
    assert_eq!(put_tags(&bed, &[(&long, &longest)]).status, 200);
    for flawed in [
        vec![("", "1")],
        vec![(&*longer, "1")],
        vec![("a", &*longer_value)],
        vec![("a", "1"), ("a", "2")],
        vec![("aws:a", "1")],
        vec![("AWS:a", "1")],
    ] {
        assert_eq!(put_tags(&bed, &flawed).error(), (400, "InvalidTag".into()), "{flawed:?}");
    }
    let names: Vec<_> = (0..51).map(|n| format!("n{n}")).collect();
    let many: Vec<_> = names.iter().map(|name| (&**name, "")).collect();
    assert_eq!(put_tags(&bed, &many).error(), (400, "BadRequest".into()));
    let no_value = "<Tagging><TagSet><Tag><Key>a</Key></Tag></TagSet></Tagging>";
    assert_eq!(put(&bed, "tagging", no_value).error(), (400, "MalformedXML".into()));
    assert_eq!(get(&bed, "tagging").field("Key"), long);
    assert_eq!(put_tags(&bed, &many[1..]).status, 200);
    assert_eq!(get(&bed, "tagging").fields("Key").len(), 50);
}
