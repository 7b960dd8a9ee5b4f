//! Bugs that tests plant, to see that the checkers find them. The feature `planted` compiles them in,
//! for the simulator; without it `planted` is a constant.

base::planted! {
    /// Chunkservers are not pinged: those whose heartbeats come count as reached.
    ServersUnpinged,
    /// A chunkserver is drained, whatever is left there.
    DrainedTooSoon,
}
