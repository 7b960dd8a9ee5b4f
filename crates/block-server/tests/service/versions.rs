//! Clients of this version at block servers of earlier ones.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use block_client::Limits;
use block_proto::{BlockError, BlockIo, encode_answer};
use block_server::BlockServer;
use block_volume::contract::Device;
use transport::{Handler, Incoming, Response};

use super::{VOLUME, World, buf, on, segment, world};

/// A server before decision 73: an opening that names an earlier owner has to come from an attachment
/// that is alone.
struct Early {
    server: BlockServer,
    /// The earlier owners that openings named.
    named: Rc<RefCell<Vec<u64>>>,
}

impl Handler for Early {
    fn handle(&self, incoming: Incoming) {
        let asked = BlockIo::decode(incoming.request.op, &incoming.request.body);
        if let Ok(BlockIo::Open { at, fence, after }) = asked {
            self.named.borrow_mut().push(after);
            if after > 0 && fence != at.attachment {
                let (status, body) = encode_answer(&Err(BlockError::Invalid));
                return incoming.reply.send(Response { status, body, payload: None });
            }
        }
        self.server.handle(incoming);
    }
}

#[test]
fn an_owner_of_an_earlier_version_admits_attachments_that_are_not_alone() {
    world(34, async |world: World| {
        world.kill(1);
        let named = Rc::<RefCell<Vec<u64>>>::default();
        let early = Early { server: world.make(1), named: named.clone() };
        world.serve(1, transport::Limits::default(), Rc::new(early)).await;
        let first = world.volume(world.manager.attach(VOLUME, false), Limits::default());
        let second = world.volume(world.manager.attach(VOLUME, false), Limits::default());
        for (env, volume) in [&first, &second] {
            let (volume, data) = (volume.clone(), buf(env, &[1; 4096]));
            on(env, async move { volume.write(0, data).await }).await.expect("it is written");
        }
        world.manager.assign(segment(0), world.addr(1));
        world.release(0, segment(0)).await;
        let began = world.sim.elapsed();
        for (env, volume) in [&second, &first] {
            let (volume, data) = (volume.clone(), buf(env, &[2; 4096]));
            on(env, async move { volume.write(0, data).await }).await.expect("it is written");
        }
        let took = world.sim.elapsed() - began;
        assert!(took < Duration::from_secs(2), "the writes took {took:?}");
        // The second is refused, and admitted as one that was nowhere before.
        let named = named.borrow();
        assert!(named[0] > 0 && named[1] == 0 && named[2] > 0, "{named:?}");
        assert_eq!(named.len(), 3);
    });
}
