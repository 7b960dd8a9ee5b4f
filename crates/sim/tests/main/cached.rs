//! What readers know of chunks that are no more.

use std::time::Duration;

use runtime::Class;
use runtime::sim::{CrashMode, Sim};
use sim::cluster::{Cluster, Shape};
use sim::tuning::Tuning;
use wire::control::{Policy, ReplicaPlace};

const SECOND: Duration = Duration::from_secs(1);
const LEN: usize = 30_000;
const CHUNKS: usize = 8;

/// A writer dies with bytes in a coded chunk that were not acknowledged; the next one begins another
/// chunk at the same offset. A reader that knows the former chunk as open, and the present length,
/// must not take what the former's replicas hold for the file's.
#[test]
fn reader_with_the_place_of_a_dropped_chunk_reads_what_came_instead() {
    let sim = Sim::new(7);
    let run = async {
        let shape = Shape { servers: 6, ..Shape::default() };
        let cluster = Cluster::start(&sim, shape, Tuning::default());
        cluster.settle(30 * SECOND).await.unwrap();
        let (lost, first) = cluster.client(None).await.unwrap();
        let (_, reading) = cluster.client(None).await.unwrap();
        let (_, second) = cluster.client(None).await.unwrap();

        let opening = {
            let first = first.clone();
            async move {
                let file = first.create("/f", Policy::ec_strict(4, 2), 0o644, true).await.unwrap();
                let appender = file.append_handle().await.unwrap();
                (appender, file.chunks().await.unwrap().chunks.remove(0))
            }
        };
        let opened = first.env().spawn(Class::Foreground, "open", opening).await.unwrap();
        let (appender, chunk) = opened;
        // One fragment, which has none of the first bytes, gets nothing: nothing is acknowledged.
        let host_of =
            |addr| *cluster.servers().iter().find(|host| sim.addr(**host, 7101) == addr).unwrap();
        let (without, with): (Vec<ReplicaPlace>, Vec<ReplicaPlace>) =
            chunk.replicas.iter().copied().partition(|replica| replica.fragment == 1);
        sim.set_blocked(lost, host_of(without[0].addr), true);
        first.env().spawn(Class::Foreground, "write", async move {
            let append = appender.submit(&[b'a'; LEN]).await.unwrap();
            let _ = append.await; // Never acknowledged.
        });
        // Before the writer goes on in another chunk.
        sim.sleep(SECOND / 20).await;
        sim.crash(lost, CrashMode::Power);

        let reader = {
            let reading = reading.clone();
            async move { reading.open("/f").await.unwrap().reader() }
        };
        let reader = reading.env().spawn(Class::Foreground, "open", reader).await.unwrap();
        let reader = std::rc::Rc::new(reader);
        let early = {
            let reader = reader.clone();
            async move { reader.read_at(0, LEN).await }
        };
        let early = reading.env().spawn(Class::Foreground, "read", early).await.unwrap();
        // No byte, or that the end is not known.
        assert!(early.is_err() || early.is_ok_and(|bytes| bytes.is_empty()));

        // Its vote is among the first, which suffice: recovery drops what the others have.
        with[..2].iter().for_each(|replica| sim.pause(host_of(replica.addr), SECOND / 2));
        let writing = async move {
            let file = second.open("/f").await.unwrap();
            // Each opening ends the chunk before: what is located at the end does not name the first.
            for part in 0..CHUNKS {
                let appender = file.append_handle().await.unwrap();
                let found = appender.acked_len() as usize;
                assert_eq!(found, part * LEN, "nothing was acknowledged to the former writer");
                appender.append(&[b'b'; LEN]).await.unwrap();
                appender.close().await.unwrap();
            }
        };
        let env = reading.env().clone();
        env.spawn(Class::Foreground, "write", writing).await.unwrap();
        let late = async move {
            let len = reader.refresh_len().await.unwrap();
            (len, reader.read_at(0, CHUNKS * LEN).await.unwrap())
        };
        let (len, bytes) = env.spawn(Class::Foreground, "read", late).await.unwrap();
        assert_eq!(len, (CHUNKS * LEN) as u64);
        assert!(
            bytes == [b'b'; CHUNKS * LEN],
            "the bytes are {:?}...",
            &bytes[..4.min(bytes.len())]
        );
    };
    sim.run(run).expect("no deadlock");
    sim.close();
}
