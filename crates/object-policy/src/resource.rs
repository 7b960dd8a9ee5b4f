//! [`Resource`]: what a statement is about.

use crate::error::{Flaw, PolicyError};
use crate::pattern::{Subject, Syntax, Template, Token, arn_parts, matches};
use crate::request::Request;

/// What ARNs of buckets and keys begin with.
const ARN_OF_S3: &str = "arn:aws:s3:::";

/// Buckets and keys that a text stands for: a pattern over `bucket` and `bucket/key`, as one text.
/// None for a resource of another service, which no request has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Resource(Option<Template>);

/// What resources of a bucket's policy may match.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Reach {
    /// The bucket itself.
    pub(crate) bucket: bool,
    /// Keys of it.
    pub(crate) keys: bool,
}

impl Resource {
    /// Of a bucket's policy: one that may match the bucket or a key of it. Wildcards may stand in the
    /// bucket's name too (`arn:aws:s3:::name*`, `arn:aws:s3:::*`, `*`): the policy decides on requests
    /// for its own bucket only, so that they match nothing else.
    pub(crate) fn of_bucket(
        text: &str,
        bucket: &str,
        variables: bool,
    ) -> Result<(Resource, Reach), PolicyError> {
        let refused = || PolicyError::of(Flaw::Resource, text);
        let pattern = if text == "*" { text } else { text.strip_prefix(ARN_OF_S3).unwrap_or("") };
        let syntax = Syntax { wildcards: true, variables };
        let template = Template::parse(pattern, syntax).ok_or_else(refused)?;
        let tokens = template.widest();
        let reach = Reach {
            bucket: matches(&tokens, Subject::of(bucket), false),
            keys: may_begin_with(&tokens, &[bucket.as_bytes(), b"/"].concat()),
        };
        if reach == Reach::default() {
            Err(refused())
        } else {
            Ok((Resource(Some(template)), reach))
        }
    }

    /// Of a user's policy: `*` or any ARN. Those of other services match nothing.
    pub(crate) fn of_identity(text: &str, variables: bool) -> Result<Resource, PolicyError> {
        let refused = || PolicyError::of(Flaw::Resource, text);
        let syntax = Syntax { wildcards: true, variables };
        let pattern = if text == "*" {
            Some(text)
        } else {
            let parts = arn_parts(text, variables).filter(|parts| parts.len() == 6);
            let parts = parts.filter(|parts| parts[0] == "arn" && !parts[5].is_empty());
            let parts = parts.ok_or_else(refused)?;
            let wildcards = Syntax { wildcards: true, variables: false };
            let is_of_s3 = parts[1..5].iter().zip(["aws", "s3", "", ""]).all(|(part, own)| {
                Template::parse(part, wildcards).is_some_and(|part| part.matches_text(own, false))
            });
            is_of_s3.then_some(parts[5])
        };
        let template = match pattern {
            Some(pattern) => Some(Template::parse(pattern, syntax).ok_or_else(refused)?),
            None => None,
        };
        Ok(Resource(template))
    }

    /// Whether a variable in it is a key that begins so.
    pub(crate) fn asks_for(&self, start: &str) -> bool {
        self.0.as_ref().is_some_and(|template| template.asks_for(start))
    }

    /// Whether the request is for it; `None` when a variable in it has no value.
    pub(crate) fn matches(&self, request: &Request<'_>) -> Option<bool> {
        let subject = Subject::joined(request.bucket, request.key);
        self.0.as_ref().map_or(Some(false), |template| template.matches(subject, false, request))
    }
}

/// Whether some text that begins with `start` matches.
fn may_begin_with(tokens: &[Token], start: &[u8]) -> bool {
    let mut rest = start;
    for token in tokens {
        if rest.is_empty() {
            return true;
        }
        rest = match token {
            Token::Many | Token::Variable(_) => return true,
            Token::Byte(byte) if *byte == rest[0] => &rest[1..],
            // Names of buckets have characters of one byte.
            Token::One => &rest[1..],
            Token::Byte(_) => return false,
        };
    }
    rest.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{NoContext, Principal};

    fn request<'a>(bucket: &'a str, key: Option<&'a str>) -> Request<'a> {
        let principal = Principal::User { id: "u1", name: "ann" };
        Request { action: "s3:GetObject", bucket, key, principal, context: &NoContext }
    }

    #[test]
    fn resources_of_a_bucket_are_those_that_may_match_it() {
        // (text, the bucket itself, keys of it)
        for (text, bucket, keys) in [
            ("arn:aws:s3:::box", true, false),
            ("arn:aws:s3:::box/*", false, true),
            ("arn:aws:s3:::box/", false, true),
            ("arn:aws:s3:::box/a/b.jpg", false, true),
            ("arn:aws:s3:::box*", true, true),
            ("arn:aws:s3:::box*.jpg", false, true),
            ("arn:aws:s3:::b?x", true, false),
            ("arn:aws:s3:::b?x/*", false, true),
            ("arn:aws:s3:::*", true, true),
            ("arn:aws:s3:::*/*", false, true),
            ("*", true, true),
            ("arn:aws:s3:::${aws:username}", true, true),
            ("arn:aws:s3:::box/${aws:username}/*", false, true),
            ("arn:aws:s3:::boxes", false, false),
            ("arn:aws:s3:::bo", false, false),
            ("arn:aws:s3:::other/*", false, false),
            ("arn:aws:s3:::box?", false, true),
            ("arn:aws:s3:::", false, false),
            ("arn:aws:s3:::/box", false, false),
            ("arn:aws:s3:::Box", false, false),
            ("arn:aws:s3::1:box", false, false),
            ("arn:aws-cn:s3:::box", false, false),
            ("arn:aws:s3:::box/${aws:username", false, false),
            ("box", false, false),
            ("", false, false),
        ] {
            let found = Resource::of_bucket(text, "box", true).map(|(_, reach)| reach);
            let found = found.unwrap_or_default();
            assert_eq!((found.bucket, found.keys), (bucket, keys), "{text}");
        }
    }

    #[test]
    fn resources_match_buckets_and_keys() {
        for (text, bucket, key, expected) in [
            ("*", "box", Some("k"), Some(true)),
            ("*", "", None, Some(true)),
            ("arn:aws:s3:::*", "", None, Some(true)),
            ("arn:aws:s3:::*", "box", Some("k"), Some(true)),
            ("arn:aws:s3:::box", "box", None, Some(true)),
            ("arn:aws:s3:::box", "box", Some("k"), Some(false)),
            ("arn:aws:s3:::box/*", "box", None, Some(false)),
            ("arn:aws:s3:::box/*", "box", Some("a/b"), Some(true)),
            ("arn:aws:s3:::box/*", "box2", Some("a"), Some(false)),
            ("arn:aws:s3:::box*", "box2", Some("a"), Some(true)),
            ("arn:aws:s3:::box/a?", "box", Some("aä"), Some(true)),
            ("arn:aws:s3:::box/A", "box", Some("a"), Some(false)),
            ("arn:aws:s3:::*/a:b", "box", Some("a:b"), Some(true)),
            ("arn:*:s3:::box", "box", None, Some(true)),
            ("arn:aws:*:::box", "box", None, Some(true)),
            ("arn:aws:s3:*:*:box", "box", None, Some(true)),
            ("arn:aws:kms:::box", "box", None, Some(false)),
            ("arn:aws:kms:eu:1:key/x", "box", None, Some(false)),
            ("arn:aws:s3:::box/${aws:username}", "box", Some("ann"), Some(true)),
            ("arn:aws:s3:::${aws:username}-*", "ann-1", None, Some(true)),
            ("arn:aws:s3:::box/${s3:prefix}", "box", Some("ann"), None),
        ] {
            let resource = Resource::of_identity(text, true).expect(text);
            assert_eq!(
                resource.matches(&request(bucket, key)),
                expected,
                "{text} {bucket} {key:?}"
            );
        }
        let old = Resource::of_identity("arn:aws:s3:::box/${aws:username}", false).expect("parses");
        assert_eq!(old.matches(&request("box", Some("ann"))), Some(false));
        assert_eq!(old.matches(&request("box", Some("${aws:username}"))), Some(true));
    }

    #[test]
    fn texts_that_are_no_arn_are_refused() {
        for text in
            ["", "box", "arn:aws:s3", "arn:aws:s3::", "arn:aws:s3:::", "s3:::box", "**", "a*"]
        {
            let error = Resource::of_identity(text, true).expect_err(text);
            assert_eq!(error.flaw, Flaw::Resource, "{text}");
        }
    }
}
