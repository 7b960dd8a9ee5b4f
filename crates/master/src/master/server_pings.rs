//! Pings of chunkservers: see [`crate::cluster`], `Liveness`.

use std::net::SocketAddr;

use base::ServerId;
use runtime::{Class, Duration};
use transport::{Priority, Request, Service, Token};
use wire::control::{ChunkserverRequest, ControlRequest};

use super::Master;
use crate::limits::{SERVER_PING, SERVER_UNREACHED};

/// Pause between two looks for chunkservers while there are none to ping: a process without clients
/// sleeps.
const NONE_YET: Duration = Duration::from_secs(1);

impl Master {
    /// Pings the chunkservers from now on.
    pub(super) fn start_server_pings(&self) {
        let this = self.clone();
        self.0.env.spawn(Class::Control, "pings of chunkservers", async move {
            loop {
                let (now, cluster) = (this.0.env.now(), &this.0.cluster);
                let due = cluster.host().read(|state| cluster.liveness().ping_round(state, now));
                let pause = if due.is_empty() { NONE_YET } else { SERVER_PING };
                for (server, addr) in due {
                    let this = this.clone();
                    this.0.env.clone().spawn(Class::Control, "ping of a chunkserver", async move {
                        this.ping_server(server, addr).await;
                    });
                }
                this.0.env.sleep_until(now + pause).await;
            }
        });
    }

    async fn ping_server(&self, server: ServerId, addr: SocketAddr) {
        let env = &self.0.env;
        let sent = env.now();
        let request = Request {
            service: Service::CONTROL,
            op: 0,
            priority: Priority::Control,
            flow: 0,
            trace: env.trace(),
            token: Token::NONE,
            body: ControlRequest::Chunkserver(ChunkserverRequest::Ping).encode(),
            payload: None,
        };
        let answer = self.0.streams.endpoint.call(addr, request, SERVER_UNREACHED).await;
        // A busy one is reached, and so is one of an older version, which refuses what it does not know.
        if answer.is_ok() {
            self.0.cluster.liveness().answered(server, sent);
        }
    }
}
