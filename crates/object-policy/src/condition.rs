//! [`Condition`]: when a statement applies.

use crate::base64;
use crate::date;
use crate::error::{Flaw, PolicyError, shortened};
use crate::json::Json;
use crate::keys::{canonical, is_known};
use crate::network::Network;
use crate::operator::{Operator, Order, Quantifier, Test};
use crate::pattern::{Subject, Syntax, Template, arn_parts};
use crate::request::Request;

/// A condition: an operator, a key, and values. All conditions of a statement must hold.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Condition {
    pub(crate) operator: Operator,
    /// In lower case, but for the name of a tag.
    pub(crate) key: String,
    pub(crate) wanted: Wanted,
}

/// Values of a condition. One of them is to be met.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Wanted {
    Texts {
        templates: Vec<Template>,
        ignore_case: bool,
    },
    /// The six parts of each.
    Arns(Vec<Vec<Template>>),
    Numbers(Order, Vec<f64>),
    /// Microseconds since 1970.
    Dates(Order, Vec<i64>),
    Bools(Vec<bool>),
    Bytes(Vec<Vec<u8>>),
    Networks(Vec<Network>),
    /// The key is to be missing.
    Null(Vec<bool>),
}

/// How conditions are parsed.
#[derive(Clone, Copy)]
pub(crate) struct Rules {
    /// Variables are substituted in values.
    pub(crate) variables: bool,
    /// The policy is a bucket's: it may name known keys only, and compare `aws:SourceIp` with
    /// addresses only. A user's may name any key that is not of S3.
    pub(crate) of_bucket: bool,
}

impl Rules {
    fn allow(self, canonical: &str) -> bool {
        let is_free = !self.of_bucket && canonical.contains(':') && !canonical.starts_with("s3:");
        is_free || is_known(canonical)
    }
}

/// What a value of the request is to those of a condition.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Met {
    Yes,
    No,
    /// It would depend on a variable that has no value.
    Unresolved,
}

impl Condition {
    /// The conditions in the value of `Condition`.
    pub(crate) fn parse_all(json: Json, rules: Rules) -> Result<Vec<Condition>, PolicyError> {
        let mut conditions = Vec::new();
        for (name, keys) in json.into_fields("Condition")? {
            let operator = Operator::parse(&name)
                .ok_or_else(|| PolicyError::from(Flaw::ConditionType(shortened(&name))))?;
            for (key, values) in keys.into_fields("Condition")? {
                let canonical = canonical(&key);
                if !rules.allow(&canonical) {
                    return Err(PolicyError::of(Flaw::ConditionKey, &key));
                }
                let values = values.into_scalars("Condition")?;
                let wanted = Wanted::parse(operator.test, &values, rules.variables)?;
                if rules.of_bucket && canonical == "aws:sourceip" && operator.test != Test::Null {
                    parsed(&values, &Flaw::Address, Network::parse)?;
                }
                conditions.push(Condition { operator, key: canonical, wanted });
            }
        }
        Ok(conditions)
    }

    /// Whether it is on a key that begins so, or has such a one as a variable.
    pub(crate) fn asks_for(&self, start: &str) -> bool {
        let has = |templates: &[Template]| templates.iter().any(|one| one.asks_for(start));
        let in_values = match &self.wanted {
            Wanted::Texts { templates, .. } => has(templates),
            Wanted::Arns(arns) => arns.iter().any(|parts| has(parts)),
            Wanted::Numbers(..)
            | Wanted::Dates(..)
            | Wanted::Bools(_)
            | Wanted::Bytes(_)
            | Wanted::Networks(_)
            | Wanted::Null(_) => false,
        };
        in_values || self.key.starts_with(start)
    }

    /// Whether it holds in a request. `unresolved` is what a negated test gives for a variable
    /// without a value; others fail.
    pub(crate) fn holds(&self, request: &Request<'_>, unresolved: bool) -> bool {
        let Operator { quantifier, negated, if_exists, .. } = self.operator;
        let values = request.values(&self.key);
        let values = values.as_slice();
        if let Wanted::Null(wanted) = &self.wanted {
            return wanted.contains(&values.is_empty());
        }
        if values.is_empty() {
            return if_exists
                || match quantifier {
                    Quantifier::Plain => negated,
                    Quantifier::ForAll => true,
                    Quantifier::ForAny => false,
                };
        }
        let mut each = values.iter().map(|value| match self.wanted.meets(value, request) {
            Met::Yes => !negated,
            Met::No => negated,
            Met::Unresolved => negated && unresolved,
        });
        match quantifier {
            Quantifier::ForAll => each.all(|holds| holds),
            Quantifier::ForAny => each.any(|holds| holds),
            Quantifier::Plain if negated => each.all(|holds| holds),
            Quantifier::Plain => each.any(|holds| holds),
        }
    }
}

impl Wanted {
    fn parse(test: Test, values: &[String], variables: bool) -> Result<Wanted, PolicyError> {
        let flaw = Flaw::ConditionValue;
        Ok(match test {
            Test::Text { wildcards, ignore_case } => {
                let syntax = Syntax { wildcards, variables };
                let templates = parsed(values, &flaw, |text| Template::parse(text, syntax))?;
                Wanted::Texts { templates, ignore_case }
            }
            Test::Arn => Wanted::Arns(parsed(values, &flaw, |text| arn(text, variables))?),
            Test::Number(order) => Wanted::Numbers(order, parsed(values, &flaw, number)?),
            Test::Date(order) => Wanted::Dates(order, parsed(values, &flaw, date::parse)?),
            Test::Bool => Wanted::Bools(parsed(values, &flaw, truth)?),
            Test::Bytes => Wanted::Bytes(parsed(values, &flaw, base64::decode)?),
            Test::Address => Wanted::Networks(parsed(values, &Flaw::Address, Network::parse)?),
            Test::Null => Wanted::Null(parsed(values, &flaw, truth)?),
        })
    }

    /// Whether a value of the request is as one of them. A value that is none for the operator, such
    /// as a number with letters, is as none of them.
    fn meets(&self, value: &str, request: &Request<'_>) -> Met {
        let met = match self {
            Wanted::Texts { templates, ignore_case } => {
                let subject = Subject::of(value);
                let each = templates.iter();
                return Met::any(each.map(|one| one.matches(subject, *ignore_case, request)));
            }
            Wanted::Arns(arns) => {
                return Met::any(arns.iter().map(|parts| matches_arn(parts, value, request)));
            }
            Wanted::Numbers(order, wanted) => number(value)
                .is_some_and(|value| wanted.iter().any(|wanted| order.holds(value, *wanted))),
            Wanted::Dates(order, wanted) => date::parse(value)
                .is_some_and(|value| wanted.iter().any(|wanted| order.holds(value, *wanted))),
            Wanted::Bools(wanted) => truth(value).is_some_and(|value| wanted.contains(&value)),
            Wanted::Bytes(wanted) => wanted.iter().any(|wanted| wanted == value.as_bytes()),
            Wanted::Networks(networks) => value
                .parse()
                .is_ok_and(|address| networks.iter().any(|network| network.holds(address))),
            Wanted::Null(_) => false,
        };
        if met { Met::Yes } else { Met::No }
    }
}

/// All values, or the flaw of the first that is none.
fn parsed<T>(
    values: &[String],
    flaw: &Flaw,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<Vec<T>, PolicyError> {
    let flawed = |text: &String| PolicyError::of(flaw.clone(), text);
    values.iter().map(|text| parse(text).ok_or_else(|| flawed(text))).collect()
}

impl Met {
    /// One that matches decides; otherwise one that is unknown does.
    fn any(each: impl Iterator<Item = Option<bool>>) -> Met {
        let mut met = Met::No;
        for one in each {
            match one {
                Some(true) => return Met::Yes,
                Some(false) => {}
                None => met = Met::Unresolved,
            }
        }
        met
    }
}

/// A number with an optional sign, decimals and exponent.
fn number(text: &str) -> Option<f64> {
    let is_part = |c: u8| c.is_ascii_digit() || b"+-.eE".contains(&c);
    let number: f64 = if text.bytes().all(is_part) { text.parse().ok()? } else { return None };
    number.is_finite().then_some(number)
}

fn truth(text: &str) -> Option<bool> {
    match text {
        _ if text.eq_ignore_ascii_case("true") => Some(true),
        _ if text.eq_ignore_ascii_case("false") => Some(false),
        _ => None,
    }
}

/// The six parts of an ARN, each with wildcards.
fn arn(text: &str, variables: bool) -> Option<Vec<Template>> {
    let parts = arn_parts(text, variables)?;
    let syntax = Syntax { wildcards: true, variables };
    let is_arn = parts.len() == 6 && parts[0] == "arn";
    let parts = parts.into_iter().map(|part| Template::parse(part, syntax));
    if is_arn { parts.collect() } else { None }
}

fn matches_arn(parts: &[Template], value: &str, request: &Request<'_>) -> Option<bool> {
    let mut rest = value.splitn(6, ':');
    let mut all = true;
    for part in parts {
        match rest.next() {
            Some(text) => all &= part.matches(Subject::of(text), false, request)?,
            None => return Some(false),
        }
    }
    Some(all)
}

#[cfg(test)]
mod tests;
