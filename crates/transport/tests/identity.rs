//! Peers that are admitted, and the reasons that others get.

use std::net::SocketAddr;

use base::ClusterId;
use runtime::Env;
use runtime::sim::Sim;
use transport::{CallError, Endpoint, Identity, Limits, TransportError};
use wire::frame::{FrameKind, Header};
use wire::handshake::{Hello, Side, Transcript};

use crate::harness::{Host, OP_ECHO, Raw, Server, identity, key, millis, on, request, start_as};

/// Result of a call of `client` to `server`.
fn meet(client: Identity, server: Identity) -> (Result<(), CallError>, Option<ClusterId>) {
    let sim = Sim::new(41);
    let (a, b) = (sim.add_host("a"), sim.add_host("b"));
    let world = sim.clone();
    sim.run(async {
        let a = start_as(&world, a, client, Limits::default()).await;
        let b = start_as(&world, b, server, Limits::default()).await;
        let result = a.call(b.addr, request(OP_ECHO, Vec::new(), None), millis(500)).await;
        (result.map(|_| ()), a.endpoint.cluster().or(b.endpoint.cluster()))
    })
    .expect("nothing stalls")
}

#[track_caller]
fn check_refused(client: Identity, server: Identity, words: &[&str]) {
    match meet(client, server).0 {
        Err(CallError::Refused(text)) => {
            for word in words {
                assert!(text.contains(word), "'{word}' is missing in: {text}");
            }
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_same_key_and_cluster_are_admitted() {
    let own = identity("client c1");
    assert_eq!(meet(own.clone(), identity("server s1")).0, Ok(()));
    let fresh = Identity { cluster: ClusterId::default(), ..own };
    assert_eq!(meet(fresh.clone(), identity("server")), (Ok(()), Some(ClusterId::new(7))));
    assert_eq!(meet(identity("client"), fresh.clone()), (Ok(()), Some(ClusterId::new(7))));
    assert_eq!(meet(fresh.clone(), fresh), (Ok(()), None), "no peer knows it yet");
}

#[test]
fn refused_peer_gets_the_reason_and_the_remedy() {
    let (client, server) = (identity("client c1"), identity("server s1"));
    let other = Identity { cluster: ClusterId::new(9), ..server.clone() };
    check_refused(client.clone(), other, &["clu_7", "clu_9", "client c1", "server s1", "correct"]);
    let wrong = Identity { key: Some(key(2)), ..server };
    check_refused(client, wrong, &["different cluster keys", "copy the cluster key"]);
}

#[test]
fn only_loopback_is_served_without_a_key() {
    let sim = Sim::new(42);
    let host = sim.add_host("a");
    let env = sim.boot(host);
    let bare = Identity { key: None, ..identity("server") };
    let endpoint = Endpoint::new(&env, bare, Limits::default());
    let addr = sim.addr(host, 7000);
    sim.run(async {
        let error = endpoint.listen(addr, Server::new(&env)).await.unwrap_err();
        assert!(matches!(error, TransportError::NoKey(_)));
        assert!(error.to_string().contains("configure the cluster key"), "{error}");
        // The simulator has no loopback: that it is admitted shows in the error behind.
        let addr: SocketAddr = "127.0.0.1:7000".parse().expect("an address");
        let result = endpoint.listen(addr, Server::new(&env)).await;
        assert!(!matches!(result, Err(TransportError::NoKey(_))));
    })
    .expect("nothing stalls");
}

/// Runs `talk` from a host of its own against a server with a key.
fn against_server<F: Future<Output = ()> + 'static>(
    seed: u64,
    talk: impl FnOnce(Env, SocketAddr) -> F + 'static,
) {
    let sim = Sim::new(seed);
    let (a, b) = (sim.add_host("stranger"), sim.add_host("server"));
    let world = sim.clone();
    sim.run(async {
        let server: Host = start_as(&world, b, identity("server s1"), Limits::default()).await;
        let env = world.boot(a);
        on(&env.clone(), talk(env, server.addr)).await;
        assert_eq!(server.server.seen.get(), 0, "no request reaches the handler");
        world.sleep(millis(2000)).await;
        assert_eq!(server.env.pool().used(), 0, "nothing is kept of strangers");
    })
    .expect("nothing stalls");
}

fn hello(name: &str) -> Hello {
    Hello::new(ClusterId::new(7), true, [5; 32], name)
}

#[test]
fn peer_of_another_version_gets_the_remedy() {
    against_server(43, async |env, addr| {
        let mut raw = Raw::connect(&env, addr).await;
        let newer = Hello { version_min: 9, version_max: 11, ..hello("client c9") };
        raw.send(FrameKind::Hello, &newer.encode()).await;
        let (header, text) = raw.receive().await.expect("a refusal");
        assert_eq!(header.kind, FrameKind::Refuse);
        let text = String::from_utf8(text).expect("words");
        for word in ["client c9", "server s1", "9 to 11", "upgrade the older"] {
            assert!(text.contains(word), "'{word}' is missing in: {text}");
        }
    });
}

#[test]
fn proof_sent_for_another_nonce_is_refused() {
    against_server(44, async |env, addr| {
        // A handshake that is valid up to its proof, which is then sent for another nonce.
        let own = hello("client c1").encode();
        let mut first = Raw::connect(&env, addr).await;
        first.send(FrameKind::Hello, &own).await;
        let (_, peer) = first.receive().await.expect("a hello");
        let (header, proof) = first.receive().await.expect("a proof");
        assert_eq!(header.kind, FrameKind::Proof);
        let transcript = Transcript { connecting: &own, accepting: &peer };
        assert!(transcript.verify(&key(1), Side::Accepting, &proof));
        let recorded = transcript.prove(&key(1), Side::Connecting);
        drop(first);

        let mut replay = Raw::connect(&env, addr).await;
        replay.send(FrameKind::Hello, &own).await;
        let (_, second_hello) = replay.receive().await.expect("a hello");
        assert_ne!(peer, second_hello, "the nonce is fresh");
        let (_, second_proof) = replay.receive().await.expect("a proof");
        replay.send(FrameKind::Proof, &recorded).await;
        let (header, _) = replay.receive().await.expect("a refusal");
        assert_eq!(header.kind, FrameKind::Refuse);

        // Neither does the server's own proof help, sent back to it.
        let mut reflect = Raw::connect(&env, addr).await;
        reflect.send(FrameKind::Hello, &own).await;
        reflect.receive().await.expect("a hello");
        let (_, proof) = reflect.receive().await.expect("a proof");
        assert_ne!(proof, second_proof);
        reflect.send(FrameKind::Proof, &proof).await;
        let (header, _) = reflect.receive().await.expect("a refusal");
        assert_eq!(header.kind, FrameKind::Refuse);
    });
}

#[test]
fn peer_without_the_key_ends_at_the_handshake() {
    against_server(45, async |env, addr| {
        // A request instead of a hello; a request instead of a proof; no bytes at all; an HTTP
        // client; a hello with a body that only an admitted peer may send.
        let mut raw = Raw::connect(&env, addr).await;
        let request = Header {
            service: Some(wire::frame::Service::CONTROL),
            deadline_us: 1000,
            request: 1,
            ..Header::empty(FrameKind::Request)
        };
        raw.send_bytes(&request.encode()).await;
        assert!(raw.receive().await.is_none());

        let mut raw = Raw::connect(&env, addr).await;
        raw.send(FrameKind::Hello, &hello("client").encode()).await;
        raw.send_bytes(&request.encode()).await;
        raw.receive().await.expect("a hello");
        raw.receive().await.expect("a proof");
        assert!(raw.receive().await.is_none());

        let mut raw = Raw::connect(&env, addr).await;
        assert!(raw.receive().await.is_none(), "silence ends after the handshake's time");

        let mut raw = Raw::connect(&env, addr).await;
        raw.send_bytes(
            b"GET / HTTP/1.1\r\nHost: x\r\nUser-Agent: something that is not a peer\r\n",
        )
        .await;
        assert!(raw.receive().await.is_none());

        let mut raw = Raw::connect(&env, addr).await;
        raw.send(FrameKind::Hello, &vec![0; 100_000]).await;
        assert!(raw.receive().await.is_none());
    });
}
