//! Tests of volumes' geometry and of the NBD protocol.

mod geometry;
mod nbd;
