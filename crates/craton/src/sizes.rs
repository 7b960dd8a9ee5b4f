//! Numbers of bytes, and times, on the command line.

/// Bytes, with `K`, `M`, `G` or `T` (also `KiB` and so on) for powers of 1024.
pub fn parse_size(text: &str) -> Result<usize, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim() {
        "" | "B" => 0,
        "K" | "KiB" => 10,
        "M" | "MiB" => 20,
        "G" | "GiB" => 30,
        "T" | "TiB" => 40,
        _ => return Err(format!("'{unit}' is no unit: use K, M, G or T, such as 64K or 1MiB")),
    };
    let number: usize = number.parse().map_err(|_| format!("'{text}' is no number of bytes"))?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("'{text}' is too much"))
}

/// The same for lengths of which there is no empty one.
pub fn parse_length(text: &str) -> Result<usize, String> {
    match parse_size(text)? {
        0 => Err("at least 1 byte".to_owned()),
        len => Ok(len),
    }
}

/// Seconds, from a number above zero and one of these units; `such_as` are examples.
pub fn parse_seconds(text: &str, units: &[(&str, u64)], such_as: &str) -> Result<u64, String> {
    let wrong = || format!("'{text}' is no time: such as {such_as}");
    let unit_at = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
    let (count, unit) = text.split_at(unit_at);
    let (_, seconds) = units.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
    let count: u64 = count.parse().map_err(|_| wrong())?;
    count.checked_mul(*seconds).filter(|&time| time > 0).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_take_units() {
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_size("64K"), Ok(65_536));
        assert_eq!(parse_size("1MiB"), Ok(1 << 20));
        for bad in ["", "K", "1X", "-1", "1.5M", "99999999999G"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }
}
