//! Citations of rules: a number of `docs/protocols.md` and the two pages beside it, a decision or invariant of
//! `docs/design.md`, or a page below `docs`, that a source or document names, must be there.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const PROTOCOLS: &str = "docs/protocols.md";
const OBJECTS: &str = "docs/object-protocols.md";
const TAIL: &str = "docs/protocols-tail.md";
const DESIGN: &str = "docs/design.md";
/// Table of checkers, whose last column has numbers of invariants.
const CHECKERS: &str = "docs/simulation.md";

/// What can be cited.
#[derive(Default)]
struct Rules {
    /// Sections and rules of the protocols, as `3` and `3.4`.
    protocols: BTreeSet<String>,
    /// The same of the object service's.
    objects: BTreeSet<String>,
    /// The same of those about chasing, codes and health.
    tail: BTreeSet<String>,
    /// Sections of the design.
    sections: BTreeSet<String>,
    /// `D1` and the others.
    decisions: BTreeSet<String>,
    invariants: BTreeSet<String>,
}

/// Compares sources and documents with the pages.
pub fn check(sources: &[PathBuf], breaches: &mut Vec<String>) {
    let page = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let rules = Rules::of(&page(PROTOCOLS), &page(OBJECTS), &page(TAIL), &page(DESIGN));
    for (what, known) in [
        ("rules in docs/protocols.md", &rules.protocols),
        ("rules in docs/object-protocols.md", &rules.objects),
        ("rules in docs/protocols-tail.md", &rules.tail),
        ("sections in docs/design.md", &rules.sections),
        ("decisions in docs/design.md", &rules.decisions),
        ("invariants in docs/design.md", &rules.invariants),
    ] {
        if known.is_empty() {
            breaches.push(format!("there are no {what}"));
        }
    }
    let mut files = sources.to_vec();
    files.extend(["README.md", "ARCHITECTURE.md", "CHANGELOG.md"].map(PathBuf::from));
    collect_pages(Path::new("docs"), &mut files);
    for path in &files {
        let text = fs::read_to_string(path).unwrap_or_default();
        let is_source = path.extension().is_some_and(|kind| kind == "rs");
        let prose = if is_source { comments(&text) } else { text };
        for (line, missing) in rules.missing(&prose) {
            breaches.push(format!("{}:{line}: there is no {missing}", path.display()));
        }
        if is_source {
            for (line, name) in pages_named(&prose).filter(|(_, name)| !is_page(name)) {
                breaches.push(format!("{}:{line}: there is no page {name}", path.display()));
            }
        }
    }
    let checkers = checker_invariants(&page(CHECKERS));
    if checkers.is_empty() {
        breaches.push(format!("{CHECKERS} has no table of checkers with invariants"));
    }
    for number in checkers.iter().filter(|number| !rules.invariants.contains(*number)) {
        breaches.push(format!("{CHECKERS}: there is no invariant {number}"));
    }
}

impl Rules {
    fn of(protocols: &str, objects: &str, tail: &str, design: &str) -> Rules {
        let headings = |text: &str, mark: &str| -> BTreeSet<String> {
            let rests = text.lines().filter_map(|line| line.strip_prefix(mark));
            let words = rests.filter_map(|rest| rest.split(' ').next());
            words.map(|word| word.trim_end_matches('.').to_owned()).collect()
        };
        let is_number = |word: &String| word.starts_with(|c: char| c.is_ascii_digit());
        let rules = |page: &str| -> BTreeSet<String> {
            let all = headings(page, "## ").into_iter().chain(headings(page, "### "));
            all.filter(is_number).collect()
        };
        let invariants = design.split("**Invariant ").skip(1);
        Rules {
            protocols: rules(protocols),
            objects: rules(objects),
            tail: rules(tail),
            sections: headings(design, "## ").into_iter().filter(is_number).collect(),
            decisions: headings(design, "### D").into_iter().filter(is_number).collect(),
            invariants: invariants.flat_map(numbers).collect(),
        }
    }

    /// Lines of a text, with what they cite and is not there.
    fn missing(&self, prose: &str) -> Vec<(usize, String)> {
        let flat = prose.replace('\n', " ");
        let mut missing = Vec::new();
        let mut note = |at: usize, what: &str, cited: Vec<String>, known: &BTreeSet<String>| {
            for number in cited.into_iter().filter(|number| !known.contains(number)) {
                missing.push((line_of(prose, at), format!("{what}{number}")));
            }
        };
        for (at, rest) in behind(&flat, "protocols.md") {
            let cited = cited_sections(rest);
            if flat[..at].ends_with("object-") {
                note(at, "rule of object-protocols.md: ", cited, &self.objects);
                continue;
            }
            // Older decisions, which stay as they are, name sections 8 to 10 by the page that had them first.
            let not_tail = |number: &String| !number.contains('.') || !self.tail.contains(number);
            let cited = cited.into_iter().filter(not_tail).collect();
            note(at, "rule of protocols.md: ", cited, &self.protocols);
        }
        for (at, rest) in behind(&flat, "protocols-tail.md") {
            note(at, "rule of protocols-tail.md: ", cited_sections(rest), &self.tail);
        }
        for (at, rest) in behind(&flat, "design.md") {
            let rest = rest.trim_start_matches('`').strip_prefix(" section ");
            note(at, "section of design.md: ", rest.map_or(vec![], numbers), &self.sections);
        }
        let small = flat.to_ascii_lowercase();
        for word in ["invariant ", "invariants "] {
            for (at, rest) in behind(&small, word) {
                note(at, "invariant ", numbers(rest), &self.invariants);
            }
        }
        let edge = |at: usize| at == 0 || !flat.as_bytes()[at - 1].is_ascii_alphanumeric();
        for (at, rest) in behind(&flat, "D").into_iter().filter(|(at, _)| edge(*at)) {
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            let next = rest[digits..].chars().next();
            let is_word = next.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_');
            if (1..=2).contains(&digits) && !is_word {
                note(at, "decision D", vec![rest[..digits].to_owned()], &self.decisions);
            }
        }
        missing
    }
}

/// Where a word stands, and what follows it.
fn behind<'a>(text: &'a str, word: &str) -> Vec<(usize, &'a str)> {
    text.match_indices(word).map(|(at, found)| (at, &text[at + found.len()..])).collect()
}

/// Numbers that follow the name of a page, which may be in backticks or a link.
fn cited_sections(rest: &str) -> Vec<String> {
    let mut rest = rest.trim_start_matches('`');
    if let Some(link) = rest.strip_prefix("](") {
        rest = link.split_once(')').map_or("", |(_, rest)| rest);
    }
    let rest = rest.strip_prefix(',').unwrap_or(rest);
    let Some(rest) = rest.strip_prefix(' ') else { return Vec::new() };
    let named = ["sections ", "section "].iter().find_map(|word| rest.strip_prefix(word));
    numbers(named.unwrap_or(rest))
}

/// The list of numbers that a text begins with: `1, 2.3 and 4 to 6`.
fn numbers(mut rest: &str) -> Vec<String> {
    let mut found = Vec::new();
    loop {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let number = rest[..end].trim_end_matches('.');
        if !number.starts_with(|c: char| c.is_ascii_digit()) {
            return found;
        }
        found.push(number.to_owned());
        rest = &rest[number.len()..];
        let next =
            [", and ", ", ", " and ", " to "].iter().find_map(|word| rest.strip_prefix(word));
        let Some(next) = next else { return found };
        rest = next;
    }
}

/// Comments of a source, line by line; other lines are empty.
fn comments(source: &str) -> String {
    let lines = source.lines().map(|line| {
        // Not what stands in a text.
        let split = line.split_once("//").filter(|(code, _)| code.matches('"').count() % 2 == 0);
        let comment = split.map_or("", |(_, comment)| comment);
        comment.trim_start_matches(['/', '!']).trim()
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Paths below `docs` in a text.
fn pages_named(prose: &str) -> impl Iterator<Item = (usize, &str)> {
    behind(prose, "docs/").into_iter().map(|(at, rest)| {
        let is_path = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
        let end = rest.find(|c| !is_path(c)).unwrap_or(rest.len());
        let name = &prose[at..at + "docs/".len() + end];
        (line_of(prose, at), name.trim_end_matches(['.', '/']))
    })
}

/// A page or folder is there; a decision may be named by its number alone.
fn is_page(name: &str) -> bool {
    let decision = name.strip_prefix("docs/decisions/").filter(|number| number.len() == 4);
    let Some(number) = decision else { return Path::new(name).exists() };
    let entries = fs::read_dir("docs/decisions").into_iter().flatten().flatten();
    entries.into_iter().any(|entry| entry.file_name().to_string_lossy().starts_with(number))
}

/// Numbers in the last column of the table of checkers.
fn checker_invariants(page: &str) -> BTreeSet<String> {
    let text = page.split("\n## ").find(|text| text.starts_with("Checkers")).unwrap_or_default();
    let rows = text.lines().filter_map(|line| line.strip_suffix(" |")?.rsplit_once("| "));
    rows.flat_map(|(_, cell)| numbers(cell)).collect()
}

fn line_of(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

fn collect_pages(path: &Path, into: &mut Vec<PathBuf>) {
    for path in fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            collect_pages(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            into.push(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> Rules {
        let protocols = "# P\n## 1. A\n### 1.1 B\n### 1.2 C\n## 2. D\n### 2.1 E\n## Else\n";
        let design = "# D\n## 1. X\n### D1 A\n### D12 B\n## 3. Y\n| **Invariant 1** | x |\n\
                      | **Invariant 2** | y |\n";
        Rules::of(protocols, "## 1. A\n### 1.7 B\n", "## 8. A\n### 8.1 B\n### 8.10 C\n", design)
    }

    #[test]
    fn citations_that_resolve_are_no_breach() {
        for good in [
            "(`protocols.md` 1.1 and 2.1), `protocols.md` 2, D12, `protocols.md` 1: x",
            "`protocols.md` 1.1 to 1.2, 2.1. [protocols.md](protocols.md), sections 1 and 2",
            "`protocols.md`\n1.2). (`protocols.md`) is a page; `protocols.md` says 9",
            "`design.md` invariants 1 to 2, `design.md` section 3, design D1, Invariant: 9 times",
            "3D9, D123, AD9, D9_x, CRD 9",
            "`protocols-tail.md` 8.1, 8.10, `protocols.md` 2 and `protocols-tail.md` 8: x",
            "(`protocols-tail.md`\n8.1 e). [protocols-tail.md](protocols-tail.md) 8.10. `protocols-tail.md` says 9",
        ] {
            assert_eq!(rules().missing(good), [], "{good}");
        }
    }

    #[test]
    fn citations_that_lead_nowhere_are_breaches() {
        let missing = |text: &str| -> Vec<String> {
            let missing = rules().missing(text).into_iter();
            missing.map(|(line, what)| format!("{line} {what}")).collect()
        };
        assert_eq!(missing("a\n`protocols.md` 1.3"), ["2 rule of protocols.md: 1.3"]);
        assert_eq!(missing("`protocols.md` 1.1 and\n7"), ["1 rule of protocols.md: 7"]);
        assert_eq!(missing("`object-protocols.md` 1.7"), [""; 0]);
        assert_eq!(missing("`object-protocols.md` 1.1"), ["1 rule of object-protocols.md: 1.1"]);
        assert_eq!(missing("`protocols-tail.md` 8.1 to 8.2"), ["1 rule of protocols-tail.md: 8.2"]);
        assert_eq!(missing("`protocols-tail.md` 1"), ["1 rule of protocols-tail.md: 1"]);
        assert_eq!(missing("`protocols.md` 8.1, 8.2"), ["1 rule of protocols.md: 8.2"]);
        let link = "x\n[protocols-tail.md](protocols-tail.md), sections 8 and 9";
        assert_eq!(missing(link), ["2 rule of protocols-tail.md: 9"]);
        assert_eq!(missing("`design.md` section 2"), ["1 section of design.md: 2"]);
        assert_eq!(missing("(Invariants 1 and 3.)"), ["1 invariant 3"]);
        assert_eq!(missing("design D2"), ["1 decision D2"]);
        let source = format!("fn f() {{}} {0}! x D3\n{0}/ (`protocols.md`\n{0}/ 3.1)\n", "//");
        let prose = comments(&source);
        assert_eq!(missing(&prose), ["2 rule of protocols.md: 3.1", "1 decision D3"]);
    }

    #[test]
    fn pages_that_are_not_there_are_found() {
        let text = "see docs/formats/wire.md,\nand `docs/none.md`.";
        let named: Vec<_> = pages_named(text).collect();
        assert_eq!(named, [(1, "docs/formats/wire.md"), (2, "docs/none.md")]);
        assert!(!is_page("docs/none.md") && !is_page("docs/decisions/9999"));
    }

    #[test]
    fn invariants_are_read_from_the_table_of_checkers() {
        let page = "# S\n## Checkers\n| checker | what | invariants |\n|---|---|---|\n\
                    | `a` | x 9 | 1, 12 |\n| b | y | all |\n## Next\n| z | 3 |\n";
        assert_eq!(checker_invariants(page), ["1", "12"].map(str::to_owned).into());
    }
}
