//! Devices that a front end serves in the simulator, perhaps with a bug.

use std::rc::Rc;

use base::{Fault, Kind};
use block_volume::contract::{AllocationExtent, Answer, Clear, Device};
use block_volume::export::{About, Exports, Names};
use block_volume::geometry::Extent;
use futures_util::FutureExt;
use runtime::{Buf, Class, Env};

use super::{EARLY_AFTER, Planted, acts, is_rare, planted};

/// The exports, with the bug that is planted on this thread.
pub(crate) fn exports_of(env: &Env, exports: Rc<dyn Exports>) -> Rc<dyn Exports> {
    match planted() {
        Some(Planted::EarlyAnswer) => Rc::new(Early { env: env.clone(), exports }),
        _ => exports,
    }
}

struct Early {
    env: Env,
    exports: Rc<dyn Exports>,
}

impl Exports for Early {
    fn names<'a>(&'a self, after: Option<&'a str>) -> Answer<'a, Names> {
        self.exports.names(after)
    }

    fn about<'a>(&'a self, name: &'a str) -> Answer<'a, About> {
        self.exports.about(name)
    }

    fn open<'a>(&'a self, name: &'a str) -> Answer<'a, Rc<dyn Device>> {
        async move {
            let device = self.exports.open(name).await?;
            Ok(Rc::new(EarlyDevice { env: self.env.clone(), device }) as Rc<dyn Device>)
        }
        .boxed_local()
    }
}

/// Writes are done behind their answers. Reads of the same host wait for them, as for all changes
/// that are under way.
struct EarlyDevice {
    env: Env,
    device: Rc<dyn Device>,
}

impl EarlyDevice {
    /// Only a write that takes long may be answered before it is done: there something can happen
    /// in between.
    fn write_rarely_early(&self, offset: u64, data: Buf) -> Answer<'_, ()> {
        let device = self.device.clone();
        let write = async move { device.write(offset, data).await };
        let mut writing = self.env.spawn(Class::Foreground, "perhaps late write", write);
        async move {
            let early = self.env.timeout(EARLY_AFTER, &mut writing).await;
            let done = match early {
                Ok(done) => done,
                Err(_) if acts(Planted::EarlyAnswer) => return Ok(()),
                Err(_) => writing.await,
            };
            done.unwrap_or_else(|_| Err(Fault::new(Kind::Retry, "the write's task has ended")))
        }
        .boxed_local()
    }
}

impl Device for EarlyDevice {
    fn bytes(&self) -> u64 {
        self.device.bytes()
    }

    fn read(&self, extent: Extent) -> Answer<'_, Buf> {
        self.device.read(extent)
    }

    fn write(&self, offset: u64, data: Buf) -> Answer<'_, ()> {
        if is_rare() {
            return self.write_rarely_early(offset, data);
        }
        let device = self.device.clone();
        let _ = acts(Planted::EarlyAnswer); // Always: it is counted.
        self.env.spawn(Class::Foreground, "late write", async move {
            let _ = device.write(offset, data).await; // The result is dropped: that is the bug.
        });
        std::future::ready(Ok(())).boxed_local()
    }

    fn clear(&self, extent: Extent, how: Clear) -> Answer<'_, ()> {
        self.device.clear(extent, how)
    }

    fn pieces(&self, extent: Extent, most: usize) -> Answer<'_, Vec<AllocationExtent>> {
        self.device.pieces(extent, most)
    }
}
