//! Times in conditions: ISO 8601 as the W3C profiles it, or seconds since 1970.

const MICROS: i64 = 1_000_000;
/// Digits of seconds since 1970 at most: enough for 30,000 years, and all of it fits as us.
const EPOCH_DIGITS_MAX: usize = 12;

/// Microseconds since 1970, from a year, month, day or time with its zone, or from seconds since
/// 1970. Four digits are a year.
pub(crate) fn parse(text: &str) -> Option<i64> {
    let is_number = !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
    if is_number && text.len() != 4 {
        if text.len() > EPOCH_DIGITS_MAX {
            return None;
        }
        return text.parse::<i64>().ok().map(|seconds| seconds * MICROS);
    }
    let (date, time) = match text.split_once('T') {
        Some((date, time)) => (date, Some(time)),
        None => (text, None),
    };
    let mut parts = date.split('-');
    let year = number(parts.next()?, 4)?;
    let month = parts.next().map_or(Some(1), |text| number(text, 2))?;
    let day_text = parts.next();
    let day = day_text.map_or(Some(1), |text| number(text, 2))?;
    let is_date = (1..=12).contains(&month) && (1..=days_of(year, month)).contains(&day);
    if !is_date || parts.next().is_some() || time.is_some() && day_text.is_none() {
        return None;
    }
    let within = time.map_or(Some(0), time_of_day)?;
    Some(days_since_1970(year, month, day) * 86_400 * MICROS + within)
}

/// Microseconds since midnight in UTC, from a time with its zone: below zero or above a day too.
fn time_of_day(text: &str) -> Option<i64> {
    let zone_at = text.find(['Z', '+', '-'])?;
    let (time, zone) = text.split_at(zone_at);
    let mut parts = time.split(':');
    let hour = number(parts.next()?, 2)?;
    let minute = number(parts.next()?, 2)?;
    let second = parts.next().map_or(Some(0), seconds)?;
    if hour > 23 || minute > 59 || parts.next().is_some() {
        return None;
    }
    let offset = match zone {
        "Z" => 0,
        zone => {
            let (hours, minutes) = zone[1..].split_once(':')?;
            let (hours, minutes) = (number(hours, 2)?, number(minutes, 2)?);
            if hours > 23 || minutes > 59 {
                return None;
            }
            let minutes = hours * 60 + minutes;
            if zone.starts_with('-') { -minutes } else { minutes }
        }
    };
    Some((hour * 60 + minute - offset) * 60 * MICROS + second)
}

/// Microseconds, from two digits and any number of decimals.
fn seconds(text: &str) -> Option<i64> {
    let (whole, decimals) = match text.split_once('.') {
        Some((whole, decimals)) if !decimals.is_empty() => (whole, decimals),
        Some(_) => return None,
        None => (text, ""),
    };
    let whole = number(whole, 2).filter(|second| *second < 60)?;
    if !decimals.bytes().all(|c| c.is_ascii_digit()) {
        return None;
    }
    let six = decimals.bytes().chain(std::iter::repeat(b'0')).take(6);
    Some(whole * MICROS + six.fold(0, |sum, digit| sum * 10 + i64::from(digit - b'0')))
}

fn number(text: &str, digits: usize) -> Option<i64> {
    let is_number = text.len() == digits && text.bytes().all(|c| c.is_ascii_digit());
    if is_number { text.parse().ok() } else { None }
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn days_of(year: i64, month: i64) -> i64 {
    match month {
        2 => 28 + i64::from(is_leap(year)),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days of the Gregorian calendar, extended to years before it.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let leap_days =
        |years: i64| years.div_euclid(4) - years.div_euclid(100) + years.div_euclid(400);
    let years = (year - 1970) * 365 + leap_days(year - 1) - leap_days(1969);
    years + (1..month).map(|month| days_of(year, month)).sum::<i64>() + day - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_microseconds_since_1970() {
        for (text, seconds) in [
            ("0", 0),
            ("1700000000", 1_700_000_000),
            ("1970", 0),
            ("1970-01-02", 86_400),
            ("1969-12-31", -86_400),
            ("2000-03", 951_868_800),
            ("2000-02-29T00:00Z", 951_782_400),
            ("2023-11-14T22:13:20Z", 1_700_000_000),
            ("2023-11-14T23:13:20+01:00", 1_700_000_000),
            ("2023-11-14T18:43:20-03:30", 1_700_000_000),
            ("2024-12-31T23:59:59Z", 1_735_689_599),
            ("2100-03-01T00:00:00Z", 4_107_542_400),
            ("0001-01-01T00:00:00Z", -62_135_596_800),
        ] {
            assert_eq!(parse(text), Some(seconds * MICROS), "{text}");
        }
        assert_eq!(parse("1970-01-01T00:00:01.25Z"), Some(1_250_000));
        assert_eq!(parse("1970-01-01T00:00:00.123456789Z"), Some(123_456));
    }

    #[test]
    fn texts_that_are_no_time_are_refused() {
        for text in [
            "",
            "x",
            "-1",
            "1.5",
            "1234567890123",
            "2023-13-01",
            "2023-00-01",
            "2023-02-29",
            "2023-1-1",
            "2023-01-01T00:00:00",
            "2023-01-01T24:00:00Z",
            "2023-01-01T00:60:00Z",
            "2023T00:00Z",
            "2023-01-01T00:00:60Z",
            "2023-01-01T00:00:00.Z",
            "2023-01-01T00:00:00+0100",
            "2023-01-01 00:00:00Z",
            "2023-01-01T00Z",
            "2023-01-01-01",
            "2023-01-01T00:00:00Z ",
            "2023-01-01T00:00:00ZZ",
            "2023-01-01T00:00:00ä",
            "2023-01-01T00:00:00+ä:00",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
