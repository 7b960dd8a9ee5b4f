//! The tables of `docs/formats/object-messages.md` are the lists of the source.

use std::collections::BTreeSet;

/// The types of a macro's calls, and what is between their braces, on one line.
fn lists<'a>(source: &'a str, call: &'a str) -> impl Iterator<Item = (&'a str, String)> {
    source.split(call).skip(1).map(|rest| {
        let (name, rest) = rest.split_once(" {").expect("a brace");
        let (body, _) = rest.split_once("});").expect("an end");
        let body = body.split_whitespace().collect::<Vec<_>>().join(" ");
        (name, body.trim_end_matches(',').to_owned())
    })
}

/// A variant with its fields, as the page has it.
fn variant(text: &str) -> String {
    match text.split_once(['(', '{']) {
        None => format!("`{text}`"),
        Some((name, fields)) => {
            let fields = fields.trim_end_matches([')', '}']).trim();
            format!("`{}` ({fields})", name.trim())
        }
    }
}

/// The variants of a list, as the page has them.
fn variants(body: &str) -> String {
    let mut parts = body.split(" => ");
    let mut number = parts.next().expect("a number");
    let mut shown = Vec::new();
    for part in parts {
        // Behind a variant the number of the next one follows.
        let is_number = |text: &str| text.parse::<u8>().is_ok();
        let (text, next) = match part.rsplit_once(", ").filter(|(_, next)| is_number(next)) {
            Some(both) => both,
            None => (part, ""),
        };
        shown.push(format!("{number} {}", variant(text)));
        number = next;
    }
    assert_eq!(number, "", "{body}");
    shown.join(", ")
}

/// The rows of the table under a heading, apart from its head.
fn documented(heading: &str) -> Vec<&'static str> {
    let page = include_str!("../../../../docs/formats/object-messages.md");
    let section = page.split("\n## ").find(|section| section.starts_with(heading));
    let lines = section.expect("the section is there").lines();
    lines.filter(|line| line.starts_with("| `")).collect()
}

/// Each row of the page is one of the source, in order of their types, and none is missing.
fn compare(heading: &str, mut of_source: Vec<String>) {
    of_source.sort();
    let of_page = documented(heading);
    for row in &of_source {
        assert!(of_page.contains(&row.as_str()), "the page lacks, or has otherwise:\n{row}");
    }
    assert_eq!(of_page, of_source, "{heading}");
}

const SOURCES: [&str; 2] = [include_str!("../wire.rs"), include_str!("../fields.rs")];

/// Numbers of the variants of a type.
pub fn numbers(name: &str) -> BTreeSet<u8> {
    let mut all = SOURCES.iter().flat_map(|source| lists(source, "\nchoice!("));
    let (_, body) = all.find(|(other, _)| *other == name).expect("it has variants");
    let before = body.split(" => ").filter_map(|part| part.split_whitespace().last());
    before.filter_map(|number| number.parse().ok()).collect()
}

#[test]
fn variants_are_those_of_the_page() {
    let all = SOURCES.iter().flat_map(|source| lists(source, "\nchoice!("));
    let rows: Vec<_> =
        all.map(|(name, body)| format!("| `{name}` | {} |", variants(&body))).collect();
    assert!(rows.len() > 20, "{rows:?}");
    compare("Variants\n", rows);
}

#[test]
fn records_are_those_of_the_page() {
    let all = SOURCES.iter().flat_map(|source| lists(source, "\nrecord!("));
    let rows: Vec<_> = all.map(|(name, body)| format!("| `{name}` | {body} |")).collect();
    assert!(rows.len() > 40, "{rows:?}");
    compare("Records\n", rows);
}
