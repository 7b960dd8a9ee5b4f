//! TLS with client certificates and allow-lists, against NBD tools.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use block_nbd::fuzz::fuzz_common_names;
use block_nbd::server::tls::{ANY, AllowList, Credentials, TlsPolicy, common_names};
use block_nbd::server::{Frontend, Limits};
use runtime::{Cores, Rng, RuntimeConfig};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::client::InMemory;
use super::tools::need;

const BYTES: u64 = 24 << 20;

/// Runs a command of a shell, which must succeed.
fn shell(dir: &Path, script: &str) {
    let output = Command::new("sh").args(["-ec", script]).current_dir(dir).output();
    let output = output.expect("it runs");
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Authorities `ca` and `other`, a server's certificate, and clients' in a directory each, as
/// libnbd and QEMU want them.
fn certificates(dir: &Path) {
    shell(
        dir,
        r#"
        authority() {
            openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 \
                -keyout $1-key.pem -out $1.pem -subj "/CN=$1"
        }
        signed() { # authority, directory, file, subject, extensions
            mkdir -p $2
            openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes \
                -keyout $2/$3-key.pem -out request.pem -subj "$4"
            printf "basicConstraints=CA:FALSE\nkeyUsage=digitalSignature\n$5\n" >extensions
            openssl x509 -req -in request.pem -CA $1.pem -CAkey $1-key.pem -CAcreateserial \
                -days 2 -extfile extensions -out $2/$3-cert.pem
            cp ca.pem $2/ca-cert.pem
        }
        authority ca
        authority other
        signed ca server server "/O=craton/CN=server" \
            "extendedKeyUsage=serverAuth\nsubjectAltName=IP:127.0.0.1,DNS:localhost"
        signed ca alice client "/O=craton/CN=alice" "extendedKeyUsage=clientAuth"
        signed ca bob client "/O=craton/CN=Bob Builder" \
            "extendedKeyUsage=clientAuth\nsubjectAltName=DNS:bob.example.org"
        signed other foreign client "/O=craton/CN=alice" "extendedKeyUsage=clientAuth"
        "#,
    );
}

struct Served {
    _cores: Cores,
    addr: SocketAddr,
    dir: PathBuf,
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// A front end that takes TLS only, on all addresses.
fn serve(name: &str) -> Served {
    serve_with(name, Limits::default())
}

fn serve_with(name: &str, limits: Limits) -> Served {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("tls-{name}"));
    fs::create_dir_all(&dir).expect("a directory");
    certificates(&dir);
    let cores = Cores::start(&RuntimeConfig::named("tls"), 1).expect("an executor");
    let read = {
        let dir = dir.clone();
        move |name: &str| fs::read(dir.join(name)).expect("it was made")
    };
    let start = cores.handles()[0].spawn(move |env| async move {
        let exports = InMemory::new(&env, Duration::ZERO);
        exports.add("vol", BYTES, true);
        exports.add("other", BYTES, true);
        let frontend = Frontend::new(&env, exports, limits);
        let list = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let allow = AllowList::new([
            ("vol".to_owned(), list(&["alice", "bob.example.org"])),
            ("other".to_owned(), list(&["Bob Builder"])),
        ]);
        let credentials = Credentials {
            certificate: &read("server/server-cert.pem"),
            key: &read("server/server-key.pem"),
            client_ca: &read("ca.pem"),
        };
        let tls = Rc::new(TlsPolicy::new(credentials, allow).expect("good credentials"));
        frontend.listen_tls(([0, 0, 0, 0], 0).into(), tls).await.expect("a free port")
    });
    let addr = start.wait().expect("it starts");
    Served { _cores: cores, addr: ([127, 0, 0, 1], addr.port()).into(), dir }
}

/// A client's session.
type Session = StreamOwned<ClientConnection, TcpStream>;

/// An option without data.
fn option(code: u32) -> Vec<u8> {
    [&b"IHAVEOPT"[..], &code.to_be_bytes(), &[0; 4]].concat()
}

/// Asks for structured replies, and takes the acknowledgement.
fn ask(session: &mut Session) -> std::io::Result<()> {
    session.write_all(&option(8))?;
    session.read_exact(&mut [0; 20])
}

impl Served {
    /// A session that has shown a certificate, and opens no volume.
    fn idle(&self, who: &str) -> Session {
        let read = |name: &str| fs::read(self.dir.join(who).join(name)).expect("it was made");
        let certificate =
            |name: &str| CertificateDer::from_pem_slice(&read(name)).expect("a certificate");
        let key = PrivateKeyDer::from_pem_slice(&read("client-key.pem")).expect("a key");
        let mut roots = RootCertStore::empty();
        roots.add(certificate("ca-cert.pem")).expect("an authority");
        let config =
            ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_protocol_versions(&[&rustls::version::TLS13])
                .expect("it is known")
                .with_root_certificates(roots)
                .with_client_auth_cert(vec![certificate("client-cert.pem")], key)
                .expect("they belong together");
        let mut stream = TcpStream::connect(self.addr).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a socket");
        stream.read_exact(&mut [0; 18]).expect("a greeting");
        stream
            .write_all(&[&3u32.to_be_bytes()[..], &option(5)].concat())
            .expect("it takes options");
        stream.read_exact(&mut [0; 20]).expect("TLS begins");
        let name = ServerName::try_from("localhost").expect("a name");
        let session = ClientConnection::new(Arc::new(config), name).expect("a session");
        let mut session = StreamOwned::new(session, stream);
        ask(&mut session).expect("it has shown its certificate");
        session
    }

    fn uri(&self, who: &str, volume: &str) -> String {
        let dir = self.dir.join(who);
        format!("nbds://{}/{volume}?tls-certificates={}", self.addr, dir.display())
    }

    fn try_run(&self, tool: &str, args: &[&str]) -> Output {
        let mut command = Command::new("timeout");
        command.args(["60", tool]).args(args).current_dir(&self.dir);
        command.output().expect("it runs")
    }

    fn run(&self, tool: &str, args: &[&str]) -> String {
        let output = self.try_run(tool, args);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let printed = text(&output.stdout) + &text(&output.stderr);
        assert!(output.status.success(), "{tool} {args:?}: {printed}");
        printed
    }

    /// Error output of a tool that must fail.
    fn refused(&self, tool: &str, args: &[&str]) -> String {
        let output = self.try_run(tool, args);
        assert!(!output.status.success(), "{tool} {args:?} was let in");
        assert_ne!(output.status.code(), Some(124), "{tool} {args:?} hangs");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
}

#[test]
fn certificates_open_what_is_on_their_list() {
    need(&["openssl", "nbdinfo"]);
    let served = serve("info");
    let about = served.run("nbdinfo", &[&served.uri("alice", "vol")]);
    assert!(about.contains("newstyle-fixed with TLS") && about.contains("25165824"), "{about}");
    // The other name of a certificate, and the subject's with a blank in it.
    served.run("nbdinfo", &["--size", &served.uri("bob", "vol")]);
    served.run("nbdinfo", &["--size", &served.uri("bob", "other")]);
    let list = served.run("nbdinfo", &["--list", &served.uri("alice", "")]);
    assert!(list.contains("export=\"vol\"") && !list.contains("export=\"other\""), "{list}");
    // The empty name stands for the only export that it may open.
    served.run("nbdinfo", &["--size", &served.uri("alice", "")]);

    let off = served.refused("nbdinfo", &[&served.uri("alice", "other")]);
    assert!(off.contains("server replied with error to opt_go"), "{off}");
    let none = served.refused("nbdinfo", &[&served.uri("alice", "none")]);
    assert_eq!(off.replace("other", "none"), none, "it does not learn what is there");
    served.refused("nbdinfo", &[&served.uri("foreign", "vol")]);
    served.refused("nbdinfo", &[&format!("nbd://{}/vol", served.addr)]);
    // Without a certificate: there is a directory with the authority alone.
    fs::create_dir_all(served.dir.join("anonymous")).expect("a directory");
    fs::copy(served.dir.join("ca.pem"), served.dir.join("anonymous/ca-cert.pem")).expect("a file");
    served.refused("nbdinfo", &[&served.uri("anonymous", "vol")]);
    // It goes on serving.
    served.run("nbdinfo", &["--size", &served.uri("alice", "vol")]);
}

#[test]
fn data_through_tls_is_read_back() {
    need(&["openssl", "nbdcopy", "qemu-img"]);
    let served = serve("copy");
    let mut content = vec![0; BYTES as usize];
    Rng::new(8).fill(&mut content[..17 << 20]);
    fs::write(served.dir.join("in"), &content).expect("room");
    let uri = served.uri("alice", "vol");
    served.run("nbdcopy", &["in", &uri]);
    served.run("nbdcopy", &[&uri, "out"]);
    assert!(fs::read(served.dir.join("out")).expect("it is there") == content);
    let object = |who: &str| {
        format!("tls-creds-x509,id=tls,endpoint=client,dir={}", served.dir.join(who).display())
    };
    let image = |volume: &str| {
        let (ip, port) = (served.addr.ip(), served.addr.port());
        format!("driver=nbd,host={ip},port={port},export={volume},tls-creds=tls")
    };
    let qemu = |who: &str, volume: &str| -> Vec<String> {
        ["info", "--object", &object(who), "--image-opts", &image(volume)].map(str::to_owned).into()
    };
    let run = |list: Vec<String>| {
        served.try_run("qemu-img", &list.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let good = run(qemu("alice", "vol"));
    assert!(good.status.success(), "{}", String::from_utf8_lossy(&good.stderr));
    assert!(!run(qemu("alice", "other")).status.success());
    assert!(!run(qemu("foreign", "vol")).status.success());
}

#[test]
fn options_before_tls_do_not_count() {
    need(&["openssl"]);
    let served = serve("early");
    let mut stream = TcpStream::connect(served.addr).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a socket");
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting).expect("a greeting");
    stream.write_all(&3u32.to_be_bytes()).expect("it takes flags");
    // A list, before TLS.
    stream.write_all(&option(3)).expect("it takes options");
    let mut head = [0; 20];
    stream.read_exact(&mut head).expect("a reply");
    assert_eq!(head[12..16], (1u32 << 31 | 5).to_be_bytes(), "TLS is required");
    let mut words = vec![0; u32::from_be_bytes(head[16..].try_into().expect("4 bytes")) as usize];
    stream.read_exact(&mut words).expect("words");
    // TLS, and behind it at once an option that a man in the middle has inserted.
    stream.write_all(&[option(5), option(3)].concat()).expect("it takes options");
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest); // It may end by a reset.
    assert!(rest.len() <= 20, "only the acknowledgement: {rest:?}");

    // Bytes that are no TLS, and half of a handshake.
    for junk in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0x16, 3, 1, 0, 200, 1, 0]] {
        let mut stream = TcpStream::connect(served.addr).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a socket");
        stream.read_exact(&mut greeting).expect("a greeting");
        stream.write_all(&3u32.to_be_bytes()).expect("it takes flags");
        stream.write_all(&option(5)).expect("it takes options");
        stream.read_exact(&mut head).expect("a reply");
        assert_eq!(head[12..16], 1u32.to_be_bytes(), "TLS begins");
        stream.write_all(junk).expect("it takes bytes");
        stream.shutdown(std::net::Shutdown::Write).expect("a socket");
        let _ = stream.read_to_end(&mut rest);
    }
}

/// Sessions of one certificate without a volume kept their places for 30 s: 64 of them refused all
/// other clients.
#[test]
fn holder_of_one_certificate_does_not_keep_the_others_out() {
    need(&["openssl", "nbdinfo"]);
    let served = serve_with("places", Limits { handshakes_max: 8, ..Limits::default() });
    let mut bob = served.idle("bob");
    let mut alice: Vec<Session> = (0..12).map(|_| served.idle("alice")).collect();
    served.run("nbdinfo", &["--size", &served.uri("bob", "vol")]);
    ask(&mut bob).expect("a holder of few keeps them");
    ask(&mut alice[0]).expect_err("the oldest of alice's has ended");
    ask(&mut alice[11]).expect("her last one has not");
}

#[test]
fn invalid_credentials_are_named_in_the_error() {
    let list = AllowList::default;
    let wrong = |certificate: &[u8], key: &[u8], client_ca: &[u8]| {
        TlsPolicy::new(Credentials { certificate, key, client_ca }, list())
            .expect_err("bad")
            .to_string()
    };
    assert!(wrong(b"", b"", b"").starts_with("certificate: there is no certificate"));
    need(&["openssl"]);
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tls-credentials");
    fs::create_dir_all(&dir).expect("a directory");
    certificates(&dir);
    let read = |name: &str| fs::read(dir.join(name)).expect("it was made");
    let (own, ca) = (read("server/server-cert.pem"), read("ca.pem"));
    assert!(wrong(&own, b"", &ca).starts_with("key: "));
    assert!(wrong(&own, &read("server/server-key.pem"), b"x").starts_with("client_ca: "));
    assert!(wrong(&own, &read("ca-key.pem"), &ca).starts_with("certificate and key: "));
    fs::remove_dir_all(dir).expect("it goes");
}

#[test]
fn lists_name_volumes_and_certificates() {
    let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
    let list = AllowList::new([
        ("data".to_owned(), names(&["alice"])),
        ("open".to_owned(), names(&[ANY])),
        (ANY.to_owned(), names(&["operator"])),
        ("none".to_owned(), names(&[])),
    ]);
    assert!(list.allows(&names(&["x", "alice"]), "data"));
    assert!(!list.allows(&names(&["alice"]), "none") && !list.allows(&[], "data"));
    assert!(list.allows(&[], "open") && list.allows(&names(&["operator"]), "none"));
    assert!(!list.allows(&names(&[ANY]), "data"), "a certificate cannot call itself everybody");
    assert!(!AllowList::default().allows(&names(&["alice"]), "data"));
}

#[test]
fn names_are_found_and_damage_is_answered() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/common_names");
    let read = |name: &str| fs::read(dir.join(name)).expect("it is committed");
    assert_eq!(common_names(&read("one")), ["müller"]);
    assert_eq!(common_names(&read("two")), ["alice", "bob"]);
    assert_eq!(common_names(&read("long")), ["a".repeat(300), "b".repeat(200)]);
    assert_eq!(common_names(&read("odd")), [""; 0]);
    let mut rng = Rng::new(3);
    for name in ["one", "two", "long", "odd"] {
        let bytes = read(name);
        for len in 0..bytes.len() {
            fuzz_common_names(&bytes[..len]);
            let mut changed = bytes.clone();
            changed[len] ^= 1 << rng.below(8);
            fuzz_common_names(&changed);
        }
    }
}
