//! Changes of a volume that happen once: a message that comes again, or late, behind a later change,
//! changes nothing. Without that a late deletion would delete a volume that was brought back since, and
//! a late cut would cut off what was written since the volume grew again.
//!
//! The numbers of the latest changes are rows beside the volume, stored with what they changed. A change that
//! was refused is remembered too: its caller has had the answer, and a copy that comes when the cause is gone
//! changes nothing. The list of a row begins with the refused ones and a zero, when there are any: each of
//! these is stored with all bits inverted. Managers of older versions read them as numbers that no request has.
//!
//! The leader that refused has the answer, too, and those of more changes than a row has room for.

use std::fmt;

use base::Kind;
use block_proto::{BlockReply, BlockRequest};
use block_volume::ids::VolumeId;
use runtime::Instant;

use super::error::Refusal;
use super::limits::{DONE_MAX, GONE_MAX, REFUSED_MAX};
use super::machine::Machine;
use super::refusals::{Once, parts};
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
    /// the volume as it is, and a refusal when the change was refused.
    pub(super) fn once(
        &mut self,
        now: Instant,
        (once, volume): Once,
        change: impl FnOnce(&mut Machine) -> Result<BlockReply, Refusal>,
    ) -> Result<BlockReply, Refusal> {
        if once != 0 && self.state.was_done(volume, once) {
            return match self.is_deleted(volume) {
                true => Ok(self.deleted_reply(volume, now)),
                false => self.volume_reply(volume),
            };
        }
        self.refuse_refused((once, volume))?;
        let reply = change(self);
        match &reply {
            Ok(_) if self.state.volume(volume).is_some() => self.note_done(volume, once),
            Ok(_) => {}
            Err(refusal) => self.note_refused((once, volume), refusal.kind(), refusal),
        }
        reply
    }

    /// Refuses a change of a volume that was refused under this number.
    pub(super) fn refuse_refused(&self, (once, volume): Once) -> Result<(), Refusal> {
        if let Some((kind, text)) = self.refusals.get((once, volume)) {
            return Err(Refusal::RefusedBefore { kind, text: text.to_owned() });
        }
        match self.state.volume(volume) {
            Some(known) if self.state.was_refused(volume, once) => {
                let name = &known.spec.name;
                let text = format!(
                    "{name}: this request was refused before, and changes nothing; ask again"
                );
                Err(Refusal::RefusedBefore { kind: Kind::Invalid, text })
            }
            _ => Ok(()),
        }
    }

    /// A change of a volume has happened under this number.
    pub(super) fn note_done(&mut self, volume: VolumeId, once: u64) {
        if once != 0 {
            self.note(volume, None, Some(once));
        }
    }

    /// A change of a volume was refused under this number with an error of this kind, and the caller gets the
    /// answer. Of some kinds its client asks again under the same number (`client::leader`): these are not noted.
    pub(super) fn note_refused(
        &mut self,
        (once, volume): Once,
        kind: Kind,
        text: &dyn fmt::Display,
    ) {
        let is_asked_again =
            matches!(kind, Kind::Retry | Kind::Refresh | Kind::Reroute | Kind::Unknown);
        let is_known =
            self.state.was_done(volume, once) || self.refuse_refused((once, volume)).is_err();
        if once == 0 || is_asked_again || is_known || self.state.volume(volume).is_none() {
            return;
        }
        self.refusals.note((once, volume), kind, text.to_string());
        // The last number of all would be a zero, inverted.
        if once != u64::MAX {
            self.note(volume, Some(!once), None);
        }
    }

    /// Adds to the numbers of a volume. Refusals, which a caller may get in a loop, push out no changes
    /// that have happened but the oldest of them.
    fn note(&mut self, volume: VolumeId, refused: Option<u64>, done: Option<u64>) {
        let (mut numbers, happened) = {
            let (refused, happened) = parts(self.state.done(volume));
            (refused.to_vec(), happened.to_vec())
        };
        numbers.extend(refused);
        numbers.drain(..numbers.len().saturating_sub(REFUSED_MAX));
        if !numbers.is_empty() {
            numbers.push(0);
        }
        let happened: Vec<u64> = happened.into_iter().chain(done).collect();
        let first = happened.len().saturating_sub(DONE_MAX - numbers.len());
        numbers.extend_from_slice(&happened[first..]);
        self.put(Key::Done(volume), Value::Done(numbers));
    }

    /// A volume takes another's place, with what has happened to that.
    pub(super) fn inherit_done(&mut self, volume: VolumeId, former: VolumeId) {
        let done = self.state.done(former).to_vec();
        if !done.is_empty() {
            self.put(Key::Done(volume), Value::Done(done));
        }
    }

    /// A volume that was made under the number `nonce` is no more. That number stays, so that a late copy of its
    /// creation makes no other one; so do those of the volumes that were made last.
    pub(super) fn note_gone(&mut self, volume: VolumeId, nonce: u64) {
        if nonce == 0 {
            return self.forget_done(volume);
        }
        self.put(Key::Done(volume), Value::Done(vec![nonce]));
        while self.state.gone().len() > GONE_MAX
            && let Some(&oldest) = self.state.gone().first()
        {
            self.change(Row::delete(Key::Done(oldest)));
        }
    }

    /// A volume is no more.
    pub(super) fn forget_done(&mut self, volume: VolumeId) {
        if !self.state.done(volume).is_empty() {
            self.change(Row::delete(Key::Done(volume)));
        }
    }
}
