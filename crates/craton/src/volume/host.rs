//! Tools, kernel modules and mounts of this host, for a device of a volume.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::exit::Failure;

/// Packages that have the tools: on Debian and Ubuntu, on Fedora.
const PACKAGES: &[(&str, &str, &str)] = &[
    ("nbdfuse", "libnbd-bin", "nbdfuse"),
    ("losetup", "mount", "util-linux"),
    ("fusermount3", "fuse3", "fuse3"),
    ("nbd-client", "nbd-client", "nbd"),
];

/// A tool that is not installed.
pub fn missing(tool: &str) -> Failure {
    let known = PACKAGES.iter().find(|(name, ..)| *name == tool);
    let (debian, fedora) = known.map_or((tool, tool), |(_, debian, fedora)| (debian, fedora));
    Failure::setup(format!(
        "{tool} is missing: install it (package {debian} on Debian and Ubuntu, {fedora} on Fedora)"
    ))
}

/// Fails when a tool is not on the search path.
pub fn check_tool(tool: &str) -> Result<(), Failure> {
    match has_tool(tool) {
        true => Ok(()),
        false => Err(missing(tool)),
    }
}

/// True when a tool is on the search path.
pub fn has_tool(tool: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(tool).is_file())
}

/// Runs a tool to its end; what it has printed.
pub fn run(tool: &str, args: &[&str]) -> Result<String, Failure> {
    let output = Command::new(tool).args(args).stdin(Stdio::null()).output();
    let output = output.map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => missing(tool),
        _ => Failure::setup(format!("cannot run {tool}: {error}")),
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    let error = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
    Err(Failure::failed(format!("{tool} {} has failed: {error}", args.join(" "))))
}

/// A free device of the kernel's NBD client; nothing when the kernel has none.
pub fn free_nbd() -> Option<PathBuf> {
    let index = (0..256u32).find(|index| {
        let sys = format!("/sys/block/nbd{index}");
        Path::new(&sys).exists() && !Path::new(&format!("{sys}/pid")).exists()
    })?;
    Some(PathBuf::from(format!("/dev/nbd{index}")))
}

/// The directory in which the kernel shows a block device.
fn shown(device: &Path) -> PathBuf {
    Path::new("/sys/block").join(device.file_name().unwrap_or_default())
}

/// True when a device of the kernel's NBD client is connected.
pub fn nbd_is_connected(device: &Path) -> bool {
    shown(device).join("pid").exists()
}

/// The process that has connected a device of the kernel's NBD client, which may have ended since;
/// nothing while it is not connected.
pub fn nbd_pid(device: &Path) -> Option<u32> {
    fs::read_to_string(shown(device).join("pid")).ok()?.trim().parse().ok()
}

/// Mappings and arrays that a device, or a partition of it, is a part of.
pub fn holders(device: &Path) -> Vec<String> {
    let device = shown(device);
    let below = |dir: &Path| fs::read_dir(dir).into_iter().flatten().flatten();
    // Of directories in it, partitions alone have holders.
    let parts = below(&device).map(|entry| entry.path());
    let all = std::iter::once(device.clone()).chain(parts);
    let mut found: Vec<String> = all
        .flat_map(|part| below(&part.join("holders")))
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    found.sort();
    found.dedup();
    found
}

/// The loop device that has a file.
pub fn loop_of(file: &Path) -> Option<PathBuf> {
    for entry in fs::read_dir("/sys/block").ok()?.flatten() {
        let backing = fs::read_to_string(entry.path().join("loop/backing_file"));
        if backing.is_ok_and(|backing| Path::new(backing.trim_end_matches('\n')) == file) {
            return Some(Path::new("/dev").join(entry.file_name()));
        }
    }
    None
}

/// True when something is mounted at a directory.
pub fn is_mounted(dir: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mounts.lines().any(|line| line.split(' ').nth(1).is_some_and(|at| unescape(at) == dir))
}

/// Mount point of a device, or of a partition of it.
pub fn mount_of(device: &Path) -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mount_in(&mounts, device)
}

fn mount_in(mounts: &str, device: &Path) -> Option<PathBuf> {
    let device = device.to_str()?;
    let is_it = |source: &str| {
        let rest = source.strip_prefix(device);
        rest.is_some_and(|rest| {
            let number = rest.strip_prefix('p').unwrap_or(rest);
            rest.is_empty() || rest.starts_with('p') && number.bytes().all(|b| b.is_ascii_digit())
        })
    };
    let line = mounts.lines().find(|line| line.split(' ').next().is_some_and(is_it))?;
    line.split(' ').nth(1).map(unescape)
}

/// A path as `/proc/mounts` writes it: octal behind a backslash.
fn unescape(text: &str) -> PathBuf {
    use std::os::unix::ffi::OsStringExt;
    let bytes = text.as_bytes();
    let (mut out, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while at < bytes.len() {
        let code = text.get(at + 1..at + 4).and_then(|code| u8::from_str_radix(code, 8).ok());
        match (bytes[at], code) {
            (b'\\', Some(code)) => {
                out.push(code);
                at += 4;
            }
            (byte, _) => {
                out.push(byte);
                at += 1;
            }
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_of_devices_are_found() {
        let mounts = "/dev/loop1 /mnt/a\\040b ext4 rw 0 0\n/dev/loop22p3 /srv ext4 rw 0 0\n";
        let mount = |device: &str| mount_in(mounts, Path::new(device));
        assert_eq!(mount("/dev/loop1"), Some("/mnt/a b".into()));
        assert_eq!(mount("/dev/loop22"), Some("/srv".into()));
        assert_eq!(mount("/dev/loop2"), None);
        assert_eq!(mount("/dev/loop"), None);
    }

    #[test]
    fn missing_tools_name_their_package() {
        let failure = check_tool("nbdfuse-that-is-missing").expect_err("it is missing");
        assert!(failure.message.contains("is missing"), "{failure}");
        assert!(missing("nbdfuse").message.contains("libnbd-bin"));
    }
}
