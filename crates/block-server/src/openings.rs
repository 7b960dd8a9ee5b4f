//! Turns of openings on a full cluster. An opening makes files in the reserve for metadata (decision
//! 59), and what a failed one has taken is held until rights to write there have run out. When many
//! segments try again and again, these attempts hold what comes back, and none of them succeeds.

use std::cell::Cell;

use base::{Fault, Kind};
use runtime::sync::Mutex;
use runtime::{Duration, Env, Instant};

use crate::limits::{OPEN_FULL_MEMORY, OPEN_FULL_PAUSE};

/// The openings of one block server.
pub(super) struct Openings {
    env: Env,
    /// Time of the last opening that found no room.
    full: Cell<Option<Instant>>,
    /// None begins before.
    not_before: Cell<Instant>,
    /// Pause after the next one that finds no room.
    pause: Cell<Duration>,
    /// While room is scarce, one is under way at a time.
    turn: Mutex<()>,
}

impl Openings {
    pub(super) fn new(env: &Env) -> Openings {
        Openings {
            env: env.clone(),
            full: Cell::new(None),
            not_before: Cell::new(Instant::default()),
            pause: Cell::new(OPEN_FULL_PAUSE.0),
            turn: Mutex::new(()),
        }
    }

    fn is_scarce(&self) -> bool {
        self.full.get().is_some_and(|full| self.env.now() - full < OPEN_FULL_MEMORY)
    }

    /// Opens a segment. While room is scarce, one at a time; in the pause after one that found none
    /// ([`OPEN_FULL_PAUSE`]), the answer is `Full` without an attempt.
    pub(super) async fn attempt<T>(
        &self,
        opening: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Fault> {
        let _turn = match self.is_scarce() {
            true => Some(self.turn.lock().await),
            false => None,
        };
        if self.env.now() < self.not_before.get() {
            self.env.mark("block server: no opening on a full cluster");
            let text = "the cluster is full: openings are tried again in some seconds; trim or \
                        remove volumes, remove files, or add a chunkserver";
            return Err(Fault::new(Kind::Full, text));
        }
        let opened = opening.await;
        match &opened {
            Ok(_) => self.pause.set(OPEN_FULL_PAUSE.0),
            Err(fault) if fault.kind == Kind::Full => self.note_full(),
            Err(_) => {}
        }
        opened
    }

    fn note_full(&self) {
        let (now, pause) = (self.env.now(), self.pause.get());
        self.full.set(Some(now));
        if now < self.not_before.get() {
            return; // It was under way when another one found no room.
        }
        self.not_before.set(now + self.env.jitter(pause));
        self.pause.set((pause * 2).min(OPEN_FULL_PAUSE.1));
    }
}

#[cfg(test)]
mod tests {
    use runtime::Class;
    use runtime::sim::Sim;
    use std::rc::Rc;

    use super::*;

    const SEGMENTS: usize = 24;
    /// Files that an opening makes, one after another, with this much time for each.
    const FILES: usize = 3;
    const FILE: Duration = Duration::from_millis(20);
    /// Time for which room of a failed opening is held.
    const HELD: Duration = Duration::from_secs(20);
    /// Files for which there is room: of all segments, and two more.
    const ROOM: usize = FILES * SEGMENTS + 2;
    const SECOND: Duration = Duration::from_secs(1);

    /// A reserve that is used up at the start; its room comes back after [`HELD`].
    struct Reserve {
        env: Env,
        free: Cell<usize>,
        open: Cell<usize>,
        attempts: Cell<usize>,
    }

    impl Reserve {
        fn give_back(self: &Rc<Reserve>, files: usize) {
            let this = self.clone();
            self.env.spawn(Class::Background, "give back", async move {
                this.env.sleep(HELD).await;
                this.free.set(this.free.get() + files);
            });
        }

        async fn open(self: Rc<Reserve>) -> Result<(), Fault> {
            self.attempts.set(self.attempts.get() + 1);
            for made in 0..FILES {
                if self.free.get() == 0 {
                    self.give_back(made);
                    return Err(Fault::new(Kind::Full, "the cluster is full"));
                }
                self.free.set(self.free.get() - 1);
                self.env.sleep(FILE).await;
            }
            self.open.set(self.open.get() + 1);
            Ok(())
        }
    }

    /// Segments that are opened with retries, as the agent does it, while the room for that comes
    /// back little by little: how many are open after 90 s, and attempts.
    fn open_all(with_turns: bool) -> (usize, usize) {
        let (sim, counts) = (Sim::new(1), Rc::new(Cell::new((0, 0))));
        let (inner, seen) = (sim.clone(), counts.clone());
        sim.run(async move {
            let env = inner.boot(inner.add_host("bs"));
            let zero = || Cell::new(0);
            let reserve =
                Reserve { env: env.clone(), free: zero(), open: zero(), attempts: zero() };
            let (reserve, openings) = (Rc::new(reserve), Rc::new(Openings::new(&env)));
            for _ in 0..SEGMENTS {
                let (env, reserve, openings) = (env.clone(), reserve.clone(), openings.clone());
                env.clone().spawn(Class::Foreground, "open", async move {
                    loop {
                        let opening = reserve.clone().open();
                        let opened = match with_turns {
                            true => openings.attempt(opening).await,
                            false => opening.await,
                        };
                        if opened.is_ok() {
                            return;
                        }
                        env.sleep(env.jitter(2 * SECOND)).await;
                    }
                });
            }
            for _ in 0..ROOM {
                env.sleep(60 * SECOND / 2 / ROOM as u32).await;
                reserve.free.set(reserve.free.get() + 1);
            }
            env.sleep(60 * SECOND).await;
            seen.set((reserve.open.get(), reserve.attempts.get()));
        })
        .expect("nothing stalls");
        counts.get()
    }

    #[test]
    fn segments_are_opened_as_room_comes_back() {
        let (open, attempts) = open_all(false);
        assert!(open < SEGMENTS, "without turns {open} are open after {attempts} attempts");
        let (open, attempts) = open_all(true);
        assert_eq!(open, SEGMENTS, "after {attempts} attempts");
    }
}
