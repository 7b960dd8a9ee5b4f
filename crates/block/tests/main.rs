//! Tests of volumes: geometry, the NBD protocol, the NBD server.

mod device;
mod frontend;
mod geometry;
mod manager;
mod nbd;
