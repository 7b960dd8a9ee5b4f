//! [`Policy`]: a document, parsed, and its verdicts.

use crate::error::{Flaw, PolicyError, shortened};
use crate::json::Json;
use crate::limits::TEXT_MAX;
use crate::request::{Principal, Request};
use crate::statement::{Effect, Place, Statement};

/// The versions of the language. Variables are substituted in the second only.
const VERSIONS: [&str; 2] = ["2008-10-17", "2012-10-17"];

/// What a policy belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PolicyKind<'a> {
    /// A bucket: statements name principals, and resources are the bucket and keys of it.
    Bucket {
        /// The bucket's name.
        name: &'a str,
    },
    /// A user, or an access key: statements name no principals, and any resource.
    Identity,
}

/// A policy document.
///
/// A policy parses the same whenever it is loaded; only what [`Policy::parse`] accepted is stored.
#[derive(Clone, PartialEq, Debug)]
pub struct Policy {
    text: String,
    /// The bucket whose policy it is.
    bucket: Option<String>,
    statements: Vec<Statement>,
}

/// What a policy says of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It is allowed, if no other policy denies it.
    Allow,
    /// It is denied, whatever other policies say.
    Deny,
    /// The policy says nothing of it.
    Silent,
}

impl Policy {
    /// Parses and checks a document.
    ///
    /// # Errors
    ///
    /// The first flaw, with its statement.
    pub fn parse(text: &str, kind: PolicyKind<'_>) -> Result<Policy, PolicyError> {
        if text.len() > TEXT_MAX {
            return Err(Flaw::TooLong.into());
        }
        if !text.starts_with('{') {
            return Err(Flaw::NoObject.into());
        }
        let mut version = VERSIONS[0].to_owned();
        let mut statements = None;
        for (name, value) in Json::parse(text)?.into_fields("Policy")? {
            match name.as_str() {
                "Version" => version = value.into_text("Version").map_err(|_| Flaw::Version)?,
                "Id" => drop(value.into_text("Id")?),
                "Statement" => statements = Some(value),
                _ => return Err(Flaw::UnknownField(shortened(&name)).into()),
            }
        }
        if !VERSIONS.contains(&version.as_str()) {
            return Err(PolicyError::of(Flaw::Version, &version));
        }
        let bucket = match kind {
            PolicyKind::Bucket { name } => Some(name),
            PolicyKind::Identity => None,
        };
        let statements = match statements.ok_or(Flaw::Missing("Statement"))? {
            Json::List(list) => list,
            one => vec![one],
        };
        if statements.is_empty() {
            return Err(Flaw::NoStatement.into());
        }
        let place = Place { bucket, variables: version == VERSIONS[1] };
        let numbered = statements.into_iter().zip(1..);
        let statements = numbered.map(|(json, number)| Statement::parse(json, number, place));
        let statements = statements.collect::<Result<Vec<_>, _>>()?;
        Ok(Policy { text: text.to_owned(), bucket: bucket.map(str::to_owned), statements })
    }

    /// The document, as it was parsed.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Decides on a request. One statement that denies is enough, wherever it stands. The policy of a
    /// bucket says nothing of requests for others.
    ///
    /// What needs a variable without a value does not match. Where that is negated (`NotResource`,
    /// `StringNotLike`), a statement that allows does not apply, and one that denies does.
    pub fn decide(&self, request: &Request<'_>) -> Verdict {
        if self.bucket.as_deref().is_some_and(|bucket| bucket != request.bucket) {
            return Verdict::Silent;
        }
        let mut verdict = Verdict::Silent;
        for statement in &self.statements {
            // One more that allows changes nothing.
            if statement.effect == Effect::Allow && verdict == Verdict::Allow {
                continue;
            }
            match (statement.applies(request), statement.effect) {
                (true, Effect::Deny) => return Verdict::Deny,
                (true, Effect::Allow) => verdict = Verdict::Allow,
                (false, _) => {}
            }
        }
        verdict
    }

    /// Whether it may allow an action to a caller, on some resource and under some condition: false says
    /// that it allows none, before it is known what a request concerns.
    pub fn may_allow(&self, action: &str, principal: Principal<'_>) -> bool {
        self.statements.iter().any(|statement| statement.may_allow(action, principal))
    }

    /// Whether it asks for a key that begins so, in lower case: in a condition, or as a variable. False says that
    /// no verdict depends on values of such keys.
    pub fn asks_for(&self, start: &str) -> bool {
        self.statements.iter().any(|statement| statement.asks_for(start))
    }

    /// Whether it gives access to the public, as S3's settings against public access have it: some
    /// statement allows something to all callers, without a condition on a fixed value of a key such
    /// as `aws:SourceIp`, `aws:SourceArn`, `aws:SourceVpc`, `aws:PrincipalOrgID` or `aws:userid`.
    /// Statements that deny do not matter. No user's policy is public.
    pub fn is_public(&self) -> bool {
        self.statements.iter().any(Statement::is_public)
    }
}

#[cfg(test)]
mod tests;
