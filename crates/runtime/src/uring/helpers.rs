//! Helper threads: where work goes that may block or compute for long (C11).

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use crate::limits::HELPER_QUEUE_MAX;
use crate::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// A helper without work ends after this.
const IDLE_MAX: Duration = Duration::from_secs(10);

struct Job {
    name: &'static str,
    work: Box<dyn FnOnce() + Send>,
    /// Its place in the queue.
    _place: OwnedSemaphorePermit,
}

#[derive(Default)]
struct HelpersState {
    queue: VecDeque<Job>,
    threads: usize,
    idle: usize,
    closed: bool,
}

struct Shared {
    name: String,
    threads_max: usize,
    state: Mutex<HelpersState>,
    arrived: Condvar,
    places: Arc<Semaphore>,
}

/// The helpers of one process. Threads are made when there is work for them. Clones share them.
#[derive(Clone)]
pub(crate) struct Helpers(Arc<Owner>);

struct Owner(Arc<Shared>);

impl Helpers {
    pub(crate) fn new(name: &str, threads_max: usize) -> Helpers {
        Helpers(Arc::new(Owner(Arc::new(Shared {
            name: name.to_owned(),
            threads_max: threads_max.max(1),
            state: Mutex::default(),
            arrived: Condvar::new(),
            places: Arc::new(Semaphore::new(HELPER_QUEUE_MAX)),
        }))))
    }

    /// Runs `work` on a helper. A full queue makes the caller wait for a place. Work that has
    /// begun goes on when the future is dropped.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        name: &'static str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        let shared = &self.0.0;
        let place = shared.places.clone().acquire_owned().await.expect("never closed");
        let (sender, receiver) = oneshot::channel();
        let work = move || {
            let result = catch_unwind(AssertUnwindSafe(work));
            let _ = sender.send(result); // The caller may have gone.
        };
        shared.push(Job { name, work: Box::new(work), _place: place });
        match receiver.await {
            Ok(Ok(value)) => value,
            Ok(Err(panic)) => resume_unwind(panic),
            Err(_) => std::future::pending().await, // The runtime stops; so does the caller.
        }
    }
}

impl Shared {
    fn push(self: &Arc<Self>, job: Job) {
        let more = {
            let state = &mut *self.state.lock().expect("no panic inside");
            // Each job in the queue is for one of the idle helpers.
            let more = state.queue.len() >= state.idle && state.threads < self.threads_max;
            if more {
                state.threads += 1;
            }
            state.queue.push_back(job);
            more
        };
        if !more {
            self.arrived.notify_one();
            return;
        }
        let shared = self.clone();
        let builder = std::thread::Builder::new().name(format!("{}-helper", self.name));
        if let Err(error) = builder.spawn(move || shared.serve()) {
            let state = &mut *self.state.lock().expect("no panic inside");
            state.threads -= 1;
            // With another helper the work is only late; without one it would never be done.
            assert!(state.threads > 0, "no helper thread can be made: {error}");
        }
    }

    fn serve(&self) {
        while let Some(job) = self.next() {
            let name = job.name;
            // The job itself hands a panic to its caller; a destructor's ends here.
            if catch_unwind(AssertUnwindSafe(job.work)).is_err() {
                tracing::error!(work = name, "a helper's work panicked while it was dropped");
            }
        }
    }

    fn next(&self) -> Option<Job> {
        let mut state = self.state.lock().expect("no panic inside");
        loop {
            if let Some(job) = state.queue.pop_front() {
                return Some(job);
            }
            if state.closed {
                state.threads -= 1;
                return None;
            }
            state.idle += 1;
            let (woken, wait) =
                self.arrived.wait_timeout(state, IDLE_MAX).expect("no panic inside");
            state = woken;
            state.idle -= 1;
            if wait.timed_out() && state.queue.is_empty() {
                state.threads -= 1;
                return None;
            }
        }
    }
}

impl Drop for Owner {
    /// Work that has not begun is dropped; work that has begun ends by itself.
    fn drop(&mut self) {
        let dropped = {
            let state = &mut *self.0.state.lock().expect("no panic inside");
            state.closed = true;
            std::mem::take(&mut state.queue)
        };
        drop(dropped);
        self.0.arrived.notify_all();
    }
}
