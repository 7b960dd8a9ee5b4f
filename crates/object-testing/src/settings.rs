//! A load on settings of buckets and on access keys, as gateways keep them: no request that begins behind a
//! change goes by what was before, but at a gateway that reaches no manager.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fmt;
use std::rc::Rc;

use object_index::Service;
use object_proto::{BucketName, BucketSettings, Error, Setting, UserChange, UserId};
use runtime::sim::Sim;
use runtime::{Duration, Rng};

use crate::users::add_user;

/// Something that is changed by one client at a time, and read by all.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Thing {
    Bucket(usize),
    User(usize),
}

const THINGS: [Thing; 5] =
    [Thing::Bucket(0), Thing::Bucket(1), Thing::Bucket(2), Thing::User(0), Thing::User(1)];

#[derive(Clone, Copy, Default)]
struct Numbers {
    /// The last change that was begun.
    begun: u64,
    /// The last one that was answered for.
    answered: u64,
}

struct LoadInner {
    sim: Sim,
    pause: Duration,
    numbers: RefCell<[Numbers; THINGS.len()]>,
    changing: RefCell<BTreeSet<Thing>>,
    changes: Cell<u64>,
    reads: Cell<u64>,
    stopped: Cell<bool>,
    violation: RefCell<Option<String>>,
}

/// A load. Clones share it.
#[derive(Clone)]
pub struct SettingsLoad(Rc<LoadInner>);

fn bucket(at: usize) -> BucketName {
    BucketName::new(&format!("settings-{at}")).expect("a name")
}

fn user(at: usize) -> UserId {
    UserId::new(format!("user-{at}"))
}

impl SettingsLoad {
    /// Clients pause for about `pause` between two operations.
    pub fn new(sim: &Sim, pause: Duration) -> SettingsLoad {
        SettingsLoad(Rc::new(LoadInner {
            sim: sim.clone(),
            pause,
            numbers: RefCell::default(),
            changing: RefCell::default(),
            changes: Cell::new(0),
            reads: Cell::new(0),
            stopped: Cell::new(false),
            violation: RefCell::default(),
        }))
    }

    /// Ends its clients.
    pub fn stop(&self) {
        self.0.stopped.set(true);
    }

    /// A broken promise.
    pub fn violation(&self) -> Option<String> {
        self.0.violation.borrow().clone()
    }

    /// Changes and reads that were answered.
    pub fn done(&self) -> (u64, u64) {
        (self.0.changes.get(), self.0.reads.get())
    }

    fn violated(&self, what: String) {
        self.0.violation.borrow_mut().get_or_insert(what);
    }

    fn is_over(&self) -> bool {
        self.0.stopped.get() || self.violation().is_some()
    }

    /// Makes what is changed, whatever it takes.
    pub async fn prepare(&self, service: &Service) {
        for at in 0..2 {
            add_user(service, &user(at)).await;
        }
        for at in 0..3 {
            let made = async || {
                service.create_bucket(bucket(at), user(0), BucketSettings::default()).await
            };
            while !matches!(made().await, Ok(_) | Err(Error::BucketExists { .. })) {
                service.env().sleep(Duration::from_millis(100)).await;
            }
        }
    }

    /// A client, until the load is stopped.
    pub async fn client(self, service: Service, mut rng: Rng) {
        while !self.is_over() {
            let at = rng.below(THINGS.len() as u64) as usize;
            if rng.one_in(6) && self.0.changing.borrow_mut().insert(THINGS[at]) {
                self.change(&service, at).await;
                self.0.changing.borrow_mut().remove(&THINGS[at]);
            } else {
                self.read(&service, at).await;
            }
            let pause = Duration::from_nanos(rng.below(2 * self.0.pause.as_nanos() as u64));
            self.0.sim.sleep(pause).await;
        }
    }

    /// Without faults: what is on record are the last changes, or some that may have been made.
    pub async fn settle(&self, service: &Service) -> Result<(), String> {
        let before = self.0.reads.get();
        for at in 0..THINGS.len() {
            self.read(service, at).await;
        }
        match self.violation() {
            Some(violation) => Err(violation),
            None if self.0.reads.get() - before < THINGS.len() as u64 => {
                Err("settings are not read though there are no faults".to_owned())
            }
            None => Ok(()),
        }
    }

    async fn change(&self, service: &Service, at: usize) {
        let number = {
            let numbers = &mut self.0.numbers.borrow_mut()[at];
            numbers.begun += 1;
            numbers.begun
        };
        let policy = Some(number.to_string());
        let changed = match THINGS[at] {
            Thing::Bucket(at) => service.set_bucket(bucket(at), Setting::Policy(policy)).await,
            Thing::User(at) => {
                service.change_user(UserChange::SetPolicy { user: user(at), policy }).await
            }
        };
        match changed {
            Ok(()) => {
                self.0.numbers.borrow_mut()[at].answered = number;
                self.0.changes.set(self.0.changes.get() + 1);
            }
            Err(Error::Busy { .. } | Error::Unknown { .. }) => {}
            Err(error) => self.violated(format!("a change of {:?}: {error}", THINGS[at])),
        }
    }

    /// Reads what a change has set.
    async fn read(&self, service: &Service, at: usize) {
        let least = self.0.numbers.borrow()[at].answered;
        let silent = service.silent_uses();
        let read = match THINGS[at] {
            Thing::Bucket(at) => {
                let view = service.bucket(bucket(at)).await;
                view.map(|view| view.settings.policy.clone())
            }
            Thing::User(at) => {
                let key = service.access_key(&format!("key-of-user-{at}")).await;
                match key {
                    Ok(Some(key)) => Ok(key.user.policy.clone()),
                    Ok(None) => Err(Error::NoSuchAccessKey),
                    Err(error) => Err(error),
                }
            }
        };
        let policy = match read {
            Ok(policy) => policy,
            Err(Error::Busy { .. } | Error::Unknown { .. }) => return,
            Err(error) => return self.violated(format!("{:?}: {error}", THINGS[at])),
        };
        self.0.reads.set(self.0.reads.get() + 1);
        let found = policy.map_or(0, |policy| policy.parse().expect("numbers only"));
        let begun = self.0.numbers.borrow()[at].begun;
        if found > begun || (found < least && service.silent_uses() == silent) {
            let thing = THINGS[at];
            self.violated(format!("{thing:?} is as of change {found}, behind change {least}"));
        }
    }
}

impl fmt::Debug for SettingsLoad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SettingsLoad({:?})", self.done())
    }
}
