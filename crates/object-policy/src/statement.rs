//! [`Statement`]: what some principals may or may not do.

use crate::action::{ActionPattern, ActionScope};
use crate::condition::{Condition, Rules};
use crate::error::{Flaw, PolicyError, shortened};
use crate::json::Json;
use crate::keys::applies_to;
use crate::principal::Principals;
use crate::public::narrows;
use crate::request::{Principal, Request};
use crate::resource::{Reach, Resource};

/// A statement of a policy.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Statement {
    pub(crate) effect: Effect,
    /// None in a user's policy: it is about the user.
    principals: Option<Either<Principals>>,
    actions: Either<Vec<ActionPattern>>,
    resources: Either<Vec<Resource>>,
    conditions: Vec<Condition>,
}

/// What follows when a statement applies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Effect {
    Allow,
    Deny,
}

/// A field, or the one that negates it, as `Action` and `NotAction`.
#[derive(Clone, PartialEq, Debug)]
enum Either<T> {
    Is(T),
    Not(T),
}

/// What a statement is parsed for.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    /// The bucket whose policy it is; none for a user's policy.
    pub(crate) bucket: Option<&'a str>,
    /// Variables are substituted.
    pub(crate) variables: bool,
}

/// Fields of a statement, as they stand; those that negate are second.
#[derive(Default)]
struct Fields {
    effect: Option<Json>,
    principals: [Option<Json>; 2],
    actions: [Option<Json>; 2],
    resources: [Option<Json>; 2],
    conditions: Option<Json>,
}

impl Statement {
    /// From a member of `Statement`, whose number is `number`.
    pub(crate) fn parse(
        json: Json,
        number: usize,
        place: Place<'_>,
    ) -> Result<Statement, PolicyError> {
        let mut sid = None;
        let fields = Fields::parse(json, &mut sid);
        let parsed = fields.and_then(|fields| fields.into_statement(place));
        parsed.map_err(|error| error.within(number, sid.as_deref()))
    }

    /// Whether it is about a request.
    pub(crate) fn applies(&self, request: &Request<'_>) -> bool {
        // A denial is to hold when it cannot be known whether its exception does.
        let unresolved = self.effect == Effect::Deny;
        self.is_about_principal(request.principal)
            && self.is_about_action(request.action)
            && self.is_about_resource(request, unresolved)
            && self.conditions.iter().all(|condition| condition.holds(request, unresolved))
    }

    /// Whether it allows an action to a caller on some resource, under some condition.
    pub(crate) fn may_allow(&self, action: &str, principal: Principal<'_>) -> bool {
        self.effect == Effect::Allow
            && self.is_about_principal(principal)
            && self.is_about_action(action)
    }

    /// Whether a condition is on a key that begins so, or a value or resource has it as a variable.
    pub(crate) fn asks_for(&self, start: &str) -> bool {
        let (Either::Is(resources) | Either::Not(resources)) = &self.resources;
        resources.iter().any(|resource| resource.asks_for(start))
            || self.conditions.iter().any(|condition| condition.asks_for(start))
    }

    fn is_about_principal(&self, principal: Principal<'_>) -> bool {
        match &self.principals {
            None => true,
            Some(Either::Is(principals)) => principals.hold(principal),
            Some(Either::Not(principals)) => !principals.hold(principal),
        }
    }

    fn is_about_action(&self, action: &str) -> bool {
        let any = |patterns: &[ActionPattern]| patterns.iter().any(|one| one.matches(action));
        match &self.actions {
            Either::Is(patterns) => any(patterns),
            Either::Not(patterns) => !any(patterns),
        }
    }

    fn is_about_resource(&self, request: &Request<'_>, unresolved: bool) -> bool {
        match &self.resources {
            Either::Is(resources) => resources.iter().any(|one| one.matches(request) == Some(true)),
            Either::Not(resources) => resources.iter().all(|one| match one.matches(request) {
                Some(matches) => !matches,
                None => unresolved,
            }),
        }
    }

    /// It allows something to all, but for such conditions as only some requests can meet.
    pub(crate) fn is_public(&self) -> bool {
        let is_open = match &self.principals {
            Some(Either::Is(principals)) => *principals == Principals::Everyone,
            Some(Either::Not(principals)) => *principals != Principals::Everyone,
            None => false,
        };
        self.effect == Effect::Allow && is_open && !self.conditions.iter().any(narrows)
    }

    /// Checks what S3 checks of a bucket's statement as a whole: each action is on some resource, and
    /// each condition applies to each action.
    fn check(&self, texts: &[String], reach: Reach) -> Result<(), PolicyError> {
        let Either::Is(actions) = &self.actions else { return Ok(()) };
        let mut scopes = Vec::with_capacity(2);
        scopes.extend(reach.bucket.then_some(ActionScope::Bucket));
        scopes.extend(reach.keys.then_some(ActionScope::Object));
        for (action, text) in actions.iter().zip(texts) {
            if matches!(self.resources, Either::Is(_)) && !action.is_on(&scopes) {
                return Err(PolicyError::of(Flaw::ActionResource, text));
            }
            let mut conditions = self.conditions.iter();
            let is_foreign = |key: &str| !applies_to(key, |name| action.matches(name));
            if action.is_fixed() && conditions.any(|condition| is_foreign(&condition.key)) {
                return Err(PolicyError::of(Flaw::ConditionAction, text));
            }
        }
        Ok(())
    }
}

impl Fields {
    /// Sorts the fields of an object, and says the `Sid` even when another field is flawed.
    fn parse(json: Json, sid: &mut Option<String>) -> Result<Fields, PolicyError> {
        let all = json.into_fields("Statement")?;
        *sid = all.iter().find_map(|(name, value)| match value {
            Json::Text(text) if name == "Sid" => Some(text.clone()),
            _ => None,
        });
        let mut fields = Fields::default();
        for (name, value) in all {
            let field = match name.as_str() {
                "Sid" => {
                    value.into_text("Sid")?;
                    continue;
                }
                "Effect" => &mut fields.effect,
                "Principal" => &mut fields.principals[0],
                "NotPrincipal" => &mut fields.principals[1],
                "Action" => &mut fields.actions[0],
                "NotAction" => &mut fields.actions[1],
                "Resource" => &mut fields.resources[0],
                "NotResource" => &mut fields.resources[1],
                "Condition" => &mut fields.conditions,
                _ => return Err(Flaw::UnknownField(shortened(&name)).into()),
            };
            *field = Some(value);
        }
        Ok(fields)
    }

    fn into_statement(self, place: Place<'_>) -> Result<Statement, PolicyError> {
        let effect = effect(self.effect)?;
        let principals = principals(self.principals, place)?;
        if effect == Effect::Allow && matches!(principals, Some(Either::Not(_))) {
            return Err(Flaw::AllowedNotPrincipal.into());
        }
        let (field, actions) = either(["Action", "NotAction"], self.actions)?;
        let parse = match place.bucket {
            Some(_) => ActionPattern::of_bucket,
            None => ActionPattern::of_identity,
        };
        let mut action_texts = Vec::new();
        let actions = actions.try_map(|json| {
            action_texts = json.into_texts(field)?;
            action_texts.iter().map(|text| parse(text)).collect()
        })?;
        let (resources, reach) = resources(self.resources, place)?;
        let rules = Rules { variables: place.variables, of_bucket: place.bucket.is_some() };
        let conditions = self.conditions.map(|json| Condition::parse_all(json, rules));
        let conditions = conditions.transpose()?.unwrap_or_default();
        let statement = Statement { effect, principals, actions, resources, conditions };
        if place.bucket.is_some() {
            statement.check(&action_texts, reach)?;
        }
        Ok(statement)
    }
}

impl<T> Either<T> {
    fn try_map<U, E>(self, map: impl FnOnce(T) -> Result<U, E>) -> Result<Either<U>, E> {
        Ok(match self {
            Either::Is(it) => Either::Is(map(it)?),
            Either::Not(it) => Either::Not(map(it)?),
        })
    }
}

/// The one of two fields that is there, and its name.
fn either(
    names: [&'static str; 2],
    fields: [Option<Json>; 2],
) -> Result<(&'static str, Either<Json>), PolicyError> {
    match fields {
        [Some(json), None] => Ok((names[0], Either::Is(json))),
        [None, Some(json)] => Ok((names[1], Either::Not(json))),
        [Some(_), Some(_)] => Err(Flaw::Both(names[0], names[1]).into()),
        [None, None] => Err(Flaw::Missing(names[0]).into()),
    }
}

fn effect(json: Option<Json>) -> Result<Effect, PolicyError> {
    let text = json.ok_or(Flaw::Missing("Effect"))?.into_text("Effect")?;
    match text.as_str() {
        "Allow" => Ok(Effect::Allow),
        "Deny" => Ok(Effect::Deny),
        _ => Err(Flaw::Effect(shortened(&text)).into()),
    }
}

fn principals(
    fields: [Option<Json>; 2],
    place: Place<'_>,
) -> Result<Option<Either<Principals>>, PolicyError> {
    if place.bucket.is_none() {
        let is_given = fields.iter().any(Option::is_some);
        return if is_given { Err(Flaw::PrincipalGiven.into()) } else { Ok(None) };
    }
    let (field, json) = either(["Principal", "NotPrincipal"], fields)?;
    json.try_map(|json| Principals::parse(field, json)).map(Some)
}

/// Resources, and what those of a bucket's policy may match.
fn resources(
    fields: [Option<Json>; 2],
    place: Place<'_>,
) -> Result<(Either<Vec<Resource>>, Reach), PolicyError> {
    let (field, json) = either(["Resource", "NotResource"], fields)?;
    let mut all = Reach::default();
    let resources = json.try_map(|json| {
        let parse = |text: String| match place.bucket {
            None => Resource::of_identity(&text, place.variables),
            Some(bucket) => {
                let (resource, reach) = Resource::of_bucket(&text, bucket, place.variables)?;
                all.bucket |= reach.bucket;
                all.keys |= reach.keys;
                Ok(resource)
            }
        };
        json.into_texts(field)?.into_iter().map(parse).collect::<Result<Vec<_>, PolicyError>>()
    })?;
    Ok((resources, all))
}
