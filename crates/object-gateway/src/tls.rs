//! TLS of a gateway's connections. Its certificate can be replaced while it serves.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, RwLock};
use std::task::{Context, Poll};

use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// First byte of a TLS connection: a record of the handshake.
const HANDSHAKE: u8 = 22;

/// Answer to a client that speaks HTTP to an address of HTTPS.
const PLAIN_HTTP: &[u8] = b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/xml\r\n\
    Content-Length: 165\r\nConnection: close\r\n\r\n\
    <?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>InvalidRequest</Code><Message>This \
    address is served over TLS: use https:// in place of http://.</Message></Error>";

/// Certificates that cannot be used; the text has the cause.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TlsError(String);

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for TlsError {}

/// TLS 1.2 and 1.3 of a gateway. Clones share the certificate.
#[derive(Clone)]
pub struct Tls {
    shown: Arc<Shown>,
    acceptor: TlsAcceptor,
}

/// The certificate that clients are shown.
#[derive(Debug)]
struct Shown {
    provider: Arc<CryptoProvider>,
    key: RwLock<Arc<CertifiedKey>>,
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.key.read().expect("no panic while it is held").clone())
    }
}

/// Reads a certificate with those between it and an authority that clients trust, and its key.
fn certified(
    provider: &CryptoProvider,
    certificate: &[u8],
    key: &[u8],
) -> Result<Arc<CertifiedKey>, TlsError> {
    let bad = |what: &str, why: &dyn fmt::Display| TlsError(format!("{what}: {why}"));
    let chain: Result<Vec<CertificateDer<'static>>, _> =
        CertificateDer::pem_slice_iter(certificate).collect();
    let chain = chain.map_err(|error| bad("certificate", &error))?;
    if chain.is_empty() {
        return Err(bad("certificate", &"there is no certificate in PEM in it"));
    }
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| bad("key", &error))?;
    let certified = CertifiedKey::from_der(chain, key, provider);
    Ok(Arc::new(certified.map_err(|error| bad("certificate and key", &error))?))
}

impl Tls {
    /// With a certificate and its key, each a text in PEM.
    ///
    /// # Errors
    ///
    /// [`TlsError`] for a text without one, and for a key that is another certificate's.
    pub fn new(certificate: &[u8], key: &[u8]) -> Result<Tls, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let key = RwLock::new(certified(&provider, certificate, key)?);
        let shown = Arc::new(Shown { provider: provider.clone(), key });
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| TlsError(error.to_string()))?
            .with_no_client_auth()
            .with_cert_resolver(shown.clone());
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Tls { shown, acceptor: TlsAcceptor::from(Arc::new(config)) })
    }

    /// Shows another certificate to those who connect from now on.
    ///
    /// # Errors
    ///
    /// As of [`Tls::new`]; then the former one stays.
    pub fn replace(&self, certificate: &[u8], key: &[u8]) -> Result<(), TlsError> {
        let key = certified(&self.shown.provider, certificate, key)?;
        *self.shown.key.write().expect("no panic while it is held") = key;
        Ok(())
    }

    /// Shakes hands with a client. One that speaks HTTP is answered so.
    pub(crate) async fn accept(&self, mut stream: TcpStream) -> io::Result<Stream> {
        let mut first = [0];
        if stream.peek(&mut first).await? == 1 && first[0] != HANDSHAKE {
            stream.write_all(PLAIN_HTTP).await?;
            stream.shutdown().await?;
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Stream::Tls(Box::new(self.acceptor.accept(stream).await?)))
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

/// A client's connection.
pub enum Stream {
    /// Without TLS.
    Plain(TcpStream),
    /// With it.
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    fn inner(self: Pin<&mut Self>) -> Pin<&mut dyn Both> {
        let inner: &mut dyn Both = match self.get_mut() {
            Stream::Plain(stream) => stream,
            Stream::Tls(stream) => &mut **stream,
        };
        Pin::new(inner)
    }
}

/// Both directions.
trait Both: AsyncRead + AsyncWrite + Unpin {}
impl<T: AsyncRead + AsyncWrite + Unpin> Both for T {}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.inner().poll_read(cx, buf)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.inner().poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner().poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner().poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.inner().poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Stream::Plain(stream) => stream.is_write_vectored(),
            Stream::Tls(stream) => stream.is_write_vectored(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_to_plain_http_is_as_long_as_it_says() {
        let text = std::str::from_utf8(PLAIN_HTTP).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{}", body.len());
    }

    #[test]
    fn what_is_no_certificate_is_refused() {
        let refused = |certificate: &[u8], key: &[u8]| {
            Tls::new(certificate, key).expect_err("it is none").to_string()
        };
        assert!(refused(b"", b"").contains("no certificate in PEM"));
        assert!(refused(b"-----BEGIN CERTIFICATE-----\nAAAA\n", b"").starts_with("certificate"));
    }
}
