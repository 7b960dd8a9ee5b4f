//! Checks of a range's files of bodies that an operator asks for (`object-protocols.md` 10.3, 10.4): counts of what
//! lives are compared with what rows name, files in the trash in which something lives come back, and those that
//! nothing can name go.

use std::cell::RefCell;

use object_proto::{Error, FileName, FilesChecked};
use runtime::sync::Notify;
use runtime::{Duration, Env};

use crate::collect::Collector;
use crate::decisions::unix_us;
use crate::file_rows::{FileRow, FileState};
use crate::keys::{KEPT, SENT};

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
                FileState::Trash(len, _) if live > 0 => FileState::Sealed(len, unix_us(&range.env)),
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
