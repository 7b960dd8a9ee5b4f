//! `craton volume attach` and `detach`: a volume as a block device of this host.
//!
//! With the kernel's NBD client: `nbd-client`. Without: `nbdfuse` shows the volume as a file, and a
//! loop device uses that. Each attachment has a note, a small file under the run directory, by
//! which `detach` finds it. Notes are carried out as root: a directory that another user could
//! change is refused.

use std::ffi::OsStr;
use std::fs::TryLockError;
use std::fs::{self, File, Metadata};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use runtime::{Duration, Env};
use rustix::fs::{AtFlags, Mode, OFlags, openat, renameat, unlinkat};
use serde::{Deserialize, Serialize};

use super::args::AttachArgs;
use super::host;
use super::open::Site;
use crate::exit::{Done, Failure, io};
use crate::output::{print_json, print_line, shell_word};

/// Wait for nbdfuse to show the volume: the front end may have to open its segments.
const SHOW_WAIT: Duration = Duration::from_secs(20);
/// Wait for nbdfuse to end: it waits for answers.
const END_WAIT: Duration = Duration::from_secs(20);
/// Between two checks.
const LOOK: Duration = Duration::from_millis(20);

/// Bytes of a note at most: a name, an address and two paths.
const NOTE_MAX: u64 = 64 << 10;
/// Output of nbdfuse.
const ERRORS: &str = "nbdfuse.err";
/// Flags with which files of the directory are opened.
const SAFE: OFlags = OFlags::NOFOLLOW.union(OFlags::CLOEXEC);
/// The mode of new files.
const OWNER_ONLY: Mode = Mode::RUSR.union(Mode::WUSR);

/// Way in which a device is made.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "kebab-case")]
enum How {
    /// `nbd-client`.
    Nbd,
    /// `nbdfuse` and `losetup`.
    Fuse,
}

/// A volume that is attached here.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
struct AttachedVolume {
    volume: String,
    uri: String,
    how: How,
    /// The device; not yet known while nbdfuse starts.
    device: Option<PathBuf>,
    /// nbdfuse's directory.
    dir: Option<PathBuf>,
    /// What the kernel shows as the device's process since `nbd-client` has connected it: another
    /// number is another connection. Not yet known while it connects; older versions did not note it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
}

impl AttachedVolume {
    /// The file that nbdfuse shows.
    fn file(&self) -> Option<PathBuf> {
        self.dir.as_ref().map(|dir| dir.join("volume"))
    }

    /// True while a part of it is there.
    fn is_there(&self) -> bool {
        match self.how {
            How::Nbd => self.device.as_deref().is_some_and(|device| match self.pid {
                Some(pid) => host::nbd_pid(device) == Some(pid),
                // It may be another's, or this volume, which is not to be attached twice.
                None => host::nbd_is_connected(device),
            }),
            How::Fuse => {
                self.dir.as_deref().is_some_and(host::is_mounted)
                    || self.file().is_some_and(|file| host::loop_of(&file).is_some())
            }
        }
    }
}

/// The directory with the notes, claimed by this command.
struct Notes {
    dir: PathBuf,
    /// The directory, held open: its files are reached through it.
    held: OwnedFd,
    _lock: File,
}

/// True when only root, and the user who runs this, can change a file with these attributes.
fn is_trusted(facts: &Metadata) -> bool {
    let own = rustix::process::geteuid().as_raw();
    // In a directory such as /tmp other users cannot remove foreign files.
    let is_closed = facts.mode() & 0o022 == 0 || facts.is_dir() && facts.mode() & 0o1000 != 0;
    [0, own].contains(&facts.uid()) && is_closed
}

impl Notes {
    fn open(dir: &Path) -> Result<Notes, Failure> {
        let open = |error: std::io::Error| io("open", dir, &error);
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
        made.map_err(|error| io("make", dir, &error))?;
        let refused = |what: &str| {
            Failure::setup(format!(
                "{} {what}: what stands there would be done as root; name a directory of root's \
                 with --run-dir",
                dir.display()
            ))
        };
        // Without a slash at its end, behind which a link would be followed.
        let plain: PathBuf = std::path::absolute(dir).map_err(open)?.components().collect();
        if fs::symlink_metadata(&plain).map_err(open)?.is_symlink() {
            return Err(refused("is a symbolic link"));
        }
        let dir = fs::canonicalize(&plain).map_err(open)?;
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let held = rustix::fs::open(&dir, flags, Mode::empty());
        let held = held.map_err(|error| open(error.into()))?;
        let own = File::from(held.try_clone().map_err(open)?).metadata().map_err(open)?;
        if !is_trusted(&own) || own.mode() & 0o022 != 0 {
            return Err(refused("can be changed by other users"));
        }
        for above in dir.ancestors().skip(1) {
            if !is_trusted(&fs::symlink_metadata(above).map_err(open)?) {
                return Err(refused("lies below a directory that other users can change"));
            }
        }
        let busy = "another craton command attaches or detaches: wait for it";
        let lock = openat(&held, "lock", OFlags::RDWR | OFlags::CREATE | SAFE, OWNER_ONLY);
        let lock = File::from(lock.map_err(|error| io("open", &dir.join("lock"), &error.into()))?);
        match lock.try_lock() {
            Ok(()) => Ok(Notes { dir, held, _lock: lock }),
            Err(TryLockError::WouldBlock) => {
                Err(Failure::setup(format!("{} is locked: {busy}", dir.display())))
            }
            Err(TryLockError::Error(error)) => Err(io("lock", &dir, &error)),
        }
    }

    /// The bytes of a note.
    fn read(&self, name: &OsStr) -> std::io::Result<Vec<u8>> {
        let file = File::from(openat(&self.held, name, OFlags::RDONLY | SAFE, Mode::empty())?);
        let facts = file.metadata()?;
        if !facts.is_file() || !is_trusted(&facts) {
            let what = "it is no file of root's: remove it";
            return Err(std::io::Error::new(ErrorKind::PermissionDenied, what));
        }
        let mut bytes = Vec::new();
        file.take(NOTE_MAX).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Creates a file that must not exist.
    fn make(&self, name: &str) -> std::io::Result<File> {
        match unlinkat(&self.held, name, AtFlags::empty()) {
            Err(error) if error != rustix::io::Errno::NOENT => return Err(error.into()),
            _ => {}
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | SAFE;
        Ok(File::from(openat(&self.held, name, flags, OWNER_ONLY)?))
    }

    /// One key for each volume of each cluster.
    fn key(volume: &str, uri: &str) -> String {
        let safe = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
        let name: String = volume.chars().take(40).map(safe).collect();
        // FNV-1a: two volumes with similar names have different notes.
        let hash =
            [volume, "\0", uri].concat().bytes().fold(0xcbf2_9ce4_8422_2325u64, |sum, byte| {
                (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
            });
        format!("{name}-{:08x}", hash as u32)
    }

    fn name(note: &AttachedVolume) -> String {
        format!("{}.json", Notes::key(&note.volume, &note.uri))
    }

    fn all(&self) -> Result<Vec<AttachedVolume>, Failure> {
        let mut found = Vec::new();
        let entries = fs::read_dir(&self.dir).map_err(|error| io("read", &self.dir, &error))?;
        for entry in entries.flatten() {
            let path = entry.path();
            if path.extension().is_none_or(|ending| ending != "json") {
                continue;
            }
            let text = self.read(&entry.file_name());
            let text = text.map_err(|error| io("read", &path, &error))?;
            let note: AttachedVolume = serde_json::from_slice(&text).map_err(|error| {
                let path = path.display();
                Failure::setup(format!("{path} is damaged ({error}): look at it, and remove it"))
            })?;
            match note.is_there() {
                true => found.push(note),
                // The attachment went with a restart of the host, or was removed by other means.
                false => self.forget(&note),
            }
        }
        Ok(found)
    }

    fn write(&self, note: &AttachedVolume) -> Done {
        let text = serde_json::to_vec_pretty(note)
            .map_err(|error| Failure::failed(format!("cannot write JSON: {error}")))?;
        let (name, fresh) = (Notes::name(note), ".new");
        let write = || {
            let mut file = self.make(fresh)?;
            file.write_all(&text)?;
            file.sync_all()?;
            Ok(renameat(&self.held, fresh, &self.held, &name)?)
        };
        write().map_err(|error: std::io::Error| io("write", &self.dir.join(&name), &error))
    }

    fn forget(&self, note: &AttachedVolume) {
        if let Some(dir) = &note.dir {
            let _ = fs::remove_dir(dir);
        }
        // It may never have been there.
        let _ = unlinkat(&self.held, Notes::name(note), AtFlags::empty());
    }
}

/// The commands that would attach a volume, in the order of their run.
fn commands(note: &AttachedVolume) -> Vec<String> {
    let quote = shell_word;
    match (note.how, note.file()) {
        (How::Fuse, Some(file)) => {
            let (dir, file) = (note.dir.as_deref().unwrap_or(&file), file.display().to_string());
            vec![
                format!("mkdir -p {}", quote(&dir.display().to_string())),
                format!("nbdfuse {} {} &", quote(&file), quote(&note.uri)),
                format!("losetup --find --show {}", quote(&file)),
            ]
        }
        _ => {
            let device = note.device.as_deref().unwrap_or(Path::new("/dev/nbd0"));
            let args: Vec<String> = nbd_args(note, device).iter().map(|arg| quote(arg)).collect();
            vec![format!("nbd-client {}", args.join(" "))]
        }
    }
}

fn nbd_args(note: &AttachedVolume, device: &Path) -> Vec<String> {
    let mut args: Vec<String> = match note.uri.strip_prefix("nbd+unix:///") {
        Some(rest) => {
            let socket = rest.split_once("?socket=").map_or("", |(_, socket)| socket);
            vec!["-unix".to_owned(), crate::cluster::uri_plain(socket)]
        }
        None => {
            let rest = note.uri.split_once("://").map_or("", |(_, rest)| rest);
            let addr = rest.split('/').next().unwrap_or_default();
            let (host, port) = addr.rsplit_once(':').unwrap_or((addr, "10809"));
            vec![host.trim_matches(['[', ']']).to_owned(), port.to_owned()]
        }
    };
    args.extend([device.display().to_string(), "-N".to_owned(), note.volume.clone()]);
    args.extend(["-connections", "4", "-timeout", "0"].map(str::to_owned));
    args
}

/// Runs `attach`: prints the device.
pub async fn attach(site: &Site<'_>, name: &str, args: &AttachArgs) -> Done {
    let uri = site.endpoints.volume_nearby(name).ok_or_else(|| {
        Failure::setup(
            "no front end of the cluster is known here: name the cluster by its directory",
        )
    })?;
    site.managers.volume(name).await?;
    let planned = plan(name, uri.clone(), &args.run_dir)?;
    if args.print {
        return print_plan(&planned, args.json);
    }
    check_host(&planned)?;
    let notes = Notes::open(&args.run_dir)?;
    if let Some(known) = notes.all()?.iter().find(|one| one.volume == name && one.uri == uri) {
        let device = known.device.as_deref().unwrap_or(Path::new("a file")).display();
        return Err(Failure::failed(format!(
            "{name} is attached as {device}: 'craton volume detach {name}' first"
        )));
    }
    // The front end would be refused, too, but without the cause.
    let device = site.look(name).await?;
    site.close(name, device).await;
    // The device that was free may have been taken before the notes were locked.
    let mut note = plan(name, uri, &args.run_dir)?;
    check_host(&note)?;
    let attached = match note.how {
        How::Nbd => attach_nbd(site.env(), &notes, &mut note).await,
        How::Fuse => attach_fuse(site.env(), &notes, &mut note).await,
    };
    if let Err(failure) = attached {
        // The attachment is undone; the first failure is returned.
        let _ = undo(site.env(), &note).await;
        notes.forget(&note);
        return Err(failure);
    }
    let device = note.device.as_deref().unwrap_or(Path::new("")).display().to_string();
    match args.json {
        true => print_json(&serde_json::json!({
            "volume": name, "device": device, "how": note.how, "uri": note.uri,
        })),
        false => print_line(&device),
    }
}

/// Plans an attachment by the tools of this host.
fn plan(name: &str, uri: String, run_dir: &Path) -> Result<AttachedVolume, Failure> {
    let run_dir = std::path::absolute(run_dir).map_err(|error| io("use", run_dir, &error))?;
    let device = host::free_nbd();
    let how = if device.is_some() { How::Nbd } else { How::Fuse };
    let dir = (how == How::Fuse).then(|| run_dir.join(Notes::key(name, &uri)));
    Ok(AttachedVolume { volume: name.to_owned(), uri, how, device, dir, pid: None })
}

fn print_plan(note: &AttachedVolume, json: bool) -> Done {
    if json {
        return print_json(&serde_json::json!({
            "volume": note.volume, "how": note.how, "uri": note.uri, "commands": commands(note),
        }));
    }
    print_line(&commands(note).join("\n"))
}

/// Reports missing tools before anything is done.
fn check_host(note: &AttachedVolume) -> Done {
    if !rustix::process::geteuid().is_root() {
        let commands = commands(note).join("; ");
        return Err(Failure::setup(format!(
            "a block device needs root: run this command as root, or these: {commands}"
        )));
    }
    match note.how {
        How::Nbd => host::check_tool("nbd-client"),
        How::Fuse => {
            ["nbdfuse", "losetup", "fusermount3"].into_iter().try_for_each(host::check_tool)?;
            if !Path::new("/dev/fuse").exists() {
                return Err(Failure::setup(
                    "this kernel has neither NBD nor FUSE devices: load a module, by 'modprobe nbd' \
                     or 'modprobe fuse'",
                ));
            }
            Ok(())
        }
    }
}

async fn attach_nbd(env: &Env, notes: &Notes, note: &mut AttachedVolume) -> Done {
    notes.write(note)?;
    let device = note.device.clone().expect("planned");
    let args = nbd_args(note, &device);
    // It fails when another process has connected the device since it was found free.
    host::run("nbd-client", &args.iter().map(String::as_str).collect::<Vec<_>>())?;
    // Its process in the background may be a little later.
    let is_shown = || host::nbd_pid(&device).is_some();
    if let Err(failure) = wait(env, "nbd-client has not connected the device", is_shown).await {
        // It was successful, so the device is its own, though no note can prove that later.
        let _ = host::run("nbd-client", &["-d", device.to_str().unwrap_or_default()]);
        return Err(failure);
    }
    note.pid = host::nbd_pid(&device);
    notes.write(note)
}

async fn attach_fuse(env: &Env, notes: &Notes, note: &mut AttachedVolume) -> Done {
    let (dir, file) = (note.dir.clone().expect("planned"), note.file().expect("planned"));
    fs::create_dir_all(&dir).map_err(|error| io("make", &dir, &error))?;
    notes.write(note)?;
    let errors = notes.dir.join(ERRORS);
    let out = notes.make(ERRORS).map_err(|error| io("write", &errors, &error))?;
    let mut child = start_nbdfuse(&file, &note.uri, out)?;
    let deadline = env.now() + SHOW_WAIT;
    while fs::metadata(&file).map_or(0, |facts| facts.len()) == 0 {
        let ended = child.try_wait().ok().flatten();
        if ended.is_some() || env.now() >= deadline {
            let _ = child.kill();
            let error = fs::read_to_string(&errors).unwrap_or_default();
            let error = error.trim().replace('\n', "; ");
            let (what, uri) = (if ended.is_some() { "has ended" } else { "is silent" }, &note.uri);
            return Err(Failure::failed(format!("nbdfuse {what} on {uri}: {error}")));
        }
        env.sleep(LOOK).await;
    }
    let device = host::run("losetup", &["--find", "--show", file.to_str().unwrap_or_default()])?;
    note.device = Some(PathBuf::from(device));
    notes.write(note)
}

/// It goes on when this command ends, and when a terminal does.
fn start_nbdfuse(file: &Path, uri: &str, errors: File) -> Result<Child, Failure> {
    let mut command = Command::new("nbdfuse");
    command.arg(file).arg(uri).process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors);
    command.spawn().map_err(|error| Failure::setup(format!("cannot run nbdfuse: {error}")))
}

/// Undoes an attachment by its note, as far as it is there. A device that the note does not say to be
/// of this attachment is another's, and stays.
async fn undo(env: &Env, note: &AttachedVolume) -> Done {
    if note.how == How::Nbd {
        let is_own = note.pid.is_some() && note.is_there();
        let Some(device) = note.device.as_deref().filter(|_| is_own) else { return Ok(()) };
        flush_unused(device)?;
        return host::run("nbd-client", &["-d", device.to_str().unwrap_or_default()]).map(drop);
    }
    if let Some(device) = note.file().and_then(|file| host::loop_of(&file)) {
        flush_unused(&device)?;
        host::run("losetup", &["-d", device.to_str().unwrap_or_default()])?;
        // It goes with its last user.
        wait(env, "the loop device is in use still", || {
            note.file().is_none_or(|file| host::loop_of(&file).is_none())
        })
        .await?;
    }
    let Some(dir) = note.dir.as_deref().filter(|dir| host::is_mounted(dir)) else { return Ok(()) };
    host::run("fusermount3", &["-u", dir.to_str().unwrap_or_default()])?;
    wait(env, "nbdfuse has the volume open still", || !host::is_mounted(dir)).await
}

/// Writes out what the kernel caches of a device. Fails while the device, or a partition of it, is in use:
/// mounted in any namespace, mapped, a part of an array, or swap space.
fn flush_unused(device: &Path) -> Done {
    let holders = host::holders(device);
    let in_use = || {
        let name = device.file_name().unwrap_or_default().display();
        let by = match holders.is_empty() {
            true => String::new(),
            false => format!(" by {}", holders.join(", ")),
        };
        let device = device.display();
        Failure::failed(format!(
            "{device} is in use{by}: end that first; 'lsblk {device}', /sys/block/{name}/holders, \
             /proc/swaps and 'grep {name} /proc/*/mountinfo' show it"
        ))
    };
    if !holders.is_empty() {
        return Err(in_use());
    }
    // The kernel refuses it to a second exclusive user: file systems, mappings and arrays are such.
    let exclusive = OFlags::EXCL.bits() as i32;
    let opened = File::options().write(true).custom_flags(exclusive).open(device);
    if opened.as_ref().is_err_and(|error| error.kind() == ErrorKind::ResourceBusy) {
        return Err(in_use());
    }
    opened.and_then(|device| device.sync_all()).map_err(|error| {
        let device = device.display();
        Failure::failed(format!(
            "{device} cannot write what it keeps ({error}): is the front end down?"
        ))
    })
}

async fn wait(env: &Env, cause: &str, done: impl Fn() -> bool) -> Done {
    let deadline = env.now() + END_WAIT;
    while !done() {
        if env.now() >= deadline {
            return Err(Failure::failed(format!("after {END_WAIT:?} {cause}")));
        }
        env.sleep(LOOK).await;
    }
    Ok(())
}

/// Runs `detach`: of a volume's name, or of a device.
pub async fn detach(env: &Env, what: &str, run_dir: &Path, json: bool) -> Done {
    let notes = Notes::open(run_dir)?;
    let is_it = |note: &&AttachedVolume| {
        note.volume == what || note.device.as_deref() == Some(Path::new(what))
    };
    let all = notes.all()?;
    let found: Vec<&AttachedVolume> = all.iter().filter(is_it).collect();
    let note = match found[..] {
        [] => {
            let known: Vec<&str> = all.iter().map(|note| note.volume.as_str()).collect();
            let known = if known.is_empty() { "nothing".to_owned() } else { known.join(", ") };
            return Err(Failure::failed(format!("{what} is not attached here; {known} is")));
        }
        [note] => note,
        _ => {
            return Err(Failure::usage(format!(
                "volumes {what} of several clusters are attached: name the device"
            )));
        }
    };
    if note.how == How::Nbd && note.pid.is_none() {
        let device = note.device.as_deref().unwrap_or(Path::new("")).display();
        return Err(Failure::failed(format!(
            "{device} is connected, and the note of {} does not say whether by this attachment: if it \
             is, 'nbd-client -d {device}' ends it; if it is another's, remove {}",
            note.volume,
            notes.dir.join(Notes::name(note)).display()
        )));
    }
    if let Some((device, at)) =
        note.device.as_deref().and_then(|device| Some((device, host::mount_of(device)?)))
    {
        return Err(Failure::failed(format!(
            "{} is mounted at {}: umount it first",
            device.display(),
            at.display()
        )));
    }
    undo(env, note).await?;
    notes.forget(note);
    match json {
        true => print_json(&serde_json::json!({ "volume": note.volume, "device": note.device })),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(how: How, uri: &str) -> AttachedVolume {
        let dir = (how == How::Fuse).then(|| PathBuf::from("/run/craton/v"));
        let device = (how == How::Nbd).then(|| PathBuf::from("/dev/nbd3"));
        let (volume, uri) = ("it's".to_owned(), uri.to_owned());
        AttachedVolume { volume, uri, how, device, dir, pid: None }
    }

    #[test]
    fn printed_commands_are_quoted_for_a_shell() {
        let fuse = commands(&note(How::Fuse, "nbd+unix:///it%27s?socket=/run/s"));
        let want = [
            "mkdir -p '/run/craton/v'",
            "nbdfuse '/run/craton/v/volume' 'nbd+unix:///it%27s?socket=/run/s' &",
            "losetup --find --show '/run/craton/v/volume'",
        ];
        assert_eq!(fuse, want);
        let unix = commands(&note(How::Nbd, "nbd+unix:///it%27s?socket=/a%20b"));
        let tail = "'/dev/nbd3' '-N' 'it'\\''s' '-connections' '4' '-timeout' '0'";
        assert_eq!(unix, [format!("nbd-client '-unix' '/a b' {tail}")]);
        let tcp = commands(&note(How::Nbd, "nbd://[::1]:7/it's"));
        assert_eq!(tcp, [format!("nbd-client '::1' '7' {tail}")]);
    }

    #[test]
    fn notes_of_missing_devices_are_removed() {
        let dir = crate::output::test_dir("notes");
        let notes = Notes::open(&dir).expect("a directory");
        let held = Notes::open(&dir).err().expect("one at a time");
        assert!(held.message.contains("attaches or detaches"), "{held}");
        notes.write(&note(How::Fuse, "nbd://x/a")).expect("it is written");
        assert_eq!(notes.all().expect("it reads"), []);
        fs::write(dir.join("x.json"), "{").expect("it is written");
        assert!(notes.all().is_err_and(|failure| failure.message.contains("damaged")));
        fs::remove_dir_all(dir).expect("it goes");
    }

    #[test]
    fn keys_of_volumes_differ() {
        let key = Notes::key;
        assert_ne!(key("a/b", "u"), key("a_b", "u"));
        assert_ne!(key("a", "u"), key("a", "v"));
        assert!(key("../x", "u").starts_with("___x-"));
    }
}
