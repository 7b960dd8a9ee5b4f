//! [`MemStore`]: the contract of [`Store`] in memory, with everything that it leaves open.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::future::pending;
use std::rc::Rc;

use base::{Fault, Kind};
use runtime::sim::Sim;
use runtime::sync::{Notify, oneshot};
use runtime::{Duration, Env, Rng};
use table::{Answer, Names, Pending, Source, Store, Writer};
use wire::data::Purpose;

/// Faults, in effect until changed. Odds are "one in n", 0 is never.
#[derive(Clone, Debug)]
pub struct StoreFaults {
    /// Time until a call takes effect, and as long again until it is answered; least and most.
    pub latency: (Duration, Duration),
    /// Calls refused without a cause: nothing is changed.
    pub refuse_one_in: u64,
    /// Changes of names without an answer, one in so many; half of them are made, later.
    pub lose_one_in: u64,
    /// Delay of those, at most.
    pub late: Duration,
    /// No room: nothing can be made or appended.
    pub full: bool,
    /// There is no room for appends of this purpose, and of those with less right to the reserve.
    pub full_for: Option<Purpose>,
    /// Appends to files of such names wait for ever, and nothing of them arrives.
    pub stuck: Option<&'static str>,
    /// No room for new chunks: a new file gets its name, and its first append is refused. Files
    /// that are open take appends.
    pub full_for_new: bool,
    /// A broken promise, for tests of the tests: a seal does not shut the writer out.
    pub leaky_seal: bool,
}

impl Default for StoreFaults {
    fn default() -> StoreFaults {
        StoreFaults {
            latency: (Duration::from_micros(10), Duration::from_micros(300)),
            refuse_one_in: 0,
            lose_one_in: 0,
            late: Duration::from_millis(200),
            full: false,
            full_for: None,
            stuck: None,
            full_for_new: false,
            leaky_seal: false,
        }
    }
}

/// A medium of a size, for the files of all directories of a world.
#[derive(Clone, Copy, Debug)]
pub struct Medium {
    /// Its bytes.
    pub bytes: u64,
    /// Of these, what appends get by their [`Purpose`].
    pub reserve: u64,
    /// A file takes whole units of so many bytes.
    pub unit: u64,
    /// An append takes whole sectors of so many bytes.
    pub sector: u64,
    /// What a removed file had comes back so long after that.
    pub held: Duration,
}

#[derive(Default)]
struct Space {
    medium: Option<Medium>,
    taken: u64,
    /// Of removed files: when they come back, and their bytes.
    held: VecDeque<(Duration, u64)>,
}

impl Space {
    /// Takes room for a file that has `taken` bytes of it to have `len`; answers what it has then, or that
    /// there is none.
    fn take(&mut self, now: Duration, purpose: Purpose, taken: u64, len: u64) -> Option<u64> {
        let Some(medium) = self.medium else { return Some(taken) };
        while self.held.front().is_some_and(|(until, _)| *until <= now) {
            self.taken -= self.held.pop_front().expect("just seen").1;
        }
        let wanted = len.next_multiple_of(medium.unit).max(taken);
        let room = medium.bytes - purpose.leaves(medium.reserve);
        let more = wanted - taken;
        if more > 0 && self.taken + more > room {
            return None;
        }
        self.taken += more;
        Some(wanted)
    }

    fn give_back(&mut self, now: Duration, taken: u64) {
        if let Some(medium) = self.medium {
            self.held.push_back((now + medium.held, taken));
        }
    }
}

#[derive(Default)]
struct Content {
    /// Its number: of all files of the world, it alone has it.
    number: u64,
    bytes: Vec<u8>,
    /// Appends not acknowledged yet, with their numbers.
    inflight: VecDeque<(u64, Vec<u8>)>,
    next: u64,
    sealed: bool,
    /// Bytes of the medium that it has.
    taken: u64,
    /// Bytes of the sectors that its appends have.
    sectors: u64,
    /// Bytes of the last acknowledged append, which a replica may not show before the seal.
    last: usize,
    /// Nothing is shown before another append ends, or the seal.
    is_forgotten: bool,
    /// Names that it has beyond the first.
    links: u32,
    gone: bool,
}

struct Dir {
    gone: bool,
    names: BTreeMap<String, Rc<RefCell<Content>>>,
    rng: Rng,
    faults: StoreFaults,
}

/// A directory that outlives the instances that use it. Clones share it.
#[derive(Clone)]
pub struct MemDisk {
    sim: Sim,
    name: Rc<str>,
    dir: Rc<RefCell<Dir>>,
    /// Directories by their names; the first one counts the steps of all.
    dirs: Rc<RefCell<BTreeMap<String, MemDisk>>>,
    clock: Rc<RefCell<Clock>>,
    space: Rc<RefCell<Space>>,
    stopped: Rc<Notify>,
}

/// Points at which a crash can be distinguished from one a step later; numbers of files.
#[derive(Default)]
struct Clock {
    points: u64,
    /// Files made so far.
    files: u64,
    stop_at: Option<u64>,
}

impl MemDisk {
    /// An empty directory of a world.
    pub fn new(sim: &Sim) -> MemDisk {
        let rng = sim.with_rng(Rng::fork);
        let faults = StoreFaults::default();
        let dir = Dir { gone: false, names: BTreeMap::new(), rng, faults };
        MemDisk {
            sim: sim.clone(),
            name: "mem".into(),
            dir: Rc::new(RefCell::new(dir)),
            dirs: Rc::default(),
            clock: Rc::default(),
            space: Rc::default(),
            stopped: Rc::new(Notify::new()),
        }
    }

    /// Another directory, which files of this one can be linked into; made, with the faults of
    /// this one, when it is asked for first.
    pub fn beside(&self, name: &str) -> MemDisk {
        if let Some(known) = self.dirs.borrow().get(name) {
            return known.clone();
        }
        let rng = self.sim.with_rng(Rng::fork);
        let faults = self.dir.borrow().faults.clone();
        let dir = Dir { gone: false, names: BTreeMap::new(), rng, faults };
        let dir = Rc::new(RefCell::new(dir));
        let made = MemDisk { name: name.into(), dir, ..self.clone() };
        self.dirs.borrow_mut().insert(name.to_owned(), made.clone());
        made
    }

    /// Names of the directories in another one.
    pub fn dirs_in(&self, path: &str) -> Vec<String> {
        let dirs = self.dirs.borrow();
        let names = dirs.keys().filter_map(|name| name.strip_prefix(path)?.strip_prefix('/'));
        names.filter(|name| !name.contains('/')).map(str::to_owned).collect()
    }

    /// Removes another directory with its files. What was made of it makes and finds nothing any more.
    pub fn remove_dir(&self, name: &str) {
        let Some(removed) = self.dirs.borrow_mut().remove(name) else { return };
        let now = self.sim.elapsed();
        let dir = &mut *removed.dir.borrow_mut();
        dir.gone = true;
        for content in std::mem::take(&mut dir.names).into_values() {
            remove_name(&content, &self.space, now);
        }
    }

    /// The directory as one node reaches it.
    pub fn store(&self, env: &Env) -> Rc<dyn Store> {
        Rc::new(MemStore { disk: self.clone(), env: env.clone() })
    }

    /// Changes the faults.
    pub fn with_faults(&self, change: impl FnOnce(&mut StoreFaults)) {
        change(&mut self.dir.borrow_mut().faults);
    }

    /// Has the files of all directories that are made from now on share a medium.
    pub fn set_medium(&self, medium: Medium) {
        self.space.borrow_mut().medium = Some(medium);
    }

    /// Steps of calls so far: before and after each one's effect.
    pub fn points(&self) -> u64 {
        self.clock.borrow().points
    }

    /// Lets the call that reaches this step hang for ever; [`MemDisk::stopped`] reports it.
    pub fn stop_at(&self, point: Option<u64>) {
        self.clock.borrow_mut().stop_at = point;
    }

    /// Ends when a call hangs at the step set: time to crash its node.
    pub async fn stopped(&self) {
        self.stopped.notified().await;
    }

    /// Names in it.
    pub fn names(&self) -> Vec<String> {
        self.dir.borrow().names.keys().cloned().collect()
    }

    /// A file's content as it is durable.
    pub fn content(&self, name: &str) -> Option<Vec<u8>> {
        let dir = self.dir.borrow();
        dir.names.get(name).map(|content| content.borrow().bytes.clone())
    }

    /// All servers have restarted: of files that are not sealed they do not know what was acknowledged.
    pub fn forget_ends(&self) {
        for content in self.dir.borrow().names.values() {
            content.borrow_mut().is_forgotten = true;
        }
    }

    fn next_file(&self) -> u64 {
        let clock = &mut *self.clock.borrow_mut();
        clock.files += 1;
        clock.files
    }

    /// Puts a file there, or takes it away.
    pub fn set_content(&self, name: &str, bytes: Option<Vec<u8>>) {
        let names = &mut self.dir.borrow_mut().names;
        match bytes {
            Some(bytes) => {
                let number = self.next_file();
                let content = Content { number, bytes, sealed: true, ..Content::default() };
                names.insert(name.to_owned(), Rc::new(RefCell::new(content)));
            }
            None => {
                names.remove(name);
            }
        }
    }
}

/// A directory in memory, as one node reaches it.
pub struct MemStore {
    disk: MemDisk,
    env: Env,
}

fn fault(kind: Kind, name: &str) -> Fault {
    Fault::new(kind, format!("{name}: {kind:?}"))
}

impl Dir {
    fn latency(&mut self) -> Duration {
        let (low, high) = self.faults.latency;
        let between = self.rng.between(low.as_nanos() as u64, high.as_nanos() as u64);
        Duration::from_nanos(between)
    }

    fn find(&self, name: &str) -> Result<Rc<RefCell<Content>>, Fault> {
        self.names.get(name).cloned().ok_or_else(|| fault(Kind::NotFound, name))
    }
}

impl MemStore {
    /// One step of a call: time passes, and the node may be meant to crash here.
    async fn step(&self) {
        step(&self.disk, &self.env).await;
    }

    fn refused(&self, name: &str) -> Result<(), Fault> {
        let dir = &mut *self.disk.dir.borrow_mut();
        if dir.rng.one_in(dir.faults.refuse_one_in) {
            return Err(fault(Kind::Retry, name));
        }
        Ok(())
    }

    /// Makes a change of names, which a crash of the node does not take back.
    async fn change(
        &self,
        name: &str,
        change: impl FnOnce(&mut Dir) -> Result<(), Fault> + 'static,
    ) -> Result<(), Fault> {
        self.refused(name)?;
        let (lost, made, late, latency) = {
            let dir = &mut *self.disk.dir.borrow_mut();
            let late = Duration::from_nanos(dir.rng.below(dir.faults.late.as_nanos() as u64));
            let lost = dir.rng.one_in(dir.faults.lose_one_in);
            (lost, dir.rng.one_in(2), late, dir.latency())
        };
        let (answer, answered) = oneshot::channel();
        let disk = self.disk.clone();
        point(&self.disk).await;
        self.disk.sim.clone().spawn("change of names", async move {
            disk.sim.sleep(if lost { late } else { latency }).await;
            if !lost || made {
                let done = change(&mut disk.dir.borrow_mut());
                let _ = answer.send(done); // The node may be gone.
            }
        });
        if lost {
            self.step().await;
            return Err(fault(Kind::Unknown, name));
        }
        let done = answered.await.unwrap_or_else(|_| Err(fault(Kind::Unknown, name)));
        self.step().await;
        done
    }
}

/// A file has a name less.
fn remove_name(content: &RefCell<Content>, space: &RefCell<Space>, now: Duration) {
    let content = &mut *content.borrow_mut();
    content.gone = content.links == 0;
    if content.gone {
        space.borrow_mut().give_back(now, std::mem::take(&mut content.taken));
    }
    content.links = content.links.saturating_sub(1);
}

async fn step(disk: &MemDisk, env: &Env) {
    point(disk).await;
    let latency = disk.dir.borrow_mut().latency();
    env.sleep(latency).await;
}

async fn point(disk: &MemDisk) {
    let stop = {
        let clock = &mut *disk.clock.borrow_mut();
        clock.points += 1;
        clock.stop_at == Some(clock.points)
    };
    if stop {
        disk.stopped.notify_one();
        pending::<()>().await;
    }
}

impl Store for MemStore {
    fn name(&self) -> &str {
        &self.disk.name
    }

    fn create<'a>(&'a self, name: &'a str) -> Answer<'a, Box<dyn Writer>> {
        Box::pin(async move {
            if self.disk.dir.borrow().faults.full {
                return Err(fault(Kind::Full, name));
            }
            let number = self.disk.next_file();
            let content = Rc::new(RefCell::new(Content { number, ..Content::default() }));
            let (made, at) = (content.clone(), name.to_owned());
            let change = move |dir: &mut Dir| {
                if dir.gone {
                    return Err(fault(Kind::NotFound, &at));
                }
                if dir.names.contains_key(&at) {
                    return Err(fault(Kind::Exists, &at));
                }
                dir.names.insert(at, made);
                Ok(())
            };
            self.change(name, change).await?;
            if self.disk.dir.borrow().faults.full_for_new {
                return Err(fault(Kind::Full, name));
            }
            let (disk, env, name) = (self.disk.clone(), self.env.clone(), name.to_owned());
            let (purpose, full) = (Cell::new(Purpose::Recovery), Cell::new(false));
            Ok(Box::new(MemWriter { disk, env, name, content, purpose, full }) as Box<dyn Writer>)
        })
    }

    fn seal<'a>(&'a self, name: &'a str) -> Answer<'a, u64> {
        Box::pin(async move {
            self.refused(name)?;
            self.step().await;
            let len = {
                let dir = &mut *self.disk.dir.borrow_mut();
                let content = dir.find(name)?;
                let content = &mut *content.borrow_mut();
                if !content.sealed {
                    // Of what was under way a prefix has arrived.
                    let rest: Vec<u8> =
                        content.inflight.drain(..).flat_map(|(_, bytes)| bytes).collect();
                    let arrived = match dir.rng.below(3) {
                        0 => 0,
                        1 => rest.len(),
                        _ => dir.rng.below(rest.len() as u64 + 1) as usize,
                    };
                    content.bytes.extend_from_slice(&rest[..arrived]);
                    content.sealed = !dir.faults.leaky_seal;
                }
                content.bytes.len() as u64
            };
            self.step().await;
            Ok(len)
        })
    }

    fn open<'a>(&'a self, name: &'a str) -> Answer<'a, Rc<dyn Source>> {
        Box::pin(async move {
            self.refused(name)?;
            self.step().await;
            let content = self.disk.dir.borrow().find(name)?;
            let (disk, env, name) = (self.disk.clone(), self.env.clone(), name.to_owned());
            Ok(Rc::new(MemSource { disk, env, name, content }) as Rc<dyn Source>)
        })
    }

    fn list<'a>(&'a self, after: &'a str) -> Answer<'a, Names> {
        Box::pin(async move {
            self.refused(after)?;
            self.step().await;
            let page = {
                let dir = &mut *self.disk.dir.borrow_mut();
                // Small pages, so that listings have several.
                let size = 2 + dir.rng.below(8) as usize;
                let above = dir.names.keys().filter(|name| name.as_str() > after);
                let mut names: Vec<_> = above.take(size + 1).cloned().collect();
                let more = names.len() > size;
                names.truncate(size);
                Names { names, more }
            };
            self.step().await;
            Ok(page)
        })
    }

    fn publish<'a>(&'a self, from: &'a str, to: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            let (source, target) = (from.to_owned(), to.to_owned());
            let change = move |dir: &mut Dir| {
                dir.find(&source)?;
                if dir.names.contains_key(&target) {
                    return Err(fault(Kind::Exists, &target));
                }
                let content = dir.names.remove(&source).expect("just found");
                dir.names.insert(target, content);
                Ok(())
            };
            self.change(to, change).await
        })
    }

    fn remove<'a>(&'a self, name: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            let (at, space, sim) =
                (name.to_owned(), self.disk.space.clone(), self.disk.sim.clone());
            let change = move |dir: &mut Dir| {
                let content = dir.names.remove(&at).ok_or_else(|| fault(Kind::NotFound, &at))?;
                remove_name(&content, &space, sim.elapsed());
                Ok(())
            };
            self.change(name, change).await
        })
    }

    fn numbers<'a>(&'a self, names: &'a [String]) -> Answer<'a, Vec<Option<u64>>> {
        Box::pin(async move {
            self.refused(self.name())?;
            self.step().await;
            let number = |name: &String| {
                let dir = self.disk.dir.borrow();
                dir.names.get(name).map(|content| content.borrow().number)
            };
            Ok(names.iter().map(number).collect())
        })
    }

    fn link<'a>(&'a self, names: &'a [String], to: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            let target = self.disk.beside(to);
            // Two batches, so that one may be there and the other not.
            for names in names.chunks(names.len().div_ceil(2).max(1)) {
                let (names, target) = (names.to_vec(), target.clone());
                let change = move |dir: &mut Dir| {
                    let found: Result<Vec<_>, Fault> =
                        names.iter().map(|name| dir.find(name)).collect();
                    for (name, content) in names.iter().zip(found?) {
                        let taken = &mut target.dir.borrow_mut().names;
                        if !taken.contains_key(name) {
                            // A table links what it has sealed; files of bodies are linked as they are made.
                            let is_body =
                                ["body-", "kept-"].iter().any(|kind| name.starts_with(kind));
                            let may = content.borrow().sealed || is_body;
                            assert!(may, "{name} is linked and not sealed");
                            content.borrow_mut().links += 1;
                            taken.insert(name.clone(), content);
                        }
                    }
                    Ok(())
                };
                self.change(to, change).await?;
            }
            Ok(())
        })
    }
}

impl fmt::Debug for MemStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemStore({})", self.env.name())
    }
}

impl fmt::Debug for MemDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemDisk({:?})", self.names())
    }
}

struct MemWriter {
    disk: MemDisk,
    env: Env,
    name: String,
    content: Rc<RefCell<Content>>,
    purpose: Cell<Purpose>,
    /// An append has found no room: none behind it arrives either.
    full: Cell<bool>,
}

/// Takes over appends up to number `upto`, or says why not.
fn complete(content: &RefCell<Content>, upto: u64, name: &str) -> Result<u64, Fault> {
    let content = &mut *content.borrow_mut();
    if content.gone {
        return Err(fault(Kind::NotFound, name));
    }
    if content.sealed {
        return Err(fault(Kind::Fenced, name));
    }
    while content.inflight.front().is_some_and(|(number, _)| *number <= upto) {
        let (_, bytes) = content.inflight.pop_front().expect("just seen");
        content.bytes.extend_from_slice(&bytes);
        content.last = bytes.len();
        content.is_forgotten = false;
    }
    Ok(content.bytes.len() as u64)
}

impl MemWriter {
    /// Takes room for an append, if there is some.
    fn take(&self, bytes: u64) -> bool {
        let (now, content) = (self.disk.sim.elapsed(), &mut *self.content.borrow_mut());
        let space = &mut *self.disk.space.borrow_mut();
        let Some(medium) = space.medium.filter(|_| !content.gone) else { return true };
        let len = content.sectors + bytes.next_multiple_of(medium.sector);
        let Some(taken) = space.take(now, self.purpose.get(), content.taken, len) else {
            return false;
        };
        (content.taken, content.sectors) = (taken, len);
        true
    }
}

impl Writer for MemWriter {
    fn set_purpose(&self, purpose: Purpose) {
        self.purpose.set(purpose);
    }

    fn submit<'a>(&'a self, data: &'a [u8]) -> Answer<'a, Pending> {
        Box::pin(async move {
            let is_full = {
                let faults = &self.disk.dir.borrow().faults;
                faults.full || faults.full_for.is_some_and(|full| self.purpose.get() <= full)
            };
            if is_full || self.full.get() || !self.take(data.len() as u64) {
                self.full.set(true);
                // Known when the append has been there, as for real files.
                let (disk, env) = (self.disk.clone(), self.env.clone());
                let refusal = fault(Kind::Full, &self.name);
                return Ok(Box::pin(async move {
                    step(&disk, &env).await;
                    Err(refusal)
                }) as Pending);
            }
            let stuck = self.disk.dir.borrow().faults.stuck;
            if stuck.is_some_and(|prefix| self.name.starts_with(prefix)) {
                pending::<()>().await;
            }
            point(&self.disk).await;
            let number = {
                let content = &mut *self.content.borrow_mut();
                if content.sealed {
                    return Err(fault(Kind::Fenced, &self.name));
                }
                content.next += 1;
                let number = content.next;
                content.inflight.push_back((number, data.to_vec()));
                number
            };
            let (disk, env) = (self.disk.clone(), self.env.clone());
            let (name, content) = (self.name.clone(), self.content.clone());
            Ok(Box::pin(async move {
                step(&disk, &env).await;
                let end = complete(&content, number, &name)?;
                step(&disk, &env).await;
                Ok(end)
            }) as Pending)
        })
    }

    fn close(self: Box<Self>) -> Answer<'static, u64> {
        Box::pin(async move {
            step(&self.disk, &self.env).await;
            let len = complete(&self.content, u64::MAX, &self.name)?;
            let dir = &mut *self.disk.dir.borrow_mut();
            if dir.rng.one_in(dir.faults.refuse_one_in) {
                return Err(fault(Kind::Retry, &self.name)); // All is durable, and nothing sealed.
            }
            self.content.borrow_mut().sealed = true;
            Ok(len)
        })
    }
}

struct MemSource {
    disk: MemDisk,
    env: Env,
    name: String,
    content: Rc<RefCell<Content>>,
}

impl MemSource {
    async fn read(&self, offset: u64, len: usize, may_hide: bool) -> Result<Vec<u8>, Fault> {
        step(&self.disk, &self.env).await;
        let content = self.content.borrow();
        if content.gone {
            return Err(fault(Kind::NotFound, &self.name));
        }
        let may_hide = may_hide && !content.sealed;
        let hides = may_hide && self.disk.dir.borrow_mut().rng.one_in(2);
        let hidden = if hides { content.last } else { 0 };
        let hidden = if may_hide && content.is_forgotten { content.bytes.len() } else { hidden };
        let shown = content.bytes.len() - hidden;
        let start = shown.min(offset as usize);
        let end = shown.min(start + len);
        Ok(content.bytes[start..end].to_vec())
    }
}

impl Source for MemSource {
    fn read_at(&self, offset: u64, len: usize) -> Answer<'_, Vec<u8>> {
        Box::pin(self.read(offset, len, true))
    }

    fn read_acknowledged(&self, offset: u64, len: usize) -> Answer<'_, Vec<u8>> {
        Box::pin(self.read(offset, len, false))
    }
}
