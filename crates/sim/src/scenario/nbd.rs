//! A client of NBD, as the kernel of a virtual machine is one: one request at a time.

use std::net::SocketAddr;

use block_nbd::protocol::{
    Chunk, ClientHello, Command, Greeting, OptionReply, OptionRequest, Request, Select,
    SimpleReply, decode_chunk, decode_reply,
};
use block_volume::geometry::Extent;
use runtime::{Env, Stream};

/// First bytes of a simple reply.
const SIMPLE_MAGIC: [u8; 4] = [0x67, 0x44, 0x66, 0x98];
/// Bytes that are received at a time at most.
const RECEIVE_BYTES: usize = 16 << 10;

/// A connection that has an export open.
pub(super) struct Connection {
    env: Env,
    stream: Stream,
    got: Vec<u8>,
    /// Of requests that were sent.
    count: u64,
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl Connection {
    /// Opens an export, with structured replies or without.
    pub(super) async fn open(
        env: &Env,
        addr: SocketAddr,
        name: &str,
        structured: bool,
    ) -> Result<Connection, String> {
        let stream = env.connect(addr).await.map_err(text)?;
        let mut this = Connection { env: env.clone(), stream, got: Vec::new(), count: 0 };
        let greeting = this.take(Greeting::LEN).await?;
        Greeting::decode(greeting[..].try_into().expect("so many")).map_err(text)?;
        this.send(&ClientHello { fixed: true, no_zeroes: true }.encode()).await?;
        if structured {
            this.choose(&OptionRequest::StructuredReply).await?;
        }
        let select = Select { name: name.to_owned(), wants: Vec::new() };
        this.choose(&OptionRequest::Go(select)).await?;
        Ok(this)
    }

    /// Succeeds when the server grants an option.
    async fn choose(&mut self, option: &OptionRequest) -> Result<(), String> {
        let mut out = Vec::new();
        option.encode(&mut out);
        self.send(&out).await?;
        loop {
            let Some((_, reply, len)) = decode_reply(&self.got).map_err(text)? else {
                self.receive().await?;
                continue;
            };
            self.got.drain(..len);
            match reply {
                OptionReply::Ack => return Ok(()),
                OptionReply::Refused { message, .. } => return Err(message),
                _ => {}
            }
        }
    }

    /// Does a request; the bytes of a read.
    pub(super) async fn request(
        &mut self,
        command: Command,
        flags: u16,
        Extent { offset, len }: Extent,
        data: &[u8],
    ) -> Result<Vec<u8>, String> {
        self.count += 1;
        let (cookie, len) = (self.count, u32::try_from(len).map_err(text)?);
        let mut out = Request { command, flags, cookie, offset, len }.encode().to_vec();
        out.extend_from_slice(data);
        self.send(&out).await?;
        let mut found = vec![0; if command == Command::Read { len as usize } else { 0 }];
        loop {
            let (answers, last) = self.reply(offset, &mut found).await?;
            if answers != cookie {
                return Err(format!("request {cookie} is answered as {answers}"));
            }
            if last {
                return Ok(found);
            }
        }
    }

    /// Takes one reply or chunk: whose it is, and whether it is the last.
    async fn reply(&mut self, from: u64, found: &mut [u8]) -> Result<(u64, bool), String> {
        while self.got.len() < SIMPLE_MAGIC.len() {
            self.receive().await?;
        }
        if self.got.starts_with(&SIMPLE_MAGIC) {
            let head = self.take(SimpleReply::LEN).await?;
            let head = SimpleReply::decode(head[..].try_into().expect("so many")).map_err(text)?;
            if let Some(errno) = head.error {
                return Err(format!("{errno:?}"));
            }
            let data = self.take(found.len()).await?;
            found.copy_from_slice(&data);
            return Ok((head.cookie, true));
        }
        loop {
            let Some((cookie, last, chunk, len)) = decode_chunk(&self.got).map_err(text)? else {
                self.receive().await?;
                continue;
            };
            self.got.drain(..len);
            match chunk {
                Chunk::Data { offset, bytes } => {
                    let at = offset.checked_sub(from).and_then(|at| usize::try_from(at).ok());
                    let room = at.and_then(|at| found.get_mut(at..at + bytes.len()));
                    room.ok_or("data beside what was asked for")?.copy_from_slice(&bytes);
                }
                Chunk::Hole { .. } | Chunk::None => {} // It was zero before.
                Chunk::Error { errno, message, .. } => return Err(format!("{errno:?}: {message}")),
                Chunk::Status { .. } => return Err("a status that was not asked for".to_owned()),
            }
            return Ok((cookie, last));
        }
    }

    async fn send(&mut self, bytes: &[u8]) -> Result<(), String> {
        let bytes = self.env.pool().copy_of(bytes).map_err(text)?;
        self.stream.write.write_all(vec![bytes]).await.map_err(text)
    }

    async fn receive(&mut self) -> Result<(), String> {
        let buf = self.env.pool().alloc(RECEIVE_BYTES).map_err(text)?;
        let (count, buf) = self.stream.read.read(buf, 0).await;
        match count.map_err(text)? {
            0 => Err("the front end has closed the connection".to_owned()),
            count => {
                self.got.extend_from_slice(&buf[..count]);
                Ok(())
            }
        }
    }

    async fn take(&mut self, len: usize) -> Result<Vec<u8>, String> {
        while self.got.len() < len {
            self.receive().await?;
        }
        Ok(self.got.drain(..len).collect())
    }
}
