//! How a command ends: exit codes, as `craton` has them.

use std::fmt;
use std::process::ExitCode;

/// Kind of a failure: the exit code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Code {
    /// The operation failed.
    Failed = 1,
    /// The command line is wrong.
    Usage = 2,
    /// The cluster does not answer.
    Unavailable = 3,
    /// Configuration, directory, port or store cannot be used.
    Setup = 4,
    /// Damage was found.
    Damage = 5,
}

/// Why a command was not done: a cause and a way out, in one sentence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The exit code.
    pub code: Code,
    /// The sentence.
    pub message: String,
}

/// What commands answer.
pub type Done = Result<(), Failure>;

impl Failure {
    /// With code and sentence.
    pub fn new(code: Code, message: impl Into<String>) -> Failure {
        Failure { code, message: message.into() }
    }

    /// [`Code::Failed`].
    pub fn failed(message: impl Into<String>) -> Failure {
        Failure::new(Code::Failed, message)
    }

    /// [`Code::Usage`].
    pub fn usage(message: impl Into<String>) -> Failure {
        Failure::new(Code::Usage, message)
    }

    /// [`Code::Setup`].
    pub fn setup(message: impl Into<String>) -> Failure {
        Failure::new(Code::Setup, message)
    }

    /// The process's exit code.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.code as u8)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

impl From<client::Error> for Failure {
    fn from(error: client::Error) -> Failure {
        let code = match error {
            client::Error::Unavailable { .. } | client::Error::OpenEnd { .. } => Code::Unavailable,
            client::Error::Corrupt { .. } => Code::Damage,
            _ => Code::Failed,
        };
        Failure::new(code, error.to_string())
    }
}

/// A failed file operation, with the file's name.
pub fn io(what: &str, path: &std::path::Path, error: &std::io::Error) -> Failure {
    Failure::setup(format!("cannot {what} {}: {error}", path.display()))
}
