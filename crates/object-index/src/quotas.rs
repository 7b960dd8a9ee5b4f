//! [`Quotas`]: how much buckets and users may hold, as the manager watches over it (`object-protocols.md`
//! 11.1).
//!
//! The manager asks the owners of ranges again and again what the buckets under a quota hold, and has
//! gateways ask again for a bucket whose room is another than before. What comes between two such
//! questions is not held back.

use std::cell::RefCell;
use std::collections::BTreeMap;

use object_proto::{
    Bucket, BucketId, BucketName, BucketUsage, KeptName, Quota, RangeId, Room, UserId,
};
use runtime::sync::Notify;

use crate::limits::USAGE_BUCKETS_MAX;
use crate::orders::Orders;

/// A bucket that is under a quota, its own or its owner's.
struct Bounded {
    name: BucketName,
    owner: UserId,
    quota: Quota,
    usage: BucketUsage,
}

/// Quotas, and what is used of them.
#[derive(Default)]
pub(crate) struct Quotas {
    users: RefCell<BTreeMap<UserId, Quota>>,
    buckets: RefCell<BTreeMap<BucketId, Bounded>>,
    /// Rooms as they were at the last look.
    shown: RefCell<BTreeMap<BucketId, (BucketName, Room)>>,
    /// A bucket comes under a quota.
    begun: Notify,
}

impl Quotas {
    /// A user's quota from now on. Its buckets come under it, or leave it, with [`Quotas::set_bucket`].
    pub(crate) fn set_user(&self, user: &UserId, quota: Quota) {
        match quota.is_none() {
            true => self.users.borrow_mut().remove(user),
            false => self.users.borrow_mut().insert(user.clone(), quota),
        };
    }

    /// A bucket's own quota from now on. The caller holds the bucket's name, or nothing else runs yet.
    pub(crate) fn set_bucket(&self, bucket: &Bucket, quota: Quota) {
        let is_bounded = !quota.is_none() || self.users.borrow().contains_key(&bucket.owner);
        let buckets = &mut *self.buckets.borrow_mut();
        if !is_bounded {
            buckets.remove(&bucket.id);
            return;
        }
        let usage = buckets.get(&bucket.id).map_or_else(Default::default, |known| known.usage);
        let (name, owner) = (bucket.name.clone(), bucket.owner.clone());
        buckets.insert(bucket.id, Bounded { name, owner, quota, usage });
        self.begun.notify_one();
    }

    /// A bucket is gone.
    pub(crate) fn forget(&self, bucket: BucketId) {
        self.buckets.borrow_mut().remove(&bucket);
    }

    /// What may still be put into a bucket, as far as is known.
    pub(crate) fn room(&self, bucket: BucketId) -> Room {
        let buckets = self.buckets.borrow();
        let Some(known) = buckets.get(&bucket) else { return Room::default() };
        let own = known.quota.room(known.usage);
        match self.users.borrow().get(&known.owner) {
            None => own,
            Some(quota) => {
                let all = buckets.values().filter(|other| other.owner == known.owner);
                let used = all.fold(BucketUsage::default(), |sum, next| sum.and(next.usage));
                own.and(quota.room(used))
            }
        }
    }

    /// Ends when a bucket is under a quota, or was when it was looked at last.
    pub(crate) async fn some(&self) {
        while self.buckets.borrow().is_empty() && self.shown.borrow().is_empty() {
            self.begun.notified().await;
        }
    }

    /// What may still be put into each bucket.
    fn rooms(&self) -> BTreeMap<BucketId, (BucketName, Room)> {
        let (buckets, users) = (self.buckets.borrow(), self.users.borrow());
        let mut used: BTreeMap<&UserId, BucketUsage> = BTreeMap::new();
        for known in buckets.values() {
            let sum = used.entry(&known.owner).or_default();
            *sum = sum.and(known.usage);
        }
        let room = |known: &Bounded| {
            let of_user = users.get(&known.owner).map(|quota| quota.room(used[&known.owner]));
            known.quota.room(known.usage).and(of_user.unwrap_or_default())
        };
        buckets.iter().map(|(id, known)| (*id, (known.name.clone(), room(known)))).collect()
    }

    /// Asks owners what the buckets hold, and returns those whose room is another than at the last look.
    /// What an owner does not answer stays as it was.
    pub(crate) async fn look(&self, orders: &Orders) -> Vec<KeptName> {
        let mut asks: BTreeMap<RangeId, Vec<BucketId>> = BTreeMap::new();
        let mut usages: BTreeMap<BucketId, BucketUsage> = BTreeMap::new();
        for &id in self.buckets.borrow().keys() {
            usages.insert(id, BucketUsage::default());
            for range in orders.map().of_bucket(id) {
                asks.entry(range).or_default().push(id);
            }
        }
        for (range, ids) in asks {
            for some in ids.chunks(USAGE_BUCKETS_MAX) {
                match orders.usage(range, some).await {
                    Ok(parts) => {
                        for (id, part) in some.iter().zip(parts) {
                            usages.entry(*id).and_modify(|sum| *sum = sum.and(part));
                        }
                    }
                    Err(_) => usages.retain(|id, _| !some.contains(id)),
                }
            }
        }
        for (id, usage) in usages {
            if let Some(known) = self.buckets.borrow_mut().get_mut(&id) {
                known.usage = usage;
            }
        }
        let rooms = self.rooms();
        let before = self.shown.replace(rooms.clone());
        let others = rooms.iter().filter(|(id, room)| before.get(id) != Some(*room));
        let gone = before.iter().filter(|(id, _)| !rooms.contains_key(id));
        others.chain(gone).map(|(_, (name, _))| KeptName::Bucket(name.clone())).collect()
    }
}
