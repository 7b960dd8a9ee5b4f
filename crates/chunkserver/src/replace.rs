//! Replacement of a disk, by an operator's order: a new store where one has failed.

use std::rc::Rc;

use base::Kind;
use chunkstore::ChunkStore;
use runtime::Class;
use wire::control::{ChunkserverReply, ControlError};

use crate::new_stores::NewStores;
use crate::server::{Chunkserver, Disk};

fn invalid(message: String) -> ControlError {
    ControlError::new(Kind::Invalid, message)
}

impl<S: ChunkStore> Chunkserver<S> {
    /// Takes orders to replace disks from here on.
    pub fn replace_by(&self, stores: Rc<dyn NewStores>) {
        *self.0.new_stores.borrow_mut() = Some(stores);
    }

    /// Puts a new store where a disk was that serves nothing any more. The old incarnation is gone for
    /// good: what it held is made elsewhere by repair, and no byte of it is believed.
    pub(crate) async fn replace_disk(&self, path: &str) -> Result<ChunkserverReply, ControlError> {
        let stores = self.0.new_stores.borrow().clone();
        let stores = stores.ok_or_else(|| invalid("no store can be made here".to_owned()))?;
        let replacing = Replacing::begin(self, path)?;
        self.replaceable(path)?;
        stores.check(path).await.map_err(invalid)?;
        // A disk may have come back while its path was looked at.
        if let Some(old) = self.replaceable(path)? {
            self.0.disks.borrow_mut().remove(&old.id);
            tracing::info!(path, disk = %old.id, "a disk is taken out to be replaced");
            self.0.env.spawn(Class::Background, "close a replaced disk", async move {
                let _ = old.store.close().await; // Of a disk that has failed.
            });
        }
        self.leave_out(path, "it is being replaced".to_owned());
        let made = stores.make(path).await;
        drop(replacing);
        let disk = made.map_err(|error| {
            self.leave_out(path, error.clone());
            self.heartbeat_soon();
            ControlError::new(Kind::Retry, error)
        })?;
        self.0.env.mark("chunkserver: disk replaced");
        tracing::info!(path, %disk, "a disk is replaced");
        self.heartbeat_soon();
        Ok(ChunkserverReply::Replaced { disk })
    }

    /// The disk that is served at `path` and may go; none when the one there is left out.
    fn replaceable(&self, path: &str) -> Result<Option<Rc<Disk<S>>>, ControlError> {
        let Some(disk) = self.disks().into_iter().find(|disk| disk.path == path) else {
            if self.0.left_out.borrow().contains_key(path) {
                return Ok(None);
            }
            let known: Vec<_> = self.disk_reports().into_iter().map(|it| it.path).collect();
            return Err(invalid(format!("no disk at {path}: there are {}", known.join(", "))));
        };
        let info = disk.store.info();
        let serves = self.left_alone(&disk).is_none() && !disk.check.hangs();
        let in_use = !info.failed && !disk.failed.get() && serves;
        if in_use && info.chunks > 0 {
            return Err(invalid(format!(
                "{path} is in use: it has not failed, and holds {} replicas. Drain the chunkserver \
                 first",
                info.chunks
            )));
        }
        Ok(Some(disk))
    }
}

/// One replacement at a path at a time.
struct Replacing<'a, S> {
    server: &'a Chunkserver<S>,
    path: &'a str,
}

impl<'a, S> Replacing<'a, S> {
    fn begin(server: &'a Chunkserver<S>, path: &'a str) -> Result<Self, ControlError> {
        if !server.0.replacing.borrow_mut().insert(path.to_owned()) {
            let message = format!("{path} is being replaced already");
            return Err(ControlError::new(Kind::Retry, message));
        }
        Ok(Replacing { server, path })
    }
}

impl<S> Drop for Replacing<'_, S> {
    fn drop(&mut self) {
        self.server.0.replacing.borrow_mut().remove(self.path);
    }
}
