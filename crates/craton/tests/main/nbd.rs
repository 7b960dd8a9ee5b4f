//! A minimal NBD client: one connection, one request at a time. It can send invalid requests.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

pub const BLOCK: usize = 4096;
pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
const DISC: u16 = 2;
pub const TRIM: u16 = 4;

/// The longest that an answer may take on the slowest machine.
const TIMEOUT: Duration = Duration::from_secs(60);

const OPTION_EXPORT: u32 = 7;
const ACK: u32 = 1;
const INFO: u32 = 3;
/// The highest bit of a refusal's number.
pub const REFUSED: u32 = 1 << 31;

/// Both kinds of sockets.
enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Read for Socket {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.read(buf),
            Socket::Unix(stream) => stream.read(buf),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.write(buf),
            Socket::Unix(stream) => stream.write(buf),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(()) // There is no buffer here.
    }
}

/// A connection that has an export open.
pub struct Nbd {
    stream: Socket,
    pub bytes: u64,
    cookie: u64,
    /// It disconnects properly when it is dropped.
    polite: bool,
}

/// A connection that was greeted and has said who it is.
pub struct Negotiation(Socket);

/// The address and the name of `nbd://HOST:PORT/NAME`.
fn parts(url: &str) -> (&str, &str) {
    url.strip_prefix("nbd://").and_then(|url| url.split_once('/')).expect("an address")
}

/// Connects to an export's address, and sends nothing.
pub fn connect(url: &str) -> TcpStream {
    let stream = TcpStream::connect(parts(url).0).expect("the front end takes connections");
    stream.set_nodelay(true).expect("a socket");
    stream.set_read_timeout(Some(TIMEOUT)).expect("a socket");
    stream
}

impl Negotiation {
    pub fn begin(url: &str) -> Negotiation {
        Negotiation::over(Socket::Tcp(connect(url)))
    }

    fn over(mut stream: Socket) -> Negotiation {
        let mut hello = [0; 18];
        stream.read_exact(&mut hello).expect("a greeting");
        assert_eq!(&hello[..8], b"NBDMAGIC");
        stream.write_all(&3u32.to_be_bytes()).expect("it is sent");
        Negotiation(stream)
    }

    /// Sends bytes as they are.
    pub fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).expect("it is sent");
    }

    /// Sends an option; the number of the last answer and its data, with the facts before it.
    pub fn option(&mut self, code: u32, data: &[u8]) -> (u32, Vec<u8>, Vec<Vec<u8>>) {
        let mut ask = b"IHAVEOPT".to_vec();
        ask.extend(code.to_be_bytes());
        ask.extend((data.len() as u32).to_be_bytes());
        ask.extend(data);
        self.send(&ask);
        let mut facts = Vec::new();
        loop {
            let mut head = [0; 20];
            self.0.read_exact(&mut head).expect("a reply");
            let number = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().expect("4"));
            assert_eq!(number(8), code, "the reply is to another option");
            let mut data = vec![0; number(16) as usize];
            self.0.read_exact(&mut data).expect("its data");
            match number(12) {
                INFO => facts.push(data),
                last => return (last, data, facts),
            }
        }
    }

    /// Opens an export, or returns the number of the refusal and its words.
    pub fn go(mut self, name: &[u8]) -> Result<Nbd, (Negotiation, u32, String)> {
        let mut data = (name.len() as u32).to_be_bytes().to_vec();
        data.extend(name);
        data.extend([0, 0]);
        let (code, words, facts) = self.option(OPTION_EXPORT, &data);
        if code != ACK {
            return Err((self, code, String::from_utf8_lossy(&words).into_owned()));
        }
        let export = facts.iter().find(|fact| fact[..2] == [0, 0]).expect("its length");
        let bytes = u64::from_be_bytes(export[2..10].try_into().expect("8 bytes"));
        Ok(Nbd { stream: self.0, bytes, cookie: 0, polite: true })
    }
}

impl Nbd {
    pub fn open(url: &str) -> Nbd {
        Nbd::try_open(url).unwrap_or_else(|(code, words)| panic!("refused: {code:x} {words}"))
    }

    pub fn try_open(url: &str) -> Result<Nbd, (u32, String)> {
        let opened = Negotiation::begin(url).go(parts(url).1.as_bytes());
        opened.map_err(|(_, code, words)| (code, words))
    }

    /// The same export at the front end's Unix socket.
    pub fn open_unix(socket: &str, name: &str) -> Nbd {
        let stream = UnixStream::connect(socket).expect("the front end takes connections");
        stream.set_read_timeout(Some(TIMEOUT)).expect("a socket");
        let opened = Negotiation::over(Socket::Unix(stream)).go(name.as_bytes());
        opened.unwrap_or_else(|(_, code, words)| panic!("refused: {code:x} {words}"))
    }

    /// Does a request that must succeed.
    pub fn ask(&mut self, op: u16, offset: u64, len: usize, data: &[u8]) -> Vec<u8> {
        self.try_ask(op, 0, (offset, len as u32), data)
            .unwrap_or_else(|error| panic!("the request failed with {error}"))
    }

    /// Does a request: the bytes of a read, or the number of the error.
    pub fn try_ask(
        &mut self,
        op: u16,
        flags: u16,
        (offset, len): (u64, u32),
        data: &[u8],
    ) -> Result<Vec<u8>, u32> {
        self.cookie += 1;
        let mut request = head(op, flags, self.cookie, (offset, len));
        request.extend(data);
        self.send(&request).expect("the socket stays open");
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply).expect("the socket stays open");
        assert_eq!(reply[..4], 0x6744_6698u32.to_be_bytes(), "a simple reply");
        assert_eq!(reply[8..], self.cookie.to_be_bytes());
        let error = u32::from_be_bytes(reply[4..8].try_into().expect("4 bytes"));
        if error != 0 {
            return Err(error);
        }
        let mut data = vec![0; if op == READ { len as usize } else { 0 }];
        self.stream.read_exact(&mut data).expect("the socket stays open");
        Ok(data)
    }

    /// Sends bytes as they are.
    pub fn send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// True when the front end ends the connection before it sends anything.
    pub fn ends(mut self) -> bool {
        ends(&mut self.stream)
    }

    /// The connection itself, without further requests.
    pub fn into_tcp(mut self) -> TcpStream {
        self.polite = false;
        match &self.stream {
            Socket::Tcp(stream) => stream.try_clone().expect("a socket"),
            Socket::Unix(_) => panic!("a Unix socket"),
        }
    }

    /// Sends bytes and closes the connection without a disconnect.
    pub fn go_away_after(mut self, bytes: &[u8]) {
        self.send(bytes).expect("it is sent");
        self.polite = false;
    }
}

/// The head of a request.
pub fn head(op: u16, flags: u16, cookie: u64, (offset, len): (u64, u32)) -> Vec<u8> {
    let mut head = 0x2560_9513u32.to_be_bytes().to_vec();
    head.extend(flags.to_be_bytes());
    head.extend(op.to_be_bytes());
    head.extend(cookie.to_be_bytes());
    head.extend(offset.to_be_bytes());
    head.extend(len.to_be_bytes());
    head
}

/// True when the other side ends a connection before it sends anything more. Bytes that it had not
/// read make a reset of it.
pub fn ends(stream: &mut impl Read) -> bool {
    match stream.read(&mut [0; 1]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

impl Drop for Nbd {
    fn drop(&mut self) {
        if !self.polite {
            return;
        }
        // Fails when the other side is gone.
        let _ = self.send(&head(DISC, 0, 0, (0, 0)));
    }
}
