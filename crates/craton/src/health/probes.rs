//! Probes by the command itself.

use std::net::SocketAddr;
use std::time::Duration;

use base::{DiskId, Kind};
use block_proto::managers::ask_peer;
use block_proto::{BlockServerRequest, Request};
use client::{Client, PeerError};
use roles::seen::Seen;
use runtime::Env;
use wire::control::{
    ChunkserverReply, ChunkserverRequest, ClusterRequest, ControlError, ControlReply,
    ControlRequest,
};

use crate::args::RoleName;
use crate::page::fetch;

/// A process that answers nothing for so long does not answer.
const TIMEOUT: Duration = Duration::from_millis(700);
/// A disk is slow that takes so many times as long as others do.
const SLOW: u32 = 8;
/// And no less than this: one probe says little.
const SLOW_MIN: Duration = Duration::from_millis(20);

/// How a probe has ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Probed {
    /// It was answered, in this time.
    Served(Duration),
    /// The server answers that the disk does not serve.
    DiskOut(String),
    /// There was no answer.
    Unanswered(String),
    /// It has no address that this command could ask.
    NotAsked,
}

/// True for a time that is out of proportion.
pub(super) fn is_slow(time: Duration, usual: Duration) -> bool {
    time >= SLOW_MIN && time >= usual * SLOW
}

/// Asks a process for a sign of life, a chunkserver for a write and a read of a disk.
pub(super) async fn probe(
    client: &Client,
    role: RoleName,
    addr: SocketAddr,
    disk: Option<DiskId>,
) -> Probed {
    let begun = client.env().now();
    let request = match (role, disk) {
        (RoleName::Frontend, _) if addr.port() == 0 => return Probed::NotAsked,
        (RoleName::Gateway, _) => return ready(client.env(), addr).await,
        (RoleName::Frontend, _) => return greet(client.env(), addr).await,
        (RoleName::Chunkserver, Some(disk)) => {
            ControlRequest::Chunkserver(ChunkserverRequest::Probe { disk })
        }
        (RoleName::Chunkserver, None) => ControlRequest::Chunkserver(ChunkserverRequest::Ping),
        // A process of the object service refuses that, which is an answer.
        (RoleName::Master | RoleName::ObjectManager | RoleName::ObjectServer, _) => {
            ControlRequest::Cluster(ClusterRequest::Info)
        }
        (RoleName::BlockServer | RoleName::BlockManager, _) => {
            let ping = Request::BlockServer(BlockServerRequest::Ping);
            let reply = ask_peer(client, addr, ping, TIMEOUT).await;
            return judge(client.env().now() - begun, reply.map(|_| None));
        }
    };
    let reply = client.ask_peer(addr, request, TIMEOUT).await;
    let time = client.env().now() - begun;
    judge(
        time,
        reply.map(|reply| match reply {
            ControlReply::Chunkserver(ChunkserverReply::Probed { took_us }) => {
                Some(Duration::from_micros(took_us))
            }
            _ => None,
        }),
    )
}

/// An answer after `time`; `disk`: the time that the disk took, where the answer says it.
fn judge(time: Duration, answer: Result<Option<Duration>, PeerError<ControlError>>) -> Probed {
    match answer {
        Ok(disk) => Probed::Served(disk.map_or(time, |disk| disk.max(time))),
        Err(PeerError::Refused(error)) => match error.kind {
            // It has no such request: it answers.
            Kind::Invalid => Probed::Served(time),
            _ => Probed::DiskOut(error.message),
        },
        Err(PeerError::Busy) => Probed::Served(time),
        Err(PeerError::Unreachable(why) | PeerError::Silent(why) | PeerError::Foreign(why)) => {
            Probed::Unanswered(why)
        }
    }
}

/// Waits for the greeting of an NBD server.
async fn greet(env: &Env, addr: SocketAddr) -> Probed {
    let begun = env.now();
    let greeted = env.timeout(TIMEOUT, async {
        let mut stream = env.connect(addr).await.map_err(|error| error.to_string())?;
        let buf = env.pool().alloc(64).map_err(|error| error.to_string())?;
        let (read, _) = stream.read.read(buf, 0).await;
        match read {
            Ok(0) => Err("it closes the connection".to_owned()),
            Ok(_) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    });
    match greeted.await {
        Ok(Ok(())) => Probed::Served(env.now() - begun),
        Ok(Err(why)) => Probed::Unanswered(why),
        Err(_) => Probed::Unanswered(format!("nothing comes for {TIMEOUT:?}")),
    }
}

/// Asks a gateway whether it serves.
async fn ready(env: &Env, addr: SocketAddr) -> Probed {
    let begun = env.now();
    match env.timeout(TIMEOUT, fetch(env, addr, "/_craton/ready")).await {
        Ok(Ok(page)) if page.starts_with("HTTP/1.1 200") => Probed::Served(env.now() - begun),
        Ok(Ok(_)) => Probed::Unanswered("no object server owns the objects yet".to_owned()),
        Ok(Err(why)) => Probed::Unanswered(why),
        Err(_) => Probed::Unanswered(format!("nothing comes for {TIMEOUT:?}")),
    }
}

/// What a process with a client sees.
pub(super) async fn seen(env: &Env, addr: SocketAddr) -> Result<Seen, String> {
    let page = env.timeout(TIMEOUT, fetch(env, addr, "/seen")).await;
    let page = page.map_err(|_| format!("nothing comes for {TIMEOUT:?}"))??;
    let (head, body) = page.split_once("\r\n\r\n").ok_or("it does not speak HTTP")?;
    if !head.starts_with("HTTP/1.1 200") {
        return Err("it has no page /seen: name the metrics address of a front end, block server \
                    or block manager"
            .to_owned());
    }
    serde_json::from_str(body).map_err(|error| format!("its page /seen is not understood: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_judged() {
        let time = Duration::from_millis(1);
        let refused = |kind| {
            let error = ControlError::new(kind, "words");
            judge(time, Err(PeerError::Refused(error)))
        };
        assert_eq!(judge(time, Ok(None)), Probed::Served(time));
        assert_eq!(judge(time, Ok(Some(time * 3))), Probed::Served(time * 3));
        assert_eq!(refused(Kind::Invalid), Probed::Served(time));
        assert_eq!(refused(Kind::Retry), Probed::DiskOut("words".to_owned()));
        let silent = judge(time, Err(PeerError::Silent("no answer".to_owned())));
        assert_eq!(silent, Probed::Unanswered("no answer".to_owned()));
    }

    #[test]
    fn slow_is_a_multiple_of_the_usual() {
        let ms = Duration::from_millis;
        assert!(!is_slow(ms(19), ms(1)));
        assert!(is_slow(ms(20), ms(1)));
        assert!(!is_slow(ms(79), ms(10)));
        assert!(is_slow(ms(80), ms(10)));
    }
}
