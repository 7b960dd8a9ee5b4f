//! Output of a connection: answers in the order in which they are ready; those that wait leave in
//! one system call.

use block_volume::buffer::alloc;
use runtime::sync::{OwnedSemaphorePermit, mpsc};
use runtime::{Buf, Env};

use super::tls::Outgoing;
use crate::protocol::limits::{NBD_BATCH_BYTES, NBD_BATCH_MAX};

/// A part of a long answer, and its share of the connection's bounds.
pub(super) type AnswerPart = (Buf, OwnedSemaphorePermit);

/// Bytes for the client.
pub(super) struct Message {
    /// Heads and small content.
    pub(super) head: Vec<u8>,
    /// Data behind the head.
    pub(super) data: Option<Buf>,
    /// Parts behind that, without other answers in between, and their bytes. When the parts end
    /// early, the connection has to: the client was promised more.
    pub(super) rest: Option<(mpsc::Receiver<AnswerPart>, u64)>,
    /// The request's permits, given back when it has left.
    pub(super) held: Vec<OwnedSemaphorePermit>,
}

impl Message {
    pub(super) fn new(
        head: Vec<u8>,
        data: Option<Buf>,
        held: Vec<OwnedSemaphorePermit>,
    ) -> Message {
        Message { head, data, rest: None, held }
    }

    fn len(&self) -> usize {
        self.head.len() + self.data.as_ref().map_or(0, |data| data.len())
    }
}

/// Sends until the last sender is dropped, or the connection breaks.
pub(super) async fn run(env: Env, mut write: Outgoing, mut inbox: mpsc::Receiver<Message>) {
    while let Some(first) = inbox.recv().await {
        let mut bytes = first.len();
        let mut batch = vec![first];
        while batch.len() < NBD_BATCH_MAX
            && bytes < NBD_BATCH_BYTES
            && batch.last().is_some_and(|last| last.rest.is_none())
        {
            let Ok(next) = inbox.try_recv() else { break };
            bytes += next.len();
            batch.push(next);
        }
        if !send(&env, &mut write, batch).await {
            return;
        }
    }
    write.end().await;
}

/// Sends messages of which only the last may have a rest; false when the connection is over.
async fn send(env: &Env, write: &mut Outgoing, mut batch: Vec<Message>) -> bool {
    let len = batch.iter().map(|message| message.head.len()).sum();
    // Bounded by the batch. After a bug the client sees the end of its connection.
    let Ok(mut heads) = alloc(env, len).await else { return false };
    let mut at = 0;
    for message in &batch {
        heads[at..at + message.head.len()].copy_from_slice(&message.head);
        at += message.head.len();
    }
    let heads = heads.freeze();
    let (mut bufs, mut from, mut until) = (Vec::new(), 0, 0);
    for message in &batch {
        until += message.head.len();
        if let Some(data) = &message.data {
            bufs.push(heads.slice(from..until));
            bufs.push(data.clone());
            from = until;
        }
    }
    if from < until {
        bufs.push(heads.slice(from..until));
    }
    if write.write_all(bufs).await.is_err() {
        return false;
    }
    let last = batch.pop();
    drop(batch);
    let Some(Message { rest: Some((mut parts, mut left)), held, .. }) = last else { return true };
    while left > 0 {
        let Some((part, _room)) = parts.recv().await else { return false };
        left -= part.len() as u64;
        if write.write_all(vec![part]).await.is_err() {
            return false;
        }
    }
    drop(held);
    true
}
