//! End of a command: exit codes.

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
     warning (sockets, pipes and devices are never copied: with them alone it is 0); or
     some servers did not answer, each with a warning";

/// Kind of a failure; `craton --help` lists the exit codes.
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
    /// Some files were skipped, or some servers did not answer.
    Partial = 6,
}

/// Failure of a command: cause and remedy, in one sentence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The exit code.
    pub code: Code,
    /// The sentence.
    pub message: String,
}

/// Result of commands.
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

impl From<block_proto::managers::Error> for Failure {
    fn from(error: block_proto::managers::Error) -> Failure {
        use block_proto::managers::Error;
        let code = match &error {
            Error::Unavailable { .. } => Code::Unavailable,
            Error::Refused { kind: base::Kind::Corrupt, .. } => Code::Damage,
            Error::Refused { .. } => Code::Failed,
        };
        Failure::new(code, error.to_string())
    }
}

impl From<roles::Error> for Failure {
    fn from(error: roles::Error) -> Failure {
        let code = match error {
            roles::Error::Core(error) => return error.into(),
            roles::Error::Setup(_) => Code::Setup,
            roles::Error::Damaged(_) => Code::Damage,
            roles::Error::Executor => Code::Failed,
        };
        Failure::new(code, error.to_string())
    }
}

impl From<bench::Error> for Failure {
    fn from(error: bench::Error) -> Failure {
        match error {
            bench::Error::Payload(_) => Failure::usage(format!("--size {error}")),
            bench::Error::Setup(text) => Failure::setup(text),
            bench::Error::Failed(text) => Failure::failed(text),
        }
    }
}

/// A failed file operation, with the file's name.
pub fn io(what: &str, path: &std::path::Path, error: &std::io::Error) -> Failure {
    Failure::setup(format!("cannot {what} {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_of_a_crate_has_its_exit_code_and_message() {
        let corrupt = client::Error::Corrupt { path: "a".to_owned(), offset: 0 };
        let cases: [(Failure, Code, String); 7] = [
            (roles::Error::Setup("a".to_owned()).into(), Code::Setup, "a".to_owned()),
            (roles::Error::Damaged("a".to_owned()).into(), Code::Damage, "a".to_owned()),
            (roles::Error::Executor.into(), Code::Failed, "an executor ended".to_owned()),
            (roles::Error::Core(corrupt.clone()).into(), Code::Damage, corrupt.to_string()),
            (bench::Error::Setup("a".to_owned()).into(), Code::Setup, "a".to_owned()),
            (bench::Error::failed("a").into(), Code::Failed, "a".to_owned()),
            (
                bench::Error::Payload(5).into(),
                Code::Usage,
                "--size 5 is no payload: a multiple of 4096, up to 4194304".to_owned(),
            ),
        ];
        for (failure, code, message) in cases {
            assert_eq!(failure, Failure::new(code, message));
        }
    }
}
