//! How a command ends. Exit codes are those of `craton`.

use std::fmt;
use std::path::Path;
use std::process::ExitCode;

/// Why a command was not done: a cause and a way out, in one sentence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    code: u8,
    message: String,
}

/// Result of a command.
pub type Done = Result<(), Failure>;

impl Failure {
    /// The operation failed: code 1.
    pub fn failed(message: impl Into<String>) -> Failure {
        Failure { code: 1, message: message.into() }
    }

    /// The command line is wrong: code 2.
    pub fn usage(message: impl Into<String>) -> Failure {
        Failure { code: 2, message: message.into() }
    }

    /// A directory, file or program cannot be used: code 4.
    pub fn setup(message: impl Into<String>) -> Failure {
        Failure { code: 4, message: message.into() }
    }

    /// The process's exit code.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.code)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// The cluster does not answer, code 3, or has lost bytes, code 5.
impl From<client::Error> for Failure {
    fn from(error: client::Error) -> Failure {
        let code = match error {
            client::Error::Unavailable { .. } | client::Error::OpenEnd { .. } => 3,
            client::Error::Corrupt { .. } => 5,
            _ => 1,
        };
        Failure { code, message: error.to_string() }
    }
}

/// A failed file operation, with the file's name.
pub fn io(what: &str, path: &Path, error: &std::io::Error) -> Failure {
    Failure::setup(format!("cannot {what} {}: {error}", path.display()))
}
