//! The namespace's state machine against a tiny model.

mod machine;
mod model;
