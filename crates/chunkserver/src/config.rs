//! Configuration of a chunkserver, given at its start.

use std::net::SocketAddr;
use std::time::Duration;

use wire::token::TokenKey;

use crate::limits::DISK_TIMES_HALVING;
use crate::share::BackgroundShare;

/// Configuration of one chunkserver.
#[derive(Clone, Debug)]
pub struct Config {
    /// Its name, unique in the cluster: the same name is the same server.
    pub name: String,
    /// Its failure domain.
    pub domain: String,
    /// Address to listen at; port 0 picks a free one.
    pub listen: SocketAddr,
    /// Masters to start from; the rest is learned from them.
    pub masters: Vec<SocketAddr>,
    /// Time between heartbeats. A master counts a server dead after a few of them.
    pub heartbeat: Duration,
    /// Verifies the tokens of data calls (D11); `None` is that of a cluster without a key, which
    /// only servers on loopback may lack.
    pub token_key: Option<TokenKey>,
    /// Bytes a second that scrub reads at most, all disks together (C26); 0 turns it off.
    pub scrub_rate: u64,
    /// Executors that serve its disks, with one [`ShardDirectory`](crate::ShardDirectory); bounds
    /// and the scrub rate are shared out.
    pub shards: u32,
    /// Share of each disk that copies and scrub may take (C20).
    pub background: BackgroundShare,
    /// Pause between two passes of scrub over all disks.
    pub scrub_pause: Duration,
    /// A writer that has sent nothing for so long is reported as gone: several times the pause
    /// between two messages of an idle one, and longer than any pause of a process that is to
    /// survive.
    pub writer_quiet: Duration,
    /// Disks that could not be opened: path and reason, for heartbeats to report.
    pub left_out: Vec<(String, String)>,
    /// Time after which an operation counts half in the latencies of heartbeats.
    pub times_halving: Duration,
    /// Allow `FailDisk`. Tests only.
    pub fault_injection: bool,
}

impl Config {
    /// Defaults for a server of this name.
    pub fn new(name: &str, listen: SocketAddr, masters: Vec<SocketAddr>) -> Config {
        Config {
            name: name.to_owned(),
            domain: name.to_owned(),
            listen,
            masters,
            heartbeat: Duration::from_millis(250),
            token_key: None,
            scrub_rate: 8 << 20,
            shards: 1,
            background: BackgroundShare::default(),
            scrub_pause: Duration::from_secs(60),
            writer_quiet: Duration::from_secs(30),
            left_out: Vec::new(),
            times_halving: DISK_TIMES_HALVING,
            fault_injection: false,
        }
    }
}
