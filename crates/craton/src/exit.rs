//! How a command ends: exit codes, and the one sentence that says why.

use std::fmt;
use std::process::ExitCode;

/// Shown below the help text of `craton`.
pub const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  the operation failed: not found, exists, refused, unknown outcome
  2  the command line is wrong; nothing was done
  3  the cluster does not answer in time
  4  configuration, directory, port or store cannot be used; nothing was changed
  5  damage was found: a store that does not verify, bytes without an intact replica
  6  done in part: some files cannot be read or named here and were skipped, each with a
     warning (sockets, pipes and devices are never copied: with them alone it is 0)";

/// See [`EXIT_CODES`].
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
    /// Some files were skipped.
    Partial = 6,
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
            client::Error::Unavailable { .. } => Code::Unavailable,
            client::Error::Corrupt { .. } => Code::Damage,
            _ => Code::Failed,
        };
        Failure::new(code, error.to_string())
    }
}

impl From<transport::TransportError> for Failure {
    fn from(error: transport::TransportError) -> Failure {
        Failure::setup(error.to_string())
    }
}

/// A failed file operation, with the file's name.
pub fn io(what: &str, path: &std::path::Path, error: &std::io::Error) -> Failure {
    Failure::setup(format!("cannot {what} {}: {error}", path.display()))
}
