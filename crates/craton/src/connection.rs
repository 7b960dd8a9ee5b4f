//! Which cluster a command talks to.

use std::path::{Path, PathBuf};

use clap::Args;

/// Which cluster a command talks to.
#[derive(Args, Clone, Debug)]
pub struct Connection {
    /// Directory of a local cluster, or masters' addresses separated by commas
    #[arg(long, env = "CRATON_CLUSTER", global = true, value_name = "DIR|ADDRESS[,...]")]
    pub cluster: Option<String>,
    /// File with the cluster's key, when it has one and no directory is given
    #[arg(long, env = "CRATON_KEY_FILE", global = true, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// Print the trace of this command, and its stages in this process, to standard error;
    /// 'craton trace' shows them in all processes
    #[arg(long, env = "CRATON_TRACE", global = true)]
    pub trace: bool,
}

impl Connection {
    /// The local cluster of a directory.
    pub fn of_dir(dir: &Path) -> Connection {
        Connection { cluster: Some(dir.display().to_string()), key_file: None, trace: false }
    }
}
