//! Disk images: their formats, qemu-img, progress, runs of zeroes.

use std::cell::Cell;
use std::io::IsTerminal;
use std::path::Path;
use std::process::{Command, Stdio};

use indicatif::{ProgressBar, ProgressStyle};
use runtime::{Duration, Env, Instant};
use serde_json::json;

use super::args::{Format, ImageArgs};
use super::open::Site;
use crate::exit::{Done, Failure};
use crate::output::{bytes, print_error, print_json};

/// Bytes of a part of an image that is checked for zeroes: runs that are shorter than 4 KiB cannot
/// be left out of a volume.
pub const BLOCK: usize = 4096;
/// Runs of zeroes below this are written as data: one request less is worth more than the room.
const RUN_LEAST: usize = 64 << 10;

impl Format {
    /// Its name for qemu-img.
    pub fn name(self) -> &'static str {
        match self {
            Format::Raw => "raw",
            Format::Qcow2 => "qcow2",
            Format::Vmdk => "vmdk",
            Format::Vdi => "vdi",
            Format::Vhdx => "vhdx",
        }
    }

    /// The format of an image that begins so.
    pub fn of_head(head: &[u8]) -> Format {
        let known: [(usize, &[u8], Format); 4] = [
            (0, b"QFI\xfb", Format::Qcow2),
            (0, b"KDMV", Format::Vmdk),
            (0x40, &[0x7f, 0x10, 0xda, 0xbe], Format::Vdi),
            (0, b"vhdxfile", Format::Vhdx),
        ];
        let has =
            |at: usize, magic: &[u8]| head.get(at..).is_some_and(|rest| rest.starts_with(magic));
        let found = known.into_iter().find(|(at, magic, _)| has(*at, magic));
        found.map_or(Format::Raw, |(_, _, format)| format)
    }

    /// The format by a file's name.
    pub fn of_name(path: &Path) -> Format {
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        let known = [Format::Qcow2, Format::Vmdk, Format::Vdi, Format::Vhdx];
        let found = known.into_iter().find(|format| ending.eq_ignore_ascii_case(format.name()));
        found.unwrap_or(Format::Raw)
    }
}

/// A part of some bytes: its start, its length, and whether it is zeroes.
pub type Run = (usize, usize, bool);

/// Cuts bytes into runs of data and of zeroes, at multiples of a block.
pub fn runs(bytes: &[u8]) -> Vec<Run> {
    let mut found: Vec<Run> = Vec::new();
    for (index, block) in bytes.chunks(BLOCK).enumerate() {
        // Compiled into wide comparisons.
        let zero = block.iter().all(|&byte| byte == 0);
        match found.last_mut() {
            Some((_, len, last)) if *last == zero => *len += block.len(),
            _ => found.push((index * BLOCK, block.len(), zero)),
        }
    }
    let whole = bytes.len();
    let mut joined: Vec<Run> = Vec::new();
    for (at, len, zero) in found {
        let zero = zero && (len >= RUN_LEAST || len == whole);
        match joined.last_mut() {
            Some((_, last_len, last)) if *last == zero => *last_len += len,
            _ => joined.push((at, len, zero)),
        }
    }
    joined
}

/// Progress and counters of a copy.
pub struct Progress {
    bar: ProgressBar,
    env: Env,
    began: Instant,
    data: Cell<u64>,
    zeroes: Cell<u64>,
}

impl Progress {
    /// Of `total` bytes; 0 when the total is not known.
    pub fn new(env: &Env, total: u64, args: &ImageArgs) -> Progress {
        let bar = match args.quiet || args.json || !std::io::stderr().is_terminal() {
            true => ProgressBar::hidden(),
            false => ProgressBar::new(total),
        };
        let template = match total {
            0 => "{bytes} {bytes_per_sec}",
            _ => "{bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta}",
        };
        // The template is fixed: it is valid or the default is shown.
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        let (env, began) = (env.clone(), env.now());
        Progress { bar, env, began, data: Cell::new(0), zeroes: Cell::new(0) }
    }

    /// Data is through.
    pub fn moved(&self, count: u64) {
        self.data.set(self.data.get() + count);
        self.bar.inc(count);
    }

    /// Zeroes are left out.
    pub fn left_out(&self, count: u64) {
        self.zeroes.set(self.zeroes.get() + count);
        self.bar.inc(count);
    }

    /// Prints the figures: `verb` names the operation.
    pub fn finish(self, verb: &str, name: &str, made: bool, args: &ImageArgs) -> Done {
        self.bar.finish_and_clear();
        let took = (self.env.now() - self.began).max(Duration::from_millis(1)).as_secs_f64();
        let (data, zeroes) = (self.data.get(), self.zeroes.get());
        if args.json {
            return print_json(&json!({
                "volume": name,
                "bytes": data + zeroes,
                "data_bytes": data,
                "zero_bytes": zeroes,
                "made": made,
                "seconds": took,
            }));
        }
        if !args.quiet {
            let rate = (data as f64 / took) as u64;
            print_error(format_args!(
                "{verb}: {} of data and {} of zeroes in {took:.1} s ({}/s)",
                bytes(data),
                bytes(zeroes),
                bytes(rate)
            ));
        }
        Ok(())
    }
}

/// Runs qemu-img to its end, its bar on the terminal; returns its output when `quiet`.
pub async fn qemu_img(env: &Env, args: Vec<String>) -> Result<String, Failure> {
    let shown = args.first().cloned().unwrap_or_default();
    let bar = args.iter().any(|arg| arg == "-p");
    let run = move || {
        let mut command = Command::new("qemu-img");
        command.args(args).stdin(Stdio::null()).stderr(Stdio::piped());
        command.stdout(if bar { Stdio::inherit() } else { Stdio::piped() });
        command.spawn()?.wait_with_output()
    };
    let output = env.blocking("qemu-img", run).await.map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Failure::setup(
            "images other than raw ones need qemu-img: install it (package qemu-utils on Debian \
             and Ubuntu, qemu-img on Fedora)",
        ),
        _ => Failure::setup(format!("cannot run qemu-img: {error}")),
    })?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        let error = error.trim().replace('\n', "; ");
        return Err(Failure::failed(format!("qemu-img {shown} has failed: {error}")));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Bytes of an image that are neither holes nor zeroes; nothing when qemu-img cannot count them.
pub async fn data_bytes(env: &Env, file: &str, format: Format) -> Option<u64> {
    let map = ["map", "--output=json", "-f", format.name(), file].map(str::to_owned).to_vec();
    let map: serde_json::Value = serde_json::from_str(&qemu_img(env, map).await.ok()?).ok()?;
    let is_data = |part: &&serde_json::Value| part["data"] == true && part["zero"] != true;
    map.as_array()?.iter().filter(is_data).map(|part| part["length"].as_u64()).sum()
}

/// URI of a volume for qemu-img.
pub fn uri(site: &Site<'_>, name: &str) -> Result<String, Failure> {
    site.endpoints.volume_nearby(name).ok_or_else(|| {
        Failure::setup(
            "qemu-img reaches volumes through a front end, and none is known: name the cluster by \
             its directory, or run 'qemu-img convert -n' on nbd://FRONTEND/NAME",
        )
    })
}

/// Options that have qemu-img show its bar, when the output is a terminal.
pub fn bar(args: &ImageArgs) -> Option<String> {
    let shown = !args.quiet && !args.json && std::io::stdout().is_terminal();
    shown.then(|| "-p".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn formats_are_recognised() {
        assert_eq!(Format::of_head(b"QFI\xfb\0\0\0\x03"), Format::Qcow2);
        assert_eq!(Format::of_head(b"vhdxfile"), Format::Vhdx);
        let vdi = [&[0; 0x40][..], &[0x7f, 0x10, 0xda, 0xbe]].concat();
        assert_eq!(Format::of_head(&vdi), Format::Vdi);
        assert_eq!(Format::of_head(b""), Format::Raw);
        assert_eq!(Format::of_head(&[0; 512]), Format::Raw);
        assert_eq!(Format::of_name(Path::new("a/b.QCOW2")), Format::Qcow2);
        assert_eq!(Format::of_name(Path::new("qcow2")), Format::Raw);
    }

    proptest! {
        #[test]
        fn runs_cover_all_bytes(
            parts in prop::collection::vec((any::<bool>(), 1..40usize), 0..12),
            tail in 0..BLOCK,
        ) {
            let mut bytes = Vec::new();
            for (zero, blocks) in parts {
                bytes.resize(bytes.len() + blocks * BLOCK, u8::from(!zero));
            }
            bytes.resize(bytes.len() + tail, 0);
            let mut next = 0;
            let mut last = None;
            for (at, len, zero) in runs(&bytes) {
                prop_assert_eq!(at, next);
                prop_assert!(len > 0 && at % BLOCK == 0 && last != Some(zero));
                prop_assert!(!zero || bytes[at..at + len].iter().all(|&byte| byte == 0));
                prop_assert!(!zero || len >= RUN_LEAST || len == bytes.len());
                (next, last) = (at + len, Some(zero));
            }
            prop_assert_eq!(next, bytes.len());
        }
    }
}
