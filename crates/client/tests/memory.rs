//! Appends while the buffer pool is spent.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::SocketAddr;
use std::rc::Rc;

use base::limits::APPEND_DATA_MAX;
use client::{Client, Config, DataAnswer, Error, PeerError, Peers, Recipient};
use futures_util::future::{FutureExt, LocalBoxFuture, join};
use runtime::{Buf, BufMut, BufPool, Duration, Env};
use wire::control::{ControlError, ControlReply, ControlRequest, Policy};
use wire::data::{DataError, DataRequest};

use crate::cluster::{bytes, run};
use crate::fake::{Fake, Health};

/// Takes what the pool has, but for `left` bytes and less than a MiB.
fn take_all_but(pool: &BufPool, left: usize) -> Vec<BufMut> {
    let mut taken = Vec::new();
    while pool.budget() - pool.used() >= left + (1 << 20) {
        taken.push(pool.alloc(1 << 20).expect("just seen"));
    }
    taken
}

/// Takes all that the pool has.
fn take_all(pool: &BufPool) -> Vec<BufMut> {
    let mut taken = Vec::new();
    for len in [1 << 20, 64 << 10, 4 << 10, 256] {
        while let Ok(buf) = pool.alloc(len) {
            taken.push(buf);
        }
    }
    taken
}

/// Memory of a connection: as much as the transport receives into.
const CONNECTION_BYTES: usize = 64 << 10;

/// Chunkservers behind connections that take memory of the pool, as the transport's do.
struct Connections {
    env: Env,
    peers: Rc<dyn Peers>,
    /// No chunkserver is reached.
    cut: Cell<bool>,
    made: RefCell<BTreeMap<SocketAddr, BufMut>>,
}

impl Connections {
    fn cut(&self) {
        self.cut.set(true);
        self.made.borrow_mut().clear();
    }

    fn connect(&self, to: SocketAddr) -> Result<(), String> {
        if self.cut.get() {
            return Err("cut".to_owned());
        }
        if let Entry::Vacant(place) = self.made.borrow_mut().entry(to) {
            let staging = self.env.pool().alloc(CONNECTION_BYTES);
            place.insert(staging.map_err(|error| error.to_string())?);
        }
        Ok(())
    }
}

impl Peers for Connections {
    fn control(
        &self,
        to: Recipient,
        request: ControlRequest,
        timeout: Duration,
    ) -> LocalBoxFuture<'static, Result<ControlReply, PeerError<ControlError>>> {
        self.peers.control(to, request, timeout)
    }

    fn data(
        &self,
        to: SocketAddr,
        request: DataRequest,
        token: [u8; 16],
        payload: Option<Buf>,
        timeout: Duration,
    ) -> LocalBoxFuture<'static, Result<DataAnswer, PeerError<DataError>>> {
        match self.connect(to) {
            Ok(()) => self.peers.data(to, request, token, payload, timeout),
            Err(why) => async move { Err(PeerError::Unreachable(why)) }.boxed_local(),
        }
    }
}

#[test]
fn appends_that_wait_for_a_connection_leave_it_the_memory_that_it_takes() {
    let fake = Fake::new(1, 3);
    let mut config = Config { appends_inflight_max: 4096, ..Config::default() };
    config.window_bytes = 64 << 20;
    config.writer.stall_budget = Duration::from_secs(6);
    run(60, &fake.clone(), Config::default(), |client| async move {
        let env = client.env().clone();
        let (peers, cut, made) = (fake.peers(&env), Cell::new(false), RefCell::default());
        let connections = Rc::new(Connections { env: env.clone(), peers, cut, made });
        let client = Client::connect_over(&env, connections.clone(), fake.masters(), config);
        let client = client.await.unwrap();
        let file = client.create("/file", Policy::strict(2), 0o644, true).await.unwrap();
        let writer = file.append_handle().await.unwrap();
        writer.append(b"first").await.unwrap();

        // What is left, an eighth and a little more, would be taken by less than these appends.
        let taken = take_all_but(env.pool(), env.pool().budget() / 8 + (1 << 20));
        let (data, count) = (bytes(1, 60_000), 600);
        connections.cut();
        let appends = async {
            let mut last = None;
            for _ in 0..count {
                last = Some(writer.submit(&data).await?);
            }
            last.expect("some").await
        };
        let heals = async {
            env.sleep(Duration::from_secs(2)).await;
            connections.cut.set(false);
            env.now()
        };
        let (appended, healed) = join(appends, heals).await;
        let waited = env.now() - healed;
        assert_eq!(appended, Ok(5 + 60_000 * (count - 1)), "{waited:?} after there was a network");
        assert!(waited < Duration::from_secs(3), "it took {waited:?}");
        drop(taken);
        assert_eq!(writer.close().await.unwrap(), 5 + 60_000 * count);
    });
}

/// What fills the pool may itself wait for appends, as requests of a service do.
#[test]
fn append_goes_on_while_others_have_more_than_appends_leave_to_them() {
    let fake = Fake::new(1, 3);
    let mut config = Config::default();
    config.writer.stall_budget = Duration::from_millis(200);
    run(62, &fake.clone(), config, |client| async move {
        let (env, pool) = (client.env().clone(), client.env().pool().clone());
        let file = client.create("/file", Policy::strict(2), 0o644, true).await.unwrap();
        let writer = file.append_handle().await.unwrap();
        let taken = take_all_but(&pool, pool.budget() / 8 - (2 << 20));
        assert!(pool.budget() - pool.used() < pool.budget() / 8);
        let began = env.now();
        for number in 0..10 {
            assert_eq!(writer.append(&bytes(1, 60_000)).await, Ok(60_000 * number));
        }
        let waited = env.now() - began;
        assert!(waited < Duration::from_millis(50), "they took {waited:?}");
        drop(taken);
    });
}

/// One of two appends that make one is acknowledged, and still held for a replica that is late.
#[test]
fn append_that_finds_no_memory_for_its_second_part_is_not_called_undone() {
    let fake = Fake::new(1, 3);
    let mut config = Config { window_bytes: 1 << 20, ..Config::default() };
    config.writer.stall_budget = Duration::from_millis(200);
    run(61, &fake.clone(), config, |client| async move {
        let env = client.env().clone();
        let file = client.create("/file", Policy::plain(3, 2), 0o644, true).await.unwrap();
        let writer = file.append_handle().await.unwrap();
        fake.with(|state| state.health[2] = Health::Silent);
        let data = bytes(1, APPEND_DATA_MAX + 1000);
        let starves = async {
            while writer.submitted_len() == 0 {
                env.sleep(Duration::from_micros(1)).await;
            }
            take_all(env.pool())
        };
        let (appended, taken) = join(writer.append(&data), starves).await;
        let error = appended.expect_err("there is no memory for its end");
        assert_eq!(writer.acked_len(), APPEND_DATA_MAX as u64, "its first part is written");
        assert!(matches!(error, Error::Unknown { .. }), "{error:?}");

        // Nothing of a short one is.
        let error = writer.append(b"short").await.expect_err("there is no memory");
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
        drop(taken);
        assert_eq!(writer.append(b"short").await.unwrap(), APPEND_DATA_MAX as u64);
    });
}
