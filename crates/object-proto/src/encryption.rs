//! Lengths of encrypted bodies, and of their contents (`object-protocols.md` 11.4).

use crate::object::{NewObject, ObjectData, ObjectInfo};
use crate::parts::{PartMap, PartRun};

/// Bytes of content in a frame, but for the last one.
pub const FRAME_BYTES: usize = 64 << 10;
/// Bytes that authenticate a frame, behind it.
pub const TAG_BYTES: usize = 16;
/// Bytes before the frames of a body: its identity.
pub const BODY_HEAD: usize = 32;
/// A whole frame with its tag.
pub const SEALED_FRAME: usize = FRAME_BYTES + TAG_BYTES;

/// Bytes of an encrypted body of that content: a head, and frames, of which there is one at least.
pub const fn sealed_len(len: u64) -> u64 {
    let frames = len.div_ceil(FRAME_BYTES as u64);
    let frames = if frames == 0 { 1 } else { frames };
    BODY_HEAD as u64 + len + frames * TAG_BYTES as u64
}

/// Bytes of the content of an encrypted body; `None` when none has so many.
pub const fn content_len(sealed: u64) -> Option<u64> {
    let Some(frames_len) = sealed.checked_sub(BODY_HEAD as u64) else { return None };
    let frames = frames_len.div_ceil(SEALED_FRAME as u64);
    let Some(len) = frames_len.checked_sub(frames * TAG_BYTES as u64) else { return None };
    if frames > 0 && sealed_len(len) == sealed { Some(len) } else { None }
}

/// A map of encrypted parts with the lengths of their contents; `None` when a part is none.
pub fn content_map(map: &PartMap) -> Option<PartMap> {
    let run = |run: &PartRun| Some(PartRun { size: content_len(run.size)?, ..*run });
    let runs: Option<Vec<PartRun>> = map.runs().iter().map(run).collect();
    PartMap::from_runs(map.upload, runs?)
}

impl NewObject {
    /// Bytes of the content as clients see it: [`NewObject::size`] is that of what is stored. `None` when
    /// the row of an encrypted object is not one.
    pub fn content_size(&self) -> Option<u64> {
        match (&self.facts.encryption, &self.data) {
            (None, _) => Some(self.size),
            (Some(_), ObjectData::Parts(map)) if map.count() > 0 => {
                content_map(map).map(|map| map.size())
            }
            (Some(_), ObjectData::Parts(_)) => None,
            (Some(_), _) => content_len(self.size),
        }
    }
}

impl ObjectInfo {
    /// The same with sizes of the content, as clients see them; `None` as for
    /// [`NewObject::content_size`].
    pub fn of_content(mut self) -> Option<ObjectInfo> {
        if self.object.facts.encryption.is_some() {
            self.object.size = self.object.content_size()?;
            if let ObjectData::Parts(map) = &self.object.data {
                self.object.data = ObjectData::Parts(content_map(map)?);
            }
        }
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ids::Stamp;
    use crate::parts::{PartNumber, UploadId};

    #[test]
    fn lengths_at_the_edges_of_frames_are_known() {
        let frame = FRAME_BYTES as u64;
        for (len, sealed) in [
            (0, 48),
            (1, 49),
            (frame - 1, frame + 47),
            (frame, frame + 48),
            (frame + 1, frame + 65),
            (2 * frame, 2 * frame + 64),
        ] {
            assert_eq!(sealed_len(len), sealed, "{len}");
            assert_eq!(content_len(sealed), Some(len), "{len}");
        }
        // Less than a frame, and a second frame that is empty.
        for sealed in [0, 1, 31, 32, 47, frame + 49, frame + 64] {
            assert_eq!(content_len(sealed), None, "{sealed}");
        }
    }

    proptest! {
        #[test]
        fn lengths_of_contents_and_bodies_go_together(len in 0u64..(1 << 45), sealed in any::<u64>()) {
            prop_assert_eq!(content_len(sealed_len(len)), Some(len));
            if let Some(len) = content_len(sealed) {
                prop_assert_eq!(sealed_len(len), sealed);
            }
        }

        #[test]
        fn a_map_of_contents_has_the_parts_of_the_bodies(sizes in prop::collection::vec(0u64..1 << 20, 1..20)) {
            let upload = UploadId { stamp: Stamp::new(1), nonce: 2 };
            let number = |at: usize| PartNumber::new(at as u64 + 1).expect("a number");
            let of = |len: fn(u64) -> u64| {
                PartMap::of(upload, sizes.iter().enumerate().map(|(at, &size)| (number(at), len(size))))
            };
            let contents = of(|size| size);
            let found = content_map(&of(sealed_len)).expect("a map");
            prop_assert_eq!(found.size(), contents.size());
            for at in 0..sizes.len() {
                prop_assert_eq!(found.range(number(at)), contents.range(number(at)));
            }
        }
    }
}
