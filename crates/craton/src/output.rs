//! Output of commands: tables, sizes, times, JSON.

use std::fmt::Display;
use std::io::Write;
use std::ops::Deref;

use base::Civil;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use runtime::Env;
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
        print_line(&visible(line.trim_end()))?;
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

/// Prints a line to standard error, if that takes it: it may be a file on a full disk.
pub fn print_error(line: impl Display) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Prints a failure to standard error, if that takes it. It may have names of any client.
pub fn print_failure(failure: &Failure) {
    print_error(format_args!("craton: {}", visible_lines(&failure.message)));
}

/// Prints a warning to standard error, if that takes it.
pub fn warn(text: &str) {
    print_error(format_args!("{WARNING}{}", visible_lines(text)));
}

/// A number of things: `1 gateway`, `2 gateways`.
pub fn counted(count: u64, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

/// Prints one JSON value to standard output.
pub fn print_json(value: &impl Serialize) -> Done {
    let text = serde_json::to_string(value)
        .map_err(|error| Failure::failed(format!("cannot print JSON: {error}")))?;
    print_line(&text)
}

/// Writes the next bytes of a data stream to standard output. A reader that is slow holds up no other
/// task; one that has gone has a part of the data, which is a failure.
pub async fn write_data(env: &Env, data: impl Deref<Target = [u8]> + Send + 'static) -> Done {
    let write = move || {
        let mut out = std::io::stdout().lock();
        out.write_all(&data).and_then(|()| out.flush())
    };
    env.blocking("write standard output", write).await.map_err(|error| match error.kind() {
        std::io::ErrorKind::BrokenPipe => Failure::failed(
            "the reader of standard output has ended before the data has: it has only a part",
        ),
        _ => Failure::failed(format!("cannot write to standard output: {error}")),
    })
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

/// A name on one line: control characters as `\n`, `\u{7}`. JSON has it as it is.
pub fn visible(name: &str) -> String {
    let show = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.into() };
    name.chars().map(show).collect()
}

/// The same of a text, whose lines stay.
pub fn visible_lines(text: &str) -> String {
    text.split('\n').map(visible).collect::<Vec<_>>().join("\n")
}

/// A text as one word of a command. Control characters are as bash and zsh read them.
pub fn shell_word(text: &str) -> String {
    if !text.contains(char::is_control) {
        return format!("'{}'", text.replace('\'', "'\\''"));
    }
    let mut word = "$'".to_owned();
    for c in text.chars() {
        match c {
            '\'' | '\\' => word.extend(['\\', c]),
            c if c.is_control() => {
                c.to_string().bytes().for_each(|byte| word += &format!("\\x{byte:02x}"));
            }
            c => word.push(c),
        }
    }
    word.push('\'');
    word
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
mod tests;
