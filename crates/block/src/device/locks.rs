//! [`Locks`]: requests that overlap on a block wait for each other (`protocols.md` 6.2).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use runtime::sync::oneshot;

#[derive(Default)]
struct State {
    next: u64,
    held: BTreeMap<u64, Held>,
}

struct Held {
    blocks: Range<u64>,
    waiting: Vec<oneshot::Sender<()>>,
}

/// Ranges of blocks that are being changed, in the order in which they were asked for.
#[derive(Clone, Default)]
pub(crate) struct Locks(Rc<RefCell<State>>);

/// A range that is held, or waited for, until it is dropped.
pub(crate) struct Guard {
    locks: Locks,
    id: u64,
}

impl Locks {
    /// Takes a place behind all that were taken before. The range is held once
    /// [`Guard::granted`] has ended.
    pub(crate) fn ask(&self, blocks: Range<u64>) -> Guard {
        let state = &mut *self.0.borrow_mut();
        let id = state.next;
        state.next += 1;
        state.held.insert(id, Held { blocks, waiting: Vec::new() });
        Guard { locks: self.clone(), id }
    }

    /// Ranges held or waited for.
    pub(crate) fn len(&self) -> usize {
        self.0.borrow().held.len()
    }
}

impl Guard {
    /// Ends when no range that overlaps was asked for before and is still there.
    pub(crate) async fn granted(&self) {
        loop {
            let waited = {
                let state = &mut *self.locks.0.borrow_mut();
                let mine = state.held[&self.id].blocks.clone();
                let before = state.held.range_mut(..self.id).rev();
                let overlaps =
                    |held: &Held| held.blocks.start < mine.end && mine.start < held.blocks.end;
                let mut before = before.filter(|(_, held)| overlaps(held));
                let Some((_, held)) = before.next() else { return };
                let (done, waited) = oneshot::channel();
                held.waiting.push(done);
                waited
            };
            let _ = waited.await; // It ends with its sender in any case.
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let gone = self.locks.0.borrow_mut().held.remove(&self.id);
        for waiting in gone.expect("it is there until now").waiting {
            let _ = waiting.send(()); // It may wait no more.
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use runtime::sim::Sim;
    use runtime::{Class, Duration};

    use super::*;

    #[test]
    fn those_that_overlap_come_in_order_and_others_at_once() {
        let sim = Sim::new(1);
        let host = sim.add_host("host");
        let env = sim.boot(host);
        let done: Rc<RefCell<Vec<u32>>> = Rc::default();
        let locks = Locks::default();
        let ranges = [0..4, 2..6, 8..9, 5..9, 3..4];
        let ended = sim.run(async {
            let mut tasks = Vec::new();
            let first = locks.ask(0..1);
            for (name, range) in ranges.into_iter().enumerate() {
                let (guard, done, at) = (locks.ask(range), done.clone(), env.clone());
                tasks.push(env.spawn(Class::Foreground, "lock", async move {
                    guard.granted().await;
                    at.sleep(Duration::from_millis(1)).await;
                    done.borrow_mut().push(name as u32);
                }));
            }
            env.sleep(Duration::from_millis(5)).await;
            assert_eq!(*done.borrow(), [2]); // The others wait, one behind the other.
            drop(first);
            for task in tasks {
                task.await.unwrap();
            }
        });
        assert!(ended.is_ok());
        sim.close();
        assert_eq!(locks.len(), 0);
        let order = done.borrow().clone();
        let place = |name| order.iter().position(|&other| other == name).unwrap();
        assert!(place(0) < place(1) && place(1) < place(3) && place(1) < place(4), "{order:?}");
    }
}
