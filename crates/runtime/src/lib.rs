//! The data-path runtime (C10-C12, design D2): an executor per core, buffers that are filled by
//! the network and written by the disk, and two drivers behind one [`Env`]: `io_uring`, and a
//! deterministic simulator.
//!
//! Logic reaches time, randomness, tasks, files and sockets only through [`Env`].
//!
//! Invariant: knows no message and no on-disk format.

mod buf;
mod env;
mod executor;
mod io;
pub mod limits;
mod note;
mod remote;
mod rng;
pub mod sim;
mod slab;
pub mod sync;
mod task;
mod time;
mod uring;
pub mod watch;
mod work;

pub use buf::{Buf, BufMut, BufPool, OutOfMemory};
pub use env::{Elapsed, Env, FrameFate, Sleep};
pub use executor::{Class, Stalled};
pub use io::{Entry, File, Listener, OpenOptions, ReadHalf, Stream, WriteHalf, WriteMode};
pub use rng::Rng;
pub use task::{Aborted, JoinHandle};
pub use time::{Instant, UnixTime};
pub use uring::{
    Cores, Handle, Overrun, PollPolicy, Refused, RemoteTask, Runtime, RuntimeConfig, Stats,
    real_now,
};

pub use std::time::Duration;
