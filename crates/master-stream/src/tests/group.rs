//! The service on a real group: one member, its log in memory.

use std::rc::Rc;

use base::{ClientId, Epoch, FileId};
use runtime::Duration;
use runtime::sim::Sim;
use wire::control::{OpId, Policy, StreamChange, StreamReply, StreamRequest};
use wire::data::Purpose;

use super::service::config;
use super::writer::Cluster;
use testing::chunks::ModelDisk;

use crate::{ClusterSource, StreamMachine, StreamParts, StreamService};
use master_consensus::{
    Checkpoints, Group, GroupConfig, GroupStore, LocalFuture, MemoryDevice, NetError, PeerSend,
};

/// A member without peers.
struct Alone;

impl PeerSend for Alone {
    fn send(
        &self,
        _to: u64,
        _group: u32,
        _rpc: Vec<u8>,
    ) -> LocalFuture<'_, Result<Vec<u8>, NetError>> {
        Box::pin(async { Err(NetError::Unreachable) })
    }
}

#[test]
fn a_real_group_serves_streams() {
    let sim = Sim::new(6);
    let cluster = Cluster::new(&sim, Policy::strict(3), 4);
    Cluster::run(&sim, &cluster, async |cluster| {
        let env = cluster.model.env.borrow().clone();
        let device = MemoryDevice::new(8 << 20);
        let store = ModelDisk::new(base::DiskId::new(1)).open(None);
        let snapshots = Checkpoints::open(GroupStore::new(&env, store, 1)).await.unwrap();
        let (config_of_group, machine) = (GroupConfig::new(1, 1), StreamMachine::new(0));
        let group = Group::open(&env, config_of_group, device, snapshots, Rc::new(Alone), machine);
        let group = group.await.unwrap();
        group.bootstrap(&[1].into()).await.unwrap();
        while !group.leadership().leading {
            env.sleep(Duration::from_millis(10)).await;
        }
        let service = StreamService::new(
            &env,
            StreamParts {
                log: group,
                cluster: cluster.model.clone() as Rc<dyn ClusterSource>,
                calls: cluster.model.clone() as _,
                tokens: cluster.model.issuer(&env),
                grants: Rc::new(|_, _| Box::pin(async { Ok(true) })),
                config: config(&cluster.sim),
            },
        );
        service.start_background();
        let file = FileId::new(1);
        let change = |seq, change| {
            let op = OpId { client: ClientId::new(1), seq, acked_below: seq };
            service.handle(StreamRequest::Change { op, change })
        };
        let open = |seq| {
            let policy = Policy::strict(3);
            change(
                seq,
                StreamChange::Open {
                    file,
                    policy,
                    grant: [0; 16],
                    spares: 1,
                    purpose: Purpose::Data,
                    follows: None,
                    in_copies: false,
                    avoid: Vec::new(),
                },
            )
        };
        let StreamReply::Writer(first) = open(1).await.unwrap() else { panic!("no grant") };
        assert_eq!(open(1).await, Ok(StreamReply::Writer(first.clone())), "a repeat is answered");
        let StreamReply::Writer(second) = open(2).await.unwrap() else { panic!("no grant") };
        assert_eq!((first.epoch, second.epoch), (Epoch::new(1), Epoch::new(2)));
        let seal = change(3, StreamChange::seal(file));
        assert_eq!(seal.await, Ok(StreamReply::Done { len: 0 }));
    });
}
