//! Probes of disks, which clients ask for when they have listed one (`protocols-tail.md` 10.5). One
//! probe of a disk is under way at a time, and answers all who have asked before it ended and for
//! [`PROBE_SHARED`] after that: many clients cost a disk little.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use chunkstore::{ChunkStore, StoreError};
use runtime::sync::Notify;
use runtime::{Class, Duration, Env, Instant};
use wire::control::limits::PROBE_SHARED;

use crate::limits::PROBE_WAIT_MAX;

/// Cause for which a probe says nothing of a disk's speed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ProbeError {
    /// It has not ended in [`PROBE_WAIT_MAX`].
    Late,
    /// The store has refused it.
    Store(StoreError),
}

/// The probes of one disk. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Probes(Rc<ProbesInner>);

#[derive(Default)]
struct ProbesInner {
    under_way: Cell<bool>,
    /// End and outcome of the last one.
    last: RefCell<Option<(Instant, Result<Duration, StoreError>)>>,
    ended: Notify,
}

impl Probes {
    /// How long a durable write and a read of the disk take.
    pub(crate) async fn ask<S>(&self, env: &Env, store: &S) -> Result<Duration, ProbeError>
    where
        S: ChunkStore,
    {
        let recent = |(ended, _): &(Instant, _)| env.now() - *ended < PROBE_SHARED;
        let known = self.0.last.borrow().clone().filter(recent);
        let outcome = match known {
            Some((_, outcome)) => {
                env.mark("chunkserver: a probe is shared");
                outcome
            }
            None => {
                let ended = self.0.ended.notified();
                self.start(env, store);
                env.timeout(PROBE_WAIT_MAX, ended).await.map_err(|_| ProbeError::Late)?;
                self.0.last.borrow().clone().expect("one has ended").1
            }
        };
        outcome.map_err(ProbeError::Store)
    }

    /// Starts a probe unless one is under way. It goes on when nothing waits for it any more.
    fn start<S: ChunkStore>(&self, env: &Env, store: &S) {
        if self.0.under_way.replace(true) {
            return;
        }
        let (this, env, store) = (self.clone(), env.clone(), store.clone());
        env.clone().spawn(Class::Foreground, "probe a disk", async move {
            let begun = env.now();
            let probed = store.probe().await;
            let took = probed.map(|()| env.now() - begun);
            this.0.last.replace(Some((env.now(), took)));
            this.0.under_way.set(false);
            this.0.ended.notify_waiters();
        });
    }
}
