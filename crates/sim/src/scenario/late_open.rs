//! Openings and seals that stay in the network while their client's host loses power, and come after
//! another client has opened the same file: the writer that lives is not fenced for one that is gone.
//! Then two clients open a file at the same time, again and again: each opening ends.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use client::{Client, DataAnswer, Error, PeerError, Peers, Recipient};
use futures_util::future::{FutureExt, LocalBoxFuture, join};
use runtime::sim::{CrashMode, HostId, Sim};
use runtime::sync::oneshot;
use runtime::{Buf, Class, Env};
use wire::control::{ControlError, ControlReply, ControlRequest, StreamChange, StreamRequest};
use wire::data::{DataError, DataRequest};

use super::append::seal_all;
use super::policy;
use crate::cluster::{Cluster, Shape};
use crate::planted::peers_of;
use crate::tuning::Tuning;

const ROUNDS: u64 = 6;
/// Openings of a file by each of two clients at the same time.
const CONTESTS: u64 = 8;
/// Time for which a request stays in the network, at least and at most.
const DELAY_MS: (u64, u64) = (50, 2500);
/// The writer that lives appends for so long: longer than any request is in the network.
const WRITES: Duration = Duration::from_millis(3200);
/// An opening beside another one, while no process has a fault.
const OPENING_MAX: Duration = Duration::from_secs(2);

type ControlAnswer = Result<ControlReply, PeerError<ControlError>>;

/// The network of a client. While `delay` is set, its openings and seals are on the way for so long,
/// on a host of their own: they arrive though their client's host has lost power.
struct Road {
    network: Rc<dyn Peers>,
    env: Env,
    beyond: Rc<dyn Peers>,
    delay: Rc<Cell<Option<Duration>>>,
}

fn takes_an_epoch(request: &ControlRequest) -> bool {
    let ControlRequest::Stream(StreamRequest::Change { change, .. }) = request else {
        return false;
    };
    matches!(change, StreamChange::Open { .. } | StreamChange::Seal { .. })
}

impl Peers for Road {
    fn control(
        &self,
        to: Recipient,
        request: ControlRequest,
        timeout: Duration,
    ) -> LocalBoxFuture<'static, ControlAnswer> {
        let Some(delay) = self.delay.get().filter(|_| takes_an_epoch(&request)) else {
            return self.network.control(to, request, timeout);
        };
        let (env, beyond) = (self.env.clone(), self.beyond.clone());
        let (answer, answered) = oneshot::channel();
        self.env.spawn(Class::Foreground, "road", async move {
            env.sleep(delay).await;
            env.mark("late-open: a request of a client that is gone");
            let _ = answer.send(beyond.control(to, request, timeout).await); // The client is gone.
        });
        async move { answered.await.unwrap_or_else(|_| Err(PeerError::Silent("it is gone".into()))) }
            .boxed_local()
    }

    fn data(
        &self,
        to: SocketAddr,
        request: DataRequest,
        token: [u8; 16],
        payload: Option<Buf>,
        timeout: Duration,
    ) -> LocalBoxFuture<'static, Result<DataAnswer, PeerError<DataError>>> {
        self.network.data(to, request, token, payload, timeout)
    }
}

/// What a client knows of a file before its last request to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Known {
    /// The file was never opened.
    New,
    /// Another client has written it, and closed it.
    Closed,
    /// Another client has written it, and is gone.
    Abandoned,
    /// It has written it itself, and closed it.
    Own,
}

struct World {
    sim: Sim,
    cluster: Cluster,
    road: HostId,
    gone: Cell<u64>,
}

pub(super) async fn run(sim: Sim) -> Result<(), String> {
    let tuning = Tuning::draw(&sim);
    let shape = Shape { servers: 4, ..Shape::default() }.partitioned(&sim);
    let cluster = Cluster::start(&sim, shape, tuning);
    cluster.settle(Duration::from_secs(30)).await.map_err(|e| format!("at the start: {e}"))?;
    let road = sim.add_host("road");
    sim.boot(road);
    let world = World { sim: sim.clone(), cluster, road, gone: Cell::new(0) };
    let (_, writer) = world.cluster.client(None).await.map_err(|error| error.to_string())?;
    for round in 0..ROUNDS {
        let known = *sim.with_rng(|rng| {
            *rng.pick(&[&Known::New, &Known::Closed, &Known::Abandoned, &Known::Own])
        });
        let path = format!("/late{round}");
        let outcome = world.outlive(&writer, &path, known).await;
        outcome.map_err(|error| format!("{path} ({known:?}): {error}"))?;
    }
    let (_, other) = world.cluster.client(None).await.map_err(|error| error.to_string())?;
    world.contend(&writer, &other).await?;
    seal_all(&world.cluster).await?;
    world.cluster.violations().first().cloned().map_or(Ok(()), Err)
}

fn text(error: Error) -> String {
    error.to_string()
}

impl World {
    fn between(&self, (low, high): (u64, u64)) -> Duration {
        Duration::from_millis(self.sim.with_rng(|rng| rng.between(low, high)))
    }

    /// A client on a host of its own, with its delay.
    async fn late_client(
        &self,
    ) -> Result<(HostId, Client, Rc<Cell<Option<Duration>>>), client::Error> {
        self.gone.set(self.gone.get() + 1);
        let host = self.sim.add_host(&format!("gone{}", self.gone.get()));
        let (env, delay) = (self.sim.boot(host), Rc::new(Cell::new(None)));
        let cluster = self.cluster.clone();
        let road = self.sim.env(self.road).expect("it runs");
        let network = Road {
            network: peers_of(&env, cluster.endpoint(&env)),
            beyond: peers_of(&road, cluster.endpoint(&road)),
            env: road,
            delay: delay.clone(),
        };
        let client = cluster.client_over(&env, Rc::new(network)).await?;
        Ok((host, client, delay))
    }

    /// A client asks for a file and is gone; then another one opens it and writes.
    async fn outlive(&self, writer: &Client, path: &str, known: Known) -> Result<(), String> {
        let (host, late, delay) = self.late_client().await.map_err(text)?;
        let file = writer.create(path, policy::drawn(), 0o644, true).await.map_err(text)?;
        let asked = late.open(path).await.map_err(text)?;
        match known {
            Known::New => {}
            Known::Closed | Known::Abandoned => {
                let first = file.append_handle().await.map_err(text)?;
                first.append(&[1; 5000]).await.map_err(text)?;
                if known == Known::Closed {
                    first.close().await.map_err(text)?;
                }
            }
            Known::Own => {
                let asked = asked.clone();
                let task = late.env().spawn(Class::Foreground, "own", async move {
                    let own = asked.append_handle().await?;
                    own.append(&[2; 5000]).await?;
                    own.close().await
                });
                task.await.map_err(|_| "it is gone too early".to_owned())?.map_err(text)?;
            }
        }
        let stays = self.between(DELAY_MS);
        delay.set(Some(stays));
        let seals = known != Known::New && self.sim.with_rng(|rng| rng.one_in(3));
        late.env().spawn(Class::Foreground, "late", async move {
            match seals {
                true => drop(asked.seal().await),
                false => drop(asked.append_handle().await),
            }
        });
        self.sim.sleep(self.between((1, 40))).await;
        self.sim.crash(host, CrashMode::Power);
        self.sim.sleep(self.between((0, 200))).await;
        tracing::info!(path, ?known, ?stays, seals, "late-open: the client is gone");
        let leader =
            self.cluster.leading_master().filter(|_| self.sim.with_rng(|rng| rng.one_in(3)));
        if let Some(leader) = leader {
            self.sim.mark("late-open: a leader dies");
            let wait = self.between((0, 30));
            let (sim, cluster) = (self.sim.clone(), self.cluster.clone());
            self.sim.spawn("leader dies", async move {
                sim.sleep(wait).await;
                cluster.crash_master(leader, CrashMode::Process);
                sim.sleep(Duration::from_secs(1)).await;
                cluster.boot_master(leader);
            });
        }
        let appender = file.append_handle().await.map_err(text)?;
        let epoch = appender.epoch();
        let end = self.sim.elapsed() + WRITES;
        while self.sim.elapsed() < end {
            let appended = appender.append(&[3; 3000]).await;
            appended.map_err(|error| format!("the writer at epoch {epoch}: {error}"))?;
            self.sim.sleep(self.between((1, 60))).await;
        }
        appender.close().await.map_err(text)?;
        self.sim.note(epoch.get());
        Ok(())
    }

    /// Two clients open one file at the same time.
    async fn contend(&self, one: &Client, other: &Client) -> Result<(), String> {
        let path = "/contended";
        one.create(path, policy::drawn(), 0o644, true).await.map_err(text)?;
        let files = (one.open(path).await.map_err(text)?, other.open(path).await.map_err(text)?);
        for round in 0..CONTESTS {
            let open = async |file: &client::FlatLogFile| {
                self.sim.sleep(self.between((0, 5))).await;
                let began = self.sim.elapsed();
                let opened = file.append_handle().await;
                let took = self.sim.elapsed() - began;
                if took > OPENING_MAX {
                    return Err(format!("round {round}: an opening takes {took:?}"));
                }
                match opened {
                    Ok(appender) => Ok(Some(appender)),
                    Err(Error::Fenced { .. }) => Ok(None),
                    Err(error) => Err(format!("round {round}: {error}")),
                }
            };
            let (first, second) = join(open(&files.0), open(&files.1)).await;
            let mut open: Vec<_> = [first?, second?].into_iter().flatten().collect();
            if open.len() == 2 {
                self.sim.mark("late-open: both were opened");
            }
            open.sort_by_key(|appender| appender.epoch());
            let last = open.pop().ok_or_else(|| format!("round {round}: neither is opened"))?;
            let appended = last.append(&[4; 3000]).await;
            appended.map_err(|error| format!("round {round}: the last writer: {error}"))?;
            if self.sim.with_rng(|rng| rng.one_in(2)) {
                last.close().await.map_err(text)?;
            }
        }
        Ok(())
    }
}
