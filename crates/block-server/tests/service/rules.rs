//! The rules of `protocols.md` 6.2 and 6.5, message by message.

use std::time::Duration;

use base::{Fault, Kind, TraceId};
use block_proto::{BlockAnswer, BlockError, BlockIo, Located, Sequence, SessionRef, decode_answer};
use block_volume::contract::Clear;
use runtime::{Buf, Env, Instant};
use transport::{CallError, Endpoint, Priority, Request, Token};

use super::{LEASE, VOLUME, World, buf, on, segment, world};

/// Deadline of a message.
const CALL: Duration = Duration::from_secs(5);

/// A client that sends the given messages.
pub struct Raw {
    pub env: Env,
    endpoint: Endpoint,
    world: World,
    server: usize,
}

pub type Answered = Result<(BlockAnswer, Option<Buf>), BlockError>;

impl Raw {
    pub fn new(world: &World) -> Raw {
        let (env, endpoint) = world.client("raw");
        Raw { env, endpoint, world: world.clone(), server: 0 }
    }

    /// The same client, which sends to another server.
    pub fn at(&self, server: usize) -> Raw {
        let (env, endpoint) = (self.env.clone(), self.endpoint.clone());
        Raw { env, endpoint, world: self.world.clone(), server }
    }

    /// Sends a message; returns its answer.
    pub fn send(&self, io: BlockIo, payload: Option<&[u8]>) -> runtime::JoinHandle<Answered> {
        let payload = payload.map(|bytes| buf(&self.env, bytes));
        let request = Request {
            service: block_proto::SERVICE,
            op: io.op(),
            priority: Priority::Foreground,
            trace: TraceId::new(1),
            flow: 0,
            token: Token::NONE,
            body: io.encode(),
            payload,
        };
        let (endpoint, to) = (self.endpoint.clone(), self.world.addr(self.server));
        self.env.spawn(runtime::Class::Foreground, "raw call", async move {
            let answer = loop {
                match endpoint.call(to, request.clone(), CALL).await {
                    Err(CallError::Unreachable(_)) => {} // It was not sent.
                    answer => break answer.expect("an answer"),
                }
            };
            let decoded = decode_answer(answer.status, &answer.body).expect("of its form");
            decoded.map(|decoded| (decoded, answer.payload))
        })
    }

    pub async fn call(&self, io: BlockIo, payload: Option<&[u8]>) -> Answered {
        self.send(io, payload).await.expect("it ends")
    }

    /// Begins a session.
    async fn open(&self, epoch: u64, fence: u64, session: u64) -> Result<SessionRef, BlockError> {
        let at = SessionRef { segment: segment(0), attachment: epoch, session, grant: 0 };
        self.open_after(at, fence, 0).await
    }

    pub async fn open_after(
        &self,
        at: SessionRef,
        fence: u64,
        after: u64,
    ) -> Result<SessionRef, BlockError> {
        match self.call(BlockIo::Open { at, fence, after }, None).await? {
            (BlockAnswer::Opened { grant, bytes, .. }, None) => {
                assert_eq!(bytes, 512 << 10);
                Ok(SessionRef { grant, ..at })
            }
            other => panic!("{other:?}"),
        }
    }

    async fn write(&self, at: SessionRef, seq: u64, floor: u64, byte: u8) -> Answered {
        let sequence = Sequence { seq, floor };
        self.call(BlockIo::Write { at, sequence, offset: 0 }, Some(&[byte; 4096])).await
    }

    /// Location of its first block. A recent write may need another request.
    async fn locate(&self, at: SessionRef) -> Located {
        loop {
            let ask = BlockIo::Read { at, offset: 9, len: 1, locate: true };
            match self.call(ask, None).await {
                Ok((BlockAnswer::Located(located), None)) => return located,
                Ok((BlockAnswer::Read, _)) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    async fn read(&self, at: SessionRef) -> Result<u8, BlockError> {
        let (answer, data) =
            self.call(BlockIo::Read { at, offset: 9, len: 1, locate: false }, None).await?;
        assert_eq!(answer, BlockAnswer::Read);
        Ok(data.expect("bytes")[0])
    }
}

/// Fences of attachments go with the volume's last segment, and the manager is asked about them
/// when one is opened again.
#[test]
fn fence_of_a_volume_without_segments_is_dropped_and_still_holds() {
    world(12, |world| async move {
        let (raw, server) = (Raw::new(&world), world.servers.borrow()[&0].clone());
        let old = world.manager.attach(VOLUME, true);
        let now = world.manager.attach(VOLUME, true);
        for session in 1..4 {
            let at = raw.open(now.epoch, now.fence, session).await.expect("it is the newest");
            assert_same(raw.write(at, session, session, 1).await, DONE);
            let late = raw.open(old.epoch, old.fence, 9).await;
            assert!(matches!(late, Err(BlockError::Fenced { .. })), "{late:?}");
            assert_eq!(server.fenced_volumes(), 1);
            world.release(0, segment(0)).await;
            assert_eq!(server.fenced_volumes(), 0);
            let late = raw.open(old.epoch, old.fence, 9).await;
            assert!(matches!(late, Err(BlockError::Fenced { .. })), "{late:?}");
        }
    });
}

const DONE: Answered = Ok((BlockAnswer::Done, None));

fn same(answered: &Answered, wanted: &Answered) -> bool {
    match (answered, wanted) {
        (Ok((one, _)), Ok((other, _))) => one == other,
        (Err(one), Err(other)) => one == other,
        _ => false,
    }
}

fn assert_same(answered: Answered, wanted: Answered) {
    assert!(same(&answered, &wanted), "{answered:?}, not {wanted:?}");
}

#[test]
fn a_change_happens_once() {
    world(11, |world| async move {
        let raw = Raw::new(&world);
        let epoch = world.manager.attach(VOLUME, true).epoch;
        let at = raw.open(epoch, epoch, 1).await.expect("it is admitted");
        assert_same(raw.write(at, 1, 1, 10).await, DONE);
        assert_same(raw.write(at, 2, 2, 20).await, DONE);
        // Below the floor it was answered; from there on it gets the answer again.
        assert_same(raw.write(at, 1, 1, 10).await, Err(BlockError::Invalid));
        assert_same(raw.write(at, 2, 2, 20).await, DONE);
        assert_same(raw.write(at, 4, 2, 40).await, DONE);
        assert_same(raw.write(at, 2, 2, 20).await, DONE);
        assert_eq!(raw.read(at).await, Ok(40));
        // Two at a time are one.
        let sequence = Sequence { seq: 5, floor: 5 };
        let clear = BlockIo::Clear { at, sequence, offset: 0, len: 4096, how: Clear::Zero };
        let (first, second) = (raw.send(clear, None), raw.send(clear, None));
        assert_same(first.await.expect("it ends"), DONE);
        assert_same(second.await.expect("it ends"), DONE);
        let stats = world.servers.borrow()[&0].stats();
        assert_eq!((stats.writes, stats.clears, stats.repeats, stats.late), (3, 1, 3, 1));
    });
}

#[test]
fn a_session_ends_before_its_successor_begins() {
    world(12, |world| async move {
        let raw = Raw::new(&world);
        let epoch = world.manager.attach(VOLUME, true).epoch;
        let first = raw.open(epoch, epoch, 1).await.expect("it is admitted");
        // The same again is the same: its answer may have been lost.
        assert_eq!(raw.open(epoch, epoch, 1).await, Ok(first));
        let under_way = raw.send(
            BlockIo::Write { at: first, sequence: Sequence { seq: 1, floor: 1 }, offset: 0 },
            Some(&[1; 4096]),
        );
        let (before, env) = (raw.send(BlockIo::Close { at: first }, None), raw.env.clone());
        drop(before); // Whether it comes before or after, the session is closed.
        on(&env, async {}).await;
        let second = raw.open(epoch, epoch, 2).await.expect("it is admitted");
        assert_same(raw.write(second, 2, 2, 2).await, DONE);
        let ended = under_way.await.expect("it ends");
        assert!(same(&ended, &DONE) || same(&ended, &Err(BlockError::NoSession)), "{ended:?}");
        // Late ones of the first session.
        assert_same(raw.write(first, 3, 1, 3).await, Err(BlockError::NoSession));
        assert_eq!(raw.open(epoch, epoch, 1).await, Err(BlockError::Superseded { session: 2 }));
        assert_eq!(raw.read(second).await, Ok(2));
        // A restarted server knows no session, and takes no number for its own.
        world.kill(0);
        world.boot(0).await;
        assert_eq!(raw.read(second).await, Err(BlockError::NoSession));
        let third = raw.open(epoch, epoch, 2).await.expect("it is admitted");
        assert_ne!(third.grant, second.grant);
        assert_same(raw.write(second, 3, 1, 4).await, Err(BlockError::NoSession));
        // A change that has happened is not done again, at any server.
        assert_same(raw.write(third, 3, 2, 5).await, DONE);
        assert_same(raw.write(third, 2, 2, 2).await, DONE);
        assert_eq!(raw.read(third).await, Ok(5));
    });
}

#[test]
fn attachment_that_is_over_changes_nothing() {
    world(13, |world| async move {
        let raw = Raw::new(&world);
        let old = world.manager.attach(VOLUME, true).epoch;
        let at = raw.open(old, old, 1).await.expect("it is admitted");
        let new = world.manager.attach(VOLUME, true).epoch;
        let other = raw.open(new, new, 1).await.expect("it is admitted");
        let fenced = BlockError::Fenced { fence: new };
        assert_same(raw.write(at, 1, 1, 1).await, Err(fenced));
        assert_eq!(raw.read(at).await, Err(fenced));
        assert_eq!(raw.open(old, old, 2).await, Err(fenced));
        assert_same(raw.write(other, 1, 1, 2).await, DONE);
        // Another server knows neither, and asks.
        world.manager.assign(segment(0), world.addr(1));
        let raw = Raw { server: 1, ..raw };
        assert!(matches!(raw.open(old, old, 3).await, Err(BlockError::Fenced { .. })));
        assert!(raw.open(new, new, 3).await.is_ok());
        // After the move, no read is answered here.
        let raw = Raw { server: 0, ..raw };
        raw.env.sleep(2 * LEASE).await;
        assert_eq!(raw.read(other).await, Err(BlockError::NotOwner));
        assert_same(raw.write(other, 2, 1, 3).await, Err(BlockError::NotOwner));
        assert_eq!(raw.open(new, new, 4).await, Err(BlockError::NotOwner));
    });
}

/// A segment with a change has moved: its previous owner and a session there, the new one and one
/// there, and the time of the move. The attachment is alone, or another one was made after it.
async fn moved(world: World, alone: bool) -> ((Raw, SessionRef), (Raw, SessionRef), Instant) {
    let raw = Raw::new(&world);
    let epoch = world.manager.attach(VOLUME, false).epoch;
    if !alone {
        world.manager.attach(VOLUME, false);
    }
    let old = raw.open(epoch, epoch, 1).await.expect("it is admitted");
    assert_same(raw.write(old, 1, 1, 1).await, DONE);
    let since = raw.env.now();
    world.manager.assign(segment(0), world.addr(1));
    let next = raw.at(1);
    let again = SessionRef { session: 2, grant: 0, ..old };
    let new = next.open_after(again, epoch, 1).await.expect("it is admitted");
    ((raw, old), (next, new), since)
}

#[test]
fn leases_hold_back_acknowledgements_and_end_reads() {
    world(14, |world| async move {
        let ((raw, old), (next, new), since) = moved(world, false).await;
        // The previous owner answers reads: nothing was acknowledged since.
        assert_eq!(raw.read(old).await, Ok(1));
        assert_same(next.write(new, 2, 2, 2).await, DONE);
        assert!(raw.env.now() - since >= LEASE);
        assert_eq!(raw.read(old).await, Err(BlockError::NotOwner));
        assert_eq!(next.read(new).await, Ok(2));
    });
}

/// Or a read there would show what the next one, at the previous owner, does not (decision 22).
#[test]
fn leases_hold_back_reads_of_a_successor() {
    world(15, |world| async move {
        let ((raw, old), (next, new), since) = moved(world, false).await;
        assert_eq!(next.read(new).await, Ok(1));
        assert!(raw.env.now() - since >= LEASE);
        assert_eq!(raw.read(old).await, Err(BlockError::NotOwner));
    });
}

#[test]
fn attachment_that_is_alone_does_not_wait_for_its_last_owner() {
    world(16, |world| async move {
        let ((raw, old), (next, new), since) = moved(world.clone(), true).await;
        assert_same(next.write(new, 2, 2, 2).await, DONE);
        assert_eq!(next.read(new).await, Ok(2));
        // The same in its next session there.
        let again = SessionRef { session: 3, grant: 0, ..new };
        let again = next.open_after(again, old.attachment, 2).await.expect("it is admitted");
        assert_same(next.write(again, 3, 3, 3).await, DONE);
        assert!(raw.env.now() - since < LEASE / 2, "it waits {:?}", raw.env.now() - since);
        // The last owner has a lease, and admits no later attachment.
        let later = world.manager.attach(VOLUME, false).epoch;
        assert_eq!(raw.open(later, old.attachment, 1).await, Err(BlockError::NotOwner));
        assert!(raw.env.now() - since < LEASE, "too late to tell");
    });
}

#[test]
fn attachment_that_is_alone_waits_for_owners_before_the_last_one() {
    world(17, |world| async move {
        let ((raw, old), (next, _), _) = moved(world.clone(), true).await;
        // To the first owner and back, which never admitted it.
        let since = raw.env.now();
        world.manager.assign(segment(0), world.addr(0));
        world.manager.assign(segment(0), world.addr(1));
        world.release(1, segment(0)).await;
        let again = SessionRef { session: 3, grant: 0, ..old };
        let again = next.open_after(again, old.attachment, 2).await.expect("it is admitted");
        assert_same(next.write(again, 3, 3, 3).await, DONE);
        assert!(raw.env.now() - since >= LEASE);
    });
}

#[test]
fn change_repeated_at_another_server_undoes_nothing() {
    world(16, |world| async move {
        let raw = Raw::new(&world);
        let one = world.manager.attach(VOLUME, false).epoch;
        let other = world.manager.attach(VOLUME, false).epoch;
        let at = raw.open(one, one, 1).await.expect("it is admitted");
        assert_same(raw.write(at, 1, 1, 1).await, DONE); // Its answer is lost with the server.
        world.manager.assign(segment(0), world.addr(1));
        let next = raw.at(1);
        let beside = next.open(other, one, 1).await.expect("it is admitted");
        assert_same(next.write(beside, 1, 1, 2).await, DONE);
        let at = next.open(one, one, 2).await.expect("it is admitted");
        assert_same(next.write(at, 1, 1, 1).await, DONE);
        assert_eq!(next.read(at).await, Ok(2));
        // A client that begins to count learns the last number.
        let fresh = SessionRef { session: 3, grant: 0, ..at };
        let opened = next.call(BlockIo::Open { at: fresh, fence: one, after: 0 }, None).await;
        assert!(matches!(opened, Ok((BlockAnswer::Opened { last: 1, .. }, _))), "{opened:?}");
        // Changes of a closed session are forgotten.
        let close = BlockIo::Close { at: beside };
        assert_same(next.call(close, None).await, DONE);
        let device = next.world.manager.memory(segment(0)).expect("it is there");
        assert_eq!(device.attachments(), [one as u32]);
    });
}

#[test]
fn read_without_a_lease_is_confirmed_by_the_core() {
    world(17, |world| async move {
        let raw = Raw::new(&world);
        let epoch = world.manager.attach(VOLUME, true).epoch;
        let at = raw.open(epoch, epoch, 1).await.expect("it is admitted");
        assert_same(raw.write(at, 1, 1, 1).await, DONE);
        // The manager renews no leases: all goes on.
        world.manager.set_down(true);
        assert_same(raw.write(at, 2, 2, 2).await, DONE);
        assert_eq!(raw.read(at).await, Ok(2));
        let stats = world.servers.borrow()[&0].stats();
        assert_eq!((stats.writes, stats.confirmed), (2, 1));
        // Another server owns it, which this one cannot know.
        world.manager.assign(segment(0), world.addr(1));
        let next = raw.at(1);
        let new = next.open(epoch, epoch, 2).await.expect("it is admitted");
        assert_same(next.write(new, 3, 3, 3).await, DONE);
        assert_eq!(raw.read(at).await, Err(BlockError::NotOwner));
        assert_eq!(next.read(new).await, Ok(3));
    });
}

#[test]
fn locations_are_leased_to_a_lone_attachment() {
    world(18, |world| async move {
        let raw = Raw::new(&world);
        let env = raw.env.clone();
        let one = world.manager.attach(VOLUME, true).epoch;
        let at = raw.open(one, one, 1).await.expect("it is admitted");
        assert_same(raw.write(at, 1, 1, 1).await, DONE);
        let located = raw.locate(at).await;
        let leased = Duration::from_millis(located.location_lease_ms.into());
        assert!(located.first == 0 && leased > LEASE / 2 && leased <= LEASE, "{located:?}");
        assert_eq!(located.spans.iter().map(|span| span.blocks).sum::<u32>(), 32);
        // Another attachment is admitted when the location lease has expired, and from then on there is none.
        let (asked, other) = (env.now(), world.manager.attach(VOLUME, false).epoch);
        let beside = raw.open(other, one, 1).await.expect("it is admitted");
        assert!(env.now() - asked > LEASE / 2, "{:?}", env.now() - asked);
        assert_eq!(raw.locate(at).await.location_lease_ms, 0);
        assert_eq!(raw.locate(beside).await.location_lease_ms, 0, "others may act beside it");
        assert_same(raw.call(BlockIo::Close { at: beside }, None).await, DONE);
        // An answer would renew the leases from before the visit: that takes a session without any.
        assert_eq!(raw.locate(at).await.location_lease_ms, 0, "another has acted since");
        let at = raw.open(one, one, 2).await.expect("it is admitted");
        assert!(raw.locate(at).await.location_lease_ms > 0);
        // At another owner: an attachment that the previous owner had admitted does not wait, others do.
        world.manager.assign(segment(0), world.addr(1));
        let next = raw.at(1);
        let (asked, again) = (env.now(), SessionRef { session: 3, grant: 0, ..at });
        let epoch =
            next.world.manager.route().place(segment(0), None).await.expect("it is there").epoch;
        let at = next.open_after(again, one, epoch - 1).await.expect("it is admitted");
        assert!(env.now() - asked < LEASE / 2, "{:?}", env.now() - asked);
        // The previous owner's lease runs: no location is leased before its end.
        assert!(next.locate(at).await.location_lease_ms > 0);
        let (asked, new) = (env.now(), next.world.manager.attach(VOLUME, true).epoch);
        next.open(new, new, 1).await.expect("it is admitted");
        assert!(env.now() - asked > LEASE / 2, "{:?}", env.now() - asked);
    });
}

/// Those that an owner has admitted do not wait at the next one: what that owner leases to others, also
/// after it has opened the segment again, would be shown stale.
#[test]
fn no_location_is_leased_when_another_attachment_was_admitted_in_an_earlier_opening() {
    world(20, |world| async move {
        let raw = Raw::new(&world);
        let one = world.manager.attach(VOLUME, true).epoch;
        let other = world.manager.attach(VOLUME, false).epoch;
        let at = raw.open(one, one, 1).await.expect("it is admitted");
        assert_same(raw.write(at, 1, 1, 1).await, DONE);
        assert!(raw.locate(at).await.location_lease_ms > 0);
        raw.world.release(0, segment(0)).await;
        let at = raw.open(one, one, 2).await.expect("it is admitted");
        assert!(raw.locate(at).await.location_lease_ms > 0, "it was alone");
        raw.open(other, one, 1).await.expect("it is admitted");
        raw.world.release(0, segment(0)).await;
        let at = raw.open(one, one, 3).await.expect("it is admitted");
        assert_eq!(raw.locate(at).await.location_lease_ms, 0, "the other one may write elsewhere");
        // Under the next epoch, the other one waits.
        world.manager.assign(segment(0), world.addr(1));
        let next = raw.at(1);
        let at = next.open(one, one, 4).await.expect("it is admitted");
        assert!(next.locate(at).await.location_lease_ms > 0);
    });
}

/// An opening closes the session before it, waits for its changes, and may be given up then. Its
/// attachment was admitted by this owner, and waits for nothing at the next one.
#[test]
fn no_location_is_leased_beside_an_attachment_whose_next_opening_was_given_up() {
    world(22, |world| async move {
        let raw = Raw::new(&world);
        let one = world.manager.attach(VOLUME, true).epoch;
        let other = world.manager.attach(VOLUME, false).epoch;
        let beside = raw.open(other, one, 1).await.expect("it is admitted");
        let gate = world.gates.device(segment(0));
        gate.shut();
        let sequence = Sequence { seq: 1, floor: 1 };
        let write = BlockIo::Write { at: beside, sequence, offset: 0 };
        let slow = raw.send(write, Some(&[1; 4096]));
        raw.env.sleep(LEASE / 10).await;
        let at = SessionRef { session: 2, grant: 0, ..beside };
        let given_up = raw.send(BlockIo::Open { at, fence: one, after: 0 }, None);
        raw.env.sleep(LEASE / 10).await;
        [slow, given_up].iter().for_each(|call| call.abort());
        raw.env.sleep(2 * CALL).await;
        gate.open();
        raw.env.sleep(LEASE / 10).await;
        let alone = raw.open(one, one, 1).await.expect("it is admitted");
        assert_eq!(raw.locate(alone).await.location_lease_ms, 0, "the other one lives");
        // Until it has said that it is over.
        let at = raw.open(other, one, 3).await.expect("it is admitted");
        assert_same(raw.call(BlockIo::Close { at }, None).await, DONE);
        let alone = raw.open(one, one, 2).await.expect("it is admitted");
        assert!(raw.locate(alone).await.location_lease_ms > 0);
    });
}

/// An attachment alone has fenced off all before it, wherever they were admitted.
#[test]
fn locations_are_leased_to_a_later_attachment_after_another_opening() {
    world(23, |world| async move {
        let raw = Raw::new(&world);
        let old = world.manager.attach(VOLUME, true).epoch;
        raw.open(old, old, 1).await.expect("it is admitted");
        let new = world.manager.attach(VOLUME, true).epoch;
        let at = raw.open(new, new, 1).await.expect("it is admitted");
        assert_same(raw.write(at, 1, 1, 1).await, DONE);
        raw.world.release(0, segment(0)).await;
        let at = raw.open(new, new, 2).await.expect("it is admitted");
        assert!(raw.locate(at).await.location_lease_ms > 0);
    });
}

/// No owner before this one can have that epoch.
#[test]
fn opening_that_names_a_later_epoch_waits_for_locations_that_were_leased() {
    world(24, |world| async move {
        let raw = Raw::new(&world);
        let one = world.manager.attach(VOLUME, true).epoch;
        let other = world.manager.attach(VOLUME, false).epoch;
        let at = raw.open(one, one, 1).await.expect("it is admitted");
        assert_same(raw.write(at, 1, 1, 1).await, DONE);
        assert!(raw.locate(at).await.location_lease_ms > 0);
        let since = raw.env.now();
        world.manager.assign(segment(0), world.addr(1));
        let next = raw.at(1);
        let at = SessionRef { segment: segment(0), attachment: other, session: 1, grant: 0 };
        next.open_after(at, one, u64::MAX).await.expect("it is admitted");
        assert!(next.env.now() - since > LEASE / 2, "{:?}", next.env.now() - since);
    });
}

/// Issue 10, 3.13: a location lease was forgotten when the segment was released while it was opened
/// again, and the next attachment did not wait for it.
#[test]
fn location_lease_lasts_when_a_segment_is_released_while_it_is_opened() {
    world(19, |world| async move {
        let raw = Raw::new(&world);
        let env = raw.env.clone();
        let one = world.manager.attach(VOLUME, true).epoch;
        let at = raw.open(one, one, 1).await.expect("it is admitted");
        assert_same(raw.write(at, 1, 1, 1).await, DONE);
        assert!(raw.locate(at).await.location_lease_ms > 0);
        let leased = env.now();
        raw.world.release(0, segment(0)).await;
        let other = world.manager.attach(VOLUME, false).epoch;
        let at = SessionRef { segment: segment(0), attachment: other, session: 1, grant: 0 };
        let early = raw.send(BlockIo::Open { at, fence: one, after: 0 }, None);
        while !early.is_finished() {
            env.sleep(Duration::from_micros(50)).await;
            raw.world.release(0, segment(0)).await;
        }
        assert_same(early.await.expect("it ends"), Err(BlockError::NotOwner));
        raw.open(other, one, 1).await.expect("it is admitted");
        assert!(env.now() - leased > LEASE / 2, "{:?}", env.now() - leased);
    });
}

/// A request of an earlier hosting may end when its segment was opened and released again.
#[test]
fn location_lease_lasts_when_a_request_of_an_earlier_hosting_finds_it_fenced() {
    world(21, |world| async move {
        let raw = Raw::new(&world);
        let env = raw.env.clone();
        let one = world.manager.attach(VOLUME, true).epoch;
        let at = raw.open(one, one, 1).await.expect("it is admitted");
        assert_same(raw.write(at, 1, 1, 1).await, DONE);
        let gate = world.gates.device(segment(0));
        gate.shut();
        let straggler = raw.send(BlockIo::Read { at, offset: 9, len: 1, locate: false }, None);
        env.sleep(LEASE / 10).await;
        raw.world.release(0, segment(0)).await;
        let at = raw.open(one, one, 2).await.expect("it is admitted");
        assert!(raw.locate(at).await.location_lease_ms > 0);
        let leased = env.now();
        raw.world.release(0, segment(0)).await;
        gate.fail(Fault::new(Kind::Fenced, "the segment has another owner"));
        assert_same(straggler.await.expect("it ends"), Err(BlockError::NotOwner));
        let other = world.manager.attach(VOLUME, false).epoch;
        raw.open(other, one, 1).await.expect("it is admitted");
        assert!(env.now() - leased > LEASE / 2, "{:?}", env.now() - leased);
    });
}

/// A release that waits does not hold up requests that come after it.
#[test]
fn segment_is_opened_again_by_a_request_that_follows_its_release() {
    world(20, |world| async move {
        let raw = Raw::new(&world);
        let one = world.manager.attach(VOLUME, true).epoch;
        raw.open(one, one, 1).await.expect("it is admitted");
        let server = world.servers.borrow()[&0].clone();
        let release = server.release(segment(0));
        let at = raw.open(one, one, 2).await.expect("it is admitted");
        on(&world.server_env(0), release).await;
        assert_same(raw.write(at, 1, 1, 1).await, DONE);
    });
}

#[test]
fn invalid_requests_are_refused() {
    world(15, |world| async move {
        let raw = Raw::new(&world);
        let epoch = world.manager.attach(VOLUME, true).epoch;
        let at = raw.open(epoch, epoch, 1).await.expect("it is admitted");
        let invalid = Err(BlockError::Invalid);
        let end = 512 << 10;
        let sequence = |seq| Sequence { seq, floor: 1 };
        let how = Clear::Trim;
        for (io, payload) in [
            (BlockIo::Read { at, offset: end - 1, len: 2, locate: true }, None),
            (BlockIo::Read { at, offset: 0, len: 1 << 20, locate: false }, None),
            (BlockIo::Write { at, sequence: sequence(1), offset: 0 }, None),
            (BlockIo::Write { at, sequence: sequence(2), offset: end - 1 }, Some(&b"ab"[..])),
            (BlockIo::Clear { at, sequence: sequence(3), offset: 1, len: end, how }, None),
            (BlockIo::Pieces { at, offset: 1, len: end, most: 7 }, None),
        ] {
            assert_same(raw.call(io, payload).await, invalid.clone());
        }
        let nowhere = SessionRef { segment: segment(99), ..at };
        assert_eq!(raw.read(nowhere).await, Err(BlockError::NoSession));
        let strange = SessionRef { grant: 0, ..nowhere };
        let open = BlockIo::Open { at: strange, fence: 0, after: 0 };
        assert_same(raw.call(open, None).await, Err(BlockError::NotOwner));
        // More changes at a time than a session has room for.
        for seq in 4..=256 {
            assert_same(raw.write(at, seq, 1, 1).await, DONE);
        }
        assert_same(raw.write(at, 257, 1, 1).await, Err(BlockError::Busy));
        assert_same(raw.write(at, 1000, 1000, 1).await, DONE);
    });
}
