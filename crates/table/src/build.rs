//! [`Builder`]: writes sorted files.

use std::collections::VecDeque;

use wire::data::Purpose;

use crate::error::Error;
use crate::file::{TableFiles, put_filter};
use crate::format::block::{BlockBuilder, Version};
use crate::format::edit::FileInfo;
use crate::format::filter;
use crate::format::footer::{FilePart, Footer, index_value, top_value};
use crate::format::frame::sorted_head;
use crate::limits::{BUILD_APPEND_BYTES, INDEX_BYTES};
use crate::options::{Compression, Options};
use crate::store::{Pending, Writer};
use crate::types::{FileNo, Name, Seq};

/// Appends of a file in flight, at most: one is written, one is sent.
const APPENDS_INFLIGHT: usize = 2;

/// One sorted file in the making.
pub(crate) struct Builder {
    path: String,
    file: FileNo,
    writer: Box<dyn Writer>,
    block_bytes: usize,
    compression: Compression,
    /// Bytes not submitted yet, and the offset behind them.
    buffer: Vec<u8>,
    at: u64,
    pending: VecDeque<Pending>,
    data: BlockBuilder,
    index: BlockBuilder,
    top: BlockBuilder,
    /// Hashes of the keys of the partition.
    hashes: Vec<u64>,
    keys: u64,
    versions: u64,
    first_key: Vec<u8>,
    last_key: Vec<u8>,
}

impl Builder {
    /// Makes the file.
    pub(crate) async fn create(
        table_files: &TableFiles,
        file: FileNo,
        purpose: Purpose,
        options: &Options,
    ) -> Result<Builder, Error> {
        let name = Name::Sorted(file);
        let path = table_files.path(name);
        let writer = table_files.store.create(&name.to_string()).await;
        let writer = writer.map_err(|fault| Error::of_store(fault, "create", &path))?;
        writer.set_purpose(purpose);
        let buffer = sorted_head(file).to_vec();
        Ok(Builder {
            path,
            file,
            writer,
            block_bytes: options.block_bytes,
            compression: options.compression,
            at: buffer.len() as u64,
            buffer,
            pending: VecDeque::new(),
            data: BlockBuilder::default(),
            index: BlockBuilder::default(),
            top: BlockBuilder::default(),
            hashes: Vec::new(),
            keys: 0,
            versions: 0,
            first_key: Vec::new(),
            last_key: Vec::new(),
        })
    }

    /// Bytes of the file so far.
    pub(crate) fn len(&self) -> u64 {
        self.at + self.data.size() as u64
    }

    /// Adds a key above all before it, with its versions, newest first; at least one.
    pub(crate) async fn add<'a>(
        &mut self,
        key: &[u8],
        versions: impl Iterator<Item = Version<'a>>,
    ) -> Result<(), Error> {
        if self.keys == 0 {
            self.first_key = key.to_vec();
        }
        self.last_key.clear();
        self.last_key.extend_from_slice(key);
        let mut count = 0;
        self.data.add(key, versions.inspect(|_| count += 1));
        self.hashes.push(filter::hash(key));
        self.keys += 1;
        self.versions += count;
        if self.data.size() >= self.block_bytes {
            self.end_block();
            if self.index.size() >= INDEX_BYTES {
                self.end_partition();
            }
            self.submit(BUILD_APPEND_BYTES).await?;
        }
        Ok(())
    }

    fn end_block(&mut self) {
        let last = self.data.last_key().to_vec();
        let at = self.at;
        let len = self.data.finish(self.file, at, self.compression, &mut self.buffer);
        self.at += u64::from(len);
        let value = index_value(FilePart { at, len });
        self.index.add(&last, [(Seq::ZERO, Some(&value[..]))].into_iter());
    }

    fn end_partition(&mut self) {
        let last = self.index.last_key().to_vec();
        let at = self.at;
        let len = self.index.finish(self.file, at, Compression::None, &mut self.buffer);
        self.at += u64::from(len);
        let filter = filter::build(&self.hashes);
        self.hashes.clear();
        let filter_len = put_filter(&mut self.buffer, self.file, self.at, &filter);
        self.at += u64::from(filter_len);
        let value = top_value(FilePart { at, len }, filter_len);
        self.top.add(&last, [(Seq::ZERO, Some(&value[..]))].into_iter());
    }

    /// Submits the buffer when it has this many bytes.
    async fn submit(&mut self, least: usize) -> Result<(), Error> {
        if self.buffer.len() < least {
            return Ok(());
        }
        let cause = |fault| Error::of_store(fault, "write", &self.path);
        let pending = self.writer.submit(&self.buffer).await.map_err(cause)?;
        self.buffer.clear();
        self.pending.push_back(pending);
        while self.pending.len() > APPENDS_INFLIGHT {
            let oldest = self.pending.pop_front().expect("not empty");
            oldest.await.map_err(cause)?;
        }
        Ok(())
    }

    /// Ends the file, which has at least one key; it is durable and sealed then.
    pub(crate) async fn finish(mut self) -> Result<FileInfo, Error> {
        if !self.data.is_empty() {
            self.end_block();
        }
        if !self.index.is_empty() {
            self.end_partition();
        }
        let top_at = self.at;
        let top_len = self.top.finish(self.file, top_at, Compression::None, &mut self.buffer);
        self.at += u64::from(top_len);
        let footer = Footer { top_at, top_len, keys: self.keys, versions: self.versions };
        self.buffer.extend_from_slice(&footer.encode(self.file, self.at));
        let len = top_at + u64::from(top_len) + crate::format::footer::FOOTER as u64;
        self.submit(1).await?;
        let cause = |fault| Error::of_store(fault, "write", &self.path);
        for pending in self.pending {
            pending.await.map_err(cause)?;
        }
        let closed = self.writer.close().await.map_err(cause)?;
        if closed != len {
            let message = format!("closed at {closed} instead of {len} bytes; write it again");
            return Err(Error::Invalid { table: self.path, message });
        }
        Ok(FileInfo {
            file: self.file,
            len,
            top_at,
            versions: self.versions,
            first_key: self.first_key,
            last_key: self.last_key,
            bounds: 0,
        })
    }
}
