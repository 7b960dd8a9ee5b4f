//! Names and values of a URL's query, decoded as s3s decodes them.

/// Names and values in their order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Reads a query, which any text is. Bytes that are no UTF-8 are replaced.
    pub fn parse(text: &str) -> Query {
        let pairs = text.split('&').filter(|pair| !pair.is_empty());
        let pairs = pairs.map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(name, b' '), decode(value, b' '))
        });
        Query(pairs.collect())
    }

    /// All names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// True when there is such a name.
    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(other, _)| other == name)
    }

    /// The value of a name that is there once.
    pub fn unique(&self, name: &str) -> Option<&str> {
        let mut values = self.0.iter().filter(|(other, _)| other == name);
        let (_, value) = values.next()?;
        values.next().is_none().then_some(value)
    }
}

/// A part of a URL's path, decoded.
pub fn decode_path(text: &str) -> String {
    decode(text, b'+')
}

/// Text without its escapes, and with `plus` for each `+`.
fn decode(text: &str, plus: u8) -> String {
    let text = text.as_bytes();
    let mut bytes = Vec::with_capacity(text.len());
    let mut at = 0;
    while at < text.len() {
        let (byte, len) = match text[at] {
            b'+' => (plus, 1),
            b'%' => match escaped(text.get(at + 1..at + 3)) {
                Some(byte) => (byte, 3),
                None => (b'%', 1),
            },
            byte => (byte, 1),
        };
        bytes.push(byte);
        at += len;
    }
    String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

fn escaped(digits: Option<&[u8]>) -> Option<u8> {
    let &[high, low] = digits? else { return None };
    let value = |digit: u8| (digit as char).to_digit(16);
    u8::try_from(value(high)? << 4 | value(low)?).ok()
}

/// Text for a listing with `encoding-type=url`: all but letters, digits and `-._~/` is escaped, a
/// space as `%20`, which clients read whether or not they take `+` for one.
pub fn encode(text: &str) -> String {
    use std::fmt::Write;
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            encoded.push(byte as char);
        } else {
            let _ = write!(encoded, "%{byte:02X}"); // Writing to a string cannot fail.
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_and_values_are_decoded() {
        let query = Query::parse("a=1&b&c=%41+%zz%&a=2&d=%C3%A9&=x&%2");
        let pairs: Vec<_> = query.iter().collect();
        let wanted =
            [("a", "1"), ("b", ""), ("c", "A %zz%"), ("a", "2"), ("d", "é"), ("", "x"), ("%2", "")];
        assert_eq!(pairs, wanted);
        assert_eq!(query.unique("b"), Some(""));
        assert_eq!(query.unique("a"), None);
        assert!(query.has("a") && !query.has("z"));
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(text in any::<String>()) {
            prop_assert_eq!(decode(&encode(&text), b' '), text);
        }

        #[test]
        fn any_query_is_read(text in any::<String>()) {
            Query::parse(&text);
        }
    }
}
