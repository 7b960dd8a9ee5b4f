//! Channels and permits between tasks. They are `tokio`'s, which run on any executor; only its
//! `sync` feature is compiled in. There is no unbounded channel (house style 3.5).

pub use tokio::sync::{Mutex, Notify, OwnedSemaphorePermit, Semaphore, SemaphorePermit};
pub use tokio::sync::{oneshot, watch};

/// Bounded queues with many producers and one consumer.
pub mod mpsc {
    pub use tokio::sync::mpsc::error::{SendError, TryRecvError, TrySendError};
    pub use tokio::sync::mpsc::{Receiver, Sender, channel};
}
