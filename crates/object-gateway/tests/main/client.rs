//! A gateway with a model behind it, and a client that sends what a test says, byte for byte.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use object_gateway::{Gateway, GatewayConfig, KeyFile, Keyring};

use crate::model::Model;
use crate::signer::{Signer, ToSign, encode, names, sha256};

pub const BUCKET: &str = "bucket";
pub const UNSIGNED: &str = "UNSIGNED-PAYLOAD";

/// A gateway, its model, and two users.
pub struct Bed {
    pub model: Model,
    pub gateway: Gateway,
}

/// An administrator's key.
pub const ADMIN: (&str, &str) = ("AKADMIN", "admin's secret/+");
/// Another user's key.
pub const OTHER: (&str, &str) = ("AKOTHER", "other secret");

impl Bed {
    pub fn new() -> Bed {
        Bed::with(GatewayConfig::default())
    }

    fn key_file() -> KeyFile {
        let text = format!(
            "1 k1 {}\n2 team 1 {}\n2 team 2 {}\n",
            "0a".repeat(32),
            "0b".repeat(32),
            "0c".repeat(32)
        );
        KeyFile::parse(&text).expect("a key file")
    }

    /// Adds a user with a key.
    pub fn add_user(&self, name: &str, (id, secret): (&str, &str)) {
        self.model.add_user(name, false, id, secret, &Bed::key_file());
    }

    pub fn with(config: GatewayConfig) -> Bed {
        let file = Bed::key_file();
        let model = Model::default();
        model.add_user("admin", true, ADMIN.0, ADMIN.1, &file);
        model.add_user("other", false, OTHER.0, OTHER.1, &file);
        let gateway = Gateway::start(config, Arc::new(model.clone()), Arc::new(Keyring::of(file)));
        let gateway = gateway.expect("a gateway");
        gateway.set_ready(true);
        Bed { model, gateway }
    }

    /// With a bucket.
    pub fn with_bucket() -> Bed {
        let bed = Bed::new();
        assert_eq!(bed.ask("PUT", "/bucket").send().status, 200);
        bed
    }

    /// A request of the administrator's.
    pub fn ask(&self, method: &str, path: &str) -> Ask {
        Ask::new(self.gateway.addr(), method, path)
    }

    /// A request for an object.
    pub fn object(&self, method: &str, key: &str) -> Ask {
        self.ask(method, &format!("/{BUCKET}/{key}"))
    }

    pub fn put(&self, key: &str, content: &[u8]) -> Reply {
        self.object("PUT", key).body(content).send()
    }

    pub fn connect(&self) -> TcpStream {
        connect(self.gateway.addr())
    }
}

fn connect(addr: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(addr).expect("a connection");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
    stream
}

/// Seconds since 1970.
#[expect(clippy::disallowed_methods, reason = "signatures are valid by the wall clock")]
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs()
}

/// A time as signatures have it.
pub fn amz_time(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Days since 0000-03-01, in eras of 400 years.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z")
}

#[test]
fn times_are_written_as_signatures_have_them() {
    assert_eq!(amz_time(0), "19700101T000000Z");
    assert_eq!(amz_time(951_782_400 + 3_661), "20000229T010101Z");
    assert_eq!(amz_time(1_369_353_600), "20130524T000000Z");
}

/// A request.
#[derive(Clone)]
pub struct Ask {
    addr: SocketAddr,
    method: String,
    /// Encoded.
    path: String,
    query: Vec<(String, String)>,
    headers: Vec<(String, String)>,
    unsigned: Vec<(String, String)>,
    body: Vec<u8>,
    payload: Option<String>,
    pub signer: Signer,
}

impl Ask {
    pub fn new(addr: SocketAddr, method: &str, path: &str) -> Ask {
        let signer = Signer {
            key: ADMIN.0.to_owned(),
            secret: ADMIN.1.to_owned(),
            time: amz_time(now()),
            region: "us-east-1".to_owned(),
        };
        Ask {
            addr,
            method: method.to_owned(),
            path: encode(path, false),
            query: Vec::new(),
            headers: vec![("host".to_owned(), addr.to_string())],
            unsigned: Vec::new(),
            body: Vec::new(),
            payload: None,
            signer,
        }
    }

    pub fn by(mut self, (key, secret): (&str, &str)) -> Ask {
        (self.signer.key, self.signer.secret) = (key.to_owned(), secret.to_owned());
        self
    }

    pub fn at(mut self, seconds: u64) -> Ask {
        self.signer.time = amz_time(seconds);
        self
    }

    pub fn region(mut self, region: &str) -> Ask {
        region.clone_into(&mut self.signer.region);
        self
    }

    pub fn query(mut self, name: &str, value: &str) -> Ask {
        self.query.push((encode(name, true), encode(value, true)));
        self
    }

    pub fn host(mut self, host: &str) -> Ask {
        host.clone_into(&mut self.headers[0].1);
        self
    }

    /// A signed header.
    pub fn header(mut self, name: &str, value: &str) -> Ask {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// A header that is not signed.
    pub fn unsigned(mut self, name: &str, value: &str) -> Ask {
        self.unsigned.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn body(mut self, body: &[u8]) -> Ask {
        self.body = body.to_vec();
        self
    }

    /// What is signed for the body.
    pub fn payload(mut self, payload: &str) -> Ask {
        self.payload = Some(payload.to_owned());
        self
    }

    fn signed(&self) -> Ask {
        let mut ask = self.clone();
        let payload = ask.payload.clone().unwrap_or_else(|| sha256(&ask.body));
        ask.headers.push(("x-amz-content-sha256".to_owned(), payload.clone()));
        ask.headers.push(("x-amz-date".to_owned(), ask.signer.time.clone()));
        ask.payload = Some(payload);
        ask
    }

    fn to_sign<'a>(&'a self, payload: &'a str) -> ToSign<'a> {
        ToSign {
            method: &self.method,
            path: &self.path,
            query: &self.query,
            headers: &self.headers,
            payload,
        }
    }

    /// The signature that the first chunk's follows.
    pub fn seed(&self) -> String {
        let ask = self.signed();
        let payload = ask.payload.clone().unwrap_or_default();
        ask.signer.signature(&ask.to_sign(&payload))
    }

    /// The whole request, signed in its head.
    pub fn bytes(&self) -> Vec<u8> {
        let ask = self.signed();
        let payload = ask.payload.clone().unwrap_or_default();
        let authorization = ask.signer.authorization(&ask.to_sign(&payload));
        ask.written(&[("authorization".to_owned(), authorization)])
    }

    /// The request as it is, without a signature.
    pub fn plain_bytes(&self) -> Vec<u8> {
        self.written(&[])
    }

    /// The request with its signature in the URL.
    pub fn presigned(&self, expires: &str) -> Ask {
        let mut ask = self.clone();
        let credential = format!("{}/{}", ask.signer.key, ask.signer.scope());
        for (name, value) in [
            ("X-Amz-Algorithm", "AWS4-HMAC-SHA256"),
            ("X-Amz-Credential", &credential),
            ("X-Amz-Date", &ask.signer.time.clone()),
            ("X-Amz-Expires", expires),
            ("X-Amz-SignedHeaders", &names(&ask.headers)),
        ] {
            ask = ask.query(name, value);
        }
        let signature = ask.signer.signature(&ask.to_sign(UNSIGNED));
        ask.query("X-Amz-Signature", &signature)
    }

    fn written(&self, more: &[(String, String)]) -> Vec<u8> {
        let query: Vec<String> =
            self.query.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let mark = if query.is_empty() { "" } else { "?" };
        let mut text =
            format!("{} {}{mark}{} HTTP/1.1\r\n", self.method, self.path, query.join("&"));
        let all = || self.headers.iter().chain(&self.unsigned).chain(more);
        for (name, value) in all() {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        let has_length = all().any(|(name, _)| name == "content-length");
        let is_chunked = all().any(|(name, _)| name == "transfer-encoding");
        if !has_length && !is_chunked && (!self.body.is_empty() || self.method == "PUT") {
            text.push_str(&format!("content-length: {}\r\n", self.body.len()));
        }
        let mut bytes = (text + "\r\n").into_bytes();
        bytes.extend_from_slice(&self.body);
        bytes
    }

    /// Sends it on a connection of its own.
    pub fn send(&self) -> Reply {
        self.send_bytes(&self.bytes())
    }

    /// Sends it without a signature.
    pub fn send_plain(&self) -> Reply {
        self.send_bytes(&self.plain_bytes())
    }

    fn send_bytes(&self, bytes: &[u8]) -> Reply {
        let mut stream = connect(self.addr);
        // The gateway may refuse before it has read all.
        let _ = stream.write_all(bytes);
        read_reply(&mut stream, self.method == "HEAD").expect("an answer")
    }
}

/// An answer.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// The body had the length that the head said.
    pub whole: bool,
}

impl Reply {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Status and S3's code.
    pub fn error(&self) -> (u16, String) {
        (self.status, self.field("Code"))
    }

    /// Text of the first element of that name.
    pub fn field(&self, name: &str) -> String {
        self.fields(name).into_iter().next().unwrap_or_default()
    }

    /// Texts of all elements of that name.
    pub fn fields(&self, name: &str) -> Vec<String> {
        let text = self.text();
        let (start, end) = (format!("<{name}>"), format!("</{name}>"));
        let parts = text.split(&start).skip(1);
        parts.filter_map(|part| part.split(&end).next().map(unescape)).collect()
    }
}

fn unescape(text: &str) -> String {
    let mut parts = text.split('&');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (name, rest) = part.split_once(';').expect("a reference");
        plain.push(match name {
            "lt" => '<',
            "gt" => '>',
            "amp" => '&',
            "quot" => '"',
            "apos" => '\'',
            _ => {
                let digits = name.strip_prefix("#x").expect("a reference by number");
                let number = u32::from_str_radix(digits, 16).expect("a number");
                char::from_u32(number).expect("a character")
            }
        });
        plain.push_str(rest);
    }
    plain
}

/// Reads one answer; `None` when the connection ends before.
pub fn read_reply(stream: &mut impl Read, is_head: bool) -> Option<Reply> {
    let mut bytes = Vec::new();
    let head_len = loop {
        if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            if !bytes.starts_with(b"HTTP/1.1 100") {
                break at + 4;
            }
            bytes.drain(..at + 4);
            continue;
        }
        read_more(stream, &mut bytes)?;
    };
    let head = String::from_utf8_lossy(&bytes[..head_len]).into_owned();
    let mut body = bytes.split_off(head_len);
    let mut lines = head.split("\r\n");
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let len = headers.iter().find(|(name, _)| name == "content-length");
    let len = len.and_then(|(_, value)| value.parse().ok()).unwrap_or(0);
    let len = if is_head || status == 304 || status == 204 { 0 } else { len };
    while body.len() < len && read_more(stream, &mut body).is_some() {}
    let whole = body.len() == len;
    Some(Reply { status, headers, body, whole })
}

fn read_more(stream: &mut impl Read, bytes: &mut Vec<u8>) -> Option<()> {
    let mut buffer = [0; 16 << 10];
    match stream.read(&mut buffer) {
        Ok(len) if len > 0 => {
            bytes.extend_from_slice(&buffer[..len]);
            Some(())
        }
        _ => None,
    }
}
