use proptest::prelude::*;

use super::*;
use crate::fuzz::fuzz_policy;
use crate::request::{Context, NoContext, Principal, Values};

const BUCKET: PolicyKind<'_> = PolicyKind::Bucket { name: "box" };
const ANN: Principal<'_> = Principal::User { id: "u1", name: "ann" };

fn statement(fields: &str) -> String {
    format!(r#"{{"Version":"2012-10-17","Statement":[{{{fields}}}]}}"#)
}

fn flaw(text: &str, kind: PolicyKind<'_>) -> Flaw {
    Policy::parse(text, kind).expect_err(text).flaw
}

fn decide(policy: &Policy, action: &str, key: Option<&str>, principal: Principal<'_>) -> Verdict {
    let context = &NoContext;
    policy.decide(&Request { action, bucket: "box", key, principal, context })
}

/// A statement that is whole, but for fields that a case replaces.
fn with(field: &str, replacement: &str) -> String {
    let fields = [
        ("Effect", r#""Effect":"Allow""#),
        ("Principal", r#""Principal":"*""#),
        ("Action", r#""Action":"s3:GetObject""#),
        ("Resource", r#""Resource":"arn:aws:s3:::box/*""#),
    ];
    let fields = fields.map(|(name, text)| if name == field { replacement } else { text });
    let present: Vec<&str> = fields.into_iter().filter(|text| !text.is_empty()).collect();
    statement(&present.join(","))
}

#[test]
fn errors_have_s3s_texts() {
    let conditions =
        |text: &str| with("Effect", &format!(r#""Effect":"Allow","Condition":{text}"#));
    for (text, expected) in [
        ("", "Policies must be valid JSON and the first byte must be '{'"),
        (" {}", "Policies must be valid JSON and the first byte must be '{'"),
        ("[]", "Policies must be valid JSON and the first byte must be '{'"),
        ("{", "This policy contains invalid Json"),
        ("{}", "Missing required field Statement"),
        (r#"{"Statement":[]}"#, "Could not parse the policy: Statement is empty!"),
        (
            r#"{"Version":"2020-01-01","Statement":[]}"#,
            "The policy must contain a valid version string",
        ),
        (r#"{"Version":2012,"Statement":[]}"#, "The policy must contain a valid version string"),
        (r#"{"Statements":[]}"#, "Unknown field Statements"),
        (&with("Effect", ""), "Missing required field Effect"),
        (&with("Principal", ""), "Missing required field Principal"),
        (&with("Action", ""), "Missing required field Action"),
        (&with("Resource", ""), "Missing required field Resource"),
        (&with("Effect", r#""Effect":"Allow","Sids":"x""#), "Unknown field Sids"),
        (&with("Effect", r#""Effect":"hello""#), "Invalid effect: hello"),
        (
            &with("Principal", r#""Principal":{}"#),
            "Missing required field Principal cannot be empty!",
        ),
        (&with("Principal", r#""Principal":"ann""#), "Invalid principal in policy"),
        (&with("Action", r#""Action":"s3:Foo""#), "Policy has invalid action"),
        (&with("Action", r#""Action":"iam:*""#), "Policy has invalid action"),
        (&with("Resource", r#""Resource":"arn:aws:s3:::other/*""#), "Policy has invalid resource"),
        (&conditions(r#"{"Like":{"aws:SourceIp":"10.0.0.1"}}"#), "Invalid Condition type : Like"),
        (&conditions(r#"{"StringLike":{"s3:Foo":"x"}}"#), "Policy has an invalid condition key"),
        (&conditions(r#"{"IpAddress":{"aws:SourceIp":"x"}}"#), "Invalid IP address in Conditions"),
        (
            &with("Action", r#""Action":"s3:ListBucket""#),
            "Action does not apply to any resource(s) in statement",
        ),
        (
            &conditions(r#"{"StringEquals":{"s3:prefix":"x"}}"#),
            "Conditions do not apply to combination of actions and resources in statement",
        ),
    ] {
        assert_eq!(flaw(text, BUCKET).to_string(), expected, "{text}");
    }
}

#[test]
fn errors_name_statement_and_value() {
    let good = r#"{"Effect":"Deny","Principal":"*","Action":"*","Resource":"*"}"#;
    let bad = r#"{"Sid":"two","Effect":"Deny","Principal":"*","Action":"s3:Foo","Resource":"*"}"#;
    let text = format!(r#"{{"Statement":[{good},{bad}]}}"#);
    let error = Policy::parse(&text, BUCKET).expect_err("the second is flawed");
    assert_eq!((error.statement, error.sid.as_deref()), (Some(2), Some("two")));
    assert_eq!(error.to_string(), "Policy has invalid action (statement 2, Sid two, s3:Foo)");
    let error = Policy::parse("{\"a\":", BUCKET).expect_err("no JSON");
    assert!(error.to_string().starts_with("This policy contains invalid Json (EOF"), "{error}");
    let long = with("Effect", &format!(r#""Effect":"{}""#, "ä".repeat(1000)));
    assert!(flaw(&long, BUCKET).to_string().len() < 300);
}

#[test]
fn texts_are_bounded_and_strict() {
    let padded = |len: usize| {
        let text = with("", "");
        let spaces = " ".repeat(len - text.len());
        text + &spaces
    };
    assert!(Policy::parse(&padded(TEXT_MAX), BUCKET).is_ok());
    assert_eq!(flaw(&padded(TEXT_MAX + 1), BUCKET), Flaw::TooLong);
    assert_eq!(flaw(&"[".repeat(TEXT_MAX), BUCKET), Flaw::NoObject);
    assert_eq!(flaw(&format!("{{\"a\":{}", "[".repeat(10_000)), BUCKET), Flaw::Json);
    let twice = with("Effect", r#""Effect":"Deny","Effect":"Allow""#);
    assert_eq!(flaw(&twice, BUCKET), Flaw::Json);
    assert_eq!(flaw(&(with("", "") + "{}"), BUCKET), Flaw::Json);
}

#[test]
fn fields_have_one_form() {
    for (field, replacement, expected) in [
        (
            "Principal",
            r#""Principal":"*","NotPrincipal":"*""#,
            Flaw::Both("Principal", "NotPrincipal"),
        ),
        ("Action", r#""Action":"*","NotAction":"*""#, Flaw::Both("Action", "NotAction")),
        ("Resource", r#""Resource":"*","NotResource":"*""#, Flaw::Both("Resource", "NotResource")),
        ("Effect", r#""Effect":1"#, Flaw::Syntax("Effect")),
        ("Effect", r#""Effect":"allow""#, Flaw::Effect("allow".to_owned())),
        ("Effect", r#""Effect":"Allow","Sid":1"#, Flaw::Syntax("Sid")),
        ("Effect", r#""Effect":"Allow","Condition":[]"#, Flaw::Syntax("Condition")),
        ("Action", r#""Action":{}"#, Flaw::Syntax("Action")),
        ("Action", r#""Action":[]"#, Flaw::Empty("Action")),
        ("Action", r#""Action":["s3:GetObject",1]"#, Flaw::Syntax("Action")),
        ("Resource", r#""Resource":[]"#, Flaw::Empty("Resource")),
        ("Resource", r#""Resource":null"#, Flaw::Syntax("Resource")),
        ("Principal", r#""NotPrincipal":[]"#, Flaw::Syntax("NotPrincipal")),
        ("Principal", r#""NotPrincipal":{"AWS":"ann"}"#, Flaw::AllowedNotPrincipal),
    ] {
        assert_eq!(flaw(&with(field, replacement), BUCKET), expected, "{replacement}");
    }
    for text in [r#"{"Statement":"x"}"#, r#"{"Statement":[[]]}"#] {
        assert_eq!(flaw(text, BUCKET), Flaw::Syntax("Statement"));
    }
    assert_eq!(flaw(r#"{"Id":1,"Statement":[]}"#, BUCKET), Flaw::Syntax("Id"));
    for good in [
        r#"{"Statement":{"Effect":"Allow","Principal":"*","Action":"*","Resource":"*"}}"#
            .to_owned(),
        with("Action", r#""Action":["s3:GetObject","s3:PutObject"]"#),
        with("Effect", r#""Effect":"Deny","Sid":"","Condition":{}"#),
        with("", "").replace(r#""Version""#, r#""Id":"x","Version""#),
    ] {
        let policy = Policy::parse(&good, BUCKET).expect(&good);
        assert_eq!(policy.text(), good);
    }
}

#[test]
fn a_users_policy_names_no_principals_and_any_resource() {
    assert_eq!(flaw(&with("", ""), PolicyKind::Identity), Flaw::PrincipalGiven);
    let not = with("Principal", r#""NotPrincipal":"*""#);
    assert_eq!(flaw(&not, PolicyKind::Identity), Flaw::PrincipalGiven);
    for (action, resource) in [
        ("s3:GetObject", "*"),
        ("s3:GetObject", "arn:aws:s3:::other"),
        ("kms:Decrypt", "arn:aws:kms:eu:1:key/x"),
        ("s3:ListAllMyBuckets", "arn:aws:s3:::*"),
    ] {
        let fields = format!(r#""Effect":"Allow","Action":"{action}","Resource":"{resource}""#);
        let policy = Policy::parse(&statement(&fields), PolicyKind::Identity).expect(action);
        assert!(!policy.is_public());
    }
}

#[test]
fn actions_must_be_on_some_resource_of_a_buckets_statement() {
    // (action, resources, expected)
    for (action, resource, expected) in [
        (r#""Action":"s3:GetObject""#, r#""Resource":"arn:aws:s3:::box""#, false),
        (r#""Action":"s3:GetObject""#, r#""Resource":"arn:aws:s3:::box/*""#, true),
        (r#""Action":"s3:ListBucket""#, r#""Resource":"arn:aws:s3:::box/*""#, false),
        (r#""Action":"s3:ListBucket""#, r#""Resource":"arn:aws:s3:::box*""#, true),
        (r#""Action":"s3:*""#, r#""Resource":"arn:aws:s3:::box""#, true),
        (r#""Action":"s3:Get*""#, r#""Resource":"arn:aws:s3:::box""#, true),
        (r#""Action":"s3:GetObject*""#, r#""Resource":"arn:aws:s3:::box""#, false),
        (r#""Action":["s3:ListBucket","s3:GetObject"]"#, r#""Resource":"arn:aws:s3:::box""#, false),
        (
            r#""Action":["s3:ListBucket","s3:GetObject"]"#,
            r#""Resource":["arn:aws:s3:::box","arn:aws:s3:::box/*"]"#,
            true,
        ),
        (
            r#""Action":"s3:ListBucket""#,
            r#""Resource":["arn:aws:s3:::*","arn:aws:s3:::*/*"]"#,
            true,
        ),
        (r#""Action":"s3:ListAllMyBuckets""#, r#""Resource":"*""#, false),
        (r#""Action":"s3:CreateBucket""#, r#""Resource":"*""#, false),
        (r#""NotAction":"s3:GetObject""#, r#""Resource":"arn:aws:s3:::box""#, true),
        (r#""Action":"s3:GetObject""#, r#""NotResource":"arn:aws:s3:::box""#, true),
    ] {
        let text = statement(&format!(r#""Effect":"Deny","Principal":"*",{action},{resource}"#));
        let flaw = Policy::parse(&text, BUCKET).err().map(|error| error.flaw);
        assert_eq!(flaw, (!expected).then_some(Flaw::ActionResource), "{text}");
    }
}

#[test]
fn conditions_on_listings_are_for_listings_only() {
    for (action, expected) in [
        (r#""s3:ListBucket""#, true),
        (r#"["s3:ListBucket","s3:ListBucketVersions"]"#, true),
        (r#"["s3:ListBucket","s3:GetObject"]"#, false),
        (r#""s3:ListBucketMultipartUploads""#, false),
        (r#""s3:List*""#, true),
        (r#""s3:*""#, true),
    ] {
        let fields = format!(
            r#""Effect":"Allow","Principal":"*","Action":{action},"Resource":"*",
            "Condition":{{"StringLike":{{"s3:prefix":"a/*"}}}}"#
        );
        let flaw = Policy::parse(&statement(&fields), BUCKET).err().map(|error| error.flaw);
        assert_eq!(flaw, (!expected).then_some(Flaw::ConditionAction), "{action}");
    }
}

#[test]
fn a_denial_wins_wherever_it_stands() {
    let allow = r#"{"Effect":"Allow","Principal":"*","Action":"s3:*","Resource":"*"}"#;
    let deny =
        r#"{"Effect":"Deny","Principal":{"AWS":"ann"},"Action":"s3:PutObject","Resource":"*"}"#;
    for order in [[allow, deny], [deny, allow]] {
        let text = format!(r#"{{"Statement":[{}]}}"#, order.join(","));
        let policy = Policy::parse(&text, BUCKET).expect("parses");
        assert_eq!(decide(&policy, "s3:PutObject", Some("k"), ANN), Verdict::Deny);
        assert_eq!(decide(&policy, "s3:GetObject", Some("k"), ANN), Verdict::Allow);
        assert_eq!(
            decide(&policy, "s3:PutObject", Some("k"), Principal::Anonymous),
            Verdict::Allow
        );
    }
    let text = format!(r#"{{"Statement":{deny}}}"#);
    let policy = Policy::parse(&text, BUCKET).expect("parses");
    assert_eq!(decide(&policy, "s3:GetObject", Some("k"), ANN), Verdict::Silent);
}

#[test]
fn negated_fields_cover_the_rest() {
    let text = statement(
        r#""Effect":"Deny","NotPrincipal":{"AWS":"ann"},"NotAction":"s3:Get*",
        "NotResource":"arn:aws:s3:::box/open/*""#,
    );
    let policy = Policy::parse(&text, BUCKET).expect("parses");
    let bob = Principal::User { id: "u2", name: "bob" };
    for (action, key, principal, expected) in [
        ("s3:PutObject", "k", bob, Verdict::Deny),
        ("s3:PutObject", "k", Principal::Anonymous, Verdict::Deny),
        ("s3:PutObject", "k", ANN, Verdict::Silent),
        ("s3:GetObject", "k", bob, Verdict::Silent),
        ("s3:PutObject", "open/k", bob, Verdict::Silent),
    ] {
        assert_eq!(decide(&policy, action, Some(key), principal), expected, "{action} {key}");
    }
}

#[test]
fn a_buckets_policy_is_silent_on_other_buckets() {
    let text = statement(r#""Effect":"Allow","Principal":"*","Action":"*","Resource":"*""#);
    let policy = Policy::parse(&text, BUCKET).expect("parses");
    let action = "s3:GetObject";
    let (key, principal, context) = (Some("k"), ANN, &NoContext);
    let other = Request { action, bucket: "other", key, principal, context };
    assert_eq!(policy.decide(&other), Verdict::Silent);
    assert_eq!(policy.decide(&Request { bucket: "box", ..other }), Verdict::Allow);
}

#[test]
fn variables_are_substituted_in_the_second_version_only() {
    let text = statement(
        r#""Effect":"Allow","Action":"s3:*","Resource":"arn:aws:s3:::box/${aws:username}/*""#,
    );
    let new = Policy::parse(&text, PolicyKind::Identity).expect("parses");
    assert_eq!(decide(&new, "s3:GetObject", Some("ann/k"), ANN), Verdict::Allow);
    assert_eq!(decide(&new, "s3:GetObject", Some("bob/k"), ANN), Verdict::Silent);
    let unnamed = decide(&new, "s3:GetObject", Some("/k"), Principal::Anonymous);
    assert_eq!(unnamed, Verdict::Silent);
    for old in
        [text.replace("2012-10-17", "2008-10-17"), text.replace(r#""Version":"2012-10-17","#, "")]
    {
        let old = Policy::parse(&old, PolicyKind::Identity).expect("parses");
        assert_eq!(decide(&old, "s3:GetObject", Some("ann/k"), ANN), Verdict::Silent);
        let literal = decide(&old, "s3:GetObject", Some("${aws:username}/k"), ANN);
        assert_eq!(literal, Verdict::Allow);
    }
}

/// What cannot be known is denied: `NotResource` with a variable that has no value.
#[test]
fn a_variable_without_a_value_widens_no_permission() {
    for (effect, expected) in [("Allow", Verdict::Silent), ("Deny", Verdict::Deny)] {
        let text = statement(&format!(
            r#""Effect":"{effect}","Principal":"*","Action":"s3:*",
            "NotResource":"arn:aws:s3:::box/${{aws:username}}/*""#
        ));
        let policy = Policy::parse(&text, BUCKET).expect("parses");
        let verdict = decide(&policy, "s3:GetObject", Some("k"), Principal::Anonymous);
        assert_eq!(verdict, expected, "{effect}");
    }
}

#[test]
fn policies_for_everyone_are_public_unless_they_are_narrowed() {
    let deny = r#","Condition":{"IpAddress":{"aws:SourceIp":"10.0.0.0/8"}}"#;
    for (effect, principal, condition, expected) in [
        ("Allow", r#""Principal":"*""#, "", true),
        ("Allow", r#""Principal":{"AWS":"*"}"#, "", true),
        ("Allow", r#""Principal":{"AWS":["ann","*"]}"#, "", true),
        ("Allow", r#""Principal":{"AWS":"ann"}"#, "", false),
        ("Deny", r#""NotPrincipal":{"AWS":"ann"}"#, "", false),
        ("Deny", r#""Principal":"*""#, "", false),
        ("Allow", r#""Principal":"*""#, deny, false),
        (
            "Allow",
            r#""Principal":"*""#,
            r#","Condition":{"StringLike":{"aws:SourceVpc":"vpc-*"}}"#,
            true,
        ),
        (
            "Allow",
            r#""Principal":"*""#,
            r#","Condition":{"StringEquals":{"aws:SourceVpc":"vpc-1"}}"#,
            false,
        ),
        (
            "Allow",
            r#""Principal":"*""#,
            r#","Condition":{"StringLike":{"aws:Referer":"https://x/*"}}"#,
            true,
        ),
    ] {
        let fields = format!(
            r#""Effect":"{effect}",{principal},"Action":"s3:PutObject","Resource":"*"{condition}"#
        );
        let policy = Policy::parse(&statement(&fields), BUCKET).expect(&fields);
        assert_eq!(policy.is_public(), expected, "{fields}");
    }
}

#[test]
fn the_corpus_is_of_policies() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/policy");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).expect("the corpus is committed") {
        let path = entry.expect("listed").path();
        let bytes = std::fs::read(&path).expect("read");
        fuzz_policy(&bytes);
        let text = String::from_utf8(bytes).expect("text");
        let parsed = [BUCKET, PolicyKind::Identity].map(|kind| Policy::parse(&text, kind));
        assert!(parsed.iter().any(Result::is_ok), "{}: {parsed:?}", path.display());
        count += 1;
    }
    assert!(count >= 5, "{count}");
}

/// Bytes of the text times bytes of the key at most, in a policy made to be slow.
#[test]
fn a_slow_pattern_ends() {
    let stars = "*a".repeat(9_000);
    let text = statement(&format!(
        r#""Effect":"Allow","Action":"s3:*","Resource":"arn:aws:s3:::box/{stars}b""#
    ));
    let policy = Policy::parse(&text, PolicyKind::Identity).expect("parses");
    let key = "a".repeat(1024);
    assert_eq!(decide(&policy, "s3:GetObject", Some(&key), ANN), Verdict::Silent);
}

/// A context that has a value for a few keys.
struct Fixed;

impl Context for Fixed {
    fn values(&self, key: &str) -> Values<'_> {
        match key {
            "aws:sourceip" => Values::one("10.0.0.1"),
            "aws:securetransport" => Values::one("true"),
            "s3:prefix" => Values::one("a/"),
            _ => Values::Missing,
        }
    }
}

fn any_statement(effect: &'static str) -> impl Strategy<Value = String> {
    let principal = prop_oneof![
        Just(r#""Principal":"*""#),
        Just(r#""Principal":{"AWS":"ann"}"#),
        Just(match effect {
            "Deny" => r#""NotPrincipal":{"AWS":["bob","u1"]}"#,
            _ => r#""Principal":{"AWS":["ann","u2"]}"#,
        }),
    ];
    let action = prop_oneof![
        Just(r#""Action":"*""#),
        Just(r#""Action":["s3:List*","s3:Get*"]"#),
        Just(r#""NotAction":"s3:ListBucket""#),
    ];
    let resource = prop_oneof![
        Just(r#""Resource":"*""#),
        Just(r#""Resource":["arn:aws:s3:::box","arn:aws:s3:::box/a*"]"#),
        Just(r#""NotResource":"arn:aws:s3:::box/${aws:username}/*""#),
    ];
    let condition = prop_oneof![
        Just(""),
        Just(r#","Condition":{"IpAddress":{"aws:SourceIp":"10.0.0.0/8"}}"#),
        Just(r#","Condition":{"Bool":{"aws:SecureTransport":"false"}}"#),
        Just(r#","Condition":{"StringNotLike":{"s3:prefix":"${aws:username}/*"}}"#),
        Just(r#","Condition":{"Null":{"s3:versionid":"true"}}"#),
        Just(r#","Condition":{"StringEquals":{"aws:userid":"anonymous"}}"#),
    ];
    (principal, action, resource, condition).prop_map(
        move |(principal, action, resource, condition)| {
            format!(r#"{{"Effect":"{effect}",{principal},{action},{resource}{condition}}}"#)
        },
    )
}

fn verdicts(statements: &[String]) -> Vec<Verdict> {
    let text = format!(r#"{{"Version":"2012-10-17","Statement":[{}]}}"#, statements.join(","));
    let policy = Policy::parse(&text, BUCKET).expect(&text);
    let bob = Principal::User { id: "u2", name: "bob" };
    let mut verdicts = Vec::new();
    for principal in [Principal::Anonymous, ANN, bob] {
        for (action, key) in
            [("s3:ListBucket", None), ("s3:GetObject", Some("ab")), ("s3:PutObject", Some("ann/x"))]
        {
            for context in [&NoContext as &dyn Context, &Fixed] {
                let request = Request { action, bucket: "box", key, principal, context };
                verdicts.push(policy.decide(&request));
            }
        }
    }
    verdicts
}

/// Parts of policies, in any order.
fn any_text() -> impl Strategy<Value = String> {
    let parts = prop::sample::select(vec![
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "\"",
        "\"Version\":",
        "\"2012-10-17\"",
        "\"Statement\":",
        "\"Effect\":",
        "\"Allow\"",
        "\"Principal\":",
        "\"*\"",
        "{\"AWS\":",
        "\"Action\":",
        "\"s3:GetObject\"",
        "\"Resource\":",
        "\"arn:aws:s3:::box/${aws:userid}\"",
        "\"Condition\":",
        "{\"StringLike\":{\"aws:UserAgent\":\"${*}?\"}}",
        "null",
        "1e9",
        "-0.5",
        "true",
        " ",
        "ä",
        "\\u",
    ]);
    prop::collection::vec(parts, 0..40).prop_map(|parts| format!("{{{}", parts.concat()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_further_denial_allows_nothing(
        allow in prop::collection::vec(any_statement("Allow"), 1..4),
        deny in any_statement("Deny"),
        at in any::<prop::sample::Index>(),
    ) {
        let before = verdicts(&allow);
        let mut with_denial = allow.clone();
        with_denial.insert(at.index(allow.len() + 1), deny);
        for (before, after) in before.into_iter().zip(verdicts(&with_denial)) {
            prop_assert!(after == Verdict::Deny || after == before);
        }
    }

    #[test]
    fn any_text_is_a_policy_or_has_a_flaw(text in any_text()) {
        fuzz_policy(text.as_bytes());
    }

    /// A whole policy with some bytes changed comes further than parts of one.
    #[test]
    fn a_changed_policy_is_a_policy_or_has_a_flaw(
        statement in any_statement("Allow"),
        changes in prop::collection::vec((any::<prop::sample::Index>(), 32u8..127), 0..3),
    ) {
        let text = format!(r#"{{"Version":"2012-10-17","Statement":{statement}}}"#);
        let mut bytes = text.into_bytes();
        for (index, byte) in changes {
            *index.get_mut(&mut bytes) = byte;
        }
        fuzz_policy(&bytes);
    }
}
