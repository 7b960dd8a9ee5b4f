//! Compression and decompression of one block, with memory that is kept between blocks.

use lz4_flex::block::{CompressTable, compress_into_with_table, get_maximum_output_size};
use zstd::bulk;

use super::{BLOCK_HEAD, BlockError, BlockHead, BlockSize, Codec, is_saving};
use crate::copy::copy;
use crate::crc32c;

/// Level of Zstandard: higher ones cost a third of the speed for a few percent.
const ZSTD_LEVEL: i32 = 1;

/// Makes stored blocks of one codec. Its memory is allocated with it: a block allocates nothing.
pub struct Packer {
    method: Method,
    size: BlockSize,
    /// For what is compressed, until it is known to save enough.
    scratch: Box<[u8]>,
}

enum Method {
    Plain,
    Lz4(CompressTable),
    Zstd(bulk::Compressor<'static>),
}

impl Packer {
    /// A packer for blocks of `size` bytes at most.
    pub fn new(codec: Codec, size: BlockSize) -> Packer {
        let (method, scratch) = match codec {
            Codec::Plain => (Method::Plain, 0),
            Codec::Lz4 => {
                // The small table has places of 16 bits.
                let is_small = size.bytes() < usize::from(u16::MAX);
                let table = if is_small { CompressTable::small() } else { CompressTable::large() };
                (Method::Lz4(table), get_maximum_output_size(size.bytes()))
            }
            Codec::Zstd => {
                let context = bulk::Compressor::new(ZSTD_LEVEL);
                let context = context.expect("the process has memory for a context");
                (Method::Zstd(context), zstd::zstd_safe::compress_bound(size.bytes()))
            }
        };
        Packer { method, size, scratch: vec![0; scratch].into_boxed_slice() }
    }

    /// Its codec; a block that saves too little is stored plain all the same.
    pub fn codec(&self) -> Codec {
        match self.method {
            Method::Plain => Codec::Plain,
            Method::Lz4(_) => Codec::Lz4,
            Method::Zstd(_) => Codec::Zstd,
        }
    }

    /// Writes head and content of a block to the front of `out`, and returns their length, which is
    /// [`BLOCK_HEAD`] more than the block's at most. The rest of `out` stays as it is. Panics when
    /// the block is empty or larger than promised, or when `out` lacks that room.
    pub fn pack(&mut self, block: &[u8], out: &mut [u8]) -> usize {
        let (head, content) = out.split_first_chunk_mut().expect("room for a head");
        BLOCK_HEAD + self.pack_apart(block, head, content)
    }

    /// As [`Packer::pack`], with the head in a place of its own; returns the length of the content.
    pub fn pack_apart(
        &mut self,
        block: &[u8],
        head_out: &mut [u8; BLOCK_HEAD],
        out: &mut [u8],
    ) -> usize {
        assert!((1..=self.size.bytes()).contains(&block.len()), "{} bytes", block.len());
        let (codec, content) = match self.compress(block) {
            Some(len) => (self.codec(), &self.scratch[..len]),
            None => (Codec::Plain, block),
        };
        let head = BlockHead { stored_len: content.len() as u32, codec, crc: crc32c(block) };
        *head_out = head.encode();
        copy(content, &mut out[..content.len()]);
        content.len()
    }

    /// Compresses into `scratch`; `None` when it saves too little.
    fn compress(&mut self, block: &[u8]) -> Option<usize> {
        let len = match &mut self.method {
            Method::Plain => return None,
            Method::Lz4(table) => compress_into_with_table(block, &mut self.scratch, table).ok(),
            Method::Zstd(context) => context.compress_to_buffer(block, &mut self.scratch[..]).ok(),
        };
        // Both have room for the worst case; a codec that fails costs room only.
        len.filter(|&len| is_saving(len, block.len()))
    }
}

/// Gives back logical bytes of stored blocks of any codec.
pub struct Unpacker {
    zstd: bulk::Decompressor<'static>,
}

impl Default for Unpacker {
    fn default() -> Self {
        Unpacker::new()
    }
}

impl Unpacker {
    /// An unpacker, with its memory.
    pub fn new() -> Unpacker {
        let context = bulk::Decompressor::new();
        Unpacker { zstd: context.expect("the process has memory for a context") }
    }

    /// Fills `block` with the logical bytes of a block whose head and content are the front of `stored`,
    /// and returns the length of both. `Ok` says that the checksum is that of the head; after an
    /// error the bytes in `block` have no meaning. Never writes beyond `block`, whatever is stored.
    pub fn unpack(&mut self, stored: &[u8], block: &mut [u8]) -> Result<usize, BlockError> {
        let Some((head, rest)) = stored.split_first_chunk() else {
            return Err(BlockError::Damaged);
        };
        Ok(BLOCK_HEAD + self.unpack_apart(head, rest, block)?)
    }

    /// As [`Unpacker::unpack`], with the head from a place of its own; returns the length of the
    /// content, which is the front of `stored`.
    pub fn unpack_apart(
        &mut self,
        head: &[u8; BLOCK_HEAD],
        stored: &[u8],
        block: &mut [u8],
    ) -> Result<usize, BlockError> {
        let head = BlockHead::decode(head, block.len())?;
        let content = stored.get(..head.stored_len as usize);
        let Some(content) = content else {
            return Err(BlockError::Length { stored: head.stored_len, logical: block.len() });
        };
        let filled = match head.codec {
            Codec::Plain => {
                copy(content, block);
                Some(content.len())
            }
            Codec::Lz4 => lz4_flex::block::decompress_into(content, block).ok(),
            Codec::Zstd => self.zstd.decompress_to_buffer(content, &mut *block).ok(),
        };
        if filled != Some(block.len()) {
            return Err(BlockError::Damaged);
        }
        let seen = crc32c(block);
        match seen == head.crc {
            true => Ok(content.len()),
            false => Err(BlockError::Checksum { want: head.crc, seen }),
        }
    }
}
