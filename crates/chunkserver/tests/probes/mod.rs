//! Probes of disks (`protocols-tail.md` 10.5).

use std::time::Duration;

use base::Kind;
use wire::control::{ChunkserverReply, ChunkserverRequest};

use super::check;

#[test]
fn probes_of_a_disk_that_come_together_are_one() {
    check(1, async |bed| {
        let probe = ChunkserverRequest::Probe { disk: bed.servers[0].1 };
        for round in 1..4 {
            let calls: Vec<_> = (0..20).map(|_| bed.send_control(0, probe.clone())).collect();
            for call in calls {
                let answer = call.await.unwrap();
                assert!(matches!(answer, Ok(ChunkserverReply::Probed { .. })), "{answer:?}");
            }
            let late = bed.control(0, probe.clone()).await;
            assert!(matches!(late, Ok(ChunkserverReply::Probed { .. })), "{late:?}");
            assert_eq!(bed.stores[0].probes(), round);
            bed.env.sleep(Duration::from_millis(300)).await;
        }
    });
}

#[test]
fn a_disk_that_does_not_end_a_probe_gets_no_other() {
    check(1, async |bed| {
        let probe = ChunkserverRequest::Probe { disk: bed.servers[0].1 };
        bed.stores[0].hang();
        for _ in 0..5 {
            let error = bed.control(0, probe.clone()).await.unwrap_err();
            assert_eq!(error.kind, Kind::Retry, "{error}");
        }
        assert_eq!(bed.stores[0].probes(), 1);
    });
}

#[test]
fn a_disk_that_failed_or_is_not_here_is_not_probed() {
    check(1, async |bed| {
        let disk = bed.servers[0].1;
        bed.control(0, ChunkserverRequest::FailDisk { disk, failed: true }).await.unwrap();
        for disk in [disk, base::DiskId::new(999)] {
            let error = bed.control(0, ChunkserverRequest::Probe { disk }).await.unwrap_err();
            assert_ne!(error.kind, Kind::Retry, "{error}");
        }
        assert_eq!(bed.stores[0].probes(), 0);
    });
}

/// Operators see how far scrub is, and begin it.
#[test]
fn scrub_says_how_far_it_is_and_begins_on_demand() {
    check(1, async |bed| {
        let ask = async |start| match bed.control(0, ChunkserverRequest::Scrub { start }).await {
            Ok(ChunkserverReply::Scrubs { disks, off: false }) => disks[0],
            other => panic!("{other:?}"),
        };
        assert_eq!(ask(false).await.ended_ms, None);
        bed.append(0, 0, &[1; 10_000], 0).await.unwrap();
        bed.seal(0, 10_000).await;
        bed.env.sleep(Duration::from_secs(3)).await;
        let before = ask(false).await;
        assert_eq!((before.disk, before.replicas), (bed.servers[0].1, 1));
        assert_eq!((before.running, before.done, before.damaged), (false, 1, 0), "{before:?}");
        assert!(before.passes > 0 && before.ended_ms.is_some());
        bed.stores[0].spoil(5_000);
        // Passes come once a second by themselves.
        for _ in 0..5 {
            ask(true).await;
            bed.env.sleep(Duration::from_millis(50)).await;
        }
        let after = ask(false).await;
        assert!(after.passes >= before.passes + 5, "{before:?} {after:?}");
        assert_eq!((after.done, after.damaged), (1, 1), "{after:?}");
    });
}
