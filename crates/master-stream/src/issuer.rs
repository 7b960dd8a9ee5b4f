//! The master as an issuer of rights: tokens for chunks (D11), and orders that run out. Both end by the
//! master's own clock, which begins at its start and which its answers to heartbeats show; the clock on
//! the wall is used only for chunkservers of a version that does not know of this (decision 113).

use std::time::Duration;

use base::{ChunkId, Epoch};
use runtime::{Env, Instant};
use wire::control::IssuerClock;
use wire::token::{Issuer, IssuerTime, Rights, Token, TokenKey};

use crate::planted::{Planted, planted};

/// Issues rights of one master. Clones are the same issuer.
#[derive(Clone, Debug)]
pub struct TokenIssuer {
    env: Env,
    key: TokenKey,
    issuer: Issuer,
    started: Instant,
}

impl TokenIssuer {
    /// A new issuer, whose clock begins now.
    pub fn new(env: &Env, key: TokenKey) -> TokenIssuer {
        let issuer = Issuer::new(env.random_u64().max(1));
        TokenIssuer { env: env.clone(), key, issuer, started: env.now() }
    }

    /// Its clock, as it is now.
    pub fn clock(&self) -> IssuerClock {
        let clock_ms = self.env.now().since(self.started).as_millis() as u64;
        IssuerClock { issuer: self.issuer, clock_ms }
    }

    /// The moment `ahead` from now: by its own clock, or by that on the wall.
    pub(crate) fn time(&self, ahead: Duration, by_issuer: bool) -> IssuerTime {
        if by_issuer && !planted(Planted::RightsByWall) {
            let now = self.env.now().since(self.started);
            return IssuerTime { issuer: self.issuer, seconds: (now + ahead).as_secs().max(1) };
        }
        let now = Duration::from_nanos(self.env.unix_time().as_nanos());
        IssuerTime::wall((now + ahead).as_secs().max(1))
    }

    /// A token.
    pub(crate) fn issue(
        &self,
        chunk: ChunkId,
        rights: Rights,
        epoch: Epoch,
        expiry: IssuerTime,
    ) -> Token {
        let seconds = if planted(Planted::RightsForEver) { u64::MAX } else { expiry.seconds };
        self.key.issue(chunk, rights, epoch, IssuerTime { seconds, ..expiry })
    }
}
