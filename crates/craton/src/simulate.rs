//! `craton sim`: runs of the whole-cluster simulator.

use sim::Scenario;

use crate::args::SimCommand;
use crate::exit::{Done, Failure};
use crate::output::print_line;

/// Runs a command.
pub fn run(command: SimCommand) -> Done {
    match command {
        SimCommand::List => {
            for scenario in sim::SCENARIOS {
                print_line(&format!("{:<24} {}", scenario.name, scenario.about))?;
            }
            Ok(())
        }
        SimCommand::Run { scenario, seeds } => {
            let scenario = find(&scenario)?;
            let threads = std::thread::available_parallelism().map_or(1, |count| count.get());
            let range = seeds.start..seeds.end;
            let ran = quietly(|| sim::run_seeds(scenario, range, threads, |_, _| ()));
            let count = ran.map_err(|failure| Failure::failed(failure.to_string()))?;
            print_line(&format!("{}: {count} seeds good", scenario.name))
        }
        SimCommand::Replay { scenario, seed } => {
            let scenario = find(&scenario)?;
            let outcome = sim::run_seed(scenario, seed).map_err(|failure| {
                // The last line has its first line only.
                let rest = failure.violation.lines().skip(1);
                rest.for_each(|line| eprintln!("{line}"));
                Failure::failed(failure.to_string())
            })?;
            for (mark, count) in &outcome.marks {
                print_line(&format!("mark {mark}: {count}"))?;
            }
            print_line(&format!(
                "{} events in {:.3} s of virtual time\ntrace hash {:016x}",
                outcome.events,
                outcome.elapsed.as_secs_f64(),
                outcome.trace_hash
            ))
        }
    }
}

fn find(name: &str) -> Result<&'static Scenario, Failure> {
    sim::find(name).ok_or_else(|| {
        Failure::usage(format!("there is no scenario '{name}': 'craton sim list' names them"))
    })
}

/// A seed that fails is told in the last line: the panic's own report would repeat it.
fn quietly<T>(work: impl FnOnce() -> T) -> T {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let result = work();
    std::panic::set_hook(hook);
    result
}
