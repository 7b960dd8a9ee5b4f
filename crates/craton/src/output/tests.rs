//! Output of commands.

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

#[test]
fn control_characters_of_names_are_not_printed() {
    assert_eq!(visible("a\u{1b}[2J\nb\u{9b}c"), "a\\u{1b}[2J\\nb\\u{9b}c");
    assert_eq!(visible("b\u{e4}r 'x'"), "b\u{e4}r 'x'");
    assert_eq!(visible_lines("a\n\u{7}b\n"), "a\n\\u{7}b\n");
}

#[test]
fn shell_reads_a_quoted_word_as_it_was() {
    for text in ["plain", "it's", "a b;$(c)`d`\"e\\f", "x'\ty\\\n\u{1b}[2J\u{85}0", "$'", ""] {
        let word = shell_word(text);
        assert!(!word.contains(char::is_control), "{word}");
        let script = format!("printf %s {word}");
        let shell = std::process::Command::new("bash").args(["-c", &script]).output();
        let read = shell.expect("bash runs").stdout;
        assert_eq!(String::from_utf8_lossy(&read), text, "{word}");
    }
}
