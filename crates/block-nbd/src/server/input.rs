//! Input of a connection: small parts through one buffer, data straight into its own.

use block_volume::buffer::alloc;
use runtime::{Buf, BufMut, Env};

use super::tls::Incoming;
use crate::protocol::ProtocolError;
use crate::protocol::limits::NBD_STAGING_BYTES;

/// Reasons for the end of input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum InputEnd {
    /// The client has closed, or its connection broke.
    Closed,
    /// The bytes break the protocol.
    ProtocolError(ProtocolError),
}

impl From<ProtocolError> for InputEnd {
    fn from(broken: ProtocolError) -> InputEnd {
        InputEnd::ProtocolError(broken)
    }
}

pub(super) struct Input {
    env: Env,
    read: Incoming,
    /// Absent only while it is read into.
    staging: Option<BufMut>,
    start: usize,
    end: usize,
}

impl Input {
    pub(super) async fn new(env: &Env, read: Incoming) -> Result<Input, InputEnd> {
        let staging = alloc(env, NBD_STAGING_BYTES).await.map_err(|_| InputEnd::Closed)?;
        Ok(Input { env: env.clone(), read, staging: Some(staging), start: 0, end: 0 })
    }

    /// Its source, when no received bytes are staged: the connection goes on with TLS.
    pub(super) fn into_inner(self) -> Option<Incoming> {
        (self.start == self.end).then_some(self.read)
    }

    /// The next `N` bytes.
    pub(super) async fn array<const N: usize>(&mut self) -> Result<[u8; N], InputEnd> {
        while self.end - self.start < N {
            self.fill().await?;
        }
        Ok(*self.take(N).first_chunk().expect("as many as asked for"))
    }

    /// The next `len` bytes, at most the staging buffer's.
    pub(super) async fn bytes(&mut self, len: usize) -> Result<Vec<u8>, InputEnd> {
        while self.end - self.start < len {
            self.fill().await?;
        }
        Ok(self.take(len).to_vec())
    }

    /// The next `len` bytes, in a buffer of their own.
    pub(super) async fn data(&mut self, len: usize) -> Result<Buf, InputEnd> {
        let mut data = alloc(&self.env, len).await.map_err(|_| InputEnd::Closed)?;
        let staged = (self.end - self.start).min(len);
        data[..staged].copy_from_slice(self.take(staged));
        let mut filled = staged;
        while filled < len {
            let (count, back) = self.read.read(data, filled).await;
            data = back;
            match count {
                Ok(count) if count > 0 => filled += count,
                Ok(_) | Err(_) => return Err(InputEnd::Closed),
            }
        }
        Ok(data.freeze())
    }

    /// Reads `len` bytes and drops them.
    pub(super) async fn skip(&mut self, mut len: usize) -> Result<(), InputEnd> {
        while len > 0 {
            if self.start == self.end {
                self.fill().await?;
            }
            let now = (self.end - self.start).min(len);
            self.take(now);
            len -= now;
        }
        Ok(())
    }

    fn take(&mut self, len: usize) -> &[u8] {
        let taken = self.start..self.start + len;
        self.start = taken.end;
        &self.staging.as_ref().expect("not being read into")[taken]
    }

    /// Reads available bytes, behind the staged ones.
    async fn fill(&mut self) -> Result<(), InputEnd> {
        let mut staging = self.staging.take().ok_or(InputEnd::Closed)?;
        if self.start > 0 {
            staging.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let (count, staging) = self.read.read(staging, self.end).await;
        self.staging = Some(staging);
        match count {
            Ok(count) if count > 0 => self.end += count,
            Ok(_) | Err(_) => return Err(InputEnd::Closed),
        }
        Ok(())
    }
}
