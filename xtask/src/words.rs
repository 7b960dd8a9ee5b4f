//! Words of the tree: terms that the glossary replaces, and references that must lead somewhere.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Words that are replaced by the field's, and how many times they are still there. The numbers
/// only go down: a change that removes some writes the new number here.
const REPLACED: &[(&str, usize)] = &[
    ("whoever", 0),
    ("somebody", 0),
    ("nobody", 0),
    ("anew", 0),
    ("meanwhile", 0),
    ("of late", 0),
    ("in vain", 0),
    ("on a bad day", 0),
    ("one behind the other", 0),
    ("told", 0),
    ("tells", 0),
    ("trouble", 0),
    ("troubles", 0),
    ("lent", 1),
    ("himself", 0),
    ("patience", 0),
    ("tenancy", 0),
    ("errand", 0),
    ("ailing", 0),
    ("census", 0),
    ("misfit", 0),
    ("glance", 0),
    ("bury", 0),
];
/// A crate that has the name of a replaced word, as text and code name it.
const CRATES: &[&str] = &["`tenancy`", "tenancy::", "crates/tenancy"];
/// Letters of the papers' mechanisms that have rows in `docs/fidelity.md`.
const MECHANISMS: &[char] = &['B', 'C', 'N'];

/// Checks sources, and the documents that are not frozen.
pub fn check(sources: &[PathBuf], breaches: &mut Vec<String>) {
    let mut files = sources.to_vec();
    files.extend(["README.md", "ARCHITECTURE.md"].map(PathBuf::from));
    collect_pages(Path::new("docs"), &mut files);
    ["scripts", "tests", "experiments", "crates"]
        .iter()
        .for_each(|path| collect(Path::new(path), &["sh", "py", "proto", "js"], &mut files));
    // The lists of words themselves.
    files.retain(|path| !path.starts_with("xtask") && !path.ends_with("glossary.md"));
    let glossary = fs::read_to_string("docs/glossary.md").unwrap_or_default();
    let replaced = replaced_in(&glossary);
    for (word, _) in REPLACED.iter().filter(|(word, _)| !replaced.contains(word)) {
        breaches.push(format!("docs/glossary.md does not say what replaces '{word}'"));
    }
    for word in replaced.iter().filter(|&&word| !REPLACED.iter().any(|(other, _)| *other == word)) {
        breaches.push(format!("'{word}' of docs/glossary.md is not among the words of xtask"));
    }
    let fidelity = fs::read_to_string("docs/fidelity.md").unwrap_or_default();
    let rows = fidelity.lines().filter_map(|line| line.strip_prefix('|')?.split('|').next());
    let mechanisms: BTreeSet<&str> = rows.flat_map(mechanisms_in).collect();
    let decisions = decisions();
    let mut found: Vec<Vec<String>> = vec![Vec::new(); REPLACED.len()];
    for path in &files {
        let text = fs::read_to_string(path).unwrap_or_default();
        let is_code = path.extension().is_some_and(|extension| extension == "rs");
        let is_page = path.extension().is_some_and(|extension| extension == "md");
        for (index, line) in text.lines().enumerate() {
            let place = || format!("{}:{}", path.display(), index + 1);
            let is_row = line.starts_with("| `") && path.ends_with("ARCHITECTURE.md");
            let mut line = CRATES.iter().fold(line.to_owned(), |line, name| line.replace(name, ""));
            if is_row {
                // Its second column names crates as manifests do.
                line = line.replace(" tenancy ", " ");
            }
            let line = &line;
            let parts = parts_of(line);
            for (places, (word, _)) in found.iter_mut().zip(REPLACED) {
                places.extend((0..occurrences(&parts, word)).map(|_| place()));
            }
            let prose = match is_code {
                true => line.split_once("//").map_or("", |(_, comment)| comment),
                false if is_page => line,
                false => "",
            };
            for id in mechanisms_in(prose).filter(|id| !mechanisms.contains(id)) {
                breaches.push(format!("{}: no mechanism {id} in docs/fidelity.md", place()));
            }
            for number in decisions_in(prose).filter(|number| !decisions.contains(number)) {
                breaches.push(format!("{}: there is no decision {number}", place()));
            }
        }
    }
    for ((word, limit), places) in REPLACED.iter().zip(found) {
        let count = places.len();
        if count > *limit {
            let places = places.join(", ");
            breaches.push(format!(
                "'{word}' is there {count} times, {limit} at most: docs/glossary.md has another \
                 word; it is at {places}"
            ));
        } else if count < *limit {
            breaches.push(format!("'{word}' is there {count} times: set its limit to that"));
        }
    }
}

/// Numbers of the decisions that there are.
fn decisions() -> BTreeSet<u32> {
    let entries = fs::read_dir("docs/decisions").into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter_map(|name| name.split('-').next()?.parse().ok()).collect()
}

/// Words that the glossary replaces. A row with a sense in brackets is about that alone, and no program can
/// judge it.
fn replaced_in(glossary: &str) -> BTreeSet<&str> {
    let table = glossary.split("## Words that were replaced").nth(1).unwrap_or_default();
    let rows = table.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    rows.filter(|cell| *cell != "not" && !cell.contains('('))
        .flat_map(|cell| cell.split(", "))
        .collect()
}

/// A line in small letters, with the parts of compound names apart.
fn parts_of(line: &str) -> String {
    let mut parts = String::with_capacity(line.len());
    let mut before = ' ';
    for c in line.chars() {
        if before.is_ascii_lowercase() && c.is_ascii_uppercase() {
            parts.push('_');
        }
        parts.push(c.to_ascii_lowercase());
        before = c;
    }
    parts
}

/// How often a word, or words, stand in such a line, alone or as a part of a name.
fn occurrences(line: &str, word: &str) -> usize {
    let is_edge = |c: Option<char>| !c.is_some_and(|c| c.is_ascii_alphanumeric());
    let places = line.match_indices(word);
    let whole = places.filter(|(at, _)| {
        is_edge(line[..*at].chars().next_back()) && is_edge(line[at + word.len()..].chars().next())
    });
    whole.count()
}

/// Mechanism IDs: a letter and one or two digits.
fn mechanisms_in(prose: &str) -> impl Iterator<Item = &str> {
    let words = prose.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| {
        word.starts_with(MECHANISMS)
            && (2..=3).contains(&word.len())
            && word[1..].bytes().all(|byte| byte.is_ascii_digit())
    })
}

/// Numbers behind the word "decision".
fn decisions_in(prose: &str) -> impl Iterator<Item = u32> {
    let rests = prose.split("decision ").skip(1);
    rests.filter_map(|rest| {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        rest[..digits].parse().ok()
    })
}

fn collect_pages(path: &Path, into: &mut Vec<PathBuf>) {
    collect(path, &["md"], into);
}

fn collect(path: &Path, extensions: &[&str], into: &mut Vec<PathBuf>) {
    for path in fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            // Decisions are frozen; packages of other people's are installed beside the tests of clients.
            if !path.ends_with("decisions") && !path.ends_with("node_modules") {
                collect(&path, extensions, into);
            }
        } else if path
            .extension()
            .is_some_and(|extension| extensions.iter().any(|one| extension == *one))
        {
            into.push(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_counted_whole() {
        let count = |line: &str, word| occurrences(&parts_of(line), word);
        assert_eq!(count("Disk asked disk_of_other: disk.", "disk"), 3);
        assert_eq!(count("fn is_late() -> Late; NotLate, latest, translate", "late"), 3);
        assert_eq!(occurrences("one of late, of later", "of late"), 1);
    }

    #[test]
    fn rows_without_a_sense_are_for_the_program() {
        let page = "| not | but |\n## Words that were replaced\n\n| not | but |\n|---|---|\n\
                    | a, in b | c |\n| look (of a table) | view |\n";
        assert_eq!(replaced_in(page), BTreeSet::from(["a", "in b"]));
    }

    #[test]
    fn references_are_found_in_prose() {
        let ids: Vec<_> = mechanisms_in("C14, (B4) and C22; not C144, CRC32 or B_4").collect();
        assert_eq!(ids, ["C14", "B4", "C22"]);
        let numbers = decisions_in("decision 30, [decision 6](x); the decision stands");
        assert_eq!(numbers.collect::<Vec<_>>(), [30, 6]);
    }
}
