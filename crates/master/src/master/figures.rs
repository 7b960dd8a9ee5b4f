//! Figures of a master for status and metrics.

use master_stream::StreamMachine;
use wire::control::limits::{DRAINING_MAX, STOPPED_MAX};

use super::{LedFigures, Master};

impl Master {
    /// Figures of the partitions that this master leads.
    pub fn figures(&self) -> LedFigures {
        let mut led = LedFigures::default();
        for namespace in self.0.namespaces.iter().filter(|it| it.host().leads()) {
            let (files, dirs) = namespace.host().read(|state| (state.files(), state.dirs()));
            led.files += files;
            led.dirs += dirs;
        }
        for partition in self.0.streams.partitions.iter().filter(|it| it.host.leads()) {
            let (sum, one) = (&mut led.streams, partition.service.status());
            sum.chunks += one.chunks;
            sum.under_replicated += one.under_replicated;
            sum.moved += one.moved;
            sum.converting += one.converting;
            sum.converted += one.converted;
            sum.lost += one.lost;
            sum.survive.iter_mut().zip(one.survive).for_each(|(sum, one)| *sum += one);
            sum.logical_bytes += one.logical_bytes;
            sum.unreferenced_bytes += one.unreferenced_bytes;
            sum.repair.pending += one.repair.pending;
            sum.repair.done += one.repair.done;
            sum.repair.bytes += one.repair.bytes;
            led.sessions += partition.host.read(StreamMachine::sessions) as u64;
            led.stopped.extend(partition.service.stopped());
            for held in partition.service.draining() {
                match led.draining.iter_mut().find(|it| it.server == held.server) {
                    Some(known) => known.add(&held),
                    None => led.draining.push(held),
                }
            }
        }
        led.stopped.truncate(STOPPED_MAX);
        led.draining.truncate(DRAINING_MAX);
        led
    }

    /// Bytes of chunks that writers have ended, by stream partition, led here or not: in commands that
    /// this master has applied since its start (C29).
    pub fn ended_bytes(&self) -> Vec<(u16, u64)> {
        let partitions = self.0.streams.partitions.iter();
        let one = |state: &StreamMachine| (state.partition(), state.ended_bytes());
        partitions.map(|partition| partition.host.read(one)).collect()
    }
}
