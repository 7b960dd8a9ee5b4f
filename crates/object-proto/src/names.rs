//! Names of buckets and keys of objects, as S3 allows them.

use std::fmt;

use crate::limits::KEY_MAX;

/// Cause of a name's refusal, with the rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NameError(pub &'static str);

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for NameError {}

/// Name of a bucket.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct BucketName(String);

/// Beginnings and ends of names that S3 keeps for itself.
const RESERVED: [&str; 3] = ["xn--", "sthree-", "amzn-s3-demo-"];
const RESERVED_ENDS: [&str; 4] = ["-s3alias", "--ol-s3", ".mrap", "--x-s3"];

impl BucketName {
    /// Checks a name by S3's rules for new buckets.
    pub fn new(name: &str) -> Result<BucketName, NameError> {
        let bytes = name.as_bytes();
        let is_end = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        if !(3..=63).contains(&bytes.len()) {
            return Err(NameError("a bucket's name has 3 to 63 characters"));
        }
        if !bytes.iter().all(|&byte| is_end(byte) || byte == b'.' || byte == b'-') {
            return Err(NameError(
                "a bucket's name has lower-case letters, digits, dots and hyphens only",
            ));
        }
        if !is_end(bytes[0]) || !is_end(bytes[bytes.len() - 1]) {
            return Err(NameError("a bucket's name begins and ends with a letter or digit"));
        }
        if name.contains("..") {
            return Err(NameError("a bucket's name has no two dots in a row"));
        }
        if name.parse::<std::net::Ipv4Addr>().is_ok() {
            return Err(NameError("a bucket's name is no IP address"));
        }
        if RESERVED.iter().any(|start| name.starts_with(start))
            || RESERVED_ENDS.iter().any(|end| name.ends_with(end))
        {
            return Err(NameError("names of this form are reserved in S3"));
        }
        Ok(BucketName(name.to_owned()))
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for BucketName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Key of an object in its bucket: 1 to 1,024 bytes of UTF-8, otherwise any.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ObjectKey(String);

impl ObjectKey {
    /// Checks a key's length.
    pub fn new(key: impl Into<String>) -> Result<ObjectKey, NameError> {
        let key = key.into();
        match key.len() {
            0 => Err(NameError("a key has at least one byte")),
            1..=KEY_MAX => Ok(ObjectKey(key)),
            _ => Err(NameError("a key has 1,024 bytes at most")),
        }
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bucket_names_follow_s3() {
        for good in ["abc", "a-b.c9", "0ab", &"a".repeat(63), "1.2.3", "a.b-c"] {
            assert_eq!(BucketName::new(good).map(|name| name.0).as_deref(), Ok(good));
        }
        for bad in [
            "",
            "ab",
            &"a".repeat(64),
            "Abc",
            "a_b",
            "-ab",
            "ab-",
            ".ab",
            "ab.",
            "a..b",
            "192.168.0.1",
            "xn--abc",
            "sthree-a",
            "my-s3alias",
            "a--ol-s3",
            "a/b",
            "abc\0",
            "ä-b",
        ] {
            assert!(BucketName::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn keys_have_a_byte_and_a_kilobyte_at_most() {
        for good in ["a", "/", "..", "a//b", "\0", &"x".repeat(KEY_MAX), "ä/ö", " "] {
            assert_eq!(ObjectKey::new(good).unwrap().as_str(), good);
        }
        assert!(ObjectKey::new("").is_err());
        assert!(ObjectKey::new("x".repeat(KEY_MAX + 1)).is_err());
    }
}
