//! [`ObjectTags`]: names and values that users give an object apart from its content.

use std::collections::BTreeMap;
use std::fmt;

/// Tags of an object at most.
pub const TAGS_MAX: usize = 10;
/// Characters of a tag's name at most, and of its value.
pub const TAG_NAME_MAX: usize = 128;
/// See [`TAG_NAME_MAX`].
pub const TAG_VALUE_MAX: usize = 256;

/// Tags of an object.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ObjectTags(BTreeMap<String, String>);

/// Cause of a refusal of tags.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlawedTags {
    /// There are too many.
    Many,
    /// A name is empty or too long.
    Name,
    /// A value is too long.
    Value,
}

impl fmt::Display for FlawedTags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FlawedTags::Many => write!(f, "an object has {TAGS_MAX} tags at most"),
            FlawedTags::Name => write!(f, "a tag's name has 1 to {TAG_NAME_MAX} characters"),
            FlawedTags::Value => write!(f, "a tag's value has {TAG_VALUE_MAX} characters at most"),
        }
    }
}

impl ObjectTags {
    /// Checks number and lengths.
    ///
    /// # Errors
    ///
    /// What S3 does not take.
    pub fn new(tags: BTreeMap<String, String>) -> Result<ObjectTags, FlawedTags> {
        if tags.len() > TAGS_MAX {
            return Err(FlawedTags::Many);
        }
        for (name, value) in &tags {
            if name.is_empty() || name.chars().count() > TAG_NAME_MAX {
                return Err(FlawedTags::Name);
            }
            if value.chars().count() > TAG_VALUE_MAX {
                return Err(FlawedTags::Value);
            }
        }
        Ok(ObjectTags(tags))
    }

    /// Names and values, in order of names.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_bounded_as_in_s3() {
        let of = |name: usize, value: usize| {
            ObjectTags::new(BTreeMap::from([("ä".repeat(name), "v".repeat(value))])).err()
        };
        assert_eq!(of(TAG_NAME_MAX, TAG_VALUE_MAX), None);
        assert_eq!(of(1, 0), None);
        assert_eq!(
            (of(0, 1), of(TAG_NAME_MAX + 1, 1)),
            (Some(FlawedTags::Name), Some(FlawedTags::Name))
        );
        assert_eq!(of(1, TAG_VALUE_MAX + 1), Some(FlawedTags::Value));
        let many = |count: usize| {
            ObjectTags::new((0..count).map(|n| (n.to_string(), String::new())).collect()).err()
        };
        assert_eq!((many(TAGS_MAX), many(TAGS_MAX + 1)), (None, Some(FlawedTags::Many)));
    }
}
