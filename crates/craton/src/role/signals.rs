//! SIGTERM and SIGINT, as a future.

#![allow(clippy::disallowed_methods)] // The edge to the operating system: a thread waits here.

use runtime::sync::watch;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::exit::Failure;

/// Completes when the process is asked to end.
#[derive(Clone, Debug)]
pub struct Stop(watch::Receiver<bool>);

impl Stop {
    /// From here on SIGTERM and SIGINT are requests, of which the third kills.
    pub fn install() -> Result<Stop, Failure> {
        let mut signals = Signals::new([SIGINT, SIGTERM])
            .map_err(|error| Failure::setup(format!("cannot wait for signals: {error}")))?;
        let (sender, receiver) = watch::channel(false);
        std::thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || {
                for (count, signal) in signals.forever().enumerate() {
                    tracing::info!(signal, "asked to end");
                    sender.send_replace(true);
                    if count == 2 {
                        std::process::exit(128 + signal);
                    }
                }
            })
            .map_err(|error| Failure::setup(format!("cannot start a thread: {error}")))?;
        Ok(Stop(receiver))
    }

    /// Completes when the process is asked to end.
    pub async fn asked(&self) {
        let mut receiver = self.0.clone();
        // The sender lives as long as the process.
        let _ = receiver.wait_for(|asked| *asked).await;
    }
}
