//! Bugs that tests plant.

/// Defines `Planted`, `plant` and `planted` of a crate. The feature `planted` of the crate that expands it
/// compiles the bugs in; without it `planted` is a constant.
#[macro_export]
macro_rules! planted {
    ($($(#[$doc:meta])* $bug:ident,)+) => {
        /// A bug.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Planted { $($(#[$doc])* $bug,)+ }

        /// A binary that holds this text has the bugs compiled in: `cargo xtask shipped` looks for it.
        #[cfg(feature = "planted")]
        #[used]
        static MARKER: &str = "bugs are planted in this binary: it is for tests only";

        #[cfg(feature = "planted")]
        ::std::thread_local! {
            static PLANTED: ::std::cell::Cell<Option<Planted>> =
                const { ::std::cell::Cell::new(None) };
        }

        /// Plants a bug on this thread, or none.
        #[cfg(feature = "planted")]
        pub fn plant(bug: Option<Planted>) {
            PLANTED.set(bug);
        }

        /// Whether `bug` is planted.
        #[cfg(feature = "planted")]
        pub(crate) fn planted(bug: Planted) -> bool {
            PLANTED.get() == Some(bug)
        }

        /// Whether `bug` is planted: never.
        #[cfg(not(feature = "planted"))]
        pub(crate) const fn planted(_bug: Planted) -> bool {
            false
        }
    };
}
