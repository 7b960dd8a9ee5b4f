//! [`BucketLoad`]: buckets that are made and removed while objects are put into them. A bucket that is
//! removed was empty and stays so: no put into it is acknowledged, before or behind that.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;

use object_index::Service;
use object_proto::{
    Bucket, BucketName, Conditions, Error, Etag, ObjectFacts, ObjectKey, Target, UserId,
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
        while !self.is_over() {
            let made = service.create_bucket(name.clone(), UserId::new("load")).await;
            let bucket = match made {
                Ok(bucket) => bucket,
                Err(Error::BucketExists { own: true }) => {
                    match service.bucket(name.clone()).await {
                        Ok(bucket) => bucket,
                        Err(_) => continue,
                    }
                }
                Err(_) => continue,
            };
            self.round(&service, bucket, &mut rng).await;
        }
    }

    fn below(&self, rng: &mut Rng, factor: u64) -> Duration {
        Duration::from_micros(rng.below(factor * self.0.pause.as_micros() as u64 + 1))
    }

    /// A bucket is removed while something is put into it.
    async fn round(&self, service: &Service, bucket: Bucket, rng: &mut Rng) {
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
        let Ok(put_outcome) = putting.await else { return };
        self.0.done.set(self.0.done.get() + 2);
        let what = format!(
            "bucket {} of {}: removed {removed:?}, put {put_outcome:?}",
            bucket.name, bucket.id
        );
        match (&removed, put_outcome) {
            (Ok(()), Outcome::Done) => {
                return self.violated(format!("{what}: an object is lost"));
            }
            (Err(Error::BucketNotEmpty), Outcome::Refused) => {
                return self.violated(format!("{what}: nothing is in it"));
            }
            (Err(Error::BucketNotEmpty), _) => self.0.sim.mark("object: a bucket was not empty"),
            _ => {}
        }
        service.env().sleep(pauses[2]).await;
        if removed.is_ok() {
            self.0.sim.mark("object: a bucket is removed");
            if put(service, target.clone()).await == Outcome::Done {
                return self.violated(format!("{what}: then something was put"));
            }
            if service.look(&target, None).await.is_ok() {
                return self.violated(format!("{what}: the object is there"));
            }
            return;
        }
        let found = service.look(&target, None).await;
        // The bucket may be gone by a removal whose outcome is not known.
        let may_be_gone = matches!(removed, Err(Error::Unknown { .. }));
        match (put_outcome, found) {
            (Outcome::Done, Err(error @ (Error::NoSuchKey | Error::NoSuchBucket))) => {
                return self.violated(format!("{what}: {error}"));
            }
            (Outcome::Refused, Ok(_)) => {
                return self.violated(format!("{what}: the object is there"));
            }
            (Outcome::Refused, Err(Error::NoSuchBucket)) if !may_be_gone => {
                return self.violated(format!("{what}: the bucket is gone"));
            }
            _ => {}
        }
        let _ = service.delete(target, UserId::new("load"), Conditions::default()).await;
    }

    /// Without faults: the buckets of its clients can be removed, and are.
    pub async fn settle(&self, service: &Service) -> Result<(), String> {
        for number in 0..self.0.clients.get() {
            let name = BucketName::new(&format!("removed-{number}")).expect("a name");
            let bucket = match service.bucket(name.clone()).await {
                Ok(bucket) => bucket,
                Err(Error::NoSuchBucket) => continue,
                Err(error) => return Err(format!("bucket {name}: {error}")),
            };
            for key in 0..3 {
                let key = ObjectKey::new(format!("key {key}")).expect("a key");
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

/// Puts a small object.
async fn put(service: &Service, target: Target) -> Outcome {
    let putting = async {
        let mut upload = service.put(target).await?;
        upload.write(b"something").await?;
        let facts = ObjectFacts {
            etag: Etag::new("1"),
            owner: UserId::new("load"),
            ..ObjectFacts::default()
        };
        upload.commit(facts, Conditions::default()).await
    };
    match putting.await {
        Ok(_) => Outcome::Done,
        Err(Error::Unknown { .. }) => Outcome::Unknown,
        Err(_) => Outcome::Refused,
    }
}

impl fmt::Debug for BucketLoad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BucketLoad({} clients)", self.0.clients.get())
    }
}
