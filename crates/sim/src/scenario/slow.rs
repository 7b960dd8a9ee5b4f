//! Segments that begin cuts at different times, as those of a busy cluster do, and in some runs stop by
//! themselves; perhaps with a bug in how they cut, remember or ask.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use base::{Fault, Kind};
use block_server::ownership::OwnedSegment;
use block_server::{Devices, ServedSegment};
use block_volume::contract::{AllocationExtent, Answer, BlockLocations, Clear, Device, Owned};
use block_volume::dedup::RequestId;
use block_volume::figures::{SegmentCheck, SegmentScrub, SegmentUsage};
use block_volume::geometry::Extent;
use block_volume::ids::SegmentId;
use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use runtime::{Buf, Env};
use wire::control::Policy;

use crate::planted::{Planted, acts, cut_is_asked, ends_hold};

/// Delay until a server begins a cut that it was asked for, at most: segments are cut one after the
/// other, as they are on a busy network.
const DELAY: Duration = Duration::from_millis(25);
/// The same of one segment of so many: clients write to the others many times in that time.
const DELAY_LATE: Duration = Duration::from_millis(300);
const LATE_ONE_IN: u64 = 4;
/// Processes of so many of which one has segments that stop.
const STOPS_ONE_IN: u64 = 4;
/// Life of such a segment: least, and what is drawn beside it.
const STOP_AFTER: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(4));

/// One link of so many fails: the snapshot is given up, whatever its other segments have done.
const LINKS_FAIL: u64 = 16;

/// Interval at which a request checks whether its segment's gate is open again.
const GATE_INTERVAL: Duration = Duration::from_millis(5);

thread_local! {
    /// The segment whose gate is closed.
    static GATED: Cell<Option<SegmentId>> = const { Cell::new(None) };
}

/// A closed gate: requests to its segment stand still until it is dropped.
pub(super) struct Gate(());

impl Gate {
    /// Closes the gate of a segment.
    pub(super) fn close(segment: SegmentId) -> Gate {
        GATED.set(Some(segment));
        Gate(())
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        GATED.set(None);
    }
}

/// The devices, which begin cuts at different times.
pub(super) fn slow(env: &Env, devices: Rc<dyn Devices>) -> Rc<dyn Devices> {
    let stops = env.random_below(STOPS_ONE_IN) == 0;
    Rc::new(Slow { env: env.clone(), devices, stops })
}

struct Slow {
    env: Env,
    devices: Rc<dyn Devices>,
    /// Segments stop, as when a batch of a TxnFile could not be written.
    stops: bool,
}

impl Devices for Slow {
    fn open(&self, segment: SegmentId, held: OwnedSegment) -> Answer<'_, Rc<dyn ServedSegment>> {
        async move {
            let hosted = self.devices.open(segment, held).await?;
            let env = self.env.clone();
            let (stops, has_stopped) = (self.stops, Rc::default());
            let slow = SlowSegment { env, segment, hosted, stops, has_stopped };
            Ok(Rc::new(slow) as Rc<dyn ServedSegment>)
        }
        .boxed_local()
    }
}

struct SlowSegment {
    env: Env,
    segment: SegmentId,
    hosted: Rc<dyn ServedSegment>,
    stops: bool,
    has_stopped: Rc<Cell<bool>>,
}

impl SlowSegment {
    /// The answer of a change; with the bug that is planted, none when the cluster is full.
    async fn answer(&self, done: Result<(), Fault>) -> Result<(), Fault> {
        let is_full = done.as_ref().is_err_and(|fault| fault.kind == Kind::Full);
        if is_full && acts(Planted::SilentWhenFull) {
            std::future::pending::<()>().await;
        }
        done
    }

    /// Waits until the segment's gate is open.
    async fn pass_gate(&self) {
        while GATED.get() == Some(self.segment) {
            self.env.mark("slow: a request stands at a gate");
            self.env.sleep(GATE_INTERVAL).await;
        }
    }

    /// A segment that has stopped takes no changes.
    fn takes_changes(&self) -> Result<(), Fault> {
        match self.has_stopped.get() {
            true => Err(stop()),
            false => Ok(()),
        }
    }
}

fn stop() -> Fault {
    Fault::new(Kind::Retry, "the segment has stopped")
}

impl Device for SlowSegment {
    fn bytes(&self) -> u64 {
        self.hosted.bytes()
    }

    fn read(&self, extent: Extent) -> Answer<'_, Buf> {
        async move {
            self.pass_gate().await;
            self.hosted.read(extent).await
        }
        .boxed_local()
    }

    fn write(&self, offset: u64, data: Buf) -> Answer<'_, ()> {
        self.hosted.write(offset, data)
    }

    fn clear(&self, extent: Extent, how: Clear) -> Answer<'_, ()> {
        self.hosted.clear(extent, how)
    }

    fn pieces(&self, extent: Extent, most: usize) -> Answer<'_, Vec<AllocationExtent>> {
        self.hosted.pieces(extent, most)
    }
}

impl Owned for SlowSegment {
    fn write_dedup(&self, request: RequestId, offset: u64, data: Buf) -> Answer<'_, ()> {
        // When it is polled: a change that the session knows as done never is.
        async move {
            self.pass_gate().await;
            self.takes_changes()?;
            let done = match acts(Planted::ForgetChanges) {
                true => self.hosted.write(offset, data).await,
                false => self.hosted.write_dedup(request, offset, data).await,
            };
            self.answer(done).await
        }
        .boxed_local()
    }

    fn clear_dedup(&self, request: RequestId, extent: Extent, how: Clear) -> Answer<'_, ()> {
        async move {
            self.pass_gate().await;
            self.takes_changes()?;
            match acts(Planted::ForgetChanges) {
                true => self.hosted.clear(extent, how).await,
                false => self.hosted.clear_dedup(request, extent, how).await,
            }
        }
        .boxed_local()
    }

    fn last(&self, attachment: u32) -> u64 {
        self.hosted.last(attachment)
    }

    fn attachments(&self) -> Vec<u32> {
        self.hosted.attachments()
    }

    fn forget(&self, attachments: Range<u32>) {
        self.hosted.forget(attachments);
    }

    fn locate(&self, extent: Extent, around: bool) -> Answer<'_, Option<BlockLocations>> {
        async move {
            self.pass_gate().await;
            self.hosted.locate(extent, around).await
        }
        .boxed_local()
    }

    fn confirm(&self) -> Answer<'_, ()> {
        match acts(Planted::NoConfirm) {
            true => std::future::ready(Ok(())).boxed_local(),
            false => self.hosted.confirm(),
        }
    }
}

impl ServedSegment for SlowSegment {
    fn stopped(&self) -> LocalBoxFuture<'static, Fault> {
        let stopped = self.hosted.stopped();
        if !self.stops {
            return stopped;
        }
        let (env, hosted) = (self.env.clone(), self.hosted.clone());
        let has_stopped = self.has_stopped.clone();
        async move {
            let spread = env.random_below(STOP_AFTER.1.as_micros() as u64);
            let life = STOP_AFTER.0 + Duration::from_micros(spread);
            match env.timeout(life, stopped).await {
                Ok(fault) => fault,
                Err(_) => {
                    env.mark("slow: a segment stops by itself");
                    has_stopped.set(true);
                    hosted.close().await;
                    stop()
                }
            }
        }
        .boxed_local()
    }

    fn close(&self) -> LocalBoxFuture<'static, ()> {
        self.hosted.close()
    }

    fn set_policy(&self, policy: Policy) {
        self.hosted.set_policy(policy);
    }

    fn cut(&self, cut: u64, most: Duration) -> Answer<'_, ()> {
        async move {
            cut_is_asked(cut);
            let late = self.env.random_below(LATE_ONE_IN) == 0;
            let delay = if late { DELAY_LATE } else { DELAY };
            let delay = self.env.random_below(delay.as_micros() as u64);
            self.env.sleep(Duration::from_micros(delay)).await;
            let begun = self.hosted.cut(cut, most).await;
            let ends_hold = ends_hold(cut);
            begun?;
            if ends_hold {
                self.hosted.release_cut(cut, true)?;
            }
            Ok(())
        }
        .boxed_local()
    }

    fn release_cut(&self, cut: u64, keep: bool) -> Result<Duration, Fault> {
        self.hosted.release_cut(cut, keep)
    }

    fn link(&self, cut: u64, to: SegmentId, policy: Policy) -> Answer<'_, ()> {
        async move {
            if self.env.random_below(LINKS_FAIL) == 0 {
                return Err(Fault::new(Kind::Retry, "the core has no room for links now"));
            }
            self.hosted.link(cut, to, policy).await
        }
        .boxed_local()
    }

    fn ready(&self) -> Answer<'_, ()> {
        self.hosted.ready()
    }

    fn flatten(&self) -> Answer<'_, u64> {
        self.hosted.flatten()
    }

    fn usage(&self) -> SegmentUsage {
        self.hosted.usage()
    }

    fn check(&self, from: u64) -> Answer<'_, SegmentCheck> {
        self.hosted.check(from)
    }

    fn scrub(&self) -> SegmentScrub {
        self.hosted.scrub()
    }
}
