//! Tests of block client and block server.

mod service;
