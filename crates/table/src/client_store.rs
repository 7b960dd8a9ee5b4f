//! [`ClientStore`]: tables on the core.

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;

use base::{DirId, Fault, Kind};
use client::{Appender, Client, Error, FlatLogFile, Reader};
use futures_util::future::join_all;
use wire::control::{NameKey, Node, Policy};
use wire::data::Purpose;

use crate::limits::{LINK_BATCH, LIST_PAGE};
use crate::store::{Answer, Names, Pending, Redundancy, Source, Store, Writer};

/// Mode of files.
const MODE: u32 = 0o600;

/// A directory of the core's namespace, for one table. Its files are FlatLogFiles, each of the policy
/// that the store has when the file is made, and for recovery unless their writers set another purpose:
/// they can be written on a full cluster.
///
/// The promises of [`Store`] are the core's: names of one directory are of one partition, whose
/// changes and listings are linearizable (`design.md` invariant 8); a seal fences the writer's
/// chunk and spares before it answers (`protocols.md` 2.1).
pub struct ClientStore {
    client: Client,
    dir: DirId,
    path: String,
    policy: Rc<Cell<Policy>>,
}

impl ClientStore {
    /// The directory `path`, which is made if it is missing. It is resolved once: should it be
    /// moved or removed and made again, this store still means the first.
    pub async fn new(client: &Client, path: &str, policy: Policy) -> Result<ClientStore, Error> {
        ClientStore::with_policy(client, path, Rc::new(Cell::new(policy))).await
    }

    /// The same; files get the policy that `policy` has as they are made.
    pub async fn with_policy(
        client: &Client,
        path: &str,
        policy: Rc<Cell<Policy>>,
    ) -> Result<ClientStore, Error> {
        let dir = client.mkdir_all(path, 0o700).await?;
        let path = path.trim_end_matches('/').to_owned();
        Ok(ClientStore { client: client.clone(), dir, path, policy })
    }

    /// The same directory; files get the policy that `policy` has as they are made.
    pub fn in_form(&self, policy: Rc<Cell<Policy>>) -> ClientStore {
        let (client, path) = (self.client.clone(), self.path.clone());
        ClientStore { client, dir: self.dir, path, policy }
    }

    /// The directory `path`, which has to be there; to be read, or to be linked from.
    pub async fn find(client: &Client, path: &str) -> Result<ClientStore, Error> {
        let path = path.trim_end_matches('/').to_owned();
        let Node::Dir { dir, .. } = client.lookup(&path).await?.node else {
            return Err(Error::Invalid { path, message: "it is no directory".to_owned() });
        };
        let policy = Rc::new(Cell::new(Policy::strict(3)));
        Ok(ClientStore { client: client.clone(), dir, path, policy })
    }

    fn place(&self, name: &str) -> NameKey {
        NameKey { parent: self.dir, name: name.to_owned() }
    }

    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.path)
    }

    async fn file(&self, name: &str) -> Result<FlatLogFile, Error> {
        let path = self.path(name);
        let found = self.client.lookup_at(self.place(name), &path).await?;
        self.client.file_of(&path, found)
    }
}

fn fault(error: Error) -> Fault {
    Fault::new(error.kind(), error.to_string())
}

impl Store for ClientStore {
    fn name(&self) -> &str {
        &self.path
    }

    fn redundancy(&self) -> Redundancy {
        let Policy { copies, data, .. } = self.policy.get();
        Redundancy { replicas: copies, data }
    }

    fn create<'a>(&'a self, name: &'a str) -> Answer<'a, Box<dyn Writer>> {
        Box::pin(async move {
            let (place, path) = (self.place(name), self.path(name));
            let made = self.client.create_at(place, &path, self.policy.get(), MODE, true).await;
            let file = made.map_err(fault)?;
            let appender = file.append_handle_for(Purpose::Recovery).await.map_err(fault)?;
            Ok(Box::new(FileWriter(appender)) as Box<dyn Writer>)
        })
    }

    fn seal<'a>(&'a self, name: &'a str) -> Answer<'a, u64> {
        Box::pin(async move { self.file(name).await.map_err(fault)?.seal().await.map_err(fault) })
    }

    fn open<'a>(&'a self, name: &'a str) -> Answer<'a, Rc<dyn Source>> {
        Box::pin(async move {
            let file = self.file(name).await.map_err(fault)?;
            Ok(Rc::new(FileSource(file.reader())) as Rc<dyn Source>)
        })
    }

    fn list<'a>(&'a self, after: &'a str) -> Answer<'a, Names> {
        Box::pin(async move {
            let after = (!after.is_empty()).then_some(after);
            let page = self.client.list_dir(self.dir, &self.path, after, LIST_PAGE as u32).await;
            let page = page.map_err(fault)?;
            let names = page.entries.into_iter().map(|entry| entry.name).collect();
            Ok(Names { names, more: page.more })
        })
    }

    fn publish<'a>(&'a self, from: &'a str, to: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            let path = self.path(to);
            let (from, to) = (self.place(from), self.place(to));
            self.client.rename_at(from, to, false, &path).await.map_err(fault)
        })
    }

    fn remove<'a>(&'a self, name: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            self.client.unlink_at(self.place(name), &self.path(name)).await.map_err(fault)
        })
    }

    fn numbers<'a>(&'a self, names: &'a [String]) -> Answer<'a, Vec<Option<u64>>> {
        Box::pin(async move {
            let mut numbers = Vec::with_capacity(names.len());
            for names in names.chunks(LINK_BATCH) {
                let found = names.iter().map(|name| async move {
                    match self.file(name).await {
                        Ok(file) => Ok(Some(file.id().get())),
                        Err(error) if error.kind() == Kind::NotFound => Ok(None),
                        Err(error) => Err(fault(error)),
                    }
                });
                let found: Result<Vec<_>, Fault> = join_all(found).await.into_iter().collect();
                numbers.extend(found?);
            }
            Ok(numbers)
        })
    }

    fn link<'a>(&'a self, names: &'a [String], to: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            let found = self.client.lookup(to).await.map_err(fault)?;
            let Node::Dir { dir, .. } = found.node else {
                return Err(Fault::new(Kind::Invalid, format!("{to} is no directory")));
            };
            for names in names.chunks(LINK_BATCH) {
                let found = names.iter().map(|name| async move {
                    let id = self.file(name).await?.id();
                    let place = NameKey { parent: dir, name: name.clone() };
                    let is_there = match self.client.lookup_at(place.clone(), to).await {
                        Ok(_) => true,
                        Err(error) if error.kind() == Kind::NotFound => false,
                        Err(error) => return Err(error),
                    };
                    Ok((!is_there).then_some((id, place)))
                });
                let found: Result<Vec<_>, Error> = join_all(found).await.into_iter().collect();
                let links: Vec<_> = found.map_err(fault)?.into_iter().flatten().collect();
                if !links.is_empty() {
                    self.client.link_many(links).await.map_err(fault)?;
                }
            }
            Ok(())
        })
    }
}

impl fmt::Debug for ClientStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClientStore({})", self.path)
    }
}

struct FileWriter(Appender);

impl Writer for FileWriter {
    fn set_purpose(&self, purpose: Purpose) {
        self.0.set_purpose(purpose);
    }

    fn submit<'a>(&'a self, data: &'a [u8]) -> Answer<'a, Pending> {
        Box::pin(async move {
            let append = self.0.submit(data).await.map_err(fault)?;
            let end = append.offset() + data.len() as u64;
            Ok(Box::pin(async move { append.await.map(|_| end).map_err(fault) }) as Pending)
        })
    }

    fn close(self: Box<Self>) -> Answer<'static, u64> {
        Box::pin(async move { self.0.close().await.map_err(fault) })
    }
}

struct FileSource(Reader);

impl Source for FileSource {
    fn read_at(&self, offset: u64, len: usize) -> Answer<'_, Vec<u8>> {
        // Owners know how much must be there, and readers of views read again.
        Box::pin(async move { self.0.read_shown(offset, len).await.map_err(fault) })
    }

    fn read_acknowledged(&self, offset: u64, len: usize) -> Answer<'_, Vec<u8>> {
        Box::pin(async move { self.0.read_acknowledged(offset, len).await.map_err(fault) })
    }
}
