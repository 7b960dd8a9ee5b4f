//! A faulty engine that tests plant, to see that its work is found out. The feature `planted` compiles it
//! in, for tests and the simulator; without it [`errs`] and [`decoding_errs`] are constants.

/// A binary that holds this text has the fault compiled in: `cargo xtask shipped` looks for it.
#[cfg(feature = "planted")]
#[used]
static MARKER: &str = "bugs are planted in this binary: it is for tests only";

#[cfg(feature = "planted")]
thread_local! {
    /// One row in so many is wrong, and rows so far.
    static FAULTY: std::cell::Cell<(u64, u64)> = const { std::cell::Cell::new((0, 0)) };
    /// What is decoded is wrong.
    static FAULTY_DECODING: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// On this thread, vector instructions get one row in `one_in` wrong from now on; 0: none.
#[cfg(feature = "planted")]
pub fn plant(one_in: u64) {
    FAULTY.with(|faulty| faulty.set((one_in, 0)));
}

/// On this thread, vector instructions get wrong from now on whatever they decode, or do not.
#[cfg(feature = "planted")]
pub fn plant_decoding(errs: bool) {
    FAULTY_DECODING.with(|faulty| faulty.set(errs));
}

/// What is decoded now is to be wrong.
#[cfg(feature = "planted")]
pub(crate) fn decoding_errs() -> bool {
    FAULTY_DECODING.with(std::cell::Cell::get)
}

/// What is decoded now is to be wrong: never.
#[cfg(not(feature = "planted"))]
pub(crate) const fn decoding_errs() -> bool {
    false
}

/// The number of the row that is laid out now, when it is to be wrong.
#[cfg(feature = "planted")]
pub(crate) fn errs() -> Option<usize> {
    FAULTY.with(|faulty| {
        let (one_in, rows) = faulty.get();
        faulty.set((one_in, rows + 1));
        let wrong = one_in > 0 && (rows + 1).is_multiple_of(one_in);
        wrong.then_some(rows as usize)
    })
}

/// The number of the row that is laid out now, when it is to be wrong: never.
#[cfg(not(feature = "planted"))]
pub(crate) const fn errs() -> Option<usize> {
    None
}
