//! Links between pages: the file that a link leads to is there, and so is the heading behind `#`; a
//! link that is called by a decision's number leads to that decision. Pages have no control characters.

use std::fs;
use std::path::{Path, PathBuf};

/// Folders whose pages are looked at, beside those at the root.
const ROOTS: &[&str] = &["docs", "bindings", "crates", "fuzz", "scripts"];

/// Follows the links of all pages.
pub fn check(breaches: &mut Vec<String>) {
    let mut pages = Vec::new();
    for entry in fs::read_dir(".").into_iter().flatten().flatten() {
        pages.extend(Some(PathBuf::from(entry.file_name())).filter(|path| is_page(path)));
    }
    ROOTS.iter().for_each(|root| collect(Path::new(root), &mut pages));
    let mut links = 0;
    for page in &pages {
        let text = fs::read_to_string(page).unwrap_or_default();
        if let Some(line) = text.lines().position(|line| line.chars().any(is_stray)) {
            breaches.push(format!("{}:{}: a control character", page.display(), line + 1));
        }
        for (number, link) in other_decisions(&text) {
            breaches.push(format!("{}: decision {number} links to {link}", page.display()));
        }
        for link in targets(&text) {
            links += 1;
            if let Some(missing) = unresolved(page, &text, link) {
                breaches.push(format!("{}: link to {link}: {missing}", page.display()));
            }
        }
    }
    if links == 0 {
        breaches.push("no page has a link".to_owned());
    }
}

/// Targets of a page's links to pages and files, outside of code.
fn targets(text: &str) -> Vec<&str> {
    let outside = text.split("```").step_by(2);
    let prose = outside.flat_map(|text| text.split('`').step_by(2));
    // The text of a link may be code, which ends the part that its brackets begin in.
    let links = prose.flat_map(|text| text.split("](").skip(1));
    let targets = links.filter_map(|rest| rest.split(')').next());
    targets.filter(|target| !target.contains("://") && !target.starts_with("mailto:")).collect()
}

fn is_stray(c: char) -> bool {
    c.is_control() && c != '\t' || c == '\u{a0}'
}

/// Links that are called by a decision's number and lead to another one.
fn other_decisions(text: &str) -> Vec<(u32, &str)> {
    let links = text.split("[decision ").skip(1).filter_map(|rest| {
        let (number, rest) = rest.split_once("](")?;
        Some((number.parse().ok()?, rest.split(')').next()?))
    });
    links.filter(|(number, link)| !link.contains(&format!("{number:04}-"))).collect()
}

/// What is missing where a link leads; `None` when it is all there.
fn unresolved(page: &Path, text: &str, link: &str) -> Option<String> {
    let (path, heading) = link.split_once('#').map_or((link, None), |(path, at)| (path, Some(at)));
    let file = page.parent().unwrap_or(Path::new("")).join(path);
    if !path.is_empty() && !file.exists() {
        return Some(format!("there is no {}", file.display()));
    }
    let heading = heading?;
    let other = if path.is_empty() { text.to_owned() } else { fs::read_to_string(&file).ok()? };
    (!slugs(&other).any(|slug| slug == heading)).then(|| format!("there is no heading {heading}"))
}

/// Anchors of a page's headings.
fn slugs(text: &str) -> impl Iterator<Item = String> {
    let headings = text.lines().filter_map(|line| line.strip_prefix('#'));
    headings.map(|heading| {
        let words = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = words.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    })
}

fn is_page(path: &Path) -> bool {
    path.extension().is_some_and(|kind| kind == "md")
}

fn collect(path: &Path, into: &mut Vec<PathBuf>) {
    for path in fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            if path.file_name().is_some_and(|name| name != "target") {
                collect(&path, into);
            }
        } else if is_page(&path) {
            into.push(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_a_page_are_found_outside_of_code() {
        let text =
            "[a](b.md) `[c](d.md)` [`e`](f.md#g)\n```\n[h](i.md)\n```\n[j](https://k.l/m.md)";
        assert_eq!(targets(text), ["b.md", "f.md#g"]);
    }

    #[test]
    fn decisions_under_other_numbers_and_stray_characters_are_found() {
        let text = "[decision 3](d/0003-a.md), [decision 4](d/0040-b.md) [decision](d/0005-c.md)";
        assert_eq!(other_decisions(text), [(4, "d/0040-b.md")]);
        assert_eq!(['a', '\t', '\u{1}', '\u{a0}'].map(is_stray), [false, false, true, true]);
    }

    #[test]
    fn links_that_lead_nowhere_are_breaches() {
        let text = "# Top\n## One thing: two, `three`\n";
        let missing = |link| unresolved(Path::new("src/links.rs"), text, link).is_some();
        for good in ["names.rs", "../Cargo.toml", "#top", "#one-thing-two-three", "../src"] {
            assert!(!missing(good), "{good}");
        }
        for bad in ["none.rs", "../none", "#one", "links.rs#no-such-heading"] {
            assert!(missing(bad), "{bad}");
        }
    }
}
