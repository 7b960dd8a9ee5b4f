//! Golden messages: lines that another build has to read and write the same. A line has the bytes in
//! hexadecimal, a tab, and what they say.

use std::fmt::{Debug, Write as _};

use super::WireError;

/// A line for each message of 160 bytes at most.
pub fn lines<T: Debug>(messages: &[T], encode: impl Fn(&T) -> Vec<u8>) -> String {
    let mut text = String::new();
    for message in messages {
        let bytes = encode(message);
        if bytes.len() <= 160 {
            bytes.iter().for_each(|byte| write!(text, "{byte:02x}").expect("text"));
            writeln!(text, "\t{message:?}").expect("text");
        }
    }
    text
}

/// Checks that each line's bytes say what stands beside them, and are written back.
///
/// # Panics
///
/// When they do not.
pub fn check<T: Debug>(
    text: &str,
    encode: impl Fn(&T) -> Vec<u8>,
    decode: impl Fn(&[u8]) -> Result<T, WireError>,
) {
    for line in text.lines() {
        let (hex, said) = line.split_once('\t').expect("bytes and text");
        let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal");
        let bytes: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
        let message = decode(&bytes).unwrap_or_else(|error| panic!("{said}: {error}"));
        assert_eq!(format!("{message:?}"), said);
        assert_eq!(encode(&message), bytes, "{said}");
    }
}
