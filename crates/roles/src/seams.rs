//! Seams: the simulator inserts faults between the parts of a role. A process inserts nothing.

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

/// Wrappers between the parts of a role, set at its start.
#[derive(Clone)]
pub struct Seams {
    /// The cluster's key, for hosts that have no file of it.
    pub key: Option<ClusterKey>,
    /// Wraps the network of a client of the core.
    pub peers: fn(&Env, Endpoint) -> Rc<dyn Peers>,
    /// Wraps the devices of a block server.
    pub devices: fn(&Env, Rc<dyn Devices>) -> Rc<dyn Devices>,
    /// Wraps the exports of a front end.
    pub exports: fn(&Env, Rc<dyn Exports>) -> Rc<dyn Exports>,
}

impl Seams {
    /// No wrappers: the seams of a process.
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
    /// The store that the server uses.
    type Store: ChunkStore;

    /// Opens a configured store: the engine, and the store that the server uses.
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
