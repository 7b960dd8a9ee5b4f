//! How a gateway sends bodies in files: it makes them in its session's directory, has the range's owner keep them,
//! and gives them up (`object-protocols.md` 5.3 and 5.4).

use std::rc::Rc;

use object_proto::{
    Error, FileName, RangeBound, RangeId, RangeReply, RangeRequest, Reply, Request, SessionId,
    StorageRule,
};
use runtime::{Class, Duration};
use table::Store;
use wire::data::Purpose;

use crate::bodies::Pack;
use crate::keys::{Writer, writer_of};
use crate::limits::{ATTEMPT, PACK_LOOK, PAUSE};
use crate::packs::{OpenPack, SentFile};
use crate::paths::session_dir;
use crate::planted::Planted;
use crate::service::{Service, unexpected};
use crate::session::Stay;

impl Service {
    async fn session_store(
        &self,
        session: SessionId,
        storage: StorageRule,
    ) -> Result<Rc<dyn Store>, Error> {
        if let Some(store) = self.0.packs.dir.borrow().find(session, storage) {
            return Ok(store);
        }
        let store = self.0.files.dir_for(&session_dir(session), storage).await;
        let store = store.map_err(|fault| Error::Busy { cause: fault.message })?;
        self.0.packs.dir.borrow_mut().keep(session, storage, store.clone());
        Ok(store)
    }

    /// A file for a body of a range; one of its own for a body that is to have such a one.
    pub(crate) async fn take_pack(
        &self,
        stay: &Stay,
        range: RangeId,
        (storage, own): (StorageRule, bool),
    ) -> Result<OpenPack, Error> {
        stay.check_fresh()?;
        if !own && let Some(open) = self.0.packs.take(stay, range, storage) {
            return Ok(open);
        }
        let store = self.session_store(stay.session(), storage).await?;
        stay.check_fresh()?;
        let bounds = match self.map().await?.bounds(range) {
            Some((first, end)) => (first.clone(), end.cloned()),
            None => return Err(Error::Busy { cause: format!("{range} is no more") }),
        };
        let name = stay.file();
        let ended = {
            let (service, stay, name) = (Rc::downgrade(&self.0), stay.clone(), name.clone());
            let bounds = bounds.clone();
            Box::new(move || {
                let Some(service) = service.upgrade().map(Service) else { return };
                service.env().clone().spawn(Class::Background, "object: release", async move {
                    service.release(&stay, &bounds, name).await;
                });
            })
        };
        let file = SentFile::new(stay, (range, name.clone(), storage), ended);
        let pack = Pack::create(&*store, name, Purpose::Data).await?;
        self.begin_hold(&file);
        Ok(OpenPack { file, pack })
    }

    /// Has the owner of its range keep a file, beside the first body.
    fn begin_hold(&self, file: &Rc<SentFile>) {
        let (service, file) = (self.clone(), file.clone());
        if self.0.options.bugs.has(Planted::CommitUnlinked) {
            file.note_announced();
            return;
        }
        self.env().spawn(Class::Foreground, "object: hold", async move {
            // Whatever comes of it: the commit of a file that is not kept is refused.
            let _ = service.hold(file.range, &file.name, ATTEMPT).await;
            file.note_announced();
        });
    }

    /// Has the owner of a range keep a file: true when the file is gone.
    pub(crate) async fn hold(
        &self,
        range: RangeId,
        file: &FileName,
        timeout: Duration,
    ) -> Result<bool, Error> {
        let session = session_of(file)?;
        let hold = RangeRequest::Hold { session, file: file.clone() };
        match self.0.owners.call(Request::Range(range, hold), timeout).await? {
            Reply::Range(RangeReply::Held { gone }) => Ok(gone),
            _ => Err(unexpected()),
        }
    }

    /// Takes a file back that a body of `size` bytes was written to.
    pub(crate) fn give_back(&self, open: OpenPack, size: u64) {
        let options = self.0.options.packs;
        if open.pack.end() >= options.bytes || size >= options.own {
            return self.seal(open);
        }
        let mut idle = self.0.packs.idle.borrow_mut();
        idle.entry(open.file.range).or_default().push((self.env().now(), open));
        if !self.0.packs.sealing.replace(true) {
            let (service, env) = (Rc::downgrade(&self.0), self.env().clone());
            self.env().spawn(Class::Background, "object: idle files", async move {
                loop {
                    env.sleep(options.idle.min(PACK_LOOK)).await;
                    let Some(service) = service.upgrade().map(Service) else { return };
                    for open in service.0.packs.take_old(env.now(), options.idle) {
                        service.seal(open);
                    }
                    if service.0.packs.is_empty() {
                        service.0.packs.sealing.set(false);
                        return;
                    }
                }
            });
        }
    }

    /// Seals a file that takes no body any more.
    fn seal(&self, open: OpenPack) {
        self.env().spawn(Class::Background, "object: seal", async move {
            let OpenPack { file, pack } = open;
            let _ = pack.close().await; // The owner seals it again.
            drop(file);
        });
    }

    /// Has owners know that a file is written no more, and takes the session's name away: those of all ranges that
    /// are now where the file's was.
    async fn release(&self, stay: &Stay, bounds: &Bounds, file: FileName) {
        let (env, mut pause) = (self.env().clone(), PAUSE.0);
        let (session, mut at) = (stay.session(), Some(bounds.0.clone()));
        while let Some(bound) = &at {
            let request = RangeRequest::Release { session, file: file.clone() };
            match self.ask_behind(bound, request).await {
                Ok((_, (_, end))) => {
                    let is_within = |end: &RangeBound| bounds.1.as_ref().is_none_or(|to| end < to);
                    at = end.filter(is_within);
                    continue;
                }
                // What is left then goes with the session.
                Err(_) if stay.is_over() => return,
                Err(_) => {}
            }
            env.sleep(env.jitter(pause)).await;
            pause = (2 * pause).min(ATTEMPT);
        }
        if let Ok(store) = self.session_store(session, StorageRule::default()).await {
            let _ = store.remove(file.as_str()).await; // See above.
        }
    }
}

/// Where a range begins, and where it ends, if it is not the last one.
type Bounds = (RangeBound, Option<RangeBound>);

/// The session that has sent a file.
fn session_of(file: &FileName) -> Result<SessionId, Error> {
    match writer_of(file.as_str()) {
        Some(Writer::Session(session)) => Ok(session),
        _ => Err(unexpected()),
    }
}
