//! Messages in tests: golden ones, which another build has to read and write the same, and parts that
//! drawn ones have in common.

use std::fmt::{Debug, Display, Write as _};
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};
use std::path::Path;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

/// Longest message that gets a line in a golden file, bytes: a line is read by a person, too.
const GOLDEN_BYTES_MAX: usize = 160;
/// Lines that are added to a golden file at a time, and the messages drawn among which they are looked for.
const ADDED_MAX: usize = 6;
const ADDED_FROM: usize = 4000;
/// Fewest lines of a golden file: one with fewer is not what was recorded.
const GOLDEN_LINES_MIN: usize = 100;

/// Maps strategies through a tuple pattern.
#[macro_export]
macro_rules! made {
    ($(($name:pat, $strategy:expr)),+ => $value:expr) => {
        ($($strategy,)+).prop_map(|($($name,)+)| $value)
    };
}

/// Any address, of both families.
pub fn addr() -> impl Strategy<Value = SocketAddr> {
    prop_oneof![
        any::<([u8; 4], u16)>().prop_map(SocketAddr::from),
        any::<([u8; 16], u16, u32)>().prop_map(|(ip, port, scope)| {
            SocketAddrV6::new(Ipv6Addr::from(ip), port, 0, scope).into()
        }),
    ]
}

/// A name that a directory can have.
pub fn name() -> impl Strategy<Value = String> {
    "[^/]{1,60}".prop_filter("no name", |name| name != "." && name != "..")
}

/// A text that an operator may choose: 1 to 20 printable characters.
pub fn label() -> impl Strategy<Value = String> {
    "\\PC{1,20}"
}

/// A line for each message of 160 bytes at most: its bytes in hexadecimal, a tab, what they say.
fn lines<T: Debug>(messages: &[T], encode: impl Fn(&T) -> Vec<u8>) -> String {
    let mut text = String::new();
    for message in messages {
        let bytes = encode(message);
        if bytes.len() <= GOLDEN_BYTES_MAX {
            bytes.iter().for_each(|byte| write!(text, "{byte:02x}").expect("text"));
            writeln!(text, "\t{message:?}").expect("text");
        }
    }
    text
}

/// Checks that the bytes of each line of `file` decode to what the line says, and are written back
/// the same. With `CRATON_WRITE_GOLDEN=1` in the environment the file is written first, from `draws`
/// messages of `drawn`. With `CRATON_WRITE_GOLDEN=text` its lines keep their bytes, and say what these
/// decode to. With any other text, such as the name of a new message, the first messages drawn that
/// have it are added.
///
/// # Panics
///
/// When a line differs, or the file is missing or too short.
pub fn golden<T: Debug, E: Display>(
    file: &Path,
    (drawn, draws): (&BoxedStrategy<T>, usize),
    encode: impl Fn(&T) -> Vec<u8>,
    decode: impl Fn(&[u8]) -> Result<T, E>,
) {
    let written = std::env::var("CRATON_WRITE_GOLDEN").ok();
    let mut runner = TestRunner::deterministic();
    let mut draw = |_| drawn.new_tree(&mut runner).expect("a message").current();
    match written.as_deref() {
        None => {}
        Some("text") => rewrite_text(file, &decode),
        Some("1") => {
            let messages: Vec<T> = (0..draws).map(&mut draw).collect();
            std::fs::write(file, lines(&messages, &encode)).expect("the file can be written");
        }
        Some(wanted) => {
            let messages: Vec<T> = (0..ADDED_FROM).map(&mut draw).collect();
            add_lines(file, &lines(&messages, &encode), wanted);
        }
    }
    let text = std::fs::read_to_string(file).expect("the file is committed");
    assert!(text.lines().count() >= GOLDEN_LINES_MIN, "{}: too few messages", file.display());
    for line in text.lines() {
        let (hex, said) = line.split_once('\t').expect("bytes and text");
        let bytes = bytes_of(hex);
        let message = decode(&bytes).unwrap_or_else(|error| panic!("{said}: {error}"));
        assert_eq!(format!("{message:?}"), said);
        assert_eq!(encode(&message), bytes, "{said}");
    }
}

fn bytes_of(hex: &str) -> Vec<u8> {
    let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal");
    (0..hex.len()).step_by(2).map(byte).collect()
}

/// Adds the first of the drawn lines that have the text, and are not there.
fn add_lines(file: &Path, drawn: &str, wanted: &str) {
    let mut text = std::fs::read_to_string(file).expect("the file is committed");
    let new: Vec<_> =
        drawn.lines().filter(|it| it.contains(wanted) && !text.contains(it)).collect();
    for line in new.into_iter().take(ADDED_MAX) {
        text.push_str(line);
        text.push('\n');
    }
    std::fs::write(file, text).expect("the file can be written");
}

fn rewrite_text<T: Debug, E: Display>(file: &Path, decode: impl Fn(&[u8]) -> Result<T, E>) {
    let before = std::fs::read_to_string(file).expect("the file is committed");
    let rewritten = before.lines().map(|line| {
        let (hex, said) = line.split_once('\t').expect("bytes and text");
        let message = decode(&bytes_of(hex)).unwrap_or_else(|error| panic!("{said}: {error}"));
        format!("{hex}\t{message:?}\n")
    });
    std::fs::write(file, rewritten.collect::<String>()).expect("the file can be written");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers as two bytes, least significant first; `decode` reads them.
    fn numbers_in(name: &str, text: &str, decode: fn(&[u8]) -> Result<u16, String>) {
        let dir = std::env::temp_dir().join(format!("craton-golden-{}", std::process::id()));
        let file = dir.join(name);
        std::fs::create_dir_all(&dir).expect("a folder");
        std::fs::write(&file, text).expect("a file");
        let result = std::panic::catch_unwind(|| {
            golden(&file, (&any::<u16>().boxed(), 1), |it| it.to_le_bytes().to_vec(), decode);
        });
        std::fs::remove_file(&file).expect("the file is there");
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
    }

    #[test]
    fn new_lines_are_added_behind_those_that_are_there() {
        let file = std::env::temp_dir().join(format!("craton-added-{}", std::process::id()));
        std::fs::write(&file, "00\tbefore\n01\tnew 1\n").expect("a file");
        let drawn: String = (1..20).map(|it| format!("{it:02x}\tnew {it}\n")).collect();
        add_lines(&file, &format!("ff\tother\n{drawn}"), "new");
        let text = std::fs::read_to_string(&file).expect("it is there");
        std::fs::remove_file(&file).expect("it is there");
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[..3], ["00\tbefore", "01\tnew 1", "02\tnew 2"]);
        assert_eq!(lines.len(), 2 + ADDED_MAX);
    }

    fn decode(bytes: &[u8]) -> Result<u16, String> {
        Ok(u16::from_le_bytes(bytes.try_into().map_err(|_| "two bytes".to_owned())?))
    }

    fn written() -> String {
        let numbers: Vec<u16> = (0..120).map(|number| number * 500).collect();
        lines(&numbers, |it| it.to_le_bytes().to_vec())
    }

    #[test]
    fn golden_lines_are_read_back() {
        numbers_in("read-back", &written(), decode);
    }

    #[test]
    #[should_panic(expected = "too few messages")]
    fn a_golden_file_with_few_lines_is_refused() {
        numbers_in("few-lines", &written()[..400], decode);
    }

    #[test]
    #[should_panic(expected = "assertion `left == right` failed")]
    fn a_golden_line_that_is_read_otherwise_is_found() {
        numbers_in("otherwise", &written(), |bytes| decode(bytes).map(|it| it.swap_bytes()));
    }

    #[test]
    #[should_panic(expected = "500: three bytes")]
    fn a_golden_line_that_is_refused_is_found() {
        numbers_in("refused", &written(), |bytes| match bytes {
            [0, 0] => Ok(0),
            _ => Err("three bytes".to_owned()),
        });
    }
}
