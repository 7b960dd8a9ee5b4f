//! Writers that open files and append nothing to them, or once, for the whole of a run. Some are gone
//! soon; no one opens their files again, and the cluster becomes whole without that. The others live on
//! their hosts, which nothing harms, and append at the end.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use client::{Appender, Client};
use runtime::sim::{CrashMode, HostId};

use crate::cluster::Cluster;
use crate::oracle::Oracle;
use wire::control::Policy;

/// Files of a run.
const FILES: usize = 6;
/// Longest pause between two of them, milliseconds.
const PAUSE_MS_MAX: u64 = 5_000;
/// Longest life of a writer that goes, milliseconds.
const LIFE_MS_MAX: u64 = 3_000;
/// An append of a writer that nothing has harmed ends within this time.
const APPENDED: Duration = Duration::from_secs(20);

/// Begin of the names of their files.
const PREFIX: &str = "/idle-";

/// Whether a file is one of an idle writer.
pub(super) fn is_theirs(path: &str) -> bool {
    path.starts_with(PREFIX)
}

/// A writer that lives, with the bytes that it has appended.
struct Idler {
    path: String,
    appender: Appender,
    host: HostId,
}

/// The idle writers of a run. Clones share them.
#[derive(Clone)]
pub(super) struct Idlers(Rc<State>);

struct State {
    cluster: Cluster,
    oracle: Oracle,
    living: RefCell<Vec<Idler>>,
}

impl Idlers {
    pub(super) fn start(cluster: &Cluster, oracle: &Oracle) -> Idlers {
        let (cluster, oracle) = (cluster.clone(), oracle.clone());
        let idlers = Idlers(Rc::new(State { cluster, oracle, living: RefCell::default() }));
        let begun = idlers.clone();
        idlers.0.cluster.sim().spawn("idle writers", async move { begun.begin().await });
        idlers
    }

    fn draw(&self, bound: u64) -> u64 {
        self.0.cluster.sim().with_rng(|rng| rng.below(bound))
    }

    async fn begin(self) {
        let sim = self.0.cluster.sim().clone();
        for number in 0..FILES {
            sim.sleep(Duration::from_millis(self.draw(PAUSE_MS_MAX))).await;
            let Ok((host, client)) = self.0.cluster.client(None).await else { continue };
            let path = format!("{PREFIX}{number}");
            let Some(appender) = self.open(&client, &path).await else {
                sim.crash(host, CrashMode::Power);
                continue;
            };
            if self.draw(2) == 0 {
                sim.mark("idlers: a writer lives");
                self.0.living.borrow_mut().push(Idler { path, appender, host });
                continue;
            }
            let life = Duration::from_millis(self.draw(LIFE_MS_MAX));
            let gone = sim.clone();
            sim.spawn("end of an idle writer", async move {
                gone.sleep(life).await;
                gone.crash(host, CrashMode::Power);
                drop(appender);
                gone.mark("idlers: a writer is gone");
            });
        }
    }

    /// A file that is opened for append, and written to or not; none when a fault was in the way.
    async fn open(&self, client: &Client, path: &str) -> Option<Appender> {
        let file = client.create(path, Policy::strict(3), 0o644, false).await.ok()?;
        let appender = file.append_handle().await.ok()?;
        let (oracle, epoch) = (&self.0.oracle, appender.epoch());
        let seed = self.0.cluster.sim().with_rng(|rng| rng.next_u64());
        oracle.opened(path, epoch, appender.acked_len(), seed).ok()?;
        if self.draw(3) == 0 {
            let data = oracle.next(path, epoch, 100);
            let offset = appender.append(&data).await.ok()?;
            oracle.acked(path, epoch, offset + 100).ok()?;
        }
        Some(appender)
    }

    /// The load has ended, and all is whole: those that live append, and close their files.
    pub(super) async fn finish(&self) -> Result<(), String> {
        let sim = self.0.cluster.sim();
        for Idler { path, appender, host } in self.0.living.take() {
            let env = sim.env(host).expect("nothing harms it");
            let epoch = appender.epoch();
            let data = self.0.oracle.next(&path, epoch, 100);
            let appended = env.timeout(APPENDED, appender.append(&data)).await;
            let appended = appended.map_err(|_| format!("no append in {APPENDED:?}"));
            let appended = appended.and_then(|done| done.map_err(|error| error.to_string()));
            let offset = appended.map_err(|why| {
                format!("{path}: its writer lives, and was idle; its append fails: {why}")
            })?;
            self.0.oracle.acked(&path, epoch, offset + 100)?;
            appender.close().await.map_err(|error| format!("{path}: {error}"))?;
        }
        Ok(())
    }
}
