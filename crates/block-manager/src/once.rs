//! Changes of a volume that happen once: a message that comes again, or late, behind a later change,
//! changes nothing. Without that a late deletion would delete a volume that was brought back since, and
//! a late cut would cut off what was written since the volume grew again.
//!
//! The numbers of the latest changes are rows beside the volume, stored with what they changed.

use block_proto::{BlockReply, BlockRequest};
use block_volume::ids::VolumeId;
use runtime::Instant;

use super::error::Refusal;
use super::limits::DONE_MAX;
use super::machine::Machine;
use super::rows::{Key, Row, Value};

impl Machine {
    /// Answers a request, if it happens once under its number `once`; 0: it has none.
    pub fn handle_once(
        &mut self,
        now: Instant,
        once: u64,
        request: BlockRequest,
    ) -> Result<BlockReply, Refusal> {
        match request.happens_once() {
            Some(volume) => self.once(now, (once, volume), |it| it.handle(now, request)),
            None => self.handle(now, request),
        }
    }

    /// Makes a change of a volume, unless that has happened under this number. The answer to a repeat is
    /// the volume as it is.
    pub(super) fn once(
        &mut self,
        now: Instant,
        (once, volume): (u64, VolumeId),
        change: impl FnOnce(&mut Machine) -> Result<BlockReply, Refusal>,
    ) -> Result<BlockReply, Refusal> {
        if once != 0 && self.state.was_done(volume, once) {
            return match self.is_deleted(volume) {
                true => Ok(self.deleted_reply(volume, now)),
                false => self.volume_reply(volume),
            };
        }
        let reply = change(self)?;
        if once != 0 && self.state.volume(volume).is_some() {
            self.note_done(volume, once);
        }
        Ok(reply)
    }

    /// A change of a volume has happened under this number.
    pub(super) fn note_done(&mut self, volume: VolumeId, once: u64) {
        let known = self.state.done(volume);
        let kept = &known[known.len().saturating_sub(DONE_MAX - 1)..];
        let done = [kept, &[once]].concat();
        self.put(Key::Done(volume), Value::Done(done));
    }

    /// A volume takes another's place, with what has happened to that.
    pub(super) fn inherit_done(&mut self, volume: VolumeId, former: VolumeId) {
        let done = self.state.done(former).to_vec();
        if !done.is_empty() {
            self.put(Key::Done(volume), Value::Done(done));
        }
    }

    /// A volume is no more.
    pub(super) fn forget_done(&mut self, volume: VolumeId) {
        if !self.state.done(volume).is_empty() {
            self.change(Row::delete(Key::Done(volume)));
        }
    }
}
