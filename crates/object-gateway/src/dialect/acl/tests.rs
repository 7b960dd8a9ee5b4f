use std::slice;

use super::*;

const OWNER: &str = "id-owner";

fn owner() -> UserId {
    UserId::new(OWNER)
}

fn users() -> Vec<User> {
    let user = |name: &str, email: &str| User {
        id: UserId::new(format!("id-{name}")),
        display_name: format!("The {name}"),
        email: email.to_owned(),
        ..User::default()
    };
    vec![
        user("owner", "owner@x"),
        user("ann", "ann@x"),
        user("twin", "twin@x"),
        user("other-twin", "Twin@x"),
        user("silent", ""),
    ]
}

fn user(id: &str, permission: Permission) -> Grant {
    Grant { grantee: Grantee::User(UserId::new(id)), permission }
}

fn group(grantee: Grantee, permission: Permission) -> Grant {
    Grant { grantee, permission }
}

fn head(headers: &[(&'static str, &str)]) -> HeaderMap {
    headers
        .iter()
        .map(|(name, value)| {
            let name = http::header::HeaderName::from_static(name);
            (name, value.parse().expect("a header's value"))
        })
        .collect()
}

fn code<T: std::fmt::Debug>(result: S3Result<T>) -> String {
    result.expect_err("an error").code().as_str().to_owned()
}

#[test]
fn canned_acls_are_grants() {
    let own = user(OWNER, Permission::Full);
    let of = |name: &str, bucket: Option<&str>| {
        let (own, bucket) = (owner(), bucket.map(UserId::new));
        canned(name, Owners { own: &own, bucket: bucket.as_ref() })
    };
    let logs = |permission| group(Grantee::LogDelivery, permission);
    for (name, bucket, more) in [
        ("private", None, vec![]),
        ("public-read", None, vec![group(Grantee::All, Permission::Read)]),
        (
            "public-read-write",
            Some("id-b"),
            vec![group(Grantee::All, Permission::Read), group(Grantee::All, Permission::Write)],
        ),
        ("authenticated-read", None, vec![group(Grantee::Authenticated, Permission::Read)]),
        ("log-delivery-write", None, vec![logs(Permission::Write), logs(Permission::ReadAcl)]),
        ("bucket-owner-read", None, vec![]),
        ("bucket-owner-read", Some(OWNER), vec![]),
        ("bucket-owner-read", Some("id-b"), vec![user("id-b", Permission::Read)]),
        ("bucket-owner-full-control", Some("id-b"), vec![user("id-b", Permission::Full)]),
    ] {
        let all: Vec<Grant> = [own.clone()].into_iter().chain(more).collect();
        assert_eq!(of(name, bucket).expect(name), all, "{name} {bucket:?}");
    }
    assert_eq!(code(of("log-delivery-write", Some("id-b"))), "InvalidArgument");
    assert_eq!(code(of("Private", None)), "InvalidArgument");
    assert_eq!(code(of("aws-exec-read", None)), "NotImplemented");
}

#[test]
fn headers_name_grantees_by_id_uri_and_mail() {
    let id = |text: &str| Named::Id(text.to_owned());
    for (header, expected) in [
        ("id=a", vec![id("a")]),
        (r#"id="a",ID = "b""#, vec![id("a"), id("b")]),
        (r#"id="a,b""#, vec![id("a,b")]),
        (r#"emailAddress="ann@x""#, vec![Named::Mail("ann@x".to_owned())]),
        ("uri=http://x/?a=b", vec![Named::Group("http://x/?a=b".to_owned())]),
    ] {
        assert_eq!(named_in(header).expect(header), expected, "{header}");
    }
    for header in
        ["", "a", "id=", r#"id="""#, r#"id="a"#, r#"id=a"b"#, "name=a", "id=a,", "id=a;id=b"]
    {
        let read = named_in(header);
        // A semicolon is a character of an ID, which no user has.
        let is_id = read.as_ref().is_ok_and(|named| named == &[id("a;id=b")]);
        assert!(is_id || code(read) == "InvalidArgument", "{header}");
    }
}

#[test]
fn headers_give_one_acl_or_none() {
    let of = |headers: &[(&'static str, &str)]| AskedAcl::of_headers(&head(headers));
    assert_eq!(of(&[("x-amz-date", "1")]).expect("none"), None);
    let named = AskedAcl::Canned("private".to_owned());
    assert_eq!(of(&[("x-amz-acl", "private")]).expect("one"), Some(named));
    let grants = of(&[("x-amz-grant-write", "id=a,id=b"), ("x-amz-grant-full-control", "id=c")]);
    let id = |text: &str, permission| (Named::Id(text.to_owned()), permission);
    let expected =
        vec![id("a", Permission::Write), id("b", Permission::Write), id("c", Permission::Full)];
    assert_eq!(grants.expect("grants"), Some(AskedAcl::Grants(expected)));
    let both = of(&[("x-amz-acl", "private"), ("x-amz-grant-read", "id=a")]);
    assert_eq!(code(both), "InvalidRequest");
    let many = |count| vec!["id=a"; count].join(",");
    assert!(of(&[("x-amz-grant-read", &many(GRANTS_MAX))]).is_ok());
    assert_eq!(code(of(&[("x-amz-grant-read", &many(GRANTS_MAX + 1))])), "MalformedACLError");
}

fn grantee(kind: &'static str, text: &str) -> dto::Grantee {
    let text = Some(text.to_owned());
    let mut grantee = dto::Grantee {
        type_: Type::from_static(kind),
        display_name: None,
        email_address: None,
        id: None,
        uri: None,
    };
    match kind {
        Type::GROUP => grantee.uri = text,
        Type::AMAZON_CUSTOMER_BY_EMAIL => grantee.email_address = text,
        _ => grantee.id = text,
    }
    grantee
}

fn document(owner: Option<&str>, grants: Option<Vec<(dto::Grantee, &str)>>) -> AccessControlPolicy {
    let grant = |(grantee, permission): (dto::Grantee, &str)| dto::Grant {
        grantee: Some(grantee),
        permission: Some(dto::Permission::from(permission.to_owned())),
    };
    let id = owner.map(str::to_owned);
    AccessControlPolicy {
        owner: Some(dto::Owner { id, display_name: None }),
        grants: grants.map(|grants| grants.into_iter().map(grant).collect()),
    }
}

#[test]
fn a_document_names_its_owner_grantees_and_permissions() {
    let of = |owner: Option<&str>, grants| {
        AskedAcl::of_document(document(owner, grants), &UserId::new(OWNER))
    };
    let ann = || grantee(Type::CANONICAL_USER, "id-ann");
    let grants = vec![
        (ann(), "READ"),
        (grantee(Type::GROUP, GROUPS[0].0), "WRITE_ACP"),
        (grantee(Type::AMAZON_CUSTOMER_BY_EMAIL, "ann@x"), "FULL_CONTROL"),
    ];
    let expected = vec![
        (Named::Id("id-ann".to_owned()), Permission::Read),
        (Named::Group(GROUPS[0].0.to_owned()), Permission::WriteAcl),
        (Named::Mail("ann@x".to_owned()), Permission::Full),
    ];
    assert_eq!(of(Some(OWNER), Some(grants)).expect("an ACL"), AskedAcl::Grants(expected));
    assert_eq!(code(of(Some("id-ann"), Some(vec![]))), "AccessDenied");
    for flawed in [
        of(None, Some(vec![])),
        of(Some(OWNER), None),
        of(Some(OWNER), Some(vec![(ann(), "LIST")])),
        of(Some(OWNER), Some(vec![(grantee("Robot", "id-ann"), "READ")])),
        of(Some(OWNER), Some(vec![(ann(), "READ"); GRANTS_MAX + 1])),
    ] {
        assert_eq!(code(flawed), "MalformedACLError");
    }
}

#[test]
fn grantees_are_found_among_users_and_groups() {
    let (owner, users) = (owner(), users());
    let found = |named: Named| named.found(&owner, &users);
    let id = |text: &str| found(Named::Id(text.to_owned()));
    let mail = |text: &str| found(Named::Mail(text.to_owned()));
    let ann = Grantee::User(UserId::new("id-ann"));
    assert_eq!(id("id-ann").expect("a user"), ann);
    assert_eq!(mail("Ann@X").expect("a user"), ann);
    assert_eq!(
        Named::Id(OWNER.to_owned()).found(&owner, &[]).expect("it is there"),
        Grantee::User(owner.clone())
    );
    assert_eq!(code(id("ann")), "InvalidArgument");
    assert_eq!(code(mail("none@x")), "UnresolvableGrantByEmailAddress");
    assert_eq!(code(mail("")), "UnresolvableGrantByEmailAddress");
    assert_eq!(code(mail("twin@x")), "AmbiguousGrantByEmailAddress");
    for (uri, expected) in &GROUPS {
        assert_eq!(found(Named::Group((*uri).to_owned())).expect(uri), *expected);
    }
    assert_eq!(code(found(Named::Group("http://x".to_owned()))), "InvalidArgument");
}

#[test]
fn the_owners_full_control_alone_is_stored_as_no_grant() {
    let owner = owner();
    let (own, all) = (user(OWNER, Permission::Full), group(Grantee::All, Permission::Read));
    for (grants, expected) in [
        (vec![own.clone()], vec![]),
        (vec![own.clone(), own.clone()], vec![]),
        (vec![own.clone(), all.clone(), own.clone()], vec![own.clone(), all.clone()]),
        (vec![all.clone()], vec![all.clone()]),
        (vec![], vec![user(OWNER, Permission::ReadAcl), user(OWNER, Permission::WriteAcl)]),
    ] {
        assert_eq!(compact(grants, &owner), expected);
    }
    assert_eq!(complete(&[], &owner), slice::from_ref(&own));
    let both = [own, all];
    assert_eq!(complete(&both, &owner), both);
    assert!(has_others(&both, &owner) && is_public(&both));
    assert!(!has_others(&both[..1], &owner) && !is_public(&both[..1]));
    assert!(is_public(&[group(Grantee::Authenticated, Permission::Write)]));
    assert!(!is_public(&[group(Grantee::LogDelivery, Permission::Write)]));
}

#[test]
fn an_acl_is_shown_with_names_and_read_back() {
    let (owner, users) = (owner(), users());
    let mut acl = vec![
        user(OWNER, Permission::Full),
        user("id-ann", Permission::Read),
        user("id-gone", Permission::Write),
        group(Grantee::All, Permission::ReadAcl),
        group(Grantee::Authenticated, Permission::WriteAcl),
        group(Grantee::LogDelivery, Permission::Write),
    ];
    let shown_acl = shown(&acl, &owner, &users);
    acl.rotate_left(3); // Groups are shown first.
    let names: Vec<_> = shown_acl
        .iter()
        .map(|grant| grant.grantee.as_ref().and_then(|grantee| grantee.display_name.as_deref()))
        .collect();
    assert_eq!(names, [None, None, None, Some("The owner"), Some("The ann"), None]);
    let document =
        AccessControlPolicy { owner: Some(shown_owner(&owner, &users)), grants: Some(shown_acl) };
    let asked = AskedAcl::of_document(document, &owner).expect("an ACL");
    let AskedAcl::Grants(asked) = asked else { panic!("grants") };
    let gone = User { id: UserId::new("id-gone"), ..User::default() };
    let users = [users, vec![gone]].concat();
    let found = asked.into_iter().map(|(named, permission)| Grant {
        grantee: named.found(&owner, &users).expect("a user or group"),
        permission,
    });
    assert_eq!(found.collect::<Vec<_>>(), acl);
}
