//! Runs seeds of a scenario without the `craton` binary: `seeds SCENARIO FROM TO`.

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    let [_, name, from, to] = &args[..] else {
        eprintln!("usage: seeds SCENARIO FROM TO");
        return ExitCode::from(2);
    };
    let Some(scenario) = sim::find(name) else {
        eprintln!("no scenario {name}");
        return ExitCode::from(2);
    };
    let (Ok(from), Ok(to)) = (from.parse(), to.parse()) else { return ExitCode::from(2) };
    let ran = sim::run_seeds(scenario, from..to, |seed, outcome| {
        println!(
            "seed {seed}: {:016x}, {} events, {:?}, {:?}",
            outcome.trace_hash, outcome.events, outcome.elapsed, outcome.marks
        );
        true
    });
    match ran {
        Ok(_) => ExitCode::SUCCESS,
        Err(failure) => {
            println!("{failure}\n{}", failure.violation);
            ExitCode::FAILURE
        }
    }
}
