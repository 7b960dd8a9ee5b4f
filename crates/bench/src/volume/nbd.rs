//! An NBD client for measurements: one connection, simple replies, many requests under way. It
//! drops the bytes that it reads.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;

use block_nbd::protocol::{
    ClientHello, Command, Greeting, OptionReply, OptionRequest, Request, Select, SimpleReply,
    decode_reply,
};
use runtime::sync::{Mutex, oneshot};
use runtime::{Buf, Class, Env, JoinHandle, ReadHalf, WriteHalf};

use super::super::Error;

/// Bytes that one system call takes in at most: an answer of 128 KiB with its neighbours.
const RECEIVE_BYTES: usize = 256 << 10;

/// A request that is not answered: the bytes of its successful answer, and the sender of its outcome.
type Waiting = (usize, oneshot::Sender<Result<(), Error>>);

struct Shared {
    waiting: RefCell<BTreeMap<u64, Waiting>>,
    ended: Cell<bool>,
}

/// A connection with an export open. It ends when dropped.
pub(super) struct Nbd {
    env: Env,
    write: Mutex<WriteHalf>,
    next: Cell<u64>,
    shared: Rc<Shared>,
    receiving: JoinHandle<()>,
}

fn say(error: impl std::fmt::Display) -> Error {
    Error::Failed(format!("NBD: {error}"))
}

impl Nbd {
    /// Opens the export `name` at a front end.
    pub(super) async fn open(env: &Env, addr: SocketAddr, name: &str) -> Result<Nbd, Error> {
        let stream = env.connect(addr).await.map_err(say)?;
        let (mut read, mut write) = (stream.read, stream.write);
        let mut got = Vec::new();
        let mut hello = ClientHello { fixed: true, no_zeroes: true }.encode().to_vec();
        let select = Select { name: name.to_owned(), wants: Vec::new() };
        OptionRequest::Go(select).encode(&mut hello);
        write.write_all(vec![env.pool().copy_of(&hello).map_err(say)?]).await.map_err(say)?;
        while got.len() < Greeting::LEN {
            receive(env, &mut read, &mut got).await?;
        }
        let greeting = got.first_chunk().expect("as many as it takes");
        Greeting::decode(greeting).map_err(say)?;
        got.drain(..Greeting::LEN);
        loop {
            match decode_reply(&got).map_err(say)? {
                None => receive(env, &mut read, &mut got).await?,
                Some((_, reply, len)) => {
                    got.drain(..len);
                    match reply {
                        OptionReply::Ack => break,
                        OptionReply::Refused { message, .. } => return Err(say(message)),
                        _ => {}
                    }
                }
            }
        }
        let shared = Rc::new(Shared { waiting: RefCell::default(), ended: Cell::new(false) });
        let (task_env, task_shared) = (env.clone(), shared.clone());
        let receiving = env.spawn(Class::Foreground, "bench NBD answers", async move {
            let why = match answers(&task_env, &mut read, &mut got, &task_shared).await {
                Ok(()) => Error::failed("the front end closed the connection"),
                Err(why) => why,
            };
            task_shared.ended.set(true);
            for (_, (_, waits)) in task_shared.waiting.take() {
                let _ = waits.send(Err(why.clone())); // The request may have been dropped.
            }
        });
        let (next, write) = (Cell::new(1), Mutex::new(write));
        Ok(Nbd { env: env.clone(), write, next, shared, receiving })
    }

    /// Reads a range.
    pub(super) async fn read(&self, offset: u64, len: usize) -> Result<(), Error> {
        self.ask(Command::Read, offset, len, None).await
    }

    /// Writes a range.
    pub(super) async fn write(&self, offset: u64, data: &Buf) -> Result<(), Error> {
        self.ask(Command::Write, offset, data.len(), Some(data.clone())).await
    }

    async fn ask(
        &self,
        command: Command,
        offset: u64,
        len: usize,
        data: Option<Buf>,
    ) -> Result<(), Error> {
        let cookie = self.next.get();
        self.next.set(cookie + 1);
        let request = Request { command, flags: 0, cookie, offset, len: len as u32 };
        let mut bufs = vec![self.env.pool().copy_of(&request.encode()).map_err(say)?];
        let answer = if command == Command::Read { len } else { 0 };
        bufs.extend(data);
        let (sender, waits) = oneshot::channel();
        self.shared.waiting.borrow_mut().insert(cookie, (answer, sender));
        if self.shared.ended.get() {
            return Err(say("the connection has ended"));
        }
        self.write.lock().await.write_all(bufs).await.map_err(say)?;
        waits.await.map_err(say)?
    }
}

impl Drop for Nbd {
    fn drop(&mut self) {
        self.receiving.abort();
    }
}

/// Passes each answer to its request, until the connection ends.
async fn answers(
    env: &Env,
    read: &mut ReadHalf,
    got: &mut Vec<u8>,
    shared: &Shared,
) -> Result<(), Error> {
    loop {
        let Some(head) = got.first_chunk() else {
            receive(env, read, got).await?;
            continue;
        };
        let reply = SimpleReply::decode(head).map_err(say)?;
        let asked = shared.waiting.borrow_mut().remove(&reply.cookie);
        let (len, waits) = asked.ok_or_else(|| say("an answer to nothing"))?;
        let outcome = match reply.error {
            None => {
                while got.len() < SimpleReply::LEN + len {
                    receive(env, read, got).await?;
                }
                got.drain(..SimpleReply::LEN + len);
                Ok(())
            }
            Some(error) => {
                got.drain(..SimpleReply::LEN);
                Err(say(format!("a request failed with {error:?}")))
            }
        };
        let _ = waits.send(outcome); // The request may have been dropped.
    }
}

async fn receive(env: &Env, read: &mut ReadHalf, got: &mut Vec<u8>) -> Result<(), Error> {
    let buf = env.pool().alloc(RECEIVE_BYTES).map_err(say)?;
    let (count, buf) = read.read(buf, 0).await;
    match count.map_err(say)? {
        0 => Err(say("the front end closed the connection")),
        count => {
            got.extend_from_slice(&buf[..count]);
            Ok(())
        }
    }
}
