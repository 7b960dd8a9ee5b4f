//! A volume that is idle for longer than rights live, while all chunkservers restart: one after another,
//! then all at once. What was written before is there, without an error, for block servers and for
//! direct reads; more is written, and a block server dies with what it knows.

use std::rc::Rc;
use std::time::Duration;

use base::MIB;
use block_client::Reads;
use block_volume::contract::Device;
use runtime::Class;
use runtime::sim::{CrashMode, Sim};

use super::deleted::World;
use super::entry::Scenario;
use super::stack::Role;
use super::stored::check_all;
use crate::tuning::Tuning;

pub(super) const SCENARIO: Scenario = Scenario {
    name: "volume-idle",
    about: "a volume is idle for longer than rights live, while all chunkservers restart",
    run: |sim| Box::pin(run(sim)),
    marks: &[
        "volume-idle: a client has the volume open all the time",
        "volume-idle: no client has the volume open",
        "volume-idle: a chunkserver restarts",
        "volume-idle: all chunkservers restart at once",
        "volume-idle: blocks from before are read directly",
        "stored: a volume is whole",
    ],
};

const NAME: &str = "idle";
const BYTES: u64 = 16 * MIB;
/// Bytes that are written before the pause, and once more as many behind it.
const WRITTEN: u64 = MIB;
/// The pause: rights live 60 s, and clocks may be 5 s apart.
const IDLE: Duration = Duration::from_secs(130);
/// From the start of a chunkserver to the end of the next one, in milliseconds.
const GAP_MS: (u64, u64) = (5_000, 25_000);
/// A chunkserver is down for so many milliseconds.
const DOWN_MS: (u64, u64) = (100, 3_000);
/// The last start is so long before the end of the pause, at least.
const CALM: Duration = Duration::from_secs(5);
const BLOCK_SERVERS: u64 = 2;

async fn run(sim: Sim) -> Result<(), String> {
    // Rights live as long as in a real cluster.
    let world = Rc::new(World::start(&sim, Tuning::default()).await?);
    let user = world.clone();
    let work = world.env.spawn(Class::Foreground, "user", async move { user.stay_idle().await });
    work.await.map_err(|_| "the user's host has crashed".to_owned())??;
    world.stack.verdict()?;
    world.stack.cluster().violations().first().cloned().map_or(Ok(()), Err)
}

impl World {
    async fn stay_idle(&self) -> Result<(), String> {
        self.create(NAME, BYTES).await?;
        self.write(NAME, WRITTEN).await?;
        let device = self.open(NAME).await?;
        // The second time the client has opened the files.
        self.check(NAME, WRITTEN).await?;
        self.check(NAME, WRITTEN).await?;
        let device = self.keep_or_close(device);
        self.restart_chunkservers().await;
        let before = self.exports.reads();
        self.check(NAME, WRITTEN).await?;
        self.check(NAME, WRITTEN).await?;
        let Reads { direct, left, .. } = self.exports.reads();
        tracing::info!(?before, direct, left, "volume-idle: reads behind the pause");
        if direct > before.direct {
            self.env.mark("volume-idle: blocks from before are read directly");
        }
        self.write_to(NAME, WRITTEN..2 * WRITTEN).await?;
        self.check(NAME, 2 * WRITTEN).await?;
        drop(device);
        // Another attachment knows nothing from before.
        self.check(NAME, 2 * WRITTEN).await?;
        let index = self.draw((0, BLOCK_SERVERS - 1)) as usize;
        self.stack.crash(Role::Server(index), CrashMode::Power);
        self.check(NAME, 2 * WRITTEN).await?;
        self.stack.boot(Role::Server(index));
        check_all(&self.managers, &self.exports, &[]).await
    }

    fn draw(&self, (low, high): (u64, u64)) -> u64 {
        self.sim().with_rng(|rng| rng.between(low, high))
    }

    /// In half of the runs the client goes on with its open volume, without a request.
    fn keep_or_close(&self, device: Rc<dyn Device>) -> Option<Rc<dyn Device>> {
        let is_kept = self.draw((0, 1)) == 0;
        self.env.mark(match is_kept {
            true => "volume-idle: a client has the volume open all the time",
            false => "volume-idle: no client has the volume open",
        });
        is_kept.then_some(device)
    }

    /// No request comes for the time of the pause, in which each chunkserver crashes, and then all.
    async fn restart_chunkservers(&self) {
        let (sim, cluster) = (self.sim(), self.stack.cluster());
        let end = sim.elapsed() + IDLE;
        let pause = async |limits| self.env.sleep(Duration::from_millis(self.draw(limits))).await;
        let crash = |index| {
            let mode = if self.draw((0, 1)) == 0 { CrashMode::Power } else { CrashMode::Process };
            cluster.crash_server(index, mode);
        };
        let servers = 0..cluster.servers().len();
        for index in servers.clone() {
            pause(GAP_MS).await;
            crash(index);
            self.env.mark("volume-idle: a chunkserver restarts");
            pause(DOWN_MS).await;
            cluster.boot_server(index);
        }
        pause(GAP_MS).await;
        servers.clone().for_each(crash);
        self.env.mark("volume-idle: all chunkservers restart at once");
        pause(DOWN_MS).await;
        servers.for_each(|index| cluster.boot_server(index));
        self.env.sleep(CALM.max(end.saturating_sub(sim.elapsed()))).await;
    }
}
