//! Processes of one block server: the one that joined last has the segments, whatever previous ones
//! send afterwards. Processes of one front end: the one that is heard has its volumes.

use base::{GIB, Kind};
use block_manager::limits::{ATTACH_DEAD, SERVER_DEAD};
use block_manager::{Machine, ManagerState, Refusal};
use block_proto::limits::BLOCK_SERVERS_MAX;
use block_proto::{BlockHeartbeat, BlockReply, BlockRequest};
use block_volume::ids::{SegmentId, VolumeId};

use super::snapshots::next_leader;
use super::{Server, at, machine, spec, volume};

fn heartbeat_of(server: &mut Server) -> BlockHeartbeat {
    server.seq += 1;
    BlockHeartbeat {
        server: server.id,
        addr: "127.0.0.1:7000".parse().expect("an address"),
        boot: server.boot,
        seq: server.seq,
        seen: server.seen,
        unopened: Vec::new(),
        unopened_count: 0,
        loads: Vec::new(),
        leaving: false,
        asks_admission: true,
    }
}

/// True when a heartbeat is answered with a lease or with the changes that come before it.
fn is_granted(machine: &mut Machine, ms: u64, heartbeat: BlockHeartbeat) -> bool {
    match machine.handle(at(ms), BlockRequest::Heartbeat(heartbeat)) {
        Ok(BlockReply::Grant(grant)) => grant.known && (grant.lease_ms > 0 || grant.more),
        _ => false,
    }
}

/// A server whose process was replaced by another, and the leader that saw it.
fn replaced() -> (Machine, Server, Server) {
    let mut machine = machine(ManagerState::default(), 1, at(0));
    let mut former = Server::join(&mut machine, at(0), "bs1");
    former.heartbeat(&mut machine, at(0));
    let create = BlockRequest::Create { nonce: 1, spec: spec("a", GIB) };
    volume(machine.handle(at(1), create));
    former.heartbeat(&mut machine, at(2));
    let mut live = Server::join(&mut machine, at(10), "bs1");
    live.heartbeat(&mut machine, at(11));
    live.heartbeat(&mut machine, at(12));
    (machine, former, live)
}

fn epochs(machine: &Machine) -> Vec<u64> {
    machine.state().segments().map(|(_, segment)| segment.epoch).collect()
}

#[test]
fn heartbeat_of_a_previous_process_takes_nothing_from_the_live_one() {
    let (machine, mut former, mut live) = replaced();
    let mut machine = next_leader(&machine);
    assert!(is_granted(&mut machine, 5000, heartbeat_of(&mut live)));
    let before = epochs(&machine);
    assert!(
        !is_granted(&mut machine, 5001, heartbeat_of(&mut former)),
        "a former process has a lease"
    );
    assert_eq!(epochs(&machine), before, "segments were given again");
    assert!(is_granted(&mut machine, 5002, heartbeat_of(&mut live)), "the live process is refused");
}

#[test]
fn heartbeat_of_a_previous_process_that_a_new_leader_hears_first_is_refused() {
    let (machine, mut former, mut live) = replaced();
    let mut machine = next_leader(&machine);
    assert!(
        !is_granted(&mut machine, 5000, heartbeat_of(&mut former)),
        "a former process has a lease"
    );
    assert!(is_granted(&mut machine, 5001, heartbeat_of(&mut live)), "the live process is refused");
}

#[test]
fn heartbeat_of_a_previous_process_is_refused_after_any_number_of_others() {
    let (mut machine, mut former, mut live) = replaced();
    for _ in 0..20 {
        live = Server { boot: live.boot + 1, seq: 0, seen: block_proto::Seen::default(), ..live };
        assert!(is_granted(&mut machine, 20, heartbeat_of(&mut live)));
    }
    assert!(
        !is_granted(&mut machine, 21, heartbeat_of(&mut former)),
        "a former process has a lease"
    );
    assert!(is_granted(&mut machine, 22, heartbeat_of(&mut live)), "the live process is refused");
}

#[test]
fn second_process_elsewhere_is_refused_while_the_first_is_heard() {
    let (mut machine, _, mut live) = replaced();
    let register = |addr: &str| BlockRequest::Register {
        name: "bs1".to_owned(),
        addr: addr.parse().expect("an address"),
    };
    let refused = machine.handle(at(20), register("127.0.0.1:7001"));
    assert!(matches!(refused, Err(Refusal::Second { .. })), "{refused:?}");
    // At the same address the first one cannot run any more.
    let again = machine.handle(at(21), register("127.0.0.1:7000"));
    assert!(matches!(again, Ok(BlockReply::Registered { boot, .. }) if boot > live.boot));
    // A number alone changes nothing: its process may have ended before its first heartbeat.
    assert!(is_granted(&mut machine, 22, heartbeat_of(&mut live)));
    let silent = 22 + SERVER_DEAD.as_millis() as u64;
    (22..silent).step_by(50).for_each(|ms| {
        machine.tick(at(ms));
    });
    machine.tick(at(silent - 1));
    assert!(machine.handle(at(silent - 1), register("127.0.0.1:7001")).is_err());
    machine.tick(at(silent));
    machine.handle(at(silent), register("127.0.0.1:7001")).expect("the first is silent");
}

/// A leader that dies amid the storing of what a process was given leaves a part of it: the process
/// is given all of it again, under epochs of its own.
#[test]
fn process_of_which_a_part_was_stored_is_given_all_again() {
    let mut machine = machine(ManagerState::default(), 1, at(0));
    let mut former = Server::join(&mut machine, at(0), "bs1");
    former.heartbeat(&mut machine, at(0));
    volume(machine.handle(at(1), BlockRequest::Create { nonce: 1, spec: spec("a", GIB) }));
    former.heartbeat(&mut machine, at(2));
    let owned: Vec<(_, u64)> =
        machine.state().segments().map(|(id, segment)| (id, segment.epoch)).collect();
    let mut live = Server::join(&mut machine, at(10), "bs1");
    let before = machine.state().clone();
    machine.take_rows();
    live.heartbeat(&mut machine, at(11));
    let rows = machine.take_rows();
    assert!(rows.len() > owned.len());
    for stored in 0..rows.len() {
        let mut state = before.clone();
        rows[..stored].iter().cloned().for_each(|row| state.apply(row));
        let mut next = super::machine(state, 2, at(5000));
        let mut live = Server { seq: 0, seen: block_proto::Seen::default(), ..live };
        assert!(is_granted(&mut next, 5000, heartbeat_of(&mut live)));
        let again = |(id, epoch): &(_, u64)| next.state().segment(*id).unwrap().epoch > *epoch;
        assert!(owned.iter().all(again), "with {stored} rows an epoch has two processes");
        assert!(!is_granted(&mut next, 5001, heartbeat_of(&mut former)));
    }
}

/// Machines come and go with their names: those that are gone for a day make room for others.
#[test]
fn new_name_is_refused_only_while_a_thousand_others_were_there_within_a_day() {
    const DAY_MS: u64 = 24 * 3600 * 1000;
    let mut machine = machine(ManagerState::default(), 1, at(0));
    let join =
        |machine: &mut Machine, ms, n: usize| Server::join(machine, at(ms), &format!("bs{n}"));
    let mut owner = join(&mut machine, 0, 0);
    owner.heartbeat(&mut machine, at(0));
    volume(machine.handle(at(0), BlockRequest::Create { nonce: 1, spec: spec("a", GIB) }));
    let mut gone = join(&mut machine, 1, 1);
    for n in 2..BLOCK_SERVERS_MAX {
        join(&mut machine, 2, n);
    }
    // The first one dies, and none is there for its segments.
    (3..1000).step_by(50).for_each(|ms| {
        machine.tick(at(ms));
    });
    let register = |machine: &mut Machine, ms| {
        let addr = "127.0.0.1:7000".parse().expect("an address");
        machine.handle(at(ms), BlockRequest::Register { name: "new".to_owned(), addr })
    };
    for ms in [3000, DAY_MS] {
        let refused = register(&mut machine, ms);
        assert!(matches!(refused, Err(Refusal::Full { .. })), "{ms}: {refused:?}");
    }
    let Ok(BlockReply::Registered { server, boot }) = register(&mut machine, DAY_MS + 1) else {
        panic!("one is gone for a day")
    };
    assert!(server.get() as usize > BLOCK_SERVERS_MAX && boot > 1, "{server} {boot}");
    // The one that owns segments is silent for as long, and stays.
    let names = |machine: &Machine| {
        let of = |name: &str| machine.state().server_of(name);
        (of("bs0"), of("bs1"), of("new"))
    };
    assert_eq!(names(&machine), (Some(owner.id), None, Some(server)));
    assert_eq!(machine.state().servers().count(), BLOCK_SERVERS_MAX);
    let mut next = next_leader(&machine);
    assert_eq!(names(&next), names(&machine));
    // The process of the name that is forgotten is not known, and registers in place of the next one.
    let late = machine.handle(at(DAY_MS + 2), BlockRequest::Heartbeat(heartbeat_of(&mut gone)));
    assert!(matches!(late, Ok(BlockReply::Grant(grant)) if !grant.known && grant.lease_ms == 0));
    assert!(!is_granted(&mut next, 5000, heartbeat_of(&mut gone)));
    let mut back = join(&mut machine, DAY_MS + 3, 1);
    assert!(back.id > server && back.boot > gone.boot);
    back.heartbeat(&mut machine, at(DAY_MS + 4));
    // It keeps its number when it registers: one of the name's present processes is later.
    let mut former = Server { id: back.id, seq: 1000, ..gone };
    let refused =
        machine.handle(at(DAY_MS + 5), BlockRequest::Heartbeat(heartbeat_of(&mut former)));
    assert!(matches!(refused, Err(Refusal::Former { .. })), "{refused:?}");
}

/// A machine that stood still for a day comes back under the same leader, and is another server now. What it had
/// is others': it has to hear that before it gets a lease.
#[test]
fn server_that_was_forgotten_is_given_all_that_it_has_now() {
    const DAY_MS: u64 = 24 * 3600 * 1000;
    let mut machine = machine(ManagerState::default(), 1, at(0));
    let mut gone = Server::join(&mut machine, at(0), "gone");
    gone.heartbeat(&mut machine, at(0));
    let create = |nonce, name| BlockRequest::Create { nonce, spec: spec(name, 4 * GIB) };
    volume(machine.handle(at(0), create(1, "a")));
    (1..3).for_each(|ms| drop(gone.heartbeat(&mut machine, at(ms))));
    assert!(machine.state().owned_count(gone.id) > 0);
    // Another one has its segments then.
    let mut owner = Server::join(&mut machine, at(3), "owner");
    for ms in (3..2000).step_by(50) {
        owner.heartbeat(&mut machine, at(ms));
        machine.tick(at(ms));
    }
    assert_eq!(machine.state().owned_count(gone.id), 0);
    for n in 2..BLOCK_SERVERS_MAX {
        Server::join(&mut machine, at(2000), &format!("bs{n}"));
    }
    Server::join(&mut machine, at(DAY_MS + 1000), "new");
    assert_eq!(machine.state().server_of("gone"), None);
    assert!(!gone.heartbeat(&mut machine, at(DAY_MS + 1001)).known);
    let id = Server::join(&mut machine, at(DAY_MS + 3000), "gone").id;
    let mut back = Server { id, ..gone.clone() };
    // The first answer is lost.
    for ms in [3001, 3002] {
        back.seen = gone.seen;
        let grant = back.heartbeat(&mut machine, at(DAY_MS + ms));
        assert!(grant.known && grant.reset, "{ms}: {grant:?}");
    }
    // What it is given from now on it hears as any other.
    volume(machine.handle(at(DAY_MS + 3003), create(2, "b")));
    let grant = back.heartbeat(&mut machine, at(DAY_MS + 3004));
    assert!(!grant.reset && grant.known);
    let owned = grant.changes.iter().filter(|change| change.ownership.is_some()).count();
    assert_eq!(owned, machine.state().owned_count(back.id));
    assert!(owned > 0);
}

/// Numbers of attachments: the upper half is drawn once in each process.
const FIRST: u64 = 1 << 32;
const SECOND: u64 = 2 << 32;
/// Silence of a process after which another one of its name has what it had open.
const SILENT_MS: u64 = 3000;

/// An attachment of a front end.
fn attach(machine: &mut Machine, ms: u64, nonce: u64) -> Result<u64, Refusal> {
    machine.tick(at(ms));
    let (name, holder) = ("a".to_owned(), "front end fe1".to_owned());
    match machine.handle(at(ms), BlockRequest::Attach { name, nonce, holder })? {
        BlockReply::Attached { epoch, .. } => Ok(epoch),
        reply => panic!("{reply:?}"),
    }
}

/// A renewal. True when the attachment is over.
fn is_over(machine: &mut Machine, ms: u64, id: VolumeId, epoch: u64) -> bool {
    let keep = BlockRequest::Keep { attachments: vec![(id, epoch)] };
    machine.handle(at(ms), keep) != Ok(BlockReply::Kept { over: Vec::new() })
}

/// A leader with a volume.
fn with_volume(shared: bool) -> (Machine, VolumeId) {
    let mut machine = machine(ManagerState::default(), 1, at(0));
    let spec = block_proto::VolumeSpec { shared, ..spec("a", GIB) };
    let id = volume(machine.handle(at(0), BlockRequest::Create { nonce: 1, spec })).volume;
    (machine, id)
}

/// The time from `ms` on, in the steps in which a leader looks at its clock.
fn pass(machine: &mut Machine, ms: std::ops::Range<u64>) {
    ms.step_by(50).for_each(|ms| {
        machine.tick(at(ms));
    });
}

#[test]
fn second_front_end_of_an_id_is_refused_while_the_first_is_heard() {
    for shared in [false, true] {
        let (mut machine, id) = with_volume(shared);
        let mut epoch = attach(&mut machine, 0, FIRST | 1).expect("it is free");
        // The second one asks again and again, each time for another attachment or for the same.
        for ms in (100..20_000).step_by(100) {
            let again = attach(&mut machine, ms, SECOND | (ms / 1000));
            assert!(again.is_err(), "{ms}: the second process has epoch {again:?}");
            if ms % 1000 == 0 {
                assert!(!is_over(&mut machine, ms, id, epoch), "{ms}: the first one is fenced");
            }
            // The first opens its volume again, as behind a lost attachment: at once.
            if ms == 10_000 {
                epoch = attach(&mut machine, ms, FIRST | 2).expect("the same process");
            }
        }
        // It is not heard any more: the other one was started in its place, at whichever address.
        let silent = 19_000 + ATTACH_DEAD.as_millis() as u64;
        pass(&mut machine, 20_000..silent);
        let taken = attach(&mut machine, silent + 1, SECOND | 99).expect("the first is silent");
        assert!(taken > epoch && is_over(&mut machine, silent + 2, id, epoch));
        // What the first one sends then does not bring it back.
        assert!(attach(&mut machine, silent + 3, FIRST | 3).is_err());
        assert!(!is_over(&mut machine, silent + 4, id, taken));
    }
}

/// A new leader knows no renewals yet: it gives the first process the time for one.
#[test]
fn second_front_end_of_an_id_is_refused_by_a_new_leader_too() {
    let (mut machine, id) = with_volume(false);
    let epoch = attach(&mut machine, 0, FIRST | 1).expect("it is free");
    let again = |machine: &Machine| {
        let mut state = ManagerState::default();
        machine.state().rows().into_iter().for_each(|row| state.apply(row));
        super::machine(state, 2, at(5000))
    };
    let mut next = again(&machine);
    let latest = 5000 + SILENT_MS - 1;
    for ms in (5001..=latest).step_by(50) {
        let refused = attach(&mut next, ms, SECOND | 1);
        assert_eq!(refused.map_err(|refusal| refusal.kind()), Err(Kind::Retry), "{ms}");
    }
    assert!(!is_over(&mut next, latest, id, epoch));
    let refused = attach(&mut next, latest + 1, SECOND | 1);
    assert_eq!(refused.map_err(|refusal| refusal.kind()), Err(Kind::Exists));
    // Where the first one has ended, the second waits for as long as under one leader.
    let mut next = again(&machine);
    pass(&mut next, 5000..latest);
    let taken = attach(&mut next, latest + 1, SECOND | 1).expect("the first is silent");
    assert!(taken > epoch && is_over(&mut next, latest + 2, id, epoch));
}

/// A front end that was killed is started again: it asks for as long as it takes, and sees no error.
#[test]
fn front_end_that_starts_again_waits_for_the_silence_of_its_former_process() {
    let (mut machine, id) = with_volume(false);
    let epoch = attach(&mut machine, 0, FIRST | 1).expect("it is free");
    pass(&mut machine, 0..1000);
    assert!(!is_over(&mut machine, 1000, id, epoch));
    // Block servers may still ask about the former one.
    let segment = SegmentId { volume: id, index: 0 };
    let admit = BlockRequest::Admit { segment, epoch: 0, attachment: epoch };
    for ms in (1050..1000 + SILENT_MS).step_by(50) {
        let refused = attach(&mut machine, ms, SECOND | 1);
        assert_eq!(refused.map_err(|refusal| refusal.kind()), Err(Kind::Retry), "{ms}");
        machine.handle(at(ms), admit.clone()).expect("an answer");
    }
    let taken = attach(&mut machine, 1000 + SILENT_MS, SECOND | 1).expect("it is silent");
    assert_eq!(attach(&mut machine, 1000 + SILENT_MS, SECOND | 1), Ok(taken), "it comes again");
    assert!(is_over(&mut machine, 4100, id, epoch));
    // One that the former process has sent ends nothing.
    let late = attach(&mut machine, 4200, FIRST | 2);
    assert!(late.is_err() && !is_over(&mut machine, 4300, id, taken), "{late:?}");
}

/// Processes of older versions have no part of the number for themselves: they wait, and are not refused.
#[test]
fn process_whose_numbers_are_all_drawn_has_its_volume_again() {
    let (mut machine, id) = with_volume(false);
    let first = attach(&mut machine, 0, 0x9a7c_0001_5511_0001).expect("it is free");
    // It has closed the volume, and opens it again before that is known.
    let early = attach(&mut machine, 500, 0x1234_5678_9abc_def0);
    assert_eq!(early.map_err(|refusal| refusal.kind()), Err(Kind::Retry));
    let detach = BlockRequest::Detach { volume: id, epoch: first };
    assert_eq!(machine.handle(at(510), detach), Ok(BlockReply::Done));
    let second = attach(&mut machine, 520, 0x1234_5678_9abc_def0).expect("it is closed");
    // It was stopped and started.
    pass(&mut machine, 550..520 + SILENT_MS);
    assert!(attach(&mut machine, 520 + SILENT_MS - 1, 0x7777_0001_0000_0001).is_err());
    let third = attach(&mut machine, 520 + SILENT_MS, 0x7777_0001_0000_0001);
    assert!(third.is_ok_and(|third| third > second));
}

/// The caller acts on the kind: it asks again, or has the sentence for its operator.
#[test]
fn second_front_end_is_refused_by_name_once_the_first_was_heard_again() {
    let (mut machine, id) = with_volume(false);
    let epoch = attach(&mut machine, 0, FIRST | 1).expect("it is free");
    let kind = |machine: &mut Machine, ms, nonce| {
        attach(machine, ms, nonce).map_err(|refusal| refusal.kind())
    };
    assert_eq!(kind(&mut machine, 900, SECOND | 1), Err(Kind::Retry));
    assert!(!is_over(&mut machine, 1000, id, epoch));
    let refused = attach(&mut machine, 1100, SECOND | 1).expect_err("the first lives");
    assert_eq!(refused.kind(), Kind::Exists);
    let text = refused.to_string();
    for part in ["a: ", "front end fe1", "epoch 1", "100.0ms", "Stop one of the two", "ID", "3s"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // The same request has that answer from now on, and the next one sees for itself: the first may have ended.
    pass(&mut machine, 1100..1000 + SILENT_MS);
    let silent = 1000 + SILENT_MS;
    assert_eq!(kind(&mut machine, silent - 1, SECOND | 2), Err(Kind::Retry));
    assert_eq!(kind(&mut machine, silent, SECOND | 1), Err(Kind::Exists));
    let mut next = next_leader(&machine);
    assert!(kind(&mut next, silent, SECOND | 1) == Err(Kind::Invalid), "it was refused");
    assert_eq!(kind(&mut machine, silent, SECOND | 2), Ok(epoch + 1));
}

/// Renewals of the first one wait to be read: they count before its silence does.
#[test]
fn leader_that_stood_still_fences_no_front_end_for_a_second_one() {
    let (mut machine, id) = with_volume(false);
    let epoch = attach(&mut machine, 0, FIRST | 1).expect("it is free");
    machine.tick(at(50));
    // It stands still for three seconds, and reads the request of the second one first.
    let ask = |machine: &mut Machine, ms| {
        let (name, holder) = ("a".to_owned(), "front end fe1".to_owned());
        machine.handle(at(ms), BlockRequest::Attach { name, nonce: SECOND | 1, holder })
    };
    let early = 50 + SILENT_MS;
    assert!(ask(&mut machine, early).is_err(), "it has read nothing for three seconds");
    machine.tick(at(early));
    assert!(ask(&mut machine, early).is_err());
    assert!(!is_over(&mut machine, early + 1, id, epoch));
}
