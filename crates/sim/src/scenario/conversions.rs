//! An operator sets policies of files and has what they hold converted, or leaves it as it is, while the
//! files are written, read and removed, and everything fails (`protocols-tail.md` 9.12). In the end each
//! sealed chunk of every file has the form of its policy, or a smaller one; and where the policy has a form
//! for old chunks, that one.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use base::Kind;
use base::limits::SECTOR_DATA_MAX;
use client::{Client, Error, FlatLogFile};
use runtime::Rng;
use runtime::sim::CrashMode;
use wire::control::{ChunkPlace, Later, Node, Policy};

use crate::cluster::Cluster;

/// Longest pause between two orders, milliseconds.
const PAUSE_MS_MAX: u64 = 600;
/// Longest time until a chunk is old, where a policy has a form for it, seconds.
const AFTER_S_MAX: u64 = 5;
/// Bytes in front of a cell.
const CELL_HEAD: usize = 16;
/// Orders of one client.
const ORDERS_MAX: u64 = 8;
/// All is converted in a cluster without faults within this time after the last chunk is whole.
const CONVERTED: Duration = Duration::from_secs(120);

/// The operator of a run. Clones share it.
#[derive(Clone)]
pub(super) struct Conversions(Rc<State>);

struct State {
    cluster: Cluster,
    policies: &'static [Policy],
    over: Cell<bool>,
    rng: RefCell<Rng>,
}

impl Conversions {
    pub(super) fn start(cluster: &Cluster, policies: &'static [Policy]) -> Conversions {
        let sim = cluster.sim();
        let rng = RefCell::new(Rng::new(sim.with_rng(|rng| rng.next_u64())));
        let (cluster, over) = (cluster.clone(), Cell::new(false));
        let conversions = Conversions(Rc::new(State { cluster, policies, over, rng }));
        let operator = conversions.clone();
        sim.spawn("converting operator", async move { operator.give_orders().await });
        conversions
    }

    fn draw(&self, bound: u64) -> u64 {
        self.0.rng.borrow_mut().below(bound)
    }

    async fn give_orders(self) {
        let sim = self.0.cluster.sim().clone();
        while !self.0.over.get() {
            sim.sleep(Duration::from_millis(self.draw(PAUSE_MS_MAX))).await;
            let Ok((host, client)) = self.0.cluster.client(None).await else { continue };
            for _ in 0..1 + self.draw(ORDERS_MAX) {
                // What fails is ordered again, of this file or another.
                if !self.0.over.get() && self.give_order(&client).await.is_err() {
                    break;
                }
                sim.sleep(Duration::from_millis(self.draw(PAUSE_MS_MAX))).await;
            }
            sim.crash(host, CrashMode::Process);
        }
    }

    async fn give_order(&self, client: &Client) -> Result<(), Error> {
        let names = client.list_all("/").await?;
        let files: Vec<_> =
            names.iter().filter(|it| matches!(it.node, Node::File { .. })).collect();
        if files.is_empty() {
            return Ok(());
        }
        let path = format!("/{}", files[self.draw(files.len() as u64) as usize].name);
        let file = client.open(&path).await?;
        if self.draw(3) > 0 {
            let drawn = || self.0.policies[self.draw(self.0.policies.len() as u64) as usize];
            let (policy, form, after_s) = (drawn(), drawn(), 1 + self.draw(AFTER_S_MAX) as u32);
            let later = Some(Later::new(after_s, form)).filter(|_| self.draw(3) == 0);
            file.set_policy(policy.and_later(later)).await?;
        }
        let wanted = self.draw(6) > 0;
        file.convert(wanted).await?;
        client.env().mark(match wanted {
            true => "conversions: a file is to be converted",
            false => "conversions: a file is to stay as it is",
        });
        Ok(())
    }

    /// Ends the orders, and has everything converted. All files are sealed, and there are no faults.
    pub(super) async fn finish(&self) -> Result<(), String> {
        self.0.over.set(true);
        let cluster = &self.0.cluster;
        let (_, client) = cluster.client(None).await.map_err(|error| error.to_string())?;
        let failed = |path: &str, error: Error| format!("{path} is not converted: {error}");
        let mut left = Vec::new();
        for entry in client.list_all("/").await.map_err(|error| error.to_string())? {
            let path = format!("/{}", entry.name);
            let file = client.open(&path).await.map_err(|error| failed(&path, error))?;
            match file.convert(true).await {
                // It was never written to.
                Err(error) if error.kind() == Kind::NotFound => continue,
                done => done.map_err(|error| failed(&path, error))?,
            }
            left.push((path, file));
        }
        let end = cluster.sim().elapsed() + CONVERTED;
        while let Some((path, file)) = left.pop() {
            while is_to_convert(&file).await.map_err(|error| failed(&path, error))? {
                if cluster.sim().elapsed() > end {
                    return Err(format!("{path} is not converted in a cluster without faults"));
                }
                cluster.sim().sleep(Duration::from_millis(200)).await;
            }
        }
        Ok(())
    }
}

async fn is_to_convert(file: &FlatLogFile) -> Result<bool, Error> {
    let view = file.chunks().await?;
    let later = view.policy.and_then(|policy| policy.later);
    let grows_old = |chunk: &ChunkPlace| {
        later.is_some_and(|later| is_better(chunk.sealed.unwrap_or(0), chunk, later.policy()))
    };
    Ok(view.converting || view.chunks.iter().any(grows_old))
}

/// Whether a chunk of so many bytes is better off in another form: few bytes take less room in copies.
fn is_better(len: u32, chunk: &ChunkPlace, form: Policy) -> bool {
    if (chunk.data, chunk.copies, chunk.compression) == (form.data, form.copies, form.compression) {
        return false;
    }
    let survives = chunk.data == 1 && chunk.copies > form.copies - form.data;
    let sectors = |bytes: usize| bytes.div_ceil(SECTOR_DATA_MAX);
    let coded = sectors(CELL_HEAD + (len as usize).div_ceil(form.data.into()));
    let coded = coded * usize::from(form.copies);
    len > 0
        && (!(form.is_coded() && survives)
            || coded < sectors(len as usize) * usize::from(chunk.copies))
}
