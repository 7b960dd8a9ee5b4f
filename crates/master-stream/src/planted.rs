//! Bugs that tests plant, to see that the checkers find them. Never there outside of tests.

/// A bug.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Planted {
    /// Recovery takes the shortest vote for the length.
    ShortestVote,
    /// Damaged replicas vote.
    DamagedVotes,
    /// Recovery is content with one vote.
    OneVote,
    /// Recovery does not fence: it asks for the state only.
    NoFence,
    /// Replicas that are still referred to may be condemned.
    CondemnReferenced,
    /// A deleted file is not remembered.
    ForgetDeletedFile,
    /// An advance under an old epoch is taken.
    OldEpochAdvances,
    /// An opening fences whichever writer there is.
    FollowsIgnored,
    /// Rows of streams do not say how many copies each chunk is to have.
    CopiesLostInRow,
    /// Recovery seals at the least length that its votes permit.
    StatisticIsLength,
}

#[cfg(test)]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Planted>> = const { std::cell::Cell::new(None) };
}

/// Plants a bug on this thread, or none.
#[cfg(test)]
pub(crate) fn plant(bug: Option<Planted>) {
    PLANTED.with(|planted| planted.set(bug));
}

/// Whether `bug` is planted.
#[cfg(test)]
pub(crate) fn planted(bug: Planted) -> bool {
    PLANTED.with(|planted| planted.get() == Some(bug))
}

/// Whether `bug` is planted: never.
#[cfg(not(test))]
pub(crate) const fn planted(_bug: Planted) -> bool {
    false
}
