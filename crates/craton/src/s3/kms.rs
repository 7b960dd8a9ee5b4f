//! `craton kms`: the keys of the key file, which wrap secrets of access keys and keys of objects.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use object_gateway::{KeyFile, KeyId, create_key, random_key, rotate_key};
use serde::Serialize;

use super::args::KmsCommand;
use super::wrapping_path;
use crate::connection::Connection;
use crate::exit::{Done, Failure, io};
use crate::output::{print_json, print_line, print_table, table};

/// A key, as JSON.
#[derive(Serialize, PartialEq, Eq, Debug)]
struct Shown {
    key: String,
    /// 0 for a key of the service, which has none.
    versions: usize,
    /// What it wraps from now on.
    wraps: &'static str,
}

/// Runs `craton kms`.
pub fn run(connection: &Connection, command: KmsCommand) -> Done {
    match command {
        KmsCommand::Create { name, s3_keys } => {
            let path = wrapping_path(connection, s3_keys.as_ref())?;
            let made = create_key(&path, &name, new_key()?);
            let made = made.map_err(|error| Failure::setup(error.to_string()))?;
            print_line(&format!(
                "key {0} is made: SSE-KMS with the key ID {0} encrypts with it",
                made.name()
            ))?;
            remember(&path)
        }
        KmsCommand::Rotate { name, s3_keys } => {
            let path = wrapping_path(connection, s3_keys.as_ref())?;
            let made = rotate_key(&path, &name, new_key()?);
            let made = made.map_err(|error| Failure::setup(error.to_string()))?;
            print_line(&format!(
                "{made} wraps what is new; what is there keeps the keys that have wrapped it"
            ))?;
            remember(&path)
        }
        KmsCommand::Ls { json, s3_keys } => {
            let path = wrapping_path(connection, s3_keys.as_ref())?;
            list(&load(&path)?, json)
        }
        KmsCommand::Export { file, s3_keys } => {
            let path = wrapping_path(connection, s3_keys.as_ref())?;
            export(&path, &file)
        }
    }
}

fn load(path: &Path) -> Result<KeyFile, Failure> {
    KeyFile::load(path).map_err(|error| Failure::setup(error.to_string()))
}

fn new_key() -> Result<[u8; 32], Failure> {
    random_key().ok_or_else(|| Failure::failed("the system gives no random bytes".to_owned()))
}

fn remember(path: &Path) -> Done {
    print_line(&format!(
        "{0} has changed: make a copy of it ('craton kms export FILE'), and bring it to the gateways of \
         other machines; those of this one see it within a second",
        path.display()
    ))
}

fn shown(file: &KeyFile) -> Vec<Shown> {
    let service = file.wrapping(None);
    let mut all: Vec<Shown> = Vec::new();
    for id in file.ids() {
        let wraps = match (id.version() > 0, Some(id) == service) {
            (true, _) => "SSE-KMS",
            (false, true) => "secrets, SSE-S3, aws/s3",
            (false, false) => "",
        };
        match all.iter_mut().find(|known| known.key == id.name()) {
            Some(known) => known.versions += 1,
            None => {
                let versions = usize::from(id.version() > 0);
                all.push(Shown { key: id.name().to_owned(), versions, wraps });
            }
        }
    }
    all
}

fn list(file: &KeyFile, json: bool) -> Done {
    let all = shown(file);
    if json {
        return print_json(&all);
    }
    let mut out = table(&["key", "versions", "wraps"]);
    for Shown { key, versions, wraps } in all {
        let versions = if versions == 0 { String::new() } else { versions.to_string() };
        out.add_row([key, versions, wraps.to_owned()]);
    }
    print_table(out, &[])
}

/// Copies the key file, durably.
fn export(path: &Path, copy: &Path) -> Done {
    let keys = load(path)?;
    let bytes = std::fs::read(path).map_err(|error| io("read", path, &error))?;
    let mut options = OpenOptions::new();
    let options = options.write(true).create_new(true).mode(0o600);
    let mut out = options.open(copy).map_err(|error| io("create", copy, &error))?;
    out.write_all(&bytes).map_err(|error| io("write", copy, &error))?;
    out.sync_all().map_err(|error| io("sync", copy, &error))?;
    let ids = |file: &KeyFile| file.ids().map(KeyId::to_string).collect::<Vec<_>>();
    let read = load(copy)?;
    if ids(&read) != ids(&keys) {
        return Err(Failure::failed(format!(
            "{} was changed while it was copied: remove {} and export it again",
            path.display(),
            copy.display()
        )));
    }
    print_line(&format!(
        "{} has all {} keys: keep it where the cluster's data is not; who has both can read all",
        copy.display(),
        keys.ids().count()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_shown_with_their_versions_and_what_they_wrap() {
        let line =
            |start: &str, byte: u8| format!("{start} {}\n", format!("{byte:02x}").repeat(32));
        let text = [("1 k1", 1), ("2 app 1", 2), ("1 k2", 3), ("2 app 2", 4)];
        let text: String = text.map(|(start, byte)| line(start, byte)).concat();
        let file = KeyFile::parse(&text).expect("a key file");
        let key = |key: &str, versions, wraps| Shown { key: key.to_owned(), versions, wraps };
        assert_eq!(
            shown(&file),
            [key("k1", 0, ""), key("app", 2, "SSE-KMS"), key("k2", 0, "secrets, SSE-S3, aws/s3")]
        );
    }
}
