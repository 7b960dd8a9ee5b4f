//! Parts of `craton bench volume`, as the command line names them.

use bench::{Parts, VolumePart};
use clap::ValueEnum;

/// A part of `craton bench volume`.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
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

impl Part {
    /// The part that is measured; none for all of them.
    fn measured(self) -> Option<VolumePart> {
        match self {
            Part::Sequential => Some(VolumePart::Sequential),
            Part::Reads => Some(VolumePart::Reads),
            Part::Writes => Some(VolumePart::Writes),
            Part::Creates => Some(VolumePart::Creates),
            Part::Collection => Some(VolumePart::Collection),
            Part::Recovery => Some(VolumePart::Recovery),
            Part::Takeover => Some(VolumePart::Takeover),
            Part::All => None,
        }
    }
}

/// The parts that the command line names.
pub fn parts(named: &[Part]) -> Parts {
    let measured: Option<Vec<VolumePart>> = named.iter().map(|part| part.measured()).collect();
    measured.map_or_else(Parts::all, |measured| Parts::only(&measured))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_of_a_measurement_has_one_name() {
        let names = |part: &Part| part.to_possible_value().expect("a name").get_name().to_owned();
        let (parts, all) = Part::value_variants().split_at(VolumePart::ALL.len());
        let of_measurements = VolumePart::ALL.map(|part| part.name().to_owned());
        assert_eq!(parts.iter().map(names).collect::<Vec<_>>(), of_measurements);
        let measured = parts.iter().map(|part| part.measured()).collect::<Option<Vec<_>>>();
        assert_eq!(measured, Some(VolumePart::ALL.to_vec()));
        assert_eq!(all, [Part::All]);
    }
}
