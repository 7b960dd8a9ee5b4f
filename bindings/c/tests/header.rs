//! `craton.h` against the functions that there are.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn read(path: &str) -> String {
    std::fs::read_to_string(here(path)).expect("it is committed")
}

/// C without its comments.
fn code(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, comment)) = rest.split_once("/*") {
        out.push_str(before);
        rest = comment.split_once("*/").expect("comments end").1;
    }
    out + rest
}

/// Functions of the header, with how many arguments they take.
fn declared() -> BTreeMap<String, usize> {
    let text = code(&read("include/craton.h"));
    let mut found = BTreeMap::new();
    for statement in text.split(';') {
        let Some((head, arguments)) = statement.split_once('(') else { continue };
        let name = head.rsplit([' ', '*', '\n']).next().expect("a last word");
        if !name.starts_with("craton_") || statement.contains("typedef") {
            continue;
        }
        let arguments = arguments.trim_end_matches([')', '\n', ' ']);
        let count = if arguments == "void" { 0 } else { arguments.split(',').count() };
        assert!(found.insert(name.to_owned(), count).is_none(), "{name} is declared twice");
    }
    found
}

/// Functions of the source, with how many arguments they take.
fn defined() -> BTreeMap<String, usize> {
    let text = read("src/api.rs");
    let parts = text.split("#[unsafe(no_mangle)]").skip(1);
    parts
        .map(|part| {
            let (_, rest) = part.split_once("extern \"C\" fn ").expect("a function of C");
            let (name, rest) = rest.split_once('(').expect("arguments");
            let (arguments, _) = rest.split_once(')').expect("their end");
            (name.to_owned(), arguments.matches(": ").count())
        })
        .collect()
}

#[test]
fn the_header_declares_what_there_is() {
    let (declared, defined) = (declared(), defined());
    assert!(declared.len() >= 13, "{declared:?}");
    assert_eq!(declared, defined);
    let header = read("include/craton.h");
    assert!(header.contains(concat!("\"", env!("CARGO_PKG_VERSION"), "\"")), "the version");
}

#[test]
fn the_library_exports_what_the_header_declares() {
    // Beside the test's own program.
    let dir = std::env::current_exe().expect("a program").parent().expect("a directory").to_owned();
    let library = dir.join("libcraton.so");
    assert!(library.is_file(), "{} is not built", library.display());
    let Ok(output) = Command::new("nm").args(["-D", "--defined-only"]).arg(&library).output()
    else {
        return println!("skipped: nm is not installed (package binutils)");
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let exported: Vec<&str> = text
        .lines()
        .filter_map(|line| line.rsplit(' ').next())
        .filter(|name| name.starts_with("craton_"))
        .collect();
    assert_eq!(exported, declared().keys().map(String::as_str).collect::<Vec<_>>());
}

#[test]
fn compilers_take_the_header() {
    let strict = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only"];
    for (compiler, language) in [("cc", "-std=c99"), ("c++", "-std=c++11")] {
        let mut command = Command::new(compiler);
        command.args(strict).args([language, "-x", if compiler == "cc" { "c" } else { "c++" }]);
        match command.arg(here("include/craton.h")).output() {
            Err(_) => println!("skipped: {compiler} is not installed"),
            Ok(output) => {
                let error = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{compiler}: {error}");
            }
        }
    }
}
