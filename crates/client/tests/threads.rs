//! Handles and the blocking client, over real sockets, from threads without a runtime.

use std::cell::RefCell;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::rc::Rc;

use base::{ClusterId, Kind};
use client::{BlockingClient, Client, ClientHandle, Connection, Error};
use runtime::{Cores, Env, RuntimeConfig};
use transport::{Endpoint, Identity, Incoming, Limits, Response, Service};
use wire::control::{ControlRequest, Policy};
use wire::data::DataRequest;
use wire::data_codec::encode_answer;

use crate::fake::Fake;

fn serve(env: &Env, fake: &Fake, role: Role, incoming: Incoming) {
    let request = &incoming.request;
    let response = match (role, request.service) {
        (Role::Master, Service::CONTROL) => {
            let asked = ControlRequest::decode(&request.body).unwrap();
            let (status, body) = match fake.with(|state| state.serve_control(0, asked)) {
                Ok(reply) => (0, reply.encode()),
                Err(error) => (1, error.encode()),
            };
            Response { status, body, payload: None }
        }
        (Role::Server(index), Service::DATA) => {
            let asked = DataRequest::decode(request.op, &request.body).unwrap();
            assert_eq!(request.token.0, [9; 16]);
            let payload = request.payload.as_ref();
            let answer = fake.with(|state| state.serve_data(env, index, &asked, payload));
            let (answer, payload) = match answer {
                Ok((reply, payload)) => (Ok(reply), payload),
                Err(error) => (Err(error), None),
            };
            let (status, body) = encode_answer(&answer);
            Response { status, body, payload }
        }
        other => panic!("{:?} is not asked here", other.1),
    };
    incoming.reply.send(response);
}

#[derive(Clone, Copy)]
enum Role {
    Master,
    Server(usize),
}

/// Serves a cluster in memory on loopback; answers the master's address.
async fn start(env: Env) -> SocketAddr {
    let fake = Fake::new(1, 3);
    let listen = async |role: Role| {
        let identity = Identity { cluster: ClusterId::new(5), key: None, name: "fake".to_owned() };
        let endpoint = Endpoint::new(&env, identity, Limits::default());
        let (env, fake) = (env.clone(), fake.clone());
        let handler = move |incoming| serve(&env, &fake, role, incoming);
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let addr = endpoint.listen(any, Rc::new(handler)).await.unwrap();
        (addr, endpoint)
    };
    let mut kept = Vec::new();
    for index in 0..3 {
        let (addr, endpoint) = listen(Role::Server(index)).await;
        fake.with(|state| state.addrs[index] = addr);
        kept.push(endpoint);
    }
    let (addr, endpoint) = listen(Role::Master).await;
    fake.with(|state| state.masters[0] = addr);
    kept.push(endpoint);
    KEPT.with(|all| all.borrow_mut().extend(kept));
    addr
}

thread_local! {
    static KEPT: RefCell<Vec<Endpoint>> = const { RefCell::new(Vec::new()) };
}

fn cluster() -> (Cores, SocketAddr) {
    let config = RuntimeConfig { huge_pages: false, ..RuntimeConfig::named("fake") };
    let cores = Cores::start(&config, 1).unwrap();
    let addr = cores.handles()[0].spawn(start).wait().unwrap();
    (cores, addr)
}

#[test]
fn threads_share_a_blocking_client() {
    let (_cores, master) = cluster();
    let client = BlockingClient::start(Connection::to(vec![master])).unwrap();
    client.mkdir_all("/a/b", 0o755).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let client = &client;
            scope.spawn(move || {
                let path = format!("/a/b/{thread}");
                let file = client.create(&path, Policy::strict(3), 0o644, true).unwrap();
                let mut appender = file.append_handle().unwrap();
                let mut expected = Vec::new();
                for round in 0..200u32 {
                    let data = format!("{path} {round};").repeat(1 + round as usize % 700);
                    appender.write_all(data.as_bytes()).unwrap();
                    expected.extend_from_slice(data.as_bytes());
                }
                appender.flush().unwrap();
                assert_eq!(appender.append_many(&[b"a", b"bc"]).unwrap(), expected.len() as u64);
                expected.extend_from_slice(b"abc");
                assert_eq!(appender.close().unwrap(), expected.len() as u64);
                let mut read = Vec::new();
                file.stream(0).read_to_end(&mut read).unwrap();
                assert!(read == expected);
            });
        }
    });
    assert_eq!(client.list("/a/b").unwrap().len(), 4);
    client.rename("/a/b/0", "/a/zero", false).unwrap();
    client.symlink("/a/zero", "/link", 0o777).unwrap();
    assert!(client.open("/link").unwrap().len().unwrap() > 0);
    let first = client.open("/a/zero").unwrap().append_handle().unwrap();
    let second = client.open("/a/zero").unwrap().append_handle().unwrap();
    assert_eq!(first.append(b"late").unwrap_err().kind(), Kind::Fenced);
    drop(second);
    assert!(client.remove_tree("/a").unwrap() > 4);
}

#[test]
fn a_handle_works_on_any_thread() {
    let (_cores, master) = cluster();
    let config = RuntimeConfig { huge_pages: false, ..RuntimeConfig::named("mine") };
    let own = Cores::start(&config, 1).unwrap();
    let unreachable = Connection::to(vec!["127.0.0.1:1".parse().unwrap()]);
    let unreachable = Connection {
        config: client::Config {
            control_budget: runtime::Duration::from_millis(200),
            ..client::Config::default()
        },
        ..unreachable
    };
    let error = ClientHandle::connect(&own.handles()[0], unreachable).wait().unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    let handle = ClientHandle::connect(&own.handles()[0], Connection::to(vec![master])).wait();
    let handle = handle.unwrap();
    let work = |client: Client| async move {
        let file = client.create("/file", Policy::strict(3), 0, true).await?;
        let appender = file.append_handle().await?;
        appender.append(b"content").await?;
        appender.close().await
    };
    let other = handle.clone();
    let len = std::thread::scope(|scope| scope.spawn(move || other.run(work).wait()).join());
    assert_eq!(len.unwrap().unwrap(), 7);
    drop(own);
    let error = handle.run(|client| async move { client.lookup("/file").await }).wait();
    assert!(error.unwrap_err().to_string().contains("connect again"));
}
