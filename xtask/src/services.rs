//! Numbers of services: each constant of a crate has its row in `docs/formats/services.md`, each row
//! its constant, and no number stands for two things.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

const PAGE: &str = "docs/formats/services.md";
/// A section of the page, and what stands before a number in the sources.
const KINDS: [(&str, &[&str]); 2] = [
    ("Services of frames", &["= Service(", "= Service::new("]),
    ("Tags of control messages", &["= ServiceTag::new("]),
];

/// Compares the page with the sources.
pub fn check(sources: &[PathBuf], breaches: &mut Vec<String>) {
    let page = fs::read_to_string(PAGE).unwrap_or_default();
    let sources: Vec<(String, String)> = sources
        .iter()
        .filter_map(|path| {
            let rest = path.strip_prefix("crates").ok()?;
            let name = rest.components().next()?.as_os_str().to_string_lossy().into_owned();
            rest.strip_prefix(&name).ok()?.starts_with("src").then_some(())?;
            Some((name, fs::read_to_string(path).ok()?))
        })
        .collect();
    for (section, before) in KINDS {
        compare(section, &rows(&page, section), &constants(&sources, before), breaches);
    }
}

type Numbers = Vec<(u32, String)>;

/// Numbers and crates of a section's table.
fn rows(page: &str, section: &str) -> Numbers {
    let text = page.split("\n## ").find(|text| text.starts_with(section)).unwrap_or_default();
    let rows = text.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" | `"));
    rows.filter_map(|(number, rest)| Some((number.parse().ok()?, rest.split('`').next()?.into())))
        .collect()
}

/// Numbers that crates define.
fn constants(sources: &[(String, String)], before: &[&str]) -> Numbers {
    let mut found = Vec::new();
    for (name, text) in sources {
        for rest in before.iter().flat_map(|before| text.split(before).skip(1)) {
            let digits = rest.split(')').next().unwrap_or_default();
            found.extend(digits.parse().ok().map(|number| (number, name.clone())));
        }
    }
    found
}

fn compare(section: &str, rows: &Numbers, constants: &Numbers, breaches: &mut Vec<String>) {
    if rows.is_empty() {
        breaches.push(format!("{PAGE} has no table under '{section}'"));
    }
    for (what, numbers) in [("rows", rows), ("constants", constants)] {
        let mut owners: BTreeMap<u32, Vec<&str>> = BTreeMap::new();
        for (number, name) in numbers {
            owners.entry(*number).or_default().push(name);
        }
        for (number, names) in owners.iter().filter(|(_, names)| names.len() > 1) {
            breaches.push(format!("{section}: {number} has {what} of {}", names.join(" and of ")));
        }
    }
    for (number, name) in rows.iter().filter(|row| !constants.contains(row)) {
        breaches.push(format!("{PAGE}: crate {name} has no constant {number} ({section})"));
    }
    for (number, name) in constants.iter().filter(|row| !rows.contains(row)) {
        breaches.push(format!("{PAGE} does not name {number} of crate {name} ({section})"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_and_differences_are_breaches() {
        let page = "# P\n## A\n\n| number | crate |\n|---|---|\n| 1 | `a` | x |\n| 2 | `b` | y |\n## B\n| 7 | `c` |\n";
        let source = |name: &str, text: &str| (name.to_owned(), text.to_owned());
        let all =
            [source("a", "const X: S = S(1);"), source("b", "const Y: S = S(2); f(S(other))")];
        let mut breaches = Vec::new();
        compare("A", &rows(page, "A"), &constants(&all, &["= S("]), &mut breaches);
        assert_eq!(breaches, Vec::<String>::new());
        let all = [source("a", "= S(1) = S(2)"), source("b", "= S(2) = S(3)")];
        compare("A", &rows(page, "A"), &constants(&all, &["= S("]), &mut breaches);
        assert_eq!(breaches.len(), 3, "{breaches:?}");
    }
}
