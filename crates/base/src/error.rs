//! Error kinds: the next step that an error asks of its receiver.

use std::fmt;

/// The next step that an error asks of its receiver. Every boundary's error enum maps to one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Nothing happened; the same request may be sent again after a pause.
    Retry,
    /// The caller's cached view is stale: refresh it, then try again.
    Refresh,
    /// Another peer has what is asked for.
    Reroute,
    /// A newer epoch exists: this owner is finished.
    Fenced,
    /// Stored bytes do not verify: use another replica, and report.
    Corrupt,
    /// The outcome is not known: the request may or may not have taken effect.
    Unknown,
    /// The thing named does not exist.
    NotFound,
    /// The thing named exists already.
    Exists,
    /// A bound is reached that waiting alone does not lift (a full disk, a quota).
    Full,
    /// The request itself is invalid: sending it again gives the same answer.
    Invalid,
}

/// A fact with its kind, for boundaries that carry errors between processes.
/// `message` is for operators: it has cause and remedy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The next step of the receiver.
    pub kind: Kind,
    /// Cause and remedy, one sentence.
    pub message: String,
}

impl Fault {
    /// A fault of `kind`.
    pub fn new(kind: Kind, message: impl Into<String>) -> Fault {
        Fault { kind, message: message.into() }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Fault {}
