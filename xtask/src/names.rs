//! Names in the documents: what stands between backticks and looks like an identifier or a file of
//! the tree must be there.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Where names come from.
const SOURCES: &[&str] = &["crates", "bindings", "xtask", "fuzz", "scripts", "docs/operations"];
/// Kinds of files that have them.
const KINDS: &[&str] = &["rs", "toml", "sh", "proto", "h", "c", "py", "service"];
/// Names of the kernel and of libraries, which the tree has no use of.
const FOREIGN: &[&str] = &["IORING_REGISTER_BUFFERS", "IORING_REGISTER_FILES", "stream_append"];

/// Checks every page below `docs` and the pages at the root.
pub fn check(breaches: &mut Vec<String>) {
    let mut files = Vec::new();
    SOURCES.iter().for_each(|root| collect(Path::new(root), &mut files));
    let mut words = BTreeSet::new();
    files.push("Makefile".into());
    files.push("Cargo.toml".into());
    // The tests of this file have names that are nowhere.
    for path in files.iter().filter(|path| !path.ends_with("xtask/src/names.rs")) {
        let known = path.extension().and_then(|kind| kind.to_str());
        if path.as_os_str() == "Makefile" || known.is_some_and(|kind| KINDS.contains(&kind)) {
            let text = fs::read(path).unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            let parts = text.split(|c: char| !is_word(c)).filter(|word| !word.is_empty());
            words.extend(parts.map(str::to_owned));
        }
    }
    let mut pages = vec!["ARCHITECTURE.md".into(), "README.md".into()];
    collect(Path::new("docs"), &mut pages);
    for page in pages.iter().filter(|page| page.extension().is_some_and(|kind| kind == "md")) {
        let text = fs::read_to_string(page).unwrap_or_default();
        for name in quoted(&text) {
            if let Some(missing) = unresolved(name, &words, &files) {
                let page = page.display();
                breaches.push(format!("{page} names `{name}`, but there is no {missing}"));
            }
        }
    }
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// What stands between single backticks, outside of blocks of code.
fn quoted(text: &str) -> Vec<&str> {
    let outside = text.split("```").step_by(2);
    let lines = outside.flat_map(str::lines);
    lines.flat_map(|line| line.split('`').skip(1).step_by(2)).collect()
}

/// The part of a name that is nowhere; `None` when all are there, or when it is no name.
fn unresolved<'a>(name: &'a str, words: &BTreeSet<String>, files: &[PathBuf]) -> Option<&'a str> {
    let is_file = KINDS.iter().any(|kind| name.ends_with(&format!(".{kind}")))
        && name.chars().all(|c| is_word(c) || "./-".contains(c));
    if is_file {
        let there = files.iter().any(|file| file.ends_with(name)) || Path::new(name).exists();
        return (!there).then_some(name);
    }
    if let Some((path, list)) = name.strip_suffix('}').and_then(|name| name.split_once("::{")) {
        let mut parts = list.split(", ").chain([path]);
        return parts.find_map(|part| unresolved(part, words, files));
    }
    let parts: Vec<&str> = name.trim_end_matches("()").split("::").collect();
    let is_path = parts.iter().all(|part| {
        part.chars().all(is_word) && part.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
    });
    // A single word in small letters may be anything: a command, a key, a value. One that begins
    // with a capital letter is a type, a variant or a field of a message.
    let camel = |part: &str| {
        part.as_bytes()
            .windows(2)
            .any(|two| two[0].is_ascii_lowercase() && two[1].is_ascii_uppercase())
    };
    let titled = |part: &str| {
        let bytes = part.as_bytes();
        bytes.len() > 1 && bytes[0].is_ascii_uppercase() && bytes[1].is_ascii_lowercase()
    };
    let looks = parts.len() > 1 || parts[0].contains('_') || camel(parts[0]) || titled(parts[0]);
    if !is_path || !looks {
        return None;
    }
    parts.into_iter().find(|part| !words.contains(*part) && !FOREIGN.contains(part))
}

fn collect(path: &Path, into: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(path) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            if path.file_name().is_some_and(|name| name != "target") {
                collect(&path, into);
            }
        } else {
            into.push(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_nowhere_are_found() {
        let words: BTreeSet<String> =
            ["Planted", "NoFence", "run_seed", "sim"].map(str::to_owned).into();
        let files = [PathBuf::from("crates/sim/src/run.rs")];
        let missing = |name| unresolved(name, &words, &files);
        for good in ["Planted::NoFence", "sim::run_seed()", "run_seed", "src/run.rs", "a b", "echo"]
        {
            assert_eq!(missing(good), None, "{good}");
        }
        assert_eq!(missing("Planted::EarlyOwner"), Some("EarlyOwner"));
        assert_eq!(missing("EarlyOwner"), Some("EarlyOwner"));
        assert_eq!(missing("run_seeds"), Some("run_seeds"));
        assert_eq!(missing("Bugs"), Some("Bugs"));
        assert_eq!(missing("sim::{Planted, run_seed}"), None);
        assert_eq!(missing("sim::{Planted, run_seeds}"), Some("run_seeds"));
        assert_eq!(missing("src/runs.rs"), Some("src/runs.rs"));
        assert_eq!(quoted("a `b` c `d::e`\n```\n`x_y`\n```\n`f`"), ["b", "d::e", "f"]);
    }
}
