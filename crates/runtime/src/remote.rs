//! State that crosses threads between wakers and an executor: few lines, checked by loom over all
//! interleavings and weak orders (`make test-long`).

#[cfg(craton_loom)]
use loom::sync::Mutex;
#[cfg(craton_loom)]
use loom::sync::atomic::{AtomicBool, Ordering};
#[cfg(not(craton_loom))]
use std::sync::Mutex;
#[cfg(not(craton_loom))]
use std::sync::atomic::{AtomicBool, Ordering};

/// True when a task is in a queue, or is being put there by the thread that has set this.
pub(crate) struct Flag(AtomicBool);

impl Flag {
    pub(crate) fn set_from_the_start() -> Flag {
        Flag(AtomicBool::new(true))
    }

    /// Before a wake: true when the task is queued already, and will see what came before this.
    pub(crate) fn set(&self) -> bool {
        self.0.swap(true, Ordering::AcqRel)
    }

    /// Before a poll: it sees all that came before a [`Flag::set`] that this one undoes. A plain
    /// store would not do: the poll's loads could come before it, and a wake between the two
    /// would be lost.
    pub(crate) fn clear(&self) {
        self.0.swap(false, Ordering::AcqRel);
    }
}

/// Wakes from other threads.
pub(crate) struct Remote<T> {
    woken: Mutex<Vec<T>>,
    any: AtomicBool,
    /// Ends the executor's sleep, now or next time.
    notify: Box<dyn Fn() + Send + Sync>,
}

impl<T> Remote<T> {
    pub(crate) fn new(notify: Box<dyn Fn() + Send + Sync>) -> Remote<T> {
        Remote { woken: Mutex::new(Vec::new()), any: AtomicBool::new(false), notify }
    }

    pub(crate) fn push(&self, task: T) {
        self.woken.lock().expect("no panic inside").push(task);
        if !self.any.swap(true, Ordering::SeqCst) {
            (self.notify)();
        }
    }

    /// True when a wake waits to be collected.
    pub(crate) fn has_any(&self) -> bool {
        self.any.load(Ordering::SeqCst)
    }

    pub(crate) fn collect(&self) -> Vec<T> {
        if !self.any.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        std::mem::take(&mut *self.woken.lock().expect("no panic inside"))
    }
}

#[cfg(all(test, craton_loom))]
mod loom_tests {
    use std::sync::Arc as StdArc;

    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU32;
    use loom::thread;

    use super::*;

    /// An executor of one task that others wake, each with something for it to see.
    fn wake_all(wakers: usize) {
        let data: Arc<Vec<_>> = Arc::new((0..wakers).map(|_| AtomicU32::new(0)).collect());
        let flag = Arc::new(Flag::set_from_the_start());
        let bell = Arc::new(AtomicBool::new(false));
        let rung = bell.clone();
        let notify = move || rung.store(true, Ordering::SeqCst);
        let remote = Arc::new(Remote::new(Box::new(notify)));
        let threads: Vec<_> = (0..wakers)
            .map(|index| {
                let (data, flag, remote) = (data.clone(), flag.clone(), remote.clone());
                thread::spawn(move || {
                    data[index].store(1, Ordering::Relaxed);
                    if !flag.set() {
                        remote.push(index);
                    }
                })
            })
            .collect();
        let poll = || {
            flag.clear();
            data.iter().all(|one| one.load(Ordering::Relaxed) == 1)
        };
        // The poll that the task was queued for, and one more if a wake was collected.
        let mut saw_all = poll();
        if !remote.collect().is_empty() {
            saw_all = poll();
        }
        threads.into_iter().for_each(|thread| thread.join().expect("ran"));
        if !saw_all {
            assert!(remote.has_any(), "asleep for ever");
            assert!(bell.load(Ordering::SeqCst), "the driver is not woken");
            assert!(!remote.collect().is_empty());
            assert!(poll());
        }
    }

    #[test]
    fn no_wake_is_lost() {
        loom::model(|| wake_all(1));
    }

    #[test]
    fn no_wake_of_two_is_lost() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2); // All interleavings take minutes.
        builder.check(|| wake_all(2));
    }

    /// Every pushed item is collected once, and while one waits the bell has rung since the last
    /// collection.
    #[test]
    fn everything_is_collected_once() {
        loom::model(|| {
            let rings = Arc::new(AtomicU32::new(0));
            let count = rings.clone();
            let notify = move || {
                count.fetch_add(1, Ordering::SeqCst);
            };
            let remote = StdArc::new(Remote::new(Box::new(notify)));
            let pushers: Vec<_> = (0..2)
                .map(|index| {
                    let remote = remote.clone();
                    thread::spawn(move || remote.push(index))
                })
                .collect();
            let mut found = remote.collect();
            let before = rings.load(Ordering::SeqCst);
            pushers.into_iter().for_each(|pusher| pusher.join().expect("ran"));
            if found.len() < 2 {
                assert!(remote.has_any());
                assert!(rings.load(Ordering::SeqCst) > 0, "{before} before");
            }
            found.extend(remote.collect());
            found.sort_unstable();
            assert_eq!(found, [0, 1]);
        });
    }
}
