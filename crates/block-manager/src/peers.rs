//! [`Peers`]: managers and front ends that the leader has heard of, for status output. Nothing
//! depends on them; a new leader hears of them again.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use block_proto::limits::BLOCK_PEERS_MAX;
use block_proto::{BlockPeer, BlockRole};
use runtime::Instant;

use super::limits::{PEER_DEAD, PEER_FORGOTTEN};

/// Peers, their addresses, and when each was heard of last.
#[derive(Debug, Default)]
pub(super) struct Peers(BTreeMap<(BlockRole, String), (SocketAddr, Instant)>);

impl Peers {
    pub(super) fn heard(&mut self, now: Instant, role: BlockRole, name: String, addr: SocketAddr) {
        let key = (role, name);
        if self.0.len() >= BLOCK_PEERS_MAX && !self.0.contains_key(&key) {
            self.0.retain(|_, (_, heard)| now - *heard < PEER_DEAD);
            if self.0.len() >= BLOCK_PEERS_MAX {
                return; // There is room for those that live; one more than that is not shown.
            }
        }
        self.0.insert(key, (addr, now));
    }

    pub(super) fn list(&mut self, now: Instant) -> Vec<BlockPeer> {
        self.0.retain(|_, (_, heard)| now - *heard < PEER_FORGOTTEN);
        let peer =
            |((role, name), (addr, heard)): (&(BlockRole, String), &(SocketAddr, Instant))| {
                let alive = now - *heard < PEER_DEAD;
                BlockPeer { role: *role, name: name.clone(), addr: *addr, alive }
            };
        self.0.iter().map(peer).collect()
    }
}

#[cfg(test)]
mod tests {
    use runtime::Duration;

    use super::*;

    #[test]
    fn silent_peers_are_shown_as_down_and_later_forgotten() {
        let (mut peers, start) = (Peers::default(), Instant::default());
        let addr: SocketAddr = "127.0.0.1:7000".parse().expect("an address");
        let at = |seconds| start + Duration::from_secs(seconds);
        for number in 0..BLOCK_PEERS_MAX {
            peers.heard(at(0), BlockRole::Frontend, format!("fe{number}"), addr);
        }
        peers.heard(at(0), BlockRole::Frontend, "one too many".to_owned(), addr);
        assert_eq!(peers.list(at(1)).len(), BLOCK_PEERS_MAX);
        // The silent make room.
        peers.heard(at(60), BlockRole::Manager, "bm1".to_owned(), addr);
        let (name, role) = ("bm1".to_owned(), BlockRole::Manager);
        assert_eq!(peers.list(at(61)), [BlockPeer { role, name, addr, alive: true }]);
        assert!(!peers.list(at(71))[0].alive);
        assert!(peers.list(at(60) + PEER_FORGOTTEN).is_empty());
    }
}
