//! Where a simulator stands between the parts of a role. A process puts nothing there.

use std::path::Path;
use std::rc::Rc;

use block_server::Devices;
use block_volume::export::Exports;
use chunkstore::ChunkStore;
use chunkstore::flash::FlashStore;
use client::{Network, Peers};
use runtime::Env;
use transport::Endpoint;
use wire::handshake::ClusterKey;

use crate::error::Error;
use crate::stores::Unopened;
use crate::{config, stores};

/// What is put between the parts of a role when it starts.
#[derive(Clone)]
pub struct Seams {
    /// The cluster's key, for hosts that have no file of it.
    pub key: Option<ClusterKey>,
    /// What a client of the core takes for the network.
    pub peers: fn(&Env, Endpoint) -> Rc<dyn Peers>,
    /// What a block server takes for its segments.
    pub devices: fn(&Env, Rc<dyn Devices>) -> Rc<dyn Devices>,
    /// What a front end takes for its volumes.
    pub exports: fn(&Env, Rc<dyn Exports>) -> Rc<dyn Exports>,
}

impl Seams {
    /// Nothing in between: how a process starts.
    pub fn none() -> Seams {
        Seams {
            key: None,
            peers: |env, endpoint| Rc::new(Network::new(env, endpoint)),
            devices: |_, devices| devices,
            exports: |_, exports| exports,
        }
    }

    /// The cluster's key: the one that is given, else that of the configured file.
    pub(crate) fn key(&self, file: Option<&Path>) -> Result<Option<ClusterKey>, Error> {
        match &self.key {
            Some(key) => Ok(Some(key.clone())),
            None => file.map(config::read_key).transpose(),
        }
    }
}

/// Opens the stores of a chunkserver.
pub trait Stores: Clone + Send + 'static {
    /// What the server takes for a store.
    type Store: ChunkStore;

    /// Opens a configured store: the engine, and what the server takes for it.
    fn open(
        &self,
        env: &Env,
        store: &config::Store,
    ) -> impl Future<Output = Result<(FlashStore, Self::Store), Unopened>>;
}

/// Files and devices of the machine, served as they are.
#[derive(Clone, Copy, Debug)]
pub struct Plain;

impl Stores for Plain {
    type Store = FlashStore;

    async fn open(
        &self,
        env: &Env,
        store: &config::Store,
    ) -> Result<(FlashStore, FlashStore), Unopened> {
        let engine = stores::open(env, store).await?;
        Ok((engine.clone(), engine))
    }
}
