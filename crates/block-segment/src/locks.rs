//! [`Locks`]: requests that overlap on a block wait for each other (`protocols.md` 6.2).
//!
//! For each block the last request for it is known: a request waits for those alone, and they wait
//! for earlier ones. So a request costs the pieces of the blocks that it covers, not the number of
//! requests under way.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use runtime::sync::oneshot;

#[derive(Default)]
struct LocksState {
    next: u64,
    held: BTreeMap<u64, RangeLock>,
    /// Last requests: pieces by their first block, with their end and the request.
    last: BTreeMap<u64, (u64, u64)>,
    /// The same by request and first block.
    pieces: BTreeSet<(u64, u64)>,
    /// Pieces and requests that were visited.
    #[cfg(test)]
    looks: u64,
}

/// A requested range that others may have to wait for.
#[derive(Default)]
struct RangeLock {
    /// Number of requests that it waits for.
    before: usize,
    /// Requests that wait for it.
    after: Vec<u64>,
    wake: Option<oneshot::Sender<()>>,
    /// Its request is dropped. Requests behind it still wait for those in front of it.
    dropped: bool,
}

impl LocksState {
    #[cfg(test)]
    fn look(&mut self) {
        self.looks += 1;
    }

    #[cfg(not(test))]
    fn look(&self) {}

    fn put_piece(&mut self, blocks: Range<u64>, id: u64) {
        if !blocks.is_empty() {
            self.last.insert(blocks.start, (blocks.end, id));
            self.pieces.insert((id, blocks.start));
        }
    }

    /// Makes `id` the last request for these blocks; returns the previous ones.
    fn take_over(&mut self, blocks: &Range<u64>, id: u64) -> BTreeSet<u64> {
        let mut before = BTreeSet::new();
        while let Some((&start, &(end, of))) = self.last.range(..blocks.end).next_back()
            && end > blocks.start
        {
            self.look();
            self.last.remove(&start);
            self.pieces.remove(&(of, start));
            before.insert(of);
            self.put_piece(blocks.end..end, of);
            self.put_piece(start..blocks.start, of);
        }
        self.put_piece(blocks.clone(), id);
        before
    }

    /// Removes a request, and dropped ones behind it that wait for nothing else.
    fn end(&mut self, id: u64) {
        let mut over = vec![id];
        while let Some(id) = over.pop() {
            let ended = self.held.remove(&id).expect("it is there until now");
            while let Some(&(_, start)) = self.pieces.range((id, 0)..=(id, u64::MAX)).next() {
                self.look();
                self.pieces.remove(&(id, start));
                self.last.remove(&start);
            }
            for next in ended.after {
                self.look();
                let waiting = self.held.get_mut(&next).expect("it waits for this one");
                waiting.before -= 1;
                match (waiting.before, waiting.dropped) {
                    (0, true) => over.push(next),
                    (0, false) => {
                        if let Some(wake) = waiting.wake.take() {
                            let _ = wake.send(()); // Its waiter may be gone.
                        }
                    }
                    _ => {}
                }
            }
        }
    }
}

/// Ranges of blocks that are being changed, in the order of their requests.
#[derive(Clone, Default)]
pub(crate) struct Locks(Rc<RefCell<LocksState>>);

/// A range that is held, or waited for, until it is dropped.
pub(crate) struct Guard {
    locks: Locks,
    id: u64,
}

impl Locks {
    /// Takes a position behind all earlier ones. The range is held once [`Guard::granted`] has
    /// ended.
    pub(crate) fn ask(&self, blocks: Range<u64>) -> Guard {
        let state = &mut *self.0.borrow_mut();
        let id = state.next;
        state.next += 1;
        let before = state.take_over(&blocks, id);
        for of in &before {
            state.held.get_mut(of).expect("its pieces go with it").after.push(id);
        }
        state.held.insert(id, RangeLock { before: before.len(), ..RangeLock::default() });
        Guard { locks: self.clone(), id }
    }

    /// Ranges held or waited for.
    pub(crate) fn len(&self) -> usize {
        self.0.borrow().held.len()
    }
}

impl Guard {
    /// Ends when no earlier range that overlaps is still there.
    pub(crate) async fn granted(&self) {
        loop {
            let waited = {
                let state = &mut *self.locks.0.borrow_mut();
                let held = state.held.get_mut(&self.id).expect("it is there until dropped");
                if held.before == 0 {
                    return;
                }
                let (wake, waited) = oneshot::channel();
                held.wake = Some(wake);
                waited
            };
            let _ = waited.await; // It ends with its sender in any case.
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let state = &mut *self.locks.0.borrow_mut();
        let held = state.held.get_mut(&self.id).expect("it is there until now");
        held.dropped = true;
        if held.before == 0 {
            state.end(self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use futures_util::FutureExt;
    use runtime::sim::Sim;
    use runtime::{Class, Duration, Rng};

    use super::*;

    #[test]
    fn overlapping_requests_are_granted_in_order_and_others_at_once() {
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
            assert_eq!(*done.borrow(), [2]); // The others wait, in order.
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

    /// A change that overlaps with no other costs its own piece, and visits no others.
    #[test]
    fn cost_of_a_change_does_not_grow_with_those_under_way() {
        let looks = |count: u64| {
            let locks = Locks::default();
            let guards: Vec<Guard> = (0..count).map(|at| locks.ask(at..at + 1)).collect();
            assert!(guards.iter().all(|guard| guard.granted().now_or_never().is_some()));
            // One over all of them, and those behind it.
            let all = locks.ask(0..u64::MAX);
            let behind: Vec<Guard> = (0..count).map(|at| locks.ask(at..at + 1)).collect();
            assert!(behind.iter().all(|guard| guard.granted().now_or_never().is_none()));
            drop(guards);
            assert!(all.granted().now_or_never().is_some());
            drop(all);
            assert!(behind.iter().all(|guard| guard.granted().now_or_never().is_some()));
            drop(behind);
            let state = locks.0.borrow();
            assert!(state.held.is_empty() && state.last.is_empty() && state.pieces.is_empty());
            state.looks
        };
        let (few, many) = (looks(3000), looks(12_000));
        assert!(many <= 8 * 12_000, "{many} looks for 24,000 changes");
        assert!(many <= few * 4 + 100, "{few} looks for 6,000, {many} for four times as many");
    }

    /// Random requests, grants and drops, of waiting ones too, against the rule itself.
    #[test]
    fn overlapping_ranges_are_never_held_together_and_all_are_granted() {
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let (locks, mut live) = (Locks::default(), Vec::<(Range<u64>, Guard)>::new());
            let gives_up = rng.one_in(2);
            for _ in 0..300 {
                let start = rng.below(24);
                let most = if rng.one_in(5) { 20 } else { 3 };
                let blocks = start..start + 1 + rng.below(most);
                live.push((blocks.clone(), locks.ask(blocks)));
                let granted = |index: usize| live[index].1.granted().now_or_never().is_some();
                for index in 0..live.len() {
                    let mine = &live[index].0;
                    let overlaps = |(other, _): &(Range<u64>, Guard)| {
                        other.start < mine.end && mine.start < other.end
                    };
                    let free = !live[..index].iter().any(overlaps);
                    assert!(free || !granted(index), "seed {seed}: {mine:?} is held by two");
                    assert!(gives_up || free == granted(index), "seed {seed}: {mine:?} waits");
                }
                while live.len() > 12 || rng.one_in(3) && !live.is_empty() {
                    let index = rng.below(live.len() as u64) as usize;
                    let held = live[index].1.granted().now_or_never().is_some();
                    if held || gives_up {
                        live.remove(index);
                    }
                }
            }
            // The first is always granted: nothing waits for ever.
            while !live.is_empty() {
                assert!(live[0].1.granted().now_or_never().is_some(), "seed {seed}");
                live.remove(0);
            }
            assert_eq!(locks.len(), 0);
        }
    }
}
