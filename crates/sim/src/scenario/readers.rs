//! Independent readers: long-lived clients on hosts of their own, beside the writers and under the
//! same faults. They read open tails, files that were sealed just now, ranges over the borders of
//! chunks and far beyond the end, with what they have cached from earlier. The oracle judges each
//! answer.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use client::{Client, Error, Reader};
use runtime::sim::{CrashMode, HostId, Sim};
use runtime::{Class, Env, JoinHandle, Rng};

use crate::cluster::Cluster;
use crate::nemesis::Faults;
use crate::oracle::Oracle;

/// Longest pause of a reader between two questions, in milliseconds.
const PAUSE_MS: u64 = 120;
/// One read asks for up to this many bytes.
const READ_MAX: u64 = 60_000;
/// A file was sealed just now for so long. Those that have read it know it as open.
const SEALED_NOW: Duration = Duration::from_secs(1);

/// State that readers share with the rest of a run.
pub(super) struct Shared {
    pub(super) oracle: Oracle,
    /// A broken rule, once one was seen.
    pub(super) verdict: Rc<RefCell<Option<String>>>,
    /// Every writer lives: the end of each file must be known.
    pub(super) writers_live: bool,
    /// Faults that explain errors.
    pub(super) faults: Faults,
}

struct ReadersState {
    sim: Sim,
    shared: Shared,
    stop: Cell<bool>,
    answers: Cell<u64>,
}

/// Readers at work.
pub(super) struct Readers {
    state: Rc<ReadersState>,
    cluster: Cluster,
    tasks: Vec<JoinHandle<Hands>>,
    hosts: Vec<HostId>,
}

/// A reader that a client keeps open, and since when.
struct Hand {
    reader: Reader,
    since: Duration,
}

/// Readers that a client keeps open.
type Hands = BTreeMap<String, Hand>;

impl Readers {
    /// Starts `count` readers, each on its own host.
    pub(super) async fn start(
        cluster: &Cluster,
        shared: Shared,
        count: usize,
    ) -> Result<Readers, String> {
        let (stop, answers) = (Cell::new(false), Cell::new(0));
        let sim = cluster.sim().clone();
        let state = Rc::new(ReadersState { sim, shared, stop, answers });
        let (mut tasks, mut hosts) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let (host, client) = cluster.client(None).await.map_err(|error| error.to_string())?;
            let rng = Rng::new(cluster.sim().with_rng(|rng| rng.next_u64()));
            let task = keep_reading(state.clone(), client.clone(), rng);
            tasks.push(client.env().spawn(Class::Foreground, "reader", task));
            hosts.push(host);
        }
        Ok(Readers { state, cluster: cluster.clone(), tasks, hosts })
    }

    /// Ends the readers when all files are sealed and the cluster is whole: with all that they
    /// have cached since the start, they must find every file at its length.
    pub(super) async fn finish(self) -> Result<(), String> {
        self.state.stop.set(true);
        let sim = self.cluster.sim();
        for (task, host) in self.tasks.into_iter().zip(self.hosts) {
            let deadline = sim.elapsed() + Duration::from_secs(60);
            while !task.is_finished() {
                if sim.elapsed() > deadline {
                    return Err("a reader does not end in a minute without faults".to_owned());
                }
                sim.sleep(Duration::from_millis(100)).await;
            }
            let Ok(hands) = task.await else {
                return Err("a reader's host went down".to_owned());
            };
            for (path, hand) in &hands {
                check_whole(&self.state, path, &hand.reader).await?;
            }
            sim.crash(host, CrashMode::Process);
        }
        if let Some(violation) = self.state.shared.verdict.borrow_mut().take() {
            return Err(violation);
        }
        match self.state.answers.get() {
            0..20 => Err(format!("{} answers: readers stand still", self.state.answers.get())),
            _ => Ok(()),
        }
    }
}

async fn check_whole(state: &ReadersState, path: &str, reader: &Reader) -> Result<(), String> {
    let oracle = &state.shared.oracle;
    let reading = oracle.begin_read(path);
    let gone = |error: &Error| matches!(error, Error::NotFound { .. }) && reading.floor() == 0;
    let len = match reader.refresh_len().await {
        Err(error) if gone(&error) => return Ok(()),
        len => len.map_err(|error| format!("{path}: {error}"))?,
    };
    oracle.len_ended(&reading, len)?;
    let want = len as usize + 1;
    let bytes = reader.read_at(0, want).await.map_err(|error| format!("{path}: {error}"))?;
    oracle.read_ended(&reading, 0, want, &bytes)
}

async fn keep_reading(state: Rc<ReadersState>, client: Client, mut rng: Rng) -> Hands {
    let mut hands = Hands::new();
    let verdict = &state.shared.verdict;
    while !state.stop.get() && verdict.borrow().is_none() {
        client.env().sleep(Duration::from_millis(rng.below(PAUSE_MS))).await;
        let paths = state.shared.oracle.paths();
        if paths.is_empty() {
            continue;
        }
        let path = rng.pick(&paths).clone();
        let floor = state.shared.oracle.begin_read(&path).floor();
        let error = match read(&state, &client, &path, &mut hands, &mut rng).await {
            Ok(Ok(())) => {
                state.answers.set(state.answers.get() + 1);
                continue;
            }
            Ok(Err(violation)) => {
                verdict.borrow_mut().get_or_insert(violation);
                continue;
            }
            Err(error) => error,
        };
        client.env().mark("readers: no answer");
        let is_legal = match &error {
            // Its name is not known yet, or was removed.
            Error::NotFound { .. } => {
                hands.remove(&path);
                floor == 0 || state.shared.oracle.acked_len(&path) == 0
            }
            Error::OpenEnd { .. } => !state.shared.writers_live,
            error => state.shared.faults.explain(error.kind()),
        };
        if !is_legal {
            let what = format!("{path}: no fault explains the end of a read: {error}");
            verdict.borrow_mut().get_or_insert(what);
        }
    }
    hands
}

/// Asks a question about a file, which is opened when it was not before; the judgement of the answer,
/// if there is one.
async fn read(
    state: &ReadersState,
    client: &Client,
    path: &str,
    hands: &mut Hands,
    rng: &mut Rng,
) -> Result<Result<(), String>, Error> {
    if !hands.contains_key(path) {
        let reader = client.open(path).await?.reader();
        hands.insert(path.to_owned(), Hand { reader, since: state.sim.elapsed() });
    }
    let (hand, began) = (&hands[path], state.sim.elapsed());
    let closed = state.shared.oracle.closed_at(path);
    let sealed_now = closed.is_some_and(|at| hand.since < at && began < at + SEALED_NOW);
    let judged = ask(state, client.env(), (path, &hand.reader), rng).await?;
    if sealed_now {
        client.env().mark("readers: a file that was sealed just now");
    }
    Ok(judged)
}

/// Asks one question about a file; the judgement of the answer, if there is one.
async fn ask(
    state: &ReadersState,
    env: &Env,
    (path, reader): (&str, &Reader),
    rng: &mut Rng,
) -> Result<Result<(), String>, Error> {
    let oracle = &state.shared.oracle;
    let reading = oracle.begin_read(path);
    let floor = reading.floor();
    let mut want = 1 + rng.below(READ_MAX);
    let mut place = None;
    let offset = match rng.below(8) {
        0 => {
            let len = reader.refresh_len().await?;
            env.mark("readers: length");
            return Ok(oracle.len_ended(&reading, len));
        }
        // Over the border of two chunks.
        1 => {
            let view = reader.file().chunks().await?;
            let Some(chunk) = view.chunks.get(rng.below(view.chunks.len().max(1) as u64) as usize)
            else {
                return Ok(Ok(()));
            };
            place = Some("readers: border of chunks");
            chunk.base.saturating_sub(rng.below(5000))
        }
        // Anywhere below the end.
        2..=3 => rng.below(floor.max(1)),
        // At an offset without a byte.
        4 => {
            place = Some("readers: far beyond the end");
            floor + (1 << rng.between(31, 50)) + rng.below(1000)
        }
        // Over the end.
        _ => {
            let back = rng.below(20_000).min(floor);
            want += back;
            floor - back
        }
    };
    let bytes = reader.read_at(offset, want as usize).await?;
    place.into_iter().for_each(|place| env.mark(place));
    if (bytes.len() as u64) < want {
        env.mark("readers: end of a file");
    }
    Ok(oracle.read_ended(&reading, offset, want as usize, &bytes))
}
