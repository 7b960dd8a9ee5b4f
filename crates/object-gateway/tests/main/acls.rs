//! ACLs of buckets, from the three ways to give one to the answer that shows it.

use crate::client::{Ask, Bed, Reply};
use crate::settings::{delete, get, put, put_ownership};

const ALL: &str = "http://acs.amazonaws.com/groups/global/AllUsers";
const USERS: &str = "http://acs.amazonaws.com/groups/global/AuthenticatedUsers";
const LOGS: &str = "http://acs.amazonaws.com/groups/s3/LogDelivery";

/// With a bucket whose ACL counts, and may be public.
fn open_bed() -> Bed {
    let bed = Bed::with_bucket();
    assert_eq!(put_ownership(&bed, "BucketOwnerPreferred").status, 200);
    assert_eq!(delete(&bed, "publicAccessBlock").status, 204);
    bed
}

/// Grantees and permissions, as they are shown.
fn grants(bed: &Bed) -> Vec<(String, String)> {
    let reply = get(bed, "acl");
    assert_eq!(reply.status, 200, "{}", reply.text());
    let text = reply.text();
    let grants = text.split("<Grant>").skip(1).filter_map(|grant| grant.split("</Grant>").next());
    let grants = grants.map(|grant| {
        let field = |name: &str| {
            let rest = grant.split(&format!("<{name}>")).nth(1)?;
            rest.split('<').next().map(str::to_owned)
        };
        let grantee = field("ID").or_else(|| field("URI")).expect("a grantee");
        (grantee, field("Permission").expect("a permission"))
    });
    grants.collect()
}

fn pairs(grants: &[(&str, &str)]) -> Vec<(String, String)> {
    grants.iter().map(|(to, what)| ((*to).to_owned(), (*what).to_owned())).collect()
}

fn ask(bed: &Bed) -> Ask {
    bed.ask("PUT", "/bucket").query("acl", "")
}

fn put_canned(bed: &Bed, name: &str) -> Reply {
    ask(bed).header("x-amz-acl", name).send()
}

fn document(owner: &str, grants: &[(&str, &str, &str)]) -> String {
    let grants: String = grants
        .iter()
        .map(|(kind, grantee, permission)| {
            format!(
                "<Grant><Grantee xmlns:xsi=\"http://www.w3.org/2001/XMLSchema-instance\" \
                 xsi:type=\"{kind}\">{grantee}</Grantee><Permission>{permission}</Permission></Grant>"
            )
        })
        .collect();
    format!(
        "<AccessControlPolicy><Owner><ID>{owner}</ID></Owner>\
         <AccessControlList>{grants}</AccessControlList></AccessControlPolicy>"
    )
}

const OWN: (&str, &str) = ("id-admin", "FULL_CONTROL");

#[test]
fn the_owner_of_a_new_bucket_has_all() {
    let bed = Bed::with_bucket();
    let reply = get(&bed, "acl");
    assert_eq!(reply.fields("ID"), ["id-admin", "id-admin"]);
    assert_eq!(reply.fields("DisplayName"), ["admin", "admin"]);
    assert_eq!(grants(&bed), pairs(&[OWN]));
}

#[test]
fn a_canned_acl_is_shown_as_its_grants() {
    let bed = open_bed();
    for (name, more) in [
        ("public-read", vec![(ALL, "READ")]),
        ("public-read-write", vec![(ALL, "READ"), (ALL, "WRITE")]),
        ("authenticated-read", vec![(USERS, "READ")]),
        ("log-delivery-write", vec![(LOGS, "WRITE"), (LOGS, "READ_ACP")]),
        ("bucket-owner-full-control", vec![]),
        ("private", vec![]),
    ] {
        assert_eq!(put_canned(&bed, name).status, 200, "{name}");
        // Groups are first, for clients that take grants by their place.
        let all: Vec<_> = more.into_iter().chain([OWN]).collect();
        assert_eq!(grants(&bed), pairs(&all), "{name}");
    }
    assert_eq!(put_canned(&bed, "open").error(), (400, "InvalidArgument".into()));
    assert_eq!(put_canned(&bed, "aws-exec-read").error(), (501, "NotImplemented".into()));
}

#[test]
fn headers_grant_what_they_name_and_nothing_else() {
    let bed = open_bed();
    let granted = ask(&bed)
        .header("x-amz-grant-full-control", "id=\"id-admin\"")
        .header("x-amz-grant-read", &format!("uri=\"{ALL}\", emailAddress=\"other@example.com\""))
        .header("x-amz-grant-write-acp", "id=id-other")
        .send();
    assert_eq!(granted.status, 200, "{}", granted.text());
    let other = |what| ("id-other", what);
    let expected = [(ALL, "READ"), other("READ"), other("WRITE_ACP"), OWN];
    assert_eq!(grants(&bed), pairs(&expected));
    assert_eq!(get(&bed, "acl").fields("DisplayName"), ["other", "other", "admin", "admin"]);
    assert_eq!(ask(&bed).header("x-amz-grant-read", "id=id-other").send().status, 200);
    assert_eq!(grants(&bed), pairs(&[other("READ")]));
    for (header, code) in [
        ("id=none", "InvalidArgument"),
        ("uri=http://x", "InvalidArgument"),
        ("id-other", "InvalidArgument"),
        ("emailAddress=none@example.com", "UnresolvableGrantByEmailAddress"),
    ] {
        let refused = ask(&bed).header("x-amz-grant-read", header).send();
        assert_eq!(refused.error(), (400, code.into()), "{header}");
    }
    assert_eq!(grants(&bed), pairs(&[other("READ")]));
}

#[test]
fn a_document_replaces_the_acl() {
    let bed = open_bed();
    let other = "<ID>id-other</ID><DisplayName>any</DisplayName>";
    let mail = "<EmailAddress>other@example.com</EmailAddress>";
    let all = format!("<URI>{ALL}</URI>");
    let text = document(
        "id-admin",
        &[
            ("CanonicalUser", other, "WRITE"),
            ("Group", &all, "READ_ACP"),
            ("AmazonCustomerByEmail", mail, "FULL_CONTROL"),
        ],
    );
    assert_eq!(put(&bed, "acl", &text).status, 200);
    let expected = [(ALL, "READ_ACP"), ("id-other", "WRITE"), ("id-other", "FULL_CONTROL")];
    assert_eq!(grants(&bed), pairs(&expected));
    // What is shown can be put again.
    let shown = get(&bed, "acl").text();
    assert_eq!(put(&bed, "acl", &shown).status, 200);
    assert_eq!(grants(&bed), pairs(&expected));
    // An owner without any grant may still read and change the ACL.
    assert_eq!(put(&bed, "acl", &document("id-admin", &[])).status, 200);
    assert_eq!(grants(&bed), pairs(&[("id-admin", "READ_ACP"), ("id-admin", "WRITE_ACP")]));
    assert_eq!(put_canned(&bed, "private").status, 200);
    assert_eq!(grants(&bed), pairs(&[OWN]));
}

#[test]
fn a_flawed_document_changes_nothing() {
    let bed = open_bed();
    let other = "<ID>id-other</ID>";
    let many = vec![("CanonicalUser", other, "READ"); 101];
    for (text, error) in [
        (document("id-other", &[]), (403, "AccessDenied")),
        (
            document("id-admin", &[("CanonicalUser", "<ID>none</ID>", "READ")]),
            (400, "InvalidArgument"),
        ),
        (
            document("id-admin", &[("Group", "<URI>http://x</URI>", "READ")]),
            (400, "InvalidArgument"),
        ),
        (document("id-admin", &[("CanonicalUser", other, "LIST")]), (400, "MalformedACLError")),
        (document("id-admin", &[("Group", other, "READ")]), (400, "MalformedACLError")),
        (document("id-admin", &many), (400, "MalformedACLError")),
        ("<AccessControlPolicy/>".to_owned(), (400, "MalformedACLError")),
        ("<AccessControlPolicy>".to_owned(), (400, "MalformedXML")),
        (String::new(), (400, "MissingSecurityHeader")),
    ] {
        let reply = put(&bed, "acl", &text);
        assert_eq!(reply.error(), (error.0, error.1.into()), "{text}");
    }
    let both = ask(&bed).header("x-amz-acl", "private").header("x-amz-grant-read", "id=id-other");
    assert_eq!(both.send().error(), (400, "InvalidRequest".into()));
    let text = document("id-admin", &[]);
    let both = ask(&bed).header("x-amz-acl", "private").body(text.as_bytes());
    assert_eq!(both.send().error(), (400, "UnexpectedContent".into()));
    assert_eq!(grants(&bed), pairs(&[OWN]));
}

#[test]
fn where_acls_are_off_only_the_owners_full_control_is_taken() {
    let bed = Bed::with_bucket();
    assert_eq!(put_canned(&bed, "bucket-owner-full-control").status, 200);
    let own = document("id-admin", &[("CanonicalUser", "<ID>id-admin</ID>", "FULL_CONTROL")]);
    assert_eq!(put(&bed, "acl", &own).status, 200);
    let own = ask(&bed).header("x-amz-grant-full-control", "id=id-admin");
    assert_eq!(own.send().status, 200);
    let refused = (400, "AccessControlListNotSupported".to_owned());
    for name in ["private", "public-read"] {
        assert_eq!(put_canned(&bed, name).error(), refused, "{name}");
    }
    assert_eq!(ask(&bed).header("x-amz-grant-read", "id=id-other").send().error(), refused);
    assert_eq!(put(&bed, "acl", &document("id-admin", &[])).error(), refused);
}

#[test]
fn acls_stay_on_while_one_grants_something_to_others() {
    let bed = open_bed();
    assert_eq!(put_canned(&bed, "public-read").status, 200);
    let refused = put_ownership(&bed, "BucketOwnerEnforced");
    assert_eq!(refused.error(), (400, "InvalidBucketAclWithObjectOwnership".into()));
    assert_eq!(put_ownership(&bed, "ObjectWriter").status, 200);
    assert_eq!(put(&bed, "acl", &document("id-admin", &[])).status, 200);
    assert_eq!(put_ownership(&bed, "BucketOwnerEnforced").status, 200);
    assert_eq!(grants(&bed), pairs(&[OWN]));
}

#[test]
fn a_public_acl_needs_a_bucket_that_does_not_block_it() {
    let bed = Bed::with_bucket();
    assert_eq!(put_ownership(&bed, "ObjectWriter").status, 200);
    for name in ["public-read", "public-read-write", "authenticated-read"] {
        let refused = put_canned(&bed, name);
        assert_eq!(refused.error(), (403, "AccessDenied".into()), "{name}");
        assert!(refused.field("Message").contains("BlockPublicAcls"), "{}", refused.text());
    }
    let granted = ask(&bed).header("x-amz-grant-read", &format!("uri={USERS}")).send();
    assert_eq!(granted.error(), (403, "AccessDenied".into()));
    assert_eq!(put_canned(&bed, "log-delivery-write").status, 200);
    assert_eq!(ask(&bed).header("x-amz-grant-read", "id=id-other").send().status, 200);
}

#[test]
fn a_bucket_is_made_with_an_ownership_and_an_acl() {
    let bed = Bed::new();
    let make = || bed.ask("PUT", "/bucket");
    let with_acl = (400, "InvalidBucketAclWithObjectOwnership".to_owned());
    assert_eq!(make().header("x-amz-acl", "public-read").send().error(), with_acl);
    assert_eq!(make().header("x-amz-grant-read", "id=id-other").send().error(), with_acl);
    let writer = || make().header("x-amz-object-ownership", "ObjectWriter");
    let public = writer().header("x-amz-acl", "public-read").send();
    assert_eq!(public.error(), (403, "AccessDenied".into()));
    let unknown = make().header("x-amz-object-ownership", "NoOwner").send();
    assert_eq!(unknown.error(), (400, "InvalidArgument".into()));
    assert_eq!(bed.ask("HEAD", "/bucket").send().status, 404);
    let made = writer().header("x-amz-grant-read", "id=id-other").send();
    assert_eq!(made.status, 200, "{}", made.text());
    assert_eq!(get(&bed, "ownershipControls").field("ObjectOwnership"), "ObjectWriter");
    assert_eq!(grants(&bed), pairs(&[("id-other", "READ")]));
    let private = bed.ask("PUT", "/private").header("x-amz-acl", "private").send();
    assert_eq!(private.status, 200);
}
