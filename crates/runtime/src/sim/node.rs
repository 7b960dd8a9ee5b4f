//! One boot of one host, as its [`Env`] sees it.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use super::disk::{HostDisk, SimFile};
use super::net::{self, SimListener};
use super::world::{HostId, SimHost, World};
use crate::env::{Env, FrameFate};
use crate::io::{Entry, OpenOptions, Stream};
use crate::time::UnixTime;

pub(crate) struct SimNode {
    pub(crate) world: Rc<World>,
    pub(crate) host: HostId,
    pub(crate) node: u32,
    machine: Rc<SimHost>,
}

/// A step of a helper thread takes at most this long.
const BLOCKING_MAX: Duration = Duration::from_millis(1);

impl SimNode {
    pub(crate) fn new(world: Rc<World>, host: HostId, node: u32) -> SimNode {
        let machine = world.host(host);
        SimNode { world, host, node, machine }
    }

    fn disk(&self) -> &Rc<HostDisk> {
        &self.machine.disk
    }

    /// The host's monotonic clock at virtual time `global`.
    pub(crate) fn local_time(&self, global: u64) -> u64 {
        self.machine.local_time(global)
    }

    /// The first virtual time at which the host's clock shows `local`.
    pub(crate) fn global_time(&self, local: u64) -> u64 {
        self.machine.global_time(local)
    }

    pub(crate) fn unix_time(&self, global: u64) -> UnixTime {
        super::world::unix_time(global, self.machine.wall_skew.get())
    }

    pub(crate) async fn blocking<T>(
        &self,
        env: &Env,
        _name: &'static str,
        work: impl FnOnce() -> T,
    ) -> T {
        let length = self.world.between((Duration::from_micros(10), BLOCKING_MAX));
        env.sleep(length).await;
        work()
    }

    pub(crate) async fn open_file(
        &self,
        env: &Env,
        path: &Path,
        options: OpenOptions,
    ) -> io::Result<SimFile> {
        check(env)?;
        SimFile::open(env, self.world.clone(), self.disk().clone(), path, options)
    }

    pub(crate) fn create_dir_all(&self, path: &Path) -> io::Result<PathBuf> {
        self.disk().fail_names(&self.world, path)?;
        self.disk().create_dir_all(path)
    }

    pub(crate) fn read_dir(&self, path: &Path) -> io::Result<Vec<Entry>> {
        self.disk().read_dir(path)
    }

    pub(crate) fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk().fail_names(&self.world, from)?;
        self.disk().rename(from, to)
    }

    pub(crate) fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.disk().fail_names(&self.world, path)?;
        self.disk().remove_file(path)
    }

    pub(crate) fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.disk().fail_names(&self.world, path)?;
        self.disk().sync_dir(path)
    }

    pub(crate) fn listen(&self, env: &Env, addr: SocketAddr) -> io::Result<SimListener> {
        check(env)?;
        net::listen(&self.world, self.host, self.node, addr)
    }

    pub(crate) async fn connect(&self, env: &Env, addr: SocketAddr) -> io::Result<Stream> {
        check(env)?;
        net::connect(self.world.clone(), self.host, self.node, addr).await
    }

    pub(crate) fn frame_fate(&self, _peer: SocketAddr) -> FrameFate {
        self.world.net.frame_fate(&self.world)
    }

    pub(crate) fn mark(&self, name: &'static str) {
        self.world.mark(name);
    }
}

/// A closed [`Env`] does nothing more: destructors of a crashed node have no effects.
pub(crate) fn check(env: &Env) -> io::Result<()> {
    if env.is_closed() {
        return Err(io::Error::other("the node has crashed"));
    }
    Ok(())
}
