//! Pings of chunkservers, and of other processes that clients do not reach: see [`crate::cluster`],
//! `Liveness`.

use std::net::{IpAddr, SocketAddr};

use base::ServerId;
use runtime::{Class, Duration};
use transport::{LINK_DEAD, Priority, Request, Service, Token};
use wire::control::{
    ChunkserverRequest, ControlError, ControlRequest, ReplicaFault, StreamRequest,
};

use super::Master;
use crate::limits::{REPORT_PING, SERVER_PING, SERVER_UNREACHED};
use crate::planted::{Planted, planted};

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
        let sent = self.0.env.now();
        if self.answers_ping(addr, SERVER_UNREACHED).await {
            self.0.cluster.liveness().answered(server, sent);
        }
    }

    /// A client reports that it has not reached a replica: its server is pinged at once, and by what
    /// other clients and that ping say it counts as unreached (`protocols-tail.md` 10.8).
    pub(super) fn note_unreached(&self, request: &StreamRequest, from: Option<IpAddr>) {
        let fault = ReplicaFault::Unreachable;
        let &StreamRequest::ReportBad { file, chunk, server, fault: reported } = request else {
            return;
        };
        let partition = self.0.streams.partition_of(file);
        if reported != fault
            || planted(Planted::ServersUnpinged)
            || !partition.service.has_replica(file, chunk, server)
        {
            return;
        }
        let (env, cluster) = (&self.0.env, &self.0.cluster);
        let addr = cluster.host().read(|state| state.server(server).map(|server| server.addr));
        let Some(addr) = addr else { return };
        let reported = cluster.liveness().report_unreached(server, from, env.now());
        if reported.unreached {
            env.mark("master: clients of two hosts do not reach a server");
        }
        if reported.ping {
            env.mark("master: a report starts a ping");
            let this = self.clone();
            env.spawn(Class::Control, "ping of a reported chunkserver", async move {
                let (env, liveness) = (&this.0.env, this.0.cluster.liveness());
                let sent = env.now();
                let answered = this.answers_ping(addr, REPORT_PING).await;
                if answered {
                    liveness.answered(server, sent);
                }
                if liveness.report_pinged(server, answered, sent, env.now()) {
                    env.mark("master: a reported server answers no ping");
                }
            });
        }
    }

    /// A client does not reach the holder of a lock: it is pinged, and by what other clients and that ping
    /// say the lock is renewed no more (`protocols-tail.md` 10.11).
    pub(super) fn note_doubt(
        &self,
        name: String,
        fencing: u64,
        from: Option<IpAddr>,
    ) -> Result<(), ControlError> {
        let Some(addr) = self.0.cluster.note_doubt((&name, fencing), from)? else { return Ok(()) };
        let this = self.clone();
        self.0.env.spawn(Class::Control, "ping of a lock's holder", async move {
            // The link to it may be dead since an earlier fault, and is given up first.
            let answered = this.answers_ping(addr, LINK_DEAD).await
                || this.answers_ping(addr, REPORT_PING).await;
            this.0.cluster.doubt_pinged((&name, fencing), answered);
        });
        Ok(())
    }

    /// Whether a process answers a ping in time. A busy one is reached, and so is one of an older
    /// version, which refuses what it does not know.
    async fn answers_ping(&self, addr: SocketAddr, timeout: Duration) -> bool {
        let request = Request {
            service: Service::CONTROL,
            op: 0,
            priority: Priority::Control,
            flow: 0,
            trace: self.0.env.trace(),
            token: Token::NONE,
            body: ControlRequest::Chunkserver(ChunkserverRequest::Ping).encode(),
            payload: None,
        };
        self.0.streams.endpoint.call(addr, request, timeout).await.is_ok()
    }
}
