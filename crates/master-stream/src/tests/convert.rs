//! Conversions of sealed chunks, step by step.

use std::cell::Cell;
use std::rc::Rc;

use base::{ChunkId, FileId, ServerId};
use runtime::Duration;
use runtime::sim::Sim;
use wire::control::{
    ChunkPlace, Later, Policy, StreamChange, StreamReply, StreamView, Verify, WriterGrant,
};
use wire::data::{Purpose, ReplicaState};

use super::writer::{Client, Cluster, Writer};
use crate::limits::SCAN_SLICE;
use crate::planted::{Planted, plant};

const FILE: FileId = FileId::new(1);
/// Enough for a code to take less room.
const BYTES: usize = 100_000;

/// A closed file of `chunks` chunks, whose service works in the background.
async fn closed_file(cluster: &Rc<Cluster>, chunks: usize) {
    cluster.services.iter().for_each(|service| service.start_background());
    let mut writer = Writer::open(Client::new(cluster), FILE).await.unwrap();
    for number in 0..chunks {
        if number > 0 {
            writer.advance(Vec::new()).await.unwrap();
        }
        writer.append(&vec![number as u8; BYTES]).await.unwrap();
    }
    assert_eq!(writer.close(false).await, Ok((chunks * BYTES) as u64));
    cluster.sim.sleep(Duration::from_secs(1)).await;
}

async fn convert(cluster: &Rc<Cluster>, policy: Policy) {
    let client = Client::new(cluster);
    let set = StreamChange::SetPolicy { file: FILE, policy, grant: [0; 16] };
    client.change(set).await.unwrap();
    client.change(StreamChange::Convert { file: FILE, wanted: true }).await.unwrap();
}

async fn view(cluster: &Rc<Cluster>) -> StreamView {
    cluster.locate(FILE, 0).await.expect("the file is there")
}

/// Until nothing is to be converted any more, or for some time.
async fn until_converted(cluster: &Rc<Cluster>, most: Duration) -> bool {
    let mut waited = Duration::ZERO;
    while view(cluster).await.converting {
        if waited >= most {
            return false;
        }
        cluster.sim.sleep(Duration::from_millis(50)).await;
        waited += Duration::from_millis(50);
    }
    true
}

fn forms(view: &StreamView) -> Vec<(u8, u8, usize)> {
    let form = |chunk: &ChunkPlace| (chunk.data, chunk.copies, chunk.replicas.len());
    view.chunks.iter().map(form).collect()
}

/// Replicas of chunks that have not been deleted, sealed or not.
fn held(cluster: &Cluster) -> Vec<(ServerId, ChunkId)> {
    let servers = cluster.model.servers.borrow();
    let all = servers.values().flat_map(|server| {
        let there = server.replicas.iter().filter(|(_, it)| !it.state.is_tombstone());
        there.map(|(&(_, chunk), _)| (server.id, chunk))
    });
    all.collect()
}

/// Each replica of the file has the bytes of its chunk.
async fn check_bytes(cluster: &Rc<Cluster>) {
    let view = view(cluster).await;
    let servers = cluster.model.servers.borrow();
    for (number, chunk) in view.chunks.iter().enumerate() {
        assert_eq!(chunk.base, (number * BYTES) as u64);
        for replica in &chunk.replicas {
            let found = &servers[&replica.server].replicas[&(replica.disk, chunk.chunk)];
            assert_eq!(found.state, ReplicaState::Sealed);
            assert!(found.bytes == vec![number as u8; BYTES], "chunk {number} has other bytes");
        }
    }
}

/// None of very many chunks is whole while a server is away: the leader looks at some of them at a time.
#[test]
fn search_among_very_many_chunks_is_made_in_slices() {
    let sim = Sim::new(17);
    let cluster = Cluster::new(&sim, Policy::strict(3), 3);
    Cluster::run(&sim, &cluster, async |cluster| {
        cluster.services.iter().for_each(|service| service.start_background());
        let mut writer = Writer::open(Client::new(&cluster), FILE).await.unwrap();
        for _ in 0..SCAN_SLICE + 200 {
            writer.append(&[1; 10]).await.unwrap();
            writer.advance(Vec::new()).await.unwrap();
        }
        writer.close(false).await.unwrap();
        cluster.sim.sleep(Duration::from_secs(1)).await;
        let away = ServerId::new(1);
        cluster.model.maintain(away, true);
        cluster.model.crash(away);
        convert(&cluster, Policy::strict(2)).await;
        cluster.sim.sleep(Duration::from_secs(3)).await;
        assert_eq!(cluster.services[0].status().converted, 0);
        cluster.model.restart(away);
        cluster.model.maintain(away, false);
        cluster.sim.sleep(Duration::from_secs(10)).await;
        assert!(cluster.services[0].status().converted > 10);
    });
    assert!(sim.marks().contains_key("conversion looked for in slices"));
}

/// There are no places for the policy of very many files: the leader passes over some of them at a time.
#[test]
fn search_among_very_many_files_is_made_in_slices() {
    let sim = Sim::new(18);
    let cluster = Cluster::new(&sim, Policy::strict(3), 3);
    Cluster::run(&sim, &cluster, async |cluster| {
        cluster.services.iter().for_each(|service| service.start_background());
        let client = Client::new(&cluster);
        for number in 0..SCAN_SLICE as u64 + 200 {
            let file = FileId::new(1 + number);
            let mut writer = Writer::open(Client::new(&cluster), file).await.unwrap();
            writer.append(&[1; 10]).await.unwrap();
            writer.close(false).await.unwrap();
            let set = StreamChange::SetPolicy { file, policy: Policy::strict(4), grant: [0; 16] };
            client.change(set).await.unwrap();
            client.change(StreamChange::Convert { file, wanted: true }).await.unwrap();
        }
        cluster.sim.sleep(Duration::from_secs(5)).await;
        assert_eq!(cluster.services[0].status().converted, 0);
    });
    let marks = sim.marks();
    assert!(marks.contains_key("no places for a conversion"));
    assert!(marks.contains_key("conversion looked for in slices"));
}

#[test]
fn sealed_chunks_get_the_form_of_a_policy_and_another_one() {
    let sim = Sim::new(1);
    let cluster = Cluster::new(&sim, Policy::rep(3), 7);
    Cluster::run(&sim, &cluster, async |cluster| {
        closed_file(&cluster, 3).await;
        let before = held(&cluster);
        convert(&cluster, Policy::ec(4, 2)).await;
        assert!(until_converted(&cluster, Duration::from_secs(30)).await);
        assert_eq!(forms(&view(&cluster).await), [(4, 6, 6); 3]);
        check_bytes(&cluster).await;
        // Readers with old places go on for as long as their rights live.
        assert!(before.iter().all(|replica| held(&cluster).contains(replica)));
        cluster.sim.sleep(Duration::from_secs(8)).await;
        assert_eq!(held(&cluster).len(), 18, "the copies are gone");
        // A chunk that is found by its place, and one behind it that is written later.
        let mut writer = Writer::open(Client::new(&cluster), FILE).await.unwrap();
        writer.append(&[3; BYTES]).await.unwrap();
        writer.close(false).await.unwrap();
        cluster.sim.sleep(Duration::from_secs(1)).await;
        convert(&cluster, Policy::rep(3)).await;
        assert!(until_converted(&cluster, Duration::from_secs(30)).await);
        assert_eq!(forms(&view(&cluster).await), [(1, 3, 3); 4]);
        check_bytes(&cluster).await;
    });
}

#[test]
fn few_bytes_stay_in_copies_and_nothing_is_wanted_of_a_file_in_form() {
    let sim = Sim::new(2);
    let cluster = Cluster::new(&sim, Policy::rep(3), 7);
    Cluster::run(&sim, &cluster, async |cluster| {
        cluster.services.iter().for_each(|service| service.start_background());
        let mut writer = Writer::open(Client::new(&cluster), FILE).await.unwrap();
        writer.append(&[1; 100]).await.unwrap();
        writer.close(false).await.unwrap();
        convert(&cluster, Policy::ec(4, 2)).await;
        assert!(!view(&cluster).await.converting, "three sectors are not made six");
        convert(&cluster, Policy::rep(2)).await;
        assert!(view(&cluster).await.converting);
        assert!(until_converted(&cluster, Duration::from_secs(10)).await);
        assert_eq!(forms(&view(&cluster).await), [(1, 2, 2)]);
    });
}

/// Three copies were asked for where there are two servers: repair has no place, and another policy fits.
#[test]
fn what_lacks_a_place_for_good_is_converted() {
    let sim = Sim::new(3);
    let cluster = Cluster::new(&sim, Policy::rep(3), 2);
    Cluster::run(&sim, &cluster, async |cluster| {
        closed_file(&cluster, 2).await;
        assert_eq!(forms(&view(&cluster).await), [(1, 3, 2); 2]);
        convert(&cluster, Policy::rep(2)).await;
        assert!(until_converted(&cluster, Duration::from_secs(60)).await);
        assert_eq!(forms(&view(&cluster).await), [(1, 2, 2); 2]);
        check_bytes(&cluster).await;
        cluster.sim.sleep(Duration::from_secs(2)).await;
        assert_eq!(cluster.services[0].status().under_replicated, 0);
    });
}

/// A file that is deleted, or not to be converted any more, while its chunks are.
#[test]
fn conversion_ends_with_its_file_or_its_wish() {
    for seed in 0..8 {
        let sim = Sim::new(seed);
        let cluster = Cluster::new(&sim, Policy::rep(3), 7);
        Cluster::run(&sim, &cluster, async move |cluster| {
            closed_file(&cluster, 3).await;
            convert(&cluster, Policy::ec(4, 2)).await;
            while cluster.world.state.borrow().conversions().next().is_none() {
                cluster.sim.sleep(Duration::from_millis(1)).await;
            }
            let client = Client::new(&cluster);
            if seed % 2 == 0 {
                client.change(StreamChange::Convert { file: FILE, wanted: false }).await.unwrap();
                cluster.sim.sleep(Duration::from_secs(10)).await;
                let coded = forms(&view(&cluster).await).iter().filter(|it| it.0 == 4).count();
                assert!(coded <= 1, "what was under way may end");
                check_bytes(&cluster).await;
                assert_eq!(held(&cluster).len(), 3 * 3 + coded * 3);
            } else {
                client.change(StreamChange::Delete { file: FILE }).await.unwrap();
                cluster.sim.sleep(Duration::from_secs(10)).await;
                assert_eq!(held(&cluster), []);
            }
        });
    }
}

/// One of two copies has other bytes, which verify: the chunk stays as it is (C26).
fn of_two_copies(seed: u64) -> bool {
    let sim = Sim::new(seed);
    let cluster = Cluster::new(&sim, Policy::strict(2), 5);
    let converted = Rc::new(Cell::new(false));
    let said = converted.clone();
    Cluster::run(&sim, &cluster, async move |cluster| {
        closed_file(&cluster, 1).await;
        let (server, chunk) = held(&cluster)[0];
        for ((_, of), replica) in
            &mut cluster.model.servers.borrow_mut().get_mut(&server).unwrap().replicas
        {
            if *of == chunk {
                replica.bytes[7] ^= 1;
            }
        }
        convert(&cluster, Policy::ec(2, 1)).await;
        said.set(until_converted(&cluster, Duration::from_secs(30)).await);
    });
    converted.get()
}

#[test]
fn copies_that_differ_are_not_converted() {
    assert!(!of_two_copies(1));
    plant(Some(Planted::ConvertOneCopy));
    let converted = of_two_copies(1);
    plant(None);
    assert!(converted, "the bug is not there");
}

/// What a conversion writes on a server is held by it from the beginning: else a server could leave with it.
#[test]
fn conversions_count_as_held() {
    for seed in 0..8 {
        let sim = Sim::new(seed);
        let cluster = Cluster::new(&sim, Policy::rep(2), 8);
        Cluster::run(&sim, &cluster, async move |cluster| {
            closed_file(&cluster, 1).await;
            let before: Vec<_> = held(&cluster).into_iter().map(|(server, _)| server).collect();
            convert(&cluster, Policy::ec(4, 2)).await;
            let server = loop {
                let place = {
                    let state = cluster.world.state.borrow();
                    let made = state.conversions().next().map(|(_, made)| made.clone());
                    made.into_iter()
                        .flat_map(|made| made.slots().collect::<Vec<_>>())
                        .map(|slot| state.place(slot.place).server)
                        .find(|server| !before.contains(server))
                };
                if let Some(server) = place {
                    break server;
                }
                cluster.sim.sleep(Duration::from_micros(300)).await;
            };
            let holdings = cluster.services[0].held(server).await.unwrap();
            assert_eq!((holdings.replicas, &holdings.files[..]), (1, &[FILE][..]), "seed {seed}");
            assert!(until_converted(&cluster, Duration::from_secs(30)).await);
        });
    }
}

/// Places that are lost while they are written: others are taken, and nothing stays behind.
#[test]
fn servers_lost_during_a_conversion_are_replaced() {
    for seed in 0..16 {
        let sim = Sim::new(seed);
        let cluster = Cluster::new(&sim, Policy::rep(3), 8);
        Cluster::run(&sim, &cluster, async move |cluster| {
            closed_file(&cluster, 1).await;
            convert(&cluster, Policy::ec(4, 2)).await;
            let target = loop {
                let made = held(&cluster)
                    .into_iter()
                    .find(|(_, chunk)| cluster.world.state.borrow().shadow(*chunk).is_some());
                if let Some((server, _)) = made {
                    break server;
                }
                cluster.sim.sleep(Duration::from_micros(300)).await;
            };
            cluster.model.crash(target);
            if seed % 2 == 0 {
                cluster.world.elect(2);
            }
            assert!(until_converted(&cluster, Duration::from_secs(60)).await, "seed {seed}");
            check_bytes(&cluster).await;
            cluster.model.restart(target);
            cluster.sim.sleep(Duration::from_secs(30)).await;
            check_bytes(&cluster).await;
            assert_eq!(held(&cluster).len(), 6, "seed {seed}");
        });
    }
}

async fn set_policy(cluster: &Rc<Cluster>, policy: Policy) {
    let set = StreamChange::SetPolicy { file: FILE, policy, grant: [0; 16] };
    Client::new(cluster).change(set).await.unwrap();
}

#[test]
fn chunks_get_the_form_for_old_ones_when_they_are_old_and_not_before() {
    let sim = Sim::new(21);
    let later = Some(Later::new(20, Policy::ec(4, 2)));
    let cluster = Cluster::new(&sim, Policy::rep(3).and_later(later), 7);
    Cluster::run(&sim, &cluster, async move |cluster| {
        let begun = cluster.sim.elapsed();
        closed_file(&cluster, 2).await;
        while forms(&view(&cluster).await) == [(1, 3, 3); 2] {
            cluster.sim.sleep(Duration::from_millis(100)).await;
        }
        let age = cluster.sim.elapsed() - begun;
        assert!(age >= Duration::from_secs(19), "converted after {age:?}");
        cluster.sim.sleep(Duration::from_secs(10)).await;
        assert_eq!(forms(&view(&cluster).await), [(4, 6, 6); 2]);
        check_bytes(&cluster).await;
        // What is written later stays as it is written, for as long.
        let mut writer = Writer::open(Client::new(&cluster), FILE).await.unwrap();
        writer.append(&[2; BYTES]).await.unwrap();
        writer.close(false).await.unwrap();
        cluster.sim.sleep(Duration::from_secs(15)).await;
        assert_eq!(forms(&view(&cluster).await), [(4, 6, 6), (4, 6, 6), (1, 3, 3)]);
        // An operator's word converts what is not old, and leaves what is.
        convert(&cluster, Policy::ec(2, 1).and_later(later)).await;
        assert!(until_converted(&cluster, Duration::from_secs(5)).await);
        let all = forms(&view(&cluster).await);
        assert_eq!(all, [(4, 6, 6), (4, 6, 6), (2, 3, 3)]);
        cluster.sim.sleep(Duration::from_secs(15)).await;
        assert_eq!(forms(&view(&cluster).await), [(4, 6, 6); 3]);
        check_bytes(&cluster).await;
    });
}

#[test]
fn chunks_of_a_file_are_young_when_it_gets_a_form_for_old_ones() {
    let sim = Sim::new(22);
    let cluster = Cluster::new(&sim, Policy::rep(3), 7);
    Cluster::run(&sim, &cluster, async |cluster| {
        closed_file(&cluster, 1).await;
        cluster.sim.sleep(Duration::from_secs(30)).await;
        let later = |after_s| Policy::rep(3).and_later(Some(Later::new(after_s, Policy::ec(4, 2))));
        set_policy(&cluster, later(10)).await;
        cluster.sim.sleep(Duration::from_secs(6)).await;
        assert_eq!(forms(&view(&cluster).await), [(1, 3, 3)]);
        // Another time counts from the same moment.
        set_policy(&cluster, later(20)).await;
        cluster.sim.sleep(Duration::from_secs(8)).await;
        assert_eq!(forms(&view(&cluster).await), [(1, 3, 3)]);
        set_policy(&cluster, Policy::rep(3)).await;
        cluster.sim.sleep(Duration::from_secs(20)).await;
        assert_eq!(forms(&view(&cluster).await), [(1, 3, 3)]);
        set_policy(&cluster, later(5)).await;
        cluster.sim.sleep(Duration::from_secs(12)).await;
        assert_eq!(forms(&view(&cluster).await), [(4, 6, 6)]);
    });
}

/// Neither a form for old chunks nor what writers verify is a form of its own: spares that are there serve.
#[test]
fn spares_stay_when_the_policy_says_more_than_their_form() {
    let policies = [
        Policy::rep(3).and_later(Some(Later::new(20, Policy::ec(4, 2)))),
        Policy::ec(2, 1).verified(Verify::All),
    ];
    for policy in policies {
        let sim = Sim::new(23);
        let cluster = Cluster::new(&sim, policy, 9);
        Cluster::run(&sim, &cluster, async |cluster| {
            let mut writer = Writer::open(Client::new(&cluster), FILE).await.unwrap();
            let spares = |grant: &WriterGrant| -> Vec<ChunkId> {
                grant.spares.iter().map(|spare| spare.chunk).collect()
            };
            let before = spares(&writer.grant);
            assert_eq!(before.len(), 2);
            writer.append(&[1; 100]).await.unwrap();
            let extend = StreamChange::Extend {
                file: FILE,
                epoch: writer.grant.epoch,
                avoid: Vec::new(),
                spares: 2,
                purpose: Purpose::Data,
                in_copies: false,
            };
            let grant = match writer.client.change(extend).await.unwrap() {
                StreamReply::Writer(grant) => grant,
                other => panic!("{other:?}"),
            };
            assert_eq!(spares(&grant), before);
        });
    }
}
