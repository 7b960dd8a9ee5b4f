//! [`BlockingClient`]: the client for programs without a runtime. Methods block their thread.

use std::fmt;
use std::io;

use runtime::{Cores, RuntimeConfig};
use wire::control::{Attributes, NamedNode, Policy};

use crate::appender::Appender;
use crate::error::Error;
use crate::file::FlatLogFile;
use crate::handle::{ClientHandle, Connection, Remote};
use crate::namespace::Found;
use crate::reader::Reader;

/// A client with an executor of its own on a thread of its own. Threads may share it.
pub struct BlockingClient {
    handle: ClientHandle,
    /// Stops last.
    _cores: Cores,
}

impl BlockingClient {
    /// Starts the executor and connects.
    pub fn start(connection: Connection) -> Result<BlockingClient, Error> {
        let config = RuntimeConfig { huge_pages: false, ..RuntimeConfig::named("client") };
        let cores = Cores::start(&config, 1).map_err(|error| {
            let message = format!(
                "io_uring cannot be used here ({error}): Craton needs Linux 6.1 or later with \
                 kernel.io_uring_disabled = 0"
            );
            Error::invalid("client", message)
        })?;
        let handle = ClientHandle::connect(&cores.handles()[0], connection).wait()?;
        Ok(BlockingClient { handle, _cores: cores })
    }

    /// The handle, for callers that await.
    pub fn handle(&self) -> ClientHandle {
        self.handle.clone()
    }

    fn path<T, F>(
        &self,
        path: &str,
        work: impl FnOnce(crate::Client, String) -> F + Send + 'static,
    ) -> Result<T, Error>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + 'static,
    {
        let path = path.to_owned();
        self.handle.run(move |client| work(client, path)).wait()
    }

    /// See [`crate::Client::lookup`].
    pub fn lookup(&self, path: &str) -> Result<Found, Error> {
        self.path(path, |client, path| async move { client.lookup(&path).await })
    }

    /// See [`crate::Client::resolve`].
    pub fn resolve(&self, path: &str) -> Result<Found, Error> {
        self.path(path, |client, path| async move { client.resolve(&path).await })
    }

    /// See [`crate::Client::mkdir`].
    pub fn mkdir(&self, path: &str, mode: u32) -> Result<(), Error> {
        self.path(
            path,
            move |client, path| async move { client.mkdir(&path, mode).await.map(drop) },
        )
    }

    /// See [`crate::Client::mkdir_all`].
    pub fn mkdir_all(&self, path: &str, mode: u32) -> Result<(), Error> {
        self.path(
            path,
            move |client, path| async move { client.mkdir_all(&path, mode).await.map(drop) },
        )
    }

    /// See [`crate::Client::list_all`].
    pub fn list(&self, path: &str) -> Result<Vec<NamedNode>, Error> {
        self.path(path, |client, path| async move { client.list_all(&path).await })
    }

    /// See [`crate::Client::unlink`].
    pub fn unlink(&self, path: &str) -> Result<(), Error> {
        self.path(path, |client, path| async move { client.unlink(&path).await })
    }

    /// See [`crate::Client::rmdir`].
    pub fn rmdir(&self, path: &str) -> Result<(), Error> {
        self.path(path, |client, path| async move { client.rmdir(&path).await })
    }

    /// See [`crate::Client::remove_tree`].
    pub fn remove_tree(&self, path: &str) -> Result<u64, Error> {
        self.path(path, |client, path| async move { client.remove_tree(&path).await })
    }

    /// See [`crate::Client::rename`].
    pub fn rename(&self, from: &str, to: &str, replace: bool) -> Result<(), Error> {
        let to = to.to_owned();
        self.path(from, move |client, from| async move { client.rename(&from, &to, replace).await })
    }

    /// See [`crate::Client::link`].
    pub fn link(&self, existing: &str, path: &str) -> Result<(), Error> {
        let path = path.to_owned();
        self.path(
            existing,
            move |client, existing| async move { client.link(&existing, &path).await },
        )
    }

    /// See [`crate::Client::symlink`].
    pub fn symlink(&self, target: &str, path: &str, mode: u32) -> Result<(), Error> {
        let target = target.to_owned();
        self.path(
            path,
            move |client, path| async move { client.symlink(&target, &path, mode).await },
        )
    }

    /// See [`crate::Client::set_attributes`].
    pub fn set_attributes(&self, path: &str, attributes: Attributes) -> Result<(), Error> {
        self.path(path, move |client, path| async move {
            client.set_attributes(&path, attributes).await
        })
    }

    /// See [`crate::Client::create`].
    pub fn create(
        &self,
        path: &str,
        policy: Policy,
        mode: u32,
        exclusive: bool,
    ) -> Result<BlockingFile, Error> {
        self.file(path, move |client, path| async move {
            client.create(&path, policy, mode, exclusive).await
        })
    }

    /// See [`crate::Client::open`].
    pub fn open(&self, path: &str) -> Result<BlockingFile, Error> {
        self.file(path, |client, path| async move { client.open(&path).await })
    }

    fn file<F>(
        &self,
        path: &str,
        work: impl FnOnce(crate::Client, String) -> F + Send + 'static,
    ) -> Result<BlockingFile, Error>
    where
        F: Future<Output = Result<FlatLogFile, Error>> + 'static,
    {
        let path = path.to_owned();
        let (file, made) = self.handle.remote().make(|client| work((*client).clone(), path));
        made.wait()?;
        let (reader, made) =
            file.make(|file: std::rc::Rc<FlatLogFile>| async move { Ok(file.reader()) });
        made.wait()?;
        Ok(BlockingFile { file, reader })
    }
}

impl fmt::Debug for BlockingClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Blocking({:?})", self.handle)
    }
}

/// A file. Threads may share it.
#[derive(Clone)]
pub struct BlockingFile {
    file: Remote<FlatLogFile>,
    reader: Remote<Reader>,
}

impl BlockingFile {
    /// See [`FlatLogFile::append_handle`].
    pub fn append_handle(&self) -> Result<BlockingAppender, Error> {
        let (appender, made) = self.file.make(|file| async move { file.append_handle().await });
        made.wait()?;
        Ok(BlockingAppender(appender))
    }

    /// See [`Reader::read_at`].
    pub fn read_at(&self, offset: u64, len: usize) -> Result<Vec<u8>, Error> {
        self.reader.run(move |reader| async move { reader.read_at(offset, len).await }).wait()
    }

    /// See [`FlatLogFile::len`].
    pub fn len(&self) -> Result<u64, Error> {
        self.reader.run(|reader| async move { reader.refresh_len().await }).wait()
    }

    /// True when nothing is in it.
    pub fn is_empty(&self) -> Result<bool, Error> {
        Ok(self.len()? == 0)
    }

    /// See [`FlatLogFile::set_policy`].
    pub fn set_policy(&self, policy: Policy) -> Result<(), Error> {
        self.file.run(move |file| async move { file.set_policy(policy).await }).wait()
    }

    /// See [`FlatLogFile::convert`].
    pub fn convert(&self, wanted: bool) -> Result<(), Error> {
        self.file.run(move |file| async move { file.convert(wanted).await }).wait()
    }

    /// See [`FlatLogFile::seal`].
    pub fn seal(&self) -> Result<u64, Error> {
        self.file.run(|file| async move { file.seal().await }).wait()
    }

    /// A stream of its bytes from `offset` on.
    pub fn stream(&self, offset: u64) -> BlockingStream {
        BlockingStream { file: self.clone(), offset }
    }
}

impl fmt::Debug for BlockingFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BlockingFile")
    }
}

/// Reads a file from one end to the other.
#[derive(Debug)]
pub struct BlockingStream {
    file: BlockingFile,
    offset: u64,
}

impl io::Read for BlockingStream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let len = buf.len().min(crate::limits::READ_MAX);
        let bytes = self.file.read_at(self.offset, len).map_err(io::Error::other)?;
        buf[..bytes.len()].copy_from_slice(&bytes);
        self.offset += bytes.len() as u64;
        Ok(bytes.len())
    }
}

/// The one writer of a file. As [`io::Write`], `write` returns when the window has room and
/// `flush` when all is durable.
pub struct BlockingAppender(Remote<Appender>);

impl BlockingAppender {
    /// See [`Appender::append`].
    pub fn append(&self, data: &[u8]) -> Result<u64, Error> {
        let data = data.to_vec();
        self.0.run(move |appender| async move { appender.append(&data).await }).wait()
    }

    /// See [`Appender::append_many`].
    pub fn append_many(&self, records: &[&[u8]]) -> Result<u64, Error> {
        let records: Vec<Vec<u8>> = records.iter().map(|record| record.to_vec()).collect();
        let append = move |appender: std::rc::Rc<Appender>| async move {
            let records: Vec<&[u8]> = records.iter().map(Vec::as_slice).collect();
            appender.append_many(&records).await
        };
        self.0.run(append).wait()
    }

    /// Starts an append when the window has room, and answers its offset; [`Self::sync`] waits
    /// until it is durable.
    pub fn submit(&self, data: &[u8]) -> Result<u64, Error> {
        let data = data.to_vec();
        let submit = move |appender: std::rc::Rc<Appender>| async move {
            appender.submit(&data).await.map(|append| append.offset())
        };
        self.0.run(submit).wait()
    }

    /// See [`Appender::sync`].
    pub fn sync(&self) -> Result<(), Error> {
        self.0.run(|appender| async move { appender.sync().await }).wait()
    }

    /// See [`Appender::close`].
    pub fn close(self) -> Result<u64, Error> {
        self.0.take(|appender| async move { appender.close().await }).wait()
    }

    /// See [`Appender::finish`].
    pub fn finish(self) -> Result<u64, Error> {
        self.0.take(|appender| async move { appender.finish().await }).wait()
    }
}

impl io::Write for BlockingAppender {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let len = buf.len().min(base::limits::APPEND_DATA_MAX);
        self.submit(&buf[..len]).map_err(io::Error::other)?;
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sync().map_err(io::Error::other)
    }
}

impl fmt::Debug for BlockingAppender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BlockingAppender")
    }
}
