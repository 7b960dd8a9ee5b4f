//! Tests of the agent with devices that stop when the test says so.

use std::net::Ipv4Addr;

use client::{Client, DataAnswer, PeerError, Peers, Recipient};
use futures_util::FutureExt;
use futures_util::future::ready;
use runtime::Buf;
use runtime::sim::Sim;
use wire::control::{ClusterInfo, ClusterReply, ClusterRequest, Policy};
use wire::data::{DataError, DataRequest};

use block_proto::{Assignment, BlockGrant, OwnershipGrant};
use block_volume::contract::{AllocationExtent, BlockLocations, Clear, Device};
use block_volume::dedup::RequestId;
use block_volume::ids::VolumeId;

use super::*;

const SEGMENT: SegmentId = SegmentId { volume: VolumeId::new(7), index: 0 };
const HELD: OwnedSegment = OwnedSegment {
    epoch: 1,
    ack_from: Instant::from_nanos(0),
    alone_from: Instant::from_nanos(0),
    setup: SegmentSetup {
        bytes: 1 << 20,
        policy: Policy::strict(3),
        read_only: false,
        clone_source: None,
    },
};

/// A cluster with a master and without managers.
struct MasterOnly;

impl Peers for MasterOnly {
    fn control(
        &self,
        _: Recipient,
        request: ControlRequest,
        _: Duration,
    ) -> LocalBoxFuture<'static, Result<ControlReply, PeerError<ControlError>>> {
        let info = ClusterInfo {
            cluster: base::ClusterId::new(7),
            masters: Vec::new(),
            namespace_partitions: 1,
            stream_partitions: 1,
            leaders: Vec::new(),
        };
        let answer = match request {
            ControlRequest::Cluster(ClusterRequest::Info) => {
                Ok(ControlReply::Cluster(ClusterReply::Info(info)))
            }
            _ => Err(PeerError::Unreachable("no manager runs".to_owned())),
        };
        ready(answer).boxed_local()
    }

    fn data(
        &self,
        _: SocketAddr,
        _: DataRequest,
        _: [u8; 16],
        _: Option<Buf>,
        _: Duration,
    ) -> LocalBoxFuture<'static, Result<DataAnswer, PeerError<DataError>>> {
        unreachable!("no data is read or written")
    }
}

/// A device that stops at a notification. Its size is its number.
struct Stub {
    number: u64,
    stop: Rc<Notify>,
    policy: Rc<Cell<Option<Policy>>>,
}

impl Device for Stub {
    fn bytes(&self) -> u64 {
        self.number
    }

    fn read(&self, _: Extent) -> Answer<'_, Buf> {
        unreachable!("no request is sent")
    }

    fn write(&self, _: u64, _: Buf) -> Answer<'_, ()> {
        unreachable!("no request is sent")
    }

    fn clear(&self, _: Extent, _: Clear) -> Answer<'_, ()> {
        unreachable!("no request is sent")
    }

    fn pieces(&self, _: Extent, _: usize) -> Answer<'_, Vec<AllocationExtent>> {
        unreachable!("no request is sent")
    }
}

impl Owned for Stub {
    fn write_dedup(&self, _: RequestId, _: u64, _: Buf) -> Answer<'_, ()> {
        unreachable!("no request is sent")
    }

    fn clear_dedup(&self, _: RequestId, _: Extent, _: Clear) -> Answer<'_, ()> {
        unreachable!("no request is sent")
    }

    fn last(&self, _: u32) -> u64 {
        0
    }

    fn attachments(&self) -> Vec<u32> {
        Vec::new()
    }

    fn forget(&self, _: std::ops::Range<u32>) {}

    fn locate(&self, _: Extent, _: bool) -> Answer<'_, Option<BlockLocations>> {
        unreachable!("no request is sent")
    }

    fn confirm(&self) -> Answer<'_, ()> {
        unreachable!("no request is sent")
    }
}

impl ServedSegment for Stub {
    fn stopped(&self) -> LocalBoxFuture<'static, Fault> {
        let stop = self.stop.clone();
        async move {
            stop.notified().await;
            Fault::new(Kind::Retry, "a batch of its file failed")
        }
        .boxed_local()
    }

    fn close(&self) -> LocalBoxFuture<'static, ()> {
        ready(()).boxed_local()
    }

    fn set_policy(&self, policy: Policy) {
        self.policy.set(Some(policy));
    }
}

/// Opens stubs with numbers from 1 on, one for each permit.
struct Stubs {
    permits: Semaphore,
    opened: Cell<u64>,
    stop: Rc<Notify>,
    policy: Rc<Cell<Option<Policy>>>,
}

impl Devices for Stubs {
    fn open(&self, _: SegmentId, _: OwnedSegment) -> Answer<'_, Rc<dyn ServedSegment>> {
        async move {
            self.permits.acquire().await.expect("never closed").forget();
            self.opened.set(self.opened.get() + 1);
            let (number, stop) = (self.opened.get(), self.stop.clone());
            let policy = self.policy.clone();
            Ok(Rc::new(Stub { number, stop, policy }) as Rc<dyn ServedSegment>)
        }
        .boxed_local()
    }
}

/// Runs a test with an agent and the devices that it opens.
fn with_agent<F: Future<Output = ()>>(test: impl FnOnce(Sim, BlockServerAgent, Rc<Stubs>) -> F) {
    let sim = Sim::new(1);
    let inner = sim.clone();
    sim.run(async move {
        let env = inner.boot(inner.add_host("bs"));
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, 7000));
        let (permits, stop) = (Semaphore::new(0), Rc::new(Notify::new()));
        let (opened, policy) = (Cell::new(0), Rc::default());
        let devices = Rc::new(Stubs { permits, opened, stop, policy });
        let opens = devices.clone();
        let here = env.clone();
        let start = async move {
            let (peers, config) = (Rc::new(MasterOnly), client::Config::default());
            let client = Client::connect_over(&here, peers, vec![addr], config).await;
            let managers = Managers::new(&client.expect("the master answers"));
            BlockServerAgent::start(managers, opens, "bs1", addr)
        };
        let agent = env.spawn(Class::Foreground, "start", start).await.expect("it runs");
        test(inner, agent.clone(), devices).await;
        agent.stop();
    })
    .expect("nothing stalls");
}

#[test]
fn device_that_stopped_is_not_yielded_while_its_segment_is_released() {
    with_agent(async |sim, agent, devices| {
        let drained = Rc::new(Notify::new());
        let hold = drained.clone();
        agent.on_release(Rc::new(move |_| {
            let hold = hold.clone();
            async move { hold.notified().await }.boxed_local()
        }));
        let bytes_now = || {
            let (agent, env) = (agent.clone(), agent.0.env.clone());
            env.spawn(Class::Foreground, "device", async move {
                agent.device(SEGMENT).await.map(|(device, ..)| device.bytes())
            })
        };
        agent.act(Action::Open(SEGMENT, HELD));
        devices.permits.add_permits(1);
        assert_eq!(bytes_now().await.expect("it runs"), Ok(1));

        devices.stop.notify_one();
        sim.sleep(Duration::from_millis(1)).await;
        let early = bytes_now();
        sim.sleep(Duration::from_millis(1)).await;
        assert_eq!(early.take_result(), None, "the first device has stopped");
        drained.notify_one();
        devices.permits.add_permits(1);
        assert_eq!(early.await.expect("it runs"), Ok(2));
    });
}

/// Whom an owner has admitted is known for as long as it has the segment, and no longer.
#[test]
fn admissions_outlive_a_device_and_end_with_the_epoch() {
    with_agent(async |sim, agent, devices| {
        let admissions = async || {
            devices.permits.add_permits(1);
            let waits = agent.clone();
            let asked = agent.0.env.spawn(Class::Foreground, "device", async move {
                waits.device(SEGMENT).await.map(|(.., admissions)| admissions)
            });
            asked.await.expect("it runs").expect("it opens")
        };
        agent.act(Action::Open(SEGMENT, HELD));
        let first = admissions().await;
        devices.stop.notify_one();
        sim.sleep(Duration::from_millis(1)).await;
        assert!(Rc::ptr_eq(&first, &admissions().await), "the same owner opens it again");
        agent.act(Action::Close(SEGMENT, HELD.epoch));
        agent.act(Action::Open(SEGMENT, OwnedSegment { epoch: 3, ..HELD }));
        assert!(!Rc::ptr_eq(&first, &admissions().await), "another owner had it");
    });
}

/// A release waits for the openings before it: one that waits for the next device would wait for
/// itself.
#[test]
fn wait_for_a_device_ends_when_the_device_stops_before_the_wait_is_over() {
    with_agent(async |sim, agent, devices| {
        agent.act(Action::Open(SEGMENT, HELD));
        sim.sleep(Duration::from_millis(1)).await;
        let mut waiting = Box::pin(agent.device(SEGMENT));
        assert!(waiting.as_mut().now_or_never().is_none());
        devices.permits.add_permits(1);
        devices.stop.notify_one();
        sim.sleep(Duration::from_millis(1)).await;
        let ended = waiting.now_or_never().expect("the wait is over");
        assert_eq!(ended.map(|(_, epoch, _)| epoch).map_err(|fault| fault.kind), Err(Kind::Retry));
    });
}

/// The release of a segment waits for the openings before it, and so for this request.
#[test]
fn wait_for_a_device_ends_when_the_server_closes_all_segments() {
    with_agent(async |sim, agent, _| {
        agent.act(Action::Open(SEGMENT, HELD));
        sim.sleep(Duration::from_millis(1)).await;
        let waits = agent.clone();
        let waiting = agent.0.env.spawn(Class::Foreground, "device", async move {
            waits.device(SEGMENT).await.map(drop).map_err(|fault| fault.kind)
        });
        sim.sleep(Duration::from_millis(1)).await;
        agent.close_all().await;
        sim.sleep(Duration::from_millis(1)).await;
        assert_eq!(waiting.take_result(), Some(Err(Kind::Reroute)));
    });
}

/// A grant of one segment under an epoch, with a policy.
fn granted(epoch: u64, policy: Policy) -> BlockGrant {
    let ownership = OwnershipGrant {
        epoch,
        bytes: HELD.setup.bytes,
        policy,
        hold_ms: 0,
        predecessor_ms: 0,
        read_only: false,
        clone_source: None,
    };
    let changes = vec![Assignment { segment: SEGMENT, ownership: Some(ownership) }];
    BlockGrant {
        lease_ms: 1000,
        reset: false,
        changes,
        seen: Default::default(),
        more: false,
        known: true,
    }
}

/// The policy of a segment that is open changes without another opening; one that is being opened gets
/// it with the device.
#[test]
fn policy_of_an_open_segment_changes_under_its_epoch() {
    with_agent(async |sim, agent, devices| {
        let grant = |epoch, policy| {
            let now = agent.0.env.now();
            let grant = granted(epoch, policy);
            let actions = agent.0.ownership.borrow_mut().granted(now, now, &grant_of(grant));
            actions.into_iter().for_each(|action| agent.act(action));
        };
        grant(2, Policy::strict(3));
        sim.sleep(Duration::from_millis(1)).await;
        grant(2, Policy::rep(2));
        devices.permits.add_permits(1);
        sim.sleep(Duration::from_millis(1)).await;
        assert_eq!(devices.policy.get(), Some(Policy::rep(2)), "set while it was being opened");
        grant(2, Policy::rep(3));
        assert_eq!(devices.policy.get(), Some(Policy::rep(3)));
        grant(1, Policy::rep(1));
        assert_eq!(devices.policy.get(), Some(Policy::rep(3)), "of a former ownership");
        assert_eq!(devices.opened.get(), 1, "it is not opened again");
    });
}
