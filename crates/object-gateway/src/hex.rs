//! Hexadecimal text with small digits.

/// Text of some bytes.
pub fn encode(bytes: &[u8]) -> String {
    use std::fmt::Write;
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        let _ = write!(text, "{byte:02x}"); // Writing to a string cannot fail.
    }
    text
}

/// Bytes of a text with exactly two small digits for each; `None` otherwise.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let text = text.as_bytes();
    if !text.len().is_multiple_of(2) {
        return None;
    }
    text.chunks(2).map(|pair| Some(value_of(pair[0])? << 4 | value_of(pair[1])?)).collect()
}

fn value_of(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_one_text() {
        assert_eq!(encode(&[0, 0x1f, 0xff]), "001fff");
        assert_eq!(decode("001fff"), Some(vec![0, 0x1f, 0xff]));
        for text in ["0", "0G", "FF", "é"] {
            assert_eq!(decode(text), None, "{text}");
        }
    }
}
