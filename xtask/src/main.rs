//! Automation: `cargo xtask test` runs every stage of `make test`, `cargo xtask tidy` checks
//! the rules that no compiler checks.

mod test;
mod tidy;

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let good = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["test"] => test::run(test::Length::Commit),
        ["test", "--long"] => test::run(test::Length::Long),
        ["tidy"] => tidy::run(),
        _ => {
            eprintln!("usage: cargo xtask test [--long] | tidy");
            return ExitCode::from(2);
        }
    };
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
