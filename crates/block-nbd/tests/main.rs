//! Tests of the NBD protocol and its server.

mod frontend;
mod nbd;
