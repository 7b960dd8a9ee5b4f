//! An open volume, for any thread.

use std::cell::RefCell;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

use base::Fault;
use block_client::{Limits, VolumeExports};
use block_proto::Managers;
use block_volume::contract::{Clear, Device};
use block_volume::export::Exports;
use block_volume::geometry::Extent;
use block_volume::limits::IO_MAX;
use client::{Client, Connection};
use futures_util::future::{Either, LocalBoxFuture, select};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt, poll};
use runtime::sync::{Mutex, Semaphore, SemaphorePermit};
use runtime::{Cores, Duration, Env, Refused, RuntimeConfig};
use transport::{Endpoint, Identity};

use crate::error::{Error, errno};
use crate::memory::Memory;

#[cfg(test)]
mod tests;

/// Asynchronous calls under way on one volume: `CRATON_ASYNC_MAX` in `craton.h`.
pub const ASYNC_MAX: usize = 1024;
/// Bytes of buffers of one volume at most.
const POOL_BYTES: usize = 256 << 20;
/// Parts of calls, of [`IO_MAX`] bytes at most, under way at once.
const PARTS_MAX: usize = 64;
/// How long a detachment may take until the end is not waited for.
const DETACH_WAIT: Duration = Duration::from_secs(3);
/// Between two looks at what is waited for.
const LOOK: Duration = Duration::from_millis(5);

// Each part may have its bytes twice: whole, and as a segment has them.
const _: () = assert!(2 * 2 * PARTS_MAX * IO_MAX <= POOL_BYTES);

/// What a call does.
#[derive(Clone, Copy)]
pub enum Call {
    /// Fills the memory.
    Read(Memory),
    /// Writes the memory.
    Write(Memory),
    /// Makes this many bytes read as zeroes.
    Discard(u64),
    /// Waits for nothing: what has returned is durable.
    Flush,
}

/// What stays on the executor's thread.
struct Attached {
    env: Env,
    managers: Managers,
    exports: VolumeExports,
    holder: String,
    name: String,
    device: Rc<dyn Device>,
    /// Turns of calls, in the order of their start: the device orders requests by their first poll.
    order: Mutex<()>,
    parts: Semaphore,
}

thread_local! {
    /// The volume of this executor: it has only one.
    static OPEN: RefCell<Option<Rc<Attached>>> = const { RefCell::new(None) };
}

/// A volume that is open.
pub struct Volume {
    cores: Cores,
    bytes: u64,
    under_way: Arc<AtomicUsize>,
}

fn stopped(refused: Refused) -> Error {
    let errno = if refused == Refused::Full { errno::EAGAIN } else { errno::EIO };
    Error::new(errno, refused.to_string())
}

impl Volume {
    /// Opens a volume on an executor of its own.
    pub fn open(connection: Connection, name: String) -> Result<Volume, Error> {
        let named = RuntimeConfig::named("craton-volume");
        let config = RuntimeConfig { huge_pages: false, pool_bytes: POOL_BYTES, ..named };
        let cores = Cores::start(&config, 1).map_err(|error| {
            let errno = error.raw_os_error().unwrap_or(errno::EIO);
            let text =
                format!("io_uring cannot be used here ({error}): Linux 6.1 or later is needed");
            Error::new(errno, text)
        })?;
        let opened = cores.handles()[0].spawn(move |env| async move {
            let attached = attach(env, connection, name).await?;
            let bytes = attached.device.bytes();
            OPEN.with(|open| *open.borrow_mut() = Some(Rc::new(attached)));
            Ok::<_, Error>(bytes)
        });
        let bytes = opened.wait().map_err(stopped)??;
        Ok(Volume { cores, bytes, under_way: Arc::default() })
    }

    /// Its bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn check(&self, call: Call, offset: u64) -> Result<(), Error> {
        let len = match call {
            Call::Read(memory) | Call::Write(memory) => memory.len() as u64,
            Call::Discard(len) => len,
            Call::Flush => 0,
        };
        match offset.checked_add(len).is_some_and(|end| end <= self.bytes) {
            true => Ok(()),
            false => Err(Error::new(
                errno::EINVAL,
                format!("{len} bytes at {offset} of a volume of {}", self.bytes),
            )),
        }
    }

    /// Does a call and waits for its end.
    pub fn call(&self, call: Call, offset: u64) -> Result<i64, Error> {
        self.check(call, offset)?;
        let done = self.cores.handles()[0].spawn(move |_| perform(call, offset));
        done.wait().map_err(stopped)?
    }

    /// Begins a call; `done` gets its end, on the executor's thread. It gets none of a call that fails
    /// to begin.
    pub fn start(
        &self,
        call: Call,
        offset: u64,
        done: impl FnOnce(Result<i64, Error>) + Send + 'static,
    ) -> Result<(), Error> {
        self.check(call, offset)?;
        if self.under_way.fetch_add(1, Ordering::AcqRel) >= ASYNC_MAX {
            self.under_way.fetch_sub(1, Ordering::AcqRel);
            let text = format!("{ASYNC_MAX} calls are under way: wait for one of them");
            return Err(Error::new(errno::EAGAIN, text));
        }
        let count = self.under_way.clone();
        let begun = self.cores.handles()[0].spawn(move |_| async move {
            done(perform(call, offset).await);
            count.fetch_sub(1, Ordering::AcqRel);
        });
        // The bound is below the inbox's, but calls that wait may fill it, and the executor may end.
        if let Some(Err(refused)) = begun.now_or_never() {
            self.under_way.fetch_sub(1, Ordering::AcqRel);
            return Err(stopped(refused));
        }
        Ok(())
    }

    /// Waits for what is under way, and gives the volume back.
    pub fn close(self) -> Result<(), Error> {
        let count = self.under_way.clone();
        let closed = self.cores.handles()[0].spawn(move |env| async move {
            while count.load(Ordering::Acquire) > 0 {
                env.sleep(LOOK).await;
            }
            let open = OPEN.with(|open| open.borrow_mut().take());
            if let Some(open) = open.and_then(Rc::into_inner) {
                detach(open).await;
            }
        });
        let closed = closed.wait().map_err(stopped);
        self.cores.stop();
        closed
    }
}

const _: () = assert!(ASYNC_MAX <= runtime::limits::INBOX_MAX / 2);

async fn attach(env: Env, connection: Connection, name: String) -> Result<Attached, Error> {
    let identity = || Identity {
        cluster: connection.cluster,
        key: connection.key.clone(),
        name: connection.name.clone(),
    };
    let endpoint = || Endpoint::new(&env, identity(), transport::Limits::default());
    let client =
        Client::connect(&env, endpoint(), connection.masters.clone(), connection.config.clone());
    let client = client.await.map_err(|error| Error::new(errno::EIO, error.to_string()))?;
    let managers = Managers::new(&client);
    let info = managers.volume(&name).await.map_err(Fault::from)?;
    let holder = format!("program {} ({:08x})", std::process::id(), env.random_u64() as u32);
    let exports = VolumeExports::new(&managers, &endpoint(), &holder, Limits::default());
    let device = exports.open(&name).await.map_err(|fault| {
        let busy = !info.attachments.is_empty();
        let error = Error::from(fault);
        Error { errno: if busy { errno::EBUSY } else { error.errno }, ..error }
    })?;
    let (order, parts) = (Mutex::new(()), Semaphore::new(PARTS_MAX));
    Ok(Attached { env, managers, exports, holder, name, device, order, parts })
}

async fn detach(open: Attached) {
    let Attached { env, managers, exports, holder, name, device, .. } = open;
    drop(device); // Begins to detach.
    let gone = async {
        while let Ok(info) = managers.volume(&name).await
            && info.attachments.iter().any(|one| one.holder == holder)
        {
            env.sleep(LOOK).await;
        }
    };
    // The block manager ends it by itself when no client keeps it.
    let _ = env.timeout(DETACH_WAIT, gone).await;
    drop(exports);
}

async fn perform(call: Call, offset: u64) -> Result<i64, Error> {
    let open = OPEN.with(|open| open.borrow().clone());
    let open = open.ok_or_else(|| Error::new(errno::EINVAL, "the volume is closed"))?;
    match call {
        Call::Read(memory) | Call::Write(memory) => move_all(&open, call, memory, offset).await,
        // What has returned is durable (`protocols.md` 6.3).
        Call::Discard(0) | Call::Flush => Ok(0),
        Call::Discard(len) => {
            let turn = open.order.lock().await;
            let mut cleared = pin!(open.device.clear(Extent { offset, len }, Clear::Trim));
            let begun = poll!(&mut cleared);
            drop(turn);
            match begun {
                Poll::Ready(done) => done?,
                Poll::Pending => cleared.await?,
            }
            Ok(0)
        }
    }
}

/// Reads or writes. The call's turn ends when the device has all its parts: a later call that
/// overlaps takes effect after it.
async fn move_all(open: &Attached, call: Call, memory: Memory, offset: u64) -> Result<i64, Error> {
    let turn = open.order.lock().await;
    let mut under_way: FuturesUnordered<LocalBoxFuture<'_, Result<(), Error>>> =
        FuturesUnordered::new();
    let mut result = Ok(());
    let (mut at, len) = (0, memory.len());
    while at < len {
        let place = offset + at as u64;
        let part = (IO_MAX - (place % IO_MAX as u64) as usize).min(len - at);
        let permit = loop {
            if under_way.is_empty() {
                break open.parts.acquire().await;
            }
            // Parts of this call end here too: its next parts may wait for their permits.
            match select(pin!(open.parts.acquire()), under_way.next()).await {
                Either::Left((permit, _)) => break permit,
                Either::Right((done, _)) => result = result.and(done.unwrap_or(Ok(()))),
            }
        };
        let permit = permit.expect("never closed");
        let part_of = Part { at, place, len: part };
        let mut moved = move_part(open, call, part_of, permit).boxed_local();
        match poll!(&mut moved) {
            Poll::Ready(done) => result = result.and(done),
            Poll::Pending => under_way.push(moved),
        }
        at += part;
    }
    drop(turn);
    // All ends are waited for: nothing touches the memory when an error is reported.
    while let Some(done) = under_way.next().await {
        result = result.and(done);
    }
    result.map(|()| len as i64)
}

/// A part of a call: where in the memory, where in the volume, how much.
struct Part {
    at: usize,
    place: u64,
    len: usize,
}

/// The device has the part after the first poll.
async fn move_part(
    open: &Attached,
    call: Call,
    part: Part,
    _permit: SemaphorePermit<'_>,
) -> Result<(), Error> {
    let Part { at, place, len } = part;
    match call {
        Call::Read(memory) => {
            let data = open.device.read(Extent { offset: place, len: len as u64 }).await?;
            memory.fill(at, &data);
        }
        Call::Write(memory) => {
            let failed = |error| Error::new(errno::EAGAIN, format!("no memory: {error}"));
            let mut data = open.env.pool().alloc(len).map_err(failed)?;
            memory.copy_to(at, &mut data);
            open.device.write(place, data.freeze()).await?;
        }
        Call::Discard(_) | Call::Flush => unreachable!("they have no parts"),
    }
    Ok(())
}
