//! What a front end serves in the simulator, perhaps with a bug.

use std::rc::Rc;

use block::contract::{Answer, Clear, Device, Piece};
use block::frontend::{About, Exports, Names};
use block::geometry::Extent;
use futures_util::FutureExt;
use runtime::{Buf, Class, Env};

use super::{Planted, acts, planted};

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

impl Device for EarlyDevice {
    fn bytes(&self) -> u64 {
        self.device.bytes()
    }

    fn read(&self, extent: Extent) -> Answer<'_, Buf> {
        self.device.read(extent)
    }

    fn write(&self, offset: u64, data: Buf) -> Answer<'_, ()> {
        if !acts(Planted::EarlyAnswer) {
            return self.device.write(offset, data);
        }
        let device = self.device.clone();
        self.env.spawn(Class::Foreground, "late write", async move {
            let _ = device.write(offset, data).await; // Nobody looks: that is the bug.
        });
        std::future::ready(Ok(())).boxed_local()
    }

    fn clear(&self, extent: Extent, how: Clear) -> Answer<'_, ()> {
        self.device.clear(extent, how)
    }

    fn pieces(&self, extent: Extent, most: usize) -> Answer<'_, Vec<Piece>> {
        self.device.pieces(extent, most)
    }
}
