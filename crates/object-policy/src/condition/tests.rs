use super::*;
use crate::request::{Context, Principal, Values};

const OLD: Rules = Rules { variables: false, of_bucket: true };
const BUCKET: Rules = Rules { variables: true, of_bucket: true };
const IDENTITY: Rules = Rules { variables: true, of_bucket: false };

/// A context in which `aws:useragent` has these values.
struct Agents<'a>(&'a [&'a str]);

impl Context for Agents<'_> {
    fn values(&self, key: &str) -> Values<'_> {
        match (key, self.0) {
            ("aws:useragent" | "s3:existingobjecttag/Team", [one]) => Values::one(one),
            ("aws:useragent", several) => {
                Values::Several(several.iter().map(|value| (*value).into()).collect())
            }
            _ => Values::Missing,
        }
    }
}

fn parse(text: &str, rules: Rules) -> Result<Vec<Condition>, PolicyError> {
    Condition::parse_all(Json::parse(text).expect(text), rules)
}

fn holds(condition: &str, values: &[&str], principal: Principal<'_>, unresolved: bool) -> bool {
    let context = Agents(values);
    let action = "s3:GetObject";
    let request = Request { action, bucket: "b", key: None, principal, context: &context };
    let conditions = parse(condition, BUCKET).expect(condition);
    conditions.iter().all(|condition| condition.holds(&request, unresolved))
}

/// Checks an operator on `aws:useragent` plainly, with `IfExists`, and for all and any values.
fn check(operator: &str, wanted: &str, values: &[&str], expected: [bool; 4]) {
    let ann = Principal::User { id: "u1", name: "ann" };
    let names = [
        operator.to_owned(),
        format!("{operator}IfExists"),
        format!("ForAllValues:{operator}"),
        format!("ForAnyValue:{operator}"),
    ];
    let found = names.map(|name| {
        let condition = format!(r#"{{"{name}":{{"aws:UserAgent":{wanted}}}}}"#);
        holds(&condition, values, ann, false)
    });
    assert_eq!(found, expected, "{operator} {wanted} {values:?}");
}

const YES: [bool; 4] = [true; 4];
const NO: [bool; 4] = [false; 4];

/// What operators are for a missing key.
fn check_missing(operator: &str, wanted: &str, negated: bool) {
    check(operator, wanted, &[], [negated, true, true, false]);
}

#[test]
fn texts_are_compared_as_operators_say() {
    check("StringEquals", r#""a""#, &["a"], YES);
    check("StringEquals", r#""a""#, &["A"], NO);
    check("StringEquals", r#"["b","a"]"#, &["a"], YES);
    check("StringEquals", r#""a*""#, &["ab"], NO);
    check("StringEquals", r#""a*""#, &["a*"], YES);
    check("StringEquals", r#""""#, &[""], YES);
    check("StringEquals", "5", &["5"], YES);
    check("StringEquals", "true", &["true"], YES);
    check("StringEquals", "1.5", &["1.5"], YES);
    check("StringNotEquals", r#""a""#, &["a"], NO);
    check("StringNotEquals", r#""a""#, &["b"], YES);
    check("StringNotEquals", r#"["a","b"]"#, &["b"], NO);
    check("StringEqualsIgnoreCase", r#""aB""#, &["Ab"], YES);
    check("StringEqualsIgnoreCase", r#""aB""#, &["ab*"], NO);
    check("StringNotEqualsIgnoreCase", r#""aB""#, &["Ab"], NO);
    check("StringNotEqualsIgnoreCase", r#""aB""#, &["c"], YES);
    check("StringLike", r#""a*""#, &["ab"], YES);
    check("StringLike", r#""a?c""#, &["aäc"], YES);
    check("StringLike", r#""a*""#, &["Ab"], NO);
    check("StringNotLike", r#""a*""#, &["ab"], NO);
    check("StringNotLike", r#"["a*","b*"]"#, &["c"], YES);
    check_missing("StringEquals", r#""a""#, false);
    check_missing("StringNotEquals", r#""a""#, true);
    check_missing("StringEqualsIgnoreCase", r#""a""#, false);
    check_missing("StringNotEqualsIgnoreCase", r#""a""#, true);
    check_missing("StringLike", r#""*""#, false);
    check_missing("StringNotLike", r#""*""#, true);
}

#[test]
fn several_values_are_compared_as_quantifiers_say() {
    check("StringEquals", r#"["a","b"]"#, &["a", "b"], YES);
    check("StringEquals", r#"["a","b"]"#, &["a", "c"], [true, true, false, true]);
    check("StringEquals", r#"["a","b"]"#, &["c", "d"], NO);
    check("StringNotEquals", r#"["a","b"]"#, &["a", "b"], NO);
    check("StringNotEquals", r#"["a","b"]"#, &["a", "c"], [false, false, false, true]);
    check("StringNotEquals", r#"["a","b"]"#, &["c", "d"], YES);
}

#[test]
fn numbers_are_compared_as_operators_say() {
    for (operator, below, equal, above) in [
        ("NumericEquals", false, true, false),
        ("NumericNotEquals", true, false, true),
        ("NumericLessThan", true, false, false),
        ("NumericLessThanEquals", true, true, false),
        ("NumericGreaterThan", false, false, true),
        ("NumericGreaterThanEquals", false, true, true),
    ] {
        check(operator, r#""10""#, &["9"], [below; 4]);
        check(operator, "10", &["10.0"], [equal; 4]);
        check(operator, r#""1e1""#, &["100"], [above; 4]);
        check(operator, "10", &["ten"], [operator == "NumericNotEquals"; 4]);
        check_missing(operator, "10", operator == "NumericNotEquals");
    }
    check("NumericEquals", r#"["1","-2.5"]"#, &["-2.5"], YES);
    check("NumericLessThan", r#"["1","5"]"#, &["3"], YES);
}

#[test]
fn dates_are_compared_as_operators_say() {
    for (operator, before, equal, after) in [
        ("DateEquals", false, true, false),
        ("DateNotEquals", true, false, true),
        ("DateLessThan", true, false, false),
        ("DateLessThanEquals", true, true, false),
        ("DateGreaterThan", false, false, true),
        ("DateGreaterThanEquals", false, true, true),
    ] {
        let wanted = r#""2023-11-14T22:13:20Z""#;
        check(operator, wanted, &["2023-11-14T22:13:19.9Z"], [before; 4]);
        check(operator, wanted, &["1700000000"], [equal; 4]);
        check(operator, "1700000000", &["2023-11-14T22:13:20Z"], [equal; 4]);
        check(operator, wanted, &["2023-11-15"], [after; 4]);
        check(operator, wanted, &["soon"], [operator == "DateNotEquals"; 4]);
        check_missing(operator, wanted, operator == "DateNotEquals");
    }
}

#[test]
fn other_types_are_compared_as_operators_say() {
    check("Bool", r#""true""#, &["true"], YES);
    check("Bool", "false", &["False"], YES);
    check("Bool", "false", &["true"], NO);
    check("Bool", "false", &["no"], NO);
    check_missing("Bool", "true", false);
    check("BinaryEquals", r#""YWI=""#, &["ab"], YES);
    check("BinaryEquals", r#""YWI=""#, &["YWI="], NO);
    check_missing("BinaryEquals", r#""YWI=""#, false);
    check("IpAddress", r#"["10.0.0.0/8","2001:db8::/32"]"#, &["10.1.2.3"], YES);
    check("IpAddress", r#"["10.0.0.0/8","2001:db8::/32"]"#, &["2001:db8::1"], YES);
    check("IpAddress", r#""10.0.0.0/8""#, &["::ffff:10.1.2.3"], YES);
    check("IpAddress", r#""10.0.0.0/8""#, &["11.1.2.3"], NO);
    check("IpAddress", r#""10.0.0.0/8""#, &["localhost"], NO);
    check("NotIpAddress", r#""10.0.0.0/8""#, &["10.1.2.3"], NO);
    check("NotIpAddress", r#""10.0.0.0/8""#, &["11.1.2.3"], YES);
    check_missing("IpAddress", r#""10.0.0.0/8""#, false);
    check_missing("NotIpAddress", r#""10.0.0.0/8""#, true);
    for operator in ["ArnEquals", "ArnLike"] {
        let wanted = r#""arn:aws:iam::*:user/a*""#;
        check(operator, wanted, &["arn:aws:iam::1:user/ann"], YES);
        check(operator, wanted, &["arn:aws:iam::1:user/a:b"], YES);
        check(operator, wanted, &["arn:aws:iam::1:x:user/ann"], NO);
        check(operator, wanted, &["arn:aws:iam"], NO);
        check_missing(operator, wanted, false);
    }
    for operator in ["ArnNotEquals", "ArnNotLike"] {
        check(operator, r#""arn:aws:iam::*:user/a*""#, &["arn:aws:iam::1:user/ann"], NO);
        check(operator, r#""arn:aws:iam::*:user/a*""#, &["arn:aws:iam::1:user/bob"], YES);
        check_missing(operator, r#""arn:aws:iam::1:user/a""#, true);
    }
}

#[test]
fn null_is_about_keys_that_are_missing() {
    for (wanted, values, expected) in [
        ("true", &[][..], true),
        ("true", &["x"][..], false),
        (r#""false""#, &[][..], false),
        (r#""false""#, &["x"][..], true),
        (r#""false""#, &[""][..], true),
        (r#"["true","false"]"#, &[][..], true),
    ] {
        let condition = format!(r#"{{"Null":{{"aws:UserAgent":{wanted}}}}}"#);
        assert_eq!(holds(&condition, values, Principal::Anonymous, false), expected, "{condition}");
    }
}

#[test]
fn all_keys_and_operators_must_hold() {
    let ann = Principal::User { id: "u1", name: "ann" };
    for (condition, expected) in [
        ("{}", true),
        (r#"{"StringEquals":{}}"#, true),
        (r#"{"StringEquals":{"aws:UserAgent":"x","aws:username":"ann"}}"#, true),
        (r#"{"StringEquals":{"aws:UserAgent":"x","aws:username":"bob"}}"#, false),
        (r#"{"StringEquals":{"AWS:USERAGENT":"x"},"Bool":{"aws:SecureTransport":"true"}}"#, false),
        (r#"{"StringEquals":{"aws:userid":"u1","aws:PrincipalType":"User"}}"#, true),
        (r#"{"StringEquals":{"S3:ExistingObjectTag/Team":"x"}}"#, true),
        (r#"{"StringEquals":{"s3:ExistingObjectTag/team":"x"}}"#, false),
    ] {
        assert_eq!(holds(condition, &["x"], ann, false), expected, "{condition}");
    }
}

#[test]
fn variables_are_substituted_in_texts_and_arns() {
    let ann = Principal::User { id: "u1", name: "ann" };
    for (condition, value, expected) in [
        (r#"{"StringEquals":{"aws:UserAgent":"${aws:username}"}}"#, "ann", true),
        (r#"{"StringLike":{"aws:UserAgent":"${aws:username}/*"}}"#, "ann/x", true),
        (r#"{"StringEqualsIgnoreCase":{"aws:UserAgent":"${aws:username}"}}"#, "ANN", true),
        (r#"{"StringLike":{"aws:UserAgent":"a${*}"}}"#, "ab", false),
        (
            r#"{"ArnLike":{"aws:UserAgent":"arn:aws:iam::*:user/${aws:username}"}}"#,
            "arn:aws:iam::1:user/ann",
            true,
        ),
        (
            r#"{"ArnLike":{"aws:UserAgent":"arn:aws:iam::*:user/${aws:userid}"}}"#,
            "arn:aws:iam::1:user/ann",
            false,
        ),
    ] {
        assert_eq!(holds(condition, &[value], ann, false), expected, "{condition}");
    }
    let literal = parse(r#"{"StringEquals":{"aws:UserAgent":"${aws:username}"}}"#, OLD);
    let context = Agents(&["${aws:username}"]);
    let (action, principal) = ("s3:GetObject", ann);
    let request = Request { action, bucket: "b", key: None, principal, context: &context };
    assert!(literal.expect("parses")[0].holds(&request, false));
}

/// A negated test gives what it is asked to; a value that matches without variables decides.
#[test]
fn variables_without_a_value_fail() {
    for (condition, expected) in [
        (r#"{"StringEquals":{"aws:UserAgent":"${aws:username}"}}"#, [false, false]),
        (r#"{"StringEquals":{"aws:UserAgent":["${aws:username}","x"]}}"#, [true, true]),
        (r#"{"StringNotEquals":{"aws:UserAgent":"${aws:username}"}}"#, [false, true]),
        (r#"{"StringNotEquals":{"aws:UserAgent":["${aws:username}","x"]}}"#, [false, false]),
        (r#"{"ArnNotLike":{"aws:UserAgent":"arn:aws:iam::1:user/${aws:username}"}}"#, [true, true]),
        (r#"{"StringNotEquals":{"aws:UserAgent":"${aws:username, 'y'}"}}"#, [true, true]),
    ] {
        let found =
            [false, true].map(|given| holds(condition, &["x"], Principal::Anonymous, given));
        assert_eq!(found, expected, "{condition}");
    }
}

#[test]
fn values_that_are_none_for_their_operator_are_refused() {
    for (operator, value, flaw) in [
        ("NumericEquals", r#""ten""#, Flaw::ConditionValue),
        ("NumericEquals", r#""NaN""#, Flaw::ConditionValue),
        ("NumericEquals", r#""inf""#, Flaw::ConditionValue),
        ("NumericEquals", r#""1e999""#, Flaw::ConditionValue),
        ("NumericLessThan", r#"["1",""]"#, Flaw::ConditionValue),
        ("NumericLessThan", r#""${aws:username}""#, Flaw::ConditionValue),
        ("DateLessThan", r#""tomorrow""#, Flaw::ConditionValue),
        ("DateLessThan", r#""2023-02-30""#, Flaw::ConditionValue),
        ("Bool", r#""yes""#, Flaw::ConditionValue),
        ("Bool", r#""${aws:username}""#, Flaw::ConditionValue),
        ("Null", r#""""#, Flaw::ConditionValue),
        ("BinaryEquals", r#""YWI""#, Flaw::ConditionValue),
        ("IpAddress", r#""10.0.0.0/33""#, Flaw::Address),
        ("IpAddress", r#""10.0.0.*""#, Flaw::Address),
        ("NotIpAddress", r#""host""#, Flaw::Address),
        ("ArnLike", r#""*""#, Flaw::ConditionValue),
        ("ArnEquals", r#""arn:aws:s3""#, Flaw::ConditionValue),
        ("StringLike", r#""${aws:username""#, Flaw::ConditionValue),
        ("StringEquals", "null", Flaw::Syntax("Condition")),
        ("StringEquals", r#"{"a":"b"}"#, Flaw::Syntax("Condition")),
        ("StringEquals", "[[\"a\"]]", Flaw::Syntax("Condition")),
        ("StringEquals", "[]", Flaw::Empty("Condition")),
        ("StringMatches", r#""a""#, Flaw::ConditionType("StringMatches".to_owned())),
        ("NullIfExists", "true", Flaw::ConditionType("NullIfExists".to_owned())),
    ] {
        let condition = format!(r#"{{"{operator}":{{"aws:UserAgent":{value}}}}}"#);
        let error = parse(&condition, BUCKET).expect_err(&condition);
        assert_eq!(error.flaw, flaw, "{condition}");
    }
    for condition in ["[]", r#""a""#, r#"{"StringEquals":"a"}"#] {
        let error = parse(condition, BUCKET).expect_err(condition);
        assert_eq!(error.flaw, Flaw::Syntax("Condition"), "{condition}");
    }
}

#[test]
fn keys_that_a_policy_may_not_name_are_refused() {
    // (key, may a bucket's policy name it, may a user's)
    for (key, bucket, identity) in [
        ("aws:SourceIp", true, true),
        ("s3:RequestObjectTag/Team", true, true),
        ("s3:Foo", false, false),
        ("S3:Foo", false, false),
        ("s3:RequestObjectTag", false, false),
        ("aws:Foo", false, true),
        ("kms:ViaService", false, true),
        ("Foo", false, false),
        ("", false, false),
    ] {
        let condition = format!(r#"{{"Null":{{"{key}":"true"}}}}"#);
        for (rules, expected) in [(BUCKET, bucket), (IDENTITY, identity)] {
            let error = parse(&condition, rules).err().map(|error| error.flaw);
            assert_eq!(error, (!expected).then_some(Flaw::ConditionKey), "{condition}");
        }
    }
}

#[test]
fn a_bucket_compares_the_source_address_with_addresses_only() {
    let text = |value: &str| format!(r#"{{"StringLike":{{"aws:SourceIp":"{value}"}}}}"#);
    assert!(parse(&text("10.0.0.1"), BUCKET).is_ok());
    let error = parse(&text("10.0.0.*"), BUCKET).expect_err("no address");
    assert_eq!(error.flaw, Flaw::Address);
    assert!(parse(&text("10.0.0.*"), IDENTITY).is_ok());
    assert!(parse(r#"{"Null":{"aws:SourceIp":"true"}}"#, BUCKET).is_ok());
}
