//! Changes at masters that hang (`protocols.md` 4.2). Each group has a reply table of its own, which takes
//! changes of a session up to a distance from the oldest one without an answer.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;

use base::{ClientId, Kind};
use client::{Client, Config, DataAnswer, PeerError, Peers, Recipient};
use futures_util::future::{FutureExt, LocalBoxFuture, join, join3};
use runtime::{Buf, Class, Duration};
use wire::control::{
    ControlError, ControlReply, ControlRequest, NameKey, NamespaceChange, NamespaceRequest, OpId,
    namespace_partition,
};
use wire::data::{DataError, DataRequest};

use crate::cluster::run;
use crate::fake::Fake;

/// Mutations of one session that are not acknowledged at most, as the masters have it.
const REPLIES_MAX: u64 = 1024;
/// Partitions of the namespace in the cluster in memory.
const PARTITIONS: u16 = 2;

/// Masters that keep to the bounds of their reply tables, and leave directories whose names begin with
/// `stuck` for later. All changes of these tests make directories.
struct Tables {
    peers: Rc<dyn Peers>,
    acked_below: RefCell<BTreeMap<(u16, ClientId), u64>>,
    hangs: Cell<bool>,
}

impl Tables {
    fn takes(&self, op: &OpId, place: &NameKey) -> bool {
        let partition = namespace_partition(place.parent, PARTITIONS);
        let acked_below = &mut *self.acked_below.borrow_mut();
        let acked_below = acked_below.entry((partition, op.client)).or_default();
        *acked_below = op.acked_below.max(*acked_below);
        let hangs = self.hangs.get() && place.name.starts_with("stuck");
        op.seq < *acked_below + REPLIES_MAX && !hangs
    }
}

impl Peers for Tables {
    fn control(
        &self,
        to: Recipient,
        request: ControlRequest,
        timeout: Duration,
    ) -> LocalBoxFuture<'static, Result<ControlReply, PeerError<ControlError>>> {
        if let ControlRequest::Namespace(NamespaceRequest::Change { op, change }) = &request
            && let NamespaceChange::Mkdir { place, .. } = change
            && !self.takes(op, place)
        {
            let refused = ControlError::new(Kind::Retry, "retry later");
            return async move { Err(PeerError::Refused(refused)) }.boxed_local();
        }
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
        self.peers.data(to, request, token, payload, timeout)
    }
}

/// A client of such masters, and a directory of each partition.
async fn connect(client: &Client, fake: &Fake) -> (Client, Rc<Tables>, [String; 2]) {
    let env = client.env();
    let tables = Rc::new(Tables {
        peers: fake.peers(env),
        acked_below: RefCell::default(),
        hangs: Cell::new(true),
    });
    let connected = Client::connect_over(env, tables.clone(), fake.masters(), Config::default());
    let client = connected.await.unwrap();
    let mut dirs: [Option<String>; 2] = Default::default();
    for number in 0.. {
        let path = format!("/d{number}");
        client.mkdir(&path, 0o755).await.unwrap();
        let parent = client.place_of(&format!("{path}/x")).await.unwrap().parent;
        let partition = namespace_partition(parent, PARTITIONS);
        dirs[usize::from(partition)].get_or_insert(path);
        if let [Some(one), Some(other)] = &dirs {
            return (client, tables, [one.clone(), other.clone()]);
        }
    }
    unreachable!("names are spread")
}

/// Makes so many directories, one at a time.
async fn make(client: &Client, dir: &str, count: usize) {
    for number in 0..count {
        client.mkdir(&format!("{dir}/{number}"), 0o755).await.unwrap();
    }
}

#[test]
fn a_change_that_hangs_holds_up_none_of_another_group() {
    let fake = Fake::new(1, 3);
    run(50, &fake.clone(), Config::default(), |client| async move {
        let (client, tables, [stuck, other]) = connect(&client, &fake).await;
        let (env, path) = (client.env().clone(), format!("{stuck}/stuck"));
        let free = async {
            make(&client, &other, 1100).await;
            let done = env.now();
            tables.hangs.set(false);
            done
        };
        let began = env.now();
        let (made, done) = join(client.mkdir(&path, 0o755), free).await;
        made.unwrap();
        let waited = done - began;
        assert!(waited < Duration::from_secs(5), "the others took {waited:?}");
    });
}

/// As many as a client has in flight at once.
#[test]
fn changes_that_hang_hold_up_none_of_another_group() {
    let fake = Fake::new(1, 3);
    run(51, &fake.clone(), Config::default(), |client| async move {
        let (client, tables, [stuck, other]) = connect(&client, &fake).await;
        let env = client.env().clone();
        for number in 0..300 {
            let (client, path) = (client.clone(), format!("{stuck}/stuck{number}"));
            env.spawn(Class::Foreground, "hangs", async move {
                client.mkdir(&path, 0o755).await.map(drop)
            });
        }
        env.sleep(Duration::from_millis(100)).await;
        let began = env.now();
        make(&client, &other, 10).await;
        let waited = env.now() - began;
        assert!(waited < Duration::from_secs(1), "the others took {waited:?}");
        tables.hangs.set(false);
        env.sleep(Duration::from_secs(2)).await;
        assert_eq!(client.list_all(&stuck).await.unwrap().len(), 300);
    });
}

/// Those of its own group wait for it, and go on when it has ended.
#[test]
fn changes_behind_one_that_hangs_go_on_when_it_has_ended() {
    let fake = Fake::new(1, 3);
    run(52, &fake.clone(), Config::default(), |client| async move {
        let (client, tables, [stuck, _]) = connect(&client, &fake).await;
        let (env, path) = (client.env().clone(), format!("{stuck}/stuck"));
        let ends = async {
            env.sleep(Duration::from_secs(3)).await;
            tables.hangs.set(false);
        };
        let began = env.now();
        let work = join3(client.mkdir(&path, 0o755), make(&client, &stuck, 1100), ends);
        let (made, (), ()) = work.await;
        made.unwrap();
        let waited = env.now() - began;
        assert!(waited < Duration::from_secs(6), "they took {waited:?}");
    });
}
