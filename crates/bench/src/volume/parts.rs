//! Parts of the measurements of volumes.

use serde::Serialize;

/// A part of the measurements of volumes, beside the fill.
#[derive(Serialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
pub enum VolumePart {
    /// Reads in order of what the fill wrote, 128 KiB each.
    Sequential,
    /// Random reads of 4 KiB at depth 1 and 32.
    Reads,
    /// Random writes of 4 KiB at depth 1 and 32.
    Writes,
    /// Volumes and clones made a second, and clones opened.
    Creates,
    /// Copies and cost of garbage collection, at 80 % utilisation: writes 5 GB, takes minutes.
    Collection,
    /// Time until the next owner of a segment of 32 GiB has recovered it and answers, in this process.
    Recovery,
    /// The longest wait of clients while a block server is killed and another takes its segment of
    /// 32 GiB over. The cluster must have two block servers in processes of their own, and no volumes
    /// but those of measurements.
    Takeover,
}

impl VolumePart {
    /// Every part, in the order of reports.
    pub const ALL: [VolumePart; 7] = [
        VolumePart::Sequential,
        VolumePart::Reads,
        VolumePart::Writes,
        VolumePart::Creates,
        VolumePart::Collection,
        VolumePart::Recovery,
        VolumePart::Takeover,
    ];

    /// Its name, as in a report.
    pub fn name(self) -> &'static str {
        match self {
            VolumePart::Sequential => "sequential",
            VolumePart::Reads => "reads",
            VolumePart::Writes => "writes",
            VolumePart::Creates => "creates",
            VolumePart::Collection => "collection",
            VolumePart::Recovery => "recovery",
            VolumePart::Takeover => "takeover",
        }
    }
}

/// The parts that are measured.
#[derive(Clone, Debug)]
pub struct Parts {
    chosen: Vec<VolumePart>,
    /// A part that cannot be measured is left out, and is no error.
    pub(super) lenient: bool,
}

impl Parts {
    /// Every part. One that cannot be measured on this cluster is left out.
    pub fn all() -> Parts {
        Parts { chosen: VolumePart::ALL.to_vec(), lenient: true }
    }

    /// These parts. It is an error when one cannot be measured on this cluster.
    pub fn only(parts: &[VolumePart]) -> Parts {
        let is_one = |part: &VolumePart| parts.contains(part);
        Parts { chosen: VolumePart::ALL.into_iter().filter(is_one).collect(), lenient: false }
    }

    /// True when `part` is measured.
    pub(super) fn has(&self, part: VolumePart) -> bool {
        self.chosen.contains(&part)
    }

    /// True when it has one of these.
    pub(super) fn has_any(&self, parts: &[VolumePart]) -> bool {
        parts.iter().any(|part| self.has(*part))
    }

    /// Parts that were not asked for.
    pub(super) fn left_out(&self) -> Vec<LeftOut> {
        let others = VolumePart::ALL.into_iter().filter(|part| !self.has(*part));
        others.map(|part| LeftOut { part, why: None }).collect()
    }
}

/// A part that was not measured.
#[derive(Serialize, Clone, Debug)]
pub struct LeftOut {
    /// The part.
    pub part: VolumePart,
    /// The reason why it could not be measured; none when it was not asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unrequested_parts_are_left_out() {
        let all = Parts::all();
        assert!(VolumePart::ALL.into_iter().all(|part| all.has(part)));
        assert!(all.lenient && all.left_out().is_empty());
        let some = Parts::only(&[VolumePart::Reads]);
        assert!(some.has(VolumePart::Reads) && !some.has(VolumePart::Takeover) && !some.lenient);
        let names: Vec<&str> = some.left_out().iter().map(|one| one.part.name()).collect();
        let want = ["sequential", "writes", "creates", "collection", "recovery", "takeover"];
        assert_eq!(names, want);
    }
}
