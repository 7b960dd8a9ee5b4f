//! Automation: `cargo xtask test` runs every stage of `make test`, `cargo xtask tidy` checks
//! the rules that no compiler checks, `cargo xtask figures` fills figures into pages and draws plots,
//! `cargo xtask circles` prints a crate's circles of files, `cargo
//! xtask shipped` checks what the shipped binary links, `cargo xtask fuzz` mutates the corpora of all
//! decoders.

mod circles;
mod figures;
mod fuzz;
mod links;
mod names;
mod rules;
mod services;
mod shipped;
mod test;
mod tidy;
mod words;

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let good = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["test"] => test::run(test::Length::Commit),
        ["test", "--long"] => test::run(test::Length::Long),
        ["shipped"] => shipped::run(),
        ["tidy"] => tidy::run(),
        ["figures"] => figures::write(),
        ["figures", "--check"] => figures::run_check(),
        ["circles", name] => circles::print(name),
        ["fuzz", ref options @ ..] => match fuzz::Options::parse(options) {
            Some(options) => fuzz::run(&options),
            None => return usage(),
        },
        _ => return usage(),
    };
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn usage() -> ExitCode {
    eprintln!(
        "usage: cargo xtask test [--long] | shipped | tidy | figures [--check] | circles CRATE | fuzz [--seconds N] [--seed N] [TARGET]"
    );
    ExitCode::from(2)
}
