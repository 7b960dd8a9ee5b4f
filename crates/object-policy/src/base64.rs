//! Base64, as `BinaryEquals` has its values.

/// The bytes of a text with padding, in the standard alphabet; `None` when it is not.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    let bytes = text.as_bytes();
    let body = text.strip_suffix("==").or_else(|| text.strip_suffix('=')).unwrap_or(text);
    if !bytes.len().is_multiple_of(4) {
        return None;
    }
    let mut decoded = Vec::with_capacity(body.len() * 3 / 4);
    for group in body.as_bytes().chunks(4) {
        let mut bits = 0u32;
        for &digit in group {
            bits = bits << 6 | u32::from(value(digit)?);
        }
        // Bytes of the group, and bits that are left over and must be zero.
        let (count, spare) = match group.len() {
            4 => (3, 0),
            3 => (2, 2),
            2 => (1, 4),
            _ => return None,
        };
        if bits & ((1 << spare) - 1) != 0 {
            return None;
        }
        let whole = bits >> spare;
        decoded.extend((0..count).rev().map(|index| (whole >> (8 * index)) as u8));
    }
    Some(decoded)
}

fn value(digit: u8) -> Option<u8> {
    Some(match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_decode_strictly() {
        for (text, bytes) in [
            ("", Some(&b""[..])),
            ("Zg==", Some(b"f")),
            ("Zm8=", Some(b"fo")),
            ("Zm9v", Some(b"foo")),
            ("Zm9vYg==", Some(b"foob")),
            ("+/8=", Some(b"\xfb\xff")),
            ("Zg", None),
            ("Zg=", None),
            ("Zh==", None),
            ("Zm9=", None),
            ("Z===", None),
            ("====", None),
            ("Zm9v Zg=", None),
            ("Zm-v", None),
            ("Zg==Zg==", None),
        ] {
            assert_eq!(decode(text).as_deref(), bytes, "{text}");
        }
    }
}
