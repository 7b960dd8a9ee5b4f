//! [`Host`]: a block server's process: its agent, its segments on the core, and the server for
//! them.

use std::fmt;
use std::net::SocketAddr;
use std::rc::Rc;

use base::{Fault, Kind};
use block_proto::lease::{FIRST_EPOCH, LOCATION_LEASE, drifted};
use block_proto::managers::{Managers, unexpected_reply};
use block_proto::paths::segment_path;
use block_proto::{BlockReply, BlockRequest, SERVICE, Standing};
use block_segment::{LinkFrom, Options, Segment, Shared};
use block_volume::contract::Answer;
use block_volume::ids::{Identity, SegmentId, VolumeId};
use client::Client;
use futures_util::future::LocalBoxFuture;
use runtime::Instant;
use table::{ClientStore, Store};
use transport::{Endpoint, Handler, Incoming, TransportError};

use super::agent::{BlockServerAgent, Devices, ServedSegment};
use super::lazy::{FilePolicies, LazySegment};
use super::openings::Openings;
use super::ownership::{LeaseState, OwnedSegment, Predecessors};
use crate::{BlockServer, Lease, OpenedSegment, SegmentOpener};

/// Segments on the core, each in its directory.
#[derive(Clone)]
pub struct CoreDevices {
    client: Client,
    shared: Shared,
    options: Options,
    openings: Rc<Openings>,
}

impl CoreDevices {
    /// With state and options that segments of this process share.
    pub fn new(client: &Client, shared: Shared, options: Options) -> CoreDevices {
        let openings = Rc::new(Openings::new(client.env()));
        CoreDevices { client: client.clone(), shared, options, openings }
    }
}

impl Devices for CoreDevices {
    fn open(&self, segment: SegmentId, held: OwnedSegment) -> Answer<'_, Rc<dyn ServedSegment>> {
        Box::pin(async move {
            let this = self.clone();
            let policies = FilePolicies::of(held.setup.policy);
            let shared = policies.clone();
            let late = LazySegment::new(
                &self.client,
                held.setup.bytes,
                policies,
                Box::new(move || {
                    let (this, policies) = (this.clone(), shared.clone());
                    Box::pin(async move {
                        let openings = this.openings.clone();
                        openings.attempt(this.segment(segment, held, policies)).await
                    })
                }),
            );
            if self.is_used(segment, held).await? {
                // A later owner has it recovered before the first request.
                late.open().await?;
            }
            Ok(Rc::new(late) as Rc<dyn ServedSegment>)
        })
    }
}

impl CoreDevices {
    /// False when no owner has opened the segment.
    async fn is_used(&self, segment: SegmentId, held: OwnedSegment) -> Result<bool, Fault> {
        if held.epoch == FIRST_EPOCH {
            return Ok(false);
        }
        match self.client.lookup(&segment_path(segment)).await {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == Kind::NotFound => Ok(false),
            Err(error) => Err(fault(error)),
        }
    }

    async fn segment(
        self,
        segment: SegmentId,
        held: OwnedSegment,
        FilePolicies { written, collected }: FilePolicies,
    ) -> Result<Segment, Fault> {
        let path = segment_path(segment);
        let store = ClientStore::with_policy(&self.client, &path, written).await.map_err(fault)?;
        let outputs = store.in_form(collected);
        let identity = Identity { volume: segment.volume.get(), segment: segment.index };
        let which = (identity, held.setup.bytes, held.epoch);
        let env = self.client.env();
        let mut options = self.options;
        // A snapshot's files are others' too: copying would take room and give none. And its
        // locations stay, since differences between snapshots are found by them.
        options.read_only = held.setup.read_only;
        let client = self.client.clone();
        let clone_source = held.setup.clone_source.map(|volume| -> LinkFrom {
            Box::new(move || {
                let client = client.clone();
                Box::pin(async move {
                    let path = segment_path(SegmentId { volume, ..segment });
                    let found = ClientStore::find(&client, &path).await.map_err(fault)?;
                    Ok(Rc::new(found) as Rc<dyn Store>)
                })
            })
        });
        let stores = (Rc::new(store) as Rc<dyn Store>, Rc::new(outputs) as Rc<dyn Store>);
        Segment::open_from(env, stores, &self.shared, which, (options, clone_source)).await
    }
}

fn fault(error: client::Error) -> Fault {
    Fault::new(error.kind(), error.to_string())
}

/// A segment's lease, as it was opened.
struct SegmentLease {
    agent: BlockServerAgent,
    segment: SegmentId,
    epoch: u64,
}

impl Lease for SegmentLease {
    fn lease_state(&self, predecessors: Predecessors) -> LeaseState {
        self.agent.lease_state(self.segment, self.epoch, predecessors)
    }

    fn changed(&self) -> LocalBoxFuture<'_, ()> {
        Box::pin(self.agent.changed())
    }
}

/// Opens segments that the agent owns.
struct Opener(BlockServerAgent);

impl SegmentOpener for Opener {
    fn open(&self, segment: SegmentId) -> Answer<'_, OpenedSegment> {
        Box::pin(async move {
            let (device, epoch, admissions) = self.0.device(segment).await?;
            // It leased locations while it might answer.
            let location_leases_end = match self.0.acknowledge_from(segment, epoch) {
                Some(from) if epoch > FIRST_EPOCH => from + drifted(LOCATION_LEASE),
                _ => Instant::default(),
            };
            let lease = Rc::new(SegmentLease { agent: self.0.clone(), segment, epoch });
            Ok(OpenedSegment { device, lease, epoch, location_leases_end, admissions })
        })
    }

    fn standing(&self, segment: SegmentId, epoch: u64, attachment: u64) -> Answer<'_, Standing> {
        Box::pin(async move {
            let request = BlockRequest::Admit { segment, epoch, attachment };
            match self.0.managers().ask(request).await {
                Ok(BlockReply::Standing(standing)) => Ok(standing),
                Ok(other) => Err(unexpected_reply(&other).into()),
                // A manager of an older version, which shortens no wait.
                Err(error) if error.kind() == Kind::Invalid => {
                    let lives = self.is_attached(segment.volume, attachment).await?;
                    Ok(Standing { lives, owns: true, latest: false })
                }
                Err(error) => Err(error.into()),
            }
        })
    }

    fn is_attached(&self, volume: VolumeId, epoch: u64) -> Answer<'_, bool> {
        Box::pin(async move {
            let request = BlockRequest::Keep { attachments: vec![(volume, epoch)] };
            match self.0.managers().ask(request).await? {
                BlockReply::Kept { over } => Ok(over.is_empty()),
                other => Err(unexpected_reply(&other).into()),
            }
        })
    }
}

/// A running block server. Clones share it.
#[derive(Clone)]
pub struct Host {
    agent: BlockServerAgent,
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
        let agent = BlockServerAgent::start(managers, devices, name, listen);
        let server = BlockServer::new(&env, Rc::new(Opener(agent.clone())));
        // Weak: the server has the agent through its opener, and neither would ever be freed.
        let weak = Rc::downgrade(&server.0);
        agent.on_release(Rc::new(move |segment| match weak.upgrade() {
            Some(server) => Box::pin(BlockServer(server).release(segment)),
            None => Box::pin(std::future::ready(())),
        }));
        let host = Host { agent, server };
        endpoint.listen(listen, Rc::new(host.clone())).await?;
        Ok(host)
    }

    /// Its agent.
    pub fn agent(&self) -> &BlockServerAgent {
        &self.agent
    }

    /// The server of its segments.
    pub fn server(&self) -> &BlockServer {
        &self.server
    }

    /// Gives its segments to others, and ends. Segments that no server takes are closed, so that
    /// the next owner opens them quickly.
    pub async fn stop(&self) {
        self.agent.leave().await;
        self.agent.stop();
        self.agent.close_all().await;
    }
}

impl Handler for Host {
    fn handle(&self, incoming: Incoming) {
        match incoming.request.service {
            SERVICE => self.server.handle(incoming),
            _ => self.agent.handle(incoming),
        }
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Host({:?}, {:?})", self.agent, self.server)
    }
}
