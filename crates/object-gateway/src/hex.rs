//! Hexadecimal text with small digits.

use hex_simd::AsciiCase;

/// Text of some bytes.
pub fn encode(bytes: &[u8]) -> String {
    hex_simd::encode_to_string(bytes, AsciiCase::Lower)
}

/// Bytes of a text with exactly two small digits for each; `None` otherwise.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let is_small = !text.bytes().any(|byte| byte.is_ascii_uppercase());
    is_small.then(|| hex_simd::decode_to_vec(text).ok())?
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
