//! Coded chunks: when they are granted, recovered, and repaired, step by step.

use std::collections::BTreeMap;
use std::rc::Rc;

use base::{FileId, ServerId};
use runtime::Duration;
use runtime::sim::Sim;
use wire::control::{ChunkPlace, Policy, StreamChange, StreamReply, WriterGrant};
use wire::data::{Purpose, ReplicaState};

use super::model::{Append, Server};
use super::writer::{Client, Cluster, Writer};
use crate::placement::ReplicaLocation;
use crate::planted::{Planted, plant};
use crate::{Log, StreamMachine};

const FILE: FileId = FileId::new(1);

/// A closed file of one coded chunk, under repair from now on; the servers of its fragments.
async fn closed_file(cluster: &Rc<Cluster>) -> Vec<ServerId> {
    cluster.services.iter().for_each(|service| service.start_background());
    let mut writer = Writer::open(Client::new(cluster), FILE).await.unwrap();
    assert!(writer.current.is_coded());
    writer.append(&[1; 100]).await.unwrap();
    assert_eq!(writer.close(false).await, Ok(100));
    cluster.sim.sleep(Duration::from_secs(1)).await;
    let n = usize::from(cluster.policy.copies);
    let whole = whole(cluster);
    (0..n).map(|fragment| whole[&(fragment as u8)][0]).collect()
}

/// Servers that are up and have a sealed replica with all bytes, by fragment.
fn whole(cluster: &Cluster) -> BTreeMap<u8, Vec<ServerId>> {
    let servers = cluster.model.servers.borrow();
    cluster.services[0].0.log.with_state(|state: &StreamMachine| {
        let chunk = &state.stream(FILE).unwrap().chunks[0];
        let mut whole: BTreeMap<u8, Vec<_>> = BTreeMap::new();
        for slot in chunk.slots().filter(|slot| slot.sealed) {
            let place = state.place(slot.place);
            let server = &servers[&place.server];
            let Some(found) = server.replicas.get(&(place.disk, chunk.id)) else { continue };
            let good = found.state == ReplicaState::Sealed && found.holes.is_empty();
            assert_eq!(found.fragment, chunk.fragment(slot));
            if server.up && good && found.bytes == [1; 100] {
                whole.entry(slot.fragment).or_default().push(place.server);
            }
        }
        whole
    })
}

/// Replicas on record.
fn on_record(cluster: &Cluster) -> usize {
    let state = cluster.world.state.borrow();
    state.stream(FILE).unwrap().chunks[0].len_slots()
}

/// Until each fragment is there once, and nothing else is on record.
async fn until_whole(cluster: &Rc<Cluster>, timeout: Duration) {
    let (n, mut waited) = (usize::from(cluster.policy.copies), Duration::ZERO);
    while whole(cluster).len() < n || on_record(cluster) > n {
        assert!(waited < timeout, "{:?}", whole(cluster));
        for (place, chunk) in std::mem::take(&mut *cluster.model.met.borrow_mut()) {
            cluster.services[0].report_damaged(place, chunk);
        }
        cluster.sim.sleep(Duration::from_millis(100)).await;
        waited += Duration::from_millis(100);
    }
}

/// Renews a writer's spares.
async fn extend(client: &Client, grant: &WriterGrant) -> WriterGrant {
    let (epoch, avoid, purpose) = (grant.epoch, Vec::new(), Purpose::Data);
    let change =
        StreamChange::Extend { file: FILE, epoch, avoid, spares: 2, purpose, in_copies: false };
    match client.change(change).await.unwrap() {
        StreamReply::Writer(grant) => grant,
        other => panic!("{other:?}"),
    }
}

fn forms<'a>(chunks: impl IntoIterator<Item = &'a ChunkPlace>) -> Vec<(u8, u8, u8, usize)> {
    let form = |chunk: &ChunkPlace| (chunk.data, chunk.copies, chunk.acks, chunk.replicas.len());
    chunks.into_iter().map(form).collect()
}

#[test]
fn coded_chunk_is_granted_only_while_all_servers_take_fragments() {
    let sim = Sim::new(1);
    let cluster = Cluster::new(&sim, Policy::ec(4, 2), 7);
    Cluster::run(&sim, &cluster, async |cluster| {
        cluster.model.take_fragments(false);
        let client = Client::new(&cluster);
        let grant = client.open(FILE).await.unwrap();
        let copies = (1, 3, 2, 3);
        assert_eq!(forms(&grant.current), [copies], "copies that survive as many losses");
        assert_eq!(forms(&grant.spares), [copies; 2]);
        cluster.model.take_fragments(true);
        let grant = extend(&client, &grant).await;
        assert_eq!(forms(&grant.spares), [(4, 6, 5, 6); 2]);
        let numbers: Vec<_> = grant.spares[0].replicas.iter().map(|it| it.fragment).collect();
        assert_eq!(numbers, [0, 1, 2, 3, 4, 5]);
        cluster.model.take_fragments(false);
        let grant = extend(&client, &grant).await;
        assert_eq!(forms(&grant.spares), [copies; 2], "an older server has joined");
    });
}

#[test]
fn chunk_without_places_for_all_fragments_is_of_copies_until_there_are() {
    let sim = Sim::new(2);
    let cluster = Cluster::new(&sim, Policy::ec(4, 2), 6);
    Cluster::run(&sim, &cluster, async |cluster| {
        cluster.model.crash(ServerId::new(6));
        let client = Client::new(&cluster);
        let grant = client.open(FILE).await.unwrap();
        assert_eq!(forms(grant.current.iter().chain(&grant.spares)), [(1, 3, 2, 3); 3]);
        cluster.model.restart(ServerId::new(6));
        let grant = extend(&client, &grant).await;
        assert_eq!(forms(&grant.spares), [(4, 6, 5, 6); 2]);
        // One avoided: not one of the five others gets two fragments.
        let (epoch, purpose) = (grant.epoch, Purpose::Data);
        let avoid = vec![ServerId::new(1)];
        let change =
            StreamChange::Extend { file: FILE, epoch, avoid, spares: 2, purpose, in_copies: false };
        let StreamReply::Writer(grant) = client.change(change).await.unwrap() else { panic!() };
        assert_eq!(forms(&grant.spares), [(1, 3, 2, 3); 2]);
        let servers = grant.spares.iter().flat_map(|spare| &spare.replicas);
        assert!(servers.into_iter().all(|replica| replica.server != ServerId::new(1)));
    });
}

#[test]
fn writer_of_small_appends_gets_copies_as_long_as_it_wants_them() {
    let sim = Sim::new(3);
    let cluster = Cluster::new(&sim, Policy::ec(4, 2), 7);
    Cluster::run(&sim, &cluster, async |cluster| {
        let client = Client::new(&cluster);
        let (policy, purpose, copies) = (cluster.policy, Purpose::Data, (1, 3, 2, 3));
        let change = StreamChange::Open {
            file: FILE,
            policy,
            grant: [0; 16],
            spares: 2,
            purpose,
            follows: None,
            in_copies: true,
            avoid: Vec::new(),
        };
        let StreamReply::Writer(grant) = client.change(change).await.unwrap() else { panic!() };
        assert_eq!(forms(grant.current.iter().chain(&grant.spares)), [copies; 3]);
        let grant = extend(&client, &grant).await;
        assert_eq!(forms(&grant.spares), [(4, 6, 5, 6); 2]);
        let (epoch, avoid) = (grant.epoch, Vec::new());
        let change =
            StreamChange::Extend { file: FILE, epoch, avoid, spares: 1, purpose, in_copies: true };
        let StreamReply::Writer(grant) = client.change(change).await.unwrap() else { panic!() };
        assert_eq!(forms(&grant.spares), [copies]);
        let (sealed, next) = (grant.current.unwrap().chunk, grant.spares[0].chunk);
        let change = StreamChange::Advance {
            file: FILE,
            epoch,
            sealed,
            len: 0,
            next,
            avoid: Vec::new(),
            spares: 2,
            left: Vec::new(),
            in_copies: true,
        };
        let StreamReply::Writer(grant) = client.change(change).await.unwrap() else { panic!() };
        assert_eq!(forms(grant.current.iter().chain(&grant.spares)), [copies; 3]);
        let view = cluster.locate(FILE, 0).await.unwrap();
        assert_eq!(view.policy, Some(policy), "the policy is as it was");
    });
}

#[test]
fn lost_fragment_is_decoded_elsewhere_and_too_few_are_a_loss() {
    for seed in 0..20 {
        let sim = Sim::new(seed);
        let cluster = Cluster::new(&sim, Policy::ec(4, 2), 8);
        Cluster::run(&sim, &cluster, async |cluster| {
            let held = closed_file(&cluster).await;
            cluster.model.crash(held[1]);
            cluster.model.crash(held[4]);
            until_whole(&cluster, Duration::from_secs(30)).await;
            let now = whole(&cluster);
            assert!([1, 4].iter().all(|number| !held.contains(&now[number][0])), "{now:?}");
            // All eight are in use: two more are what it survives, three are not.
            let three = [now[&0][0], now[&1][0], now[&2][0]];
            let status = async |crash: &[ServerId]| {
                crash.iter().for_each(|&server| cluster.model.crash(server));
                cluster.sim.sleep(Duration::from_secs(4)).await;
                let status = cluster.services[0].status();
                (status.under_replicated, status.lost, status.repair.pending)
            };
            assert_eq!(status(&three[..2]).await, (1, 0, 1));
            assert_eq!(status(&three[2..]).await, (1, 1, 1));
            held.iter().chain(&three).for_each(|&server| cluster.model.restart(server));
            until_whole(&cluster, Duration::from_secs(30)).await;
        });
    }
}

/// Recovery makes fragment 0 once more; its first holder comes back, and another is lost: of four servers
/// none is free.
#[test]
fn fragment_that_is_there_twice_gives_its_place_to_one_that_lacks() {
    for seed in 0..20 {
        let sim = Sim::new(seed);
        let cluster = Cluster::new(&sim, Policy::ec(2, 1), 4);
        Cluster::run(&sim, &cluster, async |cluster| {
            cluster.services.iter().for_each(|service| service.start_background());
            let mut writer = Writer::open(Client::new(&cluster), FILE).await.unwrap();
            writer.append(&[1; 100]).await.unwrap();
            let held: Vec<_> = writer.current.replicas.iter().map(|it| it.server).collect();
            cluster.model.crash(held[0]);
            let seal = StreamChange::seal(FILE);
            Client::new(&cluster).change(seal).await.unwrap();
            cluster.model.crash(held[1]);
            cluster.model.restart(held[0]);
            until_whole(&cluster, Duration::from_secs(40)).await;
            let servers: Vec<_> = whole(&cluster).into_values().flatten().collect();
            assert!(!servers.contains(&held[1]), "{servers:?}");
        });
    }
}

/// With as many servers as fragments: the others are read through, then its place is used again.
#[test]
fn damaged_fragment_gives_way_where_there_is_no_other_place() {
    for policy in [Policy::ec(2, 1), Policy::ec(2, 2)] {
        let sim = Sim::new(4);
        let cluster = Cluster::new(&sim, policy, u32::from(policy.copies));
        Cluster::run(&sim, &cluster, async |cluster| {
            let held = closed_file(&cluster).await;
            cluster.model.rot(held[1], 10);
            let report = |cluster: &Cluster| {
                let mut servers = cluster.model.servers.borrow_mut();
                let server = servers.get_mut(&held[1]).unwrap();
                for (&(disk, chunk), replica) in &mut server.replicas {
                    replica.noticed = !replica.holes.is_empty();
                    let place = ReplicaLocation { server: held[1], disk };
                    cluster.services[0].report_damaged(place, chunk);
                }
            };
            report(&cluster);
            for _ in 0..100 {
                cluster.sim.sleep(Duration::from_millis(100)).await;
                assert_eq!(on_record(&cluster), held.len(), "dropped before its time");
            }
            until_whole(&cluster, Duration::from_secs(60)).await;
        });
        assert!(sim.marks().contains_key("damaged replica gives way"), "{policy}");
    }
}

#[test]
fn fragment_of_a_draining_server_is_made_elsewhere_before_it_is_dropped() {
    for seed in 0..10 {
        let sim = Sim::new(seed);
        let cluster = Cluster::new(&sim, Policy::ec(4, 2), 7);
        Cluster::run(&sim, &cluster, async |cluster| {
            let held = closed_file(&cluster).await;
            let leaves = held[2];
            cluster.model.drain(leaves, true);
            for _ in 0..600 {
                cluster.sim.sleep(Duration::from_millis(50)).await;
                let now = whole(&cluster);
                assert_eq!(now.len(), 6, "a fragment less for a drain: {now:?}");
                let held = cluster.services[0].held(leaves).await.unwrap();
                assert_eq!((held.widest, held.only), (6, 0));
                if held.replicas == 0 {
                    return;
                }
            }
            panic!("{:?}", whole(&cluster));
        });
    }
}

#[test]
fn fragments_move_for_balance_and_each_stays_there_once() {
    let sim = Sim::new(3);
    let cluster = Cluster::new(&sim, Policy::ec(2, 1), 4);
    Cluster::run(&sim, &cluster, async |cluster| {
        cluster.services.iter().for_each(|service| service.start_background());
        let mut writer = Writer::open(Client::new(&cluster), FILE).await.unwrap();
        for round in 0..40 {
            writer.append(&[round; 4000]).await.unwrap();
            writer.advance(Vec::new()).await.unwrap();
        }
        writer.close(true).await.unwrap();
        cluster.model.add_server(9, 1);
        cluster.sim.sleep(Duration::from_secs(40)).await;
        assert!(cluster.services[0].status().moved > 5, "{:?}", cluster.services[0].status());
        let state = cluster.world.state.borrow();
        for chunk in &state.stream(FILE).unwrap().chunks {
            assert!(chunk.missing(chunk.slots()).is_empty() && chunk.len_slots() == 3, "{chunk:?}");
        }
    });
}

/// Nothing is made on a server of a version that would copy another fragment; once it is of a version that
/// makes them, it gets what lacks.
#[test]
fn no_fragment_is_made_on_a_server_that_makes_none() {
    for seed in 0..10 {
        let sim = Sim::new(seed);
        let cluster = Cluster::new(&sim, Policy::ec(2, 1), 4);
        Cluster::run(&sim, &cluster, async |cluster| {
            let held = closed_file(&cluster).await;
            let other = (1..=4).map(ServerId::new).find(|id| !held.contains(id)).unwrap();
            cluster.model.be_old(other, true);
            cluster.model.crash(held[1]);
            cluster.sim.sleep(Duration::from_secs(10)).await;
            assert_eq!(on_record(&cluster), 3, "a target that gets nothing");
            cluster.model.be_old(other, false);
            until_whole(&cluster, Duration::from_secs(30)).await;
        });
    }
}

/// A target is on record, and its server comes back as one that makes no fragments.
#[test]
fn target_on_a_server_that_makes_no_fragments_any_more_is_dropped() {
    for seed in 0..10 {
        let sim = Sim::new(seed);
        let cluster = Cluster::new(&sim, Policy::ec(2, 1), 5);
        Cluster::run(&sim, &cluster, async |cluster| {
            let held = closed_file(&cluster).await;
            let others = (1..=5).map(ServerId::new).filter(|id| !held.contains(id));
            cluster.model.grey.borrow_mut().extend(others);
            cluster.model.crash(held[1]);
            while on_record(&cluster) == 3 {
                cluster.sim.sleep(Duration::from_millis(50)).await;
            }
            let target = cluster.services[0].0.log.with_state(|state: &StreamMachine| {
                let chunk = &state.stream(FILE).unwrap().chunks[0];
                let slot = chunk.slots().find(|slot| slot.target).unwrap();
                state.place(slot.place).server
            });
            cluster.model.be_old(target, true);
            cluster.model.grey.borrow_mut().clear();
            until_whole(&cluster, Duration::from_secs(30)).await;
        });
    }
}

/// Two disks on each of three servers, one of which is gone: no other disk is as far from those of the
/// others as fragments are to be, so that two are what there can be.
#[test]
fn recovery_seals_with_what_gives_the_bytes_back_where_no_place_is_far_enough() {
    for seed in 0..10 {
        let sim = Sim::new(seed);
        let cluster = Cluster::with_disks(&sim, Policy::ec(2, 1), 3, 2);
        Cluster::run(&sim, &cluster, async |cluster| {
            let mut writer = Writer::open(Client::new(&cluster), FILE).await.unwrap();
            assert!(writer.current.is_coded());
            writer.append(&[1; 100]).await.unwrap();
            cluster.model.crash(writer.current.replicas[0].server);
            let seal = StreamChange::seal(FILE);
            let sealed = Client::new(&cluster).change(seal).await;
            assert!(matches!(sealed, Ok(StreamReply::Done { len: 100 })), "{sealed:?}");
        });
    }
}

/// Four servers, of which two were away: no place for six fragments, but one for the copy that lacks.
#[test]
fn short_spare_in_place_of_a_code_is_renewed_when_there_are_places_for_all_copies() {
    let sim = Sim::new(2);
    let cluster = Cluster::new(&sim, Policy::ec(4, 2), 4);
    Cluster::run(&sim, &cluster, async |cluster| {
        cluster.model.crash(ServerId::new(3));
        cluster.model.crash(ServerId::new(4));
        let client = Client::new(&cluster);
        let grant = client.open(FILE).await.unwrap();
        assert_eq!(forms(&grant.spares), [(1, 3, 2, 2); 2]);
        cluster.model.restart(ServerId::new(3));
        let grant = extend(&client, &grant).await;
        assert_eq!(forms(&grant.spares), [(1, 3, 2, 3); 2]);
    });
}

/// Time from the last question to holders to the answer of a seal, at most.
const ASKED: Duration = Duration::from_millis(4);

/// A row that is on two of three fragments, one of which is lost while the third is made from both: what
/// is sealed can be read, or nothing is sealed.
fn seal_beside_a_loss(seeds: std::ops::Range<u64>) -> Result<(), String> {
    for seed in seeds {
        let sim = Sim::new(seed);
        let cluster = Cluster::new(&sim, Policy::ec(2, 1), 3);
        let broken = Rc::new(std::cell::RefCell::new(None));
        let found = broken.clone();
        Cluster::run(&sim, &cluster, async move |cluster| {
            let writer = Writer::open(Client::new(&cluster), FILE).await.unwrap();
            let place = &writer.current;
            for replica in &place.replicas[..2] {
                let to = ReplicaLocation { server: replica.server, disk: replica.disk };
                let append = Append {
                    chunk: place.chunk,
                    epoch: place.epoch,
                    base: place.base,
                    offset: 0,
                    bytes: vec![1; 100],
                    committed: 0,
                };
                cluster.model.append(to, &append).await.unwrap();
            }
            let lost = place.replicas[(seed % 2) as usize].server;
            let (model, env) = (cluster.model.clone(), cluster.sim.clone());
            let after = Duration::from_micros(env.with_rng(|rng| rng.below(60_000)));
            let wipe = async {
                env.sleep(after).await;
                // Behind the seal a loss is one of those that are promised to be survived, or not.
                let state = cluster.world.state.borrow();
                let open = state.stream(FILE).is_some_and(|stream| stream.tail().is_some());
                if open {
                    model.wipe(lost);
                }
                env.elapsed()
            };
            let seal = StreamChange::seal(FILE);
            let client = Client::new(&cluster);
            let seal = async { (client.change(seal).await, cluster.sim.elapsed()) };
            let ((sealed, at), lost_at) = futures_util::future::join(seal, wipe).await;
            let Ok(StreamReply::Done { len: 100 }) = sealed else { return };
            // What is lost since the holders were asked is lost as behind the seal.
            if at < lost_at + ASKED {
                return;
            }
            let servers = cluster.model.servers.borrow();
            let has = |server: &&Server| {
                server.replicas.values().any(|replica| replica.bytes.len() == 100)
            };
            let holders = servers.values().filter(has).count();
            if holders < 2 {
                let what = format!("seed {seed}: sealed at 100 bytes that {holders} fragment has");
                *found.borrow_mut() = Some(what);
            }
        });
        if let Some(what) = broken.take() {
            return Err(what);
        }
    }
    Ok(())
}

#[test]
fn chunk_is_sealed_with_holders_that_are_still_there() {
    seal_beside_a_loss(0..300).unwrap();
    plant(Some(Planted::StaleHolders));
    let found = seal_beside_a_loss(0..300);
    plant(None);
    assert!(found.is_err(), "holders that are lost since they voted are believed");
}
