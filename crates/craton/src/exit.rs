//! How a command ends: exit codes.

pub use roles::failure::{Code, Done, Failure, io};

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
