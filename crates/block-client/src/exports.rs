//! [`VolumeExports`]: volumes as a front end serves them. A volume is attached while a client has
//! its export open, once for all connections of the front end.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};

use base::{Fault, Kind};
use block_proto::lease::{ANNOUNCE_INTERVAL, ANNOUNCE_INTERVAL_FIRST, KEEPALIVE_INTERVAL};
use block_proto::limits::{KEEPS_MAX, SEGMENTS_PAGE, VOLUMES_PAGE};
use block_proto::managers::{Managers, unexpected_reply};
use block_proto::paths::segment_path;
use block_proto::{
    BlockReply, BlockRequest, BlockRole, SegmentPlace, VolumeInfo, attachment_nonce, geometry,
};
use block_volume::contract::{AllocationExtent, Answer, Clear, Device};
use block_volume::export::{About, Exports, Names};
use block_volume::geometry::Extent;
use block_volume::ids::{SegmentId, VolumeId};
use client::Client;
use runtime::sync::{Mutex, Notify};
use runtime::{Buf, Class, Env};
use table::{ClientStore, Source, Store};
use transport::Endpoint;

use crate::limits::CLOSE_MAX;
use crate::planted::{Planted, planted};
use crate::{Attachment, DataFiles, Limits, Reads, Route, SegmentOwner, Shape, Volume};

struct VolumeExportsInner {
    env: Env,
    managers: Managers,
    endpoint: Endpoint,
    /// Name of the front end that attaches: the same after a restart.
    holder: String,
    /// Distinguishes this process from others of the same name, before it or beside it.
    process: u32,
    limits: Limits,
    /// Direct reads are on.
    direct: Cell<bool>,
    /// Reads of volumes that are closed by now.
    read: Cell<Reads>,
    open: RefCell<BTreeMap<String, Weak<AttachedVolume>>>,
    /// One opening at a time, so that connections share attachments.
    opening: Mutex<()>,
    detachments: Rc<Detachments>,
    /// The process ends: nothing is opened any more.
    closed: Cell<bool>,
}

/// Detachments that have begun and are not over.
#[derive(Default)]
struct Detachments {
    under_way: Cell<usize>,
    ended: Notify,
}

impl Detachments {
    /// Returns when all of them are over.
    async fn all_ended(&self) {
        loop {
            let ended = self.ended.notified();
            if self.under_way.get() == 0 {
                return;
            }
            ended.await;
        }
    }
}

/// A detachment; counted until it is dropped.
struct Detachment(Rc<Detachments>);

impl Detachment {
    fn begin(of: &Rc<Detachments>) -> Detachment {
        of.under_way.set(of.under_way.get() + 1);
        Detachment(of.clone())
    }
}

impl Drop for Detachment {
    fn drop(&mut self) {
        self.0.under_way.set(self.0.under_way.get() - 1);
        self.0.ended.notify_waiters();
    }
}

impl VolumeExportsInner {
    /// Attached volumes, without those whose attachments are over: they are not this client's any more.
    fn in_force(&self) -> Vec<Rc<AttachedVolume>> {
        let open = self.open.borrow();
        open.values().filter_map(Weak::upgrade).filter(|open| !open.is_over()).collect()
    }
}

/// All volumes of a cluster. Clones share their attachments.
#[derive(Clone)]
pub struct VolumeExports(Rc<VolumeExportsInner>);

/// An attached volume; detached with its last connection.
struct AttachedVolume {
    exports: Rc<VolumeExportsInner>,
    volume: Volume,
    id: VolumeId,
    name: String,
    epoch: u64,
    map: Rc<Map>,
}

/// The segment map of an attachment.
struct Map {
    managers: Managers,
    volume: VolumeId,
    over: Cell<bool>,
    owners: RefCell<Owners>,
}

/// Owners of segments, by number, as far as they are known.
#[derive(Default)]
struct Owners {
    known: BTreeMap<u32, SegmentOwner>,
    /// Earlier owners whose names a planted bug brings late.
    late: Vec<(u32, SegmentOwner)>,
}

/// DataFiles in the core's namespace.
struct CoreFiles(Client);

impl DataFiles for CoreFiles {
    fn open<'a>(&'a self, segment: SegmentId, name: &'a str) -> Answer<'a, Rc<dyn Source>> {
        Box::pin(async move {
            let store = ClientStore::find(&self.0, &segment_path(segment)).await;
            let store = store.map_err(|error| Fault::new(error.kind(), error.to_string()))?;
            store.open(name).await
        })
    }
}

impl VolumeExports {
    /// Exports of the managers' cluster. `holder` is the name of the front end, which one process has at a time.
    /// Managers refuse another one what the first has open, until that has been silent for seconds.
    pub fn new(
        managers: &Managers,
        endpoint: &Endpoint,
        holder: &str,
        limits: Limits,
    ) -> VolumeExports {
        let env = managers.client().env().clone();
        let exports = VolumeExports(Rc::new(VolumeExportsInner {
            env: env.clone(),
            managers: managers.clone(),
            endpoint: endpoint.clone(),
            holder: holder.to_owned(),
            process: draw(&env),
            limits,
            direct: Cell::new(true),
            read: Cell::default(),
            open: RefCell::default(),
            opening: Mutex::new(()),
            detachments: Rc::default(),
            closed: Cell::new(false),
        }));
        env.spawn(Class::Control, "frontend: keep", keep(Rc::downgrade(&exports.0)));
        env.spawn(Class::Control, "frontend: limits", follow_limits(Rc::downgrade(&exports.0)));
        exports
    }

    /// Reports to the managers every [`ANNOUNCE_INTERVAL`], while this lives, that the front end `name` takes
    /// connections at `addr`; until the first report has come through, every [`ANNOUNCE_INTERVAL_FIRST`].
    pub fn announce(&self, name: &str, addr: SocketAddr) {
        let (exports, name) = (Rc::downgrade(&self.0), name.to_owned());
        self.0.env.spawn(Class::Control, "frontend: here", async move {
            let mut pause = ANNOUNCE_INTERVAL_FIRST;
            while let Some(inner) = exports.upgrade() {
                let (env, managers) = (inner.env.clone(), inner.managers.clone());
                drop(inner);
                let role = BlockRole::Frontend;
                let here = BlockRequest::Here { role, name: name.clone(), addr };
                // When several reports are lost, it is shown as down.
                if managers.ask_once(&here, ANNOUNCE_INTERVAL).await.is_ok() {
                    pause = ANNOUNCE_INTERVAL;
                }
                env.sleep(env.jitter(pause)).await;
            }
        });
    }

    /// Direct reads of volumes that are opened from now on (decision 23): on, unless set otherwise.
    /// When chunkservers cannot be reached, block servers read for the client.
    pub fn set_direct_reads(&self, direct: bool) {
        self.0.direct.set(direct);
    }

    /// Reads of all volumes since the start.
    pub fn reads(&self) -> Reads {
        let open = self.0.open.borrow();
        let open = open.values().filter_map(Weak::upgrade).map(|open| open.volume.reads());
        open.fold(self.0.read.get(), Reads::and)
    }

    /// Volumes that are attached here.
    pub fn attached(&self) -> usize {
        self.0.open.borrow().values().filter(|open| open.strong_count() > 0).count()
    }

    /// Detaches all volumes before the process ends, so that the next one of the front end has them at once.
    /// Nothing is opened any more, and requests that are under way fail: the caller has ended its connections
    /// before. Returns after [`CLOSE_MAX`] in any case.
    pub async fn close(&self) {
        let inner = &self.0;
        inner.closed.set(true);
        let closing = async {
            self.detach_all();
            // An opening that was under way may have attached since. One that was dropped behind its request may be
            // attached: it ends by its silence.
            let _turn = inner.opening.lock().await;
            self.detach_all();
            inner.detachments.all_ended().await;
        };
        if inner.env.timeout(CLOSE_MAX, closing).await.is_err() {
            tracing::warn!(
                "volumes are not detached: no answer of block servers or managers; the next front \
                 end of this ID waits until they are silent"
            );
        }
    }

    fn detach_all(&self) {
        self.0.in_force().iter().for_each(|open| open.detach());
    }

    async fn attach(&self, name: &str) -> Result<Rc<AttachedVolume>, Fault> {
        let inner = &self.0;
        let request = BlockRequest::Attach {
            name: name.to_owned(),
            nonce: attachment_nonce(inner.process, draw(&inner.env)),
            holder: inner.holder.clone(),
        };
        let (info, epoch) = match inner.managers.ask(request).await? {
            BlockReply::Attached { volume, epoch } => (volume, epoch),
            other => return Err(unexpected_reply(&other).into()),
        };
        let map = Rc::new(Map {
            managers: inner.managers.clone(),
            volume: info.volume,
            over: Cell::new(false),
            owners: RefCell::default(),
        });
        let geometry = geometry(&info.spec)
            .map_err(|error| Fault::new(Kind::Invalid, format!("{name}: {error}")))?;
        let shape = Shape { volume: info.volume, geometry, bytes: info.spec.bytes };
        let others = info.attachments.iter().map(|one| one.epoch);
        let fence = others.min().unwrap_or(epoch).min(epoch);
        let attachment = Attachment { epoch, fence };
        let (env, endpoint) = (&inner.env, inner.endpoint.clone());
        let volume = Volume::new(env, endpoint, map.clone(), shape, attachment, inner.limits);
        volume.set_limits(info.spec.limits, info.attachments.len());
        if inner.direct.get() {
            volume.read_directly(Rc::new(CoreFiles(inner.managers.client().clone())));
        }
        let (exports, id) = (inner.clone(), info.volume);
        let name = name.to_owned();
        Ok(Rc::new(AttachedVolume { exports, volume, id, name, epoch, map }))
    }
}

impl Exports for VolumeExports {
    fn names<'a>(&'a self, after: Option<&'a str>) -> Answer<'a, Names> {
        Box::pin(async move {
            let after = after.map(str::to_owned);
            let request = BlockRequest::List { after, limit: VOLUMES_PAGE };
            match self.0.managers.ask(request).await? {
                BlockReply::Volumes { volumes, more } => {
                    let names = volumes.into_iter().map(|info| info.spec.name).collect();
                    Ok(Names { names, more })
                }
                other => Err(unexpected_reply(&other).into()),
            }
        })
    }

    fn about<'a>(&'a self, name: &'a str) -> Answer<'a, About> {
        Box::pin(async move { Ok(about(&self.0.managers.volume(name).await?)) })
    }

    fn open<'a>(&'a self, name: &'a str) -> Answer<'a, Rc<dyn Device>> {
        Box::pin(async move {
            let _turn = self.0.opening.lock().await;
            if self.0.closed.get() {
                return Err(Fault::new(Kind::Unknown, "the front end is going down"));
            }
            let open = self.0.open.borrow().get(name).and_then(Weak::upgrade);
            if let Some(open) = open.filter(|open| !open.is_over()) {
                let info = self.0.managers.volume(name).await?;
                // Another volume may have the name by now. A volume that was deleted by force and
                // brought back has no attachments.
                let attached = info.attachments.iter().any(|one| one.epoch == open.epoch);
                if info.volume == open.id && attached {
                    open.volume.set_bytes(info.spec.bytes);
                    open.volume.set_limits(info.spec.limits, info.attachments.len());
                    return Ok(open as Rc<dyn Device>);
                }
            }
            let attached = self.attach(name).await?;
            let opened = &mut *self.0.open.borrow_mut();
            opened.retain(|_, open| open.strong_count() > 0);
            opened.insert(name.to_owned(), Rc::downgrade(&attached));
            Ok(attached as Rc<dyn Device>)
        })
    }
}

fn about(info: &VolumeInfo) -> About {
    About {
        bytes: info.spec.bytes,
        description: match info.parent {
            Some(_) => format!("snapshot {}", info.spec.name),
            None => format!("volume {}", info.spec.name),
        },
        read_only: info.parent.is_some(),
        // All connections of this front end have one attachment.
        shared: true,
    }
}

impl AttachedVolume {
    fn is_over(&self) -> bool {
        self.map.over.get() || self.volume.is_over()
    }

    /// Begins to end its sessions and then the attachment, unless that is over.
    fn detach(&self) {
        if self.is_over() {
            return;
        }
        // It is not renewed any more, and not detached again.
        self.map.over.set(true);
        let (volume, managers) = (self.volume.clone(), self.exports.managers.clone());
        let request = BlockRequest::Detach { volume: self.id, epoch: self.epoch };
        let detachment = Detachment::begin(&self.exports.detachments);
        self.exports.env.spawn(Class::Foreground, "frontend: detach", async move {
            let _detachment = detachment;
            volume.close().await;
            if let Err(error) = managers.ask(request).await {
                // The manager ends it when it is not renewed for a while.
                tracing::debug!(%error, "not detached");
            }
        });
    }
}

impl Drop for AttachedVolume {
    fn drop(&mut self) {
        let read = &self.exports.read;
        read.set(read.get().and(self.volume.reads()));
        self.detach();
    }
}

impl Device for AttachedVolume {
    fn bytes(&self) -> u64 {
        self.volume.bytes()
    }

    fn read(&self, extent: Extent) -> Answer<'_, Buf> {
        self.volume.read(extent)
    }

    fn write(&self, offset: u64, data: Buf) -> Answer<'_, ()> {
        self.volume.write(offset, data)
    }

    fn clear(&self, extent: Extent, how: Clear) -> Answer<'_, ()> {
        self.volume.clear(extent, how)
    }

    fn pieces(&self, extent: Extent, most: usize) -> Answer<'_, Vec<AllocationExtent>> {
        self.volume.pieces(extent, most)
    }
}

impl Map {
    /// Asks the manager for a segment's owner, and has it look at one that is doubted.
    async fn ask(
        &self,
        segment: SegmentId,
        doubt: Option<SegmentOwner>,
    ) -> Result<Vec<SegmentPlace>, Fault> {
        // The first question brings the neighbours too.
        let limit = if doubt.is_none() { SEGMENTS_PAGE } else { 1 };
        let map = BlockRequest::Map { volume: self.volume, from: segment.index, limit };
        let asked = match doubt {
            Some(owner) => BlockRequest::Doubt { segment, epoch: owner.epoch },
            None => map.clone(),
        };
        let answer = match self.managers.ask(asked).await {
            // A manager of an older version looks at nothing unasked.
            Err(error) if doubt.is_some() && error.kind() == Kind::Invalid => {
                self.managers.ask(map).await?
            }
            answer => answer?,
        };
        match answer {
            BlockReply::Map { segments, .. } => Ok(segments),
            other => Err(unexpected_reply(&other).into()),
        }
    }
}

impl Owners {
    fn get(&self, segment: SegmentId) -> Option<SegmentOwner> {
        self.known.get(&segment.index).copied()
    }

    /// Has earlier owners be known again, if that is planted: as if answers to earlier questions came last.
    fn bring_back(&mut self) {
        if planted(Planted::EarlierOwner) {
            self.known.extend(self.late.drain(..));
        }
    }

    /// Takes over what managers have answered. Two questions may be answered in either order: an owner of an
    /// earlier epoch than the one that is known has lost the segment.
    fn note(&mut self, found: &[SegmentPlace]) {
        for SegmentPlace { index, addr, epoch, .. } in found {
            let is_earlier = self.known.get(index).is_some_and(|known| known.epoch > *epoch);
            if let Some(addr) = addr.filter(|_| !is_earlier) {
                let before = self.known.insert(*index, SegmentOwner { addr, epoch: *epoch });
                if planted(Planted::EarlierOwner) {
                    let before = before.filter(|before| before.epoch < *epoch);
                    self.late.extend(before.map(|before| (*index, before)));
                }
            }
        }
    }
}

impl Route for Map {
    fn place(&self, segment: SegmentId, doubt: Option<SegmentOwner>) -> Answer<'_, SegmentOwner> {
        Box::pin(async move {
            if self.over.get() {
                return Err(Fault::new(Kind::Fenced, "the attachment is over"));
            }
            self.owners.borrow_mut().bring_back();
            let known = self.owners.borrow().get(segment);
            if let Some(owner) = known.filter(|&owner| Some(owner) != doubt) {
                return Ok(owner);
            }
            let found = self.ask(segment, doubt.filter(|_| known.is_some())).await?;
            let owners = &mut *self.owners.borrow_mut();
            owners.note(&found);
            let now = found.first().filter(|found| found.index == segment.index);
            now.filter(|now| now.addr.is_some()).and_then(|_| owners.get(segment)).ok_or_else(
                || {
                    let text =
                        format!("{segment}: no block server has it now; one must be running");
                    Fault::new(Kind::Retry, text)
                },
            )
        })
    }
}

/// 32 random bits.
fn draw(env: &Env) -> u32 {
    (env.random_u64() >> 32) as u32
}

/// Renews attachments at the managers, and learns which are over.
///
/// It waits for nothing else: an attachment that is not renewed for seconds is another process's.
async fn keep(exports: Weak<VolumeExportsInner>) {
    while let Some(inner) = exports.upgrade() {
        let (env, managers, open) = (inner.env.clone(), inner.managers.clone(), inner.in_force());
        drop(inner);
        for open in open.chunks(KEEPS_MAX) {
            let attachments = open.iter().map(|open| (open.id, open.epoch)).collect();
            if let Ok(BlockReply::Kept { over }) =
                managers.ask(BlockRequest::Keep { attachments }).await
            {
                let is_over = |open: &&Rc<AttachedVolume>| over.contains(&(open.id, open.epoch));
                open.iter().filter(is_over).for_each(|open| open.map.over.set(true));
            }
        }
        drop(open);
        env.sleep(env.jitter(KEEPALIVE_INTERVAL)).await;
    }
}

/// Learns the limits of attached volumes (B12), as often.
async fn follow_limits(exports: Weak<VolumeExportsInner>) {
    while let Some(inner) = exports.upgrade() {
        let (env, managers) = (inner.env.clone(), inner.managers.clone());
        let of = |open: &Rc<AttachedVolume>| (open.id, open.name.clone(), Rc::downgrade(open));
        let open: Vec<_> = inner.in_force().iter().map(of).collect();
        drop(inner);
        // A question may take long: one that is closed by then is detached all the same.
        for (id, name, open) in open.into_iter().filter(|(.., open)| open.strong_count() > 0) {
            // When a manager does not answer, nothing changes.
            if let Ok(info) = managers.volume(&name).await
                && info.volume == id
                && let Some(open) = open.upgrade()
            {
                open.volume.set_limits(info.spec.limits, info.attachments.len());
            }
        }
        env.sleep(env.jitter(KEEPALIVE_INTERVAL)).await;
    }
}

impl fmt::Debug for VolumeExports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VolumeExports({} attached)", self.attached())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(epoch: u64, port: Option<u16>) -> SegmentPlace {
        SegmentPlace {
            index: 3,
            epoch,
            server: None,
            name: String::new(),
            addr: port.map(|port| SocketAddr::from(([10, 0, 0, 1], port))),
            serving: true,
            cause: String::new(),
        }
    }

    #[test]
    fn an_answer_that_is_late_brings_no_earlier_owner_back() {
        let segment = SegmentId { volume: VolumeId::new(1), index: 3 };
        let mut owners = Owners::default();
        let mut known = |answer| {
            owners.note(&[answer]);
            owners.get(segment).map(|owner| (owner.epoch, owner.addr.port()))
        };
        assert_eq!(known(found(7, None)), None);
        assert_eq!(known(found(7, Some(1))), Some((7, 1)));
        assert_eq!(known(found(8, Some(2))), Some((8, 2)));
        assert_eq!(known(found(7, Some(1))), Some((8, 2)), "answered before the other one");
        assert_eq!(known(found(8, Some(4))), Some((8, 4)), "it has another address");
        assert_eq!(known(found(9, None)), Some((8, 4)), "who asks for it gets an error");
    }
}
