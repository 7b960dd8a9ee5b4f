//! A result handed from one task to another of the same executor, without atomics.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

enum SlotState<T> {
    Empty(Option<Waker>),
    Full(T),
    Taken,
}

/// The place of one result. Clones share it. The first result stays.
pub(crate) struct Slot<T>(Rc<RefCell<SlotState<T>>>);

impl<T> Clone for Slot<T> {
    fn clone(&self) -> Slot<T> {
        Slot(self.0.clone())
    }
}

impl<T> Slot<T> {
    pub(crate) fn new() -> Slot<T> {
        Slot(Rc::new(RefCell::new(SlotState::Empty(None))))
    }

    /// Fills the slot, unless it was filled before.
    pub(crate) fn fill(&self, value: T) {
        let waker = {
            let state = &mut *self.0.borrow_mut();
            let SlotState::Empty(waker) = state else { return };
            let waker = waker.take();
            *state = SlotState::Full(value);
            waker
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Waits for the result, which is taken by the first who waits.
    pub(crate) fn wait(&self) -> Wait<'_, T> {
        Wait(self)
    }
}

pub(crate) struct Wait<'a, T>(&'a Slot<T>);

impl<T> Future for Wait<'_, T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let state = &mut *self.0.0.borrow_mut();
        match state {
            SlotState::Empty(Some(waker)) if waker.will_wake(cx.waker()) => Poll::Pending,
            SlotState::Empty(waker) => {
                *waker = Some(cx.waker().clone());
                Poll::Pending
            }
            SlotState::Full(_) => match std::mem::replace(state, SlotState::Taken) {
                SlotState::Full(value) => Poll::Ready(value),
                _ => unreachable!("matched above"),
            },
            SlotState::Taken => Poll::Pending,
        }
    }
}
