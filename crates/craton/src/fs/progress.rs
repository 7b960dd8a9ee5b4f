//! Progress of `put` and `get`.

use std::cell::{Cell, RefCell};
use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};
use runtime::{Duration, Env, Instant};

use crate::exit::{Code, Done, Failure};
use crate::output::{bytes, print_error, print_failure, warn};

/// A progress bar on a terminal, warnings, and the figures at the end.
pub struct Progress {
    bar: ProgressBar,
    env: Env,
    began: Instant,
    quiet: bool,
    files: Cell<u64>,
    bytes: Cell<u64>,
    unchanged: Cell<u64>,
    skipped: Cell<u64>,
    failures: RefCell<Vec<Failure>>,
}

impl Progress {
    /// Of a copy of `total` bytes.
    pub fn new(env: &Env, total: u64, quiet: bool) -> Progress {
        let bar = if quiet || !std::io::stderr().is_terminal() {
            ProgressBar::hidden()
        } else {
            ProgressBar::new(total)
        };
        let template = "{bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta} {msg}";
        // The template is fixed: it is valid or the default is shown.
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Progress {
            bar,
            env: env.clone(),
            began: env.now(),
            quiet,
            files: Cell::new(0),
            bytes: Cell::new(0),
            unchanged: Cell::new(0),
            skipped: Cell::new(0),
            failures: RefCell::default(),
        }
    }

    /// More bytes are through.
    pub fn moved(&self, count: u64) {
        self.bytes.set(self.bytes.get() + count);
        self.bar.inc(count);
    }

    /// A file, link or directory is done.
    pub fn done(&self) {
        self.files.set(self.files.get() + 1);
    }

    /// A file is there already, from an earlier run.
    pub fn unchanged(&self, len: u64) {
        self.unchanged.set(self.unchanged.get() + 1);
        self.bar.inc(len);
    }

    /// Something is left out, as it has to be.
    pub fn warn(&self, why: &str) {
        self.bar.suspend(|| warn(why));
    }

    /// Something is left out that should not be.
    pub fn skip(&self, why: &str) {
        self.skipped.set(self.skipped.get() + 1);
        self.warn(why);
    }

    /// A file could not be copied; the others go on.
    pub fn fail(&self, failure: Failure) {
        self.bar.suspend(|| print_failure(&failure));
        self.failures.borrow_mut().push(failure);
    }

    /// True when going on makes no sense: the cluster does not answer.
    pub fn is_hopeless(&self) -> bool {
        let failures = self.failures.borrow();
        failures.len() >= 20 || failures.iter().any(|one| one.code == Code::Unavailable)
    }

    /// True when a file could not be copied.
    pub fn has_failures(&self) -> bool {
        !self.failures.borrow().is_empty()
    }

    /// Prints the figures.
    pub fn finish(self, verb: &str) -> Done {
        self.bar.finish_and_clear();
        let took = (self.env.now() - self.began).max(Duration::from_millis(1)).as_secs_f64();
        if !self.quiet {
            let rate = (self.bytes.get() as f64 / took) as u64;
            let mut line = format!(
                "{verb} {} files and links, {} in {took:.1} s ({}/s)",
                self.files.get(),
                bytes(self.bytes.get()),
                bytes(rate)
            );
            for (count, what) in [
                (self.unchanged.get(), "there already"),
                (self.skipped.get(), "skipped"),
                (self.failures.borrow().len() as u64, "failed"),
            ] {
                if count > 0 {
                    line += &format!(", {count} {what}");
                }
            }
            print_error(line);
        }
        let failures = self.failures.into_inner();
        match failures.first() {
            Some(first) => Err(Failure::new(
                first.code,
                format!(
                    "{} not copied, for what is said above; repeat the command to go on",
                    failures.len()
                ),
            )),
            None if self.skipped.get() > 0 => Err(Failure::new(
                Code::Partial,
                format!("{} were skipped, see the warnings", self.skipped.get()),
            )),
            None => Ok(()),
        }
    }
}
