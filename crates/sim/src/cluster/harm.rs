//! Faults of media that were injected, as causes for which a process may end.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use runtime::sim::HostId;

/// Time after the end of a fault in which a process may still end by it.
const SHOWN_WITHIN: Duration = Duration::from_secs(3);

/// State of the faults of one host's media.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Harm {
    /// Operations fail now.
    Now,
    /// Operations have failed up to this time.
    Until(Duration),
    /// What is stored is damaged or gone, until it is replaced.
    Lasting,
}

/// Faults of media of all hosts.
#[derive(Default)]
pub struct Harms(RefCell<BTreeMap<HostId, Harm>>);

impl Harms {
    /// Operations on a host's media fail from now on.
    pub fn begin(&self, host: HostId) {
        self.set(host, Harm::Now);
    }

    /// They fail no longer.
    pub fn end(&self, host: HostId, now: Duration) {
        self.set(host, Harm::Until(now));
    }

    /// What is stored on a host is damaged or gone.
    pub fn damage(&self, host: HostId) {
        self.set(host, Harm::Lasting);
    }

    /// A host's media are new ones.
    pub fn replace(&self, host: HostId) {
        self.0.borrow_mut().remove(&host);
    }

    /// Damage outlasts other faults.
    fn set(&self, host: HostId, harm: Harm) {
        let mut harms = self.0.borrow_mut();
        let known = harms.entry(host).or_insert(harm);
        if *known != Harm::Lasting {
            *known = harm;
        }
    }

    /// Whether what is stored on a host is damaged or gone.
    pub fn lasts(&self, host: HostId) -> bool {
        self.0.borrow().get(&host) == Some(&Harm::Lasting)
    }

    /// Whether a process that ends now on a host may do so by a fault of its media.
    pub fn explains(&self, host: HostId, now: Duration) -> bool {
        match self.0.borrow().get(&host) {
            None => false,
            Some(Harm::Now | Harm::Lasting) => true,
            Some(Harm::Until(end)) => now - *end < SHOWN_WITHIN,
        }
    }
}
