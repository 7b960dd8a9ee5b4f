//! Rules of lifecycle from S3's documents, with S3's refusals, and back.

use std::collections::{BTreeMap, BTreeSet};

use object_proto::limits::KEY_MAX;
use object_proto::{
    CurrentExpiry, FilterForm, Lifecycle, LifecycleFilter, NEWER_MAX, NoncurrentExpiry,
    RULE_ID_MAX, RULES_MAX, TAG_NAME_MAX, TAG_VALUE_MAX,
};
use s3s::dto::{
    AbortIncompleteMultipartUpload, BucketLifecycleConfiguration, ExpirationStatus,
    LifecycleExpiration, LifecycleRule, LifecycleRuleAndOperator, LifecycleRuleFilter,
    NoncurrentVersionExpiration, Tag, Timestamp, TimestampFormat,
};
use s3s::{S3Error, S3ErrorCode, S3Result};

use super::super::state::{not_implemented, timestamp};

/// Microseconds of a day.
const DAY_US: u64 = 24 * 3600 * 1_000_000;

fn malformed() -> S3Error {
    S3Error::new(S3ErrorCode::MalformedXML)
}

fn invalid(message: impl Into<std::borrow::Cow<'static, str>>) -> S3Error {
    S3Error::with_message(S3ErrorCode::InvalidArgument, message)
}

fn refused(message: &'static str) -> S3Error {
    S3Error::with_message(S3ErrorCode::InvalidRequest, message)
}

/// The rules of a document. One without an ID gets one from `new_id`.
///
/// # Errors
///
/// S3's; `NotImplemented` for transitions.
pub fn lifecycle_of(
    document: BucketLifecycleConfiguration,
    mut new_id: impl FnMut() -> S3Result<String>,
) -> S3Result<Lifecycle> {
    let count = document.rules.len();
    if count == 0 || count > RULES_MAX {
        return Err(malformed());
    }
    let mut lifecycle = Lifecycle::default();
    let (mut ids, mut forms) = (BTreeSet::new(), BTreeSet::new());
    for rule in document.rules {
        let mut rule = rule_of(rule)?;
        if !rule.id.is_empty() && !ids.insert(rule.id.clone()) {
            return Err(invalid("Rule ID must be unique. Found same ID for more than one rule"));
        }
        while rule.id.is_empty() {
            rule.id = Some(new_id()?).filter(|id| ids.insert(id.clone())).unwrap_or_default();
        }
        forms.insert(rule.filter.form == FilterForm::Rule);
        lifecycle.rules.push(rule);
    }
    match forms.len() {
        1 => Ok(lifecycle),
        _ => Err(refused(
            "Base level prefix cannot be used in Lifecycle V2, prefixes are only supported in the \
             Filter.",
        )),
    }
}

fn rule_of(rule: LifecycleRule) -> S3Result<object_proto::LifecycleRule> {
    let id = rule.id.unwrap_or_default();
    if id.chars().count() > RULE_ID_MAX {
        return Err(invalid(format!("ID length should not exceed allowed limit of {RULE_ID_MAX}")));
    }
    let enabled = match rule.status.as_str() {
        ExpirationStatus::ENABLED => true,
        ExpirationStatus::DISABLED => false,
        _ => return Err(malformed()),
    };
    if rule.transitions.is_some() || rule.noncurrent_version_transitions.is_some() {
        return Err(not_implemented("A transition to another storage class"));
    }
    let filter = filter_of(rule.prefix, rule.filter)?;
    let current = rule.expiration.map(current_of).transpose()?.flatten();
    let noncurrent = rule.noncurrent_version_expiration.map(noncurrent_of).transpose()?;
    let abort = rule.abort_incomplete_multipart_upload;
    let abort_days = abort.map(|abort| days_of_abort(&abort)).transpose()?;
    if current.is_none() && noncurrent.is_none() && abort_days.is_none() {
        return Err(refused("At least one action needs to be specified in a rule"));
    }
    if abort_days.is_some() && !filter.tags.is_empty() {
        return Err(refused("AbortIncompleteMultipartUpload cannot be specified with Tags."));
    }
    if abort_days.is_some() && (filter.larger.is_some() || filter.smaller.is_some()) {
        return Err(refused(
            "AbortIncompleteMultipartUpload cannot be specified with Object Size.",
        ));
    }
    if noncurrent.is_some_and(|it| it.newer > 0) && filter.form == FilterForm::Rule {
        return Err(refused("NewerNoncurrentVersions can only be specified with a Filter."));
    }
    if current == Some(CurrentExpiry::LoneMarkers) && !filter.tags.is_empty() {
        return Err(refused("ExpiredObjectDeleteMarker cannot be specified with Tags."));
    }
    Ok(object_proto::LifecycleRule { id, enabled, filter, current, noncurrent, abort_days })
}

/// Days of an action, which are one at least.
fn days_of(days: i32, name: &str, action: &str) -> S3Result<u32> {
    let days = u32::try_from(days).ok().filter(|days| *days > 0);
    days.ok_or_else(|| invalid(format!("'{name}' for {action} action must be a positive integer")))
}

/// When current objects expire; none for a rule that says nothing of it.
fn current_of(expiration: LifecycleExpiration) -> S3Result<Option<CurrentExpiry>> {
    let lone = expiration.expired_object_delete_marker == Some(true);
    match (expiration.days, expiration.date, lone) {
        (Some(days), None, false) => {
            Ok(Some(CurrentExpiry::Days(days_of(days, "Days", "Expiration")?)))
        }
        (None, Some(date), false) => Ok(Some(CurrentExpiry::Date(midnight_of(&date)?))),
        (None, None, true) => Ok(Some(CurrentExpiry::LoneMarkers)),
        (None, None, false) if expiration.expired_object_delete_marker.is_some() => Ok(None),
        _ => Err(malformed()),
    }
}

/// A midnight of UTC, microseconds since 1970; one before is as good as that.
fn midnight_of(date: &Timestamp) -> S3Result<u64> {
    let no_midnight = || invalid("'Date' must be at midnight GMT");
    let mut text = Vec::new();
    date.format(TimestampFormat::EpochSeconds, &mut text).map_err(|_| no_midnight())?;
    let seconds = std::str::from_utf8(&text).ok().and_then(|text| text.parse::<f64>().ok());
    let seconds = seconds.ok_or_else(no_midnight)?;
    let days = seconds / 86_400.0;
    match days.fract() == 0.0 {
        true => Ok((days.max(0.0) as u64).saturating_mul(DAY_US)),
        false => Err(no_midnight()),
    }
}

fn noncurrent_of(expiration: NoncurrentVersionExpiration) -> S3Result<NoncurrentExpiry> {
    const ACTION: &str = "NoncurrentVersionExpiration";
    let days = expiration.noncurrent_days.ok_or_else(malformed)?;
    let days = days_of(days, "NoncurrentDays", ACTION)?;
    let newer = match expiration.newer_noncurrent_versions {
        None => 0,
        Some(newer) => days_of(newer, "NewerNoncurrentVersions", ACTION)?,
    };
    match newer <= NEWER_MAX {
        true => Ok(NoncurrentExpiry { days, newer }),
        false => Err(invalid(format!(
            "'NewerNoncurrentVersions' for {ACTION} action must be at most {NEWER_MAX}"
        ))),
    }
}

fn days_of_abort(abort: &AbortIncompleteMultipartUpload) -> S3Result<u32> {
    let days = abort.days_after_initiation.ok_or_else(malformed)?;
    days_of(days, "DaysAfterInitiation", "AbortIncompleteMultipartUpload")
}

fn filter_of(
    prefix: Option<String>,
    filter: Option<LifecycleRuleFilter>,
) -> S3Result<LifecycleFilter> {
    let of = |form, prefix| LifecycleFilter {
        form,
        prefix,
        tags: BTreeMap::new(),
        larger: None,
        smaller: None,
    };
    let filter = match (prefix, filter) {
        (Some(prefix), None) => of(FilterForm::Rule, Some(prefix)),
        (None, Some(filter)) => {
            let LifecycleRuleFilter { prefix, tag, .. } = filter;
            let bounds = (filter.object_size_greater_than, filter.object_size_less_than);
            let has = [tag.is_some(), bounds.0.is_some(), bounds.1.is_some()];
            let count = has.into_iter().filter(|has| *has).count();
            let has_prefix = prefix.as_ref().is_some_and(|prefix| !prefix.is_empty());
            match filter.and {
                None => {
                    // An empty prefix says nothing: some clients send it beside another condition.
                    if count + usize::from(has_prefix) > 1 {
                        return Err(malformed());
                    }
                    let tags = tag.into_iter().collect();
                    with(of(FilterForm::Plain, prefix), tags, bounds)?
                }
                Some(_) if count > 0 || prefix.is_some() => return Err(malformed()),
                Some(and) => {
                    let LifecycleRuleAndOperator { prefix, tags, .. } = and;
                    let bounds = (and.object_size_greater_than, and.object_size_less_than);
                    let tags = tags.unwrap_or_default();
                    // It joins conditions: without one it would be for everything.
                    if tags.is_empty() && bounds == (None, None) {
                        return Err(malformed());
                    }
                    with(of(FilterForm::And, prefix), tags, bounds)?
                }
            }
        }
        _ => return Err(malformed()),
    };
    match filter.prefix().len() <= KEY_MAX {
        true => Ok(filter),
        false => Err(refused("The maximum size of a prefix is 1024.")),
    }
}

/// A filter with tags and bounds of sizes.
fn with(
    mut filter: LifecycleFilter,
    tags: Vec<Tag>,
    (larger, smaller): (Option<i64>, Option<i64>),
) -> S3Result<LifecycleFilter> {
    for Tag { key, value } in tags {
        let (name, value) = key.zip(value).ok_or_else(malformed)?;
        let invalid = |message| S3Error::with_message(S3ErrorCode::InvalidTag, message);
        if name.is_empty() || name.chars().count() > TAG_NAME_MAX {
            return Err(invalid("The TagKey you have provided is invalid"));
        }
        if value.chars().count() > TAG_VALUE_MAX {
            return Err(invalid("The TagValue you have provided is invalid"));
        }
        if filter.tags.insert(name, value).is_some() {
            return Err(refused("Duplicate Tag Keys are not allowed."));
        }
    }
    let bound = |bound: Option<i64>, least: u64, name: &str| match bound {
        None => Ok(None),
        Some(bound) => {
            let bound = u64::try_from(bound).ok().filter(|bound| *bound >= least);
            let flawed = || invalid(format!("'{name}' must be an integer of {least} at least"));
            bound.map(Some).ok_or_else(flawed)
        }
    };
    filter.larger = bound(larger, 0, "ObjectSizeGreaterThan")?;
    filter.smaller = bound(smaller, 1, "ObjectSizeLessThan")?;
    if let (Some(larger), Some(smaller)) = (filter.larger, filter.smaller)
        && smaller <= larger
    {
        return Err(refused(
            "'ObjectSizeLessThan' has to be a value greater than 'ObjectSizeGreaterThan'.",
        ));
    }
    Ok(filter)
}

/// Rules as S3 shows them.
pub fn shown_rules(lifecycle: &Lifecycle) -> Vec<LifecycleRule> {
    lifecycle.rules.iter().map(shown_rule).collect()
}

fn count(count: u32) -> Option<i32> {
    Some(i32::try_from(count).unwrap_or(i32::MAX))
}

fn size(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

fn shown_rule(rule: &object_proto::LifecycleRule) -> LifecycleRule {
    let (prefix, filter) = shown_filter(&rule.filter);
    let mut expiration = rule.current.map(|_| LifecycleExpiration::default());
    if let Some(expiration) = &mut expiration {
        match rule.current {
            Some(CurrentExpiry::Days(days)) => expiration.days = count(days),
            Some(CurrentExpiry::Date(us)) => expiration.date = Some(timestamp(us)),
            _ => expiration.expired_object_delete_marker = Some(true),
        }
    }
    LifecycleRule {
        abort_incomplete_multipart_upload: rule
            .abort_days
            .map(|days| AbortIncompleteMultipartUpload { days_after_initiation: count(days) }),
        expiration,
        filter,
        id: Some(rule.id.clone()),
        noncurrent_version_expiration: rule.noncurrent.map(|expiry| NoncurrentVersionExpiration {
            newer_noncurrent_versions: count(expiry.newer).filter(|newer| *newer > 0),
            noncurrent_days: count(expiry.days),
        }),
        noncurrent_version_transitions: None,
        prefix,
        status: ExpirationStatus::from_static(match rule.enabled {
            true => ExpirationStatus::ENABLED,
            false => ExpirationStatus::DISABLED,
        }),
        transitions: None,
    }
}

fn shown_filter(filter: &LifecycleFilter) -> (Option<String>, Option<LifecycleRuleFilter>) {
    let tag = |(name, value): (&String, &String)| Tag {
        key: Some(name.clone()),
        value: Some(value.clone()),
    };
    let mut tags = filter.tags.iter().map(tag);
    let prefix = filter.prefix.clone();
    let (larger, smaller) = (filter.larger.map(size), filter.smaller.map(size));
    let shown = match filter.form {
        FilterForm::Rule => return (prefix, None),
        FilterForm::Plain => LifecycleRuleFilter {
            and: None,
            object_size_greater_than: larger,
            object_size_less_than: smaller,
            prefix,
            tag: tags.next(),
        },
        FilterForm::And => {
            let tags: Vec<Tag> = tags.collect();
            let and = LifecycleRuleAndOperator {
                object_size_greater_than: larger,
                object_size_less_than: smaller,
                prefix,
                tags: Some(tags).filter(|tags| !tags.is_empty()),
            };
            LifecycleRuleFilter { and: Some(and), ..LifecycleRuleFilter::default() }
        }
    };
    (None, Some(shown))
}
