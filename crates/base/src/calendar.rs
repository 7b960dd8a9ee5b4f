//! [`Civil`]: a time as calendars and clocks show it.

/// A time in UTC, by the calendar in use, without leap seconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Civil {
    /// Year, 1970 or later.
    pub year: u64,
    /// Month, 1 to 12.
    pub month: u64,
    /// Day, 1 to 31.
    pub day: u64,
    /// Hour, 0 to 23.
    pub hour: u64,
    /// Minute, 0 to 59.
    pub minute: u64,
    /// Second, 0 to 59.
    pub second: u64,
}

impl Civil {
    /// The time so many seconds behind 1970 began.
    pub fn of(unix_seconds: u64) -> Civil {
        let (days, rest) = (unix_seconds / 86_400, unix_seconds % 86_400);
        // A year starts in March, so that the day that comes and goes is its last; 719,468 days from
        // the first such year to 1970.
        let days = days + 719_468;
        let (era, of_era) = (days / 146_097, days % 146_097);
        let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year + year / 4 - year / 100);
        let march_month = (5 * of_year + 2) / 153;
        let day = of_year - (153 * march_month + 2) / 5 + 1;
        let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
        Civil {
            year: year + era * 400 + u64::from(month <= 2),
            month,
            day,
            hour: rest / 3600,
            minute: rest / 60 % 60,
            second: rest % 60,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_that_come_and_go_are_where_they_belong() {
        for (seconds, (year, month, day), (hour, minute, second)) in [
            (0, (1970, 1, 1), (0, 0, 0)),
            (951_782_399, (2000, 2, 28), (23, 59, 59)),
            (951_782_400, (2000, 2, 29), (0, 0, 0)),
            (1_772_323_200, (2026, 3, 1), (0, 0, 0)),
            (1_795_848_300, (2026, 11, 28), (6, 45, 0)),
            (4_107_542_399, (2100, 2, 28), (23, 59, 59)),
            (4_107_542_400, (2100, 3, 1), (0, 0, 0)),
        ] {
            let civil = Civil { year, month, day, hour, minute, second };
            assert_eq!(Civil::of(seconds), civil, "{seconds}");
        }
    }
}
