//! Pages of lists that have no room in one answer, and what an asker makes of them. What a service makes of them is in
//! `tests/index`.

use std::cell::Cell;

use futures_util::FutureExt;
use object_proto::limits::{KEYS_PER_USER_MAX, POLICY_MAX};
use object_proto::wire::encode_answer;
use object_proto::{
    AccessKey, Bucket, BucketId, BucketName, CatalogReply, CatalogRequest, Error, ObjectServerId,
    Peer, PeerRole, PeerState, PeerStatus, RangeBound, RangeId, RangeMap, RangePlace, RangeStatus,
    Reply, ServerStatus, ServiceStatus, User, UserId, Versioning,
};

use crate::answer_pages::{
    buckets_reply, keys_reply, map_reply, read_buckets, read_keys, read_map, read_status,
    read_users, status_reply, users_reply,
};
use crate::limits::ANSWER_BYTES;

/// So many ranges, whose first keys have 1,000 bytes: a page has room for about that many of them.
fn map(count: u64) -> RangeMap {
    let place = |at: u64| {
        let key = if at == 0 { String::new() } else { format!("{at:05}{}", "k".repeat(995)) };
        RangePlace {
            range: RangeId::new(at + 1),
            first: RangeBound { bucket: BucketId::new(0), key },
        }
    };
    RangeMap::new((0..count).map(place).collect()).expect("a map")
}

fn answer(map: &RangeMap, request: CatalogRequest, term: u64) -> CatalogReply {
    let reply = match request {
        CatalogRequest::Map => map_reply(map, None, term),
        CatalogRequest::MapBehind(bound) => map_reply(map, Some(&bound), term),
        request => panic!("{request:?}"),
    };
    assert!(encode_answer(&Ok(Reply::Catalog(reply.clone()))).len() <= ANSWER_BYTES + 64);
    reply
}

#[test]
fn a_map_is_one_answer_where_it_fits_and_else_put_together_from_pages() {
    for (count, questions) in [(1, 1), (1000, 1), (1100, 2), (4096, 4)] {
        let (map, asked) = (map(count), Cell::new(0));
        let ask = async |request| {
            asked.set(asked.get() + 1);
            Ok(answer(&map, request, 7))
        };
        let read = read_map(ask).now_or_never().expect("it waits for nothing");
        assert!(read == Ok(map.clone()), "{count} ranges");
        assert_eq!(asked.get(), questions, "{count} ranges");
    }
}

#[test]
fn pages_of_two_maps_are_never_one_map() {
    let before = map(3000);
    let at = RangeBound { bucket: BucketId::new(0), key: "00001".to_owned() };
    let halves = (RangeId::new(5000), RangeId::new(5001));
    let behind = before.split(RangeId::new(1), &at, halves).expect("it is within");
    // Another count, or another manager.
    for (later, term) in [(&behind, 7), (&before, 8)] {
        for change in 1..3 {
            let asked = Cell::new(0);
            let ask = async |request| {
                let number = asked.replace(asked.get() + 1);
                Ok(if number < change {
                    answer(&before, request, 7)
                } else {
                    answer(later, request, term)
                })
            };
            let read = read_map(ask).now_or_never().expect("it waits for nothing");
            assert!(read.as_ref() == Ok(later), "from question {change} on");
            assert_eq!(asked.get(), change + 4, "the first page is asked for again");
        }
    }
    // One that changes all the time is given up.
    let term = Cell::new(0);
    let ask = async |request| {
        term.set(term.get() + 1);
        Ok(answer(&before, request, term.get()))
    };
    let read = read_map(ask).now_or_never().expect("it waits for nothing");
    assert!(matches!(read, Err(Error::Busy { .. })), "it is given up");
}

/// A status with so many ranges, each of about 1,000 bytes, of which the last ones are not served.
fn status(count: u64, splitting: u32) -> ServiceStatus {
    let addr = "[2001:db8::1]:7601".parse().expect("an address");
    let server = |at: u32| ServerStatus {
        server: ObjectServerId::new(at + 1),
        name: format!("os{at:04}"),
        addr,
        state: PeerState::Up,
        ranges: 4,
        requests: 5,
        bytes: 6,
    };
    let range = |place: &RangePlace| {
        let served = place.range.get() < count - 3;
        let cause = if served { "" } else { "its object server is silent" }.to_owned();
        let (range, first) = (place.range, place.first.clone());
        let server = Some(ObjectServerId::new(1));
        RangeStatus { range, first, server, served, cause, requests: 8, bytes: 9 }
    };
    let peer = Peer { role: PeerRole::Gateway, name: "gw1".to_owned(), addr, connections: 3 };
    ServiceStatus {
        servers: (0..1024).map(server).collect(),
        ranges: map(count).places().iter().map(range).collect(),
        splitting,
        peers: vec![PeerStatus { peer, state: PeerState::Up, leads: false }],
    }
}

fn status_answer(status: &ServiceStatus, request: CatalogRequest, term: u64) -> CatalogReply {
    let reply = match request {
        CatalogRequest::Status => status_reply(status.clone(), None, term),
        CatalogRequest::StatusBehind(bound) => status_reply(status.clone(), Some(&bound), term),
        request => panic!("{request:?}"),
    };
    assert!(encode_answer(&Ok(Reply::Catalog(reply.clone()))).len() <= ANSWER_BYTES + 64);
    reply
}

#[test]
fn status_is_one_answer_where_it_fits_and_else_put_together_from_pages() {
    for (count, questions) in [(4, 1), (900, 1), (1100, 2), (4096, 5)] {
        let (status, asked) = (status(count, 2), Cell::new(0));
        let ask = async |request| {
            asked.set(asked.get() + 1);
            Ok(status_answer(&status, request, 7))
        };
        let read = read_status(ask).now_or_never().expect("it waits for nothing");
        assert!(read == Ok(status.clone()), "{count} ranges");
        assert_eq!(asked.get(), questions, "{count} ranges");
    }
}

#[test]
fn ranges_of_two_maps_are_never_one_status() {
    let before = status(3000, 1);
    // Another count, or another manager.
    for (later, term) in [(status(3001, 0), 7), (status(3000, 0), 8)] {
        let asked = Cell::new(0);
        let ask = async |request| {
            let number = asked.replace(asked.get() + 1);
            Ok(match number {
                0 | 1 => status_answer(&before, request, 7),
                _ => status_answer(&later, request, term),
            })
        };
        let read = read_status(ask).now_or_never().expect("it waits for nothing");
        assert!(read.as_ref() == Ok(&later), "term {term}");
    }
}

/// Pages of buckets, and of keys whose policies are long.
#[test]
fn buckets_and_keys_are_put_together_from_pages() {
    let bucket = |at: u64| Bucket {
        id: BucketId::new(at),
        name: BucketName::new(&format!("{at:05}")).expect("a name"),
        owner: UserId::new("o".repeat(1000)),
        created_us: at,
        versioning: Versioning::Off,
    };
    for (count, questions) in [(0, 1), (1000, 1), (1100, 2), (5000, 5)] {
        let (buckets, asked) = ((0..count).map(bucket).collect::<Vec<_>>(), Cell::new(0));
        let ask = async |request| {
            asked.set(asked.get() + 1);
            let reply = match request {
                CatalogRequest::Buckets(None) => buckets_reply(buckets.clone(), None),
                CatalogRequest::BucketsBehind { of: None, name } => {
                    buckets_reply(buckets.clone(), Some(&name))
                }
                request => panic!("{request:?}"),
            };
            assert!(encode_answer(&Ok(Reply::Catalog(reply.clone()))).len() <= ANSWER_BYTES + 64);
            Ok(reply)
        };
        let read = read_buckets(ask, None).now_or_never().expect("it waits for nothing");
        assert!(read == Ok(buckets.clone()), "{count} buckets");
        assert_eq!(asked.get(), questions, "{count} buckets");
    }
    let policy = Some("p".repeat(POLICY_MAX));
    let user = User { id: UserId::new("1"), policy: policy.clone(), ..User::default() };
    let key = |at: usize| AccessKey {
        id: format!("K{at:03}"),
        user: user.clone(),
        wrapped_secret: Vec::new(),
        enabled: true,
        expires_us: None,
        policy: policy.clone(),
    };
    let (keys, asked) = ((0..KEYS_PER_USER_MAX).map(key).collect::<Vec<_>>(), Cell::new(0));
    let ask = async |request| {
        asked.set(asked.get() + 1);
        let reply = match request {
            CatalogRequest::Keys(_) => keys_reply(keys.clone(), None),
            CatalogRequest::KeysBehind { key, .. } => keys_reply(keys.clone(), Some(&key)),
            request => panic!("{request:?}"),
        };
        assert!(encode_answer(&Ok(Reply::Catalog(reply.clone()))).len() <= ANSWER_BYTES + 64);
        Ok(reply)
    };
    let read = read_keys(ask, user.id.clone()).now_or_never().expect("it waits for nothing");
    assert!(read == Ok(keys.clone()), "keys");
    assert_eq!(asked.get(), 4, "25 keys have room in an answer");
}

/// A list whose end does not come is given up, as a page that is empty leads to no other one.
#[test]
fn empty_page_behind_which_there_is_more_is_an_error() {
    let asked = Cell::new(0);
    let ask = async |_: CatalogRequest| {
        asked.set(asked.get() + 1);
        let users = if asked.get() == 1 { vec![User::default()] } else { Vec::new() };
        Ok(CatalogReply::UsersPage { users, more: true })
    };
    let read = read_users(ask).now_or_never().expect("it waits for nothing");
    assert!(matches!(read, Err(Error::Busy { .. })), "{read:?}");
    assert_eq!(asked.get(), 2);
}

#[test]
fn users_are_one_answer_where_they_fit_and_else_put_together_from_pages() {
    let user = |at: u32| User {
        id: UserId::new(at.to_string()),
        name: format!("{at:05}{}", "n".repeat(995)),
        ..User::default()
    };
    for (count, questions) in [(0, 1), (1000, 1), (1100, 2), (5000, 5)] {
        let (users, asked) = ((0..count).map(user).collect::<Vec<_>>(), Cell::new(0));
        let ask = async |request| {
            asked.set(asked.get() + 1);
            let reply = match request {
                CatalogRequest::Users => users_reply(users.clone(), None),
                CatalogRequest::UsersBehind(name) => users_reply(users.clone(), Some(&name)),
                request => panic!("{request:?}"),
            };
            assert!(encode_answer(&Ok(Reply::Catalog(reply.clone()))).len() <= ANSWER_BYTES + 64);
            Ok(reply)
        };
        let read = read_users(ask).now_or_never().expect("it waits for nothing");
        assert!(read == Ok(users.clone()), "{count} users");
        assert_eq!(asked.get(), questions, "{count} users");
    }
}
