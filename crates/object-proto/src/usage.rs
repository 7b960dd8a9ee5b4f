//! [`BucketUsage`]: what a bucket holds, [`Quota`]: what it may hold (`object-protocols.md` 11.1).

/// What a bucket holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BucketUsage {
    /// Objects, older versions among them.
    pub objects: u64,
    /// Of these, older versions.
    pub older: u64,
    /// Bytes of objects.
    pub bytes: u64,
    /// Delete markers.
    pub markers: u64,
    /// Multipart uploads that are under way.
    pub uploads: u64,
    /// Bytes of their parts.
    pub upload_bytes: u64,
}

impl BucketUsage {
    /// True when no object, version or marker is there. Uploads end with their bucket.
    pub fn is_empty(self) -> bool {
        self.objects == 0 && self.markers == 0
    }

    /// This and another bucket's.
    pub fn and(self, other: BucketUsage) -> BucketUsage {
        BucketUsage {
            objects: self.objects.saturating_add(other.objects),
            older: self.older.saturating_add(other.older),
            bytes: self.bytes.saturating_add(other.bytes),
            markers: self.markers.saturating_add(other.markers),
            uploads: self.uploads.saturating_add(other.uploads),
            upload_bytes: self.upload_bytes.saturating_add(other.upload_bytes),
        }
    }
}

/// Bytes of a range's files of bodies, heads of pieces included; together what the core stores of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StoredBytes {
    /// Of bodies that objects and parts have.
    pub live: u64,
    /// Others, in files that hold such bodies too, or are about to be in the trash.
    pub garbage: u64,
    /// In the trash.
    pub trash: u64,
    /// Of `live`, in files that are being written: what these have beside that is not known.
    pub written: u64,
}

impl StoredBytes {
    /// This and another range's.
    pub fn and(self, other: StoredBytes) -> StoredBytes {
        StoredBytes {
            live: self.live.saturating_add(other.live),
            garbage: self.garbage.saturating_add(other.garbage),
            trash: self.trash.saturating_add(other.trash),
            written: self.written.saturating_add(other.written),
        }
    }
}

/// How much a bucket, or all buckets of a user together, may hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Quota {
    /// Objects at most, older versions among them; any number for none.
    pub objects: Option<u64>,
    /// Bytes of objects and of parts of uploads at most; any number for none.
    pub bytes: Option<u64>,
}

impl Quota {
    /// True when it bounds nothing.
    pub fn is_none(self) -> bool {
        self == Quota::default()
    }

    /// What may still be put, when so much is there.
    pub fn room(self, usage: BucketUsage) -> Room {
        let bytes = usage.bytes.saturating_add(usage.upload_bytes);
        Room {
            objects: self.objects.map(|most| most.saturating_sub(usage.objects)),
            bytes: self.bytes.map(|most| most.saturating_sub(bytes)),
        }
    }
}

/// What may still be put into a bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Room {
    /// Objects; any number for none.
    pub objects: Option<u64>,
    /// Bytes; any number for none.
    pub bytes: Option<u64>,
}

impl Room {
    /// What both leave.
    pub fn and(self, other: Room) -> Room {
        let least = |one: Option<u64>, other: Option<u64>| one.into_iter().chain(other).min();
        Room { objects: least(self.objects, other.objects), bytes: least(self.bytes, other.bytes) }
    }

    /// True when there is room for so many objects and bytes.
    pub fn holds(self, objects: u64, bytes: u64) -> bool {
        self.objects.is_none_or(|room| objects <= room)
            && self.bytes.is_none_or(|room| bytes <= room)
    }
}

/// What a check of a range's files of bodies has found so far.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FilesChecked {
    /// Its number.
    pub run: u64,
    /// It is over.
    pub done: bool,
    /// Files that were looked at.
    pub files: u64,
    /// Of them, those whose count of live bytes was wrong, and is right now.
    pub corrected: u64,
    /// Of these, those in which something lives and that were in the trash.
    pub restored: u64,
    /// Files that nothing could name, which are gone.
    pub removed: u64,
    /// Why it ended before all files were looked at.
    pub failed: Option<String>,
}

impl FilesChecked {
    /// Both together.
    pub fn and(self, other: FilesChecked) -> FilesChecked {
        FilesChecked {
            run: other.run,
            done: self.done && other.done,
            files: self.files + other.files,
            corrected: self.corrected + other.corrected,
            restored: self.restored + other.restored,
            removed: self.removed + other.removed,
            failed: self.failed.or(other.failed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_leaves_what_is_not_used() {
        let usage = BucketUsage { objects: 3, bytes: 60, upload_bytes: 30, ..Default::default() };
        let room = Quota { objects: Some(4), bytes: Some(100) }.room(usage);
        assert_eq!(room, Room { objects: Some(1), bytes: Some(10) });
        assert!(room.holds(1, 10) && !room.holds(2, 0) && !room.holds(0, 11));
        // One that was lowered since leaves nothing.
        assert_eq!(Quota { objects: Some(2), bytes: None }.room(usage).objects, Some(0));
        assert!(Quota::default().room(usage).holds(u64::MAX, u64::MAX));
        let both = room.and(Room { objects: None, bytes: Some(7) });
        assert_eq!(both, Room { objects: Some(1), bytes: Some(7) });
    }
}
