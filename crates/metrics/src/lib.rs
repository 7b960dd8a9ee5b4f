//! Metrics of a process (D12, C25): counters, gauges and histograms of which each core has its own
//! cell, their text in Prometheus form, and a ring of traced operations with the one that is under
//! way.
//!
//! Times come in from the caller, in nanoseconds of its `Env`: there is no clock here.
//!
//! Invariant: no I/O, no clock, no task; a lock only at registration and at a scrape.

mod histogram;
pub mod limits;
mod recent;
mod registry;
mod text;
mod trace;
mod tracer;

pub use histogram::{Distribution, Histogram, SharedHistogram};
pub use recent::{RECENT_BUCKETS, RecentLatencies, recent_bucket, recent_bucket_end};
pub use registry::{Counter, Gauge, Registry, SharedCounter};
pub use text::{Exposition, Family, Unit};
pub use trace::{Fact, Key, Operation, Outcome, Stage, Step, TraceRing};
pub use tracer::{Entered, Span, Tracer, current, with_current};
