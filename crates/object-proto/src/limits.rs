//! Bounds of the object service that its processes share, with reason and arithmetic.

/// Bytes of a key at most, as in S3.
pub const KEY_MAX: usize = 1024;
/// Bytes of an object that is put at once at most, as in S3: 5 GiB.
pub const PUT_MAX: u64 = 5 << 30;
/// Bytes of users' metadata, names and values, at most, as in S3.
pub const USER_METADATA_MAX: usize = 2 << 10;
/// Bytes of all metadata of an object at most: users', and a few headers of up to 1 KiB.
pub const METADATA_MAX: usize = 8 << 10;
/// Entries of a page of a listing at most, as in S3.
pub const LIST_MAX: u32 = 1000;
/// Buckets of a user at most: twice of S3's default, which tools expect to be listed in one page.
pub const BUCKETS_PER_USER_MAX: usize = 1000;
/// Users at most: all their rows are read in one go.
pub const USERS_MAX: usize = 10_000;
/// Access keys of a user at most.
pub const KEYS_PER_USER_MAX: usize = 100;
/// Bytes of a policy at most, as in S3.
pub const POLICY_MAX: usize = 20 << 10;
/// Bytes of a bucket's settings in its row at most: a policy, rules for scripts of other sites (64 KiB in S3),
/// 50 tags, 100 grants and rules of lifecycle fit.
pub const SETTINGS_MAX: usize = 240 << 10;
/// Of these, bytes of rules of lifecycle at most: 80 for each of 1,000 rules.
pub const LIFECYCLE_MAX: usize = 80 << 10;
/// Permissions of an ACL at most, as in S3.
pub const GRANTS_MAX: usize = 100;
/// Bytes of a body that are in its row (`object-protocols.md` 2.4).
pub const INLINE_MAX: usize = 512;
/// Bytes of a body that go with the change to the owner, into its log (`object-protocols.md` 5.2).
pub const SMALL_MAX: usize = 128 << 10;
/// Bytes of one body that its pieces hold: one append of the core with the piece's head.
pub const PIECE_BYTES: usize = 1 << 20;
/// Parts of an upload at most, as in S3: also the highest number of a part.
pub const PARTS_MAX: u16 = 10_000;
/// Bytes of a part at least, but for the last one, as in S3.
pub const PART_MIN: u64 = 5 << 20;
/// Bytes of an object at most, as in S3 for 10,000 parts of 5 GiB: 48.8 TiB.
pub const OBJECT_MAX: u64 = PARTS_MAX as u64 * PUT_MAX;

const _: () = assert!(METADATA_MAX > USER_METADATA_MAX);
