//! The NBD server against clients that speak bytes, in the simulator; then against real tools.

mod client;
mod stop;
mod tls;
mod tools;

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use base::{Fault, Kind};
use block_nbd::protocol::{
    Chunk, Command, MetaQuery, OptionReply, OptionRequest, ReplyCode, Select, ServerInfo,
    export_flags, request_flags,
};
use block_nbd::server::{Frontend, Limits, ListenError};
use block_volume::contract::{AllocationExtent, Answer, Clear, Device};
use block_volume::export::{About, Exports, Names};
use block_volume::geometry::Extent;
use client::{Client, InMemory};
use futures_util::FutureExt;
use runtime::sim::Sim;
use runtime::{Buf, Class, Env, Rng};

const MIB: u64 = 1 << 20;
/// Bytes of the volumes.
const BYTES: u64 = 12 * MIB + 12_345;

/// A host that serves `vol` (shared), `own` (exclusive) and `ro-vol`, and one beside it; the test
/// gets both.
fn world<F: Future<Output = ()> + 'static>(
    seed: u64,
    limits: Limits,
    test: impl FnOnce(Env, Env, Frontend, SocketAddr) -> F + 'static,
) {
    let sim = Sim::new(seed);
    let (server, client) = (sim.add_host("frontend"), sim.add_host("client"));
    let world = sim.clone();
    sim.run(async {
        let (env, client) = (world.boot(server), world.boot(client));
        let (here, addr) = (env.clone(), world.addr(server, 10809));
        let frontend = env.spawn(Class::Foreground, "start", async move {
            let exports = InMemory::new(&here, Duration::from_micros(300));
            exports.add("vol", BYTES, true);
            exports.add("own", MIB, false);
            exports.add("ro-vol", MIB, true);
            let frontend = Frontend::new(&here, exports, limits);
            frontend.listen(([127, 0, 0, 1], 10809).into()).await.expect("a free address");
            frontend
        });
        let frontend = frontend.await.expect("it starts");
        let work = test(env, client.clone(), frontend, addr);
        client.spawn(Class::Foreground, "test", work).await.expect("it ends");
    })
    .expect("nothing stalls");
    sim.close();
}

fn code(reply: Option<&OptionReply>) -> ReplyCode {
    match reply {
        Some(OptionReply::Refused { code, message }) => {
            assert!(!message.is_empty());
            *code
        }
        other => panic!("not refused: {other:?}"),
    }
}

fn select(name: &str) -> Select {
    Select { name: name.to_owned(), wants: vec![] }
}

/// Issue 10, 3.5: the answer was put into one buffer, and a length above the largest aborted the
/// process.
#[test]
fn a_list_of_exports_longer_than_a_buffer_is_sent() {
    const COUNT: usize = 25_000;
    world(78, Limits::default(), |server, env, _, mut addr| async move {
        let here = server.clone();
        let second = server.spawn(Class::Foreground, "start", async move {
            let exports = InMemory::new(&here, Duration::from_micros(300));
            (0..COUNT).for_each(|n| exports.add(&format!("{n:0>200}"), MIB, true));
            let frontend = Frontend::new(&here, exports, Limits::default());
            frontend.listen(([127, 0, 0, 1], 10810).into()).await.expect("a free address");
            frontend
        });
        let second = second.await.expect("it starts");
        addr.set_port(10810);
        let mut client = Client::connect(&env, addr).await;
        let mut names = client.option(&OptionRequest::List).await;
        assert_eq!(names.pop(), Some(OptionReply::Ack));
        let is_in_order =
            |(n, name): (usize, &OptionReply)| *name == OptionReply::Server(format!("{n:0>200}"));
        assert!(names.len() == COUNT && names.iter().enumerate().all(is_in_order));
        let unnamed = client.option(&OptionRequest::Go(select(""))).await;
        assert_eq!(code(unnamed.last()), ReplyCode::Unknown);
        assert_eq!(second.stats().broken, 0);
    });
}

/// An option has room for 8,000 wants: the answer was 150 times as long.
#[test]
fn fact_that_is_asked_for_many_times_is_sent_once() {
    world(79, Limits::default(), |_, env, _, addr| async move {
        let mut client = Client::connect(&env, addr).await;
        let ways: [fn(Select) -> OptionRequest; 2] = [OptionRequest::Info, OptionRequest::Go];
        for way in ways {
            let wants = [1, 2, 3, 0x4242].repeat(2000);
            let facts = client.option(&way(Select { name: "vol".to_owned(), wants })).await;
            // Size, sizes of requests, name, description, and the end.
            assert_eq!((facts.len(), facts.last()), (5, Some(&OptionReply::Ack)));
        }
    });
}

#[test]
fn client_opens_an_export_in_every_way() {
    world(1, Limits::default(), |_, env, frontend, addr| async move {
        let mut client = Client::connect(&env, addr).await;
        let names = client.option(&OptionRequest::List).await;
        let server = |name: &str| OptionReply::Server(name.to_owned());
        assert_eq!(names, [server("own"), server("ro-vol"), server("vol"), OptionReply::Ack]);
        let unknown = client.option(&OptionRequest::Info(select("nothing"))).await;
        assert_eq!(code(unknown.last()), ReplyCode::Unknown);
        let unnamed = client.option(&OptionRequest::Go(select(""))).await;
        assert_eq!(code(unnamed.last()), ReplyCode::Unknown);
        let tls = client.option(&OptionRequest::StartTls).await;
        assert_eq!(code(tls.last()), ReplyCode::Policy);
        let early = MetaQuery { name: "vol".into(), queries: vec!["base:allocation".into()] };
        let early = client.option(&OptionRequest::SetMetaContext(early)).await;
        assert_eq!(code(early.last()), ReplyCode::Invalid);

        let facts = client.option(&OptionRequest::Info(select("ro-vol"))).await;
        let read_only = |fact: &OptionReply| match fact {
            OptionReply::Info(ServerInfo::Export { size, flags }) => {
                *size == MIB && flags & export_flags::READ_ONLY != 0
            }
            _ => false,
        };
        assert!(facts.iter().any(read_only), "{facts:?}");
        client.agree("vol").await;
        for (queries, count) in [(vec![], 2), (vec!["base:"], 2), (vec!["qemu:dirty"], 1)] {
            let queries = queries.into_iter().map(str::to_owned).collect();
            let query = MetaQuery { name: "vol".into(), queries };
            let contexts = client.option(&OptionRequest::ListMetaContext(query)).await;
            assert_eq!(contexts.len(), count, "{contexts:?}");
        }
        client.go("vol").await.expect("an export");
        assert_eq!(client.size, BYTES);
        for flag in [export_flags::CAN_MULTI_CONN, export_flags::SEND_DF, export_flags::SEND_FUA] {
            assert!(client.flags & flag != 0);
        }
        assert_eq!(client.call(Command::Flush, 0, (0, 0), &[]).await, Ok(vec![]));
        drop(client);

        let mut client = Client::connect(&env, addr).await;
        let left = client.option(&OptionRequest::Abort).await;
        assert_eq!(left, [OptionReply::Ack]);
        assert_eq!(client.take(1).await, None);
        // The oldest way: size and flags without a head, or the end of the connection.
        let mut out = Vec::new();
        OptionRequest::ExportName("vol".into()).encode(&mut out);
        let mut client = Client::connect(&env, addr).await;
        client.send(&out).await;
        assert_eq!(client.take(10).await.unwrap()[..8], BYTES.to_be_bytes());
        assert_eq!(client.call(Command::Read, 0, (5, 5), &[]).await, Ok(vec![0; 5]));
        out.truncate(out.len() - 1);
        out[15] -= 1;
        let mut client = Client::connect(&env, addr).await;
        client.send(&out).await;
        assert_eq!(client.take(1).await, None);
        assert_eq!(frontend.stats().broken, 0);
    });
}

#[test]
fn an_exclusive_export_has_one_client() {
    world(2, Limits::default(), |_, env, _, addr| async move {
        let first = Client::open(&env, addr, "own", true).await;
        assert_eq!(first.flags & export_flags::CAN_MULTI_CONN, 0);
        let mut second = Client::connect(&env, addr).await;
        let refused = second.go("own").await.unwrap_err();
        assert_eq!(code(Some(&refused)), ReplyCode::Policy);
        drop(first);
        env.sleep(Duration::from_millis(10)).await;
        second.go("own").await.expect("it is free again");
        let shared = Client::open(&env, addr, "vol", true).await;
        let mut other = Client::open(&env, addr, "vol", false).await;
        drop(shared);
        assert!(other.call(Command::Read, 0, (0, 1), &[]).await.is_ok());
    });
}

/// Random requests of all sizes, in order, against a model of the volume.
async fn churn(env: Env, addr: SocketAddr, structured: bool, seed: u64) {
    let mut client = Client::open(&env, addr, "vol", structured).await;
    let mut rng = Rng::new(seed);
    let mut picture = vec![0u8; BYTES as usize];
    for round in 0..120 {
        let most = [1, 600, 9000, 200_000, 3 << 20][rng.below(5) as usize];
        let len = rng.between(1, most);
        let mut offset = rng.below(BYTES - len + 1);
        if rng.one_in(2) {
            offset -= offset % 4096;
        }
        let at = offset as usize..(offset + len) as usize;
        let asked = (offset, len as u32);
        let fua = if rng.one_in(4) { request_flags::FUA } else { 0 };
        match rng.below(6) {
            0 | 1 => {
                let byte = round as u8 ^ 0x5a;
                let data: Vec<u8> = (0..len).map(|n| byte ^ (n % 251) as u8).collect();
                assert_eq!(client.call(Command::Write, fua, asked, &data).await, Ok(vec![]));
                picture[at].copy_from_slice(&data);
            }
            2 => {
                assert_eq!(client.call(Command::Trim, fua, asked, &[]).await, Ok(vec![]));
                picture[at].fill(0);
            }
            3 => {
                let some = [0, request_flags::NO_HOLE, request_flags::FAST_ZERO];
                let flags = fua | some[rng.below(3) as usize];
                assert_eq!(client.call(Command::WriteZeroes, flags, asked, &[]).await, Ok(vec![]));
                picture[at].fill(0);
            }
            _ => {
                let df = structured && rng.one_in(3);
                let flags = if df { request_flags::DF } else { 0 };
                let read = client.call(Command::Read, flags, asked, &[]).await;
                assert!(read.as_deref() == Ok(&picture[at]), "round {round}: {asked:?}");
            }
        }
        if structured && rng.one_in(4) {
            check_status(&mut client, &picture, asked).await;
        }
    }
}

async fn check_status(client: &mut Client, picture: &[u8], asked: (u64, u32)) {
    let one = if asked.1.is_multiple_of(2) { request_flags::REQ_ONE } else { 0 };
    client.ask(Command::BlockStatus, one, asked, &[]).await;
    let Some((_, true, Chunk::Status { context: 1, extents })) = client.chunk().await else {
        panic!("no status")
    };
    assert!(one == 0 || extents.len() == 1);
    let mut at = asked.0 as usize;
    for extent in extents {
        let end = at + extent.len as usize;
        assert!(end as u64 <= asked.0 + u64::from(asked.1));
        assert!(extent.flags & 2 == 0 || picture[at..end].iter().all(|&byte| byte == 0));
        assert!(extent.flags & 1 == 0 || extent.flags & 2 != 0, "what is a hole reads as zeroes");
        at = end;
    }
}

#[test]
fn writes_of_all_sizes_are_read_back() {
    for (seed, structured) in [(3, true), (4, false)] {
        let small = Limits { connection_bytes_max: 100_000, ..Limits::default() };
        for limits in [Limits::default(), small] {
            world(seed, limits, move |_, env, frontend, addr| async move {
                churn(env, addr, structured, seed).await;
                let stats = frontend.stats();
                assert!(stats.read_bytes > MIB && stats.written_bytes > MIB && stats.failed == 0);
            });
        }
    }
}

#[test]
fn many_requests_are_under_way_at_a_time() {
    world(5, Limits::default(), |_, env, _, addr| async move {
        let mut client = Client::open(&env, addr, "vol", true).await;
        let began = env.now();
        let page = [7; 4096];
        // More than may be under way, sent before an answer is taken, with a large one among them
        // whose answer the connection has room for.
        for n in 0..600u64 {
            client.ask(Command::Write, 0, (n * 4096, 4096), &page).await;
            if n == 200 {
                client.ask(Command::Read, 0, (0, 700 << 10), &[]).await;
            }
        }
        let mut done = 0;
        while done < 601 {
            let (_, last, chunk) = client.chunk().await.expect("an answer");
            assert!(!matches!(chunk, Chunk::Error { .. }));
            done += u64::from(last);
        }
        // The device takes 150 us in its turn and as long beside it.
        assert!(env.now() - began < Duration::from_millis(250), "{:?}", env.now() - began);
    });
}

#[test]
fn invalid_requests_are_refused_and_harm_no_other_connection() {
    world(6, Limits::default(), |_, env, frontend, addr| async move {
        let mut bystander = Client::open(&env, addr, "vol", true).await;
        for structured in [true, false] {
            let mut client = Client::open(&env, addr, "vol", structured).await;
            let end = BYTES - 10;
            for (command, asked, errno) in [
                (Command::Read, (end, 11), 22),
                (Command::Write, (end, 11), 28),
                (Command::WriteZeroes, (end, 11), 28),
                (Command::Trim, (u64::MAX, 11), 22),
                (Command::Cache, (BYTES, 1), 22),
                (Command::Read, (0, 0), 22),
                (Command::Write, (0, 0), 22),
                (Command::Trim, (0, 0), 22),
                (Command::Read, (0, (32 << 20) + 1), 75),
                (Command::Read, (0, u32::MAX), 75),
                (Command::Write, (0, (32 << 20) + 1), 75),
                (Command::Read, (u64::MAX - 3, 4), 22),
            ] {
                let data = vec![1; if command == Command::Write { asked.1 as usize } else { 0 }];
                let answer = client.call(command, 0, asked, &data).await;
                assert_eq!(answer, Err(errno), "{command:?} {asked:?}");
            }
            let no_flag = client.call(Command::Read, request_flags::NO_HOLE, (0, 1), &[]).await;
            assert_eq!(no_flag, Err(22));
            let longest = client.call(Command::Read, 0, (0, BYTES as u32), &[]).await;
            assert_eq!(longest.map(|data| data.len()), Ok(BYTES as usize));
            if !structured {
                assert_eq!(client.call(Command::BlockStatus, 0, (0, 9), &[]).await, Err(22));
            }
        }
        let mut read_only = Client::open(&env, addr, "ro-vol", true).await;
        for command in [Command::Write, Command::Trim, Command::WriteZeroes] {
            let data: &[u8] = if command == Command::Write { &[1] } else { &[] };
            assert_eq!(read_only.call(command, 0, (0, 1), data).await, Err(1));
        }
        assert_eq!(frontend.stats().broken, 0);
        drop(read_only);

        let request = |len| block_nbd::protocol::Request {
            command: Command::Write,
            flags: 0,
            cookie: 1,
            offset: 0,
            len,
        };
        // Each ends its own connection.
        let mut magic = request(1).encode().to_vec();
        magic[0] ^= 1;
        let huge = request(u32::MAX).encode().to_vec();
        for bytes in [magic, huge] {
            let mut client = Client::open(&env, addr, "vol", true).await;
            client.send(&bytes).await;
            assert_eq!(client.take(1).await, None);
        }
        let mut early = Client::connect(&env, addr).await;
        early.send(b"GET / HTTP/1.1\r\n\r\n").await;
        assert_eq!(early.take(1).await, None);
        assert_eq!(frontend.stats().broken, 3);
        // Half a head, and half of a write's data.
        for half in [request(9).encode()[..11].to_vec(), request(9).encode().to_vec()] {
            let mut client = Client::open(&env, addr, "vol", true).await;
            client.send(&half).await;
        }
        env.sleep(Duration::from_millis(10)).await;
        assert_eq!(frontend.stats().connections, 1);
        assert!(bystander.call(Command::Write, 0, (0, 4), b"here").await.is_ok());
        assert_eq!(bystander.call(Command::Read, 0, (0, 4), &[]).await, Ok(b"here".to_vec()));
    });
}

#[test]
fn client_that_does_not_read_is_bounded_and_stops_no_other() {
    for structured in [true, false] {
        world(7, Limits::default(), move |server, env, frontend, addr| async move {
            let mut idle = Client::open(&env, addr, "vol", structured).await;
            let ask = env.spawn(Class::Foreground, "ask", async move {
                for n in 0..2000u64 {
                    let len = if n % 3 == 0 { 3 << 20 } else { 128 << 10 };
                    idle.ask(Command::Read, 0, (n * 7, len), &[]).await;
                }
                idle.ask(Command::Write, 0, (0, 1 << 20), &vec![1; 1 << 20]).await;
                idle
            });
            let mut other = Client::open(&env, addr, "vol", true).await;
            for n in 0..300u64 {
                env.sleep(Duration::from_millis(1)).await;
                let read = other.call(Command::Read, 0, (n * 4096, 4096), &[]).await;
                assert!(read.is_ok());
                let used = server.pool().used();
                assert!(used < 6 << 20, "{used} bytes are held");
            }
            assert!(frontend.stats().done < 1500);
            drop(ask);
        });
    }
}

#[test]
fn connections_are_bounded_and_negotiation_ends() {
    let limits = Limits {
        connections_max: 2,
        negotiation_max: Duration::from_millis(50),
        ..Limits::default()
    };
    world(8, limits, |_, env, frontend, addr| async move {
        let mut open = Client::open(&env, addr, "vol", true).await;
        let slow = [Client::connect(&env, addr).await, Client::connect(&env, addr).await];
        let mut next = Client::open(&env, addr, "vol", true).await;
        let mut one_more = Client::connect(&env, addr).await;
        let refused = one_more.go("vol").await.expect_err("too many are open");
        assert_eq!(code(Some(&refused)), ReplyCode::Policy);
        assert_eq!((frontend.stats().refused, frontend.stats().connections), (1, 2));
        for mut slow in slow {
            assert_eq!(slow.take(1).await, None);
        }
        assert!(next.call(Command::Read, 0, (0, 1), &[]).await.is_ok());
        assert!(open.call(Command::Read, 0, (0, 1), &[]).await.is_ok());
    });
}

/// The bounds were those of a process with 512 MiB of buffers, whatever it had.
#[test]
fn number_of_connections_follows_the_buffers_of_the_process() {
    world(81, Limits::default(), |server, env, frontend, addr| async move {
        // Each holds 4 MiB at most, all together half of the buffers.
        let most = server.pool().budget() / 2 / (4 << 20);
        assert!(most < Limits::default().connections_max);
        let mut open = Vec::new();
        for _ in 0..most {
            open.push(Client::open(&env, addr, "vol", true).await);
        }
        let mut one_more = Client::connect(&env, addr).await;
        let refused = one_more.go("vol").await.expect_err("more than half could be held");
        assert_eq!(code(Some(&refused)), ReplyCode::Policy);
        assert_eq!(frontend.stats().connections, most);
    });
}

/// Issue 10, 4.6: connections without a certificate took the permits of those that had a volume
/// open, or were about to.
#[test]
fn flood_of_handshakes_takes_no_connection_permit_and_bounded_memory() {
    let limits = Limits { handshakes_max: 8, connections_max: 4, ..Limits::default() };
    world(9, limits, |server, env, frontend, addr| async move {
        let mut first = Client::open(&env, addr, "vol", true).await;
        let mut flood = Vec::new();
        for round in 0..40u32 {
            for _ in 0..5 {
                // Half of an option, and no more.
                let mut idle = Client::connect(&env, addr).await;
                idle.send(b"IHAVEOPT\0\0\0\x07\0\0\x01\0").await;
                flood.push(idle);
            }
            if round % 10 == 9 {
                let mut next = Client::open(&env, addr, "vol", true).await;
                assert!(next.call(Command::Read, 0, (0, 1), &[]).await.is_ok(), "round {round}");
            }
            assert!(first.call(Command::Write, 0, (0, 4), b"here").await.is_ok());
            let stats = frontend.stats();
            assert!(stats.handshakes <= 8 && stats.connections <= 4, "{stats:?}");
            let used = server.pool().used();
            assert!(used <= 2 << 20, "{used} bytes are held");
        }
        assert!(frontend.stats().refused >= 150, "{:?}", frontend.stats());
    });
}

/// Fails to read and write from some byte on.
struct Failing;

const BAD_FROM: u64 = 2 * MIB;

impl Failing {
    fn check(extent: Extent) -> Result<(), Fault> {
        if extent.offset + extent.len > BAD_FROM {
            return Err(Fault::new(Kind::Corrupt, "this part is damaged"));
        }
        Ok(())
    }
}

impl Device for Failing {
    fn bytes(&self) -> u64 {
        8 * MIB
    }

    fn read(&self, extent: Extent) -> Answer<'_, Buf> {
        async move {
            Failing::check(extent)?;
            let buf = Env::current().pool().alloc_zeroed(extent.len as usize);
            Ok(buf.expect("within the budget").freeze())
        }
        .boxed_local()
    }

    fn write(&self, offset: u64, data: Buf) -> Answer<'_, ()> {
        async move { Failing::check(Extent { offset, len: data.len() as u64 }) }.boxed_local()
    }

    fn clear(&self, _: Extent, _: Clear) -> Answer<'_, ()> {
        async { Err(Fault::new(Kind::Full, "no room")) }.boxed_local()
    }

    fn pieces(&self, extent: Extent, _: usize) -> Answer<'_, Vec<AllocationExtent>> {
        async move { Ok(vec![AllocationExtent { len: extent.len, hole: false, zero: false }]) }
            .boxed_local()
    }
}

impl Exports for Failing {
    fn names<'a>(&'a self, _: Option<&'a str>) -> Answer<'a, Names> {
        async { Ok(Names { names: vec!["bad".to_owned()], more: false }) }.boxed_local()
    }

    fn about<'a>(&'a self, _: &'a str) -> Answer<'a, About> {
        let about =
            About { bytes: 8 * MIB, description: String::new(), read_only: false, shared: false };
        async { Ok(about) }.boxed_local()
    }

    fn open<'a>(&'a self, _: &'a str) -> Answer<'a, Rc<dyn Device>> {
        async { Ok(Rc::new(Failing) as Rc<dyn Device>) }.boxed_local()
    }
}

#[test]
fn a_device_that_fails_fails_requests_only() {
    let sim = Sim::new(9);
    let host = sim.add_host("frontend");
    let world = sim.clone();
    sim.run(async {
        let env = world.boot(host);
        let (here, addr) = (env.clone(), world.addr(host, 10809));
        let test = env.spawn(Class::Foreground, "test", async move {
            let frontend = Frontend::new(&here, Rc::new(Failing), Limits::default());
            frontend.listen(([127, 0, 0, 1], 10809).into()).await.expect("a free address");
            let data = vec![3; 4 << 20];
            // The only export needs no name.
            let mut client = Client::open(&here, addr, "", true).await;
            let call = client.call(Command::Read, 0, (0, 4 << 20), &[]).await;
            assert_eq!(call, Err(5), "the rest of a long read");
            assert_eq!(client.call(Command::Read, 0, (BAD_FROM, 1), &[]).await, Err(5));
            assert_eq!(client.call(Command::Write, 0, (0, 4 << 20), &data).await, Err(5));
            assert_eq!(client.call(Command::Trim, 0, (0, 1), &[]).await, Err(28));
            assert_eq!(client.call(Command::Write, 0, (0, 3), b"abc").await, Ok(vec![]));
            drop(client);
            here.sleep(Duration::from_millis(10)).await;
            // With simple replies, an answer that has begun cannot turn into an error.
            let mut client = Client::open(&here, addr, "bad", false).await;
            assert_eq!(client.call(Command::Read, 0, (BAD_FROM, 1 << 20), &[]).await, Err(5));
            client.ask(Command::Read, 0, (0, 4 << 20), &[]).await;
            assert!(client.take(16).await.is_some());
            assert_eq!(client.take(4 << 20).await, None);
            assert_eq!(frontend.stats().broken, 0);
        });
        test.await.expect("it ends");
    })
    .expect("nothing stalls");
    sim.close();
}

#[test]
fn address_off_loopback_without_tls_is_refused() {
    let sim = Sim::new(10);
    let host = sim.add_host("frontend");
    let world = sim.clone();
    sim.run(async {
        let env = world.boot(host);
        let frontend = Frontend::new(&env, Rc::new(Failing), Limits::default());
        for addr in ["0.0.0.0:10809", "192.168.1.4:10809", "[::]:10809"] {
            let refused = frontend.listen(addr.parse().unwrap()).await.unwrap_err();
            assert!(matches!(refused, ListenError::OffLoopback(_)));
            assert!(refused.to_string().contains("127.0.0.1"));
        }
    })
    .expect("nothing stalls");
    sim.close();
}
