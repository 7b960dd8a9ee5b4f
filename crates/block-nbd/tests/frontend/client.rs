//! A client that speaks NBD byte by byte, and exports in memory.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use base::{Fault, Kind};
use block_nbd::protocol::{
    Chunk, ClientHello, Command, Greeting, MetaQuery, OptionReply, OptionRequest, Request, Select,
    SimpleReply, decode_chunk, decode_reply,
};
use block_testing::memory::{Memory, MemoryDevice};
use block_volume::contract::{Answer, Device};
use block_volume::export::{About, Exports, Names};
use futures_util::FutureExt;
use runtime::{Env, Stream};

/// Magic of a simple reply.
const SIMPLE_MAGIC: [u8; 4] = [0x67, 0x44, 0x66, 0x98];

/// Exports that lie in memory.
pub struct InMemory {
    env: Env,
    pause: Duration,
    volumes: RefCell<BTreeMap<String, (Memory, About)>>,
}

impl InMemory {
    pub fn new(env: &Env, pause: Duration) -> Rc<InMemory> {
        Rc::new(InMemory { env: env.clone(), pause, volumes: RefCell::default() })
    }

    pub fn add(&self, name: &str, bytes: u64, shared: bool) {
        let description = format!("volume {name}");
        let about = About { bytes, description, read_only: name.starts_with("ro-"), shared };
        self.volumes.borrow_mut().insert(name.to_owned(), (Memory::new(), about));
    }

    fn find(&self, name: &str) -> Result<(Memory, About), Fault> {
        let found = self.volumes.borrow().get(name).cloned();
        found.ok_or_else(|| Fault::new(Kind::NotFound, format!("there is no volume '{name}'")))
    }
}

impl Exports for InMemory {
    /// Pages of 100 names: a list of more has several.
    fn names<'a>(&'a self, after: Option<&'a str>) -> Answer<'a, Names> {
        async move {
            let volumes = self.volumes.borrow();
            let above =
                volumes.keys().filter(|name| after.is_none_or(|after| name.as_str() > after));
            let mut names: Vec<String> = above.take(101).cloned().collect();
            let more = names.len() > 100;
            names.truncate(100);
            Ok(Names { names, more })
        }
        .boxed_local()
    }

    fn about<'a>(&'a self, name: &'a str) -> Answer<'a, About> {
        async move { Ok(self.find(name)?.1) }.boxed_local()
    }

    fn open<'a>(&'a self, name: &'a str) -> Answer<'a, Rc<dyn Device>> {
        async move {
            let (memory, about) = self.find(name)?;
            let device = MemoryDevice::new(&self.env, &memory, about.bytes, self.pause);
            Ok(Rc::new(device) as Rc<dyn Device>)
        }
        .boxed_local()
    }
}

/// A connection to a front end.
pub struct Client {
    env: Env,
    stream: Stream,
    got: Vec<u8>,
    next: u64,
    pub structured: bool,
    pub size: u64,
    pub flags: u16,
}

impl Client {
    /// A connection that has said hello.
    pub async fn connect(env: &Env, addr: SocketAddr) -> Client {
        let stream = env.connect(addr).await.expect("a connection");
        let (env, got) = (env.clone(), Vec::new());
        let mut this = Client { env, stream, got, next: 1, structured: false, size: 0, flags: 0 };
        let greeting = this.take(Greeting::LEN).await.expect("a greeting");
        Greeting::decode(greeting[..].try_into().unwrap()).expect("of NBD");
        this.send(&ClientHello { fixed: true, no_zeroes: true }.encode()).await;
        this
    }

    /// A connection that has an export open, with all that may be agreed on.
    pub async fn open(env: &Env, addr: SocketAddr, name: &str, structured: bool) -> Client {
        let mut this = Client::connect(env, addr).await;
        if structured {
            this.agree(name).await;
        }
        this.go(name).await.expect("an export");
        this
    }

    pub async fn agree(&mut self, name: &str) {
        assert_eq!(self.option(&OptionRequest::StructuredReply).await, [OptionReply::Ack]);
        self.structured = true;
        let (name, queries) = (name.to_owned(), vec!["base:allocation".to_owned()]);
        let set = OptionRequest::SetMetaContext(MetaQuery { name, queries });
        assert_eq!(self.option(&set).await.len(), 2);
    }

    pub async fn go(&mut self, name: &str) -> Result<(), OptionReply> {
        let select = Select { name: name.to_owned(), wants: vec![1, 2, 3] };
        let mut replies = self.option(&OptionRequest::Go(select)).await;
        let last = replies.pop().expect("an end");
        for reply in replies {
            if let OptionReply::Info(block_nbd::protocol::ServerInfo::Export { size, flags }) =
                reply
            {
                (self.size, self.flags) = (size, flags);
            }
        }
        if last == OptionReply::Ack { Ok(()) } else { Err(last) }
    }

    /// All replies to an option, up to its end.
    pub async fn option(&mut self, option: &OptionRequest) -> Vec<OptionReply> {
        let mut out = Vec::new();
        option.encode(&mut out);
        self.send(&out).await;
        let mut replies = Vec::new();
        loop {
            if let Some((to, reply, len)) = decode_reply(&self.got).expect("a reply") {
                self.got.drain(..len);
                assert_eq!(to, option.code());
                let last = matches!(reply, OptionReply::Ack | OptionReply::Refused { .. });
                replies.push(reply);
                if last {
                    return replies;
                }
            } else if !self.fill().await {
                return replies;
            }
        }
    }

    pub async fn send(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(1 << 20) {
            let buf = self.env.pool().copy_of(part).expect("within the budget");
            let _ = self.stream.write.write_all(vec![buf]).await;
        }
    }

    async fn fill(&mut self) -> bool {
        let buf = self.env.pool().alloc(64 << 10).expect("within the budget");
        let (count, buf) = self.stream.read.read(buf, 0).await;
        let count = count.unwrap_or(0);
        self.got.extend_from_slice(&buf[..count]);
        count > 0
    }

    /// The next bytes; nothing when the connection ends before.
    pub async fn take(&mut self, len: usize) -> Option<Vec<u8>> {
        while self.got.len() < len {
            if !self.fill().await {
                return None;
            }
        }
        Some(self.got.drain(..len).collect())
    }

    /// Sends a request; its cookie.
    pub async fn ask(
        &mut self,
        command: Command,
        flags: u16,
        (offset, len): (u64, u32),
        data: &[u8],
    ) -> u64 {
        let cookie = self.next;
        self.next += 1;
        let mut out = Request { command, flags, cookie, offset, len }.encode().to_vec();
        out.extend_from_slice(data);
        self.send(&out).await;
        cookie
    }

    /// The next chunk, with its cookie and whether it is the last.
    pub async fn chunk(&mut self) -> Option<(u64, bool, Chunk)> {
        loop {
            // Success without data comes as a simple reply.
            if self.got.starts_with(&SIMPLE_MAGIC) {
                if let Some(head) = self.got.first_chunk() {
                    let SimpleReply { cookie, error } = SimpleReply::decode(head).expect("simple");
                    assert_eq!(error, None);
                    self.got.drain(..SimpleReply::LEN);
                    return Some((cookie, true, Chunk::None));
                }
            } else if self.got.len() >= SIMPLE_MAGIC.len()
                && let Some((cookie, done, chunk, len)) = decode_chunk(&self.got).expect("a chunk")
            {
                self.got.drain(..len);
                return Some((cookie, done, chunk));
            }
            if !self.fill().await {
                return None;
            }
        }
    }

    /// Does a request and waits for its end: the bytes of a read, or the error's number.
    pub async fn call(
        &mut self,
        command: Command,
        flags: u16,
        (offset, len): (u64, u32),
        data: &[u8],
    ) -> Result<Vec<u8>, u32> {
        let asked = self.ask(command, flags, (offset, len), data).await;
        let is_read = command == Command::Read;
        if !self.structured {
            let head = self.take(SimpleReply::LEN).await.expect("a reply");
            let reply = SimpleReply::decode(head[..].try_into().unwrap()).expect("simple");
            assert_eq!(reply.cookie, asked);
            return match reply.error {
                Some(error) => Err(error.get()),
                None if is_read => Ok(self.take(len as usize).await.expect("the data")),
                None => Ok(Vec::new()),
            };
        }
        let mut all = vec![0; if is_read { len as usize } else { 0 }];
        let mut filled = 0;
        loop {
            let (cookie, done, chunk) = self.chunk().await.expect("a chunk");
            assert_eq!(cookie, asked);
            match chunk {
                Chunk::Data { offset: at, bytes } => {
                    let from = (at - offset) as usize;
                    all[from..from + bytes.len()].copy_from_slice(&bytes);
                    filled += bytes.len();
                }
                Chunk::Error { errno, .. } => return Err(errno.get()),
                Chunk::None => {}
                other => panic!("{other:?} for {command:?}"),
            }
            if done {
                assert_eq!(filled, all.len());
                return Ok(all);
            }
        }
    }
}
