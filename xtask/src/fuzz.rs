//! Fuzzing without instrumentation: seeds and changed copies of them, on the stable toolchain.
//! What `fuzz/` has for coverage-guided runs is checked to compile where there is a nightly one.

use std::process::Command;

/// What to run.
pub struct Options {
    seconds: u64,
    seed: u64,
    target: Option<String>,
}

impl Options {
    /// From the words behind `cargo xtask fuzz`.
    pub fn parse(words: &[&str]) -> Option<Options> {
        let mut options = Options { seconds: 10, seed: 1, target: None };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match *word {
                "--seconds" => options.seconds = words.next()?.parse().ok()?,
                "--seed" => options.seed = words.next()?.parse().ok()?,
                name if !name.starts_with('-') && options.target.is_none() => {
                    options.target = Some(name.to_owned());
                }
                _ => return None,
            }
        }
        Some(options)
    }
}

/// Gives each target its seconds; false when one failed.
pub fn run(options: &Options) -> bool {
    let mut good = true;
    let own = options.target.as_deref().is_none_or(|name| name.starts_with("file_"));
    let other = options.target.as_deref().is_none_or(|name| !name.starts_with("file_"));
    let runs = [
        (other, ["--package", "sim", "--test", "fuzz"]),
        (own, ["--package", "craton", "--bin", "craton"]),
    ];
    for (_, package) in runs.iter().filter(|(wanted, _)| *wanted) {
        let mut cargo = Command::new("cargo");
        cargo.args(["test", "--locked"]).args(package);
        cargo.args(["decoders_stand", "--", "--nocapture"]);
        cargo.env("CRATON_FUZZ_S", options.seconds.to_string());
        cargo.env("CRATON_FUZZ_SEED", options.seed.to_string());
        if let Some(target) = &options.target {
            cargo.env("CRATON_FUZZ_TARGET", target);
        }
        good &= cargo.status().is_ok_and(|status| status.success());
    }
    good && check_guided()
}

fn check_guided() -> bool {
    let nightly = Command::new("cargo").args(["+nightly", "--version"]).output();
    if !nightly.is_ok_and(|output| output.status.success()) {
        println!("skipped: fuzz/ is not compiled: there is no nightly toolchain (rustup)");
        return true;
    }
    let mut cargo = Command::new("cargo");
    cargo.args(["+nightly", "check", "--bins", "--manifest-path", "fuzz/Cargo.toml"]);
    cargo.status().is_ok_and(|status| status.success())
}
