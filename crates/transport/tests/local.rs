//! Calls within one process.

use std::rc::Rc;

use base::ClusterId;
use runtime::sim::Sim;
use transport::{CallError, Endpoint, Identity, Limits};

use crate::harness::{
    OP_BUSY, OP_DROP, OP_ECHO, OP_HOLD, OP_SLOW, Server, content, identity, key, millis, request,
};

fn in_one_process<F: Future<Output = ()>>(test: impl FnOnce(Sim, runtime::Env) -> F) -> Sim {
    let sim = Sim::new(31);
    let host = sim.add_host("all");
    let env = sim.boot(host);
    let world = sim.clone();
    let task = test(world, env);
    sim.run(task).expect("nothing stalls");
    sim
}

#[test]
fn roles_of_one_process_need_no_socket() {
    in_one_process(async |sim, env| {
        let role = |name| Endpoint::new(&env, identity(name), Limits::default());
        let (master, client) = (role("master m1"), role("client c1"));
        let server = Server::new(&env);
        let addr = "10.0.0.1:7000".parse().expect("an address");
        let addr = master.listen(addr, server.clone()).await.expect("free");
        let call = |op, body: u64, payload| {
            client.call(addr, request(op, body.to_le_bytes().to_vec(), payload), millis(50))
        };
        let payload = content(&env, 3, 8192);
        let used = env.pool().used();
        let answer = call(OP_ECHO, 1, payload.clone()).await.expect("an answer");
        assert_eq!(answer.body, 1u64.to_le_bytes());
        assert_eq!(answer.payload.as_deref(), payload.as_deref());
        assert_eq!(env.pool().used(), used, "the payload is shared");
        assert_eq!(call(77, 0, None).await.expect("the handler's code").status, 77);
        assert_eq!(call(OP_BUSY, 0, None).await.unwrap_err(), CallError::Busy);
        assert_eq!(call(OP_DROP, 0, None).await.unwrap_err(), CallError::Closed);
        assert!(call(OP_SLOW, 1000, None).await.is_ok());
        assert_eq!(call(OP_HOLD, 0, None).await.unwrap_err(), CallError::Timeout);
        let held = server.held.borrow_mut().pop().expect("held");
        assert!(held.reply.is_cancelled());
        assert_eq!(held.peer.name, "client c1");
        let stats = client.stats();
        assert_eq!((stats.links.len(), stats.local_calls[1]), (0, 6));
        // A closed endpoint is no longer there, not even for its own process.
        master.close();
        let gone = call(OP_ECHO, 0, None).await.unwrap_err();
        assert!(matches!(gone, CallError::Unreachable(_)), "{gone:?}");
        drop(sim);
    });
}

#[test]
fn local_endpoint_applies_the_rules_of_the_handshake() {
    in_one_process(async |_, env| {
        let server = Endpoint::new(&env, identity("server"), Limits::default());
        let addr = "10.0.0.1:7000".parse().expect("an address");
        let addr = server.listen(addr, Server::new(&env)).await.expect("free");
        let ask = async |identity: Identity| {
            let client = Endpoint::new(&env, identity, Limits::default());
            let result = client.call(addr, request(OP_ECHO, Vec::new(), None), millis(50)).await;
            (result.map(|_| ()), client.cluster())
        };
        let own = identity("client");
        let fresh = Identity { cluster: ClusterId::default(), ..own.clone() };
        assert_eq!(ask(fresh).await, (Ok(()), Some(ClusterId::new(7))), "the cluster is learned");
        for wrong in [
            Identity { cluster: ClusterId::new(8), ..own.clone() },
            Identity { key: Some(key(2)), ..own.clone() },
            Identity { key: None, ..own },
        ] {
            let (result, _) = ask(wrong).await;
            assert!(matches!(result, Err(CallError::Refused(_))), "{result:?}");
        }
    });
}

#[test]
fn a_bound_holds_within_the_process_too() {
    in_one_process(async |_, env| {
        let limits = Limits { requests_inflight_max: 2, ..Limits::default() };
        let server = Endpoint::new(&env, identity("server"), limits);
        let handler = Server::new(&env);
        let addr = "10.0.0.1:7000".parse().expect("an address");
        let addr = server.listen(addr, handler.clone()).await.expect("free");
        let client = Rc::new(Endpoint::new(&env, identity("client"), Limits::default()));
        let mut ends = Vec::new();
        for _ in 0..3 {
            let call = client.call(addr, request(OP_HOLD, Vec::new(), None), millis(10)).await;
            ends.push(call.unwrap_err());
        }
        assert_eq!(ends, [CallError::Timeout, CallError::Timeout, CallError::Busy]);
        handler.held.borrow_mut().clear();
        assert!(client.call(addr, request(OP_ECHO, Vec::new(), None), millis(10)).await.is_ok());
    });
}
