//! [`PolicyError`]: what is wrong with a policy, and where.

use std::fmt;

use crate::limits::{DEPTH_MAX, QUOTED_MAX, TEXT_MAX};

/// Refusal of a policy. The text begins with S3's where S3's is known; statement and value follow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PolicyError {
    /// What is wrong.
    pub flaw: Flaw,
    /// Number of the statement, from 1; none when the flaw is in no single statement.
    pub statement: Option<usize>,
    /// The statement's `Sid`.
    pub sid: Option<String>,
    /// The value that is flawed, shortened.
    pub value: Option<String>,
}

/// What is wrong with a policy. Its text alone is S3's, where S3's is known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Flaw {
    /// The text is longer than [`TEXT_MAX`].
    TooLong,
    /// The text does not begin with `{`.
    NoObject,
    /// The text is no JSON, names a field twice, or is nested deeper than [`DEPTH_MAX`].
    Json,
    /// `Version` is none of the two.
    Version,
    /// A field is missing.
    Missing(&'static str),
    /// There is no statement in the list.
    NoStatement,
    /// A field has no values.
    Empty(&'static str),
    /// There is no such field, or not at this place.
    UnknownField(String),
    /// Only one of the two may be there.
    Both(&'static str, &'static str),
    /// A field's value has the wrong type.
    Syntax(&'static str),
    /// Neither `Allow` nor `Deny`.
    Effect(String),
    /// There is no such action.
    Action,
    /// No ARN, or none that the policy may name.
    Resource,
    /// No principal of a form that is known.
    Principal,
    /// Principals of another kind than users.
    Provider(String),
    /// `NotPrincipal` allows something: what is not named would be the whole world.
    AllowedNotPrincipal,
    /// A policy of a user, or of a key, names principals.
    PrincipalGiven,
    /// There is no such operator of conditions.
    ConditionType(String),
    /// There is no such condition key.
    ConditionKey,
    /// A value of a condition is none for its operator.
    ConditionValue,
    /// A value of a condition on addresses is none.
    Address,
    /// None of the statement's resources is of the kind that the action is on.
    ActionResource,
    /// A condition key has no value in requests for one of the statement's actions.
    ConditionAction,
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Flaw::TooLong => {
                write!(f, "Policy exceeds the maximum allowed document size: {TEXT_MAX} bytes")
            }
            Flaw::NoObject => {
                f.write_str("Policies must be valid JSON and the first byte must be '{'")
            }
            Flaw::Json => f.write_str("This policy contains invalid Json"),
            Flaw::Version => f.write_str("The policy must contain a valid version string"),
            Flaw::Missing(field) => write!(f, "Missing required field {field}"),
            Flaw::NoStatement => f.write_str("Could not parse the policy: Statement is empty!"),
            Flaw::Empty(field) => write!(f, "Missing required field {field} cannot be empty!"),
            Flaw::UnknownField(field) => write!(f, "Unknown field {field}"),
            Flaw::Both(one, other) => write!(f, "Policy has both {one} and {other}: remove one"),
            Flaw::Syntax(field) => write!(f, "Invalid policy syntax in {field}"),
            Flaw::Effect(effect) => write!(f, "Invalid effect: {effect}"),
            Flaw::Action => f.write_str("Policy has invalid action"),
            Flaw::Resource => f.write_str("Policy has invalid resource"),
            Flaw::Principal => f.write_str("Invalid principal in policy"),
            Flaw::Provider(provider) => write!(
                f,
                "Invalid principal in policy: there are no principals of the kind {provider}, only \
                 AWS and CanonicalUser"
            ),
            Flaw::AllowedNotPrincipal => f.write_str("Allow with NotPrincipal is not allowed"),
            Flaw::PrincipalGiven => f.write_str("Policy document should not specify a principal."),
            Flaw::ConditionType(operator) => write!(f, "Invalid Condition type : {operator}"),
            Flaw::ConditionKey => f.write_str("Policy has an invalid condition key"),
            Flaw::ConditionValue => f.write_str("Policy has an invalid condition value"),
            Flaw::Address => f.write_str("Invalid IP address in Conditions"),
            Flaw::ActionResource => {
                f.write_str("Action does not apply to any resource(s) in statement")
            }
            Flaw::ConditionAction => f.write_str(
                "Conditions do not apply to combination of actions and resources in statement",
            ),
        }
    }
}

impl PolicyError {
    /// With a value that is flawed.
    pub(crate) fn of(flaw: Flaw, value: &str) -> PolicyError {
        PolicyError { value: Some(shortened(value)), ..flaw.into() }
    }

    /// The same in a statement.
    pub(crate) fn within(self, statement: usize, sid: Option<&str>) -> PolicyError {
        PolicyError { statement: Some(statement), sid: sid.map(shortened), ..self }
    }
}

impl From<Flaw> for PolicyError {
    fn from(flaw: Flaw) -> PolicyError {
        PolicyError { flaw, statement: None, sid: None, value: None }
    }
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.flaw.fmt(f)?;
        let sid = self.sid.as_ref().map(|sid| format!("Sid {sid}"));
        let statement = self.statement.map(|number| format!("statement {number}"));
        let parts = [statement, sid, self.value.clone()].into_iter().flatten();
        let parts: Vec<String> = parts.collect();
        if parts.is_empty() { Ok(()) } else { write!(f, " ({})", parts.join(", ")) }
    }
}

impl std::error::Error for PolicyError {}

/// The beginning of a text, up to [`QUOTED_MAX`] characters.
pub(crate) fn shortened(text: &str) -> String {
    match text.char_indices().nth(QUOTED_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

const _: () = assert!(DEPTH_MAX >= 6);
