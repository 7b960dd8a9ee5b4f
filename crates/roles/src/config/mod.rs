//! Configuration files of the roles: TOML, unknown keys refused, errors name file, line and key.

mod block;
mod common;
mod logging;
mod object;
mod types;

#[cfg(test)]
mod tests;

use std::path::Path;
use std::str::FromStr;

use wire::handshake::ClusterKey;

pub use block::{BlockManager, BlockServer, Frontend, FrontendTls, fits_socket, group_id};
pub use common::{Config, Process, cluster_id};
pub use logging::Logging;
pub use object::{BucketDefaults, Gateway, ObjectManager, ObjectServer};
pub use types::{Chunkserver, Durability, Master, Peer, Store, mib};

use crate::error::{Error, io};

/// Bytes of a configuration file at most.
const FILE_MAX: u64 = 1 << 20;
/// Reads and checks a file.
pub fn read<T: Config>(path: &Path) -> Result<T, Error> {
    let len = std::fs::metadata(path).map_err(|error| io("read", path, &error))?.len();
    if len > FILE_MAX {
        return Err(Error::Setup(format!("{} is too long for a configuration", path.display())));
    }
    let text = std::fs::read_to_string(path).map_err(|error| io("read", path, &error))?;
    let mut config: T =
        parse(&text).map_err(|what| Error::Setup(format!("{}: {what}", path.display())))?;
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    config.resolve(dir.unwrap_or(Path::new(".")));
    Ok(config)
}

/// Parses and checks a text.
pub fn parse<T: Config>(text: &str) -> Result<T, String> {
    let config: T = toml::from_str(text).map_err(|error| explain(text, &error))?;
    config.check()?;
    Ok(config)
}

/// One sentence out of the parser's report.
fn explain(text: &str, error: &toml::de::Error) -> String {
    let line = error.span().and_then(|span| text.get(..span.start)).map(|before| {
        let line = before.matches('\n').count() + 1;
        format!("line {line}: ")
    });
    let what = error.message().trim().replace('\n', " ");
    // A missing key has no position: the parser points at the whole file.
    match what.strip_prefix("missing field") {
        Some(key) => format!("the key{key} is missing"),
        None => {
            let what = what.replacen("unknown field", "unknown key", 1);
            format!("{}{what}", line.unwrap_or_default())
        }
    }
}

/// The cluster's key of a file.
pub fn read_key(path: &Path) -> Result<ClusterKey, Error> {
    let text = std::fs::read_to_string(path).map_err(|error| io("read", path, &error))?;
    ClusterKey::from_str(&text)
        .map_err(|error| Error::Setup(format!("{}: {error}", path.display())))
}

/// Fuzz target: any text is a configuration or a sentence, never a panic.
pub fn fuzz_config(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let errors = [
        parse::<Master>(&text).err(),
        parse::<Chunkserver>(&text).err(),
        parse::<BlockManager>(&text).err(),
        parse::<BlockServer>(&text).err(),
        parse::<Frontend>(&text).err(),
        parse::<Gateway>(&text).err(),
        parse::<ObjectServer>(&text).err(),
        parse::<ObjectManager>(&text).err(),
    ];
    for error in errors {
        assert!(error.is_none_or(|error| !error.is_empty() && !error.contains('\n')));
    }
}
