//! [`BucketLoad`]: buckets that are made and removed while objects are put into them. A bucket that is
//! removed was empty and stays so: no put into it is acknowledged, before or behind that.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;

use object_index::Service;
use object_proto::{
    Bucket, BucketId, BucketName, BucketSettings, Conditions, Error, Etag, ObjectFacts, ObjectKey,
    Target, UserId,
};
use runtime::sim::Sim;
use runtime::{Class, Duration, Rng};

struct LoadInner {
    sim: Sim,
    pause: Duration,
    clients: Cell<u32>,
    stopped: Cell<bool>,
    done: Cell<u64>,
    violation: RefCell<Option<String>>,
}

/// A load on buckets, of which each client has its own. Clones share it.
#[derive(Clone)]
pub struct BucketLoad(Rc<LoadInner>);

/// What is known of an outcome.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outcome {
    Done,
    Refused,
    Unknown,
}

impl BucketLoad {
    /// A load whose clients wait about `pause` between two calls.
    pub fn new(sim: &Sim, pause: Duration) -> BucketLoad {
        BucketLoad(Rc::new(LoadInner {
            sim: sim.clone(),
            pause,
            clients: Cell::new(0),
            stopped: Cell::new(false),
            done: Cell::new(0),
            violation: RefCell::default(),
        }))
    }

    /// Ends its clients.
    pub fn stop(&self) {
        self.0.stopped.set(true);
    }

    /// The first broken rule.
    pub fn violation(&self) -> Option<String> {
        self.0.violation.borrow().clone()
    }

    /// Removals and puts that were answered.
    pub fn done(&self) -> u64 {
        self.0.done.get()
    }

    fn violated(&self, what: String) {
        self.0.violation.borrow_mut().get_or_insert(what);
    }

    fn is_over(&self) -> bool {
        self.0.stopped.get() || self.violation().is_some()
    }

    /// A client, until the load is stopped.
    pub async fn client(self, service: Service, mut rng: Rng) {
        let number = self.0.clients.get();
        self.0.clients.set(number + 1);
        let name = BucketName::new(&format!("removed-{number}")).expect("a name");
        // Something may be in the bucket from before.
        let mut is_dirty = false;
        while !self.is_over() {
            let early = {
                let (env, service, name) = (service.env(), service.clone(), name.clone());
                let load = self.clone();
                let early = async move { load.put_at_once(&service, name).await };
                env.spawn(Class::Foreground, "put at once", early)
            };
            let settings = BucketSettings::default();
            let made = service.create_bucket(name.clone(), UserId::new("load"), settings).await;
            match early.await {
                Ok(Early::Refused(bucket)) => {
                    return self.violated(format!("{bucket} is there, and takes no put"));
                }
                Ok(Early::Nothing) => {}
                Ok(Early::MayBeLeft) | Err(_) => is_dirty = true,
            }
            let bucket = match made {
                Ok(bucket) => bucket,
                Err(Error::BucketExists { own: true }) => {
                    match service.bucket(name.clone()).await {
                        Ok(view) => view.bucket.clone(),
                        Err(_) => continue,
                    }
                }
                Err(_) => continue,
            };
            is_dirty = self.round(&service, bucket, is_dirty, &mut rng).await;
        }
    }

    fn below(&self, rng: &mut Rng, factor: u64) -> Duration {
        Duration::from_micros(rng.below(factor * self.0.pause.as_micros() as u64 + 1))
    }

    /// A bucket is removed while something is put into it. Returns whether something may be in it then.
    async fn round(
        &self,
        service: &Service,
        bucket: Bucket,
        is_dirty: bool,
        rng: &mut Rng,
    ) -> bool {
        let key = ObjectKey::new(format!("key {}", rng.below(3))).expect("a key");
        let target = Target { bucket: bucket.id, key };
        let pauses = [self.below(rng, 6), self.below(rng, 6), self.below(rng, 2)];
        let putting = {
            let (service, target) = (service.clone(), target.clone());
            service.env().clone().spawn(Class::Foreground, "put into a bucket", async move {
                service.env().sleep(pauses[0]).await;
                put(&service, target).await
            })
        };
        service.env().sleep(pauses[1]).await;
        let removed = service.remove_bucket(bucket.name.clone()).await;
        let Ok(put_outcome) = putting.await else { return true };
        self.0.done.set(self.0.done.get() + 2);
        let what = format!(
            "bucket {} of {}: removed {removed:?}, put {put_outcome:?}",
            bucket.name, bucket.id
        );
        match (&removed, put_outcome) {
            (Ok(()), Outcome::Done) => {
                self.violated(format!("{what}: an object is lost"));
                return true;
            }
            (Err(Error::BucketNotEmpty), Outcome::Refused) if !is_dirty => {
                self.violated(format!("{what}: nothing is in it"));
                return true;
            }
            (Err(Error::BucketNotEmpty), _) => self.0.sim.mark("object: a bucket was not empty"),
            _ => {}
        }
        service.env().sleep(pauses[2]).await;
        if removed.is_ok() {
            self.0.sim.mark("object: a bucket is removed");
            if put(service, target.clone()).await == Outcome::Done {
                self.violated(format!("{what}: then something was put"));
                return true;
            }
            if service.look(&target, None).await.is_ok() {
                self.violated(format!("{what}: the object is there"));
                return true;
            }
            return false;
        }
        let found = service.look(&target, None).await;
        // The bucket may be gone by a removal whose outcome is not known.
        let may_be_gone = matches!(removed, Err(Error::Unknown { .. }));
        match (put_outcome, found) {
            (Outcome::Done, Err(error @ (Error::NoSuchKey | Error::NoSuchBucket))) => {
                self.violated(format!("{what}: {error}"));
                return true;
            }
            (Outcome::Refused, Ok(_)) if !is_dirty => {
                self.violated(format!("{what}: the object is there"));
                return true;
            }
            (Outcome::Refused, Err(Error::NoSuchBucket)) if !may_be_gone => {
                self.violated(format!("{what}: the bucket is gone"));
                return true;
            }
            _ => {}
        }
        let gone = service.delete(target, UserId::new("load"), Conditions::default()).await;
        is_dirty || gone.is_err()
    }

    /// Looks for a bucket that is being made, puts an object into it as soon as it is there, and removes that
    /// again.
    async fn put_at_once(&self, service: &Service, name: BucketName) -> Early {
        for _ in 0..200 {
            // Without a manager each look takes its time.
            if self.is_over() {
                break;
            }
            let Ok(view) = service.bucket(name.clone()).await else {
                service.env().sleep(Duration::from_micros(200)).await;
                continue;
            };
            let bucket = &view.bucket;
            let target = Target { bucket: bucket.id, key: ObjectKey::new("early").expect("a key") };
            match commit(service, target.clone()).await {
                Err(Error::NoSuchBucket) => return Early::Refused(bucket.id),
                Err(Error::Unknown { .. }) => return Early::MayBeLeft,
                Ok(()) | Err(_) => {}
            }
            let gone = service.delete(target, UserId::new("load"), Conditions::default()).await;
            return if gone.is_ok() { Early::Nothing } else { Early::MayBeLeft };
        }
        Early::Nothing
    }

    /// Without faults: the buckets of its clients can be removed, and are.
    pub async fn settle(&self, service: &Service) -> Result<(), String> {
        for number in 0..self.0.clients.get() {
            let name = BucketName::new(&format!("removed-{number}")).expect("a name");
            let bucket = match service.bucket(name.clone()).await {
                Ok(view) => view.bucket.clone(),
                Err(Error::NoSuchBucket) => continue,
                Err(error) => return Err(format!("bucket {name}: {error}")),
            };
            let keys = (0..3).map(|key| format!("key {key}")).chain(["early".to_owned()]);
            for key in keys {
                let key = ObjectKey::new(key).expect("a key");
                let target = Target { bucket: bucket.id, key };
                let gone = service.delete(target, UserId::new("load"), Conditions::default()).await;
                gone.map_err(|error| format!("an object of bucket {name}: {error}"))?;
            }
            let gone = service.remove_bucket(name.clone()).await;
            gone.map_err(|error| format!("bucket {name} is not removed: {error}"))?;
        }
        Ok(())
    }
}

/// What became of a put into a bucket as soon as it was there.
enum Early {
    /// It was there and took none, though no client removes it at that time.
    Refused(BucketId),
    /// Nothing is left of it.
    Nothing,
    MayBeLeft,
}

/// Puts a small object.
async fn put(service: &Service, target: Target) -> Outcome {
    match commit(service, target).await {
        Ok(()) => Outcome::Done,
        Err(Error::Unknown { .. }) => Outcome::Unknown,
        Err(_) => Outcome::Refused,
    }
}

async fn commit(service: &Service, target: Target) -> Result<(), Error> {
    let mut upload = service.put(target).await?;
    upload.write(b"something").await?;
    let owner = UserId::new("load");
    let facts = ObjectFacts { etag: Etag::new("1"), owner, ..ObjectFacts::default() };
    upload.commit(facts, Conditions::default()).await.map(drop)
}

impl fmt::Debug for BucketLoad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BucketLoad({} clients)", self.0.clients.get())
    }
}
