use std::os::unix::fs::PermissionsExt;

use proptest::prelude::*;

use super::*;

const NONCE: [u8; NONCE_LEN] = [3; NONCE_LEN];

fn file() -> KeyFile {
    KeyFile::parse(&format!("1 old {}\n# note\n\n1 new {}\n", "0a".repeat(32), "b1".repeat(32)))
        .expect("a key file")
}

fn directory(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("craton-keyfile-{}-{name}", std::process::id()));
    let _ = fs::remove_dir_all(&path); // Left by a run that was cut off.
    fs::create_dir(&path).expect("a directory");
    path
}

#[test]
fn a_secret_comes_back_for_its_access_key_only() {
    let file = file();
    let wrapped = file.wrap("AKIA1", "secret", NONCE);
    assert_eq!(file.unwrap("AKIA1", &wrapped).as_deref(), Ok("secret"));
    assert_eq!(file.unwrap("AKIA2", &wrapped), Err(UnwrapError::Refused));
}

#[test]
fn the_last_key_wraps_and_all_unwrap() {
    let old = KeyFile::parse(&format!("1 old {}", "0a".repeat(32))).expect("a key file");
    let wrapped = old.wrap("id", "secret", NONCE);
    assert_eq!(file().unwrap("id", &wrapped).as_deref(), Ok("secret"));
    let wrapped = file().wrap("id", "secret", NONCE);
    let missing = UnwrapError::NoKey { name: "new".to_owned() };
    assert_eq!(old.unwrap("id", &wrapped), Err(missing));
    assert_eq!(file().ids().map(KeyId::to_string).collect::<Vec<_>>(), ["old", "new"]);
}

#[test]
fn a_key_of_the_same_name_with_other_bytes_is_refused() {
    let other = KeyFile::parse(&format!("1 new {}", "0c".repeat(32))).expect("a key file");
    let wrapped = file().wrap("id", "secret", NONCE);
    assert_eq!(other.unwrap("id", &wrapped), Err(UnwrapError::Refused));
}

#[test]
fn flaws_name_the_line() {
    let key = "0a".repeat(32);
    let number = |text: &str| match KeyFile::parse(text) {
        Err(Flaw::Line { number, .. }) => number,
        other => panic!("{text}: {other:?}"),
    };
    assert_eq!(number("1 a"), 1);
    assert_eq!(number(&format!("#\n3 a {key}")), 2);
    assert_eq!(number(&format!("1 A {key}")), 1);
    assert_eq!(number(&format!("1  {key}")), 1);
    assert_eq!(number(&format!("1 {} {key}", "a".repeat(33))), 1);
    assert_eq!(number(&format!("1 a {key}0")), 1);
    assert_eq!(number(&format!("1 a {}", key.to_uppercase())), 1);
    assert_eq!(number(&format!("1 a {key} ")), 1);
    assert_eq!(number(&format!("1 a {key}\n1 a {key}")), 2);
    assert_eq!(KeyFile::parse("#\n").err(), Some(Flaw::Empty));
}

#[test]
fn a_file_is_made_once_and_read_back() {
    let directory = directory("made");
    let path = directory.join("s3-keys");
    let file = KeyFile::create(&path, [7; 32]).expect("made");
    let wrapped = file.wrap("id", "secret", NONCE);
    assert_eq!(fs::metadata(&path).expect("there").mode() & 0o777, 0o600);
    let again = KeyFile::load(&path).expect("read");
    assert_eq!(again.unwrap("id", &wrapped).as_deref(), Ok("secret"));
    let error = KeyFile::create(&path, [8; 32]).expect_err("never replaced").to_string();
    assert!(error.contains("never replaced"), "{error}");
    assert!(format!("{again:?}").contains("k1"));
    assert!(!format!("{again:?}").contains("0707"));
    let _ = fs::remove_dir_all(&directory);
}

#[test]
fn a_file_that_others_can_read_is_refused() {
    let directory = directory("open");
    let path = directory.join("s3-keys");
    KeyFile::create(&path, [7; 32]).expect("made");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("set");
    let error = KeyFile::load(&path).expect_err("open").to_string();
    assert!(error.contains("mode 640") && error.contains("chmod 600"), "{error}");
    let error = KeyFile::load(&directory.join("none")).expect_err("missing").to_string();
    assert!(error.contains("restore it from a backup"), "{error}");
    let _ = fs::remove_dir_all(&directory);
}

#[test]
fn a_file_that_is_too_long_or_no_text_is_refused() {
    let directory = directory("long");
    for (name, bytes) in [("long", vec![b'#'; KEY_FILE_MAX as usize + 1]), ("bytes", vec![0xff])] {
        let path = directory.join(name);
        fs::write(&path, bytes).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("set");
        let error = KeyFile::load(&path).expect_err("refused");
        assert!(matches!(error, KeyFileError::Flawed { flaw: Flaw::NoText, .. }), "{error}");
    }
    let _ = fs::remove_dir_all(&directory);
}

proptest! {
    #[test]
    fn any_secret_comes_back(id in ".{0,40}", secret in ".{0,80}", nonce in any::<[u8; 12]>()) {
        let file = file();
        let wrapped = file.wrap(&id, &secret, nonce);
        prop_assert_eq!(file.unwrap(&id, &wrapped), Ok(secret));
    }

    #[test]
    fn a_changed_bit_is_found(bit in 0usize..8, at in any::<proptest::sample::Index>()) {
        let file = file();
        let mut wrapped = file.wrap("id", "a secret", NONCE);
        let at = at.index(wrapped.len());
        wrapped[at] ^= 1 << bit;
        prop_assert!(file.unwrap("id", &wrapped).is_err());
    }

    #[test]
    fn any_bytes_are_refused_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
        prop_assert!(file().unwrap("id", &bytes).is_err());
        fuzz_key_file(&bytes);
    }

    #[test]
    fn any_text_is_decided_without_panic(text in "(1 [a-c]{0,3} [0-9a-g]{60,66}\n?|#|\n| ){0,4}") {
        fuzz_key_file(text.as_bytes());
    }
}
