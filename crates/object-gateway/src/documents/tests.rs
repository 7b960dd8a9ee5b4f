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
        assert!(!is_good(&format!("<{name} xmlns='x'><{other}></{other}></{name}>")), "{other}");
        assert!(!is_good(&format!("<{name}><{other}/></{name}>")), "{other}");
    }
    for days in
        ["1,000", "1e3", "1_000", "3O", "365.9", "10 days", "0x1", " 1", "30\n", "", "-", "+1"]
    {
        let document = rule(&format!("<Expiration><Days>{days}</Days></Expiration>"));
        assert_eq!(is_good(&document), days.is_empty(), "{days}");
    }
    assert!(is_good(&rule("<Expiration><Days>-1</Days></Expiration>")), "refused by its meaning");
    assert!(is_good("no XML") && is_good("{\"Version\": 1}"));
}

/// A document with a list of so many entries.
fn list(root: &str, entry: &str, entries: usize) -> String {
    format!("<{root}>{}</{root}>", entry.repeat(entries))
}

#[test]
fn a_document_has_no_more_entries_than_s3_takes() {
    for (root, entry, max) in [
        ("CompleteMultipartUpload", "<Part/>", 10_000),
        (
            "CompleteMultipartUpload",
            "<Part><PartNumber>1</PartNumber><ETag>a</ETag></Part>",
            10_000,
        ),
        ("Delete", "<Object/>", 1_000),
        ("Delete", "<Object><Key>k</Key><VersionId>null</VersionId></Object>", 1_000),
        ("LifecycleConfiguration", "<Rule/>", 1_000),
        // The root is an element as well.
        ("Delete", "<Other/>", 9_999),
        ("AccessControlPolicy", "<Grant/>", 9_999),
        ("CORSConfiguration", "<CORSRule></CORSRule>", 9_999),
        ("Tagging", "<TagSet/>", 9_999),
    ] {
        assert!(is_good(&list(root, entry, max)), "{root} {entry}");
        assert!(!is_good(&list(root, entry, max + 1)), "{root} {entry}");
    }
    let checked = check(list("Delete", "<Object/>", 1_001).as_bytes());
    assert_eq!(checked.map_err(|refusal| refusal.code), Err("MalformedXML"));
}

#[test]
fn elements_are_counted_wherever_they_are() {
    // An entry of a list is one within the root alone.
    let parts = format!("<Other>{}</Other>", "<Part/>".repeat(10_001));
    assert!(is_good(&list("CompleteMultipartUpload", &parts, 1)));
    assert!(!is_good(&list("CompleteMultipartUpload", &parts, 10)));
    assert!(!is_good(&format!("x{}", list("Delete", "<Object/>", 1_001))), "behind a text");
    assert!(!is_good(&format!("<!-- <a> -->\n{}", list("Delete", "<Object/>", 1_001))));
    assert!(!is_good(&"<a>".repeat(10_001)), "within each other");
    assert!(is_good(&format!("{{\"Sid\": \"{}\"}}", "< ".repeat(20_000))), "no XML");
}
