//! Tests of a segment's device.

mod device;
