//! What `craton bench volume` consists of.

use clap::ValueEnum;
use serde::Serialize;

/// A part of `craton bench volume`.
#[derive(ValueEnum, Serialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
pub enum VolumePart {
    /// Reads in order of what the fill wrote, 128 KiB each
    Sequential,
    /// Random reads of 4 KiB at depth 1 and 32
    Reads,
    /// Random writes of 4 KiB at depth 1 and 32
    Writes,
    /// Volumes and clones made a second, and clones opened
    Creates,
    /// What garbage collection copies and costs, at 80 % utilisation: writes 5 GB, takes minutes
    Collection,
    /// Until the next owner of a segment of 32 GiB has recovered it and answers, in this process:
    /// writes --takeover-mib twice, and that for each copy
    Recovery,
    /// The longest wait of clients while a block server of this cluster is killed (-9) and another
    /// takes its segment of 32 GiB over; starts it again. Needs two block servers, and a cluster
    /// without volumes of others
    Takeover,
    /// All of these, as far as the cluster lets them be measured
    All,
}

/// All parts.
const PARTS: [VolumePart; 7] = [
    VolumePart::Sequential,
    VolumePart::Reads,
    VolumePart::Writes,
    VolumePart::Creates,
    VolumePart::Collection,
    VolumePart::Recovery,
    VolumePart::Takeover,
];

/// The parts that are measured.
#[derive(Clone, Debug)]
pub struct Parts {
    chosen: Vec<VolumePart>,
    /// What cannot be measured is left out, and is no error.
    pub(super) lenient: bool,
}

impl Parts {
    /// What the command line names.
    pub fn new(named: &[VolumePart]) -> Parts {
        let lenient = named.contains(&VolumePart::All);
        let is_named = |part: &VolumePart| lenient || named.contains(part);
        Parts { chosen: PARTS.into_iter().filter(is_named).collect(), lenient }
    }

    /// True when `part` is measured.
    pub(super) fn has(&self, part: VolumePart) -> bool {
        self.chosen.contains(&part)
    }

    /// True when it has one of these.
    pub(super) fn has_any(&self, parts: &[VolumePart]) -> bool {
        parts.iter().any(|part| self.has(*part))
    }

    /// Those that were not asked for.
    pub(super) fn left_out(&self) -> Vec<LeftOut> {
        let others = PARTS.into_iter().filter(|part| !self.has(*part));
        others.map(|part| LeftOut { part, why: None }).collect()
    }
}

/// A part that was not measured.
#[derive(Serialize, Clone, Debug)]
pub struct LeftOut {
    /// Which.
    pub part: VolumePart,
    /// Why it could not be; none when it was not asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

impl LeftOut {
    /// Its name on the command line.
    pub fn name(&self) -> String {
        self.part.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_is_every_part_there_is() {
        let all = Parts::new(&[VolumePart::All]);
        let is_part = |part: &&VolumePart| **part != VolumePart::All;
        assert!(VolumePart::value_variants().iter().filter(is_part).all(|part| all.has(*part)));
        assert!(all.lenient && all.left_out().is_empty());
        let some = Parts::new(&[VolumePart::Reads]);
        assert!(some.has(VolumePart::Reads) && !some.has(VolumePart::Takeover) && !some.lenient);
        let names: Vec<String> = some.left_out().iter().map(LeftOut::name).collect();
        let want = ["sequential", "writes", "creates", "collection", "recovery", "takeover"];
        assert_eq!(names, want);
    }
}
