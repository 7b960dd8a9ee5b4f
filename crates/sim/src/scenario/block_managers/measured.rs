//! What a user waits for at most when, without other faults, a server dies, or the managers do, or what they
//! say is lost.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use block_proto::Managers;
use block_volume::ids::SegmentId;
use futures_util::future::join;
use master::limits::LOCK_DOUBTED_PAUSE;
use roles::block::ManagerRole;
use runtime::Class;
use runtime::sim::{CrashMode, HostId};

use super::{MANAGERS, SERVERS, World, volumes};

/// Without managers, reads and writes go on at least this often.
const STILL_MAX: Duration = Duration::from_millis(200);
/// A takeover takes no longer, without other faults.
const TAKEOVER_MAX: Duration = Duration::from_millis(1000);
/// A manager answers again in this time after the one that leads has died, or has been cut off.
const ANSWER_MAX: Duration = Duration::from_millis(1800);
/// For so long a single user is cut off from the manager that leads.
const ALONE: Duration = Duration::from_secs(2);

impl World {
    /// All managers die. Leases run out, and requests go on: at no time does the load stand still
    /// for long.
    pub(super) async fn go_on_without_managers(&self) -> Result<(), String> {
        let sim = self.cluster.sim();
        for index in 0..MANAGERS {
            self.leading.borrow_mut()[index] = None;
            if sim.env(self.managers[index]).is_some() {
                sim.crash(self.managers[index], CrashMode::Power);
            }
        }
        for _ in 0..20 {
            let before = (self.acked.get(), self.reads.get());
            sim.sleep(STILL_MAX).await;
            let (acked, reads) = (self.acked.get() - before.0, self.reads.get() - before.1);
            if acked == 0 || reads == 0 {
                return Err(format!(
                    "without managers {acked} writes and {reads} reads in {STILL_MAX:?}"
                ));
            }
        }
        Ok(())
    }

    /// Leaves the links of all block servers to a manager dead, without their notice: they have
    /// asked it, were cut off from it, and it began to run again.
    async fn links_die(self: &Rc<Self>, manager: usize) {
        let (sim, host) = (self.cluster.sim(), self.managers[manager]);
        for &server in &self.servers {
            sim.set_blocked(server, host, true);
            sim.set_blocked(host, server, true);
        }
        self.leading.borrow_mut()[manager] = None;
        sim.crash(host, CrashMode::Power);
        self.boot_manager(manager);
        sim.sleep(Duration::from_millis(500)).await;
        for &server in &self.servers {
            sim.set_blocked(server, host, false);
            sim.set_blocked(host, server, false);
        }
        sim.mark("block-managers: links to the next leader are dead");
    }

    /// Without other faults: a server that dies, and a manager that dies, that nothing reaches or that
    /// users do not reach, are replaced in less than a second, and managers answer.
    pub(super) async fn kill_and_measure(
        self: &Rc<Self>,
        (user_host, users): (HostId, &Managers),
        segments: &BTreeSet<SegmentId>,
    ) -> Result<(), String> {
        let sim = self.cluster.sim();
        sim.sleep(Duration::from_secs(2)).await;
        self.until_served(segments, Duration::from_secs(10)).await?;
        let victim = sim.with_rng(|rng| rng.below(SERVERS as u64)) as usize;
        self.running.borrow_mut()[victim] = None;
        sim.crash(self.servers[victim], CrashMode::Power);
        let took = self.until_served(segments, Duration::from_secs(10)).await?;
        sim.note(took.as_micros() as u64);
        if took > TAKEOVER_MAX {
            return Err(format!("segments of a dead server were not served for {took:?}"));
        }
        let leader = self
            .leading
            .borrow()
            .iter()
            .position(|manager| manager.as_ref().is_some_and(ManagerRole::leads));
        let leader = leader.ok_or("no manager leads")?;
        if sim.with_rng(|rng| rng.one_in(2)) {
            self.links_die(1 - leader).await;
        }
        let host = self.managers[leader];
        let mut other = None;
        match sim.with_rng(|rng| rng.below(3)) {
            0 => {
                sim.mark("block-managers: nothing reaches the leading manager");
                sim.set_grey(host, true);
            }
            1 => {
                self.leading.borrow_mut()[leader] = None;
                sim.crash(host, CrashMode::Power);
            }
            _ => other = Some(self.cut_users(leader, (user_host, users)).await?),
        }
        let lost = sim.elapsed();
        let other_asks = async {
            match &other {
                Some(other) => volumes(other).await.map(drop),
                None => Ok(()),
            }
        };
        let (asked, other_asked) = join(volumes(users), other_asks).await;
        asked.map(drop).and(other_asked)?;
        let took = sim.elapsed() - lost;
        sim.note(took.as_micros() as u64);
        tracing::info!(?took, "a request waited for another manager");
        if took > ANSWER_MAX {
            return Err(format!("without its manager a request took {took:?}"));
        }
        // Leases last on for a while; then a server must have renewed them.
        let end = sim.elapsed() + Duration::from_secs(3);
        let mut away = Duration::ZERO;
        while sim.elapsed() < end {
            away = away.max(self.until_served(segments, Duration::from_secs(10)).await?);
            sim.sleep(Duration::from_millis(5)).await;
        }
        sim.set_grey(host, false);
        sim.heal_network();
        sim.note(away.as_micros() as u64);
        if away > TAKEOVER_MAX {
            return Err(format!("without its manager segments were not served for {away:?}"));
        }
        Ok(())
    }

    /// Two users do not reach the manager that leads, whom masters and block servers reach: first one
    /// alone, for whom no manager is to lead no more, then both. Returns the second one.
    async fn cut_users(
        &self,
        leader: usize,
        (user_host, users): (HostId, &Managers),
    ) -> Result<Managers, String> {
        let (sim, manager) = (self.cluster.sim(), self.managers[leader]);
        // A manager that was doubted before is doubted again no earlier.
        sim.sleep(LOCK_DOUBTED_PAUSE).await;
        let (other_host, client) =
            self.cluster.client(None).await.map_err(|error| error.to_string())?;
        let other = Managers::with_budget(&client, Duration::from_secs(60));
        volumes(&other).await?;
        volumes(users).await?;
        let cut = |user: HostId| {
            sim.set_blocked(user, manager, true);
            sim.set_blocked(manager, user, true);
        };
        cut(user_host);
        let alone = users.clone();
        let waits = users.client().env().spawn(Class::Foreground, "user alone", async move {
            let _ = volumes(&alone).await; // Another manager may lead before its time is over.
        });
        sim.sleep(ALONE).await;
        let leads = self.leading.borrow()[leader].as_ref().is_some_and(ManagerRole::leads);
        waits.abort();
        if !leads {
            return Err("a manager leads no more because one user does not reach it".to_owned());
        }
        cut(other_host);
        sim.mark("block-managers: two users do not reach the leading manager");
        Ok(other)
    }
}
