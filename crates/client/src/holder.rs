//! Requests to the process that holds a lock of the core, and what follows when it does not answer: it may
//! hold the lock for long over connections of its own, though nothing that clients send reaches it. A client
//! says so to the lock service, which has evidence of others, too (`protocols-tail.md` 10.11).

use std::net::SocketAddr;
use std::pin::pin;

use futures_util::future::{Either, select};
use runtime::{Class, Duration};
use wire::control::{
    ClusterReply, ClusterRequest, ControlError, ControlReply, ControlRequest, holder_addr,
};

use crate::client::Client;
use crate::limits::{DOUBT_MAX, PING_AFTER, PING_TIMEOUT};
use crate::peers::PeerError;

/// A shorter attempt is over before silence lasts.
const WATCHED_LEAST: Duration =
    Duration::from_nanos(2 * (PING_AFTER.as_nanos() as u64 + PING_TIMEOUT.as_nanos() as u64));

impl Client {
    /// Sends a request to the process that holds `lock`, as the client knows it. An attempt ends early when
    /// the process answers no ping either; then its hold is doubted.
    pub async fn ask_holder(
        &self,
        lock: &'static str,
        to: SocketAddr,
        request: ControlRequest,
        timeout: Duration,
    ) -> Result<ControlReply, PeerError<ControlError>> {
        let asked = self.ask_peer(to, request, timeout);
        let silence = self.0.session.silence();
        let lasting = async {
            match timeout > WATCHED_LEAST {
                true => silence.lasting(to).await,
                false => std::future::pending().await,
            }
        };
        match select(pin!(asked), pin!(lasting)).await {
            Either::Left((answer, _)) => {
                match answer {
                    Err(PeerError::Unreachable(_) | PeerError::Silent(_)) => {
                        self.doubt_holder(lock, to)
                    }
                    _ => silence.note_answer(to),
                }
                answer
            }
            Either::Right(((), _)) => {
                self.doubt_holder(lock, to);
                Err(PeerError::Silent(format!("{to}: it answers no ping either")))
            }
        }
    }

    /// Says to the lock service that this client does not reach the lock's holder, if it answers no ping over
    /// a new link either, and is still the one at `addr`.
    fn doubt_holder(&self, lock: &'static str, addr: SocketAddr) {
        if !self.0.doubting.borrow_mut().insert(lock) {
            return; // It is being said.
        }
        let this = self.clone();
        self.env().spawn(Class::Background, "client: doubt of a lock's holder", async move {
            let name = lock.to_owned();
            let said = async {
                let look = ClusterRequest::LockHolder { name: name.clone() };
                let holder = this.cluster_ask(look).await;
                let Ok(ClusterReply::Holder(Some((text, fencing)))) = holder else { return };
                if holder_addr(&text) == Some(addr) {
                    this.env().mark("client: the holder of a lock is doubted");
                    let doubt = ClusterRequest::LockDoubt { name, fencing };
                    if let Err(error) = this.cluster_ask(doubt).await {
                        // Masters of an earlier version take none.
                        tracing::debug!(%error, lock, "a doubt was not taken");
                    }
                }
            };
            if !this.0.session.silence().reaches(addr).await {
                // Without masters nothing can be said, and later it is no news.
                let _ = this.env().timeout(DOUBT_MAX, said).await;
            }
            this.0.doubting.borrow_mut().remove(lock);
        });
    }
}
