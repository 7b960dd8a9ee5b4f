//! What a block server gets in the simulator: its requests, and its segments, perhaps with a bug.

use std::cell::Cell;
use std::rc::Rc;

use base::VolumeId;
use block::contract::Answer;
use block::manager::Standing;
use block::server::{BlockServer, Lease, Opened, SegmentOpener};
use futures_util::FutureExt;
use transport::{Handler, Incoming, Service};
use wire::block::{BlockIo, Sequence};
use wire::control::SegmentId;

use super::{Planted, planted};

/// The server, with the bug that is planted on this thread.
pub(crate) fn handler_of(server: BlockServer) -> Rc<dyn Handler> {
    match planted() {
        None => Rc::new(server),
        Some(bug) => Rc::new(Buggy { server, bug, seq: Cell::new(0) }),
    }
}

/// The opener, with the bug that is planted on this thread.
pub(crate) fn opener_of(opener: Rc<dyn SegmentOpener>) -> Rc<dyn SegmentOpener> {
    match planted() {
        None => opener,
        Some(bug) => Rc::new(BuggyOpener { opener, bug }),
    }
}

struct Buggy {
    server: BlockServer,
    bug: Planted,
    seq: Cell<u64>,
}

impl Handler for Buggy {
    fn handle(&self, mut incoming: Incoming) {
        let request = &mut incoming.request;
        if request.service == Service::Block
            && let Ok(mut io) = BlockIo::decode(request.op, &request.body)
        {
            match (&mut io, self.bug) {
                // Each is taken for one that has not come before.
                (
                    BlockIo::Write { sequence, .. } | BlockIo::Clear { sequence, .. },
                    Planted::NoSequence,
                ) => {
                    let seq = self.seq.get() + 1;
                    self.seq.set(seq);
                    *sequence = Sequence { seq, floor: seq };
                }
                (BlockIo::Open { fence, .. }, Planted::OldAttachment) => *fence = 0,
                _ => {}
            }
            request.body = io.encode();
        }
        self.server.handle(incoming);
    }
}

struct BuggyOpener {
    opener: Rc<dyn SegmentOpener>,
    bug: Planted,
}

/// A lease that never ends.
struct Endless;

impl Lease for Endless {
    fn standing(&self) -> Standing {
        Standing::Serves
    }
}

impl SegmentOpener for BuggyOpener {
    fn open(&self, segment: SegmentId) -> Answer<'_, Opened> {
        async move {
            let opened = self.opener.open(segment).await?;
            Ok(match self.bug {
                Planted::EndlessLease => Opened { lease: Rc::new(Endless), ..opened },
                _ => opened,
            })
        }
        .boxed_local()
    }

    fn is_attached(&self, volume: VolumeId, epoch: u64) -> Answer<'_, bool> {
        match self.bug {
            Planted::OldAttachment => std::future::ready(Ok(true)).boxed_local(),
            _ => self.opener.is_attached(volume, epoch),
        }
    }
}
