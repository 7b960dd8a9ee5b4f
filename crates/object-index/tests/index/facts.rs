//! Facts of objects that change without their content: one owner and one gateway, without faults.

use std::collections::BTreeMap;
use std::rc::Rc;

use object_index::Service;
use object_proto::limits::GRANTS_MAX;
use object_proto::{
    BodyPlan, BucketId, Completion, Conditions, Envelope, Error, Etag, Grant, Grantee, Metadata,
    NewUpload, ObjectFacts, ObjectKey, ObjectTags, PartNumber, Permission, Target, UserId,
    VersionId, Versioning,
};

use super::basics::{put, read, run};
use super::support::{World, bucket, me, name};

fn at(bucket: BucketId, key: &str) -> Target {
    Target { bucket, key: ObjectKey::new(key).unwrap() }
}

fn to(user: &str, permission: Permission) -> Grant {
    Grant { grantee: Grantee::User(UserId::new(user)), permission }
}

fn all() -> Grant {
    Grant { grantee: Grantee::All, permission: Permission::Read }
}

async fn replaced(world: &Rc<World>) {
    let old = world.owners.borrow().last().expect("one rules").clone();
    world.crash(&old);
    world.take_over().await.expect("it opens");
}

async fn acl(service: &Service, target: &Target, version: Option<VersionId>) -> Vec<Grant> {
    service.look(target, version).await.unwrap().object.facts.acl
}

#[test]
fn permissions_change_alone_and_are_kept_over_takeovers() {
    run(|world, service, _| async move {
        let target = at(bucket(&service, "abc").await.id, "a");
        let headers = BTreeMap::from([("x-amz-meta-a".to_owned(), "v".repeat(100))]);
        let tags = [("a".to_owned(), "1".to_owned())];
        let first = ObjectFacts {
            etag: Etag::new("1"),
            metadata: Metadata::new(headers).unwrap(),
            tags: ObjectTags::new(tags.into()).unwrap(),
            owner: me(),
            acl: vec![to("me", Permission::Full)],
            ..ObjectFacts::default()
        };
        // In a log of the range; with more permissions its headers are apart.
        put(&service, &target, &[7; 600], first.clone()).await;
        let was = service.look(&target, None).await.unwrap();
        assert_eq!(was.object.facts, first);
        let many: Vec<Grant> =
            (0..GRANTS_MAX).map(|at| to(&format!("user-{at:060}"), Permission::Read)).collect();
        for set in [many.clone(), vec![all()], Vec::new(), vec![all(), to("you", Permission::Full)]]
        {
            service.set_acl(target.clone(), None, set.clone()).await.unwrap();
            for takeover in [false, true] {
                if takeover {
                    replaced(&world).await;
                }
                let mut wanted = was.clone();
                wanted.object.facts.acl.clone_from(&set);
                wanted.object.data = service.look(&target, None).await.unwrap().object.data;
                assert_eq!(service.look(&target, None).await.unwrap(), wanted);
                assert_eq!(read(&service, &target).await, [7; 600]);
            }
        }
        // Its tags change beside them.
        service.set_tags(target.clone(), None, ObjectTags::default()).await.unwrap();
        assert_eq!(acl(&service, &target, None).await.len(), 2);
        let more: Vec<Grant> = many.into_iter().chain([all()]).collect();
        let long = vec![to(&"x".repeat(1025), Permission::Read)];
        for flawed in [more, long] {
            let set = service.set_acl(target.clone(), None, flawed.clone()).await;
            assert!(matches!(set, Err(Error::Invalid { .. })), "{set:?}");
            let sent = ObjectFacts { acl: flawed, ..ObjectFacts::default() };
            let upload = service.put(target.clone()).await.unwrap();
            let sent = upload.commit(sent, Conditions::default()).await;
            assert!(matches!(sent, Err(Error::Invalid { .. })), "{sent:?}");
        }
        assert_eq!(acl(&service, &target, None).await.len(), 2);
    });
}

#[test]
fn permissions_are_a_versions_own() {
    run(|world, service, _| async move {
        let target = at(bucket(&service, "abc").await.id, "a");
        service.set_versioning(name("abc"), Versioning::Enabled).await.unwrap();
        let none = service.set_acl(target.clone(), None, vec![all()]).await;
        assert_eq!(none, Err(Error::NoSuchKey));
        let encryption = Envelope::new(vec![6; 90]);
        let facts = ObjectFacts { encryption: encryption.clone(), ..ObjectFacts::default() };
        put(&service, &target, b"1", facts).await;
        let old = service.look(&target, None).await.unwrap().version();
        put(&service, &target, b"2", ObjectFacts::default()).await;
        let new = service.look(&target, None).await.unwrap().version();
        let set = service.set_acl(target.clone(), Some(old), vec![all()]).await.unwrap();
        assert_eq!((set.version, set.marker), (Some(old), false));
        replaced(&world).await;
        assert_eq!(acl(&service, &target, Some(old)).await, [all()]);
        assert_eq!(acl(&service, &target, Some(new)).await, []);
        let gone = service.set_acl(target.clone(), Some(VersionId::Null), vec![all()]).await;
        assert_eq!(gone, Err(Error::NoSuchVersion));
        let marker = service.delete(target.clone(), me(), Conditions::default()).await.unwrap();
        let set = service.set_acl(target.clone(), marker.version, vec![all()]).await;
        assert!(matches!(set, Err(Error::Marker { asked: true, .. })), "{set:?}");
        // What an older version was given comes back with it, and how it is encrypted.
        for version in [marker.version.unwrap(), new] {
            let none = Conditions::default();
            service.delete_version(target.clone(), version, none, false).await.unwrap();
        }
        assert_eq!(acl(&service, &target, None).await, [all()]);
        let back = service.look(&target, None).await.unwrap();
        assert_eq!(back.object.facts.encryption, encryption);
    });
}

#[test]
fn a_key_that_wraps_something_is_known_behind_a_restart() {
    run(|world, service, _| async move {
        assert_eq!(service.keys_in_use().await, Ok(Vec::new()));
        for key in ["k1", "app/2", "k1"] {
            service.use_key(key.to_owned()).await.unwrap();
        }
        let long = service.use_key("k".repeat(129)).await;
        assert!(matches!(long, Err(Error::Invalid { .. })), "{long:?}");
        replaced(&world).await;
        assert_eq!(service.keys_in_use().await.unwrap(), ["app/2", "k1"]);
    });
}

#[test]
fn an_object_has_the_permissions_that_its_upload_was_begun_with() {
    run(|world, service, _| async move {
        let target = at(bucket(&service, "abc").await.id, "a");
        let upload = NewUpload {
            nonce: 1,
            owner: me(),
            acl: vec![all()],
            encryption: Envelope::new(vec![7; 90]),
            ..NewUpload::default()
        };
        let id = service.begin_upload(target.clone(), upload.clone()).await.unwrap();
        replaced(&world).await;
        assert_eq!(service.upload(target.clone(), id).await.unwrap().upload, upload);
        let number = PartNumber::new(1).unwrap();
        let mut part =
            service.put_part(target.clone(), (id, number), BodyPlan::default()).await.unwrap();
        part.write(b"one").await.unwrap();
        part.commit(ObjectFacts::default(), Conditions::default()).await.unwrap();
        let ask =
            object_proto::PartsRequest { target: target.clone(), upload: id, after: 0, limit: 9 };
        let parts = service.parts(ask).await.unwrap().parts;
        let parts = parts.iter().map(|part| (part.number, part.data_id)).collect();
        let (etag, checksums) = (Etag::new("e"), Vec::new());
        let completion = Completion { upload: id, parts, etag, checksums };
        let made = service.complete_upload(target.clone(), completion, Conditions::default());
        made.await.unwrap();
        assert_eq!(acl(&service, &target, None).await, [all()]);
        // And it is encrypted as its upload was begun.
        let made = service.look(&target, None).await.unwrap();
        assert_eq!(made.object.facts.encryption, Envelope::new(vec![7; 90]));
    });
}
