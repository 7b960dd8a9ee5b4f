//! Buckets: making, finding, listing, removing, and what they have no settings of.

use object_gateway::GatewayConfig;

use crate::client::{Bed, OTHER};

#[test]
fn a_bucket_is_made_found_listed_and_removed() {
    let bed = Bed::new();
    assert_eq!(bed.ask("HEAD", "/bucket").send().status, 404);
    let made = bed.ask("PUT", "/bucket").send();
    assert_eq!((made.status, made.header("location")), (200, Some("/bucket")));
    let found = bed.ask("HEAD", "/bucket").send();
    assert_eq!((found.status, found.header("x-amz-bucket-region")), (200, Some("us-east-1")));
    let listed = bed.ask("GET", "/").send();
    assert_eq!(listed.fields("Name"), ["bucket"]);
    assert_eq!(listed.field("ID"), "id-admin");
    assert_eq!(listed.field("CreationDate"), "2023-11-14T22:13:20.000Z");
    bed.put("k", b"x");
    assert_eq!(bed.ask("DELETE", "/bucket").send().error(), (409, "BucketNotEmpty".into()));
    bed.object("DELETE", "k").send();
    assert_eq!(bed.ask("DELETE", "/bucket").send().status, 204);
    assert_eq!(bed.ask("DELETE", "/bucket").send().error(), (404, "NoSuchBucket".into()));
    assert_eq!(bed.ask("GET", "/bucket/k").send().error(), (404, "NoSuchBucket".into()));
}

#[test]
fn a_bucket_that_exists_is_made_again_in_the_first_region_only() {
    let bed = Bed::with_bucket();
    assert_eq!(bed.ask("PUT", "/bucket").send().status, 200);
    let taken = bed.ask("PUT", "/bucket").by(OTHER).send();
    assert_eq!(taken.error(), (409, "BucketAlreadyExists".into()));
    let bed = Bed::with(GatewayConfig { region: "eu-1".into(), ..GatewayConfig::default() });
    assert_eq!(bed.ask("PUT", "/bucket").send().status, 200);
    let again = bed.ask("PUT", "/bucket").send();
    assert_eq!(again.error(), (409, "BucketAlreadyOwnedByYou".into()));
    let location = bed.ask("GET", "/bucket").query("location", "").send();
    assert!(location.text().contains(">eu-1</LocationConstraint>"), "{}", location.text());
}

#[test]
fn any_location_is_taken_and_other_wishes_are_not() {
    let bed = Bed::new();
    let make = |xml: &str| bed.ask("PUT", "/bucket").body(xml.as_bytes());
    let location = "<CreateBucketConfiguration><LocationConstraint>eu-west-3</LocationConstraint>\
                    </CreateBucketConfiguration>";
    let directory = "<CreateBucketConfiguration><Bucket><Type>Directory</Type></Bucket>\
                     </CreateBucketConfiguration>";
    assert_eq!(make("<x>").send().error(), (400, "MalformedXML".into()));
    assert_eq!(make(directory).send().error(), (501, "NotImplemented".into()));
    assert_eq!(bed.ask("HEAD", "/bucket").send().status, 404);
    assert_eq!(make(location).send().status, 200);
}

#[test]
fn names_that_are_no_buckets_are_refused() {
    let bed = Bed::new();
    for name in ["ab", "Abc", "a..b", "a.-b", "a-.b", "192.168.0.1", "a_b", "xn--abc", "x-s3alias"]
    {
        let reply = bed.ask("PUT", &format!("/{name}")).send();
        assert_eq!(reply.error(), (400, "InvalidBucketName".into()), "{name}");
    }
}

#[test]
fn each_user_lists_its_own_buckets_in_pages() {
    let bed = Bed::new();
    for name in ["aaa", "aab", "abb"] {
        bed.ask("PUT", &format!("/{name}")).send();
    }
    bed.ask("PUT", "/others").by(OTHER).send();
    let list = |name: &str, value: &str| bed.ask("GET", "/").query(name, value);
    assert_eq!(bed.ask("GET", "/").by(OTHER).send().fields("Name"), ["others"]);
    assert_eq!(list("prefix", "aa").send().fields("Name"), ["aaa", "aab"]);
    let page = list("max-buckets", "2").send();
    assert_eq!(page.fields("Name"), ["aaa", "aab"]);
    let token = page.field("ContinuationToken");
    let page = list("max-buckets", "2").query("continuation-token", &token).send();
    assert_eq!(
        (page.fields("Name"), page.field("ContinuationToken")),
        (vec!["abb".into()], String::new())
    );
    assert_eq!(list("max-buckets", "0").send().error(), (400, "InvalidArgument".into()));
    assert_eq!(list("continuation-token", "?").send().error(), (400, "InvalidArgument".into()));
}

#[test]
fn what_is_not_set_answers_as_on_a_new_bucket() {
    let bed = Bed::with_bucket();
    bed.put("k", b"x");
    for (name, code) in [
        ("policy", "NoSuchBucketPolicy"),
        ("policyStatus", "NoSuchBucketPolicy"),
        ("cors", "NoSuchCORSConfiguration"),
        ("lifecycle", "NoSuchLifecycleConfiguration"),
        ("tagging", "NoSuchTagSet"),
        ("encryption", "ServerSideEncryptionConfigurationNotFoundError"),
        ("object-lock", "ObjectLockConfigurationNotFoundError"),
        ("replication", "ReplicationConfigurationNotFoundError"),
        ("website", "NoSuchWebsiteConfiguration"),
    ] {
        let reply = bed.ask("GET", "/bucket").query(name, "").send();
        assert_eq!(reply.error(), (404, code.into()), "{name}");
    }
    for (path, name, text) in [
        ("/bucket", "versioning", "VersioningConfiguration"),
        ("/bucket", "location", "LocationConstraint"),
        ("/bucket", "acl", "FULL_CONTROL"),
        ("/bucket", "publicAccessBlock", "true</BlockPublicAcls>"),
        ("/bucket", "ownershipControls", "BucketOwnerEnforced"),
        ("/bucket", "requestPayment", "BucketOwner"),
        ("/bucket/k", "acl", "FULL_CONTROL"),
        ("/bucket/k", "tagging", "TagSet"),
    ] {
        let reply = bed.ask("GET", path).query(name, "").send();
        assert_eq!(reply.status, 200, "{name}");
        assert!(reply.text().contains(text), "{name}: {}", reply.text());
    }
    for name in ["policy", "cors", "lifecycle", "tagging", "ownershipControls", "publicAccessBlock"]
    {
        assert_eq!(bed.ask("DELETE", "/bucket").query(name, "").send().status, 204, "{name}");
    }
    for name in ["retention", "legal-hold"] {
        let reply = bed.ask("GET", "/bucket/k").query(name, "").send();
        assert_eq!(reply.error(), (400, "InvalidRequest".into()), "{name}");
    }
    let none = bed.ask("GET", "/bucket/none").query("tagging", "").send();
    assert_eq!(none.error(), (404, "NoSuchKey".into()));
    assert_eq!(bed.model.objects(), 1);
}

#[test]
fn a_hosts_name_is_a_bucket() {
    let bed = Bed::with_bucket();
    let port = bed.gateway.addr().port();
    let ask =
        |method: &str, path: &str| bed.ask(method, path).host(&format!("bucket.localhost:{port}"));
    assert_eq!(ask("PUT", "/a/b").body(b"x").send().status, 200);
    assert_eq!(ask("GET", "/a/b").send().body, b"x");
    assert_eq!(bed.object("GET", "a/b").send().body, b"x");
    assert_eq!(ask("GET", "/").send().fields("Key"), ["a/b"]);
    // Below a bucket's name the pages of health are keys.
    assert_eq!(ask("GET", "/_craton/live").send().error(), (404, "NoSuchKey".into()));
}
