//! Bounds of the gateway, with reason and arithmetic (object protocols, 12.3).

use std::time::Duration;

/// Bytes of a request's head at most: a key of 1,024 bytes is 3 KiB when each byte is escaped,
/// users' metadata 2 KiB, a session token 2 KiB; S3 itself takes 8 KiB of headers.
pub const HEAD_MAX: usize = 16 << 10;
/// Bytes that hyper reads of a head before it refuses it on its own, without XML. Between the two,
/// a head is refused in S3's words. It is the size of a connection's read buffer at most.
pub const HEAD_READ_MAX: usize = 32 << 10;
/// Headers of a request at most: S3's own, and users' metadata of 2 KiB in entries of 12 bytes.
pub const HEADERS_MAX: usize = 256;
/// Time for a head, from its first byte to its last.
pub const HEAD_TIME: Duration = Duration::from_secs(10);
/// Time that a connection stays open between two requests. Clients keep idle connections for about
/// a minute, and repeat a request that meets one which was just closed.
pub const IDLE_TIME: Duration = Duration::from_secs(60);
/// Time without a byte of a body, in either direction, until the connection is closed.
pub const STALL_TIME: Duration = Duration::from_secs(30);
/// Time that a request waits for its share of memory; then 503 SlowDown.
pub const CLAIM_TIME: Duration = Duration::from_secs(5);
/// Time that requests have to end when the gateway stops.
pub const STOP_TIME: Duration = Duration::from_secs(5);
/// Connections at once; further ones wait in the kernel's queue.
pub const CONNECTIONS_MAX: usize = 2_000;
/// Bytes of bodies in memory: 64 uploads or downloads at once, each with a buffer. What an upload has
/// handed on, one buffer at most, is the backend's.
pub const MEMORY_BYTES: usize = 64 << 20;
/// Bytes of an upload that are collected before they are handed on: one piece of a body.
pub const PUT_BUFFER: usize = object_proto::limits::PIECE_BYTES;
/// Bytes of an object that are read at once for a download: one piece of a body.
pub const GET_PIECE: usize = object_proto::limits::PIECE_BYTES;
/// Bytes of an XML document at most: S3 allows 1,000 keys in a bulk delete, each 1 KiB and up to 3
/// KiB when it is escaped; and 10,000 parts in an upload's completion, each about 200 bytes.
pub const XML_MAX: usize = 4 << 20;
/// Elements of an XML document at most: an ACL of 100 grants has 500, a bulk delete of 1,000 keys 5,002,
/// rules for scripts of other sites 5,000 in [`CORS_MAX`] bytes. s3s makes up to 500 bytes of each.
pub const ELEMENTS_MAX: usize = 10_000;
/// Elements of the document of an upload's completion at most: 10,000 parts with up to 9 in each.
pub const COMPLETION_ELEMENTS_MAX: usize = 1 + 10 * PARTS_MAX;
/// Parts that it names at most. s3s makes 180 bytes of one, an empty one too.
pub const PARTS_MAX: usize = object_proto::limits::PARTS_MAX as usize;
/// Elements of a document with rules of lifecycle at most: 1,000 rules with a few tags in each.
pub const LIFECYCLE_ELEMENTS_MAX: usize = 50_000;
/// Bytes of a document with rules for scripts of other sites at most, as in S3.
pub const CORS_MAX: u64 = 64 << 10;
/// Such rules of a bucket at most, as in S3.
pub const CORS_RULES_MAX: usize = 100;
/// Headers that a browser may ask for at once: each is held against all patterns of a bucket, which
/// are about 2,000 in the largest document.
pub const CORS_HEADERS_MAX: usize = 100;
/// Bytes of a body that are read and thrown away after its request was refused, so that the client
/// gets to read why. Clients with larger bodies ask first (`Expect: 100-continue`).
pub const DRAIN_MAX: usize = 8 << 20;
/// Time for that.
pub const DRAIN_TIME: Duration = Duration::from_secs(5);
/// Bytes of a form before its file, and behind it, at most, as in S3: 20 KiB.
pub const FORM_FIELDS_MAX: usize = 20 << 10;
/// Bytes of a form's file at most: those of an object of one put, as the file is handed on as it comes.
pub const FORM_FILE_MAX: u64 = object_proto::limits::PUT_MAX;
/// Bytes of a copy in memory: a piece that is written, and the next one that is read beside.
pub const COPY_BUFFERS: usize = 2 * GET_PIECE;
/// Attempts at the completion of an upload whose parts change in between, as when one is sent again.
pub const COMPLETE_TRIES: u32 = 3;
/// Keys of a bulk delete at most, as in S3.
pub const DELETE_MAX: usize = 1_000;
/// Deletions of a bulk delete under way at once.
pub const DELETES_INFLIGHT: usize = 16;
/// Bytes of one signed chunk at most: it is held until its signature was checked. Known clients
/// send 64 KiB to 1 MiB; claimed from the memory on top of the buffer.
pub const SIGNED_CHUNK_MAX: usize = 8 << 20;
/// Bytes of a chunk's first line at most: 16 digits and a signature of 64 are below 128.
pub const CHUNK_LINE_MAX: usize = 256;
/// Bytes behind the last of the chunks that are decoded here, at most: one checksum of 100 bytes, and
/// what a client may add.
pub const TRAILERS_MAX: usize = 4 << 10;
/// Access keys with unwrapped secrets: 1,024 x about 512 bytes = 512 KiB, and their policies.
pub const KEYS_MAX: usize = 1_024;
/// Buckets with policies that were read: 1,024 x 20 KiB at most.
pub const RULES_MAX: usize = 1_024;
/// Bytes of an access key's ID at most; AWS's have 20, others' up to 128.
pub const KEY_ID_MAX: usize = 128;
/// Seconds that a presigned URL may be valid, as in S3: 7 days.
pub const PRESIGNED_SECONDS_MAX: u64 = 604_800;
/// Seconds that a client's clock may be wrong, as in S3.
pub const CLOCK_SKEW_SECONDS: u32 = 900;
/// Bytes of a key file at most: 1,800 keys of up to 142 bytes.
pub const KEY_FILE_MAX: u64 = 256 << 10;

const _: () = assert!(HEAD_READ_MAX > HEAD_MAX);
const _: () = assert!(MEMORY_BYTES >= 64 * PUT_BUFFER);
const _: () = assert!(MEMORY_BYTES >= SIGNED_CHUNK_MAX + PUT_BUFFER);
const _: () = assert!(MEMORY_BYTES >= XML_MAX);
const _: () = assert!(MEMORY_BYTES >= COPY_BUFFERS && GET_PIECE == PUT_BUFFER);
