//! `craton bucket quota`, and what buckets hold.

use object_index::Service;
use object_proto::{BucketName, BucketUsage, Quota, Setting, StoredBytes, UserChange, UserId};
use serde::Serialize;

use super::failed;
use crate::exit::Done;
use crate::output::{print_json, print_line};

/// A quota, as JSON; absent where there is none.
#[derive(Serialize)]
pub struct ShownQuota {
    objects: Option<u64>,
    bytes: Option<u64>,
}

impl ShownQuota {
    /// None for one that bounds nothing.
    pub fn of(quota: Quota) -> Option<ShownQuota> {
        let Quota { objects, bytes } = quota;
        (!quota.is_none()).then_some(ShownQuota { objects, bytes })
    }
}

/// What a bucket holds, as JSON.
#[derive(Serialize)]
pub struct ShownUsage {
    objects: u64,
    versions: u64,
    delete_markers: u64,
    bytes: u64,
    uploads: u64,
    upload_bytes: u64,
}

impl ShownUsage {
    /// Objects are those that are shown, versions the older ones.
    pub fn of(usage: BucketUsage) -> ShownUsage {
        ShownUsage {
            objects: usage.objects - usage.older.min(usage.objects),
            versions: usage.older,
            delete_markers: usage.markers,
            bytes: usage.bytes,
            uploads: usage.uploads,
            upload_bytes: usage.upload_bytes,
        }
    }

    /// Prints it.
    pub fn print(&self) -> Done {
        for (what, number) in [
            ("objects", self.objects),
            ("older versions", self.versions),
            ("delete markers", self.delete_markers),
            ("bytes, of versions too", self.bytes),
            ("uploads under way", self.uploads),
            ("bytes of their parts", self.upload_bytes),
        ] {
            print_line(&format!("{what}: {number}"))?;
        }
        Ok(())
    }
}

/// Files of bodies that a bucket shares with others, as JSON.
#[derive(Serialize)]
pub struct ShownFiles {
    stored_bytes: u64,
    garbage_bytes: u64,
    trash_bytes: u64,
}

impl ShownFiles {
    /// Of the range that has the bucket's keys.
    pub fn of(stored: StoredBytes) -> ShownFiles {
        ShownFiles {
            stored_bytes: stored.live,
            garbage_bytes: stored.garbage,
            trash_bytes: stored.trash,
        }
    }

    /// Prints it.
    pub fn print(&self) -> Done {
        for (what, number) in [
            ("its range's files: bytes of objects", self.stored_bytes),
            ("its range's files: garbage", self.garbage_bytes),
            ("its range's files: in the trash", self.trash_bytes),
        ] {
            print_line(&format!("{what}: {number}"))?;
        }
        Ok(())
    }
}

/// A quota for readers.
pub fn text(quota: Quota) -> String {
    match (quota.objects, quota.bytes) {
        (None, None) => "none".to_owned(),
        (Some(objects), None) => format!("{objects} objects"),
        (None, Some(bytes)) => format!("{bytes} bytes"),
        (Some(objects), Some(bytes)) => format!("{objects} objects and {bytes} bytes"),
    }
}

/// What becomes of a quota.
#[derive(Clone, Copy, Debug)]
pub struct QuotaChange {
    /// Bytes at most from now on; as before for none.
    pub bytes: Option<u64>,
    /// Objects at most from now on; as before for none.
    pub objects: Option<u64>,
    /// It bounds nothing from now on.
    pub clear: bool,
}

// A change carries what is named alone: of two operators who change different bounds at the same time, neither
// undoes what the other has changed.
impl QuotaChange {
    /// As a change of a bucket; none when nothing is changed.
    fn of_bucket(self) -> Option<Setting> {
        let QuotaChange { bytes, objects, clear } = self;
        match (clear, objects, bytes) {
            (true, ..) => Some(Setting::Quota(Quota::default())),
            (false, None, None) => None,
            (false, objects, None) => Some(Setting::QuotaObjects(objects)),
            (false, None, bytes) => Some(Setting::QuotaBytes(bytes)),
            (false, objects, bytes) => Some(Setting::Quota(Quota { objects, bytes })),
        }
    }

    /// As a change of a user, likewise.
    fn of_user(self, user: UserId) -> Option<UserChange> {
        let QuotaChange { bytes, objects, clear } = self;
        match (clear, objects, bytes) {
            (true, ..) => Some(UserChange::SetQuota { user, quota: Quota::default() }),
            (false, None, None) => None,
            (false, objects, None) => Some(UserChange::SetQuotaObjects { user, objects }),
            (false, None, bytes) => Some(UserChange::SetQuotaBytes { user, bytes }),
            (false, objects, bytes) => {
                Some(UserChange::SetQuota { user, quota: Quota { objects, bytes } })
            }
        }
    }
}

fn show(quota: Quota, json: bool) -> Done {
    match json {
        true => print_json(&ShownQuota { objects: quota.objects, bytes: quota.bytes }),
        false => print_line(&format!("quota: {}", text(quota))),
    }
}

/// Shows, sets or clears the quota of a bucket.
pub async fn of_bucket(
    service: &Service,
    name: &BucketName,
    change: QuotaChange,
    json: bool,
) -> Done {
    let refused = |error| failed(&format!("bucket {name}"), error);
    if let Some(setting) = change.of_bucket() {
        service.set_bucket(name.clone(), setting).await.map_err(refused)?;
    }
    // Behind the change: what is not named is as it is on record.
    let view = service.bucket(name.clone()).await.map_err(refused)?;
    show(view.settings.quota, json)
}

/// Shows, sets or clears the quota of all buckets of a user together.
pub async fn of_user(service: &Service, name: &str, change: QuotaChange, json: bool) -> Done {
    let refused = |error| failed(&format!("user {name}"), error);
    let user = service.user(name).await.map_err(refused)?;
    let Some(change) = change.of_user(user.id) else { return show(user.quota, json) };
    service.change_user(change).await.map_err(refused)?;
    show(service.user(name).await.map_err(refused)?.quota, json)
}

#[cfg(test)]
mod tests;
