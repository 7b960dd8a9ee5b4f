//! Object lock (`object-protocols.md` 7.2): versions that are not removed before a time, or while they are
//! held, and how that may change. Pure: the owner of the key says which time is over.

use crate::error::Error;
use crate::ids::Stamp;

/// Who may remove what is retained before its time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum RetentionMode {
    /// Callers that may, and say so.
    Governance,
    /// No caller.
    Compliance,
}

/// A version is retained.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Retention {
    /// Who may remove it all the same.
    pub mode: RetentionMode,
    /// Until when, microseconds since 1970.
    pub until_us: u64,
}

/// What keeps a version from being removed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct ObjectLock {
    /// It is retained until a time.
    pub retention: Option<Retention>,
    /// Whether it is held, until its hold is taken off: S3's legal hold. `None` when it never was said.
    pub hold: Option<bool>,
}

/// A change of a version's lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockChange {
    /// It is retained so, or not any more.
    Retention(Option<Retention>),
    /// It is held, or not any more.
    Hold(bool),
}

/// Time for which a bucket's new versions are retained.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LockPeriod {
    /// So many days.
    Days(u32),
    /// So many years.
    Years(u32),
}

/// Object lock of a bucket, where it is enabled.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LockRule {
    /// How new versions are retained that are put without a retention.
    pub default: Option<(RetentionMode, LockPeriod)>,
}

/// Microseconds of a day.
const DAY_US: u64 = 24 * 3600 * 1_000_000;
/// Years of a bucket's period at most, as in S3, and the days of as many.
const YEARS_MAX: u32 = 100;
const DAYS_MAX: u32 = 36_500;

impl LockPeriod {
    /// The end of the period that begins with a commit. A year has 365 days, and each fourth one begun a day
    /// more: never less than by the calendar.
    pub fn until_us(self, from: Stamp) -> u64 {
        let days = match self {
            LockPeriod::Days(days) => u64::from(days),
            LockPeriod::Years(years) => 365 * u64::from(years) + u64::from(years.div_ceil(4)),
        };
        from.get().saturating_add(days.saturating_mul(DAY_US))
    }

    /// True when S3 takes it.
    pub fn is_valid(self) -> bool {
        match self {
            LockPeriod::Days(days) => (1..=DAYS_MAX).contains(&days),
            LockPeriod::Years(years) => (1..=YEARS_MAX).contains(&years),
        }
    }
}

impl Retention {
    /// True unless all that ends by `over_us` has ended.
    fn is_in_force(self, over_us: u64) -> bool {
        self.until_us > over_us
    }

    /// True when what this one keeps `next` keeps as well.
    fn is_kept_by(self, next: Option<Retention>) -> bool {
        next.is_some_and(|next| next.mode == self.mode && next.until_us >= self.until_us)
    }
}

impl ObjectLock {
    /// True when its version is held.
    pub fn is_held(self) -> bool {
        self.hold == Some(true)
    }

    /// True when there is none, and none was taken off.
    pub fn is_none(self) -> bool {
        self == ObjectLock::default()
    }

    /// Decides whether its version may be removed. What ends by `over_us` has ended; `bypass` says that the
    /// caller may remove what is retained under governance.
    ///
    /// # Errors
    ///
    /// [`Error::Locked`].
    pub fn check_removal(self, over_us: u64, bypass: bool) -> Result<(), Error> {
        let retains = |retention: Retention| {
            let yields = bypass && retention.mode == RetentionMode::Governance;
            retention.is_in_force(over_us) && !yields
        };
        match self.is_held() || self.retention.is_some_and(retains) {
            true => Err(Error::Locked),
            false => Ok(()),
        }
    }

    /// The lock behind a change; the arguments are those of [`ObjectLock::check_removal`]. A retention in force
    /// is prolonged by any caller. Another mode, an earlier end or none needs the bypass, and is never given
    /// in place of compliance.
    ///
    /// # Errors
    ///
    /// [`Error::Locked`].
    pub fn changed(
        self,
        change: LockChange,
        over_us: u64,
        bypass: bool,
    ) -> Result<ObjectLock, Error> {
        let next = match change {
            LockChange::Hold(hold) => return Ok(ObjectLock { hold: Some(hold), ..self }),
            LockChange::Retention(next) => next,
        };
        let stands = self.retention.filter(|retention| retention.is_in_force(over_us));
        let may = stands.is_none_or(|stands| {
            stands.is_kept_by(next) || bypass && stands.mode == RetentionMode::Governance
        });
        match may {
            true => Ok(ObjectLock { retention: next, ..self }),
            false => Err(Error::Locked),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOVERNANCE: RetentionMode = RetentionMode::Governance;
    const COMPLIANCE: RetentionMode = RetentionMode::Compliance;

    fn until(mode: RetentionMode, until_us: u64) -> Option<Retention> {
        Some(Retention { mode, until_us })
    }

    #[test]
    fn a_locked_version_is_removed_only_behind_its_time_or_by_a_bypass() {
        let check = |retention, hold, over_us, bypass| {
            ObjectLock { retention, hold: Some(hold) }.check_removal(over_us, bypass).is_ok()
        };
        // (retention, hold, over, removed, removed with a bypass)
        for (retention, hold, over_us, plain, bypassed) in [
            (None, false, 0, true, true),
            (None, true, u64::MAX, false, false),
            (until(GOVERNANCE, 9), false, 8, false, true),
            (until(GOVERNANCE, 9), false, 9, true, true),
            (until(GOVERNANCE, 9), true, 9, false, false),
            (until(COMPLIANCE, 9), false, 8, false, false),
            (until(COMPLIANCE, 9), false, 9, true, true),
        ] {
            let removed = [false, true].map(|bypass| check(retention, hold, over_us, bypass));
            assert_eq!(removed, [plain, bypassed], "{retention:?} {hold} {over_us}");
        }
    }

    #[test]
    fn a_retention_is_prolonged_freely_and_weakened_by_a_bypass_of_governance_alone() {
        let change = |from, to, bypass| {
            let lock = ObjectLock { retention: from, hold: Some(true) };
            let changed = lock.changed(LockChange::Retention(to), 5, bypass);
            assert!(
                changed.as_ref().is_ok_and(|lock| lock.is_held() && lock.retention == to)
                    || changed == Err(Error::Locked)
            );
            changed.is_ok()
        };
        // (from, to, changed, changed with a bypass)
        for (from, to, plain, bypassed) in [
            (None, until(COMPLIANCE, 1), true, true),
            (until(COMPLIANCE, 5), None, true, true),
            (until(GOVERNANCE, 9), until(GOVERNANCE, 9), true, true),
            (until(GOVERNANCE, 9), until(GOVERNANCE, 8), false, true),
            (until(GOVERNANCE, 9), until(COMPLIANCE, 9), false, true),
            (until(GOVERNANCE, 9), None, false, true),
            (until(COMPLIANCE, 9), until(COMPLIANCE, 10), true, true),
            (until(COMPLIANCE, 9), until(COMPLIANCE, 8), false, false),
            (until(COMPLIANCE, 9), until(GOVERNANCE, 10), false, false),
            (until(COMPLIANCE, 9), None, false, false),
        ] {
            let changed = [false, true].map(|bypass| change(from, to, bypass));
            assert_eq!(changed, [plain, bypassed], "{from:?} {to:?}");
        }
        let held = ObjectLock { retention: until(COMPLIANCE, 9), hold: Some(true) };
        let let_go = held.changed(LockChange::Hold(false), 0, false);
        assert_eq!(let_go, Ok(ObjectLock { hold: Some(false), ..held }));
    }

    #[test]
    fn periods_are_bounded_and_years_never_shorter_than_by_the_calendar() {
        let days = |period: LockPeriod| period.until_us(Stamp::new(7)) / DAY_US;
        let shown = [LockPeriod::Days(1), LockPeriod::Years(1), LockPeriod::Years(5)].map(days);
        assert_eq!(shown, [1, 366, 5 * 365 + 2]);
        assert_eq!(LockPeriod::Days(u32::MAX).until_us(Stamp::new(u64::MAX)), u64::MAX);
        let valid = [
            LockPeriod::Days(0),
            LockPeriod::Days(DAYS_MAX),
            LockPeriod::Days(DAYS_MAX + 1),
            LockPeriod::Years(0),
            LockPeriod::Years(YEARS_MAX),
            LockPeriod::Years(YEARS_MAX + 1),
        ];
        assert_eq!(valid.map(LockPeriod::is_valid), [false, true, false, false, true, false]);
    }
}
