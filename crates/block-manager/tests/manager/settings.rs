//! Changes of some of a volume's settings: those of others last.

use base::GIB;
use block_manager::{Machine, ManagerState, Refusal};
use block_proto::{BlockReply, BlockRequest, Request};
use block_volume::ids::VolumeId;
use block_volume::qos::VolumeLimits;

use super::snapshots::next_leader;
use super::{at, machine, spec, volume};

/// Bits of `named` (`block.proto`).
const IOPS_BASE: u8 = 1;
const IOPS_BURST: u8 = 2;
const BYTES_BURST: u8 = 8;
const SHARED: u8 = 16;

/// Settings as a sender knows or changes them; all below 128, so that each is one byte.
#[derive(Clone, Copy, Default)]
struct Settings {
    iops_base: u8,
    iops_burst: u8,
    bytes_burst: u8,
    shared: bool,
}

/// The bytes of a request under the number `once`, as `block.proto` has them: programs that do not know the
/// field `named` read them too.
fn message(once: u8, volume: VolumeId, settings: Settings, named: u8) -> Vec<u8> {
    let inside = |tag: u8, bytes: Vec<u8>| [vec![tag << 3 | 2, bytes.len() as u8], bytes].concat();
    let Settings { iops_base, iops_burst, bytes_burst, shared } = settings;
    let limits = vec![1 << 3, iops_base, 2 << 3, iops_burst, 4 << 3, bytes_burst];
    let set = [
        vec![1 << 3 | 1],
        volume.get().to_le_bytes().to_vec(),
        inside(2, limits),
        vec![3 << 3, u8::from(shared), 5 << 3, named],
    ];
    // The tag 22 with eight bytes.
    let number = [vec![0xb1, 1], u64::from(once).to_le_bytes().to_vec()].concat();
    inside(6, [inside(4, set.concat()), number].concat())
}

fn send(
    machine: &mut Machine,
    once: u8,
    volume: VolumeId,
    (settings, named): (Settings, u8),
) -> Result<BlockReply, Refusal> {
    match Request::decode(&message(once, volume, settings, named)) {
        Ok(Request::Once(once, request)) => machine.handle_once(at(1), once, request),
        other => panic!("{other:?}"),
    }
}

fn created(machine: &mut Machine) -> VolumeId {
    volume(machine.handle(at(0), BlockRequest::Create { nonce: 1, spec: spec("a", GIB) })).volume
}

#[test]
fn two_changes_of_different_settings_from_one_look_both_last() {
    let mut machine = machine(ManagerState::default(), 1, at(0));
    let id = created(&mut machine);
    let seen = Settings::default();
    let first = (Settings { iops_burst: 90, ..seen }, IOPS_BURST);
    let second = (Settings { bytes_burst: 70, ..seen }, BYTES_BURST);
    let third = (Settings { shared: true, ..seen }, SHARED);
    volume(send(&mut machine, 11, id, first));
    volume(send(&mut machine, 12, id, second));
    let info = volume(send(&mut machine, 13, id, third));
    let limits = VolumeLimits { iops_burst: 90, bytes_burst: 70, ..VolumeLimits::default() };
    assert_eq!((info.spec.limits, info.spec.shared), (limits, true));
    // One that names nothing changes nothing, and one that comes again neither.
    let before = machine.state().rows();
    volume(send(&mut machine, 11, id, first));
    assert_eq!(machine.state().rows(), before);
    let nothing = volume(send(&mut machine, 14, id, (Settings::default(), 0)));
    assert_eq!(nothing.spec, info.spec);
    let machine = next_leader(&machine);
    assert_eq!(machine.state().volume(id).map(|known| known.spec.clone()), Some(info.spec));
}

/// Each of the two is valid with what its sender has seen.
#[test]
fn base_above_a_burst_that_another_has_set_is_refused() {
    let mut machine = machine(ManagerState::default(), 1, at(0));
    let id = created(&mut machine);
    let burst = (Settings { iops_burst: 50, ..Settings::default() }, IOPS_BURST);
    let base = (Settings { iops_base: 60, ..Settings::default() }, IOPS_BASE);
    let after = volume(send(&mut machine, 11, id, burst));
    assert_eq!(send(&mut machine, 12, id, base), Err(Refusal::Limits));
    let found = volume(machine.handle(at(2), BlockRequest::Find { name: "a".to_owned() }));
    assert_eq!(found.spec, after.spec);
    let lower = (Settings { iops_base: 50, ..base.0 }, IOPS_BASE);
    let lower = volume(send(&mut machine, 13, id, lower));
    assert_eq!((lower.spec.limits.iops_base, lower.spec.limits.iops_burst), (50, 50));
}

/// A later program may name settings that this one does not have.
#[test]
fn change_of_a_setting_that_is_not_known_is_refused() {
    let decoded = Request::decode(&message(11, VolumeId::new(1), Settings::default(), 32));
    let error = decoded.expect_err("it is refused").to_string();
    assert!(error.contains("BlockRequest.Set.named"), "{error}");
}
