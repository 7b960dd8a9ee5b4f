//! The end of an open chunk: the length that its replicas show, and the length that they prove.
//!
//! A replica shows the length that the writer has reported as acknowledged, a lower bound. It also
//! answers the length that it holds, reported or not. An acknowledged byte is on `acks` of the `n`
//! replicas. So of any `n - acks + 1` of them one holds it, and the longest of them is an upper
//! bound of the bytes acknowledged before they were asked (`protocols.md` 1.6, decision 30). When
//! the two meet, the end is known. Replicas of a coded chunk count alike: each fragment of an
//! acknowledged row is on `acks` of them too. Bytes that are held and not reported are never shown: a writer
//! that ends its chunk may cut them off.

use base::ChunkId;
use futures_util::stream::{FuturesUnordered, StreamExt};
use wire::control::ChunkPlace;
use wire::data::{ChunkRef, DataError, DataReply, DataRequest, ReplicaStat, ReplicaState};

use crate::client::Client;
use crate::peers::PeerError;

/// Answer of an open chunk's replicas together.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Tail {
    /// Bytes that a replica shows.
    pub(crate) shown: u32,
    /// No more was acknowledged when the replicas were asked; `None` when too few have answered.
    pub(crate) acked_at_most: Option<u32>,
}

/// Answer of one replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Word {
    shown: u32,
    /// Bytes it holds, unless it is damaged.
    held: Option<u32>,
}

impl Tail {
    /// Asks the replicas until the end is known, or all have answered.
    pub(crate) async fn ask(client: &Client, chunk: &ChunkPlace) -> Tail {
        let attempt = client.config().read_attempt;
        let mut asked: FuturesUnordered<_> = chunk
            .replicas
            .iter()
            .map(|replica| {
                let at = ChunkRef { chunk: chunk.chunk, disk: replica.disk };
                let request = DataRequest::Stat(at);
                client.0.peers.data(replica.addr, request, chunk.token, None, attempt)
            })
            .collect();
        let (mut words, mut tail) = (Vec::new(), Tail::default());
        while let Some(answer) = asked.next().await {
            let word = match answer {
                Ok((DataReply::Stat(stat), _)) => word(&stat, chunk),
                // It is made with the first bytes that reach it (C9).
                Err(PeerError::Refused(DataError::NotFound)) => {
                    Some(Word { shown: 0, held: Some(0) })
                }
                _ => None,
            };
            words.extend(word);
            tail = judge(&words, chunk.replicas.len(), usize::from(chunk.acks));
            if tail.acked_at_most.is_some_and(|most| most <= tail.shown) {
                break;
            }
        }
        tail
    }
}

/// Contribution of a replica's state to the end of its chunk.
fn word(stat: &ReplicaStat, chunk: &ChunkPlace) -> Option<Word> {
    if stat.epoch != chunk.epoch {
        return None;
    }
    let shown = match stat.state {
        // The length of a sealed replica is the chunk's.
        ReplicaState::Sealed => stat.len,
        ReplicaState::Open | ReplicaState::Fenced(_) => stat.committed.min(stat.len),
        ReplicaState::Repairing | ReplicaState::Tombstone | ReplicaState::Deleted => return None,
    };
    // One that has lost bytes is no witness of what was acknowledged (`protocols.md` 2.2).
    let held = (stat.len >= stat.durable_bound).then_some(stat.len);
    Some(Word { shown, held })
}

/// Result of `words` of `replicas` together, `acks` of which have each acknowledged byte.
fn judge(words: &[Word], replicas: usize, acks: usize) -> Tail {
    let shown = words.iter().map(|word| word.shown).max().unwrap_or(0);
    let mut held: Vec<_> = words.iter().filter_map(|word| word.held).collect();
    held.sort_unstable();
    // Any so many have a witness of each acknowledged byte: those that hold least bound it best.
    let witnesses = (replicas + 1).saturating_sub(acks).max(1);
    Tail { shown, acked_at_most: held.get(witnesses - 1).copied() }
}

/// The least upper bound that a read has got of what was acknowledged in a chunk when it began.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Bound(Option<(ChunkId, u64)>);

impl Bound {
    /// Takes over what replicas of a chunk have said during the read.
    pub(crate) fn note(&mut self, chunk: &ChunkPlace, tail: &Tail) {
        let Some(most) = tail.acked_at_most else { return };
        let most = chunk.base + u64::from(most);
        let before = self.0.filter(|(of, _)| *of == chunk.chunk).map_or(most, |(_, most)| most);
        self.0 = Some((chunk.chunk, before.min(most)));
    }

    /// True when it is known for this chunk.
    pub(crate) fn is_of(&self, chunk: &ChunkPlace) -> bool {
        self.0.is_some_and(|(of, _)| of == chunk.chunk)
    }

    /// True when nothing at or behind offset `at` of the file was acknowledged.
    pub(crate) fn is_below(&self, at: u64) -> bool {
        self.0.is_some_and(|(_, most)| most <= at)
    }

    /// Takes over what replicas have said; true when all that was acknowledged lies below `len`.
    pub(crate) fn is_met(&mut self, chunk: &ChunkPlace, tail: &Tail, len: u64) -> bool {
        self.note(chunk, tail);
        self.is_of(chunk) && self.is_below(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(words: &[(u32, u32)], acks: usize) -> Tail {
        let words: Vec<_> =
            words.iter().map(|&(shown, held)| Word { shown, held: Some(held) }).collect();
        judge(&words, 3, acks)
    }

    #[test]
    fn one_replica_bounds_what_all_must_have() {
        assert_eq!(said(&[], 3), Tail { shown: 0, acked_at_most: None });
        assert_eq!(said(&[(10, 10)], 3), Tail { shown: 10, acked_at_most: Some(10) });
        assert_eq!(said(&[(10, 30), (0, 20)], 3), Tail { shown: 10, acked_at_most: Some(20) });
    }

    #[test]
    fn two_replicas_bound_what_two_of_three_must_have() {
        assert_eq!(said(&[(10, 10)], 2), Tail { shown: 10, acked_at_most: None });
        assert_eq!(said(&[(10, 10), (0, 30)], 2), Tail { shown: 10, acked_at_most: Some(30) });
        let all = said(&[(10, 10), (0, 30), (5, 20)], 2);
        assert_eq!(all, Tail { shown: 10, acked_at_most: Some(20) });
    }

    /// EC(4,2), five of which acknowledge: one of any two has each acknowledged row. The fourth longest
    /// of any five, which recovery takes, bounds it no better.
    #[test]
    fn two_fragments_bound_what_five_of_six_must_have() {
        let judged = |held: &[u32]| {
            let words: Vec<_> =
                held.iter().map(|&held| Word { shown: 9, held: Some(held) }).collect();
            judge(&words, 6, 5).acked_at_most
        };
        assert_eq!(judged(&[30]), None);
        assert_eq!(judged(&[30, 10]), Some(30));
        assert_eq!(judged(&[30, 20, 30, 30, 10, 30]), Some(20));
    }

    #[test]
    fn a_damaged_replica_shows_and_bounds_nothing() {
        let words = [Word { shown: 10, held: None }];
        assert_eq!(judge(&words, 3, 3), Tail { shown: 10, acked_at_most: None });
    }
}
