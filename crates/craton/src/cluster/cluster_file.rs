//! `cluster.json`: processes of a local cluster and addresses of its masters.

use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::directory::config_path;
use crate::args::RoleName;
use crate::exit::{Failure, io};
use roles::config;

/// Bytes of the file at most: 1000 processes of 1 KiB.
const FILE_MAX: u64 = 1 << 20;

/// The file's content.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug, Default)]
#[serde(deny_unknown_fields)]
pub struct ClusterFile {
    /// Its processes. One that has died stays, with its last pid.
    pub processes: Vec<Process>,
    /// Addresses for clients.
    pub endpoints: Endpoints,
    /// The highest number of a master that was removed: masters' numbers are not used again.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub last_master_removed: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A process.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
pub struct Process {
    /// Its role.
    pub role: RoleName,
    /// Its ID within the cluster.
    pub id: String,
    /// Its process ID, the last one when it has died; 0 before its first start.
    pub pid: u32,
    /// Its address.
    pub addr: SocketAddr,
    /// Its directory.
    pub dir: PathBuf,
}

/// Addresses for clients.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug, Default)]
#[serde(deny_unknown_fields)]
pub struct Endpoints {
    /// The masters.
    pub masters: Vec<SocketAddr>,
    /// The first front end, `nbd://ADDRESS` (`nbds` with TLS); a volume is below it by its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nbd: Option<String>,
    /// Its Unix socket, `nbd+unix:///?socket=PATH`; a volume is `nbd+unix:///NAME?socket=PATH`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nbd_unix: Option<String>,
    /// The gateways of this machine, `http://ADDRESS`: the address that they share, if they do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub s3: Option<String>,
    /// Each gateway for itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub s3_gateways: Vec<String>,
}

impl Endpoints {
    /// URI of a volume, through the Unix socket when there is one.
    pub fn volume_nearby(&self, name: &str) -> Option<String> {
        let name = uri_text(name);
        match (&self.nbd_unix, &self.nbd) {
            (Some(unix), _) => Some(unix.replacen("///", &format!("///{name}"), 1)),
            (None, nbd) => nbd.as_ref().map(|nbd| format!("{nbd}/{name}")),
        }
    }
}

/// The text that [`uri_text`] has encoded.
pub fn uri_plain(text: &str) -> String {
    let (mut out, mut rest) = (Vec::new(), text.as_bytes());
    while let [first, more @ ..] = rest {
        let digits = more.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        let code = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match code.filter(|_| *first == b'%') {
            Some(code) => {
                out.push(code);
                rest = &more[2..];
            }
            None => {
                out.push(*first);
                rest = more;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// A text in its URI encoding.
fn uri_text(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                out.push(byte as char);
            }
            _ => out += &format!("%{byte:02X}"),
        }
    }
    out
}

impl ClusterFile {
    /// Parses and checks a text; the error names what is wrong.
    pub fn parse(text: &str) -> Result<ClusterFile, String> {
        let book: ClusterFile = serde_json::from_str(text).map_err(|error| error.to_string())?;
        for (index, process) in book.processes.iter().enumerate() {
            if process.id.is_empty() || process.id.contains(['/', '\0']) || process.id.len() > 64 {
                return Err(format!("'{}' is no process's ID", process.id));
            }
            if book.processes[..index].iter().any(|other| other.id == process.id) {
                return Err(format!("two processes have the ID '{}'", process.id));
            }
        }
        Ok(book)
    }

    /// Reads a file.
    pub fn read(path: &Path) -> Result<ClusterFile, Failure> {
        let len = std::fs::metadata(path).map_err(|error| io("read", path, &error))?.len();
        let damaged = |what: &str| {
            Failure::setup(format!(
                "{} is damaged ({what}): restore it, or name another directory",
                path.display()
            ))
        };
        if len > FILE_MAX {
            return Err(damaged("it is too long"));
        }
        let text = std::fs::read(path).map_err(|error| io("read", path, &error))?;
        let text = String::from_utf8(text).map_err(|_| damaged("it is no text"))?;
        ClusterFile::parse(&text).map_err(|what| damaged(&what))
    }

    /// Replaces a file: readers see the old or the new content, also after a power cut.
    pub fn write(&self, path: &Path) -> Result<(), Failure> {
        let mut text = serde_json::to_string_pretty(self)
            .map_err(|error| Failure::failed(format!("cannot write JSON: {error}")))?;
        text.push('\n');
        replace(path, text.as_bytes(), 0o600)
    }

    /// Masters', the front end's and the gateway's addresses from the processes.
    pub fn refresh_endpoints(&mut self) {
        let masters = self.processes.iter().filter(|process| process.role == RoleName::Master);
        self.endpoints.masters = masters.map(|process| process.addr).collect();
        let mut frontends = self.processes.iter().filter(|one| one.role == RoleName::Frontend);
        let frontend = frontends.next();
        let config = frontend.and_then(|one| {
            config::read::<config::Frontend>(&config_path(&one.dir, one.role)).ok()
        });
        let with_tls = config.as_ref().is_some_and(|config| config.tls.is_some());
        let scheme = if with_tls { "nbds" } else { "nbd" };
        let with_tcp = config.as_ref().is_none_or(|config| config.nbd.is_some());
        let tcp = frontend.filter(|_| with_tcp);
        self.endpoints.nbd = tcp.map(|one| format!("{scheme}://{}", one.addr));
        let socket = config.and_then(|config| config.nbd_unix);
        let socket = socket.as_deref().and_then(Path::to_str).map(uri_text);
        self.endpoints.nbd_unix = socket.map(|path| format!("nbd+unix:///?socket={path}"));
        let gateways = self.processes.iter().filter(|one| one.role == RoleName::Gateway);
        let mut single = Vec::new();
        let mut shared = None;
        for one in gateways {
            let config = config::read::<config::Gateway>(&config_path(&one.dir, one.role)).ok();
            let plain = || format!("http://{}", one.addr);
            single.push(config.as_ref().map_or_else(plain, |config| config.endpoint(one.addr)));
            let of_all = config.and_then(|config| Some(config.endpoint(config.shared?)));
            shared = shared.or(of_all);
        }
        self.endpoints.s3 = shared.or_else(|| single.first().cloned());
        self.endpoints.s3_gateways = single;
    }
}

/// Replaces a file durably and atomically.
pub fn replace(path: &Path, content: &[u8], mode: u32) -> Result<(), Failure> {
    use std::os::unix::fs::OpenOptionsExt;
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(Failure::usage(format!("{} is no file's path", path.display())));
    };
    let fresh = dir.join(format!(".{}.{}.new", name.to_string_lossy(), std::process::id()));
    let write = || {
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(mode).open(&fresh)?;
        file.write_all(content)?;
        file.sync_all()?;
        std::fs::rename(&fresh, path)?;
        std::fs::File::open(dir)?.sync_all()
    };
    write().map_err(|error| {
        let _ = std::fs::remove_file(&fresh); // It may never have been there.
        io("write", path, &error)
    })
}

/// Fuzz target: any bytes are a cluster file or an error in a sentence, never a panic.
#[cfg(test)]
pub fn fuzz_book(bytes: &[u8]) {
    if let Ok(book) = ClusterFile::parse(&String::from_utf8_lossy(bytes)) {
        let text = serde_json::to_string(&book).expect("a book can be written");
        assert_eq!(ClusterFile::parse(&text), Ok(book));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: &str = r#"{"processes":[{"role":"chunkserver","id":"cs1","pid":1,
        "addr":"127.0.0.1:1","dir":"/tmp/x/cs1"}],"endpoints":{"masters":["127.0.0.1:1"]}}"#;

    #[test]
    fn the_shape_is_as_documented() {
        let book = ClusterFile::parse(TEXT).expect("it is good");
        assert_eq!(book.processes[0].role, RoleName::Chunkserver);
        let value: serde_json::Value = serde_json::from_str(TEXT).expect("it is JSON");
        assert_eq!(serde_json::to_value(&book).expect("it is JSON"), value);
    }

    #[test]
    fn damage_is_refused() {
        let twice = TEXT.replace(
            "}],",
            "},{\"role\":\"master\",\"id\":\"cs1\",\"pid\":2,\
            \"addr\":\"127.0.0.1:2\",\"dir\":\"x\"}],",
        );
        for bad in ["", "{}", "[]", &TEXT[..60], &TEXT.replace("cs1\",", "../a\","), &twice] {
            assert!(ClusterFile::parse(bad).is_err(), "{bad}");
        }
        assert!(
            ClusterFile::parse(&TEXT.replace("pid", "pit")).is_err_and(|what| what.contains("pit"))
        );
    }

    #[test]
    fn replacement_leaves_nothing_behind() {
        let dir = crate::output::test_dir("book");
        let path = dir.join("cluster.json");
        let book = ClusterFile::parse(TEXT).expect("it is good");
        book.write(&path).expect("it is written");
        book.write(&path).expect("it is written");
        assert_eq!(ClusterFile::read(&path), Ok(book));
        assert_eq!(std::fs::read_dir(&dir).expect("it lists").count(), 1);
        std::fs::remove_dir_all(dir).expect("it goes");
    }

    proptest! {
        #[test]
        fn texts_decode_from_uris(text in "\\PC{0,20}") {
            prop_assert!(uri_text(&text).bytes().all(|byte| byte.is_ascii_graphic()));
            prop_assert_eq!(uri_plain(&uri_text(&text)), text);
        }

        #[test]
        fn damaged_cluster_files_are_refused(
            at in any::<prop::sample::Index>(),
            patch in "\\PC{0,6}",
            cut in 0..6usize,
        ) {
            let at = at.index(TEXT.len());
            let end = (at + cut).min(TEXT.len());
            fuzz_book(format!("{}{patch}{}", &TEXT[..at], &TEXT[end..]).as_bytes());
        }
    }
}
