//! Sizes of simulated clusters.

use base::MIB;
use chunkstore::flash::SyncMode;
use runtime::sim::Sim;

/// Size of a cluster.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Masters: 1, 3 or 5.
    pub masters: usize,
    /// Hosts on which masters can be added.
    pub spare_masters: usize,
    /// Chunkservers.
    pub servers: usize,
    /// Disks of each chunkserver.
    pub disks: usize,
    /// Bytes of each disk.
    pub disk_bytes: u64,
    /// Way in which writes of chunkservers' stores become durable.
    pub sync: SyncMode,
    /// Masters sign rights, and chunkservers verify them.
    pub key: bool,
    /// Namespace partitions.
    pub namespace_partitions: u16,
    /// Stream partitions.
    pub stream_partitions: u16,
}

impl Default for Shape {
    fn default() -> Shape {
        Shape {
            masters: 3,
            spare_masters: 0,
            servers: 5,
            disks: 1,
            disk_bytes: 256 * MIB,
            sync: SyncMode::PerWrite,
            key: true,
            namespace_partitions: 1,
            stream_partitions: 1,
        }
    }
}

impl Shape {
    /// One seed in two: with three partitions of each kind, so that the names of a volume's
    /// files, and their links from snapshots, are of several.
    pub(crate) fn partitioned(self, sim: &Sim) -> Shape {
        if !sim.with_rng(|rng| rng.one_in(2)) {
            return self;
        }
        sim.mark("cluster: several partitions");
        Shape { namespace_partitions: 3, stream_partitions: 3, ..self }
    }
}
