//! Buckets, as an operator sees them.

use object_policy::{Policy, PolicyKind};
use wire::control;

use super::*;

#[test]
fn a_bucket_that_all_may_read_has_a_policy_of_s3() {
    let name = BucketName::new("abc").expect("a name");
    let policy = Policy::parse(&public_read(&name), PolicyKind::Bucket { name: "abc" });
    assert!(policy.expect("it is one").is_public());
}

/// Clients choose keys: what is printed is pasted into a shell, and shown by a terminal.
#[test]
fn command_for_a_locked_key_has_the_key_as_one_word() {
    let name = BucketName::new("abc").expect("a name");
    let lock = ObjectLock { hold: Some(true), ..ObjectLock::default() };
    let said = |key: &str| {
        let key = ObjectKey::new(key).expect("a key");
        locked(&name, &key, VersionId::Null, lock)
    };
    let plain = said("a/b c");
    assert!(plain.contains("--key 'a/b c' --version-id null"), "{plain}");
    let quoted = said("x'; touch /tmp/y; '");
    assert!(quoted.contains(r"--key 'x'\''; touch /tmp/y; '\''' --version-id"), "{quoted}");
    let control = said("x\u{1b}[2J\ny");
    assert!(control.contains(r"--key $'x\x1b[2J\x0ay' --version-id"), "{control}");
    assert!(!control.contains(char::is_control), "{control}");
}

/// Both changes were made from the same state, and neither knows of the other.
#[test]
fn durability_and_compression_that_are_changed_at_once_both_survive() {
    let coded = control::Policy::ec(2, 1);
    let durability = storage_setting(Some(Durability(Some(coded))), None);
    let compression = storage_setting(None, Some(Some(Compression::LZ4)));
    let behind = StorageRule { durability: Some(coded), compression: Some(Compression::LZ4) };
    for changes in [[&durability, &compression], [&compression, &durability]] {
        let mut settings = BucketSettings::default();
        changes.into_iter().for_each(|change| settings.set(change.clone()));
        assert_eq!(settings.storage, behind, "{changes:?}");
    }
    let both = storage_setting(Some(Durability(Some(coded))), Some(Some(Compression::LZ4)));
    assert_eq!(both, Setting::Storage(behind));
    let mut settings = BucketSettings { storage: behind, ..BucketSettings::default() };
    settings.set(storage_setting(None, Some(None)));
    assert_eq!(settings.storage, StorageRule { compression: None, ..behind });
    settings.set(storage_setting(Some(Durability(None)), None));
    assert_eq!(settings.storage, StorageRule::default());
}
