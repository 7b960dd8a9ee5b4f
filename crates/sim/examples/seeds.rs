//! Runs seeds of a scenario without the `craton` binary: `seeds SCENARIO FROM TO [THREADS]`, or
//! with a planted bug on one thread, until it is found: `seeds SCENARIO FROM TO BUG [ONE_IN]`,
//! which acts each time or one time in so many.

use std::process::ExitCode;

/// Number of acts of a planted bug, of its chances.
fn text(sim::Acts { chances, count }: sim::Acts) -> String {
    format!("it acted {count} times of {chances}")
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    let number = |at: usize| args.get(at).and_then(|text| text.parse::<u64>().ok());
    let (Some(name), Some(from), Some(to)) = (args.get(1), number(2), number(3)) else {
        eprintln!("usage: seeds SCENARIO FROM TO [THREADS]");
        return ExitCode::from(2);
    };
    let Some(scenario) = sim::find(name) else {
        eprintln!("no scenario {name}");
        return ExitCode::from(2);
    };
    let bug = |text: &String| {
        sim::Planted::ALL.into_iter().find(|bug| format!("{bug:?}").eq_ignore_ascii_case(text))
    };
    if let Some(bug) = args.get(4).and_then(bug) {
        let one_in = number(5).unwrap_or(1);
        for seed in from..to {
            match sim::run_planted(scenario, seed, bug, one_in) {
                (Ok(_), acts) => println!("seed {seed}: not found, {}", text(acts)),
                (Err(failure), acts) => {
                    println!("seed {seed}: {}: {}", text(acts), failure.violation);
                    return ExitCode::SUCCESS;
                }
            }
        }
        return ExitCode::FAILURE;
    }
    let threads = number(4).unwrap_or(1) as usize;
    let ran = sim::run_seeds(scenario, from..to, threads, |seed, outcome| {
        println!(
            "seed {seed}: {:016x}, {} events, {:?}, {:?}",
            outcome.trace_hash, outcome.events, outcome.elapsed, outcome.marks
        );
    });
    match ran {
        Ok(_) => ExitCode::SUCCESS,
        Err(failure) => {
            println!("{failure}\n{}", failure.violation);
            ExitCode::FAILURE
        }
    }
}
