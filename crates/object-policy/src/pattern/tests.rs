use proptest::prelude::*;

use super::*;
use crate::request::{Context, Principal, Values};

const ALL: Syntax = Syntax { wildcards: true, variables: true };
const WILDCARDS: Syntax = Syntax { wildcards: true, variables: false };

/// A context in which `s3:prefix` has a value and `s3:requestobjecttagkeys` has two.
struct Prefix(&'static str);

impl Context for Prefix {
    fn values(&self, key: &str) -> Values<'_> {
        match key {
            "s3:prefix" => Values::one(self.0),
            "s3:requestobjecttagkeys" => Values::Several(vec!["a".into(), "b".into()]),
            "s3:requestobjecttag/Team" => Values::Several(vec!["red".into()]),
            _ => Values::Missing,
        }
    }
}

fn check(pattern: &str, text: &str, prefix: &'static str, expected: Option<bool>) {
    let principal = Principal::User { id: "u1", name: "ann" };
    let context = Prefix(prefix);
    let request =
        Request { action: "s3:GetObject", bucket: "b", key: None, principal, context: &context };
    let template = Template::parse(pattern, ALL).expect(pattern);
    let found = template.matches(Subject::of(text), false, &request);
    assert_eq!(found, expected, "{pattern} {text} {prefix}");
}

#[test]
fn wildcards_match_whole_texts() {
    for (pattern, text, expected) in [
        ("", "", true),
        ("", "a", false),
        ("*", "", true),
        ("?", "", false),
        ("?", "ä", true),
        ("?", "\u{1f600}", true),
        ("??", "ä", false),
        ("*?", "äö", true),
        ("a*", "a/b/c", true),
        ("a*c", "a/b/c", true),
        ("a*c", "a/b/cd", false),
        ("*ab", "aab", true),
        ("*ab?", "aabab", false),
        ("*ab?", "aababc", true),
        ("a**b", "ab", true),
        ("ä*ü", "äöü", true),
        ("A", "a", false),
        ("$", "$", true),
        ("${", "x", false),
        ("a.c", "abc", false),
    ] {
        let template = Template::parse(pattern, WILDCARDS).expect(pattern);
        assert_eq!(template.matches_text(text, false), expected, "{pattern} {text}");
    }
    let template = Template::parse("S3:get*", WILDCARDS).expect("parses");
    assert!(template.matches_text("s3:GetObject", true));
    assert!(!template.matches_text("s3:GetObject", false));
}

#[test]
fn joined_subjects_match_as_one_text() {
    for (pattern, head, tail, expected) in [
        ("b/k", "b", Some("k"), true),
        ("b", "b", Some(""), false),
        ("b/", "b", Some(""), true),
        ("b", "b", None, true),
        ("b*", "b", Some("k"), true),
        ("b?k", "b", Some("k"), true),
        ("b/*/x", "b", Some("a/x"), true),
        ("b/*/x", "b", Some("a/y"), false),
        ("", "", None, true),
    ] {
        let template = Template::parse(pattern, WILDCARDS).expect(pattern);
        let found = matches(&template.tokens, Subject::joined(head, tail), false);
        assert_eq!(found, expected, "{pattern} {head} {tail:?}");
    }
}

#[test]
fn variables_are_substituted_and_their_values_are_literal() {
    check("home/${aws:username}/*", "home/ann/x", "", Some(true));
    check("home/${AWS:UserName}/*", "home/ann/x", "", Some(true));
    check("home/${aws:username}/*", "home/bob/x", "", Some(false));
    check("${aws:userid}", "u1", "", Some(true));
    check("${s3:prefix}", "a*", "a*", Some(true));
    check("${s3:prefix}", "ab", "a*", Some(false));
    check("${s3:prefix}", "ab", "a?", Some(false));
    check("${s3:prefix}", "${aws:username}", "${aws:username}", Some(true));
    check("${s3:delimiter}", "", "", None);
    check("${s3:delimiter, 'x*'}", "x*", "", Some(true));
    check("${s3:delimiter,'x'}y", "xy", "", Some(true));
    check("${s3:delimiter, '}' }", "}", "", Some(true));
    check("${s3:prefix, 'x'}", "x", "a", Some(false));
    check("${s3:requestobjecttagkeys}", "a", "", None);
    check("${s3:RequestObjectTag/Team}", "red", "", Some(true));
    check("a${*}b", "a*b", "", Some(true));
    check("a${*}b", "axb", "", Some(false));
    check("${?}${$}", "?$", "", Some(true));
    check("${$}{aws:username}", "${aws:username}", "", Some(true));
    check("$aws:username", "$aws:username", "", Some(true));
}

#[test]
fn malformed_variables_are_refused() {
    for text in [
        "${",
        "${}",
        "${aws:username",
        "${username}",
        "${aws:user name}",
        "${aws:username, x}",
        "${aws:username, 'x}",
        "${aws:username, 'x' y}",
        "${aws:${s3:prefix}}",
        "${**}",
    ] {
        assert_eq!(Template::parse(text, ALL), None, "{text}");
        assert!(Template::parse(text, WILDCARDS).is_some(), "{text}");
    }
}

#[test]
fn parts_of_an_arn_do_not_end_within_variables() {
    let parts = |text, variables| arn_parts(text, variables).map(|parts| parts.join("|"));
    let text = "arn:aws:s3::${aws:userid}:a:b";
    assert_eq!(parts(text, true).as_deref(), Some("arn|aws|s3||${aws:userid}|a:b"));
    assert_eq!(parts(text, false).as_deref(), Some("arn|aws|s3||${aws|userid}:a:b"));
    assert_eq!(parts("arn:${aws", true), None);
    assert_eq!(parts("ä:b", true).as_deref(), Some("ä|b"));
}

/// The definition: recursion over both.
fn reference(tokens: &[Token], text: &[char]) -> bool {
    match tokens.split_first() {
        None => text.is_empty(),
        Some((Token::Many, rest)) => (0..=text.len()).any(|at| reference(rest, &text[at..])),
        Some((Token::One, rest)) => !text.is_empty() && reference(rest, &text[1..]),
        Some((Token::Byte(byte), rest)) => {
            text.first() == Some(&char::from(*byte)) && reference(rest, &text[1..])
        }
        Some((Token::Variable(_), _)) => false,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn matches_are_those_of_the_definition(pattern in "[ab*?]{0,8}", text in "[abä]{0,9}") {
        let template = Template::parse(&pattern, WILDCARDS).expect("no variables");
        let chars: Vec<char> = text.chars().collect();
        prop_assert_eq!(template.matches_text(&text, false), reference(&template.tokens, &chars));
    }

    #[test]
    fn any_text_is_a_template_or_malformed(text in "[a$:{}*?', ä]{0,16}") {
        if let Some(template) = Template::parse(&text, ALL) {
            template.widest();
        }
        arn_parts(&text, true);
    }
}
