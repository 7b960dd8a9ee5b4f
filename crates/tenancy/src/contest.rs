//! [`Contest`]: processes compete for a lock of the core; the holder has a [`Term`].
//!
//! The lock's fencing token grows with each holder: it is the number under which the holder opens
//! what it owns. The lock's lease says until when no other process can have it, by this process's
//! clock: what a holder answers from memory, it answers before that.

use std::cell::Cell;
use std::fmt;
use std::net::SocketAddr;

use base::Kind;
use client::Client;
use runtime::{Duration, Env, Instant};
use wire::control::{ClusterReply, ClusterRequest, LockChange, holder_addr, holder_text};

use crate::limits::{DRIFT, YIELD_PAUSE};

/// Renewals in a lease: two may be lost and the third be late.
const RENEWALS: u32 = 4;

/// One process in the contest for a lock. Its client should have attempts that are shorter than the
/// lease.
pub struct Contest {
    client: Client,
    lock: &'static str,
    owner: String,
    ttl: Duration,
    /// The address of the holder that was seen last.
    leader: Cell<Option<SocketAddr>>,
    /// Until then it leaves the lock to others.
    yields_until: Cell<Instant>,
}

/// A time for which this process holds the lock.
#[derive(Debug)]
pub struct Term {
    env: Env,
    fencing: u64,
    end: Cell<Instant>,
}

impl Term {
    /// Grows with each holder of the lock.
    pub fn fencing(&self) -> u64 {
        self.fencing
    }

    /// True while no other process can have the lock.
    pub fn is_valid(&self) -> bool {
        self.env.now() < self.end.get()
    }

    /// When it ends, unless it is renewed.
    pub fn end(&self) -> Instant {
        self.end.get()
    }
}

impl Contest {
    /// The process `name` at `addr` competes for `lock`, whose lease lasts for `ttl`.
    pub fn new(
        client: Client,
        lock: &'static str,
        (name, addr): (&str, SocketAddr),
        ttl: Duration,
    ) -> Contest {
        let owner = holder_text(name, addr);
        let (leader, yields_until) = (Cell::new(None), Cell::default());
        Contest { client, lock, owner, ttl, leader, yields_until }
    }

    /// The holder that was seen last, another process or this one.
    pub fn leader(&self) -> Option<SocketAddr> {
        self.leader.get()
    }

    fn env(&self) -> &Env {
        self.client.env()
    }

    /// This process is not reached by those that it is to serve: others may try the lock before it does.
    pub fn yield_lock(&self) {
        self.yields_until.set(self.env().now() + YIELD_PAUSE);
    }

    /// Takes the lock if it is free.
    pub async fn acquire(&self) -> Option<Term> {
        let look = ClusterRequest::LockHolder { name: self.lock.to_owned() };
        match self.client.cluster_ask(look).await {
            Ok(ClusterReply::Holder(Some((holder, _)))) => {
                self.leader.set(holder_addr(&holder));
                return None;
            }
            Ok(_) => {}
            Err(error) => {
                tracing::debug!(%error, lock = self.lock, "the lock's holder is not known");
                return None;
            }
        }
        let sent = self.env().now();
        if sent < self.yields_until.get() {
            return None;
        }
        let (name, owner) = (self.lock.to_owned(), self.owner.clone());
        let change = LockChange::Acquire { name, owner, ttl_ms: self.ttl_ms() };
        match self.change(change).await {
            Ok(ClusterReply::Lock { fencing }) => {
                self.leader.set(holder_addr(&self.owner));
                let end = Cell::new(lease_end(sent, self.ttl));
                Some(Term { env: self.env().clone(), fencing, end })
            }
            Ok(_) => None,
            Err(error) => {
                tracing::debug!(%error, lock = self.lock, "the lock was not got");
                None
            }
        }
    }

    /// Until the next renewal, where leases are `longer` times as long.
    pub fn renewal_pause(&self, longer: u32) -> Duration {
        self.env().jitter(self.ttl * longer / RENEWALS)
    }

    /// Renews the lock for `longer` times its lease: a holder that has nothing to do renews it rarely.
    /// False when it is lost.
    pub async fn renew(&self, term: &Term, longer: u32) -> bool {
        let sent = self.env().now();
        if sent >= term.end.get() {
            return false;
        }
        let (name, fencing) = (self.lock.to_owned(), term.fencing);
        let ttl = self.ttl * longer;
        let ttl_ms = ttl.as_millis() as u64;
        let change = LockChange::Renew { name, fencing, ttl_ms };
        match self.env().timeout(term.end.get() - sent, self.change(change)).await {
            Ok(Ok(_)) => {
                term.end.set(term.end.get().max(lease_end(sent, ttl)));
                true
            }
            Ok(Err(error)) if error.kind() == Kind::Fenced => {
                if term.is_valid() {
                    // Nothing else fences a holder whose lease lasts: clients have doubted it.
                    tracing::warn!(
                        lock = self.lock,
                        "clients do not reach this process, so masters renew its lock no more: another is to \
                         lead. Check the network between clients and this host"
                    );
                    self.yield_lock();
                }
                false
            }
            Ok(Err(error)) => {
                tracing::warn!(%error, lock = self.lock, "the lock was not renewed");
                true
            }
            Err(_) => false,
        }
    }

    /// Gives the lock up, so that another process need not wait for its end.
    pub async fn release(&self, term: &Term) {
        self.leader.set(None);
        let (name, fencing) = (self.lock.to_owned(), term.fencing);
        let gone = self.change(LockChange::Release { name, fencing });
        // It runs out by itself.
        let _ = self.env().timeout(self.ttl, gone).await;
    }

    async fn change(&self, change: LockChange) -> Result<ClusterReply, client::Error> {
        let build = |op| ClusterRequest::Lock { op, change };
        self.client.cluster_change(self.lock, build).await
    }

    fn ttl_ms(&self) -> u64 {
        self.ttl.as_millis() as u64
    }
}

impl fmt::Debug for Contest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Contest({} by {})", self.lock, self.owner)
    }
}

/// When a lease that was asked for at `sent` ends, by this clock at the earliest.
fn lease_end(sent: Instant, ttl: Duration) -> Instant {
    sent + ttl * (1000 - DRIFT) / 1000
}
