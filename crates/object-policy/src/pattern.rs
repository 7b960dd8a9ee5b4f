//! [`Template`]: a text with wildcards and variables, and how it matches.

use crate::keys::canonical;
use crate::request::Request;

/// One step of a pattern.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Token {
    /// This byte.
    Byte(u8),
    /// `?`: one character.
    One,
    /// `*`: any characters.
    Many,
    /// The value of the variable with this index.
    Variable(u16),
}

/// A text that is matched: one, or two with a slash between them. Made so that a bucket and a key
/// need not be joined.
#[derive(Clone, Copy)]
pub(crate) struct Subject<'a> {
    head: &'a [u8],
    tail: Option<&'a [u8]>,
}

impl<'a> Subject<'a> {
    pub(crate) fn of(text: &'a str) -> Subject<'a> {
        Subject { head: text.as_bytes(), tail: None }
    }

    pub(crate) fn joined(head: &'a str, tail: Option<&'a str>) -> Subject<'a> {
        Subject { head: head.as_bytes(), tail: tail.map(str::as_bytes) }
    }

    fn get(&self, at: usize) -> Option<u8> {
        if let Some(byte) = self.head.get(at) {
            return Some(*byte);
        }
        let tail = self.tail?;
        match at - self.head.len() {
            0 => Some(b'/'),
            at => tail.get(at - 1).copied(),
        }
    }
}

/// Bytes of the character that begins with this byte.
fn width(first: u8) -> usize {
    match first {
        0..0xc0 => 1,
        0xc0..0xe0 => 2,
        0xe0..0xf0 => 3,
        0xf0.. => 4,
    }
}

/// Whether the whole subject matches. Goes back to the last `*` only: time is at most the product of
/// both lengths, and there is no recursion. Variables match nothing here.
pub(crate) fn matches(tokens: &[Token], subject: Subject<'_>, ignore_case: bool) -> bool {
    let (mut at, mut next) = (0, 0);
    // The token behind the last `*`, and where it was tried last.
    let mut retry = None;
    while let Some(byte) = subject.get(at) {
        match tokens.get(next) {
            Some(Token::Many) => {
                next += 1;
                if next == tokens.len() {
                    return true;
                }
                retry = Some((next, at));
            }
            Some(Token::One) => (at, next) = (at + width(byte), next + 1),
            Some(Token::Byte(wanted))
                if *wanted == byte || ignore_case && wanted.eq_ignore_ascii_case(&byte) =>
            {
                (at, next) = (at + 1, next + 1);
            }
            _ => {
                let Some((token, tried)) = retry else { return false };
                let tried = tried + subject.get(tried).map_or(1, width);
                retry = Some((token, tried));
                (at, next) = (tried, token);
            }
        }
    }
    tokens[next..].iter().all(|token| *token == Token::Many)
}

/// What stands for more than itself in a text.
#[derive(Clone, Copy)]
pub(crate) struct Syntax {
    pub(crate) wildcards: bool,
    pub(crate) variables: bool,
}

/// A text of a policy, as it is matched.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Template {
    tokens: Vec<Token>,
    variables: Vec<Variable>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Variable {
    key: String,
    default: Option<String>,
}

/// What `${...}` stands for.
enum Inserted<'a> {
    Literal(u8),
    Variable(&'a str, Option<&'a str>),
}

impl Template {
    /// From its text; `None` when a variable is malformed.
    pub(crate) fn parse(text: &str, syntax: Syntax) -> Option<Template> {
        let mut template = Template { tokens: Vec::with_capacity(text.len()), variables: vec![] };
        let mut rest = text;
        while let Some(&byte) = rest.as_bytes().first() {
            if syntax.variables && rest.starts_with("${") {
                let (inserted, len) = inserted(rest)?;
                template.insert(inserted);
                rest = &rest[len..];
                continue;
            }
            match byte {
                b'*' if syntax.wildcards => template.push_many(),
                b'?' if syntax.wildcards => template.tokens.push(Token::One),
                _ => {
                    let len = rest.chars().next().map_or(1, char::len_utf8);
                    template.tokens.extend(rest.bytes().take(len).map(Token::Byte));
                    rest = &rest[len..];
                    continue;
                }
            }
            rest = &rest[1..];
        }
        Some(template)
    }

    fn push_many(&mut self) {
        if self.tokens.last() != Some(&Token::Many) {
            self.tokens.push(Token::Many);
        }
    }

    fn insert(&mut self, inserted: Inserted<'_>) {
        match inserted {
            Inserted::Literal(byte) => self.tokens.push(Token::Byte(byte)),
            Inserted::Variable(key, default) => {
                let index = u16::try_from(self.variables.len()).expect("a text is bounded");
                self.tokens.push(Token::Variable(index));
                let default = default.map(str::to_owned);
                self.variables.push(Variable { key: canonical(key), default });
            }
        }
    }

    /// Whether the whole subject matches; `None` when a variable has no value in the request.
    /// Wildcards within a variable's value are literal.
    pub(crate) fn matches(
        &self,
        subject: Subject<'_>,
        ignore_case: bool,
        request: &Request<'_>,
    ) -> Option<bool> {
        if self.variables.is_empty() {
            return Some(matches(&self.tokens, subject, ignore_case));
        }
        let mut tokens = Vec::with_capacity(self.tokens.len());
        for token in &self.tokens {
            let Token::Variable(index) = token else {
                tokens.push(*token);
                continue;
            };
            let variable = &self.variables[usize::from(*index)];
            match (request.variable(&variable.key), &variable.default) {
                (Some(value), _) => tokens.extend(value.bytes().map(Token::Byte)),
                (None, Some(default)) => tokens.extend(default.bytes().map(Token::Byte)),
                (None, None) => return None,
            }
        }
        Some(matches(&tokens, subject, ignore_case))
    }

    /// Whether the whole text matches, when no variable is there.
    pub(crate) fn matches_text(&self, text: &str, ignore_case: bool) -> bool {
        matches(&self.tokens, Subject::of(text), ignore_case)
    }

    /// Whether a variable in it is a key that begins so.
    pub(crate) fn asks_for(&self, start: &str) -> bool {
        self.variables.iter().any(|variable| variable.key.starts_with(start))
    }

    /// The steps, with `*` for each variable.
    pub(crate) fn widest(&self) -> Vec<Token> {
        let widest = |token: &Token| match token {
            Token::Variable(_) => Token::Many,
            other => *other,
        };
        self.tokens.iter().map(widest).collect()
    }

    /// There is no wildcard and no variable in it: it matches one text.
    pub(crate) fn is_fixed(&self) -> bool {
        self.tokens.iter().all(|token| matches!(token, Token::Byte(_)))
    }
}

/// What the `${...}` that a text begins with stands for, and its length.
fn inserted(text: &str) -> Option<(Inserted<'_>, usize)> {
    let inner = text.strip_prefix("${")?;
    if let [byte @ (b'*' | b'?' | b'$'), b'}', ..] = inner.as_bytes() {
        return Some((Inserted::Literal(*byte), 4));
    }
    let end = inner.find([',', '}'])?;
    let key = inner[..end].trim_matches(' ');
    let is_key = |c: char| c.is_ascii_graphic() && !"${}'\"*?".contains(c);
    if !key.contains(':') || !key.chars().all(is_key) {
        return None;
    }
    let mut rest = &inner[end..];
    let mut default = None;
    if let Some(given) = rest.strip_prefix(',') {
        let (value, after) = given.trim_start_matches(' ').strip_prefix('\'')?.split_once('\'')?;
        default = Some(value);
        rest = after.trim_start_matches(' ');
    }
    let rest = rest.strip_prefix('}')?;
    Some((Inserted::Variable(key, default), text.len() - rest.len()))
}

/// Parts of a text between colons, six at most: the last one keeps further colons. Colons within
/// `${...}` are not counted when there are variables.
pub(crate) fn arn_parts(text: &str, variables: bool) -> Option<Vec<&str>> {
    let mut parts = Vec::with_capacity(6);
    let (mut begin, mut at) = (0, 0);
    while at < text.len() && parts.len() < 5 {
        if variables && text[at..].starts_with("${") {
            at += inserted(&text[at..])?.1;
            continue;
        }
        let c = text[at..].chars().next()?;
        if c == ':' {
            parts.push(&text[begin..at]);
            begin = at + 1;
        }
        at += c.len_utf8();
    }
    parts.push(&text[begin..]);
    Some(parts)
}

#[cfg(test)]
mod tests;
