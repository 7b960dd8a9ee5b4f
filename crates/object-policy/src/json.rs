//! [`Json`]: JSON in which an object has each key once, to a bounded depth.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use crate::error::{Flaw, PolicyError};
use crate::limits::DEPTH_MAX;

/// A value.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Json {
    Null,
    Text(String),
    /// A number, `true` or `false`, as text.
    Scalar(String),
    List(Vec<Json>),
    /// In the order of the text.
    Object(Vec<(String, Json)>),
}

impl Json {
    /// Parses a text that holds one value.
    pub(crate) fn parse(text: &str) -> Result<Json, PolicyError> {
        let refused = |error: serde_json::Error| PolicyError::of(Flaw::Json, &error.to_string());
        let mut source = serde_json::Deserializer::from_str(text);
        let json = Level(DEPTH_MAX).deserialize(&mut source).map_err(refused)?;
        source.end().map_err(refused)?;
        Ok(json)
    }

    /// A text, or a list of at least one.
    pub(crate) fn into_texts(self, field: &'static str) -> Result<Vec<String>, PolicyError> {
        let list = match self {
            Json::List(list) => list,
            one => vec![one],
        };
        if list.is_empty() {
            return Err(Flaw::Empty(field).into());
        }
        list.into_iter().map(|json| json.into_text(field)).collect()
    }

    /// A text.
    pub(crate) fn into_text(self, field: &'static str) -> Result<String, PolicyError> {
        match self {
            Json::Text(text) => Ok(text),
            _ => Err(Flaw::Syntax(field).into()),
        }
    }

    /// The fields of an object.
    pub(crate) fn into_fields(
        self,
        field: &'static str,
    ) -> Result<Vec<(String, Json)>, PolicyError> {
        match self {
            Json::Object(fields) => Ok(fields),
            _ => Err(Flaw::Syntax(field).into()),
        }
    }

    /// A text, number or truth value, or a list of at least one, as texts.
    pub(crate) fn into_scalars(self, field: &'static str) -> Result<Vec<String>, PolicyError> {
        let list = match self {
            Json::List(list) => list,
            one => vec![one],
        };
        if list.is_empty() {
            return Err(Flaw::Empty(field).into());
        }
        let texts = list.into_iter().map(|json| match json {
            Json::Text(text) | Json::Scalar(text) => Ok(text),
            _ => Err(Flaw::Syntax(field).into()),
        });
        texts.collect()
    }
}

/// A value that may hold so many more levels.
#[derive(Clone, Copy)]
struct Level(u32);

impl Level {
    fn below<E: Error>(self) -> Result<Level, E> {
        let left = self.0.checked_sub(1);
        left.map(Level)
            .ok_or_else(|| E::custom(format_args!("more than {DEPTH_MAX} levels of values")))
    }
}

impl<'de> DeserializeSeed<'de> for Level {
    type Value = Json;

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<Json, D::Error> {
        source.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Level {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E: Error>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Scalar(value.to_string()))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Json, E> {
        Ok(Json::Scalar(value.to_string()))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Json, E> {
        Ok(Json::Scalar(value.to_string()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Json, E> {
        Ok(Json::Scalar(value.to_string()))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Json, E> {
        Ok(Json::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut source: A) -> Result<Json, A::Error> {
        let below = self.below()?;
        let mut list = Vec::new();
        while let Some(value) = source.next_element_seed(below)? {
            list.push(value);
        }
        Ok(Json::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut source: A) -> Result<Json, A::Error> {
        let below = self.below()?;
        let mut fields: Vec<(String, Json)> = Vec::new();
        while let Some(key) = source.next_key::<String>()? {
            fields.push((key, source.next_value_seed(below)?));
        }
        match repeated(&fields) {
            Some(key) => Err(A::Error::custom(format_args!("the field {key} is there twice"))),
            None => Ok(Json::Object(fields)),
        }
    }
}

/// A key that is there more than once.
fn repeated(fields: &[(String, Json)]) -> Option<&str> {
    let mut keys: Vec<&str> = fields.iter().map(|(key, _)| key.as_str()).collect();
    keys.sort_unstable();
    keys.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_as_in_the_text() {
        let text = r#"{"b":[1,-2,1.5,true,null,"x\u00e4\n"],"a":{}}"#;
        let scalar = |text: &str| Json::Scalar(text.to_owned());
        let list = [scalar("1"), scalar("-2"), scalar("1.5"), scalar("true"), Json::Null];
        let list = list.into_iter().chain([Json::Text("xä\n".to_owned())]).collect();
        let fields =
            vec![("b".to_owned(), Json::List(list)), ("a".to_owned(), Json::Object(Vec::new()))];
        assert_eq!(Json::parse(text), Ok(Json::Object(fields)));
    }

    #[test]
    fn flawed_texts_are_refused_with_the_cause() {
        let deep = format!("{}1{}", "[".repeat(9), "]".repeat(9));
        for (text, cause) in [
            ("{", "EOF while parsing"),
            ("{} x", "trailing characters"),
            ("{'a':1}", "key must be a string"),
            ("{\"a\":1,}", "trailing comma"),
            ("[01]", "invalid number"),
            ("[\"\u{1}\"]", "control character"),
            ("[NaN]", "expected value"),
            (r#"["\ud800"]"#, "hex escape"),
            (r#"{"a":1,"b":2,"a":1}"#, "the field a is there twice"),
            (r#"{"a":1,"\u0061":2}"#, "the field a is there twice"),
            (&deep, "more than 8 levels"),
        ] {
            let error = Json::parse(text).expect_err(text);
            assert_eq!(error.flaw, Flaw::Json, "{text}");
            let found = error.value.unwrap_or_default();
            assert!(found.contains(cause), "{text}: {found}");
        }
        let bounded = format!("{}1{}", "[".repeat(8), "]".repeat(8));
        assert!(Json::parse(&bounded).is_ok());
    }
}
