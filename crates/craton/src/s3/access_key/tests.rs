//! Secrets of new access keys.

use clap::Parser;

use crate::args::{Cli, Command};
use crate::exit::Code;
use crate::s3::args::UserCommand;

use super::*;

const CREATE: [&str; 4] = ["craton", "user", "create", "u"];

fn parsed(more: &[&str]) -> Option<KeyArgs> {
    match Cli::try_parse_from(CREATE.iter().chain(more)).ok()?.command {
        Command::User { command: UserCommand::Create(args), .. } => Some(args.key),
        _ => None,
    }
}

#[test]
fn secret_of_a_key_is_read_from_a_file() {
    let dir = crate::output::test_dir("secret");
    let path = dir.join("secret");
    let read = |text: &str| {
        std::fs::write(&path, text).expect("it is written");
        let file = path.to_str().expect("text");
        let args = ["--access-key", "AKIA", "--secret-key-file", file];
        parsed(&args).expect("it is an option").secret()
    };
    for text in ["12345678/+", "12345678/+\n", "12345678/+\r\n"] {
        assert_eq!(read(text), Ok(Some("12345678/+".to_owned())), "{text:?}");
    }
    assert_eq!(read(&format!("{}\n", "x".repeat(256))), Ok(Some("x".repeat(256))));
    let long = "x".repeat(1000);
    for wrong in ["", "short\n", "1234567 8\n", "12345678\n12345678\n", &long] {
        assert!(read(wrong).is_err_and(|failure| failure.code == Code::Setup), "{wrong:?}");
    }
    std::fs::remove_dir_all(dir).expect("it goes");
}

#[test]
fn one_secret_is_given_for_a_key_that_is_named() {
    let random = parsed(&[]).expect("a random key");
    assert_eq!(random.secret(), Ok(None));
    let named = ["--access-key", "AKIA"];
    assert!(parsed(&named).is_none(), "a key without a secret");
    let both = ["--secret-key", "12345678", "--secret-key-file", "-"];
    assert!(parsed(&[&named[..], &both].concat()).is_none(), "two secrets");
    assert!(parsed(&both[2..]).is_none(), "a secret without a key");
    let key = parsed(&[&named[..], &both[..2]].concat()).expect("as before");
    assert_eq!(key.secret(), Ok(Some("12345678".to_owned())));
}
