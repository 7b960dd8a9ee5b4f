//! Processes that end and start again: by a crash, by a power cut, or stopped as service managers do;
//! now and then they crash again while they recover.

use std::time::Duration;

use super::Work;

/// Time after a start at which a process crashes again in microseconds, least and most: a store of
/// a few MiB is opened in so much.
const AGAIN_US: (u64, u64) = (50, 1_500);

/// Role of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    Server,
    Master,
}

impl Work {
    pub(super) async fn restart_server(&self) {
        let index = self.draw(self.cluster.servers().len());
        self.restart(Role::Server, index, 4_000).await;
    }

    pub(super) async fn restart_master(&self) {
        let index = self.draw(self.cluster.masters().len());
        self.restart(Role::Master, index, 3_000).await;
    }

    async fn restart(&self, role: Role, index: usize, down_ms_max: u64) {
        if self.draw(3) == 0 {
            self.stop_role(role, index).await;
        } else {
            self.crash(role, index);
        }
        self.pause(10, down_ms_max).await;
        self.boot(role, index);
        if self.draw(4) != 0 {
            return;
        }
        let soon = self.sim.with_rng(|rng| rng.between(AGAIN_US.0, AGAIN_US.1));
        self.sim.sleep(Duration::from_micros(soon)).await;
        match role {
            Role::Server if self.cluster.server(index).is_none() => {
                self.sim.mark("nemesis: a chunkserver crashes while it recovers");
            }
            Role::Master if !self.cluster.master_serves(index) => {
                self.sim.mark("nemesis: a master crashes while it recovers");
            }
            _ => {}
        }
        self.crash(role, index);
        self.pause(10, down_ms_max).await;
        self.boot(role, index);
    }

    async fn stop_role(&self, role: Role, index: usize) {
        match role {
            Role::Server => {
                self.cluster.stop_server(index).await;
                self.sim.mark("nemesis: a chunkserver is stopped");
            }
            Role::Master => {
                self.cluster.stop_master(index).await;
                self.sim.mark("nemesis: a master is stopped");
            }
        }
    }

    fn crash(&self, role: Role, index: usize) {
        match role {
            Role::Server => self.cluster.crash_server(index, self.mode()),
            Role::Master => self.cluster.crash_master(index, self.mode()),
        }
    }

    fn boot(&self, role: Role, index: usize) {
        match role {
            Role::Server => self.cluster.boot_server(index),
            Role::Master => self.cluster.boot_master(index),
        }
    }
}
