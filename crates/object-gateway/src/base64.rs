//! Base64 with padding (RFC 4648, section 4), as checksums are written in S3's headers.

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Text of some bytes.
pub fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let mut word = [0; 3];
        word[..group.len()].copy_from_slice(group);
        let bits = u32::from_be_bytes([0, word[0], word[1], word[2]]);
        for place in 0..4 {
            let digit = (bits >> (18 - 6 * place)) & 63;
            // A group of n bytes has n + 1 digits.
            text.push(if place <= group.len() { DIGITS[digit as usize] as char } else { '=' });
        }
    }
    text
}

/// Bytes of a text; `None` where it is not the one text of some bytes.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let text = text.as_bytes();
    if !text.len().is_multiple_of(4) {
        return None;
    }
    let padding = text.iter().rev().take(2).take_while(|&&byte| byte == b'=').count();
    let digits = &text[..text.len() - padding];
    let mut bytes = Vec::with_capacity(digits.len() * 3 / 4);
    for group in digits.chunks(4) {
        let mut bits = 0u32;
        for place in 0..4 {
            let value = match group.get(place) {
                Some(digit) => value_of(*digit)?,
                None => 0,
            };
            bits = bits << 6 | value;
        }
        let word = bits.to_be_bytes();
        let len = group.len() - 1;
        // Bits behind the last byte are zero in the text that `encode` makes.
        if word[1 + len..].iter().any(|&byte| byte != 0) {
            return None;
        }
        bytes.extend_from_slice(&word[1..1 + len]);
    }
    Some(bytes)
}

fn value_of(digit: u8) -> Option<u32> {
    let value = match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    };
    Some(u32::from(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_standards_examples_hold() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(encode(bytes.as_bytes()), text);
            assert_eq!(decode(text).as_deref(), Some(bytes.as_bytes()));
        }
    }

    #[test]
    fn texts_that_are_none_are_refused() {
        for text in ["Z", "Zg", "Zg=", "Zh==", "Zm9=", "Zm9v=", "====", "=", "Z===", "Zm 9", "Zm9_"]
        {
            assert_eq!(decode(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn bytes_come_back(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            prop_assert_eq!(decode(&encode(&bytes)), Some(bytes));
        }

        #[test]
        fn a_text_that_is_read_is_the_one_written(text in "[A-Za-z0-9+/=]{0,24}") {
            if let Some(bytes) = decode(&text) {
                prop_assert_eq!(encode(&bytes), text);
            }
        }
    }
}
