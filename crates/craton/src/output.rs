//! Output of commands: tables, sizes, times, JSON.

use std::io::Write;

use base::Civil;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;

use crate::exit::{Done, Failure};

/// An empty table with a header.
pub fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header.iter().map(|title| title.to_uppercase()));
    table
}

/// Prints a table; `numbers` are the columns aligned to the right.
pub fn print_table(mut table: Table, numbers: &[usize]) -> Done {
    for &column in numbers {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    for line in table.lines() {
        print_line(line.trim_end())?;
    }
    Ok(())
}

/// Prints a line to standard output.
pub fn print_line(line: &str) -> Done {
    write_out(&[line.as_bytes(), b"\n"])
}

/// Prints a line of a role about itself. The role goes on when it cannot be written: the disk of
/// its output may be full, or its reader gone.
pub fn announce(line: &str) {
    announce_to(&mut std::io::stdout().lock(), line);
}

fn announce_to(out: &mut impl Write, line: &str) {
    if let Err(error) = out.write_all(format!("{line}\n").as_bytes()).and_then(|()| out.flush()) {
        tracing::warn!(%error, line, "standard output takes no line");
    }
}

/// Beginning of a warning. `craton cluster` repeats lines of a role's output that begin so.
pub const WARNING: &str = "craton: warning: ";

/// Prints a warning to standard error, if that takes it.
pub fn warn(text: &str) {
    let _ = writeln!(std::io::stderr(), "{WARNING}{text}");
}

/// Prints one JSON value to standard output.
pub fn print_json(value: &impl Serialize) -> Done {
    let text = serde_json::to_string(value)
        .map_err(|error| Failure::failed(format!("cannot print JSON: {error}")))?;
    print_line(&text)
}

/// Writes to standard output. A reader that has gone ends the process quietly.
pub fn write_out(parts: &[&[u8]]) -> Done {
    let mut out = std::io::stdout().lock();
    let written = parts.iter().try_for_each(|part| out.write_all(part)).and_then(|()| out.flush());
    match written {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => Err(Failure::failed(format!("cannot write to standard output: {error}"))),
        Ok(()) => Ok(()),
    }
}

/// Bytes as text: `1.5 MiB`.
pub fn bytes(count: u64) -> String {
    let mut value = count as f64;
    for unit in ["B", "KiB", "MiB", "GiB", "TiB"] {
        if value < 1000.0 {
            return if unit == "B" { format!("{count} B") } else { format!("{value:.1} {unit}") };
        }
        value /= 1024.0;
    }
    format!("{value:.1} PiB")
}

/// A time as text, UTC: `2026-11-21 06:30:00`.
pub fn time(unix_ns: u64) -> String {
    let Civil { year, month, day, hour, minute, second } = Civil::of(unix_ns / 1_000_000_000);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
}

/// A fresh directory for one test.
/// `cs2` before `cs10`.
pub fn natural(name: &str) -> (&str, u64, &str) {
    let letters = name.trim_end_matches(|c: char| c.is_ascii_digit());
    (letters, name[letters.len()..].parse().unwrap_or(0), name)
}

#[cfg(test)]
pub fn test_dir(name: &str) -> std::path::PathBuf {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("craton-test-{}-{name}-{number}", std::process::id());
    let dir = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&dir).expect("it can be made");
    dir
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `/dev/full` does.
    struct Full;

    impl Write for Full {
        fn write(&mut self, _bytes: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::StorageFull.into())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn line_of_a_role_that_cannot_be_written_is_no_failure() {
        announce_to(&mut Full, "it serves");
        let mut out = Vec::new();
        announce_to(&mut out, "it serves");
        assert_eq!(out, b"it serves\n");
    }

    #[test]
    fn sizes_are_short() {
        let given = [0, 999, 1000, 1 << 20, 1 << 30, 5 << 40, u64::MAX];
        let want = ["0 B", "999 B", "1.0 KiB", "1.0 MiB", "1.0 GiB", "5.0 TiB", "16384.0 PiB"];
        assert_eq!(given.map(bytes), want.map(str::to_owned));
    }

    #[test]
    fn times_are_utc() {
        let given = [0, 951_782_400, 1_709_164_799, 4_102_444_800].map(|s| s * 1_000_000_000);
        let want = [
            "1970-01-01 00:00:00",
            "2000-02-29 00:00:00",
            "2024-02-28 23:59:59",
            "2100-01-01 00:00:00",
        ];
        assert_eq!(given.map(time), want.map(str::to_owned));
    }

    #[test]
    fn names_are_in_natural_order() {
        let mut names = vec!["m1", "cs10", "cs2", "cs1", "x"];
        names.sort_by(|left, right| natural(left).cmp(&natural(right)));
        assert_eq!(names, ["cs1", "cs2", "cs10", "m1", "x"]);
    }
}
