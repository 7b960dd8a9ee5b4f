//! S3 over TLS.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use object_gateway::{GatewayConfig, Times, Tls};
use object_proto::Setting;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::client::{Bed, Reply, read_reply};

/// A certificate that signs itself, and its key.
struct Certificate {
    certificate: Vec<u8>,
    key: Vec<u8>,
}

fn made(dir: &Path, name: &str) -> Certificate {
    let script = format!(
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 \
         -keyout {name}-key.pem -out {name}.pem -subj /CN={name} \
         -addext basicConstraints=critical,CA:FALSE \
         -addext subjectAltName=DNS:localhost,DNS:*.localhost"
    );
    let done = Command::new("sh").args(["-ec", &script]).current_dir(dir).output();
    let done = done.expect("openssl is there: scripts/prepare.sh installs it");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let read = |file: String| std::fs::read(dir.join(file)).expect("it was made");
    Certificate { certificate: read(format!("{name}.pem")), key: read(format!("{name}-key.pem")) }
}

/// Two certificates.
fn certificates() -> [Certificate; 2] {
    let dir = std::env::temp_dir().join(format!("craton-tls-{}", std::process::id()));
    let dir = dir.join(format!("{:?}", std::thread::current().id()).replace(['(', ')'], "-"));
    std::fs::create_dir_all(&dir).expect("a directory");
    let both = ["one", "other"].map(|name| made(&dir, name));
    std::fs::remove_dir_all(&dir).expect("it was made");
    both
}

type Secure = StreamOwned<ClientConnection, TcpStream>;

/// A connection of a client that trusts a certificate.
fn connect(bed: &Bed, trusted: &Certificate) -> Secure {
    let mut roots = RootCertStore::empty();
    let root = CertificateDer::from_pem_slice(&trusted.certificate).expect("a certificate");
    roots.add(root).expect("it is one");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").expect("a name");
    let client = ClientConnection::new(Arc::new(config), name).expect("a client");
    StreamOwned::new(client, bed.connect())
}

fn exchange(stream: &mut Secure, request: &[u8]) -> Result<Reply, std::io::Error> {
    stream.write_all(request)?;
    Ok(read_reply(stream, false).expect("an answer"))
}

fn bed(tls: &Tls, times: Times) -> Bed {
    Bed::with(GatewayConfig { tls: Some(tls.clone()), times, ..GatewayConfig::default() })
}

#[test]
fn objects_are_put_and_read_over_tls() {
    let [one, _] = certificates();
    let tls = Tls::new(&one.certificate, &one.key).expect("they fit");
    let bed = bed(&tls, Times::default());
    let mut stream = connect(&bed, &one);
    assert_eq!(exchange(&mut stream, &bed.ask("PUT", "/bucket").bytes()).unwrap().status, 200);
    let content: Vec<u8> = (0..3_000_000u32).map(|at| (at * 7) as u8).collect();
    let put = exchange(&mut stream, &bed.object("PUT", "k").body(&content).bytes()).unwrap();
    assert_eq!(put.status, 200, "{}", put.text());
    let got = exchange(&mut stream, &bed.object("GET", "k").bytes()).unwrap();
    assert!(got.body == content, "{} bytes came", got.body.len());
    // Answers name the gateway as the client knows it.
    let begun = exchange(&mut stream, &bed.object("POST", "p").query("uploads", "").bytes());
    assert_eq!(begun.unwrap().status, 200);
}

#[test]
fn policies_know_whether_a_connection_is_secure() {
    let [one, _] = certificates();
    let tls = Tls::new(&one.certificate, &one.key).expect("they fit");
    let policy = |secure: &str| {
        format!(
            "{{\"Statement\":[{{\"Effect\":\"Deny\",\"Principal\":\"*\",\"Action\":\"s3:GetObject\",\
             \"Resource\":\"arn:aws:s3:::bucket/*\",\
             \"Condition\":{{\"Bool\":{{\"aws:SecureTransport\":\"{secure}\"}}}}}}]}}"
        )
    };
    let secure = bed(&tls, Times::default());
    let mut stream = connect(&secure, &one);
    assert_eq!(exchange(&mut stream, &secure.ask("PUT", "/bucket").bytes()).unwrap().status, 200);
    exchange(&mut stream, &secure.object("PUT", "k").body(b"hello").bytes()).unwrap();
    let plain = Bed::with_bucket();
    assert_eq!(plain.put("k", b"hello").status, 200);
    for denied in ["true", "false"] {
        let setting = || Setting::Policy(Some(policy(denied)));
        secure.model.set("bucket", setting());
        plain.model.set("bucket", setting());
        let over_tls = exchange(&mut stream, &secure.object("GET", "k").bytes()).unwrap().status;
        let statuses = [over_tls, plain.object("GET", "k").send().status];
        let expected = if denied == "true" { [403, 200] } else { [200, 403] };
        assert_eq!(statuses, expected, "denied where it is {denied}");
    }
}

#[test]
fn a_certificate_is_replaced_while_connections_last() {
    let [one, other] = certificates();
    let tls = Tls::new(&one.certificate, &one.key).expect("they fit");
    let bed = bed(&tls, Times::default());
    let live = bed.ask("GET", "/_craton/live").plain_bytes();
    let mut before = connect(&bed, &one);
    assert_eq!(exchange(&mut before, &live).unwrap().status, 200);
    let refused = tls.replace(&other.certificate, &one.key).expect_err("another's key");
    assert!(refused.to_string().contains("certificate and key"), "{refused}");
    assert_eq!(exchange(&mut connect(&bed, &one), &live).unwrap().status, 200);
    tls.replace(&other.certificate, &other.key).expect("they fit");
    assert_eq!(exchange(&mut connect(&bed, &other), &live).unwrap().status, 200);
    assert!(exchange(&mut connect(&bed, &one), &live).is_err(), "the former one is shown");
    assert_eq!(exchange(&mut before, &live).unwrap().status, 200);
}

#[test]
fn who_speaks_http_or_nothing_is_let_go() {
    let [one, _] = certificates();
    let tls = Tls::new(&one.certificate, &one.key).expect("they fit");
    let times = Times { head: Duration::from_millis(300), ..Times::default() };
    let bed = bed(&tls, times);
    let reply = bed.ask("GET", "/").send();
    assert_eq!(reply.error(), (400, "InvalidRequest".to_owned()));
    assert!(reply.text().contains("use https://"), "{}", reply.text());
    // One byte of a handshake, then silence; and no byte at all.
    for sent in [&[22u8][..], &[]] {
        let mut silent = bed.connect();
        silent.set_read_timeout(Some(Duration::from_secs(5))).expect("a limit");
        silent.write_all(sent).expect("it is sent");
        let mut rest = Vec::new();
        // It is closed, or reset, before this limit.
        let ended = silent.read_to_end(&mut rest).map_err(|error| error.kind());
        assert_ne!(ended, Err(ErrorKind::WouldBlock));
        assert!(rest.is_empty(), "{rest:?}");
    }
}
