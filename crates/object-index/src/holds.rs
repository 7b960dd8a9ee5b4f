//! Files that sessions send: kept while they are written, and until no session can commit in them any more
//! (`object-protocols.md` 5.4 and 5.5).
//!
//! A file is kept when the range's directory has a name of it and a row says that it is held; both are durable
//! before what was committed in it. So a commit finds its file alive and holds it, whichever server owns the range then.

use base::Kind;
use object_proto::{Error, FileName, RangeReply, SessionId};
use table::Purpose;

use crate::collect::{Collector, of_fault};
use crate::decisions::Basis;
use crate::file_rows::{FileRow, FileState};
use crate::keys::{FILE, KEPT, SENT, Writer, session_files, text_key, writer_of};
use crate::paths::session_dir;
use crate::planted::Planted;

impl Collector {
    /// Keeps a file that a session sends.
    pub(crate) async fn hold(
        &self,
        session: SessionId,
        file: &FileName,
    ) -> Result<RangeReply, Error> {
        if writer_of(file.as_str()) != Some(Writer::Session(session)) {
            return Err(Error::Invalid { message: format!("{file} is not the session's") });
        }
        let range = &self.range;
        range.know_session(session).await?;
        let _held = range.decisions.lock(&text_key(FILE, file.as_str())).await;
        self.check_open(session)?;
        if let Some(row) = range.files.row(file) {
            return Ok(RangeReply::Held { gone: matches!(row.state, FileState::Trash(..)) });
        }
        let _linking = range.files.link(file);
        if !self.link(session, file).await? {
            range.env.mark("object: a file to be kept is gone");
            return Ok(RangeReply::Held { gone: true });
        }
        // It may have been closed: then its files are not looked after any more.
        self.check_open(session)?;
        range.decisions.submit(|batch, _| {
            batch.set_purpose(Purpose::Data);
            batch.put(&text_key(FILE, file.as_str()), &FileRow::HELD.encode());
        })?;
        range.files.know_one(file, FileRow::HELD);
        Ok(RangeReply::Held { gone: false })
    }

    fn check_open(&self, session: SessionId) -> Result<(), Error> {
        match self.range.sessions.is_open(session) {
            Some(true) => Ok(()),
            Some(false) => Err(Error::SessionOver),
            None => Err(Error::Reroute),
        }
    }

    /// Gives a file of a session a name in the range's directory; false when it is gone.
    async fn link(&self, session: SessionId, file: &FileName) -> Result<bool, Error> {
        let names = [file.as_str().to_owned()];
        let dir = self.files.dir(&session_dir(session)).await.map_err(of_fault)?;
        match dir.link(&names, self.store.name()).await {
            Ok(()) => Ok(true),
            Err(fault) if fault.kind == Kind::NotFound => {
                // Another owner may have linked it, of this range or of one that it was a part of.
                let there = self.store.numbers(&names).await.map_err(of_fault)?;
                Ok(there.first().is_some_and(Option::is_some))
            }
            Err(fault) => Err(of_fault(fault)),
        }
    }

    /// Keeps a file of a session no longer than something lives in it.
    pub(crate) async fn release(&self, file: &FileName) -> Result<RangeReply, Error> {
        self.seal(file).await.map(|()| RangeReply::Done)
    }

    /// Seals a file that is held, of which nothing new is committed any more; ends when that is durable.
    pub(crate) async fn seal(&self, file: &FileName) -> Result<(), Error> {
        let range = &self.range;
        let _held = range.decisions.lock(&text_key(FILE, file.as_str())).await;
        let is_held = || range.files.row(file).filter(|row| row.state == FileState::Held);
        let Some(row) = is_held() else {
            return range.decisions.settled(range.decisions.last()).await;
        };
        let len = match self.store.seal(file.as_str()).await {
            Ok(len) => len,
            Err(fault) if fault.kind == Kind::NotFound && row.live == 0 => 0,
            Err(fault) => return Err(of_fault(fault)),
        };
        let basis = self.set_state(file, FileState::Sealed(len, range.decisions.now_us()))?;
        range.decisions.settled(basis).await
    }

    /// Submits what may become of a file from now on.
    pub(crate) fn set_state(&self, file: &FileName, state: FileState) -> Result<Basis, Error> {
        let live = self.range.files.row(file).map_or(0, |row| row.live);
        self.set_row(file, FileRow { live, state })
    }

    /// Submits the row of a file.
    pub(crate) fn set_row(&self, file: &FileName, row: FileRow) -> Result<Basis, Error> {
        let range = &self.range;
        let (_, basis) = range.decisions.submit(|batch, _| {
            batch.set_purpose(Purpose::Recovery);
            batch.put(&text_key(FILE, file.as_str()), &row.encode());
        })?;
        range.files.know_one(file, row);
        Ok(basis)
    }

    /// Gives up what a closed session has sent beside what is live, and its answers.
    pub(crate) async fn sweep(&self, session: SessionId) -> Result<(), Error> {
        let range = &self.range;
        if range.files.is_linking(session) {
            let cause = "a file of the session is being linked".to_owned();
            return Err(Error::Busy { cause });
        }
        let mut result = Ok(());
        for file in range.files.held_of(session) {
            // One that cannot be sealed holds up no other.
            result = result.and(self.seal(&file).await);
            range.env.mark("object: a file of a closed session is sealed");
        }
        result?;
        self.remove_unknown(&session_files(session)).await?;
        range.forget_session(session).await
    }

    /// Looks for files that no row has, when it is time to.
    pub(crate) async fn remove_orphans(&self) -> Result<(), Error> {
        if self.range.env.now() < self.orphans_at.get() {
            return Ok(());
        }
        for kind in [SENT, KEPT] {
            self.remove_unknown(kind).await?;
        }
        self.orphans_at.set(self.range.env.now() + self.options.orphans_interval);
        Ok(())
    }

    /// Removes the files with names that begin so which no row has, and none can get: those of sessions that are
    /// closed on record, and of owners that were shut out.
    /// Returns how many these were.
    pub(crate) async fn remove_unknown(&self, prefix: &str) -> Result<u64, Error> {
        let range = &self.range;
        let (mut after, mut removed) = (prefix.to_owned(), 0);
        loop {
            let page = self.store.list(&after).await.map_err(of_fault)?;
            let mut orphans = Vec::new();
            for name in page.names.iter().take_while(|name| name.starts_with(prefix)) {
                let file = FileName::new(name.as_str());
                if range.files.row(&file).is_none() && self.is_orphan(&file).await? {
                    orphans.push(file);
                }
            }
            if !orphans.is_empty() && !range.has_bug(Planted::OrphansOfOthers) {
                // A later owner may have taken one of a session while that was open. What is durable now shows that
                // there was none when it was seen to be closed.
                let (_, basis) = range.decisions.submit(|batch, _| {
                    batch.set_purpose(Purpose::Recovery);
                })?;
                range.decisions.settled(basis).await?;
            }
            for file in orphans.iter().filter(|file| range.files.row(file).is_none()) {
                self.remove(file).await?;
                removed += 1;
                range.env.mark("object: an orphan is removed");
            }
            match page.names.last() {
                Some(last) if page.more && last.starts_with(prefix) => after.clone_from(last),
                _ => return Ok(removed),
            }
        }
    }

    /// True of a file without a row that can get none any more.
    async fn is_orphan(&self, file: &FileName) -> Result<bool, Error> {
        let range = &self.range;
        if range.has_bug(Planted::OrphanKept) {
            return Ok(false);
        }
        match writer_of(file.as_str()) {
            Some(Writer::Session(session)) => {
                range.know_session(session).await?;
                Ok(range.sessions.is_open(session) == Some(false)
                    && range.files.row(file).is_none())
            }
            Some(Writer::Owner(of, epoch)) => {
                let is_written = self.outputs.borrow().has(file);
                // A range that this one was a part of, or has taken in, has no owner any more.
                let is_over = of != self.id || epoch <= range.epoch as u32;
                Ok(is_over && !is_written)
            }
            None => Ok(false),
        }
    }
}
