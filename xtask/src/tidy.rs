//! Rules of the tree: the crate graph, where unsafe code may stand, file lengths, pages that
//! must stay true.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::{circles, figures, links, names, rules, services, words};

/// Where unsafe code may stand (`design.md` section 4).
const UNSAFE_ALLOWED: &[&str] =
    &["crates/runtime", "crates/codec", "crates/chunkstore", "bindings"];
/// Libraries behind a wall, and the crates whose manifests name them.
const WALLED: &[(&str, &[&str])] = &[
    ("openraft", &["master-consensus"]),
    ("postcard", &["master-consensus"]),
    ("crc-fast", &["codec"]),
    ("prost", &["wire", "block-proto"]),
    ("s3s", &["object-gateway"]),
];
/// Lines of a source file, tests apart.
const LINES_MAX: usize = 800;

/// Checks all rules; prints each breach.
pub fn run() -> bool {
    let mut breaches = Vec::new();
    check_graph(&mut breaches);
    let mut sources = Vec::new();
    for root in ["crates", "bindings", "xtask", "fuzz", "experiments"] {
        collect(Path::new(root), &mut sources);
    }
    for path in &sources {
        check_source(path, &mut breaches);
    }
    check_fuzz_targets(&mut breaches);
    names::check(&mut breaches);
    links::check(&mut breaches);
    rules::check(&sources, &mut breaches);
    services::check(&sources, &mut breaches);
    circles::check(&mut breaches);
    figures::check(&mut breaches);
    words::check(&sources, &mut breaches);
    for page in ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "LICENSE"] {
        if !Path::new(page).is_file() {
            breaches.push(format!("{page} is missing"));
        }
    }
    for breach in &breaches {
        println!("tidy: {breach}");
    }
    println!("tidy: {} files, {} breaches", sources.len(), breaches.len());
    breaches.is_empty()
}

/// The table of crates in ARCHITECTURE.md: each crate's imports are those of its manifest, they come
/// before it, and its first page says what it never does.
fn check_graph(breaches: &mut Vec<String>) {
    let architecture = fs::read_to_string("ARCHITECTURE.md").unwrap_or_default();
    let rows = crate_rows(&architecture);
    let mut above: Vec<&str> = Vec::new();
    for (name, stated) in &rows {
        let folder = Path::new("crates").join(name);
        let Ok(manifest) = fs::read_to_string(folder.join("Cargo.toml")) else {
            breaches.push(format!("ARCHITECTURE.md names the crate {name}, which is not there"));
            continue;
        };
        let names: BTreeSet<&str> = rows.iter().map(|(name, _)| *name).collect();
        for (library, of) in WALLED.iter().filter(|(_, of)| !of.contains(name)) {
            if names_library(&manifest, library) {
                let of = of.join(", ");
                breaches.push(format!("crate {name} names {library}, which is behind {of}"));
            }
        }
        let imported = imports(&manifest, &names);
        for other in imported.symmetric_difference(stated) {
            let (by, way_out) = match stated.contains(other) {
                true => ("ARCHITECTURE.md", "add it to the manifest, or take it out of the row"),
                false => ("its manifest", "add it to the crate's row in ARCHITECTURE.md"),
            };
            breaches.push(format!("crate {name} imports {other} by {by} only: {way_out}"));
        }
        for other in imported.iter().filter(|other| !above.contains(other)) {
            breaches.push(format!("crate {name} imports {other}, which comes after it"));
        }
        above.push(name);
        let roots = ["src/lib.rs", "src/main.rs"].map(|root| fs::read_to_string(folder.join(root)));
        if !roots.iter().flatten().any(|text| text.contains("Invariant:")) {
            breaches.push(format!("crates/{name} does not say its 'Invariant:'"));
        }
    }
    for entry in fs::read_dir("crates").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.path().join("Cargo.toml").is_file() && !above.contains(&name.as_str()) {
            breaches.push(format!("crates/{name} is not in the table of ARCHITECTURE.md"));
        }
    }
}

/// Crates and their imports, besides `base`, in the order of the table under "Crates".
fn crate_rows(architecture: &str) -> Vec<(&str, BTreeSet<&str>)> {
    let section = architecture.split("\n## ").find(|section| section.starts_with("Crates\n"));
    let rows = section.unwrap_or_default().lines().filter_map(|line| line.strip_prefix("| `"));
    rows.filter_map(|row| {
        let (name, rest) = row.split_once("` | ")?;
        let imports = rest.split(" |").next()?.split(' ');
        Some((name, imports.filter(|name| !["", "-"].contains(name)).collect()))
    })
    .collect()
}

/// Crates of ours that a manifest names under its dependencies, besides `base`.
fn imports<'a>(manifest: &'a str, ours: &BTreeSet<&str>) -> BTreeSet<&'a str> {
    let section = manifest.split("\n[").find_map(|section| section.strip_prefix("dependencies]"));
    let names = section.unwrap_or_default().lines();
    let names = names.filter_map(|line| line.split(['.', ' ', '=']).next());
    names.filter(|name| *name != "base" && ours.contains(name)).collect()
}

/// True when a manifest has a dependency of this name, of whatever kind.
fn names_library(manifest: &str, library: &str) -> bool {
    let mut names = manifest.lines().filter_map(|line| line.split(['.', ' ', '=']).next());
    names.any(|name| name == library)
}

/// Every target of the replay has its coverage-guided twin in `fuzz/`, and a line in the page.
fn check_fuzz_targets(breaches: &mut Vec<String>) {
    let list = fs::read_to_string("crates/sim/src/fuzz.rs").unwrap_or_default();
    let words: Vec<&str> = list.split_whitespace().collect();
    let list = words.join(" ").replace("target( ", "target(");
    let page = fs::read_to_string("docs/fuzzing.md").unwrap_or_default();
    let manifest = fs::read_to_string("fuzz/Cargo.toml").unwrap_or_default();
    let names = |text: &str, before: &str| -> BTreeSet<String> {
        let found = text.split(before).skip(1).filter_map(|rest| rest.split('"').next());
        found.map(str::to_owned).collect()
    };
    let targets = names(&list, "target(\"");
    if targets.is_empty()
        || targets
            != names(&manifest, "name = \"")
                .into_iter()
                .filter(|name| name != "craton-fuzz")
                .collect()
    {
        breaches.push("fuzz/Cargo.toml has other targets than sim::fuzz::TARGETS".to_owned());
    }
    for name in targets {
        if !Path::new(&format!("fuzz/fuzz_targets/{name}.rs")).is_file() {
            breaches.push(format!("fuzz/fuzz_targets/{name}.rs is missing"));
        }
        if !page.contains(&format!("`{name}`")) {
            breaches.push(format!("docs/fuzzing.md does not name the target `{name}`"));
        }
    }
}

fn collect(path: &Path, into: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(path) else { return };
    let mut entries: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            if path.file_name().is_some_and(|name| name != "target") {
                collect(&path, into);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
}

fn check_source(path: &Path, breaches: &mut Vec<String>) {
    let text = fs::read_to_string(path).unwrap_or_default();
    let shown = path.display();
    let code = text.split("\n#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let is_test = path.components().any(|part| part.as_os_str() == "tests")
        || path.file_name().is_some_and(|name| name.to_string_lossy().contains("tests"));
    let lines = code.lines().count();
    if lines > LINES_MAX && !is_test {
        breaches.push(format!("{shown} has {lines} lines, {LINES_MAX} at most"));
    }
    let allowed = UNSAFE_ALLOWED.iter().any(|prefix| path.starts_with(prefix));
    let lines: Vec<&str> = text.lines().collect();
    for (index, line) in lines.iter().enumerate() {
        let number = index + 1;
        let code = line.split("//").next().unwrap_or_default();
        let is_unsafe =
            code.contains("unsafe {") || code.contains("unsafe impl") || code.contains("unsafe fn");
        if is_unsafe && !path.starts_with("xtask") {
            if !allowed {
                breaches.push(format!("{shown}:{number}: unsafe code has no place in this crate"));
            }
            let explained = lines[index.saturating_sub(8)..=index]
                .iter()
                .any(|l| l.contains("SAFETY:") || l.contains("# Safety"));
            if !explained {
                breaches.push(format!("{shown}:{number}: unsafe code without a SAFETY comment"));
            }
        }
        if is_byte_table(line) {
            breaches.push(format!("{shown}:{number}: byte tables are pages of docs/formats"));
        }
        let forbidden =
            [concat!("todo", "!("), concat!("unimplemented", "!("), concat!("dbg", "!(")];
        if forbidden.iter().any(|word| code.contains(word)) {
            breaches.push(format!("{shown}:{number}: unfinished code"));
        }
    }
}

/// A comment with the first row of a table of bytes.
fn is_byte_table(line: &str) -> bool {
    let row = line.trim_start().strip_prefix("//").map(|text| text.trim_start_matches(['/', '!']));
    let heads = ["| at |", "| offset |", "| bytes |"];
    row.is_some_and(|row| heads.iter().any(|head| row.trim_start().starts_with(head)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_tables_in_comments_are_found() {
        let comment = |mark: &str, text: &str| format!("{}{mark} {text}", "//");
        assert!(is_byte_table(&comment("!", "| at | bytes | field |")));
        assert!(is_byte_table(&comment("/", "| offset | size | field |")));
        assert!(!is_byte_table(&comment("", "bytes at an offset |")) && !is_byte_table("|at| x |"));
    }

    #[test]
    fn imports_are_read_from_the_table_and_from_manifests() {
        let page = "# A\n## Crates\n| crate | imports |\n|---|---|\n| `base` | - | x | y |\n\
                    | `a` | - | x | y |\n| `b` | a | x | y |\n## B\n| `c` | b |\n";
        let rows = crate_rows(page);
        let names: Vec<&str> = rows.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["base", "a", "b"]);
        assert_eq!(rows[2].1, BTreeSet::from(["a"]));
        let manifest = "[package]\nname = \"b\"\n[dependencies]\nbase.workspace = true\n\
                        a = { path = \"a\" }\nserde = \"1\"\n[dev-dependencies]\nb.workspace = true\n";
        assert_eq!(imports(manifest, &names.into_iter().collect()), BTreeSet::from(["a"]));
    }
}
