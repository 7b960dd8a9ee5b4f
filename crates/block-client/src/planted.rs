//! Bugs that tests plant, to see that the checkers find them. The feature `planted` compiles them in,
//! for the simulator; without it `planted` is a constant.

base::planted! {
    /// The map of segments goes back to the owner before, once for each that comes after it, as if the answer to
    /// an earlier question came last; and any other owner counts as a later one.
    EarlierOwner,
}
