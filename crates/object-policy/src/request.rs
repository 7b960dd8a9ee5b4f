//! [`Request`]: what a policy decides on.

use std::borrow::Cow;

/// Beginning of the ARN of a user: there are no accounts.
const USER_ARN: &str = "arn:aws:iam:::user/";

/// `aws:userid` of anonymous callers.
pub(crate) const ANONYMOUS_ID: &str = "anonymous";

/// A request, as a policy sees it.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// The action, as `s3:GetObject`.
    pub action: &'a str,
    /// The bucket's name. Empty for a request that concerns none, such as `s3:ListAllMyBuckets`.
    pub bucket: &'a str,
    /// The object's key; none for a request that concerns the bucket itself.
    pub key: Option<&'a str>,
    /// The caller.
    pub principal: Principal<'a>,
    /// Values of condition keys.
    pub context: &'a dyn Context,
}

/// Who asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Principal<'a> {
    /// A caller without a signature.
    Anonymous,
    /// A user of the service.
    User {
        /// Its canonical ID.
        id: &'a str,
        /// Its name.
        name: &'a str,
    },
}

/// Values of condition keys in one request.
///
/// Keys are in lower case, as in [`CONDITION_KEYS`](crate::CONDITION_KEYS). Of a key with a tag's
/// name only the part up to the slash is: the name is as the policy has it
/// (`s3:existingobjecttag/Team`). The policy itself answers `aws:username`, `aws:userid`,
/// `aws:principalarn` and `aws:principaltype` from the request's principal, and does not ask for them.
pub trait Context {
    /// The values of a key.
    fn values(&self, key: &str) -> Values<'_>;
}

/// Values of a key in a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Values<'a> {
    /// The request does not have the key.
    Missing,
    /// It has one value.
    One(Cow<'a, str>),
    /// It has any number of values. None is as if the key were missing.
    Several(Vec<Cow<'a, str>>),
}

/// The context of a request without any condition key.
#[derive(Clone, Copy, Debug)]
pub struct NoContext;

impl Context for NoContext {
    fn values(&self, _: &str) -> Values<'_> {
        Values::Missing
    }
}

impl<'a> Values<'a> {
    /// One value that the caller holds.
    pub fn one(value: &'a str) -> Values<'a> {
        Values::One(Cow::Borrowed(value))
    }

    /// All of them.
    pub fn as_slice(&self) -> &[Cow<'a, str>] {
        match self {
            Values::Missing => &[],
            Values::One(value) => std::slice::from_ref(value),
            Values::Several(values) => values,
        }
    }
}

impl<'a> Request<'a> {
    /// The values of a condition key.
    pub(crate) fn values(&self, key: &str) -> Values<'a> {
        match (key, self.principal) {
            ("aws:username", Principal::User { name, .. }) => Values::one(name),
            ("aws:username", Principal::Anonymous) => Values::Missing,
            ("aws:userid", Principal::User { id, .. }) => Values::one(id),
            ("aws:userid", Principal::Anonymous) => Values::one(ANONYMOUS_ID),
            ("aws:principalarn", Principal::User { name, .. }) => {
                Values::One(Cow::Owned(format!("{USER_ARN}{name}")))
            }
            ("aws:principalarn", Principal::Anonymous) => Values::Missing,
            ("aws:principaltype", Principal::User { .. }) => Values::one("User"),
            ("aws:principaltype", Principal::Anonymous) => Values::one("Anonymous"),
            _ => self.context.values(key),
        }
    }

    /// The value of a variable: that of a key which has exactly one.
    pub(crate) fn variable(&self, key: &str) -> Option<Cow<'a, str>> {
        match self.values(key) {
            Values::One(value) => Some(value),
            Values::Several(mut values) if values.len() == 1 => values.pop(),
            _ => None,
        }
    }
}
