//! [`Host`]: a block server's process, put together: its membership, its segments on the core,
//! and what serves them.

use std::fmt;
use std::net::SocketAddr;
use std::ops::Range;
use std::rc::Rc;

use base::{Fault, VolumeId};
use client::Client;
use futures_util::future::LocalBoxFuture;
use runtime::Buf;
use table::{Cache, ClientStore};
use transport::{Endpoint, Handler, Incoming, Service, TransportError};
use wire::control::{BlockReply, BlockRequest, SegmentId};

use super::client::{Managers, misfit};
use super::member::{Devices, Hosted, Member};
use super::service::segment_path;
use super::tenancy::{Held, Standing};
use crate::contract::{Answer, Clear, Device, Owned, Piece};
use crate::device::{Identity, Options, Segment};
use crate::geometry::Extent;
use crate::once::Origin;
use crate::server::{BlockServer, Lease, Opened, SegmentOpener};

/// Segments on the core, each in its directory.
pub struct CoreDevices {
    client: Client,
    cache: Cache,
    options: Options,
}

impl CoreDevices {
    /// Segments that this process opens share the cache.
    pub fn new(client: &Client, cache: Cache, options: Options) -> CoreDevices {
        CoreDevices { client: client.clone(), cache, options }
    }
}

impl Devices for CoreDevices {
    fn open(&self, segment: SegmentId, held: Held) -> Answer<'_, Rc<dyn Hosted>> {
        Box::pin(async move {
            let path = segment_path(segment);
            let store = ClientStore::new(&self.client, &path, held.policy).await;
            let store = store.map_err(|error| Fault::new(error.kind(), error.to_string()))?;
            let identity = Identity { volume: segment.volume.get(), segment: segment.index };
            let which = (identity, held.bytes, held.epoch);
            let (env, options) = (self.client.env(), self.options.clone());
            let opened = Segment::open(env, Rc::new(store), &self.cache, which, options).await?;
            Ok(Rc::new(OnCore(opened)) as Rc<dyn Hosted>)
        })
    }
}

struct OnCore(Segment);

impl Device for OnCore {
    fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    fn read(&self, extent: Extent) -> Answer<'_, Buf> {
        self.0.read(extent)
    }

    fn write(&self, offset: u64, data: Buf) -> Answer<'_, ()> {
        self.0.write(offset, data)
    }

    fn clear(&self, extent: Extent, how: Clear) -> Answer<'_, ()> {
        self.0.clear(extent, how)
    }

    fn pieces(&self, extent: Extent, most: usize) -> Answer<'_, Vec<Piece>> {
        self.0.pieces(extent, most)
    }
}

impl Owned for OnCore {
    fn write_once(&self, origin: Origin, offset: u64, data: Buf) -> Answer<'_, ()> {
        self.0.write_once(origin, offset, data)
    }

    fn clear_once(&self, origin: Origin, extent: Extent, how: Clear) -> Answer<'_, ()> {
        self.0.clear_once(origin, extent, how)
    }

    fn last(&self, attachment: u32) -> u64 {
        self.0.last(attachment)
    }

    fn attachments(&self) -> Vec<u32> {
        self.0.attachments()
    }

    fn forget(&self, attachments: Range<u32>) {
        self.0.forget(attachments);
    }

    fn confirm(&self) -> Answer<'_, ()> {
        self.0.confirm()
    }
}

impl Hosted for OnCore {
    fn stopped(&self) -> LocalBoxFuture<'static, Fault> {
        let segment = self.0.clone();
        Box::pin(async move { segment.until_stopped().await })
    }

    fn close(&self) -> LocalBoxFuture<'static, ()> {
        let segment = self.0.clone();
        Box::pin(async move {
            if let Err(fault) = segment.close().await {
                // Whoever opens it next recovers it.
                tracing::debug!(%fault, "segment was not closed properly");
            }
        })
    }
}

/// A segment's lease, as it was opened.
struct SegmentLease {
    member: Member,
    segment: SegmentId,
    epoch: u64,
}

impl Lease for SegmentLease {
    fn standing(&self) -> Standing {
        self.member.standing(self.segment, self.epoch)
    }
}

/// What the server opens: segments that the membership has.
struct Opener(Member);

impl SegmentOpener for Opener {
    fn open(&self, segment: SegmentId) -> Answer<'_, Opened> {
        Box::pin(async move {
            let (device, epoch) = self.0.device(segment).await?;
            let lease = Rc::new(SegmentLease { member: self.0.clone(), segment, epoch });
            Ok(Opened { device, lease })
        })
    }

    fn is_attached(&self, volume: VolumeId, epoch: u64) -> Answer<'_, bool> {
        Box::pin(async move {
            let request = BlockRequest::Keep { attachments: vec![(volume, epoch)] };
            match self.0.managers().ask(request).await? {
                BlockReply::Kept { over } => Ok(over.is_empty()),
                other => Err(misfit(&other).into()),
            }
        })
    }
}

/// A running block server. Clones share it.
#[derive(Clone)]
pub struct Host {
    member: Member,
    server: BlockServer,
}

impl Host {
    /// Joins the managers as `name`, and serves at `listen`, an address that others reach.
    pub async fn start(
        managers: Managers,
        endpoint: &Endpoint,
        devices: Rc<dyn Devices>,
        name: &str,
        listen: SocketAddr,
    ) -> Result<Host, TransportError> {
        let env = managers.client().env().clone();
        let member = Member::start(managers, devices, name, listen);
        let server = BlockServer::new(&env, Rc::new(Opener(member.clone())));
        let released = server.clone();
        member.on_release(Rc::new(move |segment| {
            let server = released.clone();
            Box::pin(async move { server.release(segment).await })
        }));
        let host = Host { member, server };
        endpoint.listen(listen, Rc::new(host.clone())).await?;
        Ok(host)
    }

    /// Its membership.
    pub fn member(&self) -> &Member {
        &self.member
    }

    /// What serves its segments.
    pub fn server(&self) -> &BlockServer {
        &self.server
    }

    /// Gives its segments to others, and ends. What nobody takes is closed, so that whoever has it
    /// next opens it quickly.
    pub async fn stop(&self) {
        self.member.leave().await;
        self.member.stop();
        self.member.close_all().await;
    }
}

impl Handler for Host {
    fn handle(&self, incoming: Incoming) {
        match incoming.request.service {
            Service::Block => self.server.handle(incoming),
            _ => self.member.handle(incoming),
        }
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Host({:?}, {:?})", self.member, self.server)
    }
}
