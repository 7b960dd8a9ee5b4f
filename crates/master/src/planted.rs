//! Bugs that tests plant, to see that the checkers find them. The feature `planted` compiles them in,
//! for the simulator; without it [`planted`] is a constant.

/// A bug.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Planted {
    /// Chunkservers are not pinged: those whose heartbeats come count as reached.
    ServersUnpinged,
    /// A chunkserver is drained, whatever is left there.
    DrainedTooSoon,
}

/// A binary that holds this text has the bugs compiled in: `cargo xtask shipped` looks for it.
#[cfg(feature = "planted")]
#[used]
static MARKER: &str = "bugs are planted in this binary: it is for tests only";

#[cfg(feature = "planted")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Planted>> = const { std::cell::Cell::new(None) };
}

/// Plants a bug on this thread, or none.
#[cfg(feature = "planted")]
pub fn plant(bug: Option<Planted>) {
    PLANTED.with(|planted| planted.set(bug));
}

/// Whether `bug` is planted.
#[cfg(feature = "planted")]
pub(crate) fn planted(bug: Planted) -> bool {
    PLANTED.with(|planted| planted.get() == Some(bug))
}

/// Whether `bug` is planted: never.
#[cfg(not(feature = "planted"))]
pub(crate) const fn planted(_bug: Planted) -> bool {
    false
}
