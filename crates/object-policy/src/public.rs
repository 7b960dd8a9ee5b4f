//! Whether a condition keeps a statement for everyone from being public.

use crate::condition::{Condition, Wanted};
use crate::operator::Quantifier;
use crate::pattern::Template;
use crate::request::ANONYMOUS_ID;

/// Keys whose values only one's own, or one's partners', requests have: in lower case, sorted.
const NARROWING_KEYS: [&str; 13] = [
    "aws:principalaccount",
    "aws:principalarn",
    "aws:principalorgid",
    "aws:sourceaccount",
    "aws:sourcearn",
    "aws:sourceip",
    "aws:sourceowner",
    "aws:sourcevpc",
    "aws:sourcevpce",
    "aws:userid",
    "s3:dataaccesspointaccount",
    "s3:dataaccesspointarn",
    "s3:x-amz-server-side-encryption-aws-kms-key-id",
];

/// Whether it lets in only requests with one of some fixed values of such a key: neither wildcards nor
/// variables, nor what holds for a missing key. Networks must not be wide.
pub(crate) fn narrows(condition: &Condition) -> bool {
    let operator = condition.operator;
    let demands = !operator.negated && !operator.if_exists;
    if !demands || operator.quantifier == Quantifier::ForAll {
        return false;
    }
    let key = condition.key.as_str();
    if NARROWING_KEYS.binary_search(&key).is_err() {
        return false;
    }
    match &condition.wanted {
        Wanted::Networks(networks) => {
            key == "aws:sourceip" && !networks.iter().any(|network| network.is_wide())
        }
        Wanted::Texts { templates, .. } => {
            // Each anonymous caller has that ID.
            let is_open =
                |text: &Template| key == "aws:userid" && text.matches_text(ANONYMOUS_ID, true);
            key != "aws:sourceip" && templates.iter().all(|text| text.is_fixed() && !is_open(text))
        }
        // The name of an access point may be open as long as its account is fixed.
        Wanted::Arns(arns) if key == "s3:dataaccesspointarn" => {
            arns.iter().all(|parts| parts[4].is_fixed() && !parts[4].matches_text("", false))
        }
        Wanted::Arns(arns) => arns.iter().flatten().all(|part| part.is_fixed()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::condition::Rules;
    use crate::json::Json;

    #[test]
    fn narrowing_keys_are_sorted() {
        assert!(NARROWING_KEYS.is_sorted());
    }

    #[test]
    fn fixed_values_of_some_keys_narrow() {
        for (condition, expected) in [
            (r#"{"IpAddress":{"aws:SourceIp":"10.0.0.0/8"}}"#, true),
            (r#"{"IpAddress":{"aws:SourceIp":["10.0.0.0/8","0.0.0.0/1"]}}"#, false),
            (r#"{"IpAddress":{"aws:SourceIp":"2001:db8::/32"}}"#, true),
            (r#"{"IpAddress":{"aws:SourceIp":"::/0"}}"#, false),
            (r#"{"IpAddressIfExists":{"aws:SourceIp":"10.0.0.0/8"}}"#, false),
            (r#"{"NotIpAddress":{"aws:SourceIp":"10.0.0.0/8"}}"#, false),
            (r#"{"IpAddress":{"aws:VpcSourceIp":"10.0.0.0/8"}}"#, false),
            (r#"{"StringEquals":{"aws:SourceVpc":"vpc-1"}}"#, true),
            (r#"{"StringLike":{"aws:SourceVpc":"vpc-1"}}"#, true),
            (r#"{"StringLike":{"aws:SourceVpc":"vpc-*"}}"#, false),
            (r#"{"StringEquals":{"aws:SourceVpc":"vpc-*"}}"#, true),
            (r#"{"StringEquals":{"aws:SourceVpc":["vpc-1","${aws:username}"]}}"#, false),
            (r#"{"StringNotEquals":{"aws:SourceVpc":"vpc-1"}}"#, false),
            (r#"{"ForAnyValue:StringEquals":{"aws:SourceVpce":"vpce-1"}}"#, true),
            (r#"{"ForAllValues:StringEquals":{"aws:SourceVpce":"vpce-1"}}"#, false),
            (r#"{"ArnLike":{"aws:SourceArn":"arn:aws:s3:::box"}}"#, true),
            (r#"{"ArnLike":{"aws:SourceArn":"arn:aws:s3:::*"}}"#, false),
            (r#"{"StringEquals":{"aws:PrincipalOrgID":"o-1"}}"#, true),
            (r#"{"StringEquals":{"aws:SourceAccount":"1"}}"#, true),
            (r#"{"StringEquals":{"aws:userid":"AID"}}"#, true),
            (r#"{"StringEquals":{"aws:userid":["AID","anonymous"]}}"#, false),
            (r#"{"StringEqualsIgnoreCase":{"aws:userid":"Anonymous"}}"#, false),
            (r#"{"StringEquals":{"aws:username":"ann"}}"#, false),
            (r#"{"StringEquals":{"aws:Referer":"https://x"}}"#, false),
            (r#"{"StringEquals":{"s3:prefix":"x"}}"#, false),
            (r#"{"StringEquals":{"s3:DataAccessPointAccount":"1"}}"#, true),
            (r#"{"ArnLike":{"s3:DataAccessPointArn":"arn:aws:s3:eu:1:accesspoint/*"}}"#, true),
            (r#"{"ArnLike":{"s3:DataAccessPointArn":"arn:aws:s3:eu:*:accesspoint/*"}}"#, false),
            (r#"{"Null":{"aws:SourceVpc":"false"}}"#, false),
            (r#"{"Bool":{"aws:SecureTransport":"true"}}"#, false),
        ] {
            let rules = Rules { variables: true, of_bucket: true };
            let json = Json::parse(condition).expect(condition);
            let conditions = Condition::parse_all(json, rules).expect(condition);
            assert_eq!(conditions.iter().any(narrows), expected, "{condition}");
        }
    }
}
