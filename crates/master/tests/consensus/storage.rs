//! The record log and its replay.
