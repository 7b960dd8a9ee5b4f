//! The end of a front end that is asked to stop.

use std::rc::Rc;
use std::time::Duration;

use block_nbd::protocol::Command;
use block_nbd::protocol::limits::NBD_STOP_MAX;
use block_nbd::server::{Frontend, Limits};
use block_volume::contract::{AllocationExtent, Answer, Clear, Device};
use block_volume::export::{About, Exports, Names};
use block_volume::geometry::Extent;
use futures_util::FutureExt;
use runtime::sim::Sim;
use runtime::{Buf, Class, Env};

use super::client::Client;

const BYTES: u64 = 1 << 20;

/// A device whose requests take so long; its only export is itself.
#[derive(Clone)]
struct Slow(Env, Duration);

impl Device for Slow {
    fn bytes(&self) -> u64 {
        BYTES
    }

    fn read(&self, extent: Extent) -> Answer<'_, Buf> {
        async move {
            self.0.sleep(self.1).await;
            let buf = self.0.pool().alloc_zeroed(extent.len as usize);
            Ok(buf.expect("within the budget").freeze())
        }
        .boxed_local()
    }

    fn write(&self, _: u64, _: Buf) -> Answer<'_, ()> {
        self.0.sleep(self.1).map(Ok).boxed_local()
    }

    fn clear(&self, _: Extent, _: Clear) -> Answer<'_, ()> {
        self.0.sleep(self.1).map(Ok).boxed_local()
    }

    fn pieces(&self, extent: Extent, _: usize) -> Answer<'_, Vec<AllocationExtent>> {
        async move { Ok(vec![AllocationExtent { len: extent.len, hole: false, zero: false }]) }
            .boxed_local()
    }
}

impl Exports for Slow {
    fn names<'a>(&'a self, _: Option<&'a str>) -> Answer<'a, Names> {
        async { Ok(Names { names: vec!["vol".to_owned()], more: false }) }.boxed_local()
    }

    fn about<'a>(&'a self, _: &'a str) -> Answer<'a, About> {
        let description = String::new();
        let about = About { bytes: BYTES, description, read_only: false, shared: true };
        async { Ok(about) }.boxed_local()
    }

    fn open<'a>(&'a self, _: &'a str) -> Answer<'a, Rc<dyn Device>> {
        async { Ok(Rc::new(self.clone()) as Rc<dyn Device>) }.boxed_local()
    }
}

/// A front end whose requests take so long is stopped while three of one client are under way. Answers how many of
/// them the client gets an answer to, and how long the stop takes.
fn stop_under_load(takes: Duration) -> (usize, Duration) {
    let sim = Sim::new(11);
    let host = sim.add_host("frontend");
    let world = sim.clone();
    let stopped = sim.run(async {
        let env = world.boot(host);
        let (here, addr) = (env.clone(), world.addr(host, 10809));
        let test = env.spawn(Class::Foreground, "test", async move {
            let exports = Rc::new(Slow(here.clone(), takes));
            let frontend = Frontend::new(&here, exports, Limits::default());
            frontend.listen(([127, 0, 0, 1], 10809).into()).await.expect("a free address");
            let mut slow = Client::connect(&here, addr).await;
            let mut client = Client::open(&here, addr, "vol", true).await;
            for offset in [0, 4096, 8192] {
                client.ask(Command::Write, 0, (offset, 3), b"abc").await;
            }
            here.sleep(Duration::from_millis(5)).await;
            let asked = here.now();
            let stopping = {
                let (here, frontend) = (here.clone(), frontend.clone());
                here.clone().spawn(Class::Foreground, "stop", async move {
                    frontend.stop().await;
                    here.now() - asked
                })
            };
            let mut answered = 0;
            while client.chunk().await.is_some() {
                answered += 1;
            }
            assert_eq!(slow.take(1).await, None, "it has opened nothing");
            let took = stopping.await.expect("it ends");
            assert!(here.connect(addr).await.is_err(), "no more connections are taken");
            assert_eq!(frontend.stats().failed, 0);
            (answered, took)
        });
        test.await.expect("it ends")
    });
    sim.close();
    stopped.expect("nothing stalls")
}

#[test]
fn front_end_that_stops_answers_what_it_has_received() {
    let (answered, took) = stop_under_load(Duration::from_millis(100));
    assert_eq!(answered, 3);
    assert!(took < Duration::from_millis(200), "{took:?}");
}

/// Its client connects again, and asks the next process.
#[test]
fn front_end_that_stops_leaves_requests_that_take_long_without_an_answer() {
    let (answered, took) = stop_under_load(Duration::from_secs(60));
    assert_eq!(answered, 0);
    let latest = NBD_STOP_MAX + Duration::from_millis(100);
    assert!((NBD_STOP_MAX..latest).contains(&took), "{took:?}");
}
