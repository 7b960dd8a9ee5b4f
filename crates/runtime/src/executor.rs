//! The single-threaded executor (C10): tasks by priority class, timers, the slice watch (C11).
//!
//! One executor runs on each core of a real process; one runs a whole simulated cluster. The driver
//! has the clock and does the waiting.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::env::{Env, EnvInner};
use crate::limits::{POLLS_PER_TURN, SLICE_MAX};
use crate::remote::{Flag, Remote};
use crate::task::{JoinHandle, TaskRef, join_pair};
use crate::work::Work;

/// Priority of a task (C11). Within a class tasks run in the order they became ready; while higher
/// classes are busy, each lower one still gets one poll after 16 of theirs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Class {
    /// Elections, leases, heartbeats: small work that others wait for.
    Control,
    /// A user waits for it.
    Foreground,
    /// Repair, scrub, checkpoints, collection.
    Background,
}

const CLASSES: usize = 3;
/// Each lower class gets one poll after this many of higher ones.
const CLASS_SHARE: u32 = 16;

/// Nothing is ready, no timer is set and no I/O is under way: the program waits for ever.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stalled;

impl fmt::Display for Stalled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("every task waits and no event can wake one")
    }
}

impl std::error::Error for Stalled {}

/// Interface of an executor to its driver.
pub(crate) trait Driver {
    /// Nanoseconds of the driver's clock.
    fn now(&self) -> u64;
    /// Completes what has finished, without waiting.
    fn turn(&self);
    /// Waits for a completion, a remote wake or `until`. False when nothing can ever come.
    fn park(&self, until: Option<u64>) -> bool;
    /// Picks among `ready` tasks: an index below `ready`. The simulator draws it.
    fn pick(&self, ready: usize) -> usize;
    /// Called before each poll; the simulator hashes it into the trace. Returns false to hold the
    /// task back (a paused node).
    fn before_poll(&self, node: u32, slot: u32) -> bool;
    /// Called when a poll outran its slice (C11).
    fn overrun(&self, name: &'static str, took: Duration);
    /// True when a poll's length is to be measured.
    fn measures_slices(&self) -> bool;
}

struct Slot {
    generation: u32,
    task: Option<TaskSlot>,
}

struct TaskSlot {
    shared: Arc<TaskRef>,
    /// Absent while it is being polled.
    future: Option<Pin<Box<dyn Future<Output = ()>>>>,
    env: Option<Rc<EnvInner>>,
    node: u32,
    class: Class,
    name: &'static str,
    aborted: bool,
}

#[derive(Default)]
struct Timers {
    queue: BTreeMap<(u64, u64), Waker>,
    next_seq: u64,
}

/// The state of an executor. Lives on one thread.
pub(crate) struct Core {
    slots: RefCell<Vec<Slot>>,
    vacant: RefCell<Vec<u32>>,
    ready: RefCell<[VecDeque<Arc<TaskRef>>; CLASSES]>,
    /// Tasks of paused nodes, by node.
    held: RefCell<BTreeMap<u32, Vec<Arc<TaskRef>>>>,
    timers: RefCell<Timers>,
    pub(crate) remote: Arc<Remote<Arc<TaskRef>>>,
    driver: RefCell<Option<Rc<dyn Driver>>>,
    /// Polls of higher classes since a class had its last, while it was ready.
    skipped: Cell<[u32; CLASSES]>,
    this: Weak<Core>,
}

thread_local! {
    static CURRENT: RefCell<Option<Rc<Core>>> = const { RefCell::new(None) };
}

pub(crate) fn with_current<R>(f: impl FnOnce(&Core) -> R) -> Option<R> {
    CURRENT.try_with(|current| current.try_borrow().ok()?.as_deref().map(f)).ok().flatten()
}

/// Makes `core` the current executor of this thread until dropped.
struct Entered(Option<Rc<Core>>);

impl Entered {
    fn new(core: Rc<Core>) -> Entered {
        Entered(CURRENT.with(|current| current.borrow_mut().replace(core)))
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let left = CURRENT.with(|current| current.replace(self.0.take()));
        drop(left);
    }
}

impl Core {
    pub(crate) fn new(notify: Box<dyn Fn() + Send + Sync>) -> Rc<Core> {
        Rc::new_cyclic(|this| Core {
            slots: RefCell::default(),
            vacant: RefCell::default(),
            ready: RefCell::default(),
            held: RefCell::default(),
            timers: RefCell::default(),
            remote: Arc::new(Remote::new(notify)),
            driver: RefCell::new(None),
            skipped: Cell::default(),
            this: this.clone(),
        })
    }

    pub(crate) fn set_driver(&self, driver: Rc<dyn Driver>) {
        *self.driver.borrow_mut() = Some(driver);
    }

    fn driver(&self) -> Rc<dyn Driver> {
        self.driver.borrow().clone().expect("set when the executor was made")
    }

    pub(crate) fn now(&self) -> u64 {
        self.driver.borrow().as_ref().expect("set when the executor was made").now()
    }

    pub(crate) fn spawn<T: 'static>(
        &self,
        env: Option<&Env>,
        class: Class,
        name: &'static str,
        future: impl Future<Output = T> + 'static,
    ) -> JoinHandle<T> {
        let (join, completer) = join_pair();
        let task = self.insert(env, class, name, Box::pin(Work::new(future, completer)));
        if env.is_some_and(Env::is_closed) {
            // A destructor of a node that has crashed: its tasks must not run.
            self.abort(&task);
        } else {
            self.make_ready(task.clone());
        }
        JoinHandle { join, task, core: self.this.clone() }
    }

    fn insert(
        &self,
        env: Option<&Env>,
        class: Class,
        name: &'static str,
        future: Pin<Box<dyn Future<Output = ()>>>,
    ) -> Arc<TaskRef> {
        let slots = &mut *self.slots.borrow_mut();
        let slot = self.vacant.borrow_mut().pop().unwrap_or_else(|| {
            slots.push(Slot { generation: 0, task: None });
            u32::try_from(slots.len() - 1).expect("fewer than 2^32 tasks")
        });
        let place = &mut slots[slot as usize];
        place.generation = place.generation.wrapping_add(1);
        let shared = Arc::new(TaskRef {
            slot,
            generation: place.generation,
            queued: Flag::set_from_the_start(),
            remote: self.remote.clone(),
        });
        place.task = Some(TaskSlot {
            shared: shared.clone(),
            future: Some(future),
            env: env.map(|env| env.0.clone()),
            node: env.map_or(0, |env| env.node()),
            class,
            name,
            aborted: false,
        });
        shared
    }

    /// Queues a task whose `queued` flag the caller has set.
    pub(crate) fn make_ready(&self, task: Arc<TaskRef>) {
        let slots = self.slots.borrow();
        let slot = &slots[task.slot as usize];
        let class = match &slot.task {
            Some(live) if slot.generation == task.generation => live.class,
            _ => return, // The task has ended.
        };
        self.ready.borrow_mut()[class as usize].push_back(task);
    }

    pub(crate) fn abort(&self, task: &Arc<TaskRef>) {
        let (future, env) = {
            let slots = &mut *self.slots.borrow_mut();
            let slot = &mut slots[task.slot as usize];
            match &mut slot.task {
                Some(live) if slot.generation == task.generation => {
                    live.aborted = true;
                    (live.future.take(), live.env.clone().map(Env))
                }
                _ => return,
            }
        };
        if future.is_some() {
            self.release(task.slot);
        } // Otherwise it is being polled: it goes when its poll returns.
        let _node = env.as_ref().map(Env::enter);
        drop(future);
    }

    fn release(&self, slot: u32) {
        let ended = self.slots.borrow_mut()[slot as usize].task.take();
        self.vacant.borrow_mut().push(slot);
        drop(ended);
    }

    /// Drops every task of `node`. Their destructors run with the node's [`Env`] closed, so what
    /// they spawn is dropped at once.
    pub(crate) fn kill_node(&self, node: u32) {
        self.abort_all(|task| task.node == node);
        self.held.borrow_mut().remove(&node);
    }

    fn abort_all(&self, of: impl Fn(&TaskSlot) -> bool) {
        loop {
            let found: Vec<_> = {
                let slots = self.slots.borrow();
                let live = slots.iter().filter_map(|slot| slot.task.as_ref());
                live.filter(|task| !task.aborted && of(task)).map(|t| t.shared.clone()).collect()
            };
            if found.is_empty() {
                return;
            }
            found.iter().for_each(|task| self.abort(task));
        }
    }

    /// Lets the tasks of a paused node run again.
    pub(crate) fn release_held(&self, node: u32) {
        let held = self.held.borrow_mut().remove(&node).unwrap_or_default();
        held.into_iter().for_each(|task| self.make_ready(task));
    }

    pub(crate) fn add_timer(&self, at: u64, waker: Waker) -> (u64, u64) {
        let timers = &mut *self.timers.borrow_mut();
        let key = (at, timers.next_seq);
        timers.next_seq += 1;
        timers.queue.insert(key, waker);
        key
    }

    /// Replaces the waker of a timer; false when it has fired.
    pub(crate) fn update_timer(&self, key: (u64, u64), waker: &Waker) -> bool {
        let replaced = match self.timers.borrow_mut().queue.get_mut(&key) {
            Some(kept) if kept.will_wake(waker) => return true,
            Some(kept) => Some(std::mem::replace(kept, waker.clone())),
            None => None,
        };
        // The old waker goes with no borrow held: it may be foreign code.
        replaced.is_some()
    }

    pub(crate) fn remove_timer(&self, key: (u64, u64)) {
        let removed = self.timers.borrow_mut().queue.remove(&key);
        drop(removed);
    }

    fn fire_timers(&self, now: u64) {
        loop {
            let waker = {
                let queue = &mut self.timers.borrow_mut().queue;
                match queue.first_entry() {
                    Some(first) if first.key().0 <= now => first.remove(),
                    _ => return,
                }
            };
            waker.wake();
        }
    }

    /// Runs until `root` ends. `root` belongs to `env`'s node.
    pub(crate) fn run<T>(
        self: &Rc<Self>,
        env: Option<&Env>,
        root: impl Future<Output = T>,
    ) -> Result<T, Stalled> {
        let _entered = Entered::new(self.clone());
        let driver = self.driver();
        let mut root = pin!(root);
        let root_task = self.insert(env, Class::Foreground, "root", Box::pin(async {}));
        let root_slot = root_task.slot;
        // The root future is not 'static, so it stays on this stack; its slot only has a place
        // in the queues. `future` absent marks it.
        if let Some(task) = &mut self.slots.borrow_mut()[root_slot as usize].task {
            task.future = None;
        }
        let root_waker = Waker::from(root_task.clone());
        self.make_ready(root_task.clone());
        let mut slices = Slices::start(&*driver);
        let result = 'run: loop {
            for _ in 0..POLLS_PER_TURN {
                let Some(task) = self.next_ready(&*driver) else { break };
                let name = if Arc::ptr_eq(&task, &root_task) {
                    task.queued.clear();
                    let _node = env.map(Env::enter);
                    driver.before_poll(env.map_or(0, Env::node), root_slot);
                    if let Poll::Ready(value) =
                        root.as_mut().poll(&mut Context::from_waker(&root_waker))
                    {
                        break 'run Ok(value);
                    }
                    Some("root")
                } else {
                    self.poll_task(&task, &*driver)
                };
                slices.ended(&*driver, name);
            }
            self.collect_remote();
            // One of the two: each is a system call at most, which submits what was queued.
            if self.is_idle() {
                let until = self.timers.borrow().queue.first_key_value().map(|(key, _)| key.0);
                if !driver.park(until) {
                    break Err(Stalled);
                }
            } else {
                driver.turn();
            }
            self.collect_remote();
            let now = driver.now();
            self.fire_timers(now);
            slices.last = now;
        };
        self.release(root_slot);
        result
    }

    fn collect_remote(&self) {
        self.remote.collect().into_iter().for_each(|task| self.make_ready(task));
    }

    fn is_idle(&self) -> bool {
        self.ready.borrow().iter().all(VecDeque::is_empty) && !self.remote.has_any()
    }

    fn next_ready(&self, driver: &dyn Driver) -> Option<Arc<TaskRef>> {
        let ready = &mut *self.ready.borrow_mut();
        let highest = (0..CLASSES).find(|&class| !ready[class].is_empty())?;
        let mut skipped = self.skipped.get();
        // The lowest that has waited its share goes first: so none starves behind the middle.
        let starved = (highest + 1..CLASSES)
            .rfind(|&class| !ready[class].is_empty() && skipped[class] >= CLASS_SHARE);
        let class = starved.unwrap_or(highest);
        skipped[class] = 0;
        for lower in class + 1..CLASSES {
            skipped[lower] += u32::from(!ready[lower].is_empty());
        }
        self.skipped.set(skipped);
        let queue = &mut ready[class];
        match driver.pick(queue.len()) {
            0 => queue.pop_front(),
            index => queue.swap_remove_back(index),
        }
    }

    /// Polls a task; its name, unless it had ended or is held back.
    fn poll_task(&self, task: &Arc<TaskRef>, driver: &dyn Driver) -> Option<&'static str> {
        let slot = task.slot as usize;
        let (mut future, env, name) = {
            let slots = &mut *self.slots.borrow_mut();
            let place = &mut slots[slot];
            let live = place.task.as_mut().filter(|_| place.generation == task.generation)?;
            if !driver.before_poll(live.node, task.slot) {
                // Its `queued` flag stays set, so that no wake queues it a second time.
                self.held.borrow_mut().entry(live.node).or_default().push(task.clone());
                return None;
            }
            (live.future.take()?, live.env.clone().map(Env), live.name)
        };
        // Before the poll: a wake during it queues the task again.
        task.queued.clear();
        let waker = Waker::from(task.clone());
        // Its destructors, too, run in the task's Env.
        let _node = env.as_ref().map(Env::enter);
        let poll = future.as_mut().poll(&mut Context::from_waker(&waker));
        {
            let slots = &mut *self.slots.borrow_mut();
            let live = slots[slot].task.as_mut().expect("only its own poll releases a polled task");
            if poll.is_pending() && !live.aborted {
                live.future = Some(future);
                return Some(name);
            }
        }
        self.release(task.slot);
        drop(future);
        Some(name)
    }

    /// Drops all tasks. For the end of an executor: breaks cycles between tasks and itself.
    pub(crate) fn clear(&self) {
        self.abort_all(|_| true);
        self.held.borrow_mut().clear();
        let timers = std::mem::take(&mut self.timers.borrow_mut().queue);
        drop(timers);
    }
}

/// Measures polls (C11). The end of one is the start of the next, so a poll costs one reading of
/// the clock.
struct Slices {
    on: bool,
    last: u64,
}

impl Slices {
    fn start(driver: &dyn Driver) -> Slices {
        Slices { on: driver.measures_slices(), last: driver.now() }
    }

    fn ended(&mut self, driver: &dyn Driver, name: Option<&'static str>) {
        let (true, Some(name)) = (self.on, name) else { return };
        let now = driver.now();
        let took = Duration::from_nanos(now.saturating_sub(self.last));
        self.last = now;
        if took > SLICE_MAX {
            driver.overrun(name, took);
            self.last = driver.now();
        }
    }
}
