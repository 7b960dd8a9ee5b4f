//! Masters whose clocks on the wall are hours apart.

use std::time::Duration;

use base::Kind;
use runtime::Class;
use runtime::sim::{CrashMode, Sim};
use sim::cluster::{Cluster, Shape};
use sim::tuning::Tuning;
use wire::control::{Group, Policy};

const SECOND: Duration = Duration::from_secs(1);
const HOUR_MS: i64 = 3_600_000;
const FILES: usize = 8;

/// A grant of a master that has died is judged by another one: it has run out by that one's clock, or is
/// of the future, and the namespace is asked whether the file is there.
#[test]
fn grant_of_a_master_with_another_time_opens_a_file_that_is_there() {
    for hours in [-5, 5] {
        let sim = Sim::new(113);
        let run = async {
            let cluster = Cluster::start(&sim, Shape::default(), Tuning::default());
            cluster.settle(30 * SECOND).await.expect("no fault");
            let leads = |index: usize| {
                cluster.leads(index).iter().any(|group| matches!(group, Group::Namespace(_)))
            };
            let leader = (0..3).find(|index| leads(*index)).expect("one leads");
            sim.set_wall_skew(cluster.masters()[leader], hours * HOUR_MS);
            let (_, client) = cluster.client(None).await.expect("a master answers");
            let (env, creating) = (client.env().clone(), client.clone());
            let created = env.spawn(Class::Foreground, "create", async move {
                let mut files = Vec::new();
                for number in 0..FILES {
                    let path = format!("/f{number}");
                    let created = creating.create(&path, Policy::plain(3, 2), 0o644, false).await;
                    files.push(created.expect("masters live"));
                }
                creating.unlink("/f0").await.expect("it is there");
                files
            });
            let files = created.await.expect("it runs");
            cluster.crash_master(leader, CrashMode::Process);
            sim.sleep(3 * SECOND).await;
            let opened = env.spawn(Class::Foreground, "open", async move {
                let gone = files[0].append_handle().await.map(drop);
                assert_eq!(gone.expect_err("it was removed").kind(), Kind::NotFound);
                for file in &files[1..] {
                    let appender = file.append_handle().await.expect("it is there");
                    appender.append(b"bytes").await.expect("chunkservers live");
                    appender.close().await.expect("masters live");
                }
            });
            opened.await.expect("it runs");
            let marks = sim.marks();
            assert!(marks.contains_key("master: a grant is not of this time"), "{marks:?}");
        };
        sim.run(run).expect("a task is always due");
        sim.close();
    }
}
