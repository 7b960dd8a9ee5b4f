//! Owners of a service that is all of the protocol and nothing else.

mod fleet;
mod service;
