//! Clients of the scenarios of objects: a load of each kind.

use std::collections::BTreeSet;
use std::time::Duration;

use object_index::Service;
use object_proto::{Bucket, BucketId, LifecycleDay};
use object_testing::days::DaysLoad;
use object_testing::load::{KEYS, Load, Plan as Keys};
use object_testing::settings::SettingsLoad;
use object_testing::versioned::VersionedLoad;
use runtime::Rng;
use runtime::sim::Sim;

/// Length of a day of lifecycle: some end within a run.
pub(super) const DAY: LifecycleDay = LifecycleDay::from_us(3_000_000);

/// Files stay in the trash for so long.
pub(super) const TRASH: Duration = Duration::from_secs(3);

/// What clients do.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    All,
    Races,
    Versions,
    Keys,
    Days,
    /// As all, of bodies in files.
    Collect,
    /// The same, slowly: sessions run out.
    Gateways,
}

/// The clients of a run.
#[derive(Clone)]
pub(super) enum Clients {
    Plain(Load),
    Versioned(VersionedLoad),
    Settings(SettingsLoad),
    Days(DaysLoad),
}

impl Clients {
    /// Clients of a kind; of versions, with locks where a right wall clock is given (microseconds since 1970), which
    /// days need.
    pub(super) fn new(sim: &Sim, bucket: Bucket, kind: Kind, clock_us: Option<u64>) -> Clients {
        let pause = Duration::from_millis(if kind == Kind::Gateways { 500 } else { 40 });
        let (keys, races) = match kind {
            Kind::All | Kind::Collect | Kind::Gateways => (KEYS.len(), false),
            Kind::Races => (2, true),
            Kind::Versions => {
                let load = VersionedLoad::new(sim, bucket, 4, pause);
                return Clients::Versioned(match clock_us {
                    Some(now_us) => load.with_locks(now_us),
                    None => load,
                });
            }
            Kind::Keys => return Clients::Settings(SettingsLoad::new(sim, pause / 4)),
            Kind::Days => {
                let now_us = clock_us.expect("a right clock");
                return Clients::Days(DaysLoad::new(sim, DAY, now_us));
            }
        };
        let trash = (kind == Kind::Collect).then_some(TRASH);
        Clients::Plain(Load::new(sim, bucket.id, Keys { keys, pause, races, trash }))
    }

    pub(super) async fn client(self, service: Service, rng: Rng) {
        match self {
            Clients::Plain(load) => load.client(service, rng).await,
            Clients::Versioned(load) => load.client(service, rng).await,
            Clients::Settings(load) => load.client(service, rng).await,
            Clients::Days(load) => load.client(service, rng).await,
        }
    }

    pub(super) fn violation(&self) -> Option<String> {
        match self {
            Clients::Plain(load) => load.violation(),
            Clients::Versioned(load) => load.violation(),
            Clients::Settings(load) => load.violation(),
            Clients::Days(load) => load.violation(),
        }
    }

    pub(super) fn stop(&self) {
        match self {
            Clients::Plain(load) => load.stop(),
            Clients::Versioned(load) => load.stop(),
            Clients::Settings(load) => load.stop(),
            Clients::Days(load) => load.stop(),
        }
    }

    pub(super) fn bucket(&self) -> BucketId {
        match self {
            Clients::Plain(load) => load.bucket(),
            Clients::Versioned(load) => load.bucket(),
            // No object is put, or none that has a file or is in a log.
            Clients::Settings(_) | Clients::Days(_) => BucketId::new(0),
        }
    }

    pub(super) fn done(&self) -> u64 {
        match self {
            Clients::Plain(load) => load.done(),
            Clients::Versioned(load) => load.done(),
            Clients::Settings(load) => load.done().0,
            Clients::Days(load) => load.done(),
        }
    }

    pub(super) fn check(&self) -> Result<(), String> {
        match self {
            Clients::Plain(load) => load.check(),
            Clients::Versioned(load) => load.check(),
            Clients::Settings(load) => load.violation().map_or(Ok(()), Err),
            Clients::Days(load) => load.violation().map_or(Ok(()), Err),
        }
    }

    pub(super) async fn settle(&self, service: &Service) -> Result<(), String> {
        match self {
            Clients::Plain(load) => load.settle(service).await.map(drop),
            Clients::Versioned(load) => load.settle(service).await,
            Clients::Settings(load) => load.settle(service).await,
            Clients::Days(load) => load.settle(service).await,
        }
    }

    /// Reads all objects, each within a time.
    pub(super) async fn read_back(
        &self,
        service: &Service,
        within: Duration,
    ) -> Result<(), String> {
        match self {
            Clients::Plain(load) => load.read_back(service, within).await,
            Clients::Versioned(_) | Clients::Settings(_) | Clients::Days(_) => Ok(()),
        }
    }

    /// Behind the end of all retentions each locked version is removed, once its hold is taken off.
    pub(super) async fn unlock(&self, service: &Service) -> Result<(), String> {
        match self {
            Clients::Versioned(load) => load.unlock(service).await,
            Clients::Plain(_) | Clients::Settings(_) | Clients::Days(_) => Ok(()),
        }
    }

    /// Makes what the clients need besides the bucket.
    pub(super) async fn prepare(&self, service: &Service) {
        match self {
            Clients::Settings(load) => load.prepare(service).await,
            Clients::Days(load) => load.prepare(service).await,
            Clients::Plain(_) | Clients::Versioned(_) => {}
        }
    }

    pub(super) async fn files(
        &self,
        service: &Service,
    ) -> Result<(BTreeSet<String>, BTreeSet<String>), String> {
        match self {
            Clients::Plain(load) => load.files(service).await,
            Clients::Versioned(load) => load.files(service).await,
            Clients::Settings(_) | Clients::Days(_) => Ok((BTreeSet::new(), BTreeSet::new())),
        }
    }
}
