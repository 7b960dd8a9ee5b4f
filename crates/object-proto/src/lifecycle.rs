//! [`Lifecycle`]: what becomes of a bucket's objects with time (`object-protocols.md` 11.1): which rules
//! concern an object, and from when on.

use std::collections::BTreeMap;

use crate::ids::Stamp;
use crate::tags::ObjectTags;

/// Rules of a bucket at most, as in S3.
pub const RULES_MAX: usize = 1000;
/// Characters of a rule's ID at most, as in S3.
pub const RULE_ID_MAX: usize = 255;
/// Older versions that a rule keeps at most, as in S3.
pub const NEWER_MAX: u32 = 100;

/// Length of a day of lifecycle: 24 hours, or less in tests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LifecycleDay(u64);

impl LifecycleDay {
    /// A day of so many microseconds, one at least.
    pub const fn from_us(us: u64) -> LifecycleDay {
        LifecycleDay(if us == 0 { 1 } else { us })
    }

    /// Microseconds.
    pub const fn us(self) -> u64 {
        self.0
    }

    /// When so many days are over since a time (microseconds since 1970): as in S3, at the next midnight of
    /// UTC, which is a multiple of the day.
    pub fn due_us(self, from_us: u64, days: u32) -> u64 {
        let over = from_us.saturating_add(u64::from(days).saturating_mul(self.0));
        over.checked_next_multiple_of(self.0).unwrap_or(u64::MAX)
    }
}

impl Default for LifecycleDay {
    fn default() -> LifecycleDay {
        LifecycleDay(24 * 3600 * 1_000_000)
    }
}

/// Rules of a bucket.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Lifecycle {
    /// In the order in which they were put.
    pub rules: Vec<LifecycleRule>,
}

/// A rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LifecycleRule {
    /// Its name, which no other rule of the bucket has.
    pub id: String,
    /// It acts.
    pub enabled: bool,
    /// What it concerns.
    pub filter: LifecycleFilter,
    /// When current objects expire.
    pub current: Option<CurrentExpiry>,
    /// When older versions are removed.
    pub noncurrent: Option<NoncurrentExpiry>,
    /// Uploads that were begun so many days ago are aborted.
    pub abort_days: Option<u32>,
}

/// When current objects expire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CurrentExpiry {
    /// So many days after they were put.
    Days(u32),
    /// From this time on, microseconds since 1970.
    Date(u64),
    /// None does; delete markers go that hide no version.
    LoneMarkers,
}

/// When older versions are removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoncurrentExpiry {
    /// So many days after the next newer version was put.
    pub days: u32,
    /// Not these many of a key that were put last; delete markers are not counted.
    pub newer: u32,
}

/// What a rule concerns: all that is said must hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LifecycleFilter {
    /// How it was put.
    pub form: FilterForm,
    /// Keys begin with this; `None` when it was not said.
    pub prefix: Option<String>,
    /// Objects have these tags.
    pub tags: BTreeMap<String, String>,
    /// Objects have more bytes.
    pub larger: Option<u64>,
    /// Objects have fewer bytes.
    pub smaller: Option<u64>,
}

/// How a filter was put, and is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FilterForm {
    /// A prefix in the rule itself: the old form.
    Rule,
    /// A filter of one condition, or none.
    Plain,
    /// A filter whose conditions are joined.
    And,
}

/// What rules look at of a version.
#[derive(Clone, Copy, Debug)]
pub struct Aging<'a> {
    /// Its key.
    pub key: &'a str,
    /// Its tags; a delete marker has none.
    pub tags: &'a ObjectTags,
    /// Bytes of its content; a delete marker has none.
    pub size: u64,
}

impl LifecycleFilter {
    /// The beginning of all keys that it concerns.
    pub fn prefix(&self) -> &str {
        self.prefix.as_deref().unwrap_or_default()
    }

    /// Whether it concerns a version.
    pub fn matches(&self, version: Aging<'_>) -> bool {
        let has = |(name, value): (&String, &String)| {
            version.tags.iter().any(|(other, of_other)| other == name && of_other == value)
        };
        version.key.starts_with(self.prefix())
            && self.larger.is_none_or(|larger| version.size > larger)
            && self.smaller.is_none_or(|smaller| version.size < smaller)
            && self.tags.iter().all(has)
    }
}

impl LifecycleRule {
    /// From when on a current object that was put at a commit has expired; none without such a rule.
    fn expires_us(&self, put: Stamp, day: LifecycleDay) -> Option<u64> {
        match self.current? {
            CurrentExpiry::Days(days) => Some(day.due_us(put.get(), days)),
            CurrentExpiry::Date(date_us) => Some(date_us),
            CurrentExpiry::LoneMarkers => None,
        }
    }
}

impl Lifecycle {
    fn active(&self) -> impl Iterator<Item = &LifecycleRule> {
        self.rules.iter().filter(|rule| rule.enabled)
    }

    /// True when a rule acts on current objects, on other versions, or on uploads.
    pub fn acts_on(&self) -> (bool, bool, bool) {
        let mut acts = (false, false, false);
        for rule in self.active() {
            let is_for_objects = !matches!(rule.current, None | Some(CurrentExpiry::LoneMarkers));
            acts.0 |= is_for_objects;
            acts.1 |= rule.current.is_some() || rule.noncurrent.is_some();
            acts.2 |= rule.abort_days.is_some();
        }
        acts
    }

    /// True when it depends on tags what a rule does.
    pub fn asks_for_tags(&self) -> bool {
        self.active().any(|rule| !rule.filter.tags.is_empty())
    }

    /// From when on a current object that was put at a commit has expired (microseconds since 1970), and the rule
    /// that is the first to say so.
    pub fn expiry(
        &self,
        object: Aging<'_>,
        put: Stamp,
        day: LifecycleDay,
    ) -> Option<(u64, &LifecycleRule)> {
        let of_rules = self.active().filter_map(|rule| {
            let due_us = rule.expires_us(put, day)?;
            rule.filter.matches(object).then_some((due_us, rule))
        });
        of_rules.min_by_key(|(due_us, _)| *due_us)
    }

    /// From when on a delete marker that hides no version goes, microseconds since 1970.
    pub fn marker_due_us(&self, key: &str, put: Stamp, day: LifecycleDay) -> Option<u64> {
        let tags = ObjectTags::default();
        let marker = Aging { key, tags: &tags, size: 0 };
        let of_rules = self.active().filter(|rule| rule.filter.matches(marker));
        let due = of_rules.filter_map(|rule| match rule.current {
            Some(CurrentExpiry::LoneMarkers) => Some(0),
            _ => rule.expires_us(put, day),
        });
        due.min()
    }

    /// From when on an older version goes, microseconds since 1970: the next newer one was put at `since`, and
    /// `newer` older versions of the key were put behind it.
    pub fn noncurrent_due_us(
        &self,
        version: Aging<'_>,
        (since, newer): (Stamp, u32),
        day: LifecycleDay,
    ) -> Option<u64> {
        let of_rules = self.active().filter_map(|rule| {
            let expiry = rule.noncurrent.filter(|expiry| newer >= expiry.newer)?;
            let due_us = day.due_us(since.get(), expiry.days);
            rule.filter.matches(version).then_some(due_us)
        });
        of_rules.min()
    }

    /// From when on an upload that began at a commit is aborted (microseconds since 1970), and the rule that is
    /// the first to say so.
    pub fn abort_due(
        &self,
        key: &str,
        begun: Stamp,
        day: LifecycleDay,
    ) -> Option<(u64, &LifecycleRule)> {
        let of_rules = self.active().filter_map(|rule| {
            let due_us = day.due_us(begun.get(), rule.abort_days?);
            key.starts_with(rule.filter.prefix()).then_some((due_us, rule))
        });
        of_rules.min_by_key(|(due_us, _)| *due_us)
    }
}

/// How far lifecycle is with a bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LifecycleState {
    /// When its last pass over the bucket ended, microseconds since 1970; none yet for 0.
    pub last_pass_us: u64,
    /// Objects, versions, delete markers and uploads that it has removed; a delete marker that it has put counts
    /// as the object that this hides.
    pub removed: u64,
    /// For so many microseconds the pass of a day has been due and not ended; 0 without rules.
    pub behind_us: u64,
}

impl LifecycleState {
    /// Of both of two ranges of the bucket.
    pub fn and(self, other: LifecycleState) -> LifecycleState {
        LifecycleState {
            last_pass_us: self.last_pass_us.min(other.last_pass_us),
            removed: self.removed.saturating_add(other.removed),
            behind_us: self.behind_us.max(other.behind_us),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_US: u64 = 24 * 3600 * 1_000_000;
    /// 2026-11-28 10:30.
    const MORNING_US: u64 = 20_785 * DAY_US + 10 * 3_600_000_000 + 30 * 60_000_000;

    fn tags(pairs: &[(&str, &str)]) -> ObjectTags {
        let pairs = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        ObjectTags::new(pairs.collect()).expect("tags")
    }

    fn filter(prefix: &str) -> LifecycleFilter {
        LifecycleFilter {
            form: FilterForm::And,
            prefix: Some(prefix.to_owned()),
            tags: BTreeMap::new(),
            larger: None,
            smaller: None,
        }
    }

    fn rule(id: &str, filter: LifecycleFilter) -> LifecycleRule {
        LifecycleRule {
            id: id.to_owned(),
            enabled: true,
            filter,
            current: None,
            noncurrent: None,
            abort_days: None,
        }
    }

    #[test]
    fn days_end_at_the_next_midnight_and_short_ones_at_their_multiples() {
        let day = LifecycleDay::default();
        // As S3's documents show it: three days from a morning end at the fourth midnight.
        assert_eq!(day.due_us(MORNING_US, 3), (20_785 + 4) * DAY_US);
        assert_eq!(day.due_us(20_785 * DAY_US, 1), 20_786 * DAY_US);
        assert_eq!(day.due_us(20_785 * DAY_US + 1, 1), 20_787 * DAY_US);
        let short = LifecycleDay::from_us(2_000_000);
        assert_eq!(short.due_us(7_000_001, 1), 10_000_000);
        assert_eq!(short.due_us(u64::MAX, u32::MAX), u64::MAX);
        assert_eq!(LifecycleDay::from_us(0).us(), 1);
    }

    #[test]
    fn a_filter_concerns_what_all_its_conditions_hold_for() {
        let with = |tags: &[(&str, &str)], larger, smaller| LifecycleFilter {
            tags: tags.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect(),
            larger,
            smaller,
            ..filter("a/")
        };
        let (none, both) = (tags(&[]), tags(&[("x", "1"), ("y", "2")]));
        for (filter, key, tags, size, matches) in [
            (with(&[], None, None), "a/b", &none, 0, true),
            (with(&[], None, None), "a", &none, 0, false),
            (with(&[("x", "1")], None, None), "a/", &both, 0, true),
            (with(&[("x", "2")], None, None), "a/", &both, 0, false),
            (with(&[("x", "1"), ("z", "")], None, None), "a/", &both, 0, false),
            (with(&[("x", "1")], None, None), "a/", &none, 0, false),
            (with(&[], Some(10), None), "a/", &none, 10, false),
            (with(&[], Some(10), None), "a/", &none, 11, true),
            (with(&[], None, Some(10)), "a/", &none, 10, false),
            (with(&[], Some(5), Some(10)), "a/", &none, 9, true),
        ] {
            assert_eq!(filter.matches(Aging { key, tags, size }), matches, "{filter:?} {key}");
        }
    }

    #[test]
    fn the_first_rule_to_act_is_the_one_that_is_named() {
        let (put, day) = (Stamp::new(MORNING_US), LifecycleDay::default());
        let of = |id, current| LifecycleRule { current: Some(current), ..rule(id, filter("")) };
        let mut lifecycle = Lifecycle {
            rules: vec![
                of("late", CurrentExpiry::Days(9)),
                of("date", CurrentExpiry::Date(20_788 * DAY_US)),
                of("marker", CurrentExpiry::LoneMarkers),
                LifecycleRule { enabled: false, ..of("off", CurrentExpiry::Days(1)) },
            ],
        };
        let none = ObjectTags::default();
        let object = Aging { key: "k", tags: &none, size: 1 };
        let first = |lifecycle: &Lifecycle| {
            let found = lifecycle.expiry(object, put, day);
            found.map(|(due_us, rule)| (due_us / DAY_US, rule.id.clone()))
        };
        assert_eq!(first(&lifecycle), Some((20_788, "date".to_owned())));
        assert_eq!(lifecycle.marker_due_us("k", put, day), Some(0));
        assert_eq!(lifecycle.acts_on(), (true, true, false));
        lifecycle.rules.truncate(1);
        assert_eq!(first(&lifecycle), Some((20_795, "late".to_owned())));
        assert_eq!(lifecycle.marker_due_us("k", put, day), Some(20_795 * DAY_US));
        lifecycle.rules[0].filter.tags.insert("x".to_owned(), "1".to_owned());
        assert_eq!(lifecycle.marker_due_us("k", put, day), None);
        assert_eq!(first(&lifecycle), None);
    }

    #[test]
    fn older_versions_go_by_their_successors_time_and_their_place() {
        let (day, none) = (LifecycleDay::default(), ObjectTags::default());
        let noncurrent = Some(NoncurrentExpiry { days: 2, newer: 3 });
        let lifecycle =
            Lifecycle { rules: vec![LifecycleRule { noncurrent, ..rule("n", filter("")) }] };
        let version = Aging { key: "k", tags: &none, size: 1 };
        let due =
            |newer| lifecycle.noncurrent_due_us(version, (Stamp::new(MORNING_US), newer), day);
        assert_eq!((due(2), due(3)), (None, Some((20_785 + 3) * DAY_US)));
        assert_eq!(lifecycle.expiry(version, Stamp::new(1), day), None);
        let abort = LifecycleRule { abort_days: Some(1), ..rule("a", filter("k")) };
        let lifecycle = Lifecycle { rules: vec![abort] };
        let aborted = |key| {
            let found = lifecycle.abort_due(key, Stamp::new(MORNING_US), day);
            found.map(|(due_us, rule)| (due_us / DAY_US, rule.id.as_str()))
        };
        assert_eq!((aborted("key"), aborted("other")), (Some((20_787, "a")), None));
        assert_eq!(lifecycle.acts_on(), (false, false, true));
    }
}
