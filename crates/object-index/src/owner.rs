//! [`Owner`]: the process that owns the objects. It competes for a lock of the core; while it has it,
//! it opens the tables of the catalog and of the ranges and answers.
//!
//! The lock's token is the epoch: tables opened under it shut former owners out, and requests name it.
//! What is answered from memory or from reads is answered while the lock's lease lasts.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;

use futures_util::future::{Either, select};
use object_proto::{CatalogRequest, Error, Reply, Request};
use runtime::sync::Notify;
use runtime::{Class, Duration, Env, Instant};
use tenancy::{Contest, Term};

use crate::config::Config;
use crate::ground::{Files, Lease};
use crate::limits::{IDLE_AFTER, IDLE_LONGER, LEAD_PAUSE};
use crate::room::Room;
use crate::rule::Rule;

struct OwnerInner {
    env: Env,
    contest: Contest,
    files: Rc<dyn Files>,
    config: Config,
    room: Room,
    rule: RefCell<Option<Rc<Rule>>>,
    /// When a request came last, a sign of life apart.
    asked: Cell<Instant>,
    stopping: Cell<bool>,
    stop: Notify,
    stopped: Cell<bool>,
}

/// A process that owns the objects while it has the lock. Clones share it.
#[derive(Clone)]
pub struct Owner(Rc<OwnerInner>);

impl Owner {
    /// Competes for the lock.
    pub fn start(env: &Env, contest: Contest, files: Rc<dyn Files>, config: Config) -> Owner {
        let owner = Owner(Rc::new(OwnerInner {
            env: env.clone(),
            contest,
            files,
            config,
            room: Room::default(),
            rule: RefCell::default(),
            asked: Cell::new(env.now()),
            stopping: Cell::new(false),
            stop: Notify::new(),
            stopped: Cell::new(false),
        }));
        env.spawn(Class::Control, "object owner", owner.clone().compete());
        owner
    }

    /// True while it owns the objects.
    pub fn leads(&self) -> bool {
        self.0.rule.borrow().is_some()
    }

    /// Answers a request; one that is not the owner says so.
    pub async fn handle(&self, request: Request) -> Result<Reply, Error> {
        if !matches!(request, Request::Catalog(CatalogRequest::Beat(_))) {
            self.0.asked.set(self.0.env.now());
        }
        let rule = self.0.rule.borrow().clone();
        rule.ok_or(Error::Reroute)?.handle(request).await
    }

    /// Gives the lock up, so that another owns the objects at once, and ends.
    pub async fn stop(&self) {
        self.0.stopping.set(true);
        self.0.stop.notify_waiters();
        while !self.0.stopped.get() {
            self.0.env.sleep(Duration::from_millis(5)).await;
        }
    }

    async fn pause(&self, pause: Duration) {
        let stop = self.0.stop.notified();
        if !self.0.stopping.get() {
            let _ = self.0.env.timeout(pause, stop).await; // Either has happened.
        }
    }

    async fn compete(self) {
        let inner = &*self.0;
        let mut pause = LEAD_PAUSE.0;
        while !inner.stopping.get() {
            if let Some(term) = inner.contest.acquire().await {
                let term = Rc::new(term);
                let ruled = self.rule(&term).await;
                if let Some(rule) = inner.rule.take() {
                    rule.end("another process owns the objects now");
                }
                match ruled {
                    Ok(()) => {
                        tracing::info!(epoch = term.fencing(), "owns the objects no more");
                        pause = LEAD_PAUSE.0;
                    }
                    Err(error) => {
                        tracing::warn!(%error, "objects cannot be served yet");
                        self.pause(inner.env.jitter(pause)).await;
                        pause = (2 * pause).min(LEAD_PAUSE.1);
                    }
                }
                inner.contest.release(&term).await;
            }
            self.pause(inner.env.jitter(LEAD_PAUSE.0)).await;
        }
        inner.stopped.set(true);
    }

    /// Owns the objects until the lock or a table is lost, or it is asked to stop.
    async fn rule(&self, term: &Rc<Term>) -> Result<(), Error> {
        let inner = &*self.0;
        let lease: Rc<dyn Lease> = term.clone();
        let held = (lease, term.fencing());
        let opening = Rule::open(&inner.env, &*inner.files, &inner.config, held, &inner.room);
        // It may take long: the lock is renewed beside it.
        let mut opening = Box::pin(opening);
        let rule = loop {
            match select(opening, Box::pin(self.pause(inner.contest.renewal_pause(1)))).await {
                Either::Left((opened, _)) => break opened?,
                Either::Right(((), goes_on)) => opening = goes_on,
            }
            if inner.stopping.get() || !inner.contest.renew(term, 1).await {
                return Ok(());
            }
        };
        tracing::info!(epoch = term.fencing(), "owns the objects");
        inner.env.mark("object: owner rules");
        inner.rule.replace(Some(rule.clone()));
        let tending = rule.clone().tend(inner.config.collect_interval);
        let tending = inner.env.spawn(Class::Background, "object: collect", tending);
        let mut longer = 1;
        loop {
            let pause = Box::pin(self.pause(inner.contest.renewal_pause(longer)));
            let over = matches!(select(Box::pin(rule.ended()), pause).await, Either::Left(_));
            let is_idle = inner.env.now() - inner.asked.get() > IDLE_AFTER;
            longer = if is_idle { IDLE_LONGER } else { 1 };
            if over || inner.stopping.get() || !inner.contest.renew(term, longer).await {
                break;
            }
        }
        tending.abort();
        if inner.stopping.get() {
            inner.rule.replace(None);
            rule.close().await;
        }
        Ok(())
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owner({:?})", self.0.contest)
    }
}
