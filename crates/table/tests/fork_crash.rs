//! An owner that forks its table crashes at every step, or sleeps and goes on: what it acknowledged is in
//! the children, or, when the fork was given up, in the parent.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::rc::Rc;

use futures_util::future::{Either, select};
use runtime::sim::{CrashMode, HostId};
use runtime::{Class, Duration, Env, Rng};
use table::{Batch, Bugs, Cache, Child, Error, Options, Place, Planted, Range, Table};
use testing::tables::MemDisk;

use crate::support::{World, on, seeds, small, small_with_data};

const WRITERS: u64 = 3;
const PARENT: &str = "parent";

/// What a key was given, one after the other, by one writer at a time.
#[derive(Default)]
struct History {
    ops: Vec<Option<u64>>,
    /// So many of these are known to be made; one more may be.
    acked: usize,
}

impl History {
    fn at(&self, index: usize) -> Option<u64> {
        index.checked_sub(1).and_then(|last| self.ops[last])
    }
}

/// All writes, with their outcomes. Clones share it.
#[derive(Clone, Default)]
struct Journal(Rc<RefCell<BTreeMap<Vec<u8>, History>>>, Rc<Cell<u64>>);

impl Journal {
    fn begin(&self, key: &[u8], delete: bool) -> Option<u64> {
        self.1.set(self.1.get() + 1);
        let op = (!delete).then_some(self.1.get());
        self.0.borrow_mut().entry(key.to_vec()).or_default().ops.push(op);
        op
    }

    fn refused(&self, key: &[u8]) {
        self.0.borrow_mut().get_mut(key).expect("it was begun").ops.pop();
    }

    fn acked(&self, key: &[u8]) {
        let mut all = self.0.borrow_mut();
        let history = all.get_mut(key).expect("it was begun");
        history.acked = history.ops.len();
    }

    /// What an owner found is there to stay. Keys that it does not show it must not have.
    fn settle(
        &self,
        mut found: BTreeMap<Vec<u8>, u64>,
        shown: impl Fn(&[u8]) -> bool,
    ) -> Result<(), String> {
        for (key, history) in self.0.borrow_mut().iter_mut().filter(|(key, _)| shown(key)) {
            let name = String::from_utf8_lossy(key);
            let value = found.remove(key);
            let may_be = history.acked..=history.ops.len();
            let Some(index) = may_be.into_iter().find(|&index| history.at(index) == value) else {
                let (ops, acked) = (&history.ops, history.acked);
                return Err(format!("{name} has {value:?}, of {ops:?} {acked} are acknowledged"));
            };
            history.ops.truncate(index);
            history.acked = index;
        }
        match found.pop_first() {
            None => Ok(()),
            Some((key, _)) => Err(format!("{} came back", String::from_utf8_lossy(&key))),
        }
    }
}

fn key(writer: u64, rng: &mut Rng) -> Vec<u8> {
    format!("{:02}/{writer}", rng.below(24)).into_bytes()
}

fn data(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(1 + number as usize % 60)
}

/// One write of a writer; false when the instance is over.
async fn write_one(
    env: &Env,
    table: &Table,
    journal: &Journal,
    writer: u64,
    rng: &mut Rng,
) -> bool {
    let key = key(writer, rng);
    let mut batch = Batch::new();
    match journal.begin(&key, rng.one_in(4)) {
        None => drop(batch.delete(&key)),
        Some(number) => {
            let value = [&[0; Place::BYTES][..], &number.to_le_bytes()].concat();
            match table.takes_data() {
                true => batch.put_with_data(&key, &value, 0, Rc::new(data(number))),
                false => batch.put(&key, &[&value[..], &[7; 120]].concat()),
            };
        }
    }
    match table.submit(&batch) {
        Ok(outcome) => {
            let done = outcome.await.is_ok();
            if done {
                journal.acked(&key);
            }
            done
        }
        Err(error) => {
            journal.refused(&key);
            let Error::Busy { retry_after, .. } = error else { return false };
            env.sleep(retry_after).await;
            true
        }
    }
}

/// The rows of a table, whose data must be there.
async fn rows(table: &Table) -> Result<BTreeMap<Vec<u8>, u64>, String> {
    let text = |error: Error| error.to_string();
    let mut found = BTreeMap::new();
    for (key, value) in table.scan(Range::all()).take(usize::MAX).await.map_err(text)? {
        let (place, rest) = value.split_first_chunk::<{ Place::BYTES }>().expect("its length");
        let number = u64::from_le_bytes(rest[..8].try_into().expect("8 bytes"));
        if let Some(place) = Place::decode(*place) {
            let want = data(number);
            let read = table.read_data(place, want.len()).await.map_err(text)?;
            if read != want {
                return Err(format!("{} has other data", String::from_utf8_lossy(&key)));
            }
        }
        found.insert(key, number);
    }
    Ok(found)
}

/// Ranges of keys for some children, all keys together.
fn shows(rng: &mut Rng) -> Vec<Vec<Range>> {
    let mut cuts: Vec<Vec<u8>> = (0..rng.between(2, 5)).map(|_| key(1, rng)).collect();
    cuts.sort();
    cuts.dedup();
    let count = rng.between(2, 3);
    let mut children = vec![Vec::new(); count as usize];
    let mut lower = Bound::Unbounded;
    let ends = cuts.iter().cloned().map(Bound::Excluded).chain([Bound::Unbounded]);
    for (number, upper) in ends.enumerate() {
        let next = match &upper {
            Bound::Excluded(at) => Bound::Included(at.clone()),
            _ => Bound::Unbounded,
        };
        children[number % count as usize].push(Range { lower, upper, reverse: false });
        lower = next;
    }
    children.retain(|child| !child.is_empty());
    children
}

fn has(shows: &[Range], key: &[u8]) -> bool {
    shows.iter().any(|range| {
        let above = match &range.lower {
            Bound::Included(low) => key >= low.as_slice(),
            _ => true,
        };
        let below = match &range.upper {
            Bound::Excluded(high) => key < high.as_slice(),
            _ => true,
        };
        above && below
    })
}

/// Opens a table, checks it, changes it, and checks it again.
async fn live(
    env: &Env,
    dir: &MemDisk,
    journal: &Journal,
    options: Options,
    shown: &[Range],
    mut rng: Rng,
) -> Result<(), String> {
    let store = dir.store(env);
    let name = store.name().to_owned();
    let text = |error: Error| format!("{name}: {error}");
    let cache = Cache::new(16 << 10);
    let table = Table::open(env, store, &cache, options).await.map_err(text)?;
    let check = async |table: &Table| {
        let found = rows(table).await?;
        journal.settle(found, |key| has(shown, key))
    };
    check(&table).await.map_err(|what| format!("{name}: {what}"))?;
    for _ in 0..30 {
        let writer = rng.below(WRITERS);
        let key = key(writer, &mut rng.clone());
        if !has(shown, &key) {
            rng.next_u64();
        } else if !write_one(env, &table, journal, writer, &mut rng).await {
            return Err(format!("{name}: a write failed"));
        }
    }
    for _ in 0..rng.below(3) {
        table.flush().await.map_err(text)?;
    }
    if rng.one_in(2) {
        table.compact().await.map_err(text)?;
    }
    check(&table).await.map_err(|what| format!("{name}, later: {what}"))?;
    if rng.one_in(2) {
        table.close().await.map_err(text)?;
    }
    Ok(())
}

/// A world with a parent and room for its children.
struct Forks {
    world: World,
    options: Options,
    journal: Journal,
    shows: Vec<Vec<Range>>,
    seed: u64,
}

fn child_dir(number: usize) -> String {
    format!("child{number}")
}

impl Forks {
    fn new(seed: u64, options: &Options) -> Forks {
        let world = World::new(seed);
        let shows = shows(&mut Rng::new(seed));
        Forks { world, options: options.clone(), journal: Journal::default(), shows, seed }
    }

    fn dir(&self, name: &str) -> MemDisk {
        self.world.disk.beside(name)
    }

    fn set_faults(&self, lose_one_in: u64) {
        let children = (0..self.shows.len()).map(child_dir);
        for name in children.chain([PARENT.to_owned()]) {
            self.dir(&name).with_faults(|faults| {
                faults.lose_one_in = lose_one_in;
                faults.refuse_one_in = 3 * lose_one_in;
            });
        }
    }

    fn rng(&self, salt: u64) -> Rng {
        Rng::new(self.seed << 8 ^ salt)
    }

    fn children(&self, env: &Env, owner: u64) -> Vec<Child> {
        let child = |(number, shows): (usize, &Vec<Range>)| {
            let (store, shows) = (self.dir(&child_dir(number)).store(env), shows.clone());
            Child { store, owner, shows }
        };
        self.shows.iter().enumerate().map(child).collect()
    }

    /// The owner that forks, and may go on with the children: `began` gets the steps before the fork,
    /// `forked` whether it has succeeded.
    fn start(
        &self,
        began: &Rc<Cell<u64>>,
        forked: &Rc<Cell<bool>>,
        (goes_on, lossless): (bool, bool),
    ) -> (HostId, runtime::JoinHandle<Result<(), String>>) {
        let (host, env) = self.world.boot();
        let (disk, store) = (self.world.disk.clone(), self.dir(PARENT).store(&env));
        let (began, forked, journal) = (began.clone(), forked.clone(), self.journal.clone());
        let options = Options { owner: 1, ..self.options.clone() };
        let (children, mut rng) = (self.children(&env, 5), self.rng(1));
        let dirs = self.shows.iter().enumerate().map(|(number, shows)| {
            let options = Options { owner: 5, ..self.options.clone() };
            (self.dir(&child_dir(number)), shows.clone(), options)
        });
        let dirs: Vec<_> = dirs.collect();
        let at = env.clone();
        let life = env.spawn(Class::Foreground, "owner", async move {
            let cache = Cache::new(16 << 10);
            let mut tries = 20;
            let table = loop {
                match Table::open(&at, store.clone(), &cache, options.clone()).await {
                    Ok(table) => break table,
                    Err(_) if tries > 0 => tries -= 1, // Answers may be lost.
                    Err(_) => return Ok(()),
                }
            };
            for turn in 0..120 {
                if !write_one(&at, &table, &journal, turn % WRITERS, &mut rng).await {
                    return Ok(());
                }
            }
            for writer in 0..WRITERS {
                let (table, env, journal) = (table.clone(), at.clone(), journal.clone());
                let mut rng = Rng::new(rng.next_u64());
                at.spawn(Class::Foreground, "writer", async move {
                    while write_one(&env, &table, &journal, writer, &mut rng).await {
                        env.sleep(Duration::from_micros(rng.below(800))).await;
                    }
                });
            }
            began.set(disk.points());
            let mut fork = table.fork(children).map_err(|error| error.to_string())?;
            for round in 0..3 {
                let _ = fork.link().await; // The cut links what is left.
                if round == 1 && rng.one_in(2) {
                    let _ = table.flush().await;
                }
            }
            match fork.cut().await {
                Ok(_) => forked.set(true),
                Err(error) if error.kind() == base::Kind::Corrupt => return Err(error.to_string()),
                Err(_) => {}
            }
            // It does not know that it is over.
            let _ = table.flush().await;
            let _ = table.compact().await;
            let _ = table.barrier().await;
            if forked.get() && goes_on {
                for (dir, shown, options) in dirs {
                    let life = live(&at, &dir, &journal, options, &shown, rng.fork()).await;
                    if lossless {
                        life?;
                    }
                }
            }
            Ok(())
        });
        (host, life)
    }

    /// Lives with a table on a new host.
    async fn live(&self, name: &str, shown: &[Range], owner: u64) -> Result<(), String> {
        let (host, env) = self.world.boot();
        let options = Options { owner, ..self.options.clone() };
        let (dir, journal, rng) = (self.dir(name), self.journal.clone(), self.rng(owner));
        let (at, shown) = (env.clone(), shown.to_vec());
        let done = on(&env, async move { live(&at, &dir, &journal, options, &shown, rng).await });
        let done = done.await.expect("no crash");
        self.world.sim.crash(host, CrashMode::Process);
        done
    }

    /// All names go.
    async fn remove(&self, name: &str) {
        let (host, env) = self.world.boot();
        let (disk, store) = (self.dir(name), self.dir(name).store(&env));
        let removed = on(&env, async move {
            for name in disk.names() {
                let _ = store.remove(&name).await; // A late removal may have been before.
            }
        });
        removed.await.expect("no crash");
        self.world.sim.crash(host, CrashMode::Process);
    }

    /// Opens the children, twice each, with the parent's directory or without.
    async fn check_children(&self) -> Result<(), String> {
        let remove_at = self.rng(3).below(2 * self.shows.len() as u64 + 2) as usize;
        let mut step = 0;
        for owner in [6, 7] {
            for (number, shows) in self.shows.iter().enumerate() {
                if step == remove_at {
                    self.remove(PARENT).await;
                }
                step += 1;
                self.live(&child_dir(number), shows, owner).await?;
            }
        }
        for number in 0..self.shows.len() {
            self.check_names(&child_dir(number)).await?;
        }
        Ok(())
    }

    /// In the end a table's directory has what the table consists of and no more.
    async fn check_names(&self, name: &str) -> Result<(), String> {
        let (host, env) = self.world.boot();
        let (disk, store) = (self.dir(name), self.dir(name).store(&env));
        let (options, name, at) = (self.options.clone(), name.to_owned(), env.clone());
        let done = on(&env, async move {
            let text = |error: Error| format!("{name}: {error}");
            let cache = Cache::new(16 << 10);
            let table = Table::open(&at, store, &cache, options).await.map_err(text)?;
            table.flush().await.map_err(text)?;
            table.compact().await.map_err(text)?;
            at.sleep(Duration::from_secs(1)).await;
            let (stats, names) = (table.stats(), disk.names());
            if names.len() > stats.files + 3 + stats.frozen + table.data_logs().len() {
                return Err(format!("{name}: {stats:?} has left {names:?}"));
            }
            Ok(())
        });
        let done = done.await.expect("no crash");
        self.world.sim.crash(host, CrashMode::Process);
        done
    }

    /// The fork was given up: the parent has everything. Then it is forked again, into the same
    /// directories or into empty ones.
    async fn check_parent(&self) -> Result<(), String> {
        let mut rng = self.rng(4);
        let all = [Range::all()];
        let again = rng.one_in(2);
        let remove = async || {
            for number in 0..self.shows.len() {
                self.remove(&child_dir(number)).await;
            }
        };
        if !again && rng.one_in(2) {
            remove().await;
        }
        self.live(PARENT, &all, 2).await?;
        if !again {
            remove().await;
        }
        self.live(PARENT, &all, 3).await?;
        let (host, env) = self.world.boot();
        let (store, options) = (self.dir(PARENT).store(&env), self.options.clone());
        let (children, at) = (self.children(&env, 6), env.clone());
        let forked = on(&env, async move {
            let options = Options { owner: 4, ..options };
            let table = Table::open(&at, store, &Cache::new(16 << 10), options).await?;
            let mut fork = table.fork(children)?;
            fork.link().await?;
            fork.cut().await
        });
        forked.await.expect("no crash").map_err(|error| error.to_string())?;
        self.world.sim.crash(host, CrashMode::Process);
        self.check_children().await
    }
}

/// A fork whose owner crashes at a step, if any. Answers the steps before the fork, and all.
fn crash(seed: u64, options: &Options, stop_at: Option<u64>, lose_one_in: u64) -> (u64, u64, bool) {
    let forks = Forks::new(seed, options);
    let (began, forked) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
    let done = forks.world.run(async {
        forks.set_faults(lose_one_in);
        forks.world.disk.stop_at(stop_at);
        let (host, life) = forks.start(&began, &forked, (true, lose_one_in == 0));
        let hangs = Box::pin(forks.world.disk.stopped());
        if let Either::Left((Ok(Err(what)), _)) = select(Box::pin(life), hangs).await {
            return Err(what);
        }
        let points = forks.world.disk.points();
        forks.world.disk.stop_at(None);
        forks.world.sim.crash(host, CrashMode::Process);
        forks.set_faults(0);
        if forks.rng(2).one_in(2) {
            // What is late comes before the next owner, or beside it.
            forks.world.sim.sleep(Duration::from_millis(300)).await;
        }
        match forked.get() {
            true => forks.check_children().await?,
            false => forks.check_parent().await?,
        }
        Ok(points)
    });
    let points =
        done.unwrap_or_else(|what| panic!("seed {seed}, crash at step {stop_at:?}: {what}"));
    (began.get(), points, forked.get())
}

fn crashes(seed: u64, options: &Options, lose_one_in: u64) {
    let (began, points, forked) = crash(seed, options, None, lose_one_in);
    assert!(forked || lose_one_in > 0, "seed {seed}: no fork");
    let is_quiet = lose_one_in == 0;
    assert!(!is_quiet || points > began + 40, "seed {seed}: {began} to {points}");
    let (mut children, mut parents) = (0, 0);
    for point in (began..=points).step_by(if lose_one_in > 0 { 3 } else { 1 }) {
        match crash(seed, options, Some(point), lose_one_in).2 {
            true => children += 1,
            false => parents += 1,
        }
    }
    println!("seed {seed}: {children} times children, {parents} times the parent");
    assert!(!is_quiet || parents > 10 && children > 10, "seed {seed}: few steps");
}

#[test]
fn nothing_acknowledged_is_lost_wherever_a_fork_crashes() {
    crashes(1, &small(), 0);
    crashes(2, &small_with_data(), 0);
    crashes(3, &small_with_data(), 0);
}

#[test]
fn nothing_acknowledged_is_lost_when_answers_of_a_fork_are_lost() {
    for seed in 10..16 {
        crashes(seed, &small_with_data(), 30);
    }
    crashes(16, &small(), 30);
}

/// A longer search, of `FORK_CRASH_SEEDS=a..b`.
#[test]
fn nothing_is_lost_in_the_seeds_asked_for() {
    for seed in seeds("FORK_CRASH_SEEDS", 0..0) {
        let options = if seed % 3 == 0 { small() } else { small_with_data() };
        crashes(seed, &options, if seed % 2 == 0 { 0 } else { 30 });
        (1..).step_by(3).take_while(|&steps| zombie(seed, &options, steps)).count();
    }
}

/// An owner sleeps in its fork, the fork is given up, another owner has the parent, and the first goes on.
fn zombie(seed: u64, options: &Options, steps: u64) -> bool {
    let forks = Forks::new(seed, options);
    let (began, forked) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
    let done = forks.world.run(async {
        let sim = &forks.world.sim;
        let (host, _life) = forks.start(&began, &forked, (false, true));
        while began.get() == 0 || forks.world.disk.points() < began.get() + steps {
            if sim.elapsed() > Duration::from_secs(5) {
                return Ok(false); // All was done before.
            }
            sim.sleep(Duration::from_micros(20)).await;
        }
        if forked.get() {
            forks.check_children().await?;
            return Ok(true);
        }
        sim.pause(host, Duration::from_millis(100));
        // Given up: what it makes is not used, whatever it answers.
        let all = [Range::all()];
        forks.live(PARENT, &all, 2).await?;
        sim.sleep(Duration::from_millis(200)).await;
        forks.live(PARENT, &all, 3).await?;
        forks.check_names(PARENT).await?;
        Ok(true)
    });
    done.unwrap_or_else(|what: String| panic!("seed {seed}, asleep at step {steps}: {what}"))
}

#[test]
fn owner_that_sleeps_in_a_fork_does_no_harm_behind_it() {
    for (seed, options) in [(20, small()), (21, small_with_data()), (22, small_with_data())] {
        let count = (1..).step_by(2).take_while(|&steps| zombie(seed, &options, steps)).count();
        assert!(count > 30, "seed {seed}: {count} steps");
    }
}

/// A fork that does not end its instance, and seals nothing, is found out.
#[test]
#[should_panic(expected = "are acknowledged")]
fn unsealed_parent_is_found() {
    for seed in 30..40 {
        let options = Options { bugs: Bugs::of(Planted::UnsealedParent), ..small_with_data() };
        crash(seed, &options, None, 0);
    }
}
