//! The same over TCP and io_uring.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use runtime::{Cores, Env, Runtime, RuntimeConfig};
use transport::{CallError, Endpoint, Identity, Limits};

use crate::harness::{OP_ECHO, OP_HOLD, Server, byte_at, content, identity, millis, request};

fn loopback(env: &Env, name: &str) -> Endpoint {
    Endpoint::new(env, Identity { key: None, ..identity(name) }, Limits::default())
}

async fn serve(env: Env) -> SocketAddr {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    loopback(&env, "server").listen(any, Server::new(&env)).await.expect("a free port")
}

#[test]
fn calls_cross_executors_over_tcp() {
    let cores = Cores::start(&RuntimeConfig::named("real"), 2).expect("io_uring");
    let [client, server] = cores.handles() else { unreachable!("two were asked for") };
    let addr = server.spawn(serve).wait().expect("lives");
    let work = move |env: Env| async move {
        let endpoint = loopback(&env, "client");
        for (body, payload) in
            [(0, 0), (100, 4096), (5000, 20_480), (70_000, 0), (300_000, 4 << 20), (1, 1 << 20)]
        {
            let asked = request(OP_ECHO, vec![7; body], content(&env, 5, payload));
            let answer = endpoint.call(addr, asked, millis(5000)).await.expect("an answer");
            assert_eq!(answer.body.len(), body);
            let got = answer.payload.as_deref().unwrap_or(&[]);
            assert_eq!(got.len(), payload);
            assert!(got.iter().enumerate().all(|(i, &byte)| byte == byte_at(5, i)));
        }
        assert_eq!(endpoint.stats().links_opened, 1);
        let late = endpoint.call(addr, request(OP_HOLD, Vec::new(), None), millis(20)).await;
        assert_eq!(late.unwrap_err(), CallError::Timeout);
        endpoint.close();
    };
    client.spawn(work).wait().expect("no assertion fails");
}

#[test]
fn a_listener_that_goes_is_noticed_and_found_again() {
    let runtime = Runtime::new(RuntimeConfig::named("real")).expect("io_uring");
    let env = runtime.env().clone();
    let peers = Cores::start(&RuntimeConfig::named("peer"), 1).expect("io_uring");
    let addr = peers.handles()[0].spawn(serve).wait().expect("lives");
    runtime.block_on(async {
        let endpoint = Rc::new(loopback(&env, "client"));
        let ask = |op| endpoint.call(addr, request(op, Vec::new(), None), millis(3000));
        ask(OP_ECHO).await.expect("an answer");
        let holder = endpoint.clone();
        let held = env.spawn(runtime::Class::Foreground, "held", async move {
            holder.call(addr, request(OP_HOLD, Vec::new(), None), millis(5000)).await
        });
        env.sleep(millis(20)).await;
        let before = env.now();
        peers.stop();
        assert_eq!(held.await.expect("ran").unwrap_err(), CallError::Closed);
        let error = ask(OP_ECHO).await.unwrap_err();
        assert!(matches!(error, CallError::Unreachable(_)), "{error:?}");
        assert!(env.now().since(before) < Duration::from_secs(2));
        let again = Cores::start(&RuntimeConfig::named("peer"), 1).expect("io_uring");
        again.handles()[0]
            .spawn(move |env| async move {
                loopback(&env, "server").listen(addr, Server::new(&env)).await.expect("free");
            })
            .await
            .expect("lives");
        env.sleep(millis(350)).await; // The longest pause between attempts, with its jitter.
        ask(OP_ECHO).await.expect("found again");
    });
}
