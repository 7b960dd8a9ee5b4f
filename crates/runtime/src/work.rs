//! [`Work`]: what a task runs.

// A pinned field of a pinned struct is reached here.
#![allow(unsafe_code)]

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::task::Completer;

/// The future of a task. Not an `async` block: that would hold its future twice, once as captured
/// and once as awaited, and move it at the first poll; some have kilobytes.
pub(crate) struct Work<F: Future> {
    /// Gone when it has ended, and before its waiter is woken.
    future: Option<F>,
    completer: Option<Completer<F::Output>>,
}

impl<F: Future> Work<F> {
    pub(crate) fn new(future: F, completer: Completer<F::Output>) -> Work<F> {
        Work { future: Some(future), completer: Some(completer) }
    }
}

impl<F: Future> Future for Work<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        // SAFETY: `future` is pinned as `self` is: it is dropped in place, and `Work` has neither
        // a `Drop` nor another way to move it. `completer` is never treated as pinned.
        let (mut future, completer) = unsafe {
            let this = self.get_unchecked_mut();
            (Pin::new_unchecked(&mut this.future), &mut this.completer)
        };
        let Some(running) = future.as_mut().as_pin_mut() else { return Poll::Ready(()) };
        let Poll::Ready(value) = running.poll(cx) else { return Poll::Pending };
        future.set(None);
        if let Some(completer) = completer.take() {
            completer.complete(value);
        }
        Poll::Ready(())
    }
}
