//! Placement: spread, distribution, degraded clusters.

use std::collections::BTreeMap;

use runtime::Rng;

use super::*;

fn server(id: u32, domain: &str, disks: &[(u128, u64, u64)]) -> ServerView {
    let disks = disks.iter().map(|&(disk, capacity, used)| DiskView {
        disk: DiskId::new(disk),
        capacity,
        used,
        failed: false,
        addr: None,
    });
    ServerView {
        server: ServerId::new(id),
        addr: SocketAddr::from(([127, 0, 0, 1], id as u16)),
        domain: domain.to_owned(),
        alive: true,
        reached: true,
        rows: true,
        fragments: true,
        by_issuer: true,
        load: 0,
        disks: disks.collect(),
        draining: false,
        maintained: false,
    }
}

/// `servers` servers, `disks` disks each, every server in its own domain.
fn plain(servers: u32, disks: u128) -> Vec<ServerView> {
    let disks = |id: u32| -> Vec<_> {
        (0..disks).map(|disk| (u128::from(id) * 10 + disk, 100 * GIB, 10 * GIB)).collect()
    };
    (1..=servers).map(|id| server(id, &format!("rack{id}"), &disks(id))).collect()
}

fn wanted(copies: u8) -> Wanted<'static> {
    Wanted { copies, have: &[], never: &[], avoid: &[], floor: 2, need: 0, purpose: Purpose::Data }
}

fn chosen(
    servers: &[ServerView],
    wanted: &Wanted<'_>,
    seed: u64,
) -> Result<Vec<ReplicaLocation>, NoPlace> {
    let mut rng = Rng::new(seed);
    choose(&ClusterView::new(servers.to_vec()), wanted, &mut |bound| rng.below(bound))
}

/// Servers of the replicas of one choice, sorted.
fn servers_of(places: &[ReplicaLocation]) -> Vec<u32> {
    let mut ids: Vec<_> = places.iter().map(|place| place.server.get()).collect();
    ids.sort_unstable();
    ids
}

#[test]
fn disks_of_a_server_that_has_left_are_absent_and_those_of_one_that_drains_get_nothing() {
    let place = |id: u32| ReplicaLocation {
        server: ServerId::new(id),
        disk: DiskId::new(u128::from(id) * 10),
    };
    let mut servers = plain(5, 1);
    servers[0].draining = true;
    servers[1].maintained = true;
    let view = ClusterView::new(servers).with_orders(false, [ServerId::new(9)].into());
    assert_eq!(view.state(place(9)), PlaceState::Absent);
    assert_eq!(view.state(place(8)), PlaceState::Silent, "it may be on its way here");
    assert!(matches!(view.state(place(1)), PlaceState::Good(_)), "it serves");
    let mut rng = Rng::new(1);
    for (copies, floor) in [(3, 1), (4, 1), (4, 4), (5, 5)] {
        let wanted = Wanted {
            copies,
            have: &[],
            never: &[],
            avoid: &[],
            floor,
            need: 0,
            purpose: Purpose::Data,
        };
        let chosen = choose(&view, &wanted, &mut |bound| rng.below(bound)).unwrap_or_default();
        let has = |id: u32| chosen.iter().any(|place| place.server == ServerId::new(id));
        assert!(!has(1), "{chosen:?}");
        assert_eq!(has(2), floor >= 4, "under maintenance it is for the floor alone: {chosen:?}");
    }
    // Five less the one that drains, less another.
    assert_eq!(view.lacks_without(ServerId::new(2), 3), None);
    let lack = view.lacks_without(ServerId::new(2), 4).expect("three stay");
    assert_eq!((lack.there, lack.unit, lack.out), (3, "failure domains", vec![ServerId::new(1)]));
}

#[test]
fn replicas_never_share_a_domain_while_others_are_there() {
    let mut servers = plain(6, 2);
    for (at, server) in servers.iter_mut().enumerate() {
        server.domain = format!("rack{}", at / 2);
    }
    for seed in 0..500 {
        let places = chosen(&servers, &wanted(3), seed).unwrap();
        let racks: BTreeSet<_> = places.iter().map(|place| (place.server.get() - 1) / 2).collect();
        assert_eq!(racks.len(), 3, "{places:?}");
    }
}

#[test]
fn a_cluster_with_dead_servers_gets_fewer_copies_but_not_one() {
    let mut servers = plain(3, 2);
    servers[1].alive = false;
    for seed in 0..100 {
        assert_eq!(servers_of(&chosen(&servers, &wanted(3), seed).unwrap()), [1, 3]);
    }
    servers[0].alive = false;
    assert_eq!(chosen(&servers, &wanted(3), 0), Err(NoPlace::TooFewAlive));
    assert_eq!(chosen(&servers, &wanted(1), 0).unwrap().len(), 1);
}

#[test]
fn a_cluster_without_disks_has_no_places() {
    assert_eq!(chosen(&[], &wanted(3), 0), Err(NoPlace::TooFewAlive));
}

#[test]
fn replicas_on_one_server_are_on_different_disks() {
    for (disks, copies) in [(1, 1), (2, 2), (3, 3), (5, 3)] {
        let places = chosen(&plain(1, disks), &wanted(3), 7).unwrap();
        let distinct: BTreeSet<_> = places.iter().collect();
        assert_eq!((places.len(), distinct.len()), (copies, copies));
    }
    let places = chosen(&plain(2, 2), &wanted(3), 7).unwrap();
    assert_eq!(BTreeSet::from_iter(servers_of(&places)), BTreeSet::from([1, 2]));
}

#[test]
fn servers_that_failed_are_used_for_the_floor_only() {
    let avoid = [ServerId::new(1), ServerId::new(2)];
    let mut want = Wanted { avoid: &avoid, ..wanted(3) };
    for seed in 0..100 {
        assert_eq!(servers_of(&chosen(&plain(6, 1), &want, seed).unwrap()).len(), 3);
        let ids = servers_of(&chosen(&plain(6, 1), &want, seed).unwrap());
        assert!(ids.iter().all(|&id| id > 2), "{ids:?}");
        assert_eq!(chosen(&plain(3, 1), &want, seed).unwrap().len(), 2);
    }
    want.avoid = &avoid[..1];
    assert_eq!(servers_of(&chosen(&plain(3, 1), &want, 1).unwrap()), [2, 3]);
}

#[test]
fn repair_places_apart_from_what_is_there() {
    let servers = plain(5, 1);
    let at = |id: u32| ReplicaLocation {
        server: ServerId::new(id),
        disk: DiskId::new(u128::from(id) * 10),
    };
    let (have, never) = ([at(1), at(2)], [at(3)]);
    let want = Wanted { have: &have, never: &never, ..wanted(3) };
    for seed in 0..100 {
        let ids = servers_of(&chosen(&servers, &want, seed).unwrap());
        assert!(ids == [4] || ids == [5], "{ids:?}");
    }
    assert!(chosen(&servers[..3], &want, 1).unwrap().is_empty());
}

#[test]
fn full_disks_take_nothing_and_are_named() {
    let mut servers = plain(3, 1);
    servers.iter_mut().for_each(|server| server.disks[0].used = 99 * GIB);
    assert_eq!(chosen(&servers, &wanted(3), 1), Err(NoPlace::Full));
    servers[0].disks[0].used = 0;
    servers[1].disks[0].used = 0;
    assert_eq!(servers_of(&chosen(&servers, &wanted(3), 1).unwrap()), [1, 2]);
}

fn shares(servers: &[ServerView], copies: u8) -> BTreeMap<u32, f64> {
    let view = ClusterView::new(servers.to_vec());
    let mut rng = Rng::new(42);
    let mut counts = BTreeMap::new();
    let rounds = 20_000;
    for _ in 0..rounds {
        for place in choose(&view, &wanted(copies), &mut |bound| rng.below(bound)).unwrap() {
            *counts.entry(place.server.get()).or_insert(0.0) += 1.0 / f64::from(rounds);
        }
    }
    counts
}

#[test]
fn equal_servers_share_alike() {
    for share in shares(&plain(12, 3), 3).values() {
        assert!((0.22..0.28).contains(share), "{share}");
    }
}

#[test]
fn placement_weighs_free_space_and_load() {
    let mut servers = plain(8, 1);
    servers[0].disks[0].used = 55 * GIB; // Half the room of the others.
    servers[1].load = 100;
    let shares = shares(&servers, 3);
    let usual = shares[&5];
    assert!(shares[&1] < 0.6 * usual, "less room, fewer chunks: {shares:?}");
    assert!(shares[&2] < 0.5 * usual, "more load, fewer chunks: {shares:?}");
    assert!(shares[&2] > 0.02, "two choices, not the least loaded: no herd: {shares:?}");
}

#[test]
fn a_place_is_judged_by_what_its_server_says() {
    let mut servers = plain(2, 1);
    servers[1].alive = false;
    let mut failed = servers.clone();
    failed[0].disks[0].failed = true;
    let view = ClusterView::new(servers.clone());
    let at = |id: u32, disk: u128| ReplicaLocation {
        server: ServerId::new(id),
        disk: DiskId::new(disk),
    };
    assert_eq!(view.state(at(1, 10)), PlaceState::Good(servers[0].addr));
    assert_eq!(view.state(at(1, 11)), PlaceState::Absent);
    assert_eq!(view.state(at(2, 20)), PlaceState::Silent);
    assert_eq!(view.state(at(3, 30)), PlaceState::Silent);
    assert_eq!(ClusterView::new(failed).state(at(1, 10)), PlaceState::Failed);
}

#[test]
fn metadata_finds_places_on_full_disks() {
    let mut servers = plain(3, 1);
    let mut filled = |free: u64, purpose| {
        servers.iter_mut().for_each(|server| server.disks[0].used = 100 * GIB - free);
        chosen(&servers, &Wanted { purpose, ..wanted(3) }, 1).map(|places| servers_of(&places))
    };
    let (all, full) = (Ok(vec![1, 2, 3]), Err(NoPlace::Full));
    let reserve = reserve_bytes(100 * GIB);
    for (free, purpose, want) in [
        (GIB + reserve, Purpose::Data, &full),
        (GIB + reserve, Purpose::Collection, &all),
        (reserve / 2, Purpose::Collection, &full),
        (reserve / 2, Purpose::Metadata, &all),
        (reserve / 4, Purpose::Metadata, &full),
        (reserve / 4, Purpose::Recovery, &all),
        (0, Purpose::Recovery, &full),
    ] {
        assert_eq!(filled(free, purpose), *want, "{purpose:?} with {free} bytes free");
    }
}
