//! Lists of the manager's that have no room in one answer.

use std::rc::Rc;

use codec::cursor::{put_bytes, put_varint};
use futures_util::future::LocalBoxFuture;
use object_index::{Bugs, CATALOG_DIR, Owners, Service, ServiceOptions};
use object_proto::limits::POLICY_MAX;
use object_proto::wire::encode_answer;
use object_proto::{
    AccessKey, Bucket, BucketId, BucketName, Error, NewKey, RangeBound, RangeId, RangePlace, Reply,
    Request, User, UserChange, UserId, Versioning,
};
use runtime::{Class, Duration, Env};
use table::{Batch, Cache, Options, Table};
use wire::control::limits::MESSAGE_LEN_MAX;

use super::basics::run;
use super::support::{Unit, World};

/// Drops answers for which a frame has no room, as the transport does.
struct Framed(Rc<dyn Owners>);

impl Owners for Framed {
    fn call(
        &self,
        request: Request,
        timeout: Duration,
    ) -> LocalBoxFuture<'_, Result<Reply, Error>> {
        Box::pin(async move {
            let answer = self.0.call(request, timeout).await;
            if encode_answer(&answer).len() > MESSAGE_LEN_MAX {
                return Err(Error::Unknown { cause: "the answer has no room".to_owned() });
            }
            answer
        })
    }
}

fn framed(world: &World, env: &Env) -> Service {
    let owners = Rc::new(Framed(world.network.owners(env)));
    Service::new(env, owners, world.files(env), ServiceOptions::default())
}

#[test]
fn users_who_have_no_room_in_one_answer_are_listed() {
    const USERS: usize = 300;
    run(|world, service, env| async move {
        let mut names = Vec::new();
        for at in 0..USERS {
            // In another order than that of their names.
            let number = (at * 7) % USERS;
            let text = |kind: &str| format!("{number:05}{}", kind.repeat(1000));
            let user = User {
                id: UserId::new(text("i")),
                name: text("n"),
                display_name: text("d"),
                email: text("m"),
                policy: Some("{}".to_owned()),
                ..User::default()
            };
            names.push(user.name.clone());
            let key = NewKey {
                id: format!("K{number}"),
                wrapped_secret: Vec::new(),
                expires_us: None,
                policy: None,
            };
            let create = UserChange::Create { user: Box::new(user), key: Box::new(key) };
            service.change_user(create).await.unwrap();
        }
        names.sort();
        let users = framed(&world, &env).users().await.unwrap();
        let shown: Vec<_> = users.iter().map(|user| user.name.clone()).collect();
        assert!(shown == names, "{} of {} users", shown.len(), names.len());
        assert!(users.iter().all(|user| user.policy.is_none()));
    });
}

/// A catalog with these rows.
async fn make_catalog(world: &World, env: &Env, rows: impl Iterator<Item = (Vec<u8>, Vec<u8>)>) {
    let store = world.disk.beside(CATALOG_DIR).store(env);
    let table = Table::open(env, store, &Cache::new(1 << 20), Options::default()).await.unwrap();
    let rows: Vec<_> = rows.collect();
    for some in rows.chunks(1000) {
        let mut batch = Batch::new();
        for (key, row) in some {
            batch.put(key, row);
        }
        table.write(&batch).await.unwrap();
    }
    table.close().await.unwrap();
}

/// The row of a range that begins at a place, and has no owner.
fn range_row(RangePlace { range, first }: &RangePlace) -> (Vec<u8>, Vec<u8>) {
    let key = [b"R".as_slice(), &range.get().to_be_bytes()].concat();
    let mut row = vec![1];
    row.extend(first.bucket.get().to_le_bytes());
    put_bytes(&mut row, first.key.as_bytes());
    put_varint(&mut row, 0);
    put_varint(&mut row, 0);
    (key, row)
}

/// The row of a bucket that never had versions.
fn bucket_row(bucket: &Bucket) -> (Vec<u8>, Vec<u8>) {
    let key = [b"B", bucket.name.as_str().as_bytes()].concat();
    let mut row = vec![1];
    row.extend(bucket.id.get().to_le_bytes());
    put_bytes(&mut row, bucket.owner.as_str().as_bytes());
    put_varint(&mut row, bucket.created_us);
    row.extend(1u64.to_le_bytes());
    put_varint(&mut row, bucket.id.get());
    (key, row)
}

#[test]
fn ranges_that_have_no_room_in_one_answer_are_known() {
    let world = World::new(1, Bugs::default());
    world.clone().run(async move {
        let (_, env) = world.host("gateway");
        let on = env.clone();
        let work = async move {
            let place = |at: u64| RangePlace {
                range: RangeId::new(at + 1),
                first: match at {
                    0 => RangeBound::of_bucket(BucketId::new(0)),
                    _ => RangeBound {
                        bucket: BucketId::new(1 << 60),
                        key: format!("{at:05}{}", "k".repeat(1000)),
                    },
                },
            };
            let places: Vec<RangePlace> = (0..1500).map(place).collect();
            make_catalog(&world, &on, places.iter().map(range_row)).await;
            world.take_over_unit(Unit::Manager).await.expect("it opens");
            let service = framed(&world, &on);
            let map = service.map().await.expect("it is known");
            assert!(map.places() == places, "{} ranges", map.places().len());
        };
        env.spawn(Class::Foreground, "test", work).await.unwrap();
    });
}

#[test]
fn buckets_that_have_no_room_in_one_answer_are_listed() {
    let world = World::new(1, Bugs::default());
    world.clone().run(async move {
        let (_, env) = world.host("gateway");
        let on = env.clone();
        let work = async move {
            let bucket = |at: u64| Bucket {
                id: BucketId::new(at + 1),
                name: BucketName::new(&format!("{at:05}{}", "n".repeat(58))).unwrap(),
                owner: UserId::new(format!("{}{}", at % 9, "o".repeat(60))),
                created_us: 7 + at,
                versioning: Versioning::Off,
            };
            let buckets: Vec<Bucket> = (0..9_000).map(bucket).collect();
            make_catalog(&world, &on, buckets.iter().map(bucket_row)).await;
            world.take_over_unit(Unit::Manager).await.expect("it opens");
            let service = framed(&world, &on);
            let all = service.buckets(None).await.expect("they are known");
            assert!(all == buckets, "{} buckets", all.len());
            let owner = &buckets[4].owner;
            let of_one = service.buckets(Some(owner.clone())).await.expect("they are known");
            let own = |bucket: &&Bucket| bucket.owner == *owner;
            assert!(of_one == buckets.iter().filter(own).cloned().collect::<Vec<_>>());
        };
        env.spawn(Class::Foreground, "test", work).await.unwrap();
    });
}

#[test]
fn keys_of_a_user_that_have_no_room_in_one_answer_are_listed() {
    const KEYS: usize = 60;
    run(|world, service, env| async move {
        let policy = || Some("p".repeat(POLICY_MAX));
        let id = |at: usize| format!("K{:02}", (at * 7) % KEYS);
        let new_key = |at: usize| {
            let (id, wrapped_secret, expires_us) = (id(at), vec![1, 2], Some(9));
            Box::new(NewKey { id, wrapped_secret, expires_us, policy: policy() })
        };
        let (id_of_user, name) = (UserId::new("1"), "ann".to_owned());
        let user = User { id: id_of_user.clone(), name, policy: policy(), ..User::default() };
        let create = UserChange::Create { user: Box::new(user.clone()), key: new_key(0) };
        service.change_user(create).await.unwrap();
        for at in 1..KEYS {
            let add = UserChange::AddKey { user: id_of_user.clone(), key: new_key(at) };
            service.change_user(add).await.unwrap();
        }
        let keys = framed(&world, &env).keys(id_of_user).await.expect("they are known");
        let mut ids: Vec<String> = (0..KEYS).map(id).collect();
        ids.sort();
        assert!(keys.iter().map(|key| &key.id).eq(&ids), "{} keys", keys.len());
        let is_whole = |key: &AccessKey| {
            key.user == user && key.policy == policy() && key.wrapped_secret.is_empty()
        };
        assert!(keys.iter().all(is_whole));
    });
}
