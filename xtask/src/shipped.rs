//! The binary as it is shipped: `cargo build -p craton`, without the features that the workspace's
//! tests turn on, and proof that neither the simulator nor planted bugs are in it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where the checked binary lies: the process tests run this one.
pub const BINARY: &str = "target/shipped/craton";
/// The simulator's binary, as the workspace's tests are built with: what must not be in `craton` is
/// in it, which proves that the check sees it.
const CONTROL: &str = "target/debug/craton-sim";

/// What betrays that a binary is not to be shipped: its cause, and bytes of which one is there.
const FOREIGN: &[(&str, &[&str])] = &[
    ("the simulator is linked", &["_ZN3sim", "crates/sim/src"]),
    ("bugs are planted", &["bugs are planted in this binary"]),
];
/// A function of the product: its name is there as long as symbols are.
const PRODUCT: &[&str] = &["_ZN10chunkstore"];

/// Builds, checks and keeps the binary; prints what is wrong.
pub fn run() -> bool {
    match check() {
        Ok(()) => true,
        Err(why) => {
            println!("shipped: {why}");
            false
        }
    }
}

fn check() -> Result<(), String> {
    // As the tests have it: built only where there is none.
    if !Path::new(CONTROL).is_file() {
        build(&["--package", "sim", "--bin", "craton-sim"], CONTROL)?;
    }
    let control = fs::read(CONTROL).map_err(|error| format!("{CONTROL}: {error}"))?;
    let craton = build(&["--package", "craton"], "target/debug/craton")?;
    if !holds(&craton, PRODUCT) {
        return Err("craton has no symbols: nothing can be proved".to_owned());
    }
    for (what, signs) in FOREIGN {
        if !holds(&control, signs) {
            return Err(format!("the check does not see that {what} in {CONTROL}"));
        }
        if holds(&craton, signs) {
            return Err(format!(
                "{what} in craton: a feature of a test or a dependency leaks into it"
            ));
        }
    }
    let kept = Path::new(BINARY);
    let keep = || {
        fs::create_dir_all(kept.parent().expect("a folder"))?;
        // A new file: the one before may run.
        let fresh = kept.with_extension("new");
        fs::write(&fresh, &craton)?;
        fs::set_permissions(&fresh, fs::metadata("target/debug/craton")?.permissions())?;
        fs::rename(&fresh, kept)
    };
    keep().map_err(|error: std::io::Error| format!("{BINARY} cannot be written: {error}"))
}

/// Builds with these arguments and reads what came of it.
fn build(args: &[&str], binary: &str) -> Result<Vec<u8>, String> {
    let status = Command::new("cargo").args(["build", "--locked"]).args(args).status();
    if !status.is_ok_and(|status| status.success()) {
        return Err(format!("cargo build {} fails", args.join(" ")));
    }
    let path = PathBuf::from(binary);
    fs::read(&path).map_err(|error| format!("{binary} cannot be read: {error}"))
}

fn holds(binary: &[u8], signs: &[&str]) -> bool {
    signs.iter().any(|sign| {
        let sign = sign.as_bytes();
        binary.windows(sign.len()).any(|window| window == sign)
    })
}
