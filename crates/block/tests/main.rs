//! Tests of volumes: geometry, the NBD protocol, the NBD server,
//! block client and block server.

mod device;
mod frontend;
mod manager;
mod nbd;
mod service;
