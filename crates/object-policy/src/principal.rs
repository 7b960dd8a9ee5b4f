//! [`Principals`]: whom a statement is about.

use crate::error::{Flaw, PolicyError};
use crate::json::Json;
use crate::request::Principal;

/// Principals of a statement.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Principals {
    /// `*`: all callers, anonymous ones too.
    Everyone,
    /// Users, one of these.
    Of(Vec<Named>),
}

/// A user, as a policy names it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Named {
    /// The user of this ID or this name: an ARN, or a bare ID.
    IdOrName(String),
    /// The user of this canonical ID.
    Id(String),
}

/// What ARNs of users begin with.
const ARN_OF_USERS: &str = "arn:aws:iam::";

impl Principals {
    /// From the value of `Principal`, or of `NotPrincipal`.
    pub(crate) fn parse(field: &'static str, json: Json) -> Result<Principals, PolicyError> {
        if let Json::Text(text) = &json {
            return match text.as_str() {
                "*" => Ok(Principals::Everyone),
                "" => Err(Flaw::Empty(field).into()),
                _ => Err(PolicyError::of(Flaw::Principal, text)),
            };
        }
        let providers = json.into_fields(field)?;
        if providers.is_empty() {
            return Err(Flaw::Empty(field).into());
        }
        let mut everyone = false;
        let mut named = Vec::new();
        for (provider, json) in providers {
            for text in json.into_texts(field)? {
                match provider.as_str() {
                    "AWS" if text == "*" => everyone = true,
                    "AWS" => named.push(Named::IdOrName(user(&text)?.to_owned())),
                    "CanonicalUser" => named.push(Named::Id(bare(&text)?.to_owned())),
                    _ => return Err(PolicyError::of(Flaw::Provider(provider), &text)),
                }
            }
        }
        Ok(if everyone { Principals::Everyone } else { Principals::Of(named) })
    }

    pub(crate) fn hold(&self, principal: Principal<'_>) -> bool {
        match (self, principal) {
            (Principals::Everyone, _) => true,
            (Principals::Of(_), Principal::Anonymous) => false,
            (Principals::Of(named), Principal::User { id, name }) => {
                named.iter().any(|one| match one {
                    Named::IdOrName(text) => text == id || text == name,
                    Named::Id(text) => text == id,
                })
            }
        }
    }
}

/// The ID or name in an ARN, or in a bare ID. There is one account: that of a user's ARN may be any
/// text, and that of a `root` is a user's ID or name. A path before a name is ignored.
fn user(text: &str) -> Result<&str, PolicyError> {
    let Some(rest) = text.strip_prefix(ARN_OF_USERS) else {
        return match text.contains(':') {
            true => Err(PolicyError::of(Flaw::Principal, text)),
            false => bare(text),
        };
    };
    let named = match rest.strip_suffix(":root") {
        Some(account) => Some(account),
        None => rest.split_once(":user/").and_then(|(account, path)| {
            let is_account = account.is_empty() || bare(account).is_ok();
            let is_named = is_account && bare(path).is_ok();
            path.rsplit('/').next().filter(|_| is_named)
        }),
    };
    named.and_then(|name| bare(name).ok()).ok_or_else(|| PolicyError::of(Flaw::Principal, text))
}

/// An ID: any text without wildcards and spaces.
fn bare(text: &str) -> Result<&str, PolicyError> {
    let is_part = |c: char| !c.is_whitespace() && !c.is_control() && c != '*' && c != '?';
    match !text.is_empty() && text.chars().all(is_part) {
        true => Ok(text),
        false => Err(PolicyError::of(Flaw::Principal, text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Principals, Flaw> {
        let json = Json::parse(text).expect(text);
        Principals::parse("Principal", json).map_err(|error| error.flaw)
    }

    #[test]
    fn principals_hold_users_by_id_and_name() {
        // (principals, anonymous, ann of u1, u1 of u2)
        for (text, expected) in [
            (r#""*""#, [true, true, true]),
            (r#"{"AWS":"*"}"#, [true, true, true]),
            (r#"{"AWS":["arn:aws:iam::1:user/x","*"]}"#, [true, true, true]),
            (r#"{"AWS":"arn:aws:iam::123456789012:user/ann"}"#, [false, true, false]),
            (r#"{"AWS":"arn:aws:iam:::user/ann"}"#, [false, true, false]),
            (r#"{"AWS":"arn:aws:iam::any:user/div/team/ann"}"#, [false, true, false]),
            (r#"{"AWS":"arn:aws:iam::1:user/u1"}"#, [false, true, true]),
            (r#"{"AWS":"arn:aws:iam::1:user/Ann"}"#, [false, false, false]),
            (r#"{"AWS":"arn:aws:iam::ann:root"}"#, [false, true, false]),
            (r#"{"AWS":"arn:aws:iam::u1:root"}"#, [false, true, true]),
            (r#"{"AWS":"u1"}"#, [false, true, true]),
            (r#"{"AWS":"123456789012"}"#, [false, false, false]),
            (r#"{"AWS":["u2","ann"]}"#, [false, true, true]),
            (r#"{"CanonicalUser":"u1"}"#, [false, true, false]),
            (r#"{"CanonicalUser":"ann"}"#, [false, false, false]),
            (r#"{"CanonicalUser":["x"],"AWS":"u2"}"#, [false, false, true]),
        ] {
            let principals = parse(text).expect(text);
            let callers = [
                Principal::Anonymous,
                Principal::User { id: "u1", name: "ann" },
                Principal::User { id: "u2", name: "u1" },
            ];
            assert_eq!(callers.map(|caller| principals.hold(caller)), expected, "{text}");
        }
    }

    #[test]
    fn malformed_principals_are_refused() {
        for text in [
            r#""u1""#,
            r#""**""#,
            r#"{"AWS":""}"#,
            r#"{"AWS":"**"}"#,
            r#"{"AWS":"u*"}"#,
            r#"{"AWS":"arn:aws:iam::1:user/*"}"#,
            r#"{"AWS":"arn:aws:iam::*:user/ann"}"#,
            r#"{"AWS":"arn:aws:iam::*:root"}"#,
            r#"{"AWS":"arn:aws:iam::1:user/*/ann"}"#,
            r#"{"AWS":"arn:aws:iam::1:user/"}"#,
            r#"{"AWS":"arn:aws:iam::1:user"}"#,
            r#"{"AWS":"arn:aws:iam:::root"}"#,
            r#"{"AWS":"arn:aws:iam::1:role/x"}"#,
            r#"{"AWS":"arn:aws:iam::1:group/x"}"#,
            r#"{"AWS":"arn:aws:sts::1:assumed-role/x/y"}"#,
            r#"{"AWS":"arn:aws:s3:::bucket"}"#,
            r#"{"AWS":"arn:aws:iam::1:user/two words"}"#,
            r#"{"CanonicalUser":"*"}"#,
        ] {
            assert_eq!(parse(text), Err(Flaw::Principal), "{text}");
        }
        for text in [r#""""#, "{}", r#"{"AWS":[]}"#] {
            assert_eq!(parse(text), Err(Flaw::Empty("Principal")), "{text}");
        }
        for text in ["[\"*\"]", "1", r#"{"AWS":1}"#, r#"{"AWS":{"a":"b"}}"#] {
            assert_eq!(parse(text), Err(Flaw::Syntax("Principal")), "{text}");
        }
        let service = parse(r#"{"Service":"logging.s3.amazonaws.com"}"#);
        assert_eq!(service, Err(Flaw::Provider("Service".to_owned())));
        let federated = parse(r#"{"Federated":"x"}"#);
        assert_eq!(federated, Err(Flaw::Provider("Federated".to_owned())));
    }
}
