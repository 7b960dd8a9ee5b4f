//! Two openers race: one is held at a step of its opening, before or after the step's effect, while
//! others take the table over and write; then it goes on.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use base::Fault;
use runtime::sync::Notify;
use runtime::{Class, Duration};
use table::{Answer, Cache, Error, Names, Pending, Range, Source, Store, Table, Writer};

use crate::support::{World, small};

/// Point at which an opener waits.
struct Gate {
    at: u32,
    steps: Cell<u32>,
    reached: Cell<bool>,
    release: Notify,
}

impl Gate {
    async fn step(&self) {
        self.steps.set(self.steps.get() + 1);
        if self.steps.get() == self.at {
            self.reached.set(true);
            self.release.notified().await;
        }
    }

    /// A call with a step before and one behind its effect.
    async fn pass<T>(&self, call: Answer<'_, T>) -> Result<T, Fault> {
        self.step().await;
        let done = call.await;
        self.step().await;
        done
    }
}

struct Gated(Rc<dyn Store>, Rc<Gate>);

struct GatedWriter(Box<dyn Writer>, Rc<Gate>);

impl Store for Gated {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn create<'a>(&'a self, name: &'a str) -> Answer<'a, Box<dyn Writer>> {
        Box::pin(async move {
            let writer = self.1.pass(self.0.create(name)).await?;
            Ok(Box::new(GatedWriter(writer, self.1.clone())) as Box<dyn Writer>)
        })
    }

    fn seal<'a>(&'a self, name: &'a str) -> Answer<'a, u64> {
        Box::pin(self.1.pass(self.0.seal(name)))
    }

    fn open<'a>(&'a self, name: &'a str) -> Answer<'a, Rc<dyn Source>> {
        Box::pin(self.1.pass(self.0.open(name)))
    }

    fn list<'a>(&'a self, after: &'a str) -> Answer<'a, Names> {
        Box::pin(self.1.pass(self.0.list(after)))
    }

    fn publish<'a>(&'a self, from: &'a str, to: &'a str) -> Answer<'a, ()> {
        Box::pin(self.1.pass(self.0.publish(from, to)))
    }

    fn remove<'a>(&'a self, name: &'a str) -> Answer<'a, ()> {
        Box::pin(self.1.pass(self.0.remove(name)))
    }

    fn numbers<'a>(&'a self, names: &'a [String]) -> Answer<'a, Vec<Option<u64>>> {
        Box::pin(self.1.pass(self.0.numbers(names)))
    }

    fn link<'a>(&'a self, names: &'a [String], to: &'a str) -> Answer<'a, ()> {
        Box::pin(self.1.pass(self.0.link(names, to)))
    }
}

impl Writer for GatedWriter {
    fn submit<'a>(&'a self, data: &'a [u8]) -> Answer<'a, Pending> {
        Box::pin(async move {
            self.1.step().await;
            let pending = self.0.submit(data).await?;
            let gate = self.1.clone();
            Ok(Box::pin(async move {
                let done = pending.await;
                gate.step().await;
                done
            }) as Pending)
        })
    }

    fn close(self: Box<Self>) -> Answer<'static, u64> {
        self.0.close()
    }
}

/// Acknowledged values, by key.
type Acked = BTreeMap<Vec<u8>, Vec<u8>>;

async fn put(table: &Table, acked: &mut Acked, key: &str, value: &str) -> Result<(), Error> {
    table.put(key.as_bytes(), value.as_bytes()).await?;
    acked.insert(key.into(), value.into());
    Ok(())
}

/// The race with `rivals` that come while the opener is held at step `at`. False when its opening
/// has fewer steps. With `settled` all is in sorted files before: nothing that the opener needs
/// goes, so that it has to find out in another way that it was overtaken.
fn race(at: u32, rivals: u32, settled: bool) -> bool {
    let world = World::new(u64::from(at));
    world.run(async {
        let mut acked = Acked::new();
        let (_, first) = world.boot();
        let before = world.open(&first, small()).await.unwrap();
        put(&before, &mut acked, "first", "0").await.unwrap();
        put(&before, &mut acked, "turn", "0").await.unwrap();

        if settled {
            before.flush().await.unwrap();
        }
        let gate = Rc::new(Gate {
            at,
            steps: Cell::new(0),
            reached: Cell::new(false),
            release: Notify::new(),
        });
        let (_, slow) = world.boot();
        let store = Rc::new(Gated(world.disk.store(&slow), gate.clone()));
        let env = slow.clone();
        let opening = slow.spawn(Class::Foreground, "slow opener", async move {
            Table::open(&env, store, &Cache::new(0), small()).await
        });
        while !gate.reached.get() && !opening.is_finished() {
            world.sim.sleep(Duration::from_micros(100)).await;
        }
        if !gate.reached.get() {
            return false;
        }
        let mut newest = None;
        for rival in 1..=rivals {
            let (_, env) = world.boot();
            let table = world.open(&env, small()).await.unwrap();
            put(&table, &mut acked, "turn", &rival.to_string()).await.unwrap();
            put(&table, &mut acked, &format!("rival {rival}"), "").await.unwrap();
            // Sweeps end, obsolete files go.
            world.sim.sleep(Duration::from_millis(50)).await;
            newest = Some(table);
        }
        let newest = newest.expect("at least one");
        let late = put(&before, &mut acked, "late", "").await;
        assert!(matches!(late, Err(Error::Fenced { .. })), "step {at}: {late:?}");

        gate.release.notify_one();
        let opened = opening.await.expect("no crash is injected");
        let others = put(&newest, &mut acked, "newest", "").await;
        match opened {
            // Overtaken while its last answer was on its way.
            Ok(table) if table.stats().generation < newest.stats().generation => {
                others.unwrap();
                assert!(matches!(table.barrier().await, Err(Error::Fenced { .. })), "step {at}");
                let late = put(&table, &mut acked, "slow", "").await;
                assert!(matches!(late, Err(Error::Fenced { .. })), "step {at}: {late:?}");
            }
            Ok(table) => {
                assert!(matches!(others, Err(Error::Fenced { .. })), "step {at}: {others:?}");
                let entries = table.scan(Range::all()).take(usize::MAX).await.unwrap();
                assert!(entries.into_iter().eq(acked.clone()), "step {at}: an old state");
                put(&table, &mut acked, "slow", "").await.unwrap();
            }
            Err(error) => {
                assert!(matches!(error, Error::Fenced { .. }), "step {at}: {error}");
                others.unwrap();
            }
        }
        let (_, env) = world.boot();
        let last = world.open(&env, small()).await.unwrap();
        let entries = last.scan(Range::all()).take(usize::MAX).await.unwrap();
        assert!(entries.into_iter().eq(acked), "step {at}: something acknowledged is lost");
        true
    })
}

#[test]
fn openers_race_at_every_step() {
    for (rivals, settled) in [(1, false), (1, true), (2, false), (2, true), (3, true)] {
        let steps = (1..).take_while(|&at| race(at, rivals, settled)).count();
        assert!(steps >= 25, "an opening of {steps} steps");
    }
}
