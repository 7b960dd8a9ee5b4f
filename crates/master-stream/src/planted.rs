//! Bugs that tests plant, to see that the checkers find them. The feature `planted` compiles them in,
//! for this crate's tests and the simulator; without it `planted` is a constant.

base::planted! {
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
    /// Recovery of a coded chunk is content with as many votes as copies need.
    VotesAsCopies,
    /// Recovery seals a coded chunk at the longest vote, whether it can be decoded or not.
    SealBelowK,
    /// Repair counts replicas of a coded chunk, and not fragments, and makes one that is there.
    SameFragmentTwice,
    /// Recovery believes holders of a coded chunk which voted and have been lost since.
    StaleHolders,
    /// An operator's word gives up replicas whose servers have only just fallen silent.
    SilentIsGone,
    /// What a conversion wrote that was given up is not on record as dead.
    ShadowForgotten,
    /// Chunks count as old when they are not.
    YoungIsOld,
    /// A conversion ends when the other chunk is written, and is not compared with anything.
    ConvertDropsEarly,
    /// A conversion believes the one copy that it was made of.
    ConvertOneCopy,
    /// Rows of coded chunks are not checked with all their cells.
    RowsUnchecked,
    /// Writers are not heard of.
    WritersUnheard,
    /// Spares stay, whatever becomes of their servers.
    SparesStay,
    /// A replica that can not be sealed is redundancy for as long as its server sends heartbeats.
    UnsettledCounts,
    /// A replica that is of no more use, or on a draining server, is dropped when one copy lacks.
    DrainDropsFirst,
    /// Rights end by the clock on the wall.
    RightsByWall,
    /// Tokens do not end.
    RightsForEver,
}
