//! The `io_uring` driver. (Stub while it is being written.)
#![allow(missing_docs, unused, clippy::unused_async, clippy::len_without_is_empty)]
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use crate::buf::{Buf, BufMut};
use crate::io::{Entry, OpenOptions, Stream, WriteMode};
use crate::time::UnixTime;

fn no<T>() -> io::Result<T> { Err(io::ErrorKind::Unsupported.into()) }
pub(crate) struct RealNode;
impl RealNode {
    pub(crate) fn unix_time(&self) -> UnixTime { UnixTime::default() }
    pub(crate) async fn blocking<T: Send + 'static>(&self, _n: &'static str, work: impl FnOnce() -> T + Send + 'static) -> T { work() }
    pub(crate) fn fill_secret(&self, _b: &mut [u8]) {}
    pub(crate) async fn open_file(&self, _p: &Path, _o: OpenOptions) -> io::Result<RealFile> { no() }
    pub(crate) async fn create_dir_all(&self, _p: &Path) -> io::Result<()> { no() }
    pub(crate) async fn read_dir(&self, _p: &Path) -> io::Result<Vec<Entry>> { no() }
    pub(crate) async fn rename(&self, _a: &Path, _b: &Path) -> io::Result<()> { no() }
    pub(crate) async fn remove_file(&self, _p: &Path) -> io::Result<()> { no() }
    pub(crate) async fn sync_dir(&self, _p: &Path) -> io::Result<()> { no() }
    pub(crate) async fn listen(&self, _a: SocketAddr) -> io::Result<RealListener> { no() }
    pub(crate) async fn connect(&self, _a: SocketAddr) -> io::Result<Stream> { no() }
}
#[derive(Clone, Debug)]
pub struct RealFile;
impl RealFile {
    pub async fn read_at(&self, _o: u64, b: BufMut) -> (io::Result<usize>, BufMut) { (no(), b) }
    pub async fn write_at(&self, _o: u64, _b: Buf, _m: WriteMode) -> io::Result<()> { no() }
    pub async fn write_vectored_at(&self, _o: u64, _b: Vec<Buf>, _m: WriteMode) -> io::Result<()> { no() }
    pub async fn sync(&self) -> io::Result<()> { no() }
    pub async fn allocate(&self, _o: u64, _l: u64) -> io::Result<()> { no() }
    pub async fn len(&self) -> io::Result<u64> { no() }
    pub async fn set_len(&self, _l: u64) -> io::Result<()> { no() }
    pub fn try_lock(&self) -> io::Result<()> { no() }
}
#[derive(Debug)]
pub struct RealListener;
impl RealListener {
    pub async fn accept(&self) -> io::Result<Stream> { no() }
    pub fn local_addr(&self) -> SocketAddr { SocketAddr::from(([0; 4], 0)) }
}
#[derive(Debug)]
pub struct RealReadHalf;
impl RealReadHalf { pub async fn read(&mut self, b: BufMut, _s: usize) -> (io::Result<usize>, BufMut) { (no(), b) } }
#[derive(Debug)]
pub struct RealWriteHalf;
impl RealWriteHalf { pub async fn write_all(&mut self, _b: Vec<Buf>) -> io::Result<()> { no() } }
#[derive(Clone, Debug, Default)]
pub struct RuntimeConfig;
#[derive(Debug)]
pub struct Runtime;
#[derive(Clone, Debug)]
pub struct Handle;
