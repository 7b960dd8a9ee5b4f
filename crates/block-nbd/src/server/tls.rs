//! TLS of connections (B16): clients of other machines, and the exports that each may open.
//!
//! TLS 1.3 with certificates on both sides: the client's must be signed by an authority that the
//! front end was given. (NBD also knows keys shared beforehand; our TLS library does not.) The
//! names in a client's certificate are looked up in the allow-list of the export.
//!
//! Invariant: knows no option and no request of NBD.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{self, Read, Write};
use std::rc::Rc;
use std::sync::Arc;

use base::Fault;
use block_volume::buffer::alloc;
use runtime::{Buf, BufMut, Env, ReadHalf, WriteHalf};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection};

use crate::protocol::limits::{NBD_BATCH_BYTES, NBD_STAGING_BYTES, TLS_RECORD_MAX};

/// Credentials of a front end's TLS, each a text in PEM.
#[derive(Clone, Copy, Debug)]
pub struct Credentials<'a> {
    /// Its certificate, and those between it and an authority that clients trust.
    pub certificate: &'a [u8],
    /// Its certificate's key.
    pub key: &'a [u8],
    /// Certificates of the authorities that sign clients' certificates.
    pub client_ca: &'a [u8],
}

/// Invalid credentials; the text names them and the cause.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TlsError(String);

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for TlsError {}

/// Stands for every volume, and for every certificate that verifies.
pub const ANY: &str = "*";

/// For each volume, the names of certificates that may open it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AllowList(BTreeMap<String, BTreeSet<String>>);

impl AllowList {
    /// From volumes' names, and certificates' names for each. [`ANY`] stands for all of them.
    pub fn new(entries: impl IntoIterator<Item = (String, Vec<String>)>) -> AllowList {
        AllowList(
            entries.into_iter().map(|(one, names)| (one, names.into_iter().collect())).collect(),
        )
    }

    /// True when a certificate with one of these names may open a volume.
    pub fn allows(&self, names: &[String], volume: &str) -> bool {
        let listed = |volume: &str| {
            let list = self.0.get(volume);
            list.is_some_and(|list| {
                list.contains(ANY) || names.iter().any(|name| list.contains(name))
            })
        };
        listed(volume) || listed(ANY)
    }
}

/// TLS and access of connections from other machines.
#[derive(Debug)]
pub struct TlsPolicy {
    config: Arc<ServerConfig>,
    allow: AllowList,
}

impl TlsPolicy {
    /// Checks the credentials: the key fits its certificate, and there is an authority.
    pub fn new(credentials: Credentials<'_>, allow: AllowList) -> Result<TlsPolicy, TlsError> {
        let bad = |what: &str, why: &dyn fmt::Display| TlsError(format!("{what}: {why}"));
        let certificates = |text, what| {
            let found: Result<Vec<CertificateDer<'static>>, _> =
                CertificateDer::pem_slice_iter(text).collect();
            match found.map_err(|error| bad(what, &error))? {
                none if none.is_empty() => Err(bad(what, &"there is no certificate in PEM in it")),
                some => Ok(some),
            }
        };
        let chain = certificates(credentials.certificate, "certificate")?;
        let key = PrivateKeyDer::from_pem_slice(credentials.key);
        let key = key.map_err(|error| bad("key", &error))?;
        let mut roots = RootCertStore::empty();
        for one in certificates(credentials.client_ca, "client_ca")? {
            roots.add(one).map_err(|error| bad("client_ca", &error))?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
        let verifier = verifier.build().map_err(|error| bad("client_ca", &error))?;
        let config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| bad("TLS 1.3", &error))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)
            .map_err(|error| bad("certificate and key", &error))?;
        Ok(TlsPolicy { config: Arc::new(config), allow })
    }

    /// True when a certificate with one of these names may open a volume.
    pub(super) fn allows(&self, names: &[String], volume: &str) -> bool {
        self.allow.allows(names, volume)
    }
}

/// The receiving side of a connection.
pub(super) enum Incoming {
    Plain(ReadHalf),
    Tls(TlsRead),
}

impl Incoming {
    /// As [`ReadHalf::read`].
    pub(super) async fn read(&mut self, buf: BufMut, start: usize) -> (io::Result<usize>, BufMut) {
        match self {
            Incoming::Plain(half) => half.read(buf, start).await,
            Incoming::Tls(half) => half.read(buf, start).await,
        }
    }
}

/// The sending side of a connection.
pub(super) enum Outgoing {
    Plain(WriteHalf),
    Tls(TlsWrite),
}

impl Outgoing {
    /// As [`WriteHalf::write_all`].
    pub(super) async fn write_all(&mut self, bufs: Vec<Buf>) -> io::Result<()> {
        match self {
            Outgoing::Plain(half) => half.write_all(bufs).await,
            Outgoing::Tls(half) => half.write_all(bufs).await,
        }
    }

    /// Says that nothing more comes.
    pub(super) async fn end(&mut self) {
        if let Outgoing::Tls(half) = self {
            half.session.borrow_mut().send_close_notify();
            let _ = half.flush().await; // The client may have gone.
        }
    }
}

/// A session, which both directions need.
type Session = Rc<RefCell<ServerConnection>>;

/// The receiving direction of a session.
pub(super) struct TlsRead {
    session: Session,
    half: ReadHalf,
    /// Bytes as received; absent only while they are read into.
    staging: Option<BufMut>,
    /// Of these, the first that the session has not taken yet.
    start: usize,
    end: usize,
}

impl TlsRead {
    async fn read(&mut self, mut buf: BufMut, start: usize) -> (io::Result<usize>, BufMut) {
        loop {
            let plain = self.session.borrow_mut().reader().read(&mut buf[start..]);
            match plain {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return (done, buf),
            }
            match self.advance().await {
                Ok(true) => {}
                Ok(false) => return (Ok(0), buf),
                Err(error) => return (Err(error), buf),
            }
        }
    }

    /// Feeds the session with received bytes, or waits for more; false at the end.
    async fn advance(&mut self) -> io::Result<bool> {
        if self.start == self.end {
            let staging = self.staging.take().ok_or(io::ErrorKind::BrokenPipe)?;
            let (count, staging) = self.half.read(staging, 0).await;
            self.staging = Some(staging);
            (self.start, self.end) = (0, count?);
            if self.end == 0 {
                return Ok(false);
            }
        }
        let staging = self.staging.as_ref().expect("not being read into");
        let mut session = self.session.borrow_mut();
        let mut rest = &staging[self.start..self.end];
        self.start += session.read_tls(&mut rest)?;
        match session.process_new_packets() {
            Ok(_) => Ok(true),
            Err(error) => Err(io::Error::new(io::ErrorKind::InvalidData, error)),
        }
    }
}

/// The sending direction of a session.
pub(super) struct TlsWrite {
    env: Env,
    session: Session,
    half: WriteHalf,
}

impl TlsWrite {
    async fn write_all(&mut self, bufs: Vec<Buf>) -> io::Result<()> {
        for buf in bufs {
            let mut rest = &buf[..];
            while !rest.is_empty() {
                // It takes as much as its buffer has room for.
                let count = self.session.borrow_mut().writer().write(rest)?;
                rest = &rest[count..];
                if !rest.is_empty() {
                    self.flush().await?;
                }
            }
        }
        self.flush().await
    }

    /// Sends what the session has for the client.
    async fn flush(&mut self) -> io::Result<()> {
        while self.session.borrow().wants_write() {
            let mut buf =
                alloc(&self.env, NBD_BATCH_BYTES + TLS_RECORD_MAX).await.map_err(no_room)?;
            let mut filled = 0;
            {
                let mut session = self.session.borrow_mut();
                while session.wants_write() && filled < buf.len() {
                    filled += session.write_tls(&mut &mut buf[filled..])?;
                }
            }
            self.half.write_all(vec![buf.freeze().slice(0..filled)]).await?;
        }
        Ok(())
    }
}

/// Begins a session on a connection; answers its directions, and the names in the client's
/// certificate. The caller bounds the time.
pub(super) async fn begin(
    env: &Env,
    tls: &TlsPolicy,
    read: ReadHalf,
    write: WriteHalf,
) -> io::Result<(TlsRead, TlsWrite, Vec<String>)> {
    let mut session = ServerConnection::new(tls.config.clone()).map_err(io::Error::other)?;
    session.set_buffer_limit(Some(NBD_BATCH_BYTES));
    let session = Rc::new(RefCell::new(session));
    let staging = Some(alloc(env, NBD_STAGING_BYTES).await.map_err(no_room)?);
    let mut read = TlsRead { session: session.clone(), half: read, staging, start: 0, end: 0 };
    let mut write = TlsWrite { env: env.clone(), session: session.clone(), half: write };
    while session.borrow().is_handshaking() {
        write.flush().await?;
        if !session.borrow().is_handshaking() {
            break;
        }
        let advanced = read.advance().await;
        if advanced.is_err() {
            let _ = write.flush().await; // The client gets the alert.
        }
        if !advanced? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    write.flush().await?;
    let names = match session.borrow().peer_certificates() {
        Some([own, ..]) => names(own),
        _ => Vec::new(),
    };
    Ok((read, write, names))
}

fn no_room(fault: Fault) -> io::Error {
    io::Error::other(fault.message)
}

/// The names in a certificate: the common names of its subject, and its DNS names.
fn names(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok(parsed) = webpki::EndEntityCert::try_from(certificate) else { return Vec::new() };
    let mut names = common_names(parsed.subject());
    names.extend(parsed.valid_dns_names().map(str::to_owned));
    names
}

/// One DER element at the front of `input`: its tag, its content; `input` goes on behind it.
fn element<'a>(input: &mut &'a [u8]) -> Option<(u8, &'a [u8])> {
    let (&tag, rest) = input.split_first()?;
    let (&first, mut rest) = rest.split_first()?;
    let len = match first {
        0..=0x7f => usize::from(first),
        // Names have no elements of 64 KiB and more.
        0x81 | 0x82 => {
            let (digits, behind) = rest.split_at_checked(usize::from(first - 0x80))?;
            rest = behind;
            digits.iter().fold(0, |len, &digit| len << 8 | usize::from(digit))
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(len)?;
    *input = rest;
    Some((tag, content))
}

/// The common names of a distinguished name (the content of its `SEQUENCE`), those that are text
/// without control characters.
pub fn common_names(mut subject: &[u8]) -> Vec<String> {
    const SEQUENCE: u8 = 0x30;
    const SET: u8 = 0x31;
    const OID: u8 = 0x06;
    /// `UTF8String`, `PrintableString`, `IA5String`.
    const TEXTS: [u8; 3] = [0x0c, 0x13, 0x16];
    /// 2.5.4.3.
    const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
    let mut found = Vec::new();
    while let Some((SET, mut set)) = element(&mut subject) {
        while let Some((SEQUENCE, mut pair)) = element(&mut set) {
            let (Some((OID, kind)), Some((tag, value))) = (element(&mut pair), element(&mut pair))
            else {
                continue;
            };
            let text = std::str::from_utf8(value).ok().filter(|_| TEXTS.contains(&tag));
            if let Some(text) = text.filter(|text| !text.chars().any(char::is_control))
                && kind == COMMON_NAME
            {
                found.push(text.to_owned());
            }
        }
    }
    found
}
