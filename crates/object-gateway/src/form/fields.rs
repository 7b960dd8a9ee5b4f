//! [`Fields`]: what a form says before its file (`multipart/form-data`). Pure.

use bytes::Bytes;

use crate::limits::FORM_FIELDS_MAX;
use crate::query::decode_path;
use crate::reply::Refusal;

/// Characters of a boundary at most, as its standard has them.
const BOUNDARY_MAX: usize = 70;
/// Beginning of fields that mean nothing.
pub const IGNORED: &str = "x-ignore-";

/// A form's fields, and the file that follows them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Fields {
    all: Vec<(String, String)>,
    /// Name of the file, without folders; empty where there is none.
    pub file_name: String,
}

impl Fields {
    /// Names in small letters and values, in their order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.all.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// The value of a field.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.iter().find(|(other, _)| *other == name).map(|(_, value)| value)
    }

    /// Replaces the variable in the key by the name of the file.
    fn expand_key(&mut self) {
        let name = &self.file_name;
        for (_, value) in self.all.iter_mut().filter(|(name, _)| name == "key") {
            *value = value.replace("${filename}", name);
        }
    }

    /// Adds a field. Of two with one name the policy could cover the one and S3 take the other.
    fn add(&mut self, name: String, value: String) -> Result<(), Refusal> {
        if !name.starts_with(IGNORED) && self.get(&name).is_some() {
            let message = format!("The form has more than one field named '{name}'.");
            return Err(Refusal::new("InvalidArgument", message));
        }
        self.all.push((name, value));
        Ok(())
    }
}

/// S3's refusal of what is no form.
pub fn malformed() -> Refusal {
    Refusal::new(
        "MalformedPOSTRequest",
        "The body of your POST request is not well-formed multipart/form-data.",
    )
}

/// The boundary that a content type names.
///
/// # Errors
///
/// A [`Refusal`] when there is none.
pub fn boundary_of(content_type: &str) -> Result<String, Refusal> {
    let mut found = None;
    for parameter in content_type.split(';').skip(1) {
        let Some((name, value)) = parameter.split_once('=') else { continue };
        if name.trim().eq_ignore_ascii_case("boundary") {
            found = Some(value.trim().trim_matches('"'));
        }
    }
    let is_good = |text: &&str| {
        let is_plain = text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
        is_plain && !text.is_empty() && text.len() <= BOUNDARY_MAX
    };
    found.filter(is_good).map(str::to_owned).ok_or_else(malformed)
}

/// Where an inner text begins in a text.
pub fn find(text: &[u8], inner: &[u8]) -> Option<usize> {
    let mut from = 0;
    loop {
        let at = from + text[from..].iter().position(|byte| *byte == inner[0])?;
        if text[at..].starts_with(inner) {
            return Some(at);
        }
        from = at + 1;
    }
}

/// What comes next.
#[derive(Debug)]
enum Next {
    Start,
    /// The rest of a line with a boundary.
    Line,
    Head,
    Value(String),
}

/// Reads a form up to the first byte of its file.
#[derive(Debug)]
pub struct Reader {
    /// Line break, two hyphens and the boundary.
    delimiter: Vec<u8>,
    buffer: Vec<u8>,
    /// What is before it was read.
    at: usize,
    /// Nothing that is looked for begins before it.
    searched: usize,
    next: Next,
    fields: Fields,
}

impl Reader {
    /// Of a form with that boundary.
    pub fn new(boundary: &str) -> Reader {
        Reader {
            delimiter: format!("\r\n--{boundary}").into_bytes(),
            buffer: Vec::new(),
            at: 0,
            searched: 0,
            next: Next::Start,
            fields: Fields::default(),
        }
    }

    /// Takes the next bytes. Fields, and the file's first bytes, once the file begins.
    ///
    /// # Errors
    ///
    /// A [`Refusal`] when this is no form, has no file, or too much before it.
    pub fn feed(&mut self, data: &[u8]) -> Result<Option<(Fields, Bytes)>, Refusal> {
        self.buffer.extend_from_slice(data);
        let is_file = self.read()?;
        if self.at.max(if is_file { 0 } else { self.buffer.len() }) > FORM_FIELDS_MAX {
            let message = "Your POST request fields preceding the upload file were too large.";
            return Err(Refusal::new("MaxPostPreDataLengthExceeded", message));
        }
        Ok(is_file.then(|| {
            let mut fields = std::mem::take(&mut self.fields);
            fields.expand_key();
            (fields, Bytes::from(self.buffer.split_off(self.at)))
        }))
    }

    /// Reads what is whole. True when the file begins.
    fn read(&mut self) -> Result<bool, Refusal> {
        loop {
            let left = &self.buffer[self.at..];
            match std::mem::replace(&mut self.next, Next::Head) {
                Next::Start => {
                    // The first boundary may have an empty line before it.
                    let start = if left.starts_with(b"\r") { 0 } else { 2 };
                    let first = &self.delimiter[start..];
                    if left.len() < first.len() {
                        self.next = Next::Start;
                        return if first.starts_with(left) { Ok(false) } else { Err(malformed()) };
                    }
                    if !left.starts_with(first) {
                        return Err(malformed());
                    }
                    self.step(first.len(), Next::Line);
                }
                Next::Line => {
                    let Some(end) = line_end(left)? else {
                        self.next = Next::Line;
                        return Ok(false);
                    };
                    if end == Ending::Form {
                        return Err(no_file());
                    }
                    let Ending::Line(len) = end else { return Err(malformed()) };
                    self.step(len, Next::Head);
                }
                Next::Head => {
                    let Some(len) = self.find(b"\r\n\r\n") else {
                        self.next = Next::Head;
                        return Ok(false);
                    };
                    let head = &self.buffer[self.at..self.at + len];
                    let part = part_of(head).ok_or_else(malformed)?;
                    let is_file = part.name == "file";
                    if is_file {
                        self.fields.file_name = part.file_name;
                    }
                    self.step(len + 4, Next::Value(part.name));
                    if is_file {
                        return Ok(true);
                    }
                }
                Next::Value(name) => {
                    let delimiter = std::mem::take(&mut self.delimiter);
                    let found = self.find(&delimiter);
                    self.delimiter = delimiter;
                    let Some(len) = found else {
                        self.next = Next::Value(name);
                        return Ok(false);
                    };
                    let value = std::str::from_utf8(&self.buffer[self.at..self.at + len]);
                    let value = value.map_err(|_| malformed())?.to_owned();
                    self.fields.add(name, value)?;
                    self.step(len + self.delimiter.len(), Next::Line);
                }
            }
        }
    }

    fn step(&mut self, len: usize, next: Next) {
        self.at += len;
        self.searched = self.at;
        self.next = next;
    }

    /// Bytes before a text; what was searched is not searched again.
    fn find(&mut self, inner: &[u8]) -> Option<usize> {
        let found = find(&self.buffer[self.searched..], inner);
        let before = (self.buffer.len() + 1).saturating_sub(inner.len());
        let start = self.searched - self.at;
        self.searched = self.searched.max(before);
        found.map(|len| start + len)
    }
}

/// What ends a boundary's line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// Another part follows, after so many bytes.
    Line(usize),
    /// The form ends.
    Form,
}

/// Reads what is behind a boundary; `None` when more of it must come.
///
/// # Errors
///
/// A [`Refusal`] when it is neither of both.
pub fn line_end(text: &[u8]) -> Result<Option<Ending>, Refusal> {
    let spaces = text.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
    match &text[spaces..] {
        [] => Ok(None),
        [b'-'] if spaces == 0 => Ok(None),
        [b'-', b'-', ..] if spaces == 0 => Ok(Some(Ending::Form)),
        [b'\r'] => Ok(None),
        [b'\r', b'\n', ..] => Ok(Some(Ending::Line(spaces + 2))),
        _ => Err(malformed()),
    }
}

fn no_file() -> Refusal {
    Refusal::new("InvalidArgument", "POST requires exactly one file upload per request.")
}

/// What the head of a part says.
struct Part {
    /// In small letters.
    name: String,
    file_name: String,
}

fn part_of(head: &[u8]) -> Option<Part> {
    let head = std::str::from_utf8(head).ok()?;
    let mut lines = head.split("\r\n").filter_map(|line| line.split_once(':'));
    let (_, value) = lines.find(|(name, _)| name.eq_ignore_ascii_case("content-disposition"))?;
    let (kind, mut rest) = value.split_once(';')?;
    if !kind.trim().eq_ignore_ascii_case("form-data") {
        return None;
    }
    let (mut name, mut file_name, mut encoded) = (None, None, None);
    while !rest.trim().is_empty() {
        let (parameter, value) = rest.split_once('=')?;
        let (value, left) = parameter_value(value)?;
        match parameter.trim().to_ascii_lowercase().as_str() {
            "name" => name = Some(value),
            "filename" => file_name = Some(value),
            "filename*" => encoded = value.split_once("''").map(|(_, text)| decode_path(text)),
            _ => {}
        }
        rest = left;
    }
    let file_name = file_name.or(encoded).unwrap_or_default();
    // Some browsers send the path that the file has on their machine.
    let file_name = file_name.rsplit(['/', '\\']).next().unwrap_or_default().to_owned();
    Some(Part { name: name?.to_ascii_lowercase(), file_name })
}

/// A parameter's value, and what is behind it.
fn parameter_value(text: &str) -> Option<(String, &str)> {
    let Some(quoted) = text.trim_start().strip_prefix('"') else {
        let (value, rest) = text.split_once(';').unwrap_or((text, ""));
        return Some((value.trim().to_owned(), rest));
    };
    let mut value = String::new();
    let mut rest = quoted;
    loop {
        let end = rest.find('"')?;
        let (part, left) = (&rest[..end], &rest[end + 1..]);
        rest = left;
        // Only a quote is escaped: a backslash is one of a path.
        match part.strip_suffix('\\') {
            Some(part) if !is_last(left) => {
                value.push_str(part);
                value.push('"');
            }
            _ => {
                value.push_str(part);
                let rest = rest.trim_start();
                return match rest.strip_prefix(';') {
                    Some(rest) => Some((value, rest)),
                    None => rest.is_empty().then_some((value, "")),
                };
            }
        }
    }
}

/// No quote follows: the one before ended the value.
fn is_last(text: &str) -> bool {
    !text.contains('"')
}

#[cfg(test)]
mod tests;
