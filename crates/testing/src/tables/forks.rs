//! Forks: random operations on a table, and on all that comes of it, against maps.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::rc::Rc;

use runtime::Rng;
use table::{Batch, Child, Error, Range, Snapshot, Store, Table};

use super::data;
use super::oracle::State;
use super::suite::{batch, check_seeks, has, key, once_flushed, range, within};

/// Where tables are.
pub trait Ground {
    /// A directory, made if it is missing.
    fn dir(&self, name: &str) -> Rc<dyn Store>;

    /// Opens the table there, which has to be there but for the first one.
    fn open(&self, name: &str, owner: u64) -> impl Future<Output = Result<Table, Error>>;
}

/// Tables at most: beyond, one of them is removed.
const MEMBERS_MAX: usize = 5;
/// Names of a round of links from which on another one follows.
const NEW_MANY: usize = 4;

struct Member {
    dir: String,
    owner: u64,
    table: Table,
    model: State,
    snapshots: Vec<(State, Snapshot)>,
}

struct Family<'a, G> {
    ground: &'a G,
    members: Vec<Member>,
    /// Keys that were ever put: each table is asked for all.
    keys: BTreeSet<Vec<u8>>,
    /// Directories of parents and of forks that were given up, which may go at any time.
    trash: Vec<String>,
    dirs: u32,
    /// Forks that were kept.
    forks: u32,
}

/// Runs `steps` random operations drawn from `rng` on a table and on what forks make of it, and compares
/// all that these show with maps. Ends with what differs, else with the number of forks.
pub async fn forks(ground: &impl Ground, rng: &mut Rng, steps: u32) -> Result<u32, String> {
    let (members, keys, trash) = Default::default();
    let mut family = Family { ground, members, keys, trash, dirs: 1, forks: 0 };
    family.join("t0".to_owned(), 1, State::new()).await?;
    for step in 0..steps {
        let done = family.step(rng).await;
        done.map_err(|what| format!("step {step}: {what}"))?;
    }
    while let Some(dir) = family.trash.pop() {
        remove(&*ground.dir(&dir)).await?;
    }
    for member in &family.members {
        family.check_all(member).await?;
        member.table.flush().await.map_err(text)?;
        family.check_all(member).await?;
        member.table.compact().await.map_err(text)?;
        family.check_all(member).await?;
    }
    Ok(family.forks)
}

fn text(error: Error) -> String {
    error.to_string()
}

/// Removes all names of a directory.
async fn remove(store: &dyn Store) -> Result<(), String> {
    loop {
        let page = store.list("").await.map_err(|fault| fault.message)?;
        if page.names.is_empty() {
            return Ok(());
        }
        for name in page.names {
            store.remove(&name).await.map_err(|fault| fault.message)?;
        }
    }
}

/// What each of some children shows: ranges between a few keys go to one, to all, or to none.
fn shows(count: usize, rng: &mut Rng) -> Vec<Vec<Range>> {
    let cut = |rng: &mut Rng| {
        let mut at = if rng.one_in(4) { data::key(rng) } else { key(rng) };
        match rng.below(4) {
            0 => at.push(0),
            1 => at.truncate(1 + rng.below(4) as usize),
            _ => {}
        }
        (at, rng.one_in(2))
    };
    loop {
        let cuts: BTreeSet<_> = (0..rng.between(1, 7)).map(|_| cut(rng)).collect();
        let mut children: Vec<Vec<Range>> = vec![Vec::new(); count];
        let mut lower = Bound::Unbounded;
        let ends = cuts.into_iter().map(|(at, left)| match left {
            true => (Bound::Included(at.clone()), Bound::Excluded(at)),
            false => (Bound::Excluded(at.clone()), Bound::Included(at)),
        });
        for (upper, next) in ends.chain([(Bound::Unbounded, Bound::Unbounded)]) {
            let range = Range { lower, upper, reverse: false };
            lower = next;
            match rng.below(16) {
                0 => {}
                1 => children.iter_mut().for_each(|child| child.push(range.clone())),
                _ => children[rng.below(count as u64) as usize].push(range),
            }
        }
        // Between two ends of one key there may be none.
        let has_some = |range: &Range| match &range.lower {
            Bound::Unbounded => true,
            Bound::Included(low) => has(range, low),
            Bound::Excluded(low) => has(range, &[low, &[0][..]].concat()),
        };
        if children.iter().all(|child| child.iter().any(has_some)) {
            return children;
        }
    }
}

impl<G: Ground> Family<'_, G> {
    /// Opens a table that has the entries of `model`.
    async fn join(&mut self, dir: String, owner: u64, model: State) -> Result<(), String> {
        let table = self.ground.open(&dir, owner).await.map_err(text)?;
        let member = Member { dir, owner, table, model, snapshots: Vec::new() };
        self.check_all(&member).await?;
        self.members.push(member);
        Ok(())
    }

    async fn step(&mut self, rng: &mut Rng) -> Result<(), String> {
        let index = rng.below(self.members.len() as u64) as usize;
        match rng.below(100) {
            0..46 => {
                let batch = batch(rng, self.members[index].table.takes_data());
                self.write(index, batch).await
            }
            46..50 => self.delete_some(index, rng).await,
            50..76 => self.read(index, rng).await,
            76..79 => {
                let member = &mut self.members[index];
                member.snapshots.push((member.model.clone(), member.table.snapshot()));
                if member.snapshots.len() > 2 {
                    member.snapshots.remove(0);
                }
                Ok(())
            }
            79 => match data::maintain(&self.members[index].table, rng).await? {
                Some(entry) => self.write(index, data::moved(entry)).await,
                None => Ok(()),
            },
            80..84 => self.members[index].table.flush().await.map_err(text),
            84 => self.members[index].table.end_log().await.map_err(text),
            85..88 => self.members[index].table.compact().await.map_err(text),
            88..91 => self.reopen(index, rng.one_in(2)).await,
            91..94 => match self.trash.is_empty() {
                true => Ok(()),
                false => {
                    let dir = rng.below(self.trash.len() as u64) as usize;
                    let dir = self.trash.swap_remove(dir);
                    remove(&*self.ground.dir(&dir)).await?;
                    self.check_members().await
                }
            },
            _ => self.fork(index, rng).await,
        }
    }

    async fn write(&mut self, index: usize, batch: Batch) -> Result<(), String> {
        let member = &mut self.members[index];
        once_flushed(&member.table, async |table| table.write(&batch).await).await?;
        for (key, value) in batch.changes() {
            match value {
                Some(value) => member.model.insert(key.to_vec(), value.to_vec()),
                None => member.model.remove(key),
            };
            self.keys.insert(key.to_vec());
        }
        Ok(())
    }

    /// Deletes most keys of a range.
    async fn delete_some(&mut self, index: usize, rng: &mut Rng) -> Result<(), String> {
        let range = range(rng);
        let mut batch = Batch::new();
        for (key, _) in within(&self.members[index].model, &range) {
            if !rng.one_in(8) {
                batch.delete(&key);
            }
        }
        if batch.is_empty() { Ok(()) } else { self.write(index, batch).await }
    }

    async fn read(&self, index: usize, rng: &mut Rng) -> Result<(), String> {
        let member = &self.members[index];
        let present = (&member.model, member.table.snapshot());
        let then = member.snapshots.last().map(|(model, snapshot)| (model, snapshot.clone()));
        let (model, snapshot) = match then {
            Some(then) if rng.one_in(3) => then,
            _ => present,
        };
        let key = key(rng);
        let value = snapshot.get(&key).await.map_err(text)?;
        if value.as_ref() != model.get(&key) {
            return Err(format!("{}: {key:?} has {value:?}", member.dir));
        }
        let range = range(rng);
        let all = within(model, &range);
        let mut scan = snapshot.scan(range.clone());
        if rng.one_in(2) {
            let checked = check_seeks(all, range, scan, rng).await;
            return checked.map_err(|what| format!("{}: {what}", member.dir));
        }
        let limit = if rng.one_in(3) { rng.below(20) as usize } else { usize::MAX };
        let entries = scan.take(limit).await.map_err(text)?;
        compare(&entries, &all[..all.len().min(limit)])
            .map_err(|what| format!("{}: {range:?}: {what}", member.dir))
    }

    /// Opens a table again, after it was closed or not.
    async fn reopen(&mut self, index: usize, close: bool) -> Result<(), String> {
        let member = &mut self.members[index];
        member.snapshots.clear(); // They are the old owner's, whose files go.
        member.owner += 1;
        if close {
            once_flushed(&member.table, async |table| table.clone().close().await).await?;
        }
        let table = self.ground.open(&member.dir, member.owner).await.map_err(text)?;
        let old = std::mem::replace(&mut member.table, table);
        is_over(&old).await?;
        self.check_all(&self.members[index]).await
    }

    /// Forks a table, or begins to and does not.
    async fn fork(&mut self, index: usize, rng: &mut Rng) -> Result<(), String> {
        let shows = shows(rng.between(2, 3) as usize, rng);
        let dirs: Vec<String> = shows.iter().map(|_| self.new_dir()).collect();
        let owner = rng.between(1, 5);
        let children = dirs.iter().zip(&shows).map(|(dir, shows)| {
            let (store, shows) = (self.ground.dir(dir), shows.clone());
            Child { store, owner, shows }
        });
        let mut fork = self.members[index].table.fork(children.collect()).map_err(text)?;
        let mut rounds = rng.below(3);
        while rounds > 0 {
            rounds -= 1;
            if fork.link().await.map_err(text)? > NEW_MANY {
                rounds = rounds.max(1);
            }
            for _ in 0..rng.below(4) {
                let batch = batch(rng, self.members[index].table.takes_data());
                self.write(index, batch).await?;
            }
            match rng.below(6) {
                0 => self.members[index].table.flush().await.map_err(text)?,
                1 => self.members[index].table.compact().await.map_err(text)?,
                _ => {}
            }
        }
        if rng.one_in(4) {
            drop(fork);
            self.trash.extend(dirs);
            return self.check_all(&self.members[index]).await;
        }
        fork.cut().await.map_err(text)?;
        is_over(&self.members[index].table).await?;
        // What is open shows what was there.
        self.check_all(&self.members[index]).await?;
        if rng.one_in(4) {
            self.trash.extend(dirs);
            return self.reopen(index, false).await;
        }
        self.forks += 1;
        let parent = self.members.swap_remove(index);
        self.trash.push(parent.dir.clone());
        for (dir, shows) in dirs.into_iter().zip(shows) {
            let shown = |key: &[u8]| shows.iter().any(|range| has(range, key));
            let model = parent.model.iter().filter(|(key, _)| shown(key));
            let model = model.map(|(key, value)| (key.clone(), value.clone())).collect();
            if owner > 1
                && !matches!(self.ground.open(&dir, owner - 1).await, Err(Error::Fenced { .. }))
            {
                return Err(format!("{dir} is opened by an owner before its first"));
            }
            self.join(dir, owner, model).await?;
        }
        while self.members.len() > MEMBERS_MAX {
            let gone = rng.below(self.members.len() as u64) as usize;
            let gone = self.members.swap_remove(gone);
            self.trash.push(gone.dir);
        }
        self.check_members().await
    }

    fn new_dir(&mut self) -> String {
        self.dirs += 1;
        format!("t{}", self.dirs)
    }

    async fn check_members(&self) -> Result<(), String> {
        for member in &self.members {
            self.check_all(member).await?;
        }
        Ok(())
    }

    async fn check_all(&self, member: &Member) -> Result<(), String> {
        let Member { dir, table, model, .. } = member;
        for range in [Range::all(), Range::all().reversed()] {
            let want = within(model, &range);
            let entries = table.scan(range).take(usize::MAX).await.map_err(text)?;
            compare(&entries, &want).map_err(|what| format!("{dir}: {what}"))?;
            for (key, value) in &entries {
                if key.starts_with(data::DATA) {
                    let checked = data::check(table, key, value).await;
                    checked.map_err(|failed| format!("{dir}: {}", String::from(failed)))?;
                }
            }
        }
        for key in &self.keys {
            let got = table.get(key).await.map_err(text)?;
            let alike = match (&got, model.get(key)) {
                (Some(got), Some(want)) => data::same((key, got), (key, want)),
                (got, want) => got.as_ref() == want,
            };
            if !alike {
                return Err(format!("{dir}: {key:?} has {got:?}"));
            }
        }
        Ok(())
    }
}

/// An instance that is over takes no batch.
async fn is_over(table: &Table) -> Result<(), String> {
    match table.put(b"row/late", b"").await {
        Err(Error::Fenced { .. } | Error::Stopped { .. } | Error::Busy { .. }) => Ok(()),
        late => Err(format!("an owner that is over got {late:?}")),
    }
}

fn compare(have: &[(Vec<u8>, Vec<u8>)], want: &[(Vec<u8>, Vec<u8>)]) -> Result<(), String> {
    let differs = have.iter().zip(want).position(|(a, b)| !data::same((&a.0, &a.1), (&b.0, &b.1)));
    match differs {
        None if have.len() == want.len() => Ok(()),
        None => Err(format!("there are {} entries instead of {}", have.len(), want.len())),
        Some(at) => Err(format!("entry {at} is {:?} instead of {:?}", have[at], want[at])),
    }
}
