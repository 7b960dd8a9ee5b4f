//! [`Traced`]: which trace the work of a request belongs to, for a [`Backend`](crate::Backend) that runs it on
//! another thread. The request's ID is its trace's.

use std::cell::Cell;
use std::pin::Pin;
use std::task::{Context, Poll};

use base::TraceId;

thread_local! {
    static CURRENT: Cell<Option<TraceId>> = const { Cell::new(None) };
}

/// The trace of the request whose future runs on this thread, if it is [`Traced`].
pub fn current_trace() -> Option<TraceId> {
    CURRENT.get()
}

/// A request's future; while it runs, [`current_trace`] is its trace.
pub struct Traced<F> {
    trace: TraceId,
    work: Pin<Box<F>>,
}

impl<F: Future> Traced<F> {
    /// `work` is a request's of this trace.
    pub fn new(trace: TraceId, work: F) -> Traced<F> {
        Traced { trace, work: Box::pin(work) }
    }
}

/// Puts the trace back that was current before, also when the work panics.
struct Former(Option<TraceId>);

impl Drop for Former {
    fn drop(&mut self) {
        CURRENT.set(self.0);
    }
}

impl<F: Future> Future for Traced<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let _former = Former(CURRENT.replace(Some(self.trace)));
        self.work.as_mut().poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Waker;

    use super::*;

    #[test]
    fn a_trace_is_current_while_its_work_runs() {
        let [outer, inner] = [1, 2].map(TraceId::unasked);
        let mut cx = Context::from_waker(Waker::noop());
        let within = async {
            assert_eq!(current_trace(), Some(outer));
            Traced::new(inner, async { assert_eq!(current_trace(), Some(inner)) }).await;
            std::future::pending::<()>().await;
        };
        let mut work = pin!(Traced::new(outer, within));
        for _ in 0..2 {
            assert!(work.as_mut().poll(&mut cx).is_pending());
            assert_eq!(current_trace(), None);
        }
    }
}
