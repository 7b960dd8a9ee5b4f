//! Figures: the numbers in marked places of the pages are those of `docs/figures/figures.csv`, and
//! plots are those of their tables.
//!
//! A place is `<!-- fig:NAME -->1.42 to 1.59<!-- / -->`: the one value that the rows of the figure
//! have, or the least and the most of them. `cargo xtask figures` fills the places in and draws the
//! plots; with `--check`, and in `cargo xtask tidy`, what differs is a breach.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

const TABLE: &str = "docs/figures/figures.csv";
const HEAD: &str = "figure,value,unit,commit,machine,seed,date,command";
const PAGES: &[&str] = &["docs/figures/README.md", "docs/fidelity.md"];
const COST: &str = "docs/figures/cost-per-file.csv";
const COST_HEAD: &str = "dirs,files,creates_per_s,cpu_us_per_create,bytes_per_file,restart_ms";
const PLOT: &str = "docs/figures/cost-per-file.svg";
const OPEN: &str = "<!-- fig:";
const OPEN_END: &str = " -->";
const CLOSE: &str = "<!-- / -->";

/// Writes pages and plots; prints what stands in the way.
pub fn write() -> bool {
    let mut breaches = Vec::new();
    for (path, now, text) in made(&mut breaches) {
        if now == text {
            continue;
        }
        match fs::write(path, text) {
            Ok(()) => println!("figures: {path} is written"),
            Err(error) => breaches.push(format!("{path} cannot be written: {error}")),
        }
    }
    print(&breaches)
}

/// As [`check`], by itself.
pub fn run_check() -> bool {
    let mut breaches = Vec::new();
    check(&mut breaches);
    print(&breaches)
}

/// Compares pages and plots with what would be written.
pub fn check(breaches: &mut Vec<String>) {
    for (path, now, text) in made(breaches) {
        if now != text {
            let line = 1 + now.lines().zip(text.lines()).take_while(|(a, b)| a == b).count();
            breaches.push(format!(
                "{path}:{line}: not what its figures make of it: run 'cargo xtask figures'"
            ));
        }
    }
}

fn print(breaches: &[String]) -> bool {
    for breach in breaches {
        println!("figures: {breach}");
    }
    breaches.is_empty()
}

/// Path, content and content as it should be, of pages and plots.
fn made(breaches: &mut Vec<String>) -> Vec<(&'static str, String, String)> {
    let mut read = |path: &str| {
        fs::read_to_string(path).unwrap_or_else(|error| {
            breaches.push(format!("{path} cannot be read: {error}"));
            String::new()
        })
    };
    let (table, cost, plot) = (read(TABLE), read(COST), read(PLOT));
    let pages: Vec<_> = PAGES.iter().map(|&path| (path, read(path))).collect();
    let mut figures = figures(&table, breaches);
    let mut all = Vec::new();
    for (path, now) in pages {
        let text = fill(path, &now, &mut figures, breaches);
        all.push((path, now, text));
    }
    for (name, _) in figures.iter().filter(|(_, figure)| figure.places == 0) {
        breaches.push(format!("{TABLE}: no page has a place for {name}"));
    }
    match drawn(&cost) {
        Ok(text) => all.push((PLOT, plot, text)),
        Err(why) => breaches.push(format!("{COST}: {why}")),
    }
    all
}

/// The rows of one name.
#[derive(Default)]
struct Figure {
    /// Values as they are written in the table, and as numbers.
    values: Vec<(String, f64)>,
    unit: String,
    /// Places in the pages.
    places: usize,
}

impl Figure {
    fn text(&self) -> String {
        let by_value = |a: &&(String, f64), b: &&(String, f64)| a.1.total_cmp(&b.1);
        let least = self.values.iter().min_by(by_value).expect("a figure has a row");
        let most = self.values.iter().max_by(by_value).expect("a figure has a row");
        match least.1 == most.1 {
            true => grouped(&least.0),
            false => format!("{} to {}", grouped(&least.0), grouped(&most.0)),
        }
    }
}

/// A number with commas between thousands.
fn grouped(value: &str) -> String {
    let (whole, rest) = value.split_at(value.find('.').unwrap_or(value.len()));
    let mut text = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text + rest
}

/// The figures of a table.
fn figures(table: &str, breaches: &mut Vec<String>) -> BTreeMap<String, Figure> {
    let mut figures = BTreeMap::<String, Figure>::new();
    let mut lines = table.lines();
    if lines.next() != Some(HEAD) {
        breaches.push(format!("{TABLE} does not begin with '{HEAD}'"));
    }
    for (index, line) in lines.enumerate() {
        let mut wrong = |what: &str| breaches.push(format!("{TABLE}:{}: {what}", index + 2));
        let cells: Vec<&str> = line.split(',').collect();
        let [name, value, unit, commit, _machine, _seed, date, _command] = cells[..] else {
            wrong("not eight columns; none has a comma in it");
            continue;
        };
        if cells.iter().any(|cell| cell.trim() != *cell || cell.is_empty()) {
            wrong("an empty column, or spaces around one");
        }
        let digits = value.replace('.', "");
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        let Some(number) = value.parse::<f64>().ok().filter(|_| is_number) else {
            wrong("the value is no number of digits and a point");
            continue;
        };
        if !(7..=40).contains(&commit.len()) || !commit.bytes().all(|b| b.is_ascii_hexdigit()) {
            wrong("the commit is no hash");
        }
        let day: Vec<&str> = date.split('-').collect();
        if day.len() != 3 || day.iter().any(|part| part.parse::<u32>().is_err()) {
            wrong("the date is no YYYY-MM-DD");
        }
        let figure = figures.entry(name.to_owned()).or_default();
        if !figure.values.is_empty() && figure.unit != unit {
            wrong("another unit than the row above of the same figure");
        }
        unit.clone_into(&mut figure.unit);
        figure.values.push((value.to_owned(), number));
    }
    figures
}

/// A page with its places filled in.
fn fill(
    path: &str,
    page: &str,
    figures: &mut BTreeMap<String, Figure>,
    breaches: &mut Vec<String>,
) -> String {
    let mut parts = page.split(OPEN);
    let mut text = parts.next().unwrap_or_default().to_owned();
    let mut places = 0;
    for part in parts {
        text.push_str(OPEN);
        let place = part.split_once(OPEN_END).and_then(|(name, rest)| {
            let (_, rest) = rest.split_once(CLOSE)?;
            Some((name, rest))
        });
        let Some((name, rest)) = place else {
            breaches.push(format!("{path}: a place without an end: {OPEN}{}", first_line(part)));
            text.push_str(part);
            continue;
        };
        let Some(figure) = figures.get_mut(name) else {
            breaches.push(format!("{path}: {TABLE} has no figure {name}"));
            text.push_str(part);
            continue;
        };
        figure.places += 1;
        places += 1;
        text.push_str(&format!("{name}{OPEN_END}{}{CLOSE}{rest}", figure.text()));
    }
    if places == 0 {
        breaches.push(format!("{path} has no place for a figure"));
    }
    text
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

/// The plot of the CPU time of a create over the number of files.
fn drawn(table: &str) -> Result<String, String> {
    let mut lines = table.lines();
    if lines.next() != Some(COST_HEAD) {
        return Err(format!("does not begin with '{COST_HEAD}'"));
    }
    // Points (files, us) for each number of directories.
    let mut curves = BTreeMap::<u64, Vec<(f64, f64)>>::new();
    for line in lines {
        let cells: Vec<&str> = line.split(',').collect();
        let point = || {
            let (files, cpu): (f64, f64) =
                (cells.get(1)?.parse().ok()?, cells.get(3)?.parse().ok()?);
            Some((cells[0].parse().ok()?, (files, cpu)))
        };
        let (dirs, point) = point().ok_or_else(|| format!("no row of numbers: {line}"))?;
        curves.entry(dirs).or_default().push(point);
    }
    let points = || curves.values().flatten();
    let mut files: Vec<f64> = points().map(|point| point.0).collect();
    files.sort_by(f64::total_cmp);
    files.dedup();
    let (Some(&first), Some(&last)) = (files.first(), files.last()) else {
        return Err("has no rows".to_owned());
    };
    if first <= 0.0 || first == last {
        return Err("has less than two numbers of files".to_owned());
    }
    let top = points().map(|point| point.1).fold(0.0, f64::max) * 1.25;
    let x = |files: f64| 60.0 + 400.0 * (files / first).ln() / (last / first).ln();
    let y = |us: f64| 240.0 - 220.0 * us / top;
    let mut svg = String::from(
        "<svg xmlns='http://www.w3.org/2000/svg' width='620' height='290' \
         font-family='sans-serif' font-size='12'>\n\
         <rect width='620' height='290' fill='white'/>\n",
    );
    let mut add = |line: String| writeln!(svg, "{line}").expect("a text grows");
    for &count in &files {
        add(format!("<text x='{:.1}' y='258' text-anchor='middle'>{count}</text>", x(count)));
    }
    for step in 0..=4 {
        let us = top * f64::from(step) / 4.0;
        let (at, label) = (y(us), us.round());
        add(format!(
            "<path d='M60 {at:.1}H500' stroke='#ddd'/><text x='52' y='{:.1}' \
             text-anchor='end'>{label}</text>",
            at + 4.0
        ));
    }
    add("<text x='60' y='14'>CPU time per durable create, us</text>\
         <text x='280' y='278' text-anchor='middle'>files</text>"
        .to_owned());
    for ((dirs, points), colour) in curves.iter().zip(["#0a58ca", "#c2410c"].into_iter().cycle()) {
        let places: Vec<String> =
            points.iter().map(|&(files, us)| format!("{:.1},{:.1}", x(files), y(us))).collect();
        let places = places.join(" ");
        add(format!(
            "<polyline points='{places}' fill='none' stroke='{colour}' stroke-width='2'/>"
        ));
        let &(files, us) = points.last().expect("a curve has a point");
        let name = match dirs {
            1 => "one directory".to_owned(),
            _ => format!("{} directories", grouped(&dirs.to_string())),
        };
        let (at, level) = (x(files) + 8.0, y(us) + 4.0);
        add(format!("<text x='{at:.1}' y='{level:.1}' fill='{colour}'>{name}</text>"));
    }
    Ok(svg + "</svg>\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: &str = "figure,value,unit,commit,machine,seed,date,command\n\
                        a,1.59,ratio,0123abc,vm,-,2026-11-22,craton bench append\n\
                        a,1.42,ratio,0123abc,vm,-,2026-11-22,craton bench append\n\
                        b,32900,1/s,0123abc,vm,-,2026-11-22,craton bench meta\n";

    fn filled(table: &str, page: &str) -> (String, Vec<String>) {
        let mut breaches = Vec::new();
        let mut figures = figures(table, &mut breaches);
        let text = fill("p.md", page, &mut figures, &mut breaches);
        (text, breaches)
    }

    #[test]
    fn places_get_the_value_or_the_range_of_their_rows() {
        let page = "| x | <!-- fig:a -->9<!-- / --> in two runs, <!-- fig:b --><!-- / -->/s |\n";
        let (text, breaches) = filled(ROWS, page);
        assert_eq!(
            text,
            "| x | <!-- fig:a -->1.42 to 1.59<!-- / --> in two runs, \
             <!-- fig:b -->32,900<!-- / -->/s |\n"
        );
        assert_eq!(breaches, Vec::<String>::new());
        assert_eq!(filled(ROWS, &text).0, text);
        assert_eq!(
            ["1", "999", "1000", "1234567.8"].map(grouped),
            ["1", "999", "1,000", "1,234,567.8"]
        );
    }

    #[test]
    fn places_without_a_figure_or_an_end_are_breaches() {
        for (page, why) in [
            ("<!-- fig:c -->1<!-- / -->", "no figure c"),
            ("<!-- fig:a -->1", "without an end"),
            ("1.42", "no place"),
        ] {
            let (text, breaches) = filled(ROWS, page);
            assert_eq!(text, page);
            assert!(breaches.iter().any(|breach| breach.contains(why)), "{why}: {breaches:?}");
        }
    }

    #[test]
    fn rows_that_are_not_whole_are_breaches() {
        for (row, why) in [
            ("a,1,ratio,0123abc,vm,-,2026-11-22", "eight columns"),
            ("a,1,ratio,0123abc,vm,,2026-11-22,x", "empty"),
            ("a,fast,ratio,0123abc,vm,-,2026-11-22,x", "no number"),
            ("a,1,ratio,last,vm,-,2026-11-22,x", "no hash"),
            ("a,1,ratio,0123abc,vm,-,today,x", "no YYYY-MM-DD"),
            ("b,1,us,0123abc,vm,-,2026-11-22,x", "another unit"),
        ] {
            let (_, breaches) = filled(&format!("{ROWS}{row}\n"), "");
            assert!(breaches.iter().any(|breach| breach.contains(why)), "{why}: {breaches:?}");
        }
        let (_, breaches) = filled("figure,value\n", "");
        assert!(breaches[0].contains("does not begin"), "{breaches:?}");
    }

    #[test]
    fn a_plot_follows_its_table() {
        let table = format!("{COST_HEAD}\n1,10,0,4,0,0\n1,1000,0,8,0,0\n1000,10,0,2,0,0\n");
        let plot = drawn(&table).expect("it can be drawn");
        assert!(plot.contains("points='60.0,152.0 460.0,64.0'"), "{plot}");
        assert!(plot.contains(">1,000 directories</text>") && plot.ends_with("</svg>\n"));
        assert_ne!(drawn(&table.replace(",8,", ",9,")), Ok(plot));
        assert!(drawn(COST_HEAD).is_err() && drawn("files\n").is_err());
    }
}
