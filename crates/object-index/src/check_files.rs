//! Checks of a range's files of bodies (`object-protocols.md` 10.3, 10.4): counts of what lives are compared with what
//! rows name, and files in the trash in which something lives come back. Each file has its turn once in 15 days.
//! An operator may ask for all at once; files that nothing can name go then too.

use std::cell::RefCell;
use std::ops::Range;

use codec::crc32c;
use object_proto::{Error, FileName, FilesChecked};
use runtime::sync::Notify;
use runtime::{Duration, Env};

use crate::collect::Collector;
use crate::decisions::unix_us;
use crate::file_rows::{FileRow, FileState};
use crate::keys::{KEPT, SENT};
use crate::limits::RECOUNT_LOOK;

/// Looks at a file again when something in it died while it was looked at, so often at most.
const LOOKS: usize = 5;
/// Between two looks whether the rows of a range's files are complete, after a split.
const PAUSE: Duration = Duration::from_millis(200);

/// The check that was begun last.
#[derive(Default)]
pub(crate) struct FileCheck {
    state: RefCell<FilesChecked>,
    begun: Notify,
}

impl FileCheck {
    /// How far a check is; begins one for a number that is not known.
    pub(crate) fn ask(&self, env: &Env, run: u64) -> FilesChecked {
        let state = &mut *self.state.borrow_mut();
        let is_under_way = state.run > 0 && !state.done;
        if !is_under_way && (run == 0 || run != state.run) {
            *state = FilesChecked { run: env.random_u64().max(1), ..FilesChecked::default() };
            self.begun.notify_waiters();
        }
        state.clone()
    }

    fn is_wanted(&self) -> bool {
        let state = self.state.borrow();
        state.run > 0 && !state.done
    }
}

impl Collector {
    /// Makes checks as they are asked for. For ever.
    pub(crate) async fn run_checks(&self, check: &FileCheck) {
        loop {
            let begun = check.begun.notified();
            if !check.is_wanted() {
                begun.await;
                continue;
            }
            let ended = self.check_all(check).await;
            let state = &mut *check.state.borrow_mut();
            state.failed = ended.err().map(|error| error.to_string());
            state.done = true;
        }
    }

    /// Counts what lives in each file again, when its time has come. For ever.
    pub(crate) async fn run_recounts(&self) {
        let (range, every) = (&self.range, self.options.recount);
        let pause = RECOUNT_LOOK.min(every / 8);
        // A little of what the owner before has looked at too.
        let mut last = unix_us(&range.env).saturating_sub(pause.as_micros() as u64);
        loop {
            range.env.sleep(range.env.jitter(pause)).await;
            let now = unix_us(&range.env);
            if self.inherits.get() {
                continue;
            }
            for (file, _) in range.files.all() {
                if !has_its_turn(&file, last..now, every) {
                    continue;
                }
                if range.check_lease().is_err() {
                    break;
                }
                range.env.mark("object: what lives in a file is counted again");
                if let Err(error) = self.check_file(&file).await {
                    tracing::debug!(%file, %error, "what lives in a file was not counted");
                }
            }
            last = now;
        }
    }

    async fn check_all(&self, check: &FileCheck) -> Result<(), Error> {
        // A pass makes rows for what the range has of the one that it was a part of.
        while self.inherits.get() {
            self.range.check_lease()?;
            self.range.env.sleep(PAUSE).await;
        }
        for kind in [SENT, KEPT] {
            let removed = self.remove_unknown(kind).await?;
            check.state.borrow_mut().removed += removed;
        }
        for (file, _) in self.range.files.all() {
            self.range.check_lease()?;
            let outcome = self.check_file(&file).await?;
            let state = &mut *check.state.borrow_mut();
            state.files += 1;
            state.corrected += u64::from(outcome != Outcome::Right);
            state.restored += u64::from(outcome == Outcome::Restored);
        }
        Ok(())
    }

    /// Sets the count of a file right that is written no more.
    async fn check_file(&self, file: &FileName) -> Result<Outcome, Error> {
        let range = &self.range;
        for _ in 0..LOOKS {
            let died = range.files.died(file);
            range.decisions.settled(range.decisions.last()).await?;
            let is_written = |row: FileRow| row.state == FileState::Held;
            if range.files.row(file).is_none_or(is_written) {
                return Ok(Outcome::Right);
            }
            let live = self.living(file).await?;
            // One step from here on.
            let Some(row) = range.files.row(file) else { return Ok(Outcome::Right) };
            if range.files.died(file) != died {
                continue;
            }
            let outcome = match row.state {
                FileState::Trash(..) if live > 0 => Outcome::Restored,
                _ if live != row.live => Outcome::Corrected,
                _ => return Ok(Outcome::Right),
            };
            tracing::error!(%file, live, was = row.live, "what lives in a file is not what its count says");
            let state = match row.state {
                FileState::Trash(len, _) if live > 0 => {
                    FileState::Sealed(len, range.decisions.now_us())
                }
                state => state,
            };
            let basis = self.set_row(file, FileRow { live, state })?;
            range.env.mark("object: a check has set a count right");
            range.decisions.settled(basis).await?;
            return Ok(outcome);
        }
        Ok(Outcome::Right)
    }
}

/// Whether a file's turn comes in a time, microseconds since 1970: at the same time of each period, by its name.
fn has_its_turn(file: &FileName, time: Range<u64>, every: Duration) -> bool {
    let every = (every.as_micros() as u64).max(1);
    let phase = crc32c(file.as_str().as_bytes()) as u64 * 1_000_003 % every;
    let turns = |until: u64| (until + every - phase) / every;
    turns(time.start) < turns(time.end)
}

/// What was found about a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// Its count was right, or it changed too often to say.
    Right,
    /// Its count was wrong.
    Corrected,
    /// It was in the trash though something lives in it.
    Restored,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However often and unevenly it is looked, each file has one turn in each period.
    #[test]
    fn each_file_has_its_turn_once_in_a_period() {
        let every = Duration::from_secs(1000);
        for number in 0..50 {
            let file = FileName::new(format!("sent-{number}"));
            let mut now = 1_790_000_000_000_000;
            let end = now + 10 * every.as_micros() as u64;
            let mut turns = 0;
            for step in 1_u64.. {
                let next = (now + step * 7_919_000 % 90_000_000).min(end);
                turns += u32::from(has_its_turn(&file, now..next, every));
                now = next;
                if now == end {
                    break;
                }
            }
            assert_eq!(turns, 10, "{file}");
            assert!(!has_its_turn(&file, end..end - 5, every), "a clock that was set back");
        }
    }
}
