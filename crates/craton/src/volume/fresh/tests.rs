//! Files that get their names when they are complete.

use super::*;

#[test]
fn a_part_with_an_owner_is_refused_to_a_second_export() {
    let dir = crate::output::test_dir("fresh");
    let path = dir.join("image");
    let open = || Fresh::instead_of(&path).map(|fresh| fresh.expect("it is a file"));
    let first = open().expect("it is free");
    fs::write(first.under(), "first").expect("it is written");
    let error = open().err().expect("it has an owner");
    assert!(error.message.contains("another export writes"), "{error}");
    assert_eq!(fs::read(first.under()).expect("it is there"), b"first");
    first.keep().expect("it takes its name");
    assert_eq!(fs::read(&path).expect("it is there"), b"first");
    let second = open().expect("it is free");
    fs::write(second.under(), "second").expect("it is written");
    let under = second.under().to_owned();
    drop(second);
    assert!(!under.exists());
    assert_eq!(fs::read(&path).expect("it is there"), b"first");
    fs::remove_dir_all(dir).expect("it goes");
}

/// A file of the proc file system: it takes a lock, and a sync of it fails.
#[test]
fn file_that_cannot_be_synced_does_not_take_its_name() {
    let dir = crate::output::test_dir("fresh-sync");
    let (path, under) = (dir.join("image"), dir.join("image.craton-part"));
    fs::write(&path, "old").expect("it is written");
    fs::write(&under, "new").expect("it is written");
    let lock = lock(Path::new("/proc/self/comm"), "held").expect("it is free");
    let fresh = Fresh { path: path.clone(), under, lock };
    assert!(fresh.keep().is_err(), "what is not durable was kept");
    assert_eq!(fs::read(&path).expect("it is there"), b"old");
    fs::remove_dir_all(dir).expect("it goes");
}

#[test]
fn part_that_another_program_has_replaced_does_not_take_the_name() {
    let dir = crate::output::test_dir("fresh-replaced");
    let path = dir.join("image");
    let fresh = Fresh::instead_of(&path).expect("it is free").expect("it is a file");
    let under = fresh.under().to_owned();
    fs::remove_file(&under).expect("it goes");
    fs::write(&under, "half of another's").expect("it is written");
    assert!(fresh.keep().is_err(), "another's file was kept");
    assert!(!path.exists() && under.exists());
    fs::remove_dir_all(dir).expect("it goes");
}
